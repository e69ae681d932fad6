"""This node's peers: how it comes to have them, what it tells them, and Raft's time while there are any.

How a node begins is decided once, at its first start:

    bootstrap   one of the first members of a new cluster, whose id follows from the list of them: nodes that were
                given different lists are strangers to each other
    join        no member of anything: it asks members to take it in, and waits to be sent a log
    neither     the only voter of a cluster of its own, which may grow later

After that the log says who the members are. What else a restart needs (addresses, where the secret is) is kept in the
data directory's PEERS file; the secret itself never is.

Time: a tick every TICK_MS while there is anybody to hear from. A single voter has nobody to miss, and nothing on an
idle node runs periodically.
"""

from __future__ import annotations

import hashlib
import json
import logging
import socket
from collections.abc import Mapping
from typing import Any, Final

import attrs
import trio

from walrq import api
from walrq.daemon.broker import Broker
from walrq.daemon.config import Config, parse_address
from walrq.daemon.driver import Driver
from walrq.errors import ConfigError, NotMember, NotReady, WalrqError
from walrq.peers.incoming import Admit
from walrq.peers.joining import knock
from walrq.peers.mesh import Mesh
from walrq.peers.tls import PeerTls
from walrq.protocol.peer import Admission, PeerHello
from walrq.raft.election import Timing
from walrq.raft.membership import Configuration, Member
from walrq.raft.messages import Message, PreVote
from walrq.replica import Replica
from walrq.storage.disk import Disk, read_file, write_file_atomically

log = logging.getLogger("walrq.peers")

# With the time-outs of 11 to 20 ticks a leader that is gone is missed after half a second, and one that is held up
# (a collector's pause, a crowded machine) is not missed for 0.4 s.
TICK_MS: Final = 40
TIMING: Final = Timing()

PEERS: Final = "peers.json"
_FORMAT: Final = 1
_FILE_BYTES_MAX: Final = 64 * 1024


# --- how a node begins --------------------------------------------------------------------------------------
def cluster_id_of(members: tuple[tuple[str, str], ...]) -> str:
    """The id of a new cluster of these members (node id, address), the same wherever it is computed."""
    text = "\n".join(f"{node}={address}" for node, address in sorted(members))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def first_configuration(config: Config) -> Configuration | None:
    """What a first start begins with, as `ReplicaConfig.configuration` takes it."""
    if config.bootstrap:
        return Configuration({node: Member(node, address) for node, address in config.bootstrap})
    return Configuration() if config.join else None


def check_cluster(config: Config, cluster: str, members: Configuration) -> None:
    """Compare `bootstrap` with what the directory says: it counts at the first start, and may be given at all.

    A list that has changed since names other members that are still there; a list of strangers means that this is not
    the directory of the cluster that is meant, and the node would serve another one.

    Raises:
        ConfigError: it is a list of strangers.
    """
    if not config.bootstrap or cluster_id_of(config.bootstrap) == cluster:
        return
    known = {(each.node, each.address) for each in (*members.voters.values(), *members.learners.values())}
    if any(pair in known for pair in config.bootstrap if pair[0] != config.node_id):
        log.info("bootstrap_ignored %s has its members since its first start", config.data_dir)
        return
    raise ConfigError(
        f"bootstrap names another cluster ({cluster_id_of(config.bootstrap)}) than the one that {config.data_dir}"
        f" belongs to ({cluster}); it counts at the first start only: leave it out, or use an empty directory",
        setting="bootstrap",
    )


def read_kept(disk: Disk, data_dir: str) -> dict[str, Any]:
    """What the last start kept for this one. Blocking.

    Raises:
        ConfigError: the file cannot be read.
    """
    path = f"{data_dir}/{PEERS}"
    if not disk.exists(path):
        return {}
    try:
        data = read_file(disk, path)
        found = json.loads(data) if len(data) <= _FILE_BYTES_MAX else None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error}); give the settings it kept again and remove it") from None
    if not isinstance(found, dict) or found.pop("format", None) != _FORMAT:
        raise ConfigError(f"{path} is not of format {_FORMAT}; give the settings it kept again and remove it")
    return found


def keep(disk: Disk, config: Config, kept: Mapping[str, Any]) -> None:
    """Keep what the next start needs to know, unless it is there already. Blocking."""
    found = config.to_keep()
    if found != dict(kept):
        text = json.dumps({"format": _FORMAT, **found}, indent=1) + "\n"
        write_file_atomically(disk, config.data_dir, PEERS, text.encode())


def reach(config: Config, bound: str) -> str:
    """Where the other nodes reach this one, which listens for them at `bound`.

    Raises:
        ConfigError: it listens everywhere, and nobody said where that is.
    """
    if config.advertise is not None:
        return config.advertise
    if config.bootstrap and config.node_id is not None:
        return dict(config.bootstrap)[config.node_id]
    host, _ = parse_address(bound)
    if host in _EVERYWHERE:
        raise ConfigError(
            f"peer_listen {bound} is every address of this machine: say with advertise (--advertise HOST:PORT) which of"
            " them the other nodes reach",
            setting="advertise",
        )
    return bound


def endpoint_for_clients(bound: str, address: str) -> str:
    """Where clients reach a door that listens at `bound`: on every address means at the one that peers use as well."""
    host, port = parse_address(bound)
    if host not in _EVERYWHERE:
        return bound
    host, _ = parse_address(address)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})


def load_tls(config: Config) -> PeerTls | None:
    """The certificates for mutual TLS, None without. Blocking.

    Raises:
        ConfigError: a file cannot be used.
    """
    if config.peer_tls_cert is None or config.peer_tls_key is None or config.peer_tls_ca is None:
        return None
    return PeerTls.load(config.peer_tls_cert, config.peer_tls_key, config.peer_tls_ca)


@attrs.frozen
class Setting:
    """What a node with peers needs beyond its replica, found before that is opened.

    Attributes:
        sock: bound, and not listening yet.
        address: where the other nodes reach it.
        endpoints: where clients reach this node, by door.
    """

    sock: socket.socket
    address: str
    endpoints: dict[str, str]
    secret: bytes = attrs.field(repr=False)
    tls: PeerTls | None


async def ask_to_join(config: Config, setting: Setting, node_id: str, disk_uuid: bytes) -> Admission:
    """Ask the members in `join` until one of them takes this node in.

    Raises:
        WalrqError: the cluster refuses, and would again.
    """
    hello = PeerHello("", node_id, disk_uuid, setting.address, setting.endpoints)
    delay_s = _KNOCK_S
    said = ""
    while True:
        try:
            admission = await knock(config.join, hello, setting.secret, setting.tls)
        except NotReady as error:
            if error.text != said:
                log.warning("join_waits %s", error.text)
                said = error.text
            await trio.sleep(delay_s)
            delay_s = min(2 * delay_s, _KNOCK_S_MAX)
            continue
        except WalrqError as error:
            error.text = f"join {','.join(config.join)}: {error.text}"
            raise
        log.info("joined cluster=%s members=%s", admission.cluster, ",".join(admission.configuration.nodes))
        return admission


# Between two attempts to join: the cluster may be electing, or not there yet.
_KNOCK_S: Final = 0.1
_KNOCK_S_MAX: Final = 2.0


# --- while it runs ------------------------------------------------------------------------------------------
class Peers:
    """The links to the other nodes and the ticks; a task of the core."""

    def __init__(self, setting: Setting, replica: Replica, driver: Driver, broker: Broker) -> None:
        self.address = setting.address
        self.has_tls = setting.tls is not None
        self._endpoints = setting.endpoints
        self._replica = replica
        self._driver = driver
        self._broker = broker
        self._node_id = replica.config.node_id
        self._changed = trio.Event()
        self._is_member = self._node_id in replica.configuration.nodes
        self.mesh = Mesh(
            node_id=self._node_id,
            disk_uuid=replica.disk_uuid,
            cluster_id=lambda: replica.cluster_id,
            secret=setting.secret,
            listener=setting.sock,
            address=setting.address,
            endpoints=lambda: self._endpoints,
            tls=setting.tls,
            members=self._members,
            deliver=self._deliver,
            fill=replica.fill,
            link_up=self._link_up,
            link_lost=self._link_lost,
            admit=self._admit,
            version=replica.config.version_max,
        )
        # Who decides about nodes that ask to be taken in.
        self.admit: Admit | None = None
        driver.attach(broker, self.mesh.send)
        broker.on_members.append(self._members_changed)
        broker.endpoint_of = self.endpoint_of

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Talk to the peers until cancelled."""
        nodes = self._replica.configuration.nodes
        if nodes and not self._is_member:
            log.warning(
                "not_member node=%s members=%s index=%d: this node was removed, or its log has not come so far;"
                " a removed one comes back with an empty directory only",
                self._node_id,
                ",".join(nodes),
                self._replica.configuration_index,
            )
        async with trio.open_nursery() as nursery:
            await nursery.start(self.mesh.run)
            nursery.start_soon(self._driver.run_background)
            nursery.start_soon(self._tick)
            task_status.started()

    @property
    def is_alone(self) -> bool:
        """Whether there is nobody to hear from."""
        return self._replica.configuration.nodes == (self._node_id,)

    async def _tick(self) -> None:
        while True:
            if self.is_alone:
                self._changed = trio.Event()
                await self._changed.wait()
            await trio.sleep(TICK_MS / 1000)
            self._driver.tick()

    def _members(self) -> dict[str, Member]:
        configuration = self._replica.configuration
        members = {**configuration.voters, **configuration.learners}
        members.pop(self._node_id, None)
        return members

    def _members_changed(self) -> None:
        self._changed.set()
        self.mesh.members_changed()
        configuration = self._replica.configuration
        was_member, self._is_member = self._is_member, self._node_id in configuration.nodes
        if was_member and not self._is_member:
            log.warning(
                "removed node=%s index=%d: the cluster goes on without this node, which can be stopped",
                self._node_id,
                self._replica.configuration_index,
            )
        log.info(
            "members voters=%s learners=%s index=%d",
            ",".join(configuration.voters) or "-",
            ",".join(configuration.learners) or "-",
            self._replica.configuration_index,
        )

    def _deliver(self, message: Message) -> None:
        """
        Raises:
            NotMember: it asks for votes, and was removed. Nobody told it: who is removed is sent no log any more.
            RemoteProtocolError: see `Driver.receive`.
        """
        if type(message) is PreVote and self._broker.is_serving and message.sender not in self._members():
            raise NotMember(
                f"node {message.sender!r} is no member of cluster {self._replica.cluster_id} any more: it was removed,"
                " and can be stopped",
                node=message.sender,
            )
        self._driver.receive(message)

    async def _admit(self, hello: PeerHello) -> Admission:
        if self.admit is None:
            raise NotReady("this node is still starting")
        return await self.admit(hello)

    def is_linked(self, node: str) -> bool:
        """Whether this node and that one can talk now, both ways."""
        stats = self.mesh.stats().get(node)
        return stats is not None and stats.connected and stats.heard > 0

    def stats(self) -> dict[str, Any]:
        """Plain numbers of each peer."""
        return {node: attrs.asdict(stats) for node, stats in self.mesh.stats().items()}

    def _link_up(self, node: str, disk_uuid: bytes, address: str) -> None:
        self._replica.link_up(node, disk_uuid, address, self.mesh.version_of(node))
        self._driver.nudge()

    def _link_lost(self, node: str) -> None:
        self._replica.link_lost(node)
        self._driver.nudge()

    # --- what clients are told ----------------------------------------------------------------------------
    def endpoint_of(self, node: str, door: str = "cbor") -> str | None:
        """Where clients reach a door of a node; None while it has not said so, or has no such door."""
        endpoints = self._endpoints if node == self._node_id else self.mesh.endpoints_of(node)
        return endpoints.get(door)

    @property
    def own_endpoint(self) -> str | None:
        """Where clients reach this node's native door."""
        return self._endpoints.get("cbor")

    def nodes(self, door: str = "cbor") -> tuple[api.NodeAt, ...]:
        """All members whose door of that name is known."""
        found = []
        for node in sorted(self._replica.configuration.nodes):
            endpoint = self.endpoint_of(node, door)
            if endpoint is not None:
                found.append(api.NodeAt(node, endpoint))
        return tuple(found)
