"""Reads what deploy/ holds, as far as it is used there: a Dockerfile, a systemd unit, a compose file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "deploy"


def instructions(text: str) -> list[tuple[str, str]]:
    """(INSTRUCTION, the rest) of a Dockerfile, continued lines joined, comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    found = []
    for line in joined.splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            found.append((word.upper(), rest.strip()))
    return found


def last_stage(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The instructions of the image itself, without those of stages before it."""
    begin = max(number for number, (word, _) in enumerate(found) if word == "FROM")
    return found[begin:]


def one(found: list[tuple[str, str]], word: str) -> str:
    """The rest of the only instruction of that name."""
    (rest,) = [rest for each, rest in found if each == word]
    return rest


def settings(found: list[tuple[str, str]]) -> dict[str, str]:
    """Every variable that ENV sets."""
    return dict(part.split("=", 1) for each, rest in found if each == "ENV" for part in shlex.split(rest))


def health_command(found: list[tuple[str, str]]) -> list[str]:
    """The command of HEALTHCHECK, whose failing with status 77, "who are you?", is an answer too."""
    command, _, pardoned = one(found, "HEALTHCHECK").partition(" CMD ")[2].partition(" || ")
    assert "[ $? -eq 77 ]" == pardoned
    return shlex.split(command)


def unit(text: str) -> dict[str, dict[str, list[str]]]:
    """Sections of a unit, each name with its values in order.

    Raises:
        ValueError: a line that is none of those a unit may have.
    """
    sections: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith(("#", ";")):
            continue
        head = re.fullmatch(r"\[(\w+)\]", line.strip())
        if head:
            section = sections.setdefault(head[1], {})
            continue
        name, equals, given = line.partition("=")
        if section is None or not equals or not re.fullmatch(r"[A-Z]\w*", name):
            raise ValueError(f"line {number} is no line of a unit: {line!r}")
        section.setdefault(name, []).append(given)
    return sections


def compose() -> dict[str, Any]:
    """deploy/compose.yaml, with what services share merged into each."""
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def said_commands(text: str) -> Iterator[str]:
    """Command lines of walrq in the comments of a file."""
    for line in text.splitlines():
        found = re.search(r"\b(walrq (?:cluster|stats|config)[^)`]*)", line) if line.startswith("#") else None
        if found:
            yield found[1].strip()
