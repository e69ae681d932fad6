"""Whole files that are gone: each is said in one line, and nothing starts empty over what has lived."""

from __future__ import annotations

import logging

import pytest

from tests.storage.crash import config
from walrq.errors import CorruptRecord
from walrq.storage import inspect
from walrq.storage.findings import Verdict
from walrq.storage.hard_state import HardState
from walrq.storage.record import Record, stored_bytes
from walrq.storage.segment import RECORDS_START
from walrq.storage.storage import Storage
from walrq.testing.disk import SimDisk


def record(index: int) -> Record:
    """A few of these fill a segment."""
    return Record(index, 3, 1, b"x" * 1000)


def lived(snapshot_index: int) -> SimDisk:
    """Sixteen records in several segments, a term, a snapshot (0: none); then the process died."""
    disk = SimDisk()
    storage = Storage.open(disk, config())
    state = HardState(term=3, vote="a", node_id="a", cluster_id="c", disk_uuid=storage.disk_uuid)
    storage.set_hard_state(state)
    for index in range(1, 17):
        storage.append_batch([record(index)])
    if snapshot_index:
        storage.begin_snapshot(snapshot_index, 3, b"").finish()
    storage.settle()
    return disk.keep_all()


def remove(disk: SimDisk, folder: str, prefix: str, *, newest: bool = False) -> None:
    """Files that begin so; with `newest` the last of them only."""
    names = [name for name in disk.list_directory(folder) if name.startswith(prefix)]
    for name in names[-1:] if newest else names:
        disk.unlink(f"{folder}/{name}")
    disk.fsync_directory(folder)


def verified(disk: SimDisk) -> set[tuple[Verdict, str]]:
    """What `wal verify` says."""
    return {(finding.verdict, finding.file) for finding in inspect.verify("data", disk=disk).findings}


def test_the_newest_segment_gone_before_the_snapshot_is_missing() -> None:
    """The snapshot proves that the log once went on."""
    disk = lived(16)
    remove(disk, "data/wal", "seg-", newest=True)

    assert (Verdict.MISSING, "wal") in verified(disk)
    storage = Storage.open(disk, config())
    (finding,) = storage.recovered.report
    assert Verdict.MISSING is finding.verdict and "newest segment is gone" in finding.text
    assert 16 == storage.last_index


def test_the_newest_segment_gone_behind_the_snapshot_is_suspect() -> None:
    """A stop between two segments looks the same, so the line says both."""
    disk = lived(2)
    remove(disk, "data/wal", "seg-", newest=True)

    assert (Verdict.SUSPECT, "wal") in verified(disk)
    (finding,) = Storage.open(disk, config()).recovered.report
    assert Verdict.SUSPECT is finding.verdict and "no segment follows" in finding.text


def test_all_segments_gone_with_the_snapshot_kept_is_missing() -> None:
    """The state is there, every body is not."""
    disk = lived(16)
    remove(disk, "data/wal", "seg-")

    assert (Verdict.MISSING, "wal") in verified(disk)
    storage = Storage.open(disk, config())
    (finding,) = storage.recovered.report
    assert Verdict.MISSING is finding.verdict and "every segment is gone" in finding.text
    storage.append_batch([record(17)])


@pytest.mark.parametrize("how", ["removed", "headers zeroed"])
def test_a_directory_that_has_lived_never_starts_empty(how: str) -> None:
    """A term, but neither log nor snapshot: refused in one line, and nothing is touched."""
    disk = lived(0)
    if how == "removed":
        remove(disk, "data/wal", "seg-")
    else:
        for name in disk.list_directory("data/wal"):
            disk.zero(f"data/wal/{name}", 0, RECORDS_START)
    before = disk.list_directory("data/wal")

    assert not inspect.verify("data", disk=disk).ok
    with pytest.raises(CorruptRecord, match=r"used before \(term 3\).*begin anew with an empty directory"):
        Storage.open(disk, config())
    assert before == disk.list_directory("data/wal")


@pytest.mark.parametrize("snapshot_index", [0, 16])
@pytest.mark.parametrize("how", ["zeroed", "emptied"])
def test_a_hard_state_without_content_over_a_log_is_refused(snapshot_index: int, how: str) -> None:
    """It is not the first write cut short: that one was finished before anything else was written."""
    disk = lived(snapshot_index)
    if snapshot_index:
        remove(disk, "data/wal", "seg-")
    if how == "zeroed":
        disk.zero("data/hard-state", 0, 8192)
    else:
        disk.cut("data/hard-state", 0)

    assert (Verdict.METADATA, "hard-state") in verified(disk)
    with pytest.raises(CorruptRecord, match="not guessed; put the file back"):
        Storage.open(disk, config())


def test_records_that_no_slot_speaks_of_count_as_a_life() -> None:
    """Under a weak policy the slots of the first segment say that it is empty."""
    disk = SimDisk()
    storage = Storage.open(disk, config("never"))
    storage.append_batch([record(1)])
    disk = disk.keep_all()
    disk.zero("data/hard-state", 0, 8192)

    with pytest.raises(CorruptRecord, match="not guessed"):
        Storage.open(disk, config("never"))


def test_a_hard_state_that_is_gone_leaves_the_highest_term_of_the_log() -> None:
    """Whoever goes on without it knows behind which term."""
    disk = lived(0)
    disk.unlink("data/hard-state")

    assert (Verdict.METADATA, "hard-state") in verified(disk)
    storage = Storage.open(disk, config())
    assert storage.recovered.hard_state is None
    assert 3 == storage.highest_term


def test_damage_met_when_reading_is_logged_once_per_record(caplog: pytest.LogCaptureFixture) -> None:
    """One line that names index and file, however often the record is asked for."""
    disk = lived(16)
    first = next(name for name in disk.list_directory("data/wal") if name.startswith("seg-"))
    storage = Storage.open(disk, config())
    assert record(1) == storage.read(1)
    start = RECORDS_START + stored_bytes(1000)
    disk.zero(f"data/wal/{first}", start, start + 8)

    with caplog.at_level(logging.WARNING, "walrq.storage"):
        for _ in range(3):
            with pytest.raises(CorruptRecord):
                storage.read(2)

    (line,) = [entry.getMessage() for entry in caplog.records]
    assert first in line and "entries 2..2" in line
    (finding,) = storage.findings
    assert [2] == list(finding.lost)
