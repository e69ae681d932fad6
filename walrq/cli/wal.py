"""`walrq wal`: look into a data directory, without a server and without changing anything."""

from __future__ import annotations

import os
from typing import Any

import attrs
import click

from walrq.cli import output
from walrq.cli.arguments import F, Group, example, json_option


def _directory_option(command: F) -> F:
    return click.option(
        "--data-dir", metavar="DIR", help="Data directory.  [default: WALRQ_DATA_DIR, else ./walrq-data]"
    )(command)


def _directory(given: str | None) -> str:
    return given or os.environ.get("WALRQ_DATA_DIR") or os.environ.get("DATA_DIR") or "walrq-data"


@click.group(cls=Group, epilog=example("walrq wal verify"))
def wal() -> None:
    """Look into a data directory; nothing is changed."""


@wal.command(epilog=example("walrq wal inspect --records"))
@_directory_option
@click.option("--records", is_flag=True, help="Every record instead of segments.")
@click.option("--segment", metavar="NAME", default="", help="Records of this segment only.")
@click.option("--from-index", metavar="INDEX", type=click.IntRange(min=0), default=0, help="Records from here on.")
@json_option
def inspect(data_dir: str | None, records: bool, segment: str, from_index: int, as_json: bool) -> None:
    """List the log's segments, or its records."""
    from walrq.storage import inspect as storage

    directory = _directory(data_dir)
    if records or segment or from_index:
        values = storage.records(directory, segment=segment, from_index=from_index)
        names = ("segment", "offset", "verdict", "index", "term", "kind", "body_bytes")
    else:
        values = storage.segments(directory)
        names = ("segment", "first_index", "last_index", "records", "end", "file_bytes", "sealed")
    if as_json:
        for value in values:
            output.json_line(value)
        return
    output.table(names, ([value.get(name) for name in names] for value in values))


@wal.command(epilog=example("walrq wal verify"))
@_directory_option
@json_option
def verify(data_dir: str | None, as_json: bool) -> int:
    """Read everything that a checksum covers. Exit status 74 when something durable is damaged."""
    from walrq.compaction.verifying import find_homeless
    from walrq.errors import ERRORS, Code
    from walrq.storage import inspect as storage

    found = storage.verify(_directory(data_dir))
    homeless = find_homeless(_directory(data_dir))
    if homeless:
        found = attrs.evolve(found, ok=False, findings=(*found.findings, *homeless))
    value: dict[str, Any] = found.as_json()
    if as_json:
        output.json_line(value)
    else:
        findings = value.pop("findings")
        output.table(("what", "value"), value.items())
        for finding in findings:
            print(" ".join(f"{name}={part}" for name, part in finding.items()))
    return 0 if found.ok else ERRORS[Code.CORRUPT_RECORD].exit


COMMANDS = (wal,)
