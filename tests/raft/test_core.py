"""The consensus object: what must be durable before it counts, and what never goes back."""

from __future__ import annotations

import itertools
import random

import pytest

from walrq.errors import NotLeader
from walrq.raft.core import Raft
from walrq.raft.entries import HardState, Kind, Tail
from walrq.raft.messages import AppendReply, VoteReply
from walrq.raft.roles import TRANSITIONS, Role
from walrq.raft.unstable import Ready

EMPTY = Tail()
FORGETFUL = HardState()


def lone(state: HardState = FORGETFUL, tail: Tail = EMPTY) -> Raft:
    """A node that is its own majority."""
    return Raft("a", {"a"}, state, tail)


def one_of_three() -> Raft:
    """A node with two peers that say nothing."""
    return Raft("a", {"a", "b", "c"}, HardState(), Tail())


def leading(tail: Tail = EMPTY) -> Raft:
    """A lone leader whose no-op is durable."""
    raft = lone(tail=tail)
    raft.campaign()
    raft.persisted(raft.take_ready())
    raft.persisted(raft.take_ready())
    return raft


def test_a_lone_node_leads_only_once_its_vote_is_durable() -> None:
    """VoteDurableBeforeSent: a vote that a crash can undo elects nobody."""
    raft = lone(HardState(7, "b"))
    raft.campaign()
    assert raft.role is Role.CANDIDATE and raft.leader is None

    ready = raft.take_ready()
    assert ready.hard_state == HardState(8, "a")
    assert not raft.is_leader
    with pytest.raises(NotLeader):
        raft.append(Kind.COMMANDS)

    raft.persisted(ready)
    assert raft.is_leader and raft.leader == "a" and raft.term == 8


def test_a_vote_of_an_older_term_elects_nobody() -> None:
    """The ready of the first campaign became durable after the second had begun."""
    raft = lone()
    raft.campaign()
    first = raft.take_ready()
    raft.campaign()

    raft.persisted(first)

    assert raft.role is Role.CANDIDATE
    raft.persisted(raft.take_ready())
    assert raft.is_leader and raft.term == 2


def test_one_vote_of_three_elects_nobody_and_commits_nothing() -> None:
    """ElectionSafety: the own vote is not a majority."""
    raft = one_of_three()
    raft.campaign()
    raft.persisted(raft.take_ready())

    assert raft.role is Role.CANDIDATE
    assert raft.commit_index == 0


def test_a_restarted_node_follows_whatever_it_was() -> None:
    """Only a durable vote of a new term makes a leader."""
    before = leading()
    again = lone(HardState(before.term, before.vote), Tail(before.last_index, before.last_term))

    assert again.role is Role.FOLLOWER and again.leader is None
    assert again.term == before.term and again.commit_index == 0


def test_the_first_entry_of_a_term_is_a_no_op() -> None:
    """Without it the entries of earlier terms would wait for a proposal."""
    raft = lone(HardState(3, "a"), Tail(12, 3))
    raft.campaign()
    raft.persisted(raft.take_ready())

    assert raft.take_ready() == Ready(None, ((4, 13, Kind.NOOP),))


def test_entries_of_earlier_terms_are_committed_only_with_one_of_the_own() -> None:
    """LeaderCompleteness: what an earlier leader left may yet be replaced until the own no-op is durable."""
    raft = lone(HardState(3, "a"), Tail(12, 3))
    raft.campaign()
    raft.persisted(raft.take_ready())
    assert raft.durable_index == 12 and raft.commit_index == 0
    # Something durable that is not of this term counts for nothing.
    raft.persisted(Ready(HardState(4, "a"), ()))
    assert raft.commit_index == 0

    raft.persisted(raft.take_ready())

    assert raft.commit_index == 13


def elected(tail: Tail = EMPTY, term: int = 0) -> Raft:
    """The leader of three, elected by b; its own entries are not persisted."""
    raft = Raft("a", {"a", "b", "c"}, HardState(term), tail)
    raft.campaign()
    raft.persisted(raft.take_ready())
    raft.receive(VoteReply("", "b", "a", raft.term, True))
    assert raft.is_leader
    return raft


def test_a_majority_that_holds_an_earlier_term_commits_nothing() -> None:
    """LeaderCompleteness, thesis figure 3.7: only an entry of the own term is committed by counting."""
    raft = elected(Tail(12, 3, runs=((1, 3),)), term=3)

    raft.receive(AppendReply("", "b", "a", 4, True, 12))
    assert raft.commit_index == 0

    raft.receive(AppendReply("", "b", "a", 4, True, 13))
    raft.persisted(raft.take_ready())
    assert raft.commit_index == 13


def test_a_leader_commits_by_the_disks_of_others() -> None:
    """Its own disk is one of three: two others are a majority without it."""
    raft = elected()
    for peer in "bc":
        raft.receive(AppendReply("", peer, "a", 1, True, 1))

    assert raft.commit_index == 1 and raft.durable_index == 0


def test_a_leader_counts_itself_only_after_its_own_sync() -> None:
    """AckedDurable: an appended entry is not a durable one."""
    raft = leading()
    committed = raft.commit_index
    raft.append(Kind.COMMANDS)
    ready = raft.take_ready()
    assert raft.commit_index == committed and raft.last_index == committed + 1

    raft.persisted(ready)

    assert raft.commit_index == committed + 1


def test_stale_persisted_pairs_are_ignored() -> None:
    """(term, index) of another term names entries that a newer leader may have replaced."""
    raft = leading()
    raft.append(Kind.COMMANDS)
    raft.take_ready()
    durable, committed = raft.durable_index, raft.commit_index

    raft.persisted(Ready(None, ((raft.term - 1, raft.last_index, Kind.COMMANDS),)))
    raft.persisted(Ready(None, ((raft.term, raft.last_index + 1, Kind.COMMANDS),)))

    assert (raft.durable_index, raft.commit_index) == (durable, committed)


def test_a_leader_of_three_does_not_commit_alone() -> None:
    """AckedOnQuorum."""
    raft = elected()

    raft.persisted(raft.take_ready())

    assert raft.durable_index == 1 and raft.commit_index == 0


def test_each_thing_is_handed_out_once() -> None:
    """An empty ready is false, so a driver can ask whether there is anything to do."""
    raft = leading()
    assert not raft.take_ready()
    raft.append(Kind.COMMANDS)
    ready = raft.take_ready()

    assert ready and ready.hard_state is None
    assert not raft.take_ready()
    assert Ready(HardState(1, "a"), ())


def test_withdrawn_entries_never_were() -> None:
    """A full disk refused them: the next entry takes their place."""
    raft = leading()
    last = raft.last_index
    raft.append(Kind.COMMANDS)
    raft.withdraw(raft.take_ready())
    assert raft.last_index == last

    assert raft.append(Kind.COMMANDS)[1] == last + 1
    raft.persisted(raft.take_ready())
    assert raft.commit_index == last + 1


def test_a_ready_without_entries_is_withdrawn_without_effect() -> None:
    """There is nothing to take back."""
    raft = leading()
    last = raft.last_index

    raft.withdraw(Ready(None, ()))

    assert raft.last_index == last


def test_what_is_committed_or_was_sent_is_never_withdrawn() -> None:
    """CommitStable, and a group of several may hold the entry already."""
    raft = leading()
    position = raft.append(Kind.COMMANDS)
    raft.persisted(raft.take_ready())
    with pytest.raises(AssertionError):
        raft.withdraw(Ready(None, (position,)))
    with pytest.raises(AssertionError):
        one_of_three().withdraw(Ready(None, ()))
    raft.append(Kind.COMMANDS)
    with pytest.raises(AssertionError):
        raft.withdraw(Ready(None, ()))


@pytest.mark.parametrize(
    "pair", list(itertools.product(Role, Role)), ids=lambda pair: f"{pair[0].value}-{pair[1].value}"
)
def test_roles_change_only_along_the_table(pair: tuple[Role, Role]) -> None:
    """TRANSITIONS is the whole truth: nobody leads without having been a candidate."""
    raft = lone()
    raft.role, wanted = pair
    if pair in TRANSITIONS:
        raft._become(wanted)
        assert raft.role is wanted
    else:
        with pytest.raises(AssertionError):
            raft._become(wanted)
        assert raft.role is pair[0]


def test_no_leader_becomes_a_candidate() -> None:
    """It leads; an election against itself would only lose what it has appended."""
    with pytest.raises(AssertionError):
        leading().campaign()


def test_indexes_never_go_back_whatever_is_persisted(rng: random.Random) -> None:
    """CommitMonotonic and applied <= commit <= durable <= last, over random lives of a lone leader."""
    for _ in range(50):
        raft = leading(Tail(rng.randrange(5), 0))
        taken: list[Ready] = []
        commit = raft.commit_index
        for _ in range(60):
            match rng.randrange(4):
                case 0:
                    raft.append(Kind.COMMANDS)
                case 1:
                    if ready := raft.take_ready():
                        taken.append(ready)
                case 2:
                    if taken:
                        raft.persisted(taken.pop(0))
                case _:
                    position = (rng.randrange(4), rng.randrange(1, 90), Kind.COMMANDS)
                    if position[0] != raft.term:
                        raft.persisted(Ready(None, (position,)))
            assert commit <= raft.commit_index <= raft.durable_index <= raft.last_index
            commit = raft.commit_index
