"""HTTP as bytes on a socket, for what no client library sends."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import trio


async def connect(address: str, *, receive_bytes: int | None = None) -> trio.SocketStream:
    """A connection to "host:port"; with `receive_bytes` the kernel keeps little more for it than that."""
    host, _, port = address.rpartition(":")
    sock = trio.socket.socket()
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    await sock.connect((host, int(port)))
    return trio.SocketStream(sock)


def head(method: str, path: str, **headers: Any) -> bytes:
    """The head of a request; underscores in names stand for dashes."""
    lines = [f"{method} {path} HTTP/1.1", "host: localhost"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def request(method: str, path: str, body: bytes = b"", **headers: Any) -> bytes:
    """A whole request with a JSON body."""
    fields = {"content_type": "application/json", "content_length": len(body), **headers}
    return head(method, path, **fields) + body


async def status_of(stream: trio.SocketStream) -> int:
    """The status of the next response; what else came is thrown away."""
    data = bytearray()
    while b"\r\n" not in data:
        more = await stream.receive_some(65_536)
        if not more:
            raise trio.EndOfChannel("the connection ended without a response")
        data += more
    return int(data.split(b" ", 2)[1])


class Events:
    """A stream of server-sent events, one after another."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._data = bytearray()

    async def next(self) -> Any:
        """The decoded data of the next one; None when the stream has ended."""
        while (end := self._data.find(b"\n\n")) < 0:
            more = await self._stream.receive_some(65_536)
            if not more:
                return None
            self._data += more
        event = bytes(self._data[:end])
        del self._data[: end + 2]
        return json.loads(event.partition(b"\ndata: ")[2])


def reset(stream: trio.SocketStream) -> None:
    """Break the connection off, as a machine does that fell over."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()
