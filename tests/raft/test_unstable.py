"""What waits for the disk."""

from __future__ import annotations

import pytest

from walrq.raft.entries import HardState, Kind
from walrq.raft.messages import AppendReply
from walrq.raft.unstable import Ready, Unstable

STATE = HardState(3, "a")


def entry(term: int, index: int) -> tuple[int, int, Kind]:
    """A position."""
    return term, index, Kind.COMMANDS


def reply(term: int) -> AppendReply:
    """A message that waits."""
    return AppendReply("c", "a", "b", term, True, 1)


def test_readies_hold_each_change_once_and_are_numbered() -> None:
    """An empty one takes no number: nothing will ever report it durable."""
    unstable = Unstable(0)
    assert not unstable.take(STATE, 0)
    unstable.state_changed()
    unstable.append(entry(3, 1))
    assert unstable.has_ready and not unstable.is_written
    ready = unstable.take(STATE, 0)
    assert Ready(STATE, (entry(3, 1),)) == ready
    assert 1 == ready.number
    assert not unstable.has_ready and not unstable.is_written
    assert not unstable.take(STATE, 0)
    unstable.persisted(ready)
    assert unstable.is_written


def test_a_message_leaves_with_its_ready_and_not_before() -> None:
    """AckedDurable: nobody can send early what nobody has."""
    unstable = Unstable(0)
    unstable.append(entry(3, 1))
    unstable.wait(unstable.log_in, reply(3))
    ready = unstable.take(STATE, 0)
    unstable.append(entry(3, 2))
    unstable.wait(unstable.log_in, reply(3))
    assert [] == unstable.release(3)
    unstable.persisted(ready)
    assert [reply(3)] == unstable.release(3)
    unstable.persisted(unstable.take(STATE, 0))
    assert [reply(3)] == unstable.release(3)
    with pytest.raises(AssertionError):
        unstable.wait(unstable.done, reply(3))


def test_what_was_said_in_a_term_that_is_over_is_left_unsaid() -> None:
    """Its entries may be gone by then."""
    unstable = Unstable(0)
    unstable.append(entry(3, 1))
    unstable.wait(1, reply(3))
    unstable.persisted(unstable.take(STATE, 0))

    assert [] == unstable.release(4)


def test_a_cut_is_written_before_what_takes_its_place() -> None:
    """Entries that were not handed out yet are simply dropped."""
    unstable = Unstable(4)
    for index in (5, 6, 7):
        unstable.append(entry(3, index))
    unstable.cut(6)
    unstable.append(entry(4, 6))
    assert Ready(None, (entry(3, 5), entry(4, 6))) == unstable.take(STATE, 0)

    unstable.cut(5)
    unstable.append(entry(5, 5))
    assert Ready(None, (entry(5, 5),), 5) == unstable.take(STATE, 0)


def test_several_cuts_before_one_ready_are_one() -> None:
    """The lowest counts."""
    unstable = Unstable(9)
    for term, index in ((2, 8), (3, 6), (4, 7)):
        unstable.cut(index)
        unstable.append(entry(term, index))
    assert Ready(None, (entry(3, 6), entry(4, 7)), 6) == unstable.take(STATE, 0)


def test_what_an_older_ready_wrote_behind_a_cut_does_not_count() -> None:
    """AckedDurable: the entry is on the disk now and will be gone, also if one like it comes again."""
    unstable = Unstable(0)
    for index in (1, 2, 3):
        unstable.append(entry(2, index))
    first = unstable.take(STATE, 0)
    unstable.cut(2)
    unstable.append(entry(3, 2))
    second = unstable.take(STATE, 0)
    unstable.cut(1)
    unstable.append(entry(2, 1))
    third = unstable.take(STATE, 0)

    assert unstable.persisted(first) is None
    assert unstable.persisted(second) is None
    assert (2, 1) == unstable.persisted(third)

    unstable = Unstable(0)
    for index in (1, 2, 3):
        unstable.append(entry(2, index))
    first = unstable.take(STATE, 0)
    unstable.cut(2)
    unstable.append(entry(3, 2))
    assert (2, 1) == unstable.persisted(first)
    assert (3, 2) == unstable.persisted(unstable.take(STATE, 0))


def test_a_write_that_takes_long_is_known_by_its_start() -> None:
    """The oldest one counts, not the newest."""
    unstable = Unstable(0)
    assert unstable.oldest_tick() is None
    readies = []
    for tick in (5, 9):
        unstable.append(entry(1, tick))
        readies.append(unstable.take(STATE, tick))
    assert 5 == unstable.oldest_tick()
    unstable.persisted(readies[0])
    assert 9 == unstable.oldest_tick()
    unstable.persisted(readies[1])
    assert unstable.oldest_tick() is None


def test_a_snapshot_is_installed_between_writes() -> None:
    """Otherwise the write would land behind it."""
    unstable = Unstable(0)
    unstable.append(entry(1, 1))
    with pytest.raises(AssertionError):
        unstable.start_over(9)
    unstable.persisted(unstable.take(STATE, 0))
    unstable.start_over(9)
    unstable.cut(10)
    unstable.append(entry(2, 10))
    assert Ready(None, (entry(2, 10),)) == unstable.take(STATE, 0)
