"""SIGHUP: a node reads its settings file again, takes over what it can and says what it cannot."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from pathlib import Path

import attrs
import pytest

from tests.daemon.harness import running
from tests.daemon.process import STOP_S_MAX, BlockingClient
from tests.forks.nodes import Node
from walrq import api
from walrq.daemon import listener, supervisor
from walrq.daemon.config import Config
from walrq.errors import Code
from walrq.protocol.client import Closed

MINUTE = 60


class LogReader:
    """The node's log, read as it grows."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")

    def wait_for(self, *events: str) -> str:
        """The text of the next line of one of these events; the test's own time-out bounds it."""
        line = b""
        while True:
            line += self._file.readline()
            if not line.endswith(b"\n"):
                # A log file tells nobody that it has grown.
                select.select([], [], [], 0.01)
                continue
            value = json.loads(line)
            line = b""
            if value["event"] in events:
                return str(value["text"])

    def close(self) -> None:
        self._file.close()


def test_what_can_change_changes_and_the_rest_is_named(tmp_path: Path) -> None:
    """The cap of connections counts at once; the fsync policy needs a restart, and both are said."""
    file = tmp_path / "walrq.toml"
    file.write_text("max_connections = 1\nauto_create = true\n")
    with Node(tmp_path / "data", flags=["--config", str(file), "--log-format", "json"]) as node:
        node.start()
        log = LogReader(node.log)
        with BlockingClient(node.address[1]) as first:
            with BlockingClient(node.address[1]) as second:
                assert isinstance(second.welcome, Closed), "one is allowed"
            file.write_text('max_connections = 2\nauto_create = false\nfsync = "never"\nlog_level = "debug"\n')
            node.signal(signal.SIGHUP)
            reloaded, needed = log.wait_for("reloaded"), log.wait_for("restart_needed")
            with BlockingClient(node.address[1]) as second:
                refused = second.ask(api.Push("absent", api.Columns(b"x", b"\x01\0\0\0")))
            assert api.Pong() == first.ask(api.Ping())
        log.close()

        assert 0 == node.stop()

    assert "reloaded max_connections=2 (was 1) auto_create=false (was true) log_level=debug (was info)" == reloaded
    assert "restart_needed fsync=never (is always)" == needed
    assert isinstance(refused, api.Failed)
    assert Code.QUEUE_NOT_FOUND == refused.code


def test_a_file_with_a_mistake_changes_nothing(tmp_path: Path) -> None:
    """The node goes on as it is and says what is wrong; the next file counts again."""
    file = tmp_path / "walrq.toml"
    file.write_text("")
    with Node(tmp_path / "data", flags=["--config", str(file), "--log-format", "json"]) as node:
        node.start()
        log = LogReader(node.log)
        file.write_text("max_conections = 5\n")
        node.signal(signal.SIGHUP)
        refused = log.wait_for("reload_refused")
        file.write_text("drain_timeout = 3\n")
        node.signal(signal.SIGHUP)
        reloaded = log.wait_for("reloaded")
        node.signal(signal.SIGHUP)
        again = log.wait_for("reloaded")
        log.close()

        assert 0 == node.stop()

    assert "did you mean max_connections?" in refused
    assert "reloaded drain_timeout=3 (was 10)" == reloaded
    assert "reloaded nothing changed" == again


def test_a_node_without_a_file_goes_on(tmp_path: Path) -> None:
    """An ExecReload in a unit file must not end a node that is set up by variables."""
    with Node(tmp_path / "data", flags=["--log-format", "json"]) as node:
        node.start()
        log = LogReader(node.log)
        node.signal(signal.SIGHUP)
        skipped = log.wait_for("reload_skipped")
        log.close()

        assert 0 == node.stop()

    assert "no settings file" in skipped


def test_a_flag_still_wins_over_the_file(tmp_path: Path) -> None:
    """The order of precedence is the same at every reading."""
    file = tmp_path / "walrq.toml"
    file.write_text("max_connections = 5\ndrain_timeout = 1\n")
    config = Config.load({"drain_timeout": "2"}, {}, file)
    file.write_text("max_connections = 6\ndrain_timeout = 7\n")
    new = config.reloaded()

    assert ["max_connections"] == config.changed(new)
    assert (6, 2.0) == (new.max_connections, new.drain_timeout)


@pytest.mark.trio
async def test_only_reloadable_settings_reach_a_running_node() -> None:
    """The drain time-out that is used at the end is the new one; what needs a restart stays as it is."""
    logger = logging.getLogger("walrq")
    level = logger.level
    try:
        async with running() as world:
            sock = listener.bind("127.0.0.1", 0)
            door = listener.Listener(sock, lambda *_: None, lambda: 0, connections_max=3)
            old = world.node.config
            new = attrs.evolve(old, drain_timeout=77.0, max_connections=9, log_level="error", body_cache_bytes=0)

            supervisor.take_over(world.node, door, new)

            sock.close()
            assert (77.0, 9) == (world.node.config.drain_timeout, door.connections_max)
            assert old.body_cache_bytes == world.node.config.body_cache_bytes
            assert logging.ERROR == logger.level
    finally:
        logger.setLevel(level)


_ON_A_TERMINAL = """
import os, sys
from walrq.cli import main
sys.argv = ["walrq", *sys.argv[1:]]
main()
"""


def test_a_node_whose_terminal_is_closed_stops_in_good_order(tmp_path: Path) -> None:
    """Nobody would notice a node that stays behind with its port and its directory."""
    ours, theirs = pty.openpty()

    def lead() -> None:
        # The terminal becomes the controlling one of a session of its own, as in a terminal window.
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    command = ["serve", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    # Python buffers what it cannot write to the terminal any more, and ends with a status of its own because of it.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(
        [sys.executable, "-c", _ON_A_TERMINAL, *command],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        preexec_fn=lead,
        env=buffered,
        cwd=Path(__file__).resolve().parent.parent.parent,
    )
    try:
        os.close(theirs)
        assert process.stdout is not None
        assert b"ready" in process.stdout.readline()
        os.close(ours)

        assert 0 == process.wait(STOP_S_MAX)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_under_nohup_a_hang_up_is_ignored(tmp_path: Path) -> None:
    """Who starts a node so wants it to stay."""
    with Node(tmp_path / "data", flags=["--log-format", "json"], prefix=["nohup"]) as node:
        node.start()
        pid = node.process.pid
        os.kill(pid, signal.SIGHUP)
        with BlockingClient(node.address[1]) as client:
            assert api.Pong() == client.ask(api.Ping())
        os.kill(pid, signal.SIGTERM)

        assert 0 == node.process.wait(MINUTE)

    assert "reload" not in node.log.read_text()
