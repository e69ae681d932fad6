"""What peers say to each other. This module owns those bytes.

A message is the CBOR array `[number, cluster, sender, receiver, term, ...fields]`, its fields in the order of the
class. Numbers and positions are never given a second meaning; a field is only ever added at the end.

What a message means and what it promises stands at its class. `term` is the sender's term when the message was
made. An `Append` and nothing else carries entries; the core makes it without them (`last_index` says how many), and
the caller, who has the bodies, fills it (`filled`) before it does anything else with the core.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import cbor2

from walrq.errors import RemoteProtocolError
from walrq.limits import RAFT_APPEND_ENTRIES_MAX, RAFT_NODE_ID_BYTES_MAX, RAFT_SNAPSHOT_CHUNK_BYTES_MAX
from walrq.raft.entries import Entry, Kind
from walrq.raft.membership import Configuration

UINT64_MAX: Final = (1 << 64) - 1


@attrs.frozen
class Message:
    """What every message says: which cluster it belongs to, from whom, to whom, in which term."""

    cluster: str
    sender: str
    receiver: str
    term: int


@attrs.frozen
class PreVote(Message):
    """Would you vote for me in term + 1? Changes nothing at the receiver. `round` tells one asking from another."""

    last_index: int
    last_term: int
    round: int


@attrs.frozen
class PreVoteReply(Message):
    """Granted: no leader is known here, and the log is not behind. Promises nothing."""

    round: int
    granted: bool


@attrs.frozen
class Vote(Message):
    """Vote for me in this term. `transfer`: the leader itself asked for this election."""

    last_index: int
    last_term: int
    transfer: bool


@attrs.frozen
class VoteReply(Message):
    """Granted: the vote of this term is given, durably. `wall_ms` is the caller's: its wall clock, as it votes."""

    granted: bool
    wall_ms: int | None = None


@attrs.frozen
class Append(Message):
    """These entries follow the one at `prev_index` of `prev_term`; up to `commit` all is committed.

    The answer repeats `session`, which the leader changes when it learns that this follower lost what it had.
    """

    prev_index: int
    prev_term: int
    last_index: int
    commit: int
    session: int = 0
    entries: tuple[Entry, ...] = ()

    @property
    def is_filled(self) -> bool:
        """Whether its entries are in it."""
        return len(self.entries) == self.last_index - self.prev_index

    def filled(self, entries: Sequence[Entry]) -> Append:
        """This with its entries, `prev_index + 1` to `last_index`."""
        assert len(entries) == self.last_index - self.prev_index, (self, len(entries))
        assert not entries or self.prev_term <= entries[0].term <= entries[-1].term <= self.term, self
        return attrs.evolve(self, entries=tuple(entries))


@attrs.frozen
class AppendReply(Message):
    """Accepted: all that the append covered, up to `index`, is durable here.

    Rejected: there is no such entry at `index`, its `prev_index`; the logs can agree at `hint_index` at most, which
    is of `hint_term` here. `recovering`: this node is being repaired, and what it holds is not to be counted.
    """

    accepted: bool
    index: int
    hint_index: int = 0
    hint_term: int = 0
    recovering: bool = False
    session: int = 0


@attrs.frozen
class Heartbeat(Message):
    """I lead. Of what is known to be yours, up to `commit` is committed. `round` numbers the leader's beats.

    `lease_ms` is the caller's: its lease clock, as it leads.
    """

    commit: int
    round: int
    lease_ms: int | None = None


@attrs.frozen
class HeartbeatReply(Message):
    """You lead, as far as I know. `wall_ms` and `has_room` are the caller's: its wall clock, and whether its disk has
    room for more than what is held back for a full one, as it answers."""

    round: int
    wall_ms: int | None = None
    has_room: bool = True


@attrs.frozen
class TimeoutNow(Message):
    """Stand for election at once: I hand over to you."""


@attrs.frozen
class ReadRequest(Message):
    """A follower asks from which index on it may answer a read. `life` is drawn anew at each start.

    `recovering`: it lost a part of its log; whatever it acknowledged before is not to be counted any more.
    """

    ticket: int
    life: int
    recovering: bool = False


@attrs.frozen
class ReadReply(Message):
    """Once that index is applied the read may be answered; None: ask again, elsewhere."""

    ticket: int
    life: int
    index: int | None


@attrs.frozen
class SnapshotOffer(Message):
    """What you lack is no longer in my log; I have a snapshot of everything up to `index`."""

    stream: int
    index: int
    snapshot_term: int
    configuration: Configuration


@attrs.frozen
class SnapshotChunk(Message):
    """The bytes of the offered stream from `offset` on."""

    stream: int
    offset: int
    is_last: bool
    data: bytes


class SnapshotStatus(enum.IntEnum):
    """What a follower says about a stream."""

    RESUME = 0  # everything before `offset` was received: go on from there (answers an offer)
    STORED = 1  # everything before `offset` is stored: there is room for more
    DONE = 2  # all that the snapshot covers is durable here
    REFUSED = 3  # it could not be installed


@attrs.frozen
class SnapshotReply(Message):
    """See `SnapshotStatus`."""

    stream: int
    status: SnapshotStatus
    offset: int


@attrs.frozen
class EndRequest(Message):
    """How far does your log reach? Asked by a node under repair; changes nothing at the receiver."""

    round: int


@attrs.frozen
class EndReply(Message):
    """So far, as it is now. Promises nothing."""

    round: int
    last_index: int
    last_term: int


@attrs.frozen
class RecordsRequest(Message):
    """Send me these entries, which I applied and lost: any node may be asked. The callers' own; no term counts."""

    round: int
    indexes: tuple[int, ...]


@attrs.frozen
class RecordsReply(Message):
    """Of those up to `through` these are readable here, and committed: the entry at `indexes[i]` is `entries[i]`."""

    round: int
    through: int
    indexes: tuple[int, ...]
    entries: tuple[Entry, ...]


# Never renumbered.
NUMBERS: Final[dict[type[Message], int]] = {
    PreVote: 1,
    PreVoteReply: 2,
    Vote: 3,
    VoteReply: 4,
    Append: 5,
    AppendReply: 6,
    Heartbeat: 7,
    HeartbeatReply: 8,
    TimeoutNow: 9,
    ReadRequest: 10,
    ReadReply: 11,
    SnapshotOffer: 12,
    SnapshotChunk: 13,
    SnapshotReply: 14,
    EndRequest: 15,
    EndReply: 16,
    RecordsRequest: 17,
    RecordsReply: 18,
}


# Fields at the end that came with later versions: an older node leaves them out, and they are as if nothing was said.
ADDED: Final[dict[type[Message], int]] = {HeartbeatReply: 1}


def _uint(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= UINT64_MAX:
        raise ValueError("is not an unsigned integer of 64 bits")
    return value


def _uint_or_none(value: Any) -> int | None:
    return None if value is None else _uint(value)


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("is neither true nor false")
    return value


def _name(value: Any) -> str:
    # A character takes four bytes at most, so short names need not be encoded to be measured.
    if type(value) is str and 1 <= len(value) <= RAFT_NODE_ID_BYTES_MAX // 4:
        return value
    if type(value) is not str or not 1 <= len(value.encode()) <= RAFT_NODE_ID_BYTES_MAX:
        raise ValueError(f"is not a text of 1 to {RAFT_NODE_ID_BYTES_MAX} bytes")
    return value


def _chunk(value: Any) -> bytes:
    if type(value) is not bytes or len(value) > RAFT_SNAPSHOT_CHUNK_BYTES_MAX:
        raise ValueError(f"is not a byte string of at most {RAFT_SNAPSHOT_CHUNK_BYTES_MAX}")
    return value


def _entries(value: Any) -> tuple[Entry, ...]:
    if type(value) is not list or len(value) > RAFT_APPEND_ENTRIES_MAX:
        raise ValueError(f"is not an array of at most {RAFT_APPEND_ENTRIES_MAX}")
    entries = []
    kinds = _KINDS_OF_ENTRIES
    for item in value:
        if type(item) is not list or len(item) != 3 or type(item[2]) is not bytes:
            raise ValueError("has an item that is no [term, kind, body]")
        term, number, body = item
        # Up to a thousand in one message: the common case without a call.
        if type(term) is not int or not 0 <= term <= UINT64_MAX:
            _uint(term)
        kind = kinds.get(number) if type(number) is int else None
        if kind is None:
            raise ValueError(f"{_uint(number)} is not a valid Kind")
        entries.append(Entry(term, kind, body))
    return tuple(entries)


def _indexes(value: Any) -> tuple[int, ...]:
    if type(value) is not list or len(value) > RAFT_APPEND_ENTRIES_MAX:
        raise ValueError(f"is not an array of at most {RAFT_APPEND_ENTRIES_MAX}")
    return tuple(map(_uint, value))


def _configuration(value: Any) -> Configuration:
    if type(value) is not bytes:
        raise ValueError("is not a byte string")
    return Configuration.decode(value)


def _status(value: Any) -> SnapshotStatus:
    return SnapshotStatus(_uint(value))


def _as_is(value: Any) -> Any:
    return value


# By the type that a field is annotated with: (to plain values, from plain values or ValueError).
_FIELDS: Final[dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    "int": (_as_is, _uint),
    "int | None": (_as_is, _uint_or_none),
    "bool": (_as_is, _bool),
    "str": (_as_is, _name),
    "bytes": (_as_is, _chunk),
    "tuple[Entry, ...]": (lambda entries: [[e.term, int(e.kind), e.body] for e in entries], _entries),
    "tuple[int, ...]": (list, _indexes),
    "Configuration": (Configuration.encode, _configuration),
    "SnapshotStatus": (int, _status),
}


@attrs.frozen
class _Form:
    """How one kind of message is written and read.

    Attributes:
        get: all fields of a message, in order.
        plain: (position, conversion) of those that CBOR cannot take as they are.
        checks: for each field its name and what makes it from a decoded value.
        needed: how many of them must be there.
    """

    number: int
    get: Callable[[Message], tuple[Any, ...]]
    plain: tuple[tuple[int, Callable[[Any], Any]], ...]
    checks: tuple[tuple[str, Callable[[Any], Any]], ...]
    needed: int


def _form(kind: type[Message], number: int) -> _Form:
    fields = [(field.name, *_FIELDS[str(field.type)]) for field in attrs.fields(kind)]
    return _Form(
        number,
        operator.attrgetter(*(name for name, _, _ in fields)),
        tuple((at, to_plain) for at, (_, to_plain, _) in enumerate(fields, 1) if to_plain is not _as_is),
        tuple((name, from_plain) for name, _, from_plain in fields),
        len(fields) - ADDED.get(kind, 0),
    )


_FORMS: Final = {kind: _form(kind, number) for kind, number in NUMBERS.items()}
_KINDS: Final = {number: kind for kind, number in NUMBERS.items()}
_KINDS_OF_ENTRIES: Final = {int(kind): kind for kind in Kind}
# From this average on copying bodies costs more than a piece each.
_PIECE_BYTES_MIN: Final = 4096


def encode(message: Message) -> bytes:
    """The bytes of a message. An append must have been filled."""
    pieces = encode_pieces(message)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def encode_pieces(message: Message) -> list[bytes]:
    """The bytes of a message, in pieces: large bodies of entries are pieces of their own, not copied."""
    form = _FORMS[type(message)]
    parts = [form.number, *form.get(message)]
    if isinstance(message, Append):
        assert message.is_filled, message
        entries = message.entries
        if sum(len(entry.body) for entry in entries) > _PIECE_BYTES_MIN * len(entries):
            return _in_pieces(parts, entries)
    for at, to_plain in form.plain:
        parts[at] = to_plain(parts[at])
    return [cbor2.dumps(parts)]


def _in_pieces(parts: list[Any], entries: Sequence[Entry]) -> list[bytes]:
    """The same bytes as CBOR of the whole would be; the entries are the last field."""
    assert parts[-1] is entries
    parts[-1] = ()
    head = bytearray(cbor2.dumps(parts))
    # Without the empty array at the end.
    del head[-1:]
    head += _head(0x80, len(entries))
    pieces = []
    for term, kind, body in [(entry.term, entry.kind, entry.body) for entry in entries]:
        head += b"\x83"
        head += _head(0, term)
        head += _head(0, kind)
        head += _head(0x40, len(body))
        pieces.append(bytes(head))
        pieces.append(body)
        head.clear()
    return pieces


def _head(major: int, number: int) -> bytes:
    """The head of a CBOR item (RFC 8949, 3): its type and a length or value."""
    if number < 24:
        return bytes((major | number,))
    for code, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << 8 * size:
            return bytes((major | code,)) + number.to_bytes(size, "big")
    raise OverflowError(number)


def decode(data: bytes) -> Message:
    """The message that `data` is.

    Raises:
        RemoteProtocolError: it is none; the text names the field.
    """
    try:
        parts = cbor2.loads(data)
    except (cbor2.CBORDecodeError, ValueError) as error:
        raise RemoteProtocolError(f"peer message: {error}") from error
    if not isinstance(parts, list) or not parts or type(parts[0]) is not int:
        raise RemoteProtocolError("peer message: not an array that begins with a number")
    kind = _KINDS.get(parts[0])
    if kind is None:
        raise RemoteProtocolError(f"peer message: number {parts[0]} is not known to this version")
    form = _FORMS[kind]
    # A later version may have added fields behind; this one has no use for them.
    if len(parts) <= form.needed:
        raise RemoteProtocolError(
            f"{kind.__name__}: {len(parts) - 1} fields came, {form.needed} are needed", field=kind.__name__
        )
    values = []
    for (name, from_plain), part in zip(form.checks, parts[1:], strict=False):
        try:
            values.append(from_plain(part))
        except ValueError as error:
            raise RemoteProtocolError(f"{kind.__name__}: {name} {error}", field=name) from error
    message = kind(*values)
    _check(message)
    return message


def _check(message: Message) -> None:
    if isinstance(message, RecordsReply) and len(message.indexes) != len(message.entries):
        raise RemoteProtocolError("RecordsReply: indexes does not fit the entries", field="indexes")
    if isinstance(message, Append):
        if not message.is_filled:
            raise RemoteProtocolError("Append: last_index does not fit the entries", field="last_index")
        term = message.prev_term
        for entry in message.entries:
            # inv: PrevTermValid
            if not term <= entry.term <= message.term:
                raise RemoteProtocolError("Append: terms of entries fall, or exceed the sender's", field="entries")
            term = entry.term
        if (message.prev_index == 0) != (message.prev_term == 0):
            raise RemoteProtocolError("Append: prev_term is 0 only before the first entry", field="prev_term")
