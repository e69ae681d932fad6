"""The systemd unit and the settings file beside it: every line is one that systemd and walrq know, and it starts."""

from __future__ import annotations

import re
import signal
import socket
import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import make_shell
from tests.deploy.reading import DEPLOY, unit
from walrq.daemon.config import Config, check_file
from walrq.errors import ERRORS, Code
from walrq.limits import DRAIN_TIMEOUT_S_DEFAULT
from walrq.local.layout import prepare

FOUND = unit((DEPLOY / "walrq.service").read_text())
SETTINGS = DEPLOY / "walrq.toml"
SECONDS_MAX = 60


def only(name: str, section: str = "Service") -> str:
    """The value of a name that stands there once."""
    (given,) = FOUND[section][name]
    return given


def test_a_line_that_is_none_is_noticed() -> None:
    """systemd warns in a journal that nobody reads and starts without the line."""
    assert {"A": {"B": ["1", "2"], "C": [""]}} == unit("# x\n[A]\nB=1\nB=2\nC=\n")
    for text in ("B=1\n", "[A]\nB 1\n", "[A]\n b=1\n"):
        with pytest.raises(ValueError, match="no line of a unit"):
            unit(text)


def test_it_counts_as_started_when_it_answers_and_has_time_to_stop() -> None:
    """Type=notify is what orders other units after a node that is ready."""
    assert ("notify", "main", "mixed") == (only("Type"), only("NotifyAccess"), only("KillMode"))
    assert int(only("TimeoutStopSec").removesuffix("s")) > 2 * DRAIN_TIMEOUT_S_DEFAULT
    assert "root" != only("User")
    assert "multi-user.target" == only("WantedBy", "Install")


def test_it_is_not_started_again_with_a_setting_that_is_wrong() -> None:
    """A loop of starts hides the one line that says what to do."""
    assert [str(ERRORS[Code.CONFIG_INVALID].exit)] == FOUND["Service"]["RestartPreventExitStatus"]
    assert "on-failure" == only("Restart")


def test_the_settings_file_is_in_order_and_fits_the_unit() -> None:
    """What people copy first must be right; the unit makes the directory that the file names."""
    right, mistakes = check_file(SETTINGS)
    config = Config.load({}, {}, SETTINGS)

    assert [] == mistakes
    assert right == len(tomllib.loads(SETTINGS.read_text()))
    assert f"/var/lib/{only('StateDirectory')}" == config.data_dir
    assert "strict" == only("ProtectSystem"), "then nothing but the state directory can be written"
    assert config.node_id in dict(config.bootstrap)
    assert 3 == len(config.bootstrap)


def test_the_unit_starts_a_node_reloads_and_stops_it(tmp_path: Path) -> None:
    """Its command line as it stands there, under something that listens like systemd."""
    program, *words = only("ExecStart").split()
    assert "walrq" == Path(program).name
    assert words[-2:] == ["--config", "/etc/walrq/walrq.toml"]
    reload_program, *reload_words = only("ExecReload").split()
    assert (["-HUP", "$MAINPID"], "kill") == (reload_words, Path(reload_program).name)
    place = prepare(tmp_path / "ports", 1, 0).places[0]
    for name in ("secret", "token"):
        (tmp_path / name).write_text(f"a {name} of this test, long enough")
        (tmp_path / name).chmod(0o600)
    # The settings file as it is, but for what is of another machine.
    shell = make_shell(tmp_path, None)
    shell.environment.update(
        NOTIFY_SOCKET=str(tmp_path / "notify"),
        WALRQ_DATA_DIR=str(place.data_dir),
        WALRQ_LISTEN=place.listen,
        WALRQ_PEER_LISTEN=place.peer,
        WALRQ_BOOTSTRAP=f"n1={place.peer}",
        WALRQ_CLUSTER_SECRET_FILE=str(tmp_path / "secret"),
        WALRQ_ADMIN_TOKEN_FILE=str(tmp_path / "token"),
    )
    log = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(SECONDS_MAX)
        with shell.popen(*words[:-1], str(SETTINGS)) as process:
            assert process.stderr is not None
            try:
                told = [manager.recv(4096)]
                process.send_signal(signal.SIGHUP)
                while not re.search(rb'"event": "(reload|restart)', log):
                    line = process.stderr.readline()
                    assert line, log.decode()
                    log += line
                process.send_signal(signal.SIGTERM)
                told.append(manager.recv(4096))
                process.wait(SECONDS_MAX)
            finally:
                process.kill()
                log += process.communicate()[1]

    assert [b"READY=1", b"STOPPING=1"] == told
    assert (0, True) == (process.returncode, b'"event": "reloaded"' in log), log.decode()
