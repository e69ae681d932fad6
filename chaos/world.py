"""What the clients of a run know, message by message, rebuilt from its history in one pass.

The world never judges. It keeps, per live message, who was handed it and what they said about it, and calls
the invariants (`invariants.py`) at the moments that matter. Everything it keeps is what a client can know:

- A delivery's lease surely runs in [completed, min(settle invoked, poll invoked + parked + visibility)] (a
  touch that was answered moves the end). Nothing is assumed about the time before the reply arrived.
- What ended with an unknown outcome is *maybe*: a push that may exist, a settle that may have taken effect,
  a poll that may have leased messages nobody saw.
- `fence` (log index, ordinal) orders leases exactly, whatever order their replies arrived in.

Memory: one object per message that is not settled for good; a settled one is a bit. A message is settled for
good when its ack was answered and no poll is open that could have been stamped before that ack (`watermark`).
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import attrs

from walrq.errors import Code
from walrq.limits import MAX_DELIVERIES_DEFAULT, VISIBILITY_MS_DEFAULT

from .history import COMPLETIONS, INFO, INVOKE, NEMESIS, OK, Event, HistoryError, unpack

MS: Final = 1_000_000
# Stamps and parked_ms are whole milliseconds, rounded down: two roundings between a poll and the end of its
# lease.
TOLERANCE_NS: Final = 2 * MS

# What a consumer said about one message of a lease. *_MAYBE: sent, and not (yet) known to have taken effect.
OPEN, REFUSED = 0, 1
ACK_MAYBE, ACK_OK = 2, 3
RELEASE_MAYBE, RELEASE_OK = 4, 5
FAIL_MAYBE, FAIL_OK = 6, 7
REJECT_MAYBE, REJECT_OK = 8, 9
_MAYBE_OF: Final = {"ack": ACK_MAYBE, "release": RELEASE_MAYBE, "fail": FAIL_MAYBE, "reject": REJECT_MAYBE}
# Attempts that a lease which is over has counted, given what was said about it: (at least, at most). An open
# one that is over has expired (1); an ack that was never confirmed and did not end the message has expired
# too; a fail counts whether it arrived or the lease expired instead.
COUNTED: Final = (
    (1, 1),  # OPEN
    (1, 1),  # REFUSED
    (1, 1),  # ACK_MAYBE
    (0, 1),  # ACK_OK
    (0, 1),  # RELEASE_MAYBE
    (0, 0),  # RELEASE_OK
    (1, 1),  # FAIL_MAYBE
    (1, 1),  # FAIL_OK
    (0, 1),  # REJECT_MAYBE
    (0, 1),  # REJECT_OK
)
NEVER: Final = 1 << 62
Fence = tuple[int, int]
NO_FENCE: Final[Fence] = (0, 0)
# Faults that may part a client from the node that it speaks to; restart, resume and heal only end them.
OUTAGES: Final = frozenset({"kill", "pause", "cut"})


@attrs.define(slots=True, eq=False)
class Push:
    """One push of a batch."""

    process: str
    queue: str
    number: int  # rises with the invocations of the run
    invoked: int
    invoked_wall: int
    priority: int
    delay_ms: int | None
    deliver_at_ms: int | None
    mortal: bool  # has a ttl: may vanish by itself
    grouped: bool
    max_attempts: int | None
    count: int
    outcome: str = INVOKE  # INVOKE while open, then OK or INFO

    @property
    def delayed(self) -> bool:
        """Whether it asked to be delivered later."""
        return bool(self.delay_ms) or self.deliver_at_ms is not None


@attrs.define(slots=True, eq=False)
class Hold:
    """One leased run, as its consumer saw it. Lists are per offset."""

    lease: str
    queue: str
    process: str
    consumer: str
    invoked: int
    completed: int
    fence: Fence
    delivery: int
    attempts: int
    calm: int  # World.disturbances when its poll was invoked
    values: list[int]
    fates: bytearray
    ends: list[int]  # the lease surely runs until here
    latest: list[int]  # and surely is over here, if nothing disturbed the node
    given: list[int | None]  # when its consumer first said something about it
    fail_delay_ms: int | None = None
    live: int = 0

    @property
    def number(self) -> tuple[str, int] | None:
        """(queue incarnation, lease number) inside a receipt of 20 bytes."""
        return (self.lease[:8], int(self.lease[8:24], 16)) if len(self.lease) == 40 else None


@attrs.define(slots=True, eq=False)
class Message:
    """One message that is not settled for good."""

    value: int
    push: Push
    position: int
    id: int | None = None
    seen: list[tuple[Hold, int]] = attrs.field(factory=list)
    acked: Hold | None = None
    acked_time: int = 0


@attrs.define(slots=True)
class _Pending:
    """An invocation without completion."""

    event: Event
    fence: Fence
    # settle and touch: per item its lease's hold and offsets, with what to restore when it is refused
    items: list[tuple[Hold | None, list[int], list[tuple[int, int | None]]]]
    push: Push | None = None
    calm: int = 0
    outages: int = 0  # World.outages at its invocation


class Watcher(Protocol):
    """What the world tells its invariants. Called in the order of the history."""

    def delivered(self, world: World, message: Message, hold: Hold, offset: int) -> None:
        """A reply brought a live message; `message.seen` holds the deliveries before."""

    def run_delivered(self, world: World, hold: Hold, runs: Sequence[tuple[Message, int]]) -> None:
        """All messages of a reply's run have been told."""

    def stray(self, world: World, value: int, hold: Hold, why: str) -> None:
        """A reply brought something that cannot be alive."""

    def settled(self, world: World, message: Message, hold: Hold, offset: int, kind: str, since: Event) -> None:
        """A settle of this delivery was answered OK; `message.acked` is what was known before."""

    def settled_stray(self, world: World, lease: str, event: Event) -> None:
        """A settle was answered OK for a lease that holds nothing any more."""

    def end(self, world: World) -> None:
        """The history is over."""


class Bits:
    """A set of non-negative integers, one bit each, in pages of 64 Ki."""

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self.count = 0

    def add(self, value: int) -> None:
        """Add one."""
        page = self._pages.get(value >> 16)
        if page is None:
            page = self._pages[value >> 16] = bytearray(8192)
        byte, bit = (value & 0xFFFF) >> 3, 1 << (value & 7)
        if not page[byte] & bit:
            page[byte] |= bit
            self.count += 1

    def __contains__(self, value: int) -> bool:
        page = self._pages.get(value >> 16)
        return page is not None and bool(page[(value & 0xFFFF) >> 3] >> (value & 7) & 1)


class World:
    """See the module. Feed `event` every line in order, then call `end` once."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = watchers
        self.live: dict[int, Message] = {}
        self.settled = Bits()  # acked for good
        self.refused = Bits()  # values of definitely refused pushes
        self.holds: dict[str, Hold] = {}
        self.max_fence: Fence = NO_FENCE
        self.watermark: Fence = NO_FENCE
        self.disturbances = 0
        self.nodes = 1
        self.outages = 0  # disturbances after which clients may find themselves without their node
        self.drained = False
        self.lost_polls: collections.Counter[str] = collections.Counter()
        # Polls that were open during an outage: a session's client may have asked again elsewhere and had what the
        # first asking leased given back, once for each outage.
        self.repeated_polls: collections.Counter[str] = collections.Counter()
        self.counts: collections.Counter[str] = collections.Counter()
        self.shown: dict[str, dict[str, int]] = {}
        self.now = 0
        self.line = 0
        self._pushes = 0
        self._pending: dict[str, _Pending] = {}
        self._retired: set[str] = set()
        self._settling: collections.deque[tuple[Fence, int]] = collections.deque()
        self._settings: dict[str, dict[str, list[Any]]] = {}
        self._until_sweep = 0

    # --- settings of the run ----------------------------------------------------------------------
    def limits(self, message: Message, queue: str) -> tuple[int, int]:
        """The lowest and highest number of attempts after which `message` may have died in `queue`."""
        if message.push.max_attempts is not None and queue == message.push.queue:
            return message.push.max_attempts, message.push.max_attempts
        values = list(self._set(queue, "max_deliveries") or [MAX_DELIVERIES_DEFAULT])
        if message.push.max_attempts is not None:  # whether a batch's own limit outlives a death is not promised
            values.append(message.push.max_attempts)
        return min(values), max(values)

    def dead_letter_queues(self, queue: str) -> set[str]:
        """Where messages that die in `queue` may go, by every setting it ever had."""
        named = {value for value in self._set(queue, "dlq") if value is not None}
        return {f"{queue}.dlq"} if not named else named

    def _set(self, queue: str, name: str) -> list[Any]:
        return self._settings.get(queue, {}).get(name, [])

    # --- reading ----------------------------------------------------------------------------------
    def event(self, event: Event) -> None:
        """Take in one line.

        Raises: HistoryError when it contradicts the lines before (not a broken promise, a broken history).
        """
        self.now, self.line = event.time, event.line
        if event.type == NEMESIS:
            self._nemesis(event)
        elif event.type == INVOKE:
            if event.process in self._pending or event.process in self._retired:
                raise HistoryError(f"line {event.line}: {event.process} invokes while it cannot")
            pending = _Pending(
                event=event, fence=self.max_fence, items=[], calm=self.disturbances, outages=self.outages
            )
            self._pending[event.process] = pending
            self._handler(_INVOKED, event)(self, event, pending)
        elif event.type in COMPLETIONS:
            open_one = self._pending.pop(event.process, None)
            if open_one is None or open_one.event.op != event.op:
                raise HistoryError(f"line {event.line}: {event.process} completes what it did not invoke")
            if event.type == INFO:
                self._retired.add(event.process)
            self._handler(_COMPLETED, event)(self, event, open_one)
            self._until_sweep -= 1
            if self._until_sweep <= 0:
                self._sweep()
        else:
            raise HistoryError(f"line {event.line}: type {event.type!r}")

    def end(self) -> None:
        """The history is over: what is still open ended with an unknown outcome."""
        for process, pending in list(self._pending.items()):
            event = attrs.evolve(pending.event, type=INFO, body={}, time=self.now, line=self.line)
            del self._pending[process]
            self._handler(_COMPLETED, event)(self, event, pending)
        self._sweep()
        for watcher in self._watchers:
            watcher.end(self)

    def _handler(self, table: dict[str, Callable[..., None]], event: Event) -> Callable[..., None]:
        handler = table.get(event.op)
        if handler is None:
            # An operation whose effect is not modelled could explain anything: better no verdict than a
            # wrong one.
            raise HistoryError(f"line {event.line}: operation {event.op!r} is not known to this checker")
        return handler

    def _nemesis(self, event: Event) -> None:
        self.counts[f"nemesis {event.op}"] += 1
        if event.op == "drained":
            self.drained = True
        elif event.op == "phase":
            self.nodes = event.body.get("nodes", self.nodes)
        else:
            self.disturbances += 1
            self.outages += event.op in OUTAGES

    # --- push -------------------------------------------------------------------------------------
    def _push_invoked(self, event: Event, pending: _Pending) -> None:
        args = event.body
        values = unpack(args["values"])
        self._pushes += 1
        pending.push = push = Push(
            process=event.process,
            queue=args["queue"],
            number=self._pushes,
            invoked=event.time,
            invoked_wall=event.wall,
            priority=args.get("priority", 0),
            delay_ms=args.get("delay_ms"),
            deliver_at_ms=args.get("deliver_at_ms"),
            mortal=args.get("ttl_ms") is not None,
            grouped=bool(args.get("grouped")),
            max_attempts=args.get("max_attempts"),
            count=len(values),
        )
        for position, value in enumerate(values):
            if value < 0 or value in self.live or value in self.settled or value in self.refused:
                raise HistoryError(f"line {event.line}: value {value} is pushed twice; values must be unique")
            self.live[value] = Message(value=value, push=push, position=position)
        self.counts["messages offered"] += len(values)

    def _push_completed(self, event: Event, pending: _Pending) -> None:
        push = pending.push
        assert push is not None
        self.counts[f"messages pushed {event.type}"] += push.count
        if event.type == OK:
            push.outcome = OK
            identifiers = _ids(event.body, push.count)
            for identifier, value in zip(identifiers, unpack(pending.event.body["values"]), strict=False):
                message = self.live.get(value)
                if message is not None and message.id is None:
                    message.id = identifier
        elif event.type == INFO:
            push.outcome = INFO
        else:
            for value in unpack(pending.event.body["values"]):
                message = self.live.pop(value, None)
                self.refused.add(value)
                for hold, _ in message.seen if message is not None else ():
                    self._stray(value, hold, "its push was refused")

    # --- poll -------------------------------------------------------------------------------------
    def _poll_invoked(self, event: Event, pending: _Pending) -> None:
        pass

    def _poll_completed(self, event: Event, pending: _Pending) -> None:
        args = pending.event.body
        if event.type == INFO:
            for queue in args["queues"]:
                self.lost_polls[queue] += 1
            self.counts["polls of unknown outcome"] += 1
            return
        if event.type != OK:
            return
        for queue in args["queues"]:
            self.repeated_polls[queue] += self.outages - pending.outages
        visibility_ms = event.body.get("visibility_ms") or args.get("visibility_ms") or VISIBILITY_MS_DEFAULT
        surely = pending.event.time + (event.body.get("parked_ms", 0) + visibility_ms) * MS
        for run in event.body["runs"]:
            values = unpack(run["values"])
            count = len(values)
            fence = (int(run["fence"][0]), int(run["fence"][1]))
            hold = Hold(
                lease=run["lease"],
                queue=run["queue"],
                process=event.process,
                consumer=args.get("consumer", event.process),
                invoked=pending.event.time,
                completed=event.time,
                fence=fence,
                delivery=run["delivery"],
                attempts=run["attempts"],
                calm=pending.calm,
                values=values,
                fates=bytearray(count),
                ends=[surely] * count,
                latest=[event.time + visibility_ms * MS] * count,
                given=[None] * count,
            )
            if hold.lease in self.holds:
                raise HistoryError(f"line {event.line}: lease {hold.lease} is in two replies")
            self._delivered(hold, run)
            if hold.live:
                self.holds[hold.lease] = hold
            if fence > self.max_fence:
                self.max_fence = fence

    def _delivered(self, hold: Hold, run: dict[str, Any]) -> None:
        identifiers = _ids(run, len(hold.values))
        known: list[tuple[Message, int]] = []
        self.counts["deliveries"] += len(hold.values)
        if hold.delivery > 1:
            self.counts["redeliveries"] += len(hold.values)
        for offset, value in enumerate(hold.values):
            message = self.live.get(value)
            if message is None:
                why = (
                    "it was acknowledged"
                    if value in self.settled
                    else "its push was refused"
                    if value in self.refused
                    else "nobody pushed it"
                )
                self._stray(value, hold, why)
                continue
            for watcher in self._watchers:
                watcher.delivered(self, message, hold, offset)
            if identifiers:
                identifier = identifiers[offset]
                if message.id is None:
                    message.id = identifier
                elif message.id != identifier:
                    self._stray(value, hold, f"id {identifier:#x} is a second copy of {message.id:#x}")
            message.seen.append((hold, offset))
            hold.live += 1
            known.append((message, offset))
        for watcher in self._watchers:
            watcher.run_delivered(self, hold, known)

    def _stray(self, value: int, hold: Hold, why: str) -> None:
        for watcher in self._watchers:
            watcher.stray(self, value, hold, why)

    # --- settle and touch -------------------------------------------------------------------------
    def _items(self, event: Event) -> Iterable[tuple[Hold | None, list[int]]]:
        for item in event.body["items"]:
            hold = self.holds.get(item["lease"])
            offsets = item.get("offsets")
            if hold is None:
                yield None, []
            elif offsets is None:
                yield hold, [k for k, fate in enumerate(hold.fates) if fate not in _OK_FATES]
            else:
                yield hold, unpack(offsets)

    def _settle_invoked(self, event: Event, pending: _Pending) -> None:
        maybe = _MAYBE_OF[event.body["kind"]]
        for hold, offsets in self._items(event):
            before: list[tuple[int, int | None]] = []
            if hold is not None:
                for offset in offsets:
                    fate = hold.fates[offset]
                    before.append((fate, hold.given[offset]))
                    if fate in (OPEN, REFUSED):
                        hold.fates[offset] = maybe
                    if hold.given[offset] is None:
                        hold.given[offset] = event.time
            pending.items.append((hold, offsets, before))

    def _settle_completed(self, event: Event, pending: _Pending) -> None:
        kind = pending.event.body["kind"]
        if event.type == INFO:
            self.counts["settles of unknown outcome"] += 1
            return
        codes = event.body["codes"] if event.type == OK else [int(Code.OVERLOADED)] * len(pending.items)
        for code, (hold, offsets, before), item in zip(codes, pending.items, pending.event.body["items"], strict=True):
            if hold is None:
                if code == 0:
                    for watcher in self._watchers:
                        watcher.settled_stray(self, item["lease"], event)
                continue
            for offset, (fate, given) in zip(offsets, before, strict=True):
                if code == 0:
                    self._settled(hold, offset, kind, pending)
                elif fate in (OPEN, REFUSED):
                    # Refused for good: the lease was over. Any other refusal: as if never said.
                    hold.fates[offset] = REFUSED if code == Code.RECEIPT_EXPIRED else fate
                    hold.given[offset] = hold.given[offset] if code == Code.RECEIPT_EXPIRED else given
            if code == 0:
                hold.fail_delay_ms = pending.event.body.get("delay_ms") if kind == "fail" else None
                self.counts[f"messages settled {kind}"] += len(offsets)
            elif code == Code.RECEIPT_EXPIRED:
                self.counts["settles refused as expired"] += len(offsets)

    def _settled(self, hold: Hold, offset: int, kind: str, pending: _Pending) -> None:
        hold.fates[offset] = _MAYBE_OF[kind] + 1
        value = hold.values[offset]
        message = self.live.get(value)
        if message is None:
            for watcher in self._watchers:
                watcher.settled_stray(self, hold.lease, pending.event)
            return
        for watcher in self._watchers:
            watcher.settled(self, message, hold, offset, kind, pending.event)
        if kind == "ack":
            if message.acked is None:
                self._settling.append((self.max_fence, value))
            message.acked = hold
            message.acked_time = self.now

    def _touch_invoked(self, event: Event, pending: _Pending) -> None:
        # A touch that may have taken effect may have moved the end: until it is answered no latest moment is
        # known.
        for hold, offsets in self._items(event):
            before: list[tuple[int, int | None]] = []
            for offset in offsets if hold is not None else ():
                assert hold is not None
                before.append((hold.latest[offset], None))
                hold.latest[offset] = NEVER
            pending.items.append((hold, offsets, before))

    def _touch_completed(self, event: Event, pending: _Pending) -> None:
        visibility = pending.event.body["visibility_ms"] * MS
        if event.type == INFO:
            return
        codes = event.body["codes"] if event.type == OK else [int(Code.OVERLOADED)] * len(pending.items)
        for code, (hold, offsets, before) in zip(codes, pending.items, strict=True):
            if hold is None:
                continue
            for offset, (latest, _) in zip(offsets, before, strict=True):
                hold.latest[offset] = latest
                if code == 0:
                    hold.ends[offset] = max(hold.ends[offset], pending.event.time + visibility)
                    hold.latest[offset] = max(latest, event.time + visibility)
                    self.counts["messages touched"] += 1

    # --- settings, counts -------------------------------------------------------------------------
    def _set_invoked(self, event: Event, pending: _Pending) -> None:
        pass

    def _set_completed(self, event: Event, pending: _Pending) -> None:
        if event.type in (OK, INFO):
            known = self._settings.setdefault(pending.event.body["queue"], {})
            for name, value in pending.event.body["settings"].items():
                known.setdefault(name, []).append(value)

    def _show_invoked(self, event: Event, pending: _Pending) -> None:
        pass

    def _show_completed(self, event: Event, pending: _Pending) -> None:
        if event.type == OK:
            self.shown[pending.event.body["queue"]] = dict(event.body)

    def open_polls(self, queue: str) -> int:
        """How many polls on `queue` have no reply yet."""
        return sum(
            pending.event.op == "poll" and queue in pending.event.body["queues"] for pending in self._pending.values()
        )

    # --- forgetting -------------------------------------------------------------------------------
    def _sweep(self) -> None:
        """Move the watermark and turn what is settled for good into bits."""
        self._until_sweep = 256
        open_polls = [pending.fence for pending in self._pending.values() if pending.event.op == "poll"]
        self.watermark = min(open_polls, default=self.max_fence)
        while self._settling and (self._settling[0][0] <= self.watermark):
            _, value = self._settling.popleft()
            message = self.live.pop(value)
            self.settled.add(value)
            for hold, _ in message.seen:
                hold.live -= 1
                if hold.live == 0:
                    self.holds.pop(hold.lease, None)


def _ids(body: Mapping[str, Any], count: int) -> list[int]:
    """The message ids that a push's or a poll's result names, in hexadecimal; none when it names none."""
    if "first" in body:
        first = int(body["first"], 16)
        return list(range(first, first + count))
    return [int(text, 16) for text in body.get("ids", ())]


_OK_FATES: Final = frozenset({ACK_OK, RELEASE_OK, FAIL_OK, REJECT_OK})
_INVOKED: Final[dict[str, Callable[..., None]]] = {
    "push": World._push_invoked,
    "poll": World._poll_invoked,
    "settle": World._settle_invoked,
    "touch": World._touch_invoked,
    "set": World._set_invoked,
    "show": World._show_invoked,
}
_COMPLETED: Final[dict[str, Callable[..., None]]] = {
    "push": World._push_completed,
    "poll": World._poll_completed,
    "settle": World._settle_completed,
    "touch": World._touch_completed,
    "set": World._set_completed,
    "show": World._show_completed,
}
