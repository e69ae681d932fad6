"""Where every door takes its requests: one face of the broker, the same on a leader and on a follower.

    submit(port, incoming) ─┬─ this node leads, or the request concerns it alone ──► Broker.submit
                            └─ otherwise ──────────────────────────────────────────► Forwarder, to the leader

Two ways in. `call` is for doors with a task per request: it waits for the reply, raises what was refused, and when it
is cancelled nothing stays leased. `submit` is for doors with a connection object of their own (pipelining): the
connection is a `Port`, replies come through `Port.reply` in any order.

A lease whose reply did not reach its client is handed to `give_back`: it is free at once and costs no attempt. `call`
does so itself as long as it has not returned.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import attrs
import trio

from walrq import api
from walrq.client.carrier import Carrier
from walrq.daemon.broker import Broker
from walrq.daemon.pollers import PollCall, Port
from walrq.doors.forwarding import Forwarded, Forwarder
from walrq.errors import Code, Draining, WalrqError, from_code
from walrq.ids import open_receipt
from walrq.locks.doorman import Guard
from walrq.protocol.requests import Incoming
from walrq.queues import commands, reads

log = logging.getLogger("walrq.gate")

# A confirmation takes a round trip between nodes; who waits longer for it reads what is here.
_CONFIRM_S: Final = 1.0
# Only the leader takes these, from the client itself.
_OF_A_SESSION: Final = frozenset({api.OpenSession, api.CloseSession, api.Forget})
# What concerns the asked node alone: answered by it whoever leads.
LOCAL: Final = frozenset({api.Ping, api.Stats, api.ClusterStatus, api.BackupBegin, api.BackupRead, api.BackupEnd})


class Gate:
    """See the module. One per node.

    Attributes:
        desks: how many ports of the broker are desks, and no connections.
    """

    def __init__(self, broker: Broker, forwarder: Forwarder) -> None:
        self._broker = broker
        self._forwarder = forwarder
        self.desks = 0
        # Ports that asked while this node followed: the connection to the leader they keep to, and what is under way.
        self._carriers: dict[Port, Carrier] = {}
        self._forwarded: dict[Port, set[Forwarded]] = {}

    @property
    def leads(self) -> bool:
        """Whether requests are answered here."""
        return self._broker.is_serving

    # --- a task per request ---------------------------------------------------------------------------------
    @property
    def saturated(self) -> bool:
        """Too much is in flight in all: read no more requests until some of it is answered."""
        return self._broker.saturated

    async def call(
        self, request: api.Request, *, guard: Guard | None = None, size: int = 0, mark: Mark | None = None
    ) -> api.Reply:
        """The reply to one request. Cancelled, it leaves nothing parked and nothing leased.

        A request that was turned away because the office moved did not happen: it goes on to the new leader, a poll
        with what is left of its wait.

        Args:
            guard: who asks and was admitted; None where nobody is asked who he is.
            size: the bytes that the request holds in memory.
            mark: its place in a session; only the leader takes those.

        Raises:
            WalrqError: what was refused, or is not known.
        """
        broker = self._broker
        until_ms = broker.clock.monotonic_ms() + request.wait_ms if isinstance(request, api.Poll) else 0
        here = True
        while True:
            if mark is not None and not self.leads:
                raise broker.not_leader()
            desk = Desk(self, mark, guard)
            was_here, here = here, self.leads
            try:
                reply = await desk.call(request, size)
            finally:
                desk.close()
            if type(reply) is not api.Failed:
                return reply
            if reply.code != Code.NOT_LEADER or mark is not None or type(request) in _OF_A_SESSION or not was_here:
                raise from_code(reply.code, reply.text, reply.details)
            if isinstance(request, api.Poll):
                left_ms = max(0, until_ms - broker.clock.monotonic_ms())
                request = api.Poll(request.queues, request.max_messages, request.visibility_ms, left_ms, request.worker)

    async def call_leader(self, request: api.Request) -> api.Reply:
        """As `call`, of the leader even where this node could answer.

        Raises:
            WalrqError: as `call`.
        """
        desk = Desk(self)
        try:
            reply = await desk.call(request, forward=not self.leads)
        finally:
            desk.close()
        if type(reply) is api.Failed:
            raise from_code(reply.code, reply.text, reply.details)
        return reply

    async def confirm(self) -> bool:
        """Whether the state here has, by now, all that was acknowledged before this was called: *consistent*.

        False when nobody could tell within a moment: then what is read here is *local*.
        """
        broker = self._broker
        if broker.is_alone:
            return True
        answered = trio.Event()
        found = False

        def decided(confirmed: bool) -> None:
            nonlocal found
            found = confirmed
            answered.set()

        try:
            broker.confirm(decided)
        except WalrqError:
            return False
        with trio.move_on_after(_CONFIRM_S):
            await answered.wait()
        return found

    # --- connection objects ---------------------------------------------------------------------------------
    def opened(self, port: Port) -> None:
        """A connection is there; call it once, before the first `submit`."""
        self._broker.opened(port)

    def begin_turn(self) -> None:
        """Call it before the first `submit` of a turn of the event loop: the clocks are read anew then."""
        self._broker.begin_turn()

    def submit(self, port: Port, incoming: Incoming) -> None:
        """Take one request; it is answered through `port` now or later, exactly once.

        Requests of one port are carried out in the order in which they are submitted.
        """
        broker = self._broker
        if broker.is_serving or type(incoming.request) in LOCAL:
            broker.submit(port, incoming)
        else:
            self.forward(port, incoming)

    def closed(self, port: Port) -> None:
        """A connection is gone (`port.open` False), or takes no more leases (`port.takes_leases` False): its parked
        polls end before anything is leased for them.
        """
        self._broker.closed(port)
        if not port.open:
            self._carriers.pop(port, None)
            for each in self._forwarded.pop(port, ()):
                each.abandon()
        elif not port.takes_leases:
            for each in list(self._forwarded.get(port, ())):
                each.stop_waiting()

    def give_back(self, polled: api.Polled) -> None:
        """Free what a poll leased, at once and without costing an attempt: its client never saw the reply.

        Safe whoever leads by now: a lease that ended otherwise stays ended.
        """
        if not polled.runs:
            return
        broker = self._broker
        if broker.is_serving:
            secret = broker.machine.secret
            broker.undo([commands.Target(*open_receipt(secret, run.receipt)) for run in polled.runs])
            return
        items: dict[str, list[api.Item]] = {}
        for run in polled.runs:
            items.setdefault(run.queue, []).append(api.Item(run.receipt))
        try:
            carrier = self._forwarder.carrier()
            for queue, each in items.items():
                carrier.submit(api.Settle(queue, api.SettleKind.RELEASE, tuple(each)), wanted=False)
        except WalrqError as error:
            log.info("lease_not_given_back queues=%d: %s; it ends by itself", len(items), error.text)

    def look(self, request: api.ListQueues) -> api.QueueList:
        """Queues as this node's own copy has them now: *local*, which on a follower may be a moment old."""
        return reads.list_queues(self._broker.machine, request)

    # --- on a follower --------------------------------------------------------------------------------------
    def forward(self, port: Port, incoming: Incoming) -> None:
        """`submit`, to the leader in any case."""
        size = incoming.size
        under_way: list[Forwarded] = []

        def answered(reply: api.Reply) -> None:
            if under_way:
                self._forwarded.get(port, set()).discard(under_way[0])
            if not port.open:
                if type(reply) is api.Polled:
                    self.give_back(reply)
                return
            if type(reply) is api.Polled and reply.runs:
                port.reply_lease(incoming.id, reply, size, ())
            else:
                port.reply(incoming.id, reply, size)
            self._broker.flush()

        try:
            if type(incoming.request) in _OF_A_SESSION:
                # The connections to the leader have sessions of their own, which these would take for theirs.
                raise self._broker.not_leader()
            if self._broker.draining:
                raise Draining("the node is stopping and takes no new work")
            carrier = self._carriers.get(port)
            if carrier is None or carrier.closed:
                carrier = self._carriers[port] = self._forwarder.carrier()
            forwarded = self._forwarder.submit(carrier, incoming.request, answered)
        except WalrqError as error:
            answered(api.Failed(int(error.code), error.text, dict(error.details)))
            return
        if not forwarded.done:
            under_way.append(forwarded)
            self._forwarded.setdefault(port, set()).add(forwarded)


@attrs.frozen
class Mark:
    """A request's place in a session (docs/sessions): see `protocol.requests.Incoming`."""

    session: int
    sequence: int
    lowest: int


class Desk:
    """A port whose requests each have a task that waits: `call` them, and `close` it in the end."""

    __slots__ = ("_gate", "_mark", "_number", "_waiting", "guard", "open", "takes_leases", "waiting")

    congested: Final = False

    def __init__(self, gate: Gate, mark: Mark | None = None, guard: Guard | None = None) -> None:
        self._gate = gate
        self.guard = guard
        self._mark = mark
        self._number = 0
        # Whom to wake with the reply of which request.
        self._waiting: dict[int, _Slip] = {}
        self.open = True
        self.takes_leases = True
        self.waiting: set[PollCall] = set()
        gate.desks += 1
        gate.opened(self)

    @property
    def session(self) -> int | None:
        """The session that its requests belong to."""
        return None if self._mark is None else self._mark.session

    async def call(self, request: api.Request, size: int = 0, *, forward: bool = False) -> api.Reply:
        """The reply, with `forward` the leader's in any case. Cancelled, what it leased is given back, and `close` ends
        what is parked.
        """
        self._number = number = self._number + 1
        slip = self._waiting[number] = _Slip()
        mark = self._mark
        gate = self._gate
        try:
            gate.begin_turn()
            if mark is None:
                incoming = Incoming(number, None, None, request, size)
            else:
                incoming = Incoming(number, mark.sequence, mark.lowest, request, size)
            (gate.forward if forward else gate.submit)(self, incoming)
            await slip.answered.wait()
        except BaseException:
            # Cancelled, perhaps in the very turn in which the answer came.
            if type(slip.reply) is api.Polled and mark is None:
                gate.give_back(slip.reply)
            raise
        finally:
            self._waiting.pop(number, None)
        assert slip.reply is not None
        return slip.reply

    def close(self) -> None:
        """Nobody waits any more."""
        if self.open:
            self.open = self.takes_leases = False
            self._gate.desks -= 1
            self._gate.closed(self)

    def revoked(self, why: str) -> None:
        """Its token is gone: a poll ends, what else is under way is answered."""
        if self.guard is not None and self.takes_leases:
            self.takes_leases = False
            self._gate.closed(self)

    def reply(self, id: int, reply: api.Reply, size: int) -> None:
        """Wake who waits."""
        slip = self._waiting.get(id)
        if slip is not None and self.open:
            slip.reply = reply
            slip.answered.set()

    def reply_lease(self, id: int, reply: api.Polled, size: int, targets: Sequence[commands.Target]) -> None:
        """Wake who waits; he gives the lease back unless he takes it."""
        if id in self._waiting and self.open:
            self.reply(id, reply, size)
        else:
            self._gate.give_back(reply)


class _Slip:
    __slots__ = ("answered", "reply")

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.reply: api.Reply | None = None
