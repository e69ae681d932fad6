"""Bytes to commands: arrays of bulk strings, and inline commands, within bounds.

Nearly all input is small commands that came whole; those are cut by one `split` at CRLF and verified token by token:
a header that names exactly the length of the token behind it cannot be a misreading, whatever the payload holds.
Whatever is not of that form (long, binary with CRLF inside, cut short, wrong) goes the long way, which judges.

The long way keeps its place between calls, so that a long argument costs no second look; it stores what has come, never
what was announced. Bounds are those of `limits`; a client that breaks them is not believed any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from walrq.errors import RemoteProtocolError
from walrq.limits import (
    MESSAGE_BYTES_LIMIT,
    RESP_ARGUMENTS_MAX,
    RESP_COMMAND_BYTES_MAX,
    RESP_INLINE_BYTES_MAX,
    RESP_STRANGER_ARGUMENTS_MAX,
    RESP_STRANGER_BYTES_MAX,
)

_SHORT_ARGUMENTS: Final = 16
_SHORT_BYTES: Final = 4_096
_COUNTS: Final = {b"*%d" % number: number for number in range(1, _SHORT_ARGUMENTS + 1)}
_LENGTHS: Final = {b"$%d" % number: number for number in range(_SHORT_BYTES)}
# A sign, ten digits and CRLF fit; a header that goes on is none.
_HEADER_BYTES_MAX: Final = 32
_CRLF: Final = b"\r\n"
_STAR: Final = 0x2A
_DOLLAR: Final = 0x24


class Reader:
    """One connection's input.

    Attributes:
        is_stranger: who sends has not said the password that is asked for: little is believed.
    """

    __slots__ = (
        "_argument_bytes",
        "_arguments",
        "_buffer",
        "_chunks",
        "_held",
        "_left",
        "_need",
        "_size",
        "is_stranger",
    )

    def __init__(self) -> None:
        self.is_stranger = False
        self._buffer = b""
        # Behind the buffer, of a long argument: what has come since, and without how many bytes in all it is not whole.
        self._chunks: list[bytes] = []
        self._held = 0
        self._need = 0
        # Of a command that has come in part: its arguments so far, how many are missing, the length of the next
        # argument or -1, and the bytes of all.
        self._arguments: list[bytes] = []
        self._left = 0
        self._argument_bytes = -1
        self._size = 0

    @property
    def partial(self) -> int:
        """Bytes held of a command that is not complete."""
        return len(self._buffer) + self._held + self._size

    def feed(self, data: bytes) -> Iterator[list[bytes]]:
        """The commands that are complete with `data`, in order; a list is never empty.

        Raises:
            RemoteProtocolError: the input is no command, or beyond a bound; nothing more can be read.
        """
        if self._need:
            self._chunks.append(data)
            self._held += len(data)
            if len(self._buffer) + self._held < self._need:
                return
            buffer = self._buffer + b"".join(self._chunks)
            self._chunks.clear()
            self._held = self._need = 0
        else:
            buffer = self._buffer + data if self._buffer else data
        while buffer:
            if not self._left and buffer[0] == _STAR:
                tokens = buffer.split(_CRLF)
                at = 0
                # The last token is not ended by CRLF.
                last = len(tokens) - 1
                while at < last:
                    count = _COUNTS.get(tokens[at])
                    if count is None:
                        break
                    end = at + 2 * count + 1
                    if end > last:
                        break
                    command = tokens[at + 2 : end : 2]
                    if [*map(_LENGTHS.get, tokens[at + 1 : end : 2])] != [*map(len, command)]:
                        break
                    if self.is_stranger and sum(map(len, command)) > RESP_STRANGER_BYTES_MAX:
                        break
                    at = end
                    self._buffer = b""
                    yield command
                buffer = _CRLF.join(tokens[at:]) if at else buffer
                if not buffer:
                    break
            self._buffer = b""
            found, buffer = self._read_one(buffer)
            if found is None:
                self._buffer = buffer
                return
            if found:
                self._buffer = buffer
                yield found
        self._buffer = b""

    # --- the long way -------------------------------------------------------------------------------------
    def _read_one(self, buffer: bytes) -> tuple[list[bytes] | None, bytes]:
        """(the next command, the rest of the buffer); None: it has not come whole; empty: there was nothing in it."""
        at = 0
        if not self._left:
            if buffer[0] != _STAR:
                return self._read_inline(buffer)
            end = self._header_end(buffer, 0)
            if end < 0:
                return None, buffer
            count = _number(buffer[1:end], "the number of arguments", self._arguments_max)
            at = end + 2
            if not count:
                return [], buffer[at:]
            self._left = count
            self._arguments = []
            self._size = 0
        while self._left:
            if self._argument_bytes < 0:
                end = self._header_end(buffer, at)
                if end < 0:
                    break
                if buffer[at] != _DOLLAR:
                    raise RemoteProtocolError(f"expected '$', got {bytes(buffer[at : at + 1])!r}")
                self._argument_bytes = self._length(buffer[at + 1 : end])
                at = end + 2
            end = at + self._argument_bytes
            if len(buffer) < end + 2:
                self._need = end + 2 - at
                break
            if buffer[end : end + 2] != _CRLF:
                raise RemoteProtocolError("an argument does not end where its length says")
            self._arguments.append(buffer[at:end])
            self._size += self._argument_bytes
            self._argument_bytes = -1
            self._left -= 1
            at = end + 2
        rest = buffer[at:] if at else buffer
        if self._left:
            return None, rest
        found, self._arguments, self._size = self._arguments, [], 0
        return found, rest

    def _header_end(self, buffer: bytes, at: int) -> int:
        """Where the header at `at` ends; -1: it has not come whole."""
        end = buffer.find(_CRLF, at, at + _HEADER_BYTES_MAX)
        if end < 0 and len(buffer) - at >= _HEADER_BYTES_MAX:
            raise RemoteProtocolError("a length goes on for too long")
        return end

    @property
    def _arguments_max(self) -> int:
        return RESP_STRANGER_ARGUMENTS_MAX if self.is_stranger else RESP_ARGUMENTS_MAX

    def _length(self, digits: bytes) -> int:
        length = _number(digits, "the length of an argument", MESSAGE_BYTES_LIMIT)
        most = RESP_STRANGER_BYTES_MAX if self.is_stranger else RESP_COMMAND_BYTES_MAX
        if self._size + length > most:
            raise RemoteProtocolError(f"a command has at most {most} bytes of arguments", limit=most)
        return length

    def _read_inline(self, buffer: bytes) -> tuple[list[bytes] | None, bytes]:
        most = RESP_STRANGER_BYTES_MAX if self.is_stranger else RESP_INLINE_BYTES_MAX
        end = buffer.find(b"\n", 0, most)
        if end < 0:
            if len(buffer) >= most:
                raise RemoteProtocolError(f"a command in plain text has at most {most} bytes", limit=most)
            if not buffer[0] >= 0x20 and buffer[0] not in b"\t\r":
                raise RemoteProtocolError(f"expected '*' or a word, got {buffer[:1]!r}")
            return None, buffer
        line = buffer[:end].removesuffix(b"\r")
        words = split_line(line)
        if words and is_http(words):
            raise RemoteProtocolError("this door speaks the Redis protocol, not HTTP; nothing was done")
        if len(words) > self._arguments_max:
            raise RemoteProtocolError(f"a command has at most {self._arguments_max} arguments")
        return words, buffer[end + 1 :]


def _number(digits: bytes, what: str, most: int) -> int:
    """A length as clients write it: digits, without sign, space or leading zeros.

    Raises:
        RemoteProtocolError: anything else.
    """
    if not digits.isdigit() or (digits[:1] == b"0" and digits != b"0"):
        raise RemoteProtocolError(f"{what} is {bytes(digits[:20])!r}: not a number from 0 without leading zeros")
    number = int(digits)
    if number > most:
        raise RemoteProtocolError(f"{what} is {number}, at most {most} is read", limit=most)
    return number


_HTTP_WORDS: Final = frozenset(b"GET POST PUT PATCH HEAD DELETE OPTIONS CONNECT TRACE PRI".split())


def is_http(words: list[bytes]) -> bool:
    """Whether a line is of HTTP: a request line (a browser may choose any method), or a header."""
    first = words[0].upper()
    return first in _HTTP_WORDS or first.endswith(b":") or words[-1].upper().startswith(b"HTTP/")


_ESCAPES: Final = {0x6E: b"\n", 0x72: b"\r", 0x74: b"\t", 0x62: b"\b", 0x61: b"\a"}
_HEX: Final = frozenset(b"0123456789abcdefABCDEF")


def split_line(line: bytes) -> list[bytes]:
    """The words of a command in plain text, with quotes as redis-cli has them: "..." with escapes, '...' without.

    Raises:
        RemoteProtocolError: a quote is not closed, or goes on in a word.
    """
    if b'"' not in line and b"'" not in line:
        return line.split()
    words: list[bytes] = []
    at = 0
    while True:
        while at < len(line) and line[at : at + 1].isspace():
            at += 1
        if at == len(line):
            return words
        quote = line[at : at + 1]
        if quote not in (b'"', b"'"):
            end = at
            while end < len(line) and not line[end : end + 1].isspace():
                if line[end : end + 1] in (b'"', b"'"):
                    raise RemoteProtocolError("a quote in the middle of a word")
                end += 1
            words.append(line[at:end])
            at = end
            continue
        word, at = _quoted(line, at + 1, quote)
        if at < len(line) and not line[at : at + 1].isspace():
            raise RemoteProtocolError("a closing quote is followed by something")
        words.append(word)


def _quoted(line: bytes, at: int, quote: bytes) -> tuple[bytes, int]:
    """(the word whose opening quote is before `at`, where the rest of the line begins)."""
    word = bytearray()
    while at < len(line):
        character = line[at]
        if line[at : at + 1] == quote:
            return bytes(word), at + 1
        following = line[at + 1 : at + 2]
        if character == 0x5C and quote == b'"' and following:
            digits = line[at + 2 : at + 4]
            if following == b"x" and len(digits) == 2 and _HEX.issuperset(digits):
                word.append(int(digits, 16))
                at += 4
                continue
            word += _ESCAPES.get(following[0], following)
            at += 2
        elif character == 0x5C and following == b"'":
            word += following
            at += 2
        else:
            word.append(character)
            at += 1
    raise RemoteProtocolError("a quote is not closed")
