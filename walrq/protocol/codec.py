"""CBOR, plain types only: one item per frame, nothing that comes alive.

A CBOR library turns tags into live objects (dates, regular expressions, shared references), lets a later
duplicate key win and ignores what follows the item. At this edge none of that exists: a decoded item consists
of int, bytes, text, bool, None, float, lists, dicts with text keys, and tag 70 (RFC 8746: unsigned 32-bit
little-endian) as `CBORTag`. Which of them may stand where is said by the tables in `requests.py` and
`replies.py`.

How each bomb ends (tests/protocol/test_codec.py holds the corpus):

    huge announced lengths      read in steps of 64 KiB at most, then "premature end"
    deep nests, tag chains      depth counted by the decoder, at most CBOR_DEPTH_MAX
    any tag but 70              refused before its content is read
    indefinite lengths          refused
    duplicate or non-text keys  refused
    millions of tiny items      frames beyond CBOR_ITEMS_MAX bytes are walked first (`_count_items`)
    trailing bytes              refused
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final, NoReturn

from cbor2 import CBORDecodeEOF, CBORDecoder, CBORError, CBORTag, dumps

from walrq.errors import InvalidArgument, RemoteProtocolError
from walrq.limits import CBOR_DEPTH_MAX, CBOR_ITEMS_MAX, FRAME_BYTES_MAX

UINT32_LE_TAG: Final = 70

encode = dumps
"""CBOR bytes of plain values."""

# The decoder reads its source in one call, which for BytesIO is no copy.
_READ_BYTES: Final = FRAME_BYTES_MAX + 1
# A decoder keeps its last source; beyond this size it is made to let go.
_KEPT_BYTES_MAX: Final = 4096
_ERROR_TEXT_MAX: Final = 200


class _ForbiddenTag(Exception):
    pass


class _Tags(dict[int, Any]):
    """Asked by the decoder for every tag, before the tagged item is read: 70 is left alone, all others
    refused.
    """

    def __missing__(self, tag: int) -> NoReturn:
        if tag == UINT32_LE_TAG:
            raise KeyError(tag)
        raise _ForbiddenTag(f"tag {tag} is not allowed here, only tag {UINT32_LE_TAG}")


_TAGS: Final = _Tags()


class Decoder:
    """Decodes one frame at a time; not for two threads at once. Making one costs as much as one decode."""

    __slots__ = ("_cbor", "_fill", "_source")

    def __init__(self) -> None:
        self._source = source = BytesIO()
        # Filled anew for every frame, without a copy: to get acquainted with a new source takes the library half
        # as long as a small frame.
        self._fill: Callable[[bytes], None] = source.__init__  # type: ignore[misc]  # the very class, no heir
        self._cbor = CBORDecoder(
            source,
            semantic_decoders=_TAGS,
            read_size=_READ_BYTES,
            max_depth=CBOR_DEPTH_MAX,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            strict_hashable_types=True,
        )

    def decode(self, frame: bytes) -> Any:
        """The one CBOR item in `frame`.

        Raises:
            RemoteProtocolError: not exactly one well-formed item of the types above, or beyond the limits.
        """
        size = len(frame)
        if size > CBOR_ITEMS_MAX:
            _count_items(frame)
        source = self._source
        self._fill(frame)
        try:
            item = self._cbor.decode()
        except (CBORError, ValueError) as error:
            # Forgets what was read ahead.
            self._fill(b"")
            self._cbor.fp = source
            raise RemoteProtocolError(_explain(error, size)) from None
        used = source.tell()
        if size > _KEPT_BYTES_MAX:
            self._fill(b"")
        if used != size:
            raise RemoteProtocolError(f"{size - used} bytes follow the CBOR item: a frame holds exactly one")
        return item


def detach(error: Exception) -> None:
    """Let go of what an error that is kept as a value would keep alive.

    Its traceback leads to frames that hold the peer's bytes and the list the error itself is in: a cycle of up to a
    frame's size, alive until the garbage collector's next full turn.
    """
    error.__traceback__ = None
    error.__context__ = None


def _explain(error: Exception, size: int) -> str:
    """One sentence about why the decoder gave up; bounded, because the library quotes the peer's data."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, _ForbiddenTag):
            return f"not plain CBOR: {cause}"
        cause = cause.__cause__
    if isinstance(error, CBORDecodeEOF):
        return f"not well-formed CBOR: the frame of {size} bytes ends inside an item"
    text = str(error)
    if len(text) > _ERROR_TEXT_MAX:
        text = text[:_ERROR_TEXT_MAX] + "..."
    return f"not plain CBOR: {text}"


_LENGTHS: Final = {
    24: struct.Struct(">B"),
    25: struct.Struct(">H"),
    26: struct.Struct(">I"),
    27: struct.Struct(">Q"),
}


def _count_items(frame: bytes) -> None:
    """Refuse a large frame with more than CBOR_ITEMS_MAX items.

    Every item takes a byte at least, so a frame can hold too many only when what remains outside of strings
    is long: the walk skips strings and stops as soon as the rest is short enough, after a few steps for a
    real batch. Malformed input is left to the decoder.

    Raises:
        RemoteProtocolError: more items than any request or reply has.
    """
    size = len(frame)
    position = 0
    items = 0
    while items + size - position > CBOR_ITEMS_MAX:
        if items > CBOR_ITEMS_MAX:
            raise RemoteProtocolError(f"a frame with more than {CBOR_ITEMS_MAX} CBOR items", limit=CBOR_ITEMS_MAX)
        if position >= size:
            return
        head = frame[position]
        position += 1
        items += 1
        kind = head >> 5
        length = head & 31
        if length >= 24:
            form = _LENGTHS.get(length)
            if form is None or position + form.size > size:
                return
            (length,) = form.unpack_from(frame, position)
            position += form.size
        if kind == 2 or kind == 3:
            position += length
        elif kind == 4 or kind == 5:
            # Announced items are as good as counted ones: the frame is refused, too many or missing.
            items_announced = length if kind == 4 else 2 * length
            if items_announced > CBOR_ITEMS_MAX:
                items = items_announced


_SCALARS: Final = frozenset((type(None), bool, int, str, bytes))
_INFINITIES: Final = (float("inf"), float("-inf"))


def check_plain(value: object, field: str) -> None:
    """Refuse anything but plain values all the way down in an open-ended map (settings, details, statistics).

    Raises:
        InvalidArgument: a key that is not text, a tag, `undefined`, a simple value, or a float that is not
        finite.
    """
    stack = [value]
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind in _SCALARS:
            continue
        if kind is float:
            if item != item or item in _INFINITIES:
                raise InvalidArgument(f"{field} holds a number that is not finite", field=field)
        elif isinstance(item, list | tuple):
            stack.extend(item)
        elif isinstance(item, dict):
            for key in item:
                if type(key) is not str:
                    raise InvalidArgument(f"{field} has a key that is not text", field=field)
            stack.extend(item.values())
        else:
            raise InvalidArgument(f"{field} holds a value of a type that is not allowed", field=field)


def packed(offsets: bytes | None) -> CBORTag | None:
    """Packed offsets as the typed array of the wire.

    None stays None, and a single offset becomes None: it can only be the end of its column.
    """
    return None if offsets is None or len(offsets) == 4 else CBORTag(UINT32_LE_TAG, offsets)
