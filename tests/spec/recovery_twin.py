"""The real recovery of a segment, over bytes made of a state of spec/Wal.tla."""

from __future__ import annotations

from walrq.formal.values import Function
from walrq.storage import record
from walrq.storage.findings import Verdict
from walrq.storage.recovery import scan
from walrq.storage.segment import RECORDS_START, SLOT, SLOT_OFFSETS, Header, Identity, Slot, promise_of

INCARNATION = 1
BODY = b"a record's body"
ROOM_BYTES = 4096


def segment_of(state: Function) -> tuple[bytes, list[int]]:
    """The bytes of a segment in that state, and the offset of every place, the end behind the last included."""
    seed = record.seed_of(INCARNATION)
    image = bytearray(RECORDS_START)
    offsets = [RECORDS_START]
    prev = seed
    for index, found in enumerate(state["file"], start=1):
        crc, head, padding = record.encode(seed, prev, 1, 0, 1, index, BODY)
        data = bytearray(head + BODY + padding)
        if found == "bad":
            data[record.HEADER_BYTES] ^= 1
        image += data if found != "none" else bytes(len(data))
        offsets.append(len(image))
        prev = crc
    for position, slot in zip(SLOT_OFFSETS, state["slots"], strict=True):
        if slot["end"] == -1:
            image[position : position + SLOT.size] = b"\xff" * SLOT.size
        else:
            encoded = Slot(INCARNATION, 1, slot["seq"], offsets[slot["end"]], slot["end"], False).encode()
            image[position : position + SLOT.size] = encoded
    return bytes(image) + bytes(ROOM_BYTES), offsets


def recover(state: Function) -> Function:
    """What the code makes of that state: the variables served, damaged and suspect."""
    image, _ = segment_of(state)
    slots = [Slot.decode(image[offset : offset + SLOT.size]) for offset in SLOT_OFFSETS]
    header = Header(Identity(b"\0" * 16, INCARNATION, 1, len(image)), promise_of(slots, 1), True)
    result = scan(lambda size, offset: image[offset : offset + size], "segment", header)
    served = frozenset(index for index, offset in enumerate(result.chain.offsets, start=1) if offset)

    def lost(verdict: Verdict) -> frozenset[int]:
        return frozenset(index for each in result.findings if each.verdict is verdict for index in each.lost)

    return Function(served=served, damaged=lost(Verdict.DAMAGED), suspect=lost(Verdict.SUSPECT))
