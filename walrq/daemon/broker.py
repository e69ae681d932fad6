"""Between the doors and the log: admits requests, proposes commands, matches results with who asked.

    submit ─┬─ push, settle, ... ─────────────► replica.propose ─► ticket ─► [entry] ─► resolve ─► port.reply
            ├─ poll ─┬─ something to lease ───► the same, as a Lease
            │        └─ nothing ──────────────► parked; woken by pushes and effects, ended by its deadline
            └─ read ──────────────────────────► answered from the machine at once

A *lane* is what the broker knows about one queue beyond the machine: messages on their way in (`coming`,
pushes in proposals not applied yet), on their way out (`taking`, leases not applied yet), and the parked
polls in order of arrival. `available + coming - taking` says whether one more lease would find something, so
that an idle queue never gets a futile entry and one message wakes one waiter. Accounting may be wrong in both
directions (duplicates, groups, limits): a lease that found nothing parks again, and its lane is *dry* until
the machine says that something changed.

Never: awaits, reads files, decides what a command does. All calls are made from one thread, between two turns
of the event loop, so nothing here can interleave.
"""

from __future__ import annotations

import logging
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import attrs

from walrq import api
from walrq.daemon.bodies import Cold, ColdReplies, Filled, LookUp, fill_page, fill_poll, from_cache
from walrq.daemon.clock import Clock
from walrq.daemon.pollers import Deadlines
from walrq.errors import (
    Code,
    DiskFull,
    Draining,
    InvalidArgument,
    MessageTooLarge,
    NotReady,
    Overloaded,
    ReceiptInvalid,
    WalrqError,
)
from walrq.ids import open_receipt
from walrq.limits import (
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_PER_CONNECTION_MAX,
    PARKED_POLLS_MAX,
)
from walrq.protocol.requests import Incoming
from walrq.queues import commands, death, reads
from walrq.queues import settings as queue_settings
from walrq.queues.effects import Granted, Result, Seen
from walrq.queues.machine import not_found
from walrq.replica import Done, Replica

log = logging.getLogger("walrq.broker")


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


_UINT32: Final = struct.Struct("<I")
_PONG: Final = api.Pong()
_FORGOTTEN: Final = api.Failed(int(Code.OUTCOME_UNKNOWN), "the request was forgotten on its caller's behalf")
_SUPERSEDED: Final = api.Failed(int(Code.OUTCOME_UNKNOWN), "the poll goes on elsewhere: it was sent again")


@attrs.define
class Counters:
    """What the broker has done since the start (for `Stats` and metrics)."""

    requests: int = 0
    refused: int = 0
    parked: int = 0
    futile_leases: int = 0
    undone_leases: int = 0
    cold_replies: int = 0


class Broker:
    """See the module. One per node."""

    def __init__(
        self,
        replica: Replica,
        clock: Clock,
        *,
        wake: Callable[[], None],
        auto_create: bool = True,
        node_stats: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """`wake` tells the driver that there is something to write."""
        self.replica = replica
        self.machine = replica.machine
        self.clock = clock
        self.deadlines = Deadlines()
        self.cold = ColdReplies(replica)
        self.counters = Counters()
        self.ports: set[Port] = set()
        self.draining = False
        # False while the disk is full (the compactor looks, once per turn).
        self.pushes_allowed = True
        # Requests submitted and not answered, parked ones included; and the bytes of their frames.
        self.in_flight = 0
        self.bytes_in_flight = 0
        self.parked = 0
        self.on_flush: list[Callable[[], None]] = []
        self._wake = wake
        # Both clocks as read in this turn, when somebody needed them; -1 = not yet.
        self._now_ms = -1
        self._lease_ms = 0
        self._auto_create = auto_create
        self._node_stats = node_stats
        self._pending: dict[int, Call] = {}
        self._lanes: dict[str, Lane] = {}
        # Polls of sessions, parked or proposed, so that a retry finds its first try.
        self._session_polls: dict[tuple[int, int], PollCall] = {}
        # Lanes whose waiters may be served once the results of this turn are all in.
        self._recheck: set[Lane] = set()
        self._look_up: LookUp = from_cache(replica)
        self._on_idle: Callable[[], None] | None = None
        # Bound once: made for every request otherwise.
        self._finish_plain = self._plain
        self._finish_pushed = self._pushed
        self._finish_granted = self._granted
        self._finish_merged = self._merged
        self._propose = replica.propose

    # --- requests -----------------------------------------------------------------------------------------
    def begin_turn(self) -> None:
        """Called by whoever is about to call, once per turn of the event loop: the clocks are read anew
        then.
        """
        self._now_ms = -1

    def _read_clock(self) -> None:
        reading = self.clock.read()
        self._now_ms = reading.monotonic_ms
        self._lease_ms = self.replica.stamp_now(reading).lease_ms

    @property
    def saturated(self) -> bool:
        """Too much is in flight in all: connections are not read until some of it is answered."""
        return self.bytes_in_flight >= IN_FLIGHT_BYTES_MAX

    def submit(self, port: Port, incoming: Incoming) -> None:
        """Take one request; it is answered through `port` now or later, exactly once."""
        request = incoming.request
        sequence = incoming.sequence
        kind = type(request)
        make = PollCall if kind is api.Poll else Call
        size = incoming.size
        if sequence is None:
            call = make(port, incoming.id, None, 0, 0, size)
        else:
            call = make(port, incoming.id, port.session, sequence, incoming.lowest or sequence, size)
        self.in_flight += 1
        self.bytes_in_flight += size
        self.counters.requests += 1
        try:
            if self.draining and kind is not api.Ping:
                raise Draining("the node is stopping and takes no new work")
            _HANDLERS[kind](self, call, request)
        except WalrqError as error:
            self.counters.refused += 1
            self._answer(call, to_failed(error))
        except Exception as error:
            # A mistake of ours costs one request; if it was proposed already its result will answer it.
            log.exception("request_failed %s: %s", kind.__name__, error)
            if not hasattr(call, "finish"):
                self._answer(call, api.Failed(int(Code.INTERNAL), f"the node failed at this request: {error}"))

    def _answer(self, call: Call, reply: api.Reply) -> None:
        self.in_flight -= 1
        self.bytes_in_flight -= call.size
        call.port.reply(call.id, reply, call.size)
        if self._on_idle is not None and self.in_flight == 0:
            self._on_idle()

    def _log(self, call: Call, command: commands.Command, finish: Callable[[Any, Any], None]) -> None:
        """Propose `command` for `call`; `finish(call, result)` once it is applied.

        Raises:
            NotLeader: this node cannot.
        """
        ticket = self._propose(commands.Tagged(command, call.session, call.sequence, call.lowest))
        call.finish = finish
        self._pending[ticket] = call
        self._wake()

    def _plain(self, call: Call, result: Result) -> None:
        assert not isinstance(result, Granted), result
        self._answer(call, result)

    # --- push ---------------------------------------------------------------------------------------------
    def _push(self, call: Call, request: api.Push) -> None:
        queue = request.queue
        columns = request.columns
        known = self.machine.queues.get(queue)
        if known is not None:
            settings = known.settings
        elif self._auto_create:
            settings = queue_settings.DEFAULTS
        else:
            raise not_found(queue, self.machine.queues)
        # The whole batch is smaller than one message may be, nearly always: then no message needs to be
        # looked at.
        if len(columns.payloads) > settings.max_message_bytes:
            _check_sizes(columns, settings.max_message_bytes)
        if not self.pushes_allowed:
            raise DiskFull("the disk is full: pushes wait for space, everything else goes on", retry_after_ms=1_000)
        self._log(
            call,
            commands.Push(
                queue,
                columns,
                request.priority,
                request.delay_ms,
                request.deliver_at_ms,
                request.ttl_ms,
                request.max_attempts,
            ),
            self._finish_pushed,
        )
        delay_ms = settings.delay_ms if request.delay_ms is None else request.delay_ms
        if delay_ms or request.deliver_at_ms is not None or settings.paused or settings.max_in_flight is not None:
            return
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._lanes[queue] = Lane(queue)
        call.lane = lane
        call.count = columns.count
        lane.coming += call.count
        if lane.waiters:
            self._serve(lane)

    def _pushed(self, call: Call, result: Result) -> None:
        lane = call.lane
        if lane is not None:
            lane.coming -= call.count
            if not lane.coming and not lane.polls:
                del self._lanes[lane.queue]
        self._answer(call, result)  # type: ignore[arg-type]  # never Granted

    # --- poll ---------------------------------------------------------------------------------------------
    def _poll(self, call: PollCall, request: api.Poll) -> None:
        if self._now_ms < 0:
            self._read_clock()
        call.request = request
        call.parked = call.watched = False
        call.arrived_ms = self._now_ms
        call.arrived_lease_ms = self._lease_ms
        call.deadline_ms = call.arrived_ms + request.wait_ms
        lanes = self._lanes
        found = []
        for queue in request.queues:
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
                self._lease(call, lane, min(request.max_messages, expected))
                return
        self._park(call)

    def _was_seen(self, session: int, sequence: int) -> bool:
        """Whether the session's table has, or had, an answer for this request; or the session is not
        there.
        """
        known = self.machine.sessions.table.get(session)
        return known is None or sequence in known.results or sequence < known.lowest

    def _expected(self, lane: Lane) -> int:
        """Messages that one more lease would find, as far as can be told."""
        expected = lane.coming - lane.taking
        if not lane.dry:
            expected += self.machine.available(lane.queue)
        return expected

    def _lease(self, call: PollCall, lane: Lane | None, take: int) -> None:
        request = call.request
        self._log(
            call,
            commands.Lease(
                request.queues,
                request.max_messages,
                request.visibility_ms,
                call.arrived_lease_ms,
                request.worker,
            ),
            self._finish_granted,
        )
        call.lane = lane
        call.count = take
        if lane is not None:
            lane.taking += take

    def _park(self, call: PollCall) -> None:
        port = call.port
        if self._now_ms < 0:
            self._read_clock()
        if self.draining or call.deadline_ms <= self._now_ms:
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
        self.counters.parked += 1
        port.waiting.add(call)
        for lane in call.lanes:
            lane.waiters[call] = None
        self.deadlines.living += 1
        self.deadlines.add(call)

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
            self.counters.futile_leases += 1
            for each in call.lanes:
                each.dry = True
            self._park(call)
            # A push that was submitted meanwhile found nobody waiting.
            self._recheck.update(call.lanes)
            return
        port = call.port
        if call.session is None and not (port.open and port.takes_leases):
            self.undo([commands.Target(run.uid, run.lease) for run in result.runs])
            self._end_poll(call, self._empty(call))
            return
        if lane is not None and lane.waiters:
            self._recheck.add(lane)
        try:
            filled = fill_poll(result, self.machine.secret, self._look_up)
        except Cold:
            self.counters.cold_replies += 1
            secret = self.machine.secret
            self.cold.add(
                lambda look_up: fill_poll(result, secret, look_up),
                lambda filled: self._deliver(call, filled),
            )
            return
        self._deliver(call, filled)

    def _deliver(self, call: PollCall, filled: Filled) -> None:
        if filled.held and call.port.congested:
            # It does not read what it was given before. Unsent replies stay bounded: everything goes back.
            self.undo([*filled.held, *filled.back])
            self._end_poll(call, self._empty(call))
            return
        if filled.back and self.replica.is_leader:
            # All runs of a poll are of one queue. Released, not undone: the rest of the lease stays.
            queue = filled.polled.runs[0].queue
            release = commands.Settle(queue, api.SettleKind.RELEASE, tuple(filled.back))
            self._propose(commands.Tagged(release))
            self._wake()
        if call.session is not None or not filled.held:
            self._end_poll(call, filled.polled)
        elif not call.port.open:
            self.undo(filled.held)
            self._end_poll(call, filled.polled)
        else:
            self._forget_poll(call)
            self.in_flight -= 1
            self.bytes_in_flight -= call.size
            call.port.reply_lease(call.id, filled.polled, call.size, filled.held)
            if self._on_idle is not None and self.in_flight == 0:
                self._on_idle()

    def _empty(self, call: PollCall) -> api.Polled:
        if self._now_ms < 0:
            self._read_clock()
        parked_ms = max(0, self._now_ms - call.arrived_ms)
        return api.Polled(parked_ms, call.request.visibility_ms or 0, ())

    def _forget_poll(self, call: PollCall) -> None:
        if call.session is not None:
            key = (call.session, call.sequence)
            if self._session_polls.get(key) is call:
                del self._session_polls[key]
        for lane in call.lanes:
            lane.polls -= 1
            if not lane.polls and not lane.coming:
                del self._lanes[lane.queue]

    def _end_poll(self, call: PollCall, reply: api.Reply) -> None:
        self._forget_poll(call)
        self._answer(call, reply)

    def expire(self, calls: Iterable[PollCall]) -> None:
        """The wait of these parked polls is over: answer them, empty."""
        self._now_ms = -1
        for call in calls:
            self._unpark(call)
            self._end_poll(call, self._empty(call))

    def undo(self, targets: Sequence[commands.Target]) -> None:
        """Give leases back, free of charge, that their taker never saw."""
        if not targets or not self.replica.is_leader:
            return
        self.counters.undone_leases += len(targets)
        self._propose(commands.Tagged(commands.Undo(tuple(targets))))
        self._wake()

    # --- settle, touch, forget ----------------------------------------------------------------------------
    def _settle(self, call: Call, request: api.Settle) -> None:
        targets = self._targets(call, request.items)
        if not targets:
            self._answer(call, api.Settled(_merge((), call.merge or {})))
            return
        self._log(
            call,
            commands.Settle(
                request.queue, request.kind, targets, request.delay_ms, request.error_type, request.error_text
            ),
            self._finish_plain if call.merge is None else self._finish_merged,
        )

    def _touch(self, call: Call, request: api.Touch) -> None:
        targets = self._targets(call, request.items)
        if not targets:
            codes = _merge((), call.merge or {})
            self._answer(call, api.Touched(codes, (0,) * len(codes)))
            return
        self._log(
            call,
            commands.Touch(request.queue, targets, request.visibility_ms),
            self._finish_plain if call.merge is None else self._finish_merged,
        )

    def _targets(self, call: Call, items: tuple[api.Item, ...]) -> tuple[commands.Target, ...]:
        """The leases behind the receipts; a receipt that this cluster never issued is set aside in
        `call.merge`.
        """
        secret = self.machine.secret
        targets = []
        for position, item in enumerate(items):
            try:
                uid, lease = open_receipt(secret, item.receipt)
            except ReceiptInvalid:
                if call.merge is None:
                    call.merge = {}
                call.merge[position] = int(Code.RECEIPT_INVALID)
                continue
            targets.append(commands.Target(uid, lease, item.ranges))
        return tuple(targets)

    def _merged(self, call: Call, result: Result) -> None:
        assert call.merge is not None
        if isinstance(result, api.Settled):
            self._answer(call, api.Settled(_merge(result.codes, call.merge)))
        elif isinstance(result, api.Touched):
            remaining = _merge(result.remaining_ms, dict.fromkeys(call.merge, 0))
            self._answer(call, api.Touched(_merge(result.codes, call.merge), remaining))
        else:
            self._plain(call, result)

    def _forget(self, call: Call, request: api.Forget) -> None:
        if call.session is None:
            raise InvalidArgument("forget names a request of the session it is sent in", field="sequence")
        self._drop_forgotten(call.session, request.sequence)
        call.count = request.sequence
        # Through the log even when a waiter was dropped: a copy of the poll may still be on another
        # connection.
        self._log(call, commands.Forget(request.sequence), self._forgotten)

    def _forgotten(self, call: Call, result: Result) -> None:
        # A lease that was on its way may have found nothing and parked again in between.
        assert call.session is not None
        self._drop_forgotten(call.session, call.count)
        self._plain(call, result)

    def _drop_forgotten(self, session: int, sequence: int) -> None:
        poll = self._session_polls.get((session, sequence))
        if poll is not None and poll.parked:
            self._unpark(poll)
            self._end_poll(poll, _FORGOTTEN)

    # --- other commands -----------------------------------------------------------------------------------
    def _cancel(self, call: Call, request: api.Cancel) -> None:
        self._log(call, commands.Cancel(request.queue, request.ids), self._finish_plain)

    def _reschedule(self, call: Call, request: api.Reschedule) -> None:
        command = commands.Reschedule(request.queue, request.id, request.deliver_at_ms)
        self._log(call, command, self._finish_plain)

    def _set_queue(self, call: Call, request: api.SetQueue) -> None:
        checked = queue_settings.check(request.settings, request.queue)
        self._log(call, commands.SetQueue(request.queue, checked, request.create), self._finish_plain)

    def _purge_queue(self, call: Call, request: api.PurgeQueue) -> None:
        self._log(call, commands.PurgeQueue(request.queue), self._finish_plain)

    def _delete_queue(self, call: Call, request: api.DeleteQueue) -> None:
        self._log(call, commands.DeleteQueue(request.queue), self._finish_plain)

    def _redrive(self, call: Call, request: api.Redrive) -> None:
        if request.dry_run:
            self._check_applied()
            self._answer(call, death.count_matching(self.machine, request))
            return
        command = commands.Redrive(request.queue, request.limit, request.target, request.where)
        self._log(call, command, self._finish_plain)

    def _purge_dead(self, call: Call, request: api.PurgeDead) -> None:
        self._log(call, commands.PurgeDead(request.queue, request.where), self._finish_plain)

    def _move(self, call: Call, request: api.Move) -> None:
        self._log(call, commands.Move(request.source, request.target, request.limit), self._finish_plain)

    def _open_session(self, call: Call, request: api.OpenSession) -> None:
        self._log(call, commands.OpenSession(), self._finish_plain)

    def _close_session(self, call: Call, request: api.CloseSession) -> None:
        if call.session is None:
            raise InvalidArgument("this connection has no session to close", field="session")
        self._log(call, commands.CloseSession(), self._finish_plain)

    def _ping(self, call: Call, request: api.Ping) -> None:
        self._answer(call, _PONG)

    # --- reads --------------------------------------------------------------------------------------------
    # Answered from the machine at once: replies leave after the apply, so whatever any client was told is
    def _check_applied(self) -> None:
        # inv: AppliedBeforeAnswered
        if self.replica.applied_index < self.replica.commit_index:
            raise NotReady("committed entries are not applied yet", retry_after_ms=10)

    def _peek(self, call: Call, request: api.Peek) -> None:
        self._check_applied()
        seen, following = reads.peek(self.machine, request)
        if request.state == api.State.DEAD:
            self._page(call, seen, following, lambda position: request.after + position, request.bodies)
        else:
            self._page(call, seen, following, lambda position: seen[position].peeked.sequence, request.bodies)

    def _list_dead(self, call: Call, request: api.ListDead) -> None:
        self._check_applied()
        seen, following = reads.dead(self.machine, request)
        self._page(call, seen, following, lambda position: request.after + position, request.bodies)

    def _page(
        self, call: Call, seen: Sequence[Seen], following: int, cursor: Callable[[int], int], bodies: bool
    ) -> None:
        if not bodies:
            self._answer(call, api.Page(tuple([one.peeked for one in seen]), following))
            return
        try:
            page = fill_page(seen, following, cursor, self._look_up)
        except Cold:
            self.counters.cold_replies += 1
            self.cold.add(
                lambda look_up: fill_page(seen, following, cursor, look_up),
                lambda page: self._answer(call, page),
            )
            return
        self._answer(call, page)

    def _show_queue(self, call: Call, request: api.ShowQueue) -> None:
        self._check_applied()
        self._answer(call, reads.show(self.machine, request.queue))

    def _list_queues(self, call: Call, request: api.ListQueues) -> None:
        self._check_applied()
        self._answer(call, reads.list_queues(self.machine, request))

    def _stats(self, call: Call, request: api.Stats) -> None:
        values = {
            **self.replica.stats(),
            **self._node_stats(),
            **attrs.asdict(self.counters),
            "connections": len(self.ports),
            "in_flight": self.in_flight,
            "in_flight_bytes": self.bytes_in_flight,
            "parked_polls": self.parked,
        }
        self._answer(call, api.StatsReply(values))

    # --- results ------------------------------------------------------------------------------------------
    def resolve(self, done: Done) -> None:
        """Answer what an applied entry decided, and wake who waits for what it changed."""
        self._now_ms = -1
        recheck = self._recheck
        pending = self._pending
        for ticket, result in done.results:
            call = pending.pop(ticket, None)
            if call is not None:
                call.finish(call, result)
        effects = done.effects
        lanes = self._lanes
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

    def flush(self) -> None:
        """Let the fronts send what has gathered."""
        for each in self.on_flush:
            each()

    # --- connections --------------------------------------------------------------------------------------
    def opened(self, port: Port) -> None:
        """A connection is there."""
        self.ports.add(port)

    def closed(self, port: Port) -> None:
        """A connection is gone, or will take no more leases: its parked polls are dropped before anything is
        leased for them; what is in flight finishes without it."""
        if not port.open:
            self.ports.discard(port)
        self.drop_waiting(port)

    def drop_waiting(self, port: Port) -> None:
        """Answer the parked polls of `port`, empty."""
        self.expire(list(port.waiting))

    def relieved(self, port: Port) -> None:
        """A congested connection has room again: its parked polls take part again."""
        for lane in {lane for call in port.waiting for lane in call.lanes}:
            if lane.waiters:
                self._serve(lane)

    def sessions(self) -> tuple[int, ...]:
        """Sessions that have a living connection."""
        return tuple(sorted({port.session for port in self.ports if port.session is not None}))

    def keep_sessions(self) -> None:
        """Let the idle time of sessions with a living connection start anew."""
        sessions = self.sessions()
        if sessions and self.replica.is_leader:
            self._propose(commands.Tagged(commands.KeepSessions(sessions)))
            self._wake()

    # --- shutdown -----------------------------------------------------------------------------------------
    def drain(self, on_idle: Callable[[], None]) -> None:
        """Refuse new requests, answer parked polls empty; `on_idle` once everything in flight is answered."""
        self.draining = True
        self._on_idle = on_idle
        self.expire([call for lane in list(self._lanes.values()) for call in list(lane.waiters) if call.parked])
        if self.in_flight == 0:
            on_idle()


def to_failed(error: WalrqError) -> api.Failed:
    """An error as the reply that carries it."""
    return api.Failed(int(error.code), error.text, dict(error.details))


def _overloaded(name: str, limit: int) -> Overloaded:
    return Overloaded(f"too many parked polls: {name} is {limit}", limit=name, retry_after_ms=1_000)


def _first(waiters: OrderedDict[PollCall, None], count: int) -> list[PollCall]:
    calls = []
    for call in waiters:
        calls.append(call)
        if len(calls) == count:
            break
    return calls


def _merge(values: tuple[int, ...], aside: Mapping[int, int]) -> tuple[int, ...]:
    """`values` with those of `aside` put in at their positions."""
    rest = iter(values)
    return tuple(aside[position] if position in aside else next(rest) for position in range(len(values) + len(aside)))


def _check_sizes(columns: api.Columns, most: int) -> None:
    """
    Raises:
        MessageTooLarge: naming the first payload beyond `most` bytes.
    """
    start = 0
    for position, (end,) in enumerate(_UINT32.iter_unpack(columns.ends)):
        if end - start > most:
            raise MessageTooLarge(
                f"message {position} has {end - start} bytes, this queue allows {most}",
                limit=most,
                position=position,
            )
        start = end


_HANDLERS: Final[dict[type, Callable[[Broker, Any, Any], None]]] = {
    api.Push: Broker._push,
    api.Poll: Broker._poll,
    api.Settle: Broker._settle,
    api.Touch: Broker._touch,
    api.Forget: Broker._forget,
    api.Cancel: Broker._cancel,
    api.Reschedule: Broker._reschedule,
    api.Peek: Broker._peek,
    api.SetQueue: Broker._set_queue,
    api.ShowQueue: Broker._show_queue,
    api.ListQueues: Broker._list_queues,
    api.PurgeQueue: Broker._purge_queue,
    api.DeleteQueue: Broker._delete_queue,
    api.ListDead: Broker._list_dead,
    api.Redrive: Broker._redrive,
    api.PurgeDead: Broker._purge_dead,
    api.Move: Broker._move,
    api.OpenSession: Broker._open_session,
    api.CloseSession: Broker._close_session,
    api.Ping: Broker._ping,
    api.Stats: Broker._stats,
}
