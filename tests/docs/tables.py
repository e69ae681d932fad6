"""The tables that docs/ shows are made from the code: limits, error codes, the client's settings.

A page has `<!-- table: NAME -->` ... `<!-- end -->`; what stands between is written by

    python -m tests.docs.tables

and tests/docs/test_pages.py compares. Committed text rather than a build step, so that a page opened in a checkout is
complete.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from tests.protocol import samples
from walrq import api, limits
from walrq.client.config import ClientConfig, default_worker
from walrq.errors import ERRORS, Code
from walrq.http.routes import ROUTES
from walrq.protocol.json_replies import REPLIES, reply_to_json
from walrq.protocol.json_requests import OPERATIONS
from walrq.protocol.json_values import REQUIRED

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
TABLE = re.compile(r"(<!-- table: (?P<name>[\w ]+) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)


def cell(text: str) -> str:
    """Text as one cell of a Markdown table."""
    return re.sub(r"\s+", " ", text).strip().replace("|", r"\|")


def table(header: str, rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; `header` separates its columns by vertical bars."""
    names = [name.strip() for name in header.split("|")]
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# --- limits -------------------------------------------------------------------------------------------------
def amount(name: str, number: float) -> str:
    """A bound as a person reads it; its unit stands in its name."""
    exact = f"{number:,}"
    if "_BYTES" in name and number >= limits.KIB and number % limits.KIB == 0:
        mib, rest = divmod(int(number), limits.MIB)
        return f"{mib} MiB" if not rest else f"{int(number) // limits.KIB} KiB"
    if "_MS" in name:
        for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
            if size <= number < limits.TIME_MS_MAX and number % size == 0:
                return f"{exact} ms ({int(number) // size} {unit})"
        return f"{exact} ms"
    if name.endswith(("_S", "_S_DEFAULT", "_S_MAX")):
        return f"{number:g} s"
    return str(int(number)) if name.endswith("_PORT") else exact


def limit_sections() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """(title, [(name, reason)]) in the order of the file. A comment holds for the names that follow it."""
    section: list[tuple[str, str]] = []
    title = ""
    comment: list[str] = []
    fresh = False
    for line in (ROOT / "walrq/limits.py").read_text().splitlines():
        if heading := re.match(r"# --- (.+?) -+$", line):
            if section:
                yield title, section
            title, section, comment = heading[1], [], []
        elif line.startswith("# "):
            comment = [line[2:]] if not fresh else [*comment, line[2:]]
            fresh = True
        elif found := re.match(r"([A-Z][A-Z0-9_]*): Final = [^#]*(?:# (.*))?$", line):
            section.append((found[1], found[2] or " ".join(comment) if fresh or found[2] else ""))
            fresh = False
        elif not line.strip():
            comment, fresh = [], False
    yield title, section


def limits_table() -> str:
    """Every bound, a table for each section of the file."""
    parts = []
    for title, section in limit_sections():
        if not title:
            continue
        rows = [(f"`{name}`", amount(name, getattr(limits, name)), cell(reason)) for name, reason in section]
        parts.append(f"## {title[0].upper()}{title[1:]}\n\n{table('name | value | why', rows)}")
    return "\n" + "\n".join(parts) + "\n"


# --- errors -------------------------------------------------------------------------------------------------
def first_paragraph(docstring: str | None) -> str:
    """The docstring's first paragraph on one line."""
    return re.sub(r"\s+", " ", textwrap.dedent(docstring or "").strip().partition("\n\n")[0])


def error_facts(code: Code) -> str:
    """What a program can rely on, and the meaning as the class itself says it."""
    row = ERRORS[code]
    happened = "it did not happen" if row.definite else "it may have happened"
    again = "the same request may succeed later" if row.retry else "the same request fails again"
    facts = [f"code {code.value}", f"`walrq.errors.{row.error.__name__}`", happened, again, f"exit status {row.exit}"]
    return f"{first_paragraph(row.error.__doc__)}\n\n*{' · '.join(facts)}*\n"


def errors_table() -> str:
    """The overview: a line per code, each a link to its section."""

    def rows() -> Iterator[tuple[str, ...]]:
        for code, row in ERRORS.items():
            anchor = code.name.lower()
            yield (
                f"[`{code.name}`](#{anchor})",
                str(code.value),
                f"`{row.error.__name__}`",
                "yes" if row.definite else "**no**",
                "yes" if row.retry else "no",
                str(row.http),
                f"`{row.resp}`",
                str(row.exit),
            )

    return "\n" + table("name | code | class | definite | retry | HTTP | RESP | exit status", rows()) + "\n"


# --- the client's settings ----------------------------------------------------------------------------------
def attribute_texts(docstring: str) -> dict[str, str]:
    """Name -> text of a docstring's `Attributes:` section."""
    found: dict[str, str] = {}
    name = ""
    lines = textwrap.dedent(docstring.partition("Attributes:")[2].lstrip("\n")).splitlines()
    for line in lines:
        if entry := re.match(r"(\w+): (.*)", line):
            name = entry[1]
            found[name] = entry[2]
        elif name and line.strip():
            found[name] += " " + line.strip()
    return found


def default_of(field: attrs.Attribute[Any]) -> str:
    """A default as a person reads it."""
    default: Any = field.default
    factory = getattr(default, "factory", None)
    if factory is not None:
        return "host name and process id" if factory is default_worker else f"`{factory()!r}`"
    if isinstance(default, bool) or default is None or isinstance(default, str):
        return f"`{default!r}`"
    if isinstance(default, int | float):
        return f"{default:g} s" if field.name.endswith("_s") else f"{default:,g}"
    return "the system's monotonic clock" if field.name == "clock" else f"`{default!r}`"


def config_table() -> str:
    """Every setting of a client with its default."""
    texts = attribute_texts(ClientConfig.__doc__ or "")
    fields = attrs.fields(ClientConfig)
    rows = [(f"`{field.name}`", default_of(field), cell(texts[field.name])) for field in fields]
    return "\n" + table("setting | default | meaning", rows) + "\n"


# --- JSON ---------------------------------------------------------------------------------------------------
def json_kind(schema: Mapping[str, Any]) -> str:
    """What a field may be, in a few words."""
    kind = schema["type"]
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if kind == "integer":
        return f"{schema['minimum']:,} to {schema['maximum']:,}"
    if kind == "array":
        inner = "objects" if schema["items"]["type"] == "object" else f"({json_kind(schema['items'])})"
        return f"{schema['minItems']:,} to {schema['maxItems']:,} {inner}"
    if schema.get("contentEncoding") == "base64":
        return "base64"
    if "pattern" in schema:
        return f"`{schema['pattern']}`"
    if kind == "string" and "maxLength" in schema:
        return f"text, {schema['minLength']} to {schema['maxLength']:,} bytes"
    return {"string": "text", "boolean": "`true`, `false`", "object": "object"}[kind]


def operations_table() -> str:
    """Every operation with its fields."""
    parts = []
    for operation in OPERATIONS:
        rows = []
        for field in operation.fields:
            default = field.default.name.lower() if isinstance(field.default, api.State) else field.default
            needed = "**needed**" if default is REQUIRED else f"`{json.dumps(default)}`"
            rows.append((f"`{field.name}`", cell(json_kind(field.schema)), needed, cell(field.about)))
        replies = " or ".join(f"`{name}`" for name in operation.replies)
        fields = "\n" + table("field | what it may be | left out | ", rows) if rows else ""
        parts.append(f"### {operation.name}\n\n{operation.about} Reply: {replies}.\n{fields}")
    return "\n" + "\n".join(parts) + "\n"


def json_replies_table() -> str:
    """One reply of each kind."""
    by_class = {type(each): each for each in samples.SAMPLE_REPLIES}
    parts = []
    for name, cls, _ in REPLIES:
        text = json.dumps(reply_to_json(by_class[cls]), indent=2, ensure_ascii=False)
        parts.append(f"### {name}\n\n```json\n{text}\n```\n")
    return "\n" + "\n".join(parts) + "\n"


def routes_table() -> str:
    """Every path of the HTTP API."""
    found = [
        (f"`{route.method} {route.path}`", f"`{route.op}`" if route.op else "any", cell(about))
        for route, about in ((route, route.about or route.operation.about) for route in ROUTES)
    ]
    return "\n" + table("path | operation | ", found) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "limits": limits_table,
    "errors": errors_table,
    "ClientConfig": config_table,
    "operations": operations_table,
    "json replies": json_replies_table,
    "http routes": routes_table,
} | {f"error {code.name}": (lambda code=code: error_facts(code)) for code in ERRORS}


def filled(text: str) -> str:
    """A page's text with each of its tables as the code has it now.

    Raises: KeyError for a table that nobody makes.
    """
    return TABLE.sub(lambda found: f"{found[1]}{TABLES[found['name']]()}{found[4]}", text)


def names_in_limits() -> set[str]:
    """Every constant of walrq/limits.py."""
    tree = ast.parse((ROOT / "walrq/limits.py").read_text())
    return {
        node.target.id for node in tree.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def main() -> None:
    """Rewrite every page whose tables are out of date."""
    for page in sorted(DOCS.rglob("*.md")):
        before = page.read_text()
        after = filled(before)
        if after != before:
            page.write_text(after)
            print(f"wrote {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
