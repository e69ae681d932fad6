"""`walrq dlq`: messages that died, why they did, and sending them back."""

from __future__ import annotations

from typing import Annotated

import typer

from walrq.cli import output
from walrq.cli.arguments import JsonOption, QueueArgument, ServerOption, YesOption, confirm, open_client, where

WhereOption = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="FILTER",
        help="reason=..., error_type=..., error=... (a part of the text), id=...; all given must match.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Dead messages of a queue.", epilog="Example: walrq dlq list mail", no_args_is_help=True)
    group.command("list", epilog="Example: walrq dlq list mail --where reason=failed")(list_dead)
    group.command("replay", epilog="Example: walrq dlq replay mail --where error_type=TimeoutError --dry-run")(replay)
    group.command("purge", epilog="Example: walrq dlq purge mail --where reason=rejected --yes")(purge)
    app.add_typer(group, name="dlq")


def list_dead(
    queue: QueueArgument,
    limit: Annotated[int, typer.Option("--max", min=1, help="At most so many.")] = 10,
    where_: WhereOption = None,
    json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Messages of QUEUE that died, in order of death."""
    filters = where(where_)
    with open_client(server, session=False) as client:
        if "ids" in filters:
            raise typer.BadParameter("id=... is for replay and purge; a listing shows them all")
        found = client.list_dead(queue, limit, **filters)
    if json:
        for each in found:
            output.json_line(output.seen_value(each))
        return
    rows = []
    for each in found:
        last = each.history[-1] if each.history else None
        error = f"{last.error_type or ''}: {last.error_text or ''}".strip(": ") if last else ""
        rows.append((each.message_id, each.died_at, each.reason, each.attempts, error, output.preview(each.payload)))
    output.table(("message", "died", "reason", "attempts", "last error", "payload"), rows)


def replay(
    queue: QueueArgument,
    limit: Annotated[int | None, typer.Option("--max", min=1, help="At most so many.")] = None,
    target: Annotated[
        str | None, typer.Option("--to", metavar="QUEUE", help="Another queue than the one they died in.")
    ] = None,
    where_: WhereOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many.")] = False,
    json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Send dead messages of QUEUE back to it, behind what waits there; their attempts start anew."""
    with open_client(server) as client:
        moved = client.redrive(queue, limit, target=target, dry_run=dry_run, **where(where_))
    if json:
        output.json_line({"moved": 0 if dry_run else moved.count, "matching": moved.count, "more": moved.more})
    elif moved.count:
        verb = "would move" if dry_run else "moved"
        print(f"{verb} {moved.count}{' or more' if dry_run and moved.more else ''}")


def purge(
    queue: QueueArgument,
    where_: WhereOption = None,
    yes: YesOption = False,
    server: ServerOption = None,
) -> None:
    """Remove dead messages of QUEUE for good."""
    filters = where(where_)
    confirm(f"Remove the {'matching ' if filters else ''}dead messages of {queue}?", yes)
    with open_client(server) as client:
        count = client.purge_dead(queue, **filters)
    if count:
        print(f"removed {count}")
