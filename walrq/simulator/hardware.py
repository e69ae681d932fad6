"""One machine of the simulator: its disk, its clocks, and what can be done to both."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Protocol

from walrq.simulator.clock import MS, NodeClock
from walrq.testing.disk import SimDisk


class World(Protocol):
    """What a machine needs of its surroundings."""

    now_us: int

    def at(self, delay_us: int, action: Callable[[], None]) -> None: ...

    def mark(self, name: str, times: int = 1) -> None: ...


class Hardware:
    """See the module.

    Attributes:
        disk: replaced by its own aftermath when a process ends.
        uuid: of the data directory that a first start makes on this disk.
        stuck: no operation of the disk ends before `calm`, or before `free`.
    """

    def __init__(self, world: World, disk_seed: int, draw: random.Random, clock: NodeClock) -> None:
        self._world = world
        self._draw = draw
        self.disk = SimDisk(seed=disk_seed)
        self.clock = clock
        self.uuid = draw.randbytes(16)
        self.stuck = False
        self.slow_until_us = 0
        self._restless = True

    @property
    def is_slow(self) -> bool:
        """Every sync takes long now."""
        return self._world.now_us < self.slow_until_us

    def end_process(self, *, lossy: bool) -> None:
        """What is on the disk after the process, or the power, is gone."""
        self.disk = self.disk.crash(self._draw.randrange(1 << 30)) if lossy else self.disk.keep_all()

    # --- faults ---------------------------------------------------------------------------------------------
    def arm_power_loss(self, within: int = 40) -> None:
        """Power goes before one of the next disk operations."""
        self.disk.power_off_at = self.disk.operation_count + self._draw.randrange(within)

    def arm_error(self) -> None:
        """One of the next disk operations fails."""
        code = self._draw.choice((errno.EIO, errno.ENOSPC))
        number = self.disk.operation_count + self._draw.randrange(20)
        self.disk.fail(number, code, short=self._draw.random() < 0.5)

    def fill_disk(self) -> None:
        """Somebody else takes all space, for a while."""
        self._world.mark("disk full")
        room = self._draw.choice((0, 0, 4_096, 40_000))
        self.disk.quota_bytes = self.disk.used_bytes + room
        long = self._draw.random() < 0.4
        until_us = self._world.now_us + self._draw.randrange(100, 3_000 if long else 500) * MS
        self._world.at(10 * MS, lambda: self._hog(until_us, room))

    def _hog(self, until_us: int, room: int) -> None:
        """What becomes free meanwhile is taken too; in the end all of it returns."""
        if self._world.now_us >= until_us or not self._restless:
            self.free_disk()
        elif self.disk.quota_bytes is not None:
            self.disk.quota_bytes = min(self.disk.quota_bytes, self.disk.used_bytes + room)
            self._world.at(10 * MS, lambda: self._hog(until_us, room))

    def free_disk(self) -> None:
        """The space returns."""
        self.disk.quota_bytes = None

    def slow_disk(self) -> None:
        """Every sync takes long, for a while."""
        self.slow_until_us = self._world.now_us + 500 * MS

    def stick(self, for_us: int | None) -> None:
        """No operation ends for a while, or until the end of faults."""
        self._world.mark("disk stuck")
        self.stuck = True
        if for_us is not None:
            self._world.at(for_us, self.free)

    def free(self) -> None:
        """Operations end again."""
        self.stuck = False

    def calm(self) -> None:
        """No more faults."""
        self._restless = False
        self.disk.clear_faults()
        self.free_disk()
        self.free()
        self.slow_until_us = 0
