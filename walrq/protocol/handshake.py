"""The first frame of each side, and the last of the server.

    client  ["walrq", version min, version max, client, token, session, trace, features]
    server  ["walrq", version, node, cluster, shards, limits, session, server time ms, nodes, leader]
            or an error with id 0
    server  [255, code, text]                                           GoAway, at any time later

The first three elements of Hello keep their meaning in every version, so that an old server can refuse a new
client in words. Maps may carry names the other end does not know: they are passed on or ignored, never an
error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs
from cbor2 import CBORError

from walrq import api
from walrq.errors import (
    InvalidArgument,
    LocalProtocolError,
    MalformedRequest,
    RemoteProtocolError,
    RequestError,
    UnsupportedVersion,
)
from walrq.limits import SHARDS, TIME_MS_MAX, TOKEN_BYTES_MAX, TRACE_BYTES_MAX
from walrq.protocol import fields
from walrq.protocol.codec import Decoder, check_plain, encode
from walrq.protocol.fields import UINT64_MAX
from walrq.protocol.replies import GOAWAY, MEMBERS_TOLD_MAX

MAGIC: Final = "walrq"
VERSION_MIN: Final = 1
VERSION_MAX: Final = 1

_VERSION_LIMIT: Final = 65_535
_NAME_BYTES_MAX: Final = 255
_GOAWAY_TEXT_BYTES_MAX: Final = 4096


@api.value
class Hello:
    """What a client says first.

    Attributes:
        client: its name and version, for people reading logs ("walrq-python/0.1.0").
        token: credential, or None.
        session: a session to go on with, or None.
        trace: W3C traceparent of the connection, or None.
        features: names the client understands, with plain values.
        version_min: lowest protocol version it speaks.
        version_max: highest.
    """

    client: str
    token: str | None = None
    session: int | None = None
    trace: str | None = None
    features: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    version_min: int = VERSION_MIN
    version_max: int = VERSION_MAX


@api.value
class Shards:
    """Shards `first` to `last` (both included) are at `address` ("host:port"), None when nobody knows."""

    first: int
    last: int
    address: str | None


@api.value
class Welcome:
    """The server's answer to Hello.

    Attributes:
        node: the answering node's id.
        cluster: the cluster's id.
        shards: who serves which shards.
        limits: bounds the client should keep to (names of limits.py in lower case), plain values.
        session: the session this connection goes on with, or None.
        server_ms: the server's wall clock.
        version: the version both speak from here.
        nodes: every member of the cluster whose client address is known, the answering node among them.
        leader: "host:port" where clients reach the node that leads; None while none is known.
    """

    node: str
    cluster: str
    shards: tuple[Shards, ...]
    limits: Mapping[str, Any] = attrs.field(hash=False)
    session: int | None
    server_ms: int
    version: int = VERSION_MAX
    nodes: tuple[api.NodeAt, ...] = ()
    leader: str | None = None


@api.value
class GoAway:
    """The server's last word: it takes no further requests on this connection, and answers those it has."""

    code: int
    text: str


def _encode(what: str, item: tuple[Any, ...]) -> bytes:
    try:
        return encode(item)
    except (CBORError, ValueError, TypeError, OverflowError) as error:
        raise LocalProtocolError(f"{what} cannot be encoded: {error}") from error


def encode_hello(hello: Hello) -> bytes:
    """The frame body of a Hello.

    Raises:
        LocalProtocolError: it holds what cannot be encoded.
    """
    return _encode(
        "Hello",
        (
            MAGIC,
            hello.version_min,
            hello.version_max,
            hello.client,
            hello.token,
            hello.session,
            hello.trace,
            dict(hello.features),
        ),
    )


def decode_hello(frame: bytes, decoder: Decoder | None = None) -> Hello:
    """The Hello in a frame body.

    Raises:
        RemoteProtocolError: not plain CBOR, or not a Hello at all.
        UnsupportedVersion: a Hello of versions this side does not speak.
        RequestError: a Hello with a field out of range.
    """
    item = (decoder or Decoder()).decode(frame)
    if type(item) is not list or len(item) < 3 or item[0] != MAGIC or type(item[0]) is not str:
        raise RemoteProtocolError(f'a connection begins with Hello: ["{MAGIC}", version min, version max, ...]')
    version_min = fields.uint(item[1], "version min", _VERSION_LIMIT)
    version_max = fields.uint(item[2], "version max", _VERSION_LIMIT, version_min)
    if version_min > VERSION_MAX or version_max < VERSION_MIN:
        raise UnsupportedVersion(
            f"the client speaks versions {version_min} to {version_max}, this server {VERSION_MIN} to {VERSION_MAX}",
            version_min=VERSION_MIN,
            version_max=VERSION_MAX,
        )
    if len(item) != 8:
        raise MalformedRequest(f"Hello has 8 elements, this one has {len(item)}")
    return Hello(
        client=fields.text(item[3], "client", _NAME_BYTES_MAX),
        token=fields.optional_text(item[4], "token", TOKEN_BYTES_MAX),
        session=fields.optional_uint(item[5], "session", UINT64_MAX),
        trace=fields.optional_text(item[6], "trace", TRACE_BYTES_MAX),
        features=_map(item[7], "features"),
        version_min=version_min,
        version_max=version_max,
    )


def encode_welcome(welcome: Welcome) -> bytes:
    """The frame body of a Welcome.

    Raises:
        LocalProtocolError: it holds what cannot be encoded.
    """
    return _encode(
        "Welcome",
        (
            MAGIC,
            welcome.version,
            welcome.node,
            welcome.cluster,
            [(shards.first, shards.last, shards.address) for shards in welcome.shards],
            dict(welcome.limits),
            welcome.session,
            welcome.server_ms,
            [(each.node, each.endpoint) for each in welcome.nodes],
            welcome.leader,
        ),
    )


def read_welcome(item: object) -> Welcome:
    """The Welcome in a decoded frame.

    Raises:
        RemoteProtocolError: it is none.
    """
    if type(item) is not list or len(item) != 10 or item[0] != MAGIC:
        raise RemoteProtocolError(f'a server answers Hello with ["{MAGIC}", version, ...] or an error')
    try:
        return Welcome(
            version=fields.uint(item[1], "version", VERSION_MAX, VERSION_MIN),
            node=fields.text(item[2], "node", _NAME_BYTES_MAX),
            cluster=fields.text(item[3], "cluster", _NAME_BYTES_MAX),
            shards=tuple([_shards(each) for each in fields.array(item[4], "shards", SHARDS)]),
            limits=_map(item[5], "limits"),
            session=fields.optional_uint(item[6], "session", UINT64_MAX),
            server_ms=fields.uint(item[7], "server_ms", TIME_MS_MAX),
            nodes=tuple([_node_at(each) for each in fields.array(item[8], "nodes", MEMBERS_TOLD_MAX)]),
            leader=fields.optional_text(item[9], "leader", _NAME_BYTES_MAX),
        )
    except RequestError as error:
        raise RemoteProtocolError(f"in Welcome: {error.text}", **error.details) from None


def _shards(value: object) -> Shards:
    first, last, address = fields.tuple_of(value, "shards", 3)
    first = fields.uint(first, "shards", SHARDS - 1)
    return Shards(
        first,
        fields.uint(last, "shards", SHARDS - 1, first),
        fields.optional_text(address, "shards", _NAME_BYTES_MAX),
    )


def _node_at(value: object) -> api.NodeAt:
    node, endpoint = fields.tuple_of(value, "nodes", 2)
    return api.NodeAt(fields.node_name(node, "nodes"), fields.text(endpoint, "nodes", _NAME_BYTES_MAX))


def _map(value: object, field: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise InvalidArgument(f"{field} is not a map", field=field)
    check_plain(value, field)
    return value


def encode_goaway(goaway: GoAway) -> bytes:
    """The frame body of a GoAway; a long text is cut."""
    return _encode("GoAway", (GOAWAY, int(goaway.code), goaway.text[: _GOAWAY_TEXT_BYTES_MAX // 4]))


def read_goaway(item: list[Any]) -> GoAway:
    """The GoAway in a decoded frame.

    Raises:
        RemoteProtocolError: not of its form.
    """
    if len(item) != 3:
        raise RemoteProtocolError(f"GoAway has 3 elements, this one has {len(item)}")
    try:
        return GoAway(fields.uint(item[1], "code", UINT64_MAX), fields.text(item[2], "text", _GOAWAY_TEXT_BYTES_MAX))
    except RequestError as error:
        raise RemoteProtocolError(f"in GoAway: {error.text}", **error.details) from None
