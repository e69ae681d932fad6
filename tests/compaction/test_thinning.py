"""A thinned body gives what is alive as it was, tells dropped from empty, and is never taken for a whole one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compaction.worlds import payloads
from walrq.api import Columns
from walrq.compaction.thinning import bodies_of, is_thinned, pushes_in, thinned
from walrq.errors import CorruptRecord
from walrq.queues import commands as c

STAMP = c.Stamp(5, 1_700_000_000_000)


def columns(items: list[bytes], headers: list[bytes] | None = None) -> Columns:
    """Columns of such payloads."""

    def ends(pieces: list[bytes]) -> bytes:
        return b"".join(sum(map(len, pieces[: at + 1])).to_bytes(4, "little") for at in range(len(pieces)))

    if headers is None:
        return Columns(b"".join(items), ends(items))
    return Columns(b"".join(items), ends(items), b"".join(headers), ends(headers))


def entry(*found: c.Command) -> bytes:
    """The body of an entry."""
    return c.encode_entry(STAMP, [c.Tagged(one) for one in found])


@given(st.data())
def test_what_is_kept_reads_as_it_was_however_often_it_is_thinned(data: st.DataObject) -> None:
    """Any payloads, any headers, any positions, over and over."""
    items = data.draw(st.lists(st.binary(max_size=40), min_size=1, max_size=20))
    headers = data.draw(st.none() | st.lists(st.binary(max_size=9), min_size=len(items), max_size=len(items)))
    whole = entry(c.OpenSession(), c.Push("q", columns(items, headers)), c.Push("r", columns([b"x" * 3_000])))
    body, left = whole, list(range(len(items)))
    for _ in range(3):
        left = sorted(data.draw(st.sets(st.sampled_from(left), min_size=1)))
        made = thinned(body, {1: ranges(left)})
        assert made is not None
        as_before, body = made is body, made
        found = bodies_of(body)
        assert {1} == set(found)
        assert len(items) == found[1].count
        for at in left:
            assert payloads(whole, 1, at, at) == payloads(body, 1, at, at)
        for at in range(len(items)):
            assert as_before or found[1].has(at, 1) == (at in left)


def ranges(positions: list[int]) -> list[tuple[int, int]]:
    """Positions as ranges."""
    found: list[tuple[int, int]] = []
    for at in positions:
        if found and found[-1][1] == at - 1:
            found[-1] = (found[-1][0], at)
        else:
            found.append((at, at))
    return found


def test_a_dropped_message_is_not_an_empty_one() -> None:
    """Both read as no bytes; only one of them is there."""
    made = thinned(entry(c.Push("q", columns([b"", b"a" * 500, b""]))), {0: [(2, 2)]})
    assert made is not None
    (found,) = bodies_of(made).values()
    assert (False, False, True) == tuple(found.has(at, 1) for at in range(3))
    assert not found.has(1, 2)
    assert ((2, 2),) == pushes_in(made)[0].kept


def test_a_thinned_body_is_never_applied() -> None:
    """Whoever took it for an entry would miss its acknowledgements."""
    made = thinned(entry(c.Push("q", columns([b"a" * 500, b"b"]))), {0: [(1, 1)]})
    assert made is not None and is_thinned(made)
    for read in (c.decode_entry, c.stamp_of):
        with pytest.raises(CorruptRecord):
            read(made)
    assert not is_thinned(entry())


def test_what_would_hardly_shrink_stays_as_it_is() -> None:
    """The very bytes: copying them is all that has to be done."""
    body = entry(c.Push("q", columns([b"a" * 500, b"b"])))
    assert body is thinned(body, {0: [(0, 0)]})
    assert None is thinned(body, {})


def test_something_alive_that_is_not_there_stops_a_rewrite() -> None:
    """Rather no room than a message lost."""
    body = entry(c.Push("q", columns([b"a" * 500, b"b"])))
    with pytest.raises(CorruptRecord):
        thinned(body, {1: [(0, 0)]})
    made = thinned(body, {0: [(1, 1)]})
    assert made is not None
    with pytest.raises(CorruptRecord):
        thinned(made, {0: [(0, 1)]})
