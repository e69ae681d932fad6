"""Options that several commands share, and how their texts become values."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from walrq.cli import output

if TYPE_CHECKING:
    from pathlib import Path

    from walrq.cli.contexts import Target
    from walrq.client.blocking import Client
    from walrq.daemon.config import Config

F = TypeVar("F", bound=Callable[..., Any])

_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"([0-9]*\.?[0-9]+)\s*(ms|s|m|h|d|)", re.IGNORECASE)


def seconds(given: str | float) -> float:
    """Seconds from `30`, `1.5`, `250ms`, `5m`, `2h` or `1d`; a usage error for anything else."""
    if isinstance(given, int | float):
        return float(given)
    found = _DURATION.fullmatch(given.strip())
    number = float(found[1]) * _UNITS[found[2].lower()] if found else math.nan
    if not math.isfinite(number):
        raise click.BadParameter(f"{given!r} is no duration; write 30, 1.5, 250ms, 5m, 2h or 1d")
    return number


def example(command: str) -> str:
    """The epilog of a help text; a test runs the command."""
    return f"\b\nExample:\n  {command}"


def summary(command: click.Command, limit: int) -> str:
    """The first sentence of a command's help, cut where it pauses until it fits into `limit` characters."""
    text = command.get_short_help_str(1_000).rstrip(".")
    for mark in ("; ", ": "):
        if len(text) > limit:
            text = text.partition(mark)[0]
    while len(text) > limit and ", " in text:
        text = text.rpartition(", ")[0]
    return text


class Group(click.Group):
    """A group of commands whose help shows whole sentences where click would cut them."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [command for name in self.list_commands(ctx) if (command := self.get_command(ctx, name)) is not None]
        width = max(len(str(each.name)) for each in found)
        with formatter.section("Commands"):
            formatter.write_dl([(str(each.name), summary(each, formatter.width - width - 6)) for each in found])


_CONTEXT: Final = "walrq.context"
_TARGET: Final = "walrq.target"


def server_option(command: F) -> F:
    """`--server URL` and `--context NAME`; the command gets the URL of the server that is meant, as `server`."""
    return _server_options(command, _find_server)


def server_option_to_judge(command: F) -> F:
    """As `server_option`, for a command that goes on when the server cannot be told: `target` then says why."""
    return _server_options(command, _find_server_if_possible)


def _say_token(ctx: click.Context, parameter: click.Parameter, given: str | None) -> None:
    """Where clients of this process look for it."""
    if given is not None:
        os.environ[f"WALRQ_{str(parameter.name).upper()}"] = given


def _server_options(command: F, find: Callable[[click.Context, click.Parameter, str | None], str]) -> F:
    for name, metavar, text in (
        ("--token-file", "FILE", "The file with the token that says who you are.  [WALRQ_TOKEN_FILE]"),
        ("--token", "TEXT", "That token; others see it in the list of processes.  [WALRQ_TOKEN]"),
    ):
        command = click.option(name, metavar=metavar, expose_value=False, callback=_say_token, help=text)(command)
    command = click.option(
        "--context",
        metavar="NAME",
        expose_value=False,
        is_eager=True,  # before --server, whose value depends on it
        callback=_keep_context,
        shell_complete=complete_contexts,
        help="A server named with `walrq context add`.  [WALRQ_CONTEXT, else the one in use]",
    )(command)
    return click.option(
        "--server",
        metavar="URL",
        callback=find,
        help="walrq://HOST:PORT  [WALRQ_SERVER, else the context in use, else walrq://127.0.0.1:50051]",
    )(command)


def _keep_context(ctx: click.Context, parameter: click.Parameter, given: str | None) -> None:
    ctx.meta[_CONTEXT] = given


def _find_server(ctx: click.Context, parameter: click.Parameter, given: str | None) -> str:
    from walrq.cli.contexts import resolve

    context = ctx.meta.get(_CONTEXT)
    if given is not None and context is not None:
        raise click.UsageError("give --server or --context, not both")
    meant = ctx.meta[_TARGET] = resolve(given, context, os.environ)
    return meant.url


def _find_server_if_possible(ctx: click.Context, parameter: click.Parameter, given: str | None) -> str:
    from walrq.errors import ConfigError

    try:
        return _find_server(ctx, parameter, given)
    except ConfigError as error:
        ctx.meta[_TARGET] = error
        return ""


def target() -> Target:
    """Which server the options found for the command that runs, and who named it.

    Raises:
        ConfigError: nobody could tell (only after `server_option_to_judge`).
    """
    from walrq.errors import ConfigError

    found: Target | ConfigError = click.get_current_context().meta[_TARGET]
    if isinstance(found, ConfigError):
        raise found
    return found


def json_option(command: F) -> F:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON value per line.")(command)


def yes_option(command: F) -> F:
    """`--yes`."""
    return click.option("--yes", "-y", is_flag=True, help="Do not ask.")(command)


def queue_argument(command: F) -> F:
    """`QUEUE`."""
    return click.argument("queue", shell_complete=complete_queues)(command)


# --- settings of a node -------------------------------------------------------------------------------------
# Flag, what stands for its value, what it is; the default is in brackets. A test compares them with the table of
# daemon/config.py, which is not imported here: most commands run no node.
SETTINGS: Final = (
    ("--data-dir", "DIR", "Where everything durable lies.  [./walrq-data]"),
    ("--listen", "HOST:PORT", "Native door; port 0 picks a free one.  [127.0.0.1:50051]"),
    ("--node-id", "ID", "Name of this node.  [the one in the data directory]"),
    ("--fsync", "POLICY", "always, never or interval:MS.  [always]"),
    ("--drain-timeout", "SECONDS", "Longest time to answer what is in flight.  [10]"),
    ("--max-connections", "N", "Beyond it connections are refused.  [10000]"),
    ("--max-wal-segment-size", "BYTES", "Size of a log segment, like 16MiB.  [64MiB]"),
    ("--auto-create/--no-auto-create", None, "Whether a push creates a queue.  [true]"),
    ("--snapshot-log-bytes", "BYTES", "Log that forces a snapshot.  [256MiB]"),
    ("--snapshot-commands", "N", "Commands that force a snapshot.  [50000]"),
    ("--body-cache-bytes", "BYTES", "Memory for bodies of messages.  [32MiB]"),
    ("--max-hot-messages", "N", "Messages with metadata in memory.  [200000]"),
    ("--max-hot-bytes", "BYTES", "Bytes of their payloads.  [1GiB]"),
    ("--max-memory", "BYTES", "Memory beyond which pushes are refused, like 1GiB; 0 = no bound.  [0]"),
    ("--log-level", "LEVEL", "debug, info, warning or error.  [info]"),
    ("--log-format", "FORMAT", "auto, human or json.  [auto]"),
    ("--front", "KIND", "What carries TCP: auto, reactor or stream.  [auto]"),
    ("--ws-listen", "HOST:PORT", "WebSocket door, for browsers.  [none]"),
    ("--resp-listen", "HOST:PORT", "Door for clients of Redis.  [none]"),
    ("--requirepass", "TEXT", "Password for every door; WALRQ_REQUIREPASS hides it from others.  [none]"),
    ("--requirepass-file", "FILE", "The file with that password.  [none]"),
    ("--admin-token", "TEXT", "Token that may do everything; WALRQ_ADMIN_TOKEN hides it from others.  [none]"),
    ("--admin-token-file", "FILE", "The file with that token.  [none]"),
    ("--insecure/--no-insecure", None, "Open doors beyond this machine without any of these.  [false]"),
    ("--open-metrics/--no-open-metrics", None, "Whether /metrics is for everybody.  [false]"),
    ("--tls-cert", "FILE", "Certificate for TLS on every door.  [none]"),
    ("--tls-key", "FILE", "Its key.  [none]"),
    ("--tls-ca", "FILE", "Who signed the certificates of the other nodes.  [the system's]"),
    ("--tls-client-ca", "FILE", "Who signs the certificates that clients need then.  [none]"),
    ("--http-listen", "HOST:PORT", "HTTP door: JSON API, metrics, dashboard.  [none]"),
    ("--allowed-origins", "LIST", "Pages let in beside the node's own, https://HOST[:PORT],...  [none]"),
    (
        "--peer-listen",
        "HOST:PORT",
        "Door for the other nodes of a cluster.  [none; with --bootstrap its address there]",
    ),
    ("--advertise", "HOST:PORT", "Where they reach it.  [the address of --peer-listen]"),
    ("--bootstrap", "LIST", "First members of a new cluster, n1=HOST:PORT,n2=HOST:PORT,...  [none]"),
    ("--join", "LIST", "Members that take this new node in, HOST:PORT,...  [none]"),
    ("--cluster-secret", "TEXT", "What all nodes know; others can see it in the list of processes.  [none]"),
    ("--cluster-secret-file", "FILE", "The file with the secret.  [none]"),
    ("--peer-tls-cert", "FILE", "Certificate for TLS between nodes, which is mutual.  [none]"),
    ("--peer-tls-key", "FILE", "Its key.  [none]"),
    ("--peer-tls-ca", "FILE", "Who signed the certificates of all nodes.  [none]"),
    ("--trace-to", "DIR", "Where each step of consensus is noted, for walrq spec validate.  [none]"),
)


def settings_options(command: F) -> F:
    """`--config FILE` and one flag for each setting of a node; the command gets them as `config` and `**flags`."""
    for flag, metavar, text in reversed(SETTINGS):
        command = click.option(flag, metavar=metavar, default=None, help=text)(command)
    return click.option("--config", metavar="FILE", help="Settings in TOML.  [WALRQ_CONFIG]")(command)


# Flags of DTQ's server that mean a setting of ours, and those that do not: what to do instead.
_DTQ_SETTINGS: Final = {"bind": "resp_listen", "http_bind": "http_listen"}
_DTQ_OTHERS: Final = {
    "aof": "everything durable lies in a directory: --data-dir DIR",
    "replicaof": "nodes of a cluster are equal: --bootstrap n1=HOST:PORT,... or --join HOST:PORT",
    "masterauth": "nodes of a cluster share a secret: --cluster-secret-file FILE",
    "auto_failover": "a cluster of three nodes always fails over: --bootstrap, or walrq cluster start",
    "failover_timeout_secs": "an election takes a second or two: --bootstrap, or walrq cluster start",
}


def _dtq_help(name: str) -> str:
    if name in _DTQ_SETTINGS:
        return f"DTQ's name of --{_DTQ_SETTINGS[name].replace('_', '-')}."
    return f"A flag of DTQ, refused: {_DTQ_OTHERS[name]}."


def dtq_options(command: F) -> F:
    """DTQ's flags, not shown in help; `from_dtq` makes settings of them."""
    names = {"bind": ("--bind", "-b"), "aof": ("--aof", "-a")}
    for name in (*_DTQ_SETTINGS, *_DTQ_OTHERS):
        flags = names.get(name, (f"--{name.replace('_', '-')}",))
        is_flag = name == "auto_failover"
        command = click.option(*flags, name, hidden=True, is_flag=is_flag, default=None, help=_dtq_help(name))(command)
    return command


def from_dtq(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of `serve` with those of DTQ put into our words; a usage error for one that has no such word."""
    found = dict(flags)
    for name, instead in _DTQ_OTHERS.items():
        if found.pop(name, None):
            raise click.UsageError(f"--{name.replace('_', '-')} is a flag of DTQ; {instead}")
    for name, setting in _DTQ_SETTINGS.items():
        given = found.pop(name, None)
        if given is not None:
            if found.get(setting) is not None:
                raise click.UsageError(f"give --{setting.replace('_', '-')} or --{name.replace('_', '-')}, not both")
            found[setting] = given
    return found


def settings_file(config: str | None) -> Path | None:
    """The settings file that is meant, if one is."""
    from pathlib import Path

    name = config or os.environ.get("WALRQ_CONFIG")
    return Path(name) if name else None


def load_settings(config: str | None, flags: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Config:
    """The settings of a node that were given by flags, variables (of this process unless given) and the file.

    Raises:
        ConfigError: see `Config.load`.
    """
    from walrq.daemon.config import Config

    return Config.load(flags, os.environ if env is None else env, settings_file(config))


# --- completion ---------------------------------------------------------------------------------------------
# Longer than this and the person has typed the name.
COMPLETION_S_MAX: Final = 0.3


def complete_queues(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of queues that begin so, as the server tells them within a moment; none when it does not."""
    return _told(ctx, lambda client: [info.name for info in client.list_queues(incomplete)])


def complete_nodes(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of the cluster's nodes that begin so, as `complete_queues`."""
    return _told(
        ctx, lambda client: [each.node for each in client.cluster().members if each.node.startswith(incomplete)]
    )


def _told(ctx: click.Context, ask: Callable[[Client], list[str]]) -> list[str]:
    from walrq.client.blocking import connect
    from walrq.errors import WalrqError

    until = time.monotonic() + COMPLETION_S_MAX

    def look() -> None:
        if time.monotonic() > until:
            raise TimeoutError

    # Options that come later on the line are not parsed yet, then the server is the usual one.
    changes: dict[str, Any] = {"timeout_s": COMPLETION_S_MAX, "connect_timeout_s": COMPLETION_S_MAX}
    try:
        with connect(ctx.params.get("server"), session=False, **changes) as client:
            client.on_turn = look
            return ask(client)
    except (WalrqError, TimeoutError):
        return []  # there is no place for a message in the middle of a line that is being typed


def complete_contexts(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of contexts that begin so; none when their file cannot be read."""
    from walrq.cli.contexts import load, path_of
    from walrq.errors import ConfigError

    try:
        return sorted(name for name in load(path_of(os.environ)).urls if name.startswith(incomplete))
    except ConfigError:
        return []  # the command itself will say what is wrong with the file


# --- the client ---------------------------------------------------------------------------------------------
@contextlib.contextmanager
def open_client(server: str | None, *, outages_everywhere: bool = False, **changes: Any) -> Iterator[Client]:
    """A connected client; its import is paid only by the commands that need it.

    Within it Ctrl-C ends whatever waits for the server, and a terminal is told about outages; with
    `outages_everywhere` standard error is, whatever it is.

    Raises:
        WalrqError: see `walrq.connect`; it says who named the server, unless that was typed just now.
    """
    import logging

    from walrq.cli.interrupts import INTERRUPTS
    from walrq.client.blocking import connect
    from walrq.errors import WalrqError

    # Python shows warnings of a program that configured no logging; the notes of an outage are for people already.
    logging.getLogger("walrq.client").addHandler(logging.NullHandler())
    try:
        opened = connect(server, **changes)
    except WalrqError as error:
        ctx = click.get_current_context(silent=True)
        meant: Target | None = None if ctx is None else ctx.meta.get(_TARGET)
        if meant is not None and meant.origin not in ("--server", "default"):
            error.text += f" (this one is from {meant.origin})"
        raise
    with opened as client:
        outage = output.Outage(client, outages_everywhere)

        def look() -> None:
            INTERRUPTS.check()
            outage.look()

        client.on_turn = look
        with INTERRUPTS.deferred(client.wake_descriptor):
            yield client


def settings(texts: Sequence[str]) -> dict[str, Any]:
    """Several `name=value`; numbers, true, false, none, durations where milliseconds are meant, dlq=default."""
    return dict(map(_setting, texts))


def _setting(text: str) -> tuple[str, Any]:
    name, equals, given = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not of the form name=value, such as max_deliveries=5")
    word = given.strip()
    if name == "dlq":
        return name, _dlq(word)
    constants: dict[str, Any] = {"true": True, "false": False, "none": None, "null": None}
    if word.lower() in constants:
        return name, constants[word.lower()]
    if re.fullmatch(r"-?[0-9]+", word):
        return name, int(word)
    if name.endswith("_ms") and _DURATION.fullmatch(word) and word[-1].isalpha():
        return name, round(seconds(word) * 1000)
    return name, word


def _dlq(word: str) -> str | None:
    """What the setting is in Python and on the wire: None for the default, "none" for no other queue."""
    if not word:
        raise click.BadParameter(
            "dlq= names no queue; dlq=none keeps dead messages in the queue itself, dlq=default sends them to QUEUE.dlq"
        )
    if word.lower() in ("default", "null"):
        return None
    return "none" if word.lower() == "none" else word


_FILTERS: Final = {
    "reason": "reason",
    "error_type": "error_type",
    "error": "error_contains",
    "error_contains": "error_contains",
    "id": "ids",
}


def where(texts: Sequence[str]) -> dict[str, Any]:
    """The filter in several `--where reason=failed`, `error_type=ValueError`, `error=text`, `id=...`."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, given = text.partition("=")
        key = _FILTERS.get(name.strip().replace("-", "_"))
        if not equals or key is None:
            raise click.BadParameter(
                f"{text!r}: filters are reason=..., error_type=..., error=... (a part of the text), id=..."
            )
        if key == "ids":
            found.setdefault("ids", []).append(given)
        else:
            found[key] = given
    return found


def confirm(question: str, yes: bool, why: str = "this cannot be undone") -> None:
    """Ask before something that cannot be undone; without a person to ask, `--yes` is needed and `why` is said."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{why}: add --yes when nobody is there to be asked")
    click.confirm(question, abort=True, err=True)
