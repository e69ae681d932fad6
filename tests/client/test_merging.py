"""Concurrent single calls travel together, and nobody notices but the figures. No socket, no clock."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest

from tests.client.fake_server import delivered
from tests.client.wire import Wire, wire
from walrq import api
from walrq.client import operations as op
from walrq.client.failures import ServerUnreachable
from walrq.client.merging import FLYING_MAX, Body, Lane, Merger, PollLane, PushLane, SettleLane, Share
from walrq.client.messages import Batch, Message
from walrq.errors import Code, InvalidArgument, LocalProtocolError, OutcomeUnknown, QueueFull, ReplyTimeout
from walrq.limits import MERGED_BYTES_MAX, MERGED_MESSAGES_MAX
from walrq.protocol import columns
from walrq.protocol.requests import Incoming


@attrs.define(eq=False)
class Callers:
    """Callers over one exchange, driven as the asynchronous client drives them."""

    wire: Wire
    merger: Merger
    woken: list[Share[Any, Any]] = attrs.field(factory=list)

    def join(self, lane: Lane[Any, Any], content: Any, wait_s: float = 0.0) -> Share[Any, Any]:
        """One caller's call, not sent yet."""
        share = self.merger.join(lane, content, 1, self.wire.now, wait_s)
        share.waiter = lambda: self.woken.append(share)
        return share

    def push(self, payload: bytes, **more: Any) -> Share[Any, Any]:
        """A single push to queue q."""
        headers = op.headers_of(more.get("headers"))
        body = Body(payload, headers, more.get("group"), more.get("dedup"))
        return self.merger_join(body, len(payload))

    def merger_join(self, body: Body, weight: int) -> Share[Any, Any]:
        """A push of the weight given."""
        share = self.merger.join(self.pushes, body, weight, self.wire.now)
        share.waiter = lambda: self.woken.append(share)
        return share

    def poll(self, most: int, wait: float = 0.0) -> Share[Any, Any]:
        """A poll of queue q."""
        lane = self.merger.lane(("q", wait), lambda: PollLane(op.poll("q", 30, 1, wait, "w"), Batch, Message))
        return self.join(lane, most, wait)

    def ack(self, receipt: bytes) -> Share[Any, Any]:
        """An ack of a whole lease of queue q."""
        lane = self.merger.lane("ack", lambda: SettleLane("q", api.SettleKind.ACK))
        return self.join(lane, (api.Item(receipt),))

    @property
    def pushes(self) -> PushLane:
        """Queue q, no options."""
        lane = self.merger.lane("push", lambda: PushLane("q", op.PushOptions()))
        assert isinstance(lane, PushLane)
        return lane

    def flush(self) -> None:
        """The turn of the loop is over."""
        self.merger.flush(self.wire.now)

    def sent(self, kind: type[Any]) -> list[Incoming]:
        """What arrived at the server since the last look."""
        self.flush()
        return self.wire.take(kind)

    def reply(self, incoming: Incoming, reply: api.Reply) -> None:
        """The server answers."""
        self.wire.reply(incoming, reply)
        self.deliver()

    def deliver(self) -> None:
        """Wake who is to be woken."""
        for call in self.wire.finished:
            if call.waiter is not None:
                call.waiter()
        self.wire.finished.clear()
        self.merger.advance(self.wire.now)

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.wire.pass_time(seconds)
        self.deliver()
        self.merger.tick(self.wire.now)
        self.deliver()

    def abandon(self, share: Share[Any, Any]) -> None:
        """A caller goes away."""
        self.merger.abandon(share, self.wire.now)


@pytest.fixture
def callers() -> Callers:
    """With a connection."""
    made = wire()
    made.connect()
    return Callers(made, Merger(made.exchange))


def payloads(incoming: Incoming) -> list[bytes]:
    """Of a push."""
    return columns.unpack(incoming.request.columns).payloads  # type: ignore[union-attr]


# --- pushes -------------------------------------------------------------------------------------------------
def test_pushes_of_one_turn_are_one_batch_and_each_caller_gets_its_own_id(callers: Callers) -> None:
    """The order of the calls is the order of the messages."""
    shares = [callers.push(b"%d" % number) for number in range(5)]

    (incoming,) = callers.sent(api.Push)
    assert [b"0", b"1", b"2", b"3", b"4"] == payloads(incoming)
    callers.reply(incoming, api.Pushed(700, 5))

    assert [700, 701, 702, 703, 704] == [share.result for share in shares]
    assert shares == callers.woken


def test_a_lonely_call_waits_for_nobody(callers: Callers) -> None:
    """What gathers does so only behind others."""
    callers.push(b"a")
    assert [b"a"] == payloads(*callers.sent(api.Push))


def test_calls_are_held_back_while_enough_of_their_kind_are_under_way(callers: Callers) -> None:
    """As with a group commit: the batch is what came while the last one was on its way."""
    first = []
    for number in range(FLYING_MAX):
        callers.push(b"%d" % number)
        first += callers.sent(api.Push)
    held = [callers.push(b"a"), callers.push(b"b"), callers.push(b"c")]
    assert [] == callers.sent(api.Push)

    callers.reply(first[0], api.Pushed(1, 1))

    (incoming,) = callers.wire.take(api.Push)
    assert [b"a", b"b", b"c"] == payloads(incoming)
    callers.reply(incoming, api.Pushed(50, 3))
    assert [50, 51, 52] == [share.result for share in held]


def test_what_differs_in_its_options_travels_apart(callers: Callers) -> None:
    """A priority or a delay belongs to a batch."""
    merger = callers.merger
    urgent = merger.lane(("q", 9), lambda: PushLane("q", op.PushOptions(priority=9)))
    late = merger.lane(("q", "late"), lambda: PushLane("q", op.PushOptions(delay=5)))
    for lane in (callers.pushes, urgent, late, urgent):
        callers.join(lane, Body(b"x", b"", None, None))

    sent = callers.sent(api.Push)

    assert [(0, None, 1), (9, None, 2), (0, 5000, 1)] == [
        (each.request.priority, each.request.delay_ms, each.request.columns.count)  # type: ignore[union-attr]
        for each in sent
    ]


def test_headers_groups_and_dedup_ids_stay_with_their_message(callers: Callers) -> None:
    """Callers who share a batch share nothing else."""
    callers.push(b"a", headers={"k": 1})
    callers.push(b"b", group="g")
    callers.push(b"c", dedup="d")
    callers.push(b"e", headers={"l": "x"}, group="h", dedup="f")

    (incoming,) = callers.sent(api.Push)

    body = columns.unpack(incoming.request.columns)  # type: ignore[union-attr]
    assert [b"a", b"b", b"c", b"e"] == body.payloads
    assert [{"k": 1}, None, None, {"l": "x"}] == body.headers
    assert (None, "g", None, "h") == body.groups
    assert (None, None, "d", "f") == body.dedup


def test_dedup_hits_are_told_to_whom_they_belong(callers: Callers) -> None:
    """The server lists the ids when some are older."""
    shares = [callers.push(b"a", dedup="1"), callers.push(b"b", dedup="2")]
    callers.reply(callers.sent(api.Push)[0], api.Pushed(90, 2, (90, 7), (1,)))

    assert [90, 7] == [share.result for share in shares]


def test_a_merged_batch_stays_within_its_bounds(callers: Callers) -> None:
    """Nobody waits long for the others' bytes, and no batch is refused for its size."""
    for _ in range(MERGED_MESSAGES_MAX + 1):
        callers.push(b"x")
    assert [MERGED_MESSAGES_MAX, 1] == [len(payloads(each)) for each in callers.sent(api.Push)]

    other = callers.merger.lane("other", lambda: PushLane("other", op.PushOptions()))
    for weight in (MERGED_BYTES_MAX // 2, MERGED_BYTES_MAX // 2, 1, MERGED_BYTES_MAX * 2):
        callers.merger.join(other, Body(b"y", b"", None, None), weight, callers.wire.now)
    assert [2, 1] == [len(payloads(each)) for each in callers.sent(api.Push)]


def test_a_refused_batch_is_asked_again_one_by_one(callers: Callers) -> None:
    """A definite refusal did nothing, so asking again is safe; and it meets only the one whose fault it is."""
    good, bad, other = callers.push(b"a"), callers.push(b"b"), callers.push(b"c")
    (incoming,) = callers.sent(api.Push)
    callers.wire.refuse(incoming, Code.QUEUE_FULL)
    callers.deliver()

    singles = callers.wire.take(api.Push)
    assert [[b"a"], [b"b"], [b"c"]] == [payloads(each) for each in singles]
    callers.reply(singles[0], api.Pushed(1, 1))
    callers.wire.refuse(singles[1], Code.QUEUE_FULL)
    callers.reply(singles[2], api.Pushed(2, 1))

    assert (1, 2) == (good.result, other.result)
    assert isinstance(bad.error, QueueFull)


def test_an_unknown_outcome_is_everybodys(callers: Callers) -> None:
    """Asking again one by one could do it twice."""
    shares = [callers.push(b"a"), callers.push(b"b")]
    (incoming,) = callers.sent(api.Push)
    callers.wire.refuse(incoming, Code.OUTCOME_UNKNOWN)
    for _ in range(20):
        callers.pass_time(2.0)
        for again in callers.wire.take(api.Push):
            assert [b"a", b"b"] == payloads(again)
            callers.wire.refuse(again, Code.OUTCOME_UNKNOWN)
            callers.deliver()

    assert [OutcomeUnknown] * 2 == [type(share.error) for share in shares]


def test_an_answer_that_is_none_reaches_every_caller(callers: Callers) -> None:
    """A server that answers a push with something else, or counts otherwise, is not believed."""
    shares = [callers.push(b"a"), callers.push(b"b")]
    callers.reply(callers.sent(api.Push)[0], api.Pushed(5, 1))

    assert [Code.PROTOCOL_VIOLATION] * 2 == [share.error.code for share in shares if share.error is not None]


def test_options_are_checked_before_anybody_is_joined(callers: Callers) -> None:
    """A wrong option is this caller's error, and no lane of that kind comes to be."""
    with pytest.raises(InvalidArgument, match="exclude"):
        callers.merger.lane("wrong", lambda: PushLane("q", op.PushOptions(delay=1, deliver_at=5)))
    assert [] == callers.sent(api.Push)


def test_lanes_that_nobody_uses_are_few(callers: Callers) -> None:
    """A lane per moment of `deliver_at` is not kept for ever."""
    for number in range(1000):
        callers.merger.lane(number, lambda: PushLane("q", op.PushOptions()))
    assert len(callers.merger._lanes) <= 64


# --- polls --------------------------------------------------------------------------------------------------
def test_polls_of_one_turn_are_one_lease_dealt_out_in_turn(callers: Callers) -> None:
    """Each caller gets at most what it asked for, the first callers first."""
    shares = [callers.poll(2), callers.poll(3), callers.poll(2)]
    (incoming,) = callers.sent(api.Poll)
    assert 7 == incoming.request.max_messages  # type: ignore[union-attr]
    runs = (delivered("q", 10, (b"a", b"b", b"c")), delivered("q", 50, (b"d", b"e"), lease=2))
    callers.reply(incoming, api.Polled(0, 30_000, runs))

    assert [[b"a", b"b"], [b"c", b"d", b"e"], []] == [[each.payload for each in share.result] for share in shares]


def test_a_batch_of_shared_messages_is_that_callers_part(callers: Callers) -> None:
    """One caller's ack of its batch must not acknowledge what another got."""
    shares = [callers.poll(2), callers.poll(2)]
    (incoming,) = callers.sent(api.Poll)
    callers.reply(incoming, api.Polled(0, 30_000, (delivered("q", 10, (b"a", b"b", b"c")),)))

    (first, second), (third,) = shares[0].result, shares[1].result
    assert first.batch is second.batch
    assert [((0, 1),), ((2, 2),)] == [op.settlements(each.batch)[0].items[0].ranges for each in (first, third)]
    assert (2, 1) == (len(first.batch), len(third.batch))
    assert [b"c"] == list(third.batch.payloads())
    assert third.message_id == third.batch.ids()[0]


def test_polls_that_wait_are_not_held_back_behind_one_another(callers: Callers) -> None:
    """A caller must not wait for somebody else's silence."""
    callers.poll(1, wait=20)
    first = callers.sent(api.Poll)
    for _ in range(FLYING_MAX + 2):
        callers.poll(1, wait=20)
        first += callers.sent(api.Poll)
    assert FLYING_MAX + 3 == len(first)


def test_a_waiting_poll_that_got_nothing_asks_again_for_the_rest_of_its_time(callers: Callers) -> None:
    """Two callers wait together; one message comes: the other goes on waiting, no longer than it wanted."""
    shares = [callers.poll(1, wait=20), callers.poll(1, wait=20)]
    (incoming,) = callers.sent(api.Poll)
    callers.pass_time(5.0)
    callers.reply(incoming, api.Polled(5_000, 30_000, (delivered("q", 10, (b"a",)),)))

    assert [b"a"] == [each.payload for each in shares[0].result]
    assert not shares[1].finished
    (again,) = callers.wire.take(api.Poll)
    assert (1, 15_000) == (again.request.max_messages, again.request.wait_ms)  # type: ignore[union-attr]
    callers.pass_time(15.0)
    callers.reply(again, api.Polled(15_000, 30_000, ()))
    assert [] == shares[1].result


def test_a_caller_that_leaves_takes_no_message_with_it(callers: Callers) -> None:
    """Its share goes to the others; what is beyond their wish is released."""
    gone, other = callers.poll(1), callers.poll(2)
    (incoming,) = callers.sent(api.Poll)
    callers.abandon(gone)
    callers.reply(incoming, api.Polled(0, 30_000, (delivered("q", 10, (b"a", b"b", b"c")),)))

    assert [b"a", b"b"] == [each.payload for each in other.result]
    release = callers.wire.one(api.Settle).request
    assert isinstance(release, api.Settle)
    assert api.SettleKind.RELEASE is release.kind
    assert (((2, 2),),) == tuple(item.ranges for item in release.items)
    assert [other] == callers.woken


def test_when_all_callers_of_a_poll_left_it_is_forgotten(callers: Callers) -> None:
    """The server undoes the lease, whether it was made or not."""
    shares = [callers.poll(1), callers.poll(1)]
    (incoming,) = callers.sent(api.Poll)
    for share in shares:
        callers.abandon(share)
    callers.wire.exchange.tick(callers.wire.now)

    assert incoming.sequence == callers.wire.one(api.Forget).request.sequence  # type: ignore[union-attr]
    later = callers.poll(1)
    assert 1 == len(callers.sent(api.Poll))
    assert not later.finished


def test_a_caller_that_leaves_with_its_answer_in_hand_gives_it_back(callers: Callers) -> None:
    """Answered and cancelled in the same turn: nothing stays leased."""
    share = callers.poll(2)
    (incoming,) = callers.sent(api.Poll)
    callers.reply(incoming, api.Polled(0, 30_000, (delivered("q", 10, (b"a", b"b")),)))
    callers.abandon(share)

    assert api.SettleKind.RELEASE is callers.wire.one(api.Settle).request.kind  # type: ignore[union-attr]


def test_a_lease_counts_from_the_sending(callers: Callers) -> None:
    """Time that a call was held back is not part of the lease; time on the way is."""
    share = callers.poll(1)
    (incoming,) = callers.sent(api.Poll)
    sent_at = callers.wire.now
    callers.wire.now += 2.0
    callers.reply(incoming, api.Polled(0, 30_000, (delivered("q", 10, (b"a",)),)))

    assert sent_at + 30.0 == share.result[0].deadline


# --- settlements --------------------------------------------------------------------------------------------
def test_acks_of_one_turn_are_one_request_and_each_caller_learns_its_own_code(callers: Callers) -> None:
    """One late ack does not spoil the others."""
    shares = [callers.ack(bytes([number]) * 20) for number in range(3)]
    (incoming,) = callers.sent(api.Settle)
    assert 3 == len(incoming.request.items)  # type: ignore[union-attr]
    callers.reply(incoming, api.Settled((0, int(Code.RECEIPT_EXPIRED), 0)))

    assert [[0], [int(Code.RECEIPT_EXPIRED)], [0]] == [list(share.result) for share in shares]


def one(receipt: bytes, offset: int) -> tuple[api.Item, ...]:
    """One message of a lease."""
    return (api.Item(receipt, ((offset, offset),)),)


def test_acks_of_one_lease_are_one_item(callers: Callers) -> None:
    """The server gives a lease back whole instead of carving it up message by message."""
    lane = callers.merger.lane("ack", lambda: SettleLane("q", api.SettleKind.ACK))
    shares = [callers.join(lane, one(b"a" * 20, offset)) for offset in (0, 4, 1, 5)]
    other = callers.join(lane, one(b"b" * 20, 7))
    whole = callers.join(lane, (api.Item(b"a" * 20), api.Item(b"c" * 20)))

    (incoming,) = callers.sent(api.Settle)
    assert (
        api.Item(b"a" * 20, ((0, 1), (4, 5))),
        api.Item(b"b" * 20, ((7, 7),)),
        api.Item(b"a" * 20),
        api.Item(b"c" * 20),
    ) == incoming.request.items  # type: ignore[union-attr]
    callers.reply(incoming, api.Settled((0, 5, 0, 9)))

    assert [(0,)] * 4 == [tuple(share.result) for share in shares]
    assert ((5,), (0, 9)) == (tuple(other.result), tuple(whole.result))


def test_one_late_ack_of_a_shared_item_does_not_spoil_the_others(callers: Callers) -> None:
    """An item is settled whole or not at all; refused, each of its messages is asked for by itself."""
    lane = callers.merger.lane("ack", lambda: SettleLane("q", api.SettleKind.ACK))
    shares = [callers.join(lane, one(b"a" * 20, offset)) for offset in range(3)]
    callers.reply(callers.sent(api.Settle)[0], api.Settled((int(Code.RECEIPT_EXPIRED),)))

    codes = {0: 0, 1: int(Code.RECEIPT_EXPIRED), 2: 0}
    for _ in range(3):
        for incoming in callers.sent(api.Settle):
            (item,) = incoming.request.items  # type: ignore[union-attr]
            ((offset, _last),) = item.ranges
            callers.reply(incoming, api.Settled((codes[offset],)))

    assert [[0], [int(Code.RECEIPT_EXPIRED)], [0]] == [list(share.result) for share in shares]


def test_a_message_acknowledged_twice_at_once_is_told_so(callers: Callers) -> None:
    """As if one had come after the other."""
    lane = callers.merger.lane("ack", lambda: SettleLane("q", api.SettleKind.ACK))
    for _ in range(2):
        callers.join(lane, one(b"a" * 20, 4))

    (incoming,) = callers.sent(api.Settle)
    assert (api.Item(b"a" * 20, ((4, 4),)),) * 2 == incoming.request.items  # type: ignore[union-attr]


# --- time, outages, the end ---------------------------------------------------------------------------------
def test_each_caller_waits_as_long_as_it_would_alone(callers: Callers) -> None:
    """A call that is held back behind a stuck one times out by its own clock, and says that it was never sent."""
    patience = callers.wire.exchange.config.timeout_s
    flying = []
    for number in range(FLYING_MAX):
        flying.append(callers.push(b"%d" % number))
        callers.sent(api.Push)
    callers.pass_time(patience / 2)
    held = callers.push(b"x")
    assert [] == callers.sent(api.Push)

    callers.pass_time(patience / 2)

    assert [ReplyTimeout] * FLYING_MAX == [type(share.error) for share in flying]
    assert not held.finished
    callers.pass_time(patience / 2)
    assert held.finished
    assert isinstance(held.error, ReplyTimeout)


def test_a_call_that_was_never_sent_did_not_happen(callers: Callers) -> None:
    """Held back until its time was over: a definite error."""
    patience = callers.wire.exchange.config.timeout_s
    callers.wire.cut()
    callers.push(b"a"), callers.flush()
    callers.push(b"b"), callers.flush()
    held = callers.push(b"c")
    callers.flush()
    callers.pass_time(patience)

    assert isinstance(held.error, ServerUnreachable)
    assert held.error.definite


def test_a_broken_connection_is_not_noticed(callers: Callers) -> None:
    """The merged request is sent again under its sequence; nothing is pushed twice."""
    shares = [callers.push(b"a"), callers.push(b"b")]
    (before,) = callers.sent(api.Push)
    callers.wire.cut()
    callers.deliver()
    callers.wire.connect()

    (after,) = callers.wire.take(api.Push)
    assert (before.sequence, [b"a", b"b"]) == (after.sequence, payloads(after))
    callers.reply(after, api.Pushed(4, 2))
    assert [4, 5] == [share.result for share in shares]


def test_closing_ends_every_share(callers: Callers) -> None:
    """Sent or held back."""
    shares = []
    for number in range(FLYING_MAX + 2):
        shares.append(callers.push(b"%d" % number))
        callers.flush()
    error = LocalProtocolError("the client is closed")
    callers.wire.finished += callers.wire.exchange.fail_all(error, callers.wire.now)
    callers.deliver()
    callers.merger.fail_all(error, callers.wire.now)

    assert [error] * len(shares) == [share.error for share in shares]
    assert callers.merger.next_due() is None


@pytest.mark.parametrize("seed", range(30))
def test_any_interleaving_gives_each_caller_exactly_its_own(callers: Callers, seed: int) -> None:
    """Random calls, answers, cuts, departures and time: every push once, every message to one caller or released.

    The seed is in the test's name.
    """
    rng = random.Random(seed)
    stock = [b"%d" % number for number in range(40)]
    pushed: dict[int, bytes] = {}
    answered: dict[int, api.Reply] = {}
    leased: dict[bytes, bytes] = {}
    released: list[bytes] = []
    pushes: list[tuple[Share[Any, Any], bytes]] = []
    polls: list[Share[Any, Any]] = []
    gone: list[Share[Any, Any]] = []

    def serve() -> None:
        for incoming in callers.wire.take():
            request, sequence = incoming.request, incoming.sequence
            reply = answered.get(sequence) if sequence is not None else None
            if reply is None:
                if type(request) is api.Push:
                    first = 1000 + len(pushed)
                    for offset, payload in enumerate(payloads(incoming)):
                        pushed[first + offset] = payload
                    reply = api.Pushed(first, request.columns.count)
                elif type(request) is api.Poll:
                    taken = tuple(stock[: request.max_messages])
                    del stock[: len(taken)]
                    run = delivered("q", 10_000 + len(leased), taken, lease=len(leased) + 1) if taken else None
                    for payload in taken:
                        assert run is not None
                        leased[payload] = run.receipt
                    reply = api.Polled(0, 30_000, (run,) if run else ())
                elif type(request) is api.Settle:
                    for item in request.items:
                        of = [payload for payload, receipt in leased.items() if receipt == item.receipt]
                        for first, last in item.ranges or ((0, len(of) - 1),):
                            released.extend(of[first : last + 1])
                    reply = api.Settled((0,) * len(request.items))
                elif type(request) is api.Forget:
                    undone = answered.pop(request.sequence, None)
                    if isinstance(undone, api.Polled):
                        for run in undone.runs:
                            released.extend(p for p, receipt in leased.items() if receipt == run.receipt)
                    reply = api.Done()
                else:
                    reply = api.Pong()
                if sequence is not None:
                    answered[sequence] = reply
            if rng.random() < 0.15:
                callers.wire.cut()
                callers.deliver()
                callers.wire.connect(session=1)
                return
            callers.reply(incoming, reply)

    for _ in range(120):
        choice = rng.random()
        if choice < 0.4:
            payload = b"p%d" % len(pushes)
            pushes.append((callers.push(payload), payload))
        elif choice < 0.6:
            polls.append(callers.poll(rng.randint(1, 3)))
        elif choice < 0.7 and polls:
            leaver = rng.choice(polls)
            if leaver not in gone:
                gone.append(leaver)
                callers.abandon(leaver)
        else:
            callers.flush()
            serve()
    for _ in range(60):
        callers.flush()
        serve()
        callers.pass_time(0.01)

    for share, payload in pushes:
        assert share.error is None
        assert payload == pushed[share.result]
    assert len(pushes) == len(pushed)
    taken_by = [m.payload for share in polls if share not in gone for m in share.result]
    assert len(taken_by) == len(set(taken_by))
    assert set(leased) == set(taken_by) | set(released)
    assert not set(taken_by) & set(released)
