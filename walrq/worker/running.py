"""One message: its arguments, the middleware, the handler in the loop or in a thread, and what came of it."""

from __future__ import annotations

import functools
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

import anyio
import anyio.to_thread

from walrq.errors import BodyLost, InvalidArgument
from walrq.worker import backoff
from walrq.worker.context import CURRENT, Context
from walrq.worker.intake import Target
from walrq.worker.keeper import Keeper
from walrq.worker.leases import Held
from walrq.worker.outcomes import (
    DONE,
    RELEASED,
    LeaseLost,
    Outcome,
    Reject,
    Release,
    Retry,
    TaskTimeout,
    Verdict,
    WorkerStopping,
    from_the_handler,
)
from walrq.worker.tasks import TIMEOUT_HEADER

log = logging.getLogger("walrq.worker")

# So many releases of one message, so soon after each other, are a loop that its author should know of.
RELEASES_SAID: Final = 10
RELEASES_WITHIN_S: Final = 10.0
RELEASES_REMEMBERED: Final = 1000

# What code of one event loop's library raises under the other, by a part of its text.
_ASYNCIO_UNDER_TRIO: Final = ("no running event loop", "no current event loop", "unrecognized yield message")
_TRIO_UNDER_ASYNCIO: Final = ("must be called from async context", "got bad yield")

CallNext: TypeAlias = Callable[[], Awaitable[Any]]
Middleware: TypeAlias = Callable[[Context, CallNext], Awaitable[Any]]


class Releases:
    """Counts how often in a row each message was released here; of the latest ones only."""

    def __init__(self) -> None:
        # (when last, how often) by message id, the latest release last.
        self._seen: dict[str, tuple[float, int]] = {}

    def count(self, message_id: str, now: float) -> int:
        """It is released at `now`: how often that makes without a pause of `RELEASES_WITHIN_S`."""
        at, count = self._seen.pop(message_id, (now, 0))
        count = count + 1 if now - at < RELEASES_WITHIN_S else 1
        self._seen[message_id] = (now, count)
        if len(self._seen) > RELEASES_REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return count


class Runner:
    """Runs handlers for one worker."""

    def __init__(
        self,
        keeper: Keeper,
        middleware: Sequence[Middleware],
        threads: int,
        *,
        interrupted: Callable[[KeyboardInterrupt], None],
        releases_abandoned: bool,
    ) -> None:
        """
        Args:
            interrupted: told of a KeyboardInterrupt that a handler raised.
            releases_abandoned: the process ends right after, and its threads with it.
        """
        self._keeper = keeper
        self._middleware = tuple(middleware)
        self._threads = anyio.CapacityLimiter(threads)
        self._rng = random.Random()
        self._interrupted_by = interrupted
        self._releases = Releases()
        self._releases_abandoned = releases_abandoned
        # Messages whose handlers still ran in a thread when the worker could not wait any longer.
        self.abandoned: list[Held] = []

    async def run(self, held: Held, target: Target) -> Outcome | None:
        """Handle a message; None when there is nothing to tell the server.

        A cancellation from outside ends the handler, and is an outcome like any other: the caller tells the server in
        any case.
        """
        scope = anyio.CancelScope()
        if target.is_async:
            held.interrupt = scope.cancel
        if not self._keeper.start(held, _timeout_of(held, target)):
            # If it is ours after all, it comes back at once, and free of charge.
            return None if held.certain else RELEASED
        context = Context(held, self._keeper, target.name)
        token = CURRENT.set(context)
        try:
            try:
                args, kwargs = target.call(held.message)
            except (InvalidArgument, BodyLost) as error:
                return self._rejected(context, error)
            finished = False
            with scope:
                await self._chain(context, target, args, kwargs, 0)
                finished = True
            if finished:
                return self._succeeded(context)
            return self._interrupted(context, target)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - reported to the server and in the log
            return self._failed(context, target, error)
        except KeyboardInterrupt as error:
            # A failure, not a release: a handler that raises it by itself would stop one worker after the other.
            self._interrupted_by(error)
            return self._failed(context, target, error)
        except anyio.get_cancelled_exc_class() as error:
            if anyio.current_effective_deadline() > -math.inf:
                # Nobody cancelled this worker: something that the handler awaited was cancelled (asyncio).
                return self._failed(context, target, error)
            return self._cancelled(context, target)
        finally:
            CURRENT.reset(token)

    async def _chain(
        self, context: Context, target: Target, args: list[Any], kwargs: dict[str, Any], depth: int
    ) -> Any:
        """What is left of the middleware from `depth` on, then the handler."""
        if depth < len(self._middleware):
            call_next = functools.partial(self._chain, context, target, args, kwargs, depth + 1)
            return await self._middleware[depth](context, call_next)
        if target.is_async:
            return await target.function(*args, **kwargs)
        # Abandoned only at the very end, when the worker has waited for as long as it may.
        return await anyio.to_thread.run_sync(
            functools.partial(target.function, *args, **kwargs), abandon_on_cancel=True, limiter=self._threads
        )

    def _succeeded(self, context: Context) -> Outcome | None:
        held = context._held
        if held.lost is not None and held.certain:
            context.log.warning("result_dropped the handler finished after its lease was lost")
            return None
        if held.timed_out:
            context.log.warning("finished_late after the task's timeout; it is acknowledged, for the work is done")
        # A lease that only seems lost (no server could be asked) is decided by the server.
        return DONE

    def _interrupted(self, context: Context, target: Target) -> Outcome | None:
        """An async handler was ended by the worker."""
        held = context._held
        if held.lost is not None:
            return None
        if held.timed_out:
            return self._failed(context, target, TaskTimeout(_timeout_text(held, target)))
        context.log.info("released the worker stops")
        return RELEASED

    def _cancelled(self, context: Context, target: Target) -> Outcome | None:
        """The whole worker was cancelled, or its patience is over."""
        held = context._held
        if target.is_async:
            return None if held.lost is not None else RELEASED
        self.abandoned.append(held)
        if self._releases_abandoned:
            context.log.warning(
                "abandoned the handler still ran in its thread; the process ends, its message goes back"
            )
        else:
            context.log.warning(
                "abandoned the handler still runs in its thread; its message returns when the lease ends"
            )
        return None

    def _failed(self, context: Context, target: Target, error: BaseException) -> Outcome | None:
        """A handler raised: what that means, and a line in the log."""
        held = context._held
        from_the_handler(error)
        if isinstance(error, LeaseLost) or (held.lost is not None and held.certain):
            context.log.debug("ended after its lease was lost")
            return None
        if isinstance(error, Release):
            self._say_released(context, error)
            return RELEASED
        if isinstance(error, WorkerStopping):
            context.log.info("released the worker stops")
            return RELEASED
        if isinstance(error, Reject):
            return self._rejected(context, error)
        failures = held.message.attempts + 1
        if isinstance(error, Retry):
            delay = self._wait_s(context, target, failures) if error.delay is None else error.delay
            context.log.info("retry failures=%d %s %s", failures, _next(held, failures, delay), error)
            return Outcome(Verdict.FAIL, error, delay)
        delay = self._wait_s(context, target, failures)
        hint = _wrong_loop(error) if target.is_async else None
        if hint is not None:
            error.add_note(hint)
        context.log.error(
            "failed failures=%d %s %s: %s%s",
            failures,
            _next(held, failures, delay),
            type(error).__name__,
            error,
            "" if hint is None else f" ({hint})",
            exc_info=None if isinstance(error, TaskTimeout) else error,
        )
        return Outcome(Verdict.FAIL, error, delay)

    def _say_released(self, context: Context, error: Release) -> None:
        message = context.message
        count = self._releases.count(message.message_id, time.monotonic())
        if count < RELEASES_SAID:
            context.log.info("released %s", error)
        elif count == RELEASES_SAID:
            context.log.warning(
                "released_again %d times in a row: a released message is ready at once, and comes right back when no"
                " other worker wants it; walrq.Retry(delay=...) waits (its further releases are logged as debug)",
                count,
            )
        else:
            context.log.debug("released %s", error)

    @staticmethod
    def _rejected(context: Context, error: BaseException) -> Outcome:
        if isinstance(error, InvalidArgument | BodyLost):
            # Said by the worker, about the message: a traceback would show its own code only.
            error = error.with_traceback(None)
        context.log.warning("rejected %s", error)
        return Outcome(Verdict.REJECT, error)

    def _wait_s(self, context: Context, target: Target, failures: int) -> float | None:
        try:
            return backoff.wait_s(target.backoff, failures, self._rng)
        except Exception:
            context.log.exception("backoff_failed the queue's own applies")
            return None


def _next(held: Held, failures: int, delay: float | None) -> str:
    """When it is tried again, as far as is known here: the queue's own settings are the server's."""
    if held.retries is not None and failures > held.retries:
        return "next=never"
    return "next=queue_backoff" if delay is None else f"next_s={delay:.3g}"


def _timeout_of(held: Held, target: Target) -> float | None:
    """Seconds that the message may take: its own, else its task's."""
    own = held.headers.get(TIMEOUT_HEADER)
    if target.name is not None and isinstance(own, int | float) and own > 0:
        return float(own)
    return target.timeout_s


def _timeout_text(held: Held, target: Target) -> str:
    return f"the handler did not finish within its timeout of {_timeout_of(held, target):g} s"


def _wrong_loop(error: BaseException) -> str | None:
    """What to say to an async handler's error that comes from the other event loop's library; None if it does not.

    Called in the event loop that the handler ran in.
    """
    if not isinstance(error, RuntimeError | TypeError):
        return None
    here = anyio.get_cancelled_exc_class().__module__.partition(".")[0]
    there, parts = ("asyncio", _ASYNCIO_UNDER_TRIO) if here == "trio" else ("trio", _TRIO_UNDER_ASYNCIO)
    text = str(error)
    if not any(part in text for part in parts):
        return None
    return (
        f"this handler uses {there}, and the worker runs {'trio' if there == 'asyncio' else 'asyncio'}: run this worker"
        f" with backend={there!r} (walrq worker --backend {there})"
    )
