"""The promises, one class each, named like the property in the specification and in the tests.

A class looks only at what a client can know (`world.py`) and says when that cannot have come from a queue
that keeps its promise. Where outcomes are unknown it gives the queue the benefit of the doubt, so a
violation is always one.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import ClassVar, Final

from .history import OK, Event
from .world import (
    ACK_MAYBE,
    ACK_OK,
    COUNTED,
    FAIL_OK,
    MS,
    NO_FENCE,
    REJECT_MAYBE,
    REJECT_OK,
    RELEASE_MAYBE,
    TOLERANCE_NS,
    Fence,
    Hold,
    Message,
    World,
)

EXAMPLES_MAX: Final = 10
# Wall and monotonic clocks may differ in rate while the wall clock is slewed: 500 ppm by the kernel; a cluster slews
# its own by 10% toward the median of its nodes' clocks.
_SLEW: Final = 2000
_SLEW_OF_A_CLUSTER: Final = 10


class Invariant:
    """One promise: how often it was looked at, how often it was broken, and the first few examples."""

    name: ClassVar[str]
    promise: ClassVar[str]

    def __init__(self) -> None:
        self.checked = 0
        self.violations = 0
        self.examples: list[str] = []

    def broken(self, world: World, text: str) -> None:
        """Record one violation, seen at the current line."""
        self.violations += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(f"line {world.line}: {text}")

    def delivered(self, world: World, message: Message, hold: Hold, offset: int) -> None:
        """See `world.Watcher`; most invariants have no use for most calls."""

    def run_delivered(self, world: World, hold: Hold, runs: Sequence[tuple[Message, int]]) -> None:
        """See `world.Watcher`."""

    def stray(self, world: World, value: int, hold: Hold, why: str) -> None:
        """See `world.Watcher`."""

    def settled(self, world: World, message: Message, hold: Hold, offset: int, kind: str, since: Event) -> None:
        """See `world.Watcher`."""

    def settled_stray(self, world: World, lease: str, event: Event) -> None:
        """See `world.Watcher`."""

    def end(self, world: World) -> None:
        """See `world.Watcher`."""


def _of(hold: Hold, offset: int) -> str:
    what = f"delivery {hold.delivery}, {hold.consumer}, fence {hold.fence}"
    return f"value {hold.values[offset]} in {hold.queue} ({what})"


class NoSilentLoss(Invariant):
    """Nothing lost: after the drain no acknowledged push is without an end."""

    name = "NoSilentLoss"
    promise = "every push answered OK is delivered until it is settled"

    def end(self, world: World) -> None:
        """Look at what is left after the drain."""
        for message in world.live.values():
            if message.push.outcome != OK or message.push.mortal or message.acked is not None:
                continue
            self.checked += 1
            last = max(message.seen, key=lambda pair: pair[0].fence, default=None)
            if last is None:
                self.broken(world, f"value {message.value} pushed to {message.push.queue} was never delivered")
            elif last[0].fates[last[1]] != ACK_MAYBE:
                self.broken(world, f"{_of(*last)} was seen last there, never acknowledged, never came back")
        self.checked += world.settled.count


class NoPhantom(Invariant):
    """Nothing invented: what is delivered was pushed, into that queue, and not refused."""

    name = "NoPhantom"
    promise = "nothing is delivered that was not pushed there"

    def delivered(self, world: World, message: Message, hold: Hold, offset: int) -> None:
        """The queue must be where it was pushed, or where it may go when it dies."""
        self.checked += 1
        reachable = {message.push.queue}
        while hold.queue not in reachable:
            further = {target for queue in reachable for target in world.dead_letter_queues(queue)}
            # A name grows with every step, so three steps are more deaths than any run holds.
            if further <= reachable or len(reachable) > 64 or any(q.count(".dlq") > 3 for q in further):
                self.broken(world, f"{_of(hold, offset)} was pushed to {message.push.queue}")
                return
            reachable |= further

    def stray(self, world: World, value: int, hold: Hold, why: str) -> None:
        """Only what nobody pushed, or nobody was allowed to push."""
        if why in ("nobody pushed it", "its push was refused"):
            self.checked += 1
            self.broken(world, f"value {value} in {hold.queue}, fence {hold.fence}: {why}")


class AtMostOnce(Invariant):
    """Enqueued once: retries of a push never store a second copy."""

    name = "AtMostOnce"
    promise = "a push retried within its session takes effect once"

    def delivered(self, world: World, message: Message, hold: Hold, offset: int) -> None:
        """Counts what was compared."""
        self.checked += 1

    def stray(self, world: World, value: int, hold: Hold, why: str) -> None:
        """Only second copies."""
        if "second copy" in why:
            self.broken(world, f"value {value} in {hold.queue}: {why}")


class SettledIsFinal(Invariant):
    """An ack answered OK ends the message."""

    name = "SettledIsFinal"
    promise = "after an ack answered OK the message is never delivered again"

    def delivered(self, world: World, message: Message, hold: Hold, offset: int) -> None:
        """A lease later in the log than the acked one, or a poll sent after the answer."""
        self.checked += 1
        if message.acked is not None and (hold.fence > message.acked.fence or hold.invoked > message.acked_time):
            self.broken(world, f"{_of(hold, offset)} was acked with fence {message.acked.fence}")

    def settled(self, world: World, message: Message, hold: Hold, offset: int, kind: str, since: Event) -> None:
        """The same, when the delivery's reply came before the ack's."""
        if kind != "ack":
            return
        self.checked += 1
        for other, where in message.seen:
            if other.fence > hold.fence:
                self.broken(world, f"{_of(other, where)} follows the acked fence {hold.fence}")

    def stray(self, world: World, value: int, hold: Hold, why: str) -> None:
        """Only what was acknowledged."""
        if why == "it was acknowledged":
            self.checked += 1
            self.broken(world, f"value {value} in {hold.queue}, fence {hold.fence}: {why}")


class Exclusive(Invariant):
    """One holder: [received, min(settle sent, poll sent + parked + visibility)] of leases never overlap."""

    name = "Exclusive"
    promise = "while a lease runs nobody else receives the message"

    def delivered(self, world: World, message: Message, hold: Hold, offset: int) -> None:
        """Compare with every earlier lease that surely still runs."""
        self.checked += 1
        for other, where in message.seen:
            given = other.given[where]
            end = other.ends[where] if given is None else min(given, other.ends[where])
            if min(end, hold.ends[offset]) > hold.completed + TOLERANCE_NS:
                left = (end - hold.completed) / MS
                self.broken(world, f"{_of(hold, offset)}: held by {other.consumer} for another {left:.1f} ms")


class ReceiptsRise(Invariant):
    """Each delivery has a larger receipt, fence and delivery count than the one before it."""

    name = "ReceiptsRise"
    promise = "receipts of a message strictly increase"

    def delivered(self, world: World, message: Message, hold: Hold, offset: int) -> None:
        """Log, delivery count, real time and the lease number inside the receipt must agree on the order."""
        self.checked += 1
        number = hold.number
        for other, _ in message.seen:
            if other.delivery == hold.delivery or other.fence == hold.fence:
                self.broken(world, f"{_of(hold, offset)}: same as for {other.consumer}, fence {other.fence}")
            elif (other.fence < hold.fence) != (other.delivery < hold.delivery):
                self.broken(world, f"{_of(hold, offset)}: delivery {other.delivery} has fence {other.fence}")
            elif other.completed < hold.invoked and other.fence > hold.fence:
                self.broken(world, f"{_of(hold, offset)}: an earlier reply had fence {other.fence}")
            before = other.number
            if number is not None and before is not None and number[0] == before[0]:
                if (before[1] < number[1]) != (other.fence < hold.fence) or before[1] == number[1]:
                    self.broken(world, f"{_of(hold, offset)}: lease {number[1]} after {before[1]}")


class AckFenced(Invariant):
    """A receipt from before a later delivery settles nothing."""

    name = "AckFenced"
    promise = "a stale receipt is never answered OK"

    def settled(self, world: World, message: Message, hold: Hold, offset: int, kind: str, since: Event) -> None:
        """The newer delivery must have been seen before the settle was sent, to be sure of the order."""
        self.checked += 1
        for other, _ in message.seen:
            if other.fence > hold.fence and other.completed < since.time:
                self.broken(world, f"{kind} of {_of(hold, offset)} answered OK after fence {other.fence}")

    def settled_stray(self, world: World, lease: str, event: Event) -> None:
        """Everything of that lease had ended."""
        self.checked += 1
        self.broken(world, f"settle of lease {lease} answered OK, but nothing of it was outstanding")


class AckBeforeDeadline(Invariant):
    """A settle sent after the lease's end is refused, swept or not."""

    name = "AckBeforeDeadline"
    promise = "a settle sent after its lease ended is refused"

    def settled(self, world: World, message: Message, hold: Hold, offset: int, kind: str, since: Event) -> None:
        """Only when no fault came between: the lease clock stands while the node is down."""
        if hold.calm != world.disturbances:
            return
        self.checked += 1
        late = since.time - hold.latest[offset]
        if late > TOLERANCE_NS:
            self.broken(world, f"{kind} of {_of(hold, offset)} sent {late / MS:.1f} ms after its end")


class Bound(Invariant):
    """Attempts are counted exactly (fail and expiry count, release does not) and never exceed the limit."""

    name = "Bound"
    promise = "attempts are exact and stay below the limit while the message is delivered"

    def delivered(self, world: World, message: Message, hold: Hold, offset: int) -> None:
        """Compare the reply's attempts with what the leases before it can have counted."""
        self.checked += 1
        low, high = counted(message, hold)
        if not low <= hold.attempts <= high:
            span = f"{low}" if low == high else f"{low} to {high}"
            self.broken(world, f"{_of(hold, offset)} says {hold.attempts} attempts, its leases counted {span}")
        limit = world.limits(message, hold.queue)[1]
        if hold.attempts >= limit:
            self.broken(world, f"{_of(hold, offset)} has {hold.attempts} attempts, the limit is {limit}")


def counted(message: Message, hold: Hold) -> tuple[int, int]:
    """Bounds of the attempts counted in `hold`'s queue before `hold` was leased.

    Deliveries that nobody saw (their number is missing) may have counted, or not.
    """
    low = high = before = 0
    for other, where in message.seen:
        if other.delivery >= hold.delivery:
            continue
        before += 1
        if other.queue == hold.queue:
            least, most = COUNTED[other.fates[where]]
            low += least
            high += most
    return low, high + max(0, hold.delivery - 1 - before)


class DlqExact(Invariant):
    """A message is a dead letter exactly when it reached the limit or was rejected, and then only that."""

    name = "DlqExact"
    promise = "dead letters are those that reached the limit or were rejected, each once"

    def delivered(self, world: World, message: Message, hold: Hold, offset: int) -> None:
        """A change of queue is a death: look at the leases in the queue it came from."""
        if hold.queue == message.push.queue:
            for other, _ in message.seen:
                if other.queue != hold.queue and other.fence < hold.fence:
                    self.broken(world, f"{_of(hold, offset)} was in {other.queue} with fence {other.fence}")
            if message.seen:
                self.checked += 1
            return
        self.checked += 1
        if any(other.queue == hold.queue for other, _ in message.seen):
            return
        earlier = [pair for pair in message.seen if pair[0].fence < hold.fence]
        unseen = hold.delivery - 1 - len(earlier)
        last = max(earlier, key=lambda pair: pair[0].fence, default=None)
        origin = last[0].queue if last is not None else message.push.queue
        if any(other.fates[where] in (REJECT_OK, REJECT_MAYBE) for other, where in earlier):
            return
        low = high = 0
        for other, where in earlier:
            if other.queue == origin:
                least, most = COUNTED[other.fates[where]]
                low += least
                high += most
        high += max(0, unseen)
        least, most = world.limits(message, origin)
        if low > most or high < least:
            span = f"{low}" if low == high else f"{low} to {high}"
            self.broken(world, f"{_of(hold, offset)} died in {origin} after {span} attempts, limit {most}")


class DelayNotEarly(Invariant):
    """A delayed message, and a failed one in its back-off, waits."""

    name = "DelayNotEarly"
    promise = "nothing is delivered before it is due"

    def delivered(self, world: World, message: Message, hold: Hold, offset: int) -> None:
        """Counted from the moment the request was sent, which is before any stamp of it."""
        push = message.push
        slew = _SLEW_OF_A_CLUSTER if world.nodes > 1 else _SLEW
        if push.delay_ms:
            self.checked += 1
            wait = push.delay_ms * MS
            early = push.invoked + wait - hold.completed - wait // slew
            if early > TOLERANCE_NS:
                self.broken(world, f"{_of(hold, offset)} came {early / MS:.1f} ms before it was due")
        elif push.deliver_at_ms is not None:
            self.checked += 1
            early = push.deliver_at_ms * MS - (push.invoked_wall + hold.completed - push.invoked)
            if early - (hold.completed - push.invoked) // slew > TOLERANCE_NS:
                self.broken(world, f"{_of(hold, offset)} came {early / MS:.1f} ms before it was due")
        for other, where in message.seen:
            if other.delivery == hold.delivery - 1 and other.fates[where] == FAIL_OK and other.fail_delay_ms:
                self.checked += 1
                sent = other.given[where]
                assert sent is not None
                early = sent + other.fail_delay_ms * MS - hold.completed
                if early > TOLERANCE_NS:
                    self.broken(world, f"{_of(hold, offset)} came {early / MS:.1f} ms before its back-off ended")


class FirstDeliveryOrder(Invariant):
    """First in, first out per queue and priority, for what one producer pushed one after the other."""

    name = "FirstDeliveryOrder"
    promise = "first deliveries follow the order of the pushes"

    def __init__(self) -> None:
        super().__init__()
        # Replies arrive in any order; a delivery waits here until no open poll can have an earlier fence.
        self._waiting: list[tuple[Fence, int, tuple[str, str, int], tuple[int, int], tuple[int, int]]] = []
        self._last: dict[tuple[str, str, int], tuple[tuple[int, int], Fence]] = {}
        self._arrivals = 0

    def run_delivered(self, world: World, hold: Hold, runs: Sequence[tuple[Message, int]]) -> None:
        """Cut the run into stretches of one producer; inside a stretch order must rise already."""
        if hold.delivery != 1 or not runs:
            return
        key: tuple[str, str, int] | None = None
        first = last = (0, 0)
        for message, offset in runs:
            push = message.push
            if push.delayed or push.grouped or hold.queue != push.queue:
                continue
            this = (push.process, hold.queue, push.priority)
            place = (push.number, message.position)
            self.checked += 1
            if this == key:
                if place <= last:
                    self.broken(world, f"{_of(hold, offset)} stands behind a later one in its own run")
                last = place
                continue
            if key is not None:
                self._wait(hold.fence, key, first, last)
            key, first, last = this, place, place
        if key is not None:
            self._wait(hold.fence, key, first, last)
        self._release(world, world.watermark)

    def _wait(self, fence: Fence, key: tuple[str, str, int], first: tuple[int, int], last: tuple[int, int]) -> None:
        self._arrivals += 1
        heapq.heappush(self._waiting, (fence, self._arrivals, key, first, last))

    def _release(self, world: World, upto: Fence) -> None:
        while self._waiting and self._waiting[0][0] <= upto:
            fence, _, key, first, last = heapq.heappop(self._waiting)
            before, at = self._last.get(key, ((0, -1), NO_FENCE))
            if first <= before:
                self.broken(
                    world,
                    f"{key[1]}: push {first} of {key[0]} (number, position) came with fence {fence}, "
                    f"after {before} with fence {at}",
                )
            self._last[key] = (max(before, last), fence)

    def end(self, world: World) -> None:
        """No reply can come any more."""
        self._release(world, (1 << 62, 0))


class DuplicateExplained(Invariant):
    """A message comes again only because its lease expired, was given up, or was never seen."""

    name = "DuplicateExplained"
    promise = "a redelivery has an expiry, a release, a fail or an unknown poll before it"

    def delivered(self, world: World, message: Message, hold: Hold, offset: int) -> None:
        """Every lease before this one must have had a reason to end."""
        if hold.delivery == 1:
            return
        self.checked += 1
        earlier = 0
        for other, where in message.seen:
            if other.delivery >= hold.delivery:
                continue
            earlier += 1
            if other.fates[where] >= RELEASE_MAYBE:
                continue
            if other.ends[where] > hold.completed + TOLERANCE_NS:
                said = "an ack" if other.fates[where] in (ACK_MAYBE, ACK_OK) else "nothing"
                left = (other.ends[where] - hold.completed) / MS
                self.broken(
                    world,
                    f"{_of(hold, offset)}: delivery {other.delivery} ran for another {left:.1f} ms "
                    f"and its consumer said {said}",
                )
        unseen = hold.delivery - 1 - earlier
        if unseen > 0:
            queues = {hold.queue, message.push.queue}
            unknown = sum(
                world.lost_polls[queue] + world.repeated_polls[queue] + world.open_polls(queue) for queue in queues
            )
            if unseen > unknown:
                self.broken(
                    world,
                    f"{_of(hold, offset)}: {unseen} deliveries unseen, {unknown} polls of unknown outcome",
                )


class Conservation(Invariant):
    """The ledger: every message has exactly one end, and the sums agree."""

    name = "Conservation"
    promise = "each message ends once: acknowledged, dead, or still counted by its queue"

    def settled(self, world: World, message: Message, hold: Hold, offset: int, kind: str, since: Event) -> None:
        """No message is acknowledged twice."""
        if kind != "ack":
            return
        self.checked += 1
        if message.acked is not None:
            where = f"fence {message.acked.fence} in {message.acked.queue}"
            self.broken(world, f"{_of(hold, offset)} acknowledged again, first with {where}")

    def end(self, world: World) -> None:
        """What the queues say they still hold, against what the clients know may be left."""
        if not world.shown:
            return
        unsettled = sum(message.acked is None for message in world.live.values())
        surely = sum(
            message.acked is None
            and message.push.outcome == OK
            and not message.push.mortal
            and not any(other.fates[where] == ACK_MAYBE for other, where in message.seen)
            for message in world.live.values()
        )
        held = 0
        for queue, counts in world.shown.items():
            # `dead` counts what lies in the dead-letter queue, which is shown under its own name.
            parts = {name: counts.get(name, 0) for name in ("ready", "delayed", "leased", "parked")}
            held += sum(parts.values())
            if min(parts.values()) < 0:
                self.broken(world, f"{queue} counts below zero: {parts}")
        self.checked += 1
        if not surely <= held <= unsettled:
            self.broken(world, f"the queues hold {held}, the clients know {surely} to {unsettled} left over")


INVARIANTS: Final[tuple[type[Invariant], ...]] = (
    NoSilentLoss,
    NoPhantom,
    AtMostOnce,
    SettledIsFinal,
    Conservation,
    Exclusive,
    ReceiptsRise,
    AckFenced,
    AckBeforeDeadline,
    Bound,
    DlqExact,
    DelayNotEarly,
    FirstDeliveryOrder,
    DuplicateExplained,
)
