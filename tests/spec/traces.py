"""Many recorded runs before TLC: `python -m tests.spec.traces [--schedules N] [--seeds N] [--processes N]`.

    schedules   three cores under loss, copies, reordering, crashes, slow disks and snapshots (schedules.py)
    seeds       whole replicas in the simulator, under its faults
    processes   clusters of real processes whose leaders are killed with kill -9 (processes.py)

Each kind goes in parts, a run of TLC each, and what was judged is noted in a file, so that a run that was interrupted
goes on where it was. Exit status: 0 every run is a behaviour of the module, 1 one is none; its lines are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from tests.spec import processes, schedules
from tests.spec.graphs import ROOT
from walrq.formal import lines, validating
from walrq.formal.tools import find_tools
from walrq.simulator.cluster import Cluster
from walrq.simulator.options import Options

NOTES = ROOT / "build/traces.json"
LOAD_MS = 100
Lines = list[dict[str, Any]]


def simulated(seed: int) -> Lines:
    """The lines of a seed of the simulator."""
    found: Lines = []
    Cluster(seed=seed, options=Options(nodes=3, load_ms=LOAD_MS, fsync="always", trace_to=found.append)).run()
    return found


def of_processes(seed: int) -> Lines:
    """The lines of a cluster of real processes."""
    with tempfile.TemporaryDirectory(prefix="walrq-traces-") as folder:
        return lines.merged(processes.traced(Path(folder), seed))


# How a run comes about, and how many of them TLC judges at a time.
KINDS: Mapping[str, tuple[Callable[[int], Lines], int]] = {
    "schedules": (schedules.run, 20),
    "seeds": (simulated, 5),
    "processes": (of_processes, 1),
}


def judge(kind: str, seeds: Sequence[int], kept: Path) -> dict[str, int]:
    """Runs of one kind, judged; what was counted.

    Raises:
        SystemExit: one is no behaviour; its story is printed and its lines are in the folder `kept`.
    """
    make, _ = KINDS[kind]
    runs = [make(seed) for seed in seeds]
    traces = [lines.prepared(each) for each in runs]
    judged = trio.run(validating.validate, find_tools(os.environ), ROOT / "spec", traces)
    for seed, run, judgement in zip(seeds, runs, judged, strict=True):
        if not judgement.is_accepted:
            path = kept / f"{kind}-{seed}.jsonl"
            path.write_text("".join(json.dumps(line) + "\n" for line in run))
            print("\n".join([f"{kind}, seed {seed}: REFUSED, its lines are in {path}", *judgement.story]))
            raise SystemExit(1)
    ended = sum(judgement.ends is not None for judgement in judged)
    kills = sum(line["event"] == "Start" for run in runs for line in run) - sum(len(each.servers) for each in traces)
    return {
        "runs": len(runs),
        "lines": sum(judgement.lines for judgement in judged),
        "restarts": kills,
        "elections": sum(line["event"] == "BecomeLeader" for run in runs for line in run),
        "judged in part": ended,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--schedules", type=int, default=200, metavar="N", help="[200]")
    parser.add_argument("--seeds", type=int, default=40, metavar="N", help="[40]")
    parser.add_argument("--processes", type=int, default=5, metavar="N", help="[5]")
    parser.add_argument("--resume", type=Path, default=NOTES, metavar="FILE", help=f"notes  [{NOTES.name} in build/]")
    arguments = parser.parse_args(argv)
    notes: Path = arguments.resume
    notes.parent.mkdir(parents=True, exist_ok=True)
    done: dict[str, dict[str, float]] = json.loads(notes.read_text()) if notes.exists() else {}
    for kind, (_, part) in KINDS.items():
        own = done.setdefault(kind, {})
        while (begin := int(own.get("runs", 0))) < getattr(arguments, kind):
            began = time.monotonic()
            end = min(begin + part, getattr(arguments, kind))
            for name, number in judge(kind, range(begin, end), notes.parent).items():
                own[name] = own.get(name, 0) + number
            own["seconds"] = round(own.get("seconds", 0) + time.monotonic() - began, 1)
            notes.write_text(json.dumps(done, indent=1) + "\n")
            print(f"{kind}\t" + "\t".join(f"{number} {name}" for name, number in own.items()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
