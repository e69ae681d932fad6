"""What makes a retry safe: sequences, sessions, deadlines. No socket, no clock."""

from __future__ import annotations

import random
import struct

import pytest

from tests.client.fake_server import delivered
from tests.client.wire import PUSHED, connected, push, wire
from walrq import api
from walrq.client.exchange import RENEW_SPAN, SPAN_MAX, UNKNOWN_TRIES_MAX, Link
from walrq.client.failures import ServerUnreachable
from walrq.errors import (
    Code,
    ConnectionLost,
    DiskFull,
    InvalidArgument,
    OutcomeUnknown,
    QueueFull,
    ReplyTimeout,
    SessionEnded,
)
from walrq.protocol.server import ServerConnection

POLL = api.Poll(("q",), 10, None, 20_000)


def test_a_session_is_opened_before_the_first_request() -> None:
    """A request that leaves without a session could not be retried safely."""
    made = wire()
    early = made.submit(push())
    made.connect()

    incoming = made.one(api.Push)

    assert 1 == incoming.sequence
    assert 1 == incoming.lowest
    made.reply(incoming, PUSHED)
    assert PUSHED == early.reply


def test_reads_carry_no_sequence() -> None:
    """The session remembers answers; an answer that may be asked for again is not worth remembering."""
    made = connected()
    made.submit(api.Ping())
    made.submit(api.ShowQueue("q"))

    assert [None, None] == [incoming.sequence for incoming in made.take()]


def test_lowest_follows_the_answers() -> None:
    """What the client has read the server may forget, and nothing else."""
    made = connected()
    for _ in range(3):
        made.submit(push())
    first, second, third = made.take(api.Push)
    made.reply(second, PUSHED)
    made.submit(push())

    assert 1 == made.one(api.Push).lowest
    made.reply(first, PUSHED)
    made.submit(push())
    assert 3 == made.one(api.Push).lowest
    made.reply(third, PUSHED)


def test_unanswered_requests_go_out_again_with_the_same_sequence_and_order() -> None:
    """A push whose answer was lost must not be a second push, and a producer's batches keep their order."""
    made = connected()
    calls = [made.submit(push(bytes([65 + number]))) for number in range(3)]
    before = made.take(api.Push)
    made.reply(before[1], PUSHED)
    made.cut()
    late = made.submit(push(b"Z"))

    made.connect()

    after = made.take(api.Push)
    assert [1, 3, 4] == [incoming.sequence for incoming in after]
    assert [b"A", b"C", b"Z"] == [incoming.request.columns.payloads for incoming in after]
    assert 1 == made.hellos[-1].session
    for incoming in after:
        made.reply(incoming, PUSHED)
    assert [PUSHED] * 4 == [call.reply for call in (*calls, late)]


def test_without_a_session_a_lost_answer_is_an_unknown_outcome() -> None:
    """Asking again could do it twice, so the caller has to decide."""
    made = connected(session=False)
    change, read = made.submit(push()), made.submit(api.Ping())
    poll = made.submit(POLL)
    made.take()

    made.cut()

    assert isinstance(change.error, ConnectionLost)
    made.connect()
    assert [api.Ping, api.Poll] == [type(incoming.request) for incoming in made.take()]
    assert not read.finished and not poll.finished


def test_a_definite_refusal_is_retried_under_a_new_sequence() -> None:
    """The session remembers the refusal: under the old sequence it would be refused for ever."""
    made = connected()
    call = made.submit(push())
    made.refuse(made.one(api.Push), Code.DISK_FULL)

    assert not call.finished
    made.pass_time(0.001)
    assert [] == made.take()
    made.pass_time(1)

    again = made.one(api.Push)
    assert (2, 2) == (again.sequence, again.lowest)
    made.reply(again, PUSHED)
    assert PUSHED == call.reply


def test_a_refusal_of_a_second_sending_says_nothing_about_the_first() -> None:
    """The first may have been executed and its answer lost: a new sequence would do it twice."""
    made = connected(timeout_s=5)
    call = made.submit(push())
    made.take()
    made.cut()
    made.connect()
    made.refuse(made.one(api.Push), Code.DRAINING)
    made.pass_time(1)

    assert 1 == made.one(api.Push).sequence
    made.pass_time(5)
    assert call.error is not None and not call.error.definite


def test_an_indefinite_refusal_is_retried_under_the_same_sequence() -> None:
    """It may have happened; only the same sequence finds out instead of doing it again."""
    made = connected()
    call = made.submit(push())
    made.refuse(made.one(api.Push), Code.REPLY_TIMEOUT)
    made.pass_time(1)

    again = made.one(api.Push)

    assert 1 == again.sequence
    made.reply(again, PUSHED)
    assert PUSHED == call.reply


def test_an_error_that_no_retry_can_change_is_raised_at_once() -> None:
    """A full queue is the caller's business, not the client's patience's."""
    made = connected()
    call = made.submit(push())

    made.refuse(made.one(api.Push), Code.QUEUE_FULL)

    assert isinstance(call.error, QueueFull)


def test_an_unknown_outcome_is_not_asked_about_for_ever() -> None:
    """The state machine's "unknown" stays unknown."""
    made = connected()
    call = made.submit(push())
    for _ in range(UNKNOWN_TRIES_MAX):
        made.refuse(made.one(api.Push), Code.OUTCOME_UNKNOWN)
        made.pass_time(2)

    assert type(call.error) is OutcomeUnknown
    assert [] == made.take()


def test_a_servers_advice_on_when_to_come_back_is_taken() -> None:
    """A node that names a time has a reason."""
    made = connected()
    made.submit(push())
    made.refuse(made.one(api.Push), Code.OVERLOADED, retry_after_ms=1500)
    made.pass_time(0.7)

    assert [] == made.take()
    made.pass_time(0.9)
    assert 1 == len(made.take(api.Push))


def test_back_off_doubles_within_its_bound_and_is_spread() -> None:
    """A thousand clients must not come back at the same moment, nor ever later than promised."""
    exchange = wire(retry_first_s=0.1, retry_max_s=1.0).exchange

    for tries, most in ((1, 0.1), (2, 0.2), (3, 0.4), (10, 1.0), (5000, 1.0)):
        pauses = {exchange.pause_s(tries) for _ in range(50)}
        assert all(most / 2 <= pause <= most for pause in pauses)
        assert 40 < len(pauses)


def test_a_request_of_an_ended_session_is_unknown_once_it_was_retried() -> None:
    """Under the ended session it may have happened: "failed" would be a lie."""
    made = connected()
    retried = made.submit(push())
    made.take()
    made.cut()
    made.sessions.clear()

    made.connect(session=2)

    assert isinstance(retried.error, SessionEnded)
    assert 2 == made.exchange.session


def test_a_request_that_an_ended_session_refused_at_its_only_sending_starts_anew() -> None:
    """A client that was idle for an hour just works: refused once and never sent before means not done."""
    made = connected()
    call = made.submit(push())
    made.refuse(made.one(api.Push), Code.SESSION_ENDED)

    made.reply(made.one(api.OpenSession), api.SessionOpened(9))

    again = made.one(api.Push)
    assert 9 == made.exchange.session
    made.reply(again, PUSHED)
    assert PUSHED == call.reply


def test_several_requests_refused_by_an_ended_session_open_one_new_session() -> None:
    """Each refusal of a window must not open a session of its own."""
    made = connected()
    calls = [made.submit(push()) for _ in range(5)]
    for incoming in made.take(api.Push):
        made.refuse(incoming, Code.SESSION_ENDED)

    made.reply(made.one(api.OpenSession), api.SessionOpened(9))

    for incoming in made.take(api.Push):
        made.reply(incoming, PUSHED)
    assert [PUSHED] * 5 == [call.reply for call in calls]


def test_a_retried_request_that_finds_its_session_ended_is_unknown() -> None:
    """The node resumed the session in its Hello, the log then said that it is over."""
    made = connected()
    made.trusting = True
    call = made.submit(push())
    made.take()
    made.cut()
    made.connect()

    made.refuse(made.one(api.Push), Code.SESSION_ENDED)

    assert isinstance(call.error, SessionEnded)


def test_a_poll_survives_the_end_of_its_session() -> None:
    """A poll can be asked again: what an unread answer leased comes back by itself."""
    made = connected()
    call = made.submit(POLL)
    made.take()
    made.cut()
    made.sessions.clear()
    made.connect(session=2)

    made.reply(made.one(api.Poll), api.Polled(0, 30_000, ()))

    assert api.Polled(0, 30_000, ()) == call.reply


def test_a_cancelled_poll_is_forgotten_by_the_server() -> None:
    """Otherwise a message would wait out a whole lease for a worker that is gone."""
    made = connected()
    call = made.submit(POLL)
    polled = made.one(api.Poll)
    made.exchange.abandon(call, made.now)

    forget = made.one(api.Forget)

    assert api.Forget(1) == forget.request
    made.submit(push())
    assert 1 == made.one(api.Push).lowest, "the server must still be able to find the poll's lease"
    made.reply(forget, api.Done())
    made.reply(polled, api.Polled(0, 30_000, ()))
    made.submit(push())
    assert 3 == made.one(api.Push).lowest


def test_a_poll_cancelled_while_the_connection_is_down_is_forgotten_on_the_next() -> None:
    """Its lease may have been granted before the connection broke."""
    made = connected()
    call = made.submit(POLL)
    made.take()
    made.cut()
    made.exchange.abandon(call, made.now)

    made.connect()

    assert [api.Forget(1)] == [incoming.request for incoming in made.take()]


def test_an_answer_that_nobody_takes_any_more_is_released() -> None:
    """The answer was there, the caller was cancelled in the same turn of the loop."""
    made = connected()
    call = made.submit(POLL)
    run = delivered("q", 1, (b"a", b"b"))
    made.reply(made.one(api.Poll), api.Polled(0, 30_000, (run,)))

    made.exchange.abandon(call, made.now)

    assert api.Settle("q", api.SettleKind.RELEASE, (api.Item(run.receipt),)) == made.one(api.Settle).request


def test_a_sessionless_poll_that_was_cancelled_releases_what_still_comes() -> None:
    """Without a session there is nothing to forget by, so the lease is given back when it arrives."""
    made = connected(session=False)
    call = made.submit(POLL)
    polled = made.one(api.Poll)
    made.exchange.abandon(call, made.now)
    run = delivered("q", 1, (b"a",))

    made.reply(polled, api.Polled(0, 30_000, (run,)))

    assert api.SettleKind.RELEASE == made.one(api.Settle).request.kind


def test_the_window_bounds_what_is_under_way_but_not_parked_polls() -> None:
    """Parked polls would otherwise keep out the very pushes and acks that they wait for."""
    made = connected(window=2)
    for _ in range(5):
        made.submit(POLL)
    calls = [made.submit(push()) for _ in range(3)]

    incoming = made.take(api.Push)

    assert 2 == len(incoming)
    assert 5 == len(made.take(api.Poll))
    made.reply(incoming[0], PUSHED)
    made.reply(made.one(api.Push), PUSHED)
    assert [True, False, True] == [call.finished for call in calls]


def test_an_old_parked_poll_is_renewed_before_it_exhausts_the_session() -> None:
    """It holds back `lowest`, and the server remembers a bounded number of answers above it."""
    made = connected(window=10_000)
    poll = made.submit(POLL)
    old = made.one(api.Poll)
    made.pass_time(5)
    worst = 0
    for _ in range(RENEW_SPAN * 3):
        made.submit(push())
        incoming = made.one(api.Push)
        worst = max(worst, incoming.sequence - incoming.lowest)
        made.reply(incoming, PUSHED)
        for forget in made.take(api.Forget):
            made.reply(forget, api.Done())

    renewed = made.take(api.Poll)
    assert worst <= RENEW_SPAN + 3
    assert 1 <= len(renewed)
    assert old.sequence not in [incoming.sequence for incoming in renewed]
    assert all(incoming.request.wait_ms <= 15_000 for incoming in renewed)
    made.reply(old, api.Polled(0, 30_000, (delivered("q", 1, (b"lost",)),)))
    assert not poll.finished, "what the forgotten poll leased was given back by the server"
    made.reply(renewed[-1], api.Polled(7, 30_000, ()))
    assert api.Polled(7, 30_000, ()) == poll.reply


def test_a_stuck_request_stops_the_client_before_the_server_has_to() -> None:
    """When `lowest` cannot move, new requests wait in the client instead of being refused."""
    made = connected(window=10_000)
    made.submit(push(b"stuck"))
    stuck = made.one(api.Push)
    for _ in range(SPAN_MAX + 50):
        made.submit(push())
    flowing = made.take(api.Push)

    assert SPAN_MAX == flowing[-1].sequence - stuck.sequence
    for incoming in flowing:
        made.reply(incoming, PUSHED)
    assert [] == made.take(api.Push)
    made.reply(stuck, PUSHED)
    assert 50 == len(made.take(api.Push))


def test_a_lease_counts_from_the_first_sending() -> None:
    """A retried poll may be answered with the lease of its first sending: counting later would outlive it."""
    made = connected()
    call = made.submit(api.Poll(("q",), 10))
    sent_at = made.now
    made.take()
    made.cut()
    made.now += 3
    made.connect()

    made.reply(made.one(api.Poll), api.Polled(0, 30_000, ()))

    assert sent_at == call.sent_at


def test_a_poll_that_waited_through_an_outage_gets_a_fresh_lease() -> None:
    """Counted from its first sending, the lease of a message that came late would be over on arrival."""
    made = connected()
    call = made.submit(POLL)
    before = made.one(api.Poll)
    made.now += 12
    made.cut()
    made.now += 3
    made.connect()

    forget, again = made.take()
    assert before.sequence == forget.request.sequence  # type: ignore[union-attr]
    assert again.sequence != before.sequence
    assert before.sequence == again.lowest, "the server must still be able to find what the first one leased"
    made.reply(forget, api.Done())
    made.reply(again, api.Polled(0, 30_000, (delivered("q", 1, (b"a",)),)))

    assert call.reply is not None
    assert made.now == call.sent_at


def test_a_poll_waits_no_longer_because_it_was_sent_again() -> None:
    """The caller said how long; a broken connection does not start the count anew."""
    made = connected()
    made.submit(POLL)
    made.take()
    made.now += 15
    made.cut()

    made.connect()

    assert 5_000 == made.one(api.Poll).request.wait_ms


def test_a_request_that_was_never_sent_fails_definitely() -> None:
    """Nobody was there: it certainly did not happen."""
    made = wire(timeout_s=5)
    call = made.submit(push())

    made.pass_time(5)

    assert isinstance(call.error, ServerUnreachable)
    assert call.error.definite
    made.connect()
    assert [] == made.take()


def test_a_request_without_an_answer_is_unknown_when_its_time_is_over() -> None:
    """Sent and silent: it may have happened."""
    made = connected(timeout_s=5)
    silent, cut = made.submit(push()), made.submit(POLL)
    made.take()
    made.pass_time(5)

    assert isinstance(silent.error, ReplyTimeout)
    assert not silent.error.definite
    assert not cut.finished, "a poll may wait for messages on top of the time-out"
    made.cut()
    made.pass_time(20)
    assert isinstance(cut.error, ConnectionLost)


def test_time_out_while_resting_tells_the_refusal() -> None:
    """The disk was full until the end: say that, not "no reply"."""
    made = connected(timeout_s=0.02)
    call = made.submit(push())
    made.refuse(made.one(api.Push), Code.DISK_FULL)

    made.pass_time(0.02)

    assert isinstance(call.error, DiskFull)


def test_a_request_that_cannot_be_encoded_fails_alone() -> None:
    """One caller's mistake is not the connection's."""
    made = connected()

    bad = made.submit(api.SetQueue("q", {"dlq": object()}))

    assert isinstance(bad.error, InvalidArgument)
    good = made.submit(push())
    incoming = made.one(api.Push)
    assert incoming.sequence == incoming.lowest, "the failed request's sequence is not waited for"
    made.reply(incoming, PUSHED)
    assert PUSHED == good.reply


def test_a_leaving_server_gets_nothing_new_and_answers_what_it_has() -> None:
    """A rolling restart loses no request and repeats none."""
    made = connected()
    old = made.submit(push(b"old"))
    incoming = made.one(api.Push)
    assert made.server is not None
    made.server.send_goaway(Code.DRAINING, "stopping")
    made.pump()
    new = made.submit(push(b"new"))

    made.reply(incoming, PUSHED)

    assert PUSHED == old.reply
    assert Link.DOWN is made.exchange.link
    made.connect()
    again = made.one(api.Push)
    assert b"new" == again.request.columns.payloads
    made.reply(again, PUSHED)
    assert PUSHED == new.reply


def test_a_refused_session_takes_the_connection_down() -> None:
    """Without its session the client can send nothing safely."""
    made = wire()
    made.server = None
    call = made.submit(push())
    made.exchange.connecting()
    made.server = ServerConnection(welcome=made.welcome)
    made.pump()

    made.refuse(made.one(api.OpenSession), Code.OVERLOADED)

    assert Link.DOWN is made.exchange.link
    assert Code.OVERLOADED == made.exchange.refused.code  # type: ignore[union-attr]
    made.cut()
    made.connect()
    made.reply(made.one(api.Push), PUSHED)
    assert PUSHED == call.reply


def test_closing_ends_every_call() -> None:
    """No caller waits for a client that is gone."""
    made = connected()
    calls = [made.submit(push()), made.submit(POLL)]
    made.take()
    calls.append(made.submit(push()))

    made.finished += made.exchange.fail_all(ConnectionLost("closed"), made.now)

    assert all(isinstance(call.error, ConnectionLost) for call in calls)
    assert made.exchange.next_due() is None or made.exchange.idle is False


@pytest.mark.parametrize("session", [True, False])
def test_any_interleaving_executes_every_change_exactly_once(rng: random.Random, session: bool) -> None:
    """Connections that break at any moment, answers that are lost, refusals: the sum stays right.

    The server is the smallest that keeps its side of the bargain: it remembers answers by sequence and
    forgets those below `lowest`. Without sessions the same storm may do a change twice or not, but never
    loses a definite answer.
    """
    made = connected(session=session, timeout_s=1e6, window=8)
    done: dict[int, int] = {}
    results: dict[int, api.Reply] = {}
    calls = []
    for number in range(400):
        calls.append(made.submit(push(struct.pack("<I", number))))
        for _ in range(rng.randrange(4)):
            if rng.random() < 0.08:
                made.cut()
                made.now += rng.random()
                made.connect()
            for incoming in made.take(api.Push):
                fate = rng.random()
                if fate < 0.1:
                    continue  # neither executed nor answered: lost with the connection
                if fate < 0.2:
                    made.refuse(incoming, rng.choice([Code.OVERLOADED, Code.REPLY_TIMEOUT]))
                    continue
                sequence = incoming.sequence
                if session:
                    assert sequence is not None and incoming.lowest is not None
                    for old in [each for each in results if each < incoming.lowest]:
                        del results[old]
                if sequence is None or sequence not in results:
                    (value,) = struct.unpack("<I", incoming.request.columns.payloads)
                    done[value] = done.get(value, 0) + 1
                    if sequence is not None:
                        results[sequence] = api.Pushed(value + 1, 1)
                    answer: api.Reply = api.Pushed(value + 1, 1)
                else:
                    answer = results[sequence]
                if rng.random() < 0.15:
                    made.cut()
                    made.connect()
                    break
                made.reply(incoming, answer)
            made.pass_time(rng.random() * 3)
    for _ in range(2000):
        if all(call.finished for call in calls):
            break
        made.cut()
        made.connect()
        for incoming in made.take(api.Push):
            (value,) = struct.unpack("<I", incoming.request.columns.payloads)
            if incoming.sequence is None or incoming.sequence not in results:
                done[value] = done.get(value, 0) + 1
                if incoming.sequence is not None:
                    results[incoming.sequence] = api.Pushed(value + 1, 1)
            made.reply(incoming, api.Pushed(value + 1, 1))
        made.pass_time(3)

    confirmed = [number for number, call in enumerate(calls) if isinstance(call.reply, api.Pushed)]
    assert all(calls[number].reply == api.Pushed(number + 1, 1) for number in confirmed)
    assert all(done.get(number, 0) >= 1 for number in confirmed)
    if session:
        assert list(range(400)) == confirmed
        assert {1} == set(done.values())
    else:
        unknown = [call for call in calls if call.reply is None]
        assert all(call.error is not None and not call.error.definite for call in unknown)
