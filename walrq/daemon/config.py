"""Settings of one node: one table, and where each value came from.

    command-line flags > WALRQ_* variables (then the ancestors' DATA_DIR, NODE_ID) > TOML file > defaults

For what concerns the node's peers, what its last start kept in the data directory comes before the defaults
(`with_kept`), so that a restart needs only the directory.

The same names everywhere: `data_dir` is `--data-dir`, `WALRQ_DATA_DIR` and `data_dir` in the file. An unknown
key is an error that suggests the nearest one. Variables of the environment are shared with others (a
container platform makes up `WALRQ_SERVICE_HOST` by itself), so an unknown one is an error only when it looks
like a setting mistyped.

Never: touches the data directory or the network.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self

import attrs

from walrq import limits
from walrq.errors import ConfigError
from walrq.locks import files
from walrq.logs import LEVELS
from walrq.storage.config import FsyncPolicy, parse_fsync_policy
from walrq.storage.segment import SEGMENT_BYTES_LIMIT

_UNITS: Final = {"": 1, "B": 1, "KIB": limits.KIB, "MIB": limits.MIB, "GIB": 1024 * limits.MIB}
_CONNECTIONS_LIMIT: Final = 1_000_000
_NODE_ID_BYTES_MAX: Final = 255
_DRAIN_TIMEOUT_S_MAX: Final = 3_600.0
# Variables that begin like ours and are read by others: client, command line, tests.
OTHERS_VARIABLES: Final = frozenset(
    {
        "WALRQ_SERVER",
        "WALRQ_CONTEXT",
        "WALRQ_TOKEN",
        "WALRQ_TOKEN_FILE",
        "WALRQ_TLS_CA",
        "WALRQ_CONFIG",
        "WALRQ_SEED",
        "WALRQ_REQUIRE",
        "WALRQ_HYPOTHESIS",
    }
)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be text, and not empty")
    return value


def _path(value: Any) -> str:
    if isinstance(value, Path):
        value = str(value)
    return str(Path(_text(value)).expanduser())


def _node_id(value: Any) -> str:
    text = _text(value)
    if len(text.encode()) > _NODE_ID_BYTES_MAX or not text.isprintable():
        raise ValueError(f"must be at most {_NODE_ID_BYTES_MAX} bytes of printable text")
    return text


def parse_address(value: Any) -> tuple[str, int]:
    """(host, port) of "host:port", "[v6]:port" or ":port" (every interface).

    Raises:
        ValueError: saying what is wrong.
    """
    if isinstance(value, tuple):
        host, number = value
        return str(host), int(number)
    host, colon, port = _text(value).rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise ValueError("must be HOST:PORT with a port from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("must be [HOST]:PORT with brackets around an IPv6 address")
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """What `parse_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reachable(value: Any) -> str:
    """An address that another node can connect to."""
    host, port = parse_address(value)
    if not host or not port or host in _EVERYWHERE:
        raise ValueError("must be HOST:PORT as other nodes reach it, with a host of its own and a port from 1 to 65535")
    return format_address(host, port)


# Addresses to listen on, and not to connect to.
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})


def _texts(value: Any) -> list[Any]:
    """Of "a,b", or of a list in the file."""
    found = value.split(",") if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else [value]
    return [each.strip() if isinstance(each, str) else each for each in found]


def _addresses(value: Any) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(_reachable(each) for each in _texts(value)))
    if len(found) > limits.RAFT_MEMBERS_MAX:
        raise ValueError(f"names {len(found)} addresses, at most {limits.RAFT_MEMBERS_MAX} are read")
    return found


_ORIGINS_MAX: Final = 64


def _origins(value: Any) -> tuple[str, ...]:
    """Web origins as browsers write them, lower case; `*` is any, `null` pages that have none."""
    found = tuple(dict.fromkeys(_text(each).lower() for each in _texts(value)))
    if len(found) > _ORIGINS_MAX:
        raise ValueError(f"names {len(found)} origins, at most {_ORIGINS_MAX} are read")
    for origin in found:
        scheme, separator, host = origin.partition("://")
        whole = scheme in ("http", "https") and separator and host and not set(host) & set("/?#@ ")
        if origin not in ("*", "null") and not whole:
            raise ValueError(f"names {origin!r}, which is no origin: must be https://HOST[:PORT], null or *")
    return found


def _bootstrap(value: Any) -> tuple[tuple[str, str], ...]:
    """The first members, (node id, address), by name: whatever order they are listed in, they are the same group."""
    found: dict[str, str] = {}
    for each in _texts(value):
        if isinstance(each, tuple | list) and len(each) == 2:
            node, address = each
        else:
            node, equals, address = _text(each).partition("=")
            if not equals:
                raise ValueError("must be NODE=HOST:PORT,NODE=HOST:PORT,...")
        node, address = _node_id(node), _reachable(address)
        if node in found:
            raise ValueError(f"names node {node!r} twice")
        if address in found.values():
            raise ValueError(f"names the address {address} twice")
        found[node] = address
    if len(found) > limits.RAFT_MEMBERS_MAX:
        raise ValueError(f"names {len(found)} nodes, at most {limits.RAFT_MEMBERS_MAX} make a cluster")
    return tuple(sorted(found.items()))


def _secret(value: Any) -> str:
    text = _text(value)
    least, most = limits.PEER_SECRET_BYTES_MIN, limits.PEER_SECRET_BYTES_MAX
    if not least <= len(text.encode()) <= most:
        raise ValueError(f"has {len(text.encode())} bytes, allowed are {least} to {most}")
    return text


def _password(value: Any) -> str:
    text = _text(value)
    if len(text.encode()) > limits.TOKEN_BYTES_MAX:
        raise ValueError(f"has {len(text.encode())} bytes, allowed are at most {limits.TOKEN_BYTES_MAX}")
    return text


def _token(value: Any) -> str:
    text = _text(value)
    least, most = limits.TOKEN_SECRET_BYTES_MIN, limits.TOKEN_BYTES_MAX
    if not least <= len(text.encode()) <= most:
        raise ValueError(f"has {len(text.encode())} bytes, allowed are {least} to {most}")
    return text


def read_secret(path: str) -> str:
    """The cluster's secret in a file. Blocking.

    Raises:
        ConfigError: as `locks.files.read_secret`.
    """
    return files.read_secret(path, "cluster_secret_file", limits.PEER_SECRET_BYTES_MIN, limits.PEER_SECRET_BYTES_MAX)


def _fsync(value: Any) -> FsyncPolicy:
    return parse_fsync_policy(value) if isinstance(value, str) else _policy(value)


def _policy(value: Any) -> FsyncPolicy:
    if isinstance(value, tuple) and len(value) == 2 and value[0] == "interval" and isinstance(value[1], int):
        return ("interval", value[1])
    raise ValueError("must be always, never or interval:MS")


def _integer(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, str) and value.strip().isdecimal():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("must be a whole number")
        if not low <= value <= high:
            raise ValueError(f"is {value}, allowed are {low} to {high}")
        return value

    return read


def _bytes(low: int, high: int, multiple: int = 1) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, str):
            text = value.strip()
            digits = len(text) - len(text.lstrip("0123456789"))
            unit = _UNITS.get(text[digits:].strip().upper())
            if not digits or unit is None:
                raise ValueError("must be a number of bytes, or one with KiB, MiB or GiB behind it")
            value = int(text[:digits]) * unit
        number = _integer(low, high)(value)
        if number % multiple:
            raise ValueError(f"is {number}, it must be a multiple of {multiple}")
        return number

    return read


def _seconds(low: float, high: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError("must be a number of seconds")
        try:
            number = float(value)
        except ValueError:
            raise ValueError("must be a number of seconds") from None
        if not low <= number <= high:
            raise ValueError(f"is {value}, allowed are {low:g} to {high:g} seconds")
        return number

    return read


_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text not in _TRUE | _FALSE:
        raise ValueError("must be true or false")
    return text in _TRUE


def _choice(*allowed: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return str(value)

    return read


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "data_dir": _path,
    "listen": parse_address,
    "node_id": _node_id,
    "fsync": _fsync,
    "max_connections": _integer(1, _CONNECTIONS_LIMIT),
    "drain_timeout": _seconds(0.0, _DRAIN_TIMEOUT_S_MAX),
    "auto_create": _flag,
    "max_wal_segment_size": _bytes(limits.SEGMENT_BYTES_MIN, SEGMENT_BYTES_LIMIT - 8, multiple=8),
    "snapshot_log_bytes": _bytes(limits.KIB, 1 << 40),
    "snapshot_commands": _integer(1, 1 << 40),
    "body_cache_bytes": _bytes(0, 1 << 40),
    "max_hot_messages": _integer(limits.HOT_MESSAGES_MIN, 1 << 40),
    "max_hot_bytes": _bytes(limits.MIB, 1 << 50),
    "max_memory": _bytes(0, 1 << 50),
    "log_level": _choice(*LEVELS),
    "log_format": _choice("auto", "human", "json"),
    "front": _choice("auto", "reactor", "stream"),
    "ws_listen": parse_address,
    "resp_listen": parse_address,
    "http_listen": parse_address,
    "allowed_origins": _origins,
    "peer_listen": parse_address,
    "advertise": _reachable,
    "bootstrap": _bootstrap,
    "join": _addresses,
    "requirepass": _password,
    "requirepass_file": _path,
    "admin_token": _token,
    "admin_token_file": _path,
    "insecure": _flag,
    "open_metrics": _flag,
    "tls_cert": _path,
    "tls_key": _path,
    "tls_ca": _path,
    "tls_client_ca": _path,
    "cluster_secret": _secret,
    "cluster_secret_file": _path,
    "peer_tls_cert": _path,
    "peer_tls_key": _path,
    "peer_tls_ca": _path,
    "trace_to": _path,
}

_LISTENING: Final = ("listen", "ws_listen", "resp_listen", "http_listen", "peer_listen")
_IN_BYTES: Final = ("max_wal_segment_size", "snapshot_log_bytes", "body_cache_bytes", "max_hot_bytes", "max_memory")
# What a running node takes over when it reads its file again (SIGHUP); everything else needs a restart.
RELOADABLE: Final = ("max_connections", "drain_timeout", "auto_create", "log_level")
# What a start keeps in the data directory for the next one (never the secret itself).
KEPT: Final = ("peer_listen", "advertise", "cluster_secret_file", "peer_tls_cert", "peer_tls_key", "peer_tls_ca")
_TLS: Final = ("peer_tls_cert", "peer_tls_key", "peer_tls_ca")


@attrs.frozen
class Door:
    """A way into a node.

    Attributes:
        name: in the readiness line.
        setting: where it listens; None there = it stays shut (the native door is always open).
        port: the one it has by default, where a default opens it (`walrq dev`).
        module: who serves it ("" = the front of the native protocol); loaded only when the door is opened.
    """

    name: str
    setting: str
    port: int
    module: str = ""

    @property
    def flag(self) -> str:
        """The setting as a flag of the command line."""
        return f"--{self.setting.replace('_', '-')}"


DOORS: Final = (
    Door("cbor", "listen", limits.DEFAULT_PORT),
    Door("ws", "ws_listen", limits.DEFAULT_WS_PORT, "walrq.doors.websocket"),
    Door("resp", "resp_listen", limits.DEFAULT_RESP_PORT, "walrq.doors.resp"),
    Door("http", "http_listen", limits.DEFAULT_HTTP_PORT, "walrq.doors.http"),
)


@attrs.frozen(kw_only=True)
class Config:
    """What `serve` needs to know.

    Attributes:
        data_dir: where everything durable lies.
        listen: (host, port) of the native door; port 0 picks a free one.
        node_id: this node's name; None = the one kept in the data directory, or a new one.
        fsync: "always", "never" or ("interval", ms).
        max_connections: beyond it connections are refused politely.
        drain_timeout: seconds for answering what is in flight when the node stops.
        auto_create: whether a push creates an absent queue.
        max_wal_segment_size: bytes of a log segment.
        snapshot_log_bytes, snapshot_commands: log since the last snapshot that forces one; with segments smaller than
            by default, and nothing said of the bytes, they are those of SNAPSHOT_SEGMENTS of them.
        body_cache_bytes: memory for bodies of messages.
        max_hot_messages, max_hot_bytes: messages whose metadata is in memory, in all queues, and their payloads' bytes,
            wherever those are; the leader's values count.
        max_memory: bytes that the process may have before it refuses pushes; 0 = as many as there are.
        log_level, log_format: what goes to standard error, and how.
        front: what carries TCP: "reactor", "stream", or "auto" (reactor where the system has epoll).
        ws_listen, resp_listen, http_listen: (host, port) of the other doors; None = it stays shut.
        allowed_origins: origins of pages that may use the doors, beside those of the node's own host; "*" = any.
        peer_listen: (host, port) for the other nodes of a cluster; None = this node has no peers.
        advertise: "host:port" at which they reach it; None = `peer_listen`.
        bootstrap: the first members of a new cluster, (node id, address) each; () = none is begun.
        join: addresses of members that a new node asks to take it in; () = none.
        requirepass, requirepass_file: a password that opens every door for everything (AUTH of Redis clients), or the
            file it is in.
        admin_token, admin_token_file: a token that may do everything, other tokens included, or the file it is in.
        insecure: open doors beyond loopback also where nobody is asked who he is.
        open_metrics: /metrics is for everybody.
        tls_cert, tls_key: files (PEM) for TLS on every door; both or none.
        tls_ca: who signed the certificates of the other nodes' doors; None = the system knows.
        tls_client_ca: who signs the certificates that clients need then; None = they need none.
        cluster_secret, cluster_secret_file: what all nodes of a cluster know, or the file it is in.
        peer_tls_cert, peer_tls_key, peer_tls_ca: files (PEM) for mutual TLS between nodes; all or none.
        trace_to: folder for a line of each step of consensus, in a file of this node's; None = nothing is traced.
        origins: where each value came from, by name.
        sources, kept: what `load` and `with_kept` were given; `reloaded` reads it again.
        asked: these settings as they were given, once a start has found addresses for them; None before.
    """

    data_dir: str = "walrq-data"
    listen: tuple[str, int] = ("127.0.0.1", limits.DEFAULT_PORT)
    node_id: str | None = None
    fsync: FsyncPolicy = "always"
    max_connections: int = limits.CONNECTIONS_MAX_DEFAULT
    drain_timeout: float = limits.DRAIN_TIMEOUT_S_DEFAULT
    auto_create: bool = True
    max_wal_segment_size: int = limits.SEGMENT_BYTES_DEFAULT
    snapshot_log_bytes: int = limits.SNAPSHOT_LOG_BYTES
    snapshot_commands: int = limits.SNAPSHOT_COMMANDS
    body_cache_bytes: int = limits.BODY_CACHE_BYTES
    max_hot_messages: int = limits.HOT_MESSAGES_DEFAULT
    max_hot_bytes: int = limits.HOT_BYTES_DEFAULT
    max_memory: int = 0
    log_level: str = "info"
    log_format: str = "auto"
    front: str = "auto"
    ws_listen: tuple[str, int] | None = None
    resp_listen: tuple[str, int] | None = None
    http_listen: tuple[str, int] | None = None
    allowed_origins: tuple[str, ...] = ()
    peer_listen: tuple[str, int] | None = None
    advertise: str | None = None
    bootstrap: tuple[tuple[str, str], ...] = ()
    join: tuple[str, ...] = ()
    requirepass: str | None = attrs.field(default=None, repr=False)
    requirepass_file: str | None = None
    admin_token: str | None = attrs.field(default=None, repr=False)
    admin_token_file: str | None = None
    insecure: bool = False
    open_metrics: bool = False
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    tls_client_ca: str | None = None
    cluster_secret: str | None = attrs.field(default=None, repr=False)
    cluster_secret_file: str | None = None
    peer_tls_cert: str | None = None
    peer_tls_key: str | None = None
    peer_tls_ca: str | None = None
    trace_to: str | None = None
    origins: Mapping[str, str] = attrs.field(factory=dict, eq=False, repr=False)
    sources: tuple[Mapping[str, Any], Mapping[str, str], Path | None] = attrs.field(
        default=({}, {}, None), eq=False, repr=False
    )
    kept: tuple[Mapping[str, Any], str] = attrs.field(default=({}, ""), eq=False, repr=False)
    asked: Config | None = attrs.field(default=None, eq=False, repr=False)

    @classmethod
    def load(
        cls,
        flags: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        file: Path | None = None,
    ) -> Self:
        """The settings of this start.

        Args:
            flags: by name; None = not given.
            env: the environment.
            file: a TOML file, whose absence is an error.

        Raises:
            ConfigError: an unknown key, a value out of range, a file that cannot be read.
        """
        values: dict[str, Any] = {}
        origins = dict.fromkeys(NAMES, "default")
        for source in (_from_file(file), _from_environment(env or {}), _from_flags(flags or {})):
            for name, (value, origin) in source.items():
                values[name] = _read(name, value, origin)
                origins[name] = origin
        config = cls(**values, origins=origins, sources=(dict(flags or {}), dict(env or {}), file))
        config._check_peers()
        return config

    def _check_peers(self) -> None:
        """
        Raises:
            ConfigError: settings that contradict each other.
        """
        if self.bootstrap and self.join:
            raise self._wrong("join", "and bootstrap exclude each other: a cluster is begun, or joined")
        if self.bootstrap and self.node_id is None:
            raise self._wrong("bootstrap", f"needs node_id: which of {_names(self.bootstrap)} is this node?")
        if self.bootstrap and self.node_id not in dict(self.bootstrap):
            raise self._wrong("bootstrap", f"names {_names(self.bootstrap)}, and not this node, {self.node_id}")
        for name in _SECRET:
            if getattr(self, name) is not None and getattr(self, f"{name}_file") is not None:
                # Who sets one nearer to the start means that one: the variable of a container, and not the file's line.
                if self._rank(name) == self._rank(f"{name}_file"):
                    raise self._wrong(name, f"and {name}_file exclude each other")
        for name, other in (
            ("tls_cert", "tls_key"),
            ("tls_key", "tls_cert"),
            ("tls_client_ca", "tls_cert"),
            ("tls_ca", "tls_cert"),
        ):
            if getattr(self, name) is not None and getattr(self, other) is None:
                raise self._wrong(name, f"needs {other}")
        missing = [name for name in _TLS if getattr(self, name) is None]
        if missing and len(missing) < len(_TLS):
            given = next(name for name in _TLS if name not in missing)
            raise self._wrong(given, f"needs {' and '.join(missing)}: TLS between nodes is mutual")

    def _rank(self, name: str) -> int:
        """How near to the start a value was set: 0 default or kept, 1 file, 2 variable, 3 flag."""
        origin = self.origins.get(name, "default")
        if origin == "default":
            return 0
        return 3 if origin.startswith("--") else 2 if origin in VARIABLES else 1

    def _wrong(self, name: str, text: str) -> ConfigError:
        return ConfigError(f"{self.origins.get(name, 'default')}: {name} {text}", setting=name)

    def with_kept(self, kept: Mapping[str, Any], origin: str) -> Config:
        """This, with what an earlier start kept, of `KEPT`, where nothing else was given.

        Raises:
            ConfigError: a kept value is out of range.
        """
        found = {
            name: _read(name, value, f"{origin}: {name}")
            for name, value in kept.items()
            if name in KEPT and value is not None and self.origins.get(name, "default") == "default"
        }
        if self.cluster_secret is not None:
            found.pop("cluster_secret_file", None)
        origins = {**self.origins, **dict.fromkeys(found, origin)}
        return attrs.evolve(self, **found, origins=origins, kept=(kept, origin))

    def to_keep(self) -> dict[str, str]:
        """What the next start is told of this one's `KEPT`, as text."""
        texts = {name: self.text(name) for name in KEPT}
        return {name: text for name, text in texts.items() if text is not None}

    @property
    def has_peers(self) -> bool:
        """Whether the node talks to others, or means to."""
        return self.peer_listen is not None or bool(self.bootstrap or self.join)

    def secret(self) -> bytes:
        """The cluster's secret. Blocking: it may be in a file.

        Raises:
            ConfigError: none is given, or its file cannot be used.
        """
        if self.cluster_secret is not None and self._rank("cluster_secret") >= self._rank("cluster_secret_file"):
            return self.cluster_secret.encode()
        if self.cluster_secret_file is not None:
            return read_secret(self.cluster_secret_file).encode()
        raise ConfigError(
            "peers need a secret that all nodes of the cluster know: give cluster_secret_file (--cluster-secret-file"
            " FILE), or WALRQ_CLUSTER_SECRET",
            setting="cluster_secret_file",
        )

    def keys(self) -> list[tuple[str, str]]:
        """(name, secret) of each secret that opens every door. Blocking: they may be in files.

        Raises:
            ConfigError: a file cannot be used.
        """
        found = []
        for name, user, least in (
            ("requirepass", "default", 1),
            ("admin_token", "admin", limits.TOKEN_SECRET_BYTES_MIN),
        ):
            said, file = getattr(self, name), getattr(self, f"{name}_file")
            if said is not None and self._rank(name) >= self._rank(f"{name}_file"):
                found.append((user, said))
            elif file is not None:
                found.append((user, files.read_secret(file, f"{name}_file", least)))
        return found

    @property
    def has_keys(self) -> bool:
        """Whether there is a secret that opens every door."""
        return any(
            getattr(self, name) is not None
            for name in ("requirepass", "requirepass_file", "admin_token", "admin_token_file")
        )

    @property
    def shown_secrets(self) -> list[str]:
        """Secrets that were given as flags, which everybody sees in the list of processes."""
        return [name for name in _SECRET if self.origins.get(name, "default").startswith("--")]

    def reloaded(self) -> Config:
        """The settings as the same flags, variables and file give them now; only the file can have changed.

        Raises:
            ConfigError: as `load`.
        """
        return Config.load(*self.sources).with_kept(*self.kept)

    def changed(self, other: Config) -> list[str]:
        """The names of the settings whose values differ from what was asked for."""
        return [name for name in NAMES if getattr(self.asked or self, name) != getattr(other, name)]

    def found(self, **values: Any) -> Config:
        """This, with the addresses that a start found for what was asked."""
        return attrs.evolve(self, **values, asked=self)

    def taken_over(self, new: Config, names: Iterable[str]) -> Config:
        """This, with the values of `new` for some names."""
        values = {name: getattr(new, name) for name in names}
        asked = None if self.asked is None else attrs.evolve(self.asked, **values)
        return attrs.evolve(self, **values, origins=new.origins, asked=asked)

    @property
    def snapshot_after_bytes(self) -> int:
        """`snapshot_log_bytes`, or what goes with small segments."""
        said = self.origins.get("snapshot_log_bytes", "default") != "default"
        if said or self.max_wal_segment_size >= limits.SEGMENT_BYTES_DEFAULT:
            return self.snapshot_log_bytes
        small = max(limits.SNAPSHOT_LOG_BYTES_MIN, limits.SNAPSHOT_SEGMENTS * self.max_wal_segment_size)
        return min(self.snapshot_log_bytes, small)

    def text(self, name: str) -> str | None:
        """A value as it would be typed; None when it is left to the node. A secret is not shown."""
        value = getattr(self, name)
        if name in _LISTENING:
            return None if value is None else format_address(*value)
        if name == "bootstrap":
            return ",".join(f"{node}={address}" for node, address in value) or None
        if name in ("join", "allowed_origins"):
            return ",".join(value) or None
        if name in _SECRET:
            return None if value is None else SECRET_SHOWN
        if name == "fsync" and not isinstance(value, str):
            return f"interval:{value[1]}"
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, float):
            return f"{value:g}"
        if name in _IN_BYTES:
            unit = next((unit for unit in ("GiB", "MiB", "KiB") if value and value % _UNITS[unit.upper()] == 0), "")
            return f"{value // _UNITS[unit.upper()]}{unit}"
        return None if value is None else str(value)

    def rows(self) -> list[tuple[str, Any, str]]:
        """(name, value, origin) of every setting, for `config show --origin`."""
        return [(name, self._shown(name), self.origins.get(name, "default")) for name in NAMES]

    def _shown(self, name: str) -> Any:
        return self.text(name) if name in _SECRET else getattr(self, name)


SECRET_SHOWN: Final = "(secret)"
_SECRET: Final = ("cluster_secret", "requirepass", "admin_token")


def _names(members: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(node for node, _ in members)


NAMES: Final = tuple(_READERS)
assert set(NAMES) == {field.name for field in attrs.fields(Config)} - {"origins", "sources", "kept", "asked"}
assert set(RELOADABLE) | set(KEPT) | {door.setting for door in DOORS} <= set(NAMES)

_Source = dict[str, tuple[Any, str]]


def _read(name: str, value: Any, origin: str) -> Any:
    try:
        return _READERS[name](value)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error.text}", setting=name) from None
    except ValueError as error:
        raise ConfigError(f"{origin}: {name} {error}", setting=name) from None


def _unknown(key: str, known: tuple[str, ...], where: str) -> ConfigError:
    nearest = difflib.get_close_matches(key, known, 1)
    hint = f"; did you mean {nearest[0]}?" if nearest else f"; known are {', '.join(known)}"
    return ConfigError(f"{where}: there is no setting {key!r}{hint}", nearest=nearest[0] if nearest else None)


def _from_flags(flags: Mapping[str, Any]) -> _Source:
    found: _Source = {}
    for name, value in flags.items():
        if name not in _READERS:
            raise _unknown(name, NAMES, "command line")
        if value is not None:
            found[name] = (value, f"--{name.replace('_', '-')}")
    return found


def _from_environment(env: Mapping[str, str]) -> _Source:
    found: _Source = {}
    if env.get("DATA_DIR"):
        found["data_dir"] = (env["DATA_DIR"], "DATA_DIR")
    if env.get("NODE_ID"):
        # The ancestors' NODE_ID is the address of the node as well as its name.
        found["node_id"] = (env["NODE_ID"], "NODE_ID")
        found["listen"] = (env["NODE_ID"], "NODE_ID")
    for key, value in env.items():
        if key in VARIABLES:
            found[key.removeprefix("WALRQ_").lower()] = (value, key)
    for key in unknown_variables(env):
        if difflib.get_close_matches(key, VARIABLES, 1, cutoff=_MISTYPED):
            raise _unknown(key, VARIABLES, "environment")
    return found


VARIABLES: Final = tuple(f"WALRQ_{name.upper()}" for name in NAMES)
# So alike that it is a slip of the finger: WALRQ_FSYNCC is, WALRQ_DATA_PORT of a container platform is not.
_MISTYPED: Final = 0.85


def unknown_variables(env: Mapping[str, str]) -> list[str]:
    """The variables that begin with WALRQ_ and that nothing of walrq reads."""
    known = OTHERS_VARIABLES.union(VARIABLES)
    return sorted(key for key in env if key.startswith("WALRQ_") and key not in known)


def _from_file(file: Path | None) -> _Source:
    if file is None:
        return {}
    found: _Source = {}
    for name, value in _table(file).items():
        if name not in _READERS:
            raise _unknown(name, NAMES, str(file))
        found[name] = (value, f"{file}: {name}")
    return found


def _table(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}") from None


def check_file(file: Path) -> tuple[int, list[str]]:
    """(how many settings are in order, every mistake of the file in one line each)."""
    try:
        table = _table(file)
    except ConfigError as error:
        return 0, [error.text]
    mistakes = []
    for name, value in table.items():
        try:
            if name not in _READERS:
                raise _unknown(name, NAMES, str(file))
            _read(name, value, f"{file}: {name}")
        except ConfigError as error:
            mistakes.append(error.text)
    return len(table) - len(mistakes), mistakes
