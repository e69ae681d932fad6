"""Cancel and reschedule: exact answers about single messages."""

from __future__ import annotations

import pytest

from tests.queues.bench import Bench
from walrq import api, ids, limits
from walrq.api import Outcome, State
from walrq.errors import Code
from walrq.queues import commands as c


def outcome(bench: Bench, message: int, queue: str = "q") -> Outcome:
    """Of cancelling one message."""
    (one,) = bench.do(c.Cancel(queue, (message,))).outcomes
    assert isinstance(one, Outcome)
    return one


def test_cancel_answers_exactly(bench: Bench) -> None:
    """Done, leased, gone, unknown: for each id of the request."""
    leased, settled, ready = bench.ids(payloads=3)
    (run,) = bench.lease(limit=2)
    bench.ack(run, ((1, 1),))
    (elsewhere,) = bench.ids("other")
    uid = bench.show().uid
    never = ids.message_id(bench.wall_ms, uid, 99)

    assert api.Outcomes(
        (Outcome.LEASED, Outcome.GONE, Outcome.DONE, Outcome.GONE, Outcome.UNKNOWN, Outcome.UNKNOWN)
    ) == bench.do(c.Cancel("q", (leased, settled, ready, ready, elsewhere, never)))
    assert (0, 0, 1, 0) == bench.counts()


def test_a_cancelled_message_is_never_delivered(bench: Bench) -> None:
    """Ready, delayed, in back-off: gone for good, the siblings stay."""
    first, second, third = bench.ids(payloads=3)
    (delayed,) = bench.ids(delay_ms=100)
    (run,) = bench.lease(limit=1)
    bench.fail(run, delay_ms=100)
    for message in (first, second, delayed):
        assert outcome(bench, message) is Outcome.DONE
    bench.wait(1_000)

    assert [third] == bench.take()


def test_a_lease_that_is_over_can_be_cancelled(bench: Bench) -> None:
    """It is pending again."""
    (message,) = bench.ids()
    bench.lease(visibility_ms=10)
    bench.wait(10)

    assert outcome(bench, message) is Outcome.DONE


def test_moved_messages_are_found_by_the_id_they_keep(bench: Bench) -> None:
    """In the queue that holds them; the old queue says gone."""
    (message,) = bench.ids()
    (run,) = bench.lease()
    bench.reject(run)

    assert outcome(bench, message) is Outcome.GONE
    assert outcome(bench, message, "q.dlq") is Outcome.DONE
    assert outcome(bench, message, "q.dlq") is Outcome.UNKNOWN


def test_an_id_of_a_former_incarnation_is_unknown(bench: Bench) -> None:
    """The queue of the same name never issued it."""
    (message,) = bench.ids()
    bench.do(c.DeleteQueue("q"))
    bench.push()

    assert outcome(bench, message) is Outcome.UNKNOWN


def test_a_purged_message_is_gone(bench: Bench) -> None:
    """It was there once."""
    (message,) = bench.ids()
    bench.do(c.PurgeQueue("q"))

    assert outcome(bench, message) is Outcome.GONE


@pytest.mark.parametrize("command", [c.Cancel("nope", (1,)), c.Reschedule("nope", 1, 2)])
def test_an_absent_queue_is_not_found(bench: Bench, command: c.Command) -> None:
    """A definite error."""
    assert int(Code.QUEUE_NOT_FOUND) == bench.do(command).code


def test_reschedule_changes_when_a_message_is_due(bench: Bench) -> None:
    """Later, earlier, or now; never early."""
    later, earlier, now = bench.ids(payloads=3, delay_ms=100)
    for message, at in ((later, 300), (earlier, 50), (now, 0)):
        assert api.Outcomes((Outcome.DONE,)) == bench.do(c.Reschedule("q", message, bench.wall_ms + at))
    assert [now] == bench.take()
    bench.wait(50)
    assert [earlier] == bench.take()
    bench.wait(249)
    assert [] == bench.take()
    bench.wait(1)

    assert [later] == bench.take()


def test_reschedule_of_a_ready_message_delays_it_and_keeps_its_place(bench: Bench) -> None:
    """It comes back where it stood."""
    first, second = bench.ids(payloads=2)
    bench.do(c.Reschedule("q", first, bench.wall_ms + 50))
    assert [second] == [m.id for m in bench.peek()]
    bench.wait(50)

    assert [first, second] == bench.take()


def test_reschedule_ends_a_backoff_and_keeps_the_attempts(bench: Bench) -> None:
    """Counted is counted."""
    (message,) = bench.ids()
    (run,) = bench.lease()
    bench.fail(run, delay_ms=1_000_000)
    bench.do(c.Reschedule("q", message, bench.wall_ms))
    (again,) = bench.lease()

    assert (message, 1) == (again.first_id, again.attempts)


def test_reschedule_answers_exactly(bench: Bench) -> None:
    """Leased, gone, unknown change nothing; a parked message is dead, not pending."""
    bench.set(dlq="none")
    leased, settled, dead = bench.ids(payloads=3)
    (run,) = bench.lease()
    bench.ack(run, ((1, 1),))
    bench.settle(run, api.SettleKind.REJECT, ((2, 2),))
    answers = [
        bench.do(c.Reschedule("q", message, bench.wall_ms)).outcomes[0] for message in (leased, settled, dead, 12345)
    ]

    assert [Outcome.LEASED, Outcome.GONE, Outcome.GONE, Outcome.UNKNOWN] == answers
    assert (0, 0, 1, 1) == bench.counts()


def test_reschedule_beyond_thirty_days_is_refused(bench: Bench) -> None:
    """With its code, and the message stays as it was."""
    (message,) = bench.ids(delay_ms=10)
    edge = bench.wall_ms + limits.DELAY_MS_MAX

    assert int(Code.DELAY_TOO_LONG) == bench.do(c.Reschedule("q", message, edge + 1)).code
    assert [bench.wall_ms + 10] == [m.due_ms for m in bench.peek(State.DELAYED)]
    assert api.Outcomes((Outcome.DONE,)) == bench.do(c.Reschedule("q", message, edge))


def test_a_rescheduled_message_is_delivered_once(bench: Bench) -> None:
    """Its old times are stale, not second deliveries."""
    (message,) = bench.ids(delay_ms=10)
    bench.do(c.Reschedule("q", message, bench.wall_ms + 20))
    bench.do(c.Reschedule("q", message, bench.wall_ms + 10))
    bench.do(c.Reschedule("q", message, bench.wall_ms + 20))
    bench.wait(19)
    assert [] == bench.take()
    bench.wait(1)
    (run,) = bench.lease()
    assert message == run.first_id
    bench.ack(run)
    bench.wait(1_000)

    assert [] == bench.take()


def test_one_message_of_a_delayed_group_batch_can_be_rescheduled(bench: Bench) -> None:
    """Also while nothing of its group is ready."""
    first, second = bench.ids(payloads=2, groups=["g", "g"], delay_ms=100)
    bench.do(c.Reschedule("q", second, bench.wall_ms))

    assert [second] == bench.take()
    assert [first] == [m.id for m in bench.peek(State.DELAYED)]
