"""One connection: a plain socket or a TLS stream, with the same few calls.

A plain one can be written to without waiting (`send_nowait`): what a leader says to its followers leaves within the
turn that made it, not when the event loop comes round to the writer.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from typing import Final, Protocol

import trio

from walrq.errors import ConfigError, RemoteProtocolError
from walrq.peers.tls import PeerTls

READ_BYTES: Final = 64 * 1024
# While a large frame comes in.
READ_BYTES_LARGE: Final = 1024 * 1024
# The kernel takes at most 1,024 pieces in one call.
_PIECES_MAX: Final = 512


class Wire(Protocol):
    """What both kinds can do. Failures of the network are `trio.BrokenResourceError`."""

    @property
    def binding(self) -> bytes:
        """What proofs cover of the channel beneath: b"" for none."""

    @property
    def descriptor(self) -> int | None:
        """What becomes readable when `receive_nowait` has something; None where only `receive_some` can tell."""

    async def receive_some(self, size: int) -> bytes:
        """Some bytes; b"" at the end."""

    def receive_nowait(self, size: int) -> bytes | None:
        """The same without waiting; None when there is nothing."""

    async def send_all(self, pieces: Sequence[bytes | memoryview]) -> None:
        """All pieces, one after the other. Cancelled, any part of them was sent: close."""

    def send_nowait(self, pieces: Sequence[bytes]) -> list[bytes | memoryview]:
        """What can be sent without waiting; returns the rest."""

    def send_eof(self) -> None:
        """Nothing more will be sent, where that can be said."""

    def close(self) -> None:
        """At once, whatever is under way."""


class PlainWire:
    """A connected, non-blocking socket."""

    binding = b""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @property
    def descriptor(self) -> int | None:
        """See `Wire`."""
        return self._sock.fileno()

    async def receive_some(self, size: int) -> bytes:
        """See `Wire`."""
        await trio.lowlevel.checkpoint()
        while (data := self.receive_nowait(size)) is None:
            await self._wait(trio.lowlevel.wait_readable)
        return data

    def receive_nowait(self, size: int) -> bytes | None:
        """See `Wire`."""
        try:
            return self._sock.recv(size)
        except BlockingIOError:
            return None
        except OSError as error:
            raise trio.BrokenResourceError(error.strerror or str(error)) from error

    async def send_all(self, pieces: Sequence[bytes | memoryview]) -> None:
        """See `Wire`."""
        rest = self._send(pieces)
        await trio.lowlevel.checkpoint()
        while rest:
            await self._wait(trio.lowlevel.wait_writable)
            rest = self._send(rest)

    async def _wait(self, ready: object) -> None:
        try:
            await ready(self._sock)  # type: ignore[operator]  # one of Trio's two
        except trio.ClosedResourceError:
            raise trio.BrokenResourceError("closed on this side") from None

    def send_nowait(self, pieces: Sequence[bytes]) -> list[bytes | memoryview]:
        """See `Wire`."""
        return self._send(pieces)

    def _send(self, pieces: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
        left = list(pieces)
        start = 0
        try:
            while start < len(left):
                some = left[start : start + _PIECES_MAX]
                sent = self._sock.sendmsg(some) if len(some) > 1 else self._sock.send(some[0])
                for piece in some:
                    size = len(piece)
                    if sent < size:
                        break
                    sent -= size
                    start += 1
                else:
                    continue
                if sent:
                    left[start] = memoryview(left[start])[sent:]
                # The kernel took less than all: it will hardly take more now.
                break
        except BlockingIOError:
            pass
        except OSError as error:
            raise trio.BrokenResourceError(error.strerror or str(error)) from error
        return left[start:]

    def send_eof(self) -> None:
        """See `Wire`."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise trio.BrokenResourceError(error.strerror or str(error)) from error

    def close(self) -> None:
        """See `Wire`."""
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()


class StreamWire:
    """Any other stream: TLS, or a pair in memory."""

    def __init__(
        self, stream: trio.abc.Stream, sock: trio.socket.SocketType | None = None, binding: bytes = b""
    ) -> None:
        self._stream = stream
        self._sock = sock
        self.binding = binding
        self.descriptor: int | None = None

    def receive_nowait(self, size: int) -> bytes | None:
        """See `Wire`: never."""
        return None

    async def receive_some(self, size: int) -> bytes:
        """See `Wire`."""
        try:
            return bytes(await self._stream.receive_some(size))
        except trio.ClosedResourceError:
            raise trio.BrokenResourceError("closed on this side") from None

    async def send_all(self, pieces: Sequence[bytes | memoryview]) -> None:
        """See `Wire`."""
        try:
            await self._stream.send_all(b"".join(pieces))
        except trio.ClosedResourceError:
            raise trio.BrokenResourceError("closed on this side") from None

    def send_nowait(self, pieces: Sequence[bytes]) -> list[bytes | memoryview]:
        """See `Wire`: nothing."""
        return list(pieces)

    def send_eof(self) -> None:
        """See `Wire`: TLS streams end as a whole."""

    def close(self) -> None:
        """See `Wire`. No goodbye in TLS: whoever is left counts frames, not streams."""
        if self._sock is not None:
            self._sock.close()


def parse_address(address: str, field: str = "address") -> tuple[str, int]:
    """(host, port) of "host:port" or "[host]:port".

    Raises:
        ConfigError: it is neither.
    """
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ConfigError(f"{field} is {address!r}, not HOST:PORT with a port from 1 to 65535", field=field)
    return host, int(port)


def join_address(sockname: tuple[object, ...]) -> str:
    """ "host:port" of what a socket says."""
    host, port = sockname[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def tune(sock: socket.socket, silence_s: float) -> None:
    """Small messages leave at once, and data that nobody acknowledges ends the connection."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None:
        sock.setsockopt(socket.IPPROTO_TCP, option, int(silence_s * 1000))


async def connect(address: str, silence_s: float) -> socket.socket:
    """A connected socket; the caller bounds the time.

    Raises:
        ConfigError: not an address.
        OSError: nobody answers at any of the addresses behind the name.
    """
    host, port = parse_address(address)
    failure: OSError | None = None
    for family, kind, protocol, _, where in await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = trio.socket.socket(family, kind, protocol)
        try:
            await sock.connect(where)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            plain = socket.socket(family, kind, protocol, fileno=sock.detach())
            try:
                tune(plain, silence_s)
            except OSError as error:
                plain.close()
                failure = error
                continue
            return plain
    raise failure or OSError(f"no address behind {host!r}")


async def open_wire(sock: socket.socket, tls: PeerTls | None, *, dialed: bool) -> Wire:
    """The wire over a connected socket, TLS handshake done; closes the socket if that fails.

    Raises:
        RemoteProtocolError: the other end's certificate, or what it says instead of TLS.
        trio.BrokenResourceError: the connection broke.
    """
    if tls is None:
        return PlainWire(sock)
    trio_sock = trio.socket.from_stdlib_socket(sock)
    stream = trio.SSLStream(
        trio.SocketStream(trio_sock),
        tls.client if dialed else tls.server,
        server_hostname=None,
        server_side=not dialed,
    )
    try:
        await stream.do_handshake()
        # The client's Finished: a digest of the whole TLS handshake, the same at both ends and nowhere else.
        binding = stream.get_channel_binding("tls-unique")
    except trio.BrokenResourceError as error:
        trio_sock.close()
        if isinstance(error.__cause__, ssl.SSLError):
            raise RemoteProtocolError(f"TLS: {error.__cause__.reason or error.__cause__}", field="peer_tls") from None
        raise
    except BaseException:
        trio_sock.close()
        raise
    return StreamWire(stream, trio_sock, binding or b"")
