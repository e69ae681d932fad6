"""Leases: one holder, fenced by number and deadline, measured by the lease clock alone."""

from __future__ import annotations

import pytest

from tests.queues.bench import Bench
from walrq import api, ids
from walrq.api import SettleKind, State
from walrq.errors import Code
from walrq.queues import commands as c
from walrq.queues import effects
from walrq.queues.machine import Bounds

EXPIRED = int(Code.RECEIPT_EXPIRED)
INVALID = int(Code.INVALID_ARGUMENT)


def test_a_leased_message_goes_to_nobody_else_while_the_lease_runs(bench: Bench) -> None:
    """Exclusive: up to the last millisecond."""
    (message,) = bench.ids()
    assert [message] == bench.take(visibility_ms=100)
    bench.wait(99)

    assert [] == bench.take()


def test_a_lease_is_over_at_its_deadline(bench: Bench) -> None:
    """The deadline itself no longer belongs to the lease."""
    (message,) = bench.ids()
    bench.take(visibility_ms=100)
    bench.wait(100)

    assert [message] == bench.take()


def test_late_ack_after_expiry_is_refused(bench: Bench) -> None:
    """AckBeforeDeadline: the message stays intact, before and after another worker received it."""
    bench.push()
    (late,) = bench.lease(visibility_ms=100)
    bench.wait(100)

    assert EXPIRED == bench.ack(late)
    (newer,) = bench.lease()
    assert EXPIRED == bench.ack(late)
    assert (0, 0, 1, 0) == bench.counts()
    assert 0 == bench.ack(newer)


def test_late_ack_is_refused_even_if_nobody_swept_yet() -> None:
    """A stamp may be too busy to expire all that is due; what is due counts as expired when touched."""
    bench = Bench(Bounds(expire_per_entry=1))
    bench.push("a")
    bench.push("q")
    bench.lease("a", visibility_ms=50)
    (late,) = bench.lease("q", visibility_ms=100)
    bench.wait(100)
    refused = c.Settle("q", SettleKind.ACK, (c.Target(late.uid, late.lease),))
    touched = c.Touch("q", refused.targets, 1_000)

    # Both in one entry, whose stamp only had room to sweep the other queue's lease.
    results = bench.apply(c.Tagged(refused), c.Tagged(touched))
    assert [api.Settled((EXPIRED,)), api.Touched((EXPIRED,), (0,))] == results
    assert (0, 0, 1, 0) == bench.counts("q")
    bench.tick()
    assert (1, 0, 0, 0) == bench.counts("q")


@pytest.mark.parametrize("kind", SettleKind)
def test_a_receipt_works_once(bench: Bench, kind: SettleKind) -> None:
    """AckFenced: whatever way a message was given back, its receipt is spent."""
    bench.push()
    (run,) = bench.lease()
    assert 0 == bench.settle(run, kind, delay_ms=0 if kind is SettleKind.FAIL else None)
    before = bench.counts()

    for again in SettleKind:
        assert EXPIRED == bench.settle(run, again)
    assert (EXPIRED, 0) == bench.touch(run, 1_000)
    assert before == bench.counts()


def test_an_older_receipt_does_not_settle_a_newer_lease(bench: Bench) -> None:
    """L04: two leases of one message have two numbers."""
    bench.push()
    (old,) = bench.lease()
    bench.release(old)
    (new,) = bench.lease()

    assert EXPIRED == bench.ack(old)
    assert old.lease != new.lease
    assert 0 == bench.ack(new)


def test_receipts_survive_a_restart_and_stay_as_they_were(bench: Bench) -> None:
    """The newest works, older ones do not, after a restart as before."""
    bench.push(payloads=2)
    (old,) = bench.lease(limit=1)
    bench.release(old)
    (new,) = bench.lease(limit=1)
    bench.restart()

    assert EXPIRED == bench.ack(old)
    assert 0 == bench.ack(new)
    assert EXPIRED == bench.ack(new)


def test_a_receipt_of_another_queue_is_refused(bench: Bench) -> None:
    """Right number, wrong queue: nothing is removed."""
    bench.push("q")
    bench.push("other")
    (run,) = bench.lease("q")
    bench.lease("other")

    assert EXPIRED == bench.settle(run, queue="other")
    assert ((0, 0, 1, 0), (0, 0, 1, 0)) == (bench.counts("q"), bench.counts("other"))


def test_a_fabricated_lease_number_is_refused(bench: Bench) -> None:
    """Numbers that were never given, and uids that never were."""
    bench.push()
    (run,) = bench.lease()
    for uid, lease in ((run.uid, run.lease + 1), (run.uid, 0), (run.uid + 1, run.lease), (0, run.lease)):
        settled = bench.do(c.Settle("q", SettleKind.ACK, (c.Target(uid, lease),)))

        assert api.Settled((EXPIRED,)) == settled


@pytest.mark.parametrize("ranges", [((0, 3),), ((3, 3),), ((2, 1),), ((-1, 0),), ((0, 0), (5, 5)), ()])
def test_offsets_outside_the_lease_are_refused_whole(bench: Bench, ranges: tuple[tuple[int, int], ...]) -> None:
    """INVALID_ARGUMENT, and nothing of the item changes."""
    bench.push(payloads=3)
    (run,) = bench.lease()

    assert INVALID == bench.ack(run, ranges)
    assert (0, 0, 3, 0) == bench.counts()
    assert 0 == bench.ack(run)


def test_an_item_that_names_a_settled_message_changes_nothing(bench: Bench) -> None:
    """All or nothing per item; the other items of the request are judged for themselves."""
    bench.push(payloads=3)
    bench.push(payloads=1)
    first, second = bench.lease()
    bench.ack(first, ((1, 1),))
    targets = (
        c.Target(first.uid, first.lease, ((0, 1),)),
        c.Target(second.uid, second.lease),
        c.Target(first.uid, first.lease, ((0, 0), (2, 2))),
    )

    assert api.Settled((EXPIRED, 0, 0)) == bench.do(c.Settle("q", SettleKind.ACK, targets))
    assert (0, 0, 0, 0) == bench.counts()


def test_items_are_handled_in_order(bench: Bench) -> None:
    """The same receipt twice in one request: the second one is spent."""
    bench.push()
    (run,) = bench.lease()
    target = c.Target(run.uid, run.lease)

    assert api.Settled((0, EXPIRED)) == bench.do(c.Settle("q", SettleKind.ACK, (target, target)))


def test_partial_ack_leaves_the_siblings_leased(bench: Bench) -> None:
    """A split is a slice: what was not named goes on as before."""
    first, second, third = bench.ids(payloads=3)
    (run,) = bench.lease(visibility_ms=100)
    bench.ack(run, ((1, 1),))
    bench.wait(100)

    assert [first, third] == bench.take()
    assert second not in [m.id for m in bench.peek(State.LEASED)]


def test_a_receipt_without_ranges_names_what_is_left(bench: Bench) -> None:
    """None = all still outstanding."""
    bench.push(payloads=3)
    (run,) = bench.lease()
    bench.ack(run, ((0, 0),))

    assert 0 == bench.ack(run)
    assert (0, 0, 0, 0) == bench.counts()


def test_settling_an_absent_queue_names_the_nearest(bench: Bench) -> None:
    """QueueNotFound helps with a typing mistake."""
    bench.set("orders")
    for command in (
        c.Settle("ordres", SettleKind.ACK, (c.Target(1, 1),)),
        c.Touch("ordres", (c.Target(1, 1),), 10),
    ):
        failed = bench.do(command)

        assert int(Code.QUEUE_NOT_FOUND) == failed.code
        assert "orders" == failed.details["nearest"]


# --- touch --------------------------------------------------------------------------------------------------
def test_touch_counts_from_now(bench: Bench) -> None:
    """NotEarly (L08): the lease lasts as long as touch said."""
    (message,) = bench.ids()
    (run,) = bench.lease(visibility_ms=100)
    bench.wait(90)

    assert (0, 500) == bench.touch(run, 500)
    bench.wait(499)
    assert [] == bench.take()
    bench.wait(1)
    assert [message] == bench.take()


def test_touch_never_shortens(bench: Bench) -> None:
    """A shorter visibility than what is left changes nothing, and the answer says what is left."""
    bench.push()
    (run,) = bench.lease(visibility_ms=1_000)

    assert (0, 1_000) == bench.touch(run, 10)
    bench.wait(999)
    assert [] == bench.take()


def test_touch_after_the_deadline_revives_nothing(bench: Bench) -> None:
    """Exclusive (L07): a typed error, so that the client can cancel its handler."""
    (message,) = bench.ids()
    (run,) = bench.lease(visibility_ms=100)
    bench.wait(100)

    assert (EXPIRED, 0) == bench.touch(run, 1_000)
    assert [message] == bench.take()


def test_touch_of_some_messages_moves_only_their_deadline(bench: Bench) -> None:
    """A worker that keeps one of three loses the other two at their own time."""
    first, second, third = bench.ids(payloads=3)
    (run,) = bench.lease(visibility_ms=100)
    bench.touch(run, 1_000, ((1, 1),))
    bench.wait(100)

    assert [first, third] == bench.take()
    assert 0 == bench.ack(run, ((1, 1),))
    assert EXPIRED == bench.ack(run, ((0, 0),))
    assert second not in bench.take()


def test_ack_after_a_touch_with_the_same_receipt_is_final(bench: Bench) -> None:
    """Receive, extend, ack with the same token: gone for ever."""
    bench.push()
    (run,) = bench.lease(visibility_ms=100)
    bench.touch(run, 5_000)
    bench.wait(200)

    assert 0 == bench.ack(run)
    bench.wait(10_000)
    assert [] == bench.take()


def test_touch_lasts_without_limit(bench: Bench) -> None:
    """Beyond 12 hours by touching again: a long job runs once."""
    bench.push()
    (run,) = bench.lease(visibility_ms=30_000)
    for _ in range(2_000):
        bench.wait(29_000)
        assert (0, 30_000) == bench.touch(run, 30_000)

    assert [] == bench.take()
    assert 0 == bench.ack(run)


def test_many_touches_to_one_instant_come_back_together(bench: Bench) -> None:
    """Each message returns once, whatever number of old timers is left behind."""
    messages = bench.ids(payloads=200)
    runs = [run for _ in range(200) for run in bench.lease(limit=1, visibility_ms=10)]
    for run in runs:
        bench.touch(run, 5_000)
    bench.wait(4_999)
    assert [] == bench.take()
    bench.wait(1)

    assert messages == bench.take(limit=1_000)
    assert {2} == {m.delivery for m in bench.peek(State.LEASED)}


# --- clocks -------------------------------------------------------------------------------------------------
def test_leases_do_not_follow_the_wall_clock(bench: Bench) -> None:
    """L01: a jump of the wall clock ends no lease, a wall clock that stands still prolongs none."""
    (message,) = bench.ids()
    bench.lease(visibility_ms=100)
    bench.wait(50, wall_ms=3_600_000)
    assert [] == bench.take()
    bench.wait(50, wall_ms=0)

    assert [message] == bench.take()


def test_a_stamp_that_goes_back_is_our_own_mistake(bench: Bench) -> None:
    """ClockMonotonic: the machine does not go on with it."""
    bench.tick()
    for lease_ms, wall_ms in ((-1, 0), (0, -1)):
        stamp = c.Stamp(bench.lease_ms + lease_ms, bench.wall_ms + wall_ms)
        with pytest.raises(AssertionError):
            bench.machine.apply(bench.index + 1, stamp, [])


def test_leases_of_different_lengths_end_at_their_own_times(bench: Bench) -> None:
    """Leases of 1 s and 60 s lost together: each message returns at its own time."""
    short, long = bench.ids(payloads=2)
    bench.lease(limit=1, visibility_ms=1_000)
    bench.lease(limit=1, visibility_ms=60_000)
    bench.wait(1_000)
    assert [short] == bench.take(visibility_ms=600_000)
    bench.wait(58_999)
    assert [] == bench.take()
    bench.wait(1)

    assert [long] == bench.take()


def test_the_next_deadline_is_known(bench: Bench) -> None:
    """The reaper sleeps until then and no longer."""
    bench.push(payloads=2)
    bench.push(delay_ms=700)
    bench.lease(limit=1, visibility_ms=400)
    bench.lease(limit=1, visibility_ms=300)

    assert bench.lease_ms + 300 == bench.machine.next_lease_deadline()
    assert bench.wall_ms + 700 == bench.machine.next_wall_deadline()
    bench.wait(700)
    bench.tick()
    assert (None, None) == (bench.machine.next_lease_deadline(), bench.machine.next_wall_deadline())


# --- what a lease answers -----------------------------------------------------------------------------------
def test_delivery_grows_with_every_lease_and_attempts_only_with_failures(bench: Bench) -> None:
    """ReceiptsRise and Bound: release is free."""
    bench.push()
    seen = []
    for kind in (SettleKind.RELEASE, SettleKind.FAIL, SettleKind.RELEASE):
        (run,) = bench.lease()
        seen.append((run.delivery, run.attempts))
        bench.settle(run, kind, delay_ms=0 if kind is SettleKind.FAIL else None)
    (run,) = bench.lease()

    assert [(1, 0), (2, 0), (3, 1), (4, 1)] == [*seen, (run.delivery, run.attempts)]


def test_the_fence_is_the_address_of_the_lease_command(bench: Bench) -> None:
    """ReceiptsRise: other systems compare (index, ordinal)."""
    bench.push(payloads=2)
    lease = c.Tagged(c.Lease(("q",), 1, 1_000, bench.lease_ms))
    results = bench.apply(lease, lease)
    fences = [r.runs[0].fence for r in results if isinstance(r, effects.Granted)]

    assert [(bench.index, 0), (bench.index, 1)] == fences


def test_a_poll_takes_from_the_first_queue_that_has_something(bench: Bench) -> None:
    """Many queues in one poll, one queue in its answer."""
    bench.push("b", payloads=2)
    bench.push("c", payloads=2)

    assert {"b"} == {run.queue for run in bench.lease(("a", "b", "c"))}
    assert {"c"} == {run.queue for run in bench.lease(("a", "b", "c"))}
    assert [] == bench.lease(("a", "b", "c"))
    assert "a" not in bench.machine.queues


def test_a_poll_on_an_absent_queue_creates_nothing(bench: Bench) -> None:
    """Looking for work is no reason for a queue to be."""
    assert [] == bench.lease("nowhere")
    assert {} == bench.machine.queues


def test_visibility_defaults_to_the_queues_setting(bench: Bench) -> None:
    """And the answer says which it was, and how long the poll had been parked."""
    bench.set(visibility_ms=77)
    bench.push()
    granted = bench.do(c.Lease(("q",), 1, None, bench.lease_ms - 12))

    assert (77, 12) == (granted.visibility_ms, granted.parked_ms)
    bench.wait(77)
    assert 1 == len(bench.take())


@pytest.mark.parametrize("visibility_ms", [0, 1])
def test_visibility_zero_never_gives_a_message_twice_in_one_answer(bench: Bench, visibility_ms: int) -> None:
    """A lease that is over at once still belongs to one answer only."""
    (message,) = bench.ids()

    assert [message] == bench.take(limit=10, visibility_ms=visibility_ms)


def test_max_in_flight_bounds_leased_messages_and_can_be_raised(bench: Bench) -> None:
    """Fill the cap, raise it live, restart: everything drains."""
    messages = bench.ids(payloads=5)
    bench.set(max_in_flight=2)
    assert messages[:2] == bench.take()
    assert [] == bench.take()
    assert 0 == bench.machine.available("q")
    bench.set(max_in_flight=4)
    assert messages[2:4] == bench.take()
    bench.restart()
    bench.set(max_in_flight=None)

    assert messages[4:] == bench.take()


def test_a_paused_queue_gives_nothing_until_it_goes_on(bench: Bench) -> None:
    """Pushes and settles go on meanwhile."""
    bench.push()
    (run,) = bench.lease()
    bench.set(paused=True)
    (message,) = bench.ids()
    assert [] == bench.take()
    assert 0 == bench.ack(run)
    bench.machine.take_effects()
    bench.set(paused=False)

    assert "q" in bench.machine.take_effects().woken
    assert [message] == bench.take()


def test_release_costs_nothing_and_returns_to_its_place(bench: Bench) -> None:
    """Free: attempts stay, the message is first again."""
    first, second = bench.ids(payloads=2)
    (run,) = bench.lease(limit=1)
    bench.release(run)
    message = bench.peek()[0]

    assert (first, 0, ()) == (message.id, message.attempts, message.history)
    assert [first, second] == bench.take()


def test_undo_is_free(bench: Bench) -> None:
    """A reply that was not delivered ends as if it had never been; the delivery still fences."""
    (message,) = bench.ids()
    (run,) = bench.lease()
    bench.do(c.Undo((c.Target(run.uid, run.lease), c.Target(run.uid, 99), c.Target(1, 1))))
    (again,) = bench.lease()

    assert (message, 2, 0) == (again.first_id, again.delivery, again.attempts)
    assert EXPIRED == bench.ack(run)


def test_undo_of_a_lease_that_is_over_changes_nothing(bench: Bench) -> None:
    """It expired: that attempt counts."""
    bench.push()
    (run,) = bench.lease(visibility_ms=100)
    bench.wait(100)
    bench.do(c.Undo((c.Target(run.uid, run.lease),)))

    assert [1] == [m.attempts for m in bench.peek()]


def test_in_flight_leases_are_bounded_with_a_refusal() -> None:
    """Overloaded names the bound; nothing is leased, nothing lost; an ack makes room."""
    bench = Bench(Bounds(in_flight_runs_max=2))
    bench.push(payloads=3)
    (run,) = bench.lease(limit=1)
    bench.lease(limit=1)
    refused = bench.do(c.Lease(("q",), 1, 1_000, bench.lease_ms))

    assert (int(Code.OVERLOADED), "in_flight_runs_max") == (refused.code, refused.details["limit"])
    assert (1, 0, 2, 0) == bench.counts()
    bench.ack(run)
    assert 1 == len(bench.take(limit=1))


def test_one_answer_stays_below_the_largest_reply(bench: Bench) -> None:
    """A poll never outgrows its frame, and never stays empty because the first message is large."""
    bench.push(payloads=[b"x" * 9_000_000])
    bench.push(payloads=[b"x" * 9_000_000])
    bench.push(payloads=[b"x" * 20_000_000])

    assert [1, 1, 1] == [len(bench.take()) for _ in range(3)]


def test_peek_shows_the_time_that_is_left(bench: Bench) -> None:
    """And changes nothing."""
    bench.push()
    bench.lease(visibility_ms=500, worker="w")
    bench.wait(200)
    bench.tick()

    assert [300] == [m.deadline_in_ms for m in bench.peek(State.LEASED)]
    assert [300] == [m.deadline_in_ms for m in bench.peek(State.LEASED)]


def test_a_run_is_a_stretch_of_one_batch(bench: Bench) -> None:
    """Receipts address messages by offset: id + k is the k-th."""
    first = bench.ids(payloads=3)
    second = bench.ids(payloads=2)
    runs = bench.lease()

    assert [(first[0], 3, 0), (second[0], 2, 0)] == [(r.first_id, r.count, r.first) for r in runs]
    assert [(1, 0), (2, 0)] == [(r.index, r.ordinal) for r in runs]
    assert ids.id_parts(first[0])[2] + 3 == ids.id_parts(second[0])[2]
