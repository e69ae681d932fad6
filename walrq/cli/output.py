"""What commands print: JSON lines for programs, plain lines for pipes, tables for people.

A table is drawn on a terminal, or anywhere when FORCE_COLOR is set; NO_COLOR takes the colours away, TERM=dumb
too.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from walrq.client.blocking import Client
    from walrq.client.messages import Message, Seen

PREVIEW_CHARACTERS = 60
# Terminals with fewer columns see times without their date and zone.
WIDE_COLUMNS = 120
# Columns that become narrower when there is no room: message ids, names and numbers are for copying.
CUT = ("payload", "last error")
GIVES_WAY = (*CUT, "value")


def for_people() -> bool:
    """Whether standard output is drawn for a person: on a terminal, or because FORCE_COLOR says so."""
    return sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))


def json_line(value: Any) -> None:
    """One JSON value on one line of standard output; escaped where the output cannot take all characters."""
    ascii_only = "utf" not in (sys.stdout.encoding or "").lower()
    sys.stdout.write(json.dumps(value, ensure_ascii=ascii_only, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def payload_field(payload: bytes | None) -> dict[str, Any]:
    """`payload` as text when it is UTF-8, else `payload_base64`; null when there is none."""
    if payload is None:
        return {"payload": None}
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def message_value(message: Message) -> dict[str, Any]:
    """A leased message for JSON: what `walrq ack -` reads back."""
    return {
        "queue": message.queue,
        "message_id": message.message_id,
        "receipt_handle": message.receipt_handle,
        **payload_field(message.payload),
        "delivery": message.delivery,
        "attempts": message.attempts,
        "priority": message.priority,
        "group": message.group,
        "headers": message.headers,
        "fence": list(message.fence),
        "pushed_at": message.pushed_at,
        "lease_s": round(message.remaining, 3),
    }


def seen_value(seen: Seen) -> dict[str, Any]:
    """A message that was looked at, for JSON."""
    value = {
        "message_id": seen.message_id,
        "state": seen.state,
        **payload_field(seen.payload),
        "delivery": seen.delivery,
        "attempts": seen.attempts,
        "priority": seen.priority,
        "group": seen.group,
        "headers": seen.headers,
        "pushed_at": seen.pushed_at,
        "due_at": seen.due_at,
        "lease_left_s": seen.lease_left,
    }
    if seen.died_at is not None or seen.reason is not None:
        value |= {
            "reason": seen.reason,
            "origin": seen.origin,
            "died_at": seen.died_at,
            "history": [
                {
                    "at_ms": each.at_ms,
                    "reason": each.reason,
                    "worker": each.worker,
                    "error_type": each.error_type,
                    "error_text": each.error_text,
                }
                for each in seen.history
            ],
        }
    return value


def payload_line(payload: bytes) -> None:
    """A payload as it is, and a line end; on a terminal control characters are replaced."""
    sys.stdout.flush()
    if sys.stdout.isatty():
        payload = _printable(payload.decode("utf-8", "replace")).encode()
    sys.stdout.buffer.write(payload + b"\n")


def _printable(text: str) -> str:
    """The text without characters that could move a terminal's cursor; tabs stay."""
    return "".join(character if character.isprintable() or character == "\t" else "·" for character in text)


def preview(payload: bytes | None) -> str:
    """The beginning of a payload on one line, without control characters."""
    if payload is None:
        return "-"
    text = payload[: PREVIEW_CHARACTERS * 4].decode("utf-8", "replace")
    text = _printable(text)
    return text if len(text) <= PREVIEW_CHARACTERS else text[: PREVIEW_CHARACTERS - 1] + "…"


def body(seen: Seen) -> str:
    """The payload of a message that was looked at, on one line: the call itself when it is a task's."""
    name = seen.headers.get("walrq-task")
    if seen.payload and isinstance(name, str):
        from walrq.worker import arguments

        call = arguments.readable(name, seen.payload)
        if call is not None:
            return preview(call.encode("utf-8", "replace"))
    return preview(seen.payload)


def one_line(text: str) -> str:
    """The text on one line without control characters; cut on a terminal, whole in a pipe."""
    return preview(text.encode()) if for_people() else _printable(text)


def table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table on a terminal, tab-separated lines without titles in a pipe; nothing when there are no rows."""
    given = list(rows)
    if not given:
        return
    if not for_people():
        for row in given:
            sys.stdout.write("\t".join(map(_cell, row)) + "\n")
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    narrow = console.width < WIDE_COLUMNS
    found = [[_cell(cell, narrow) for cell in row] for row in given]
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1 if narrow else 2, 0, 0), collapse_padding=True)
    for number, title in enumerate(titles):
        numeric = all(cells[number].replace(".", "", 1).isdigit() for cells in found)
        shown.add_column(
            title.replace("_", "\n") if narrow else title,
            justify="right" if numeric else "left",
            no_wrap=title not in GIVES_WAY,
            overflow="fold",
        )
    for cells in found:
        # Text, not markup: a payload with brackets is shown as it is. What gives way is cut, in one line.
        shown.add_row(
            *[
                Text(cell, no_wrap=True, overflow="ellipsis") if title in CUT else Text(cell)
                for title, cell in zip(titles, cells, strict=True)
            ]
        )
    console.print(shown)


def _cell(value: Any, narrow: bool = False) -> str:
    """The text of a cell; on a narrow terminal a moment is its time of day."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        if narrow:
            return value.strftime("%H:%M:%S")
        return value.isoformat(sep=" ", timespec="seconds")
    return str(value)


def colored(word: str, style: str, rest: str) -> None:
    """A line whose first word has a colour, where colours are wanted."""
    if not for_people():
        print(word + rest)
        return
    from rich.console import Console
    from rich.text import Text

    Console(soft_wrap=True).print(Text.assemble((word, style), rest))


def person_reads_notes() -> bool:
    """Whether `note` says anything: what only a note needs is not asked for otherwise."""
    return sys.stderr.isatty()


def note(text: str) -> None:
    """A remark for the person at the terminal; never for a pipe."""
    if person_reads_notes():
        _remark(text)


def _remark(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


OUTAGE_PATIENCE_S: Final = 1.0
# A log is read later: a restart that nobody would have noticed is not worth its two lines.
LOGGED_OUTAGE_PATIENCE_S: Final = 2.0


class Outage:
    """Says that a command waits for its server, and that the server is back: once each for an outage."""

    def __init__(self, client: Client, everywhere: bool = False) -> None:
        """
        Args:
            everywhere: not at a terminal only: standard error of a command that goes on for long is its log.
        """
        self._client = client
        self._say = _remark if everywhere else note
        self._patience_s = OUTAGE_PATIENCE_S if person_reads_notes() else LOGGED_OUTAGE_PATIENCE_S
        self._away_since: float | None = None
        self._server = ""

    def look(self) -> None:
        """Say so when the server has been away for longer than a moment, and when it is back after that."""
        if self._client.connected:
            if self._server:
                self._say(f"walrq: {self._server} is back")
            self._away_since, self._server = None, ""
            return
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        elif not self._server and now - self._away_since > self._patience_s:
            self._server = str(self._client.endpoint)
            self._say(f"walrq: waiting for {self._server} ...")
