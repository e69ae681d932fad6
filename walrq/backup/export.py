"""A pinned snapshot as parts: what a backup copies, readable by (part, offset, limit).

The parts are files of a data directory as docs/storage-format.md describes them, made anew where the originals hold
more than the snapshot: the manifest names one page file without garbage, and each segment ends, sealed, at the
snapshot's index. Nothing is held in memory but the manifest and the headers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Final

import attrs

from walrq.errors import CorruptRecord, StorageError
from walrq.limits import BACKUP_PARTS_MAX
from walrq.storage.manifest import Manifest, PageAt, encode_manifest
from walrq.storage.segment import RECORDS_START, Extent, Identity, header_bytes, segment_name
from walrq.storage.snapshot import manifest_name, pages_name
from walrq.storage.storage import Pin

FORMAT: Final = 1
MANIFEST_PART: Final = f"snapshots/{manifest_name(1)}"
PAGES_PART: Final = f"snapshots/{pages_name(1)}"


@attrs.frozen
class Part:
    """One part: its name, which is its path in a data directory, and its bytes."""

    name: str
    size: int


class Export:
    """See the module. Reads are blocking and may come from any thread, until the pin is released."""

    def __init__(self, pin: Pin, disk_uuid: bytes, facts: Mapping[str, Any]) -> None:
        """`pin`: fixed. `facts`: what else the backup's manifest says, plain values.

        Raises:
            StorageError: more parts than a backup may have.
        """
        self._pin = pin
        manifest = pin.manifest
        self._pages = sorted(manifest.pages.items(), key=lambda item: (item[1].file, item[1].offset))
        ends = list(accumulate((place.length for _, place in self._pages), initial=0))
        self._starts = ends[:-1]
        places = {
            key: PageAt(1, start, place.length, place.hash)
            for (key, place), start in zip(self._pages, self._starts, strict=True)
        }
        self._manifest = encode_manifest(Manifest(manifest.index, manifest.term, manifest.meta, places))
        self._segments = [(extent, _header(extent, disk_uuid)) for extent in pin.extents]
        self.facts = {
            "format": FORMAT,
            **facts,
            "disk_uuid": disk_uuid.hex(),
            "index": manifest.index,
            "snapshot_term": manifest.term,
        }
        self.parts = (
            Part(MANIFEST_PART, len(self._manifest)),
            Part(PAGES_PART, ends[-1]),
            *(Part(f"wal/{segment_name(extent.first_index)}", extent.end) for extent in pin.extents),
        )
        if len(self.parts) > BACKUP_PARTS_MAX:
            raise StorageError(
                f"the log has {len(pin.extents)} segments, a backup holds {BACKUP_PARTS_MAX}: use larger segments"
            )

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for part in self.parts)

    def read(self, part: int, offset: int, limit: int) -> bytes:
        """Up to `limit` bytes of a part from `offset` on; fewer only at its end.

        Raises:
            CorruptRecord: the file is shorter than it was.
            StorageError: the disk failed.
        """
        limit = min(limit, max(0, self.parts[part].size - offset))
        try:
            data = self._read(part, offset, limit)
        except OSError as error:
            raise StorageError(f"{self.parts[part].name} cannot be read: {error.strerror or error}") from error
        if len(data) != limit:
            raise CorruptRecord(f"{self.parts[part].name} is shorter than it was: {len(data)} of {limit} bytes")
        return data

    def _read(self, part: int, offset: int, size: int) -> bytes:
        if part == 0:
            return self._manifest[offset : offset + size]
        if part == 1:
            return self._read_pages(offset, size)
        extent, header = self._segments[part - 2]
        head = header[offset : offset + size]
        rest = size - len(head)
        return head + self._pin.read_records(extent, rest, offset + len(head)) if rest else head

    def _read_pages(self, offset: int, size: int) -> bytes:
        """Pages end to end, from the middle of one to the middle of another."""
        found: list[bytes] = []
        position = bisect_right(self._starts, offset) - 1
        while size and position < len(self._pages):
            place = self._pages[position][1]
            skipped = offset - self._starts[position]
            count = min(size, place.length - skipped)
            if count:
                found.append(self._pin.read_page(place, count, skipped))
            offset += count
            size -= count
            position += 1
        return b"".join(found)


def _header(extent: Extent, disk_uuid: bytes) -> bytes:
    identity = Identity(disk_uuid, extent.incarnation, extent.first_index, extent.end, extent.sparse)
    header = header_bytes(identity, end=extent.end, last_index=extent.last_index, sealed=True)
    assert len(header) == RECORDS_START, len(header)
    return header
