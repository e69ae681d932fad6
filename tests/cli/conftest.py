"""A daemon, and the command line as people run it: in a shell, with `walrq` on the PATH."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import pytest

from tests.forks.nodes import Node
from tests.forks.processes import Walrq, run, words_of_command

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS_MAX = 180


@attrs.frozen
class Shell:
    """Runs commands as a person would, with a chosen environment."""

    folder: Path
    environment: dict[str, str]

    def __call__(self, command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run a shell command."""
        return subprocess.run(
            ["/bin/sh", "-c", command],
            input=stdin,
            capture_output=True,
            cwd=self.folder,
            env=self.environment,
            timeout=SECONDS_MAX,
        )

    def walrq(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run one walrq command without a shell."""
        return run(*arguments, stdin=stdin, cwd=self.folder, env=self.environment, timeout=SECONDS_MAX)

    def seen(self, *arguments: str) -> tuple[int, bytes, str]:
        """(exit status, standard output in a pipe, standard error on a terminal) of one walrq command."""
        here, there = pty.openpty()
        with os.fdopen(here, "rb", buffering=0) as terminal, os.fdopen(there, "wb", buffering=0) as end:
            with self.popen(*arguments, stderr=end.fileno()) as process:
                out, _ = process.communicate(timeout=SECONDS_MAX)
            end.write(b"\x04")
            shown = b""
            while not shown.endswith(b"\x04"):
                shown += terminal.read(65_536)
        return process.returncode, out, shown[:-1].decode().replace("\r\n", "\n")

    def popen(
        self, *arguments: str, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE
    ) -> subprocess.Popen[bytes]:
        """Start one walrq command; its pipes are the caller's to close."""
        return Walrq(
            *arguments,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            cwd=self.folder,
            env=self.environment,
        )


def make_shell(folder: Path, server: str | None) -> Shell:
    """A shell in `folder` whose PATH begins with a `walrq` of this checkout."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    script(programs / "walrq", f'exec {words_of_command()} "$@"')
    environment = {
        name: setting
        for name, setting in os.environ.items()
        if not name.startswith("WALRQ_") and name not in ("DATA_DIR", "NODE_ID", "PYTHONDONTWRITEBYTECODE")
    }
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    environment["PYTHONPATH"] = str(ROOT)
    environment["NO_COLOR"] = "1"
    environment["XDG_CONFIG_HOME"] = str(folder / "config")
    if server is not None:
        environment["WALRQ_SERVER"] = server
    return Shell(folder, environment)


def script(path: Path, *lines: str) -> None:
    """Write an executable shell script."""
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)


def text_of(lines: Sequence[str]) -> bytes:
    """Lines as a file's bytes."""
    return "".join(f"{line}\n" for line in lines).encode()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A daemon shared by the tests of a module; each uses queues of its own."""
    with Node(tmp_path_factory.mktemp("node") / "data") as started:
        yield started.start()


@pytest.fixture
def shell(node: Node, tmp_path: Path) -> Shell:
    """A shell whose WALRQ_SERVER is the shared daemon."""
    return make_shell(tmp_path, node.url)
