"""README.md is run word for word against a real daemon.

Only what belongs to the reader's machine is replaced: `make run` starts this checkout's daemon on a free
port, `pkill` kills that one only (and waits until the consumer is in the middle of its work), `git log`
prints a long history, and /tmp is a folder of the test.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT, Shell, make_shell, script
from tests.ports import free_port, free_range
from tests.test_docs import blocks

README = (ROOT / "README.md").read_text()
LINES = 300
MIDDLE = 60


def of_language(language: str) -> list[str]:
    """The README's blocks of a language."""
    return [body for _, kind, body in blocks(README) if kind == language]


def words_of_run() -> list[str]:
    """What `make run` starts, by the Makefile's own words."""
    (line,) = [
        line
        for line in (ROOT / "Makefile").read_text().split("\nrun:")[1].split("\n\n")[0].splitlines()
        if "walrq" in line
    ]
    return line.partition("/bin/")[2].removesuffix(" $(ARGS)").split()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Shell]:
    """The reader's machine: see the module's text."""
    port = free_port()
    # Of the doors that it opens by itself the usual ports may be others' here.
    free_doors = " ".join(f"--{name}-listen 127.0.0.1:0" for name in ("ws", "resp", "http"))
    shell = make_shell(tmp_path, f"walrq://127.0.0.1:{port}")
    programs = tmp_path / "bin"
    activate = tmp_path / ".venv/bin/activate"
    activate.parent.mkdir(parents=True)
    activate.write_text("")
    script(
        programs / "make",
        'test "$1" = run || exit 1',
        f"{' '.join(words_of_run())} --data-dir data --listen 127.0.0.1:{port} {free_doors} > ready 2> log &",
        "echo $! > pid",
        # The shell's own patience: bounded, and the readiness line is the event.
        "for _ in $(seq 300); do grep -q ready ready && exit 0; sleep 0.1; done; cat log >&2; exit 1",
    )
    script(
        programs / "pkill",
        'test "$*" = "-9 -n -u $(id -u) -f walrq serve" || exit 1',
        f'for _ in $(seq 600); do test "$(wc -l < {tmp_path}/done.log)" -ge {MIDDLE} && break; sleep 0.05; done',
        "wc -l < done.log > killed-at",
        "exec kill -9 $(cat pid)",
    )
    script(programs / "git", 'test "$*" = "log --stat" || exit 1', f"seq -f 'commit %g, some text' {LINES}")
    yield shell
    pid = tmp_path / "pid"
    if pid.exists():
        subprocess.run(["kill", "-9", pid.read_text().strip()], capture_output=True)


def test_the_quick_start_survives_its_own_kill(machine: Shell, tmp_path: Path) -> None:
    """The first thing a stranger tries: nothing lost, nothing twice, in order."""
    commands = [line[2:] for body in of_language("console") for line in body.splitlines() if line[:2] == "$ "]
    text = "\n".join(["set -e", *commands]).replace("/tmp/", f"{tmp_path}/").replace("--wait 10", "--wait 3")

    ran = machine(text)

    # How long the restart took is the machine's business; the consumer tells of a long one.
    told = re.sub(
        r"^walrq: (waiting for 127\.0\.0\.1:\d+ \.\.\.|127\.0\.0\.1:\d+ is back)\n", "", ran.stderr.decode(), flags=re.M
    )
    assert (0, "") == (ran.returncode, told)
    assert [f"pushed {LINES} messages to history", "identical"] == ran.stdout.decode().splitlines()
    assert MIDDLE <= int((tmp_path / "killed-at").read_text()) < LINES, "it was killed in the middle"


def test_the_python_examples_run(machine: Shell, tmp_path: Path) -> None:
    """Copied, pasted, works."""
    assert 0 == machine("make run").returncode
    outputs = []
    for body in of_language("python"):
        (tmp_path / "example.py").write_text(body)
        ran = machine(f'"{sys.executable}" example.py')
        assert (0, "") == (ran.returncode, ran.stderr.decode())
        outputs.append(ran.stdout.decode())
        if len(outputs) == 1:
            assert b"" == machine("walrq queue list").stdout, "it cleans up after itself"

    assert 3 == len(outputs)
    first, second = outputs[0].splitlines()
    assert '{"to":"you@example.org"}' in first
    assert "b'hello'" in second
    assert ["b'one'", "b'two'", "b'three'"] == outputs[1].splitlines()[-3:]
    # The last one, as the worker that the README starts then: until it has handled the call.
    (tmp_path / "example.py").rename(tmp_path / "jobs.py")
    ran = machine(
        "(walrq worker jobs:worker --concurrency 8 > worker.out 2> worker.log & echo $! > worker.pid);"
        " for _ in $(seq 300); do grep -q ada worker.out && break; sleep 0.1; done;"
        " kill $(cat worker.pid); cat worker.out"
    )
    assert "welcome to ada@example.org" == ran.stdout.decode().strip()


def test_make_run_starts_the_daemon_that_is_killed_here() -> None:
    """The stand-in for make and pkill does what the real ones do."""
    assert ["walrq", "serve", "--all-doors"] == words_of_run()


def test_the_cluster_survives_the_loss_of_its_leader(tmp_path: Path) -> None:
    """The section on three nodes: both blocks as they stand there, but for the ports."""
    start, lose = [body for body in of_language("sh") if "50061" in body]
    ports = frozenset(int(port) for port in re.findall(r"50\d\d\d", lose))
    assert {50061, 50062, 50063} == ports
    shift = free_range(ports | {port + 100 for port in ports})

    def here(text: str) -> str:
        return re.sub(
            r"\b50\d\d\d\b", lambda found: str(int(found[0]) + shift), text.replace("walrq ", "exec walrq ", 1)
        )

    shell = make_shell(tmp_path, None)
    shell.environment["WALRQ_MAX_WAL_SEGMENT_SIZE"] = "4MiB"
    with subprocess.Popen(
        ["/bin/sh", "-c", here(start)], cwd=tmp_path, env=shell.environment, stdout=subprocess.PIPE
    ) as cluster:
        try:
            assert cluster.stdout is not None
            assert b"ready" in cluster.stdout.readline()
            until = "until walrq cluster status > status; do sleep 0.1; done\n"
            ran = shell(here(lose).replace("exec ", "", 1).replace("walrq push", f"{until}walrq push", 1))
            statuses = [line.split("\t") for line in ran.stdout.decode().splitlines() if "\t" in line]
        finally:
            cluster.terminate()
            cluster.communicate()

    assert 0 == ran.returncode, ran.stderr.decode()
    assert "hello" in ran.stdout.decode().splitlines()
    assert ["voter", "voter", "leader"] == sorted((row[1] for row in statuses[:3]), reverse=True)
    lost = statuses[3:]
    assert 1 == sum(row[6] == "unreachable" for row in lost)
    assert 1 == sum(row[1] == "leader" for row in lost)
    assert 0 == cluster.returncode
