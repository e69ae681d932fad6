"""Dead messages from the shell: why they died, what would move, moving them at a rate."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

import walrq
from tests.cli.conftest import Shell
from walrq.api import Attempt
from walrq.cli.dlq import _in_short


def values(output: bytes) -> list[dict[str, Any]]:
    """One JSON value per line."""
    return [json.loads(line) for line in output.splitlines()]


TRACE = "Traceback (most recent call last):\n  File x\nValueError: no route"


def bury(shell: Shell, queue: str, number: int, error: str = TRACE, mode: str = "reject") -> list[str]:
    """So many messages die; their ids."""
    ids = shell.walrq("push", queue, *[f"{queue} {each}" for each in range(number)]).stdout.decode().split()
    shell.walrq("queue", "set", queue, "max_deliveries=1")
    polled = shell.walrq("poll", queue, "--max", str(number), "--worker", "bob", "--json").stdout
    assert 0 == shell.walrq("nack", "-", "--mode", mode, "--error", error, stdin=polled).returncode
    return ids


def test_a_list_shows_the_error_of_a_traceback_and_more_on_demand(shell: Shell) -> None:
    """One line each; a line per attempt with --history; everything with --verbose."""
    first, _ = bury(shell, "why", 2)

    rows = [line.split("\t") for line in shell.walrq("dlq", "list", "why").stdout.decode().splitlines()]
    assert [("rejected", "ValueError: no route", "why 0"), ("rejected", "ValueError: no route", "why 1")] == [
        (row[2], row[4], row[5]) for row in rows
    ]
    attempts = [
        line.split("\t") for line in shell.walrq("dlq", "list", "why", "--history").stdout.decode().splitlines()
    ]
    assert [("rejected", "bob", "ValueError: no route")] * 2 == [tuple(row[2:]) for row in attempts]
    told = shell.walrq("dlq", "list", "why", "--max", "1", "--verbose").stdout.decode()
    assert first in told
    assert "    Traceback (most recent call last):\n      File x\n    ValueError: no route\n" in told


def test_a_lease_that_ran_out_is_the_error_of_its_attempt(shell: Shell) -> None:
    """Nobody was left to name one: the list says at whose hands it was."""
    shell.walrq("push", "slow", "x")
    shell.walrq("queue", "set", "slow", "max_deliveries=1")
    shell.walrq("poll", "slow", "--worker", "bob", "--visibility", "10ms")
    while not (listed := shell.walrq("dlq", "list", "slow")).stdout:
        assert 0 == listed.returncode

    assert ["expired", "1", "lease ran out at worker bob", "x"] == listed.stdout.decode().rstrip().split("\t")[2:]
    assert "lease ran out" == _in_short(Attempt(0, "expired"))


def test_a_pipe_gets_the_whole_error(shell: Shell) -> None:
    """On a terminal a long one is cut, for `grep` it is not."""
    error = "no route to " + "x" * 200
    bury(shell, "long", 1, error)

    assert error in shell.walrq("dlq", "list", "long").stdout.decode()
    assert error in shell.walrq("dlq", "list", "long", "--history").stdout.decode()
    shell.environment["FORCE_COLOR"] = "1"
    assert error not in shell.walrq("dlq", "list", "long").stdout.decode()


def test_one_dead_message_is_shown_in_full(shell: Shell) -> None:
    """By id, or the one that died last; its payload as it is, for a pipe."""
    first, last = bury(shell, "one", 2)

    assert first in shell.walrq("dlq", "show", "one", first).stdout.decode().splitlines()[0]
    assert last in shell.walrq("dlq", "show", "one").stdout.decode().splitlines()[0]
    assert b"one 0" == shell.walrq("dlq", "show", "one", first, "--payload").stdout
    (value,) = values(shell.walrq("dlq", "show", "one", first, "--json").stdout)
    assert (first, TRACE, "bob") == (
        value["message_id"],
        value["history"][0]["error_text"],
        value["history"][0]["worker"],
    )
    absent = shell.walrq("dlq", "show", "one", "00000000000000000000000000")
    assert (1, b"") == (absent.returncode, absent.stdout)
    assert b"is not among the dead messages of one" in absent.stderr
    shell.walrq("push", "healthy", "x")
    assert (0, b"") == (lambda ran: (ran.returncode, ran.stdout))(shell.walrq("dlq", "show", "healthy"))


def test_a_task_is_shown_as_the_call_that_it_is(shell: Shell) -> None:
    """In the lists and in full; its error once, without the module that a traceback names."""
    trace = "no room\n\nTraceback (most recent call last):\n  File x\napp.errors.NoRoom: no room"
    with walrq.connect(shell.environment["WALRQ_SERVER"]) as client:
        call = b"\x82\x81\x6aletter.txt\xa0"
        client.push("tasks", call, headers={"walrq-task": "resize"})
        client.push("tasks", b"plain", headers={"walrq-task": "resize"})
        peeked = shell.walrq("peek", "tasks").stdout.decode().splitlines()
        request = client.poll("tasks", max_messages=1)
        client.nack(request, "reject", error=type("NoRoom", (Exception,), {})("no room"))
        request = client.poll("tasks", max_messages=1)
        client.nack(request, "reject", error=trace)
    rows = [line.split("\t") for line in shell.walrq("dlq", "list", "tasks").stdout.decode().splitlines()]

    assert ['resize("letter.txt")', "plain"] == [line.split("\t")[-1] for line in peeked]
    assert ['resize("letter.txt")', "plain"] == [row[5] for row in rows]
    assert "NoRoom: no room" == rows[0][4]
    assert f'{len(call)} bytes: resize("letter.txt")' in shell.walrq("dlq", "list", "tasks", "-v").stdout.decode()


@pytest.mark.parametrize(
    ("kind", "last", "expected"),
    [
        ("Reject", "walrq.worker.outcomes.Reject: no such account", "Reject: no such account"),
        ("ValueError", "ValueError: bad", "ValueError: bad"),
        ("ValueError", "ValueError", "ValueError"),
        ("ValueError", "bad", "ValueError: bad"),
        ("Error", "an Error: bad", "Error: an Error: bad"),
        ("Lock", "Locked out", "Lock: Locked out"),
        ("KeyError", "", "KeyError"),
        (None, "bad", "bad"),
    ],
)
def test_an_error_is_named_once(kind: str | None, last: str, expected: str) -> None:
    """Whether its text brings its type along or not."""
    attempt = Attempt(0, "failed", None, kind, f"text\n{last}" if last else "")

    assert expected == _in_short(attempt)


def test_every_filter_works_for_lists_replays_and_purges(shell: Shell) -> None:
    """By id too."""
    first, second, third = bury(shell, "pick", 3)
    bury(shell, "pick", 1, "other", "fail")

    (found,) = values(shell.walrq("dlq", "list", "pick", "--where", f"id={second}", "--json").stdout)
    assert second == found["message_id"]
    several = shell.walrq("dlq", "list", "pick", "--where", f"id={first}", "--where", f"id={third}", "--json").stdout
    assert [first, third] == [each["message_id"] for each in values(several)]
    assert 1 == len(values(shell.walrq("dlq", "list", "pick", "--where", "reason=failed", "--json").stdout))
    assert b"moved 1\n" == shell.walrq("dlq", "replay", "pick", "--where", f"id={second}").stdout
    (purged,) = values(shell.walrq("dlq", "purge", "pick", "--where", "error=other", "--yes", "--json").stdout)
    assert {"queue": "pick", "removed": 1} == purged
    assert [first, third] == [
        each["message_id"] for each in values(shell.walrq("dlq", "list", "pick", "--json").stdout)
    ]


def test_a_dry_run_says_what_died_of_what_and_moves_nothing(shell: Shell) -> None:
    """The table that a person decides by: drawn for people, JSON for programs, one line in a pipe."""
    bury(shell, "dry", 3)
    bury(shell, "dry", 2, "late", "fail")

    assert b"would move 5\n" == shell.walrq("dlq", "replay", "dry", "--dry-run").stdout
    assert b"would move 4\n" == shell.walrq("dlq", "replay", "dry", "--dry-run", "--limit", "4").stdout
    (told,) = values(shell.walrq("dlq", "replay", "dry", "--dry-run", "--json").stdout)
    assert (0, 5, False) == (told["moved"], told["matching"], told["more"])
    assert [("rejected", 3), ("failed", 2)] == [(cause["reason"], cause["count"]) for cause in told["causes"]]
    shell.environment["FORCE_COLOR"] = "1"
    drawn = shell.walrq("dlq", "replay", "dry", "--dry-run").stdout.decode()
    assert "error type" in drawn
    assert drawn.endswith("would move 5\n")
    del shell.environment["FORCE_COLOR"]
    assert 3 == shell.walrq("dlq", "replay", "dry", "--dry-run", "--to", "no-such-queue").returncode
    assert 5 == len(values(shell.walrq("dlq", "list", "dry", "--json").stdout))


def test_a_replay_moves_elsewhere_within_its_limit(shell: Shell) -> None:
    """And says whether more is left."""
    bury(shell, "away", 5)
    shell.walrq("queue", "create", "repair")

    (told,) = values(
        shell.walrq("dlq", "replay", "away", "--to", "repair", "--limit", "3", "--rate", "1000", "--json").stdout
    )
    assert {"moved": 3, "more": True} == told
    assert b"away 0\naway 1\naway 2\n" == shell.walrq("poll", "repair").stdout


def test_ctrl_c_stops_a_replay_at_once_and_what_moved_is_exact(shell: Shell) -> None:
    """In the pause before the next unit, which would be a quarter of an hour; the rest can be sent later."""
    bury(shell, "stop", 3)
    with shell.popen("dlq", "replay", "stop", "--rate", "0.001") as replaying:
        while not shell.walrq("peek", "stop").stdout:
            assert None is replaying.poll()
        replaying.send_signal(signal.SIGINT)
        out, err = replaying.communicate()

    assert (130, b"") == (replaying.returncode, out)
    assert b"walrq: stopped: moved 1; the rest stays dead\n" == err
    assert b"moved 2\n" == shell.walrq("dlq", "replay", "stop").stdout
