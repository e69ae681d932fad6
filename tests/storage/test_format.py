"""The bytes on disk, read by a second program written from docs/storage-format.md alone.

The reader shares nothing with walrq.storage, so a change of the format that forgets the page, the version or older
directories is seen here.
"""

from __future__ import annotations

import hashlib
import struct

import cbor2

from tests.storage.crash import config
from walrq.storage.hard_state import HardState
from walrq.storage.record import Record, Window, seed_of, verify
from walrq.storage.segment import Identity, Slot
from walrq.storage.storage import Storage
from walrq.testing.disk import SimDisk


def crc32c(data: bytes, start: int = 0) -> int:
    """CRC-32C bit by bit, reflected polynomial 0x82F63B78."""
    value = start ^ 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def number(data: bytes, offset: int, size: int) -> int:
    """A little-endian number."""
    return int.from_bytes(data[offset : offset + size], "little")


def entries_of(data: bytes, uuid: bytes, first_index: int) -> list[Record]:
    """The entries of one segment file, by the page."""
    assert data[:8] == b"WALRQSEG"
    assert number(data, 8, 4) == 1
    assert number(data, 12, 4) == crc32c(data[:12] + bytes(4) + data[16:56])
    assert data[16:32] == uuid
    assert number(data, 40, 8) == first_index
    assert number(data, 48, 8) == len(data)
    incarnation = data[32:40]
    slots = [data[offset : offset + 48] for offset in (4096, 8192)]
    for slot in slots:
        assert number(slot, 0, 4) == crc32c(slot[4:])
        assert slot[8:16] == incarnation
        assert number(slot, 16, 8) == first_index
    newer = max(slots, key=lambda slot: number(slot, 24, 8))
    assert slots.index(newer) == number(newer, 24, 8) % 2
    entries, offset, index = [], 12288, first_index - 1
    seed = prev = crc32c(incarnation)
    while offset < number(newer, 32, 8):
        crc, length, before, kind, flags, zero, term, own = struct.unpack_from("<IIIBBHQQ", data, offset)
        end = offset + 32 + length + -length % 8
        assert crc == crc32c(data[offset + 4 : end], seed)
        assert (before, zero) == (prev, 0)
        assert own == index + (1 - flags)
        body = data[offset + 32 : offset + 32 + length]
        if flags == 0:
            index = own
            entries.append(Record(own, term, kind, body))
        else:
            assert (flags, kind, length) == (1, 0, 8)
        prev, offset = crc, end
    assert number(newer, 40, 8) == index
    return entries


def test_the_log_is_as_the_page_says() -> None:
    """Two segments, a cut with its fence, every field."""
    disk = SimDisk()
    storage = Storage.open(disk, config())
    records = [Record(i, 1 + i // 3, i, bytes([i]) * size) for i, size in enumerate((0, 1, 8, 700, 3400), 1)]
    storage.append_batch(records[:3])
    storage.append_batch([Record(4, 2, 4, b"cut away")])
    storage.truncate_suffix(4)
    for record in records[3:]:
        storage.append_batch([record])
    storage.close()
    first, second = [name for name in disk.list_directory("data/wal") if name.startswith("seg-")]

    assert [first, second] == [f"seg-{index:020d}.wal" for index in (1, 5)]
    uuid = storage.disk_uuid
    assert records[:4] == entries_of(disk.content(f"data/wal/{first}"), uuid, 1)
    assert records[4:] == entries_of(disk.content(f"data/wal/{second}"), uuid, 5)


def test_format_and_hard_state_are_as_the_page_says() -> None:
    """Text lines with their check; two equal pages."""
    disk = SimDisk()
    storage = Storage.open(disk, config())
    uuid = storage.disk_uuid
    storage.set_hard_state(HardState(term=7, vote="b", node_id="a", cluster_id="c", disk_uuid=uuid))
    storage.close(clean=True)
    lines = disk.content("data/FORMAT").decode("ascii")
    text = f"walrq storage 3\n{uuid.hex()}\n"
    data = disk.content("data/hard-state")
    length = number(data, 12, 4)

    assert f"{text}{crc32c(text.encode()):08x}\n" == lines
    assert data[:4096] == data[4096:8192]
    assert (8192, b"WALRQHST") == (len(data), data[:8])
    assert number(data, 8, 4) == crc32c(data[12 : 24 + length])
    assert not any(data[24 + length : 4096])
    assert {
        "boot_id": "boot-1",
        "clean": True,
        "state": {"term": 7, "vote": "b", "node_id": "a", "cluster_id": "c", "disk_uuid": uuid},
    } == cbor2.loads(data[24 : 24 + length])


def test_snapshots_are_as_the_page_says() -> None:
    """The manifest leads to every page."""
    disk = SimDisk()
    storage = Storage.open(disk, config())
    storage.append_batch([Record(1, 3, 0, b"")])
    writer = storage.begin_snapshot(1, 3, b"meta")
    pages = {b"one": b"1" * 100, b"two": b"22"}
    for key, page in pages.items():
        writer.put(key, page)
    writer.finish()
    names = [name for name in disk.list_directory("data/snapshots") if name != "reserve"]
    manifest = disk.content(f"data/snapshots/{names[0]}")
    body = manifest[24:]
    fields = cbor2.loads(body)

    assert [f"manifest-{1:020d}.mf", f"pages-{1:020d}.pg"] == names
    assert (b"WALRQMAN", 1, len(body)) == (manifest[:8], number(manifest, 8, 4), number(manifest, 16, 8))
    assert number(manifest, 12, 4) == crc32c(body, crc32c(manifest[16:24]))
    assert (1, 3, b"meta") == (fields["index"], fields["term"], fields["meta"])
    data = disk.content(f"data/snapshots/{names[1]}")
    for key, (file, offset, size, digest) in fields["pages"].items():
        assert file == 1
        assert pages[key] == data[offset : offset + size]
        assert digest == hashlib.blake2b(pages[key], digest_size=16).digest()


# Written once by version 1; never generated anew.
IDENTITY_V1 = (
    "57414c525153454701000000d390dd93000102030405060708090a0b0c0d0e0f05000000000000004d000000000000000000000400000000"
)
SLOT_V1 = "d47dac0d0100000005000000000000004d00000000000000090000000000000030300000000000004d00000000000000"
RECORD_V1 = "88e462b807000000c04d09e40300000002000000000000004d000000000000007061796c6f616400"


def test_bytes_written_by_the_first_version_are_still_read() -> None:
    """A directory outlives the program that wrote it."""
    record = bytes.fromhex(RECORD_V1)
    window = Window(lambda size, offset: record[offset : offset + size], len(record))
    found = verify(window, 0, seed_of(5))

    assert crc32c(b"123456789") == 0xE3069283
    assert Identity(bytes(range(16)), 5, 77, 1 << 26) == Identity.decode(bytes.fromhex(IDENTITY_V1))
    assert Slot(5, 77, 9, 12288 + 48, 77, True) == Slot.decode(bytes.fromhex(SLOT_V1))
    assert found is not None
    assert (3, 2, 77, 7) == (found.kind, found.term, found.index, found.body_bytes)
