"""One queue's latency while its neighbours are in trouble: one paused on a backlog, one stuck.

Two daemons, one with the troubled neighbours and one without, are measured in turns, so that what the
machine does meanwhile hits both alike.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from walrq import api
from walrq.testing.node import Node

from . import backlog
from .figures import Latencies, scratch, table
from .load import Link, LoadFailed, columns

HELD = 10_000
HELD_VISIBILITY_MS = 3_600_000
POLL_BATCH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--messages", type=int, default=1_000_000, help="backlog of the paused queue")
    parser.add_argument("--batch", type=int, default=100, help="how the backlog was pushed")
    parser.add_argument("--size", type=int, default=100, help="bytes per payload")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--per-round", type=int, default=250, help="push, poll, ack cycles per round")
    parser.add_argument("--fsync", default="always", help="always, never or interval:MS")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    flags = ["--fsync", arguments.fsync]
    with (
        scratch(arguments.dir) as folder,
        Node(folder / "alone", flags=flags) as alone,
        Node(folder / "crowded", flags=flags) as crowded,
    ):
        alone.start()
        crowded.start()
        stuck = _trouble(crowded, arguments)
        links = (Link(alone.address), Link(crowded.address))
        latencies = (Latencies(), Latencies())
        for link in links:
            _cycles(link, Latencies(), 50, arguments.size)
        for _ in range(arguments.rounds):
            for link, kept in zip(links, latencies, strict=True):
                _cycles(link, kept, arguments.per_round, arguments.size)
        for link in (*links, stuck):
            link.close()
        alone.stop()
        crowded.stop()
    quiet, busy = (kept.percentiles_ms() for kept in latencies)
    named = (("alone", quiet), ("crowded", busy))
    rows = [[name, *(row[p] for p in ("p50", "p90", "p99", "max"))] for name, row in named]
    print(table(rows, header=["push + poll + ack, ms", "p50", "p90", "p99", "max"]))
    print(f"p99 crowded / alone: {busy['p99'] / quiet['p99']:.2f}")
    names = ("messages", "batch", "size", "rounds", "per_round", "fsync")
    return {
        "latency_ms": {"alone": quiet, "crowded": busy},
        "p99_ratio": round(busy["p99"] / quiet["p99"], 3),
        "settings": {name: getattr(arguments, name) for name in names},
    }


def _trouble(node: Node, arguments: argparse.Namespace) -> Link:
    """A paused queue with a backlog, and one whose consumer sits on what it took; returns that consumer."""
    backlog.fill(node, "paused", messages=arguments.messages, batch=arguments.batch, size=arguments.size)
    backlog.fill(node, "stuck", messages=2 * HELD, batch=POLL_BATCH, size=arguments.size)
    link = Link(node.address)
    reply = link.call(api.SetQueue("paused", {"paused": True}))
    if isinstance(reply, api.Failed):
        raise LoadFailed(reply.text)
    poll = api.Poll(("stuck",), max_messages=POLL_BATCH, visibility_ms=HELD_VISIBILITY_MS)
    for _ in range(HELD // POLL_BATCH):
        link.call(poll)
    return link


def _cycles(link: Link, kept: Latencies, count: int, size: int) -> None:
    push = api.Push("third", columns(1, size))
    poll = api.Poll(("third",), max_messages=1, visibility_ms=60_000)
    for _ in range(count):
        begun = time.perf_counter_ns()
        link.call(push)
        polled = link.call(poll)
        items = tuple(api.Item(run.receipt) for run in polled.runs)
        settled = link.call(api.Settle("third", api.SettleKind.ACK, items))
        kept.record(time.perf_counter_ns() - begun)
        if settled != api.Settled((0,)):
            raise LoadFailed(f"a cycle went wrong: {polled} {settled}")
