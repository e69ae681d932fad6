"""Walks a state graph of TLC's with the real objects: each state, each action, each outcome, in both directions.

A *twin* is made of the constants of a model. It applies an action (with its arguments), and projects itself to those
variables of the module that it has; the others are ghosts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from walrq.formal.graph import Graph
from walrq.formal.values import Function, render


class Twin(Protocol):
    """The real objects behind a module."""

    def apply(self, act: Mapping[str, Any]) -> bool:
        """Take the action; whether it was done, and not refused."""

    def project(self) -> Function:
        """The module's variables, as the real objects have them."""


@attrs.frozen
class Walked:
    """What was compared: states, and edges of the graph, by walking all of them."""

    states: int
    edges: int
    edges_all: int


class Divergence(AssertionError):
    """The code and the module differ; the text is the way there and the difference."""


def part(state: Mapping[str, Any], projected: Function) -> Function:
    """The variables of a state that the twin has."""
    return Function({name: state[name] for name in projected})


class Binding(Protocol):
    """How a model of a module is bound to the code."""

    def make(self) -> Twin:
        """A twin in the initial state."""

    def start(self) -> Function:
        """The initial state with all that `candidates` looks at."""

    def candidates(self, state: Function) -> Iterable[Function]:
        """Every action that the module may take in a state, with every argument."""

    def within(self, projected: Function) -> bool:
        """Whether the module's bounds let it follow the code there."""


def walk(graph: Graph, binding: Binding) -> Walked:
    """Visit every state of the graph with a twin, and try there every action that the module may take.

    Raises:
        Divergence: an outcome of the code that is no edge, or an edge that no action of the code follows.
    """
    make = binding.make
    outgoing = graph.outgoing()
    ways: dict[int, list[Function]] = {number: [] for number in graph.initial}
    queue = deque(graph.initial)
    covered = 0
    while queue:
        number = queue.popleft()
        way = ways[number]
        found: dict[tuple[str, Function], Function] = {}
        here = arrived(make, way)
        if here.project() != part(graph.states[number], here.project()):
            raise Divergence(told(way, graph.states[number], here.project()))
        for act in binding.candidates(graph.states[number]):
            twin = arrived(make, way)
            twin.apply(act)
            outcome = twin.project()
            if binding.within(outcome):
                found.setdefault((act["op"], outcome), act)
        keys = next(iter(found))[1] if found else here.project()
        expected = {(edge.action, part(graph.states[edge.target], keys)) for edge in outgoing[number]}
        if expected != found.keys():
            raise Divergence(differences(way, expected, found))
        for edge in outgoing[number]:
            covered += 1
            if edge.target not in ways:
                act = found[edge.action, part(graph.states[edge.target], keys)]
                ways[edge.target] = [*way, act]
                queue.append(edge.target)
    return Walked(len(ways), covered, len(graph.edges))


def arrived(make: Callable[[], Twin], way: Sequence[Function]) -> Twin:
    """A new twin that took these actions."""
    twin = make()
    for act in way:
        twin.apply(act)
    return twin


def told(way: Sequence[Function], expected: Any, found: Any) -> str:
    """How to get there, and what differs."""
    steps = "\n  ".join(map(render, way))
    return f"after\n  {steps}\nthe module has\n  {expected}\nthe code has\n  {found}"


def differences(
    way: Sequence[Function], expected: set[tuple[str, Function]], found: Mapping[tuple[str, Function], Function]
) -> str:
    """Outcomes that only one side has."""
    lines = [f"  only the module: {op} -> {state}" for op, state in expected - found.keys()]
    lines += [f"  only the code: {found[each]} -> {each[1]}" for each in found.keys() - expected]
    return "after\n  " + "\n  ".join(map(render, way)) + "\n" + "\n".join(sorted(lines))


def replay(behaviour: Iterable[Function], make: Callable[[], Twin]) -> int:
    """Follow a simulated behaviour action by action; how many there were.

    Raises:
        Divergence: a state, or whether an action was refused, is not the module's.
    """
    twin: Twin | None = None
    way: list[Function] = []
    for state in behaviour:
        act = state["act"]
        if twin is None:
            twin = make()
        else:
            way.append(act)
            done = twin.apply(act)
            # A module that has no `ok` has its answer in the action itself; the twin compares.
            if done is not act.get("ok", True):
                raise Divergence(told(way, f"ok = {act.get('ok', True)}", f"ok = {done}"))
        projected = twin.project()
        if projected != part(state, projected):
            raise Divergence(told(way, part(state, projected), projected))
    return len(way)
