"""A cluster of real processes under faults: its leader is killed again and again, under load; then the judgement.

    python -m chaos cluster --nodes 3 --kills 200 --seed 7

One window per kill. The leader gets kill -9 and is started again 80 ms later; 80 ms after its readiness line the next
window begins. Before each kill, one fault strobes for 80 ms: a SIGSTOP of a node, a link cut in one direction, a node
cut off altogether, or none. In three windows of four a majority is up all the time: faults before the kill touch one
node, and are over when it comes. In the fourth a second node is killed, paused or cut off with the leader.

The seed drives what clients do and which faults there are; when exactly a leader is found, the machine decides. Exit
status as of `soak`: 0 all promises kept, 1 a promise broken or a node ended by itself, 3 the run did not exercise what
it is for, or could not be drained.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from walrq.testing.links import Links
from walrq.testing.node import NodeFailed
from walrq.testing.nodes import Nodes

from . import checker, history
from .soak import MARKS, middle, revision
from .workload import Plan, State, Worker, drain, produce

STROBE_S: Final = 0.08
DRAIN_S: Final = 120.0
HEAL_S: Final = 2.0
# An election after the worst window, on a busy machine.
LEADER_S: Final = 30.0
# The window in which a majority may be gone.
MINORITY_EVERY: Final = 4
STROBES: Final = ("pause", "cut one way", "cut off", "none")
# A run with at least so many kills must have exercised every mark of a soak.
MARKS_FROM_KILLS: Final = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this run."""
    parser.add_argument("--nodes", type=int, choices=[3, 5], default=3, help="how many nodes")
    parser.add_argument("--kills", type=int, default=200, help="kills of a leader")
    parser.add_argument("--seed", type=int, default=None, help="repeats a run (default: drawn and printed)")
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=20, help="messages per push and poll, at most")
    parser.add_argument("--rate", type=float, default=1_000.0, help="messages per second, all producers")
    parser.add_argument("--visibility-ms", type=int, default=2_500)
    parser.add_argument("--abandon", type=float, default=0.2, help="share of leases nobody gives back")
    parser.add_argument("--fsync", default="always", help="the nodes' policy")
    parser.add_argument("--acked-per-minute", type=int, default=0, help="fewer acknowledged pushes are a failure")
    parser.add_argument("--serve-flag", action="append", default=[], help="further argument for `walrq serve`")
    parser.add_argument("--dir", type=Path, default=None, help="parent of the run's directory")
    parser.add_argument("--keep", action="store_true", help="keep data, logs and history")


@attrs.define
class _Run:
    """The nodes and what happened to them."""

    nodes: Nodes
    links: Links
    state: State
    rng: random.Random
    kills: int
    done: int = 0
    windows: dict[str, int] = attrs.field(factory=dict)
    restart_s: list[float] = attrs.field(factory=list)
    leader_s: list[float] = attrs.field(factory=list)
    troubles: list[str] = attrs.field(factory=list)
    faults_s: float = 0.0
    pushed: int = 0

    def count(self, what: str) -> None:
        """Of the kinds of windows and faults."""
        self.windows[what] = self.windows.get(what, 0) + 1


def run(arguments: argparse.Namespace) -> int:
    """Run, check, print the summary as the last line."""
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"cluster: seed {seed}", file=sys.stderr)
    # That connections are lost is no news here.
    logging.getLogger("walrq.client").addHandler(logging.NullHandler())
    folder = Path(tempfile.mkdtemp(prefix="walrq-cluster-", dir=arguments.dir))
    path = folder / "history.ndjson"
    flags = ["--fsync", arguments.fsync, *arguments.serve_flag]
    keep = True
    try:
        with path.open("wb") as file, Nodes.make(folder, arguments.nodes, flags=flags, proxied=True) as nodes:
            state = State(writer=history.Writer(file))
            links = Links(nodes.doors, nodes.pids)
            chaos = _Run(nodes, links, state, random.Random(f"{seed} nemesis"), arguments.kills)
            plan = Plan.of(arguments, nodes.url, seed)
            drained = trio.run(_phases, chaos, plan, arguments)
        verdict = checker.check(history.read(path))
        summary = _summary(arguments, seed, chaos, verdict, drained, path)
        print(checker.report(verdict), file=sys.stderr)
        status = _status(arguments, chaos, verdict, drained)
        keep = arguments.keep or status != 0
        print(json.dumps({**summary, "status": status, "kept": str(folder) if keep else None}))
        return status
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


async def _phases(chaos: _Run, plan: Plan, arguments: argparse.Namespace) -> bool:
    state, nodes = chaos.state, chaos.nodes
    async with trio.open_nursery() as network:
        await network.start(chaos.links.run)
        await trio.to_thread.run_sync(nodes.start)
        await trio.to_thread.run_sync(nodes.wait_leader, LEADER_S)
        async with trio.open_nursery() as clients:
            for number in range(arguments.producers):
                clients.start_soon(produce, plan, state, number)
            for number in range(arguments.workers):
                clients.start_soon(Worker(plan, state, number).run)
            state.writer.nemesis("phase", {"name": "faults", "nodes": len(nodes.nodes)})
            begun = time.monotonic()
            well = await _windows(chaos)
            chaos.faults_s, chaos.pushed = time.monotonic() - begun, state.pushed
            state.writer.nemesis("phase", {"name": "heal"})
            state.stop_producing = True
            await trio.sleep(HEAL_S)
            state.stop_consuming = True
            if not well:
                # Without a cluster its clients would wait for ever.
                clients.cancel_scope.cancel()
        state.writer.nemesis("phase", {"name": "drain"})
        drained = well and await drain(plan, state, DRAIN_S)
        for name, status in (await trio.to_thread.run_sync(_stop, chaos)).items():
            if status != 0:
                chaos.troubles.append(f"{name}: a stop by SIGTERM ended with status {status}")
        network.cancel_scope.cancel()
    return drained


def _stop(chaos: _Run) -> dict[str, int]:
    try:
        return chaos.nodes.stop()
    except subprocess.TimeoutExpired:
        chaos.troubles.append("a node did not stop in time")
        return {}


async def _windows(chaos: _Run) -> bool:
    """One kill of a leader after the other; whether all nodes are up in the end."""
    for number in range(chaos.kills):
        minority = number % MINORITY_EVERY == MINORITY_EVERY - 1
        try:
            await _window(chaos, minority=minority)
        except (NodeFailed, TimeoutError) as error:
            chaos.troubles.append(f"window {number}: {error}")
            return False
        chaos.count("majority may be gone" if minority else "majority is up")
        dead = [name for name, node in chaos.nodes.nodes.items() if not node.running]
        if dead:
            words = chaos.nodes.nodes[dead[0]].last_words()
            chaos.troubles.append(f"window {number}: {dead[0]} ended by itself: {words}")
            return False
    return True


async def _window(chaos: _Run, *, minority: bool) -> None:
    nodes, writer, rng = chaos.nodes, chaos.state.writer, chaos.rng
    await _strobe(chaos, rng.choice(list(nodes.nodes)), rng.choice(STROBES))
    sought = time.monotonic()
    leader = await trio.to_thread.run_sync(nodes.wait_leader, LEADER_S)
    chaos.leader_s.append(time.monotonic() - sought)
    others = [name for name in nodes.nodes if name != leader]
    companion, fate = rng.choice(others), rng.choice(("kill", "pause", "cut off"))
    victims = [leader]
    if minority and fate == "kill":
        victims.append(companion)
    for victim in victims:
        writer.nemesis("kill", {"signal": "SIGKILL", "node": victim, "leader": victim == leader})
        nodes.kill(victim)
    chaos.done += 1
    chaos.count("kills")
    if minority and fate != "kill":
        await _strobe(chaos, companion, fate)
    else:
        chaos.count("companion killed" if minority else "leader alone")
        await trio.sleep(STROBE_S)
    begun = time.monotonic()
    await trio.to_thread.run_sync(nodes.start, victims)
    chaos.restart_s.append(time.monotonic() - begun)
    writer.nemesis("restart", {"nodes": victims, "ready_s": round(chaos.restart_s[-1], 3)})
    await trio.sleep(STROBE_S)


async def _strobe(chaos: _Run, node: str, what: str) -> None:
    """One fault around a node for a moment."""
    nodes, writer, rng = chaos.nodes, chaos.state.writer, chaos.rng
    other = rng.choice([name for name in nodes.nodes if name != node])
    reset = rng.random() < 0.5
    chaos.count(what)
    if what == "none":
        return
    if what == "pause":
        writer.nemesis("pause", {"node": node})
        nodes.pause(node)
        await trio.sleep(STROBE_S)
        nodes.resume(node)
        writer.nemesis("resume", {"node": node})
        return
    gates = [chaos.links.gate(node, other)] if what == "cut one way" else list(chaos.links.around(node))
    writer.nemesis("cut", {"node": node, "other": other if what == "cut one way" else None})
    for gate in gates:
        gate.close()
    await trio.sleep(STROBE_S)
    chaos.links.heal(reset=reset)
    writer.nemesis("heal", {"reset": reset})


def _status(arguments: argparse.Namespace, chaos: _Run, verdict: checker.Verdict, drained: bool) -> int:
    if verdict.violations or chaos.troubles or _per_minute(chaos) < arguments.acked_per_minute:
        return 1
    if not verdict.valid or not drained or chaos.done < arguments.kills:
        return 3
    return 3 if arguments.kills >= MARKS_FROM_KILLS and _missing(verdict, MARKS) else 0


def _missing(verdict: checker.Verdict, marks: Iterable[str]) -> list[str]:
    return [mark for mark in marks if not verdict.counts.get(mark)]


def _per_minute(chaos: _Run) -> int:
    return round(chaos.pushed * 60 / chaos.faults_s) if chaos.faults_s else 0


def _summary(
    arguments: argparse.Namespace, seed: int, chaos: _Run, verdict: checker.Verdict, drained: bool, path: Path
) -> dict[str, Any]:
    names = ("nodes", "kills", "producers", "workers", "batch", "rate", "visibility_ms", "abandon", "fsync")
    restarts, elections = sorted(chaos.restart_s), sorted(chaos.leader_s)
    return {
        "cluster": f"{arguments.nodes} nodes",
        "seed": seed,
        "revision": revision(),
        "settings": {name: getattr(arguments, name) for name in names},
        "leader_kills": chaos.done,
        "windows": chaos.windows,
        "faults_s": round(chaos.faults_s, 1),
        "messages_acknowledged_per_minute": _per_minute(chaos),
        "restart_s": {"median": middle(restarts), "max": round(max(restarts, default=0.0), 3)},
        "leader_sought_s": {"median": middle(elections), "max": round(max(elections, default=0.0), 3)},
        "drained": drained,
        "troubles": chaos.troubles,
        "errors_seen_by_clients": chaos.state.errors,
        "missing_marks": _missing(verdict, MARKS),
        "history_mb": round(path.stat().st_size / 1e6, 1),
        "verdict": verdict.as_dict(),
    }
