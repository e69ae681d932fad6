"""Every door through a change of leadership: at the node that led, at the one that leads next, and at one that follows
both.

The office is moved, and moved again by ending the node that holds it. What was leased before stays leased, receipts
stay good or spent, and whoever waits goes on waiting; a request that is turned away meanwhile is one that did not
happen, and is asked again.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from tests.conformance.doors import DOORS, SAYS, Door, Refused
from tests.doors.house import Room
from tests.doors.lodge import Lodge
from walrq import api
from walrq.errors import ERRORS, Code
from walrq.ids import parse_handle
from walrq.protocol.columns import pack

pytestmark = pytest.mark.trio

PATIENCE_S = 60.0
LOOK_S = 0.02
AGAIN = (Code.NOT_READY, Code.NOT_LEADER)


@attrs.define(eq=False)
class Seat:
    """One door at one node, with a queue of its own."""

    name: str
    door: Door
    # For what waits: a door has one request at a time.
    other: Door
    queue: str
    held: list[dict[str, Any]] = attrs.field(factory=list)
    spent: list[dict[str, Any]] = attrs.field(factory=list)
    waited: list[dict[str, Any]] = attrs.field(factory=list)

    async def ask(self, request: api.Request, through: Door | None = None) -> dict[str, Any]:
        """Ask until it is not turned away. An outcome that nobody knows is told on."""
        while True:
            try:
                return await (through or self.door).ask(request)
            except Refused as refused:
                if not any(refused.says(code) for code in AGAIN) or refused.says(Code.LEADERSHIP_LOST):
                    raise
                await trio.sleep(LOOK_S)

    async def poll(self, queue: str, **more: Any) -> list[dict[str, Any]]:
        """Lease one message."""
        found: list[dict[str, Any]] = (await self.ask(api.Poll((queue,), 1, **more)))["messages"]
        return found

    async def ack(self, messages: list[dict[str, Any]]) -> list[str | None]:
        """They are done."""
        handles = [parse_handle(each["receipt_handle"]) for each in messages]
        items = tuple(api.Item(receipt, ((offset, offset),)) for receipt, offset in handles)
        found: list[str | None] = (await self.ask(api.Settle(self.queue, api.SettleKind.ACK, items)))["names"]
        return found

    async def touch(self, messages: list[dict[str, Any]]) -> list[str | None]:
        """They take longer."""
        handles = [parse_handle(each["receipt_handle"]) for each in messages]
        items = tuple(api.Item(receipt, ((offset, offset),)) for receipt, offset in handles)
        found: list[str | None] = (await self.ask(api.Touch(self.queue, items, 600_000)))["names"]
        return found


@asynccontextmanager
async def seats(rooms: list[Room]) -> AsyncIterator[list[Seat]]:
    """Every door of every one of these nodes."""
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for room in rooms:
            for name, opening in DOORS.items():
                door, other = [await stack.enter_async_context(opening(room)) for _ in range(2)]
                found.append(Seat(f"{name}@{room.name}", door, other, f"{name} {room.name}"))
        yield found


async def all_of(found: list[Seat], do: Callable[[Seat], Awaitable[None]]) -> None:
    """At every seat, at once."""
    async with trio.open_nursery() as nursery:
        for seat in found:
            nursery.start_soon(do, seat)


async def before(seat: Seat) -> None:
    """Three messages: one is done, one is held, one is left."""
    await seat.ask(api.Push(seat.queue, pack([b"1", b"2", b"3"])))
    seat.spent = await seat.poll(seat.queue, visibility_ms=600_000)
    assert [None] == await seat.ack(seat.spent), seat.name
    seat.held = await seat.poll(seat.queue, visibility_ms=600_000)


async def after(seat: Seat) -> None:
    """What was promised before holds."""
    rest = await seat.poll(seat.queue, visibility_ms=600_000)
    assert (["1"], ["2"], ["3"]) == tuple(
        [each["payload"] for each in messages] for messages in (seat.spent, seat.held, rest)
    ), seat.name
    assert ["RECEIPT_EXPIRED"] == await seat.ack(seat.spent), seat.name
    assert [None] == await seat.touch(seat.held), seat.name
    assert [None, None] == await seat.ack([*seat.held, *rest]), seat.name
    assert ["RECEIPT_EXPIRED"] == await seat.ack(seat.held), seat.name
    await seat.ask(api.Push(seat.queue, pack([b"4"])))
    [last] = await seat.poll(seat.queue)
    assert "4" == last["payload"], seat.name
    assert [None] == await seat.ack([last]), seat.name


async def parked(lodge: Lodge, number: int) -> None:
    """Wait until so many polls wait at the leader."""
    while True:
        stats = await trio.to_thread.run_sync(lodge.ask, lodge.leader(), api.Stats())
        if isinstance(stats, api.StatsReply) and stats.values["parked_polls"] >= number:
            return
        await trio.sleep(LOOK_S)


async def move_the_office(lodge: Lodge) -> Room:
    """To whoever is furthest; the new leader."""
    old = lodge.leader()
    await trio.to_thread.run_sync(lodge.ask, old, api.TransferLeadership())
    lodge.leader_changed()
    return await trio.to_thread.run_sync(lodge.leader)


async def test_every_door_goes_on_when_the_office_moves(lodge: Lodge) -> None:
    """Leases, receipts, order, and polls that wait, at every door of every node."""
    assert set(DOORS) == set(SAYS)
    with trio.fail_after(PATIENCE_S):
        async with seats(lodge.rooms) as found, trio.open_nursery() as waiting:
            await all_of(found, before)

            async def wait(seat: Seat) -> None:
                poll = api.Poll((seat.queue + " late",), 1, 600_000, 50_000)
                seat.waited = (await seat.ask(poll, seat.other))["messages"]

            for seat in found:
                waiting.start_soon(wait, seat)
            await parked(lodge, len(found))
            old = lodge.leader()
            new = await move_the_office(lodge)
            await all_of(found, after)
            for seat in found:
                await seat.ask(api.Push(seat.queue + " late", pack([b"late"])))

    assert old is not new
    assert {seat.name: ["late"] for seat in found} == {
        seat.name: [each["payload"] for each in seat.waited] for seat in found
    }
    assert 3 * len(DOORS) == len(found)


async def test_every_door_of_the_others_goes_on_when_the_leader_ends(lodge: Lodge) -> None:
    """The node is gone, its office is not; nothing happened twice."""
    with trio.fail_after(PATIENCE_S):
        leader = await trio.to_thread.run_sync(lodge.leader)
        others = [room for room in lodge.rooms if room is not leader]
        async with seats(others) as found:
            await all_of(found, before)
            await trio.to_thread.run_sync(lodge.stop, leader)
            lodge.leader_changed()
            await all_of(found, after)
            counts = [
                await trio.to_thread.run_sync(lodge.ask, lodge.leader(), api.ShowQueue(seat.queue)) for seat in found
            ]

    assert {(0, 0)} == {(each.ready, each.leased) for each in counts if isinstance(each, api.QueueInfo)}
    assert len(counts) == len(found)


async def test_what_is_asked_again_did_not_happen() -> None:
    """The table says so of the errors that the seats above take for a turn away."""
    assert {(True, True)} == {(ERRORS[code].definite, ERRORS[code].retry) for code in AGAIN}
