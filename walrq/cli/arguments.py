"""Options that several commands share, and how their texts become values."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from walrq.client.blocking import Client

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


def server_option(command: F) -> F:
    """`--server URL`."""
    return click.option(
        "--server",
        metavar="URL",
        help="walrq://HOST:PORT  [default: WALRQ_SERVER, else walrq://127.0.0.1:50051]",
    )(command)


def json_option(command: F) -> F:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON value per line.")(command)


def yes_option(command: F) -> F:
    """`--yes`."""
    return click.option("--yes", "-y", is_flag=True, help="Do not ask.")(command)


def queue_argument(command: F) -> F:
    """`QUEUE`."""
    return click.argument("queue")(command)


@contextlib.contextmanager
def open_client(server: str | None, **changes: Any) -> Iterator[Client]:
    """A connected client; its import is paid only by the commands that need it.

    Within it Ctrl-C ends whatever waits for the server, and a terminal is told about outages.
    """
    from walrq.cli.interrupts import INTERRUPTS
    from walrq.cli.outage import Outage
    from walrq.client.blocking import connect

    with connect(server, **changes) as client:
        outage = Outage(client)

        def look() -> None:
            INTERRUPTS.check()
            outage.look()

        client.on_turn = look
        with INTERRUPTS.deferred(client.wake_descriptor):
            yield client


def settings(texts: Sequence[str]) -> dict[str, Any]:
    """Several `name=value`; numbers, true, false, none, and durations where milliseconds are meant."""
    return dict(map(_setting, texts))


def _setting(text: str) -> tuple[str, Any]:
    name, equals, given = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not of the form name=value, such as max_deliveries=5")
    word = given.strip()
    constants: dict[str, Any] = {"true": True, "false": False, "none": None, "null": None}
    # "none" is the dlq setting's own word for "keep dead messages in the queue".
    if word.lower() in constants and not (name == "dlq" and word.lower() == "none"):
        return name, constants[word.lower()]
    if name == "dlq" and not word:
        raise click.BadParameter("dlq= names no queue; dlq=none keeps dead messages in the queue itself")
    if name != "dlq" and re.fullmatch(r"-?[0-9]+", word):
        return name, int(word)
    if name.endswith("_ms") and _DURATION.fullmatch(word) and word[-1].isalpha():
        return name, round(seconds(word) * 1000)
    return name, word


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


def confirm(question: str, yes: bool) -> None:
    """Ask before something that cannot be undone; without a person to ask, `--yes` is needed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("this cannot be undone: add --yes when nobody is there to be asked")
    click.confirm(question, abort=True, err=True)
