"""The simulator's command line; the simulator itself is `walrq.simulator`.

    python -m walrq.testing.cluster --seed 7                         replay one seed and print its event log
    python -m walrq.testing.cluster --seeds 0:200                    many seeds; what each mark was worth
    python -m walrq.testing.cluster --seeds 0:20000 --resume FILE    a long run that goes on where it was stopped

A batch fails with the first seed that breaks a promise, and names the command that replays it. It also fails when
it did not exercise what it should: a mark that no seed reached, a share of seeds that is too small.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import attrs

from walrq.errors import WalrqError
from walrq.simulator.cluster import NODES_MAX, replay, run_seed
from walrq.simulator.options import (
    CLUSTER_MARKS,
    EVENTS_MIN,
    MARKS,
    RARE_TOGETHER,
    REQUESTS_MIN,
    SHARES,
    Options,
    Report,
)

# Seeds that a process of a batch runs at a time, and after which progress is written.
CHUNK_SEEDS: Final = 50
# Whatever comes out of a seed is a finding: what is broken, or what broke on the way there.
FINDINGS: Final = (AssertionError, WalrqError, LookupError, OSError, RuntimeError, TypeError, ValueError)
# So many worlds are in memory before they are thrown away.
COLLECT_SEEDS: Final = 10
# Clusters that lost a disk for good while a power loss left another one in doubt: they test no way out.
HOPELESS_PERCENT_MAX: Final = 3
# Shares of fewer seeds than this are chance.
SHARES_FROM_SEEDS: Final = 50


@attrs.define
class Total:
    """What a batch of seeds did so far.

    Attributes:
        seeds: how many ran; `clusters`: those with several nodes.
        marks: how often each was reached; `reached`: by how many clusters.
        least_events, least_requests: of any cluster.
        failures: (seed, first line of what broke).
    """

    seeds: int = 0
    clusters: int = 0
    events: int = 0
    marks: Counter[str] = attrs.field(factory=Counter)
    reached: Counter[str] = attrs.field(factory=Counter)
    least_events: int | None = None
    least_requests: int | None = None
    failures: list[tuple[int, str]] = attrs.field(factory=list)

    def add(self, report: Report) -> None:
        """One more seed."""
        self.seeds += 1
        self.events += report.events
        self.marks += report.marks
        if not report.marks["hopeless"]:
            self.least_events = min(report.events, self.least_events or report.events)
            self.least_requests = min(report.requests, self.least_requests or report.requests)
        if report.nodes > 1:
            self.clusters += 1
            self.reached.update(name for name, times in report.marks.items() if times)

    def merge(self, other: Total) -> None:
        """One more part."""
        self.seeds += other.seeds
        self.clusters += other.clusters
        self.events += other.events
        self.marks += other.marks
        self.reached += other.reached
        for name in ("least_events", "least_requests"):
            known = [value for value in (getattr(self, name), getattr(other, name)) if value is not None]
            setattr(self, name, min(known, default=None))
        self.failures += other.failures

    def absent(self) -> list[str]:
        """What the batch should have exercised and did not, as text."""
        owed = set(MARKS) if not self.clusters else {*MARKS, *CLUSTER_MARKS} - RARE_TOGETHER
        found = [f"never: {name}" for name in (*MARKS, *CLUSTER_MARKS) if name in owed and not self.marks[name]]
        if self.clusters >= SHARES_FROM_SEEDS:
            for name, percent in SHARES.items():
                if self.reached[name] * 100 < percent * self.clusters:
                    found.append(f"{name}: in {self.reached[name]} of {self.clusters} clusters, not {percent}%")
        if self.reached["hopeless"] * 100 > HOPELESS_PERCENT_MAX * max(self.clusters, SHARES_FROM_SEEDS):
            found.append(f"hopeless: {self.reached['hopeless']} of {self.clusters} clusters")
        if self.least_events is not None and self.least_events < EVENTS_MIN:
            found.append(f"a seed has {self.least_events} events, not {EVENTS_MIN}")
        if self.least_requests is not None and self.least_requests < REQUESTS_MIN:
            found.append(f"a seed has {self.least_requests} requests, not {REQUESTS_MIN}")
        return found

    def lines(self) -> Iterator[str]:
        """A table: mark, times, share of the clusters that reached it."""
        for name in (*MARKS, *CLUSTER_MARKS) if self.clusters else MARKS:
            share = f"{100 * self.reached[name] / self.clusters:5.1f}%" if self.clusters else ""
            yield f"{self.marks[name]:8}  {share:>6}  {name}"


def run_part(seeds: Sequence[int], options: Options, keep_going: bool) -> Total:
    """Some seeds, one after the other, until one breaks a promise."""
    total = Total()
    collecting = gc.isenabled()
    # A world is one knot of objects, and nothing of it can be freed before its end.
    gc.disable()
    try:
        for seed in seeds:
            try:
                total.add(run_seed(seed, options))
            except FINDINGS as error:
                total.seeds += 1
                text = f"{type(error).__name__}: {error}".splitlines()[0]
                total.failures.append((seed, text))
                if not keep_going:
                    break
            if total.seeds % COLLECT_SEEDS == 0:
                gc.collect()
    finally:
        if collecting:
            gc.enable()
    return total


def code_digest() -> str:
    """A hash of everything that a seed's run depends on, chance and machine not being among it."""
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parent.parent
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


class Progress:
    """The file of a long run: what was done, rewritten after each part.

    It belongs to one range and set of options, and to one state of the code: a run of changed code starts over.
    """

    def __init__(self, path: Path, seeds: range, options: Options) -> None:
        self._path = path
        self._of = {"seeds": [seeds.start, seeds.stop], "options": attrs.asdict(options)}
        self._code = code_digest()
        self.next = seeds.start
        self.seconds = 0.0
        self.total = Total()

    def load(self) -> None:
        """Go on where the file says. SystemExit when it is of another run."""
        if not self._path.exists():
            return
        known: dict[str, Any] = json.loads(self._path.read_text())
        if json.loads(json.dumps(self._of)) != known["of"]:
            sys.exit(f"{self._path} is the progress of another run, {known['of']}; name another file")
        if known["code"] != self._code:
            print(f"{self._path} is of other code: from the first seed on")
            return
        self.next, self.seconds = known["next"], known["seconds"]
        total = known["total"]
        self.total = Total(
            **total
            | {
                "marks": Counter(total["marks"]),
                "reached": Counter(total["reached"]),
                "failures": [tuple(pair) for pair in total["failures"]],
            }
        )

    def save(self) -> None:
        """Replace the file."""
        new = self._path.with_name(self._path.name + ".new")
        state = {
            "of": self._of,
            "code": self._code,
            "next": self.next,
            "seconds": self.seconds,
            "total": attrs.asdict(self.total),
        }
        new.write_text(json.dumps(state))
        new.replace(self._path)


def _parts(seeds: range, options: Options, keep_going: bool, jobs: int) -> Iterator[tuple[range, Total]]:
    """Parts of the range, in order."""
    parts = [seeds[at : at + CHUNK_SEEDS] for at in range(0, len(seeds), CHUNK_SEEDS)]
    if jobs == 1:
        for part in parts:
            yield part, run_part(part, options, keep_going)
        return
    with ProcessPoolExecutor(jobs) as pool:
        # A few parts ahead of what is reported: a failure ends the rest soon.
        waiting = [(part, pool.submit(run_part, part, options, keep_going)) for part in parts[: 2 * jobs]]
        rest = parts[2 * jobs :]
        while waiting:
            part, future = waiting.pop(0)
            if rest:
                waiting.append((rest[0], pool.submit(run_part, rest.pop(0), options, keep_going)))
            yield part, future.result()


def run_batch(
    seeds: range, options: Options, *, jobs: int = 1, keep_going: bool = False, resume: Path | None = None
) -> tuple[Total, float]:
    """Run a range, showing progress when there is a file for it; what it did, and seeds per second."""
    progress = Progress(resume or Path(os.devnull), seeds, options)
    if resume is not None:
        progress.load()
    left = seeds[progress.next - seeds.start :]
    for part, total in _timed(_parts(left, options, keep_going, jobs), progress):
        progress.total.merge(total)
        progress.next = part.stop
        if total.failures and not keep_going:
            # This part comes again when the code has been mended.
            break
        if resume is not None:
            progress.save()
            rate = progress.total.seeds / max(progress.seconds, 0.001)
            print(
                f"{progress.next} of {seeds.stop}: {rate:.1f} seeds/s, {len(progress.total.failures)} failed",
                flush=True,
            )
    return progress.total, progress.total.seeds / max(progress.seconds, 0.001)


def _timed(parts: Iterator[tuple[range, Total]], progress: Progress) -> Iterator[tuple[range, Total]]:
    began = time.perf_counter()
    for part in parts:
        now = time.perf_counter()
        progress.seconds += now - began
        began = now
        yield part


def _seeds(text: str) -> range:
    first, _, last = text.partition(":")
    return range(int(first), int(last)) if last else range(int(first))


def _nodes(text: str) -> int:
    if not 1 <= int(text) <= NODES_MAX:
        raise argparse.ArgumentTypeError(f"{text} nodes cannot be simulated, 1 to {NODES_MAX} can")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m walrq.testing.cluster", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, help="replay one seed and print its event log")
    parser.add_argument("--seeds", type=_seeds, default=range(100), help="how many, or FIRST:END (default 100)")
    parser.add_argument("--nodes", type=_nodes, help="1, 3, 5 ... (default: the seed draws 1, 3 or 5, mostly 3)")
    parser.add_argument("--fsync", choices=("always", "never"), help="policy (default: the seed draws one)")
    parser.add_argument("--load-ms", type=int, help="simulated time under load")
    parser.add_argument("--verbose", action="store_true", help="with --seed: every message as well")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--keep-going", action="store_true", help="run all seeds even if some fail")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep progress in FILE, and go on where it says")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0 when every promise held and everything owed was exercised."""
    given = _parser().parse_args(arguments)
    options = Options(nodes=given.nodes, load_ms=given.load_ms, fsync=given.fsync, verbose=given.verbose)
    if given.seed is not None:
        report = run_seed(given.seed, options)
        print("\n".join(report.log))
        print(f"seed {given.seed}: {report.events} events, {report.requests} requests, every promise held")
        return 0
    total, rate = run_batch(given.seeds, options, jobs=given.jobs, keep_going=given.keep_going, resume=given.resume)
    print("\n".join(total.lines()))
    for seed, text in total.failures:
        print(f"seed {seed}: {text}\n  replay with: {replay(seed, options)}")
    if total.failures:
        print(f"{len(total.failures)} of {total.seeds} seeds broke a promise, {rate:.1f} seeds/s")
        return 1
    absent = total.absent()
    print(f"{total.seeds} seeds, every promise held, {rate:.1f} seeds/s" + "".join(f"\n  {text}" for text in absent))
    return 1 if absent else 0


if __name__ == "__main__":
    sys.exit(main())
