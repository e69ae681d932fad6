"""Snapshots: only changed pages are written, the one before stands until then, disk is bounded."""

from __future__ import annotations

import random

import pytest

from tests.storage.crash import config
from walrq.errors import CorruptRecord, StorageError
from walrq.storage.findings import Verdict
from walrq.storage.manifest import Manifest, PageAt, decode_manifest, encode_manifest, hash_of
from walrq.storage.record import Record
from walrq.storage.storage import Storage
from walrq.testing.disk import SimDisk


def storage_with(disk: SimDisk, records: int = 40) -> Storage:
    """A storage whose log has some records to take snapshots of."""
    storage = Storage.open(disk, config())
    for index in range(storage.last_index + 1, records + 1):
        storage.append_batch([Record(index, 1, 1, b"x" * 100)])
    return storage


def write(storage: Storage, index: int, pages: dict[bytes, bytes], drop: tuple[bytes, ...] = ()) -> None:
    """One snapshot with these pages put."""
    writer = storage.begin_snapshot(index, 1, b"meta-%d" % index)
    for key, page in pages.items():
        writer.put(key, page)
    for key in drop:
        writer.drop(key)
    writer.finish()


def image(storage: Storage) -> dict[bytes, bytes]:
    """The newest snapshot's pages."""
    assert storage.snapshot is not None
    return dict(storage.snapshot.pages())


def page_files(disk: SimDisk) -> list[str]:
    """Names of the page files."""
    return [name for name in disk.list_directory("data/snapshots") if name.startswith("pages-")]


def manifests(disk: SimDisk) -> list[str]:
    """Names of the manifests, oldest first."""
    return [name for name in disk.list_directory("data/snapshots") if name.startswith("manifest-")]


def test_a_snapshot_is_read_back_whole() -> None:
    """Index, term, meta and every page, also after a restart."""
    disk = SimDisk()
    storage = storage_with(disk)
    write(storage, 10, {b"a": b"1", b"b": b"2" * 5000, b"empty": b""})

    again = Storage.open(disk.keep_all(), config())

    snapshot = again.recovered.snapshot
    assert snapshot is not None
    assert (10, 1, b"meta-10") == (snapshot.index, snapshot.term, snapshot.meta)
    assert {b"a": b"1", b"b": b"2" * 5000, b"empty": b""} == dict(snapshot.pages())
    assert hash_of(b"1") == snapshot.hashes[b"a"]
    assert 1 == again.term_at(10)


def test_only_dirty_pages_are_written_and_the_rest_is_kept() -> None:
    """The cost of a snapshot is what changed."""
    disk = SimDisk()
    storage = storage_with(disk)
    write(storage, 10, {b"%d" % n: bytes([n]) * 1000 for n in range(20)})
    before = sum(disk.size(f"data/snapshots/{name}") for name in page_files(disk))
    write(storage, 20, {b"3": b"new"}, drop=(b"7",))
    after = sum(disk.size(f"data/snapshots/{name}") for name in page_files(disk))

    assert 3 == after - before
    expected = {b"%d" % n: bytes([n]) * 1000 for n in range(20) if n != 7} | {b"3": b"new"}
    assert expected == image(Storage.open(disk.keep_all(), config()))


def test_an_unchanged_page_costs_nothing() -> None:
    """A page that is put with the same content is kept where it is."""
    disk = SimDisk()
    storage = storage_with(disk)
    write(storage, 10, {b"a": b"same"})
    write(storage, 20, {b"a": b"same"})

    assert 1 == len(page_files(disk))


def test_keep_says_whether_there_is_something_to_keep() -> None:
    """A caller with a wrong idea of what is on disk learns it before it loses a page."""
    storage = storage_with(SimDisk())
    write(storage, 10, {b"a": b"1"})
    writer = storage.begin_snapshot(20, 1, b"")
    writer.keep(b"a")
    with pytest.raises(KeyError):
        writer.keep(b"b")

    assert {b"a"} == writer.keys()
    writer.abort()


def test_an_aborted_snapshot_leaves_nothing() -> None:
    """Neither bytes nor the right to write the next one."""
    disk = SimDisk()
    storage = storage_with(disk)
    write(storage, 10, {b"a": b"1"})
    before = disk.list_directory("data/snapshots")
    writer = storage.begin_snapshot(20, 1, b"")
    writer.put(b"a", b"2" * (2 << 20))
    writer.abort()

    assert before == disk.list_directory("data/snapshots")
    assert {b"a": b"1"} == image(storage)
    write(storage, 20, {b"a": b"3"})


def test_one_snapshot_is_written_at_a_time() -> None:
    """And none older than the newest."""
    storage = storage_with(SimDisk())
    writer = storage.begin_snapshot(10, 1, b"")
    with pytest.raises(StorageError, match="another snapshot"):
        storage.begin_snapshot(11, 1, b"")
    writer.finish()
    with pytest.raises(StorageError, match="older"):
        storage.begin_snapshot(9, 1, b"")


@pytest.mark.parametrize("seed", range(5))
def test_page_files_stay_within_their_bound(seed: int) -> None:
    """bytes of page files <= 2 x newest + 2 x the one before, over any history of changes."""
    draw = random.Random(seed)
    disk = SimDisk()
    storage = storage_with(disk, 80)
    pages: dict[bytes, bytes] = {}
    sizes = [0]
    for index in range(1, 80):
        writer = storage.begin_snapshot(index, 1, b"")
        for _ in range(draw.randrange(6)):
            key = b"%d" % draw.randrange(30)
            pages[key] = draw.randbytes(draw.randrange(2000))
            writer.put(key, pages[key])
        for key in [key for key in pages if draw.random() < 0.05]:
            del pages[key]
            writer.drop(key)
        writer.finish()
        sizes.append(sum(map(len, pages.values())))
        held = sum(disk.size(f"data/snapshots/{name}") for name in page_files(disk))

        assert held <= 2 * sizes[-1] + 2 * sizes[-2], index
        assert pages == image(storage)
        assert len(manifests(disk)) <= 2


def test_a_damaged_newest_manifest_falls_back_to_the_one_before() -> None:
    """As long as the log still has everything after it, nothing is lost."""
    disk = SimDisk()
    storage = storage_with(disk)
    write(storage, 10, {b"a": b"old"})
    write(storage, 20, {b"a": b"new"})
    disk = disk.keep_all()
    disk.flip_bit(f"data/snapshots/{manifests(disk)[-1]}", 300)

    again = Storage.open(disk, config())

    assert again.recovered.snapshot is not None
    assert 10 == again.recovered.snapshot.index
    assert {b"a": b"old"} == image(again)
    assert list(range(11, 41)) == [entry.index for entry in again.recovered.entries(11)]
    assert [Verdict.METADATA] == [finding.verdict for finding in again.recovered.report]
    assert 2 == len(disk.list_directory("data/quarantine"))
    write(again, 30, {b"a": b"newer"})
    assert {b"a": b"newer"} == image(Storage.open(disk.keep_all(), config()))


def test_every_bit_flip_in_the_snapshot_files_is_seen() -> None:
    """Manifest or page: the snapshot before is used, never a wrong page."""
    disk = SimDisk()
    storage = storage_with(disk)
    write(storage, 10, {b"a": b"old"})
    write(storage, 20, {b"a": b"new page"})
    disk = disk.keep_all()
    for name in (manifests(disk)[-1], page_files(disk)[-1]):
        for bit in range(8 * disk.size(f"data/snapshots/{name}")):
            damaged = disk.keep_all()
            damaged.flip_bit(f"data/snapshots/{name}", bit)

            assert {b"a": b"old"} == image(Storage.open(damaged, config())), (name, bit)


def test_a_damaged_snapshot_that_the_log_cannot_replace_is_said_and_nothing_is_deleted() -> None:
    """Again at the next start: a refusal does not wear off."""
    disk = SimDisk()
    storage = storage_with(disk, 200)
    write(storage, 150, {b"a": b"only"})
    assert storage.reclaim(150, lambda _first, _last: False) > 0
    disk = disk.keep_all()
    path = f"data/snapshots/{manifests(disk)[-1]}"
    disk.flip_bit(path, 300)
    before = disk.list_directory("data/snapshots")
    for _ in range(3):
        with pytest.raises(CorruptRecord, match="nothing was deleted"):
            Storage.open(disk, config())

        assert before == disk.list_directory("data/snapshots")
    disk.flip_bit(path, 300)
    assert {b"a": b"only"} == image(Storage.open(disk, config()))


def test_a_page_damaged_since_the_start_is_not_copied_on() -> None:
    """Rewriting a sparse file verifies what it copies, and says so; a snapshot begun afresh shares nothing with it."""
    disk = SimDisk()
    storage = storage_with(disk)
    write(storage, 10, {b"a": b"1" * 100, b"b": b"2" * 1000})
    disk.flip_bit(f"data/snapshots/{page_files(disk)[0]}", 5)
    writer = storage.begin_snapshot(20, 1, b"")
    writer.put(b"b", b"3" * 1000)
    writer.finish()
    assert writer.is_damaged
    with pytest.raises(CorruptRecord):
        image(storage)
    writer = storage.begin_snapshot(21, 1, b"", afresh=True)
    assert frozenset() == writer.keys()
    writer.put(b"a", b"1" * 100)
    writer.put(b"b", b"3" * 1000)
    writer.finish()
    assert not writer.is_damaged
    assert {b"a": b"1" * 100, b"b": b"3" * 1000} == image(storage)


def test_half_written_files_of_a_crash_are_cleared_away() -> None:
    """Page files without a manifest and temporary files do not pile up."""
    disk = SimDisk()
    storage = storage_with(disk)
    write(storage, 10, {b"a": b"1"})
    writer = storage.begin_snapshot(20, 1, b"")
    writer.put(b"b", b"x" * (2 << 20))
    crashed = disk.keep_all()
    assert 2 == len(page_files(crashed))

    Storage.open(crashed, config())

    assert 1 == len(page_files(crashed))


def test_a_manifest_is_read_back_as_it_was_written() -> None:
    """The codec by itself, and any cut of it is refused."""
    manifest = Manifest(7, 3, b"meta", {b"k%d" % n: PageAt(n, n * 2, n * 3, bytes(16)) for n in range(50)})
    data = encode_manifest(manifest)

    assert manifest == decode_manifest(data)
    for size in range(len(data)):
        assert decode_manifest(data[:size]) is None


def test_pages_are_left_out_or_kept_by_how_their_keys_begin() -> None:
    """What is not in memory is neither read at a start nor put again when all else is."""
    disk = SimDisk()
    storage = storage_with(disk)
    write(storage, 10, {b"a": b"1", b"far": b"2"})
    snapshot = storage.snapshot
    assert snapshot is not None
    assert {b"a": b"1"} == dict(snapshot.pages(without=b"f"))
    assert {b"far": b"2"} == dict(snapshot.pages(without=(b"a", b"x")))

    writer = storage.begin_snapshot(11, 1, b"", afresh=True, keep=b"f")
    writer.put(b"b", b"3")
    writer.finish()

    assert {b"b", b"far"} == writer.keys()
    assert b"2" == storage.read_page(b"far")
    assert storage.read_page(b"a") is None
    name = next(name for name in page_files(disk) if disk.content(f"data/snapshots/{name}").startswith(b"3"))
    disk.flip_bit(f"data/snapshots/{name}", 0)
    with pytest.raises(CorruptRecord, match="damaged"):
        storage.read_page(b"b")
