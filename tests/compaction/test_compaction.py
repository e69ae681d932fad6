"""What is mostly dead is written anew: nothing alive is lost, whatever happens meanwhile; the disk stays bounded."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.compaction.worlds import (
    COMMANDS,
    alive,
    check_readable,
    compaction_of,
    image,
    lived,
)
from tests.storage.crash import ROT, config
from walrq.compaction.compaction import Compaction
from walrq.errors import CorruptRecord, Reclaimed
from walrq.queues import commands as c
from walrq.queues.machine import Machine
from walrq.storage.record import Record
from walrq.storage.storage import Storage
from walrq.testing.disk import PowerOff, SimDisk


def opened(disk: SimDisk) -> Storage:
    """Storage over a disk as a crash or a stop left it."""
    return Storage.open(disk, config())


def is_there(storage: Storage, index: int) -> bool:
    """Whether the log has a record."""
    try:
        return storage.read(index).index == index
    except Reclaimed:
        return False


@pytest.mark.parametrize("seed", range(4))
def test_what_is_alive_reads_as_before_and_what_is_dead_is_gone(seed: int) -> None:
    """Of entries and within batches, after a restart too, and the log takes a fraction of what it took."""
    disk = SimDisk()
    storage, machine, bodies = lived(disk, seed, 1_500)
    before = len(storage.index_ranges())
    compaction = compaction_of(storage)

    compaction.run()

    assert check_readable(storage, machine, bodies) > 20
    assert len(storage.index_ranges()) < before / 3
    dead = set(range(1, 1_500)) - {index for index, *_ in alive(machine)}
    left = [index for index in dead if is_there(storage, index)]
    assert len(left) < len(dead) / 10
    assert compaction.usage().is_held
    assert not compaction.is_due
    storage.close()
    again = opened(disk.keep_all())
    assert () == again.findings
    check_readable(again, machine, bodies)


def test_power_loss_at_any_operation_of_a_pass_leaves_each_segment_once() -> None:
    """The old ones or the new one, never neither, never both: and the next pass ends what was begun."""
    origin = SimDisk()
    storage, machine, bodies = lived(origin, 3, 420)
    storage.close()
    live = {index for index, *_ in alive(machine)}
    tried = 0
    for point in itertools.count():
        disk = origin.keep_all()
        storage = opened(disk)
        disk.power_off_at = disk.operation_count + point
        try:
            compaction_of(storage).run()
        except PowerOff:
            pass
        else:
            break
        for after in (disk.keep_all(), disk.crash(point), disk.crash(point + 1_000)):
            again = opened(after)
            # inv: NoMixedRead
            assert not [finding for finding in again.findings if finding.verdict in ROT], (point, again.findings)
            found = [record.index for record in again.entries(1)]
            assert found == sorted(set(found)), point
            assert live <= set(found), (point, live - set(found))
            check_readable(again, machine, bodies, point)
            assert not [name for name in after.list_directory("data/wal") if name.startswith("flip-")], point
            tried += 1
        compaction_of(again).run()
        check_readable(again, machine, bodies, point)
    print(f"crash points tried: {tried}")
    assert tried > 40


def test_power_loss_at_every_sync_of_a_pass_loses_nothing() -> None:
    """Each unsynced write is kept, dropped, torn, garbage, alone or mixed."""
    disk = SimDisk()
    storage, machine, bodies = lived(disk, 5, 150)
    tried = 0

    def power_loss(now: SimDisk) -> None:
        nonlocal tried
        for what, after in now.aftermaths(mixtures=2, seed=now.operation_count):
            again = opened(after)
            assert not [finding for finding in again.findings if finding.verdict in ROT], (what, again.findings)
            check_readable(again, machine, bodies, what)
            tried += 1

    disk.before_sync = power_loss
    compaction_of(storage).run()
    print(f"crash points tried: {tried}")
    assert tried > 50


def test_readers_go_on_while_segments_are_written_anew() -> None:
    """Between any two steps, through descriptors that were open and through new ones."""
    disk = SimDisk()
    storage, machine, bodies = lived(disk, 1, 900)
    compaction = compaction_of(storage)
    addresses = sorted(set(alive(machine)))
    draw = random.Random(7)
    steps = 0
    while compaction.step():
        steps += 1
        for index, *_ in draw.sample(addresses, 3):
            assert index == storage.read(index).index
    check_readable(storage, machine, bodies)
    assert steps > 10


def test_a_record_that_lies_in_another_file_by_now_is_looked_up_again() -> None:
    """A reader that had found the old segment gets the record, and nothing is called damaged."""
    disk = SimDisk()
    storage, machine, _ = lived(disk, 1, 900)
    index = min(index for index, *_ in alive(machine))
    wal = storage._wal
    old = wal._segment_of(index)
    kept = storage.read(index)
    compaction_of(storage).run()
    assert wal._segment_of(index) is not old

    asked = []

    def found_before(wanted: int) -> object:
        asked.append(wanted)
        return old if len(asked) == 1 else type(wal)._segment_of(wal, wanted)

    wal._segment_of = found_before  # type: ignore[method-assign, assignment]

    assert index == wal.read(index).index == kept.index
    assert len(asked) == 2
    assert () == storage.findings


def test_what_a_backup_holds_stays_as_it_is() -> None:
    """Its files are copied byte by byte; what is not held is written anew beside it."""
    disk = SimDisk()
    storage, machine, bodies = lived(disk, 2, 900)
    pin = storage.pin()
    pin.fix()
    before = {extent.path: disk.content(extent.path) for extent in pin.extents}
    compaction = compaction_of(storage)
    compaction.run()
    assert before == {path: disk.content(path) for path in before}
    assert compaction.usage().is_held
    pin.release()

    image(storage, machine, 901)
    compaction.run()

    assert len(storage.index_ranges()) < len(before) / 3
    check_readable(storage, machine, bodies)


def test_a_backup_that_begins_in_the_middle_of_a_rewrite_is_in_time() -> None:
    """What is held by then is not replaced; the rewrite is given up and leaves nothing."""
    disk = SimDisk()
    storage, machine, bodies = lived(disk, 2, 900)
    compaction = compaction_of(storage)
    while not compaction.is_swapping:
        assert compaction.step()
    pin = storage.pin()
    pin.fix()
    before = {extent.path: disk.content(extent.path) for extent in pin.extents}
    compaction.run()

    assert before == {path: disk.content(path) for path in before}
    assert not [name for name in disk.list_directory("data/wal") if name.startswith("flip-")]
    assert compaction.counts.given_up == 1
    check_readable(storage, machine, bodies)


def test_a_stream_to_another_node_holds_nothing_back() -> None:
    """What dies while it is sent is left out, what is alive comes, and its end fits what was sent."""
    disk = SimDisk()
    storage, machine, bodies = lived(disk, 4, 900)
    pin = storage.pin()
    pin.fix()
    stream = storage.stream(pin, 0, lambda first, last: True)
    first, is_last = stream.read(0, 5_000)
    assert not is_last
    compaction = compaction_of(storage)
    compaction.run()
    assert () == storage.held_segments
    assert storage.wal_counters.rewritten > 5
    data = bytearray(first)
    again, _ = stream.read(2_500, 2_500)
    assert first[2_500:] == again
    while not is_last:
        piece, is_last = stream.read(len(data), 3_000)
        data += piece
    assert (bytes(data[-700:]), True) == stream.read(len(data) - 700, 3_000)
    assert (bytes(data[-700:-1]), False) == stream.read(len(data) - 700, 699)
    pin.release()

    other = SimDisk()
    receiver = Storage.open(other, config())
    snapshot = storage.snapshot
    assert snapshot is not None
    installer = receiver.begin_install(0, snapshot.index, 1, b"")
    installer.feed(bytes(data))
    installer.finish()

    check_readable(receiver, machine, bodies)
    Compaction(receiver, lambda: 1 << 60).run()
    check_readable(receiver, machine, bodies)


def test_a_damaged_record_keeps_its_segment_as_it_is() -> None:
    """What is lost must not turn into something dead; everything around it is served."""
    disk = SimDisk()
    storage, machine, bodies = lived(disk, 0, 900)
    storage.close()
    index = min(index for index, *_ in alive(machine) if len(bodies[index - 1]) > 60)
    for name in disk.list_directory("data/wal"):
        at = disk.content(f"data/wal/{name}").find(bodies[index - 1])
        if at > 0:
            disk.flip_bit(f"data/wal/{name}", 8 * (at + 40))
    storage = opened(disk.keep_all())
    compaction = compaction_of(storage)
    compaction.run()

    with pytest.raises(CorruptRecord):
        storage.read(index)
    assert compaction.counts.given_up >= 1
    assert any(low <= index <= high for low, high in storage.lost_spans())
    for found in {found for found, *_ in alive(machine)} - {index}:
        storage.read(found)


def test_a_hole_with_something_alive_in_it_is_not_covered_up() -> None:
    """A segment that is gone stays a hole, so that what it held is known to be lost."""
    disk = SimDisk()
    storage, machine, _ = lived(disk, 0, 900)
    storage.close()
    index = sorted(index for index, *_ in alive(machine))[2]
    names = [name for name in disk.list_directory("data/wal") if name.startswith("seg-")]
    gone = max(name for name in names if int(name[4:-4]) <= index)
    disk.unlink(f"data/wal/{gone}")
    storage = opened(disk.keep_all())
    compaction_of(storage).run()

    assert not any(low <= index <= high for low, high in storage.index_ranges())


def test_entries_that_others_may_need_stay_whole() -> None:
    """Nothing behind the given index is touched, whatever the snapshot covers."""
    disk = SimDisk()
    storage, machine, bodies = lived(disk, 3, 900)
    compaction = compaction_of(storage, lambda: 300)
    compaction.run()

    assert all(bodies[index - 1] == storage.read(index).body for index in range(301, 901))
    assert not all(is_there(storage, index) for index in range(1, 300))
    check_readable(storage, machine, bodies)


def test_free_files_make_room_for_what_is_written_anew() -> None:
    """The bound has room for one of both: beside the reserve nothing is free while a segment is being made."""
    disk = SimDisk()
    storage, machine, _ = lived(disk, 3, 900)
    storage.reclaim(400, lambda first, last: False)
    image(storage, machine, 901)
    free = [name for name in disk.list_directory("data/wal") if name.startswith("free-")]
    assert len(free) > config().reserve_segments
    compaction = compaction_of(storage)
    seen = 0
    while compaction.step():
        names = disk.list_directory("data/wal")
        if any(name.startswith("flip-") for name in names):
            seen += 1
            assert config().reserve_segments == sum(name.startswith("free-") for name in names)
    assert seen > 0


def test_watchers_hear_of_it() -> None:
    """Who keeps something about a span of the log is told when it is given back or written anew."""
    disk = SimDisk()
    storage, _, _ = lived(disk, 3, 900)
    heard: list[tuple[str, int, int]] = []
    storage.watchers.append(lambda what, first, last: heard.append((what, first, last)))
    compaction_of(storage).run()

    assert {what for what, _, _ in heard} <= {"rewritten", "reclaimed"}
    assert "rewritten" in {what for what, _, _ in heard}
    assert all(first <= last for _, first, last in heard)


def test_the_bound_holds_at_every_step_of_a_long_mixed_life() -> None:
    """Pushes, partial acknowledgements, one message for 30 days among thousands, snapshots and passes in between."""
    disk = SimDisk()
    storage = Storage.open(disk, config(segment_bytes=64 * 1024, pool_segments_max=2))
    machine = Machine()
    compaction = compaction_of(storage)
    draw = random.Random(11)
    stamp = c.Stamp(0, 1_700_000_000_000)
    leases: list[int] = []
    nearest = 0.0
    highest = live = 0

    def put(*found: c.Command) -> list[object]:
        index = storage.last_index + 1
        tagged = [c.Tagged(one) for one in found]
        storage.append_batch([Record(index, 1, COMMANDS, c.encode_entry(stamp, tagged))])
        return list(machine.apply(index, stamp, tagged))

    def look() -> None:
        nonlocal nearest, highest
        usage = compaction.usage()
        # inv: DiskBounded
        assert usage.is_held, usage.as_json()
        nearest = max(nearest, usage.disk_bytes / usage.bound_bytes)
        highest = max(highest, usage.disk_bytes)

    for number in range(1_200):
        delay = 30 * 86_400_000 if number % 40 == 7 else None
        put(c.Push("q", batch_of(20, draw), delay_ms=delay))
        (granted,) = put(c.Lease(("q",), 20, 1 << 40, 0, None))
        for run in granted.runs:  # type: ignore[attr-defined]
            leases.append(run.lease)
            kept = draw.randrange(run.count) if number % 10 == 0 else -1
            ranges = tuple(pair for pair in ((0, kept - 1), (kept + 1, run.count - 1)) if pair[0] <= pair[1])
            put(c.Settle("q", c.SettleKind.ACK, (c.Target(run.uid, run.lease, ranges if kept >= 0 else None),)))
        look()
        if number % 60 == 59:
            image(storage, machine, storage.last_index)
            look()
            while compaction.step():
                look()
                if draw.random() < 0.2:
                    put(c.Push("q", batch_of(3, draw)))
                    look()
            look()
            live = compaction.usage().live_bytes
        machine.take_effects()
    assert storage.wal_counters.rewritten > 5
    assert compaction.stats()["write_amplification"] < 1.5
    print(f"highest {highest}, alive at the end {live}, nearest to the bound {nearest:.0%}")


def batch_of(messages: int, draw: random.Random) -> c.Columns:
    """A batch of messages of about a hundred bytes."""
    payloads = [draw.randbytes(draw.randrange(50, 150)) for _ in range(messages)]
    ends = b"".join(sum(map(len, payloads[: number + 1])).to_bytes(4, "little") for number in range(messages))
    return c.Columns(b"".join(payloads), ends)
