"""Identifiers: computed from what they name, never drawn.

- A *queue uid* is (shard, incarnation): a queue deleted and created again has another uid.
- A *message id* is a ULID: 48 bits of the entry's wall stamp in ms, then shard (5), incarnation (27), sequence (48).
  Consecutive in a batch and rising within a queue, so that id + k names the k-th message of a batch.
- A *receipt* names one lease of one run: (uid, lease number) and a check keyed by the cluster's secret.
- A *task number* counts leases of the whole cluster, for clients that know nothing longer; its receipt has the uid 0,
  which no queue has, and no check: whoever may settle a queue's messages may name any of its tasks.
- A *receipt handle* is the string form of (receipt, offset): what people, HTTP and RESP carry.

Pure: no clock, no randomness.
"""

from __future__ import annotations

import binascii
import functools
import hashlib
import struct
from typing import Final

from walrq.errors import InvalidQueueName, ReceiptInvalid
from walrq.limits import QUEUE_NAME_BYTES_MAX, SHARDS

_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_MASK64: Final = (1 << 64) - 1

SEQUENCE_BITS: Final = 48
INCARNATION_BITS: Final = 27
SHARD_BITS: Final = 5
SEQUENCE_MAX: Final = (1 << SEQUENCE_BITS) - 1
INCARNATION_MAX: Final = (1 << INCARNATION_BITS) - 1
_UID_BITS: Final = SHARD_BITS + INCARNATION_BITS
_TIME_SHIFT: Final = _UID_BITS + SEQUENCE_BITS

# uid, lease number, check: 4 + 8 + 8 bytes.
RECEIPT_BYTES: Final = 20
_RECEIPT: Final = struct.Struct(">IQ")
_HANDLE: Final = struct.Struct(">20sI")
_CHECK_BYTES: Final = 8
# Incarnations count from 1, so no queue has it.
TASKS_UID: Final = 0
TASK_MAX: Final = (1 << 64) - 1
_TASK_HEAD: Final = bytes(4)
_TASK_END: Final = bytes(_CHECK_BYTES)

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_DECODE: Final = {c: i for i, c in enumerate(_ALPHABET)}
# Two characters at a time: an id is formatted for every push that returns.
_PAIRS: Final = [first + second for first in _ALPHABET for second in _ALPHABET]
_LOW_70: Final = (1 << 70) - 1


def fnv1a64(data: bytes) -> int:
    """64-bit FNV-1a of `data` (Fowler, Noll, Vo; draft-eastlake-fnv)."""
    value = _FNV_OFFSET
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & _MASK64
    return value


def shard_of(name: str) -> int:
    """The shard (0-31) that owns the queue `name`.

    64-bit FNV-1a of the UTF-8 name modulo 32. A non-empty `{tag}` in the name is hashed instead of the whole, so
    that queues with one tag share a shard.
    """
    start = name.find("{")
    if start >= 0:
        end = name.find("}", start + 1)
        if end > start + 1:
            name = name[start + 1 : end]
    return fnv1a64(name.encode("utf-8")) % SHARDS


def check_queue_name(name: object) -> str:
    """`name` when it is a legal queue name: 1-255 bytes of UTF-8 without control characters.

    Raises:
        InvalidQueueName: naming the rule that was broken.
    """
    if not isinstance(name, str):
        raise InvalidQueueName(f"queue name must be text, not {type(name).__name__}")
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidQueueName("queue name is not valid UTF-8") from None
    if not 1 <= size <= QUEUE_NAME_BYTES_MAX:
        raise InvalidQueueName(
            f"queue name has {size} bytes, allowed are 1 to {QUEUE_NAME_BYTES_MAX}", limit=QUEUE_NAME_BYTES_MAX
        )
    if not name.isprintable():
        for character in name:
            point = ord(character)
            if point < 0x20 or 0x7F <= point < 0xA0:
                raise InvalidQueueName(f"queue name contains the control character U+{point:04X}")
    return name


def make_uid(shard: int, incarnation: int) -> int:
    """The 32-bit uid of a queue's incarnation."""
    return shard << INCARNATION_BITS | incarnation


def uid_shard(uid: int) -> int:
    """The shard inside a uid."""
    return uid >> INCARNATION_BITS


def message_id(wall_ms: int, uid: int, sequence: int) -> int:
    """The 128-bit id of the message with this sequence (ms since 1970 of the push's stamp)."""
    return wall_ms << _TIME_SHIFT | uid << SEQUENCE_BITS | sequence


def id_parts(identifier: int) -> tuple[int, int, int]:
    """(wall_ms, uid, sequence) of a message id."""
    return (
        identifier >> _TIME_SHIFT,
        identifier >> SEQUENCE_BITS & ((1 << _UID_BITS) - 1),
        identifier & SEQUENCE_MAX,
    )


def format_id(identifier: int) -> str:
    """The 26-character ULID text (Crockford base 32) of a 128-bit id."""
    two = _PAIRS
    high, low = identifier >> 70, identifier & _LOW_70
    return (
        f"{two[high >> 50]}{two[high >> 40 & 1023]}{two[high >> 30 & 1023]}{two[high >> 20 & 1023]}"
        f"{two[high >> 10 & 1023]}{two[high & 1023]}{two[low >> 60]}{two[low >> 50 & 1023]}{two[low >> 40 & 1023]}"
        f"{two[low >> 30 & 1023]}{two[low >> 20 & 1023]}{two[low >> 10 & 1023]}{two[low & 1023]}"
    )


def parse_id(text: str) -> int:
    """The 128-bit id of a ULID text.

    Raises:
        ValueError: not 26 characters of Crockford base 32, or beyond 128 bits.
    """
    if len(text) != 26:
        raise ValueError(f"a message id has 26 characters, not {len(text)}")
    value = 0
    for character in text.upper():
        digit = _DECODE.get(character)
        if digit is None:
            raise ValueError(f"a message id has no character {character!r}")
        value = value << 5 | digit
    if value >> 128:
        raise ValueError("a message id starts with 0-7")
    return value


@functools.lru_cache(maxsize=4)
def _keyed(secret: bytes) -> hashlib.blake2b:
    """The hash with its key taken in: copying it costs less than keying it anew for every receipt."""
    return hashlib.blake2b(digest_size=_CHECK_BYTES, key=secret)


def _check(secret: bytes, head: bytes) -> bytes:
    hasher = _keyed(secret).copy()
    hasher.update(head)
    return hasher.digest()


def make_receipt(secret: bytes, uid: int, lease: int) -> bytes:
    """The 20-byte receipt of lease number `lease` in queue `uid`."""
    head = _RECEIPT.pack(uid, lease)
    return head + _check(secret, head)


def open_receipt(secret: bytes, receipt: bytes) -> tuple[int, int]:
    """(uid, lease number) of a receipt, after its check.

    The check is no secret-dependent branch worth timing: it guards against mistakes and fabricated handles, while
    access is decided by tokens.

    Raises:
        ReceiptInvalid: wrong length, or a check that this cluster's secret does not give.
    """
    if len(receipt) != RECEIPT_BYTES:
        raise ReceiptInvalid(f"a receipt has {RECEIPT_BYTES} bytes, not {len(receipt)}")
    head = receipt[:12]
    if receipt.startswith(_TASK_HEAD):
        if receipt[12:] != _TASK_END:
            raise ReceiptInvalid("the receipt of a task ends with zeros")
        return TASKS_UID, int.from_bytes(head[4:], "big")
    if _check(secret, head) != receipt[12:]:
        raise ReceiptInvalid("this cluster never issued that receipt")
    uid, lease = _RECEIPT.unpack(head)
    return uid, lease


def task_receipt(task: int) -> bytes:
    """The 20-byte receipt of task number `task`; of 0, which is no task, for a message that is nobody's any more."""
    return _RECEIPT.pack(TASKS_UID, task) + _TASK_END


def task_of(receipt: bytes) -> int | None:
    """The task number in a receipt; None when it is another lease's."""
    if receipt.startswith(_TASK_HEAD):
        return int.from_bytes(receipt[4:12], "big")
    return None


def make_handle(receipt: bytes, offset: int) -> str:
    """The text form of message `offset` (from 0, within the receipt's run): 56 hexadecimal characters.

    A CRC-32 over receipt and offset closes it, so that a handle with any character changed is refused rather than
    naming a sibling; the receipt's own keyed check guards against invention.
    """
    body = _HANDLE.pack(receipt, offset)
    return (body + struct.pack(">I", binascii.crc32(body))).hex()


def parse_handle(handle: str) -> tuple[bytes, int]:
    """(receipt, offset) of a receipt handle.

    Raises:
        ReceiptInvalid: not 56 hexadecimal characters, or a wrong checksum.
    """
    try:
        raw = bytes.fromhex(handle)
    except ValueError:
        raise ReceiptInvalid("a receipt handle is hexadecimal text") from None
    if len(handle) != 56 or len(raw) != 28:
        raise ReceiptInvalid(f"a receipt handle has 56 characters, not {len(handle)}")
    if struct.unpack(">I", raw[24:])[0] != binascii.crc32(raw[:24]):
        raise ReceiptInvalid("the receipt handle is damaged")
    receipt, offset = _HANDLE.unpack(raw[:24])
    return receipt, offset
