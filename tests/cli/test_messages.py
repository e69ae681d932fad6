"""Commands on messages, as a shell sees them: output, exit status, pipes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import socket
from datetime import datetime
from pathlib import Path

import pytest

from tests.cli.conftest import Shell, make_shell, text_of
from tests.forks.nodes import Node


def values(output: bytes) -> list[dict[str, object]]:
    """One JSON value per line."""
    return [json.loads(line) for line in output.splitlines()]


def test_push_prints_ids_and_poll_prints_payloads(shell: Shell) -> None:
    """What goes in comes out, in order, one per line."""
    pushed = shell.walrq("push", "plain", "one", "two words")
    assert (0, 2) == (pushed.returncode, len(pushed.stdout.split()))

    polled = shell.walrq("poll", "plain", "--ack")
    assert (0, b"one\ntwo words\n") == (polled.returncode, polled.stdout)
    assert b"" == shell.walrq("poll", "plain", "--wait", "10ms").stdout


def test_nothing_found_is_no_output_and_no_error(shell: Shell) -> None:
    """Scripts loop over lines: none is none."""
    for arguments in (["poll", "absent"], ["queue", "list", "--prefix", "absent"], ["poll", "absent", "--json"]):
        ran = shell.walrq(*arguments)
        assert (0, b"", b"") == (ran.returncode, ran.stdout, ran.stderr)


def test_json_shows_text_as_text_and_bytes_as_base64(shell: Shell) -> None:
    """Both can be told apart and read back."""
    shell.walrq("push", "json", "--lines", "-", stdin=b"gr\xc3\xbcn\n\xff\x00\n")

    text, raw = values(shell.walrq("poll", "json", "--json").stdout)

    assert "grün" == text["payload"]
    assert "/wA=" == raw["payload_base64"]
    assert "payload" not in raw


def test_receipts_travel_through_a_pipe(shell: Shell) -> None:
    """`poll --json | ack -` is the whole life of a message in a shell."""
    shell.walrq("push", "pipe", "a", "b", "c")
    assert 0 == shell("walrq poll pipe --json | walrq ack -").returncode
    (info,) = values(shell.walrq("queue", "show", "pipe", "--json").stdout)
    assert (0, 0) == (info["ready"], info["leased"])


def test_a_stale_receipt_has_its_own_exit_status(shell: Shell) -> None:
    """4: nothing changed, the lease was over before."""
    shell.walrq("push", "stale", "x")
    polled = shell.walrq("poll", "stale", "--json")
    (message,) = values(polled.stdout)
    receipt = [str(message[name]) for name in ("queue", "message_id", "receipt_handle")]
    assert 0 == shell.walrq("ack", *receipt).returncode

    again = shell.walrq("ack", *receipt)

    assert 4 == again.returncode
    assert 1 == len(again.stderr.splitlines())
    assert 4 == shell.walrq("ack", *receipt[:2], "00" * 28).returncode


def test_nack_reject_shows_in_the_dead_letters_and_replay_brings_it_back(shell: Shell) -> None:
    """A poison message can be put aside, looked at and sent again from the shell."""
    shell.walrq("push", "poison", "x")
    assert 0 == shell("walrq poll poison --json | walrq nack - --mode reject --error 'no route'").returncode
    (dead,) = values(shell.walrq("dlq", "list", "poison", "--json").stdout)
    assert ("rejected", "poison", "x") == (dead["reason"], dead["origin"], dead["payload"])
    dry = shell.walrq("dlq", "replay", "poison", "--where", "reason=rejected", "--dry-run")
    assert b"would move 1\n" == dry.stdout
    assert b"moved 1\n" == shell.walrq("dlq", "replay", "poison", "--where", "error=route").stdout
    assert b"x\n" == shell.walrq("poll", "poison").stdout


def test_cancel_tells_exactly(shell: Shell) -> None:
    """0 when all are gone for good, 1 when one could not be removed, with the reason."""
    identifier = shell.walrq("push", "later", "x", "--delay", "1h").stdout.decode().strip()
    assert 0 == shell.walrq("cancel", "later", identifier).returncode

    again = shell.walrq("cancel", "later", identifier)

    assert 1 == again.returncode
    assert b"is gone" in again.stderr


@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_lines_are_counted_exactly(shell: Shell, tmp_path: Path, ending: bytes) -> None:
    """Empty lines count, a last line without its end counts, line ends are no part of a message."""
    (tmp_path / "file").write_bytes(b"first\r\n\nthird" + ending)
    queue = f"lines-{len(ending)}"

    pushed = shell.walrq("push", queue, "--lines", "file")

    assert f"pushed 3 messages to {queue}\n" == pushed.stdout.decode()
    assert b"first\n\nthird\n" == shell.walrq("poll", queue).stdout


def test_a_long_file_arrives_whole_and_in_order(shell: Shell, tmp_path: Path) -> None:
    """Many batches under way at a time, one order."""
    lines = [f"line {number} {'x' * (number % 50)}" for number in range(30_000)]
    (tmp_path / "file").write_bytes(text_of(lines))

    pushed = shell.walrq("push", "long", "--lines", "file", "--json")
    polled = shell.walrq("poll", "long", "--follow", "--wait", "10ms", "--ack", "--max", "5000")

    assert 30_000 == values(pushed.stdout)[0]["pushed"]
    assert text_of(lines) == polled.stdout


def test_a_live_pipe_is_pushed_as_it_grows(shell: Shell) -> None:
    """`tail -f | walrq push --lines -`: a line does not wait for the next thousand."""
    with shell.popen("push", "live", "--lines", "-") as pushing:
        assert pushing.stdin is not None
        pushing.stdin.write(b"early\n")
        pushing.stdin.flush()
        polled = shell.walrq("poll", "live", "--wait", "30", "--ack")
        assert b"early\n" == polled.stdout
        assert None is pushing.poll()
        out, _ = pushing.communicate(b"late\n")

    assert b"pushed 2 messages to live\n" == out


def test_a_reader_that_has_enough_ends_the_command_quietly(shell: Shell) -> None:
    """`| head` is not an error."""
    shell.walrq("push", "head", "--lines", "-", stdin=text_of([f"{n:0100}" for n in range(5_000)]))

    ran = shell("walrq poll head --max 5000 | head -n 1")

    assert (0, f"{0:0100}\n".encode(), b"") == (ran.returncode, ran.stdout, ran.stderr)


def test_ctrl_c_ends_a_follower_without_a_word(shell: Shell) -> None:
    """No traceback, at most a line end after the ^C; 130 as every shell knows it; what is printed is
    acknowledged."""
    shell.walrq("push", "follow", "x")
    with shell.popen("poll", "follow", "--follow", "--ack") as following:
        assert following.stdout is not None
        assert b"x\n" == following.stdout.readline()
        following.send_signal(signal.SIGINT)
        _, err = following.communicate()

    assert (130, b"") == (following.returncode, err.strip())


def test_a_touched_message_stays_leased(shell: Shell) -> None:
    """Work that takes longer keeps its message."""
    shell.walrq("push", "touch", "x")
    assert 0 == shell("walrq poll touch --visibility 5 --json | walrq touch - --visibility 10m").returncode
    (seen,) = values(shell.walrq("peek", "touch", "--state", "leased", "--json").stdout)
    assert float(str(seen["lease_left_s"])) > 500


def test_progress_is_for_a_terminal_only(shell: Shell, tmp_path: Path) -> None:
    """A bar on standard error while somebody looks; a log file gets none of it."""
    (tmp_path / "file").write_bytes(text_of([str(number) for number in range(5_000)]))
    quiet = shell.walrq("push", "bar", "--lines", "file")
    here, there = pty.openpty()
    with os.fdopen(here, "rb", buffering=0) as terminal:
        with shell.popen("push", "bar", "--lines", "file", stderr=there) as pushing:
            os.close(there)
            shown = b""
            # Linux reports the end of a terminal whose last writer is gone as an error.
            with contextlib.suppress(OSError):
                while piece := terminal.read(65536):
                    shown += piece
            out, _ = pushing.communicate()

    assert (0, b"") == (quiet.returncode, quiet.stderr)
    assert b"pushed 5000 messages to bar\n" == quiet.stdout == out
    assert b"5,000 messages" in shown


def test_ctrl_c_ends_a_push_of_lines_with_what_is_certain(shell: Shell, tmp_path: Path) -> None:
    """One line, no traceback, no empty line; what it says is there, and later lines of the pipe are not."""
    (tmp_path / "lines").write_bytes(text_of([str(number) for number in range(2_000)]))
    with shell.popen("push", "cut", "--lines", "-") as pushing:
        assert pushing.stdin is not None
        pushing.stdin.write((tmp_path / "lines").read_bytes())
        pushing.stdin.flush()
        assert b"0\n" == shell.walrq("poll", "cut", "--wait", "30", "--max", "1").stdout
        pushing.send_signal(signal.SIGINT)
        out, err = pushing.communicate()

    found = re.fullmatch(rb"walrq: (\d+) lines are in cut for certain\n", err)
    assert found is not None, err
    (info,) = values(shell.walrq("queue", "show", "cut", "--json").stdout)
    assert (130, b"") == (pushing.returncode, out)
    assert int(found[1]) <= int(str(info["ready"])) + int(str(info["leased"])) <= 2_000


@pytest.mark.parametrize("reader", ["terminal", "log"])
def test_an_outage_is_said_while_following(tmp_path: Path, reader: str) -> None:
    """Whoever looks, or reads the log later, is told who is waited for, and when it is back: a plain line each."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with Node(tmp_path / "data", listen=f"127.0.0.1:{port}") as node:
        node.start()
        shell = make_shell(tmp_path, node.url)
        here, there = pty.openpty() if reader == "terminal" else os.pipe()
        with os.fdopen(here, "rb", buffering=0) as said:
            shell.walrq("queue", "create", "late")
            with shell.popen("poll", "late", "--follow", "--ack", stderr=there) as following:
                os.close(there)
                assert following.stdout is not None
                shell.walrq("push", "late", "one")
                assert b"one\n" == following.stdout.readline()
                node.kill()
                assert f"walrq: waiting for 127.0.0.1:{port} ..." == said.readline().decode().rstrip()
                node.start()
                assert f"walrq: 127.0.0.1:{port} is back" == said.readline().decode().rstrip()
                following.send_signal(signal.SIGINT)
                following.communicate()

    assert 130 == following.returncode


def test_peek_says_when_messages_are_due_and_how_long_they_are_leased(shell: Shell) -> None:
    """In a column behind those of every state: nothing that a script cuts out moves."""
    shell.walrq("push", "when", "later", "--delay", "1h")
    shell.walrq("push", "when", "x", "y")
    shell.walrq("poll", "when", "--max", "1", "--visibility", "1h")

    (seen,) = values(shell.walrq("peek", "when", "--state", "delayed", "--json").stdout)
    rows = {
        state: shell.walrq("peek", "when", "--state", state).stdout.decode().rstrip("\n").split("\t")
        for state in ("ready", "delayed", "leased")
    }

    assert ["ready", "delayed", "leased"] == [row[1] for row in rows.values()]
    assert ["y", "later", "x"] == [row[5] for row in rows.values()]
    due = datetime.fromisoformat(str(seen["due_at"])).isoformat(sep=" ", timespec="seconds")
    assert ([], [due]) == (rows["ready"][6:], rows["delayed"][6:])
    assert re.fullmatch(r"3[56]\d\ds", rows["leased"][6])
    shell.environment["FORCE_COLOR"] = "1"
    for state, columns, title, payload in (
        ("delayed", "80", "due", "later"),
        ("delayed", "100", "due", "later"),
        ("leased", "80", "lease left", "x"),
    ):
        shell.environment["COLUMNS"] = columns
        drawn = re.sub(r"\x1b\[[0-9;]*m", "", shell.walrq("peek", "when", "--state", state).stdout.decode())
        head, row = [line.strip() for line in drawn.splitlines() if line.strip(" ─")]
        assert head.endswith(f"payload  {title}"), drawn
        assert payload in row.split(), "the payload stays readable"
        assert (columns == "100") == (state in row.split())


def test_every_command_says_what_it_did(shell: Shell) -> None:
    """Numbers, zero too, and one word for what has none."""
    later = shell.walrq("push", "words", "x", "--delay", "1h").stdout.decode().strip()
    for arguments, said in (
        (
            ["queue", "create", "words", "visibility_ms=5m", "max_deliveries=2"],
            "words was there already; set 2 settings",
        ),
        (["queue", "pause", "words"], "paused words"),
        (["queue", "resume", "words"], "resumed words"),
        (["move", "words", "elsewhere", "--create"], "moved 0"),
        (["dlq", "replay", "words"], "moved 0"),
        (["dlq", "purge", "words", "--yes"], "removed 0"),
        (["reschedule", "words", later, "--in", "2h"], f"rescheduled {later}"),
        (["cancel", "words", later], f"cancelled {later}"),
        (["queue", "purge", "words", "--yes"], "removed 0"),
    ):
        ran = shell.walrq(*arguments)
        assert (0, f"{said}\n", "") == (ran.returncode, ran.stdout.decode(), ran.stderr.decode())
    (info,) = values(shell.walrq("queue", "show", "words", "--json").stdout)
    assert isinstance(info["settings"], dict)
    assert 300_000 == info["settings"]["visibility_ms"]
    assert b"deleted words with 0 messages\n" == shell.walrq("queue", "delete", "words", "--yes").stdout


def test_a_death_report_names_the_worker(shell: Shell) -> None:
    """The one that was given."""
    shell.walrq("push", "named", "x")
    shell("walrq poll named --worker bob --json | walrq nack - --mode reject")
    (dead,) = values(shell.walrq("dlq", "list", "named", "--json").stdout)

    assert isinstance(dead["history"], list)
    assert "bob" == dead["history"][-1]["worker"]


def test_a_poll_that_a_stopping_node_ends_says_so_at_a_terminal(tmp_path: Path) -> None:
    """Nothing came, and not because the time was over."""
    with Node(tmp_path / "data") as node:
        node.start()
        here, there = pty.openpty()
        with os.fdopen(here, "rb", buffering=0) as terminal:
            shell = make_shell(tmp_path, node.url)
            shell.walrq("queue", "create", "early")
            with shell.popen("poll", "early", "--wait", "50", stderr=there) as polling:
                os.close(there)
                while b"\t1\t" not in shell(r"walrq stats | grep '^parked_polls' | tr '\n' '\t'").stdout:
                    assert None is polling.poll()
                node.stop()
                said = terminal.readline()
                out, _ = polling.communicate()

    assert b"walrq: the server ended the poll early: it is stopping\r\n" == said
    assert (0, b"") == (polling.returncode, out)
