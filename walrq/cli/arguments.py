"""Options that several commands share, and how their texts become values."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

if TYPE_CHECKING:
    from walrq.client.blocking import Client

_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*(ms|s|m|h|d|)", re.IGNORECASE)


def seconds(text: str | float) -> float:
    """Seconds from `1.5`, `250ms`, `30s`, `5m`, `2h` or `1d`."""
    if isinstance(text, int | float):
        return float(text)
    found = _DURATION.fullmatch(text.strip())
    number = float(found[1]) * _UNITS[found[2].lower()] if found else math.nan
    if not math.isfinite(number):
        raise typer.BadParameter(f"{text!r} is no duration; write 30, 1.5, 250ms, 5m, 2h or 1d")
    return number


ServerOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="walrq://HOST:PORT; default: WALRQ_SERVER, else walrq://127.0.0.1:50051.",
        show_default=False,
    ),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON value per line.")]
YesOption: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
QueueArgument: TypeAlias = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")]


def duration(*names: str, help: str) -> Any:
    """An option that takes a duration."""
    return typer.Option(*names, metavar="TIME", parser=seconds, help=f"{help} Like 30, 1.5, 250ms, 5m, 2h, 1d.")


def open_client(server: str | None, **changes: Any) -> Client:
    """A connected client; the import is paid by the commands that need it."""
    from walrq.client.blocking import connect

    return connect(server, **changes)


def setting(text: str) -> tuple[str, Any]:
    """(name, value) of `name=value`; numbers, true, false and none are read as such."""
    name, equals, given = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is not of the form name=value, such as max_deliveries=5")
    word = given.strip()
    constants: dict[str, Any] = {"true": True, "false": False, "none": None, "null": None}
    # "none" is the DLQ setting's own word for "keep dead messages in the queue".
    if word.lower() in constants and not (name == "dlq" and word.lower() == "none"):
        return name, constants[word.lower()]
    if re.fullmatch(r"-?[0-9_]+", word):
        return name, int(word)
    return name, word


def settings(texts: list[str]) -> dict[str, Any]:
    """Several `name=value`."""
    return dict(map(setting, texts))


_FILTERS: Final = {
    "reason": "reason",
    "error_type": "error_type",
    "error": "error_contains",
    "error_contains": "error_contains",
    "id": "ids",
}


def where(texts: list[str] | None) -> dict[str, Any]:
    """The filter in `--where reason=failed --where error_type=ValueError --where error=text --where
    id=...`."""
    found: dict[str, Any] = {}
    for text in texts or ():
        name, equals, given = text.partition("=")
        key = _FILTERS.get(name.strip().replace("-", "_"))
        if not equals or key is None:
            raise typer.BadParameter(
                f"{text!r}: filters are reason=..., error_type=..., error=... (a part of the text), id=..."
            )
        if key == "ids":
            found.setdefault("ids", []).append(given)
        else:
            found[key] = given
    return found


def confirm(question: str, yes: bool) -> None:
    """Ask before something that cannot be undone; without a person to ask, `--yes` is needed."""
    import sys

    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("this cannot be undone: add --yes when nobody is there to be asked")
    typer.confirm(question, abort=True, err=True)
