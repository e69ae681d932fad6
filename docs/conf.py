"""Sphinx builds the pages of this folder; `make docs` runs it, strictly, into build/docs.

The pages are written for two readers: the site, and whoever opens the file in a checkout. So links are relative
paths to `.md` files, as any Markdown viewer follows them, and what follows here makes the site understand them:

    pages outside docs/   CHANGELOG.md and its kind appear in the site under the name in OUTSIDE
    other files           a link to a source file becomes its name: the site carries no source tree
    Raises: in docstrings names errors without their module; they are looked up in the public modules
"""

from __future__ import annotations

import builtins
import importlib
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon import GoogleDocstring

import walrq

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

project = "walrq"
author = "walrq contributors"
project_copyright = author
version = release = walrq.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = True

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4

# A single backquote in a docstring is code, as it is in Markdown.
default_role = "code"
napoleon_use_rtype = False
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

# Nothing is fetched while building, so the names of other libraries stay plain text.
nitpick_ignore_regex = [
    # What a batch is made from; only the client itself reads it.
    (r"py:class", r"walrq\.api\.Delivered"),
    (r"py:.*", r"(collections|datetime|enum|types|typing|pathlib|contextlib|threading|ssl|attrs?|anyio|trio)\..*"),
    (r"py:.*", r"(Any|Callable|Iterable|Mapping|Sequence|Iterator|AsyncIterator|Awaitable|Coroutine|datetime)"),
    (r"py:.*", r"(Self|Literal|Final|ClassVar|TracebackType|ParamSpec|P|timedelta|Path|CancelScope|frozenset)"),
]

html_theme = "furo"
html_title = f"walrq {release}"
html_static_path = ["_static"]
html_css_files = ["walrq.css"]
html_extra_path = ["llms.txt"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "tango"
pygments_dark_style = "monokai"

# Page of the site -> file at the root of the repository whose text it shows.
OUTSIDE = {
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "security": "SECURITY.md",
    "ledger": "spec/README.md",
}
LINK = re.compile(r"\[(?P<label>[^\]]+)\]\((?P<target>[^)\s]+)\)")


def site_link(link: re.Match[str], folder: Path, page: Path) -> str:
    """A link that stands in a file of `folder`, as the page at `page` of the site has to write it."""
    label, target = link["label"], link["target"]
    if re.match(r"[a-z]+:|#", target):
        return link[0]
    name, hash_, anchor = target.partition("#")
    aim = (folder / name).resolve()
    for shown, original in OUTSIDE.items():
        if aim == ROOT / original:
            aim = HERE / f"{shown}.md"
    if HERE in aim.parents and aim.suffix == ".md":
        # A label that is the file's name is for those who read files; the site shows the page's title.
        label = "" if label in {name, Path(name).name, aim.name} else label
        up = "../" * (len(page.relative_to(HERE).parts) - 1)
        return f"[{label}]({up}{aim.relative_to(HERE)}{hash_}{anchor})"
    path = aim.relative_to(ROOT)
    return f"`{path}`" if label.strip("`") == str(path) else f"{label} (`{path}`)"


def read_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """Show the pages of OUTSIDE, and mend links that lead out of this folder."""
    page = HERE / f"{docname}.md"
    origin = ROOT / OUTSIDE[docname] if docname in OUTSIDE else page
    text = origin.read_text() if docname in OUTSIDE else source[0]
    if docname in OUTSIDE:
        app.env.note_dependency(str(origin))
    fence = False
    lines = []
    for line in text.splitlines():
        fence ^= line.lstrip().startswith("```")
        lines.append(line if fence else LINK.sub(lambda link: site_link(link, origin.parent, page), line))
    source[0] = "\n".join(lines) + "\n"


PROPERTIES: dict[str, list[str]] = {}


def before_napoleon(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """An entry for several names, such as `A, B: why`, becomes one for each; a property's text is read as a function's.

    Of a property the parser would take the words before the first colon for its type.
    """
    found = []
    for line in lines:
        entry = re.fullmatch(r"(\s+)(\w+(?:, \w+)+): (.*)", line)
        found += [f"{entry[1]}{each}: {entry[3]}" for each in entry[2].split(", ")] if entry else [line]
    if what in {"attribute", "property"}:
        PROPERTIES[name] = GoogleDocstring(found, app.config, app, "method", name, obj, options).lines()
        found = []
    lines[:] = found


def after_napoleon(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Put the text of a property back."""
    if name in PROPERTIES:
        lines[:] = PROPERTIES.pop(name)


PUBLIC = {"walrq", "walrq.aio", "walrq.errors", "walrq.api", "walrq.testing.clock"}


def find_public_name(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, contents: nodes.Element
) -> nodes.Node | None:
    """Link a bare name such as `ReceiptExpired` to the public module that documents it.

    A type of ours that is nobody's to import stays plain text, so does a built-in; a public name that the reference
    does not have is an error.
    """
    if node.get("refdomain") != "py":
        return None
    domain = env.domains.python_domain
    target: str = node.get("reftarget", "")
    home, _, bare = target.rpartition(".")
    for public in sorted(PUBLIC):
        if f"{public}.{bare}" in domain.objects:
            found = domain.resolve_xref(env, node["refdoc"], app.builder, "obj", f"{public}.{bare}", node, contents)
            if found is not None:
                return found
    if hasattr(builtins, target):
        return contents
    if home.startswith("walrq.") and home not in PUBLIC and bare not in walrq.__all__:
        return contents if hasattr(importlib.import_module(home), bare) else None
    return None


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", read_page)
    app.connect("autodoc-process-docstring", before_napoleon, priority=400)
    app.connect("autodoc-process-docstring", after_napoleon, priority=600)
    app.connect("missing-reference", find_public_name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
