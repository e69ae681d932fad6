"""What drives a core in these tests: the part of a replica that consensus needs, over a disk that can be pulled.

A host owes its core what docs/consensus.md lists: bodies, order, durability. Its disk keeps what was written wholly,
and of a write that a crash interrupts a prefix.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Collection
from typing import Any

import attrs
import cbor2

from walrq.raft.core import Raft
from walrq.raft.election import Timing
from walrq.raft.entries import Entry, HardState, Kind, Tail
from walrq.raft.leader import Bounds
from walrq.raft.membership import Configuration
from walrq.raft.messages import Append, Message
from walrq.raft.snapshots import Chunk
from walrq.raft.unstable import Ready

CLUSTER = "test"
FILLER = b"." * 150


@attrs.frozen
class Image:
    """A snapshot: the digest of all that was applied up to `index`."""

    index: int
    term: int
    digest: int
    configuration: Configuration

    def payload(self) -> bytes:
        """The bytes that travel: long enough for several chunks."""
        return cbor2.dumps([self.index, self.digest, FILLER])


def chained(digest: int, entry: Entry) -> int:
    """The digest after one more entry."""
    return zlib.crc32(entry.body, zlib.crc32(b"%d %d" % (entry.term, entry.kind), digest))


class Disk:
    """What survives a crash."""

    def __init__(self, configuration: Configuration) -> None:
        self.first = configuration
        self.state = HardState()
        self.base = (0, 0)
        self.log: dict[int, Entry] = {}
        self.image: Image | None = None

    @property
    def last_index(self) -> int:
        """The end of the stored log."""
        return self.base[0] + len(self.log)

    def term_at(self, index: int) -> int | None:
        """The term of a stored entry, or of the one before the first."""
        if index == self.base[0]:
            return self.base[1]
        entry = self.log.get(index)
        return entry.term if entry is not None else None

    def covers(self, index: int, term: int) -> bool:
        """Whether an entry is durable here, by itself or in a snapshot."""
        return (self.image is not None and self.image.index >= index) or self.term_at(index) == term

    def cut(self, from_index: int) -> None:
        """Remove entries from there on."""
        assert from_index <= self.last_index, "nothing is there to be cut"
        for index in range(from_index, self.last_index + 1):
            del self.log[index]

    def write(self, ready: Ready, entries: list[Entry], steps: int | None = None) -> None:
        """Write a ready, or its first `steps` steps: hard state, cut, then entry by entry."""
        todo: list[Callable[[], None]] = []
        if ready.hard_state is not None:
            state = ready.hard_state
            todo.append(lambda: setattr(self, "state", state))
        if ready.cut_from is not None:
            from_index = ready.cut_from
            todo.append(lambda: self.cut(from_index))
        for (_, index, _), entry in zip(ready.positions, entries, strict=True):
            todo.append(lambda index=index, entry=entry: self._put(index, entry))  # type: ignore[misc]
        for step in todo[:steps]:
            step()

    def _put(self, index: int, entry: Entry) -> None:
        assert index == self.last_index + 1, (index, self.last_index, "entries are written in order, without gaps")
        self.log[index] = entry

    def drop_before(self, first_kept: int) -> None:
        """Give back entries that a snapshot covers."""
        base = first_kept - 1
        term = self.term_at(base)
        assert term is not None
        for index in range(self.base[0] + 1, base + 1):
            del self.log[index]
        self.base = (base, term)

    def replace(self, image: Image, keep: bool) -> None:
        """Install a snapshot; the log behind it is kept if it belongs to the same history."""
        self.image = image
        if keep:
            self.drop_before(image.index + 1)
        else:
            self.log.clear()
            self.base = (image.index, image.term)

    def tail(self) -> Tail:
        """What a core starts from."""
        runs: list[tuple[int, int]] = []
        for index in range(self.base[0] + 1, self.last_index + 1):
            term = self.log[index].term
            if not runs or runs[-1][1] != term:
                runs.append((index, term))
        last_term = self.term_at(self.last_index)
        assert last_term is not None
        commit = self.image.index if self.image is not None else 0
        return Tail(self.last_index, last_term, tuple(runs), commit, self.base[1])

    def configurations(self) -> list[tuple[int, Configuration]]:
        """From the snapshot, and the entries behind it."""
        index = self.image.index if self.image is not None else 0
        found = [(index, self.image.configuration if self.image is not None else self.first)]
        for later in range(index + 1, self.last_index + 1):
            if self.log[later].kind is Kind.CONFIGURATION:
                found.append((later, Configuration.decode(self.log[later].body)))
        return found


class Host:
    """A core, the bodies, and the disk."""

    def __init__(
        self,
        name: str,
        configuration: Configuration,
        *,
        seed: int = 0,
        timing: Timing | None = None,
        bounds: Bounds | None = None,
        pre_vote: bool = True,
        trace_to: Callable[[dict[str, Any]], None] | None = None,
        draw: Callable[[int], int] | None = None,
    ) -> None:
        self.name = name
        self.disk = Disk(configuration)
        self._draw = draw or random.Random(seed).randrange
        self._timing = timing
        self._bounds = bounds or Bounds(
            append_entries=4, in_flight_appends=3, chunk_bytes=64, snapshot_window_bytes=128
        )
        self._pre_vote = pre_vote
        self._trace_to = trace_to
        self.alive = True
        self.lives = 0
        # Entries that this disk had and lost; whether it is known to have lost some and is not repaired yet.
        self.lost: set[tuple[int, int]] = set()
        self.damaged = False
        self.start()

    def start(self) -> None:
        """A new life from what the disk has."""
        disk = self.disk
        self.lives += 1
        self.alive = True
        self.raft = Raft(
            self.name,
            (),
            disk.state,
            disk.tail(),
            cluster=CLUSTER,
            configurations=disk.configurations(),
            timing=self._timing,
            bounds=self._bounds,
            draw=self._draw,
            size_of=lambda index: len(self.memory[index].body),
            pre_vote=self._pre_vote,
            trace_to=self._trace_to,
        )
        # Every entry of the log, written or not, from the disk's base on.
        self.memory = dict(disk.log)
        image = disk.image
        self.applied = image.index if image is not None else 0
        self.digest = image.digest if image is not None else 0
        self.writing: tuple[Ready, list[Entry]] | None = None
        self.spool: list[bytes] = []
        self.installing: Chunk | None = None
        if self.damaged:
            self.raft.begin_repair()

    def crash(self, steps: int = 0) -> None:
        """Lose everything that is not on the disk; of a write under way only the first `steps` steps arrive."""
        assert self.alive
        if self.writing is not None:
            self.disk.write(*self.writing, steps)
        self.alive = False

    def rot(self, from_index: int) -> None:
        """While it is down the disk loses entries that it had, and says so at the next start."""
        assert not self.alive
        for index in range(from_index, self.disk.last_index + 1):
            self.lost.add((index, self.disk.log[index].term))
        self.disk.cut(from_index)
        self.damaged = True

    def check_repair(self) -> None:
        """Remember across crashes whether the repair is over."""
        self.damaged = self.damaged and self.raft.recovering

    # --- the log --------------------------------------------------------------------------------------------
    def propose(self, body: bytes) -> int:
        """Append a command; its index."""
        _, index, kind = self.raft.append(Kind.COMMANDS)
        self.memory[index] = Entry(self.raft.term, kind, body)
        return index

    def change(self, how: str, *arguments: Any) -> int:
        """Append a change of the group; its index."""
        (term, index, kind), body = getattr(self.raft, how)(*arguments)
        self.memory[index] = Entry(term, kind, body)
        return index

    def _fill_noop(self) -> None:
        # The core appends one by itself when it takes office.
        for index in range(self.raft.last_index, self.raft.log.base_index, -1):
            if index in self.memory and self.memory[index].term == self.raft.log.term_at(index):
                return
            self.memory[index] = Entry(self.raft.log.term_at(index) or 0, Kind.NOOP, b"")

    def receive(self, message: Message) -> int:
        """Hand a message to the core and keep the bodies it took; the first index of those, 0 for none."""
        taken = self.raft.receive(message)
        if taken:
            assert isinstance(message, Append)
            for index, entry in enumerate(message.entries, message.prev_index + 1):
                if index >= taken:
                    self.memory[index] = entry
            gone = message.last_index + 1
            while gone in self.memory:
                del self.memory[gone]
                gone += 1
        else:
            self._fill_noop()
        for chunk in self.raft.take_chunks():
            self._store(chunk)
        return taken

    def messages(self) -> list[Message]:
        """What may leave, filled."""
        out = []
        for message in self.raft.take_messages():
            if isinstance(message, Append):
                indexes = range(message.prev_index + 1, message.last_index + 1)
                message = message.filled([self.memory[index] for index in indexes])
            out.append(message)
        return out

    def begin_write(self) -> bool:
        """Take a ready and begin to write it; False when there is nothing to write."""
        assert self.writing is None
        ready = self.raft.take_ready()
        if not ready:
            return False
        self.writing = (ready, [self.memory[index] for _, index, _ in ready.positions])
        return True

    def end_write(self) -> None:
        """The write is durable."""
        assert self.writing is not None
        ready, entries = self.writing
        self.disk.write(ready, entries)
        self.writing = None
        self.raft.persisted(ready)
        self._fill_noop()
        self._install()

    def apply(self) -> list[tuple[int, Entry]]:
        """Apply what is committed."""
        done = []
        while self.applied < self.raft.commit_index:
            self.applied += 1
            entry = self.memory[self.applied]
            self.digest = chained(self.digest, entry)
            done.append((self.applied, entry))
        return done

    # --- snapshots ------------------------------------------------------------------------------------------
    def snapshot(self, keep: int = 0) -> bool:
        """Image what is applied and durable; keep that many entries of the log before it."""
        index = self.applied
        known = self.disk.image.index if self.disk.image is not None else 0
        if index > self.raft.durable_index or index <= known or self.writing is not None:
            return False
        term = self.raft.log.term_at(index)
        assert term is not None
        self.disk.image = Image(index, term, self.digest, self.raft.membership.at(index))
        first_kept = max(self.disk.base[0] + 1, index + 1 - keep)
        self.disk.drop_before(first_kept)
        self.raft.snapshot_taken(index, first_kept)
        for gone in [index for index in self.memory if index < first_kept]:
            del self.memory[gone]
        return True

    def feed(self) -> None:
        """Read and hand in what snapshot streams want."""
        for wanted in self.raft.wanted_chunks():
            image = self.disk.image
            if image is None or image.index != wanted.index:
                self.raft.snapshot_gone(wanted.receiver, wanted.stream)
                continue
            payload = image.payload()
            end = wanted.offset + wanted.bytes_max
            data = payload[wanted.offset : end]
            assert self.raft.supply(wanted.receiver, wanted.stream, wanted.offset, data, end >= len(payload))

    def _store(self, chunk: Chunk) -> None:
        if chunk.offset == 0:
            self.spool.clear()
        self.spool.append(chunk.data)
        if self.raft.chunk_stored(chunk):
            self.installing = chunk
            self._install()

    def _install(self) -> None:
        chunk = self.installing
        # The storage does one thing at a time, in order.
        if chunk is None or self.writing is not None or self.raft.has_ready:
            return
        self.installing = None
        # Nothing garbles bytes here: what cannot be read was put together wrongly.
        index, digest, _ = cbor2.loads(b"".join(self.spool))
        assert index == chunk.index, "NoMixedRead"
        keep = self.raft.holds(chunk.index, chunk.snapshot_term)
        self.disk.replace(Image(index, chunk.snapshot_term, digest, chunk.configuration), keep)
        self.raft.installed(chunk)
        self.applied, self.digest = index, digest
        self.memory = {i: entry for i, entry in self.memory.items() if i > index} if keep else {}


def group(voters: Collection[str], learners: Collection[str] = ()) -> Configuration:
    """A configuration of bare names."""
    return Configuration.of(voters, learners)
