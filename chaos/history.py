"""The record of a run: what was asked, what was answered, what was done to the nodes, and when.

A history is a text file, one JSON object per line, in the order of its monotonic times:

    {"type": "invoke", "time": ns, "wall": ns, "process": "p1", "op": "push", "args": {...}}
    {"type": "ok",     "time": ns, "wall": ns, "process": "p1", "op": "push", "result": {...}}
    {"type": "nemesis","time": ns, "wall": ns, "process": "nemesis", "op": "kill", "args": {...}}

`time` is monotonic and one clock for the whole file, `wall` is since 1970. A process does one thing at a
time: its invocation is followed by exactly one completion (or by none, at the end of the file). A completion
is

- `ok`: the answer arrived;
- `fail`: it is *proven* that the operation did not and will not happen (a definite error, see
  `walrq.errors`);
- `info`: the outcome is unknown. The process ends with it; who goes on working does so under a new name.

Messages are named by the *value* (an integer, unique in the run) that their payload carries, not by their
id, because a producer knows the value even when no reply came. Lists of values and of offsets are packed:
`[[3, 7], 9]` is 3 to 7 and 9. Operations and their fields:

    push    args: queue, values, priority?, delay_ms?, deliver_at_ms?, ttl_ms?, max_attempts?, grouped?
            result: first (id of the first value)? or ids (one each)?
    poll    args: queues, max, visibility_ms?, wait_ms, consumer
            result: parked_ms, visibility_ms, runs: [{queue, lease, values, ids?|first?, delivery, attempts,
            fence}]
    settle  args: queue, kind (ack release fail reject), items: [{lease, offsets?}], delay_ms?
            result: codes (one per item, 0 = done)
    touch   args: queue, items, visibility_ms     result: codes
    set     args: queue, settings                 result: {}
    show    args: queue                           result: ready, delayed, leased, parked, dead
    nemesis kill | restart | pause | resume | cut | heal | phase | drained, args free

Never: judges (that is `checker`), reads a clock that was not handed in.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import attrs

INVOKE: Final = "invoke"
OK: Final = "ok"
FAIL: Final = "fail"
INFO: Final = "info"
NEMESIS: Final = "nemesis"
COMPLETIONS: Final = frozenset({OK, FAIL, INFO})
TYPES: Final = COMPLETIONS | {INVOKE, NEMESIS}
OPERATIONS: Final = frozenset({"push", "poll", "settle", "touch", "set", "show"})
# A value that stands for a payload nobody can have sent: it did not decode, or its checksum was wrong.
CORRUPT: Final = -1
_BODY_KEY: Final = {INVOKE: "args", NEMESIS: "args", OK: "result", FAIL: "error", INFO: "error"}
# Long lists are cut nowhere, but one line must fit in memory many times over.
LINE_BYTES_MAX: Final = 16 * 1024 * 1024


class HistoryError(Exception):
    """The file is not a history; the text names the line."""


@attrs.define(slots=True)
class Event:
    """One line. `body` is the args of an invocation or fault, the result or error of a completion."""

    type: str
    time: int
    wall: int
    process: str
    op: str
    body: Mapping[str, Any]
    line: int = 0


def pack(values: Iterable[int]) -> list[int | list[int]]:
    """`values` in their order, stretches of consecutive rising ones as [first, last]."""
    packed: list[int | list[int]] = []
    first = last = None
    for value in values:
        if last is not None and value == last + 1:
            last = value
            continue
        if first is not None and last is not None:
            packed.append(first if first == last else [first, last])
        first = last = value
    if first is not None and last is not None:
        packed.append(first if first == last else [first, last])
    return packed


def unpack(packed: Sequence[Any]) -> list[int]:
    """The opposite of `pack`.

    Raises: HistoryError for anything but integers and rising pairs of them.
    """
    values: list[int] = []
    for part in packed:
        if type(part) is int:
            values.append(part)
        elif type(part) is list and len(part) == 2 and part[0] <= part[1]:
            values.extend(range(part[0], part[1] + 1))
        else:
            raise HistoryError(f"not a value or a pair of values: {part!r}")
    return values


class Writer:
    """Appends lines to a file. Used by one thread; whoever writes from several processes merges by time."""

    def __init__(
        self,
        file: IO[bytes],
        *,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._file = file
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns
        self._open: dict[str, str] = {}
        self._retired: set[str] = set()
        self.lines = 0

    def invoke(self, process: str, op: str, args: Mapping[str, Any]) -> None:
        """Write that `process` is about to send `op`. Call it before the first byte leaves."""
        assert op in OPERATIONS, op
        assert process not in self._open, f"{process} is still waiting for {self._open.get(process)}"
        assert process not in self._retired, f"{process} ended with an unknown outcome"
        self._open[process] = op
        self._write(INVOKE, process, op, args)

    def complete(self, process: str, type_: str, body: Mapping[str, Any]) -> None:
        """Write how the open operation of `process` ended. Call it after the reply was read."""
        assert type_ in COMPLETIONS, type_
        op = self._open.pop(process)
        if type_ == INFO:
            self._retired.add(process)
        self._write(type_, process, op, body)

    def nemesis(self, op: str, args: Mapping[str, Any]) -> None:
        """Write a fault, or a change of phase."""
        self._write(NEMESIS, NEMESIS, op, args)

    def flush(self) -> None:
        """Hand buffered lines to the operating system."""
        self._file.flush()

    def _write(self, type_: str, process: str, op: str, body: Mapping[str, Any]) -> None:
        line = {
            "type": type_,
            "time": self._monotonic_ns(),
            "wall": self._wall_ns(),
            "process": process,
            "op": op,
            _BODY_KEY[type_]: body,
        }
        self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self.lines += 1


class Actor:
    """A worker that outlives unknown outcomes: after each it goes on under a new process name."""

    def __init__(self, writer: Writer, name: str) -> None:
        self._writer = writer
        self.name = name
        self._life = 0

    @property
    def process(self) -> str:
        """The name under which the next operation is recorded."""
        return f"{self.name}.{self._life}"

    def invoke(self, op: str, args: Mapping[str, Any]) -> None:
        """See `Writer.invoke`."""
        self._writer.invoke(self.process, op, args)

    def complete(self, type_: str, body: Mapping[str, Any]) -> None:
        """See `Writer.complete`."""
        self._writer.complete(self.process, type_, body)
        if type_ == INFO:
            self._life += 1


def read(path: Path) -> Iterator[Event]:
    """Every event of a history file, in order.

    A torn last line (the recording process was killed) is left out: what it would have said is unknown, and
    an invocation without completion says exactly that.

    Raises: HistoryError for a line that is no event, naming it.
    """
    with path.open("rb") as file:
        yield from parse(file)


def parse(lines: Iterable[bytes]) -> Iterator[Event]:
    """Events of the lines of a history. See `read`."""
    before = None
    for number, raw in enumerate(lines, start=1):
        if not raw.endswith(b"\n"):
            return
        event = _event(raw, number)
        if before is not None and event.time < before:
            raise HistoryError(f"line {number}: time goes back; merge the parts of a history by time first")
        before = event.time
        yield event


def _event(raw: bytes, number: int) -> Event:
    """The event of one line."""
    if len(raw) > LINE_BYTES_MAX:
        raise HistoryError(f"line {number}: longer than {LINE_BYTES_MAX} bytes")
    try:
        line = json.loads(raw)
        type_ = line["type"]
        return Event(
            type=type_,
            time=int(line["time"]),
            wall=int(line["wall"]),
            process=str(line["process"]),
            op=line["op"],
            body=line[_BODY_KEY[type_]],
            line=number,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise HistoryError(f"line {number}: not an event: {error!r}") from None
