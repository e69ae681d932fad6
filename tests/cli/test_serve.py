"""`walrq serve` from the command line: its example, its readiness line, its end."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import socket
import sys
from pathlib import Path

from tests.cli.conftest import make_shell
from tests.cli.test_examples import example_of


def test_the_example_of_serve_runs(tmp_path: Path) -> None:
    """With a free port instead of the default one, which may be in use here."""
    words = shlex.split(example_of("walrq serve").replace(":50051", ":0"))
    assert "walrq" == words[0]
    shell = make_shell(tmp_path, None)
    with shell.popen(*words[1:]) as serving:
        assert serving.stdout is not None
        ready = json.loads(serving.stdout.readline())
        pushed = shell.walrq("push", "mail", "x", "--server", f"walrq://{ready['endpoints']['cbor']}")
        serving.send_signal(signal.SIGTERM)
        rest, _ = serving.communicate()

    assert (0, b"") == (pushed.returncode, pushed.stderr)
    assert (0, b"") == (serving.returncode, rest), "nothing but the readiness line on standard output"
    assert "ready" == ready["event"]


def test_settings_come_from_a_file_too(tmp_path: Path) -> None:
    """What is in the file need not be typed."""
    (tmp_path / "walrq.toml").write_text('listen = "127.0.0.1:0"\nnode_id = "from-file"\nfsync = "never"\n')
    shell = make_shell(tmp_path, None)
    with shell.popen("serve", "--config", "walrq.toml") as serving:
        assert serving.stdout is not None
        ready = json.loads(serving.stdout.readline())
        serving.send_signal(signal.SIGINT)
        serving.communicate()

    assert (0, "from-file") == (serving.returncode, ready["node"])


def test_an_open_door_has_to_be_wanted(tmp_path: Path) -> None:
    """Nobody is asked who he is at an address that others reach: one line, status 78, nothing left behind; with
    --insecure a warning; with a password neither."""
    shell = make_shell(tmp_path, None)
    refused = shell.walrq("serve", "--data-dir", "no", "--listen", "0.0.0.0:0")
    assert 78 == refused.returncode
    (line,) = [line for line in refused.stderr.splitlines() if b"fatal" in line]
    assert b"CONFIG_INVALID" in line
    assert b"--insecure" in line
    assert not (tmp_path / "no").exists()

    password = tmp_path / "password"
    password.write_text("correct horse")
    password.chmod(0o600)
    logs = {}
    for host, more in (
        ("0.0.0.0", ("--insecure",)),
        ("127.0.0.1", ()),
        ("0.0.0.0", ("--requirepass-file", str(password))),
    ):
        # The log names the directory, which must not hold the words that are looked for, as pytest's own folder does.
        name = f"{host}-{len(more)}"
        with shell.popen(
            "serve", "--data-dir", name, "--listen", f"{host}:0", "--log-format", "human", *more
        ) as serving:
            assert serving.stdout is not None
            assert b"ready" in serving.stdout.readline()
            serving.send_signal(signal.SIGTERM)
            _, logs[host, bool(more and more[0] == "--insecure")] = serving.communicate()
        assert 0 == serving.returncode

    assert b"open_door" in logs["0.0.0.0", True]
    assert b"_door" not in logs["127.0.0.1", False]
    assert b"open_door" not in logs["0.0.0.0", False]
    assert b"clear_door" in logs["0.0.0.0", False]


def test_the_banner_stands_for_the_log_line(tmp_path: Path) -> None:
    """A person is told once; programs have the readiness line."""
    here, there = pty.openpty()
    with os.fdopen(here, "rb", buffering=0) as terminal:
        with make_shell(tmp_path, None).popen("serve", "--listen", "127.0.0.1:0", stderr=there) as serving:
            os.close(there)
            assert serving.stdout is not None
            assert b"ready" in serving.stdout.readline()
            seen = b""
            while b"next " not in seen:
                seen += terminal.read(4096)
            serving.send_signal(signal.SIGTERM)
            while b"stopped" not in seen:
                seen += terminal.read(4096)
            serving.communicate()

    assert 0 == serving.returncode
    assert 1 == seen.count(b"127.0.0.1:") - seen.count(b"walrq://127.0.0.1:")
    assert b"ready node=" not in seen


def test_python_dash_m_is_the_same_program(tmp_path: Path) -> None:
    """No installation needed in a checkout."""
    shell = make_shell(tmp_path, None)

    assert shell(f'"{sys.executable}" -m walrq --version').stdout == shell("walrq --version").stdout != b""


def test_a_taken_address_leaves_nothing_behind(tmp_path: Path) -> None:
    """The address is had before the directory is made; the line names the option."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ran = make_shell(tmp_path, None).walrq("serve", "--data-dir", "data", "--listen", address)

    assert (78, b"") == (ran.returncode, ran.stdout)
    assert b"--listen" in ran.stderr
    assert not (tmp_path / "data").exists()
