"""`walrq poll --exec`: any program as a worker, from the shell."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Shell


def values(output: bytes) -> list[dict[str, Any]]:
    """One JSON value per line."""
    return [json.loads(line) for line in output.splitlines()]


def info(shell: Shell, queue: str) -> dict[str, Any]:
    """Counts of a queue."""
    (found,) = values(shell.walrq("queue", "show", queue, "--json").stdout)
    return found


def test_messages_are_handed_over_and_settled_by_exit_status(shell: Shell) -> None:
    """Output of the commands is the output; what was not done is said and is the exit status."""
    shell.walrq("push", "exec", "done", "bad", "--header", "who=me")
    line = 'read it; echo "$WALRQ_QUEUE $it $WALRQ_HEADER_WHO"; test $it = done || { echo oops >&2; exit 65; }'

    ran = shell.walrq("poll", "exec", "--shell", "--exec", f"{line}")

    assert b"exec done me\nexec bad me\n" == ran.stdout
    assert 1 == ran.returncode
    assert b"rejected: exit status 65: oops" in ran.stderr
    (dead,) = values(shell.walrq("dlq", "list", "exec", "--json").stdout)
    assert ("bad", "CommandFailed", "exit status 65\noops") == (
        dead["payload"],
        dead["history"][0]["error_type"],
        dead["history"][0]["error_text"],
    )
    counts = info(shell, "exec")
    assert (0, 0, 1) == (counts["ready"], counts["leased"], counts["dead"])


def test_a_command_without_a_shell_gets_its_words_as_they_are(shell: Shell) -> None:
    """Nothing is expanded, nothing can be injected; the server is passed on."""
    shell.walrq("push", "words", "x")

    ran = shell.walrq("poll", "words", "--exec", "printf '%s|%s' '$HOME' 'a b'")
    assert (0, b"$HOME|a b") == (ran.returncode, ran.stdout)
    shell.walrq("push", "words", "x")
    assert 0 == shell.walrq("poll", "words", "--exec", "walrq push next handed-on").returncode
    assert b"handed-on\n" == shell.walrq("poll", "next", "--ack").stdout


def test_json_tells_the_outcome_of_each(shell: Shell) -> None:
    """One value per message on standard output, which the commands do not get then."""
    (identifier,) = shell.walrq("push", "told", "x").stdout.decode().split()

    ran = shell.walrq("poll", "told", "--json", "--shell", "--exec", "echo noise; exit 3")
    (told,) = values(ran.stdout)
    assert 0 <= told.pop("seconds")
    assert {
        "queue": "told",
        "message_id": identifier,
        "outcome": "failed",
        "exit_status": 3,
        "error": "exit status 3",
    } == told
    assert b"noise" in ran.stderr
    assert 1 == ran.returncode


def test_nothing_there_is_no_output_and_no_error(shell: Shell) -> None:
    """As without --exec."""
    ran = shell.walrq("poll", "absent", "--exec", "false")

    assert (0, b"", b"") == (ran.returncode, ran.stdout, ran.stderr)


def test_following_ends_when_nothing_came_and_max_counts_all(shell: Shell) -> None:
    """--wait and --max mean what they mean without --exec, for the whole of it."""
    shell.walrq("push", "follow", *"abcde")

    limited = shell.walrq("poll", "follow", "--follow", "--max", "2", "--exec", "cat")
    assert (0, b"ab") == (limited.returncode, limited.stdout)
    rest = shell.walrq("poll", "follow", "--follow", "--wait", "10ms", "--concurrency", "2", "--exec", "cat")
    assert (0, sorted(b"cde")) == (rest.returncode, sorted(rest.stdout))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_releases_what_is_not_done(shell: Shell, tmp_path: Path, number: int, status: int) -> None:
    """The command is gone, the message is back for the next, and it cost no attempt."""
    queue = f"stopped-{number}"
    shell.walrq("push", queue, "x")
    command = "echo $$ > pid; mv pid up; exec sleep 600"
    with shell.popen("poll", queue, "--follow", "--grace", "0", "--shell", "--exec", command) as working:
        while not (tmp_path / "up").exists():
            assert None is working.poll()
            shell("true")
        working.send_signal(number)
        _, err = working.communicate()

    assert status == working.returncode
    assert b"released" in err
    assert b"Traceback" not in err
    assert not Path(f"/proc/{int((tmp_path / 'up').read_text())}").exists()
    (back,) = values(shell.walrq("poll", queue, "--json").stdout)
    assert (2, 0) == (back["delivery"], back["attempts"])


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--shell"], "--shell goes with --exec"),
        (["--concurrency", "2"], "--concurrency goes with --exec"),
        (["--grace", "0"], "--grace goes with --exec"),
        (["--exec", "cat", "--ack"], "leave --ack away"),
        (["--exec", "no-such-command x"], "there is no command 'no-such-command'"),
        (["--exec", "'"], "cannot be split into words"),
        (["--exec", " "], "it is empty"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line(shell: Shell, arguments: list[str], hint: str) -> None:
    """Before anything is leased."""
    ran = shell.walrq("poll", "mail", *arguments)

    assert (2, b"") == (ran.returncode, ran.stdout)
    assert 1 == len(ran.stderr.splitlines())
    assert hint in ran.stderr.decode()
