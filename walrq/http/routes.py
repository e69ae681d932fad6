"""THE table of the HTTP API: which method and path means which operation of `protocol/json_requests.OPERATIONS`.

    GET    /v1/queues/{queue}/messages?state=dead&limit=5      fields in the path and the query
    POST   /v1/queues/{queue}/messages    {"payload": "hello"} fields in the path and a JSON object

A GET changes nothing, and whatever changes something is no GET. The segments of a path are percent-decoded one by one,
so that a queue's name may hold any character (`%2F`); for the names `.` and `..`, which clients resolve before they
send, there is `POST /v1/request` with the operation in the object, as on a WebSocket.

The OpenAPI document is made from the same table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

import attrs

from walrq import api
from walrq.errors import InvalidArgument
from walrq.limits import HTTP_TARGET_BYTES_MAX, SETTLE_ITEMS_MAX
from walrq.protocol.json_requests import BY_NAME, Operation, request_from_json
from walrq.protocol.json_text import read_json

READS: Final = frozenset({"GET", "HEAD"})


@attrs.frozen
class Route:
    """One row.

    Attributes:
        method: of HTTP.
        path: segments between slashes, `{name}` for a field.
        op: the operation; "" where the object names it.
        about: one line for people, when the operation's own says less.
        tag: its chapter in the document.
    """

    method: str
    path: str
    op: str
    tag: str
    about: str = ""

    @property
    def operation(self) -> Operation:
        """The row of the JSON table."""
        return BY_NAME[self.op]

    @property
    def captured(self) -> tuple[str, ...]:
        """Fields in the path."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))


_Q: Final = "/v1/queues/{queue}"

ROUTES: Final[tuple[Route, ...]] = (
    Route("POST", f"{_Q}/messages", "push", "messages"),
    Route("GET", f"{_Q}/messages", "peek", "messages"),
    Route("POST", f"{_Q}/poll", "poll", "messages", "Lease messages; wait for them up to wait_ms."),
    Route("POST", "/v1/poll", "poll", "messages", "Lease messages of the first queue of several that has some."),
    Route("POST", f"{_Q}/ack", "ack", "messages"),
    Route("POST", f"{_Q}/release", "release", "messages"),
    Route("POST", f"{_Q}/fail", "fail", "messages"),
    Route("POST", f"{_Q}/reject", "reject", "messages"),
    Route("POST", f"{_Q}/touch", "touch", "messages"),
    Route("POST", f"{_Q}/cancel", "cancel", "messages"),
    Route("POST", f"{_Q}/reschedule", "reschedule", "messages"),
    Route("POST", "/v1/queues/{source}/move", "move", "messages"),
    Route("GET", "/v1/queues", "list_queues", "queues"),
    Route("GET", _Q, "show_queue", "queues"),
    Route("PUT", _Q, "set_queue", "queues"),
    Route("DELETE", _Q, "delete_queue", "queues"),
    Route("POST", f"{_Q}/purge", "purge_queue", "queues"),
    Route("GET", f"{_Q}/dead", "list_dead", "dead letters"),
    Route("POST", f"{_Q}/dead/redrive", "redrive", "dead letters"),
    Route("POST", f"{_Q}/dead/purge", "purge_dead", "dead letters"),
    Route("GET", "/v1/ping", "ping", "node"),
    Route("GET", "/v1/stats", "stats", "node"),
    Route("GET", "/v1/cluster", "cluster_status", "cluster"),
    Route("POST", "/v1/cluster/nodes", "add_node", "cluster"),
    Route("DELETE", "/v1/cluster/nodes/{node}", "remove_node", "cluster"),
    Route("POST", "/v1/cluster/transfer", "transfer_leadership", "cluster"),
    Route("GET", "/v1/tokens", "list_tokens", "tokens"),
    Route("PUT", "/v1/tokens/{name}", "set_token", "tokens"),
    Route("DELETE", "/v1/tokens/{name}", "revoke_token", "tokens"),
    Route("POST", "/v1/sessions", "open_session", "sessions"),
    Route("POST", "/v1/sessions/forget", "forget", "sessions"),
    Route("POST", "/v1/sessions/close", "close_session", "sessions"),
    Route("POST", "/v1/backups", "backup_begin", "backups"),
    Route("GET", "/v1/backups/{backup}/parts/{part}", "backup_read", "backups"),
    Route("DELETE", "/v1/backups/{backup}", "backup_end", "backups"),
    Route("POST", "/v1/request", "", "messages", "Any operation, named by `op` in the object."),
)


@attrs.frozen
class Match:
    """What a path came to: a route and the fields in the path, or the methods that the path has."""

    route: Route | None
    fields: Mapping[str, str]
    methods: tuple[str, ...]


def _fits(pattern: tuple[str, ...], segments: tuple[str, ...]) -> dict[str, str] | None:
    found = {}
    for part, given in zip(pattern, segments, strict=True):
        if part.startswith("{"):
            if not given:
                return None
            found[part[1:-1]] = given
        elif part != given:
            return None
    return found


def _by_length(routes: tuple[Route, ...]) -> dict[int, list[tuple[tuple[str, ...], Route]]]:
    found: dict[int, list[tuple[tuple[str, ...], Route]]] = {}
    for route in routes:
        pattern = tuple(route.path.split("/"))
        found.setdefault(len(pattern), []).append((pattern, route))
    return found


_BY_LENGTH: Final = _by_length(ROUTES)


def segments_of(raw_path: bytes) -> tuple[str, ...]:
    """The path's segments, decoded one by one.

    Raises:
        InvalidArgument: not UTF-8, or too long.
    """
    if len(raw_path) > HTTP_TARGET_BYTES_MAX:
        raise InvalidArgument(
            f"a path of {len(raw_path)} bytes, at most {HTTP_TARGET_BYTES_MAX} are allowed",
            field="path",
            limit=HTTP_TARGET_BYTES_MAX,
        )
    try:
        return tuple([unquote_to_bytes(part).decode() for part in raw_path.split(b"/")])
    except UnicodeDecodeError:
        raise InvalidArgument("the path is not UTF-8 once it is percent-decoded", field="path") from None


def match(method: str, segments: tuple[str, ...]) -> Match:
    """The route of a path; HEAD counts as GET."""
    wanted = "GET" if method == "HEAD" else method
    methods = []
    for pattern, route in _BY_LENGTH.get(len(segments), ()):
        found = _fits(pattern, segments)
        if found is not None:
            if route.method == wanted:
                return Match(route, found, ())
            methods.append(route.method)
    return Match(None, {}, tuple(methods))


# --- fields -------------------------------------------------------------------------------------------------
def parse_query(query: bytes) -> dict[str, str]:
    """Names and values of a query, each name once.

    Raises:
        InvalidArgument: not UTF-8, a name twice, too many or too long.
    """
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_QUERY_FIELDS_MAX
        )
    except UnicodeError:
        raise InvalidArgument("the query is not UTF-8 once it is percent-decoded", field="query") from None
    except ValueError:
        raise InvalidArgument(
            f"the query has more than {_QUERY_FIELDS_MAX} fields", field="query", limit=_QUERY_FIELDS_MAX
        ) from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidArgument(f"the query names {name[:80]!r} twice", field=name[:80])
        found[name] = value
    return found


_QUERY_FIELDS_MAX: Final = 64
_TRUTH: Final = {"true": True, "1": True, "false": False, "0": False, "yes": True, "no": False}


def _from_text(name: str, text: str, schema: Mapping[str, Any]) -> Any:
    """The value that `text` stands for in a path or query."""
    kind = schema.get("type")
    if kind == "integer":
        # What is no number stays text, and the field itself says what it wants.
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX else text
    if kind == "boolean":
        return _TRUTH.get(text.lower(), text)
    if kind == "array":
        return text.split(",", SETTLE_ITEMS_MAX) if text else []
    if kind == "object":
        return read_json(text)
    return text


# The largest number of 64 bits has 20.
_DIGITS_MAX: Final = 20


def texts(operation: Operation, given: Mapping[str, str]) -> dict[str, Any]:
    """Fields from a path or query, each as its schema's type; unknown ones are left for the reader to refuse."""
    schemas = {field.name: field.schema for field in operation.fields}
    return {name: _from_text(name, text, schemas.get(name, {})) for name, text in given.items()}


def request_of(route: Route, captured: Mapping[str, str], query: Mapping[str, str], body: object) -> api.Request:
    """The checked request of an operation's route.

    Args:
        body: the decoded object of the body, None without one.

    Raises:
        RequestError: the error of the field that is wrong, which `details["field"]` names.
    """
    if body is not None and not isinstance(body, dict):
        raise InvalidArgument("the body is not a JSON object", field="body")
    if not route.op:
        return request_from_json(body if body is not None else {})
    operation = route.operation
    given: dict[str, Any] = {}
    for source in (texts(operation, captured), texts(operation, query), body or {}):
        for name, value in source.items():
            if name in given and name in route.captured and value != given[name]:
                raise InvalidArgument(f"{name} is in the path and, differently, beside it", field=name)
            given[name] = value
    return request_from_json(given, operation.name)
