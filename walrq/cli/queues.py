"""`walrq queue ...` and `walrq stats`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from walrq.cli import output
from walrq.cli.arguments import (
    JsonOption,
    QueueArgument,
    ServerOption,
    YesOption,
    confirm,
    open_client,
    settings,
)

if TYPE_CHECKING:
    from walrq.api import QueueInfo

SettingsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME=VALUE]...", help="Settings, such as max_deliveries=5 dlq=none.", show_default=False),
]
COUNTS = ("ready", "delayed", "leased", "parked", "dead", "bytes")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Queues and their settings.", epilog="Example: walrq queue list", no_args_is_help=True)
    group.command("list", epilog="Example: walrq queue list --prefix mail")(list_queues)
    group.command("show", epilog="Example: walrq queue show mail")(show)
    group.command("create", epilog="Example: walrq queue create mail max_deliveries=5")(create)
    group.command("set", epilog="Example: walrq queue set mail visibility_ms=60000 max_length=none")(change)
    group.command("pause", epilog="Example: walrq queue pause mail")(pause)
    group.command("resume", epilog="Example: walrq queue resume mail")(resume)
    group.command("purge", epilog="Example: walrq queue purge mail --yes")(purge)
    group.command("delete", epilog="Example: walrq queue delete mail --yes")(delete)
    app.add_typer(group, name="queue")
    app.command("stats", epilog="Example: walrq stats --json")(stats)


def _value(info: QueueInfo) -> dict[str, Any]:
    counts = {name: getattr(info, name) for name in COUNTS}
    return {"queue": info.name, **counts, "oldest_ms": info.oldest_ms, "settings": dict(info.settings)}


def list_queues(
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Names that start so.")] = "",
    json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """All queues with their counts."""
    with open_client(server, session=False) as client:
        found = client.list_queues(prefix)
    if json:
        for info in found:
            output.json_line(_value(info))
        return
    output.table(("queue", *COUNTS), ((info.name, *(getattr(info, name) for name in COUNTS)) for info in found))


def show(queue: QueueArgument, json: JsonOption = False, server: ServerOption = None) -> None:
    """Counts and settings of QUEUE."""
    with open_client(server, session=False) as client:
        info = client.show_queue(queue)
    if json:
        output.json_line(_value(info))
        return
    rows = [(name, getattr(info, name)) for name in COUNTS]
    rows += [(name, "none" if given is None else given) for name, given in sorted(info.settings.items())]
    output.table(("what", "value"), rows)


def create(queue: QueueArgument, given: SettingsArgument = None, server: ServerOption = None) -> None:
    """Create QUEUE if it is not there, with these settings."""
    with open_client(server) as client:
        client.create_queue(queue, **settings(given or []))


def change(queue: QueueArgument, given: SettingsArgument = None, server: ServerOption = None) -> None:
    """Change settings of QUEUE. `walrq queue show QUEUE` lists them all."""
    if not given:
        raise typer.BadParameter("name at least one setting, such as max_deliveries=5")
    with open_client(server) as client:
        client.set_queue(queue, **settings(given))


def pause(queue: QueueArgument, server: ServerOption = None) -> None:
    """Let polls of QUEUE get nothing; pushes go on."""
    with open_client(server) as client:
        client.pause_queue(queue)


def resume(queue: QueueArgument, server: ServerOption = None) -> None:
    """End a pause of QUEUE."""
    with open_client(server) as client:
        client.resume_queue(queue)


def purge(queue: QueueArgument, yes: YesOption = False, server: ServerOption = None) -> None:
    """Remove all messages of QUEUE, leased ones too; its settings stay."""
    confirm(f"Remove all messages of {queue}?", yes)
    with open_client(server) as client:
        count = client.purge_queue(queue)
    if count:
        print(f"removed {count}")


def delete(queue: QueueArgument, yes: YesOption = False, server: ServerOption = None) -> None:
    """Remove QUEUE and all that is in it."""
    confirm(f"Delete {queue} and all that is in it?", yes)
    with open_client(server) as client:
        client.delete_queue(queue)


def stats(json: JsonOption = False, server: ServerOption = None) -> None:
    """Counters of the node and totals over its queues."""
    with open_client(server, session=False) as client:
        values = client.stats()
    if json:
        output.json_line(values)
        return
    output.table(("what", "value"), sorted(values.items()))
