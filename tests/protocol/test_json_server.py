"""The server's end that speaks JSON: handshake, requests, and what ends a connection."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol import samples
from walrq import api
from walrq.errors import Code
from walrq.limits import HELLO_BYTES_MAX
from walrq.protocol.framing import frame
from walrq.protocol.handshake import Hello, Welcome
from walrq.protocol.json_server import JsonServerConnection
from walrq.protocol.requests import Incoming
from walrq.protocol.server import BadRequest, Closed, Event, HelloReceived, ServerState


def judge(hello: Hello) -> Welcome | api.Failed:
    """Lets in whoever has the right token, or none."""
    if hello.token not in (None, "right"):
        return api.Failed(int(Code.UNAUTHENTICATED), "wrong token")
    return Welcome("n1", "c1", (), {}, hello.session, 1, nodes=(api.NodeAt("n1", "h:1"),))


def told(connection: JsonServerConnection) -> list[dict[str, Any]]:
    """What it has to say."""
    found = []
    rest = connection.take_output()
    while rest:
        end = 4 + int.from_bytes(rest[:4], "big")
        found.append(json.loads(rest[4:end]))
        rest = rest[end:]
    return found


def say(connection: JsonServerConnection, *objects: Any) -> list[Event]:
    """Let it hear these."""
    return connection.receive(b"".join(frame(json.dumps(each).encode()) for each in objects))


def opened(**hello: Any) -> JsonServerConnection:
    """A connection behind its handshake."""
    connection = JsonServerConnection(welcome=judge)
    [event] = say(connection, {"op": "hello", "client": "page/1", **hello})
    assert isinstance(event, HelloReceived), event
    told(connection)
    return connection


def test_a_page_is_welcomed_with_its_session() -> None:
    """It goes on where it was, wherever that was."""
    connection = JsonServerConnection(welcome=judge)
    [event] = say(connection, {"op": "hello", "client": "page/1", "session": 7, "token": "right"})
    [welcome] = told(connection)

    assert isinstance(event, HelloReceived)
    assert ("page/1", 7, "right") == (event.hello.client, event.hello.session, event.hello.token)
    assert ("welcome", 7, [{"node": "n1", "endpoint": "h:1"}]) == (
        welcome["reply"],
        welcome["session"],
        welcome["nodes"],
    )
    assert (ServerState.OPEN, 7) == (connection.state, connection.session)


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        ({"op": "hello", "client": "x", "token": "wrong"}, Code.UNAUTHENTICATED),
        ({"op": "hello", "client": "x", "version_min": 9, "version_max": 9}, Code.UNSUPPORTED_VERSION),
        ({"op": "hello"}, Code.INVALID_ARGUMENT),
        ({"op": "hello", "client": "x", "tokn": "right"}, Code.INVALID_ARGUMENT),
        ({"op": "hello", "client": "x", "features": 1}, Code.INVALID_ARGUMENT),
        ({"op": "ping", "id": 1}, Code.PROTOCOL_VIOLATION),
        ([], Code.PROTOCOL_VIOLATION),
        ({"op": "hello", "client": "x" * HELLO_BYTES_MAX}, Code.FRAME_TOO_LARGE),
    ],
)
def test_who_greets_wrongly_is_told_why_and_sent_away(hello: Any, code: Code) -> None:
    """The same ends as at the native door."""
    connection = JsonServerConnection(welcome=judge)
    [event] = say(connection, hello)
    [failed] = told(connection)

    assert isinstance(event, Closed)
    assert (0, "failed", int(code)) == (failed["id"], failed["reply"], failed["code"])
    assert ServerState.CLOSED is connection.state


def test_requests_are_answered_by_their_number() -> None:
    """Replies come in any order, so each says whose it is."""
    connection = opened()
    first, second = say(connection, {"id": 1, "op": "ping"}, {"id": 2, "op": "show_queue", "queue": "q"})
    assert isinstance(first, Incoming)
    assert isinstance(second, Incoming)
    connection.reply(2, samples.SAMPLE_INFO)
    connection.reply(1, api.Pong())

    assert (api.Ping(), api.ShowQueue("q")) == (first.request, second.request)
    assert [(2, "queue"), (1, "pong")] == [(each["id"], each["reply"]) for each in told(connection)]


def test_session_numbers_come_along() -> None:
    """A retry is told by them from a second request."""
    connection = opened(session=3)
    [event] = say(connection, {"id": 1, "op": "push", "queue": "q", "payload": "x", "sequence": 5, "lowest": 4})
    assert isinstance(event, Incoming)

    assert (5, 4) == (event.sequence, event.lowest)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"id": 1, "op": "pish"}, None),
        ({"id": 1, "op": "push", "queue": "q"}, "payload"),
        ({"id": 1, "op": "ping", "sequence": 1}, "lowest"),
        ({"id": 1, "op": "ping", "sequence": 1, "lowest": 2}, "lowest"),
        ({"id": 1, "op": "ping", "sequence": 1, "lowest": 1}, "sequence"),
    ],
)
def test_a_refused_request_leaves_the_connection_open(request_: Any, field: str | None) -> None:
    """Others are not touched by it."""
    connection = opened()
    [event] = say(connection, request_)
    [failed] = told(connection)
    after = say(connection, {"id": 1, "op": "ping"})

    assert isinstance(event, BadRequest)
    assert (1, "failed", field) == (failed["id"], failed["reply"], failed["details"].get("field"))
    assert [Incoming] == [type(each) for each in after]


@pytest.mark.parametrize(
    "objects",
    [
        [{"op": "ping"}],
        [{"id": 0, "op": "ping"}],
        [{"id": 1 << 53, "op": "ping"}],
        [{"id": True, "op": "ping"}],
        [{"id": 1}],
        [7],
        [{"id": 1, "op": "ping"}, {"id": 1, "op": "ping"}],
    ],
)
def test_a_request_that_cannot_be_answered_ends_the_connection(objects: list[Any]) -> None:
    """Nobody would know whose the answer is."""
    connection = opened()
    events = say(connection, *objects)
    failed = told(connection)[-1]

    assert isinstance(events[-1], Closed)
    assert (0, int(Code.PROTOCOL_VIOLATION)) == (failed["id"], failed["code"])


def test_a_node_that_stops_says_so() -> None:
    """What crossed that word on its way is refused, definitely."""
    connection = opened()
    connection.send_goaway(Code.DRAINING, "stopping")
    events = say(connection, {"id": 1, "op": "ping"})
    goaway, refused = told(connection)

    assert ("goaway", "DRAINING") == (goaway["reply"], goaway["name"])
    assert ([BadRequest], "DRAINING", True) == ([type(each) for each in events], refused["name"], refused["definite"])


def test_a_reply_that_cannot_be_written_is_an_internal_error() -> None:
    """The page is answered, and the mistake of ours is raised."""
    connection = opened()
    say(connection, {"id": 1, "op": "stats"})
    with pytest.raises(Exception, match="JSON"):
        connection.reply(1, api.StatsReply({"x": float("nan")}))
    [failed] = told(connection)

    assert (1, "INTERNAL") == (failed["id"], failed["name"])


@given(st.lists(st.binary(max_size=30) | st.sampled_from([b'{"id":1,"op":"ping"}', b'{"op":"hello"}']), max_size=5))
def test_no_bytes_do_more_than_end_the_connection(bodies: list[bytes]) -> None:
    """Whatever a page sends."""
    connection = opened()
    events = connection.receive(b"".join(map(frame, bodies)))

    assert all(isinstance(each, Incoming | BadRequest | Closed) for each in events)
    assert [] == [each for each in events[:-1] if isinstance(each, Closed)]
