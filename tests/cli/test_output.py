"""Tables on narrow terminals, colours where they are wanted, and terminals that lack characters."""

from __future__ import annotations

import json
import os
import pty
import re
import sys
import time
from datetime import UTC, datetime
from typing import cast

import attrs
import pytest

from tests.cli.conftest import Shell
from walrq.cli import output
from walrq.client.blocking import Client


def test_names_of_segments_stay_in_one_piece(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long titles give way before what stands below them."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    titles = ("segment", "first_index", "last_index", "records", "end", "file_bytes", "sealed")

    output.table(titles, [("seg-00000000000000000001.wal", 100_000, 200_000, 100_000, 67_108_000, 67_108_864, False)])

    shown = capsys.readouterr().out
    assert "seg-00000000000000000001.wal" in shown
    assert "67108864" in shown


@pytest.mark.parametrize("columns", ["80", "140"])
def test_message_ids_stay_in_one_piece(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is copied is never broken; payloads give way, one line for each message."""
    identifier = "01JDXYZ0123456789ABCDEFGHJ"
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    rows = [(identifier, datetime.now(UTC), "max_deliveries", 3, "ValueError: " + "e" * 40, "p" * 60)] * 3

    output.table(("message", "died", "reason", "attempts", "last error", "payload"), rows)

    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert 3 == sum(identifier in line for line in shown)
    assert max(map(len, shown)) <= int(columns)
    rule = next(number for number, line in enumerate(shown) if "──" in line)
    assert 3 == sum(bool(line.strip()) for line in shown[rule + 1 :]), "one line each"


@attrs.define
class Connection:
    """Of a client, what an outage is seen by."""

    connected: bool
    endpoint: str = "127.0.0.1:4711"


def test_a_log_has_one_line_for_an_outage_and_one_for_its_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only of one that lasts two seconds, and only of a command that goes on for long."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    connection = Connection(connected=True)
    client = cast(Client, connection)
    following, passing = output.Outage(client, everywhere=True), output.Outage(client)
    heard = []

    short, long = [(0, True), (1, False), (2.9, False), (3, True)], [(4, False), (6.1, False), (9, False)]
    for now, connection.connected in [*short, *long, (10, True), (11, True)]:
        following.look()
        passing.look()
        heard += [(now, line) for line in capsys.readouterr().err.splitlines()]

    assert [(6.1, "walrq: waiting for 127.0.0.1:4711 ..."), (10, "walrq: 127.0.0.1:4711 is back")] == heard


def on_terminal(shell: Shell, *arguments: str) -> str:
    """What a command prints on a terminal."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal, os.fdopen(theirs, "wb", buffering=0) as end:
        with shell.popen(*arguments, stdout=end.fileno()) as process:
            _, err = process.communicate()
        assert (0, b"") == (process.returncode, err)
        end.write(b"\x04")
        seen = b""
        while not seen.endswith(b"\x04"):
            seen += terminal.read(65_536)
    return seen[:-1].decode()


@pytest.mark.parametrize(
    ("environment", "colored"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False),
        ({"TERM": "xterm-256color", "NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
    ids=str,
)
def test_colors_on_a_terminal_can_be_refused(shell: Shell, environment: dict[str, str], colored: bool) -> None:
    """NO_COLOR has the last word; a terminal that cannot gets none."""
    shell.environment.pop("NO_COLOR")
    shell.environment.update(environment)

    seen = on_terminal(shell, "doctor", "--listen", "127.0.0.1:0")

    assert colored == bool(re.search(r"\x1b\[[0-9;]*3[1-7]m", seen))
    assert "good" in seen
    assert environment["TERM"] != "dumb" or "\x1b" not in seen


def test_a_table_is_forced_into_a_pipe(shell: Shell) -> None:
    """For the logs of a build, and for `less -R`; without the word a pipe gets lines for programs."""
    shell.environment.pop("NO_COLOR")
    shell.walrq("push", "forced", "x")
    plain = shell.walrq("queue", "list", "--prefix", "forced").stdout.decode()
    shell.environment["FORCE_COLOR"] = "1"
    drawn = shell.walrq("queue", "list", "--prefix", "forced").stdout.decode()

    assert "forced\t1\t0\t0\t0\t0\t1\n" == plain
    assert "──" in drawn
    assert "\x1b[" in drawn


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_the_output_lacks_are_escaped(shell: Shell, encoding: str) -> None:
    """Other people's payloads and names end no command; JSON stays JSON, and payloads stay bytes."""
    shell.environment["PYTHONIOENCODING"] = encoding
    shell.walrq("push", f"grün-{encoding}", "→ ü")
    peeked = shell.walrq("peek", f"grün-{encoding}")
    value = json.loads(shell.walrq("peek", f"grün-{encoding}", "--json").stdout)
    listed = shell.walrq("queue", "list", "--prefix", "gr")
    shell.environment["FORCE_COLOR"] = "1"
    drawn = shell.walrq("peek", f"grün-{encoding}")

    assert [(0, b"")] * 3 == [(ran.returncode, ran.stderr) for ran in (peeked, listed, drawn)]
    assert b"\\u2192" in peeked.stdout
    assert "→ ü" == value["payload"]
    assert "→ ü\n".encode() == shell.walrq("poll", f"grün-{encoding}").stdout
