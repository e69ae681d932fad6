"""A backlog of waiting messages: memory per message, disk, and how soon a restarted node answers a poll."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from walrq import api
from walrq.testing.node import Node

from .figures import scratch, table
from .load import Link, Loop, Producer, Traffic

PUSH_S_MAX = 3600
WINDOW_MESSAGES = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 100], help="one run for each")
    parser.add_argument("--size", type=int, default=100, help="bytes per payload")
    parser.add_argument("--fsync", default="never", help="while filling: always, never or interval:MS")
    parser.add_argument("--serve-flag", action="append", default=[], help="for `walrq serve`")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    results = {}
    for batch in arguments.batch:
        with scratch(arguments.dir) as folder:
            results[f"batch {batch}"] = _one(arguments, batch, folder)
    names = ("fill_s", "rss_mb", "rss_max_mb", "rss_empty_mb", "disk_mb", "kill_restart_s", "clean_restart_s")
    rows = [[name, *(figures[key] for key in names)] for name, figures in results.items()]
    print(table(rows, header=["", *names]))
    chosen = ("messages", "size", "fsync")
    return {"runs": results, "settings": {name: getattr(arguments, name) for name in chosen}}


def fill(node: Node, queue: str, *, messages: int, batch: int, size: int, links: int = 4) -> None:
    """Push `messages` messages, `batch` at a time."""
    window = max(1, min(256, WINDOW_MESSAGES // batch))
    traffic = Traffic(queue, batch=batch, size=size, window=window, waiting_max=messages)
    loop = Loop()
    for _ in range(links):
        producer = Producer(Link(node.address), traffic)
        loop.add(producer.link, producer.fill)
    loop.run(time.perf_counter_ns() + PUSH_S_MAX * 10**9, lambda: traffic.pushed >= messages)
    loop.close()
    assert traffic.pushed >= messages, f"only {traffic.pushed} messages were pushed in time"


def _one(arguments: argparse.Namespace, batch: int, folder: Path) -> dict[str, Any]:
    with Node(folder / "data", flags=["--fsync", arguments.fsync, *arguments.serve_flag]) as node:
        node.start()
        empty = node.rss_bytes()
        begun = time.perf_counter()
        fill(node, "bench", messages=arguments.messages, batch=batch, size=arguments.size)
        filled = time.perf_counter() - begun
        rss, rss_max, disk = node.rss_bytes(), node.rss_bytes_max(), node.disk_bytes()
        node.kill()
        killed = _restart(node)
        after = node.rss_bytes()
        node.stop()
        clean = _restart(node)
        node.stop()
    return {
        "fill_s": round(filled, 2),
        "rss_mb": round(rss / 1e6, 1),
        "rss_max_mb": round(rss_max / 1e6, 1),
        "rss_empty_mb": round(empty / 1e6, 1),
        "rss_after_restart_mb": round(after / 1e6, 1),
        "disk_mb": round(disk / 1e6, 1),
        "kill_restart_s": round(killed, 2),
        "clean_restart_s": round(clean, 2),
    }


def _restart(node: Node) -> float:
    """Seconds from starting the process to the first message in hand."""
    begun = time.perf_counter()
    node.start(seconds=600)
    link = Link(node.address)
    reply = link.call(api.Poll(("bench",), max_messages=10, visibility_ms=1_000))
    taken = time.perf_counter() - begun
    link.close()
    assert isinstance(reply, api.Polled) and reply.runs, f"nothing came out after the restart: {reply}"
    return taken
