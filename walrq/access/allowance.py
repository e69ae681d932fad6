"""How much a token may ask at a time, on all its connections with a node together.

Requests and bytes a second are two buckets that fill as time goes by and hold one second's worth. A request that is
larger than a bucket passes when the bucket is full, and the next ones wait for what it took too much: so a bound is
kept on average, whatever single requests weigh.
"""

from __future__ import annotations

from walrq.errors import Overloaded


class Allowance:
    """See the module. None = no bound.

    Attributes:
        in_flight: requests that were let in and are not answered yet.
    """

    __slots__ = ("_at_ms", "_bytes", "_bytes_per_s", "_in_flight_max", "_requests", "_requests_per_s", "in_flight")

    def __init__(
        self, requests_per_s: int | None = None, bytes_per_s: int | None = None, in_flight: int | None = None
    ) -> None:
        self._requests_per_s = requests_per_s
        self._bytes_per_s = bytes_per_s
        self._in_flight_max = in_flight
        # Both full, in thousandths.
        self._requests = 1000 * (requests_per_s or 0)
        self._bytes = 1000 * (bytes_per_s or 0)
        self._at_ms = 0
        self.in_flight = 0

    def enter(self, size: int, now_ms: int) -> None:
        """Let a request of `size` bytes in; `leave` once it is answered.

        Raises:
            Overloaded: not now; it was not let in.
        """
        if self._in_flight_max is not None and self.in_flight >= self._in_flight_max:
            raise Overloaded(
                f"the token has {self.in_flight} requests in flight, it may have {self._in_flight_max}",
                limit="in_flight",
                retry_after_ms=100,
            )
        if self._requests_per_s is not None or self._bytes_per_s is not None:
            self._spend(size, now_ms)
        self.in_flight += 1

    def leave(self) -> None:
        """It is answered, or nobody waits for it any more."""
        self.in_flight -= 1

    def _spend(self, size: int, now_ms: int) -> None:
        passed_ms = max(0, now_ms - self._at_ms)
        self._at_ms = now_ms
        requests, sent = self._requests_per_s, self._bytes_per_s
        if requests is not None:
            self._requests = min(1000 * requests, self._requests + passed_ms * requests)
        if sent is not None:
            self._bytes = min(1000 * sent, self._bytes + passed_ms * sent)
        if requests is not None and self._requests < 1000:
            raise _too_fast("requests", requests, 1000 - self._requests)
        if sent is not None and self._bytes < min(1000 * size, 1000 * sent):
            raise _too_fast("bytes", sent, min(1000 * size, 1000 * sent) - self._bytes)
        if requests is not None:
            self._requests -= 1000
        if sent is not None:
            self._bytes -= 1000 * size


def _too_fast(what: str, per_s: int, missing: int) -> Overloaded:
    return Overloaded(
        f"the token has used up its {per_s} {what} a second",
        limit=f"{what}_per_s",
        retry_after_ms=max(1, -(-missing // per_s)),
    )
