"""What a page asks its reader to type: the fenced blocks, in order, with what the page says about each.

A comment before a block (blank lines do not count) steers how the tests run it (the site does not show it):

    <!-- not run: REASON -->    not executed; tests/docs/test_snippets.py lists every one with its reason
    <!-- terminal: NAME -->     typed into a terminal of that name, and not waited for: a server, a worker
    <!-- output -->             a `text` block: what the Python block before it prints
    <!-- shows: NAME -->        a `text` block: what the terminal of that name has shown by now, or will soon

A Python block whose first line is `# name.py` (or a toml, ini or text block with such a line) is a file that the reader
saves. Pure: reads text, runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs

MARK = re.compile(r"^<!-- (?P<kind>not run|terminal|output|shows)(?:: (?P<text>.+?))? -->$")
FILE_NAME = re.compile(r"^(?:#|//) (?P<name>[\w./-]+\.(?:py|toml|ini|cfg|txt|json|sh))$")
# What differs from one run to the next: how to find it in a page, and what stands for it in a regular expression.
VARIES = (
    (re.compile(r"\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b"), "[0-7][0-9A-HJKMNP-TV-Z]{25}"),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "[0-9]{2}:[0-9]{2}:[0-9]{2}"),
    (re.compile(r"\bnode\\-[0-9a-f]{8}\b"), "node-[0-9a-f]{8}"),
)
TEST = re.compile(r"^(?:async )?def test_\w+\(", re.MULTILINE)


@attrs.frozen
class Snippet:
    """One fenced block.

    Attributes:
        line: of its fence, counted from 1.
        language: what follows the fence.
        body: its lines.
        mark: the kind of the comment before it, "" when there is none.
        text: what the comment says after the colon.
    """

    line: int
    language: str
    body: str
    mark: str = ""
    text: str = ""

    @property
    def file_name(self) -> str | None:
        """The file that the reader saves this block as, if it is one."""
        found = FILE_NAME.match(self.body.partition("\n")[0])
        return found["name"] if found else None

    @property
    def is_test(self) -> bool:
        """Whether it is made of pytest tests."""
        return self.language == "python" and TEST.search(self.body) is not None


def snippets(text: str) -> list[Snippet]:
    """Every fenced block of a page; a block that is never closed is an error."""
    found: list[Snippet] = []
    opened: tuple[int, str, str] | None = None
    body: list[str] = []
    previous = ""
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if opened is None and stripped.startswith("```"):
            indent = line[: len(line) - len(line.lstrip())]
            opened, body = (number, stripped.removeprefix("```").strip(), indent), []
        elif opened is not None and stripped == "```":
            mark = MARK.match(previous)
            kind, words = (mark["kind"], mark["text"] or "") if mark else ("", "")
            found.append(Snippet(opened[0], opened[1], "\n".join(body), kind, words))
            opened = None
        elif opened is not None:
            body.append(line.removeprefix(opened[2]))
        if opened is None and stripped:
            previous = stripped
    assert opened is None, f"the block opened in line {opened} is never closed"
    return found


@attrs.frozen
class Command:
    """One command of a console block and the output that the page shows after it, None when it shows none."""

    text: str
    shown: str | None


def commands(snippet: Snippet) -> Iterator[Command]:
    """The commands of a `console` or `sh` block. A backslash at a line's end continues the command."""
    if snippet.language == "sh":
        yield Command(snippet.body, None)
        return
    text: str | None = None
    shown: list[str] = []
    for line in snippet.body.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            if text is not None:
                yield Command(text, "\n".join(shown) if shown else None)
            text, shown = line[2:].strip(), []
        else:
            shown.append(line)
    if text is not None:
        yield Command(text, "\n".join(shown) if shown else None)


def same(shown: str, printed: str) -> bool:
    """Whether a program printed what the page shows.

    `...` stands for anything; spaces at line ends do not count; a message id, a time of day or a node's name that the
    page shows stands for any other.
    """

    def tidy(text: str) -> str:
        return "\n".join(line.rstrip() for line in text.strip().splitlines())

    pattern = re.escape(tidy(shown)).replace(re.escape("..."), r"[\s\S]*?")
    for varies, any_other in VARIES:
        pattern = varies.sub(any_other, pattern)
    return re.fullmatch(pattern, tidy(printed)) is not None
