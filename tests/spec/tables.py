"""Puts what `walrq spec check --json` found into docs/formal.md and docs/mutants.md: `... -m tests.spec.tables FILE`.

`make spec` does. A run of some models replaces their rows and leaves the others; what is no more goes.
Seconds are of a whole run, Java's start included, on the machine of whoever ran it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.mutants import matrix
from tests.spec.graphs import MANIFESTED, ROOT
from walrq.formal.models import Model

PAGE: Final = ROOT / "docs/formal.md"
MODELS: Final = "models"
HEAD: Final = ("model", "what", "set", "properties", "distinct states", "depth", "s", "verdict")
UNKNOWN: Final = "?"


def properties(model: Model) -> str:
    """How many a search checks, by kind; of few their names."""
    counted = [(model.invariants, "invariants"), (model.steps, "of steps"), (model.properties, "of behaviours")]
    names = [name for group, _ in counted for name in group]
    if len(names) <= 2:
        return ", ".join(names)
    return ", ".join(f"{len(group)} {kind}" for group, kind in counted if group)


def model_rows(text: str, found: Mapping[str, Mapping[str, Any]], timed: bool) -> list[list[str]]:
    """A row for each model that is searched; what a run did not look at keeps its seconds and verdict."""
    before = {row[0]: row for row in matrix.rows_in(text, MODELS)}
    rows = []
    for model in MANIFESTED.models:
        if model.set == "walk":
            continue
        counted = [f"{number:,}" if number is not None else "" for number in (model.distinct, model.depth)]
        *_, old_states, old_depth, seconds, verdict = before.get(model.title, [UNKNOWN] * len(HEAD))
        run = found.get(model.title)
        if run is not None:
            violated = f": {run['violated']}" if run["violated"] else ""
            verdict = f"{run['verdict']}{violated}" if not run["problems"] else f"NOT AS RECORDED: {run['problems']}"
            seconds = f"{run['seconds']:.0f}" if timed else UNKNOWN
        if model.set == "deep":
            # Nothing of these is recorded elsewhere.
            counted = [f"{run['distinct']:,}", str(run["depth"])] if run is not None else [old_states, old_depth]
        rows.append([model.title, model.what, model.set, properties(model), *counted, seconds, verdict])
    return rows


def total(rows: Sequence[Sequence[str]]) -> str:
    """One line on all of them."""
    states = dict.fromkeys(("small", "full", "deep"), 0)
    for row in rows:
        states[row[2]] += int(row[4].replace(",", "")) if row[4] not in ("", UNKNOWN) else 0
    timed = [int(row[6]) for row in rows if row[6] != UNKNOWN]
    counted = ", ".join(f"{number:,} in the {name} set" for name, number in states.items())
    return (
        f"{len(rows)} models, {sum(states.values()):,} distinct states: {counted}; {sum(timed):,} s of searches in the"
        f" {len(timed)} models that the runs behind this table timed."
    )


def mutant_rows(text: str, found: Mapping[str, Mapping[str, Any]], timed: bool) -> list[list[str]]:
    """A row for each switch."""
    before = {row[0]: row for row in matrix.rows_in(text, matrix.SPEC)}
    rows = []
    for mutant in MANIFESTED.mutants:
        name = f"{mutant.module}.{mutant.name}"
        run = found.get(name)
        if run is not None:
            seconds = f"{run['seconds']:.1f}" if timed else UNKNOWN
            said = [run["noticed_by"] or "NOT NOTICED", str(run["steps"]), seconds]
        else:
            said = before.get(name, [UNKNOWN] * 7)[-3:]
        rows.append([name, mutant.what, mutant.breaks, mutant.twin or "", *said])
    return rows


def code_rows(spec_rows: Sequence[Sequence[str]]) -> list[matrix.Row]:
    """For the mutants of the code: TLC noticed their twins."""
    rows = {}
    for name, _, breaks, twin, by, _, seconds in spec_rows:
        if twin and by == breaks:
            row = matrix.Row(twin, matrix.SPECIFICATION, f"{name}: {by}", matrix.seconds_in(seconds))
            rows[twin] = min(row, rows.get(twin, row), key=lambda each: each.seconds)
    return list(rows.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Read a run's lines, write the pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path)
    parser.add_argument("--busy", action="store_true", help="the machine had other work: write no seconds down")
    arguments = parser.parse_args(argv)
    lines = [json.loads(line) for line in arguments.file.read_text().splitlines()]
    models = {line["model"]: line for line in lines if "model" in line}
    mutants = {line["mutant"]: line for line in lines if "mutant" in line}
    text = PAGE.read_text()
    rows = model_rows(text, models, not arguments.busy)
    text = matrix.replaced(text, MODELS, f"{matrix.table(HEAD, rows)}\n\n{total(rows)}")
    PAGE.write_text(text)
    text = matrix.PAGE.read_text()
    spec_rows = mutant_rows(text, mutants, not arguments.busy)
    matrix.PAGE.write_text(matrix.replaced(text, matrix.SPEC, matrix.table(matrix.HEADS[matrix.SPEC], spec_rows)))
    matrix.write(code_rows(spec_rows))
    print(total(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
