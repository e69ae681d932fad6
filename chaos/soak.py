"""A soak: a real daemon, real clients, kill -9 every few seconds, a drain, and the judgement of the history.

    python -m chaos soak --nodes 1 --duration 60 --seed 7

The seed drives what clients do and when the node is killed. Phases: load with faults, heal (the node stays
up), drain through the public client, stop, check. Exit status: 0 all promises kept, 1 a promise broken or
the node ended by itself, 3 the run did not exercise what it is for, or could not be drained.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import attrs
import trio
import trio.lowlevel

from walrq.testing.node import Node, NodeFailed

from . import checker, history
from .workload import Plan, State, Worker, drain, produce

SAMPLE_S: Final = 1.0
SERIES_MAX: Final = 60
DRAIN_S: Final = 120.0
HEAL_S: Final = 2.0
# One stop in five is a polite one: it must exit 0 and lose nothing either.
POLITE: Final = 0.2
# A run at least this long must have exercised every mark.
MARKS_FROM_S: Final = 30.0
MARKS: Final = (
    "nemesis kill",
    "nemesis restart",
    "redeliveries",
    "settles refused as expired",
    "messages settled fail",
    "messages settled release",
    "messages settled reject",
    "messages touched",
    "polls of unknown outcome",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the soak."""
    parser.add_argument("--nodes", type=int, choices=[1], default=1, help="how many nodes")
    parser.add_argument("--duration", type=float, default=60.0, help="seconds under load and faults")
    parser.add_argument("--seed", type=int, default=None, help="repeats a run (default: drawn and printed)")
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=20, help="messages per push and poll, at most")
    parser.add_argument("--rate", type=float, default=2_000.0, help="messages per second, all producers")
    parser.add_argument("--visibility-ms", type=int, default=1_500)
    parser.add_argument("--abandon", type=float, default=0.3, help="share of leases nobody gives back")
    parser.add_argument("--kill-every", default="5-15", help="seconds between stops, LOW-HIGH")
    parser.add_argument("--fsync", default="always", help="the node's policy")
    parser.add_argument("--serve-flag", action="append", default=[], help="further argument for `walrq serve`")
    parser.add_argument("--dir", type=Path, default=None, help="parent of the run's directory")
    parser.add_argument("--keep", action="store_true", help="keep data, log and history")


@attrs.define
class _Run:
    """The node and what happened to it."""

    node: Node
    state: State
    rng: random.Random
    low_s: float
    high_s: float
    kills: int = 0
    stops: int = 0
    restart_s: list[float] = attrs.field(factory=list)
    rss: list[int] = attrs.field(factory=list)
    disk: list[int] = attrs.field(factory=list)
    troubles: list[str] = attrs.field(factory=list)


def run(arguments: argparse.Namespace) -> int:
    """Run, check, print the summary as the last line."""
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    low, _, high = arguments.kill_every.partition("-")
    print(f"soak: seed {seed}", file=sys.stderr)
    folder = Path(tempfile.mkdtemp(prefix="walrq-soak-", dir=arguments.dir))
    path = folder / "history.ndjson"
    flags = ["--fsync", arguments.fsync, *arguments.serve_flag]
    keep = True
    try:
        with path.open("wb") as file, Node(folder / "data", flags=flags) as node:
            state = State(writer=history.Writer(file))
            soak = _Run(
                node=node,
                state=state,
                rng=random.Random(f"{seed} nemesis"),
                low_s=float(low),
                high_s=float(high or low),
            )
            node.start()
            # Clients know one address: every life of the node listens where the first one did.
            node.listen = node.ready["endpoints"]["cbor"]
            plan = Plan.of(arguments, node.url, seed)
            drained = trio.run(_phases, soak, plan, arguments)
            if node.running:
                _polite_stop(soak)
        verdict = checker.check(history.read(path))
        summary = _summary(arguments, seed, soak, verdict, drained, path)
        print(checker.report(verdict), file=sys.stderr)
        status = _status(arguments, soak, verdict, drained)
        keep = arguments.keep or status != 0
        print(json.dumps({**summary, "status": status, "kept": str(folder) if keep else None}))
        return status
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


async def _phases(soak: _Run, plan: Plan, arguments: argparse.Namespace) -> bool:
    state = soak.state
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_sample, soak)
        async with trio.open_nursery() as clients:
            for number in range(arguments.producers):
                clients.start_soon(produce, plan, state, number)
            for number in range(arguments.workers):
                clients.start_soon(Worker(plan, state, number).run)
            state.writer.nemesis("phase", {"name": "faults"})
            await _nemesis(soak, trio.current_time() + arguments.duration)
            state.writer.nemesis("phase", {"name": "heal"})
            state.stop_producing = True
            await trio.sleep(HEAL_S)
            state.stop_consuming = True
            if not soak.node.running:
                # It did not come back: its clients would wait for ever.
                clients.cancel_scope.cancel()
        state.writer.nemesis("phase", {"name": "drain"})
        # A node that is gone cannot be drained: the run has failed already, and says why in its summary.
        drained = soak.node.running and await drain(plan, state, DRAIN_S)
        nursery.cancel_scope.cancel()
    return drained


async def _nemesis(soak: _Run, until: float) -> None:
    """Stop and start the node at drawn moments; return with the node up."""
    node, writer = soak.node, soak.state.writer
    while True:
        pause = soak.rng.uniform(soak.low_s, soak.high_s)
        polite = soak.rng.random() < POLITE
        if trio.current_time() + pause > until:
            await trio.sleep_until(until)
            return
        await trio.sleep(pause)
        if not node.running:
            soak.troubles.append(f"the node ended by itself: {node.last_words()}")
            return
        if polite and node.running:
            writer.nemesis("kill", {"signal": "SIGTERM"})
            await trio.to_thread.run_sync(_polite_stop, soak)
        else:
            writer.nemesis("kill", {"signal": "SIGKILL"})
            node.kill()
            soak.kills += 1
        begun = time.monotonic()
        try:
            await trio.to_thread.run_sync(node.start)
        except NodeFailed as error:
            soak.troubles.append(str(error))
            return
        soak.restart_s.append(time.monotonic() - begun)
        writer.nemesis("restart", {"ready_s": round(soak.restart_s[-1], 3)})


def _polite_stop(soak: _Run) -> None:
    soak.stops += 1
    try:
        status = soak.node.stop()
    except subprocess.TimeoutExpired:
        soak.troubles.append("the node did not stop in time")
        soak.node.kill()
        return
    if status != 0:
        soak.troubles.append(f"a stop by {signal.SIGTERM.name} ended with status {status}")


async def _sample(soak: _Run) -> None:
    """Memory and disk, once a second, while the node is up."""
    while True:
        if soak.node.running:
            try:
                soak.rss.append(soak.node.rss_bytes())
                soak.disk.append(await trio.to_thread.run_sync(soak.node.disk_bytes))
            except (FileNotFoundError, ProcessLookupError):
                await trio.lowlevel.checkpoint()  # it was killed while we looked
        await trio.sleep(SAMPLE_S)


def missing_marks(verdict: checker.Verdict) -> list[str]:
    """What the run was meant to exercise and did not."""
    return [mark for mark in MARKS if not verdict.counts.get(mark)]


def _status(arguments: argparse.Namespace, soak: _Run, verdict: checker.Verdict, drained: bool) -> int:
    if verdict.violations or soak.troubles:
        return 1
    if not verdict.valid or not drained:
        return 3
    return 3 if arguments.duration >= MARKS_FROM_S and missing_marks(verdict) else 0


def _summary(
    arguments: argparse.Namespace,
    seed: int,
    soak: _Run,
    verdict: checker.Verdict,
    drained: bool,
    path: Path,
) -> dict[str, Any]:
    restarts = sorted(soak.restart_s)
    return {
        "soak": "one node",
        "seed": seed,
        "revision": revision(),
        "settings": {
            name: getattr(arguments, name)
            for name in ("duration", "producers", "workers", "batch", "rate", "visibility_ms", "abandon")
        }
        | {"kill_every": arguments.kill_every, "fsync": arguments.fsync},
        "kills": soak.kills,
        "polite_stops": soak.stops,
        "restart_s": {"median": middle(restarts), "max": max(restarts, default=0.0)},
        "drained": drained,
        "troubles": soak.troubles,
        "errors_seen_by_clients": soak.state.errors,
        "missing_marks": missing_marks(verdict),
        "rss_mb": _series(soak.rss),
        "disk_mb": _series(soak.disk),
        "history_mb": round(path.stat().st_size / 1e6, 1),
        "verdict": verdict.as_dict(),
    }


def middle(values: list[float]) -> float:
    """The median of sorted seconds."""
    return round(values[len(values) // 2], 3) if values else 0.0


def _series(values: list[int]) -> dict[str, Any]:
    """Maximum, and at most SERIES_MAX points in order, in MB."""
    step = max(1, -(-len(values) // SERIES_MAX))
    return {
        "max": round(max(values, default=0) / 1e6, 1),
        "series": [round(value / 1e6, 1) for value in values[::step]],
    }


def revision() -> str | None:
    """The commit of the checkout that runs."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
