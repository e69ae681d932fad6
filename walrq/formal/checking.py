"""Runs models and compares what TLC found with what the manifest expects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import attrs

from walrq.formal import tlc
from walrq.formal.graph import Graph, read_graph
from walrq.formal.models import Model, Mutant, job_of, name_of_step, pool_of
from walrq.formal.output import Progress, Transcript, Verdict
from walrq.formal.tlc import Report
from walrq.formal.tools import Tools
from walrq.formal.values import parse

GRAPH: Final = "graph.dot"


@attrs.frozen
class Outcome:
    """A model, how its run ended, and in what that differs from the manifest."""

    model: Model
    report: Report
    problems: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """How the run ended, with what was violated."""
        violated = name_of_step(self.report.transcript.violated)
        return f"{self.report.verdict}{f': {violated}' if violated else ''}"

    def state_graph(self) -> Graph:
        """Every state and edge, when they were asked for."""
        return read_graph(self.report.files[GRAPH])


async def check(
    tools: Tools,
    model: Model,
    told: Callable[[Progress], None] | None = None,
    *,
    workers: int = 1,
    graph: bool = False,
) -> Outcome:
    """Run one model; with `graph` its whole state graph is `state_graph` of the outcome."""
    # With more workers the order of the search, and so the depth, is not the same every time; notes of what was
    # reached are each worker's own.
    dump = ("-dump", "dot,actionlabels", GRAPH) if graph else ()
    job = job_of(model, options=dump, keep=(GRAPH,) if graph else ())
    job = attrs.evolve(job, workers=1 if model.reaches else workers)
    report = await tlc.run(tools, job, told)
    return Outcome(model, report, tuple(problems(model, report)))


async def simulate(tools: Tools, model: Model, number: int, depth: int, seed: int) -> Report:
    """Walk at random; the behaviours are the files of the report."""
    options = ("-simulate", f"file=walk,num={number}", "-depth", str(depth), "-seed", str(seed))
    return await tlc.run(tools, job_of(model, notes=False, options=options, keep=("walk_*",)))


def problems(model: Model, report: Report) -> list[str]:
    """What is not as the manifest says; empty when all is well."""
    said = report.transcript
    if report.verdict is not model.expect:
        return [f"expected {model.expect}, found {report.verdict} {report.trouble}".rstrip()]
    found = []
    violated = name_of_step(said.violated)
    if model.violated is not None and violated != model.violated:
        found.append(f"expected {model.violated} to be violated, found {violated}")
    if report.verdict is Verdict.OK:
        for name, expected, counted in (
            ("distinct states", model.distinct, said.distinct),
            ("depth", model.depth, said.depth),
        ):
            if expected is not None and expected != counted:
                found.append(f"{name}: {expected} in the manifest, {counted} now")
    missed = sorted(set(model.reaches) - printed(said, "reached"))
    if missed:
        found.append(f"never reached: {', '.join(missed)}")
    return found


def printed(said: Transcript, word: str) -> set[str]:
    """The names that a module printed after `word`."""
    values = [parse(line) for line in said.printed]
    return {value[1] for value in values if isinstance(value, tuple) and value[0] == word}


def never_taken(outcomes: Iterable[Outcome]) -> list[str]:
    """Actions, as Module.Action, that no model of their module ever took: they check nothing."""
    outcomes = list(outcomes)
    taken = {f"{each.model.module}.{name}" for each in outcomes for name in printed(each.report.transcript, "taken")}
    there = {f"{each.model.module}.{name}" for each in outcomes for name in each.model.actions}
    return sorted(there - taken)


@attrs.frozen
class Kill:
    """What noticed a mutant (None: nothing did), after how many steps, and seconds of the run of all."""

    mutant: Mutant
    by: str | None
    steps: int
    seconds: float


async def try_mutants(tools: Tools, model: Model, mutants: Sequence[Mutant]) -> tuple[list[Kill], Report]:
    """Try the mutants of one model in one run."""
    report = await tlc.run(tools, pool_of(model, [mutant.name for mutant in mutants]))
    noticed: dict[str, tuple[str, int, float]] = {}
    for line, seconds in zip(report.transcript.printed, report.transcript.printed_s, strict=True):
        value = parse(line)
        if isinstance(value, tuple) and value[0] == "killed":
            noticed.setdefault(value[1], (value[2], value[3], seconds))
    return [Kill(mutant, *noticed.get(mutant.name, (None, 0, 0.0))) for mutant in mutants], report
