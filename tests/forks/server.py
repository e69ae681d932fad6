"""A process that has imported walrq and forks for every run of it: `python -m tests.forks.server`.

Hundreds of tests start short commands, and nine tenths of what one costs is an interpreter's start and its imports.
Here that is done once. A fork gets arguments, environment, folder and standard streams of its own, runs walrq's own
`main`, and ends as an interpreter does.

What must hold for a fork to be like a fresh interpreter, and where it is kept:

    nothing ran but imports          one thread, no event loop; `load` checks it
    imports read no variables        tests/forks/test_forks.py records what they read
    what Python itself reads         `settled`: PYTHON*, LANG, LC_*; with others of these the real one is run
    streams                          made anew, as the interpreter makes them
    signals                          as they are at an interpreter's start; SIGINT waits until they are
    chance                           every generator is seeded anew; the seed of hashes alone is shared
    descriptors                      all but the three are closed

Two kinds of callers: a test's process, whose forks become its children (processes.py says how), and command.py, which
a shell script calls in place of Python.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import marshal
import os
import pkgutil
import random
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

# All that a command may import on its way: whatever is missing here is imported by every fork for itself.
MODULES: Final = (
    "anyio._backends._asyncio",
    "anyio._backends._trio",
    "anyio.streams.stapled",
    "asyncio",
    "click.shell_completion",
    "concurrent.futures.thread",
    "email.message",
    "logging",
    "multiprocessing",
    "rich.console",
    "rich.table",
    "runpy",
    "ssl",
    "trio",
    "trio_websocket",
    "unittest.mock",
    "walrq",
    "walrq.__main__",
)
# Nothing that a command imports.
LEFT_OUT: Final = frozenset({"_bench", "_chaos", "_spec", "simulator", "testing"})
LENGTH: Final = struct.Struct("<I")
PID: Final = struct.Struct("<i")
STREAMS: Final = 3
# Instead of a process id; instead of a umask.
FAILED: Final = -1
NOT_GIVEN: Final = -1
# By the interpreter itself, at its start.
IGNORED_ALWAYS: Final = {signal.SIGPIPE, signal.SIGXFSZ}
_SERVED: Final = b"\x01"
_REAL_ONE: Final = b"\x00"


def settled(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that an interpreter reads at its start and cannot read again."""
    return {
        name: value
        for name, value in environment.items()
        if name in ("LANG", "LANGUAGE")
        or name.startswith("LC_")
        or (name.startswith("PYTHON") and name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"))
    }


def load() -> None:
    """Import everything, and check that nothing else happened."""
    for name in MODULES:
        with contextlib.suppress(ModuleNotFoundError):  # an extra that this machine lacks
            importlib.import_module(name)
    import walrq

    for package in pkgutil.iter_modules(walrq.__path__):
        if package.ispkg and package.name not in LEFT_OUT:
            name = f"walrq.{package.name}"
            for module in pkgutil.iter_modules(importlib.import_module(name).__path__):
                importlib.import_module(f"{name}.{module.name}")
    assert 1 == threading.active_count(), threading.enumerate()


class Run:
    """One run that was asked for."""

    def __init__(self, asked: Mapping[str, Any], streams: tuple[int, ...]) -> None:
        self.arguments: list[str] = asked["arguments"]
        self.environment = {os.fsdecode(name): os.fsdecode(value) for name, value in asked["environment"].items()}
        self.folder: str = asked["folder"]
        self.new_session: bool = asked["new_session"]
        self.ignored: list[int] = asked["ignored"]
        self.umask: int = asked["umask"]
        self.streams = streams


def receive(connection: socket.socket) -> Run | None:
    """The next request; None at the end."""
    head, streams, _, _ = socket.recv_fds(connection, LENGTH.size, STREAMS, socket.MSG_CMSG_CLOEXEC)
    if not head:
        return None
    while len(head) < LENGTH.size:
        head += connection.recv(LENGTH.size - len(head))
    body = bytearray()
    while len(body) < LENGTH.unpack(head)[0]:
        body += connection.recv(1 << 20)
    return Run(marshal.loads(body), tuple(streams))


class Server:
    """Forks until nobody can ask any more.

    `control` is the one test process; `listener` is where scripts call.
    """

    def __init__(self, control: socket.socket, listener: socket.socket) -> None:
        self.control = control
        self.listener = listener
        self.settled = settled(os.environ)
        self.base_path = [each for each in sys.path[1:] if each not in os.environ.get("PYTHONPATH", "").split(":")]
        self.generators = [each for each in gc.get_objects() if isinstance(each, random.Random)]

    def serve(self) -> Run | None:
        """In a fork: what to run, everything prepared. In the server itself: None, at the end."""
        # A Ctrl-C on the terminal is for the forks and for the tests. For a fork that is still being prepared it waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        waiting = select.poll()
        waiting.register(self.control, select.POLLIN)
        waiting.register(self.listener, select.POLLIN)
        gc.collect()
        gc.freeze()
        while True:
            ready = {descriptor for descriptor, _ in waiting.poll()}
            if self.control.fileno() in ready:
                run = receive(self.control)
                if run is None:
                    return None
                if self._fork_for_the_test(run):
                    return run
            if self.listener.fileno() in ready:
                caller, _ = self.listener.accept()
                if os.fork() == 0:
                    guarded = self._guard(caller)
                    if guarded is None:
                        os._exit(0)
                    return guarded
                caller.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass

    def _fork_for_the_test(self, run: Run) -> bool:
        """Fork twice: the first fork ends at once, and its child goes to the test's process. Whether this is it."""
        between = os.fork()
        if between == 0:
            try:
                if os.fork():
                    os._exit(0)
            except OSError:
                os._exit(1)
            self._become(run, self.control, tell=True)
            return True
        for each in run.streams:
            os.close(each)
        # Two answers, whatever happens: the other is the new process's, or there is none.
        self.control.sendall(PID.pack(FAILED) * 2 if os.waitpid(between, 0)[1] else PID.pack(0))
        return False

    def _guard(self, caller: socket.socket) -> Run | None:
        """For a script: fork, pass its signals on, tell it the end. A script that is gone takes its command along.

        In the command: what to run. In its guard: None, when all is over.
        """
        self.control.close()
        self.listener.close()
        _, uid, _ = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        run = receive(caller) if uid == os.getuid() else None
        if run is None:
            return None
        if settled(run.environment) != self.settled:
            caller.sendall(_REAL_ONE)
            return None
        caller.sendall(_SERVED)
        child = os.fork()
        if child == 0:
            self._become(run, caller, tell=False)
            return run
        for each in run.streams:
            os.close(each)
        # The terminal's Ctrl-C reaches the script, which passes it on.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        watched = os.pidfd_open(child)
        waiting = select.poll()
        waiting.register(watched, select.POLLIN)
        waiting.register(caller, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in waiting.poll()}
            if watched in ready:
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                with contextlib.suppress(OSError):  # it may be gone itself by now
                    caller.sendall(PID.pack(status))
                return None
            numbers = caller.recv(64)
            if not numbers:
                os.kill(child, signal.SIGKILL)
                waiting.unregister(caller)
            for number in numbers:
                os.kill(child, number)

    def _become(self, run: Run, caller: socket.socket, *, tell: bool) -> None:
        """Turn this fork into what a fresh interpreter would be, and `tell` the caller its process id then."""
        try:
            if run.new_session:
                os.setsid()
            for number in signal.valid_signals():
                handler: Any = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
                if number in IGNORED_ALWAYS or number in run.ignored:
                    handler = signal.SIG_IGN
                if signal.getsignal(number) != handler:
                    signal.signal(number, handler)
            for descriptor, stream in enumerate(run.streams):
                os.dup2(stream, descriptor)
            if run.umask != NOT_GIVEN:
                os.umask(run.umask)
            os.chdir(run.folder)
            os.environ.clear()
            os.environ.update(run.environment)
            time.tzset()
            sys.dont_write_bytecode = bool(run.environment.get("PYTHONDONTWRITEBYTECODE"))
            paths = [each for each in run.environment.get("PYTHONPATH", "").split(":") if each]
            sys.path[:] = [run.folder, *paths, *self.base_path]
            sys.path_importer_cache.clear()
            sys.argv[1:] = run.arguments
            for generator in self.generators:
                generator.seed()
            self._make_streams()
            if tell:
                caller.sendall(PID.pack(os.getpid()))
            for each in (self.control, self.listener, caller):
                each.detach()
            os.closerange(STREAMS, 1 << 20)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        except BaseException:  # noqa: BLE001 - a half-made fork must not go on as a second server
            sys.excepthook(*sys.exc_info())
            if tell:
                caller.sendall(PID.pack(FAILED))
            os._exit(1)

    def _make_streams(self) -> None:
        """As the interpreter makes them: buffered by the line on a terminal; errors always."""
        for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
            old: io.TextIOWrapper = getattr(sys, name)
            writes = name != "stdin"
            raw = io.FileIO(descriptor, "wb" if writes else "rb", closefd=False)
            raw.name = f"<{name}>"
            at_once = bool(self.settled.get("PYTHONUNBUFFERED"))
            buffered = io.BufferedReader(raw) if not writes else raw if at_once else io.BufferedWriter(raw)
            stream = io.TextIOWrapper(
                buffered,
                encoding=old.encoding,
                errors=old.errors,
                newline="\n" if writes else None,
                line_buffering=not at_once and (name == "stderr" or raw.isatty()),
                write_through=at_once,
            )
            stream.mode = "w" if writes else "r"  # type: ignore[misc]
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def leave(status: object) -> None:
    """End as an interpreter does that exits with a number, but do not take the modules apart: that costs more than all
    the rest. What the run itself left behind is collected, so that it can complain.
    """
    if not isinstance(status, int) or threading.active_count() > 1:
        return
    atexit._run_exitfuncs()
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            return
    os._exit(status & 0xFF)


def main() -> None:
    """Arguments: the descriptors of `control` and of `listener`."""
    control, listener = (socket.socket(fileno=int(each)) for each in sys.argv[1:])
    load()
    run = Server(control, listener).serve()
    if run is not None:
        walrq = sys.modules["walrq.__main__"]
        sys.argv[0] = str(walrq.__file__)
        try:
            walrq.main()
        except SystemExit as ended:
            leave(ended.code)
            raise


if __name__ == "__main__":
    main()
