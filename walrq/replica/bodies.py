"""The bodies of messages: a bounded cache, and the log behind it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from walrq.api import Columns
from walrq.compaction.thinning import bodies_of
from walrq.errors import Reclaimed
from walrq.limits import FAR_HORIZON_MS
from walrq.queues.commands import Push, Tagged
from walrq.replica.recent import Recent
from walrq.storage.cache import ByteBoundedCache
from walrq.storage.storage import Storage


def _size_of(columns: Columns) -> int:
    # The objects around a short payload weigh more than the payload.
    return columns.size + len(columns.ends) + 400


def _is_soon(command: Push, wall_ms: int) -> bool:
    """Whether what is pushed is not known to be due beyond the horizon."""
    if command.deliver_at_ms is not None:
        return command.deliver_at_ms - wall_ms <= FAR_HORIZON_MS
    return command.delay_ms is None or command.delay_ms <= FAR_HORIZON_MS


class Bodies:
    """Columns by address, (log index, ordinal in the entry). Every method may be called from any thread.

    Invariant: only applied entries are in it, whose addresses nobody else will ever get.
    """

    def __init__(self, storage: Storage, recent: Recent, bytes_max: int) -> None:
        self._storage = storage
        self._recent = recent
        self._lock = threading.Lock()
        self._cache: ByteBoundedCache[tuple[int, int], Columns] = ByteBoundedCache(bytes_max, size_of=_size_of)

    @property
    def bytes(self) -> int:
        """Bytes in memory."""
        with self._lock:
            return self._cache.bytes

    def remember(self, index: int, commands: Sequence[Tagged], wall_ms: int) -> None:
        """Keep those of an applied entry: they are the ones most likely to be asked for, unless they come later."""
        with self._lock:
            put = self._cache.put
            for ordinal, tagged in enumerate(commands):
                command = tagged.command
                if type(command) is Push and _is_soon(command, wall_ms):
                    put((index, ordinal), command.columns)

    def in_memory(self, index: int, ordinal: int) -> Columns | None:
        """The columns at an address if they are in memory."""
        with self._lock:
            return self._cache.get((index, ordinal))

    def load(self, index: int, ordinal: int) -> Columns:
        """The columns at an address, read from the log if need be. Blocking. See `Replica.load_body`.

        A log that was compacted lacks dead ones, and dead messages of others (`Columns.has`).
        """
        cached = self.in_memory(index, ordinal)
        if cached is not None:
            return cached
        # A leader applies by the disks of others what its own does not hold yet.
        entry = self._recent.get(index)
        bodies = bodies_of(entry.body if entry is not None else self._storage.read(index).body)
        with self._lock:
            # The neighbours are likely to be asked for next: a backlog is read in log order.
            for number, columns in sorted(bodies.items(), reverse=True):
                if number >= ordinal:
                    self._cache.put((index, number), columns)
        found = bodies.get(ordinal)
        if found is None:
            raise Reclaimed(f"nothing of push {ordinal} of entry {index} is alive", index=index)
        return found
