"""Commands on messages: push poll ack nack touch peek cancel reschedule move."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from walrq.cli import output
from walrq.cli.arguments import (
    F,
    example,
    json_option,
    open_client,
    queue_argument,
    seconds,
    server_option,
)
from walrq.cli.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from walrq.client.blocking import Client
    from walrq.client.messages import Message

# A follower outlives a server that is away for a while: what it leased stays leased to its session.
FOLLOW_TIMEOUT_S: Final = 3600.0
FOLLOW_WAIT_S: Final = 20.0
# An empty answer sooner than this before the end of the wait is not the end of the wait.
EARLY_S: Final = 0.1

_count = click.IntRange(min=1)


# --- in -----------------------------------------------------------------------------------------------------
@click.command(epilog=example("walrq push mail hello 'a second message' --priority 5"))
@queue_argument
@click.argument("payloads", metavar="[PAYLOAD]...", nargs=-1)
@click.option("--lines", metavar="FILE", help="Push every line of FILE; - reads standard input.")
@click.option(
    "--delay", type=seconds, metavar="TIME", help="Time until they can be polled, like 30, 1.5, 250ms, 5m, 2h, 1d."
)
@click.option("--priority", metavar="N", type=click.IntRange(0, 255), default=0, help="0 to 255, higher first.  [0]")
@click.option("--group", metavar="KEY", help="Messages of one group are handed out one after the other.")
@click.option("--ttl", type=seconds, metavar="TIME", help="Drop them when they are not done by then.")
@click.option("--dedup-id", metavar="ID", help="A second push with this id changes nothing (one payload only).")
@json_option
@server_option
def push(
    queue: str,
    payloads: tuple[str, ...],
    lines: str | None,
    delay: float | None,
    priority: int,
    group: str | None,
    ttl: float | None,
    dedup_id: str | None,
    as_json: bool,
    server: str | None,
) -> None:
    """Append messages to QUEUE; they are durable when the command ends.

    Prints their ids, with --lines their number.
    """
    options: dict[str, Any] = {"delay": delay, "priority": priority, "group": group, "ttl": ttl}
    if lines is not None:
        if payloads or dedup_id is not None:
            raise click.UsageError("--lines goes neither with payloads nor with --dedup-id")
        from walrq.cli.feed import push_lines

        push_lines(server, queue, lines, options, as_json=as_json)
        return
    if not payloads:
        piped = "" if sys.stdin.isatty() else "; --lines - reads what is piped in"
        raise click.UsageError(f"give at least one PAYLOAD, or --lines FILE{piped}")
    if dedup_id is not None and len(payloads) > 1:
        raise click.UsageError("--dedup-id goes with one payload")
    # An argument that is no UTF-8 arrives in Python with surrogates in it: the bytes typed are the bytes
    # sent.
    data = [payload.encode(errors="surrogateescape") for payload in payloads]
    ids: Iterable[str]
    with open_client(server) as client:
        if len(data) == 1:
            ids = [client.push(queue, data[0], dedup_id=dedup_id, **options)]
        else:
            ids = client.push_batch(queue, data, **options)
    for each in ids:
        if as_json:
            output.json_line({"queue": queue, "message_id": each})
        else:
            print(each)


# --- out ----------------------------------------------------------------------------------------------------
@click.command(epilog=example("walrq poll mail --max 100 --wait 0.5 --ack"))
@click.argument("queues", metavar="QUEUE...", nargs=-1, required=True)
@click.option(
    "--max", "max_messages", metavar="N", type=click.IntRange(1, 10_000), default=10, help="At most so many.  [10]"
)
@click.option(
    "--visibility", type=seconds, metavar="TIME", help="How long the lease lasts, like 30 or 5m.  [the queue's setting]"
)
@click.option("--wait", type=seconds, metavar="TIME", help="Wait so long for messages.  [0]")
@click.option("--ack", "acknowledge", is_flag=True, help="Take them off the queue once they are printed.")
@click.option("--follow", is_flag=True, help="Go on until nothing came for --wait; without --wait until Ctrl-C.")
@click.option("--worker", metavar="NAME", help="Who works on them, as death reports tell it.  [HOST:PID]")
@json_option
@server_option
def poll(
    queues: tuple[str, ...],
    max_messages: int,
    visibility: float | None,
    wait: float | None,
    acknowledge: bool,
    follow: bool,
    worker: str | None,
    as_json: bool,
    server: str | None,
) -> None:
    """Lease messages and print their payloads, one per line; nothing when there are none.

    They come from the first QUEUE that has some. What is printed stays leased until the lease runs out,
    unless --ack takes it off the queue. With --json the receipt handles are shown that `walrq ack`, `nack`
    and `touch` need.
    """
    changes: dict[str, Any] = {"timeout_s": FOLLOW_TIMEOUT_S} if follow else {}
    if worker is not None:
        changes["worker"] = worker
    step_s = (FOLLOW_WAIT_S if follow else 0.0) if wait is None else wait
    with open_client(server, **changes) as client:
        until = time.monotonic() + step_s
        while True:
            left_s = max(0.0, until - time.monotonic()) if follow else step_s
            found = client.poll(queues, visibility, max_messages, wait=left_s)
            # A node that is stopping answers its polls at once, with nothing.
            early = not found and until - time.monotonic() > EARLY_S
            if found:
                _show(found, as_json)
                if acknowledge:
                    _acknowledge(client, found)
                elif not as_json:
                    output.note(f"leased for {found[0].remaining:.0f} s; --ack takes messages off the queue")
                until = time.monotonic() + step_s
            elif early:
                output.note(f"walrq: the server ended the poll early{'' if follow else ': it is stopping'}")
            elif follow:
                until = time.monotonic() + step_s
            if not follow or (not found and not early and wait is not None):
                return


def _show(messages: list[Message], as_json: bool) -> None:
    with INTERRUPTS.raising():
        for message in messages:
            if as_json:
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
        print(f"walrq: {error}; these messages come again", file=sys.stderr)


# --- giving back --------------------------------------------------------------------------------------------
def _receipt_arguments(command: F) -> F:
    return click.argument("receipt", metavar="QUEUE MESSAGE_ID RECEIPT_HANDLE | -", nargs=-1, required=True)(command)


def _input_line() -> str:
    with INTERRUPTS.raising():
        return sys.stdin.readline()


def _receipts(arguments: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(queue, message id, receipt handle) of each message that is given back."""
    if len(arguments) == 3:
        yield arguments[0], arguments[1], arguments[2]
        return
    if list(arguments) != ["-"]:
        raise click.UsageError("give QUEUE MESSAGE_ID RECEIPT_HANDLE, or - to read lines of `walrq poll --json`")
    for number, line in enumerate(iter(_input_line, ""), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            yield value["queue"], value["message_id"], value["receipt_handle"]
        except (ValueError, KeyError, TypeError):
            raise click.UsageError(f"line {number} of the input is no line of `walrq poll --json`") from None


@click.command(epilog=example("walrq poll mail --json | walrq ack -"))
@_receipt_arguments
@server_option
def ack(receipt: tuple[str, ...], server: str | None) -> None:
    """Messages are done: take them off the queue for good.

    Name one as `walrq poll --json` printed it, or give - to read its lines from standard input.
    """
    with open_client(server) as client:
        for queue, message_id, handle in _receipts(receipt):
            client.ack(queue, message_id, handle)


@click.command(epilog=example("walrq poll mail --json | walrq nack - --delay 5m --error 'no route'"))
@_receipt_arguments
@click.option(
    "--mode",
    type=click.Choice(["release", "fail", "reject"]),
    default="fail",
    help="release: back at once, free; fail: counts, again after the back-off; reject: dead now.  [fail]",
)
@click.option(
    "--delay", type=seconds, metavar="TIME", help="Time until the next attempt, with fail only.  [the queue's back-off]"
)
@click.option("--error", metavar="TEXT", help="Why; kept in the death report.")
@server_option
def nack(
    receipt: tuple[str, ...],
    mode: Literal["release", "fail", "reject"],
    delay: float | None,
    error: str | None,
    server: str | None,
) -> None:
    """Messages were not done; they are named as for `walrq ack`."""
    with open_client(server) as client:
        for queue, message_id, handle in _receipts(receipt):
            client.nack(queue, mode, delay, error, message_id=message_id, receipt_handle=handle)


@click.command(epilog=example("walrq poll mail --json | walrq touch - --visibility 10m"))
@_receipt_arguments
@click.option(
    "--visibility", type=seconds, metavar="TIME", required=True, help="Time from now until the lease ends, like 10m."
)
@server_option
def touch(receipt: tuple[str, ...], visibility: float, server: str | None) -> None:
    """Keep messages leased for longer; they are named as for `walrq ack`."""
    with open_client(server) as client:
        for queue, message_id, handle in _receipts(receipt):
            client.touch(queue, visibility, message_id=message_id, receipt_handle=handle)


# --- pending ------------------------------------------------------------------------------------------------
@click.command(epilog=example("walrq peek mail --state delayed --max 20"))
@queue_argument
@click.option(
    "--state",
    type=click.Choice(["ready", "delayed", "leased", "parked", "dead"]),
    default="ready",
    help="Which messages.  [ready]",
)
@click.option("--max", "limit", metavar="N", type=_count, default=10, help="At most so many.  [10]")
@click.option("--bodies/--no-bodies", default=True, help="Whether payloads are read.  [yes]")
@json_option
@server_option
def peek(queue: str, state: str, limit: int, bodies: bool, as_json: bool, server: str | None) -> None:
    """Look at messages of QUEUE without leasing them.

    In the order in which they were pushed, whatever their priority and group: not the order of delivery.
    """
    with open_client(server, session=False) as client:
        found = client.peek(queue, state, limit, bodies=bodies)
    if as_json:
        for each in found:
            output.json_line(output.seen_value(each))
        return
    rows = [
        (each.message_id, each.state, each.priority, each.attempts, each.pushed_at, output.preview(each.payload))
        for each in found
    ]
    output.table(("message", "state", "priority", "attempts", "pushed", "payload"), rows)


@click.command(epilog=example("walrq cancel mail $(walrq push mail later --delay 1h)"))
@queue_argument
@click.argument("message_ids", metavar="MESSAGE_ID...", nargs=-1, required=True)
@json_option
@server_option
def cancel(queue: str, message_ids: tuple[str, ...], as_json: bool, server: str | None) -> int:
    """Remove messages that nobody has leased. Exit status 1 when one could not be removed."""
    with open_client(server) as client:
        outcomes = client.cancel(queue, message_ids)
    return _report(message_ids, outcomes, as_json, "cancelled")


@click.command(epilog=example("walrq reschedule mail $(walrq push mail later --delay 1h) --in 5m"))
@queue_argument
@click.argument("message_id")
@click.option("--at", metavar="WHEN", help="ISO 8601 with a time zone, or seconds since 1970.")
@click.option("--in", "in_", type=seconds, metavar="TIME", help="Time from now, like 5m.")
@json_option
@server_option
def reschedule(
    queue: str, message_id: str, at: str | None, in_: float | None, as_json: bool, server: str | None
) -> int:
    """Let a message that nobody has leased become due at another time."""
    if (at is None) == (in_ is None):
        raise click.UsageError("give either --at or --in")
    when = _moment(at) if at is not None else time.time() + (in_ or 0.0)
    with open_client(server) as client:
        outcome = client.reschedule(queue, message_id, when)
    return _report([message_id], [outcome], as_json, "rescheduled")


def _moment(text: str) -> float:
    """Seconds since 1970."""
    from datetime import datetime

    try:
        return float(text)
    except ValueError:
        pass  # then it is a date
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{text!r} is neither ISO 8601 nor a number of seconds") from None
    if at.tzinfo is None:
        raise click.UsageError(f"{text!r} has no time zone; add +00:00 for UTC")
    return at.timestamp()


_WORDS: Final = {
    "leased": "is leased: somebody works on it",
    "gone": "is gone: it was done, removed or moved before",
    "unknown": "was never in this queue",
}


def _report(message_ids: Sequence[str], outcomes: Sequence[str], as_json: bool, done: str) -> int:
    """Say what became of each; exit status 1 unless all are done."""
    for message_id, outcome in zip(message_ids, outcomes, strict=True):
        if as_json:
            output.json_line({"message_id": message_id, "outcome": outcome})
        elif outcome != "done":
            print(f"walrq: {message_id} {_WORDS[outcome]}", file=sys.stderr)
        else:
            print(f"{done} {message_id}")
    return 0 if all(outcome == "done" for outcome in outcomes) else 1


@click.command(epilog=example("walrq move mail mail-later --max 100"))
@click.argument("source")
@click.argument("target")
@click.option("--max", "limit", metavar="N", type=click.IntRange(1, 1_000), default=1, help="At most so many.  [1]")
@json_option
@server_option
def move(source: str, target: str, limit: int, as_json: bool, server: str | None) -> None:
    """Move ready messages from the front of SOURCE to the end of TARGET, as one unit."""
    with open_client(server) as client:
        moved = client.move(source, target, limit)
    if as_json:
        output.json_line({"moved": moved.count, "more": moved.more})
    else:
        print(f"moved {moved.count}")


COMMANDS = (push, poll, ack, nack, touch, peek, cancel, reschedule, move)
