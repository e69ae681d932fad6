"""`python -m bench.slow_disk BRAKE serve ...`: a node whose disk is as slow as the file BRAKE says, seconds a sync.

The file is looked at before every sync, so that a bench can make one follower slow and fast again while it runs. It
replaces `os.fdatasync` in this process only; nothing of walrq knows of it.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from walrq.cli import main


def brake(file: Path) -> None:
    """Let every fdatasync of this process wait first."""
    sync = os.fdatasync

    def slow(fd: Any) -> None:
        try:
            seconds = float(file.read_text())
        except FileNotFoundError:
            seconds = 0.0
        if seconds:
            time.sleep(seconds)
        sync(fd)

    os.fdatasync = slow


if __name__ == "__main__":
    brake(Path(sys.argv.pop(1)))
    main()
