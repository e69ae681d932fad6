"""Dead messages back in small units, so many a second; and what they died of, without moving any.

Each unit is one entry of the log: whoever stops in between has moved whole units, and the rest stays dead.

Never: reads a clock, sleeps; both are handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar

import attrs

from walrq import api
from walrq.limits import PEEK_MESSAGES_MAX, REDRIVE_PER_ENTRY

R = TypeVar("R")

# What is moved between two looks at the clock, as a share of a second.
UNIT_S: Final = 0.1
# Messages that are looked at to say what would be moved; beyond that it says "or more". Each page of the list
# costs the server a walk over those before it.
SURVEY_MAX: Final = 10_000


class Asks(Protocol):
    """A client that sends a request and waits for its answer."""

    def begin(self, request: api.Request) -> Any:
        """Send."""

    def end(self, call: Any, kind: type[R]) -> R:
        """Wait for the answer."""


@attrs.define
class Redrive:
    """One redrive on its way.

    Attributes:
        rate: messages a second; None = as fast as it goes.
        limit: messages in all; None = all that match.
        moved: how many are back for certain.
        under_way: the size of the unit that was sent and is not answered yet.
        more: matching ones are left, as the last answer says.
    """

    client: Asks
    queue: str
    target: str | None = None
    where: api.Filter | None = None
    limit: int | None = None
    rate: float | None = None
    moved: int = 0
    under_way: int = 0
    more: bool = True

    def run(self, now: Callable[[], float], pause: Callable[[float], None]) -> Iterator[int]:
        """Move unit by unit; yields `moved` after each.

        Args:
            now: monotonic seconds.
            pause: wait so many seconds.

        Raises:
            QueueNotFound: there is no such queue, or no such target.
            WalrqError: a unit failed; what was moved before stays moved.
        """
        started = now()
        while self.more:
            unit = self._unit()
            if not unit:
                return
            if self.rate is not None and self.moved:
                wait_s = started + self.moved / self.rate - now()
                if wait_s > 0:
                    pause(wait_s)
            self.under_way = unit
            request = api.Redrive(self.queue, unit, self.target, self.where)
            answer = self.client.end(self.client.begin(request), api.Moved)
            self.under_way = 0
            self.moved += answer.count
            # An answer of none would be asked for again and again.
            self.more = answer.more and answer.count > 0
            yield self.moved

    def _unit(self) -> int:
        unit = REDRIVE_PER_ENTRY if self.rate is None else max(1, min(REDRIVE_PER_ENTRY, round(self.rate * UNIT_S)))
        return unit if self.limit is None else min(unit, self.limit - self.moved)


@attrs.define
class Cause:
    """Messages that died of the same.

    Attributes:
        reason: failed, expired or rejected.
        error_type: of the last attempt; None when it gave none.
        count: how many.
        first_at, last_at: when the first and the last of them died (UTC).
        example: the id of the first, as a number.
    """

    reason: str
    error_type: str | None
    count: int
    first_at: datetime
    last_at: datetime
    example: int


def dead(
    client: Asks, queue: str, where: api.Filter | None, limit: int, *, bodies: bool
) -> Iterator[tuple[api.Peeked, bool]]:
    """(dead message, whether more follow), in order of death, at most `limit`.

    Raises:
        QueueNotFound: there is no such queue.
    """
    left, after = limit, 0
    while left > 0:
        request = api.ListDead(queue, min(left, PEEK_MESSAGES_MAX), after, where, bodies)
        page = client.end(client.begin(request), api.Page)
        for position, message in enumerate(page.messages):
            yield message, bool(page.next) or position + 1 < len(page.messages)
        left -= len(page.messages)
        after = page.next
        if not after:
            return


def survey(client: Asks, queue: str, where: api.Filter | None, limit: int | None) -> tuple[list[Cause], bool]:
    """(causes, the most frequent first; whether there are more than were counted).

    Raises:
        QueueNotFound: there is no such queue.
    """
    causes: dict[tuple[str, str | None], Cause] = {}
    further = False
    most = SURVEY_MAX if limit is None else min(limit, SURVEY_MAX)
    for message, more in dead(client, queue, where, most, bodies=False):
        further = more
        reason = message.reason or "?"
        error_type = message.history[-1].error_type if message.history else None
        died_at = datetime.fromtimestamp(message.died_ms / 1000, UTC)
        cause = causes.get((reason, error_type))
        if cause is None:
            causes[reason, error_type] = Cause(reason, error_type, 1, died_at, died_at, message.id)
        else:
            cause.count += 1
            cause.first_at, cause.last_at = min(cause.first_at, died_at), max(cause.last_at, died_at)
    return sorted(causes.values(), key=lambda cause: -cause.count), further
