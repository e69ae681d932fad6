"""From the code to TLC: what cores did is a behaviour of spec/Raft.tla, and what they cannot have done is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import trio

from tests.requirements import require
from tests.spec import processes
from tests.spec.schedules import FORGERIES, NAMES, forged, recorded, run
from tests.spec.traces import simulated
from walrq.errors import ConfigError
from walrq.formal import lines, validating
from walrq.formal.tools import find_tools

ROOT = Path(__file__).resolve().parents[2]
SCHEDULES = 6
# A forged line, and what tells that its call is over.
LINES_AFTER = 3


@pytest.mark.trio
async def test_runs_are_behaviours_of_the_module(seed: int) -> None:
    """Random schedules, one of them merged from its nodes, and a seed of the simulator.

    Of cores that one of their own checks stops, what was noted until then: so this says what TLC alone would say.
    """
    require("java")
    schedules = [recorded(seed * SCHEDULES + number) for number in range(SCHEDULES)]
    apart = lines.merged([[line for line in schedules[0] if line["node"] == name] for name in NAMES])
    traces = [lines.prepared(each) for each in [*schedules, apart, simulated(seed)]]

    judged = await validating.validate(find_tools(os.environ), ROOT / "spec", traces)

    for judgement in judged:
        assert judgement.is_accepted, "\n".join(judgement.story)
        assert judgement.lines > 20


@pytest.mark.trio
async def test_forgeries_are_refused_at_the_line_that_was_changed() -> None:
    """One line that cannot be, in a run that was one; all in one run of TLC, which needs longer to start."""
    require("java")
    found = {name: forged(name, range(1_000)) for name in FORGERIES}
    forgeries = {name: (each[: number + LINES_AFTER], number) for name, (each, number) in found.items()}
    traces = [lines.prepared(each) for each, _ in forgeries.values()]

    refused = await validating.validate(find_tools(os.environ), ROOT / "spec", traces)

    assert 10 <= len(FORGERIES)
    assert {name: number for name, (_, number) in forgeries.items()} == {
        name: judgement.refused for name, judgement in zip(forgeries, refused, strict=True)
    }
    told = dict(zip(forgeries, ("\n".join(judgement.story) for judgement in refused), strict=True))
    assert "no such message was under way" in told["takes an acknowledgement from nowhere"]
    assert "it has nothing like that to say" in told["tells a vote that is not written"]
    assert "its disk cannot have been left like that" not in told["commits without a quorum"]


@pytest.mark.trio
async def test_what_killed_processes_noted_is_a_behaviour_of_the_module(tmp_path: Path, seed: int) -> None:
    """Real disks, real sockets, kill -9 of the leader; and one line of it changed is refused at that line."""
    require("java", "linux")
    parts = await trio.to_thread.run_sync(lambda: processes.traced(tmp_path, seed, kills=1, pushes=3))
    merged = lines.merged(parts)
    # A line behind the kill, and one that tells of nothing inside it.
    number = max(at for at, line in enumerate(merged) if line["event"] == "TakeReady")
    forged = [*merged[:number], {**merged[number], "term": merged[number]["term"] + 1}, *merged[number + 1 :]]

    traces = [lines.prepared(each) for each in (merged, forged)]
    accepted, refused = await validating.validate(find_tools(os.environ), ROOT / "spec", traces)

    assert accepted.is_accepted, "\n".join(accepted.story)
    assert (len(merged), None) == (accepted.lines, accepted.ends)
    assert number + 1 == refused.refused
    assert len(parts) < sum(line["event"] == "Start" for line in merged)
    assert 2 <= len({line["term"] for line in merged if line["event"] == "BecomeLeader"})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the trace is empty"),
        ("{", "line 1 of the trace is no JSON"),
        (json.dumps({"event": "Start", "node": "a", "voters": []}), "line 1 of the trace has no 'role'"),
    ],
)
def test_a_file_that_is_no_trace_is_one_line(text: str, why: str) -> None:
    """The wrong file is the most common mistake."""
    with pytest.raises(ConfigError, match=why):
        lines.read(text)


def test_an_unknown_event_does_not_fit() -> None:
    """A newer trace than the reader knows is not taken for a good one."""
    whole = run(1)
    trace = lines.prepared([*whole[:5], {**whole[5], "event": "Nap"}])

    assert trace.misfit is not None
    assert (6, "there is no event 'Nap'") == (trace.misfit.number, trace.misfit.why)


def test_a_trace_reads_back_as_it_was_written() -> None:
    """Lines of JSON, as `walrq spec trace` prints them."""
    whole = run(1)

    assert whole == lines.read("\n".join(map(json.dumps, whole)))


def test_merging_keeps_each_order_and_sends_before_it_receives() -> None:
    """A message that comes from nowhere stays in its place, for the judge to find."""
    whole = run(2)
    parts = [[line for line in whole if line["node"] == name] for name in NAMES]
    merged = lines.merged(parts)

    assert parts == [[line for line in merged if line["node"] == name] for name in NAMES]
    sent = set()
    for line in merged:
        if line["event"].startswith("Send"):
            sent.add(lines.said(line))
        assert not line["event"].startswith("Recv") or lines.said(line) in sent
    strangers = [line for line in parts[0] if line["event"].startswith("Recv")]
    assert strangers == lines.merged([strangers])
