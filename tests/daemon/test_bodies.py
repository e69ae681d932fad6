"""From addresses to bytes: what a poll or peek is filled with."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.daemon.harness import columns, payloads
from walrq import api
from walrq.daemon import bodies
from walrq.daemon.bodies import Filled, fill_page, fill_poll
from walrq.errors import CorruptRecord, Reclaimed
from walrq.ids import make_receipt
from walrq.queues.commands import Target
from walrq.queues.effects import Grant, Granted, Seen

SECRET = b"s" * 16


def grant(first: int, count: int, lease: int = 1, index: int = 1) -> Grant:
    """A leased run of one batch."""
    return Grant("jobs", 7, lease, index, 0, first, count, 1_000 + first, 1, 0, (9, 0), 0, 5, None)


def held(uid: int, lease: int) -> bool:
    """Every lease but number 2 is outstanding."""
    return lease != 2


def fill(runs: Sequence[Grant], batch: api.Columns) -> Filled:
    """All runs filled from one batch."""
    return fill_poll(Granted(tuple(runs), 3, 30_000), SECRET, lambda index, ordinal: batch, held)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[bytes], list[bytes] | None]:
    """Payloads, and headers for some."""
    parts = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=20))
    if draw(st.booleans()):
        return parts, None
    return parts, draw(st.lists(st.binary(max_size=9), min_size=len(parts), max_size=len(parts)))


@given(batches(), st.data())
def test_a_slice_has_exactly_its_messages(batch: tuple[list[bytes], list[bytes] | None], data: st.DataObject) -> None:
    """However a batch is cut up by acks and splits, each reply carries the bytes that were pushed."""
    parts, headers = batch
    first = data.draw(st.integers(0, len(parts) - 1))
    count = data.draw(st.integers(1, len(parts) - first))
    header_columns = columns(*headers) if headers is not None else None
    whole = columns(
        *parts,
        headers=header_columns.payloads if header_columns else None,
        header_ends=header_columns.ends if header_columns else None,
    )
    run = fill([grant(first, count)], whole).polled.runs[0]

    assert parts[first : first + count] == payloads(api.Polled(0, 0, (run,)))
    assert run.count == count == len(run.ends) // 4
    if headers is None:
        assert run.headers is None
    else:
        assert run.headers is not None
        assert run.header_ends is not None
        ends = [end - run.header_base for (end,) in struct.iter_unpack("<I", run.header_ends)]
        cut = [run.headers[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        assert headers[first : first + count] == cut


def test_a_whole_batch_is_not_copied() -> None:
    """The common path hands the very bytes of the frame on."""
    batch = columns(b"a", b"b")
    run = fill([grant(0, 2)], batch).polled.runs[0]

    assert batch.payloads is run.payloads
    assert batch.ends is run.ends


@given(st.lists(st.integers(0, 60), min_size=1, max_size=30), st.integers(1, 30))
def test_what_does_not_fit_is_named_for_giving_back(sizes: list[int], cut: int) -> None:
    """Held and given back together are exactly what was leased, and the reply is within the bound."""
    parts = [bytes([65 + n % 26]) * size for n, size in enumerate(sizes)]
    cut = min(cut, len(parts))
    runs = [grant(0, cut, 1)]
    if cut < len(parts):
        runs.append(grant(cut, len(parts) - cut, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "POLL_BYTES_MAX", 100)
        filled = fill(runs, columns(*parts))
    got = payloads(filled.polled)

    assert parts[: len(got)] == got
    assert sum(map(len, got)) <= 100
    assert got
    back = sum(
        sum(last - first + 1 for first, last in target.ranges)
        if target.ranges is not None
        else runs[target.lease - 1].count
        for target in filled.back
    )
    assert len(parts) == len(got) + back
    # The next message would not have fitted.
    assert len(got) == len(parts) or sum(map(len, parts[: len(got) + 1])) > 100


def test_the_first_message_is_always_delivered() -> None:
    """A message beyond the bound would otherwise circle for ever."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "POLL_BYTES_MAX", 10)
        filled = fill([grant(0, 2)], columns(b"x" * 50, b"y"))

    assert [b"x" * 50] == payloads(filled.polled)
    assert [Target(7, 1, ((1, 1),))] == filled.back


def test_a_lost_body_and_a_reclaimed_one_are_told_apart() -> None:
    """Damage is named as lost; a lease that ended meanwhile is named as ended."""

    def look_up(index: int, ordinal: int) -> api.Columns:
        if index == 1:
            raise CorruptRecord("rot")
        if index == 2:
            raise Reclaimed("gone")
        return columns(b"fine")

    runs = (grant(0, 1, 1, 1), grant(0, 1, 2, 2), grant(0, 1, 3, 3))
    filled = fill_poll(Granted(runs, 0, 1, (Target(7, 9),)), SECRET, look_up, held)

    assert [True, False] == [run.lost for run in filled.polled.runs]
    assert (make_receipt(SECRET, 7, 9), make_receipt(SECRET, 7, 2)) == filled.polled.ended
    assert [Target(7, 1), Target(7, 3)] == filled.held


def test_a_body_that_is_gone_while_its_lease_is_held_is_lost() -> None:
    """Its segment was lost: to name the lease ended would turn the message into nothing."""

    def look_up(index: int, ordinal: int) -> api.Columns:
        raise Reclaimed("no segment has it")

    filled = fill_poll(Granted((grant(0, 3, 1),), 0, 1), SECRET, look_up, held)

    assert [(True, 3, 1_000)] == [(run.lost, run.count, run.first_id) for run in filled.polled.runs]
    assert () == filled.polled.ended
    assert [Target(7, 1)] == filled.held


@pytest.mark.parametrize("live", [True, False])
def test_a_page_shows_a_lost_message_without_its_payload_and_leaves_a_settled_one_out(live: bool) -> None:
    """What the machine still counts is shown, whether or not the log still has it."""

    def look_up(index: int, ordinal: int) -> api.Columns:
        raise Reclaimed("no segment has it")

    page = fill_page([seen(0)], 0, lambda k: 0, look_up, lambda index: live)

    assert [None][:live] == [message.payload for message in page.messages]


def seen(position: int) -> Seen:
    """The message at a position of the one batch."""
    return Seen(1, 0, position, api.Peeked(position, api.State.READY, 100 + position, 0, 0, 0, 0, 0, None, None))


def test_a_page_that_grows_too_large_ends_early() -> None:
    """Its cursor points at the first message left out."""
    batch = columns(*[bytes([65 + n]) * 40 for n in range(5)])
    found = [seen(n) for n in range(5)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "POLL_BYTES_MAX", 100)
        page = fill_page(found, 0, lambda k: found[k].peeked.sequence, lambda index, ordinal: batch, lambda index: True)

    assert [b"A" * 40, b"B" * 40] == [message.payload for message in page.messages]
    assert 102 == page.next
