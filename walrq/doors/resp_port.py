"""One connection of the Redis door, between the front that carries its bytes and the gate that takes its requests.

A port of the broker as `daemon/connection.py` is one: back-pressure, time-outs, leases that are undone when their reply
did not leave, and here also leases that are settled when it did (RPOP).

Never: a command's meaning (`walrq.resp`), a task of its own.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from walrq import __version__, api
from walrq.daemon.outgoing import Outgoing
from walrq.daemon.pollers import PollCall, to_failed
from walrq.daemon.stream_front import Served, StreamFront
from walrq.doors.gate import Gate
from walrq.doors.resp_feed import Feed
from walrq.doors.resp_merging import Merger
from walrq.errors import Code, NotReady, Unauthenticated, WalrqError
from walrq.limits import (
    FRAME_STALL_S_MAX,
    IN_FLIGHT_BYTES_PER_CONNECTION_MAX,
    IN_FLIGHT_PER_CONNECTION_MAX,
    RESP_CURSORS_MAX,
    RESP_FEED_BYTES_MAX,
    RESP_HELD_BYTES_MAX,
    SEND_BUFFER_BYTES_MAX,
    SEND_STALL_S_MAX,
)
from walrq.locks.doorman import Guard
from walrq.protocol.requests import Incoming
from walrq.queues.commands import Target
from walrq.resp import writing
from walrq.resp.commands import COMMANDS
from walrq.resp.connection import Handed, RespConnection
from walrq.resp.host import Follow, Rewrite

if TYPE_CHECKING:
    import socket

    from walrq.daemon.supervisor import Node

log = logging.getLogger("walrq.resp")

# Answers that nobody waits for: leases settled because their reply has been sent.
_NOBODY: Final = 0


class RespDoor:
    """What the connections of the door have in common. Their `resp.host.Host`.

    Attributes:
        ports: the connections there are.
    """

    def __init__(self, node: Node, gate: Gate) -> None:
        self.node = node
        self.gate = gate
        self.broker = node.broker
        self.version = __version__
        self.name = node.node_id
        self.ports: set[RespPort] = set()
        self._count = 0
        self._doorman = node.doorman
        self._cursors: OrderedDict[int, str] = OrderedDict()
        self._last_cursor = 0
        self.feed = Feed(node.broker)
        self.merger = Merger(gate.submit, node.broker.undo, gate.give_back, self._log_is_busy)
        self._rewrites: deque[Callable[[api.Reply], None]] = deque()
        self._rewrite_wanted = trio.Event()
        self._left = trio.Event()

    # --- the host of its connections ------------------------------------------------------------------------
    @property
    def has_password(self) -> bool:
        """Whether one is asked for."""
        return self._doorman.is_locked

    def admits(self, user: bytes | None, password: bytes, peer: str) -> Guard | None:
        """Who says these words."""
        name = None if user is None else user.decode(errors="replace")
        try:
            principal = self._doorman.identify(password, name, peer, "resp")
        except Unauthenticated:
            return None
        return self._doorman.guard(principal, peer, "resp")

    def cursor(self, after: str) -> int:
        """A number for the place behind the queue `after`."""
        self._last_cursor += 1
        self._cursors[self._last_cursor] = after
        if len(self._cursors) > RESP_CURSORS_MAX:
            self._cursors.popitem(last=False)
        return self._last_cursor

    def place(self, cursor: int) -> str | None:
        """The queue a cursor was given for."""
        return self._cursors.get(cursor)

    def _log_is_busy(self) -> bool:
        return self.node.driver.is_writing and self.gate.leads

    def written(self) -> None:
        """The log has been written: what waited for that goes into it."""
        if not self.merger.is_empty:
            self.merger.flush()
            self.broker.flush()

    # --- connections ----------------------------------------------------------------------------------------
    def opened(self, port: RespPort) -> int:
        """Count a connection in; its number."""
        self.ports.add(port)
        self.gate.opened(port)
        self._count += 1
        return self._count

    def closed(self, port: RespPort) -> None:
        """It is gone."""
        self.ports.discard(port)
        self.feed.leave(port)
        if not self.ports:
            self._left.set()

    async def leave(self) -> None:
        """Return when every connection is gone: they end as soon as what is in flight is answered."""
        for port in list(self.ports):
            port.end()
        self.broker.flush()
        while self.ports:
            self._left = trio.Event()
            await self._left.wait()

    # --- what is no queue's ---------------------------------------------------------------------------------
    def rewrite(self, then: Callable[[api.Reply], None]) -> None:
        """Snapshot and reclaim, then `then(reply)`."""
        self._rewrites.append(then)
        self._rewrite_wanted.set()

    async def run(self) -> None:
        """Write the snapshots that are asked for, one for all that ask meanwhile."""
        while True:
            await self._rewrite_wanted.wait()
            self._rewrite_wanted = trio.Event()
            asked, self._rewrites = self._rewrites, deque()
            reply: api.Reply
            try:
                reply = await self._snapshot()
            except WalrqError as error:
                reply = to_failed(error)
            for then in asked:
                then(reply)
            self.broker.flush()

    async def _snapshot(self) -> api.Reply:
        if not await self.node.compactor.snapshot():
            raise NotReady("AOF rewrite failed: there is no room on the disk for a snapshot", retry_after_ms=1_000)
        items = 0
        after = ""
        while True:
            page = self.gate.look(api.ListQueues("", after, _PAGE))
            items += sum(queue.ready + queue.delayed + queue.leased + queue.parked for queue in page.queues)
            after = page.next
            if not after:
                return api.Done(items)
            await trio.lowlevel.checkpoint()


_PAGE: Final = 1_000


class RespPort(Outgoing):
    """See the module. What fronts carry and the broker answers.

    Attributes:
        peer: the other end's address, for logs.
        waiting: its parked polls.
        bytes_in_flight: of requests not answered yet.
        group: the last of the door's merged requests that has something of this connection.
        partial: bytes held of commands that are not complete or have not begun.
    """

    __slots__ = (
        "_again",
        "_connection",
        "_door",
        "_guards",
        "_in_flight",
        "_on_output",
        "_partial_since_ms",
        "_since",
        "_submitting",
        "bytes_in_flight",
        "client_ended",
        "ending",
        "group",
        "open",
        "partial",
        "peer",
        "waiting",
        "watched",
    )

    session: Final = None

    def __init__(self, door: RespDoor, peer: str, now_ms: int, on_output: Callable[[Any], None]) -> None:
        super().__init__()
        self._door = door
        self._on_output = on_output
        self.peer = peer
        self.open = True
        self.ending = False
        self.client_ended = False
        self.watched = True
        self.waiting: set[PollCall] = set()
        self.bytes_in_flight = 0
        self.group = 0
        self.partial = 0
        self._in_flight = 0
        # When polls that may wait were submitted, and which requests have been turned away once.
        self._since: dict[int, int] = {}
        self._again: set[int] = set()
        self._partial_since_ms: int | None = None
        self._submitting = False
        number = door.opened(self)
        self._connection = RespConnection(door, number, COMMANDS, peer)
        # Who is to be told that a request is answered: of connections that are asked who they are.
        self._guards: dict[int, Guard] = {}

    # --- the broker's side --------------------------------------------------------------------------------
    @property
    def takes_leases(self) -> bool:
        """False once the client has closed its side."""
        return self._connection.takes_leases

    @takes_leases.setter
    def takes_leases(self, takes: bool) -> None:
        self._connection.takes_leases = takes

    @property
    def congested(self) -> bool:
        """Unsent replies are at their bound."""
        return self.unsent + self._connection.output_bytes > SEND_BUFFER_BYTES_MAX

    def reply(self, id: int, reply: api.Reply, size: int) -> None:
        """The answer to request `id`."""
        self._in_flight -= 1
        self.bytes_in_flight -= size
        if self._guards and id in self._guards:
            self._guards.pop(id).leave()
        if not self.open or id == _NOBODY:
            return
        if type(reply) is api.Failed and reply.code == Code.NOT_LEADER and id not in self._again:
            # It did not happen; whoever leads now is asked, through the gate.
            self._submit_again(id, size)
            return
        self._answered(id, reply, ())

    def reply_lease(self, id: int, reply: api.Polled, size: int, targets: Sequence[Target]) -> None:
        """The answer to a poll; what it leased goes back unless the kernel takes the reply whole."""
        self._in_flight -= 1
        self.bytes_in_flight -= size
        if self._guards and id in self._guards:
            self._guards.pop(id).leave()
        self._answered(id, reply, targets)

    def _answered(self, id: int, reply: Any, targets: Sequence[Target]) -> None:
        self._since.pop(id, None)
        self._again.discard(id)
        try:
            self._connection.answer(id, reply, targets)
        except Exception as error:
            # A mistake of ours in a reply ends this connection, not the one who answers.
            log.exception("reply_failed peer=%s: %s", self.peer, error)
            self.end()
        self._submit_all()
        self._on_output(self)

    # --- requests -----------------------------------------------------------------------------------------
    def _submit_all(self) -> None:
        """Submit what was asked; answers that come at once may ask for more."""
        if self._submitting:
            return
        self._submitting = True
        connection = self._connection
        try:
            while True:
                asks = connection.take_asks()
                if not asks:
                    return
                for ask in asks:
                    self._submit(ask.id, ask.request, ask.size)
        finally:
            self._submitting = False

    def _submit(self, id: int, request: Any, size: int) -> None:
        self._in_flight += 1
        self.bytes_in_flight += size
        kind = type(request)
        guard: Guard | None = self._connection.guard
        if guard is not None and id != _NOBODY:
            try:
                self._ask_guard(guard, id, request, size)
            except WalrqError as error:
                self.reply(id, to_failed(error), size)
                return
        if kind is Rewrite:
            self._door.rewrite(partial(self.reply, id, size=size))
        elif kind is Follow:
            self._door.feed.join(self)
            self.reply(id, api.Done(), size)
        else:
            merger = self._door.merger
            if merger.add(self, id, request, size):
                return
            if self.group > merger.flushed:
                # What this connection asked before goes first.
                merger.submit()
            if kind is api.Poll and request.wait_ms:
                self._since[id] = self._door.broker.now_ms()
            self._door.gate.submit(self, Incoming(id, None, None, request, size))

    def _ask_guard(self, guard: Guard, id: int, request: Any, size: int) -> None:
        """
        Raises:
            WalrqError: who logged in may not.
        """
        if type(request) is Rewrite:
            guard.require(api.Right.ADMIN, "*", "BGREWRITEAOF")
        elif type(request) is Follow:
            guard.require(api.Right.ADMIN, "*", "SYNC")
        else:
            guard.admit(request, size)
            self._guards[id] = guard

    @property
    def guard(self) -> Guard | None:
        """Who logged in; None where nobody is asked."""
        found: Guard | None = self._connection.guard
        return found

    def revoked(self, why: str) -> None:
        """Its password counts no more, or one is asked for from now on: whoever has not logged in yet may do so."""
        if self.guard is None and not self._connection.is_in:
            return
        self.go_away(Code.UNAUTHENTICATED, why)

    def _submit_again(self, id: int, size: int) -> None:
        request = self._connection.asked(id)
        assert request is not None
        self._again.add(id)
        since_ms = self._since.pop(id, None)
        if isinstance(request, api.Poll) and since_ms is not None:
            left_ms = max(0, request.wait_ms - (self._door.broker.now_ms() - since_ms))
            request = api.Poll(
                request.queues,
                request.max_messages,
                request.visibility_ms,
                left_ms,
                request.worker,
                request.numbered,
                request.into,
            )
        self._submit(id, request, size)

    # --- the front's side: bytes in -----------------------------------------------------------------------
    @property
    def reading(self) -> bool:
        """Whether more input is wanted."""
        connection = self._connection
        return (
            not self.ending
            and not connection.is_over
            and self._in_flight - len(self.waiting) < IN_FLIGHT_PER_CONNECTION_MAX
            and self.bytes_in_flight < IN_FLIGHT_BYTES_PER_CONNECTION_MAX
            and self.unsent + connection.output_bytes <= SEND_BUFFER_BYTES_MAX
            and not (connection.held and connection.held_bytes > RESP_HELD_BYTES_MAX)
        )

    def receive(self, data: bytes, now_ms: int) -> None:
        """Handle what the client sent."""
        self._door.broker.begin_turn()
        connection = self._connection
        connection.receive(data)
        self._submit_all()
        self.partial = partial = connection.partial
        if connection.held:
            self.partial += connection.held_bytes
        if partial:
            self._partial_since_ms = now_ms
        elif self._partial_since_ms is not None:
            self._partial_since_ms = None
        if connection.is_over or connection.broken is not None:
            if connection.broken is not None:
                log.info("connection_refused peer=%s: %s", self.peer, connection.broken[1:-2].decode(errors="replace"))
            self.ending = True
        self._on_output(self)

    def client_is_leaving(self) -> None:
        """The client has closed its side: nothing is leased to it any more."""
        self.takes_leases = False
        self._door.gate.closed(self)

    def receive_eof(self) -> None:
        """The client will send no more: what it sent is still carried out and answered, then it is over."""
        if not self.client_ended:
            self.client_ended = True
            self.end()

    def end(self) -> None:
        """Take no more input; what has come is carried out and answered, parked polls end, then it is over."""
        self.ending = True
        self.client_is_leaving()
        self._on_output(self)

    # --- the front's side: bytes out ----------------------------------------------------------------------
    def output(self) -> memoryview:
        """What to send now; the same bytes again until `sent` says that they left."""
        made = self._connection.take_output()
        if made:
            self._chunks.append(made)
            self.unsent += len(made)
        return self._next()

    def sent(self, count: int, now_ms: int) -> None:
        """The kernel took `count` bytes of what `output` gave."""
        was_congested = self.unsent > SEND_BUFFER_BYTES_MAX
        self._took(count, now_ms)
        leases = self._connection.leases
        if leases and leases[0][0] <= self._sent:
            self._handed_over()
        if was_congested and self.unsent <= SEND_BUFFER_BYTES_MAX and self.waiting:
            self._door.broker.polls.relieved(self)

    def _handed_over(self) -> None:
        """Replies with leases have left: those that were all their taker wanted are settled."""
        leases = self._connection.leases
        local: dict[str, list[Target]] = {}
        far: dict[str, list[api.Item]] = {}
        while leases and leases[0][0] <= self._sent:
            handed = leases.popleft()[1]
            if not handed.for_good:
                continue
            runs = handed.polled.runs
            if handed.targets:
                # All runs of a poll are of one queue.
                local.setdefault(runs[0].queue, []).extend(handed.targets)
            else:
                far.setdefault(runs[0].queue, []).extend([api.Item(run.receipt) for run in runs if not run.lost])
        for queue, targets in local.items():
            self._door.broker.take_for_good(queue, targets)
        for queue, items in far.items():
            self._submit(_NOBODY, api.Settle(queue, api.SettleKind.ACK, tuple(items)), 0)

    @property
    def finished(self) -> bool:
        """Everything is said and sent: the front closes the stream."""
        return self.ending and not self.unsent and not self._rest and (not self.open or self._is_answered)

    @property
    def _is_answered(self) -> bool:
        connection = self._connection
        return connection.is_idle and not connection.output_bytes

    def go_away(self, code: Code, text: str) -> None:
        """Take no further requests; a client that did something wrong is told what."""
        if code is not Code.DRAINING and self.open and not self._connection.is_over:
            self._connection.is_over = True
            self._connection.say(writing.error(text))
        self.end()

    def lost(self) -> None:
        """The stream is closed or broken. Leases in replies that never left are given back."""
        if not self.open:
            return
        self.ending = True
        self.open = False
        connection = self._connection
        connection.takes_leases = False
        connection.is_over = True
        door = self._door
        door.gate.closed(self)
        door.closed(self)
        for _, handed in connection.leases:
            self._undo(handed)
        for handed in connection.unsent_leases():
            self._undo(handed)
        connection.leases.clear()
        self._drop()

    def _undo(self, handed: Handed) -> None:
        if handed.targets:
            self._door.broker.undo(handed.targets)
        else:
            self._door.gate.give_back(handed.polled)

    # --- the feed -----------------------------------------------------------------------------------------
    def feed(self, frames: bytes) -> None:
        """Tell a reader what was decided."""
        self._connection.push_out(frames)
        behind = self.unsent + self._connection.output_bytes
        if behind > RESP_FEED_BYTES_MAX:
            self.cut(f"it is {behind} bytes behind what was decided")
        self._on_output(self)

    def cut(self, why: str) -> None:
        """End it where it stands, in the middle of a frame perhaps: what follows could not be told any more."""
        log.warning("feed_cut peer=%s: %s", self.peer, why)
        self.lost()
        self._connection.take_output()
        self._on_output(self)

    # --- time-outs ----------------------------------------------------------------------------------------
    @property
    def has_deadline(self) -> bool:
        """Whether it runs against a time-out now."""
        return self._partial_since_ms is not None or self._stalled_since_ms is not None

    def overdue(self, now_ms: int) -> str | None:
        """Why it must be closed now, or None: a command that never ends, replies that nobody reads."""
        if self._partial_since_ms is not None and now_ms - self._partial_since_ms >= FRAME_STALL_S_MAX * 1000:
            return f"a command was begun and not finished within {FRAME_STALL_S_MAX:g} s"
        if self._stalled_since_ms is not None and now_ms - self._stalled_since_ms >= SEND_STALL_S_MAX * 1000:
            return f"{self.unsent} bytes of replies were not read for {SEND_STALL_S_MAX:g} s"
        return None


class SocketPort(RespPort):
    """A port and its socket, on the reactor."""

    __slots__ = ("events", "fd", "lingers_until_ms", "sock")

    sock: socket.socket
    fd: int
    events: int
    lingers_until_ms: int


class StreamPort(RespPort):
    """A port and the events of its tasks, on a stream front."""

    __slots__ = ("hurry", "may_read", "outgoing", "sending")

    def __init__(self, door: RespDoor, peer: str, now_ms: int, on_output: Callable[[Any], None]) -> None:
        self.may_read = trio.Event()
        self.outgoing = trio.Event()
        self.sending = False
        self.hurry = trio.Event()
        super().__init__(door, peer, now_ms, on_output)


class RespFront(StreamFront):
    """The front for streams (TLS, systems without epoll)."""

    def __init__(self, door: RespDoor) -> None:
        node = door.node
        super().__init__(node.broker, node.clock, node.welcome)
        self._door = door

    def make(self, stream: trio.abc.Stream, peer: str) -> Served:
        """The connection object for `stream`."""
        return StreamPort(self._door, peer, self._clock.monotonic_ms(), self._dirty.add)
