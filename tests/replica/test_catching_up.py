"""Nodes that were away: they catch up by the log, or by a snapshot and the live entries they lack."""

from __future__ import annotations

import random

import pytest

from tests.replica.group import Group, Node, lease, members, push
from walrq import api
from walrq.errors import ConfigError, InvalidArgument, NotReady, Reclaimed, StorageError
from walrq.queues import commands as c
from walrq.queues import effects
from walrq.queues.image import full_pages
from walrq.raft.membership import Configuration, Member
from walrq.raft.roles import Status

SHORT = {"snapshot_commands": 12, "snapshot_log_bytes": 4_000, "recent_bytes": 2_000}


@pytest.fixture
def group() -> Group:
    """Three that image their state often and keep little of the log."""
    group = Group(**SHORT)
    group.connect()
    group.leader()
    group.ticks(4)
    return group


def settle_all(leader: Node, polled: effects.Result) -> None:
    """Ack what was leased."""
    assert isinstance(polled, effects.Granted)
    targets = tuple(c.Target(run.uid, run.lease) for run in polled.runs)
    leader.do(c.Settle("q", api.SettleKind.ACK, targets))


def busy(leader: Node, rounds: int, size: int = 400) -> None:
    """Messages that come and go, and every tenth that stays."""
    for number in range(rounds):
        leader.do(push(b"%03d" % number + b"x" * size))
        if number % 10 == 0:
            leader.do(push(b"stays %d" % number, queue="kept"))
        (polled,) = leader.do(lease(5))
        settle_all(leader, polled)
        leader.group.ticks(1)


def bodies(node: Node) -> list[bytes]:
    """Every live payload, read from the log of a node."""
    found = []
    for queue in node.replica.machine.queues.values():
        for batch in queue.batches():
            columns = node.replica.load_body(batch.index, batch.ordinal)
            assert columns.count == batch.total
            found.append(columns.payloads)
    return sorted(found)


# --- points -------------------------------------------------------------------------------------------------
def test_all_nodes_image_the_same_entries(group: Group) -> None:
    """A point is an entry of the log."""
    busy(group.leader(), 30)
    group.converge()

    stats = [node.replica.stats() for node in group.alive]
    assert len({each["snapshot_index"] for each in stats}) == 1 and stats[0]["snapshots"] > 2
    assert not any(node.findings for node in group.alive)


def test_a_state_that_differs_is_noticed_and_does_not_lead(group: Group) -> None:
    """At the next point but one; the node goes on voting, so that nothing stands still."""
    leader = group.leader()
    odd, third = group.others(leader)
    busy(leader, 3)
    odd.replica.machine.queues["kept"].next_seq += 1
    odd.replica.machine.queues["kept"].mark(-1)
    busy(leader, 24)

    assert len(odd.findings) >= 1 and "state_diverged" in odd.findings[0]
    assert not leader.findings and not third.findings
    leader.crash()
    assert group.leader() is third


# --- by the log ---------------------------------------------------------------------------------------------
def test_a_follower_catches_up_by_a_log_that_left_memory() -> None:
    """What followers lack is read back."""
    group = Group(recent_bytes=1_000)
    group.connect()
    leader = group.leader()
    group.ticks(4)
    away = group.others(leader)[0]
    away.crash()
    loads = leader.loads
    for number in range(40):
        leader.do(push(b"%d" % number * 100))
    assert leader.replica.stats()["recent_bytes"] <= 1_600
    away.start()
    group.connect()

    group.converge(20)
    assert leader.loads > loads
    assert bodies(away) == bodies(leader)


# --- by a snapshot ------------------------------------------------------------------------------------------
def test_a_follower_that_was_long_away_gets_a_snapshot_and_what_is_live(group: Group) -> None:
    """And reads every live body from its own log."""
    leader = group.leader()
    busy(leader, 5)
    away = group.others(leader)[0]
    away.crash()
    busy(leader, 30)
    away.start()
    group.connect()
    group.converge(30)

    assert away.installs == 1
    assert away.replica.stats()["snapshot_index"] >= leader.replica.stats()["snapshot_index"] - 30
    assert bodies(away) == bodies(leader)


def test_what_died_meanwhile_does_not_travel(group: Group) -> None:
    """The follower's log has gaps where its leader's was alive for a while."""
    leader = group.leader()
    leader.do(push(b"stays", queue="kept"))
    away = group.others(leader)[0]
    away.crash()
    for number in range(90):
        leader.do(push(b"%03d" % number * 100))
        (polled,) = leader.do(lease(5))
        settle_all(leader, polled)
    leader.do(push(b"stays too", queue="kept"))
    busy(leader, 20)
    away.start()
    group.connect()
    group.converge(30)

    assert away.installs == 1 and bodies(away) == bodies(leader)
    with pytest.raises(Reclaimed):
        away.storage.read(130)


def test_an_installed_node_goes_on_and_restarts(group: Group) -> None:
    """It leads, and starts again from what it was sent."""
    leader = group.leader()
    away = group.others(leader)[0]
    away.crash()
    busy(leader, 24)
    away.start()
    group.connect()
    group.converge(30)
    away.crash(3)
    away.start()
    group.connect()
    group.converge(10)
    new = group.elect(away.name)
    busy(new, 20)
    group.converge()

    assert bodies(new) == bodies(leader)
    assert not any(node.findings for node in group.alive)


def test_a_stream_resumes_after_its_link_was_lost(group: Group) -> None:
    """And the follower's own entries up to where it agrees stay."""
    leader = group.leader()
    busy(leader, 5)
    away = group.others(leader)[0]
    away.crash()
    busy(leader, 24, size=200)
    away.start()
    lost = 0
    draw = random.Random(5)

    def drops(message: object) -> bool:
        nonlocal lost
        is_lost = type(message).__name__ == "SnapshotChunk" and draw.random() < 0.3
        lost += is_lost
        return is_lost

    group.drops = drops
    group.connect()
    group.converge(200)

    assert lost > 3 and away.installs == 1
    assert bodies(away) == bodies(leader)


def test_a_new_leader_begins_its_own_stream(group: Group) -> None:
    """What half a stream left behind is void."""
    leader = group.leader()
    away = group.others(leader)[0]
    away.crash()
    busy(leader, 24)
    away.start()
    seen = 0

    def stops(message: object) -> bool:
        nonlocal seen
        seen += type(message).__name__ == "SnapshotChunk"
        return type(message).__name__ == "SnapshotChunk" and seen > 2

    group.drops = stops
    group.connect()
    group.ticks(10)
    assert seen > 2
    group.drops = lambda _message: False
    leader.crash()
    new = group.leader()
    group.converge(30)

    assert bodies(away) == bodies(new)


def test_a_leader_whose_snapshot_is_damaged_takes_another_and_sends_that(group: Group) -> None:
    """Nothing wrong is sent, somebody is told, and none of the pages it had is used again."""
    leader = group.leader()
    away = group.others(leader)[0]
    away.crash()
    busy(leader, 24)
    for name in leader.disk.list_directory("data/snapshots"):
        if name.startswith("pages-"):
            path = f"data/snapshots/{name}"
            leader.disk.zero(path, 0, leader.disk.size(path))
    before = leader.replica.stats()["snapshot_index"]
    away.start()
    group.connect()
    group.ticks(20)

    assert not away.findings and len(leader.findings) == 1
    assert "snapshot_unreadable" in leader.findings[0]
    assert leader.replica.stats()["snapshot_index"] > before
    assert away.installs == 1
    group.converge()
    assert bodies(away) == bodies(leader)
    leader.restart()
    group.converge(30)


# --- joining and leaving ------------------------------------------------------------------------------------
def test_a_node_joins_by_log_is_promoted_and_votes(group: Group) -> None:
    """It is a member of nothing until it is told."""
    leader = group.leader()
    new = group.add("d", **SHORT)
    assert new.replica.status is Status.LEARNER and new.replica.configuration == Configuration()
    group.ticks(30)
    assert not new.replica.is_leader and new.replica.term == 0

    index = leader.replica.add_learner(Member("d", "d:1"))
    group.settle()
    assert leader.replica.commit_index >= index
    group.connect()
    group.ticks(10)
    leader.replica.promote("d")
    group.converge()

    assert new.replica.status is Status.NORMAL
    assert group.elect("d") is new


def test_a_node_that_joins_and_starts_again_still_joins(group: Group) -> None:
    """Whether or not something was sent; it never takes itself for a cluster."""
    new = group.add("d", **SHORT)
    new.crash()
    new.configuration = None
    new.start()
    group.ticks(30)
    assert not new.replica.is_leader and new.replica.last_index == 0

    group.leader().replica.add_learner(Member("d", "d:1"))
    group.settle()
    new.crash()
    new.start()
    group.connect()
    group.converge(20)
    assert new.replica.status is Status.LEARNER


def test_a_learner_that_was_sent_a_part_of_the_log_does_not_take_itself_for_a_cluster() -> None:
    """The log of a node that began alone does not name its members until the first one joins."""
    group = Group(("a",))
    first = group["a"]
    for number in range(30):
        first.do(push(b"%d" % number * 300))
    new = group.add("d")
    first.replica.add_learner(Member("d", "d:1"))
    seen = 0

    def stops(message: object) -> bool:
        nonlocal seen
        seen += type(message).__name__ == "Append"
        return type(message).__name__ == "Append" and seen > 3

    group.drops = stops
    group.ticks(3)
    assert 0 < new.replica.last_index < first.replica.last_index
    assert new.replica.configuration == Configuration()
    new.crash()
    new.configuration = None
    new.start()
    group.ticks(30)

    assert not new.replica.is_leader
    group.drops = lambda _message: False
    group.converge(10)
    assert new.replica.status is Status.LEARNER


@pytest.mark.parametrize("short", [False, True], ids=["by log", "by snapshot"])
def test_a_single_node_grows_to_three(short: bool) -> None:
    """Its data becomes everybody's."""
    more = SHORT if short else {}
    group = Group(("a",), **more)
    first = group["a"]
    secret = first.replica.machine.secret
    busy(first, 20)
    for name in ("b", "c"):
        group.add(name, **more)
        group.connect()
        first.replica.add_learner(Member(name, f"{name}:1"))
        group.ticks(20)
        first.replica.promote(name)
        group.ticks(5)
    group.converge()

    assert set(first.replica.configuration.voters) == {"a", "b", "c"}
    assert {node.replica.machine.secret for node in group.alive} == {secret}
    assert {tuple(bodies(node)) for node in group.alive} == {tuple(bodies(first))}
    first.crash()
    busy(group.leader(), 5)


def test_three_shrink_to_one_and_it_goes_on_alone(group: Group) -> None:
    """Also after a restart."""
    leader = group.leader()
    busy(leader, 5)
    for other in group.others(leader):
        leader.replica.remove(other.name)
        group.settle()
        other.crash()
    leader.do(push(b"alone"))
    assert leader.replica.take_messages(leader.reading()) == []
    image = leader.image()
    leader.crash()
    leader.start()

    assert leader.replica.is_leader
    after = full_pages(leader.replica.machine)
    assert {key for key in image if after[key] != image[key]} <= {b"m"}


def test_a_removed_leader_hands_over(group: Group) -> None:
    """And the others go on."""
    leader = group.leader()
    leader.replica.remove(leader.name)
    group.settle()
    group.ticks(3)

    assert not leader.replica.is_leader and leader.replica.status is Status.LEARNER
    new = group.leader()
    assert new is not leader
    new.do(push(b"m"))


# --- what is refused ----------------------------------------------------------------------------------------
def test_a_list_without_this_node_is_refused() -> None:
    """One line that says so."""
    group = Group(("a",))

    with pytest.raises(ConfigError, match="node 'x' is not among the voters"):
        group.add("x", members("a", "b", "c"))


def test_changes_of_the_group_are_one_at_a_time(group: Group) -> None:
    """And of members that are there."""
    leader = group.leader()
    leader.replica.add_learner(Member("d", "d:1"))
    with pytest.raises(NotReady):
        leader.replica.remove("a")
    group.settle()
    with pytest.raises(InvalidArgument):
        leader.replica.promote("z")
    with pytest.raises(InvalidArgument):
        leader.replica.transfer("z")


def test_a_member_with_another_disk_is_not_bound_again(group: Group) -> None:
    """What it promised is lost."""
    leader = group.leader()
    other = group.others(leader)[0]
    known = leader.replica.configuration
    leader.replica.link_up(other.name, b"another disk 123", "elsewhere:1")
    group.ticks(3)
    assert leader.replica.configuration == known

    leader.replica.link_up(other.name, other.replica.disk_uuid, "moved:1")
    group.ticks(3)
    assert leader.replica.configuration.voters[other.name].address == "moved:1"
    group.converge()


def test_a_member_whose_term_and_vote_are_gone_does_not_start(group: Group) -> None:
    """It may have voted, and would vote again."""
    leader = group.leader()
    other = group.others(leader)[0]
    busy(leader, 3)
    other.stop()
    other.disk.unlink("data/hard-state")

    with pytest.raises(StorageError, match="term and vote of node"):
        other.start()
