"""`walrq queue ...` and `walrq stats`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from walrq.cli import output
from walrq.cli.arguments import (
    confirm,
    example,
    json_option,
    open_client,
    queue_argument,
    server_option,
    settings,
    yes_option,
)

if TYPE_CHECKING:
    from walrq.api import QueueInfo

COUNTS: Final = ("ready", "delayed", "leased", "parked", "dead", "bytes")


def _value(info: QueueInfo) -> dict[str, Any]:
    counts = {name: getattr(info, name) for name in COUNTS}
    return {"queue": info.name, **counts, "oldest_ms": info.oldest_ms, "settings": dict(info.settings)}


def _row(info: QueueInfo) -> tuple[Any, ...]:
    paused = " (paused)" if info.settings.get("paused") and sys.stdout.isatty() else ""
    return (info.name + paused, *(getattr(info, name) for name in COUNTS))


@click.group(epilog=example("walrq queue list"))
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
    rows += [(name, "none" if given is None else given) for name, given in sorted(info.settings.items())]
    output.table(("what", "value"), rows)


def _say_set(queue: str, count: int) -> None:
    print(f"{queue} is there" if not count else f"set {count} setting{'' if count == 1 else 's'} of {queue}")


@queue.command(epilog=example("walrq queue create mail max_deliveries=5"))
@queue_argument
@click.argument("given", metavar="[NAME=VALUE]...", nargs=-1)
@server_option
def create(queue: str, given: tuple[str, ...], server: str | None) -> None:
    """Create QUEUE, or change these settings if it is there already."""
    changes = settings(given)
    with open_client(server) as client:
        client.create_queue(queue, **changes)
    print(
        f"set {len(changes)} setting{'' if len(changes) == 1 else 's'} of {queue}" if changes else f"{queue} is there"
    )


@queue.command("set", epilog=example("walrq queue set mail visibility_ms=60000 max_length=none"))
@queue_argument
@click.argument("given", metavar="NAME=VALUE...", nargs=-1, required=True)
@server_option
def change(queue: str, given: tuple[str, ...], server: str | None) -> None:
    """Change settings of QUEUE. `walrq queue show QUEUE` lists them all; times may be written as 5s, 5m or 1h."""
    changes = settings(given)
    with open_client(server) as client:
        client.set_queue(queue, **changes)
    _say_set(queue, len(changes))


@queue.command(epilog=example("walrq queue pause mail"))
@queue_argument
@server_option
def pause(queue: str, server: str | None) -> None:
    """Let polls of QUEUE get nothing; pushes go on."""
    with open_client(server) as client:
        client.pause_queue(queue)
    print(f"paused {queue}")


@queue.command(epilog=example("walrq queue resume mail"))
@queue_argument
@server_option
def resume(queue: str, server: str | None) -> None:
    """End a pause of QUEUE."""
    with open_client(server) as client:
        client.resume_queue(queue)
    print(f"resumed {queue}")


@queue.command(epilog=example("walrq queue purge mail --yes"))
@queue_argument
@yes_option
@server_option
def purge(queue: str, yes: bool, server: str | None) -> None:
    """Remove all messages of QUEUE, leased ones too; its settings stay."""
    confirm(f"Remove all messages of {queue}?", yes)
    with open_client(server) as client:
        count = client.purge_queue(queue)
    print(f"removed {count}")


@queue.command(epilog=example("walrq queue delete mail --yes"))
@queue_argument
@yes_option
@server_option
def delete(queue: str, yes: bool, server: str | None) -> None:
    """Remove QUEUE and all that is in it."""
    if not yes:
        with open_client(server, session=False) as client:
            client.show_queue(queue)
    confirm(f"Delete {queue} and all that is in it?", yes)
    with open_client(server) as client:
        count = client.delete_queue(queue)
    print(f"deleted {queue} with {count} message{'' if count == 1 else 's'}")


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
    output.table(("what", "value"), sorted(values.items()))


COMMANDS = (queue, stats)
