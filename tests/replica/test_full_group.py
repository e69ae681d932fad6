"""Full disks in a group: a leader knows of its followers', the reserve goes first, nothing ends, space heals all."""

from __future__ import annotations

import cbor2
import pytest

from tests.replica.group import Group, Node, lease, push
from walrq import api
from walrq.errors import DiskFull
from walrq.queues import commands as c
from walrq.raft.messages import HeartbeatReply, decode, encode


def fill(node: Node) -> None:
    """Somebody else takes all the space that this node has not reserved."""
    node.disk.quota_bytes = node.disk.used_bytes


def room(node: Node) -> None:
    """It is given back, and noticed."""
    node.disk.quota_bytes = None
    assert node.storage.replenish()


def use_up(group: Group, leader: Node, full: list[Node]) -> int:
    """Push until the disks of some nodes have nothing but their reserve; how many were pushed."""
    number = 0
    while any(node.replica.has_own_room for node in full):
        leader.do(push(b"x" * 2_000))
        number += 1
        assert number < 500
    return number


@pytest.fixture
def group() -> Group:
    """Three nodes that know each other."""
    group = Group()
    group.leader()
    group.connect()
    group.ticks(6)
    return group


def test_a_leader_refuses_pushes_while_a_majority_has_no_room(group: Group) -> None:
    """What it pushed then could be written by those only who have none; settles and polls go on; space heals it."""
    leader = group.leader()
    full = group.others(leader)
    for node in full:
        fill(node)
    pushed = use_up(group, leader, full)
    assert leader.replica.has_own_room
    group.ticks(6)

    assert not leader.replica.pushes_allowed
    (granted,) = leader.do(lease(1))
    run = granted.runs[0]  # type: ignore[union-attr]
    settled = leader.do(c.Settle("q", api.SettleKind.ACK, (c.Target(run.uid, run.lease),)))
    assert [api.Settled((0,))] == settled
    group.converge()

    room(full[0])
    group.ticks(6)
    assert leader.replica.pushes_allowed
    leader.do(push(b"again"))
    room(full[1])
    group.converge()
    assert pushed == leader.replica.machine.queues["q"].ready


def test_one_full_follower_stops_nobody(group: Group) -> None:
    """The others are a majority; it follows as long as its reserve lasts."""
    leader = group.leader()
    (full, other) = group.others(leader)
    fill(full)
    use_up(group, leader, [full])
    group.ticks(6)

    assert leader.replica.pushes_allowed
    # Without the other one it is needed, and then its room counts.
    group.isolate(other.name)
    group.ticks(7)
    assert leader.replica.is_leader and not leader.replica.pushes_allowed
    group.heal()
    group.ticks(6)
    assert leader.replica.pushes_allowed


def test_without_even_its_reserve_a_follower_waits_and_loses_nothing(group: Group) -> None:
    """Its write is asked for again until there is room; it acknowledges nothing meanwhile, and the others go on."""
    leader = group.leader()
    (full, _) = group.others(leader)
    fill(full)
    refusals = 0
    number = 0
    original = full.replica.persist

    def persist(batch: object) -> None:
        nonlocal refusals
        try:
            original(batch)  # type: ignore[arg-type]
        except DiskFull:
            # As a driver does: kept, and asked for again.
            refusals += 1
            full.stuck = True
            raise

    while not refusals:
        number += 1
        assert number < 500
        leader.ask(push(b"x" * 2_000))
        batch = None
        for _ in range(400):
            busy = [node.work() for node in group.others(full)]
            if full.batch is None and full.replica.has_work:
                full.batch = full.replica.take_batch(full.reading())
            if full.batch is not None:
                batch = full.batch
                try:
                    persist(batch)
                except DiskFull:
                    break
                full.batch = None
                full.take(full.replica.complete(batch))
            busy.append(bool(group.send(full, full.replica.take_messages(full.reading()))))
            if not group.deliver() and not any(busy):
                break
    kept = full.batch
    assert kept is not None and full.up
    with pytest.raises(DiskFull):
        full.replica.persist(kept)
    leader.ask(push(b"meanwhile"))
    group.settle()
    assert number + 1 == leader.replica.machine.queues["q"].ready
    assert full.replica.applied_index < leader.replica.applied_index

    full.disk.quota_bytes = None
    full.stuck = False
    group.settle()
    assert full.storage.replenish()
    group.converge()


def test_an_older_node_says_nothing_of_its_room() -> None:
    """A message without the field is one of a node that has some."""
    reply = HeartbeatReply("cluster", "b", "a", 3, 7, 1_000, False)

    parts = cbor2.loads(encode(reply))

    assert reply == decode(encode(reply))
    assert HeartbeatReply("cluster", "b", "a", 3, 7, 1_000, True) == decode(cbor2.dumps(parts[:-1]))
