"""What waits for a peer: in order, within bounds, and honest about what was dropped."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from tests.peers.harness import append, beat, with_entries
from walrq.limits import (
    PEER_AWAY_MESSAGES_MAX,
    PEER_AWAY_S,
    PEER_BULK_BYTES_MAX,
    PEER_BULK_MESSAGES_MAX,
    PEER_CONTROL_MESSAGES_MAX,
)
from walrq.peers.lane import Lane
from walrq.protocol.framing import FrameBuffer
from walrq.protocol.peer import Purpose, decode_item, encode_raft
from walrq.raft.messages import Append, Message


class Pipe:
    """A wire that takes so many bytes and no more, until it is emptied."""

    binding = b""
    descriptor = None

    def __init__(self, room: int = 1 << 30) -> None:
        self.room = room
        self.broken = False
        self.data = b""

    def send_nowait(self, pieces: Sequence[bytes]) -> list[bytes | memoryview]:
        """As much as there is room for."""
        if self.broken:
            raise trio.BrokenResourceError("broken")
        data = b"".join(pieces)
        self.data += data[: self.room]
        rest = data[self.room :]
        self.room -= len(data) - len(rest)
        return [rest] if rest else []

    async def send_all(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Not used here: the test plays the writer."""
        raise AssertionError

    async def receive_some(self, size: int) -> bytes:
        """Not used here."""
        raise AssertionError

    def receive_nowait(self, size: int) -> bytes | None:
        """Not used here."""
        raise AssertionError

    def send_eof(self) -> None:
        """Not used here."""

    def close(self) -> None:
        """Not used here."""

    def messages(self) -> list[Message]:
        """What went through, decoded."""
        found = [decode_item(body, "anna") for body in FrameBuffer().feed(self.data)]
        assert all(isinstance(item, Message) for item in found)
        return found  # type: ignore[return-value]


def lane(purpose: Purpose, pipe: Pipe | None = None, now: float = 0.0) -> Lane:
    """A lane whose writer sleeps, or that has no wire."""
    made = Lane(purpose, lambda: now)
    if pipe is not None:
        made.connected(pipe)
        assert made.prepare_to_wait()
    return made


def work(one: Lane, pipe: Pipe) -> None:
    """What the writer does until there is nothing left."""
    while True:
        if rest := one.take_rest():
            pipe.data += b"".join(rest)
        elif batch := one.take():
            pipe.data += b"".join(encode_raft(batch))
        elif appends := one.take_unfilled():
            pipe.data += b"".join(encode_raft([with_entries(each) for each in appends]))
        elif one.prepare_to_wait():
            return


# --- the way past the writer --------------------------------------------------------------------------------
def test_an_idle_lane_sends_at_once() -> None:
    """The message leaves in the turn that made it."""
    pipe = Pipe()
    control = lane(Purpose.CONTROL, pipe)
    control.put(beat("anna", "bert", 1))
    control.put(beat("anna", "bert", 2))
    control.flush()

    assert [beat("anna", "bert", 1), beat("anna", "bert", 2)] == pipe.messages()
    assert 2 == control.sent
    assert not control.wake.is_set()


def test_nothing_is_sent_while_the_writer_is_at_work() -> None:
    """Two writers on one stream would mix their frames."""
    pipe = Pipe()
    control = lane(Purpose.CONTROL, pipe)
    control.busy()
    control.put(beat("anna", "bert", 1))
    control.flush()

    assert b"" == pipe.data
    assert 1 == control.queued_messages
    assert not control.prepare_to_wait()


def test_what_the_pipe_does_not_take_wakes_the_writer_and_nothing_overtakes_it() -> None:
    """A frame that was begun is finished first."""
    pipe = Pipe(room=10)
    bulk = lane(Purpose.BULK, pipe)
    bulk.put(append("anna", "bert", 0, b"x" * 100))
    bulk.flush()
    assert bulk.wake.is_set()
    assert 0 < bulk.queued_bytes
    bulk.put(append("anna", "bert", 1))
    bulk.flush()
    assert 10 == len(pipe.data)
    work(bulk, pipe)

    assert [0, 1] == [message.prev_index for message in pipe.messages()]  # type: ignore[attr-defined]


def test_an_append_to_be_filled_waits_for_the_writer_and_those_behind_it_too() -> None:
    """Reading the log blocks; order is kept all the same."""
    pipe = Pipe()
    bulk = lane(Purpose.BULK, pipe)
    for index, filled in ((0, True), (1, False), (2, True), (3, False), (4, False)):
        bulk.put(append("anna", "bert", index, filled=filled))
    bulk.flush()
    assert [0] == [message.prev_index for message in pipe.messages()]  # type: ignore[attr-defined]
    assert bulk.wake.is_set()
    work(bulk, pipe)

    assert [0, 1, 2, 3, 4] == [message.prev_index for message in pipe.messages()]  # type: ignore[attr-defined]
    assert 0 == bulk.queued_bytes == bulk.queued_messages


def test_a_pipe_that_breaks_under_a_send_is_left_to_the_reader() -> None:
    """`send` never raises into the driver."""
    pipe = Pipe()
    bulk = lane(Purpose.BULK, pipe)
    pipe.broken = True
    bulk.put(append("anna", "bert", 0))
    bulk.flush()

    assert bulk.gap


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.booleans(), st.sampled_from([0, 10, 5_000])),
        st.tuples(st.just("flush"), st.just(False), st.just(0)),
        st.tuples(st.just("begin"), st.just(False), st.just(0)),
        st.tuples(st.just("write"), st.just(False), st.just(0)),
        st.tuples(st.just("room"), st.just(False), st.sampled_from([0, 1, 3, 100, 10_000])),
    ),
    max_size=60,
)


@given(STEPS)
@example([("put", True, 10), ("begin", False, 0), ("put", True, 10), ("flush", False, 0)])
def test_appends_leave_whole_and_in_order_whatever_the_pipe_takes(steps: list[tuple[str, bool, int]]) -> None:
    """Sends from the driver and the writer's interleave in every way; the stream is as if there were one of them."""
    pipe = Pipe(room=50)
    bulk = lane(Purpose.BULK, pipe)
    numbers = count()
    # What the writer has yet to hand over of a send that waits for the network.
    under_way = b""
    for step, filled, size in steps:
        if step == "put":
            bulk.put(append("anna", "bert", next(numbers), b"x" * size, filled=filled))
        elif step == "flush":
            bulk.flush()
        elif step == "begin" and not under_way:
            bulk.busy()
            under_way = b"".join(bulk.take_rest()) or b"".join(encode_raft(bulk.take()))
            half = len(under_way) // 2
            pipe.data += under_way[:half]
            under_way = under_way[half:]
            if not under_way:
                work(bulk, pipe)
        elif step == "write":
            bulk.busy()
            pipe.data += under_way
            under_way = b""
            work(bulk, pipe)
        elif step == "room":
            pipe.room = size
    bulk.busy()
    pipe.data += under_way
    work(bulk, pipe)
    sent = next(numbers)

    assert list(range(sent)) == [message.prev_index for message in pipe.messages()]  # type: ignore[attr-defined]
    assert all(isinstance(message, Append) and message.is_filled for message in pipe.messages())
    assert 0 == bulk.queued_bytes == bulk.queued_messages == bulk.dropped


# --- bounds -------------------------------------------------------------------------------------------------
def test_a_full_control_lane_drops_the_oldest() -> None:
    """Of votes and heartbeats the newest word counts."""
    control = lane(Purpose.CONTROL, Pipe())
    control.busy()
    for number in range(PEER_CONTROL_MESSAGES_MAX + 5):
        control.put(beat("anna", "bert", number))

    assert 5 == control.dropped
    assert PEER_CONTROL_MESSAGES_MAX == control.queued_messages
    assert beat("anna", "bert", 5) == control.take()[0]
    assert not control.gap


@pytest.mark.parametrize("by_bytes", [False, True])
def test_a_full_bulk_lane_drops_the_newest_and_tells_once_there_is_room(by_bytes: bool) -> None:
    """What is queued is still of use; what comes behind a gap is not."""
    body = b"x" * (1 << 20) if by_bytes else b"x"
    bulk = lane(Purpose.BULK, Pipe())
    bulk.busy()
    for index in range(2 * PEER_BULK_MESSAGES_MAX):
        bulk.put(append("anna", "bert", index, body))

    kept = bulk.queued_messages
    assert 2 * PEER_BULK_MESSAGES_MAX - kept == bulk.dropped
    assert bulk.queued_bytes <= PEER_BULK_BYTES_MAX
    assert kept <= PEER_BULK_MESSAGES_MAX
    assert not bulk.gap_to_tell()
    taken: list[Message] = []
    while not bulk.gap_to_tell():
        taken += bulk.take()
        bulk.put(append("anna", "bert", 99_999, body))
    assert not bulk.gap_to_tell()
    while batch := bulk.take():
        taken += batch
    assert list(range(kept)) == [message.prev_index for message in taken]  # type: ignore[attr-defined]


def test_one_message_larger_than_the_bound_still_leaves() -> None:
    """An entry of the largest size must not stop replication."""
    pipe = Pipe()
    bulk = lane(Purpose.BULK, pipe)
    bulk.busy()
    bulk.put(append("anna", "bert", 0, bytes(33 << 20)))

    assert 0 == bulk.dropped


# --- while the peer is away ---------------------------------------------------------------------------------
def test_the_newest_words_are_kept_for_a_moment_while_the_peer_is_away() -> None:
    """A first election must not wait for another time-out only because a link comes up a moment late."""
    now = 100.0
    control = Lane(Purpose.CONTROL, lambda: now)
    control.put(beat("anna", "bert", 999))
    now += PEER_AWAY_S + 0.1
    for number in range(PEER_AWAY_MESSAGES_MAX + 2):
        control.put(beat("anna", "bert", number))
    pipe = Pipe()
    control.connected(pipe)

    assert 3 == control.dropped
    assert list(range(2, PEER_AWAY_MESSAGES_MAX + 2)) == [m.round for m in control.take()]  # type: ignore[attr-defined]


def test_old_words_are_not_said_any_more() -> None:
    """A demand to stand for election, minutes late, would only disturb."""
    now = 100.0
    control = Lane(Purpose.CONTROL, lambda: now)
    control.put(beat("anna", "bert", 1))
    now += PEER_AWAY_S + 0.1
    control.connected(Pipe())

    assert [] == control.take()
    assert 1 == control.dropped


def test_appends_to_a_peer_that_is_away_are_dropped_and_told() -> None:
    """They would be megabytes, and stale; Raft sends what is needed when it hears of the link."""
    bulk = Lane(Purpose.BULK, lambda: 0.0)
    assert not bulk.connected(Pipe())
    bulk.disconnected()
    bulk.put(append("anna", "bert", 0))

    assert 1 == bulk.dropped
    assert 0 == bulk.queued_messages
    assert bulk.connected(Pipe())
    bulk.disconnected()
    assert not bulk.connected(Pipe())


def test_a_lane_that_lost_its_wire_keeps_nothing() -> None:
    """Half a frame on the old connection is no beginning of the next one."""
    pipe = Pipe(room=7)
    bulk = lane(Purpose.BULK, pipe)
    for index in range(3):
        bulk.put(append("anna", "bert", index))
    bulk.flush()
    bulk.put(append("anna", "bert", 3, filled=False))
    bulk.disconnected()
    after = Pipe()
    bulk.connected(after)
    assert bulk.prepare_to_wait()
    bulk.put(append("anna", "bert", 50))
    bulk.flush()

    assert [50] == [message.prev_index for message in after.messages()]  # type: ignore[attr-defined]
    assert 0 == bulk.queued_bytes
