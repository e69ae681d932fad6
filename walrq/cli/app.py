"""The tree of commands, and the one place where an error becomes one line and an exit status."""

from __future__ import annotations

import importlib
import io
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from walrq import __version__
from walrq.cli.arguments import example, summary
from walrq.cli.interrupts import INTERRUPTS

INTERRUPTED: Final = 130
# What a shell reports for a process that SIGPIPE ended.
PIPE_CLOSED: Final = 141


# Every command with the module of this folder whose COMMANDS hold it, in the order in which the help shows them:
# what people do most comes first. A module is imported when one of its commands is asked for.
SECTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "Messages": {
        "push": "messages",
        "poll": "messages",
        "ack": "messages",
        "nack": "messages",
        "touch": "messages",
        "peek": "messages",
        "tail": "messages",
        "cancel": "messages",
        "reschedule": "messages",
        "move": "messages",
    },
    "Queues": {"queue": "queues", "dlq": "dlq", "top": "queues", "stats": "queues"},
    "Nodes and workers": {
        "serve": "node",
        "dev": "node",
        "cluster": "cluster",
        "token": "token",
        "worker": "worker",
        "backup": "backup",
        "restore": "backup",
        "wal": "wal",
    },
    "This machine": {
        "config": "node",
        "context": "contexts",
        "doctor": "doctor",
        "spec": "spec",
        "completion": "app",
    },
}
# Words of other systems; the answer is a hint, never a second name.
ELSEWHERE: Final[Mapping[str, str]] = {
    "send": "push",
    "publish": "push",
    "enqueue": "push",
    "put": "push",
    "receive": "poll",
    "pop": "poll",
    "get": "poll",
    "consume": "poll",
    "dequeue": "poll",
    "delete": "ack",
    "redrive": "dlq replay",
    "queues": "queue list",
    "ls": "queue list",
    "start": "serve",
    "server": "serve",
    "run": "serve",
    "info": "stats",
    "status": "stats",
    "version": "--version",
    "help": "--help",
}


class Tree(click.Group):
    """The group of all commands. It knows their names, and imports a command when somebody asks for it.

    An interrupt leaves it without the empty line that click would print.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in SECTIONS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands:
            for section in SECTIONS.values():
                if cmd_name in section:
                    for command in importlib.import_module(f"walrq.cli.{section[cmd_name]}").COMMANDS:
                        self.add_command(command)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.list_commands(ctx)))
        for title, section in SECTIONS.items():
            found = [command for name in section if (command := self.get_command(ctx, name)) is not None]
            with formatter.section(title):
                formatter.write_dl(
                    [(str(each.name).ljust(width), summary(each, formatter.width - width - 6)) for each in found]
                )

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.Abort from None


@click.group(
    cls=Tree,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=example("walrq push mail hello"),
)
@click.version_option(__version__, prog_name="walrq", message="%(prog)s %(version)s")
def app() -> None:
    """A durable message and task queue: `walrq serve` in one terminal, the other commands in another."""


@click.command(epilog=example("walrq completion bash"))
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script with which SHELL completes: commands, options, names of queues and contexts.

    \b
    bash  echo 'eval "$(walrq completion bash)"' >> ~/.bashrc
    zsh   echo 'eval "$(walrq completion zsh)"' >> ~/.zshrc
    fish  walrq completion fish > ~/.config/fish/completions/walrq.fish
    """
    from click.shell_completion import ShellComplete, get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click knows all three"
    # Not its own `source()`: bash's would start a bash first, to look at its version. The script asks under the
    # variable that click looks for in a program called walrq.
    print(ShellComplete.source(kind(app, {}, "walrq", "_WALRQ_COMPLETE")))


COMMANDS = (completion,)


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit status. Errors are one line on standard error, never a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal's encoding lacks is escaped, like on standard error: names and payloads are
        # other people's.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = app.main(args=list(arguments), prog_name="walrq", standalone_mode=False)
        sys.stdout.flush()
        if INTERRUPTS.asked:
            return INTERRUPTED
        return status if isinstance(status, int) else 0
    except BrokenPipeError:
        # Whoever read our output has what it wanted. The descriptor is replaced, so that the interpreter's
        # own last flush has somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except Exception as error:
        status = explain(error)
        if status is None:
            raise
        return status


def did_you_mean(word: str, group: click.Group, ctx: click.Context) -> str:
    """What to type instead of a command that the group does not have, as the end of a sentence; perhaps empty."""
    from difflib import get_close_matches

    names = group.list_commands(ctx)
    if group is app and word in ELSEWHERE:
        found = [ELSEWHERE[word]]
    else:
        found = get_close_matches(word, names, 3)
    if not found and group is app:
        groups = [each for name in names if isinstance(each := group.get_command(ctx, name), click.Group)]
        # In the order of the help, so that the ones left out are those that are used least.
        found = [f"{each.name} {word}" for each in groups if word in each.commands][:4]
    return f" Did you mean {' or '.join(found)}?" if found else ""


def where_option_goes(option: str, context: click.Context) -> str:
    """What to do about an option that the command does not have, as the end of a sentence; perhaps empty."""
    command = context.command
    if isinstance(command, click.Group):
        inside = [command.get_command(context, name) for name in command.list_commands(context)]
        inside += [each for group in inside if isinstance(group, click.Group) for each in group.commands.values()]
        if any(option in parameter.opts for each in inside if each is not None for parameter in each.params):
            return f"; {option} goes behind the command: {context.command_path} COMMAND {option} ..."
        return ""
    if any(isinstance(parameter, click.Argument) for parameter in command.params):
        return "; put -- before values that start with a dash"
    return ""


def explain(error: Exception) -> int | None:
    """Print what a person can do about `error`; the exit status, None when it is a mistake of ours."""
    from walrq.errors import ERRORS, WalrqError

    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "walrq"
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            return error.exit_code
        text = " ".join(error.format_message().split())
        if isinstance(error, click.NoSuchOption) and context is not None and not error.possibilities:
            text = text.rstrip(".") + where_option_goes(error.option_name, context)
        missing = re.match(r"No such command '(.*?)'\.", text)
        if missing and context is not None and isinstance(context.command, click.Group):
            text = f"{missing[0]}{did_you_mean(missing[1], context.command, context)}"
        end = "" if text.endswith((".", "?", ")")) else "."
        print(f"{command}: {text}{end} Try `{command} --help`", file=sys.stderr)
        return error.exit_code
    if isinstance(error, WalrqError):
        text = error.text.replace("with its URL or WALRQ", "with --server or WALRQ")
        nearest = error.details.get("nearest")
        if isinstance(nearest, str) and nearest not in text:
            text += f"; did you mean {nearest}?"
        print(f"walrq: {text}", file=sys.stderr)
        return ERRORS[error.code].exit
    if isinstance(error, OSError) and error.strerror:
        name = f"{error.filename}: " if error.filename is not None else ""
        print(f"walrq: {name}{error.strerror}", file=sys.stderr)
        return 1
    return None
