"""Backlogs larger than the hot window, through a whole node: nobody can tell where a message was meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from tests.daemon.harness import Client, World, columns, payloads, running
from walrq import api
from walrq.api import SettleKind
from walrq.limits import HOT_MESSAGES_MIN
from walrq.queues.image import stretch_key
from walrq.storage.snapshot import pages_name
from walrq.testing.disk import SimDisk

pytestmark = pytest.mark.trio

SMALL: dict[str, Any] = {"max_hot_messages": HOT_MESSAGES_MIN, "snapshot_commands": 300}
BACKLOG = 600


def poll(queue: str = "jobs", limit: int = 50, wait_ms: int = 1_000) -> api.Poll:
    """A poll that waits a second."""
    return api.Poll((queue,), limit, 60_000, wait_ms)


async def push(client: Client, number: int, queue: str = "jobs", **rest: Any) -> list[bytes]:
    """So many messages, pushed one by one; their payloads."""
    sent = [b"%s %d" % (queue.encode(), n) for n in range(number)]
    waiting = [await client.send(api.Push(queue, columns(payload), **rest)) for payload in sent]
    for request in waiting:
        assert isinstance(await client.answer(request), api.Pushed)
    return sent


async def drain(client: Client, number: int, queue: str = "jobs") -> list[bytes]:
    """So many messages, acknowledged."""
    got: list[bytes] = []
    while len(got) < number:
        polled = await client.ask(poll(queue, min(50, number - len(got))))
        found = payloads(polled)
        assert found, f"nothing came after {len(got)} messages"
        got += found
        await client.ask(settle(polled, SettleKind.ACK, queue))
    return got


def settle(polled: Any, kind: SettleKind, queue: str = "jobs", **rest: Any) -> api.Settle:
    """All that a poll brought."""
    return api.Settle(queue, kind, tuple(api.Item(run.receipt) for run in polled.runs), **rest)


def counts(world: World) -> tuple[int, int]:
    """(hot, cold) messages, as the node says."""
    stats = world.node.replica.stats()
    return stats["hot_messages"], stats["cold_messages"]


async def test_a_backlog_beyond_the_window_is_delivered_in_order() -> None:
    """Pushed one by one, mostly cold, never more hot than the window holds."""
    async with running(**SMALL) as world:
        client = await world.connect()
        sent = await push(client, BACKLOG)
        hot, cold = counts(world)
        assert hot + cold == BACKLOG and hot <= HOT_MESSAGES_MIN
        got: list[bytes] = []
        while len(got) < BACKLOG:
            got += await drain(client, 50)
            assert counts(world)[0] <= HOT_MESSAGES_MIN + 50

        assert sent == got
        assert (0, 0) == counts(world)


@pytest.mark.parametrize("clean", [True, False])
async def test_what_is_cold_is_there_after_a_restart(clean: bool) -> None:
    """From the snapshot and the log behind it, wherever the stop was."""
    disk = SimDisk()
    async with running(disk=disk, clean=clean, **SMALL) as world:
        client = await world.connect()
        sent = await push(client, BACKLOG)
        first = await drain(client, 120)
        assert counts(world)[1] > BACKLOG // 2
    async with running(disk=disk, **SMALL) as world:
        client = await world.connect()
        assert BACKLOG - 120 == (await world.info("jobs")).ready
        rest = await drain(client, BACKLOG - 120)

    assert sent == first + rest


async def test_queues_do_not_starve_each_other() -> None:
    """Ten queues share the window: each of them is drained to its end, in turn."""
    async with running(**SMALL) as world:
        client = await world.connect()
        names = [f"q{n}" for n in range(10)]
        sent = {name: await push(client, 60, name) for name in names}
        got: dict[str, list[bytes]] = {name: [] for name in names}
        for _ in range(6):
            for name in names:
                got[name] += await drain(client, 10, name)

        assert sent == got


async def test_groups_and_headers_go_cold_and_come_back() -> None:
    """One message of a group at a time, in order, with what its producer said."""
    async with running(**SMALL) as world:
        client = await world.connect()
        for n in range(300):
            headers = b"\xa1aa" + bytes([n % 20])
            body = columns(
                b"%d" % n, groups=(f"g{n % 7}",), headers=headers, header_ends=len(headers).to_bytes(4, "little")
            )
            await client.ask(api.Push("jobs", body))
        assert counts(world)[1] > 150
        seen: dict[str | None, list[int]] = {}
        total = 0
        while total < 300:
            polled = await client.ask(poll())
            assert polled.runs
            for run in polled.runs:
                n = int(run.payloads)
                assert run.headers == b"\xa1aa" + bytes([n % 20])
                seen.setdefault(run.group, []).append(n)
                total += 1
            await client.ask(settle(polled, SettleKind.ACK))

        assert seen == {f"g{k}": list(range(k, 300, 7)) for k in range(7)}


async def test_cold_messages_are_cancelled_and_peeked_at() -> None:
    """By id, exactly; and a page shows hot and cold ones in one line."""
    async with running(**SMALL) as world:
        client = await world.connect()
        sent = await push(client, 400)
        seen: list[api.Peeked] = []
        after = 0
        while True:
            page = await client.ask(api.Peek("jobs", limit=70, after=after))
            seen += page.messages
            after = page.next
            if not after:
                break
        assert sent == [one.payload for one in seen]
        wanted = (seen[2].id, seen[250].id, seen[399].id)
        assert api.Outcomes((api.Outcome.DONE,) * 3) == await client.ask(api.Cancel("jobs", wanted))
        assert api.Outcomes((api.Outcome.GONE,) * 3) == await client.ask(api.Cancel("jobs", wanted))
        later = world.node.clock.read().wall_ms + 60_000
        assert api.Outcomes((api.Outcome.DONE,)) == await client.ask(api.Reschedule("jobs", seen[300].id, later))

        expected = [one for n, one in enumerate(sent) if n not in (2, 250, 300, 399)]
        assert expected == await drain(client, 396)


async def test_a_cold_dead_letter_queue_is_listed_driven_back_and_emptied() -> None:
    """In order of death, with filters, page by page."""
    async with running(**SMALL) as world:
        client = await world.connect()
        await client.ask(api.SetQueue("jobs", {"max_deliveries": 1}))
        await push(client, 300)
        died: list[bytes] = []
        while len(died) < 300:
            polled = await client.ask(poll(limit=10))
            died += payloads(polled)
            kind = "Odd" if len(died) % 20 else "Even"
            await client.ask(settle(polled, SettleKind.FAIL, error_type=kind))
        assert counts(world)[1] > 100
        listed: list[api.Peeked] = []
        after = 0
        while True:
            page = await client.ask(api.ListDead("jobs", limit=90, after=after))
            listed += page.messages
            after = page.next
            if not after:
                break
        assert died == [one.payload for one in listed]

        even = api.Filter(error_type="Even")
        assert 150 == (await client.ask(api.Redrive("jobs", 1_000, where=even, dry_run=True))).count
        moved = 0
        while True:
            answer = await client.ask(api.Redrive("jobs", 40, where=even))
            moved += answer.count
            if not answer.more:
                break
        assert 150 == moved
        assert [payload for n, payload in enumerate(died) if n // 10 % 2] == await drain(client, 150)
        assert api.Done(150) == await client.ask(api.PurgeDead("jobs"))
        assert 0 == (await world.info("jobs")).dead == (await world.info("jobs.dlq")).ready


async def test_a_window_is_agreed_on_in_the_log() -> None:
    """What the leader was started with, from its first entry on, and after a restart with another value."""
    disk = SimDisk()
    async with running(disk=disk, **SMALL) as world:
        assert HOT_MESSAGES_MIN == world.node.replica.machine.window.messages
    async with running(disk=disk, max_hot_messages=5_000) as world:
        assert 5_000 == world.node.replica.machine.window.messages


async def test_a_damaged_page_costs_what_stood_in_it_and_is_named() -> None:
    """A node that is alone says how many messages of which queue are gone, and serves the others."""
    async with running(**SMALL) as world:
        client = await world.connect()
        sent = await push(client, 400)
        await world.node.compactor.snapshot()
        queue = world.node.replica.machine.queues["jobs"]
        head = queue.cold[0].head()
        assert head is not None
        rows = head.messages
        place = world.node.storage.snapshot
        assert place is not None
        at = place._manifest.pages[stretch_key(queue.uid, 0, head.number)]
        world.disk.flip_bit(f"data/snapshots/{pages_name(at.file)}", 8 * at.offset)
        hot = queue.ready
        got = await drain(client, 400 - rows)

        assert [*sent[:hot], *sent[hot + rows :]] == got
        texts = [finding.text for finding in world.node.storage.findings]
        assert any(f"{rows} messages of queue 'jobs' beyond the hot window cannot be read" in text for text in texts)
