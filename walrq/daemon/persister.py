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
_Job: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], trio.lowlevel.Task]


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
            function, arguments, task = job
            token.run_sync_soon(trio.lowlevel.reschedule, task, outcome.capture(function, *arguments))
            # Nothing of the call may live on while the thread waits for the next one.
            del job, function, arguments, task

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """What `function(*arguments)` gives or raises in the thread. Calls run one after another."""
        if self._token is None:
            return await trio.to_thread.run_sync(function, *arguments)
        self._calls += 1
        self._jobs.put((function, arguments, trio.lowlevel.current_task()))
        try:
            result: T = await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        finally:
            self._calls -= 1
        return result

    @property
    def busy(self) -> bool:
        """Whether a call is on its way."""
        return self._calls > 0
