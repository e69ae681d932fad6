"""What TLC says, and the story that is made of it."""

from __future__ import annotations

import pytest

from walrq.formal.graph import Edge, read_behaviour, read_graph
from walrq.formal.output import Progress, Reading, Step, Verdict, verdict_of
from walrq.formal.story import tell
from walrq.formal.values import Function

SAID = r"""@!@!@STARTMSG 2200:0 @!@!@
Progress(7) at 05:09:34: 1,903 states generated (9 s/min), 320 distinct states found (2 ds/min), 203 states left.
@!@!@ENDMSG 2200 @!@!@
<<"reached", "SeenTwo">>
@!@!@STARTMSG 2110:1 @!@!@
Invariant Small is violated.
@!@!@ENDMSG 2110 @!@!@
@!@!@STARTMSG 2217:4 @!@!@
1: <Initial predicate>
/\ x = 0
/\ act = [op |-> "Init"]

@!@!@ENDMSG 2217 @!@!@
@!@!@STARTMSG 2217:4 @!@!@
2: <Inc line 6, col 11 to line 6, col 179 of module T>
/\ x = 3
/\ act = [op |-> "Inc", by |-> 3]

@!@!@ENDMSG 2217 @!@!@
@!@!@STARTMSG 2199:0 @!@!@
1,005 states generated, 1,004 distinct states found, 1 states left on queue.
@!@!@ENDMSG 2199 @!@!@
@!@!@STARTMSG 2194:0 @!@!@
The depth of the complete state graph search is 3.
@!@!@ENDMSG 2194 @!@!@
"""


def test_a_run_is_read_line_by_line() -> None:
    """Progress comes at once; counts, what was violated and the counterexample are there at the end."""
    reading = Reading()
    progress = [each for line in SAID.splitlines() if (each := reading.line(line)) is not None]
    said = reading.transcript

    assert [Progress(7, 1903, 320, 203)] == progress
    assert ("Small", 1005, 1004, 3) == (said.violated, said.generated, said.distinct, said.depth)
    assert ['<<"reached", "SeenTwo">>'] == said.printed
    first = Function(x=0, act=Function(op="Init"))
    assert [Step(None, first), Step("Inc", Function(x=3, act=Function(op="Inc", by=3)))] == said.trace


def test_a_counterexample_is_told_as_a_story() -> None:
    """A person wants to know who did what, and what that changed; not ten copies of the state."""
    start = Function(q=Function(a=(1, 2), s=frozenset({1})), act=Function(op="Init"))
    then = Function(q=Function(a=(1, 5), s=frozenset({2})), act=Function(op="Push", pri=1))
    told = list(tell([Step(None, start), Step("Push", then), Step("Push", then)], back_to=0))

    assert [
        "  1. at the start",
        "       q = [a |-> <<1, 2>>, s |-> {1}]",
        "  2. Push(pri=1)",
        "       q.a[2]: 2 -> 5",
        "       q.s: + 2, - 1",
        "  3. Push(pri=1)",
        "       nothing changes",
        "     and nothing happens any more",
    ] == told


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(0, Verdict.OK), (12, Verdict.INVARIANT), (13, Verdict.PROPERTY), (150, Verdict.PARSE), (137, Verdict.CRASHED)],
)
def test_the_exit_status_is_the_verdict(status: int, verdict: Verdict) -> None:
    """Texts change with versions; the status does not. What is not known is never taken for success."""
    assert verdict is verdict_of(status)


def test_a_state_graph_is_read() -> None:
    """Labels are escaped twice, edges may be written more than once."""
    text = "\n".join(
        [
            "strict digraph DiskGraph {",
            r'-61 [label="/\\ s = \"q\\\"u\"\n/\\ x = 0",style = filled]',
            '-61 -> 12 [label="Inc",color="2",fontcolor="2"];',
            r'12 [label="/\\ s = \"\"\n/\\ x = 1"];',
            '-61 -> 12 [label="Inc",color="2",fontcolor="2"];',
            "{rank = same; 12;}",
        ]
    )
    graph = read_graph(text)

    assert {-61: Function(s='q"u', x=0), 12: Function(s="", x=1)} == graph.states
    assert (-61,) == graph.initial
    assert (Edge(-61, "Inc", 12),) == graph.edges
    assert {-61: [Edge(-61, "Inc", 12)], 12: []} == graph.outgoing()


def test_a_simulated_behaviour_is_read() -> None:
    """Files of behaviours have a form of their own."""
    states = ["STATE_1 == \n/\\ x = 0\n/\\ y = 1\n", "STATE_2 == \n/\\ x = 1\n/\\ y = 1\n"]
    text = "\n\n".join(["---- MODULE walk_0_0 ----", *states, "====\n"])

    assert [Function(x=0, y=1), Function(x=1, y=1)] == list(read_behaviour(text))
