"""Live messages whose records this node lost: found, and fetched again from any node that has them.

What is below the snapshot is committed, so it is the same wherever it can be read; who leads does not matter. As long
as something is lost here this node does not stand for election. It asks one node after the other:

    lost --> ask a node for the next of them --> store what came --> ... --> put it in place --> look again

When every other voter has said all it has and something is still lost, nobody has it: this node stands again, and
delivers it as lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from walrq.errors import CorruptRecord, DiskFull, Reclaimed, StorageError
from walrq.limits import RAFT_APPEND_BYTES_MAX
from walrq.queues.batch import Batch
from walrq.queues.horizon import opened
from walrq.queues.image import stretch_key
from walrq.queues.lanes import rows_of
from walrq.queues.machine import Machine
from walrq.queues.queue import Queue
from walrq.queues.reads import lost_messages
from walrq.raft.entries import Entry, Kind
from walrq.raft.messages import Message, RecordsReply, RecordsRequest
from walrq.sparse.restoring import Restorer
from walrq.storage.record import Record
from walrq.storage.storage import Storage

# Asked for at once; a reply has fewer if they are large.
ASKED_MAX = 256
# Requests of others that wait for the disk here; they ask again.
WAITING_MAX = 8


def cold_of(storage: Storage) -> Callable[[Queue, int, int], Iterator[Batch]]:
    """Reads what is cold of a queue and was pushed by entries of a span; what cannot be read is lost in another way."""

    def read(queue: Queue, low: int, high: int) -> Iterator[Batch]:
        for lane, cold in queue.cold.items():
            for stretch in cold.stretches():
                if stretch.high < low or stretch.low > high:
                    continue
                page = cold.page(stretch.number)
                if page is None:
                    try:
                        page = storage.read_page(stretch_key(queue.uid, lane, stretch.number))
                    except (CorruptRecord, StorageError):
                        continue
                for row in rows_of(page) if page is not None else ():
                    batch = opened(row)
                    if low <= batch.index <= high and batch.seq not in stretch.taken:
                        yield batch

    return read


def find_lost(storage: Storage, machine: Machine, through: int) -> list[int]:
    """Entries up to `through` with messages that are alive and cannot be read here, ascending."""
    ranges, spans = storage.index_ranges(), storage.lost_spans()
    cold = cold_of(storage)
    if not spans and not lost_messages(machine, ranges, through, cold):
        return []
    firsts = [first for first, _ in ranges]

    def is_lost(index: int) -> bool:
        position = bisect_right(firsts, index) - 1
        is_held = position >= 0 and index <= ranges[position][1]
        return not is_held or any(first <= index <= last for first, last in spans)

    live = {batch.index for queue in machine.queues.values() for batch in queue.batches() if batch.index <= through}
    ends = [0, *(last for _, last in ranges)]
    holes = [(last + 1, first - 1) for last, (first, _) in zip(ends, ranges, strict=False) if first > last + 1]
    for queue in machine.queues.values():
        if queue.cold:
            live.update(
                batch.index for span in (*holes, *spans, (ends[-1] + 1, through)) for batch in cold(queue, *span)
            )
    return sorted(index for index in live if is_lost(index))


class ReadRecords:
    """A job: read what another node lost."""

    def __init__(self, storage: Storage, request: RecordsRequest, commit: int) -> None:
        self._storage = storage
        self._commit = commit
        self.request = request
        self.found: dict[int, Entry] = {}
        self.through = 0

    def run(self) -> None:
        """Read until there is enough for a message. Blocking."""
        size = 0
        for index in self.request.indexes:
            self.through = index
            # inv: StateMachineSafety: what is not committed may be another entry elsewhere.
            if index > self._commit:
                continue
            try:
                record = self._storage.read(index)
            except (Reclaimed, CorruptRecord):
                continue
            self.found[index] = Entry(record.term, Kind(record.kind), record.body)
            size += len(record.body)
            if size >= RAFT_APPEND_BYTES_MAX:
                return


class StoreRecords:
    """A job: store what came, and put it in place when it is the last of what this node said."""

    def __init__(self, restoring: Restoring, reply: RecordsReply | None, *, is_last: bool) -> None:
        self._restoring = restoring
        self.reply = reply
        self.is_last = is_last
        self.failed = False

    def run(self) -> None:
        """Store. Blocking."""
        restorer = self._restoring.restorer
        assert restorer is not None
        try:
            if self.reply is not None:
                for index, entry in zip(self.reply.indexes, self.reply.entries, strict=True):
                    restorer.record(Record(index, entry.term, entry.kind, entry.body))
            if self.is_last:
                restorer.finish()
        except (DiskFull, Reclaimed):
            # Tried again later, with what is lost then.
            self.failed = True
            restorer.abort()


class Restoring:
    """The lost records of one node, and those that others ask for.

    Attributes:
        lost: entries with live messages that cannot be read here, ascending.
        is_all_there_is: every other voter has said what it has of them, and these were not among that.
        restorer: takes what comes; None: nothing was asked for.
    """

    def __init__(self, storage: Storage, node_id: str) -> None:
        self._storage = storage
        self._node_id = node_id
        self.lost: list[int] = []
        self.is_all_there_is = False
        self.restorer: Restorer | None = None
        self._wanted: list[int] = []
        self._peer = ""
        self._round = 0
        self._asked_at = 0
        self._rest_until = 0
        # Asked since the last look; of these, who said all it had.
        self._asked: set[str] = set()
        self._answered: set[str] = set()
        self._reply: RecordsReply | None = None
        self._ended = False
        self._requests: deque[RecordsRequest] = deque(maxlen=WAITING_MAX)
        self.outbox: list[Message] = []

    def look(self, machine: Machine, through: int) -> None:
        """Find out what is lost."""
        self.lost = find_lost(self._storage, machine, through)

    # --- what others say ------------------------------------------------------------------------------------
    def receive(self, message: RecordsRequest | RecordsReply) -> None:
        """A member asks, or answers."""
        if isinstance(message, RecordsRequest):
            self._requests.append(message)
        elif message.round == self._round and message.sender == self._peer and self._is_right(message):
            self._reply = message
            self._round += 1

    def _is_right(self, reply: RecordsReply) -> bool:
        asked = self._wanted[:ASKED_MAX]
        ascending = all(low < high for low, high in zip(reply.indexes, reply.indexes[1:], strict=False))
        return (
            ascending and reply.through >= asked[0] and set(reply.indexes) <= {i for i in asked if i <= reply.through}
        )

    def is_there(self, node: str) -> None:
        """A node can be talked to: it may be asked, again."""
        self._asked.discard(node)
        self._rest_until = 0

    # --- asking ---------------------------------------------------------------------------------------------
    def tick(
        self, ticks: int, every: int, cluster: str, term: int, nodes: Sequence[str], machine: Machine, through: int
    ) -> None:
        """Ask the next node, or ask on. What is found not to be lost any more is not asked for.

        Args:
            every: how long an answer may take, in ticks.
            nodes: the other members.
        """
        if self._ended or self._reply is not None:
            return
        if self.restorer is None:
            if ticks >= self._rest_until:
                self.look(machine, through)
            if self.lost:
                self._choose(ticks, every, nodes)
        elif self._asked_at and ticks - self._asked_at > every:
            # What it said so far is put in place.
            self._ended = True
            return
        if self.restorer is not None and not self._asked_at:
            self._asked_at = ticks
            asked = tuple(self._wanted[:ASKED_MAX])
            self.outbox.append(RecordsRequest(cluster, self._node_id, self._peer, term, self._round, asked))

    def _choose(self, ticks: int, every: int, nodes: Sequence[str]) -> None:
        if ticks < self._rest_until:
            return
        peer = next((node for node in nodes if node not in self._asked), None)
        if peer is None:
            self._asked.clear()
            self._rest_until = ticks + 10 * every
            return
        try:
            restorer = self._storage.begin_restore(self.lost)
        except StorageError:
            # A snapshot is being received: afterwards.
            return
        if not restorer.indexes:
            restorer.abort()
            self._rest_until = ticks + 10 * every
            return
        self.restorer, self._wanted, self._peer = restorer, list(restorer.indexes), peer
        self._asked.add(peer)
        self._round += 1
        self._asked_at = 0

    # --- the background -------------------------------------------------------------------------------------
    def job(self, commit: int) -> ReadRecords | StoreRecords | None:
        """Blocking work, if there is any."""
        reply = self._reply
        if reply is not None:
            self._wanted = [index for index in self._wanted if index > reply.through]
            self._reply, self._asked_at = None, 0
            self._ended = not self._wanted
            if self._ended:
                self._answered.add(self._peer)
            return StoreRecords(self, reply, is_last=self._ended)
        if self._ended:
            return StoreRecords(self, None, is_last=True)
        if self._requests:
            return ReadRecords(self._storage, self._requests.popleft(), commit)
        return None

    def give_way(self) -> None:
        """A snapshot comes, which needs the place: what came so far is put in its own."""
        self._ended = True

    def answered(self, job: ReadRecords, cluster: str, term: int) -> None:
        """A job has read what another node asked for."""
        request = job.request
        head = (cluster, self._node_id, request.sender, term, request.round, job.through)
        self.outbox.append(RecordsReply(*head, tuple(job.found), tuple(job.found.values())))

    def stored(self, job: StoreRecords, machine: Machine, through: int, ticks: int, others: Iterable[str]) -> bool:
        """A job has stored what came. Whether that was the last of what its node has.

        Args:
            others: the other voters.
        """
        if not job.is_last and not job.failed:
            return False
        self.restorer, self._ended, self._asked_at = None, False, 0
        if job.failed:
            self._rest_until = ticks + 1
            self._asked.discard(self._peer)
            self._answered.discard(self._peer)
        self.look(machine, through)
        if not self.lost:
            self._asked.clear()
            self._answered.clear()
        self.is_all_there_is = bool(self.lost) and self._answered >= set(others)
        return True
