"""A snapshot of another node: what is kept, what goes, and how the log goes on behind it."""

from __future__ import annotations

import random

import pytest

from tests.storage.crash import config
from walrq.errors import Reclaimed
from walrq.storage.record import Record
from walrq.storage.storage import Storage
from walrq.testing.disk import SimDisk

PAGES = {b"a": b"first page", b"b": b"second page" * 50}


def records(first: int, last: int, term: int, size: int = 300) -> list[Record]:
    """Records with contents that tell them apart."""
    return [Record(i, term, i % 200, random.Random(f"{i}/{term}").randbytes(size)) for i in range(first, last + 1)]


def opened(disk: SimDisk | None = None, **changes: int) -> Storage:
    return Storage.open(disk or SimDisk(), config(**changes))


def filled(last: int, term: int = 1, disk: SimDisk | None = None) -> Storage:
    """A log of so many records, over several segments."""
    storage = opened(disk)
    for record in records(1, last, term):
        storage.append_batch([record])
    return storage


def snapshot(storage: Storage, index: int, pages: dict[bytes, bytes] = PAGES) -> None:
    writer = storage.begin_snapshot(index, storage.term_at(index), b"meta")
    for key, page in pages.items():
        writer.put(key, page)
    writer.finish()


def install(storage: Storage, base: int, index: int, term: int, live: list[Record], *, holds: bool = False) -> None:
    installer = storage.begin_install(base, index, term, b"configuration")
    for record in live:
        installer.record(record)
    for key, page in PAGES.items():
        installer.page(key, page)
    installer.finish(holds=holds)


def check_installed(storage: Storage, kept: list[Record], live: list[Record], index: int, term: int) -> None:
    assert storage.snapshot is not None
    assert (index, term, b"configuration") == (storage.snapshot.index, storage.snapshot.term, storage.snapshot.meta)
    assert dict(storage.snapshot.pages()) == PAGES
    assert storage.term_at(index) == term
    assert [*kept, *live] == [record for record in storage.entries(1) if record.index <= index]
    there = {record.index: record for record in [*kept, *live]}
    for at in range(1, index + 1):
        if at in there:
            assert storage.read(at) == there[at]
        else:
            with pytest.raises(Reclaimed):
                storage.read(at)


@pytest.mark.parametrize(
    ("own", "base"), [(own, base) for own in (0, 1, 37, 40, 100) for base in (0, 1, 25, 37, 40) if base <= own]
)
def test_the_log_is_its_own_up_to_base_then_what_was_received_then_goes_on(own: int, base: int) -> None:
    """Now, and after a restart, and after another one."""
    disk = SimDisk()
    storage = filled(own, 1, disk)
    live = [record for record in records(base + 1, 90, 2) if record.index % 7 == 0]
    install(storage, base, 90, 3, live)
    kept = records(1, base, 1)
    check_installed(storage, kept, live, 90, 3)
    assert 90 == storage.last_index == storage.durable_index

    more = records(91, 140, 4)
    for record in more:
        storage.append_batch([record])
    for _ in range(2):
        check_installed(storage, kept, live, 90, 3)
        assert [*kept, *live, *more] == list(storage.entries(1))
        assert ((91, 4),) == storage.runs(91)
        storage.close(clean=False)
        storage = opened(disk.keep_all())
        assert () == storage.findings
