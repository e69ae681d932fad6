"""The Redis door of nodes that do not lead: the same answers, one hop away, and through a change of leadership."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.doors.house import Room, house
from tests.doors.redis_talk import Redis, redis

pytestmark = pytest.mark.trio
SHORT_S = 0.03
# How often a condition of another connection or node is looked at: none of them rings a bell here.
LOOK_S = 0.005


async def role(room: Room) -> str:
    """What INFO says the node is."""
    async with redis(room.endpoints["resp"]) as client:
        lines = (await client("INFO", "replication")).decode().split("\r\n")
        up = any(line.startswith("master_link_status:up") for line in lines)
        return "master" if "role:master" in lines else "replica" if up else "alone"


async def settled(rooms: list[Room]) -> tuple[Room, list[Room]]:
    """The leader and the others, once they agree."""
    while True:
        roles = [await role(room) for room in rooms]
        if sorted(roles) == ["master", "replica", "replica"]:
            leader = rooms[roles.index("master")]
            return leader, [room for room in rooms if room is not leader]
        await trio.sleep(LOOK_S)


async def until(client: Redis, text: str) -> None:
    """Wait until INFO says so."""
    while text not in (await client("INFO", "queues")).decode():  # noqa: ASYNC110 - of another node
        await trio.sleep(LOOK_S)


async def test_a_follower_serves_every_command(tmp_path: Path) -> None:
    """Pipelines keep their order, waits included; nothing of a client that left stays behind."""
    async with house(tmp_path, "resp", nodes=3) as rooms:
        leader, (follower, other) = await settled(rooms)
        async with redis(follower.endpoints["resp"]) as client, redis(leader.endpoints["resp"]) as boss:
            assert await client.pipeline(
                "LPUSH q a",
                "LPUSH q b c",
                "LPUSH_PRIORITY q 9 top",
                "LLEN q",
                "RPOPLEASE q 30",
                "TASKTOUCH q task-1 40",
                "TASKNACK q task-1",
                "RPOPLEASE q 30",
                "TASKACK q task-2",
                "RPOPLPUSH q p",
                "RPOP q",
                "RPOP p",
                "LPUSH_DELAY q 600 late",
                "EXISTS q p nothing",
                "DLQ_LIST q",
                "BRPOP q 0.01",
            ) == [
                1,
                3,
                4,
                4,
                [b"task-1", b"top"],
                "OK",
                "OK",
                [b"task-2", b"top"],
                "OK",
                b"a",
                b"b",
                b"a",
                1,
                2,
                [],
                [
                    b"q",
                    b"c",
                ],
            ]
            await until(boss, "queue_q:0;in_flight:0")
            await client.send("BRPOP", "q", 0)
            await trio.sleep(SHORT_S)
            await boss.line("LPUSH q later")
            assert await client.reply() == [b"q", b"later"]
            await until(boss, "queue_q:0;in_flight:0")

            async with redis(follower.endpoints["resp"]) as gone:
                await gone.send("BRPOP", "q", 0)
                await trio.sleep(SHORT_S)
            await trio.sleep(SHORT_S)
            await boss.line("LPUSH q kept")
            await until(boss, "queue_q:1;in_flight:0")

            async with redis(other.endpoints["resp"]) as third:
                assert await third.line("RPOPLEASE q 30") == [b"task-3", b"kept"]
                assert await client.line("TASKACK q task-3") == "OK"


async def test_failover_makes_the_asked_node_lead_and_nothing_is_lost(tmp_path: Path) -> None:
    """A pop that waits goes on at the new leader; task ids stay good."""
    async with house(tmp_path, "resp", nodes=3) as rooms:
        leader, (follower, _) = await settled(rooms)
        async with redis(follower.endpoints["resp"]) as client, redis(leader.endpoints["resp"]) as former:
            assert await former.line("FAILOVER") == "OK"
            assert await former.line("LPUSH q a") == 1
            assert await former.line("RPOPLEASE q 600") == [b"task-1", b"a"]
            await former.send("BRPOP", "later", 0)
            await trio.sleep(SHORT_S)
            assert await client.line("REPLICAOF NO ONE") == "OK"
            while (said := await client.pipeline("TASKACK q task-1"))[0] != "OK":
                # The new leader has taken office and does not serve yet.
                assert "LOADING" in str(said[0])
                await trio.sleep(SHORT_S)
            assert await client.line("LPUSH later x") == 1
            assert await former.reply() == [b"later", b"x"]
            assert await client.line("RPOPLEASE q") is None
            await client.line("LPUSH q b")
            assert await client.line("RPOPLEASE q") == [b"task-2", b"b"]


async def test_a_follower_feeds_what_was_decided_elsewhere(tmp_path: Path) -> None:
    """SYNC on any node; and its snapshot is its own."""
    async with house(tmp_path, "resp", nodes=3) as rooms:
        leader, (follower, _) = await settled(rooms)
        async with redis(follower.endpoints["resp"]) as reader, redis(leader.endpoints["resp"]) as client:
            assert await reader.line("SYNC") == "SYNC OK"
            await client.line("LPUSH q x")
            words = await reader.reply()
            while words[0] != b"LPUSH":
                words = await reader.reply()
            assert words == [b"LPUSH", b"q", b"x"]
        async with redis(follower.endpoints["resp"]) as client:
            assert (await client.line("BGREWRITEAOF")).endswith("1 items written")
