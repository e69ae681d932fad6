"""How a caller waits for its answer: one wake-up, as cheap as the running event loop has it.

`anyio.Event` serves any number of waiters and may be set long before one comes; a call has one waiter, which is there
already. Under asyncio that is a future, under trio a suspended task. Cancellation is the loop's own in both.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias


class Waits(Protocol):
    """What is waited for: `waiter` is called once, when it is there."""

    waiter: Callable[[], object] | None


Park: TypeAlias = Callable[[Waits], Awaitable[None]]
"""Wait until `waiter` is called. When the wait is cancelled `waiter` is None again."""


def parking() -> Park:
    """For the event loop that runs."""
    # A program that runs under asyncio need not load trio to find out that it does.
    trio = sys.modules.get("trio")
    return _in_trio if trio is not None and trio.lowlevel.in_trio_task() else _in_asyncio


async def _in_trio(call: Waits) -> None:
    import trio

    task = trio.lowlevel.current_task()
    call.waiter = lambda: trio.lowlevel.reschedule(task)

    def abort(_: Any) -> trio.lowlevel.Abort:
        call.waiter = None
        return trio.lowlevel.Abort.SUCCEEDED

    await trio.lowlevel.wait_task_rescheduled(abort)


async def _in_asyncio(call: Waits) -> None:
    import asyncio

    answered = asyncio.get_running_loop().create_future()

    def wake() -> None:
        # Cancelled, and not yet run: the caller will say so itself.
        if not answered.done():
            answered.set_result(None)

    call.waiter = wake
    try:
        await answered
    except BaseException:
        call.waiter = None
        raise
