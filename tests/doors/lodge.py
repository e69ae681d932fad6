"""A house in a thread of its own, for tests that share one: nodes outlive a test's own Trio run."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

import trio

from tests.daemon.process import BlockingClient
from tests.doors.house import Room, house
from walrq import api

DOORS = ("ws", "resp", "http")
# A whole module of tests; each of them has its own patience.
LIFE_S = 600.0


class Lodge:
    """Three nodes, or as many as are asked for, with all doors open. Use as a context manager."""

    def __init__(self, folder: Path, *doors: str, nodes: int = 3) -> None:
        self._folder = folder
        self._doors = doors or DOORS
        self._nodes = nodes
        self.rooms: list[Room] = []
        self._token: trio.lowlevel.TrioToken
        self._leaving: trio.Event
        self._open = threading.Event()
        self._failure: BaseException | None = None
        self._leader: Room | None = None
        self._thread = threading.Thread(target=self._run, name="lodge")

    def __enter__(self) -> Lodge:
        self._thread.start()
        self._open.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._token.run_sync_soon(self._leaving.set)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            trio.run(self._live)
        except BaseException as error:  # noqa: BLE001 - told in the test's thread
            self._failure = error
        finally:
            self._open.set()

    async def _live(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._leaving = trio.Event()
        async with house(self._folder, *self._doors, nodes=self._nodes, patience_s=LIFE_S) as rooms:
            self.rooms = rooms
            self._open.set()
            await self._leaving.wait()

    def stop(self, room: Room) -> None:
        """End one node, in good order; returns once it is gone."""
        gone = threading.Event()

        async def end() -> None:
            await room.stop()
            gone.set()

        self._token.run_sync_soon(trio.lowlevel.spawn_system_task, end)
        gone.wait()

    def ask(self, room: Room, request: api.Request) -> api.Reply:
        """Ask one node at its native door."""
        with BlockingClient(int(room.endpoints["cbor"].rpartition(":")[2])) as client:
            reply: api.Reply = client.ask(request)
            return reply

    def leader(self) -> Room:
        """Who leads, once all nodes that run agree on it; looked up when nobody knows, or a node was stopped."""
        if self._leader is None or self._leader.over.is_set():
            self._leader = self._find_leader()
        return self._leader

    def leader_changed(self) -> None:
        """Look it up anew."""
        self._leader = None

    def _find_leader(self) -> Room:
        while True:
            running = [room for room in self.rooms if not room.over.is_set()]
            states = [self.ask(room, api.ClusterStatus()) for room in running]
            found = {state.leader for state in states if isinstance(state, api.ClusterState)}
            leader = next((room for room in running if {room.name} == found), None)
            if leader is not None and not isinstance(self.ask(leader, api.ListQueues()), api.Failed):
                return leader

    def follower(self) -> Room:
        """One that runs and does not lead."""
        leader = self.leader()
        return next(room for room in self.rooms if room is not leader and not room.over.is_set())
