"""TLC as a child process: small modules of the tests' own, and the models that every run checks."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import trio

from tests.requirements import require
from tests.spec.bindings import BINDINGS
from tests.spec.recovery_twin import recover
from tests.spec.walking import Divergence, part, replay, walk
from walrq.formal import checking, models, tlc
from walrq.formal.graph import Graph, read_behaviour
from walrq.formal.models import load
from walrq.formal.output import Progress, Verdict
from walrq.formal.tools import find_tools
from walrq.formal.values import Function

require("java")

ROOT = Path(__file__).resolve().parents[2]
TOOLS = find_tools(os.environ)
MANIFESTED = load(ROOT / "spec")
TAKEN: dict[str, list[checking.Outcome]] = {}
BEHAVIOURS = 60
STEPS = 40
SMALL = [model for model in MANIFESTED.models if model.set == "small"]

COUNTER = r"""---- MODULE Counter ----
EXTENDS Naturals
CONSTANT Top
VARIABLE x
Init == x = 0
Inc == x < Top /\ x' = x + 1
Reset == x = Top /\ x' = 0
Next == Inc \/ Reset
Spec == Init /\ [][Next]_x /\ WF_x(Next)
Small == x < 3
Returns == x = 1 ~> x = 0
Stays == x = 1 ~> x = 9
====
"""
CONFIG = "SPECIFICATION Spec\nCONSTANT Top = 4\n"


def counter(config: str, source: str = COUNTER, *, timeout_s: float = 120) -> tlc.Job:
    """A run over a module that counts round and round."""
    return tlc.Job(
        "Counter", {"Counter": source}, CONFIG + config, options=("-deadlock",), timeout_s=timeout_s, brief=True
    )


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for what runs leave, so that the tests can see that it is nothing."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def left(folder: Path) -> list[Path]:
    """What is in a folder."""
    return list(folder.iterdir())


@pytest.mark.trio
async def test_a_violated_invariant_comes_with_its_behaviour(temporary: Path) -> None:
    """The shortest way there, as values; and nothing is left behind."""
    report = await tlc.run(TOOLS, counter("INVARIANT Small\n"))

    assert (Verdict.INVARIANT, "Small") == (report.verdict, report.transcript.violated)
    assert [Function(x=number) for number in range(4)] == [step.state for step in report.transcript.trace]
    assert [None, "Inc", "Inc", "Inc"] == [step.action for step in report.transcript.trace]
    assert [] == left(temporary)


@pytest.mark.trio
async def test_liveness_is_judged_and_a_lasso_closed() -> None:
    """A property of whole behaviours fails with a round that goes on for ever."""
    report = await tlc.run(TOOLS, counter("PROPERTIES Returns Stays\n"))

    assert Verdict.PROPERTY is report.verdict
    assert report.transcript.back_to is not None


@pytest.mark.trio
async def test_a_module_that_does_not_parse_is_no_verdict_on_the_specification() -> None:
    """A slip must not look like a violated promise; what TLC said of it is there to read."""
    report = await tlc.run(TOOLS, counter("", COUNTER.replace("x' = 0", "x' = nothing")))

    assert Verdict.PARSE is report.verdict
    assert "nothing" in report.trouble


@pytest.mark.trio
async def test_a_run_that_takes_too_long_is_ended(temporary: Path) -> None:
    """The child is dead and its folder gone when the time is over."""
    report = await tlc.run(TOOLS, counter("", timeout_s=0.05))

    assert Verdict.TIMEOUT is report.verdict
    assert [] == left(temporary)


@pytest.mark.trio
async def test_a_cancelled_run_leaves_no_child(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of a search of hours."""
    opened = []
    real = trio.lowlevel.open_process

    async def open_process(*arguments: object, **options: object) -> trio.Process:
        opened.append(await real(*arguments, **options))  # type: ignore[arg-type]
        return opened[-1]

    monkeypatch.setattr(trio.lowlevel, "open_process", open_process)
    # Counts for a very long time.
    job = counter("", COUNTER.replace("x < Top", "x < 100000000"))
    with trio.CancelScope() as scope:

        def told(progress: Progress) -> None:
            scope.cancel()

        await tlc.run(TOOLS, job, told)

    assert scope.cancelled_caught
    assert [True] == [process.returncode is not None for process in opened]
    assert [] == left(temporary)


@pytest.mark.trio
@pytest.mark.parametrize("model", SMALL, ids=lambda model: model.title)
async def test_a_small_model_gives_what_the_manifest_says(model: models.Model) -> None:
    """The promises hold in every reachable state within the bounds, witnesses fail, the counts are the old ones.

    And the code does exactly what the graph says: every edge, and nothing else.
    """
    bound = model.module in BINDINGS and model.expect is Verdict.OK and not model.properties
    recovering = model.module == "Wal" and model.expect is Verdict.OK
    outcome = await checking.check(TOOLS, model, graph=bound or recovering)

    assert () == outcome.problems
    TAKEN.setdefault(model.module, []).append(outcome)
    if bound:
        graph = outcome.state_graph()
        walked = walk(graph, BINDINGS[model.module](model.constants))
        assert (len(graph.states), len(graph.edges)) == (walked.states, walked.edges)
    if recovering:
        assert 0 < recovered(outcome.state_graph())


def recovered(graph: Graph) -> int:
    """Recovers every state in which the module does, with the code; how many outcomes were the module's (all)."""
    outcomes = {}
    for edge in graph.edges:
        if edge.action == "Recover":
            outcomes[edge.source] = part(graph.states[edge.target], recover(graph.states[edge.source]))
            assert outcomes[edge.source] == recover(graph.states[edge.source]), graph.states[edge.source]
    down = {number for number, state in graph.states.items() if state["state"] == "down"}
    assert down == outcomes.keys()
    return len(outcomes)


@pytest.mark.trio
@pytest.mark.parametrize(
    "model", [each for each in MANIFESTED.models if each.set == "walk"], ids=lambda each: each.title
)
async def test_the_code_follows_simulated_behaviours(model: models.Model, seed: int) -> None:
    """Beyond what can be searched: every step has the module's outcome, and is refused when the module refuses it."""
    report = await checking.simulate(TOOLS, model, BEHAVIOURS, STEPS, seed)

    assert (Verdict.OK, "") == (report.verdict, report.trouble)
    behaviours = [list(read_behaviour(text)) for text in report.files.values()]
    assert BEHAVIOURS <= len(behaviours)
    binding = BINDINGS[model.module](model.constants)
    assert 0 < sum(replay(behaviour, binding.make) for behaviour in behaviours)


@pytest.mark.parametrize("module", BINDINGS)
def test_a_divergence_is_noticed(module: str) -> None:
    """A walk that could not fail would be a walk: a state of the module's that the code does not have is told."""
    model = next(each for each in SMALL if each.module == module)
    binding = BINDINGS[module](model.constants)
    start = binding.make().project()
    wrong = Function({**start, next(iter(start)): "something else"})

    with pytest.raises(Divergence, match="something else"):
        walk(Graph({1: wrong}, (1,), ()), binding)
    with pytest.raises(Divergence, match="only the code"):
        walk(Graph({1: binding.start()}, (1,), ()), binding)


@pytest.mark.parametrize("module", MANIFESTED.modules)
def test_every_action_is_taken_somewhere(module: str) -> None:
    """An action that is never taken has never been checked. (Needs the models above: alone it has nothing to see.)"""
    models_of = [model for model in SMALL if model.module == module]
    if len(TAKEN.get(module, [])) == len(models_of):
        assert [] == checking.never_taken(TAKEN[module])
    assert re.search(r"^Next ==", (ROOT / f"spec/{module}.tla").read_text(), flags=re.MULTILINE)
