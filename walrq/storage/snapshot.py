"""Snapshots: an image of pages, of which only the changed ones are written.

    snapshots/pages-<number>.pg      pages end to end, nothing else; written once, never changed
    snapshots/manifest-<number>.mf   the table of all pages of one snapshot (manifest.py)
    snapshots/reserve                room held back for a full disk

A snapshot is its manifest: it exists from the moment the manifest's name is durable, and all its pages were
synced before that. The two newest are kept. A page file that neither refers to is deleted; the pages still in
use of one that is a quarter garbage are written again, so that, also while another one is being written,

    bytes of page files <= 4 x pages of the largest of them

The writer runs in a thread of its own beside the log and shares nothing with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Final

import attrs

from walrq.errors import CorruptRecord, DiskFull, StorageError
from walrq.storage.disk import FULL_ERRNOS, Disk, read_file, write_file_atomically
from walrq.storage.findings import Finding, Verdict
from walrq.storage.manifest import Install, Manifest, PageAt, decode_manifest, encode_manifest, hash_of

RESERVE_NAME: Final = "reserve"
MANIFESTS_KEPT: Final = 2
# The pages of a file are written again once more than one part in so many is garbage. Hence what is kept takes at most
# 4/3 of its pages, and two snapshots beside one that is being written no more than two of them twice.
GARBAGE_PARTS: Final = 4
# Of a manifest, for each page; and what else one has, about.
_ENTRY_BYTES: Final = 80
_MANIFEST_BYTES: Final = 4096
_BUFFER_BYTES: Final = 1 << 20


def pages_name(number: int) -> str:
    """Name of a page file."""
    return f"pages-{number:020d}.pg"


def manifest_name(number: int) -> str:
    """Name of a manifest."""
    return f"manifest-{number:020d}.mf"


def manifest_number(name: str) -> int | None:
    """The number in a manifest's name; None for other names."""
    return _number(name, "manifest-", ".mf")


def pages_number(name: str) -> int | None:
    """The number in a page file's name; None for other names."""
    return _number(name, "pages-", ".pg")


def _number(name: str, first: str, last: str) -> int | None:
    digits = name[len(first) : -len(last)]
    return int(digits) if name.startswith(first) and name.endswith(last) and digits.isdecimal() else None


@attrs.frozen
class SnapshotReader:
    """A complete snapshot, read back."""

    _disk: Disk
    _directory: str
    _manifest: Manifest

    @property
    def index(self) -> int:
        """Last log index in the image."""
        return self._manifest.index

    @property
    def term(self) -> int:
        """Term of that index."""
        return self._manifest.term

    @property
    def meta(self) -> bytes:
        """The caller's bytes."""
        return self._manifest.meta

    @property
    def hashes(self) -> dict[bytes, bytes]:
        """Hash of every page by key."""
        return {key: page.hash for key, page in self._manifest.pages.items()}

    def page_bytes(self, without: bytes | tuple[bytes, ...] = ()) -> int:
        """Bytes of all pages whose keys do not begin so."""
        return sum(place.length for key, place in self._manifest.pages.items() if not key.startswith(without))

    def pages(self, without: bytes | tuple[bytes, ...] = ()) -> Iterator[tuple[bytes, bytes]]:
        """Every page by key, in file order, verified. CorruptRecord names the first damaged one.

        Args:
            without: pages whose keys begin so are left out.
        """
        wanted = [item for item in self._manifest.pages.items() if not item[0].startswith(without)]
        places = sorted(wanted, key=lambda item: (item[1].file, item[1].offset))
        handle, number = -1, -1
        try:
            for key, place in places:
                if place.file != number:
                    if handle >= 0:
                        self._disk.close(handle)
                        handle = -1
                    handle = self._disk.open(f"{self._directory}/{pages_name(place.file)}", read_only=True)
                    number = place.file
                page = self._disk.pread(handle, place.length, place.offset)
                if hash_of(page) != place.hash:
                    raise CorruptRecord(f"page {key.hex()} in {pages_name(place.file)} at {place.offset} is damaged")
                yield key, page
        finally:
            if handle >= 0:
                self._disk.close(handle)

    def damaged(self, only: tuple[bytes, ...]) -> list[bytes]:
        """Keys of all pages that cannot be read as they were written, of those whose keys begin so."""
        found = []
        for key, place in sorted(self._manifest.pages.items(), key=lambda item: (item[1].file, item[1].offset)):
            if key.startswith(only):
                try:
                    handle = self._disk.open(f"{self._directory}/{pages_name(place.file)}", read_only=True)
                except FileNotFoundError:
                    found.append(key)
                    continue
                try:
                    if hash_of(self._disk.pread(handle, place.length, place.offset)) != place.hash:
                        found.append(key)
                finally:
                    self._disk.close(handle)
        return found


class HeldPages:
    """The pages of a snapshot, which stay until `release`. Made by `SnapshotStore.hold`. Any thread."""

    def __init__(self, store: SnapshotStore, disk: Disk, directory: str, manifest: Manifest) -> None:
        self._store = store
        self._disk = disk
        self._directory = directory
        self.manifest = manifest

    def read(self, key: bytes) -> bytes:
        """A page, verified. KeyError: there is none. CorruptRecord: it is damaged. StorageError: the disk failed."""
        place = self.manifest.pages[key]
        path = f"{self._directory}/{pages_name(place.file)}"
        try:
            handle = self._disk.open(path, read_only=True)
            try:
                page = self._disk.pread(handle, place.length, place.offset)
            finally:
                self._disk.close(handle)
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
        if hash_of(page) != place.hash:
            raise CorruptRecord(f"page {key.hex()} in {pages_name(place.file)} at {place.offset} is damaged")
        return page

    def release(self) -> None:
        """Let go. Once."""
        self._store.let_go(self.manifest)


class SnapshotStore:
    """The snapshots of one node. Its own lock; nothing shared with the log."""

    def __init__(self, disk: Disk, data_dir: str, *, reserve_bytes: int) -> None:
        self._disk = disk
        self._directory = f"{data_dir}/snapshots"
        self._data_dir = data_dir
        self._reserve_bytes_min = reserve_bytes
        self._lock = threading.Lock()
        self._writing = False
        self._next_number = 1
        # Newest first, at most MANIFESTS_KEPT.
        self._kept: list[tuple[int, Manifest]] = []
        # Page files of snapshots that are being received.
        self._staged: frozenset[int] = frozenset()
        # Snapshots that somebody reads: their page files stay. Replaced under `holding`, never changed.
        self.held: tuple[Manifest, ...] = ()
        self.holding = threading.Lock()
        self.reserve_is_whole = False
        # Of the file that holds room back.
        self.reserve_bytes = 0
        # Pages put into the snapshot that is being written.
        self.growing_bytes = 0
        self.damaged_index = 0
        # Pages of the newest snapshot that were spared and are damaged.
        self.lost_pages: dict[bytes, PageAt] = {}
        self._damaged: list[tuple[str, str]] = []

    @property
    def newest(self) -> Manifest | None:
        """The newest complete snapshot."""
        kept = self._kept
        return kept[0][1] if kept else None

    @property
    def reader(self) -> SnapshotReader | None:
        """The newest complete snapshot, to be read."""
        newest = self.newest
        return None if newest is None else SnapshotReader(self._disk, self._directory, newest)

    @property
    def snapshot_bytes(self) -> int:
        """What one snapshot takes at most: twice the pages of the largest that is kept, held, or being written."""
        known = [manifest for _, manifest in self._kept]
        sizes = [each.page_bytes + _ENTRY_BYTES * len(each.pages) for each in (*known, *self.held)]
        return 2 * (max([0, self.growing_bytes, *sizes]) + _MANIFEST_BYTES)

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of all page files and manifests (not the reserve)."""
        names = self._disk.list_directory(self._directory)
        return sum(self._disk.size(f"{self._directory}/{name}") for name in names if name != RESERVE_NAME)

    def hold(self) -> HeldPages | None:
        """Keep the pages of the newest snapshot for a reader; None: there is no snapshot."""
        with self.holding:
            newest = self.newest
            if newest is None:
                return None
            self.held = (*self.held, newest)
        return HeldPages(self, self._disk, self._directory, newest)

    def let_go(self, manifest: Manifest) -> None:
        """Once for each time that it was held; fine for one that is not."""
        with self.holding:
            held = list(self.held)
            place = next((at for at, other in enumerate(held) if other is manifest), None)
            if place is not None:
                del held[place]
            self.held = tuple(held)

    # --- opening --------------------------------------------------------------------------------------------

    def load(self, spared: tuple[bytes, ...] = ()) -> None:
        """Find the snapshots. Afterwards `newest` is the newest one whose every page verifies. OSError.

        Nothing is moved or deleted yet: first it must be known that the log reaches (`put_damaged_aside`).

        Args:
            spared: a damaged page whose key begins so is lost alone, and does not condemn its snapshot.
        """
        names = self._disk.list_directory(self._directory)
        numbers = [number for name in names if (number := manifest_number(name)) is not None]
        files = [number for name in names if (number := pages_number(name)) is not None]
        self._next_number = max([0, *numbers, *files]) + 1
        for number in sorted(numbers, reverse=True):
            text = self._take(number, spared)
            if text:
                self._damaged.append((manifest_name(number), text))

    @property
    def is_damaged(self) -> bool:
        """A manifest or a page of it could not be read."""
        return bool(self._damaged)

    def put_damaged_aside(self) -> list[Finding]:
        """Move damaged snapshots into quarantine, and clear away what a crash left half written. OSError."""
        findings = [self._quarantine(name, text) for name, text in self._damaged]
        self._damaged.clear()
        known = self._known_files()
        for name in self._disk.list_directory(self._directory):
            file = pages_number(name)
            if name.endswith(".tmp"):
                self._disk.unlink(f"{self._directory}/{name}")
            elif file is not None and file not in known:
                # What a damaged manifest knew is not known any more, so nothing it may refer to is deleted.
                if findings:
                    self._quarantine(name, "")
                else:
                    self._disk.unlink(f"{self._directory}/{name}")
        return findings

    def _known_files(self) -> frozenset[int]:
        manifests = [*(manifest for _, manifest in self._kept), *self.held]
        return frozenset(file for manifest in manifests for file in manifest.files) | self._staged

    def _take(self, number: int, spared: tuple[bytes, ...]) -> str:
        """Keep a manifest if it and its pages are intact; else say what is wrong."""
        manifest = decode_manifest(read_file(self._disk, f"{self._directory}/{manifest_name(number)}"))
        if manifest is None:
            return "the manifest is damaged"
        reader = SnapshotReader(self._disk, self._directory, manifest)
        try:
            for _ in reader.pages(without=spared):
                pass
        except (CorruptRecord, FileNotFoundError) as error:
            self.damaged_index = max(self.damaged_index, manifest.index)
            return str(error)
        if spared and not self._kept:
            self.lost_pages = {key: manifest.pages[key] for key in reader.damaged(spared)}
        self._kept.append((number, manifest))
        return ""

    def _quarantine(self, name: str, text: str) -> Finding:
        target = f"quarantine/{name}"
        self._disk.rename(f"{self._directory}/{name}", f"{self._data_dir}/{target}")
        self._disk.fsync_directory(f"{self._data_dir}/quarantine")
        self._disk.fsync_directory(self._directory)
        return Finding(Verdict.METADATA, f"snapshots/{name}", text, kept_as=target)

    # --- the reserve ----------------------------------------------------------------------------------------

    def replenish(self) -> bool:
        """Hold back room for two more snapshots of the present size; False if the disk has none. OSError."""
        newest = self.newest
        pages = newest.page_bytes if newest is not None else 0
        wanted = max(self._reserve_bytes_min, 2 * pages)
        path = f"{self._directory}/{RESERVE_NAME}"
        with self._lock:
            if not wanted or (self._disk.exists(path) and self._disk.size(path) >= wanted):
                self.reserve_bytes = self._disk.size(path) if self._disk.exists(path) else 0
                self.reserve_is_whole = True
                return True
            handle = self._disk.open(path, create=True)
            try:
                self._disk.preallocate(handle, wanted)
            except OSError as error:
                if error.errno not in FULL_ERRNOS:
                    raise
                self.reserve_is_whole = False
                return False
            finally:
                self._disk.close(handle)
            self._disk.fsync_directory(self._directory)
            self.reserve_bytes = wanted
            self.reserve_is_whole = True
            return True

    def release_reserve(self) -> bool:
        """Give the held back room to a snapshot that needs it; False if there was none."""
        path = f"{self._directory}/{RESERVE_NAME}"
        with self._lock:
            self.reserve_is_whole = False
            self.reserve_bytes = 0
            if not self._disk.exists(path):
                return False
            self._disk.unlink(path)
            self._disk.fsync_directory(self._directory)
            return True

    # --- writing --------------------------------------------------------------------------------------------

    def read_page(self, key: bytes) -> bytes | None:
        """A page of the newest snapshot, verified; None: it has none of that key. Blocking; any thread.

        Raises:
            CorruptRecord: it is damaged. OSError.
        """
        while True:
            newest = self.newest
            place = newest.pages.get(key) if newest is not None else None
            if place is None:
                return None
            try:
                handle = self._disk.open(f"{self._directory}/{pages_name(place.file)}", read_only=True)
            except FileNotFoundError:
                if self.newest is newest:
                    raise
                # A later snapshot has the page elsewhere, or not at all, and this file was cleared away.
                continue
            try:
                page = self._disk.pread(handle, place.length, place.offset)
            finally:
                self._disk.close(handle)
            if hash_of(page) != place.hash:
                raise CorruptRecord(f"page {key.hex()} in {pages_name(place.file)} at {place.offset} is damaged")
            return page

    def begin(
        self,
        index: int,
        term: int,
        meta: bytes,
        durable: Callable[[], int],
        *,
        afresh: bool = False,
        keep: bytes | tuple[bytes, ...] = (),
    ) -> SnapshotWriter:
        """Start a snapshot that begins as a copy of the newest one. StorageError if one is being written.

        `durable` tells the end of the durable log, which a finished snapshot must not be ahead of. `afresh`: none of
        the pages is kept but those whose keys begin with `keep`, every other one is going to be put.
        """
        with self._lock:
            if self._writing:
                raise StorageError("another snapshot is being written")
            newest = self.newest
            if newest is not None and index < newest.index:
                raise StorageError(f"a snapshot at {index} would be older than the one at {newest.index}")
            self._writing = True
            number = self._next_number
            self._next_number += 1
        known = newest.pages.items() if newest is not None else ()
        base = {key: place for key, place in known if not afresh or key.startswith(keep)}
        return SnapshotWriter(self, self._disk, self._directory, number, index, term, meta, durable, base)

    def receive(self, index: int, term: int, meta: bytes) -> SnapshotWriter:
        """Start a snapshot that comes from another node, without pages; others may be written meanwhile."""
        with self._lock:
            number = self._next_number
            self._next_number += 1
            self._staged |= {number}
        return SnapshotWriter(
            self, self._disk, self._directory, number, index, term, meta, lambda: index, {}, received=True
        )

    def claim(self, index: int) -> int:
        """Before a received snapshot is finished: the number of its manifest, higher than that of any other.

        StorageError if another is being written, or a newer one is there.
        """
        with self._lock:
            newest = self.newest
            if self._writing:
                raise StorageError("another snapshot is being written: finish or abort it first")
            if newest is not None and index < newest.index:
                raise StorageError(f"the snapshot at {index} is older than the one at {newest.index}")
            self._writing = True
            number = self._next_number
            self._next_number += 1
            return number

    def publish(self, number: int, manifest: Manifest) -> None:
        """Make a snapshot the newest, after its pages were synced. OSError: the old one stands."""
        write_file_atomically(self._disk, self._directory, manifest_name(number), encode_manifest(manifest))
        self._kept = [(number, manifest), *self._kept]

    def collect(self) -> None:
        """Delete the manifests beyond the two newest and the page files that nobody refers to.

        An older one that somebody reads takes the room of the second.
        """
        newest = [manifest for _, manifest in self._kept[:MANIFESTS_KEPT]]
        is_older = any(all(held is not manifest for manifest in newest) for held in self.held)
        count = 1 if is_older else MANIFESTS_KEPT
        stale = self._kept[count:]
        self._kept = self._kept[:count]
        for number, _ in stale:
            self._disk.unlink(f"{self._directory}/{manifest_name(number)}")
        if stale:
            # A manifest must be gone for good before its pages are: else a crash brings it back without them.
            self._disk.fsync_directory(self._directory)
        known = self._known_files()
        for name in self._disk.list_directory(self._directory):
            file = pages_number(name)
            if file is not None and file not in known:
                self._disk.unlink(f"{self._directory}/{name}")

    def release(self) -> None:
        """The writer is done, one way or the other."""
        with self._lock:
            self._writing = False
            self.growing_bytes = 0

    def forget(self, number: int) -> None:
        """A snapshot that was being received is finished or given up."""
        with self._lock:
            self._staged -= {number}


class SnapshotWriter:
    """Writes one snapshot: `put` the changed pages, `drop` the removed ones, then `finish` or `abort`.

    Raises from every method: DiskFull (abort and try later), StorageError. Until `finish` returns the snapshot before
    stands. Blocking; one thread.

    Attributes:
        is_damaged: a page that it shares with earlier ones cannot be read: the next is better begun afresh.
    """

    def __init__(
        self,
        store: SnapshotStore,
        disk: Disk,
        directory: str,
        number: int,
        index: int,
        term: int,
        meta: bytes,
        durable: Callable[[], int],
        pages: dict[bytes, PageAt],
        *,
        received: bool = False,
    ) -> None:
        self._durable = durable
        self._received = received
        self._claimed = False
        self._store = store
        self._disk = disk
        self._directory = directory
        self._number = number
        # Of a received one: known when it is finished, for others may have been made since.
        self._manifest_number = number
        self._index = index
        self._term = term
        self._meta = meta
        self._pages = pages
        self._path = f"{directory}/{pages_name(number)}"
        self._handle = -1
        self._offset = 0
        self._buffer = bytearray()
        self._open = True
        self.is_damaged = False

    def put(self, key: bytes, page: bytes) -> None:
        """Give a page its new content; one that is the same as before is not written again."""
        digest = hash_of(page)
        old = self._pages.get(key)
        if old is not None and old.hash == digest and old.length == len(page):
            return
        self._add(key, page, digest)

    def keep(self, key: bytes) -> None:
        """Say that a page is unchanged. KeyError if there is none to keep."""
        if key not in self._pages:
            raise KeyError(key)

    def drop(self, key: bytes) -> None:
        """Leave a page out; fine if it was never there."""
        self._pages.pop(key, None)

    def keys(self) -> frozenset[bytes]:
        """Pages this snapshot has so far, those of the snapshot before included."""
        return frozenset(self._pages)

    def finish(self, install: Install | None = None) -> None:
        """Make the snapshot durable and the newest one; then clear away what nobody needs.

        Args:
            install: of a received one: what becomes of the log. It holds as soon as the snapshot is durable.

        StorageError if its index is ahead of the durable log: sync the log first.
        """
        durable = self._durable()
        # inv: SnapLeDurable
        if self._index > durable:
            raise StorageError(f"a snapshot at {self._index} would be ahead of the durable log at {durable}")
        newest = self._store.newest
        if newest is not None and newest.index > self._index:
            raise StorageError(f"the snapshot at {self._index} is older than the one at {newest.index}")
        if self._received:
            self._manifest_number = self._store.claim(self._index)
            self._claimed = True
        self._rewrite_sparse_files()
        self._flush()
        manifest = Manifest(self._index, self._term, self._meta, self._pages, install)
        try:
            self._sync_pages()
            self._with_reserve(lambda: self._store.publish(self._manifest_number, manifest))
            self._open = False
            self._store.collect()
        except OSError as error:
            raise StorageError(f"the snapshot could not be written: {error.strerror or error}") from error
        self._release()

    def _release(self) -> None:
        self._store.forget(self._number)
        self._store.release()

    @property
    def is_published(self) -> bool:
        """The snapshot exists, whether or not `finish` returned."""
        return not self._open

    def abort(self) -> None:
        """Leave nothing; the snapshot before stands. Fine after a failed `finish`."""
        if not self._open:
            return
        self._open = False
        self._buffer.clear()
        self._close()
        # A manifest without its pages would look like damage, so it goes first, for good.
        for path in (f"{self._directory}/{manifest_name(self._manifest_number)}", self._path):
            if self._disk.exists(path):
                self._disk.unlink(path)
                self._disk.fsync_directory(self._directory)
        self._store.forget(self._number)
        if not self._received or self._claimed:
            self._store.release()

    def _add(self, key: bytes, page: bytes, digest: bytes) -> None:
        assert self._open, "the snapshot is finished"
        self._store.growing_bytes += len(page)
        self._pages[key] = PageAt(self._number, self._offset + len(self._buffer), len(page), digest)
        self._buffer += page
        if len(self._buffer) >= _BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._buffer:
            return
        data = bytes(self._buffer)
        try:
            if self._handle < 0:
                self._handle = self._disk.open(self._path, create=True)
            self._with_reserve(lambda: self._disk.pwrite(self._handle, data, self._offset))
        except OSError as error:
            raise StorageError(f"the snapshot could not be written: {error.strerror or error}") from error
        self._offset += len(data)
        self._buffer.clear()

    def _with_reserve(self, write: Callable[[], None]) -> None:
        """Do a write; on a full disk give up the reserve and do it once more. DiskFull, OSError."""
        try:
            write()
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            if not self._store.release_reserve():
                raise DiskFull("the disk is full: no room for a snapshot") from error
            try:
                write()
            except OSError as again:
                if again.errno in FULL_ERRNOS:
                    raise DiskFull("the disk is full: no room for a snapshot") from again
                raise

    def _sync_pages(self) -> None:
        if self._handle >= 0:
            self._disk.fdatasync(self._handle)
            self._close()
            # The name too, before the manifest's: else a crash leaves a manifest without its pages.
            self._disk.fsync_directory(self._directory)

    def _close(self) -> None:
        if self._handle >= 0:
            self._disk.close(self._handle)
            self._handle = -1

    def _rewrite_sparse_files(self) -> None:
        """Copy the live pages out of files that are mostly garbage, so that the new manifest frees them."""
        live: dict[int, int] = {}
        for page in self._pages.values():
            live[page.file] = live.get(page.file, 0) + page.length
        for file, used in live.items():
            if file == self._number:
                continue
            path = f"{self._directory}/{pages_name(file)}"
            if GARBAGE_PARTS * (self._disk.size(path) - used) > self._disk.size(path):
                self._rewrite(file, path)

    def _rewrite(self, file: int, path: str) -> None:
        handle = self._disk.open(path, read_only=True)
        try:
            for key, place in [item for item in self._pages.items() if item[1].file == file]:
                page = self._disk.pread(handle, place.length, place.offset)
                if hash_of(page) != place.hash:
                    # It stays where it is, so that it is told apart from a good one.
                    self.is_damaged = True
                    continue
                self._add(key, page, place.hash)
        finally:
            self._disk.close(handle)
