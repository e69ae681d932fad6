"""Concurrent single calls travel together: what group commit is to the disk, for the wire.

A caller's call is a `Share` of a request that several callers make together. Calls that may travel together are of
one `Lane` (same operation, queue and options). A lane sends what has gathered in a turn of the loop, and holds back
what comes while two of its requests are under way: a lonely caller waits for nobody, and the more callers there are
the larger the batches become. Polls that wait for messages are not held back behind one another: only those asked in
the same turn travel together.

What is shared is divided again here: ids of a push, messages of a poll, codes of a settlement. What belongs to one
caller alone stays its own:

- its time-out, also while its call is held back;
- going away: the others' messages are not forgotten with it, and its own are released;
- a mistake: a request that is refused as wrong is asked again share by share, so that the refusal meets the one
  whose fault it is. (A definite refusal: nothing of it happened.)

Pure: a driver gives the time, calls `flush` when callers have gathered and `advance` after every `Exchange.receive`,
`tick` or `lost`.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, Generic, TypeAlias, TypeVar

import attrs

from walrq import api
from walrq.client import operations as op
from walrq.client.exchange import Call, Exchange
from walrq.client.messages import Batch, Message
from walrq.errors import RemoteProtocolError, WalrqError
from walrq.limits import MERGED_BYTES_MAX, MERGED_MESSAGES_MAX, POLL_MESSAGES_MAX, SETTLE_ITEMS_MAX

C = TypeVar("C")
R = TypeVar("R")
M = TypeVar("M", bound=Message)

# Lanes without a call are kept for the next one, as long as they are few: `deliver_at` makes one per moment.
IDLE_LANES_MAX: Final = 64
# Requests of one lane under way before the next callers are held back. With one, callers that answer each other fall
# into as many groups as there are lanes; with two they soon move as one.
FLYING_MAX: Final = 2


class Share(Generic[C, R]):
    """One caller's part of a call, until it has its result or error.

    Attributes:
        lane: what it may travel with.
        content: what the caller asks.
        weight: what it adds to its lane's bound.
        deadline: monotonic seconds at which its caller stops waiting.
        waits_until: monotonic seconds until which its poll waits for messages; 0 when it does not.
        call: what it travels with; None while it is held back.
        result: its part of the answer, once finished without error.
        error: the error, once finished with one.
        waiter: what the driver calls to wake the caller.
        finished: True once `result` or `error` is there, or nobody waits any more.
    """

    __slots__ = (
        "call",
        "content",
        "deadline",
        "error",
        "finished",
        "lane",
        "result",
        "waiter",
        "waits_until",
        "weight",
    )
    result: R

    def __init__(self, lane: Lane[C, R], content: C, weight: int, deadline: float) -> None:
        self.lane = lane
        self.content = content
        self.weight = weight
        self.deadline = deadline
        self.waits_until = 0.0
        self.call: Call | None = None
        self.error: WalrqError | None = None
        self.waiter: Callable[[], object] | None = None
        self.finished = False


class Lane(ABC, Generic[C, R]):
    """Calls that may travel together.

    Attributes:
        count_max: how many shares one request takes.
        weight_max: how much weight one request takes; a single share may exceed it.
        holds: False when calls need not wait for the one under way.
        waiting: shares that are held back, oldest first.
        flying: calls under way.
    """

    count_max: int
    weight_max: int
    holds = True

    def __init__(self) -> None:
        self.waiting: deque[Share[C, R]] = deque()
        self.flying = 0

    def take(self) -> list[Share[C, R]]:
        """The shares of the next request."""
        waiting = self.waiting
        if len(waiting) == 1:
            return [waiting.popleft()]
        taken: list[Share[C, R]] = []
        weight = 0
        while waiting and len(taken) < self.count_max:
            weight += waiting[0].weight
            if weight > self.weight_max and taken:
                break
            taken.append(waiting.popleft())
        return taken

    @abstractmethod
    def request(self, shares: Sequence[Share[C, R]], now: float) -> api.Request:
        """What the shares ask together."""

    @abstractmethod
    def divide(self, shares: Sequence[Share[C, R]], call: Call, now: float) -> Sequence[Share[C, R]]:
        """Give each share its `result`; those returned got nothing yet and are asked again.

        Raises:
            RemoteProtocolError: the answer is none to this question.
        """

    def give_back(self, result: R) -> list[op.Settlement]:
        """What has to be released when nobody takes the result."""
        return []

    def take_left_over(self) -> list[op.Settlement]:
        """What the latest `divide` found beyond what its shares take, to be released."""
        return []


AnyShare: TypeAlias = Share[Any, Any]
AnyLane: TypeAlias = Lane[Any, Any]


@attrs.frozen
class Body:
    """One message to be pushed: `headers` encoded, empty for none."""

    payload: bytes
    headers: bytes
    group: str | None
    dedup: str | None


class PushLane(Lane[Body, int]):
    """Single pushes with the same queue and options: one batch. The result is the message's number."""

    count_max = MERGED_MESSAGES_MAX
    weight_max = MERGED_BYTES_MAX

    def __init__(self, queue: str, options: op.PushOptions) -> None:
        super().__init__()
        self._like = options.request(queue, api.Columns(b"", b""))

    def request(self, shares: Sequence[Share[Body, int]], now: float) -> api.Request:
        like = self._like
        return api.Push(
            like.queue,
            columns_of([share.content for share in shares]),
            like.priority,
            like.delay_ms,
            like.deliver_at_ms,
            like.ttl_ms,
            like.max_attempts,
        )

    def divide(self, shares: Sequence[Share[Body, int]], call: Call, now: float) -> Sequence[Share[Body, int]]:
        reply = call.reply
        if type(reply) is not api.Pushed or reply.count != len(shares):
            raise _mismatch(call)
        numbers = range(reply.first_id, reply.first_id + reply.count) if reply.ids is None else reply.ids
        for share, number in zip(shares, numbers, strict=True):
            share.result = number
        return ()


def columns_of(bodies: Sequence[Body]) -> api.Columns:
    """The batch of these messages; empty columns are left out."""
    if len(bodies) == 1:
        (one,) = bodies
        return api.Columns(
            one.payload,
            _ends((one.payload,)),
            one.headers or None,
            _ends((one.headers,)) if one.headers else None,
            None if one.group is None else (one.group,),
            None if one.dedup is None else (one.dedup,),
        )
    payloads = [body.payload for body in bodies]
    headers = [body.headers for body in bodies]
    has_headers = any(headers)
    groups = tuple([body.group for body in bodies])
    dedup = tuple([body.dedup for body in bodies])
    return api.Columns(
        b"".join(payloads),
        _ends(payloads),
        b"".join(headers) if has_headers else None,
        _ends(headers) if has_headers else None,
        groups if any(group is not None for group in groups) else None,
        dedup if any(each is not None for each in dedup) else None,
    )


def _ends(stretches: Sequence[bytes]) -> bytes:
    return struct.pack(f"<{len(stretches)}I", *accumulate(map(len, stretches)))


class PollLane(Lane[int, list[M]]):
    """Polls of the same queues with the same visibility and wait: one lease, its messages dealt out in turn.

    Content and weight are the most messages that the caller takes.
    """

    count_max = POLL_MESSAGES_MAX
    weight_max = POLL_MESSAGES_MAX

    def __init__(self, like: api.Poll, batch_of: Callable[[api.Delivered, float], Batch], kind: type[M]) -> None:
        super().__init__()
        self._kind = kind
        self._left_over: list[M] = []
        self._like = like
        self._batch_of = batch_of
        self.holds = not like.wait_ms

    def request(self, shares: Sequence[Share[int, list[M]]], now: float) -> api.Request:
        like = self._like
        wait_ms = 0
        if like.wait_ms:
            first = min(share.waits_until for share in shares)
            wait_ms = min(like.wait_ms, max(0, round((first - now) * 1000)))
        wanted = sum([share.content for share in shares])
        return api.Poll(like.queues, wanted, like.visibility_ms, wait_ms, like.worker)

    def divide(self, shares: Sequence[Share[int, list[M]]], call: Call, now: float) -> Sequence[Share[int, list[M]]]:
        reply = call.reply
        if type(reply) is not api.Polled:
            raise _mismatch(call)
        deadline = call.sent_at + (reply.parked_ms + reply.visibility_ms) / 1000
        again = []
        dealer = _Dealer(reply.runs, lambda run: self._batch_of(run, deadline), self._kind)
        for share in shares:
            if share.finished:
                continue
            part = dealer.deal(share.content)
            if not part and share.waits_until - now >= 0.001:
                again.append(share)
            else:
                share.result = part
        # Of callers that went away while their poll was under way; also what a server gave beyond the question.
        self._left_over = dealer.deal(POLL_MESSAGES_MAX)
        return again

    def give_back(self, result: list[M]) -> list[op.Settlement]:
        return op.settlements(result) if result else []

    def take_left_over(self) -> list[op.Settlement]:
        left, self._left_over = self._left_over, []
        return self.give_back(left)


class _Dealer(Generic[M]):
    """Deals leased runs out, in order, each stretch as a batch of its own: one caller's `ack` of a batch must not
    acknowledge another's messages.
    """

    def __init__(
        self, runs: Sequence[api.Delivered], batch_of: Callable[[api.Delivered], Batch], kind: type[M]
    ) -> None:
        self._kind = kind
        self._runs = iter(runs)
        self._batch_of = batch_of
        self._whole: Batch | None = None
        self._at = 0

    def deal(self, most: int) -> list[M]:
        """Up to `most` messages."""
        found: list[M] = []
        while most:
            whole = self._whole
            if whole is None:
                run = next(self._runs, None)
                if run is None:
                    break
                self._whole = whole = self._batch_of(run)
                self._at = 0
                if run.count <= most:
                    found += whole.messages_as(self._kind)
                    most -= run.count
                    self._whole = None
                    continue
                if not run.lost:
                    whole.ends()
            count = min(most, whole.run.count - self._at)
            part = self._batch_of(whole.run)
            part.narrow(whole, self._at, self._at + count - 1)
            found += part.messages_as(self._kind)
            most -= count
            self._at += count
            if self._at == whole.run.count:
                self._whole = None
        return found


class SettleLane(Lane[tuple[api.Item, ...], Sequence[int]]):
    """Acks, or releases, of one queue: one request. The result is the code of each item."""

    count_max = SETTLE_ITEMS_MAX
    weight_max = SETTLE_ITEMS_MAX

    def __init__(self, queue: str, kind: api.SettleKind) -> None:
        super().__init__()
        self._queue = queue
        self._kind = kind

    def request(self, shares: Sequence[Share[tuple[api.Item, ...], Sequence[int]]], now: float) -> api.Request:
        if len(shares) == 1:
            return api.Settle(self._queue, self._kind, shares[0].content)
        items: list[api.Item] = []
        for part in _by_receipt(shares):
            first = part[0].content
            if len(part) == 1:
                items += first
            else:
                offsets = sorted([share.content[0].ranges[0][0] for share in part])  # type: ignore[index]
                items.append(api.Item(first[0].receipt, op.stretches_of(offsets)))
        return api.Settle(self._queue, self._kind, tuple(items))

    def divide(
        self, shares: Sequence[Share[tuple[api.Item, ...], Sequence[int]]], call: Call, now: float
    ) -> Sequence[Share[tuple[api.Item, ...], Sequence[int]]]:
        reply = call.reply
        parts = _by_receipt(shares) if len(shares) > 1 else [shares]
        if type(reply) is not api.Settled or len(reply.codes) != sum([len(part[0].content) for part in parts]):
            raise _mismatch(call)
        start = 0
        again = []
        for part in parts:
            end = start + len(part[0].content)
            codes = reply.codes[start:end]
            start = end
            if len(part) > 1 and codes[0]:
                # Nothing of an item is done when one of its messages cannot be: each learns on its own which.
                for share in part:
                    if not share.finished:
                        share.weight = self.weight_max + 1  # travels alone
                        again.append(share)
                continue
            for share in part:
                share.result = codes
        return again


def _by_receipt(
    shares: Sequence[Share[tuple[api.Item, ...], Sequence[int]]],
) -> list[list[Share[tuple[api.Item, ...], Sequence[int]]]]:
    """Shares that fit into one item: single stretches of one lease, each named once. Every other share by itself."""
    parts: list[list[Share[tuple[api.Item, ...], Sequence[int]]]] = []
    leases: dict[bytes, tuple[list[Share[tuple[api.Item, ...], Sequence[int]]], set[int]]] = {}
    for share in shares:
        item = share.content[0]
        ranges = item.ranges
        if len(share.content) == 1 and ranges is not None and len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
            offset = ranges[0][0]
            known = leases.get(item.receipt)
            if known is None:
                part = [share]
                leases[item.receipt] = part, {offset}
                parts.append(part)
                continue
            part, offsets = known
            # Acknowledged twice at once: the second one is told that it came too late.
            if offset not in offsets:
                offsets.add(offset)
                part.append(share)
                continue
        parts.append([share])
    return parts


def _mismatch(call: Call) -> RemoteProtocolError:
    return RemoteProtocolError(f"the server answered {type(call.request).__name__} with {type(call.reply).__name__}")


@attrs.define(eq=False)
class Merger:
    """See the module's text.

    Attributes:
        exchange: who makes the calls.
        crowded: the latest flush sent several shares in one request: gathering is worth a turn of the loop.
    """

    exchange: Exchange
    crowded: bool = attrs.field(default=False, init=False)
    _lanes: dict[Hashable, AnyLane] = attrs.field(factory=dict, init=False)
    # Lanes that got shares since the last flush.
    _stirred: list[AnyLane] = attrs.field(factory=list, init=False)
    # Invariant: every call under way with at least one unfinished share, and its shares.
    _flying: dict[Call, list[AnyShare]] = attrs.field(factory=dict, init=False)
    _answered: list[Call] = attrs.field(factory=list, init=False)

    # --- calls ----------------------------------------------------------------------------------------------
    def lane(self, key: Hashable, make: Callable[[], Lane[C, R]]) -> Lane[C, R]:
        """The lane of these options; made, and its options checked, when there is none."""
        try:
            found = self._lanes.get(key)
        except TypeError:
            return make()  # something that cannot be a key: make says what is wrong with it, or it travels alone
        if found is None:
            found = make()
            if len(self._lanes) >= IDLE_LANES_MAX:
                self._lanes = {each: lane for each, lane in self._lanes.items() if lane.flying or lane.waiting}
            self._lanes[key] = found
        return found

    def join(self, lane: Lane[C, R], content: C, weight: int, now: float, wait_s: float = 0.0) -> Share[C, R]:
        """Take a call on. It is sent by the next `flush` that finds its lane free."""
        share = Share(lane, content, weight, now + self.exchange.config.timeout_s + wait_s)
        if wait_s:
            share.waits_until = now + wait_s
        if not lane.waiting:
            self._stirred.append(lane)
        lane.waiting.append(share)
        return share

    def flush(self, now: float) -> None:
        """Send what has gathered, where nothing of its lane is under way."""
        stirred = self._stirred
        if not stirred:
            return
        self._stirred = []
        for lane in stirred:
            while lane.waiting and (lane.flying < FLYING_MAX or not lane.holds):
                self._send(lane, lane.take(), now)

    def _send(self, lane: AnyLane, shares: list[AnyShare], now: float) -> None:
        self.crowded = len(shares) > 1
        latest = shares[0].deadline if len(shares) == 1 else max([share.deadline for share in shares])
        request = lane.request(shares, now)
        wait_s = request.wait_ms / 1000 if type(request) is api.Poll else 0.0
        # The exchange adds a poll's wait on top.
        call = self.exchange.submit(request, now, timeout_s=latest - now - wait_s)
        lane.flying += 1
        self._flying[call] = shares
        for share in shares:
            share.call = call
        if call.finished:
            self._answered.append(call)
        else:
            call.waiter = lambda: self._answered.append(call)

    def abandon(self, share: AnyShare, now: float) -> None:
        """The caller went away: nothing stays leased for it."""
        if share.finished:
            if share.error is None:
                self._release(share.lane.give_back(share.result), now)
            return
        share.waiter = None
        self._end(share, now)

    def _end(self, share: AnyShare, now: float) -> None:
        """Nobody waits for this share any more."""
        share.finished = True
        call, lane = share.call, share.lane
        if call is None:
            lane.waiting.remove(share)
        elif all(each.finished for each in self._flying.get(call, ())):
            if self._flying.pop(call, None) is not None:
                lane.flying -= 1
                self._free(lane)
                self.exchange.abandon(call, now)

    def _release(self, parts: list[op.Settlement], now: float) -> None:
        for part in parts:
            self.exchange.submit(op.settle(part, api.SettleKind.RELEASE), now, wanted=False)

    def _free(self, lane: AnyLane) -> None:
        if lane.waiting and lane not in self._stirred:
            self._stirred.append(lane)

    # --- answers --------------------------------------------------------------------------------------------
    def advance(self, now: float) -> None:
        """Divide what was answered, wake whose share came, and send what was held back for it."""
        while self._answered:
            answered, self._answered = self._answered, []
            for call in answered:
                shares = self._flying.pop(call, None)
                if shares is not None:
                    self._on_answer(shares[0].lane, shares, call, now)
            self.flush(now)

    def _on_answer(self, lane: AnyLane, shares: list[AnyShare], call: Call, now: float) -> None:
        lane.flying -= 1
        self._free(lane)
        error = call.error
        if error is None:
            try:
                again = lane.divide(shares, call, now)
            except WalrqError as failure:
                error, again = failure, ()
            else:
                self._release(lane.take_left_over(), now)
        elif len(shares) > 1 and error.definite and not error.retry:
            for share in shares:
                if not share.finished:
                    self._send(lane, [share], now)
            return
        else:
            again = ()
        for share in reversed(again):
            share.call = None
            lane.waiting.appendleft(share)
        if again:
            self._free(lane)
        for share in shares:
            if share.finished or share.call is None:
                continue
            share.error = error
            share.finished = True
            if share.waiter is not None:
                share.waiter()

    # --- time -----------------------------------------------------------------------------------------------
    def tick(self, now: float) -> None:
        """Finish what is overdue, held back or under way."""
        for share in [share for share in self._unfinished() if share.deadline <= now and not share.finished]:
            share.error = self.exchange.overdue(share.call)
            self._end(share, now)
            if share.waiter is not None:
                share.waiter()
        self.advance(now)
        self.flush(now)

    def fail_all(self, error: WalrqError, now: float) -> None:
        """Finish every share with `error`: the client is closing, or nobody will ever answer."""
        self.advance(now)
        for share in [share for share in self._unfinished() if not share.finished]:
            share.error = error
            self._end(share, now)
            if share.waiter is not None:
                share.waiter()

    def _unfinished(self) -> Iterator[AnyShare]:
        for shares in self._flying.values():
            yield from shares
        for lane in self._lanes.values():
            yield from lane.waiting

    def next_due(self) -> float | None:
        """Monotonic seconds of the earliest time-out; None while nobody waits."""
        return min((share.deadline for share in self._unfinished() if not share.finished), default=None)
