"""Reads the tables of docs/features.md and spec/README.md and looks up what they name.

A reference stands in backquotes and is one of
    walrq/queues/leases.py                    a file or folder
    tests/queues/test_leases.py::test_name    a function, class or method in it (Class::method)
    spec/Queue.tla::Exclusive                 a definition of a module
    walrq queue list, python -m bench ingest, python -m chaos soak, make soak
                                              a command, whose sub-commands must exist
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = {
    "walrq": [sys.executable, "-c", "from walrq.cli import main; main()"],
    "python -m bench": [sys.executable, "-m", "bench"],
    "python -m chaos": [sys.executable, "-m", "chaos"],
}
HELP_S_MAX = 120


@attrs.frozen
class Row:
    """One row of a Markdown table: its line in the file and its cells."""

    line: int
    cells: tuple[str, ...]


def rows(page: Path, *, header: str) -> list[Row]:
    """Every row of every table of `page` whose first header cell is `header`."""
    found = []
    inside = False
    previous = ""
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if not line.startswith("|"):
            inside = False
        elif re.fullmatch(r"\|[\s:|-]+\|", line):
            inside = cells(previous)[0] == header
        elif inside:
            found.append(Row(line=number, cells=cells(line)))
        previous = line
    return found


def cells(line: str) -> tuple[str, ...]:
    """The cells of one table line; a vertical bar inside backquotes does not divide."""
    parts = re.split(r"\|(?=(?:[^`]*`[^`]*`)*[^`]*$)", line.strip())
    return tuple(part.strip() for part in parts[1:-1])


def references(cell: str) -> list[str]:
    """What stands in backquotes."""
    return re.findall(r"`([^`]+)`", cell)


@functools.cache
def definitions(path: Path) -> frozenset[str]:
    """Functions, classes and Class::method names defined in a Python file; definitions of a TLA+ module."""
    if path.suffix == ".tla":
        return frozenset(re.findall(r"^(\w+)(?:\([^)]*\))? ==", path.read_text(), flags=re.MULTILINE))
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}::{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(names)


def program_of(reference: str) -> tuple[str, list[str]] | None:
    """(program, its sub-commands) of a command; words after the first flag or placeholder are arguments."""
    for program in (*PROGRAMS, "make"):
        if reference == program or reference.startswith(f"{program} "):
            words = []
            for word in reference.removeprefix(program).split():
                if not re.fullmatch(r"[a-z][a-z-]*", word):
                    break
                words.append(word)
            return program, words
    return None


@functools.cache
def command_problem(reference: str) -> str | None:
    """What is wrong with a command, or None. Asks the program itself for its help."""
    parsed = program_of(reference)
    assert parsed is not None
    program, words = parsed
    if program == "make":
        (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        unknown = sorted(set(words) - set(phony.split()))
        return f"make has no target {unknown}" if unknown else None
    status, text = help_of(program, tuple(words))
    if status != 0:
        return f"`{reference}` has no help: {text.strip()[-200:]}"
    flags = re.findall(r"(?<!\S)(--[a-z][a-z-]*)", reference)
    unknown = [flag for flag in flags if flag not in text]
    return f"`{reference}` has no option {unknown}" if unknown else None


@functools.cache
def help_of(program: str, words: tuple[str, ...]) -> tuple[int, str]:
    """(exit status, output) of a sub-command's --help; each is asked once."""
    command = [*PROGRAMS[program], *words, "--help"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HELP_S_MAX)
    return ran.returncode, ran.stdout + ran.stderr


def problem(reference: str) -> str | None:
    """What is wrong with one reference, or None."""
    if program_of(reference) is not None:
        return command_problem(reference)
    name, _, inside = reference.partition("::")
    path = ROOT / name
    if not path.exists():
        return f"{name} does not exist"
    if inside and inside not in definitions(path):
        return f"{name} does not define {inside}"
    return None
