"""Asks for messages, in a thread of its own with a connection of its own.

So a lease is kept from the moment at which its message arrives, whatever the event loop is doing: a handler that blocks
the loop holds up the start of what came, and loses nothing of it.

    event loop          Receiver.ask(queues, most) ... one call of `heard` per ask ... Receiver.ask ...
    receiver's thread   poll -> Keeper.take -> `arrived` -> Mailbox -> `heard`

One ask at a time: no more is leased than the loop has places for, even while it does not listen.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from walrq.client.blocking import Client
from walrq.client.config import ClientConfig, Endpoint
from walrq.client.messages import Message
from walrq.errors import OutcomeUnknown, QueueDeleted, Unavailable
from walrq.worker.keeper import Keeper
from walrq.worker.leases import Held
from walrq.worker.mailbox import Mailbox

log = logging.getLogger("walrq.worker")

# One poll waits so long for messages; the next follows at once.
POLL_WAIT_S: Final = 20.0
PAUSE_S: Final = (0.1, 5.0)


class _Ended(Exception):
    """Ends a poll that nobody wants any more."""


@attrs.define(eq=False)
class _Ask:
    """What one poll is for.

    Attributes:
        queues, most: to take from, and how much.
        over: it is not wanted any more.
    """

    queues: Sequence[str]
    most: int
    over: bool = False


class Receiver:
    """See the module. `run` in a thread, everything else in the event loop.

    Attributes:
        arrived: what the loop has not taken yet, in order; its leases are kept. The thread appends, the loop takes.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        config: ClientConfig,
        lease_s: float,
        keeper: Keeper,
        mailbox: Mailbox,
        heard: Callable[[], None],
    ) -> None:
        """`heard` is called in the event loop at the end of each ask, with messages or without."""
        # One connection: whoever ends a poll wakes the thread there.
        self._client = Client(endpoints, attrs.evolve(config, pool=1))
        self._client.on_turn = self._look_up
        self._lease_s = lease_s
        self._keeper = keeper
        self._mailbox = mailbox
        self._heard = heard
        self.arrived: deque[Held] = deque()
        self._changed = threading.Condition()
        # Invariant: at most one is under way or waits, from `ask` until `heard`.
        self._ask: _Ask | None = None
        self._stopping = False
        # Polls in a row that no server answered.
        self._tries = 0

    # --- from the event loop --------------------------------------------------------------------------------
    def ask(self, queues: Sequence[str], most: int) -> None:
        """Poll once. Not before the last ask was heard of."""
        with self._changed:
            self._ask = _Ask(queues, most)
            self._changed.notify_all()

    def end_ask(self) -> None:
        """What was asked for is not wanted any more: `heard` comes soon, and then another may be made."""
        with self._changed:
            if self._ask is not None:
                self._ask.over = True
            self._wake()

    def stop(self) -> None:
        """End `run`, also in the middle of a poll. What has arrived is in `arrived`."""
        with self._changed:
            self._stopping = True
            self._wake()

    def close(self) -> None:
        """Close the connection; fine when `run` did, or never began."""
        self._client.close()

    def _wake(self) -> None:
        self._changed.notify_all()
        # The descriptor may be gone already when the thread ended by itself.
        with contextlib.suppress(OSError):
            os.write(self._client.wake_descriptor, b"!")

    # --- the thread -----------------------------------------------------------------------------------------
    def run(self) -> None:
        """Poll as asked until `stop`. Blocking.

        A connection attempt is not interrupted: beside that, the end takes no time.

        Raises:
            WalrqError: the server refuses these polls for good.
        """
        try:
            while (ask := self._next()) is not None:
                held = [Held(message, self._lease_s) for message in self._poll(ask)]
                if held:
                    self._keeper.take(held)
                    self.arrived.extend(held)
                with self._changed:
                    self._ask = None
                self._mailbox.post(self._heard)
        finally:
            self._client.on_turn = None
            self._client.close()

    def _next(self) -> _Ask | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ask is not None or self._stopping)
            return None if self._stopping else self._ask

    def _look_up(self) -> None:
        """Around every wait for the server; without the lock, which who holds it may hold for as long as a poll."""
        ask = self._ask
        if self._stopping or (ask is not None and ask.over):
            raise _Ended

    def _poll(self, ask: _Ask) -> list[Message]:
        """One poll; nothing when it was ended, or no server answered."""
        try:
            batches = self._client.poll_batch(ask.queues, self._lease_s, ask.most, wait=POLL_WAIT_S)
        except _Ended:
            return []  # the client has told the server to forget it
        except QueueDeleted as error:
            log.info("queue_deleted %s", error.text)
        except (Unavailable, OutcomeUnknown) as error:
            # The client has tried for as long as it may; a worker goes on until it is stopped.
            self._tries += 1
            log.warning("poll_failed tries=%d: %s", self._tries, error.text)
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or ask.over, pause_s(self._tries))
        else:
            self._tries = 0
            return [message for batch in batches for message in batch.messages_as(Message)]
        return []


def pause_s(tries: int) -> float:
    """Seconds until the next try after `tries` that no server answered."""
    first, most = PAUSE_S
    return min(most, first * 2.0 ** min(tries - 1, 10))
