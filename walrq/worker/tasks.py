"""A task: a plain typed function that can also be put on a queue.

    send(to, text)                              calls the function, here and now
    send.enqueue(to, text)                      puts the call on the queue; returns the message's id
    await send.aenqueue(to, text)               the same in trio or asyncio
    send.options(delay=60).enqueue(to, text)    with options of this message
    send.enqueue_many([send.call(to, text), ...])

Options are a step of their own, so that they never clash with the function's own keywords and the type checker sees
its signature unchanged.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

import anyio.to_thread
import attrs

from walrq.client.messages import MessageIds, NewMessage
from walrq.errors import ConfigError, InvalidArgument
from walrq.ids import check_queue_name
from walrq.limits import MAX_DELIVERIES_MAX
from walrq.worker import arguments
from walrq.worker.backoff import Backoff
from walrq.worker.backoff import check as check_backoff

if TYPE_CHECKING:
    from walrq.worker.application import Worker

P = ParamSpec("P")
R = TypeVar("R")

TASK_HEADER: Final = "walrq-task"
"""Header that names the task: several may share a queue."""
TIMEOUT_HEADER: Final = "walrq-timeout"
"""Header with the seconds one message may take, when they differ from the task's."""
RETRIES_HEADER: Final = "walrq-retries"
"""Header with the attempts after the first, when they differ from the task's: for the log of the worker. What counts
is what the server was told."""


@attrs.frozen(kw_only=True)
class Options:
    """What one message has that others of its task have not; None leaves it to the task or the queue.

    Attributes:
        delay: seconds until it may run.
        deliver_at: an aware datetime, or seconds since 1970, instead of a delay.
        priority: 0 to 255, higher first.
        group: messages of one group run in order, by default one at a time.
        dedup_id: a second message with this id within the queue's window changes nothing.
        ttl: seconds after which it is dropped if it has not run.
        retries: attempts after the first one.
        timeout: seconds one attempt may take.
        headers: names and plain values that travel along.
        queue: another queue than the task's.
    """

    delay: float | None = None
    deliver_at: datetime | float | None = None
    priority: int = 0
    group: str | None = None
    dedup_id: str | None = None
    ttl: float | None = None
    retries: int | None = None
    timeout: float | None = None
    headers: Mapping[str, Any] | None = None
    queue: str | None = None


@attrs.frozen(repr=False)
class Call(Generic[P]):
    """One call of a task on its way to `enqueue_many`: checked and encoded already."""

    task: str
    message: NewMessage

    def __repr__(self) -> str:
        return f"<Call of {self.task}>"


class Enqueue(Generic[P]):
    """A task with options; `Task.options` makes one."""

    def __init__(self, task: Task[P, Any], options: Options) -> None:
        self._task = task
        self._options = options
        if options.retries is not None:
            check_retries(options.retries, task.name)
        if options.timeout is not None:
            check_seconds(options.timeout, f"task {task.name!r}: timeout")

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[P]:
        """One call for `enqueue_many`; its group, dedup id and headers are those of these options.

        Raises:
            TypeError: the arguments do not fit the function.
            InvalidArgument: naming the argument that has no CBOR form.
        """
        task, options = self._task, self._options
        headers = {**(options.headers or {}), TASK_HEADER: task.name}
        if options.timeout is not None:
            headers[TIMEOUT_HEADER] = float(options.timeout)
        if options.retries is not None:
            headers[RETRIES_HEADER] = options.retries
        payload = arguments.encode(task.name, task.signature, args, kwargs)
        return Call(task.name, NewMessage(payload, headers, options.group, options.dedup_id))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Put the call on the task's queue; durable when this returns. Blocking.

        Returns:
            The message's id.

        Raises:
            TypeError, InvalidArgument: as `call`.
            WalrqError: what the server says, or that none answered.
        """
        return self._push_blocking([self.call(*args, **kwargs)])[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """As `enqueue`, in trio or asyncio."""
        return (await self._push([self.call(*args, **kwargs)]))[0]

    def enqueue_many(self, calls: Iterable[Call[P]]) -> MessageIds:
        """Put several calls on the queue as one unit: all or none (up to 10,000, more are several units). Blocking.

        Raises:
            InvalidArgument: one of the calls is another task's.
            BatchError: some of several units failed.
        """
        return self._push_blocking(list(calls))

    async def aenqueue_many(self, calls: Iterable[Call[P]]) -> MessageIds:
        """As `enqueue_many`, in trio or asyncio."""
        return await self._push(list(calls))

    def _push_blocking(self, calls: list[Call[P]]) -> MessageIds:
        self._check(calls)
        options = self._options
        return self._task.worker.publisher.client().push_batch(
            self._queue,
            [each.message for each in calls],
            options.delay,
            priority=options.priority,
            ttl=options.ttl,
            deliver_at=options.deliver_at,
            max_attempts=self._max_attempts,
        )

    async def _push(self, calls: list[Call[P]]) -> MessageIds:
        client = self._task.worker.client_here()
        if client is None:
            # Outside a worker's own event loop there is no connection that this loop could wait for.
            return await anyio.to_thread.run_sync(functools.partial(self._push_blocking, calls))
        self._check(calls)
        options = self._options
        return await client.push_batch(
            self._queue,
            [each.message for each in calls],
            options.delay,
            priority=options.priority,
            ttl=options.ttl,
            deliver_at=options.deliver_at,
            max_attempts=self._max_attempts,
        )

    def _check(self, calls: list[Call[P]]) -> None:
        for each in calls:
            if getattr(each, "task", None) is None:
                name = self._task.name
                raise InvalidArgument(
                    f"enqueue_many takes calls, not {type(each).__name__}: "
                    f"write {name}.enqueue_many([{name}.call(...), ...])"
                )
            if each.task != self._task.name:
                raise InvalidArgument(f"enqueue_many of task {self._task.name!r} takes its own calls, not {each!r}")

    @property
    def _queue(self) -> str:
        return self._task.queue if self._options.queue is None else self._options.queue

    @property
    def _max_attempts(self) -> int | None:
        retries = self._task.retries if self._options.retries is None else self._options.retries
        return None if retries is None else retries + 1


class Task(Generic[P, R]):
    """A function and where its calls wait; `Worker.task` makes one.

    Attributes:
        worker: where it was declared.
        function: the function itself.
        name: what messages call it.
        queue: where its calls wait.
        retries: attempts after the first; None = the queue's setting.
        backoff: how long a failed call waits; None = the queue's setting.
        timeout: seconds one attempt may take; None = no limit.
        concurrency: how many calls one worker runs at a time; None = as many as the worker runs in all.
    """

    def __init__(
        self,
        worker: Worker,
        function: Callable[P, R],
        *,
        name: str,
        queue: str,
        retries: int | None,
        backoff: Backoff | None,
        timeout: float | None,
        concurrency: int | None,
    ) -> None:
        """Raises ConfigError or InvalidQueueName: a value cannot be used, naming it."""
        if not callable(function):
            raise ConfigError(f"a task is a function, not {function!r}")
        check_queue_name(queue)
        if retries is not None:
            check_retries(retries, name)
        check_backoff(backoff, f"task {name!r}")
        if timeout is not None:
            check_seconds(timeout, f"task {name!r}: timeout")
        if concurrency is not None:
            check_count(concurrency, f"task {name!r}: concurrency", 1)
        self.worker = worker
        self.function = function
        self.name = name
        self.queue = queue
        self.retries = retries
        self.backoff = backoff
        self.timeout = timeout
        self.concurrency = concurrency
        self.signature: Final = inspect.signature(function)
        self._plain: Enqueue[P] = Enqueue(self, Options())
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, here and now: no queue, no retries."""
        return self.function(*args, **kwargs)

    def options(
        self,
        *,
        delay: float | None = None,
        deliver_at: datetime | float | None = None,
        priority: int = 0,
        group: str | None = None,
        dedup_id: str | None = None,
        ttl: float | None = None,
        retries: int | None = None,
        timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
        queue: str | None = None,
    ) -> Enqueue[P]:
        """The task with options for the calls put on the queue through what this returns; see `Options`."""
        return Enqueue(
            self,
            Options(
                delay=delay,
                deliver_at=deliver_at,
                priority=priority,
                group=group,
                dedup_id=dedup_id,
                ttl=ttl,
                retries=retries,
                timeout=timeout,
                headers=headers,
                queue=queue,
            ),
        )

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[P]:
        """One call for `enqueue_many`; see `Enqueue.call`."""
        return self._plain.call(*args, **kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Put a call on the queue; durable when this returns the message's id. See `Enqueue.enqueue`."""
        return self._plain.enqueue(*args, **kwargs)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """As `enqueue`, in trio or asyncio."""
        return await self._plain.aenqueue(*args, **kwargs)

    def enqueue_many(self, calls: Iterable[Call[P]]) -> MessageIds:
        """Put several calls on the queue as one unit. See `Enqueue.enqueue_many`."""
        return self._plain.enqueue_many(calls)

    async def aenqueue_many(self, calls: Iterable[Call[P]]) -> MessageIds:
        """As `enqueue_many`, in trio or asyncio."""
        return await self._plain.aenqueue_many(calls)

    def __repr__(self) -> str:
        return f"<Task {self.name} on queue {self.queue}>"


def check_retries(retries: int, task: str) -> None:
    """Raise `ConfigError` unless it is a number of attempts after the first."""
    check_count(retries, f"task {task!r}: retries", 0, MAX_DELIVERIES_MAX - 1)


def check_count(number: object, what: str, least: int, most: int = MAX_DELIVERIES_MAX) -> None:
    """Raise `ConfigError` unless it is a whole number in range."""
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        raise ConfigError(f"{what} is {number!r}, allowed are {least} to {most}")


def check_seconds(seconds: object, what: str, least: float = 0.001, most: float = 30 * 86400.0) -> None:
    """Raise `ConfigError` unless it is a number of seconds in range."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not least <= seconds <= most:
        raise ConfigError(f"{what} is {seconds!r}, allowed are {least:g} to {most:g} s")
