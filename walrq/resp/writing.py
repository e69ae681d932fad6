"""Values to bytes, in RESP2 and RESP3.

Plain values: bytes and text are bulk strings, `int` an integer, `bool` a truth value, `float` a number, `None` nothing,
`list` and `tuple` an array, `dict` a map (RESP2: its keys and values in turn), `Word` a simple string, `Problem` an
error. What differs between the two versions is here and nowhere else.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from walrq.errors import ERRORS, Code, WalrqError

OK: Final = b"+OK\r\n"
PONG: Final = b"+PONG\r\n"
EMPTY: Final = b"*0\r\n"
_NULL2: Final = b"$-1\r\n"
_NULL_ARRAY2: Final = b"*-1\r\n"
_NULL3: Final = b"_\r\n"
# Node addresses and sentences of ours, never more than a screen; a line must not outgrow what clients read.
_ERROR_CHARS_MAX: Final = 1_000


@attrs.frozen
class Word:
    """A simple string: a word of ours, without line ends."""

    text: str


@attrs.frozen
class Problem:
    """An error within an array."""

    text: str
    prefix: str = "ERR"


def null(protocol: int) -> bytes:
    """Nothing, where a message could have been."""
    # In a RESP3 session clients wait for ever for what follows the head of a null bulk string.
    return _NULL2 if protocol == 2 else _NULL3


def null_array(protocol: int) -> bytes:
    """Nothing, where an array could have been."""
    return _NULL_ARRAY2 if protocol == 2 else _NULL3


def error(text: str, prefix: str = "ERR") -> bytes:
    """An error line; whatever is in `text`, it stays one line."""
    line = " ".join(text.split())[:_ERROR_CHARS_MAX]
    return f"-{prefix} {line}\r\n".encode(errors="replace")


def failure(code: int, text: str) -> bytes:
    """The error line of a row of the table of errors."""
    try:
        row = ERRORS[Code(code)]
    except ValueError:
        return error(text, "UNKNOWN")
    # Redis clients take MOVED for a word of Redis Cluster, with a slot and an address behind it.
    return error(text, "LOADING" if code == Code.NOT_LEADER else row.resp)


def refusal(reason: WalrqError) -> bytes:
    """The error line of an error."""
    return failure(reason.code, reason.text)


def bulk(data: bytes) -> bytes:
    """A bulk string."""
    return b"$%d\r\n%b\r\n" % (len(data), data)


def integer(number: int) -> bytes:
    """An integer."""
    return b":%d\r\n" % number


def array(parts: list[bytes]) -> bytes:
    """An array of what is encoded already."""
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


def encode(value: Any, protocol: int) -> bytes:
    """Any plain value; see the module."""
    kind = type(value)
    if kind is bytes:
        return bulk(value)
    if kind is str:
        return bulk(value.encode(errors="replace"))
    if kind is int:
        return integer(value)
    if value is None:
        return null(protocol)
    if kind is bool:
        return integer(value) if protocol == 2 else (b"#t\r\n" if value else b"#f\r\n")
    if kind is Word:
        return f"+{value.text}\r\n".encode()
    if kind is Problem:
        return error(value.text, value.prefix)
    if kind is dict:
        flat = [encode(each, protocol) for pair in value.items() for each in pair]
        if protocol == 2:
            return array(flat)
        return b"%%%d\r\n%b" % (len(value), b"".join(flat))
    assert kind is list or kind is tuple, kind
    return array([encode(each, protocol) for each in value])
