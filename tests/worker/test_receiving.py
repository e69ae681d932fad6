"""Messages are received beside the event loop: what arrives while it is blocked is kept, and given back at a stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import anyio
import pytest

import walrq
from tests.worker.running import Lines, Running, empty, until
from walrq.client import blocking
from walrq.client.config import resolve
from walrq.client.failures import ServerUnreachable
from walrq.errors import InvalidArgument
from walrq.testing.server import Server
from walrq.worker import mailbox as mailbox_module
from walrq.worker import receiving
from walrq.worker.keeper import Keeper
from walrq.worker.mailbox import Mailbox, Watch
from walrq.worker.receiving import Receiver

LEASE_S = 30.0


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


class Site:
    """A worker whose first task blocks the event loop until the test lets it go."""

    def __init__(self, running: Running) -> None:
        self.worker = running.worker(concurrency=8, lease=LEASE_S)
        self.entered = threading.Event()
        self.open = threading.Event()
        self.ran: list[tuple[int, int]] = []

        @self.worker.task
        async def block() -> None:
            self.entered.set()
            assert self.open.wait(30)

        @self.worker.task(retries=0)
        async def once(number: int) -> None:
            self.ran.append((number, walrq.current().delivery))

        self.block, self.once = block, once


@pytest.fixture
def site(running: Running) -> Iterator[Site]:
    """The loop is free at the latest when the test ends."""
    made = Site(running)
    yield made
    made.open.set()


def test_what_arrives_while_the_loop_is_blocked_is_kept_and_runs_once(
    server: Server, running: Running, backend: str, site: Site
) -> None:
    """Twenty leases long: nobody has taken it in, and yet nobody else gets it, and no attempt is counted."""
    run = running.start(site.worker, backend)
    site.block.enqueue()
    assert site.entered.wait(30)
    site.once.enqueue_many([site.once.call(number) for number in range(3)])
    until(lambda: 4 == sum(info.leased for info in server.queues()), "receipt")

    server.clock.advance(20 * LEASE_S)
    assert [] == server.connect().poll("default"), "another worker gets none of them"
    site.open.set()
    until(lambda: empty(server, "default"))

    assert [(0, 1), (1, 1), (2, 1)] == sorted(site.ran)
    assert 0 == run.stop()


def test_what_arrives_just_before_a_stop_goes_back(server: Server, running: Running, backend: str, site: Site) -> None:
    """Received, not taken in by the blocked loop, and never started: another worker has it at once, free of charge."""
    run = running.start(site.worker, backend)
    site.block.enqueue()
    assert site.entered.wait(30)
    site.once.enqueue_many([site.once.call(number) for number in range(3)])
    until(lambda: 4 == sum(info.leased for info in server.queues()), "receipt")

    site.worker.stop()
    site.open.set()

    assert 0 == run.wait()
    assert [] == site.ran
    again = server.connect().poll("default")
    assert [0, 0, 0] == [message.attempts for message in again]


def test_a_cancellation_gives_back_what_the_loop_has_not_taken_in(server: Server, backend: str, site: Site) -> None:
    """Also when the loop is blocked at that moment."""
    cancelled = threading.Event()

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(site.worker.serve)
            await anyio.to_thread.run_sync(site.entered.wait)
            tasks.cancel_scope.cancel()
        cancelled.set()

    thread = threading.Thread(target=lambda: anyio.run(main, backend=backend))
    site.block.enqueue()
    thread.start()
    assert site.entered.wait(30)
    site.once.enqueue_many([site.once.call(number) for number in range(3)])
    until(lambda: 4 == sum(info.leased for info in server.queues()), "receipt")
    site.open.set()
    thread.join(30)

    assert cancelled.is_set()
    again = [message for message in server.connect().poll("default") if message.headers["walrq-task"] == "once"]
    assert 3 == len(again) + len(site.ran)
    assert {0} >= {message.attempts for message in again}


def test_a_poll_that_is_refused_for_good_ends_the_worker_with_its_error(
    running: Running, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the server said it, not inside a group."""
    worker = running.worker()
    worker.task(name="noop")(lambda: None)

    def refuse(*_: object, **__: object) -> None:
        raise InvalidArgument("no such thing")

    monkeypatch.setattr(blocking.Client, "poll_batch", refuse)

    with pytest.raises(InvalidArgument, match="no such thing"):
        running.start(worker, backend).wait()


class Beside:
    """A receiver in a thread, and a loop that only notes."""

    def __init__(self, server: Server) -> None:
        config = walrq.ClientConfig(clock=server.clock)
        endpoints, config = resolve(server.url, config, {})
        self.mailbox = Mailbox()
        self.keeper = Keeper(endpoints, config, LEASE_S, self.mailbox)
        self.receiver = Receiver(endpoints, config, LEASE_S, self.keeper, self.mailbox, lambda: None)
        self.heard = 0
        self.mailbox.post = self._post  # type: ignore[method-assign]
        self.thread = threading.Thread(target=self.receiver.run)
        self.thread.start()

    def _post(self, call: object) -> None:
        self.heard += 1

    def close(self) -> None:
        """The thread has ended when this returns."""
        self.receiver.stop()
        self.thread.join(30)
        assert not self.thread.is_alive()
        self.keeper.close()
        self.mailbox.close()


@pytest.fixture
def beside(server: Server) -> Iterator[Beside]:
    """Ended at the end."""
    made = Beside(server)
    yield made
    made.close()


def test_an_ask_that_is_ended_is_heard_of_and_the_next_one_gets_messages(server: Server, beside: Beside) -> None:
    """So a queue that has room again is asked for at once, not when the long poll of the others is over."""
    beside.receiver.ask(["other"], 5)
    until(lambda: beside.receiver._client.connected, "connection")
    beside.receiver.end_ask()
    until(lambda: 1 == beside.heard)
    assert 0 == len(beside.receiver.arrived)

    server.connect().push("mail", "x")
    beside.receiver.ask(["mail"], 5)
    until(lambda: 2 == beside.heard)
    (held,) = beside.receiver.arrived

    assert b"x" == held.message.payload
    assert held in beside.keeper._ledger, "its lease is kept before the loop hears of it"


def test_an_ask_that_is_ended_before_it_began_leases_nothing(server: Server, beside: Beside) -> None:
    """The loop may change its mind at any time."""
    server.connect().push("mail", "x")
    beside.receiver.ask(["mail"], 5)
    beside.receiver.end_ask()
    until(lambda: 1 == beside.heard)
    arrived = len(beside.receiver.arrived)

    until(lambda: arrived == sum(info.leased for info in server.queues()))


def test_a_stop_in_a_pause_between_polls_does_not_wait_for_it(
    beside: Beside, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    """Of a worker whose server has gone, and whose pauses are long by now."""

    def gone(*_: object, **__: object) -> None:
        raise ServerUnreachable("nobody answers")

    monkeypatch.setattr(receiving, "PAUSE_S", (600.0, 600.0))
    monkeypatch.setattr(blocking.Client, "poll_batch", gone)
    beside.receiver.ask(["mail"], 1)
    until(lambda: 1 == len(lines.starting("poll_failed")))

    beside.close()


class Hands:
    """A clock whose hands the test moves, in place of `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """As of `time`."""
        return self.now


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    """For the watch."""
    made = Hands()
    monkeypatch.setattr(mailbox_module, "time", made)
    return made


class Loop(Mailbox):
    """An event loop that answers when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()

    def answer(self) -> None:
        """Deliver everything."""
        while self._news:
            self._news.popleft()()


@pytest.fixture
def loop() -> Iterator[Loop]:
    """Closed at the end."""
    made = Loop()
    yield made
    made.close()


def test_a_blockage_is_said_once_for_each_time_the_loop_does_not_answer(hands: Hands, loop: Loop, lines: Lines) -> None:
    """Longer than a third of the lease, with how long it has been."""
    watch = Watch(loop, LEASE_S)

    def pass_by(seconds: float) -> int:
        hands.now += seconds
        watch.look()
        return len(lines.starting("loop_blocked"))

    watch.look()
    assert [0, 1, 1, 1] == [pass_by(seconds) for seconds in (9.9, 0.2, 10, 100)]
    loop.answer()
    assert [1, 1, 2, 2] == [pass_by(seconds) for seconds in (10, 9, 2, 10)]
    loop.answer()
    for _ in range(5):
        assert 2 == pass_by(10)
        loop.answer()

    said = [record.getMessage() for record in lines.starting("loop_blocked")]
    assert ["loop_blocked for 10.1 s so far", "loop_blocked for 11.0 s so far"] == [text[:30] for text in said]
    assert {logging.WARNING} == {record.levelno for record in lines.records}


def test_a_machine_that_stood_still_is_not_taken_for_a_blocked_loop(hands: Hands, loop: Loop, lines: Lines) -> None:
    """The watching thread did not run either; what is still unanswered a little later is."""
    watch = Watch(loop, LEASE_S)
    watch.look()
    hands.now += 300
    watch.look()
    assert [] == lines.starting("loop_blocked")
    hands.now += 10
    watch.look()

    assert 1 == len(lines.starting("loop_blocked"))


def test_a_loop_that_has_ended_is_not_asked(hands: Hands, loop: Loop, lines: Lines) -> None:
    """A cancelled worker may still wait for the answers to its last acks."""
    watch = Watch(loop, LEASE_S)
    watch.look()
    loop.thread = None
    hands.now += 100
    watch.look()

    assert [] == lines.records


def test_a_handler_that_blocks_the_loop_is_named(server: Server, running: Running, backend: str, lines: Lines) -> None:
    """With its file and line, while it blocks; on a lease of a tenth of a second, in real time."""
    worker = running.worker(lease=0.1)

    @worker.task
    async def blocks() -> None:
        until(lambda: bool(lines.starting("loop_blocked")), "warning")

    blocks.enqueue()
    running.start(worker, backend)
    until(lambda: empty(server, "default"))
    text = lines.starting("loop_blocked")[0].getMessage()

    assert "blocks (" in text
    assert f"{__file__}:" in text
    assert "an async handler must not block" in text
