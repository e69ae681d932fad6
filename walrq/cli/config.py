"""`walrq config`: which settings count here, where each comes from, and whether a file is in order."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import click

from walrq.cli import output
from walrq.cli.arguments import (
    Group,
    example,
    json_option,
    load_settings,
    server_option,
    settings_file,
    settings_options,
    target,
)


@attrs.frozen
class Shown:
    """One setting as it is shown. `of` is "node" (what `walrq serve` would use) or "client"."""

    of: str
    setting: str
    value: str | None
    origin: str


@click.group(cls=Group, epilog=example("walrq config show --origin"))
def config() -> None:
    """Settings: which count here, and where each comes from."""


@config.command(epilog=example("walrq config show --origin --fsync never"))
@click.option("--origin", is_flag=True, help="Also say where each value comes from.")
@settings_options
@json_option
@server_option
def show(origin: bool, config: str | None, as_json: bool, server: str, **flags: Any) -> None:
    """Every setting that `walrq serve` would use with these flags, and which server commands speak to.

    A flag wins over a variable (WALRQ_FSYNC), that over the file, that over the default. --server and
    --context win over WALRQ_SERVER, that over WALRQ_CONTEXT, that over `walrq context use`. With --json the
    origin is always there; a node_id of null is the one kept in the data directory.
    """
    found = list(_settings(config, flags))
    if as_json:
        for each in found:
            output.json_line(attrs.asdict(each))
        return
    titles = ("of", "setting", "value", "origin") if origin else ("of", "setting", "value")
    output.table(titles, [attrs.astuple(each)[: len(titles)] for each in found])


def _settings(config: str | None, flags: dict[str, Any]) -> Iterator[Shown]:
    loaded = load_settings(config, flags)
    for name, _, origin in loaded.rows():
        yield Shown("node", name, loaded.text(name), origin)
    meant = target()
    yield Shown("client", "server", meant.url, meant.origin)


# Files that walrq reads: what each is, and what names it.
_FILES: Final = (("settings", "--config, WALRQ_CONFIG"), ("contexts", "XDG_CONFIG_HOME, HOME"))


@config.command("path", epilog=example("walrq config path"))
@json_option
def show_path(as_json: bool) -> None:
    """The files that settings come from, whether they are there or not."""
    from walrq.cli.contexts import path_of

    places = (settings_file(None), path_of(os.environ))
    rows = [(name, path, path is not None and path.exists()) for (name, _), path in zip(_FILES, places, strict=True)]
    if as_json:
        for name, path, there in rows:
            output.json_line({"file": name, "path": None if path is None else str(path), "exists": there})
        return
    cells = [
        (name, path or "none", "-" if path is None else "yes" if there else "no", named_by)
        for (name, path, there), (_, named_by) in zip(rows, _FILES, strict=True)
    ]
    output.table(("file", "path", "exists", "named by"), cells)


@config.command(epilog=example("walrq config check walrq.toml"))
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def check(file: Path, as_json: bool) -> int:
    """Whether FILE may be given to `walrq serve --config`. Exit status 78 when it has a mistake.

    Every mistake is one line.
    """
    from walrq.daemon.config import check_file
    from walrq.errors import ERRORS, Code

    right, mistakes = check_file(file)
    if as_json:
        output.json_line({"file": str(file), "settings": right, "mistakes": mistakes})
    else:
        for each in mistakes:
            print(f"walrq: {each}", file=sys.stderr)
        if not mistakes:
            print(f"{file}: {right} setting{'' if right == 1 else 's'}, all in order")
    return ERRORS[Code.CONFIG_INVALID].exit if mistakes else 0


COMMANDS = (config,)
