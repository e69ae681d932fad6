"""A reader who types what a page says, on a machine of their own: a node, terminals, a Python, a folder.

What belongs to the reader's machine is replaced, and only that:

    walrq                 this checkout's, on a free port: 127.0.0.1:50051 in a page means the page's own node;
                          ports of a cluster in it (50061 to 50099, 50161 to 50199) are free ones as well
                          (short commands are forks of a process that has imported it: tests/forks)
    python, pytest        the interpreter that runs the tests
    pip, pipx, uv, make   do nothing (make checks that the target exists): the environment is there, so is `.venv`
    pkill                 ends processes of this page only, chosen by the same words
    /tmp/                 the page's folder

A page that starts a node itself (`walrq serve`, `walrq dev`, `make run`) gets none, and neither does one that has tests
only; every other page gets a fresh one, in the tests' own process: a hundredth of the work of starting another.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.cli.conftest import ROOT, make_shell, script
from tests.docs.snippets import Command, Snippet, commands, same
from tests.forks.processes import words_of_command
from tests.ports import free_port, free_range
from walrq.testing.server import Server

RUN_LANGUAGES: Final = {"python", "console", "sh"}
COMMAND_S_MAX: Final = 180.0
END_OF_COMMAND: Final = re.compile(r"\x1e(\d+)\x1e\n?")
ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[()][A-Z0-9]|\x1b[=>]")
STARTS_A_NODE: Final = re.compile(r"(walrq (?:\S+ )*?(serve|dev)\b(?!.*--help)|make run\b)")
PORT_IN_PAGES: Final = "127.0.0.1:50051"
CLUSTER_PORTS: Final = re.compile(r"\b50[01][6-9][0-9]\b")
# Commands that change nothing: who does not see yet what the page shows looks again.
LOOKS: Final = re.compile(r"walrq (peek|stats|queue list|queue show|dlq list|dlq show)\b[^|;&]*$")
LOOKS_S_MAX: Final = 30.0
COLUMNS: Final = 118


class Mismatch(AssertionError):
    """A page says one thing and the program another."""


class Terminal:
    """A shell that stays open between commands, its output a terminal's."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._output, slave = pty.openpty()
        self._process = subprocess.Popen(
            ["/bin/sh"],
            stdin=subprocess.PIPE,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env={**environment, "TERM": "xterm", "COLUMNS": str(COLUMNS), "LINES": "40"},
            start_new_session=True,
        )
        os.close(slave)
        self._text = ""
        self._ended = False

    def type(self, command: str) -> None:
        """Send a command; its output is collected by the calls below."""
        assert self._process.stdin is not None
        self._text = ""
        # The command must not read what is typed after it.
        line = f"{{ {command}\n}} </dev/null\nprintf '\\036%s\\036\\n' $?\n"
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()

    def finish(self) -> tuple[int, str]:
        """Wait for the command's end: its exit status and what it printed.

        Raises: Mismatch when it does not end.
        """
        deadline = time.monotonic() + COMMAND_S_MAX
        while not (end := END_OF_COMMAND.search(self._text)):
            if not self._read(deadline):
                raise Mismatch(f"it did not end within {COMMAND_S_MAX:g} s and printed:\n{self.printed}")
        self._text, rest = self._text[: end.start()], self._text[end.end() :]
        printed = self.printed
        self._text = rest
        return int(end[1]), printed

    def wait_for(self, shown: str) -> None:
        """Wait until a command that goes on has printed what the page shows.

        Raises: Mismatch when it does not come.
        """
        deadline = time.monotonic() + COMMAND_S_MAX
        while not same(shown, self.printed):
            if not self._read(deadline):
                raise Mismatch(f"the page shows\n{shown}\nand it printed\n{self.printed}")

    @property
    def printed(self) -> str:
        """What the last command printed so far, as it looks on a terminal without colours."""
        text = ESCAPES.sub("", END_OF_COMMAND.sub("", self._text)).replace("\r\n", "\n")
        return "\n".join(line.rpartition("\r")[2] for line in text.splitlines())

    def _read(self, deadline: float) -> bool:
        left = max(0.0, deadline - time.monotonic())
        if self._ended or not select.select([self._output], [], [], left)[0]:
            return False
        try:
            data = os.read(self._output, 65536)
        except OSError:
            data = b""
        self._ended = not data
        self._text += data.decode(errors="replace")
        self._text = self._text.replace("\x1e\r\n", "\x1e\n")
        return True

    def close(self) -> None:
        """End the shell and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(COMMAND_S_MAX)
        os.close(self._output)


class Interpreter:
    """The Python in which a page's blocks run."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._log = (folder / "python.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", str(ROOT / "tests/docs/page_process.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )

    def run(self, code: str, name: str) -> str:
        """What the block prints.

        Raises: Mismatch when it raises, or does not end.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps({"code": code, "name": name}).encode() + b"\n")
        stdin.flush()
        if not select.select([stdout], [], [], COMMAND_S_MAX)[0]:
            raise Mismatch(f"it did not end within {COMMAND_S_MAX:g} s")
        line = stdout.readline()
        if not line:
            raise Mismatch(f"the interpreter ended with {self._process.wait(COMMAND_S_MAX)}")
        answer = json.loads(line)
        if answer["error"]:
            raise Mismatch(f"it raised\n{answer['error']}\nafter printing\n{answer['printed']}")
        return str(answer["printed"])

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._log.close()


class Reader:
    """Runs the snippets of one page in order. Use as a context manager."""

    def __init__(self, folder: Path, snippets: list[Snippet]) -> None:
        self.folder = folder
        self.snippets = snippets
        self._terminals: dict[str, Terminal] = {}
        self._python: Interpreter | None = None
        self._printed = ""
        self._tests: list[str] = []
        own_node = any(
            STARTS_A_NODE.search(command.text)
            for snippet in snippets
            if snippet.language in ("console", "sh") and snippet.mark != "not run"
            for command in commands(snippet)
        )
        alone = all(each.is_test or each.language not in RUN_LANGUAGES for each in snippets)
        self._server = None if own_node or alone else Server()
        ports = frozenset(int(port) for snippet in snippets for port in CLUSTER_PORTS.findall(snippet.body))
        self._shift = free_range(ports) if ports else 0
        self.address = f"127.0.0.1:{free_port()}" if self._server is None else self._server.address
        self.environment = self._machine()

    def _machine(self) -> dict[str, str]:
        environment = make_shell(self.folder, f"walrq://{self.address}").environment
        programs = self.folder / "bin"
        running = self.folder / ".running"
        running.mkdir()
        script(
            programs / "walrq",
            # The file is named after the process that `exec` keeps, for pkill below.
            f'echo "walrq $*" > "{running}/$$"',
            # `dev` reads no variables.
            'if test "$1" = dev; then shift; set -- dev --listen "$WALRQ_LISTEN" "$@"; fi',
            # Nodes may be killed -9 and started again at once: no process in between that would end a moment later.
            f'case "$1" in serve|dev|cluster) exec "{sys.executable}" -m walrq "$@";; esac',
            f'exec {words_of_command()} "$@"',
        )
        script(
            programs / "python",
            'case "$*" in "-m venv"*) exit 0;; esac',
            f'echo "python $*" > "{running}/$$"',
            f'exec "{sys.executable}" "$@"',
        )
        (programs / "python3").symlink_to(programs / "python")
        script(programs / "pytest", f'exec "{sys.executable}" -m pytest "$@"')
        script(
            programs / "pkill",
            "signal=-TERM; full=; newest=; mine=",
            'while :; do case "$1" in -f) full=1;; -n) newest=1;; -u) mine=$2; shift;; -*) signal=$1;; *) break;; esac',
            "shift; done",
            # A page that would hit everybody's processes is refused.
            'test -n "$full" && test -n "$newest" && test "$mine" = "$(id -u)" || exit 2',
            f'cd "{running}" || exit 1',
            # Children that a killed one leaves behind are its own business, as on any machine.
            'for pid in $(ls -t); do grep -q -e "$1" "$pid" && kill "$signal" "$pid" 2>/dev/null && exit 0; done',
            "exit 1",
        )
        script(
            programs / "make",
            f'grep -q "^$1:" "{ROOT}/Makefile" || exit 2',
            'test "$1" != run || exec walrq serve',
        )
        for name in ("pip", "pipx", "uv"):
            script(programs / name, "exit 0")
        activate = self.folder / ".venv/bin/activate"
        activate.parent.mkdir(parents=True)
        activate.write_text("")
        return environment | {
            "WALRQ_LISTEN": self.address,
            "WALRQ_DATA_DIR": str(self.folder / "walrq-data"),
            "WALRQ_MAX_WAL_SEGMENT_SIZE": "1MiB",
        }

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._python is not None:
            self._python.close()
        for terminal in self._terminals.values():
            terminal.close()
        if self._server is not None:
            self._server.close()

    def run(self) -> int:
        """Do all that the page says; how many blocks were run.

        Raises: Mismatch naming the line.
        """
        done = 0
        for snippet in self.snippets:
            if snippet.mark == "not run":
                continue
            try:
                done += self._do(snippet)
            except Mismatch as mismatch:
                raise Mismatch(f"line {snippet.line}: {mismatch}") from None
        if self._tests:
            self._pytest()
        return done

    def _do(self, snippet: Snippet) -> bool:
        if snippet.mark == "output":
            if not same(self._here(snippet.body), self._printed):
                raise Mismatch(f"the page shows\n{snippet.body}\nand the block before it printed\n{self._printed}")
            return True
        if snippet.mark == "shows":
            if snippet.text not in self._terminals:
                raise Mismatch(f"there is no terminal {snippet.text!r}")
            self._terminals[snippet.text].wait_for(f"...{self._here(snippet.body)}...")
            return True
        if snippet.file_name is not None:
            path = self.folder / snippet.file_name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._here(snippet.body) + "\n")
            if snippet.is_test and path.name.startswith("test_"):
                self._tests.append(path.name)
            return True
        if snippet.language in ("console", "sh"):
            for command in commands(snippet):
                self._type(snippet, command)
            return True
        if snippet.is_test:
            path = self.folder / f"test_line_{snippet.line}.py"
            path.write_text(self._here(snippet.body) + "\n")
            self._tests.append(path.name)
            return True
        if snippet.language == "python":
            if self._python is None:
                self._python = Interpreter(self.folder, self.environment)
            self._printed = self._python.run(self._here(snippet.body), f"line {snippet.line} of the page")
            return True
        return False

    def _here(self, text: str) -> str:
        text = CLUSTER_PORTS.sub(lambda found: str(int(found[0]) + self._shift), text)
        return text.replace(PORT_IN_PAGES, self.address).replace("/tmp/", f"{self.folder}/")

    def _type(self, snippet: Snippet, command: Command) -> None:
        goes_on = snippet.mark == "terminal"
        name = snippet.text if goes_on else ""
        terminal = self._terminals.get(name)
        if terminal is None:
            terminal = self._terminals[name] = Terminal(self.folder, self.environment)
        terminal.type(self._here(command.text))
        shown = None if command.shown is None else self._here(command.shown)
        try:
            if goes_on:
                if STARTS_A_NODE.search(command.text):
                    self._wait_for_node()
                if shown is not None:
                    terminal.wait_for(shown)
                return
            status, printed = terminal.finish()
            look_until = time.monotonic() + LOOKS_S_MAX
            while shown is not None and not same(shown, printed) and LOOKS.match(command.text):
                if time.monotonic() > look_until:
                    break
                terminal.type(self._here(command.text))
                status, printed = terminal.finish()
            if shown is not None and not same(shown, printed):
                raise Mismatch(f"the page shows\n{shown}\nand it printed\n{printed}")
            if shown is None and status != 0:
                raise Mismatch(f"it ended with {status} and printed\n{printed}")
        except Mismatch as mismatch:
            raise Mismatch(f"$ {command.text}\n{mismatch}") from None

    def _wait_for_node(self) -> None:
        host, _, port = self.address.partition(":")
        deadline = time.monotonic() + COMMAND_S_MAX
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
                return
            select.select([], [], [], 0.02)
        raise Mismatch("no node was listening")

    def _pytest(self) -> None:
        """Run the page's tests, all at once: each brings its own server, and most of the time is pytest's start."""
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin_arguments(), *self._tests],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX * 3,
        )
        if ran.returncode != 0:
            raise Mismatch(f"pytest ended with {ran.returncode}:\n{ran.stdout}\n{ran.stderr}")


def plugin_arguments() -> list[str]:
    """Loads the plugin of walrq.testing, also where this checkout is on the path without being installed."""
    return ["-p", "walrq.testing.plugin"]
