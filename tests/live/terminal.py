"""A terminal of its own for one command: what it shows, what is typed, what is left behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.forks.processes import Walrq

ROOT: Final = Path(__file__).resolve().parent.parent.parent
SECONDS_MAX: Final = 180.0
_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """One walrq command on a pseudo-terminal. Leaving the block kills what still runs."""

    def __init__(self, *arguments: str, folder: Path, columns: int = 80, lines: int = 24) -> None:
        self._here, self._there = pty.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(self._there)
        environment = {name: given for name, given in os.environ.items() if not name.startswith("WALRQ_")}
        environment |= {"TERM": "xterm", "PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(folder)}
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
            environment.pop(name, None)
        self.process = Walrq(
            *arguments,
            stdin=self._there,
            stdout=self._there,
            stderr=self._there,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
        self.output = ""

    def resize(self, columns: int, lines: int) -> None:
        """Another size; the process is not told."""
        fcntl.ioctl(self._there, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._here, keys.encode())

    def settings(self) -> list[Any]:
        """How the terminal is set now."""
        return termios.tcgetattr(self._there)

    def picture(self) -> str:
        """The latest complete picture, without its colours."""
        pictures = self.output.split("\x1b[H")
        latest = pictures[-2] if len(pictures) > 2 else pictures[-1]
        return _STYLE.sub("", latest).replace("\x1b[K", "").replace("\r\n", "\n")

    def read(self, timeout_s: float) -> bool:
        """Take what was written; whether there was anything."""
        if not select.select([self._here], [], [], timeout_s)[0]:
            return False
        try:
            data = os.read(self._here, 65536)
        except OSError:
            return False  # Linux says so when the other end is closed
        self.output += data.decode("utf-8", "replace")
        return bool(data)

    def wait_for(self, is_there: Callable[[str], bool] | str) -> str:
        """Read until a complete picture shows this; the picture."""
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            picture = self.picture()
            if is_there in picture if isinstance(is_there, str) else is_there(picture):
                return picture
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.output[-2000:]}"
            assert time.monotonic() < deadline, f"it never showed {is_there!r}: {picture}"
            self.read(0.5)

    def wait(self) -> int:
        """Read until the process ends; its exit status."""
        deadline = time.monotonic() + SECONDS_MAX
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end: {self.output[-2000:]}"
            self.read(0.05)
        while self.read(0):
            pass
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._here)
        os.close(self._there)
