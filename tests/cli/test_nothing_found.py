"""A look that finds nothing says why to a person at a terminal, and is silent in a pipe."""

from __future__ import annotations

import json
import signal

import pytest

from tests.cli.conftest import Shell
from tests.cli.test_dead import bury, values


@pytest.mark.parametrize(
    "arguments",
    [("poll", "malix"), ("poll", "malix", "--wait", "10ms"), ("poll", "malix", "--follow", "--wait", "10ms")],
    ids=" ".join,
)
def test_a_poll_of_a_queue_that_is_not_there_says_so_once(shell: Shell, arguments: tuple[str, ...]) -> None:
    """It waits for the queue, so it is no error; the name that may be meant is named."""
    shell.walrq("push", "malik", "x")

    assert (0, b"", "walrq: there is no queue 'malix'; did you mean 'malik'?\n") == shell.seen(*arguments)
    piped = shell.walrq(*arguments)
    assert (0, b"", b"") == (piped.returncode, piped.stdout, piped.stderr)


def test_a_follower_hears_at_once_that_there_is_no_queue(shell: Shell) -> None:
    """Before it has waited."""
    status, out, said = shell.seen("poll", "zzzz-unlike-any", "--wait", "10ms", "--exec", "cat")
    assert (0, b"") == (status, out)
    assert "walrq: there is no queue 'zzzz-unlike-any' yet; its first push makes it\n" == said


def test_an_empty_poll_says_where_the_messages_are(shell: Shell) -> None:
    """Forgotten acks are the usual reason."""
    shell.walrq("push", "fa", "one", "two")
    shell.walrq("push", "fa", "later", "--delay", "1h")
    shell.walrq("poll", "fa")

    assert (0, b"", "walrq: nothing is ready in fa: 1 delayed, 2 leased\n") == shell.seen("poll", "fa")
    assert (0, b"", "walrq: nothing is ready in fa: 1 delayed, 2 leased\n") == shell.seen("poll", "fa", "--exec", "cat")
    assert (0, b"", b"") == (lambda ran: (ran.returncode, ran.stdout, ran.stderr))(shell.walrq("poll", "fa"))


def test_an_empty_poll_of_a_paused_or_blocked_queue(shell: Shell) -> None:
    """What is ready and cannot be had is counted; a pause is named with its end."""
    shell.walrq("push", "held", "one", "two", "--group", "g")
    shell.walrq("poll", "held", "--max", "1")

    assert "walrq: nothing of held can be leased now: 1 ready, 1 leased\n" == shell.seen("poll", "held")[2]
    shell.walrq("queue", "pause", "held")
    assert "walrq: held is paused; `walrq queue resume held` ends that\n" == shell.seen("poll", "held")[2]
    shell.walrq("queue", "create", "bare")
    assert "walrq: bare is empty\n" == shell.seen("poll", "bare")[2]


def test_an_empty_look_names_the_other_states(shell: Shell) -> None:
    """`peek` and `tail` look at one state; a person is told of the others."""
    shell.walrq("push", "pk", "one", "two")
    shell.walrq("poll", "pk", "--max", "1")

    expected = "walrq: nothing of pk is delayed: 1 ready, 1 leased; --state shows them\n"
    assert (0, b"", expected) == shell.seen("peek", "pk", "--state", "delayed")
    assert (0, b"", expected) == shell.seen("tail", "pk", "--state", "delayed")
    assert "walrq: none of pk is dead\n" == shell.seen("peek", "pk", "--state", "dead")[2]
    shell.walrq("queue", "purge", "pk", "--yes")
    assert "walrq: pk is empty\n" == shell.seen("peek", "pk")[2]
    assert "walrq: pk is empty\n" == shell.seen("tail", "pk")[2]


def test_no_dead_messages(shell: Shell) -> None:
    """None died, or none match the filter."""
    shell.walrq("queue", "create", "lively")
    bury(shell, "dead-pool", 2)

    for command in (("list",), ("show",), ("replay",), ("replay", "--dry-run")):
        assert "walrq: none of lively is dead\n" in shell.seen("dlq", *command, "lively")[2]
    assert (
        "walrq: none of the 2 dead messages of dead-pool match\n"
        == shell.seen("dlq", "list", "dead-pool", "--where", "reason=expired")[2]
    )
    assert b"" == shell.walrq("dlq", "list", "lively").stderr


@pytest.mark.parametrize("target", ["work.dlq", "graves"])
def test_the_dead_are_listed_under_the_queue_that_they_died_in(shell: Shell, target: str) -> None:
    """Who names the dead-letter queue itself is told which name is meant, whatever it is called."""
    queue = "work" if target == "work.dlq" else "toil"
    shell.walrq("queue", "create", queue, f"dlq={target}")
    bury(shell, queue, 1)

    for command in (("list",), ("replay",), ("purge", "--yes")):
        status, _, said = shell.seen("dlq", *command, target)
        assert 0 == status
        assert f"walrq: nothing died in {target} itself; `walrq dlq list {queue}` shows what died in" in said


def test_a_queue_that_dead_messages_were_replayed_to_is_no_dead_letter_queue(shell: Shell) -> None:
    """They remember where they died; it has no say in where those of today go."""
    bury(shell, "away", 1)
    shell.walrq("queue", "create", "repair")
    assert b"moved 1\n" == shell.walrq("dlq", "replay", "away", "--to", "repair").stdout

    assert "walrq: none of repair is dead\n" == shell.seen("dlq", "list", "repair")[2]


def test_a_list_of_no_queues(shell: Shell) -> None:
    """With a prefix that nothing has."""
    assert (0, b"", "walrq: no queue's name begins with 'nobody-'\n") == shell.seen(
        "queue", "list", "--prefix", "nobody-"
    )


def test_a_move_to_a_queue_that_is_not_there_needs_to_be_told(shell: Shell) -> None:
    """A mistyped target would hide the messages; SOURCE is looked at first."""
    shell.walrq("push", "from", "one", "two")
    shell.walrq("push", "target", "x")

    mistyped = shell.walrq("move", "from", "targte")
    assert (3, b"") == (mistyped.returncode, mistyped.stdout)
    assert b"walrq: there is no queue 'targte'; did you mean 'target'? --create makes it\n" == mistyped.stderr
    new = shell.walrq("move", "from", "zzzzzzzz")
    assert b"walrq: there is no queue 'zzzzzzzz'; --create makes it\n" == new.stderr
    assert b"'frmo'" in shell.walrq("move", "frmo", "targte").stderr
    assert b"moved 1\n" == shell.walrq("move", "from", "target").stdout
    assert b"moved 1\n" == shell.walrq("move", "from", "zzzzzzzz", "--create").stdout


def test_create_says_whether_the_queue_was_there(shell: Shell) -> None:
    """In words and for programs."""
    assert b"created fresh\n" == shell.walrq("queue", "create", "fresh").stdout
    assert b"fresh was there already\n" == shell.walrq("queue", "create", "fresh").stdout
    again = shell.walrq("queue", "create", "fresh", "max_deliveries=5", "visibility_ms=5m").stdout
    assert b"fresh was there already; set 2 settings\n" == again
    assert b"created fresher with 1 setting\n" == shell.walrq("queue", "create", "fresher", "max_length=5").stdout
    (value,) = values(shell.walrq("queue", "create", "freshest", "--json").stdout)
    assert {"queue": "freshest", "created": True, "set": {}} == value
    assert b'"created": false' in shell.walrq("queue", "create", "freshest", "--json").stdout


def test_where_the_dead_go_is_never_just_none(shell: Shell) -> None:
    """The default, no other queue, and a queue; `dlq=default` leads back, and programs see what the wire has."""

    def shown() -> tuple[str, str | None]:
        lines = shell.walrq("queue", "show", "mail").stdout.decode().splitlines()
        (row,) = [line.partition("\t")[2] for line in lines if line.startswith("dlq\t")]
        return row, json.loads(shell.walrq("queue", "show", "mail", "--json").stdout)["settings"]["dlq"]

    shell.walrq("queue", "create", "mail")
    assert ("mail.dlq (by default)", None) == shown()
    shell.walrq("queue", "set", "mail", "dlq=none")
    assert ("none (dead messages stay here)", "none") == shown()
    shell.walrq("queue", "set", "mail", "dlq=graves")
    assert ("graves", "graves") == shown()
    assert b"set 1 setting of mail\n" == shell.walrq("queue", "set", "mail", "dlq=default").stdout
    assert ("mail.dlq (by default)", None) == shown()


def test_an_interrupt_while_it_waits_ends_a_follower(shell: Shell) -> None:
    """The note came first; it still ends as it did."""
    with shell.popen("poll", "nobody", "--follow") as following:
        while b"\t1\t" not in shell(r"walrq stats | grep '^parked_polls' | tr '\n' '\t'").stdout:
            assert None is following.poll()
        following.send_signal(signal.SIGINT)
        out, err = following.communicate()

    assert (130, b"", b"") == (following.returncode, out, err)
