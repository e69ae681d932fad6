"""What the log carries: a stamp and the commands that gathered behind it. This module owns those bytes.

An entry of kind COMMANDS is the CBOR array `[format, lease_ms, wall_ms, [command, ...]]`; a command is a flat array
`[op, session, sequence, lowest, ...fields]`, its columns copied verbatim from the producer's frame. Positions are
only ever appended; a new meaning gets a new op. A batch's address is (log index, ordinal of its command in the entry).

Never: reads a clock, decides anything. The bytes of an entry are a pure function of its commands.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import cbor2

from walrq.api import Columns, Filter, Grant, Range, Right, SettleKind, value
from walrq.errors import CorruptRecord
from walrq.far.rows import PageView, encode_page, pack
from walrq.far.shelf import Cut, Found

FORMAT: Final = 1
# The newest version of the state machine that this walrq can be. Which one a cluster is stands in its log: a leader
# raises it once every member can follow (`RaiseVersion`), so that no node ever meets a command it does not know.
VERSION_MAX: Final = 2
# CBOR: the first byte of an array of four, and the first one that says that a longer unsigned integer follows.
_ARRAY_OF_FOUR: Final = 0x84
_UINT_FOLLOWS: Final = 24


@attrs.frozen
class Stamp:
    """Both clocks of an entry, milliseconds. Neither ever goes back from entry to entry.

    Attributes:
        lease_ms: the log's own clock: leases, sessions, dedup windows, back-off.
        wall_ms: ms since 1970, forward only: delays, ttl, retention.
    """

    lease_ms: int
    wall_ms: int


class Op(enum.IntEnum):
    """Command numbers; never reused (17 was a form of 21 that no node ever wrote). 40-59 are reserved for schedules,
    unique jobs, results, cancellation of running work, rate and concurrency limits."""

    PUSH = 1
    LEASE = 2
    SETTLE = 3
    TOUCH = 4
    FORGET = 5
    CANCEL = 6
    RESCHEDULE = 7
    SET_QUEUE = 8
    PURGE_QUEUE = 9
    DELETE_QUEUE = 10
    REDRIVE = 11
    PURGE_DEAD = 12
    MOVE = 13
    OPEN_SESSION = 14
    CLOSE_SESSION = 15
    KEEP_SESSIONS = 16
    BOOTSTRAP = 18
    UNDO = 19
    RAISE_VERSION = 20
    HYDRATE = 21
    SET_WINDOW = 22
    HYDRATE_FAR = 23
    SWEEP_FAR = 24
    LOSE_FAR = 25
    PUT_TOKEN = 60
    DROP_TOKEN = 61


@value
class Push:
    """Append a batch; see `api.Push`."""

    queue: str
    columns: Columns
    priority: int = 0
    delay_ms: int | None = None
    deliver_at_ms: int | None = None
    ttl_ms: int | None = None
    max_attempts: int | None = None
    counted: bool = False


@value
class Lease:
    """Lease up to `max_messages` of the first of `queues` that has some. `arrived_ms` is the lease clock's reading
    when the poll arrived, so that the reply can tell how long it was parked. `numbered`, `into`: see `api.Poll`."""

    queues: tuple[str, ...]
    max_messages: int
    visibility_ms: int | None
    arrived_ms: int
    worker: str | None = None
    numbered: bool = False
    into: str | None = None


@value
class Target:
    """Outstanding messages of one lease: (queue uid, lease number), all of them when `ranges` is None. With
    `ids.TASKS_UID` the number is a task's."""

    uid: int
    lease: int
    ranges: tuple[Range, ...] | None = None


@value
class Settle:
    """See `api.Settle`; receipts are opened at the edge."""

    queue: str
    kind: SettleKind
    targets: tuple[Target, ...]
    delay_ms: int | None = None
    error_type: str | None = None
    error_text: str | None = None


@value
class Touch:
    """See `api.Touch`."""

    queue: str
    targets: tuple[Target, ...]
    visibility_ms: int


@value
class Forget:
    """Release, free of charge, what request `request` of the command's session leased."""

    request: int


@value
class Undo:
    """Give leases back as if they had never been (a sessionless reply could not be delivered): free, to their place."""

    targets: tuple[Target, ...]


@value
class FarFound:
    """What was found in sealed pages beyond the horizon: `seen` is the number of the first page that was not looked at;
    each row with its page and its position there."""

    seen: int
    rows: tuple[Found, ...]


@value
class Cancel:
    """See `api.Cancel`. `far`: what the leader found, if it had to look. `cold`: it also looked for cold messages, in
    all stretches of the queue with lower numbers than this, and what it found goes before this command."""

    queue: str
    ids: tuple[int, ...]
    far: FarFound | None = None
    cold: int = 0


@value
class Reschedule:
    """See `api.Reschedule`. `far`, `cold`: as for `Cancel`."""

    queue: str
    id: int
    deliver_at_ms: int
    far: FarFound | None = None
    cold: int = 0


@value
class SetQueue:
    """See `api.SetQueue`; `settings` were checked at the edge by `settings.check`."""

    queue: str
    settings: Mapping[str, Any] = attrs.field(hash=False)
    create: bool = True


@value
class PurgeQueue:
    """See `api.PurgeQueue`."""

    queue: str


@value
class DeleteQueue:
    """See `api.DeleteQueue`."""

    queue: str


@value
class Redrive:
    """See `api.Redrive` (a dry run never reaches the log). `more`: some of those that are cold match as well."""

    queue: str
    limit: int
    target: str | None = None
    where: Filter | None = None
    more: bool = False


@value
class PurgeDead:
    """See `api.PurgeDead`."""

    queue: str
    where: Filter | None = None


@value
class Move:
    """See `api.Move`."""

    source: str
    target: str
    limit: int


@value
class OpenSession:
    """The session's number is (index, ordinal) of this command. `owner`: the token whose it is, "" = anybody's."""

    owner: str = ""


@value
class CloseSession:
    """Ends the command's own session."""


@value
class KeepSessions:
    """These sessions have a living connection: their idle time starts anew."""

    sessions: tuple[int, ...]


@value
class Hydrate:
    """Bring cold batches of a lane of the queue `uid` back into the hot window; see `queues/horizon.py`.

    Attributes:
        stretch: the number of the stretch they stand in.
        rows: of a sealed one its page, or those of its rows that are `picked`, as an array of CBOR; else nothing. A
            sealed one that comes back whole and has none is lost: nobody can read it.
        picked: sequences of the batches that are wanted, out of turn; None: all of it, which must be next.
        soonest: of a sealed stretch when the first of what is left of it expires, 0 = nothing does; None = as before.
    """

    uid: int
    lane: int
    stretch: int
    rows: bytes = b""
    picked: tuple[int, ...] | None = None
    soonest: int | None = None


@value
class SetWindow:
    """The bounds of the hot window from here on: messages and their bytes, in all queues together; None = no bound."""

    messages: int | None
    bytes: int | None


@value
class HydrateFar:
    """What waits beyond the horizon with keys from `since` to below `to` comes back; see `walrq.far.shelf.Far.take`."""

    since: bytes
    to: bytes
    seen: int
    cuts: tuple[Cut, ...]


@value
class SweepFar:
    """Pages first .. last hold these rows of an emptied queue: (page, position, log index)."""

    uid: int
    first: int
    last: int
    rows: tuple[tuple[int, int, int], ...]


@value
class PutToken:
    """See `api.SetToken`."""

    name: str
    digest: bytes = attrs.field(repr=False)
    grants: tuple[Grant, ...]
    requests_per_s: int | None = None
    bytes_per_s: int | None = None
    in_flight: int | None = None


@value
class DropToken:
    """See `api.RevokeToken`."""

    name: str


@value
class LoseFar:
    """Sealed pages that nobody can read any more: what queues lose with them, (uid, messages, bytes) each, and rows by
    block of the log."""

    pages: tuple[int, ...]
    queues: tuple[tuple[int, int, int], ...]
    blocks: tuple[tuple[int, int], ...]


@value
class Bootstrap:
    """First command of a cluster: its id and the secret that keys receipt checks."""

    cluster: str
    secret: bytes


@value
class RaiseVersion:
    """From here on the state machine is of this version; a lower one changes nothing."""

    version: int


Command: TypeAlias = (
    Push
    | Lease
    | Settle
    | Touch
    | Forget
    | Undo
    | Cancel
    | Reschedule
    | SetQueue
    | PurgeQueue
    | DeleteQueue
    | Redrive
    | PurgeDead
    | Move
    | OpenSession
    | CloseSession
    | KeepSessions
    | Hydrate
    | SetWindow
    | HydrateFar
    | SweepFar
    | LoseFar
    | PutToken
    | DropToken
    | Bootstrap
    | RaiseVersion
)

# Since which version of the state machine a kind of command may be proposed; those that are not here: since 1.
SINCE: Final[dict[type, int]] = {
    Hydrate: 2,
    SetWindow: 2,
    HydrateFar: 2,
    SweepFar: 2,
    LoseFar: 2,
    PutToken: 2,
    DropToken: 2,
}


# Settings of queues that came with version 2.
SETTINGS_SINCE_2: Final = frozenset({"max_hot_messages", "max_hot_bytes"})


def since(command: Command) -> int:
    """Since which version of the state machine this very command may be proposed."""
    if isinstance(command, Push):
        return 2 if command.counted else 1
    if isinstance(command, Lease):
        return 2 if command.numbered or command.into is not None else 1
    if isinstance(command, SetQueue):
        return 2 if command.settings.keys() & SETTINGS_SINCE_2 else 1
    if isinstance(command, Cancel | Reschedule):
        return 2 if command.far is not None or command.cold else 1
    if isinstance(command, Redrive):
        return 2 if command.more else 1
    if isinstance(command, OpenSession):
        return 2 if command.owner else 1
    return SINCE.get(type(command), 1)


@value
class Tagged:
    """A command and the request it answers: (session, sequence, lowest unanswered), or no session."""

    command: Command
    session: int | None = None
    sequence: int = 0
    lowest: int = 0


def _targets(targets: tuple[Target, ...]) -> list[Any]:
    return [[t.uid, t.lease, t.ranges] for t in targets]


def _open_targets(raw: Any) -> tuple[Target, ...]:
    return tuple(
        Target(uid, lease, None if ranges is None else tuple((a, b) for a, b in ranges)) for uid, lease, ranges in raw
    )


# Lists throughout, never tuples: the encoder takes twice as long to recognise a tuple.
def _columns(columns: Columns) -> list[Any]:
    return [
        columns.payloads,
        columns.ends,
        columns.headers,
        columns.header_ends,
        columns.groups,
        columns.dedup,
    ]


def _open_columns(raw: Any) -> Columns:
    payloads, ends, headers, header_ends, groups, dedup = raw
    return Columns(
        payloads,
        ends,
        headers,
        header_ends,
        None if groups is None else tuple(groups),
        None if dedup is None else tuple(dedup),
    )


def _filter(where: Filter | None) -> Any:
    if where is None:
        return None
    return (where.reason, where.error_type, where.error_contains, where.ids)


def _open_filter(raw: Any) -> Filter | None:
    if raw is None:
        return None
    reason, error_type, contains, ids = raw
    return Filter(reason, error_type, contains, None if ids is None else tuple(ids))


def _looked(found: FarFound | None, cold: int) -> list[Any]:
    # Written only where it is used: version 1 reads all else.
    if cold:
        return [*(_looked(found, 0) or [None]), cold]
    if found is None:
        return []
    return [[found.seen, [[f.number, f.position, encode_page([(pack(f.row), f.row.more)])] for f in found.rows]]]


def _open_looked(rest: Sequence[Any]) -> tuple[FarFound | None, int]:
    cold = rest[1] if len(rest) > 1 else 0
    if not rest or rest[0] is None:
        return None, cold
    seen, rows = rest[0]
    found = FarFound(seen, tuple(Found(number, position, PageView(page, 1).row(0)) for number, position, page in rows))
    return found, cold


_Encoder: TypeAlias = Callable[[Any], list[Any]]
_Decoder: TypeAlias = Callable[[Sequence[Any]], Command]

_ENCODERS: Final[dict[type, tuple[int, _Encoder]]] = {
    Push: (
        Op.PUSH.value,
        lambda c: [
            c.queue,
            _columns(c.columns),
            c.priority,
            c.delay_ms,
            c.deliver_at_ms,
            c.ttl_ms,
            c.max_attempts,
            # What came with version 2 is written only where it is used: version 1 reads all else.
            *((True,) if c.counted else ()),
        ],
    ),
    Lease: (
        Op.LEASE.value,
        lambda c: [
            list(c.queues),
            c.max_messages,
            c.visibility_ms,
            c.arrived_ms,
            c.worker,
            *((c.numbered, c.into) if c.numbered or c.into is not None else ()),
        ],
    ),
    Settle: (
        Op.SETTLE.value,
        lambda c: [
            c.queue,
            int(c.kind),
            _targets(c.targets),
            c.delay_ms,
            c.error_type,
            c.error_text,
        ],
    ),
    Touch: (Op.TOUCH.value, lambda c: [c.queue, _targets(c.targets), c.visibility_ms]),
    Forget: (Op.FORGET.value, lambda c: [c.request]),
    Undo: (Op.UNDO.value, lambda c: [_targets(c.targets)]),
    Cancel: (Op.CANCEL.value, lambda c: [c.queue, c.ids, *_looked(c.far, c.cold)]),
    Reschedule: (Op.RESCHEDULE.value, lambda c: [c.queue, c.id, c.deliver_at_ms, *_looked(c.far, c.cold)]),
    SetQueue: (Op.SET_QUEUE.value, lambda c: [c.queue, dict(sorted(c.settings.items())), c.create]),
    PurgeQueue: (Op.PURGE_QUEUE.value, lambda c: [c.queue]),
    DeleteQueue: (Op.DELETE_QUEUE.value, lambda c: [c.queue]),
    Redrive: (Op.REDRIVE.value, lambda c: [c.queue, c.limit, c.target, _filter(c.where), *((True,) if c.more else ())]),
    PurgeDead: (Op.PURGE_DEAD.value, lambda c: [c.queue, _filter(c.where)]),
    Move: (Op.MOVE.value, lambda c: [c.source, c.target, c.limit]),
    OpenSession: (Op.OPEN_SESSION.value, lambda c: [c.owner] if c.owner else []),
    CloseSession: (Op.CLOSE_SESSION.value, lambda c: []),
    KeepSessions: (Op.KEEP_SESSIONS.value, lambda c: [c.sessions]),
    Hydrate: (
        Op.HYDRATE.value,
        lambda c: [c.uid, c.lane, c.stretch, c.rows, c.picked, c.soonest],
    ),
    SetWindow: (Op.SET_WINDOW.value, lambda c: [c.messages, c.bytes]),
    HydrateFar: (
        Op.HYDRATE_FAR.value,
        lambda c: [c.since, c.to, c.seen, [attrs.astuple(cut, recurse=False) for cut in c.cuts]],
    ),
    SweepFar: (Op.SWEEP_FAR.value, lambda c: [c.uid, c.first, c.last, c.rows]),
    LoseFar: (Op.LOSE_FAR.value, lambda c: [c.pages, c.queues, c.blocks]),
    PutToken: (
        Op.PUT_TOKEN.value,
        lambda c: [
            c.name,
            c.digest,
            [[int(grant.right), grant.queues] for grant in c.grants],
            c.requests_per_s,
            c.bytes_per_s,
            c.in_flight,
        ],
    ),
    DropToken: (Op.DROP_TOKEN.value, lambda c: [c.name]),
    Bootstrap: (Op.BOOTSTRAP.value, lambda c: [c.cluster, c.secret]),
    RaiseVersion: (Op.RAISE_VERSION.value, lambda c: [c.version]),
}


_DECODERS: Final[dict[int, _Decoder]] = {
    Op.PUSH.value: lambda f: Push(f[4], _open_columns(f[5]), *f[6:]),
    Op.LEASE.value: lambda f: Lease(tuple(f[4]), *f[5:]),
    Op.SETTLE.value: lambda f: Settle(f[4], SettleKind(f[5]), _open_targets(f[6]), *f[7:]),
    Op.TOUCH.value: lambda f: Touch(f[4], _open_targets(f[5]), f[6]),
    Op.FORGET.value: lambda f: Forget(f[4]),
    Op.UNDO.value: lambda f: Undo(_open_targets(f[4])),
    Op.CANCEL.value: lambda f: Cancel(f[4], tuple(f[5]), *_open_looked(f[6:])),
    Op.RESCHEDULE.value: lambda f: Reschedule(f[4], f[5], f[6], *_open_looked(f[7:])),
    Op.SET_QUEUE.value: lambda f: SetQueue(f[4], f[5], f[6]),
    Op.PURGE_QUEUE.value: lambda f: PurgeQueue(f[4]),
    Op.DELETE_QUEUE.value: lambda f: DeleteQueue(f[4]),
    Op.REDRIVE.value: lambda f: Redrive(f[4], f[5], f[6], _open_filter(f[7]), *f[8:]),
    Op.PURGE_DEAD.value: lambda f: PurgeDead(f[4], _open_filter(f[5])),
    Op.MOVE.value: lambda f: Move(f[4], f[5], f[6]),
    Op.OPEN_SESSION.value: lambda f: OpenSession(*f[4:]),
    Op.CLOSE_SESSION.value: lambda f: CloseSession(),
    Op.KEEP_SESSIONS.value: lambda f: KeepSessions(tuple(f[4])),
    Op.HYDRATE.value: lambda f: Hydrate(f[4], f[5], f[6], f[7], None if f[8] is None else tuple(f[8]), f[9]),
    Op.SET_WINDOW.value: lambda f: SetWindow(f[4], f[5]),
    Op.HYDRATE_FAR.value: lambda f: HydrateFar(f[4], f[5], f[6], tuple(Cut(*cut) for cut in f[7])),
    Op.SWEEP_FAR.value: lambda f: SweepFar(f[4], f[5], f[6], tuple((a, b, c) for a, b, c in f[7])),
    Op.PUT_TOKEN.value: lambda f: PutToken(
        f[4], f[5], tuple(Grant(Right(right), queues) for right, queues in f[6]), *f[7:]
    ),
    Op.DROP_TOKEN.value: lambda f: DropToken(f[4]),
    Op.LOSE_FAR.value: lambda f: LoseFar(
        tuple(f[4]), tuple((a, b, c) for a, b, c in f[5]), tuple((a, b) for a, b in f[6])
    ),
    Op.BOOTSTRAP.value: lambda f: Bootstrap(f[4], f[5]),
    Op.RAISE_VERSION.value: lambda f: RaiseVersion(f[4]),
}


def encode_entry(stamp: Stamp, commands: Sequence[Tagged]) -> bytes:
    """The body of a COMMANDS entry."""
    rows = []
    for tagged in commands:
        op, fields = _ENCODERS[type(tagged.command)]
        rows.append(
            [op, tagged.session, tagged.sequence, tagged.lowest, *fields(tagged.command)],
        )
    return cbor2.dumps([FORMAT, stamp.lease_ms, stamp.wall_ms, rows])


def decode_entry(body: bytes) -> tuple[Stamp, list[Tagged]]:
    """Stamp and commands of a COMMANDS entry.

    Raises:
        CorruptRecord: bytes that `encode_entry` of this or an older version never wrote. (Rot is caught before, by the
            record's checksum; this is a format of a newer version or an error of ours.)
    """
    try:
        version, lease_ms, wall_ms, rows = cbor2.loads(body)
        if version != FORMAT:
            raise CorruptRecord(f"entry format {version} is not known to this version (knows {FORMAT})")
        unknown = [row[0] for row in rows if row[0] not in _DECODERS]
        if unknown:
            raise CorruptRecord(f"an entry holds command {unknown[0]}, which this version of walrq does not know")
        commands = [Tagged(_DECODERS[row[0]](row), row[1], row[2], row[3]) for row in rows]
    except (cbor2.CBORDecodeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise CorruptRecord(f"an entry's commands cannot be read: {error}") from error
    return Stamp(lease_ms, wall_ms), commands


def stamp_of(body: bytes) -> Stamp:
    """The stamp of a COMMANDS entry, without reading the rest. CorruptRecord as for `decode_entry`."""
    # array(4), format, lease_ms, wall_ms: three unsigned integers, of one to nine bytes each.
    numbers = []
    at = 1
    for _ in range(3):
        first = body[at] if at < len(body) else 0xFF
        at += 1
        if first < _UINT_FOLLOWS:
            numbers.append(first)
        else:
            width = 1 << (first - _UINT_FOLLOWS)
            if width > 8 or at + width > len(body):
                raise CorruptRecord("an entry's stamp cannot be read")
            numbers.append(int.from_bytes(body[at : at + width], "big"))
            at += width
    if body[0] != _ARRAY_OF_FOUR or numbers[0] != FORMAT:
        raise CorruptRecord("an entry's stamp cannot be read: it is of another format")
    return Stamp(numbers[1], numbers[2])


def bodies_of(body: bytes) -> dict[int, Columns]:
    """The columns of every push in an entry, by ordinal (for reading bodies back by address)."""
    rows = cbor2.loads(body)[3]
    return {ordinal: _open_columns(row[5]) for ordinal, row in enumerate(rows) if row[0] == Op.PUSH.value}
