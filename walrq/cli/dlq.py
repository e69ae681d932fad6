"""`walrq dlq`: messages that died, why they did, and sending them back."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from walrq.cli import output
from walrq.cli.arguments import (
    F,
    Group,
    confirm,
    example,
    json_option,
    open_client,
    queue_argument,
    server_option,
    where,
    yes_option,
)
from walrq.cli.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from walrq.api import Attempt, Filter
    from walrq.client.blocking import Client
    from walrq.client.messages import Seen
    from walrq.live.redrive import Redrive


def _where_option(command: F) -> F:
    return click.option(
        "--where",
        "filters",
        multiple=True,
        metavar="FILTER",
        help="reason=..., error_type=..., error=... (a part of the text), id=...; may be repeated, all must match.",
    )(command)


def _filter(texts: tuple[str, ...]) -> Filter | None:
    from walrq.client import operations

    wanted = where(texts)
    return operations.where(
        wanted.get("reason"), wanted.get("error_type"), wanted.get("error_contains"), wanted.get("ids")
    )


@click.group(cls=Group, epilog=example("walrq dlq list mail"))
def dlq() -> None:
    """Dead messages of a queue: why they died, and sending them back."""


# --- looking ------------------------------------------------------------------------------------------------
@dlq.command("list", epilog=example("walrq dlq list mail --where reason=failed"))
@queue_argument
@click.option("--max", "limit", metavar="N", type=click.IntRange(min=1), default=10, help="At most so many.  [10]")
@_where_option
@click.option("--history", is_flag=True, help="A line for each attempt: when, by whom, what went wrong.")
@click.option("--verbose", "-v", is_flag=True, help="All that is known of each, tracebacks too.")
@json_option
@server_option
def list_dead(
    queue: str,
    limit: int,
    filters: tuple[str, ...],
    history: bool,
    verbose: bool,
    as_json: bool,
    server: str | None,
) -> None:
    """Messages of QUEUE that died, in order of death."""
    with open_client(server, session=False) as client:
        found = _dead(client, queue, _filter(filters), limit)
        if not found:
            _note_no_dead(client, queue, filtered=bool(filters))
    if as_json:
        for each in found:
            output.json_line(output.seen_value(each))
    elif verbose:
        for number, each in enumerate(found):
            print("\n" if number else "", end="")
            _tell(each)
    elif history:
        rows: list[tuple[Any, ...]] = []
        for each in found:
            for attempt in each.history:
                error = output.one_line(_in_short(attempt))
                rows.append((each.message_id, _moment(attempt.at_ms), attempt.reason, attempt.worker, error))
        output.table(("message", "at", "attempt", "worker", "last error"), rows)
    else:
        rows = [
            (
                each.message_id,
                each.died_at,
                each.reason,
                each.attempts,
                output.one_line(_in_short(each.history[-1])) if each.history else "",
                output.body(each),
            )
            for each in found
        ]
        output.table(("message", "died", "reason", "attempts", "last error", "payload"), rows)


def _note_no_dead(client: Client, queue: str, *, filtered: bool) -> None:
    """Tell a terminal why there was nothing to show or to move; the queue is there."""
    from walrq.live import empty

    if output.person_reads_notes():
        output.note(f"walrq: {empty.no_dead(client, queue, filtered=filtered)}")


def _dead(client: Client, queue: str, wanted: Filter | None, limit: int) -> list[Seen]:
    from walrq.client.messages import seen
    from walrq.live import redrive

    return [seen(message) for message, _ in redrive.dead(client, queue, wanted, limit, bodies=True)]


def _latest_dead(client: Client, queue: str) -> list[Seen]:
    """The last of the list, if there is one."""
    from walrq import api
    from walrq.client.messages import seen

    position = max(0, client.show_queue(queue).dead - 1)
    page = client.end(client.begin(api.ListDead(queue, 1, position)), api.Page)
    return [seen(message) for message in page.messages]


# The error type of `walrq poll --exec`: what the command said says more.
COMMAND_FAILED: Final = "CommandFailed"


def _in_short(attempt: Attempt) -> str:
    """The error of an attempt in one line: of a traceback the last line, which names the error.

    Nobody tells one when a lease runs out: then what happened, and to whom.
    """
    if attempt.reason == "expired" and not (attempt.error_type or attempt.error_text):
        return f"lease ran out at worker {attempt.worker}" if attempt.worker else "lease ran out"
    lines = (attempt.error_text or "").strip().splitlines()
    last = lines[-1].strip() if lines else ""
    kind = attempt.error_type or ""
    if kind == COMMAND_FAILED:
        return last
    if not kind:
        return last
    # A traceback names an error with its module, `app.errors.NoRoute: ...`; the type alone says enough in a table.
    module, _, rest = last.partition(kind)
    if (not module or (module.endswith(".") and " " not in module)) and rest[:1] in ("", ":") and kind in last:
        return kind + rest
    return f"{kind}: {last}".rstrip(": ")


def _moment(wall_ms: int) -> datetime:
    return datetime.fromtimestamp(wall_ms / 1000, UTC)


@dlq.command(epilog=example("walrq dlq show mail"))
@queue_argument
@click.argument("message_id", required=False)
@click.option("--payload", is_flag=True, help="Print the payload only, as it is.")
@json_option
@server_option
def show(queue: str, message_id: str | None, payload: bool, as_json: bool, server: str | None) -> int:
    """All that is known of one dead message of QUEUE: its attempts with their errors, headers, payload.

    Without MESSAGE_ID the one that died last. Exit status 1 when there is no such dead message.
    """
    with open_client(server, session=False) as client:
        if message_id is None:
            found = _latest_dead(client, queue)
        else:
            found = _dead(client, queue, _filter((f"id={message_id}",)), 1)
        if not found and message_id is None:
            _note_no_dead(client, queue, filtered=False)
    if not found and message_id is None:
        return 0
    if not found:
        print(f"walrq: {message_id} is not among the dead messages of {queue}", file=sys.stderr)
        return 1
    if payload:
        sys.stdout.flush()
        sys.stdout.buffer.write(found[0].payload or b"")
    elif as_json:
        output.json_line(output.seen_value(found[0]))
    else:
        _tell(found[0])
    return 0


def _tell(each: Seen) -> None:
    """A dead message in full."""

    def line(name: str, text: object) -> None:
        print(f"{name:10}{text}")

    line("message", each.message_id)
    line("died", f"{each.died_at:%Y-%m-%d %H:%M:%S} UTC, {each.reason}, in {each.origin}")
    line("pushed", f"{each.pushed_at:%Y-%m-%d %H:%M:%S} UTC")
    line("counts", f"delivered {each.delivery}, failed or expired {each.attempts}, priority {each.priority}")
    if each.group is not None:
        line("group", _clean(each.group))
    for name, given in each.headers.items():
        line("header", _clean(f"{name} = {given!r}"))
    size = (
        "lost to disk damage"
        if each.payload is None
        else f"{len(each.payload)} byte{'' if len(each.payload) == 1 else 's'}"
    )
    line("payload", f"{size}: {output.body(each)}" if each.payload else size)
    for number, attempt in enumerate(each.history, start=1):
        by = f" by {_clean(attempt.worker)}" if attempt.worker else ""
        kind = f", {_clean(attempt.error_type)}" if attempt.error_type else ""
        line(f"attempt {number}", f"{_moment(attempt.at_ms):%Y-%m-%d %H:%M:%S} UTC {attempt.reason}{by}{kind}")
        for text in (attempt.error_text or "").splitlines():
            print(f"    {_clean(text)}")


def _clean(text: str) -> str:
    """The text without characters that could move a terminal's cursor."""
    return "".join(each if each.isprintable() or each == "\t" else "·" for each in text)


# --- sending back -------------------------------------------------------------------------------------------
@dlq.command(epilog=example("walrq dlq replay mail --where error_type=TimeoutError --rate 50 --dry-run"))
@queue_argument
@click.option("--max", "--limit", "limit", metavar="N", type=click.IntRange(min=1), help="At most so many.  [all]")
@click.option("--to", "target", metavar="QUEUE", help="Another queue than the one they died in.")
@_where_option
@click.option(
    "--rate", metavar="N", type=click.FloatRange(0.001, 1_000_000), help="So many messages a second.  [no limit]"
)
@click.option("--dry-run", is_flag=True, help="Move nothing; say how many would be, and what they died of.")
@json_option
@server_option
def replay(
    queue: str,
    limit: int | None,
    target: str | None,
    filters: tuple[str, ...],
    rate: float | None,
    dry_run: bool,
    as_json: bool,
    server: str | None,
) -> int:
    """Send dead messages of QUEUE back to it, behind what waits there; their attempts start anew.

    Ctrl-C ends it at once: what was moved is said, the rest stays dead and can be sent later.
    """
    from walrq.live.redrive import Redrive

    wanted = _filter(filters)
    if dry_run:
        _say_what_would_move(server, queue, target, wanted, limit, as_json)
        return 0
    with open_client(server) as client:
        work = Redrive(client, queue, target, wanted, limit, rate)
        total = _expected(client, queue, wanted, limit)
        _finish_units(client)
        try:
            with _progress(total) as show_moved:
                for moved in work.run(time.monotonic, _pause):
                    show_moved(moved)
                    INTERRUPTS.check()
        except KeyboardInterrupt:
            _say_moved(work, as_json, interrupted=True)
            raise
        if not work.moved:
            _note_no_dead(client, queue, filtered=wanted is not None)
    _say_moved(work, as_json)
    return 0


def _pause(for_s: float) -> None:
    with INTERRUPTS.raising():
        time.sleep(for_s)


def _expected(client: Client, queue: str, wanted: Filter | None, limit: int | None) -> int | None:
    """How many will be moved, when that can be told without counting."""
    dead = client.show_queue(queue).dead
    if wanted is not None:
        return None
    return dead if limit is None else min(dead, limit)


def _finish_units(client: Client) -> None:
    """Let Ctrl-C wait for the unit that is under way, as long as the server is there: a moment, for an exact count."""
    look = client.on_turn
    assert look is not None

    def patient() -> None:
        if not (INTERRUPTS.asked and client.connected):
            look()

    client.on_turn = patient


def _say_moved(work: Redrive, as_json: bool, interrupted: bool = False) -> None:
    if as_json:
        value: dict[str, Any] = {"moved": work.moved, "more": work.more}
        if work.under_way:
            value["unknown"] = work.under_way
        output.json_line(value)
    elif not interrupted:
        print(f"moved {work.moved}")
    else:
        unknown = f", perhaps {work.under_way} more that the server has not answered for" if work.under_way else ""
        print(f"walrq: stopped: moved {work.moved}{unknown}; the rest stays dead", file=sys.stderr)


# What the table of causes takes with all its columns.
CAUSES_COLUMNS: Final = 100


def _say_what_would_move(
    server: str | None, queue: str, target: str | None, wanted: Filter | None, limit: int | None, as_json: bool
) -> None:
    from walrq.ids import format_id
    from walrq.live.redrive import survey

    with open_client(server, session=False) as client:
        if target is not None:
            # As the real one would: a target that is not there is a mistake.
            client.show_queue(target)
        causes, more = survey(client, queue, wanted, limit)
        if not causes:
            _note_no_dead(client, queue, filtered=wanted is not None)
    count = sum(cause.count for cause in causes)
    if as_json:
        groups = [
            {
                "reason": cause.reason,
                "error_type": cause.error_type,
                "count": cause.count,
                "first_died_at": cause.first_at,
                "last_died_at": cause.last_at,
                "example": format_id(cause.example),
            }
            for cause in causes
        ]
        output.json_line({"moved": 0, "matching": count, "more": more, "causes": groups})
        return
    if output.for_people():
        titles: tuple[str, ...] = ("reason", "error type", "count", "first died", "last died", "example")
        rows: list[tuple[Any, ...]] = [
            (cause.reason, cause.error_type, cause.count, cause.first_at, cause.last_at, format_id(cause.example))
            for cause in causes
        ]
        if shutil.get_terminal_size().columns < CAUSES_COLUMNS:
            # Ids and error types are for copying: rather a column less than one that is cut.
            titles, rows = titles[:3] + titles[4:], [row[:3] + row[4:] for row in rows]
        output.table(titles, rows)
    print(f"would move {count}{' or more' if more and count != limit else ''}")


@contextlib.contextmanager
def _progress(total: int | None) -> Iterator[Callable[[int], None]]:
    """A function that keeps a bar on a terminal up to date; elsewhere it does nothing."""
    if not sys.stderr.isatty():
        yield lambda moved: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.completed:,.0f} moved"),
        BarColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("replay", total=total)
        yield lambda moved: bar.update(task, completed=moved)


@dlq.command(epilog=example("walrq dlq purge mail --where reason=rejected --yes"))
@queue_argument
@_where_option
@yes_option
@json_option
@server_option
def purge(queue: str, filters: tuple[str, ...], yes: bool, as_json: bool, server: str | None) -> None:
    """Remove dead messages of QUEUE for good."""
    wanted = where(filters)
    confirm(f"Remove the {'matching ' if wanted else ''}dead messages of {queue}?", yes)
    with open_client(server) as client:
        count = client.purge_dead(queue, **wanted)
        if not count:
            _note_no_dead(client, queue, filtered=bool(wanted))
    if as_json:
        output.json_line({"queue": queue, "removed": count})
    else:
        print(f"removed {count}")


COMMANDS = (dlq,)
