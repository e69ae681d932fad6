"""Results of handlers, gathered to few requests and repeated until the server has answered.

What ended while the previous request was on its way goes together in the next: many acks are one write on the
server's disk. An ack is never given up while there is a worker: through an outage it is repeated, and the lease is
extended meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio

from walrq.client.asynchronous import Client
from walrq.client.failures import BatchError
from walrq.client.messages import Message
from walrq.errors import OutcomeUnknown, ReceiptExpired, Unavailable, WalrqError
from walrq.worker.keeper import Keeper
from walrq.worker.leases import Held
from walrq.worker.outcomes import Outcome, Verdict
from walrq.worker.records import ids

log = logging.getLogger("walrq.worker")

PAUSE_S: Final = (0.05, 2.0)
# How long a queue's setting is believed: it is asked for the log only.
SETTING_S: Final = 10.0
SETTING_PATIENCE_S: Final = 1.0


class Settler:
    """See the module."""

    def __init__(self, client: Client, keeper: Keeper, let_go: Callable[[Held], None]) -> None:
        """`let_go` is called for each message once nothing is owed to it any more."""
        self._client = client
        self._keeper = keeper
        self._let_go = let_go
        self._waiting: list[tuple[Held, Outcome]] = []
        self._under_way = 0
        self._news = anyio.Event()
        self._idle = anyio.Event()
        self._idle.set()
        # (moment of the answer, max_deliveries) by queue.
        self._limits: dict[str, tuple[float, int | None]] = {}

    def put(self, held: Held, outcome: Outcome) -> None:
        """A handler ended so."""
        self._keeper.settle(held)
        if self._idle.is_set():
            self._idle = anyio.Event()
        self._waiting.append((held, outcome))
        self._news.set()

    async def drain(self) -> None:
        """Wait until everything is answered."""
        await self._idle.wait()

    @property
    def owed(self) -> int:
        """Messages without an answer so far."""
        return len(self._waiting) + self._under_way

    async def run(self) -> None:
        """Settle until cancelled."""
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            batch, self._waiting = self._waiting, []
            self._under_way = len(batch)
            async with anyio.create_task_group() as group:
                for verdict in (Verdict.ACK, Verdict.RELEASE):
                    together = [held for held, outcome in batch if outcome.verdict is verdict]
                    if together:
                        group.start_soon(self._settle, together, Outcome(verdict))
                for held, outcome in batch:
                    if outcome.verdict in (Verdict.FAIL, Verdict.REJECT):
                        group.start_soon(self._settle, [held], outcome)
            self._under_way = 0
            if not self._waiting:
                self._idle.set()

    async def _settle(self, owed: Sequence[Held], outcome: Outcome) -> None:
        """One verdict on several messages, until each is answered."""
        tries = 0
        unsure = False
        while owed:
            refused, again = await self._ask(owed, outcome)
            for held in owed:
                if held in again:
                    continue
                error = refused.get(held)
                if error is not None:
                    self._say_refused(held, outcome, error, unsure)
                self._keeper.let_go(held)
                self._let_go(held)
                if error is None and outcome.verdict is Verdict.FAIL:
                    await self._say_if_dead(held)
            unsure = unsure or any(not error.definite for error in again.values())
            owed = list(again)
            if owed:
                tries += 1
                first, most = PAUSE_S
                log.debug("settle_again count=%d tries=%d: %s", len(owed), tries, next(iter(again.values())).text)
                await anyio.sleep(min(most, first * 2.0 ** min(tries, 10)))

    async def _ask(
        self, owed: Sequence[Held], outcome: Outcome
    ) -> tuple[dict[Held, WalrqError], dict[Held, WalrqError]]:
        """One try: what was refused for good, and what has to be asked again."""
        whose = {id(held.message): held for held in owed}
        failed: dict[Held, WalrqError] = {}
        try:
            await self._request(outcome)([held.message for held in owed])
        except BatchError as error:
            failed = {whose[id(failure.entry)]: failure.error for failure in error.failures}
        except WalrqError as error:
            failed = dict.fromkeys(owed, error)
        again: dict[Held, WalrqError] = {
            held: error for held, error in failed.items() if isinstance(error, Unavailable | OutcomeUnknown)
        }
        return {held: error for held, error in failed.items() if held not in again}, again

    def _request(self, outcome: Outcome) -> Callable[[list[Message]], Awaitable[None]]:
        client = self._client
        match outcome.verdict:
            case Verdict.ACK:
                return client.ack
            case Verdict.RELEASE:
                return lambda messages: client.nack(messages, "release")
            case Verdict.FAIL:
                return lambda messages: client.nack(messages, "fail", outcome.delay, outcome.error)
            case Verdict.REJECT:
                return lambda messages: client.nack(messages, "reject", error=outcome.error)

    async def _say_if_dead(self, held: Held) -> None:
        """A failure was counted: when it was the last one, a person wants to know that nobody will try again."""
        failures = held.message.attempts + 1
        if held.retries is not None:
            most: int | None = held.retries + 1
        else:
            most = await self._limit(held.message.queue)
        if most is not None and failures >= most:
            named = ids(held.message, held.task)
            log.error("dead %s: failures=%d of %d, no more attempts", named, failures, most, extra=named.fields)

    async def _limit(self, queue: str) -> int | None:
        """The queue's `max_deliveries`, unless nobody can say."""
        now = time.monotonic()
        asked_at, found = self._limits.get(queue, (-SETTING_S, None))
        if now - asked_at < SETTING_S:
            return found
        found = None
        try:
            # Other results wait behind this one: a log line is not worth more than a moment.
            with anyio.move_on_after(SETTING_PATIENCE_S):
                found = int((await self._client.show_queue(queue)).settings["max_deliveries"])
        except WalrqError as error:
            log.debug("no_setting queue=%s: %s", queue, error.text)
        self._limits[queue] = (now, found)
        return found

    def _say_refused(self, held: Held, outcome: Outcome, error: WalrqError, unsure: bool) -> None:
        named = ids(held.message, held.task)
        if not isinstance(error, ReceiptExpired):
            log.error("settle_failed %s: %s: %s", named, outcome.verdict.value, error.text, extra=named.fields)
        elif unsure:
            log.info("settle_unknown %s: an earlier try may have been taken", named, extra=named.fields)
        elif outcome.verdict is Verdict.ACK:
            log.warning(
                "ack_refused %s: the lease was over before the handler was done, so the message is handed out again:"
                " the handler should be idempotent (remember the message id), or its lease longer",
                named,
                extra=named.fields,
            )
        else:
            log.info("lease_over %s: %s came too late", named, outcome.verdict.value, extra=named.fields)
