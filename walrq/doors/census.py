"""Counting all queues of a node: for /metrics, the ancestor's statistics and the dashboard.

The state machine keeps numbers per queue. Adding them up is a walk over all queues, so it is done when somebody asks,
a stretch at a time with the event loop free in between, at most once a moment, and never more than a hundredth of the
time: with very many queues the totals are a few seconds old.

Numbers are those of this node's own copy; whether they are *consistent* is the caller's to find out (`Gate.confirm`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import trio

from walrq.access.principals import Principal
from walrq.daemon.broker import Broker
from walrq.http.dtq import QueueCounts
from walrq.http.metrics import OTHERS, QueueRow
from walrq.limits import METRICS_QUEUES_MAX
from walrq.queues import reads
from walrq.queues.queue import Queue

# Queues between two looks of the event loop: a millisecond or two.
_STRETCH: Final = 500
_AGE_S_MIN: Final = 0.25
_SHARE: Final = 100
# The ancestor's statistics list every queue; beyond this many they list the first ones by name.
DTQ_QUEUES_MAX: Final = 10_000


@attrs.frozen
class Totals:
    """Sums over all queues of one walk.

    Attributes:
        at_s: monotonic seconds of it.
        queues: how many there are; `dead_queues` of them are dead-letter queues.
        ready, delayed, leased: messages, without those in dead-letter queues.
        dead: dead messages.
        pushed, delivered, acked: since the start, deleted queues included; dead letters are not pushed again.
        letters: names of the dead-letter queues.
        others: (queues, ready, leased, delayed, dead) of those without series of their own.
    """

    at_s: float
    queues: int
    dead_queues: int
    ready: int
    delayed: int
    leased: int
    dead: int
    pushed: int
    delivered: int
    acked: int
    letters: frozenset[str]
    others: tuple[int, int, int, int, int]


@attrs.frozen(kw_only=True)
class Wanted:
    """Which queues to show.

    Attributes:
        search: part of the name, in any case; "" = all.
        sort: a row of `SORTS`, highest first; "name" ascending.
        offset, limit: the page.
        viewer: who is shown only the queues that he may look at; None = all.
    """

    search: str = ""
    sort: str = "name"
    offset: int = 0
    limit: int = 50
    viewer: Principal | None = None


Seen: TypeAlias = tuple[Queue, int, int, int, int]
"""A queue and what a walk found in it: ready, leased, delayed, dead."""

SORTS: Final[Mapping[str, Callable[[Seen], int]]] = {
    "ready": lambda seen: -seen[1],
    "leased": lambda seen: -seen[2],
    "delayed": lambda seen: -seen[3],
    "dead": lambda seen: -seen[4],
    "pushed": lambda seen: -seen[0].pushed,
    "acked": lambda seen: -seen[0].acked,
}


class Census:
    """See the module. One per door."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._totals: Totals | None = None
        self._next_s = 0.0
        # What the last walk saw, in order of names.
        self._seen: list[Seen] = []
        self._order: list[str] = []
        self._order_of: tuple[int, int] = (0, 0)
        self._walking = trio.Lock()
        # Queues with series of their own, by name and incarnation, in order of their coming.
        self._labelled: dict[tuple[str, int], None] = {}

    async def totals(self) -> Totals:
        """The sums, of now or a moment ago."""
        async with self._walking:
            now_s = self._broker.clock.monotonic_s()
            if self._totals is None or now_s >= self._next_s:
                self._totals, busy_s = await self._walk(now_s)
                self._next_s = now_s + max(_AGE_S_MIN, busy_s * _SHARE)
            return self._totals

    async def _walk(self, now_s: float) -> tuple[Totals, float]:
        machine = self._broker.machine
        clock = self._broker.clock
        busy_s = 0.0
        began_s = now_s
        labelled = self._label()
        letters: set[str] = set()
        sums = [0] * 4
        pushed, delivered, acked = machine.retired
        rest = [0] * 5
        # Dead-letter queues are known once all queues are seen, so their own numbers are kept until then.
        held: dict[str, tuple[int, int, int]] = {}
        found: list[Seen] = []
        queues = machine.queues
        for position, name in enumerate(self._names(), 1):
            queue = queues.get(name)
            if queue is None:
                continue
            count = reads.counts(machine, queue)
            if count.target is not None:
                letters.add(count.target)
            if queue.origins:
                held[queue.name] = (count.ready, count.delayed, count.leased)
            found.append((queue, count.ready, count.leased, count.delayed, count.dead))
            sums[0] += count.ready
            sums[1] += count.delayed
            sums[2] += count.leased
            sums[3] += count.dead
            pushed += queue.pushed
            delivered += queue.delivered
            acked += queue.acked
            if (queue.name, queue.uid) not in labelled:
                rest[0] += 1
                rest[1] += count.ready
                rest[2] += count.leased
                rest[3] += count.delayed
                rest[4] += count.dead
            if position % _STRETCH == 0:
                busy_s += clock.monotonic_s() - began_s
                await trio.lowlevel.checkpoint()
                began_s = clock.monotonic_s()
        for name in letters:
            for place, number in enumerate(held.get(name, ())):
                sums[place] -= number
        self._seen = found
        busy_s += clock.monotonic_s() - began_s
        return (
            Totals(
                at_s=now_s,
                queues=len(machine.queues),
                dead_queues=len(letters),
                ready=sums[0],
                delayed=sums[1],
                leased=sums[2],
                dead=sums[3],
                pushed=pushed,
                delivered=delivered,
                acked=acked,
                letters=frozenset(letters),
                others=(rest[0], rest[1], rest[2], rest[3], rest[4]),
            ),
            busy_s,
        )

    def _names(self) -> list[str]:
        """All names in order; sorted anew only when queues have come or gone."""
        machine = self._broker.machine
        state = (len(machine.queues), sum(machine.incarnations))
        if state != self._order_of:
            self._order = sorted(machine.queues)
            self._order_of = state
        return self._order

    # --- series ---------------------------------------------------------------------------------------------
    def _label(self) -> Mapping[tuple[str, int], None]:
        """The queues with series of their own: the gone have left, and who waited longest has taken their place."""
        queues = self._broker.machine.queues
        labelled = self._labelled
        for name, uid in [key for key in labelled if key[0] not in queues or queues[key[0]].uid != key[1]]:
            del labelled[name, uid]
        if len(labelled) < METRICS_QUEUES_MAX:
            for name, queue in queues.items():
                if name != OTHERS:
                    labelled.setdefault((name, queue.uid))
                    if len(labelled) == METRICS_QUEUES_MAX:
                        break
        return labelled

    def rows(self) -> list[QueueRow]:
        """The queues with series of their own, as they are now."""
        machine = self._broker.machine
        wall_ms = self._broker.clock.read().wall_ms
        found = []
        for name, _ in sorted(self._label()):
            queue = machine.queues[name]
            count = reads.counts(machine, queue)
            found.append(
                QueueRow(
                    name=name,
                    ready=count.ready,
                    in_flight=count.leased,
                    delayed=count.delayed,
                    dead=count.dead,
                    oldest_s=age_s(reads.oldest_ms(queue), wall_ms),
                    pushed=queue.pushed,
                    delivered=queue.delivered,
                    acked=queue.acked,
                )
            )
        return found

    # --- lists ----------------------------------------------------------------------------------------------
    async def for_dtq(self, letters: frozenset[str]) -> list[QueueCounts]:
        """A line for each queue that is no dead-letter queue, by name."""
        machine = self._broker.machine
        found: list[QueueCounts] = []
        for position, name in enumerate(self._names(), 1):
            queue = machine.queues.get(name)
            if queue is not None and name not in letters:
                count = reads.counts(machine, queue)
                found.append(QueueCounts(name, count.ready, count.leased, count.dead))
                if len(found) == DTQ_QUEUES_MAX:
                    break
            if position % _STRETCH == 0:
                await trio.lowlevel.checkpoint()
        return found

    def page(self, wanted: Wanted) -> tuple[int, list[Queue]]:
        """How many queues match, and those of the page, as the last walk saw them."""
        seen: Sequence[Seen] = self._seen
        if wanted.viewer is not None:
            may_see = wanted.viewer.may_see
            seen = [each for each in seen if may_see(each[0].name)]
        search = wanted.search.casefold()
        if search:
            seen = [each for each in seen if search in each[0].name.casefold()]
        most = wanted.offset + wanted.limit
        key = SORTS.get(wanted.sort)
        chosen = seen[:most] if key is None else heapq.nsmallest(most, seen, key=key)
        queues = self._broker.machine.queues
        return len(seen), [each[0] for each in chosen[wanted.offset :] if queues.get(each[0].name) is each[0]]

    def totals_of(self, viewer: Principal, totals: Totals) -> Totals:
        """The sums over the queues that somebody may look at, as the last walk saw them; deleted ones are left out."""
        seen = [each for each in self._seen if viewer.may_see(each[0].name)]
        own = [each for each in seen if each[0].name not in totals.letters]
        return attrs.evolve(
            totals,
            queues=len(seen),
            dead_queues=len(seen) - len(own),
            ready=sum(each[1] for each in own),
            leased=sum(each[2] for each in own),
            delayed=sum(each[3] for each in own),
            dead=sum(each[4] for each in own),
            pushed=sum(each[0].pushed for each in own),
            delivered=sum(each[0].delivered for each in own),
            acked=sum(each[0].acked for each in own),
        )

    def row(self, queue: Queue, letters: frozenset[str], wall_ms: int) -> dict[str, Any]:
        """One queue as the dashboard shows it."""
        count = reads.counts(self._broker.machine, queue)
        return {
            "name": queue.name,
            "ready": count.ready,
            "leased": count.leased,
            "delayed": count.delayed,
            "dead": count.dead,
            "bytes": queue.bytes,
            "oldest_s": age_s(reads.oldest_ms(queue), wall_ms),
            "paused": bool(queue.settings.paused),
            "letters": queue.name in letters,
            "target": count.target,
            # Counters grow from the start of the node on; rates are made of two looks.
            "counters": [queue.pushed, queue.delivered, queue.acked],
        }


def age_s(pushed_ms: int, wall_ms: int) -> float:
    """Seconds since a push; 0 when there is none."""
    return max(0, wall_ms - pushed_ms) / 1000 if pushed_ms else 0.0
