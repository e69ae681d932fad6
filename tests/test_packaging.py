"""What pip installs, tried outside the checkout: the wheel, the sdist, and the programs in them.

Built once for all tests of this file from a copy of the tracked files, without a network: the build backend and the
dependencies are those of the environment that runs the tests.
"""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from email.message import Message
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.test_repository import tracked_files

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
SECONDS_MAX = 120
MAPPED = {"bench": "walrq/_bench", "chaos": "walrq/_chaos", "spec": "walrq/_spec", "walrq": "walrq"}
# Nothing of the outside reaches a build: no network, no settings of the person who runs the tests.
QUIET = ("--quiet", "--disable-pip-version-check", "--no-input")
ALONE = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_", "WALRQ_"))},
    "PIP_NO_INDEX": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def run(*command: str | Path, cwd: Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run to the end; what it said is in the failure."""
    ran = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=SECONDS_MAX,
        env={**ALONE, **settings.pop("env", {})}, **settings,
    )  # fmt: skip
    assert 0 == ran.returncode, (command, ran.stdout[-2_000:], ran.stderr[-4_000:])
    return ran


def wheel_of(tree: Path, into: Path) -> Path:
    """Build a tree's wheel."""
    into.mkdir()
    run(sys.executable, "-m", "pip", "wheel", *QUIET, "--no-deps", "--no-build-isolation", "-w", into, tree, cwd=into)
    (wheel,) = into.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outside the checkout."""
    return tmp_path_factory.mktemp("packaging")


@pytest.fixture(scope="module")
def tree(folder: Path) -> Path:
    """A copy of every file that belongs to the repository, and of nothing else."""
    copy = folder / "tree"
    for path in tracked_files():
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return copy


@pytest.fixture(scope="module")
def sdist(folder: Path, tree: Path) -> Path:
    """The source archive, built as `python -m build --sdist` would."""
    into = folder / "sdist"
    into.mkdir()
    clean = folder / "tree_of_sdist"
    shutil.copytree(tree, clean)
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", build, into, cwd=clean)
    (archive,) = into.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def wheel(folder: Path, tree: Path) -> Path:
    """The wheel, built from the tree."""
    clean = folder / "tree_of_wheel"
    shutil.copytree(tree, clean)
    return wheel_of(clean, folder / "wheel")


@attrs.frozen
class Installed:
    """A fresh environment with the wheel in it, and the dependencies of the tests' environment behind it."""

    home: Path
    folder: Path

    def __call__(self, *command: str, **settings: Any) -> subprocess.CompletedProcess[str]:
        """Run one of its programs outside the checkout."""
        return run(self.home / "bin" / command[0], *command[1:], cwd=self.folder, **settings)


@pytest.fixture(scope="module")
def installed(folder: Path, wheel: Path) -> Installed:
    """`pip install walrq`, in an environment without the checkout."""
    home = folder / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=folder)
    (site,) = home.glob("lib/python*/site-packages")
    # Behind its own folder on the path, and without the .pth files in it: an editable walrq there is not seen.
    dependencies = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    (site / "dependencies_of_the_tests.pth").write_text("\n".join(dependencies) + "\n")
    pip = (sys.executable, "-m", "pip", "--python", home / "bin/python")
    run(*pip, "install", *QUIET, "--no-deps", "--force-reinstall", "--no-warn-script-location", wheel, cwd=folder)
    outside = folder / "outside"
    outside.mkdir()
    return Installed(home, outside)


def names_in(wheel: Path) -> list[str]:
    """What the wheel would install, its metadata left out."""
    with zipfile.ZipFile(wheel) as archive:
        return sorted(name for name in archive.namelist() if ".dist-info/" not in name)


def metadata(wheel: Path, file: str) -> str:
    """A file of the wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(f".dist-info/{file}")]
        return archive.read(name).decode()


def project() -> dict[str, Any]:
    """What pyproject.toml says."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


# --- the wheel ----------------------------------------------------------------------------------------------
def test_the_wheel_holds_every_module_and_installs_one_name(wheel: Path, tree: Path) -> None:
    """Names that common (chaos, bench, tests) belong to the user; ours live inside walrq, and none is forgotten."""
    modules = {
        f"{inside}/{path.relative_to(tree / outside)}"
        for outside, inside in MAPPED.items()
        for path in (tree / outside).rglob("*.py")
    }
    found = names_in(wheel)

    assert {"walrq"} == {name.split("/")[0] for name in found}
    assert modules == {name for name in found if name.endswith(".py")}


def test_the_wheel_holds_what_the_modules_read(wheel: Path, tree: Path) -> None:
    """Types for type checkers, contracts and models for `walrq spec`, scenarios for walrq-chaos."""
    data = {
        f"{inside}/{path.relative_to(tree / outside)}"
        for outside, inside in MAPPED.items()
        for path in (tree / outside).rglob("*")
        if path.is_file()
        and path.suffix in {".cddl", ".tla", ".cfg", ".json", ".toml", ".patch", ".html", ".js", ".css"}
    }
    found = names_in(wheel)

    assert "walrq/py.typed" in found
    assert {f"walrq/web/{path.name}" for path in (tree / "walrq/web").iterdir()} <= set(found)
    assert "walrq/_spec/protocol.cddl" in found
    assert set() == data - set(found)


def test_the_wheel_is_for_every_platform(wheel: Path) -> None:
    """One install, no compiler."""
    tags = email.message_from_string(metadata(wheel, "WHEEL"))

    assert "true" == tags["Root-Is-Purelib"]
    assert ["py3-none-any"] == tags.get_all("Tag")


def test_the_metadata_is_what_the_project_says(wheel: Path) -> None:
    """What an index shows and what a resolver decides by."""
    said = project()
    found: Message = email.message_from_string(metadata(wheel, "METADATA"))

    assert (said["name"], said["version"]) == (found["Name"], found["Version"])
    assert set(said["requires-python"].split(",")) == set(found["Requires-Python"].split(","))
    assert ">=3.11" in said["requires-python"]
    assert "MIT" == said["license"] == found["License-Expression"]
    assert ["LICENSE"] == found.get_all("License-File")
    assert "MIT License" in metadata(wheel, "licenses/LICENSE").splitlines()[0]
    assert set(said["optional-dependencies"]) == set(found.get_all("Provides-Extra", []))
    required = found.get_all("Requires-Dist", [])
    plain = {re.split(r"[\s<>=!~;\[(]", line)[0].lower() for line in required if "extra ==" not in line}
    assert {re.split(r"[<>=!~;\[]", line)[0].lower() for line in said["dependencies"]} == plain
    assert found["Summary"] == said["description"]


def test_every_entry_point_leads_into_the_wheel(wheel: Path) -> None:
    """A script that starts what was not installed is found by the first user otherwise."""
    found = names_in(wheel)
    points = re.findall(r"^([\w.-]+) = ([\w.]+)(?::(\w+))?$", metadata(wheel, "entry_points.txt"), re.MULTILINE)

    assert {"walrq", "walrq-bench", "walrq-chaos", "walrq.testing.plugin"} == {name for name, _, _ in points}
    for name, module, _ in points:
        path = module.replace(".", "/")
        assert {f"{path}.py", f"{path}/__init__.py"} & set(found), f"{name} starts {module}, not in the wheel"


# --- the sdist ----------------------------------------------------------------------------------------------
def test_the_sdist_holds_the_repository_and_nothing_else(sdist: Path, tree: Path) -> None:
    """Whoever packages it further runs the suite and builds the docs from it."""
    with tarfile.open(sdist) as archive:
        found = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    made = {name for name in found if name in ("PKG-INFO", "setup.cfg") or name.startswith("walrq.egg-info/")}
    kept = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    # What belongs to the hosting of the repository, not to its contents.
    hosting = {name for name in kept if name.startswith(".")}

    assert kept - hosting == found - made


def test_the_wheel_of_the_sdist_is_the_wheel_of_the_tree(folder: Path, sdist: Path, wheel: Path) -> None:
    """A file that the sdist lacks would be missing for whoever builds from it."""
    into = folder / "unpacked"
    with tarfile.open(sdist) as archive:
        # Python 3.11.4 brought the filter; what is unpacked was packed by this test.
        archive.extractall(into, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (unpacked,) = into.iterdir()
    again = wheel_of(unpacked, folder / "wheel_of_sdist")

    assert wheel.name == again.name
    assert names_in(wheel) == names_in(again)
    for file in ("METADATA", "entry_points.txt"):
        assert metadata(wheel, file) == metadata(again, file)


# --- installed ----------------------------------------------------------------------------------------------
def test_the_installed_package_is_the_one_that_runs(installed: Installed) -> None:
    """The tests below would be worth nothing if they met the checkout."""
    said = installed("python", "-c", "import walrq; print(walrq.__file__); print(walrq.__version__)").stdout.split()

    assert said[0].startswith(str(installed.home))
    assert project()["version"] == said[1]


@pytest.mark.parametrize(
    "command",
    [("walrq", "--version"), ("python", "-m", "walrq", "--version")],
    ids=" ".join,
)
def test_the_command_line_says_its_version(installed: Installed, command: Sequence[str]) -> None:
    """The script and the module are one program."""
    assert f"walrq {project()['version']}" == installed(*command).stdout.strip()


@pytest.mark.parametrize("program", ["walrq", "walrq-chaos", "walrq-bench"])
def test_every_program_helps(installed: Installed, program: str) -> None:
    """Each starts, and calls itself what its user typed."""
    shown = installed(program, "--help").stdout

    assert program in shown.splitlines()[0]


def test_every_installed_module_can_be_imported(installed: Installed) -> None:
    """A module that needs a file or a name of the checkout fails here and nowhere else."""
    code = """
import importlib, json, pkgutil, sys, walrq
names = [m.name for m in pkgutil.walk_packages(walrq.__path__, "walrq.") if not m.name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
strangers = {"tests", "chaos", "bench", "spec"} & set(sys.modules)
print(json.dumps([names, sorted(strangers)]))
"""
    names, strangers = json.loads(installed("python", "-W", "error", "-c", code).stdout)

    assert [] == strangers
    assert {"walrq.daemon.supervisor", "walrq.testing.plugin", "walrq._chaos.soak", "walrq._bench.load"} <= set(names)


def test_a_queue_works_from_the_first_command_to_the_last(installed: Installed) -> None:
    """serve, push, poll, acknowledge, kill -9, serve again, and a backup of all that."""
    data = installed.folder / "data"
    serve = [installed.home / "bin/walrq", "serve", "--data-dir", data, "--listen", "127.0.0.1:0"]
    url = ""
    for life in ("first", "second"):
        with (installed.folder / f"{life}.log").open("wb") as log:
            node = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=log, cwd=installed.folder, env=ALONE)
        try:
            assert node.stdout is not None
            ready = json.loads(node.stdout.readline())
            url = f"walrq://{ready['endpoints']['cbor']}"
            env = {"WALRQ_SERVER": url}
            if life == "first":
                installed("walrq", "push", "mail", "one", "two", env=env)
                assert "one\n" == installed("walrq", "poll", "mail", "--max", "1", "--ack", env=env).stdout
                node.send_signal(signal.SIGKILL)
                node.wait(SECONDS_MAX)
            else:
                installed("walrq", "backup", "mail.walrq-backup", env=env)
                assert "two\n" == installed("walrq", "poll", "mail", "--ack", env=env).stdout
                node.send_signal(signal.SIGTERM)
                assert 0 == node.wait(SECONDS_MAX)
        finally:
            node.kill()
            node.wait(SECONDS_MAX)
            assert node.stdout is not None
            node.stdout.close()

    assert "1 messages" in installed("walrq", "restore", "mail.walrq-backup", "--check").stdout


def test_its_pytest_plugin_is_there_without_being_asked_for(installed: Installed) -> None:
    """`pip install walrq` is all it takes to test with a real node."""
    (installed.folder / "test_of_a_user.py").write_text(
        "def test_a_message_comes_back(walrq_client):\n"
        '    walrq_client.push("mail", b"hello")\n'
        '    (message,) = walrq_client.poll("mail")\n'
        '    assert b"hello" == message.payload\n'
        "    walrq_client.ack(message)\n"
    )
    said = installed("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_of_a_user.py").stdout

    assert "1 passed" in said


def test_a_short_soak_runs_from_the_wheel(installed: Installed) -> None:
    """CI pipelines run the chaos suite of the installed package."""
    said = installed("walrq-chaos", "soak", "--duration", "1", "--seed", "1").stdout

    assert json.loads(said.splitlines()[-1])
