"""What applying an entry answers, and what it asks the node to do.

Effects may repeat or be lost (a restart replays the log without them), so they only ever wake or inform.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from walrq import api
from walrq.api import value
from walrq.queues.commands import Target


@value
class Grant:
    """One leased run. `first` is its first position in the body's columns at (index, ordinal).

    `task`: the number of a numbered lease. Of messages that moved on instead of being leased, `lease` is 0.
    """

    queue: str
    uid: int
    lease: int
    index: int
    ordinal: int
    first: int
    count: int
    first_id: int
    delivery: int
    attempts: int
    fence: tuple[int, int]
    priority: int
    pushed_ms: int
    group: str | None
    task: int = 0


@value
class Granted:
    """What a lease command got; no runs = nothing was there, and nothing changed."""

    runs: tuple[Grant, ...]
    parked_ms: int
    visibility_ms: int
    ended: tuple[Target, ...] = ()


@value
class LookFar:
    """Nothing was done yet: these ids may lie in sealed pages of what waits beyond the horizon, those of `cold` in
    sealed stretches beyond the hot window, and must be looked up there first. Never remembered: the request comes again
    with what was found."""

    ids: tuple[int, ...]
    cold: tuple[int, ...] = ()


@value
class Seen:
    """A message as peek sees it, without its body: (index, ordinal, position) is where the body lies."""

    index: int
    ordinal: int
    position: int
    peeked: api.Peeked


@attrs.define
class Effects:
    """Since the last `Machine.take_effects`.

    Attributes:
        woken: queues where something may have become leasable.
        deleted: queues that were deleted.
    """

    woken: set[str] = attrs.field(factory=set)
    deleted: set[str] = attrs.field(factory=set)


Result: TypeAlias = (
    api.Pushed
    | Granted
    | api.Settled
    | api.Touched
    | api.Outcomes
    | api.Done
    | api.Moved
    | api.SessionOpened
    | api.Failed
    | LookFar
)
