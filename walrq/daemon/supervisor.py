"""The nursery tree of one node, its start and its end.

    core          driver, ticker, reaper, compactor, pollers, cold replies: any exception ends the process
    └ connections   the front (reactor or streams): an error in one connection ends that connection
      └ accepting     listeners: left first when the node stops

`serve` returns an exit status. Whatever ends the process early is one line on standard error:

    0   stopped in good order: everything in flight answered or refused, log synced, last snapshot written
    70  a mistake of walrq's own        74  storage failed or is damaged      75  the data directory is in use
    78  a setting or a listening address is wrong (the statuses of `errors.ERRORS`)

Stopping (SIGTERM, SIGINT) leaves the nurseries inside-out. A second signal exits at once, with 128 + its
number: as safe as a crash, which is to say safe. SIGHUP reads the settings file again; only when it comes
because the terminal is gone does it stop the node.
"""

from __future__ import annotations

import gc
import ipaddress
import json
import logging
import os
import secrets
import signal
import socket
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from types import FrameType
from typing import Any, Final, TextIO, cast

import attrs
import trio

from walrq import __version__, api, limits, logs
from walrq.daemon import listener, pollers, ticker
from walrq.daemon.backup import Backups
from walrq.daemon.broker import Broker
from walrq.daemon.clock import Clock
from walrq.daemon.compactor import Compactor
from walrq.daemon.config import RELOADABLE, Config
from walrq.daemon.driver import Driver
from walrq.daemon.reactor import AVAILABLE as EPOLL_AVAILABLE
from walrq.daemon.reactor import Reactor
from walrq.daemon.reaper import Reaper, keep_sessions
from walrq.daemon.stream_front import StreamFront
from walrq.errors import ERRORS, Code, ConfigError, DataDirLocked, WalrqError
from walrq.protocol.handshake import Hello, Shards, Welcome
from walrq.replica import Replica, ReplicaConfig
from walrq.storage.config import StorageConfig
from walrq.storage.disk import Disk, RealDisk
from walrq.storage.identity import LOCK_NAME
from walrq.storage.inspect import lock_holder
from walrq.storage.storage import Storage

log = logging.getLogger("walrq.supervisor")

EXIT_OK: Final = 0
EXIT_INTERNAL: Final = 70
_FRAMES_SHOWN: Final = 4

# The persist thread needs the interpreter back as soon as its fdatasync returns, or every group commit waits
# for the event loop's next slice: the default of 5 ms would be several times the disk's own latency.
SWITCH_INTERVAL_S: Final = 0.0001
# A backlog is millions of long-lived objects without a cycle among them. The collector's defaults would walk
# them again and again, a pause of half a second each; so it looks at the young often enough, and at all of
# them hardly ever.
GC_THRESHOLDS: Final = (50_000, 20, 100)
# Replies that are made when the drain ends still have to reach the kernel.
_LAST_SEND_S: Final = 1.0
# Requests that crossed our GoAway on their way still get their definite refusal: what a client sent before it
# read that word arrives within a round trip.
_QUIET_MS: Final = 100
# A tool that signals the process and then its group (timeout, some init systems) means one stop, not two.
_SAME_SIGNAL_MS: Final = 100

# Not every system has it.
_HANGUP: Final[signal.Signals | None] = getattr(signal, "SIGHUP", None)

Front = Reactor | StreamFront
ReadyLine = dict[str, Any]
Greet = Callable[[ReadyLine], Awaitable[None]]


def serve(config: Config, *, greet: Greet | None = None) -> int:
    """Run one node until a signal ends it; the exit status. Blocks; main thread only.

    Args:
        greet: runs beside the node from when it is ready until it stops, in place of the readiness line and
            the banner (`print_ready` prints the line); an exception in it ends the node.
    """
    handler = logs.set_up(sys.stderr, config.log_level, cast(logs.LogFormat, config.log_format))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    thresholds = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    # Trio gives the signals back to whoever had them before, and delivers once more what came in the last moment. With
    # the default action a process that has just stopped in good order would die of its last signal.
    for number in _heeded():
        signal.signal(number, _too_late)
    try:
        trio.run(lambda: run(config, greet=greet))
    except BaseException as error:
        if not isinstance(error, Exception | BaseExceptionGroup):
            raise
        return _report(error)
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
        logs.take_down(handler)
    return EXIT_OK


def _heeded() -> list[int]:
    """The signals that mean something to a node. Under nohup SIGHUP stays ignored."""
    if _HANGUP is None or signal.getsignal(_HANGUP) is signal.SIG_IGN:
        return [signal.SIGTERM, signal.SIGINT]
    return [signal.SIGTERM, signal.SIGINT, _HANGUP]


def _too_late(number: int, frame: FrameType | None) -> None:
    """A signal before the node heeds signals, or after it has stopped: nothing is left to do."""


def _report(error: BaseException) -> int:
    """One line about what ended the process; its exit status."""
    first = _first(error)
    if isinstance(first, WalrqError):
        log.critical("fatal %s: %s", first.code.name, first.text)
        status = ERRORS[first.code].exit
    else:
        # One line, and yet enough to find the place: the innermost frames, innermost first.
        frames = traceback.extract_tb(first.__traceback__)[-_FRAMES_SHOWN:]
        places = " < ".join(f"{os.path.basename(at.filename)}:{at.lineno}" for at in reversed(frames))
        text = " ".join(str(first).split())
        log.critical("fatal INTERNAL: %s: %s (at %s)", type(first).__name__, text, places or "no place")
        status = EXIT_INTERNAL
    log.debug("fatal_traceback", exc_info=error)
    return status


def _first(error: BaseException) -> BaseException:
    """The error to report of a group: the first leaf that is no cancellation."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@attrs.define
class Node:
    """The parts of a running node, wired together. Made by `open_node`, inside Trio."""

    config: Config
    node_id: str
    clock: Clock
    storage: Storage
    replica: Replica
    driver: Driver
    broker: Broker
    reaper: Reaper
    compactor: Compactor
    backups: Backups

    def welcome(self, hello: Hello) -> Welcome | api.Failed:
        """Judge a client's Hello. A session is taken as it is: a request of an ended one is answered
        *unknown*.
        """
        return Welcome(
            node=self.node_id,
            cluster=self.replica.machine.cluster,
            shards=(Shards(0, limits.SHARDS - 1, None),),
            limits=_PUBLISHED,
            session=hello.session,
            server_ms=self.clock.read().wall_ms,
        )


_PUBLISHED: Final = {
    "frame_bytes_max": limits.FRAME_BYTES_MAX,
    "batch_messages_max": limits.BATCH_MESSAGES_MAX,
    "batch_bytes_max": limits.BATCH_BYTES_MAX,
    "poll_messages_max": limits.POLL_MESSAGES_MAX,
    "poll_wait_ms_max": limits.POLL_WAIT_MS_MAX,
    "in_flight_per_connection_max": limits.IN_FLIGHT_PER_CONNECTION_MAX,
    "session_window_max": limits.SESSION_WINDOW_MAX,
}


async def open_node(config: Config, *, disk: Disk | None = None, clock: Clock | None = None) -> Node:
    """Lock and recover the data directory; a node that is ready to be run.

    Raises:
        DataDirLocked, DataDirInvalid, StorageError, DiskFull: see `Storage.open`.
    """
    disk = disk or RealDisk()
    clock = clock or Clock()
    reading = clock.read()
    storage_config = StorageConfig(
        data_dir=config.data_dir, fsync=config.fsync, segment_bytes=config.max_wal_segment_size
    )

    def open_blocking() -> tuple[Storage, str, Replica]:
        storage = Storage.open(disk, storage_config)
        try:
            node_id = _node_id(storage, config)
            replica = Replica.open(
                storage,
                ReplicaConfig(
                    node_id=node_id,
                    # Both are kept by the first start only.
                    cluster_id=secrets.token_hex(8),
                    secret=secrets.token_bytes(16),
                    disk_uuid=storage.disk_uuid,
                    snapshot_log_bytes=config.snapshot_log_bytes,
                    snapshot_commands=config.snapshot_commands,
                    body_cache_bytes=config.body_cache_bytes,
                ),
                reading,
            )
        except BaseException:
            storage.close(clean=False)
            raise
        return storage, node_id, replica

    try:
        storage, node_id, replica = await trio.to_thread.run_sync(open_blocking)
    except DataDirLocked as error:
        holder = lock_holder(f"{config.data_dir}/{LOCK_NAME}")
        if holder is not None:
            error.text += f", {holder}"
        raise
    for finding in storage.findings:
        log.warning("storage_finding %s", finding)
    driver = Driver(replica, storage, clock, inline=config.fsync != "always", settles=config.fsync != "never")
    broker = Broker(
        replica,
        clock,
        wake=driver.wake,
        auto_create=config.auto_create,
        node_stats=lambda: {
            "node": node_id,
            "version": __version__,
            "uptime_ms": clock.monotonic_ms() - reading.monotonic_ms,
            "wall_ms": clock.read().wall_ms,
            "turns": driver.turns,
            "fsync": config.text("fsync"),
            "disk_bytes": storage.bytes_in_use,
            "queues": len(replica.machine.queues),
        },
    )
    compactor = Compactor(replica, storage, driver, broker)
    return Node(
        config=config,
        node_id=node_id,
        clock=clock,
        storage=storage,
        replica=replica,
        driver=driver,
        broker=broker,
        reaper=Reaper(replica, driver, clock),
        compactor=compactor,
        backups=Backups(replica, storage, compactor, broker, clock),
    )


def _node_id(storage: Storage, config: Config) -> str:
    """The configured name, else the one kept in the data directory, else one made from the disk's uuid."""
    if config.node_id is not None:
        return config.node_id
    kept = storage.hard_state
    return kept.node_id if kept is not None else f"node-{storage.disk_uuid.hex()[:8]}"


@attrs.define
class Wishes:
    """What signals asked for. A reload that is asked for while the node starts is done once it serves."""

    stop: trio.Event = attrs.field(factory=trio.Event)
    reload: trio.Event = attrs.field(factory=trio.Event)


async def run(config: Config, *, greet: Greet | None = None) -> None:
    """One node, from opening its directory to its last snapshot. `greet`: see `serve`."""
    clock = Clock()
    wishes = Wishes()
    with trio.open_signal_receiver(*_heeded()) as signals:
        async with trio.open_nursery() as outer:
            # From before the directory is opened until after it is closed: recovery and the last snapshot
            # take time.
            outer.start_soon(_watch_signals, signals, wishes, clock, sys.stderr.isatty())
            await _live(config, clock, wishes, greet)
            outer.cancel_scope.cancel()
    log.info("stopped")


async def _live(config: Config, clock: Clock, wishes: Wishes, greet: Greet | None) -> None:
    # Before the directory is made: an address that cannot be had leaves nothing behind. Nobody is refused or
    # kept waiting meanwhile, because it listens only once the node is ready.
    sock = listener.bind(*config.listen)
    try:
        node = await open_node(config, clock=clock)
        clean = False
        try:
            if not wishes.stop.is_set():
                await _serve_node(node, sock, wishes, greet)
            clean = True
        finally:
            # Also while an error is on its way out: the lock is released, the stop is not marked clean.
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(_close, node.replica, clean)
    finally:
        sock.close()


def _close(replica: Replica, clean: bool) -> None:
    try:
        replica.close(clean=clean)
    except WalrqError as error:
        if clean:
            raise
        # What ended the process is the news; a disk that failed cannot be closed in good order either.
        log.warning("close_failed %s", error.text)


async def _serve_node(node: Node, sock: socket.socket, wishes: Wishes, greet: Greet | None) -> None:
    listener.listen(sock)
    try:
        async with trio.open_nursery() as core:
            start_core(core, node)
            async with trio.open_nursery() as connections:
                front = make_front(node)
                await connections.start(front.run)
                async with trio.open_nursery() as accepting:
                    door = listener.Listener(
                        sock,
                        adopt(front),
                        lambda: len(front),
                        connections_max=node.config.max_connections,
                    )
                    accepting.start_soon(door.run)
                    accepting.start_soon(_reload_on_wish, node, door, wishes)
                    address = listener.address_of(sock)
                    # At a terminal the banner says all of it.
                    if greet is not None or not sys.stderr.isatty():
                        _log_ready(node, address)
                    _warn_of_open_door(sock, address)
                    line = {"event": "ready", "node": node.node_id, "endpoints": {"cbor": address}}
                    if greet is not None:
                        accepting.start_soon(greet, line)
                    else:
                        print_ready(line)
                        _banner(node, address)
                    await wishes.stop.wait()
                    log.info("stopping drain_timeout=%g", node.config.drain_timeout)
                    accepting.cancel_scope.cancel()
                await drain(node, front)
                connections.cancel_scope.cancel()
            # What the closing connections still proposed (leases given back) is written too.
            with trio.move_on_after(node.config.drain_timeout):
                await node.driver.wait_written()
            core.cancel_scope.cancel()
    finally:
        sock.close()
    await node.compactor.snapshot()


def start_core(core: trio.Nursery, node: Node) -> None:
    """Start the tasks without which nothing is answered; an exception in any of them leaves `core`."""
    core.start_soon(node.driver.persister.run, name="persister")
    core.start_soon(node.driver.run, node.broker, name="driver")
    core.start_soon(lambda: ticker.run(node.replica, node.driver, node.clock, voters=1), name="ticker")
    core.start_soon(node.reaper.run, name="reaper")
    core.start_soon(keep_sessions, node.broker, name="keep_sessions")
    core.start_soon(node.compactor.run, name="compactor")
    core.start_soon(node.backups.run, name="backups")
    core.start_soon(pollers.run, node.broker, node.clock, name="pollers")
    core.start_soon(node.broker.cold.run, node.broker.flush, name="cold_replies")
    if isinstance(node.config.fsync, tuple):
        core.start_soon(node.driver.run_interval, node.config.fsync[1], name="interval_sync")


def make_front(node: Node) -> Front:
    """What carries the native protocol's TCP."""
    choice = node.config.front
    if choice == "reactor" and not EPOLL_AVAILABLE:
        raise ConfigError("front is reactor, but this system has no epoll; leave it at auto", field="front")
    if choice == "reactor" or (choice == "auto" and EPOLL_AVAILABLE):
        return Reactor(node.broker, node.clock, node.welcome, node.driver)
    return StreamFront(node.broker, node.clock, node.welcome)


def adopt(front: Front) -> Callable[[socket.socket, str], None]:
    """How a front takes an accepted socket."""
    if isinstance(front, Reactor):
        return front.add
    streams = front

    def add(sock: socket.socket, peer: str) -> None:
        streams.add(trio.SocketStream(trio.socket.from_stdlib_socket(sock)), peer)

    return add


async def drain(node: Node, front: Front) -> None:
    """Answer what is in flight, refuse what is new, within the drain time-out; then let the replies reach the
    kernel.
    """
    idle = trio.Event()
    with trio.move_on_after(node.config.drain_timeout) as scope:
        node.broker.drain(idle.set)
        front.go_away(Code.DRAINING, "the node is stopping")
        await idle.wait()
        await front.wait_quiet(_QUIET_MS)
    if scope.cancelled_caught:
        log.warning("drain_timed_out in_flight=%d: their outcome is unknown to the callers", node.broker.in_flight)
    node.broker.flush()
    with trio.move_on_after(_LAST_SEND_S):
        await front.wait_sent()


async def _watch_signals(signals: AsyncIterator[int], wishes: Wishes, clock: Clock, on_terminal: bool) -> None:
    first_ms = 0
    async for number in signals:
        # A terminal that is gone is no terminal any more: nobody would notice the node that stays behind.
        if number == _HANGUP and not (on_terminal and not sys.stderr.isatty()):
            wishes.reload.set()
            continue
        if wishes.stop.is_set():
            if clock.monotonic_ms() - first_ms < _SAME_SIGNAL_MS:
                continue
            log.warning("second_signal %s: exiting at once", signal.Signals(number).name)
            logging.shutdown()
            os._exit(128 + number)
        log.info("signal %s", signal.Signals(number).name)
        first_ms = clock.monotonic_ms()
        wishes.stop.set()


async def _reload_on_wish(node: Node, door: listener.Listener, wishes: Wishes) -> None:
    """Read the settings file again whenever a signal asks for it. A file with a mistake changes nothing."""
    while True:
        await wishes.reload.wait()
        wishes.reload = trio.Event()
        if node.config.sources[2] is None:
            log.warning("reload_skipped: this node has no settings file (--config)")
            continue
        try:
            new = await trio.to_thread.run_sync(node.config.reloaded)
        except ConfigError as error:
            log.warning("reload_refused %s", error.text)
            continue
        take_over(node, door, new)


def take_over(node: Node, door: listener.Listener, new: Config) -> None:
    """Make the new values count that a running node can take over; name the others."""
    old = node.config
    changed = old.changed(new)
    now = {name: getattr(new, name) for name in changed if name in RELOADABLE}
    later = [name for name in changed if name not in RELOADABLE]
    node.config = attrs.evolve(old, **now, origins=new.origins)
    door.connections_max = node.config.max_connections
    node.broker.auto_create = node.config.auto_create
    # Said at the more talkative of both levels.
    logger = logging.getLogger("walrq")
    logger.setLevel(min(logger.level, logging.getLevelName(node.config.log_level.upper())))
    words = " ".join(f"{name}={new.text(name)} (was {old.text(name)})" for name in now)
    if now or not later:
        log.info("reloaded %s", words or "nothing changed")
    if later:
        words = " ".join(f"{name}={new.text(name)} (is {old.text(name)})" for name in later)
        log.warning("restart_needed %s", words)
    logger.setLevel(node.config.log_level.upper())


def print_ready(line: ReadyLine) -> None:
    """The readiness line."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _log_ready(node: Node, address: str) -> None:
    config = node.config
    policy = config.text("fsync")
    log.info("ready node=%s cbor=%s data_dir=%s fsync=%s", node.node_id, address, config.data_dir, policy)


def _warn_of_open_door(sock: socket.socket, address: str) -> None:
    """Say so when the node can be reached from elsewhere: it asks nobody who he is."""
    if not ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback:
        log.warning(
            "open_door cbor=%s: there is no authentication, whoever reaches this address may read and remove every"
            " message; listen on 127.0.0.1, or keep others away with a firewall",
            address,
        )


def _banner(node: Node, address: str, stream: TextIO | None = None) -> None:
    """What a person at a terminal wants to know first."""
    stream = stream or sys.stderr
    if not stream.isatty():
        return
    server = "" if address == f"127.0.0.1:{limits.DEFAULT_PORT}" else f" --server walrq://{address}"
    stream.write(
        f"\n  walrq node {node.node_id}\n"
        f"  cbor       {address}\n"
        f"  data       {os.path.abspath(node.config.data_dir)}\n"
        f"  fsync      {node.config.text('fsync')}\n\n"
        f'  next       walrq push{server} jobs "hello"\n\n'
    )
    stream.flush()
