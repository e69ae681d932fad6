"""Bytes to commands: whatever the cuts, the same commands; beyond a bound, nothing."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.resp.parts import frame
from walrq.errors import RemoteProtocolError
from walrq.limits import (
    MESSAGE_BYTES_LIMIT,
    RESP_ARGUMENTS_MAX,
    RESP_COMMAND_BYTES_MAX,
    RESP_INLINE_BYTES_MAX,
    RESP_STRANGER_ARGUMENTS_MAX,
    RESP_STRANGER_BYTES_MAX,
)
from walrq.resp.reading import Reader, split_line

# Payloads that look like what stands around them.
NASTY = st.sampled_from([b"", b"\r\n", b"$3\r\nabc\r\n", b"*1\r\n", b"\r", b"\n", b"$-1", b"\x00\xff", b"a\r\nb"])
ARGUMENTS = st.lists(st.binary(max_size=20) | NASTY | st.just(b"x" * 5_000), min_size=1, max_size=20)


def read(data: bytes, cuts: list[int] | None = None) -> list[list[bytes]]:
    """All commands in `data`, handed over in pieces."""
    reader = Reader()
    found = []
    edges = [0, *sorted({cut % (len(data) + 1) for cut in cuts or ()}), len(data)]
    for start, end in itertools.pairwise(edges):
        found += list(reader.feed(data[start:end]))
    assert reader.partial == 0 or not found or data
    return found


@given(st.lists(ARGUMENTS, max_size=6), st.lists(st.integers(0, 1 << 20), max_size=8))
def test_commands_come_out_as_they_went_in_whatever_the_cuts(commands: list[list[bytes]], cuts: list[int]) -> None:
    """Binary arguments, empty ones, and such that look like frames."""
    data = b"".join([frame(*words) for words in commands])
    assert read(data, cuts) == commands
    assert read(data) == commands


def test_every_single_cut_gives_the_same_commands() -> None:
    """Also between CR and LF."""
    commands = [[b"LPUSH", b"q", b"a\r\nb"], [b"PING"], [b"RPOP", b"q"]]
    data = b"".join([frame(*words) for words in commands])
    for cut in range(len(data) + 1):
        assert read(data, [cut]) == commands


def test_byte_by_byte_is_the_same() -> None:
    """The slowest sender."""
    data = frame(b"LPUSH", b"q", b"x" * 300) + b"PING\r\n" + frame(b"PING")
    assert read(data, list(range(len(data)))) == [[b"LPUSH", b"q", b"x" * 300], [b"PING"], [b"PING"]]


@pytest.mark.parametrize(
    "data",
    [
        b"*-1\r\n",
        b"*-2\r\n",
        b"*2147483648\r\n",
        b"*01\r\n",
        b"*+1\r\n",
        b"* 1\r\n",
        b"*1 \r\n",
        b"*\r\n",
        b"*1x\r\n",
        b"*1000000\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$-2\r\n",
        b"*1\r\n$2147483648\r\n",
        b"*1\r\n$04\r\nPING\r\n",
        b"*1\r\n$\r\n",
        b"*1\r\n$4\r\nPINGxx",
        b"*1\r\n*1\r\n$4\r\nPING\r\n",
        b"*1\r\n:1\r\n",
        b"*1\r\n+PING\r\n",
        b"*" + b"1" * 40,
        b"*1\r\n$" + b"1" * 40,
        b"*9" + b"9" * 400 + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"\x00\x00\x00\x10",
    ],
)
def test_lengths_that_are_none_end_it(data: bytes) -> None:
    """Negative, padded, signed, enormous, nested; and other protocols."""
    with pytest.raises(RemoteProtocolError):
        list(Reader().feed(data))


def test_bounds_are_the_last_that_is_read() -> None:
    """The largest legal command is read; one more argument, or one more byte, is refused with the bound."""
    most = frame(b"LPUSH", *[b""] * (RESP_ARGUMENTS_MAX - 1))
    assert [len(words) for words in read(most)] == [RESP_ARGUMENTS_MAX]
    with pytest.raises(RemoteProtocolError, match=str(RESP_ARGUMENTS_MAX)):
        list(Reader().feed(b"*%d\r\n" % (RESP_ARGUMENTS_MAX + 1)))
    with pytest.raises(RemoteProtocolError, match=str(MESSAGE_BYTES_LIMIT)):
        list(Reader().feed(b"*1\r\n$%d\r\n" % (MESSAGE_BYTES_LIMIT + 1)))
    reader = Reader()
    half = b"x" * MESSAGE_BYTES_LIMIT
    part = b"$%d\r\n%b\r\n" % (len(half), half)
    assert not list(reader.feed(b"*4\r\n" + part + part))
    with pytest.raises(RemoteProtocolError, match=str(RESP_COMMAND_BYTES_MAX)):
        list(reader.feed(part))


def test_what_is_announced_reserves_nothing() -> None:
    """A header of gigabytes costs a header, a million arguments likewise."""
    tracemalloc.start()
    try:
        reader = Reader()
        assert not list(reader.feed(b"*%d\r\n$%d\r\n" % (RESP_ARGUMENTS_MAX, MESSAGE_BYTES_LIMIT)))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert reader.partial < 100


def test_a_long_argument_in_many_pieces_is_held_once() -> None:
    """What has come of it counts, so that all connections together stay bounded."""
    reader = Reader()
    assert not list(reader.feed(b"*2\r\n$5\r\nLPUSH\r\n$1000000\r\n"))
    for sent in range(1, 100):
        assert not list(reader.feed(b"x" * 10_000))
        assert 0 <= reader.partial - 10_000 * sent < 100
    assert list(reader.feed(b"x" * 10_000 + b"\r\n")) == [[b"LPUSH", b"x" * 1_000_000]]
    assert reader.partial == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"PING\n", [[b"PING"]]),
        (b"PING\r\n", [[b"PING"]]),
        (b"  LPUSH  q   one \t two\r\n", [[b"LPUSH", b"q", b"one", b"two"]]),
        (b"\r\n\n\r\nPING\n", [[b"PING"]]),
        (b'LPUSH q "a b" \'c d\' ""\n', [[b"LPUSH", b"q", b"a b", b"c d", b""]]),
        (b'LPUSH q "\\x41\\n\\"\\\\"\n', [[b"LPUSH", b"q", b'A\n"\\']]),
        (b"LPUSH q 'it\\'s'\n", [[b"LPUSH", b"q", b"it's"]]),
        (b"PING\nPING\n*1\r\n$4\r\nPING\r\nPING\n", [[b"PING"]] * 4),
        (b"*0\r\nPING\n", [[b"PING"]]),
    ],
)
def test_plain_text_is_read_as_redis_reads_it(line: bytes, words: list[list[bytes]]) -> None:
    """Ended by LF alone, too, as netcat sends it; empty lines are nothing."""
    assert read(line) == words
    assert read(line, list(range(len(line)))) == words


@pytest.mark.parametrize("line", [b'LPUSH q "a', b"LPUSH q 'a", b'LPUSH q "a"b', b'LPUSH q a"b'])
def test_quotes_that_do_not_close_end_it(line: bytes) -> None:
    """Guessing would push something else than was meant."""
    with pytest.raises(RemoteProtocolError, match="quote"):
        split_line(line)


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1\r\n",
        b"POST /LPUSH HTTP/1.1\r\n",
        b"LPUSH /jobs HTTP/1.1\r\n",
        b"OPTIONS * HTTP/1.1\r\n",
        b"PRI * HTTP/2.0\r\n",
        b"Host: localhost\r\n",
        b"delete /x\r\n",
    ],
)
def test_http_ends_at_its_first_line(line: bytes) -> None:
    """A page that sends a request here, by whatever method, gets nothing done by what stands in its body."""
    reader = Reader()
    with pytest.raises(RemoteProtocolError, match="not HTTP"):
        list(reader.feed(line + b"Content-Length: 20\r\n\r\nLPUSH jobs evil\r\n"))


def test_a_line_without_end_ends_it() -> None:
    """As large as Redis allows, and not a byte more."""
    reader = Reader()
    assert not list(reader.feed(b"x" * (RESP_INLINE_BYTES_MAX - 1)))
    with pytest.raises(RemoteProtocolError, match=str(RESP_INLINE_BYTES_MAX)):
        list(reader.feed(b"x"))


def test_of_a_stranger_little_is_read() -> None:
    """Before the password: a few words, a few bytes."""
    for data in (
        b"*%d\r\n" % (RESP_STRANGER_ARGUMENTS_MAX + 1),
        b"*1\r\n$%d\r\n" % (RESP_STRANGER_BYTES_MAX + 1),
        frame(*[b"x" * 4_000] * 8),
        b"x" * RESP_STRANGER_BYTES_MAX,
    ):
        reader = Reader()
        reader.is_stranger = True
        with pytest.raises(RemoteProtocolError):
            list(reader.feed(data))
    reader = Reader()
    reader.is_stranger = True
    hello = [b"HELLO", b"3", b"AUTH", b"default", b"x" * 1_000, b"SETNAME", b"me"]
    assert list(reader.feed(frame(*hello))) == [hello]


@given(st.binary(max_size=200) | st.text("*$0123456789-\r\nabc \"'", max_size=60).map(str.encode))
def test_any_bytes_are_commands_or_refused(data: bytes) -> None:
    """No other exception, and nothing for ever."""
    try:
        for words in Reader().feed(data):
            assert words
    except RemoteProtocolError as error:
        assert error.text
