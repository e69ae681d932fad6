"""Where a client connects and how patient it is.

Pure: parses and checks, opens nothing.
"""

from __future__ import annotations

import difflib
import math
import os
import socket
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import attrs

from walrq.client.clock import SYSTEM, Clock
from walrq.errors import ConfigError
from walrq.limits import CLIENT_TIMEOUT_S_DEFAULT, CLIENT_WINDOW_DEFAULT, DEFAULT_PORT, WORKER_NAME_BYTES_MAX

SCHEME: Final = "walrq"
DEFAULT_URL: Final = f"{SCHEME}://127.0.0.1:{DEFAULT_PORT}"
URL_VARIABLE: Final = "WALRQ_SERVER"


def _positive(_: object, field: attrs.Attribute[Any], number: float) -> None:
    if not (math.isfinite(number) and number > 0):
        raise ConfigError(f"{field.name} is {number}, it must be a finite number above 0", setting=field.name)


def _not_negative(_: object, field: attrs.Attribute[Any], number: float) -> None:
    if not (math.isfinite(number) and number >= 0):
        raise ConfigError(f"{field.name} is {number}, it must be a finite number, 0 or more", setting=field.name)


def _worker_name(_: object, field: attrs.Attribute[str | None], name: str | None) -> None:
    if name is not None and len(name.encode()) > WORKER_NAME_BYTES_MAX:
        raise ConfigError(f"{field.name} is longer than {WORKER_NAME_BYTES_MAX} bytes", setting=field.name)


def default_worker() -> str:
    """`host:pid` of this process, as long as the wire allows."""
    host = socket.gethostname().encode()[: WORKER_NAME_BYTES_MAX - 16].decode(errors="ignore")
    return f"{host}:{os.getpid()}"


@attrs.frozen(kw_only=True)
class ClientConfig:
    """How a client behaves; every value has a default that suits a worker on a local network.

    Attributes:
        session: register a session, so that a request retried after a broken connection takes effect once.
            Without one, a change whose answer was lost raises `ConnectionLost` (outcome unknown).
        window: requests on their way at a time; more wait in the client. Polls that wait for messages do not
            count.
        timeout_s: longest time from a call to its answer, reconnects and retries included; a poll's own
            `wait` comes on top. Then `ReplyTimeout` or `ConnectionLost`.
        connect_timeout_s: longest time for one connection attempt, handshake included.
        connect_wait_s: how long `connect` keeps trying when no server answers; 0 = one try per address.
        retry_first_s: wait before the first retry or reconnect; doubles with each.
        retry_max_s: its bound. Both are spread by a random factor between one half and one.
        keep_alive_s: a silent connection is probed this often; one that leaves two probes unanswered is
            replaced.
        worker: name of this client in death reports, host name and process id unless given; None = no name.
        clock: what leases are counted on; `walrq.testing` has one that tests move.
    """

    session: bool = True
    window: int = attrs.field(default=CLIENT_WINDOW_DEFAULT, validator=_positive)
    timeout_s: float = attrs.field(default=CLIENT_TIMEOUT_S_DEFAULT, validator=_positive)
    connect_timeout_s: float = attrs.field(default=5.0, validator=_positive)
    connect_wait_s: float = attrs.field(default=0.0, validator=_not_negative)
    retry_first_s: float = attrs.field(default=0.05, validator=_positive)
    retry_max_s: float = attrs.field(default=2.0, validator=_positive)
    keep_alive_s: float = attrs.field(default=10.0, validator=_positive)
    worker: str | None = attrs.field(factory=default_worker, validator=_worker_name)
    clock: Clock = attrs.field(default=SYSTEM, repr=False, eq=False)


@attrs.frozen
class Endpoint:
    """Host and port of one node."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_url(url: str | None = None) -> tuple[Endpoint, ...]:
    """The addresses in `walrq://host:port[,host2:port2]`, in order.

    None means the variable `WALRQ_SERVER`, else `walrq://127.0.0.1:50051`. The scheme and the port may be
    left out.

    Raises:
        ConfigError: another scheme, a path, a user, or a port that is no number from 1 to 65535.
    """
    if url is None:
        url = os.environ.get(URL_VARIABLE) or DEFAULT_URL
    text = url.strip()
    scheme, separator, rest = text.partition("://")
    if separator and scheme != SCHEME:
        raise ConfigError(f"the server address {url!r} starts with {scheme}://, expected {SCHEME}://host:port")
    hosts = (rest if separator else text).rstrip("/")
    if not hosts or any(character in hosts for character in "/?#@ "):
        raise ConfigError(f"the server address {url!r} is not of the form {SCHEME}://host:port")
    return tuple(_endpoint(part, url) for part in hosts.split(","))


def _endpoint(text: str, url: str) -> Endpoint:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port == 0:
        raise ConfigError(f"{text!r} in the server address {url!r} is not host:port with a port from 1 to 65535")
    return Endpoint(host, DEFAULT_PORT if port is None else port)


def configure(config: ClientConfig | None, changes: Mapping[str, Any]) -> ClientConfig:
    """`config`, or the defaults, with single values changed.

    Raises:
        ConfigError: a value of an unknown name, or out of range.
    """
    known = [field.name for field in attrs.fields(ClientConfig)]
    for name in changes:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {nearest[0]}?" if nearest else f"; known are {', '.join(known)}"
            raise ConfigError(f"a client has no setting {name!r}{hint}", setting=name)
    return attrs.evolve(config or ClientConfig(), **changes)
