"""Leases: granting, giving back, touching, expiring.

A lease is over at deadline <= now on the lease clock, whether or not it was swept; only its timer sweeps it. Attempts
grow with fail and expiry, deliveries with every lease. Source of the rules: docs/guarantees.md, "Leases".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from walrq import api
from walrq.api import Attempt, SettleKind
from walrq.errors import Code, Overloaded
from walrq.ids import TASKS_UID
from walrq.limits import ATTEMPTS_KEPT_MAX, POLL_BYTES_MAX
from walrq.queues import commands, death, pushes
from walrq.queues.batch import LEASED, Lease, Run
from walrq.queues.effects import Grant, Granted
from walrq.queues.queue import HEADER_PAGE, PAGE_SHIFT, Queue
from walrq.queues.sessions import Held
from walrq.queues.timers import LEASE_ENDS

if TYPE_CHECKING:
    from walrq.queues.machine import Machine

_OK: Final = 0
_EXPIRED: Final = int(Code.RECEIPT_EXPIRED)
_INVALID: Final = int(Code.INVALID_ARGUMENT)
# Doubling a back-off this often exceeds every bound; keeps the shift small however many attempts there were.
_DOUBLINGS_MAX: Final = 48


def grant(m: Machine, command: commands.Lease) -> Granted:
    """Lease from the first queue that has something."""
    now = m.now
    parked_ms = max(0, now - command.arrived_ms)
    for name in command.queues:
        queue = m.queues.get(name)
        if queue is None or queue.settings.paused or not queue.ready:
            continue
        limit = command.max_messages
        if command.into is not None:
            moved = pushes.hand_on(m, queue, command.into, limit)
            if moved:
                return Granted(tuple(moved), parked_ms, 0)
            continue
        settings = queue.settings
        if settings.max_in_flight is not None:
            limit = min(limit, settings.max_in_flight - queue.leased)
            if limit <= 0:
                continue
        if m.tally.leases >= m.bounds.in_flight_runs_max:
            raise Overloaded(
                f"{m.bounds.in_flight_runs_max} leases are in flight, no more are allowed",
                limit="in_flight_runs_max",
            )
        visibility = command.visibility_ms if command.visibility_ms is not None else settings.visibility_ms
        grants = _lease(m, queue, limit, now + visibility, command.worker, command.numbered)
        if grants:
            return Granted(tuple(grants), parked_ms, visibility)
    return Granted((), parked_ms, 0)


def _lease(
    m: Machine, queue: Queue, limit: int, deadline: int, worker: str | None, numbered: bool = False
) -> list[Grant]:
    """Lease what is next in one queue, at most `limit` messages."""
    fence = (m.index, m.ordinal)
    grants: list[Grant] = []
    add_timer = m.lease_timers.add
    uid = queue.uid
    tally = m.tally

    def place(run: Run) -> None:
        # inv: Exclusive  (`take` hands over ready runs only, each to one lease)
        # inv: ReceiptsRise  (lease number, delivery and fence: each larger than any before)
        number = queue.next_lease
        queue.next_lease = number + 1
        lease = Lease(number, run.batch, run.first, run.last - run.first + 1, fence, worker)
        run.delivery += 1
        queue.delivered += lease.count
        queue.leases[number] = lease
        tally.leases += 1
        if numbered:
            tally.tasks_given = lease.task = tally.tasks_given + 1
            tally.tasks[lease.task] = (uid, number)
        queue.put_leased(run, lease, deadline)
        add_timer(deadline, uid, LEASE_ENDS, number, lease)
        grants.append(_grant(queue, run, lease))

    queue.mark(HEADER_PAGE)
    if numbered:
        room = POLL_BYTES_MAX
        while len(grants) < limit and room > 0 and queue.take(1, room if grants else POLL_BYTES_MAX, place):
            room -= queue.leases[grants[-1].lease].batch.bytes_of(0, 0)
    else:
        queue.take(limit, POLL_BYTES_MAX, place)
    return grants


def _grant(queue: Queue, run: Run, lease: Lease) -> Grant:
    batch = lease.batch
    return Grant(
        queue.name,
        queue.uid,
        lease.number,
        batch.index,
        batch.ordinal,
        batch.base + lease.first,
        lease.count,
        batch.id_of(queue.uid, lease.first),
        run.delivery,
        run.attempts,
        lease.fence,
        batch.priority,
        batch.pushed_ms,
        run.group,
        lease.task,
    )


def again(m: Machine, held: Held) -> Granted:
    """The answer of a repeated lease request: what is still held in full, and what is not."""
    grants = []
    ended = []
    for uid, number in held.leases:
        queue = m.by_uid.get(uid)
        lease = queue.leases.get(number) if queue is not None else None
        if queue is not None and lease is not None:
            outstanding = sum(run.last - run.first + 1 for run in lease.runs if run.deadline > m.now)
            if outstanding == lease.count:
                grants.append(_grant(queue, lease.runs[0], lease))
                continue
        ended.append(commands.Target(uid, number))
    return Granted(tuple(grants), held.parked_ms, held.visibility_ms, tuple(ended))


def named(m: Machine, queue: Queue, target: commands.Target) -> Lease | None:
    """The lease of `queue` that a target names; None when there is none, or none any more."""
    # inv: AckFenced  (another incarnation's or another delivery's receipt finds nothing)
    number = target.lease
    if target.uid != queue.uid:
        place = m.tally.tasks.get(number) if target.uid == TASKS_UID else None
        if place is None or place[0] != queue.uid:
            return None
        number = place[1]
    return queue.leases.get(number)


def select(m: Machine, lease: Lease | None, target: commands.Target) -> tuple[int, list[tuple[Run, int, int]]]:
    """(code, outstanding stretches that a target names of its lease); nothing is changed."""
    if lease is None:
        return _EXPIRED, []
    # inv: AckBeforeDeadline  (a run whose deadline passed is not there, swept or not)
    now = m.now
    if target.ranges is None:
        whole = [(run, run.first, run.last) for run in lease.runs if run.deadline > now]
        return (_OK, whole) if whole else (_EXPIRED, [])
    wanted = _union(target.ranges)
    if not wanted or wanted[0][0] < 0 or wanted[-1][1] >= lease.count:
        return _INVALID, []
    stretches: list[tuple[Run, int, int]] = []
    found = 0
    for low, high in wanted:
        low += lease.first
        high += lease.first
        for run in lease.overlapping(low, high):
            if run.deadline > now:
                first = max(low, run.first)
                last = min(high, run.last)
                stretches.append((run, first, last))
                found += last - first + 1
    if found != sum(high - low + 1 for low, high in wanted):
        return _EXPIRED, []
    return _OK, stretches


def _union(ranges: Iterable[api.Range]) -> list[api.Range]:
    """Ranges sorted and merged; empty when one of them runs backwards."""
    merged: list[api.Range] = []
    for low, high in sorted(ranges):
        if low > high:
            return []
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


def _carved(queue: Queue, stretches: list[tuple[Run, int, int]]) -> Iterable[Run]:
    """Each stretch as a limbo run, in order of offset."""
    behind = 0
    for run, first, last in stretches:
        if run.state != LEASED:
            # The stretch before was carved out of it: the rest begins right behind.
            assert run.batch.pieces is not None
            run = run.batch.pieces[behind]
        yield queue.carve(run, first, last)
        behind = last + 1


def settle(m: Machine, command: commands.Settle) -> api.Settled:
    """Ack, release, fail, reject."""
    queue = m.require(command.queue)
    kind = command.kind
    codes = []
    now = m.now
    for target in command.targets:
        lease = named(m, queue, target)
        if kind == SettleKind.ACK and target.ranges is None:
            # The common path, without the walk over stretches: a whole lease in one run.
            if lease is not None and len(lease.runs) == 1 and lease.runs[0].deadline > now:
                run = lease.runs[0]
                queue.acked += run.last - run.first + 1
                queue.withdraw(run)
                queue.finish(run)
                codes.append(_OK)
                continue
        code, stretches = select(m, lease, target)
        codes.append(code)
        if code:
            continue
        assert lease is not None
        if kind == SettleKind.ACK:
            for run in _carved(queue, stretches):
                queue.acked += run.last - run.first + 1
                queue.finish(run)
        else:
            worker = lease.worker
            for run in list(_carved(queue, stretches)):
                _give_back(m, queue, run, command, worker)
    if queue.ready:
        # A settled message may have made room for its group, or below max_in_flight.
        m.effects.woken.add(queue.name)
    return api.Settled(tuple(codes))


def _give_back(m: Machine, queue: Queue, run: Run, command: commands.Settle, worker: str | None) -> None:
    """Release, fail or reject one limbo run."""
    if command.kind == SettleKind.RELEASE:
        come_back(m, queue, run)
        return
    if command.kind == SettleKind.REJECT:
        remember(run, Attempt(m.wall, "rejected", worker, command.error_type, command.error_text))
        die(m, queue, run, "rejected")
        return
    remember(run, Attempt(m.wall, "failed", worker, command.error_type, command.error_text))
    run.attempts += 1
    if run.attempts >= limit_of(queue, run):
        die(m, queue, run, "failed")
        return
    delay = command.delay_ms if command.delay_ms is not None else backoff(queue, run.attempts)
    if is_over(m, run):
        queue.finish(run)
    elif delay:
        queue.put_backoff(run, m.now + delay)
    else:
        if run.group is None and queue.cold and queue.border(run.batch.priority) is not None:
            death.send_behind(m, queue, run)
            return
        if run.group is None:
            # Behind all that is ready now, so that a poison message cannot hold the line.
            run.order = queue.take_sequences(run.last - run.first + 1)
        come_back(m, queue, run)


def backoff(queue: Queue, attempts: int) -> int:
    """Milliseconds to wait after this many counted attempts."""
    settings = queue.settings
    return min(settings.backoff_max_ms, settings.backoff_ms << min(attempts - 1, _DOUBLINGS_MAX))


def limit_of(queue: Queue, run: Run) -> int:
    """Counted attempts at which a run's messages are dead."""
    return run.batch.max_attempts or queue.settings.max_deliveries


def remember(run: Run, attempt: Attempt) -> None:
    """Add to the history, which keeps the newest."""
    run.history = (*run.history[-(ATTEMPTS_KEPT_MAX - 1) :], attempt)


def is_over(m: Machine, run: Run) -> bool:
    """The batch's time to live has passed."""
    return 0 < run.batch.expire_ms <= m.wall


def come_back(m: Machine, queue: Queue, run: Run) -> None:
    """A limbo run becomes ready at its place, unless its time to live has passed."""
    if is_over(m, run):
        queue.finish(run)
    else:
        queue.put_ready(run)
        m.effects.woken.add(queue.name)


def die(m: Machine, queue: Queue, run: Run, reason: str) -> None:
    """A limbo run is dead, unless its time to live has passed."""
    if is_over(m, run):
        queue.finish(run)
    else:
        death.bury(m, queue, run, reason)


def expire(m: Machine, queue: Queue, lease: Lease) -> None:
    """Sweep the runs of a lease that are over: each counts as an attempt."""
    now = m.now
    for run in [run for run in lease.runs if run.deadline <= now]:
        if m.notes is not None:
            m.notes.append(("expired", queue.name, lease, run.last - run.first + 1))
        queue.withdraw(run)
        remember(run, Attempt(m.wall, "expired", lease.worker))
        # inv: Bound
        run.attempts += 1
        if run.attempts >= limit_of(queue, run):
            die(m, queue, run, "expired")
        else:
            come_back(m, queue, run)
    if queue.ready:
        m.effects.woken.add(queue.name)


def release_all(m: Machine, uid: int, number: int) -> None:
    """Give everything outstanding of a lease back, free of charge (it may be gone: nothing happens then)."""
    if uid == TASKS_UID:
        uid, number = m.tally.tasks.get(number, (uid, number))
    queue = m.by_uid.get(uid)
    lease = queue.leases.get(number) if queue is not None else None
    if queue is None or lease is None:
        return
    for run in list(lease.runs):
        if run.deadline > m.now:
            queue.withdraw(run)
            come_back(m, queue, run)


def undo(m: Machine, command: commands.Undo) -> api.Done:
    """Leases whose reply could not be delivered end as if they had never been; the delivery still counts as a fence."""
    for target in command.targets:
        release_all(m, target.uid, target.lease)
    return api.Done(len(command.targets))


def touch(m: Machine, command: commands.Touch) -> api.Touched:
    """Let leases end later, never earlier."""
    queue = m.require(command.queue)
    deadline = m.now + command.visibility_ms
    codes = []
    remaining = []
    for target in command.targets:
        lease = named(m, queue, target)
        code, stretches = select(m, lease, target)
        codes.append(code)
        if code:
            remaining.append(0)
            continue
        assert lease is not None
        ends = []
        behind = 0
        moved = False
        for run, first, last in stretches:
            if run.state != LEASED:
                assert run.batch.pieces is not None
                run = run.batch.pieces[behind]
            behind = last + 1
            # inv: NotEarly
            if run.deadline < deadline:
                if (first, last) != (run.first, run.last):
                    piece = queue.carve(run, first, last)
                    # The carve may have ended the lease's entry for a moment; its number stays.
                    queue.leases[lease.number] = lease
                    queue.put_leased(piece, lease, deadline)
                else:
                    queue.mark(run.batch.seq >> PAGE_SHIFT)
                    run.deadline = deadline
                moved = True
            ends.append(max(run.deadline, deadline))
        if moved:
            m.lease_timers.add(deadline, queue.uid, LEASE_ENDS, lease.number, lease)
        remaining.append(min(ends) - m.now)
    return api.Touched(tuple(codes), tuple(remaining))
