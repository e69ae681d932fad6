"""Looking without touching: what `wal inspect` and `wal verify` say."""

from __future__ import annotations

import json

import pytest

from tests.storage.crash import config
from walrq.errors import DataDirInvalid
from walrq.storage import inspect
from walrq.storage.record import Record, stored_bytes
from walrq.storage.segment import RECORDS_START, segment_name
from walrq.storage.storage import Storage
from walrq.testing.disk import SimDisk

FIRST = f"data/wal/{segment_name(1)}"


def a_log() -> SimDisk:
    """Ten records over several segments, a snapshot, stopped cleanly."""
    disk = SimDisk()
    storage = Storage.open(disk, config())
    for index in range(1, 11):
        storage.append_batch([Record(index, 1, index, b"x" * 1000)])
    writer = storage.begin_snapshot(4, 1, b"")
    writer.put(b"key", b"page")
    writer.finish()
    storage.close()
    return disk.keep_all()


def contents(disk: SimDisk) -> dict[str, bytes]:
    """Every file."""
    return {
        f"{folder}/{name}": disk.content(f"{folder}/{name}")
        for folder in ("data", "data/wal", "data/snapshots", "data/quarantine")
        for name in disk.list_directory(folder)
        if not disk.exists(f"{folder}/{name}/")
        and f"{folder}/{name}" not in ("data/wal", "data/snapshots", "data/quarantine")
    }


def test_an_intact_directory_verifies() -> None:
    """Counts, range and verdict."""
    result = inspect.verify("data", disk=a_log())

    assert (True, 10, 1, 10, 4) == (
        result.ok,
        result.records,
        result.first_index,
        result.last_index,
        result.snapshot_index,
    )
    assert () == result.findings
    json.dumps(result.as_json())


def test_damage_anywhere_fails_the_verification() -> None:
    """Record, snapshot page, manifest, hard state, segment header: each is found."""
    base = a_log()
    snapshots = base.list_directory("data/snapshots")
    spots = [
        (FIRST, RECORDS_START + stored_bytes(1000) + 40),
        (FIRST, 20),
        *[(f"data/snapshots/{name}", 30) for name in snapshots if name.startswith("manifest")],
        *[(f"data/snapshots/{name}", 2) for name in snapshots if name.startswith("pages")],
    ]
    assert len(spots) == 4
    for path, byte in spots:
        disk = base.keep_all()
        disk.flip_bit(path, 8 * byte)

        assert not inspect.verify("data", disk=disk).ok, path
    disk = base.keep_all()
    for page in (0, 4096):
        disk.flip_bit("data/hard-state", 8 * (page + 30))
    assert not inspect.verify("data", disk=disk).ok


def test_a_missing_segment_fails_the_verification() -> None:
    """A hole above the snapshot is named."""
    disk = a_log()
    names = [name for name in disk.list_directory("data/wal") if name.startswith("seg-")]
    disk.unlink(f"data/wal/{names[2]}")

    result = inspect.verify("data", disk=disk)

    assert not result.ok
    assert "missing" in [finding.verdict.value for finding in result.findings]


def test_looking_changes_nothing() -> None:
    """Not a byte, not a name, whatever is found, and no lock is taken."""
    disk = a_log()
    disk.flip_bit(FIRST, 8 * (RECORDS_START + 40))
    before = contents(disk)
    disk.power_off_at = disk.operation_count
    inspect.verify("data", disk=disk)
    list(inspect.segments("data", disk=disk))
    list(inspect.records("data", disk=disk))

    assert before == contents(disk)


def test_records_are_listed_with_their_places() -> None:
    """In file order, from an index on, as plain values."""
    lines = list(inspect.records("data", from_index=4, disk=a_log()))

    assert list(range(4, 11)) == [line["index"] for line in lines]
    assert {"intact"} == {line["verdict"] for line in lines}
    assert RECORDS_START == lines[0]["offset"]
    json.dumps(lines)


def test_damage_is_listed_between_the_records() -> None:
    """Where it lies, with the indexes that are lost."""
    disk = a_log()
    disk.flip_bit(FIRST, 8 * (RECORDS_START + stored_bytes(1000) + 40))

    lines = list(inspect.records("data", segment=segment_name(1), disk=disk))

    assert ["intact", "damaged", "intact"] == [line["verdict"] for line in lines]
    assert (2, 2) == (lines[1]["first_index"], lines[1]["last_index"])


def test_segments_are_listed_with_their_slots() -> None:
    """One value per file; an unreadable one is said, not skipped."""
    disk = a_log()
    names = [name for name in disk.list_directory("data/wal") if name.startswith("seg-")]
    disk.zero(f"data/wal/{names[1]}", 0, RECORDS_START)

    lines = list(inspect.segments("data", disk=disk))

    assert names == [line["segment"] for line in lines]
    assert [True, False, True, True] == [line["readable"] for line in lines]
    assert (3, True) == (lines[0]["records"], lines[0]["sealed"])
    json.dumps(lines)


def test_a_directory_of_somebody_else_is_refused() -> None:
    """Also a segment that is not there."""
    disk = SimDisk()
    disk.make_directory("data")
    with pytest.raises(DataDirInvalid):
        inspect.verify("data", disk=disk)
    with pytest.raises(DataDirInvalid, match="no segment"):
        list(inspect.records("data", segment="seg-x.wal", disk=a_log()))
