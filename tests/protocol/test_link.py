"""A client and a server end with a fake wire between them."""

from __future__ import annotations

import gc
import random
import tracemalloc
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol import samples
from walrq import api
from walrq.errors import (
    BatchTooLarge,
    Code,
    ConnectionLost,
    Draining,
    FrameTooLarge,
    InvalidArgument,
    LocalProtocolError,
    RemoteProtocolError,
    Unauthenticated,
    UnsupportedVersion,
)
from walrq.limits import FRAME_BYTES_MAX, HELLO_BYTES_MAX, MIB
from walrq.protocol import client, server
from walrq.protocol.client import Answer, ClientConnection, ClientState, Welcomed, WentAway
from walrq.protocol.columns import pack
from walrq.protocol.framing import frame
from walrq.protocol.handshake import GoAway, Hello, Welcome, encode_goaway, encode_hello, encode_welcome
from walrq.protocol.replies import decode_reply, encode_reply
from walrq.protocol.requests import Incoming, encode_request
from walrq.protocol.server import BadRequest, HelloReceived, ServerConnection, ServerState

HELLO = Hello("test/1")


def a_server(**options: Any) -> ServerConnection:
    return ServerConnection(welcome=lambda hello: samples.WELCOME, **options)


def linked() -> tuple[ClientConnection, ServerConnection]:
    """Both ends after their handshake."""
    near, far = ClientConnection(HELLO), a_server()
    assert [HelloReceived(HELLO, samples.WELCOME)] == far.receive(near.take_output())
    assert [Welcomed(samples.WELCOME)] == near.receive(far.take_output())
    return near, far


def opened() -> ServerConnection:
    """A server's end after Hello, its Welcome taken."""
    far = a_server()
    far.receive(frame(encode_hello(HELLO)))
    far.take_output()
    return far


def replies(data: bytes) -> list[tuple[int, api.Reply]]:
    """The replies in a server's output."""
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(decode_reply(data[4 : 4 + size]))
        data = data[4 + size :]
    return found


def test_the_handshake_tells_both_ends_of_each_other() -> None:
    """Name, session and limits are known before the first request."""
    near, far = linked()
    assert (ClientState.OPEN, ServerState.OPEN) == (near.state, far.state)
    assert samples.WELCOME == near.welcome
    assert HELLO == far.hello
    assert 7 == near.session == far.session
    assert b"" == near.take_output() == far.take_output()


@given(
    st.lists(st.tuples(samples.ANY_REQUEST, samples.ANY_REPLY), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_pipelined_requests_are_answered_in_any_order(
    pairs: list[tuple[api.Request, api.Reply]], rng: random.Random
) -> None:
    """Replies find their requests by id, whatever overtakes what and however the bytes are cut."""
    near, far = linked()
    asked = {near.request(request): (request, reply) for request, reply in pairs}
    incoming: list[Any] = []
    for piece in pieces(near.take_output(), rng):
        incoming += far.receive(piece)
    assert [(number, asked[number][0]) for number in asked] == [(each.id, each.request) for each in incoming]
    assert len(pairs) == near.in_flight == far.in_flight

    order = list(asked)
    rng.shuffle(order)
    for number in order:
        far.reply(number, asked[number][1])
    answers: list[Any] = []
    for piece in pieces(far.take_output(), rng):
        answers += near.receive(piece)

    assert [Answer(number, asked[number][1]) for number in order] == answers
    assert 0 == near.in_flight == far.in_flight


def pieces(data: bytes, rng: random.Random) -> list[bytes]:
    """The bytes cut at random places."""
    found = []
    while data:
        size = rng.randint(1, 40)
        found.append(data[:size])
        data = data[size:]
    return found


def test_every_split_of_a_conversation_means_the_same() -> None:
    """Cut once at every byte: Hello, two requests, one refused, and a good-bye of the client."""
    stream = (
        frame(encode_hello(HELLO))
        + frame(encode_request(1, api.Push("jobs", pack([b"one", b"two"])), 1, 1))
        + frame(encode_request(2, api.Poll(("",))))
        + frame(encode_request(3, api.Ping()))
    )
    whole = a_server()
    expected = whole.receive(stream)
    said = whole.take_output()
    assert 4 == len(expected)
    for cut in range(len(stream) + 1):
        far = a_server()
        assert expected == far.receive(stream[:cut]) + far.receive(stream[cut:])
        assert said == far.take_output()


def test_a_partial_frame_at_the_end_is_never_a_request() -> None:
    """Whatever its length: the stream ended inside it, so it is an error and nothing else."""
    data = frame(encode_request(1, api.Ping()))
    for cut in range(1, len(data)):
        far = opened()
        assert [] == far.receive(data[:cut])
        assert cut == far.frames.partial
        (event,) = far.receive_eof()
        assert isinstance(event, server.Closed)
        assert isinstance(event.error, RemoteProtocolError)
        assert 0 == far.in_flight
        assert [] == far.receive_eof() == far.receive(data)


def test_a_partial_reply_at_the_end_is_never_an_answer() -> None:
    """The same on the client's side: the request stays unanswered."""
    data = frame(encode_reply(1, api.Pong()))
    for cut in range(1, len(data)):
        near, _ = linked()
        number = near.request(api.Ping())
        assert [] == near.receive(data[:cut])
        (event,) = near.receive_eof()
        assert isinstance(event, client.Closed)
        assert isinstance(event.error, RemoteProtocolError)
        assert (number,) == event.unanswered


def test_an_end_between_frames_is_orderly() -> None:
    """A client may leave; a server that leaves with requests open has lost them."""
    near, far = linked()
    assert [server.Closed(None)] == far.receive_eof()
    assert [client.Closed(None, ())] == near.receive_eof()
    near, far = linked()
    number = near.request(api.Ping())
    (event,) = near.receive_eof()
    assert isinstance(event, client.Closed) and isinstance(event.error, ConnectionLost)
    assert (number,) == event.unanswered


def test_a_request_that_is_refused_leaves_the_connection_open() -> None:
    """One wrong request among good ones costs only itself."""
    near, far = linked()
    wrong = near.request(api.Poll(("a\nb",)))
    good = near.request(api.Ping())
    bad, ping = far.receive(near.take_output())

    assert isinstance(bad, BadRequest) and wrong == bad.id and Code.INVALID_QUEUE_NAME == bad.failed.code
    assert isinstance(ping, Incoming) and good == ping.id
    assert 1 == far.in_flight
    assert [Answer(wrong, bad.failed)] == near.receive(far.take_output())


def test_an_unknown_operation_is_refused_by_id() -> None:
    """A newer client's request is answered, so that it can fall back."""
    far = opened()
    (event,) = far.receive(frame(cbor2.dumps([200, 5, None, None, "what"])))
    assert isinstance(event, BadRequest)
    assert [(5, event.failed)] == replies(far.take_output())
    assert Code.UNKNOWN_OPERATION == event.failed.code


@pytest.mark.parametrize(
    "body",
    [b"\xff", b"\x81", b"\xa0", b"\x80", cbor2.dumps([20, 0, None, None]), b"\x9b" + b"\xff" * 8, b"\x14\x14"],
    ids=repr,
)
def test_a_frame_beyond_trust_closes_the_connection_with_a_word(body: bytes) -> None:
    """After broken CBOR nothing that follows is believed; the reason is sent before the end."""
    far = opened()
    events = far.receive(frame(encode_request(1, api.Ping())) + frame(body) + frame(encode_request(2, api.Ping())))
    assert isinstance(events[0], Incoming)
    (closed,) = events[1:]
    assert isinstance(closed, server.Closed) and isinstance(closed.error, RemoteProtocolError)
    ((number, failed),) = replies(far.take_output())
    assert 0 == number
    assert isinstance(failed, api.Failed) and Code.PROTOCOL_VIOLATION == failed.code
    assert ServerState.CLOSED is far.state
    assert [] == far.receive(frame(encode_request(3, api.Ping())))
    far.reply(1, api.Pong())
    assert b"" == far.take_output(), "nothing follows the parting word"


def test_an_id_in_flight_is_not_used_twice() -> None:
    """Two answers to one id could not be told apart; after the answer the id is free again."""
    far = opened()
    far.receive(frame(encode_request(1, api.Ping())))
    far.reply(1, api.Pong())
    far.receive(frame(encode_request(1, api.Ping())))
    (event,) = far.receive(frame(encode_request(1, api.Ping())))
    assert isinstance(event, server.Closed) and "in flight" in str(event.error)


def test_a_sequence_needs_a_session() -> None:
    """Without a session there is nothing that could remember it."""
    far = ServerConnection(welcome=lambda hello: Welcome("n", "c", (), {}, None, 1))
    far.receive(frame(encode_hello(HELLO)))
    far.take_output()
    (event,) = far.receive(frame(encode_request(1, api.Ping(), 1, 1)))
    assert isinstance(event, BadRequest)
    far.receive(frame(encode_request(2, api.OpenSession())))
    far.reply(2, api.SessionOpened(33))
    assert 33 == far.session
    (event,) = far.receive(frame(encode_request(3, api.Ping(), 1, 1)))
    assert isinstance(event, Incoming)


def test_a_large_frame_is_refused_by_its_length_alone() -> None:
    """Neither end waits for the body."""
    far = opened()
    (event,) = far.receive((FRAME_BYTES_MAX + 1).to_bytes(4, "big"))
    assert isinstance(event, server.Closed) and isinstance(event.error, FrameTooLarge)
    near, _ = linked()
    (gone,) = near.receive(b"\xff\xff\xff\xff")
    assert isinstance(gone, client.Closed) and isinstance(gone.error, FrameTooLarge)


def test_before_hello_only_a_small_frame_is_taken() -> None:
    """A peer nobody knows yet does not get 32 MiB of buffer; afterwards a large request passes."""
    far = a_server()
    (event,) = far.receive((HELLO_BYTES_MAX + 1).to_bytes(4, "big"))
    assert isinstance(event, server.Closed) and isinstance(event.error, FrameTooLarge)
    near, far = linked()
    near.request(api.Push("q", pack([bytes(MIB)])))
    (incoming,) = far.receive(near.take_output())
    assert isinstance(incoming, Incoming) and incoming.size > MIB


def test_a_request_before_hello_closes_the_connection() -> None:
    """Nobody is served unasked."""
    far = a_server()
    (event,) = far.receive(frame(encode_request(1, api.Ping())))
    assert isinstance(event, server.Closed) and isinstance(event.error, RemoteProtocolError)


def test_hello_twice_closes_the_connection() -> None:
    """The second is read as a request and is none."""
    far = opened()
    (event,) = far.receive(frame(encode_hello(HELLO)))
    assert isinstance(event, server.Closed) and isinstance(event.error, RemoteProtocolError)


def test_a_refused_hello_reaches_the_client_as_its_error() -> None:
    """A wrong token is told by its code, on both sides."""
    near = ClientConnection(HELLO)
    far = ServerConnection(welcome=lambda hello: api.Failed(Code.UNAUTHENTICATED, "a token is needed", {"a": 1}))
    (event,) = far.receive(near.take_output())
    assert isinstance(event, server.Closed) and isinstance(event.error, Unauthenticated)
    (closed,) = near.receive(far.take_output())
    assert isinstance(closed, client.Closed) and isinstance(closed.error, Unauthenticated)
    assert {"a": 1} == closed.error.details
    assert ClientState.CLOSED is near.state


def test_a_client_of_the_future_is_told_our_versions() -> None:
    """`welcome` is not even asked."""
    near = ClientConnection(Hello("future", version_min=2, version_max=3))
    far = ServerConnection(welcome=lambda hello: pytest.fail("asked"))
    far.receive(near.take_output())
    (closed,) = near.receive(far.take_output())
    assert isinstance(closed, client.Closed) and isinstance(closed.error, UnsupportedVersion)
    assert {"version_min": 1, "version_max": 1} == closed.error.details


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 400 "),
        (b"*1\r\n$4\r\nPING\r\n", b"-ERR "),
        (b"\x16\x03\x01\x02\x00\x01\x00", b"\x00\x00\x00"),
    ],
)
def test_other_protocols_get_a_polite_answer(data: bytes, answer: bytes) -> None:
    """Somebody pointed a browser, redis-cli or a TLS client here."""
    far = a_server()
    (event,) = far.receive(data)
    assert isinstance(event, server.Closed) and isinstance(event.error, RemoteProtocolError)
    assert far.take_output().startswith(answer)


def test_goaway_lets_what_is_in_flight_finish_and_refuses_the_rest() -> None:
    """Draining: every request is answered or definitely refused."""
    near, far = linked()
    early = near.request(api.Ping())
    far.receive(near.take_output())
    late = near.request(api.Ping())
    far.send_goaway(Code.DRAINING, "the node is stopping")
    far.send_goaway(Code.DRAINING, "once is enough")
    (refused,) = far.receive(near.take_output())
    far.reply(early, api.Pong())

    assert isinstance(refused, BadRequest) and late == refused.id
    assert Draining.code == refused.failed.code
    assert [
        WentAway(Code.DRAINING, "the node is stopping"),
        Answer(late, refused.failed),
        Answer(early, api.Pong()),
    ] == near.receive(far.take_output())
    with pytest.raises(LocalProtocolError):
        near.request(api.Ping())
    assert [client.Closed(None, ())] == near.receive_eof()


def test_goaway_before_hello_is_an_error_frame() -> None:
    """Too many connections: the reason arrives although no handshake took place."""
    near, far = ClientConnection(HELLO), a_server()
    far.send_goaway(Code.TOO_MANY_CONNECTIONS, "at most 64 connections")
    (closed,) = near.receive(far.take_output())
    assert isinstance(closed, client.Closed) and closed.error is not None
    assert Code.TOO_MANY_CONNECTIONS == closed.error.code


def test_a_reply_to_nobody_is_our_own_error() -> None:
    """Answering twice is a bug of the daemon, told to the daemon."""
    _, far = linked()
    with pytest.raises(LocalProtocolError, match="not in flight"):
        far.reply(1, api.Pong())


def test_a_reply_that_cannot_be_sent_is_answered_as_internal() -> None:
    """The client is not left waiting for a reply that no frame can hold."""
    near, far = linked()
    number = near.request(api.Stats())
    far.receive(near.take_output())
    with pytest.raises(LocalProtocolError):
        far.reply(number, api.StatsReply({"a": object()}))
    (answer,) = near.receive(far.take_output())
    assert isinstance(answer, Answer) and isinstance(answer.reply, api.Failed)
    assert Code.INTERNAL == answer.reply.code
    assert 0 == far.in_flight


def test_replies_after_the_end_are_dropped() -> None:
    """Requests of a closed connection may still be finishing in the daemon."""
    near, far = linked()
    number = near.request(api.Ping())
    far.receive(near.take_output())
    far.receive_eof()
    far.reply(number, api.Pong())
    assert (0, b"") == (far.in_flight, far.take_output())


def test_a_client_believes_only_replies_it_asked_for() -> None:
    """An answer to nobody means the stream is not what we think."""
    for body in (
        encode_reply(99, api.Pong()),
        encode_reply(0, api.Pong()),
        encode_welcome(samples.WELCOME),
        cbor2.dumps([200, 1]),
        cbor2.dumps([255, "x", 1]),
        b"\xff",
    ):
        near, _ = linked()
        (event,) = near.receive(frame(body))
        assert isinstance(event, client.Closed) and isinstance(event.error, RemoteProtocolError)


def test_a_client_wants_welcome_first() -> None:
    """Neither GoAway nor a reply comes before it, and no request goes out."""
    for body in (encode_goaway(GoAway(52, "x")), encode_reply(1, api.Pong())):
        near = ClientConnection(HELLO)
        with pytest.raises(LocalProtocolError):
            near.request(api.Ping())
        (event,) = near.receive(frame(body))
        assert isinstance(event, client.Closed) and isinstance(event.error, RemoteProtocolError)
    near = ClientConnection(HELLO)
    (event,) = near.receive_eof()
    assert isinstance(event, client.Closed) and isinstance(event.error, ConnectionLost)


def test_what_a_client_cannot_send_changes_nothing() -> None:
    """A refused request takes no id and puts no byte into the output."""
    near, _ = linked()
    with pytest.raises(BatchTooLarge):
        near.request(api.Push("q", pack([bytes(FRAME_BYTES_MAX)])))
    with pytest.raises(InvalidArgument):
        near.request(api.ShowQueue("\ud800"))
    near.session = None
    with pytest.raises(LocalProtocolError):
        near.request(api.Ping(), sequence=1, lowest=1)
    assert (0, b"") == (near.in_flight, near.take_output())
    assert 1 == near.request(api.Ping())


def test_a_server_that_calls_us_wrong_is_our_local_error() -> None:
    """The server's PROTOCOL_VIOLATION is a bug on this side, and says so."""
    near, far = linked()
    far.receive(b"\x00\x00\x00\x01\xff")
    (event,) = near.receive(far.take_output())
    assert isinstance(event, client.Closed) and isinstance(event.error, LocalProtocolError)


def test_a_closed_connection_holds_none_of_the_bytes_that_closed_it() -> None:
    """A flood of bad frames must not wait in memory for the garbage collector."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        kept = []
        for _ in range(20):
            far, (near, _) = opened(), linked()
            kept += far.receive(frame(b"\x42" * 100_000)) + far.receive_eof()
            kept += near.receive(frame(b"\x42" * 100_000)) + near.receive_eof()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()

    assert 40 == len(kept)
    assert held < 1_000_000


def test_close_ends_both_quietly() -> None:
    """After close nothing comes in and nothing is owed."""
    near, far = linked()
    near.close()
    far.close()
    near.close()
    far.close()
    assert [] == near.receive(b"x") == near.receive_eof()
    assert [] == far.receive(b"x") == far.receive_eof()
    far.send_goaway(52, "x")
    assert b"" == far.take_output()


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=5), st.booleans())
def test_arbitrary_bytes_never_break_an_end(chunks: list[bytes], greeted: bool) -> None:
    """Whatever comes: events, at most one Closed, and a state of the table."""
    ends: tuple[Any, ...] = (opened() if greeted else a_server(), linked()[0] if greeted else ClientConnection(HELLO))
    for end in ends:
        closed = 0
        for chunk in chunks:
            for data in (chunk, frame(chunk)):
                events = end.receive(data)
                closed += sum(isinstance(event, server.Closed | client.Closed) for event in events)
        events = end.receive_eof()
        closed += sum(isinstance(event, server.Closed | client.Closed) for event in events)
        assert 1 == closed
        assert "closed" == end.state.value
