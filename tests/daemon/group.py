"""Several nodes inside the test's own Trio run: simulated disks, real links on loopback, clients over socket pairs.

Time is real, and short: a tick is TICK_MS here, so an election takes some 0.2 s. What a node loses when it crashes is
what its simulated disk had not synced.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from tests.daemon.harness import Client, World
from walrq import api
from walrq.daemon import listener, members, peers, reactor
from walrq.daemon.config import Config
from walrq.daemon.supervisor import Node, make_front, open_node, start_core
from walrq.errors import Code
from walrq.limits import SEGMENT_BYTES_MIN
from walrq.testing.disk import SimDisk

TICK_MS = 15
SECRET = "a secret for tests only"
# Nothing here takes seconds; a test that waits for longer fails with the states of all nodes.
PATIENCE_S = 20.0
# How often a condition that spans several nodes is looked at: none of them rings a bell for it.
LOOK_S = TICK_MS / 3000


@attrs.define(eq=False)
class Member:
    """One node, up or down."""

    name: str
    disk: SimDisk
    sock: socket.socket | None = None
    world: World | None = None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    over: trio.Event = attrs.field(factory=trio.Event)
    address: str = ""

    @property
    def node(self) -> Node:
        """The running node."""
        assert self.world is not None, f"{self.name} is down"
        return self.world.node

    async def connect(self, **options: Any) -> Client:
        """A client of this node."""
        assert self.world is not None, f"{self.name} is down"
        return await self.world.connect(**options)

    async def ask(self, request: api.Request) -> Any:
        """One request over a connection of its own."""
        client = await self.connect()
        try:
            return await client.ask(request)
        finally:
            await client.aclose()


@attrs.define(eq=False)
class Group:
    """The nodes of one test."""

    nursery: trio.Nursery
    settings: dict[str, Any]
    members: dict[str, Member] = attrs.field(factory=dict)
    bootstrap: tuple[tuple[str, str], ...] = ()

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    @property
    def up(self) -> list[Member]:
        """The nodes that run."""
        return [member for member in self.members.values() if member.world is not None]

    def reserve(self, name: str) -> Member:
        """A place for a node, with an address of its own."""
        sock = listener.bind("127.0.0.1", 0)
        member = Member(name, SimDisk(), sock, address=listener.address_of(sock))
        self.members[name] = member
        return member

    async def start(self, name: str, *, join: str | None = None, **settings: Any) -> Member:
        """Start a node, the first time or again."""
        member = self.members.get(name) or self.reserve(name)
        assert member.world is None, f"{name} runs"
        if member.sock is None:
            host, _, port = member.address.rpartition(":")
            member.sock = listener.bind(host, int(port))
        begins: dict[str, Any] = {}
        if join is not None:
            begins["join"] = (self.members[join].address,)
        elif name in dict(self.bootstrap):
            begins["bootstrap"] = self.bootstrap
        config = Config(data_dir="data", node_id=name, fsync="never", **begins, **{**self.settings, **settings})
        member.scope = trio.CancelScope()
        member.over = trio.Event()
        await self.nursery.start(self._run, member, config)
        return member

    async def _run(self, member: Member, config: Config, task_status: trio.TaskStatus[None]) -> None:
        sock, member.sock = member.sock, None
        assert sock is not None
        # Where clients are sent is only looked at here, so it needs no listener.
        setting = peers.Setting(sock, member.address, {"cbor": f"{member.name}:50051"}, SECRET.encode(), None)
        clean = False
        try:
            with member.scope, contextlib.closing(sock):
                node = await open_node(config, disk=member.disk, setting=setting)
                try:
                    async with trio.open_nursery() as core:
                        start_core(core, node)
                        front = make_front(node)
                        await core.start(front.run)
                        member.world = World(node, front, member.disk)
                        task_status.started()
                        await trio.sleep_forever()
                finally:
                    world, member.world = member.world, None
                    with trio.CancelScope(shield=True):
                        for stream in world.streams if world is not None else ():
                            await trio.aclose_forcefully(stream)
                    node.replica.close(clean=clean)
        finally:
            member.over.set()

    async def stop(self, name: str) -> None:
        """End a node at once, as `kill -9` would."""
        member = self.members[name]
        member.scope.cancel()
        await member.over.wait()

    async def until(self, what: Callable[[], Any], why: str) -> Any:
        """Wait until `what()` is true, and return it."""
        with trio.move_on_after(PATIENCE_S):
            while not (found := what()):  # noqa: ASYNC110 - of many nodes at once
                await trio.sleep(LOOK_S)
            return found
        states = "\n".join(f"{member.name}: {member.node.members.state()}" for member in self.up)
        pytest.fail(f"{why} did not happen:\n{states}")

    async def leader(self, *, other_than: str | None = None) -> Member:
        """The node that leads and serves."""

        def find() -> Member | None:
            found = [each for each in self.up if each.node.broker.is_serving and each.name != other_than]
            return max(found, key=lambda each: each.node.replica.term) if found else None

        found: Member = await self.until(find, "an election")
        return found

    async def followers(self) -> list[Member]:
        """The others, once they know who leads."""
        leader = await self.leader()
        others = [each for each in self.up if each is not leader]
        for each in others:
            await self.until(lambda each=each: each.node.replica.leader == leader.name, f"{each.name} follows")
        return others

    async def ask(self, request: api.Request) -> Any:
        """Ask whoever leads, as often as it takes."""
        while True:
            reply = await (await self.leader()).ask(request)
            if not (isinstance(reply, api.Failed) and reply.code in _AGAIN):
                return reply
            await trio.sleep(LOOK_S)

    async def settle(self) -> None:
        """Wait until everybody has applied what the leader has."""
        leader = await self.leader()
        index = leader.node.replica.last_index
        await self.until(
            lambda: all(each.node.replica.applied_index >= index for each in self.up), f"the apply of {index}"
        )


_AGAIN = (int(Code.NOT_LEADER), int(Code.NOT_READY), int(Code.LEADERSHIP_LOST))


@asynccontextmanager
async def group(names: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[Group]:
    """A cluster of the named nodes, all of them started; ended when the block ends."""
    for module in (peers, members):
        monkeypatch.setattr(module, "TICK_MS", TICK_MS)
    # All nodes share one thread: none may wait in it.
    monkeypatch.setattr(reactor, "_LINGER_S", 0.0)
    settings.setdefault("max_wal_segment_size", SEGMENT_BYTES_MIN)
    with trio.fail_after(3 * PATIENCE_S):
        async with trio.open_nursery() as nursery:
            made = Group(nursery, settings)
            for name in names.split():
                made.reserve(name)
            if len(made.members) > 1:
                made.bootstrap = tuple(sorted((each.name, each.address) for each in made.members.values()))
            try:
                for name in names.split():
                    await made.start(name)
                yield made
            finally:
                for member in made.members.values():
                    member.scope.cancel()
                    if member.sock is not None:
                        member.sock.close()


def cut(member: Member) -> Callable[[], None]:
    """Let nothing pass between a node and all others; returns what heals it."""
    node = member.node
    assert node.peers is not None
    mesh, incoming = node.peers.mesh, node.peers.mesh._incoming
    send, deliver, driver_send = mesh.send, incoming._deliver, node.driver._send
    node.driver._send = lambda messages: None
    incoming._deliver = lambda message: None

    def heal() -> None:
        node.driver._send = driver_send
        incoming._deliver = deliver
        assert send == mesh.send

    return heal
