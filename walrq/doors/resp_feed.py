"""SYNC: what is decided, entry by entry, as command frames; for as long as its readers keep up.

A feed tells everything that changes a queue, on whatever node it is asked for: pushes, leases with their ids, every way
in which they end (settled, given back, expired), deaths, replays, removals. A frame is an array of bulk strings:

    REPLCONF ENTRY index wall-ms                  before the frames of an entry
    LPUSH queue payload ...                       LPUSH_PRIORITY queue 0-255 payload ...
    LPUSH_DELAY queue seconds payload ...         RPOPLEASE queue seconds lease-id message-id count
    TASKACK|TASKNACK|TASKRELEASE|TASKREJECT queue lease-id [first-last ...]
    TASKTOUCH queue lease-id seconds              TASKEXPIRE queue lease-id count
    TASKDEAD queue count                          RPOPLPUSH source destination count
    DLQ_REPLAY queue count                        DLQ_PURGE queue count
    CANCEL queue message-id ...                   RESCHEDULE queue message-id wall-ms
    PURGE queue count                             DEL queue count
    QUEUE_SET queue [name value ...]

A reader that is `RESP_FEED_BYTES_MAX` behind, or a node whose state came from another one's snapshot, ends the feed:
never a gap that nobody notices.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from walrq import api
from walrq.daemon.broker import Broker
from walrq.ids import TASKS_UID, format_id
from walrq.queues import commands as c
from walrq.queues.effects import Granted, Result
from walrq.queues.machine import Machine
from walrq.resp import writing

if TYPE_CHECKING:
    from walrq.doors.resp_port import RespPort

_ONE: Final = struct.Struct("<I")
_SETTLES: Final = {
    api.SettleKind.ACK: "TASKACK",
    api.SettleKind.FAIL: "TASKNACK",
    api.SettleKind.RELEASE: "TASKRELEASE",
    api.SettleKind.REJECT: "TASKREJECT",
}
Words = list[Any]


class Feed:
    """All readers of one node."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._machine: Machine | None = None
        self._readers: set[RespPort] = set()

    def join(self, reader: RespPort) -> None:
        """Feed a connection from now on."""
        if self._machine is not self._broker.machine:
            self._watch(self._broker.machine)
        self._readers.add(reader)

    def leave(self, reader: RespPort) -> None:
        """A connection is gone; it need not have joined."""
        self._readers.discard(reader)
        if not self._readers and self._machine is not None:
            self._watch(None)

    def look(self) -> None:
        """The state may be another's now: then nobody can be told how it came about."""
        if self._readers and self._machine is not self._broker.machine:
            readers, self._readers = self._readers, set()
            self._watch(None)
            for reader in readers:
                reader.cut("this node's state came from another node's snapshot")

    def _watch(self, machine: Machine | None) -> None:
        if self._machine is not None:
            self._machine.observe = self._machine.notes = None
        self._machine = machine
        if machine is not None:
            machine.observe = self._tell
            machine.notes = []

    def _tell(self, index: int, stamp: c.Stamp, entry: Sequence[c.Tagged], results: Sequence[Result]) -> None:
        machine = self._machine
        assert machine is not None and machine.notes is not None
        notes, machine.notes = machine.notes, []
        told: list[Words] = []
        again = set()
        for what, queue, lease, count in notes:
            if what == "again":
                again.add(count)
            elif lease is None:
                told.append(["TASKDEAD", queue, str(count)])
            else:
                told.append(["TASKEXPIRE", queue, lease_id(lease.number, lease.task), str(count)])
        for ordinal, (tagged, result) in enumerate(zip(entry, results, strict=True)):
            if ordinal not in again:
                told += frames(tagged.command, result, stamp, machine)
        if not told:
            return
        told.insert(0, ["REPLCONF", "ENTRY", str(index), str(stamp.wall_ms)])
        data = b"".join([writing.encode(words, 2) for words in told])
        for reader in list(self._readers):
            reader.feed(data)


def lease_id(number: int, task: int) -> str:
    """How a lease is called: by its task number, else by its number in its queue."""
    return f"task-{task}" if task else f"lease-{number}"


def _target(target: c.Target) -> list[str]:
    ranges = [f"{first}-{last}" for first, last in target.ranges or ()]
    if target.uid == TASKS_UID:
        return [f"task-{target.lease}", *ranges]
    return [f"lease-{target.lease}", *ranges]


def frames(command: c.Command, result: Result, stamp: c.Stamp, machine: Machine) -> Iterator[Words]:
    """What a command did, as commands; nothing when it was refused."""
    tell = _TELL.get(type(command))
    if tell is not None and type(result) is not api.Failed:
        yield from tell(command, result, stamp, machine)


def _push(command: c.Push, result: api.Pushed, stamp: c.Stamp, machine: Machine) -> Iterator[Words]:
    payloads = []
    start = 0
    columns = command.columns
    for (end,) in _ONE.iter_unpack(columns.ends):
        payloads.append(columns.payloads[start:end])
        start = end
    stored = [payload for position, payload in enumerate(payloads) if position not in result.duplicates]
    if not stored:
        return
    delay_ms = command.delay_ms or 0
    if command.deliver_at_ms is not None:
        delay_ms = max(0, command.deliver_at_ms - stamp.wall_ms)
    elif command.delay_ms is None:
        queue = machine.queues.get(command.queue)
        delay_ms = queue.settings.delay_ms if queue is not None else 0
    if delay_ms:
        yield ["LPUSH_DELAY", command.queue, f"{delay_ms / 1000:g}", *stored]
    elif command.priority:
        yield ["LPUSH_PRIORITY", command.queue, str(command.priority), *stored]
    else:
        yield ["LPUSH", command.queue, *stored]


def _lease(command: c.Lease, result: Granted, stamp: c.Stamp, machine: Machine) -> Iterator[Words]:
    for run in result.runs:
        if run.lease:
            seconds = f"{result.visibility_ms / 1000:g}"
            name = lease_id(run.lease, run.task)
            yield ["RPOPLEASE", run.queue, seconds, name, format_id(run.first_id), str(run.count)]
        else:
            assert command.into is not None
            yield ["RPOPLPUSH", run.queue, command.into, str(run.count)]


def _settle(command: c.Settle, result: api.Settled, stamp: c.Stamp, machine: Machine) -> Iterator[Words]:
    for target, code in zip(command.targets, result.codes, strict=True):
        if not code:
            yield [_SETTLES[command.kind], command.queue, *_target(target)]


def _touch(command: c.Touch, result: api.Touched, stamp: c.Stamp, machine: Machine) -> Iterator[Words]:
    for target, code in zip(command.targets, result.codes, strict=True):
        if not code:
            yield ["TASKTOUCH", command.queue, *_target(target), f"{command.visibility_ms / 1000:g}"]


def _undo(command: c.Undo, result: api.Done, stamp: c.Stamp, machine: Machine) -> Iterator[Words]:
    for target in command.targets:
        queue = machine.by_uid.get(target.uid)
        if queue is not None:
            yield ["TASKRELEASE", queue.name, *_target(target)]


def _cancel(command: c.Cancel, result: api.Outcomes, stamp: c.Stamp, machine: Machine) -> Iterator[Words]:
    done = [
        format_id(identifier)
        for identifier, outcome in zip(command.ids, result.outcomes, strict=True)
        if outcome is api.Outcome.DONE
    ]
    if done:
        yield ["CANCEL", command.queue, *done]


def _reschedule(command: c.Reschedule, result: api.Outcomes, stamp: c.Stamp, machine: Machine) -> Iterator[Words]:
    if result.outcomes[0] is api.Outcome.DONE:
        yield ["RESCHEDULE", command.queue, format_id(command.id), str(command.deliver_at_ms)]


def _set_queue(command: c.SetQueue, result: api.Done, stamp: c.Stamp, machine: Machine) -> Iterator[Words]:
    settings = [word for name in sorted(command.settings) for word in (name, str(command.settings[name]))]
    yield ["QUEUE_SET", command.queue, *settings]


def _move(command: c.Move, result: api.Moved, stamp: c.Stamp, machine: Machine) -> Iterator[Words]:
    if result.count:
        yield ["RPOPLPUSH", command.source, command.target, str(result.count)]


def _redrive(command: c.Redrive, result: api.Moved, stamp: c.Stamp, machine: Machine) -> Iterator[Words]:
    if result.count:
        yield ["DLQ_REPLAY", command.queue, str(result.count)]


def _counted(name: str) -> Callable[..., Iterator[Words]]:
    def tell(command: Any, result: api.Done, stamp: c.Stamp, machine: Machine) -> Iterator[Words]:
        yield [name, command.queue, str(result.count)]

    return tell


_TELL: Final[dict[type, Callable[..., Iterator[Words]]]] = {
    c.Push: _push,
    c.Lease: _lease,
    c.Settle: _settle,
    c.Touch: _touch,
    c.Undo: _undo,
    c.Cancel: _cancel,
    c.Reschedule: _reschedule,
    c.SetQueue: _set_queue,
    c.Move: _move,
    c.Redrive: _redrive,
    c.PurgeDead: _counted("DLQ_PURGE"),
    c.PurgeQueue: _counted("PURGE"),
    c.DeleteQueue: _counted("DEL"),
}
