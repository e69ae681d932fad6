"""A Redis client on Trio, with no cleverness: words in, values out."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from tests.resp.parts import frame


class RedisError(Exception):
    """An error reply."""


@attrs.define(eq=False)
class Redis:
    """One connection. Replies are bytes, numbers, None, lists; simple strings are text."""

    stream: trio.SocketStream
    _buffer: bytes = b""

    async def __call__(self, *words: object) -> Any:
        """Send one command and await its reply; an error is raised."""
        await self.send(*words)
        return await self.reply()

    async def send(self, *words: object) -> None:
        """Send without awaiting."""
        await self.stream.send_all(frame(*[_bytes(word) for word in words]))

    async def line(self, text: str) -> Any:
        """Send a command whose words have no spaces."""
        return await self(*text.split())

    async def pipeline(self, *commands: str) -> list[Any]:
        """Send all at once, await all replies; errors stand among them."""
        await self.stream.send_all(b"".join([frame(*command.encode().split()) for command in commands]))
        found: list[Any] = []
        for _ in commands:
            try:
                found.append(await self.reply())
            except RedisError as error:
                found.append(error)
        return found

    async def reply(self) -> Any:
        """The next reply."""
        while True:
            found = _parse(self._buffer, 0)
            if found is not None:
                value, end = found
                self._buffer = self._buffer[end:]
                if isinstance(value, RedisError):
                    raise value
                return value
            data = await self.stream.receive_some(1 << 16)
            if not data:
                raise trio.EndOfChannel(f"closed with {self._buffer[:100]!r} unread")
            self._buffer += data

    async def eof(self) -> bytes:
        """What is said until the node closes."""
        data = self._buffer
        with contextlib.suppress(trio.BrokenResourceError):
            while more := await self.stream.receive_some(1 << 16):
                data += more
        return data


def _bytes(word: object) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()


def _parse(data: bytes, at: int) -> tuple[Any, int] | None:
    end = data.find(b"\r\n", at)
    if end < 0:
        return None
    kind, head, at = data[at : at + 1], data[at + 1 : end], end + 2
    if kind == b"+":
        return head.decode(), at
    if kind == b"-":
        return RedisError(head.decode()), at
    if kind == b":":
        return int(head), at
    if kind == b"_":
        return None, at
    assert kind in b"$*%=", (kind, head)
    size = int(head)
    if size < 0:
        return None, at
    if kind in b"$=":
        if len(data) < at + size + 2:
            return None
        return data[at : at + size], at + size + 2
    items: list[Any] = []
    for _ in range(size * (2 if kind == b"%" else 1)):
        found = _parse(data, at)
        if found is None:
            return None
        items.append(found[0])
        at = found[1]
    return (dict(zip(items[::2], items[1::2], strict=True)) if kind == b"%" else items), at


@asynccontextmanager
async def redis(address: str, password: str | None = None) -> AsyncIterator[Redis]:
    """A connection to the door at that address."""
    host, _, port = address.rpartition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    async with stream:
        client = Redis(stream)
        if password is not None:
            await client("AUTH", password)
        yield client
