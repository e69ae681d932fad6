"""What the asynchronous client's calls travel on: one connection, its tasks, its exchange; trio and asyncio alike.

    Carrier (opened and closed by its client), _live
    ├── _keep_connected   connects, and connects again; below it per connection
    │   ├── _read         bytes -> Exchange -> wakes the callers whose answers came
    │   └── _write        one send for all that callers made since the last
    └── _tick             back-off, time-outs, keep-alive; sleeps while nothing is under way

A call costs no task: it hands its request to the `Exchange`, or its share to the `Merger`, and waits on one event.
What callers ask in one turn of the loop leaves in one send.
"""

from __future__ import annotations

import contextlib
import math
import random
import socket
import time
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import anyio
import anyio.abc

from walrq import api
from walrq.client import operations as op
from walrq.client.addresses import explain, tune
from walrq.client.config import ClientConfig, Endpoint, context_of, with_surroundings
from walrq.client.exchange import Call, Exchange, Link
from walrq.client.journal import Journal, reason_of
from walrq.client.merging import Lane, Merger, Share
from walrq.client.operations import Settlement
from walrq.client.parking import Park, parking
from walrq.client.routing import Nodes, Route
from walrq.errors import LocalProtocolError, RemoteProtocolError, WalrqError

C = TypeVar("C")
R = TypeVar("R")

RECEIVE_BYTES: Final = 256 * 1024
TICK_S: Final = 0.1
CLOSE_S: Final = 1.0
# What a stream raises when its connection ends.
BROKEN: Final = (OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class Carrier:
    """One connection that is kept up, and the calls on it."""

    def __init__(self, nodes: Nodes, config: ClientConfig) -> None:
        self.config = config = with_surroundings(config)
        self._tls = context_of(config)
        self._rng = random.Random()
        self._route = Route(nodes, config, self._rng)
        self.exchange = Exchange(config, self._rng, route=self._route)
        self.merger = Merger(self.exchange)
        self._output = anyio.Event()
        self._drained = anyio.Event()
        self._first = anyio.Event()
        self._first_error: WalrqError | None = None
        self._stirring = anyio.Event()
        self._tick_sleeps = False
        self.closed = True
        self._heard_at = 0.0
        # While a probe is under way: when the silent connection is given up.
        self._give_up_at: float | None = None
        self._stream: anyio.abc.ByteStream | None = None
        self._raw: socket.socket | None = None
        # What a direct send left over. Invariant: empty unless the writer was woken to send it.
        self._unsent = b""
        self._writer_idle = False
        # What consumers leased and did not hand out; anybody may leave it here, a finalizer too.
        self.left_over: list[Settlement] = []
        self._tasks: anyio.abc.TaskGroup | None = None
        self._park: Park
        # Made with the tasks: a client may be made before its event loop runs.
        self._life: anyio.CancelScope
        self._journal = Journal()

    @property
    def endpoint(self) -> Endpoint:
        """The node that is connected, or tried next."""
        return self._route.current

    # --- life -----------------------------------------------------------------------------------------------
    async def open(self) -> None:
        """Connect; raises what `Client.__aenter__` tells."""
        if self._tasks is not None:
            raise LocalProtocolError("a client is entered once; make another with walrq.aio.connect")
        self.closed = False
        self._park = parking()
        self._life = anyio.CancelScope(shield=True)
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

    async def close(self) -> None:
        """Say goodbye and end the tasks. Bounded even when the caller is being cancelled: one send."""
        with anyio.move_on_after(CLOSE_S, shield=True):
            await self._say_goodbye()
        await self._end_tasks()

    async def _say_goodbye(self) -> None:
        """Release what consumers held, end the session, and let the last bytes leave."""
        self.give_left_over_back()
        self.closed = True
        exchange = self.exchange
        if not exchange.connected:
            return
        if exchange.session is not None:
            exchange.submit(api.CloseSession(), time.monotonic(), wanted=False)
        self._drained = anyio.Event()
        self._wake_writer()
        await self._drained.wait()

    async def _end_tasks(self) -> None:
        self.closed = True
        tasks = self._tasks
        assert tasks is not None
        self._life.cancel()
        # The caller's exception is not the nursery's business: it leaves as it came, never inside a group.
        await tasks.__aexit__(None, None, None)
        self._fail_all(LocalProtocolError("the client is closed"))

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
        route = self._route
        began = time.monotonic()
        while True:
            self.exchange.attempt(time.monotonic())
            failure = await self._connection(route.current)
            now = time.monotonic()
            pause_s = route.next(now, failure)
            if pause_s:
                if route.final is not None:
                    # Nothing would change by trying again: those who wait should know now.
                    self._fail_all(route.final)
                if not self._first.is_set() and route.gives_up(now - began):
                    self._first_error = route.latest
                    self._first.set()
                    return
            await anyio.sleep(pause_s)

    async def _connection(self, endpoint: Endpoint) -> WalrqError | None:
        """One connection from its opening to its end; the error if it never became usable."""
        exchange = self.exchange
        cause: Exception | None = None
        usable = False
        try:
            with anyio.fail_after(self._route.patience_s) as patience:
                async with await self._dial(endpoint) as stream:
                    raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
                    tune(raw, self.config.keep_alive_s)
                    # asyncio's own socket object lets nobody send past its transport; there the writer does
                    # it all.
                    own: object = raw
                    self._raw = own if isinstance(own, socket.socket) and self._tls is None else None
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
            now = time.monotonic()
            under_way = exchange.in_flight
            self._deliver(exchange.lost(now), now)
            self._drained.set()
        failure = None if usable else explain(endpoint, cause, exchange.refused)
        if failure is not None:
            self._journal.unreachable(endpoint, failure)
        elif exchange.left is not None:
            self._journal.left(endpoint, exchange.left, now, led=self._route.leads)
        elif not self.closed:
            self._journal.lost(endpoint, reason_of(cause), under_way, now)
        self._journal.speak()
        return failure

    async def _dial(self, endpoint: Endpoint) -> anyio.abc.ByteStream:
        if self._tls is None:
            return await anyio.connect_tcp(endpoint.host, endpoint.port)
        try:
            return await anyio.connect_tcp(
                endpoint.host,
                endpoint.port,
                ssl_context=self._tls,
                tls_hostname=endpoint.host,
                tls_standard_compatible=False,
            )
        except (anyio.EndOfStream, anyio.BrokenResourceError) as error:
            raise ConnectionResetError("the connection was closed during the TLS handshake") from error

    async def _read(self, stream: anyio.abc.ByteStream, patience: anyio.CancelScope) -> tuple[bool, Exception | None]:
        """Feed the exchange until the connection ends: whether it ever was usable, and what ended it."""
        exchange = self.exchange
        usable = told = False
        while True:
            try:
                data = await stream.receive(RECEIVE_BYTES)
            except anyio.EndOfStream:
                return usable, None
            except BROKEN as error:
                return usable, error
            now = self._heard_at = time.monotonic()
            self._give_up_at = None
            made = exchange.made
            self._deliver(exchange.receive(data, now), now)
            if exchange.made != made:
                self._wake_writer()
            if not told and exchange.connected:
                if not usable:
                    usable = True
                    self._route.usable(now)
                    patience.deadline = math.inf
                    self._first.set()
                if self._route.leads:
                    told = True
                    self._journal.usable(self.endpoint, now)
                    self._journal.speak()
            if exchange.link is Link.DOWN:
                return usable, None

    async def _write(self, stream: anyio.abc.ByteStream, connection: anyio.CancelScope) -> None:
        exchange = self.exchange
        while True:
            self.merger.flush(time.monotonic())
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
        exchange = self.exchange
        while True:
            now = time.monotonic()
            made = exchange.made
            self._deliver(exchange.tick(now), now)
            if exchange.link is Link.DOWN:
                self._hang_up()
            self.merger.tick(now)
            if self.left_over:
                self.give_left_over_back()
            self._probe(now)
            if exchange.made != made:
                self._wake_writer()
            due = min((at for at in (exchange.next_due(), self.merger.next_due()) if at is not None), default=None)
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
        exchange = self.exchange
        if exchange.link is not Link.UP:
            return
        if self._give_up_at is None:
            if silence >= exchange.patience_s:
                self._give_up_at = now + exchange.probe_s
                exchange.submit(api.Ping(), now, timeout_s=exchange.probe_s, wanted=False)
        elif now > self._give_up_at:
            self._give_up_at = None
            self._hang_up()

    def _hang_up(self) -> None:
        """End the connection; its reader notices."""
        if self._stream is not None:
            raw = self._stream.extra(anyio.abc.SocketAttribute.raw_socket)
            # It may be gone in this very moment.
            with contextlib.suppress(OSError):
                raw.shutdown(socket.SHUT_RDWR)

    # --- calls ----------------------------------------------------------------------------------------------
    def _wake_writer(self) -> None:
        if not self._output.is_set():
            self._output.set()

    def _deliver(self, calls: Iterable[Call], now: float) -> None:
        """Wake the callers of finished calls; what they shared is divided, what was held back is sent."""
        for call in calls:
            waiter = call.waiter
            if waiter is not None:
                waiter()
        self.merger.advance(now)

    def _fail_all(self, error: WalrqError) -> None:
        now = time.monotonic()
        self._deliver(self.exchange.fail_all(error, now), now)
        self.merger.fail_all(error, now)

    def _send_at_once(self, raw: socket.socket) -> None:
        """Spare a lonely caller the turn of the loop that the writer takes: there is nothing to gather."""
        data = self.exchange.take_output()
        if not data:
            return
        try:
            sent = raw.send(data)
        except OSError:
            sent = 0  # full, or broken: the writer sees which
        if sent < len(data):
            self._unsent = data[sent:]
            self._wake_writer()

    def give_left_over_back(self) -> None:
        """Release what consumers leased and did not hand out."""
        parts, self.left_over = self.left_over, []
        for part in parts:
            self.exchange.submit(op.settle(part, api.SettleKind.RELEASE), time.monotonic(), wanted=False)
        self._wake_writer()

    def submit(self, request: api.Request, timeout_s: float | None = None, *, wanted: bool = True) -> Call:
        """Make a call; wait for it with `answered`."""
        self._check_open()
        exchange = self.exchange
        call = exchange.submit(request, time.monotonic(), timeout_s=timeout_s, wanted=wanted)
        self._send_soon(alone=exchange.in_flight <= 1)
        return call

    def join(self, lane: Lane[C, R], content: C, weight: int = 1, wait_s: float = 0.0) -> Share[C, R]:
        """Make a call that may travel with others of its lane; wait for it with `shared`."""
        self._check_open()
        now = time.monotonic()
        share = self.merger.join(lane, content, weight, now, wait_s)
        alone = not self.merger.crowded and self.exchange.in_flight == 0
        if alone and self._writer_idle:
            self.merger.flush(now)
        self._send_soon(alone=alone)
        return share

    def _check_open(self) -> None:
        if self.closed:
            raise LocalProtocolError("the client is closed, or was not entered with `async with`")
        if self.left_over:
            self.give_left_over_back()

    def _send_soon(self, *, alone: bool) -> None:
        if not self._output.is_set():
            if alone and self._writer_idle and self._raw is not None:
                self._send_at_once(self._raw)
            else:
                self._output.set()
        if self._tick_sleeps:
            self._stirring.set()

    async def shared(self, share: Share[C, R]) -> R:
        """Wait for a caller's part of a shared call; raises what the server or the time-out says."""
        if not share.finished:
            try:
                await self._park(share)
            except BaseException:
                self.merger.abandon(share, time.monotonic())
                self._wake_writer()
                raise
        if share.error is not None:
            raise share.error
        return share.result

    def abandon(self, call: Call) -> None:
        """The caller went away: nothing stays leased for it, as far as the server can still be told."""
        self.exchange.abandon(call, time.monotonic())
        self._wake_writer()

    async def answered(self, call: Call) -> api.Reply:
        """Wait until the call is finished.

        Raises:
            WalrqError: what the server or the time-out says.
        """
        if not call.finished:
            try:
                await self._park(call)
            except BaseException:
                self.abandon(call)
                raise
        if call.error is not None:
            raise call.error
        assert call.reply is not None
        return call.reply

    async def ask(self, request: api.Request, kind: type[R], timeout_s: float | None = None) -> R:
        """One call and its reply."""
        reply = await self.answered(self.submit(request, timeout_s))
        if not isinstance(reply, kind):
            raise RemoteProtocolError(f"the server answered {type(request).__name__} with {type(reply).__name__}")
        return reply

    async def outcomes(self, requests: Sequence[api.Request], kind: type[R]) -> list[R | WalrqError]:
        """The answer or error of each of several requests that are under way together."""
        if len(requests) == 1:
            try:
                return [await self.ask(requests[0], kind)]
            except WalrqError as error:
                return [error]
        calls = [self.submit(request) for request in requests]
        outcomes: list[R | WalrqError] = []
        try:
            for call in calls:
                try:
                    reply = await self.answered(call)
                except WalrqError as error:
                    outcomes.append(error)
                else:
                    if not isinstance(reply, kind):
                        raise RemoteProtocolError(f"the server answered with {type(reply).__name__}")
                    outcomes.append(reply)
        except BaseException:
            for call in calls[len(outcomes) + 1 :]:
                self.exchange.abandon(call, time.monotonic())
            raise
        return outcomes
