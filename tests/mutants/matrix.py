"""Who notices which mutant, and how soon: the tables of docs/mutants.md, which the runs themselves write.

A row is a mutant and a technique. `make mutants` brings those of the code, `make spec` those that the modules of the
specification know. A run that looked at some mutants replaces their rows and leaves the others; rows of mutants that
are no more go. Seconds are those that passed until the first failure, of one technique alone: of a test its own, of
TLC those from the start of a run that tries all mutants of a model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from tests.mutants.catalogue import ROOT, Mutant, mutants
from walrq.formal.models import load

PAGE: Final = ROOT / "docs/mutants.md"
CODE, SPEC = "code", "spec"
HEADS: Final[Mapping[str, tuple[str, ...]]] = {
    CODE: ("mutant", "what", "breaks", "technique", "noticed by", "s"),
    SPEC: ("mutant", "what", "breaks", "twin", "noticed by", "after steps", "s"),
}
SURVIVED: Final = "—"
# Seconds of a run on a machine that was busy with other things say nothing, and are not written down.
UNTIMED: Final = -1.0
UNKNOWN: Final = "?"
# Techniques, the strongest claim first; in the table in this order.
SPECIFICATION, REPLAY, TRACE, SIMULATION, TEST = "TLC", "replay", "trace", "simulation", "test"
TECHNIQUES: Final = (SPECIFICATION, REPLAY, TRACE, SIMULATION, TEST)
# What each module of the specification is bound to: whose mutants TLC, or what it made, could notice.
BOUND: Final[Mapping[str, tuple[str, ...]]] = {
    "Queue": tuple(f"walrq/queues/{name}.py" for name in "machine leases death pending queue lanes clocks".split()),
    "Session": ("walrq/queues/sessions.py",),
    "Raft": tuple(f"walrq/raft/{name}.py" for name in "core election leader log node quorum unstable progress".split()),
    "Wal": tuple(f"walrq/storage/{name}.py" for name in "recovery wal segment record".split()),
}
_SIMULATIONS: Final = (
    "tests/raft/test_world.py",
    "tests/simulator/",
    "tests/queues/test_against_model.py",
    "tests/storage/test_crash_enumeration.py",
    "tests/queues/test_horizon.py",
)


def technique_of(killer: str) -> str:
    """Of a test's name."""
    if killer.startswith("tests/spec/test_traces.py"):
        return TRACE
    if killer.startswith("tests/spec/"):
        return REPLAY
    return SIMULATION if killer.startswith(_SIMULATIONS) else TEST


@attrs.frozen(order=True)
class Row:
    """A mutant of the code and what one technique said: the test that failed first and after how long; "": none."""

    mutant: str
    technique: str
    by: str
    seconds: float


def modules_for(mutant: Mutant) -> list[str]:
    """Modules whose bindings run the code that it changes."""
    return [module for module, files in BOUND.items() if mutant.file in files]


def twins() -> dict[str, list[str]]:
    """Mutants of modules, as Module.name, by the mutant of the code of the same kind."""
    found: dict[str, list[str]] = {}
    for each in load(ROOT / "spec").mutants:
        if each.twin is not None:
            found.setdefault(each.twin, []).append(f"{each.module}.{each.name}")
    return found


def is_in_reach(mutant: Mutant) -> bool:
    """Whether TLC could notice it: a module has it as a switch, or is bound to the file."""
    return mutant.equivalent is None and (bool(modules_for(mutant)) or mutant.id in twins())


# --- the page -----------------------------------------------------------------------------------------------
def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown."""
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(each.replace('|', '/') for each in row)} |" for row in rows)])


def rows_in(text: str, name: str) -> list[list[str]]:
    """The rows of a table between its markers."""
    lines = between(text, name).strip().splitlines()[2:]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines if line.startswith("|")]


def _markers(name: str) -> tuple[str, str]:
    return f"<!-- {name}: written by the run -->\n", f"<!-- end of {name} -->\n"


def between(text: str, name: str) -> str:
    """What stands between the markers of a part."""
    begin, end = _markers(name)
    return text.partition(begin)[2].partition(end)[0]


def replaced(text: str, name: str, part: str) -> str:
    """The page with another part between its markers."""
    begin, end = _markers(name)
    before, found, rest = text.partition(begin)
    assert found, f"there is no place for {name}"
    return f"{before}{begin}{part.strip()}\n{end}{rest.partition(end)[2]}"


def seconds_in(cell: str) -> float:
    """What a cell of the last column says."""
    return UNTIMED if cell == UNKNOWN else float(cell)


def read(page: Path = PAGE) -> list[Row]:
    """The rows of the code's mutants."""
    found = []
    for mutant, _, _, technique, by, seconds in rows_in(page.read_text(), CODE):
        if technique in TECHNIQUES:
            found.append(Row(mutant, technique, "" if by == SURVIVED else by.strip("`"), seconds_in(seconds)))
    return found


def write(new: Iterable[Row], page: Path = PAGE) -> str:
    """Put rows of a run into the page; its summary."""
    all_mutants = {mutant.id: mutant for mutant in mutants()}
    kept = {(row.mutant, row.technique): row for row in read(page)}
    kept |= {(row.mutant, row.technique): row for row in new}
    order = {name: at for at, name in enumerate(TECHNIQUES)}
    rows = sorted(
        (row for row in kept.values() if row.mutant in all_mutants), key=lambda row: (row.mutant, order[row.technique])
    )
    lines = []
    for mutant in all_mutants.values():
        if mutant.equivalent is not None:
            lines.append([mutant.id, mutant.what, mutant.breaks, f"equivalent: {mutant.equivalent}", "", ""])
        for row in rows:
            if row.mutant == mutant.id:
                by = f"`{row.by}`" if row.by else SURVIVED
                seconds = UNKNOWN if row.seconds == UNTIMED else f"{row.seconds:.1f}"
                lines.append([mutant.id, mutant.what, mutant.breaks, row.technique, by, seconds])
    said = summary(rows, all_mutants.values())
    text = page.read_text()
    text = replaced(text, "score", said)
    page.write_text(replaced(text, CODE, table(HEADS[CODE], lines)))
    return said


def summary(rows: Iterable[Row], of: Iterable[Mutant]) -> str:
    """The score, in words."""
    living = [mutant for mutant in of if mutant.equivalent is None]
    killed: dict[str, set[str]] = {technique: set() for technique in TECHNIQUES}
    tried: set[str] = set()
    for row in rows:
        tried.add(row.mutant)
        if row.by:
            killed[row.technique].add(row.mutant)
    formal = killed[SPECIFICATION] | killed[REPLAY] | killed[TRACE]
    reach = {mutant.id for mutant in living if is_in_reach(mutant)}
    anyhow = set().union(*killed.values())
    seen = [mutant.id for mutant in living if mutant.id in tried]
    share = f"{100 * len(formal & reach) / len(reach):.0f}%" if reach else "none"
    return "\n".join(
        [
            f"- {len(living)} mutants of the code that are not equivalent; {len(seen)} of them have been tried by the"
            f" runs that this page holds, {len(anyhow & set(seen))} were noticed.",
            f"- {len(reach)} are in reach of the modules: a module has the same fault as a switch, or is bound to the"
            f" code that they change. {len(formal & reach)} of these, {share}, were noticed by TLC, by a replay of what"
            f" it made, or by traces before it.",
            *(f"- {technique}: {len(killed[technique])}" for technique in TECHNIQUES),
            f"- in reach, and not noticed by these (or not tried by them yet): {_listed(reach - formal)}",
        ]
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names, key=lambda name: [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", name)]))
