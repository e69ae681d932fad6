"""The asynchronous client: one connection, one nursery, any number of callers; under trio and under asyncio.

    Client (entered with `async with`), _live
    ├── _keep_connected   connects, and connects again; below it per connection
    │   ├── _read         bytes -> Exchange -> wakes the callers whose answers came
    │   └── _write        one send for all that callers made since the last
    └── _tick             back-off, time-outs, keep-alive; sleeps while nothing is under way

A call costs no task: it hands its request to the `Exchange` and waits on one event. Concurrent callers share
the connection; what they ask in one turn of the loop leaves in one send.
"""

from __future__ import annotations

import math
import random
import socket
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

import anyio
import anyio.abc

from walrq import api
from walrq.client import operations as op
from walrq.client.addresses import explain, next_address, tune
from walrq.client.config import ClientConfig, Endpoint
from walrq.client.exchange import Call, Exchange, Link
from walrq.client.messages import Batch, Message, MessageIds, NewMessage, Seen, seen
from walrq.client.operations import UNSET, Payload, PushOptions, Settleable, Settlement
from walrq.errors import LocalProtocolError, OutcomeUnknown, RemoteProtocolError, Unavailable, WalrqError
from walrq.limits import LIST_QUEUES_MAX, PEEK_MESSAGES_MAX, REDRIVE_PER_ENTRY

R = TypeVar("R")

RECEIVE_BYTES: Final = 256 * 1024
TICK_S: Final = 0.1
CLOSE_S: Final = 1.0
# What a stream raises when its connection ends.
BROKEN: Final = (OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class AsyncBatch(Batch):
    """A `Batch` that knows its client."""

    __slots__ = ("_client",)
    _client: Client

    async def ack(self) -> None:
        """Acknowledge every message of the batch that is still outstanding."""
        await self._client.ack(self)


class Client:
    """A connection to walrq; make one with `walrq.aio.connect` and enter it with `async with`.

    All methods may be called by many tasks at once. A call that is cancelled leaves nothing leased behind.
    """

    def __init__(self, endpoints: Sequence[Endpoint], config: ClientConfig) -> None:
        self._endpoints = tuple(endpoints)
        self.config = config
        self._rng = random.Random()
        self._exchange = Exchange(config, self._rng)
        self._output = anyio.Event()
        self._drained = anyio.Event()
        self._first = anyio.Event()
        self._first_error: WalrqError | None = None
        self._stirring = anyio.Event()
        self._tick_sleeps = False
        self._closed = True
        self._heard_at = 0.0
        self._probed = False
        self._stream: anyio.abc.ByteStream | None = None
        self._raw: socket.socket | None = None
        # What a direct send left over. Invariant: empty unless the writer was woken to send it.
        self._unsent = b""
        self._writer_idle = False
        self._consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        self._left_over: list[Settlement] = []
        self._tasks: anyio.abc.TaskGroup | None = None
        self._life = anyio.CancelScope(shield=True)

    # --- life -----------------------------------------------------------------------------------------------
    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            ServerUnreachable: nobody answered at any address.
            WalrqError: the server refused the connection, or is no walrq server.
        """
        if self._tasks is not None:
            raise LocalProtocolError("a client is entered once; make another with walrq.aio.connect")
        self._closed = False
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            self._tasks.start_soon(self._live)
            await self._first.wait()
        except BaseException:
            await self._end_tasks()
            raise
        if self._first_error is not None:
            await self._end_tasks()
            raise self._first_error from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Bounded even when the caller is being cancelled: one send.
        with anyio.move_on_after(CLOSE_S, shield=True):
            await self._say_goodbye()
        await self._end_tasks()

    async def _say_goodbye(self) -> None:
        """Release what consumers hold, end the session, and let the last bytes leave."""
        for consumer in list(self._consumers):
            consumer._release()
        self._give_left_over_back()
        self._closed = True
        exchange = self._exchange
        if not exchange.connected:
            return
        if exchange.session is not None:
            exchange.submit(api.CloseSession(), time.monotonic(), wanted=False)
        self._drained = anyio.Event()
        self._wake_writer()
        await self._drained.wait()

    async def _end_tasks(self) -> None:
        self._closed = True
        tasks = self._tasks
        assert tasks is not None
        self._life.cancel()
        # The caller's exception is not the nursery's business: it leaves as it came, never inside a group.
        await tasks.__aexit__(None, None, None)
        self._wake(self._exchange.fail_all(LocalProtocolError("the client is closed"), time.monotonic()))

    # --- tasks ----------------------------------------------------------------------------------------------
    async def _live(self) -> None:
        """The client's tasks. A cancellation around the whole client reaches them last: callers that it ends
        still have polls to forget, and there is a goodbye to send. `_end_tasks` ends them in every case.
        """
        with self._life:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._keep_connected)
                tasks.start_soon(self._tick)

    async def _keep_connected(self) -> None:
        exchange = self._exchange
        give_up_at = time.monotonic() + self.config.connect_wait_s
        tries = 0
        endpoint = self._endpoints[0]
        round_left = len(self._endpoints)
        while True:
            error = await self._connection(endpoint)
            if error is None:
                tries, round_left = 0, len(self._endpoints)
            endpoint = next_address(self._endpoints, endpoint, exchange.leader)
            if error is not None:
                if not error.retry:
                    # Nothing would change by trying again: those who wait should know now.
                    self._wake(exchange.fail_all(error, time.monotonic()))
                round_left -= 1
                if round_left > 0 and error.retry:
                    continue
                if not self._first.is_set() and (not error.retry or time.monotonic() >= give_up_at):
                    self._first_error = error
                    self._first.set()
                    return
            tries += 1
            round_left = len(self._endpoints)
            await anyio.sleep(exchange.pause_s(tries))

    async def _connection(self, endpoint: Endpoint) -> WalrqError | None:
        """One connection from its opening to its end; the error if it never became usable."""
        exchange = self._exchange
        cause: Exception | None = None
        usable = False
        try:
            with anyio.fail_after(self.config.connect_timeout_s) as patience:
                async with await anyio.connect_tcp(endpoint.host, endpoint.port) as stream:
                    raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
                    tune(raw, self.config.keep_alive_s)
                    # asyncio's own socket object lets nobody send past its transport; there the writer does
                    # it all.
                    own: object = raw
                    self._raw = own if isinstance(own, socket.socket) else None
                    self._writer_idle, self._unsent = False, b""
                    exchange.connecting()
                    self._stream = stream
                    async with anyio.create_task_group() as pair:
                        pair.start_soon(self._write, stream, pair.cancel_scope)
                        usable, cause = await self._read(stream, patience)
                        pair.cancel_scope.cancel()
        except OSError as error:
            cause = error
        finally:
            self._stream = self._raw = None
            usable = usable or exchange.connected
            self._wake(exchange.lost(time.monotonic()))
            self._drained.set()
        return None if usable else explain(endpoint, cause, exchange.refused)

    async def _read(self, stream: anyio.abc.ByteStream, patience: anyio.CancelScope) -> tuple[bool, Exception | None]:
        """Feed the exchange until the connection ends: whether it ever was usable, and what ended it."""
        exchange = self._exchange
        usable = False
        while True:
            try:
                data = await stream.receive(RECEIVE_BYTES)
            except (
                OSError,
                anyio.EndOfStream,
                anyio.BrokenResourceError,
                anyio.ClosedResourceError,
            ) as error:
                return usable, error
            now = self._heard_at = time.monotonic()
            self._probed = False
            made = exchange.made
            self._wake(exchange.receive(data, now))
            if exchange.made != made:
                self._wake_writer()
            if not usable and exchange.connected:
                usable = True
                patience.deadline = math.inf
                self._first.set()
            if exchange.link is Link.DOWN:
                return usable, None

    async def _write(self, stream: anyio.abc.ByteStream, connection: anyio.CancelScope) -> None:
        exchange = self._exchange
        while True:
            data = self._unsent + exchange.take_output()
            self._unsent = b""
            if data:
                try:
                    await stream.send(data)
                except BROKEN:
                    connection.cancel()
                    return
            else:
                self._drained.set()
                self._output = anyio.Event()
                self._writer_idle = True
                await self._output.wait()
                self._writer_idle = False

    async def _tick(self) -> None:
        exchange = self._exchange
        while True:
            now = time.monotonic()
            made = exchange.made
            self._wake(exchange.tick(now))
            if self._left_over:
                self._give_left_over_back()
            self._probe(now)
            if exchange.made != made:
                self._wake_writer()
            due = exchange.next_due()
            if due is None:
                self._stirring = anyio.Event()
                self._tick_sleeps = True
                with anyio.move_on_after(self.config.keep_alive_s):
                    await self._stirring.wait()
                self._tick_sleeps = False
            await anyio.sleep(TICK_S if due is None else max(0.005, min(TICK_S, due - now)))

    def _probe(self, now: float) -> None:
        """Ask a silent connection whether it lives; drop it when the question stays unanswered."""
        silence = now - self._heard_at
        exchange = self._exchange
        if exchange.link is not Link.UP or silence < self.config.keep_alive_s:
            return
        if not self._probed:
            self._probed = True
            exchange.submit(api.Ping(), now, timeout_s=self.config.keep_alive_s, wanted=False)
        elif silence > 3 * self.config.keep_alive_s and self._stream is not None:
            raw = self._stream.extra(anyio.abc.SocketAttribute.raw_socket)
            raw.shutdown(2)

    # --- calls ----------------------------------------------------------------------------------------------
    def _wake_writer(self) -> None:
        if not self._output.is_set():
            self._output.set()

    @staticmethod
    def _wake(calls: Iterable[Call]) -> None:
        for call in calls:
            waiter = call.waiter
            if waiter is not None:
                waiter()

    def _send_at_once(self, raw: socket.socket) -> None:
        """Spare a lonely caller the turn of the loop that the writer takes: there is nothing to gather."""
        data = self._exchange.take_output()
        if not data:
            return
        try:
            sent = raw.send(data)
        except OSError:
            sent = 0  # full, or broken: the writer sees which
        if sent < len(data):
            self._unsent = data[sent:]
            self._wake_writer()

    def _give_left_over_back(self) -> None:
        """Release what consumers leased and did not hand out."""
        parts, self._left_over = self._left_over, []
        for part in parts:
            self._exchange.submit(op.settle(part, api.SettleKind.RELEASE), time.monotonic(), wanted=False)
        self._wake_writer()

    def _submit(self, request: api.Request, timeout_s: float | None = None, *, wanted: bool = True) -> Call:
        if self._closed:
            raise LocalProtocolError("the client is closed, or was not entered with `async with`")
        if self._left_over:
            self._give_left_over_back()
        exchange = self._exchange
        call = exchange.submit(request, time.monotonic(), timeout_s=timeout_s, wanted=wanted)
        if not self._output.is_set():
            if self._writer_idle and self._raw is not None and exchange.in_flight <= 1:
                self._send_at_once(self._raw)
            else:
                self._output.set()
        if self._tick_sleeps:
            self._stirring.set()
        return call

    async def _answered(self, call: Call) -> api.Reply:
        """Wait until the call is finished.

        Raises:
            WalrqError: what the server or the time-out says.
        """
        if not call.finished:
            event = anyio.Event()
            call.waiter = event.set
            try:
                await event.wait()
            except BaseException:
                self._exchange.abandon(call, time.monotonic())
                self._wake_writer()
                raise
        if call.error is not None:
            raise call.error
        assert call.reply is not None
        return call.reply

    async def _ask(self, request: api.Request, kind: type[R], timeout_s: float | None = None) -> R:
        reply = await self._answered(self._submit(request, timeout_s))
        if not isinstance(reply, kind):
            raise RemoteProtocolError(f"the server answered {type(request).__name__} with {type(reply).__name__}")
        return reply

    async def _outcomes(self, requests: Sequence[api.Request], kind: type[R]) -> list[R | WalrqError]:
        """The answer or error of each of several requests that are under way together."""
        if len(requests) == 1:
            try:
                return [await self._ask(requests[0], kind)]
            except WalrqError as error:
                return [error]
        calls = [self._submit(request) for request in requests]
        outcomes: list[R | WalrqError] = []
        try:
            for call in calls:
                try:
                    reply = await self._answered(call)
                except WalrqError as error:
                    outcomes.append(error)
                else:
                    if not isinstance(reply, kind):
                        raise RemoteProtocolError(f"the server answered with {type(reply).__name__}")
                    outcomes.append(reply)
        except BaseException:
            for call in calls[len(outcomes) + 1 :]:
                self._exchange.abandon(call, time.monotonic())
            raise
        return outcomes

    # --- push -----------------------------------------------------------------------------------------------
    async def push(
        self,
        queue: str,
        payload: Payload | None = None,
        delay: float | None = None,
        *,
        json: Any = UNSET,
        priority: int = 0,
        group: str | None = None,
        headers: Mapping[str, Any] | None = None,
        dedup_id: str | None = None,
        ttl: float | None = None,
        deliver_at: datetime | float | None = None,
        max_attempts: int | None = None,
    ) -> str:
        """Append one message; durable when this returns. The queue is created if it is not there.

        Args:
            queue: its name.
            payload: bytes, or text that is sent as UTF-8.
            delay: seconds until it can be polled; None = the queue's setting (0 unless changed).
            json: a value to send as JSON instead of a payload.
            priority: 0 to 255, higher first.
            group: messages of one group are handed out in order, by default one at a time.
            headers: names and plain values that travel with the payload.
            dedup_id: a second push with this id within the queue's window changes nothing and returns the
                first id.
            ttl: seconds after which an unprocessed message is dropped.
            deliver_at: an aware datetime, or seconds since 1970, instead of a delay.
            max_attempts: counted failures before it is dead; None = the queue's setting.

        Returns:
            The message's id.
        """
        options = PushOptions(priority=priority, delay=delay, deliver_at=deliver_at, ttl=ttl, max_attempts=max_attempts)
        request = op.push_one(queue, payload, json, headers, group, dedup_id, options)
        return MessageIds((await self._ask(request, api.Pushed),))[0]

    async def push_batch(
        self,
        queue: str,
        messages: api.Columns | Iterable[Payload | NewMessage],
        delay: float | None = None,
        *,
        priority: int = 0,
        group: str | None = None,
        ttl: float | None = None,
        deliver_at: datetime | float | None = None,
        max_attempts: int | None = None,
    ) -> MessageIds:
        """Append many messages as one unit: all of them are there or none.

        More than 10,000 messages or 16 MiB become several units. Arguments are those of `push`.

        Args:
            messages: payloads, or `NewMessage` for those with headers, a group or a dedup id of their own.
            group: for the messages that name none.

        Returns:
            The ids in order, formatted when they are read.

        Raises:
            BatchError: some of several units failed; `results` has each message's id or None.
        """
        options = PushOptions(priority=priority, delay=delay, deliver_at=deliver_at, ttl=ttl, max_attempts=max_attempts)
        requests = op.push_many(queue, messages, group, options)
        if not requests:
            return MessageIds(())
        return op.pushed(requests, await self._outcomes(requests, api.Pushed))

    # --- poll -----------------------------------------------------------------------------------------------
    async def poll(
        self,
        queue: str | Sequence[str],
        visibility: float | None = None,
        max_messages: int = 10,
        *,
        wait: float = 0,
    ) -> list[Message]:
        """Lease messages: nobody else gets them until the lease is over.

        Args:
            queue: a queue, or several: the first that has messages is taken from.
            visibility: seconds the lease lasts, 0.001 to 12 h; None = the queue's setting (30 s unless
                changed).
            max_messages: 1 to 10,000.
            wait: seconds to wait for messages when there are none, up to one hour.

        Returns:
            Up to `max_messages`; empty when there are none. A queue that does not exist has none.
        """
        batches = await self.poll_batch(queue, visibility, max_messages, wait=wait)
        if len(batches) == 1:
            return batches[0].messages()
        return [message for batch in batches for message in batch.messages()]

    async def poll_batch(
        self,
        queue: str | Sequence[str],
        visibility: float | None = None,
        max_messages: int = 10,
        *,
        wait: float = 0,
    ) -> list[AsyncBatch]:
        """Lease messages as `poll` does, but as batches, without an object per message: the fast way.

        Iterate `batch.payloads()`, then `await batch.ack()`.
        """
        call = self._submit(op.poll(queue, visibility, max_messages, wait, self.config.worker))
        reply = await self._answered(call)
        if not isinstance(reply, api.Polled):
            raise RemoteProtocolError(f"the server answered Poll with {type(reply).__name__}")
        deadline = call.sent_at + (reply.parked_ms + reply.visibility_ms) / 1000
        batches = []
        for run in reply.runs:
            batch = AsyncBatch(run, deadline, self.config.clock)
            batch._client = self
            batches.append(batch)
        return batches

    def consume(
        self,
        queue: str | Sequence[str],
        visibility: float | None = None,
        max_messages: int = 10,
        *,
        wait: float = 20,
    ) -> Consumer:
        """Messages as they come, without end: `async for message in client.consume("mail")`.

        Messages are leased up to `max_messages` at a time. Acknowledge each one; those that were leased but
        not handed out are released when the loop is left. Outages are waited out.
        """
        consumer = Consumer(self, queue, visibility, max_messages, wait)
        self._consumers.add(consumer)
        return consumer

    # --- giving back ----------------------------------------------------------------------------------------
    async def _settle(self, parts: list[Settlement], requests: list[api.Settle]) -> None:
        outcomes = await self._outcomes(requests, api.Settled)
        op.check_settled(parts, [each if isinstance(each, WalrqError) else each.codes for each in outcomes])

    async def ack(
        self,
        message: Settleable | str,
        message_id: str | None = None,
        receipt_handle: str | None = None,
    ) -> None:
        """Messages are done: they are gone for good when this returns.

        Args:
            message: a message, a list of messages, a batch; or a queue's name with the two that follow.
            message_id: only with a queue's name.
            receipt_handle: only with a queue's name.

        Raises:
            ReceiptExpired: the lease was over before; nothing changed.
            BatchError: some of several could not be acknowledged; the others are.
        """
        parts = op.given_back(message, message_id, receipt_handle)
        if parts:
            await self._settle(parts, [op.settle(part, api.SettleKind.ACK) for part in parts])

    async def nack(
        self,
        message: Settleable | str,
        mode: Literal["release", "fail", "reject"] = "fail",
        delay: float | None = None,
        error: BaseException | str | None = None,
        *,
        message_id: str | None = None,
        receipt_handle: str | None = None,
    ) -> None:
        """Messages were not done.

        Args:
            message: as in `ack`.
            mode: "release": back to their place at once, free of charge; "fail": counts as an attempt, again
                after the back-off; "reject": to the dead-letter queue now.
            delay: seconds until the next attempt, with "fail" only; None = the queue's back-off.
            error: why, kept in the death report.
            message_id: only with a queue's name.
            receipt_handle: only with a queue's name.

        Raises:
            ReceiptExpired, BatchError: as in `ack`.
        """
        kind = op.nack_kind(mode, delay)
        parts = op.given_back(message, message_id, receipt_handle)
        if parts:
            await self._settle(parts, [op.settle(part, kind, delay, error) for part in parts])

    async def touch(
        self,
        message: Settleable | str,
        visibility: float,
        *,
        message_id: str | None = None,
        receipt_handle: str | None = None,
    ) -> None:
        """Let leases end `visibility` seconds from now, never earlier than they would.

        Raises:
            ReceiptExpired, BatchError: as in `ack`.
        """
        parts = op.given_back(message, message_id, receipt_handle)
        if not parts:
            return
        requests = [op.touch(part, visibility) for part in parts]
        asked_at = self.config.clock.monotonic()
        outcomes = await self._outcomes(requests, api.Touched)
        op.touched(parts, outcomes, asked_at)

    # --- pending messages -----------------------------------------------------------------------------------
    async def cancel(self, queue: str, message_id: str | Sequence[str]) -> list[str]:
        """Remove messages that nobody has leased.

        Returns:
            For each id: "done" (it is gone), "leased", "gone" (it was before) or "unknown".
        """
        ids = (message_id,) if isinstance(message_id, str) else message_id
        request = api.Cancel(queue, tuple([op.message_number(each) for each in ids]))
        return [op.OUTCOME_NAMES[each] for each in (await self._ask(request, api.Outcomes)).outcomes]

    async def reschedule(self, queue: str, message_id: str, deliver_at: datetime | float) -> str:
        """Let a message that nobody has leased become due at another time (aware datetime or seconds since
        1970).

        Returns:
            "done", "leased", "gone" or "unknown".
        """
        request = api.Reschedule(queue, op.message_number(message_id), op.wall_ms(deliver_at, "deliver_at"))
        return op.OUTCOME_NAMES[(await self._ask(request, api.Outcomes)).outcomes[0]]

    async def peek(self, queue: str, state: str = "ready", limit: int = 10, *, bodies: bool = True) -> list[Seen]:
        """Look at messages in one state (ready, delayed, leased, parked, dead); nothing changes."""
        found: list[Seen] = []
        after = 0
        while len(found) < limit:
            size = min(limit - len(found), PEEK_MESSAGES_MAX)
            page = await self._ask(api.Peek(queue, op.state(state), size, after, bodies), api.Page)
            found += map(seen, page.messages)
            after = page.next
            if not after:
                break
        return found

    async def move(self, source: str, target: str, limit: int = 1) -> api.Moved:
        """Move up to `limit` (at most 1,000) ready messages behind another queue's, as one unit."""
        return await self._ask(api.Move(source, target, limit), api.Moved)

    # --- queues ---------------------------------------------------------------------------------------------
    async def create_queue(self, queue: str, /, **settings: Any) -> None:
        """Create a queue, or change these settings of one that is there already (see `set_queue`)."""
        await self._ask(api.SetQueue(queue, settings, True), api.Done)

    async def set_queue(self, queue: str, /, **settings: Any) -> None:
        """Change settings of an existing queue: `visibility_ms`, `max_deliveries`, `dlq`, `max_length`, ...

        Raises:
            QueueNotFound: there is no such queue.
            UnknownSetting, InvalidSetting: naming the setting; nothing changed.
        """
        await self._ask(api.SetQueue(queue, settings, False), api.Done)

    async def show_queue(self, queue: str) -> api.QueueInfo:
        """Counts and settings of one queue."""
        return await self._ask(api.ShowQueue(queue), api.QueueInfo)

    async def list_queues(self, prefix: str = "") -> list[api.QueueInfo]:
        """All queues whose names start with `prefix`, by name."""
        found: list[api.QueueInfo] = []
        after = ""
        while True:
            page = await self._ask(api.ListQueues(prefix, after, LIST_QUEUES_MAX), api.QueueList)
            found += page.queues
            after = page.next
            if not after:
                return found

    async def pause_queue(self, queue: str) -> None:
        """Polls of the queue get nothing until it is resumed; pushes go on."""
        await self.set_queue(queue, paused=True)

    async def resume_queue(self, queue: str) -> None:
        """End a pause."""
        await self.set_queue(queue, paused=False)

    async def purge_queue(self, queue: str) -> int:
        """Remove all messages of a queue; its settings stay. Returns how many there were."""
        return (await self._ask(api.PurgeQueue(queue), api.Done)).count

    async def delete_queue(self, queue: str) -> int:
        """Remove a queue and all that is in it. Returns how many messages there were."""
        return (await self._ask(api.DeleteQueue(queue), api.Done)).count

    # --- dead letters ---------------------------------------------------------------------------------------
    async def list_dead(
        self,
        queue: str,
        limit: int = 10,
        *,
        reason: str | None = None,
        error_type: str | None = None,
        error_contains: str | None = None,
        bodies: bool = True,
    ) -> list[Seen]:
        """Messages of `queue` that died, in order of death, with why and when."""
        where = op.where(reason, error_type, error_contains, None)
        found: list[Seen] = []
        after = 0
        while len(found) < limit:
            size = min(limit - len(found), PEEK_MESSAGES_MAX)
            page = await self._ask(api.ListDead(queue, size, after, where, bodies), api.Page)
            found += map(seen, page.messages)
            after = page.next
            if not after:
                break
        return found

    async def redrive(
        self,
        queue: str,
        limit: int | None = None,
        *,
        target: str | None = None,
        reason: str | None = None,
        error_type: str | None = None,
        error_contains: str | None = None,
        ids: Sequence[str] | None = None,
        dry_run: bool = False,
    ) -> api.Moved:
        """Send dead messages of `queue` back to it (or to `target`), behind what waits there.

        Every thousand are one unit; a call that is interrupted has moved whole units.

        Returns:
            How many moved, and whether matching ones are left. With `dry_run`: how many would, counted up to
            1,000.
        """
        where = op.where(reason, error_type, error_contains, ids)
        moved = 0
        while True:
            size = REDRIVE_PER_ENTRY if limit is None else min(limit - moved, REDRIVE_PER_ENTRY)
            if size <= 0:
                return api.Moved(moved, True)
            step = await self._ask(api.Redrive(queue, size, target, where, dry_run), api.Moved)
            moved += step.count
            if dry_run or not step.more or not step.count:
                return api.Moved(moved, step.more)

    async def purge_dead(
        self,
        queue: str,
        *,
        reason: str | None = None,
        error_type: str | None = None,
        error_contains: str | None = None,
        ids: Sequence[str] | None = None,
    ) -> int:
        """Remove dead messages of `queue` that match. Returns how many."""
        where = op.where(reason, error_type, error_contains, ids)
        return (await self._ask(api.PurgeDead(queue, where), api.Done)).count

    # --- the server -----------------------------------------------------------------------------------------
    async def stats(self) -> dict[str, Any]:
        """Counters of the node and totals over its queues."""
        return dict((await self._ask(api.Stats(), api.StatsReply)).values)

    async def ping(self) -> float:
        """Seconds that one question and its answer take."""
        asked_at = time.monotonic()
        await self._ask(api.Ping(), api.Pong)
        return time.monotonic() - asked_at


class Consumer:
    """What `Client.consume` returns: an asynchronous iterator of messages; leave it when you like."""

    def __init__(
        self,
        client: Client,
        queue: str | Sequence[str],
        visibility: float | None,
        max_messages: int,
        wait: float,
    ) -> None:
        self._client = client
        self._queue = queue
        self._visibility = visibility
        self._max_messages = max_messages
        self._wait = wait
        self._buffer: list[Message] = []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        tries = 0
        while True:
            while self._buffer:
                message = self._buffer.pop()
                # One that waited here beyond its lease belongs to somebody else by now.
                if message.remaining > 0:
                    return message
            try:
                found = await self._client.poll(self._queue, self._visibility, self._max_messages, wait=self._wait)
            except (Unavailable, OutcomeUnknown):
                # A consumer outlives outages: the next poll connects again, or waits in the client until it
                # can.
                tries += 1
                await anyio.sleep(self._client._exchange.pause_s(tries))
                continue
            tries = 0
            found.reverse()
            self._buffer = found

    async def aclose(self) -> None:
        """Release what was leased and not handed out."""
        self._release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        """Give the rest of the buffer back, without waiting for the answer."""
        rest, self._buffer = self._buffer, []
        if rest and not self._client._closed:
            self._client._left_over += op.settlements(rest)
            self._client._give_left_over_back()

    def __del__(self) -> None:
        # A loop left by `break` drops the only reference here: its leases need not run out. A finalizer may
        # run in the middle of anything, so it only leaves a note; the next call or tick acts on it.
        if self._buffer:
            self._client._left_over += op.settlements(self._buffer)
