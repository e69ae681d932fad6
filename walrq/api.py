"""Every request and every reply: the one language that all front doors speak.

Requests are checked where bytes become these objects (`protocol/`), once; behind that edge they are trusted. Times
are integer milliseconds, sizes bytes, ids 128-bit integers (`ids.py`), receipts the 20 bytes of `ids.make_receipt`.
Offsets of messages count from 0 within the run that a receipt names.

Pure values: no behaviour beyond counting.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, dataclass_transform

import attrs

T = TypeVar("T")

if TYPE_CHECKING:

    @dataclass_transform(frozen_default=True, field_specifiers=(attrs.field,))
    def value(cls: type[T]) -> type[T]:
        """Class decorator: a frozen value."""
        ...

else:
    # Frozen for the type checker, plain at run time: the run-time guard makes construction three times slower, and
    # these objects are made several times per request.
    value = attrs.define(unsafe_hash=True)

Range: TypeAlias = tuple[int, int]
"""First and last offset, both included."""


@value
class Columns:
    """The body of a batch: n messages, column by column.

    Attributes:
        payloads: all payloads end to end.
        ends: n unsigned 32-bit little-endian end offsets into `payloads` (RFC 8746 typed array, tag 70).
        headers: None, or n CBOR maps end to end (an empty stretch = no headers).
        header_ends: None, or the n end offsets into `headers`.
        groups: None, or one group key per message (None = ungrouped).
        dedup: None, or one deduplication id per message (None = none).
    """

    # Logs are no place for other people's data, so none of it is in a repr.
    payloads: bytes = attrs.field(repr=False)
    ends: bytes = attrs.field(repr=False)
    headers: bytes | None = attrs.field(default=None, repr=False)
    header_ends: bytes | None = attrs.field(default=None, repr=False)
    groups: tuple[str | None, ...] | None = attrs.field(default=None, repr=False)
    dedup: tuple[str | None, ...] | None = attrs.field(default=None, repr=False)

    @property
    def count(self) -> int:
        """How many messages."""
        return len(self.ends) >> 2

    @property
    def size(self) -> int:
        """Payload and header bytes."""
        return len(self.payloads) + (len(self.headers) if self.headers is not None else 0)

    def has(self, first: int, count: int) -> bool:
        """Whether `count` messages from position `first` on are here; a log that was compacted lacks dead ones."""
        return True


# --- requests -----------------------------------------------------------------------------------------------
@value
class Push:
    """Append a batch. `delay_ms` and `deliver_at_ms` exclude each other; None = the queue's setting.

    `counted`: the answer tells a number too, see `Pushed`.
    """

    queue: str
    columns: Columns
    priority: int = 0
    delay_ms: int | None = None
    deliver_at_ms: int | None = None
    ttl_ms: int | None = None
    max_attempts: int | None = None
    counted: bool = False


@value
class Poll:
    """Lease up to `max_messages` from the first of `queues` that has some; wait up to `wait_ms` for them.

    `visibility_ms` None = the queue's setting. `worker` names the taker in death reports.

    `numbered`: each message gets a lease of its own, with a number that counts the leases of the whole cluster from 1
    and never starts again; `ids.task_of` finds it in the receipt. `into`: nothing is leased; the messages move, in the
    same step, behind those of that queue, and the receipts name nothing. The two exclude each other.
    """

    queues: tuple[str, ...]
    max_messages: int = 10
    visibility_ms: int | None = None
    wait_ms: int = 0
    worker: str | None = None
    numbered: bool = False
    into: str | None = None


class SettleKind(enum.IntEnum):
    """How messages are given back."""

    ACK = 0
    RELEASE = 1
    FAIL = 2
    REJECT = 3


@value
class Item:
    """Messages of one lease: all still outstanding when `ranges` is None."""

    receipt: bytes
    ranges: tuple[Range, ...] | None = None


@value
class Settle:
    """Ack, release, fail or reject messages of one queue.

    `delay_ms`: for FAIL the back-off (None = the queue's setting). Error type and text are kept for FAIL and REJECT.
    """

    queue: str
    kind: SettleKind
    items: tuple[Item, ...]
    delay_ms: int | None = None
    error_type: str | None = None
    error_text: str | None = None


@value
class Touch:
    """Let leases end `visibility_ms` from now, never earlier than they would (beyond 12 h without limit)."""

    queue: str
    items: tuple[Item, ...]
    visibility_ms: int


@value
class Forget:
    """The caller of this session's request `sequence` went away: drop its waiter or release its lease."""

    sequence: int


@value
class Cancel:
    """Remove pending messages by id, with an exact answer for each."""

    queue: str
    ids: tuple[int, ...]


@value
class Reschedule:
    """Let a pending message become due at `deliver_at_ms` (wall clock)."""

    queue: str
    id: int
    deliver_at_ms: int


class State(enum.IntEnum):
    """Where a message stands."""

    READY = 0
    DELAYED = 1
    LEASED = 2
    PARKED = 3
    DEAD = 4


# `after` of a peek at delayed messages: this and a sequence, for those from there on in order of sequence. Without
# it what is due soon comes first, and what is due later as it lies.
SINCE: Final = 1 << 62


@value
class Peek:
    """Look at messages of one state without any side effect. `after` is the `next` of the page before."""

    queue: str
    state: State = State.READY
    limit: int = 10
    after: int = 0
    bodies: bool = True


@value
class SetQueue:
    """Create the queue if absent (when `create`) and change the named settings (see `queues/settings.py`)."""

    queue: str
    settings: Mapping[str, Any]
    create: bool = True


@value
class ShowQueue:
    """Settings and counts of one queue."""

    queue: str


@value
class ListQueues:
    """Queues by name, `prefix` and `after` (exclusive) bound the page."""

    prefix: str = ""
    after: str = ""
    limit: int = 100


@value
class PurgeQueue:
    """Remove all messages, receipts and dedup ids of a queue; settings stay."""

    queue: str


@value
class DeleteQueue:
    """Remove a queue and all that is in it; parked polls end with `QueueDeleted`."""

    queue: str


@value
class Filter:
    """Which dead messages: every given part must match."""

    reason: str | None = None
    error_type: str | None = None
    error_contains: str | None = None
    ids: tuple[int, ...] | None = None


@value
class ListDead:
    """Dead messages of `queue` (in its dead-letter queue, and parked), in order of death."""

    queue: str
    limit: int = 10
    after: int = 0
    where: Filter | None = None
    bodies: bool = True


@value
class Redrive:
    """Move dead messages of `queue` back behind its waiting work (or into `target`), at most `limit` in one entry.

    Reply: `Moved`; `more` tells that another call has work left.
    """

    queue: str
    limit: int = 1000
    target: str | None = None
    where: Filter | None = None
    dry_run: bool = False


@value
class PurgeDead:
    """Remove dead messages of `queue` that match."""

    queue: str
    where: Filter | None = None


@value
class Move:
    """Move up to `limit` ready messages from one queue behind another's, atomically."""

    source: str
    target: str
    limit: int = 1


@value
class OpenSession:
    """Register a session through the log. Reply: `SessionOpened`."""


@value
class CloseSession:
    """End the session of this connection."""


@value
class BackupBegin:
    """Begin a backup of the node as it is now. Reply: `BackupBegun`; one at a time.

    It belongs to the connection that asked, and ends with it.
    """


@value
class BackupRead:
    """Bytes of part number `part` from `offset` on, at most `limit`. Reply: `BackupChunk`, short only at the end."""

    backup: int
    part: int
    offset: int
    limit: int


@value
class BackupEnd:
    """The backup is not needed any more: what it held is given back."""

    backup: int


@value
class Ping:
    """Answered at once, also while other requests wait."""


@value
class Stats:
    """Counters of the node and totals over all queues."""


@value
class ClusterStatus:
    """Who is in the cluster, as the asked node knows it. Any node answers. Reply: `ClusterState`."""


@value
class AddNode:
    """Make a node a member. Reply: `ClusterState`, once it has caught up and votes (a learner: once it is a member).

    A member that is there already is no error: a learner becomes a voter unless `learner`, an address is taken over.

    Attributes:
        node: its name.
        address: where its peers reach it ("host:port"); None = it has told the cluster itself (it waits to join).
        learner: it shall get the log and never vote.
    """

    node: str
    address: str | None = None
    learner: bool = False


@value
class RemoveNode:
    """End a node's membership. Reply: `ClusterState`, once the cluster goes on without it."""

    node: str


@value
class TransferLeadership:
    """Let `target` lead, None = the voter that is furthest. Reply: `ClusterState`, once another node leads."""

    target: str | None = None


class Right(enum.IntEnum):
    """What a token may do; each right includes those before it."""

    READ = 1
    WRITE = 2
    ADMIN = 3


@value
class Grant:
    """A right on the queues whose names match `queues`: a name, with at most one `*` for any stretch of characters."""

    right: Right
    queues: str = "*"


@value
class SetToken:
    """Let whoever knows the secret with this SHA-256 digest do what is granted; one of that name is replaced.

    Attributes:
        name: for people, logs, and clients that say a user name.
        digest: of the secret, 32 bytes. The secret itself never travels before it is used.
        grants: what it may do.
        requests_per_s: on all its connections with a node together, None = as many as come.
        bytes_per_s: of requests, likewise.
        in_flight: requests that are not answered yet, likewise.
    """

    name: str
    digest: bytes = attrs.field(repr=False)
    grants: tuple[Grant, ...]
    requests_per_s: int | None = None
    bytes_per_s: int | None = None
    in_flight: int | None = None


@value
class RevokeToken:
    """Forget a token. Its connections end."""

    name: str


@value
class ListTokens:
    """All tokens, without their digests. Reply: `TokenList`."""


Request: TypeAlias = (
    Push
    | Poll
    | Settle
    | Touch
    | Forget
    | Cancel
    | Reschedule
    | Peek
    | SetQueue
    | ShowQueue
    | ListQueues
    | PurgeQueue
    | DeleteQueue
    | ListDead
    | Redrive
    | PurgeDead
    | Move
    | OpenSession
    | CloseSession
    | Ping
    | Stats
    | BackupBegin
    | BackupRead
    | BackupEnd
    | ClusterStatus
    | AddNode
    | RemoveNode
    | TransferLeadership
    | SetToken
    | RevokeToken
    | ListTokens
)


# --- replies ------------------------------------------------------------------------------------------------
@value
class Pushed:
    """The batch is durable. Message k has id `first_id + k`, unless `ids` lists them (dedup hits among them).

    `duplicates` are the positions that were dedup hits: their ids are the old ones. `number` belongs to a counted push:
    how many messages are ready right behind it; or, when it had a `delay_ms`, how many messages the cluster has taken
    in by such pushes, this one included.
    """

    first_id: int
    count: int
    ids: tuple[int, ...] | None = None
    duplicates: tuple[int, ...] = ()
    number: int = 0


@value
class Delivered:
    """One leased run.

    Attributes:
        queue: its queue.
        receipt: names the lease; offsets count from 0 to count - 1.
        first_id: id of offset 0; the k-th has `first_id + k`.
        delivery: how many times these messages have been leased, this one included.
        attempts: counted attempts so far (fail, expiry), this one excluded.
        fence: (log index, ordinal) of the lease, for other systems to compare.
        priority: of the batch.
        pushed_ms: wall stamp of the push.
        group: the run's group key.
        base: what to subtract from the end offsets; payloads[0] is byte `base` of the batch.
        ends: end offsets, slice of the batch's column.
        payloads: slice of the batch's column.
        header_base, header_ends, headers: the same for headers, None without.
        lost: True when disk damage destroyed the body; `payloads` and `ends` are then empty.
    """

    queue: str
    receipt: bytes = attrs.field(repr=False)
    count: int
    first_id: int
    delivery: int
    attempts: int
    fence: tuple[int, int]
    priority: int
    pushed_ms: int
    group: str | None
    base: int
    ends: bytes = attrs.field(repr=False)
    payloads: bytes = attrs.field(repr=False)
    header_base: int = 0
    header_ends: bytes | None = attrs.field(default=None, repr=False)
    headers: bytes | None = attrs.field(default=None, repr=False)
    lost: bool = False


@value
class Polled:
    """What a poll leased. A client counts the lease from the moment it sent the poll plus `parked_ms`.

    `ended` are receipts that a retried poll no longer holds.
    """

    parked_ms: int
    visibility_ms: int
    runs: tuple[Delivered, ...]
    ended: tuple[bytes, ...] = ()


@value
class Settled:
    """Per item of the request: 0, or the error code."""

    codes: tuple[int, ...]


@value
class Touched:
    """Per item: 0 or the error code; and ms until the lease now ends (0 on error)."""

    codes: tuple[int, ...]
    remaining_ms: tuple[int, ...]


class Outcome(enum.IntEnum):
    """Exact answer of cancel and reschedule."""

    DONE = 0
    LEASED = 1
    GONE = 2
    UNKNOWN = 3


@value
class Outcomes:
    """Per id of the request."""

    outcomes: tuple[Outcome, ...]


@value
class Attempt:
    """One counted attempt in a death report (wall clock)."""

    at_ms: int
    reason: str
    worker: str | None = None
    error_type: str | None = None
    error_text: str | None = None


@value
class Peeked:
    """One message seen by peek or a dead-letter listing; `payload` None when bodies were not asked for or lost."""

    id: int
    state: State
    sequence: int
    priority: int
    delivery: int
    attempts: int
    pushed_ms: int
    due_ms: int
    group: str | None
    payload: bytes | None = attrs.field(repr=False)
    headers: bytes | None = attrs.field(default=None, repr=False)
    deadline_in_ms: int = 0
    reason: str | None = None
    origin: str | None = None
    died_ms: int = 0
    history: tuple[Attempt, ...] = ()


@value
class Page:
    """A page of messages; `next` is the cursor of the following page, 0 when this was the last."""

    messages: tuple[Peeked, ...]
    next: int = 0


@value
class QueueInfo:
    """Counts (messages), bytes and settings of one queue.

    Attributes:
        oldest_ms: wall stamp of the push of the message with the lowest sequence, 0 when there is none.
        pushed, delivered, acked: how many were taken in by pushes, leased, and acknowledged. They only grow; they
            start anew with the process and with the queue, so rates are what is read from them.
    """

    name: str
    uid: int
    ready: int
    delayed: int
    leased: int
    parked: int
    dead: int
    bytes: int
    oldest_ms: int
    pushed: int
    delivered: int
    acked: int
    settings: Mapping[str, Any]


@value
class QueueList:
    """A page of queues by name; `next` is the `after` of the following page, "" at the end."""

    queues: tuple[QueueInfo, ...]
    next: str = ""


@value
class Done:
    """It is done; `count` messages were concerned."""

    count: int = 0


@value
class Moved:
    """How many messages moved (or would); `more` when the limit ended it."""

    count: int
    more: bool = False


@value
class SessionOpened:
    """The session's number, for the retry of requests on any connection."""

    session: int


@value
class Pong:
    """Answer of `Ping`."""


@value
class StatsReply:
    """Names and numbers, plain values only (see docs/operations.md)."""

    values: Mapping[str, Any]


@value
class BackupBegun:
    """A backup can be read: its number, what its manifest says, and its parts, each (name, bytes)."""

    backup: int
    facts: Mapping[str, Any]
    parts: tuple[tuple[str, int], ...]


@value
class BackupChunk:
    """A piece of one part."""

    data: bytes


@value
class NodeAt:
    """Where clients reach a node: "host:port" of its native door."""

    node: str
    endpoint: str


@value
class MemberState:
    """One member of the cluster, as the answering node knows it.

    Attributes:
        node: its name.
        role: "leader", "voter" or "learner"; a newer node may know others.
        address: where its peers reach it, "" when it told none.
        endpoint: where clients reach it, None while nobody knows.
        status: how it is, in a word or two for people ("normal", "recovering", "unreachable", "catching up").
        match_index: how much of the log it is known to have; None where only the leader knows.
        heard_ms: milliseconds since it was last heard; None for the answering node, and where nobody listens.
    """

    node: str
    role: str
    address: str
    endpoint: str | None = None
    status: str = ""
    match_index: int | None = None
    heard_ms: int | None = None


@value
class ClusterState:
    """The cluster as one node knows it.

    Attributes:
        node: who answers.
        cluster: the cluster's id.
        leader: name of the node that leads, None while none is known.
        term: the answering node's term.
        commit_index: up to where the answering node knows the log to be decided.
        applied_index: up to where it has applied it.
        members: every member, by name.
    """

    node: str
    cluster: str
    leader: str | None
    term: int
    commit_index: int
    applied_index: int
    members: tuple[MemberState, ...]


@value
class TokenInfo:
    """A token without its secret; see `SetToken`. `set_ms`: wall stamp of when it was set."""

    name: str
    grants: tuple[Grant, ...]
    requests_per_s: int | None
    bytes_per_s: int | None
    in_flight: int | None
    set_ms: int


@value
class TokenList:
    """Tokens by name."""

    tokens: tuple[TokenInfo, ...]


@value
class Failed:
    """The request was refused or its outcome is unknown: a row of `errors.ERRORS`."""

    code: int
    text: str
    details: Mapping[str, Any] = attrs.field(factory=dict, hash=False)


Reply: TypeAlias = (
    Pushed
    | Polled
    | Settled
    | Touched
    | Outcomes
    | Page
    | QueueInfo
    | QueueList
    | Done
    | Moved
    | SessionOpened
    | Pong
    | StatsReply
    | BackupBegun
    | BackupChunk
    | ClusterState
    | TokenList
    | Failed
)
