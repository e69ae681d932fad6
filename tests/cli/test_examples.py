"""Every help text ends with an example, and every example works as it is printed."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from tests.cli.conftest import Shell
from walrq.cli.app import app


def commands(group: click.Group, path: str = "walrq") -> Iterator[tuple[str, click.Command]]:
    """Every command and group with the words that call it."""
    yield path, group
    context = click.Context(group)
    for name in sorted(group.list_commands(context)):
        command = group.get_command(context, name)
        assert command is not None, f"{path} {name} is in no COMMANDS"
        assert name == command.name
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


COMMANDS = dict(commands(app))
# These run until they are stopped: tests/cli/test_serve.py, test_dev.py, test_worker.py and tests/e2e/test_cluster.py
# run their examples; so does the last for those that need more than one node.
# A token locks a node for whoever has none: tests/cli/test_token.py.
ELSEWHERE = (
    *("serve", "dev", "worker", "cluster start", "cluster add", "cluster remove", "cluster transfer"),
    *("token create", "token revoke"),
)
RUN_HERE = [path for path in COMMANDS if path not in {f"walrq {name}" for name in ELSEWHERE}]


def example_of(path: str) -> str:
    """The command in a help text's last line."""
    epilog = COMMANDS[path].epilog or ""
    title, _, command = epilog.rpartition("\n")
    assert "\b\nExample:" == title, epilog
    return command.strip()


def test_the_tree_has_these_commands() -> None:
    """Names are an interface: scripts hold them."""
    expected = (
        "serve dev worker push poll ack nack touch peek tail cancel reschedule move stats queue dlq top wal"
        " config context doctor completion backup restore config/show config/path config/check"
        " context/add context/use context/list context/show context/remove"
        " queue/list queue/show queue/create queue/set queue/pause queue/resume queue/purge queue/delete"
        " token token/create token/list token/revoke"
        " cluster cluster/start cluster/status cluster/add cluster/remove cluster/transfer"
        " dlq/list dlq/show dlq/replay dlq/purge wal/inspect wal/verify spec spec/list spec/check spec/simulate"
        " spec/trace spec/validate"
    )

    assert {"walrq"} | {f"walrq {name.replace('/', ' ')}" for name in expected.split()} == set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_help_ends_with_an_example_of_its_own_command(path: str) -> None:
    """People read the last line first. An example of a group shows one of its commands."""
    context = click.Context(COMMANDS[path], info_name=path)
    example = example_of(path)

    assert path in example
    assert example == COMMANDS[path].get_help(context).splitlines()[-1].strip()


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_is_explained(path: str) -> None:
    """An option without a word is a riddle."""
    silent = [
        parameter.name
        for parameter in COMMANDS[path].params
        if isinstance(parameter, click.Option) and not parameter.help
    ]

    assert [] == silent
    assert COMMANDS[path].help


@pytest.mark.parametrize("path", RUN_HERE)
def test_every_example_runs(path: str, shell: Shell, node: object) -> None:
    """An example that fails when it is pasted teaches distrust."""
    from tests.forks.nodes import Node

    assert isinstance(node, Node)
    shell.environment["WALRQ_DATA_DIR"] = str(node.data_dir)
    shell.environment["WALRQ_LISTEN"] = "127.0.0.1:0"
    # What the example needs to find: a queue with something in it, a settings file, contexts.
    assert 0 == shell.walrq("push", "mail", "a", "b").returncode
    (shell.folder / "walrq.toml").write_text('log_level = "debug"\n')
    contexts = shell.folder / "config/walrq/contexts.toml"
    contexts.parent.mkdir(parents=True)
    contexts.write_text('[contexts.prod]\nurl = "walrq://queue.example.org"\n[contexts.old]\nurl = "walrq://old"\n')

    ran = shell(example_of(path))

    assert (0, "") == (ran.returncode, ran.stderr.decode())


@pytest.mark.parametrize("group", ["queue", "dlq", "context", "config", "wal", "cluster", "token"])
def test_the_help_of_a_group_is_not_cut(group: str) -> None:
    """Whole sentences, also in eighty columns."""
    command = app.get_command(click.Context(app, info_name="walrq"), group)
    assert isinstance(command, click.Group)

    shown = command.get_help(click.Context(command, info_name=f"walrq {group}", terminal_width=80))

    assert "..." not in shown.partition("Commands:")[2]
