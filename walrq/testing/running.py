"""Runs a worker inside a test until its queues are empty: real worker, real engine, and done when the call returns."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

import anyio

from walrq.testing.report import describe

if TYPE_CHECKING:
    from walrq.testing.server import Server
    from walrq.worker.application import Worker
    from walrq.worker.serving import Plan

PATIENCE_S: Final = 30.0
_LOOK_S: Final = 0.001
_STOP_S: Final = 0.2
# A worker leaves a handler in a thread to itself after some seconds.
_END_S: Final = 20.0


class Runner:
    """Runs workers of one server; the fixture `walrq_run`."""

    def __init__(self, server: Server, *, reported: bool = False) -> None:
        """With `reported` somebody else shows the server of a run that fails, as the pytest plugin does."""
        self._server = server
        self._reported = reported

    def __call__(
        self,
        worker: Worker,
        *,
        queues: Sequence[str] | None = None,
        advance: float = 0.0,
        concurrency: int | None = None,
        backend: Literal["trio", "asyncio"] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> float:
        """Run `worker` until nothing is ready or under way in its queues, then stop it in good order.

        What a handler enqueues meanwhile is run as well. A handler that fails does not fail the test: its message is
        where the worker put it, waiting for its next attempt or dead.

        Args:
            worker: the application's; it is given this server's address for the run.
            queues: only these; None = all that have tasks in it.
            advance: seconds by which the clock may be advanced, from one due moment to the next, for what is delayed
                or waits for its next attempt. 0 = what is not due stays.
            concurrency: instead of the worker's own; 1 runs one handler after the other.
            backend: the event loop that async handlers run in; None = the worker's.
            patience_s: real seconds until the run is given up.

        Returns:
            Seconds by which the clock was advanced.

        Raises:
            AssertionError: the queues are not empty after `patience_s`; it says what is in them.
            ConfigError: the worker has no task for one of `queues`.
            BaseException: what ended the worker before.
        """
        plan_url = worker.url
        if plan_url is not None:
            worker.connect_to(self._server.url)
        try:
            plan = worker.plan(queues=queues, concurrency=concurrency)
            wanted = frozenset(worker.queues if queues is None else queues)
            run = _Run(worker, plan, backend or worker.backend)
            try:
                advanced = self._until_empty(run, wanted, advance, time.monotonic() + patience_s)
            except BaseException as error:
                if not run.stop():
                    error.add_note(f"{worker!r} does not end either")
                raise
            if not run.stop():
                raise AssertionError(f"{worker!r} does not end")
            run.raise_failure()
            return advanced
        finally:
            if plan_url is not None:
                worker.connect_to(plan_url)

    def _until_empty(self, run: _Run, queues: frozenset[str], advance: float, give_up_at: float) -> float:
        advanced = 0.0
        while True:
            busy, waiting = self._counts(queues)
            if run.ended or not (busy or (waiting and advanced < advance)):
                return advanced
            if not busy:
                advanced += self._server.clock.advance_until(lambda: self._has_news(queues), advance - advanced)
            elif time.monotonic() >= give_up_at:
                told = "" if self._reported else f"\n{describe(self._server)}"
                raise AssertionError(f"the worker's queues do not become empty{told}")
            else:
                time.sleep(_LOOK_S)

    def _has_news(self, queues: frozenset[str]) -> bool:
        """Whether there is work again, or nothing left to wait for."""
        busy, waiting = self._counts(queues)
        return busy > 0 or not waiting

    def _counts(self, queues: frozenset[str]) -> tuple[int, int]:
        """(ready and under way, delayed) messages."""
        found = [queue for queue in self._server.queues() if queue.name in queues]
        return sum(queue.ready + queue.leased for queue in found), sum(queue.delayed for queue in found)


class _Run:
    """One run of a worker, in a thread of its own."""

    def __init__(self, worker: Worker, plan: Plan, backend: str) -> None:
        self._worker = worker
        self._plan = plan
        self._backend = backend
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="walrq-worker", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            anyio.run(self._worker.serve, self._plan, backend=self._backend)
        except BaseException as error:  # noqa: BLE001  # for `raise_failure`
            self._failure = error

    @property
    def ended(self) -> bool:
        """Whether it has ended by itself."""
        return not self._thread.is_alive()

    def stop(self) -> bool:
        """Stop it, in good order and then urgently; whether it has ended."""
        give_up_at = time.monotonic() + _END_S
        while self._thread.is_alive() and time.monotonic() < give_up_at:
            # Not heard by a worker that is only about to start; the second time by one that waits for handlers.
            self._worker.stop()
            self._thread.join(_STOP_S)
        return not self._thread.is_alive()

    def raise_failure(self) -> None:
        """Raise what it ended with, if that was an error."""
        if self._failure is not None:
            raise self._failure
