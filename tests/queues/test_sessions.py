"""Sessions: a request takes effect once, and its retry gets the first answer."""

from __future__ import annotations

import pytest

from tests.queues.bench import Bench, columns
from walrq import api, limits
from walrq.errors import ERRORS, Code
from walrq.queues import commands as c
from walrq.queues import effects
from walrq.queues.machine import Bounds

UNKNOWN = int(Code.OUTCOME_UNKNOWN)
ENDED = int(Code.SESSION_ENDED)


def push() -> c.Push:
    return c.Push("q", columns([b"x"]))


def lease(bench: Bench, visibility_ms: int = 1_000, limit: int = 10) -> c.Lease:
    return c.Lease(("q",), limit, visibility_ms, bench.lease_ms)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_retried_push_takes_effect_once(bench: Bench, restarted: bool) -> None:
    """AtMostOnce (X01): the retry returns the first answer, also after a restart."""
    session = bench.session()
    first = bench.do(push(), session, 1)
    if restarted:
        bench.restart()

    assert first == bench.do(push(), session, 1)
    assert (1, 0, 0, 0) == bench.counts()


def test_a_retried_poll_returns_the_leases_still_held(bench: Bench) -> None:
    """L14: no second message for the same request; the same fence, delivery and receipt."""
    session = bench.session()
    bench.push(payloads=2)
    first = bench.do(lease(bench, limit=1), session, 1)
    bench.wait(10)

    assert first == bench.do(lease(bench, limit=1), session, 1)
    assert (1, 0, 1, 0) == bench.counts()


def test_a_retried_poll_names_what_it_no_longer_holds(bench: Bench) -> None:
    """Partly settled, or over: `ended`, so that the client does not work on it."""
    session = bench.session()
    for count in (1, 2, 1):
        bench.push(payloads=count)
    first = bench.do(lease(bench, visibility_ms=100), session, 1)
    settled, partly, held = first.runs
    bench.ack(settled)
    bench.ack(partly, ((0, 0),))
    again = bench.do(lease(bench), session, 1)

    assert (held,) == again.runs
    assert [(r.uid, r.lease) for r in (settled, partly)] == [(t.uid, t.lease) for t in again.ended]
    bench.wait(100)
    assert () == bench.do(lease(bench), session, 1).runs


def test_a_retried_poll_names_no_lease_that_is_over_but_not_swept() -> None:
    """Exclusive: a stamp too busy to sweep it must not hand it out again as held."""
    bench = Bench(Bounds(expire_per_entry=1))
    session = bench.session()
    bench.push("busy")
    bench.lease("busy", visibility_ms=50)
    bench.push()
    (run,) = bench.do(lease(bench, visibility_ms=100), session, 1).runs
    bench.wait(100)
    again = bench.do(lease(bench), session, 1)

    assert ((), [(run.uid, run.lease)]) == (again.runs, [(t.uid, t.lease) for t in again.ended])


def test_a_retried_settle_answers_as_the_first_time(bench: Bench) -> None:
    """Not with ReceiptExpired, though the receipt is spent."""
    session = bench.session()
    bench.push()
    (run,) = bench.lease()
    ack = c.Settle("q", api.SettleKind.ACK, (c.Target(run.uid, run.lease),))

    assert api.Settled((0,)) == bench.do(ack, session, 1)
    assert api.Settled((0,)) == bench.do(ack, session, 1)


def test_a_refusal_is_remembered_too(bench: Bench) -> None:
    """The first answer is the answer, also when the retry would succeed."""
    session = bench.session()
    bench.set(max_length=1)
    bench.push()
    assert int(Code.QUEUE_FULL) == bench.do(push(), session, 1).code
    bench.do(c.PurgeQueue("q"))

    assert int(Code.QUEUE_FULL) == bench.do(push(), session, 1).code
    assert isinstance(bench.do(push(), session, 2), api.Pushed)


def test_an_empty_poll_is_not_remembered(bench: Bench) -> None:
    """Nothing happened: it parks again, and finds what has come."""
    session = bench.session()
    assert () == bench.do(lease(bench), session, 1).runs
    (message,) = bench.ids()

    assert [message] == [run.first_id for run in bench.do(lease(bench), session, 1).runs]


def test_answers_are_those_of_their_own_request(bench: Bench) -> None:
    """X04: by session and sequence, in any order."""
    one, other = bench.session(), bench.session()
    answers = {
        (session, sequence): bench.do(push(), session, sequence) for session in (one, other) for sequence in (2, 1, 3)
    }

    assert 6 == len({answer.first_id for answer in answers.values()})
    for (session, sequence), answer in answers.items():
        assert answer == bench.do(push(), session, sequence)


def test_answers_below_the_lowest_unanswered_are_dropped(bench: Bench) -> None:
    """A request from below is *unknown*: it was answered, and the answer is gone; it has no second effect."""
    session = bench.session()
    for sequence in (1, 2, 3):
        bench.do(push(), session, sequence)
    bench.do(push(), session, 4, lowest=3)

    assert UNKNOWN == bench.do(push(), session, 2).code
    assert isinstance(bench.do(push(), session, 3), api.Pushed)
    assert (4, 0, 0, 0) == bench.counts()


def test_the_lowest_unanswered_never_goes_back(bench: Bench) -> None:
    """A late copy of an old frame does not open what was closed."""
    session = bench.session()
    bench.do(push(), session, 10, lowest=10)

    assert UNKNOWN == bench.do(push(), session, 5, lowest=0).code
    assert (1, 0, 0, 0) == bench.counts()


def test_an_unknown_session_is_refused_not_created(bench: Bench) -> None:
    """ExpiredIsUnknown (X07, X08): answered *unknown*, never *failed*."""
    refused = bench.do(push(), 12345, 1)

    assert ENDED == refused.code
    assert not ERRORS[Code(refused.code)].definite
    assert "q" not in bench.machine.queues
    assert ENDED == bench.do(push(), 12345, 1).code


def test_a_session_ends_after_an_hour_of_idle_lease_clock(bench: Bench) -> None:
    """X05: not of wall clock; every request starts the hour anew."""
    session = bench.session()
    bench.wait(limits.SESSION_IDLE_MS - 1, wall_ms=0)
    first = bench.do(push(), session, 1)
    bench.wait(limits.SESSION_IDLE_MS - 1, wall_ms=10 * limits.SESSION_IDLE_MS)
    assert first == bench.do(push(), session, 1)
    bench.wait(limits.SESSION_IDLE_MS, wall_ms=0)

    assert ENDED == bench.do(push(), session, 1).code
    assert (1, 0, 0, 0) == bench.counts()


def test_a_living_connection_keeps_its_sessions(bench: Bench) -> None:
    """Idle is not gone; one that is gone is not revived."""
    kept, other = bench.session(), bench.session()
    bench.wait(limits.SESSION_IDLE_MS - 1)
    bench.do(c.KeepSessions((kept, 999)))
    bench.wait(1)
    bench.do(c.KeepSessions((other,)))

    assert isinstance(bench.do(push(), kept, 1), api.Pushed)
    assert ENDED == bench.do(push(), other, 1).code
    assert ENDED == bench.do(push(), 999, 1).code


def test_a_closed_session_is_over(bench: Bench) -> None:
    """Its leases are not: they end by settling or expiry."""
    session = bench.session()
    bench.push()
    (run,) = bench.do(lease(bench), session, 1).runs
    assert api.Done() == bench.do(c.CloseSession(), session, 2)

    assert ENDED == bench.do(push(), session, 3).code
    assert 0 == bench.ack(run)


def test_session_numbers_are_never_given_twice(bench: Bench) -> None:
    """Log index and ordinal."""
    results = bench.apply(c.Tagged(c.OpenSession()), c.Tagged(c.OpenSession()))
    numbers = [r.session for r in results if isinstance(r, api.SessionOpened)]

    assert [bench.index << 16, bench.index << 16 | 1] == numbers


def test_sessions_are_bounded_with_a_refusal() -> None:
    """X06: nobody is evicted for a newcomer."""
    bench = Bench(Bounds(sessions_max=1))
    session = bench.session()
    refused = bench.do(c.OpenSession())

    assert (int(Code.OVERLOADED), "sessions_max") == (refused.code, refused.details["limit"])
    assert isinstance(bench.do(push(), session, 1), api.Pushed)


def test_the_window_of_a_session_is_bounded_with_a_refusal() -> None:
    """Not executed, not remembered, nothing forgotten; acknowledged answers make room."""
    bench = Bench(Bounds(session_window_max=2))
    session = bench.session()
    first = bench.do(push(), session, 1)
    bench.do(push(), session, 2)
    refused = bench.do(push(), session, 3)

    assert (int(Code.OVERLOADED), "session_window_max") == (refused.code, refused.details["limit"])
    assert (2, 0, 0, 0) == bench.counts()
    assert first == bench.do(push(), session, 1)
    assert isinstance(bench.do(push(), session, 3, lowest=2), api.Pushed)


# --- forget -------------------------------------------------------------------------------------------------
def test_forget_releases_what_the_request_leased(bench: Bench) -> None:
    """Free, to its place: the caller went away."""
    session = bench.session()
    first, second = bench.ids(payloads=2)
    bench.do(lease(bench, limit=1), session, 1)
    bench.do(c.Forget(1), session, 2)

    assert [first, second] == bench.take()
    assert {0} == {m.attempts for m in bench.peek(api.State.LEASED)}


def test_a_forgotten_request_is_refused_when_it_is_repeated(bench: Bench) -> None:
    """Nobody waits for its answer; it must not lease again."""
    session = bench.session()
    bench.push()
    bench.do(lease(bench), session, 1)
    bench.do(c.Forget(1), session, 2)

    assert UNKNOWN == bench.do(lease(bench), session, 1).code
    assert (1, 0, 0, 0) == bench.counts()


def test_forget_may_overtake_its_request(bench: Bench) -> None:
    """A request not seen yet is refused when it comes."""
    session = bench.session()
    bench.push()
    bench.do(c.Forget(7), session, 8)

    assert UNKNOWN == bench.do(lease(bench), session, 7).code
    assert (1, 0, 0, 0) == bench.counts()


def test_forget_leaves_settled_messages_alone(bench: Bench) -> None:
    """Of a lease partly acked only the rest comes back."""
    session = bench.session()
    first, second = bench.ids(payloads=2)
    (run,) = bench.do(lease(bench), session, 1).runs
    bench.ack(run, ((0, 0),))
    bench.do(c.Forget(1), session, 2)

    assert [second] == bench.take()
    assert first != second


def test_forget_of_a_lease_that_went_to_another_worker_takes_nothing_away(bench: Bench) -> None:
    """Exclusive: only the forgotten lease ends."""
    session = bench.session()
    bench.push()
    bench.do(lease(bench, visibility_ms=10), session, 1)
    bench.wait(10)
    (holder,) = bench.lease()
    bench.do(c.Forget(1), session, 2)

    assert [] == bench.take()
    assert 0 == bench.ack(holder)


def test_forget_below_the_lowest_unanswered_does_nothing(bench: Bench) -> None:
    """The client has that answer; its leases are its own."""
    session = bench.session()
    bench.push()
    bench.do(lease(bench), session, 1)
    bench.do(c.Forget(1), session, 2, lowest=2)

    assert (0, 0, 1, 0) == bench.counts()


def test_forget_needs_a_session(bench: Bench) -> None:
    """Without one there is no request to name."""
    assert int(Code.INVALID_ARGUMENT) == bench.do(c.Forget(1)).code


def test_leases_without_a_session_are_independent(bench: Bench) -> None:
    """No memory, no retry: documented for RESP and HTTP."""
    bench.push(payloads=2)
    one, other = (bench.do(lease(bench, limit=1)) for _ in range(2))

    assert isinstance(one, effects.Granted) and isinstance(other, effects.Granted)
    assert one.runs[0].first_id != other.runs[0].first_id


@pytest.mark.parametrize(
    "command",
    [
        c.SetQueue("q", {}),
        c.Settle("q", api.SettleKind.ACK, (c.Target(1, 1),)),
        c.Forget(1),
        c.OpenSession(),
        c.CloseSession(),
        c.Move("q", "r", 1),
        c.Push("q", columns([b"x"])),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_number_of_another_kind_of_request_is_refused(bench: Bench, command: c.Command) -> None:
    """The answer of a poll must never be taken for that of something else; and nothing happens under a used number."""
    session = bench.session()
    bench.push()
    leased = bench.do(c.Lease(("q",), 1, 1_000, 0), session, 1)
    refused = bench.do(command, session, 1)

    assert int(Code.INVALID_ARGUMENT) == refused.code
    assert leased == bench.do(c.Lease(("q",), 1, 1_000, 0), session, 1)
    assert bench.counts()[2] == 1
