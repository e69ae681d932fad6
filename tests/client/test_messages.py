"""Lazy views of what came: ids, runs, slices."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.fake_server import delivered
from walrq.api import Attempt, Peeked, Pushed, State
from walrq.client.messages import Batch, MessageIds, seen
from walrq.errors import BodyLost
from walrq.ids import format_id, parse_handle
from walrq.protocol import columns


def test_ids_are_a_sequence_over_all_batches() -> None:
    """Dedup hits keep their old ids at their places."""
    ids = MessageIds((Pushed(100, 3), Pushed(7, 2, (50, 8), (0,)), Pushed(200, 1)))

    numbers = [100, 101, 102, 50, 8, 200]
    assert numbers == list(ids.numbers())
    assert [format_id(number) for number in numbers] == list(ids) == ids[:]
    assert format_id(200) == ids[-1] == ids[5]
    assert [format_id(8), format_id(50)] == ids[4:2:-1]
    assert (3,) == ids.duplicates
    assert format_id(50) in ids
    assert list(ids) == ids
    assert MessageIds((Pushed(100, 2),)) != ids
    for index in (6, -7):
        with pytest.raises(IndexError):
            ids[index]


def test_reprs_are_short_and_show_no_payload() -> None:
    """Logs are no place for other people's data."""
    batch = Batch(delivered("q", 5, (b"secret", b"secret too")), 0)

    for shown in (repr(batch), repr(batch.messages()[0]), repr(batch.messages()), repr(batch.ids())):
        assert "secret" not in shown
        assert len(shown) < 300


@given(
    payloads=st.lists(st.binary(max_size=20), min_size=1, max_size=12),
    base=st.integers(0, 1 << 20),
)
def test_payloads_are_cut_at_the_ends_of_a_larger_batch(payloads: list[bytes], base: int) -> None:
    """A run is a slice: its end offsets are those of the whole batch."""
    batch = Batch(delivered("q", 1, tuple(payloads), base=base), 0)

    assert payloads == list(batch.payloads())
    assert payloads == [batch.payload(offset) for offset in range(len(batch))]
    assert payloads == [message.payload for message in batch.messages()]


@given(
    headers=st.lists(
        st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3), min_size=2, max_size=8
    ),
    data=st.data(),
)
def test_headers_are_cut_at_the_ends_of_a_larger_batch(headers: list[dict[str, object]], data: st.DataObject) -> None:
    """The same for headers, of which some messages have none."""
    headers = [{name: n % (1 << 60) if isinstance(n, int) else n for name, n in each.items()} for each in headers]
    whole = columns.pack([b""] * len(headers), headers=headers)
    first = data.draw(st.integers(0, len(headers) - 1))
    last = data.draw(st.integers(first, len(headers) - 1))
    run = delivered("q", 1, (b"",) * (last - first + 1))
    if whole.headers is not None and whole.header_ends is not None:
        ends = [int.from_bytes(whole.header_ends[at : at + 4], "little") for at in range(0, len(whole.header_ends), 4)]
        start = ends[first - 1] if first else 0
        run = attrs.evolve(  # type: ignore[misc]
            run,
            header_base=start,
            header_ends=whole.header_ends[first * 4 : last * 4 + 4],
            headers=whole.headers[start : ends[last]],
        )

    assert headers[first : last + 1] == [message.headers for message in Batch(run, 0).messages()]


def test_a_lost_body_raises_where_it_is_read_and_can_still_be_given_back() -> None:
    """Disk damage destroys a payload, not the right to say what becomes of the message."""
    batch = Batch(attrs.evolve(delivered("q", 1, (b"", b"")), lost=True, ends=b""), 0)  # type: ignore[misc]
    first, _ = batch.messages()

    with pytest.raises(BodyLost):
        list(batch.payloads())
    with pytest.raises(BodyLost, match=first.message_id):
        _ = first.payload
    assert (batch.run.receipt, 0) == parse_handle(first.receipt_handle)
    assert "lost" in repr(first)


def test_a_message_knows_its_place_and_time() -> None:
    """What a worker asks a message."""
    deadline = time.monotonic() + 10
    message = Batch(delivered("q", 5, (b'{"a":1}', b"x"), lease=3), deadline).messages()[0]

    assert {"a": 1} == message.json()
    assert (format_id(5), "q", 1, 0, (3, 0)) == (
        message.message_id,
        message.queue,
        message.delivery,
        message.attempts,
        message.fence,
    )
    assert datetime.fromtimestamp(1_700_000_000, UTC) == message.pushed_at
    assert 9 < message.remaining <= 10
    message.extend(deadline + 5)
    assert 14 < message.remaining <= 15


def test_a_death_report_is_readable() -> None:
    """Types of Python instead of numbers of the wire."""
    attempt = Attempt(1_000, "failed", "w1", "ValueError", "bad")
    shown = seen(Peeked(5, State.DEAD, 1, 3, 2, 2, 1_000, 0, "g", b"x", None, 0, "failed", "mail", 2_000, (attempt,)))

    assert (format_id(5), "dead", "failed", "mail", {}) == (
        shown.message_id,
        shown.state,
        shown.reason,
        shown.origin,
        shown.headers,
    )
    assert (None, datetime.fromtimestamp(2, UTC)) == (shown.due_at, shown.died_at)
    assert (attempt,) == shown.history
    assert "b'x'" not in repr(shown)
