"""The notification protocol of systemd (sd_notify(3)): one datagram to the socket that NOTIFY_SOCKET names.

A unit of `Type=notify` counts as started at READY=1 and not before, so what is ordered after it finds a node that
answers; from STOPPING=1 on nobody wonders why it is quiet.

Never: raises, waits, or has an effect when NOTIFY_SOCKET is not set.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import Final

log = logging.getLogger("walrq.notify")

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"


def tell(state: str) -> bool:
    """Send `state` (lines of NAME=value); whether somebody was told.

    A manager that cannot be reached is a line in the log: the node is worth more than the word about it.
    """
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return False
    # A leading @ stands for the zero byte of Linux's abstract names.
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            # A manager that does not read must not hold up a start.
            sock.setblocking(False)
            sock.sendto(state.encode(), address)
    except OSError as error:
        log.warning("notify_failed socket=%s: %s", path, error.strerror)
        return False
    return True
