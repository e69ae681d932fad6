"""The tree of commands, and the one place where an error becomes one line and an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from walrq.cli import dlq, messages, node, queues, wal

INTERRUPTED: Final = 130
# What a shell reports for a process ended by SIGPIPE.
PIPE_CLOSED: Final = 141

app = typer.Typer(
    name="walrq",
    help="A durable message and task queue.",
    epilog="Example: walrq push mail hello",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from walrq import __version__

        print(f"walrq {__version__}")
        raise typer.Exit


@app.callback(epilog="Example: walrq push mail hello")
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """A durable message and task queue."""


node.register(app)
messages.register(app)
queues.register(app)
dlq.register(app)
wal.register(app)


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit status. Errors are one line on standard error, never a traceback."""
    try:
        try:
            status = app(args=list(arguments), prog_name="walrq", standalone_mode=True)
        except SystemExit as end:
            status = end.code
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except BrokenPipeError:
        # Whoever read our output has what it wanted. The descriptor is replaced, so that the interpreter's
        # own last flush has somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        status = explain(error)
        if status is None:
            raise
        return status


def explain(error: Exception) -> int | None:
    """Print what a person can do about `error`; the exit status, None when it is a mistake of ours."""
    from walrq.errors import ERRORS, WalrqError

    if isinstance(error, WalrqError):
        text = error.text
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
