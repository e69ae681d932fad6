"""Death: counted exactly, in the entry that reached the limit; parked rather than dropped; driven back in order."""

from __future__ import annotations

import pytest

from tests.queues.bench import Bench
from walrq import api
from walrq.api import Filter, SettleKind, State
from walrq.errors import Code
from walrq.queues import commands as c
from walrq.queues import reads
from walrq.queues.machine import Bounds


def kill(bench: Bench, count: int = 1, queue: str = "q") -> list[int]:
    """Push messages and reject them; their ids in order of death."""
    ids = bench.ids(queue, payloads=count)
    for run in bench.lease(queue, limit=count):
        bench.reject(run)
    return ids


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("way", ["fail", "expire"])
def test_a_message_is_dead_at_exactly_its_limit(bench: Bench, limit: int, way: str) -> None:
    """Bound (L10): `max_deliveries` counted attempts, by fail or by expiry, not one more or less."""
    bench.set(max_deliveries=limit)
    (message,) = bench.ids()
    for attempt in range(limit):
        assert [] == bench.dead()
        (run,) = bench.lease(visibility_ms=10)
        assert (message, attempt) == (run.first_id, run.attempts)
        if way == "fail":
            bench.fail(run, delay_ms=0)
        else:
            bench.wait(10)
            bench.tick()

    assert [message] == [m.id for m in bench.dead()]
    assert [] == bench.take()


def test_three_attempts_are_the_default(bench: Bench) -> None:
    """And the dead-letter queue is called after the queue."""
    bench.push()
    for _ in range(3):
        (run,) = bench.lease()
        bench.fail(run, delay_ms=0)

    assert (1, 0, 0, 0) == bench.counts("q.dlq")


def test_the_move_happens_in_the_entry_that_reached_the_limit(bench: Bench) -> None:
    """Conservation (L10): a message is never in two places or none; nobody needs to receive again."""
    bench.set(max_deliveries=1)
    bench.push(payloads=2)
    bench.lease(visibility_ms=10)
    bench.wait(10)
    bench.tick()

    assert ((0, 0, 0, 0), (2, 0, 0, 0)) == (bench.counts("q"), bench.counts("q.dlq"))


def test_release_does_not_count_towards_death(bench: Bench) -> None:
    """Free is free."""
    bench.set(max_deliveries=1)
    (message,) = bench.ids()
    for _ in range(5):
        (run,) = bench.lease()
        bench.release(run)

    assert [message] == bench.take()


def test_a_batch_may_set_its_own_limit(bench: Bench) -> None:
    """max_attempts of the batch goes before the queue's setting."""
    bench.set(max_deliveries=5)
    bench.push(max_attempts=1)
    (run,) = bench.lease()
    bench.fail(run)

    assert 1 == len(bench.dead())


def test_a_changed_limit_counts_at_the_next_attempt(bench: Bench) -> None:
    """Settings change live."""
    bench.set(max_deliveries=5)
    bench.push()
    (run,) = bench.lease()
    bench.fail(run, delay_ms=0)
    bench.set(max_deliveries=2)
    assert [] == bench.dead()
    (run,) = bench.lease()
    bench.fail(run, delay_ms=0)

    assert 1 == len(bench.dead())


def test_reject_is_death_at_once(bench: Bench) -> None:
    """However few attempts there were."""
    bench.push()
    (run,) = bench.lease()
    bench.reject(run, error_type="Poison", error_text="cannot be read")
    (dead,) = bench.dead()

    assert ("rejected", "q") == (dead.reason, dead.origin)
    assert [("rejected", "Poison", "cannot be read")] == [(a.reason, a.error_type, a.error_text) for a in dead.history]


def test_the_death_report_tells_the_whole_story(bench: Bench) -> None:
    """Reason, attempts with times, workers and errors, origin, time of death."""
    bench.push()
    (run,) = bench.lease(worker="w1", visibility_ms=10)
    bench.wait(10)
    (run,) = bench.lease(worker="w2")
    bench.fail(run, delay_ms=0, error_type="E", error_text="first")
    bench.wait(5)
    (run,) = bench.lease(worker="w3")
    bench.fail(run, delay_ms=0, error_type="F", error_text="last")
    (dead,) = bench.dead()

    assert ("failed", "q", bench.wall_ms) == (dead.reason, dead.origin, dead.died_ms)
    assert dead.history == (
        api.Attempt(bench.wall_ms - 5, "expired", "w1"),
        api.Attempt(bench.wall_ms - 5, "failed", "w2", "E", "first"),
        api.Attempt(bench.wall_ms, "failed", "w3", "F", "last"),
    )


def test_the_story_keeps_the_last_ten_attempts(bench: Bench) -> None:
    """A retry chain of days does not grow without bound."""
    bench.set(max_deliveries=13)
    bench.push()
    for number in range(13):
        (run,) = bench.lease()
        bench.fail(run, delay_ms=0, error_text=str(number))
    (dead,) = bench.dead()

    assert [str(number) for number in range(3, 13)] == [a.error_text for a in dead.history]


def test_the_story_is_that_of_each_message_alone(bench: Bench) -> None:
    """Siblings of one batch die of different causes."""
    bench.set(max_deliveries=1)
    bench.push(payloads=2)
    (run,) = bench.lease()
    bench.fail(run, ranges=((0, 0),), error_text="one")
    bench.reject(run, error_text="two")

    assert [("failed", "one"), ("rejected", "two")] == [(m.reason, m.history[-1].error_text) for m in bench.dead()]


def test_dead_messages_keep_id_priority_group_and_age(bench: Bench) -> None:
    """A moved message is the same message."""
    bench.push(groups=["g"], priority=7)
    born = bench.wall_ms
    (run,) = bench.lease()
    bench.wait(100)
    bench.reject(run)
    (grave,) = bench.lease("q.dlq")

    assert (run.first_id, 7, "g", born) == (grave.first_id, grave.priority, grave.group, grave.pushed_ms)
    assert (run.index, run.ordinal, run.first) == (grave.index, grave.ordinal, grave.first)
    assert (run.delivery + 1, 0) == (grave.delivery, grave.attempts)


def test_dlq_order_is_order_of_death(bench: Bench) -> None:
    """Not order of birth."""
    ids = bench.ids(payloads=3)
    runs = [run for _ in range(3) for run in bench.lease(limit=1)]
    for position in (1, 2, 0):
        bench.reject(runs[position])

    assert [ids[1], ids[2], ids[0]] == [m.id for m in bench.dead()]
    assert [ids[1], ids[2], ids[0]] == bench.take("q.dlq")


def test_a_dlq_is_a_queue_and_counts_afresh(bench: Bench) -> None:
    """It has a dead-letter queue of its own."""
    (message,) = kill(bench)
    for attempt in range(3):
        (run,) = bench.lease("q.dlq")
        assert attempt == run.attempts
        bench.fail(run, delay_ms=0)
    (dead,) = bench.dead("q.dlq")

    assert (message, "q.dlq", 3) == (dead.id, dead.origin, len(dead.history))
    assert [] == bench.dead("q")


def test_a_dlq_by_setting_gets_the_dead(bench: Bench) -> None:
    """Several queues may share one; each lists its own dead."""
    bench.set("q", dlq="graves")
    bench.set("r", dlq="graves")
    (one,) = kill(bench, queue="q")
    (other,) = kill(bench, queue="r")

    assert (2, 0, 0, 0) == bench.counts("graves")
    assert ([one], [other]) == ([m.id for m in bench.dead("q")], [m.id for m in bench.dead("r")])
    assert (1, 1) == (bench.show("q").dead, bench.show("r").dead)


# --- parking ------------------------------------------------------------------------------------------------
def test_without_a_dlq_dead_messages_are_parked(bench: Bench) -> None:
    """Visible to dlq commands, never dropped, never delivered."""
    bench.set(dlq="none")
    (message,) = kill(bench)

    assert (0, 0, 0, 1) == bench.counts()
    assert [message] == [m.id for m in bench.dead()] == [m.id for m in bench.peek(State.PARKED)]
    bench.wait(1_000_000_000)
    assert [] == bench.take()
    assert (0, 0, 0, 1) == bench.counts()


def test_parked_messages_flow_when_target_is_back(bench: Bench) -> None:
    """Delete the target while messages die: they stay visible as parked, and flow when it is there again."""
    first = kill(bench)
    bench.do(c.DeleteQueue("q.dlq"))
    later = kill(bench, 2)
    assert (0, 0, 0, 2) == bench.counts()
    assert later == [m.id for m in bench.dead()]
    bench.set("q.dlq")
    assert bench.lease_ms == bench.machine.next_lease_deadline()
    bench.tick()

    assert ((0, 0, 0, 0), (2, 0, 0, 0)) == (bench.counts("q"), bench.counts("q.dlq"))
    assert later == [m.id for m in bench.dead()] == bench.take("q.dlq")
    assert first[0] not in later


def test_parked_messages_keep_their_story_while_they_flow(bench: Bench) -> None:
    """Reason and time of death are those of the death."""
    kill(bench)
    bench.do(c.DeleteQueue("q.dlq"))
    kill(bench)
    (parked,) = bench.dead()
    bench.wait(500)
    bench.set("q.dlq")
    bench.tick()
    (buried,) = bench.dead()

    assert (parked.reason, parked.died_ms, parked.history, parked.origin) == (
        buried.reason,
        buried.died_ms,
        buried.history,
        buried.origin,
    )


def test_a_deleted_dlq_is_not_made_again_by_the_next_death(bench: Bench) -> None:
    """Who deleted it did not want it."""
    kill(bench)
    bench.do(c.DeleteQueue("q.dlq"))
    kill(bench)

    assert "q.dlq" not in bench.machine.queues


def test_messages_are_parked_when_no_queue_can_be_made() -> None:
    """The bound on queues drops nothing."""
    bench = Bench(Bounds(queues_max=1))
    (message,) = kill(bench)

    assert [message] == [m.id for m in bench.peek(State.PARKED)]


def test_a_queue_name_without_room_for_the_suffix_parks(bench: Bench) -> None:
    """The longest names are legal, their dead-letter queue's would not be."""
    name = "x" * 255
    (message,) = kill(bench, queue=name)

    assert [message] == [m.id for m in bench.peek(State.PARKED, name)]


# --- redrive ------------------------------------------------------------------------------------------------
def test_redrive_goes_behind_waiting_work_in_order_of_death(bench: Bench) -> None:
    """And starts counting anew; delivery keeps fencing."""
    dead = kill(bench, 3)
    (waiting,) = bench.ids()
    assert api.Moved(3) == bench.do(c.Redrive("q", 100))
    runs = bench.lease()

    assert [waiting, *dead] == [run.first_id + k for run in runs for k in range(run.count)]
    assert {(2, 0)} == {(run.delivery, run.attempts) for run in runs if run.first_id != waiting}
    assert [] == bench.dead()


def test_a_redriven_message_has_no_past(bench: Bench) -> None:
    """It may fail as often as a new one, and its next death tells the next story."""
    kill(bench)
    bench.do(c.Redrive("q", 1))
    (message,) = bench.peek()
    assert ((), None, None, 0) == (message.history, message.reason, message.origin, message.died_ms)
    for _ in range(3):
        (run,) = bench.lease()
        bench.fail(run, delay_ms=0, error_text="again")

    assert [["again"] * 3] == [[a.error_text for a in m.history] for m in bench.dead()]


@pytest.mark.parametrize("dlq", [None, "none"], ids=["in a dead-letter queue", "parked"])
@pytest.mark.parametrize("allowed", [1, 5])
def test_what_the_producer_said_of_attempts_holds_again_after_a_redrive(
    bench: Bench, dlq: str | None, allowed: int
) -> None:
    """The retry policy travels with the message, through its death and a restart too; in the dead-letter queue it
    rests."""
    bench.set(dlq=dlq)
    bench.push(max_attempts=allowed)

    def fail_until_dead() -> int:
        for attempt in range(1, 10):
            (run,) = bench.lease()
            bench.fail(run, delay_ms=0)
            if bench.dead():
                return attempt
        raise AssertionError("it never died")

    assert allowed == fail_until_dead()
    if dlq is None:
        (run,) = bench.lease(queue="q.dlq")
        bench.fail(run, delay_ms=0)
        assert 1 == len(bench.peek(queue="q.dlq")), "one failure there is no death"
    bench.restart()
    assert api.Moved(1) == bench.do(c.Redrive("q", 1))

    assert allowed == fail_until_dead()


def test_redrive_stops_at_its_limit_and_says_that_more_is_left(bench: Bench) -> None:
    """A long redrive is a series of entries, each complete in itself."""
    dead = kill(bench, 5)

    assert api.Moved(2, more=True) == bench.do(c.Redrive("q", 2))
    assert dead[:2] == [m.id for m in bench.peek()]
    assert dead[2:] == [m.id for m in bench.dead()]
    assert api.Moved(3) == bench.do(c.Redrive("q", 3))


def test_an_interrupted_redrive_loses_nothing(bench: Bench) -> None:
    """Between two entries the union of both queues is complete, without duplicates."""
    dead = kill(bench, 7)
    for _ in range(3):
        bench.do(c.Redrive("q", 2))
        bench.restart()
        everywhere = [m.id for m in bench.peek()] + [m.id for m in bench.dead()]

        assert sorted(dead) == sorted(everywhere)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (Filter(reason="rejected"), [0, 2]),
        (Filter(error_type="E"), [0, 1]),
        (Filter(error_contains="oo"), [0]),
        (Filter(reason="failed", error_contains="b"), [1]),
        (Filter(reason="expired"), []),
        (Filter(), [0, 1, 2]),
    ],
)
@pytest.mark.parametrize("dlq", [None, "none"])
def test_filters_choose_the_dead(bench: Bench, where: Filter, expected: list[int], dlq: str | None) -> None:
    """Every given part must match; listing, redrive and purge choose alike, in a queue or parked."""
    bench.set(max_deliveries=1, dlq=dlq)
    ids = bench.ids(payloads=3)
    (run,) = bench.lease()
    bench.settle(run, SettleKind.REJECT, ((0, 0),), error_type="E", error_text="boo")
    bench.settle(run, SettleKind.FAIL, ((1, 1),), error_type="E", error_text="bar")
    bench.settle(run, SettleKind.REJECT, ((2, 2),))
    chosen = [ids[position] for position in expected]

    assert chosen == [m.id for m in bench.dead(where=where)]
    assert api.Moved(len(chosen)) == bench.do(c.Redrive("q", 100, where=where))
    assert chosen == [m.id for m in bench.peek()]
    assert api.Done(3 - len(chosen)) == bench.do(c.PurgeDead("q"))
    assert [] == bench.dead()


def test_filter_by_id_takes_single_messages_out_of_a_batch(bench: Bench) -> None:
    """Some, not all."""
    dead = kill(bench, 4)
    where = Filter(ids=(dead[1], dead[3], 12345))
    bench.do(c.Redrive("q", 100, where=where))

    assert [dead[1], dead[3]] == bench.take()
    assert [dead[0], dead[2]] == [m.id for m in bench.dead()]


def test_redrive_leaves_leased_and_foreign_messages_of_the_dlq_alone(bench: Bench) -> None:
    """Somebody works on it; and what was pushed into the queue by hand never died."""
    held, dead = kill(bench, 2)
    (own,) = bench.ids("q.dlq")
    assert [held] == bench.take("q.dlq", limit=1)

    assert api.Moved(1) == bench.do(c.Redrive("q", 100))
    assert [dead] == bench.take("q")
    assert [own] == bench.take("q.dlq")


def test_redrive_to_another_queue(bench: Bench) -> None:
    """The target must be there: a typing mistake must not make a queue."""
    (dead,) = kill(bench)
    refused = bench.do(c.Redrive("q", 1, target="elsewhere"))
    assert int(Code.QUEUE_NOT_FOUND) == refused.code
    bench.set("elsewhere")

    assert api.Moved(1) == bench.do(c.Redrive("q", 1, target="elsewhere"))
    assert [dead] == bench.take("elsewhere")


def test_redrive_ignores_length_limits(bench: Bench) -> None:
    """Like a death, it drops and refuses nothing."""
    kill(bench, 3)
    bench.set(max_length=1)

    assert api.Moved(3) == bench.do(c.Redrive("q", 100))


def test_a_death_ignores_the_length_limit_of_its_target(bench: Bench) -> None:
    """Dead messages are never dropped because a queue is full."""
    bench.set("q.dlq", max_length=1, overflow="drop_oldest")

    assert kill(bench, 3) == [m.id for m in bench.dead()]


def test_purging_the_dead_leaves_the_living(bench: Bench) -> None:
    """And of the parked ones too."""
    kill(bench, 2)
    bench.set(dlq="none")
    kill(bench, 1)
    bench.set(dlq=None)
    (living,) = bench.ids()

    assert api.Done(3) == bench.do(c.PurgeDead("q"))
    assert [living] == bench.take()


def test_cancel_reaches_parked_messages(bench: Bench) -> None:
    """By the id they always had."""
    bench.set(dlq="none")
    (message,) = kill(bench)

    assert api.Outcomes((api.Outcome.DONE,)) == bench.do(c.Cancel("q", (message,)))
    assert (0, 0, 0, 0) == bench.counts()


# --- move ---------------------------------------------------------------------------------------------------
def test_move_takes_what_a_poll_would_take(bench: Bench) -> None:
    """By priority and place, atomically, behind the target's messages; the target is made if need be."""
    low = bench.ids(payloads=2)
    (high,) = bench.ids(priority=5)
    (there,) = bench.ids("target")

    assert api.Moved(2, more=True) == bench.do(c.Move("q", "target", 2))
    assert [high, there, low[0]] == bench.take("target")
    assert [low[1]] == bench.take("q")
    assert api.Moved(0) == bench.do(c.Move("q", "new", 1))
    assert "new" in bench.machine.queues


def test_move_keeps_attempts_and_delivery(bench: Bench) -> None:
    """A message does not become new by being moved."""
    bench.push()
    (run,) = bench.lease()
    bench.fail(run, delay_ms=0)
    bench.do(c.Move("q", "target", 1))
    (moved,) = bench.lease("target")

    assert (run.first_id, 2, 1) == (moved.first_id, moved.delivery, moved.attempts)


@pytest.mark.parametrize("dlq", [None, "none"])
def test_a_dead_message_tells_how_many_attempts_it_had(bench: Bench, dlq: str | None) -> None:
    """Where it lies now attempts start afresh; whoever asks why it died wants the ones before."""
    bench.set(dlq=dlq, max_deliveries=2)
    bench.push()
    for _ in range(2):
        (run,) = bench.lease()
        bench.fail(run, delay_ms=0)
    bench.restart()

    assert [2] == [message.attempts for message in bench.dead()]


def test_move_keeps_what_the_producer_said_of_attempts_and_life(bench: Bench) -> None:
    """A message that moves on alive is still the same message: it dies and ends when its producer said."""
    bench.push(max_attempts=1, ttl_ms=400)
    bench.do(c.Move("q", "other", 5))
    (run,) = bench.lease("other")
    bench.fail(run)

    assert 1 == bench.show("other").dead

    bench.push(ttl_ms=400)
    bench.do(c.Move("q", "other", 5))
    bench.wait(401)
    bench.tick()

    assert 0 == bench.show("other").ready


def test_move_leaves_leased_and_delayed_messages(bench: Bench) -> None:
    """They are not a poll's to take."""
    bench.push(payloads=2)
    bench.lease(limit=1)
    bench.push(delay_ms=1_000)

    assert api.Moved(1) == bench.do(c.Move("q", "target", 100))
    assert (0, 1, 1, 0) == bench.counts()


def test_move_takes_ungrouped_messages_after_the_last_group(bench: Bench) -> None:
    """A queue whose groups end in the middle of a move is still moved whole."""
    (grouped,) = bench.ids(groups=["g"])
    free = bench.ids(payloads=3)

    assert api.Moved(4) == bench.do(c.Move("q", "target", 100))
    assert {grouped, *free} == set(bench.take("target"))


@pytest.mark.parametrize("limits", [{"max_length": 3}, {"max_bytes": 6}])
def test_move_is_refused_when_the_target_has_no_room_for_all(bench: Bench, limits: dict[str, int]) -> None:
    """All or nothing: nothing moved, nothing dropped."""
    bench.set("target", **limits, overflow="drop_oldest")
    bench.push("target", [b"xx"])
    bench.push("q", [b"xx"] * 3)

    assert int(Code.QUEUE_FULL) == bench.do(c.Move("q", "target", 3)).code
    assert ((3, 0, 0, 0), (1, 0, 0, 0)) == (bench.counts("q"), bench.counts("target"))
    assert api.Moved(2, more=True) == bench.do(c.Move("q", "target", 2))


def test_a_page_of_long_stories_is_cut_short_and_goes_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page must fit its frame, whatever errors were kept; the next one begins where it ended."""
    monkeypatch.setattr(reads, "STORIES_BYTES_MAX", 10_000)
    bench.set(max_deliveries=1)
    ids = bench.ids(payloads=9)
    for run in bench.lease(limit=9):
        bench.fail(run, error_text="e" * 3_000)
    pages = []
    cursor = 0
    while True:
        seen, cursor = reads.dead(bench.machine, api.ListDead("q", 100, cursor))
        pages.append([one.peeked.id for one in seen])
        if not cursor:
            break

    assert len(pages) > 1
    assert ids == [each for page in pages for each in page]
