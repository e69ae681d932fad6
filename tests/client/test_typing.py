"""What type checkers make of walrq in a user's project: everything is known, and mistakes are found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import attrs
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


def pyright(folder: Path, *files: Path) -> dict[str, list[tuple[int, str]]]:
    """(line, message) of every complaint of pyright's strict mode about files of a user's project, by file."""
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
    complaints: dict[str, list[tuple[int, str]]] = {str(each): [] for each in files}
    for each in result["generalDiagnostics"]:
        place = each["range"]["start"]["line"] + 1
        complaints[each["file"]].append((place, f"{each.get('rule', '')}: {each['message']}"))
    return complaints


def mypy(folder: Path, *files: Path) -> dict[str, list[tuple[int, str]]]:
    """(line, message) of every complaint of `mypy --strict` about files of a user's project, by file."""
    told = run("mypy", "--strict", "--cache-dir", str(folder), "--no-error-summary", *map(str, files), cwd=folder)
    complaints: dict[str, list[tuple[int, str]]] = {str(each): [] for each in files}
    for line in told.splitlines():
        file, found, message = line.partition(": error:")
        if found:
            name, _, place = file.rpartition(":")
            complaints.setdefault(str((folder / name).resolve()), []).append((int(place), message))
    return complaints


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


@attrs.frozen
class Verdict:
    """What a checker complains about.

    Attributes:
        samples: everything about programs that have no mistake, and about walrq.
        mistakes: the lines of the program in which every mistake stands on a line of its own.
    """

    samples: list[str]
    mistakes: set[int]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    """Each checker's verdict. It reads everything at once: its start costs more than all that it says."""
    folder = tmp_path_factory.mktemp("project").resolve()
    lines = ["import walrq", "", "queue = walrq.connect()", *MISTAKES.values()]
    wrong = folder / "wrong.py"
    wrong.write_text("\n".join(lines) + "\n")
    verdicts = {}
    for checker in (mypy, pyright):
        complaints = checker(folder, wrong, *SAMPLES)
        mistakes = {line for line, _ in complaints.pop(str(wrong))}
        others = [f"{file}:{line}: {text}" for file, each in complaints.items() for line, text in each]
        verdicts[checker.__name__] = Verdict(others, mistakes)
    return verdicts


def test_a_users_program_passes_mypy_strict(found: dict[str, Verdict]) -> None:
    """`py.typed` is a promise."""
    assert [] == found["mypy"].samples


def test_a_users_program_passes_pyright_strict(found: dict[str, Verdict]) -> None:
    """Pyright also complains about what it only partly knows, which mypy passes over."""
    assert [] == found["pyright"].samples


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_before_it_runs(found: dict[str, Verdict], checker: str, mistake: str) -> None:
    """Types that accept everything would pass the tests above too."""
    assert 4 + list(MISTAKES).index(mistake) in found[checker].mistakes


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
