"""Work in the background: blocking, of storage only, one job at a time.

`Replica.background` hands out a job, any thread runs it, `Replica.background_done` takes it back.
"""

from __future__ import annotations

from typing import Protocol

import attrs

from walrq.queues.commands import Stamp, Tagged, decode_entry
from walrq.raft.entries import Kind
from walrq.storage.record import Record
from walrq.storage.storage import Storage

# What is applied in one go: some ten milliseconds of work.
LOAD_BYTES = 1 << 20
LOAD_COMMANDS = 2_000


class Job(Protocol):
    """See the module."""

    def run(self) -> None:
        """Do it. Blocking; any thread, one at a time. An error is final, as that of a persist."""


@attrs.frozen
class Loaded:
    """An entry read back from the log, its commands decoded."""

    kind: int
    stamp: Stamp | None
    commands: list[Tagged]
    body: bytes


def opened(record: Record) -> Loaded:
    """A record's entry. CorruptRecord if its commands cannot be read by this version."""
    if record.kind == Kind.COMMANDS:
        stamp, commands = decode_entry(record.body)
        return Loaded(record.kind, stamp, commands, b"")
    return Loaded(record.kind, None, [], record.body)


class LoadEntries:
    """Read committed entries that are to be applied and did not come through memory, from `first` up to `last`."""

    def __init__(self, storage: Storage, first: int, last: int) -> None:
        self._storage = storage
        self.first = first
        self.last = last
        self.loaded: dict[int, Loaded] = {}

    def run(self) -> None:
        """Read until there is enough to do. Blocking.

        Raises:
            CorruptRecord: an entry is damaged, or of a newer version.
        """
        size = commands = 0
        for index in range(self.first, self.last + 1):
            record = self._storage.read(index)
            entry = self.loaded[index] = opened(record)
            size += len(record.body)
            commands += len(entry.commands)
            if size >= LOAD_BYTES or commands >= LOAD_COMMANDS:
                return
