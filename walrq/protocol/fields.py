"""Checks of single fields: a decoded value in, the same value (or its api form) out, or an error naming the
field.

The error says what came, what is allowed, and carries `field` and `limit` for programs. Nothing here walks
the messages of a batch one by one in Python: columns are judged by whole-column operations.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import sub
from typing import Any, Final, NoReturn

from cbor2 import CBORTag

from walrq.errors import BatchTooLarge, DelayTooLong, InvalidArgument, MessageTooLarge
from walrq.ids import RECEIPT_BYTES, check_queue_name
from walrq.limits import (
    BATCH_MESSAGES_MAX,
    DELAY_MS_MAX,
    KEY_BYTES_MAX,
    RAFT_NODE_ID_BYTES_MAX,
)

UINT64_MAX: Final = (1 << 64) - 1
ID_BYTES: Final = 16

# Names found good lately, so that the common request does not encode its queue's name again. Emptied when
# full: a peer that sends ever new names costs itself the check, and this node at most 1 MiB.
_GOOD_NAMES_MAX: Final = 4096
_good_names: set[str] = set()


def _kind(value: object) -> str:
    if value is None:
        return "null"
    name = type(value).__name__
    return {
        "str": "text",
        "list": "array",
        "tuple": "array",
        "dict": "map",
        "int": "integer",
        "bool": "boolean",
    }.get(name, name)


def refuse(field: str, value: object, wanted: str, **details: Any) -> NoReturn:
    """Raise InvalidArgument: `field` is of the wrong type."""
    raise InvalidArgument(f"{field} is {_kind(value)}, not {wanted}", field=field, **details)


def uint(value: object, field: str, most: int, least: int = 0) -> int:
    """An integer from `least` to `most`."""
    if type(value) is not int:
        refuse(field, value, f"an integer from {least} to {most}")
    if not least <= value <= most:
        raise InvalidArgument(
            f"{field} is {value}, allowed are {least} to {most}",
            field=field,
            limit=most if value > most else least,
        )
    return value


def optional_uint(value: object, field: str, most: int, least: int = 0) -> int | None:
    """None, or an integer from `least` to `most`."""
    return None if value is None else uint(value, field, most, least)


def flag(value: object, field: str) -> bool:
    """True or False."""
    if type(value) is not bool:
        refuse(field, value, "a boolean")
    return value


def text(value: object, field: str, bytes_max: int) -> str:
    """UTF-8 text of at most `bytes_max` bytes (the decoder refused what is not UTF-8)."""
    if type(value) is not str:
        refuse(field, value, "text")
    if len(value) > bytes_max or (not value.isascii() and len(value.encode()) > bytes_max):
        raise InvalidArgument(
            f"{field} has {len(value.encode())} bytes, at most {bytes_max} are allowed",
            field=field,
            limit=bytes_max,
        )
    return value


def optional_text(value: object, field: str, bytes_max: int) -> str | None:
    """None, or UTF-8 text of at most `bytes_max` bytes."""
    return None if value is None else text(value, field, bytes_max)


def optional_key(value: object, field: str) -> str | None:
    """None, or a group key or deduplication id: text of 1 to KEY_BYTES_MAX bytes."""
    if value is None:
        return None
    if not text(value, field, KEY_BYTES_MAX):
        raise InvalidArgument(f"{field} is empty", field=field, limit=1)
    return value  # type: ignore[return-value]  # text() raised unless it is a str


def node_name(value: object, field: str = "node") -> str:
    """A node's name: text of 1 to RAFT_NODE_ID_BYTES_MAX bytes."""
    if not text(value, field, RAFT_NODE_ID_BYTES_MAX):
        raise InvalidArgument(f"{field} is empty", field=field, limit=1)
    return value  # type: ignore[return-value]  # text() raised unless it is a str


def optional_node_name(value: object, field: str) -> str | None:
    """None, or a node's name."""
    return None if value is None else node_name(value, field)


def octets(value: object, field: str) -> bytes:
    """A byte string."""
    if type(value) is not bytes:
        refuse(field, value, "a byte string")
    return value


def queue_name(value: object, field: str = "queue") -> str:
    """A legal queue name.

    Raises:
        InvalidQueueName: see `ids.check_queue_name`.
    """
    if type(value) is str and value in _good_names:
        return value
    if type(value) is not str:
        refuse(field, value, "text")
    check_queue_name(value)
    if len(_good_names) >= _GOOD_NAMES_MAX:
        _good_names.clear()
    _good_names.add(value)
    return value


def array(value: object, field: str, most: int, least: int = 0) -> Sequence[Any]:
    """An array of `least` to `most` items."""
    if not isinstance(value, list | tuple):
        refuse(field, value, "an array")
    if not least <= len(value) <= most:
        raise InvalidArgument(f"{field} has {len(value)} items, allowed are {least} to {most}", field=field, limit=most)
    return value


def tuple_of(value: object, field: str, size: int) -> Sequence[Any]:
    """An array of exactly `size` items."""
    if not isinstance(value, list | tuple):
        refuse(field, value, "an array")
    if len(value) != size:
        raise InvalidArgument(f"{field} has {len(value)} items, not {size}", field=field)
    return value


def message_id(value: object, field: str = "id") -> int:
    """A message id: 16 bytes, big-endian."""
    if type(value) is not bytes or len(value) != ID_BYTES:
        refuse(field, value, f"a byte string of {ID_BYTES} bytes")
    return int.from_bytes(value, "big")


def message_ids(value: object, field: str, most: int, least: int = 0) -> tuple[int, ...]:
    """An array of message ids."""
    return tuple([message_id(item, field) for item in array(value, field, most, least)])


def id_bytes(identifier: int) -> bytes:
    """The wire form of a message id."""
    return identifier.to_bytes(ID_BYTES, "big")


def receipt(value: object, field: str = "receipt") -> bytes:
    """The 20 bytes of a receipt; whether this cluster issued it is not judged here."""
    if type(value) is not bytes or len(value) != RECEIPT_BYTES:
        refuse(field, value, f"a byte string of {RECEIPT_BYTES} bytes")
    return value


def delay(value: object, field: str = "delay_ms") -> int | None:
    """None, or ms from 0 to 30 days.

    Raises:
        DelayTooLong: above 30 days.
    """
    if value is None:
        return None
    if type(value) is not int or value < 0:
        uint(value, field, DELAY_MS_MAX)
    elif value > DELAY_MS_MAX:
        raise DelayTooLong(
            f"{field} is {value}, at most {DELAY_MS_MAX} ms (30 days) are allowed",
            field=field,
            limit=DELAY_MS_MAX,
        )
    return value  # type: ignore[return-value]  # uint() raised unless it is an int


def offsets(value: object, field: str, end: int) -> bytes:
    """The bytes of a tag-70 typed array (unsigned 32-bit little-endian).

    Null stands for the one offset `end`, where the column ends: the column of a single message. It spares the
    commonest small requests the tag, which costs a third of their decoding.
    """
    if value is None:
        return end.to_bytes(4, "little")
    # The decoder lets no other tag than 70 through.
    if type(value) is not CBORTag:
        refuse(field, value, "a typed array (tag 70)")
    content = value.value
    if type(content) is not bytes or len(content) & 3:
        raise InvalidArgument(f"{field} is not a byte string of whole 32-bit numbers", field=field)
    return content


def rising(ends: bytes, base: int, size: int, field: str) -> tuple[int, ...]:
    """The end offsets as numbers, after the check that they rise from `base` to exactly `base + size`.

    Raises:
        InvalidArgument: one offset is below its predecessor, or the last is not the end of the column.
    """
    numbers = struct.unpack(f"<{len(ends) >> 2}I", ends)
    if numbers:
        if numbers[-1] != base + size:
            raise InvalidArgument(
                f"{field} ends at {numbers[-1]}, its column at {base + size}", field=field, limit=base + size
            )
        if numbers[0] < base or list(numbers) != sorted(numbers):
            raise InvalidArgument(f"{field} are not in rising order", field=field)
    elif size:
        raise InvalidArgument(f"{field} is empty, its column has {size} bytes", field=field)
    return numbers


def batch_ends(ends: bytes, size: int, each_max: int, field: str) -> None:
    """Check a column of a pushed batch: offsets rise, end at `size`, and no stretch is longer than
    `each_max`.

    Raises:
        InvalidArgument, MessageTooLarge.
    """
    if len(ends) == 4:
        if int.from_bytes(ends, "little") != size:
            rising(ends, 0, size, field)
        longest = size
    else:
        numbers = rising(ends, 0, size, field)
        if size <= each_max:
            return
        longest = max(map(sub, numbers, (0, *numbers)))
    if longest > each_max:
        what = "headers" if field == "header_ends" else "payload"
        raise MessageTooLarge(
            f"a message's {what} of {longest} bytes, at most {each_max} are allowed",
            field=field,
            limit=each_max,
        )


def batch_count(ends: bytes) -> int:
    """How many messages the end offsets name: 1 to BATCH_MESSAGES_MAX.

    Raises:
        InvalidArgument: none. BatchTooLarge: too many.
    """
    count = len(ends) >> 2
    if not count:
        raise InvalidArgument("a batch has at least 1 message", field="ends", limit=1)
    if count > BATCH_MESSAGES_MAX:
        raise BatchTooLarge(
            f"a batch of {count} messages, at most {BATCH_MESSAGES_MAX} are allowed", limit=BATCH_MESSAGES_MAX
        )
    return count


_KEY_TYPES: Final = frozenset((str, type(None)))


def keys(value: object, field: str, count: int) -> tuple[str | None, ...] | None:
    """None, or one key (text of 1 to KEY_BYTES_MAX bytes) or None per message."""
    if value is None:
        return None
    items = tuple(tuple_of(value, field, count))
    if not _KEY_TYPES.issuperset(map(type, items)):
        raise InvalidArgument(f"{field} holds something else than text and null", field=field)
    if "" in items:
        raise InvalidArgument(f"{field} holds an empty key", field=field, limit=1)
    present = [key for key in items if key is not None]
    longest = max(map(len, present), default=0)
    if longest <= KEY_BYTES_MAX and not "".join(present).isascii():
        longest = max([len(key.encode()) for key in present])
    if longest > KEY_BYTES_MAX:
        raise InvalidArgument(f"{field} holds a key beyond {KEY_BYTES_MAX} bytes", field=field, limit=KEY_BYTES_MAX)
    return items
