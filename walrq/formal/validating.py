"""Whether recorded runs are behaviours of spec/Raft.tla: TLC decides, with spec/trace/RaftTrace.tla.

Traces of groups of the same servers go through one run. Those that cannot be followed to their ends are looked at once
more: what would the module have allowed where they stopped?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from walrq.formal import tlc
from walrq.formal.lines import COMPARED, NOBODY, Misfit, Step, Trace
from walrq.formal.models import constant
from walrq.formal.output import Verdict
from walrq.formal.tlc import Job, Report
from walrq.formal.tools import Tools
from walrq.formal.values import Function, parse, render

MODULE: Final = "RaftTrace"
OPS: Final = ("Propose", "SendAppend", "SendHeartbeat", "TransferLeader", "StepDown", "Install", "Doubt")
INVARIANTS: Final = (
    "ElectionSafety", "VoteDurableBeforeSent", "LogMatching", "PrevTermValid", "LeaderCompleteness",
    "StateMachineSafety", "CommitLeLog", "AckedDurable", "AckedOnQuorum", "MatchLeLeaderLog",
)  # fmt: skip
BIG: Final = 1_000_000


@attrs.frozen
class Judgement:
    """What became of a trace.

    Attributes:
        lines: of it were followed.
        refused: the first line that is no step of the module; None: all of them are.
        broken: an invariant of the module that a state on the way breaks; None: none.
        ends: what the module does not describe, where the trace could not be judged any further.
        story: for people: the line that does not fit, and what would have.
    """

    lines: int
    refused: int | None
    broken: str | None
    ends: str | None
    story: tuple[str, ...] = ()

    @property
    def is_accepted(self) -> bool:
        """Whether it is a behaviour of the module."""
        return self.refused is None and self.broken is None


class NoJudgement(Exception):
    """TLC ended without a word on the traces: what it said."""


def job_of(traces: Sequence[Trace], folder: Path, *, loose: Sequence[int] = (), invariants: bool = True) -> Job:
    """The run that follows these traces, which are of one group.

    Args:
        loose: for each trace the step whose outcomes are printed instead of compared; empty: none.
    """
    data = "\n".join(
        [
            "---- MODULE TraceData ----",
            "EXTENDS TLC",
            f"Loose == {render(tuple(loose) or (0,) * len(traces))}",
            "Traces == <<",
            ",\n".join("<<\n" + ",\n".join(render(step.fields) for step in trace.steps) + ">>" for trace in traces),
            ">>",
            "====",
            "",
        ]
    )
    body = [f"ASSUME TLCSet({number}, 0)" for number in range(1, len(traces) + 1)]
    run = "\n".join(["---- MODULE Run ----", f"EXTENDS {MODULE}", *body, "====", ""])
    terms = [step.raw["term"] for trace in traces for step in trace.steps]
    asks = any(trace.asks for trace in traces)
    constants: Mapping[str, Any] = {
        "Server": list(traces[0].servers),
        "Standing": list(traces[0].servers),
        "Founded": traces[0].founded,
        "MaxTerm": max(terms, default=0) + 1,
        "MaxLog": BIG,
        "MaxAsks": BIG if asks else 0,
        "MaxCrashes": 0,
        "InstantDisk": False,
        "Deposed": [],
        "AnyAppend": True,
        "Ops": list(OPS),
        "Bugs": ["none"],
    }
    config = [
        "SPECIFICATION TraceSpec",
        "CONSTANTS",
        *(f"  {name} = {constant(value)}" for name, value in constants.items()),
        "  Alive <- Kept",
        "VIEW TraceView",
        "CONSTRAINT Followed",
        *([f"INVARIANTS {' '.join(INVARIANTS)}"] if invariants else []),
        "",
    ]
    sources = {path.stem: path.read_text("utf-8") for path in (folder / "Raft.tla", folder / f"trace/{MODULE}.tla")}
    return Job(
        module="Run",
        sources={**sources, "TraceData": data, "Run": run},
        config="\n".join(config),
        options=("-deadlock", "-nowarning"),
        brief=sum(len(trace.steps) for trace in traces) < 5_000,
    )


async def validate(tools: Tools, folder: Path, traces: Sequence[Trace]) -> list[Judgement]:
    """Judge traces; `folder` has the modules.

    Raises:
        NoJudgement: TLC could not be run over them.
    """
    judged: dict[int, Judgement] = {}
    groups: dict[tuple[Any, ...], dict[int, Trace]] = {}
    for number, trace in enumerate(traces):
        groups.setdefault((trace.servers, trace.founded, trace.asks), {})[number] = trace
    for group in groups.values():
        while left := {number: trace for number, trace in group.items() if number not in judged}:
            judged |= await _judged(tools, folder, left)
    return [judged[number] for number in range(len(traces))]


async def _judged(tools: Tools, folder: Path, traces: Mapping[int, Trace]) -> dict[int, Judgement]:
    """Judgements on traces of one group: on all of them, or on one that breaks an invariant, which ends the run."""
    numbers = list(traces)
    report = await tlc.run(tools, job_of(list(traces.values()), folder))
    if report.verdict is Verdict.INVARIANT:
        last = report.transcript.trace[-1].state
        number = numbers[last["trace"] - 1]
        return {number: _broken(traces[number], last["line"] - 1, report.transcript.violated or "an invariant")}
    followed = _followed(report)
    judged: dict[int, Judgement] = {}
    stopped: dict[int, tuple[Trace, int]] = {}
    for position, (number, trace) in enumerate(traces.items(), start=1):
        steps = followed.get(position, 1) - 1
        if steps < len(trace.steps):
            stopped[number] = (trace, steps)
        elif trace.misfit is not None:
            judged[number] = _misfit(trace, trace.misfit)
        else:
            judged[number] = Judgement(_line_before(trace, steps), None, None, trace.ends)
    if stopped:
        judged |= await _refused(tools, folder, stopped)
    return judged


def _followed(report: Report) -> dict[int, int]:
    if report.verdict not in (Verdict.OK, Verdict.INVARIANT):
        raise NoJudgement(f"{report.verdict}: {report.trouble}")
    found: dict[int, int] = {}
    for text in report.transcript.printed:
        value = parse(text)
        if isinstance(value, tuple) and value[0] == "followed":
            found[value[1]] = max(found.get(value[1], 0), value[2])
    return found


def _line_before(trace: Trace, steps: int) -> int:
    return trace.steps[steps - 1].number if steps else 0


def _misfit(trace: Trace, misfit: Misfit) -> Judgement:
    story = (f"line {misfit.number} does not fit: {misfit.why}",)
    return Judgement(_line_before(trace, len(trace.steps)), misfit.number, None, None, story)


def _broken(trace: Trace, steps: int, invariant: str) -> Judgement:
    step = trace.steps[steps - 1]
    story = (f"line {step.number}: {title(step)}", f"after it {invariant} does not hold")
    return Judgement(step.number, None, invariant, None, story)


async def _refused(tools: Tools, folder: Path, stopped: Mapping[int, tuple[Trace, int]]) -> dict[int, Judgement]:
    """The stories of the first steps that cannot be taken, by one run that shows what could have been instead."""
    cut = [attrs.evolve(trace, steps=trace.steps[: steps + 1]) for trace, steps in stopped.values()]
    loose = [steps + 1 for _, steps in stopped.values()]
    report = await tlc.run(tools, job_of(cut, folder, loose=loose, invariants=False))
    allowed: dict[int, dict[Function, None]] = {}
    for value in map(parse, report.transcript.printed):
        if isinstance(value, tuple) and value[0] == "allowed":
            allowed.setdefault(value[1], {})[value[2]] = None
    judged = {}
    for position, (number, (trace, steps)) in enumerate(stopped.items(), start=1):
        story = tuple(_told(trace, steps, list(allowed.get(position, {}))))
        judged[number] = Judgement(_line_before(trace, steps), trace.steps[steps].number, None, None, story)
    return judged


def _told(trace: Trace, steps: int, allowed: Sequence[Function]) -> Iterator[str]:
    step = trace.steps[steps]
    yield f"line {step.number} does not fit: {title(step)}"
    if not allowed:
        yield f"  {_impossible(step)}"
    for number, outcome in enumerate(allowed):
        yield "  or:" if number else "  the module allows:"
        for difference in differences(step.fields["state"], outcome):
            yield f"    {difference}"
    for earlier in trace.steps[max(0, steps - 3) : steps]:
        yield f"  before, line {earlier.number}: {title(earlier)}"


def _impossible(step: Step) -> str:
    if step.fields["event"] == "Recv":
        return "no such message was under way"
    if step.fields["event"] == "Send":
        return "it has nothing like that to say"
    if step.fields["event"] == "Start":
        return "its disk cannot have been left like that"
    return "it cannot do that now"


def title(step: Step) -> str:
    """What a line says, on one line."""
    fields = step.fields
    message = fields.get("m")
    if message is None:
        return f"{fields['i']} {step.raw['event']}"
    more = ", ".join(f"{key} {render(value)}" for key, value in message.items() if key not in ("type", "from", "to"))
    way = f"to {message['to']}" if fields["event"] == "Send" else f"from {message['from']}"
    return f"{fields['i']} {step.raw['event']} {way}: {more}"


def differences(state: Function, outcome: Function) -> list[str]:
    """In what a line and the module's state differ."""
    found = []
    for name in COMPARED:
        said, allowed = state[name], outcome[name]
        if name == "match":
            said = dict(state["match"])
            allowed = {node: value for node, value in dict(allowed or {}).items() if node in said}
        if said != allowed:
            found.append(f"{name} {_shown(allowed)}, the line says {_shown(said)}")
    return found or ["another log than the line has"]


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return "nobody" if value == NOBODY else value
    return render(value)
