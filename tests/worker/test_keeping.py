"""Leases are kept for as long as it takes, and a lost one is said and ends the work: on a clock that is moved."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

import walrq
from tests.requirements import require
from tests.worker.running import Lines, Running, empty, until
from walrq.testing.server import Server


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


class Gate:
    """Holds a handler until the test lets it go, and counts who came."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()
        self.came = 0

    def hold(self) -> None:
        """In a handler."""
        self.came += 1
        self.entered.release()
        assert self.open.wait(30)

    def wait_entered(self) -> None:
        """In the test."""
        assert self.entered.acquire(timeout=30)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Open at the latest when the test ends."""
    made = Gate()
    yield made
    made.open.set()


@pytest.mark.parametrize("behind", [0, 20])
@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_ten_minutes_on_a_lease_of_thirty_seconds_run_once(
    server: Server, running: Running, backend: str, gate: Gate, behind: int, kind: str
) -> None:
    """In a thread, and in the event loop that it blocks; with twenty leased messages behind it, which run once too."""
    worker = running.worker(concurrency=1, prefetch=20, lease=30)
    ran: list[tuple[int, int]] = []

    def work(number: int) -> None:
        ran.append((number, walrq.current().delivery))
        if number == 0:
            gate.hold()

    @worker.task(name="thread")
    def thread(number: int) -> None:
        work(number)

    @worker.task(name="loop")
    async def loop(number: int) -> None:
        work(number)

    task = worker.tasks[kind]
    task.enqueue_many([task.call(number) for number in range(1 + behind)])
    run = running.start(worker, backend)
    gate.wait_entered()
    until(lambda: 1 + behind == sum(info.leased for info in server.queues()), "prefetch")

    server.clock.advance(600)
    assert [] == server.connect().poll("default"), "another worker gets none of them"
    gate.open.set()
    until(lambda: empty(server, "default"))

    assert [(number, 1) for number in range(1 + behind)] == ran
    assert 0 == run.stop()


def test_a_lost_lease_cancels_a_coroutine(
    server: Server, running: Running, backend: str, gate: Gate, lines: Lines
) -> None:
    """It is told at the next extension, and its result is not acknowledged."""
    worker = running.worker(lease=30)
    events: list[str] = []

    @worker.task
    async def wait() -> None:
        gate.came += 1
        gate.entered.release()
        try:
            await anyio.sleep_forever()
        finally:
            events.append(f"lost {walrq.current().lease_lost}")

    wait.enqueue()
    run = running.start(worker, backend)
    gate.wait_entered()
    server.connect().purge_queue("default")
    server.clock.advance(11)
    until(lambda: bool(events))

    assert ["lost True"] == events
    (record,) = lines.starting("lease_lost")
    assert "while it ran" in record.getMessage()
    assert 0 == run.stop()
    assert [] == lines.starting("ack_refused")


def test_a_lost_lease_is_told_to_a_thread(server: Server, running: Running, gate: Gate, lines: Lines) -> None:
    """`check` raises there; what it does after that is not acknowledged."""
    worker = running.worker(lease=30)
    found: list[str] = []

    @worker.task
    def wait(obeys: bool) -> None:
        gate.hold()
        here = walrq.current()
        until(lambda: here.lease_lost)
        with pytest.raises(walrq.LeaseLost) as caught:
            here.extend(60)
        found.append(str(caught.value))
        if obeys:
            here.check()

    wait.enqueue(True)
    wait.enqueue(False)
    run = running.start(worker)
    gate.wait_entered()
    gate.wait_entered()
    server.connect().purge_queue("default")
    server.clock.advance(11)
    gate.open.set()
    until(lambda: 1 == len(lines.starting("result_dropped")) and 2 == len(found))

    assert 0 == run.stop()
    assert [] == lines.starting("ack_refused"), "nothing was asked of the server"
    assert 2 == len(lines.starting("lease_lost"))
    assert all("the lease is over" in text for text in found)
    assert [] == lines.starting("failed")


def test_a_keeper_with_nothing_to_do_wakes_up_for_a_new_lease(server: Server, running: Running, gate: Gate) -> None:
    """In real time, where nobody moves the clock: a third of a second after the receipt."""
    worker = running.worker(lease=1.0)
    ran: list[int] = []

    @worker.task
    def wait() -> None:
        message = walrq.current().message
        first = message.deadline
        until(lambda: message.deadline > first or walrq.current().lease_lost)
        ran.append(message.delivery)

    running.start(worker)
    wait.enqueue()
    until(lambda: empty(server, "default"))

    assert [1] == ran


def test_an_extension_by_hand_finds_the_loss_at_once(server: Server, running: Running, gate: Gate) -> None:
    """Before a long piece of work a handler may make sure."""
    worker = running.worker(lease=30)
    raised: list[type[BaseException]] = []

    @worker.task
    def wait() -> None:
        gate.hold()
        try:
            walrq.current().extend(600)
        except walrq.LeaseLost as error:
            raised.append(type(error))
            raise

    wait.enqueue()
    running.start(worker)
    gate.wait_entered()
    server.connect().purge_queue("default")
    gate.open.set()
    until(lambda: bool(raised))

    assert [walrq.LeaseLost] == raised


def test_a_handler_that_burns_the_interpreter_keeps_its_lease(server: Server, running: Running, gate: Gate) -> None:
    """Python code that never rests leaves the keeper its share of the interpreter."""
    worker = running.worker(lease=30, concurrency=2)
    ran: list[int] = []
    stop = threading.Event()

    @worker.task
    def burn() -> None:
        ran.append(walrq.current().delivery)
        gate.entered.release()
        while not stop.is_set():
            sum(range(1000))

    burn.enqueue_many([burn.call(), burn.call()])
    running.start(worker)
    gate.wait_entered()
    gate.wait_entered()
    server.clock.advance(45)
    stop.set()
    until(lambda: empty(server, "default"))

    assert [1, 1] == ran


def test_a_keeper_that_was_held_up_itself_says_so(running: Running, server: Server, lines: Lines) -> None:
    """C code that keeps the interpreter's lock beyond the lease: the loss is logged, and the handler is told. The
    lease is the shortest there is, in real time."""
    require("linux")
    worker = running.worker(lease=0.06, concurrency=1)
    frozen = ctypes.PyDLL(None)  # unlike CDLL it keeps the lock during calls
    told: list[bool] = []

    @worker.task(retries=5, backoff=0)
    def freeze() -> None:
        here = walrq.current()
        if here.delivery == 1:
            frozen.usleep(90_000)
            until(lambda: here.lease_lost)
            told.append(here.lease_lost)
            here.check()

    freeze.enqueue()
    running.start(worker)
    until(lambda: empty(server, "default"))

    assert [True] == told
    record = lines.starting("lease_lost")[0]
    assert "something kept the interpreter (the GIL) or the machine" in record.getMessage()


def test_a_timeout_cancels_a_coroutine(server: Server, running: Running, backend: str, gate: Gate) -> None:
    """The attempt failed, and says why; on the moved clock."""
    worker = running.worker()

    @worker.task(timeout=60, retries=0)
    async def wait() -> None:
        gate.entered.release()
        await anyio.sleep_forever()

    wait.enqueue()
    running.start(worker, backend)
    gate.wait_entered()
    client = server.connect()
    server.clock.advance(59)
    assert [] == client.list_dead("default")
    server.clock.advance(1.5)
    until(lambda: bool(client.list_dead("default")))
    last = client.list_dead("default")[0].history[-1]

    assert ("TaskTimeout", "the handler did not finish within its timeout of 60 s") == (
        last.error_type,
        last.error_text,
    )


def test_a_timeout_is_told_to_a_thread(server: Server, running: Running, gate: Gate, lines: Lines) -> None:
    """One that asks stops with a failure; one that does not ask and finishes has done its work."""
    worker = running.worker()

    @worker.task(timeout=60, retries=0)
    def wait(asks: bool) -> None:
        gate.hold()
        here = walrq.current()
        until(lambda: here.timed_out)
        if asks:
            here.check()

    wait.enqueue(True)
    wait.enqueue(False)
    running.start(worker)
    gate.wait_entered()
    gate.wait_entered()
    server.clock.advance(61)
    gate.open.set()
    client = server.connect()
    until(lambda: 1 == len(client.list_dead("default")) and 0 == client.show_queue("default").leased)

    assert "TaskTimeout" == client.list_dead("default")[0].history[-1].error_type
    assert 1 == len(lines.starting("finished_late"))


def test_a_timeout_travels_with_its_message(server: Server, running: Running, gate: Gate) -> None:
    """What the caller asks for wins over what the worker's code says."""
    worker = running.worker()

    @worker.task(timeout=60, retries=0)
    async def wait() -> None:
        gate.entered.release()
        await anyio.sleep_forever()

    wait.options(timeout=5).enqueue()
    running.start(worker)
    gate.wait_entered()
    client = server.connect()
    server.clock.advance(5.5)
    until(lambda: bool(client.list_dead("default")))

    assert "timeout of 5 s" in (client.list_dead("default")[0].history[-1].error_text or "")


def test_through_an_outage_as_long_as_the_lease_the_work_is_ended(
    server: Server, running: Running, gate: Gate, lines: Lines
) -> None:
    """Nobody can be asked, and by now the message may be somebody else's."""
    patience: dict[str, Any] = {"timeout_s": 0.1, "retry_first_s": 0.01, "retry_max_s": 0.02}
    worker = running.worker(lease=30, client=patience)
    events: list[str] = []

    @worker.task
    async def wait() -> None:
        if walrq.current().delivery > 1:
            return
        gate.entered.release()
        try:
            await anyio.sleep_forever()
        finally:
            events.append("cancelled")

    wait.enqueue()
    run = running.start(worker)
    gate.wait_entered()
    with server.faults.refuse_connections():
        server.faults.cut_connections()
        server.clock.advance(31)
        until(lambda: bool(events))
    until(lambda: empty(server, "default"))

    assert ["cancelled"] == events
    assert "no server could be reached" in lines.starting("lease_lost")[0].getMessage()
    assert 0 == run.stop()


def test_an_outage_shorter_than_the_lease_costs_nothing(server: Server, running: Running, gate: Gate) -> None:
    """The keeper tries again until it is over."""
    patience: dict[str, Any] = {"timeout_s": 0.5, "retry_first_s": 0.01, "retry_max_s": 0.02}
    worker = running.worker(lease=30, client=patience)
    ran: list[int] = []

    @worker.task
    def wait() -> None:
        ran.append(walrq.current().delivery)
        gate.hold()

    wait.enqueue()
    running.start(worker)
    gate.wait_entered()
    for _ in range(3):
        with server.faults.refuse_connections():
            server.faults.cut_connections()
            server.clock.advance(11)
        server.clock.advance(20)
    gate.open.set()
    until(lambda: empty(server, "default"))

    assert [1] == ran
