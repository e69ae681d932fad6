"""Payloads that say who they are: the value that the history knows them by, and a checksum over all of it."""

from __future__ import annotations

import struct
import zlib

from .history import CORRUPT

_HEAD = struct.Struct(">QI")


def encode(value: int, filler: int) -> bytes:
    """The payload of `value` with `filler` further bytes, a pure function of both."""
    body = (value * 0x9E3779B97F4A7C15 & (1 << 64) - 1).to_bytes(8, "big") * (filler // 8 + 1)
    tail = body[:filler]
    return _HEAD.pack(value, zlib.crc32(tail, value & 0xFFFFFFFF)) + tail


def decode(payload: bytes) -> int:
    """The value inside, or CORRUPT when this is not what `encode` made."""
    if len(payload) < _HEAD.size:
        return CORRUPT
    value, check = _HEAD.unpack_from(payload)
    if zlib.crc32(payload[_HEAD.size :], value & 0xFFFFFFFF) != check:
        return CORRUPT
    number: int = value
    return number
