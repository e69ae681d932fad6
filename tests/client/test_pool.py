"""Several connections behind one blocking client."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import walrq
from tests.client.fake_server import Connection, FakeServer, delivered
from walrq import api
from walrq.errors import LocalProtocolError
from walrq.protocol.requests import Incoming


def test_one_connection_serves_all_threads_unless_more_are_asked_for(fake: FakeServer) -> None:
    """The default costs one session."""
    with walrq.connect(fake.url) as client, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: client.push("q", b"%d" % number), range(50)))

    assert 1 == len(fake.hellos)


def test_threads_are_spread_and_each_keeps_to_its_connection(fake: FakeServer) -> None:
    """Each connection has a session of its own; a thread's calls stay in order."""
    seen: dict[bytes, set[int]] = {}

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        if type(incoming.request) is api.Push:
            seen.setdefault(incoming.request.columns.payloads, set()).add(id(connection))
        return fake.list_queue(connection, incoming)

    fake.script = script
    together = threading.Barrier(6)

    def work(name: bytes) -> None:
        together.wait(10)
        for _ in range(10):
            client.push("q", name)

    names = [b"%d" % number for number in range(6)]
    with walrq.connect(fake.url, pool=3) as client, ThreadPoolExecutor(6) as pool:
        list(pool.map(work, names))

        assert {1} == {len(connections) for connections in seen.values()}
        used = [next(iter(connections)) for connections in seen.values()]
        assert [2, 2, 2] == sorted(used.count(each) for each in set(used))
        assert 3 == len(fake.sessions)
    for number in range(1, 4):
        fake.wait_for(api.CloseSession, number)


def test_connections_are_made_when_they_are_needed(fake: FakeServer) -> None:
    """A pool of ten in a program with one thread is one connection."""
    with walrq.connect(fake.url, pool=10) as client:
        client.push("q", b"x")

        assert 1 == len(fake.hellos)
        assert "10 connections" in repr(client)


def test_a_consumer_gives_back_through_the_connection_it_began_with(fake: FakeServer) -> None:
    """A loop may be left in another thread than it was begun in."""
    with walrq.connect(fake.url, pool=2) as client:
        client.push_batch("q", [b"a", b"b"])
        consumer = client.consume("q", wait=0)
        next(consumer).ack()
        thread = threading.Thread(target=consumer.close)
        thread.start()
        thread.join()
        client.ping()

    assert [api.SettleKind.ACK, api.SettleKind.RELEASE] == [settled.kind for settled in fake.settled]


def test_a_closed_pool_says_so_in_every_thread(fake: FakeServer) -> None:
    """Calls that wait end, and later ones are refused, whatever connection is theirs."""

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        return None if type(incoming.request) is api.Poll else fake.list_queue(connection, incoming)

    fake.script = script
    client = walrq.connect(fake.url, pool=2)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(client.poll, "q", wait=600) for _ in range(2)]
        fake.wait_for(api.Poll, 2)
        client.close()
        for each in waiting:
            with pytest.raises(LocalProtocolError, match="closed"):
                each.result(10)
        with pytest.raises(LocalProtocolError, match="closed"):
            pool.submit(client.push, "q", b"x").result(10)
    assert "closed" in repr(client)


def test_a_large_answer_does_not_stand_before_another_threads_small_one(fake: FakeServer) -> None:
    """What a pool is for: one stream of bytes delivers in order, two do not wait for each other."""
    begun, go_on = threading.Event(), threading.Event()

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        if type(incoming.request) is api.Poll:
            # The first half of a large answer is on its way and stuck; nothing behind it can arrive.
            with connection.lock:
                large = api.Polled(0, 30_000, (delivered("q", 1, (bytes(100_000),)),))
                connection.protocol.reply(incoming.id, large)
                data = connection.protocol.take_output()
                connection.sock.sendall(data[:1000])
                begun.set()
                assert go_on.wait(10)
                connection.sock.sendall(data[1000:])
            return None
        return fake.list_queue(connection, incoming)

    fake.script = script
    with walrq.connect(fake.url, pool=2) as client, ThreadPoolExecutor(1) as pool:
        large = pool.submit(client.poll, "q")
        assert begun.wait(10)
        client.push("q", b"small")
        assert not large.done()
        go_on.set()

        assert 100_000 == len(large.result(10)[0].payload)
