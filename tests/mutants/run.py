"""Breaks the code one rule at a time and shows which test notices: `python -m tests.mutants.run [ID ...]`.

Each mutant is put into a copy of the repository, where each of its killers must fail. Before that all killers must
pass on an unchanged copy, else their failing would mean nothing. What TLC made is tried as well (`formal`): the way of
the module's mutant of the same kind, the state graphs of the modules that are bound to the code, and traces. These may
notice; docs/mutants.md, which the run writes, says which do.

Exit status: 0 every mutant was noticed by every killer named for it, 1 one survived, 2 the catalogue does not fit.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import trio

from tests.mutants import matrix
from tests.mutants.catalogue import ROOT, BadMutant, Mutant, mutants
from tests.spec import graphs
from walrq.formal.tools import find_tools

COPIED = ("walrq", "tests", "spec", "chaos", "bench", "docs", "pyproject.toml", "README.md", "Makefile")
# A mutant may make a loop endless; that too is noticed. Unchanged code gets the time it needs.
TIMEOUT_S = 240
BASELINE_TIMEOUT_S = 1800
PASSED, FAILED, BROKEN_IMPORT = 0, 1, 2


@attrs.frozen
class Verdict:
    """What the killers said about one mutant: per killer the first test that failed, "" when all passed.

    `rows` are for the matrix: of each technique what was soonest.
    """

    by: dict[str, str]
    seconds: float
    rows: tuple[matrix.Row, ...] = ()


def copy(target: Path) -> Path:
    """A copy of what tests need, without caches and history."""
    ignore = shutil.ignore_patterns("__pycache__", ".hypothesis", "*.pyc")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignore)
        elif source.exists():
            shutil.copy2(source, target / name)
    return target


def copy_with_graphs(target: Path) -> Path:
    """`copy`, and the state graphs that TLC made already."""
    copy(target)
    if graphs.GRAPHS.is_dir():
        shutil.copytree(graphs.GRAPHS, target / graphs.GRAPHS.relative_to(ROOT))
    return target


def run_killers(root: Path, killers: Sequence[str], timeout_s: float = TIMEOUT_S) -> tuple[int, str]:
    """(status, output) of pytest over `killers` in the copy at `root`."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("WALRQ_")}
    # The same draws every time: a mutant is killed or not, whoever runs this.
    environment |= {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "WALRQ_SEED": "20"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", "-vv", "--durations=0"]
    command += killers
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return FAILED, "\n".join(f"FAILED {name} - took more than {timeout_s:g} s" for name in killers)
    return done.returncode, done.stdout + done.stderr


def check_isolation(root: Path) -> None:
    """The copy's package is the one that tests import.

    Raises:
        BadMutant: an installed package is in the way.
    """
    found = subprocess.run(
        [sys.executable, "-c", "import walrq; print(walrq.__file__)"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if not Path(found).resolve().is_relative_to(root.resolve()):
        raise BadMutant(f"tests would import {found}, not the copy")


def first_failure(output: str, killer: str) -> str:
    """Name of the first failed test of `killer` in pytest's output, "" when there is none."""
    for failed in re.findall(r"^(?:FAILED|ERROR) (\S+)", output, flags=re.MULTILINE):
        name, path = str(failed), killer.partition("::")[0]
        if re.match(rf"{re.escape(killer)}($|[\[:])", name) or name == path:
            return name.rpartition("/")[2]
    return ""


def seconds_of(output: str, failed: str) -> float:
    """How long a test took, by pytest's list of durations; 0 when it is not there."""
    name = re.escape(failed.partition("::")[0]), re.escape(failed.partition("::")[2])
    found = re.findall(rf"^([\d.]+)s (?:call|setup) +\S*{name[0]}::{name[1]}$", output, flags=re.MULTILINE)
    return sum(map(float, found))


def formal_killers(mutant: Mutant) -> dict[str, list[list[str]]]:
    """By technique, runs of tests that might notice, the soonest first; the first run with a failure is the last."""
    modules = matrix.modules_for(mutant)
    way = "tests/spec/test_walks.py::test_the_code_does_not_go_the_way_of_a_mutant"
    graph = "tests/spec/test_walks.py::test_the_code_does_exactly_what_the_graph_says"
    bound = [model for model in graphs.bound() if model.module in modules]
    replays = [f"{way}[{twin}]" for twin in matrix.twins().get(mutant.id, []) if twin in graphs.read()]
    # The smallest graph first.
    replays += [f"{graph}[{model.title}]" for model in sorted(bound, key=lambda model: model.distinct or 0)]
    traces = ["tests/spec/test_traces.py::test_runs_are_behaviours_of_the_module"] if "Raft" in modules else []
    return {matrix.REPLAY: [[each] for each in replays], matrix.TRACE: [[each] for each in traces]}


def try_formal(mutant: Mutant, root: Path) -> list[matrix.Row]:
    """What TLC made, against the mutant in the copy at `root`."""
    rows = []
    for technique, runs in formal_killers(mutant).items():
        spent = 0.0
        for killers in runs:
            began = time.perf_counter()
            _, output = run_killers(root, killers)
            failed = first_failure(output, killers[0])
            spent += seconds_of(output, failed) if failed else time.perf_counter() - began
            if failed:
                rows.append(matrix.Row(mutant.id, technique, failed, spent))
                break
        else:
            if runs:
                rows.append(matrix.Row(mutant.id, technique, "", spent))
    return rows


def try_mutant(mutant: Mutant, named: bool = True, formal: bool = True) -> Verdict:
    """Let every killer look at the mutant, and what TLC made.

    Raises:
        BadMutant: the killers could not run at all.
    """
    began = time.perf_counter()
    rows: list[matrix.Row] = []
    by: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix=f"mutant-{mutant.id}-") as folder:
        root = copy_with_graphs(Path(folder)) if formal else copy(Path(folder))
        (root / mutant.file).write_text(mutant.mutated(root), "utf-8")
        if named:
            status, output = run_killers(root, mutant.killers)
            if status not in (PASSED, FAILED, BROKEN_IMPORT):
                raise BadMutant(f"{mutant.id}: its killers could not run (status {status})\n{output[-2_000:]}")
            by = {killer: first_failure(output, killer) for killer in mutant.killers}
            rows += named_rows(mutant, by, output)
        if formal:
            rows += try_formal(mutant, root)
    return Verdict(by, time.perf_counter() - began, tuple(rows))


def named_rows(mutant: Mutant, by: dict[str, str], output: str) -> list[matrix.Row]:
    """Of each technique among a mutant's own killers the soonest."""
    soonest: dict[str, matrix.Row] = {}
    for killer, failed in by.items():
        if not failed:
            continue
        row = matrix.Row(mutant.id, matrix.technique_of(killer), failed, seconds_of(output, failed))
        known = soonest.get(row.technique)
        if known is None or row.seconds < known.seconds:
            soonest[row.technique] = row
    return list(soonest.values())


def prepare_graphs(chosen: Sequence[Mutant]) -> None:
    """Let TLC make the state graphs that the mutants are to be walked along with, where they are not there yet."""
    modules = {module for mutant in chosen for module in matrix.modules_for(mutant)}
    for model in graphs.bound():
        if model.module in modules and graphs.kept(model) is None:
            trio.run(graphs.keep, find_tools(os.environ), model)


def check_baseline(chosen: Sequence[Mutant], named: bool = True, formal: bool = True) -> None:
    """Every killer passes on unchanged code.

    Raises:
        BadMutant: one does not, or the copy is not what is tested.
    """
    killers = {killer for mutant in chosen for killer in mutant.killers} if named else set()
    if formal:
        runs = [runs for mutant in chosen for runs in formal_killers(mutant).values()]
        killers |= {killer for each in runs for run in each for killer in run}
    with tempfile.TemporaryDirectory(prefix="mutant-none-") as folder:
        root = copy_with_graphs(Path(folder)) if formal else copy(Path(folder))
        check_isolation(root)
        status, output = run_killers(root, sorted(killers), BASELINE_TIMEOUT_S)
    if status != PASSED:
        raise BadMutant(f"killers fail on unchanged code:\n{output[-4_000:]}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print the table, return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("ids", nargs="*", metavar="ID", help="mutants or groups (L, X07, ...); all when left out")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument(
        "--techniques",
        choices=["all", "named", "formal"],
        default="all",
        help="each mutant's own killers, what TLC made, or both",
    )
    arguments = parser.parse_args(argv)
    chosen = [m for m in mutants() if not arguments.ids or m.id.startswith(tuple(arguments.ids))]
    began = time.perf_counter()
    try:
        for mutant in chosen:
            mutant.mutated(ROOT)
        living = [mutant for mutant in chosen if mutant.equivalent is None]
        named, formal = arguments.techniques != "formal", arguments.techniques != "named"
        if not named:
            living = [mutant for mutant in living if matrix.is_in_reach(mutant)]
        if formal:
            prepare_graphs(living)
        check_baseline(living, named, formal)
        print(f"{'mutant':<7} {'breaks':<20} {'seconds':>7}  killed by")
        survived = 0
        said = ""
        with ThreadPoolExecutor(arguments.jobs) as pool:
            verdicts = pool.map(lambda mutant: try_mutant(mutant, named, formal), living)
            for mutant, verdict in zip(living, verdicts, strict=True):
                said = matrix.write(verdict.rows)
                head = f"{mutant.id:<7} {mutant.breaks:<20} {verdict.seconds:>7.1f}"
                for killer, by in verdict.by.items():
                    survived += not by
                    print(f"{head}  {by or f'NOT NOTICED by {killer}'}", flush=True)
                    head = " " * len(head)
                for row in verdict.rows:
                    if row.technique in (matrix.REPLAY, matrix.TRACE):
                        print(f"{head}  {row.technique}: {row.by or 'not noticed'}", flush=True)
                        head = " " * len(head)
    except BadMutant as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    for mutant in chosen:
        if mutant.equivalent is not None:
            print(f"{mutant.id:<7} {mutant.breaks:<20} {'':>7}  equivalent: {mutant.equivalent}")
    twice = sum(len(mutant.killers) > 1 for mutant in living)
    print(
        f"{len(living)} mutants, {twice} of them with two ways to notice, {survived} ways failed, "
        f"{time.perf_counter() - began:.0f} s"
    )
    print(said)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
