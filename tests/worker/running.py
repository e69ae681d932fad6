"""Workers of a test: each runs in a thread of its own, against the test's server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Literal, cast

import anyio
import attrs

import walrq
from walrq.testing.server import Server

SECONDS_MAX = 120.0


@attrs.define(eq=False)
class Run:
    """One run of a worker."""

    worker: walrq.Worker
    thread: threading.Thread
    ready: threading.Event
    ended: list[int | BaseException]

    def stop(self) -> int:
        """Ask it to end, wait, and return its exit status; raises what it ended with."""
        self.worker.stop()
        return self.wait()

    def wait(self) -> int:
        """Wait for its end and return its exit status; raises what it ended with."""
        self.thread.join(SECONDS_MAX)
        assert not self.thread.is_alive(), "the worker does not end"
        (found,) = self.ended
        if isinstance(found, BaseException):
            raise found
        return found


class Running:
    """Starts workers; leaving it stops them."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._runs: list[Run] = []
        self._workers: list[walrq.Worker] = []

    def worker(self, *, client: dict[str, Any] | None = None, **settings: Any) -> walrq.Worker:
        """A worker of the server, on its clock; it runs once it is started."""
        config = walrq.ClientConfig(clock=self.server.clock, **(client or {}))
        worker = walrq.Worker(self.server.url, config=config, **settings)
        self._workers.append(worker)
        return worker

    def start(self, worker: walrq.Worker, backend: str = "trio", **wishes: Any) -> Run:
        """Run it in a thread; returns when it asks for messages."""
        ready = threading.Event()
        ended: list[int | BaseException] = []
        worker.on_startup(ready.set)

        def work() -> None:
            try:
                plan = worker.plan(**wishes)
                ended.append(anyio.run(worker.serve, plan, backend=cast(Literal["trio", "asyncio"], backend)))
            except BaseException as error:  # noqa: BLE001 - raised again by `wait`
                ended.append(error)
            ready.set()

        run = Run(worker, threading.Thread(target=work, name="worker"), ready, ended)
        self._runs.append(run)
        run.thread.start()
        assert ready.wait(SECONDS_MAX)
        return run

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        for run in self._runs:
            if run.thread.is_alive():
                run.worker.stop()
                run.worker.stop()
        for run in self._runs:
            run.thread.join(SECONDS_MAX)
            assert not run.thread.is_alive(), "the worker does not end"
        for worker in self._workers:
            worker.close()


def until(condition: Callable[[], bool], what: str = "it") -> None:
    """Wait until a condition is met that another thread brings about."""
    pause = threading.Event()
    for _ in range(int(SECONDS_MAX / 0.005)):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError(f"{what} did not happen within {SECONDS_MAX} s")


def empty(server: Server, queue: str) -> bool:
    """Whether nothing is left of what a queue had."""
    for info in server.queues():
        if info.name == queue:
            return 0 == info.ready + info.delayed + info.leased + info.parked + info.dead
    return True


class Lines(logging.Handler):
    """Collects what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def starting(self, event: str) -> list[logging.LogRecord]:
        """Records of one event."""
        return [record for record in self.records if record.getMessage().split(" ", 1)[0] == event]
