"""A snapshot of another node: what is kept, what goes, and how the log goes on behind it."""

from __future__ import annotations

import errno
import random

import pytest

from tests.storage.crash import ROT, config
from walrq.errors import CorruptRecord, DiskFull, Reclaimed, StorageError
from walrq.storage import inspect
from walrq.storage.config import FsyncPolicy
from walrq.storage.record import Record
from walrq.storage.storage import Storage
from walrq.testing.disk import PowerOff, SimDisk

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


State = tuple[int, int, tuple[Record, ...], int, tuple[tuple[bytes, bytes], ...]]


def state_of(storage: Storage) -> State:
    """All that a caller can see: the log, and the snapshot."""
    found = storage.snapshot
    pages = () if found is None else tuple(sorted(found.pages()))
    entries = tuple(storage.entries(1))
    return (storage.last_index, storage.last_term, entries, 0 if found is None else found.index, pages)


def lived(own: int) -> SimDisk:
    """A node that has a log over several segments, an own snapshot and something given back."""
    disk = SimDisk()
    storage = filled(own, 1, disk)
    if own > 20:
        snapshot(storage, 20, {b"old": b"own page"})
        storage.reclaim(20, lambda first, last: first <= 3 or last >= 18)
    storage.close(clean=False)
    return disk.keep_all()


def receive(disk: SimDisk, base: int, index: int, *, holds: bool) -> Storage:
    """Open, install a few records and pages, and go on."""
    storage = opened(disk)
    live = [record for record in records(base + 1, index, 2, 2500) if record.index % 5 == 0]
    install(storage, base, index, 1 if holds else 3, live, holds=holds)
    return storage


@pytest.mark.parametrize(
    ("own", "base", "index", "holds"),
    [(0, 0, 30, False), (40, 33, 50, False), (30, 30, 50, False), (60, 10, 45, False), (60, 10, 45, True)],
)
def test_power_loss_at_every_operation_of_an_install_leaves_the_state_before_or_after(
    own: int, base: int, index: int, holds: bool
) -> None:
    """With every unsynced write kept, dropped, torn and mixed; the directory then goes on, and stays what it was."""
    origin = lived(own)
    storage = opened(origin.keep_all())
    before, started = state_of(storage), storage.recovered.report
    assert () == started
    whole = origin.keep_all()
    storage = receive(whole, base, index, holds=holds)
    after = state_of(storage)
    assert before != after
    points = whole.operation_count
    seen = set()
    for point in range(points):
        disk = origin.keep_all()
        disk.power_off_at = point
        with pytest.raises(PowerOff):
            receive(disk, base, index, holds=holds)
        fates = [disk.keep_all(), disk.crash(point)]
        if point % 12 == own % 12:
            fates += [after_crash for _, after_crash in disk.aftermaths(seed=point)]
        for fate in fates:
            seen.add(check_either(fate, before, after, f"power off before {point}"))
    check_either(whole.crash(1), after, after, "finished")
    assert {before[3], after[3]} == seen


def check_either(disk: SimDisk, before: State, after: State, what: str) -> int:
    """Open a disk after a crash: one of two states, nothing rotten; then write, crash and look again."""
    verified = inspect.verify("data", disk=disk)
    assert verified.ok, (what, verified.findings)
    storage = opened(disk)
    found = state_of(storage)
    # inv: NoMixedRead
    assert found in (before, after), what
    assert verified.snapshot_index == found[3], what
    assert not [finding for finding in storage.findings if finding.verdict in ROT], (what, storage.findings)
    assert [] == [name for name in disk.list_directory("data/wal") if name.startswith("new-")], what
    more = Record(storage.last_index + 1, 9, 1, b"behind it")
    storage.append_batch([more])
    again = opened(disk.keep_all())
    assert () == again.recovered.report, what
    assert (more.index, 9, (*found[2], more), *found[3:]) == state_of(again), what
    return found[3]


@pytest.mark.parametrize("fsync", ["never", ("interval", 50)], ids=["never", "interval"])
@pytest.mark.parametrize("base", [10, 37, 40])
def test_what_stays_of_the_own_log_is_durable_under_any_policy(fsync: FsyncPolicy, base: int) -> None:
    """What came before the snapshot must not be lost behind it by a power loss."""
    disk = SimDisk()
    storage = Storage.open(disk, config(fsync))
    for record in records(1, 40, 1):
        storage.append_batch([record])
    live = records(base + 1, 60, 2)[::3]
    first = disk.operation_count
    install(storage, base, 60, 3, live)
    for point in range(1, disk.operation_count - first + 1):
        disk = SimDisk()
        storage = Storage.open(disk, config(fsync))
        for record in records(1, 40, 1):
            storage.append_batch([record])
        disk.power_off_at = first + point
        try:
            install(storage, base, 60, 3, live)
        except PowerOff:
            pass
        again = Storage.open(disk.crash(point), config(fsync))
        if again.snapshot is not None:
            check_installed(again, records(1, base, 1), live, 60, 3)
    assert again.snapshot is not None


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
def test_an_install_whose_nth_operation_fails_changes_nothing_or_is_final(code: int) -> None:
    """After DiskFull and an abort the log goes on; after an error the next start has one of the two states."""
    origin = lived(50)
    before = state_of(opened(origin.keep_all()))
    whole = origin.keep_all()
    storage = opened(whole)
    first = whole.operation_count
    storage.close(clean=False)
    whole = origin.keep_all()
    after = state_of(receive(whole, 33, 60, holds=False))
    for point in range(first, whole.operation_count):
        disk = origin.keep_all()
        disk.fail(point, code)
        storage = opened(disk)
        installer = storage.begin_install(33, 60, 3, b"configuration")
        try:
            for record in records(34, 60, 2, 2500):
                if record.index % 5 == 0:
                    installer.record(record)
            for key, page in PAGES.items():
                installer.page(key, page)
            installer.finish()
        except (DiskFull, StorageError):
            try:
                installer.abort()
                storage.append_batch([Record(storage.last_index + 1, 9, 1, b"goes on")])
                storage.read(storage.last_index)
                storage.truncate_suffix(storage.last_index)
            except StorageError:
                pass
        check_either(disk.keep_all(), before, after, f"operation {point} failed, all kept")
        check_either(disk.crash(point), before, after, f"operation {point} failed, mixed")


def test_a_stream_brings_the_live_records_and_pages_from_any_offset() -> None:
    """Cut anywhere, read twice, resumed at another place: the receiver has what the sender's pin has."""
    sender = filled(120)
    live = {3, 4, 5, 41, 77, 78, 119}

    def is_live(first: int, last: int) -> bool:
        return any(first <= index <= last for index in live)

    snapshot(sender, 115)
    sender.reclaim(115, is_live)
    pin = sender.pin()
    pin.fix()
    outgoing = sender.stream(pin, 4, is_live)
    whole, ended = outgoing.read(0, 1 << 20)
    assert ended
    draw = random.Random(5)
    for _ in range(40):
        offset, size = draw.randrange(len(whole)), draw.randrange(1, 3000)
        assert (whole[offset : offset + size], offset + size >= len(whole)) == outgoing.read(offset, size)
    with pytest.raises(StorageError, match="behind the end"):
        outgoing.read(len(whole) + 1, 10)

    receiver = filled(4)
    installer = receiver.begin_install(4, pin.manifest.index, pin.manifest.term, b"configuration")
    offset = 0
    while offset < len(whole):
        size = draw.randrange(1, 700)
        data, _ = outgoing.read(offset, size)
        installer.feed(data)
        offset += len(data)
    installer.finish()
    pin.release()
    check_installed(receiver, records(1, 4, 1), [r for r in records(5, 115, 1) if r.index in live], 115, 1)


def test_a_received_log_is_sent_on_and_given_back_like_any_other() -> None:
    """Sparse segments are read by streams, pinned, reclaimed, and stepped over by entries."""
    live = [record for record in records(1, 300, 2, 900) if record.index % 3 == 0]
    middle = opened()
    install(middle, 0, 300, 3, live)
    kept = {record.index for record in live if record.index > 200}

    def is_live(first: int, last: int) -> bool:
        return any(first <= index <= last for index in kept)

    pin = middle.pin()
    pin.leave_out_dead(is_live)
    pin.fix()
    data, ended = middle.stream(pin, 0, is_live).read(0, 1 << 24)
    assert ended
    pin.release()
    assert middle.reclaim(300, is_live) > 5
    with pytest.raises(Reclaimed):
        middle.read(3)

    last = opened()
    installer = last.begin_install(0, 300, 3, b"configuration")
    installer.feed(data)
    installer.finish()
    check_installed(last, [], [record for record in live if record.index in kept], 300, 3)


def test_ten_live_records_among_ten_million_dead_ones_cost_ten() -> None:
    """Neither bytes nor memory nor time for what is left out."""
    disk = SimDisk()
    storage = opened(disk)
    live = [Record(index * 1_000_000, 2, 1, b"alive") for index in range(1, 11)]
    install(storage, 0, 10_000_007, 3, live)
    received = next(segment for segment in storage.stats().segments if segment.first_index == 1)

    assert received.file_bytes <= 16 * 1024
    assert live == list(storage.entries(1))
    assert (10_000_007, ()) == (storage.last_index, storage.runs(1))
    storage.append_batch([Record(10_000_008, 4, 1, b"on")])
    again = opened(disk.keep_all())
    assert ((10_000_008, 4),) == again.runs(1)
    assert b"alive" == again.read(3_000_000).body
    with pytest.raises(Reclaimed):
        again.term_at(3_000_001)


def test_a_stream_that_is_damaged_or_ends_early_is_not_installed() -> None:
    """Any flipped bit, and any cut."""
    sender = filled(10)
    snapshot(sender, 8)
    pin = sender.pin()
    pin.fix()
    whole, _ = sender.stream(pin, 0, lambda first, last: first <= 8).read(0, 1 << 20)
    receiver = opened()
    before = state_of(receiver)
    draw = random.Random(3)
    for _ in range(60):
        data = bytearray(whole)
        if draw.random() < 0.7:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        else:
            del data[draw.randrange(len(data)) :]
        installer = receiver.begin_install(0, 8, 1, b"configuration")
        with pytest.raises((CorruptRecord, StorageError)):
            installer.feed(bytes(data))
            installer.finish()
        installer.abort()
    assert before == state_of(receiver)


def test_a_live_record_damaged_at_the_sender_is_left_out_and_named() -> None:
    """The others travel: better a message that is delivered as lost than a node that can never be helped."""
    disk = SimDisk()
    sender = filled(40, 1, disk)
    snapshot(sender, 40)
    sender.close(clean=True)
    path = f"data/wal/{next(name for name in disk.list_directory('data/wal') if name.startswith('seg-'))}"
    at = disk.content(path).index(records(7, 7, 1)[0].body)
    disk.flip_bit(path, at * 8)
    sender = opened(disk.keep_all())
    pin = sender.pin()
    pin.fix()
    outgoing = sender.stream(pin, 0, lambda first, last: True)
    data, _ = outgoing.read(0, 1 << 20)

    assert [7] == outgoing.lost
    assert ((7, 7),) == sender.lost_spans()
    receiver = opened()
    installer = receiver.begin_install(0, 40, 1, b"configuration")
    installer.feed(data)
    installer.finish()
    check_installed(receiver, [], [record for record in records(1, 40, 1) if record.index != 7], 40, 1)


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    """Indexes out of order, a base that is not there, an older snapshot, two at a time, one being written."""
    storage = filled(30)
    snapshot(storage, 20)
    before = state_of(storage)
    with pytest.raises(StorageError, match="adds nothing"):
        storage.begin_install(30, 30, 1, b"")
    installer = storage.begin_install(31, 50, 3, b"")
    with pytest.raises(StorageError, match="another snapshot is being received"):
        storage.begin_install(0, 50, 3, b"")
    installer.record(Record(40, 2, 1, b""))
    for index in (40, 31, 51):
        with pytest.raises(StorageError, match=f"record {index} does not belong"):
            installer.record(Record(index, 2, 1, b""))
    with pytest.raises(StorageError, match="ends at 30"):
        installer.finish()
    installer.abort()
    installer = storage.begin_install(3, 19, 1, b"")
    with pytest.raises(StorageError, match="older than the one at 20"):
        installer.finish()
    installer.abort()
    installer = storage.begin_install(3, 40, 1, b"")
    with pytest.raises(StorageError, match="does not hold entry 40"):
        installer.finish(holds=True)
    writer = storage.begin_snapshot(30, 1, b"")
    with pytest.raises(StorageError, match="another snapshot is being written"):
        installer.finish()
    writer.abort()
    assert before == state_of(storage)
    installer.finish()
    assert 40 == storage.last_index


def test_an_own_snapshot_and_appends_go_on_while_another_is_received() -> None:
    """Rotations, snapshots and the clearing away behind them leave what is being received alone."""
    disk = SimDisk()
    storage = filled(30, 1, disk)
    installer = storage.begin_install(10, 90, 3, b"configuration")
    live = [record for record in records(11, 90, 2) if record.index % 4 == 0]
    for at, record in enumerate(live):
        installer.record(record)
        storage.append_batch(records(31 + at, 31 + at, 1, 3000))
        if at % 6 == 0:
            snapshot(storage, 20 + at, {b"own": b"%d" % at})
    for key, page in PAGES.items():
        installer.page(key, page)
        snapshot(storage, 45, {b"own": key})
    installer.finish()

    check_installed(opened(disk.keep_all()), records(1, 10, 1), live, 90, 3)


def test_large_pages_that_are_being_received_are_not_cleared_away_by_own_snapshots() -> None:
    """They lie in a file that no manifest knows yet."""
    storage = filled(30)
    large = {b"a": bytes(1 << 20), b"b": b"small"}
    installer = storage.begin_install(10, 40, 3, b"")
    for key, page in large.items():
        installer.page(key, page)
        snapshot(storage, 25, {b"own": key})
    installer.finish()
    assert storage.snapshot is not None
    assert large == dict(storage.snapshot.pages())


def test_readers_and_pins_of_a_log_that_is_replaced_never_see_another_ones_bytes() -> None:
    """A record that is gone is reclaimed; a backup that reads a file of the same name is told."""
    storage = filled(60)
    snapshot(storage, 30)
    pin = storage.pin()
    pin.fix()
    outgoing = storage.stream(pin, 0, lambda first, last: True)
    outgoing.read(0, 400)
    entries = storage.entries(1)
    next(entries)
    install(storage, 0, 90, 3, records(1, 90, 2)[::2])

    with pytest.raises(OSError, match="replaced"):
        pin.read_records(pin.extents[0], 100, 0)
    with pytest.raises((Reclaimed, StorageError)):
        outgoing.read(400, 1 << 20)
    pin.release()
    assert records(3, 3, 2)[0] == storage.read(3)
    assert 90 == storage.last_index


@pytest.mark.parametrize("last", [66, 90])
def test_an_installed_log_outlives_the_snapshot_that_brought_it(last: int) -> None:
    """Own snapshots follow, with and without rotations; nothing depends on the manifest that said what the log is."""
    disk = SimDisk()
    storage = filled(50, 1, disk)
    live = records(34, 60, 2)[::4]
    install(storage, 33, 60, 3, live)
    more = records(61, last, 4)
    storage.append_batch(more[:4])
    snapshot(storage, 64, {b"own": b"one"})
    storage.append_batch(more[4:])
    snapshot(storage, 65, {b"own": b"two"})
    snapshot(storage, 66, {b"own": b"three"})
    for after in [disk.keep_all(), *(disk.crash(seed) for seed in range(8))]:
        again = opened(after)
        assert () == again.findings
        assert [*records(1, 33, 1), *live, *more] == list(again.entries(1))
