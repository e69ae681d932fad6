"""Calls travel as CBOR, are checked where they are made, and come back equal."""

from __future__ import annotations

import inspect
import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from ipaddress import ip_address
from typing import Any
from uuid import UUID

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from walrq.errors import InvalidArgument
from walrq.worker.arguments import DEPTH_MAX, decode, encode, readable


def function(to: Any, /, when: Any = None, *rest: Any, retry: bool = False, **others: Any) -> None:
    """Has every kind of parameter."""


SIGNATURE = inspect.signature(function)

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"))
    | st.binary()
    | st.dates()
    | st.datetimes(timezones=st.just(UTC))
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.uuids()
    | st.ip_addresses(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")) | st.integers(), inner),
    max_leaves=8,
)


@given(args=st.lists(plain, min_size=1), kwargs=st.dictionaries(st.sampled_from(["retry", "x", "y"]), plain))
def test_what_goes_in_comes_out_equal(args: list[Any], kwargs: dict[str, Any]) -> None:
    """A handler sees what the caller gave, whatever it was."""
    assert (args, kwargs) == decode(encode("t", SIGNATURE, args, kwargs))


def test_tuples_come_back_as_lists_and_sets_as_sets() -> None:
    """CBOR has one kind of array; the guide says so."""
    args, _ = decode(encode("t", SIGNATURE, [(1, (2,)), {3}], {}))

    assert [[1, [2]], {3}] == args


class Money:
    """A type of an application."""


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ([1, timedelta(1)], {}, "argument 'when' of task 'x': datetime.timedelta has no CBOR form"),
        ([Money()], {}, "argument 'to' of task 'x': .*Money has no CBOR form"),
        ([1, 2, 3, object()], {}, r"argument 'rest\[1\]' of task 'x': object has no CBOR form"),
        ([1], {"retry": time(1)}, "argument 'retry' of task 'x': datetime.time has no CBOR form"),
        ([{"a": [1, range(3)]}], {}, r"""argument "to\['a'\]\[1\]" of task 'x': range has no CBOR form"""),
        ([{timedelta(1): 1}], {}, "to, key datetime.timedelta.*datetime.timedelta has no CBOR form"),
        ([{Money}], {}, "member .*: type has no CBOR form"),
        ([datetime(2020, 1, 1)], {}, "argument 'to' of task 'x': a datetime without a time zone"),
        (["\ud800"], {}, "argument 'to' of task 'x': a text with half a character pair"),
        ([[{"k": "\ud800"}]], {}, r"argument .to\[0\]\['k'\]. of task 'x': a text with half"),
        ([memoryview(b"x")], {}, "memoryview has no CBOR form"),
        ([re.compile("x")], {}, "re.Pattern has no CBOR form"),
        ([1j], {}, "complex has no CBOR form"),
    ],
)
def test_what_has_no_form_is_named_where_it_is_given(args: list[Any], kwargs: dict[str, Any], expected: str) -> None:
    """The mistake is found at the call that makes it, not hours later in a worker."""
    with pytest.raises(InvalidArgument, match=expected):
        encode("x", SIGNATURE, args, kwargs)


def test_a_value_that_holds_itself_is_refused() -> None:
    """It would never end."""
    endless: list[Any] = []
    endless.append(endless)

    with pytest.raises(InvalidArgument, match=f"nested deeper than {DEPTH_MAX} levels"):
        encode("x", SIGNATURE, [endless], {})


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ([], {}, "task 'x': missing a required argument: 'to'"),
        ([], {"to": 1}, "task 'x': .*to"),
    ],
)
def test_a_call_that_does_not_fit_fails_like_a_call(args: list[Any], kwargs: dict[str, Any], expected: str) -> None:
    """The signature is checked before anything is sent."""
    with pytest.raises(TypeError, match=expected):
        encode("x", SIGNATURE, args, kwargs)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"hello",
        b"\x82\x80",
        b"\x81" * 100_000 + b"\x00",
        b"\xc0\x61x",
        b"\xc4\x82\x01\x61x",
        b"\xd8\x25\x41x",
        cbor2.dumps([1, 2]),
        cbor2.dumps([[], {1: 2}]),
        cbor2.dumps([[], {}, 3]),
        cbor2.dumps({"a": 1}),
    ],
)
def test_a_payload_that_is_no_call_is_said_to_be_none(payload: bytes) -> None:
    """Anybody may push anything to a queue."""
    with pytest.raises(InvalidArgument, match="not the call of a task"):
        decode(payload)


@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_a_call_or_refused(payload: bytes) -> None:
    """A worker survives every payload."""
    try:
        args, kwargs = decode(payload)
    except InvalidArgument:
        return
    assert isinstance(args, list)
    assert isinstance(kwargs, dict)


def test_rich_values_keep_their_types() -> None:
    """Money, ids and moments are what tasks are called with."""
    given_values = [Decimal("1.10"), Fraction(1, 3), UUID(int=7), ip_address("::1"), date(2020, 2, 29)]
    args, _ = decode(encode("t", SIGNATURE, given_values, {}))

    assert list(map(type, given_values)) == list(map(type, args))


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        (["letter.txt"], {}, 'resize("letter.txt")'),
        ([1, 2.5, None, True], {"to": b"x"}, "resize(1, 2.5, None, True, to=b'x')"),
        (['a "b"', "it's", "\x1b\n", "both ' and \""], {}, r"""resize("a \"b\"", "it's", "\x1b\n", "both ' and \"")"""),
        ([["a", 1], {"k": ["v"]}], {}, 'resize(["a", 1], {"k": ["v"]})'),
        ([], {}, "resize()"),
    ],
)
def test_a_call_is_written_as_one_would(args: list[Any], kwargs: dict[str, Any], expected: str) -> None:
    """For lists of dead messages; nothing in it moves a cursor."""
    assert expected == readable("resize", cbor2.dumps([args, kwargs]))


@pytest.mark.parametrize("payload", [b"", b"hello", cbor2.dumps([1, 2]), cbor2.dumps({"a": 1})])
def test_what_is_no_call_is_not_written_as_one(payload: bytes) -> None:
    """Its payload is shown as it is."""
    assert None is readable("resize", payload)
