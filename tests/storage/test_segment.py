"""A segment's header: identity, slots, and what the slots promise."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from walrq.storage.segment import (
    IDENTITY,
    RECORDS_START,
    SLOT,
    Identity,
    Slot,
    free_name,
    number_in,
    promise_of,
    segment_name,
)

U64 = st.integers(0, 2**63)


@given(uuid=st.binary(min_size=16, max_size=16), incarnation=U64, first=U64, size=U64)
def test_the_identity_is_read_back_and_every_bit_of_it_is_covered(
    uuid: bytes, incarnation: int, first: int, size: int
) -> None:
    """A wrong incarnation would make every record of the segment unreadable."""
    identity = Identity(uuid, incarnation, first, size)
    page = identity.encode()

    assert identity == Identity.decode(page)
    for bit in range(8 * IDENTITY.size):
        bad = bytearray(page)
        bad[bit // 8] ^= 1 << bit % 8
        assert Identity.decode(bytes(bad)) is None, bit


@given(incarnation=U64, sequence=U64, end=st.integers(RECORDS_START, 2**31), last=U64, sealed=st.booleans())
def test_a_slot_is_read_back_and_every_bit_of_it_is_covered(
    incarnation: int, sequence: int, end: int, last: int, sealed: bool
) -> None:
    """A wrong end would turn a torn tail into damage or damage into a torn tail."""
    slot = Slot(incarnation, 1, sequence, end, last, sealed)
    data = slot.encode()

    assert len(data) == SLOT.size
    assert slot == Slot.decode(data)
    for bit in range(8 * SLOT.size):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        assert Slot.decode(bytes(bad)) is None, bit


def slot(sequence: int, end: int, last: int) -> Slot:
    """A slot of incarnation 1."""
    return Slot(1, 1, sequence, RECORDS_START + end, last, False)


def test_the_promise_is_older_below_newer() -> None:
    """Two appends: below the first end all is durable, up to the second it may be."""
    promise = promise_of([slot(4, 100, 2), slot(3, 50, 1)], 1)

    assert (RECORDS_START + 50, 1) == (promise.older_end, promise.older_last)
    assert (RECORDS_START + 100, 2) == (promise.newer_end, promise.newer_last)
    assert not promise.settled


def test_after_a_cut_nothing_above_it_is_promised() -> None:
    """The newer slot has the smaller end; the older one's is withdrawn."""
    promise = promise_of([slot(4, 50, 1), slot(3, 100, 2)], 1)

    assert (RECORDS_START + 50, RECORDS_START + 50) == (promise.older_end, promise.newer_end)


def test_a_single_readable_slot_is_taken_for_both() -> None:
    """A torn slot proves the sync of the other one."""
    promise = promise_of([None, slot(3, 100, 2)], 1)

    assert promise.settled
    assert RECORDS_START + 100 == promise.older_end


def test_no_readable_slot_promises_nothing() -> None:
    """And says that it does not know."""
    promise = promise_of([None, None], 7)

    assert not promise.readable
    assert 6 == promise.newer_last


@given(st.integers(0, 10**20 - 1))
def test_names_carry_their_numbers_and_sort_by_them(number: int) -> None:
    """The directory listing is the order of the log."""
    assert number == number_in(segment_name(number), free=False)
    assert number == number_in(free_name(number), free=True)
    assert number_in(segment_name(number), free=True) is None
    assert segment_name(number) < segment_name(number + 1) or number == 10**20 - 1


@given(st.text(max_size=40))
def test_other_names_are_left_alone(name: str) -> None:
    """A stranger's file in the directory is not taken for a segment."""
    if not name.startswith(("seg-", "free-")):
        assert number_in(name, free=False) is None
        assert number_in(name, free=True) is None
