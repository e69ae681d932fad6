"""Bytes on their way to a client: made, not sent, partly sent. What every connection's output has in common.

Never: touches a socket, reads a clock (times are handed in).
"""

from __future__ import annotations

from collections import deque
from typing import Final

_EMPTY: Final = memoryview(b"")


class Outgoing:
    """The output of one connection. Whoever makes bytes appends them to `_chunks` and counts them in `unsent`.

    Attributes:
        unsent: bytes made and not taken by the kernel yet.
    """

    __slots__ = ("_chunks", "_rest", "_sent", "_stalled_since_ms", "unsent")

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._rest: memoryview = _EMPTY
        # How many bytes the kernel took since the connection began.
        self._sent = 0
        self._stalled_since_ms: int | None = None
        self.unsent = 0

    def _next(self) -> memoryview:
        """What to send now; the same bytes again until `_took` says that they left."""
        if not self._rest and self._chunks:
            chunks = self._chunks
            self._rest = memoryview(chunks.popleft() if len(chunks) == 1 else b"".join(chunks))
            chunks.clear()
        return self._rest

    def _took(self, count: int, now_ms: int) -> None:
        """The kernel took so many bytes of what `_next` gave; 0: it took nothing, and the wait for it begins."""
        self._sent += count
        self._rest = self._rest[count:]
        self.unsent -= count
        if count or not self.unsent:
            self._stalled_since_ms = now_ms if self.unsent else None
        elif self._stalled_since_ms is None:
            self._stalled_since_ms = now_ms

    def _drop(self) -> None:
        """Nobody will take the rest."""
        self._chunks.clear()
        self._rest = _EMPTY
        self.unsent = 0
