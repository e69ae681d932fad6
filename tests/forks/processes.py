"""walrq's commands as processes of a test, forked from one that has imported it already (server.py).

`Walrq` is subprocess.Popen of `python -m walrq`, and `run` is subprocess.run of it, for a fraction of the price: they
are children of this process as always, with process ids, signals, pipes, time-outs and exit statuses. Where a fork
would be something else (another system than Linux, variables that only a starting interpreter reads) a real interpreter
is started; WALRQ_FORKS=0 in the environment makes it the real one everywhere.

A test whose point is the interpreter's start (imports, flags, the installed script) starts one itself.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import inspect
import marshal
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.forks.server import FAILED, IGNORED_ALWAYS, LENGTH, NOT_GIVEN, PID, settled

ROOT: Final = Path(__file__).resolve().parent.parent.parent
COMMAND: Final = Path(__file__).with_name("command.py")
# Read once: the tests' own fixtures take variables of walrq away.
WANTED: Final = sys.platform == "linux" and os.environ.get("WALRQ_FORKS") != "0"
_SUBREAPER: Final = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>


class ForkFailed(Exception):
    """The server could not make a process; it said why on standard error."""


class Forks:
    """A server of this process's own, and how to ask it."""

    def __init__(self) -> None:
        # A name without a file: the kernel forgets it with the socket.
        self.name = f"walrq-tests-{secrets.token_hex(8)}"
        self._lock = threading.Lock()
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.settled = settled(environment)
        self._control, control = socket.socketpair()
        with control, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"\0{self.name}")
            listener.listen(64)
            descriptors = (control.fileno(), listener.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forks.server", *map(str, descriptors)],
                cwd=ROOT,
                env=environment,
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def fork(
        self,
        arguments: Sequence[str],
        environment: Mapping[Any, Any],
        folder: str,
        streams: Sequence[int],
        *,
        new_session: bool,
    ) -> int:
        """The process id of a new child of this process.

        Raises: ForkFailed.
        """
        body = marshal.dumps(
            {
                "arguments": list(arguments),
                "environment": {os.fsencode(name): os.fsencode(value) for name, value in environment.items()},
                "folder": folder,
                "new_session": new_session,
                "ignored": sorted(
                    int(number)
                    for number in signal.valid_signals() - IGNORED_ALWAYS
                    if signal.getsignal(number) is signal.SIG_IGN
                ),
                "umask": NOT_GIVEN,
            }
        )
        with self._lock:
            # What the server forks ends at once, and what that one forked becomes a child of the nearest process above
            # that takes orphans: of this one, for this moment.
            self._take_orphans(True)
            try:
                socket.send_fds(self._control, [LENGTH.pack(len(body))], streams)
                self._control.sendall(body)
                # 0 when the one in between is gone, the process id when the new one is ready: in either order.
                one, other = self._number(), self._number()
            finally:
                self._take_orphans(False)
        if FAILED in (one, other):
            raise ForkFailed
        return one or other

    def close(self) -> None:
        """End the server."""
        self._control.close()
        self._process.wait()

    def _take_orphans(self, wanted: bool) -> None:
        if self._prctl(_SUBREAPER, int(wanted), 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")

    def _number(self) -> int:
        answer = b""
        while len(answer) < PID.size:
            more = self._control.recv(PID.size - len(answer))
            if not more:
                raise ForkFailed("the server is gone")
            answer += more
        number: int = PID.unpack(answer)[0]
        return number


@functools.cache
def forks() -> Forks:
    """This process's server, started when it is first wanted."""
    server = Forks()
    atexit.register(server.close)
    return server


class Walrq(subprocess.Popen[bytes]):
    """One walrq command. Keywords are those of subprocess.Popen.

    Attributes:
        forked: whether it is a fork, not a real interpreter.
    """

    forked = False

    def __init__(self, *arguments: str, **keywords: Any) -> None:
        self._walrq_arguments = arguments
        super().__init__([sys.executable, "-m", "walrq", *arguments], **keywords)

    def _execute_child(self, *given: Any) -> None:
        """Popen's own step between making pipes and having a child; here a fork makes it, where that is the same."""
        step = super()._execute_child  # type: ignore[misc]
        named = inspect.signature(step).bind(*given).arguments
        environment = os.environ if named["env"] is None else named["env"]
        plain = (
            named["preexec_fn"] is None
            and not named["pass_fds"]
            and not named["shell"]
            and named["umask"] < 0
            and named["process_group"] < 0
            and named["gid"] is named["gids"] is named["uid"] is None
        )
        if not (WANTED and plain and settled(environment) == forks().settled):
            step(*given)
            return
        pipes = [named[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        streams = [given if given >= 0 else number for number, given in enumerate((pipes[0], pipes[3], pipes[5]))]
        folder = os.path.abspath(named["cwd"] or os.curdir)
        os.stat(folder)
        self.pid = forks().fork(
            self._walrq_arguments, environment, folder, streams, new_session=named["start_new_session"]
        )
        self.forked = True
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def run(
    *arguments: str, stdin: bytes = b"", timeout: float | None = None, **keywords: Any
) -> subprocess.CompletedProcess[bytes]:
    """One walrq command from its start to its end, its output captured.

    Raises: subprocess.TimeoutExpired, after it was killed.
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Walrq(*arguments, **pipes, **keywords) as process:
        try:
            out, error = process.communicate(stdin, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


def words_of_command() -> str:
    """What a shell script writes for `python -m walrq`."""
    if not WANTED:
        return f'"{sys.executable}" -m walrq'
    return f'"{sys.executable}" -I -S "{COMMAND}" {forks().name}'
