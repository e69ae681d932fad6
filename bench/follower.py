"""What one slow follower costs the callers of a cluster: pushes beside it, and with all nodes healthy, in turn.

Three nodes; `--slow fsync` makes every fdatasync of one follower wait, `--slow link` all that it says and hears. A
majority of two fast nodes decides meanwhile, so the push should not notice.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from walrq import api
from walrq.testing.links import Links
from walrq.testing.nodes import Nodes

from .figures import Latencies, scratch, table
from .group import Group
from .load import Link, LoadFailed, columns

WARM_UP = 50
# The brake is looked at before a sync: the one under way has to end first.
SETTLE_S = 0.5
SWITCH_S = 0.0001


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--slow", choices=["fsync", "link"], default="fsync", help="what of the follower is slow")
    parser.add_argument("--delay-ms", type=float, default=200.0, help="how slow")
    parser.add_argument("--pairs", type=int, default=11, help="healthy and slow, in turn")
    parser.add_argument("--count", type=int, default=300, help="pushes per half of a pair")
    parser.add_argument("--size", type=int, default=100, help="bytes per payload")
    parser.add_argument("--pause-ms", type=float, default=2.0, help="between pushes")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    healthy: list[dict[str, float]] = []
    slow: list[dict[str, float]] = []
    with scratch(arguments.dir) as folder, _disks(folder) if arguments.slow == "fsync" else _links(folder) as group:
        victim = group.followers()[0]
        link = Link(group.address)
        _pushes(link, arguments, WARM_UP)
        for pair in range(arguments.pairs):
            for delay_s, halves in ((0.0, healthy), (arguments.delay_ms / 1000, slow)):
                group.brake(victim, delay_s)
                time.sleep(SETTLE_S)
                halves.append(_pushes(link, arguments, arguments.count))
            print(f"pair {pair + 1}: push p50 {healthy[-1]['p50']:.3f} ms healthy, {slow[-1]['p50']:.3f} ms beside it")
        group.brake(victim, 0.0)
        link.close()
        if (status := group.stop()) != 0:
            raise SystemExit(f"a node ended with status {status}: {group.last_words()}")
    ratio = statistics.median(b["p50"] / a["p50"] for a, b in zip(healthy, slow, strict=True))
    rows = [
        [name, *(statistics.median(half[p] for half in halves) for p in ("p50", "p90", "p99", "max"))]
        for name, halves in (("healthy", healthy), (f"{arguments.slow} + {arguments.delay_ms:g} ms", slow))
    ]
    print(table(rows, header=["push, ms", "p50", "p90", "p99", "max"]))
    print(f"p50 beside a slow follower / healthy (median of {arguments.pairs} pairs): {ratio:.3f}")
    return {
        "ratio_p50": round(ratio, 3),
        "healthy_ms": healthy,
        "slow_ms": slow,
        "settings": {name: getattr(arguments, name) for name in ("slow", "delay_ms", "pairs", "count", "size")},
    }


@contextlib.contextmanager
def _disks(folder: Path) -> Iterator[Group]:
    """A running cluster whose disks can be slowed."""
    with Group(folder, 3, slowable=True) as group:
        yield group.start()


class SlowLinks(Group):
    """A cluster whose nodes speak through proxies, in both halves of a pair alike."""

    def __init__(self, nodes: Nodes, links: Links) -> None:
        self.nodes = nodes.nodes
        self._links = links

    def brake(self, name: str, seconds: float) -> None:
        """Let everything that a node says and hears take that much longer from now on."""
        for gate in self._links.around(name):
            gate.delay_s = seconds


@contextlib.contextmanager
def _links(folder: Path) -> Iterator[Group]:
    """A running cluster whose links can be slowed."""
    # The proxies share this process with the caller: neither waits long for the other.
    sys.setswitchinterval(SWITCH_S)
    with Nodes.make(folder, 3, proxied=True) as nodes, Links(nodes.doors, nodes.pids).in_thread() as links:
        yield SlowLinks(nodes, links).start()


def _pushes(link: Link, arguments: argparse.Namespace, count: int) -> dict[str, float]:
    latencies = Latencies()
    request = api.Push("bench", columns(1, arguments.size))
    for _ in range(count):
        time.sleep(arguments.pause_ms / 1000)
        begun = time.perf_counter_ns()
        reply = link.call(request)
        latencies.record(time.perf_counter_ns() - begun)
        if isinstance(reply, api.Failed):
            raise LoadFailed(reply.text)
    return latencies.percentiles_ms()
