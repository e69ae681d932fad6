"""What the HTTP door answers: an ASGI application between hypercorn and the gate.

    /v1/...                       the JSON API: a row of `http/routes.py`, an operation at the gate
    /v1/overview, /v1/events      numbers for the dashboard, once or as server-sent events; /v1/preview: messages
    /metrics /livez /readyz       for Prometheus and for whoever restarts nodes
    /api/...                      the ancestor's answers
    / /dashboard /docs /web/...   pages

A GET changes nothing. A request is answered once: a poll whose client went away meanwhile is cancelled, and a lease
whose response did not reach the kernel whole is given back. What a response is made of is in walrq/http/; here are the
limits: bodies, how long they may take, streams.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import attrs
import trio

from walrq import __version__, api
from walrq.access.principals import Principal
from walrq.doors.gate import Desk, Mark
from walrq.doors.http_login import Logins
from walrq.doors.http_views import Views
from walrq.doors.opening import Entrance
from walrq.errors import (
    Code,
    FrameTooLarge,
    InternalError,
    InvalidArgument,
    MalformedRequest,
    NotLeader,
    NotReady,
    Overloaded,
    ProtocolError,
    WalrqError,
    from_code,
)
from walrq.http import openapi, origins, replies, routes
from walrq.http.pages import Page, load
from walrq.http.replies import Response
from walrq.limits import (
    HTTP_BODIES_BYTES_MAX,
    HTTP_BODY_BYTES_MAX,
    HTTP_BODY_S_MAX,
    HTTP_HEAD_BYTES_MAX,
    HTTP_STREAMS_MAX,
    SEND_STALL_S_MAX,
)
from walrq.locks.doorman import Guard
from walrq.locks.tls import DoorTls
from walrq.protocol.json_text import read_json, write_json

log = logging.getLogger("walrq.http")

Message: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_SLICE: Final = 256 * 1024
_LINGER_S: Final = 1.0
_REQUEST_ID_MAX: Final = 128
_EVENT_S: Final = 1.0
# Paths that are for everybody: whether the node lives, and to become somebody. (Pages are files, they tell nothing.)
_OPEN: Final = frozenset({"/livez", "/readyz", "/openapi.json", "/v1/login", "/v1/logout"})
_HTTP_VERSIONS: Final = frozenset({"1.0", "1.1"})
# Operations during which a client may go away, and wants nothing more then.
_WAITING: Final = (api.Poll, api.AddNode, api.RemoveNode, api.TransferLeadership)


class Watched(trio.abc.Stream):
    """A connection as hypercorn sees it.

    Attributes:
        socket: the connection's own, for its addresses.
        failed: bytes that were to be sent did not reach the kernel; there is nothing more to say on it.
    """

    def __init__(self, stream: trio.SocketStream, sock: trio.socket.SocketType, peer: str) -> None:
        self._plain = stream
        self._stream: trio.abc.Stream = stream
        self.socket = sock
        self.peer = peer
        self.failed = False
        # Hypercorn's reader answers what is no HTTP at all, while a response may be on its way.
        self._sending = trio.StrictFIFOLock()

    async def shake(self, tls: DoorTls) -> bool:
        """Speak TLS from here on; False when no handshake came about."""
        shaken = await tls.shake(self._plain)
        if shaken is None:
            return False
        self._stream = shaken
        return True

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send; a reader that takes nothing for SEND_STALL_S_MAX ends the connection."""
        async with self._sending:
            await self._send_all(memoryview(data))

    async def _send_all(self, rest: memoryview) -> None:
        try:
            while True:
                with trio.move_on_after(SEND_STALL_S_MAX) as patience:
                    await self._stream.send_all(rest[:_SLICE])
                if patience.cancelled_caught:
                    log.info("connection_timed_out peer=%s: a response was not read", self.peer)
                    self.abort()
                    raise trio.BrokenResourceError("the response was not read")
                rest = rest[_SLICE:]
                if not rest:
                    return
        except BaseException:
            self.failed = True
            raise

    async def wait_send_all_might_not_block(self) -> None:
        """As every stream has it; hypercorn does not ask."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """What came in."""
        return await self._stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        """Nothing more will be sent."""
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            async with self._sending:
                await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    def abort(self) -> None:
        """Close it at once, whoever waits for it."""
        self.socket.close()


class _Slow(Exception):
    """The body takes too long."""


class _Gone(Exception):
    """The client went away before its request was whole."""


@attrs.define
class Exchange:
    """One request on its way to its response.

    Attributes:
        id: its name in answers and logs.
        operation: what it counts as in the metrics.
        status: of its response, 0 before.
        guard: asked before what it asks for; None where nobody is asked who he is.
        unread: a part of its body was not read, so that no other request can follow on the connection.
    """

    scope: Mapping[str, Any]
    receive: Receive
    send: Send
    headers: Mapping[str, str]
    id: str
    operation: str = "other"
    status: int = 0
    guard: Guard | None = None
    unread: bool = False

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def connection(self) -> Watched:
        found: Watched = self.scope["state"]["connection"]
        return found


class App:
    """See the module. One per door."""

    def __init__(self, entrance: Entrance, connections: Callable[[], int]) -> None:
        """`connections`: how many this door has."""
        self._entrance = entrance
        self._gate = entrance.gate
        self._clock = entrance.node.clock
        self.views = Views(entrance, connections)
        self._pages: Mapping[str, Page] = {}
        self._openapi = b""
        self._allowed = frozenset(entrance.node.config.allowed_origins)
        host = entrance.sock.getsockname()[0]
        self._loopback = host.startswith("127.") or host == "::1"
        self._logins = Logins(entrance.node.doorman, self._clock, secure=entrance.node.tls is not None)
        self._open = _OPEN | ({"/metrics"} if entrance.node.config.open_metrics else frozenset())
        self._prefix = secrets.token_hex(4)
        self._number = 0
        # Bytes of bodies that are being read or answered.
        self._held = 0
        self._streams = 0
        # The node makes one backup at a time; it belongs to this port.
        self._backup: Desk | None = None
        views = self.views
        # Paths without fields: what each method does.
        self._table: Mapping[str, Mapping[str, Callable[[Exchange], Awaitable[Response | None]]]] = {
            "/metrics": {"GET": self._metrics},
            "/livez": {"GET": lambda _: views.livez()},
            "/readyz": {"GET": lambda _: views.readyz()},
            "/openapi.json": {"GET": self._document},
            "/v1/overview": {"GET": lambda exchange: views.overview(_query(exchange), _principal(exchange))},
            "/v1/preview": {"GET": lambda exchange: views.preview(_query(exchange), exchange.guard)},
            "/v1/events": {"GET": self._events},
            "/v1/login": {"POST": self._log_in},
            "/v1/logout": {"POST": self._log_out},
            "/api/stats": {"GET": self._dtq_stats},
            "/api/dlq/requeue": {
                "POST": lambda exchange: views.dtq_action("requeue", _query(exchange).get("queue"), exchange.guard)
            },
            "/api/dlq/purge": {
                "POST": lambda exchange: views.dtq_action("purge", _query(exchange).get("queue"), exchange.guard)
            },
        }

    async def start(self) -> None:
        """Read the pages; measure the node from now on."""
        self._pages = await trio.to_thread.run_sync(load)
        self._openapi = write_json(openapi.document(__version__)).encode()
        self._entrance.node.driver.on_written = self.views.measured.written

    def stop(self) -> None:
        """Measure no more."""
        self._entrance.node.driver.on_written = None
        self._drop_backup()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send, *_: object) -> None:
        """One request, as ASGI has it."""
        if scope["type"] == "lifespan":
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = _headers(scope)
        exchange = Exchange(scope, receive, send, headers, self._request_id(headers))
        began_s = self._clock.monotonic_s()
        try:
            response = await self._answer(exchange)
            if response is not None:
                await self._respond(exchange, response)
        except _Gone:
            log.debug("request_given_up id=%s", exchange.id)
        finally:
            if exchange.status:
                seconds = self._clock.monotonic_s() - began_s
                self.views.measured.requested(exchange.operation, exchange.status, seconds)

    def _request_id(self, headers: Mapping[str, str]) -> str:
        given = headers.get("x-request-id", "")
        if given and len(given) <= _REQUEST_ID_MAX and given.isascii() and given.isprintable() and " " not in given:
            return given
        self._number += 1
        return f"{self._prefix}-{self._number}"

    async def _answer(self, exchange: Exchange) -> Response | None:
        """The response; None when it was sent already."""
        try:
            return await self._route(exchange)
        except _Gone:
            raise
        except _Slow:
            text = f"the body did not come within {HTTP_BODY_S_MAX:g} s"
            return replies.plain(408, Code.MALFORMED_REQUEST, text, exchange.id, field="body", limit=HTTP_BODY_S_MAX)
        except NotLeader as error:
            return self._elsewhere(exchange, error)
        except WalrqError as error:
            return replies.of_error(error, exchange.id)
        except Exception as error:
            # The barrier: a mistake of ours costs one request.
            log.exception("request_failed id=%s %s: %s", exchange.id, exchange.operation, error)
            return replies.of_error(InternalError("the node failed at this request"), exchange.id)

    async def _respond(self, exchange: Exchange, response: Response) -> None:
        exchange.status = response.status
        await exchange.send(
            {"type": "http.response.start", "status": response.status, "headers": self._head(exchange, response)}
        )
        if not exchange.unread:
            await exchange.send({"type": "http.response.body", "body": response.body})
            return
        # Closing while the client still sends may reset the connection, and it would never read why it was refused;
        # so the rest of its body is thrown away for a moment.
        await exchange.send({"type": "http.response.body", "body": response.body, "more_body": True})
        with trio.move_on_after(_LINGER_S):
            while (await exchange.receive()).get("more_body", False):
                pass
        await exchange.send({"type": "http.response.body", "body": b""})

    def _head(self, exchange: Exchange, response: Response) -> list[tuple[bytes, bytes]]:
        found = {
            **replies.COMMON,
            "x-request-id": exchange.id,
            **origins.cors(exchange.headers, self._allowed),
            **response.headers,
        }
        if response.status not in (204, 304):
            found["content-type"] = response.media
            found["content-length"] = str(len(response.body))
        if exchange.unread:
            found["connection"] = "close"
        return [(name.encode(), value.encode("latin-1", "replace")) for name, value in found.items()]

    # --- where a request goes -------------------------------------------------------------------------------
    async def _route(self, exchange: Exchange) -> Response | None:
        scope, method = exchange.scope, exchange.method
        if scope["http_version"] not in _HTTP_VERSIONS:
            return replies.plain(505, Code.UNSUPPORTED_VERSION, "this door speaks HTTP/1.1", exchange.id)
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size > HTTP_HEAD_BYTES_MAX:
            text = f"headers of {size} bytes, at most {HTTP_HEAD_BYTES_MAX} are allowed"
            return replies.plain(
                431, Code.FRAME_TOO_LARGE, text, exchange.id, field="headers", limit=HTTP_HEAD_BYTES_MAX
            )
        origins.check_host(exchange.headers, loopback=self._loopback)
        origins.check_origin(method, exchange.headers, self._allowed)
        path = scope["raw_path"].decode("latin-1")
        page = self._pages.get(path)
        handlers = self._table.get(path)
        if page is not None:
            exchange.operation = "page"
            methods: tuple[str, ...] = ("GET",)
            if method in routes.READS:
                return page.response(exchange.headers.get("if-none-match"))
        elif handlers is not None:
            if path not in self._open and method != "OPTIONS":
                exchange.guard = self._logins.who(exchange.headers, exchange.connection.peer)
            exchange.operation = path
            methods = tuple(handlers)
            handler = handlers.get("GET" if method == "HEAD" else method)
            if handler is not None:
                return await handler(exchange)
        else:
            found = routes.match(method, routes.segments_of(scope["raw_path"]))
            methods = found.methods
            if found.route is not None:
                exchange.guard = self._logins.who(exchange.headers, exchange.connection.peer)
                return await self._operation(exchange, found.route, found.fields)
        return self._no_method(exchange, methods)

    def _no_method(self, exchange: Exchange, methods: tuple[str, ...]) -> Response:
        if not methods:
            return replies.plain(404, Code.UNKNOWN_OPERATION, "there is nothing at this path", exchange.id)
        allow = ", ".join([*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"])
        if exchange.method == "OPTIONS":
            return Response(204, headers=origins.preflight(exchange.headers, self._allowed, allow))
        text = f"{exchange.method} is not for this path, {allow} are"
        return replies.plain(405, Code.UNKNOWN_OPERATION, text, exchange.id, headers={"allow": allow})

    def _elsewhere(self, exchange: Exchange, error: NotLeader) -> Response:
        """Only the leader can answer this: where that is, when it has an HTTP door."""
        peers = self._entrance.node.peers
        leader = error.details.get("leader_node")
        endpoint = None if peers is None or leader is None else peers.endpoint_of(leader, "http")
        if endpoint is None:
            return replies.of_error(NotReady(error.text, retry_after_ms=1_000), exchange.id)
        scheme = "http" if self._entrance.node.tls is None else "https"
        query = exchange.scope["query_string"].decode("latin-1")
        target = exchange.scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        return replies.of_error(error, exchange.id, {"location": f"{scheme}://{endpoint}{target}"})

    async def _metrics(self, exchange: Exchange) -> Response:
        _require_read(exchange, "/metrics")
        return await self.views.metrics()

    async def _dtq_stats(self, exchange: Exchange) -> Response:
        _require_read(exchange, "/api/stats")
        return await self.views.dtq_stats()

    async def _log_in(self, exchange: Exchange) -> Response:
        """POST /v1/login: a token for a cookie, which the page's script never sees."""
        data = await self._body(exchange)
        try:
            given = self._decoded(exchange, data)
        finally:
            self._held -= len(data)
        token = given.get("token") if isinstance(given, dict) else None
        name = given.get("name") if isinstance(given, dict) else None
        if not isinstance(token, str) or not token or not isinstance(name, str | None):
            raise InvalidArgument('a login is {"token": "..."}, with a name if you like', field="token")
        who, cookie = self._logins.log_in(token, name, exchange.connection.peer)
        return replies.of_json({"reply": "done", "name": who}, headers={"set-cookie": cookie})

    async def _log_out(self, exchange: Exchange) -> Response:
        """POST /v1/logout."""
        cookie = self._logins.log_out(exchange.headers)
        return replies.of_json({"reply": "done"}, headers={"set-cookie": cookie})

    async def _document(self, exchange: Exchange) -> Response:
        return Response(200, self._openapi)

    # --- operations -----------------------------------------------------------------------------------------
    async def _operation(self, exchange: Exchange, route: routes.Route, captured: Mapping[str, str]) -> Response | None:
        exchange.operation = route.op or "request"
        size = 0
        try:
            body = None
            if route.method not in routes.READS:
                data = await self._body(exchange)
                size = len(data)
                body = self._decoded(exchange, data)
                del data
            request = routes.request_of(route, captured, _query(exchange), body)
            del body
            mark = _mark(exchange)
            guard = exchange.guard
            if guard is not None:
                guard.admit(request, size, None if mark is None else mark.session)
            try:
                return await self._carry_out(exchange, request, size, mark)
            finally:
                if guard is not None:
                    guard.leave()
        finally:
            self._held -= size

    async def _carry_out(
        self, exchange: Exchange, request: api.Request, size: int, mark: Mark | None
    ) -> Response | None:
        if isinstance(request, api.BackupBegin | api.BackupRead | api.BackupEnd):
            return replies.of_reply(await self._of_backup(request), "local")
        return await self._ask(exchange, request, size, mark)

    async def _ask(self, exchange: Exchange, request: api.Request, size: int, mark: Mark | None) -> Response | None:
        consistency = "local" if type(request) in (api.Stats, api.Ping, api.ClusterStatus) else "consistent"
        if not isinstance(request, _WAITING):
            return replies.of_reply(
                await self._gate.call(request, guard=exchange.guard, size=size, mark=mark), consistency
            )
        reply: api.Reply | WalrqError | None = None
        gone: bool = False

        async def watch() -> None:
            nonlocal gone
            while (await exchange.receive())["type"] != "http.disconnect":
                pass
            gone = True
            waiting.cancel_scope.cancel()

        async with trio.open_nursery() as waiting:
            waiting.start_soon(watch)
            reply = await self._call_out(exchange.guard, request, size, mark, waiting)
        if isinstance(reply, WalrqError):
            raise reply
        if gone:
            self._undo(reply, mark)
            raise _Gone
        assert reply is not None
        try:
            await self._respond(exchange, replies.of_reply(reply, consistency))
        except BaseException:
            self._undo(reply, mark)
            raise
        if exchange.connection.failed:
            self._undo(reply, mark)
        return None

    async def _call_out(
        self, guard: Guard | None, request: api.Request, size: int, mark: Mark | None, waiting: trio.Nursery
    ) -> api.Reply | WalrqError:
        """The reply, or the error that it was: raised inside the nursery it would come out in a group."""
        try:
            return await self._gate.call(request, guard=guard, size=size, mark=mark)
        except WalrqError as error:
            return error
        finally:
            waiting.cancel_scope.cancel()

    def _undo(self, reply: api.Reply | None, mark: Mark | None) -> None:
        """Nobody got it: a lease is free again. One of a session stays: the retry is answered with it."""
        if isinstance(reply, api.Polled) and mark is None:
            self._gate.give_back(reply)

    async def _of_backup(self, request: api.BackupBegin | api.BackupRead | api.BackupEnd) -> api.Reply:
        if isinstance(request, api.BackupBegin):
            self._drop_backup()
            self._backup = Desk(self._gate)
        desk = self._backup
        if desk is None:
            raise InvalidArgument(f"there is no backup {request.backup} of this door", field="backup")  # type: ignore[union-attr]
        reply = await desk.call(request)
        if isinstance(request, api.BackupEnd) or (
            isinstance(reply, api.Failed) and isinstance(request, api.BackupBegin)
        ):
            self._drop_backup()
        if isinstance(reply, api.Failed):
            raise from_code(reply.code, reply.text, reply.details)
        return reply

    def _drop_backup(self) -> None:
        desk, self._backup = self._backup, None
        if desk is not None:
            desk.close()

    # --- bodies ---------------------------------------------------------------------------------------------
    async def _body(self, exchange: Exchange) -> bytes:
        """The whole body; its bytes count as held until the request is answered.

        Raises:
            FrameTooLarge: beyond HTTP_BODY_BYTES_MAX. Overloaded: too much is held already. _Slow: it took too long.
            _Gone: the client went away.
        """
        exchange.unread = True
        announced = exchange.headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > HTTP_BODY_BYTES_MAX:
            raise _too_large(int(announced))
        chunks: list[bytes] = []
        size = 0
        try:
            with trio.move_on_after(HTTP_BODY_S_MAX) as patience:
                while True:
                    message = await exchange.receive()
                    if message["type"] == "http.disconnect":
                        raise _Gone
                    chunk: bytes = message.get("body", b"")
                    size += len(chunk)
                    self._held += len(chunk)
                    chunks.append(chunk)
                    if size > HTTP_BODY_BYTES_MAX:
                        raise _too_large(size)
                    if self._held > HTTP_BODIES_BYTES_MAX or self._gate.saturated:
                        raise Overloaded(
                            f"{self._held} bytes of requests are under way, at most {HTTP_BODIES_BYTES_MAX} are taken",
                            limit="HTTP_BODIES_BYTES_MAX",
                            retry_after_ms=1_000,
                        )
                    if not message.get("more_body", False):
                        exchange.unread = False
                        return b"".join(chunks)
            assert patience.cancelled_caught
            raise _Slow
        except BaseException:
            self._held -= size
            raise

    def _decoded(self, exchange: Exchange, data: bytes) -> object:
        if not data:
            return None
        media = exchange.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json" and not media.endswith("+json"):
            raise MalformedRequest(
                f"the body is {media[:80] or 'of no content-type'}, send application/json", field="content-type"
            )
        try:
            return read_json(data, HTTP_BODY_BYTES_MAX)
        except ProtocolError as error:
            raise MalformedRequest(error.text, **{"field": "body", **error.details}) from None

    # --- server-sent events ---------------------------------------------------------------------------------
    async def _events(self, exchange: Exchange) -> Response | None:
        """The overview, again and again, until the client goes or the node stops."""
        query = _query(exchange)
        wanted = self.views.wanted(query, _principal(exchange))
        if exchange.method == "HEAD":
            return Response(200, b"", "text/event-stream")
        if self._streams >= HTTP_STREAMS_MAX:
            raise Overloaded(
                f"{self._streams} streams of events are open, at most {HTTP_STREAMS_MAX} may be",
                limit="HTTP_STREAMS_MAX",
                retry_after_ms=5_000,
            )
        self._streams += 1
        try:
            async with trio.open_nursery() as life:
                life.start_soon(self._until_gone, exchange, life.cancel_scope)
                life.start_soon(self._until_stopping, life.cancel_scope)
                await self._stream(exchange, wanted)
        finally:
            self._streams -= 1
        if not exchange.connection.failed:
            await exchange.send({"type": "http.response.body", "body": b""})
        return None

    async def _stream(self, exchange: Exchange, wanted: Any) -> None:
        head = Response(200, media="text/event-stream", headers={"x-accel-buffering": "no"})
        lines = [line for line in self._head(exchange, head) if line[0] != b"content-length"]
        exchange.status = 200
        await exchange.send({"type": "http.response.start", "status": 200, "headers": lines})
        number = 0
        while not exchange.connection.failed:
            if exchange.guard is not None and not self._still_in(exchange.guard):
                return
            number += 1
            data = write_json(await self.views.overview_of(wanted))
            event = f"id: {number}\nevent: overview\ndata: {data}\n\n".encode()
            await exchange.send({"type": "http.response.body", "body": event, "more_body": True})
            await trio.sleep(_EVENT_S)

    def _still_in(self, guard: Guard) -> bool:
        try:
            guard.check_life()
        except WalrqError:
            return False
        return True

    async def _until_gone(self, exchange: Exchange, life: trio.CancelScope) -> None:
        while (await exchange.receive())["type"] != "http.disconnect":
            pass
        life.cancel()

    async def _until_stopping(self, life: trio.CancelScope) -> None:
        await self._entrance.stopping.wait()
        life.cancel()


def _headers(scope: Mapping[str, Any]) -> dict[str, str]:
    """By name in lower case; of a header that comes twice the first counts."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return found


def _principal(exchange: Exchange) -> Principal | None:
    """Who asks, when not everybody sees everything."""
    guard = exchange.guard
    return None if guard is None or guard.principal.sees_all else guard.principal


def _require_read(exchange: Exchange, what: str) -> None:
    """
    Raises:
        Forbidden: it tells of every queue, and not every queue may be looked at.
    """
    if exchange.guard is not None:
        exchange.guard.require(api.Right.READ, "*", what)


def _query(exchange: Exchange) -> dict[str, str]:
    return routes.parse_query(exchange.scope["query_string"])


def _mark(exchange: Exchange) -> Mark | None:
    """A request's place in a session, from its headers.

    Raises:
        InvalidArgument: one of the headers is missing, or no number.
    """
    headers = exchange.headers
    if "walrq-session" not in headers:
        return None
    numbers = []
    for name in ("walrq-session", "walrq-sequence", "walrq-lowest"):
        text = headers.get(name, headers.get("walrq-sequence", ""))
        if not (text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) >= 1):
            raise InvalidArgument(f"the header {name} is a number from 1, not {text[:80]!r}", field=name)
        numbers.append(int(text))
    mark = Mark(*numbers)
    if mark.lowest > mark.sequence:
        raise InvalidArgument(f"walrq-lowest is {mark.lowest}, beyond walrq-sequence", field="walrq-lowest")
    return mark


def _too_large(size: int) -> FrameTooLarge:
    return FrameTooLarge(
        f"a body of {size} bytes, at most {HTTP_BODY_BYTES_MAX} are allowed", field="body", limit=HTTP_BODY_BYTES_MAX
    )
