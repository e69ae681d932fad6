"""Several real daemons as child processes that make one cluster: start, signal, ask who leads.

For end-to-end tests, chaos and benches. Blocking. Who leads is asked over the public protocol, of every node that
runs; nothing is read from logs. Each node may tell the others the address of a proxy in front of its own door, whose
making is the caller's.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

import attrs

import walrq
from walrq import api
from walrq.errors import WalrqError
from walrq.local import layout
from walrq.testing.node import Node

Address = tuple[str, int]
SECRET: Final = "a secret of this run"
# A node that does not answer within this is stopped or busy.
ASK_S: Final = 0.5
LOOK_S: Final = 0.01
# Followers answer several heartbeats in this time.
HEARD_MS_MAX: Final = 500


@attrs.define(eq=False)
class Nodes:
    """A cluster of child processes. Use as a context manager: leaving it kills what still runs.

    Attributes:
        nodes: by name.
        doors: by name, (where the others are told to dial, where the node listens for them); the same unless proxied.
        paused: those that a SIGSTOP holds.
    """

    nodes: dict[str, Node]
    doors: Mapping[str, tuple[Address, Address]]
    paused: set[str] = attrs.field(factory=set)

    @classmethod
    def make(cls, folder: Path, count: int, *, flags: Sequence[str] = (), proxied: bool = False) -> Nodes:
        """`count` nodes named n1, n2, ... in `folder`, not started yet.

        Args:
            flags: further arguments of `walrq serve`.
            proxied: the others dial another address than the node listens on; see `doors`.
        """
        outside = layout.prepare(folder / "places", count, 0)
        inside = layout.prepare(folder / "doors", count, 0) if proxied else outside
        nodes: dict[str, Node] = {}
        doors: dict[str, tuple[Address, Address]] = {}
        for place, door in zip(outside.places, inside.places, strict=True):
            own = [
                *("--node-id", place.node),
                *("--peer-listen", door.peer),
                *("--advertise", place.peer),
                *("--bootstrap", outside.bootstrap),
            ]
            nodes[place.node] = Node(
                folder / place.node,
                flags=[*own, *flags],
                listen=place.listen,
                environment={"WALRQ_CLUSTER_SECRET": SECRET},
            )
            doors[place.node] = (_address(place.peer), _address(door.peer))
        return cls(nodes, doors)

    @property
    def url(self) -> str:
        """All nodes, for `walrq.connect`."""
        return "walrq://" + ",".join(node.listen for node in self.nodes.values())

    def pids(self) -> Mapping[str, int]:
        """The processes that run."""
        return {name: node.pid for name, node in self.nodes.items() if node.running}

    def start(self, names: Iterable[str] | None = None) -> None:
        """Start nodes, all unless named, side by side, and wait until each is ready.

        Raises: NodeFailed.
        """
        chosen = [self.nodes[name] for name in (self.nodes if names is None else names)]
        for node in chosen:
            node.launch()
        for node in chosen:
            node.wait_ready()

    def kill(self, name: str) -> None:
        """kill -9."""
        self.nodes[name].kill()
        self.paused.discard(name)

    def pause(self, name: str) -> None:
        """SIGSTOP: it is there and does nothing."""
        self.nodes[name].signal(signal.SIGSTOP)
        self.paused.add(name)

    def resume(self, name: str) -> None:
        """SIGCONT."""
        if name in self.paused:
            self.paused.discard(name)
            self.nodes[name].signal(signal.SIGCONT)

    def state(self, name: str) -> api.ClusterState | None:
        """What a node knows of the cluster; None when it does not say so at once."""
        node = self.nodes[name]
        if not node.running or name in self.paused or not node.ready:
            return None
        try:
            with walrq.connect(node.url, session=False, timeout_s=ASK_S, connect_timeout_s=ASK_S) as client:
                return client.cluster()
        except WalrqError:
            return None  # it is just being stopped, or starts

    def leader(self) -> str | None:
        """The node that says that it leads, in the newest term; None while there is none."""
        claims = [(state.term, state.node) for name in self.nodes if (state := self.state(name)) and _leads(state)]
        return max(claims)[1] if claims else None

    def wait_leader(self, seconds: float = 30.0) -> str:
        """The leader, as soon as there is one.

        Raises: TimeoutError.
        """
        until = time.monotonic() + seconds
        while (found := self.leader()) is None:
            if time.monotonic() > until:
                raise TimeoutError(f"no leader within {seconds:g} s")
            time.sleep(LOOK_S)
        return found

    def wait_whole(self, seconds: float = 30.0) -> str:
        """Until a leader has every member at its side, none behind; the leader.

        Raises: TimeoutError.
        """
        until = time.monotonic() + seconds
        while True:
            leader = self.wait_leader(max(0.0, until - time.monotonic()))
            state = self.state(leader)
            if state is not None and _leads(state) and all(_beside(state, member) for member in state.members):
                return leader
            if time.monotonic() > until:
                raise TimeoutError(f"not all nodes caught up within {seconds:g} s")
            time.sleep(LOOK_S)

    def stop(self) -> dict[str, int]:
        """SIGTERM to all of them; the exit status of each."""
        running = [name for name, node in self.nodes.items() if node.running]
        for name in running:
            self.nodes[name].signal(signal.SIGTERM)
        return {name: self.nodes[name].wait() for name in running}

    def __enter__(self) -> Nodes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            node.kill()


def _leads(state: api.ClusterState) -> bool:
    return state.leader == state.node


def _beside(state: api.ClusterState, member: api.MemberState) -> bool:
    """Whether the leader hears from a member and knows it to have what is decided."""
    if member.node == state.node:
        return True
    heard = member.heard_ms is not None and member.heard_ms < HEARD_MS_MAX
    return heard and member.match_index is not None and member.match_index >= state.commit_index


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
