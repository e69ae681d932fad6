"""The requests nearly all traffic consists of, read by their bytes instead of through the decoder.

`read_common(body)` gives exactly what `requests.decode_request` would, or None: then the request is another one,
is written in other words, or is wrong, and the long way reads it or says what is wrong. It refuses nothing
itself, so there is one place that judges. Known are, with ids of one to four bytes behind their heads:

    push    of up to 64 KiB, no headers, groups or dedup ids, priority 0, nothing set
    poll    byte for byte what `remember` was shown before, but for its envelope
    ack     of one receipt, whole

A test holds every frame against the long way.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from walrq import api
from walrq.errors import RequestError
from walrq.ids import RECEIPT_BYTES
from walrq.limits import BATCH_BYTES_MAX, MESSAGE_BYTES_LIMIT
from walrq.protocol import fields
from walrq.protocol.codec import UINT32_LE_TAG
from walrq.protocol.requests import Incoming

_NULL: Final = 0xF6
# Head of an integer -> format of what follows it.
_FORMS: Final = {0x18: "B", 0x19: "H", 0x1A: "I"}
# Head of the id -> where it ends: array head, operation and its own head are in front of it.
_ID_ENDS: Final = {head: 3 + struct.calcsize(form) for head, form in _FORMS.items()}


def _envelope(id_form: str, form: str) -> tuple[Callable[[bytes], tuple[int, int, int, int]], int]:
    """(unpack id, sequence, head of lowest and lowest; where the fields begin)."""
    layout = struct.Struct(f">3x{id_form}x{form}B{form}")
    return layout.unpack_from, layout.size


# Heads of id and sequence -> the envelope. `lowest` is mostly as long as the sequence.
_ENVELOPES: Final = {
    (id_head, head): _envelope(id_form, form) for id_head, id_form in _FORMS.items() for head, form in _FORMS.items()
}


# Bytes behind the payloads of one message: ends, headers, header_ends, groups, dedup, priority, delay, at, ttl,
# attempts.
_ONE_MESSAGE: Final = b"\xf6\xf6\xf6\xf6\xf6\x00\xf6\xf6\xf6\xf6"
_MANY: Final = bytes((0xD8, UINT32_LE_TAG))
_MANY_END: Final = _ONE_MESSAGE[1:]
_ENDS_AT: Final = len(_MANY)
_SHORT_MAX: Final = 0xFFFF
assert _SHORT_MAX <= min(MESSAGE_BYTES_LIMIT, BATCH_BYTES_MAX)

# In front of the receipt: kind ACK, array(1), array(2), byte string. Behind it: ranges, delay, error type, text.
_ACK: Final = bytes((api.SettleKind.ACK, 0x81, 0x82, 0x40 + RECEIPT_BYTES))
_ACK_END: Final = b"\xf6\xf6\xf6\xf6"
_ACK_KIND: Final = api.SettleKind.ACK

# Both are emptied when full, like the names in `fields.py`: at most 1 MiB together.
_KEPT_MAX: Final = 2048
_POLL_BYTES_KEPT_MAX: Final = 256
_names: dict[bytes, str] = {}
_polls: dict[bytes, api.Poll] = {}


def _name(raw: bytes) -> str:
    """The queue name in `raw`.

    Raises:
        RequestError, UnicodeDecodeError: it is none.
    """
    name = fields.queue_name(raw.decode())
    if len(_names) >= _KEPT_MAX:
        _names.clear()
    _names[raw] = name
    return name


def _octets(body: bytes, at: int) -> tuple[int, int]:
    """(start, end) of the byte string whose head is at `at`; the end lies behind the body if it is no short
    one.
    """
    head = body[at]
    if head == 0x58:
        return at + 2, at + 2 + body[at + 1]
    if head == 0x59:
        return at + 3, at + 3 + (body[at + 1] << 8 | body[at + 2])
    if 0x40 <= head < 0x58:
        return at + 1, at + 1 + head - 0x40
    return at, len(body) + 1


def _read_push(body: bytes, at: int) -> api.Push | None:
    size = body[at] - 0x60
    if not 0 < size < 24:
        return None
    at += 1
    raw = body[at : at + size]
    at += size
    queue = _names.get(raw) or _name(raw)
    if body[at] == 0x58:
        start = at + 2
        end = start + body[at + 1]
    else:
        start, end = _octets(body, at)
    rest = body[end:]
    if rest == _ONE_MESSAGE:
        return api.Push(queue, api.Columns(body[start:end], (end - start).to_bytes(4, "little")))
    if rest.startswith(_MANY) and rest.endswith(_MANY_END):
        first, last = _octets(rest, _ENDS_AT)
        if last + len(_MANY_END) == len(rest):
            # Together below the limit of one message, so no message can be beyond it.
            ends = rest[first:last]
            if len(ends) & 3 or fields.batch_count(ends) == 1:
                return None
            fields.rising(ends, 0, end - start, "ends")
            return api.Push(queue, api.Columns(body[start:end], ends))
    return None


def _read_poll(body: bytes, at: int) -> api.Poll | None:
    return _polls.get(body[at:])


def _read_settle(body: bytes, at: int) -> api.Settle | None:
    size = body[at] - 0x60
    if not 0 < size < 24:
        return None
    at += 1
    raw = body[at : at + size]
    at += size
    queue = _names.get(raw) or _name(raw)
    start = at + len(_ACK)
    end = start + RECEIPT_BYTES
    if body[at:start] == _ACK and body[end:] == _ACK_END:
        return api.Settle(queue, _ACK_KIND, (api.Item(body[start:end]),))
    return None


# Array head and operation -> reader of the fields.
_READERS: Final[dict[bytes, Callable[[bytes, int], api.Push | api.Poll | api.Settle | None]]] = {
    b"\x90\x01": _read_push,
    b"\x89\x02": _read_poll,
    b"\x8a\x03": _read_settle,
}


def _fields_at(body: bytes) -> int:
    """Where the fields of a checked request begin.

    Raises:
        KeyError: its envelope is not among those known here.
    """
    at = _ID_ENDS[body[2]]
    head = body[at]
    if head == _NULL:
        return at + 2
    unpack, at = _ENVELOPES[body[2], head]
    if unpack(body)[2] != head:
        raise KeyError(head)
    return at


def read_common(body: bytes) -> Incoming | None:
    """The checked request in one frame body, or None: it has to go the long way."""
    read = _READERS.get(body[:2])
    if read is None:
        return None
    sequence: int | None
    lowest: int | None
    try:
        at = _ID_ENDS[body[2]]
        head = body[at]
        if head == _NULL:
            if body[at + 1] != _NULL:
                return None
            identifier = int.from_bytes(body[3:at], "big")
            sequence = lowest = None
            at += 2
        else:
            unpack, at = _ENVELOPES[body[2], head]
            identifier, sequence, lowest_head, lowest = unpack(body)
            if lowest_head != head or not 0 < lowest <= sequence:
                return None
        request = read(body, at)
    except (KeyError, IndexError, struct.error, RequestError, UnicodeDecodeError):
        # Other widths, cut short, or wrong: the long way says so.
        return None
    if request is None or not identifier:
        return None
    return Incoming(identifier, sequence, lowest, request, len(body))


def remember(body: bytes, poll: api.Poll) -> None:
    """Know this poll, read the long way from `body`, when it comes again."""
    try:
        at = _fields_at(body)
    except KeyError:
        return
    if len(body) - at <= _POLL_BYTES_KEPT_MAX and body[:2] == b"\x89\x02":
        if len(_polls) >= _KEPT_MAX:
            _polls.clear()
        _polls[body[at:]] = poll
