"""Systems that lack a name: the whole small story, in processes from which the names were taken before they began.

A `sitecustomize.py` on the path takes them away; what the names were is not guessed at by version or platform.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.requirements import ROOT
from walrq.testing.node import Node

SECONDS_MAX = 180

# The standard library and Trio choose by the platform's name, or have chosen when they were compiled: what they need
# on Linux (Trio its epoll, asyncio its signals, socketpair its Unix sockets) stays theirs. walrq's code finds nothing.
TAKE_AWAY = """
import asyncio, os, select, selectors, signal, socket, sys, types
import trio._core._io_epoll as loop
loop.select = types.SimpleNamespace(**vars(select))

for module, names in {names!r}.items():
    for name in names:
        delattr(sys.modules[module], name)

for name in ("epoll", "poll"):
    if not hasattr(select, name):
        delattr(selectors, name.capitalize() + "Selector")
selectors.DefaultSelector = getattr(selectors, "PollSelector", selectors.SelectSelector)

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {modules!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

for name in {modules!r}:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Absent())
"""

EPOLL = [name for name in dir(__import__("select")) if name.startswith(("epoll", "EPOLL"))]
KEEP_ALIVE = ["TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"]
# What macOS has not, or had not in some version, and two names that others lack.
LIKE_MACOS = {
    "select": EPOLL,
    "os": ["fdatasync", "posix_fallocate", "pwritev", "register_at_fork"],
    "socket": KEEP_ALIVE,
    "signal": ["SIGHUP"],
}
LIKE_WINDOWS = {
    "select": [*EPOLL, "poll"],
    "os": [
        "fdatasync", "posix_fallocate", "pwritev", "preadv", "pwrite", "pread", "register_at_fork", "fork", "O_CLOEXEC",
        "getuid", "geteuid", "killpg", "uname", "sysconf",
    ],
    "socket": KEEP_ALIVE,
    "signal": ["SIGHUP", "SIGTSTP", "SIGWINCH", "SIGKILL", "SIGSTOP", "SIGCHLD", "SIGQUIT"],
}  # fmt: skip
NO_MODULES_OF_WINDOWS = ["fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "curses", "syslog"]


def environment(folder: Path, names: dict[str, list[str]], modules: tuple[str, ...] = ()) -> dict[str, str]:
    """Processes with it start without these names."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(TAKE_AWAY.format(names=names, modules=modules))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def python(code: str, env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run some code."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True, timeout=SECONDS_MAX
    )


def walrq(node: Node, env: dict[str, str], *arguments: str) -> str:
    """Run a command of the command line; what it printed."""
    ran = subprocess.run(
        [sys.executable, "-m", "walrq", *arguments],
        env={**env, "WALRQ_SERVER": node.url},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert (0, "") == (ran.returncode, ran.stderr), (arguments, ran)
    return ran.stdout


def test_the_names_are_really_taken_away(tmp_path: Path) -> None:
    """The stories below would prove nothing if the names were there."""
    env = environment(tmp_path / "site", LIKE_MACOS, ("fcntl",))
    code = """
import os, select, signal, socket
assert not hasattr(select, "epoll") and not hasattr(select, "EPOLLIN")
assert not hasattr(os, "fdatasync") and not hasattr(socket, "TCP_KEEPIDLE") and not hasattr(signal, "SIGHUP")
try:
    import fcntl
except ModuleNotFoundError:
    print("taken")
"""
    ran = python(code, env)

    assert (0, "taken\n", "") == (ran.returncode, ran.stdout, ran.stderr)


@pytest.mark.parametrize("fsync", ["always", "interval:20"])
def test_a_node_serves_and_survives_where_linux_is_not(tmp_path: Path, fsync: str) -> None:
    """serve, push, poll, ack, kill -9, restart, a clean stop: without epoll, fdatasync, posix_fallocate and others."""
    env = environment(tmp_path / "site", LIKE_MACOS)
    with Node(tmp_path / "data", flags=("--fsync", fsync, "--max-wal-segment-size", "256KiB"), environment=env) as node:
        node.start()
        walrq(node, env, "push", "jobs", "one", "two", "three")
        assert "one\n" == walrq(node, env, "poll", "jobs", "--max", "1", "--ack")
        held = json.loads(walrq(node, env, "poll", "jobs", "--max", "1", "--visibility", "600", "--json"))
        node.kill()
        node.start()
        walrq(node, env, "ack", "jobs", held["message_id"], held["receipt_handle"])
        assert "three\n" == walrq(node, env, "poll", "jobs", "--ack")
        walrq(node, env, "backup", str(tmp_path / "x.backup"))

        assert 0 == node.stop()
    words = node.log.read_text()
    assert "Traceback" not in words and "WARNING" not in words


def test_the_reactor_is_refused_in_one_line_where_there_is_no_epoll(tmp_path: Path) -> None:
    """A setting that this system cannot have is a wrong setting, not a mistake of ours."""
    env = environment(tmp_path / "site", LIKE_MACOS)
    arguments = ["serve", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--front", "reactor"]
    ran = subprocess.run(
        [sys.executable, "-m", "walrq", *arguments], env=env, capture_output=True, text=True, timeout=SECONDS_MAX
    )

    assert 78 == ran.returncode, ran.stderr
    assert "this system has no epoll" in ran.stderr
    assert 1 == len(ran.stderr.splitlines())
    assert "" == ran.stdout


CLIENT = """
import sys, threading
import walrq
with walrq.connect(sys.argv[1]) as queue:
    queue.push("jobs", b"sync")
    (message,) = queue.poll("jobs")
    assert message.payload == b"sync"
    queue.ack(message)
    thread = threading.Thread(target=queue.push, args=("jobs", b"from a thread"))
    thread.start(); thread.join()
import asyncio
from walrq import aio
async def main():
    async with aio.connect(sys.argv[1]) as queue:
        (message,) = await queue.poll("jobs")
        assert message.payload == b"from a thread"
        await queue.ack(message)
asyncio.run(main())
import walrq.worker
print("done", sorted(set(sys.argv[2].split()) & set(sys.modules)))
"""


def test_a_client_runs_where_no_daemon_could(tmp_path: Path) -> None:
    """Without fork, fcntl, resource, poll and half of the signals: nothing of it may be asked for."""
    env = environment(tmp_path / "site", LIKE_WINDOWS, tuple(NO_MODULES_OF_WINDOWS))
    with Node(tmp_path / "data") as node:
        node.start()
        ran = python(CLIENT, env, node.url, " ".join(NO_MODULES_OF_WINDOWS))

    assert (0, "done []\n", "") == (ran.returncode, ran.stdout, ran.stderr)


def test_the_command_line_pushes_and_polls_where_no_daemon_could(tmp_path: Path) -> None:
    """The client's half of the commands, and their help, need nothing of a daemon's system."""
    env = environment(tmp_path / "site", LIKE_WINDOWS, tuple(NO_MODULES_OF_WINDOWS))
    with Node(tmp_path / "data") as node:
        node.start()
        walrq(node, env, "push", "jobs", "one")
        assert "one\n" == walrq(node, env, "poll", "jobs", "--ack")
        assert "Usage" in walrq(node, env, "--help")
        assert "jobs" in walrq(node, env, "queue", "list")
