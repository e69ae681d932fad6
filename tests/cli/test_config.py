"""`walrq config`: every setting, where it comes from, and the mistakes of a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Shell, make_shell
from walrq.cli.arguments import SETTINGS
from walrq.daemon.config import NAMES, Config


@pytest.fixture
def alone(tmp_path: Path) -> Shell:
    """A shell without a server."""
    return make_shell(tmp_path, None)


def test_every_setting_has_a_flag_whose_help_tells_its_default() -> None:
    """The flags are listed by hand, so that most commands need not import the daemon's table."""
    flags = {flag.partition("/")[0].removeprefix("--").replace("-", "_"): text for flag, _, text in SETTINGS}
    defaults = {name: text[text.index("[") + 1 : -1] for name, text in flags.items()}

    assert set(NAMES) == set(flags)
    for name, written in defaults.items():
        if getattr(Config(), name) not in (None, ()):
            assert getattr(Config(), name) == getattr(Config.load({name: written.removeprefix("./")}), name), name


def test_the_origin_of_each_value_is_shown(alone: Shell) -> None:
    """Flag, variable, file, default; and the client's server with its own order."""
    (alone.folder / "walrq.toml").write_text('max_connections = 5\nfsync = "never"\n')
    alone.environment.update({"WALRQ_CONFIG": "walrq.toml", "WALRQ_FSYNC": "interval:20", "DATA_DIR": "old"})
    alone.walrq("context", "add", "here", "walrq://h:1", "--use")

    ran = alone.walrq("config", "show", "--json", "--listen", "[::1]:0", "--no-auto-create")
    found = {value["setting"]: value for value in map(json.loads, ran.stdout.splitlines())}

    assert {*NAMES, "server"} == set(found)
    assert {
        "listen": ("[::1]:0", "--listen"),
        "auto_create": ("false", "--auto-create"),
        "fsync": ("interval:20", "WALRQ_FSYNC"),
        "data_dir": ("old", "DATA_DIR"),
        "max_connections": ("5", "walrq.toml: max_connections"),
        "node_id": (None, "default"),
        "drain_timeout": ("10", "default"),
    } == {
        name: (found[name]["value"], found[name]["origin"])
        for name in ("listen", "auto_create", "fsync", "data_dir", "max_connections", "node_id", "drain_timeout")
    }
    assert ("client", "walrq://h:1") == (found["server"]["of"], found["server"]["value"])
    assert found["server"]["origin"].startswith("context here of ")


def test_the_origin_is_a_column_of_its_own_in_a_pipe(alone: Shell) -> None:
    """`cut -f 3` gives the values; the origin only when it was asked for."""
    plain = alone.walrq("config", "show").stdout.decode().splitlines()
    full = alone.walrq("config", "show", "--origin").stdout.decode().splitlines()

    assert ["node", "data_dir", "walrq-data"] == plain[0].split("\t")
    assert ["node", "data_dir", "walrq-data", "default"] == full[0].split("\t")
    assert ["client", "server", "walrq://127.0.0.1:50051", "default"] == full[-1].split("\t")


def test_what_is_shown_may_be_typed_back() -> None:
    """The texts are those that flags, variables and files take."""
    config = Config.load({"listen": "[::1]:5", "fsync": "interval:7", "drain_timeout": "2.5", "auto_create": "no"})
    texts = {name: config.text(name) for name in NAMES}

    assert config == Config.load({name: text for name, text in texts.items() if text is not None})


def test_all_mistakes_of_a_file_are_told_at_once(alone: Shell) -> None:
    """One line each, status 78; a file in order is told so."""
    file = alone.folder / "walrq.toml"
    file.write_text('fsyncc = "never"\nmax_connections = 0\nlog_level = "debug"\n[storage]\nx = 1\n')

    wrong = alone.walrq("config", "check", "walrq.toml")
    value = json.loads(alone.walrq("config", "check", "walrq.toml", "--json").stdout)
    file.write_text('log_level = "debug"\n')
    right = alone.walrq("config", "check", "walrq.toml")

    lines = wrong.stderr.decode().splitlines()
    assert (78, b"", 3) == (wrong.returncode, wrong.stdout, len(lines))
    assert "there is no setting 'fsyncc'; did you mean fsync?" in lines[0]
    assert "max_connections is 0, allowed are 1 to" in lines[1]
    assert "there is no setting 'storage'" in lines[2]
    assert (1, 3) == (value["settings"], len(value["mistakes"]))
    assert (0, b"walrq.toml: 1 setting, all in order\n") == (right.returncode, right.stdout)


def test_the_paths_of_the_files_are_shown_whether_they_are_there_or_not(alone: Shell) -> None:
    """So that an editor can be pointed at them."""
    alone.environment["WALRQ_CONFIG"] = "walrq.toml"
    (alone.folder / "walrq.toml").write_text("")
    found = [json.loads(line) for line in alone.walrq("config", "path", "--json").stdout.splitlines()]

    contexts = str(alone.folder / "config/walrq/contexts.toml")
    assert [
        {"file": "settings", "path": "walrq.toml", "exists": True},
        {"file": "contexts", "path": contexts, "exists": False},
    ] == found
