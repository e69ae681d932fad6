"""A command for each message: `walrq poll --exec`. Its exit status is the verdict.

    poll ─► lease ─► start ─┬─ exit 0       ack
                            ├─ exit 65      reject: dead now                  (EX_DATAERR)
                            ├─ exit 75      release: back to its place, free  (EX_TEMPFAIL)
                            ├─ any other    fail: counts, the end of standard error is the reason
                            ├─ lease lost   the command is ended; somebody else has the message
                            └─ we are asked to stop: finish within the grace, else ended and released

Only as many messages are leased as commands may run, so nothing waits under a lease. A lease is extended when
half of it is over. A command runs in a process group of its own: Ctrl-C reaches us alone, and ending it ends
what it started.
"""

from __future__ import annotations

import enum
import json
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

import attrs
import trio

from walrq.client.asynchronous import Client
from walrq.client.messages import Message
from walrq.errors import BodyLost, OutcomeUnknown, ReceiptExpired, ReceiptInvalid, Unavailable, WalrqError

EXIT_REJECT: Final = 65
EXIT_RELEASE: Final = 75
# A released message is the next to be delivered: without a pause a command that cannot work now would spin.
RELEASE_PAUSE_S: Final = 1.0
KILL_AFTER_S: Final = 5.0
# What is still to be settled when we stop has so long.
LAST_SETTLE_S: Final = 5.0
# What holds standard error open beyond the command's end is a child it left behind.
LAST_WORDS_S: Final = 0.2
# One poll of a follower that never gives up.
FOLLOW_WAIT_S: Final = 20.0
# An empty answer sooner than this before the end of the wait is not the end of the wait.
EARLY_S: Final = 0.1
STDERR_BYTES_KEPT: Final = 3_500
VARIABLE_BYTES_MAX: Final = 32_768
_NO_NAME: Final = re.compile(r"[^A-Z0-9]+")


class CommandFailed(Exception):
    """What a death report calls a command that failed."""


class Verdict(enum.Enum):
    """What became of a message."""

    ACKED = "acked"
    FAILED = "failed"
    REJECTED = "rejected"
    RELEASED = "released"
    LOST = "lost"


@attrs.frozen
class Outcome:
    """One command's end.

    Attributes:
        status: its exit status, negative for a signal; None when it did not start.
        seconds: how long it ran.
        error: why the message is not done; "" when it is.
    """

    queue: str
    message_id: str
    verdict: Verdict
    status: int | None
    seconds: float
    error: str


@attrs.frozen
class Plan:
    """What is to be done.

    Attributes:
        queues: polled, the first that has messages goes first.
        command: words to execute.
        concurrency: commands at a time.
        limit: messages in all; None = without end.
        wait_s: end when nothing came for so long; None = never.
        visibility_s: of a lease; None = the queue's setting.
        grace_s: how long running commands may go on when we are asked to stop.
        kill_after_s: between SIGTERM and SIGKILL for a command that is ended.
        own_output: the commands' standard output is ours (else it goes to standard error).
        variables: added to the environment of each command.
    """

    queues: tuple[str, ...]
    command: tuple[str, ...]
    concurrency: int = 1
    limit: int | None = None
    wait_s: float | None = None
    visibility_s: float | None = None
    grace_s: float = 10.0
    kill_after_s: float = KILL_AFTER_S
    own_output: bool = True
    variables: Mapping[str, str] = attrs.field(factory=dict)


def variables(message: Message) -> dict[str, str]:
    """What a command is told of its message, as environment variables."""
    headers = message.headers
    found = {
        "QUEUE": message.queue,
        "MESSAGE_ID": message.message_id,
        "RECEIPT_HANDLE": message.receipt_handle,
        "DELIVERY": str(message.delivery),
        "ATTEMPTS": str(message.attempts),
        "PRIORITY": str(message.priority),
        "PUSHED_AT": message.pushed_at.isoformat(timespec="milliseconds"),
        "FENCE": ".".join(map(str, message.fence)),
        "GROUP": message.group or "",
        "HEADERS": json.dumps(headers, default=_hex),
    }
    for name, given in headers.items():
        key = _NO_NAME.sub("_", name.upper()).strip("_")
        if key and isinstance(given, str | int | float):
            text = json.dumps(given) if isinstance(given, bool) else str(given)
            found.setdefault(f"HEADER_{key}", text)
    # What an environment cannot hold is left out; HEADERS escapes what it contains.
    return {
        f"WALRQ_{name}": text
        for name, text in found.items()
        if "\0" not in text and len(text.encode()) <= VARIABLE_BYTES_MAX
    }


def _hex(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} has no JSON form")


@attrs.define(eq=False)
class Handover:
    """Runs the commands of one plan.

    Attributes:
        report: told of every outcome.
        status: what the process should exit with when it was asked to stop by a signal, else None.
        done: how many messages had each verdict.
    """

    client: Client
    plan: Plan
    report: Callable[[Outcome], None]
    status: int | None = None
    done: dict[Verdict, int] = attrs.field(factory=lambda: dict.fromkeys(Verdict, 0))
    _failure: Exception | None = None
    _polling: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _running: set[Run] = attrs.field(factory=set)
    _stopping: trio.Event = attrs.field(factory=trio.Event)
    _taken: trio.Event = attrs.field(factory=trio.Event)
    _slots: trio.Semaphore = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._slots = trio.Semaphore(self.plan.concurrency)

    @property
    def undone(self) -> int:
        """How many messages were handed over and not acknowledged."""
        return sum(self.done.values()) - self.done[Verdict.ACKED]

    async def run(self) -> None:
        """Until there is nothing more to do, or a signal.

        Raises:
            OSError: the command cannot be started at all.
            WalrqError: a poll was refused.
        """
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as heeding:
                heeding.start_soon(self._heed, signals)
                async with trio.open_nursery() as runs:
                    with self._polling:
                        await self._take(runs)
                    self._taken.set()
                heeding.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _heed(self, signals: AsyncIterator[int]) -> None:
        first = True
        async with trio.open_nursery() as waiting:
            async for number in signals:
                if first:
                    first = False
                    self.status = 130 if number == signal.SIGINT else 0
                    self._stop()
                    waiting.start_soon(self._end_after_grace)
                else:
                    self._end_all()

    def _stop(self) -> None:
        """Take nothing more."""
        self._stopping.set()
        self._polling.cancel()

    async def _end_after_grace(self) -> None:
        await trio.sleep(self.plan.grace_s)
        self._end_all()

    def _end_all(self) -> None:
        for run in self._running:
            run.end("the command was ended because walrq poll was asked to stop")

    def _fail(self, error: Exception) -> None:
        """Something makes going on senseless."""
        if self._failure is None:
            self._failure = error
        self._stop()
        self._end_all()

    async def _take(self, runs: trio.Nursery) -> None:
        plan = self.plan
        left = plan.limit
        while left is None or left > 0:
            await self._slots.acquire()
            slots = 1
            while self._slots.value and (left is None or slots < left):
                self._slots.acquire_nowait()
                slots += 1
            try:
                found = await self._poll(slots)
            except WalrqError as error:
                self._fail(error)
                return
            for _ in range(slots - len(found)):
                self._slots.release()
            for message in found:
                run = Run(self, message)
                self._running.add(run)
                runs.start_soon(run.go)
            if not found:
                return
            if left is not None:
                left -= len(found)

    async def _poll(self, number: int) -> Sequence[Message]:
        """At least one message; none when nothing came for long enough."""
        plan = self.plan
        patience_s = FOLLOW_WAIT_S if plan.wait_s is None else plan.wait_s
        until = trio.current_time() + patience_s
        while True:
            left_s = max(0.0, until - trio.current_time())
            found = await self.client.poll(plan.queues, plan.visibility_s, number, wait=left_s)
            if found:
                return found
            if until - trio.current_time() > EARLY_S:
                # A node that is stopping answers its polls at once, with nothing.
                await trio.sleep(EARLY_S)
            elif plan.wait_s is None:
                until = trio.current_time() + patience_s
            else:
                return []

    async def finished(self, run: Run, outcome: Outcome) -> None:
        """A command's message was settled."""
        self._running.discard(run)
        self.done[outcome.verdict] += 1
        try:
            self.report(outcome)
        except OSError as error:
            # Whoever read our output is gone.
            self._fail(error)
        if outcome.verdict is Verdict.RELEASED:
            with trio.move_on_after(RELEASE_PAUSE_S):
                await self._taken.wait()
        self._slots.release()


@attrs.define(eq=False)
class Run:
    """One message and its command."""

    home: Handover
    message: Message
    _why: str = ""
    _lost: bool = False
    _ended: bool = False
    _work: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _words: bytearray = attrs.field(factory=bytearray)

    def end(self, why: str) -> None:
        """End the command; the message is released."""
        if not self._why:
            self._why = why
        self._work.cancel()

    async def go(self) -> None:
        """Run the command and settle the message."""
        started = trio.current_time()
        status: int | None = None
        error: str | None = None
        try:
            status = await self._execute()
        except BodyLost as lost:
            error = lost.text
            verdict = Verdict.REJECTED
        except (FileNotFoundError, PermissionError) as failure:
            # The next message would fare no better.
            error = f"the command cannot be started: {failure.strerror}"
            verdict = Verdict.RELEASED
            self.home._fail(failure)
        except OSError as failure:
            error = f"the command cannot be started: {failure.strerror}"
            verdict = Verdict.FAILED
        else:
            verdict, error = self._judge(status)
        if verdict is not Verdict.LOST:
            verdict, error = await self._settle(verdict, error)
        seconds = trio.current_time() - started
        message = self.message
        outcome = Outcome(message.queue, message.message_id, verdict, status, seconds, error)
        await self.home.finished(self, outcome)

    def _judge(self, status: int) -> tuple[Verdict, str]:
        # Whatever the status of a command that we ended: it may have stopped in the middle, in good order.
        if self._ended and self._lost:
            return Verdict.LOST, "its lease ended while the command ran: it comes again"
        if self._ended:
            return Verdict.RELEASED, self._why
        if status == 0:
            return Verdict.ACKED, ""
        name = f"exit status {status}" if status > 0 else f"ended by {signal.Signals(-status).name}"
        words = self._words[-STDERR_BYTES_KEPT:].decode("utf-8", "replace").strip()
        error = f"{name}\n{words}" if words else name
        if status == EXIT_REJECT:
            return Verdict.REJECTED, error
        if status == EXIT_RELEASE:
            return Verdict.RELEASED, error
        return Verdict.FAILED, error

    async def _settle(self, verdict: Verdict, error: str) -> tuple[Verdict, str]:
        """Tell the server; what really became of the message."""
        client, message = self.home.client, self.message
        with trio.CancelScope() as patience:
            if self.home._stopping.is_set():
                patience.deadline = trio.current_time() + LAST_SETTLE_S
            try:
                if verdict is Verdict.ACKED:
                    await client.ack(message)
                elif verdict is Verdict.RELEASED:
                    await client.nack(message, "release")
                else:
                    mode = "reject" if verdict is Verdict.REJECTED else "fail"
                    await client.nack(message, mode, error=CommandFailed(error))  # type: ignore[arg-type]
            except (ReceiptExpired, ReceiptInvalid):
                return Verdict.LOST, "its lease was over before the command ended: it comes again"
            except WalrqError as failure:
                return Verdict.LOST, f"{verdict.value}, but the server was not told: {failure.text}"
            return verdict, error
        return Verdict.LOST, f"{verdict.value}, but the server could not be told: it comes again"

    async def _execute(self) -> int:
        """Run the command to its end, or end it; its exit status.

        Raises:
            BodyLost: there is no payload to hand over.
            OSError: it cannot be started.
        """
        plan = self.home.plan
        payload = self.message.payload
        process = await trio.lowlevel.open_process(
            list(plan.command),
            stdin=subprocess.PIPE,
            stdout=None if plan.own_output else 2,
            stderr=subprocess.PIPE,
            env={**os.environ, **plan.variables, **variables(self.message)},
            process_group=0,
        )
        try:
            with self._work:
                async with trio.open_nursery() as around:
                    heard = trio.Event()
                    around.start_soon(self._feed, process, payload)
                    around.start_soon(self._hear, process, heard)
                    around.start_soon(self._keep)
                    await process.wait()
                    with trio.move_on_after(LAST_WORDS_S):
                        await heard.wait()
                    around.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await self._finish(process)
        assert process.returncode is not None
        return process.returncode

    async def _finish(self, process: trio.Process) -> None:
        """End the process if it still runs, first politely; close its pipes."""
        if process.returncode is None:
            self._ended = True
            _signal(process, signal.SIGTERM)
            with trio.move_on_after(self.home.plan.kill_after_s):
                await process.wait()
            # Also when the command itself is gone: what it started may have stayed.
            _signal(process, signal.SIGKILL)
            await process.wait()
        for pipe in (process.stdin, process.stderr):
            if pipe is not None:
                await pipe.aclose()

    async def _feed(self, process: trio.Process, payload: bytes) -> None:
        assert process.stdin is not None
        try:
            await process.stdin.send_all(payload)
        except trio.BrokenResourceError:
            pass  # it may end without reading all of it; its exit status tells
        await process.stdin.aclose()

    async def _hear(self, process: trio.Process, heard: trio.Event) -> None:
        """Pass standard error on and remember its end."""
        assert process.stderr is not None
        passed_on = True
        async for data in process.stderr:
            self._words += data
            del self._words[:-STDERR_BYTES_KEPT]
            try:
                passed_on = passed_on and os.write(2, data) > 0
            except OSError:
                passed_on = False  # nobody listens any more; the death report still gets its end
        heard.set()

    async def _keep(self) -> None:
        """Extend the lease when half of it is over; end the command when it is lost."""
        message = self.message
        lease_s = self.home.plan.visibility_s or max(message.remaining, 0.001)
        while True:
            await trio.sleep(max(0.0, message.remaining - lease_s / 2))
            with trio.move_on_after(max(0.0, message.remaining)):
                try:
                    await self.home.client.touch(message, lease_s)
                    continue
                except (Unavailable, OutcomeUnknown):
                    await trio.sleep(min(1.0, lease_s / 10))
                except WalrqError:
                    break
            if message.remaining <= 0:
                break
        self._lost = True
        self._work.cancel()


def _signal(process: trio.Process, number: int) -> None:
    """Send a signal to the process and all that it started in its group."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass  # all of them are gone
