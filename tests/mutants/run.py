"""Breaks the code one rule at a time and shows which test notices: `python -m tests.mutants.run [ID ...]`.

Each mutant is put into a copy of the repository, where each of its killers must fail. Before that all killers must
pass on an unchanged copy, else their failing would mean nothing.

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

from tests.mutants.catalogue import ROOT, BadMutant, Mutant, mutants

COPIED = ("walrq", "tests", "spec", "chaos", "bench", "docs", "pyproject.toml", "README.md", "Makefile")
# A mutant may make a loop endless; that too is noticed. Unchanged code gets the time it needs.
TIMEOUT_S = 240
BASELINE_TIMEOUT_S = 1800
PASSED, FAILED, BROKEN_IMPORT = 0, 1, 2


@attrs.frozen
class Verdict:
    """What the killers said about one mutant: per killer the first test that failed, "" when all passed."""

    by: dict[str, str]
    seconds: float


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


def run_killers(root: Path, killers: Sequence[str], timeout_s: float = TIMEOUT_S) -> tuple[int, str]:
    """(status, output) of pytest over `killers` in the copy at `root`."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("WALRQ_")}
    # The same draws every time: a mutant is killed or not, whoever runs this.
    environment |= {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "WALRQ_SEED": "20"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", *killers]
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


def try_mutant(mutant: Mutant) -> Verdict:
    """Let every killer look at the mutant.

    Raises:
        BadMutant: the killers could not run at all.
    """
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix=f"mutant-{mutant.id}-") as folder:
        root = copy(Path(folder))
        (root / mutant.file).write_text(mutant.mutated(root), "utf-8")
        status, output = run_killers(root, mutant.killers)
    if status not in (PASSED, FAILED, BROKEN_IMPORT):
        raise BadMutant(f"{mutant.id}: its killers could not run (status {status})\n{output[-2_000:]}")
    by = {killer: first_failure(output, killer) for killer in mutant.killers}
    return Verdict(by, time.perf_counter() - began)


def check_baseline(chosen: Sequence[Mutant]) -> None:
    """Every killer passes on unchanged code.

    Raises:
        BadMutant: one does not, or the copy is not what is tested.
    """
    killers = sorted({killer for mutant in chosen for killer in mutant.killers})
    with tempfile.TemporaryDirectory(prefix="mutant-none-") as folder:
        root = copy(Path(folder))
        check_isolation(root)
        status, output = run_killers(root, killers, BASELINE_TIMEOUT_S)
    if status != PASSED:
        raise BadMutant(f"killers fail on unchanged code:\n{output[-4_000:]}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print the table, return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("ids", nargs="*", metavar="ID", help="mutants or groups (L, X07, ...); all when left out")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    arguments = parser.parse_args(argv)
    chosen = [m for m in mutants() if not arguments.ids or m.id.startswith(tuple(arguments.ids))]
    began = time.perf_counter()
    try:
        for mutant in chosen:
            mutant.mutated(ROOT)
        living = [mutant for mutant in chosen if mutant.equivalent is None]
        check_baseline(living)
        print(f"{'mutant':<7} {'breaks':<20} {'seconds':>7}  killed by")
        survived = 0
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for mutant, verdict in zip(living, pool.map(try_mutant, living), strict=True):
                head = f"{mutant.id:<7} {mutant.breaks:<20} {verdict.seconds:>7.1f}"
                for killer, by in verdict.by.items():
                    survived += not by
                    print(f"{head}  {by or f'NOT NOTICED by {killer}'}", flush=True)
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
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
