"""The image: what it holds, whom it runs as, and that its two commands work as they stand there."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from pathlib import Path

from tests.cli.conftest import Shell, make_shell
from tests.deploy.reading import DEPLOY, ROOT, health_command, instructions, last_stage, one, settings
from tests.requirements import require
from walrq.daemon.config import VARIABLES

FOUND = instructions((DEPLOY / "Dockerfile").read_text())
IMAGE = last_stage(FOUND)


def test_a_file_is_read_as_docker_reads_it() -> None:
    """Each of the checks below is only as good as the reading."""
    text = '# c\nFROM a AS b\nRUN x \\\n && y\nFROM c\nENV A=1 \\\n    B="2 3"\nCMD ["d"]\n'
    found = instructions(text)

    assert [("FROM", "a AS b"), ("RUN", "x && y"), ("FROM", "c"), ("ENV", 'A=1 B="2 3"'), ("CMD", '["d"]')] == found
    assert ("FROM", "c") == last_stage(found)[0]
    assert {"A": "1", "B": "2 3"} == settings(found)


def test_it_is_nobody_in_particular_and_writes_to_its_volume_only() -> None:
    """A process that runs as root, or can change its own code, needs one mistake less to be taken over."""
    user, group = one(IMAGE, "USER").split(":")

    assert int(user) > 0 < int(group), "numbers, so that an orchestrator can see that it is not root"
    assert settings(IMAGE)["WALRQ_DATA_DIR"] == one(IMAGE, "VOLUME") == one(IMAGE, "WORKDIR")
    assert "SIGTERM" == one(IMAGE, "STOPSIGNAL")
    assert "1" == settings(IMAGE)["PYTHONDONTWRITEBYTECODE"]


def test_every_variable_is_one_that_a_node_reads() -> None:
    """A setting mistyped here would be a default in production."""
    ours = {name for name in settings(IMAGE) if name.startswith("WALRQ_")}

    assert ours
    assert set() == ours - set(VARIABLES)


def test_what_is_copied_is_there_and_enough_for_the_wheel() -> None:
    """A folder that is forgotten breaks the build long after the commit; so does one that the ignore file hides."""
    copied = {
        part for word, rest in FOUND if word == "COPY" and not rest.startswith("--") for part in rest.split()[:-1]
    }
    ignored = [line for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[0] != "#"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {name.partition("/")[0] for name in project["tool"]["setuptools"]["package-dir"].values()}
    needed |= {"pyproject.toml", *project["project"]["license-files"]}

    assert set() == needed - copied
    assert [] == [name for name in copied if not (ROOT / name).exists()]
    assert "*" == ignored[0]
    assert set() == copied - {name.removeprefix("!") for name in ignored}


def test_the_python_of_the_image_is_one_that_the_package_supports() -> None:
    """The oldest that is supported is no reason to ship the oldest."""
    version = one([each for each in FOUND if each[0] == "ARG"], "ARG").partition("=")[2]
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]

    assert f"Programming Language :: Python :: {version}" in listed
    assert 2 == sum("${PYTHON}" in rest for word, rest in FOUND if word == "FROM")


def container(folder: Path, data: Path, port: int) -> Shell:
    """A shell with the image's variables, but for paths and addresses of this machine."""
    shell = make_shell(folder, None)
    path = shell.environment["PATH"]
    shell.environment.update(settings(IMAGE))
    shell.environment.update(PATH=path, WALRQ_DATA_DIR=str(data), WALRQ_LISTEN=f"127.0.0.1:{port}")
    return shell


def test_the_image_starts_a_node_that_its_health_check_finds(tmp_path: Path) -> None:
    """Both commands as they stand there; and the check must be able to fail."""
    entry = json.loads(one(IMAGE, "ENTRYPOINT")) + json.loads(one(IMAGE, "CMD"))
    shell = container(tmp_path, tmp_path / "data", 0)
    check = health_command(IMAGE)
    assert entry[0] == check[0] == "walrq"

    with shell.popen(*entry[1:]) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            port = int(ready["endpoints"]["cbor"].rpartition(":")[2])
            words = [re.sub(r"127\.0\.0\.1:50051", f"127.0.0.1:{port}", word) for word in check[1:]]
            well = shell.walrq(*words)
            written = list(open_for_writing(process.pid))
        finally:
            process.terminate()
            process.communicate()
    gone = shell.walrq(*words)

    assert 0 == process.returncode
    assert (0, ready["node"]) == (well.returncode, json.loads(well.stdout)["node"])
    assert 0 != gone.returncode
    assert written
    assert [] == [path for path in written if not path.is_relative_to(tmp_path / "data")]


def open_for_writing(pid: int) -> list[Path]:
    """Regular files that a process has open and may write to."""
    require("linux")
    found = []
    for each in os.listdir(f"/proc/{pid}/fd"):
        path = Path(f"/proc/{pid}/fd/{each}")
        flags = int(re.findall(r"flags:\s*(\d+)", Path(f"/proc/{pid}/fdinfo/{each}").read_text())[0], 8)
        if stat.S_ISREG(path.stat().st_mode) and flags & (os.O_WRONLY | os.O_RDWR):
            found.append(path.readlink())
    return found
