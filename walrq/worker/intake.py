"""Which queues are asked for how many messages, and which message starts next.

Pure. What runs or waits for its turn never exceeds `concurrency + prefetch`; of one queue never more than its tasks may
run at a time, plus `prefetch`: a slow task on one queue does not fill the places of the others. As many again may have
ended and wait for the answers to their acks, so that the next messages come while those are on their way.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from walrq.client.messages import Message
from walrq.errors import InvalidArgument
from walrq.worker import arguments
from walrq.worker.backoff import Backoff
from walrq.worker.leases import Held
from walrq.worker.tasks import TASK_HEADER, Task


@attrs.define(eq=False)
class Target:
    """Something that handles messages: a task, or a handler of plain messages.

    Attributes:
        name: of the task; None for a handler.
        queue: where its messages come from.
        function: what is called.
        signature: of a task's function, to check a call against; None for a handler, which takes the message.
        backoff, timeout_s, concurrency, retries: as declared.
    """

    name: str | None
    queue: str
    function: Callable[..., Any]
    signature: inspect.Signature | None
    backoff: Backoff | None
    timeout_s: float | None
    concurrency: int | None
    retries: int | None = None
    _running: int = 0
    _waiting: deque[Held] = attrs.field(factory=deque, init=False)

    @property
    def is_async(self) -> bool:
        """Whether calling it gives something to await."""
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(
            getattr(self.function, "__call__", None)  # noqa: B004 - an object with `async def __call__`
        )

    def call(self, message: Message) -> tuple[list[Any], dict[str, Any]]:
        """The arguments in a message.

        Raises:
            InvalidArgument: it holds no call that fits the function.
            BodyLost: disk damage destroyed it.
        """
        if self.signature is None:
            return [message], {}
        args, kwargs = arguments.decode(message.payload)
        try:
            arguments.bind(self.name or "", self.signature, args, kwargs)
        except TypeError as error:
            raise InvalidArgument(f"the call does not fit the function of this worker: {error}") from None
        return args, kwargs


def of_task(task: Task[..., Any]) -> Target:
    """The target of a task."""
    return Target(
        task.name,
        task.queue,
        task.function,
        task.signature,
        task.backoff,
        task.timeout,
        task.concurrency,
        task.retries,
    )


@attrs.define(eq=False)
class _Lane:
    """One queue: who handles what comes from it."""

    queue: str
    tasks: dict[str, Target] = attrs.field(factory=dict)
    handler: Target | None = None
    held: int = 0

    def targets(self) -> Iterable[Target]:
        yield from self.tasks.values()
        if self.handler is not None:
            yield self.handler


class Intake:
    """See the module."""

    def __init__(self, targets: Iterable[Target], concurrency: int, prefetch: int) -> None:
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._lanes: dict[str, _Lane] = {}
        for target in targets:
            lane = self._lanes.setdefault(target.queue, _Lane(target.queue))
            if target.name is None:
                lane.handler = target
            else:
                lane.tasks[target.name] = target
        self._targets = [target for lane in self._lanes.values() for target in lane.targets()]
        self._turn = 0
        # Invariant: running <= concurrency, running <= held <= concurrency + prefetch, unanswered <= twice that.
        self.running = 0
        self.held = 0
        self.unanswered = 0
        self._arrivals = 0
        self._arrived: dict[Held, int] = {}

    @property
    def queues(self) -> list[str]:
        """Every queue that is asked."""
        return list(self._lanes)

    def _room(self, lane: _Lane) -> int:
        running = min(self._concurrency, sum(target.concurrency or self._concurrency for target in lane.targets()))
        return running + self._prefetch - lane.held

    def wanted(self) -> tuple[list[str], int]:
        """(queues to ask, most messages to take) by the next poll; ([], 0) while there is no room.

        The first of the queues that has messages is taken from, so each poll begins with another.
        """
        most = self._concurrency + self._prefetch
        left = min(most - self.held, most - self.unanswered)
        if self.running >= self._concurrency and left < self._prefetch // 2:
            # Everybody has something to do: one larger poll a little later instead of many for one message.
            return [], 0
        open_lanes = [lane for lane in self._lanes.values() if self._room(lane) > 0]
        if left <= 0 or not open_lanes:
            return [], 0
        self._turn += 1
        first = self._turn % len(open_lanes)
        queues = [lane.queue for lane in open_lanes[first:] + open_lanes[:first]]
        return queues, min(left, *(self._room(lane) for lane in open_lanes))

    def has_room(self, queue: str) -> bool:
        """Whether a poll that leaves `queue` out should begin anew."""
        return self._room(self._lanes[queue]) > 0

    def target(self, held: Held) -> Target:
        """Who handles a message.

        Raises:
            InvalidArgument: nobody here does.
        """
        lane = self._lanes[held.message.queue]
        name = held.headers.get(TASK_HEADER)
        if isinstance(name, str) and name in lane.tasks:
            return lane.tasks[name]
        if lane.handler is not None:
            return lane.handler
        known = ", ".join(sorted(lane.tasks))
        if name is None:
            raise InvalidArgument(
                f"a message without the header {TASK_HEADER} on queue {lane.queue!r}, which has tasks only ({known});"
                " a handler of plain messages is declared with @worker.handler"
            )
        raise InvalidArgument(f"this worker knows no task {name!r} on queue {lane.queue!r}; it knows {known}")

    def take(self, held: Held) -> None:
        """A message was received."""
        self.held += 1
        self._lanes[held.message.queue].held += 1

    def wait(self, held: Held, target: Target) -> None:
        """It waits for its turn."""
        self._arrivals += 1
        self._arrived[held] = self._arrivals
        target._waiting.append(held)

    def next(self) -> tuple[Held, Target] | None:
        """The message that starts now: the one that waits longest among those whose task has a free place."""
        if self.running >= self._concurrency:
            return None
        best: Target | None = None
        for target in self._targets:
            if not target._waiting or (target.concurrency is not None and target._running >= target.concurrency):
                continue
            if best is None or self._arrived[target._waiting[0]] < self._arrived[best._waiting[0]]:
                best = target
        if best is None:
            return None
        held = best._waiting.popleft()
        del self._arrived[held]
        best._running += 1
        self.running += 1
        return held, best

    def ended(self, target: Target) -> None:
        """A handler ended."""
        target._running -= 1
        self.running -= 1

    def settle(self, held: Held) -> None:
        """A message neither runs nor waits for its turn any more: the server is told what became of it."""
        self.held -= 1
        self._lanes[held.message.queue].held -= 1
        self.unanswered += 1

    def let_go(self) -> None:
        """The server has answered for a message, or there was nothing to tell it."""
        self.unanswered -= 1

    def not_started(self) -> list[Held]:
        """Take out everything that waits."""
        found = sorted(self._arrived, key=self._arrived.__getitem__)
        self._arrived.clear()
        for target in self._targets:
            target._waiting.clear()
        return found
