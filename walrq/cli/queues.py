"""`walrq queue ...`, `walrq stats` and `walrq top`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from walrq.cli import output
from walrq.cli.arguments import (
    Group,
    confirm,
    example,
    json_option,
    open_client,
    queue_argument,
    seconds,
    server_option,
    settings,
    yes_option,
)
from walrq.cli.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from walrq.api import QueueInfo
    from walrq.live.rates import Reading

COUNTS: Final = ("ready", "delayed", "leased", "parked", "dead", "bytes")


def _value(info: QueueInfo) -> dict[str, Any]:
    counts = {name: getattr(info, name) for name in COUNTS}
    return {"queue": info.name, **counts, "oldest_ms": info.oldest_ms, "settings": dict(info.settings)}


def _row(info: QueueInfo) -> tuple[Any, ...]:
    paused = " (paused)" if info.settings.get("paused") and output.for_people() else ""
    return (info.name + paused, *(getattr(info, name) for name in COUNTS))


@click.group(cls=Group, epilog=example("walrq queue list"))
def queue() -> None:
    """Queues and their settings."""


@queue.command("list", epilog=example("walrq queue list --prefix mail"))
@click.option("--prefix", metavar="TEXT", default="", help="Only names that start so.")
@json_option
@server_option
def list_queues(prefix: str, as_json: bool, server: str | None) -> None:
    """All queues with their counts."""
    with open_client(server, session=False) as client:
        found = client.list_queues(prefix)
    if as_json:
        for info in found:
            output.json_line(_value(info))
        return
    output.table(("queue", *COUNTS), (_row(info) for info in found))
    if not found:
        output.note(
            f"walrq: no queue's name begins with {prefix!r}"
            if prefix
            else "walrq: there are no queues yet; `walrq push mail hello` makes one"
        )


@queue.command(epilog=example("walrq queue show mail"))
@queue_argument
@json_option
@server_option
def show(queue: str, as_json: bool, server: str | None) -> None:
    """Counts and settings of QUEUE."""
    with open_client(server, session=False) as client:
        info = client.show_queue(queue)
    if as_json:
        output.json_line(_value(info))
        return
    rows = [(name, getattr(info, name)) for name in COUNTS]
    rows += [(name, _in_words(queue, name, given)) for name, given in sorted(info.settings.items())]
    output.table(("what", "value"), rows)


def _in_words(queue: str, name: str, given: Any) -> Any:
    """A setting as a person reads it: where the dead go is never just "none", which could be either of two."""
    if name == "dlq" and given is None:
        return f"{queue}.dlq (by default)"
    if name == "dlq" and given == "none":
        return "none (dead messages stay here)"
    return "none" if given is None else given


def _count(changes: dict[str, Any]) -> str:
    return f"{len(changes)} setting{'' if len(changes) == 1 else 's'}"


def _say(said: str, value: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.json_line(value)
    else:
        print(said)


@queue.command(epilog=example("walrq queue create mail max_deliveries=5"))
@queue_argument
@click.argument("given", metavar="[NAME=VALUE]...", nargs=-1)
@json_option
@server_option
def create(queue: str, given: tuple[str, ...], as_json: bool, server: str | None) -> None:
    """Create QUEUE, or change these settings if it is there already; it says which of both."""
    from walrq.errors import QueueNotFound

    changes = settings(given)
    with open_client(server) as client:
        try:
            client.show_queue(queue)
            created = False
        except QueueNotFound:
            created = True
        client.create_queue(queue, **changes)
    said = f"created {queue}" if created else f"{queue} was there already"
    if changes:
        said += f"{' with' if created else '; set'} {_count(changes)}"
    _say(said, {"queue": queue, "created": created, "set": changes}, as_json)


@queue.command("set", epilog=example("walrq queue set mail visibility_ms=60000 max_length=none"))
@queue_argument
@click.argument("given", metavar="NAME=VALUE...", nargs=-1, required=True)
@json_option
@server_option
def change(queue: str, given: tuple[str, ...], as_json: bool, server: str | None) -> None:
    """Change settings of QUEUE. `walrq queue show QUEUE` lists them all; times may be written as 5s, 5m or 1h.

    NAME=none takes a bound away. dlq=none keeps dead messages in QUEUE, dlq=default sends them to QUEUE.dlq.
    """
    changes = settings(given)
    with open_client(server) as client:
        client.set_queue(queue, **changes)
    _say(f"set {_count(changes)} of {queue}", {"queue": queue, "set": changes}, as_json)


@queue.command(epilog=example("walrq queue pause mail"))
@queue_argument
@json_option
@server_option
def pause(queue: str, as_json: bool, server: str | None) -> None:
    """Let polls of QUEUE get nothing; pushes go on."""
    with open_client(server) as client:
        client.pause_queue(queue)
    _say(f"paused {queue}", {"queue": queue, "paused": True}, as_json)


@queue.command(epilog=example("walrq queue resume mail"))
@queue_argument
@json_option
@server_option
def resume(queue: str, as_json: bool, server: str | None) -> None:
    """End a pause of QUEUE."""
    with open_client(server) as client:
        client.resume_queue(queue)
    _say(f"resumed {queue}", {"queue": queue, "paused": False}, as_json)


@queue.command(epilog=example("walrq queue purge mail --yes"))
@queue_argument
@yes_option
@json_option
@server_option
def purge(queue: str, yes: bool, as_json: bool, server: str | None) -> None:
    """Remove all messages of QUEUE, leased ones too; its settings stay."""
    confirm(f"Remove all messages of {queue}?", yes)
    with open_client(server) as client:
        count = client.purge_queue(queue)
    _say(f"removed {count}", {"queue": queue, "removed": count}, as_json)


@queue.command(epilog=example("walrq queue delete mail --yes"))
@queue_argument
@yes_option
@json_option
@server_option
def delete(queue: str, yes: bool, as_json: bool, server: str | None) -> None:
    """Remove QUEUE and all that is in it."""
    if not yes:
        with open_client(server, session=False) as client:
            client.show_queue(queue)
    confirm(f"Delete {queue} and all that is in it?", yes)
    with open_client(server) as client:
        count = client.delete_queue(queue)
    said = f"deleted {queue} with {count} message{'' if count == 1 else 's'}"
    _say(said, {"queue": queue, "deleted": True, "removed": count}, as_json)


@click.command(epilog=example("walrq stats --json"))
@json_option
@server_option
def stats(as_json: bool, server: str | None) -> None:
    """Counters of the node and totals over its queues."""
    with open_client(server, session=False) as client:
        values = client.stats()
    if as_json:
        output.json_line(values)
        return
    output.table(("what", "value"), sorted(_flat(values)))


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """What is nested, by the names on the way to it: peers.n2.rtt_ms."""
    for name, part in values.items():
        if isinstance(part, Mapping):
            yield from _flat(part, f"{before}{name}.")
        else:
            yield f"{before}{name}", part


# --- top ----------------------------------------------------------------------------------------------------
INTERVAL_S_MIN: Final = 0.01
# It outlives a server that is away: only Ctrl-C ends it.
FOLLOW_TIMEOUT_S: Final = 3600.0


def _interval(given: str | float) -> float:
    found = seconds(given)
    if not INTERVAL_S_MIN <= found <= 3600:
        raise click.BadParameter(f"{given!r} is not between {INTERVAL_S_MIN} s and 1 h")
    return found


@click.command(epilog=example("walrq top --once --interval 100ms"))
@click.option(
    "--interval", type=_interval, metavar="TIME", default=1.0, help="Time between two looks, like 2 or 500ms.  [1]"
)
@click.option("--prefix", metavar="TEXT", default="", help="Only queues whose names start so.")
@click.option(
    "--sort",
    type=click.Choice(
        ["queue", "ready", "delayed", "leased", "dead", "parked", "push/s", "out/s", "ack/s", "oldest", "bytes"]
    ),
    default="queue",
    help="By name, or by a number, the largest first.  [queue]",
)
@click.option("--once", is_flag=True, help="Print one table; it takes two looks, for the rates.")
@json_option
@server_option
def top(interval: float, prefix: str, sort: str, once: bool, as_json: bool, server: str | None) -> int:
    """Watch the node and its queues: counts, messages per second, age of the oldest message.

    Keys: q quit, s the next column to sort by, r the other way round, j k or arrows select, / filter by name,
    p pause. With --json a line per look instead of a picture; the first has no rates.
    """
    if not once and not as_json:
        if not sys.stdout.isatty():
            raise click.UsageError("this is no terminal: add --once for one table, or --json for a line per look")
        from walrq.live.top import watch

        return watch(server, interval, prefix, sort)
    from walrq.live.top import readings, value

    changes: dict[str, Any] = {} if once else {"timeout_s": FOLLOW_TIMEOUT_S}
    with open_client(server, session=False, **changes) as client:
        address = str(client.endpoint)
        for number, reading in enumerate(readings(client, interval, prefix, _pause)):
            if once and number == 0:
                continue
            if as_json:
                output.json_line(value(reading, sort))
                sys.stdout.flush()
            if once:
                break
    if not as_json:
        _print_once(reading, sort, address)
    return 0


def _print_once(reading: Reading, sort: str, address: str) -> None:
    from walrq.live.board import Board, ordered
    from walrq.live.rates import age, count

    if output.for_people():
        from rich.console import Console

        console = Console()
        board = Board(address, sort=sort)
        board.take(reading)
        console.print(board.listing(console.width), soft_wrap=True)
        return
    names = ("ready", "delayed", "leased", "dead")
    output.table(
        ("queue", *names, "push/s", "out/s", "ack/s", "oldest"),
        [
            (
                flow.info.name,
                *(getattr(flow.info, name) for name in names),
                *(count(rate) for rate in (flow.push_s, flow.deliver_s, flow.ack_s)),
                age(flow.oldest_s),
            )
            for flow in ordered(reading.flows, sort, False)
        ],
    )


def _pause(for_s: float) -> None:
    with INTERRUPTS.raising():
        time.sleep(for_s)


COMMANDS = (queue, stats, top)
