"""Settings of one node: one table, and where each value came from.

    command-line flags > WALRQ_* variables (then the ancestors' DATA_DIR, NODE_ID) > TOML file > defaults

The same names everywhere: `data_dir` is `--data-dir`, `WALRQ_DATA_DIR` and `data_dir` in the file. An unknown
key is an error that suggests the nearest one. Variables of the environment are shared with others (a
container platform makes up `WALRQ_SERVICE_HOST` by itself), so an unknown one is an error only when it looks
like a setting mistyped.

Never: touches the data directory or the network.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

import attrs

from walrq import limits
from walrq.errors import ConfigError
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
    "log_level": _choice(*LEVELS),
    "log_format": _choice("auto", "human", "json"),
    "front": _choice("auto", "reactor", "stream"),
}

_IN_BYTES: Final = ("max_wal_segment_size", "snapshot_log_bytes", "body_cache_bytes")
# What a running node takes over when it reads its file again (SIGHUP); everything else needs a restart.
RELOADABLE: Final = ("max_connections", "drain_timeout", "auto_create", "log_level")


@attrs.frozen
class Door:
    """A way into a node: its name in the readiness line, its setting, and the port it has by default."""

    name: str
    setting: str
    port: int


DOORS: Final = (Door("cbor", "listen", limits.DEFAULT_PORT),)


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
        snapshot_log_bytes, snapshot_commands: log since the last snapshot that forces one.
        body_cache_bytes: memory for bodies of messages.
        log_level, log_format: what goes to standard error, and how.
        front: what carries TCP: "reactor", "stream", or "auto" (reactor where the system has epoll).
        origins: where each value came from, by name.
        sources: what `load` was given; `reloaded` reads it again.
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
    log_level: str = "info"
    log_format: str = "auto"
    front: str = "auto"
    origins: Mapping[str, str] = attrs.field(factory=dict, eq=False, repr=False)
    sources: tuple[Mapping[str, Any], Mapping[str, str], Path | None] = attrs.field(
        default=({}, {}, None), eq=False, repr=False
    )

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
        return cls(**values, origins=origins, sources=(dict(flags or {}), dict(env or {}), file))

    def reloaded(self) -> Config:
        """The settings as the same flags, variables and file give them now; only the file can have changed.

        Raises:
            ConfigError: as `load`.
        """
        return Config.load(*self.sources)

    def changed(self, other: Config) -> list[str]:
        """The names of the settings whose values differ."""
        return [name for name in NAMES if getattr(self, name) != getattr(other, name)]

    def text(self, name: str) -> str | None:
        """A value as it would be typed; None when it is left to the node."""
        value = getattr(self, name)
        if name == "listen":
            host, port = value
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
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
        return [(name, getattr(self, name), self.origins.get(name, "default")) for name in NAMES]


NAMES: Final = tuple(_READERS)
assert set(NAMES) == {field.name for field in attrs.fields(Config)} - {"origins", "sources"}
assert set(RELOADABLE) | {door.setting for door in DOORS} <= set(NAMES)

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
