"""Reads a history once and says which promises it breaks.

    verdict = check(history.read(path))

The verdict is `valid` only when every invariant held and all could be judged: without a line that says the
queues were drained, nothing can be said about loss. Streaming: memory grows with the messages alive at one
time, not with the length of the history.

Never: writes, touches a network, needs the run that made the history.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from .history import Event
from .invariants import INVARIANTS, Invariant, NoSilentLoss
from .world import World


@attrs.frozen
class Finding:
    """What one invariant found. `judged` is False when the history cannot tell."""

    name: str
    promise: str
    judged: bool
    checked: int
    violations: int
    examples: tuple[str, ...]


@attrs.frozen
class Verdict:
    """The judgement of a history: findings in the order of `INVARIANTS`, and the run's counts."""

    findings: tuple[Finding, ...]
    counts: dict[str, int]
    events: int

    @property
    def violations(self) -> int:
        """Violations of all invariants."""
        return sum(finding.violations for finding in self.findings)

    @property
    def judged(self) -> bool:
        """Whether every invariant could be judged."""
        return all(finding.judged for finding in self.findings)

    @property
    def valid(self) -> bool:
        """No promise was broken, and none escaped judgement."""
        return self.violations == 0 and self.judged

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "valid": self.valid,
            "events": self.events,
            "violations": {finding.name: finding.violations for finding in self.findings},
            "checked": {finding.name: finding.checked for finding in self.findings},
            "not_judged": [finding.name for finding in self.findings if not finding.judged],
            "counts": self.counts,
            "examples": {finding.name: list(finding.examples) for finding in self.findings if finding.examples},
        }


def check(events: Iterable[Event]) -> Verdict:
    """Judge a history.

    Raises: HistoryError when the events contradict each other or hold an operation that is not modelled.
    """
    invariants = [invariant() for invariant in INVARIANTS]
    world = World(invariants)
    number = 0
    for event in events:
        number += 1
        world.event(event)
    world.end()
    return Verdict(
        findings=tuple(_finding(invariant, world) for invariant in invariants),
        counts=dict(sorted(_counts(world).items())),
        events=number,
    )


def _finding(invariant: Invariant, world: World) -> Finding:
    # Loss can be judged only once everything had its chance to come out. What was found stays found.
    judged = world.drained or not isinstance(invariant, NoSilentLoss)
    return Finding(
        name=invariant.name,
        promise=invariant.promise,
        judged=judged,
        checked=invariant.checked,
        violations=invariant.violations if judged else 0,
        examples=tuple(invariant.examples) if judged else (),
    )


def _counts(world: World) -> dict[str, int]:
    left = world.live.values()
    return {
        **world.counts,
        "messages settled for good": world.settled.count,
        "messages left": sum(message.acked is None for message in left),
        "messages left whose push is unknown": sum(
            message.acked is None and message.push.outcome != "ok" for message in left
        ),
        "disturbances": world.disturbances,
    }


def report(verdict: Verdict) -> str:
    """The verdict as a table for people."""
    width = max(len(finding.name) for finding in verdict.findings)
    lines = [f"{verdict.events} events"]
    lines += [f"  {name}: {count}" for name, count in verdict.counts.items()]
    for finding in verdict.findings:
        state = "not judged" if not finding.judged else "ok" if not finding.violations else "BROKEN"
        numbers = f"{finding.checked:>10} checked  {finding.violations:>6} broken"
        lines.append(f"{finding.name:<{width}}  {state:<10}  {numbers}  {finding.promise}")
        lines += [f"    {example}" for example in finding.examples]
    if verdict.valid:
        lines.append("valid: no promise was broken")
    elif verdict.violations:
        lines.append(f"INVALID: {verdict.violations} violations")
    else:
        lines.append("unknown: not every promise could be judged (was the run drained?)")
    return "\n".join(lines)
