"""Frames come out whole, in order, and never before their last byte."""

from __future__ import annotations

import struct
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walrq.errors import FrameTooLarge, RemoteProtocolError
from walrq.limits import FRAME_BYTES_MAX
from walrq.protocol.framing import FrameBuffer, foreign_protocol, frame

BODIES = st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=6)


@given(BODIES, st.lists(st.integers(0, 400), max_size=12))
def test_any_split_of_the_stream_gives_the_same_frames(bodies: list[bytes], cuts: list[int]) -> None:
    """TCP keeps no boundaries."""
    stream = b"".join(map(frame, bodies))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    buffer = FrameBuffer()
    found: list[bytes] = []
    for first, last in pairwise(edges):
        found += buffer.feed(stream[first:last])

    assert bodies == found
    assert 0 == buffer.partial
    assert buffer.error is None


@given(BODIES, st.integers(1, 400))
def test_a_frame_without_its_last_byte_is_no_frame(bodies: list[bytes], missing: int) -> None:
    """A partial frame is never taken for a message, however the connection ends."""
    stream = b"".join(map(frame, bodies))
    kept = stream[: -min(missing, len(stream))]
    buffer = FrameBuffer()
    found = buffer.feed(kept)

    assert found == bodies[: len(found)]
    assert len(found) < len(bodies)
    assert len(kept) - sum(4 + len(body) for body in found) == buffer.partial


@pytest.mark.parametrize("length", [101, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_a_length_beyond_the_limit_is_refused_before_the_body(length: int) -> None:
    """Four bytes must not make this node wait for, or reserve, gigabytes."""
    buffer = FrameBuffer(100)
    assert [] == buffer.feed(struct.pack(">I", length))
    assert isinstance(buffer.error, FrameTooLarge)
    assert 100 == buffer.error.details["limit"]
    assert 0 == buffer.partial
    assert [] == buffer.feed(frame(b"x"))


def test_a_frame_of_exactly_the_limit_is_taken() -> None:
    """The limit itself is allowed."""
    assert [b"x" * 100] == FrameBuffer(100).feed(frame(b"x" * 100))


def test_an_empty_frame_is_refused() -> None:
    """No CBOR item has no bytes; a stream of zeros must not spin the reader."""
    buffer = FrameBuffer()
    assert [] == buffer.feed(bytes(4096))
    assert type(buffer.error) is RemoteProtocolError


def test_frames_before_a_bad_length_are_kept() -> None:
    """What was complete before the stream went wrong still counts."""
    buffer = FrameBuffer(100)
    assert [b"a", b"b"] == buffer.feed(frame(b"a") + frame(b"b") + b"\xff\xff\xff\xff" + b"c")
    assert isinstance(buffer.error, FrameTooLarge)


def test_partial_counts_what_is_held() -> None:
    """The driver's time-out for slow senders hangs on this number."""
    buffer = FrameBuffer()
    counts = []
    for byte in frame(b"abc") + frame(b"d")[:3]:
        buffer.feed(bytes([byte]))
        counts.append(buffer.partial)

    assert [1, 2, 3, 4, 5, 6, 0, 1, 2, 3] == counts


def test_a_dripping_sender_costs_no_more_than_its_frame() -> None:
    """Two bytes per read must not cost an object per read."""
    size = 100_000
    stream = frame(bytes(size))
    buffer = FrameBuffer()
    tracemalloc.start()
    try:
        for start in range(0, len(stream) - 2, 2):
            assert [] == buffer.feed(stream[start : start + 2])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held < 2 * size
    assert [bytes(size)] == buffer.feed(stream[len(stream) - 2 :])
    assert 0 == buffer.partial


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"POST /push HTTP/1.1\r\n", "HTTP"),
        (b"PRI * HTTP/2.0\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", "TLS"),
        (b"*1\r\n$4\r\nPING\r\n", "RESP"),
    ],
)
def test_other_protocols_are_named(data: bytes, name: str) -> None:
    """A wrong port is a first mistake that deserves a sentence."""
    buffer = FrameBuffer()
    assert [] == buffer.feed(data)
    assert isinstance(buffer.error, RemoteProtocolError)
    assert name in buffer.error.text
    assert name == buffer.error.details["foreign"]


def test_no_legal_length_looks_foreign() -> None:
    """A real frame is never mistaken for another protocol."""
    for length in (1, 255, 65_536, FRAME_BYTES_MAX):
        assert foreign_protocol(struct.pack(">I", length)) is None
