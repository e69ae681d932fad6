"""`walrq top` on a terminal, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

import walrq
from tests.forks import processes
from tests.forks.nodes import Node
from tests.live.terminal import ROOT, Terminal

ENTER = "\x1b[?1049h\x1b[?25l"
LEAVE = "\x1b[?25h\x1b[?1049l"
FAST = ("--interval", "50ms")


def test_it_shows_queues_obeys_keys_and_leaves_the_terminal_as_it_was(
    node: Node, client: walrq.Client, tmp_path: Path
) -> None:
    """The whole life of the view: numbers, sorting, a filter, the end."""
    client.push_batch("top-a", [b"x"] * 3)
    client.push("top-b", b"x")
    with Terminal("top", *FAST, "--prefix", "top-", "--server", node.url, folder=tmp_path) as terminal:
        picture = terminal.wait_for("top-b")
        assert "4 ready" in picture
        assert picture.index("top-a") < picture.index("top-b")
        assert terminal.before != terminal.settings(), "keys come one by one"
        terminal.type("s")
        terminal.wait_for("↓ready")
        client.push_batch("top-b", [b"x"] * 9)
        terminal.wait_for(lambda shown: "13 ready" in shown and shown.index("top-b") < shown.index("top-a"))
        terminal.type("/-a\r")
        terminal.wait_for(lambda shown: "filter '-a'" in shown and "top-b" not in shown)
        terminal.type("q")
        assert 0 == terminal.wait()

        assert terminal.before == terminal.settings()
        assert ENTER in terminal.output
        assert terminal.output.endswith(LEAVE)


def test_a_rate_is_seen(node: Node, client: walrq.Client, tmp_path: Path) -> None:
    """Pushes show as pushes per second."""
    with Terminal("top", *FAST, "--prefix", "rate", "--server", node.url, folder=tmp_path) as terminal:
        terminal.wait_for("0 queues")

        def is_moving(shown: str) -> bool:
            client.push_batch("rate", [b"x"] * 10)
            row = next((line for line in shown.splitlines() if line.startswith("rate ")), "rate 0 0 0 0 0")
            return row.split()[5] not in ("-", "0")

        terminal.wait_for(is_moving)
        terminal.type("q")
        assert 0 == terminal.wait()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_ends_it_and_the_terminal_is_put_back(
    node: Node, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    """Nobody has to type `reset`."""
    with Terminal("top", *FAST, "--server", node.url, folder=tmp_path) as terminal:
        terminal.wait_for("q quit")
        terminal.process.send_signal(number)
        assert status == terminal.wait()

        assert terminal.before == terminal.settings()
        assert terminal.output.endswith(LEAVE)
        assert "Traceback" not in terminal.output


def test_suspended_it_gives_the_terminal_back_until_it_goes_on(node: Node, tmp_path: Path) -> None:
    """Ctrl-Z is for looking at something else."""
    with Terminal("top", *FAST, "--server", node.url, folder=tmp_path) as terminal:
        terminal.wait_for("q quit")
        terminal.process.send_signal(signal.SIGTSTP)
        _, status = os.waitpid(terminal.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        while terminal.read(0.05):
            pass
        assert terminal.before == terminal.settings()
        assert terminal.output.endswith(LEAVE)
        terminal.output = ""
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait_for("q quit")
        assert ENTER in terminal.output
        terminal.type("q")
        assert 0 == terminal.wait()

        assert terminal.before == terminal.settings()


def test_another_size_is_another_picture(node: Node, client: walrq.Client, tmp_path: Path) -> None:
    """The window is made larger: more columns, at once."""
    client.push("size", b"x")
    with Terminal("top", "--interval", "1h", "--server", node.url, folder=tmp_path) as terminal:
        assert "parked" not in terminal.wait_for("q quit")
        terminal.resize(140, 40)
        terminal.process.send_signal(signal.SIGWINCH)
        # The key makes the picture before it complete.
        terminal.type("j")
        assert 40 == len(terminal.wait_for("parked").split("\n"))


def test_it_outlives_a_restart_of_the_node(tmp_path: Path) -> None:
    """It says that it waits, keeps what it knew, and goes on by itself."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with Node(tmp_path / "data", listen=f"127.0.0.1:{port}") as node:
        node.start()
        with walrq.connect(node.url) as client:
            client.push("kept", b"x")
        with Terminal("top", *FAST, "--server", node.url, folder=tmp_path) as terminal:
            terminal.wait_for("kept")
            node.kill()
            assert "kept" in terminal.wait_for("reconnecting")
            node.start()
            terminal.wait_for(lambda shown: "kept" in shown and "reconnecting" not in shown)
            node.kill()
            terminal.wait_for("reconnecting")
            # Also while nobody answers a key is a key.
            terminal.type("q")
            assert 0 == terminal.wait()


def run(node: Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a pipe."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = processes.run("top", *arguments, "--server", node.url, env=environment, timeout=60)
    return subprocess.CompletedProcess(ran.args, ran.returncode, ran.stdout.decode(), ran.stderr.decode())


def test_once_prints_one_table_with_rates(node: Node, client: walrq.Client) -> None:
    """For scripts and for a quick look: two looks, one table."""
    client.push_batch("once", [b"x"] * 5)
    client.poll("once", max_messages=2)
    printed = run(node, "--once", *FAST, "--prefix", "once")

    (row,) = printed.stdout.splitlines()
    assert ["once", "3", "0", "2", "0", "0", "0", "0"] == row.split("\t")[:8]
    assert (0, "") == (printed.returncode, printed.stderr)


def test_json_is_one_object_for_each_look(node: Node, client: walrq.Client) -> None:
    """The first has no rates, those after it have."""
    client.push("json", b"x")
    command = ["top", "--json", *FAST, "--prefix", "json", "--server", node.url]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with processes.Walrq(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        first, second = (json.loads(watching.stdout.readline()) for _ in range(2))
        watching.send_signal(signal.SIGINT)
        assert b"" == watching.stderr.read().strip()
        watching.stdout.read()

    assert 130 == watching.returncode
    assert (None, None) == (first["turns_s"], first["queues"][0]["push_s"])
    assert 0 == second["queues"][0]["push_s"]
    assert ("json", 1, 1) == tuple(second["queues"][0][name] for name in ("queue", "ready", "pushed"))
    assert node.ready["node"] == second["node"]["node"]
    assert [] == json.loads(run(node, "--once", "--json", *FAST, "--prefix", "absent").stdout)["queues"]


def test_without_a_terminal_it_says_what_to_add(node: Node) -> None:
    """A picture in a log file helps nobody."""
    printed = run(node)

    assert (2, "") == (printed.returncode, printed.stdout)
    assert "--once" in printed.stderr
    assert "--json" in printed.stderr
    assert 2 == run(node, "--once", "--interval", "0").returncode


def test_no_server_is_one_line_and_the_terminal_is_not_touched(tmp_path: Path) -> None:
    """The first mistake of all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with Terminal("top", "--server", f"walrq://127.0.0.1:{port}", folder=tmp_path) as terminal:
        assert 5 == terminal.wait()

        assert "walrq serve" in terminal.output
        assert 1 == len(terminal.output.split("\r\n")[:-1])
        assert "\x1b[?1049h" not in terminal.output
