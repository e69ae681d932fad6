"""The asynchronous client: what people call. The bytes are moved by `carrier.Carrier`.

Single pushes, polls and settlements that are made at the same time travel together (`merging`).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypeVar, overload

import anyio
import anyio.abc

from walrq import api
from walrq.client import operations as op
from walrq.client.carrier import Carrier
from walrq.client.config import ClientConfig, Endpoint
from walrq.client.failures import belongs_here, unpicklable
from walrq.client.merging import Body, PollLane, PushLane, SettleLane
from walrq.client.messages import Batch, Message, MessageIds, NewMessage, Seen, leaving, seen
from walrq.client.operations import UNSET, Payload, PushOptions, Settleable, Settlement
from walrq.client.routing import Nodes
from walrq.errors import OutcomeUnknown, RemoteProtocolError, Unavailable, WalrqError
from walrq.ids import format_id
from walrq.limits import LIST_QUEUES_MAX, PEEK_MESSAGES_MAX, REDRIVE_PER_ENTRY

R = TypeVar("R")


class AsyncMessage(Message):
    """A `Message` that can be given back by itself.

    In an `async with` block it is acknowledged when the block is done, and failed when the block raises (released when
    it was cancelled), unless the block gave it back otherwise.
    """

    __slots__ = ()

    @property
    def _client(self) -> Client:
        assert isinstance(self.batch, AsyncBatch)
        return self.batch._client

    async def ack(self) -> None:
        """It is done; see `Client.ack`."""
        await self._client.ack(self)

    async def nack(
        self,
        mode: Literal["release", "fail", "reject"] = "fail",
        delay: float | None = None,
        error: BaseException | str | None = None,
    ) -> None:
        """It was not done; see `Client.nack`."""
        await self._client.nack(self, mode, delay, error)

    async def touch(self, visibility: float) -> None:
        """Let its lease end `visibility` seconds from now; see `Client.touch`."""
        await self._client.touch(self, visibility)

    def __reduce__(self) -> NoReturn:
        raise belongs_here("message")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client._leave([self], error)


class AsyncBatch(Batch):
    """A `Batch` that can be given back by itself, and in an `async with` block as an `AsyncMessage` is: what the
    block left open is acknowledged, failed or released as a whole."""

    __slots__ = ("_client",)
    _client: Client

    def messages(self) -> list[AsyncMessage]:
        """A message for each."""
        return self.messages_as(AsyncMessage)

    async def ack(self) -> None:
        """Acknowledge every message of the batch that is still outstanding."""
        await self._client.ack(self)

    async def nack(
        self,
        mode: Literal["release", "fail", "reject"] = "fail",
        delay: float | None = None,
        error: BaseException | str | None = None,
    ) -> None:
        """None of the messages still outstanding was done; see `Client.nack`."""
        await self._client.nack(self, mode, delay, error)

    async def touch(self, visibility: float) -> None:
        """Let the lease end `visibility` seconds from now; see `Client.touch`."""
        await self._client.touch(self, visibility)

    def __reduce__(self) -> NoReturn:
        raise belongs_here("batch")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client._leave([self], error)


class AsyncBatches(list[AsyncBatch]):
    """What one `poll_batch` leased: a list of batches that is itself an `async with` block for all of them."""

    def __init__(self, batches: Iterable[AsyncBatch], client: Client) -> None:
        super().__init__(batches)
        self._client = client

    def payloads(self) -> Iterator[bytes]:
        """Every payload, in order; raises `BodyLost` where disk damage destroyed one."""
        for batch in self:
            yield from batch.payloads()

    def messages(self) -> list[AsyncMessage]:
        """A message for each."""
        return [message for batch in self for message in batch.messages()]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client._leave(self, error)


class Client:
    """A connection to walrq; make one with `walrq.aio.connect` and enter it with `async with`.

    All methods may be called by many tasks at once. A call that is cancelled leaves nothing leased behind.
    """

    def __init__(self, endpoints: Sequence[Endpoint], config: ClientConfig) -> None:
        self.config: ClientConfig = config
        self._nodes = Nodes(tuple(endpoints))
        self._carriers = tuple([Carrier(self._nodes, config) for _ in range(config.pool)])
        self._consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            ServerUnreachable: nobody answered at any address.
            WalrqError: the server refused the connection, or is no walrq server.
        """
        opened: list[Carrier] = []
        try:
            for carrier in self._carriers:
                await carrier.open()
                opened.append(carrier)
        except BaseException:
            await _close_all(opened)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for consumer in list(self._consumers):
            consumer._release()
        await _close_all(self._carriers)

    if not TYPE_CHECKING:
        # Two slips that would say no more than "does not support"; type checkers still see them.
        def __enter__(self):
            raise TypeError("walrq.aio.connect() needs `async with`; walrq.connect() is for `with`")

        def __exit__(self, *_):
            """Never reached; without it Python would not even ask `__enter__`."""

        def __await__(self):
            raise TypeError(
                "walrq.aio.connect() is not awaited: `async with walrq.aio.connect() as client:` connects, and closes"
                " at the end"
            )

    def __repr__(self) -> str:
        carrier = self._carriers[0]
        state = "closed" if carrier.closed else "connected" if carrier.exchange.connected else "not connected"
        more = f", {len(self._carriers)} connections" if len(self._carriers) > 1 else ""
        return f"<walrq.aio.Client {carrier.endpoint}, {state}{more}>"

    def __reduce__(self) -> NoReturn:
        raise unpicklable()

    @property
    def nodes(self) -> tuple[Endpoint, ...]:
        """Every node that this client knows: those it was given, and the members of the cluster as a node told."""
        return self._nodes.ring

    @property
    def _carrier(self) -> Carrier:
        """The connection for the next call: the least busy, the first among equals, so that calls meet there."""
        carriers = self._carriers
        return carriers[0] if len(carriers) == 1 else min(carriers, key=lambda carrier: carrier.exchange.in_flight)

    async def _ask(self, request: api.Request, kind: type[R], timeout_s: float | None = None) -> R:
        return await self._carrier.ask(request, kind, timeout_s)

    # --- push -----------------------------------------------------------------------------------------------
    @overload
    async def push(
        self,
        queue: str,
        payload: Payload,
        delay: float | None = None,
        *,
        priority: int = 0,
        group: str | None = None,
        headers: Mapping[str, Any] | None = None,
        dedup_id: str | None = None,
        ttl: float | None = None,
        deliver_at: datetime | float | None = None,
        max_attempts: int | None = None,
    ) -> str: ...
    @overload
    async def push(
        self,
        queue: str,
        *,
        json: Any,
        delay: float | None = None,
        priority: int = 0,
        group: str | None = None,
        headers: Mapping[str, Any] | None = None,
        dedup_id: str | None = None,
        ttl: float | None = None,
        deliver_at: datetime | float | None = None,
        max_attempts: int | None = None,
    ) -> str: ...
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
        carrier = self._carrier
        lane = carrier.merger.lane(
            (queue, priority, delay, deliver_at, ttl, max_attempts),
            lambda: PushLane(
                queue,
                PushOptions(priority=priority, delay=delay, deliver_at=deliver_at, ttl=ttl, max_attempts=max_attempts),
            ),
        )
        body = Body(op.payload_of(payload, json), op.headers_of(headers), group, dedup_id)
        return format_id(await carrier.shared(carrier.join(lane, body, len(body.payload) + len(body.headers))))

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
        return op.pushed(requests, await self._carrier.outcomes(requests, api.Pushed))

    # --- poll -----------------------------------------------------------------------------------------------
    async def poll(
        self,
        queue: str | Sequence[str],
        visibility: float | None = None,
        max_messages: int = 10,
        *,
        wait: float = 0,
    ) -> list[AsyncMessage]:
        """Lease messages: nobody else gets them until the lease is over.

        Args:
            queue: a queue, or several: the first that has messages is taken from.
            visibility: seconds the lease lasts, 0.001 to 12 h; None = the queue's setting (30 s unless
                changed).
            max_messages: 1 to 10,000.
            wait: seconds to wait for messages when there are none, up to one hour.

        Returns:
            Up to `max_messages`; empty when there are none. A queue that does not exist has none. Give each back,
            or use it as `async with message:` (see `AsyncMessage`).
        """
        carrier = self._carrier
        queues = (queue,) if isinstance(queue, str) else tuple(queue)
        lane = carrier.merger.lane(
            (queues, visibility, wait),
            lambda: PollLane(op.poll(queues, visibility, 1, wait, self.config.worker), self._batch, AsyncMessage),
        )
        op.check_max_messages(max_messages)
        return await carrier.shared(carrier.join(lane, max_messages, max_messages, wait))

    async def poll_batch(
        self,
        queue: str | Sequence[str],
        visibility: float | None = None,
        max_messages: int = 10,
        *,
        wait: float = 0,
    ) -> AsyncBatches:
        """Lease messages as `poll` does, but as batches, without an object per message: the fast way.

            async with await client.poll_batch("mail", max_messages=1000, wait=20) as batches:
                for payload in batches.payloads(): ...

        The block acknowledges all of them at its end, or fails them when it raises.
        """
        carrier = self._carrier
        call = carrier.submit(op.poll(queue, visibility, max_messages, wait, self.config.worker))
        reply = await carrier.answered(call)
        if not isinstance(reply, api.Polled):
            raise RemoteProtocolError(f"the server answered Poll with {type(reply).__name__}")
        deadline = call.sent_at + (reply.parked_ms + reply.visibility_ms) / 1000
        return AsyncBatches([self._batch(run, deadline) for run in reply.runs], self)

    def _batch(self, run: api.Delivered, deadline: float) -> AsyncBatch:
        batch = AsyncBatch(run, deadline, self.config.clock)
        batch._client = self
        return batch

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
        outcomes = await self._carrier.outcomes(requests, api.Settled)
        op.check_settled(parts, [each if isinstance(each, WalrqError) else each.codes for each in outcomes])

    async def _leave(self, entries: Iterable[AsyncMessage | AsyncBatch], error: BaseException | None) -> None:
        """Give back what an `async with` block left open; see `leaving`.

        Raises:
            ReceiptExpired, BatchError: as in `ack`, when the block itself raised nothing.
        """
        rest = [entry for entry in entries if not entry.settled]
        if not rest:
            return
        kind = leaving(error)
        if kind is api.SettleKind.ACK:
            await self.ack(rest[0] if len(rest) == 1 else rest)
        elif kind is api.SettleKind.RELEASE:
            # Whoever is being cancelled waits for nothing more.
            for entry in rest:
                entry.mark_settled()
            carrier = self._carrier
            carrier.left_over += op.settlements(rest)
            if not carrier.closed:
                carrier.give_left_over_back()
        else:
            try:
                await self.nack(rest[0] if len(rest) == 1 else rest, "fail", error=error)
            except WalrqError as refused:
                assert error is not None
                op.note_unsettled(error, refused)

    @overload
    async def ack(self, message: Settleable) -> None: ...
    @overload
    async def ack(self, message: str, message_id: str, receipt_handle: str) -> None: ...
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
        await self._give_back(op.given_back(message, message_id, receipt_handle), api.SettleKind.ACK)

    async def _give_back(
        self, parts: list[Settlement], kind: Literal[api.SettleKind.ACK, api.SettleKind.RELEASE]
    ) -> None:
        if len(parts) != 1:
            if parts:
                await self._settle(parts, [op.settle(part, kind) for part in parts])
            return
        (part,) = parts
        carrier, queue = self._carrier, part.queue
        lane = carrier.merger.lane((kind, queue), lambda: SettleLane(queue, kind))
        codes = await carrier.shared(carrier.join(lane, part.items, len(part.items)))
        op.check_settled(parts, (codes,))

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
        if kind is api.SettleKind.RELEASE:
            await self._give_back(parts, kind)
        elif parts:
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
        outcomes = await self._carrier.outcomes(requests, api.Touched)
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

    # --- the cluster ----------------------------------------------------------------------------------------
    async def cluster(self) -> api.ClusterState:
        """Who is in the cluster, who leads and how far each has got, as the connected node knows it."""
        return await self._ask(api.ClusterStatus(), api.ClusterState)

    async def add_node(
        self, node: str, address: str | None = None, *, learner: bool = False, timeout: float | None = None
    ) -> api.ClusterState:
        """Make a node a member; returns when it has caught up and votes, for a learner when it is a member.

        Args:
            node: its name.
            address: where its peers reach it ("host:port"); None = it was started with `--join` and told by itself.
            learner: it gets the log and does not vote. Called again without, it becomes a voter.
            timeout: seconds to wait, copying the data included; None = `timeout_s`. Time that runs out ends the wait,
                not the joining: ask again, or look at `cluster`.

        Returns:
            The cluster with it.
        """
        return await self._ask(api.AddNode(node, address, learner), api.ClusterState, timeout)

    async def remove_node(self, node: str) -> api.ClusterState:
        """End a node's membership; returns the cluster without it."""
        return await self._ask(api.RemoveNode(node), api.ClusterState)

    async def transfer_leadership(self, target: str | None = None) -> api.ClusterState:
        """Let another node lead: `target`, or the one that has most of the log. Returns when it does."""
        return await self._ask(api.TransferLeadership(target), api.ClusterState)

    # --- tokens ---------------------------------------------------------------------------------------------
    async def set_token(
        self,
        name: str,
        secret: str,
        grants: Iterable[api.Grant],
        *,
        requests_per_s: int | None = None,
        bytes_per_s: int | None = None,
        in_flight: int | None = None,
    ) -> None:
        """Let whoever says `secret` do what is granted; a token of that name gets another secret and other grants.

        Only a digest of the secret is sent, so it should be long and random (`secrets.token_urlsafe(32)`).

        Args:
            grants: rights, each on the queues whose names match a pattern with at most one `*`.
            requests_per_s, bytes_per_s, in_flight: on all its connections with a node together; None = no bound.
        """
        request = op.token(name, secret, grants, requests_per_s, bytes_per_s, in_flight)
        await self._ask(request, api.Done)

    async def revoke_token(self, name: str) -> bool:
        """Forget a token, and end its connections; False when there was none."""
        return bool((await self._ask(api.RevokeToken(name), api.Done)).count)

    async def list_tokens(self) -> tuple[api.TokenInfo, ...]:
        """All tokens by name, without their secrets."""
        return (await self._ask(api.ListTokens(), api.TokenList)).tokens


async def _close_all(carriers: Sequence[Carrier]) -> None:
    """Each has a nursery: they end in the opposite order of their beginnings, all of them, cancelled or not."""
    if carriers:
        try:
            await carriers[-1].close()
        finally:
            await _close_all(carriers[:-1])


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
        self._buffer: list[AsyncMessage] = []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncMessage:
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
                await anyio.sleep(self._client._carrier.exchange.pause_s(tries))
                continue
            tries = 0
            found.reverse()
            self._buffer = found

    def __repr__(self) -> str:
        queue = self._queue if isinstance(self._queue, str) else ", ".join(self._queue)
        return f"<walrq.aio.Consumer of {queue}, {len(self._buffer)} leased ahead>"

    def __reduce__(self) -> NoReturn:
        raise unpicklable()

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
        carrier = self._client._carrier
        if rest and not carrier.closed:
            carrier.left_over += op.settlements(rest)
            carrier.give_left_over_back()

    def __del__(self) -> None:
        # A loop left by `break` drops the only reference here: its leases need not run out. A finalizer may
        # run in the middle of anything, so it only leaves a note; the next call or tick acts on it.
        if self._buffer:
            self._client._carrier.left_over += op.settlements(self._buffer)
