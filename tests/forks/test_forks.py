"""A fork is what a fresh interpreter would be: output, status, signals, variables, streams, descriptors, children."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import walrq
from tests.cli.conftest import ROOT, make_shell
from tests.forks import processes
from tests.forks.processes import Walrq, run, words_of_command
from tests.requirements import require
from walrq.testing.server import Server

SECONDS_MAX = 180
require("linux")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables under which a fork is the same thing as an interpreter."""
    assert processes.WANTED, "WALRQ_FORKS=0 takes away what is tested here"
    return make_shell(tmp_path, None).environment


@pytest.fixture
def following(environment: dict[str, str]) -> Iterator[str]:
    """A command that prints one line and goes on for ever."""
    with Server() as server:
        environment["WALRQ_SERVER"] = f"walrq://{server.address}"
        with walrq.connect(environment["WALRQ_SERVER"]) as client:
            client.push_batch("mail", [b"hello"] * 20)
        yield "poll mail --follow --max 1 --ack"


class Interpreter(subprocess.Popen[bytes]):
    """A real one, to compare with."""

    def __init__(self, *arguments: str, **keywords: Any) -> None:
        super().__init__([sys.executable, "-m", "walrq", *arguments], **keywords)


def children() -> set[int]:
    """Process ids of this process's children."""
    return {
        int(each) for tasks in Path("/proc/self/task").iterdir() for each in (tasks / "children").read_text().split()
    }


def probe(folder: Path, environment: dict[str, str], code: str, **keywords: Any) -> Any:
    """What `code` prints as JSON, run inside a fork as the application of a worker."""
    (folder / "probe.py").write_text(
        f"import json, os, signal, sys\nprint(json.dumps({code}), flush=True)\nos._exit(0)\n"
    )
    with Walrq(
        "worker", "probe:worker", cwd=folder, env=environment, stdout=subprocess.PIPE, **{"stdin": -3} | keywords
    ) as process:
        out, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.forked
    assert 0 == process.returncode
    return json.loads(out)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["push", "--help"],
        ["pussh"],
        ["completion", "zsh"],
        ["stats", "--server", "walrq://127.0.0.1:1"],
        ["config", "show"],
    ],
    ids=" ".join,
)
def test_output_and_status_are_those_of_an_interpreter(
    tmp_path: Path, environment: dict[str, str], arguments: list[str]
) -> None:
    """Or the tests of the command line would test something that nobody runs."""
    expected = subprocess.run(
        [sys.executable, "-m", "walrq", *arguments], capture_output=True, cwd=tmp_path, env=environment, input=b""
    )

    forked = run(*arguments, cwd=tmp_path, env=environment, timeout=SECONDS_MAX)
    scripted = subprocess.run(
        ["/bin/sh", "-c", f'exec {words_of_command()} "$@"', "sh", *arguments],
        capture_output=True,
        cwd=tmp_path,
        env=environment,
        input=b"",
    )

    for ran in (forked, scripted):
        assert (expected.returncode, expected.stdout, expected.stderr) == (ran.returncode, ran.stdout, ran.stderr)


def test_a_fork_has_what_it_was_given_and_nothing_else(tmp_path: Path, environment: dict[str, str]) -> None:
    """Variables and descriptors that leak in would make a test pass, or fail, for another's sake."""
    environment["ONLY"] = "here"
    outside, inside = os.pipe()
    try:
        found = probe(
            tmp_path,
            environment,
            # The worker itself tells its tasks which server it serves.
            "[{**os.environ, 'WALRQ_SERVER': ''}, os.getcwd(), sys.path[0], sys.argv[1:], os.getppid(),"
            " sorted(os.listdir('/proc/self/fd'))[:-1]]",
        )
    finally:
        os.close(outside)
        os.close(inside)

    arguments = ["worker", "probe:worker"]
    assert [
        {**environment, "WALRQ_SERVER": ""},
        str(tmp_path),
        str(tmp_path),
        arguments,
        os.getpid(),
        ["0", "1", "2"],
    ] == found


def test_signals_are_as_at_an_interpreters_start(tmp_path: Path, environment: dict[str, str]) -> None:
    """An inherited handler, or a signal that stays blocked, would make a command deaf.

    A real interpreter started here says what is inherited rightly: a shell's background job ignores SIGINT.
    """
    code = "[sorted(int(n) for n in signal.valid_signals() if signal.getsignal(n) != signal.SIG_DFL),"
    code += " sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))]"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        found = probe(tmp_path, environment, code)
        with Interpreter(
            "worker", "probe:worker", cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        ) as process:
            out, _ = process.communicate(timeout=SECONDS_MAX)
    finally:
        signal.signal(signal.SIGHUP, before)
    expected = json.loads(out)

    assert {signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ} <= set(expected[0])
    assert [] == expected[1]
    assert expected == found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_signal_ends_a_fork_as_it_ends_an_interpreter(
    tmp_path: Path, environment: dict[str, str], following: str, number: int
) -> None:
    """By its process id, which is a child's of this process; -15, -9, and 130 for a Ctrl-C."""
    ends = []
    for forked in (False, True):
        start = Walrq if forked else Interpreter
        with start(*following.split(), cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert b"hello\n" == process.stdout.readline()
            process.send_signal(number)
            ends.append(process.wait(SECONDS_MAX))
            process.stdout.read()

    assert [130 if number == signal.SIGINT else -number] * 2 == ends


def test_a_time_out_kills_and_reaps(tmp_path: Path, environment: dict[str, str], following: str) -> None:
    """No process is left behind by a test that gave up."""
    before = children()

    with pytest.raises(subprocess.TimeoutExpired):
        run(*following.split(), cwd=tmp_path, env=environment, timeout=0.05)

    assert before == children()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_script_and_its_command_end_together(
    tmp_path: Path, environment: dict[str, str], following: str, number: int
) -> None:
    """Signals reach the command through the script; a script that is killed leaves nothing that runs."""
    read, write = os.pipe()
    script = f"exec {words_of_command()} {following}"
    with subprocess.Popen(["/bin/sh", "-c", script], cwd=tmp_path, env=environment, stdout=write) as process:
        os.close(write)
        with os.fdopen(read, "rb") as said:
            assert b"hello\n" == said.readline()
            process.send_signal(number)
            # The end of the pipe is the end of whoever had it open.
            said.read()
        assert (130 if number == signal.SIGINT else -number) == process.wait(SECONDS_MAX)


def test_a_script_lets_go_of_its_streams(tmp_path: Path, environment: dict[str, str]) -> None:
    """A pipe whose end the script held open would never end."""
    ran = subprocess.run(
        ["/bin/sh", "-c", f"{words_of_command()} --help | head -n 1"],
        capture_output=True,
        cwd=tmp_path,
        env=environment,
    )

    assert b"Usage: walrq [OPTIONS] COMMAND [ARGS]...\n" == ran.stdout


def test_a_terminal_is_seen_as_one(tmp_path: Path, environment: dict[str, str]) -> None:
    """Streams are made for what they are now, not for what the server has."""
    code = "[[s.isatty(), s.line_buffering, s.encoding, s.errors] for s in (sys.stdin, sys.stdout, sys.stderr)]"
    here, there = pty.openpty()
    try:
        found = probe(tmp_path, environment, code, stdin=there, stderr=there)
        # walrq itself has characters escaped that the terminal lacks.
        preface = "import sys; sys.stdout.reconfigure(errors='backslashreplace')\n"
        (tmp_path / "alone.py").write_text(preface + (tmp_path / "probe.py").read_text())
        alone = subprocess.run(
            [sys.executable, "alone.py"], cwd=tmp_path, env=environment, stdin=there, stderr=there, stdout=-1
        )
    finally:
        os.close(here)
        os.close(there)

    assert json.loads(alone.stdout) == found
    assert [True, False, True] == [row[0] for row in found]


def test_no_two_forks_draw_the_same(tmp_path: Path, environment: dict[str, str]) -> None:
    """Two clients with the same back-off, or the same ids, would be an accident of the tests."""
    code = "[__import__('random').random(), __import__('trio')._core._run._r.random()]"

    first, second = (probe(tmp_path, environment, code) for _ in range(2))

    assert first[0] != second[0]
    assert first[1] != second[1]


@pytest.mark.parametrize(
    ("name", "value"), [("PYTHONIOENCODING", "latin-1"), ("LC_ALL", "C.UTF-8"), ("PYTHONWARNINGS", "error")]
)
def test_what_only_a_starting_interpreter_reads_gets_one(
    tmp_path: Path, environment: dict[str, str], name: str, value: str
) -> None:
    """A fork would have the server's."""
    assert environment.get(name) != value
    environment[name] = value

    with Walrq("--version", cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) as process:
        assert 0 == process.wait(SECONDS_MAX)

    assert not process.forked


_RECORDING = """
import json, os, sys, threading
from tests.forks import server
read = set()
# One copies all variables for CGI programs, the other has settings of its own: no node or command of a test uses them.
NO_MATTER = ("wsgiref.", "prometheus_client.")
def note(key):
    frame = sys._getframe(2)
    while frame.f_globals["__name__"] in ("os", "collections.abc", "_collections_abc", "__main__"):
        frame = frame.f_back
        if frame is None:
            break
    if frame is None or not frame.f_globals["__name__"].startswith(NO_MATTER):
        read.add(key)
class Recording(type(os.environ)):
    def __getitem__(self, key):
        note(key)
        return super().__getitem__(key)
    def get(self, key, default=None):
        note(key)
        return super().get(key, default)
os.environ.__class__ = Recording
os.getenv = os.environ.get
before = [id(getattr(sys, name)) for name in ("stdin", "stdout", "stderr")]
server.load()
import gc
kept = [
    owner.get("__name__", str(owner)[:80]) if isinstance(owner, dict) else repr(owner)[:80]
    for stream in (sys.stdin, sys.stdout, sys.stderr)
    for owner in gc.get_referrers(stream)
    # The main thread keeps one for the case that sys.stderr is None.
    if not any(owner is each for each in (sys.__dict__, globals(), threading.main_thread()))
    and not isinstance(owner, (type(sys._getframe()), tuple))
]
print(json.dumps([sorted(name for name in read if name not in server.settled({name: ''})), kept, 'LANGUAGE' in read]))
"""


def test_importing_reads_no_variable_and_keeps_no_stream(environment: dict[str, str]) -> None:
    """What was read before the fork is what the server was started with: a test's own setting would be ignored."""
    ran = subprocess.run([sys.executable, "-c", _RECORDING], capture_output=True, env=environment, cwd=ROOT, check=True)
    read, kept, noticed = json.loads(ran.stdout)

    assert [[], []] == [kept, read]
    # What translates click's texts looks for the language, so that an empty list is no accident.
    assert noticed
