"""Durable ingest: one write and fdatasync per message, against walrq's group commit, on the same disk."""

from __future__ import annotations

import argparse
import time
from typing import Any

from walrq.testing.node import Node

from .figures import scratch, table
from .load import Link, Loop, Producer, Traffic
from .probe import Probe

WARM_UP_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--seconds", type=float, default=5.0, help="of each of the three parts")
    parser.add_argument("--size", type=int, default=1_000, help="bytes per message")
    parser.add_argument("--batch", type=int, default=100, help="messages per push")
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--window", type=int, default=8, help="pushes in flight per producer")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    with scratch(arguments.dir) as folder:
        probe = Probe(folder, arguments.size)
        count = 0
        begun = time.perf_counter()
        while time.perf_counter() - begun < arguments.seconds:
            probe.append()
            count += 1
        bare = count / (time.perf_counter() - begun)
        probe.close()
        single = _push(arguments, folder / "single", batch=1, producers=1, window=1)
        grouped = _push(
            arguments,
            folder / "grouped",
            batch=arguments.batch,
            producers=arguments.producers,
            window=arguments.window,
        )
    size = arguments.size / 1e6
    rows = [
        ["write + fdatasync per message (bare file)", bare, bare * size, 1.0],
        ["walrq, one message in flight", single, single * size, single / bare],
        ["walrq, group commit", grouped, grouped * size, grouped / bare],
    ]
    print(table(rows, header=["", "messages/s", "MB/s", "ratio"]))
    names = ("seconds", "size", "batch", "producers", "window")
    return {
        "bare_msgs_per_s": round(bare),
        "single_msgs_per_s": round(single),
        "msgs_per_s": round(grouped),
        "ops_per_s": round(grouped),
        "mb_per_s": round(grouped * size, 2),
        "ratio": round(grouped / bare, 1),
        "settings": {name: getattr(arguments, name) for name in names},
    }


def _push(arguments: argparse.Namespace, data: Any, *, batch: int, producers: int, window: int) -> float:
    """Durable messages per second of these producers."""
    with Node(data, flags=["--fsync", "always"]) as node:
        node.start()
        traffic = Traffic("bench", batch=batch, size=arguments.size, window=window, waiting_max=1 << 60)
        loop = Loop()
        for _ in range(producers):
            producer = Producer(Link(node.address), traffic)
            loop.add(producer.link, producer.fill)
        loop.run(time.perf_counter_ns() + int(WARM_UP_S * 1e9))
        before, begun = traffic.pushed, time.perf_counter()
        loop.run(time.perf_counter_ns() + int(arguments.seconds * 1e9))
        rate = (traffic.pushed - before) / (time.perf_counter() - begun)
        loop.close()
        node.stop()
    return rate
