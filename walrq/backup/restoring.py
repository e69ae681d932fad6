"""From a backup file to a data directory, or to the verdict that the file is whole.

A restored directory is the old node at the backup's log index, and yet another one. It keeps the node's name, the
cluster's id and its secret, so that receipts from before the backup settle what they always did. It gets a new disk
uuid, and numbers of its own (log indexes, lease numbers, incarnations of queues) far beyond those that the original
can have reached since: no receipt, fence or session of the original's later life means anything here.

Everything is written beside the target and synced, and gets its name last.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import attrs

from walrq.backup.archive import Progress, Reader, no_progress
from walrq.backup.export import MANIFEST_PART, PAGES_PART, Part
from walrq.errors import CorruptRecord, DataDirInvalid
from walrq.limits import MIB, SEGMENT_BYTES_MIN
from walrq.queues.image import branched
from walrq.storage import identity
from walrq.storage.disk import Disk, RealDisk
from walrq.storage.findings import Finding
from walrq.storage.hard_state import HardState, HardStateFile, Marks
from walrq.storage.inspect import verify as verify_directory
from walrq.storage.manifest import Manifest, decode_manifest, hash_of
from walrq.storage.recovery import scan_file
from walrq.storage.segment import PAGE_BYTES, RECORDS_START, Identity, header_bytes, read_header, segment_name
from walrq.storage.snapshot import SnapshotReader, SnapshotStore

# The original needs a year of 2,000 group commits a second to write so many entries; 4,096 restores fit into the
# 52 bits that a session number leaves to a log index.
INDEXES_SKIPPED: Final = 1 << 36
_MANIFEST_BYTES_MAX: Final = 1024 * MIB


@attrs.frozen
class Verdict:
    """A backup that was read to its end and is whole.

    Attributes:
        facts: what its manifest says.
        bytes: of its parts.
        findings: damage that the original had when it was backed up, and that was copied as it was.
    """

    facts: dict[str, Any]
    bytes: int
    findings: tuple[Finding, ...]


def verify(file: BinaryIO, *, progress: Progress = no_progress, disk: Disk | None = None) -> Verdict:
    """Read a whole backup, every checksum outside and inside the log and the snapshot included.

    Segments are unpacked one at a time into the system's temporary folder.

    Raises:
        CorruptRecord: names the part that is torn or damaged. DataDirInvalid: no backup, or another format. OSError.
    """
    disk = disk or RealDisk()
    reader = Reader(file)
    findings: list[Finding] = []
    manifest: Manifest | None = None
    with tempfile.TemporaryDirectory(prefix="walrq-backup-") as folder:
        for part, chunks in reader.each(progress):
            if part.name == MANIFEST_PART:
                manifest = _manifest(part, chunks)
            elif part.name == PAGES_PART:
                assert manifest is not None, "the manifest comes first"
                _check_pages(manifest, part, chunks)
            else:
                path = f"{folder}/segment"
                _unpack(disk, path, chunks)
                header = read_header(disk, path)
                if header is None:
                    raise CorruptRecord(f"the backup is damaged: {part.name} has no header")
                findings += scan_file(disk, path, part.name, header).findings
                disk.unlink(path)
    return Verdict(reader.facts, sum(part.size for part in reader.parts), tuple(findings))


def restore(
    file: BinaryIO, data_dir: str | Path, *, progress: Progress = no_progress, disk: Disk | None = None
) -> Verdict:
    """Make a data directory from a backup; it appears whole and durable, or not at all.

    Raises:
        DataDirInvalid: the target is there and not empty, its parent is not, or the file is no backup.
        CorruptRecord: names the part of the backup that is torn or damaged.
        OSError: reading or writing failed.
    """
    disk = disk or RealDisk()
    target = Path(os.path.abspath(data_dir))
    _check_target(target)
    reader = Reader(file)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.restoring-", dir=target.parent))
    try:
        findings = _fill(disk, str(folder), reader, progress)
        os.chmod(folder, 0o777 & ~_umask())
        # Over an empty directory a rename works as over nothing.
        os.rename(folder, target)
        disk.fsync_directory(str(target.parent))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Verdict(reader.facts, sum(part.size for part in reader.parts), findings)


def _check_target(target: Path) -> None:
    if not target.parent.is_dir():
        raise DataDirInvalid(f"{target} cannot be created: its parent directory does not exist")
    if target.exists() and not target.is_dir():
        raise DataDirInvalid(f"{target} is not a directory")
    if target.exists() and any(target.iterdir()):
        raise DataDirInvalid(f"{target} is not empty: a backup is restored into a new or an empty directory only")


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _fill(disk: Disk, folder: str, reader: Reader, progress: Progress) -> tuple[Finding, ...]:
    """Everything but the directory's final name."""
    disk_uuid = identity.load_or_create(disk, folder)
    incoming = f"{folder}/incoming"
    for name in (incoming, f"{incoming}/snapshots"):
        disk.make_directory(name)
    manifest: Manifest | None = None
    incarnation = 0
    for part, chunks in reader.each(progress):
        if part.name == MANIFEST_PART:
            manifest = _manifest(part, chunks)
        elif part.name == PAGES_PART:
            _unpack(disk, f"{incoming}/{PAGES_PART}", chunks)
        else:
            incarnation = max(incarnation, _unpack_segment(disk, folder, part, chunks, disk_uuid))
    assert manifest is not None, "a backup always has one"
    last_index = manifest.index + INDEXES_SKIPPED
    _write_snapshot(disk, folder, SnapshotReader(disk, f"{incoming}/snapshots", manifest), last_index)
    shutil.rmtree(incoming)
    _write_last_segment(disk, folder, Identity(disk_uuid, incarnation + 1, last_index + 1, SEGMENT_BYTES_MIN))
    _write_hard_state(disk, folder, reader.facts, disk_uuid)
    disk.fsync_directory(folder)
    return verify_directory(folder, disk=disk).findings


def _manifest(part: Part, chunks: Iterator[bytes]) -> Manifest:
    if part.size > _MANIFEST_BYTES_MAX:
        raise CorruptRecord(f"the backup is damaged: {part.name} has {part.size} bytes")
    manifest = decode_manifest(b"".join(chunks))
    if manifest is None:
        raise CorruptRecord(f"the backup is damaged: {part.name} cannot be read")
    return manifest


def _check_pages(manifest: Manifest, part: Part, chunks: Iterator[bytes]) -> None:
    """Every page against its hash, as they come."""
    held = bytearray()
    offset = 0
    for key, place in sorted(manifest.pages.items(), key=lambda item: item[1].offset):
        while len(held) < place.length:
            chunk = next(chunks, None)
            if chunk is None:
                raise CorruptRecord(f"the backup is damaged: {part.name} ends inside page {key.hex()}")
            held += chunk
        if place.offset != offset or hash_of(bytes(held[: place.length])) != place.hash:
            raise CorruptRecord(f"the backup is damaged: page {key.hex()} of {part.name}")
        offset += place.length
        del held[: place.length]
    if held or next(chunks, None) is not None:
        raise CorruptRecord(f"the backup is damaged: {part.name} is longer than its pages")


def _unpack(disk: Disk, path: str, chunks: Iterator[bytes], *, head: bytes = b"") -> None:
    """Write a file and sync it; its name is made durable by the caller."""
    handle = disk.open(path, create=True)
    try:
        offset = len(head)
        if head:
            disk.pwrite(handle, head, 0)
        for chunk in chunks:
            disk.pwrite(handle, chunk, offset)
            offset += len(chunk)
        disk.fdatasync(handle)
    finally:
        disk.close(handle)


def _unpack_segment(disk: Disk, folder: str, part: Part, chunks: Iterator[bytes], disk_uuid: bytes) -> int:
    """A segment under the new disk's name; its incarnation, without which its records would not verify."""
    path = f"{folder}/{part.name}"
    _unpack(disk, path, chunks)
    header = read_header(disk, path)
    if part.size < RECORDS_START or header is None or not header.identity_readable:
        raise CorruptRecord(f"the backup is damaged: {part.name} has no header")
    handle = disk.open(path)
    try:
        page = attrs.evolve(header.identity, disk_uuid=disk_uuid).encode()
        assert len(page) == PAGE_BYTES, len(page)
        disk.pwrite(handle, page, 0)
        disk.fdatasync(handle)
    finally:
        disk.close(handle)
    return header.identity.incarnation


def _write_snapshot(disk: Disk, folder: str, source: SnapshotReader, index: int) -> None:
    """The image, with numbers of its own, and without the members of the cluster it was taken in: a copy is alone."""
    store = SnapshotStore(disk, folder, reserve_bytes=0)
    store.load()
    writer = store.begin(index, source.term, b"", lambda: index)
    for key, page in source.pages():
        writer.put(key, branched(key, page))
    writer.finish()


def _write_last_segment(disk: Disk, folder: str, fresh: Identity) -> None:
    """The empty segment in which the log goes on: its first index says that nothing is missing before it."""
    path = f"{folder}/wal/{segment_name(fresh.first_index)}"
    handle = disk.open(path, create=True)
    try:
        disk.preallocate(handle, fresh.file_bytes)
        disk.pwrite(handle, header_bytes(fresh), 0)
        disk.fdatasync(handle)
    finally:
        disk.close(handle)
    disk.fsync_directory(f"{folder}/wal")


def _write_hard_state(disk: Disk, folder: str, facts: dict[str, Any], disk_uuid: bytes) -> None:
    try:
        state = HardState(
            term=int(facts["term"]),
            vote=None if facts["vote"] is None else str(facts["vote"]),
            node_id=str(facts["node_id"]),
            cluster_id=str(facts["cluster_id"]),
            disk_uuid=disk_uuid,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptRecord(f"the backup is damaged: backup.json does not say {error}") from error
    HardStateFile(disk, folder).write(state, Marks(clean=True, boot_id=""))
