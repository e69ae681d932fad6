"""What handlers see, what they may raise, and what becomes of their messages."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import anyio.to_thread
import cbor2
import pytest
import trio

import walrq
from tests.worker.running import Lines, Running, empty, until
from walrq.testing.server import Server
from walrq.worker.running import CallNext, Releases


@pytest.fixture
def lines() -> Iterator[Lines]:
    """What the worker logs."""
    handler = Lines()
    logger = logging.getLogger("walrq.worker")
    before = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


def dead(server: Server, queue: str) -> walrq.Seen:
    """The only dead message of a queue, once there is one."""
    client = server.connect()
    until(lambda: bool(client.list_dead(queue)), "death")
    (found,) = client.list_dead(queue)
    return found


def test_functions_run_in_threads_and_coroutines_in_the_loop(server: Server, running: Running, backend: str) -> None:
    """Neither has to know of the other."""
    worker = running.worker()
    seen: dict[str, Any] = {}

    @worker.task
    def sync(a: int, *, b: str) -> None:
        seen["sync"] = (a, b, threading.current_thread())

    @worker.task
    async def asynchronous(a: int, *, b: str) -> None:
        await anyio.lowlevel.checkpoint()
        seen["async"] = (a, b, threading.current_thread())

    sync.enqueue(1, b="x")
    asynchronous.enqueue(2, b="y")
    run = running.start(worker, backend)
    until(lambda: empty(server, "default"))

    assert 0 == run.stop()
    assert (1, "x") == seen["sync"][:2]
    assert (2, "y") == seen["async"][:2]
    assert seen["async"][2] is run.thread is not seen["sync"][2]


def test_the_context_tells_of_message_and_lease(server: Server, running: Running, backend: str) -> None:
    """It is found in the handler's thread and in the loop."""
    worker = running.worker()
    seen: list[Any] = []

    def look() -> None:
        here = walrq.current()
        seen.append(
            (here.task, here.queue, here.message_id, here.delivery, here.attempts, here.headers["k"], here.fence)
        )
        assert 0 < here.remaining <= 30
        assert not (here.lease_lost or here.timed_out or here.stopping)
        here.check()
        here.extend(100)
        assert 90 < here.remaining <= 100
        assert here.message_id in repr(here)

    @worker.task
    def sync() -> None:
        look()

    @worker.task
    async def asynchronous() -> None:
        await anyio.to_thread.run_sync(look)
        await walrq.current().aextend(200)
        assert 190 < walrq.current().remaining <= 200

    first = sync.options(headers={"k": 1}).enqueue()
    second = asynchronous.options(headers={"k": 2}).enqueue()
    running.start(worker, backend)
    until(lambda: empty(server, "default"))
    by_task = {each[0]: each[1:] for each in seen}

    assert ("default", first, 1, 0, 1) == by_task["sync"][:5]
    assert ("default", second, 1, 0, 2) == by_task["asynchronous"][:5]
    assert by_task["sync"][5] > (0, 0)
    with pytest.raises(LookupError, match="no handler is running here"):
        walrq.current()


def test_an_error_is_kept_with_its_traceback(server: Server, running: Running, backend: str, lines: Lines) -> None:
    """The dead-letter queue says what happened and where; the handler's frames only."""
    worker = running.worker()

    @worker.middleware
    async def around(context: walrq.Context, call_next: CallNext) -> Any:
        return await call_next()

    @worker.task(retries=0)
    def fail() -> None:
        raise ValueError("no such address")

    fail.enqueue()
    running.start(worker, backend)
    (attempt,) = dead(server, "default").history
    text = attempt.error_text or ""

    assert ("failed", "ValueError") == (attempt.reason, attempt.error_type)
    assert "no such address" == text.splitlines()[0]
    assert "in fail" in text
    assert "in around" in text
    assert "walrq/worker" not in text
    assert "site-packages" not in text
    (record,) = lines.starting("failed")
    assert (logging.ERROR, "fail", "default") == (record.levelno, record.task, record.queue)  # type: ignore[attr-defined]
    assert record.exc_info is not None


@pytest.mark.parametrize(
    "leave", [SystemExit(3), ExceptionGroup("several", [ValueError("one")]), RecursionError("deep")]
)
def test_whatever_a_handler_raises_the_worker_lives(
    server: Server, running: Running, backend: str, leave: BaseException
) -> None:
    """`sys.exit` in a job is the job's failure."""
    worker = running.worker()

    @worker.task(retries=0)
    def sync() -> None:
        raise leave

    @worker.task(retries=0)
    async def asynchronous() -> None:
        raise leave

    sync.enqueue()
    asynchronous.enqueue()
    run = running.start(worker, backend)
    client = server.connect()
    until(lambda: 2 == len(client.list_dead("default")))

    assert 0 == run.stop()
    assert {type(leave).__name__} == {each.history[-1].error_type for each in client.list_dead("default")}


@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_a_keyboard_interrupt_from_a_handler_stops_the_worker_in_order(
    server: Server, running: Running, backend: str, kind: str
) -> None:
    """As SIGINT does: what runs is done, and nothing else is started. Whoever awaits `serve` is interrupted then, with
    the interrupt itself and not a group of groups."""
    worker = running.worker(concurrency=2)
    both = threading.Event()
    ended: list[str] = []

    @worker.task
    def other() -> None:
        both.set()
        until(lambda: worker._serving is not None and worker._serving._quiet, "stop")
        ended.append("in peace")

    def interrupt() -> None:
        raise KeyboardInterrupt

    @worker.task(name="thread", retries=0)
    def thread() -> None:
        assert both.wait(30)
        interrupt()

    @worker.task(name="loop", retries=0)
    async def loop() -> None:
        await anyio.to_thread.run_sync(both.wait)
        interrupt()

    other.enqueue()
    worker.tasks[kind].enqueue()
    run = running.start(worker, backend)
    with pytest.raises(KeyboardInterrupt):
        run.wait()

    assert ["in peace"] == ended
    assert "KeyboardInterrupt" == dead(server, "default").history[-1].error_type
    assert 0 == server.connect().show_queue("default").leased


def test_a_keyboard_interrupt_where_the_worker_has_the_signals_is_a_stop(server: Server, running: Running) -> None:
    """`walrq worker` and `Worker.run` end with a status, as after Ctrl-C."""
    worker = running.worker()

    @worker.task(retries=0)
    def interrupt() -> None:
        raise KeyboardInterrupt

    interrupt.enqueue()

    assert 0 == worker.run()
    assert "KeyboardInterrupt" == dead(server, "default").history[-1].error_type


def test_code_of_the_other_event_loop_is_told_apart(
    server: Server, running: Running, backend: str, lines: Lines
) -> None:
    """The first mistake with an async handler: the log and the death report say which flag is missing."""
    worker = running.worker()

    @worker.task(retries=0)
    async def fetch() -> None:
        if backend == "trio":
            await asyncio.sleep(0)
            asyncio.get_running_loop()
        else:
            await trio.lowlevel.checkpoint()

    fetch.enqueue()
    running.start(worker, backend)
    (attempt,) = dead(server, "default").history
    other = "asyncio" if backend == "trio" else "trio"
    hint = f"this handler uses {other}, and the worker runs {backend}: run this worker with backend='{other}'"

    assert hint in lines.starting("failed")[0].getMessage()
    assert hint in (attempt.error_text or "")


def test_the_same_words_from_a_thread_are_no_such_mistake(server: Server, running: Running, lines: Lines) -> None:
    """There is no event loop in any of them."""
    worker = running.worker()

    @worker.task(retries=0)
    def ask() -> None:
        asyncio.get_running_loop()

    ask.enqueue()
    running.start(worker)
    dead(server, "default")

    assert "backend" not in lines.starting("failed")[0].getMessage()


def test_the_workers_own_event_loop_is_the_one_of_its_runs(server: Server, running: Running) -> None:
    """Said once, where the handlers are."""
    worker = running.worker(backend="asyncio")
    loops: list[object] = []

    @worker.task
    async def note() -> None:
        loops.append(asyncio.get_running_loop())
        worker.stop()

    note.enqueue()

    assert 0 == worker.run()
    assert 1 == len(loops)


def test_the_log_says_when_a_message_is_dead(server: Server, running: Running, lines: Lines) -> None:
    """By the retries of the call, of the task, or of the queue; and what comes next before that."""
    worker = running.worker()
    client = server.connect()
    client.create_queue("queue", max_deliveries=1)

    def fail() -> None:
        raise ValueError("again")

    for name in ("call", "task", "queue"):
        worker.task(queue=name, name=name, retries=1 if name == "task" else None, backoff=0)(fail)
    worker.tasks["call"].options(retries=0).enqueue()
    worker.tasks["task"].enqueue()
    worker.tasks["queue"].enqueue()
    running.start(worker)
    until(lambda: 3 == len(lines.starting("dead")), "death")
    said = {record.task: record.getMessage() for record in lines.starting("dead")}  # type: ignore[attr-defined]
    failed = [record.getMessage().split(" ")[1:3] for record in lines.starting("failed") if record.task == "task"]  # type: ignore[attr-defined]

    assert {name: name in said for name in ("call", "task", "queue")} == dict.fromkeys(said, True)
    assert "failures=1 of 1, no more attempts" in said["call"]
    assert "failures=2 of 2, no more attempts" in said["task"]
    assert "failures=1 of 1, no more attempts" in said["queue"]
    assert [["failures=1", "next_s=0"], ["failures=2", "next=never"]] == failed


def test_a_message_that_is_released_over_and_over_is_said_once(server: Server, running: Running, lines: Lines) -> None:
    """It comes right back: the author of that loop gets one warning, and not a line per round for ever."""
    worker = running.worker(concurrency=1)
    rounds: list[None] = []

    @worker.task
    def elsewhere() -> None:
        rounds.append(None)
        if len(rounds) <= 25:
            raise walrq.Release("not here")

    elsewhere.enqueue()
    running.start(worker)
    until(lambda: empty(server, "default"))
    levels = [record.levelno for record in lines.starting("released")]

    assert [logging.INFO] * 9 + [logging.DEBUG] * 15 == levels
    (record,) = lines.starting("released_again")
    assert "walrq.Retry(delay=...) waits" in record.getMessage()


def test_releases_far_apart_are_no_loop() -> None:
    """And no more messages are remembered than a worker can have use for."""
    releases = Releases()

    assert [1, 2, 1, 2] == [releases.count("a", now) for now in (0, 9, 20, 21)]
    for number in range(5000):
        releases.count(str(number), 22)
    assert 1000 == len(releases._seen)


def test_a_cancellation_from_within_is_a_failure(server: Server, running: Running) -> None:
    """Something that the handler awaited was cancelled: the message is not forgotten over it."""
    worker = running.worker()

    @worker.task(retries=0)
    async def fail() -> None:
        raise asyncio.CancelledError

    fail.enqueue()
    run = running.start(worker, "asyncio")

    assert "CancelledError" == dead(server, "default").history[-1].error_type
    assert 0 == run.stop()


def test_backoff_of_the_task_is_the_delay_of_the_nack(server: Server, running: Running) -> None:
    """Ten seconds times the failures so far; on a clock that is moved."""
    worker = running.worker()
    ran: list[int] = []

    @worker.task(retries=3, backoff=lambda failures: failures * 10)
    def fail() -> None:
        ran.append(walrq.current().attempts)
        raise ValueError("again")

    fail.enqueue()
    running.start(worker)
    for attempt, wait in enumerate((10, 20, 30)):
        until(lambda attempt=attempt: attempt + 1 == len(ran))  # type: ignore[misc]
        until(lambda: [1] == [info.delayed for info in server.queues()])
        server.clock.advance(wait - 1)
        assert attempt + 1 == len(ran)
        server.clock.advance(1.1)
    until(lambda: 1 == sum(info.dead for info in server.queues()))

    assert [0, 1, 2, 3] == ran


def test_a_backoff_that_fails_leaves_it_to_the_queue(server: Server, running: Running, lines: Lines) -> None:
    """A mistake in the policy does not lose the failure."""
    worker = running.worker()

    @worker.task(backoff=lambda failures: 1 / 0)
    def fail() -> None:
        raise ValueError("again")

    fail.enqueue()
    running.start(worker)
    until(lambda: [1] == [info.delayed for info in server.queues()])

    assert 1 == len(lines.starting("backoff_failed"))
    (failed,) = lines.starting("failed")
    assert ["failures=1", "next=queue_backoff"] == failed.getMessage().split(" ")[1:3]


def test_retry_reject_and_release(server: Server, running: Running, backend: str) -> None:
    """Three things a handler may say instead of failing."""
    worker = running.worker()
    client = server.connect()
    released: list[int] = []

    @worker.task(queue="retry")
    def retry() -> None:
        raise walrq.Retry("rate limited", delay=3600)

    @worker.task(queue="reject")
    async def reject() -> None:
        raise walrq.Reject("no such customer")

    @worker.task(queue="release")
    def release() -> None:
        released.append(walrq.current().attempts)
        if len(released) < 3:
            raise walrq.Release("not here")

    retry.enqueue()
    reject.enqueue()
    release.enqueue()
    running.start(worker, backend)
    why = dead(server, "reject")
    until(lambda: 1 == client.show_queue("retry").delayed)
    until(lambda: empty(server, "release"))
    (delayed,) = client.peek("retry", "delayed")

    assert ("rejected", "Reject") == (why.reason, why.history[-1].error_type)
    assert (why.history[-1].error_text or "").startswith("no such customer")
    assert 1 == delayed.attempts
    assert delayed.due_at is not None
    assert 3500 < (delayed.due_at - server.clock.now).total_seconds() <= 3600
    assert [0, 0, 0] == released
    with pytest.raises(walrq.WalrqError):
        walrq.Retry(delay=-1)


def test_messages_that_are_no_calls_are_rejected_with_the_reason(server: Server, running: Running) -> None:
    """No attempt would ever succeed, and the worker goes on."""
    worker = running.worker()

    @worker.task(queue="q")
    def known(a: int) -> None:
        """Does nothing."""

    client = server.connect()
    name = {"walrq-task": "known"}
    client.push("q", b"hello")
    client.push("q", b"hello", headers=name)
    client.push("q", b"", headers={"walrq-task": "gone"})
    client.push("q", cbor2.dumps([[], {"b": 1}]), headers=name)
    running.start(worker)
    until(lambda: 4 == len(client.list_dead("q")))
    texts = [(each.history[-1].error_text or "").splitlines()[0] for each in client.list_dead("q")]

    assert {"rejected"} == {each.reason for each in client.list_dead("q")}
    assert any("without the header walrq-task" in text for text in texts)
    assert any("not the call of a task" in text for text in texts)
    assert any("knows no task 'gone' on queue 'q'; it knows known" in text for text in texts)
    assert any("does not fit the function of this worker: task 'known'" in text for text in texts)


def test_a_handler_takes_plain_messages(server: Server, running: Running, backend: str) -> None:
    """For what other programs push."""
    worker = running.worker()
    seen: list[tuple[str | None, bytes]] = []

    @worker.handler(queue="raw")
    async def asynchronous(message: walrq.Message) -> None:
        seen.append((walrq.current().task, message.payload))

    @worker.handler(queue="other")
    def sync(message: walrq.Message) -> None:
        seen.append((walrq.current().task, message.payload))
        if len(seen) < 3:
            raise walrq.Retry(delay=0)

    client = server.connect()
    client.push("raw", b"a")
    client.push("other", b"b")
    running.start(worker, backend)
    until(lambda: empty(server, "raw") and empty(server, "other"))

    assert {(None, b"a"), (None, b"b")} == set(seen)


def test_middleware_surrounds_both_kinds_in_order(server: Server, running: Running, backend: str) -> None:
    """The first declared is outermost; it sees results and errors."""
    worker = running.worker()
    events: list[str] = []

    def declare(name: str) -> None:
        @worker.middleware
        async def around(context: walrq.Context, call_next: CallNext) -> Any:
            events.append(f"{name} before {context.task}")
            try:
                found = await call_next()
            except ValueError:
                events.append(f"{name} caught")
                raise
            events.append(f"{name} after {found}")
            return found

    declare("outer")
    declare("inner")

    @worker.task
    def sync() -> str:
        return "s"

    @worker.task
    async def asynchronous() -> str:
        return "a"

    @worker.task(retries=0)
    def fail() -> None:
        raise ValueError("x")

    running.start(worker, backend, concurrency=1)
    for task in (sync, asynchronous):
        task.enqueue()
        until(lambda: empty(server, "default"))
    fail.enqueue()
    dead(server, "default")

    assert [
        ["outer before sync", "inner before sync", "inner after s", "outer after s"],
        ["outer before asynchronous", "inner before asynchronous", "inner after a", "outer after a"],
        ["outer before fail", "inner before fail", "inner caught", "outer caught"],
    ] == [events[:4], events[4:8], events[8:]]


def test_middleware_may_keep_a_message_from_its_handler(server: Server, running: Running) -> None:
    """What it raises counts as the handler's; what it swallows is done."""
    worker = running.worker()
    ran: list[str] = []

    @worker.middleware
    async def gate(context: walrq.Context, call_next: CallNext) -> Any:
        if "skip" in context.headers:
            return None
        raise walrq.Reject("not today")

    @worker.task
    def run() -> None:
        ran.append("ran")

    run.options(headers={"skip": True}).enqueue()
    run.enqueue()
    running.start(worker)
    dead(server, "default")

    assert [] == ran
    (info,) = [info for info in server.queues() if info.name == "default"]
    until(lambda: 0 == sum(info.leased for info in server.queues()))
    assert (1, 0) == (info.dead, info.ready)


def test_the_lifespan_is_around_all_handlers(server: Server, running: Running, backend: str) -> None:
    """Opened before the first, closed after the last, in reverse order."""
    worker = running.worker()
    events: list[str] = []

    @worker.on_startup
    async def first() -> None:
        events.append("startup")

    @worker.lifespan
    async def resources() -> AsyncIterator[None]:
        events.append("open")
        yield
        events.append("close")

    @worker.on_shutdown
    def last() -> None:
        events.append("shutdown")

    @worker.task
    def run() -> None:
        events.append("ran")

    run.enqueue()
    started = running.start(worker, backend)
    until(lambda: empty(server, "default"))
    started.stop()

    assert ["startup", "open", "ran", "shutdown", "close"] == events


def test_a_lifespan_that_fails_ends_the_worker_with_its_error(running: Running, backend: str) -> None:
    """As it was raised, not inside a group; nothing is leased before."""
    worker = running.worker()

    @worker.on_startup
    def fail() -> None:
        raise OSError("no database")

    @worker.task
    def run() -> None:
        """Does nothing."""

    with pytest.raises(OSError, match="no database"):
        running.start(worker, backend).wait()


def test_tasks_enqueue_tasks(server: Server, running: Running, backend: str) -> None:
    """From the loop over the worker's own connection, from a thread over the blocking one."""
    worker = running.worker()
    seen: list[str] = []

    @worker.task
    def leaf(text: str) -> None:
        seen.append(text)

    @worker.task
    async def asynchronous() -> None:
        assert worker.client_here() is not None
        await leaf.aenqueue("from the loop")

    @worker.task
    def sync() -> None:
        leaf.enqueue("from a thread")

    asynchronous.enqueue()
    sync.enqueue()
    running.start(worker, backend)
    until(lambda: 2 == len(seen))

    assert {"from the loop", "from a thread"} == set(seen)


def test_no_more_run_at_a_time_than_allowed(server: Server, running: Running, backend: str) -> None:
    """Of a task, and in all."""
    worker = running.worker(concurrency=3)
    lock = threading.Lock()
    now: dict[str, int] = {"all": 0, "one": 0}
    most: dict[str, int] = {"all": 0, "one": 0}
    pause = threading.Event()

    def work(*names: str) -> None:
        with lock:
            for name in names:
                now[name] += 1
                most[name] = max(most[name], now[name])
        pause.wait(0.005)
        with lock:
            for name in names:
                now[name] -= 1

    @worker.task(concurrency=1)
    def one() -> None:
        work("all", "one")

    @worker.task
    def free() -> None:
        work("all")

    one.enqueue_many([one.call() for _ in range(10)])
    free.enqueue_many([free.call() for _ in range(20)])
    running.start(worker, backend)
    until(lambda: empty(server, "default"))

    assert {"all": 3, "one": 1} == most


def test_only_the_queues_asked_for_are_served(server: Server, running: Running) -> None:
    """Workers of one application divide its queues."""
    worker = running.worker()
    ran: list[str] = []

    @worker.task(queue="a")
    def first() -> None:
        ran.append("a")

    @worker.task(queue="b")
    def second() -> None:
        ran.append("b")

    first.enqueue()
    second.enqueue()
    running.start(worker, queues=["b"])
    until(lambda: empty(server, "b"))

    assert ["b"] == ran
    assert not empty(server, "a")


def test_a_worker_runs_once_at_a_time(running: Running) -> None:
    """And again after it has ended."""
    worker = running.worker()

    @worker.task
    def run() -> None:
        """Does nothing."""

    started = running.start(worker)
    with pytest.raises(RuntimeError, match="running already"):
        running.start(worker).wait()
    with pytest.raises(RuntimeError, match="stop it first"):
        worker.connect_to("walrq://127.0.0.1:1")
    assert 0 == started.stop()
    assert 0 == running.start(worker).stop()


def test_ids_are_in_every_line_and_payloads_in_none(server: Server, running: Running, lines: Lines) -> None:
    """In the text for people, as fields for programs; with a queue whose name looks like a format."""
    worker = running.worker(queue="100%d")

    @worker.task
    def run(secret: str) -> None:
        walrq.current().log.info("half 50%")
        walrq.current().log.warning("did %d%%", 100, extra={"own": 1})
        raise walrq.Retry("later", delay=1000)

    message_id = run.enqueue("hunter2")
    running.start(worker)
    until(lambda: bool(lines.starting("retry")))
    named = f"task=run queue=100%d message={message_id} delivery=1"
    (half,), (did,), (retry,) = lines.starting("half"), lines.starting("did"), lines.starting("retry")

    assert f"half 50% {named}" == half.getMessage()
    assert f"did 100% {named}" == did.getMessage()
    assert 1 == vars(did)["own"]
    for record in (half, did, retry):
        fields = ("run", "100%d", message_id, 1)
        assert fields == tuple([vars(record)[name] for name in ("task", "queue", "message_id", "delivery")])
        assert named in record.getMessage()
    assert "run" == half.funcName
    assert not any("hunter2" in record.getMessage() for record in lines.records)


def test_a_cancelled_serve_gives_everything_back(server: Server, running: Running, backend: str) -> None:
    """An application that ends cancels its tasks; what ran and what waited is free for others at once."""
    worker = running.worker(concurrency=1, prefetch=5)
    events: list[str] = []

    @worker.task
    async def wait() -> None:
        events.append("begin")
        try:
            await anyio.sleep_forever()
        finally:
            events.append("cancelled")

    wait.enqueue_many([wait.call() for _ in range(3)])

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.serve)
            await anyio.to_thread.run_sync(until, lambda: bool(events))
            await anyio.to_thread.run_sync(until, lambda: 3 == sum(info.leased for info in server.queues()))
            tasks.cancel_scope.cancel()

    anyio.run(main, backend=backend)
    messages = server.connect().poll("default")

    assert ["begin", "cancelled"] == events
    assert [0, 0, 0] == [message.attempts for message in messages]


def test_a_thread_that_a_cancellation_leaves_behind_keeps_its_lease_to_itself(
    server: Server, running: Running, backend: str, lines: Lines
) -> None:
    """It cannot be ended, and it may still be at work: nobody else gets its message before the lease is over."""
    worker = running.worker()
    go = threading.Event()
    begun = threading.Event()

    @worker.task
    def wait() -> None:
        begun.set()
        go.wait(30)

    wait.enqueue()

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.serve)
            await anyio.to_thread.run_sync(begun.wait)
            tasks.cancel_scope.cancel()

    try:
        if backend == "asyncio":
            # Here the loop waits for its threads when it closes.
            threading.Timer(0.3, go.set).start()
        anyio.run(main, backend=backend)
        assert 1 == server.connect().show_queue("default").leased
        server.clock.advance(31)
        (message,) = server.connect().poll("default")
    finally:
        go.set()

    assert 1 == message.attempts
    assert 1 == len(lines.starting("abandoned"))


def test_a_lease_that_may_be_over_before_its_turn_is_given_back(
    server: Server, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to a poll may come late: the message is not started, and costs nothing."""
    worker = running.worker()
    ran: list[tuple[int, int]] = []

    @worker.task
    def note() -> None:
        ran.append((walrq.current().delivery, walrq.current().attempts))

    remaining = walrq.Message.remaining
    late = iter([True])
    monkeypatch.setattr(
        walrq.Message,
        "remaining",
        property(lambda message: -1.0 if next(late, False) else remaining.fget(message)),  # type: ignore[attr-defined]
    )
    note.enqueue()
    running.start(worker)
    until(lambda: empty(server, "default"))

    assert [(2, 0)] == ran


def test_a_signal_that_comes_twice_at_once_is_one(server: Server, running: Running) -> None:
    """A terminal sends Ctrl-C to everybody, and a parent passes its own on."""
    worker = running.worker(stop_timeout=30)
    ended: list[str] = []

    @worker.task
    async def note() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        await anyio.to_thread.run_sync(until, empty_but_one)
        ended.append("in peace")

    def empty_but_one() -> bool:
        return 1 == sum(info.ready for info in server.queues())

    worker.task(name="later")(lambda: None)
    note.options(priority=1).enqueue()
    worker.tasks["later"].enqueue()

    assert 0 == worker.run(concurrency=1)
    assert ["in peace"] == ended
