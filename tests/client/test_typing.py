"""What type checkers make of walrq in a user's project: everything is known, and mistakes are found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import walrq
from walrq import aio, errors

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLE = Path(__file__).with_name("sample_user.py")
# Programs as users write them: this one, and those of the other folders that have one.
SAMPLES = sorted([SAMPLE, *ROOT.glob("tests/*/sample.py")])


def run(*command: str, cwd: Path) -> str:
    """Standard output of a checker that sees this checkout as an installed package."""
    # `--verifytypes` takes no interpreter: it looks for the packages of whichever Python comes first on PATH.
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = {**os.environ, "MYPYPATH": str(ROOT), "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "PATH": programs}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode in (0, 1), done.stderr + done.stdout
    return done.stdout


def pyright(folder: Path, *files: Path) -> list[tuple[str, str]]:
    """(rule, message) of every complaint of pyright's strict mode about files of a user's project."""
    settings = {
        "include": [str(each) for each in files],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "extraPaths": [str(ROOT)],
        "reportMissingTypeStubs": "error",
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    told = run("basedpyright", "--outputjson", "--project", str(folder), "--pythonpath", sys.executable, cwd=folder)
    result: dict[str, Any] = json.loads(told)
    assert len(files) == result["summary"]["filesAnalyzed"]
    return [
        (each.get("rule", ""), f"{each['range']['start']}: {each['message']}") for each in result["generalDiagnostics"]
    ]


def mypy(folder: Path, *files: Path) -> list[str]:
    """Every complaint of `mypy --strict` about files of a user's project."""
    told = run("mypy", "--strict", "--cache-dir", str(folder), "--no-error-summary", *map(str, files), cwd=folder)
    return [line for line in told.splitlines() if ": error:" in line]


def test_a_users_program_passes_mypy_strict(tmp_path: Path) -> None:
    """`py.typed` is a promise."""
    assert [] == mypy(tmp_path, *SAMPLES)


def test_a_users_program_passes_pyright_strict(tmp_path: Path) -> None:
    """Pyright also complains about what it only partly knows, which mypy passes over."""
    assert [] == pyright(tmp_path, *SAMPLES)


MISTAKES = {
    "nothing to push": 'queue.push("q")',
    "a payload and json": 'queue.push("q", b"x", json=1)',
    "a number as payload": 'queue.push("q", 5)',
    "one payload where a list belongs": 'queue.push_batch("q", 5)',
    "a mode that is none": 'queue.nack(queue.poll("q"), "drop")',
    "half a handle": 'queue.ack("q", "id")',
    "a text as time": 'queue.poll("q", "30")',
    "await on a blocking call": 'reveal_type(queue.push("q", b"x").result)',
    "a settled attribute that is read-only": 'queue.poll("q")[0].settled = True',
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[int]]:
    """Which lines each checker complains about when every mistake stands on a line of its own."""
    folder = tmp_path_factory.mktemp("mistakes")
    lines = ["import walrq", "", "queue = walrq.connect()", *MISTAKES.values()]
    wrong = folder / "wrong.py"
    wrong.write_text("\n".join(lines) + "\n")
    by_mypy = {int(line.split(":")[1]) for line in mypy(folder, wrong)}
    by_pyright = {int(text.split("'line': ")[1].split(",")[0]) + 1 for _, text in pyright(folder, wrong)}
    return {"mypy": by_mypy, "pyright": by_pyright}


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_before_it_runs(found: dict[str, set[int]], checker: str, mistake: str) -> None:
    """Types that accept everything would pass the tests above too."""
    assert 4 + list(MISTAKES).index(mistake) in found[checker]


@cache
def completeness() -> dict[str, Any]:
    """What pyright says of each name that the package exports."""
    told = run("basedpyright", "--outputjson", "--ignoreexternal", "--verifytypes", "walrq", cwd=ROOT)
    report: dict[str, Any] = json.loads(told)["typeCompleteness"]
    return report


def public_names() -> list[str]:
    """Everything a user is told to import."""
    names = [f"walrq.{name}" for name in walrq.__all__ if name != "__version__"]
    names += [f"walrq.aio.{name}" for name in aio.__all__]
    return names + [f"walrq.errors.{error.error.__name__}" for error in errors.ERRORS.values()]


def test_no_public_name_has_a_type_that_is_not_known() -> None:
    """One unknown type in a public class makes every program that uses it unknown in part."""
    seen = {each["name"]: each for each in completeness()["symbols"]}
    names = [name for name in public_names() if name != "walrq.aio"]
    unknown = [name for name in names if name in seen and not seen[name]["isTypeKnown"]]

    assert len([name for name in names if name in seen]) > 30, "the report is not about the names that are public"
    assert [] == unknown
