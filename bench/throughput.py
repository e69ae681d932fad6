"""Push, lease and ack as fast as they go, for some seconds; beside Redis streams when asked."""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from walrq.testing.node import Node

from . import machine_only, peer_redis
from .figures import scratch, table
from .group import Group
from .load import Consumer, Link, Loop, Producer, Traffic

WARM_UP_S = 1.0
DRAIN_S = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--batch", type=int, default=100, help="messages per push, and at most per poll")
    parser.add_argument("--size", type=int, default=100, help="bytes per payload")
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--consumers", type=int, default=4)
    parser.add_argument("--window", type=int, default=8, help="batches in flight per client")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--fsync", default="always", help="always, never or interval:MS")
    parser.add_argument("--nodes", type=int, default=1, help="a cluster on this machine; clients speak to its leader")
    parser.add_argument("--no-session", action="store_true", help="send requests without a session")
    parser.add_argument("--waiting-max", type=int, default=0, help="producers pause while this many wait (0: by batch)")
    parser.add_argument("--in-memory", action="store_true", help="the state machine alone, no daemon")
    parser.add_argument("--compare", choices=["redis"], help="run a peer interleaved, report the ratio")
    parser.add_argument("--pairs", type=int, default=5, help="interleaved pairs of --compare")
    parser.add_argument("--serve-flag", action="append", default=[], help="for `walrq serve`")


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that belong beside the figures."""
    names = ("batch", "size", "producers", "consumers", "window", "seconds", "fsync", "nodes")
    return {**{name: getattr(arguments, name) for name in names}, "session": not arguments.no_session}


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    if arguments.in_memory:
        figures = machine_only.measure(arguments)
        _show([("walrq, in memory", figures)])
        return figures
    if arguments.compare is None:
        with scratch(arguments.dir) as folder:
            figures = measure(arguments, folder)
        _show([("walrq", figures)])
        return figures
    return _compare(arguments)


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One run against one fresh daemon, or a fresh cluster."""
    flags = ["--fsync", arguments.fsync, *arguments.serve_flag]
    several = arguments.nodes > 1
    with Group(folder, arguments.nodes, flags=flags) if several else Node(folder / "data", flags=flags) as node:
        node.start()
        figures = drive(node, arguments)
        status = node.stop()
    if status != 0:
        raise SystemExit(f"the daemon ended with status {status}: {node.last_words()}")
    return {**figures, "settings": settings(arguments)}


def drive(node: Node | Group, arguments: argparse.Namespace) -> dict[str, Any]:
    """Load a running node and return the figures of the time after the warm-up."""
    window = arguments.batch * arguments.window
    waiting_max = arguments.waiting_max or max(2_000, 4 * window * arguments.producers)
    traffic = Traffic(
        "bench", batch=arguments.batch, size=arguments.size, window=arguments.window, waiting_max=waiting_max
    )
    loop = Loop()
    address = node.address
    session = not arguments.no_session
    for _ in range(arguments.producers):
        producer = Producer(Link(address, session=session), traffic)
        loop.add(producer.link, producer.fill)
    for _ in range(arguments.consumers):
        consumer = Consumer(Link(address, session=session), traffic)
        loop.add(consumer.link, consumer.fill)
    loop.run(time.perf_counter_ns() + int(WARM_UP_S * 1e9))
    before = traffic.reset()
    server_cpu, own_cpu = node.cpu_s(), time.process_time()
    started = time.perf_counter_ns()
    loop.run(started + int(arguments.seconds * 1e9))
    elapsed = (time.perf_counter_ns() - started) / 1e9
    server_cpu, own_cpu = node.cpu_s() - server_cpu, time.process_time() - own_cpu
    pushed, leased, acked = (
        now - then for now, then in zip((traffic.pushed, traffic.leased, traffic.acked), before, strict=True)
    )
    rss = node.rss_bytes_max()
    latencies = {
        "push": traffic.push_latency.percentiles_ms(),
        "poll": traffic.poll_latency.percentiles_ms(),
        "ack": traffic.ack_latency.percentiles_ms(),
    }
    traffic.producing = False
    loop.run(
        time.perf_counter_ns() + int(DRAIN_S * 1e9),
        lambda: traffic.pushed == traffic.offered == traffic.acked,
    )
    loop.close()
    ops = pushed + leased + acked
    return {
        "ops_per_s": round(ops / elapsed),
        "msgs_per_s": round(acked / elapsed),
        "latency_ms": latencies,
        "server_cpu_s_per_million_ops": round(server_cpu / max(1, ops) * 1e6, 3),
        "client_cpu_s_per_million_ops": round(own_cpu / max(1, ops) * 1e6, 3),
        "server_cpu_share": round(server_cpu / elapsed, 3),
        "client_cpu_share": round(own_cpu / elapsed, 3),
        "rss_mb": round(rss / 1e6, 1),
        "seconds": round(elapsed, 3),
        "left_after_drain": traffic.offered - traffic.acked,
    }


def _compare(arguments: argparse.Namespace) -> dict[str, Any]:
    missing = peer_redis.missing()
    if missing is not None:
        with scratch(arguments.dir) as folder:
            figures = measure(arguments, folder)
        _show([("walrq", figures)])
        print(f"redis: skipped, {missing}")
        return {**figures, "peer": {"skipped": missing}}
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    for pair in range(arguments.pairs):
        with scratch(arguments.dir) as folder:
            ours.append(measure(arguments, folder))
        with scratch(arguments.dir) as folder:
            theirs.append(peer_redis.measure(arguments, folder))
        print(f"pair {pair + 1}: walrq {ours[-1]['ops_per_s']:,} redis {theirs[-1]['ops_per_s']:,} ops/s")
    own = sorted(ours, key=lambda figures: figures["ops_per_s"])[len(ours) // 2]
    peer = sorted(theirs, key=lambda figures: figures["ops_per_s"])[len(theirs) // 2]
    ratio = statistics.median(mine["ops_per_s"] / other["ops_per_s"] for mine, other in zip(ours, theirs, strict=True))
    _show([("walrq", own), ("redis streams", peer)])
    print(f"ratio (median of {arguments.pairs} pairs): {ratio:.2f}")
    return {
        **own,
        "best_ops_per_s": max(figures["ops_per_s"] for figures in ours),
        "all_ops_per_s": [figures["ops_per_s"] for figures in ours],
        "peer": {**peer, "all_ops_per_s": [figures["ops_per_s"] for figures in theirs]},
        "ratio": round(ratio, 2),
    }


def _show(rows: list[tuple[str, dict[str, Any]]]) -> None:
    cells = []
    for name, figures in rows:
        latency = figures.get("latency_ms", {})
        cells.append(
            [
                name,
                figures["ops_per_s"],
                figures["msgs_per_s"],
                *(latency.get(kind, {}).get(p, "") for kind in ("push", "ack") for p in ("p50", "p99")),
                figures.get("server_cpu_s_per_million_ops", ""),
                figures.get("client_cpu_s_per_million_ops", ""),
                figures.get("rss_mb", ""),
            ]
        )
    latency_names = ["push p50 ms", "p99", "ack p50 ms", "p99"]
    header = ["", "ops/s", "msgs/s", *latency_names, "server s/Mop", "client s/Mop", "RSS MB"]
    print(table(cells, header=header))
