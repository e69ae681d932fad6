"""Numbers for people and programs: percentiles, tables, what the machine is, where data may go."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

PERCENTILES = (50.0, 90.0, 99.0, 99.9)
# Latencies are recorded in microseconds, from one to an hour, to three digits.
_LOWEST_US, _HIGHEST_US, _DIGITS = 1, 3_600_000_000, 3


class Latencies:
    """Durations of one kind of request. Recording is one append; the histogram is made at the end."""

    def __init__(self) -> None:
        self._ns = array("Q")
        self.record = self._ns.append

    def __len__(self) -> int:
        return len(self._ns)

    def clear(self) -> None:
        """Forget the warm-up."""
        del self._ns[:]

    def extend(self, durations_ns: Iterable[int]) -> None:
        """Add many."""
        self._ns.extend(durations_ns)

    def percentiles_ms(self) -> dict[str, float]:
        """p50 to p99.9, the mean and the maximum, in milliseconds; empty when nothing was recorded."""
        if not self._ns:
            return {}
        histogram = HdrHistogram(_LOWEST_US, _HIGHEST_US, _DIGITS)
        for ns in self._ns:
            histogram.record_value(min(_HIGHEST_US, max(_LOWEST_US, ns // 1000)))
        named = {f"p{p:g}": histogram.get_value_at_percentile(p) / 1000 for p in PERCENTILES}
        return {**named, "max": max(self._ns) / 1e6, "mean": sum(self._ns) / len(self._ns) / 1e6}


def table(rows: Sequence[Sequence[object]], *, header: Sequence[str]) -> str:
    """Rows under a header, columns padded; numbers to the right."""
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(len(row[k]) for row in [list(header), *texts]) for k in range(len(header))]
    lines = ["  ".join(name.ljust(width) for name, width in zip(header, widths, strict=True)).rstrip()]
    for row, cells in zip(rows, texts, strict=True):
        padded = [
            text.rjust(width) if isinstance(cell, int | float) else text.ljust(width)
            for cell, text, width in zip(row, cells, widths, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _text(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:,.3f}" if abs(cell) < 100 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
    }


def in_memory_file_system(path: Path) -> bool:
    """Whether `path` lies on a file system that keeps nothing on a disk."""
    with contextlib.suppress(OSError):
        best, kind = "", ""
        for line in Path("/proc/mounts").read_text().splitlines():
            _, point, type_, *_ = line.split()
            real = str(path.resolve())
            if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
                best, kind = point, type_
        return kind in ("tmpfs", "ramfs")
    return False


@contextlib.contextmanager
def scratch(parent: Path | None) -> Iterator[Path]:
    """A fresh directory for data, removed afterwards.

    Under `parent` when given. Else where the working directory lies: the system's temporary directory is
    often in memory, where a sync costs nothing and proves nothing.
    """
    if parent is None:
        parent = Path(tempfile.gettempdir())
        if in_memory_file_system(parent):
            parent = Path.cwd()
    parent.mkdir(parents=True, exist_ok=True)
    if in_memory_file_system(parent):
        print(f"note: {parent} is kept in memory: syncs cost nothing there", file=sys.stderr)
    folder = Path(tempfile.mkdtemp(prefix="walrq-bench-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
