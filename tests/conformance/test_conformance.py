"""The same semantics through every door, asked at the leader and at a node that follows.

A case is a function of a door and a queue's name. It says what it asks for in requests of the api; a door that has no
words for one of them leaves the case out (`needs`). What may differ between doors is how an error looks, and that is
what the table of errors says (`Refused.says`).
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from tests.conformance.doors import DOORS, SAYS, Door, Refused, cbor
from tests.doors.lodge import Lodge
from tests.doors.page import page
from walrq import api, limits
from walrq.errors import Code
from walrq.ids import make_receipt, parse_handle, parse_id
from walrq.protocol.columns import pack

pytestmark = pytest.mark.trio

LOOK_S = 0.005
ROLES = ("leader", "follower")
_queues = itertools.count(1)


@attrs.define(eq=False)
class Case:
    """What a case has at hand.

    Attributes:
        door: the one that is compared.
        native: the native door of the leader, for what the compared one has no words for.
        queue: a name of the case's own.
    """

    door: Door
    native: Door
    queue: str

    async def push(self, *payloads: bytes, through: Door | None = None, **more: Any) -> list[str]:
        """Push a batch; its ids, where the door tells them."""
        columns = {name: more.pop(name) for name in ("headers", "groups", "dedup") if name in more}
        headers = columns.pop("headers", None)
        request = api.Push(more.pop("queue", self.queue), pack(payloads, headers, **columns), **more)
        found: list[str] = (await (through or self.door).ask(request)).get("ids", [])
        return found

    async def poll(self, most: int = 10, *, through: Door | None = None, **more: Any) -> list[dict[str, Any]]:
        """Lease messages."""
        queues = more.pop("queues", (self.queue,))
        found: list[dict[str, Any]] = (await (through or self.door).ask(api.Poll(queues, most, **more)))["messages"]
        return found

    async def settle(self, kind: api.SettleKind, messages: list[dict[str, Any]], **more: Any) -> list[str | None]:
        """Give messages back; the error of each, None = done."""
        through = more.pop("through", None) or self.door
        found: list[str | None] = (await through.ask(api.Settle(self.queue, kind, items(messages), **more)))["names"]
        return found

    async def ack(self, messages: list[dict[str, Any]], **more: Any) -> list[str | None]:
        """They are done."""
        return await self.settle(api.SettleKind.ACK, messages, **more)

    async def fail(self, messages: list[dict[str, Any]]) -> list[str | None]:
        """They failed, and may be tried again at once."""
        return await self.settle(api.SettleKind.FAIL, messages, delay_ms=0)

    async def counts(self) -> tuple[int, int, int, int]:
        """Ready, delayed, leased, dead."""
        shown = await self.native.ask(api.ShowQueue(self.queue))
        return shown["ready"], shown["delayed"], shown["leased"], shown["dead"]

    async def parked(self) -> None:
        """Return once a poll waits at the leader."""
        while not (await self.native.ask(api.Stats()))["values"]["parked_polls"]:  # noqa: ASYNC110 - in another thread
            await trio.sleep(LOOK_S)

    async def set(self, **settings: Any) -> None:
        """Settings of the queue."""
        await self.native.ask(api.SetQueue(self.queue, settings))

    async def refused(self, request: api.Request) -> Refused:
        """What the door refuses it with."""
        with pytest.raises(Refused) as caught:
            await self.door.ask(request)
        return caught.value


def items(messages: list[dict[str, Any]]) -> tuple[api.Item, ...]:
    """Polled messages as what settles them."""
    found = [parse_handle(each["receipt_handle"]) for each in messages]
    return tuple(api.Item(receipt, ((offset, offset),)) for receipt, offset in found)


def texts(messages: list[dict[str, Any]]) -> list[str]:
    """Their payloads."""
    return [each["payload"] for each in messages]


# --- the cases ----------------------------------------------------------------------------------------------
CASES: dict[str, tuple[frozenset[str], Callable[[Case], Awaitable[None]]]] = {}


def case(*needs: str) -> Callable[[Callable[[Case], Awaitable[None]]], Callable[[Case], Awaitable[None]]]:
    """Decorator: a case that asks for these requests; "batch" and "columns" are what Redis has no words for."""

    def keep(body: Callable[[Case], Awaitable[None]]) -> Callable[[Case], Awaitable[None]]:
        assert inspect.getdoc(body), f"{body.__name__} promises nothing"
        CASES[body.__name__] = (frozenset(needs), body)
        return body

    return keep


@case("Push", "Poll", "Settle")
async def every_byte_survives(c: Case) -> None:
    """Bytes, text, nothing at all."""
    bodies = [bytes(range(256)), "é\u2028\U0001f600".encode(), b"", b"\r\n$-1\r\n", b"\x00", b"x" * 70_000]
    await c.push(*bodies)
    found = await c.poll()

    assert bodies == [payload_of(each) for each in found]
    assert [None] * 6 == await c.ack(found)
    assert (0, 0, 0, 0) == await c.counts()


def payload_of(message: dict[str, Any]) -> bytes:
    import base64

    coded = message.get("payload_base64")
    return message["payload"].encode() if coded is None else base64.b64decode(coded)


@case("Push", "Poll")
async def first_in_first_out_and_higher_priorities_first(c: Case) -> None:
    """Whatever the door, the order is the queue's."""
    await c.push(b"a", b"b")
    await c.push(b"urgent", priority=200)
    await c.push(b"c")

    assert ["urgent", "a", "b", "c"] == texts(await c.poll())


@case("Push", "Poll")
async def what_is_leased_is_nobody_elses(c: Case) -> None:
    """Two takers, one message."""
    await c.push(b"one")
    mine = await c.poll()
    others = await c.poll(through=c.native)

    assert (["one"], []) == (texts(mine), others)
    assert (0, 0, 1, 0) == await c.counts()


@case("Push", "Poll", "Settle")
async def an_acknowledged_message_is_gone_and_its_receipt_spent(c: Case) -> None:
    """The second ack is refused and changes nothing."""
    await c.push(b"one", b"two")
    [one, two] = await c.poll()

    assert [None] == await c.ack([one])
    assert ["RECEIPT_EXPIRED"] == await c.ack([one])
    assert [None] == await c.ack([two])
    assert (0, 0, 0, 0) == await c.counts()


@case("Push", "Poll", "Settle")
async def a_late_ack_is_refused(c: Case) -> None:
    """The lease ended by time, the message was leased again: only the new receipt counts."""
    await c.push(b"one")
    # One and no more: a door that takes one after another could take it twice, so short is the lease.
    old = await c.poll(1, visibility_ms=30)
    new = await c.poll(1, wait_ms=5_000, visibility_ms=60_000)

    assert ["one"] == texts(new)
    assert ["RECEIPT_EXPIRED"] == await c.ack(old)
    assert [None] == await c.ack(new)


@case("Push", "Poll", "Touch", "Settle")
async def a_touched_lease_lasts(c: Case) -> None:
    """Counted from now, and never shortened."""
    await c.push(b"one")
    held = await c.poll(visibility_ms=30_000)
    longer = await c.door.ask(api.Touch(c.queue, items(held), 600_000))
    shorter = await c.door.ask(api.Touch(c.queue, items(held), 1))
    [leased] = (await c.native.ask(api.Peek(c.queue, api.State.LEASED)))["messages"]

    assert ([0], [0]) == (longer["codes"], shorter["codes"])
    assert 500_000 < leased["deadline_in_ms"] <= 600_000
    assert [None] == await c.ack(held)


@case("Push", "Poll", "Touch", "Settle")
async def a_spent_receipt_cannot_be_touched(c: Case) -> None:
    """It holds nothing any more."""
    await c.push(b"one")
    held = await c.poll()
    await c.ack(held)
    touched = await c.door.ask(api.Touch(c.queue, items(held), 60_000))

    assert ["RECEIPT_EXPIRED"] == touched["names"]


@case("Push", "Poll", "Settle")
async def what_failed_goes_behind_what_waits(c: Case) -> None:
    """A poison message cannot hold the line."""
    await c.push(b"poison", b"next")
    [poison] = await c.poll(1)

    assert [None] == await c.fail([poison])
    assert ["next", "poison"] == texts(await c.poll())


@case("Push", "Poll", "Settle", "ListDead", "Redrive")
async def who_fails_too_often_is_dead_and_may_be_sent_back(c: Case) -> None:
    """At the limit it moves at once; redriven ones keep the order in which they died, and start anew."""
    await c.set(max_deliveries=2)
    await c.push(b"a", b"b")
    for _ in range(2):
        await c.fail(await c.poll())
    dead = await c.door.ask(api.ListDead(c.queue))
    moved = await c.door.ask(api.Redrive(c.queue))
    back = await c.poll()

    assert ["a", "b"] == texts(dead["messages"])
    assert 2 == moved["count"]
    assert ["a", "b"] == texts(back)
    await c.fail(back)
    assert (2, 0, 0, 0) == await c.counts()


@case("Push", "Poll", "Settle", "ListDead", "PurgeDead")
async def dead_messages_can_be_removed(c: Case) -> None:
    """How many there were is told."""
    await c.set(max_deliveries=1)
    await c.push(b"a", b"b", b"c")
    await c.fail(await c.poll())
    purged = await c.door.ask(api.PurgeDead(c.queue))
    left = await c.door.ask(api.ListDead(c.queue))

    assert (3, []) == (purged["count"], left["messages"])
    assert (0, 0, 0, 0) == await c.counts()


@case("Push", "Poll")
async def a_delayed_message_is_not_there_before_its_time(c: Case) -> None:
    """Then a waiting poll gets it."""
    await c.push(b"later", delay_ms=600_000)
    early = await c.poll()
    counted = await c.counts()
    [delayed] = (await c.native.ask(api.Peek(c.queue, api.State.DELAYED)))["messages"]
    found: list[dict[str, Any]] = []

    async def wait() -> None:
        found.extend(await c.poll(wait_ms=20_000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await c.parked()
        await c.native.ask(api.Reschedule(c.queue, parse_id(delayed["id"]), 1))

    assert [] == early
    assert (0, 1, 0, 0) == counted
    assert ["later"] == texts(found)


@case("Push", "Poll")
async def a_waiting_poll_is_woken_by_a_push(c: Case) -> None:
    """From whichever door it comes."""
    found: list[dict[str, Any]] = []

    async def wait() -> None:
        found.extend(await c.poll(wait_ms=20_000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await c.parked()
        await c.push(b"here", through=c.native)

    assert ["here"] == texts(found)


@case("Poll")
async def an_empty_poll_waits_and_creates_nothing(c: Case) -> None:
    """The queue is as absent as before."""
    found = await c.poll(wait_ms=20)
    with pytest.raises(Refused) as caught:
        await c.native.ask(api.ShowQueue(c.queue))

    assert [] == found
    assert caught.value.says(Code.QUEUE_NOT_FOUND)


@case("Poll", "Push")
async def a_paused_queue_gives_nothing_out(c: Case) -> None:
    """Until it goes on."""
    await c.push(b"one")
    await c.set(paused=True)
    held = await c.poll(wait_ms=30)
    await c.set(paused=False)

    assert ([], ["one"]) == (held, texts(await c.poll(wait_ms=5_000)))


@case("Push", "Poll", "Move")
async def a_message_moves_between_queues_in_one_step(c: Case) -> None:
    """It is in one of them at any moment; nothing to move is no error."""
    await c.push(b"one", b"two")
    target = c.queue + ".next"
    moved = await c.door.ask(api.Move(c.queue, target))
    rest = await c.poll()
    nothing = await c.door.ask(api.Move(c.queue, target))

    assert (1, 0) == (moved["count"], nothing["count"])
    assert (["two"], ["one"]) == (texts(rest), texts(await c.poll(queues=(target,))))


@case("Push", "DeleteQueue", "Poll", "Settle")
async def a_deleted_queue_takes_its_receipts_along(c: Case) -> None:
    """Made again it is another one."""
    await c.push(b"old")
    held = await c.poll()
    await c.door.ask(api.DeleteQueue(c.queue))
    await c.push(b"new")

    assert ["RECEIPT_EXPIRED"] == await c.ack(held)
    assert ["new"] == texts(await c.poll())


@case("Push")
async def what_is_too_large_is_refused(c: Case) -> None:
    """By the queue's own limit, whose name and number are told."""
    await c.set(max_message_bytes=1_000)
    refused = await c.refused(api.Push(c.queue, pack([b"x" * 1_001])))

    assert refused.says(Code.MESSAGE_TOO_LARGE)
    assert "1000" in refused.text
    assert (0, 0, 0, 0) == await c.counts()


@case("Push")
async def a_full_queue_refuses(c: Case) -> None:
    """A batch goes in as a whole or not at all."""
    await c.set(max_length=2)
    await c.push(b"1")
    refused = await c.refused(api.Push(c.queue, pack([b"2", b"3"])))

    assert refused.says(Code.QUEUE_FULL)
    assert (1, 0, 0, 0) == await c.counts()


@case("Push")
async def a_delay_beyond_thirty_days_is_refused(c: Case) -> None:
    """To the millisecond."""
    await c.push(b"last", delay_ms=limits.DELAY_MS_MAX)
    refused = await c.refused(api.Push(c.queue, pack([b"x"]), delay_ms=limits.DELAY_MS_MAX + 1))

    assert refused.says(Code.DELAY_TOO_LONG)
    assert (0, 1, 0, 0) == await c.counts()


@case("Push", "Poll")
async def names_of_queues_are_text_without_control_characters(c: Case) -> None:
    """Of 255 bytes at most; any other text will do."""
    longest = c.queue + " é/%;:{}?#" + "x" * 400
    longest = longest.encode()[: limits.QUEUE_NAME_BYTES_MAX].decode(errors="ignore")
    await c.push(b"one", queue=longest)
    found = await c.poll(queues=(longest,))
    await c.native.ask(api.DeleteQueue(longest))
    for bad in ("a\nb", "", "x" * 256):
        assert (await c.refused(api.Push(bad, pack([b"x"])))).says(Code.INVALID_QUEUE_NAME)

    assert ["one"] == texts(found)


@case("columns", "Push", "Poll", "Settle")
async def a_group_is_handed_out_one_at_a_time(c: Case) -> None:
    """In order, while other groups go on."""
    await c.push(b"a1", b"a2", b"b1", groups=["a", "a", "b"])
    first = await c.poll()
    await c.ack(first)

    assert ["a1", "b1"] == sorted(texts(first))
    assert ["a2"] == texts(await c.poll())


@case("columns", "Push")
async def a_second_push_of_the_same_id_has_no_effect(c: Case) -> None:
    """The first one's id is the answer."""
    [first] = await c.push(b"one", dedup=["d"])
    reply = await c.door.ask(api.Push(c.queue, pack([b"one", b"two"], dedup=["d", "e"])))

    assert (first, [0]) == (reply["ids"][0], reply["duplicates"])
    assert (2, 0, 0, 0) == await c.counts()


@case("columns", "Push", "Poll", "Peek")
async def headers_travel_beside_the_body(c: Case) -> None:
    """Of any plain values."""
    headers = [{"n": 1, "f": 0.5, "t": "é", "none": None, "list": [True, {"deep": "x"}]}, None]
    await c.push(b"with", b"without", headers=headers)
    seen = await c.door.ask(api.Peek(c.queue))
    found = await c.poll()

    assert headers == [each["headers"] for each in found]
    assert headers == [each["headers"] for each in seen["messages"]]


@case("columns", "Push", "Poll")
async def a_message_tells_where_it_comes_from(c: Case) -> None:
    """Its id, its delivery, its attempts; the fence grows with every lease."""
    ids = await c.push(b"one")
    [first] = await c.poll(visibility_ms=20)
    [second] = await c.poll(wait_ms=5_000)

    assert ids == [first["id"]] == [second["id"]]
    assert ([1, 0], [2, 1]) == ([first["delivery"], first["attempts"]], [second["delivery"], second["attempts"]])
    assert first["fence"] < second["fence"]
    assert (c.queue, 0, None) == (first["queue"], first["priority"], first["group"])


@case("release", "Push", "Poll", "Settle")
async def what_is_released_returns_to_its_place_at_no_cost(c: Case) -> None:
    """It was never tried."""
    await c.push(b"one", b"two")
    [one] = await c.poll(1)
    released = await c.settle(api.SettleKind.RELEASE, [one])
    [again, _] = await c.poll()

    assert [None] == released
    assert ("one", 2, 0) == (again["payload"], again["delivery"], again["attempts"])


@case("release", "Push", "Poll", "Settle")
async def what_failed_rests_and_its_error_is_kept(c: Case) -> None:
    """For as long as the worker says."""
    await c.push(b"one")
    await c.settle(
        api.SettleKind.FAIL, await c.poll(), delay_ms=60_000, error_type="ValueError", error_text="no such thing"
    )
    seen = await c.door.ask(api.Peek(c.queue, api.State.DELAYED))
    [message] = seen["messages"]

    assert (0, 1, 0, 0) == await c.counts()
    assert 1 == message["attempts"]
    assert ("ValueError", "no such thing") == (
        message["history"][0]["error_type"],
        message["history"][0]["error_text"],
    )


@case("release", "Push", "Poll", "Settle", "ListDead")
async def what_is_rejected_is_dead_at_once(c: Case) -> None:
    """With its reason."""
    await c.push(b"one")
    await c.settle(api.SettleKind.REJECT, await c.poll(), error_type="Bad", error_text="never")
    [dead] = (await c.door.ask(api.ListDead(c.queue)))["messages"]
    filtered = await c.door.ask(api.ListDead(c.queue, where=api.Filter(error_type="Other")))

    assert ("one", c.queue) == (dead["payload"], dead["origin"])
    assert [] == filtered["messages"]
    assert 1 == (await c.counts())[3]


@case("ShowQueue", "SetQueue")
async def settings_are_set_shown_and_judged(c: Case) -> None:
    """What is mistyped is named, with the nearest one."""
    await c.door.ask(api.SetQueue(c.queue, {"visibility_ms": 5_000, "dlq": "graves"}))
    shown = await c.door.ask(api.ShowQueue(c.queue))
    unknown = await c.refused(api.SetQueue(c.queue, {"visibilty_ms": 1}))
    wrong = await c.refused(api.SetQueue(c.queue, {"visibility_ms": -1}))
    absent = await c.refused(api.SetQueue(c.queue + ".not", {}, create=False))

    assert (5_000, "graves") == (shown["settings"]["visibility_ms"], shown["settings"]["dlq"])
    assert unknown.says(Code.UNKNOWN_SETTING)
    assert "visibility_ms" == unknown.details["nearest"]
    assert wrong.says(Code.INVALID_SETTING)
    assert absent.says(Code.QUEUE_NOT_FOUND)


@case("ShowQueue", "PurgeQueue", "Peek", "Cancel")
async def what_is_not_there_is_named_with_what_is_near(c: Case) -> None:
    """The same error for whatever is asked of it."""
    await c.set()
    absent = c.queue + "x"
    for request in (api.ShowQueue(absent), api.PurgeQueue(absent), api.Peek(absent), api.Cancel(absent, (1,))):
        refused = await c.refused(request)
        assert refused.says(Code.QUEUE_NOT_FOUND), refused
        assert c.queue == refused.details["nearest"], request


@case("Push", "Poll", "Peek", "ShowQueue")
async def looking_changes_nothing(c: Case) -> None:
    """Page by page, as often as one likes."""
    await c.push(*[f"{number}".encode() for number in range(5)])
    first = await c.door.ask(api.Peek(c.queue, limit=3))
    second = await c.door.ask(api.Peek(c.queue, limit=3, after=first["next"]))
    bare = await c.door.ask(api.Peek(c.queue, limit=1, bodies=False))
    shown = await c.door.ask(api.ShowQueue(c.queue))

    assert (["0", "1", "2"], ["3", "4"], 0) == (texts(first["messages"]), texts(second["messages"]), second["next"])
    assert [None] == texts(bare["messages"])
    assert (5, 0) == (shown["ready"], shown["leased"])
    assert [0] * 5 == [each["attempts"] for each in await c.poll()]


@case("Push", "PurgeQueue", "Poll", "Settle")
async def a_purge_empties_and_keeps_the_settings(c: Case) -> None:
    """Leases end with their messages."""
    await c.set(visibility_ms=7_000)
    await c.push(b"a", b"b")
    held = await c.poll(1)
    purged = await c.door.ask(api.PurgeQueue(c.queue))
    shown = await c.native.ask(api.ShowQueue(c.queue))

    assert (2, 7_000) == (purged["count"], shown["settings"]["visibility_ms"])
    assert ["RECEIPT_EXPIRED"] == await c.ack(held)
    assert (0, 0, 0, 0) == await c.counts()


@case("ListQueues")
async def queues_are_listed_by_prefix_page_by_page(c: Case) -> None:
    """In order of their names."""
    for suffix in "bca":
        await c.native.ask(api.SetQueue(f"{c.queue}.{suffix}", {}))
    first = await c.door.ask(api.ListQueues(c.queue + ".", limit=2))
    second = await c.door.ask(api.ListQueues(c.queue + ".", first["next"], 2))

    assert [f"{c.queue}.{suffix}" for suffix in "ab"] == [each["name"] for each in first["queues"]]
    assert ([f"{c.queue}.c"], "") == ([each["name"] for each in second["queues"]], second["next"])


@case("Push", "Cancel", "Reschedule", "Poll", "columns")
async def a_pending_message_is_cancelled_or_moved_in_time_with_an_exact_answer(c: Case) -> None:
    """Done, leased, gone, unknown."""
    [first, second, third] = await c.push(b"1", b"2", b"3", delay_ms=600_000)
    [ready] = await c.push(b"now")
    await c.poll()
    ids = tuple(parse_id(each) for each in (first, ready, first))
    cancelled = await c.door.ask(api.Cancel(c.queue, (ids[0], ids[1], parse_id(second) + 1_000)))
    again = await c.door.ask(api.Cancel(c.queue, (ids[0],)))
    sooner = await c.door.ask(api.Reschedule(c.queue, parse_id(second), 1))

    assert (["done", "leased", "unknown"], ["gone"], ["done"]) == (
        cancelled["outcomes"],
        again["outcomes"],
        sooner["outcomes"],
    )
    assert ["2"] == texts(await c.poll(wait_ms=5_000))
    assert third


@case("several", "Push", "Poll")
async def the_first_of_several_queues_that_has_some_is_served(c: Case) -> None:
    """In the order in which they are named."""
    await c.push(b"b", queue=c.queue + ".b")
    await c.push(b"c", queue=c.queue + ".c")

    assert ["b"] == texts(await c.poll(queues=(c.queue + ".a", c.queue + ".b", c.queue + ".c")))


@case("forged", "Settle", "Push")
async def a_receipt_that_nobody_gave_out_is_refused(c: Case) -> None:
    """Each message has its own answer."""
    await c.push(b"one")
    forged = api.Item(make_receipt(b"another secret..", 1 << 27 | 1, 1), ((0, 0),))
    reply = await c.door.ask(api.Settle(c.queue, api.SettleKind.ACK, (forged,)))

    assert ["RECEIPT_INVALID"] == reply["names"]


@case("Push", "Poll", "Settle")
async def any_door_settles_what_another_one_leased(c: Case) -> None:
    """A message polled here is acknowledged there."""
    await c.push(b"one", through=c.native)
    found = await c.poll()

    assert [None] == await c.ack(found, through=c.native)
    assert ["RECEIPT_EXPIRED"] == await c.ack(found)


@case("Ping", "Stats", "ClusterStatus")
async def the_asked_node_answers_for_itself(c: Case) -> None:
    """Whoever leads."""
    status = await c.door.ask(api.ClusterStatus())
    stats = await c.door.ask(api.Stats())

    assert {"reply": "pong"} == await c.door.ask(api.Ping())
    assert status["node"] == stats["values"]["node"]
    assert ["n1", "n2", "n3"] == [each["node"] for each in status["members"]]


# --- all of them --------------------------------------------------------------------------------------------
def combinations() -> list[Any]:
    """Every case at every door that has words for it, at both kinds of nodes."""
    found = []
    for name, (needs, _) in CASES.items():
        for door, says in SAYS.items():
            if says is None or needs <= says:
                for role in ROLES:
                    found.append(pytest.param(name, door, role, id=f"{door}.{role}.{name}"))
    return found


def name_of(number: int) -> str:
    """A queue's name like no other: only few are compared when one is mistyped."""
    return f"{chr(0x4E00 + number)} {number}"


@asynccontextmanager
async def opened(lodge: Lodge, door: str, role: str) -> AsyncIterator[Case]:
    """A connection of that kind to a node of that role."""
    leader = lodge.leader()
    room = leader if role == "leader" else lodge.follower()
    with trio.fail_after(30):
        async with cbor(leader) as native, DOORS[door](room) as compared:
            yield Case(compared, native, name_of(next(_queues)))


@pytest.mark.parametrize(("name", "door", "role"), combinations())
async def test_every_door_means_the_same(lodge: Lodge, name: str, door: str, role: str) -> None:
    """One semantics, however it is spoken, and whichever node is asked."""
    _, body = CASES[name]
    async with opened(lodge, door, role) as made:
        await body(made)


async def test_a_message_that_is_no_text_reaches_a_page_as_base64(lodge: Lodge) -> None:
    """The one thing that JSON cannot say as it is: both of its doors say it the same way."""
    async with opened(lodge, "CBOR", "leader") as made:
        await made.push(b"\xff\xfe")
        async with page(lodge.follower().url("ws", "ws")) as tab:
            [message] = (await tab.ask("poll", queue=made.queue))["messages"]

    assert ("//4=", False) == (message["payload_base64"], "payload" in message)


async def test_every_request_is_asked_for_by_some_case() -> None:
    """A request that no case needs could mean one thing here and another there."""
    apart = {"Forget", "OpenSession", "CloseSession", "BackupBegin", "BackupRead", "BackupEnd"}
    apart |= {"AddNode", "RemoveNode", "TransferLeadership", "SetToken", "RevokeToken", "ListTokens"}
    asked = frozenset().union(*(needs for needs, _ in CASES.values()))

    assert {each.__name__ for each in api.Request.__args__} - apart <= asked  # type: ignore[attr-defined]
    assert set(DOORS) == set(SAYS)
