"""The words that all doors share: plain values that compare, count and never mix."""

from __future__ import annotations

import struct
import typing

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from walrq import api

VALUES = [*typing.get_args(api.Request), *typing.get_args(api.Reply), api.Columns, api.Item, api.Attempt]


def columns(payloads: list[bytes], headers: bytes | None = None) -> api.Columns:
    """A body of these payloads."""
    ends, total = [], 0
    for payload in payloads:
        total += len(payload)
        ends.append(total)
    return api.Columns(b"".join(payloads), struct.pack(f"<{len(ends)}I", *ends), headers)


@given(st.lists(st.binary(max_size=9), max_size=20), st.none() | st.binary(max_size=30))
def test_columns_count_messages_and_bytes(payloads: list[bytes], headers: bytes | None) -> None:
    """Counts come from the offsets, sizes from payloads and headers."""
    body = columns(payloads, headers)

    assert len(payloads) == body.count
    assert sum(map(len, payloads)) + len(headers or b"") == body.size


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_every_word_is_an_attrs_value_with_described_fields(kind: type) -> None:
    """Requests and replies are values: no hidden state, equal when their fields are equal."""
    assert attrs.has(kind)
    assert not hasattr(kind, "__dict__") or "__slots__" in vars(kind)
    assert kind.__doc__


def test_requests_and_replies_share_no_class() -> None:
    """A frame's direction is clear from what it holds."""
    assert not set(typing.get_args(api.Request)) & set(typing.get_args(api.Reply))


def test_equal_requests_are_equal_and_hash_alike() -> None:
    """Values may be keys: a request made twice is one key."""
    one = api.Settle("q", api.SettleKind.ACK, (api.Item(b"r", ((0, 1),)),))
    other = api.Settle("q", api.SettleKind.ACK, (api.Item(b"r", ((0, 1),)),))

    assert one == other
    assert 1 == len({one, other})
    assert one != api.Settle("q", api.SettleKind.FAIL, one.items)


def test_numbers_on_the_wire_never_change() -> None:
    """Kinds, states and outcomes are stored and sent as these numbers."""
    assert {"ACK": 0, "RELEASE": 1, "FAIL": 2, "REJECT": 3} == {k.name: int(k) for k in api.SettleKind}
    assert {"READY": 0, "DELAYED": 1, "LEASED": 2, "PARKED": 3, "DEAD": 4} == {s.name: int(s) for s in api.State}
    assert {"DONE": 0, "LEASED": 1, "GONE": 2, "UNKNOWN": 3} == {o.name: int(o) for o in api.Outcome}


def test_failures_with_other_details_are_other_failures() -> None:
    """Details take part in comparison though they cannot be hashed."""
    one = api.Failed(8, "no queue", {"nearest": "orders"})

    assert one != api.Failed(8, "no queue", {})
    assert hash(one) == hash(api.Failed(8, "no queue", {}))
