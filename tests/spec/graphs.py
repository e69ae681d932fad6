"""State graphs and counterexamples that TLC made, as files: a killer of mutants need not wait for TLC each time.

A graph is made anew unless `build/graphs` has it, where `make mutants` puts those of its run; its name is made of all
that TLC was given. Counterexamples of the modules' mutants are kept beside this file and are made by
`python -m tests.spec.replay --counterexamples`; their heads say of which module and model they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from tests.spec.bindings import BINDINGS
from walrq.formal import checking, tlc
from walrq.formal.graph import Graph, read_graph
from walrq.formal.models import Manifest, Model, Mutant, job_of, load
from walrq.formal.output import Verdict
from walrq.formal.tools import Tools
from walrq.formal.values import Function, parse, render

ROOT = Path(__file__).resolve().parents[2]
GRAPHS = ROOT / "build/graphs"
MANIFESTED = load(ROOT / "spec")
COUNTEREXAMPLES = Path(__file__).resolve().parent / "counterexamples"


def bound() -> list[Model]:
    """The small models of the modules that are bound to the code, which their graphs are walked along with."""
    return [
        model
        for model in MANIFESTED.models
        if model.set == "small" and model.module in BINDINGS and model.expect is Verdict.OK and not model.properties
    ]


def key_of(model: Model) -> str:
    """A name for the graph of a model, another one for any other."""
    job = job_of(model)
    text = "\n".join([job.config, job.sources[model.module], job.sources["Run"]])
    return f"{model.title}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.dot"


def kept(model: Model) -> Graph | None:
    """The graph, if it was made before."""
    path = GRAPHS / key_of(model)
    return read_graph(path.read_text()) if path.exists() else None


async def keep(tools: Tools, model: Model) -> None:
    """Make the graph and put it where `kept` finds it."""
    outcome = await checking.check(tools, model, graph=True)
    assert not outcome.problems, (model.title, outcome.problems)
    GRAPHS.mkdir(parents=True, exist_ok=True)
    (GRAPHS / key_of(model)).write_text(outcome.report.files[checking.GRAPH])


# --- counterexamples ----------------------------------------------------------------------------------------
@attrs.frozen
class Counterexample:
    """The shortest way in which a mutant of a module breaks its property.

    Attributes:
        violated: the property.
        states: with all variables but `bug`.
    """

    module: str
    mutant: str
    model: str
    violated: str
    states: tuple[Function, ...]


async def find(tools: Tools, manifest: Manifest, mutant: Mutant) -> Counterexample:
    """Let TLC find it."""
    model = manifest.model(mutant.module, mutant.model)
    model = attrs.evolve(model, constants={**model.constants, "Bugs": [mutant.name]}, reaches=(), set="small")
    report = await tlc.run(tools, job_of(model, notes=False))
    assert report.verdict in (Verdict.INVARIANT, Verdict.PROPERTY), (mutant.name, report.verdict, report.trouble)
    states = tuple(
        Function({name: value for name, value in step.state.items() if name != "bug"})
        for step in report.transcript.trace
    )
    violated = checking.name_of_step(report.transcript.violated) or mutant.breaks
    return Counterexample(mutant.module, mutant.name, mutant.model, violated, states)


def write(module: str, found: Sequence[Counterexample]) -> None:
    """All of a module, into its file."""
    lines = []
    for each in found:
        lines.append(f"== {each.mutant} {each.model} {each.violated}")
        lines += [render(state) for state in each.states]
    COUNTEREXAMPLES.mkdir(exist_ok=True)
    (COUNTEREXAMPLES / f"{module}.txt").write_text("\n".join(lines) + "\n")


def read() -> Mapping[str, Counterexample]:
    """All that are kept, by Module.mutant."""
    found: dict[str, Counterexample] = {}
    for path in sorted(COUNTEREXAMPLES.glob("*.txt")):
        heads: list[tuple[str, list[Function]]] = []
        for line in path.read_text().splitlines():
            if line.startswith("== "):
                heads.append((line[3:], []))
            else:
                state = parse(line)
                assert isinstance(state, Function)
                heads[-1][1].append(state)
        for head, states in heads:
            mutant, model, violated = head.split()
            found[f"{path.stem}.{mutant}"] = Counterexample(path.stem, mutant, model, violated, tuple(states))
    return found
