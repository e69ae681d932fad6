"""Commands on messages: push poll ack nack touch peek cancel reschedule move."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import typer

from walrq.cli import output
from walrq.cli.arguments import JsonOption, QueueArgument, ServerOption, duration, open_client

if TYPE_CHECKING:
    from walrq.client.blocking import Client
    from walrq.client.messages import Message

# A follower outlives a server that is away for a while: what it leased stays leased to its session.
FOLLOW_TIMEOUT_S: Final = 3600.0
FOLLOW_WAIT_S: Final = 20.0

ReceiptArguments = Annotated[
    list[str],
    typer.Argument(
        metavar="QUEUE MESSAGE_ID RECEIPT_HANDLE",
        help="As `walrq poll --json` printed them; or `-` to read its lines from standard input.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("push", epilog="Example: walrq push mail hello 'a second message' --priority 5")(push)
    app.command("poll", epilog="Example: walrq poll mail --max 100 --wait 0.5 --ack")(poll)
    app.command("ack", epilog="Example: walrq poll mail --json | walrq ack -")(ack)
    app.command("nack", epilog="Example: walrq poll mail --json | walrq nack - --mode fail --delay 5m --error timeout")(
        nack
    )
    app.command("touch", epilog="Example: walrq poll mail --json | walrq touch - --visibility 10m")(touch)
    app.command("peek", epilog="Example: walrq peek mail --state delayed --max 20")(peek)
    app.command("cancel", epilog="Example: walrq cancel mail $(walrq push mail later --delay 1h)")(cancel)
    app.command(
        "reschedule",
        epilog="Example: walrq reschedule mail $(walrq push mail later --delay 1h) --at 2030-01-31T08:00:00+00:00",
    )(reschedule)
    app.command("move", epilog="Example: walrq move mail mail-later --max 100")(move)


# --- in -----------------------------------------------------------------------------------------------------
def push(
    queue: QueueArgument,
    payloads: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PAYLOAD]...", help="One message each.", show_default=False),
    ] = None,
    lines: Annotated[
        str | None,
        typer.Option("--lines", metavar="FILE", help="One message per line of FILE; - reads standard input."),
    ] = None,
    delay: Annotated[float | None, duration("--delay", help="Time until they can be polled.")] = None,
    priority: Annotated[int, typer.Option(min=0, max=255, help="Higher first.")] = 0,
    group: Annotated[
        str | None, typer.Option(metavar="KEY", help="Messages of a group are handed out one after the other.")
    ] = None,
    ttl: Annotated[float | None, duration("--ttl", help="Drop them when not done by then.")] = None,
    dedup_id: Annotated[
        str | None, typer.Option(metavar="ID", help="A second push with this id changes nothing (one payload only).")
    ] = None,
    json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Append messages to QUEUE; durable when the command ends. Prints their ids, or with --lines their
    number."""
    options: dict[str, Any] = {"delay": delay, "priority": priority, "group": group, "ttl": ttl}
    if lines is not None:
        if payloads or dedup_id is not None:
            raise typer.BadParameter("--lines takes neither payloads nor --dedup-id")
        from walrq.cli.feed import push_lines

        push_lines(server, queue, lines, options, json=json)
        return
    if not payloads:
        raise typer.BadParameter("give at least one PAYLOAD, or --lines FILE")
    if dedup_id is not None and len(payloads) > 1:
        raise typer.BadParameter("--dedup-id goes with one payload")
    # A payload that is no UTF-8 arrives in Python as surrogates: the bytes typed are the bytes sent.
    data = [payload.encode(errors="surrogateescape") for payload in payloads]
    with open_client(server) as client:
        ids: Iterable[str]
        if len(data) == 1:
            ids = [client.push(queue, data[0], dedup_id=dedup_id, **options)]
        else:
            ids = client.push_batch(queue, data, **options)
    for each in ids:
        if json:
            output.json_line({"queue": queue, "message_id": each})
        else:
            print(each)


# --- out ----------------------------------------------------------------------------------------------------
def poll(
    queues: Annotated[list[str], typer.Argument(metavar="QUEUE...", help="The first that has messages is taken from.")],
    max_messages: Annotated[int, typer.Option("--max", metavar="N", min=1, max=10_000, help="At most so many.")] = 10,
    visibility: Annotated[
        float | None, duration("--visibility", help="How long the lease lasts [the queue's setting].")
    ] = None,
    wait: Annotated[float | None, duration("--wait", help="Wait so long for messages.")] = None,
    ack_: Annotated[bool, typer.Option("--ack", help="Acknowledge them once they are printed.")] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Go on until nothing came for --wait; without --wait until Ctrl-C."),
    ] = False,
    json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Lease messages and print their payloads, one per line; nothing when there are none.

    What is printed stays leased to you until the lease runs out, unless --ack takes it off the queue. Use
    --json to see the receipt handles that `walrq ack`, `nack` and `touch` need.
    """
    changes = {"timeout_s": FOLLOW_TIMEOUT_S} if follow else {}
    names = queues if len(queues) > 1 else queues[0]
    step_s = (FOLLOW_WAIT_S if follow else 0.0) if wait is None else wait
    with open_client(server, **changes) as client:
        while True:
            found = client.poll(names, visibility, max_messages, wait=step_s)
            if found:
                _show(found, json)
                if ack_:
                    _acknowledge(client, found)
                elif not json:
                    output.note(f"{len(found)} leased for {found[0].remaining:.0f} s; --ack takes them off the queue")
            if not follow or (not found and wait is not None):
                return


def _show(messages: list[Message], json: bool) -> None:
    for message in messages:
        if json:
            output.json_line(output.message_value(message))
        else:
            output.payload_line(message.payload)
    sys.stdout.flush()


def _acknowledge(client: Client, messages: list[Message]) -> None:
    """Ack; messages whose lease ran out meanwhile are named and come again."""
    from walrq.client.failures import BatchError
    from walrq.errors import ReceiptExpired

    try:
        client.ack(messages)
    except (BatchError, ReceiptExpired) as error:
        print(f"walrq: {error}: they will be handed out again", file=sys.stderr)


# --- giving back --------------------------------------------------------------------------------------------
def _receipts(arguments: list[str]) -> Iterator[tuple[str, str, str]]:
    """(queue, message id, receipt handle) of each message that is given back."""
    if arguments == ["-"]:
        import json

        for number, line in enumerate(sys.stdin, start=1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
                yield value["queue"], value["message_id"], value["receipt_handle"]
            except (ValueError, KeyError, TypeError):
                raise typer.BadParameter(f"line {number} of standard input is no line of `walrq poll --json`") from None
    elif len(arguments) == 3:
        yield arguments[0], arguments[1], arguments[2]
    else:
        raise typer.BadParameter("give QUEUE MESSAGE_ID RECEIPT_HANDLE, or - to read lines of `walrq poll --json`")


def ack(receipt: ReceiptArguments, server: ServerOption = None) -> None:
    """Messages are done: take them off the queue for good."""
    with open_client(server) as client:
        for queue, message_id, handle in _receipts(receipt):
            client.ack(queue, message_id, handle)


def nack(
    receipt: ReceiptArguments,
    mode: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help="release: back at once, free; fail: counts, again after the back-off; reject: dead now.",
        ),
    ] = "fail",
    delay: Annotated[float | None, duration("--delay", help="Time until the next attempt (fail only).")] = None,
    error: Annotated[str | None, typer.Option(metavar="TEXT", help="Why; kept in the death report.")] = None,
    server: ServerOption = None,
) -> None:
    """Messages were not done."""
    how = cast(Literal["release", "fail", "reject"], mode)
    with open_client(server) as client:
        for queue, message_id, handle in _receipts(receipt):
            client.nack(queue, how, delay, error, message_id=message_id, receipt_handle=handle)


def touch(
    receipt: ReceiptArguments,
    visibility: Annotated[float, duration("--visibility", help="Time from now until the lease ends.")],
    server: ServerOption = None,
) -> None:
    """Keep messages leased for longer."""
    with open_client(server) as client:
        for queue, message_id, handle in _receipts(receipt):
            client.touch(queue, visibility, message_id=message_id, receipt_handle=handle)


# --- pending ------------------------------------------------------------------------------------------------
def peek(
    queue: QueueArgument,
    state: Annotated[str, typer.Option(metavar="STATE", help="ready, delayed, leased, parked or dead.")] = "ready",
    limit: Annotated[int, typer.Option("--max", metavar="N", min=1, help="At most so many.")] = 10,
    bodies: Annotated[bool, typer.Option(help="Show payloads.")] = True,
    json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Look at messages of QUEUE without leasing them."""
    with open_client(server, session=False) as client:
        found = client.peek(queue, state, limit, bodies=bodies)
    if json:
        for each in found:
            output.json_line(output.seen_value(each))
        return
    rows = [
        (each.message_id, each.state, each.priority, each.attempts, each.pushed_at, output.preview(each.payload))
        for each in found
    ]
    output.table(("message", "state", "priority", "attempts", "pushed", "payload"), rows)


def cancel(
    queue: QueueArgument,
    message_ids: Annotated[list[str], typer.Argument(metavar="MESSAGE_ID...", help="As `walrq push` printed them.")],
    json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Remove messages that nobody has leased. Exit status 1 when one could not be removed."""
    with open_client(server) as client:
        outcomes = client.cancel(queue, message_ids)
    _report(message_ids, outcomes, json)


def reschedule(
    queue: QueueArgument,
    message_id: Annotated[str, typer.Argument(metavar="MESSAGE_ID", help="As `walrq push` printed it.")],
    at: Annotated[str, typer.Option("--at", metavar="WHEN", help="ISO 8601 with a time zone, or seconds since 1970.")],
    json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Let a message that nobody has leased become due at another time."""
    from datetime import datetime

    try:
        when: datetime | float = float(at)
    except ValueError:
        try:
            when = datetime.fromisoformat(at)
        except ValueError:
            raise typer.BadParameter(f"{at!r} is neither ISO 8601 nor a number of seconds") from None
    with open_client(server) as client:
        outcome = client.reschedule(queue, message_id, when)
    _report([message_id], [outcome], json)


_WORDS: Final = {
    "leased": "is leased: somebody works on it",
    "gone": "is gone: it was done, removed or moved before",
    "unknown": "was never in this queue",
}


def _report(message_ids: list[str], outcomes: list[str], json: bool) -> None:
    failed = False
    for message_id, outcome in zip(message_ids, outcomes, strict=True):
        failed |= outcome != "done"
        if json:
            output.json_line({"message_id": message_id, "outcome": outcome})
        elif outcome != "done":
            print(f"walrq: {message_id} {_WORDS[outcome]}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)


def move(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Queue to take from.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Queue to append to; created if absent.")],
    limit: Annotated[int, typer.Option("--max", metavar="N", min=1, max=1_000, help="At most so many.")] = 1,
    json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Move ready messages from the front of SOURCE to the end of TARGET, as one unit."""
    with open_client(server) as client:
        moved = client.move(source, target, limit)
    if json:
        output.json_line({"moved": moved.count, "more": moved.more})
    elif moved.count:
        print(f"moved {moved.count}")
