"""State graphs (`-dump dot,actionlabels`) and simulated behaviours (`-simulate file=`) as Python values. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import attrs

from walrq.formal.values import Function, parse_state

_NODE: Final = re.compile(r'^(-?\d+) \[label="(.*?)"(,style = filled)?\];?$')
_EDGE: Final = re.compile(r'^(-?\d+) -> (-?\d+) \[label="(\w*)"')
_ESCAPE: Final = re.compile(r"\\(.)")


@attrs.frozen
class Edge:
    """An action that leads from one state to another; states by TLC's number."""

    source: int
    action: str
    target: int


@attrs.frozen
class Graph:
    """All states by number, the initial ones, and all edges, once each."""

    states: dict[int, Function]
    initial: tuple[int, ...]
    edges: tuple[Edge, ...]

    def outgoing(self) -> dict[int, list[Edge]]:
        """Edges by their source."""
        found: dict[int, list[Edge]] = {number: [] for number in self.states}
        for edge in self.edges:
            found[edge.source].append(edge)
        return found


def _unescaped(label: str) -> str:
    return _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], label)


def read_graph(text: str) -> Graph:
    """The graph in a dot file of TLC's."""
    states: dict[int, Function] = {}
    initial: list[int] = []
    edges: dict[Edge, None] = {}
    for line in text.splitlines():
        edge = _EDGE.match(line)
        if edge is not None:
            edges[Edge(int(edge[1]), edge[3], int(edge[2]))] = None
            continue
        node = _NODE.match(line)
        if node is not None and int(node[1]) not in states:
            states[int(node[1])] = parse_state(_unescaped(node[2]))
            if node[3]:
                initial.append(int(node[1]))
    return Graph(states, tuple(initial), tuple(edges))


def read_behaviour(text: str) -> Iterator[Function]:
    """The states of one simulated behaviour, in order."""
    for part in re.split(r"^STATE_\d+ ==\s*$", text, flags=re.MULTILINE)[1:]:
        yield parse_state(re.split(r"^====", part, flags=re.MULTILINE)[0])
