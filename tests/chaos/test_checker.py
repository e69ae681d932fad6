"""Every violation is planted once and found under its name; what looks odd but is allowed passes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chaos import checker
from chaos.history import HistoryError, parse
from chaos.invariants import INVARIANTS
from tests.chaos.story import Story, broken


def test_a_plain_run_is_valid() -> None:
    """A checker that cries wolf is soon ignored."""
    story = Story()
    story.push([1, 2, 3])
    story.settle(story.poll([1, 2, 3]))
    story.show()
    story.drained()
    verdict = story.verdict()

    assert verdict.valid, checker.report(verdict)
    assert 3 == verdict.counts["messages settled for good"]


def test_without_a_drain_nothing_is_said_about_loss() -> None:
    """Messages that had no chance to come out are not lost, and the run is not proven either."""
    story = Story()
    story.push([1])
    verdict = story.verdict()

    assert not verdict.valid
    assert 0 == verdict.violations
    assert ["NoSilentLoss"] == verdict.as_dict()["not_judged"]


# --- NoSilentLoss -------------------------------------------------------------------------------------------
def test_a_push_that_never_comes_out_is_lost() -> None:
    """The first promise: acknowledged means delivered."""
    story = Story()
    story.push([1, 2])
    story.settle(story.poll([1]))
    story.drained()

    assert {"NoSilentLoss"} == broken(story.verdict())


def test_a_message_that_never_returns_from_an_expired_lease_is_lost() -> None:
    """Being delivered once is not enough when nobody acknowledged it."""
    story = Story()
    story.push([1])
    story.poll([1])
    story.drained()

    assert {"NoSilentLoss"} == broken(story.verdict())


def test_a_released_message_that_never_returns_is_lost() -> None:
    """Giving back must not be throwing away."""
    story = Story()
    story.push([1])
    story.settle(story.poll([1]), "release")
    story.drained()

    assert {"NoSilentLoss"} == broken(story.verdict())


@pytest.mark.parametrize("end", ["info", "fail"])
def test_a_push_without_a_good_answer_may_be_absent(end: str) -> None:
    """Unknown is maybe; refused is never."""
    story = Story()
    story.push([1], end=end)
    story.drained()

    assert story.verdict().valid


def test_a_push_with_a_ttl_may_vanish() -> None:
    """Its owner asked for it."""
    story = Story()
    story.push([1], ttl_ms=10)
    story.drained()

    assert story.verdict().valid


def test_an_ack_of_unknown_outcome_may_have_ended_the_message() -> None:
    """The false loss that Jepsen's SQS workload of another queue reports."""
    story = Story()
    story.push([1])
    story.settle(story.poll([1]), end="info")
    story.drained()

    assert story.verdict().valid


def test_an_ack_of_unknown_outcome_may_have_had_no_effect() -> None:
    """Then the lease expires and the message comes again."""
    story = Story()
    story.push([1])
    story.settle(story.poll([1]), end="info")
    story.wait(1_100)
    story.settle(story.poll([1], by="w2", delivery=2), by="w2")
    story.drained()

    assert story.verdict().valid


# --- NoPhantom ----------------------------------------------------------------------------------------------
def test_a_value_nobody_pushed_is_a_phantom() -> None:
    """Zero-filled tails and recycled segments must not become messages."""
    story = Story()
    story.push([1])
    story.poll([7])

    assert {"NoPhantom"} == broken(story.verdict())


def test_a_corrupt_payload_is_a_phantom() -> None:
    """A payload that fails its own checksum was never pushed."""
    story = Story()
    story.push([1])
    story.poll([-1], ids=[1])

    assert {"NoPhantom"} == broken(story.verdict())


def test_a_refused_push_that_is_delivered_is_a_phantom() -> None:
    """Definite means definite, whichever of delivery and refusal is seen first."""
    after = Story()
    after.push([1], end="fail")
    after.poll([1])
    before = Story()
    before.writer.invoke("p1", "push", {"queue": "jobs", "values": [1]})
    before.poll([1])
    before.writer.complete("p1", "fail", {"code": 53})

    assert {"NoPhantom"} == broken(after.verdict())
    assert {"NoPhantom"} == broken(before.verdict())


def test_a_message_of_another_queue_is_a_phantom() -> None:
    """Queues do not leak into each other."""
    story = Story()
    story.push([1])
    story.poll([1], queue="other")

    assert "NoPhantom" in broken(story.verdict())


# --- AtMostOnce ---------------------------------------------------------------------------------------------
def test_a_second_copy_under_another_id_is_found() -> None:
    """A retried push that was stored twice shows two ids for one value."""
    story = Story()
    story.push([1])
    story.settle(story.poll([1]), "release")
    story.poll([1], ids=[99], delivery=2, attempts=0)

    assert {"AtMostOnce"} == broken(story.verdict())


# --- SettledIsFinal -----------------------------------------------------------------------------------------
def test_a_delivery_after_an_acknowledged_ack_is_found() -> None:
    """Acked work that runs again is the one thing workers cannot guard against."""
    story = Story()
    story.push([1])
    story.settle(story.poll([1]))
    story.wait(2_000)
    story.poll([1], delivery=2)

    assert "SettledIsFinal" in broken(story.verdict())


def test_a_delivery_after_an_ack_is_found_when_its_reply_came_first() -> None:
    """The log's order decides, not the order in which replies arrive."""
    story = Story()
    story.push([1])
    lease = story.poll([1])
    story.writer.invoke("w1", "settle", {"queue": "jobs", "kind": "ack", "items": [{"lease": lease}]})
    story.wait(2_000)
    story.poll([1], by="w2", delivery=2)
    story.writer.complete("w1", "ok", {"codes": [0]})

    assert {"SettledIsFinal"} == broken(story.verdict())


def test_a_late_reply_of_an_older_lease_is_no_delivery_after_the_ack() -> None:
    """Its fence says that it was leased before."""
    story = Story()
    story.push([1])
    old = story.run([1])
    story.start_poll(by="slow")
    story.wait(1_100)
    story.settle(story.poll([1], delivery=2))
    story.end_poll([old], by="slow")
    story.drained()

    assert story.verdict().valid, checker.report(story.verdict())


def test_settled_messages_are_remembered_when_nothing_else_is() -> None:
    """Forgetting them would save memory and the bug."""
    story = Story()
    for value in range(1, 2_001):
        story.push([value])
        story.settle(story.poll([value]))
    story.wait(2_000)
    story.poll([5], delivery=2)
    verdict = story.verdict()

    assert {"SettledIsFinal"} == broken(verdict)
    assert verdict.counts["messages left"] == 0


# --- Exclusive ----------------------------------------------------------------------------------------------
def test_two_holders_at_one_time_are_found() -> None:
    """The lease is the product."""
    story = Story()
    story.push([1])
    story.poll([1], by="w1")
    story.wait(500)
    story.poll([1], by="w2", delivery=2)

    assert {"Exclusive", "DuplicateExplained"} == broken(story.verdict())


def test_a_lease_that_ends_a_little_early_is_found() -> None:
    """The client counts from the moment it sent the poll, so the queue has no excuse."""
    story = Story()
    story.push([1])
    story.poll([1], by="w1", visibility_ms=1_000)
    story.wait(990)
    story.poll([1], by="w2", delivery=2)

    assert {"Exclusive", "DuplicateExplained"} == broken(story.verdict())


def test_the_time_a_poll_was_parked_counts_for_the_holder() -> None:
    """A lease starts when it is stamped, long after the poll was sent."""
    story = Story()
    story.push([1])
    story.start_poll(by="w1", visibility_ms=1_000)
    story.wait(5_000)
    story.end_poll([story.run([1])], by="w1", parked_ms=5_000)
    story.wait(900)
    story.poll([1], by="w2", delivery=2)

    assert "Exclusive" in broken(story.verdict())


def test_a_touched_lease_runs_longer() -> None:
    """What touch answered must hold."""
    story = Story()
    story.push([1])
    lease = story.poll([1], by="w1", visibility_ms=1_000)
    story.wait(900)
    story.touch(lease, 1_000)
    story.wait(500)
    story.poll([1], by="w2", delivery=2)

    assert "Exclusive" in broken(story.verdict())


def test_a_settle_that_was_sent_ends_the_holder_s_claim() -> None:
    """Whoever gave it up cannot complain, whatever became of the request."""
    story = Story()
    story.push([1])
    story.settle(story.poll([1], by="w1"), "release", by="w1", end="info")
    story.settle(story.poll([1], by="w2", delivery=2, attempts=0), by="w2")
    story.drained()

    assert story.verdict().valid


# --- ReceiptsRise -------------------------------------------------------------------------------------------
def test_a_repeated_delivery_number_is_found() -> None:
    """The delivery number fences; two leases with one number cannot be told apart."""
    story = Story()
    story.push([1])
    story.settle(story.poll([1]), "release")
    story.poll([1], delivery=1, attempts=0)

    assert "ReceiptsRise" in broken(story.verdict())


def test_a_falling_fence_is_found() -> None:
    """Other systems compare fences; a later lease with a smaller one would be rejected there."""
    story = Story()
    story.push([1])
    story.settle(story.poll([1], fence=(50, 0)), "release")
    story.poll([1], delivery=2, attempts=0, fence=(40, 0))

    assert {"ReceiptsRise"} == broken(story.verdict())


def test_a_falling_lease_number_is_found() -> None:
    """Receipts strictly increase."""
    story = Story()
    story.push([1])
    older, newer = story.lease(), story.lease()
    story.settle(story.poll([1], lease=newer), "release")
    story.poll([1], delivery=2, attempts=0, lease=older)

    assert {"ReceiptsRise"} == broken(story.verdict())


# --- AckFenced, AckBeforeDeadline ---------------------------------------------------------------------------
def test_an_ack_with_a_stale_receipt_is_found() -> None:
    """The first consumer must not end what the second one works on."""
    story = Story()
    story.push([1])
    stale = story.poll([1], by="w1")
    story.wait(1_100)
    story.poll([1], by="w2", delivery=2)
    story.settle(stale, by="w1")

    assert "AckFenced" in broken(story.verdict())


def test_a_stale_ack_that_is_refused_is_fine() -> None:
    """And the refused one's lease counts as expired."""
    story = Story()
    story.push([1])
    stale = story.poll([1], by="w1")
    story.wait(1_100)
    fresh = story.poll([1], by="w2", delivery=2)
    story.settle(stale, by="w1", code=11)
    story.settle(fresh, by="w2")
    story.drained()

    assert story.verdict().valid


def test_a_settle_of_what_is_settled_for_good_is_found() -> None:
    """A second OK for the same lease would mean that the first ended nothing."""
    story = Story()
    story.push([1])
    lease = story.poll([1])
    story.settle(lease)
    for value in range(2, 600):  # long enough for the world to forget the lease
        story.push([value])
        story.settle(story.poll([value]))
    story.settle(lease)

    assert {"AckFenced"} == broken(story.verdict())


def test_an_ack_after_the_deadline_is_found() -> None:
    """Swept or not: late is late."""
    story = Story()
    story.push([1])
    lease = story.poll([1], visibility_ms=1_000)
    story.wait(1_100)
    story.settle(lease)

    assert {"AckBeforeDeadline"} == broken(story.verdict())


def test_a_restart_may_make_a_lease_longer() -> None:
    """The lease clock stands still while the node is down."""
    story = Story()
    story.push([1])
    lease = story.poll([1], visibility_ms=1_000)
    story.restart()
    story.wait(1_100)
    story.settle(lease)
    story.drained()

    assert story.verdict().valid


@pytest.mark.parametrize("end", ["ok", "info"])
def test_a_touch_may_make_a_lease_longer(end: str) -> None:
    """An answered touch moves the deadline, one of unknown outcome may have."""
    story = Story()
    story.push([1])
    lease = story.poll([1], visibility_ms=1_000)
    story.touch(lease, 5_000, by="w1", end=end)
    story.wait(2_000)
    story.settle(lease, by="w1b")
    story.drained()

    assert story.verdict().valid


def test_a_refused_touch_moves_nothing() -> None:
    """A lease that touch called over must not take an ack."""
    story = Story()
    story.push([1])
    lease = story.poll([1], visibility_ms=1_000)
    story.wait(1_100)
    story.touch(lease, 5_000, code=11)
    story.settle(lease)

    assert {"AckBeforeDeadline"} == broken(story.verdict())


# --- Bound, DlqExact ----------------------------------------------------------------------------------------
def test_an_expiry_that_does_not_count_is_found() -> None:
    """A poison message that kills its worker would live for ever."""
    story = Story()
    story.push([1])
    story.poll([1])
    story.wait(1_100)
    story.poll([1], delivery=2, attempts=0)

    assert {"Bound"} == broken(story.verdict())


def test_a_release_that_counts_is_found() -> None:
    """Handing back politely is free."""
    story = Story()
    story.push([1])
    story.settle(story.poll([1]), "release")
    story.poll([1], delivery=2, attempts=1)

    assert {"Bound"} == broken(story.verdict())


def test_a_delivery_at_the_limit_is_found() -> None:
    """Off by one: the move happens in the very entry that reached the limit."""
    story = Story()
    story.set(max_deliveries=2)
    story.push([1])
    for delivery in (1, 2, 3):
        story.settle(story.poll([1], delivery=delivery), "fail", delay_ms=0)

    assert {"Bound"} == broken(story.verdict())


def test_a_lease_nobody_saw_may_have_counted_or_not() -> None:
    """A poll whose reply was lost leased the message; the delivery number tells."""
    for attempts in (0, 1):
        story = Story()
        story.push([1])
        story.start_poll(by="gone")
        story.writer.complete("gone", "info", {"code": 74})
        story.wait(1_100)
        story.settle(story.poll([1], delivery=2, attempts=attempts))
        story.drained()

        assert story.verdict().valid


def dead(story: Story, kind: str, times: int) -> None:
    """Give message 1 back `times` times, then see it in the dead-letter queue."""
    story.push([1])
    for delivery in range(1, times + 1):
        story.settle(story.poll([1], delivery=delivery, attempts=delivery - 1), kind, delay_ms=0)
    story.settle(story.poll([1], queue="jobs.dlq", delivery=times + 1, attempts=0), queue="jobs.dlq")
    story.drained()


def test_a_message_that_failed_often_enough_is_a_dead_letter() -> None:
    """The default limit is three."""
    story = Story()
    dead(story, "fail", 3)

    assert story.verdict().valid


@pytest.mark.parametrize(("kind", "times"), [("fail", 2), ("release", 1), ("release", 3)])
def test_a_message_that_dies_too_early_is_found(kind: str, times: int) -> None:
    """A dead letter is work that nobody does any more, so it takes exactly the limit."""
    story = Story()
    story.push([1])
    for delivery in range(1, times + 1):
        attempts = delivery - 1 if kind == "fail" else 0
        story.settle(story.poll([1], delivery=delivery, attempts=attempts), kind, delay_ms=0)
    story.poll([1], queue="jobs.dlq", delivery=times + 1, attempts=0)

    assert {"DlqExact"} == broken(story.verdict())


def test_a_rejected_message_is_a_dead_letter_at_once() -> None:
    """Reject is the consumer's word."""
    story = Story()
    dead(story, "reject", 1)

    assert story.verdict().valid


def test_an_acknowledged_message_in_the_dead_letter_queue_is_found() -> None:
    """In two places at once: done, and dead."""
    story = Story()
    story.push([1])
    story.settle(story.poll([1]))
    story.poll([1], queue="jobs.dlq", delivery=2, attempts=0)

    assert {"SettledIsFinal", "DlqExact"} <= broken(story.verdict())


def test_a_dead_letter_that_is_delivered_again_is_found() -> None:
    """Dead in one place, alive in the other."""
    story = Story()
    story.push([1])
    story.settle(story.poll([1]), "reject")
    story.poll([1], queue="jobs.dlq", by="w2", delivery=2, attempts=0)
    story.wait(1_100)
    story.poll([1], delivery=3, attempts=1)

    assert "DlqExact" in broken(story.verdict())


# --- DelayNotEarly ------------------------------------------------------------------------------------------
def test_a_delayed_message_that_comes_early_is_found() -> None:
    """Late by a little is allowed, early never."""
    relative = Story()
    relative.push([1], delay_ms=1_000)
    relative.wait(900)
    relative.poll([1])
    absolute = Story()
    absolute.push([1], deliver_at_ms=absolute.wall_ms + 1_000)
    absolute.wait(900)
    absolute.poll([1])

    assert {"DelayNotEarly"} == broken(relative.verdict())
    assert {"DelayNotEarly"} == broken(absolute.verdict())


def test_a_failed_message_that_skips_its_back_off_is_found() -> None:
    """A back-off that is not kept is a hot loop."""
    story = Story()
    story.push([1])
    story.settle(story.poll([1]), "fail", delay_ms=1_000)
    story.wait(100)
    story.poll([1], delivery=2)

    assert {"DelayNotEarly"} == broken(story.verdict())


@pytest.mark.parametrize(("waited_ms", "verdict"), [(905, set()), (880, {"DelayNotEarly"})])
def test_in_a_cluster_a_delay_is_as_exact_as_its_clock(waited_ms: int, verdict: set[str]) -> None:
    """Its wall clock is slewed by 10% at most toward the median of its nodes; on one node the same is an error."""
    cluster, alone = Story(), Story()
    cluster.writer.nemesis("phase", {"name": "faults", "nodes": 3})
    for story in (cluster, alone):
        story.push([1], delay_ms=1_000)
        story.wait(waited_ms)
        story.poll([1])

    assert verdict == broken(cluster.verdict())
    assert {"DelayNotEarly"} == broken(alone.verdict())


def test_a_delayed_message_on_time_is_fine() -> None:
    """And it stands outside the order of the others."""
    story = Story()
    story.push([1], delay_ms=1_000)
    story.push([2])
    story.settle(story.poll([2]))
    story.wait(1_000)
    story.settle(story.poll([1]))
    story.drained()

    assert story.verdict().valid


# --- FirstDeliveryOrder -------------------------------------------------------------------------------------
def test_a_first_delivery_out_of_order_is_found() -> None:
    """First in, first out per queue and priority."""
    story = Story()
    story.push([1])
    story.push([2])
    story.settle(story.poll([2]))
    story.settle(story.poll([1]))

    assert {"FirstDeliveryOrder"} == broken(story.verdict())


def test_order_inside_one_run_is_checked() -> None:
    """A batch is a sequence too."""
    story = Story()
    story.push([1, 2, 3])
    story.poll([1, 3, 2])

    assert {"FirstDeliveryOrder"} == broken(story.verdict())


def test_replies_that_overtake_each_other_are_no_disorder() -> None:
    """Two consumers' replies cross on the wire; the fence tells who leased first."""
    story = Story()
    story.push([1])
    story.push([2])
    first, second = story.run([1]), story.run([2])
    story.start_poll(by="w1")
    story.start_poll(by="w2")
    story.end_poll([second], by="w2")
    story.settle(second["lease"], by="w2")
    story.end_poll([first], by="w1")
    story.settle(first["lease"], by="w1")
    story.drained()

    assert story.verdict().valid


def test_priorities_and_producers_have_orders_of_their_own() -> None:
    """Nothing is promised between two producers, and a higher priority goes first."""
    story = Story()
    story.push([1], priority=0)
    story.push([2], priority=9)
    story.push([3], by="p2")
    for value in (3, 2, 1):
        story.settle(story.poll([value]))
    story.drained()

    assert story.verdict().valid


# --- DuplicateExplained -------------------------------------------------------------------------------------
def test_a_duplicate_after_an_unanswered_ack_must_wait_for_the_lease_s_end() -> None:
    """The ack took effect or it did not; neither gives the message to somebody else at once."""
    story = Story()
    story.push([1])
    story.settle(story.poll([1]), end="info")
    story.wait(100)
    story.poll([1], by="w2", delivery=2)

    assert {"DuplicateExplained"} == broken(story.verdict())


def test_a_delivery_that_nobody_can_have_seen_is_found() -> None:
    """The delivery number says that there was one before, and no poll is unaccounted for."""
    story = Story()
    story.push([1])
    story.poll([1], delivery=2, attempts=0)

    assert {"DuplicateExplained"} == broken(story.verdict())


def test_a_poll_that_an_outage_interrupted_may_have_leased_unseen_and_explains_one_delivery() -> None:
    """A session's client asks again elsewhere and gives back what the first asking leased; once for each outage."""
    explained = Story()
    explained.push([1])
    explained.start_poll()
    explained.restart()
    explained.end_poll([])
    explained.poll([1], by="w2", delivery=2, attempts=0)
    twice = Story()
    twice.push([1])
    twice.start_poll()
    twice.restart()
    twice.end_poll([])
    twice.poll([1], by="w2", delivery=3, attempts=0)
    calm = Story()
    calm.push([1])
    calm.restart()
    calm.start_poll()
    calm.end_poll([])
    calm.poll([1], by="w2", delivery=2, attempts=0)

    assert set() == broken(explained.verdict())
    assert {"DuplicateExplained"} == broken(twice.verdict())
    assert {"DuplicateExplained"} == broken(calm.verdict())


# --- Conservation -------------------------------------------------------------------------------------------
def test_a_message_acknowledged_twice_is_found() -> None:
    """One message, one end."""
    story = Story()
    story.push([1])
    lease = story.poll([1])
    story.settle(lease, offsets=[0])
    story.settle(lease, offsets=[0])

    assert "Conservation" in broken(story.verdict())


def test_counts_that_disagree_with_the_ledger_are_found() -> None:
    """A queue that says three when everything was settled holds ghosts."""
    ghosts = Story()
    ghosts.push([1])
    ghosts.settle(ghosts.poll([1]))
    ghosts.show(ready=3)
    missing = Story()
    missing.push([1, 2])
    missing.settle(missing.poll([1]))
    missing.show()

    assert {"Conservation"} == broken(ghosts.verdict())
    assert {"Conservation"} == broken(missing.verdict())


# --- the checker itself -------------------------------------------------------------------------------------
def test_each_invariant_has_a_planted_violation() -> None:
    """A check that cannot fail is no check; this file breaks every promise at least once."""
    text = Path(__file__).read_text()

    assert set() == {invariant.name for invariant in INVARIANTS if f'"{invariant.name}"' not in text}


def test_an_operation_that_is_not_modelled_is_refused() -> None:
    """A purge could explain any loss: no verdict is better than a wrong one."""
    story = Story()
    lines = story.lines()
    lines.append(b'{"type":"invoke","time":1,"wall":1,"process":"p","op":"purge","args":{"queue":"jobs"}}\n')

    with pytest.raises(HistoryError, match="purge"):
        checker.check(parse(lines))


def test_a_value_pushed_twice_is_a_broken_history() -> None:
    """Then the checker could not tell a duplicate from a second push."""
    story = Story()
    story.push([1])
    story.push([1])

    with pytest.raises(HistoryError, match="pushed twice"):
        story.verdict()


def test_examples_are_few_and_violations_all_counted() -> None:
    """A run that lost a million messages still prints a page."""
    story = Story()
    story.push(range(1, 1_001))
    story.drained()
    (finding,) = [f for f in story.verdict().findings if f.name == "NoSilentLoss"]

    assert 1_000 == finding.violations
    assert 10 == len(finding.examples)


def test_a_faithful_queue_is_never_accused(rng: random.Random) -> None:
    """A small honest queue with expiring leases, run at random, must come out clean."""
    story = Story()
    ready: list[tuple[int, int, int]] = []  # value, delivery, attempts
    held: list[tuple[float, str, int, int, int]] = []
    value = 0
    clock = 0.0
    for _ in range(600):
        draw = rng.random()
        step = rng.choice((1, 5, 40))
        story.wait(step)
        clock += step + 1
        for entry in [entry for entry in held if entry[0] + 60 < clock]:
            held.remove(entry)
            _, _, number, delivery, attempts = entry
            ready.append((number, delivery, min(attempts + 1, 10**6)))
            ready.sort()
        if draw < 0.4:
            value += 1
            story.push([value], max_attempts=10**9)
            ready.append((value, 0, 0))
            ready.sort()
        elif draw < 0.7 and ready:
            number, delivery, attempts = ready.pop(0)
            lease = story.poll([number], delivery=delivery + 1, attempts=attempts, visibility_ms=20)
            held.append((clock, lease, number, delivery + 1, attempts))
        elif held and clock - held[-1][0] < 10:
            _, lease, number, delivery, attempts = held.pop()
            if rng.random() < 0.5:
                story.settle(lease)
            else:
                story.settle(lease, "release")
                ready.append((number, delivery, attempts))
                ready.sort()
    verdict = story.verdict()

    assert 0 == verdict.violations, checker.report(verdict)
    assert verdict.counts["redeliveries"] > 10
