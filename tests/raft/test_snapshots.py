"""Both ends of a snapshot stream."""

from __future__ import annotations

import random

import pytest

from walrq.raft.intake import Intake
from walrq.raft.membership import Configuration
from walrq.raft.messages import SnapshotChunk, SnapshotOffer, SnapshotStatus
from walrq.raft.snapshots import Outgoing

GROUP = Configuration.of("ab")
HEAD = ("c", "a", "b", 3)


def offer(stream: int = 1, *, term: int = 3, sender: str = "a", index: int = 20) -> SnapshotOffer:
    """Of everything up to 20."""
    return SnapshotOffer("c", sender, "b", term, stream, index, 2, GROUP)


def chunk(offset: int, data: bytes, *, last: bool = False, stream: int = 1, term: int = 3) -> SnapshotChunk:
    """Bytes of a stream."""
    return SnapshotChunk("c", "a", "b", term, stream, offset, last, data)


def test_bytes_are_sent_ahead_as_far_as_the_window() -> None:
    """Bounded: the answers say when there is room."""
    outgoing = Outgoing(1, 20, 2, GROUP)
    assert 0 == outgoing.wanted(100)
    outgoing.resume(0)
    assert 100 == outgoing.wanted(100)
    assert 0 == outgoing.supplied(60, False)
    assert 40 == outgoing.wanted(100)
    assert 60 == outgoing.supplied(40, False)
    assert 0 == outgoing.wanted(100)

    assert outgoing.stored(60)
    assert not outgoing.stored(60) and not outgoing.stored(101)
    assert 60 == outgoing.wanted(100)
    outgoing.supplied(5, True)
    assert 0 == outgoing.wanted(100)


def test_a_stream_goes_on_where_it_was_left() -> None:
    """The follower says from where."""
    outgoing = Outgoing(1, 20, 2, GROUP)
    outgoing.resume(0)
    outgoing.supplied(60, False)
    outgoing.supplied(40, True)
    outgoing.resume(60)
    assert (60, 60, False) == (outgoing.acked, outgoing.sent, outgoing.ended)
    outgoing.supplied(40, True)
    outgoing.resume(100)
    assert (100, 100, True) == (outgoing.acked, outgoing.sent, outgoing.ended)


def test_only_the_next_bytes_of_the_stream_are_taken() -> None:
    """NoMixedRead: neither another stream's nor another place's."""
    intake = Intake()
    intake.received(chunk(0, b"early"))
    assert (SnapshotStatus.RESUME, 0) == intake.offered(offer(), 10)
    intake.received(chunk(1, b"gap"))
    intake.received(chunk(0, b"other", stream=2))
    intake.received(chunk(0, b"other", term=2))
    intake.received(chunk(0, b"one"))
    intake.received(chunk(0, b"again"))
    intake.received(chunk(3, b"two", last=True))
    intake.received(chunk(6, b"behind"))
    assert [b"one", b"two"] == [taken.data for taken in intake.take()]
    assert [] == intake.take()
    assert (SnapshotStatus.RESUME, 6) == intake.offered(offer(), 10)


def test_a_new_stream_starts_at_nothing() -> None:
    """Half of one leader's snapshot is no beginning of another's."""
    intake = Intake()
    intake.offered(offer(), 10)
    intake.received(chunk(0, b"one"))
    (old,) = intake.take()
    assert (SnapshotStatus.RESUME, 0) == intake.offered(offer(2), 10)
    assert intake.stored(old, 10) is None
    intake.received(chunk(0, b"new", stream=2))
    (new,) = intake.take()
    assert (SnapshotStatus.STORED, 3) == intake.stored(new, 10)
    intake.abandon()
    assert not intake.is_current(new)


def test_what_is_known_already_is_done() -> None:
    """The log may get there first, before the offer or while the stream runs."""
    intake = Intake()
    assert (SnapshotStatus.DONE, 0) == intake.offered(offer(), 20)
    intake.offered(offer(), 10)
    intake.received(chunk(0, b"all", last=True))
    (whole,) = intake.take()
    assert (SnapshotStatus.DONE, 0) == intake.stored(whole, 25)
    assert not intake.installing


def test_nothing_is_begun_while_one_is_installed() -> None:
    """The files are being put in place."""
    intake = Intake()
    intake.offered(offer(), 10)
    intake.received(chunk(0, b"all", last=True))
    (whole,) = intake.take()
    assert (SnapshotStatus.STORED, 3) == intake.stored(whole, 10)
    assert intake.installing
    intake.abandon()
    assert intake.offered(offer(2), 10) is None
    assert intake.stored(whole, 10) is None
    assert intake.is_current(whole)
    intake.finished()
    assert not intake.installing and not intake.is_current(whole)


@pytest.mark.parametrize("loss", [0.0, 0.3, 0.7])
def test_a_stream_arrives_whole_over_a_link_that_loses(loss: float, rng: random.Random) -> None:
    """Chunks and answers are lost; offers are repeated; the bytes come out as they went in."""
    payload = bytes(rng.randrange(256) for _ in range(500))
    outgoing, intake, spool = Outgoing(1, 20, 2, GROUP), Intake(), b""
    for _ in range(2_000):
        if intake.installing:
            break
        answer = intake.offered(offer(), 10)
        if answer is not None and rng.random() >= loss:
            outgoing.resume(answer[1])
        while room := min(outgoing.wanted(64), 32):
            data = payload[outgoing.sent : outgoing.sent + room]
            last = outgoing.sent + room >= len(payload)
            message = chunk(outgoing.supplied(len(data), last), data, last=last)
            if rng.random() >= loss:
                intake.received(message)
        for taken in intake.take():
            spool += taken.data
            stored = intake.stored(taken, 10)
            if stored is not None and rng.random() >= loss:
                outgoing.stored(stored[1])

    assert payload == spool
