"""The real log on a simulated disk, written and recovered, behind the actions of spec/Wal.tla.

What is written comes from the real storage: each order of persists is driven through it once, and looked at before and
after the last of its syncs. A power loss then chooses what of the writes on their way is there, and the real recovery
reads the segment that is left. Record i of the module is the entry of index i; all have the same size.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import attrs

from walrq.formal.values import Function
from walrq.storage import record
from walrq.storage.config import StorageConfig
from walrq.storage.findings import Verdict
from walrq.storage.record import Record
from walrq.storage.recovery import scan
from walrq.storage.segment import PAGE_BYTES, RECORDS_START, SLOT_OFFSETS, Identity, Slot, read_header
from walrq.storage.storage import Storage
from walrq.testing.disk import File, SimDisk, Write

BODY = b"a record's body!"
SIZE = record.stored_bytes(len(BODY))
SEGMENT_BYTES = 16 * 1024
CONFIG = StorageConfig(data_dir="data", segment_bytes=SEGMENT_BYTES, reserve_segments=0, reserve_snapshot_bytes=0)
PATH = "data/wal/seg-00000000000000000001.wal"
FATES = ("none", "ok", "bad")
NOTHING = -1


@attrs.frozen
class Written:
    """What the storage has done: the segment as it is durable, the writes that no sync covers yet, and its word."""

    durable: bytes
    unsynced: tuple[Write, ...]
    told: int


def _look(disk: SimDisk, storage: Storage) -> Written:
    file: File = disk._file(PATH)
    return Written(bytes(file.durable), tuple(file.unsynced), storage.durable_index)


@functools.cache
def written(persists: tuple[int, ...], *, synced: bool) -> Written:
    """The storage after these persists (0: the second slot alone), all synced, or before the sync of the last."""
    disk = SimDisk()
    storage = Storage.open(disk, CONFIG)
    found = _look(disk, storage)
    index = 1
    for position, number in enumerate(persists):
        is_last = position == len(persists) - 1
        seen: list[Written] = []
        disk.before_sync = lambda disk, seen=seen: seen.append(_look(disk, storage))  # type: ignore[misc]
        if number:
            storage.append_batch([Record(index + each, 1, 0, BODY) for each in range(number)])
        else:
            assert storage.settle(), "there was nothing to settle"
        disk.before_sync = None
        index += number
        # inv: group commit is one sync.
        (before,) = seen
        found = before if is_last and not synced else _look(disk, storage)
    return found


def offset_of(index: int) -> int:
    """Where a record begins."""
    return RECORDS_START + (index - 1) * SIZE


class WalTwin:
    """One segment."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self.places = range(1, constants["MaxRecords"] + 1)
        self.persists: tuple[int, ...] = ()
        self.synced = True
        self.state = "up"
        # After a stop: what is left of the segment, the acknowledged end, and the end of the persist on its way.
        self.image = bytearray()
        # What a slot that cannot be read any more would say of its turn.
        self.turns: dict[int, int] = {}
        self.rots = 0
        self.outcome: dict[str, frozenset[int]] = {name: frozenset() for name in ("served", "damaged", "suspect")}

    @property
    def log(self) -> Written:
        """What the storage made of the actions so far."""
        return written(self.persists, synced=self.synced)

    def end(self, synced: bool) -> int:
        """Records that were handed over, without those of a persist on its way unless `synced`."""
        return sum(self.persists if synced or self.synced else self.persists[:-1])

    # --- actions --------------------------------------------------------------------------------------------
    def apply(self, act: Mapping[str, Any]) -> bool:
        """Take the action."""
        getattr(self, act["op"])(act)
        return True

    def Persist(self, act: Mapping[str, Any]) -> None:
        self.persists = (*self.persists, act["n"])
        self.synced = False

    def Sync(self, act: Mapping[str, Any]) -> None:
        self.synced = True

    def Crash(self, act: Mapping[str, Any]) -> None:
        found = self.log
        image = bytearray(found.durable)
        for write in found.unsynced:
            if write.offset < RECORDS_START:
                # The slot came, did not, or is torn in both its copies.
                if act["slot"] != "none":
                    image[write.offset : write.offset + len(write.data)] = write.data
                if act["slot"] == "bad":
                    self.spoil(image, write.offset)
                continue
            first = 1 + (write.offset - RECORDS_START) // SIZE
            for number, at in enumerate(range(0, len(write.data), SIZE)):
                fate = chosen(act["left"], first + number)
                if fate != "none":
                    data = bytearray(write.data[at : at + SIZE])
                    data[record.HEADER_BYTES] ^= fate == "bad"
                    image[write.offset + at : write.offset + at + SIZE] = data
        self.image, self.state = image, "down"

    def RotRecord(self, act: Mapping[str, Any]) -> None:
        self.image[offset_of(act["i"]) + record.HEADER_BYTES] ^= 1
        self.rots += 1

    def RotSlot(self, act: Mapping[str, Any]) -> None:
        self.spoil(self.image, SLOT_OFFSETS[act["k"] - 1])
        self.rots += 1

    def spoil(self, image: bytearray, at: int) -> None:
        """Both copies of a slot cannot be read."""
        slot = Slot.of_page(bytes(image[at : at + PAGE_BYTES]))
        assert slot is not None
        self.turns[at] = slot.sequence
        image[at : at + PAGE_BYTES] = b"\xff" * PAGE_BYTES

    def Recover(self, act: Mapping[str, Any]) -> None:
        self.outcome = recover(bytes(self.image))
        self.state = "recovered"

    # --- what it is -----------------------------------------------------------------------------------------
    def project(self) -> Function:
        """All variables of the module but `act` and `bug`."""
        image = self.log.durable if self.state == "up" else bytes(self.image)
        return Function(
            file=tuple(found_at(image, index) for index in self.places),
            slots=tuple(self.slot_in(image, position) for position in SLOT_OFFSETS),
            end=self.end(synced=False),
            pending=NOTHING if self.synced else self.end(synced=True),
            state=self.state,
            rots=self.rots,
            told=self.log.told,
            **self.outcome,
        )

    def slot_in(self, image: bytes, position: int) -> Function:
        """The module's slot."""
        slot = Slot.of_page(image[position : position + PAGE_BYTES])
        if slot is None:
            return Function(end=NOTHING, seq=self.turns[position])
        return Function(end=(slot.end - RECORDS_START) // SIZE, seq=slot.sequence)


def chosen(left: Any, index: int) -> str:
    """Of a function over some places what it says of one: from 1 on such a function is a tuple."""
    return str(left[index - 1] if isinstance(left, tuple) else left[index])


def found_at(image: bytes, index: int) -> str:
    """The module's word for what lies at a record's place."""
    data = image[offset_of(index) : offset_of(index) + SIZE]
    if not any(data):
        return "none"
    identity = Identity.decode(image[:PAGE_BYTES])
    assert identity is not None
    return "ok" if record.decode(data, record.seed_of(identity.incarnation), index) is not None else "bad"


@functools.cache
def recover(image: bytes) -> dict[str, frozenset[int]]:
    """What the code makes of a segment: the variables served, damaged and suspect."""
    disk = SimDisk()
    disk.make_directory("data")
    handle = disk.open("data/segment", create=True)
    disk.pwrite(handle, image, 0)
    header = read_header(disk, "data/segment")
    assert header is not None
    result = scan(lambda size, offset: disk.pread(handle, size, offset), "segment", header)
    served = frozenset(index for index, offset in enumerate(result.chain.offsets, start=1) if offset)

    def lost(verdict: Verdict) -> frozenset[int]:
        return frozenset(index for each in result.findings if each.verdict is verdict for index in each.lost)

    return {"served": served, "damaged": lost(Verdict.DAMAGED), "suspect": lost(Verdict.SUSPECT)}


class WalBinding:
    """Models of Wal and `WalTwin`."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self.constants = constants

    def make(self) -> WalTwin:
        """A fresh segment."""
        return WalTwin(self.constants)

    def start(self) -> Function:
        """Nothing written."""
        return self.make().project()

    def candidates(self, state: Function) -> Iterator[Function]:
        """See the module's Next."""
        match state["state"]:
            case "up":
                yield from self.up(state)
            case "down":
                if state["rots"] < self.constants["MaxRot"]:
                    yield from (Function(op="RotRecord", i=i) for i, it in enumerate(state["file"], 1) if it == "ok")
                    yield from (Function(op="RotSlot", k=k) for k, it in enumerate(state["slots"], 1) if it["end"] >= 0)
                yield Function(op="Recover")

    def up(self, state: Function) -> Iterator[Function]:
        """While the node runs."""
        end, pending = state["end"], state["pending"]
        if pending == NOTHING:
            first = 0 if state["slots"][0]["end"] != state["slots"][1]["end"] else 1
            for number in range(first, 3):
                if end + number <= self.constants["MaxRecords"]:
                    yield Function(op="Persist", n=number)
            yield Function(op="Crash", left=Function(), slot="none")
            return
        yield Function(op="Sync")
        places = range(end + 1, pending + 1)
        for fates in product(FATES, repeat=len(places)):
            for slot in FATES:
                yield Function(op="Crash", left=Function(dict(zip(places, fates, strict=True))), slot=slot)

    def within(self, projected: Function) -> bool:
        """All that storage does here the module can follow."""
        return True
