"""House rules that a reviewer would otherwise have to remember, held by the suite."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import walrq
from tests.requirements import require

ROOT = Path(__file__).resolve().parent.parent
TEXT_BYTES_MAX = 2_000_000
LICENSED_FOLDERS = ("walrq", "chaos", "bench", "spec", "tests", "docs", "deploy", ".ci")

# Written in pieces, so that this file does not accuse itself.
MACHINE_PATHS = re.compile(r"(?<![\w.])/(work|" + "root|farm" + r")(/[\w.]|\b(?=[\s\"'`)]))")
HOSTS = [("pypi.", "org"), ("python", "hosted.org"), ("registry.", "npmjs"), ("deb.", "debian.org")]
REGISTRY_HOSTS = re.compile("|".join(re.escape(front + back) for front, back in HOSTS))
SKIPS = re.compile(r"\b(pytest\.skip|skipif|importorskip|unittest\.skip|mark\." + r"skip)\b")


def tracked_files() -> list[Path]:
    """Every text file that git tracks, or would track; without git, every file of the known folders."""
    if shutil.which("git") and (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        ).stdout.decode()
        paths = [ROOT / name for name in listed.split("\0") if name]
    else:
        paths = [path for folder in LICENSED_FOLDERS for path in (ROOT / folder).rglob("*")]
        paths += [*ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "Makefile"]
    return sorted(
        path
        for path in paths
        if path.is_file() and "__pycache__" not in path.parts and path.stat().st_size <= TEXT_BYTES_MAX
    )


def texts() -> list[tuple[str, str]]:
    """(path, text) of every tracked file that is UTF-8 text."""
    found = []
    for path in tracked_files():
        raw = path.read_bytes()
        if b"\0" in raw:
            continue
        found.append((str(path.relative_to(ROOT)), raw.decode("utf-8", "replace")))
    return found


def lines_matching(pattern: re.Pattern[str], *, under: tuple[str, ...] = ("",)) -> list[str]:
    """`path:line: text` of each line that matches."""
    return [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in texts()
        if name.startswith(under)
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("see /" + "work/main/x", True),
        ("cd /" + "root", False),  # the end of a line is not yet a path into it
        ("ls /" + "root/.cache", True),
        ("`/" + "work`", True),
        ("a path like /var/lib/walrq", False),
        ("the network/" + "root/x of a name", False),
        ("docs/" + "root/x", False),
    ],
)
def test_the_pattern_knows_a_machine_path(text: str, is_one: bool) -> None:
    """The rule below is only as good as its pattern."""
    assert is_one == bool(MACHINE_PATHS.search(text))


def test_no_file_names_a_machine_path_or_a_registry() -> None:
    """What works only where it was written does not belong here."""
    assert [] == lines_matching(MACHINE_PATHS)
    assert [] == lines_matching(REGISTRY_HOSTS)


def test_no_stub_is_left() -> None:
    """A feature is there or it is not; docs/features.md says which."""
    stub = re.compile(r"NotImplemented" + r"Error|\b(TODO|FIXME|XXX)\b")

    assert [] == lines_matching(stub, under=("walrq/", "chaos/", "bench/", "spec/"))


def test_tests_skip_only_through_require() -> None:
    """One door for skips, so that the table at the end of a run is complete."""
    found = [
        line
        for line in lines_matching(SKIPS, under=("tests/",))
        if not line.startswith(("tests/requirements.py:", "tests/test_repository.py:"))
    ]

    assert [] == found


def test_tests_do_not_sleep() -> None:
    """A sleep is a guess about another task's speed; waiting for the event is not."""
    sleep = re.compile(r"\b(time|trio|anyio|asyncio)\.sleep\((0\.0*[1-9]|[1-9])")
    # Under Trio's mock clock a sleep moves the clock and takes no time.
    mocked = {name for name, text in texts() if re.search(r"\b(MockClock|mock_clock|autojump_clock)\b", text)}
    found = [
        line
        for line in lines_matching(sleep, under=("tests/",))
        if not (line.partition(":")[0] in mocked and "trio.sleep" in line)
    ]

    assert [] == found


def python_files(folder: str) -> list[Path]:
    """Python files below a folder of the repository."""
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("folder", ["walrq", "chaos", "bench", "spec", "tests"])
def test_every_module_says_what_it_is(folder: str) -> None:
    """A module opens with what it is and what it never does."""
    silent = [
        str(path.relative_to(ROOT))
        for path in python_files(folder)
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]

    assert [] == silent


def test_every_test_makes_a_promise() -> None:
    """A test's docstring is one sentence that says why the promise in its name matters."""
    silent = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path in python_files("tests")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]

    assert [] == silent


def test_every_limit_has_a_reason() -> None:
    """A bound without its reason gets changed by whoever meets it first."""
    lines = (ROOT / "walrq/limits.py").read_text().splitlines()
    silent = []
    for number, line in enumerate(lines):
        if not re.match(r"[A-Z][A-Z0-9_]* *(:[^=]+)?=", line) or line.startswith(("KIB:", "MIB:")):
            continue
        above = number - 1
        # Limits that share one comment stand in one block under it.
        while above >= 0 and re.match(r"[A-Z][A-Z0-9_]* *(:[^=]+)?=", lines[above]):
            above -= 1
        before = lines[above].lstrip() if above >= 0 else ""
        after = lines[number + 1].lstrip() if number + 1 < len(lines) else ""
        if "#" not in line and not before.startswith("#") and not after.startswith('"""'):
            silent.append(f"walrq/limits.py:{number + 1}: {line}")

    assert [] == silent


def pyproject() -> dict[str, object]:
    """The parsed pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_is_one() -> None:
    """What `walrq --version` says is what pip installed."""
    project = pyproject()["project"]
    assert isinstance(project, dict)

    assert walrq.__version__ == project["version"]


def test_every_package_is_in_the_wheels_list() -> None:
    """A folder forgotten in the list works in a checkout and is missing after pip install."""
    tool = pyproject()["tool"]
    assert isinstance(tool, dict)
    listed = set(tool["setuptools"]["packages"])
    mapped = {"walrq._bench": "bench", "walrq._chaos": "chaos", "walrq._spec": "spec"}

    def names(folder: str, dotted: str) -> set[str]:
        base = ROOT / folder
        folders = {path.parent for path in base.rglob("*.py")}
        return {".".join([dotted, *path.relative_to(base).parts]) for path in folders}

    expected = names("walrq", "walrq") | set(mapped)
    for dotted, folder in mapped.items():
        expected |= names(folder, dotted)

    assert expected == listed


def test_make_help_names_every_target() -> None:
    """The list at the top of the Makefile is what a newcomer sees first."""
    require("make")
    shown = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    text = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)

    assert set(phony.split()) - {"help"} == set(re.findall(r"^make (\w+)", shown, flags=re.MULTILINE))


def test_a_script_beside_the_clone_finds_the_package(tmp_path: Path) -> None:
    """A clone is called walrq too: its folder must not hide what it holds."""
    makefile = (ROOT / "Makefile").read_text()
    (command,) = re.findall(r"^ON_PATH := \$\(PY\) (.*)$", makefile, re.MULTILINE)
    assert 3 == makefile.count("\t@$(ON_PATH)\n"), "all installations"
    (tmp_path / "walrq").symlink_to(ROOT)
    (tmp_path / "script.py").write_text("import walrq\nprint(walrq.__version__)\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run(f'"{python}" {command}', shell=True, cwd=tmp_path / "walrq", check=True)

    ran = subprocess.run([python, "script.py"], cwd=tmp_path, capture_output=True, text=True, env={})

    assert (0, "") == (ran.returncode, ran.stderr)
