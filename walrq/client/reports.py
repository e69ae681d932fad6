"""What a death report says of an exception: its text first, then as much of the traceback as fits.

Pure. The first line is for tables, the rest for whoever has to repair it; of a long traceback the innermost frames are
kept.
"""

from __future__ import annotations

import traceback
from typing import Final

# Of the whole text, at most this share for the message: a traceback always has some room.
MESSAGE_SHARE: Final = 1 / 4
# Frames looked at, counted from the innermost: more never fit.
FRAMES_MAX: Final = 40
_CUT: Final = "…"


def text_of(error: BaseException, bytes_max: int) -> str:
    """The text of `error` and its traceback, if it has one, in at most `bytes_max` bytes of UTF-8."""
    message = str(error)
    if error.__traceback__ is None:
        return head(message, bytes_max)
    message = head(message, int(bytes_max * MESSAGE_SHARE))
    found = traceback.TracebackException.from_exception(error, limit=-FRAMES_MAX)
    # The type and message stand below the frames once more, where readers of tracebacks look for them.
    last = "".join(found.format_exception_only())
    frames = "".join(found.format()).removesuffix(last)
    last = head(last.rstrip(), int(bytes_max * MESSAGE_SHARE))
    left = bytes_max - len(message.encode()) - len(last.encode()) - 2
    return f"{message}\n\n{tail(frames, left)}{last}"


def head(text: str, bytes_max: int) -> str:
    """The beginning of a text."""
    data = text.encode("utf-8", "replace")
    return data.decode() if len(data) <= bytes_max else data[:bytes_max].decode("utf-8", "ignore")


def tail(text: str, bytes_max: int) -> str:
    """The end of a text, from the beginning of a line if there is one, with a mark that there was more."""
    data = text.encode("utf-8", "replace")
    if len(data) <= bytes_max:
        return data.decode()
    kept = data[-(bytes_max - len(_CUT.encode()) - 1) :].decode("utf-8", "ignore")
    _, newline, rest = kept.partition("\n")
    return f"{_CUT}\n{rest if newline else kept}"
