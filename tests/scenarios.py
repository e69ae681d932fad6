"""Scenario files: blocks of commands, `----`, and what they print. Who plays them is each folder's own `stage.py`.

A block without `----` is a comment, and so is a line that begins with `#`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import attrs


class Stage(Protocol):
    """Plays the commands of one file, one after another."""

    def play(self, command: str) -> list[str]:
        """The lines that a command prints."""
        ...


@attrs.frozen
class Scenarios:
    """The files of one folder, each played on a stage of its own."""

    folder: Path
    stage: Callable[[], Stage]

    def played(self, text: str) -> str:
        """The text of a file with what its commands print now."""
        stage = self.stage()
        blocks = []
        for block in text.strip("\n").split("\n\n"):
            lines = block.splitlines()
            if "----" not in lines:
                assert all(line.startswith("#") for line in lines), f"neither comment nor commands: {block!r}"
                blocks.append(block)
                continue
            commands = lines[: lines.index("----")]
            out: list[str] = []
            for command in commands:
                if not command.startswith("#"):
                    out += stage.play(command)
            blocks.append("\n".join([*commands, "----", *(out or ["ok"])]))
        return "\n\n".join(blocks) + "\n"

    def difference(self, path: Path) -> str:
        """What a scenario prints now against what stands in its file; empty when it is the same."""
        text = path.read_text("utf-8")
        new = self.played(text).splitlines()
        return "\n".join(difflib.unified_diff(text.splitlines(), new, str(path.name), "now", lineterm=""))

    def main(self, arguments: list[str]) -> int:
        """Run from a shell: show differences, or with --rewrite put what is printed now into the files."""
        rewrite = "--rewrite" in arguments
        paths = [Path(each) for each in arguments if each != "--rewrite"] or sorted(self.folder.glob("*.txt"))
        status = 0
        for path in paths:
            if rewrite:
                path.write_text(self.played(path.read_text("utf-8")), "utf-8")
            elif text := self.difference(path):
                print(text)
                status = 1
        return status
