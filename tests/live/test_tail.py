"""`walrq tail` sees what comes and touches nothing."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import walrq
from tests.forks.nodes import Node
from tests.forks.processes import Walrq
from tests.live.terminal import ROOT, Terminal
from walrq.errors import QueueNotFound
from walrq.limits import PEEK_MESSAGES_MAX
from walrq.live.tail import Step, Tail


def payloads(found: Step | list[walrq.Seen]) -> list[str]:
    """Texts of what was seen."""
    messages = found.messages if isinstance(found, Step) else found
    return [(each.payload or b"").decode() for each in messages]


def everything(client: walrq.Client, queue: str) -> list[Any]:
    """All that can be known of a queue but the time that passes: the log's end, counts, and each message."""
    info = client.show_queue(queue)
    messages = [
        (each.message_id, each.state, each.delivery, each.attempts, each.due_at, each.lease_left > 0, each.history)
        for state in ("ready", "delayed", "leased", "parked", "dead")
        for each in client.peek(queue, state, 1_000)
    ]
    return [client.stats()["commit_index"], info, messages]


def test_looking_changes_neither_count_nor_order_nor_lease(client: walrq.Client) -> None:
    """The log has no entry for it, and every message is as it was, wherever it stands."""
    client.create_queue("touch", max_deliveries=1)
    client.push_batch("touch", [b"dead", b"leased", b"ready", b"ready too"])
    client.push("touch", b"delayed", delay=3600)
    client.push("touch", b"urgent", priority=9)
    leased = client.poll("touch", visibility=600, max_messages=3)
    client.nack(leased[1], "reject", error="no")
    before = everything(client, "touch")
    for state in (None, "ready", "delayed", "leased", "parked", "dead"):
        looking = Tail(client, "touch", state)
        looking.last(10)
        looking.fresh()

    assert before == everything(client, "touch")
    client.ack([leased[0], leased[2]])
    assert [b"ready", b"ready too"] == [each.payload for each in client.poll("touch")]


def test_new_messages_are_seen_once_in_order_whatever_state_they_are_in(client: walrq.Client) -> None:
    """Ready, delayed, or taken by a worker already."""
    client.push("new", b"old")
    looking = Tail(client, "new")
    assert ["old"] == payloads(looking.last(10))
    assert Step() == looking.fresh()
    client.push("new", b"one", priority=1)
    client.poll("new", max_messages=1)
    client.push("new", b"two", delay=60)
    client.push("new", b"three")
    seen = looking.fresh()

    assert ["one", "two", "three"] == payloads(seen)
    assert ["leased", "delayed", "ready"] == [each.state for each in seen.messages]
    assert Step() == looking.fresh()


def test_what_came_and_went_is_counted(client: walrq.Client) -> None:
    """A busy queue looks empty to a peek; the number says that it is not."""
    client.create_queue("gone")
    looking = Tail(client, "gone")
    looking.last(0)
    client.push_batch("gone", [b"x"] * 7)
    for message in client.poll("gone", max_messages=5):
        client.ack(message)
    first = looking.fresh()
    second = looking.fresh()

    assert (2, 5) == (len(first.messages), first.unseen)
    assert Step() == second


def test_moved_messages_are_new_and_hide_no_number_for_long(client: walrq.Client) -> None:
    """They come without being pushed: a quiet look squares the account."""
    client.create_queue("into")
    looking = Tail(client, "into")
    looking.last(0)
    client.push_batch("from", [b"m"] * 3)
    client.move("from", "into", 3)
    assert ["m"] * 3 == payloads(looking.fresh())
    looking.fresh()
    client.push("into", b"x")
    client.ack(client.poll("into", max_messages=10))

    assert 1 == looking.fresh().unseen


@pytest.mark.parametrize("state", [None, "ready", "delayed", "leased"])
def test_the_newest_are_found_in_a_long_queue(client: walrq.Client, state: str | None) -> None:
    """By halving: not by reading all that waits."""
    queue = f"long-{state}"
    for start in range(0, 6_000, 500):
        client.push_batch(queue, [f"{start + number}".encode() for number in range(500)])
    for batch in client.poll_batch(queue, 600, 4_000):
        # Holes: what is acknowledged is not there.
        client.ack(batch.messages()[::2])
    client.push_batch(queue, [f"later {number}".encode() for number in range(3)], delay=3600)
    expected = {
        None: ["5998", "5999", "later 0", "later 1", "later 2"],
        "ready": ["5995", "5996", "5997", "5998", "5999"],
        "delayed": ["later 0", "later 1", "later 2"],
        "leased": ["3991", "3993", "3995", "3997", "3999"],
    }[state]
    requests = client.stats()["requests"]
    found = payloads(Tail(client, queue, state).last(5))

    assert client.stats()["requests"] - requests < 200
    assert expected == found


def test_more_than_a_page_comes_whole_and_in_order(client: walrq.Client) -> None:
    """Nothing is skipped between the pages of different states."""
    client.create_queue("pages")
    looking = Tail(client, "pages")
    looking.last(0)
    total = 2 * PEEK_MESSAGES_MAX + 500
    for start in range(0, total, 500):
        client.push_batch("pages", [f"{start + number}".encode() for number in range(500)])
        client.poll("pages", visibility=600, max_messages=100)
    seen: list[str] = []
    more = True
    while more:
        step = looking.fresh()
        seen += payloads(step)
        more = step.more

    assert [str(number) for number in range(total)] == seen


def test_delayed_messages_are_seen_once_in_order_however_late_they_are_due(client: walrq.Client) -> None:
    """Those that wait on the disk too: a message due next month is no newer than the one that came after it."""
    client.create_queue("late")
    before = [f"old {number}" for number in range(PEEK_MESSAGES_MAX + 200)]
    for number in range(0, len(before), 400):
        client.push_batch("late", [each.encode() for each in before[number : number + 400]], delay=86_400)
    looking = Tail(client, "late", "delayed")
    assert before[-3:] == payloads(looking.last(3))
    assert Step() == looking.fresh()
    expected: list[str] = []
    for number in range(2 * PEEK_MESSAGES_MAX // 50):
        expected += [f"{number} {position}" for position in range(50)]
        client.push_batch("late", [each.encode() for each in expected[-50:]], delay=(60, 3600, 2_592_000)[number % 3])
    seen: list[str] = []
    more = True
    while more:
        step = looking.fresh()
        seen += payloads(step)
        more = step.more

    assert expected == seen
    assert Step() == looking.fresh()


def test_a_queue_made_anew_is_followed_from_its_first_message(client: walrq.Client) -> None:
    """Sequences begin anew with it; while it is away there is nothing."""
    client.push_batch("anew", [b"x"] * 50)
    looking = Tail(client, "anew")
    looking.last(1)
    client.delete_queue("anew")
    assert looking.fresh().gone
    client.push("anew", b"reborn")
    found = payloads(looking.fresh()) + payloads(looking.fresh())

    assert ["reborn"] == found
    assert 0 == looking.fresh().unseen


def test_deaths_are_followed_in_the_dead_letter_queue_and_where_there_is_none(client: walrq.Client) -> None:
    """The dead-letter queue may not be there yet, may be shared, and messages may be parked."""
    client.create_queue("dying", dlq="shared.dlq")
    client.create_queue("other", dlq="shared.dlq")
    looking = Tail(client, "dying", "dead")
    assert [] == looking.last(5)
    assert Step() == looking.fresh()
    for queue in ("dying", "other"):
        client.push(queue, queue.encode())
        client.nack(client.poll(queue), "reject", error=ValueError("bad"))
    seen = list(looking.fresh().messages) + list(looking.fresh().messages)
    assert [("dying", "dead", "rejected")] == [
        ((each.payload or b"").decode(), each.state, each.reason) for each in seen
    ]
    client.set_queue("dying", dlq="none")
    client.push("dying", b"parked")
    client.nack(client.poll("dying"), "reject")

    assert ["parked"] == payloads(looking.fresh())
    assert ["parked"] == payloads(Tail(client, "dying", "parked").last(5))


def test_an_absent_queue_is_an_error_at_first(client: walrq.Client) -> None:
    """A mistyped name is not waited for."""
    with pytest.raises(QueueNotFound):
        Tail(client, "no-such-queue")


def test_the_command_follows_into_a_pipe(node: Node, client: walrq.Client) -> None:
    """As `tail -f | grep` does: each line at once."""
    client.push_batch("piped", [b"one", b"two"])
    command = ["tail", "piped", "-n", "1", "-f", "--json", "--interval", "20ms", "--server", node.url]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with Walrq(*command, stdout=subprocess.PIPE, env=environment) as following:
        assert following.stdout is not None
        assert "two" == json.loads(following.stdout.readline())["payload"]
        client.push("piped", b"three")
        assert "three" == json.loads(following.stdout.readline())["payload"]
        following.terminate()


def test_lines_are_cut_at_the_edge_of_a_terminal(node: Node, client: walrq.Client, tmp_path: Path) -> None:
    """One line for each message; ids whole; what a payload says to a terminal is not said."""
    identifier = client.push("narrow", "\x1b[2J" + "wide 名前 " * 20)
    with Terminal("tail", "narrow", "--server", node.url, folder=tmp_path, columns=60) as terminal:
        assert 0 == terminal.wait()

        (line,) = terminal.output.split("\r\n")[:-1]
        assert identifier in line
        assert "…" == line[-1]
        assert "\x1b[2J" not in line
