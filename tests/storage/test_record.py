"""The record's bytes: what is written is read, what was changed is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from walrq.storage.record import (
    ALIGNMENT,
    FENCE,
    HEADER_BYTES,
    Found,
    Window,
    encode,
    search,
    seed_of,
    stored_bytes,
    verify,
)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
BODIES = st.binary(max_size=300)


def window_over(data: bytes) -> Window:
    """A window over plain bytes."""
    return Window(lambda size, offset: data[offset : offset + size], len(data))


def stored(seed: int, prev: int, kind: int, term: int, index: int, body: bytes, flags: int = 0) -> bytes:
    """One record as it lies on disk."""
    _, header, padding = encode(seed, prev, kind, flags, term, index, body)
    return header + body + padding


@given(seed=U32, prev=U32, kind=st.integers(0, 255), term=U64, index=U64, body=BODIES)
def test_a_record_is_read_back_as_it_was_written(
    seed: int, prev: int, kind: int, term: int, index: int, body: bytes
) -> None:
    """Every field survives, and the size is what `stored_bytes` said."""
    data = stored(seed, prev, kind, term, index, body)

    found = verify(window_over(data), 0, seed)

    assert len(data) == stored_bytes(len(body))
    assert len(data) % ALIGNMENT == 0
    assert found is not None
    assert (kind, term, index, prev) == (found.kind, found.term, found.index, found.prev)
    assert body == data[HEADER_BYTES : HEADER_BYTES + found.body_bytes]
    assert len(data) == found.end


@given(body=st.binary(max_size=24), index=U64, data=st.data())
def test_every_single_bit_flip_is_seen(body: bytes, index: int, data: st.DataObject) -> None:
    """Header, body and padding: no bit is outside the checksum."""
    good = stored(7, 9, 1, 2, index, body)
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8

        assert verify(window_over(bytes(bad)), 0, 7) is None, bit


@given(noise=st.binary(max_size=200), seed=U32)
def test_arbitrary_bytes_are_never_a_record(noise: bytes, seed: int) -> None:
    """No crash and no phantom, whatever the disk returns."""
    assert verify(window_over(noise), 0, seed) is None


@given(seed=U32, size=st.integers(0, 4096))
def test_zeros_are_never_a_record(seed: int, size: int) -> None:
    """A zero-filled tail of a preallocated file holds nothing."""
    assert verify(window_over(bytes(size)), 0, seed) is None


@given(old=st.integers(0, 2**32 - 1), new=st.integers(0, 2**32 - 1), body=BODIES)
def test_a_record_of_another_incarnation_never_verifies(old: int, new: int, body: bytes) -> None:
    """Left-overs of a recycled file, byte for byte intact, are not records of its new life."""
    if old == new:
        return
    data = stored(seed_of(old), seed_of(old), 1, 1, 1, body)

    assert verify(window_over(data), 0, seed_of(new)) is None


def test_unknown_flags_are_not_a_record() -> None:
    """A flag of a later version could mean anything, so it is not stepped over."""
    assert verify(window_over(stored(1, 1, 0, 1, 1, b"body", flags=FENCE + 1)), 0, 1) is None


@given(
    bodies=st.lists(st.binary(max_size=200), min_size=2, max_size=12),
    damaged=st.integers(0, 11),
    noise=st.binary(min_size=8, max_size=64),
)
def test_the_record_behind_damage_is_found(bodies: list[bytes], damaged: int, noise: bytes) -> None:
    """Whatever the damaged record holds now, the search ends at its successor."""
    damaged %= len(bodies) - 1
    parts = [stored(5, 0, 1, 1, index, body) for index, body in enumerate(bodies, start=10)]
    start = sum(map(len, parts[:damaged]))
    broken = bytearray(b"".join(parts))
    span = parts[damaged]
    broken[start : start + len(span)] = (noise * (len(span) // len(noise) + 1))[: len(span)]

    found = search(window_over(bytes(broken)), start, len(broken), 5, range(10 + damaged + 1, 10 + len(bodies)))

    assert isinstance(found, Found)
    assert found.index == 10 + damaged + 1
    assert found.offset == start + len(span)


def test_the_search_crosses_window_borders() -> None:
    """A record that straddles two megabytes of the file is found as well."""
    record = stored(5, 0, 1, 1, 77, b"x" * 40)
    for shift in range(-64, 65, 8):
        before = (1 << 20) + shift
        data = bytes(before) + record + bytes(4096)

        found = search(window_over(data), 8, len(data), 5, range(77, 78))

        assert found is not None, shift
        assert found.offset == before
