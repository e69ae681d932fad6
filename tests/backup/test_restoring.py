"""From a node to a file and back: what is there again, and what a copy may never confuse with its original."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path

import pytest

from tests.backup.life import SEGMENT_BYTES, WALL_MS, Life, restored, written
from walrq import api
from walrq.backup import restoring
from walrq.backup.restoring import INDEXES_SKIPPED
from walrq.errors import Code, CorruptRecord, DataDirInvalid
from walrq.queues import commands as c
from walrq.queues import image
from walrq.queues.image import live_in
from walrq.storage import inspect


def grown(life: Life, rng: random.Random) -> list[bytes]:
    """Push over several segments, settle about half, snapshot now and then; the payloads that are still there."""
    alive: list[bytes] = []
    for number in range(120):
        batch = [b"%d.%d." % (number, k) + rng.randbytes(rng.randrange(600)) for k in range(rng.randrange(1, 5))]
        life.push(*batch)
        alive += batch
        if rng.random() < 0.4:
            for run in life.lease(rng.randrange(1, 8)):
                alive = alive[run.count :]
                assert 0 == life.ack(run)
        if rng.random() < 0.05:
            life.snapshot()
    return alive


def test_everything_of_before_is_there_and_what_was_settled_is_not(tmp_path: Path, rng: random.Random) -> None:
    """The promise of a backup, over several segments of which some are reclaimed."""
    life = Life(tmp_path / "a")
    alive = grown(life, rng)
    backup = life.backup()
    life.push(b"later")
    life.close()
    copy = restored(backup, tmp_path / "b")

    assert alive == copy.drain()
    assert [] == list(copy.storage.findings)
    copy.close()
    assert inspect.verify(str(tmp_path / "b")).ok


def test_a_backup_of_a_copy_of_a_copy_is_as_good(tmp_path: Path, rng: random.Random) -> None:
    """Numbers that are skipped at each restore add up and fit."""
    life = Life(tmp_path / "0")
    alive = grown(life, rng)
    for number in range(1, 4):
        backup = life.backup()
        life.close()
        life = restored(backup, tmp_path / str(number))
        life.push(b"of life %d" % number)
        alive.append(b"of life %d" % number)

    assert life.replica.applied_index > 3 * INDEXES_SKIPPED > 1_000_000_000
    assert alive == life.drain()


def test_a_copy_survives_its_own_crash_before_its_first_snapshot(tmp_path: Path, rng: random.Random) -> None:
    """From the first push on it is a node like any other: its log is replayed over the restored image."""
    life = Life(tmp_path / "a")
    alive = grown(life, rng)
    copy = restored(life.backup(), tmp_path / "b")
    copy.push(b"after")
    copy.replica.close(clean=False)
    again = Life(tmp_path / "b")

    assert [*alive, b"after"] == again.drain()
    assert [] == list(again.storage.findings)


def test_what_happens_while_it_is_read_does_not_change_it(tmp_path: Path, rng: random.Random) -> None:
    """Snapshots and reclaim go on under a reader: the pin keeps what it needs, and nothing beyond its release."""
    life = Life(tmp_path / "a")
    alive = grown(life, rng)
    pin, export = life.export()
    before = written(export)
    assert alive == life.drain()
    for _ in range(3):
        grown(life, rng)
        life.drain()
        life.snapshot()

    assert before == written(export)
    assert alive == restored(before, tmp_path / "b").drain()
    held = len(life.storage.index_ranges())
    pin.release()
    life.push(b"one more")
    life.snapshot()
    assert len(life.storage.index_ranges()) < held


def test_segments_without_life_are_left_out(tmp_path: Path) -> None:
    """A backup is as large as what is alive, not as what passed through since the last reclaim."""
    life = Life(tmp_path / "a")
    for _ in range(40):
        life.push(bytes(4_000))
    life.drain()
    segments = len(life.storage.index_ranges())
    life.push(b"alive")
    pin, export = life.export()

    assert segments > 5
    # One that holds the live message, the image and its manifest.
    assert 3 == len(export.parts)
    pin.release()


def test_a_lease_of_before_the_backup_runs_on_and_its_receipt_settles(tmp_path: Path) -> None:
    """The lease clock stands still while the backup lies in a drawer: what was left of a lease is left of it."""
    life = Life(tmp_path / "a")
    life.push(b"held", b"lost")
    (run,) = life.lease(1, visibility_ms=5_000)
    (other,) = life.lease(1, visibility_ms=5_000)
    life.now_ms += 2_000
    life.do(c.KeepSessions(()))
    receipt = life.receipt(run)
    copy = restored(life.backup(), tmp_path / "b", wall_ms=WALL_MS + 86_400_000)

    assert receipt == copy.receipt(run)
    assert [] == copy.lease()
    copy.now_ms += 2_990
    assert 0 == copy.ack(run)
    assert [] == copy.lease()
    copy.now_ms += 20
    assert Code.RECEIPT_EXPIRED == copy.ack(other)
    (again,) = copy.lease()
    assert [b"lost"] == copy.payloads(again)
    assert 2 == again.delivery


def test_a_receipt_of_the_originals_later_life_settles_nothing(tmp_path: Path) -> None:
    """Both go on from the same moment: what each hands out must never be valid for the other's message."""
    life = Life(tmp_path / "a")
    life.push(b"1", b"2", b"3", b"4")
    backup = life.backup()
    copy = restored(backup, tmp_path / "b")
    (late,) = life.lease(1)
    (taken,) = copy.lease(1)
    # One shard, or their uids would differ for that alone.
    life.push(b"x", queue="{shard}x")
    copy.push(b"y", queue="{shard}y")

    assert life.receipt(late) != copy.receipt(taken)
    assert Code.RECEIPT_EXPIRED == copy.ack(late)
    assert Code.RECEIPT_EXPIRED == life.ack(taken)
    assert 0 == copy.ack(taken)
    uids = [set(each.replica.machine.by_uid) - {late.uid} for each in (life, copy)]
    assert uids[0].isdisjoint(uids[1])


def test_fences_and_sessions_of_a_copy_are_new(tmp_path: Path) -> None:
    """A system that compares fences accepts the copy's; a session number never means two clients."""
    life = Life(tmp_path / "a")
    life.push(b"1")
    session = life.do(c.OpenSession()).session
    copy = restored(life.backup(), tmp_path / "b")
    for _ in range(100):
        life.push(b"more")
    (late,) = life.lease(1)
    (taken,) = copy.lease(1)

    assert taken.fence > late.fence
    assert copy.do(c.OpenSession()).session > life.do(c.OpenSession()).session > session
    assert session in copy.replica.machine.sessions.table


def test_a_session_of_before_the_backup_goes_on(tmp_path: Path) -> None:
    """A push retried against the copy is answered as it was, and not done twice."""
    life = Life(tmp_path / "a")
    session = life.do(c.OpenSession()).session
    command = c.Push("q", api.Columns(b"once", (4).to_bytes(4, "little")))
    first = life.do(command, session, 1)
    copy = restored(life.backup(), tmp_path / "b")

    assert first == copy.do(command, session, 1)
    assert [b"once"] == copy.drain()


def test_a_delay_that_passed_in_the_drawer_is_over(tmp_path: Path) -> None:
    """Delays run by the wall clock, which went on."""
    life = Life(tmp_path / "a")
    life.push(b"in an hour", delay_ms=3_600_000)
    backup = life.backup()
    soon = restored(backup, tmp_path / "b")
    late = restored(backup, tmp_path / "c", wall_ms=WALL_MS + 3_600_000)

    assert [] == soon.drain()
    assert [b"in an hour"] == late.drain()


def test_a_copy_has_a_disk_of_its_own_and_the_names_of_its_original(tmp_path: Path) -> None:
    """A copied disk must be told from the original; the node and the cluster are the same."""
    life = Life(tmp_path / "a")
    copy = restored(life.backup(), tmp_path / "b")

    assert life.storage.disk_uuid != copy.storage.disk_uuid
    assert copy.storage.hard_state is not None
    assert ("n1", "cluster") == (copy.storage.hard_state.node_id, copy.storage.hard_state.cluster_id)
    assert copy.storage.disk_uuid == copy.storage.hard_state.disk_uuid
    assert life.replica.machine.secret == copy.replica.machine.secret
    assert copy.replica.term > life.replica.term


def test_damage_of_the_original_is_copied_named_and_never_spread(tmp_path: Path) -> None:
    """A backup of a damaged node saves what is intact, and says what is not."""
    life = Life(tmp_path / "a")
    life.push(b"first" * 100)
    life.push(b"second" * 100)
    life.push(b"third" * 100)
    life.snapshot()
    segment = tmp_path / "a/wal/seg-00000000000000000001.wal"
    data = bytearray(segment.read_bytes())
    data[data.index(b"second")] ^= 1
    segment.write_bytes(data)
    backup = life.backup()
    checked = restoring.verify(io.BytesIO(backup))
    made = restoring.restore(io.BytesIO(backup), tmp_path / "b")
    copy = Life(tmp_path / "b")
    runs = copy.lease()

    assert [["damaged", 1]] == [[str(finding.verdict), len(finding.lost)] for finding in checked.findings]
    assert checked.findings[0].lost == made.findings[0].lost
    assert [b"first" * 100] == copy.payloads(runs[0]) and [b"third" * 100] == copy.payloads(runs[2])
    with pytest.raises(CorruptRecord):
        copy.payloads(runs[1])


def test_a_log_without_any_message_is_a_backup_too(tmp_path: Path) -> None:
    """Settings and sessions are worth a backup."""
    life = Life(tmp_path / "a")
    life.do(c.SetQueue("q", {"max_deliveries": 7}))
    copy = restored(life.backup(), tmp_path / "b")

    assert 7 == copy.replica.machine.queues["q"].settings.max_deliveries


def test_another_segment_size_makes_no_difference(tmp_path: Path, rng: random.Random) -> None:
    """The restored segments have sizes of their own; they are served, given back, and never reused."""
    life = Life(tmp_path / "a")
    alive = grown(life, rng)
    copy = restored(life.backup(), tmp_path / "b", segment_bytes=4 * SEGMENT_BYTES)

    assert alive == copy.drain()
    copy.push(bytes(5 * SEGMENT_BYTES))
    copy.snapshot()
    assert 1 == len(copy.storage.index_ranges())


# --- the target ---------------------------------------------------------------------------------------------
def test_only_a_new_or_empty_directory_is_restored_into(tmp_path: Path) -> None:
    """Nothing that is there is ever overwritten, and a refusal leaves nothing behind."""
    backup = Life(tmp_path / "a").backup()
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    (tmp_path / "file").touch()
    restoring.restore(io.BytesIO(backup), tmp_path / "empty")
    for name, text in (("full", "is not empty"), ("file", "is not a directory"), ("no/where", "parent directory")):
        with pytest.raises(DataDirInvalid, match=text):
            restoring.restore(io.BytesIO(backup), tmp_path / name)

    assert {"a", "empty", "full", "file"} == set(os.listdir(tmp_path))
    assert {"x"} == set(os.listdir(tmp_path / "full"))


def test_a_restore_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """The directory gets its name last: it is whole, or it is not there."""
    backup = Life(tmp_path / "a").backup()
    with pytest.raises(CorruptRecord, match="torn"):
        restoring.restore(io.BytesIO(backup[: len(backup) // 2]), tmp_path / "b")

    assert {"a"} == set(os.listdir(tmp_path))


# --- the numbers --------------------------------------------------------------------------------------------
def test_an_image_of_another_format_is_refused() -> None:
    """A page that this version cannot read is not guessed at."""
    with pytest.raises(CorruptRecord, match="cannot be read"):
        image.branched(image.MACHINE_KEY, b"\xff")


def test_a_copy_that_has_no_numbers_left_says_so(tmp_path: Path) -> None:
    """The last of two thousand restores is refused, not wrapped around."""
    life = Life(tmp_path / "a")
    pages = image.full_pages(life.replica.machine)
    page = pages[image.MACHINE_KEY]
    with pytest.raises(CorruptRecord, match="restored too often"):
        for _ in range(3_000):
            page = image.branched(image.MACHINE_KEY, page)


def test_a_log_that_came_from_another_node_is_backed_up_like_any_other(tmp_path: Path) -> None:
    """With gaps between its records: what is alive travels, twice."""
    life = Life(tmp_path / "first")
    for number in range(60):
        life.push(b"%d" % number * 400)
    runs = life.lease(60)
    for run in runs[:55]:
        life.ack(run)
    pin = life.storage.pin()
    life.snapshot()
    pin.fix()
    machine = life.replica.machine
    outgoing = life.storage.stream(pin, 0, lambda first, last: live_in(machine, first, last))
    data, is_whole = outgoing.read(0, 1 << 24)
    assert is_whole

    storage = Life(tmp_path / "second").storage
    index = pin.manifest.index
    installer = storage.begin_install(0, index, pin.manifest.term, pin.manifest.meta)
    installer.feed(data)
    installer.finish()
    storage.close()
    pin.release()
    again = Life(tmp_path / "second")
    again.push(b"more")
    copy = restored(again.backup(), tmp_path / "third")
    copy.push(b"last")
    copy.now_ms += 20_000
    payloads = [life.payloads(run) for run in runs[55:]]

    assert [*(payload for each in payloads for payload in each), b"more", b"last"] == copy.drain()
