"""What a client sees of one node, over both fronts."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.daemon.harness import FRONTS, HeldDisk, columns, payloads, running
from walrq import api
from walrq.daemon import bodies
from walrq.errors import Code
from walrq.protocol.framing import frame
from walrq.protocol.server import ServerConnection

pytestmark = [pytest.mark.trio, pytest.mark.parametrize("front", FRONTS)]

POLL = api.Poll(("jobs",), 10)


def ack(polled: api.Polled, queue: str = "jobs") -> api.Settle:
    """Acknowledge all of a poll."""
    return api.Settle(queue, api.SettleKind.ACK, tuple(api.Item(run.receipt) for run in polled.runs))


async def test_a_message_is_pushed_polled_and_acknowledged(front: str) -> None:
    """The main job: in, out, gone."""
    async with running(front) as world:
        client = await world.connect()
        pushed = await client.ask(api.Push("jobs", columns(b"a", b"bb")))
        polled = await client.ask(POLL)
        settled = await client.ask(ack(polled))

        assert 2 == pushed.count
        assert [b"a", b"bb"] == payloads(polled)
        assert pushed.first_id == polled.runs[0].first_id
        assert api.Settled((0,)) == settled
        assert 0 == (await world.info("jobs")).leased


async def test_pipelined_requests_share_an_entry_and_are_all_answered(front: str) -> None:
    """A window of requests costs one group commit, not one each."""
    async with running(front) as world:
        client = await world.connect()
        before = world.node.replica.applied_index
        numbers = [client.protocol.request(api.Push("jobs", columns(b"%d" % n))) for n in range(50)]
        await client.flush()
        replies = [await client.answer(number) for number in numbers]

        ids = [reply.first_id for reply in replies]
        assert ids == sorted(ids)
        assert 50 == len(set(ids))
        assert world.node.replica.applied_index - before < 10


async def test_a_ping_is_answered_while_a_poll_waits(front: str) -> None:
    """A connection with a parked poll is not blocked by it."""
    async with running(front) as world:
        client = await world.connect()
        poll = await client.send(api.Poll(("jobs",), 1, wait_ms=60_000))

        assert api.Pong() == await client.ask(api.Ping())
        assert poll not in client.answers


async def test_a_parked_poll_is_leased_in_the_entry_of_the_push(front: str) -> None:
    """The message reaches the waiter after one disk write, not two."""
    async with running(front) as world:
        waiter, producer = await world.connect(), await world.connect()
        poll = await waiter.send(api.Poll(("jobs",), 10, wait_ms=60_000))
        await waiter.ask(api.Ping())
        before = world.node.replica.applied_index
        await producer.ask(api.Push("jobs", columns(b"now")))
        polled = await waiter.answer(poll)

        assert [b"now"] == payloads(polled)
        # (index, ordinal): the push is command 0 of the entry, the lease command 1.
        assert (before + 1, 1) == polled.runs[0].fence
        assert before + 1 == world.node.replica.applied_index


async def test_one_message_wakes_one_of_many_waiters(front: str) -> None:
    """No thundering herd: the others stay parked and nothing is written for them."""
    async with running(front) as world:
        waiters = [await world.connect() for _ in range(20)]
        polls = [await waiter.send(api.Poll(("jobs",), 10, wait_ms=60_000)) for waiter in waiters]
        for waiter in waiters:
            await waiter.ask(api.Ping())
        producer = await world.connect()
        await producer.ask(api.Push("jobs", columns(b"one")))

        assert [b"one"] == payloads(await waiters[0].answer(polls[0]))
        assert 19 == world.node.broker.polls.parked
        assert 0 == world.node.broker.counters.futile_leases


async def test_an_empty_poll_writes_nothing(front: str) -> None:
    """Idle consumers cost the log no entry, however often they ask."""
    async with running(front) as world:
        client = await world.connect()
        await client.ask(api.Push("jobs", columns(b"a")))
        polled = await client.ask(POLL)
        await client.ask(ack(polled))
        before = world.node.replica.applied_index
        for _ in range(10):
            assert () == (await client.ask(POLL)).runs

        assert before == world.node.replica.applied_index


async def test_a_parked_poll_is_answered_empty_at_its_deadline(front: str, mock_clock: trio.testing.MockClock) -> None:
    """Not before, not never."""
    async with running(front) as world:
        client = await world.connect()
        poll = await client.send(api.Poll(("jobs",), 10, wait_ms=5_000))
        await client.ask(api.Ping())
        mock_clock.jump(4.9)
        await client.ask(api.Ping())
        assert 1 == world.node.broker.polls.parked
        mock_clock.jump(0.2)
        polled = await client.answer(poll)

        assert () == polled.runs
        assert 5_000 <= polled.parked_ms <= 5_200
        assert 0 == world.node.broker.polls.parked


async def test_a_poll_of_a_client_that_left_takes_no_message(front: str) -> None:
    """Ghosts do not swallow messages: the next waiter gets it."""
    async with running(front) as world:
        ghost, living = await world.connect(), await world.connect()
        await ghost.send(api.Poll(("jobs",), 10, wait_ms=60_000))
        await ghost.ask(api.Ping())
        poll = await living.send(api.Poll(("jobs",), 10, wait_ms=60_000))
        await living.ask(api.Ping())
        await ghost.aclose()
        await trio.testing.wait_all_tasks_blocked()
        await (await world.connect()).ask(api.Push("jobs", columns(b"a")))

        polled = await living.answer(poll)
        assert [b"a"] == payloads(polled)
        assert 1 == polled.runs[0].delivery


async def test_a_lease_made_for_a_client_that_left_is_undone(front: str) -> None:
    """A reply nobody can take gives its messages back at once, uncounted."""
    async with running(front) as world:
        client = await world.connect()
        await client.ask(api.Push("jobs", columns(b"a")))
        # The lease is proposed, then its connection ends before the entry is applied.
        broker = world.node.broker
        with HeldDisk(world):
            await client.send(POLL)
            await trio.testing.wait_all_tasks_blocked()
            await client.aclose()
            await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()

        other = await world.connect()
        polled = await other.ask(POLL)
        assert [b"a"] == payloads(polled)
        assert 1 == broker.counters.undone_leases
        assert 0 == polled.runs[0].attempts


async def test_a_retried_poll_of_a_session_gets_the_same_lease(front: str) -> None:
    """A lost reply does not cost a second lease."""
    async with running(front) as world:
        first, session = await world.open_session()
        await first.ask(api.Push("jobs", columns(b"a")))
        once = await first.ask(POLL, 1, 1)
        await first.aclose()
        second = await world.connect(session=session)
        again = await second.ask(POLL, 1, 1)

        assert once.runs == again.runs
        assert 1 == (await world.info("jobs")).leased


async def test_a_retried_parked_poll_replaces_its_first_try(front: str) -> None:
    """Only one of the two can be served, and it is the one whose connection lives."""
    async with running(front) as world:
        first, session = await world.open_session()
        lost = await first.send(api.Poll(("jobs",), 10, wait_ms=60_000), 1, 1)
        await first.ask(api.Ping())
        second = await world.connect(session=session)
        retried = await second.send(api.Poll(("jobs",), 10, wait_ms=60_000), 1, 1)
        superseded = await first.answer(lost)
        await (await world.connect()).ask(api.Push("jobs", columns(b"a")))

        assert Code.OUTCOME_UNKNOWN == superseded.code
        assert [b"a"] == payloads(await second.answer(retried))


async def test_a_forgotten_poll_is_dropped(front: str) -> None:
    """A cancelled call leaves no waiter behind that would take a message."""
    async with running(front) as world:
        client, _ = await world.open_session()
        poll = await client.send(api.Poll(("jobs",), 10, wait_ms=60_000), 1, 1)
        await client.ask(api.Ping())
        await client.ask(api.Forget(1), 2, 1)
        forgotten = await client.answer(poll)
        await client.ask(api.Push("jobs", columns(b"a")), 3, 1)

        assert Code.OUTCOME_UNKNOWN == forgotten.code
        assert 1 == (await world.info("jobs")).ready


async def test_deleting_a_queue_ends_its_parked_polls(front: str) -> None:
    """A long poll opened before must not eat the first delivery of a queue created again."""
    async with running(front) as world:
        waiter, admin = await world.connect(), await world.connect()
        await admin.ask(api.SetQueue("jobs", {}))
        poll = await waiter.send(api.Poll(("jobs",), 10, wait_ms=60_000))
        await waiter.ask(api.Ping())
        await admin.ask(api.DeleteQueue("jobs"))

        assert Code.QUEUE_DELETED == (await waiter.answer(poll)).code
        assert 0 == world.node.broker.polls.parked


async def test_a_poll_over_many_queues_gets_from_the_one_that_has_some(front: str) -> None:
    """One poll, many queues, one lease."""
    async with running(front) as world:
        client = await world.connect()
        poll = await client.send(api.Poll(("a", "b", "c"), 10, wait_ms=60_000))
        await client.ask(api.Ping())
        await client.ask(api.Push("b", columns(b"x")))
        polled = await client.answer(poll)

        assert "b" == polled.runs[0].queue
        assert {} == world.node.broker.polls._lanes


async def test_an_expired_lease_comes_back_without_anybody_asking(
    front: str, mock_clock: trio.testing.MockClock
) -> None:
    """The reaper wakes a parked poll the moment a lease ends."""
    async with running(front) as world:
        client = await world.connect()
        await client.ask(api.Push("jobs", columns(b"a")))
        await client.ask(api.Poll(("jobs",), 10, visibility_ms=3_000))
        poll = await client.send(api.Poll(("jobs",), 10, wait_ms=60_000))
        await client.ask(api.Ping())
        mock_clock.jump(3.1)
        polled = await client.answer(poll)

        assert 2 == polled.runs[0].delivery
        assert 1 == polled.runs[0].attempts


async def test_a_fabricated_receipt_is_refused_beside_a_good_one(front: str) -> None:
    """Each item of a settle has its own answer, and the good ones stand."""
    async with running(front) as world:
        client = await world.connect()
        await client.ask(api.Push("jobs", columns(b"a")))
        polled = await client.ask(POLL)
        good = polled.runs[0].receipt
        bad = bytes(reversed(good))
        settled = await client.ask(api.Settle("jobs", api.SettleKind.ACK, (api.Item(bad), api.Item(good))))
        touched = await client.ask(api.Touch("jobs", (api.Item(bad),), 1_000))

        assert api.Settled((int(Code.RECEIPT_INVALID), 0)) == settled
        assert api.Touched((int(Code.RECEIPT_INVALID),), (0,)) == touched


async def test_a_poll_reply_never_outgrows_its_frame(front: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is given back at once, uncounted, and comes with the next poll."""
    monkeypatch.setattr(bodies, "POLL_BYTES_MAX", 1_000)
    async with running(front) as world:
        client = await world.connect()
        sent = [bytes([65 + n]) * 300 for n in range(10)]
        await client.ask(api.Push("jobs", columns(*sent)))
        got: list[bytes] = []
        while len(got) < 10:
            polled = await client.ask(POLL)
            assert 0 < len(payloads(polled)) <= 3
            assert 0 == polled.runs[0].attempts
            got += payloads(polled)
            await client.ask(ack(polled))

        assert sent == got


async def test_a_cold_body_is_read_from_the_log(front: str) -> None:
    """Memory is a cache: a body that left it is still delivered."""
    async with running(front, body_cache_bytes=0) as world:
        client = await world.connect()
        await client.ask(api.Push("jobs", columns(b"cold", b"colder")))
        peeked = await client.ask(api.Peek("jobs"))
        polled = await client.ask(POLL)

        assert [b"cold", b"colder"] == [message.payload for message in peeked.messages]
        assert [b"cold", b"colder"] == payloads(polled)
        assert 2 == world.node.broker.counters.cold_replies


async def test_a_damaged_body_is_named_as_lost(front: str) -> None:
    """Damage costs the payload, not the message's place in the counts, and the node lives."""
    async with running(front, body_cache_bytes=0) as world:
        client = await world.connect()
        await client.ask(api.Push("jobs", columns(b"needle in the log")))
        for path in world.disk.list_directory("data/wal"):
            content = world.disk.content(f"data/wal/{path}")
            at = content.find(b"needle")
            if at >= 0:
                world.disk.flip_bit(f"data/wal/{path}", 8 * at)
        polled = await client.ask(POLL)

        assert [True] == [run.lost for run in polled.runs]
        assert api.Settled((0,)) == await client.ask(ack(polled))


async def test_a_push_beyond_the_queues_largest_message_is_refused(front: str) -> None:
    """The setting is checked where the message enters, for each message of a batch."""
    async with running(front) as world:
        client = await world.connect()
        await client.ask(api.SetQueue("jobs", {"max_message_bytes": 4}))
        refused = await client.ask(api.Push("jobs", columns(b"1234", b"12345")))
        taken = await client.ask(api.Push("jobs", columns(b"1234", b"1234", b"1234")))

        assert Code.MESSAGE_TOO_LARGE == refused.code
        assert 1 == refused.details["position"]
        assert 3 == taken.count


async def test_a_push_creates_no_queue_where_that_is_switched_off(front: str) -> None:
    """`auto_create=false` refuses with the nearest name."""
    async with running(front, auto_create=False) as world:
        client = await world.connect()
        await client.ask(api.SetQueue("jobs", {}))
        refused = await client.ask(api.Push("jbs", columns(b"a")))

        assert Code.QUEUE_NOT_FOUND == refused.code
        assert "jobs" == refused.details["nearest"]
        assert 1 == (await client.ask(api.Push("jobs", columns(b"a")))).count


async def test_a_full_disk_refuses_pushes_only(front: str, mock_clock: trio.testing.MockClock) -> None:
    """Work in the queue can still be finished, which is what frees the disk."""
    async with running(front) as world:
        client = await world.connect()
        await client.ask(api.Push("jobs", columns(b"a")))
        world.disk.quota_bytes = world.disk.used_bytes
        pushed = await client.ask(api.Push("jobs", columns(b"b")))
        while isinstance(pushed, api.Pushed):
            pushed = await client.ask(api.Push("jobs", columns(b"x" * 20_000)))
        refused = await client.ask(api.Push("jobs", columns(b"c")))
        polled = await client.ask(api.Poll(("jobs",), 2))

        assert [Code.DISK_FULL] * 2 == [pushed.code, refused.code]
        assert [b"a", b"b"] == payloads(polled)
        assert api.Settled((0, 0)) == await client.ask(ack(polled))
        assert Code.DISK_FULL == (await client.ask(api.Push("jobs", columns(b"c")))).code

        world.disk.quota_bytes = None
        # The compactor looks again now and then, with nobody asking: there is space.
        for _ in range(3):
            mock_clock.jump(2)
            await trio.testing.wait_all_tasks_blocked(0.02)
        assert 1 == (await client.ask(api.Push("jobs", columns(b"c")))).count


async def test_a_bad_request_is_answered_and_the_connection_goes_on(front: str) -> None:
    """The caller's mistake costs the caller one error."""
    async with running(front) as world:
        client = await world.connect()
        bad = await client.ask(api.ShowQueue("absent"))

        assert Code.QUEUE_NOT_FOUND == bad.code
        assert api.Pong() == await client.ask(api.Ping())


@pytest.mark.parametrize(
    "garbage", [b"\xff" * 8, frame(b"\xff\xff"), frame(b"\x00"), frame(b"\x83\x01\x02\x03")], ids=repr
)
async def test_a_malformed_frame_is_answered_then_the_connection_ends(front: str, garbage: bytes) -> None:
    """The byte stream cannot be trusted any more; other connections do not notice."""
    async with running(front) as world:
        broken, other = await world.connect(), await world.connect()
        await broken.stream.send_all(garbage)
        closed = await broken.wait_closed()

        assert closed.error is not None
        assert closed.error.text.startswith("the server closed the connection: ")
        assert api.Pong() == await other.ask(api.Ping())
        await broken.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert 1 == len(world.front)


async def test_a_client_that_is_sent_away_while_sending_reads_why(front: str) -> None:
    """Closing with unread input would reset the connection and take the reason with it."""
    async with running(front) as world:
        client = await world.connect()
        await client.stream.send_all(b"GET / HTTP/1.1\r\n\r\n" + bytes(100_000))
        closed = await client.wait_closed()

        assert closed.error is not None
        assert "HTTP" in closed.error.text


async def test_a_half_closed_client_still_gets_its_answers(front: str) -> None:
    """What was asked before the end of input is answered, then the node closes."""
    async with running(front) as world:
        client = await world.connect()
        push = await client.send(api.Push("jobs", columns(b"a")))
        assert isinstance(client.stream, trio.SocketStream | trio.StapledStream)
        await client.stream.send_eof()

        assert 1 == (await client.answer(push)).count
        assert (await client.wait_closed()).error is None


async def test_an_error_in_one_connection_ends_that_connection_only(
    front: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The barrier: a mistake of ours while serving one client is logged, and the node lives."""
    async with running(front) as world:
        other = await world.connect()

        def explode(*_: object) -> None:
            raise RuntimeError("planted")

        with trio.fail_after(10):
            with monkeypatch.context() as patch:
                # A connection takes it from there once, when it is made.
                patch.setattr(world.node.broker, "submit", explode)
                victim = await world.connect()
            await victim.send(api.Ping())
            await victim.wait_closed()

            assert "planted" in caplog.text
            assert api.Pong() == await other.ask(api.Ping())


async def test_peeks_and_listings_show_what_was_acknowledged_before(front: str) -> None:
    """AppliedBeforeAnswered: reads are answered from applied state: what a client was told is in them."""
    async with running(front) as world:
        client = await world.connect()
        await client.ask(api.Push("jobs", columns(b"a", b"b", b"c")))
        polled = await client.ask(api.Poll(("jobs",), 1))
        await client.ask(
            api.Settle("jobs", api.SettleKind.REJECT, (api.Item(polled.runs[0].receipt),), error_text="no")
        )
        first = await client.ask(api.Peek("jobs", limit=1))
        second = await client.ask(api.Peek("jobs", limit=1, after=first.next))
        dead = await client.ask(api.ListDead("jobs"))
        would = await client.ask(api.Redrive("jobs", dry_run=True))
        listed = await client.ask(api.ListQueues())
        stats = await client.ask(api.Stats())

        assert [b"b"] == [message.payload for message in first.messages]
        assert [b"c"] == [message.payload for message in second.messages]
        assert [(b"a", "rejected")] == [(message.payload, message.reason) for message in dead.messages]
        assert api.Moved(1) == would
        assert ["jobs", "jobs.dlq"] == [queue.name for queue in listed.queues]
        assert stats.values["requests"] >= 8
        assert ("never", 2) == (stats.values["fsync"], stats.values["queues"])
        assert stats.values["disk_bytes"] > 0
        assert 0 <= stats.values["uptime_ms"] <= stats.values["wall_ms"]


async def test_a_queue_named_twice_in_a_poll_is_waited_for_once(front: str) -> None:
    """The waiter is taken out of every place it stands in, exactly once."""
    async with running(front) as world:
        client = await world.connect()
        poll = await client.send(api.Poll(("a", "a", "b"), 1, wait_ms=60_000))
        await client.ask(api.Ping())
        await client.ask(api.Push("a", columns(b"x")))

        assert [b"x"] == payloads(await client.answer(poll))
        assert {} == world.node.broker.polls._lanes


async def test_a_drain_answers_a_poll_over_many_queues_once(front: str) -> None:
    """It stands in several lanes, and is one request."""
    async with running(front) as world:
        client = await world.connect()
        poll = await client.send(api.Poll(("a", "b", "c"), 1, wait_ms=60_000))
        await client.ask(api.Ping())
        world.node.broker.drain(lambda: None)
        world.node.broker.flush()

        assert () == (await client.answer(poll)).runs
        assert 0 == world.node.broker.in_flight


async def test_a_blocked_group_costs_one_futile_lease_at_most(front: str) -> None:
    """Waiters behind a group in flight park again instead of asking the log over and over."""
    async with running(front) as world:
        client = await world.connect()
        await client.ask(api.Push("jobs", columns(b"1", b"2", groups=("g", "g"))))
        first = await client.ask(POLL)
        poll = await client.send(api.Poll(("jobs",), 10, wait_ms=60_000))
        await client.ask(api.Ping())
        await trio.testing.wait_all_tasks_blocked()
        entries = world.node.replica.applied_index
        await trio.testing.wait_all_tasks_blocked()

        assert [b"1"] == payloads(first)
        assert world.node.broker.counters.futile_leases <= 1
        assert entries == world.node.replica.applied_index
        await client.ask(ack(first))
        assert [b"2"] == payloads(await client.answer(poll))


async def test_a_paused_queue_wakes_its_waiters_when_it_goes_on(front: str) -> None:
    """Nothing is leased while paused, nothing is forgotten when it ends."""
    async with running(front) as world:
        client = await world.connect()
        await client.ask(api.SetQueue("jobs", {"paused": True}))
        await client.ask(api.Push("jobs", columns(b"a")))
        poll = await client.send(api.Poll(("jobs",), 10, wait_ms=60_000))
        await client.ask(api.Ping())
        assert 1 == world.node.broker.polls.parked
        await client.ask(api.SetQueue("jobs", {"paused": False}))

        assert [b"a"] == payloads(await client.answer(poll))
        assert 0 == world.node.broker.counters.futile_leases


async def test_raising_the_cap_in_flight_serves_who_waits(front: str) -> None:
    """A queue held back by its cap drains as soon as the cap is raised, without a restart."""
    async with running(front) as world:
        client = await world.connect()
        await client.ask(api.SetQueue("jobs", {"max_in_flight": 1}))
        await client.ask(api.Push("jobs", columns(b"a", b"b", b"c")))
        first = await client.ask(POLL)
        poll = await client.send(api.Poll(("jobs",), 10, wait_ms=60_000))
        await client.ask(api.Ping())
        await client.ask(api.SetQueue("jobs", {"max_in_flight": 10}))

        assert [b"a"] == payloads(first)
        assert [b"b", b"c"] == payloads(await client.answer(poll))


async def test_a_mistake_in_one_request_costs_that_request(
    front: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A broken invariant is logged and answered; connection and node go on."""
    async with running(front) as world:
        client = await world.connect()
        with monkeypatch.context() as patch:
            patch.setattr("walrq.daemon.broker.reads.show", lambda *_: 1 // 0)
            failed = await client.ask(api.ShowQueue("jobs"))

        assert Code.INTERNAL == failed.code
        assert "ZeroDivisionError" in caplog.text
        assert api.Pong() == await client.ask(api.Ping())
        assert 0 == world.node.broker.in_flight


async def test_a_reply_that_cannot_be_made_ends_its_connection_only(
    front: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Replies are made by the driver: one that fails must not take the node with it."""
    async with running(front) as world:
        victim, other = await world.connect(), await world.connect()
        with monkeypatch.context() as patch:
            patch.setattr(ServerConnection, "_encode_reply", lambda *_: 1 // 0)
            await victim.send(api.Push("jobs", columns(b"a")))
            await trio.testing.wait_all_tasks_blocked()

        assert "reply_failed" in caplog.text
        with trio.fail_after(10):
            await victim.wait_closed()
        assert 1 == (await other.ask(api.Push("jobs", columns(b"b")))).count
