"""What a handler sees of its message, its lease and its worker."""

from __future__ import annotations

import functools
import logging
from contextvars import ContextVar
from typing import Any, Final

import anyio.to_thread

from walrq.client.messages import Message
from walrq.worker.keeper import Keeper
from walrq.worker.leases import Held
from walrq.worker.outcomes import LeaseLost, TaskTimeout, WorkerStopping
from walrq.worker.records import HandlerLog, ids

CURRENT: Final[ContextVar[Context]] = ContextVar("walrq_context")


class Context:
    """One handler's run; `walrq.current()` finds it anywhere below the handler, in its thread too.

    Attributes:
        message: the delivery that is being handled.
        task: name of the task; None in a handler of plain messages.
        log: a logger whose lines carry the ids of message, delivery and task.
    """

    def __init__(self, held: Held, keeper: Keeper, task: str | None) -> None:
        self._held = held
        self._keeper = keeper
        self.message: Message = held.message
        self.task = task
        self.log: HandlerLog = HandlerLog(logging.getLogger("walrq.worker.handler"), ids(held.message, task))

    # --- the message ----------------------------------------------------------------------------------------
    @property
    def queue(self) -> str:
        """The queue it came from."""
        return self.message.queue

    @property
    def message_id(self) -> str:
        """The same over all deliveries: what an idempotent handler remembers."""
        return self.message.message_id

    @property
    def delivery(self) -> int:
        """How many times the message has been handed out, this time included."""
        return self.message.delivery

    @property
    def attempts(self) -> int:
        """Counted failures before this run; 0 in the first."""
        return self.message.attempts

    @property
    def headers(self) -> dict[str, Any]:
        """The message's headers."""
        return dict(self._held.headers)

    @property
    def fence(self) -> tuple[int, int]:
        """Grows with every lease of the message: other systems can refuse an older holder by it."""
        return self.message.fence

    # --- the lease ------------------------------------------------------------------------------------------
    @property
    def remaining(self) -> float:
        """Seconds until the lease ends if nobody extends it; the worker does, all the time."""
        return self.message.remaining

    @property
    def lease_lost(self) -> bool:
        """Whether the message is somebody else's now, or gone."""
        return self._held.lost is not None

    @property
    def timed_out(self) -> bool:
        """Whether the task's `timeout` is over."""
        return self._held.timed_out

    @property
    def stopping(self) -> bool:
        """Whether the worker wants to end now: its `stop_timeout` is over."""
        return self._held.stopping

    def check(self) -> None:
        """Raise when this work is no longer wanted. For handlers in threads, between two pieces of work.

        Raises:
            LeaseLost, TaskTimeout, WorkerStopping: let it pass; the worker knows what to do.
        """
        held = self._held
        if held.lost is not None:
            raise LeaseLost(held.lost)
        if held.timed_out:
            raise TaskTimeout("the task's timeout is over")
        if held.stopping:
            raise WorkerStopping("the worker stops")

    def extend(self, seconds: float) -> None:
        """Let the lease end no earlier than `seconds` from now, and wait until the server has agreed.

        Before a long call into code that lets nothing else run (C code that keeps the interpreter's lock). In an async
        handler use `aextend`.

        Raises:
            LeaseLost: it is over already.
            WalrqError: no server answered in time.
        """
        self.check()
        try:
            self._keeper.extend(self._held, seconds)
        finally:
            self.check()

    async def aextend(self, seconds: float) -> None:
        """As `extend`, without holding up the event loop."""
        await anyio.to_thread.run_sync(functools.partial(self.extend, seconds))

    def __repr__(self) -> str:
        return f"<Context {self.task or 'handler'}, {self.message!r}>"


def current() -> Context:
    """The context of the handler that is running here.

    Raises:
        LookupError: none is.
    """
    found = CURRENT.get(None)
    if found is None:
        raise LookupError("no handler is running here: walrq.current() is for code called by a task or handler")
    return found
