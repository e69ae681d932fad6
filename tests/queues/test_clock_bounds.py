"""What no reading of a clock can do to a stamp: send it back, make it jump, or let a lease run by wall time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walrq.queues.clocks import LeaderClock, Reading
from walrq.queues.commands import Stamp

readings = st.lists(st.tuples(st.integers(0, 5_000), st.integers(-10_000_000, 10_000_000)), min_size=1)


@given(readings)
def test_stamps_never_go_back_whatever_the_clocks_show(steps: list[tuple[int, int]]) -> None:
    """ClockMonotonic: and the lease clock runs exactly as the monotonic clock."""
    clock = LeaderClock(Stamp(500, 1_000_000), Reading(7_000, 999_000))
    monotonic, last = 7_000, Stamp(500, 1_000_000)
    for elapsed, wall_ms in steps:
        monotonic += elapsed
        stamp = clock.stamp(Reading(monotonic, 1_000_000 + wall_ms))

        assert stamp.lease_ms == 500 + monotonic - 7_000
        assert stamp.wall_ms >= last.wall_ms
        last = stamp


@given(readings)
def test_the_wall_clock_slews_at_most_ten_percent(steps: list[tuple[int, int]]) -> None:
    """A jump of an hour makes nothing due at once and stops nothing."""
    clock = LeaderClock(Stamp(0, 0), Reading(0, 0))
    monotonic = 0
    for elapsed, wall_ms in steps:
        monotonic += elapsed
        stamp = clock.stamp(Reading(monotonic, wall_ms))

        # One ms of rounding over the whole run, not one a step.
        assert monotonic * 0.9 - 1 <= stamp.wall_ms <= monotonic * 1.1 + 1


def test_the_wall_clock_reaches_what_it_is_told() -> None:
    """A second ahead is made up in ten."""
    clock = LeaderClock(Stamp(0, 0), Reading(0, 0))
    walls = [clock.stamp(Reading(now, now + 1_000)).wall_ms - now for now in range(0, 12_000, 7)]

    assert walls == sorted(walls)
    assert 1_000 == walls[-1] == max(walls)


def test_many_short_steps_slew_like_one_long_one() -> None:
    """No matter how often an entry is stamped."""
    often, seldom = (LeaderClock(Stamp(0, 0), Reading(0, 0)) for _ in range(2))
    for now in range(1, 1_001):
        stamp = often.stamp(Reading(now, 1_000_000))

    assert stamp == seldom.stamp(Reading(1_000, 1_000_000))


def test_a_restart_goes_on_from_the_last_stamp() -> None:
    """A lease may get longer over a restart, never shorter; the monotonic clock's offset is no matter."""
    for monotonic_ms in (0, 123_456_789):
        clock = LeaderClock(Stamp(9_000, 50_000), Reading(monotonic_ms, 60_000))

        assert Stamp(9_000, 60_000) == clock.stamp(Reading(monotonic_ms, 60_000))
        assert Stamp(9_010, 60_010) == clock.stamp(Reading(monotonic_ms + 10, 60_010))


def test_a_wall_clock_set_back_before_a_restart_waits() -> None:
    """It starts at the last stamp and runs on, slowly, until the true time catches up."""
    clock = LeaderClock(Stamp(0, 100_000), Reading(0, 40_000))

    assert 100_000 == clock.stamp(Reading(0, 40_000)).wall_ms
    assert 100_900 == clock.stamp(Reading(1_000, 41_000)).wall_ms


@given(st.integers(0, 10_000), st.integers(-5_000, 5_000))
def test_peeking_moves_nothing(elapsed: int, wall_ms: int) -> None:
    """What a stamp would be, as often as one likes."""
    clock = LeaderClock(Stamp(3, 5), Reading(0, 5))
    now = Reading(elapsed, wall_ms)
    peeked = [clock.peek(now) for _ in range(3)]

    assert [clock.stamp(now)] * 3 == peeked


@given(st.integers(0, 1_000_000), st.integers(0, 1_000_000))
def test_deadlines_become_monotonic_readings(lease_ms: int, wall_ms: int) -> None:
    """The reaper never sleeps past a deadline."""
    clock = LeaderClock(Stamp(0, 0), Reading(500, 0))
    at = clock.monotonic_of_lease(lease_ms)
    assert lease_ms == clock.peek(Reading(at, 0)).lease_ms
    early = clock.monotonic_of_wall(wall_ms)
    fastest = LeaderClock(Stamp(0, 0), Reading(500, 0)).stamp(Reading(early, 10**12)).wall_ms

    assert wall_ms - 2 <= fastest <= wall_ms


@pytest.mark.parametrize("back", [1, 1_000])
def test_a_monotonic_reading_from_the_past_is_ignored(back: int) -> None:
    """Two threads may read in one order and stamp in the other."""
    clock = LeaderClock(Stamp(0, 0), Reading(0, 0))
    stamp = clock.stamp(Reading(5_000, 5_000))

    assert stamp == clock.stamp(Reading(5_000 - back, 0))
