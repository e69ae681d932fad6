"""Who is let in at the WebSocket door, and what everybody else is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walrq.doors.websocket_greeting import Admitted, Refused, first_look, judge
from walrq.limits import WS_HEAD_BYTES_MAX
from walrq.protocol.client import ClientConnection, Closed
from walrq.protocol.handshake import Hello


def request(*, host: str = "localhost:50052", offers: str | None = "walrq.json.v1", **more: str) -> bytes:
    """A page's request; `origin="..."` and the like are further header lines."""
    lines = [
        "GET / HTTP/1.1",
        f"Host: {host}",
        "Upgrade: websocket",
        "Connection: keep-alive, Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits",
    ]
    if offers is not None:
        lines.append(f"Sec-WebSocket-Protocol: {offers}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in more.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def verdict(head: bytes, *allowed: str, loopback: bool = True) -> Admitted | Refused:
    """What the door says."""
    return judge(head, allowed=allowed, loopback=loopback)


@pytest.mark.parametrize(
    ("offers", "chosen"),
    [
        ("walrq.json.v1", "walrq.json.v1"),
        ("walrq.cbor.v1", "walrq.cbor.v1"),
        ("mqtt, walrq.cbor.v1, walrq.json.v1", "walrq.cbor.v1"),
    ],
)
def test_the_first_language_that_is_known_is_spoken(offers: str, chosen: str) -> None:
    """The client lists them by its liking. Compression is never agreed to."""
    found = verdict(request(offers=offers))
    assert isinstance(found, Admitted)

    assert chosen == found.subprotocol
    assert f"sec-websocket-protocol: {chosen}" in found.answer.decode().lower()
    assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in found.answer
    assert b"extensions" not in found.answer.lower()


@pytest.mark.parametrize(
    ("head", "status", "words"),
    [
        (request(offers=None), 400, "the request offers neither"),
        (request(offers="mqtt"), 400, "the request offers neither"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 426, "not plain HTTP"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 426, "not plain HTTP"),
        (b"GET / HTTP/1.1\r\n\r\n", 426, "not plain HTTP"),
        (b"GET /\xff HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n", 4, "HTTP"),
        (b"PRI * HTTP/2.0\r\n\r\n", 4, "HTTP"),
    ],
)
def test_who_wants_no_websocket_is_told_what_this_is(head: bytes, status: int, words: str) -> None:
    """A person with a browser or curl reads one sentence, and knows."""
    found = verdict(head)
    assert isinstance(found, Refused)

    assert found.answer.startswith(f"HTTP/1.1 {status}".encode())
    assert words in found.answer.decode()
    assert b"walrq.json.v1" in found.answer


@pytest.mark.parametrize(
    ("origin", "host", "loopback", "allowed", "comes"),
    [
        (None, "localhost:50052", True, (), True),
        ("http://localhost:9090", "localhost:50052", True, (), True),
        ("http://127.0.0.1:9090", "127.0.0.1:50052", True, (), True),
        ("http://[::1]:9090", "[::1]:50052", True, (), True),
        ("http://app.localhost", "app.localhost:50052", True, (), True),
        ("HTTP://LOCALHOST:9090", "localhost:50052", True, (), True),
        ("https://queue.example", "queue.example", False, (), True),
        ("https://queue.example:8443", "queue.example", False, (), True),
        # Another site, in a page of this machine.
        ("https://evil.example", "localhost:50052", True, (), False),
        ("https://evil.example", "queue.example", False, (), False),
        # A name of another site that was made to point to this machine.
        ("http://evil.example:50052", "evil.example:50052", True, (), False),
        ("http://127.0.0.1.evil.example", "127.0.0.1.evil.example", True, (), False),
        ("http://localhost:9090", "127.0.0.1:50052", True, (), False),
        ("null", "localhost:50052", True, (), False),
        ("file://", "localhost:50052", True, (), False),
        ("chrome-extension://localhost", "localhost:50052", True, (), False),
        ("http://[", "localhost:50052", True, (), False),
        ("", "localhost:50052", True, (), False),
        ("https://app.example", "localhost:50052", True, ("https://app.example",), True),
        ("https://APP.example", "localhost:50052", True, ("https://app.example",), True),
        ("https://app.example:444", "localhost:50052", True, ("https://app.example",), False),
        ("null", "localhost:50052", True, ("null",), True),
        ("https://anybody.example", "localhost:50052", True, ("*",), True),
    ],
)
def test_pages_come_from_the_host_itself_or_from_the_list(
    origin: str | None, host: str, loopback: bool, allowed: tuple[str, ...], comes: bool
) -> None:
    """A browser lets every page connect to everything; that it says whose page it is, is all there is to go by."""
    more = {} if origin is None else {"Origin": origin}
    found = verdict(request(host=host, **more), *allowed, loopback=loopback)

    assert comes is isinstance(found, Admitted)
    if isinstance(found, Refused):
        assert found.answer.startswith(b"HTTP/1.1 403")
        assert b"allowed_origins" in found.answer


def test_two_origins_are_none() -> None:
    """A proxy that adds one must not open the door."""
    head = request(Origin="http://localhost:1").replace(b"Origin:", b"Origin: http://evil.example\r\nOrigin:")

    assert isinstance(verdict(head), Refused)


@pytest.mark.parametrize(
    ("head", "answer"),
    [
        (b"*1\r\n$4\r\nPING\r\n", b"-ERR This port speaks WebSocket"),
        (b"\x16\x03\x01\x02\x00\x01", b"\x15\x03\x01"),
        (b"GET /" + b"a" * WS_HEAD_BYTES_MAX, b"HTTP/1.1 431"),
    ],
)
def test_other_protocols_are_answered_in_their_own_words(head: bytes, answer: bytes) -> None:
    """At once: nobody waits for the end of a request that never comes."""
    found = first_look(head)
    assert found is not None

    assert found.answer.startswith(answer)


def test_a_native_client_learns_that_this_is_the_wrong_port() -> None:
    """It reads an error of its own protocol."""
    client = ClientConnection(Hello("lost"))
    found = first_look(client.take_output())
    assert found is not None
    [closed] = client.receive(found.answer)
    assert isinstance(closed, Closed)
    assert closed.error is not None

    assert "the native protocol has a port of its own" in closed.error.text


@pytest.mark.parametrize("head", [b"", b"GET", b"GET ", request()[:-4], request()])
def test_what_may_become_a_websocket_is_waited_for(head: bytes) -> None:
    """Packets are cut anywhere."""
    assert first_look(head) is None


@given(st.binary(max_size=200), st.sampled_from([b"", b"GET / HTTP/1.1\r\n", request()[:-2]]))
def test_no_bytes_do_more_than_be_refused(noise: bytes, start: bytes) -> None:
    """Whatever knocks."""
    head = start + noise + b"\r\n\r\n"
    found = first_look(head) or verdict(head)

    assert isinstance(found, Admitted | Refused)
