"""What a node knows only while it leads: its followers, the reads it confirms, a transfer under way.

Made when an election is won and dropped when the office ends, so that nothing of one reign can leak into the next.
It never changes the node's term, role or log; it says what it learned and `core.Raft` acts.

Sources: Raft thesis 3.5, 3.6.2 (commit), 6.2 (check-quorum), 6.4 (reads), 3.10 (transfer).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from walrq.errors import RemoteProtocolError
from walrq.limits import (
    RAFT_APPEND_BYTES_MAX,
    RAFT_APPEND_ENTRIES_MAX,
    RAFT_IN_FLIGHT_APPENDS_MAX,
    RAFT_IN_FLIGHT_BYTES_MAX,
    RAFT_SNAPSHOT_CHUNK_BYTES_MAX,
    RAFT_SNAPSHOT_WINDOW_BYTES,
)
from walrq.raft.election import Timing
from walrq.raft.log import Log
from walrq.raft.membership import Configuration, Membership
from walrq.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    Message,
    SnapshotOffer,
    SnapshotReply,
    SnapshotStatus,
    TimeoutNow,
)
from walrq.raft.progress import Progress, State
from walrq.raft.quorum import has_majority, quorum_index
from walrq.raft.reads import LeaderReads, Waiting
from walrq.raft.snapshots import ChunkWanted, Outgoing


@attrs.frozen(kw_only=True)
class Bounds:
    """How much is sent at once, and ahead of the replies."""

    append_entries: int = RAFT_APPEND_ENTRIES_MAX
    append_bytes: int = RAFT_APPEND_BYTES_MAX
    in_flight_appends: int = RAFT_IN_FLIGHT_APPENDS_MAX
    in_flight_bytes: int = RAFT_IN_FLIGHT_BYTES_MAX
    chunk_bytes: int = RAFT_SNAPSHOT_CHUNK_BYTES_MAX
    snapshot_window_bytes: int = RAFT_SNAPSHOT_WINDOW_BYTES


@attrs.frozen
class SnapshotMark:
    """The newest durable snapshot of this node: it covers all entries up to `index`."""

    index: int
    term: int
    configuration: Configuration


@attrs.define(eq=False)
class Transfer:
    """A hand-over under way: proposals are refused until it succeeds or `elapsed` reaches an election time-out."""

    target: str
    elapsed: int = 0
    told: bool = False


DEFAULT_BOUNDS: Final = Bounds()


class Leader:
    """See the module."""

    def __init__(
        self,
        *,
        cluster: str,
        node_id: str,
        term: int,
        log: Log,
        membership: Membership,
        timing: Timing,
        bounds: Bounds,
        size_of: Callable[[int], int],
        durable_index: int,
        snapshot: SnapshotMark | None,
    ) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self._term = term
        self._log = log
        self._membership = membership
        self._timing = timing
        self._bounds = bounds
        self._size_of = size_of
        self.snapshot = snapshot
        # First index of the own term: what lies below is committed only along with it (thesis 3.6.2).
        self.term_start = log.last_index + 1
        self.progress: dict[str, Progress] = {}
        # What counts for a commit: each node's durable index, the own as `persisted` reported it.
        self.match: dict[str, int] = {node_id: durable_index}
        self.reads = LeaderReads()
        self.transfer: Transfer | None = None
        # The last heartbeat's number, and the highest each node answered.
        self.round = 0
        self._answered: dict[str, int] = {}
        self.beat_due = True
        self._beat_elapsed = 0
        self._quorum_elapsed = 0
        self._streams = 0
        self._checks: set[str] = set()
        self.reconfigure()

    def reconfigure(self) -> None:
        """The configuration changed: followers come and go."""
        # In the configuration's order: that of a set differs from process to process, and messages with it.
        nodes = [node for node in self._membership.current.nodes if node != self._node_id]
        for node in nodes:
            if node not in self.progress:
                # Optimistic: most followers hold all that was there before this term (thesis 3.5).
                self.progress[node] = Progress(next=self.term_start)
        for node in [node for node in self.progress if node not in nodes]:
            del self.progress[node]
            self.match.pop(node, None)
            self._answered.pop(node, None)
            self._checks.discard(node)
        if self.transfer is not None and self.transfer.target not in self._membership.current.voters:
            self.transfer = None
        # Whether this node is a majority by itself.
        self.is_alone = list(self._membership.current.voters) == [self._node_id]

    # --- time -----------------------------------------------------------------------------------------------
    def tick(self) -> bool:
        """Time passed. Whether a majority was heard of lately; without one another leader may reign already."""
        self._beat_elapsed += 1
        if self._beat_elapsed >= self._timing.heartbeat:
            self.beat_due = True
        for progress in self.progress.values():
            if progress.rests:
                progress.rests -= 1
        if self.transfer is not None:
            self.transfer.elapsed += 1
            if self.transfer.elapsed >= self._timing.election:
                self.transfer = None
        self._quorum_elapsed += 1
        if self._quorum_elapsed < self._timing.election:
            return True
        self._quorum_elapsed = 0
        heard = {node for node, progress in self.progress.items() if progress.active} | {self._node_id}
        for progress in self.progress.values():
            progress.was_active, progress.active = progress.active, False
        return has_majority(self._membership.current.voters, heard)

    # --- what is sent ---------------------------------------------------------------------------------------
    def gather(self, commit_index: int) -> list[Message]:
        """What may be sent now: a round of heartbeats if one is due, appends as far as windows allow."""
        out: list[Message] = []
        if self.beat_due:
            self.beat_due = False
            self._beat_elapsed = 0
            self.round += 1
            for node, progress in self.progress.items():
                # No further than what is known to be the follower's: behind that its log may be another one.
                commit = min(progress.match, commit_index)
                out.append(Heartbeat(self._cluster, self._node_id, node, self._term, commit, self.round))
        for node, progress in self.progress.items():
            self._replicate(node, progress, commit_index, out)
        transfer = self.transfer
        if transfer is not None and not transfer.told:
            if self.progress[transfer.target].match == self._log.last_index:
                transfer.told = True
                out.append(self.timeout_now(transfer.target))
        return out

    def timeout_now(self, node: str) -> TimeoutNow:
        """The message that makes `node` stand at once."""
        return TimeoutNow(self._cluster, self._node_id, node, self._term)

    def successor(self) -> str | None:
        """The voter that is most likely to win an election: heard of lately, then holding most of the log. Or None."""
        voters = self._membership.current.voters
        heard = [
            (progress.active, progress.match, node)
            for node, progress in self.progress.items()
            if node in voters and not progress.recovering and progress.match
        ]
        return max(heard)[2] if heard else None

    def _replicate(self, node: str, progress: Progress, commit_index: int, out: list[Message]) -> None:
        bounds, log = self._bounds, self._log
        if progress.next <= log.base_index and progress.state is not State.SNAPSHOT:
            # Whether or not the window has room: what comes next is gone.
            self._begin_snapshot(progress)
        elif node in self._checks and progress.state is State.REPLICATE:
            self._append(node, progress, progress.next - 1, commit_index, out)
        self._checks.discard(node)
        while progress.may_send(bounds.in_flight_appends, bounds.in_flight_bytes):
            if progress.state is State.REPLICATE and progress.next > log.last_index:
                return
            if progress.next <= log.base_index:
                break
            last, size = progress.next - 1, 0
            # The repetition of an unanswered question carries nothing: the answer may be waiting for a slow disk.
            if progress.state is State.REPLICATE or not progress.quiet:
                stop = min(log.last_index, last + bounds.append_entries)
                while last < stop:
                    entry_size = self._size_of(last + 1)
                    if size and size + entry_size > bounds.append_bytes:
                        break
                    last += 1
                    size += entry_size
            self._append(node, progress, last, commit_index, out)
            progress.sent(last, size)
        self._offer(node, progress, out)

    def _append(self, node: str, progress: Progress, last: int, commit_index: int, out: list[Message]) -> None:
        prev = progress.next - 1
        prev_term = self._log.term_at(prev)
        # inv: PrevTermValid
        assert prev_term is not None and (prev_term > 0 or prev == 0), (node, prev, prev_term)
        term, session = self._term, progress.session
        out.append(Append(self._cluster, self._node_id, node, term, prev, prev_term, last, commit_index, session))

    # --- what is answered -----------------------------------------------------------------------------------
    def on_append_reply(self, message: AppendReply) -> None:
        """Learn how far a follower is.

        Raises:
            RemoteProtocolError: it claims entries that were never sent.
        """
        progress = self.progress.get(message.sender)
        if progress is None:
            return
        progress.active = True
        if message.session != progress.session:
            return
        progress.recovering = message.recovering
        progress.forgotten = progress.forgotten and message.recovering
        if not message.accepted:
            if progress.rejected(message.index, self._agreement(message.hint_index, message.hint_term)):
                self._checks.discard(message.sender)
            return
        if message.index > self._log.last_index:
            # inv: MatchLeLeaderLog
            raise RemoteProtocolError(
                f"AppendReply: index is {message.index}, the leader's log ends at {self._log.last_index}", field="index"
            )
        progress.accepted(message.index)
        if progress.state is State.SNAPSHOT and progress.match >= self._log.base_index:
            # It came into reach of the log by itself.
            progress.installed(progress.match)
        self._count(message.sender, progress)

    def exclude(self, node: str, life: int) -> None:
        """A follower lost a part of its log: what it acknowledged before counts no more. inv: AckedOnQuorum"""
        progress = self.progress.get(node)
        if progress is not None and progress.damaged(life):
            self.match.pop(node, None)

    def _count(self, node: str, progress: Progress) -> None:
        if progress.recovering and not progress.forgotten:
            # inv: AckedOnQuorum
            self.match.pop(node, None)
        else:
            self.match[node] = progress.match

    def _agreement(self, hint_index: int, hint_term: int) -> int:
        """Where the logs may agree, at most, given that the follower has an entry of `hint_term` at `hint_index`."""
        if hint_index <= self._log.base_index:
            return hint_index
        index, term = self._log.last_at_or_below(hint_index, hint_term)
        # Not even the last entry that is known: it is to be found below, where only a snapshot reaches.
        return index if term <= hint_term else max(0, index - 1)

    def on_heartbeat_reply(self, message: HeartbeatReply) -> None:
        """A follower still follows. Whatever was lost on the way to it is found out now."""
        progress = self.progress.get(message.sender)
        if progress is None:
            return
        progress.active = True
        self._answered[message.sender] = max(self._answered.get(message.sender, 0), min(message.round, self.round))
        if progress.state is State.SNAPSHOT:
            outgoing = progress.outgoing
            assert outgoing is not None
            if not outgoing.moved and not outgoing.reading:
                outgoing.offered = False
            outgoing.moved = False
            return
        if progress.quiet:
            if progress.state is State.PROBE:
                progress.asked = False
            elif progress.match < self._log.last_index or progress.recovering:
                # An append without entries behind all that was sent: rejected if something did not arrive. And who was
                # under repair may be well by now: only with an answer to an append does it say so.
                self._checks.add(message.sender)
        progress.quiet = True

    # --- what follows ---------------------------------------------------------------------------------------
    def quorum_index(self) -> int:
        """What a majority of the voters holds durably. Learners and nodes under repair never count."""
        if self.is_alone:
            return self.match[self._node_id]
        return quorum_index(self._membership.current.voters, self.match)

    def confirmed_reads(self) -> list[Waiting]:
        """Reads whose round of heartbeats a majority answered."""
        if not len(self.reads):
            return []
        self._answered[self._node_id] = self.round
        return self.reads.confirmed(quorum_index(self._membership.current.voters, self._answered))

    # --- snapshots ------------------------------------------------------------------------------------------
    @property
    def needs_snapshot(self) -> bool:
        """Whether a follower lacks entries that are gone, and no snapshot covers them."""
        if self.snapshot is not None and self.snapshot.index >= self._log.base_index:
            return False
        return any(progress.active and progress.next <= self._log.base_index for progress in self.progress.values())

    def _begin_snapshot(self, progress: Progress) -> None:
        # A follower that is down would only keep files open.
        if progress.rests or not progress.active or self.snapshot is None or self.snapshot.index < self._log.base_index:
            return
        self._streams += 1
        mark = self.snapshot
        progress.behind(Outgoing(self._streams, mark.index, mark.term, mark.configuration))

    def _offer(self, node: str, progress: Progress, out: list[Message]) -> None:
        outgoing = progress.outgoing
        if outgoing is None or outgoing.offered:
            return
        outgoing.offered = True
        out.append(
            SnapshotOffer(
                self._cluster,
                self._node_id,
                node,
                self._term,
                outgoing.stream,
                outgoing.index,
                outgoing.term,
                outgoing.configuration,
            )
        )

    def wanted_chunks(self) -> list[ChunkWanted]:
        """Bytes to be read and supplied; each is asked for once."""
        wanted = []
        for node, progress in self.progress.items():
            outgoing = progress.outgoing
            if outgoing is None:
                continue
            room = min(outgoing.wanted(self._bounds.snapshot_window_bytes), self._bounds.chunk_bytes)
            if room:
                outgoing.reading = True
                wanted.append(ChunkWanted(node, outgoing.stream, outgoing.index, outgoing.sent, room, progress.match))
        return wanted

    def outgoing(self, node: str, stream: int) -> Outgoing | None:
        """A follower's stream, if it is still that one."""
        progress = self.progress.get(node)
        if progress is None or progress.outgoing is None or progress.outgoing.stream != stream:
            return None
        return progress.outgoing

    def on_snapshot_reply(self, message: SnapshotReply) -> None:
        """Learn how far a stream is."""
        progress = self.progress.get(message.sender)
        if progress is None:
            return
        progress.active = True
        outgoing = self.outgoing(message.sender, message.stream)
        if outgoing is None:
            return
        outgoing.moved = True
        match message.status:
            case SnapshotStatus.RESUME:
                outgoing.resume(message.offset)
            case SnapshotStatus.STORED:
                outgoing.stored(message.offset)
            case SnapshotStatus.DONE:
                progress.installed(outgoing.index)
                self._count(message.sender, progress)
            case SnapshotStatus.REFUSED:
                # A full disk refuses the next one as well: at once it would be a loop.
                progress.rests = self._timing.election
                progress.failed()
