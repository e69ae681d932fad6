"""A node that lost a part of its log: for whom it votes, and what it asks."""

from __future__ import annotations

from tests.raft.test_peers import hear, leader, node, tick
from walrq.raft.core import Raft
from walrq.raft.entries import Tail
from walrq.raft.messages import EndReply, EndRequest, Heartbeat, PreVote, PreVoteReply, Vote, VoteReply


def mending(claimed: tuple[int, int] | None = None) -> Raft:
    """A follower of three in term 2, its log at (2, 3), under repair."""
    raft = node(term=2, tail=Tail(3, 2, ((1, 2),)))
    raft.begin_repair(claimed)
    return raft


def test_a_node_under_repair_votes_for_a_log_as_long_as_its_own_was() -> None:
    """LeaderCompleteness: the bound stands for what it lost; without one it votes for nobody."""
    for claimed, granted in ((None, False), ((2, 5), True), ((2, 6), False), ((3, 1), False)):
        raft = mending(claimed)
        assert [PreVoteReply("c", "a", "b", 2, 1, granted)] == hear(raft, PreVote, "b", 2, 5, 2, 1)
        (reply,) = hear(raft, Vote, "b", 4, 5, 2, False)
        assert isinstance(reply, VoteReply) and reply.granted is granted


def asked(raft: Raft) -> int:
    """Let it ask the others how far their logs reach; the round."""
    for _ in range(60):
        questions = [message for message in tick(raft, 1) if isinstance(message, EndRequest)]
        if questions:
            assert ["b", "c"] == [question.receiver for question in questions]
            return questions[0].round
    raise AssertionError("it does not ask")


def test_when_nobody_leads_it_asks_who_has_most_and_votes_for_that_one() -> None:
    """Once all have answered: whoever is silent may have more."""
    raft = mending((9, 9))
    round_ = asked(raft)
    hear(raft, EndReply, "b", 2, round_, 5, 2)
    assert raft.recovering
    hear(raft, EndReply, "c", 2, round_ - 1, 5, 2)
    assert [PreVoteReply("c", "a", "b", 2, 1, False)] == hear(raft, PreVote, "b", 2, 5, 2, 1)
    hear(raft, EndReply, "c", 2, round_, 4, 2)

    assert raft.recovering
    assert [PreVoteReply("c", "a", "b", 2, 1, True)] == hear(raft, PreVote, "b", 2, 5, 2, 1)
    assert [PreVoteReply("c", "a", "c", 2, 1, False)] == hear(raft, PreVote, "c", 2, 4, 2, 1)


def test_when_nobody_has_more_it_takes_part_again() -> None:
    """What it lost is nowhere."""
    raft = mending()
    round_ = asked(raft)
    hear(raft, EndReply, "b", 2, round_, 3, 2)
    hear(raft, EndReply, "c", 2, round_, 9, 1)

    assert not raft.recovering and raft.is_all_there_is
    hear(raft, EndReply, "c", 2, round_, 9, 9)
    assert not raft.recovering


def test_a_node_that_has_a_leader_does_not_ask() -> None:
    """Nor one that does not vote."""
    raft = mending()
    hear(raft, Heartbeat, "b", 2, 0, 1)
    assert not [message for message in tick(raft, 4) if isinstance(message, EndRequest)]
    learner = node(term=2, voters="bc")
    learner.begin_repair()
    assert not [message for message in tick(learner, 60) if isinstance(message, EndRequest)]


def test_a_question_about_the_log_is_answered_in_any_term_and_changes_nothing() -> None:
    """Whoever asks may be a node that nobody follows."""
    raft = leader()
    for term in (1, 3, 9):
        assert [EndReply("c", "a", "b", 3, 7, raft.last_index, 3)] == hear(raft, EndRequest, "b", term, 7)
    assert raft.is_leader and 3 == raft.term
