"""The movable clock: time goes by in order, and nobody who sleeps on it is passed over."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest

from walrq.client.clock import Clock
from walrq.errors import InvalidArgument
from walrq.testing.clock import ClockStuck, MovableClock, Settled


class Bell:
    """A timeline that rings at given moments and notes what the clock showed."""

    def __init__(self, clock: MovableClock, *moments: float) -> None:
        self.clock = clock
        self.left = sorted(moments)
        self.rung: list[float] = []

    def settle(self, give_up_at: float) -> Settled:
        now = self.clock.monotonic()
        while self.left and self.left[0] <= now:
            self.left.pop(0)
            self.rung.append(now)
        return Settled(self.left[0] if self.left else math.inf, ())


class Keeper:
    """A thread that does something every `period_s` of the clock, as the keeper of a worker's leases does."""

    def __init__(self, clock: Clock, period_s: float, *, leaves: bool = True) -> None:
        self.clock = clock
        self.done_at: list[float] = []
        self.changed = threading.Condition()
        self.first = threading.Event()
        self.over = threading.Event()
        self._period_s = period_s
        self._leaves = leaves
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="keeper")

    def _run(self) -> None:
        with self.changed:
            due = self.clock.monotonic() + self._period_s
            while not self._stopping:
                if self.clock.monotonic() >= due:
                    self.done_at.append(self.clock.monotonic())
                    due += self._period_s
                self.first.set()
                self.clock.wait(self.changed, due)
        if self._leaves:
            self.clock.leave(self.changed)
        # Like a thread of a pool, it lives on when its work is over.
        self.over.wait()

    def stop_working(self) -> None:
        with self.changed:
            self._stopping = True
            self.changed.notify_all()

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        assert self.first.wait(10)
        try:
            yield
        finally:
            self.stop_working()
            self.over.set()
            self._thread.join()


class Witness:
    """A timeline that takes its time and notes what both clocks show."""

    def __init__(self, clock: MovableClock) -> None:
        self.clock = clock
        self.seen: list[tuple[float, float]] = []

    def settle(self, give_up_at: float) -> Settled:
        started_at = time.monotonic()
        while time.monotonic() < started_at + 0.001:
            pass
        self.seen.append((self.clock.monotonic(), self.clock.time()))
        return Settled(self.clock.monotonic() + 1000, ())


def test_the_clock_moves_by_exactly_what_was_advanced() -> None:
    """Real time that `advance` itself takes does not count beside it; nothing is late or early by it."""
    clock = MovableClock()
    witness = Witness(clock)
    clock.attach(witness)

    clock.advance(3600)

    first = witness.seen[0][0]
    assert [0, 1000, 2000, 3000, 3600] == sorted({round(moment - first, 6) for moment, _ in witness.seen})


def test_between_two_advances_time_runs_on() -> None:
    """It is a moved clock, not a stopped one: code that waits for a moment of it gets there."""
    clock = MovableClock()
    clock.advance(100)
    moment, wall_ms = clock.monotonic(), clock.wall_ms()

    while clock.wall_ms() == wall_ms:
        pass

    assert clock.wall_ms() > wall_ms
    assert clock.monotonic() > moment


def test_both_clocks_move_together() -> None:
    """A node slews its wall clock by what the monotonic one says: they may not disagree."""
    clock = MovableClock()
    witness = Witness(clock)
    clock.attach(witness)

    for seconds in (0.1, 7, 5_000, 86_400):
        clock.advance(seconds)

    assert 1 == len({round(wall - moment, 3) for moment, wall in witness.seen})


def test_now_is_the_moved_wall_clock() -> None:
    """It can be pushed with `deliver_at=clock.now + ...`."""
    clock = MovableClock()
    before = clock.now

    clock.advance(86_400)

    assert (clock.now - before).total_seconds() >= 86_400
    assert 0 == clock.now.utcoffset().total_seconds()  # type: ignore[union-attr]


def test_due_moments_are_met_one_after_the_other() -> None:
    """Each timeline sees the clock at its own moments, not only at the end."""
    clock = MovableClock()
    start = clock.monotonic()
    early, late = Bell(clock, start + 20, start + 10, start + 700), Bell(clock, start + 15)
    clock.attach(early)
    clock.attach(late)

    clock.advance(600)

    assert [10, 20] == [round(moment - start, 3) for moment in early.rung]
    assert [15] == [round(moment - start, 3) for moment in late.rung]


def test_a_timeline_that_left_is_not_asked() -> None:
    """A server that was closed has no due moments."""
    clock = MovableClock()
    bell = Bell(clock, clock.monotonic() + 1)
    clock.attach(bell)
    clock.detach(bell)
    clock.detach(bell)

    clock.advance(5)

    assert [] == bell.rung


def test_a_sleeper_wakes_at_each_of_its_moments() -> None:
    """What extends a lease of 30 s every 10 s does so sixty times in ten minutes."""
    clock = MovableClock()
    keeper = Keeper(clock, 10)
    with keeper.running():
        clock.advance(605)

    gaps = [later - earlier for earlier, later in zip(keeper.done_at, keeper.done_at[1:], strict=False)]
    assert 60 == len(keeper.done_at)
    assert {10} == {round(gap) for gap in gaps}


def test_sleepers_and_timelines_meet_in_order() -> None:
    """The one that is due first goes first."""
    clock = MovableClock()
    start = clock.monotonic()
    bell = Bell(clock, start + 25)
    clock.attach(bell)
    keeper = Keeper(clock, 10)
    with keeper.running():
        clock.advance(45)

    assert [True, True, False, False] == [done < bell.rung[0] for done in keeper.done_at]


def test_a_sleeper_that_left_is_not_waited_for() -> None:
    """Its thread may live on and do something else."""
    clock = MovableClock(patience_s=10)
    keeper = Keeper(clock, 10)
    with keeper.running():
        keeper.stop_working()
        clock.advance(100)

    assert [] == keeper.done_at


def test_a_sleeper_that_does_not_come_back_is_named() -> None:
    """Instead of a test that hangs, one line that says who and what to do."""
    clock = MovableClock(patience_s=0.05)
    keeper = Keeper(clock, 10, leaves=False)
    with keeper.running():
        keeper.stop_working()
        with pytest.raises(ClockStuck, match=r"'keeper' .* clock\.leave"):
            clock.advance(100)


def test_a_thread_that_ended_is_not_waited_for() -> None:
    """It need not say goodbye."""
    clock = MovableClock()
    condition = threading.Condition()

    def once() -> None:
        with condition:
            clock.wait(condition, clock.monotonic() + 0.001)

    thread = threading.Thread(target=once)
    thread.start()
    thread.join()
    before = clock.monotonic()

    clock.advance(5)

    assert clock.monotonic() - before >= 5


def test_the_sleeper_itself_may_advance() -> None:
    """A handler that moves the clock does not wait for itself."""
    clock = MovableClock(patience_s=5)
    condition = threading.Condition()
    with condition:
        clock.wait(condition, clock.monotonic() + 0.001)
    before = clock.monotonic()

    clock.advance(5)

    assert clock.monotonic() - before >= 5


def test_waiting_without_a_moment_ends_by_notification() -> None:
    """A keeper that holds nothing waits for infinity."""
    clock = MovableClock()
    keeper = Keeper(clock, math.inf)
    with keeper.running():
        clock.advance(3600)

    assert [] == keeper.done_at


def test_another_clock_can_be_led_and_let_go() -> None:
    """The default clock of all clients follows for the time of a test."""
    clock, other = MovableClock(), Clock()
    clock.lead(other)

    clock.advance(100)
    led = other.monotonic() - clock.monotonic()
    keeper = Keeper(other, 10)
    with keeper.running():
        clock.advance(25)
    offset = other.offset
    clock.let_go(other)

    assert -1 < led < 1
    assert 2 == len(keeper.done_at)
    assert 124 < offset <= 125.1
    assert 0 == other.offset
    assert vars(other) == {"offset": 0.0}


@pytest.mark.parametrize("seconds", [-1, math.inf, math.nan])
def test_a_clock_does_not_go_back_or_for_ever(seconds: float) -> None:
    """The error names the argument."""
    clock = MovableClock()

    with pytest.raises(InvalidArgument, match="seconds"):
        clock.advance(seconds)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_coroutine_may_advance_without_holding_up_its_loop(backend: str) -> None:
    """Other tasks go on meanwhile: one of them may be what the clock waits for."""
    clock = MovableClock(patience_s=10)
    condition = threading.Condition()
    start = clock.monotonic()
    seen = []

    class Slow:
        """A timeline that settles only once a task of the loop has run."""

        def settle(self, give_up_at: float) -> Settled:
            with condition:
                while not seen:
                    assert condition.wait(give_up_at - time.monotonic())
            return Settled(math.inf, ())

    async def other() -> None:
        with condition:
            seen.append(1)
            condition.notify_all()

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            clock.attach(Slow())
            tasks.start_soon(clock.advance_async, 60)
            tasks.start_soon(other)

    anyio.run(main, backend=backend)

    assert clock.monotonic() - start >= 60


def test_time_passes_until_something_is_so() -> None:
    """It stops at the due moment that brought it about, or at the bound, and says how far it came."""
    clock = MovableClock()
    start = clock.monotonic()
    bell = Bell(clock, *(start + 10 * number for number in range(1, 9)))
    clock.attach(bell)

    third = clock.advance_until(lambda: len(bell.rung) == 3, 60)
    at_once = clock.advance_until(lambda: True, 60)
    never = clock.advance_until(lambda: False, 15)

    assert 29 < third <= 30
    assert 0 == at_once
    assert 15 == round(never, 6)
    assert 4 <= len(bell.rung) <= 5
