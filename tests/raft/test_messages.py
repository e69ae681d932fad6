"""Bytes of messages: what is sent is what arrives, and nothing else gets in."""

from __future__ import annotations

from typing import Any

import attrs
import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from walrq.errors import RemoteProtocolError
from walrq.raft.entries import Entry, Kind
from walrq.raft.membership import Configuration
from walrq.raft.messages import (
    ADDED,
    NUMBERS,
    Append,
    Heartbeat,
    Message,
    PreVote,
    RecordsReply,
    SnapshotReply,
    SnapshotStatus,
    TimeoutNow,
    Vote,
    decode,
    encode,
    encode_pieces,
)

uints = st.one_of(st.integers(0, 50), st.just((1 << 64) - 1))
names = st.text(min_size=1, max_size=20)
BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "int": uints,
    "int | None": st.none() | uints,
    "bool": st.booleans(),
    "str": names,
    "bytes": st.binary(max_size=100),
    "tuple[int, ...]": st.lists(uints, max_size=5).map(tuple),
    "Configuration": st.builds(Configuration.of, st.sets(names, min_size=1, max_size=5)),
    "SnapshotStatus": st.sampled_from(SnapshotStatus),
}


entries = st.builds(Entry, uints, st.sampled_from(Kind), st.binary(max_size=20))


@st.composite
def appends(draw: st.DrawFn) -> Append:
    """An append whose parts fit each other."""
    prev = draw(st.integers(0, 1000))
    terms = sorted(draw(st.lists(st.integers(1, 9), max_size=5)))
    prev_term = 0 if prev == 0 else min([*terms, draw(st.integers(1, 9))])
    entries = [Entry(term, draw(st.sampled_from(Kind)), draw(st.binary(max_size=20))) for term in terms]
    head = (draw(names), draw(names), draw(names), 9, prev, prev_term, prev + len(terms))
    return Append(*head, draw(uints), draw(uints), tuple(entries))


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Any message."""
    kind = draw(st.sampled_from(list(NUMBERS)))
    if kind is Append:
        return draw(appends())
    if kind is RecordsReply:
        found = draw(st.lists(st.tuples(uints, entries), max_size=4))
        head = (draw(names), draw(names), draw(names), draw(uints), draw(uints), draw(uints))
        return RecordsReply(*head, tuple(index for index, _ in found), tuple(entry for _, entry in found))
    return kind(*(draw(BY_TYPE[str(field.type)]) for field in attrs.fields(kind)))


@given(messages())
def test_what_is_sent_is_what_arrives(message: Message) -> None:
    """Every kind, every field."""
    assert message == decode(encode(message))


@given(messages(), st.data())
def test_a_later_version_may_add_fields(message: Message, data: st.DataObject) -> None:
    """Positions are only ever appended: an older node reads what it knows, a newer one does without what came later."""
    parts = cbor2.loads(encode(message))
    added = ADDED.get(type(message), 0)

    assert message == decode(cbor2.dumps([*parts, data.draw(st.integers())]))
    for fewer in range(1, added + 1):
        names = [field.name for field in attrs.fields(type(message))][-fewer:]
        defaults = {name: attrs.fields_dict(type(message))[name].default for name in names}
        assert attrs.evolve(message, **defaults) == decode(cbor2.dumps(parts[:-fewer]))  # type: ignore[misc]
    with pytest.raises(RemoteProtocolError, match="fields came"):
        decode(cbor2.dumps(parts[: -added - 1]))


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    """Whatever it is, it is a protocol error and nothing else."""
    with pytest.raises(RemoteProtocolError):
        decode(data)


@given(messages(), st.data())
def test_a_field_of_another_type_is_refused_by_name(message: Message, data: st.DataObject) -> None:
    """One clear line that says which."""
    fields = attrs.fields(type(message))
    at = data.draw(st.integers(0, len(fields) - 1))
    parts = cbor2.loads(encode(message))
    parts[at + 1] = 1.5

    with pytest.raises(RemoteProtocolError, match=f"{type(message).__name__}: {fields[at].name} "):
        decode(cbor2.dumps(parts))


HEAD = ("c", "a", "b", 5)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([], "begins with a number"),
        (["x"], "begins with a number"),
        ([99, *HEAD], "number 99 is not known"),
        ([1, *HEAD, 0, 0, -1], "round is not an unsigned"),
        ([1, *HEAD, 0, 0, 1 << 64], "round is not an unsigned"),
        ([1, "", "a", "b", 5, 0, 0, 0], "cluster is not a text of 1"),
        ([1, "c", "x" * 256, "b", 5, 0, 0, 0], "sender is not a text of 1"),
        ([3, *HEAD, 1, 1, 0], "transfer is neither"),
        ([5, *HEAD, 0, 0, 1, 0, 0, []], "last_index does not fit"),
        ([5, *HEAD, 0, 0, 1, 0, 0, [[1, 1]]], "entries has an item"),
        ([5, *HEAD, 0, 0, 1, 0, 0, [[1, 9, b""]]], "entries 9 is not a valid Kind"),
        ([5, *HEAD, 0, 0, 1, 0, 0, [[6, 1, b""]]], "terms of entries fall, or exceed"),
        ([5, *HEAD, 1, 4, 2, 0, 0, [[3, 1, b""]]], "terms of entries fall, or exceed"),
        ([5, *HEAD, 1, 0, 1, 0, 0, []], "prev_term is 0 only before the first"),
        ([5, *HEAD, 0, 1, 0, 0, 0, []], "prev_term is 0 only before the first"),
        ([5, *HEAD, 0, 0, 0, 0, 0, [0] * 1025], "array of at most 1024"),
        ([12, *HEAD, 1, 1, 1, "x"], "configuration is not a byte string"),
        ([13, *HEAD, 1, 0, True, b"x" * ((1 << 20) + 1)], "data is not a byte string of at most"),
        ([14, *HEAD, 1, 7, 0], "status 7 is not a valid"),
    ],
)
def test_what_contradicts_itself_is_refused(parts: list[Any], why: str) -> None:
    """Before the core sees it."""
    with pytest.raises(RemoteProtocolError, match=why):
        decode(cbor2.dumps(parts))


def test_a_broken_configuration_is_refused_with_its_offer() -> None:
    """The error of the inner bytes is as clear."""
    with pytest.raises(RemoteProtocolError, match="voters is empty"):
        decode(cbor2.dumps([12, *HEAD, 1, 1, 1, cbor2.dumps([1, [], []])]))


def test_an_append_leaves_filled_only() -> None:
    """Its entries are the caller's to add, all of them and the right ones."""
    bare = Append("c", "a", "b", 3, 4, 2, 6, 4)
    with pytest.raises(AssertionError):
        encode(bare)
    with pytest.raises(AssertionError):
        bare.filled([Entry(3, Kind.NOOP, b"")])
    with pytest.raises(AssertionError):
        bare.filled([Entry(1, Kind.NOOP, b""), Entry(3, Kind.NOOP, b"")])
    with pytest.raises(AssertionError):
        bare.filled([Entry(2, Kind.NOOP, b""), Entry(4, Kind.NOOP, b"")])

    filled = bare.filled([Entry(2, Kind.COMMANDS, b"x"), Entry(3, Kind.NOOP, b"")])
    assert filled == decode(encode(filled))


@given(
    st.lists(
        st.builds(
            Entry,
            st.sampled_from([1, 23, 24, 255, 256, 65_535, 65_536, 2**32, 2**64 - 1]),
            st.sampled_from(Kind),
            st.sampled_from([b"", b"x", bytes(23), bytes(24), bytes(255), bytes(256), bytes(70_000), bytes(200_000)]),
        ),
        max_size=30,
    )
)
def test_pieces_are_the_bytes_of_the_whole(entries: list[Entry]) -> None:
    """Large bodies are not copied; the other end cannot tell."""
    append = Append("c", "a", "b", 2**64 - 1, 4, 1, 4 + len(entries), 4, 0, tuple(entries))
    plain = [[entry.term, int(entry.kind), entry.body] for entry in entries]

    assert cbor2.dumps([5, "c", "a", "b", 2**64 - 1, 4, 1, 4 + len(entries), 4, 0, plain]) == encode(append)
    assert encode(append) == b"".join(encode_pieces(append))


def test_a_large_body_is_a_piece_of_its_own() -> None:
    """A megabyte for each of four followers is not copied four times."""
    body = bytes(100_000)
    append = Append(*HEAD, 0, 0, 1, 0, 0, (Entry(5, Kind.COMMANDS, body),))

    assert any(piece is body for piece in encode_pieces(append))


def test_numbers_and_positions_stay_what_they_are() -> None:
    """Nodes of different versions talk to each other while a group is upgraded."""
    assert list(range(1, 19)) == list(NUMBERS.values())
    assert [1, "c", "a", "b", 5, 7, 4, 1] == cbor2.loads(encode(PreVote(*HEAD, 7, 4, 1)))
    assert [3, "c", "a", "b", 5, 7, 4, True] == cbor2.loads(encode(Vote(*HEAD, 7, 4, True)))
    assert [7, "c", "a", "b", 5, 9, 2, None] == cbor2.loads(encode(Heartbeat(*HEAD, 9, 2)))
    assert [9, "c", "a", "b", 5] == cbor2.loads(encode(TimeoutNow(*HEAD)))
    done = SnapshotReply(*HEAD, 1, SnapshotStatus.DONE, 0)
    assert [14, "c", "a", "b", 5, 1, 2, 0] == cbor2.loads(encode(done))
    append = Append(*HEAD, 0, 0, 1, 0, 6, (Entry(5, Kind.COMMANDS, b"x"),))
    assert [5, "c", "a", "b", 5, 0, 0, 1, 0, 6, [[5, 1, b"x"]]] == cbor2.loads(encode(append))
