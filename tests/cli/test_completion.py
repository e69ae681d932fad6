"""Completion in a real bash, and that it never makes anybody wait."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from tests.cli.conftest import Shell, make_shell
from tests.forks.nodes import Node
from tests.requirements import require
from walrq.cli import arguments
from walrq.client import blocking
from walrq.client.failures import ServerUnreachable


def completed(shell: Shell, *words: str) -> list[str]:
    """What bash offers for the last of these words, by the function that the script defines."""
    require("bash")
    quoted = " ".join(f"'{word}'" for word in words)
    script = f"""
        eval "$(walrq completion bash)"
        COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}
        eval "$(complete -p walrq | sed 's/.*-F \\([^ ]*\\).*/\\1/')" walrq
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    ran = shell(f"bash --norc -c '{script.replace(chr(39), chr(39) + chr(92) + chr(39) + chr(39))}'")
    assert b"" == ran.stderr
    return ran.stdout.decode().split()


def test_bash_completes_commands_options_and_queues(shell: Shell) -> None:
    """What can be typed is offered, names of queues from the server itself."""
    for name in ("mail", "mail-later", "other"):
        shell.walrq("push", name, "x")

    assert {"poll", "push", "peek"} & set(completed(shell, "walrq", "p")) == {"poll", "push", "peek"}
    assert {"--priority"} == set(completed(shell, "walrq", "push", "mail", "--prio"))
    assert ["mail", "mail-later"] == completed(shell, "walrq", "push", "ma")
    assert ["mail", "mail-later"] == completed(shell, "walrq", "queue", "show", "ma")


def test_nodes_are_completed(shell: Shell, node: Node) -> None:
    """A name with a hash in it is not for typing."""
    name = str(node.ready["node"])

    assert [name] == completed(shell, "walrq", "cluster", "remove", name[:6])
    assert [name] == completed(shell, "walrq", "cluster", "transfer", "")
    assert [] == completed(shell, "walrq", "cluster", "transfer", "nosuch")


def test_contexts_are_completed_and_lead_to_their_servers(shell: Shell) -> None:
    """A context that was typed before the queue is the one that is asked."""
    url = shell.environment.pop("WALRQ_SERVER")
    shell.walrq("push", "asked", "x", "--server", url)
    shell.walrq("context", "add", "here", url)
    shell.walrq("context", "add", "hidden", "walrq://127.0.0.1:1", "--use")

    assert ["here", "hidden"] == completed(shell, "walrq", "queue", "list", "--context", "h")
    assert ["asked"] == completed(shell, "walrq", "push", "--context", "here", "as")
    assert [] == completed(shell, "walrq", "push", "as")


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_of_its_own(name: str, tmp_path: Path) -> None:
    """They ask walrq under the variable that it looks for."""
    ran = make_shell(tmp_path, None).walrq("completion", name)

    assert (0, b"") == (ran.returncode, ran.stderr)
    assert f"_WALRQ_COMPLETE={name}_complete".encode() in ran.stdout
    if shutil.which(name):
        assert 0 == make_shell(tmp_path, None)(f"walrq completion {name} | {name} -n").returncode


class Slow:
    """A client whose server needs a tenth of a second for each page of names, and has many."""

    def __init__(self, now: list[float]) -> None:
        self.on_turn: Callable[[], None] | None = None
        self._now = now

    def __enter__(self) -> Slow:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def list_queues(self, prefix: str) -> list[object]:
        """Page after page."""
        for _ in range(100):
            self._now[0] += 0.1
            assert self.on_turn is not None
            self.on_turn()
        return []


def asked(monkeypatch: pytest.MonkeyPatch, connect: Callable[..., object]) -> list[str]:
    """What is offered when the client is this one."""
    monkeypatch.setattr(blocking, "connect", connect)
    context = click.Context(click.Command("push"))
    context.params["server"] = "walrq://asked"
    return arguments.complete_queues(context, click.Argument(["queue"]), "")


def test_a_silent_server_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connecting and asking are bounded, and that nobody answers is no error."""
    given: dict[str, object] = {}

    def connect(url: str, **changes: object) -> object:
        given.update(changes, url=url)
        raise ServerUnreachable("no answer in time")

    assert [] == asked(monkeypatch, connect)
    bound = arguments.COMPLETION_S_MAX
    assert {"url": "walrq://asked", "session": False, "timeout_s": bound, "connect_timeout_s": bound} == given


def test_a_server_that_answers_too_slowly_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound holds for all pages together."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    assert [] == asked(monkeypatch, lambda url, **_: Slow(now))
    assert arguments.COMPLETION_S_MAX < now[0] <= arguments.COMPLETION_S_MAX + 0.2


def test_no_server_offers_nothing(tmp_path: Path) -> None:
    """No word in the middle of a line that is being typed."""
    assert [] == completed(make_shell(tmp_path, "walrq://127.0.0.1:1"), "walrq", "push", "")
