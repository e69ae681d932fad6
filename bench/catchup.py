"""A follower that was away for a million messages comes back under load: how long until it has them, and who waits.

Three nodes. One follower is stopped, messages are pushed (and with `--settled` taken and acknowledged at once), and it
is started again while a client pushes one message after the other. `--by log` keeps the log from being shortened
meanwhile; `--by snapshot` shortens it, so that the follower is sent a snapshot and the live messages. Beside the pushes
runs a bare append and fdatasync on the same disk: a pause of a push counts only when the disk itself had none then.
"""

from __future__ import annotations

import argparse
import threading
import time
from typing import Any, Final

import attrs

import walrq
from walrq import api
from walrq.testing.nodes import Nodes

from .failover import Pusher
from .figures import Latencies, scratch, table
from .load import Link, LoadFailed, columns
from .probe import Probe

PAUSE_MS: Final = 200
# As long as a push may be late beside the disk's own pause.
BESIDE_NS: Final = 100_000_000
PROBE_EVERY_S: Final = 0.005
LOOK_S: Final = 0.05
IN_FLIGHT: Final = 8
SHORT_LOG: Final = ("--snapshot-commands", "1000", "--snapshot-log-bytes", "4MiB", "--max-wal-segment-size", "4MiB")
LONG_LOG: Final = ("--snapshot-commands", "1000000000", "--snapshot-log-bytes", "512GiB")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--messages", type=int, default=1_000_000, help="pushed while the follower is away")
    parser.add_argument("--batch", type=int, default=100, help="messages per push")
    parser.add_argument("--size", type=int, default=100, help="bytes per payload")
    parser.add_argument("--by", choices=["log", "snapshot"], default="log", help="how it catches up")
    parser.add_argument("--settled", action="store_true", help="messages are acknowledged before it comes back")
    parser.add_argument("--wait", type=float, default=600.0, help="seconds that it may take")
    parser.add_argument("--fsync", default="always", help="always, never or interval:MS")


@attrs.define
class DiskWatch:
    """Appends and syncs in a thread, and keeps when each began and ended."""

    probe: Probe
    times: list[tuple[int, int]] = attrs.field(factory=list)
    _over: threading.Event = attrs.field(factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> DiskWatch:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        assert self._thread is not None
        self._thread.join()
        self.probe.close()

    def _run(self) -> None:
        while not self._over.wait(PROBE_EVERY_S):
            begun = time.monotonic_ns()
            self.probe.append()
            self.times.append((begun, time.monotonic_ns()))


def pauses(times: list[tuple[int, int]], since: int, until: int) -> list[tuple[int, int]]:
    """Those of (begun, ended) that took longer than `PAUSE_MS` and ended between the two moments."""
    return [(a, b) for a, b in times if b - a > PAUSE_MS * 1_000_000 and since <= b <= until]


def unexplained(pushes: list[tuple[int, int]], disk: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pauses of pushes during which the disk alone had none."""
    return [
        (begun, ended)
        for begun, ended in pushes
        if not any(a < ended + BESIDE_NS and b > begun - BESIDE_NS for a, b in disk)
    ]


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    flags = ["--fsync", arguments.fsync, *(LONG_LOG if arguments.by == "log" else SHORT_LOG)]
    with scratch(arguments.dir) as folder, Nodes.make(folder, 3, flags=flags) as nodes:
        nodes.start()
        leader = nodes.wait_whole()
        away = next(name for name in nodes.nodes if name != leader)
        nodes.nodes[away].stop()
        filled_s = _fill(nodes.nodes[leader].address, arguments)
        state = nodes.state(leader)
        assert state is not None
        behind = state.commit_index
        with Pusher(nodes.url, arguments.size) as pusher, DiskWatch(Probe(folder, arguments.size)) as disk:
            pusher.wait_begun_after(0)
            before = len(pusher.pushes)
            begun = time.monotonic_ns()
            nodes.start([away])
            ready_s = (time.monotonic_ns() - begun) / 1e9
            _wait_caught_up(nodes, leader, away, arguments.wait)
            ended = time.monotonic_ns()
        with walrq.connect(nodes.nodes[away].url, session=False) as client:
            stats = client.stats()
        nodes.stop()
    waited = Latencies()
    waited.extend(b - a for a, b in pusher.pushes[before:] if a >= begun and b <= ended)
    own, bare = pauses(pusher.pushes, begun, ended), pauses(disk.times, begun, ended)
    figures: dict[str, Any] = {
        "caught_up_s": round((ended - begun) / 1e9, 3),
        "ready_s": round(ready_s, 3),
        "filled_s": round(filled_s, 3),
        "entries_behind": behind,
        "entries_by_log": stats["entries"],
        "snapshot_index": stats["snapshot_index"],
        "pushes_meanwhile": len(waited),
        "push_ms": waited.percentiles_ms(),
        f"pauses_over_{PAUSE_MS}_ms": len(own),
        "of_them_without_one_of_the_disk": len(unexplained(own, bare)),
        "pauses_of_the_disk": len(bare),
    }
    names = ("caught_up_s", "ready_s", "entries_behind", "entries_by_log", "snapshot_index", "pushes_meanwhile")
    print(table([[name, figures[name]] for name in names], header=["catch-up", ""]))
    push = figures["push_ms"]
    print(table([[push.get(p, 0.0) for p in ("p50", "p99", "max")]], header=["push meanwhile, ms: p50", "p99", "max"]))
    print(f"pauses above {PAUSE_MS} ms: {len(own)}, without one of the disk: {len(unexplained(own, bare))}")
    names = ("messages", "batch", "size", "by", "settled", "fsync")
    return {**figures, "settings": {name: getattr(arguments, name) for name in names}}


def _fill(address: tuple[str, int], arguments: argparse.Namespace) -> float:
    """Push what the follower will lack; take and acknowledge it too when that is asked for. Seconds."""
    link = Link(address)
    request = api.Push("away", columns(arguments.batch, arguments.size))
    begun = time.perf_counter()
    left = -(-arguments.messages // arguments.batch)
    while left:
        burst = min(left, IN_FLIGHT)
        left -= burst
        _all(link, [request] * burst)
        while arguments.settled:
            (polled,) = _all(link, [api.Poll(("away",), max_messages=burst * arguments.batch, visibility_ms=60_000)])
            if not polled.runs:
                break
            items = tuple(api.Item(run.receipt) for run in polled.runs)
            _all(link, [api.Settle("away", api.SettleKind.ACK, items)])
    link.close()
    return time.perf_counter() - begun


def _all(link: Link, requests: list[api.Request]) -> list[Any]:
    replies = link.call_all(requests)
    for reply in replies:
        if isinstance(reply, api.Failed):
            raise LoadFailed(reply.text)
    return replies


def _wait_caught_up(nodes: Nodes, leader: str, away: str, seconds: float) -> None:
    """Until the leader knows the node to have nearly everything: what is on its way is always missing."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        state = nodes.state(leader)
        if state is not None:
            member = next(each for each in state.members if each.node == away)
            if member.match_index is not None and state.commit_index - member.match_index < IN_FLIGHT:
                return
        time.sleep(LOOK_S)
    raise LoadFailed(f"{away} has not caught up within {seconds:g} s")
