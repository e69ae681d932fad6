"""The disk of a node under a mixed load, second by second: what is alive, what is used, and the bound; never above it.

    fast     batches pushed and acknowledged at once
    sparse   of every batch a few messages stay for long, the others are acknowledged
    swell    a backlog that grows for a while and is then drained
    late     one message now and then that is due in 30 days

The same load in every run of the same seed; how far it gets depends on the machine.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import deque
from typing import Any

from walrq import api
from walrq.limits import DELAY_MS_MAX
from walrq.testing.node import Node

from .figures import scratch, table
from .load import Link, LoadFailed, columns

ROUND_MESSAGES = 100
LATE_EVERY = 50
SWELL_S = 60.0
# Batches that leave something behind; after so many the oldest is acknowledged.
SPARSE_KEPT_MAX = 400
KEPT_OF_BATCH = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--duration", type=float, default=60.0, help="seconds")
    parser.add_argument("--size", type=int, default=1_000, help="bytes per payload")
    parser.add_argument("--segment", default="4MiB", help="max_wal_segment_size")
    parser.add_argument("--fsync", default="always", help="always, never or interval:MS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two lines of the series")
    parser.add_argument("--serve-flag", action="append", default=[], help="for `walrq serve`")


class Mix:
    """The load; see the module."""

    def __init__(self, link: Link, size: int, seed: int) -> None:
        self._link = link
        self._draw = random.Random(seed)
        self._columns = columns(ROUND_MESSAGES, size)
        self._kept: deque[api.Item] = deque()
        self._rounds = 0
        self.pushed = self.acked = 0

    def turn(self, *, swells: bool) -> None:
        """A batch for each queue, and what becomes of it."""
        self._rounds += 1
        push = self._columns
        requests: list[api.Request] = [api.Push("fast", push), api.Push("sparse", push)]
        if swells:
            requests.append(api.Push("swell", push))
        if self._rounds % LATE_EVERY == 0:
            requests.append(api.Push("late", columns(1, 200), delay_ms=DELAY_MS_MAX))
        for reply in self._link.call_all(requests):
            self._expect(reply, api.Pushed)
        self.pushed += ROUND_MESSAGES * len(requests)
        self._take("fast", kept=0)
        self._take("sparse", kept=KEPT_OF_BATCH)
        if not swells:
            for _ in range(2):
                self._take("swell", kept=0)

    def _take(self, queue: str, *, kept: int) -> None:
        polled = self._link.call(api.Poll((queue,), max_messages=ROUND_MESSAGES, visibility_ms=3_600_000))
        self._expect(polled, api.Polled)
        items: list[api.Item] = []
        for run in polled.runs:
            self.acked += run.count
            spared = sorted(self._draw.sample(range(run.count), min(kept, run.count)))
            if spared:
                items.append(api.Item(run.receipt, tuple(_between(spared, run.count))))
                self._kept.append(api.Item(run.receipt))
            else:
                items.append(api.Item(run.receipt))
        while len(self._kept) > SPARSE_KEPT_MAX:
            items.append(self._kept.popleft())
        for item in items:
            self._expect(self._link.call(api.Settle(queue, api.SettleKind.ACK, (item,))), api.Settled)

    @staticmethod
    def _expect(reply: Any, kind: type) -> None:
        if not isinstance(reply, kind):
            raise LoadFailed(f"not {kind.__name__}: {reply}")


def _between(spared: list[int], count: int) -> list[tuple[int, int]]:
    """The ranges of what is not spared."""
    found, start = [], 0
    for each in [*spared, count]:
        if each > start:
            found.append((start, each - 1))
        start = each + 1
    return found


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    print(f"seed {arguments.seed}")
    flags = ["--fsync", arguments.fsync, "--max-wal-segment-size", arguments.segment, *arguments.serve_flag]
    with scratch(arguments.dir) as folder:
        with Node(folder / "data", flags=flags) as node:
            node.start()
            series, mix = _soak(node, arguments)
            node.stop()
    header = ["s", "live MB", "disk MB", "bound MB", "used of bound", "amplification", "rewritten"]
    chosen = series[:: max(1, int(arguments.every))]
    print(table([_row(each) for each in chosen], header=header))
    above = [each for each in series if each["disk_used_bytes"] > each["disk_bound_bytes"]]
    worst = max(series, key=lambda each: each["disk_used_bytes"] / each["disk_bound_bytes"])
    highest = max(each["disk_used_bytes"] for each in series)
    print(f"{len(series)} samples, {len(above)} above the bound; nearest to it {_row(worst)[4]}; {mix.pushed} pushed")
    if above:
        raise LoadFailed(f"above the bound: {above[0]}")
    return {
        "samples": len(series),
        "above": len(above),
        "nearest": round(worst["disk_used_bytes"] / worst["disk_bound_bytes"], 3),
        "disk_max_mb": round(highest / 1e6, 1),
        "pushed": mix.pushed,
        "series": series,
        "settings": {name: getattr(arguments, name) for name in ("duration", "size", "segment", "fsync", "seed")},
    }


def _soak(node: Node, arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], Mix]:
    mix = Mix(Link(node.address), arguments.size, arguments.seed)
    watch = Link(node.address, session=False)
    series: list[dict[str, Any]] = []
    begun = time.perf_counter()
    following = 0.0
    while (passed := time.perf_counter() - begun) < arguments.duration:
        mix.turn(swells=int(passed / SWELL_S) % 2 == 0)
        if passed >= following:
            following += 1.0
            series.append(_sample(watch, passed))
    series.append(_sample(watch, passed))
    return series, mix


def _sample(link: Link, passed: float) -> dict[str, Any]:
    reply = link.call(api.Stats())
    names = (
        "disk_live_bytes",
        "disk_used_bytes",
        "disk_bound_bytes",
        "write_amplification",
        "wal_segments_rewritten",
        "wal_live_ratio",
    )
    return {"s": round(passed, 1), **{name: reply.values[name] for name in names}}


def _row(sample: dict[str, Any]) -> list[object]:
    used = sample["disk_used_bytes"] / sample["disk_bound_bytes"]
    megabytes = [round(sample[f"disk_{name}_bytes"] / 1e6, 1) for name in ("live", "used", "bound")]
    return [sample["s"], *megabytes, f"{used:.0%}", sample["write_amplification"], sample["wal_segments_rewritten"]]
