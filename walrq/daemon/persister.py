"""One thread that makes entries durable, owned by the task that runs here.

`trio.to_thread` gives every call a thread from its cache, a limiter and a name; a group commit is too short for that,
and there is only ever one at a time. Handing a call over costs one queue and one wake-up each way. While the thread is
not there (before `run`, and when it is over) a call takes one of Trio's.

A call is never abandoned: cancelled or not, its caller goes on only when it has returned, because what a disk was told
to write cannot be taken back.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import outcome
import trio

T = TypeVar("T")
Ended: TypeAlias = Callable[[outcome.Outcome[Any]], None]
_Job: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], Ended]


class Persister:
    """See the module."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._token: trio.lowlevel.TrioToken | None = None
        self._calls = 0

    async def run(self) -> None:
        """Keep the thread until cancelled; then let it finish what it was given."""
        self._token = trio.lowlevel.current_trio_token()
        thread = threading.Thread(target=self._work, args=(self._token,), name="walrq-persist")
        thread.start()
        try:
            await trio.sleep_forever()
        finally:
            self._token = None
            self._jobs.put(None)
            # At most one call is on its way, and calls are short.
            thread.join()

    def _work(self, token: trio.lowlevel.TrioToken) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            function, arguments, ended = job
            token.run_sync_soon(self._end, ended, outcome.capture(function, *arguments))
            # Nothing of the call may live on while the thread waits for the next one.
            del job, function, arguments, ended

    def _end(self, ended: Ended, result: outcome.Outcome[Any]) -> None:
        self._calls -= 1
        ended(result)

    @property
    def running(self) -> bool:
        """Whether the thread is there, so that calls may be handed over."""
        return self._token is not None

    def hand_over(self, function: Callable[..., Any], arguments: tuple[Any, ...], ended: Ended) -> None:
        """Have the thread call `function(*arguments)`; the event loop then calls `ended` with what came of it.

        Only while `running`. `ended` must not raise.
        """
        self._calls += 1
        self._jobs.put((function, arguments, ended))

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """What `function(*arguments)` gives or raises in the thread. Calls run one after another."""
        if self._token is None:
            return await trio.to_thread.run_sync(function, *arguments)
        task = trio.lowlevel.current_task()
        self.hand_over(function, arguments, lambda result: trio.lowlevel.reschedule(task, result))
        result: T = await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        return result

    @property
    def busy(self) -> bool:
        """Whether a call is on its way."""
        return self._calls > 0
