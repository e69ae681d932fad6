"""What the pages tell their readers to type is typed, against a real node, and does what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.reader import RUN_LANGUAGES, Mismatch, Reader
from tests.docs.snippets import Command, Snippet, commands, same, snippets

ROOT = Path(__file__).resolve().parent.parent.parent
# tests/cli/test_readme.py runs the README, with its kill in the middle.
PAGES = sorted(
    [*(ROOT / "docs").rglob("*.md"), *(set(ROOT.glob("*.md")) - {ROOT / "README.md"}), ROOT / "spec/README.md"]
)
# Every block that no test runs, by page, with the reason that stands before it.
NOT_RUN: dict[str, list[str]] = {
    "docs/architecture.md": ["a fragment of the driver's loop", "a fragment of the driver's loop"],
    "docs/benchmarks.md": ["measures for minutes"],
    "docs/formal.md": ["takes a minute", "takes hours", "takes a while"],
    "docs/migrating/celery.md": ["needs Celery"],
    "docs/migrating/redis-lists.md": ["needs Redis", "needs Redis"],
    "docs/migrating/rq.md": ["needs rq and Redis"],
    "docs/migrating/sqs.md": ["needs AWS"],
    "docs/mutants.md": ["takes hours"],
    "docs/operations.md": ["makes secrets and locks a node"],
    "docs/simulator.md": ["takes an hour"],
}


def runnable(page: Path) -> list[Snippet]:
    """The blocks of a page that a test runs or leaves out by name."""
    return [each for each in snippets(page.read_text()) if each.language in RUN_LANGUAGES]


def name_of(page: Path) -> str:
    """How a page is called here."""
    return str(page.relative_to(ROOT))


WITH_SNIPPETS = [page for page in PAGES if runnable(page)]


@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=name_of)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    """An example that does not run costs its reader an evening, and us the reader."""
    blocks = snippets(page.read_text())
    expected = sum(each.language in RUN_LANGUAGES and each.mark != "not run" for each in blocks)
    if not expected:
        return

    with Reader(tmp_path, blocks) as reader:
        done = reader.run()

    assert done >= expected


def test_what_is_not_run_is_listed() -> None:
    """A block that is left out is a decision, not an oversight."""
    found = {
        name_of(page): [each.text for each in snippets(page.read_text()) if each.mark == "not run"]
        for page in WITH_SNIPPETS
    }

    assert {name: reasons for name, reasons in found.items() if reasons} == NOT_RUN


# --- the runner itself --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shown", "printed", "is_same"),
    [
        ("a", "a\n", True),
        ("a", "b", False),
        ("a", "a\nb", False),
        ("a ... c", "a b c", True),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a...", "a", True),
        ("a...b", "a", False),
        ("1.5 (x)", "1x5 (x)", False),
        ("a  ", "a", True),
        ("01M8NB9JFYE000008000000001 04:27:00", "01M8NB9JG0E000008000000002 23:59:59", True),
        ("01M8NB9JFYE000008000000001", "1", False),
        ("node-a66764c6 [1]", "node-00000000 [1]", True),
        ("12:00:00", "12:00", False),
    ],
)
def test_shown_output_is_compared(shown: str, printed: str, is_same: bool) -> None:
    """A comparison that accepts anything proves nothing."""
    assert is_same == same(shown, printed)


def test_blocks_are_read_with_their_marks() -> None:
    """The comment right before a block belongs to it, one further up does not."""
    text = "<!-- not run: slow -->\n\n```sh\nx\n```\n\n<!-- output -->\nwords\n```text\ny\n```\n```text\nz\n```\n"

    assert [("not run", "slow"), ("", ""), ("", "")] == [(each.mark, each.text) for each in snippets(text)]


def test_commands_are_told_from_their_output() -> None:
    """What follows a command until the next one is what it prints."""
    block = Snippet(1, "console", "$ one \\\n  two\nout\nput\n$ three")

    assert [Command("one    two", "out\nput"), Command("three", None)] == list(commands(block))


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        (Snippet(1, "console", "$ echo one\ntwo"), "the page shows"),
        (Snippet(1, "console", "$ false"), "ended with 1"),
        (Snippet(1, "sh", "exit 3 &\nwait $!"), "ended with 3"),
        (Snippet(1, "python", "print(1)\nraise KeyError('x')"), "KeyError"),
        (Snippet(1, "python", "def test_it():\n    assert 0"), "pytest ended with 1"),
        (Snippet(1, "text", "two", "output"), "the block before it printed"),
    ],
)
def test_the_runner_notices_a_page_that_is_wrong(block: Snippet, complaint: str, tmp_path: Path) -> None:
    """A check that cannot fail guards nothing: each kind of mistake is made once."""
    with Reader(tmp_path, [block]) as reader, pytest.raises(Mismatch, match=complaint):
        reader.run()
