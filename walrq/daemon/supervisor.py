"""The nursery tree of one node, its start and its end.

    core          driver, peers, members, reaper, compactor, pollers, cold replies: any exception ends the process
    └ connections   the front (reactor or streams) and the other doors: an error in one connection ends that connection
      └ accepting     listeners: left first when the node stops

`serve` returns an exit status. Whatever ends the process early is one line on standard error:

    0   stopped in good order: everything in flight answered or refused, log synced, last snapshot written
    70  a mistake of walrq's own        74  storage failed or is damaged      75  the data directory is in use
    78  a setting or a listening address is wrong (the statuses of `errors.ERRORS`)

Stopping (SIGTERM, SIGINT) leaves the nurseries inside-out; a node that leads others hands over first. A second signal
exits at once, with 128 + its number: as safe as a crash, which is to say safe. SIGHUP reads the settings file again;
only when it comes because the terminal is gone does it stop the node.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import ipaddress
import json
import logging
import os
import secrets
import signal
import socket
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Final, TextIO, cast

import attrs
import trio

from walrq import __version__, api, limits, logs
from walrq.access.lock import Key
from walrq.daemon import listener, peers, pollers
from walrq.daemon.backup import Backups
from walrq.daemon.broker import Broker
from walrq.daemon.clock import Clock
from walrq.daemon.config import DOORS, RELOADABLE, Config, Door, format_address, parse_address
from walrq.daemon.driver import Driver
from walrq.daemon.members import Members
from walrq.daemon.peers import Peers
from walrq.daemon.reactor import AVAILABLE as EPOLL_AVAILABLE
from walrq.daemon.reactor import Reactor
from walrq.daemon.stream_front import StreamFront
from walrq.errors import ERRORS, Code, ConfigError, DataDirLocked, Draining, WalrqError
from walrq.local import notify
from walrq.local.tracing import TraceFile
from walrq.locks.doorman import Doorman
from walrq.locks.tls import DoorTls
from walrq.protocol.handshake import Hello, Shards, Welcome
from walrq.queues.image import NOT_RESIDENT
from walrq.queues.machine import Bounds
from walrq.replica import Replica, ReplicaConfig
from walrq.storage.config import StorageConfig
from walrq.storage.disk import Disk, RealDisk
from walrq.storage.identity import LOCK_NAME
from walrq.storage.identity import NAME as FORMAT
from walrq.storage.inspect import lock_holder
from walrq.storage.storage import Storage
from walrq.upkeep.compactor import Compactor
from walrq.upkeep.fetcher import Fetcher
from walrq.upkeep.memory import watch_memory
from walrq.upkeep.reaper import Reaper, keep_sessions

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
# A leader that stops waits so long for another one to take office: many times what that takes, and then it goes.
_HAND_OVER_S: Final = 1.0
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
    fetcher: Fetcher
    compactor: Compactor
    backups: Backups
    members: Members
    peers: Peers | None
    doorman: Doorman
    # What its doors show; None: they speak in the clear.
    tls: DoorTls | None = None
    # What carries TCP, while connections are served: doors whose protocols it can carry use it too.
    front: Front | None = attrs.field(default=None, init=False)

    def welcome(self, hello: Hello) -> Welcome | api.Failed:
        """Judge a client's Hello. A session is taken as it is: a request of an ended one is answered
        *unknown*.
        """
        nodes: tuple[api.NodeAt, ...] = ()
        leader: str | None = None
        if self.peers is not None:
            nodes = self.peers.nodes()
            leader = (
                self.broker.not_leader().details["leader"] if not self.broker.is_serving else self.peers.own_endpoint
            )
        return Welcome(
            node=self.node_id,
            cluster=self.replica.cluster_id,
            shards=(Shards(0, limits.SHARDS - 1, None),),
            limits=_PUBLISHED,
            session=hello.session,
            server_ms=self.clock.read().wall_ms,
            nodes=nodes,
            leader=leader,
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


async def open_node(
    config: Config,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
    setting: peers.Setting | None = None,
    stop: trio.Event | None = None,
) -> Node:
    """Lock and recover the data directory; a node that is ready to be run.

    Args:
        setting: how it talks to its peers; None for a node that has none, or does not want to hear of them.
        stop: ends the waiting for a cluster to take it in.

    Raises:
        DataDirLocked, DataDirInvalid, StorageError, DiskFull: see `Storage.open`.
        ConfigError: the directory belongs to another cluster than `config` says.
        Draining: told to stop while it waited.
        WalrqError: a cluster that this node was to join refuses it.
    """
    disk = disk or RealDisk()
    clock = clock or Clock()
    keys = [Key.of(user, secret) for user, secret in await trio.to_thread.run_sync(config.keys)]
    tls = await trio.to_thread.run_sync(load_tls, config)
    reading = clock.read()
    storage_config = StorageConfig(
        data_dir=config.data_dir,
        fsync=config.fsync,
        segment_bytes=config.max_wal_segment_size,
        reserve_snapshot_bytes=min(limits.SNAPSHOT_RESERVE_BYTES, config.max_wal_segment_size),
        spared_pages=NOT_RESIDENT,
        handles_max=listener.read_handles_for(listener.raise_descriptor_limit()),
    )
    try:
        storage = await trio.to_thread.run_sync(Storage.open, disk, storage_config)
    except DataDirLocked as error:
        holder = lock_holder(f"{config.data_dir}/{LOCK_NAME}")
        if holder is not None:
            error.text += f", {holder}"
        raise
    try:
        node_id = _node_id(storage, config)
        cluster_id = await _find_cluster(config, storage, node_id, setting, stop)
        # Both are kept by the first start only.
        replica_config = ReplicaConfig(
            node_id=node_id,
            cluster_id=cluster_id,
            secret=secrets.token_bytes(16),
            disk_uuid=storage.disk_uuid,
            configuration=peers.first_configuration(config),
            address=setting.address if setting is not None else "",
            timing=peers.TIMING,
            draw=secrets.randbelow,
            snapshot_log_bytes=config.snapshot_after_bytes,
            snapshot_commands=config.snapshot_commands,
            body_cache_bytes=config.body_cache_bytes,
            hot_messages=config.max_hot_messages,
            hot_bytes=config.max_hot_bytes,
            keeps_window=False,
            bounds=Bounds(far_horizon_ms=limits.FAR_HORIZON_MS),
            trace_to=TraceFile(config.trace_to, node_id) if config.trace_to is not None else None,
        )
        reading = clock.read()
        replica = await trio.to_thread.run_sync(Replica.open, storage, replica_config, reading)
        peers.check_cluster(config, replica.cluster_id, replica.configuration)
    except BaseException:
        storage.close(clean=False)
        raise
    for finding in storage.findings:
        log.warning("storage_finding %s", finding)
    node = _wire(config, storage, replica, clock, setting, keys)
    node.tls = tls
    return node


def load_tls(config: Config) -> DoorTls | None:
    """The certificate of the doors, if they have one. Blocking.

    Raises:
        ConfigError: as `DoorTls.load`.
    """
    if config.tls_cert is None or config.tls_key is None:
        return None
    return DoorTls.load(config.tls_cert, config.tls_key, config.tls_client_ca, config.tls_ca)


async def _find_cluster(
    config: Config, storage: Storage, node_id: str, setting: peers.Setting | None, stop: trio.Event | None
) -> str:
    """The id of the cluster that this start is for; raises as `open_node`."""
    known = storage.hard_state
    if known is not None:
        return known.cluster_id
    if config.bootstrap:
        return peers.cluster_id_of(config.bootstrap)
    if config.join and setting is not None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_at, trio.Event() if stop is None else stop, nursery.cancel_scope)
            admission = await peers.ask_to_join(config, setting, node_id, storage.disk_uuid)
            nursery.cancel_scope.cancel()
            return admission.cluster
        raise Draining("told to stop before a cluster took this node in")
    return secrets.token_hex(8)


async def _cancel_at(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _wire(
    config: Config,
    storage: Storage,
    replica: Replica,
    clock: Clock,
    setting: peers.Setting | None,
    keys: Sequence[Key] = (),
) -> Node:
    """The parts of a node around its replica."""
    node_id = replica.config.node_id
    started_ms = clock.monotonic_ms()
    driver = Driver(replica, storage, clock, inline=config.fsync != "always", settles=config.fsync != "never")

    def node_stats() -> dict[str, Any]:
        return {
            "node": node_id,
            "version": __version__,
            "uptime_ms": clock.monotonic_ms() - started_ms,
            "wall_ms": clock.read().wall_ms,
            "turns": driver.turns,
            "fsync": config.text("fsync"),
            "disk_bytes": storage.bytes_in_use,
            **compactor.stats(),
            "queues": len(replica.machine.queues),
            "cluster": replica.cluster_id,
            "leader": replica.leader,
            "role": replica.role.value,
            "peers": links.stats() if links is not None else {},
        }

    broker = Broker(
        replica,
        clock,
        wake=driver.wake,
        nudge=driver.nudge,
        auto_create=config.auto_create,
        node_stats=node_stats,
    )
    broker.doorman = doorman = Doorman(broker, keys)
    driver.on_turn.append(doorman.look)
    links = None if setting is None else Peers(setting, replica, driver, broker)
    compactor = Compactor(replica, storage, driver, broker, clock)
    return Node(
        config=config,
        node_id=node_id,
        clock=clock,
        storage=storage,
        replica=replica,
        driver=driver,
        broker=broker,
        reaper=Reaper(replica, driver, clock),
        fetcher=Fetcher(replica, driver, clock),
        compactor=compactor,
        backups=Backups(replica, storage, compactor, broker, clock),
        members=Members(replica, driver, broker, links),
        peers=links,
        doorman=doorman,
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
    disk = RealDisk()
    kept = await trio.to_thread.run_sync(peers.read_kept, disk, config.data_dir)
    config = config.with_kept(kept, f"{config.data_dir}/{peers.PEERS}")
    async with contextlib.AsyncExitStack() as stack:
        # Before the directory is made: an address that cannot be had leaves nothing behind. Nobody is refused or
        # kept waiting meanwhile, because it listens only once the node is ready.
        sock = stack.enter_context(contextlib.closing(listener.bind(*config.listen)))
        doors = Doors(
            tuple((door, stack.enter_context(contextlib.closing(found))) for door, found in bind_doors(config))
        )
        setting = None
        addresses = {"cbor": listener.address_of(sock), **doors.endpoints}
        check_first_doors(config, addresses)
        if config.has_peers:
            setting, config = await _prepare_peers(config, addresses, stack)
        try:
            node = await open_node(config, disk=disk, clock=clock, setting=setting, stop=wishes.stop)
        except Draining as error:
            log.info("stopped_early %s", error.text)
            return
        clean = False
        try:
            check_doors(config, addresses, is_locked=node.doorman.is_locked)
            for name in config.shown_secrets:
                log.warning("secret_shown %s was given as a flag, where everybody on this machine sees it", name)
            if setting is not None or kept:
                await trio.to_thread.run_sync(peers.keep, disk, config, kept)
            if not wishes.stop.is_set():
                await _serve_node(node, sock, doors, wishes, greet)
            clean = True
        finally:
            # Also while an error is on its way out: the lock is released, the stop is not marked clean.
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(_close, node.replica, clean)


async def _prepare_peers(
    config: Config, doors: Mapping[str, str], stack: contextlib.AsyncExitStack
) -> tuple[peers.Setting, Config]:
    """Bind the address for peers and read the secret; and the settings with what became clear by that.

    Args:
        doors: where this node listens for clients, by door.

    Raises:
        AddressInUse, ConfigError.
    """
    wanted = config.peer_listen
    if wanted is None:
        if not config.bootstrap or config.node_id is None:
            raise ConfigError(
                "join needs peer_listen (--peer-listen HOST:PORT), where the other nodes reach this one",
                setting="peer_listen",
            )
        wanted = parse_address(dict(config.bootstrap)[config.node_id])
    secret = await trio.to_thread.run_sync(config.secret)
    tls = await trio.to_thread.run_sync(peers.load_tls, config)
    sock = stack.enter_context(contextlib.closing(listener.bind(*wanted, flag="--peer-listen")))
    bound = listener.address_of(sock)
    shared = next((name for name, address in doors.items() if address == bound), None)
    if shared is not None:
        # Both are bound with SO_REUSEADDR and collide only when they listen, after the node has called itself ready.
        at_fault = next(door.setting for door in DOORS if door.name == shared)
        raise ConfigError(
            f"{bound} is for clients ({at_fault}) and for the other nodes (peer_listen, or this node in bootstrap) at"
            " once: they need two ports",
            setting="peer_listen",
        )
    address = peers.reach(config, bound)
    endpoints = {name: peers.endpoint_for_clients(door, address) for name, door in doors.items()}
    setting = peers.Setting(sock, address, endpoints, secret, tls)
    return setting, config.found(peer_listen=parse_address(bound), advertise=address)


def _close(replica: Replica, clean: bool) -> None:
    try:
        replica.close(clean=clean)
    except WalrqError as error:
        if clean:
            raise
        # What ended the process is the news; a disk that failed cannot be closed in good order either.
        log.warning("close_failed %s", error.text)
    finally:
        if isinstance(replica.config.trace_to, TraceFile):
            replica.config.trace_to.close()


@attrs.define
class Doors:
    """The doors beside the native one that this node opens.

    Attributes:
        sockets: each door's, bound.
        stopping: set when they are to take nothing new, finish what is in flight and leave.
        closed: set once they have.
    """

    sockets: tuple[tuple[Door, socket.socket], ...] = ()
    stopping: trio.Event = attrs.field(factory=trio.Event)
    closed: trio.Event = attrs.field(factory=trio.Event)

    @property
    def endpoints(self) -> dict[str, str]:
        """Where each listens, by name."""
        return {door.name: listener.address_of(sock) for door, sock in self.sockets}

    async def run(self, node: Node, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve them until `stopping`; `started` once all of them listen."""
        if self.sockets:
            # The doors know the daemon, and not the daemon the doors: what a door needs is loaded by name, and costs
            # a node nothing that has none.
            opening = importlib.import_module("walrq.doors.opening")
            await opening.run(node, self.sockets, self.stopping, task_status=task_status)
        else:
            task_status.started()
        self.closed.set()


def bind_doors(config: Config) -> Iterator[tuple[Door, socket.socket]]:
    """The doors that `config` opens beside the native one, each with its bound socket.

    Raises:
        AddressInUse: an address is taken. ConfigError: a host is not known, or this version lacks the door.
    """
    for door in DOORS:
        address = getattr(config, door.setting)
        if not door.module or address is None:
            continue
        if not exists(door):
            raise ConfigError(f"{door.setting}: this version of walrq has no {door.name} door", setting=door.setting)
        yield door, listener.bind(*address, flag=door.flag)


def exists(door: Door) -> bool:
    """Whether this version has somebody to serve the door."""
    return not door.module or importlib.util.find_spec(door.module) is not None


async def _serve_node(node: Node, sock: socket.socket, doors: Doors, wishes: Wishes, greet: Greet | None) -> None:
    listener.listen(sock)
    try:
        async with trio.open_nursery() as core:
            start_core(core, node)
            async with trio.open_nursery() as connections:
                node.front = front = make_front(node)
                await connections.start(front.run)
                await connections.start(doors.run, node)
                async with trio.open_nursery() as accepting:
                    door = listener.Listener(
                        sock,
                        adopt(front),
                        lambda: len(front),
                        connections_max=node.config.max_connections,
                    )
                    accepting.start_soon(door.run)
                    accepting.start_soon(_reload_on_wish, node, door, wishes)
                    node.members.endpoint = address = listener.address_of(sock)
                    # At a terminal the banner says all of it.
                    if greet is not None or not sys.stderr.isatty():
                        _log_ready(node, address)
                    endpoints = {"cbor": address, **doors.endpoints}
                    if node.config.peer_listen is not None:
                        endpoints["peer"] = format_address(*node.config.peer_listen)
                    line = {"event": "ready", "node": node.node_id, "endpoints": endpoints}
                    notify.tell(notify.READY)
                    if greet is not None:
                        accepting.start_soon(greet, line)
                    else:
                        print_ready(line)
                        _banner(node, endpoints)
                    await wishes.stop.wait()
                    log.info("stopping drain_timeout=%g", node.config.drain_timeout)
                    notify.tell(notify.STOPPING)
                    await _hand_over(node)
                    accepting.cancel_scope.cancel()
                await drain(node, front, doors)
                connections.cancel_scope.cancel()
            # What the closing connections still proposed (leases given back) is written too.
            with trio.move_on_after(node.config.drain_timeout):
                await node.driver.wait_written()
            core.cancel_scope.cancel()
    finally:
        sock.close()
    await node.compactor.snapshot()


async def _hand_over(node: Node) -> None:
    """Let another node lead before this one leaves: nobody has to wait for an election."""
    if node.peers is None or node.replica.successor is None:
        return
    try:
        await node.members.hand_over(None, _HAND_OVER_S)
    except WalrqError as error:
        log.warning("not_handed_over %s", error.text)


def start_core(core: trio.Nursery, node: Node) -> None:
    """Start the tasks without which nothing is answered; an exception in any of them leaves `core`."""
    core.start_soon(node.driver.persister.run, name="persister")
    core.start_soon(node.driver.run, node.broker, name="driver")
    core.start_soon(node.doorman.run, name="doorman")
    core.start_soon(node.members.run, name="members")
    core.start_soon(node.reaper.run, name="reaper")
    core.start_soon(node.fetcher.run, name="fetcher")
    if node.config.max_memory:
        core.start_soon(watch_memory, node.broker, node.config.max_memory, name="memory")
    core.start_soon(keep_sessions, node.broker, name="keep_sessions")
    core.start_soon(node.compactor.run, name="compactor")
    core.start_soon(node.backups.run, name="backups")
    core.start_soon(pollers.run, node.broker, node.clock, name="pollers")
    core.start_soon(node.broker.cold.run, node.broker.flush, name="cold_replies")
    core.start_soon(node.driver.run_read_ahead, name="read_ahead")
    if isinstance(node.config.fsync, tuple):
        core.start_soon(node.driver.run_interval, node.config.fsync[1], name="interval_sync")
    if node.peers is not None:
        core.start_soon(node.peers.run, name="peers")


def make_front(node: Node) -> Front:
    """What carries the native protocol's TCP."""
    choice = node.config.front
    if node.tls is not None:
        if choice == "reactor":
            raise ConfigError("front is reactor, which has no TLS; leave it at auto", field="front")
        front = StreamFront(node.broker, node.clock, node.welcome)
        front.shake = node.tls.shake
        return front
    if choice == "reactor" and not EPOLL_AVAILABLE:
        raise ConfigError("front is reactor, but this system has no epoll; leave it at auto", field="front")
    if choice == "reactor" or (choice == "auto" and EPOLL_AVAILABLE):
        links = node.peers
        if links is None:
            return Reactor(node.broker, node.clock, node.welcome, node.driver)
        return Reactor(node.broker, node.clock, node.welcome, node.driver, links.mesh, lingers=not links.has_tls)
    return StreamFront(node.broker, node.clock, node.welcome)


def adopt(front: Front) -> Callable[[socket.socket, str], None]:
    """How a front takes an accepted socket."""
    if isinstance(front, Reactor):
        return front.add
    streams = front

    def add(sock: socket.socket, peer: str) -> None:
        streams.add(trio.SocketStream(trio.socket.from_stdlib_socket(sock)), peer)

    return add


async def drain(node: Node, front: Front, doors: Doors | None = None) -> None:
    """Answer what is in flight, refuse what is new, within the drain time-out; then let the replies reach the
    kernel.
    """
    idle = trio.Event()
    with trio.move_on_after(node.config.drain_timeout) as scope:
        node.broker.drain(idle.set)
        front.go_away(Code.DRAINING, "the node is stopping")
        if doors is not None:
            doors.stopping.set()
        await idle.wait()
        await front.wait_quiet(_QUIET_MS)
        if doors is not None:
            await doors.closed.wait()
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
        if node.tls is not None:
            try:
                await trio.to_thread.run_sync(node.tls.reload)
                log.info("reloaded tls_cert=%s", node.tls.cert)
            except ConfigError as error:
                log.warning("reload_refused %s", error.text)
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
    now = [name for name in changed if name in RELOADABLE]
    later = [name for name in changed if name not in RELOADABLE]
    node.config = old.taken_over(new, now)
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


def check_doors(config: Config, addresses: Mapping[str, str], *, is_locked: bool) -> None:
    """A door that others than this machine can reach asks who they are, or somebody said that it need not.

    Args:
        addresses: where each door listens, by name.

    Raises:
        ConfigError: naming the door and what to do.
    """
    for name, address in addresses.items():
        if is_loopback(address):
            continue
        if not is_locked and not config.insecure:
            raise ConfigError(
                f"the door {name} at {address} can be reached from other machines, and nobody is asked who he is: give"
                " --admin-token-file or --requirepass-file, or make a token; or say --insecure",
                setting="insecure",
            )
        if not is_locked:
            log.warning(
                "open_door %s=%s: nobody is asked who he is (--insecure), whoever reaches this address may read and"
                " remove every message",
                name,
                address,
            )
        elif config.tls_cert is None:
            log.warning(
                "clear_door %s=%s: secrets and messages travel in the clear; give --tls-cert and --tls-key, or keep the"
                " network to yourself",
                name,
                address,
            )


def check_first_doors(config: Config, addresses: Mapping[str, str]) -> None:
    """`check_doors` before anything is made: of a first start, when nobody can have made a token yet."""
    if not (config.has_keys or config.insecure or os.path.exists(os.path.join(config.data_dir, FORMAT))):
        check_doors(config, addresses, is_locked=False)


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches "host:port"."""
    return ipaddress.ip_address(parse_address(address)[0].partition("%")[0]).is_loopback


def _banner(node: Node, endpoints: Mapping[str, str], stream: TextIO | None = None) -> None:
    """What a person at a terminal wants to know first."""
    stream = stream or sys.stderr
    if not stream.isatty():
        return
    address = endpoints["cbor"]
    others = "".join(f"  {name:<10} {where}\n" for name, where in endpoints.items() if name not in ("cbor", "peer"))
    server = "" if address == f"127.0.0.1:{limits.DEFAULT_PORT}" else f" --server walrq://{address}"
    stream.write(
        f"\n  walrq node {node.node_id}\n"
        f"  cbor       {address}\n"
        f"{others}"
        f"  data       {os.path.abspath(node.config.data_dir)}\n"
        f"  fsync      {node.config.text('fsync')}\n\n"
        f'  next       walrq push{server} jobs "hello"\n\n'
    )
    stream.flush()
