"""Client processes of the simulator: they push, poll, settle, touch, abandon and retry, by a seed.

A process has a session and up to a few requests under way. A request without an answer is sent again under the same
(session, sequence) until it has one: after a crash, after a lost reply, beside a late copy of itself, to another node.
A process speaks to the node that it believes to lead, goes where it is redirected, and tries another one when nobody
answers. What it was told is kept in one `Account`, which is compared with what is there at the end.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import attrs

from walrq import api
from walrq.errors import Code
from walrq.queues import commands as c
from walrq.queues import effects
from walrq.simulator.promises import payloads, promise

QUEUES: Final = ("jobs", "mail", "keep")
GROUPS: Final = ("red", "green", "blue")
# Answers after which it is not known whether the request took effect.
UNKNOWN: Final = frozenset({int(Code.SESSION_ENDED), int(Code.OUTCOME_UNKNOWN)})
WINDOW_MAX: Final = 3
TIMEOUT_US: Final = 150_000
# So often a request follows where it is sent on, before it waits for its time-out.
HOPS_MAX: Final = 4
# Leases of the drainer: longer than an ack takes on its way, with a few retries.
DRAIN_MS: Final = 3_000


@attrs.define(eq=False)
class Request:
    """One request under way.

    Attributes:
        sent_us: when it was first sent, in true time.
        tries: time-outs and one.
        copies: how often it was sent in all.
        hops: how often it was sent on since the last time-out.
    """

    process: Process
    command: c.Command
    session: int | None
    sequence: int
    sent_us: int
    tries: int = 0
    copies: int = 0
    hops: int = 0

    def __str__(self) -> str:
        return f"{self.process.name}#{self.sequence} {type(self.command).__name__}"


class World(Protocol):
    """What a process can do to the world: send, and be woken."""

    now_us: int

    def draw(self, name: str) -> random.Random: ...

    def at(self, delay_us: int, action: Callable[[], None]) -> None: ...

    def send(self, request: Request) -> None: ...

    def say(self, text: str) -> None: ...

    def mark(self, name: str, times: int = 1) -> None: ...

    def wall_ms(self) -> int: ...

    def read(self, run: effects.Grant) -> list[bytes]: ...

    def another(self, server: str, draw: random.Random) -> str: ...

    def ask_read(self, draw: random.Random) -> None: ...


@attrs.define
class Account:
    """What the processes were told, by value (payload).

    Attributes:
        promised: pushes answered OK.
        perhaps: pushes whose outcome nobody told.
        settled: acks answered OK.
        excused: may be gone all the same: an ack or cancel of unknown outcome, a cancel, a ttl.
        drained: what was found at the end.
    """

    promised: set[bytes] = attrs.field(factory=set)
    perhaps: set[bytes] = attrs.field(factory=set)
    settled: set[bytes] = attrs.field(factory=set)
    excused: set[bytes] = attrs.field(factory=set)
    drained: list[bytes] = attrs.field(factory=list)

    def check(self) -> None:
        """Everything acknowledged is there exactly once, nothing was invented."""
        found = set(self.drained)
        promise("AtMostOnce", len(found) == len(self.drained), "drained twice", len(self.drained) - len(found))
        promise("SettledIsFinal", not found & self.settled, "acked and drained", found & self.settled)
        lost = self.promised - self.settled - self.excused - found
        promise("NoSilentLoss", not lost, "acknowledged and not there", sorted(lost))
        phantoms = found - self.promised - self.perhaps
        promise("NoPhantom", not phantoms, "never pushed, or refused", sorted(phantoms))


@attrs.define(eq=False)
class Hold:
    """One leased run, in the hands of a worker."""

    queue: str
    target: c.Target
    values: list[bytes]
    ids: range
    left: set[int]


class Process:
    """One client. `stop` lets it finish what is under way and do nothing new."""

    def __init__(self, world: World, name: str, account: Account, pace_us: int) -> None:
        self.name = name
        self.account = account
        self.stopped = False
        self.visibilities_ms: tuple[int, ...] = (20, 60, 150, 400, 1_200)
        # Whom it takes for the leader.
        self.server = ""
        self.requests: dict[int, Request] = {}
        self._world = world
        self._draw = world.draw(f"workload/{name}")
        self._pace_us = pace_us
        self._session: int | None = None
        self._opening = False
        self._next = 1
        self._values = 0
        self._holds: list[Hold] = []
        self._ids: list[tuple[str, int]] = []
        self._polls: list[int] = []
        self._value_of: dict[int, bytes] = {}
        self._leases: dict[tuple[int, int], list[bytes]] = {}

    @property
    def is_idle(self) -> bool:
        """Nothing under way."""
        return not self.requests

    # --- requests -------------------------------------------------------------------------------------------
    def wake(self) -> None:
        """Do the next thing, and come again."""
        if self.stopped:
            return
        if self._session is None:
            if not self._opening:
                self._opening = True
                self._ask(c.OpenSession(), session=None)
        elif len(self.requests) < WINDOW_MAX:
            self.act()
            if self._draw.random() < 0.05:
                self._world.ask_read(self._draw)
        self._world.at(int(self._pace_us * (0.2 + 1.6 * self._draw.random())), self.wake)

    def _ask(self, command: c.Command, *, session: int | None) -> None:
        request = Request(self, command, session, self._next, self._world.now_us)
        self._next += 1
        self.requests[request.sequence] = request
        self._send(request)

    def _send(self, request: Request) -> None:
        request.tries += 1
        request.copies += 1
        request.hops = 0
        self._world.send(request)
        tries = request.tries
        self._world.at(TIMEOUT_US * min(tries, 4), lambda: self._timed_out(request, tries))

    def _timed_out(self, request: Request, tries: int) -> None:
        """No answer: once more, under the same number."""
        if self.requests.get(request.sequence) is request and request.tries == tries:
            self.server = self._world.another(self.server, self._draw)
            self._world.say(f"{request} is sent again, to {self.server} ({tries} tries)")
            self._send(request)

    def redirected(self, request: Request, leader: str | None, *, lost: bool) -> None:
        """The node it was sent to does not lead: it goes on to the one that does. `lost`: it may have happened."""
        if self.requests.get(request.sequence) is not request or request.hops >= HOPS_MAX:
            return
        if request.session is None and lost:
            # Without a session every copy counts for itself.
            return
        request.hops += 1
        request.copies += 1
        self.server = leader if leader is not None else self._world.another(self.server, self._draw)
        self._world.send(request)

    def tagged(self, request: Request) -> c.Tagged:
        """The request as it goes into the log."""
        if request.session is None:
            return c.Tagged(request.command)
        lowest = min((r.sequence for r in self.requests.values() if r.session == request.session), default=self._next)
        return c.Tagged(request.command, request.session, request.sequence, min(lowest, request.sequence))

    def answered(self, request: Request, result: effects.Result) -> None:
        """A reply arrived; only the first one counts."""
        if self.requests.get(request.sequence) is not request:
            return
        if isinstance(result, api.Failed):
            if result.code == Code.DISK_FULL and request.copies > 1:
                # An earlier copy may be on its way into the log: only the log's own answer is definite now.
                return
            self._world.say(f"{request} failed: {Code(result.code).name}")
            del self.requests[request.sequence]
            self._failed(request, result)
            return
        del self.requests[request.sequence]
        self._done(request, result)

    def _failed(self, request: Request, result: api.Failed) -> None:
        command = request.command
        if isinstance(command, c.OpenSession):
            self._opening = False
        if result.code == Code.SESSION_ENDED:
            self._world.mark("session ended")
            if request.session == self._session:
                self._session = None
        if result.code not in UNKNOWN:
            return
        if isinstance(command, c.Push):
            self.account.perhaps.update(payloads(command.columns))
        elif isinstance(command, c.Settle):
            for target in command.targets:
                self.account.excused.update(self._named(target))
        elif isinstance(command, c.Cancel):
            self.account.excused.update(self._cancelled(command))

    # --- answers --------------------------------------------------------------------------------------------
    def _done(self, request: Request, result: effects.Result) -> None:
        match request.command, result:
            case c.OpenSession(), api.SessionOpened(session):
                self._session, self._opening = session, False
            case c.Push() as push, api.Pushed():
                self._pushed(push, result)
            case c.Lease(), effects.Granted():
                self._polls.append(request.sequence)
                for run in result.runs:
                    self._leased(run)
            case c.Settle() as settle, api.Settled():
                if settle.kind is api.SettleKind.ACK:
                    for target, code in zip(settle.targets, result.codes, strict=True):
                        if code == 0:
                            self.account.settled.update(self._named(target))
            case c.Cancel() as cancel, _:
                self.account.excused.update(self._cancelled(cancel))
            case _:
                pass

    def _pushed(self, push: c.Push, result: api.Pushed) -> None:
        ids = result.ids or tuple(range(result.first_id, result.first_id + result.count))
        for position, value in enumerate(payloads(push.columns)):
            if position not in result.duplicates:
                self.account.promised.add(value)
                self._ids.append((push.queue, ids[position]))
                self._value_of[ids[position]] = value
                if push.ttl_ms is not None:
                    self.account.excused.add(value)
        del self._ids[:-20]

    def _leased(self, run: effects.Grant) -> None:
        values = self._world.read(run)
        target = c.Target(run.uid, run.lease)
        self._leases[run.uid, run.lease] = values
        if self._draw.random() < 0.3:
            self._world.say(f"{self.name} abandons {run.queue}/{run.lease}")
            if self._draw.random() < 0.7:
                return
        ids = range(run.first_id, run.first_id + run.count)
        self._holds.append(Hold(run.queue, target, values, ids, set(range(run.count))))

    # --- what to do -----------------------------------------------------------------------------------------
    def act(self) -> None:
        """One new request."""
        draw = self._draw
        chance = draw.random()
        if self._holds and chance < 0.45:
            hold = draw.choice(self._holds)
            self._touch(hold) if chance < 0.06 else self._settle(hold)
        elif chance < 0.68:
            self._push()
        elif chance < 0.93 or not self._ids:
            self._poll()
        else:
            self._rarely()

    def _push(self) -> None:
        draw = self._draw
        count = draw.choice((1, 1, 1, 2, 5))
        values = []
        for _ in range(count):
            self._values += 1
            values.append(b"%s.%d" % (self.name.encode(), self._values) + b"." * draw.choice((0, 10, 100, 800)))
        grouped = draw.random() < 0.3
        delay_ms = draw.randrange(1, 400) if draw.random() < 0.2 else None
        deliver_at_ms = None
        if delay_ms is None and draw.random() < 0.05:
            deliver_at_ms = self._world.wall_ms() + draw.randrange(1, 300)
        push = c.Push(
            queue=draw.choice(QUEUES),
            columns=columns(
                values,
                groups=tuple(draw.choice((None, *GROUPS)) for _ in values) if grouped else None,
                dedup=tuple(draw.choice((None, "x", "y", "z")) for _ in values) if draw.random() < 0.1 else None,
            ),
            priority=draw.choice((0, 0, 0, 1, 7)),
            delay_ms=delay_ms,
            deliver_at_ms=deliver_at_ms,
            ttl_ms=draw.randrange(50, 500) if draw.random() < 0.04 else None,
            max_attempts=draw.choice((1, 2)) if draw.random() < 0.1 else None,
        )
        self._ask(push, session=self._session)

    def _poll(self) -> None:
        draw = self._draw
        name = draw.choice(QUEUES)
        queues = (name,) if draw.random() < 0.6 else (f"{name}.dlq", *draw.sample(QUEUES, 2))
        lease = c.Lease(
            queues=queues,
            max_messages=draw.choice((1, 2, 4, 10)),
            visibility_ms=draw.choice(self.visibilities_ms),
            arrived_ms=0,
            worker=self.name,
        )
        self._ask(lease, session=self._session)

    def _settle(self, hold: Hold) -> None:
        draw = self._draw
        part = sorted(hold.left)
        if len(part) > 1 and draw.random() < 0.4:
            part = part[: draw.randrange(1, len(part))]
        hold.left -= set(part)
        if not hold.left:
            self._holds.remove(hold)
        ranges = tuple((k, k) for k in part)
        kind = draw.choices(list(api.SettleKind), (70, 8, 15, 7))[0]
        settle = c.Settle(
            queue=hold.queue,
            kind=kind,
            targets=(c.Target(hold.target.uid, hold.target.lease, ranges),),
            delay_ms=draw.choice((None, 0, 30)) if kind is api.SettleKind.FAIL else None,
            error_text="it did not work" if kind is api.SettleKind.FAIL else None,
        )
        self._ask(settle, session=self._session)

    def _touch(self, hold: Hold) -> None:
        ranges = tuple((k, k) for k in sorted(hold.left))
        targets = (c.Target(hold.target.uid, hold.target.lease, ranges),)
        self._ask(c.Touch(hold.queue, targets, self._draw.choice((10, 200, 700))), session=self._session)

    def _rarely(self) -> None:
        draw = self._draw
        match draw.randrange(4):
            case 0 if self._polls:
                self._ask(c.Forget(self._polls[-1]), session=self._session)
            case 1:
                self._ask(c.Redrive(draw.choice(QUEUES), 5), session=self._session)
            case 2:
                queue, identifier = draw.choice(self._ids)
                self._ask(c.Cancel(queue, (identifier,)), session=self._session)
            case _:
                queue, identifier = draw.choice(self._ids)
                at_ms = self._world.wall_ms() + draw.randrange(-50, 200)
                self._ask(c.Reschedule(queue, identifier, max(0, at_ms)), session=self._session)

    # --- what was whose -------------------------------------------------------------------------------------
    def _named(self, target: c.Target) -> list[bytes]:
        values = self._leases[target.uid, target.lease]
        if target.ranges is None:
            return values
        return [values[k] for first, last in target.ranges for k in range(first, last + 1)]

    def _cancelled(self, cancel: c.Cancel) -> list[bytes]:
        return [self._value_of[identifier] for identifier in cancel.ids]


class Drainer(Process):
    """Empties every queue at the end, dead-letter queues and parked messages too."""

    def __init__(self, world: World, account: Account, queues: Sequence[str]) -> None:
        super().__init__(world, "drain", account, 4_000)
        self._queues = sorted({*queues, *QUEUES})
        # Until when each of its leases runs for sure.
        self._until_us: dict[tuple[int, int], int] = {}

    def act(self) -> None:
        """Ack what is held, else poll the next queue; now and then let parked messages flow."""
        if self._holds:
            hold = self._holds.pop()
            settle = c.Settle(hold.queue, api.SettleKind.ACK, (hold.target,))
            self._ask(settle, session=self._session)
            return
        queue = self._draw.choice(self._queues)
        if self._draw.random() < 0.2:
            self._ask(c.Redrive(queue, 1000), session=self._session)
        else:
            self._ask(c.Lease((queue,), 50, DRAIN_MS, 0, self.name), session=self._session)

    def _done(self, request: Request, result: effects.Result) -> None:
        if isinstance(request.command, c.Settle):
            target = request.command.targets[0]
            if result == api.Settled((0,)):
                self.account.drained += self._named(target)
            else:
                # Then it comes again.
                late = self._world.now_us > self._until_us[target.uid, target.lease]
                promise("Drains", late, "an ack in time was refused", request, result)
        elif isinstance(request.command, c.Lease) and isinstance(result, effects.Granted):
            for run in result.runs:
                self._until_us[run.uid, run.lease] = request.sent_us + DRAIN_MS * 990
            super()._done(request, result)
        else:
            super()._done(request, result)

    def _leased(self, run: effects.Grant) -> None:
        target = c.Target(run.uid, run.lease)
        values = self._leases[run.uid, run.lease] = self._world.read(run)
        ids = range(run.first_id, run.first_id + run.count)
        self._holds.append(Hold(run.queue, target, values, ids, set(range(run.count))))


def columns(
    values: Sequence[bytes],
    *,
    groups: tuple[str | None, ...] | None = None,
    dedup: tuple[str | None, ...] | None = None,
) -> api.Columns:
    """A body with these payloads."""
    ends = [sum(map(len, values[: k + 1])) for k in range(len(values))]
    return api.Columns(b"".join(values), struct.pack(f"<{len(ends)}I", *ends), groups=groups, dedup=dedup)
