"""Lists of messages into batches and back."""

from __future__ import annotations

import struct
from itertools import pairwise

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol import samples
from walrq import api
from walrq.errors import InvalidArgument, RemoteProtocolError
from walrq.protocol.columns import decode_headers, encode_headers, pack, unpack, unpack_run


@given(st.data(), st.integers(0, 7))
def test_messages_survive_packing(data: st.DataObject, count: int) -> None:
    """Payloads, headers, groups and dedup ids stay with their message."""

    def column(strategy: st.SearchStrategy[object]) -> list[object]:
        return data.draw(st.lists(strategy, min_size=count, max_size=count))

    payloads = column(st.binary(max_size=20))
    headers, groups, dedup = column(samples.or_none(samples.MAPS)), column(samples.KEYS), column(samples.KEYS)
    columns = pack(payloads, headers, groups=groups, dedup=dedup)  # type: ignore[arg-type]
    messages = unpack(columns)

    assert payloads == messages.payloads
    assert [each or None for each in headers] == (messages.headers or [None] * count)
    assert groups == list(messages.groups or ())
    assert dedup == list(messages.dedup or ())
    assert count == columns.count


def test_empty_columns_are_left_out() -> None:
    """A batch without groups must not carry a column of nulls."""
    assert api.Columns(b"ab", struct.pack("<II", 1, 2)) == pack(
        [b"a", b"b"], [None, {}], groups=[None, None], dedup=[None, None]
    )


@given(samples.runs())
def test_a_run_is_taken_apart_from_its_base(run: api.Delivered) -> None:
    """A slice of a batch gives the messages that the slice holds."""
    messages = unpack_run(run)
    if run.lost:
        assert [] == messages.payloads
    else:
        assert run.payloads == b"".join(messages.payloads)
        assert run.count == len(messages.payloads)
        starts = _offsets(run)
        sizes = [end - start for start, end in pairwise(starts)]
        assert sizes == list(map(len, messages.payloads))


def _offsets(run: api.Delivered) -> list[int]:
    return [run.base, *struct.unpack(f"<{run.count}I", run.ends)]


def test_columns_of_different_lengths_are_refused() -> None:
    """A forgotten header must not shift all that follow."""
    for columns in ({"headers": [None]}, {"groups": ["a"]}, {"dedup": ["a", "b", "c"]}):
        with pytest.raises(InvalidArgument):
            pack([b"a", b"b"], **columns)  # type: ignore[arg-type]


def test_offsets_that_do_not_fit_are_refused() -> None:
    """Neither is anything sliced by them."""
    good = pack([b"ab", b"cd"])
    for ends in (b"", struct.pack("<II", 3, 2), struct.pack("<II", 2, 5), struct.pack("<I", 3)):
        with pytest.raises(InvalidArgument):
            unpack(attrs.evolve(good, ends=ends))


@pytest.mark.parametrize("headers", [{1: 2}, {"a": object()}, {"a": float("nan")}, {"a": {2: 3}}, {"\ud800": 1}])
def test_headers_that_are_not_plain_are_refused(headers: dict[object, object]) -> None:
    """They travel as CBOR, never as live objects."""
    with pytest.raises(InvalidArgument):
        encode_headers(headers)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "stretch", [b"\x01", b"\xa1\x01\x02", b"\xa1\x61a\xc1\x00", b"\xa0\xa0", b"\xa1\x61a\xf9\x7e\x00", b"\xbf\xff"]
)
def test_headers_that_another_producer_made_up_are_refused(stretch: bytes) -> None:
    """A consumer's decoder is not at a producer's mercy."""
    with pytest.raises(RemoteProtocolError):
        decode_headers(stretch)
