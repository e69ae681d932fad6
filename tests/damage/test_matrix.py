"""The damage matrix: every kind of harm in every place, alone and in one of three. Nothing silent, nothing wrong.

Each case ends in one of three ways: the node starts and everything is there; it starts and says what is lost, to the
message; it refuses to start and says why. A message that is gone without a word is a silent loss, one that comes with
other bytes is wrong; there are none of either. Each test prints how many cases there were and how they ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import attrs
import pytest

from tests.damage.harm import KINDS, Place, places
from tests.replica.group import Group, Node, push
from tests.replica.story import columns, storage_config
from walrq import api
from walrq.api import Columns
from walrq.compaction.verifying import find_homeless
from walrq.errors import CorruptRecord, Reclaimed, WalrqError
from walrq.queues import commands as c
from walrq.queues import effects
from walrq.queues.clocks import Reading
from walrq.queues.image import NOT_RESIDENT
from walrq.queues.machine import Bounds
from walrq.raft.roles import Status
from walrq.replica import Replica, ReplicaConfig
from walrq.simulator.promises import payloads
from walrq.storage import inspect
from walrq.storage.findings import Verdict
from walrq.storage.storage import Storage
from walrq.testing.disk import SimDisk
from walrq.tiers.timers import PageLost

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
# What waits is sealed soon, so that delayed messages lie in pages of snapshots.
BOUNDS = Bounds(far_horizon_ms=300_000, far_tail_rows=4, far_page_rows=2)


class Alone:
    """A node that is alone, on a disk; every message's payload names it."""

    def __init__(self, disk: SimDisk, *, hot: int | None = None) -> None:
        self.now_ms = 1_000
        config = storage_config()
        self.storage = Storage.open(disk, attrs.evolve(config, spared_pages=NOT_RESIDENT))
        try:
            replica_config = ReplicaConfig(
                node_id="n1",
                cluster_id="cluster",
                secret=b"s" * 16,
                disk_uuid=b"d" * 16,
                bounds=BOUNDS,
                hot_messages=hot,
                keeps_window=hot is None,
            )
            self.replica = Replica.open(self.storage, replica_config, self.reading())
        except BaseException:
            self.storage.close(clean=False)
            raise

    def reading(self) -> Reading:
        """Both clocks."""
        return Reading(self.now_ms, START_MS + self.now_ms)

    def do(self, command: c.Command) -> effects.Result:
        """One entry; its answer."""
        ticket = self.replica.propose(c.Tagged(command))
        answers: dict[int, effects.Result] = {}
        while ticket not in answers:
            batch = self.replica.take_batch(self.reading())
            assert batch is not None
            self.replica.persist(batch)
            answers |= dict(self.replica.complete(batch).results)
        return answers[ticket]

    def push(self, *values: bytes, **fields: object) -> None:
        """A batch."""
        assert isinstance(self.do(c.Push("q", columns(*values), **fields)), api.Pushed)  # type: ignore[arg-type]

    def snapshot(self) -> None:
        """A whole one."""
        job = self.replica.begin_snapshot()
        assert job is not None
        while job.step():
            job.write()
        job.write()
        job.finish()
        self.replica.snapshot_done(job)
        self.replica.reclaim()

    def work(self) -> None:
        """What goes on beside the entries: what is far is fetched, what is cold is read back."""
        while True:
            self.now_ms += 1
            work = self.replica.far_work(self.reading())
            ahead = self.replica.read_ahead()
            if work is None and ahead is None:
                return
            if work is not None:
                try:
                    work.run()
                except PageLost as error:
                    assert self.replica.far_lost(error.number, str(error))
                else:
                    command = work.command()
                    if command is not None:
                        self.do(command)
            if ahead is not None:
                ahead.run()
                self.replica.read_ahead_done(ahead)
                while (batch := self.replica.take_batch(self.reading())) is not None:
                    self.replica.persist(batch)
                    self.replica.complete(batch)

    def drain(self) -> tuple[list[bytes], int]:
        """(payloads of everything that is ready, how many are delivered as lost)."""
        found: list[bytes] = []
        lost = 0
        while True:
            self.work()
            granted = self.do(c.Lease(("q",), 100, 60_000, 0, None))
            assert isinstance(granted, effects.Granted), granted
            if not granted.runs:
                return found, lost
            for run in granted.runs:
                try:
                    values = self.values(self.replica.load_body(run.index, run.ordinal))
                except (CorruptRecord, Reclaimed):
                    lost += run.count
                else:
                    found += values[run.first : run.first + run.count]
            targets = tuple(c.Target(run.uid, run.lease) for run in granted.runs)
            self.do(c.Settle("q", api.SettleKind.ACK, targets))

    @staticmethod
    def values(body: Columns) -> list[bytes]:
        """The payloads."""
        return payloads(body)


def told(text: str) -> bytes:
    """A payload that is the only one of its kind, and long enough to fill segments."""
    return text.encode() * 40


@pytest.fixture(scope="module")
def story() -> tuple[SimDisk, SimDisk, set[bytes]]:
    """A disk with everything on it; the same disk a while before; and what was acknowledged and is not settled."""
    disk = SimDisk(seed=5)
    node = Alone(disk, hot=40)
    alive: set[bytes] = set()

    def push(*texts: str, **fields: object) -> None:
        node.push(*map(told, texts), **fields)
        alive.update(map(told, texts))

    for k in range(30):
        push(f"early {k}", f"early {k} too")
    for k in range(14):
        push(f"delayed {k}", delay_ms=DAY_MS + k)
    node.snapshot()
    old = disk.keep_all()
    for k in range(60):
        push(f"middle {k}")
    for k in range(9):
        push(f"later {k}", delay_ms=2 * DAY_MS + k)
    node.snapshot()
    for k in range(50):
        push(f"behind the snapshot {k}")
    node.storage.settle()
    node.storage.close(clean=True)
    return disk.keep_all(), old, alive


def cases(disk: SimDisk, old: SimDisk) -> Iterator[tuple[str, Place, SimDisk]]:
    """Every kind of harm that is possible in every place, each on a copy of the disk."""
    for place in places(disk):
        for kind, harm in KINDS.items():
            copy = disk.keep_all()
            before = copy.content(place.path)
            if harm(copy, place, old) and not (copy.exists(place.path) and copy.content(place.path) == before):
                yield kind, place, copy


def test_alone_nothing_is_lost_without_a_word_and_nothing_is_wrong(
    story: tuple[SimDisk, SimDisk, set[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    """What is intact is served, what is lost is said to the message, and `wal verify` sees it beforehand."""
    disk, old, alive = story
    ends: Counter[str] = Counter()
    seen: set[str] = set()
    silent: list[object] = []
    wrong: list[object] = []
    for kind, place, copy in cases(disk, old):
        case = (kind, place.kind, place.path)
        seen.add(place.kind)
        try:
            sees = bool(inspect.verify("data", disk=copy).findings or find_homeless("data", disk=copy))
        except WalrqError:
            sees = True
        try:
            node = Alone(copy)
        except WalrqError as error:
            # inv: NoRefuseWithoutRot
            assert sees and error.text, case
            ends["refuses to start"] += 1
            continue
        machine = node.replica.machine
        node.work()
        node.now_ms += 3 * DAY_MS
        found, lost = node.drain()
        missing = alive - set(found)
        said = [finding for finding in node.storage.findings if finding.verdict is not Verdict.TORN]
        if set(found) - alive or len(found) != len(set(found)):
            wrong.append(case)
        # inv: NoSilentLoss
        if missing and not (sees and (said or lost == len(missing))):
            silent.append((case, len(missing), lost, sees, [str(finding) for finding in said]))
        # Nothing is left that will never come.
        assert machine.far.is_empty and not machine.queues["q"].length and not list(machine.far.blocks), case
        ends["serves all" if not missing else "serves the rest"] += 1
        node.storage.close()
    number = sum(ends.values())
    with capsys.disabled():
        print(f"\nalone: {number} cases, {len(silent)} silent losses, {len(wrong)} wrong; {dict(ends)}")

    assert not silent and not wrong
    assert number > 60 and {"identity", "hard state", "open segment", "sealed segment", "slots"} < seen
    assert {"manifest", "delayed page", "queue page", "table page"} < seen
    assert ends["serves all"] and ends["serves the rest"] and ends["refuses to start"]


# --- one of three -------------------------------------------------------------------------------------------
def start(node: Node) -> str:
    """Start a node; why it refuses, empty: it does not."""
    try:
        node.start()
    except WalrqError as error:
        return error.text
    return ""


def readable(node: Node, alive: set[bytes]) -> list[object]:
    """What is alive in a node's state and cannot be read there, or is not what was pushed."""
    machine = node.replica.machine
    wrong: list[object] = []
    for queue in machine.queues.values():
        for batch in queue.batches():
            try:
                values = payloads(node.replica.load_body(batch.index, batch.ordinal))
            except (CorruptRecord, Reclaimed) as error:
                wrong.append((batch.index, error.text))
                continue
            wrong += [value for value in values if value not in alive]
    return wrong


def test_one_of_three_is_mended_by_the_others_before_it_leads(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever happens to its files: nothing acknowledged is lost, and in the end it has everything itself."""
    group = Group(snapshot_commands=40, bounds=BOUNDS)
    group.leader()
    group.connect()
    group.ticks(8)
    leader = group.elect("a")
    alive: set[bytes] = set()

    def say(*texts: str, **fields: object) -> None:
        leader.do(push(*map(told, texts), **fields))
        alive.update(map(told, texts))

    for k in range(45):
        say(f"early {k}")
    for k in range(9):
        say(f"delayed {k}", delay_ms=DAY_MS + k)
    group.ticks(4)
    old = group["b"].disk.keep_all()
    for k in range(60):
        say(f"later {k}")
    group.converge()
    harmed = group["b"]
    ends: Counter[str] = Counter()
    mended: Counter[str] = Counter()
    number = 0
    harmed.stop()
    kinds = [place.kind for place in places(harmed.disk)]
    for at, what in enumerate(kinds):
        for kind, harm in KINDS.items():
            whole = harmed.disk
            place = list(places(whole))[at]
            copy = whole.keep_all()
            if not harm(copy, place, old):
                continue
            case = (kind, what)
            number += 1
            harmed.disk = copy
            why = start(harmed)
            if why:
                # A person puts the file back.
                ends["refuses to start"] += 1
                harmed.disk = whole
                assert not start(harmed), case
            status = harmed.replica.status
            group.connect()
            group.elect("a") if number % 10 == 0 else group.leader()
            group.converge(12)
            for _ in range(20):
                wrong = readable(harmed, alive)
                if not wrong:
                    break
                # inv: EveryLiveReadable: who lacks bodies does not lead.
                assert not harmed.replica.is_leader, case
                group.ticks(6)
            assert not wrong, (case, wrong[:3])
            if not why:
                ends["is mended" if status is not Status.NORMAL or harmed.findings else "starts whole"] += 1
                mended[what] += 1
            harmed.findings.clear()
            harmed.stop()
    assert not start(harmed)
    group.connect()
    leader = group.elect("b")
    found: list[bytes] = []
    group.now_ms += 3 * DAY_MS
    group.ticks(2)
    while True:
        while (work := leader.replica.far_work(leader.reading())) is not None:
            work.run()
            command = work.command()
            assert command is not None
            leader.do(command)
        (granted,) = leader.do(c.Lease(("q",), 50, 600_000, 0, None))
        assert isinstance(granted, effects.Granted)
        if not granted.runs:
            break
        for run in granted.runs:
            found += payloads(leader.replica.load_body(run.index, run.ordinal))[run.first : run.first + run.count]
        leader.do(c.Settle("q", api.SettleKind.ACK, tuple(c.Target(run.uid, run.lease) for run in granted.runs)))
    with capsys.disabled():
        print(f"\none of three: {number} cases, {len(alive - set(found))} lost, {dict(ends)}")

    assert sorted(alive) == sorted(found)
    assert number > 40 and ends["is mended"] > 10
