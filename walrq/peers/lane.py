"""What waits to be said on one connection to one peer, and what is dropped when it cannot be said.

Pure but for the wire it is lent while there is one. Two kinds of lane:

- *control*: votes, heartbeats, replies. Full, the oldest goes: the newest word counts. While the peer is away the
  newest few are kept for a second, so that a first election does not wait for another time-out.
- *bulk*: appends and snapshots, in order. Full, the newest goes, and everything behind it: an append behind a gap is
  refused anyway. Once half has left, Raft is told of the gap. While the peer is away nothing is kept.

Invariant: while `_rest` or `_queue` holds anything, nothing is sent past it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import trio

from walrq.limits import (
    PEER_AWAY_MESSAGES_MAX,
    PEER_AWAY_S,
    PEER_BULK_BYTES_MAX,
    PEER_BULK_MESSAGES_MAX,
    PEER_CONTROL_MESSAGES_MAX,
    RAFT_APPEND_BYTES_MAX,
)
from walrq.peers.wire import Wire
from walrq.protocol.peer import Purpose, encode_raft
from walrq.raft.messages import Append, Message, RecordsReply, SnapshotChunk, SnapshotOffer

BULK_KINDS: Final = frozenset({Append, SnapshotOffer, SnapshotChunk, RecordsReply})
# What is encoded and handed to the network in one go.
_TURN_BYTES_MAX: Final = RAFT_APPEND_BYTES_MAX
_TURN_MESSAGES_MAX: Final = 256
_ENVELOPE_BYTES: Final = 128


def is_filled(message: Message) -> bool:
    """Whether a message has all it is to carry."""
    return type(message) is not Append or len(message.entries) == message.last_index - message.prev_index


def size_of(message: Message) -> int:
    """About how much memory a message holds, bytes."""
    if type(message) is Append:
        size = _ENVELOPE_BYTES
        for entry in message.entries:
            size += len(entry.body) + 16
        return size
    if type(message) is RecordsReply:
        return _ENVELOPE_BYTES + sum(len(entry.body) + 16 for entry in message.entries)
    return _ENVELOPE_BYTES + (len(message.data) if type(message) is SnapshotChunk else 0)


class Lane:
    """See the module.

    Attributes:
        purpose: control or bulk.
        sent: messages handed to the network.
        dropped: messages that were not, or that were under way when the connection broke.
        gap: something of bulk was dropped that Raft does not know of yet.
        wake: set when the writer has something to do.
    """

    def __init__(self, purpose: Purpose, now: Callable[[], float]) -> None:
        self.purpose = purpose
        self.sent = 0
        self.dropped = 0
        self.gap = False
        self.wake = trio.Event()
        self._bulk = purpose is Purpose.BULK
        self._now = now
        self._queue: deque[Message] = deque()
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self._away: deque[tuple[float, Message]] = deque(maxlen=PEER_AWAY_MESSAGES_MAX)
        self._rest: list[bytes | memoryview] = []
        self._wire: Wire | None = None
        # True while the writer has nothing under way: only then may somebody else use the wire.
        self._idle = False

    @property
    def queued_messages(self) -> int:
        """Messages that wait."""
        return len(self._queue) + len(self._away)

    @property
    def queued_bytes(self) -> int:
        """About how much memory they hold; entries that are yet to be filled in hold none."""
        return self._bytes + sum(map(len, self._rest))

    # --- from the driver's side -----------------------------------------------------------------------------
    def put(self, message: Message) -> None:
        """Take a message over, or drop it."""
        if self._wire is None:
            if self._bulk:
                self.dropped += 1
                self.gap = True
            else:
                if len(self._away) == PEER_AWAY_MESSAGES_MAX:
                    self.dropped += 1
                self._away.append((self._now(), message))
            return
        if self._bulk:
            size = size_of(message)
            if (
                self.gap
                or len(self._queue) >= PEER_BULK_MESSAGES_MAX
                or (self._bytes + size > PEER_BULK_BYTES_MAX and self._queue)
            ):
                self.dropped += 1
                self.gap = True
                return
            self._sizes.append(size)
            self._bytes += size
        elif len(self._queue) >= PEER_CONTROL_MESSAGES_MAX:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append(message)

    def flush(self) -> None:
        """Send what can be sent without waiting, and let the writer see to the rest."""
        if not self._idle or self._wire is None:
            return
        if self._queue and not self._rest:
            try:
                while not self._rest and (batch := self.take()):
                    self._rest = self._wire.send_nowait(encode_raft(batch))
            except trio.BrokenResourceError:
                # The reader finds out as well, and says why.
                self._rest = []
                self.gap = self._bulk
        if self._queue or self._rest:
            self.rouse()

    def rouse(self) -> None:
        """Let the writer run."""
        self._idle = False
        self.wake.set()

    # --- from the writer's side -----------------------------------------------------------------------------
    def connected(self, wire: Wire) -> bool:
        """There is a wire: what was said a moment ago is worth saying still.

        Returns:
            Whether something of bulk was dropped meanwhile.
        """
        assert not self._queue and not self._rest
        self._wire = wire
        gap, self.gap = self.gap, False
        since = self._now() - PEER_AWAY_S
        for then, message in self._away:
            if then >= since:
                self._queue.append(message)
            else:
                self.dropped += 1
        self._away.clear()
        return gap

    def disconnected(self) -> None:
        """The wire is gone, and with it what was under way: the caller tells Raft."""
        self.dropped += len(self._queue)
        self.gap = False
        self._queue.clear()
        self._sizes.clear()
        self._bytes = 0
        self._rest = []
        self._wire = None
        self._idle = False

    def prepare_to_wait(self) -> bool:
        """Whether the writer may sleep until `wake`; others may use the wire from then on."""
        if self._queue or self._rest:
            return False
        self._idle = True
        self.wake = trio.Event()
        return True

    def busy(self) -> None:
        """The writer woke: the wire is its own again."""
        self._idle = False

    def take_rest(self) -> list[bytes | memoryview]:
        """What a send left over: goes first."""
        rest, self._rest = self._rest, []
        return rest

    def take(self) -> list[Message]:
        """The next messages to be encoded and sent in one go; none while the first is yet to be filled."""
        if not self._bulk:
            batch = list(self._queue)
            self._queue.clear()
            self.sent += len(batch)
            return batch
        batch = []
        size = 0
        while self._queue and len(batch) < _TURN_MESSAGES_MAX and size < _TURN_BYTES_MAX:
            if not is_filled(self._queue[0]):
                break
            size += self._pop(batch)
        self.sent += len(batch)
        return batch

    def take_unfilled(self) -> list[Append]:
        """The appends at the head of the queue that are yet to be filled; empty for none."""
        batch: list[Message] = []
        while self._queue and len(batch) < _TURN_MESSAGES_MAX and not is_filled(self._queue[0]):
            self._pop(batch)
        return [message for message in batch if isinstance(message, Append)]

    def put_back(self, messages: Sequence[Message]) -> None:
        """Taken too many: these are next."""
        for message in reversed(messages):
            size = size_of(message)
            self._queue.appendleft(message)
            self._sizes.appendleft(size)
            self._bytes += size

    def give_up(self) -> None:
        """The log no longer has what the next append needs: what is queued behind it is of no use."""
        self.dropped += len(self._queue) + 1
        self._queue.clear()
        self._sizes.clear()
        self._bytes = 0

    def gap_to_tell(self) -> bool:
        """Whether it is time to tell Raft of what was dropped: there is room again. True once."""
        if not self.gap or self._bytes > PEER_BULK_BYTES_MAX // 2 or len(self._queue) > PEER_BULK_MESSAGES_MAX // 2:
            return False
        self.gap = False
        return True

    def _pop(self, batch: list[Message]) -> int:
        batch.append(self._queue.popleft())
        size = self._sizes.popleft()
        self._bytes -= size
        return size
