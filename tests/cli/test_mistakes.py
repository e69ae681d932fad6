"""First mistakes: one helpful line, a stable exit status, no traceback."""

from __future__ import annotations

import ast
import re
import socket
import sys
from pathlib import Path

import pytest

import walrq
import walrq.cli
from tests.cli.conftest import Shell, make_shell
from tests.requirements import require


def one_line(output: bytes) -> str:
    """The only line; a traceback or a box of several is a failure."""
    lines = output.decode().splitlines()
    assert 1 == len(lines), output.decode()
    return lines[0]


@pytest.fixture
def lonely(tmp_path: Path) -> Shell:
    """A shell whose server is not there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    return make_shell(tmp_path, f"walrq://127.0.0.1:{port}")


def test_no_server(lonely: Shell) -> None:
    """The first mistake of all names the way out."""
    ran = lonely.walrq("push", "mail", "x")

    line = one_line(ran.stderr)
    assert 5 == ran.returncode
    assert "walrq serve" in line
    assert "WALRQ_SERVER" in line
    assert "--server" in line


def test_a_port_of_something_else(lonely: Shell) -> None:
    """An HTTP server's port is called by its name."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with lonely.popen("push", "mail", "x", "--server", f"walrq://127.0.0.1:{port}") as pushing:
            sock, _ = listener.accept()
            with sock:
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            _, err = pushing.communicate()

    assert 7 == pushing.returncode
    assert "HTTP" in one_line(err)


@pytest.mark.parametrize("url", ["http://localhost", "walrq://", "walrq://host:port", "walrq://h:0", "walrq://h/path"])
def test_an_address_that_is_none(lonely: Shell, url: str) -> None:
    """The form that is expected is shown."""
    ran = lonely.walrq("queue", "list", "--server", url)

    assert 78 == ran.returncode
    assert "walrq://" in one_line(ran.stderr)


@pytest.mark.parametrize(
    ("arguments", "status", "hint"),
    [
        (["queue", "show", "mial"], 3, "did you mean 'mail'"),
        (["queue", "set", "mail", "visibilty_ms=5"], 1, "did you mean visibility_ms"),
        (["queue", "set", "mail", "visibility_ms=soon"], 1, "visibility_ms"),
        (["queue", "set", "mail", "visibility_ms"], 2, "name=value"),
        (["push", "mail", "x", "--delay", "31d"], 1, "30 days"),
        (["push", "mail", "x", "--delay", "soon"], 2, "no duration"),
        (["push", "mail", "x", "--priority", "256"], 2, "255"),
        (["push", "mail"], 2, "PAYLOAD"),
        (["push"], 2, "QUEUE"),
        (["push", "", "x"], 1, "queue name"),
        (["push", "mail"], 2, "--lines -"),
        (["push", "mail", "-x"], 2, "put -- before"),
        (["queue", "set", "mail", "dlq="], 2, "dlq=none"),
        (["queue", "delete", "nosuch"], 3, "nosuch"),
        (["psuh", "mail"], 2, "No such command 'psuh'. Did you mean push?"),
        (["send", "mail", "x"], 2, "Did you mean push?"),
        (["list"], 2, "Did you mean queue list or dlq list or token list or context list?"),
        (["queues"], 2, "Did you mean queue list?"),
        (["--server", "walrq://h", "push", "mail", "x"], 2, "--server goes behind the command: walrq COMMAND --server"),
        (["dlq", "--json", "list", "mail"], 2, "--json goes behind the command: walrq dlq COMMAND --json"),
        (["push", "mail", "-x"], 2, "No such option '-x'; put -- before values that start with a dash. Try"),
        (["--bogus"], 2, "No such option '--bogus'. Try"),
        (["config", "show", "--orgin"], 2, "'--origin'?) Try"),
        (["queue", "set", "mail", "max_deliveries=abc"], 1, "max_deliveries is 'abc'; it must be a whole number"),
        (["queue", "set", "mail", "visibility_ms=x"], 1, "'x'; it must be a whole number of milliseconds"),
        (["queue", "set", "mail", "paused=5"], 1, "paused is 5; it must be true or false"),
        (["queue", "set", "mail", "overflow=panic"], 1, "overflow is 'panic'; it must be one of reject, drop_oldest"),
        (["queue", "set", "mail", "dlq="], 2, "dlq=default sends them to QUEUE.dlq"),
        (["poll", "mail", "--exec", "."], 2, "'.' is a directory"),
        (["queue", "lst"], 2, "Did you mean list or set?"),
        (["nothing-like-it"], 2, "No such command 'nothing-like-it'. Try `walrq --help`"),
        (["queue", "list", "--perfix", "m"], 2, "--prefix"),
        (["queue", "list", "--context", "nosuch"], 78, "there is no context 'nosuch'"),
        (["queue", "list", "--context", "a", "--server", "walrq://h"], 2, "not both"),
        (["context", "add", "a b", "walrq://h"], 2, "letters, digits"),
        (["context", "add", "web", "http://h"], 78, "expected walrq://host:port"),
        (["context", "use"], 2, "--none"),
        (["context", "use", "nosuch"], 78, "walrq context add nosuch"),
        (["config", "show", "--fsync", "sometimes"], 78, "--fsync"),
        (["config", "check", "no-such-file"], 78, "No such file"),
        (["completion", "tcsh"], 2, "'bash', 'zsh', 'fish'"),
        (["dev", "--fresh", "--data-dir", "."], 74, "--fresh removes a data directory of walrq only"),
        (["dev", "--fsync", "sometimes"], 78, "--fsync"),
        (["poll", "mail", "--visibility", "0"], 1, "visibility"),
        (["ack", "mail"], 2, "RECEIPT_HANDLE"),
        (["ack", "mail", "x", "y"], 1, "message id"),
        (["queue", "purge", "mail"], 2, "--yes"),
        (["queue", "delete", "mail"], 2, "--yes"),
        (["dlq", "purge", "mail"], 2, "--yes"),
        (["dlq", "list", "mail", "--where", "color=red"], 2, "reason=..."),
        (["reschedule", "mail", "x"], 2, "--at or --in"),
        (["push", "mail", "--lines", "no-such-file"], 1, "No such file"),
        (["push", "mail", "--lines", "."], 1, "directory"),
        (["wal", "verify", "--data-dir", "no-such-directory"], 74, "no-such-directory"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line_with_the_way_out(shell: Shell, arguments: list[str], status: int, hint: str) -> None:
    """Whatever it is: what was wrong, what is allowed, and the status that the table gives it."""
    shell.walrq("push", "mail", "x")

    ran = shell.walrq(*arguments)

    assert hint in one_line(ran.stderr)
    assert (status, b"") == (ran.returncode, ran.stdout)


def test_a_command_that_is_there_and_cannot_be_run(shell: Shell) -> None:
    """The file is named with what makes it run."""
    (shell.folder / "there.txt").write_text("")

    assert "chmod +x ./there.txt" in one_line(shell.walrq("poll", "mail", "--exec", "./there.txt").stderr)
    assert "write ./there.txt" in one_line(shell.walrq("poll", "mail", "--exec", "there.txt").stderr)


def test_a_backup_that_would_replace_a_file(shell: Shell) -> None:
    """Nobody can be asked in a pipe: the line says that the file is there."""
    (shell.folder / "old.backup").write_text("old")

    assert "old.backup exists" in one_line(shell.walrq("backup", "old.backup").stderr)
    assert "old" == (shell.folder / "old.backup").read_text()


@pytest.mark.parametrize("size", [9_000_000, 20_000_000])
def test_a_payload_beyond_all_bounds_is_called_a_message(shell: Shell, size: int) -> None:
    """Whoever pushed one is not told of batches."""
    ran = shell.walrq("push", "mail", "--stdin", stdin=bytes(size))

    assert re.fullmatch(
        rf"walrq: a message('s payload)? of {size} bytes, at most 8388608 are allowed", one_line(ran.stderr)
    )
    assert 1 == ran.returncode


def test_a_second_ack_is_not_told_of_a_longer_lease_only(shell: Shell) -> None:
    """That the message was acknowledged before is the first thing to think of."""
    shell.walrq("push", "twice", "x")
    leased = shell.walrq("poll", "twice", "--json").stdout
    assert 0 == shell.walrq("ack", "-", stdin=leased).returncode

    again = shell.walrq("ack", "-", stdin=leased)

    assert 4 == again.returncode
    assert "the message was acknowledged or given back before, or its time ran out" in one_line(again.stderr)


def test_a_directory_that_cannot_be_written(lonely: Shell, tmp_path: Path) -> None:
    """The daemon says which, and that is all."""
    require("unprivileged")
    (tmp_path / "locked").mkdir(mode=0o500)

    ran = lonely.walrq("serve", "--data-dir", "locked/data", "--listen", "127.0.0.1:0", "--log-format", "human")

    assert 74 == ran.returncode
    assert "locked" in one_line(ran.stderr)


def test_a_data_directory_that_is_a_file(lonely: Shell, tmp_path: Path) -> None:
    """The daemon says which, and that is all."""
    (tmp_path / "file").write_text("")

    ran = lonely.walrq("serve", "--data-dir", "file", "--listen", "127.0.0.1:0", "--log-format", "human")

    assert 74 == ran.returncode
    assert "file" in one_line(ran.stderr)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--fsync", "sometimes"], "always"),
        (["--max-wal-segment-size", "1000001"], "multiple of 8"),
        (["--listen", "nowhere"], "HOST:PORT"),
        (["--config", "no-such-file"], "no-such-file"),
        (["--max-connections", "0"], "max_connections"),
    ],
    ids=str,
)
def test_a_wrong_setting_of_the_daemon(lonely: Shell, arguments: list[str], hint: str) -> None:
    """Status 78, naming the setting and where it came from."""
    ran = lonely.walrq("serve", *arguments)

    assert 78 == ran.returncode
    assert hint in one_line(ran.stderr)


@pytest.mark.parametrize(
    ("variable", "arguments", "hint"),
    [
        ("WALRQ_FSYNCC", ["serve"], "did you mean WALRQ_FSYNC?"),
        ("WALRQ_DATADIR", ["config", "show"], "did you mean WALRQ_DATA_DIR?"),
        ("WALRQ_SEVER", ["queue", "list"], "did you mean WALRQ_SERVER?"),
        ("WALRQ_CONTXT", ["push", "mail", "x"], "did you mean WALRQ_CONTEXT?"),
    ],
)
def test_a_mistyped_variable(lonely: Shell, variable: str, arguments: list[str], hint: str) -> None:
    """It would silently have no effect: another disk policy, another server."""
    lonely.environment[variable] = "x"

    ran = lonely.walrq(*arguments)

    assert 78 == ran.returncode
    assert hint in one_line(ran.stderr)


def test_who_named_a_server_that_is_not_there(lonely: Shell) -> None:
    """A variable set weeks ago, a context in use: the line says where to look."""
    assert "from WALRQ_SERVER)" in one_line(lonely.walrq("queue", "list").stderr)

    lonely.environment.pop("WALRQ_SERVER")
    lonely.walrq("context", "add", "far", "walrq://127.0.0.1:1", "--use")
    line = one_line(lonely.walrq("queue", "list").stderr)

    assert "127.0.0.1:1" in line
    assert "from context far of " in line


def test_an_old_python_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check comes before any line that an old Python could not read."""
    for module in (walrq, walrq.cli):
        ast.parse(Path(module.__file__ or "").read_text(), feature_version=(3, 7))
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))

    with pytest.raises(SystemExit) as ended:
        walrq.cli.main()

    assert "walrq: Python 3.11 or newer is needed, this is Python 3.9" == ended.value.code
