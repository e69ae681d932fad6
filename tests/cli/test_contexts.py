"""Names for servers: who wins, and a file that is never half written."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import Shell, make_shell
from walrq.cli import contexts
from walrq.daemon.config import OTHERS_VARIABLES, VARIABLES
from walrq.errors import ConfigError


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment whose contexts `near` (in use) and `far` are there."""
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    urls = {"near": "walrq://near", "far": "walrq://far:1"}
    contexts.save(contexts.path_of(env), contexts.Contexts(urls, "near"))
    return env


def test_options_win_over_variables_over_the_context_in_use_over_the_default(home: dict[str, str]) -> None:
    """One order, from what was typed just now to what was set long ago; each says who named it."""
    both = home | {"WALRQ_SERVER": "walrq://env", "WALRQ_CONTEXT": "far"}
    empty = {"XDG_CONFIG_HOME": "/nowhere"}
    path = contexts.path_of(home)

    assert ("walrq://typed", "--server") == _of(contexts.resolve("walrq://typed", None, both))
    assert ("walrq://far:1", f"--context far, in {path}") == _of(contexts.resolve(None, "far", both))
    assert ("walrq://env", "WALRQ_SERVER") == _of(contexts.resolve(None, None, both))
    assert ("walrq://far:1", f"WALRQ_CONTEXT far, in {path}") == _of(
        contexts.resolve(None, None, home | {"WALRQ_CONTEXT": "far"})
    )
    assert ("walrq://near", f"context near of {path}") == _of(contexts.resolve(None, None, home))
    assert ("walrq://127.0.0.1:50051", "default") == _of(contexts.resolve(None, None, empty))


def _of(target: contexts.Target) -> tuple[str, str]:
    return target.url, target.origin


def test_the_file_is_where_xdg_says(tmp_path: Path) -> None:
    """A relative XDG_CONFIG_HOME counts as not set, as its rules have it."""
    assert Path("/x/walrq/contexts.toml") == contexts.path_of({"XDG_CONFIG_HOME": "/x", "HOME": "/h"})
    assert Path("/h/.config/walrq/contexts.toml") == contexts.path_of({"HOME": "/h"})
    assert Path("/h/.config/walrq/contexts.toml") == contexts.path_of({"XDG_CONFIG_HOME": "x", "HOME": "/h"})


def test_the_file_is_toml_that_only_its_owner_reads(home: dict[str, str]) -> None:
    """It may be edited by hand, and URLs will carry secrets one day."""
    path = contexts.path_of(home)

    assert {
        "current": "near",
        "contexts": {"near": {"url": "walrq://near"}, "far": {"url": "walrq://far:1"}},
    } == tomllib.loads(path.read_text())
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert [path.name] == os.listdir(path.parent)


def test_a_failed_write_leaves_the_old_file(home: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk loses no context, and leaves nothing beside the file."""
    path = contexts.path_of(home)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        contexts.save(path, contexts.Contexts({}))

    assert before == path.read_bytes()
    assert [path.name] == os.listdir(path.parent)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("current = ", "is not TOML"),
        ('curent = "a"', "there is no key 'curent'; did you mean current?"),
        ('current = "a"', "current names 'a'"),
        ("contexts = 5", "contexts is no table"),
        ('[contexts]\na = "walrq://h"', "'a' is none"),
        ('[contexts.a]\nurl = "walrq://h"\ntokn = "x"', "there is no key 'tokn'"),
        ('[contexts."a b"]\nurl = "walrq://h"', "'a b' is none"),
    ],
)
def test_a_file_edited_wrongly_is_named(tmp_path: Path, text: str, hint: str) -> None:
    """What is not understood is never written over."""
    path = tmp_path / "contexts.toml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=r"contexts\.toml") as caught:
        contexts.load(path)

    assert hint in caught.value.text


def test_a_user_without_a_home_has_no_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Daemons and containers run as users whose home is not there, is no directory, or is not known at all."""
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    for env in ({"HOME": "/nonexistent"}, {"HOME": "/dev/null"}, {"HOME": ""}, {}):
        assert "default" == contexts.resolve(None, None, env).origin


def test_a_file_that_cannot_be_read_is_no_guess(tmp_path: Path) -> None:
    """It may name another server: nothing is sent to the wrong one, and the way out is named."""
    (tmp_path / "walrq/contexts.toml").mkdir(parents=True)

    with pytest.raises(ConfigError, match="cannot be read: Is a directory; name the server with --server"):
        contexts.resolve(None, None, {"XDG_CONFIG_HOME": str(tmp_path)})


def test_a_wrong_name_suggests_the_right_one(home: dict[str, str]) -> None:
    """Or shows what there is."""
    with pytest.raises(ConfigError, match="did you mean near"):
        contexts.resolve(None, "nearr", home)
    with pytest.raises(ConfigError, match="known are far, near"):
        contexts.resolve(None, "x", home)


def test_a_container_platforms_variables_are_no_mistake(home: dict[str, str]) -> None:
    """A service called walrq-server gets WALRQ_SERVER_PORT and the like from the platform."""
    env = home | {"WALRQ_SERVER_PORT": "tcp://h:1", "WALRQ_SERVICE_HOST": "h", "WALRQ_PORT": "x", "WALRQ_CONFIG": "f"}

    assert "walrq://near" == contexts.resolve(None, None, env).url


def test_no_variable_of_walrq_is_taken_for_a_mistyped_one(home: dict[str, str]) -> None:
    """A machine that runs a node as well has its settings in the environment."""
    env = home | dict.fromkeys({*VARIABLES, *OTHERS_VARIABLES} - {"WALRQ_SERVER", "WALRQ_CONTEXT"}, "x")

    assert "walrq://near" == contexts.resolve(None, None, env).url


def test_the_whole_life_of_a_context(shell: Shell, tmp_path: Path) -> None:
    """Added, used by a command, listed, changed, removed."""
    url = shell.environment.pop("WALRQ_SERVER")
    assert b"added here\n" == shell.walrq("context", "add", "here", url).stdout
    assert b"added there, in use now\n" == shell.walrq("context", "add", "there", "walrq://127.0.0.1:1", "--use").stdout
    assert 5 == shell.walrq("queue", "list").returncode

    assert 0 == shell.walrq("push", "named", "x", "--context", "here").returncode
    assert b"using here\n" == shell.walrq("context", "use", "here").stdout
    assert b"x\n" == shell.walrq("poll", "named", "--ack").stdout
    listed = [json.loads(line) for line in shell.walrq("context", "list", "--json").stdout.splitlines()]
    shown = json.loads(shell.walrq("context", "show", "--json").stdout)
    assert [("here", True), ("there", False)] == [(each["context"], each["in_use"]) for each in listed]
    assert (url, "here") == (shown["url"], shown["context"])
    assert f"{url}\n".encode() == shell.walrq("context", "show", "here").stdout

    assert b"changed there\n" == shell.walrq("context", "add", "there", url).stdout
    assert b"removed here; no context is in use now\n" == shell.walrq("context", "remove", "here").stdout
    assert f"\tthere\t{url}\n".encode() == shell.walrq("context", "list").stdout


def test_using_a_context_that_does_not_count_is_said(tmp_path: Path) -> None:
    """WALRQ_SERVER in a profile wins over it, which would puzzle."""
    shell = make_shell(tmp_path, "walrq://elsewhere")
    shell.walrq("context", "add", "here", "walrq://h")

    assert b"WALRQ_SERVER is set and wins" in shell.walrq("context", "use", "here").stdout
    assert b"using no context" in shell.walrq("context", "use", "--none").stdout
