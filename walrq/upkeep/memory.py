"""A bound for the process's memory: above it pushes are refused, and everything else goes on.

Nobody rings a bell when memory grows, so it is looked at; only on nodes that have a bound.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import resource
import sys
from collections.abc import Callable
from typing import Final

import trio

from walrq.daemon.broker import Broker

log = logging.getLogger("walrq.memory")

# How often memory is looked at: a fast client adds some ten megabytes in between.
MEMORY_S: Final = 0.1
MEMORY_FULL_S: Final = 0.5


def resident_bytes() -> int:
    """Bytes of memory that this process has from the system now; the most it ever had where that is not told."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def give_memory_back() -> None:
    """What is free within the process goes back to the system, where its library can do that."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


async def watch_memory(broker: Broker, most: int, measure: Callable[[], int] = resident_bytes) -> None:
    """Refuse pushes while this process has more than `most` bytes of memory: all else goes on, and makes room."""
    while True:
        used = measure()
        if used > most:
            await trio.to_thread.run_sync(give_memory_back)
            used = measure()
        text = ""
        if used > most:
            text = (
                f"max_memory: this node uses {used >> 20} MiB, allowed are {most >> 20} MiB: pushes wait until there is"
                " less, everything else goes on"
            )
        if bool(text) != bool(broker.memory_full):
            if text:
                log.warning("memory_full %s", text)
            else:
                log.info("memory_has_room pushes are taken again")
        broker.memory_full = text
        await trio.sleep(MEMORY_FULL_S if text else MEMORY_S)
