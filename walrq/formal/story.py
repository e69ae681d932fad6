"""A counterexample for people: which action, what it changed, and what had been promised. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from walrq.formal.output import Step
from walrq.formal.values import Function, render

# Variables that name the action's arguments; shown beside its name, not as a change.
_ACT = "act"


def tell(trace: Sequence[Step], back_to: int | None = None) -> Iterator[str]:
    """The lines of the story: one per step, then one per change."""
    before: Function | None = None
    for number, step in enumerate(trace, start=1):
        yield f"{number:>3}. {_title(step)}"
        if before is None:
            yield from (f"       {name} = {render(value)}" for name, value in step.state.items() if name != _ACT)
        else:
            changes = [
                line
                for name, value in step.state.items()
                if name != _ACT
                for line in changed(name, before.get(name), value)
            ]
            yield from (f"       {line}" for line in changes or ["nothing changes"])
        before = step.state
    if back_to is not None:
        yield "     and nothing happens any more" if back_to == 0 else f"     and so on from {back_to}. for ever"


def _title(step: Step) -> str:
    act = step.state.get(_ACT)
    name = step.action or "at the start"
    if not isinstance(act, Function) or step.action is None:
        return name
    arguments = ", ".join(f"{key}={render(value)}" for key, value in act.items() if key != "op")
    return f"{act.get('op', name)}({arguments})"


def changed(name: str, before: Any, after: Any) -> Iterator[str]:
    """What differs between two values, as deep as it is the same shape."""
    if before == after:
        return
    if isinstance(before, Function) and isinstance(after, Function) and before.keys() == after.keys():
        for key in after:
            part = f"{name}.{key}" if isinstance(key, str) else f"{name}[{render(key)}]"
            yield from changed(part, before[key], after[key])
    elif isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after):
        for position, (old, new) in enumerate(zip(before, after, strict=True), start=1):
            yield from changed(f"{name}[{position}]", old, new)
    elif isinstance(before, frozenset) and isinstance(after, frozenset):
        signs = [f"+ {render(each)}" for each in after - before] + [f"- {render(each)}" for each in before - after]
        yield f"{name}: {', '.join(sorted(signs))}"
    elif before is None:
        yield f"{name} = {render(after)}"
    else:
        yield f"{name}: {render(before)} -> {render(after)}"
