"""Tasks in a test: enqueued as in production, run by the real worker, done when the call returns."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import walrq
from walrq.errors import ConfigError
from walrq.testing.running import Runner
from walrq.testing.server import Server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server() as running:
        monkeypatch.setenv("WALRQ_SERVER", running.url)
        running.clock.lead(walrq.ClientConfig().clock)
        try:
            yield running
        finally:
            running.clock.let_go(walrq.ClientConfig().clock)


@pytest.fixture
def run(server: Server) -> Runner:
    return Runner(server)


@pytest.fixture
def worker() -> Iterator[walrq.Worker]:
    made = walrq.Worker(queue="jobs")
    yield made
    made.close()


def left(server: Server) -> dict[str, tuple[int, int, int, int]]:
    """(ready, delayed, leased, dead) by queue, of those that are not empty."""
    found = {queue.name: (queue.ready, queue.delayed, queue.leased, queue.dead) for queue in server.queues()}
    return {name: counts for name, counts in found.items() if any(counts)}


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_enqueued_tasks_have_run_when_it_returns(
    server: Server, run: Runner, worker: walrq.Worker, backend: str
) -> None:
    """Functions in threads and coroutines, and what they enqueue themselves."""
    done: list[str] = []

    @worker.task
    def first(name: str) -> None:
        done.append(f"first {name}")
        second.enqueue(name)

    @worker.task(queue="other")
    async def second(name: str) -> None:
        done.append(f"second {name}")

    for name in "ab":
        first.enqueue(name)
    run(worker, backend=backend)  # type: ignore[arg-type]

    assert ["first a", "first b", "second a", "second b"] == sorted(done)
    assert {} == left(server)


def test_nothing_to_do_ends_at_once(run: Runner, worker: walrq.Worker) -> None:
    """Also when the queues are not there yet."""

    @worker.task
    def task() -> None: ...

    assert 0 == run(worker)


def test_what_is_not_due_stays_unless_time_is_given(server: Server, run: Runner, worker: walrq.Worker) -> None:
    """A delay of an hour and the waits between attempts pass when they may, as far as they may."""
    done: list[str] = []
    tries: list[int] = []

    @worker.task
    def remind(name: str) -> None:
        done.append(name)

    @worker.task(retries=5, backoff=60)
    def flaky() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("not yet")

    remind.options(delay=3600).enqueue("ann")
    flaky.enqueue()
    run(worker)
    first = (list(done), len(tries), left(server))
    run(worker, advance=1800)
    second = (list(done), len(tries), left(server))
    advanced = run(worker, advance=7200)

    assert ([], 1, {"jobs": (0, 2, 0, 0)}) == first
    assert ([], 3, {"jobs": (0, 1, 0, 0)}) == second
    assert (["ann"], 3, {}) == (done, len(tries), left(server))
    assert 0 < advanced <= 1800.01


def test_a_task_that_always_fails_is_dead_in_the_end(server: Server, run: Runner, worker: walrq.Worker) -> None:
    """It fails no test by itself: what became of it is there to be looked at."""

    @worker.task(retries=2)
    def broken() -> None:
        raise ValueError("no such user")

    broken.enqueue()
    run(worker, advance=600)

    (dead,) = server.connect().list_dead("jobs")
    assert ("failed", 3) == (dead.reason, dead.attempts)


def test_a_handler_that_does_not_end_is_given_up_with_a_report(
    server: Server, run: Runner, worker: walrq.Worker
) -> None:
    """No test hangs: it says what is where."""
    stop = threading.Event()

    @worker.task
    def stuck() -> None:
        stop.wait(20)

    stuck.enqueue()
    try:
        with pytest.raises(AssertionError, match=r"(?s)do not become empty.*jobs"):
            run(worker, patience_s=0.3)
    finally:
        stop.set()


def test_only_some_queues(server: Server, run: Runner, worker: walrq.Worker) -> None:
    """The others wait for another run."""
    done: list[str] = []

    @worker.task(queue="one")
    def one() -> None:
        done.append("one")

    @worker.task(queue="two")
    def two() -> None:
        done.append("two")

    one.enqueue()
    two.enqueue()
    run(worker, queues=["two"])

    assert ["two"] == done
    assert {"one": (1, 0, 0, 0)} == left(server)
    with pytest.raises(ConfigError, match="three"):
        run(worker, queues=["three"])


def test_a_worker_with_an_address_of_its_own_is_given_the_test_s(server: Server, run: Runner) -> None:
    """And has its own again afterwards: no test reaches the address that was written for production."""
    worker = walrq.Worker("walrq://127.0.0.1:9", queue="jobs")
    done: list[bytes] = []

    @worker.handler(queue="jobs")
    def handle(message: walrq.Message) -> None:
        done.append(message.payload)

    server.connect().push("jobs", "x")
    run(worker)

    assert [b"x"] == done
    assert "walrq://127.0.0.1:9" == worker.url


def test_what_ends_a_worker_is_raised(run: Runner, worker: walrq.Worker) -> None:
    """A broken start-up hook is the test's failure, not a run that never ends."""

    @worker.task
    def task() -> None: ...

    @worker.on_startup
    def broken() -> None:
        raise RuntimeError("no database")

    task.enqueue()
    with pytest.raises(RuntimeError, match="no database"):
        run(worker)
