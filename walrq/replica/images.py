"""Snapshots: the job that writes one, and the points at which all nodes of a group image their state.

A point is a log entry of kind SNAPSHOT. Every node that applies it fixes its image at that very index. The entry's body
is CBOR, `[format, index, root]`: the hash of the image at an earlier point, as its leader had it, for the others to
compare with theirs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import attrs
import cbor2

from walrq.errors import CorruptRecord
from walrq.queues.image import Imager
from walrq.storage.snapshot import SnapshotWriter

FORMAT = 1
ROOTS_KEPT = 4


def root_of(hashes: Mapping[bytes, bytes]) -> bytes:
    """One hash of all pages of an image."""
    digest = hashlib.blake2b(digest_size=16)
    for key in sorted(hashes):
        digest.update(len(key).to_bytes(2, "big") + key + hashes[key])
    return digest.digest()


def encode_point(index: int, root: bytes) -> bytes:
    """The body of a SNAPSHOT entry; index 0: no earlier point is known."""
    return cbor2.dumps([FORMAT, index, root])


def decode_point(body: bytes) -> tuple[int, bytes]:
    """(index, root) of the earlier point. CorruptRecord for bytes of another format."""
    try:
        parts = cbor2.loads(body)
    except (cbor2.CBORDecodeError, ValueError) as error:
        raise CorruptRecord(f"a snapshot point cannot be read: {error}") from error
    match parts:
        case [1, int(index), bytes(root)]:
            return index, root
    raise CorruptRecord(f"a snapshot point is not of format {FORMAT}, which is what this version knows")


@attrs.define(eq=False)
class Roots:
    """Roots of this node's own images, and of the leaders', of the last few points."""

    own: dict[int, bytes] = attrs.field(factory=dict)
    told: dict[int, bytes] = attrs.field(factory=dict)

    def newest(self) -> tuple[int, bytes]:
        """(index, root) of the newest image of this node; index 0: none."""
        index = max(self.own, default=0)
        return index, self.own.get(index, b"")

    def add(self, roots: dict[int, bytes], index: int, root: bytes) -> bool:
        """Note a root; False if the other side of the comparison is known and differs. inv: StateMachineSafety"""
        roots[index] = root
        while len(roots) > ROOTS_KEPT:
            del roots[min(roots)]
        other = self.told if roots is self.own else self.own
        return other.get(index, root) == root


class SnapshotJob:
    """One snapshot on its way: encoded between turns, written in a thread.

    `while job.step(): write()` then `write(); finish()`. Invariant: `step` and `write` never run at the same time.
    """

    # One page takes about a millisecond.
    PAGES_PER_STEP = 4

    def __init__(
        self,
        imager: Imager,
        writer: SnapshotWriter,
        index: int,
        messages: int,
        hashes: Callable[[], Mapping[bytes, bytes]] | None = None,
    ) -> None:
        """`hashes`: of all pages of the newest snapshot, if its root is wanted."""
        self._imager = imager
        self._writer = writer
        self._hashes = hashes
        self.index = index
        self.messages = messages
        self.root = b""
        self._taken: list[tuple[bytes, bytes | None]] = []

    def step(self) -> bool:
        """Encode some pages; False when all are encoded. Pure."""
        more = self._imager.step(self.PAGES_PER_STEP)
        self._taken.extend(self._imager.take())
        return more

    def write(self) -> None:
        """Write what was encoded. Blocking."""
        taken, self._taken = self._taken, []
        for key, page in taken:
            if page is None:
                self._writer.drop(key)
            else:
                self._writer.put(key, page)

    def finish(self) -> None:
        """Make the snapshot durable; the log must be durable up to its index. Blocking.

        Raises:
            DiskFull: no room; give it up with `abort` and try later.
        """
        self._writer.finish()
        if self._hashes is not None:
            self.root = root_of(self._hashes())

    def abort(self) -> None:
        """Give the snapshot up; the one before stands. Blocking. Then call `Replica.snapshot_failed`."""
        self._writer.abort()
