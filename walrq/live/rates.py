"""Two looks at a node make rates: messages per second between counters that only grow.

Time is the node's own uptime, so neither this machine's clock nor a slow network bends a rate. A node that
started again, or a queue that was made anew, has counters that begin anew: there is no rate until the next look.

Never: asks a server, reads a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from walrq.api import ClusterState, QueueInfo

# Looks that a sparkline can show.
HISTORY: Final = 120


@attrs.frozen
class Look:
    """What a node said at one moment.

    Attributes:
        stats: the values of its statistics.
        queues: its queues, by name.
        cluster: who it says is beside it; None when it is alone.
    """

    stats: Mapping[str, Any]
    queues: tuple[QueueInfo, ...]
    cluster: ClusterState | None = None

    @property
    def uptime_s(self) -> float:
        """Seconds since the node started."""
        return float(self.stats.get("uptime_ms", 0)) / 1000


@attrs.frozen
class Flow:
    """One queue with its rates.

    Attributes:
        info: counts and settings as the node told them.
        push_s, deliver_s, ack_s: messages per second since the look before; None when that cannot be told.
        oldest_s: age of the oldest message in seconds; None when there is none.
        pushes: pushes per second over the last looks, oldest first.
    """

    info: QueueInfo
    push_s: float | None
    deliver_s: float | None
    ack_s: float | None
    oldest_s: float | None
    pushes: tuple[float, ...]


@attrs.frozen
class Reading:
    """A look with what follows from the one before.

    Attributes:
        look: what was said.
        flows: its queues with their rates, by name.
        turns_s: group commits per second; None when that cannot be told.
        restarted: the node's process is another than at the look before.
    """

    look: Look
    flows: tuple[Flow, ...]
    turns_s: float | None
    restarted: bool


class Rates:
    """Remembers the look before."""

    def __init__(self) -> None:
        self._before: Look | None = None
        self._queues: dict[str, QueueInfo] = {}
        self._pushes: dict[str, deque[float]] = {}

    def feed(self, look: Look) -> Reading:
        """The rates between this look and the one before."""
        before, queues = self._before, self._queues
        restarted = before is not None and _is_another_life(before, look)
        span_s = look.uptime_s - before.uptime_s if before is not None and not restarted else 0.0
        now_ms = int(look.stats.get("wall_ms", 0))
        pushes: dict[str, deque[float]] = {}
        flows = []
        for info in look.queues:
            last = queues.get(info.name)
            rates: tuple[float | None, float | None, float | None] = (None, None, None)
            if last is not None and last.uid == info.uid and span_s > 0:
                rates = (
                    (info.pushed - last.pushed) / span_s,
                    (info.delivered - last.delivered) / span_s,
                    (info.acked - last.acked) / span_s,
                )
            elif last is None and before is not None and span_s > 0:
                # It was made between the two looks: all it counted happened since.
                rates = (info.pushed / span_s, info.delivered / span_s, info.acked / span_s)
            kept = pushes[info.name] = self._pushes.get(info.name) or deque(maxlen=HISTORY)
            if rates[0] is not None:
                kept.append(rates[0])
            oldest_s = max(0.0, (now_ms - info.oldest_ms) / 1000) if info.oldest_ms and now_ms else None
            flows.append(Flow(info, *rates, oldest_s, tuple(kept)))
        turns_s = None
        if before is not None and span_s > 0:
            turns_s = (look.stats.get("turns", 0) - before.stats.get("turns", 0)) / span_s
        self._before = look
        self._queues = {info.name: info for info in look.queues}
        self._pushes = pushes
        return Reading(look, tuple(flows), turns_s, restarted)


def _is_another_life(before: Look, look: Look) -> bool:
    return look.uptime_s < before.uptime_s or look.stats.get("node") != before.stats.get("node")


_BLOCKS: Final = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values as a row of blocks, the highest of them a full one."""
    shown = values[-width:] if width > 0 else ()
    top = max(shown, default=0.0)
    if top <= 0:
        return _BLOCKS[0] * len(shown)
    return "".join(_BLOCKS[min(len(_BLOCKS) - 1, int(value / top * len(_BLOCKS)))] for value in shown)


def count(number: float | None) -> str:
    """A number in at most five characters: 999, 12.3k, 4.56M; "-" for none."""
    if number is None:
        return "-"
    value = float(number)
    if value < 1000:
        return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"
    for unit in ("k", "M", "G", "T"):
        value /= 1000
        if value < 999.5 or unit == "T":
            return (
                f"{value:.2f}{unit}"
                if value < 9.995
                else f"{value:.1f}{unit}"
                if value < 99.95
                else f"{value:.0f}{unit}"
            )
    raise AssertionError("not reached")


def size(number: float | None) -> str:
    """Bytes in at most six characters: 512B, 1.5K, 2.0M."""
    if number is None:
        return "-"
    value = float(number)
    for unit in ("B", "K", "M", "G"):
        if value < 1000:
            return f"{value:.0f}{unit}" if unit == "B" or value >= 99.95 else f"{value:.1f}{unit}"
        value /= 1024
    return f"{value:.1f}T"


def age(seconds: float | None) -> str:
    """A time in at most six characters: 0.4s, 12s, 3m20s, 5h03m, 4d02h."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole // 60 % 60:02}m"
    return f"{whole // 86_400}d{whole // 3600 % 24:02}h"
