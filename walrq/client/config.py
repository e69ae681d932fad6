"""Where a client connects and how patient it is.

Parses and checks; what the environment and files say is read where a client is made. A value comes from, later ones
winning: the default, the `ClientConfig` that the program made, the address's query (`?timeout_s=5`), the keyword given
to `connect`.
"""

from __future__ import annotations

import difflib
import math
import os
import socket
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import attrs

from walrq.client.clock import SYSTEM, Clock
from walrq.errors import ConfigError
from walrq.limits import (
    CLIENT_POOL_MAX,
    CLIENT_TIMEOUT_S_DEFAULT,
    CLIENT_WINDOW_DEFAULT,
    DEFAULT_PORT,
    TOKEN_BYTES_MAX,
    WORKER_NAME_BYTES_MAX,
)

if TYPE_CHECKING:
    # At run time only where TLS is used: the import takes longer than a command in the clear should wait for it.
    import ssl

SCHEME: Final = "walrq"
TLS_SCHEME: Final = "walrqs"
DEFAULT_URL: Final = f"{SCHEME}://127.0.0.1:{DEFAULT_PORT}"
URL_VARIABLE: Final = "WALRQ_SERVER"
TOKEN_VARIABLE: Final = "WALRQ_TOKEN"
TOKEN_FILE_VARIABLE: Final = "WALRQ_TOKEN_FILE"
TLS_CA_VARIABLE: Final = "WALRQ_TLS_CA"
RETRY_FACTOR_MAX: Final = 100


def _number(field: attrs.Attribute[Any], given: object, least: float, most: float, expected: str) -> None:
    """Refuse what is not a finite number from `least` to `most`, in words of `expected`."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        if math.isfinite(given) and least <= given <= most:
            return
    raise ConfigError(f"{field.name} is {given!r}, it must be {expected}", setting=field.name)


def _positive(_: object, field: attrs.Attribute[Any], number: float) -> None:
    _number(field, number, math.ulp(0.0), math.inf, "a finite number of seconds above 0")


def _not_negative(_: object, field: attrs.Attribute[Any], number: float) -> None:
    _number(field, number, 0, math.inf, "a finite number of seconds, 0 or more")


def _factor(_: object, field: attrs.Attribute[Any], number: float) -> None:
    _number(field, number, 1, RETRY_FACTOR_MAX, f"a number from 1 to {RETRY_FACTOR_MAX}")


def _count(_: object, field: attrs.Attribute[Any], number: int) -> None:
    if type(number) is not int or number < 1:
        raise ConfigError(f"{field.name} is {number!r}, it must be a whole number above 0", setting=field.name)


def _pool(_: object, field: attrs.Attribute[Any], number: int) -> None:
    if type(number) is not int or not 1 <= number <= CLIENT_POOL_MAX:
        raise ConfigError(
            f"{field.name} is {number!r}, it must be a whole number from 1 to {CLIENT_POOL_MAX}", setting=field.name
        )


def _flag(_: object, field: attrs.Attribute[Any], given: object) -> None:
    if type(given) is not bool:
        raise ConfigError(f"{field.name} is {given!r}, it must be True or False", setting=field.name)


def _worker_name(_: object, field: attrs.Attribute[str | None], name: str | None) -> None:
    if name is not None and not isinstance(name, str):
        raise ConfigError(f"{field.name} is {name!r}, it must be text or None", setting=field.name)
    if name is not None and len(name.encode()) > WORKER_NAME_BYTES_MAX:
        raise ConfigError(f"{field.name} is longer than {WORKER_NAME_BYTES_MAX} bytes", setting=field.name)


def _token(_: object, field: attrs.Attribute[str | None], given: object) -> None:
    # Never in the text of an error.
    if given is not None and (not isinstance(given, str) or not given or len(given.encode()) > TOKEN_BYTES_MAX):
        raise ConfigError(f"{field.name} must be text of 1 to {TOKEN_BYTES_MAX} bytes, or None", setting=field.name)


def _file(_: object, field: attrs.Attribute[str | None], given: object) -> None:
    if given is not None and (not isinstance(given, str) or not given):
        raise ConfigError(f"{field.name} is {given!r}, it must be the name of a file, or None", setting=field.name)


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
        pool: connections of one client. The threads of a blocking client are spread over them, each thread keeping
            to one, and the second and later ones are opened when a thread first needs them; the calls of an
            asynchronous client take the least busy one. More than one is for large payloads, which would stand
            before small requests.
        window: requests on their way at a time, per connection; more wait in the client. Polls that wait for
            messages do not count.
        timeout_s: longest time from a call to its answer, reconnects and retries included; a poll's own
            `wait` comes on top. Then `ReplyTimeout` or `ConnectionLost`.
        connect_timeout_s: longest time for one connection attempt, handshake included.
        connect_wait_s: how long `connect` keeps trying when no server answers; 0 = one try per address. While nodes of
            a cluster answer and elect a leader it waits in any case, up to `timeout_s`.
        retry_first_s: wait before the first retry or reconnect.
        retry_factor: by how much the wait grows with each further one.
        retry_max_s: its bound. Every wait is spread by a random factor between one half and one. There is no
            number of tries: `timeout_s` ends them.
        election_max_s: the longest wait for the next try while nodes answer and none of them leads: an election takes a
            moment.
        node_timeout_s: how long one of several nodes may be silent while requests are under way (three times as long
            while only polls wait) before it is probed, and then for the answer; without one the client goes to another.
            A connection attempt may take twice as long, doubled with every round in vain, up to `connect_timeout_s`.
        keep_alive_s: a silent connection is probed this often; one that leaves two probes unanswered is
            replaced.
        worker: name of this client in death reports, host name and process id unless given; None = no name.
        token: says who this client is, to a server that asks; None = `WALRQ_TOKEN`, else what the file
            `WALRQ_TOKEN_FILE` holds, if there is one. In an address it stands before an `@`.
        tls: encrypt, and let the server prove who it is; `walrqs://` in an address says so too.
        tls_ca: file (PEM) with the authority that signed the server's certificate; None = `WALRQ_TLS_CA`, else one that
            the system knows.
        tls_cert: file (PEM) with a certificate of this client's own, for a server that asks for one.
        tls_key: file (PEM) with its key; None = it is in the same file.
        tls_context: what TLS connections are made with, in place of one made of those files.
        clock: what leases are counted on; `walrq.testing` has one that tests move.
    """

    session: bool = attrs.field(default=True, validator=_flag)
    pool: int = attrs.field(default=1, validator=_pool)
    window: int = attrs.field(default=CLIENT_WINDOW_DEFAULT, validator=_count)
    timeout_s: float = attrs.field(default=CLIENT_TIMEOUT_S_DEFAULT, validator=_positive)
    connect_timeout_s: float = attrs.field(default=5.0, validator=_positive)
    connect_wait_s: float = attrs.field(default=0.0, validator=_not_negative)
    retry_first_s: float = attrs.field(default=0.05, validator=_positive)
    retry_factor: float = attrs.field(default=2.0, validator=_factor)
    retry_max_s: float = attrs.field(default=2.0, validator=_positive)
    election_max_s: float = attrs.field(default=0.25, validator=_positive)
    node_timeout_s: float = attrs.field(default=0.5, validator=_positive)
    keep_alive_s: float = attrs.field(default=10.0, validator=_positive)
    worker: str | None = attrs.field(factory=default_worker, validator=_worker_name)
    token: str | None = attrs.field(default=None, repr=False, validator=_token)
    tls: bool = attrs.field(default=False, validator=_flag)
    tls_ca: str | None = attrs.field(default=None, validator=_file)
    tls_cert: str | None = attrs.field(default=None, validator=_file)
    tls_key: str | None = attrs.field(default=None, validator=_file)
    tls_context: ssl.SSLContext | None = attrs.field(default=None, repr=False, eq=False)
    clock: Clock = attrs.field(default=SYSTEM, repr=False, eq=False)

    def backoff_s(self, tries: int) -> float:
        """Longest wait before try number `tries + 1`, the random factor not yet taken off."""
        # The exponent is bounded: beyond it every factor above one has reached any bound that is waited for.
        return min(self.retry_max_s, self.retry_first_s * self.retry_factor ** min(tries - 1, 60))


@attrs.frozen
class Endpoint:
    """Host and port of one node."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@attrs.frozen
class Target:
    """What one address says.

    Attributes:
        endpoints: the nodes, in the order in which they are tried.
        settings: values of `ClientConfig` from the query.
    """

    endpoints: tuple[Endpoint, ...]
    settings: Mapping[str, Any]


def parse_url(url: str | Sequence[str] | None = None) -> tuple[Endpoint, ...]:
    """The nodes of an address; see `parse_target`."""
    return parse_target(url).endpoints


def parse_target(url: str | Sequence[str] | None = None) -> Target:
    """Nodes and settings in `walrq://[token@]host:port[,host2:port2][/?name=value&...]`, or in a list of those.

    `walrqs://` is the same with TLS. What stands before the `@` is a token, or user and token: the user's name counts
    nothing. What a URL does not let stand there is percent-encoded.

    None means the variable `WALRQ_SERVER`, else `walrq://127.0.0.1:50051`. The scheme and the port may be
    left out.

    Raises:
        ConfigError: another scheme, a path, a port that is no number from 1 to 65535, or a setting that a
            client does not have. The text never repeats what stands before an `@`, nor an unknown setting's value.
    """
    if url is None:
        url = os.environ.get(URL_VARIABLE) or DEFAULT_URL
    elif not isinstance(url, str):
        return _joined([parse_target(each) for each in url])
    url = url.strip()
    shown = _without_secrets(url)
    address, _, query = url.partition("?")
    scheme, separator, rest = address.partition("://")
    if separator and scheme not in (SCHEME, TLS_SCHEME):
        raise ConfigError(
            f"the server address {shown!r} starts with {scheme if '@' not in scheme else HIDDEN}://, expected"
            f" {SCHEME}://host:port or {TLS_SCHEME}://host:port"
        )
    user, at, hosts = (rest if separator else address).rstrip("/").rpartition("@")
    if "@" in query or "@" in user or (at and not user.partition(":")[2 if ":" in user else 0]):
        raise ConfigError(
            f"the server address {shown!r} has an @ that does not stand behind a token; in a token write %40 for it"
        )
    if not hosts or any(character in hosts for character in "/# "):
        raise ConfigError(
            f"the server address {shown!r} is not of the form {SCHEME}://host:port[,host2:port2][/?timeout_s=5]"
        )
    endpoints = tuple(dict.fromkeys([_endpoint(part, shown) for part in hosts.split(",")]))
    settings = _settings(query, shown) if query else {}
    if scheme == TLS_SCHEME and separator:
        settings["tls"] = True
    if at:
        settings["token"] = unquote(user.partition(":")[2] or user)
    return Target(endpoints, settings)


def _joined(targets: Sequence[Target]) -> Target:
    """The nodes of several addresses, each once, and their settings."""
    if not targets:
        raise ConfigError(f"the list of server addresses is empty, it needs at least one {SCHEME}://host:port")
    settings: dict[str, Any] = {}
    for target in targets:
        for name, given in target.settings.items():
            if settings.setdefault(name, given) != given:
                if name == "token":
                    raise ConfigError("the server addresses have different tokens", setting=name)
                raise ConfigError(f"the server addresses set {name} to {settings[name]!r} and {given!r}", setting=name)
    return Target(tuple(dict.fromkeys(endpoint for target in targets for endpoint in target.endpoints)), settings)


HIDDEN: Final = "***"


def without_token(url: str) -> str:
    """An address for people to read: what stands before an `@` is hidden, its query is kept."""
    query = url.partition("?")[2]
    shown = _without_secrets(url)
    return f"{shown}?{query}" if query and shown != HIDDEN else shown


def _without_secrets(url: str) -> str:
    """The address for an error's text: without the query, and without the user and password that somebody may have
    put before an `@`, even where a `?` in a password makes the rest of it look like a query."""
    address, _, query = url.partition("?")
    if "@" in query:
        return HIDDEN
    scheme, separator, rest = address.partition("://")
    _, at, hosts = (rest if separator else address).rpartition("@")
    return f"{scheme}{separator}{HIDDEN}@{hosts}" if at and separator else f"{HIDDEN}@{hosts}" if at else address


def _endpoint(text: str, shown: str) -> Endpoint:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port == 0:
        what = "a part of it" if shown == HIDDEN else repr(text)
        raise ConfigError(f"the server address {shown!r}: {what} is not host:port with a port from 1 to 65535")
    return Endpoint(host, DEFAULT_PORT if port is None else port)


_FLAGS: Final = {
    "true": True,
    "1": True,
    "yes": True,
    "on": True,
    "false": False,
    "0": False,
    "no": False,
    "off": False,
}


def _settings(query: str, shown: str) -> dict[str, Any]:
    """The values of a query, each as the type of its setting."""
    found: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        _known(name, URL_SETTINGS, f"the server address {shown!r}")
        if name in found:
            raise ConfigError(f"the server address {shown!r} sets {name} twice", setting=name)
        kind = URL_SETTINGS[name]
        try:
            found[name] = (text or None) if kind is str else _FLAGS[text.lower()] if kind is bool else kind(text)
        except (ValueError, KeyError):
            expected = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
            raise ConfigError(
                f"{name} in the server address {shown!r} is {text!r}, it must be {expected}", setting=name
            ) from None
    return found


def _known(name: str, known: Collection[str], where: str) -> None:
    if name not in known:
        nearest = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {nearest[0]}?" if nearest else f"; known are {', '.join(known)}"
        raise ConfigError(f"{where} has no setting {name!r}{hint}", setting=name)


def configure(config: ClientConfig | None, changes: Mapping[str, Any]) -> ClientConfig:
    """`config`, or the defaults, with single values changed.

    Raises:
        ConfigError: a value of an unknown name, or out of range.
    """
    known = [field.name for field in attrs.fields(ClientConfig)]
    for name in changes:
        _known(name, known, "a client")
    return attrs.evolve(config or ClientConfig(), **changes)


def resolve(
    url: str | Sequence[str] | None, config: ClientConfig | None, changes: Mapping[str, Any]
) -> tuple[tuple[Endpoint, ...], ClientConfig]:
    """Where to connect and how, from the three arguments that every `connect` takes.

    Raises:
        ConfigError: as `parse_target` and `configure` do.
    """
    target = parse_target(url)
    return target.endpoints, configure(config, {**target.settings, **changes})


def with_surroundings(config: ClientConfig) -> ClientConfig:
    """`config`, with the token and the authority that the environment names where it has none. Reads files.

    Raises:
        ConfigError: a file that is named cannot be read.
    """
    found: dict[str, Any] = {}
    if config.token is None:
        said, file = os.environ.get(TOKEN_VARIABLE), os.environ.get(TOKEN_FILE_VARIABLE)
        if said or file:
            found["token"] = said.strip() if said else _read_token(file or "")
    if config.tls and config.tls_ca is None and os.environ.get(TLS_CA_VARIABLE):
        found["tls_ca"] = os.environ[TLS_CA_VARIABLE]
    return attrs.evolve(config, **found) if found else config


def _read_token(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(2 * TOKEN_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(
            f"the token file {path} ({TOKEN_FILE_VARIABLE}) cannot be read: {reason}", setting="token"
        ) from None


def context_of(config: ClientConfig) -> ssl.SSLContext | None:
    """What TLS connections of this client are made with; None: it uses none. Reads files.

    Raises:
        ConfigError: a file cannot be read or does not fit.
    """
    if not config.tls:
        return None
    if config.tls_context is not None:
        return config.tls_context
    import ssl

    try:
        context = ssl.create_default_context(cafile=config.tls_ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls_ca {config.tls_ca!r} holds no certificate: {error}", setting="tls_ca") from None
    if config.tls_cert is not None:
        try:
            context.load_cert_chain(config.tls_cert, config.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"tls_cert {config.tls_cert!r} and tls_key {config.tls_key!r} are no pair: {error}", setting="tls_cert"
            ) from None
    return context


# What an address may set in its query, and as which type: everything but objects, and the token, which has its place.
URL_SETTINGS: Final[Mapping[str, type]] = {
    "session": bool,
    "pool": int,
    "window": int,
    "timeout_s": float,
    "connect_timeout_s": float,
    "connect_wait_s": float,
    "retry_first_s": float,
    "retry_factor": float,
    "retry_max_s": float,
    "election_max_s": float,
    "node_timeout_s": float,
    "keep_alive_s": float,
    "worker": str,
    "tls_ca": str,
    "tls_cert": str,
    "tls_key": str,
}
