"""Several nodes on this machine, seen by a bench as one: where the leader is, what all of them cost together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import walrq
from walrq.errors import WalrqError
from walrq.local import layout
from walrq.testing.node import Node, NodeFailed

LEADER_S_MAX = 30.0


class SlowableNode(Node):
    """A node whose disk takes longer while `brake` holds a number of seconds: see `slow_disk`."""

    brake: Path

    @property
    def command(self) -> list[str]:
        """What is executed."""
        plain = super().command
        at = plain.index("walrq")
        return [*plain[:at], f"{__package__}.slow_disk", str(self.brake), *plain[at + 1 :]]


class Group:
    """Nodes n1, n2, ... of one cluster. Use as a context manager: leaving it kills what still runs."""

    def __init__(self, folder: Path, count: int, *, flags: Sequence[str] = (), slowable: bool = False) -> None:
        places = layout.prepare(folder / "group", count, 0)
        self.nodes: dict[str, Node] = {}
        for place in places.places:
            # The launcher's arguments without the two that a Node adds itself.
            own = places.flags(place)[2:]
            at = own.index("--listen")
            kind = SlowableNode if slowable else Node
            node = kind(place.data_dir, flags=[*own[:at], *own[at + 2 :], *flags], listen=place.listen, log=place.log)
            if isinstance(node, SlowableNode):
                node.brake = folder / f"{place.node}.brake"
            self.nodes[place.node] = node

    def start(self) -> Group:
        """Start all and wait for a leader.

        Raises: NodeFailed.
        """
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait_ready()
        self.leader()
        return self

    def leader(self) -> str:
        """The name of the node that leads.

        Raises: NodeFailed when nobody does for long.
        """
        url = "walrq://" + ",".join(node.listen for node in self.nodes.values())
        try:
            with walrq.connect(url, timeout_s=LEADER_S_MAX) as client:
                # A read that only a leader answers that has taken its office up.
                client.list_queues()
                leader = client.cluster().leader
        except WalrqError as error:
            raise NodeFailed(f"no leader: {error}: {self.last_words()}") from error
        assert leader is not None
        return leader

    def followers(self) -> list[str]:
        """Names of the others."""
        leader = self.leader()
        return [name for name in self.nodes if name != leader]

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the leader's native door."""
        return self.nodes[self.leader()].address

    def brake(self, name: str, seconds: float) -> None:
        """Let every sync of a slowable node take that much longer from now on."""
        node = self.nodes[name]
        assert isinstance(node, SlowableNode)
        node.brake.write_text(str(seconds))

    def cpu_s(self) -> float:
        """Processor seconds of all nodes."""
        return sum(node.cpu_s() for node in self.nodes.values())

    def rss_bytes_max(self) -> int:
        """The highest resident memory that one of them had."""
        return max(node.rss_bytes_max() for node in self.nodes.values())

    def stop(self) -> int:
        """SIGTERM to all; 0, or the first exit status that is none."""
        for node in self.nodes.values():
            node.process.terminate()
        return next((status for node in self.nodes.values() if (status := node.wait())), 0)

    def last_words(self) -> str:
        """The ends of their logs."""
        return "\n".join(f"{name}: {node.last_words(500)}" for name, node in self.nodes.items())

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            node.kill()
