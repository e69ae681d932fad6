"""Both clients against a real daemon, which is killed in the middle of what they do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import walrq
from tests.forks.nodes import Node
from walrq import aio
from walrq.errors import QueueNotFound, ReceiptExpired, UnknownSetting


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A daemon for the tests that leave it alive; each uses a queue of its own."""
    with Node(tmp_path_factory.mktemp("shared") / "data") as started:
        yield started.start()


@pytest.fixture
def client(node: Node) -> Iterator[walrq.Client]:
    """A blocking client of the shared daemon."""
    with walrq.connect(node.url) as connected:
        yield connected


def test_a_message_carries_what_it_was_pushed_with(client: walrq.Client) -> None:
    """Payload, headers, group and priority arrive as they left."""
    pushed = client.push("whole", b"\x00\xff", headers={"k": 1, "b": b"\x01"}, group="g", priority=7)
    (message,) = client.poll("whole")

    assert (pushed, b"\x00\xff") == (message.message_id, message.payload)
    assert ({"k": 1, "b": b"\x01"}, "g", 7) == (message.headers, message.group, message.priority)
    assert (1, 0) == (message.delivery, message.attempts)
    assert 29 < message.remaining <= 30
    client.ack(message)


def test_partly_acknowledged_batches_come_back_in_part(client: walrq.Client) -> None:
    """Offsets, slices and headers stay right after a run was cut."""
    entries = [walrq.NewMessage(b"%d" % number, headers={"n": number}) for number in range(10)]
    ids = client.push_batch("cut", entries)
    messages = client.poll("cut", max_messages=10)
    client.ack([messages[index] for index in (0, 3, 4, 9)])
    client.nack([messages[index] for index in (1, 2, 5, 6, 7, 8)], "release")

    again = client.poll("cut", max_messages=10)

    assert [1, 2, 5, 6, 7, 8] == [int(message.payload) for message in again]
    assert [1, 2, 5, 6, 7, 8] == [message.headers["n"] for message in again]
    assert [ids[index] for index in (1, 2, 5, 6, 7, 8)] == [message.message_id for message in again]
    assert {2} == {message.delivery for message in again}
    client.ack(again)
    assert [] == client.poll("cut")


def test_a_handle_works_from_another_client_and_only_once(client: walrq.Client, node: Node) -> None:
    """The text form of a receipt is all that a web page or a shell needs."""
    client.push("handle", b"x")
    (message,) = client.poll("handle")
    with walrq.connect(node.url) as other:
        other.ack("handle", message.message_id, message.receipt_handle)
        with pytest.raises(ReceiptExpired):
            other.ack("handle", message.message_id, message.receipt_handle)


def test_the_worst_of_several_acks_names_the_message(client: walrq.Client) -> None:
    """Of a list the one that was settled before is named; the others are done."""
    client.push_batch("twice", [b"a", b"b"])
    first, second = client.poll("twice")
    client.ack(first)

    with pytest.raises(walrq.WalrqError) as caught:
        client.ack([first, second])

    assert isinstance(caught.value, walrq.BatchError | ReceiptExpired)
    client.ack(second)


def test_reject_fail_and_dead_letters(client: walrq.Client) -> None:
    """Why a message died is kept, and it can be sent back."""
    client.create_queue("dying", max_deliveries=1)
    client.push_batch("dying", [b"a", b"b"])
    first, second = client.poll("dying")
    client.nack(first, "reject", error=ValueError("bad"))
    client.nack(second, "fail", error="timeout")

    dead = client.list_dead("dying")
    only = client.list_dead("dying", error_type="ValueError")

    assert [b"a", b"b"] == [each.payload for each in dead]
    assert ["rejected", "failed"] == [each.reason for each in dead]
    assert ("ValueError", "bad") == (only[0].history[-1].error_type, only[0].history[-1].error_text)
    assert 2 == client.redrive("dying", dry_run=True).count
    assert 1 == client.redrive("dying", reason="failed").count
    assert [b"b"] == [message.payload for message in client.poll("dying")]
    assert 1 == client.purge_dead("dying")
    assert [] == client.list_dead("dying")


def test_delayed_messages_can_be_seen_moved_and_cancelled(client: walrq.Client) -> None:
    """What is planned can be changed, with an exact answer."""
    later = client.push("plan", b"later", 3600)
    assert [later] == [seen.message_id for seen in client.peek("plan", "delayed")]
    assert [] == client.poll("plan")
    assert "done" == client.reschedule("plan", later, 1)
    (message,) = client.poll("plan")
    assert later == message.message_id
    assert ["leased"] == client.cancel("plan", later)
    client.ack(message)
    assert ["gone"] == client.cancel("plan", [later])


def test_queues_are_shown_set_paused_and_deleted(client: walrq.Client) -> None:
    """Administration in one walk."""
    client.create_queue("admin", max_length=5)
    client.push("admin", b"x")
    assert 1 == client.show_queue("admin").ready
    assert "admin" in [info.name for info in client.list_queues("ad")]
    client.pause_queue("admin")
    assert [] == client.poll("admin")
    client.resume_queue("admin")
    with pytest.raises(UnknownSetting) as caught:
        client.set_queue("admin", max_lenght=5)
    assert "max_length" == caught.value.details["nearest"]
    assert 1 == client.move("admin", "admin-later", 5).count
    assert 0 == client.purge_queue("admin")
    client.delete_queue("admin")
    with pytest.raises(QueueNotFound):
        client.show_queue("admin")
    assert client.stats()


def test_touch_keeps_a_message_and_a_duplicate_is_one(client: walrq.Client) -> None:
    """A lease that is prolonged does not end; a dedup id pushes once."""
    assert client.push("dedup", b"x", dedup_id="order-1") == client.push("dedup", b"x", dedup_id="order-1")
    (message,) = client.poll("dedup", 5)
    client.touch(message, 300)

    assert 290 < message.remaining <= 300
    client.ack(message)


def test_more_messages_than_a_batch_holds_are_several(client: walrq.Client) -> None:
    """The caller's list is not bounded by the wire's limits, and its ids are complete."""
    ids = client.push_batch("many", [b"%d" % number for number in range(25_000)])

    assert 25_000 == len(ids) == len(set(ids.numbers()))
    assert 25_000 == client.show_queue("many").ready
    assert 25_000 == client.purge_queue("many")


@pytest.mark.anyio
async def test_a_hundred_tasks_share_an_asynchronous_client(node: Node, anyio_backend: str) -> None:
    """Pushes, polls and acks of many tasks on one connection, with a poll parked beside them."""
    queue = f"tasks-{anyio_backend}"
    done: list[bytes] = []
    async with aio.connect(node.url) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(client.poll, f"{queue}-empty", None, 10)

        async def producer(number: int) -> None:
            await client.push(queue, b"%d" % number)

        async def worker() -> None:
            async for message in client.consume(queue, wait=30):
                await client.ack(message)
                done.append(message.payload)
                if len(done) == 100:
                    finished.set()

        finished = anyio.Event()
        for _ in range(5):
            tasks.start_soon(worker)
        for number in range(100):
            tasks.start_soon(producer, number)
        with anyio.fail_after(30):
            await finished.wait()
        tasks.cancel_scope.cancel()

    assert {b"%d" % number for number in range(100)} == set(done)
    assert 100 == len(done)


@pytest.mark.anyio
async def test_a_cancelled_poll_leaves_nothing_leased(node: Node, anyio_backend: str) -> None:
    """The message goes to the next worker at once, and its delivery costs no attempt."""
    queue = f"cancelled-{anyio_backend}"
    async with aio.connect(node.url) as client:
        await client.create_queue(queue)
        with anyio.move_on_after(0.05):
            await client.poll(queue, 3600, wait=60)
        await client.push(queue, b"x")
        with anyio.fail_after(10):
            (message,) = await client.poll(queue, wait=5)

        assert (b"x", 0) == (message.payload, message.attempts)
        await client.ack(message)


def restarted(node: Node) -> None:
    """kill -9, and start again at the same address."""
    host, port = node.address
    node.kill()
    node.listen = f"{host}:{port}"
    node.start()


def test_nothing_is_lost_or_doubled_by_kill_9_under_blocking_clients(tmp_path: Path) -> None:
    """Pushes, polls and acks in the middle of which the daemon dies three times: each message is done
    once."""
    done: list[bytes] = []
    stop = threading.Event()
    with Node(tmp_path / "data") as node:
        node.start()

        def produce() -> int:
            with walrq.connect(node.url, timeout_s=60, retry_first_s=0.01, retry_max_s=0.1) as client:
                number = 0
                while not stop.is_set():
                    client.push_batch("q", [b"%d" % (number + step) for step in range(5)])
                    number += 5
                return number

        def work() -> None:
            with walrq.connect(node.url, timeout_s=60, retry_first_s=0.01, retry_max_s=0.1) as client:
                while True:
                    messages = client.poll("q", 600, 7, wait=0.2)
                    if not messages and stop.is_set():
                        return
                    client.ack(messages)
                    done.extend(message.payload for message in messages)

        with ThreadPoolExecutor(3) as pool:
            producing = pool.submit(produce)
            working = [pool.submit(work) for _ in range(2)]
            for wanted in (100, 300, 500):
                while len(done) < wanted:
                    for each in (producing, *working):
                        assert not each.done(), each.result()
                    stop.wait(0.01)
                restarted(node)
            stop.set()
            count = producing.result(60)
            for each in working:
                each.result(60)

    assert count == len(done) == len(set(done))
    assert {b"%d" % number for number in range(count)} == set(done)


@pytest.mark.anyio
async def test_nothing_is_lost_or_doubled_by_kill_9_under_an_asynchronous_client(
    tmp_path: Path, anyio_backend: str
) -> None:
    """The same with fifty calls under way on one connection at the moment of the kill."""
    done: list[bytes] = []
    pushed: list[bytes] = []
    with Node(tmp_path / "data") as node:
        node.start()
        async with (
            aio.connect(node.url, timeout_s=60, retry_first_s=0.01, retry_max_s=0.1) as client,
            anyio.create_task_group() as tasks,
        ):

            async def produce(name: int) -> None:
                for number in range(20):
                    payload = b"%d/%d" % (name, number)
                    await client.push("q", payload)
                    pushed.append(payload)

            async def work() -> None:
                while len(done) < 1000:
                    batches = await client.poll_batch("q", 600, 3, wait=0.2)
                    for batch in batches:
                        await batch.ack()
                        done.extend(batch.payloads())

            for name in range(50):
                tasks.start_soon(produce, name)
            for _ in range(10):
                tasks.start_soon(work)
            for wanted in (100, 500):
                while len(done) < wanted:
                    await anyio.wait_all_tasks_blocked()
                    await anyio.to_thread.run_sync(threading.Event().wait, 0.01)
                await anyio.to_thread.run_sync(restarted, node)

    assert 1000 == len(pushed) == len(done)
    assert set(pushed) == set(done)
