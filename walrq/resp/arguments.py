"""Arguments of commands: words to queue names, numbers, seconds and task ids.

A word that is no such thing is refused with the name of the argument and what is allowed; nothing is ever replaced by
a default. All raise `InvalidArgument` or its like, whose text is the client's.
"""

from __future__ import annotations

import re
from typing import Final

from walrq.errors import DelayTooLong, InvalidArgument, InvalidQueueName
from walrq.ids import TASK_MAX, check_queue_name
from walrq.limits import (
    DELAY_MS_MAX,
    PRIORITY_MAX,
    RESP_LISTED_MAX,
    RESP_WAIT_GRACE_MS,
    RESP_WAIT_S_MAX,
    TIME_MS_MAX,
    VISIBILITY_MS_MAX,
    VISIBILITY_MS_MIN,
)

# What Redis clients print: 10, 10.0, 0.5, 1e-3. Not what else Python's float() takes (infinity, 1_000, spaces).
_NUMBER: Final = re.compile(rb"[+-]?(\d{1,32}(\.\d{0,32})?|\.\d{1,32})([eE][+-]?\d{1,3})?")
_INTEGER: Final = re.compile(rb"-?\d{1,20}")
_TASK: Final = re.compile(rb"task-([1-9]\d{0,19})")
_SHOWN: Final = 40
# Emptied when full: at most 2 MiB.
_NAMES_KEPT_MAX: Final = 4_096
_names: dict[bytes, str] = {}
# Workers say the same few all day.
_VISIBILITIES_KEPT_MAX: Final = 256
_visibilities: dict[bytes, int] = {}


def shown(word: bytes) -> str:
    """A word of a client's as errors quote it: short and printable."""
    return repr(word[:_SHOWN].decode(errors="replace")) + ("..." if len(word) > _SHOWN else "")


def queue(word: bytes) -> str:
    """A queue name. Two different byte strings never become one name.

    Raises:
        InvalidQueueName: not UTF-8, too long, empty, or with control characters.
    """
    name = _names.get(word)
    if name is None:
        try:
            name = check_queue_name(word.decode())
        except UnicodeDecodeError:
            raise InvalidQueueName(f"queue name {shown(word)} is not UTF-8") from None
        if len(_names) >= _NAMES_KEPT_MAX:
            _names.clear()
        _names[word] = name
    return name


def integer(word: bytes, name: str, low: int, high: int) -> int:
    """A whole number in low .. high."""
    if _INTEGER.fullmatch(word) is None:
        raise InvalidArgument(f"{name} is {shown(word)}, not a whole number", field=name)
    number = int(word)
    if not low <= number <= high:
        raise InvalidArgument(f"{name} is {number}, allowed are {low} to {high}", field=name)
    return number


def _seconds(word: bytes, name: str) -> float:
    if _NUMBER.fullmatch(word) is None:
        raise InvalidArgument(f"{name} is {shown(word)}, not a number of seconds", field=name)
    return float(word)


def delay_ms(word: bytes) -> int:
    """A delay in seconds, 0 to 30 days.

    Raises:
        DelayTooLong: beyond.
    """
    seconds = _seconds(word, "delay")
    if seconds < 0:
        raise InvalidArgument(f"delay is {seconds:g} s, allowed are 0 to 30 days", field="delay")
    if seconds * 1000 > DELAY_MS_MAX:
        raise DelayTooLong(
            f"delay is {seconds:g} s, allowed are at most {DELAY_MS_MAX // 1000} s (30 days)", limit=DELAY_MS_MAX
        )
    return round(seconds * 1000)


def visibility_ms(word: bytes) -> int:
    """How long a lease lasts, in seconds, 1 ms to 12 h."""
    known = _visibilities.get(word)
    if known is not None:
        return known
    seconds = _seconds(word, "visibility")
    if not VISIBILITY_MS_MIN <= seconds * 1000 <= VISIBILITY_MS_MAX:
        raise InvalidArgument(
            f"visibility is {seconds:g} s, allowed are {VISIBILITY_MS_MIN / 1000:g} to"
            f" {VISIBILITY_MS_MAX // 1000} s (12 h)",
            field="visibility",
        )
    if len(_visibilities) >= _VISIBILITIES_KEPT_MAX:
        _visibilities.clear()
    _visibilities[word] = found = round(seconds * 1000)
    return found


def extension_ms(word: bytes) -> int:
    """How long a touched lease lasts from now, in seconds: beyond 12 h without another limit."""
    seconds = _seconds(word, "seconds")
    if not VISIBILITY_MS_MIN <= seconds * 1000 <= TIME_MS_MAX:
        raise InvalidArgument(
            f"seconds is {seconds:g}, allowed are {VISIBILITY_MS_MIN / 1000:g} and more", field="seconds"
        )
    return round(seconds * 1000)


def wait_ms(word: bytes) -> int | None:
    """How long a blocking command waits, in seconds; None = for ever, which 0 says."""
    seconds = _seconds(word, "timeout")
    if not 0 <= seconds <= RESP_WAIT_S_MAX:
        raise InvalidArgument(
            f"timeout is {seconds:g} s, allowed are 0 (for ever) and up to {RESP_WAIT_S_MAX} s", field="timeout"
        )
    return None if not seconds else round(seconds * 1000) + RESP_WAIT_GRACE_MS


def priority(word: bytes) -> int:
    """0 to 255, higher first."""
    return integer(word, "priority", 0, PRIORITY_MAX)


def listed(word: bytes, name: str = "limit") -> int:
    """How many things a listing shows."""
    return integer(word, name, 0, RESP_LISTED_MAX)


def task(word: bytes) -> int:
    """N of `task-N`; 0, which is nobody's number, of whatever else."""
    found = _TASK.fullmatch(word)
    number = int(found[1]) if found is not None else 0
    return number if number <= TASK_MAX else 0
