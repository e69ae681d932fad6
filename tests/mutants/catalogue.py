"""Reads the mutants: one table each in the *.toml files beside this one.

[[mutant]]
id = "L07"                               unique; the letter names the group
breaks = "Exclusive"                     the promise, by its one name
what = "touch revives an expired lease"
file = "walrq/queues/leases.py"
search = "..."                           must occur exactly once in the file; or a list of such texts
replace = "..."                          or a list, one for each text
killers = ["tests/...::test_...", ...]   each a technique that must notice it on its own
equivalent = "why"                       only for a mutant that cannot be noticed; then without killers
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import attrs

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


class BadMutant(Exception):
    """A mutant that does not fit the code: its text is gone, or stands there more than once."""


@attrs.frozen
class Mutant:
    """One small fault."""

    id: str
    breaks: str
    what: str
    file: str
    search: str | list[str]
    replace: str | list[str]
    killers: tuple[str, ...] = attrs.field(converter=tuple, default=())
    equivalent: str | None = None

    def mutated(self, root: Path) -> str:
        """The file's text with the fault in it.

        Raises:
            BadMutant: the text to replace does not occur exactly once.
        """
        text = (root / self.file).read_text("utf-8")
        searches = [self.search] if isinstance(self.search, str) else self.search
        replacements = [self.replace] if isinstance(self.replace, str) else self.replace
        for search, replacement in zip(searches, replacements, strict=True):
            found = text.count(search)
            if found != 1:
                raise BadMutant(f"{self.id}: {search!r} occurs {found} times in {self.file}, not once")
            text = text.replace(search, replacement)
        return text


def mutants(folder: Path = HERE) -> list[Mutant]:
    """All of them, by id."""
    rows = [row for path in sorted(folder.glob("*.toml")) for row in tomllib.loads(path.read_text())["mutant"]]
    return sorted((Mutant(**row) for row in rows), key=lambda mutant: mutant.id)
