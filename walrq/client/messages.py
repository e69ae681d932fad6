"""What a poll returns and what a push takes: batches as they travel, messages as people think of them.

A `Batch` is one leased run: one receipt, payloads end to end, no object per message until somebody asks. A
`Message` is a position in a batch. Ids, receipt handles and headers are formatted when they are read.

Both remember what was given back through them (`settled`), so that a `with` block settles what its body left open:
`leaving` says how. The classes with the waiting are beside each client.

Pure apart from reading the client's clock for `remaining`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar, overload

import attrs

from walrq.api import Attempt, Delivered, Peeked, Pushed, SettleKind
from walrq.client.clock import SYSTEM, Clock
from walrq.errors import BodyLost
from walrq.ids import format_id, make_handle
from walrq.protocol import columns

M = TypeVar("M", bound="Message")


def leaving(error: BaseException | None) -> SettleKind:
    """What becomes of messages when the `with` block that worked on them is left.

    Done: acknowledged. An `Exception`: failed, which counts. Anything else (Ctrl-C, `sys.exit`, a cancelled task) is
    not the messages' fault: they are released, free of charge.
    """
    if error is None:
        return SettleKind.ACK
    return SettleKind.FAIL if isinstance(error, Exception) else SettleKind.RELEASE


@attrs.frozen
class NewMessage:
    """One message for `push_batch` that is more than a payload.

    Attributes:
        payload: bytes-like, or text that is sent as UTF-8.
        headers: names and plain values (text, numbers, bytes, booleans, None, lists and maps of these).
        group: messages of one group are handed out in order, by default one at a time.
        dedup_id: a second push with this id within the queue's window returns the first one's message id.
    """

    payload: bytes | bytearray | memoryview | str = attrs.field(repr=False)
    headers: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    group: str | None = None
    dedup_id: str | None = None


class MessageIds(Sequence[str]):
    """Ids of the messages of one `push_batch`, formatted one by one when they are read.

    `duplicates` are the positions that were pushed before under the same dedup id: their ids are the earlier
    ones.
    """

    __slots__ = ("_count", "_parts")

    def __init__(self, parts: Sequence[Pushed]) -> None:
        self._parts = parts
        self._count = sum(part.count for part in parts)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [format_id(self.number(i)) for i in range(*index.indices(self._count))]
        return format_id(self.number(index))

    def __iter__(self) -> Iterator[str]:
        return map(format_id, self.numbers())

    def number(self, index: int) -> int:
        """The 128-bit id at `index` (negative counts from the end)."""
        position = index + self._count if index < 0 else index
        if position >= 0:
            for part in self._parts:
                if position < part.count:
                    return part.first_id + position if part.ids is None else part.ids[position]
                position -= part.count
        raise IndexError(f"no id {index} among {self._count}")

    def numbers(self) -> Iterator[int]:
        """Every id as a 128-bit integer, in order of the messages."""
        for part in self._parts:
            yield from range(part.first_id, part.first_id + part.count) if part.ids is None else part.ids

    @property
    def duplicates(self) -> tuple[int, ...]:
        """Positions that were dedup hits."""
        if len(self._parts) == 1:
            return self._parts[0].duplicates
        found: list[int] = []
        start = 0
        for part in self._parts:
            found += [start + position for position in part.duplicates]
            start += part.count
        return tuple(found)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, MessageIds):
            return len(self) == len(other) and all(a == b for a, b in zip(self.numbers(), other.numbers(), strict=True))
        if isinstance(other, list | tuple):
            return list(self) == list(other)
        return NotImplemented

    __hash__: ClassVar[None]  # type: ignore[assignment]  # equal to lists, which have none; __eq__ takes it away

    def __repr__(self) -> str:
        if not self._count:
            return "<MessageIds: none>"
        return f"<MessageIds: {self._count} from {self[0]}>"


@attrs.define(eq=False, repr=False)
class Batch:
    """One leased run of messages of one batch: acknowledged by one receipt.

    Attributes:
        run: as the server sent it; offsets count from 0 to `count - 1`.
        deadline: moment of `clock` at which the lease ends, counted from the moment the poll was sent plus
            the time it was parked: never later than the server's own count.
        clock: what `remaining` is read from: the process's monotonic clock unless a test moves it.
        window: first and last offset of a part of the run; None = all of it. Callers that polled at the same time
            may share a run: each has a batch of its own part.
    """

    run: Delivered
    deadline: float
    clock: Clock = SYSTEM
    window: tuple[int, int] | None = None
    _ends: tuple[int, ...] | None = None
    # Offsets given back one by one, and whether all of them were at once.
    _settled: set[int] | None = attrs.field(default=None, init=False)
    _over: bool = attrs.field(default=False, init=False)

    @property
    def queue(self) -> str:
        """The queue the messages were leased from."""
        return self.run.queue

    @property
    def count(self) -> int:
        """How many messages."""
        window = self.window
        return self.run.count if window is None else window[1] - window[0] + 1

    def __len__(self) -> int:
        return self.count

    def narrow(self, whole: Batch, first: int, last: int) -> None:
        """Stand for the messages from offset `first` to `last` only, of the same run as `whole`."""
        self.window = (first, last)
        self._ends = whole._ends

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends; negative when it is over."""
        return self.deadline - self.clock.monotonic()

    def extend(self, deadline: float) -> None:
        """The lease now ends at `deadline`, as a touch found."""
        self.deadline = deadline

    @property
    def settled(self) -> bool:
        """Whether every message was given back through this object: acknowledged, failed, rejected or released."""
        return self._over or (self._settled is not None and len(self._settled) == self.count)

    def mark_settled(self) -> None:
        """The whole run was given back, or its lease was found to be over."""
        self._over = True

    def settled_at(self, offset: int) -> bool:
        """Whether the message at `offset` was given back through this object."""
        return self._over or (self._settled is not None and offset in self._settled)

    def mark_settled_at(self, offset: int) -> None:
        """The message at `offset` was given back, or its lease was found to be over."""
        if self._settled is None:
            self._settled = set()
        self._settled.add(offset)

    def ends(self) -> tuple[int, ...]:
        """End offset of each payload of the run within `run.payloads`.

        Raises:
            BodyLost: disk damage destroyed the payloads.
        """
        found = self._ends
        if found is None:
            run = self.run
            if run.lost:
                raise BodyLost(f"{run.queue}: disk damage destroyed the payloads of {self!r}")
            found = struct.unpack(f"<{run.count}I", run.ends)
            if run.base:
                base = run.base
                found = tuple([end - base for end in found])
            self._ends = found
        return found

    def payloads(self) -> Iterator[bytes]:
        """Each payload, in order; raises `BodyLost` as `ends` does."""
        data = self.run.payloads
        ends = self.ends()
        start = 0
        if self.window is not None:
            first, last = self.window
            start = ends[first - 1] if first else 0
            ends = ends[first : last + 1]
        for end in ends:
            yield data[start:end]
            start = end

    def payload(self, offset: int) -> bytes:
        """The payload at `offset`; raises `BodyLost` as `ends` does."""
        ends = self.ends()
        return self.run.payloads[ends[offset - 1] if offset else 0 : ends[offset]]

    def headers(self, offset: int) -> dict[str, Any]:
        """The headers at `offset`, empty when it has none."""
        run = self.run
        if run.headers is None or run.header_ends is None:
            return {}
        (end,) = struct.unpack_from("<I", run.header_ends, offset * 4)
        (start,) = struct.unpack_from("<I", run.header_ends, offset * 4 - 4) if offset else (run.header_base,)
        return dict(columns.decode_headers(run.headers[start - run.header_base : end - run.header_base]) or {})

    def ids(self) -> MessageIds:
        """The messages' ids."""
        return MessageIds((Pushed(self.run.first_id + self._first, self.count),))

    @property
    def _first(self) -> int:
        return 0 if self.window is None else self.window[0]

    def messages(self) -> Sequence[Message]:
        """A `Message` for each."""
        return self.messages_as(Message)

    def messages_as(self, kind: type[M]) -> list[M]:
        """A message for each, of the class of one client."""
        first = self._first
        if self.run.lost:
            return [kind(self, offset, None) for offset in range(first, first + self.count)]
        return [kind(self, offset, payload) for offset, payload in enumerate(self.payloads(), first)]

    def __repr__(self) -> str:
        run = self.run
        first = format_id(run.first_id + self._first)
        return f"<Batch of {self.count} from {run.queue}, first {first}, delivery {run.delivery}>"


@attrs.define(eq=False, repr=False)
class Message:
    """One leased message. Give it back with `ack`, `nack` or by letting the lease run out.

    Attributes:
        batch: the leased run it came in.
        offset: its position there.
    """

    batch: Batch
    offset: int
    _payload: bytes | None
    _deadline: float | None = None

    @property
    def payload(self) -> bytes:
        """The bytes that were pushed.

        Raises:
            BodyLost: disk damage destroyed them.
        """
        if self._payload is None:
            raise BodyLost(f"the payload of message {self.message_id} in {self.queue} was destroyed by disk damage")
        return self._payload

    def json(self) -> Any:
        """The payload decoded as JSON."""
        return json.loads(self.payload)

    @property
    def message_id(self) -> str:
        """Its id: a ULID, the same over all deliveries."""
        return format_id(self.batch.run.first_id + self.offset)

    @property
    def receipt_handle(self) -> str:
        """Names this delivery, for `ack(queue, message_id, receipt_handle)` from anywhere."""
        return make_handle(self.batch.run.receipt, self.offset)

    @property
    def queue(self) -> str:
        """The queue it was leased from."""
        return self.batch.run.queue

    @property
    def delivery(self) -> int:
        """How many times it has been handed out, this time included."""
        return self.batch.run.delivery

    @property
    def attempts(self) -> int:
        """Counted failures so far (failed or expired), this delivery excluded."""
        return self.batch.run.attempts

    @property
    def headers(self) -> dict[str, Any]:
        """Its headers, empty when it has none."""
        return self.batch.headers(self.offset)

    @property
    def fence(self) -> tuple[int, int]:
        """Grows with every lease of this message: other systems can refuse an older holder by it."""
        return self.batch.run.fence

    @property
    def priority(self) -> int:
        """0 to 255, higher first."""
        return self.batch.run.priority

    @property
    def group(self) -> str | None:
        """Its group key."""
        return self.batch.run.group

    @property
    def pushed_at(self) -> datetime:
        """When it was pushed, by the server's clock (UTC)."""
        return _moment(self.batch.run.pushed_ms)

    @property
    def deadline(self) -> float:
        """Moment of the clock at which the lease ends (see `Batch.deadline`); later after a touch."""
        return self.batch.deadline if self._deadline is None else self._deadline

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends; negative when it is over."""
        return self.deadline - self.batch.clock.monotonic()

    def extend(self, deadline: float) -> None:
        """The lease now ends at `deadline`, as a touch found."""
        self._deadline = deadline

    @property
    def settled(self) -> bool:
        """Whether it was given back through this object or its batch: acknowledged, failed, rejected or released."""
        return self.batch.settled_at(self.offset)

    def mark_settled(self) -> None:
        """It was given back, or its lease was found to be over."""
        self.batch.mark_settled_at(self.offset)

    def __repr__(self) -> str:
        run = self.batch.run
        size = "lost" if self._payload is None else f"{len(self._payload)} bytes"
        return f"<Message {self.message_id} from {run.queue}, {size}, delivery {run.delivery}>"


@attrs.frozen(repr=False)
class Seen:
    """One message as `peek` and `list_dead` show it: nothing about it changes by being looked at.

    Attributes:
        message_id: its id.
        state: ready, delayed, leased, parked or dead.
        payload: its bytes; None when they were not asked for, or lost to disk damage.
        headers: its headers, empty when it has none.
        priority: 0 to 255, higher first.
        delivery: how many times it has been handed out.
        attempts: counted failures.
        group: its group key.
        pushed_at: when it was pushed (UTC).
        due_at: when it becomes ready (UTC), None when it is not delayed.
        lease_left: seconds left of its lease, 0 when it is not leased.
        reason: why it died: failed, expired or rejected.
        origin: the queue it died in.
        died_at: when (UTC).
        history: its latest counted attempts, oldest first.
    """

    message_id: str
    state: str
    payload: bytes | None
    headers: dict[str, Any]
    priority: int
    delivery: int
    attempts: int
    group: str | None
    pushed_at: datetime
    due_at: datetime | None
    lease_left: float
    reason: str | None
    origin: str | None
    died_at: datetime | None
    history: tuple[Attempt, ...]

    def __repr__(self) -> str:
        size = "no payload" if self.payload is None else f"{len(self.payload)} bytes"
        reason = f", {self.reason}" if self.reason else ""
        return f"<Seen {self.message_id}, {self.state}{reason}, {size}, {self.attempts} attempts>"


def seen(peeked: Peeked) -> Seen:
    """What the server shows of a message, in Python's types."""
    return Seen(
        message_id=format_id(peeked.id),
        state=peeked.state.name.lower(),
        payload=peeked.payload,
        headers=dict(columns.decode_headers(peeked.headers) or {}) if peeked.headers else {},
        priority=peeked.priority,
        delivery=peeked.delivery,
        attempts=peeked.attempts,
        group=peeked.group,
        pushed_at=_moment(peeked.pushed_ms),
        due_at=_moment(peeked.due_ms) if peeked.due_ms else None,
        lease_left=peeked.deadline_in_ms / 1000,
        reason=peeked.reason,
        origin=peeked.origin,
        died_at=_moment(peeked.died_ms) if peeked.died_ms else None,
        history=peeked.history,
    )


def _moment(wall_ms: int) -> datetime:
    return datetime.fromtimestamp(wall_ms / 1000, UTC)
