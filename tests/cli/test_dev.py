"""`walrq dev`: a node to try things on, ready with something in it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.cli.conftest import Shell, make_shell
from tests.cli.test_examples import example_of
from walrq.cli import node as dev
from walrq.daemon import config
from walrq.daemon.config import Door
from walrq.errors import DataDirInvalid, DataDirLocked


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A shell without a server."""
    return make_shell(tmp_path, None)


@contextlib.contextmanager
def running(shell: Shell, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """`walrq dev` and its readiness line; it is killed at the end if it still runs."""
    with shell.popen("dev", *arguments) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()[1].decode()
            ready = json.loads(line)
            shell.environment["WALRQ_SERVER"] = f"walrq://{ready['endpoints']['cbor']}"
            yield process, ready
        finally:
            process.kill()


def stop(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    """Ctrl-C; status and what was still printed."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    return process.returncode, out, err


def test_the_example_runs_whether_the_usual_port_is_free_or_not(shell: Shell) -> None:
    """It starts with a demo queue in it, on loopback, and Ctrl-C ends it in good order."""
    words = shlex.split(example_of("walrq dev"))
    with running(shell, *words[2:]) as (process, ready):
        first = ready["endpoints"]["cbor"]
        peeked = [json.loads(line) for line in shell.walrq("peek", "demo", "--json").stdout.splitlines()]
        polled = shell.walrq("poll", "demo", "--max", "1", "--ack")
        with running(make_shell(shell.folder, None), "--data-dir", "second") as (beside, second):
            address = second["endpoints"]["cbor"]
            said = [json.loads(line) for line in stop(beside)[2].splitlines()]
        addresses = {first, address}
        ended = stop(process)

    assert "ready" == ready["event"]
    assert 3 == len(peeked)
    assert b"this one goes first\n" == polled.stdout
    assert (2, {"127.0.0.1"}) == (len(addresses), {address.rpartition(":")[0] for address in addresses})
    assert (0, b"") == ended[:2], "nothing but the readiness line on standard output"
    assert [("port_taken", f"port_taken {dev.explain_port(address)}")] == [(one["event"], one["text"]) for one in said]
    if first == "127.0.0.1:50051":
        assert b"" == ended[2], "there was nothing to say"


def test_a_restart_keeps_everything_and_adds_no_second_demo(shell: Shell) -> None:
    """What was pushed is there again; the demo queue is made once. `--fresh` begins with nothing."""
    with running(shell) as (process, _):
        shell.walrq("push", "mine", "x")
        shell.walrq("queue", "purge", "demo", "--yes")
        stop(process)
    with running(shell) as (process, _):
        counts = {
            value["queue"]: value["ready"]
            for value in map(json.loads, shell.walrq("queue", "list", "--json").stdout.splitlines())
        }
        stop(process)
    with running(shell, "--fresh", "--no-demo") as (process, _):
        after = shell.walrq("queue", "list")
        stop(process)

    assert {"mine": 1, "demo": 0} == counts
    assert (0, b"") == (after.returncode, after.stdout)


def test_settings_of_a_real_node_are_left_alone(shell: Shell) -> None:
    """WALRQ_DATA_DIR of a server's profile must never be what `dev --fresh` removes."""
    shell.environment.update({"WALRQ_DATA_DIR": "precious", "WALRQ_NODE_ID": "precious"})
    with running(shell, "--fresh", "--no-demo") as (process, ready):
        stop(process)

    assert not (shell.folder / "precious").exists()
    assert "precious" != ready["node"]


def test_a_door_takes_a_free_port_when_the_usual_one_is_in_use() -> None:
    """One table of doors; each finds its place by itself."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "127.0.0.1:0" == dev.address_for(Door("any", "listen", port))
    assert f"127.0.0.1:{port}" == dev.address_for(Door("any", "listen", port))


def test_an_address_that_was_asked_for_is_not_replaced(shell: Shell) -> None:
    """Only the default gives way: a port that was named is meant."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = shell.walrq("dev", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")

    assert 78 == ran.returncode
    assert b"Address already in use" in ran.stderr


def test_fresh_removes_nothing_but_a_data_directory(tmp_path: Path) -> None:
    """A wrong --data-dir costs nothing: no file of somebody else is ever removed, nor a symbolic link followed."""
    for names in (["FORMAT", "notes.txt"], ["wal"], ["notes.txt"]):
        folder = tmp_path / "-".join(names)
        folder.mkdir()
        for name in names:
            (folder / name).write_text("")
        with pytest.raises(DataDirInvalid, match="--fresh removes a data directory of walrq only"):
            dev.wipe(folder)
        assert names == sorted(os.listdir(folder))
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "FORMAT").write_text("")
    (linked / "wal").symlink_to(tmp_path / "wal")

    dev.wipe(linked)
    dev.wipe(tmp_path / "absent")

    assert ["LOCK"] == os.listdir(linked)
    assert ["wal"] == os.listdir(tmp_path / "wal")


def test_fresh_leaves_a_running_node_alone(shell: Shell) -> None:
    """Two terminals, one directory: the second is refused and the first does not notice."""
    with running(shell):
        with pytest.raises(DataDirLocked, match="in use by another walrq process"):
            dev.wipe(shell.folder / "walrq-dev")
        ran = shell.walrq("dev", "--fresh")
        second = shell.walrq("dev")
        pushed = shell.walrq("push", "mail", "x")

    assert (75, 75, 0) == (ran.returncode, second.returncode, pushed.returncode)
    if os.path.exists("/proc/locks"):
        assert re.search(rb"another walrq process, [0-9]+; stop it first", ran.stderr)
        assert re.search(rb"another walrq process, [0-9]+\W", second.stderr)


@pytest.mark.parametrize("address", ["127.0.0.1:50051", "127.0.0.1:4711"])
def test_the_banner_can_be_pasted(address: str) -> None:
    """The usual address needs no word; another one is exported first."""
    line = {"event": "ready", "node": "n", "endpoints": {"cbor": address}}
    text = dev.banner(line, data_dir="/d", fsync="always", demo=True)
    commands = [row.strip() for row in text.splitlines() if row.startswith("    ")]

    exported = [command for command in commands if command.startswith("export ")]
    assert ([f"export WALRQ_SERVER=walrq://{address}"] if "4711" in address else []) == exported
    assert ["walrq peek demo", "walrq poll demo --ack", 'walrq push jobs "hello"', "walrq queue list"] == commands[-4:]


def test_the_banner_says_why_the_port_is_another() -> None:
    """One line: what is in the way, where the node is, and how clients find it."""
    line = {"event": "ready", "node": "n", "endpoints": {"cbor": "127.0.0.1:4711"}}
    why = dev.explain_port("127.0.0.1:4711")

    assert (
        "50051 is taken (by another process); this node listens on 127.0.0.1:4711;"
        " export WALRQ_SERVER=walrq://127.0.0.1:4711"
    ) == why
    assert f"  {why}" in dev.banner(line, data_dir="/d", fsync="always", demo=False, why=why).splitlines()
    assert "is taken" not in dev.banner(line, data_dir="/d", fsync="always", demo=False)


def test_a_person_sees_the_banner(shell: Shell) -> None:
    """On a terminal: where it is, what to type next, and that it has stopped."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        with shell.popen("dev", stderr=theirs) as process:
            os.close(theirs)
            assert process.stdout is not None
            assert b"ready" in process.stdout.readline()
            seen = b""
            while b"Ctrl-C stops it" not in seen:
                seen += terminal.read(4096)
            process.send_signal(signal.SIGINT)
            while b"stopped" not in seen:
                seen += terminal.read(4096)
            process.communicate()

    assert 0 == process.returncode
    assert str(shell.folder / "walrq-dev").encode() in seen
    assert b"walrq poll demo --ack" in seen


def test_all_doors_are_those_whose_ports_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was set stays, a port that somebody has, or that this node takes otherwise, is left alone."""
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        cbor, ws, resp, http = (sock.getsockname()[1] for sock in socks)
        ports = {"cbor": 1, "ws": ws, "resp": resp, "http": http}
        monkeypatch.setattr(config, "DOORS", tuple(attrs.evolve(door, port=ports[door.name]) for door in config.DOORS))
        for sock in (socks[0], socks[1], socks[3]):
            sock.close()
        free = dev.shut_doors(config.Config.load({"listen": f"127.0.0.1:{cbor}"}))
        own = dev.shut_doors(config.Config.load({"listen": f"127.0.0.1:{http}", "ws_listen": "127.0.0.1:0"}))

    assert {"ws_listen": f"127.0.0.1:{ws}", "http_listen": f"127.0.0.1:{http}"} == free
    assert {} == own
