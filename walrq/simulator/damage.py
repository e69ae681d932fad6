"""How files of a stopped node get damaged: a bit, a span of zeros, a missing end, a missing file."""

from __future__ import annotations

import random
from collections.abc import Iterator

from walrq.testing.disk import SimDisk


def files(disk: SimDisk, folder: str = "data") -> Iterator[str]:
    """Every file below a folder that has something in it, in order."""
    for name in disk.list_directory(folder):
        path = f"{folder}/{name}"
        try:
            size = disk.size(path)
        except FileNotFoundError:
            yield from files(disk, path)
        else:
            if size:
                yield path


def damage(disk: SimDisk, draw: random.Random) -> str:
    """Damage one file; what was done."""
    path = draw.choice(list(files(disk)))
    size = disk.size(path)
    # Most of a preallocated file was never written: harm where something is.
    used = len(disk.content(path).rstrip(b"\0")) or size
    match draw.randrange(4):
        case 0 | 1:
            bit = draw.randrange(used * 8)
            disk.flip_bit(path, bit)
            return f"bit {bit % 8} of byte {bit // 8} of {path} flips"
        case 2:
            start = draw.randrange(used)
            end = min(used, start + draw.choice((16, 512, 4096)))
            disk.zero(path, start, end)
            return f"bytes {start} to {end} of {path} read as zeros"
        case _:
            end = draw.randrange(used)
            disk.cut(path, end)
            return f"{path} ends at byte {end} of {size}"
