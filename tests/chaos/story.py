"""Hand-made histories: what clients saw, written line by line on a clock that only moves when told."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

from chaos.checker import Verdict, check
from chaos.history import Writer, pack, parse

MS = 1_000_000


class Story:
    """A history in the making. Times are milliseconds; every line takes a tenth of one."""

    def __init__(self) -> None:
        self._file = io.BytesIO()
        self._now_ns = 1_000 * MS
        self._index = 0
        self._leases = 0
        self.writer = Writer(self._file, monotonic_ns=self._tick, wall_ns=lambda: 1_700_000_000_000 * MS + self._now_ns)

    def _tick(self) -> int:
        self._now_ns += MS // 10
        return self._now_ns

    def wait(self, ms: float) -> None:
        """Let time pass."""
        self._now_ns += int(ms * MS)

    @property
    def wall_ms(self) -> int:
        """The wall clock."""
        return 1_700_000_000_000 + self._now_ns // MS

    def push(self, values: Sequence[int], *, by: str = "p1", queue: str = "jobs", end: str = "ok", **args: Any) -> None:
        """One push and its completion."""
        self.writer.invoke(by, "push", {"queue": queue, "values": pack(values), **args})
        self.writer.complete(by, end, {"first": f"{values[0]:x}"} if end == "ok" else {"code": 70})

    def fence(self) -> tuple[int, int]:
        """The next place in the log."""
        self._index += 1
        return self._index, 0

    def lease(self) -> str:
        """The next receipt of queue 1."""
        self._leases += 1
        return f"00000001{self._leases:016x}{'00' * 8}"

    def run(
        self,
        values: Sequence[int],
        *,
        queue: str = "jobs",
        delivery: int = 1,
        attempts: int | None = None,
        lease: str | None = None,
        fence: tuple[int, int] | None = None,
        ids: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """A run as a poll's reply carries it."""
        return {
            "queue": queue,
            "lease": lease or self.lease(),
            "values": pack(values),
            "ids": [f"{identifier:x}" for identifier in (values if ids is None else ids)],
            "delivery": delivery,
            "attempts": delivery - 1 if attempts is None else attempts,
            "fence": list(fence or self.fence()),
        }

    def start_poll(self, *, by: str = "w1", queue: str = "jobs", visibility_ms: int = 1_000) -> None:
        """Send a poll."""
        args = {"queues": [queue], "max": 10, "visibility_ms": visibility_ms, "wait_ms": 0, "consumer": by}
        self.writer.invoke(by, "poll", args)

    def end_poll(self, runs: Iterable[dict[str, Any]], *, by: str = "w1", parked_ms: int = 0) -> None:
        """Its reply."""
        self.writer.complete(by, "ok", {"parked_ms": parked_ms, "runs": list(runs)})

    def poll(
        self,
        values: Sequence[int],
        *,
        by: str = "w1",
        queue: str = "jobs",
        visibility_ms: int = 1000,
        parked_ms: int = 0,
        **run: Any,
    ) -> str:
        """A poll answered with one run; returns its lease."""
        self.start_poll(by=by, queue=queue, visibility_ms=visibility_ms)
        made = self.run(values, queue=queue, **run)
        self.end_poll([made], by=by, parked_ms=parked_ms)
        lease: str = made["lease"]
        return lease

    def settle(
        self,
        lease: str,
        kind: str = "ack",
        *,
        by: str = "w1",
        queue: str = "jobs",
        end: str = "ok",
        code: int = 0,
        offsets: list[Any] | None = None,
        **args: Any,
    ) -> None:
        """A settle and its completion."""
        item = {"lease": lease} if offsets is None else {"lease": lease, "offsets": offsets}
        self.writer.invoke(by, "settle", {"queue": queue, "kind": kind, "items": [item], **args})
        self.writer.complete(by, end, {"codes": [code]} if end == "ok" else {"code": 70})

    def touch(self, lease: str, visibility_ms: int, *, by: str = "w1", end: str = "ok", code: int = 0) -> None:
        """A touch and its completion."""
        args = {"queue": "jobs", "items": [{"lease": lease}], "visibility_ms": visibility_ms}
        self.writer.invoke(by, "touch", args)
        self.writer.complete(by, end, {"codes": [code]} if end == "ok" else {"code": 70})

    def set(self, queue: str = "jobs", **settings: Any) -> None:
        """A change of settings."""
        self.writer.invoke("admin", "set", {"queue": queue, "settings": settings})
        self.writer.complete("admin", "ok", {})

    def show(self, queue: str = "jobs", **counts: int) -> None:
        """The counts of a queue."""
        self.writer.invoke("admin", "show", {"queue": queue})
        full = {"ready": 0, "delayed": 0, "leased": 0, "parked": 0, "dead": 0}
        self.writer.complete("admin", "ok", {**full, **counts})

    def restart(self) -> None:
        """A kill and what follows it."""
        self.writer.nemesis("kill", {"signal": 9})
        self.wait(50)
        self.writer.nemesis("restart", {})

    def drained(self) -> None:
        """The queues were seen empty."""
        self.writer.nemesis("drained", {})

    def lines(self) -> list[bytes]:
        """The file so far."""
        return self._file.getvalue().splitlines(keepends=True)

    def verdict(self) -> Verdict:
        """The checker's judgement."""
        return check(parse(self.lines()))


def broken(verdict: Verdict) -> set[str]:
    """Names of the invariants that the verdict calls broken."""
    return {finding.name for finding in verdict.findings if finding.violations}
