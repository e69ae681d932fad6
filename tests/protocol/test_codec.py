"""Plain CBOR only: whatever bytes come, a plain value or one error, in little memory."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.protocol import samples
from walrq.errors import InvalidArgument, ProtocolError, RemoteProtocolError, RequestError
from walrq.limits import CBOR_DEPTH_MAX, CBOR_ITEMS_MAX
from walrq.protocol.codec import Decoder, check_plain, encode
from walrq.protocol.replies import decode_reply
from walrq.protocol.requests import decode_request

MIB = 1 << 20
BOMBS: dict[str, bytes] = {
    "array of 2^64": b"\x9b" + b"\xff" * 8,
    "array of 2^63-1": b"\x9b\x7f" + b"\xff" * 7,
    "bytes of 2^63-1": b"\x5b\x7f" + b"\xff" * 7,
    "bytes of 2^64-1": b"\x5b" + b"\xff" * 8,
    "text of 2^62": b"\x7b\x3f" + b"\xff" * 7,
    "map of 2^40": b"\xbb\0\0\1\0\0\0\0\0",
    "nest of lengths": b"\x9a\0\xff\xff\xff" * 8000,
    "nest of map lengths": b"\xba\0\xff\xff\xff\x61a" * 8000,
    "200 KB of 0x81": b"\x81" * 200_000 + b"\0",
    "200 KB of nested maps": b"\xa1\x61a" * 70_000 + b"\0",
    "tag chain": b"\xc1" * 200_000 + b"\0",
    "chain of tag 70": b"\xd8\x46" * 100_000 + b"\0",
    "indefinite arrays": b"\x9f" * 200_000,
    "indefinite array": b"\x9f\x01\xff",
    "indefinite map": b"\xbf\x61a\x01\xff",
    "indefinite bytes": b"\x5f\x41a\x41b\xff",
    "indefinite text": b"\x7f\x61a\xff",
    "big number": b"\xc2\x5a\0\x01\0\0" + b"\xff" * 65_536,
    "small big number": b"\xc2\x41\x01",
    "negative big number": b"\xc3\x41\x01",
    "date": b"\xc1\x1a\x51\x4b\x67\xb0",
    "date text": b"\xc0\x74" + b"2013-03-21T20:04:00Z",
    "date beyond all": b"\xc1\x1b" + b"\xff" * 8,
    "decimal with a huge exponent": b"\xc4\x82\x3a\x7f\xff\xff\xff\x01",
    "bigfloat": b"\xc5\x82\x1a\x7f\xff\xff\xff\x01",
    "rational": b"\xd8\x1e\x82\x01\x00",
    "regular expression": b"\xd8\x23\x68(a+)+$$$",
    "MIME": b"\xd8\x24\x61a",
    "UUID": b"\xd8\x25\x50" + b"a" * 16,
    "shared value": b"\x82\xd8\x1c\x81\x00\xd8\x1d\x00",
    "cycle": b"\xd8\x1c\x81\xd8\x1d\x00",
    "string references": b"\xd9\x01\x00\x82\x63abc\xd8\x19\x00",
    "set": b"\xd9\x01\x02\x81\x01",
    "address": b"\xd9\x01\x04\x44\1\2\3\4",
    "complex": b"\xd9\xa7\xf8\x82\x01\x02",
    "self-described": b"\xd9\xd9\xf7\x00",
    "unknown tag": b"\xda\xff\xff\xff\xff\x00",
    "huge tag": b"\xdb" + b"\xff" * 8 + b"\x00",
    "trailing byte": b"\x01\x02",
    "trailing item like the first": b"\x81\x01\x81\x01",
    "duplicate key": b"\xa2\x61a\x01\x61a\x02",
    "long duplicate key": b"\xa2" + (b"\x7a\0\x01\0\0" + b"k" * 65_536 + b"\x01") * 2,
    "array as key": b"\xa1\x81\x01\x01",
    "map as key": b"\xa1\xa0\x01",
    "number as key": b"\xa1\x01\x01",
    "bad UTF-8": b"\x61\xff",
    "surrogate in UTF-8": b"\x63\xed\xa0\x80",
    "reserved length": b"\x1c",
    "reserved simple value": b"\xf8\x01",
    "break alone": b"\xff",
    "break in an array": b"\x82\x01\xff",
    "nothing": b"",
    "a million nulls": b"\x9a\0\x0f\x42\x40" + b"\xf6" * 1_000_000,
    "a million tiny pairs": b"\xba\0\x07\xa1\x20"
    + b"".join(b"\x64" + b"%04x" % (i & 0xFFFF) + b"\xf6" for i in range(500_000)),
    "a million empty arrays": b"\x9a\0\x0f\x42\x40" + b"\x80" * 1_000_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_end_in_a_protocol_error_and_little_memory(name: str) -> None:
    """A few bytes must not become gigabytes, seconds, or live objects."""
    bomb = BOMBS[name]
    decoder = Decoder()
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError) as caught:
            decoder.decode(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < MIB
    assert len(caught.value.text) < 300
    assert [1, "ok"] == decoder.decode(encode([1, "ok"])), "the decoder works on after a bad frame"


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("deep", [False, True])
def test_bombs_inside_a_request_end_in_an_error(name: str, deep: bool) -> None:
    """The same where a setting's value or a queue name should be."""
    head = encode([9, 1, None, None, "q"])
    frame = b"\x87" + head[1:] + (b"\xa1\x61s" if deep else b"") + BOMBS[name] + b"\xf5"
    with pytest.raises((RemoteProtocolError, RequestError)):
        decode_request(frame)


def test_forbidden_tags_are_named_and_not_opened() -> None:
    """A tag is judged by its number alone: its content is not even read."""
    with pytest.raises(RemoteProtocolError, match="tag 35 is not allowed"):
        Decoder().decode(b"\xd8\x23\x7b" + b"\x00" * 8)


def test_depth_up_to_the_limit_is_taken_and_no_deeper() -> None:
    """The limit is exact."""
    item: Any = 1
    for _ in range(CBOR_DEPTH_MAX):
        item = [item]
    assert item == Decoder().decode(encode(item))
    with pytest.raises(RemoteProtocolError, match=str(CBOR_DEPTH_MAX)):
        Decoder().decode(encode([item]))


def test_many_items_up_to_the_limit_are_taken_and_no_more() -> None:
    """The largest legal frames pass, and strings do not count by their bytes."""
    count = CBOR_ITEMS_MAX - 1
    assert count == len(Decoder().decode(encode([0] * count)))
    with pytest.raises(RemoteProtocolError, match=str(CBOR_ITEMS_MAX)):
        Decoder().decode(encode([0] * (count + 1)))
    with pytest.raises(RemoteProtocolError, match=str(CBOR_ITEMS_MAX)):
        Decoder().decode(encode([[None] * 1000] * 300))
    big = [bytes(4 * MIB), "x" * MIB, [1, 2], bytes(MIB)]
    assert big == Decoder().decode(encode(big))


def test_a_decoder_forgets_what_went_wrong() -> None:
    """One decoder reads all frames of a connection: nothing of a bad one gets into the next."""
    decoder = Decoder()
    good = [1, "x" * 30, {"a": None}]
    frame = encode(good)
    for name, bomb in BOMBS.items():
        with pytest.raises(RemoteProtocolError):
            decoder.decode(bomb)
        assert decoder.decode(frame) == good, name
        with pytest.raises(RemoteProtocolError):
            decoder.decode(frame + bomb + b"\0")
        assert decoder.decode(frame) == good, name


def test_a_large_frame_is_let_go() -> None:
    """An idle connection must not hold the 16 MiB of its last request."""
    decoder = Decoder()
    frame = encode([bytes(8 * MIB)])
    tracemalloc.start()
    try:
        decoder.decode(frame)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held < MIB


@given(samples.PLAIN)
def test_plain_values_survive(value: Any) -> None:
    """What is plain comes back equal."""
    check_plain(value, "value")
    assert value == Decoder().decode(encode(value))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_refused_in_maps(value: float) -> None:
    """NaN in a setting or delay poisons every comparison after it."""
    with pytest.raises(InvalidArgument, match="settings"):
        check_plain({"a": [{"b": value}]}, "settings")


@pytest.mark.parametrize(
    "value", [{1: 2}, {b"a": 2}, cbor2.undefined, cbor2.CBORSimpleValue(5), cbor2.CBORTag(70, b"")]
)
def test_what_is_not_plain_is_refused_in_maps(value: object) -> None:
    """Open-ended maps take values, not mechanisms."""
    with pytest.raises(InvalidArgument):
        check_plain({"a": [value]}, "settings")


MUTATED = st.tuples(
    st.sampled_from([*map(bytes, BOMBS.values())])
    | samples.ANY_REQUEST.map(lambda request: _request(request))
    | samples.ANY_REPLY.map(lambda reply: _reply(reply)),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=4),
    st.integers(0, 40),
)


def _request(request: Any) -> bytes:
    from walrq.protocol.requests import encode_request

    return encode_request(1, request)


def _reply(reply: Any) -> bytes:
    from walrq.protocol.replies import encode_reply

    return encode_reply(1, reply)


@given(st.binary(max_size=200))
@example(b"\x84\x14\x01\xf6\xf6")
def test_arbitrary_bytes_give_a_value_or_one_error(data: bytes) -> None:
    """Nothing but the documented errors leaves the decoders."""
    for decode in (decode_request, decode_reply):
        try:
            decode(data)
        except (ProtocolError, RequestError) as error:
            assert error.text


@given(MUTATED)
def test_damaged_frames_give_a_value_or_one_error(
    damaged: tuple[bytes, list[tuple[int, int]], int],
) -> None:
    """The same for real frames with a few bytes changed or missing."""
    frame, changes, cut = damaged
    data = bytearray(frame)
    for position, value in changes:
        if data:
            data[position % len(data)] = value
    damaged_frame = bytes(data[: len(data) - cut] if cut else data)
    for decode in (decode_request, decode_reply):
        try:
            decode(damaged_frame)
        except (ProtocolError, RequestError) as error:
            assert error.text


def test_integers_at_the_edges_of_64_bits_survive() -> None:
    """Larger ones need a tag and are refused with it."""
    for value in (0, -1, (1 << 64) - 1, -(1 << 64)):
        assert value == Decoder().decode(encode(value))
    assert struct.pack(">BQ", 0x1B, 5) != encode(5)
    assert 5 == Decoder().decode(struct.pack(">BQ", 0x1B, 5)), "longer than needed is still the same number"
