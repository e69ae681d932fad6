"""Threads that call one blocking client at the same time share requests, and each gets its own."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import walrq
from tests.client.fake_server import Connection, FakeServer
from walrq import api
from walrq.client.merging import FLYING_MAX
from walrq.errors import Code, LocalProtocolError, QueueFull
from walrq.ids import format_id
from walrq.protocol import columns
from walrq.protocol.requests import Incoming

CALLERS = 12


class Slow:
    """Holds the first answers back until `go` is called, so that later calls gather behind them."""

    def __init__(self, fake: FakeServer, kind: type[api.Request]) -> None:
        self._fake = fake
        self._kind = kind
        self._answer = fake.script
        self._held: list[tuple[Connection, Incoming]] = []
        self._open = False
        fake.script = self

    def __call__(self, connection: Connection, incoming: Incoming) -> api.Reply | None:
        if type(incoming.request) is not self._kind or self._open:
            return self._answer(connection, incoming)
        self._held.append((connection, incoming))
        return None

    def go(self) -> None:
        """Answer what was held back."""
        self._open = True
        for connection, incoming in self._held:
            reply = self._answer(connection, incoming)
            assert reply is not None
            connection.reply(incoming, reply)


def gathered(client: walrq.Client, count: int) -> None:
    """Wait until `count` calls are held back in the client."""
    merger = client._pump()._merger
    done = threading.Event()
    while not done.wait(0.002):
        if sum(len(lane.waiting) for lane in list(merger._lanes.values())) == count:
            return


def test_pushes_of_many_threads_are_few_requests(fake: FakeServer) -> None:
    """What gathers while requests are under way leaves as one batch, and every thread gets its message's id."""
    slow = Slow(fake, api.Push)
    with walrq.connect(fake.url) as client, ThreadPoolExecutor(CALLERS) as pool:
        calls: dict[Future[str], bytes] = {}
        for number in range(CALLERS):
            payload = b"%d" % number
            calls[pool.submit(client.push, "q", payload)] = payload
            if number < FLYING_MAX + 1:
                # The first goes by itself; the next ones fill the lane.
                fake.wait_for(api.Push, number + 1)
        gathered(client, CALLERS - FLYING_MAX - 1)
        slow.go()
        ids = {call.result(10): payload for call, payload in calls.items()}

    sizes = [each.request.columns.count for each in fake.asked if isinstance(each.request, api.Push)]
    assert [1] * (FLYING_MAX + 1) + [CALLERS - FLYING_MAX - 1] == sizes
    assert ids == pushed(fake)


def pushed(fake: FakeServer) -> dict[str, bytes]:
    """Payload by id, as the server keeps them."""
    return {format_id(number): payload for _, number, payload in fake.messages}


def test_a_lonely_thread_sends_plain_requests(fake: FakeServer) -> None:
    """Nothing is gathered where there is nothing to gather."""
    with walrq.connect(fake.url) as client:
        for number in range(3):
            client.push("q", b"%d" % number)
        for message in client.poll("q"):
            client.ack(message)
        assert {} == client._pump()._merger._lanes


def test_polls_and_acks_of_threads_go_to_whom_they_belong(fake: FakeServer) -> None:
    """No message is handed to two threads, and each thread's ack is its own."""
    with walrq.connect(fake.url) as client, ThreadPoolExecutor(CALLERS) as pool:
        client.push_batch("q", [b"%d" % number for number in range(5 * CALLERS)])

        def take(_: int) -> list[bytes]:
            found = []
            for message in client.poll("q", max_messages=5):
                found.append(message.payload)
                client.ack(message)
            return found

        taken = [payload for part in pool.map(take, range(CALLERS)) for payload in part]

    assert sorted(b"%d" % number for number in range(5 * CALLERS)) == sorted(taken)
    assert 5 * CALLERS == sum(1 for settled in fake.settled for _ in settled.items)


def test_a_threads_mistake_is_its_own(fake: FakeServer) -> None:
    """A batch that is refused is pushed again one by one: only the wrong one fails."""
    answer = fake.script

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        request = incoming.request
        if isinstance(request, api.Push) and b"bad" in columns.unpack(request.columns).payloads:
            return api.Failed(Code.QUEUE_FULL, "no", {})
        return answer(connection, incoming)

    fake.script = script
    slow = Slow(fake, api.Push)
    with walrq.connect(fake.url) as client, ThreadPoolExecutor(CALLERS) as pool:
        calls: dict[bytes, Future[str]] = {}
        for number in range(FLYING_MAX + 1):
            calls[b"%d" % number] = pool.submit(client.push, "q", b"%d" % number)
            fake.wait_for(api.Push, number + 1)
        for payload in (b"x", b"bad", b"y"):
            calls[payload] = pool.submit(client.push, "q", payload)
        gathered(client, 3)
        slow.go()

        with pytest.raises(QueueFull):
            calls.pop(b"bad").result(10)
        assert {call.result(10): payload for payload, call in calls.items()} == pushed(fake)


def test_closing_ends_what_threads_share(fake: FakeServer) -> None:
    """Sent or held back, a call that waits learns that the client is closed."""
    Slow(fake, api.Push)
    client = walrq.connect(fake.url)
    with ThreadPoolExecutor(CALLERS) as pool:
        calls: list[Future[Any]] = []
        for number in range(FLYING_MAX + 3):
            calls.append(pool.submit(client.push, "q", b"%d" % number))
            if number < FLYING_MAX + 1:
                fake.wait_for(api.Push, number + 1)
        gathered(client, 2)
        client.close()
        for call in calls:
            with pytest.raises(LocalProtocolError, match="closed"):
                call.result(10)
