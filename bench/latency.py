"""One push at a time on an idle node, each beside a bare append and fdatasync on the same disk."""

from __future__ import annotations

import argparse
import time
from typing import Any

from walrq import api
from walrq.testing.node import Node

from . import machine_only
from .figures import Latencies, scratch, table
from .load import Link, LoadFailed, columns
from .probe import Probe

WARM_UP = 50
# What a push of one small message adds around its payload in the log.
ENVELOPE_BYTES = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--count", type=int, default=2_000, help="pushes")
    parser.add_argument("--size", type=int, default=100, help="bytes per payload")
    parser.add_argument("--pause-ms", type=float, default=2.0, help="before each: node and disk are idle")
    parser.add_argument("--fsync", default="always", help="always, never or interval:MS")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    push, probe, poll, ack = Latencies(), Latencies(), Latencies(), Latencies()
    with scratch(arguments.dir) as folder, Node(folder / "data", flags=["--fsync", arguments.fsync]) as node:
        node.start()
        disk = Probe(folder, arguments.size + ENVELOPE_BYTES)
        link = Link(node.address)
        request = api.Push("bench", columns(1, arguments.size))
        for number in range(arguments.count + WARM_UP):
            if number == WARM_UP:
                for latencies in (push, probe, poll, ack):
                    latencies.clear()
            time.sleep(arguments.pause_ms / 1000)
            push.record(_timed(link, request))
            time.sleep(arguments.pause_ms / 1000)
            probe.record(disk.append())
            time.sleep(arguments.pause_ms / 1000)
            begun = time.perf_counter_ns()
            polled = link.call(api.Poll(("bench",), max_messages=1, visibility_ms=60_000))
            poll.record(time.perf_counter_ns() - begun)
            items = tuple(api.Item(run.receipt) for run in polled.runs)
            time.sleep(arguments.pause_ms / 1000)
            ack.record(_timed(link, api.Settle("bench", api.SettleKind.ACK, items)))
        disk.close()
        link.close()
        node.stop()
    hot = machine_only.poll_of_hot_messages()
    parts = {"push": push, "probe": probe, "poll": poll, "ack": ack}
    figures = {name: latencies.percentiles_ms() for name, latencies in parts.items()}
    figures["apply poll of 10"] = hot
    rows = [[name, *(row[p] for p in ("p50", "p90", "p99", "p99.9", "max"))] for name, row in figures.items()]
    print(table(rows, header=["ms", "p50", "p90", "p99", "p99.9", "max"]))
    own, bare = figures["push"], figures["probe"]
    print(f"push p50 = probe + {own['p50'] - bare['p50']:.3f} ms, p99 = {own['p99'] / bare['p99']:.2f} x probe")
    return {
        "latency_ms": figures,
        "p50_over_probe_ms": round(own["p50"] - bare["p50"], 3),
        "p99_over_probe": round(own["p99"] / bare["p99"], 3),
        "settings": {name: getattr(arguments, name) for name in ("count", "size", "pause_ms", "fsync")},
    }


def _timed(link: Link, request: api.Request) -> int:
    begun = time.perf_counter_ns()
    reply = link.call(request)
    ended = time.perf_counter_ns()
    if isinstance(reply, api.Failed):
        raise LoadFailed(reply.text)
    return ended - begun
