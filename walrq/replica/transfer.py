"""Snapshots on their way between nodes: what a leader reads, what a follower stores and puts in place.

The bytes of a stream are eight bytes of `base` (up to there the follower keeps its own log), then those of
`walrq.sparse`. A stream's bytes never change: they are read from a pin, which holds one snapshot and the
records that are live in it, as long as somebody receives them.

What died since the snapshot is left out. A follower that installs it therefore has messages without bodies, until it
has applied what its leader had applied when the stream began; all of that is committed, so nobody is elected without
it, and nothing is leased by a leader before it has applied it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from walrq.errors import CorruptRecord, DiskFull, StorageError
from walrq.queues.image import NOT_RESIDENT, live_in, load
from walrq.queues.machine import Machine
from walrq.raft.snapshots import Chunk, ChunkWanted
from walrq.replica.config import ReplicaConfig
from walrq.sparse.installing import Installer
from walrq.sparse.outgoing import Outgoing
from walrq.storage.storage import Pin, Storage

BASE_BYTES = 8


# --- the sender ---------------------------------------------------------------------------------------------
@attrs.define(eq=False)
class _Stream:
    """One stream to one follower."""

    number: int
    base: int
    pin: Pin
    outgoing: Outgoing

    def read(self, offset: int, bytes_max: int) -> tuple[bytes, bool]:
        """(bytes, whether they are the last)."""
        head = self.base.to_bytes(BASE_BYTES, "big")[offset:]
        data, is_last = self.outgoing.read(max(0, offset - BASE_BYTES), max(1, bytes_max - len(head)))
        return head + data, is_last


@attrs.frozen
class Read:
    """What was read for a follower; `data` None: nothing can be, and `why`. `damaged`: what is stored is not sound."""

    wanted: ChunkWanted
    data: bytes | None
    is_last: bool = False
    why: str = ""
    damaged: bool = False


class Sending:
    """The streams of one leader."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._streams: dict[str, _Stream] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held."""
        return not self._streams

    def keep(self, wanted: Mapping[str, int]) -> None:
        """Let go of all streams but these, by receiver and number. No read may be under way."""
        for receiver, stream in list(self._streams.items()):
            if wanted.get(receiver) != stream.number:
                stream.pin.release()
                del self._streams[receiver]

    def read(self, wanted: ChunkWanted, machine: Machine) -> Read:
        """Read a chunk. Blocking."""
        try:
            stream = self._stream(wanted, machine)
            if stream is None:
                return Read(wanted, None)
            return Read(wanted, *stream.read(wanted.offset, wanted.bytes_max))
        except (StorageError, CorruptRecord) as error:
            # Begun anew, a little later, with what there is then.
            return Read(wanted, None, why=error.text, damaged=isinstance(error, CorruptRecord))

    def _stream(self, wanted: ChunkWanted, machine: Machine) -> _Stream | None:
        stream = self._streams.get(wanted.receiver)
        if stream is not None:
            if stream.number == wanted.stream:
                return stream
            stream.pin.release()
            del self._streams[wanted.receiver]
        pin = self._storage.pin()
        try:
            pin.fix()
            if pin.manifest.index != wanted.index:
                pin.release()
                return None
            outgoing = self._storage.stream(pin, wanted.match, lambda first, last: live_in(machine, first, last))
        except BaseException:
            pin.release()
            raise
        self._streams[wanted.receiver] = stream = _Stream(wanted.stream, wanted.match, pin, outgoing)
        return stream


class ReadChunks:
    """A job: read what followers want next."""

    def __init__(self, sending: Sending, machine: Machine, wanted: Sequence[ChunkWanted]) -> None:
        self._sending = sending
        self._machine = machine
        self.wanted = wanted
        self.chunks: list[Read] = []

    def run(self) -> None:
        """Read. Blocking."""
        self.chunks = [self._sending.read(wanted, self._machine) for wanted in self.wanted]


# --- the receiver -------------------------------------------------------------------------------------------
class Receiving:
    """The stream that a follower receives."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._named: tuple[str, int, int] | None = None
        self._installer: Installer | None = None
        self._head = b""

    def store(self, chunk: Chunk) -> None:
        """Store the next bytes. Blocking. CorruptRecord, DiskFull, StorageError: it cannot go on."""
        named = (chunk.sender, chunk.term, chunk.stream)
        if self._named != named:
            # inv: NoMixedRead
            self.abort()
            self._named = named
        data = chunk.data
        if self._installer is None:
            self._head += data
            if len(self._head) < BASE_BYTES:
                return
            base = int.from_bytes(self._head[:BASE_BYTES], "big")
            if base > self._storage.last_index:
                raise CorruptRecord(f"the stream begins behind entry {base}, which is not here")
            meta = chunk.configuration.encode()
            self._installer = self._storage.begin_install(base, chunk.index, chunk.snapshot_term, meta)
            data, self._head = self._head[BASE_BYTES:], b""
        self._installer.feed(data)

    def finish(self, *, holds: bool) -> None:
        """Put it in place. Blocking. As `store`."""
        if self._installer is None:
            raise CorruptRecord("the stream ended before it began")
        self._installer.finish(holds=holds)
        self._installer = None
        self._named = None

    def abort(self) -> None:
        """Leave nothing of it. Blocking."""
        installer, self._installer = self._installer, None
        self._named = None
        self._head = b""
        if installer is not None:
            installer.abort()


class StoreChunks:
    """A job: store what came."""

    def __init__(self, receiving: Receiving, chunks: Sequence[Chunk]) -> None:
        self._receiving = receiving
        self.chunks = chunks
        self.refused: Chunk | None = None
        self.why = ""

    def run(self) -> None:
        """Store. Blocking."""
        for chunk in self.chunks:
            try:
                self._receiving.store(chunk)
            except (CorruptRecord, DiskFull) as error:
                self._receiving.abort()
                self.refused, self.why = chunk, error.text
                return


class InstallSnapshot:
    """A job: put a received snapshot in place, and load the state that it is."""

    def __init__(
        self, receiving: Receiving, storage: Storage, chunk: Chunk, config: ReplicaConfig, *, holds: bool
    ) -> None:
        self._receiving = receiving
        self._storage = storage
        self._config = config
        self._holds = holds
        self.chunk = chunk
        self.machine: Machine | None = None
        self.hashes: Mapping[bytes, bytes] = {}
        self.why = ""

    def run(self) -> None:
        """Install. Blocking.

        Raises:
            CorruptRecord, DataDirInvalid: the image is one that this version cannot read: the process must end.
        """
        try:
            self._receiving.finish(holds=self._holds)
        except (CorruptRecord, DiskFull) as error:
            self._receiving.abort()
            self.why = error.text
            return
        snapshot = self._storage.snapshot
        assert snapshot is not None and snapshot.index == self.chunk.index
        self.machine = load(snapshot.pages(without=NOT_RESIDENT), self._config.bounds, self._config.version_max)
        self.hashes = snapshot.hashes
