"""Batches for people who have messages one by one: lists into columns and back.

The server never calls this: it moves columns whole. Headers of one message are a CBOR map with text keys;
those that a consumer reads were written by some producer, so they are decoded by the rules of the edge
(`codec.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

from cbor2 import CBORError

from walrq import api
from walrq.errors import InvalidArgument, RemoteProtocolError, RequestError
from walrq.protocol import fields
from walrq.protocol.codec import Decoder, check_plain, encode

Headers: TypeAlias = Mapping[str, Any]


@api.value
class Messages:
    """A batch taken apart: one entry per message in each list; None when the batch has no such column."""

    payloads: list[bytes]
    headers: list[Headers | None] | None = None
    groups: tuple[str | None, ...] | None = None
    dedup: tuple[str | None, ...] | None = None


def pack(
    payloads: Sequence[bytes],
    headers: Sequence[Headers | None] | None = None,
    *,
    groups: Sequence[str | None] | None = None,
    dedup: Sequence[str | None] | None = None,
) -> api.Columns:
    """The columns of these messages; a column whose every entry is empty is left out.

    Raises:
        InvalidArgument: columns of different lengths, more than 4 GiB, or headers that are no plain values.
    """
    count = len(payloads)
    for name, column in (("headers", headers), ("groups", groups), ("dedup", dedup)):
        if column is not None and len(column) != count:
            raise InvalidArgument(f"{name} has {len(column)} entries for {count} messages", field=name)
    header_bytes = header_ends = None
    if headers is not None and any(headers):
        stretches = [encode_headers(each) for each in headers]
        header_bytes = b"".join(stretches)
        header_ends = _ends(stretches, "headers")
    return api.Columns(
        payloads[0] if count == 1 and type(payloads[0]) is bytes else b"".join(payloads),
        _ends(payloads, "payloads"),
        header_bytes,
        header_ends,
        _keys(groups),
        _keys(dedup),
    )


def unpack(columns: api.Columns) -> Messages:
    """The messages of a batch.

    Raises:
        InvalidArgument: offsets that do not fit their column.
        RemoteProtocolError: headers that are not a plain CBOR map.
    """
    return Messages(
        _slices(columns.payloads, columns.ends, 0, "ends"),
        _headers(columns.headers, columns.header_ends, 0),
        columns.groups,
        columns.dedup,
    )


def unpack_run(run: api.Delivered) -> Messages:
    """The messages of a leased run, in order of their offsets; none when the body is `lost`.

    Raises:
        InvalidArgument: offsets that do not fit their column.
        RemoteProtocolError: headers that are not a plain CBOR map.
    """
    return Messages(
        _slices(run.payloads, run.ends, run.base, "ends"),
        _headers(run.headers, run.header_ends, run.header_base),
        None if run.group is None else (run.group,) * run.count,
    )


def encode_headers(headers: Headers | None) -> bytes:
    """One message's headers as its stretch of the column: empty for None and for no headers.

    Raises:
        InvalidArgument: a key that is not text, or a value that is not plain.
    """
    if not headers:
        return b""
    plain = dict(headers)
    check_plain(plain, "headers")
    try:
        return encode(plain)
    except (CBORError, ValueError, TypeError, OverflowError) as error:
        raise InvalidArgument(f"headers cannot be encoded: {error}", field="headers") from error


def decode_headers(stretch: bytes, decoder: Decoder | None = None) -> Headers | None:
    """One message's headers from its stretch of the column, None when it has none.

    Raises:
        RemoteProtocolError: not a plain CBOR map with text keys.
    """
    if not stretch:
        return None
    headers = (decoder or Decoder()).decode(stretch)
    if type(headers) is not dict:
        raise RemoteProtocolError("a message's headers are a CBOR map")
    try:
        check_plain(headers, "headers")
    except RequestError as error:
        raise RemoteProtocolError(error.text, **error.details) from None
    return headers


def _ends(stretches: Iterable[bytes], field: str) -> bytes:
    ends = [*accumulate(map(len, stretches))]
    try:
        return struct.pack(f"<{len(ends)}I", *ends)
    except struct.error:
        raise InvalidArgument(f"{field} has {ends[-1]} bytes, beyond 32 bits", field=field) from None


def _keys(keys: Sequence[str | None] | None) -> tuple[str | None, ...] | None:
    if keys is None or all(key is None for key in keys):
        return None
    return tuple(keys)


def _slices(column: bytes, ends: bytes, base: int, field: str) -> list[bytes]:
    if len(ends) == 4 and not base:
        if int.from_bytes(ends, "little") == len(column):
            return [column]
    numbers = fields.rising(ends, base, len(column), field)
    if not base:
        return [column[first:last] for first, last in pairwise((0, *numbers))]
    return [column[first - base : last - base] for first, last in pairwise((base, *numbers))]


def _headers(column: bytes | None, ends: bytes | None, base: int) -> list[Headers | None] | None:
    if column is None or ends is None:
        return None
    decoder = Decoder()
    return [decode_headers(stretch, decoder) for stretch in _slices(column, ends, base, "header_ends")]
