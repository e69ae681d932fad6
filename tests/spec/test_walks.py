"""From TLC to the code: the real objects walk the state graphs of small models, and leave the ways of the mutants."""

from __future__ import annotations

import os

import pytest

from tests.requirements import require
from tests.spec import graphs
from tests.spec.bindings import BINDINGS
from tests.spec.graphs import MANIFESTED, Counterexample
from tests.spec.replay import PART, part
from tests.spec.walking import Divergence, replay, walk
from walrq.formal import checking
from walrq.formal.graph import Graph
from walrq.formal.models import Model
from walrq.formal.tools import find_tools
from walrq.formal.values import Function

BOUND = graphs.bound()
SIMULATED = [model for model in MANIFESTED.models if model.set == "walk"]
COUNTEREXAMPLES = graphs.read()
BEHAVIOURS = 60


@pytest.mark.trio
@pytest.mark.parametrize("model", BOUND, ids=lambda model: model.title)
async def test_the_code_does_exactly_what_the_graph_says(model: Model) -> None:
    """Every edge of the graph, and nothing else, in every reachable state; and the graph is the recorded one."""
    graph = graphs.kept(model)
    if graph is None:
        require("java")
        outcome = await checking.check(find_tools(os.environ), model, graph=True)
        assert () == outcome.problems
        graph = outcome.state_graph()
    walked = walk(graph, BINDINGS[model.module](model.constants))

    assert (len(graph.states), len(graph.edges)) == (walked.states, walked.edges)
    assert model.distinct == walked.states


@pytest.mark.trio
@pytest.mark.parametrize("model", SIMULATED, ids=lambda model: model.title)
async def test_the_code_follows_simulated_behaviours(model: Model, seed: int) -> None:
    """Beyond what can be searched: every step has the module's outcome, and is refused when the module refuses it."""
    require("java")
    assert BEHAVIOURS < PART
    behaviours, steps = await part(find_tools(os.environ), model, seed, BEHAVIOURS)

    assert BEHAVIOURS <= behaviours < steps


def test_every_mutant_of_a_bound_module_has_its_counterexample() -> None:
    """Made anew by `python -m tests.spec.replay --counterexamples` when a mutant is added."""
    mutants = {f"{each.module}.{each.name}" for each in MANIFESTED.mutants if each.module in BINDINGS}

    assert mutants == COUNTEREXAMPLES.keys()


@pytest.mark.parametrize("case", COUNTEREXAMPLES.values(), ids=COUNTEREXAMPLES)
def test_the_code_does_not_go_the_way_of_a_mutant(case: Counterexample) -> None:
    """The shortest way in which the module's mutant breaks a promise: the code leaves it, at the latest at its end."""
    binding = BINDINGS[case.module](MANIFESTED.model(case.module, case.model).constants)

    with pytest.raises(Divergence):
        replay(case.states, binding.make)


@pytest.mark.parametrize("module", BINDINGS)
def test_a_divergence_is_noticed(module: str) -> None:
    """A walk that could not fail would be a walk: a state of the module's that the code does not have is told."""
    binding = BINDINGS[module](next(each for each in BOUND if each.module == module).constants)
    start = binding.make().project()
    wrong = Function({**start, next(iter(start)): "something else"})

    with pytest.raises(Divergence, match="something else"):
        walk(Graph({1: wrong}, (1,), ()), binding)
    with pytest.raises(Divergence, match="only the code"):
        walk(Graph({1: binding.start()}, (1,), ()), binding)
