"""Which segments are written anew, and what the bound says: sizes in, numbers out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from walrq.compaction.bound import SEGMENT_OVERHEAD_BYTES, Usage, disk_bound, live_on_disk
from walrq.compaction.planning import Candidate, choose, sums

SEGMENT = 4 << 20


def everywhere(_first: int, _last: int) -> bool:
    return True


def nowhere(first: int, last: int) -> bool:
    return last < first


def log(*live: int, file_bytes: int = SEGMENT, gap: int = 0) -> list[Candidate]:
    """Neighbouring segments with so much alive in each."""
    step = 100 + gap
    return [Candidate(1 + step * at, 100 + step * at, file_bytes, size) for at, size in enumerate(live)]


def test_the_bound_is_the_formula() -> None:
    """Twice what is alive, the log since the snapshot, three segments, the reserve, two snapshots."""
    parts = {"live_bytes": 1, "tail_bytes": 10, "segment_bytes": 100, "reserve_bytes": 1_000, "snapshot_bytes": 10_000}
    assert 2 + 10 + 300 + 1_000 + 20_000 == disk_bound(**parts)
    assert 5 + disk_bound(**parts) == disk_bound(**parts, held_bytes=5)
    usage = Usage(disk_bytes=21_312, held_bytes=0, sealed_bytes=4, **parts)
    assert usage.is_held and not Usage(disk_bytes=21_313, held_bytes=0, sealed_bytes=4, **parts).is_held
    assert 0.25 == usage.live_ratio
    assert usage.bound_bytes == usage.as_json()["bound_bytes"]


def test_as_long_as_little_is_dead_nothing_is_written() -> None:
    """It is better to wait until more has died."""
    assert choose(log(*[3 << 20] * 5), SEGMENT, everywhere) is None


def test_the_emptiest_goes_first_with_neighbours_that_fit() -> None:
    """What is alive in all of them fits into one segment."""
    run = choose(log(3 << 20, 1 << 20, 100, 1 << 20, 3 << 20), SEGMENT, everywhere)
    assert range(1, 4) == run


def test_a_hole_with_something_alive_in_it_is_not_taken_in() -> None:
    """It was lost, and must be seen to be."""
    assert range(1, 2) == choose(log(1 << 20, 100, 1 << 20, gap=5), SEGMENT, nowhere)


def test_what_was_tried_in_vain_is_left_alone() -> None:
    """Until much more of it is dead, or for good if it is damaged."""
    tried = [Candidate(1, 100, SEGMENT, 1 << 20, tried=1 << 20)]
    assert choose(tried, SEGMENT, everywhere, under_way=True) is not None  # the bound demands it
    stuck = [Candidate(1, 100, SEGMENT, 1 << 20, tried=1 << 20, is_stuck=True)]
    assert choose(stuck, SEGMENT, everywhere, under_way=True) is None


def test_what_the_bound_demands_is_done_whatever_it_costs() -> None:
    """None of them is worth it by itself; together they are more than twice what is alive."""
    small = [Candidate(1 + 10 * at, 10 + 10 * at, 24_576, 4_096, tried=4_096) for at in range(3)]
    assert range(3) == choose(small, SEGMENT, everywhere)


def test_many_small_ones_are_put_together() -> None:
    """For their number alone: each costs a name, a header, and a look at the start."""
    small = log(*[15_000] * 40, file_bytes=32_768)
    run = choose(small, SEGMENT, everywhere)
    assert run is not None and len(run) > 10


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(4, 1024)), max_size=30))
def test_choosing_ends_with_the_log_within_its_share(found: list[tuple[int, int]]) -> None:
    """Whatever the log looks like: each run frees something, and at the end it is at most twice what is alive."""
    segments = []
    for at, (percent, pages) in enumerate(found):
        size = max(pages * 4096, SEGMENT_OVERHEAD_BYTES)
        segments.append(Candidate(1 + 10 * at, 10 + 10 * at, size, (size - 12_288) * percent // 100))
    for _ in range(200):
        run = choose(segments, SEGMENT, everywhere, under_way=True)
        if run is None:
            break
        chosen = segments[run.start : run.stop]
        live = sum(each.live_bytes for each in chosen)
        made = (live + 12_288 + 4_095) // 4_096 * 4_096
        fresh = [Candidate(chosen[0].first_index, chosen[-1].last_index, made, live, tried=live)] if live else []
        segments[run.start : run.stop] = fresh
    else:
        raise AssertionError("choosing does not end")
    sealed, live = sums(segments, SEGMENT)
    assert sealed <= 2 * live + 4096 * len(segments) or len(segments) <= 1


def test_what_is_alive_takes_a_header_at_least() -> None:
    """One message of a hundred bytes is a file of sixteen thousand."""
    assert SEGMENT_OVERHEAD_BYTES + 100 == live_on_disk(100, SEGMENT)
    assert 2 * SEGMENT_OVERHEAD_BYTES + SEGMENT == live_on_disk(SEGMENT, SEGMENT)
