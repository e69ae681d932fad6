"""TLA+ values and states, as TLC prints them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walrq.formal.values import BadValue, Function, Model, function, parse, parse_state, render

TEXT = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S", "Zs"]) | st.sampled_from('\n\t"\\'))
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True)
ATOMS = (
    st.integers(-99, 99) | st.booleans() | TEXT | NAMES.filter(lambda name: name not in ("TRUE", "FALSE")).map(Model)
)


def deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Sequences, sets, records and functions of values."""
    sets = st.frozensets(st.integers(-9, 9)) | st.frozensets(TEXT, max_size=3) | st.frozensets(inner, max_size=3)
    return (
        st.lists(inner, max_size=3).map(tuple)
        | sets
        | st.dictionaries(NAMES, inner, max_size=3).map(function)
        | st.dictionaries(st.integers(-9, 9), inner, max_size=3).map(function)
    )


VALUES = st.recursive(ATOMS, deeper, max_leaves=12)


@given(VALUES)
def test_a_value_survives_the_round_trip(value: Any) -> None:
    """What is put into a module and printed again is the same, in kind as well (1 is not TRUE)."""
    again = parse(render(value))

    assert value == again
    assert render(value) == render(again)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1..3", frozenset({1, 2, 3})),
        ("3..1", frozenset()),
        ("<<>>", ()),
        ("[a |-> 1,\n  b |-> <<TRUE,\n m1>>]", Function(a=1, b=(True, Model("m1")))),
        ("(1 :> 5 @@ 2 :> 6)", (5, 6)),
        ("(0 :> 5 @@ -2 :> {})", Function({0: 5, -2: frozenset()})),
        (r'"a\"b\\c\n"', 'a"b\\c\n'),
    ],
)
def test_what_tlc_prints_is_read(text: str, value: Any) -> None:
    """Intervals, wrapped lines, functions over 1..n, escapes: each form that occurs."""
    assert value == parse(text)


@pytest.mark.parametrize("text", ["", "<<1, 2", "[a |-> ]", "{1 2}", "1 2", "?", "(1 :> 2 @@ )", "1..x", "[1 |-> 2"])
def test_anything_else_is_refused(text: str) -> None:
    """A misread counterexample would send people after a fault that is not there."""
    with pytest.raises(BadValue):
        parse(text)


def test_a_state_is_its_variables_by_name() -> None:
    """Values may go over several lines, and a state of one variable has no conjunction sign."""
    text = '/\\ x = [ a |->\n      << 1,\n         2 >> ]\n/\\ act = [op |-> "Push"]\n\n'

    assert Function(x=Function(a=(1, 2)), act=Function(op="Push")) == parse_state(text)
    assert Function(x=1) == parse_state("x = 1\n")
    with pytest.raises(BadValue):
        parse_state("nothing here")


def test_what_has_no_value_is_not_rendered() -> None:
    """Nothing is guessed: a float is not a number of TLA+'s."""
    with pytest.raises(BadValue):
        render(1.5)
