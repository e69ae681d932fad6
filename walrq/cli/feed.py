"""`walrq push --lines` and `--json-lines`: a file or a pipe as a stream of batches, many under way, counted exactly.

Lines leave in the order in which they were read. A live pipe (`tail -f | walrq push logs --lines -`) is
pushed as it grows: a batch is whatever lines one read brought.
"""

from __future__ import annotations

import base64
import contextlib
import difflib
import json
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from walrq.cli import output
from walrq.cli.arguments import open_client, seconds
from walrq.cli.interrupts import INTERRUPTS
from walrq.cli.messages import moment
from walrq.errors import InvalidArgument

if TYPE_CHECKING:
    from walrq.client.blocking import Client, PushStream
    from walrq.client.messages import NewMessage

READ_BYTES: Final = 256 * 1024
LINES_PER_BATCH: Final = 1_000
BATCHES_IN_FLIGHT: Final = 16
SHOW_EVERY_S: Final = 0.1
# Sets of options under way at a time; each may have so many batches in flight.
STREAMS_MAX: Final = 64


def push_lines(
    server: str | None, queue: str, name: str, options: dict[str, Any], *, as_json: bool, as_objects: bool = False
) -> None:
    """Push every line of the file `name` ("-" = standard input); print how many.

    A last line without its line end counts. Line ends (LF, CR LF) are not part of a message; empty lines are
    messages.

    Args:
        options: those of `Client.push`, for all lines.
        as_objects: each line is a JSON object (see `read_object`); empty lines are none.

    Raises:
        OSError: the file cannot be read.
        InvalidArgument: a line is no such object; those before it are pushed.
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
        streams = Streams(client, queue, options, as_objects)
        started = time.monotonic()
        try:
            with progress(size) as show:
                read = 0
                for batch, consumed in batches(descriptor, before_blocking=streams.drain):
                    INTERRUPTS.check()
                    streams.push(batch)
                    read += consumed
                    show(read, streams.pushed)
                streams.drain()
                show(read, streams.pushed)
        except BaseException:
            lines = "1 line is" if streams.pushed == 1 else f"{streams.pushed} lines are"
            print(f"walrq: {lines} in {queue} for certain", file=sys.stderr)
            raise
        seconds = time.monotonic() - started
    if as_json:
        output.json_line({"queue": queue, "pushed": streams.pushed, "seconds": round(seconds, 3)})
    else:
        print(f"pushed {streams.pushed} message{'' if streams.pushed == 1 else 's'} to {queue}")


class Streams:
    """Batches under way, a stream for each set of options that goes for a whole batch.

    All leave on one connection, in the order of the lines.
    """

    def __init__(self, client: Client, queue: str, options: dict[str, Any], as_objects: bool) -> None:
        self._client = client
        self._queue = queue
        self._headers = options.get("headers")
        self._group = options.get("group")
        self._options = {name: options.get(name) for name in OF_A_BATCH}
        self._as_objects = as_objects
        self._streams: dict[tuple[Any, ...], PushStream] = {}
        self._done = 0
        self._lines = 0

    @property
    def pushed(self) -> int:
        """Messages that are in the queue for certain."""
        return self._done + sum(stream.pushed for stream in self._streams.values())

    def push(self, lines: list[bytes]) -> None:
        """Send these lines, in order."""
        from walrq.client.messages import NewMessage

        if not self._as_objects:
            messages = [NewMessage(line, self._headers) for line in lines] if self._headers else lines
            self._stream(self._options).push(messages)
            return
        together: list[NewMessage] = []
        options = self._options
        for line in lines:
            self._lines += 1
            if not line.strip():
                continue
            try:
                message, own = read_object(line, self._options, self._headers, self._group)
            except InvalidArgument as error:
                if together:
                    self._stream(options).push(together)
                self.drain()
                raise InvalidArgument(f"line {self._lines} of the input: {error.text}") from None
            if together and own != options:
                self._stream(options).push(together)
                together = []
            together.append(message)
            options = own
        if together:
            self._stream(options).push(together)

    def drain(self) -> None:
        """Wait until every batch is answered."""
        for stream in self._streams.values():
            stream.drain()

    def _stream(self, options: dict[str, Any]) -> PushStream:
        key = tuple(options.values())
        stream = self._streams.get(key)
        if stream is None:
            if len(self._streams) >= STREAMS_MAX:
                self.drain()
                self._done = self.pushed
                self._streams = {}
            stream = self._streams[key] = self._client.push_stream(
                self._queue, in_flight=BATCHES_IN_FLIGHT, group=self._group, **options
            )
        return stream


def read_object(
    line: bytes, options: dict[str, Any], headers: dict[str, str] | None, group: str | None
) -> tuple[NewMessage, dict[str, Any]]:
    """A message from a JSON object, and the options of its batch: its own where it says, else `options`.

    Raises:
        InvalidArgument: it is no such object; names the field.
    """
    from walrq.client.messages import NewMessage

    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"it is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise InvalidArgument('it is no JSON object, such as {"payload": "hello", "priority": 5}')
    for name in given:
        if name not in _OWN and name not in _IGNORED:
            nearest = difflib.get_close_matches(name, _OWN, 1)
            hint = f"; did you mean {nearest[0]}?" if nearest else f"; known are {', '.join(_OWN)}"
            raise InvalidArgument(f"there is no field {name!r}{hint}")
    for name, kind in _KINDS.items():
        found = given.get(name)
        if found is not None and (not isinstance(found, kind) or isinstance(found, bool)):
            raise InvalidArgument(f"{name} is {json.dumps(found)[:60]}, which has the wrong type")
    own = dict(options)
    for name in OF_A_BATCH:
        if given.get(name) is not None:
            own[name] = _TIMES[name](given[name]) if name in _TIMES else given[name]
    if given.get("deliver_at") is not None and given.get("delay") is None:
        own["delay"] = None
    elif given.get("delay") is not None and given.get("deliver_at") is None:
        own["deliver_at"] = None
    own_headers = given.get("headers")
    message = NewMessage(
        _payload(given),
        {**(headers or {}), **own_headers} if own_headers else headers,
        given.get("group", group),
        given.get("dedup_id"),
    )
    return message, own


def _payload(given: dict[str, Any]) -> bytes | str:
    named = [name for name in ("payload", "payload_base64", "json") if name in given]
    if len(named) != 1:
        raise InvalidArgument("it needs one of payload, payload_base64 and json")
    if named[0] == "json":
        return json.dumps(given["json"], ensure_ascii=False, separators=(",", ":"))
    text = given[named[0]]
    if not isinstance(text, str):
        raise InvalidArgument(f"{named[0]} is {json.dumps(text)[:60]}, which is no text; json takes any value")
    if named[0] == "payload":
        # JSON can spell half characters, which no UTF-8 has.
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise InvalidArgument("payload holds half a surrogate pair, which is no text") from None
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidArgument(f"payload_base64 cannot be read: {error}") from None


def _duration(given: str | float) -> float:
    try:
        return seconds(given)
    except click.BadParameter as error:
        raise InvalidArgument(error.message) from None


def _instant(given: str | float) -> float:
    try:
        return moment(given)
    except click.UsageError as error:
        raise InvalidArgument(error.message) from None


# What goes for a whole batch; the rest is a message's own.
OF_A_BATCH: Final = ("priority", "delay", "ttl", "deliver_at", "max_attempts")
_OWN: Final = ("payload", "payload_base64", "json", "headers", "group", "dedup_id", *OF_A_BATCH)
# What poll, peek and tail print and what says nothing about a new message.
_IGNORED: Final = frozenset(
    "queue message_id receipt_handle delivery attempts fence pushed_at lease_s state due_at lease_left_s reason"
    " origin died_at history".split()
)
_KINDS: Final[dict[str, Any]] = {
    "headers": dict,
    "group": str,
    "dedup_id": str,
    "priority": int,
    "delay": int | float | str,
    "ttl": int | float | str,
    "deliver_at": int | float | str,
    "max_attempts": int,
}
_TIMES: Final[dict[str, Callable[[Any], float]]] = {"delay": _duration, "ttl": _duration, "deliver_at": _instant}


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
