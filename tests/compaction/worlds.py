"""Logs of machines that lived, and what must be readable in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.replica.lives import life
from tests.storage.crash import config
from walrq.compaction.compaction import Compaction
from walrq.compaction.thinning import bodies_of
from walrq.queues import commands as c
from walrq.queues.image import full_pages
from walrq.queues.machine import Machine
from walrq.storage.record import Record
from walrq.storage.storage import Storage
from walrq.testing.disk import SimDisk

COMMANDS = 0


def alive(machine: Machine) -> Iterator[tuple[int, int, int, int]]:
    """(index, ordinal, first, last position) of every message of a machine."""
    for queue in machine.queues.values():
        for batch in queue.batches():
            spans = [(run.first, run.last) for run in (batch.pieces or {}).values()]
            if batch.fresh:
                spans.append((batch.cursor, batch.count - 1))
            for first, last in spans:
                yield batch.index, batch.ordinal, batch.base + first, batch.base + last


def payloads(body: bytes, ordinal: int, first: int, last: int) -> list[tuple[bytes, bytes]]:
    """Payload and headers of messages of a push in an entry."""
    columns = bodies_of(body)[ordinal]
    assert columns.has(first, last - first + 1), (ordinal, first, last)

    def cut(data: bytes | None, ends: bytes | None, position: int) -> bytes:
        if data is None or ends is None:
            return b""
        low = int.from_bytes(ends[4 * position - 4 : 4 * position], "little") if position else 0
        return data[low : int.from_bytes(ends[4 * position : 4 * position + 4], "little")]

    return [
        (cut(columns.payloads, columns.ends, at), cut(columns.headers, columns.header_ends, at))
        for at in range(first, last + 1)
    ]


def lived(
    disk: SimDisk, seed: int, entries: int, *, segment_bytes: int = 16 * 1024
) -> tuple[Storage, Machine, list[bytes]]:
    """A storage with the log of a random life and a snapshot of its end."""
    machine, bodies = life(seed, entries)
    storage = Storage.open(disk, config(segment_bytes=segment_bytes))
    for index, body in enumerate(bodies, 1):
        storage.append_batch([Record(index, 1, COMMANDS, body)])
    # So that the last segment of the life is sealed.
    storage.append_batch([Record(entries + 1, 1, COMMANDS, c.encode_entry(c.Stamp(0, 0), []))])
    image(storage, machine, entries)
    return storage, machine, bodies


def image(storage: Storage, machine: Machine, index: int) -> None:
    """A snapshot of a machine."""
    writer = storage.begin_snapshot(index, 1, b"")
    pages = full_pages(machine)
    for key in writer.keys() - pages.keys():
        writer.drop(key)
    for key, page in pages.items():
        writer.put(key, page)
    writer.finish()


def check_readable(storage: Storage, machine: Machine, bodies: list[bytes], what: object = "") -> int:
    """Every message that is alive reads as it was written. How many there are."""
    # inv: EveryLiveReadable
    count = 0
    for index, ordinal, first, last in alive(machine):
        body = storage.read(index).body
        assert payloads(body, ordinal, first, last) == payloads(bodies[index - 1], ordinal, first, last), (what, index)
        count += last - first + 1
    return count


def compaction_of(storage: Storage, through: Callable[[], int] = lambda: 1 << 60) -> Compaction:
    """A compaction of everything that the snapshot covers."""
    return Compaction(storage, through)
