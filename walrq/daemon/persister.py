"""One thread that makes entries durable, owned by the task that runs here.

`trio.to_thread` gives every call a thread from its cache, a limiter and a name; a group commit is too short for that,
and there is only ever one at a time. Handing a call over costs one queue and one wake-up each way. While the thread is
not there (before `run`, and when it is over) a call takes one of Trio's.

A call is never abandoned: cancelled or not, its caller goes on only when it has returned, because what a disk was told
to write cannot be taken back.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
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
        # Calls that have returned, oldest first: what came of them, and whom to tell.
        self._returned: deque[tuple[Ended, outcome.Outcome[Any]]] = deque()
        self._bell = -1
        self._rings = False
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
            if self._bell >= 0:
                os.close(self._bell)
                self._bell = -1

    def _work(self, token: trio.lowlevel.TrioToken) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            function, arguments, ended = job
            # In this order, see `stop_listening`.
            self._returned.append((ended, outcome.capture(function, *arguments)))
            if self._rings:
                os.eventfd_write(self._bell, 1)
            else:
                token.run_sync_soon(self.deliver, idempotent=True)
            # Nothing of the call may live on while the thread waits for the next one.
            del job, function, arguments, ended

    def listen(self) -> int:
        """From now on the thread rings a bell when a call has returned, until `stop_listening`.

        Whoever asked for it waits until the descriptor can be read, reads it, and calls `deliver`. Without a listener
        Trio's own way into the event loop is taken, which costs a round of it more.

        Returns:
            The descriptor of an eventfd, the persister's own.
        """
        if self._bell < 0:
            self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._rings = True
        return self._bell

    def stop_listening(self) -> None:
        """Nobody hears the bell any more. What it was rung for meanwhile is delivered."""
        # The thread notes a result first and looks at `_rings` afterwards: either it finds False, or the result is
        # there already.
        self._rings = False
        self.deliver()

    def deliver(self) -> None:
        """Tell those whose calls have returned. In the event loop's thread."""
        returned = self._returned
        while returned:
            ended, result = returned.popleft()
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
