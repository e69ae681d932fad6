"""The reference of commands in docs/cli.md, made from the tree of commands itself.

    python -m tests.cli.reference

writes it anew between the two marks; tests/cli/test_reference.py says when that was forgotten.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from walrq.cli.app import SECTIONS, app

PAGE = Path(__file__).resolve().parent.parent.parent / "docs/cli.md"
BEGIN = "<!-- from here on written by `python -m tests.cli.reference` -->\n"


def reference() -> str:
    """The Markdown of all commands, in the order of the help."""
    parts = []
    root = click.Context(app, info_name="walrq")
    for title, section in SECTIONS.items():
        parts.append(f"### {title}\n")
        for name in section:
            command = app.get_command(root, name)
            assert command is not None
            parts += each(command, click.Context(command, root, info_name=name))
    return "\n".join(parts)


def each(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """A command and, if it is a group, those in it."""
    yield f"#### {ctx.command_path}\n"
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    yield f"```text\n{usage}\n```\n"
    yield text(command.help or "")
    rows = [row(parameter) for parameter in command.params if isinstance(parameter, click.Option)]
    if rows:
        yield "\n".join(["| option | meaning |", "| --- | --- |", *rows]) + "\n"
    yield f"Example: `{(command.epilog or '').splitlines()[-1].strip()}`\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None
            yield from each(inner, click.Context(inner, ctx, info_name=name))


def text(help_text: str) -> str:
    """A help text as paragraphs; what must keep its lines becomes a block."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(help_text)):
        if paragraph.startswith("\b"):
            lines = paragraph.removeprefix("\b").strip("\n")
            paragraphs.append(f"```text\n{lines}\n```")
        else:
            paragraphs.append(" ".join(paragraph.split()))
    return "\n\n".join(paragraphs) + "\n"


def row(option: click.Option) -> str:
    """One option; put together here, because click's own text differs from version to version."""
    names = ", ".join(sorted(option.opts, key=len))
    if option.secondary_opts:
        names += f" / {', '.join(option.secondary_opts)}"
    if not option.is_flag:
        kind = option.type
        names += (
            f" {option.metavar or ('|'.join(map(str, kind.choices)) if isinstance(kind, click.Choice) else 'VALUE')}"
        )
    cells = (part.replace("|", "\\|") for part in (names, " ".join((option.help or "").split())))
    return "| `{}` | {} |".format(*cells)


def written() -> str:
    """The page with its reference as it should be."""
    return PAGE.read_text().partition(BEGIN)[0] + BEGIN + "\n" + reference()


if __name__ == "__main__":
    PAGE.write_text(written())
