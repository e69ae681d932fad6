"""Whole nodes with their doors inside the test's own Trio run: real sockets on loopback, real files.

`supervisor._live` is what `walrq serve` runs, without the signals; one process may hold a cluster of them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

from walrq.daemon import supervisor
from walrq.daemon.clock import Clock
from walrq.daemon.config import Config
from walrq.daemon.supervisor import Wishes
from walrq.limits import SEGMENT_BYTES_MIN

# Nothing here takes so long; a test that hangs fails.
PATIENCE_S = 30.0
# How often a condition that no bell is rung for is looked at.
LOOK_S = 0.01


@attrs.define(eq=False)
class Room:
    """One node of the house."""

    name: str
    endpoints: dict[str, str]
    wishes: Wishes
    over: trio.Event

    def url(self, door: str = "http", scheme: str = "http") -> str:
        """Where a door is."""
        return f"{scheme}://{self.endpoints[door]}"

    def http(self) -> httpx.AsyncClient:
        """A client of the HTTP door."""
        return httpx.AsyncClient(base_url=self.url(), timeout=PATIENCE_S)

    async def stop(self) -> None:
        """End it in good order."""
        self.wishes.stop.set()
        await self.over.wait()


async def _live(config: Config, room: Room, *, task_status: trio.TaskStatus[None]) -> None:
    async def greet(line: dict[str, Any]) -> None:
        room.endpoints.update(json.loads(json.dumps(line))["endpoints"])
        task_status.started()

    try:
        await supervisor._live(config, Clock(), room.wishes, greet)
    finally:
        room.over.set()


@asynccontextmanager
async def house(
    folder: Path, *doors: str, nodes: int = 1, patience_s: float = PATIENCE_S, **settings: Any
) -> AsyncIterator[list[Room]]:
    """That many nodes with these doors open; of several, the first members of one cluster."""
    shared: dict[str, Any] = {
        "fsync": "never",
        "max_wal_segment_size": SEGMENT_BYTES_MIN,
        "log_level": "warning",
        "drain_timeout": 5.0,
        "listen": ("127.0.0.1", 0),
        **{f"{door}_listen": ("127.0.0.1", 0) for door in doors},
        **settings,
    }
    names = [f"n{number}" for number in range(1, nodes + 1)]
    if nodes > 1:
        addresses = {name: f"127.0.0.1:{_free_port()}" for name in names}
        shared["bootstrap"] = tuple(sorted(addresses.items()))
        shared["cluster_secret"] = "a secret for tests only"
    rooms = [Room(name, {}, Wishes(), trio.Event()) for name in names]
    with trio.fail_after(patience_s):
        async with trio.open_nursery() as nursery:
            for room in rooms:
                config = Config(data_dir=str(folder / room.name), node_id=room.name, **shared)
                await nursery.start(_live, config, room)
            try:
                yield rooms
            finally:
                for room in rooms:
                    room.wishes.stop.set()


def _free_port() -> int:
    from walrq.daemon import listener

    with listener.bind("127.0.0.1", 0) as sock:
        port: int = sock.getsockname()[1]
        return port


async def ask(client: httpx.AsyncClient, method: str, path: str, body: Any = None, **rest: Any) -> Any:
    """The decoded answer, whatever its status."""
    response = await client.request(method, path, json=body, **rest)
    return response.json()


async def leader_and_followers(
    rooms: list[Room], connect: Callable[[Room], httpx.AsyncClient] = Room.http, **rest: Any
) -> tuple[Room, list[Room]]:
    """Once one of them leads and the others know. `rest` goes with each question: headers, say."""
    while True:
        found = []
        for room in rooms:
            async with connect(room) as client:
                state = await ask(client, "GET", "/v1/cluster", **rest)
            found.append(state["leader"])
        if found[0] is not None and len(set(found)) == 1:
            leader = next(room for room in rooms if room.name == found[0])
            return leader, [room for room in rooms if room is not leader]
        await trio.sleep(LOOK_S)
