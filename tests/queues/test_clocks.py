"""Both clocks of the stamps: forward only, at their own rates, whatever the machine's clocks do."""

from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from walrq.queues.clocks import SLEW_PERCENT, LeaderClock, Reading
from walrq.queues.commands import Stamp

HOUR_MS = 3_600_000
START = Reading(5_000_000, 1_700_000_000_000)


@attrs.frozen
class Step:
    """Time passes, and the wall clock of the machine is set."""

    elapsed_ms: int
    jump_ms: int


elapsed = st.one_of(st.integers(0, 3), st.integers(0, 2_000), st.integers(0, 2 * HOUR_MS))
jumps = st.one_of(st.just(0), st.integers(-20, 20), st.integers(-HOUR_MS, HOUR_MS))
steps = st.lists(st.builds(Step, elapsed, jumps), min_size=1, max_size=60)
lasts = st.builds(Stamp, st.integers(0, 10**9), st.integers(0, 2 * START.wall_ms))


def readings(given: list[Step]) -> list[Reading]:
    """What the machine shows after each step."""
    now, shown = START, []
    for step in given:
        now = Reading(now.monotonic_ms + step.elapsed_ms, now.wall_ms + step.elapsed_ms + step.jump_ms)
        shown.append(now)
    return shown


@given(lasts, steps)
def test_neither_clock_ever_goes_back(last: Stamp, given_steps: list[Step]) -> None:
    """ClockMonotonic, from the last stamp of the log on, through any jump."""
    clock = LeaderClock(last, START)
    before = last
    for reading in readings(given_steps):
        stamp = clock.stamp(reading)
        assert stamp.lease_ms >= before.lease_ms and stamp.wall_ms >= before.wall_ms
        before = stamp


@given(lasts, steps)
def test_the_lease_clock_is_monotonic_time_and_nothing_else(last: Stamp, given_steps: list[Step]) -> None:
    """A wall clock that jumps ends no lease and prolongs none."""
    clock = LeaderClock(last, START)
    for reading in readings(given_steps):
        assert clock.stamp(reading).lease_ms == last.lease_ms + reading.monotonic_ms - START.monotonic_ms


@given(lasts, steps)
def test_the_wall_clock_slews_by_at_most_a_tenth(last: Stamp, given_steps: list[Step]) -> None:
    """Over any stretch of stamps, long or short: no rounding adds up to more."""
    clock = LeaderClock(last, START)
    first = clock.stamp(START)
    monotonic_ms = START.monotonic_ms
    for reading in readings(given_steps):
        stamp = clock.stamp(reading)
        passed_ms = reading.monotonic_ms - monotonic_ms
        gained_ms = stamp.wall_ms - first.wall_ms
        assert abs(gained_ms - passed_ms) * 100 <= passed_ms * SLEW_PERCENT


@given(lasts, steps)
def test_the_wall_clock_never_stands_still_for_long(last: Stamp, given_steps: list[Step]) -> None:
    """Once more than 10 ms have passed since it last moved, it has moved."""
    clock = LeaderClock(last, START)
    moved_at_ms, wall_ms = START.monotonic_ms, clock.stamp(START).wall_ms
    for reading in readings(given_steps):
        stamp = clock.stamp(reading)
        if stamp.wall_ms > wall_ms:
            moved_at_ms, wall_ms = reading.monotonic_ms, stamp.wall_ms
        assert reading.monotonic_ms - moved_at_ms <= 10


@given(st.integers(-5_000, 5_000), st.integers(1, 500))
def test_the_wall_clock_arrives_where_it_is_told_to(jump_ms: int, step_ms: int) -> None:
    """After ten times the difference it is there, and from then on it runs along exactly."""
    clock = LeaderClock(Stamp(0, 0), START)
    wall_ms = START.wall_ms + jump_ms
    now_ms = 0
    while now_ms <= abs(jump_ms) * 10 + step_ms:
        now_ms += step_ms
        stamp = clock.stamp(Reading(START.monotonic_ms + now_ms, wall_ms + now_ms))

    assert stamp.wall_ms == wall_ms + now_ms


@given(lasts, steps, elapsed)
def test_peek_tells_the_next_stamp_and_moves_nothing(last: Stamp, given_steps: list[Step], later_ms: int) -> None:
    """Asking what time it is must not change what time it will be."""
    asked, silent = LeaderClock(last, START), LeaderClock(last, START)
    for reading in readings(given_steps):
        seen = asked.peek(reading)
        asked.peek(Reading(reading.monotonic_ms + later_ms, reading.wall_ms))
        assert seen == asked.stamp(reading) == silent.stamp(reading)


@given(lasts, steps, st.integers(0, 10**6), st.integers(-HOUR_MS, HOUR_MS))
def test_a_restart_continues_both_clocks(last: Stamp, given_steps: list[Step], base_ms: int, offset_ms: int) -> None:
    """Monotonic time starts anywhere in a new process; the lease clock goes on from the last stamp all the same."""
    clock = LeaderClock(last, START)
    shown = readings(given_steps)
    stamp = last
    for reading in shown:
        stamp = clock.stamp(reading)
    office = Reading(base_ms, shown[-1].wall_ms + offset_ms)

    again = LeaderClock(stamp, office)

    assert again.stamp(office) == Stamp(stamp.lease_ms, max(stamp.wall_ms, office.wall_ms))
    assert again.stamp(Reading(base_ms + 7, office.wall_ms + 7)).lease_ms == stamp.lease_ms + 7


@given(lasts, steps)
def test_a_reading_from_before_changes_nothing(last: Stamp, given_steps: list[Step]) -> None:
    """Two threads may read the clock in one order and stamp in the other."""
    clock = LeaderClock(last, START)
    for reading in readings(given_steps):
        stamp = clock.stamp(reading)
        stale = Reading(reading.monotonic_ms - 1, reading.wall_ms)
        assert clock.stamp(stale) == stamp == clock.peek(stale)


@given(lasts, steps, st.integers(0, HOUR_MS), st.integers(0, HOUR_MS))
def test_deadlines_are_told_in_monotonic_time(
    last: Stamp, given_steps: list[Step], lease_in_ms: int, wall_in_ms: int
) -> None:
    """NotEarly: at that reading a lease is over, one before it is not; and no wall time comes sooner than told."""
    clock = LeaderClock(last, START)
    stamp = last
    for reading in readings(given_steps):
        stamp = clock.stamp(reading)
    lease_ms, wall_ms = stamp.lease_ms + lease_in_ms, stamp.wall_ms + wall_in_ms

    at_ms = clock.monotonic_of_lease(lease_ms)
    assert clock.peek(Reading(at_ms, 0)).lease_ms == lease_ms
    at_ms = clock.monotonic_of_wall(wall_ms)
    if wall_in_ms:
        assert clock.peek(Reading(at_ms - 1, wall_ms + HOUR_MS)).wall_ms < wall_ms
    else:
        assert at_ms <= reading.monotonic_ms
