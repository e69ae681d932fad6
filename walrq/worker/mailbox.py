"""From the worker's threads to its event loop, without waiting for it; and whether the loop still listens.

A handler that blocks the event loop holds up everything in it: other async handlers, acks, time-outs, the stop. Leases
are kept all the same, so nothing but a line in the log would tell. `Watch` asks the loop for a sign of life whenever
the keeper is at work anyway, and says once per blockage for how long there was none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import anyio

log = logging.getLogger("walrq.worker")

# Without an answer for this share of the lease the loop counts as blocked.
BLOCKED_SHARE: Final = 1 / 3
# The innermost frame of ours below a handler: what it calls is the application's.
_CALLS_HANDLERS: Final = f"{os.sep}walrq{os.sep}worker{os.sep}running.py"


class Mailbox:
    """Calls from any thread, delivered in the event loop.

    Attributes:
        thread: identity of the thread that delivers; None while nobody does.
    """

    def __init__(self) -> None:
        self.thread: int | None = None
        self._news: deque[Callable[[], None]] = deque()
        self._bell, self._heard = socket.socketpair()
        self._bell.setblocking(False)
        self._heard.setblocking(False)

    def post(self, call: Callable[[], None]) -> None:
        """Have `call` called in the event loop. From any thread."""
        self._news.append(call)
        # A full bell rings already, and after the end there is nobody to hear it.
        with contextlib.suppress(OSError):
            self._bell.send(b"!")

    async def run(self) -> None:
        """Deliver until cancelled."""
        self.thread = threading.get_ident()
        try:
            while True:
                await anyio.wait_readable(self._heard)
                with contextlib.suppress(BlockingIOError):
                    self._heard.recv(4096)
                while self._news:
                    self._news.popleft()()
        finally:
            self.thread = None

    def close(self) -> None:
        """No more news."""
        self._bell.close()
        self._heard.close()


class Watch:
    """Looks after one event loop, from one thread. Time is real time: a test that moves its clock blocks nothing."""

    def __init__(self, mailbox: Mailbox, lease_s: float) -> None:
        self._mailbox = mailbox
        self._patience_s = lease_s * BLOCKED_SHARE
        # When the question that the loop has not answered was asked; None = it has answered.
        self._asked_at: float | None = None
        self._looked_at = 0.0
        self._said = False

    def look(self) -> None:
        """Ask the loop, or see for how long it has not answered. Cheap; called whenever a lease is extended."""
        thread = self._mailbox.thread
        now = time.monotonic()
        slept_s, self._looked_at = now - self._looked_at, now
        asked_at = self._asked_at
        if thread is None:
            return
        if asked_at is None:
            self._said = False
            self._asked_at = now
            self._mailbox.post(self._answer)
            return
        blocked_s = now - asked_at
        if self._said or blocked_s < self._patience_s:
            return
        if slept_s > 2 * self._patience_s:
            # This thread did not run either: that was the interpreter or the machine, and the loop may answer yet.
            return
        self._said = True
        log.warning(
            "loop_blocked for %.1f s so far%s: an async handler must not block; make it a plain def, which runs in a"
            " thread, or await. Leases are kept meanwhile, but nothing else in the event loop runs, and no ack is sent",
            blocked_s,
            _where(thread),
        )

    def _answer(self) -> None:
        """In the event loop."""
        self._asked_at = None


def _where(thread: int) -> str:
    """What the thread runs just now: the handler below the worker's own code, else its innermost function."""
    frame = found = sys._current_frames().get(thread)
    while frame is not None:
        above = frame.f_back
        if above is not None and above.f_code.co_filename.endswith(_CALLS_HANDLERS):
            found = frame
            break
        frame = above
    if found is None:
        return ""
    code = found.f_code
    return f" in {code.co_qualname} ({code.co_filename}:{found.f_lineno})"
