"""The server's end of a connection that speaks JSON: the states of `server.py`, other words.

    {"op": "hello", "client": "page/1"}                      -> {"reply": "welcome", "node": ..., "nodes": [...], ...}
    {"id": 1, "op": "push", "queue": "jobs", "payload": "x"} -> {"id": 1, "reply": "pushed", "ids": [...]}
    {"id": 1, "op": "push", "sequence": 3, "lowest": 2, ...}    as a request of the connection's session
                                                             <- {"reply": "goaway", "code": 52, ...}

Fields of requests and replies are those of `json_requests.py` and `json_replies.py`. Bodies come in frames here as
everywhere in this package; whoever carries them in messages (a WebSocket) takes the length off.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from walrq import api
from walrq.errors import LocalProtocolError, RemoteProtocolError, UnsupportedVersion, WalrqError
from walrq.limits import TOKEN_BYTES_MAX, TRACE_BYTES_MAX
from walrq.protocol import fields
from walrq.protocol.fields import UINT64_MAX
from walrq.protocol.handshake import VERSION_MAX, VERSION_MIN, GoAway, Hello, Welcome
from walrq.protocol.json_replies import REPLY, reply_to_json
from walrq.protocol.json_requests import OP, request_from_json
from walrq.protocol.json_text import plain_from_json, plain_to_json, read_json, write_json
from walrq.protocol.json_values import Field, integer, read_object, text
from walrq.protocol.requests import Incoming
from walrq.protocol.server import ServerConnection

HELLO: Final = "hello"
# Numbers that JavaScript keeps exact.
ID_MAX: Final = (1 << 53) - 1
_NAME_BYTES_MAX: Final = 255
_VERSION_LIMIT: Final = 65_535


def _features(value: object, name: str) -> Any:
    if type(value) is not dict:
        fields.refuse(name, value, "an object")
    return plain_from_json(value, name)


_HELLO: Final = (
    text("client", _NAME_BYTES_MAX, about="name and version, for people reading logs"),
    text("token", TOKEN_BYTES_MAX, None, "credential"),
    integer("session", UINT64_MAX, 0, None, "a session to go on with"),
    text("trace", TRACE_BYTES_MAX, None, "W3C traceparent"),
    Field("features", _features, {"type": "object"}, None, "names the client understands"),
    integer("version_min", _VERSION_LIMIT, 0, VERSION_MIN),
    integer("version_max", _VERSION_LIMIT, 0, VERSION_MAX),
)


def read_hello(body: bytes) -> Hello:
    """The Hello in a frame body.

    Raises:
        RemoteProtocolError: not JSON, or not a Hello at all. UnsupportedVersion. RequestError: a field is wrong.
    """
    given = read_json(body)
    if type(given) is not dict or given.get(OP) != HELLO:
        raise RemoteProtocolError('a connection begins with {"op": "hello", "client": ...}')
    del given[OP]
    made = read_object(given, HELLO, _HELLO)
    if made["version_min"] > VERSION_MAX or made["version_max"] < VERSION_MIN:
        raise UnsupportedVersion(
            f"the client speaks versions {made['version_min']} to {made['version_max']}, this server {VERSION_MIN} to"
            f" {VERSION_MAX}",
            version_min=VERSION_MIN,
            version_max=VERSION_MAX,
        )
    return Hello(**made | {"features": made["features"] or {}})


def write_welcome(welcome: Welcome) -> bytes:
    """The frame body of a Welcome. Raises LocalProtocolError: it holds what cannot be written."""
    return _write(
        {
            REPLY: "welcome",
            "version": welcome.version,
            "node": welcome.node,
            "cluster": welcome.cluster,
            "shards": [[each.first, each.last, each.address] for each in welcome.shards],
            "limits": plain_to_json(welcome.limits),
            "session": welcome.session,
            "server_ms": welcome.server_ms,
            "nodes": [{"node": each.node, "endpoint": each.endpoint} for each in welcome.nodes],
            "leader": welcome.leader,
        }
    )


def write_goaway(goaway: GoAway) -> bytes:
    """The frame body of a GoAway."""
    failed = reply_to_json(api.Failed(goaway.code, goaway.text))
    return _write(failed | {REPLY: "goaway"})


def write_reply(identifier: int, reply: api.Reply) -> bytes:
    """The frame body of a reply; id 0 concerns the connection itself.

    Raises:
        LocalProtocolError: it holds what cannot be written.
    """
    try:
        made = reply_to_json(reply)
    except WalrqError as error:
        raise LocalProtocolError(error.text) from error
    return _write({"id": identifier, **made})


def _write(value: Any) -> bytes:
    try:
        return write_json(value).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise LocalProtocolError(f"cannot be written as JSON: {error}") from error


def read_envelope(body: bytes) -> tuple[int, dict[str, Any]]:
    """(id, the rest) of a request that can be answered.

    Raises:
        RemoteProtocolError: not JSON, no object, or no id.
    """
    given = read_json(body)
    if type(given) is not dict:
        raise RemoteProtocolError('a request is an object {"id": ..., "op": ..., ...}')
    identifier = given.pop("id", None)
    if type(identifier) is not int or not 0 < identifier <= ID_MAX:
        raise RemoteProtocolError("a request's id is an integer from 1 to 2^53-1")
    if type(given.get(OP)) is not str:
        raise RemoteProtocolError("a request needs op, the name of its operation")
    return identifier, given | {"id": identifier}


def read_request(given: dict[str, Any], size: int) -> Incoming:
    """The checked request in an object from `read_envelope`; `size` is its text's, in bytes.

    Raises:
        RequestError: UnknownOperation, or the error of the field that is wrong.
    """
    identifier = given.pop("id")
    sequence, lowest = given.pop("sequence", None), given.pop("lowest", None)
    if sequence is not None or lowest is not None:
        fields.uint(sequence, "sequence", ID_MAX, 1)
        fields.uint(lowest, "lowest", sequence, 1)
    return Incoming(identifier, sequence, lowest, request_from_json(given), size)


def _never(body: bytes) -> None:
    return None


def _nothing(body: bytes, poll: api.Poll) -> None:
    return None


@attrs.define(eq=False, init=False)
class JsonServerConnection(ServerConnection):
    """One client's connection; driven like any `ServerConnection`."""

    _read_short = staticmethod(_never)
    _remember = staticmethod(_nothing)
    _read_request = staticmethod(read_request)  # type: ignore[assignment]  # of an object, not of an array
    _encode_reply = staticmethod(write_reply)
    _encode_welcome = staticmethod(write_welcome)
    _encode_goaway = staticmethod(write_goaway)

    def _decode_hello(self, body: bytes) -> Hello:
        return read_hello(body)

    def _read_envelope(self, body: bytes) -> tuple[int, Any]:
        return read_envelope(body)
