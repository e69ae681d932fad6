"""`walrq wal`: look into a data directory, without a server and without changing anything."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from walrq.cli import output
from walrq.cli.arguments import JsonOption

DirectoryOption = Annotated[
    str | None,
    typer.Option("--data-dir", metavar="DIR", help="Data directory; default: WALRQ_DATA_DIR, else ./walrq-data."),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(
        help="Look into a data directory; nothing is changed.",
        epilog="Example: walrq wal verify",
        no_args_is_help=True,
    )
    group.command("inspect", epilog="Example: walrq wal inspect --records")(inspect)
    group.command("verify", epilog="Example: walrq wal verify")(verify)
    app.add_typer(group, name="wal")


def _directory(given: str | None) -> str:
    return given or os.environ.get("WALRQ_DATA_DIR") or os.environ.get("DATA_DIR") or "walrq-data"


def inspect(
    data_dir: DirectoryOption = None,
    records: Annotated[bool, typer.Option("--records", help="Every record instead of segments.")] = False,
    segment: Annotated[str, typer.Option(metavar="NAME", help="Records of this segment only.")] = "",
    from_index: Annotated[int, typer.Option(metavar="INDEX", help="Records from this index on.")] = 0,
    json: JsonOption = False,
) -> None:
    """List the log's segments, or its records."""
    from walrq.storage import inspect as storage

    directory = _directory(data_dir)
    if records or segment or from_index:
        values = storage.records(directory, segment=segment, from_index=from_index)
        names = ("segment", "offset", "verdict", "index", "term", "kind", "body_bytes")
    else:
        values = storage.segments(directory)
        names = ("segment", "first_index", "last_index", "records", "end", "file_bytes", "sealed")
    if json:
        for value in values:
            output.json_line(value)
        return
    output.table(names, ([value.get(name) for name in names] for value in values))


def verify(data_dir: DirectoryOption = None, json: JsonOption = False) -> None:
    """Read everything that a checksum covers. Exit status 74 when something durable is damaged."""
    from walrq.errors import ERRORS, Code
    from walrq.storage import inspect as storage

    found = storage.verify(_directory(data_dir))
    value: dict[str, Any] = found.as_json()
    if json:
        output.json_line(value)
    else:
        findings = value.pop("findings")
        output.table(("what", "value"), value.items())
        for finding in findings:
            print(" ".join(f"{name}={part}" for name, part in finding.items()))
    if not found.ok:
        raise typer.Exit(ERRORS[Code.CORRUPT_RECORD].exit)
