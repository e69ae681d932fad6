"""A small workbench for example tests: one machine, a clock turned by hand, one command an entry."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from walrq import api
from walrq.api import SettleKind
from walrq.queues import commands as c
from walrq.queues import effects, image, reads
from walrq.queues.machine import Bounds, Machine

WALL = 1_700_000_000_000
LEASE = 1_000_000


def columns(
    payloads: Sequence[bytes],
    groups: Sequence[str | None] | None = None,
    dedup: Sequence[str | None] | None = None,
) -> api.Columns:
    """A body."""
    ends = [sum(map(len, payloads[: k + 1])) for k in range(len(payloads))]
    return api.Columns(
        b"".join(payloads),
        struct.pack(f"<{len(ends)}I", *ends),
        groups=None if groups is None else tuple(groups),
        dedup=None if dedup is None else tuple(dedup),
    )


class Bench:
    """The machine under the hands of a test. Times are relative to the start, in ms."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or Bounds()
        self.machine = Machine(self.bounds)
        self.index = 0
        self.lease_ms = LEASE
        self.wall_ms = WALL

    # --- entries ------------------------------------------------------------------------------------------
    def wait(self, ms: int, wall_ms: int | None = None) -> None:
        """Let both clocks go on by `ms` (the wall clock by another amount, if given); nothing is applied."""
        self.lease_ms += ms
        self.wall_ms += ms if wall_ms is None else wall_ms

    def tick(self) -> None:
        """The reaper's empty entry."""
        self.apply()

    def apply(self, *entry: c.Tagged) -> list[effects.Result]:
        """One entry."""
        self.index += 1
        return self.machine.apply(self.index, c.Stamp(self.lease_ms, self.wall_ms), entry)

    def do(self, command: c.Command, session: int | None = None, sequence: int = 0, lowest: int = 0) -> Any:
        """One command in an entry of its own; its answer."""
        return self.apply(c.Tagged(command, session, sequence, lowest))[0]

    def restart(self) -> None:
        """Load the machine from its own image."""
        self.machine = image.load(list(image.full_pages(self.machine).items()), self.bounds)

    # --- the commands, in a few letters -------------------------------------------------------------------
    def push(
        self,
        queue: str = "q",
        payloads: int | Sequence[bytes] = 1,
        *,
        groups: Sequence[str | None] | None = None,
        dedup: Sequence[str | None] | None = None,
        **fields: Any,
    ) -> Any:
        """Push `payloads` (a number: so many one-byte messages)."""
        bodies = [b"x"] * payloads if isinstance(payloads, int) else list(payloads)
        return self.do(c.Push(queue, columns(bodies, groups, dedup), **fields))

    def ids(self, *args: Any, **kwargs: Any) -> list[int]:
        """Push, and the ids of the new messages."""
        pushed = self.push(*args, **kwargs)
        assert isinstance(pushed, api.Pushed), pushed
        return list(pushed.ids or range(pushed.first_id, pushed.first_id + pushed.count))

    def lease(
        self,
        queue: str | tuple[str, ...] = "q",
        limit: int = 10,
        visibility_ms: int | None = 1_000,
        worker: str | None = None,
    ) -> list[effects.Grant]:
        """Lease; the runs."""
        queues = (queue,) if isinstance(queue, str) else queue
        granted = self.do(c.Lease(queues, limit, visibility_ms, self.lease_ms, worker))
        assert isinstance(granted, effects.Granted), granted
        return list(granted.runs)

    def take(self, *args: Any, **kwargs: Any) -> list[int]:
        """Lease; the ids in the order of delivery."""
        return [run.first_id + k for run in self.lease(*args, **kwargs) for k in range(run.count)]

    def settle(
        self,
        run: effects.Grant,
        kind: SettleKind = SettleKind.ACK,
        ranges: tuple[api.Range, ...] | None = None,
        *,
        queue: str | None = None,
        **fields: Any,
    ) -> int:
        """Give a run back; the code."""
        target = c.Target(run.uid, run.lease, ranges)
        settled = self.do(c.Settle(queue or run.queue, kind, (target,), **fields))
        assert isinstance(settled, api.Settled), settled
        return settled.codes[0]

    def ack(self, run: effects.Grant, ranges: tuple[api.Range, ...] | None = None) -> int:
        """Ack; the code."""
        return self.settle(run, SettleKind.ACK, ranges)

    def fail(self, run: effects.Grant, delay_ms: int | None = None, **fields: Any) -> int:
        """Fail; the code."""
        return self.settle(run, SettleKind.FAIL, fields.pop("ranges", None), delay_ms=delay_ms, **fields)

    def release(self, run: effects.Grant, ranges: tuple[api.Range, ...] | None = None) -> int:
        """Release; the code."""
        return self.settle(run, SettleKind.RELEASE, ranges)

    def reject(self, run: effects.Grant, **fields: Any) -> int:
        """Reject; the code."""
        return self.settle(run, SettleKind.REJECT, **fields)

    def touch(
        self, run: effects.Grant, visibility_ms: int, ranges: tuple[api.Range, ...] | None = None
    ) -> tuple[int, int]:
        """Touch; code and what is left."""
        touched = self.do(c.Touch(run.queue, (c.Target(run.uid, run.lease, ranges),), visibility_ms))
        assert isinstance(touched, api.Touched), touched
        return touched.codes[0], touched.remaining_ms[0]

    def set(self, queue: str = "q", **settings: Any) -> None:
        """Create or change a queue."""
        assert isinstance(self.do(c.SetQueue(queue, settings)), api.Done)

    def session(self) -> int:
        """Open a session."""
        return int(self.do(c.OpenSession()).session)

    # --- reads --------------------------------------------------------------------------------------------
    def peek(self, state: api.State = api.State.READY, queue: str = "q") -> list[api.Peeked]:
        """All messages of one state."""
        return [seen.peeked for seen in reads.peek(self.machine, api.Peek(queue, state, 1_000))[0]]

    def dead(self, queue: str = "q", where: api.Filter | None = None) -> list[api.Peeked]:
        """All dead messages of a queue."""
        return [seen.peeked for seen in reads.dead(self.machine, api.ListDead(queue, 1_000, 0, where))[0]]

    def counts(self, queue: str = "q") -> tuple[int, int, int, int]:
        """(ready, delayed, leased, parked)."""
        shown = reads.show(self.machine, queue)
        return shown.ready, shown.delayed, shown.leased, shown.parked

    def show(self, queue: str = "q") -> api.QueueInfo:
        """Counts and settings."""
        return reads.show(self.machine, queue)
