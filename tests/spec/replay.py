"""Long replays of TLC's behaviours on the real objects: `python -m tests.spec.replay [--module M] [--behaviours N]`.

TLC simulates each bound module's model for simulation in parts of PART behaviours, each part with a seed of its own;
the real objects take every step, and after each the state projected must be the module's. What is done is noted in a
file, so that a run that was interrupted goes on where it was. With --counterexamples TLC is asked for the shortest way
in which each mutant of the bound modules breaks its property; tests/spec/counterexamples gets them, and the tests show
that the code does not go along.

Exit status: 0 all steps agree, 1 a divergence, whose way is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from tests.spec import graphs
from tests.spec.bindings import BINDINGS
from tests.spec.graphs import MANIFESTED
from tests.spec.walking import Divergence, replay
from walrq.formal import checking
from walrq.formal.graph import read_behaviour
from walrq.formal.models import Model
from walrq.formal.output import Verdict
from walrq.formal.tools import Tools, find_tools

PART = 250
DEPTH = 40
NOTES = graphs.ROOT / "build/replay.json"


def models_of(module: str) -> list[Model]:
    """What a module is simulated with."""
    return [model for model in MANIFESTED.models if model.module == module and model.set == "walk"]


def replayed(model: Model, report_files: dict[str, str]) -> tuple[int, int]:
    """(behaviours, steps) that the code followed.

    Raises:
        Divergence: it did not.
    """
    binding = BINDINGS[model.module](model.constants)
    behaviours = steps = 0
    for text in report_files.values():
        steps += replay(read_behaviour(text), binding.make)
        behaviours += 1
    return behaviours, steps


async def part(tools: Tools, model: Model, seed: int, number: int = PART) -> tuple[int, int]:
    """One part; see `replayed`."""
    report = await checking.simulate(tools, model, number, DEPTH, seed)
    assert report.verdict is Verdict.OK, (model.title, report.verdict, report.trouble)
    return await trio.to_thread.run_sync(replayed, model, dict(report.files))


def run(modules: Sequence[str], behaviours: int, notes: Path) -> int:
    """All parts that are not noted yet; the exit status (it stops at the first divergence)."""
    tools = find_tools(os.environ)
    done: dict[str, dict[str, Any]] = json.loads(notes.read_text()) if notes.exists() else {}
    notes.parent.mkdir(parents=True, exist_ok=True)
    for model in [model for module in modules for model in models_of(module)]:
        own = done.setdefault(model.title, {"behaviours": 0, "steps": 0, "seed": 0, "seconds": 0.0})
        while own["behaviours"] < behaviours:
            began = time.monotonic()
            seed = own["seed"] + 1
            try:
                more = trio.run(part, tools, model, seed)
            except Divergence as error:
                print(f"{model.title}, seed {seed}: DIVERGENCE\n{error}", file=sys.stderr)
                return 1
            own |= {"behaviours": own["behaviours"] + more[0], "steps": own["steps"] + more[1], "seed": seed}
            own["seconds"] = round(own["seconds"] + time.monotonic() - began, 1)
            notes.write_text(json.dumps(done, indent=1) + "\n")
        said = f"{own['behaviours']} behaviours\t{own['steps']} steps\t{own['seconds']} s"
        print(f"{model.title}\t{said}", flush=True)
    return 0


async def collect(modules: Sequence[str]) -> int:
    """Ask TLC for a counterexample of every mutant."""
    tools = find_tools(os.environ)
    for module in modules:
        found = []
        for mutant in MANIFESTED.mutants:
            if mutant.module == module:
                found.append(await graphs.find(tools, MANIFESTED, mutant))
                print(f"{module}.{mutant.name}\t{found[-1].violated}\t{len(found[-1].states)} states", flush=True)
        graphs.write(module, found)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--module", action="append", choices=list(BINDINGS), help="all bound ones when left out")
    parser.add_argument("--behaviours", type=int, default=10_000, metavar="N", help="of each module  [10000]")
    parser.add_argument("--resume", type=Path, default=NOTES, metavar="FILE", help=f"notes  [{NOTES.name} in build/]")
    parser.add_argument("--counterexamples", action="store_true", help="make the counterexamples anew instead")
    arguments = parser.parse_args(argv)
    modules = arguments.module or list(BINDINGS)
    if arguments.counterexamples:
        return trio.run(collect, modules)
    return run(modules, arguments.behaviours, arguments.resume)


if __name__ == "__main__":
    sys.exit(main())
