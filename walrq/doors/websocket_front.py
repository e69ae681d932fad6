"""The connections of the WebSocket door: the native connection object over messages, in either language.

    walrq.cbor.v1   a native client in another coat: sent to the leader by a node that does not lead, as on the native
                    port
    walrq.json.v1   the same requests as JSON; what a node that does not lead is asked goes through the gate to the
                    leader, and requests of a session over a link of that session (`session_link.py`)

Everything else is `stream_front.py`'s: back-pressure, time-outs, leases that go back when their reply did not leave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import trio

from walrq import api
from walrq.daemon.broker import Broker
from walrq.daemon.clock import Clock
from walrq.daemon.connection import Connection
from walrq.daemon.stream_front import StreamConnection, StreamFront
from walrq.doors.gate import LOCAL, Gate
from walrq.doors.session_link import SessionLink
from walrq.doors.websocket_stream import WebSocketStream, close_code
from walrq.errors import Code, NotReady, WalrqError
from walrq.limits import FRAME_STALL_S_MAX, WS_PING_S
from walrq.protocol.handshake import Hello, Welcome
from walrq.protocol.json_server import JsonServerConnection
from walrq.protocol.requests import Incoming
from walrq.protocol.server import ServerConnection
from walrq.queues.commands import Target

Judge = Callable[[Hello], Welcome | api.Failed]

# How often the door looks at all of its connections.
SWEEP_S = WS_PING_S / 4
_QUIET_SWEEPS = 4
_STALLED_SWEEPS = int(FRAME_STALL_S_MAX / SWEEP_S)


class WebSocketConnection(StreamConnection):
    """A native connection whose end has a code."""

    __slots__ = ("_stream",)

    door = "ws"

    def __init__(self, broker: Broker, welcome: Judge, *, stream: WebSocketStream, **more: Any) -> None:
        self._stream = stream
        super().__init__(broker, welcome, **more)

    def go_away(self, code: Code, text: str) -> None:
        """Tell the client that no further requests are taken."""
        self._stream.part_with(close_code(code), text)
        super().go_away(code, text)

    def _end(self, error: WalrqError | None) -> None:
        if error is not None:
            self._stream.part_with(close_code(error.code), error.text)
        super()._end(error)


class JsonConnection(WebSocketConnection):
    """A connection that is answered on any node."""

    __slots__ = ("_gate", "_link", "_link_to")

    def __init__(
        self,
        broker: Broker,
        welcome: Judge,
        *,
        gate: Gate,
        link_to: Callable[[JsonConnection], SessionLink],
        **more: Any,
    ) -> None:
        self._gate = gate
        self._link_to = link_to
        self._link: SessionLink | None = None
        super().__init__(broker, welcome, protocol=JsonServerConnection, **more)
        self._submit = self._take

    def _take(self, port: Connection, incoming: Incoming) -> None:
        gate = self._gate
        kind = type(incoming.request)
        in_session = incoming.sequence is not None or kind is api.OpenSession or kind is api.CloseSession
        if in_session and not gate.leads and kind not in LOCAL:
            if self._link is None or self._link.over:
                self._link = self._link_to(self)
            self._link.submit(incoming)
        else:
            gate.submit(port, incoming)

    def reply(self, id: int, reply: api.Reply, size: int) -> None:
        """Answer request `id`. Where another node leads is no news to a client that may ask any node."""
        if type(reply) is api.Failed and reply.code == Code.NOT_LEADER:
            error = NotReady("the leader changes at the moment, ask again", retry_after_ms=100)
            reply = api.Failed(int(error.code), error.text, dict(error.details))
        super().reply(id, reply, size)

    def reply_lease(self, id: int, reply: api.Polled, size: int, targets: Sequence[Target]) -> None:
        """Answer a poll that has no session."""
        # On whatever node it was leased, the gate knows how to give it back.
        super().reply_lease(id, reply, size, (reply,))  # type: ignore[arg-type]  # `_undo` gets it as it is

    def _undo(self, targets: Sequence[Any]) -> None:
        for polled in targets:
            self._gate.give_back(polled)

    def _stop_waiting(self) -> None:
        super()._stop_waiting()
        self._gate.closed(self)
        if self._link is not None:
            self._link.stop_waiting()

    def _ended(self) -> None:
        self._gate.closed(self)
        if self._link is not None:
            self._link.close()


class WebSocketFront(StreamFront):
    """The connections of one language of the door."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        welcome: Judge,
        *,
        gate: Gate | None = None,
        link_to: Callable[[JsonConnection], SessionLink] | None = None,
    ) -> None:
        """With a `gate` it speaks JSON, without one CBOR."""
        super().__init__(broker, clock, welcome)
        self._gate = gate
        self._link_to = link_to
        self._streams: dict[WebSocketStream, _Watched] = {}
        self._empty = trio.Event()

    def make(self, stream: trio.abc.Stream, peer: str) -> StreamConnection:
        """The connection object for `stream`."""
        assert isinstance(stream, WebSocketStream)
        shared: dict[str, Any] = {
            "peer": peer,
            "now_ms": self._clock.monotonic_ms(),
            "on_output": self._dirty.add,
            "stream": stream,
        }
        if self._gate is None:
            return WebSocketConnection(self._broker, self._welcome, protocol=ServerConnection, **shared)
        assert self._link_to is not None
        return JsonConnection(self._broker, self._welcome, gate=self._gate, link_to=self._link_to, **shared)

    async def serve(self, stream: trio.abc.Stream, peer: str) -> None:
        """Serve one connection to its end, then close `stream`."""
        assert isinstance(stream, WebSocketStream)
        self._streams[stream] = _Watched()
        try:
            await super().serve(stream, peer)
        finally:
            del self._streams[stream]
            if not self._streams:
                self._empty.set()

    async def wait_empty(self) -> None:
        """Return when there is no connection."""
        while self._streams:
            self._empty = trio.Event()
            await self._empty.wait()

    async def sweep(self) -> None:
        """Ping who is silent; close who stays so, and who never finishes a message. One task for all."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(SWEEP_S)
                for stream, watched in self._streams.items():
                    said = watched.look(stream)
                    if said == "":
                        nursery.start_soon(_ping, stream)
                    elif said is not None:
                        nursery.start_soon(stream.close, close_code(Code.REPLY_TIMEOUT), said)

    def end_all(self) -> None:
        """Take no more input: what is in flight is answered, then each connection is over."""
        for connection in list(self._served):
            connection.end()
        self.flush()


async def _ping(stream: WebSocketStream) -> None:
    try:
        await stream.ping()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return  # its reader sees the same


class _Watched:
    """What the sweep remembers of one connection."""

    __slots__ = ("_heard", "_messages", "_quiet", "_stalled")

    def __init__(self) -> None:
        self._heard = 0
        self._messages = 0
        self._quiet = 0
        self._stalled = 0

    def look(self, stream: WebSocketStream) -> str | None:
        """None: all is well. "": ping it. Else: why to close it."""
        if stream.unfinished and stream.messages == self._messages:
            self._stalled += 1
            if self._stalled > _STALLED_SWEEPS:
                return f"a message was begun and not finished within {FRAME_STALL_S_MAX:g} s"
        else:
            self._messages = stream.messages
            self._stalled = 0
        if stream.heard != self._heard or not stream.listening:
            self._heard = stream.heard
            self._quiet = 0
            return None
        self._quiet += 1
        if self._quiet >= 2 * _QUIET_SWEEPS:
            return f"nothing was heard for {2 * WS_PING_S:g} s, no answer to a ping either"
        return "" if self._quiet == _QUIET_SWEEPS else None
