"""A whole node inside the test's process: the daemon's own tasks, on a disk in memory, on a clock that tests move.

    with Server() as server:
        client = server.connect()

The node runs in one background thread with an event loop of its own and listens on a free port of the loopback, so any
client of any kind can talk to it. The thread, the port and the memory are gone when the server is closed.

Every acknowledged change has gone through a sync of the simulated disk. `kill` is a crash of the node, with or without
a power loss; `start` recovers from what the disk then holds, as a real node does.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import math
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import attrs
import trio
import trio.testing

from walrq import aio, api
from walrq.client.blocking import Client, connect
from walrq.daemon import listener
from walrq.daemon.clock import Clock
from walrq.daemon.config import Config
from walrq.daemon.connection import Connection
from walrq.daemon.supervisor import Node, drain, make_front, open_node, start_core
from walrq.errors import InternalError
from walrq.limits import SEGMENT_BYTES_MIN, SESSION_IDLE_MS
from walrq.queues import commands, reads
from walrq.testing.clock import ClockStuck, MovableClock, Settled
from walrq.testing.disk import PowerOff, SimDisk
from walrq.testing.faults import Faults
from walrq.testing.faulty_disk import FaultyDisk
from walrq.testing.wire import Wire

log = logging.getLogger("walrq.testing")

T = TypeVar("T")

HOST: Final = "127.0.0.1"
# Real seconds until the server's thread has surely done what it was asked, drain included.
ANSWER_S_MAX: Final = 30.0
# Real seconds between two looks at what only other threads can end.
_LOOK_S: Final = 0.0002
# Real seconds that a new connection has for its greeting before the clock goes on without it.
_GREETING_S: Final = 1.0
# The clock moves at most this far at a time: the node must get to say in time whose sessions live.
_STRIDE_MS: Final = SESSION_IDLE_MS * 5 // 6


class _LoopClock(trio.abc.Clock):
    """The event loop's time: the movable clock's, but a step of `advance` counts only once the loop has let it in.

    So nothing that has just arrived is overdue before it could be looked at. Only in the loop's thread.
    """

    def __init__(self, clock: MovableClock) -> None:
        self._clock = clock
        self._now = clock.monotonic()

    @property
    def behind(self) -> bool:
        """Whether there is a step to be let in."""
        return self._clock.monotonic() > self.current_time()

    def let_in(self) -> None:
        """Show what the movable clock shows."""
        self._now = max(self._now, self._clock.monotonic())

    def wall_ms(self) -> int:
        """Milliseconds since 1970, of the same moment."""
        return self._clock.wall_ms_at(self.current_time())

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        if not self._clock.stands:
            self.let_in()
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self.current_time()


@attrs.define(eq=False)
class _Life:
    """One life of the node, from opening its disk to closing it."""

    disk: FaultyDisk
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    stop: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    node: Node | None = None


class AsyncConnection:
    """An asynchronous client that is made when it is entered, so that it may be prepared outside any event loop.

    `async with connection as client:`, once or again; each time another client.
    """

    def __init__(self, make: Callable[[], aio.Client]) -> None:
        self._make = make
        self._entered: list[aio.Client] = []

    async def __aenter__(self) -> aio.Client:
        client = self._make()
        await client.__aenter__()
        self._entered.append(client)
        return client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._entered.pop().__aexit__(kind, error, trace)


class Server:
    """See the module. All methods may be called by any thread but the server's own.

    Attributes:
        url: where clients connect: `walrq://127.0.0.1:PORT`; the same through all lives.
        clock: moves this node's time, and that of the clients made by `connect`.
        seed: decides the fates of a crash and of seeded faults.
        faults: what can be done to the node and its network.
    """

    def __init__(self, clock: MovableClock | None = None, *, seed: int = 0, **settings: Any) -> None:
        """Starts the node, and returns when clients can connect.

        Args:
            clock: None = a new one.
            settings: of the daemon, such as `auto_create=False`.

        Raises:
            ConfigError: an unknown setting, or a value out of range.
        """
        self.clock = clock or MovableClock()
        self.seed = seed
        settings.setdefault("max_wal_segment_size", SEGMENT_BYTES_MIN)
        config = Config.load({"data_dir": "data", **settings})
        # Bound through all lives, so that nobody else gets the port while the node is down.
        self._holder: socket.socket | None = listener.bind(HOST, 0)
        self.address = listener.address_of(self._holder)
        self.url = f"walrq://{self.address}"
        self._port = int(self.address.rpartition(":")[2])
        if not sys.platform.startswith("linux"):
            # Elsewhere what is bound cannot be bound again, also by its owner.
            self._holder.close()
            self._holder = None
        self.config = attrs.evolve(config, listen=(HOST, self._port))
        self._inner = SimDisk(seed=seed)
        self._sync_s = 0.0
        self._full = False
        self._hurry_until = math.inf
        self._loop_clock = _LoopClock(self.clock)
        self.faults = Faults(self)
        self.wire = Wire(self.faults.note, self._crash_from_wire)
        self._clients: list[Client] = []
        self._life: _Life | None = None
        self._failure: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._turn: trio.Lock | None = None
        self._up: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._over = trio.Event()
        self._thread = threading.Thread(target=self._work, name=f"walrq-server-{self._port}", daemon=True)
        self._thread.start()
        try:
            self._up.result(ANSWER_S_MAX)
        except BaseException:
            self._thread.join(ANSWER_S_MAX)
            self._give_port_up()
            raise
        self.clock.attach(self)

    # --- clients --------------------------------------------------------------------------------------------
    def connect(self, **changes: Any) -> Client:
        """A blocking client of this server, on its clock; closed with it at the latest.

        Args:
            changes: single values of `ClientConfig`.
        """
        changes.setdefault("clock", self.clock)
        client = connect(self.url, **changes)
        self._clients.append(client)
        return client

    def connect_async(self, **changes: Any) -> AsyncConnection:
        """An asynchronous client of this server, on its clock: `async with server.connect_async() as client:`."""
        changes.setdefault("clock", self.clock)
        return AsyncConnection(lambda: aio.connect(self.url, **changes))

    # --- what can be seen -----------------------------------------------------------------------------------
    @property
    def node(self) -> Node | None:
        """The running node's parts, for a look inside while nothing happens; None while it is down."""
        life = self._life
        return life.node if life is not None else None

    @property
    def running(self) -> bool:
        """Whether the node is up."""
        return self.node is not None

    def queues(self) -> list[api.QueueInfo]:
        """Counts of all queues, by name; none while the node is down. No client is needed."""
        return self._ask(self._queues)

    async def _queues(self) -> list[api.QueueInfo]:
        node = self.node
        if node is None:
            return []
        machine = node.replica.machine
        return [reads.show(machine, name) for name in sorted(machine.queues)]

    # --- lives ----------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the node on what its disk holds. Fine if it runs."""
        self._ask(self._start)

    def stop(self) -> None:
        """Stop the node in good order, as SIGTERM does; clients are told. Fine if it is down."""
        self._ask(self._stop)

    def kill(self, *, power_loss_seed: int | None = None) -> None:
        """End the node at once, as SIGKILL does. Fine if it is down.

        Args:
            power_loss_seed: what was not synced is kept, lost or torn as this seed says; None = the machine lives
                on, and so does everything that was written.
        """
        self._ask(self._kill, power_loss_seed)

    def reset(self) -> None:
        """Delete every queue and end every fault: what a test finds that shares the server with others."""
        self.faults.heal()
        self._ask(self._delete_all)

    def close(self) -> None:
        """End the node, its clients and its thread.

        Raises:
            BaseException: what ended the node before, if anything unexpected did.
        """
        self.clock.detach(self)
        for client in self._clients:
            client.close()
        self._clients.clear()
        if self._thread.is_alive():
            with contextlib.suppress(trio.RunFinishedError):
                assert self._token is not None
                self._token.run_sync_soon(self._over.set)
            self._thread.join(ANSWER_S_MAX)
            if self._thread.is_alive():
                raise InternalError(f"the thread {self._thread.name} does not end")
        self._give_port_up()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _give_port_up(self) -> None:
        if self._holder is not None:
            self._holder.close()
            self._holder = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the disk of this and the next lives ------------------------------------------------------------------
    def slow_disk(self, seconds: float) -> None:
        """Let every sync take longer by this, in real time."""
        self._ask(self._slow_disk, seconds)

    async def _slow_disk(self, seconds: float) -> None:
        self._sync_s = seconds
        if self._life is not None:
            self._life.disk.sync_s = seconds

    def fill_disk(self) -> None:
        """No more room: pushes are refused when this returns, settles go on."""
        self._ask(self._fill_disk)
        self._until(self._is_full, time.monotonic() + ANSWER_S_MAX)

    def make_room(self) -> None:
        """The end of `fill_disk`; pushes are taken when this returns."""
        self._ask(self._make_room)

    async def _fill_disk(self) -> None:
        self._full = True
        life = self._life
        if life is None or life.node is None:
            return
        node = life.node
        life.disk.full = True
        # A disk is found full by who writes: a push that nobody waits for finds it out, and leaves nothing behind.
        life.disk.refuse_next_write = True
        node.replica.propose(commands.Tagged(commands.Push("disk full", _ONE_MESSAGE)))
        node.driver.wake()

    async def _is_full(self) -> bool | None:
        node = self.node
        return True if node is None or not node.broker.pushes_allowed else None

    async def _make_room(self) -> None:
        self._full = False
        life = self._life
        if life is None or life.node is None:
            return
        node = life.node
        life.disk.full = False
        await trio.to_thread.run_sync(node.storage.replenish)
        node.broker.pushes_allowed = node.storage.space.pushes_allowed

    # --- the clock's side -----------------------------------------------------------------------------------
    def settle(self, give_up_at: float) -> Settled:
        """See `Timeline`."""
        return self._until(self._look, give_up_at)

    async def _look(self) -> Settled | None:
        """How things stand; None while something is due or on its way that only a thread can end."""
        if self._loop_clock.behind and self.node is not None and self._is_hurried(self.node):
            return None
        self._loop_clock.let_in()
        await trio.testing.wait_all_tasks_blocked()
        life = self._life
        if life is None:
            return Settled(math.inf, ())
        node = life.node
        if node is None or node.replica.has_work or node.driver.persister.busy:
            return None
        reading = node.clock.read()
        now_ms = reading.monotonic_ms
        replica_ms = node.replica.next_deadline(reading)
        far_ms = node.fetcher.next_ms(reading)
        if far_ms is not None and far_ms <= now_ms:
            # It is being fetched: a thread reads, or what it read is on its way into the log.
            return None
        activity = [id(life), sum(q.pushed + q.delivered + q.acked for q in node.replica.machine.queues.values())]
        if replica_ms is not None and replica_ms <= now_ms + 1:
            # Readers whose polls have just ended ask again before there is something for them.
            activity += [node.broker.counters.requests, node.broker.polls.parked]
        polls_ms = node.broker.polls.deadlines.next_ms()
        if min(each for each in (math.inf, replica_ms, polls_ms) if each is not None) <= now_ms:
            # All tasks sleep, so whoever has to act on it reckons with the millisecond after this one.
            left_s = trio.lowlevel.current_statistics().seconds_to_next_deadline
            return Settled(trio.current_time() + left_s, tuple(activity))
        # Everything else that sleeps here (time-outs of connections, an idle log's last sync) may as well wake at the
        # next such moment; but not so late that sessions of the living would end.
        first_ms = now_ms + _STRIDE_MS if far_ms is None else min(now_ms + _STRIDE_MS, far_ms)
        if replica_ms is not None:
            first_ms = min(first_ms, replica_ms)
            if polls_ms is not None and polls_ms < replica_ms - 1:
                # Polls that end before it end empty. Not each at its own moment: an idle worker has one every few
                # seconds, for ever.
                first_ms = min(first_ms, replica_ms - 1)
        return Settled(node.clock.deadline(first_ms), tuple(activity))

    def _is_hurried(self, node: Node) -> bool:
        """Whether a connection runs against a time-out: its greeting, or the rest of a frame, is still on its way.

        It gets a moment of real time for that, or an hour that passes at once would end it. Not for ever: some say
        nothing.
        """
        now = time.monotonic()
        if not any(cast(Connection, port).has_deadline for port in node.broker.ports):
            self._hurry_until = math.inf
            return False
        self._hurry_until = min(self._hurry_until, now + _GREETING_S)
        return now < self._hurry_until

    def _until(self, look: Callable[[], Awaitable[T | None]], give_up_at: float) -> T:
        """What `await look()` in the server's loop gives, once it is not None."""
        while True:
            found = self._ask(look)
            if found is not None:
                return found
            if time.monotonic() >= give_up_at:
                raise ClockStuck(f"the server at {self.address} did not finish what was due in time")
            time.sleep(_LOOK_S)

    # --- the thread -----------------------------------------------------------------------------------------
    def _ask(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """What `await function(*arguments)` gives or raises in the server's loop."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        assert self._token is not None
        try:
            self._token.run_sync_soon(self._begin, function, arguments, future)
        except trio.RunFinishedError:
            raise InternalError("the server is closed") from self._failure
        return future.result(ANSWER_S_MAX)

    def _begin(
        self,
        function: Callable[..., Awaitable[T]],
        arguments: tuple[Any, ...],
        future: concurrent.futures.Future[T],
    ) -> None:
        if self._nursery is None:
            future.set_exception(InternalError("the server is closed"))
        else:
            self._nursery.start_soon(self._answer, function, arguments, future)

    async def _answer(
        self,
        function: Callable[..., Awaitable[T]],
        arguments: tuple[Any, ...],
        future: concurrent.futures.Future[T],
    ) -> None:
        try:
            result = await function(*arguments)
        except trio.Cancelled:
            future.set_exception(InternalError("the server was closed meanwhile"))
            raise
        except Exception as error:  # noqa: BLE001  # it is for who asked
            future.set_exception(error)
        else:
            future.set_result(result)

    def _work(self) -> None:
        try:
            trio.run(self._main, clock=self._loop_clock)
        except BaseException as error:
            log.exception("server_ended %s", error)
            self._failure = self._failure or error
            if not self._up.done():
                self._up.set_exception(error)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._turn = trio.Lock()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await self._start()
            self._up.set_result(None)
            await self._over.wait()
            self._nursery = None
            if self._life is not None:
                self._life.scope.cancel()
                await self._life.ended.wait()
            nursery.cancel_scope.cancel()

    # --- lives, in the thread -------------------------------------------------------------------------------
    async def _start(self) -> None:
        assert self._turn is not None and self._nursery is not None
        async with self._turn:
            if self._life is not None:
                if not self._life.scope.cancel_called:
                    return
                await self._life.ended.wait()
            disk = FaultyDisk(self._inner)
            disk.full, disk.sync_s = self._full, self._sync_s
            life = self._life = _Life(disk)
            await self._nursery.start(self._live, life)

    async def _stop(self) -> None:
        assert self._turn is not None
        async with self._turn:
            life = self._life
            if life is not None:
                life.stop.set()
                await life.ended.wait()

    async def _kill(self, power_loss_seed: int | None) -> None:
        assert self._turn is not None
        async with self._turn:
            life = self._life
            if life is not None:
                self._cut(power_loss_seed)
                await life.ended.wait()

    def _cut(self, power_loss_seed: int | None) -> None:
        """Nothing after this reaches the disk or a client."""
        life = self._life
        if life is not None and not life.scope.cancel_called:
            self._inner = life.disk.cut_power(power_loss_seed)
            self.wire.cut()
            life.scope.cancel()

    def _crash_from_wire(self) -> None:
        """A crash out of the middle of the node's own doing; it comes back by itself."""
        life = self._life
        if self._nursery is not None and life is not None and not life.scope.cancel_called:
            self._cut(self.faults.next_crash_seed())
            self._nursery.start_soon(self._start)

    async def _delete_all(self) -> None:
        node = self.node
        if node is None:
            return
        while node.replica.machine.queues:
            for name in node.replica.machine.queues:
                node.replica.propose(commands.Tagged(commands.DeleteQueue(name)))
            node.driver.wake()
            await node.driver.wait_written()

    async def _live(self, life: _Life, *, task_status: trio.TaskStatus[None]) -> None:
        try:
            with life.scope:
                await self._serve(life, task_status)
        except* PowerOff:
            log.debug("power_off %s", self.address)
        except* Exception as error:
            log.exception("node_failed %s", error)
            self._failure = self._failure or error
            raise
        finally:
            self._life = None
            life.ended.set()

    async def _serve(self, life: _Life, task_status: trio.TaskStatus[None]) -> None:
        """One life, wired as the daemon's supervisor wires it, with this server's wire before its connections."""
        sock = listener.bind(HOST, self._port)
        try:
            node = await open_node(self.config, disk=life.disk, clock=Clock(wall_ms=self._loop_clock.wall_ms))
            clean = False
            try:
                listener.listen(sock)
                async with trio.open_nursery() as core:
                    start_core(core, node)
                    async with trio.open_nursery() as connections:
                        front = make_front(node)
                        await connections.start(front.run)
                        async with trio.open_nursery() as accepting:
                            door = listener.Listener(
                                sock,
                                self.wire.adopt(front),
                                lambda: len(front),
                                connections_max=self.config.max_connections,
                            )
                            accepting.start_soon(door.run)
                            life.node = node
                            task_status.started()
                            await life.stop.wait()
                            accepting.cancel_scope.cancel()
                        await drain(node, front)
                        connections.cancel_scope.cancel()
                    with trio.move_on_after(self.config.drain_timeout):
                        await node.driver.wait_written()
                    core.cancel_scope.cancel()
                await node.compactor.snapshot()
                clean = True
            finally:
                life.node = None
                node.replica.close(clean=clean)
        finally:
            sock.close()


_ONE_MESSAGE: Final = api.Columns(b"x", b"\x01\0\0\0")
