"""The core among peers, message by message: what is answered, what is believed, what is ignored."""

from __future__ import annotations

from typing import Any

import pytest

from walrq.errors import InvalidArgument, NotLeader, NotReady, Overloaded, RemoteProtocolError
from walrq.limits import RAFT_READS_MAX
from walrq.raft.core import Raft
from walrq.raft.election import Timing
from walrq.raft.entries import Entry, HardState, Kind, Tail
from walrq.raft.leader import Bounds
from walrq.raft.membership import Configuration, Member
from walrq.raft.messages import (
    Append,
    AppendReply,
    EndRequest,
    Heartbeat,
    HeartbeatReply,
    Message,
    PreVote,
    PreVoteReply,
    ReadReply,
    ReadRequest,
    SnapshotChunk,
    SnapshotOffer,
    SnapshotReply,
    SnapshotStatus,
    TimeoutNow,
    Vote,
    VoteReply,
)
from walrq.raft.reads import ReadState
from walrq.raft.roles import Role, Status

TIMING = Timing(election=10, spread=10, heartbeat=2, stall=20)
THREE_ENTRIES = Tail(3, 2, ((1, 1), (3, 2)))


def node(term: int = 2, tail: Tail = THREE_ENTRIES, voters: str = "abc", **more: Any) -> Raft:
    """Node a of a group, as its disk left it: entries 1.1 1.2 2.3."""
    return Raft("a", voters, HardState(term), tail, cluster="c", timing=TIMING, **more)


def write(raft: Raft) -> None:
    """All that waits for the disk is durable."""
    while ready := raft.take_ready():
        raft.persisted(ready)


def hear(raft: Raft, kind: type[Message], sender: str, term: int, *fields: Any) -> list[Message]:
    """A message arrives; everything is written; what leaves."""
    raft.receive(kind("c", sender, "a", term, *fields))
    write(raft)
    return raft.take_messages()


def leader(**more: Any) -> Raft:
    """Node a, elected in term 3 by b, its no-op 3.4 durable here and committed with b."""
    raft = node(**more)
    raft.campaign()
    write(raft)
    hear(raft, VoteReply, "b", 3, True)
    assert raft.is_leader
    hear(raft, AppendReply, "b", 3, True, 4)
    assert 4 == raft.commit_index
    return raft


def follower() -> Raft:
    """Node a, following b in term 3; elapsed time is zero."""
    raft = node()
    hear(raft, Heartbeat, "b", 3, 0, 1)
    assert "b" == raft.leader
    return raft


def tick(raft: Raft, times: int) -> list[Message]:
    """Time passes; what leaves."""
    out = []
    for _ in range(times):
        raft.tick()
        write(raft)
        out += raft.take_messages()
    return out


# --- terms --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "message",
    [
        AppendReply("c", "b", "a", 4, False, 3),
        AppendReply("c", "b", "a", 4, True, 3),
        HeartbeatReply("c", "b", "a", 4, 1),
        SnapshotReply("c", "b", "a", 4, 1, SnapshotStatus.REFUSED, 0),
        VoteReply("c", "b", "a", 4, False),
        PreVoteReply("c", "b", "a", 4, 1, False),
        ReadReply("c", "b", "a", 4, 1, 1, None),
        TimeoutNow("c", "b", "a", 4),
        Heartbeat("c", "b", "a", 4, 0, 1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_leader_that_learns_of_a_higher_term_is_none_any_more(message: Message) -> None:
    """StaleLeaderSteps: whatever the message is, a reply of refusal or of success."""
    raft = leader()
    raft.receive(message)

    assert (Role.FOLLOWER, 4, None) == (raft.role, raft.term, raft.vote)
    assert raft.lead is None
    with pytest.raises(NotLeader):
        raft.append(Kind.COMMANDS)


def test_a_stale_leader_learns_of_the_term_by_the_answer() -> None:
    """What comes with an older term is answered with the newer one, and changes nothing."""
    raft = node(term=5)
    asked: list[tuple[Message, Message]] = [
        (Append("c", "b", "a", 4, 0, 0, 0, 0), AppendReply("c", "a", "b", 5, False, 0)),
        (Heartbeat("c", "b", "a", 4, 0, 7), HeartbeatReply("c", "a", "b", 5, 7)),
        (Vote("c", "b", "a", 4, 9, 9, False), VoteReply("c", "a", "b", 5, False)),
        (PreVote("c", "b", "a", 4, 9, 9, 1), PreVoteReply("c", "a", "b", 5, 1, False)),
        (ReadRequest("c", "b", "a", 4, 3, 8), ReadReply("c", "a", "b", 5, 3, 8, None)),
        (
            SnapshotChunk("c", "b", "a", 4, 1, 0, True, b""),
            SnapshotReply("c", "a", "b", 5, 1, SnapshotStatus.REFUSED, 0),
        ),
    ]
    for message, answer in asked:
        raft.receive(message)
        assert [answer] == raft.take_messages()
    for message in (
        TimeoutNow("c", "b", "a", 4),
        AppendReply("c", "b", "a", 4, True, 3),
        VoteReply("c", "b", "a", 4, True),
    ):
        raft.receive(message)
        assert [] == raft.take_messages()
    assert (5, Role.FOLLOWER, None, 0) == (raft.term, raft.role, raft.leader, raft.commit_index)


def test_two_leaders_of_one_term_are_refused() -> None:
    """ElectionSafety: no correct peer says that; the link to it ends."""
    raft = follower()
    with pytest.raises(RemoteProtocolError, match="ElectionSafety"):
        raft.receive(Heartbeat("c", "c", "a", 3, 0, 1))
    assert "b" == raft.leader
    with pytest.raises(RemoteProtocolError, match="ElectionSafety"):
        leader().receive(Append("c", "b", "a", 3, 0, 0, 0, 0))


def test_what_is_not_meant_for_this_node_is_dropped_and_counted() -> None:
    """Another cluster's, another node's, its own."""
    raft = node()
    for message in (
        Heartbeat("other", "b", "a", 9, 0, 1),
        Heartbeat("c", "b", "z", 9, 0, 1),
        Heartbeat("c", "a", "a", 9, 0, 1),
    ):
        raft.receive(message)

    assert (2, 3, None) == (raft.term, raft.dropped, raft.leader)


# --- votes --------------------------------------------------------------------------------------------------
def test_a_vote_is_told_once_it_is_durable() -> None:
    """VoteDurableBeforeSent: and the request for votes as well."""
    raft = node()
    raft.receive(Vote("c", "b", "a", 3, 3, 2, False))
    assert [] == raft.take_messages()
    ready = raft.take_ready()
    assert HardState(3, "b") == ready.hard_state
    assert [] == raft.take_messages()
    raft.persisted(ready)
    assert [VoteReply("c", "a", "b", 3, True)] == raft.take_messages()

    raft.campaign()
    assert [] == raft.take_messages()
    write(raft)
    assert [Vote("c", "a", peer, 4, 3, 2, False) for peer in "bc"] == raft.take_messages()


def test_one_vote_a_term() -> None:
    """ElectionSafety: the same candidate may ask again, another may not."""
    raft = node()
    assert [VoteReply("c", "a", "b", 3, True)] == hear(raft, Vote, "b", 3, 3, 2, False)
    assert [VoteReply("c", "a", "b", 3, True)] == hear(raft, Vote, "b", 3, 3, 2, False)
    assert [VoteReply("c", "a", "c", 3, False)] == hear(raft, Vote, "c", 3, 9, 2, False)


def test_votes_of_an_older_term_are_not_counted() -> None:
    """ElectionSafety: they were for another election."""
    raft = node()
    raft.campaign()
    write(raft)
    raft.campaign()
    write(raft)
    hear(raft, VoteReply, "b", 3, True)
    assert Role.CANDIDATE is raft.role
    hear(raft, VoteReply, "b", 4, True)
    assert raft.is_leader


def test_answers_to_an_earlier_asking_are_not_counted() -> None:
    """DisruptionBound: the node that would have voted may have found a leader since."""
    raft = node()
    first = next(message for message in tick(raft, 11) if isinstance(message, PreVote)).round
    second = next(message for message in tick(raft, 11) if isinstance(message, PreVote)).round
    assert first != second
    hear(raft, PreVoteReply, "b", 2, first, True)
    assert Role.PRE_CANDIDATE is raft.role
    hear(raft, PreVoteReply, "b", 2, second, True)
    assert Role.CANDIDATE is raft.role


def test_an_asking_that_is_lost_ends_at_once() -> None:
    """Early quorum exit: no time-out is waited for."""
    raft = node()
    asked = next(message for message in tick(raft, 11) if isinstance(message, PreVote)).round
    hear(raft, PreVoteReply, "b", 2, asked, False)
    hear(raft, PreVoteReply, "c", 2, asked, False)
    assert Role.FOLLOWER is raft.role

    raft.campaign()
    write(raft)
    hear(raft, VoteReply, "b", 3, False)
    hear(raft, VoteReply, "c", 3, False)
    assert Role.FOLLOWER is raft.role


def test_a_live_leader_is_not_deposed_by_who_cannot_hear_it() -> None:
    """DisruptionBound, thesis 4.2.3: not by a question, not by a higher term; by the leader's own wish at once."""
    raft = follower()
    assert [PreVoteReply("c", "a", "c", 3, 5, False)] == hear(raft, PreVote, "c", 3, 99, 3, 5)
    assert [] == hear(raft, Vote, "c", 9, 99, 3, False)
    assert (3, "b") == (raft.term, raft.leader)
    assert [VoteReply("c", "a", "c", 9, True)] == hear(raft, Vote, "c", 9, 99, 3, True)

    raft = follower()
    tick(raft, 10)
    assert [PreVoteReply("c", "a", "c", 3, 5, True)] == hear(raft, PreVote, "c", 3, 99, 3, 5)
    assert [VoteReply("c", "a", "c", 9, True)] == hear(raft, Vote, "c", 9, 99, 3, False)
    assert [] == hear(leader(), Vote, "c", 9, 99, 3, False)


def test_a_question_changes_nothing() -> None:
    """Neither term nor vote, whatever term it comes with."""
    raft = node()
    assert [PreVoteReply("c", "a", "b", 2, 5, True)] == hear(raft, PreVote, "b", 7, 3, 2, 5)
    assert [PreVoteReply("c", "a", "b", 2, 5, False)] == hear(raft, PreVote, "b", 7, 9, 1, 5)

    assert (2, None) == (raft.term, raft.vote)
    assert not raft.take_ready()


def test_an_append_that_is_refused_still_shows_a_live_leader() -> None:
    """A node that is catching up has a leader (redpanda#30817): it must not stand meanwhile."""
    raft = follower()
    for _ in range(30):
        assert [] == tick(raft, 9)
        hear(raft, Append, "b", 3, 50, 3, 50, 0)

    assert (Role.FOLLOWER, "b") == (raft.role, raft.leader)


def test_a_leader_without_a_majority_steps_down() -> None:
    """Within two election time-outs, also when it is heard by all: what it says is answered by nobody."""
    raft = leader()
    tick(raft, 10)
    for _ in range(5):
        hear(raft, HeartbeatReply, "b", 3, 1)
        tick(raft, 10)
        assert raft.is_leader
    tick(raft, 10)

    assert (Role.FOLLOWER, None, 3) == (raft.role, raft.leader, raft.term)


def test_wall_clocks_come_with_the_votes() -> None:
    """The wall clock of an office is made from those of its electors."""
    raft = node()
    raft.campaign()
    write(raft)
    hear(raft, VoteReply, "b", 3, True, 1234)

    assert {"b": 1234} == raft.office_walls


def test_a_lone_node_stands_by_itself_when_time_passes() -> None:
    """It asks nobody and wins at once."""
    raft = node(voters="a")
    tick(raft, 11)
    assert raft.is_leader
    assert [] == tick(raft, 40)
    assert 4 == raft.commit_index


# --- the log ------------------------------------------------------------------------------------------------
def entries(*terms: int) -> tuple[Entry, ...]:
    """Entries of those terms."""
    return tuple(Entry(term, Kind.COMMANDS, b"") for term in terms)


def test_an_append_is_acknowledged_once_it_is_durable() -> None:
    """AckedDurable; a heartbeat is answered at once, whatever the disk does."""
    raft = follower()
    assert 4 == raft.receive(Append("c", "b", "a", 3, 3, 2, 5, 0, 7, entries(3, 3)))
    ready = raft.take_ready()
    raft.receive(Heartbeat("c", "b", "a", 3, 0, 2))
    assert [HeartbeatReply("c", "a", "b", 3, 2)] == raft.take_messages()
    raft.persisted(ready)
    assert [AppendReply("c", "a", "b", 3, True, 5, session=7)] == raft.take_messages()
    assert 5 == raft.durable_index


def test_a_late_shorter_append_takes_nothing_away() -> None:
    """AckedOnQuorum: only a conflict cuts; the answer says what the append covered and no more."""
    raft = follower()
    hear(raft, Append, "b", 3, 3, 2, 6, 0, 0, entries(3, 3, 3))
    assert [AppendReply("c", "a", "b", 3, True, 4)] == hear(raft, Append, "b", 3, 3, 2, 4, 0, 0, entries(3))
    assert [AppendReply("c", "a", "b", 3, True, 1)] == hear(raft, Append, "b", 3, 1, 1, 1, 0)
    assert 6 == raft.last_index


def test_a_conflict_is_cut_and_what_was_durable_is_not_any_more() -> None:
    """LogMatching: the ready says what the stored log loses before it gains."""
    raft = follower()
    assert 2 == raft.receive(Append("c", "b", "a", 3, 1, 1, 2, 0, 0, entries(3)))
    ready = raft.take_ready()
    assert (2, ((3, 2, Kind.COMMANDS),)) == (ready.cut_from, ready.positions)
    assert (2, 1) == (raft.last_index, raft.durable_index)
    raft.persisted(ready)
    assert 2 == raft.durable_index


def test_a_follower_commits_what_the_append_covered_and_no_more() -> None:
    """StateMachineSafety: behind it may lie another leader's entries."""
    raft = follower()
    hear(raft, Append, "b", 3, 1, 1, 1, 3)
    assert 1 == raft.commit_index
    hear(raft, Heartbeat, "b", 3, 2, 5)
    assert 2 == raft.commit_index
    hear(raft, Append, "b", 3, 1, 1, 1, 1)
    assert 2 == raft.commit_index


def test_committed_entries_are_never_cut() -> None:
    """CommitStable: a peer that wants it is broken, or this node is."""
    raft = follower()
    hear(raft, Append, "b", 3, 3, 2, 3, 3)
    assert 3 == raft.commit_index
    raft.receive(Append("c", "b", "a", 3, 1, 1, 3, 3, 0, entries(3, 3)))
    assert (3, 2) == (raft.last_index, raft.last_term)
    with pytest.raises(AssertionError):
        raft._cut_log(3)


def test_the_answer_to_a_gap_names_where_the_logs_may_agree() -> None:
    """One round for each term, not for each entry."""
    raft = follower()
    assert [AppendReply("c", "a", "b", 3, False, 9, 3, 2)] == hear(raft, Append, "b", 3, 9, 3, 9, 0)
    assert [AppendReply("c", "a", "b", 3, False, 3, 2, 1)] == hear(raft, Append, "b", 3, 3, 1, 3, 0)


def test_a_configuration_falls_back_with_its_entry() -> None:
    """ElectionSafety: it was in effect from the moment it was there, and is not when it is not."""
    raft = follower()
    body = Configuration.of("ab").encode()
    hear(raft, Append, "b", 3, 3, 2, 4, 0, 0, (Entry(3, Kind.CONFIGURATION, body),))
    assert set("ab") == set(raft.membership.current.voters)
    hear(raft, Append, "c", 4, 3, 2, 4, 0, 0, entries(4))
    assert set("abc") == set(raft.membership.current.voters)


def test_a_broken_configuration_changes_nothing() -> None:
    """It is refused before anything of its append is taken."""
    raft = follower()
    with pytest.raises(RemoteProtocolError):
        raft.receive(Append("c", "b", "a", 3, 3, 2, 4, 3, 0, (Entry(3, Kind.CONFIGURATION, b"?"),)))
    assert (3, 0) == (raft.last_index, raft.commit_index)


def test_a_leader_refuses_what_it_never_sent() -> None:
    """MatchLeLeaderLog."""
    with pytest.raises(RemoteProtocolError, match="index is 9, the leader's log ends at 4"):
        leader().receive(AppendReply("c", "b", "a", 3, True, 9))


def test_strangers_are_not_counted() -> None:
    """Nodes that are not in the group, or not any more."""
    raft = leader()
    raft.append(Kind.COMMANDS)
    write(raft)
    for kind, fields in (
        (AppendReply, (True, 5)),
        (HeartbeatReply, (1,)),
        (SnapshotReply, (1, SnapshotStatus.DONE, 0)),
    ):
        hear(raft, kind, "q", 3, *fields)
    hear(raft, ReadRequest, "q", 3, 1, 5, True)

    assert 4 == raft.commit_index


def test_appends_are_bounded_by_entries_and_bytes() -> None:
    """Bounded: at least one entry, however large it is."""
    bounds = Bounds(append_entries=3, append_bytes=100)
    raft = leader(bounds=bounds, size_of=lambda index: {6: 500, 7: 60, 8: 30, 9: 30}.get(index, 1))
    tick(raft, 1)
    for _ in range(7):
        raft.append(Kind.COMMANDS)
    sent = [(m.prev_index, m.last_index) for m in raft.take_messages() if isinstance(m, Append) and m.receiver == "b"]

    assert [(4, 5), (5, 6), (6, 8), (8, 11)] == sent


def test_a_full_window_may_be_overtaken_by_a_snapshot() -> None:
    """What a slow follower was not sent yet is gone from the log: no answer is waited for."""
    raft = leader(bounds=Bounds(append_entries=1, in_flight_appends=1))
    hear(raft, AppendReply, "c", 3, True, 4)
    for _ in range(4):
        raft.append(Kind.COMMANDS)
    write(raft)
    for index in (5, 6, 7, 8):
        hear(raft, AppendReply, "b", 3, True, index)
    assert raft.lead is not None and 6 == raft.lead.progress["c"].next
    raft.snapshot_taken(8)
    assert [8] == [message.index for message in raft.take_messages() if isinstance(message, SnapshotOffer)]
    for _ in range(6):
        assert [] == [message for message in hear(raft, HeartbeatReply, "c", 3, 1) if isinstance(message, Append)]


def test_a_link_that_is_back_is_used_at_once() -> None:
    """No heartbeat is waited for."""
    raft = leader()
    raft.append(Kind.COMMANDS)
    assert 5 == max(m.last_index for m in raft.take_messages() if isinstance(m, Append))
    raft.link_lost("b")
    raft.link_lost("q")
    assert [("b", 4, 5)] == [
        (m.receiver, m.prev_index, m.last_index) for m in raft.take_messages() if isinstance(m, Append)
    ]
    follower().link_lost("b")


def test_a_stalled_leader_hands_over_to_the_best_follower() -> None:
    """Its heartbeats do not need its disk, so nobody else would notice."""
    raft = leader()
    raft.append(Kind.COMMANDS)
    raft.take_ready()
    for peer, index in (("b", 4), ("c", 5)):
        raft.receive(AppendReply("c", peer, "a", 3, True, index))
    for _ in range(20):
        raft.tick()
        for peer in "bc":
            raft.receive(HeartbeatReply("c", peer, "a", 3, 1))
    assert raft.is_leader
    raft.take_messages()
    raft.tick()
    assert (Role.FOLLOWER, [TimeoutNow("c", "a", "c", 3)]) == (raft.role, raft.take_messages())
    for _ in range(60):
        raft.tick()
    assert Role.FOLLOWER is raft.role


# --- reads --------------------------------------------------------------------------------------------------
def test_a_read_is_confirmed_by_a_round_that_began_after_it() -> None:
    """AppliedBeforeAnswered: older answers prove nothing."""
    raft = leader()
    before = next(message.round for message in tick(raft, 2) if isinstance(message, Heartbeat))
    raft.read(1)
    rounds = {message.round for message in raft.take_messages() if isinstance(message, Heartbeat)}
    hear(raft, HeartbeatReply, "b", 3, before)
    assert [] == raft.take_reads()
    hear(raft, HeartbeatReply, "b", 3, max(rounds))
    assert [ReadState(1, 4)] == raft.take_reads()
    assert [] == raft.take_reads()


def test_a_lone_leader_answers_at_once_but_not_before_its_first_entry() -> None:
    """What an earlier term acknowledged is committed along with it."""
    raft = node(voters="a")
    raft.campaign()
    raft.persisted(raft.take_ready())
    raft.read(1)
    assert [] == raft.take_reads()
    write(raft)
    raft.read(2)
    assert [ReadState(1, 4), ReadState(2, 4)] == raft.take_reads()


def test_reads_end_with_their_leader() -> None:
    """Nobody waits for ever: at the leader, at a follower, and by time."""
    raft = leader()
    raft.read(1)
    hear(raft, ReadRequest, "b", 3, 7, 8)
    raft.receive(Heartbeat("c", "c", "a", 4, 0, 1))
    write(raft)
    assert [ReadState(1, None)] == raft.take_reads()
    assert ReadReply("c", "a", "b", 4, 7, 8, None) in raft.take_messages()

    raft.read(2)
    hear(raft, Heartbeat, "b", 5, 0, 1)
    assert [ReadState(2, None)] == raft.take_reads()
    raft.read(3)
    for _ in range(10):
        raft.receive(Heartbeat("c", "b", "a", 5, 0, 1))
        raft.tick()
    assert [ReadState(3, None)] == raft.take_reads()

    stranger = node()
    with pytest.raises(NotLeader, match="no leader is known"):
        stranger.read(1)


def test_an_answer_to_another_life_is_not_ours() -> None:
    """AppliedBeforeAnswered: tickets may repeat after a restart."""
    raft = follower()
    raft.read(1)
    (asked,) = [message for message in raft.take_messages() if isinstance(message, ReadRequest)]
    hear(raft, ReadReply, "b", 3, 1, asked.life + 1, 2)
    assert [] == raft.take_reads()
    hear(raft, ReadReply, "b", 3, 1, asked.life, 3)
    hear(raft, ReadReply, "b", 3, 1, asked.life, 3)
    assert [ReadState(1, 3)] == raft.take_reads()


def test_reads_are_bounded() -> None:
    """Here and for others."""
    for raft in (leader(), follower()):
        for ticket in range(RAFT_READS_MAX):
            raft.read(ticket)
        with pytest.raises(Overloaded, match="reads wait"):
            raft.read(RAFT_READS_MAX)
    raft = leader()
    for ticket in range(RAFT_READS_MAX):
        raft.read(ticket)
    assert ReadReply("c", "a", "b", 3, 1, 2, None) in hear(raft, ReadRequest, "b", 3, 1, 2)
    assert ReadReply("c", "a", "b", 3, 1, 2, None) in hear(follower(), ReadRequest, "b", 3, 1, 2)


# --- repair -------------------------------------------------------------------------------------------------
def test_a_node_under_repair_takes_no_part_in_decisions() -> None:
    """LeaderCompleteness: it may have forgotten what it acknowledged."""
    raft = node()
    raft.begin_repair()
    assert Status.RECOVERING is raft.status
    assert [PreVoteReply("c", "a", "b", 2, 1, False)] == hear(raft, PreVote, "b", 2, 9, 2, 1)
    assert [VoteReply("c", "a", "b", 3, False)] == hear(raft, Vote, "b", 3, 9, 2, False)
    assert {EndRequest} == {type(message) for message in tick(raft, 60)}
    assert Role.FOLLOWER is raft.role
    assert [AppendReply("c", "a", "b", 3, True, 3, recovering=True)] == hear(raft, Append, "b", 3, 3, 2, 3, 0)


def test_a_node_is_whole_once_all_that_may_count_is_durable_again() -> None:
    """It asks its leader, again if need be; the leader's word is about the time after it forgot."""
    raft = node()
    raft.begin_repair()
    hear(raft, Heartbeat, "b", 3, 0, 1)
    (asked,) = tick(raft, 1)
    assert isinstance(asked, ReadRequest) and asked.recovering
    assert [] == tick(raft, 5)
    hear(raft, Heartbeat, "b", 3, 0, 2)
    (again,) = [message for message in tick(raft, 6) if isinstance(message, ReadRequest)]
    hear(raft, ReadReply, "b", 3, again.ticket, again.life, 4)
    hear(raft, Heartbeat, "b", 3, 0, 3)
    tick(raft, 1)
    assert raft.recovering
    hear(raft, Append, "b", 3, 3, 2, 4, 4, 0, entries(3))
    tick(raft, 1)
    assert Status.NORMAL is raft.status
    assert [] == raft.take_reads()


def test_a_leader_forgets_what_a_damaged_follower_acknowledged() -> None:
    """AckedOnQuorum: also what is still under way, and what it says before it has told."""
    raft = leader()
    raft.append(Kind.COMMANDS)
    hear(raft, AppendReply, "b", 3, True, 5, 0, 0, True, 0)
    assert 4 == raft.commit_index
    hear(raft, ReadRequest, "b", 3, 1, 99, True)
    hear(raft, AppendReply, "b", 3, True, 5)
    assert 4 == raft.commit_index
    # What it acknowledges from then on, it has.
    hear(raft, AppendReply, "b", 3, True, 5, 0, 0, True, 1)
    assert 5 == raft.commit_index


def test_a_leader_that_must_be_repaired_is_none() -> None:
    """It cannot know what it has acknowledged."""
    raft = leader()
    raft.recovering = True
    assert TimeoutNow("c", "a", "b", 3) in tick(raft, 1)
    assert Role.FOLLOWER is raft.role


# --- membership and transfer --------------------------------------------------------------------------------
def test_the_group_is_changed_one_at_a_time_by_a_leader_that_committed() -> None:
    """QuorumOverlap (Ongaro 2015)."""
    raft = node()
    with pytest.raises(NotLeader):
        raft.remove("c")
    with pytest.raises(NotLeader):
        raft.add_learner(Member("d"))
    raft.campaign()
    write(raft)
    hear(raft, VoteReply, "b", 3, True)
    with pytest.raises(NotReady, match="no entry of this leader's term"):
        raft.remove("c")
    hear(raft, AppendReply, "b", 3, True, 4)
    position, body = raft.add_learner(Member("d", "d:1", b"d" * 16))
    assert (3, 5, Kind.CONFIGURATION) == position
    assert raft.membership.current == Configuration.decode(body)
    with pytest.raises(NotReady, match="one at a time"):
        raft.remove("c")
    write(raft)
    hear(raft, AppendReply, "b", 3, True, 5)
    raft.remove("c")
    assert {"b", "d"} == set(raft.lead.progress) if raft.lead else False


def test_a_learner_is_promoted_once_it_has_caught_up() -> None:
    """Drains: as a voter it would hold up every commit."""
    raft = leader()
    raft.add_learner(Member("d"))
    write(raft)
    hear(raft, AppendReply, "b", 3, True, 5)
    with pytest.raises(NotReady, match="lacks 5 entries"):
        raft.promote("d")
    for _ in range(1001):
        raft.append(Kind.COMMANDS)
    write(raft)
    hear(raft, AppendReply, "d", 3, True, 5)
    with pytest.raises(NotReady, match="lacks 1001 entries"):
        raft.promote("d")
    hear(raft, AppendReply, "d", 3, True, 6)
    raft.promote("d")
    assert set("abcd") == set(raft.membership.current.voters)


def test_a_learner_that_fell_silent_is_not_promoted() -> None:
    """Drains: a dead node's vote only makes the majority larger, and its lag says nothing while little is written."""
    raft = leader()
    raft.add_learner(Member("d"))
    write(raft)
    for node_id in "bd":
        hear(raft, AppendReply, node_id, 3, True, 5)
    for _ in range(2):
        # It counts as there until the second count of the quorum that does not hear of it.
        assert raft.lead is not None and (raft.lead.progress["d"].active or raft.lead.progress["d"].was_active)
        tick(raft, 10)
        hear(raft, AppendReply, "b", 3, True, 5)
    with pytest.raises(NotReady, match="'d' was not heard of lately"):
        raft.promote("d")
    hear(raft, AppendReply, "d", 3, True, 5)
    raft.promote("d")
    assert set("abcd") == set(raft.membership.current.voters)


def test_learners_and_strangers_never_stand() -> None:
    """Also when told to."""
    for raft in (
        Raft("a", "bc", HardState(2), THREE_ENTRIES, cluster="c"),
        Raft("a", "", HardState(2), THREE_ENTRIES, cluster="c"),
    ):
        assert Status.LEARNER is raft.status
        hear(raft, Heartbeat, "b", 2, 0, 1)
        hear(raft, TimeoutNow, "b", 2)
        assert [] == tick(raft, 50)


def test_a_hand_over_refuses_proposals_and_ends_in_time() -> None:
    """Drains: a target that does not answer must not stop the queue."""
    raft = leader()
    raft.transfer("c")
    assert raft.is_leader and not raft.accepts
    for refused in (lambda: raft.append(Kind.COMMANDS), lambda: raft.transfer("b"), lambda: raft.remove("b")):
        with pytest.raises(NotLeader, match="handed to 'c'"):
            refused()
    assert [] == [message for message in tick(raft, 2) if isinstance(message, TimeoutNow)]
    assert TimeoutNow("c", "a", "c", 3) in hear(raft, AppendReply, "c", 3, True, 4)
    for _ in range(8):
        hear(raft, HeartbeatReply, "b", 3, 1)
        tick(raft, 1)
    assert raft.accepts
    with pytest.raises(InvalidArgument, match="'q' is not another voter"):
        raft.transfer("q")


def test_the_best_successor_is_alive_and_holds_most() -> None:
    """A node that stops hands over first, and to one that can win."""
    raft = leader()
    assert "b" == raft.successor
    hear(raft, AppendReply, "c", 3, True, 3)
    assert "b" == raft.successor
    for _ in range(10):
        tick(raft, 1)
    hear(raft, HeartbeatReply, "c", 3, 1)
    assert "c" == raft.successor
    hear(raft, HeartbeatReply, "b", 3, 1)
    assert "b" == raft.successor
    assert follower().successor is None
    assert node(voters="a").successor is None


def test_only_the_leader_may_tell_to_stand() -> None:
    """DisruptionBound."""
    raft = follower()
    assert [] == hear(raft, TimeoutNow, "c", 3)
    assert [Vote("c", "a", peer, 4, 3, 2, True) for peer in "bc"] == hear(raft, TimeoutNow, "b", 3)


def test_a_transfer_ends_when_its_target_leaves() -> None:
    """There is nobody to hand over to; a removed follower is not sent to either."""
    raft = leader()
    raft.remove("c")
    write(raft)
    hear(raft, AppendReply, "b", 3, True, 5)
    assert raft.lead is not None
    raft.transfer("b")
    raft.lead._membership.append(6, Configuration.of("a"))
    raft.lead.reconfigure()
    assert raft.accepts and raft.lead.is_alone


# --- snapshots ----------------------------------------------------------------------------------------------
def test_a_snapshot_covers_only_what_is_committed_and_durable() -> None:
    """SnapLeCommit, SnapLeDurable: what a crash can undo is not imaged."""
    raft = leader()
    raft.append(Kind.COMMANDS)
    ready = raft.take_ready()
    with pytest.raises(AssertionError):
        raft.snapshot_taken(5)
    for peer in "bc":
        raft.receive(AppendReply("c", peer, "a", 3, True, 5))
    assert 5 == raft.commit_index
    with pytest.raises(AssertionError):
        raft.snapshot_taken(5)
    raft.persisted(ready)
    raft.snapshot_taken(5, first_kept=4)
    assert (3, 2) == (raft.log.base_index, raft.log.base_term)
    raft.snapshot_taken(4)
    assert raft.snapshot is not None and 5 == raft.snapshot.index


def test_what_is_gone_from_the_log_comes_by_snapshot() -> None:
    """Only to a follower that answers; and only once there is one that covers it."""
    raft = leader()
    raft.log.compact(4)
    assert not raft.snapshot_wanted
    assert [] == raft.wanted_chunks()
    hear(raft, AppendReply, "c", 3, False, 3, 2, 1)
    assert raft.snapshot_wanted
    raft.snapshot_taken(4)
    assert not raft.snapshot_wanted
    (offer,) = [message for message in tick(raft, 1) if isinstance(message, SnapshotOffer)]
    assert (4, 3, "c") == (offer.index, offer.snapshot_term, offer.receiver)
    hear(raft, SnapshotReply, "c", 3, offer.stream, SnapshotStatus.RESUME, 0)
    (wanted,) = raft.wanted_chunks()
    assert [] == raft.wanted_chunks()
    assert not raft.supply("c", wanted.stream, 5, b"", True)
    assert not raft.supply("c", wanted.stream + 1, 0, b"", True)
    assert raft.supply("c", wanted.stream, 0, b"all", True)
    assert not raft.supply("c", wanted.stream, 0, b"all", True)
    hear(raft, SnapshotReply, "c", 3, offer.stream, SnapshotStatus.STORED, 3)
    hear(raft, SnapshotReply, "c", 3, offer.stream, SnapshotStatus.DONE, 0)
    assert raft.lead is not None and 4 == raft.lead.match["c"]
    assert not raft.supply("c", wanted.stream, 3, b"", True)
    raft.snapshot_gone("c", wanted.stream)


def test_a_snapshot_that_is_gone_begins_again_at_once_and_one_that_is_refused_after_a_rest() -> None:
    """With the newest one. A disk that is full refuses the next one, too: without a rest that is a loop."""
    raft = leader()
    raft.snapshot_taken(4)
    hear(raft, AppendReply, "c", 3, False, 3, 2, 1)
    assert raft.lead is not None
    progress = raft.lead.progress["c"]

    def offers(messages: list[Message]) -> list[int]:
        return [message.stream for message in messages if isinstance(message, SnapshotOffer)]

    assert progress.outgoing is not None
    stream = progress.outgoing.stream
    raft.snapshot_gone("c", stream)
    assert [stream + 1] == offers(raft.take_messages())
    assert [] == offers(hear(raft, SnapshotReply, "c", 3, stream + 1, SnapshotStatus.REFUSED, 0))
    for _ in range(TIMING.election - 1):
        assert [] == offers(tick(raft, 1) + hear(raft, HeartbeatReply, "c", 3, 1))
    assert [stream + 2] == offers(tick(raft, 1) + hear(raft, HeartbeatReply, "c", 3, 1))


def test_a_follower_that_comes_within_reach_needs_no_snapshot() -> None:
    """Late answers may show that the log suffices."""
    raft = leader()
    raft.snapshot_taken(4, first_kept=3)
    hear(raft, AppendReply, "c", 3, False, 3, 0, 0)
    assert raft.lead is not None and raft.lead.progress["c"].outgoing is not None
    hear(raft, AppendReply, "c", 3, True, 1)
    assert raft.lead.progress["c"].outgoing is not None
    hear(raft, AppendReply, "c", 3, True, 2)
    assert raft.lead.progress["c"].outgoing is None
    assert 2 == raft.lead.progress["c"].match


def test_a_snapshot_is_installed_with_its_configuration() -> None:
    """ConfigFromSnapshotOrLog, LogMatching: nothing of a conflicting log stays; a matching suffix does."""
    for term, kept in ((2, 0), (1, 2)):
        raft = follower()
        later = (Entry(3, Kind.CONFIGURATION, Configuration.of("ab").encode()),)
        hear(raft, Append, "b", 3, 3, 2, 4, 0, 0, later)
        offer = (1, 2, term, Configuration.of("abcd"))
        (answer,) = hear(raft, SnapshotOffer, "b", 3, *offer)
        assert SnapshotReply("c", "a", "b", 3, 1, SnapshotStatus.RESUME, 0) == answer
        hear(raft, SnapshotChunk, "b", 3, 1, 0, True, b"all")
        (chunk,) = raft.take_chunks()
        assert raft.chunk_stored(chunk)
        # Appends wait until the caller is done.
        assert [SnapshotReply("c", "a", "b", 3, 1, SnapshotStatus.STORED, 3)] == hear(raft, Append, "b", 3, 3, 2, 3, 3)
        assert (kept == 2) == raft.holds(2, term)
        raft.installed(chunk)
        assert [SnapshotReply("c", "a", "b", 3, 1, SnapshotStatus.DONE, 0)] == raft.take_messages()
        assert (2, 2, 2 + kept, 2 + kept) == (
            raft.commit_index,
            raft.log.base_index,
            raft.last_index,
            raft.durable_index,
        )
        groups = [(2, "abcd"), (4, "ab")] if kept else [(2, "abcd")]
        assert groups == [(index, "".join(sorted(found.voters))) for index, found in raft.membership.history]
        assert [SnapshotReply("c", "a", "b", 3, 2, SnapshotStatus.DONE, 0)] == hear(
            raft, SnapshotOffer, "b", 3, 2, 2, term, Configuration.of("abc")
        )


def test_a_follower_that_lacks_what_its_leader_heard_it_acknowledge_begins_a_repair() -> None:
    """AckedOnQuorum: its disk is an older copy; the leader would count it for ever, and send it nothing."""
    raft = follower()
    hear(raft, Heartbeat, "b", 3, raft.last_index, 1)
    assert not raft.recovering
    hear(raft, Heartbeat, "b", 3, raft.last_index + 1, 2)
    assert raft.recovering
    assert raft.commit_index == raft.last_index


def test_nothing_is_committed_behind_a_snapshot_that_is_being_installed() -> None:
    """CommitMonotonic: the log's entries got there as well, acknowledged late; what is applied meanwhile is undone."""
    raft = follower()
    hear(raft, SnapshotOffer, "b", 3, 1, 2, 1, Configuration.of("abc"))
    hear(raft, SnapshotChunk, "b", 3, 1, 0, True, b"all")
    (chunk,) = raft.take_chunks()
    assert raft.chunk_stored(chunk)
    before = raft.commit_index
    hear(raft, Heartbeat, "b", 3, 3, 1)
    assert before == raft.commit_index
    raft.installed(chunk)
    hear(raft, Heartbeat, "b", 3, 3, 2)
    assert 3 == raft.commit_index


def test_a_snapshot_that_is_no_good_is_refused() -> None:
    """The leader begins again; without a word if there is another leader by now."""
    for later in (False, True):
        raft = follower()
        hear(raft, SnapshotOffer, "b", 3, 1, 9, 3, Configuration.of("abc"))
        hear(raft, SnapshotChunk, "b", 3, 1, 0, True, b"?")
        (chunk,) = raft.take_chunks()
        raft.chunk_stored(chunk)
        raft.take_messages()
        if later:
            hear(raft, Heartbeat, "c", 4, 0, 1)
        raft.refuse_snapshot(chunk)
        raft.refuse_snapshot(chunk)
        refused = SnapshotReply("c", "a", "b", 3, 1, SnapshotStatus.REFUSED, 0)
        assert ([] if later else [refused]) == raft.take_messages()


def test_a_node_with_peers_starts_from_what_its_disk_and_snapshot_say() -> None:
    """Configurations of the log are in effect at once, also those that are not committed."""
    found = [(2, Configuration.of("abc")), (3, Configuration.of("abcd"))]
    raft = node(tail=Tail(3, 2, ((2, 1), (3, 2)), 2, 1), voters="", configurations=found)

    assert (2, 3, 3) == (raft.commit_index, raft.last_index, raft.durable_index)
    assert raft.snapshot is not None and (2, 1) == (raft.snapshot.index, raft.snapshot.term)
    assert set("abcd") == set(raft.membership.current.voters)
    assert set("abc") == set(raft.snapshot.configuration.voters)
