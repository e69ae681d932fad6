"""A snapshot on its way to a follower: which bytes were asked for, sent and stored. The bytes are the callers'.

A stream is named by its leader's term, the leader, and a number; a chunk of another stream, or at another place than
the next one, is never taken (inv: NoMixedRead). Either end may lose messages: the follower's answer always says from
where on it wants to go on, so a stream resumes where it was left. Flow control: at most `window` bytes are sent ahead
of the answers.

Source: Raft thesis chapter 5; rabbitmq/ra docs/internals/SNAPSHOTS.md (what a follower lacks is sent with it).
"""

from __future__ import annotations

import attrs

from walrq.raft.membership import Configuration


@attrs.frozen
class ChunkWanted:
    """The caller reads and hands in (`Raft.supply`) the bytes of a stream from `offset` on.

    Attributes:
        match: the follower holds all entries up to here: what of the log it lacks starts behind.
        bytes_max: room that is left in the stream's window.
    """

    receiver: str
    stream: int
    index: int
    offset: int
    bytes_max: int
    match: int


@attrs.frozen
class Chunk:
    """Received bytes, for the caller to store and then to report (`Raft.chunk_stored`).

    Attributes:
        sender, term, stream: name the stream; a new one starts at offset 0 and what was stored of another is void.
        index, snapshot_term: the last entry that the snapshot covers.
        configuration: in effect at that entry.
        is_last: the stream ends here: validate, install, and call `Raft.installed` or `Raft.refuse_snapshot`.
    """

    sender: str
    term: int
    stream: int
    index: int
    snapshot_term: int
    configuration: Configuration
    offset: int
    data: bytes
    is_last: bool


@attrs.define(eq=False)
class Outgoing:
    """The leader's end of a stream.

    Invariant: acked <= sent.

    Attributes:
        answered: the follower said from where on it wants the stream.
        offered: an offer is on its way; it is repeated when nothing moves between two replies to heartbeats.
        moved: something was answered or handed in since the last reply to a heartbeat.
        reading: the caller was asked for bytes and has not handed them in.
        ended: the last chunk was sent.
    """

    stream: int
    index: int
    term: int
    configuration: Configuration
    answered: bool = False
    offered: bool = False
    moved: bool = True
    acked: int = 0
    sent: int = 0
    reading: bool = False
    ended: bool = False

    def wanted(self, window: int) -> int:
        """How many bytes may be sent now; 0 for none."""
        if not self.answered or self.reading or self.ended:
            return 0
        return max(0, window - (self.sent - self.acked))

    def supplied(self, size: int, is_last: bool) -> int:
        """The caller handed in bytes; the offset at which they belong."""
        offset = self.sent
        self.reading = False
        self.sent += size
        self.ended = is_last
        return offset

    def resume(self, offset: int) -> None:
        """The follower answered an offer: it has everything before `offset` and wants the rest."""
        self.answered = True
        if offset != self.sent:
            # Something was lost. Bytes that are being read belong elsewhere now.
            self.sent = offset
            self.ended = False
            self.reading = False
        self.acked = offset

    def stored(self, offset: int) -> bool:
        """The follower stored everything before `offset`. Whether that was news."""
        news = self.answered and self.acked < offset <= self.sent
        if news:
            self.acked = offset
        return news
