"""The batched front for plain TCP: one task for all connections.

An epoll of its own holds all sockets; the task waits for that epoll's descriptor, and each wake-up drains
whatever is ready: ends of connections first (so that no lease is proposed for a client that is gone), then
input. Replies are gathered per connection and leave with one non-blocking send when the turn ends, or when
the driver resolved an entry. A connection costs no task, no cancel scope and no buffer while it is quiet.

Errors in one connection end that connection. Back-pressure and time-outs: `connection.py`; one sweep looks at
the connections that run against a deadline, and sleeps while there are none.
"""

from __future__ import annotations

import logging
import os
import select
import socket
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

import trio

from walrq import api
from walrq.daemon.broker import Broker
from walrq.daemon.clock import Clock
from walrq.daemon.connection import Carried, Connection, input_overload
from walrq.daemon.driver import Driver
from walrq.errors import Code
from walrq.limits import IN_FLIGHT_BYTES_MAX
from walrq.peers.mesh import Mesh
from walrq.protocol.handshake import Hello, Welcome

log = logging.getLogger("walrq.reactor")

# One read. Large enough for a batch of 100 x 100 bytes eight times over, small enough to be reused by the
# allocator.
_READ_BYTES: Final = 128 * 1024
# Reads of one connection per turn: a fast sender cannot keep the others waiting.
_READS_PER_TURN_MAX: Final = 4
_EVENTS_PER_TURN_MAX: Final = 512
_SWEEP_S: Final = 1.0
# A busy node stays with its own epoll, up to the first number of milliseconds, and waits there for the next event
# up to the second number of seconds: answers to a reply, and the disk, come sooner than that. A round of Trio's loop
# costs as much as a small request; everybody else's tasks wait this long at most. Links with TLS are read by tasks, so
# with those it does not wait.
_STAY_MS: Final = 2
_LINGER_S: Final = 0.001
_LINGER_MS: Final = 1_000

_ENDED: Final = select.EPOLLHUP | select.EPOLLERR if hasattr(select, "EPOLLHUP") else 0
_IN: Final = select.EPOLLIN | select.EPOLLRDHUP if hasattr(select, "EPOLLIN") else 0
_OUT: Final = select.EPOLLOUT if hasattr(select, "EPOLLOUT") else 0
_RDHUP: Final = select.EPOLLRDHUP if hasattr(select, "EPOLLRDHUP") else 0

AVAILABLE: Final = hasattr(select, "epoll") and hasattr(os, "eventfd")
"""Whether this system has epoll and eventfd; `stream_front.py` serves where it has not."""


class Peer(Carried, Protocol):
    """A connection and its socket.

    Attributes:
        lingers_until_ms: everything is said, and what the client still sends is thrown away until it reads that; 0 =
            not yet.
    """

    sock: socket.socket
    fd: int
    events: int
    lingers_until_ms: int


class _Native(Connection):
    """A connection of the native protocol and its socket."""

    __slots__ = ("events", "fd", "lingers_until_ms", "sock")

    sock: socket.socket
    fd: int
    events: int
    lingers_until_ms: int


Make: TypeAlias = Callable[[str, int, Callable[[Any], None]], Peer]
"""(the other end's address, the monotonic clock, whom to tell that there is something to send) -> its connection."""


class Reactor:
    """See the module."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        welcome: Callable[[Hello], Welcome | api.Failed],
        driver: Driver,
        mesh: Mesh | None = None,
        lingers: bool = True,
    ) -> None:
        """
        Args:
            mesh: the links to other nodes, whose answers must not wait for this loop to come round to Trio.
            lingers: wait for a moment for what comes next; not where others' tasks bring it.
        """
        self._broker = broker
        self._clock = clock
        self._welcome = welcome
        self._driver = driver
        # The persist thread's, while there is one to hear it.
        self._bell = -1
        self._mesh = mesh
        self._linger_s = _LINGER_S if lingers else 0.0
        # That of all incoming links, while they are read here.
        self._links = -1
        self._epoll = select.epoll()
        self._peers: dict[int, Peer] = {}
        self._dirty: dict[Peer, None] = {}
        # Called before what has gathered is sent: doors submit there what their connections asked in this turn.
        self.before_flush: list[Callable[[], None]] = []
        self._watched: set[Peer] = set()
        self._watch = trio.Event()
        self._room = trio.Event()
        self._sent = trio.Event()
        self._last_input_ms = 0
        broker.on_flush.append(self.flush)

    def __len__(self) -> int:
        return len(self._peers)

    def _native(self, peer: str, now_ms: int, on_output: Callable[[Any], None]) -> Peer:
        return _Native(self._broker, self._welcome, peer=peer, now_ms=now_ms, on_output=on_output)

    def add(self, sock: socket.socket, peer: str, make: Make | None = None) -> None:
        """Serve a connected socket; it is the reactor's from now on. `make`: of another protocol than the native one.

        Raises:
            OSError: the epoll takes no more; the socket is still the caller's.
        """
        sock.setblocking(False)
        self._epoll.register(sock.fileno(), _IN)
        connection = (make or self._native)(peer, self._clock.monotonic_ms(), self._mark)
        connection.sock = sock
        connection.fd = sock.fileno()
        connection.events = _IN
        connection.lingers_until_ms = 0
        self._peers[connection.fd] = connection
        self._watched.add(connection)
        self._watch.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; then close every connection."""
        persister = self._driver.persister
        self._bell = persister.listen()
        self._epoll.register(self._bell, select.EPOLLIN)
        links = self._mesh.listen() if self._mesh is not None else None
        if links is not None:
            self._links = links
            self._epoll.register(links, select.EPOLLIN)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sweep)
                task_status.started()
                await self._serve()
        finally:
            persister.stop_listening()
            if self._mesh is not None:
                self._mesh.stop_listening()
            for peer in list(self._peers.values()):
                self._close(peer)
            self._epoll.close()

    async def _serve(self) -> None:
        epoll = self._epoll
        while True:
            await trio.lowlevel.wait_readable(epoll.fileno())
            ready = epoll.poll(0, _EVENTS_PER_TURN_MAX)
            stays_until_ms = self._clock.monotonic_ms() + _STAY_MS
            while ready:
                self._work(ready)
                if self._broker.saturated:
                    await self._wait_for_room()
                if self._clock.monotonic_ms() >= stays_until_ms:
                    break
                ready = epoll.poll(self._linger_s, _EVENTS_PER_TURN_MAX)

    def _work(self, ready: list[tuple[int, int]]) -> None:
        """One turn: read what has come, answer what the disk has written, begin what was proposed meanwhile."""
        driver = self._driver
        rung = linked = False
        for fd, _ in ready:
            if fd == self._bell:
                rung = True
            elif fd == self._links:
                linked = True
        driver.hold()
        try:
            if len(ready) > rung + linked:
                self._turn(ready)
            if linked and self._mesh is not None:
                self._mesh.receive_ready()
            if rung:
                os.eventfd_read(self._bell)
                driver.persister.deliver()
            self.flush()
        finally:
            driver.go()

    async def _wait_for_room(self) -> None:
        """No client is read until the disk has caught up; replies still leave, by the driver's flush.

        The disk, and the peers, without whom nothing is decided, are heard by tasks meanwhile.
        """
        persister = self._driver.persister
        persister.stop_listening()
        if self._mesh is not None:
            self._mesh.stop_listening()
        while self._broker.saturated:
            self._room = trio.Event()
            await self._room.wait()
        persister.listen()
        if self._mesh is not None:
            self._mesh.listen()

    def _turn(self, ready: list[tuple[int, int]]) -> None:
        peers = self._peers
        now_ms = self._clock.monotonic_ms()
        self._last_input_ms = now_ms
        input_ready = []
        for fd, events in ready:
            peer = peers.get(fd)
            if peer is None:
                continue
            if events & _ENDED:
                self._close(peer)
                continue
            if events & _RDHUP:
                peer.client_is_leaving()
            if events & _OUT:
                self._dirty[peer] = None
            if events & _IN:
                input_ready.append(peer)
        for peer in input_ready:
            if peer.lingers_until_ms:
                self._discard(peer)
            elif peer.fd in peers:
                self._read(peer, now_ms)

    def _read(self, peer: Peer, now_ms: int) -> None:
        try:
            for _ in range(_READS_PER_TURN_MAX):
                if not peer.reading:
                    break
                data = peer.sock.recv(_READ_BYTES)
                if not data:
                    peer.receive_eof()
                    break
                before = peer.partial
                peer.receive(data, now_ms)
                if peer.partial > before:
                    self._bound_partial(peer, peer.partial - before)
                if len(data) < _READ_BYTES:
                    break
        except BlockingIOError:
            pass
        except OSError as error:
            log.debug("connection_lost peer=%s: %s", peer.peer, error)
            self._close(peer)
            return
        except Exception as error:
            # The barrier: a mistake of ours in one connection ends that connection only.
            log.exception("connection_failed peer=%s: %s", peer.peer, error)
            self._close(peer)
            return
        self._dirty[peer] = None

    def _bound_partial(self, peer: Peer, grown: int) -> None:
        """Unfinished frames of all connections together stay bounded: who outgrows the bound is sent away."""
        if peer.partial < _READ_BYTES:
            return
        held = sum(each.partial for each in self._peers.values())
        if held > IN_FLIGHT_BYTES_MAX:
            error = input_overload(held, IN_FLIGHT_BYTES_MAX)
            log.warning("connection_refused peer=%s code=%s: %s", peer.peer, error.code.name, error.text)
            peer.go_away(error.code, error.text)
            peer.end()

    def _mark(self, peer: Peer) -> None:
        self._dirty[peer] = None

    def flush(self) -> None:
        """Send what has gathered, one send per connection; re-arm what each connection waits for."""
        for each in self.before_flush:
            each()
        dirty = self._dirty
        if dirty:
            self._dirty = {}
            now_ms = self._clock.monotonic_ms()
            for peer in dirty:
                if peer.fd in self._peers and self._peers[peer.fd] is peer:
                    try:
                        self._send(peer, now_ms)
                    except OSError as error:
                        log.debug("connection_lost peer=%s: %s", peer.peer, error)
                        self._close(peer)
                    except Exception as error:
                        log.exception("connection_failed peer=%s: %s", peer.peer, error)
                        self._close(peer)
            self._sent.set()
        if not self._room.is_set() and not self._broker.saturated:
            self._room.set()

    def _send(self, peer: Peer, now_ms: int) -> None:
        output = peer.output()
        if output:
            try:
                count = peer.sock.send(output)
            except BlockingIOError:
                count = 0
            peer.sent(count, now_ms)
        if peer.lingers_until_ms:
            return
        if peer.finished:
            self._finish(peer, now_ms)
            return
        # While nothing is read the client's leaving is still noticed, once: nothing must be leased to it.
        events = (_IN if peer.reading else _RDHUP if peer.takes_leases else 0) | (_OUT if peer.unsent else 0)
        if events != peer.events:
            peer.events = events
            self._epoll.modify(peer.fd, events)
        if not peer.watched and peer.has_deadline:
            peer.watched = True
            self._watched.add(peer)
            self._watch.set()

    def _finish(self, peer: Peer, now_ms: int) -> None:
        """Everything is said. Closing while the client still sends would reset the connection, and it would
        never read why it was sent away; so its input is thrown away for a moment.
        """
        if peer.client_ended:
            self._close(peer)
            return
        peer.sock.shutdown(socket.SHUT_WR)
        peer.lingers_until_ms = now_ms + _LINGER_MS
        peer.lost()
        if peer.events != _IN:
            peer.events = _IN
            self._epoll.modify(peer.fd, _IN)
        self._watched.add(peer)
        self._watch.set()

    def _discard(self, peer: Peer) -> None:
        try:
            for _ in range(_READS_PER_TURN_MAX):
                if not peer.sock.recv(_READ_BYTES):
                    self._close(peer)
                    return
        except BlockingIOError:
            pass
        except OSError as error:
            log.debug("connection_lost peer=%s: %s", peer.peer, error)
            self._close(peer)

    def _close(self, peer: Peer) -> None:
        if self._peers.pop(peer.fd, None) is None:
            return
        self._watched.discard(peer)
        self._epoll.unregister(peer.fd)
        peer.sock.close()
        peer.lost()

    async def _sweep(self) -> None:
        """Close what is overdue, once per second while anything runs against a deadline."""
        while True:
            if not self._watched:
                self._watch = trio.Event()
                await self._watch.wait()
            await trio.sleep(_SWEEP_S)
            now_ms = self._clock.monotonic_ms()
            for peer in list(self._watched):
                if peer.lingers_until_ms:
                    if now_ms >= peer.lingers_until_ms:
                        self._close(peer)
                    continue
                reason = peer.overdue(now_ms)
                if reason is not None:
                    log.info("connection_timed_out peer=%s: %s", peer.peer, reason)
                    peer.go_away(Code.REPLY_TIMEOUT, reason)
                    self._send_last(peer)
                    self._close(peer)
                elif not peer.has_deadline:
                    peer.watched = False
                    self._watched.discard(peer)

    def _send_last(self, peer: Peer) -> None:
        try:
            output = peer.output()
            if output:
                peer.sent(peer.sock.send(output), self._clock.monotonic_ms())
        except OSError as error:
            log.debug("connection_lost peer=%s: %s", peer.peer, error)

    def go_away(self, code: Code, text: str) -> None:
        """Tell every client that no further requests are taken."""
        for peer in list(self._peers.values()):
            peer.go_away(code, text)
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
        while any(peer.unsent for peer in self._peers.values()):
            self._sent = trio.Event()
            await self._sent.wait()
