"""TLC as a child process: small modules of the tests' own, and the models that every run checks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from tests.requirements import require
from tests.spec.test_walks import BOUND
from walrq.formal import checking, models, tlc
from walrq.formal.models import load
from walrq.formal.output import Progress, Verdict
from walrq.formal.tools import find_tools
from walrq.formal.values import Function

require("java")

ROOT = Path(__file__).resolve().parents[2]
TOOLS = find_tools(os.environ)
MANIFESTED = load(ROOT / "spec")
SMALL = [model for model in MANIFESTED.models if model.set == "small" and model not in BOUND]

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

    Those that are bound to the code are looked at in test_walks.py, in the same search.
    """
    outcome = await checking.check(TOOLS, model)

    assert () == outcome.problems
