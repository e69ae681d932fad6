"""Torn, suspect, damaged: what a start makes of a log that is not as it was left."""

from __future__ import annotations

import random

import pytest

from tests.storage.crash import SEGMENT_BYTES, config
from walrq.errors import CorruptRecord, Reclaimed
from walrq.storage.findings import Finding, Verdict
from walrq.storage.record import HEADER_BYTES, Record, stored_bytes
from walrq.storage.segment import RECORDS_START, SLOT, SLOT_OFFSETS, segment_name
from walrq.storage.storage import Storage
from walrq.testing.disk import SimDisk, Write

FIRST = f"data/wal/{segment_name(1)}"


def record(index: int, size: int = 20, term: int = 1) -> Record:
    """A record whose body tells its index."""
    return Record(index, term, 1, (b"%06d" % index * (size // 6 + 1))[:size])


def log_of(count: int, *, size: int = 20, settle: bool = True) -> SimDisk:
    """A disk with `count` records, each acknowledged by itself, after the process died."""
    disk = SimDisk()
    storage = Storage.open(disk, config())
    for index in range(1, count + 1):
        storage.append_batch([record(index, size)])
    if settle:
        storage.settle()
    return disk.keep_all()


def lost(storage: Storage) -> set[int]:
    """Every index the report names."""
    return {index for finding in storage.recovered.report for index in finding.lost}


def served(storage: Storage) -> list[int]:
    """Indexes that can be read."""
    return [entry.index for entry in storage.entries(1)]


def verdicts(storage: Storage) -> list[Verdict]:
    """Verdicts of the report."""
    return [finding.verdict for finding in storage.recovered.report]


def test_a_damaged_record_is_named_and_all_others_are_served() -> None:
    """Rot in the middle costs one record, not the log behind it."""
    disk = log_of(9)
    disk.zero(FIRST, RECORDS_START + 3 * stored_bytes(20), RECORDS_START + 4 * stored_bytes(20))

    storage = Storage.open(disk, config())

    assert [Verdict.DAMAGED] == verdicts(storage)
    assert {4} == lost(storage)
    assert [1, 2, 3, 5, 6, 7, 8, 9] == served(storage)
    assert record(5) == storage.read(5)
    with pytest.raises(CorruptRecord):
        storage.read(4)
    storage.append_batch([record(10)])
    assert record(10) == storage.read(10)


def test_every_bit_flip_in_a_settled_log_is_found_and_costs_at_most_its_record() -> None:
    """The bit-flip matrix over header pages, slots and records: never silent, never more than it hit."""
    base = log_of(4, size=9)
    size = stored_bytes(9)
    clean = Storage.open(base.keep_all(), config())
    assert () == clean.recovered.report
    header_bits = [8 * offset + bit for offset in range(56) for bit in range(8)]
    slot_bits = [8 * slot + bit for slot in SLOT_OFFSETS for bit in range(8 * SLOT.size)]
    record_bits = range(8 * RECORDS_START, 8 * (RECORDS_START + 4 * size))
    for bit in [*header_bits, *slot_bits, *record_bits]:
        disk = base.keep_all()
        disk.flip_bit(FIRST, bit)
        storage = Storage.open(disk, config())
        expected = [1, 2, 3, 4]
        if bit >= 8 * RECORDS_START:
            hit = (bit // 8 - RECORDS_START) // size + 1
            expected.remove(hit)
            assert {hit} == lost(storage), bit
        elif bit < 8 * SLOT_OFFSETS[0]:
            assert Verdict.METADATA in verdicts(storage), bit
        assert expected == served(storage), bit
        for index in expected:
            assert record(index, 9) == storage.read(index)


@pytest.mark.parametrize("settle", [False, True])
def test_a_tail_cut_at_every_byte_starts_and_loses_only_what_was_not_acknowledged(settle: bool) -> None:
    """The write in progress is torn at each of its bytes; what was acknowledged before stays."""
    whole = log_of(3, settle=settle)
    storage = Storage.open(whole, config())
    end = RECORDS_START + 3 * stored_bytes(20) + stored_bytes(8)
    whole.power_off_at = whole.operation_count + 1
    with pytest.raises(BaseException, match="power off"):
        storage.append_batch([record(4, 56)])
    size = stored_bytes(56)
    dropped = next(after for what, after in whole.aftermaths() if what == "all dropped")
    full = whole.content(FIRST)[end : end + size]
    for cut in range(size + 1):
        disk = dropped.keep_all()
        disk.overwrite(FIRST, end, full[:cut])
        again = Storage.open(disk, config())

        assert {Verdict.TORN} >= set(verdicts(again)), cut
        assert [1, 2, 3, 4][: 3 + (cut == size)] == served(again), cut
        assert set() == lost(again)


def test_an_unreadable_last_write_is_suspect_and_named() -> None:
    """Slot there, record not: the sync may have returned, so a single node says which record it cut."""
    disk = log_of(3, settle=False)
    end = RECORDS_START + 3 * stored_bytes(20)
    disk.zero(FIRST, end - stored_bytes(20), end)

    storage = Storage.open(disk, config())

    assert [Verdict.SUSPECT] == verdicts(storage)
    assert {3} == lost(storage)
    assert 2 == storage.last_index
    storage.append_batch([record(3, term=2)])
    again = Storage.open(disk.keep_all(), config())
    assert () == again.recovered.report
    assert record(3, term=2) == again.read(3)


def test_a_settled_last_record_is_damage_and_never_cut() -> None:
    """Both slots promise a settled record: its loss is rot, and its index is never given away again."""
    disk = log_of(3, settle=True)
    end = RECORDS_START + 3 * stored_bytes(20)
    disk.zero(FIRST, end - stored_bytes(20), end)

    storage = Storage.open(disk, config())

    assert [Verdict.DAMAGED] == verdicts(storage)
    assert {3} == lost(storage)
    assert 3 == storage.last_index
    storage.append_batch([record(4)])
    again = Storage.open(disk.keep_all(), config())
    assert [1, 2, 4] == served(again)
    assert {3} == lost(again)


def test_damaged_bytes_are_kept_aside_once() -> None:
    """The quarantine has the bytes as they were found, and a second start does not add to it."""
    disk = log_of(3)
    disk.flip_bit(FIRST, 8 * (RECORDS_START + HEADER_BYTES + 1))
    before = disk.content(FIRST)

    finding = Storage.open(disk, config()).recovered.report[0]
    Storage.open(disk.keep_all(), config())

    assert before[finding.start : finding.end] == disk.content(f"data/{finding.kept_as}")
    assert [finding.kept_as] == [f"quarantine/{name}" for name in disk.list_directory("data/quarantine")]


def test_damage_on_a_full_disk_is_served_around_all_the_same() -> None:
    """The copy for the quarantine is a courtesy; a node without room for it starts and says so."""
    disk = log_of(3)
    disk.flip_bit(FIRST, 8 * (RECORDS_START + HEADER_BYTES + 1))
    disk.quota_bytes = disk.used_bytes

    storage = Storage.open(disk, config())

    assert [2, 3] == served(storage)
    assert "no room" in storage.recovered.report[0].text
    assert "" == storage.recovered.report[0].kept_as


def test_a_zero_filled_tail_is_no_records() -> None:
    """What preallocation left behind the end is not read as anything."""
    disk = log_of(2)

    storage = Storage.open(disk, config())

    assert () == storage.recovered.report
    assert [1, 2] == served(storage)


def test_old_records_of_a_recycled_segment_never_come_back() -> None:
    """The file's earlier life lies right behind the new records, intact; it is not part of the log."""
    disk = SimDisk()
    storage = Storage.open(disk, config())
    index = 0
    while storage.stats().recycled < 2:
        index += 1
        storage.append_batch([record(index, 1000)])
        if index % 7 == 0:
            storage.begin_snapshot(index, 1, b"").finish()
            storage.reclaim(index, lambda _first, _last: False)
    active = f"data/wal/{segment_name(storage.stats().segments[-1].first_index)}"
    leftovers = disk.content(active)[storage.stats().segments[-1].used_bytes :]
    assert any(leftovers)

    again = Storage.open(disk.keep_all(), config())

    assert () == again.recovered.report
    assert index == again.last_index


def test_left_overs_behind_a_cut_never_chain_again() -> None:
    """A cut record's intact successors stay cut, even where the next record would have to be one of them."""
    disk = SimDisk()
    storage = Storage.open(disk, config())
    # With the fence in front, the new record 4 ends exactly where the old record 5 begins.
    storage.append_batch([record(i, 64 if i == 4 else 20) for i in range(1, 8)])
    storage.truncate_suffix(4)
    storage.append_batch([record(4)])

    again = Storage.open(disk.keep_all(), config())

    assert 4 == again.last_index
    assert [1, 2, 3, 4] == served(again)


def test_a_cut_segment_reused_for_the_same_records_brings_none_of_its_old_ones_back() -> None:
    """The worst case: same file, same first record byte for byte, intact old successors behind it."""
    disk = SimDisk()
    storage = Storage.open(disk, config())
    for index in range(1, 7):
        storage.append_batch([record(index, 1000)])
    first, second = storage.stats().segments
    assert (first.last_index, second.first_index, second.last_index) == (3, 4, 6)
    storage.truncate_suffix(3)
    storage.append_batch([record(3, 1000)])
    storage.append_batch([record(4, 1000)])
    assert storage.stats().recycled == 1

    again = Storage.open(disk.keep_all(), config())

    assert [1, 2, 3, 4] == served(again)
    assert 4 == again.last_index


def test_slots_that_reach_the_disk_before_their_records_cut_nothing_older() -> None:
    """Header first, records never: only the write in progress is cut."""
    disk = SimDisk()
    storage = Storage.open(disk, config())
    storage.append_batch([record(1)])
    storage.append_batch([record(2)])
    states = []
    disk.before_sync = lambda now: states.extend(now.aftermaths())
    storage.append_batch([record(3), record(4)])
    slot_only = [after for what, after in states if what.endswith("alone kept")][-1]

    again = Storage.open(slot_only, config())

    assert [Verdict.SUSPECT] == verdicts(again)
    assert {3, 4} == lost(again)
    assert [1, 2] == served(again)


def test_both_slots_lost_is_said_and_the_records_are_served() -> None:
    """Metadata that cannot be read never costs data."""
    disk = log_of(5)
    for slot in SLOT_OFFSETS:
        disk.zero(FIRST, slot, slot + 4096)
    disk.zero(FIRST, RECORDS_START + stored_bytes(20), RECORDS_START + 2 * stored_bytes(20))

    storage = Storage.open(disk, config())

    assert {Verdict.METADATA, Verdict.DAMAGED} == set(verdicts(storage))
    assert [1, 3, 4, 5] == served(storage)
    storage.append_batch([record(6)])
    assert [1, 3, 4, 5, 6] == served(Storage.open(disk.keep_all(), config()))


def test_a_lost_identity_page_is_rebuilt_from_a_slot() -> None:
    """The first page of a segment may rot without costing a record, and is whole again afterwards."""
    disk = log_of(5)
    disk.zero(FIRST, 0, 4096)

    storage = Storage.open(disk, config())
    again = Storage.open(disk.keep_all(), config())

    assert [Verdict.METADATA] == verdicts(storage)
    assert [1, 2, 3, 4, 5] == served(storage)
    assert () == again.recovered.report


def test_a_segment_without_any_header_is_put_aside_whole() -> None:
    """The file is moved, not deleted, and the indexes it held are named as missing."""
    disk = log_of(40, size=1000)
    names = [name for name in disk.list_directory("data/wal") if name.startswith("seg-")]
    middle = f"data/wal/{names[1]}"
    disk.zero(middle, 0, RECORDS_START)

    storage = Storage.open(disk, config())

    assert names[1] in disk.list_directory("data/quarantine")
    assert Verdict.MISSING in verdicts(storage)
    assert set(range(1, 41)) == set(served(storage)) | lost(storage)
    assert not set(served(storage)) & lost(storage)


@pytest.mark.parametrize("seed", range(20))
def test_zeroed_spans_anywhere_lose_exactly_what_they_cover(seed: int) -> None:
    """For any damaged span of a settled log: served and lost together are the log, and apart."""
    draw = random.Random(seed)
    disk = log_of(24, size=300)
    names = [name for name in disk.list_directory("data/wal") if name.startswith("seg-")]
    path = f"data/wal/{draw.choice(names)}"
    start = draw.randrange(RECORDS_START, SEGMENT_BYTES)
    disk.zero(path, start, min(SEGMENT_BYTES, start + draw.randrange(1, 3000)))

    storage = Storage.open(disk, config())

    assert set(range(1, 25)) == set(served(storage)) | lost(storage)
    assert not set(served(storage)) & lost(storage)
    for index in served(storage):
        assert record(index, 300) == storage.read(index)
    assert 24 == storage.last_index


def test_a_file_cut_short_is_damage_and_the_log_goes_on() -> None:
    """A truncated segment loses the records that were cut off, by name."""
    disk = log_of(6)
    disk.cut(FIRST, RECORDS_START + 4 * stored_bytes(20) + 5)

    storage = Storage.open(disk, config())

    assert {5, 6} == lost(storage)
    assert [1, 2, 3, 4] == served(storage)
    storage.append_batch([record(7)])
    assert [1, 2, 3, 4, 7] == served(Storage.open(disk.keep_all(), config()))


def test_segments_below_the_snapshot_are_verified_when_read() -> None:
    """A restart does not read the backlog; damage there is found by the read, with the same verdict."""
    disk = SimDisk()
    storage = Storage.open(disk, config())
    for index in range(1, 13):
        storage.append_batch([record(index, 1000)])
    storage.begin_snapshot(12, 1, b"").finish()
    first = storage.stats().segments[0]
    assert first.last_index >= 3
    disk.zero(FIRST, RECORDS_START + stored_bytes(1000), RECORDS_START + stored_bytes(1000) + 8)

    again = Storage.open(disk.keep_all(), config())

    assert () == again.recovered.report
    assert record(1, 1000) == again.read(1)
    with pytest.raises(CorruptRecord):
        again.read(2)
    assert record(3, 1000) == again.read(3)
    assert [Verdict.DAMAGED] == [finding.verdict for finding in again.findings]


def test_findings_are_plain_values() -> None:
    """The report can be printed as JSON as it is."""
    finding = Finding(Verdict.DAMAGED, "wal/x", "text", start=1, end=2, first_index=3, last_index=4)

    assert range(3, 5) == finding.lost
    assert "damaged" == finding.as_json()["verdict"]


def test_an_index_outside_the_log_is_not_there() -> None:
    """Neither the future nor index 0 is ever read."""
    storage = Storage.open(log_of(2), config())
    for index in (0, 3, 2**40):
        with pytest.raises(Reclaimed):
            storage.read(index)


def test_the_simulated_writes_are_plain_values() -> None:
    """The helper used above to tell writes apart compares by identity, so equal ones must be equal."""
    assert Write(1, b"x") == Write(1, b"x")


@pytest.mark.parametrize("from_index", range(1, 14))
def test_a_cut_anywhere_leaves_what_is_before_it_and_goes_on_there(from_index: int) -> None:
    """In the last segment, in an older one, at the first record of one; for two syncs, and one a segment that goes."""
    disk = SimDisk()
    storage = Storage.open(disk, config())
    for index in range(1, 13):
        storage.append_batch([record(index, 1000)])
    behind = [segment.first_index for segment in storage.stats().segments if segment.first_index > from_index]
    before = disk.syncs
    storage.truncate_suffix(from_index)

    assert disk.syncs - before == (0 if from_index > 12 else 2)
    assert 4 - len(behind) == len(storage.stats().segments)
    assert from_index - 1 == storage.last_index == storage.durable_index
    with pytest.raises(Reclaimed):
        storage.read(from_index)
    new = [Record(index, 2, 7, b"new") for index in range(from_index, from_index + 6)]
    storage.append_batch(new)
    for found in (storage, Storage.open(disk.keep_all(), config())):
        assert () == found.recovered.report
        assert [record(index, 1000) for index in range(1, from_index)] + new == list(found.entries(1))


def test_a_cut_where_no_fence_fits_leaves_no_record_behind_it() -> None:
    """A record without a body is smaller than a fence."""
    disk = SimDisk()
    storage = Storage.open(disk, config())
    storage.append_batch([record(1, 4096 - 32 - 32), Record(2, 1, 1, b"")])
    storage.truncate_suffix(2)
    storage.append_batch([Record(2, 2, 1, b"another")])
    again = Storage.open(disk.keep_all(), config())

    assert () == again.recovered.report
    assert [(1, 1), (2, 2)] == [(found.index, found.term) for found in again.entries(1)]
