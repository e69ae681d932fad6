"""The front for any Trio stream, two tasks for each: TLS, memory streams in tests, systems without epoll.

The same `connection.py` as under the reactor, driven by a reader and a writer. An error in one connection is
caught here, once, and ends that connection only.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias

import trio

from walrq import api
from walrq.daemon.broker import Broker
from walrq.daemon.clock import Clock
from walrq.daemon.connection import Carried, Connection, input_overload
from walrq.errors import Code
from walrq.limits import IN_FLIGHT_BYTES_MAX
from walrq.protocol.handshake import Hello, Welcome
from walrq.protocol.server import ServerConnection

log = logging.getLogger("walrq.stream_front")

_READ_BYTES: Final = 128 * 1024
_SWEEP_S: Final = 1.0
# Goodbye frames of a connection that is over.
_LAST_SEND_S: Final = 1.0


Shake: TypeAlias = Callable[[trio.SocketStream], Awaitable[trio.abc.Stream | None]]


class Served(Carried, Protocol):
    """A connection of whatever protocol, and the events its tasks sleep on.

    Attributes:
        sending: output is on its way.
        hurry: set when it begins to run against a deadline.
    """

    may_read: trio.Event
    outgoing: trio.Event
    sending: bool
    hurry: trio.Event


class StreamConnection(Connection):
    """A connection and the events its two tasks sleep on."""

    __slots__ = ("hurry", "may_read", "outgoing", "sending")

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
        super().__init__(broker, welcome, peer=peer, now_ms=now_ms, on_output=on_output, protocol=protocol)
        self.may_read = trio.Event()
        self.outgoing = trio.Event()
        self.sending = False
        # Set when it begins to run against a deadline.
        self.hurry = trio.Event()


class StreamFront:
    """See the module. Doors with streams of their own are made of it: `make` gives another kind of connection."""

    def __init__(self, broker: Broker, clock: Clock, welcome: Callable[[Hello], Welcome | api.Failed]) -> None:
        self._broker = broker
        self._clock = clock
        self._welcome = welcome
        self._served: set[Served] = set()
        # As the reactor's.
        self.before_flush: list[Callable[[], None]] = []
        self._dirty: set[Served] = set()
        self._room = trio.Event()
        self._sent = trio.Event()
        self._last_input_ms = 0
        self._nursery: trio.Nursery | None = None
        # What comes before anything else on a stream, TLS: another stream, or None when nothing came of it.
        self.shake: Shake | None = None
        self._shaking = 0
        broker.on_flush.append(self.flush)

    def __len__(self) -> int:
        return len(self._served) + self._shaking

    def add(self, stream: trio.abc.Stream, peer: str) -> None:
        """Serve a connected stream in the front's own nursery; `run` must be running."""
        assert self._nursery is not None, "run() first"
        if self.shake is None:
            self._nursery.start_soon(self.serve, stream, peer)
        else:
            assert isinstance(stream, trio.SocketStream)
            self._nursery.start_soon(self._shake_and_serve, stream, peer, self.shake)

    async def _shake_and_serve(self, stream: trio.SocketStream, peer: str, shake: Shake) -> None:
        self._shaking += 1
        try:
            shaken = await shake(stream)
        finally:
            self._shaking -= 1
        if shaken is None:
            log.info("connection_refused peer=%s: no TLS handshake", peer)
        else:
            await self.serve(shaken, peer)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve what `add` brings, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    def make(self, stream: trio.abc.Stream, peer: str) -> Served:
        """The connection object for `stream`."""
        return StreamConnection(
            self._broker,
            self._welcome,
            peer=peer,
            now_ms=self._clock.monotonic_ms(),
            on_output=self._dirty.add,  # type: ignore[arg-type]  # called with this very connection
        )

    async def serve(self, stream: trio.abc.Stream, peer: str) -> None:
        """Serve one connection to its end, then close `stream`."""
        connection = self.make(stream, peer)
        self._served.add(connection)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, connection, stream)
                nursery.start_soon(self._watch, connection, stream)
                await self._write(connection, stream)
                nursery.cancel_scope.cancel()
            await self._linger(connection, stream)
        except* (trio.BrokenResourceError, trio.ClosedResourceError) as errors:
            log.debug("connection_lost peer=%s: %r", peer, errors.exceptions[0])
        except* Exception as errors:
            # The barrier: a mistake of ours in one connection ends that connection only.
            log.exception("connection_failed peer=%s: %s", peer, errors.exceptions[0])
        finally:
            self._served.discard(connection)
            self._dirty.discard(connection)
            connection.lost()
            self._sent.set()
            await trio.aclose_forcefully(stream)

    async def _linger(self, connection: Served, stream: trio.abc.Stream) -> None:
        """Everything is said. Closing while the client still sends may reset the connection, and it would
        never read why it was sent away; so its input is thrown away for a moment.
        """
        if connection.client_ended or not isinstance(stream, trio.abc.HalfCloseableStream):
            return
        connection.lost()
        with trio.move_on_after(_LAST_SEND_S):
            await stream.send_eof()
            while await stream.receive_some(_READ_BYTES):
                pass

    async def _read(self, connection: Served, stream: trio.abc.Stream) -> None:
        while not connection.ending:
            if not connection.reading:
                connection.may_read = trio.Event()
                await connection.may_read.wait()
                continue
            if self._broker.saturated:
                if self._room.is_set():
                    self._room = trio.Event()
                await self._room.wait()
                continue
            data = await stream.receive_some(_READ_BYTES)
            self._last_input_ms = self._clock.monotonic_ms()
            if data:
                before = connection.partial
                connection.receive(bytes(data), self._last_input_ms)
                if connection.partial > before:
                    self._bound_partial(connection)
            else:
                connection.receive_eof()
            self._dirty.add(connection)
            self.flush()
            if connection.has_deadline:
                connection.hurry.set()

    def _bound_partial(self, connection: Served) -> None:
        """Unfinished frames of all connections together stay bounded: who outgrows the bound is sent away."""
        if connection.partial < _READ_BYTES:
            return
        held = sum(each.partial for each in self._served)
        if held > IN_FLIGHT_BYTES_MAX:
            error = input_overload(held, IN_FLIGHT_BYTES_MAX)
            log.warning("connection_refused peer=%s code=%s: %s", connection.peer, error.code.name, error.text)
            connection.go_away(error.code, error.text)
            connection.end()

    async def _write(self, connection: Served, stream: trio.abc.Stream) -> None:
        while True:
            output = connection.output()
            if output:
                # Stalled from now on until it is taken; `sent` takes the mark off again.
                connection.sent(0, self._clock.monotonic_ms())
                connection.sending = True
                connection.hurry.set()
                await stream.send_all(output)
                connection.sending = False
                connection.sent(len(output), self._clock.monotonic_ms())
                self._sent.set()
                if connection.reading:
                    connection.may_read.set()
            elif connection.finished:
                return
            else:
                connection.outgoing = trio.Event()
                await connection.outgoing.wait()

    async def _watch(self, connection: Served, stream: trio.abc.Stream) -> None:
        """Close the connection once it is overdue; asleep while it runs against no deadline."""
        while True:
            if not connection.has_deadline:
                connection.hurry = trio.Event()
                await connection.hurry.wait()
            await trio.sleep(_SWEEP_S)
            reason = connection.overdue(self._clock.monotonic_ms())
            if reason is not None:
                log.info("connection_timed_out peer=%s: %s", connection.peer, reason)
                connection.go_away(Code.REPLY_TIMEOUT, reason)
                if not connection.sending:
                    with trio.move_on_after(_LAST_SEND_S):
                        await stream.send_all(connection.output())
                raise trio.BrokenResourceError(reason)

    def flush(self) -> None:
        """Let the writers of connections with new output run, and readers that have room again."""
        for each in self.before_flush:
            each()
        dirty = self._dirty
        if dirty:
            for connection in dirty:
                connection.outgoing.set()
                if connection.reading:
                    connection.may_read.set()
            dirty.clear()
        if not self._room.is_set() and not self._broker.saturated:
            self._room.set()

    def go_away(self, code: Code, text: str) -> None:
        """Tell every client that no further requests are taken."""
        for connection in list(self._served):
            connection.go_away(code, text)
        self.flush()

    async def wait_quiet(self, quiet_ms: int) -> None:
        """Return when no connection has brought input for `quiet_ms`; at once when there is none."""
        self._last_input_ms = self._clock.monotonic_ms()
        while len(self):
            left_ms = self._last_input_ms + quiet_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                return
            await trio.sleep(left_ms / 1000)

    async def wait_sent(self) -> None:
        """Return when the kernel has taken every reply."""
        while any(connection.unsent for connection in self._served):
            self._sent = trio.Event()
            await self._sent.wait()
