"""Parked polls: who waits for what, who is served next, and when a wait is over.

A *lane* is what is known about one queue beyond the machine: messages on their way in (`coming`, pushes in
proposals not applied yet), on their way out (`taking`, leases not applied yet), and the parked polls in order
of arrival. `available + coming - taking` says whether one more lease would find something, so that an idle
queue never gets a futile entry, one message wakes one waiter, and the lease is proposed right behind the
push, in the same entry. Accounting may be wrong in both directions (duplicates, groups, limits): a lease that
found nothing parks again, and its lane is *dry* until the machine says that something changed.

Deadlines are one heap and one task, however many polls wait. A poll that was served before its time leaves
its heap entry behind; entries of the dead are dropped when they come up, or all at once when they outnumber
the living. Never busy: without parked polls the task sleeps until one parks. Source: lazy deletion as in
Trio's own deadline heap.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from walrq import api
from walrq.daemon.bodies import Cold, Filled, LookUp, fill_poll, from_cache
from walrq.daemon.clock import Clock
from walrq.errors import Code, Overloaded, WalrqError
from walrq.limits import IN_FLIGHT_PER_CONNECTION_MAX, PARKED_POLLS_MAX
from walrq.queues import commands
from walrq.queues.effects import Effects, Granted

if TYPE_CHECKING:
    from walrq.daemon.broker import Broker

_FORGOTTEN: Final = api.Failed(int(Code.OUTCOME_UNKNOWN), "the request was forgotten on its caller's behalf")
_SUPERSEDED: Final = api.Failed(int(Code.OUTCOME_UNKNOWN), "the poll goes on elsewhere: it was sent again")


class Port(Protocol):
    """Who asks, as far as the broker cares: one connection of any protocol.

    Attributes:
        session: the session its requests belong to, or None.
        open: replies can still be delivered.
        takes_leases: False once the client said it will send no more: it could not settle what it got.
        congested: unsent replies are at their bound; it gets no lease until they are gone.
        waiting: its parked polls.
    """

    open: bool
    takes_leases: bool
    waiting: set[PollCall]

    @property
    def session(self) -> int | None: ...

    @property
    def congested(self) -> bool: ...

    def reply(self, id: int, reply: api.Reply, size: int) -> None:
        """Answer request `id`, whose frame had `size` bytes. Ignored when no longer open."""
        ...

    def reply_lease(self, id: int, reply: api.Polled, size: int, targets: Sequence[commands.Target]) -> None:
        """Answer a poll without session: `targets` are given back (`Broker.undo`) unless the kernel takes it
        whole.
        """
        ...


class Call:
    """One request on its way: whom to answer, and what to do with the result."""

    __slots__ = ("count", "finish", "id", "lane", "lowest", "merge", "port", "sequence", "session", "size")

    def __init__(self, port: Port, id: int, session: int | None, sequence: int, lowest: int, size: int) -> None:
        self.port = port
        self.id = id
        self.session = session
        self.sequence = sequence
        self.lowest = lowest
        self.size = size
        self.finish: Callable[[Any, Any], None]
        self.lane: Lane | None = None
        self.count = 0
        # Settle and touch: codes of the items that never reached the log, by position.
        self.merge: dict[int, int] | None = None


class PollCall(Call):
    """A poll, which may park any number of times before it is answered."""

    __slots__ = ("arrived_lease_ms", "arrived_ms", "deadline_ms", "lanes", "parked", "request", "watched")

    request: api.Poll
    arrived_ms: int
    arrived_lease_ms: int
    deadline_ms: int
    lanes: tuple[Lane, ...]
    parked: bool
    watched: bool


class Lane:
    """One queue as the broker sees it. Exists while something is on its way or parked.

    Invariant: coming >= 0, taking >= 0, len(waiters) <= polls.
    """

    __slots__ = ("coming", "dry", "polls", "queue", "taking", "waiters")

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.coming = 0
        self.taking = 0
        # Unanswered polls that name this queue, parked or proposed.
        self.polls = 0
        # A lease found nothing here although the estimate said otherwise; until the machine reports a change.
        self.dry = False
        self.waiters: OrderedDict[PollCall, None] = OrderedDict()


class Pollers:
    """All polls that are not answered yet.

    Attributes:
        deadlines: of the parked ones.
        parked: how many are parked.
    """

    def __init__(self, broker: Broker) -> None:
        self.deadlines = Deadlines()
        self.parked = 0
        self._broker = broker
        self._lanes: dict[str, Lane] = {}
        # Polls of sessions, parked or proposed, so that a retry finds its first try.
        self._session_polls: dict[tuple[int, int], PollCall] = {}
        # Lanes whose waiters may be served once the results of this turn are all in.
        self._recheck: set[Lane] = set()
        self._look_up: LookUp = from_cache(broker.replica)
        # Bound once: made for every poll otherwise.
        self._finish = self._granted

    # --- pushes ---------------------------------------------------------------------------------------------
    def coming(self, call: Call, queue: str, count: int) -> None:
        """`call` proposed a push of `count` messages that can be leased as soon as it is applied."""
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._lanes[queue] = Lane(queue)
        call.lane = lane
        call.count = count
        lane.coming += count
        if lane.waiters:
            self._serve(lane)

    def came(self, lane: Lane, count: int) -> None:
        """That push was applied or refused."""
        lane.coming -= count
        if not lane.coming and not lane.polls:
            del self._lanes[lane.queue]

    # --- polls ----------------------------------------------------------------------------------------------
    def submit(self, call: PollCall, request: api.Poll) -> None:
        """Lease for a poll, park it, or answer it empty."""
        broker = self._broker
        call.request = request
        call.parked = call.watched = False
        call.arrived_ms = now_ms = broker.now_ms()
        call.arrived_lease_ms = broker.lease_ms()
        call.deadline_ms = now_ms + request.wait_ms
        lanes = self._lanes
        queues = request.queues
        if len(queues) == 1:
            lane = lanes.get(queues[0])
            if lane is None:
                lane = lanes[queues[0]] = Lane(queues[0])
            lane.polls += 1
            call.lanes = (lane,)
        else:
            found = []
            for queue in dict.fromkeys(queues):
                lane = lanes.get(queue)
                if lane is None:
                    lane = lanes[queue] = Lane(queue)
                lane.polls += 1
                found.append(lane)
            call.lanes = tuple(found)
        if call.session is not None:
            key = (call.session, call.sequence)
            first = self._session_polls.get(key)
            self._session_polls[key] = call
            if first is not None and first.parked:
                self._unpark(first)
                self._end_poll(first, _SUPERSEDED)
            if first is not None or self._was_seen(call.session, call.sequence):
                # A retry: only the log can say what the first try got.
                self._lease(call, None, 0)
                return
        for lane in call.lanes:
            expected = self._expected(lane)
            if expected > 0:
                most = request.max_messages
                self._lease(call, lane, most if most < expected else expected)
                return
        self._park(call)

    def _was_seen(self, session: int, sequence: int) -> bool:
        """Whether the session's table has, or had, an answer for this request; or the session is not
        there.
        """
        known = self._broker.machine.sessions.table.get(session)
        return known is None or sequence in known.results or sequence < known.lowest

    def _expected(self, lane: Lane) -> int:
        """Messages that one more lease would find, as far as can be told."""
        expected = lane.coming - lane.taking
        if not lane.dry:
            expected += self._broker.machine.available(lane.queue)
        return expected

    def _lease(self, call: PollCall, lane: Lane | None, take: int) -> None:
        request = call.request
        self._broker.log(
            call,
            commands.Lease(
                request.queues,
                request.max_messages,
                request.visibility_ms,
                call.arrived_lease_ms,
                request.worker,
                request.numbered,
                request.into,
            ),
            self._finish,
        )
        call.lane = lane
        call.count = take
        if lane is not None:
            lane.taking += take

    def _park(self, call: PollCall) -> None:
        port = call.port
        if self._broker.draining or (call.deadline_ms <= self._broker.now_ms() and not self._waits_for_cold(call)):
            self._end_poll(call, self._empty(call))
            return
        if not port.open or not port.takes_leases:
            self._end_poll(call, self._empty(call))
            return
        if self.parked >= PARKED_POLLS_MAX:
            self._end_poll(call, to_failed(_overloaded("PARKED_POLLS_MAX", PARKED_POLLS_MAX)))
            return
        if len(port.waiting) >= IN_FLIGHT_PER_CONNECTION_MAX:
            limit = _overloaded("IN_FLIGHT_PER_CONNECTION_MAX", IN_FLIGHT_PER_CONNECTION_MAX)
            self._end_poll(call, to_failed(limit))
            return
        call.parked = True
        self.parked += 1
        self._broker.counters.parked += 1
        port.waiting.add(call)
        for lane in call.lanes:
            lane.waiters[call] = None
        self.deadlines.living += 1
        self.deadlines.add(call)

    def _waits_for_cold(self, call: PollCall) -> bool:
        """Whether a poll whose time is over gets some more, because there are messages and they are not hot yet.

        "Nothing is there" would be wrong, and a caller that does not wait would believe it.
        """
        queues = self._broker.machine.queues
        for lane in call.lanes:
            queue = queues.get(lane.queue)
            if queue is not None and queue.cold and not queue.ready and not queue.settings.paused:
                # Once: a disk that answers later than that is answered for.
                if call.deadline_ms == call.arrived_ms + call.request.wait_ms:
                    call.deadline_ms = max(self._broker.now_ms(), call.deadline_ms) + _COLD_MS
                    return True
        return False

    def _unpark(self, call: PollCall) -> None:
        assert call.parked
        call.parked = False
        self.parked -= 1
        self.deadlines.living -= 1
        call.port.waiting.discard(call)
        for lane in call.lanes:
            del lane.waiters[call]

    def _serve(self, lane: Lane) -> None:
        """Propose leases for the polls parked longest, as long as something is expected for them."""
        expected = self._expected(lane)
        while expected > 0:
            call = next((call for call in lane.waiters if not call.port.congested), None)
            if call is None:
                return
            self._unpark(call)
            take = min(call.request.max_messages, expected)
            expected -= take
            try:
                self._lease(call, lane, take)
            except WalrqError as error:
                self._end_poll(call, to_failed(error))

    def _granted(self, call: PollCall, result: Granted | api.Failed) -> None:
        lane = call.lane
        if lane is not None:
            lane.taking -= call.count
            call.lane = None
        if type(result) is not Granted:
            self._end_poll(call, result)  # type: ignore[arg-type]
            return
        if not result.runs and not result.ended:
            self._broker.counters.futile_leases += 1
            for each in call.lanes:
                each.dry = True
            self._park(call)
            # A push that was submitted meanwhile found nobody waiting.
            self._recheck.update(call.lanes)
            return
        port = call.port
        if call.session is None and not (port.open and port.takes_leases):
            self._broker.undo([commands.Target(run.uid, run.lease) for run in result.runs if run.lease])
            self._end_poll(call, self._empty(call))
            return
        if lane is not None and lane.waiters:
            self._recheck.add(lane)
        try:
            filled = fill_poll(result, self._broker.machine.secret, self._look_up, self._broker.replica.holds)
        except Cold:
            self._broker.counters.cold_replies += 1
            secret = self._broker.machine.secret
            holds = self._broker.replica.holds
            self._broker.cold.add(
                lambda look_up: fill_poll(result, secret, look_up, holds),
                lambda filled: self._deliver(call, filled),
            )
            return
        self._deliver(call, filled)

    def _deliver(self, call: PollCall, filled: Filled) -> None:
        if filled.held and call.port.congested:
            # It does not read what it was given before. Unsent replies stay bounded: everything goes back.
            self._broker.undo([*filled.held, *filled.back])
            self._end_poll(call, self._empty(call))
            return
        if filled.back:
            # All runs of a poll are of one queue. Released, not undone: the rest of the lease stays.
            self._broker.give_back(
                commands.Settle(filled.polled.runs[0].queue, api.SettleKind.RELEASE, tuple(filled.back))
            )
        if call.session is not None or not filled.held:
            self._forget_poll(call)
            self._broker.answer(call, filled.polled)
        elif not call.port.open:
            self._broker.undo(filled.held)
            self._end_poll(call, filled.polled)
        else:
            self._forget_poll(call)
            self._broker.answer_lease(call, filled.polled, filled.held)

    def _empty(self, call: PollCall) -> api.Polled:
        parked_ms = max(0, self._broker.now_ms() - call.arrived_ms)
        return api.Polled(parked_ms, call.request.visibility_ms or 0, ())

    def _forget_poll(self, call: PollCall) -> None:
        if call.session is not None:
            key = (call.session, call.sequence)
            polls = self._session_polls
            if polls.get(key) is call:
                del polls[key]
        for lane in call.lanes:
            lane.polls -= 1
            if not lane.polls and not lane.coming:
                del self._lanes[lane.queue]

    def _end_poll(self, call: PollCall, reply: api.Reply) -> None:
        self._forget_poll(call)
        self._broker.answer(call, reply)

    def expire(self, calls: Iterable[PollCall]) -> None:
        """Answer these parked polls, empty."""
        for call in calls:
            self._unpark(call)
            self._end_poll(call, self._empty(call))

    def forget(self, session: int, sequence: int) -> None:
        """The caller of this request went away: drop it if it is parked."""
        poll = self._session_polls.get((session, sequence))
        if poll is not None and poll.parked:
            self._unpark(poll)
            self._end_poll(poll, _FORGOTTEN)

    def drop_waiting(self, port: Port) -> None:
        """Answer the parked polls of `port`, empty: nothing is leased for them any more."""
        self.expire(list(port.waiting))

    def relieved(self, port: Port) -> None:
        """A congested connection has room again: its parked polls take part again."""
        for lane in {lane for call in port.waiting for lane in call.lanes}:
            if lane.waiters:
                self._serve(lane)

    def drop_all(self) -> None:
        """Answer every parked poll, empty: the node stops."""
        parked = dict.fromkeys(call for lane in self._lanes.values() for call in lane.waiters)
        self.expire(parked)

    def end_all(self, reply: api.Failed) -> None:
        """Answer every parked poll so: another node serves them now."""
        for call in dict.fromkeys(call for lane in self._lanes.values() for call in lane.waiters):
            self._unpark(call)
            self._end_poll(call, reply)

    # --- effects --------------------------------------------------------------------------------------------
    def affected(self, effects: Effects) -> None:
        """After the results of an entry: end the polls of deleted queues, serve where something changed."""
        lanes = self._lanes
        recheck = self._recheck
        for queue in effects.deleted:
            lane = lanes.get(queue)
            if lane is not None:
                self._end_deleted(lane)
        for queue in effects.woken:
            lane = lanes.get(queue)
            if lane is not None:
                lane.dry = False
                if lane.waiters:
                    recheck.add(lane)
        if recheck:
            self._recheck = set()
            for lane in recheck:
                if lane.waiters:
                    self._serve(lane)

    def _end_deleted(self, lane: Lane) -> None:
        failed = api.Failed(
            int(Code.QUEUE_DELETED),
            f"queue {lane.queue!r} was deleted while this poll waited",
            {"queue": lane.queue},
        )
        for call in list(lane.waiters):
            self._unpark(call)
            self._end_poll(call, failed)


def to_failed(error: WalrqError) -> api.Failed:
    """An error as the reply that carries it."""
    return api.Failed(int(error.code), error.text, dict(error.details))


def _overloaded(name: str, limit: int) -> Overloaded:
    return Overloaded(f"too many parked polls: {name} is {limit}", limit=name, retry_after_ms=1_000)


# How long a poll that does not wait any more waits for cold messages to come into the hot window.
_COLD_MS: Final = 2_000
# Rebuilding is linear; below this size it is never worth it.
_PRUNE_MIN: Final = 1_024


class Deadlines:
    """When parked polls have waited long enough, earliest first."""

    __slots__ = ("_count", "_heap", "_sleeping_until", "_wake", "living")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, PollCall]] = []
        self._count = 0
        self._wake = trio.Event()
        self._sleeping_until: int | None = None
        # Parked polls as `Pollers` counts them; the heap holds these and the dead.
        self.living = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, call: PollCall) -> None:
        """Watch over `call` until its `deadline_ms`."""
        if not call.watched:  # a poll that parks again keeps its place
            call.watched = True
            self._count += 1
            heapq.heappush(self._heap, (call.deadline_ms, self._count, call))
            if len(self._heap) > _PRUNE_MIN and len(self._heap) > 4 * self.living:
                self._prune()
        if self._sleeping_until is None or call.deadline_ms < self._sleeping_until:
            self._wake.set()

    def due(self, monotonic_ms: int) -> list[PollCall]:
        """Take out what is due and still parked, in order."""
        heap = self._heap
        calls = []
        while heap and heap[0][0] <= monotonic_ms:
            call = heapq.heappop(heap)[2]
            call.watched = False
            if call.parked:
                calls.append(call)
        return calls

    def _prune(self) -> None:
        kept = []
        for entry in self._heap:
            if entry[2].parked:
                kept.append(entry)
            else:
                entry[2].watched = False
        heapq.heapify(kept)
        self._heap = kept

    def next_ms(self) -> int | None:
        """The earliest deadline, or None when nobody waits."""
        heap = self._heap
        while heap and not heap[0][2].parked:
            heapq.heappop(heap)[2].watched = False
        return heap[0][0] if heap else None

    async def wait_due(self, clock: Clock) -> None:
        """Return when the earliest deadline has come, or an earlier one may have been added."""
        self._sleeping_until = self.next_ms()
        if self._wake.is_set():
            self._wake = trio.Event()
        deadline = float("inf") if self._sleeping_until is None else clock.deadline(self._sleeping_until)
        with trio.move_on_at(deadline):
            await self._wake.wait()


async def run(broker: Broker, clock: Clock) -> None:
    """Answer parked polls, empty, when their time is over."""
    deadlines = broker.polls.deadlines
    while True:
        await deadlines.wait_due(clock)
        now_ms = clock.monotonic_ms()
        calls = deadlines.due(now_ms)
        if calls:
            broker.begin_turn()
            broker.polls.expire(calls)
            broker.flush()
