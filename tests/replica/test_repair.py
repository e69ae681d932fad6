"""Members whose disks lost something they may have acknowledged: mended by the others before they count again."""

from __future__ import annotations

import random

import pytest

from tests.replica.group import Group, Node, push
from walrq import api
from walrq.errors import CorruptRecord, Reclaimed
from walrq.queues import commands as c
from walrq.raft.membership import Member
from walrq.raft.messages import RecordsReply, RecordsRequest
from walrq.raft.roles import Status
from walrq.storage.segment import RECORDS_START
from walrq.testing.disk import PowerOff, SimDisk


@pytest.fixture
def group() -> Group:
    """A new cluster of three, with a leader and some messages."""
    group = Group()
    group.connect()
    leader = group.leader()
    group.ticks(4)
    for number in range(6):
        leader.do(push(b"%d" % number * 50))
    group.ticks(2)
    return group


def newest_segment(node: Node) -> str:
    """The path of the last one."""
    names = [name for name in node.disk.list_directory("data/wal") if name.startswith("seg-")]
    return f"data/wal/{max(names)}"


def rot(node: Node, start: int = 900) -> None:
    """Damage records in the middle of the log."""
    path = newest_segment(node)
    node.disk.zero(path, RECORDS_START + start, RECORDS_START + start + 100)


def test_a_follower_with_a_damaged_log_is_mended_and_counts_again(group: Group) -> None:
    """Until then it neither votes nor counts; also over another restart."""
    leader = group.leader()
    hurt = group.others(leader)[0]
    hurt.stop()
    rot(hurt)
    group.isolate(hurt.name)
    hurt.start()
    assert hurt.replica.status is Status.RECOVERING
    assert hurt.replica.last_index < leader.replica.last_index
    hurt.restart()
    assert hurt.replica.status is Status.RECOVERING
    group.heal()
    group.connect()
    group.converge(20)

    assert hurt.replica.status is Status.NORMAL and not hurt.storage.needs_repair
    hurt.restart()
    assert hurt.replica.status is Status.NORMAL
    group.converge(10)


def test_a_member_on_an_older_copy_of_its_directory_is_mended(group: Group) -> None:
    """No byte is damaged; but it acknowledged what it does not have, and would be sent nothing more."""
    leader = group.leader()
    away = group.others(leader)[0]
    away.stop()
    older = away.disk.keep_all()
    away.start()
    group.connect()
    group.ticks(4)
    for number in range(5):
        leader.do(push(b"%d" % number))
    away.stop()
    away.disk = older
    away.start()
    group.connect()

    group.ticks(1)
    group.ticks(1)
    assert Status.RECOVERING == away.replica.status
    assert ["acknowledged_lost"] == [finding.split(":")[0] for finding in away.findings]
    away.restart()
    assert Status.RECOVERING == away.replica.status
    group.connect()
    group.converge(20)

    assert Status.NORMAL == away.replica.status
    away.restart()
    assert Status.NORMAL == away.replica.status


def test_a_node_under_repair_is_no_part_of_a_majority(group: Group) -> None:
    """It may have forgotten what it acknowledged."""
    leader = group.leader()
    hurt, third = group.others(leader)
    group.isolate(third.name)
    leader.do(push(b"acknowledged by two"))
    third.crash()
    group.heal()
    hurt.stop()
    rot(hurt)
    leader.stop()
    hurt.start()
    third.start()
    group.connect()
    group.ticks(60)
    assert not any(node.replica.is_leader for node in group.alive)
    leader.start()
    group.connect()
    group.converge(60)

    assert hurt.replica.status is Status.NORMAL
    assert group.leader().replica.machine.queues["q"].ready == 7


def test_a_node_under_repair_helps_to_elect_one_that_has_all_it_had(group: Group) -> None:
    """It knows how far its log reached; so one damaged disk and one dead node are not the end."""
    leader = group.leader()
    hurt, third = group.others(leader)
    hurt.stop()
    rot(hurt)
    leader.stop()
    hurt.start()
    group.connect()
    group.ticks(60)

    assert third.replica.is_leader and hurt.replica.status is Status.NORMAL
    assert third.replica.machine.queues["q"].ready == 6
    group.converge()


def test_a_member_whose_log_is_gone_never_takes_itself_for_a_cluster(group: Group) -> None:
    """Though it voted for itself: what it had was everybody's."""
    leader = group.leader()
    for other in group.others(leader):
        other.stop()
    leader.stop()
    for name in leader.disk.list_directory("data/wal"):
        leader.disk.unlink(f"data/wal/{name}")
    leader.configuration = None
    leader.start()
    group.ticks(40)
    assert not leader.replica.is_leader and leader.replica.status is Status.RECOVERING

    for other in group.others(leader):
        other.start()
    group.connect()
    group.converge(60)
    assert leader.replica.status is Status.NORMAL
    assert leader.replica.machine.queues["q"].ready == 6


def test_a_member_whose_first_entry_is_damaged_does_not_take_itself_for_a_cluster(group: Group) -> None:
    """The list of its group stood there; other lists behind it can be read."""
    leader = group.leader()
    others = group.others(leader)
    leader.stop()
    leader.disk.zero(newest_segment(leader), RECORDS_START, RECORDS_START + 60)
    for other in others:
        other.stop()
    leader.configuration = None
    leader.start()
    group.ticks(40)
    assert not leader.replica.is_leader and leader.replica.status is Status.RECOVERING

    for other in others:
        other.start()
    group.connect()
    group.converge(60)
    assert leader.replica.status is Status.NORMAL
    assert leader.replica.machine.queues["q"].ready == 6


def test_a_single_node_serves_what_is_left() -> None:
    """Nobody else has what it lost."""
    group = Group(("a",))
    alone = group["a"]
    for number in range(6):
        alone.do(push(b"%d" % number * 50))
    alone.stop()
    rot(alone, 400)
    alone.start()

    assert alone.replica.is_leader and not alone.storage.needs_repair
    assert 0 < alone.replica.machine.queues["q"].ready < 6


@pytest.mark.parametrize("seed", range(12))
def test_power_loss_in_the_first_start_of_a_cluster_leaves_a_cluster(seed: int) -> None:
    """Whatever of it was written, by whom."""
    rng = random.Random(seed)
    group = Group()
    for node in group.alive:
        node.stop()
    for number, name in enumerate(group.nodes):
        node = group.nodes[name]
        node.disk = SimDisk(seed=seed * 10 + number)
        node.disk.power_off_at = rng.randrange(1, 40)
        try:
            node.start()
            node.disk.power_off_at = None
        except PowerOff:
            pass
        node.crash(seed + number)
        node.disk.clear_faults()
    for node in group.nodes.values():
        node.start()
    group.connect()
    leader = group.leader()
    leader.do(push(b"m"))
    group.converge()


def weak(node: Node) -> None:
    """From its next start on it acknowledges before its disk has it."""
    node.fsync = ("interval", 50)


def test_an_unclean_stop_of_the_machine_under_a_weak_policy_is_mended(group: Group) -> None:
    """What it acknowledged may not have been on its disk."""
    leader = group.leader()
    hurt = group.others(leader)[0]
    hurt.stop()
    weak(hurt)
    hurt.start()
    group.connect()
    leader.do(push(b"weak"))
    group.ticks(3)
    hurt.crash()
    hurt.start()
    assert hurt.replica.status is Status.RECOVERING
    group.connect()
    group.converge(20)

    assert hurt.replica.status is Status.NORMAL and not hurt.findings


def test_when_all_lost_power_under_a_weak_policy_they_go_on_with_what_they_have(group: Group) -> None:
    """Whoever has most leads, and only once all are there."""
    for node in group.alive:
        node.stop()
        weak(node)
    for node in group.nodes.values():
        node.start()
    group.connect()
    group.leader()
    group.ticks(3)
    for node in group.alive:
        node.crash()
    first, second, third = group.nodes.values()
    first.start()
    second.start()
    group.connect()
    group.ticks(150)
    assert [first.replica.status, second.replica.status] == [Status.RECOVERING] * 2
    third.start()
    group.connect()
    group.ticks(150)
    leader = group.leader()
    leader.do(push(b"after"))
    group.converge()

    assert any("repair_ended" in finding for node in group.alive for finding in node.findings)
    assert not any(node.storage.needs_repair for node in group.alive)


# --- below the snapshot -------------------------------------------------------------------------------------
def segments(node: Node) -> list[str]:
    """Paths of a node's segments, ascending."""
    names = sorted(name for name in node.disk.list_directory("data/wal") if name.startswith("seg-"))
    return [f"data/wal/{name}" for name in names]


def payloads(node: Node) -> list[bytes]:
    """Every message's payload as this node has it. An error: it has it not."""
    queue = node.replica.machine.queues["q"]
    return [node.replica.load_body(batch.index, batch.ordinal).payloads for batch in queue.batches()]


def stocked(group: Group) -> Node:
    """Several segments of messages that are alive, below everybody's snapshot; the leader."""
    leader = group.leader()
    for number in range(12):
        leader.do(push(b"%02d" % number * 700))
    group.ticks(2)
    for node in group.alive:
        node.snapshot()
        assert len(segments(node)) > 2
    return leader


def harm(node: Node, how: str) -> None:
    """Lose records in the middle of the log of a node that is stopped."""
    path = segments(node)[1]
    if how == "removed":
        node.disk.unlink(path)
    elif how == "header":
        node.disk.zero(path, 0, RECORDS_START)
    else:
        node.disk.zero(path, RECORDS_START + 1_800, RECORDS_START + 2_000)


def verdicts(node: Node) -> list[str]:
    """The kinds of what a node found in this life and before."""
    return [finding.split(":")[0] for finding in node.findings]


@pytest.mark.parametrize("how", ["removed", "header", "zeroed"])
def test_lost_bodies_are_fetched_again_and_the_node_leads_as_before(group: Group, how: str) -> None:
    """Until then it does not stand. What it has then it has for good, and serves."""
    leader = stocked(group)
    hurt, third = group.others(leader)
    whole = payloads(leader)
    hurt.stop()
    harm(hurt, how)
    hurt.start()
    if how == "zeroed":
        # Old segments are not looked through at a start: somebody has to ask.
        with pytest.raises(CorruptRecord):
            payloads(hurt)
    group.isolate(hurt.name)
    group.ticks(30)
    assert verdicts(hurt) == ["bodies_lost"]
    leader.replica.transfer(hurt.name)
    group.heal()
    group.connect()
    group.ticks(10)

    assert verdicts(hurt) == ["bodies_lost", "bodies_restored"]
    assert payloads(hurt) == whole
    assert group.elect(hurt.name) is hurt
    hurt.do(push(b"goes on"))
    hurt.crash()
    hurt.start()
    group.connect()
    group.converge(20)
    assert payloads(hurt) == [*whole, b"goes on"]
    assert verdicts(hurt) == ["bodies_lost", "bodies_restored"]
    assert third.findings == []


def test_lost_bodies_come_from_whoever_has_them(group: Group) -> None:
    """The leader lost them as well, and hands over; no two nodes lost the same as the third."""
    leader = stocked(group)
    whole = payloads(leader)
    hurt, third = group.others(leader)
    for node in (hurt, leader):
        node.stop()
        harm(node, "removed")
    hurt.start()
    leader.start()
    group.connect()
    group.ticks(60)

    for node in (hurt, leader):
        assert verdicts(node) == ["bodies_lost", "bodies_restored"], node.name
        assert payloads(node) == whole
    assert payloads(third) == whole
    group.converge()


def test_who_lost_bodies_does_not_lead_before_it_has_them(group: Group) -> None:
    """Neither is it elected, nor does it stay in office when it finds out while it leads."""
    leader = stocked(group)
    hurt, third = group.others(leader)
    group.drops = lambda message: isinstance(message, RecordsReply)
    hurt.stop()
    harm(hurt, "removed")
    hurt.start()
    group.connect()
    group.ticks(4)
    leader.crash()
    assert group.leader() is third
    leader.start()
    group.connect()
    group.converge(20)
    assert third.replica.is_leader

    path = segments(third)[1]
    third.disk.zero(path, RECORDS_START + 1_800, RECORDS_START + 2_000)
    with pytest.raises(CorruptRecord):
        [third.storage.read(batch.index) for batch in third.replica.machine.queues["q"].batches()]
    group.ticks(30)
    assert verdicts(third) == ["bodies_lost"]
    assert group.leader() is leader
    group.drops = lambda _message: False
    group.ticks(150)
    assert verdicts(third) == verdicts(hurt) == ["bodies_lost", "bodies_restored"]
    assert payloads(third) == payloads(leader) == payloads(hurt)


def test_what_nobody_has_is_delivered_as_lost(group: Group) -> None:
    """It keeps no node from leading for ever, and somebody is told."""
    leader = stocked(group)
    for node in list(group.alive):
        node.stop()
        harm(node, "removed")
    for node in group.nodes.values():
        node.start()
    group.connect()
    group.ticks(200)

    leader = group.leader()
    assert isinstance(leader.do(push(b"goes on"))[0], api.Pushed)
    group.ticks(200)
    assert any(kind == "bodies_gone" for node in group.alive for kind in verdicts(node))
    with pytest.raises(Reclaimed):
        payloads(leader)
    group.converge()


def test_a_node_that_is_asked_for_lost_records_tells_only_what_is_committed(group: Group) -> None:
    """An answer that was not asked for, or of a stranger, is not taken."""
    leader = stocked(group)
    hurt = group.others(leader)[0]
    record = leader.storage.read(leader.storage.last_index)
    group.isolate(leader.name)
    leader.ask(push(b"of nobody else"))
    group.settle()
    head = ("cluster", hurt.name, leader.name, leader.replica.term)
    ahead = leader.replica.commit_index + 1
    assert ahead == leader.storage.last_index > record.index
    leader.replica.receive(RecordsRequest(*head, 7, (record.index, ahead)), leader.reading())
    job = leader.replica.background()
    assert job is not None
    job.run()
    leader.replica.background_done(job)
    sent = leader.replica.take_messages(leader.reading())
    (reply,) = [message for message in sent if isinstance(message, RecordsReply)]
    assert (7, ahead, (record.index,)) == (reply.round, reply.through, reply.indexes)
    assert reply.entries[0].body == record.body
    hurt.replica.receive(reply, hurt.reading())
    assert hurt.replica.background() is None
    leader.replica.receive(RecordsRequest("cluster", "stranger", leader.name, 9, 7, (1,)), leader.reading())
    assert leader.replica.background() is None


def test_a_leader_that_cannot_read_a_dead_entry_sends_a_snapshot_instead(group: Group) -> None:
    """Nothing alive is in it, so nobody fetches it again; the follower must not wait for it for ever."""
    leader = group.leader()
    away, third = group.others(leader)
    away.crash()
    for number in range(20):
        leader.do(push(b"%02d" % number * 50, queue="gone"))
    last = leader.storage.last_index
    leader.do(c.PurgeQueue("gone"), push(b"alive"))
    group.ticks(2)
    leader.replica._recent._bytes_max = 0
    leader.do(push(b"alive"))
    content = leader.disk.content(newest_segment(leader))
    leader.disk.flip_bit(newest_segment(leader), content.find(b"19" * 50) * 8)
    with pytest.raises(CorruptRecord):
        leader.storage.read(last)
    away.start()
    group.connect()
    group.converge(30)

    assert away.installs == 1
    assert verdicts(leader) == ["log_unreadable"] and not leader.storage.needs_repair
    assert leader.replica.is_leader and third.findings == away.findings == []


def test_a_damaged_node_does_not_take_an_older_group_for_its_own() -> None:
    """The lost end of its log held the entry that made a third node a voter, and what that one acknowledged."""
    group = Group(("a", "n"))
    group.connect()
    group.leader()
    group.ticks(4)
    n = group.elect("n")
    n.do(push(b"0" * 50))
    group.ticks(3)
    group.add("d")
    group.connect()
    n.replica.add_learner(Member("d", "d:1", group["d"].replica.disk_uuid))
    group.settle()
    group.connect()
    group.ticks(10)
    group.isolate("a")
    n.replica.promote("d")
    group.settle()
    index = n.replica.configuration_index
    n.do(push(b"acknowledged by two of three"))
    assert n.replica.commit_index == index + 1

    segment = n.storage._wal._segment_of(index)
    start = n.storage._wal._offsets(segment)[index - segment.first_index]
    n.stop()
    n.disk.zero(newest_segment(n), start, start + 60)
    n.start()
    group.heal()
    group.isolate("d")
    group.connect()
    group.ticks(80)

    assert not any(group[name].replica.is_leader for name in ("a", "n"))
    group.heal()
    group.connect()
    group.converge(60)
    assert group.leader().replica.machine.queues["q"].ready == 2
