"""Commands on messages: push poll ack nack touch peek tail cancel reschedule move."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from walrq.cli import output
from walrq.cli.arguments import (
    F,
    complete_queues,
    example,
    json_option,
    open_client,
    queue_argument,
    seconds,
    server_option,
)
from walrq.cli.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from datetime import datetime

    from walrq.client.blocking import Client
    from walrq.client.messages import Message, Seen

# A follower outlives a server that is away for a while: what it leased stays leased to its session.
FOLLOW_TIMEOUT_S: Final = 3600.0
FOLLOW_WAIT_S: Final = 20.0
# An empty answer sooner than this before the end of the wait is not the end of the wait.
EARLY_S: Final = 0.1

MAX_DEFAULT: Final = 10

_count = click.IntRange(min=1)


# --- in -----------------------------------------------------------------------------------------------------
@click.command(epilog=example("walrq push mail hello 'a second message' --priority 5"))
@queue_argument
@click.argument("payloads", metavar="[PAYLOAD]...", nargs=-1)
@click.option("--lines", metavar="FILE", help="Push every line of FILE; - reads standard input.")
@click.option("--json-lines", metavar="FILE", help="Push a JSON object per line, each with options of its own; - too.")
@click.option("--stdin", "whole", is_flag=True, help="Push standard input as one message.")
@click.option(
    "--delay", type=seconds, metavar="TIME", help="Time until they can be polled, like 30, 1.5, 250ms, 5m, 2h, 1d."
)
@click.option("--priority", metavar="N", type=click.IntRange(0, 255), default=0, help="0 to 255, higher first.  [0]")
@click.option("--group", metavar="KEY", help="Messages of one group are handed out one after the other.")
@click.option("--ttl", type=seconds, metavar="TIME", help="Drop them when they are not done by then.")
@click.option("--dedup-id", metavar="ID", help="A second push with this id changes nothing (one payload only).")
@click.option(
    "--header", "headers", metavar="NAME=VALUE", multiple=True, help="Travels with the payload; may be repeated."
)
@click.option("--at", metavar="WHEN", help="Moment from which they can be polled: ISO 8601, or seconds since 1970.")
@click.option("--max-attempts", metavar="N", type=_count, help="Failures before they are dead.  [the queue's setting]")
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
    headers: tuple[str, ...],
    at: str | None,
    max_attempts: int | None,
    json_lines: str | None,
    whole: bool,
    as_json: bool,
    server: str | None,
) -> None:
    """Append messages to QUEUE; they are durable when the command ends.

    Prints their ids, with --lines and --json-lines their number. A JSON line is an object with payload (or
    payload_base64, or json: any value), and what it likes of headers, group, dedup_id, priority, delay, ttl,
    deliver_at, max_attempts; the options of the command are for lines that do not say. Lines of `walrq poll
    --json`, `peek` and `tail` fit.
    """
    if delay is not None and at is not None:
        raise click.UsageError("give --delay or --at, not both")
    options: dict[str, Any] = {
        "delay": delay,
        "priority": priority,
        "group": group,
        "ttl": ttl,
        "deliver_at": None if at is None else moment(at),
        "max_attempts": max_attempts,
    }
    named = _headers(headers)
    sources = [bool(payloads), lines is not None, json_lines is not None, whole]
    if sum(sources) > 1:
        raise click.UsageError("give payloads, --lines, --json-lines or --stdin: one of them")
    if lines is not None or json_lines is not None:
        if dedup_id is not None:
            raise click.UsageError("--dedup-id goes with one payload; a JSON line may have a dedup_id of its own")
        from walrq.cli import feed

        options["headers"] = named
        if lines is not None:
            feed.push_lines(server, queue, lines, options, as_json=as_json)
        else:
            feed.push_lines(server, queue, json_lines or "-", options, as_json=as_json, as_objects=True)
        return
    if not any(sources):
        piped = "" if sys.stdin.isatty() else "; --lines - reads what is piped in, --stdin takes it as one message"
        raise click.UsageError(f"give at least one PAYLOAD, or --lines FILE{piped}")
    if dedup_id is not None and len(payloads) > 1:
        raise click.UsageError("--dedup-id goes with one payload")
    # An argument that is no UTF-8 arrives in Python with surrogates in it: the bytes typed are the bytes
    # sent.
    data = [payload.encode(errors="surrogateescape") for payload in payloads]
    if whole:
        data = [sys.stdin.buffer.read()]
    ids: Iterable[str]
    with open_client(server) as client:
        if len(data) == 1:
            ids = [client.push(queue, data[0], dedup_id=dedup_id, headers=named, **options)]
        else:
            from walrq.client.messages import NewMessage

            ids = client.push_batch(queue, [NewMessage(each, named) for each in data] if named else data, **options)
    for each in ids:
        if as_json:
            output.json_line({"queue": queue, "message_id": each})
        else:
            print(each)


def _headers(texts: Sequence[str]) -> dict[str, str] | None:
    """The headers in several `NAME=VALUE`; None when there are none."""
    found = {}
    for text in texts:
        name, equals, given = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not of the form NAME=VALUE", param_hint="--header")
        found[name] = given
    return found or None


# --- out ----------------------------------------------------------------------------------------------------
@click.command(epilog=example("walrq poll mail --max 100 --wait 0.5 --ack"))
@click.argument("queues", metavar="QUEUE...", nargs=-1, required=True, shell_complete=complete_queues)
@click.option(
    "--max",
    "max_messages",
    metavar="N",
    type=click.IntRange(1, 10_000),
    help="At most so many at a time; with --exec in all.  [10]",
)
@click.option(
    "--visibility", type=seconds, metavar="TIME", help="How long the lease lasts, like 30 or 5m.  [the queue's setting]"
)
@click.option("--wait", type=seconds, metavar="TIME", help="Wait so long for messages.  [0]")
@click.option("--ack", "acknowledge", is_flag=True, help="Take them off the queue once they are printed.")
@click.option("--follow", is_flag=True, help="Go on until nothing came for --wait; without --wait until Ctrl-C.")
@click.option("--exec", "command", metavar="CMD", help="Run CMD for each message, its payload on standard input.")
@click.option("--shell", is_flag=True, help="With --exec: CMD is a line for sh.")
@click.option("--concurrency", metavar="N", type=click.IntRange(1, 1_000), help="With --exec: commands at a time.  [1]")
@click.option(
    "--grace", type=seconds, metavar="TIME", help="With --exec: how long commands may go on after Ctrl-C.  [10]"
)
@click.option("--worker", metavar="NAME", help="Who works on them, as death reports tell it.  [HOST:PID]")
@json_option
@server_option
def poll(
    queues: tuple[str, ...],
    max_messages: int | None,
    visibility: float | None,
    wait: float | None,
    acknowledge: bool,
    follow: bool,
    command: str | None,
    shell: bool,
    concurrency: int | None,
    grace: float | None,
    worker: str | None,
    as_json: bool,
    server: str | None,
) -> int:
    """Lease messages and print their payloads, one per line; nothing when there are none.

    They come from the first QUEUE that has some. What is printed stays leased until the lease runs out,
    unless --ack takes it off the queue. With --json the receipt handles are shown that `walrq ack`, `nack`
    and `touch` need.

    With --exec payloads are not printed: CMD gets each payload on standard input, and WALRQ_QUEUE,
    WALRQ_MESSAGE_ID, WALRQ_DELIVERY, WALRQ_HEADER_NAME and more in its environment. It decides by its exit
    status: 0 done, 65 reject (dead now), 75 release (try again, free of charge), any other is a failure
    with the end of standard error as its reason. Leases are extended while CMD runs; a CMD whose lease is
    lost is ended. On Ctrl-C or SIGTERM running commands have --grace to finish, then they are ended and
    their messages released. Without --follow the exit status is 1 when a message was not done. With --json a
    line for each message says what became of it, and what CMD prints goes to standard error.
    """
    if command is not None:
        if acknowledge:
            raise click.UsageError("--exec acknowledges by itself, by the exit status of CMD: leave --ack away")
        limit = max_messages if follow else max_messages or MAX_DEFAULT
        return _hand_over(
            server,
            worker,
            as_json,
            follow,
            queues=queues,
            command=_words(command, shell),
            concurrency=concurrency or 1,
            limit=limit,
            wait_s=(None if follow else 0.0) if wait is None else wait,
            visibility_s=visibility,
            grace_s=10.0 if grace is None else grace,
            own_output=not as_json,
        )
    for given, name in ((shell, "--shell"), (concurrency, "--concurrency"), (grace is not None, "--grace")):
        if given:
            raise click.UsageError(f"{name} goes with --exec")
    max_messages = max_messages or MAX_DEFAULT
    changes: dict[str, Any] = {"timeout_s": FOLLOW_TIMEOUT_S} if follow else {}
    if worker is not None:
        changes["worker"] = worker
    step_s = (FOLLOW_WAIT_S if follow else 0.0) if wait is None else wait
    with open_client(server, outages_everywhere=follow, **changes) as client:
        if step_s:
            # Whoever waits should know at once what for.
            _note_absent(client, queues)
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
                if not found and not early:
                    _note_nothing(client, queues, absent=not step_s)
                return 0


def _note_absent(client: Client, queues: Sequence[str]) -> None:
    """Tell a terminal which of the queues are not there: a poll waits for them, and they may be mistyped."""
    from walrq.errors import QueueNotFound
    from walrq.live import empty

    if not output.person_reads_notes():
        return
    for queue in queues:
        try:
            client.show_queue(queue)
        except QueueNotFound as error:
            output.note(f"walrq: {empty.absent(error)}")


def _note_nothing(client: Client, queues: Sequence[str], *, absent: bool) -> None:
    """Tell a terminal why a poll got nothing from each of the queues; with `absent` also which are not there."""
    from walrq.errors import QueueNotFound
    from walrq.live import empty

    if not output.person_reads_notes():
        return
    for queue in queues:
        try:
            output.note(f"walrq: {empty.nothing_to_lease(client.show_queue(queue))}")
        except QueueNotFound as error:
            if absent:
                output.note(f"walrq: {empty.absent(error)}")


def _words(command: str, shell: bool) -> tuple[str, ...]:
    """The words to execute."""
    import shlex

    if shell:
        return ("/bin/sh", "-c", command)
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise click.BadParameter(f"{command!r} cannot be split into words: {error}", param_hint="--exec") from None
    if not words:
        raise click.BadParameter("it is empty", param_hint="--exec")
    if shutil.which(words[0]) is None:
        name = words[0]
        if os.path.isdir(name):
            why = f"{name!r} is a directory"
        elif "/" in name and os.path.exists(name):
            why = f"{name!r} is not executable; `chmod +x {shlex.quote(name)}` makes it so"
        elif os.path.exists(name):
            why = f"there is no command {name!r} on the PATH; for the file here write ./{name}"
        else:
            why = f"there is no command {name!r}; add --shell for a line for sh"
        raise click.BadParameter(why, param_hint="--exec")
    return tuple(words)


def _hand_over(server: str | None, worker: str | None, as_json: bool, follow: bool, **plan: Any) -> int:
    """Run a command for each message; the exit status."""
    import trio

    from walrq import aio
    from walrq.live.handover import Handover, Outcome, Plan, Verdict

    def report(outcome: Outcome) -> None:
        if as_json:
            output.json_line(
                {
                    "queue": outcome.queue,
                    "message_id": outcome.message_id,
                    "outcome": outcome.verdict.value,
                    "exit_status": outcome.status,
                    "seconds": round(outcome.seconds, 3),
                    "error": outcome.error or None,
                }
            )
            sys.stdout.flush()
        elif outcome.verdict is not Verdict.ACKED:
            lines = outcome.error.splitlines()
            why = lines[0] if len(lines) < 2 else f"{lines[0]}: {lines[-1]}"
            print(f"walrq: {outcome.message_id} {outcome.verdict.value}: {why}", file=sys.stderr)

    async def run() -> Handover:
        changes: dict[str, Any] = {"timeout_s": FOLLOW_TIMEOUT_S} if follow else {}
        if worker is not None:
            changes["worker"] = worker
        async with aio.connect(server, **changes) as client:
            variables = {} if server is None else {"WALRQ_SERVER": server}
            handover = Handover(client, Plan(variables=variables, **plan), report)
            await handover.run()
        return handover

    waits = bool(follow or plan["wait_s"])
    if waits and output.person_reads_notes():
        with open_client(server, session=False) as looking:
            _note_absent(looking, plan["queues"])
    ended = trio.run(run)
    if not any(ended.done.values()) and ended.status is None and not follow and output.person_reads_notes():
        with open_client(server, session=False) as looking:
            _note_nothing(looking, plan["queues"], absent=not waits)
    if ended.status is not None:
        return ended.status
    return 0 if follow or ended.undone == 0 else 1


def _show(messages: Sequence[Message], as_json: bool) -> None:
    with INTERRUPTS.raising():
        for message in messages:
            if as_json:
                output.json_line(output.message_value(message))
            else:
                output.payload_line(message.payload)
        sys.stdout.flush()


def _acknowledge(client: Client, messages: Sequence[Message]) -> None:
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
@json_option
@server_option
def ack(receipt: tuple[str, ...], as_json: bool, server: str | None) -> int:
    """Messages are done: take them off the queue for good.

    Name one as `walrq poll --json` printed it, or give - to read its lines from standard input. Exit status 4
    when the lease of one was over before; the others are done.
    """
    with open_client(server) as client:
        return _each(receipt, as_json, "acked", client.ack)


def _each(receipt: Sequence[str], as_json: bool, done: str, act: Callable[[str, str, str], None]) -> int:
    """Settle each; those whose lease was over are named, and the others go on."""
    from walrq.errors import ERRORS, Code, ReceiptExpired, ReceiptInvalid

    status = 0
    for queue, message_id, handle in _receipts(receipt):
        outcome = done
        try:
            act(queue, message_id, handle)
        except (ReceiptExpired, ReceiptInvalid) as error:
            outcome, status = "expired", ERRORS[Code.RECEIPT_EXPIRED].exit
            print(f"walrq: {message_id}: {error.text}", file=sys.stderr)
        if as_json:
            output.json_line({"queue": queue, "message_id": message_id, "outcome": outcome})
            sys.stdout.flush()
    return status


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
@json_option
@server_option
def nack(
    receipt: tuple[str, ...],
    mode: Literal["release", "fail", "reject"],
    delay: float | None,
    error: str | None,
    as_json: bool,
    server: str | None,
) -> int:
    """Messages were not done; they are named, and the exit status is, as for `walrq ack`."""
    done = {"release": "released", "fail": "failed", "reject": "rejected"}[mode]
    with open_client(server) as client:

        def act(queue: str, message_id: str, handle: str) -> None:
            client.nack(queue, mode, delay, error, message_id=message_id, receipt_handle=handle)

        return _each(receipt, as_json, done, act)


@click.command(epilog=example("walrq poll mail --json | walrq touch - --visibility 10m"))
@_receipt_arguments
@click.option(
    "--visibility", type=seconds, metavar="TIME", required=True, help="Time from now until the lease ends, like 10m."
)
@json_option
@server_option
def touch(receipt: tuple[str, ...], visibility: float, as_json: bool, server: str | None) -> int:
    """Keep messages leased for longer; they are named, and the exit status is, as for `walrq ack`."""
    with open_client(server) as client:

        def act(queue: str, message_id: str, handle: str) -> None:
            client.touch(queue, visibility, message_id=message_id, receipt_handle=handle)

        return _each(receipt, as_json, "touched", act)


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
    Delayed ones are shown with the time (UTC) when they are due, leased ones with what is left of their lease.
    """
    with open_client(server, session=False) as client:
        found = client.peek(queue, state, limit, bodies=bodies)
        if not found and output.person_reads_notes():
            _note_none(client, queue, state)
    if as_json:
        for each in found:
            output.json_line(output.seen_value(each))
        return
    titles: tuple[str, ...] = SEEN_TITLES
    rows = [_seen_row(each) for each in found]
    if state in ("delayed", "leased"):
        # Behind what every state has: scripts count columns from the left.
        titles += ("due" if state == "delayed" else "lease left",)
        rows = [(*row, _time_of(each)) for row, each in zip(rows, found, strict=True)]
        if output.for_people() and shutil.get_terminal_size().columns < SEEN_COLUMNS:
            # Rather without the state, which was asked for by name, than without the payload.
            titles, rows = titles[:1] + titles[2:], [row[:1] + row[2:] for row in rows]
    output.table(titles, rows)


def _time_of(each: Seen) -> datetime | str | None:
    """When a delayed message is due; what is left of the lease of a leased one."""
    return each.due_at if each.state == "delayed" else f"{each.lease_left:.0f}s"


def _note_none(client: Client, queue: str, state: str | None) -> None:
    """Tell a terminal why a look at a queue that is there found no message."""
    from walrq.live import empty

    if state == "dead":
        output.note(f"walrq: {empty.no_dead(client, queue, filtered=False)}")
    else:
        output.note(f"walrq: {empty.none_in(client.show_queue(queue), state)}")


INTERVAL_S_MIN: Final = 0.01


def _interval(given: str | float) -> float:
    found = seconds(given)
    if not INTERVAL_S_MIN <= found <= 3600:
        raise click.BadParameter(f"{given!r} is not between {INTERVAL_S_MIN} s and 1 h")
    return found


@click.command(epilog=example("walrq tail mail -n 20"))
@queue_argument
@click.option(
    "-n", "number", metavar="N", type=click.IntRange(0, 10_000), default=10, help="The newest N to begin with.  [10]"
)
@click.option("--follow", "-f", is_flag=True, help="Go on with new messages as they come, until Ctrl-C.")
@click.option(
    "--state",
    type=click.Choice(["ready", "delayed", "leased", "parked", "dead"]),
    help="Only those found in this state; dead: as they die.  [all that live]",
)
@click.option("--interval", type=_interval, metavar="TIME", default=0.5, help="Time between two looks.  [500ms]")
@json_option
@server_option
def tail(
    queue: str, number: int, follow: bool, state: str | None, interval: float, as_json: bool, server: str | None
) -> None:
    """Show the newest messages of QUEUE, and with --follow what goes through it, without leasing any.

    Looking changes nothing: no count, no order, no lease. A message that came and was acknowledged between
    two looks is not seen; a terminal is told how many those were.
    """
    from walrq.live.tail import Tail

    changes: dict[str, Any] = {"timeout_s": FOLLOW_TIMEOUT_S} if follow else {}
    with open_client(server, session=False, **changes) as client:
        looking = Tail(client, queue, state)
        found = looking.last(number)
        _show_seen(found, as_json)
        if number and not found and output.person_reads_notes():
            _note_none(client, queue, state)
        was_gone = False
        while follow:
            step = looking.fresh()
            _show_seen(step.messages, as_json)
            if step.unseen:
                what = "1 message" if step.unseen == 1 else f"{step.unseen} messages"
                output.note(f"walrq: {what} came and went between two looks")
            if step.gone and not was_gone:
                output.note(f"walrq: there is no queue {queue} any more; waiting for one")
            was_gone = step.gone
            if not step.more:
                with INTERRUPTS.raising():
                    time.sleep(interval)


def _show_seen(messages: Sequence[Seen], as_json: bool) -> None:
    """One line for each, at once; on a terminal cut to its width."""
    if not messages:
        return
    with INTERRUPTS.raising():
        if as_json:
            for each in messages:
                output.json_line(output.seen_value(each))
        elif output.for_people():
            columns = shutil.get_terminal_size().columns
            for each in messages:
                sys.stdout.write(_cut(_seen_line(each), columns) + "\n")
        else:
            output.table(SEEN_TITLES, map(_seen_row, messages))
        sys.stdout.flush()


SEEN_TITLES: Final = ("message", "state", "priority", "attempts", "pushed", "payload")
# What they take with a column more, and a payload in which something can be read.
SEEN_COLUMNS: Final = 100


def _seen_row(each: Seen) -> tuple[Any, ...]:
    return (each.message_id, each.state, each.priority, each.attempts, each.pushed_at, output.body(each))


def _seen_line(each: Seen) -> str:
    at, state = (each.pushed_at, each.state) if each.died_at is None else (each.died_at, each.reason or each.state)
    return f"{at.astimezone():%H:%M:%S} {each.message_id} {state:8} {output.body(each)}"


def _cut(text: str, columns: int) -> str:
    """The text in at most so many cells of a terminal."""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= columns else set_cell_size(text, columns - 1) + "…"


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
    when = moment(at) if at is not None else time.time() + (in_ or 0.0)
    with open_client(server) as client:
        outcome = client.reschedule(queue, message_id, when)
    return _report([message_id], [outcome], as_json, "rescheduled")


def moment(text: str | float) -> float:
    """Seconds since 1970 from ISO 8601 or a number; a usage error for anything else."""
    from datetime import datetime

    try:
        return float(text)
    except ValueError:
        pass  # then it is a date
    try:
        at = datetime.fromisoformat(str(text))
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


@click.command(epilog=example("walrq move mail mail-later --max 100 --create"))
@click.argument("source", shell_complete=complete_queues)
@click.argument("target", shell_complete=complete_queues)
@click.option("--max", "limit", metavar="N", type=click.IntRange(1, 1_000), default=1, help="At most so many.  [1]")
@click.option("--create", is_flag=True, help="Make TARGET when it is not there.")
@json_option
@server_option
def move(source: str, target: str, limit: int, create: bool, as_json: bool, server: str | None) -> None:
    """Move ready messages from the front of SOURCE to the end of TARGET, as one unit.

    Both must be there, unless --create is given: a mistyped TARGET would hide them.
    """
    from walrq.errors import QueueNotFound

    with open_client(server) as client:
        if not create:
            client.show_queue(source)
            try:
                client.show_queue(target)
            except QueueNotFound as error:
                error.text = (
                    f"{error.text.removesuffix('?')}{'?' if error.text.endswith('?') else ';'} --create makes it"
                )
                raise
        moved = client.move(source, target, limit)
    if as_json:
        output.json_line({"moved": moved.count, "more": moved.more})
    else:
        print(f"moved {moved.count}")


COMMANDS = (push, poll, ack, nack, touch, peek, tail, cancel, reschedule, move)
