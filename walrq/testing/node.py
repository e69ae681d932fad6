"""One real daemon as a child process: start, signal, measure, start again on the same directory.

For end-to-end tests, soaks and benches. Blocking, and Linux only where it reads /proc. It never kills what
it did not start, and never reads a log line for meaning: the readiness line on standard output is the only
thing it waits for.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

READY_S_MAX: Final = 60.0
STOP_S_MAX: Final = 60.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class NodeFailed(Exception):
    """The daemon ended, or stayed silent, before it was ready. The text holds its last words."""


class Node:
    """A `walrq serve` child over one data directory. Use as a context manager: leaving it kills the child.

    Attributes:
        data_dir: what survives restarts.
        flags: further arguments of `walrq serve`.
        log: file that collects standard error over all lives.
        ready: the latest readiness line.
        lives: how often it was started.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        flags: Sequence[str] = (),
        listen: str = "127.0.0.1:0",
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.data_dir = data_dir
        self.flags = tuple(flags)
        self.listen = listen
        self.log = log if log is not None else data_dir.with_name(data_dir.name + ".log")
        self.ready: dict[str, Any] = {}
        self.lives = 0
        self._environment = {**os.environ, **(environment or {})}
        self._prefix = tuple(prefix)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def command(self) -> list[str]:
        """What is executed."""
        serve = ["-m", "walrq", "serve", "--data-dir", str(self.data_dir), "--listen", self.listen]
        return [*self._prefix, sys.executable, *serve, *self.flags]

    def launch(self) -> None:
        """Start the child without waiting for it."""
        assert self._process is None or self._process.poll() is not None, "it still runs"
        self._close_output()
        with self.log.open("ab") as log:
            self._process = self._begin(self._environment, log)
        self.lives += 1

    def wait_ready(self, seconds: float = READY_S_MAX) -> None:
        """Block until the readiness line came.

        Raises: NodeFailed.
        """
        process = self.process
        assert process.stdout is not None
        line = b""
        deadline = time.monotonic() + seconds
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            readable, _, _ = select.select([process.stdout], [], [], max(0.0, left))
            data = os.read(process.stdout.fileno(), 65536) if readable else b""
            if not data:
                why = "said nothing" if not readable else f"ended with {self._end_of(process)}"
                raise NodeFailed(f"the node {why} before it was ready: {self.last_words()}")
            line += data
        self.ready = json.loads(line)

    def start(self, seconds: float = READY_S_MAX) -> Node:
        """Start the child and wait until it is ready.

        Raises: NodeFailed.
        """
        self.launch()
        self.wait_ready(seconds)
        return self

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The current child."""
        assert self._process is not None, "it was never started"
        return self._process

    @property
    def pid(self) -> int:
        """Process id of the daemon itself (not of a tracer in front of it)."""
        if self._prefix:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            if children:
                return int(children[0])
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether the child is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the native door."""
        host, _, port = self.ready["endpoints"]["cbor"].rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def url(self) -> str:
        """What `walrq.connect` takes."""
        return f"walrq://{self.ready['endpoints']['cbor']}"

    def signal(self, number: int) -> None:
        """Send a signal to the daemon."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9, and wait until it is gone. Nothing happens when it is gone already."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._process.wait(STOP_S_MAX)
        self._close_output()

    def wait(self, seconds: float = STOP_S_MAX) -> int:
        """Wait for the child's end and return its exit status.

        Raises: subprocess.TimeoutExpired.
        """
        status = self.process.wait(seconds)
        self._close_output()
        return status

    def stop(self, seconds: float = STOP_S_MAX) -> int:
        """SIGTERM, and wait for the exit status.

        Raises: subprocess.TimeoutExpired.
        """
        self.signal(signal.SIGTERM)
        return self.wait(seconds)

    def last_words(self, size: int = 2000) -> str:
        """The end of the log."""
        with contextlib.suppress(FileNotFoundError):
            return self.log.read_bytes()[-size:].decode(errors="replace").strip()
        return ""

    def rss_bytes(self) -> int:
        """Resident memory now."""
        return _status_kib(self.pid, "VmRSS") * 1024

    def rss_bytes_max(self) -> int:
        """Highest resident memory of this life."""
        return _status_kib(self.pid, "VmHWM") * 1024

    def cpu_s(self) -> float:
        """Processor seconds of this life, user and system, all threads."""
        after_name = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / _TICKS

    def disk_bytes(self) -> int:
        """Blocks that the data directory occupies."""
        total = 0
        for folder, _, names in os.walk(self.data_dir):
            for name in names:
                # A segment may be recycled between the listing and the look.
                with contextlib.suppress(FileNotFoundError):
                    total += os.stat(os.path.join(folder, name), follow_symlinks=False).st_blocks * 512
        return total

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def _begin(self, environment: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start `command`; a suite that starts many nodes may have a quicker way."""
        return subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=environment
        )

    def _end_of(self, process: subprocess.Popen[bytes]) -> int:
        return process.wait(STOP_S_MAX)

    def _close_output(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()


def _status_kib(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    return 0
