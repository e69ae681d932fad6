"""A clock that tests move: the servers', the clients' and the workers' of one test, all by the same amount.

    clock.advance(600)      ten minutes pass, and everything that is due within them happens, in order

Between two calls time runs on as it does. Within `advance` it stands still, apart from what `advance` moves: from one
due moment to the next (the end of a lease, a delayed message, the wake-up of a worker's lease keeper), and at each of
them it waits until what was due is done. So a keeper that extends a lease of 30 s every 10 s keeps it through
`advance(600)`, as it would through ten real minutes; and however long that took, the clock then shows 600 s more.

Who has something due:

- a *timeline*, that is a server: asked through `Timeline.settle`;
- a *sleeper*, that is a thread in `Clock.wait`: it has done what was due when it waits again, ends or calls `leave`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

import attrs

from walrq.client.clock import Clock
from walrq.errors import InvalidArgument

PATIENCE_S: Final = 10.0
# Clients that were just told something have so many times this long, in real time, to act on it before the clock goes
# on; again after each sign of life, but not for ever: a producer that never rests does not hold the clock up.
GRACE_S: Final = 0.005
GRACES: Final = 4
GRACES_PER_STEP_MAX: Final = 100
_LOOK_S: Final = 0.02
_LED: Final = ("monotonic", "wait", "leave")


@attrs.frozen
class Settled:
    """What a timeline says when everything due is done.

    Attributes:
        next_due: moment of the clock at which something is due next; infinity when nothing is.
        activity: numbers that change when clients were given something that they may act on.
    """

    next_due: float
    activity: tuple[int, ...]


class Timeline(Protocol):
    """Something with due moments of its own that runs on a `MovableClock`."""

    def settle(self, give_up_at: float) -> Settled:
        """Return when everything is done that is due by now.

        Args:
            give_up_at: of `time.monotonic`.

        Raises:
            ClockStuck: that moment came first.
        """
        ...


class ClockStuck(AssertionError):
    """`advance` waited for somebody who was woken and neither finished nor went back to sleep."""


@attrs.define(eq=False)
class _Sleeper:
    """One thread in `wait`, or on its way back to it."""

    thread: threading.Thread
    condition: threading.Condition
    until: float = math.inf
    waits: bool = False
    # How often it has begun to wait.
    rounds: int = 0


class MovableClock(Clock):
    """See the module. All methods may be called by any thread.

    Attributes:
        offset: seconds that it is ahead of real time; only `advance` changes it.
        advanced: seconds by which it was advanced in all.
        patience_s: real seconds that `advance` waits at one moment for what is due there.
    """

    # Invariant: `monotonic` never goes back. While it is not None it is what `monotonic` answers, and offset is what
    # it was ahead of real time at the last step.
    _stands_at: float | None = None

    def __init__(self, *, patience_s: float = PATIENCE_S) -> None:
        self.offset = 0.0
        self.advanced = 0.0
        self.patience_s = patience_s
        # The wall clock runs at the rate of the monotonic one, so that they never disagree about how much has passed.
        self._epoch = time.time() - time.monotonic()
        self._timelines: list[Timeline] = []
        self._followers: list[Clock] = []
        self._sleepers: dict[int, _Sleeper] = {}
        # Protects the sleepers. A sleeper takes it while it holds its condition, so never the other way round.
        self._news = threading.Condition(threading.Lock())
        self._moving = threading.Lock()
        # Of the timelines, when the clock stood still last.
        self._activity: list[tuple[int, ...]] = []

    # --- reading --------------------------------------------------------------------------------------------
    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        stands_at = self._stands_at
        return super().monotonic() if stands_at is None else stands_at

    @property
    def now(self) -> datetime:
        """What the wall clock shows, in UTC; good for `deliver_at=clock.now + timedelta(minutes=5)`."""
        return datetime.fromtimestamp(self.time(), UTC)

    def time(self) -> float:
        """Seconds since 1970."""
        return self._epoch + self.monotonic()

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return self.wall_ms_at(self.monotonic())

    def wall_ms_at(self, moment: float) -> int:
        """Milliseconds since 1970 at a moment of `monotonic`."""
        return int((self._epoch + moment) * 1000)

    @property
    def stands(self) -> bool:
        """Whether it moves only by the steps of an `advance` under way."""
        return self._stands_at is not None

    # --- sleeping -------------------------------------------------------------------------------------------
    def wait(self, condition: threading.Condition, until: float) -> None:
        """See `Clock.wait`. While `advance` moves the clock it ends early now and then; the caller looks again."""
        thread = threading.current_thread()
        key = threading.get_ident()
        with self._news:
            sleeper = self._sleepers.get(key)
            if sleeper is None or sleeper.thread is not thread:
                sleeper = self._sleepers[key] = _Sleeper(thread, condition)
            sleeper.condition = condition
            sleeper.until = until
            sleeper.rounds += 1
            sleeper.waits = True
            self._news.notify_all()
        try:
            super().wait(condition, until)
        finally:
            with self._news:
                sleeper.waits = False

    def leave(self, condition: threading.Condition) -> None:
        """See `Clock.leave`."""
        with self._news:
            for key in [key for key, sleeper in self._sleepers.items() if sleeper.condition is condition]:
                del self._sleepers[key]
            self._news.notify_all()

    # --- belonging ------------------------------------------------------------------------------------------
    def attach(self, timeline: Timeline) -> None:
        """From now on `advance` stops at its due moments."""
        self._timelines.append(timeline)

    def detach(self, timeline: Timeline) -> None:
        """It has ended, or does not count any more. Fine if it was not attached."""
        if timeline in self._timelines:
            self._timelines.remove(timeline)

    def lead(self, clock: Clock) -> None:
        """Let another clock be this one, whoever has it already: the default clock of clients made without `clock=`."""
        clock.offset = self.offset
        for name in _LED:
            setattr(clock, name, getattr(self, name))
        self._followers.append(clock)

    def let_go(self, clock: Clock) -> None:
        """The end of `lead`: it shows real time again."""
        self._followers.remove(clock)
        for name in _LED:
            delattr(clock, name)
        clock.offset = 0.0

    # --- moving ---------------------------------------------------------------------------------------------
    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, and return when everything that was due in them has happened.

        In asynchronous code, where this call would hold the event loop up, see `advance_async`.

        Raises:
            InvalidArgument: `seconds` is negative, infinite or not a number.
            ClockStuck: something that was due did not end within `patience_s` real seconds.
        """
        self._advance(seconds, lambda: False)

    def advance_until(self, condition: Callable[[], bool], at_most: float) -> float:
        """Let time pass until `condition` holds, at most `at_most` seconds; how many it were.

        Args:
            condition: looked at before the first and at every due moment, while the clock stands still.

        Raises:
            InvalidArgument, ClockStuck: as `advance`.
        """
        return self._advance(at_most, condition)

    def _advance(self, seconds: float, enough: Callable[[], bool]) -> float:
        if not (math.isfinite(seconds) and seconds >= 0):
            raise InvalidArgument(f"seconds is {seconds}, it must be a finite number, 0 or more", field="seconds")
        with self._moving:
            self._forget_own_thread()
            start = now = self.monotonic()
            target = now + seconds
            try:
                self._stands_at = now
                due = self._settle(first=True)
                while now < target and not enough():
                    now = min(target, max(now, due))
                    self._stand_at(now)
                    due = self._settle()
            finally:
                self._stand_at(now)
                self._stands_at = None
                self.advanced += now - start
            return now - start

    async def advance_async(self, seconds: float) -> None:
        """`advance`, for a coroutine under trio or asyncio: other tasks run meanwhile."""
        from anyio import to_thread

        await to_thread.run_sync(self.advance, seconds)

    def _forget_own_thread(self) -> None:
        with self._news:
            self._sleepers.pop(threading.get_ident(), None)

    def _stand_at(self, moment: float) -> None:
        self._stands_at = moment
        self.offset = moment - time.monotonic()
        for clock in self._followers:
            clock.offset = self.offset

    def _settle(self, *, first: bool = False) -> float:
        """Wait until all that is due by now is done; the moment at which something is due next.

        `first`: nothing has moved yet. What was done before was mostly the test's own doing, so one look is enough;
        where somebody sleeps there may be leases that he has not heard of yet, and it is taken in any case.
        """
        give_up_at = time.monotonic() + self.patience_s
        seen = None if first and self._sleepers else self._activity
        graces = quiet = 0
        wanted = 0
        while True:
            # Servers first: what a sleeper then asks for must be stamped with this moment, not with the one before, or
            # the lease it extends would be shorter than it knows.
            for timeline in tuple(self._timelines):
                timeline.settle(give_up_at)
            due = self._settle_sleepers(give_up_at)
            settled = [timeline.settle(give_up_at) for timeline in tuple(self._timelines)]
            self._activity = [each.activity for each in settled]
            if self._activity == seen:
                quiet += 1
            else:
                quiet, wanted = 0, 1 if first else GRACES
            if quiet >= wanted or graces == GRACES_PER_STEP_MAX:
                return min([due, *(each.next_due for each in settled)])
            seen = self._activity
            graces += 1
            time.sleep(GRACE_S)

    def _settle_sleepers(self, give_up_at: float) -> float:
        """Let every sleeper look again, and wait until it sleeps again; the earliest moment one sleeps until."""
        due = math.inf
        with self._news:
            sleepers = list(self._sleepers.items())
        for key, sleeper in sleepers:
            rounds = sleeper.rounds
            if sleeper.condition.acquire(timeout=max(0.0, give_up_at - time.monotonic())):
                sleeper.condition.notify_all()
                sleeper.condition.release()
            with self._news:
                while self._sleepers.get(key) is sleeper:
                    if not sleeper.thread.is_alive():
                        del self._sleepers[key]
                    elif sleeper.waits and sleeper.rounds > rounds and sleeper.until > self.monotonic():
                        due = min(due, sleeper.until)
                        break
                    elif time.monotonic() >= give_up_at:
                        raise ClockStuck(
                            f"thread {sleeper.thread.name!r} was woken by clock.advance and did not wait again within "
                            f"{self.patience_s:g} s; one that has ended its work calls clock.leave(condition)"
                        )
                    else:
                        self._news.wait(_LOOK_S)
        return due
