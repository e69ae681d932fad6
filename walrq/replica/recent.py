"""The end of the log in memory: entries for followers and for applying, and the sizes of all that can be sent.

Invariants:

    what is not durable yet, or not applied yet, stays, if it came through memory at all
    of what is both, the newest `bytes_max` bytes stay; older entries are read from the log when a follower needs them
    sizes are known of every entry behind `base`
"""

from __future__ import annotations

from array import array

from walrq.raft.entries import Entry

# Beside its body: objects, the place in the dictionary.
_OVERHEAD_BYTES = 250
# Entries that are looked at together.
_BLOCK = 512


class Recent:
    """See the module. `get` may be called from any thread.

    Attributes:
        bytes: of the entries held, and what is around them.
        base: the last entry that can not be sent any more.
    """

    def __init__(self, bytes_max: int, base: int) -> None:
        """`base`: the last entry that can not be sent any more."""
        self._bytes_max = bytes_max
        self._entries: dict[int, Entry] = {}
        self._lowest = base + 1
        self.bytes = 0
        self.base = base
        self._sizes = array("I")

    @property
    def last_index(self) -> int:
        """The end of the log."""
        return self.base + len(self._sizes)

    def get(self, index: int) -> Entry | None:
        """An entry, if it is in memory."""
        return self._entries.get(index)

    def size_of(self, index: int) -> int:
        """Bytes of an entry's body."""
        return self._sizes[index - self.base - 1]

    def note(self, size: int) -> None:
        """The log got longer by an entry of that size, which is not kept."""
        self._sizes.append(size)

    def put(self, index: int, entry: Entry) -> None:
        """The log got longer by this entry."""
        assert index == self.base + len(self._sizes) + 1, (index, self.base, len(self._sizes))
        self._sizes.append(len(entry.body))
        self._entries[index] = entry
        self.bytes += len(entry.body) + _OVERHEAD_BYTES

    def cut(self, from_index: int) -> None:
        """Entries from there on are gone."""
        for index in range(max(from_index, self._lowest), self.last_index + 1):
            self._drop(index)
        self._lowest = min(self._lowest, from_index)
        del self._sizes[max(0, from_index - self.base - 1) :]

    def trim(self, settled: int, *, keep: bool) -> None:
        """Let go of what exceeds the bound (of everything, without `keep`), as far as `settled`."""
        bytes_max = self._bytes_max if keep else 0
        while self.bytes > bytes_max and self._lowest <= settled:
            self._drop(self._lowest)
            self._lowest += 1

    def _drop(self, index: int) -> None:
        entry = self._entries.pop(index, None)
        if entry is not None:
            self.bytes -= len(entry.body) + _OVERHEAD_BYTES

    def compact(self, base: int) -> None:
        """Entries up to `base` can not be sent any more."""
        if base > self.base:
            del self._sizes[: base - self.base]
            self.base = base

    def reset(self, base: int) -> None:
        """Start over behind a snapshot."""
        self._entries.clear()
        self.bytes = 0
        self._lowest = base + 1
        self.base = base
        self._sizes = array("I")

    def first_within(self, index: int, bytes_max: int, overhead: int) -> int:
        """The first entry, down from `index`, from which on everything to there takes at most `bytes_max` bytes or so.

        Args:
            overhead: bytes that an entry takes beside its body.
        """
        sizes, at = self._sizes, index - self.base
        while at > 0 and bytes_max > 0:
            block = sizes[max(0, at - _BLOCK) : at]
            total = sum(block) + overhead * len(block)
            if total > bytes_max:
                # Somewhere within this block.
                while bytes_max > 0:
                    at -= 1
                    bytes_max -= sizes[at] + overhead
                break
            bytes_max -= total
            at -= len(block)
        return self.base + at + 1
