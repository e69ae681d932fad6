"""How much disk a node may use.

    disk <= 2 x live + log since the last snapshot + 3 segments + reserve + 2 snapshots (+ what a backup holds)

One function, used by what keeps the bound, by tests, by chaos and by benchmarks. Every number is in bytes.
"""

from __future__ import annotations

from typing import Any

import attrs

# A segment's file begins with this much; what is alive needs at least one.
SEGMENT_OVERHEAD_BYTES = 16 * 1024


def live_on_disk(record_bytes: int, segment_bytes: int) -> int:
    """What records of so many bytes take when nothing else is in their segments."""
    return record_bytes + SEGMENT_OVERHEAD_BYTES * (1 + record_bytes // segment_bytes)


def disk_bound(
    *,
    live_bytes: int,
    tail_bytes: int,
    segment_bytes: int,
    reserve_bytes: int,
    snapshot_bytes: int,
    held_bytes: int = 0,
) -> int:
    """The bytes that a data directory may take, quarantine not counted.

    Args:
        live_bytes: what is alive in the snapshot that the log was compacted by last, as it lies in the log
            (`live_on_disk`); nothing of that can be given back.
        tail_bytes: records behind that snapshot, and behind what followers may still need.
        segment_bytes: the size of a segment, the largest if they differ. Three of them: what is left of the one that
            is being written, what is dead in the one that the snapshot ends in, and one that is free or being made.
        reserve_bytes: held back for a full disk.
        snapshot_bytes: what a snapshot takes at most, garbage in its page files included.
        held_bytes: kept for a backup beyond that.
    """
    return 2 * live_bytes + tail_bytes + 3 * segment_bytes + reserve_bytes + 2 * snapshot_bytes + held_bytes


@attrs.frozen
class Usage:
    """A node's disk: what it uses, what it may use, and the parts of both. See `disk_bound`."""

    disk_bytes: int
    live_bytes: int
    tail_bytes: int
    segment_bytes: int
    reserve_bytes: int
    snapshot_bytes: int
    held_bytes: int
    # Of segments that the last pass looked at; with what is dead in them.
    sealed_bytes: int

    @property
    def bound_bytes(self) -> int:
        """What it may use."""
        return disk_bound(
            live_bytes=self.live_bytes,
            tail_bytes=self.tail_bytes,
            segment_bytes=self.segment_bytes,
            reserve_bytes=self.reserve_bytes,
            snapshot_bytes=self.snapshot_bytes,
            held_bytes=self.held_bytes,
        )

    @property
    def is_held(self) -> bool:
        """Whether the bound is kept. inv: DiskBounded"""
        return self.disk_bytes <= self.bound_bytes

    @property
    def live_ratio(self) -> float:
        """How much of the sealed log is alive."""
        return min(1.0, self.live_bytes / self.sealed_bytes) if self.sealed_bytes else 1.0

    def as_json(self) -> dict[str, Any]:
        """Plain values, the bound included."""
        return {**attrs.asdict(self), "bound_bytes": self.bound_bytes, "live_ratio": round(self.live_ratio, 3)}
