"""The oracle's nouns: a message, and a queue as a plain dictionary of messages with the turns of its lanes.

See `model.py`, which says what happens to them and when.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import attrs

from walrq import api, limits

DEFAULTS: Final[Mapping[str, Any]] = {
    "visibility_ms": limits.VISIBILITY_MS_DEFAULT,
    "max_deliveries": limits.MAX_DELIVERIES_DEFAULT,
    "dlq": None,
    "backoff_ms": limits.BACKOFF_MS_DEFAULT,
    "backoff_max_ms": limits.BACKOFF_MS_MAX_DEFAULT,
    "delay_ms": 0,
    "retention_ms": None,
    "max_length": None,
    "max_bytes": None,
    "overflow": "reject",
    "dedup_window_ms": limits.DEDUP_WINDOW_MS_DEFAULT,
    "group_limit": limits.GROUP_LIMIT_DEFAULT,
    "max_in_flight": None,
    "paused": False,
}

READY: Final = "ready"
DELAYED: Final = "delayed"
BACKOFF: Final = "back-off"
LEASED: Final = "leased"
PARKED: Final = "parked"

Lane: TypeAlias = tuple[str, str | int]
"""("group", key), or ("ungrouped", priority)."""


@attrs.define
class Message:
    """One message, wherever it stands.

    `body` is the address of its payload (log index, ordinal, position in the columns) and never changes.
    `order` is its place in the line. `history` are its attempts in this queue, `story` those it died of.
    """

    id: int
    sequence: int
    order: int
    body: tuple[int, int, int]
    bytes: int
    priority: int
    group: str | None
    pushed_ms: int
    max_attempts: int | None
    expire_ms: int | None
    state: str = READY
    due_ms: int = 0
    return_ms: int = 0
    delivery: int = 0
    attempts: int = 0
    lease: int = 0
    # The number of a numbered lease, 0 = it has none.
    task: int = 0
    offset: int = 0
    deadline_ms: int = 0
    worker: str | None = None
    history: tuple[api.Attempt, ...] = ()
    story: tuple[api.Attempt, ...] = ()
    reason: str | None = None
    origin: str | None = None
    died_ms: int = 0
    # What its producer said of attempts, while it is dead.
    kept_attempts: int | None = None

    @property
    def lane(self) -> Lane:
        """The line this message stands in when ready."""
        return ("ungrouped", self.priority) if self.group is None else ("group", self.group)


@attrs.define
class Queue:
    """One incarnation of a queue.

    `rings[priority]` lists the lanes that may be served, in the order of their turns.
    """

    name: str
    uid: int
    settings: dict[str, Any]
    messages: dict[int, Message] = attrs.field(factory=dict)
    last_sequence: int = 0
    last_lease: int = 0
    lease_counts: dict[int, int] = attrs.field(factory=dict)
    dedup: dict[str, tuple[int, int]] = attrs.field(factory=dict)
    rings: dict[int, list[Lane]] = attrs.field(factory=dict)
    dlq_seen: bool = False

    def next_sequence(self) -> int:
        """The queue's one counter: sequences and fresh orders."""
        self.last_sequence += 1
        return self.last_sequence

    def those(self, *states: str) -> list[Message]:
        """Messages in these states by order."""
        return sorted((m for m in self.messages.values() if m.state in states), key=lambda m: m.order)

    def line(self, lane: Lane) -> list[Message]:
        """The ready messages of a lane, head first."""
        return [m for m in self.those(READY) if m.lane == lane]

    def turn_priority(self, lane: Lane) -> int | None:
        """The head's priority when the lane may be served now, else None."""
        line = self.line(lane)
        if not line:
            return None
        if lane[0] == "group":
            siblings = [m for m in self.messages.values() if m.lane == lane]
            if any(m.state == BACKOFF for m in siblings):
                return None
            if sum(m.state == LEASED for m in siblings) >= self.settings["group_limit"]:
                return None
        return line[0].priority

    def place(self, lane: Lane) -> None:
        """Let the lane stand where it belongs: where it is while nothing changed, else at the end."""
        wanted = self.turn_priority(lane)
        for priority, ring in self.rings.items():
            if lane in ring:
                if priority == wanted:
                    return
                ring.remove(lane)
        if wanted is not None:
            self.rings.setdefault(wanted, []).append(lane)

    def place_all(self) -> None:
        """After a setting changed. Chosen: lanes that become eligible together come by their heads' order."""
        for message in self.those(READY):
            self.place(message.lane)
        for lane in [lane for ring in self.rings.values() for lane in ring]:
            self.place(lane)

    def next_turn(self) -> Message | None:
        """The message whose turn it is, at the front of its lane; nothing changes."""
        priorities = [priority for priority, ring in self.rings.items() if ring]
        return self.line(self.rings[max(priorities)][0])[0] if priorities else None

    def end_turn(self, lane: Lane) -> None:
        """The lane had its turn: it goes to the end of the ring it belongs to, or leaves."""
        for ring in self.rings.values():
            if lane in ring:
                ring.remove(lane)
        self.place(lane)

    def lengths(self) -> tuple[int, int]:
        """Messages and bytes that count against the queue's limits."""
        return len(self.messages), sum(m.bytes for m in self.messages.values())

    def forget_lease(self, lease: int) -> None:
        """Drop the lease once nothing of it is outstanding."""
        if not any(m.state == LEASED and m.lease == lease for m in self.messages.values()):
            self.lease_counts.pop(lease, None)


@attrs.frozen
class Lent:
    """One message of a lease's answer; with `lease` 0 it moved on instead."""

    queue: str
    uid: int
    lease: int
    offset: int
    body: tuple[int, int, int]
    id: int
    delivery: int
    attempts: int
    fence: tuple[int, int]
    priority: int
    pushed_ms: int
    group: str | None
    task: int = 0


@attrs.frozen
class Granted:
    """A lease's answer; `ended` names (uid, lease number) of what a retried one no longer holds whole."""

    messages: tuple[Lent, ...]
    parked_ms: int
    visibility_ms: int
    ended: tuple[tuple[int, int], ...] = ()


def continues(before: Message, message: Message) -> bool:
    """True when two messages just taken one after the other belong to one run."""
    return (
        message.body == (*before.body[:2], before.body[2] + 1)
        and message.id == before.id + 1
        and message.sequence == before.sequence + 1
        and (message.delivery, message.attempts, message.group) == (before.delivery, before.attempts, before.group)
    )


def matches(message: Message, where: api.Filter | None) -> bool:
    """True when a filter of dead messages lets this one through."""
    if where is None:
        return True
    last = message.story[-1] if message.story else None
    given: Iterable[bool] = (
        where.reason is None or where.reason == message.reason,
        where.error_type is None or (last is not None and where.error_type == last.error_type),
        where.error_contains is None
        or (last is not None and last.error_text is not None and where.error_contains in last.error_text),
        where.ids is None or message.id in where.ids,
    )
    return all(given)
