"""Extends leases and watches time-outs, in a thread of its own with a connection of its own.

Neither a handler that blocks the event loop nor one that keeps every thread busy holds it up; what holds the
interpreter itself (C code that keeps the GIL, a machine that stands still) does, and then the loss is said, with how
long it took. Time is the client's clock (`ClientConfig.clock`), so that a test can move it.

    receiver's thread  Keeper.take                        \\ under the lock, never waiting for the network
    event loop         Keeper.start, settle, let_go        /
    keeper's thread    Keeper.run: wait, extend, report
    report             Mailbox: flags are set here at once; what ends a handler is called in the event loop
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Sequence
from typing import Final

import attrs

from walrq.client.blocking import Client
from walrq.client.config import ClientConfig, Endpoint
from walrq.client.failures import BatchError
from walrq.client.messages import Message
from walrq.errors import LocalProtocolError, OutcomeUnknown, Unavailable, WalrqError
from walrq.limits import VISIBILITY_MS_MAX
from walrq.worker.leases import IDLE_S, Held, Ledger, Stage
from walrq.worker.mailbox import Mailbox, Watch
from walrq.worker.records import ids

log = logging.getLogger("walrq.worker")

# How long one extension may take before it counts as failed, as a share of the lease and in seconds.
PATIENCE_SHARE: Final = 1 / 6
PATIENCE_S: Final = (0.2, 5.0)
# A wake-up so much too late, as a share of the lease, is worth a remark when a lease was lost by it.
LATE_SHARE: Final = 1 / 10


class _Stopped(Exception):
    """Ends a call that the keeper waits in."""


class Keeper:
    """See the module. `run` in a thread; everything else from anywhere."""

    def __init__(self, endpoints: Sequence[Endpoint], config: ClientConfig, lease_s: float, mailbox: Mailbox) -> None:
        low, high = PATIENCE_S
        patience = min(high, max(low, lease_s * PATIENCE_SHARE), config.timeout_s)
        self._clock = config.clock
        self._client = Client(
            endpoints,
            # One connection: whoever stops the keeper wakes it there.
            # A node that says nothing is left early enough for another one to be asked within the same call.
            attrs.evolve(
                config,
                pool=1,
                timeout_s=patience,
                connect_timeout_s=min(patience, config.connect_timeout_s),
                node_timeout_s=min(patience / 2, config.node_timeout_s),
            ),
        )
        self._client.on_turn = self._look_up
        self._mailbox = mailbox
        self._watch = Watch(mailbox, lease_s)
        self._changed = threading.Condition()
        self._ledger = Ledger()
        self._stopping = False
        # The moment up to which the thread sleeps. Invariant: not after the ledger's next due moment.
        self._sleeps_until = 0.0

    # --- from the receiver's thread -------------------------------------------------------------------------
    def take(self, held: Sequence[Held]) -> None:
        """Leases were received: from now on they are kept."""
        with self._changed:
            for each in held:
                self._ledger.take(each)
            self._stir(min(each.due for each in held))

    # --- from the event loop --------------------------------------------------------------------------------
    def start(self, held: Held, timeout_s: float | None) -> bool:
        """Its handler starts now; False when the lease is over before that."""
        with self._changed:
            if held.lost is not None:
                return False
            if held.message.remaining <= 0:
                # A poll that was repeated over an outage counts its lease from when it was asked first: it may be
                # somebody else's by now, or still be ours for a while.
                held.lost = "its time may be over"
                self._ledger.let_go(held)
                return False
            held.stage = Stage.RUNNING
            if timeout_s is not None:
                held.timeout_at = self._clock.monotonic() + timeout_s
                self._stir(held.due)
            return True

    def settle(self, held: Held) -> None:
        """Its handler ended; what the server says of the lease from now on is the answer's business."""
        with self._changed:
            held.stage = Stage.SETTLING
            held.interrupt = None

    def let_go(self, held: Held) -> None:
        """It is settled."""
        with self._changed:
            self._ledger.let_go(held)

    def _stir(self, due: float) -> None:
        if due < self._sleeps_until:
            self._changed.notify_all()

    # --- from handlers, in any thread -----------------------------------------------------------------------
    def extend(self, held: Held, seconds: float) -> None:
        """Let one lease end no earlier than `seconds` from now, and wait for the answer.

        Raises:
            WalrqError: the server refused, or could not be asked in time.
        """
        try:
            self._client.touch(held.message, seconds)
        except WalrqError as error:
            if not _may_pass(error):
                self._lose(held, error.text, 0.0)
            raise
        with self._changed:
            # Planned as for an ordinary lease: a third of that before its end there is still time for more.
            self._ledger.extended((held,))

    # --- the thread -----------------------------------------------------------------------------------------
    def run(self) -> None:
        """Keep what is held until `stop`. Blocking."""
        try:
            with self._changed:
                while not self._stopping:
                    self._turn()
        except _Stopped:
            pass  # in the middle of a call; what is left is the settler's
        finally:
            self._clock.leave(self._changed)
            self._client.on_turn = None
            self._client.close()

    def stop(self) -> None:
        """End `run`, also in the middle of a call."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        # The descriptor may be gone already when the thread ended by itself.
        with contextlib.suppress(OSError):
            os.write(self._client.wake_descriptor, b"!")

    def close(self) -> None:
        """Close the connection; fine when `run` did, or never began."""
        self._client.close()

    def _look_up(self) -> None:
        if self._stopping:
            raise _Stopped

    def _turn(self) -> None:
        """One wait, or one piece of work. The lock is held on entry and on return."""
        now = self._clock.monotonic()
        for held in self._ledger.overdue(now):
            self._interrupt(held)
        due = self._ledger.to_extend(now)
        if not due:
            self._sleeps_until = min(self._ledger.due(), now + IDLE_S)
            self._clock.wait(self._changed, self._sleeps_until)
            return
        self._watch.look()
        late_s = max(0.0, now - self._sleeps_until)
        self._sleeps_until = 0.0
        self._changed.release()
        try:
            refused, answered = self._touch(due)
        finally:
            self._changed.acquire()
        now = self._clock.monotonic()
        for held, error in refused.items():
            if self._ledger.refused(held, error.text):
                self._report(held, late_s)
        if answered:
            self._ledger.extended(held for held in due if held not in refused)
        else:
            for held in self._ledger.unanswered((held for held in due if held not in refused), now):
                self._report(held, late_s)

    def _touch(self, due: Sequence[Held]) -> tuple[dict[Held, WalrqError], bool]:
        """Ask for longer leases: what was refused and why, and whether the rest was answered."""
        refused: dict[Held, WalrqError] = {}
        answered = True
        by_lease: dict[float, list[Held]] = {}
        for held in due:
            by_lease.setdefault(held.lease_s, []).append(held)
        for lease_s, group in by_lease.items():
            whose = {id(held.message): held for held in group}
            try:
                self._client.touch([held.message for held in group], min(lease_s, VISIBILITY_MS_MAX / 1000))
            except BatchError as error:
                for failure in error.failures:
                    entry = failure.entry
                    if isinstance(entry, Message) and not _may_pass(failure.error):
                        refused[whose[id(entry)]] = failure.error
                    else:
                        answered = False
            except WalrqError as error:
                if _may_pass(error):
                    answered = False
                    log.debug("extend_failed held=%d: %s", len(group), error.text)
                else:
                    refused.update(dict.fromkeys(group, error))
        return refused, answered

    def _lose(self, held: Held, why: str, late_s: float) -> None:
        with self._changed:
            if self._ledger.refused(held, why):
                self._report(held, late_s)

    def _report(self, held: Held, late_s: float) -> None:
        """A lease is lost: say so, and tell the handler."""
        where = "while it ran" if held.stage is Stage.RUNNING else f"while it was {held.stage.value}"
        why = held.lost
        if late_s > held.lease_s * LATE_SHARE:
            why = f"{why}; extending came {late_s:.1f} s late: something kept the interpreter (the GIL) or the machine"
        named = ids(held.message, held.task)
        log.warning("lease_lost %s: %s: %s", named, where, why, extra=named.fields)
        self._interrupt(held)

    def _interrupt(self, held: Held) -> None:
        interrupt = held.interrupt
        if interrupt is not None:
            self._mailbox.post(interrupt)


def _may_pass(error: WalrqError) -> bool:
    """Whether the same extension may succeed later: no word about the lease has been said."""
    return isinstance(error, Unavailable | OutcomeUnknown | LocalProtocolError)
