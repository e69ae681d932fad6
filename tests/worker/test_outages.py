"""Fifty cut connections: consumption resumes each time, and every job is done once.

What is scaled: the lease clock really moves on by 0.1 to 30 s during each cut; the real time of a cut, in which the
client tries to connect again, is a five-hundredth of that.
"""

from __future__ import annotations

import random
import threading
from typing import Any

from tests.worker.running import Running, empty, until
from walrq.testing.server import Server

CUTS = 50
# Longer than the longest cut: what is lost by a shorter one is shown in test_keeping.
LEASE_S = 120.0


def test_consumption_resumes_after_each_of_fifty_cuts(
    server: Server, running: Running, backend: str, rng: random.Random
) -> None:
    """Polls, acks and extensions all lose their connection, whatever is under way."""
    patience: dict[str, Any] = {"timeout_s": 0.3, "retry_first_s": 0.005, "retry_max_s": 0.02}
    worker = running.worker(lease=LEASE_S, concurrency=4, client=patience)
    done: list[int] = []
    pause = threading.Event()

    @worker.task
    def thread(number: int) -> None:
        pause.wait(0.001)
        done.append(number)

    @worker.task
    async def loop(number: int) -> None:
        done.append(number)

    producer = running.worker()
    for task in worker.tasks.values():
        producer.task(name=task.name)(task.function)
    run = running.start(worker, backend)
    pushed = 0
    for _ in range(CUTS):
        calls = rng.randint(1, 20)
        for _ in range(calls):
            task = producer.tasks[rng.choice(["thread", "loop"])]
            task.enqueue(pushed)
            pushed += 1
        seconds = rng.uniform(0.1, 30)
        before = len(done)
        with server.faults.refuse_connections():
            server.faults.cut_connections()
            server.clock.advance(seconds)
            pause.wait(seconds / 500)
        wanted = min(pushed, before + 1)
        until(lambda wanted=wanted: len(done) >= wanted, "consumption")  # type: ignore[misc]
    until(lambda: empty(server, "default"))

    assert 0 == run.stop()
    assert list(range(pushed)) == sorted(done)


def test_a_restarted_server_is_found_again(server: Server, running: Running, backend: str) -> None:
    """A crash of the node with a power loss, in the middle of the work."""
    patience: dict[str, Any] = {"timeout_s": 0.3, "retry_first_s": 0.005, "retry_max_s": 0.02}
    worker = running.worker(lease=LEASE_S, concurrency=4, client=patience)
    done: list[int] = []

    @worker.task
    async def note(number: int) -> None:
        done.append(number)

    run = running.start(worker, backend)
    for number in range(20):
        note.enqueue(number)
        if number % 5 == 4:
            server.faults.crash(seed=number)
    until(lambda: empty(server, "default"))

    assert 0 == run.stop()
    assert set(range(20)) == set(done)
