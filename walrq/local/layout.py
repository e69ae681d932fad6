"""The base directory of a cluster on one machine: its nodes, their addresses, the secret they share.

    BASE/
    ├── cluster.json      which nodes there are and where each listens; written once
    ├── cluster-secret    what nodes prove to each other; readable by its owner only
    ├── n1/ n2/ n3/       data directories, as `walrq serve --data-dir` knows them
    ├── n1.pid ...        process ids of those that the launcher runs now
    └── n1.log ...        what each node wrote to standard error, over all its lives

The addresses are kept because the nodes know each other by them. `cluster.json` is written last: a first start that
was interrupted before it begins again, and finds its secret.

Never: starts anything; changes a directory that holds something else.
"""

from __future__ import annotations

import errno
import json
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs

from walrq import limits
from walrq.errors import AddressInUse, ConfigError, DataDirInvalid
from walrq.storage.disk import RealDisk, write_file_atomically

HOST: Final = "127.0.0.1"
RECORD: Final = "cluster.json"
SECRET: Final = "cluster-secret"
NODES_DEFAULT: Final = 3
# A cluster decides by majority: more than nine nodes wait for five disks and survive no more that happens in practice.
NODES_MAX: Final = 9
# From a node's port for clients to its port for peers.
PEER_OFFSET: Final = 100
PORT_MAX: Final = 65_535
SECRET_BYTES: Final = 32
# Free ports are looked for below the range from which systems take those of outgoing connections: nobody takes them
# between two starts, and no connection can meet itself there.
FREE_PORTS: Final = range(15_000, 32_000)
_FORMAT: Final = 1
_UNFINISHED: Final = (f"{RECORD}.tmp", f"{SECRET}.tmp")


@attrs.frozen
class Place:
    """One node of the base directory.

    Attributes:
        node: its name, n1, n2, ...
        data_dir: where everything of it lies.
        listen: "host:port" for clients.
        peer: "host:port" for the other nodes.
        log: the file that collects its standard error.
        pid_file: the file with its process id, while it runs.
    """

    node: str
    data_dir: Path
    listen: str
    peer: str
    log: Path
    pid_file: Path


@attrs.frozen
class Layout:
    """A base directory that is ready to be started.

    Attributes:
        base: the directory.
        places: its nodes, in order.
        secret: the file with the shared secret.
    """

    base: Path
    places: tuple[Place, ...]
    secret: Path

    @property
    def bootstrap(self) -> str:
        """The list of first members that every one of them is told: name=peer address."""
        return ",".join(f"{place.node}={place.peer}" for place in self.places)

    @property
    def url(self) -> str:
        """What `walrq.connect` takes: any of the nodes."""
        return "walrq://" + ",".join(place.listen for place in self.places)

    def flags(self, place: Place) -> list[str]:
        """The arguments of `walrq serve` that make one process this node, at its first start and at any other."""
        return [
            *("--data-dir", str(place.data_dir)),
            *("--node-id", place.node),
            *("--listen", place.listen),
            *("--peer-listen", place.peer),
            *("--bootstrap", self.bootstrap),
            *("--cluster-secret-file", str(self.secret)),
        ]


def prepare(base: Path, nodes: int | None = None, base_port: int | None = None) -> Layout:
    """The layout that lies in `base`, or a new one of `nodes` nodes.

    Args:
        nodes: 3 for a new one when not given; what is there must not have another number.
        base_port: node i listens on base_port + i - 1 for clients, 100 above that for peers; 0 finds free ports, not
            given is 50051. What is there must not have other ports.

    Raises:
        ConfigError: a number out of range, or another one than in `base`.
        DataDirInvalid: `base` cannot be used, or holds something else.
        AddressInUse: somebody listens where a node of this cluster would.
    """
    if nodes is not None and not 1 <= nodes <= NODES_MAX:
        raise ConfigError(f"nodes is {nodes}, allowed are 1 to {NODES_MAX}", field="nodes")
    base = base.absolute()
    try:
        if not (base / RECORD).exists():
            return _make(base, nodes, base_port)
        made = _read(base, nodes, base_port)
        _check_free(made)
        made.secret.chmod(0o600)
    except OSError as error:
        raise DataDirInvalid(f"{error.filename or base} cannot be used: {error.strerror}") from None
    return made


def _make(base: Path, nodes: int | None, base_port: int | None) -> Layout:
    count = nodes or NODES_DEFAULT
    base.mkdir(mode=0o755, exist_ok=True)
    strange = sorted({each.name for each in base.iterdir()} - {SECRET, *_UNFINISHED, "lost+found"})
    if strange:
        raise DataDirInvalid(f"{base} holds {strange[0]!r} and no {RECORD}: name an empty or a new directory")
    if base_port == 0:
        ports = _free_ports(2 * count)
        pairs = list(zip(ports[:count], ports[count:], strict=True))
    else:
        first = limits.DEFAULT_PORT if base_port is None else base_port
        if not 1 <= first <= PORT_MAX - PEER_OFFSET - count + 1:
            most = PORT_MAX - PEER_OFFSET - count + 1
            raise ConfigError(f"base_port is {first}, allowed are 0 to {most} with {count} nodes", field="base_port")
        pairs = [(first + i, first + i + PEER_OFFSET) for i in range(count)]
    addresses = [(f"n{number}", f"{HOST}:{own}", f"{HOST}:{peer}") for number, (own, peer) in enumerate(pairs, 1)]
    made = _layout(base, addresses)
    _check_free(made)
    if not made.secret.exists():
        _write(base, SECRET, secrets.token_hex(SECRET_BYTES) + "\n")
    record = {
        "format": _FORMAT,
        "nodes": [{"node": node, "listen": listen, "peer": peer} for node, listen, peer in addresses],
    }
    _write(base, RECORD, json.dumps(record, indent=2) + "\n")
    return made


def _write(base: Path, name: str, text: str) -> None:
    """A file that is there whole or not at all, readable by its owner only."""
    write_file_atomically(RealDisk(), str(base), name, text.encode())


def _layout(base: Path, addresses: list[tuple[str, str, str]]) -> Layout:
    places = tuple(
        Place(node, base / node, listen, peer, base / f"{node}.log", base / f"{node}.pid")
        for node, listen, peer in addresses
    )
    return Layout(base, places, base / SECRET)


def _read(base: Path, nodes: int | None, base_port: int | None) -> Layout:
    path = base / RECORD
    addresses = _record(path)
    if nodes is not None and nodes != len(addresses):
        raise ConfigError(
            f"{base} holds a cluster of {len(addresses)} nodes, not of {nodes}: leave --nodes out; a running cluster"
            " grows with `walrq serve --join` and `walrq cluster add`",
            field="nodes",
        )
    first = int(addresses[0][1].rpartition(":")[2])
    if base_port and base_port != first:
        raise ConfigError(
            f"{base} holds a cluster whose ports begin at {first}, not at {base_port}: leave --base-port out",
            field="base_port",
        )
    if not (base / SECRET).is_file():
        raise DataDirInvalid(f"{base / SECRET} is missing: the nodes of {base} cannot prove that they belong together")
    return _layout(base, addresses)


def _record(path: Path) -> list[tuple[str, str, str]]:
    """What cluster.json says: (node, listen, peer) of each node."""
    try:
        record: Any = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != _FORMAT:
            raise DataDirInvalid(f"{path} has format {record['format']}, this version reads {_FORMAT}")
        addresses = [(str(each["node"]), str(each["listen"]), str(each["peer"])) for each in record["nodes"]]
    except (ValueError, KeyError, TypeError):
        raise DataDirInvalid(f"{path} is no record of a cluster; was it edited?") from None
    if not addresses or any("/" in node or ":" not in listen + peer for node, listen, peer in addresses):
        raise DataDirInvalid(f"{path} is no record of a cluster; was it edited?")
    return addresses


def _check_free(made: Layout) -> None:
    """Say so before anything is started when an address cannot be had."""
    for place in made.places:
        for address in (place.listen, place.peer):
            host, _, port = address.rpartition(":")
            if not _is_free(host, int(port)):
                raise AddressInUse(
                    f"{address}, an address of {place.node}, is in use; is this cluster running already? A new one"
                    " takes other ports with --base-port",
                    address=address,
                )


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        # As the node itself: what an ended connection left behind is no obstacle.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True


def _free_ports(count: int) -> list[int]:
    def candidates() -> Iterator[int]:
        start = secrets.randbelow(len(FREE_PORTS))
        for step in range(len(FREE_PORTS)):
            yield FREE_PORTS[(start + step) % len(FREE_PORTS)]

    found: list[int] = []
    for port in candidates():
        if _is_free(HOST, port):
            found.append(port)
            if len(found) == count:
                return found
    raise AddressInUse(f"there are no {count} free ports from {FREE_PORTS.start} to {FREE_PORTS.stop - 1}")
