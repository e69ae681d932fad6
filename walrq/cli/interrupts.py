"""Ctrl-C while a client is open: taken note of, and acted on where the work may stop.

Python raises `KeyboardInterrupt` between any two instructions, inside an encoder's call-back as well, where it
is written off with a remark and the command goes on. So the first Ctrl-C only sets a flag and wakes the
client; the flag is looked at whenever the client waits, and before each piece of work. A second Ctrl-C raises
at once, wherever that is. Outside `deferred` nothing is changed.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


class Interrupts:
    """Whether somebody pressed Ctrl-C, and whether that may raise here."""

    def __init__(self) -> None:
        self.asked = False
        self._raises = False

    def _take(self, number: int, frame: Any) -> None:
        hard = self.asked or self._raises
        self.asked = True
        if hard:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def deferred(self, wake_descriptor: int) -> Iterator[None]:
        """Ctrl-C sets `asked` and writes a byte to this non-blocking descriptor instead of raising."""
        # An interrupt that is ignored (a job in the background of a script) stays ignored.
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        ):
            yield
            return
        signal.signal(signal.SIGINT, self._take)
        before = signal.set_wakeup_fd(wake_descriptor, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Around a wait that nothing wakes (reading a pipe, writing to one): Ctrl-C raises at once.

        Raises:
            KeyboardInterrupt: also when it was pressed before.
        """
        self._raises = True
        try:
            self.check()
            yield
        finally:
            self._raises = False

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if Ctrl-C was pressed."""
        if self.asked:
            raise KeyboardInterrupt


INTERRUPTS = Interrupts()
"""Of this process: signals belong to all of it."""
