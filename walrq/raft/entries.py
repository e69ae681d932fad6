"""What the log holds: kinds of entries, positions, and how both travel."""

from __future__ import annotations

import enum
from typing import TypeAlias

import attrs


class Kind(enum.IntEnum):
    """Kinds of log entries; stored, never renumbered."""

    NOOP = 0
    COMMANDS = 1
    CONFIGURATION = 2  # body: membership.Configuration
    SNAPSHOT = 3  # a point at which all nodes image their state


@attrs.frozen
class HardState:
    """What a voter may never forget: its latest term, and whom it voted for in it."""

    term: int = 0
    vote: str | None = None


@attrs.frozen
class Tail:
    """The durable log at the start; all zero for an empty one.

    Attributes:
        last_index, last_term: its end.
        runs: (first index, term) of each stretch of equal term, ascending: what is known of the entries that may yet
            be compared with a leader's or sent to a follower. The first one's first index is the first entry that
            can be sent. A node with peers owes the runs of all entries behind `commit_index`.
        commit_index: entries up to here are known to be committed: the index of the newest snapshot.
        base_term: term of the entry before the first run; 0 at the beginning of the log.
    """

    last_index: int = 0
    last_term: int = 0
    runs: tuple[tuple[int, int], ...] = ()
    commit_index: int = 0
    base_term: int = 0


Position: TypeAlias = tuple[int, int, Kind]
"""(term, index, kind) of an appended entry."""


@attrs.frozen
class Entry:
    """An entry on its way to a follower; its index follows from its place in the message."""

    term: int
    kind: Kind
    body: bytes
