"""A cache bounded by bytes: bodies read back by address."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteBoundedCache(Generic[K, V]):
    """Least recently used out first, as soon as the bytes of all values exceed `max_bytes`.

    A value larger than the whole cache is not kept. One thread.
    """

    def __init__(self, max_bytes: int, *, size_of: Callable[[V], int] = len) -> None:  # type: ignore[assignment]
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._values: OrderedDict[K, V] = OrderedDict()
        # Invariant: bytes == sum of size_of(value) <= max_bytes
        self._bytes = 0
        self.hits = 0
        self.misses = 0

    @property
    def bytes(self) -> int:
        """Bytes of all values held."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The value, now the most recently used; None if it is not held."""
        value = self._values.get(key)
        if value is None:
            self.misses += 1
            return None
        self.hits += 1
        self._values.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Hold a value, in place of an earlier one under this key."""
        self.discard(key)
        size = self._size_of(value)
        if size > self._max_bytes:
            return
        self._values[key] = value
        self._bytes += size
        while self._bytes > self._max_bytes:
            self._bytes -= self._size_of(self._values.popitem(last=False)[1])

    def discard(self, key: K) -> None:
        """Let go of a value; fine if it is not held."""
        old = self._values.pop(key, None)
        if old is not None:
            self._bytes -= self._size_of(old)

    def clear(self) -> None:
        """Let go of all."""
        self._values.clear()
        self._bytes = 0
