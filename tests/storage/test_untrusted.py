"""What a member of a cluster may have lost is said at the start, remembered, and dropped without a hole."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.storage.crash import config
from tests.storage.test_install import filled, install, opened, records, snapshot
from walrq.errors import CorruptRecord, DataDirInvalid
from walrq.storage.config import FsyncPolicy
from walrq.storage.hard_state import HardState
from walrq.storage.record import HEADER_BYTES, Record
from walrq.storage.segment import RECORDS_START, SLOT_COPY_OFFSET, SLOT_OFFSETS
from walrq.storage.storage import Storage
from walrq.testing.disk import PowerOff, SimDisk


def member(disk: SimDisk) -> Storage:
    return Storage.open(disk, config(member=True))


def segments(disk: SimDisk) -> list[str]:
    """Paths of the segments, ascending."""
    return [f"data/wal/{name}" for name in disk.list_directory("data/wal") if name.startswith("seg-")]


def harm(disk: SimDisk, record: Record) -> None:
    """Flip a bit of a record's body."""
    for path in segments(disk):
        at = disk.content(path).find(record.body)
        if at >= 0:
            disk.flip_bit(path, at * 8 + 3)
            return
    raise AssertionError(f"record {record.index} is not there")


def lived(last: int = 100, image: int = 20) -> SimDisk:
    """A node's disk after an orderly stop."""
    disk = SimDisk()
    storage = filled(last, 1, disk)
    state = HardState(term=3, vote="b", node_id="a", cluster_id="c", disk_uuid=storage.disk_uuid)
    storage.set_hard_state(state)
    snapshot(storage, image)
    storage.close(clean=True)
    return disk.keep_all()


def check_dropped(disk: SimDisk, from_index: int) -> None:
    """A member's log ends before the index, goes on there, and the repair is remembered until it is done."""
    kept = records(1, from_index - 1, 1)
    storage = member(disk)
    assert storage.needs_repair
    assert from_index == storage.recovered.untrusted_from
    storage.drop_untrusted()
    assert from_index - 1 == storage.last_index
    assert [record for record in kept if record.index > 20] == list(storage.entries(21))
    assert ((21, 1),) * (from_index > 21) == storage.runs(21)

    disk = disk.crash(1)
    storage = member(disk)
    assert (True, None) == (storage.needs_repair, storage.recovered.untrusted_from)
    assert from_index - 1 == storage.last_index
    again = records(from_index, from_index + 30, 2)
    storage.append_batch(again)
    storage.repaired()
    storage.close(clean=False)
    storage = member(disk.keep_all())
    assert not storage.needs_repair
    assert again == list(storage.entries(from_index))


@pytest.mark.parametrize("index", [21, 22, 36, 37, 38, 39, 40, 41, 42, 70, 99, 100])
def test_a_damaged_record_ends_a_members_log_before_it(index: int) -> None:
    """Wherever it lies in its segment; what was intact behind it is kept aside."""
    disk = lived()
    harm(disk, records(index, index, 1)[0])
    check_dropped(disk, index)
    kept = b"".join(disk.content(f"data/quarantine/{name}") for name in disk.list_directory("data/quarantine"))
    assert all(record.body in kept for record in records(index + 1, 100, 1))


@pytest.mark.parametrize("count", [2, 3])
def test_the_first_of_several_damaged_records_counts(count: int) -> None:
    """Behind the snapshot; what is damaged below it is named, and is no reason to drop anything."""
    draw = random.Random(count)
    for _ in range(5):
        disk = lived()
        chosen = sorted(draw.sample(range(15, 101), count))
        for index in chosen:
            harm(disk, records(index, index, 1)[0])
        behind = [index for index in chosen if index > 20]
        if not behind:
            continue
        disk = disk.keep_all()
        storage = member(disk)
        assert behind[0] == storage.recovered.untrusted_from, chosen
        storage.drop_untrusted()
        assert behind[0] - 1 == storage.last_index
        storage.append_batch([Record(behind[0], 2, 1, b"goes on")])
        reopened = member(disk.keep_all())
        assert b"goes on" == reopened.read(behind[0]).body, chosen
        assert behind[0] == reopened.last_index


def test_a_segment_that_is_gone_ends_a_members_log_before_it() -> None:
    """In the middle, at the end, and with its header unreadable."""
    whole = segments(lived())
    firsts = [int(path[-24:-4]) for path in whole]
    behind = [(path, first) for path, first in zip(whole, firsts, strict=True) if first > 21]
    assert len(behind) > 2
    for path, first in behind:
        disk = lived()
        disk.unlink(path)
        check_dropped(disk.keep_all(), first)
        disk = lived()
        disk.overwrite(path, 0, bytes(RECORDS_START))
        check_dropped(disk.keep_all(), first)


def hurt_slot(disk: SimDisk, slot: int, *copies: int) -> None:
    """Flip a bit in copies of a slot of the newest segment."""
    for copy in copies:
        disk.flip_bit(segments(disk)[-1], (SLOT_OFFSETS[slot] + copy * SLOT_COPY_OFFSET) * 8 + 100)


def died(last: int = 30) -> SimDisk:
    """A node that was killed right after its last append."""
    disk = SimDisk()
    filled(last, 1, disk)
    return disk.keep_all()


@pytest.mark.parametrize("chosen", [(0,), (1,), (0, 1)])
def test_a_slot_that_cannot_be_read_leaves_the_end_unknown_after_an_unclean_stop(chosen: tuple[int, ...]) -> None:
    """One slot or both: what is readable is kept, and more may have been. After an orderly stop one says it all."""
    disk = died()
    stopped = lived(30)
    for slot in chosen:
        hurt_slot(disk, slot, 0, 1)
        hurt_slot(stopped, slot, 0, 1)
    storage = member(disk)
    assert (True, 31) == (storage.needs_repair, storage.recovered.untrusted_from)
    storage.drop_untrusted()
    assert records(1, 30, 1) == list(storage.entries(1))
    assert member(stopped).needs_repair == (len(chosen) == 2)


@pytest.mark.parametrize("slot", [0, 1])
def test_rot_in_one_sector_of_a_slot_costs_nothing(slot: int) -> None:
    """Its other copy says the same."""
    for copy in (0, 1):
        disk = died()
        hurt_slot(disk, slot, copy)
        storage = member(disk)
        assert ((), False, None) == (storage.findings, storage.needs_repair, storage.recovered.untrusted_from)
        assert 30 == storage.last_index


def test_last_record_and_newer_slot_rotted_together_is_not_taken_for_a_torn_tail() -> None:
    """The record is named, also where nobody else can be asked, and however much of the slot is gone."""
    for slot in (0, 1):
        for copies in ((0,), (1,), (0, 1)):
            disk = died()
            harm(disk, records(30, 30, 1)[0])
            hurt_slot(disk, slot, *copies)
            alone = opened(disk.keep_all())
            assert records(1, 29, 1) == list(alone.entries(1))
            assert [30] == [index for finding in alone.findings for index in finding.lost]
            assert member(disk).needs_repair


def test_the_mark_is_durable_before_the_traces_are_gone() -> None:
    """Power loss at every operation of the start and of dropping: the repair is never forgotten."""
    origin = lived()
    harm(origin, records(50, 50, 1)[0])
    harm(origin, records(100, 100, 1)[0])
    check_never_forgotten(origin, 49)
    suspect = died(12)
    harm(suspect, records(12, 12, 1)[0])
    check_never_forgotten(suspect, 11)


def check_never_forgotten(origin: SimDisk, kept: int) -> None:
    """See above; `kept`: the last index that is to be trusted."""
    for point in itertools.count():
        disk = origin.keep_all()
        disk.power_off_at = point
        try:
            member(disk).drop_untrusted()
        except PowerOff:
            pass
        else:
            break
        for after in (disk.keep_all(), disk.crash(point)):
            storage = member(after)
            assert storage.needs_repair, point
            storage.drop_untrusted()
            # A whole segment behind the damage may be gone already.
            assert kept == storage.last_index, point
    assert point > 15


def test_a_node_without_log_and_snapshots_starts_only_as_a_member() -> None:
    """It holds nothing, and knows that it did."""
    origin = lived()
    for path in segments(origin):
        origin.unlink(path)
    for name in origin.list_directory("data/snapshots"):
        origin.unlink(f"data/snapshots/{name}")
    with pytest.raises(CorruptRecord, match="has been used before"):
        opened(origin.keep_all())
    storage = member(origin.keep_all())
    assert (True, 1, 0) == (storage.needs_repair, storage.recovered.untrusted_from, storage.last_index)
    assert storage.hard_state is not None and storage.hard_state.term == 3
    storage.drop_untrusted()
    storage.append_batch(records(1, 3, 1))


def test_a_member_falls_back_to_an_older_snapshot_that_the_log_does_not_reach_from() -> None:
    """The log then ends where it is not whole any more; one that is alone refuses."""
    disk = SimDisk()
    storage = filled(60, 1, disk)
    snapshot(storage, 20)
    snapshot(storage, 50, {b"a": b"later"})
    storage.reclaim(50, lambda first, last: not first <= 40 <= last)
    storage.close(clean=True)
    origin = disk.keep_all()
    newest = sorted(name for name in origin.list_directory("data/snapshots") if name.startswith("manifest"))[-1]
    origin.flip_bit(f"data/snapshots/{newest}", 300)
    with pytest.raises(CorruptRecord, match="the newest snapshot is damaged"):
        opened(origin.keep_all())
    storage = member(origin.keep_all())
    first = storage.recovered.untrusted_from
    assert storage.needs_repair and first is not None and 21 < first <= 40
    storage.drop_untrusted()
    assert first - 1 == storage.last_index
    assert records(21, first - 1, 1) == list(storage.entries(21))


def test_a_sparse_segment_is_no_way_from_an_older_snapshot_to_the_end() -> None:
    """The snapshot that was installed is damaged: what it covered without records is not known."""
    disk = SimDisk()
    storage = filled(50, 1, disk)
    snapshot(storage, 20)
    install(storage, 33, 60, 3, records(34, 60, 2)[::2])
    storage.append_batch(records(61, 64, 4))
    disk = disk.keep_all()
    newest = sorted(name for name in disk.list_directory("data/snapshots") if name.startswith("manifest"))[-1]
    disk.flip_bit(f"data/snapshots/{newest}", 300)
    with pytest.raises(CorruptRecord, match="reaches only 33 of 64"):
        opened(disk.keep_all())
    check_dropped(disk, 34)


def test_segments_made_after_an_install_are_never_taken_for_older_ones() -> None:
    """Also when every file that told how far the incarnations had come is gone."""
    disk = SimDisk()
    storage = filled(50, 1, disk)
    install(storage, 33, 60, 3, records(34, 60, 2)[::2])
    storage.close(clean=False)
    for name in disk.list_directory("data/wal"):
        disk.unlink(f"data/wal/{name}")
    storage = member(disk)
    assert (True, 60) == (storage.needs_repair, storage.last_index)
    storage.append_batch(records(61, 64, 4))
    assert records(61, 64, 4) == list(member(disk.keep_all()).entries(1))


def test_a_weak_policy_and_a_new_boot_need_a_repair() -> None:
    """What was acknowledged may never have reached the disk."""
    disk = SimDisk()
    storage = Storage.open(disk, config("never", member=True))
    storage.append_batch(records(1, 5, 1))
    assert not storage.needs_repair
    disk = disk.crash(1)
    assert Storage.open(disk, config("never", member=True)).needs_repair
    assert Storage.open(disk.keep_all(), config("always", member=True)).needs_repair


def killed(fsync: FsyncPolicy) -> SimDisk:
    """A member's process was killed with six records that only the kernel had, besides what a slot tells of."""
    disk = SimDisk()
    storage = Storage.open(disk, config(fsync, member=True))
    storage.append_batch(records(1, 5, 1))
    storage.sync()
    storage.append_batch(records(6, 11, 1))
    return disk.keep_all()


@pytest.mark.parametrize("fsync", ["never", ("interval", 100)])
def test_what_rots_behind_the_slots_of_a_weak_policy_may_have_been_acknowledged(fsync: FsyncPolicy) -> None:
    """In a body or in any field of a header, in the last record or before it, or where the file ends too early."""
    assert not Storage.open(killed(fsync), config(fsync, member=True)).needs_repair
    body = records(9, 9, 1)[0].body
    at = killed(fsync).content(segments(killed(fsync))[0]).find(body)
    for index, byte in ((9, at), *((9, at - HEADER_BYTES + byte) for byte in range(0, HEADER_BYTES, 2)), (11, 0)):
        disk = killed(fsync)
        if index == 11:
            harm(disk, records(11, 11, 1)[0])
        else:
            disk.flip_bit(segments(disk)[0], byte * 8 + 1)
        check_repaired(disk, fsync, index)
    disk = killed(fsync)
    disk.zero(segments(disk)[0], at - HEADER_BYTES, at + 16)
    check_repaired(disk, fsync, 9)
    disk = killed(fsync)
    disk.cut(segments(disk)[0], at - HEADER_BYTES)
    check_repaired(disk, fsync, 9)


def check_repaired(disk: SimDisk, fsync: FsyncPolicy, index: int) -> None:
    """What is left ends before the index, how far it reached is not known, and one that is alone is told."""
    storage = Storage.open(disk.keep_all(), config(fsync, member=True))
    assert (True, None) == (storage.needs_repair, storage.repair_claim)
    assert (index, index - 1) == (storage.recovered.untrusted_from, storage.last_index)
    alone = Storage.open(disk.keep_all(), config(fsync))
    assert index - 1 == alone.last_index


def test_nothing_is_said_of_a_sound_disk() -> None:
    """After an orderly stop, and after a power loss that tore what nobody was told of."""
    disk = lived()
    assert (False, None) == (member(disk.keep_all()).needs_repair, member(disk.keep_all()).recovered.untrusted_from)
    storage = member(disk)
    disk.power_off_at = disk.operation_count + 1
    with pytest.raises(PowerOff):
        storage.append_batch(records(101, 101, 1))
    torn = next(after for what, after in disk.aftermaths() if what == "write 0 torn")
    assert not member(torn).needs_repair


def test_another_directorys_format_is_refused() -> None:
    """A version that this walrq does not know."""
    disk = lived()
    text = disk.content("data/FORMAT").replace(b"storage 3", b"storage 4")
    disk.overwrite("data/FORMAT", 0, text)
    with pytest.raises(DataDirInvalid):
        opened(disk)


def voted(storage: Storage, term: int) -> None:
    storage.set_hard_state(HardState(term=term, vote="b", node_id="a", cluster_id="c", disk_uuid=storage.disk_uuid))


def test_how_far_the_log_may_have_reached_is_remembered_with_the_loss() -> None:
    """Of the term of then, over restarts and further losses; not known where no slot tells."""
    disk = SimDisk()
    voted(filled(12, 1, disk), 4)
    whole = disk.keep_all()
    torn = disk.keep_all()
    harm(torn, records(12, 12, 1)[0])
    storage = member(torn)
    assert (True, (4, 12)) == (storage.needs_repair, storage.repair_claim)
    voted(storage, 7)
    torn = torn.keep_all()
    harm(torn, records(5, 5, 1)[0])
    storage = member(torn)
    assert (5, (7, 12)) == (storage.recovered.untrusted_from, storage.repair_claim)
    storage.drop_untrusted()
    storage = member(torn.keep_all())
    assert (4, (7, 12)) == (storage.last_index, storage.repair_claim)
    storage.repaired()
    assert (False, None) == (storage.needs_repair, storage.repair_claim)

    for slot in (0, 1):
        hurt = whole.keep_all()
        hurt_slot(hurt, slot, 0, 1)
        storage = member(hurt)
        assert (True, None) == (storage.needs_repair, storage.repair_claim)
    hurt = whole.keep_all()
    hurt.unlink(segments(hurt)[-1])
    storage = member(hurt.keep_all())
    assert (True, None) == (storage.needs_repair, storage.repair_claim)
