"""The bytes of an entry: every command goes both ways, and no other bytes are taken."""

from __future__ import annotations

import typing

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.queues.bench import columns
from walrq import api
from walrq.errors import CorruptRecord
from walrq.far.rows import Row
from walrq.far.shelf import Cut, Found
from walrq.queues import commands as c

text = st.text(max_size=5)
small = st.integers(0, 1 << 40)
maybe = st.none() | small
ranges = st.none() | st.lists(st.tuples(small, small), max_size=3).map(tuple)
targets = st.lists(st.builds(c.Target, small, small, ranges), max_size=3).map(tuple)
bodies = st.lists(st.binary(max_size=4), min_size=1, max_size=4).map(columns)
filters = st.none() | st.builds(
    api.Filter,
    reason=st.none() | text,
    error_type=st.none() | text,
    error_contains=st.none() | text,
    ids=st.none() | st.lists(st.integers(0, (1 << 128) - 1), max_size=3).map(tuple),
)
settings = st.dictionaries(text, st.none() | st.booleans() | small | text, max_size=3)
identifier = st.integers(0, (1 << 128) - 1)
identifiers = st.lists(identifier, max_size=3).map(tuple)
halves = st.integers(0, (1 << 16) - 1)
rows = st.builds(
    Row,
    small,
    identifier,
    small,
    *(halves,) * 5,
    st.integers(0, 255),
    halves,
    small,
    st.dictionaries(st.integers(0, 8), small | text, max_size=2),
)
found = st.none() | st.builds(c.FarFound, small, st.lists(st.builds(Found, small, small, rows), max_size=2).map(tuple))
cuts = st.lists(st.builds(Cut, small, small, small, st.binary(max_size=9), st.binary(max_size=9)), max_size=2)
EVERY: dict[type, st.SearchStrategy[typing.Any]] = {
    c.Push: st.builds(c.Push, text, bodies, small, maybe, maybe, maybe, maybe, st.booleans()),
    c.Lease: st.builds(
        c.Lease,
        st.lists(text, max_size=3).map(tuple),
        small,
        maybe,
        small,
        st.none() | text,
        st.booleans(),
        st.none() | text,
    ),
    c.Settle: st.builds(
        c.Settle, text, st.sampled_from(api.SettleKind), targets, maybe, st.none() | text, st.none() | text
    ),
    c.Touch: st.builds(c.Touch, text, targets, small),
    c.Forget: st.builds(c.Forget, small),
    c.Undo: st.builds(c.Undo, targets),
    c.Cancel: st.builds(c.Cancel, text, identifiers, found),
    c.Reschedule: st.builds(c.Reschedule, text, identifier, small, found),
    c.SetQueue: st.builds(c.SetQueue, text, settings, st.booleans()),
    c.PurgeQueue: st.builds(c.PurgeQueue, text),
    c.DeleteQueue: st.builds(c.DeleteQueue, text),
    c.Redrive: st.builds(c.Redrive, text, small, st.none() | text, filters),
    c.PurgeDead: st.builds(c.PurgeDead, text, filters),
    c.Move: st.builds(c.Move, text, text, small),
    c.OpenSession: st.builds(c.OpenSession, st.just("") | text),
    c.CloseSession: st.builds(c.CloseSession),
    c.KeepSessions: st.builds(c.KeepSessions, st.lists(small, max_size=3).map(tuple)),
    c.Hydrate: st.builds(
        c.Hydrate,
        small,
        small,
        small,
        st.binary(max_size=9),
        st.none() | st.lists(small, max_size=3).map(tuple),
        maybe,
    ),
    c.SetWindow: st.builds(c.SetWindow, maybe, maybe),
    c.HydrateFar: st.builds(c.HydrateFar, st.binary(max_size=9), st.binary(max_size=9), small, cuts.map(tuple)),
    c.SweepFar: st.builds(
        c.SweepFar, small, small, small, st.lists(st.tuples(small, small, small), max_size=3).map(tuple)
    ),
    c.PutToken: st.builds(
        c.PutToken,
        text,
        st.binary(max_size=32),
        st.lists(st.builds(api.Grant, st.sampled_from(api.Right), text), max_size=3).map(tuple),
        maybe,
        maybe,
        maybe,
    ),
    c.DropToken: st.builds(c.DropToken, text),
    c.LoseFar: st.builds(
        c.LoseFar,
        st.lists(small, max_size=3).map(tuple),
        st.lists(st.tuples(small, small, small), max_size=3).map(tuple),
        st.lists(st.tuples(small, small), max_size=3).map(tuple),
    ),
    c.Bootstrap: st.builds(c.Bootstrap, text, st.binary(max_size=9)),
    c.RaiseVersion: st.builds(c.RaiseVersion, small),
}
stamps = st.builds(c.Stamp, small, small)
tagged = st.builds(c.Tagged, st.one_of(*EVERY.values()), maybe, small, small)


def test_no_command_is_left_out() -> None:
    """A command that the log cannot carry would be lost at the next restart."""
    assert set(typing.get_args(c.Command)) == set(EVERY)


@given(stamps, st.lists(tagged, max_size=4))
def test_an_entry_goes_both_ways(stamp: c.Stamp, entry: list[c.Tagged]) -> None:
    """What is written is what is read, object by object and byte by byte."""
    body = c.encode_entry(stamp, entry)

    assert (stamp, entry) == c.decode_entry(body)
    assert body == c.encode_entry(*c.decode_entry(body))


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_refused_as_corrupt(body: bytes) -> None:
    """Never another exception."""
    try:
        decoded = c.decode_entry(body)
    except CorruptRecord:
        return
    assert isinstance(decoded[0], c.Stamp)


@given(stamps, st.lists(tagged, min_size=1, max_size=2), st.data())
def test_a_cut_entry_is_refused(stamp: c.Stamp, entry: list[c.Tagged], data: st.DataObject) -> None:
    """At every byte."""
    body = c.encode_entry(stamp, entry)
    cut = data.draw(st.integers(0, len(body) - 1))

    with pytest.raises(CorruptRecord):
        c.decode_entry(body[:cut])


def test_an_entry_of_a_newer_format_is_refused() -> None:
    """Not misread."""
    with pytest.raises(CorruptRecord):
        c.decode_entry(cbor2.dumps([c.FORMAT + 1, 0, 0, []]))


def test_an_unknown_operation_is_refused() -> None:
    """A newer leader's command cannot be skipped: replicas would diverge."""
    with pytest.raises(CorruptRecord):
        c.decode_entry(cbor2.dumps([c.FORMAT, 0, 0, [[59, None, 0, 0]]]))


def test_operation_numbers_never_change() -> None:
    """They are on disks."""
    first = ["PUSH", "LEASE", "SETTLE", "TOUCH", "FORGET", "CANCEL", "RESCHEDULE", "SET_QUEUE", "PURGE_QUEUE"]

    assert {name: number for number, name in enumerate(first, 1)} == {op.name: int(op) for op in c.Op if op <= 9}
    assert not {int(op) for op in c.Op} & set(range(40, 60))


def test_bodies_are_found_by_ordinal() -> None:
    """An address is (index, ordinal); only pushes have bodies."""
    one, other = columns([b"a", b"bc"]), columns([b"d"], groups=["g"], dedup=["k"])
    entry = [c.Tagged(c.Push("q", one)), c.Tagged(c.PurgeQueue("q")), c.Tagged(c.Push("r", other))]

    assert {0: one, 2: other} == c.bodies_of(c.encode_entry(c.Stamp(1, 2), entry))
