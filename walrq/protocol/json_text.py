"""JSON text and the plain values in it, strictly and within bounds.

What a library lets pass is refused here: a key that comes twice (the later would win), `NaN` and infinities, nests
deeper than JSON_DEPTH_MAX, more than JSON_ITEMS_MAX values (a few bytes of text each, a hundred of memory), text that
is no UTF-8, and half a surrogate pair, which no UTF-8 could carry on.

JSON has no byte strings. Where one can be anything (headers, settings, details) it is written as the map
`{"$base64": "..."}`, which is therefore read as bytes; a message's payload has fields of its own (`put_bytes`).
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from walrq.errors import InvalidArgument, RemoteProtocolError, RequestError
from walrq.limits import FRAME_BYTES_MAX, JSON_DEPTH_MAX, JSON_ITEMS_MAX
from walrq.protocol.codec import Decoder, check_plain
from walrq.protocol.columns import decode_headers

BASE64_KEY: Final = "$base64"

_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
# Escapes make six bytes of one: payloads with them travel as base64, so that a reply stays about as large as what it
# carries.
_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")


class _NotStrict(ValueError):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _NotStrict(f"the key {key[:80]!r} comes twice in one object")
            seen.add(key)
    return made


def _constant(name: str) -> NoReturn:
    raise _NotStrict(f"{name} is no JSON number")


_decode: Final = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant).decode
_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def read_json(text: str | bytes, bytes_max: int = FRAME_BYTES_MAX) -> Any:
    """The one JSON value in `text`.

    Raises:
        RemoteProtocolError: not JSON, not strictly, or beyond the limits; the text says where.
    """
    size = len(text)
    if size > bytes_max:
        raise RemoteProtocolError(f"JSON of {size} bytes, at most {bytes_max} are allowed", limit=bytes_max)
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"not UTF-8 at byte {error.start}: JSON is UTF-8 text") from None
    if size > JSON_ITEMS_MAX:
        _count_items(text)
    try:
        value = _decode(text)
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        raise RemoteProtocolError(f"not JSON: {error.msg} at character {error.pos}", position=error.pos) from None
    except ValueError as error:
        # A key twice, NaN, or a number of more digits than are converted.
        raise RemoteProtocolError(f"not JSON as it is read here: {str(error)[:200]}") from None
    _check_depth(value)
    return value


def _too_deep() -> RemoteProtocolError:
    return RemoteProtocolError(f"JSON nested deeper than {JSON_DEPTH_MAX} levels", limit=JSON_DEPTH_MAX)


def _count_items(text: str) -> None:
    """Refuse text of more values than any request has: every value but the first follows one of these signs."""
    if sum(map(text.count, ",[{:")) > JSON_ITEMS_MAX:
        # Most of them may be in strings, which is fine.
        bare = _STRING.sub("", text)
        if sum(map(bare.count, ",[{:")) > JSON_ITEMS_MAX:
            raise RemoteProtocolError(f"JSON with more than {JSON_ITEMS_MAX} values", limit=JSON_ITEMS_MAX)


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(JSON_DEPTH_MAX):
        nested: list[Any] = []
        for item in level:
            if type(item) is dict:
                nested.extend(item.values())
            elif type(item) is list:
                nested.extend(item)
        if not nested:
            return
        level = nested
    if any(type(item) in (dict, list) for item in level):
        raise _too_deep()


def write_json(value: object) -> str:
    """JSON text of plain values, without spaces, every character but the ones JSON forbids as it is."""
    return _encode(value)


# --- bytes --------------------------------------------------------------------------------------------------
def from_base64(value: object, field: str) -> bytes:
    """The bytes of base64 text (RFC 4648, padded, the standard alphabet).

    Raises:
        InvalidArgument: not text, or not base64.
    """
    if type(value) is not str:
        raise InvalidArgument(f"{field} is not base64 text", field=field)
    try:
        return binascii.a2b_base64(value.encode("ascii"), strict_mode=True) if value else b""
    except (UnicodeEncodeError, ValueError):
        raise InvalidArgument(f"{field} is not base64 (RFC 4648, with padding)", field=field) from None


def to_base64(data: bytes) -> str:
    """Base64 text of `data`."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def from_text(value: object, field: str) -> bytes:
    """The UTF-8 bytes of text.

    Raises:
        InvalidArgument: not text, or with half a surrogate pair.
    """
    if type(value) is not str:
        raise InvalidArgument(f"{field} is not text; bytes are given as {field}_base64", field=field)
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{field} holds half a surrogate pair, which is no text", field=field) from None


def put_bytes(into: dict[str, Any], field: str, data: bytes | None) -> None:
    """`field` as text where `data` is UTF-8 without control characters, else `field`_base64; None as null."""
    if data is None:
        into[field] = None
        return
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or _CONTROL.search(text):
        into[field + "_base64"] = to_base64(data)
    else:
        into[field] = text


# --- open-ended maps ----------------------------------------------------------------------------------------
def plain_from_json(value: object, field: str) -> Any:
    """`value` with each `{"$base64": ...}` as bytes; bounded by what `read_json` lets through.

    Raises:
        InvalidArgument: text that is none, base64 that is none, a number that is not finite.
    """
    check_plain(value, field)
    return _read_plain(value, field)


def _read_plain(value: Any, field: str) -> Any:
    if type(value) is str:
        from_text(value, field)
    elif type(value) is list:
        return [_read_plain(each, field) for each in value]
    elif type(value) is dict:
        if BASE64_KEY in value:
            if len(value) != 1:
                raise InvalidArgument(f"{field}: {BASE64_KEY} stands alone in its object", field=field)
            return from_base64(value[BASE64_KEY], f"{field}.{BASE64_KEY}")
        for key in value:
            from_text(key, field)
        return {key: _read_plain(each, field) for key, each in value.items()}
    return value


def plain_to_json(value: Any) -> Any:
    """Plain values (`codec.check_plain`) with each byte string as `{"$base64": ...}`."""
    if type(value) is bytes:
        return {BASE64_KEY: to_base64(value)}
    if isinstance(value, list | tuple):
        return [plain_to_json(each) for each in value]
    if isinstance(value, Mapping):
        return {key: plain_to_json(each) for key, each in value.items()}
    return value


def put_headers(into: dict[str, Any], stretch: bytes | None, decoder: Decoder | None = None) -> None:
    """A message's headers as `headers`; `headers_base64` where they are not the CBOR map that they should be."""
    if not stretch:
        into["headers"] = None
        return
    try:
        into["headers"] = plain_to_json(decode_headers(stretch, decoder))
    except (RemoteProtocolError, RequestError):
        into["headers_base64"] = to_base64(stretch)
