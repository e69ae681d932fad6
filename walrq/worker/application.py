"""What a program declares: a worker, its tasks, and what surrounds them."""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal, ParamSpec, TypeVar, get_args, overload

import anyio
import anyio.lowlevel
import attrs

from walrq.client.asynchronous import Client
from walrq.client.config import ClientConfig, parse_url
from walrq.client.messages import Message
from walrq.errors import ConfigError
from walrq.ids import check_queue_name
from walrq.limits import POLL_MESSAGES_MAX, POLL_QUEUES_MAX
from walrq.worker.backoff import Backoff
from walrq.worker.backoff import check as check_backoff
from walrq.worker.intake import Target, of_task
from walrq.worker.publishing import Publisher
from walrq.worker.running import Middleware
from walrq.worker.serving import Plan, Serving
from walrq.worker.tasks import Task, check_count, check_seconds

P = ParamSpec("P")
R = TypeVar("R")
Hook = TypeVar("Hook", bound=Callable[[], Any])
Handler = TypeVar("Handler", bound=Callable[[Message], Any])
MiddlewareT = TypeVar("MiddlewareT", bound=Middleware)
Lifespan = TypeVar("Lifespan", bound=Callable[[], AsyncIterator[None]])

Backend = Literal["trio", "asyncio"]

LEASE_S_MIN = 0.05


class Worker:
    """Tasks, and how they are run. Declaring one connects to nothing.

    Attributes:
        queue: where tasks wait that name no queue of their own.
        tasks: by name.
        backend: the event loop that async handlers run in, unless a run says otherwise.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        config: ClientConfig | None = None,
        queue: str = "default",
        concurrency: int = 10,
        prefetch: int | None = None,
        lease: float = 30.0,
        stop_timeout: float = 30.0,
        backend: Backend = "trio",
    ) -> None:
        """
        Args:
            url: `walrq://host:port[,host2:port2]`, or a list of such addresses; None = the variable WALRQ_SERVER at the
                time of the first use, else walrq://127.0.0.1:50051.
            config: how connections behave.
            queue: where tasks wait that name no queue of their own.
            concurrency: handlers at a time, in the loop and in threads together.
            prefetch: messages leased beforehand that wait here for a free place; None = as many as `concurrency`.
                0 suits long tasks: what waits here waits for this worker.
            lease: seconds a message stays this worker's without a word from it; extended all the time, so it is the
                time after which a killed worker's messages return. 0.05 s to 12 h.
            stop_timeout: seconds that running handlers may take after a stop.
            backend: the event loop that async handlers run in: "asyncio" for handlers that use libraries of asyncio.
                For `run`, `walrq worker` and tests; `serve` runs in the loop that it is called in.

        Raises:
            ConfigError, InvalidQueueName: naming the value that cannot be used.
        """
        check_queue_name(queue)
        check_count(concurrency, "concurrency", 1, POLL_MESSAGES_MAX)
        if prefetch is not None:
            check_count(prefetch, "prefetch", 0, POLL_MESSAGES_MAX)
        check_seconds(lease, "lease", LEASE_S_MIN, 12 * 3600)
        check_seconds(stop_timeout, "stop_timeout", 0, math.inf)
        if backend not in get_args(Backend):
            raise ConfigError(f"backend is {backend!r}, allowed are trio and asyncio")
        self._url = url
        self._config = config
        self.backend: Backend = backend
        self.queue = queue
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._lease_s = lease
        self._stop_timeout_s = stop_timeout
        self.tasks: dict[str, Task[..., Any]] = {}
        self._handlers: dict[str, Target] = {}
        self._middleware: list[Middleware] = []
        self._lifespan: list[Callable[[], AbstractAsyncContextManager[None]]] = []
        self.publisher: Publisher = Publisher(url, config)
        self._lock = threading.Lock()
        self._serving: Serving | None = None
        # The client of the run under way and the event loop it belongs to.
        self._here: tuple[object, Client] | None = None

    def __repr__(self) -> str:
        return f"<Worker of {', '.join(self.queues) or 'no queue'}: {', '.join(self.tasks) or 'no tasks'}>"

    # --- where ----------------------------------------------------------------------------------------------
    @property
    def url(self) -> str | Sequence[str] | None:
        """The server's address, or addresses, as given."""
        return self._url

    @property
    def queues(self) -> list[str]:
        """Every queue that has a task or a handler here."""
        return list(dict.fromkeys([*(task.queue for task in self.tasks.values()), *self._handlers]))

    def connect_to(self, url: str | Sequence[str] | None, config: ClientConfig | None = None) -> None:
        """From now on use another server, or another behaviour: for tests, and for settings that are read late.

        Args:
            url: as for `Worker`.
            config: None = as before.

        Raises:
            ConfigError: the address cannot be used.
            RuntimeError: the worker is running.
        """
        if self._serving is not None:
            raise RuntimeError("this worker is running; stop it first")
        if url is not None:
            parse_url(url)
        self.publisher.close()
        self._url, self._config = url, config or self._config
        self.publisher = Publisher(self._url, self._config)

    def close(self) -> None:
        """Close the connection that `enqueue` made, if there is one; the next use makes another."""
        self.publisher.close()

    def client_here(self) -> Client | None:
        """The running worker's client, if the calling code runs in its event loop."""
        here = self._here
        if here is None or here[0] != anyio.lowlevel.current_token():
            return None
        return here[1]

    # --- declaring ------------------------------------------------------------------------------------------
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        queue: str | None = None,
        name: str | None = None,
        retries: int | None = None,
        backoff: Backoff | None = None,
        timeout: float | None = None,
        concurrency: int | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        *,
        queue: str | None = None,
        name: str | None = None,
        retries: int | None = None,
        backoff: Backoff | None = None,
        timeout: float | None = None,
        concurrency: int | None = None,
    ) -> Any:
        """Declare a task: `@worker.task` or `@worker.task(queue="mail", retries=5)`.

        An `async def` runs in the worker's event loop, any other function in a thread.

        Args:
            queue: where its calls wait; None = the worker's.
            name: what messages call it; None = the function's own name. It has to stay the same as long as calls wait.
            retries: attempts after the first one, then the call goes to the dead-letter queue; None = the queue's
                setting (2 unless changed).
            backoff: seconds between attempts, `walrq.Exponential(...)`, or a function of the failures so far (1, 2,
                ...); None = the queue's setting (1 s doubling to 60 s unless changed).
            timeout: seconds one attempt may take: async handlers are cancelled, handlers in threads find it by
                `context.check()`; None = no limit.
            concurrency: calls of this task at a time in one worker; None = as many as the worker runs in all.

        Raises:
            ConfigError: a value cannot be used, or the name is taken.
        """

        def declare(function: Callable[P, R]) -> Task[P, R]:
            if not callable(function):
                raise ConfigError(f"a task is a function, not {function!r}")
            called = name if name is not None else getattr(function, "__name__", "")
            if not called or not isinstance(called, str):
                raise ConfigError(f"{function!r} has no name of its own: give name=")
            if called in self.tasks:
                raise ConfigError(f"there is a task {called!r} already: give one of them another name=")
            task = Task(
                self,
                function,
                name=called,
                queue=self.queue if queue is None else queue,
                retries=retries,
                backoff=backoff,
                timeout=timeout,
                concurrency=concurrency,
            )
            self.tasks[called] = task
            return task

        if isinstance(function, str):
            raise ConfigError(
                f"@worker.task({function!r}): write @worker.task(queue={function!r}), or name= for a name"
            )
        return declare if function is None else declare(function)

    def handler(
        self,
        *,
        queue: str,
        backoff: Backoff | None = None,
        timeout: float | None = None,
        concurrency: int | None = None,
    ) -> Callable[[Handler], Handler]:
        """Declare who handles plain messages of a queue: a function that takes a `walrq.Message`.

        It returns when the message is done, and raises when it is not, as a task does. Messages that name a task of
        the same queue go to that task.

        Raises:
            ConfigError, InvalidQueueName: a value cannot be used, or the queue has a handler.
        """
        check_queue_name(queue)
        what = f"handler of queue {queue!r}"
        check_backoff(backoff, what)
        if timeout is not None:
            check_seconds(timeout, f"{what}: timeout")
        if concurrency is not None:
            check_count(concurrency, f"{what}: concurrency", 1)
        if queue in self._handlers:
            raise ConfigError(f"queue {queue!r} has a handler already")

        def declare(function: Handler) -> Handler:
            self._handlers[queue] = Target(None, queue, function, None, backoff, timeout, concurrency)
            return function

        return declare

    def middleware(self, function: MiddlewareT) -> MiddlewareT:
        """Declare what surrounds every handler: `async def f(context, call_next)`, which awaits `call_next()`.

        The first one declared is the outermost. It runs in the event loop, around handlers in threads too.
        """
        fits: bool = inspect.iscoroutinefunction(function)
        if not fits:
            raise ConfigError(f"middleware is an async function of (context, call_next), not {function!r}")
        self._middleware.append(function)
        return function

    def lifespan(self, function: Lifespan) -> Lifespan:
        """Declare what is open while handlers run: an async generator that yields once.

        What is before the `yield` runs once the server is connected and before the first message, what is behind it
        after the last handler.
        """
        fits: bool = inspect.isasyncgenfunction(function)
        if not fits:
            raise ConfigError(f"a lifespan is an async function with one yield, not {function!r}")
        self._lifespan.append(asynccontextmanager(function))
        return function

    def on_startup(self, function: Hook) -> Hook:
        """Declare a function, async or not, to be called before the first message."""

        @asynccontextmanager
        async def before() -> AsyncIterator[None]:
            await _call(function)
            yield

        self._lifespan.append(before)
        return function

    def on_shutdown(self, function: Hook) -> Hook:
        """Declare a function, async or not, to be called after the last handler."""

        @asynccontextmanager
        async def after() -> AsyncIterator[None]:
            try:
                yield
            finally:
                await _call(function)

        self._lifespan.append(after)
        return function

    # --- running --------------------------------------------------------------------------------------------
    def plan(
        self,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        signals: bool = False,
        process_ends: bool = False,
    ) -> Plan:
        """What a run with these wishes is made of.

        Raises:
            ConfigError: there is nothing to do, a queue has no task here, or a number is out of range.
        """
        wanted = self.queues if queues is None else list(dict.fromkeys(queues))
        unknown = [queue for queue in wanted if queue not in self.queues]
        if unknown:
            raise ConfigError(
                f"this worker has no task or handler for queue {unknown[0]!r};"
                f" it has {', '.join(self.queues) or 'none'}"
            )
        if not wanted:
            raise ConfigError("this worker has no tasks: declare some with @worker.task, in a module that is imported")
        if len(wanted) > POLL_QUEUES_MAX:
            raise ConfigError(
                f"this worker has {len(wanted)} queues, one serves at most {POLL_QUEUES_MAX}: name some with --queue"
            )
        if concurrency is not None:
            check_count(concurrency, "concurrency", 1, POLL_MESSAGES_MAX)
        most = self._concurrency if concurrency is None else concurrency
        targets = [*map(of_task, self.tasks.values()), *map(attrs.evolve, self._handlers.values())]
        return Plan(
            url=self._url,
            config=self._config,
            targets=[target for target in targets if target.queue in wanted],
            concurrency=most,
            prefetch=most if self._prefetch is None else self._prefetch,
            lease_s=self._lease_s,
            stop_timeout_s=self._stop_timeout_s,
            middleware=tuple(self._middleware),
            lifespan=tuple(self._lifespan),
            signals=signals,
            process_ends=process_ends,
        )

    async def serve(self, plan: Plan | None = None) -> int:
        """Handle messages until `stop` is called, in trio or asyncio; the exit status as of `run`.

        A cancellation ends it at once: running handlers are cancelled, what they had goes back.

        Raises:
            ConfigError: there is nothing to do.
            WalrqError: the server refuses this client for good. A server that is not there is waited for.
            RuntimeError: this worker runs already.
        """
        with self._lock:
            if self._serving is not None:
                raise RuntimeError("this worker is running already")
            serving = self._serving = Serving(plan or self.plan(), self._started)
        try:
            return await serving.run()
        finally:
            self._here = None
            self._serving = None

    def _started(self, client: Client) -> None:
        self._here = (anyio.lowlevel.current_token(), client)

    def run(
        self, *, queues: Sequence[str] | None = None, concurrency: int | None = None, backend: Backend | None = None
    ) -> int:
        """Handle messages until SIGTERM, SIGINT or `stop`: `sys.exit(worker.run())`. Blocking.

        Args:
            queues: only these; None = all that have tasks here.
            concurrency: instead of the worker's own.
            backend: the event loop that async handlers run in; None = the worker's.

        Returns:
            0 when every handler could finish; 8 when the stop had to cancel some.
        """
        plan = self.plan(queues=queues, concurrency=concurrency, signals=True)
        return anyio.run(self.serve, plan, backend=backend or self.backend)

    def stop(self) -> None:
        """Take no more messages and end once running handlers are done; a second call does not wait for them.

        From any thread. Nothing happens when the worker is not running.
        """
        serving = self._serving
        if serving is not None:
            serving.stop()


async def _call(function: Callable[[], Any]) -> None:
    found = function()
    if isinstance(found, Awaitable):
        await found
