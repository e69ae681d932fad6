"""When a node stands, and how votes are counted."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walrq.raft.election import Ballot, Countdown, Outcome, Timing, up_to_date

ends = st.tuples(st.integers(0, 4), st.integers(0, 4))


@given(ends, ends)
def test_the_term_of_the_last_entry_decides_and_the_length_only_among_equals(
    theirs: tuple[int, int], mine: tuple[int, int]
) -> None:
    """LeaderCompleteness: a longer log of an older term may lack what is committed."""
    (term, index), (own_term, own_index) = theirs, mine
    wanted = term > own_term or (term == own_term and index >= own_index)

    assert wanted == up_to_date(term, index, own_term, own_index)


@given(st.integers(0, 1 << 32), st.integers(2, 30), st.integers(1, 30))
def test_a_time_out_is_longer_than_the_base_and_drawn_anew(seed: int, election: int, spread: int) -> None:
    """One that equals the base would meet the others still holding on to the leader (etcd#10483)."""
    timing = Timing(election=election, spread=spread, heartbeat=1)
    countdown = Countdown(timing, random.Random(seed).randrange)
    for _ in range(10):
        ticks = 1
        while not countdown.tick():
            ticks += 1
        assert election < ticks <= election + spread
        countdown.restart()


def test_time_outs_differ() -> None:
    """With one and the same time-out candidates meet for ever."""
    countdown = Countdown(Timing(), random.Random(1).randrange)
    drawn = set()
    for _ in range(50):
        countdown.restart()
        drawn.add(countdown.timeout)

    assert 8 <= len(drawn)


@pytest.mark.parametrize("wrong", [{"spread": 0}, {"heartbeat": 0}, {"heartbeat": 10}, {"stall": 0}])
def test_times_that_cannot_work_are_our_own_mistakes(wrong: dict[str, int]) -> None:
    """No spread, or a heartbeat as rare as the time-out."""
    with pytest.raises(AssertionError):
        Timing(**wrong)


def test_a_ballot_is_decided_as_early_as_it_can_be() -> None:
    """Early quorum exit: a majority for it, or none possible any more."""
    ballot = Ballot(False, 0)
    assert Outcome.OPEN is ballot.count("a", True, "abcde")
    assert Outcome.OPEN is ballot.count("b", False, "abcde")
    assert Outcome.OPEN is ballot.count("c", True, "abcde")
    assert Outcome.WON is ballot.count("d", True, "abcde")

    ballot = Ballot(False, 0)
    assert [Outcome.OPEN, Outcome.LOST] == [ballot.count(voter, False, "abc") for voter in "ab"]
    assert Outcome.LOST is Ballot(False, 0).count("a", False, "ab")


def test_a_voter_counts_once_whatever_it_says_later() -> None:
    """Messages are doubled; strangers and learners do not count."""
    ballot = Ballot(False, 0)
    assert Outcome.OPEN is ballot.count("a", True, "abc")
    assert Outcome.OPEN is ballot.count("a", True, "abc")
    assert Outcome.OPEN is ballot.count("x", True, "abc")
    assert Outcome.OPEN is ballot.count("b", False, "abc")
    assert Outcome.OPEN is ballot.count("b", True, "abc")
    assert Outcome.WON is ballot.count("c", True, "abc")
