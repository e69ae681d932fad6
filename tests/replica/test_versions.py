"""The version of the state machine is agreed on in the log: old and new nodes together, and no way back by accident."""

from __future__ import annotations

import pytest

from tests.replica.group import Group, Node, lease, push
from walrq import api
from walrq.errors import DataDirInvalid, NotReady
from walrq.queues import commands as c
from walrq.queues import effects
from walrq.queues.image import load
from walrq.raft.entries import Kind
from walrq.raft.membership import Member


@pytest.fixture
def group() -> Group:
    """A cluster of three old nodes, with a leader."""
    group = Group(version_max=1)
    group.connect()
    group.leader()
    group.ticks(4)
    return group


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> type:
    """A kind of command that there is since version 2."""
    monkeypatch.setitem(c.SINCE, c.PurgeDead, 2)
    return c.PurgeDead


def upgrade(node: Node, version: int = 2) -> None:
    """Start a node again with another walrq."""
    node.changes["version_max"] = version
    node.restart()
    node.group.connect()
    node.group.ticks(12)


def versions(group: Group) -> list[int]:
    """What each node is at."""
    return [node.replica.machine.version for node in group.alive]


def test_a_cluster_is_upgraded_node_by_node_under_load(group: Group, newer: type) -> None:
    """Nothing is raised before the last one can follow, nothing is lost, and all are the same all the time."""
    names = sorted(group.nodes, key=lambda name: group[name] is group.leader())
    pushed = 0
    for name in names:
        assert versions(group) == [1, 1, 1]
        node = group[name]
        node.changes["version_max"] = 2
        node.stop()
        for _ in range(3):
            assert isinstance(group.leader().do(push(b"m"))[0], api.Pushed)
            pushed += 1
        with pytest.raises(NotReady, match="needs version 2 of the state machine, and the cluster is at 1"):
            group.leader().ask(newer("q"))
        node.start()
        group.ticks(6)
        # It did not say yet what it can be.
        assert versions(group) == [1, 1, 1]
        group.connect()
        group.ticks(6)
        group.leader().do(push(b"m"))
        pushed += 1
        group.ticks(3)

    assert versions(group) == [2, 2, 2]
    group.converge()
    leader = group.leader()
    granted = leader.do(lease(100))[0]
    assert isinstance(granted, effects.Granted) and sum(run.count for run in granted.runs) == pushed
    assert isinstance(leader.do(newer("q"))[0], api.Done)
    for node in group.alive:
        node.restart()
    group.connect()
    group.converge(30)
    assert versions(group) == [2, 2, 2]


def test_a_leader_raises_with_requests_in_flight(group: Group) -> None:
    """The entry goes between them, answers nobody, and is proposed once."""
    for name in group.nodes:
        group[name].changes["version_max"] = 2
        group[name].restart()
    leader = group.leader()
    group.connect()
    for _ in range(8):
        tickets = leader.ask(push(b"a"), push(b"b"))
        group.now_ms += 50
        for node in group.alive:
            node.replica.tick(node.reading())
        tickets += leader.ask(push(b"c"))
        before = set(leader.results)
        group.settle()
        assert set(leader.results) - before == set(tickets)
    assert versions(group) == [2, 2, 2]
    first = group.nodes["a"].storage
    raised = [
        tagged.command
        for record in first.entries(2)
        if record.kind == Kind.COMMANDS
        for tagged in c.decode_entry(record.body)[1]
        if isinstance(tagged.command, c.RaiseVersion)
    ]
    assert raised == [c.RaiseVersion(2)]


def test_nothing_is_raised_past_a_member_that_is_away_or_a_learner_that_is_old(group: Group) -> None:
    """What they can be counts as much as that of voters who are there."""
    leader = group.leader()
    away = group.others(leader)[0]
    away.changes["version_max"] = 2
    for node in group.others(away):
        node.changes["version_max"] = 2
        node.restart()
    group.connect()
    group.ticks(12)
    assert versions(group) == [1, 1, 1]
    away.stop()
    group.ticks(12)
    assert versions(group) == [1, 1]

    learner = group.add("d", version_max=1)
    leader = group.leader()
    leader.replica.add_learner(Member("d", "d:1"))
    group.settle()
    away.start()
    group.connect()
    group.ticks(20)
    assert versions(group) == [1, 1, 1, 1]
    upgrade(learner)
    assert versions(group) == [2, 2, 2, 2]
    group.converge(12)


def test_an_old_node_stops_at_a_newer_entry_and_goes_on_when_it_is_upgraded(group: Group) -> None:
    """It was taken back to an old walrq between telling and being there: one clear line, and nothing lost."""
    leader = group.leader()
    old = group.others(leader)[0]
    for node in group.others(old):
        node.changes["version_max"] = 2
        node.restart()
    for node in group.others(old):
        for peer in group.alive:
            if peer is not node:
                node.replica.link_up(peer.name, peer.replica.disk_uuid, f"{peer.name}:1", 2)
    with pytest.raises(
        DataDirInvalid, match=r"version 2 of the state machine, this walrq knows up to 1: start a newer"
    ):
        group.ticks(60)
    old.stop()
    leader = group.leader()
    assert isinstance(leader.do(push(b"goes on"))[0], api.Pushed)
    old.changes["version_max"] = 2
    old.start()
    group.connect()
    group.converge(20)
    assert versions(group) == [2, 2, 2]


def test_a_downgrade_is_refused_at_the_start(group: Group) -> None:
    """By the snapshot, or by the log of a node that is alone; the newer walrq then finds all of it."""
    for node in list(group.alive):
        upgrade(node)
    assert versions(group) == [2, 2, 2]
    hurt = group.others(group.leader())[0]
    hurt.snapshot()
    image = hurt.image()
    hurt.stop()
    hurt.changes["version_max"] = 1
    with pytest.raises(DataDirInvalid, match="version 2 of the state machine"):
        hurt.start()
    hurt.storage.close(clean=False)
    with pytest.raises(DataDirInvalid, match="up to 1"):
        load(image.items(), version_max=1)
    assert load(image.items(), version_max=3).version == 2

    hurt.changes["version_max"] = 2
    hurt.start()
    group.connect()
    group.converge(12)

    alone = Group(("x",), version_max=2)
    assert versions(alone) == [2]
    alone["x"].do(push(b"m"))
    alone["x"].stop()
    alone["x"].changes["version_max"] = 1
    with pytest.raises(DataDirInvalid, match="nothing in it was lost"):
        alone["x"].start()
    alone["x"].storage.close(clean=False)
    alone["x"].changes["version_max"] = 2
    alone["x"].start()
    assert versions(alone) == [2] and alone["x"].replica.machine.queues["q"].ready == 1


def test_a_snapshot_of_a_newer_version_ends_the_node_that_is_sent_it() -> None:
    """It joined with an old walrq; with a newer one it goes on where it was."""
    group = Group(snapshot_commands=4, version_max=2)
    group.connect()
    leader = group.leader()
    group.ticks(12)
    assert versions(group) == [2, 2, 2]
    for _ in range(12):
        leader.do(push(b"m" * 600))
    group.ticks(4)
    late = group.add("d", version_max=1)
    leader.replica.add_learner(Member("d", "d:1"))
    with pytest.raises(DataDirInvalid, match="version 2 of the state machine"):
        group.ticks(40)
    late.stop()
    late.changes["version_max"] = 2
    late.start()
    group.connect()
    group.converge(40)
    assert versions(group) == [2, 2, 2, 2]
