"""Frames: a 4-byte big-endian length, then that many bytes of one CBOR item.

The length is judged before anything of the frame is kept, so a peer makes this node hold at most one frame
and one read. Foreign protocols (HTTP, TLS, Redis) begin with bytes that read as an impossible length; they
are named.

Source: the length prefix of Kafka's and many others' protocols; bytes in, frames out as in h11.
"""

from __future__ import annotations

import struct
from typing import Final

from walrq.errors import FrameTooLarge, ProtocolError, RemoteProtocolError
from walrq.limits import FRAME_BYTES_MAX

LENGTH: Final = struct.Struct(">I")
_LENGTH_BYTES: Final = 4

# First four bytes of HTTP requests. All of them, read as a length, are beyond any frame limit.
_HTTP: Final = frozenset(
    (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ", b"HTTP")
)


def foreign_protocol(head: bytes) -> str | None:
    """The other protocol that these first four bytes belong to ("HTTP", "TLS", "RESP"), or None."""
    if head in _HTTP:
        return "HTTP"
    if head[:2] == b"\x16\x03":
        return "TLS"
    if head[:1] == b"*" and head[1:2].isdigit():
        return "RESP"
    return None


def frame(body: bytes) -> bytes:
    """`body` with its length in front."""
    return LENGTH.pack(len(body)) + body


class FrameBuffer:
    """Cuts a byte stream into frames.

    Invariant: 0 <= partial < 4 + frame_bytes_max between calls.

    Attributes:
        frame_bytes_max: largest body accepted; may be raised between calls.
        error: what ended the stream, or None. Once set, `feed` returns no more frames.
    """

    __slots__ = ("_buffer", "_need", "error", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.error: ProtocolError | None = None
        self._buffer = bytearray()
        self._need = _LENGTH_BYTES

    @property
    def partial(self) -> int:
        """Bytes held of a frame that is not complete: a driver times a frame from when this leaves 0."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies completed by `data`, in order.

        Frames before an impossible length are still returned; then `error` is set: `FrameTooLarge`, or
        `RemoteProtocolError` for an empty frame or another protocol's bytes.
        """
        if self.error is not None:
            return []
        buffer = self._buffer
        if not buffer:
            frames, used = self._cut(data)
            if used < len(data):
                buffer += memoryview(data)[used:]
            return frames
        buffer += data
        if len(buffer) < self._need:
            return []
        frames, used = self._cut(buffer)
        if used == len(buffer):
            # A fresh buffer gives the memory of a large frame back.
            self._buffer = bytearray()
        else:
            del buffer[:used]
        return frames

    def _cut(self, data: bytes | bytearray) -> tuple[list[bytes], int]:
        """(complete bodies, bytes used); leaves in `_need` how many bytes from there the next frame takes."""
        frames: list[bytes] = []
        size = len(data)
        limit = self.frame_bytes_max
        unpack = LENGTH.unpack_from
        start = 0
        need = _LENGTH_BYTES
        whole = isinstance(data, bytes)
        while size - start >= _LENGTH_BYTES:
            (length,) = unpack(data, start)
            if not 0 < length <= limit:
                self.error = _length_error(length, limit, bytes(data[start : start + _LENGTH_BYTES]))
                # Nothing behind it means anything: all is used up.
                return frames, size
            end = start + _LENGTH_BYTES + length
            if end > size:
                need = _LENGTH_BYTES + length
                break
            if whole:
                frames.append(data[start + _LENGTH_BYTES : end])  # type: ignore[arg-type]  # bytes
            else:
                # Straight out of the buffer: one copy, not two.
                frames.append(bytes(memoryview(data)[start + _LENGTH_BYTES : end]))
            start = end
        self._need = need
        return frames, start


def _length_error(length: int, limit: int, head: bytes) -> ProtocolError:
    foreign = foreign_protocol(head)
    if foreign is not None:
        return RemoteProtocolError(
            f"this port speaks walrq's native protocol, and the bytes received look like {foreign}",
            foreign=foreign,
        )
    if length == 0:
        return RemoteProtocolError("a frame of 0 bytes: every frame holds one CBOR array")
    return FrameTooLarge(f"a frame of {length} bytes was announced, at most {limit} are allowed", limit=limit)
