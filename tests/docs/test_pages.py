"""The site builds without a warning, its tables are those of the code, and its pages are complete."""

from __future__ import annotations

import re
from pathlib import Path

import walrq
import walrq.aio
from tests.docs import tables
from tests.docs.conftest import Site
from walrq.errors import ERRORS

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"


def test_the_site_builds_without_a_warning(site: Site) -> None:
    """A broken link, a name that is not documented, a page that nothing leads to: each is a warning, and an error."""
    assert (0, "") == site.built()
    assert (site.folder / "index.html").is_file()
    assert (site.folder / "llms.txt").is_file()
    reference = "".join(page.read_text() for page in (site.folder / "reference").glob("*.html"))
    public = [f"walrq.{name}" for name in walrq.__all__] + [f"walrq.aio.{name}" for name in walrq.aio.__all__]
    elsewhere = {"walrq.__version__", "walrq.aio", "walrq.WalrqError", "walrq.aio.ClientConfig"}
    missing = [name for name in public if f'id="{name}"' not in reference]
    assert [] == sorted(set(missing) - elsewhere), "every public name has its place in the reference"
    assert 'id="walrq.Client.push"' in reference and 'id="walrq.errors.WalrqError"' in reference
    assert "CHANGELOG" not in (site.folder / "changelog.html").read_text().partition("<article")[2].partition("</p>")[0]


def test_tables_are_those_of_the_code() -> None:
    """A limit or a code that changed and a page that did not: `python -m tests.docs.tables` writes them anew."""
    stale = [
        str(page.relative_to(ROOT))
        for page in sorted(DOCS.rglob("*.md"))
        if tables.filled(page.read_text()) != page.read_text()
    ]

    assert [] == stale


def test_every_limit_is_in_the_table() -> None:
    """The reader of limits.py by lines and the one by its syntax agree."""
    listed = re.findall(r"^\| `(\w+)` \|", (DOCS / "limits.md").read_text(), flags=re.MULTILINE)

    assert tables.names_in_limits() - {"KIB", "MIB"} == set(listed)
    assert len(listed) == len(set(listed))


def test_the_error_catalogue_is_complete() -> None:
    """Whoever meets a code finds what it means and what to do."""
    text = (DOCS / "errors.md").read_text()
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", text, flags=re.MULTILINE | re.DOTALL))

    assert [code.name for code in ERRORS] == list(sections)
    for name, section in sections.items():
        assert f"<!-- table: error {name} -->" in section
        assert len(section.partition("**What to do.**")[2].strip()) > 20, name


def test_every_fixture_of_the_plugin_is_in_the_reference() -> None:
    """A fixture that is not documented is not used."""
    plugin = (ROOT / "walrq/testing/plugin.py").read_text()
    fixtures = re.findall(r"^@pytest\.fixture.*\n(?:async )?def (walrq_\w+)", plugin, flags=re.MULTILINE)
    listed = re.findall(r"^\| `(walrq_\w+)` \|", (DOCS / "reference/testing.md").read_text(), flags=re.MULTILINE)

    assert 5 < len(fixtures)
    assert sorted(fixtures) == sorted(listed)


def test_llms_txt_names_every_page() -> None:
    """A program that reads one file finds all others."""
    text = (DOCS / "llms.txt").read_text()
    linked = set(re.findall(r"\]\(([\w/-]+)\.html\)", text))
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")}

    assert pages - {"index"} == linked
