"""Messages due in days, through a whole node on a clock that is moved: fetched in time, found by id, listed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from walrq.daemon import supervisor
from walrq.queues.machine import Bounds
from walrq.testing.server import Server

DAY_S = 86_400.0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A node of its own for the test, which seals what waits after every few messages."""
    monkeypatch.setattr(supervisor, "Bounds", partial(Bounds, far_tail_rows=4, far_page_rows=2))
    with Server() as server:
        yield server


def far_messages(server: Server) -> int:
    """How many the node holds beyond the horizon."""
    assert server.node is not None
    return sum(queue.far_messages for queue in server.node.replica.machine.queues.values())


def seal(server: Server) -> None:
    """Fill the tail with messages of another queue, so that everything before lies in sealed pages."""
    client = server.connect()
    assert server.node is not None
    while server.node.replica.machine.far.tail_rows:
        client.push("filler", b"", delay=29 * DAY_S)


def test_none_early_and_none_late_over_restarts(server: Server) -> None:
    """Pushed for tomorrow, three starts in between, one of them after a loss of power: there when due, in order."""
    client = server.connect()
    for k in range(20):
        client.push("q", b"%d" % k, delay=DAY_S + 3600 * k)
    assert 20 == far_messages(server)
    seal(server)
    server.stop()
    server.start()
    server.clock.advance(DAY_S / 2)
    server.kill(power_loss_seed=1)
    server.start()
    server.kill()
    server.start()
    client = server.connect()

    server.clock.advance(DAY_S / 2 - 1800)
    assert [] == client.poll("q")
    server.clock.advance(1801)
    (first,) = client.poll("q", max_messages=30)
    assert b"0" == first.payload
    client.ack(first)
    server.clock.advance(20 * 3600)
    assert [b"%d" % k for k in range(1, 20)] == [message.payload for message in client.poll("q", max_messages=30)]


def test_cancel_and_reschedule_answer_exactly(server: Server) -> None:
    """Wherever the message waits: near, in the tail, in a sealed page."""
    client = server.connect()
    ids = [client.push("q", b"%d" % k, delay=5 * DAY_S) for k in range(6)]
    assert ["done"] == client.cancel("q", ids[0])
    seal(server)

    assert ["done", "gone"] == client.cancel("q", [ids[1], ids[0]])
    assert "gone" == client.reschedule("q", ids[1], server.clock.time())
    assert "done" == client.reschedule("q", ids[2], server.clock.time())
    (message,) = client.poll("q")
    assert b"2" == message.payload
    assert ["leased"] == client.cancel("q", ids[2])
    assert "done" == client.reschedule("q", ids[3], server.clock.time() + 2 * DAY_S)
    client.ack(message)
    server.clock.advance(2 * DAY_S + 1)
    assert [b"3"] == [message.payload for message in client.poll("q")]


def test_delayed_messages_are_listed_with_their_bodies(server: Server) -> None:
    """Near ones first, then the far ones; pages of any size give each of them once."""
    client = server.connect()
    near = {client.push("q", b"near", delay=60)}
    far = {client.push("q", b"far %d" % k, delay=5 * DAY_S) for k in range(5)}
    seal(server)
    far |= {client.push("q", b"far %d" % k, delay=6 * DAY_S) for k in range(5, 8)}
    seen = client.peek("q", "delayed", limit=100)

    assert near | far == {one.message_id for one in seen} and 9 == len(seen)
    assert {b"near", *(b"far %d" % k for k in range(8))} == {one.payload for one in seen}
    assert 9 == client.show_queue("q").delayed
    assert client.purge_queue("q") == 9 and [] == client.peek("q", "delayed", limit=100)
