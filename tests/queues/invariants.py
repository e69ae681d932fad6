"""The promises of the state machine, each under its own name, checked without the oracle.

The ledger sees only commands, their answers and the ids that a peek of every queue shows. So it still speaks
when machine and oracle share a mistake. A broken promise raises `Broken`; its text starts with its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from walrq import api
from walrq.ids import TASKS_UID
from walrq.queues import commands as c
from walrq.queues import effects


class Broken(AssertionError):
    """A promise does not hold; the text starts with its name."""


def promise(name: str, holds: bool, *facts: object) -> None:
    """Raise `Broken` unless `holds`."""
    if not holds:
        raise Broken(f"{name}: {', '.join(map(str, facts))}")


@attrs.define
class Holding:
    """Who holds a message, as far as the answers told."""

    queue: str
    uid: int
    lease: int
    offset: int
    deadline_ms: int
    group: str | None


@attrs.define
class Ledger:
    """What the answers so far allow and forbid.

    `lossy` is set once something may take messages away by itself (ttl, retention, drop-oldest), `delays`
    once a queue delays by setting.
    """

    stamp: c.Stamp = attrs.field(factory=lambda: c.Stamp(0, 0))
    ids: set[int] = attrs.field(factory=set)
    holders: dict[int, Holding] = attrs.field(factory=dict)
    leases: dict[tuple[int, int], list[int]] = attrs.field(factory=dict)
    tasks: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    deliveries: dict[int, int] = attrs.field(factory=dict)
    fences: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    acked: set[int] = attrs.field(factory=set)
    answers: dict[tuple[int, int], effects.Result] = attrs.field(factory=dict)
    group_limit_max: int = 1
    deliveries_max: int = 3
    due_ms: dict[int, int] = attrs.field(factory=dict)
    out_of_line: set[int] = attrs.field(factory=set)
    newest_first_delivery: dict[tuple[int, int], int] = attrs.field(factory=dict)
    lossy: bool = False
    delays: bool = False
    may_vanish: set[int] = attrs.field(factory=set)
    may_appear: set[int] = attrs.field(factory=set)
    anything_may_vanish: bool = False

    # --- one entry ----------------------------------------------------------------------------------------
    def observe(
        self,
        index: int,
        stamp: c.Stamp,
        commands: Sequence[c.Tagged],
        results: Sequence[effects.Result],
    ) -> None:
        """Check one applied entry."""
        promise("ClockMonotonic", stamp.lease_ms >= self.stamp.lease_ms and stamp.wall_ms >= self.stamp.wall_ms)
        self.stamp = stamp
        for ordinal, (tagged, result) in enumerate(zip(commands, results, strict=True)):
            if not self._repeated(tagged, result):
                self._command(index, ordinal, tagged, result)
        self._groups()

    def _repeated(self, tagged: c.Tagged, result: effects.Result) -> bool:
        """AtMostOnce: a retried request answers as before and does nothing."""
        if tagged.session is None:
            return False
        if isinstance(result, api.Failed) and result.code in (51, 70, 73):
            return True
        key = (tagged.session, tagged.sequence)
        before = self.answers.get(key)
        if before is None:
            if isinstance(result, effects.Granted) and result.runs and not result.runs[0].lease:
                self.answers[key] = api.Failed(70, "moved on")
            elif not (isinstance(result, effects.Granted) and not result.runs):
                self.answers[key] = result
            return False
        if isinstance(before, effects.Granted):
            promise("AtMostOnce", isinstance(result, effects.Granted), before, result)
            assert isinstance(result, effects.Granted)
            known = {(run.uid, run.lease): run for run in before.runs}
            for run in result.runs:
                promise("AtMostOnce", known.get((run.uid, run.lease)) == run, run, "was not in", before)
                for offset in range(run.count):
                    holder = self.holders.get(run.first_id + offset)
                    promise(
                        "Exclusive",
                        holder is not None
                        and (holder.uid, holder.lease) == (run.uid, run.lease)
                        and holder.deadline_ms > self.stamp.lease_ms,
                        "a retried poll names a lease that is over",
                        run,
                    )
            named = {(run.uid, run.lease) for run in result.runs} | {(t.uid, t.lease) for t in result.ended}
            promise("AtMostOnce", named == set(known), "a retried poll must account for every run", named)
        else:
            promise("AtMostOnce", before == result, before, result)
        return True

    def _command(self, index: int, ordinal: int, tagged: c.Tagged, result: effects.Result) -> None:
        if isinstance(result, api.Failed):
            return
        match tagged.command, result:
            case c.Push() as command, api.Pushed():
                self._pushed(command, result)
            case c.Lease() as command, effects.Granted():
                for run in result.runs:
                    if command.into is None:
                        self._granted(run, (index, ordinal), result.visibility_ms)
                    else:
                        self._passed_on(run)
            case c.Settle() as command, api.Settled():
                self._settled(command, result)
            case c.Touch() as command, api.Touched():
                self._touched(command, result)
            case c.Undo() as command, _:
                for target in command.targets:
                    self._give_back(target)
            case c.Forget() as command, api.Done(count=1):
                assert tagged.session is not None
                before = self.answers.get((tagged.session, command.request))
                if isinstance(before, effects.Granted):
                    for run in before.runs:
                        self._give_back(c.Target(run.uid, run.lease))
            case c.Cancel() as command, api.Outcomes():
                for identifier, outcome in zip(command.ids, result.outcomes, strict=True):
                    if outcome is api.Outcome.DONE:
                        self._free_of_holder(identifier, "cancelled")
                        self.may_vanish.add(identifier)
            case c.Reschedule() as command, api.Outcomes(outcomes=(api.Outcome.DONE,)):
                self.out_of_line.add(command.id)
                self.due_ms[command.id] = command.deliver_at_ms
            case c.SetQueue() as command, _:
                self.group_limit_max = max(self.group_limit_max, command.settings.get("group_limit", 1))
                self.deliveries_max = max(self.deliveries_max, command.settings.get("max_deliveries", 1))
                if command.settings.get("retention_ms") or command.settings.get("overflow") == "drop_oldest":
                    self.lossy = self.anything_may_vanish = True
                self.delays = self.delays or bool(command.settings.get("delay_ms"))
            case c.Move() | c.Redrive(), _:
                # They come back, if ever, behind others.
                self.out_of_line |= self.ids | self.may_appear
            case c.PurgeQueue() | c.DeleteQueue(), api.Done():
                self.anything_may_vanish = True
                name = tagged.command.queue
                for identifier in [i for i, h in self.holders.items() if h.queue == name]:
                    del self.holders[identifier]
            case c.PurgeDead(), api.Done():
                self.anything_may_vanish = True

    # --- the commands -------------------------------------------------------------------------------------
    def _pushed(self, command: c.Push, result: api.Pushed) -> None:
        identifiers = result.ids or tuple(result.first_id + k for k in range(result.count))
        fresh = {i for k, i in enumerate(identifiers) if k not in result.duplicates}
        known = self.ids | self.may_appear
        promise("AtMostOnce", not fresh & known, "ids were given before", fresh & known)
        promise("AtMostOnce", len(fresh) == result.count - len(result.duplicates), result)
        self.may_appear |= fresh
        if command.ttl_ms is not None:
            # From its own entry on: an entry's stamp may be the one that ends it.
            self.lossy = self.anything_may_vanish = True
        due_ms = command.deliver_at_ms or self.stamp.wall_ms + (command.delay_ms or 0)
        self.due_ms.update(dict.fromkeys(fresh, due_ms))
        if self.delays or command.delay_ms or command.deliver_at_ms is not None:
            self.out_of_line |= fresh
        if command.max_attempts is not None:
            self.deliveries_max = max(self.deliveries_max, command.max_attempts)

    def _passed_on(self, run: effects.Grant) -> None:
        for offset in range(run.count):
            self._free_of_holder(run.first_id + offset, "passed on")
        # As for a move.
        self.out_of_line |= self.ids | self.may_appear

    def _granted(self, run: effects.Grant, fence: tuple[int, int], visibility_ms: int) -> None:
        promise("ReceiptsRise", run.fence == fence, run.fence, fence)
        promise("ReceiptsRise", (run.uid, run.lease) not in self.leases, "lease number given before", run)
        promise("Bound", run.attempts < self.deliveries_max, run)
        self.leases[run.uid, run.lease] = [run.first_id + k for k in range(run.count)]
        if run.task:
            promise(
                "ReceiptsRise", run.task == len(self.tasks) + 1 and run.count == 1, "task numbers count leases", run
            )
            self.tasks[run.task] = (run.uid, run.lease)
        for offset in range(run.count):
            identifier = run.first_id + offset
            promise("SettledIsFinal", identifier not in self.acked, "acked and delivered again", identifier)
            due_ms = self.due_ms.get(identifier, 0)
            promise("DelayNotEarly", due_ms <= self.stamp.wall_ms, identifier, due_ms, self.stamp)
            self._free_of_holder(identifier, "leased again")
            promise("ReceiptsRise", run.delivery > self.deliveries.get(identifier, 0), "delivery must grow", run)
            promise("ReceiptsRise", fence > self.fences.get(identifier, (0, -1)), "fence must grow", run)
            if run.delivery == 1 and run.group is None and identifier not in self.out_of_line:
                self._in_line(run, identifier)
            self.deliveries[identifier] = run.delivery
            self.fences[identifier] = fence
            self.holders[identifier] = Holding(
                run.queue, run.uid, run.lease, offset, self.stamp.lease_ms + visibility_ms, run.group
            )

    def _in_line(self, run: effects.Grant, identifier: int) -> None:
        """FirstDeliveryOrder, for messages that nothing ever took out of the line."""
        lane = (run.uid, run.priority)
        sequence = identifier & ((1 << 48) - 1)
        home = identifier >> 48 & ((1 << 32) - 1)
        if home != run.uid:
            return
        promise(
            "FirstDeliveryOrder",
            sequence > self.newest_first_delivery.get(lane, 0),
            f"message {sequence} of {run.queue} was overtaken",
        )
        self.newest_first_delivery[lane] = sequence

    def _free_of_holder(self, identifier: int, event: str) -> None:
        holder = self.holders.get(identifier)
        promise(
            "Exclusive",
            holder is None or holder.deadline_ms <= self.stamp.lease_ms,
            f"{event} while held",
            holder,
            self.stamp,
        )

    def _real(self, target: c.Target) -> c.Target:
        """The lease behind a task number."""
        if target.uid != TASKS_UID:
            return target
        return c.Target(*self.tasks.get(target.lease, (0, 0)), target.ranges)

    def _named(self, target: c.Target) -> list[int]:
        """Ids a target names: by its ranges, else all that still runs under it."""
        target = self._real(target)
        identifiers = self.leases.get((target.uid, target.lease), [])
        if target.ranges is not None:
            return [identifiers[k] for first, last in target.ranges for k in range(first, last + 1)]
        return [
            identifier
            for identifier in identifiers
            if (holder := self.holders.get(identifier)) is not None
            and (holder.uid, holder.lease) == (target.uid, target.lease)
            and holder.deadline_ms > self.stamp.lease_ms
        ]

    def _accepted(self, queue: str, target: c.Target) -> list[int]:
        """AckFenced and AckBeforeDeadline, for a target the machine said yes to."""
        target = self._real(target)
        identifiers = self._named(target)
        promise("AckFenced", bool(identifiers), "accepted, but nothing is held", target)
        for identifier in identifiers:
            holder = self.holders.get(identifier)
            promise(
                "AckFenced",
                holder is not None and (holder.uid, holder.lease, holder.queue) == (target.uid, target.lease, queue),
                "accepted for a lease that does not hold the message",
                target,
                holder,
            )
            assert holder is not None
            promise("AckBeforeDeadline", holder.deadline_ms > self.stamp.lease_ms, holder, self.stamp)
        return identifiers

    def _settled(self, command: c.Settle, result: api.Settled) -> None:
        for target, code in zip(command.targets, result.codes, strict=True):
            if code == 0:
                for identifier in self._accepted(command.queue, target):
                    del self.holders[identifier]
                    if command.kind is api.SettleKind.ACK:
                        self.acked.add(identifier)
                        self.may_vanish.add(identifier)
                    elif command.kind is not api.SettleKind.RELEASE:
                        self.out_of_line.add(identifier)

    def _touched(self, command: c.Touch, result: api.Touched) -> None:
        for target, code, remaining in zip(command.targets, result.codes, result.remaining_ms, strict=True):
            if code == 0:
                until = self.stamp.lease_ms + command.visibility_ms
                ends = []
                for identifier in self._accepted(command.queue, target):
                    holder = self.holders[identifier]
                    holder.deadline_ms = max(holder.deadline_ms, until)
                    ends.append(holder.deadline_ms)
                promise("NotEarly", remaining >= command.visibility_ms, "touch gave less than asked", result)
                promise("NotEarly", remaining <= max(ends) - self.stamp.lease_ms, "touch promised more", result)

    def _give_back(self, target: c.Target) -> None:
        for identifier in self._named(target):
            del self.holders[identifier]

    # --- everything at once -------------------------------------------------------------------------------
    def conservation(self, ids_now: Sequence[int]) -> None:
        """Check what is there against what happened since the last check.

        Args:
            ids_now: the id of every message in every queue, repeats included.
        """
        now = set(ids_now)
        promise("Conservation", len(now) == len(ids_now), "a message is in two places")
        allowed = self.ids | self.may_appear
        promise("Conservation", now <= allowed, "messages out of nowhere", now - allowed)
        lost = allowed - now
        promise(
            "Conservation",
            self.anything_may_vanish or lost <= self.may_vanish,
            "lost",
            lost - self.may_vanish,
        )
        promise("SettledIsFinal", not now & self.acked, "acked, and still there", now & self.acked)
        self.ids = now
        self.may_vanish, self.may_appear, self.anything_may_vanish = set(), set(), self.lossy

    def _groups(self) -> None:
        running: dict[tuple[int, str], int] = {}
        for holder in self.holders.values():
            if holder.group is not None and holder.deadline_ms > self.stamp.lease_ms:
                key = (holder.uid, holder.group)
                running[key] = running.get(key, 0) + 1
                promise("GroupLimit", running[key] <= self.group_limit_max, key, running[key])


def dead_exactly_once(seen: Mapping[str, Mapping[api.State, Sequence[api.Peeked]]], wall_ms: int) -> None:
    """DlqExact: whatever is parked or died elsewhere says why, whence and when."""
    for queue, states in seen.items():
        for messages in states.values():
            for message in messages:
                if message.state is api.State.PARKED or message.origin is not None:
                    promise("DlqExact", message.reason in ("expired", "failed", "rejected"), queue, message)
                    promise("DlqExact", message.origin is not None, queue, message)
                    promise("DlqExact", 0 < message.died_ms <= wall_ms, queue, message)
                    promise("DlqExact", 1 <= len(message.history) <= 10, queue, message)
