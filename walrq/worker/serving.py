"""One run of a worker, from its first poll to its last ack.

    run
    ├── mailbox, signals         from before the first connection until after the last
    └── _live
        ├── client               acks; connects again by itself, for ever
        ├── lifespan             the application's own resources, open while handlers run
        ├── core: receiver and keeper (a thread each), settler
        └── handlers             one task per running message

The stop has three steps. *Quiet*: no more polls, what was not started is released at once, what runs goes on.
*Patience over* (`stop_timeout`, or a second signal): handlers are told; async ones are cancelled, those in threads have
`STOP_GRACE_S` to look. *End*: what still runs in a thread is left to itself, and said. A cancellation from outside is
the last two steps at once.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Final

import anyio
import anyio.abc
import anyio.to_thread
import attrs

from walrq.client.asynchronous import Client
from walrq.client.config import ClientConfig, resolve
from walrq.errors import InvalidArgument, Unavailable, WalrqError
from walrq.worker.intake import Intake, Target
from walrq.worker.keeper import Keeper
from walrq.worker.leases import Held
from walrq.worker.mailbox import Mailbox
from walrq.worker.outcomes import RELEASED, Outcome, Verdict
from walrq.worker.receiving import Receiver, pause_s
from walrq.worker.records import ids
from walrq.worker.running import Middleware, Runner
from walrq.worker.settling import Settler
from walrq.worker.tasks import RETRIES_HEADER

log = logging.getLogger("walrq.worker")

# Signals so soon after another are the same one.
SAME_SIGNAL_S: Final = 0.1
# Handlers in threads may notice within this time that they should stop.
STOP_GRACE_S: Final = 2.0
# Longest wait at the end for the answers to acks: beyond it the leases run out by themselves.
LAST_ACKS_S: Final = 10.0

CLEAN: Final = 0
HANDLERS_CANCELLED: Final = 8
"""Exit status: the stop had to end handlers before they were done."""


@attrs.frozen(kw_only=True)
class Plan:
    """All that one run needs to know; `Worker` makes it.

    Attributes:
        url: the server's address.
        config: how the connections behave.
        targets: who handles what.
        concurrency: handlers at a time.
        prefetch: messages that wait here for their turn.
        lease_s: what every lease is asked for.
        stop_timeout_s: how long running handlers may take after a stop.
        middleware: from the outermost to the innermost.
        lifespan: context managers around the run.
        signals: whether SIGTERM and SIGINT stop this run.
        process_ends: whether the process ends right after the run, and its threads with it.
    """

    url: str | Sequence[str] | None
    config: ClientConfig | None
    targets: Sequence[Target]
    concurrency: int
    prefetch: int
    lease_s: float
    stop_timeout_s: float
    middleware: Sequence[Middleware]
    lifespan: Sequence[Callable[[], AbstractAsyncContextManager[None]]]
    signals: bool
    process_ends: bool


class Serving:
    """See the module. Made and run in one event loop, once."""

    def __init__(self, plan: Plan, started: Callable[[Client], None]) -> None:
        """`started` is called in the loop once messages are asked for."""
        self._plan = plan
        self._started = started
        self._endpoints, self._config = resolve(plan.url, plan.config, {})
        self._mailbox = Mailbox()
        self._keeper = Keeper(self._endpoints, self._config, plan.lease_s, self._mailbox)
        self._receiver = Receiver(self._endpoints, self._config, plan.lease_s, self._keeper, self._mailbox, self._heard)
        self._runner = Runner(
            self._keeper,
            plan.middleware,
            plan.concurrency,
            interrupted=self._interrupted,
            releases_abandoned=plan.process_ends,
        )
        self._intake = Intake(plan.targets, plan.concurrency, plan.prefetch)
        self._running: set[Held] = set()
        self._quiet = False
        # Raised by a handler, and not yet by `run`: whoever awaits it should be interrupted too.
        self._interrupt: KeyboardInterrupt | None = None
        self._status = CLEAN
        self._waiting = anyio.CancelScope()  # around what waits until the stop
        self._patience = anyio.CancelScope()
        self._settling = anyio.CancelScope(shield=True)
        # The queues of the poll under way; empty when there is none.
        self._asked: Sequence[str] = ()
        # Messages came, or there is room for some.
        self._news = anyio.Event()
        self._ended = anyio.Event()
        self._received_all = anyio.Event()
        self._settler: Settler

    # --- stopping -------------------------------------------------------------------------------------------
    def stop(self) -> None:
        """Become quiet, then end. From any thread; a second call is more urgent than the first."""
        self._mailbox.post(self._stop)

    def _stop(self) -> None:
        if self._quiet:
            self._patience.cancel()
            return
        self._quiet = True
        log.info(
            "stopping running=%d held=%d at_most=%gs",
            len(self._running),
            self._intake.held,
            self._plan.stop_timeout_s,
        )
        self._waiting.cancel()

    def _interrupted(self, interrupt: KeyboardInterrupt) -> None:
        """A handler was interrupted: as a SIGINT that came there first."""
        self._interrupt = self._interrupt or interrupt
        log.warning("interrupted: a handler raised KeyboardInterrupt, so this worker stops")
        self._stop()

    async def _watch_signals(self) -> None:
        numbers = (signal.SIGTERM, signal.SIGINT)
        try:
            with anyio.open_signal_receiver(*numbers) as signals:
                taken_at = -math.inf
                async for number in signals:
                    now = time.monotonic()
                    # A terminal sends Ctrl-C to the whole group, and a parent may pass its own on: that is one signal.
                    if now - taken_at > SAME_SIGNAL_S:
                        taken_at = now
                        log.info("signal %s", signal.Signals(number).name)
                        self._stop()
        finally:
            if self._plan.process_ends:
                # One more signal would not end it any sooner, and take its exit status away.
                for number in numbers:
                    signal.signal(number, signal.SIG_IGN)

    # --- the tree -------------------------------------------------------------------------------------------
    async def run(self) -> int:
        """Serve until stopped; the exit status.

        Raises:
            WalrqError: the server refuses this client for good.
            KeyboardInterrupt: a handler raised it, and signals are not this run's business.
            Exception: what the lifespan raised.
        """
        failure: BaseException | None = None
        try:
            async with anyio.create_task_group() as around:
                around.start_soon(self._mailbox.run)
                if self._plan.signals and threading.current_thread() is threading.main_thread():
                    around.start_soon(self._watch_signals)
                try:
                    await self._live()
                except Exception as error:  # noqa: BLE001 - raised below, outside the group
                    failure = error
                around.cancel_scope.cancel()
        finally:
            self._receiver.close()
            self._keeper.close()
            self._mailbox.close()
        if failure is not None:
            raise _single(failure)
        log.info("stopped status=%d", self._status)
        if self._interrupt is not None and not self._plan.signals:
            raise self._interrupt
        return self._status

    async def _live(self) -> None:
        async with AsyncExitStack() as stack:
            client = await self._connect(stack)
            if client is None:
                return
            stack.push_async_callback(self._release_abandoned, client)
            for manager in self._plan.lifespan:
                await stack.enter_async_context(manager())
            self._settler = Settler(client, self._keeper, self._let_go)
            async with anyio.create_task_group() as core:
                core.start_soon(self._keep)
                core.start_soon(self._settle_all)
                core.start_soon(self._receive_all)
                try:
                    self._say_started()
                    self._started(client)
                    await self._work()
                finally:
                    with anyio.CancelScope(shield=True):
                        self._receiver.stop()
                        await self._received_all.wait()
                        await self._last_acks()
                    self._keeper.stop()
                    self._settling.cancel()

    def _say_started(self) -> None:
        plan = self._plan
        log.info(
            "started queues=%s concurrency=%d prefetch=%d lease_s=%g server=walrq://%s",
            ",".join(self._intake.queues),
            plan.concurrency,
            plan.prefetch,
            plan.lease_s,
            ",".join(map(str, self._endpoints)),
        )

    async def _connect(self, stack: AsyncExitStack) -> Client | None:
        """The connected client; None when the stop came first."""
        tries = 0
        while not self._quiet:
            try:
                # Not within a scope of ours: what a client starts lives on when this returns.
                return await stack.enter_async_context(Client(self._endpoints, self._config))
            except Unavailable as error:
                tries += 1
                if tries == 1:
                    log.warning("waiting for the server: %s", error.text)
            with anyio.CancelScope() as self._waiting:
                await anyio.sleep(pause_s(tries))
        return None

    async def _keep(self) -> None:
        await anyio.to_thread.run_sync(self._keeper.run, limiter=anyio.CapacityLimiter(1))

    async def _receive_all(self) -> None:
        try:
            await anyio.to_thread.run_sync(self._receiver.run, limiter=anyio.CapacityLimiter(1))
        finally:
            self._received_all.set()

    async def _settle_all(self) -> None:
        # A cancelled worker still gives back what it holds: this ends when the core says so.
        with self._settling:
            await self._settler.run()

    async def _last_acks(self) -> None:
        self._give_back()
        with anyio.move_on_after(LAST_ACKS_S) as patience:
            await self._settler.drain()
        if patience.cancelled_caught:
            log.warning("unanswered count=%d: these leases run out by themselves", self._settler.owed)

    async def _release_abandoned(self, client: Client) -> None:
        """The process ends now: what still runs in its threads ends with it, and goes to another worker."""
        messages = [held.message for held in self._runner.abandoned if held.lost is None]
        if not messages or not self._plan.process_ends:
            return
        with anyio.move_on_after(LAST_ACKS_S, shield=True):
            try:
                await client.nack(messages, "release")
            except WalrqError as error:
                log.warning("release_failed count=%d: %s", len(messages), error.text)

    # --- work -----------------------------------------------------------------------------------------------
    async def _work(self) -> None:
        async with anyio.create_task_group() as handlers:
            with anyio.CancelScope() as self._waiting:
                while not self._quiet:
                    self._news = anyio.Event()
                    self._take_in()
                    self._start(handlers)
                    self._ask()
                    await self._news.wait()
            self._receiver.stop()
            self._give_back()
            with self._patience:
                with anyio.move_on_after(self._plan.stop_timeout_s):
                    await self._wait_ended()
            if self._running:
                await self._end_handlers()
                handlers.cancel_scope.cancel()

    def _ask(self) -> None:
        if self._asked:
            return
        queues, most = self._intake.wanted()
        if queues:
            self._asked = queues
            self._receiver.ask(queues, most)

    def _heard(self) -> None:
        """A poll is over. Handlers are started by `_work`, whose context they inherit."""
        self._asked = ()
        if self._quiet:
            self._give_back()
        self._news.set()

    def _give_back(self) -> None:
        """What is not started goes back, at once and free of charge."""
        self._take_in()
        for held in self._intake.not_started():
            self._settle(held, RELEASED)

    def _take_in(self) -> None:
        """Sort what has arrived: its leases are kept already."""
        arrived = self._receiver.arrived
        while arrived:
            held = arrived.popleft()
            self._intake.take(held)
            try:
                target = self._intake.target(held)
            except InvalidArgument as error:
                named = ids(held.message)
                log.warning("rejected %s: %s", named, error.text, extra=named.fields)
                self._settle(held, Outcome(Verdict.REJECT, error))
                continue
            held.task = target.name
            held.retries = _retries_of(held, target)
            self._intake.wait(held, target)

    def _start(self, handlers: anyio.abc.TaskGroup) -> None:
        while (found := self._intake.next()) is not None:
            held, target = found
            self._running.add(held)
            handlers.start_soon(self._handle, held, target, handlers)

    async def _handle(self, held: Held, target: Target, handlers: anyio.abc.TaskGroup) -> None:
        outcome: Outcome | None = None
        try:
            outcome = await self._runner.run(held, target)
        finally:
            self._running.discard(held)
            self._intake.ended(target)
            self._settle(held, outcome)
            # A cancelled worker starts nothing any more.
            if not self._quiet and anyio.current_effective_deadline() > -math.inf:
                self._start(handlers)
            if not self._running:
                self._ended.set()

    def _settle(self, held: Held, outcome: Outcome | None) -> None:
        """A message's place became free; the server is told what became of it, if there is anything to tell."""
        self._intake.settle(held)
        if outcome is None:
            self._keeper.let_go(held)
            self._let_go(held)
        else:
            self._settler.put(held, outcome)
            self._look_for_room(held)

    def _let_go(self, held: Held) -> None:
        """Nothing is owed to the server any more."""
        self._intake.let_go()
        self._look_for_room(held)

    def _look_for_room(self, held: Held) -> None:
        """A poll that waits for room is made, one that leaves out this message's queue begins anew."""
        queue = held.message.queue
        if not self._asked:
            self._news.set()
        elif queue not in self._asked and self._intake.has_room(queue):
            self._receiver.end_ask()

    async def _wait_ended(self) -> None:
        while self._running:
            self._ended = anyio.Event()
            await self._ended.wait()

    async def _end_handlers(self) -> None:
        self._status = HANDLERS_CANCELLED
        log.warning("cancelling running=%d: they were not done within the stop's time", len(self._running))
        for held in list(self._running):
            held.stopping = True
            if held.interrupt is not None:
                held.interrupt()
        with anyio.move_on_after(STOP_GRACE_S):
            await self._wait_ended()


def _retries_of(held: Held, target: Target) -> int | None:
    """Attempts after the first: the message's own, else its task's."""
    own = held.headers.get(RETRIES_HEADER)
    if target.name is not None and isinstance(own, int) and not isinstance(own, bool) and own >= 0:
        return own
    return target.retries


def _single(error: BaseException) -> BaseException:
    """The only exception within a group of one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
