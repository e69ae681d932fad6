"""A cluster of real processes whose leaders are killed with kill -9, and what its nodes noted of it, as one trace."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import walrq
from walrq.errors import WalrqError
from walrq.formal import lines
from walrq.local.tracing import path_of
from walrq.testing.nodes import Nodes

NODES = 3
# Small enough that snapshots are taken and segments change in seconds.
FLAGS = ("--max-wal-segment-size", "1MiB", "--snapshot-commands", "40", "--log-level", "warning")


def traced(folder: Path, seed: int, *, kills: int = 2, pushes: int = 8) -> list[list[dict[str, Any]]]:
    """The lines of each node of a run: pushes and acknowledgements while one leader after another is killed.

    Raises:
        NodeFailed, TimeoutError: the run did not come about.
    """
    rng = random.Random(seed)
    traces = folder / "traces"
    with Nodes.make(folder, NODES, flags=[*FLAGS, "--trace-to", str(traces)]) as nodes:
        nodes.start()
        nodes.wait_leader()
        for _ in range(kills):
            work(nodes, rng, pushes)
            victim = nodes.wait_leader()
            nodes.kill(victim)
            # The others elect one; sometimes the dead one comes back while they do.
            if rng.random() < 0.5:
                nodes.wait_leader()
                work(nodes, rng, pushes)
            nodes.start([victim])
        work(nodes, rng, pushes)
        nodes.wait_whole()
        nodes.stop()
    return [lines.read(path_of(str(traces), name).read_text()) for name in nodes.nodes]


def work(nodes: Nodes, rng: random.Random, pushes: int) -> None:
    """Some of what clients do; an outcome may be unknown, as it may be to anybody whose leader is killed."""
    try:
        with walrq.connect(nodes.url, timeout_s=20) as client:
            for number in range(pushes):
                client.push("q", b"x" * rng.randrange(200))
                if number % 5 == 0:
                    for message in client.poll("q", max_messages=3):
                        client.ack(message)
    except WalrqError as error:
        if error.definite:
            raise
