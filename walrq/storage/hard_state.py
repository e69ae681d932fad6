"""Term, vote and identity of the node, and the marks of its last stop: small, and always synced.

The file `hard-state` has two pages of 4096 bytes with the same record, written and synced one after the
other:

    0   magic     8 bytes  WALRQHST
    8   crc       u32      CRC-32C of what follows
    12  length    u32      bytes of the body
    16  sequence  u64      grows with every write
    24  body      CBOR map, canonical

Two copies, not one: a page that cannot be read is then either the one being written when the node stopped,
and nobody was told of it, or it rotted, and the other page says the same. A vote is never guessed.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import attrs
import cbor2
from crc32c import crc32c

from walrq.errors import CorruptRecord, StorageError
from walrq.storage.disk import Disk, read_file

NAME: Final = "hard-state"
MAGIC: Final = b"WALRQHST"
PAGE_BYTES: Final = 4096
_HEADER: Final = struct.Struct("<8sIIQ")


@attrs.frozen(kw_only=True)
class HardState:
    """What consensus may never forget.

    Attributes:
        term: latest term seen.
        vote: node voted for in that term; None: nobody.
        node_id, cluster_id: names given at the first start.
        disk_uuid: the disk this node's name is bound to.
        group: others vote as well, or this node waits to be taken in by them.
        voters: who votes by any list of members in the log: index of the newest one, 8 bytes, and mark of the name.
    """

    term: int
    vote: str | None
    node_id: str
    cluster_id: str
    disk_uuid: bytes
    group: bool = False
    voters: tuple[bytes, ...] = ()


@attrs.frozen(kw_only=True)
class Marks:
    """How the last run ended, and what it left undone.

    Attributes:
        clean: with everything synced.
        boot_id: of the kernel it ran on.
        repair: entries that may have been acknowledged were lost, and are not known to be here again.
        claim: (term, index) that the log reached at most before that; None: not known.
    """

    clean: bool
    boot_id: str
    repair: bool = False
    claim: tuple[int, int] | None = None


class HardStateFile:
    """The file. One writer."""

    def __init__(self, disk: Disk, data_dir: str) -> None:
        self._disk = disk
        self._data_dir = data_dir
        self._path = f"{data_dir}/{NAME}"
        self._sequence = 0
        self._failed: OSError | None = None
        self.state: HardState | None = None
        self.marks: Marks | None = None

    def load(self, *, lived: bool) -> None:
        """Read the newest page. OSError.

        Args:
            lived: the log or a snapshot holds something, so the first write was finished long ago.

        Raises:
            CorruptRecord: the file is there, but neither page can be read.
        """
        if not self._disk.exists(self._path):
            return
        data = read_file(self._disk, self._path)
        pages = [_decode(data[start : start + PAGE_BYTES]) for start in (0, PAGE_BYTES)]
        good = [page for page in pages if page is not None]
        if not good:
            # The first write never finished: only the name and, at most, a torn first page are there.
            if not lived and not any(data[PAGE_BYTES:]):
                return
            raise CorruptRecord(
                f"{self._path} is damaged: term and vote are unknown, and are not guessed; put the file back from a"
                " copy, or, if this node is the only voter, move it away: the term then goes on behind the log's"
            )
        self._sequence, self.state, self.marks = max(good, key=lambda page: page[0])

    def write(self, state: HardState | None, marks: Marks) -> None:
        """Replace the record; durable when this returns. A failure is final: StorageError."""
        if self._failed is not None:
            raise StorageError(f"hard state failed earlier: {self._failed}") from self._failed
        page = _encode(self._sequence + 1, state, marks)
        try:
            self._write_pages(page)
        except OSError as error:
            self._failed = error
            raise StorageError(f"hard state could not be written: {error.strerror or error}") from error
        self._sequence += 1
        self.state, self.marks = state, marks

    def _write_pages(self, page: bytes) -> None:
        is_new = not self._disk.exists(self._path)
        handle = self._disk.open(self._path, create=True)
        try:
            if is_new:
                self._disk.preallocate(handle, 2 * PAGE_BYTES)
            for offset in (0, PAGE_BYTES):
                self._disk.pwrite(handle, page, offset)
                self._disk.fdatasync(handle)
        finally:
            self._disk.close(handle)
        if is_new:
            self._disk.fsync_directory(self._data_dir)


def _plain(state: HardState) -> dict[str, Any]:
    fields = attrs.asdict(state)
    if not state.group:
        # As it was before there were groups.
        del fields["group"]
    if not state.voters:
        del fields["voters"]
    return fields


def _encode(sequence: int, state: HardState | None, marks: Marks) -> bytes:
    fields: dict[str, Any] = {
        "state": None if state is None else _plain(state),
        "clean": marks.clean,
        "boot_id": marks.boot_id,
    }
    if marks.repair:
        fields["repair"] = True
    if marks.claim is not None:
        fields["claim"] = list(marks.claim)
    body = cbor2.dumps(fields, canonical=True)
    covered = struct.pack("<IQ", len(body), sequence) + body
    page = MAGIC + int(crc32c(covered)).to_bytes(4, "little") + covered
    if len(page) > PAGE_BYTES:
        raise StorageError(f"hard state of {len(page)} bytes exceeds its page of {PAGE_BYTES}")
    return page.ljust(PAGE_BYTES, b"\0")


def _decode(page: bytes) -> tuple[int, HardState | None, Marks] | None:
    """(sequence, state, marks), or None if the page is damaged."""
    if len(page) < _HEADER.size:
        return None
    magic, crc, length, sequence = _HEADER.unpack_from(page)
    end = _HEADER.size + length
    if magic != MAGIC or end > len(page) or crc32c(page[12:end]) != crc:
        return None
    fields: dict[str, Any] = cbor2.loads(page[_HEADER.size : end])
    plain = fields["state"]
    state = None if plain is None else HardState(**{**plain, "voters": tuple(plain.get("voters", ()))})
    claim = fields.get("claim")
    marks = Marks(
        clean=fields["clean"],
        boot_id=fields["boot_id"],
        repair=fields.get("repair", False),
        claim=(claim[0], claim[1]) if claim is not None else None,
    )
    return sequence, state, marks
