"""The documents say what is: links lead somewhere, commands exist, dependencies are all explained.

A fenced block in README.md or docs/ carries a language, and one of `console` or `sh` is a promise:
    console    a session; lines that start with `$ ` are commands
    sh         a script to paste
Lines in them that start with `walrq` or `make` name only sub-commands and targets that exist. That the blocks do what
the pages say is shown by tests/docs/test_snippets.py, that the site builds by tests/docs/test_pages.py.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import attrs
import pytest

from tests.docs.snippets import snippets
from tests.references import command_problem, program_of
from walrq.queues.settings import DEFAULTS

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md"), *(ROOT / "spec").glob("*.md")])
LANGUAGES = {"console", "sh", "python", "text", "toml", "json", "cddl", "tla", "ini", "yaml", "diff", "js"}
# What only the site understands: tables of contents, docstrings, whole files.
DIRECTIVES = {"{toctree}", "{eval-rst}", "{literalinclude}"}
COMMAND_LANGUAGES = {"console", "sh"}

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(text: str) -> list[tuple[int, str, str]]:
    """(line, language, body) of each fenced block; a block that is never closed is an error."""
    return [(each.line, each.language, each.body) for each in snippets(text)]


def outside_blocks(text: str) -> str:
    """The text without its fenced blocks."""
    return re.sub(r"^\s*```.*?^\s*```\s*$", "", text, flags=re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """Every command of the page's command blocks, one string each, continuation lines joined."""
    found = []
    for _, language, body in blocks(text):
        joined = body.replace("\\\n", " ")
        if language == "console":
            found += [line[2:].strip() for line in joined.splitlines() if line.startswith("$ ")]
        elif language == "sh":
            found += [line.strip() for line in joined.splitlines() if line.strip() and line[0] != "#"]
    return found


@by_page
def test_every_block_is_marked(page: Path) -> None:
    """An unmarked block is neither coloured for the reader nor seen by the checks below."""
    kinds = [(number, kind.partition(" ")[0]) for number, kind, _ in blocks(page.read_text())]

    assert [] == [f"{page.name}:{number}: {kind!r}" for number, kind in kinds if kind not in LANGUAGES | DIRECTIVES]


@by_page
def test_links_lead_somewhere(page: Path) -> None:
    """A link to a file or a heading of ours that is gone is a lie about the tree."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", outside_blocks(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        aim = page if not name else (page.parent / name).resolve()
        if not aim.exists() or (anchor and anchor not in anchors(aim)):
            broken.append(target)

    assert [] == broken


def anchors(page: Path) -> set[str]:
    """The names that a page's headings can be linked by."""
    headings = re.findall(r"^#+ (.*)$", outside_blocks(page.read_text()), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@by_page
def test_make_targets_in_the_documents_exist(page: Path) -> None:
    """What the page tells the reader to type is there."""
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    targets = set(phony.split())
    typed = [command.split() for command in commands(page.read_text())]
    named = {words[1] for words in typed if words[0] == "make" and len(words) > 1}

    assert named <= targets


@by_page
def test_commands_in_the_documents_exist(page: Path) -> None:
    """Every sub-command and every long option that a reader is told to type is in the program's own help."""
    named = []
    for command in commands(page.read_text()):
        for part in re.split(r"\|\|?|&&|;|&(?!\d)", command):
            words = re.sub(r"(?<!\S)(?:\./)?\.venv/bin/", "", part).split()
            while words and re.fullmatch(r"[A-Z_]+=.*|time|sudo", words[0]):
                words.pop(0)
            named.append(" ".join(words))
    wrong = [problem for name in named if program_of(name) and (problem := command_problem(name))]

    assert [] == wrong


@by_page
def test_files_named_in_the_documents_exist(page: Path) -> None:
    """A path in backquotes that starts with one of our folders is a file of ours."""
    text = outside_blocks(page.read_text())
    roots = "walrq|tests|docs|spec|chaos|bench|deploy"
    named = set(re.findall(rf"`((?:{roots})/[\w./-]+\.(?:py|md|cddl|tla|toml))(?:::[^`]*)?`", text))
    missing = sorted(name for name in named if not (ROOT / name).exists())

    assert [] == missing


def requirement_name(requirement: str) -> str:
    """The name in a requirement such as `trio>=0.30,<1`, in lower case."""
    (name,) = re.findall(r"^[A-Za-z0-9._-]+", requirement)
    return str(name).lower()


def test_every_dependency_is_explained() -> None:
    """docs/dependencies.md has one row per dependency, and none for what we no longer use."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = data["project"]
    extras = project["optional-dependencies"]
    declared = {requirement_name(line) for line in project["dependencies"]}
    declared |= {requirement_name(line) for lines in extras.values() for line in lines} - {"walrq"}
    page = (ROOT / "docs/dependencies.md").read_text()
    explained = set(re.findall(r"^\| `([\w-]+)` \|", page, flags=re.MULTILINE))

    assert declared == explained


def test_every_dependency_is_bounded() -> None:
    """A range with no upper end lets tomorrow's release break today's install."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())

    assert [] == [line for line in data["project"]["dependencies"] if "<" not in line or ">=" not in line]


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"])
def test_the_readme_mentions_what_a_newcomer_looks_for(name: str) -> None:
    """The root is read before anything else, so each of its pages can be found from the first one."""
    assert (ROOT / name).is_file()
    if name != "README.md":
        assert name in (ROOT / "README.md").read_text()


def test_the_readme_leads_to_the_documents() -> None:
    """From the first page to the index, and from there to every other: the strict build sees to the second half."""
    readme = (ROOT / "README.md").read_text()

    assert {"docs/index.md", "docs/tutorial.md"} <= set(re.findall(r"\]\((docs/[\w./-]+)\)", readme))


def test_the_page_of_queues_has_every_setting_with_its_default() -> None:
    """A reader sets what is really there."""
    text = (ROOT / "docs/queues.md").read_text()
    listed = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", text, flags=re.MULTILINE))
    expected = {name: "none" if each is None else str(each).lower() for name, each in attrs.asdict(DEFAULTS).items()}
    # None means a queue of that name here, and "none" would be the word that parks.
    assert DEFAULTS.dlq is None
    expected["dlq"] = "`<queue>.dlq`"

    assert expected == listed
