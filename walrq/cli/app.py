"""The tree of commands, and the one place where an error becomes one line and an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from walrq import __version__
from walrq.cli import dlq, messages, node, queues, wal
from walrq.cli.arguments import example
from walrq.cli.interrupts import INTERRUPTS

INTERRUPTED: Final = 130
# What a shell reports for a process that SIGPIPE ended.
PIPE_CLOSED: Final = 141


class Tree(click.Group):
    """The group of all commands; an interrupt leaves it without the empty line that click would print."""

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


for _module in (node, messages, queues, dlq, wal):
    for _command in _module.COMMANDS:
        app.add_command(_command)


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit status. Errors are one line on standard error, never a traceback."""
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
        if type(error).__name__ == "NoSuchOption":
            text += "; put -- before values that start with a dash"
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
