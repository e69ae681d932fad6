"""Whether the log has a record for everything that is alive: what neither the log nor the snapshot can tell alone."""

from __future__ import annotations

from bisect import bisect_right

from walrq.compaction.liveness import _far_of, _has_rows, _rows_of
from walrq.errors import CorruptRecord
from walrq.storage import inspect
from walrq.storage.disk import Disk, RealDisk, read_file
from walrq.storage.findings import Finding, Verdict
from walrq.storage.manifest import Manifest, decode_manifest, hash_of
from walrq.storage.snapshot import manifest_number, pages_name


class _Reading:
    """The pages of a snapshot that nobody holds."""

    def __init__(self, disk: Disk, directory: str, manifest: Manifest) -> None:
        self._disk = disk
        self._directory = directory
        self.manifest = manifest

    def read(self, key: bytes) -> bytes:
        """A page, verified. CorruptRecord; OSError."""
        place = self.manifest.pages[key]
        handle = self._disk.open(f"{self._directory}/{pages_name(place.file)}", read_only=True)
        try:
            page = self._disk.pread(handle, place.length, place.offset)
        finally:
            self._disk.close(handle)
        if hash_of(page) != place.hash:
            raise CorruptRecord(f"page {key.hex()} of the snapshot is damaged")
        return page


def find_homeless(data_dir: str, *, disk: Disk | None = None) -> list[Finding]:
    """What is alive in the newest snapshot and lies in no segment; pages that cannot be read are passed over.

    `inspect.verify` says which those are. DataDirInvalid; OSError.
    """
    disk = disk or RealDisk()
    directory = f"{data_dir}/snapshots"
    names = sorted(name for name in disk.list_directory(directory) if manifest_number(name) is not None)
    manifests = [decode_manifest(read_file(disk, f"{directory}/{name}")) for name in names]
    manifest = next((each for each in reversed(manifests) if each is not None), None)
    if manifest is None:
        return []
    segments = [value for value in inspect.segments(data_dir, disk=disk) if value["readable"]]
    ranges = sorted((value["first_index"], value["last_index"]) for value in segments)
    firsts = [first for first, _ in ranges]
    pages = _Reading(disk, directory, manifest)
    homeless: list[int] = []
    messages = 0
    try:
        far = _far_of(pages)
        for key in manifest.pages:
            if not _has_rows(key):
                continue
            try:
                rows = list(_rows_of(key, pages.read(key), far))
            except (CorruptRecord, FileNotFoundError):
                continue
            for index, _, low, high, _ in rows:
                position = bisect_right(firsts, index) - 1
                if position < 0 or index > ranges[position][1]:
                    homeless.append(index)
                    messages += high - low + 1
    except (CorruptRecord, FileNotFoundError):
        return []
    if not homeless:
        return []
    text = f"{messages} live messages have no record any more: a segment was lost; they are delivered as lost"
    return [Finding(Verdict.MISSING, "wal", text, first_index=min(homeless), last_index=max(homeless))]
