"""Three replicas: what is decided by a majority is everybody's, and survives whoever decided it."""

from __future__ import annotations

import pytest

from tests.replica.group import Group, Node, lease, push
from walrq import api
from walrq.errors import NotLeader
from walrq.queues import commands as c
from walrq.queues import effects
from walrq.raft.messages import Append
from walrq.raft.roles import Status


@pytest.fixture
def group() -> Group:
    """A new cluster of three, with a leader."""
    group = Group()
    group.connect()
    group.leader()
    return group


def granted(result: effects.Result) -> tuple[effects.Grant, ...]:
    """The runs of a lease."""
    assert isinstance(result, effects.Granted), result
    return result.runs


# --- birth --------------------------------------------------------------------------------------------------
def test_a_new_cluster_elects_a_leader_and_is_born_once(group: Group) -> None:
    """Whoever leads first draws the secret that all receipts are keyed with."""
    group.converge()

    machines = [node.replica.machine for node in group.alive]
    assert {machine.cluster for machine in machines} == {"cluster"}
    assert len({machine.secret for machine in machines}) == 1
    assert [node.name for node in group.alive if node.replica.is_leader] == [group.leader().name]
    assert {node.replica.leader for node in group.alive} == {group.leader().name}


def test_names_are_bound_to_disks_and_addresses(group: Group) -> None:
    """A node that comes with another disk is not the one that voted."""
    group.ticks(4)

    configuration = group.leader().replica.configuration
    assert {name: member.disk_uuid for name, member in configuration.voters.items()} == {
        node.name: node.replica.disk_uuid for node in group.alive
    }
    assert {member.address for member in configuration.voters.values()} == {"a:1", "b:1", "c:1"}


# --- pushes -------------------------------------------------------------------------------------------------
def test_a_push_is_answered_when_a_majority_has_it(group: Group) -> None:
    """Not by the leader's own disk."""
    leader = group.leader()
    first, second = group.others(leader)
    group.isolate(first.name)
    group.isolate(second.name)
    (ticket,) = leader.ask(push(b"m"))
    group.settle()
    assert ticket not in leader.results

    group.heal()
    group.isolate(second.name)
    group.ticks(4)

    assert isinstance(leader.results[ticket], api.Pushed)


def test_everybody_applies_the_same(group: Group) -> None:
    """The images are equal page by page."""
    leader = group.leader()
    leader.do(push(b"a", b"b"), push(b"c", delay_ms=5_000), c.OpenSession())
    leader.do(lease(1), push(b"late", queue="other", priority=3))

    group.converge()


def test_a_leader_sends_before_its_own_disk_is_done(group: Group) -> None:
    """Its sync overlaps replication; the others' disks decide."""
    leader = group.leader()
    leader.stuck = True
    (ticket,) = leader.ask(push(b"m"))
    group.settle()

    assert ticket in leader.results and leader.batch is not None
    leader.stuck = False
    group.converge()


# --- failover -----------------------------------------------------------------------------------------------
def test_a_leader_reads_bodies_that_its_own_disk_does_not_hold_yet() -> None:
    """Applied by the disks of others, and pushed out of the cache by what came behind."""
    group = Group(body_cache_bytes=100)
    group.connect()
    leader = group.leader()
    group.ticks(4)
    leader.stuck = True
    ticket = leader.ask(push(b"cold"), push(b"warm"))[0]
    group.settle()
    pushed = leader.results[ticket]
    index = leader.replica.applied_index
    assert isinstance(pushed, api.Pushed) and leader.storage.last_index < index
    assert b"cold" == leader.replica.load_body(index, 0).payloads


def test_a_lease_and_its_receipt_survive_a_failover(group: Group) -> None:
    """Nobody else gets the message, and the holder may settle it at the new leader."""
    old = group.leader()
    (pushed, polled) = old.do(push(b"m"), lease())
    (grant,) = granted(polled)
    old.crash()
    new = group.leader()

    (empty,) = new.do(lease())
    assert granted(empty) == ()
    (settled,) = new.do(c.Settle("q", api.SettleKind.ACK, (c.Target(grant.uid, grant.lease),)))
    assert isinstance(settled, api.Settled) and settled.codes == (0,)
    assert isinstance(pushed, api.Pushed)


def test_a_retried_request_returns_its_first_result_on_the_new_leader(group: Group) -> None:
    """The session's table is replicated."""
    old = group.leader()
    (opened,) = old.do(c.OpenSession())
    assert isinstance(opened, api.SessionOpened)
    (first,) = old.do(push(b"m"), tagged=(opened.session, 1, 1))
    old.crash()
    new = group.leader()

    (again,) = new.do(push(b"m"), tagged=(opened.session, 1, 1))
    assert again == first
    assert new.replica.machine.queues["q"].length == 1


def test_a_deduplicated_push_is_recognised_after_a_failover(group: Group) -> None:
    """The window is replicated."""
    old = group.leader()
    columns = push(b"m").columns
    one = c.Push("q", api.Columns(columns.payloads, columns.ends, dedup=("k",)))
    (first,) = old.do(one)
    old.crash()
    new = group.leader()
    (again,) = new.do(one)

    assert isinstance(first, api.Pushed) and isinstance(again, api.Pushed)
    assert new.replica.machine.queues["q"].length == 1


def test_lost_and_refused_are_told_apart(group: Group) -> None:
    """What was appended may still happen; what was only gathered will not."""
    leader = group.leader()
    group.isolate(leader.name)
    (lost,) = leader.ask(push(b"lost"))
    group.settle()
    leader.stuck = True
    (also_lost,) = leader.ask(push(b"lost too"))
    group.settle()
    (refused,) = leader.ask(push(b"refused"))
    group.ticks(20)

    assert not leader.replica.is_leader
    assert sorted(leader.lost) == [lost, also_lost] and leader.refused == [refused]
    with pytest.raises(NotLeader):
        leader.ask(push(b"no"))
    leader.stuck = False
    group.heal()
    group.leader()
    group.converge()
    assert "q" not in leader.replica.machine.queues


def test_a_lost_push_that_another_leader_spreads_happens_after_all(group: Group) -> None:
    """Its ticket is told once: lost."""
    leader = group.leader()
    other, third = group.others(leader)
    group.isolate(third.name)
    group.drops = lambda message: message.sender == other.name
    (ticket,) = leader.ask(push(b"m"))
    group.settle()
    group.isolate(leader.name)
    group.cut -= {(other.name, third.name), (third.name, other.name)}
    group.drops = lambda _message: False
    group.ticks(25)
    assert leader.lost == [ticket]

    group.heal()
    group.converge(20)

    assert leader.results == {} or ticket not in leader.results
    assert leader.lost == [ticket]
    assert leader.replica.machine.queues["q"].length == 1


def test_a_leader_that_was_paused_answers_what_another_leader_replaced(group: Group) -> None:
    """Who asked would wait for ever: the first word of the new leader may be what stands in the request's place."""
    paused = group.leader()
    group.isolate(paused.name)
    (ticket,) = paused.ask(push(b"m"))
    group.settle()
    paused.up = False
    group.ticks(25)
    new = group.leader()
    new.do(push(b"other"))

    group.heal()
    group.drops = lambda message: message.receiver == paused.name and not isinstance(message, Append)
    paused.up = True
    new.replica.link_lost(paused.name)
    group.settle()

    assert paused.replica.leader == new.name
    assert paused.lost == [ticket]


def test_a_deposed_leader_cannot_lease(group: Group) -> None:
    """What it grants is decided by nobody."""
    old = group.leader()
    old.do(push(b"m"))
    group.isolate(old.name)
    (ticket,) = old.ask(lease())
    group.settle()
    assert ticket not in old.results
    new = next(node for node in group.others(old))
    group.ticks(25)
    new = group.leader()
    assert new is not old

    (polled,) = new.do(lease())
    assert len(granted(polled)) == 1
    group.heal()
    group.converge(20)
    assert old.lost == [ticket]


def test_a_hand_over_refuses_nothing_that_can_still_be_done(group: Group) -> None:
    """Proposals wait for its end."""
    old = group.leader()
    target = group.others(old)[0]
    old.do(push(b"m"))
    old.replica.transfer(target.name)
    assert not old.replica.accepts and not old.replica.has_work
    with pytest.raises(NotLeader) as caught:
        old.ask(push(b"n"))
    assert caught.value.details["leader"] == target.name
    group.settle()

    assert target.replica.is_leader and not old.replica.is_leader
    group.converge()


# --- restarts -----------------------------------------------------------------------------------------------
def test_a_follower_restarts_and_applies_what_it_missed(group: Group) -> None:
    """From its own log what it has, from the leader the rest."""
    leader = group.leader()
    follower = group.others(leader)[0]
    for number in range(20):
        leader.do(push(b"before %d" % number))
    follower.crash()
    for number in range(20):
        leader.do(push(b"meanwhile %d" % number))
    follower.start()
    group.connect()
    loads = follower.loads

    group.converge()
    assert follower.loads > loads


def test_a_whole_group_restarts(group: Group) -> None:
    """Everything that was answered is there, and the secret is the same."""
    leader = group.leader()
    secret = leader.replica.machine.secret
    leader.do(push(b"a"), push(b"b"))
    leader.do(lease(1))
    for node in group.alive:
        node.crash(7)
    for node in group.nodes.values():
        node.configuration = None
        node.start()
    new = group.leader()
    group.converge()

    assert new.replica.machine.secret == secret
    queue = new.replica.machine.queues["q"]
    assert (queue.ready, queue.leased) == (1, 1)


def test_a_restarted_member_does_not_ask_for_the_list_again(group: Group) -> None:
    """Only a first start does, and another list changes nothing."""
    leader = group.leader()
    follower = group.others(leader)[0]
    follower.crash()
    follower.configuration = None
    follower.start()

    assert not follower.replica.is_leader
    assert set(follower.replica.configuration.voters) == {"a", "b", "c"}
    assert follower.replica.status is Status.NORMAL
    group.converge()


# --- clocks -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
@pytest.mark.parametrize("whose", ["leader", "follower"])
def test_a_jump_of_one_wall_clock_ends_no_lease_and_fires_nothing_early(jump_ms: int, whose: str, group: Group) -> None:
    """Also when the node whose clock jumped leads next."""
    leader = group.leader()
    leader.do(push(b"leased"), push(b"delayed", delay_ms=30_000, queue="later"))
    leader.do(lease(visibility_ms=30_000))
    group.ticks(4)
    jumper = leader if whose == "leader" else group.others(leader)[0]
    jumper.wall_off_ms += jump_ms
    began_ms = group.now_ms
    for _ in range(3):
        group.ticks(20)
        leader = group.leader()
        leader.replica.propose_expiry()
        group.settle()
        assert leader.replica.machine.queues["q"].leased == 1
        assert leader.replica.machine.queues["later"].delayed == 1
        target = jumper if leader is not jumper else group.others(jumper)[0]
        group.elect(target.name)
    while group.now_ms - began_ms < 33_500:
        group.ticks(20)
    leader = group.leader()
    leader.replica.propose_expiry()
    group.settle()

    assert leader.replica.machine.queues["q"].leased == 0
    assert leader.replica.machine.queues["later"].delayed == 0
    group.converge()


def test_a_lease_gets_longer_by_a_failover_never_shorter(group: Group) -> None:
    """The lease clock goes on from the last stamp of the new leader's log."""
    old = group.leader()
    old.do(push(b"m"))
    old.do(lease(visibility_ms=1_000))
    granted_ms = group.now_ms
    old.crash()
    new = group.leader()
    while new.replica.machine.queues["q"].leased:
        group.ticks(1)
        new.replica.propose_expiry()
        group.settle()

    assert group.now_ms - granted_ms >= 1_000


def test_the_lease_clock_of_a_lone_node_runs_from_its_start() -> None:
    """Though nobody asks anything of it: what is due by then does not wait for one entry more."""
    group = Group(("a",))
    node = group["a"]
    node.do(push(b"m"))
    granted(node.do(lease(visibility_ms=20_000))[0])
    node.restart()
    group.now_ms += 19_999
    assert () == granted(node.do(lease())[0])
    node.restart()
    group.now_ms += 1
    assert 1 == len(granted(node.do(lease())[0]))


def test_the_lease_clock_of_an_office_runs_from_its_beginning(group: Group) -> None:
    """Whether or not its leader has anybody to tell."""
    old = group.leader()
    old.do(push(b"m"))
    granted(old.do(lease(visibility_ms=20_000))[0])
    old.crash()
    new = group.leader()
    began_ms = group.now_ms
    assert new.replica.stamp_now(new.reading()).lease_ms >= old.replica.machine.now
    before = new.replica.stamp_now(new.reading()).lease_ms
    group.now_ms += 500
    assert 500 == new.replica.stamp_now(new.reading()).lease_ms - before and began_ms + 500 == group.now_ms


# --- reads --------------------------------------------------------------------------------------------------
def test_a_read_is_answered_where_it_was_asked(group: Group) -> None:
    """By a leader, and by a follower once it has applied far enough."""
    leader = group.leader()
    leader.do(push(b"m"))
    for node in group.alive:
        assert node.read(5) is True
        assert node.replica.machine.queues["q"].ready == 1


def test_a_read_of_a_leader_that_is_cut_off_is_not_answered(group: Group) -> None:
    """It might be stale."""
    leader = group.leader()
    group.isolate(leader.name)
    assert leader.read(5) is None
    group.ticks(20)

    assert leader.reads[5] is False


def test_a_group_of_one_answers_reads_at_once() -> None:
    """It knows all there is."""
    group = Group(("a",))

    assert group["a"].read(1) is True


def states(node: Node) -> dict[str, object]:
    """Of all members, as a node sees them."""
    return {name: member["state"] for name, member in node.replica.cluster_state()["members"].items()}


def test_the_state_of_the_group_is_told(group: Group) -> None:
    """The leader knows how far each is; others know who belongs to it."""
    leader = group.leader()
    leader.do(push(b"m"))
    group.ticks(3)
    state = leader.replica.cluster_state()

    assert state["leader"] == leader.name and state["status"] == "normal"
    assert {member["match_index"] for member in state["members"].values()} == {leader.replica.last_index}
    assert sorted(filter(None, states(leader).values())) == ["replicate", "replicate"]
    other = group.others(leader)[0]
    assert set(states(other).values()) == {None}
