"""What the log holds: kinds of entries, and positions."""

from __future__ import annotations

import enum
from typing import TypeAlias

import attrs


class Kind(enum.IntEnum):
    """Kinds of log entries; stored, never renumbered. 2 and 3 are reserved for configurations and snapshot points."""

    NOOP = 0
    COMMANDS = 1


@attrs.frozen
class HardState:
    """What a voter may never forget: its latest term, and whom it voted for in it."""

    term: int = 0
    vote: str | None = None


@attrs.frozen
class Tail:
    """The end of the durable log at the start: (0, 0) for an empty one."""

    last_index: int = 0
    last_term: int = 0


Position: TypeAlias = tuple[int, int, Kind]
"""(term, index, kind) of an appended entry."""
