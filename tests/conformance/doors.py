"""Every door as the same thing: a request of the api goes in, what JSON would say of its reply comes out.

    CBOR        the native protocol; follows to the leader by itself, as its clients do
    WS-CBOR     the same frames over a WebSocket
    WS-JSON     JSON over a WebSocket
    HTTP        the paths of the JSON API
    RESP2/3     commands of Redis, as far as there is one for a request (`DOORS[...].says`)

A refusal is raised as `Refused`, which compares by the row of the table of errors that it shows: a code, a status, a
prefix.
"""

from __future__ import annotations

import json
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from urllib.parse import quote

import attrs
import httpx
import trio
from trio_websocket import ConnectionClosed

from tests.doors.house import Room
from tests.doors.page import Native, Page, native, page
from tests.doors.redis_talk import Redis, RedisError, redis
from walrq import api
from walrq.errors import ERRORS, Code
from walrq.http.routes import ROUTES
from walrq.ids import make_handle, task_of, task_receipt
from walrq.protocol.client import Answer, ClientConnection
from walrq.protocol.columns import unpack
from walrq.protocol.handshake import Hello
from walrq.protocol.json_replies import reply_to_json
from walrq.protocol.json_requests import BY_NAME, request_to_json
from walrq.protocol.json_text import put_bytes

# Not now: the leader changes, say. Asked again by whoever wants to know.
AGAIN = frozenset({"NOT_READY", "NOT_LEADER"})


@attrs.frozen
class Refused(Exception):
    """A refusal, as much of it as the door shows."""

    name: str | None = None
    status: int | None = None
    prefix: str | None = None
    text: str = ""
    details: Any = None

    def says(self, code: Code) -> bool:
        """Whether everything shown is what the table has for `code`."""
        row = ERRORS[code]
        shown = (
            self.name in (None, code.name),
            self.status in (None, row.http),
            self.prefix in (None, row.resp),
        )
        return all(shown) and (self.name, self.status, self.prefix) != (None, None, None)


class Door(ABC):
    """One connection to one node."""

    # Requests that it has words for, None = all.
    says: frozenset[str] | None = None

    @abstractmethod
    async def ask(self, request: api.Request) -> dict[str, Any]:
        """The reply.

        Raises:
            Refused: what it was refused with.
        """


def told(request: api.Request, reply: api.Reply) -> dict[str, Any]:
    """What JSON says of a reply; raises a refusal."""
    return judged(request, json.loads(json.dumps(reply_to_json(reply))))


def judged(request: api.Request, reply: dict[str, Any], status: int | None = None) -> dict[str, Any]:
    """The reply, which is of a kind that the table of operations names, unless it is a refusal."""
    if reply["reply"] == "failed":
        raise Refused(reply["name"], status, None, reply["text"], reply["details"])
    assert reply["reply"] in BY_NAME[request_to_json(request)["op"]].replies, (request, reply)
    return reply


# --- native -------------------------------------------------------------------------------------------------
class Redirected(Door):
    """A native door: a node that does not lead names the one that does, and its clients go there."""

    def __init__(self) -> None:
        self._leader: str | None = None

    async def ask(self, request: api.Request) -> dict[str, Any]:
        while True:
            try:
                reply = await self.once(request, self._leader)
            except (ConnectionClosed, trio.EndOfChannel, trio.BrokenResourceError, OSError):
                # The leader of a moment ago is gone. Nothing was under way there: this node knows the next one.
                if self._leader is None:
                    raise
                self._leader = None
                continue
            if isinstance(reply, api.Failed) and reply.code == Code.NOT_LEADER:
                found = self.where(reply)
                if found is None or found == self._leader:
                    told(request, reply)
                self._leader = found
            elif isinstance(reply, api.Failed) and reply.code == Code.DRAINING and self._leader is not None:
                self._leader = None
            else:
                return told(request, reply)

    @abstractmethod
    async def once(self, request: api.Request, leader: str | None) -> api.Reply:
        """Asked at the leader's address, None = at this very node."""

    @abstractmethod
    def where(self, refusal: api.Failed) -> str | None:
        """The leader's address in a refusal."""


@attrs.define(eq=False)
class Connection:
    """One native connection over TCP."""

    stream: trio.SocketStream
    protocol: ClientConnection

    async def ask(self, request: api.Request) -> api.Reply:
        """Send and await the reply."""
        number = self.protocol.request(request)
        await self.stream.send_all(self.protocol.take_output())
        while True:
            for event in await self.receive():
                if isinstance(event, Answer) and event.id == number:
                    return event.reply

    async def receive(self) -> list[Any]:
        """What comes next."""
        data = await self.stream.receive_some(1 << 20)
        if not data:
            raise trio.EndOfChannel("the node closed the connection")
        return list(self.protocol.receive(bytes(data)))


async def _connect(address: str) -> Connection:
    host, _, port = address.rpartition(":")
    made = Connection(await trio.open_tcp_stream(host, int(port)), ClientConnection(Hello("conformance")))
    await made.stream.send_all(made.protocol.take_output())
    while made.protocol.welcome is None:
        await made.receive()
    return made


class Cbor(Redirected):
    """The native door."""

    def __init__(self, own: str) -> None:
        super().__init__()
        self._own = own
        self.connections: dict[str, Connection] = {}

    async def once(self, request: api.Request, leader: str | None) -> api.Reply:
        address = leader or self._own
        if address not in self.connections:
            self.connections[address] = await _connect(address)
        return await self.connections[address].ask(request)

    def where(self, refusal: api.Failed) -> str | None:
        found: str | None = refusal.details["leader"]
        return found


@asynccontextmanager
async def cbor(room: Room) -> AsyncIterator[Door]:
    door = Cbor(room.endpoints["cbor"])
    try:
        yield door
    finally:
        for each in door.connections.values():
            await trio.aclose_forcefully(each.stream)


class WsCbor(Redirected):
    """Native frames over a WebSocket."""

    def __init__(self, own: str, nursery: trio.Nursery) -> None:
        super().__init__()
        self._own = own
        self._nursery = nursery
        self._clients: dict[str, Native] = {}

    async def once(self, request: api.Request, leader: str | None) -> api.Reply:
        address = leader or self._own
        if address not in self._clients:
            self._clients[address] = await self._nursery.start(self._hold, address)
        return await self._clients[address].ask(request)

    async def _hold(self, address: str, *, task_status: trio.TaskStatus[Native]) -> None:
        async with native(f"ws://{address}") as client:
            task_status.started(client)
            await trio.sleep_forever()

    def where(self, refusal: api.Failed) -> str | None:
        welcome = self._clients[self._own].protocol.welcome
        assert welcome is not None
        return next((each.endpoint for each in welcome.nodes if each.node == refusal.details["leader_node"]), None)


@asynccontextmanager
async def ws_cbor(room: Room) -> AsyncIterator[Door]:
    async with trio.open_nursery() as nursery:
        yield WsCbor(room.endpoints["ws"], nursery)
        nursery.cancel_scope.cancel()


# --- JSON ---------------------------------------------------------------------------------------------------
@attrs.define(eq=False)
class WsJson(Door):
    """JSON over a WebSocket."""

    page: Page

    async def ask(self, request: api.Request) -> dict[str, Any]:
        fields = request_to_json(request)
        reply = await self.page.ask(fields.pop("op"), **fields)
        del reply["id"]
        return judged(request, reply)


@asynccontextmanager
async def ws_json(room: Room) -> AsyncIterator[Door]:
    async with page(room.url("ws", "ws")) as opened:
        yield WsJson(opened)


# Made once: to load the system's certificates takes longer than a case.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@attrs.define(eq=False)
class Http(Door):
    """The paths of the JSON API."""

    client: httpx.AsyncClient

    async def ask(self, request: api.Request) -> dict[str, Any]:
        fields = {name: value for name, value in request_to_json(request).items() if value is not None}
        op = fields.pop("op")
        if fields.get("queue") in ("", ".", ".."):
            # No path can name it.
            response = await self.client.post("/v1/request", json={"op": op, **fields})
            return judged(request, response.json(), response.status_code)
        # A poll of one queue has a path of its own, and so it is for whatever the fields allow.
        if len(fields.get("queues", ())) == 1:
            fields["queue"] = fields.pop("queues")[0]
        route = next(each for each in ROUTES if each.op == op and set(each.captured) <= fields.keys())
        path = route.path
        for name in route.captured:
            path = path.replace(f"{{{name}}}", quote(str(fields.pop(name)), safe=""))
        more: dict[str, Any] = {"params": _query(fields)} if route.method in ("GET", "DELETE") else {"json": fields}
        response = await self.client.request(route.method, path, **more)
        return judged(request, response.json(), response.status_code)


def _query(fields: dict[str, Any]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}


@asynccontextmanager
async def http(room: Room) -> AsyncIterator[Door]:
    async with httpx.AsyncClient(base_url=room.url(), timeout=60, verify=_NO_TLS, trust_env=False) as client:
        yield Http(client)


# --- RESP ---------------------------------------------------------------------------------------------------
def _seconds(ms: int | None, default: float = 30) -> str:
    return f"{default if ms is None else ms / 1000:.3f}"


@attrs.define(eq=False)
class Resp(Door):
    """The commands of Redis and of its ancestor."""

    redis: Redis
    says = frozenset({"Push", "Poll", "Settle", "Touch", "DeleteQueue", "ListDead", "Redrive", "PurgeDead", "Move"})

    async def ask(self, request: api.Request) -> dict[str, Any]:
        try:
            return await self._asked(request)
        except RedisError as error:
            prefix, _, text = str(error).partition(" ")
            raise Refused(prefix=prefix, text=text) from None

    async def _asked(self, request: api.Request) -> dict[str, Any]:
        ask = self.redis
        match request:
            case api.Push():
                payloads = unpack(request.columns).payloads
                words: tuple[object, ...] = ("LPUSH", request.queue)
                if request.delay_ms is not None:
                    words = ("LPUSH_DELAY", request.queue, _seconds(request.delay_ms))
                elif request.priority:
                    words = ("LPUSH_PRIORITY", request.queue, request.priority)
                assert isinstance(await ask(*words, *payloads), int)
                return {"reply": "pushed"}
            case api.Poll():
                return {"reply": "polled", "messages": await self._poll(request)}
            case api.Settle() | api.Touch():
                return await self._settle(request)
            case api.DeleteQueue():
                return {"reply": "done", "count": await ask("DEL", request.queue)}
            case api.ListDead():
                found = await ask("DLQ_LIST", request.queue, request.limit)
                return {"reply": "page", "messages": [_message(payload) for payload in found]}
            case api.Redrive():
                return {"reply": "moved", "count": await ask("DLQ_REPLAY", request.queue)}
            case api.PurgeDead():
                return {"reply": "done", "count": await ask("DLQ_PURGE", request.queue)}
            case api.Move():
                found = await ask("RPOPLPUSH", request.source, request.target)
                return {"reply": "moved", "count": 0 if found is None else 1}
        raise AssertionError(f"there is no command for {type(request).__name__}")

    async def _poll(self, request: api.Poll) -> list[dict[str, Any]]:
        [queue] = request.queues
        messages: list[dict[str, Any]] = []
        while len(messages) < request.max_messages:
            if request.wait_ms and not messages:
                words = ("BRPOPLEASE", queue, _seconds(request.wait_ms), _seconds(request.visibility_ms))
            else:
                words = ("RPOPLEASE", queue, _seconds(request.visibility_ms))
            found = await self.redis(*words)
            if found is None:
                break
            task, payload = found
            receipt = task_receipt(int(task.removeprefix(b"task-")))
            messages.append(_message(payload) | {"receipt_handle": make_handle(receipt, 0), "queue": queue})
        return messages

    async def _settle(self, request: api.Settle | api.Touch) -> dict[str, Any]:
        codes = []
        for item in request.items:
            task = f"task-{task_of(item.receipt)}"
            if isinstance(request, api.Touch):
                words: tuple[object, ...] = ("TASKTOUCH", request.queue, task, _seconds(request.visibility_ms))
            elif request.kind is api.SettleKind.ACK:
                words = ("TASKACK", request.queue, task)
            else:
                assert (api.SettleKind.FAIL, 0) == (request.kind, request.delay_ms)
                words = ("TASKNACK", request.queue, task)
            try:
                assert "OK" == await self.redis(*words)
                codes.append(0)
            except RedisError as error:
                # In the ancestor's words, which its clients look for.
                if "Task ID not found in-flight" not in str(error):
                    raise
                codes.append(int(Code.RECEIPT_EXPIRED))
        names = [Code(code).name if code else None for code in codes]
        return {"reply": "settled", "codes": codes, "names": names}


def _message(payload: bytes) -> dict[str, Any]:
    made: dict[str, Any] = {}
    put_bytes(made, "payload", payload)
    return made


@asynccontextmanager
async def resp2(room: Room) -> AsyncIterator[Door]:
    async with redis(room.endpoints["resp"]) as client:
        yield Resp(client)


@asynccontextmanager
async def resp3(room: Room) -> AsyncIterator[Door]:
    async with redis(room.endpoints["resp"]) as client:
        hello = await client("HELLO", "3")
        assert 3 == hello[b"proto"]
        yield Resp(client)


Opening = Callable[[Room], AbstractAsyncContextManager[Door]]
DOORS: dict[str, Opening] = {
    "CBOR": cbor,
    "WS-CBOR": ws_cbor,
    "WS-JSON": ws_json,
    "HTTP": http,
    "RESP2": resp2,
    "RESP3": resp3,
}
SAYS: dict[str, frozenset[str] | None] = {name: Resp.says if name.startswith("RESP") else None for name in DOORS}
