"""Majorities, against a second implementation too dumb to be wrong."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

from hypothesis import given
from hypothesis import strategies as st

from walrq.raft.quorum import has_majority, majority, quorum_index

NAMES = ("a", "b", "c", "d", "e", "f", "g")
voters_of = st.sets(st.sampled_from(NAMES), max_size=len(NAMES))


def dumb_has_majority(voters: Collection[str], granted: Collection[str]) -> bool:
    """More voters said yes than did not."""
    yes = sum(voter in granted for voter in voters)
    return yes > len(voters) - yes


def dumb_quorum_index(voters: Collection[str], match: Mapping[str, int]) -> int:
    """Try every index: the highest that some majority has."""
    reached = 0
    for index in {0, *match.values()}:
        having = [voter for voter in voters if match.get(voter, 0) >= index]
        if voters and dumb_has_majority(voters, having):
            reached = max(reached, index)
    return reached


@given(voters_of, st.lists(st.sampled_from(NAMES)))
def test_a_majority_is_more_than_half_of_the_voters(voters: set[str], granted: list[str]) -> None:
    """Repeated votes and votes of strangers change nothing."""
    assert has_majority(voters, granted) == (bool(voters) and dumb_has_majority(voters, granted))


@given(voters_of, st.dictionaries(st.sampled_from(NAMES), st.integers(0, 9)))
def test_the_quorum_index_is_the_highest_that_a_majority_holds(voters: set[str], match: dict[str, int]) -> None:
    """An absent voter holds nothing; learners do not count."""
    assert quorum_index(voters, match) == dumb_quorum_index(voters, match)


def test_any_two_majorities_share_a_voter() -> None:
    """QuorumOverlap, for every size up to seven."""
    for size in range(1, len(NAMES) + 1):
        voters = NAMES[:size]
        groups = list(itertools.combinations(voters, majority(size)))
        assert all(set(one) & set(other) for one in groups for other in groups)
        assert not has_majority(voters, voters[: majority(size) - 1])
