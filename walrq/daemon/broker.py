"""Between the doors and the log: admits requests, proposes commands, matches results with who asked.

    submit ─┬─ push, settle, ... ─────────────► replica.propose ─► ticket ─► [entry] ─► resolve ─► port.reply
            ├─ poll ─┬─ something to lease ───► the same, as a Lease
            │        └─ nothing ──────────────► parked; woken by pushes and effects, ended by its deadline
            └─ read ──────────────────────────► answered from the machine at once

With peers the same request meets one of three tables of handlers, changed with the office (`_take_stand`):

    alone       the only voter: as above
    leading     as above, and reads wait until the office is confirmed (inv: AppliedBeforeAnswered)
    following   NotLeader, with the leader's address; what concerns this node alone is answered

A node that takes office follows until an entry of its own is applied: before, its machine may lack what earlier leaders
answered. One that loses it says so at once to all who wait: what it had appended has an unknown outcome, what it had
only gathered did not happen, and parked polls move on.

Never: awaits, reads files, decides what a command does. All calls are made from one thread, between two turns
of the event loop, so nothing here can interleave.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from walrq import api
from walrq.daemon.bodies import Cold, ColdReplies, LookUp, check_sizes, fill_page, from_cache
from walrq.daemon.clock import Clock
from walrq.daemon.pollers import Call, PollCall, Pollers, Port, to_failed
from walrq.errors import (
    Code,
    CorruptRecord,
    DiskFull,
    Draining,
    InvalidArgument,
    NotLeader,
    NotReady,
    Overloaded,
    ReceiptInvalid,
    WalrqError,
)
from walrq.ids import open_receipt
from walrq.limits import IN_FLIGHT_BYTES_MAX, REDRIVE_PER_ENTRY
from walrq.protocol.requests import Incoming
from walrq.queues import commands, death, reads
from walrq.queues import settings as queue_settings
from walrq.queues.batch import Batch
from walrq.queues.effects import LookFar, Result, Seen
from walrq.queues.machine import not_found
from walrq.replica import ColdSearch, Done, Replica
from walrq.tiers.timers import Search

log = logging.getLogger("walrq.broker")


_PONG: Final = api.Pong()
_LOST: Final = api.Failed(
    int(Code.LEADERSHIP_LOST), "leadership moved while the request was on its way; it may have happened"
)


def _nowhere(node: str) -> str | None:
    return None


# Reads that see everything acknowledged before they were asked (a redrive when it is a dry run).
_READS: Final = frozenset({api.Peek, api.ShowQueue, api.ListQueues, api.ListDead, api.Redrive})
# Concerns the asked node alone.
_ANSWERED_ANYWHERE: Final = frozenset({api.Ping, api.Stats})


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
        nudge: Callable[[], None] = lambda: None,
        auto_create: bool = True,
        node_stats: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """`wake` tells the driver that there is something to write, `nudge` that there may be something to send."""
        self.replica = replica
        self.machine = replica.machine
        self.clock = clock
        self.polls = Pollers(self)
        self.cold = ColdReplies(replica)
        self.counters = Counters()
        self.ports: set[Port] = set()
        self.draining = False
        # Who is asked who somebody is, for every connection; None: nobody is.
        self.doorman: Any = None
        # False while the disk is full (the compactor looks, once per turn).
        self.pushes_allowed = True
        # Why pushes are refused for want of memory; empty: they are not (`reaper.watch_memory`).
        self.memory_full = ""
        # Requests submitted and not answered, parked ones included; and the bytes of their frames.
        self.in_flight = 0
        self.bytes_in_flight = 0
        self.on_flush: list[Callable[[], None]] = []
        # Told when another configuration is in effect.
        self.on_members: list[Callable[[], None]] = []
        self._on_closed: list[Callable[[Port], None]] = []
        # Requests that others than the broker answer (`serve`).
        self._elsewhere: set[type] = set()
        self._wake = wake
        self._nudge = nudge
        # Both clocks as read in this turn, when somebody needed them; -1 = not yet.
        self._now_ms = -1
        self._lease_ms = 0
        self.auto_create = auto_create
        self._node_stats = node_stats
        self._pending: dict[int, Call] = {}
        self._look_up: LookUp = from_cache(replica)
        self._on_idle: Callable[[], None] | None = None
        # Bound once: made for every request otherwise.
        self._all_handlers = {kind: handler.__get__(self) for kind, handler in _HANDLERS.items()}
        self._all_handlers[api.Poll] = self.polls.submit
        # Those of the stand this node takes; see the module.
        self._handlers = self._all_handlers
        # Where clients reach a node, as far as this one knows.
        self.endpoint_of: Callable[[str], str | None] = _nowhere
        # The term of the office this node holds, 0 = none; and whether it serves already.
        self._office = replica.term if replica.is_leader else 0
        self._serving = replica.is_leader
        # Reads that wait for the confirmation of the office; the read of number `_office_read` is that of a new leader.
        self._reads: dict[int, Callable[[bool], None]] = {}
        self._read_number = 0
        self._office_read = 0
        self._finish_plain: Callable[[Any, Any], None] = self.answer  # what is no Lease is never Granted
        self._finish_pushed = self._pushed
        self._finish_merged = self._merged
        self._propose = replica.propose
        self.take_stand()

    def serve(self, handlers: Mapping[type, Callable[[Call, Any], None]], on_closed: Callable[[Port], None]) -> None:
        """Let somebody else answer requests of these types, through `answer`; `on_closed`: a connection has ended.

        They are asked whatever stand this node takes.
        """
        self._all_handlers.update(handlers)
        self._elsewhere |= handlers.keys()
        self._on_closed.append(on_closed)
        self.take_stand()

    # --- the stand this node takes ------------------------------------------------------------------------
    def take_stand(self) -> None:
        """Let the office and the configuration of now decide how requests are met; called when either changed."""
        handlers = self._all_handlers
        if not self._serving:
            here = _ANSWERED_ANYWHERE | self._elsewhere
            self._handlers = {kind: each if kind in here else self._redirect for kind, each in handlers.items()}
        elif self.is_alone:
            self._handlers = handlers
        else:
            self._handlers = {kind: self._confirm_first if kind in _READS else each for kind, each in handlers.items()}

    @property
    def is_alone(self) -> bool:
        """Whether this node is the only voter: nobody else can have taken office."""
        voters = self.replica.configuration.voters
        return len(voters) == 1 and self.replica.config.node_id in voters

    @property
    def is_serving(self) -> bool:
        """Whether requests are answered here, and not by another node."""
        return self._serving

    def _redirect(self, call: Call, request: Any) -> None:
        raise self.not_leader()

    def not_leader(self) -> NotLeader:
        """Where the caller is to go instead, as far as this node knows."""
        leader = self.replica.leader
        if leader is None or leader == self.replica.config.node_id:
            return NotLeader("this node does not lead, and knows of no leader yet", leader=None, leader_node=None)
        return NotLeader(f"node {leader!r} leads", leader=self.endpoint_of(leader), leader_node=leader)

    def _confirm_first(self, call: Call, request: Any) -> None:
        """A read: answered once it is certain that nobody else had taken office when it came."""
        if type(request) is api.Redrive and not request.dry_run:
            self._redrive(call, request)
            return
        self.confirm(lambda confirmed: self._answer_read(call, request, confirmed))

    def confirm(self, then: Callable[[bool], None]) -> None:
        """Call `then` once the state here has all that was acknowledged before now, or nobody can tell: True or False.

        Raises:
            NotLeader: no leader is known. Overloaded: too many wait.
        """
        self._read_number = number = self._read_number + 1
        self.replica.read(number)
        self._reads[number] = then
        self._nudge()

    def _read_decided(self, number: int, confirmed: bool) -> None:
        if number == self._office_read:
            self._office_read = 0
            if confirmed and self._office:
                self._serving = True
                self.machine = self.replica.machine
                self.take_stand()
                log.info("leading term=%d", self._office)
            elif self._office:
                self._ask_for_office()
            return
        then = self._reads.pop(number, None)
        if then is not None:
            then(confirmed)

    def _answer_read(self, call: Call, request: Any, confirmed: bool) -> None:
        if not confirmed:
            self.answer(call, to_failed(self.not_leader()))
            return
        try:
            self._all_handlers[type(request)](call, request)
        except WalrqError as error:
            self.counters.refused += 1
            self.answer(call, to_failed(error))
        except Exception as error:
            log.exception("request_failed %s: %s", type(request).__name__, error)
            self.answer(call, api.Failed(int(Code.INTERNAL), f"the node failed at this request: {error}"))

    def _ask_for_office(self) -> None:
        """A new leader serves once this read is confirmed: an entry of its own is applied then."""
        self._read_number += 1
        self._office_read = self._read_number
        self.replica.read(self._office_read)
        self._nudge()

    def _office_changed(self) -> None:
        replica = self.replica
        office = replica.term if replica.is_leader else 0
        self.machine = replica.machine
        if office != self._office:
            had, self._office = self._office, office
            self._serving = False
            self._office_read = 0
            self.take_stand()
            if had:
                self.polls.end_all(to_failed(self.not_leader()))
                log.info("office_lost node=%s term=%d leader=%s", replica.config.node_id, replica.term, replica.leader)
            if office:
                log.info("office_taken node=%s term=%d", replica.config.node_id, office)
                self._ask_for_office()
        elif not office and replica.leader is not None:
            log.info("following node=%s term=%d leader=%s", replica.config.node_id, replica.term, replica.leader)

    # --- requests -----------------------------------------------------------------------------------------
    def begin_turn(self) -> None:
        """Called by whoever is about to call, once per turn of the event loop: the clocks are read anew
        then.
        """
        self._now_ms = -1

    def now_ms(self) -> int:
        """The monotonic clock, as read once in this turn."""
        if self._now_ms < 0:
            self._read_clock()
        return self._now_ms

    def lease_ms(self) -> int:
        """The lease clock, as read once in this turn."""
        if self._now_ms < 0:
            self._read_clock()
        return self._lease_ms

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
            self._handlers[kind](call, request)
        except WalrqError as error:
            self.counters.refused += 1
            if error.code is Code.NOT_LEADER:
                error = self.not_leader()
            self.answer(call, to_failed(error))
        except Exception as error:
            # A mistake of ours costs one request; if it was proposed already its result will answer it.
            log.exception("request_failed %s: %s", kind.__name__, error)
            if not hasattr(call, "finish"):
                self.answer(call, api.Failed(int(Code.INTERNAL), f"the node failed at this request: {error}"))

    def answer(self, call: Call, reply: api.Reply) -> None:
        self.in_flight -= 1
        self.bytes_in_flight -= call.size
        call.port.reply(call.id, reply, call.size)
        if self._on_idle is not None and self.in_flight == 0:
            self._on_idle()

    def answer_lease(self, call: Call, polled: api.Polled, held: Sequence[commands.Target]) -> None:
        """Answer a poll without session: what it holds is undone unless the kernel takes the reply whole."""
        self.in_flight -= 1
        self.bytes_in_flight -= call.size
        call.port.reply_lease(call.id, polled, call.size, held)
        if self._on_idle is not None and self.in_flight == 0:
            self._on_idle()

    def log(self, call: Call, command: commands.Command, finish: Callable[[Any, Any], None]) -> None:
        """Propose `command` for `call`; `finish(call, result)` once it is applied.

        Raises:
            NotLeader: this node cannot.
        """
        ticket = self._propose(commands.Tagged(command, call.session, call.sequence, call.lowest))
        call.finish = finish
        self._pending[ticket] = call
        self._wake()

    # --- push ---------------------------------------------------------------------------------------------
    def _push(self, call: Call, request: api.Push) -> None:
        queue = request.queue
        columns = request.columns
        known = self.machine.queues.get(queue)
        if known is not None:
            settings = known.settings
        elif self.auto_create:
            settings = queue_settings.DEFAULTS
        else:
            raise not_found(queue, self.machine.queues)
        # The whole batch is smaller than one message may be, nearly always: then no message needs to be
        # looked at.
        if len(columns.payloads) > settings.max_message_bytes:
            check_sizes(columns, settings.max_message_bytes)
        if not self.pushes_allowed:
            # Looked at once per turn; what followers say of their disks comes in between.
            self.pushes_allowed = self.replica.pushes_allowed
            if not self.pushes_allowed:
                raise DiskFull(self._why_full(), retry_after_ms=1_000)
        if self.memory_full:
            raise Overloaded(self.memory_full, limit="max_memory", retry_after_ms=1_000)
        self.log(
            call,
            commands.Push(
                queue,
                columns,
                request.priority,
                request.delay_ms,
                request.deliver_at_ms,
                request.ttl_ms,
                request.max_attempts,
                request.counted,
            ),
            self._finish_pushed,
        )
        delay_ms = settings.delay_ms if request.delay_ms is None else request.delay_ms
        if delay_ms or request.deliver_at_ms is not None or settings.paused or settings.max_in_flight is not None:
            return
        self.polls.coming(call, queue, len(columns.ends) >> 2)

    def _why_full(self) -> str:
        if self.replica.has_own_room:
            return "the disks of a majority are full: pushes wait for space, everything else goes on"
        return "the disk is full: pushes wait for space, everything else goes on"

    def _pushed(self, call: Call, result: Result) -> None:
        lane = call.lane
        if lane is not None:
            self.polls.came(lane, call.count)
        self.answer(call, result)  # type: ignore[arg-type]  # never Granted

    def undo(self, targets: Sequence[commands.Target]) -> None:
        """Give leases back, free of charge, that their taker never saw."""
        if not targets:
            return
        self.counters.undone_leases += len(targets)
        self.give_back(commands.Undo(tuple(targets)))

    def take_for_good(self, queue: str, targets: Sequence[commands.Target]) -> None:
        """Acknowledge leases whose reply was all that their taker wanted, now that it has been sent."""
        self.give_back(commands.Settle(queue, api.SettleKind.ACK, tuple(targets)))

    def give_back(self, command: commands.Undo | commands.Settle) -> None:
        """Propose what nobody waits for. A node that lost its office need not: the leases end by
        themselves.
        """
        if self.replica.accepts:
            self._propose(commands.Tagged(command))
            self._wake()

    # --- settle, touch, forget ----------------------------------------------------------------------------
    def _settle(self, call: Call, request: api.Settle) -> None:
        targets = self._targets(call, request.items)
        if not targets:
            self.answer(call, api.Settled(_merge((), call.merge or {})))
            return
        self.log(
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
            self.answer(call, api.Touched(codes, (0,) * len(codes)))
            return
        self.log(
            call,
            commands.Touch(request.queue, targets, request.visibility_ms),
            self._finish_plain if call.merge is None else self._finish_merged,
        )

    def _targets(self, call: Call, items: tuple[api.Item, ...]) -> tuple[commands.Target, ...]:
        """The leases behind the receipts; a receipt that this cluster never issued is set aside in
        `call.merge`.
        """
        secret = self.machine.secret
        if len(items) == 1:
            item = items[0]
            try:
                uid, lease = open_receipt(secret, item.receipt)
            except ReceiptInvalid:
                call.merge = {0: int(Code.RECEIPT_INVALID)}
                return ()
            return (commands.Target(uid, lease, item.ranges),)
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
            self.answer(call, api.Settled(_merge(result.codes, call.merge)))
        elif isinstance(result, api.Touched):
            remaining = _merge(result.remaining_ms, dict.fromkeys(call.merge, 0))
            self.answer(call, api.Touched(_merge(result.codes, call.merge), remaining))
        else:
            self.answer(call, result)  # type: ignore[arg-type]  # never Granted

    def _forget(self, call: Call, request: api.Forget) -> None:
        if call.session is None:
            raise InvalidArgument("forget names a request of the session it is sent in", field="sequence")
        self.polls.forget(call.session, request.sequence)
        call.count = request.sequence
        # Through the log even when a waiter was dropped: a copy of the poll may still be on another
        # connection.
        self.log(call, commands.Forget(request.sequence), self._forgotten)

    def _forgotten(self, call: Call, result: Result) -> None:
        # A lease that was on its way may have found nothing and parked again in between.
        assert call.session is not None
        self.polls.forget(call.session, call.count)
        self.answer(call, result)  # type: ignore[arg-type]  # never Granted

    # --- other commands -----------------------------------------------------------------------------------
    def _cancel(self, call: Call, request: api.Cancel) -> None:
        self._ask_by_id(call, commands.Cancel(request.queue, request.ids))

    def _reschedule(self, call: Call, request: api.Reschedule) -> None:
        self._ask_by_id(call, commands.Reschedule(request.queue, request.id, request.deliver_at_ms))

    def _ask_by_id(self, call: Call, command: commands.Cancel | commands.Reschedule) -> None:
        """Propose what names messages; those that may lie in sealed pages are looked up, and it is proposed again."""

        def finish(call: Call, result: Any) -> None:
            if isinstance(result, LookFar) and result.cold:
                self._reach(call, self.replica.search_ids(command.queue, result.cold), again)
            elif isinstance(result, LookFar):
                search = self.replica.find_far(result.ids)
                self.cold.add(lambda _: search.attempt(), lambda why: self._found(call, command, search, why))
            else:
                self.answer(call, result)

        def again(search: ColdSearch) -> None:
            self._ask_by_id(call, attrs.evolve(command, cold=search.seen))  # type: ignore[misc]

        self.log(call, command, finish)

    def _reach(self, call: Call, search: ColdSearch | None, then: Callable[[ColdSearch], None]) -> None:
        """Look for cold messages in a thread, propose to bring those back that were found, and go on with `then`."""

        def found(_: Any) -> None:
            assert search is not None
            try:
                if search.why:
                    raise CorruptRecord(f"a page of messages beyond the hot window is damaged: {search.why}")
                for each in search.commands():
                    self._propose(commands.Tagged(each))
                then(search)
            except WalrqError as error:
                self.counters.refused += 1
                self.answer(call, to_failed(error))

        if search is None:
            # The queue is gone by now.
            self.answer(call, to_failed(NotReady("ask again", retry_after_ms=10)))
            return
        self.counters.cold_replies += 1
        run = search.run
        self.cold.add(lambda _: run(), found)

    def _cold_dead(self, name: str, where: api.Filter | None) -> tuple[int, Callable[[Batch], bool]] | None:
        """(uid, test) of the dead-letter queue in which dead messages of queue `name` are cold; None: none are."""
        queue = self.machine.queues.get(name)
        target = death.target_name(queue) if queue is not None else None
        buried = self.machine.queues.get(target) if target is not None else None
        if buried is None or not any(cold.origins.get(name) for cold in buried.cold.values()):
            return None
        uid, ids = buried.uid, death.wanted(where)

        def matches(batch: Batch) -> bool:
            if batch.origin is None or batch.origin.queue != name:
                return False
            return any(death.matches(where, ids, batch, offset, uid) for offset in range(batch.count))

        return uid, matches

    def _found(self, call: Call, command: commands.Cancel | commands.Reschedule, search: Search, why: str) -> None:
        try:
            if why:
                raise CorruptRecord(f"a page of delayed messages is damaged, and the message may be in it: {why}")
            found = commands.FarFound(search.seen, search.found)
            self._ask_by_id(call, attrs.evolve(command, far=found))  # type: ignore[misc]
        except WalrqError as error:
            self.counters.refused += 1
            self.answer(call, to_failed(error))

    def _set_queue(self, call: Call, request: api.SetQueue) -> None:
        checked = queue_settings.check(request.settings, request.queue)
        self.log(call, commands.SetQueue(request.queue, checked, request.create), self._finish_plain)

    def _purge_queue(self, call: Call, request: api.PurgeQueue) -> None:
        self.log(call, commands.PurgeQueue(request.queue), self._finish_plain)

    def _delete_queue(self, call: Call, request: api.DeleteQueue) -> None:
        self.log(call, commands.DeleteQueue(request.queue), self._finish_plain)

    def _redrive(self, call: Call, request: api.Redrive) -> None:
        if request.dry_run:
            self._check_applied()
        cold = self._cold_dead(request.queue, request.where)
        if cold is not None:
            search = self.replica.search_cold(*cold, messages_max=request.limit)
            if request.dry_run:
                self._look(search, lambda: self._count_dead(call, request, search))
            else:
                self._reach(call, search, lambda search: self._redrive_now(call, request, more=not search.is_all))
        elif request.dry_run:
            self.answer(call, death.count_matching(self.machine, request))
        else:
            self._redrive_now(call, request, more=False)

    def _redrive_now(self, call: Call, request: api.Redrive, *, more: bool) -> None:
        command = commands.Redrive(request.queue, request.limit, request.target, request.where, more)
        self.log(call, command, self._finish_plain)

    def _count_dead(self, call: Call, request: api.Redrive, search: ColdSearch) -> None:
        """A dry run: what a redrive would move, what is cold included."""
        hot = death.count_matching(self.machine, request)
        count = hot.count + sum(each.batch.live for each in search.found)
        limit = request.limit
        self.answer(call, api.Moved(min(count, limit), hot.more or count > limit or not search.is_all))

    def _look(self, search: ColdSearch, then: Callable[[], None]) -> None:
        """Look for cold messages in a thread, without bringing them back."""
        self.counters.cold_replies += 1
        self.cold.add(lambda _: search.run(), lambda _: then())

    def _purge_dead(self, call: Call, request: api.PurgeDead, removed: int = 0) -> None:
        command = commands.PurgeDead(request.queue, request.where)
        cold = self._cold_dead(request.queue, request.where)
        if cold is None and not removed:
            self.log(call, command, self._finish_plain)
            return

        def finish(call: Call, result: Any) -> None:
            self.answer(call, api.Done(result.count + removed) if isinstance(result, api.Done) else result)

        def go_on(call: Call, result: Any) -> None:
            if isinstance(result, api.Done):
                self._purge_dead(call, request, removed + result.count)
            else:
                self.answer(call, result)

        def found(search: ColdSearch) -> None:
            if search.is_all:
                self.log(call, command, finish)
                return
            # Some now, under no number of the session: a repeated request goes on with what is left.
            call.finish = go_on
            self._pending[self._propose(commands.Tagged(command))] = call
            self._wake()

        if cold is None:
            self.log(call, command, finish)
        else:
            self._reach(call, self.replica.search_cold(*cold, messages_max=REDRIVE_PER_ENTRY), found)

    def _move(self, call: Call, request: api.Move) -> None:
        self.log(call, commands.Move(request.source, request.target, request.limit), self._finish_plain)

    def _open_session(self, call: Call, request: api.OpenSession) -> None:
        self.log(call, commands.OpenSession(), self._finish_plain)

    def _close_session(self, call: Call, request: api.CloseSession) -> None:
        if call.session is None:
            raise InvalidArgument("this connection has no session to close", field="session")
        self.log(call, commands.CloseSession(), self._finish_plain)

    def _ping(self, call: Call, request: api.Ping) -> None:
        self.answer(call, _PONG)

    # --- reads --------------------------------------------------------------------------------------------
    # Answered from the machine at once: replies leave after the apply, so what any client was told is in it.
    def _check_applied(self) -> None:
        # inv: AppliedBeforeAnswered
        if self.replica.applied_index < self.replica.commit_index:
            raise NotReady("committed entries are not applied yet", retry_after_ms=10)

    def _peek(self, call: Call, request: api.Peek) -> None:
        self._check_applied()
        queue = self.machine.require(request.queue)
        if request.state == api.State.DEAD:
            self._list_dead(call, api.ListDead(request.queue, request.limit, request.after, bodies=request.bodies))
            return
        if request.state == api.State.READY and queue.cold:
            search = self.replica.search_cold(
                queue.uid, lambda batch: True, messages_max=request.limit + 1, after=request.after
            )
            self._look(search, lambda: self._peek_cold(call, request, search))
            return
        if request.state == api.State.DELAYED and api.SINCE <= request.after < reads.FAR_AFTER:
            self._peek_since(call, request)
            return
        is_far = request.state == api.State.DELAYED and request.after >= reads.FAR_AFTER
        seen, following = ([], 0) if is_far else reads.peek(self.machine, request)
        if is_far or (request.state == api.State.DELAYED and not following and self._waits_far(request.queue)):
            self._peek_far(call, request, seen)
        else:
            self._page(call, seen, following, lambda position: seen[position].peeked.sequence, request.bodies)

    def _peek_cold(self, call: Call, request: api.Peek, search: ColdSearch) -> None:
        """Ready messages, hot and cold, by sequence."""
        try:
            seen, following = reads.peek(self.machine, request, [each.batch for each in search.found])
        except WalrqError as error:
            self.answer(call, to_failed(error))
            return
        self._page(call, seen, following, lambda position: seen[position].peeked.sequence, request.bodies)

    def _waits_far(self, name: str) -> bool:
        queue = self.machine.queues.get(name)
        return queue is not None and queue.far_messages > 0

    def _peek_far(self, call: Call, request: api.Peek, seen: list[Seen]) -> None:
        """Delayed messages behind the near ones `seen`, as they lie in sealed pages."""
        after = request.after - reads.FAR_AFTER if request.after >= reads.FAR_AFTER else 0
        uid = self.machine.require(request.queue).uid
        listing = self.replica.list_far(uid, after, request.limit - len(seen))

        def then() -> None:
            cursors = [one.peeked.sequence for one in seen]
            for row, first, last, place in listing.found:
                seen.extend(reads.far_seen(row, first, last))
                cursors += [reads.FAR_AFTER + place + offset for offset in range(first, last + 1)]
            following = listing.following and reads.FAR_AFTER + listing.following
            self._page(call, seen, following, cursors.__getitem__, request.bodies)

        self.cold.add_far(listing.attempt, then, lambda error: self.answer(call, to_failed(error)))

    def _peek_since(self, call: Call, request: api.Peek) -> None:
        """Delayed messages, near and far, by sequence."""
        after = request.after - api.SINCE
        near = reads.peek(self.machine, api.Peek(request.queue, request.state, request.limit, after))
        far = self.replica.far_since(self.machine.require(request.queue).uid, after, request.limit + 1)

        def then() -> None:
            seen, following = reads.by_sequence(*near, far.found, request.limit)
            self._page(call, seen, following, lambda k: api.SINCE + seen[k].peeked.sequence, request.bodies)

        self.cold.add_far(far.attempt, then, lambda error: self.answer(call, to_failed(error)))

    def _list_dead(self, call: Call, request: api.ListDead) -> None:
        self._check_applied()
        cold = self._cold_dead(request.queue, request.where)
        if cold is None:
            self._dead_page(call, request, None)
            return
        search = self.replica.search_cold(*cold, messages_max=request.after + request.limit + 1)
        self._look(search, lambda: self._dead_page(call, request, search))

    def _dead_page(self, call: Call, request: api.ListDead, search: ColdSearch | None) -> None:
        found = [each.batch for each in search.found] if search is not None else []
        try:
            seen, following = reads.dead(self.machine, request, found)
        except WalrqError as error:
            self.answer(call, to_failed(error))
            return
        self._page(call, seen, following, lambda position: request.after + position, request.bodies)

    def _page(
        self, call: Call, seen: Sequence[Seen], following: int, cursor: Callable[[int], int], bodies: bool
    ) -> None:
        if not bodies:
            self.answer(call, api.Page(tuple([one.peeked for one in seen]), following))
            return
        try:
            page = fill_page(seen, following, cursor, self._look_up, self.replica.may_be_live)
        except Cold:
            self.counters.cold_replies += 1
            self.cold.add(
                lambda look_up: fill_page(seen, following, cursor, look_up, self.replica.may_be_live),
                lambda page: self.answer(call, page),
            )
            return
        self.answer(call, page)

    def _show_queue(self, call: Call, request: api.ShowQueue) -> None:
        self._check_applied()
        self.answer(call, reads.show(self.machine, request.queue))

    def _list_queues(self, call: Call, request: api.ListQueues) -> None:
        self._check_applied()
        self.answer(call, reads.list_queues(self.machine, request))

    def _stats(self, call: Call, request: api.Stats) -> None:
        values = {
            **self.replica.stats(),
            **self._node_stats(),
            **attrs.asdict(self.counters),
            "connections": len(self.ports),
            "in_flight": self.in_flight,
            "in_flight_bytes": self.bytes_in_flight,
            "parked_polls": self.polls.parked,
        }
        self.answer(call, api.StatsReply(values))

    # --- results ------------------------------------------------------------------------------------------
    def resolve(self, done: Done) -> None:
        """Answer what an applied entry decided, and wake who waits for what it changed."""
        self._now_ms = -1
        pending = self._pending
        for ticket, result in done.results:
            call = pending.pop(ticket, None)
            if call is not None:
                call.finish(call, result)
        if (
            done.office_changed
            or done.reads
            or done.lost
            or done.refused
            or done.members_changed
            or done.installed
            or done.findings
        ):
            self._resolve_rest(done)
        self.polls.affected(done.effects)

    def _resolve_rest(self, done: Done) -> None:
        """What only happens with peers: offices and memberships change, reads are confirmed."""
        pending = self._pending
        for finding in done.findings:
            log.critical("finding %s", finding)
        for ticket in done.lost:
            call = pending.pop(ticket, None)
            if call is not None:
                call.finish(call, _LOST)
        if done.installed:
            self.machine = self.replica.machine
        if done.office_changed:
            self._office_changed()
        if done.members_changed:
            self.take_stand()
            for each in self.on_members:
                each()
        if done.refused:
            refused = to_failed(self.not_leader())
            for ticket in done.refused:
                call = pending.pop(ticket, None)
                if call is not None:
                    call.finish(call, refused)
        for number, confirmed in done.reads:
            self._read_decided(number, bool(confirmed))

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
        self.begin_turn()
        self.polls.drop_waiting(port)
        for each in self._on_closed:
            each(port)

    def sessions(self) -> tuple[int, ...]:
        """Sessions that have a living connection."""
        return tuple(sorted({port.session for port in self.ports if port.session is not None}))

    def keep_sessions(self) -> None:
        """Let the idle time of sessions with a living connection start anew."""
        sessions = self.sessions()
        if sessions and self.replica.accepts:
            self._propose(commands.Tagged(commands.KeepSessions(sessions)))
            self._wake()

    # --- shutdown -----------------------------------------------------------------------------------------
    def drain(self, on_idle: Callable[[], None]) -> None:
        """Refuse new requests, answer parked polls empty; `on_idle` once everything in flight is answered."""
        self.draining = True
        self._on_idle = on_idle
        self.begin_turn()
        self.polls.drop_all()
        if self.in_flight == 0:
            on_idle()


def _merge(values: tuple[int, ...], aside: Mapping[int, int]) -> tuple[int, ...]:
    """`values` with those of `aside` put in at their positions."""
    rest = iter(values)
    return tuple(aside[position] if position in aside else next(rest) for position in range(len(values) + len(aside)))


# Without api.Poll, which goes to the pollers.
_HANDLERS: Final[dict[type, Any]] = {
    api.Push: Broker._push,
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
