"""The manifest: what it says of models and mutants is true of the modules."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import attrs
import pytest

from walrq.errors import ConfigError
from walrq.formal.checking import never_taken, problems
from walrq.formal.models import MANIFEST, Model, job_of, load
from walrq.formal.output import Transcript, Verdict
from walrq.formal.tlc import Report
from walrq.formal.tools import find_tools, specification

ROOT = Path(__file__).resolve().parents[2]
MANIFESTED = load(ROOT / "spec")
by_module = pytest.mark.parametrize("module", MANIFESTED.modules)


def source(module: str) -> str:
    """The text of one of our modules."""
    return (ROOT / f"spec/{module}.tla").read_text()


def test_every_module_has_models() -> None:
    """A module that nobody runs is a drawing."""
    assert {path.stem for path in (ROOT / "spec").glob("*.tla")} == set(MANIFESTED.modules)


@by_module
def test_every_property_of_the_manifest_is_defined(module: str) -> None:
    """TLC would say so as well, but only when that model is run."""
    models = [model for model in MANIFESTED.models if model.module == module]
    named = {name for each in models for name in (*each.invariants, *each.steps, *each.properties, *each.reaches)}
    named |= {each.specification for each in models}

    assert set() == {name for name in named if not re.search(rf"^{name} ==", source(module), flags=re.MULTILINE)}


@by_module
def test_every_module_has_a_model_that_must_fail(module: str) -> None:
    """A guard or a bound that hides the interesting states would make everything true."""
    assert [] != [model for model in MANIFESTED.models if model.module == module and (model.expect is not Verdict.OK)]


@by_module
def test_every_fault_that_a_module_knows_is_a_mutant(module: str) -> None:
    """A switch that nobody turns shows nothing, and a mutant without a switch is not one."""
    text = re.sub(r"\(\*.*?\*\)", "", source(module), flags=re.DOTALL)
    known = set(re.findall(r'\bbug [=#] "(\w+)"', text))

    assert {mutant.name for mutant in MANIFESTED.mutants if mutant.module == module} == known
    assert not any("none" != bug for model in MANIFESTED.models for bug in model.constants["Bugs"])


@by_module
def test_every_mutant_breaks_a_property_of_its_model(module: str) -> None:
    """Which property notices is part of what is known about a mutant."""
    for mutant in MANIFESTED.mutants:
        if mutant.module == module:
            model = MANIFESTED.model(module, mutant.model)
            assert mutant.breaks in (*model.invariants, *model.steps), mutant.name


def test_every_model_that_must_hold_has_its_counts() -> None:
    """Without them nobody would notice that a change made the search smaller.

    Those of the deep ones are in the table of docs/formal.md, for a search of an hour is not repeated for each change.
    """
    assert [] == [
        model.title
        for model in MANIFESTED.models
        if model.expect is Verdict.OK
        and model.set in ("small", "full")
        and (model.distinct is None or model.depth is None)
    ]


def test_twins_are_mutants_of_the_code() -> None:
    """The pair is the point: one fault, seen by the model checker and by the tests."""
    there = {
        row["id"]
        for path in (ROOT / "tests/mutants").glob("*.toml")
        for row in tomllib.loads(path.read_text())["mutant"]
    }

    assert set() == {mutant.twin for mutant in MANIFESTED.mutants if mutant.twin is not None} - there


MODEL = MANIFESTED.model("Queue", "leases")


def report(**transcript: object) -> Report:
    """A run that ended well, with that transcript."""
    return Report(Verdict.OK, Transcript(**transcript), {}, 1.0, 0)  # type: ignore[arg-type]


def seen(model: Model) -> list[str]:
    """What a run prints that reached all it should."""
    return [f'<<"reached", "{name}">>' for name in model.reaches]


def test_every_difference_from_the_manifest_is_a_problem() -> None:
    """Drift is reported, not averaged away; each kind is tried once."""
    same = {"distinct": MODEL.distinct, "depth": MODEL.depth, "printed": seen(MODEL)}
    shallow = {**same, "depth": 1}
    blind = {**same, "printed": seen(MODEL)[1:]}
    witness = attrs.evolve(MODEL, expect=Verdict.INVARIANT, violated="Bound")
    other = attrs.evolve(report(violated="TypeOK", printed=seen(MODEL)), verdict=Verdict.INVARIANT)

    assert [] == problems(MODEL, report(**same))
    assert [f"depth: {MODEL.depth} in the manifest, 1 now"] == problems(MODEL, report(**shallow))
    assert [f"never reached: {MODEL.reaches[0]}"] == problems(MODEL, report(**blind))
    assert ["expected invariant violated, found ok"] == problems(witness, report(**same))
    assert ["expected Bound to be violated, found TypeOK"] == problems(witness, other)


def test_an_action_that_was_never_taken_is_named() -> None:
    """It would check nothing."""
    from walrq.formal.checking import Outcome

    taken = [f'<<"taken", "{name}">>' for name in MODEL.actions if name != "Touch"]

    assert ["Queue.Touch"] == never_taken([Outcome(MODEL, report(printed=taken), ())])


def test_what_tlc_is_given_holds_the_model() -> None:
    """Constants, properties and notes; a list of the manifest is a set."""
    job = job_of(MODEL)

    assert "  Visibilities = {1}\n" in job.config
    assert 'PrintT(<<"reached", "SeenTwoLeases">>)' in job.sources["Run"]
    assert "StepExclusive == [][Exclusive]_vars" in job.sources["Run"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[Nope.models.a]\nwhat = 'x'", "no module Nope.tla"),
        ("[Queue.models.a]\nwhat = 'x'\nstes = []", "no key 'stes'"),
        ("[Queue.models.a]\nwhat = 'x'\nset = 'big'", "set is one of small, full, deep, walk"),
        ("[Queue", "Expected"),
    ],
)
def test_a_mistake_in_the_manifest_is_one_line(tmp_path: Path, text: str, why: str) -> None:
    """Whoever adds a model gets told what is wrong with it."""
    (tmp_path / "Queue.tla").write_text("---- MODULE Queue ----\n====\n")
    (tmp_path / MANIFEST).write_text(text)

    with pytest.raises(ConfigError, match=why):
        load(tmp_path)


def test_the_specification_is_found_beside_the_package() -> None:
    """In a checkout it is the folder that people edit."""
    assert ROOT / "spec" == specification()


def test_a_missing_tool_is_named_with_the_way_to_get_it(tmp_path: Path) -> None:
    """The first run on a new machine ends here."""
    with pytest.raises(ConfigError, match="WALRQ_JAVA: there is no program /nowhere/java"):
        find_tools({"WALRQ_JAVA": "/nowhere/java"})
    java = tmp_path / "java"
    java.write_text("")
    java.chmod(0o755)
    with pytest.raises(ConfigError, match=r"TLA2TOOLS_JAR: there is no file /nowhere\.jar"):
        find_tools({"WALRQ_JAVA": str(java), "TLA2TOOLS_JAR": "/nowhere.jar"})


def test_a_machine_without_java_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the package nor a system's Java."""
    monkeypatch.setattr("walrq.formal.tools._package", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs Java, and there is none; `pip install 'walrq\[spec\]'`"):
        find_tools({"PATH": "/nowhere"})
    with pytest.raises(ConfigError, match=r"needs tla2tools\.jar"):
        find_tools({"WALRQ_JAVA": "/bin/sh"})
