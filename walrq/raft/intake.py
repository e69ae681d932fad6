"""A follower's end of snapshot streams: one at a time, in order, from one leader.

A chunk of another stream, or at another place than the next one, is not taken (inv: NoMixedRead). Once the last one is
stored the caller installs; until it is done nothing else is begun.
"""

from __future__ import annotations

import attrs

from walrq.raft.membership import Configuration
from walrq.raft.messages import SnapshotChunk, SnapshotOffer, SnapshotStatus
from walrq.raft.snapshots import Chunk


@attrs.define(eq=False)
class Incoming:
    """The stream under way.

    Attributes:
        received: bytes handed to the caller.
        whole: the last chunk was received.
    """

    sender: str
    term: int
    stream: int
    index: int
    snapshot_term: int
    configuration: Configuration
    received: int = 0
    whole: bool = False

    def is_of(self, sender: str, term: int, stream: int) -> bool:
        """Whether that names this stream."""
        return (self.sender, self.term, self.stream) == (sender, term, stream)

    def take(self, offset: int, data: bytes, is_last: bool) -> Chunk | None:
        """The next bytes; None for bytes that belong elsewhere."""
        if offset != self.received or self.whole:
            return None
        self.received += len(data)
        self.whole = is_last
        named = (self.sender, self.term, self.stream, self.index, self.snapshot_term, self.configuration)
        return Chunk(*named, offset, data, is_last)


class Intake:
    """See the module.

    Attributes:
        installing: the last chunk is stored, and the caller is putting the snapshot in place.
    """

    def __init__(self) -> None:
        self._incoming: Incoming | None = None
        self._chunks: list[Chunk] = []
        self.installing = False

    def abandon(self) -> None:
        """Half a stream is worth nothing to the next leader; one that is being installed is."""
        if not self.installing:
            self._incoming = None

    def offered(self, offer: SnapshotOffer, commit_index: int) -> tuple[SnapshotStatus, int] | None:
        """What to answer to an offer; None for nothing: what comes of an install answers a later one."""
        if self.installing:
            return None
        if offer.index <= commit_index:
            self._incoming = None
            return SnapshotStatus.DONE, 0
        incoming = self._incoming
        if incoming is None or not incoming.is_of(offer.sender, offer.term, offer.stream):
            named = (offer.sender, offer.term, offer.stream, offer.index, offer.snapshot_term, offer.configuration)
            self._incoming = incoming = Incoming(*named)
        return SnapshotStatus.RESUME, incoming.received

    def received(self, message: SnapshotChunk) -> None:
        """Bytes came; what belongs to the stream under way waits for the caller."""
        incoming = self._incoming
        # inv: NoMixedRead
        if incoming is None or not incoming.is_of(message.sender, message.term, message.stream):
            return
        chunk = incoming.take(message.offset, message.data, message.is_last)
        if chunk is not None:
            self._chunks.append(chunk)

    @property
    def has_chunks(self) -> bool:
        """Whether bytes wait for the caller."""
        return bool(self._chunks)

    def take(self) -> list[Chunk]:
        """Received bytes, each once."""
        chunks, self._chunks = self._chunks, []
        return chunks

    def is_current(self, chunk: Chunk) -> bool:
        """Whether a chunk belongs to the stream under way."""
        return self._incoming is not None and self._incoming.is_of(chunk.sender, chunk.term, chunk.stream)

    def stored(self, chunk: Chunk, commit_index: int) -> tuple[SnapshotStatus, int] | None:
        """What to answer now that a chunk is stored; None for one of another stream."""
        if not self.is_current(chunk) or self.installing:
            return None
        if chunk.is_last and chunk.index <= commit_index:
            # The log got there first.
            self._incoming = None
            return SnapshotStatus.DONE, 0
        self.installing = chunk.is_last
        return SnapshotStatus.STORED, chunk.offset + len(chunk.data)

    def finished(self) -> None:
        """The stream under way was installed, or refused."""
        self._incoming = None
        self.installing = False
