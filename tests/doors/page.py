"""A page as the WebSocket door sees it: trio-websocket's client, in either language."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
from trio_websocket import CloseReason, ConnectionClosed, ConnectionRejected, WebSocketConnection, wrap_client_stream

from walrq import api
from walrq.limits import FRAME_BYTES_MAX
from walrq.protocol.client import Answer, ClientConnection
from walrq.protocol.framing import frame
from walrq.protocol.handshake import Hello

# How often a state is looked at that rings no bell here.
LOOK_S = 0.02
JSON = "walrq.json.v1"
CBOR = "walrq.cbor.v1"


@asynccontextmanager
async def websocket(url: str, offers: str = JSON, **headers: str) -> AsyncIterator[WebSocketConnection]:
    """A WebSocket on which nothing was said yet."""
    extra = [(name.encode(), value.encode()) for name, value in headers.items()]
    address = url.removeprefix("ws://")
    host, _, port = address.rpartition(":")
    rejected: ConnectionRejected | None = None
    # The library leaves a stream that the server ended, or refused, to the garbage collector.
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        try:
            async with trio.open_nursery() as nursery:
                socket = await wrap_client_stream(
                    nursery,
                    stream,
                    address,
                    "/",
                    subprotocols=[offers],
                    extra_headers=extra,
                    max_message_size=4 * FRAME_BYTES_MAX,
                )
                try:
                    yield socket
                finally:
                    with trio.move_on_after(5):
                        await socket.aclose()
                nursery.cancel_scope.cancel()
        except* ConnectionRejected as errors:
            rejected = errors.exceptions[0]  # type: ignore[assignment]  # leaves of one kind
    if rejected is not None:
        raise rejected


async def end_of(socket: WebSocketConnection) -> CloseReason:
    """Why the server closed it, whatever it said before."""
    try:
        while True:
            await socket.get_message()
    except ConnectionClosed as closed:
        assert closed.reason is not None
        return closed.reason


@attrs.define(eq=False)
class Page:
    """A client that speaks JSON; requests may be pipelined, answers are awaited by request."""

    socket: WebSocketConnection
    welcome: dict[str, Any] = attrs.field(factory=dict)
    goaway: dict[str, Any] | None = None
    answers: dict[int, dict[str, Any]] = attrs.field(factory=dict)
    count: int = 0

    async def send(self, op: str, **fields: Any) -> int:
        """Send without awaiting; the request's number."""
        self.count += 1
        await self.socket.send_message(json.dumps({"id": self.count, "op": op, **fields}))
        return self.count

    async def answer(self, number: int) -> dict[str, Any]:
        """Await the reply of request `number`."""
        while number not in self.answers:
            reply = json.loads(await self.socket.get_message())
            if reply["reply"] == "goaway":
                self.goaway = reply
            else:
                self.answers[reply["id"]] = reply
        return self.answers.pop(number)

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send and await the reply."""
        return await self.answer(await self.send(op, **fields))

    async def ask_until(self, op: str, **fields: Any) -> dict[str, Any]:
        """Ask as often as the answer is that it is worth asking again."""
        return await self.ask_while(lambda reply: reply.get("retry", False), op, **fields)

    async def ask_while(self, going_on: Callable[[dict[str, Any]], bool], op: str, **fields: Any) -> dict[str, Any]:
        """Ask as often as the answer is not the awaited one."""
        while going_on(reply := await self.ask(op, **fields)):  # noqa: ASYNC110 - another process's state
            await trio.sleep(LOOK_S)
        return reply


@asynccontextmanager
async def page(url: str, **hello: Any) -> AsyncIterator[Page]:
    """A page that has been welcomed."""
    async with websocket(url) as socket:
        await socket.send_message(json.dumps({"op": "hello", "client": "test/1", **hello}))
        yield Page(socket, json.loads(await socket.get_message()))


@attrs.define(eq=False)
class Native:
    """A native client over a WebSocket: one frame a message, without its length."""

    socket: WebSocketConnection
    protocol: ClientConnection

    async def ask(self, request: api.Request) -> api.Reply:
        """Send and await the reply."""
        number = self.protocol.request(request)
        await self._flush()
        while True:
            for event in await self.receive():
                if isinstance(event, Answer) and event.id == number:
                    return event.reply

    async def _flush(self) -> None:
        output = self.protocol.take_output()
        while output:
            end = 4 + int.from_bytes(output[:4], "big")
            await self.socket.send_message(output[4:end])
            output = output[end:]

    async def receive(self) -> list[Any]:
        """The events of the next message."""
        message = await self.socket.get_message()
        assert isinstance(message, bytes), message
        return self.protocol.receive(frame(message))


@asynccontextmanager
async def native(url: str) -> AsyncIterator[Native]:
    """A native client that has been welcomed."""
    async with websocket(url, CBOR) as socket:
        client = Native(socket, ClientConnection(Hello("test/1")))
        await client._flush()
        await client.receive()
        yield client
