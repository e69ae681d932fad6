"""Which leases this worker holds, until when, and what is due next.

Pure: the time is handed in, and whoever calls holds the keeper's lock.

    buffered --a slot is free--> running --the handler ended--> settling --answered--> (let go)
        \\________________________\\______ lease lost ______________________________/

A lease is extended from the moment it was received until its ack is answered: waiting for a slot, running, and waiting
for the server after an outage all take time.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs

from walrq.client.messages import Message

# A lease is extended when this share of it is left: two more tries fit in before it ends.
EXTEND_AT_SHARE: Final = 2 / 3
# What is due soon after goes along: one request instead of several.
ALONG_SHARE: Final = 1 / 12
# After a failed try: again this share of the lease later.
AGAIN_SHARE: Final = 1 / 12
# Nothing is due: look again once an hour, for a wait has to have some end.
IDLE_S: Final = 3600.0


class Stage(enum.Enum):
    """Where a message stands in this worker."""

    BUFFERED = "buffered"
    RUNNING = "running"
    SETTLING = "settling"


@attrs.define(eq=False)
class Held:
    """One message whose lease this worker holds.

    Attributes:
        message: as it was polled; its `deadline` moves with every extension.
        lease_s: what every extension asks for.
        headers: of the message, decoded once.
        task: whose handler it waits for; None for a handler of plain messages.
        retries: attempts after the first, when the message or its task says so; None = the queue's setting.
        stage: see the module.
        timeout_at: moment of the clock at which its handler has had its time; inf = no limit.
        lost: why the lease is over, None while it is not.
        certain: whether the server said that it is over; else the time ran out while no server could be asked.
        timed_out: the handler has had its time.
        stopping: the worker wants to end now.
        interrupt: ends the handler's work, called in the event loop; None while there is nothing to end.
    """

    message: Message
    lease_s: float
    headers: Mapping[str, Any] = attrs.field(init=False)
    task: str | None = None
    retries: int | None = None
    stage: Stage = Stage.BUFFERED
    timeout_at: float = math.inf
    lost: str | None = None
    certain: bool = False
    timed_out: bool = False
    stopping: bool = False
    interrupt: Callable[[], None] | None = None
    # When to ask for the next extension. Invariant: before the lease ends, unless a try has failed.
    _extend_at: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.headers = self.message.headers

    def plan(self) -> None:
        """A new lease began: the next extension is due in a third of its time."""
        self._extend_at = self.message.deadline - self.lease_s * EXTEND_AT_SHARE

    def plan_again(self, now: float) -> None:
        """The try of `now` failed."""
        self._extend_at = now + self.lease_s * AGAIN_SHARE

    @property
    def due(self) -> float:
        """When something has to happen next."""
        if self.timed_out or self.stage is not Stage.RUNNING:
            return self._extend_at
        return min(self._extend_at, self.timeout_at)

    def extends_by(self, moment: float) -> bool:
        """Whether its extension is due at `moment`."""
        return self._extend_at <= moment + self.lease_s * ALONG_SHARE


class Ledger:
    """All leases of one worker."""

    def __init__(self) -> None:
        # A dict for its order: what was leased first is looked at first.
        self._held: dict[Held, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, held: object) -> bool:
        return held in self._held

    def take(self, held: Held) -> None:
        """A lease was received."""
        held.plan()
        self._held[held] = None

    def let_go(self, held: Held) -> None:
        """It is settled, or lost."""
        self._held.pop(held, None)

    def due(self) -> float:
        """The earliest moment at which something has to happen; inf when there is nothing."""
        return min((held.due for held in self._held), default=math.inf)

    def overdue(self, now: float) -> list[Held]:
        """Handlers that have had their time; each is named once."""
        found = [
            held for held in self._held if held.stage is Stage.RUNNING and not held.timed_out and held.timeout_at <= now
        ]
        for held in found:
            held.timed_out = True
        return found

    def to_extend(self, now: float) -> list[Held]:
        """Leases to extend now, and those that are due so soon that they go along; none when none is due now."""
        if not any(held._extend_at <= now for held in self._held):
            return []
        return [held for held in self._held if held.extends_by(now)]

    def extended(self, asked: Iterable[Held]) -> None:
        """The server has extended these."""
        for held in asked:
            if held in self._held:
                held.plan()

    def refused(self, held: Held, why: str) -> bool:
        """The server says that this lease is over; True when that is news.

        While an ack is on its way the refusal says only that it arrived: the answer to the ack tells which.
        """
        if held not in self._held or held.stage is Stage.SETTLING:
            held._extend_at = math.inf
            return False
        held.lost, held.certain = why, True
        self.let_go(held)
        return True

    def unanswered(self, asked: Iterable[Held], now: float) -> list[Held]:
        """No server could be asked about these: the ones whose time is over by now are lost, as far as one can know."""
        found = []
        for held in asked:
            if held not in self._held:
                continue
            held.plan_again(now)
            if held.message.deadline <= now and held.lost is None:
                held.lost = "its time ran out while no server could be reached"
                if held.stage is not Stage.SETTLING:
                    self.let_go(held)
                found.append(held)
        return found
