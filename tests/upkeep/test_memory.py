"""A bound for memory: pushes are refused above it, all else goes on, and below it they are taken again."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.daemon.harness import columns, payloads, running
from walrq import api
from walrq.errors import Code
from walrq.upkeep.memory import give_memory_back, resident_bytes, watch_memory

pytestmark = pytest.mark.trio

MIB = 1 << 20


async def test_pushes_wait_for_memory_and_everything_else_goes_on(mock_clock: trio.testing.MockClock) -> None:
    """Clear words, a code that says when to ask again, and no restart."""
    used = [100 * MIB]
    async with running() as world, trio.open_nursery() as nursery:
        nursery.start_soon(watch_memory, world.node.broker, 200 * MIB, lambda: used[0])
        client = await world.connect()
        assert 1 == (await client.ask(api.Push("jobs", columns(b"before")))).count

        used[0] = 201 * MIB
        mock_clock.jump(1)
        while not world.node.broker.memory_full:
            # What is free is given back in a thread before.
            await trio.testing.wait_all_tasks_blocked(0.01)
        refused = await client.ask(api.Push("jobs", columns(b"x")))
        assert Code.OVERLOADED == refused.code
        assert "max_memory" == refused.details["limit"] and 0 < refused.details["retry_after_ms"]
        assert "this node uses 201 MiB, allowed are 200 MiB" in refused.text
        polled = await client.ask(api.Poll(("jobs",), 10))
        assert [b"before"] == payloads(polled)
        settled = await client.ask(api.Settle("jobs", api.SettleKind.ACK, (api.Item(polled.runs[0].receipt),)))
        assert (0,) == settled.codes

        used[0] = 199 * MIB
        mock_clock.jump(1)
        while world.node.broker.memory_full:
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert 1 == (await client.ask(api.Push("jobs", columns(b"after")))).count
        nursery.cancel_scope.cancel()


async def test_what_a_process_has_is_measured() -> None:
    """In bytes: what is taken is seen; what is given back may be kept by the process for a while."""
    before = resident_bytes()
    taken = bytearray(b"x") * (64 * MIB)
    after = resident_bytes()
    del taken
    give_memory_back()

    assert before + 48 * MIB < after
