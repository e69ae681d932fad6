"""One native connection, whatever carries its bytes: requests to the broker, replies to whoever sends them.

The front that owns the bytes (`reactor.py`, `stream_front.py`) calls::

    connection.receive(data)     what came in
    connection.receive_eof()     the client will send no more
    connection.output()          what to send now; then connection.sent(n)
    connection.finished          everything is said: close
    connection.lost(error)       the bytes cannot be carried any more

and is called back through `on_output` when there is something to send.

Back-pressure: `reading` is False while too much is unanswered or unsent; the front then reads nothing, the
kernel's buffers fill, and the client is slowed by TCP. Parked polls do not count: they may wait for an hour.

Never: touches a socket, awaits, reads a clock (times are handed in).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from walrq import api
from walrq.daemon.broker import Broker
from walrq.daemon.outgoing import Outgoing
from walrq.daemon.pollers import PollCall, to_failed
from walrq.errors import Code, Overloaded, WalrqError
from walrq.limits import (
    FRAME_STALL_S_MAX,
    HANDSHAKE_TIMEOUT_S,
    IN_FLIGHT_BYTES_PER_CONNECTION_MAX,
    IN_FLIGHT_PER_CONNECTION_MAX,
    SEND_BUFFER_BYTES_MAX,
    SEND_STALL_S_MAX,
)
from walrq.locks.doorman import BEHALF, Doorman, Guard
from walrq.protocol.handshake import Hello, Welcome
from walrq.protocol.requests import Incoming
from walrq.protocol.server import Closed, HelloReceived, ServerConnection, ServerState
from walrq.queues.commands import Target

log = logging.getLogger("walrq.connection")


class Carried(Protocol):
    """What a front carries: a connection of whatever protocol, as seen from the side of its bytes. See the module."""

    peer: str
    ending: bool
    client_ended: bool
    watched: bool

    @property
    def takes_leases(self) -> bool: ...
    @takes_leases.setter
    def takes_leases(self, takes: bool) -> None: ...
    @property
    def waiting(self) -> set[PollCall]: ...
    @property
    def partial(self) -> int: ...
    @property
    def unsent(self) -> int: ...
    @property
    def reading(self) -> bool: ...
    @property
    def finished(self) -> bool: ...
    @property
    def has_deadline(self) -> bool: ...

    def receive(self, data: bytes, now_ms: int) -> None: ...
    def receive_eof(self) -> None: ...
    def end(self) -> None: ...
    def output(self) -> memoryview: ...
    def sent(self, count: int, now_ms: int) -> None: ...
    def go_away(self, code: Code, text: str) -> None: ...
    def client_is_leaving(self) -> None: ...
    def lost(self) -> None: ...
    def overdue(self, now_ms: int) -> str | None: ...


class Connection(Outgoing):
    """See the module. The broker's `Port`.

    Attributes:
        door: the name of its door, for logs.
        peer: the other end's address, for logs.
        guard: asked before each request; None where nobody is asked who he is.
        session: the session its requests belong to: the protocol's, kept here because every request asks.
        bytes_in_flight: frame bytes of requests not answered yet.
        partial: bytes held of a frame that is not complete yet.
    """

    __slots__ = (
        "_broker",
        "_deadline_ms",
        "_on_output",
        "_partial_since_ms",
        "_protocol",
        "_submit",
        "_undelivered",
        "_welcome",
        "bytes_in_flight",
        "client_ended",
        "ending",
        "guard",
        "open",
        "partial",
        "peer",
        "session",
        "takes_leases",
        "waiting",
        "watched",
    )

    door: ClassVar[str] = "cbor"

    def __init__(
        self,
        broker: Broker,
        welcome: Callable[[Hello], Welcome | api.Failed],
        *,
        peer: str,
        now_ms: int,
        on_output: Callable[[Connection], None],
        protocol: type[ServerConnection] = ServerConnection,
    ) -> None:
        """`protocol`: what its frames are written in."""
        super().__init__()
        self._protocol = protocol(welcome=self._judge)
        self._welcome = welcome
        self._broker = broker
        self._submit: Callable[[Connection, Incoming], None] = broker.submit
        self._on_output = on_output
        self.peer = peer
        # Who asks for it; None where nobody is asked who he is.
        self.guard: Guard | None = None
        self.session: int | None = None
        self.open = True
        self.takes_leases = True
        self.ending = False
        # The client has closed its side: nobody would notice that ours ends with a reset.
        self.client_ended = False
        self.waiting: set[PollCall] = set()
        self.bytes_in_flight = 0
        self.partial = 0
        # (position behind its last byte, leases) of poll replies without session that the kernel has not
        # taken yet.
        self._undelivered: deque[tuple[int, Sequence[Target]]] = deque()
        self._deadline_ms = now_ms + int(HANDSHAKE_TIMEOUT_S * 1000)
        self._partial_since_ms: int | None = None
        # The front's sweep looks at connections that run against a deadline only.
        self.watched = True
        broker.opened(self)

    def _judge(self, hello: Hello) -> Welcome | api.Failed:
        """Who says this Hello decides, once, whether his requests are looked at."""
        doorman: Doorman | None = self._broker.doorman
        if doorman is not None:
            try:
                self.guard = doorman.greet(hello.token, hello.features.get(BEHALF), self.peer, self.door)
            except WalrqError as error:
                return to_failed(error)
        return self._welcome(hello)

    def _submit_guarded(self, guard: Guard, incoming: Incoming) -> None:
        """A request of somebody who may not ask everything."""
        session = None if incoming.sequence is None else self.session
        try:
            guard.admit(incoming.request, incoming.size, session)
        except WalrqError as error:
            guard.enter()
            self.reply(incoming.id, to_failed(error), incoming.size)
        else:
            self._submit(self, incoming)

    def revoked(self, why: str) -> None:
        """Its token is gone: parked polls end, what else is in flight is answered, then it is over."""
        self.go_away(Code.UNAUTHENTICATED, why)
        self.end()

    # --- the broker's side --------------------------------------------------------------------------------
    @property
    def congested(self) -> bool:
        """Unsent replies are at their bound."""
        return self.unsent + self._protocol.output_bytes > SEND_BUFFER_BYTES_MAX

    def reply(self, id: int, reply: api.Reply, size: int) -> None:
        """Answer request `id`; its bytes leave when the front sends next."""
        self.bytes_in_flight -= size
        guard = self.guard
        if guard is not None:
            guard.leave()
        if self.open:
            # A mistake of ours in a reply ends this connection, not the one who answers.
            try:
                self._protocol.reply(id, reply)
            except Exception as error:
                log.exception("reply_failed peer=%s: %s", self.peer, error)
                self.end()
            if type(reply) is api.SessionOpened:
                self.session = self._protocol.session
            self._on_output(self)

    def reply_lease(self, id: int, reply: api.Polled, size: int, targets: Sequence[Target]) -> None:
        """Answer a poll that has no session; `targets` are undone unless the kernel takes the reply whole."""
        self.bytes_in_flight -= size
        if self.guard is not None:
            self.guard.leave()
        try:
            self._protocol.reply(id, reply)
        except Exception as error:
            log.exception("reply_failed peer=%s: %s", self.peer, error)
            self.end()
        self._collect()
        self._undelivered.append((self._sent + self.unsent, targets))
        self._on_output(self)

    # --- what a door of its own may do otherwise ------------------------------------------------------------
    def _stop_waiting(self) -> None:
        """Its parked polls end: nothing is leased for them any more."""
        self._broker.polls.drop_waiting(self)

    def _ended(self) -> None:
        """No reply can reach it any more."""
        self._broker.closed(self)

    def _undo(self, targets: Sequence[Target]) -> None:
        """Free what a poll reply that never left had leased."""
        self._broker.undo(targets)

    # --- the front's side: bytes in -----------------------------------------------------------------------
    @property
    def reading(self) -> bool:
        """Whether more input is wanted."""
        return (
            not self.ending
            and self._protocol.in_flight - len(self.waiting) < IN_FLIGHT_PER_CONNECTION_MAX
            and self.bytes_in_flight < IN_FLIGHT_BYTES_PER_CONNECTION_MAX
            # Replies wait in the protocol while a front waits for the kernel to take those before them.
            and not self.congested
        )

    def receive(self, data: bytes, now_ms: int) -> None:
        """Handle what the client sent."""
        self._broker.begin_turn()
        events = self._protocol.receive(data)
        submit = self._submit
        guard = self.guard
        self.partial = self._protocol.frames.partial
        for event in events:
            if type(event) is Incoming:
                self.bytes_in_flight += event.size
                if guard is None:
                    submit(self, event)
                else:
                    self._submit_guarded(guard, event)
            elif type(event) is HelloReceived:
                self.session = self._protocol.session
                self._deadline_ms = 0
                log.debug("connection_opened peer=%s client=%s", self.peer, event.hello.client)
            elif type(event) is Closed:
                self._end(event.error)
        if self.partial:
            if self._partial_since_ms is None or events:
                self._partial_since_ms = now_ms
        elif self._partial_since_ms is not None:
            self._partial_since_ms = None
        if events:
            self._on_output(self)

    def client_is_leaving(self) -> None:
        """The client has closed its side, perhaps behind input that is not read yet: nothing is leased to it."""
        self.takes_leases = False
        self._broker.polls.drop_waiting(self)

    def receive_eof(self) -> None:
        """The client will send no more: parked polls end, what else is in flight is answered, then it is
        over.
        """
        if self.ending:
            return
        self.client_ended = True
        self.end()
        if self.partial:
            log.info("connection_cut peer=%s bytes=%d: it ended inside a frame", self.peer, self.partial)

    def end(self) -> None:
        """Take no more input: parked polls end, what else is in flight is answered, then it is over."""
        self.ending = True
        self.takes_leases = False
        self._stop_waiting()
        self._on_output(self)

    def _end(self, error: WalrqError | None) -> None:
        """The protocol is over: nothing that is in flight can be answered any more."""
        self.ending = True
        self.takes_leases = False
        self.open = False
        if error is not None:
            log.info("connection_refused peer=%s code=%s: %s", self.peer, error.code.name, error.text)
        self._ended()

    # --- the front's side: bytes out ----------------------------------------------------------------------
    def _collect(self) -> None:
        output = self._protocol.take_output()
        if output:
            self._chunks.append(output)
            self.unsent += len(output)

    def output(self) -> memoryview:
        """What to send now; the same bytes again until `sent` says that they left."""
        self._collect()
        return self._next()

    def sent(self, count: int, now_ms: int) -> None:
        """The kernel took `count` bytes of what `output` gave."""
        was_congested = self.congested
        self._took(count, now_ms)
        undelivered = self._undelivered
        while undelivered and undelivered[0][0] <= self._sent:
            undelivered.popleft()
        if was_congested and self.waiting and not self.congested:
            self._broker.polls.relieved(self)

    @property
    def finished(self) -> bool:
        """Everything is said and sent: the front closes the stream."""
        return self.ending and not self.unsent and not self._rest and (not self.open or self._protocol.in_flight == 0)

    def go_away(self, code: Code, text: str) -> None:
        """Tell the client that no further requests are taken."""
        if self.open:
            self._protocol.send_goaway(code, text)
            if self._protocol.state is ServerState.CLOSED:
                self._end(None)
            self._on_output(self)

    def lost(self) -> None:
        """The stream is closed or broken. Leases in replies that never left are given back."""
        self.ending = True
        self.open = False
        self.takes_leases = False
        self._protocol.close()
        self._ended()
        undelivered = self._undelivered
        while undelivered:
            self._undo(undelivered.popleft()[1])
        self._drop()

    # --- time-outs ----------------------------------------------------------------------------------------
    @property
    def has_deadline(self) -> bool:
        """Whether it runs against a time-out now."""
        return bool(self._deadline_ms or self._partial_since_ms is not None or self._stalled_since_ms is not None)

    def overdue(self, now_ms: int) -> str | None:
        """Why it must be closed now, or None: no handshake, a frame that never ends, replies that nobody
        reads.
        """
        if self._deadline_ms and now_ms >= self._deadline_ms:
            return f"no Hello within {HANDSHAKE_TIMEOUT_S:g} s"
        if self._partial_since_ms is not None and now_ms - self._partial_since_ms >= FRAME_STALL_S_MAX * 1000:
            return f"a frame was begun and not finished within {FRAME_STALL_S_MAX:g} s"
        if self._stalled_since_ms is not None and now_ms - self._stalled_since_ms >= SEND_STALL_S_MAX * 1000:
            return f"{self.unsent} bytes of replies were not read for {SEND_STALL_S_MAX:g} s"
        return None


def input_overload(partial_bytes: int, limit: int) -> Overloaded:
    """What a connection is told whose unfinished frame does not fit beside the others'."""
    return Overloaded(
        f"unfinished frames hold {partial_bytes} bytes in all, at most {limit} are kept",
        limit="IN_FLIGHT_BYTES_MAX",
        retry_after_ms=1_000,
    )
