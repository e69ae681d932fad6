"""`walrq backup` and `walrq restore`: a running node (or a stopped one's directory) to one file, and back."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from walrq.cli import output
from walrq.cli.arguments import confirm, example, json_option, server_option, yes_option

if TYPE_CHECKING:
    from walrq.backup.archive import Progress
    from walrq.backup.export import Part
    from walrq.backup.restoring import Verdict
    from walrq.client.pump import Pump

# The answer to "begin" waits for a snapshot. Whether the server is there at all is noticed otherwise.
PATIENCE_S: Final = 3600.0
# Reads under way at a time: the server reads the disk while the last piece travels.
READS_AHEAD: Final = 4

Chunks = Callable[[int], Iterable[bytes]]


@click.command(epilog=example("walrq backup jobs.walrq-backup"))
@click.argument("file", metavar="FILE|-")
@click.option("--data-dir", metavar="DIR", help="Back up the directory of a stopped node instead.")
@server_option
@yes_option
@json_option
def backup(file: str, data_dir: str | None, server: str | None, yes: bool, as_json: bool) -> None:
    """Copy a running node into one file, as it is now; pushes and polls go on meanwhile.

    Everything acknowledged before is in it. The file holds all messages and the key of all receipts: only its owner
    may read it. `-` writes to standard output.
    """
    if file == "-" and sys.stdout.isatty():
        raise click.UsageError("a backup is no text: name a file, or send standard output into one")
    if file != "-" and os.path.exists(file):
        confirm(f"{file} exists. Replace it?", yes, f"{file} exists, and replacing it cannot be undone")
    if data_dir is None:
        facts, parts = _from_server(file, server)
    else:
        facts, parts = _from_directory(file, data_dir)
    size = sum(part.size for part in parts)
    summary = {
        "file": file,
        "node": facts.get("node_id"),
        "index": facts.get("index"),
        "messages": facts.get("messages"),
        "bytes": size,
        "parts": len(parts),
    }
    # Standard output may be the backup itself.
    stream = sys.stderr if file == "-" else sys.stdout
    if as_json:
        print(json.dumps(summary), file=stream)
    elif file != "-":
        print(f"{file}: {facts.get('messages')} messages of {facts.get('node_id')}, {_megabytes(size)}", file=stream)


def _from_server(file: str, server: str | None) -> tuple[dict[str, Any], tuple[Part, ...]]:
    from walrq import api
    from walrq.backup.export import Part

    with _connected(server) as pump:
        begun = pump.end(pump.begin(api.BackupBegin()), api.BackupBegun)
        parts = tuple(Part(name, size) for name, size in begun.parts)
        _write(file, dict(begun.facts), parts, lambda number: _pieces(pump, begun.backup, number, parts[number].size))
        pump.end(pump.begin(api.BackupEnd(begun.backup)), api.Done)
    return dict(begun.facts), parts


@contextlib.contextmanager
def _connected(server: str | None) -> Iterator[Pump]:
    """One connection, and no other in its place: a backup ends with the connection that began it.

    Raises within: ConnectionLost as soon as it is gone; KeyboardInterrupt.
    """
    from walrq.cli.interrupts import INTERRUPTS
    from walrq.client.config import configure, parse_url
    from walrq.client.pump import Pump
    from walrq.errors import ConnectionLost

    pump = Pump(parse_url(server), configure(None, {"timeout_s": PATIENCE_S, "session": False}))
    pump.open()

    def look() -> None:
        INTERRUPTS.check()
        if not pump.connected:
            raise ConnectionLost("the server is gone, and the backup with it: it is not complete")

    pump.on_turn = look
    try:
        with INTERRUPTS.deferred(pump.wake_descriptor):
            yield pump
    finally:
        pump.on_turn = None
        pump.close()


def _pieces(pump: Pump, backup: int, part: int, size: int) -> Iterator[bytes]:
    """The bytes of one part, a few reads under way at a time."""
    from walrq import api
    from walrq.client.exchange import Call
    from walrq.limits import BACKUP_READ_BYTES_MAX

    calls: deque[Call] = deque()
    offset = 0
    while offset < size or calls:
        while offset < size and len(calls) < READS_AHEAD:
            calls.append(pump.begin(api.BackupRead(backup, part, offset, BACKUP_READ_BYTES_MAX)))
            offset += BACKUP_READ_BYTES_MAX
        yield pump.end(calls.popleft(), api.BackupChunk).data


def _from_directory(file: str, data_dir: str) -> tuple[dict[str, Any], tuple[Part, ...]]:
    from walrq.backup.export import Export
    from walrq.daemon.backup import with_stopped
    from walrq.limits import BACKUP_READ_BYTES_MAX

    def use(export: Export) -> tuple[dict[str, Any], tuple[Part, ...]]:
        def pieces(number: int) -> Iterator[bytes]:
            for offset in range(0, export.parts[number].size, BACKUP_READ_BYTES_MAX):
                yield export.read(number, offset, BACKUP_READ_BYTES_MAX)

        _write(file, export.facts, export.parts, pieces)
        return export.facts, export.parts

    return with_stopped(data_dir, use)


def _write(file: str, facts: dict[str, Any], parts: tuple[Part, ...], chunks: Chunks) -> None:
    from walrq.backup import archive

    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(_progress("backup", sum(part.size for part in parts)))
        if file == "-":
            target: BinaryIO = sys.stdout.buffer
        else:
            target = stack.enter_context(archive.new_file(file))
        patient = _Interruptible(target)
        archive.write(patient, facts, parts, chunks, progress)
        patient.flush()


class _Interruptible(io.RawIOBase):
    """A file to write to, in which Ctrl-C ends a write that nobody takes."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        from walrq.cli.interrupts import INTERRUPTS

        with INTERRUPTS.raising():
            return self._file.write(data)

    def flush(self) -> None:
        from walrq.cli.interrupts import INTERRUPTS

        with INTERRUPTS.raising():
            self._file.flush()


@click.command(epilog=example("walrq backup - | walrq restore - --data-dir ./copy"))
@click.argument("file", metavar="FILE|-")
@click.option("--data-dir", metavar="DIR", help="A new or empty directory: where the node will live.")
@click.option("--check", is_flag=True, help="Only read the whole backup and verify it; nothing is written.")
@json_option
def restore(file: str, data_dir: str | None, check: bool, as_json: bool) -> None:
    """Make a data directory from a backup, for `walrq serve --data-dir DIR`.

    The copy has its node's name and honours receipts from before the backup. It is another node all the same: never
    let both serve the same workers. Leases that ran at the backup have what they had left; then they expire.
    """
    from walrq.backup import restoring

    if check == (data_dir is not None):
        raise click.UsageError("give --data-dir DIR to restore, or --check to verify only")
    with contextlib.ExitStack() as stack:
        source: BinaryIO = sys.stdin.buffer if file == "-" else stack.enter_context(open(file, "rb"))
        size = os.fstat(source.fileno()).st_size if file != "-" else None
        progress = stack.enter_context(_progress("check" if check else "restore", size))
        if data_dir is None:
            verdict = restoring.verify(source, progress=progress)
        else:
            verdict = restoring.restore(source, data_dir, progress=progress)
    _tell(verdict, file, data_dir, as_json)


def _tell(verdict: Verdict, file: str, data_dir: str | None, as_json: bool) -> None:
    facts = verdict.facts
    for finding in verdict.findings:
        print(f"walrq: the node was damaged when it was backed up: {finding}", file=sys.stderr)
    if as_json:
        output.json_line(
            {
                "file": file,
                "data_dir": data_dir,
                "node": facts.get("node_id"),
                "index": facts.get("index"),
                "messages": facts.get("messages"),
                "bytes": verdict.bytes,
                "findings": [finding.as_json() for finding in verdict.findings],
            }
        )
    elif data_dir is None:
        print(f"{file}: whole; {facts.get('messages')} messages of {facts.get('node_id')}, {_megabytes(verdict.bytes)}")
    else:
        print(f"{data_dir}: {facts.get('messages')} messages of {facts.get('node_id')}")
        output.note(f"next: walrq serve --data-dir {data_dir}")


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:,.1f} MB" if size >= 1_000_000 else f"{size / 1_000:.1f} kB"


@contextlib.contextmanager
def _progress(what: str, size: int | None) -> Iterator[Progress]:
    """A bar for the person at the terminal; nothing for a pipe. Ctrl-C ends the work at the next piece."""
    from walrq.cli.interrupts import INTERRUPTS

    def quietly(_count: int) -> None:
        INTERRUPTS.check()

    if not sys.stderr.isatty():
        yield quietly
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=size)

        def show(count: int) -> None:
            INTERRUPTS.check()
            bar.advance(task, count)

        yield show


COMMANDS = (backup, restore)
