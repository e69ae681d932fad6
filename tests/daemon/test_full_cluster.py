"""A cluster with full disks: pushes are refused while a majority lacks room, the rest goes on, space heals all."""

from __future__ import annotations

import pytest

from tests.daemon.group import Member, group
from tests.daemon.harness import columns, payloads
from walrq import api
from walrq.daemon import driver
from walrq.errors import Code
from walrq.upkeep import compactor

pytestmark = pytest.mark.trio


def fill(member: Member) -> None:
    """Somebody else takes all the space that this node has not reserved."""
    member.disk.quota_bytes = member.disk.used_bytes


async def push(leader: Member, payload: bytes) -> api.Reply:
    """One message."""
    reply: api.Reply = await leader.ask(api.Push("q", columns(payload)))
    return reply


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full disks are looked at often."""
    monkeypatch.setattr(compactor, "REPLENISH_S", 0.02)
    monkeypatch.setattr(driver, "WRITE_AGAIN_S", 0.02)


async def test_pushes_are_refused_while_a_majority_is_full_and_taken_again_by_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a word that says whose disks, polls and acks answered meanwhile, and nothing lost."""
    async with group("n1 n2 n3", monkeypatch) as cluster:
        leader = await cluster.leader()
        followers = await cluster.followers()
        for member in followers:
            fill(member)
        pushed = []
        refused = None
        while refused is None:
            assert len(pushed) < 500
            reply = await push(leader, b"%03d" % len(pushed) * 10_000)
            if isinstance(reply, api.Failed):
                refused = reply
            else:
                pushed.append(b"%03d" % len(pushed) * 10_000)
        assert Code.DISK_FULL == refused.code and "of a majority" in refused.text
        polled = await leader.ask(api.Poll(("q",), 2))
        settled = await leader.ask(
            api.Settle("q", api.SettleKind.ACK, tuple(api.Item(run.receipt) for run in polled.runs))
        )
        assert {0} == set(settled.codes)
        taken = payloads(polled)

        followers[0].disk.quota_bytes = None
        await cluster.until(lambda: leader.node.replica.pushes_allowed, "room")
        assert isinstance(await push(leader, b"again"), api.Pushed)
        followers[1].disk.quota_bytes = None
        await cluster.settle()
        while polled.runs:
            polled = await leader.ask(api.Poll(("q",), 100))
            taken += payloads(polled)
        assert [*pushed, b"again"] == taken


async def test_a_follower_without_any_room_stays_and_catches_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reserve first; then it acknowledges nothing until there is space, and the others go on without it."""
    async with group("n1 n2 n3", monkeypatch) as cluster:
        leader = await cluster.leader()
        full = (await cluster.followers())[0]
        fill(full)
        number = 0
        while full.node.driver._full is None:
            assert number < 500
            assert isinstance(await push(leader, b"%03d" % number * 20_000), api.Pushed)
            number += 1
        for _ in range(3):
            assert isinstance(await push(leader, b"more"), api.Pushed)
        assert full.node.replica.last_index and leader.name == (await cluster.leader()).name
        assert full in cluster.up

        full.disk.quota_bytes = None
        await cluster.settle()
        assert full.node.driver._full is None
        queues = [member.node.replica.machine.queues["q"].ready for member in cluster.up]
        assert [number + 3] * 3 == queues
