"""Order: FIFO within a priority, places kept, groups in sequence, turns round robin."""

from __future__ import annotations

from tests.queues.bench import Bench
from walrq.api import SettleKind, State
from walrq.queues import commands as c


def test_first_in_first_out_within_a_priority(bench: Bench) -> None:
    """FirstDeliveryOrder: batches and single messages alike."""
    pushed = [*bench.ids(payloads=3), *bench.ids(), *bench.ids(payloads=2)]

    assert pushed == [m for _ in range(3) for m in bench.take(limit=2)]


def test_higher_priority_goes_first(bench: Bench) -> None:
    """0 to 255, higher first."""
    low, middle, high = (bench.ids(payloads=2, priority=p) for p in (0, 7, 255))

    assert [*high, *middle, *low] == bench.take()


def test_released_messages_return_to_their_place(bench: Bench) -> None:
    """L11: neither to the head nor to the tail, but where they were."""
    messages = bench.ids(payloads=4)
    runs = [run for _ in range(4) for run in bench.lease(limit=1)]
    for position in (2, 0, 3, 1):
        bench.release(runs[position])

    assert messages == bench.take()


def test_expired_messages_return_to_their_place(bench: Bench) -> None:
    """Before younger ones that were never leased."""
    first, second, third = bench.ids(payloads=3)
    bench.take(limit=2, visibility_ms=10)
    bench.wait(10)

    assert [first, second, third] == bench.take()


def test_failed_message_with_delay_zero_goes_behind_ready_ones(bench: Bench) -> None:
    """Behind what is ready at that moment, before what comes later."""
    first, second = bench.ids(payloads=2)
    (run,) = bench.lease(limit=1)
    bench.fail(run, delay_ms=0)
    (third,) = bench.ids()

    assert [second, first, third] == bench.take()


def test_poison_message_does_not_hold_the_line(bench: Bench) -> None:
    """A worker that fails the same message at once over and over still reaches the others."""
    bench.set(max_deliveries=100)
    poison, *good = bench.ids(payloads=6)
    handled = []
    for _ in range(11):
        (run,) = bench.lease(limit=1)
        if run.first_id == poison:
            bench.fail(run, delay_ms=0)
        else:
            handled.append(run.first_id)
            bench.ack(run)

    assert good == handled


def test_a_failed_message_returns_to_its_new_place_after_expiry(bench: Bench) -> None:
    """The place it got by failing is its place from then on."""
    bench.set(max_deliveries=10)
    first, second, third = bench.ids(payloads=3)
    (run,) = bench.lease(limit=1)
    bench.fail(run, delay_ms=0)
    assert [second, third, first] == bench.take(visibility_ms=10)
    bench.wait(10)

    assert [second, third, first] == bench.take()


def test_failed_message_returns_to_its_place_after_its_backoff(bench: Bench) -> None:
    """A fail with a delay waits, then stands where it stood."""
    first, second = bench.ids(payloads=2)
    (run,) = bench.lease(limit=1)
    bench.fail(run, delay_ms=50)
    bench.wait(49)
    bench.tick()
    assert [second] == [m.id for m in bench.peek()]
    bench.wait(1)

    assert [first, second] == bench.take()


def test_backoff_doubles_up_to_its_bound(bench: Bench) -> None:
    """Queue settings: 1 s doubling to 60 s by default."""
    bench.set(max_deliveries=100)
    bench.push()
    waits = []
    for _ in range(8):
        (run,) = bench.lease(visibility_ms=1_000_000)
        bench.fail(run)
        deadline = bench.machine.next_lease_deadline()
        assert deadline is not None
        waits.append(deadline - bench.lease_ms)
        bench.wait(waits[-1])

    assert [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000] == waits


def test_backoff_of_very_many_attempts_is_still_bounded(bench: Bench) -> None:
    """Doubling does not run away."""
    bench.set(max_deliveries=1_000_000, backoff_ms=1, backoff_max_ms=5)
    bench.push()
    for _ in range(120):
        (run,) = bench.lease()
        bench.fail(run)
        bench.wait(5)

    assert [120] == [run.attempts for run in bench.lease()]


def test_backoff_follows_the_lease_clock(bench: Bench) -> None:
    """A jump of the wall clock shortens no back-off."""
    bench.push()
    (run,) = bench.lease()
    bench.fail(run, delay_ms=100)
    bench.wait(99, wall_ms=10_000_000)

    assert [] == bench.take()


# --- groups -------------------------------------------------------------------------------------------------
def test_a_group_has_one_message_in_flight(bench: Bench) -> None:
    """GroupLimit: the next one starts when the one before is settled."""
    first, second = bench.ids(payloads=2, groups=["g", "g"])
    (run,) = bench.lease()
    assert first == run.first_id
    assert [] == bench.lease()
    bench.ack(run)

    assert [second] == bench.take()


def test_group_limit_allows_several_in_flight(bench: Bench) -> None:
    """With N > 1 only starts are ordered."""
    bench.set(group_limit=2)
    messages = bench.ids(payloads=3, groups=["g"] * 3)

    assert messages[:2] == bench.take()
    assert [] == bench.take()


def test_raising_the_group_limit_wakes_the_queue(bench: Bench) -> None:
    """NoLostWakeup: a parked poll learns of it."""
    first, second = bench.ids(payloads=2, groups=["g", "g"])
    assert [first] == bench.take()
    bench.machine.take_effects()
    bench.set(group_limit=2)

    assert "q" in bench.machine.take_effects().woken
    assert [second] == bench.take()


def test_inside_a_group_priority_is_ignored(bench: Bench) -> None:
    """Sequence order whatever the priorities."""
    (low,) = bench.ids(groups=["g"], priority=0)
    (high,) = bench.ids(groups=["g"], priority=9)
    (run,) = bench.lease()
    bench.ack(run)

    assert (low, [high]) == (run.first_id, bench.take())


def test_group_waits_for_its_failed_head(bench: Bench) -> None:
    """A failed message keeps its place, and nothing of its group overtakes it while it backs off."""
    head, follower = bench.ids(payloads=2, groups=["g", "g"])
    (other,) = bench.ids(groups=["h"])
    (run,) = bench.lease(limit=1)
    bench.fail(run, delay_ms=100)

    assert [other] == bench.take()
    bench.wait(100)
    (again,) = bench.lease()
    assert head == again.first_id
    bench.ack(again)
    assert [follower] == bench.take()


def test_group_waits_for_its_expired_head(bench: Bench) -> None:
    """Expiry keeps the place too."""
    head, _ = bench.ids(payloads=2, groups=["g", "g"])
    bench.take(visibility_ms=10)
    bench.wait(10)

    assert [head] == bench.take()


def test_failed_grouped_message_with_delay_zero_keeps_its_place(bench: Bench) -> None:
    """In a group, order is worth more than a free line."""
    head, _ = bench.ids(payloads=2, groups=["g", "g"])
    (run,) = bench.lease()
    bench.fail(run, delay_ms=0)

    assert [head] == bench.take()


def test_the_group_goes_on_when_its_head_is_dead(bench: Bench) -> None:
    """A head that reached its limit holds nobody up."""
    bench.set(max_deliveries=1)
    head, follower = bench.ids(payloads=2, groups=["g", "g"])
    (run,) = bench.lease()
    bench.fail(run)

    assert [head] == [m.id for m in bench.dead()]
    assert [follower] == bench.take()


def test_delayed_message_does_not_block_its_group(bench: Bench) -> None:
    """A is ready, B is delayed: A is delivered, and so is C, and B when it is due."""
    (first,) = bench.ids(groups=["g"])
    (delayed,) = bench.ids(groups=["g"], delay_ms=100)
    (third,) = bench.ids(groups=["g"])
    order = []
    for _ in range(2):
        (run,) = bench.lease()
        order.append(run.first_id)
        bench.ack(run)
    assert [first, third] == order
    bench.wait(100)

    assert [delayed] == bench.take()


def test_delayed_message_joins_its_group_by_sequence(bench: Bench) -> None:
    """Once due it stands before younger ones."""
    (delayed,) = bench.ids(groups=["g"], delay_ms=100)
    bench.ids(groups=["g"])
    bench.wait(100)

    assert [delayed] == bench.take()


def test_groups_take_turns(bench: Bench) -> None:
    """Round robin: a long group does not starve a short one."""
    a = bench.ids(payloads=3, groups=["a"] * 3)
    b = bench.ids(payloads=3, groups=["b"] * 3)
    order = []
    for _ in range(6):
        (run,) = bench.lease(limit=1)
        order.append(run.first_id)
        bench.ack(run)

    assert [a[0], b[0], a[1], b[1], a[2], b[2]] == order


def test_ungrouped_messages_are_one_lane(bench: Bench) -> None:
    """They take turns with the groups, without a limit of their own."""
    free = bench.ids(payloads=3)
    (grouped,) = bench.ids(groups=["g"])

    assert [free[0], grouped, free[1], free[2]] == bench.take()


def test_groups_with_a_higher_head_go_first(bench: Bench) -> None:
    """The turn is among groups whose head has the highest priority."""
    low = bench.ids(payloads=2, groups=["a", "b"], priority=1)
    (high,) = bench.ids(groups=["c"], priority=2)
    (free,) = bench.ids(priority=1)

    assert [high, *low, free] == bench.take()


def test_turns_go_on_after_a_restart(bench: Bench) -> None:
    """The pointer is state."""
    a = bench.ids(payloads=2, groups=["a"] * 2)
    b = bench.ids(payloads=2, groups=["b"] * 2)
    (run,) = bench.lease(limit=1)
    bench.ack(run)
    bench.restart()

    assert (a[0], [b[0], a[1]]) == (run.first_id, bench.take(limit=2))


def test_raised_group_limit_gives_the_same_turns_after_a_restart() -> None:
    """Replicas that lived through it and replicas loaded from an image answer alike."""
    orders = []
    for restarted in (False, True):
        bench = Bench()
        (early,) = bench.ids(groups=["z"], priority=0)
        bench.push(payloads=2, groups=["a", "a"])
        bench.push(payloads=2, groups=["z", "b"])
        bench.push(groups=["b"])
        assert early in bench.take(limit=3)
        if restarted:
            bench.restart()
        bench.set(group_limit=2)
        orders.append(bench.take())

    assert 3 == len(orders[0])
    assert orders[0] == orders[1]


def test_a_batch_of_many_groups_is_one_run_a_stretch(bench: Bench) -> None:
    """Apply makes one run per stretch of equal group; receipts never span groups."""
    messages = bench.ids(payloads=5, groups=["a", "a", None, None, "b"])
    runs = bench.lease()

    assert [messages[0], messages[2], messages[4], messages[3]] == [
        run.first_id + k for run in runs for k in range(run.count)
    ]
    assert {"a", None, "b"} == {run.group for run in runs}


def test_release_of_a_grouped_message_lets_it_go_first_again(bench: Bench) -> None:
    """Free, at its place."""
    head, _ = bench.ids(payloads=2, groups=["g", "g"])
    (run,) = bench.lease()
    bench.settle(run, SettleKind.RELEASE)

    assert [head] == bench.take()


def test_cancelling_a_failed_head_frees_its_group(bench: Bench) -> None:
    """The group waits for a message, not for a memory of one; a parked poll is woken."""
    head, follower = bench.ids(payloads=2, groups=["g", "g"])
    (run,) = bench.lease()
    bench.fail(run, delay_ms=1_000_000)
    bench.machine.take_effects()
    bench.do(c.Cancel("q", (head,)))

    assert "q" in bench.machine.take_effects().woken
    assert [follower] == bench.take()


def test_rescheduling_a_failed_head_frees_its_group(bench: Bench) -> None:
    """It became a delayed message, which blocks nothing."""
    head, follower = bench.ids(payloads=2, groups=["g", "g"])
    (run,) = bench.lease()
    bench.fail(run, delay_ms=1_000_000)
    bench.do(c.Reschedule("q", head, bench.wall_ms + 500))

    assert [follower] == bench.take()
    assert [head] == [m.id for m in bench.peek(State.DELAYED)]
