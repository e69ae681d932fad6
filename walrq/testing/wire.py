"""The network between a test's server and its clients: connections that are cut, refused, or lose an answer.

One `Wire` stands between the listener and the front; every socket passes through it. It counts what arrives and what
leaves: one *request* is one read of the server, one *reply* one send. A client that makes one call at a time has one of
each per call (and one of each for the greeting of a new connection).
"""

from __future__ import annotations

import random
import socket
import struct
import weakref
from collections.abc import Callable
from typing import Final

import attrs
import trio

from walrq.daemon.reactor import Reactor
from walrq.daemon.supervisor import Front

_READ_BYTES: Final = 128 * 1024
# Close with a reset instead of a goodbye.
_LINGER_NONE: Final = struct.pack("ii", 1, 0)


@attrs.define(eq=False)
class Chances:
    """A mixture of faults drawn from one seed, decision by decision.

    Attributes:
        lost_requests, lost_replies, crashes: the chance of each, per request or reply.
        draws: how many decisions were made.
    """

    draw: random.Random
    lost_requests: float
    lost_replies: float
    crashes: float
    draws: int = 0

    def of_request(self) -> str | None:
        """What happens to one request."""
        self.draws += 1
        return "lose request" if self.draw.random() < self.lost_requests else None

    def of_reply(self) -> str | None:
        """What happens to one reply."""
        self.draws += 1
        chance = self.draw.random()
        if chance < self.lost_replies:
            return "lose reply"
        return "crash" if chance < self.lost_replies + self.crashes else None


class Wire:
    """See the module. Used in the server's thread, apart from the plain attributes.

    Attributes:
        refusing: connections are reset as soon as they come.
        requests_until_loss, replies_until_loss: the n-th from now is lost and its connection cut; 0 = none.
        chances: a seeded mixture, or None.
    """

    def __init__(self, note: Callable[[str], None], crash: Callable[[], None]) -> None:
        """`note` keeps a line about each fault; `crash` ends the node at once."""
        self.refusing = False
        self.requests_until_loss = 0
        self.replies_until_loss = 0
        self.chances: Chances | None = None
        self._note = note
        self._crash = crash
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def heal(self) -> None:
        """From now on everything arrives."""
        self.refusing = False
        self.requests_until_loss = self.replies_until_loss = 0
        self.chances = None

    def cut(self) -> int:
        """End every connection, both directions, at once; how many there were."""
        count = 0
        for sock in list(self._sockets):
            if sock.fileno() >= 0:
                count += 1
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError as error:
                    # The client was faster.
                    self._note(f"a connection was gone already: {error.strerror}")
        return count

    def adopt(self, front: Front) -> Callable[[socket.socket, str], None]:
        """How a front takes an accepted socket, through this wire."""

        def add(sock: socket.socket, peer: str) -> None:
            if self.refusing:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
                raise ConnectionRefusedError("refused by the test")
            if isinstance(front, Reactor):
                wired = _WiredSocket(sock, self)
                self._sockets.add(wired)
                front.add(wired, peer)
            else:
                self._sockets.add(sock)
                front.add(_WiredStream(trio.SocketStream(trio.socket.from_stdlib_socket(sock)), self), peer)

        return add

    def request(self) -> None:
        """One read is about to reach the node.

        Raises:
            ConnectionResetError: it does not.
        """
        lost = False
        if self.requests_until_loss:
            self.requests_until_loss -= 1
            lost = self.requests_until_loss == 0
        if self.chances is not None and self.chances.of_request() is not None:
            lost = True
        if lost:
            self._note("lost a request, cut its connection")
            raise ConnectionResetError("cut by the test")

    def reply(self) -> None:
        """One send is about to leave.

        Raises:
            ConnectionResetError: it does not.
        """
        lost = False
        if self.replies_until_loss:
            self.replies_until_loss -= 1
            lost = self.replies_until_loss == 0
        what = self.chances.of_reply() if self.chances is not None else None
        if what == "crash":
            self._crash()
        if lost or what is not None:
            self._note("lost a reply, cut its connection")
            raise ConnectionResetError("cut by the test")


class _WiredSocket(socket.socket):
    """The server's end of one connection, under the reactor."""

    def __init__(self, sock: socket.socket, wire: Wire) -> None:
        super().__init__(sock.family, sock.type, sock.proto, fileno=sock.detach())
        self._wire = wire

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        data = super().recv(bufsize, flags)
        if data:
            self._wire.request()
        return data

    def send(self, data: object, flags: int = 0, /) -> int:
        self._wire.reply()
        return super().send(data, flags)  # type: ignore[arg-type]  # whatever the reactor hands in


class _WiredStream(trio.abc.HalfCloseableStream):
    """The server's end of one connection, under the stream front."""

    def __init__(self, stream: trio.SocketStream, wire: Wire) -> None:
        self._stream = stream
        self._wire = wire

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        try:
            self._wire.reply()
        except ConnectionResetError as error:
            raise trio.BrokenResourceError from error
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._stream.receive_some(max_bytes or _READ_BYTES)
        if data:
            try:
                self._wire.request()
            except ConnectionResetError as error:
                raise trio.BrokenResourceError from error
        return data

    async def aclose(self) -> None:
        await self._stream.aclose()
