"""`walrq push --lines`: a file or a pipe as a stream of batches, many under way, counted exactly.

Lines leave in the order in which they were read. A live pipe (`tail -f | walrq push logs --lines -`) is
pushed as it grows: a batch is whatever lines one read brought.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from walrq.cli import output
from walrq.cli.arguments import open_client
from walrq.cli.interrupts import INTERRUPTS

READ_BYTES: Final = 256 * 1024
LINES_PER_BATCH: Final = 1_000
BATCHES_IN_FLIGHT: Final = 16
SHOW_EVERY_S: Final = 0.1


def push_lines(server: str | None, queue: str, name: str, options: dict[str, Any], *, as_json: bool) -> None:
    """Push every line of the file `name` ("-" = standard input); print how many.

    A last line without its line end counts. Line ends (LF, CR LF) are not part of a message; empty lines are
    messages.

    Raises:
        OSError: the file cannot be read.
        WalrqError: a batch failed; what is certainly in the queue was printed before.
    """
    with contextlib.ExitStack() as stack:
        descriptor = sys.stdin.fileno() if name == "-" else os.open(name, os.O_RDONLY)
        if name != "-":
            stack.callback(os.close, descriptor)
        client = stack.enter_context(open_client(server))
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(21, os.strerror(21), name)
        size = status.st_size if stat.S_ISREG(status.st_mode) else None
        stream = client.push_stream(queue, in_flight=BATCHES_IN_FLIGHT, **options)
        started = time.monotonic()
        try:
            with progress(size) as show:
                read = 0
                for batch, consumed in batches(descriptor, before_blocking=stream.drain):
                    INTERRUPTS.check()
                    stream.push(batch)
                    read += consumed
                    show(read, stream.pushed)
                stream.drain()
                show(read, stream.pushed)
        except BaseException:
            lines = "1 line is" if stream.pushed == 1 else f"{stream.pushed} lines are"
            print(f"walrq: {lines} in {queue} for certain", file=sys.stderr)
            raise
        seconds = time.monotonic() - started
    if as_json:
        output.json_line({"queue": queue, "pushed": stream.pushed, "seconds": round(seconds, 3)})
    else:
        print(f"pushed {stream.pushed} message{'' if stream.pushed == 1 else 's'} to {queue}")


def batches(descriptor: int, before_blocking: Any = None) -> Iterator[tuple[list[bytes], int]]:
    """(lines, bytes consumed) until the end. `before_blocking()` is called when the next read would wait."""
    rest = b""
    while True:
        if before_blocking is not None and not select.select([descriptor], [], [], 0)[0]:
            before_blocking()
        with INTERRUPTS.raising():
            data = os.read(descriptor, READ_BYTES)
        if not data:
            break
        if b"\n" not in data:
            # Joined once per read: a line of many reads costs what it must, and lines are bounded by the
            # server.
            rest += data
            continue
        lines = (rest + data).split(b"\n")
        rest = lines.pop()
        for start in range(0, len(lines), LINES_PER_BATCH):
            part = lines[start : start + LINES_PER_BATCH]
            consumed = sum(map(len, part)) + len(part)
            yield [line[:-1] if line.endswith(b"\r") else line for line in part], consumed
    if rest:
        yield [rest], len(rest)


@contextlib.contextmanager
def progress(total: int | None) -> Iterator[Any]:
    """A function (bytes read, messages pushed) that keeps a bar on a terminal up to date, elsewhere does
    nothing."""
    if not sys.stderr.isatty():
        yield lambda read, pushed: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.fields[pushed]:,} messages"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("push", total=total, pushed=0)
        shown_at = 0.0

        def show(read: int, pushed: int) -> None:
            nonlocal shown_at
            now = time.monotonic()
            if now - shown_at >= SHOW_EVERY_S or read == total:
                shown_at = now
                bar.update(task, completed=read, pushed=pushed)

        yield show
