"""What the Redis door needs of the machine: numbered leases, counted pushes, messages that move and are answered."""

from __future__ import annotations

import cbor2
import pytest

from tests.queues.bench import Bench, columns
from walrq import api
from walrq.errors import Code
from walrq.ids import TASKS_UID
from walrq.queues import commands as c
from walrq.queues import effects, image
from walrq.queues.machine import Machine

EXPIRED = int(Code.RECEIPT_EXPIRED)


@pytest.fixture
def bench() -> Bench:
    """At the version that knows these commands."""
    made = Bench()
    made.do(c.RaiseVersion(2))
    return made


def numbered(bench: Bench, queue: str = "q", limit: int = 1, visibility_ms: int = 1_000) -> tuple[effects.Grant, ...]:
    granted = bench.do(c.Lease((queue,), limit, visibility_ms, bench.lease_ms, None, True))
    assert isinstance(granted, effects.Granted)
    return granted.runs


def settle(bench: Bench, task: int, queue: str = "q", kind: api.SettleKind = api.SettleKind.ACK) -> int:
    settled = bench.do(c.Settle(queue, kind, (c.Target(TASKS_UID, task),), 0))
    assert isinstance(settled, api.Settled)
    return settled.codes[0]


def counted(bench: Bench, queue: str = "q", payloads: int = 1, **fields: object) -> int:
    pushed = bench.do(c.Push(queue, columns([b"x"] * payloads), **fields, counted=True))  # type: ignore[arg-type]
    assert isinstance(pushed, api.Pushed)
    return pushed.number


def test_numbers_count_the_leases_of_all_queues_from_one(bench: Bench) -> None:
    """One message each, however many were pushed together; an empty poll costs none."""
    bench.push("q", 2)
    bench.push("p", 1)
    assert numbered(bench, "nothing") == ()
    assert [(run.task, run.count) for run in numbered(bench, limit=5)] == [(1, 1), (2, 1)]
    assert [run.task for run in numbered(bench, "p")] == [3]
    assert [run.task for run in numbered(bench)] == []


def test_a_number_settles_its_lease_in_its_queue_once(bench: Bench) -> None:
    """Neither another queue's, nor twice."""
    bench.push("q", 1)
    bench.push("p", 1)
    numbered(bench)
    assert settle(bench, 1, "p") == EXPIRED
    assert settle(bench, 2) == EXPIRED
    assert settle(bench, 1) == 0
    assert settle(bench, 1) == EXPIRED
    assert bench.machine.tally.tasks == {}


def test_a_number_is_good_for_its_one_delivery(bench: Bench) -> None:
    """After expiry, release and undo its message has another."""
    bench.push("q", 1)
    numbered(bench, visibility_ms=10)
    bench.wait(10)
    assert settle(bench, 1) == EXPIRED
    bench.tick()
    assert [run.task for run in numbered(bench)] == [2]
    assert settle(bench, 2, kind=api.SettleKind.RELEASE) == 0
    numbered(bench)
    bench.do(c.Undo((c.Target(TASKS_UID, 3), c.Target(TASKS_UID, 99))))
    assert settle(bench, 3) == EXPIRED
    (run,) = numbered(bench)
    assert (run.task, run.attempts) == (4, 1)
    assert settle(bench, 4, kind=api.SettleKind.FAIL) == 0
    assert settle(bench, 4) == EXPIRED


def test_a_touch_by_number_extends(bench: Bench) -> None:
    """As by receipt."""
    bench.push("q", 1)
    numbered(bench, visibility_ms=10)
    touched = bench.do(c.Touch("q", (c.Target(TASKS_UID, 1),), 500))
    assert touched == api.Touched((0,), (500,))
    bench.wait(400)
    assert settle(bench, 1) == 0


def test_numbers_end_with_their_queue(bench: Bench) -> None:
    """Purged or deleted, nothing is left of them; they are never given again."""
    bench.push("q", 1)
    numbered(bench)
    bench.do(c.PurgeQueue("q"))
    assert settle(bench, 1) == EXPIRED
    bench.push("q", 1)
    numbered(bench)
    bench.do(c.DeleteQueue("q"))
    bench.push("q", 1)
    assert settle(bench, 2) == EXPIRED
    assert [run.task for run in numbered(bench)] == [3]


def test_numbers_and_counts_survive_an_image(bench: Bench) -> None:
    """With the leases that have them; and the counters go on."""
    bench.push("q", 3)
    numbered(bench, limit=2)
    assert counted(bench, delay_ms=5) == 1
    settle(bench, 1)
    bench.restart()
    assert bench.machine.tally.tasks_given == 2
    assert counted(bench, payloads=2, delay_ms=5) == 3
    assert settle(bench, 2) == 0
    assert [run.task for run in numbered(bench)] == [3]


def test_a_retried_request_gets_its_number_again(bench: Bench) -> None:
    """In a session a poll happens once."""
    opened = bench.do(c.OpenSession())
    bench.push("q", 2)
    lease = c.Lease(("q",), 1, 1_000, bench.lease_ms, None, True)
    first = bench.do(lease, opened.session, 1, 1)
    bench.restart()
    assert bench.do(lease, opened.session, 1, 1).runs[0].task == first.runs[0].task == 1
    push = c.Push("q", columns([b"x"]), counted=True)
    assert bench.do(push, opened.session, 2, 1) == bench.do(push, opened.session, 2, 1)
    bench.restart()
    assert bench.do(push, opened.session, 2, 1).number == 2


def test_a_counted_push_tells_what_is_ready_behind_it(bench: Bench) -> None:
    """All priorities; neither leased nor delayed ones."""
    assert counted(bench, payloads=3) == 3
    bench.lease("q", 1)
    assert counted(bench, priority=9) == 3
    assert counted(bench, delay_ms=50) == 1
    assert counted(bench, "p", delay_ms=0) == 2
    assert counted(bench) == 4
    assert bench.push().number == 0


def test_messages_move_on_with_their_answer(bench: Bench) -> None:
    """In one step, in order, with what they have; the target is made when something moves."""
    first, second = bench.ids(payloads=2, priority=4)
    granted = bench.do(c.Lease(("nothing", "q"), 1, None, bench.lease_ms, into="p"))
    (run,) = granted.runs
    assert (run.queue, run.lease, run.task, run.first_id, run.count, run.priority) == ("q", 0, 0, first, 1, 4)
    assert [m.id for m in bench.peek(queue="p")] == [first]
    assert bench.do(c.Lease(("nothing",), 1, None, bench.lease_ms, into="new")).runs == ()
    assert "new" not in bench.machine.queues
    assert [m.id for m in bench.peek()] == [second]
    assert bench.machine.tally.leases == 0


def test_a_full_target_refuses_what_moves_on(bench: Bench) -> None:
    """And the message stays where it was."""
    bench.push()
    bench.do(c.SetQueue("p", {"max_length": 1}))
    bench.push("p")
    refused = bench.do(c.Lease(("q",), 1, None, bench.lease_ms, into="p"))
    assert isinstance(refused, api.Failed) and refused.code == Code.QUEUE_FULL
    assert len(bench.peek()) == 1


def test_what_moved_on_is_not_moved_again_by_a_retry(bench: Bench) -> None:
    """Its payload is not remembered: the outcome is unknown, and nothing happens."""
    opened = bench.do(c.OpenSession())
    bench.push(payloads=2)
    lease = c.Lease(("q",), 1, None, bench.lease_ms, into="p")
    assert len(bench.do(lease, opened.session, 1, 1).runs) == 1
    bench.restart()
    again = bench.do(lease, opened.session, 1, 1)
    assert isinstance(again, api.Failed) and again.code == Code.OUTCOME_UNKNOWN
    assert len(bench.peek()) == 1


def test_version_1_reads_and_writes_as_ever() -> None:
    """No byte of an image, and none of an entry, changes before the version is raised."""
    bench = Bench()
    bench.push(payloads=2)
    bench.lease(limit=1)
    pages = image.full_pages(bench.machine)
    machine_page = cbor2.loads(pages[image.MACHINE_KEY])
    assert len(machine_page) == 6
    assert len(cbor2.loads(c.encode_entry(c.Stamp(0, 0), [c.Tagged(c.Push("q", columns([b"x"])))]))[3][0]) == 11
    assert len(cbor2.loads(c.encode_entry(c.Stamp(0, 0), [c.Tagged(c.Lease(("q",), 1, 1, 1))]))[3][0]) == 9
    loaded = image.load(list(pages.items()))
    assert (loaded.version, loaded.tally.tasks_given) == (1, 0)


def test_since_which_version_depends_on_what_a_command_says() -> None:
    """The kinds are old, what they can say is new."""
    assert c.since(c.Push("q", columns([b"x"]))) == 1
    assert c.since(c.Push("q", columns([b"x"]), counted=True)) == 2
    assert c.since(c.Lease(("q",), 1, 1, 1)) == 1
    assert c.since(c.Lease(("q",), 1, 1, 1, numbered=True)) == 2
    assert c.since(c.Lease(("q",), 1, 1, 1, into="p")) == 2


def test_a_restored_copy_numbers_where_the_original_never_comes(bench: Bench) -> None:
    """Or a worker of the original would settle the copy's message."""
    bench.push("q", 2)
    numbered(bench)
    pages = [(key, image.branched(key, body)) for key, body in image.full_pages(bench.machine).items()]
    copy: Machine = image.load(pages)
    assert copy.tally.tasks_given == 1 + image.LEASES_SKIPPED
    assert list(copy.tally.tasks) == [1]
