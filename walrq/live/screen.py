"""The terminal while a program owns it: the other screen, keys one by one, and all of it put back.

Within `Screen` the keyboard is not echoed and gives keys as they are pressed (Ctrl-C and Ctrl-Z stay signals),
and what was on the terminal is kept. However the block is left, the terminal is as it was.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import termios
import tty
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, Self, TextIO

from rich.console import Console
from rich.text import Text

_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_REST_OF_LINE: Final = "\x1b[K"


class Screen:
    """The terminal behind standard output, and the keyboard when standard input is one.

    Attributes:
        keyboard: descriptor that keys are read from; None when there is no keyboard.
    """

    def __init__(self, output: TextIO | None = None, keyboard: int | None = None) -> None:
        self._output = sys.stdout if output is None else output
        self._console = Console(file=self._output)
        self.keyboard = sys.stdin.fileno() if keyboard is None and sys.stdin.isatty() else keyboard
        self._before: list[Any] | None = None
        self._taken = False
        self._size = (0, 0)

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def enter(self) -> None:
        """Take the terminal over."""
        if self.keyboard is not None:
            self._before = termios.tcgetattr(self.keyboard)
            tty.setcbreak(self.keyboard, termios.TCSANOW)
        self._size = (0, 0)
        self._taken = True
        self._write(_ENTER)

    def leave(self) -> None:
        """Put it back; nothing happens when that was done before."""
        before, self._before = self._before, None
        if self._taken:
            self._taken = False
            # A terminal that hung up needs nothing put back.
            with contextlib.suppress(OSError):
                self._write(_LEAVE)
        if before is not None and self.keyboard is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self.keyboard, termios.TCSADRAIN, before)

    def size(self) -> tuple[int, int]:
        """Columns and lines now."""
        return os.get_terminal_size(self._output.fileno())

    def show(self, picture: Text) -> None:
        """Draw over what is there, without a flicker; the picture is as large as `size` said."""
        size = self.size()
        if size != self._size:
            self._size = size
            self._write("\x1b[2J")
        with self._console.capture() as capture:
            self._console.print(picture, end="", soft_wrap=True, crop=False)
        self._write(_HOME + capture.get().replace("\n", _REST_OF_LINE + "\r\n") + _REST_OF_LINE)

    def _write(self, text: str) -> None:
        self._output.write(text)
        self._output.flush()


_NAMES: Final = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b[5~": "page_up",
    "\x1b[6~": "page_down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
}
_KEY: Final = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Za-z])|.", re.DOTALL)


def keys(data: bytes) -> Iterator[str]:
    """The keys in what one read of a keyboard gave: names for those that move, else the character.

    A terminal sends a key's bytes together, so what is cut in two was no key.
    """
    for found in _KEY.findall(data.decode("utf-8", "replace")):
        yield _NAMES.get(found, found)
