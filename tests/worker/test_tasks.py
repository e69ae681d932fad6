"""Declaring tasks and putting their calls on a queue."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import cbor2
import pytest

import walrq
from tests.worker.running import Running
from walrq.errors import ConfigError, DelayTooLong, InvalidArgument, InvalidQueueName
from walrq.testing.server import Server


def noop() -> None:
    """Does nothing."""


def test_a_task_is_still_the_function() -> None:
    """Calling it calls it: unit tests need no queue."""
    worker = walrq.Worker()

    @worker.task
    def add(a: int, b: int = 1) -> int:
        """Adds."""
        return a + b

    assert 5 == add(2, b=3)
    assert ("add", "Adds.", "default") == (add.__name__, add.__doc__, add.queue)
    assert "<Task add on queue default>" == repr(add)
    assert {"add": add} == worker.tasks


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"retries": -1}, "task 'noop': retries is -1, allowed are 0 to"),
        ({"retries": True}, "retries is True"),
        ({"retries": 1.5}, "retries is 1.5"),
        ({"timeout": 0}, "task 'noop': timeout is 0, allowed are 0.001 to"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"concurrency": 0}, "task 'noop': concurrency is 0, allowed are 1 to"),
        ({"backoff": -1}, "task 'noop': backoff is -1 s"),
    ],
)
def test_a_wrong_value_is_refused_where_it_is_declared(wrong: dict[str, Any], expected: str) -> None:
    """One line at import that names task, field and limit."""
    with pytest.raises(ConfigError, match=expected):
        walrq.Worker().task(**wrong)(noop)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"concurrency": 0}, "concurrency is 0"),
        ({"prefetch": -1}, "prefetch is -1"),
        ({"lease": 0.01}, "lease is 0.01, allowed are 0.05 to 43200 s"),
        ({"stop_timeout": -1}, "stop_timeout is -1"),
        ({"backend": "gevent"}, "backend is 'gevent', allowed are trio and asyncio"),
    ],
)
def test_a_worker_with_a_wrong_value_is_refused(wrong: dict[str, Any], expected: str) -> None:
    """As soon as it is made."""
    with pytest.raises(ConfigError, match=expected):
        walrq.Worker(**wrong)


def test_names_are_unique_and_queues_have_proper_names() -> None:
    """A message names its task; two of a name would be a coin's toss."""
    worker = walrq.Worker()
    worker.task(noop)

    with pytest.raises(ConfigError, match="there is a task 'noop' already"):
        worker.task(noop)
    with pytest.raises(ConfigError, match=r"@worker.task\('mail'\): write @worker.task\(queue='mail'\), or name="):
        worker.task("mail")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="a task is a function, not 5"):
        worker.task(5)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="has no name of its own"):
        worker.task(queue="q", name="")(noop)
    with pytest.raises(InvalidQueueName):
        worker.task(queue="", name="other")(noop)
    assert "again" == worker.task(name="again")(noop).name


def test_a_queue_has_one_handler() -> None:
    """And middleware and lifespan are what they have to be."""
    worker = walrq.Worker()

    @worker.handler(queue="raw")
    def handle(message: walrq.Message) -> None:
        """Does nothing."""

    with pytest.raises(ConfigError, match="queue 'raw' has a handler already"):
        worker.handler(queue="raw")
    with pytest.raises(ConfigError, match="middleware is an async function"):
        worker.middleware(noop)  # type: ignore[type-var]
    with pytest.raises(ConfigError, match="a lifespan is an async function with one yield"):
        worker.lifespan(noop)  # type: ignore[type-var]

    @worker.lifespan
    async def resources() -> AsyncIterator[None]:
        yield

    assert ["raw"] == worker.queues


@pytest.mark.parametrize(
    ("worker", "wishes", "expected"),
    [
        (walrq.Worker(), {}, "this worker has no tasks"),
        (walrq.Worker(), {"queues": ["x"]}, "no task or handler for queue 'x'; it has none"),
    ],
)
def test_a_worker_without_work_says_so(worker: walrq.Worker, wishes: dict[str, Any], expected: str) -> None:
    """The module with the tasks was not imported: the commonest first mistake."""
    with pytest.raises(ConfigError, match=expected):
        worker.plan(**wishes)


def test_more_queues_than_one_poll_takes_are_refused() -> None:
    """The limit is said with the way out."""
    worker = walrq.Worker()
    for number in range(65):
        worker.task(queue=f"q{number}", name=f"t{number}")(noop)

    with pytest.raises(ConfigError, match="65 queues, one serves at most 64: name some with --queue"):
        worker.plan()
    assert 64 == len(worker.plan(queues=worker.queues[:64]).targets)


def declared(worker: walrq.Worker) -> walrq.Task[[str, int], None]:
    """A task with options."""

    @worker.task(queue="mail", retries=4)
    def send(to: str, number: int = 0) -> None:
        """Does nothing."""

    return send  # type: ignore[return-value]


def test_enqueue_is_durable_and_carries_name_and_call(server: Server, running: Running) -> None:
    """What another language's worker would read."""
    send = declared(running.worker())
    message_id = send.enqueue("ada", number=3)
    (message,) = server.connect().poll("mail")

    assert message_id == message.message_id
    assert "send" == message.headers["walrq-task"]
    assert [["ada"], {"number": 3}] == cbor2.loads(message.payload)


def test_options_are_those_of_a_push(server: Server, running: Running) -> None:
    """Delay, priority, group, headers, another queue; and the task's own keywords are free of them."""
    send = declared(running.worker())
    options = send.options(priority=7, group="g", headers={"trace": "t"}, timeout=2.5, queue="urgent")
    options.enqueue("ada", 1)
    send.options(delay=60).enqueue("bob", 2)
    send.options(deliver_at=server.clock.now + timedelta(minutes=5)).enqueue("eve", 3)
    client = server.connect()
    (message,) = client.poll("urgent")

    assert (7, "g") == (message.priority, message.group)
    assert {"walrq-task": "send", "trace": "t", "walrq-timeout": 2.5} == message.headers
    assert 2 == client.show_queue("mail").delayed
    server.clock.advance(301)
    assert [["bob", 2], ["eve", 3]] == [cbor2.loads(each.payload)[0] for each in client.poll("mail")]


def test_retries_are_attempts_after_the_first(server: Server, running: Running) -> None:
    """They travel with the message, whatever the queue's setting is."""
    worker = running.worker()

    @worker.task(queue="mail", retries=1, backoff=0)
    def fail() -> None:
        raise ValueError("always")

    fail.enqueue()
    fail.options(retries=0).enqueue()
    run = running.start(worker)
    client = server.connect()
    pause = threading.Event()
    while 2 != client.show_queue("mail").dead:
        pause.wait(0.01)
    run.stop()

    assert {1, 2} == {dead.attempts for dead in client.list_dead("mail")}


def test_a_dedup_id_enqueues_once(running: Running) -> None:
    """A web request that is repeated is one job."""
    send = declared(running.worker())

    assert send.options(dedup_id="order-1").enqueue("a", 1) == send.options(dedup_id="order-1").enqueue("a", 1)


def test_many_calls_are_one_unit(server: Server, running: Running) -> None:
    """One batch, in order, with ids in order; each call may have headers of its own."""
    send = declared(running.worker())
    calls = [send.call("a", number) for number in range(100)]
    ids = send.enqueue_many([*calls, send.options(headers={"k": 1}).call("b", 7)])
    messages = server.connect().poll("mail", max_messages=200)

    assert list(ids) == [message.message_id for message in messages]
    assert list(range(100)) == [cbor2.loads(message.payload)[0][1] for message in messages[:100]]
    assert 1 == messages[100].headers["k"]
    assert 0 == len(send.enqueue_many([]))


def test_calls_of_another_task_are_refused(running: Running) -> None:
    """Every call was checked against the signature of its own task."""
    worker = running.worker()
    send = declared(worker)
    other = worker.task(name="other")(noop)

    with pytest.raises(InvalidArgument, match="enqueue_many of task 'send' takes its own calls, not <Call of other>"):
        send.enqueue_many([other.call()])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match=r"takes calls, not tuple: write send.enqueue_many\(\[send.call"):
        send.enqueue_many([("b", 7)])  # type: ignore[list-item]


def test_wrong_options_are_refused_before_anything_is_sent(running: Running) -> None:
    """Each names its field."""
    send = declared(running.worker())

    with pytest.raises(ConfigError, match="retries is -1"):
        send.options(retries=-1)
    with pytest.raises(ConfigError, match="timeout is 0"):
        send.options(timeout=0)
    with pytest.raises(DelayTooLong):
        send.options(delay=31 * 86400).enqueue("a", 1)
    with pytest.raises(InvalidArgument, match="deliver_at is a datetime without a time zone"):
        send.options(deliver_at=datetime.now(UTC).replace(tzinfo=None)).enqueue("a", 1)


def test_nobody_there_is_said_and_the_next_call_tries_again(server: Server, running: Running) -> None:
    """An enqueue in a web application fails with one clear error, and works once the server is back."""
    send = declared(running.worker())
    server.stop()
    with pytest.raises(walrq.ServerUnreachable):
        send.enqueue("a", 1)
    server.start()

    assert send.enqueue("a", 1)


def test_threads_share_one_connection(server: Server, running: Running) -> None:
    """The first calls of many threads at once make one client."""
    worker = running.worker()
    send = declared(worker)
    gate = threading.Barrier(8)
    clients: set[int] = set()

    def call() -> None:
        gate.wait()
        send.enqueue("a", 1)
        clients.add(id(worker.publisher.client()))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 1 == len(clients)
    assert 8 == server.connect().show_queue("mail").ready


def test_a_forked_child_enqueues_on_its_own(server: Server, running: Running) -> None:
    """Gunicorn loads the application, then forks."""
    worker = running.worker()
    send = declared(worker)
    send.enqueue("parent", 1)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            send.enqueue("child", 2)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    send.enqueue("parent", 3)

    assert 0 == status
    assert [1, 2, 3] == [cbor2.loads(message.payload)[0][1] for message in server.connect().poll("mail")]


def test_async_code_enqueues_without_blocking(server: Server, running: Running, backend: str) -> None:
    """Outside a worker too, under both event loops."""
    send = declared(running.worker())

    async def main() -> str:
        ids = await send.aenqueue_many([send.call("a", 1), send.call("b", 2)])
        assert 2 == len(ids)
        return await send.options(priority=1).aenqueue("c", 3)

    assert anyio.run(main, backend=backend) == server.connect().poll("mail", max_messages=1)[0].message_id


def test_a_worker_is_pointed_elsewhere(server: Server, running: Running) -> None:
    """Settings that are read late, and tests, name the server after the tasks were declared."""
    worker = walrq.Worker("walrq://127.0.0.1:1")
    send = declared(worker)
    with pytest.raises(walrq.ServerUnreachable):
        send.enqueue("a", 1)
    with pytest.raises(ConfigError):
        worker.connect_to("http://example.org")
    worker.connect_to(server.url)

    assert send.enqueue("a", 1)
    worker.close()
    assert send.enqueue("a", 2)
    worker.close()


def test_the_server_may_be_named_by_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read at the first use, not at import."""
    worker = walrq.Worker()
    send = declared(worker)
    monkeypatch.setenv("WALRQ_SERVER", server.url)

    assert send.enqueue("a", 1)
    worker.close()
