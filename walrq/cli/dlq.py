"""`walrq dlq`: messages that died, why they did, and sending them back."""

from __future__ import annotations

import click

from walrq.cli import output
from walrq.cli.arguments import (
    F,
    confirm,
    example,
    json_option,
    open_client,
    queue_argument,
    server_option,
    where,
    yes_option,
)


def _where_option(command: F) -> F:
    return click.option(
        "--where",
        "filters",
        multiple=True,
        metavar="FILTER",
        help="reason=..., error_type=..., error=... (a part of the text), id=...; may be repeated, all must match.",
    )(command)


@click.group(epilog=example("walrq dlq list mail"))
def dlq() -> None:
    """Dead messages of a queue."""


@dlq.command("list", epilog=example("walrq dlq list mail --where reason=failed"))
@queue_argument
@click.option("--max", "limit", metavar="N", type=click.IntRange(min=1), default=10, help="At most so many.  [10]")
@_where_option
@json_option
@server_option
def list_dead(queue: str, limit: int, filters: tuple[str, ...], as_json: bool, server: str | None) -> None:
    """Messages of QUEUE that died, in order of death."""
    wanted = where(filters)
    with open_client(server, session=False) as client:
        found = client.list_dead(queue, limit, **wanted)
    if as_json:
        for each in found:
            output.json_line(output.seen_value(each))
        return
    rows = []
    for each in found:
        last = each.history[-1] if each.history else None
        # The lines below the first are the traceback: --json shows them.
        first_line = (last.error_text or "").partition("\n")[0] if last else ""
        error = f"{last.error_type or ''}: {first_line}".strip(": ") if last else ""
        rows.append((each.message_id, each.died_at, each.reason, each.attempts, error, output.preview(each.payload)))
    output.table(("message", "died", "reason", "attempts", "last error", "payload"), rows)


@dlq.command(epilog=example("walrq dlq replay mail --where error_type=TimeoutError --dry-run"))
@queue_argument
@click.option("--max", "limit", metavar="N", type=click.IntRange(min=1), help="At most so many.  [all]")
@click.option("--to", "target", metavar="QUEUE", help="Another queue than the one they died in.")
@_where_option
@click.option("--dry-run", is_flag=True, help="Only say how many.")
@json_option
@server_option
def replay(
    queue: str,
    limit: int | None,
    target: str | None,
    filters: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    server: str | None,
) -> None:
    """Send dead messages of QUEUE back to it, behind what waits there; their attempts start anew."""
    wanted = where(filters)
    with open_client(server) as client:
        moved = client.redrive(queue, limit, target=target, dry_run=dry_run, **wanted)
    if as_json:
        output.json_line({"moved": 0 if dry_run else moved.count, "matching": moved.count, "more": moved.more})
    else:
        print(f"{'would move' if dry_run else 'moved'} {moved.count}{' or more' if dry_run and moved.more else ''}")


@dlq.command(epilog=example("walrq dlq purge mail --where reason=rejected --yes"))
@queue_argument
@_where_option
@yes_option
@server_option
def purge(queue: str, filters: tuple[str, ...], yes: bool, server: str | None) -> None:
    """Remove dead messages of QUEUE for good."""
    wanted = where(filters)
    confirm(f"Remove the {'matching ' if wanted else ''}dead messages of {queue}?", yes)
    with open_client(server) as client:
        count = client.purge_dead(queue, **wanted)
    print(f"removed {count}")


COMMANDS = (dlq,)
