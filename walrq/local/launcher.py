"""Runs the nodes of a base directory as child processes, until it is told to stop.

    run ─┬─ heed      signals: the first stops the nodes in good order, a second makes them exit at once, a third kills
         └─ attend    one per node: its readiness line, its end

A node that ends by itself is said and not started again: the others go on without it, and why it ended is for a person
to judge. A node that ends before all were ready ends the start, and the others with it. All nodes are told to stop at
the same moment: each refuses what is new and answers what is in flight, for which it takes a majority.

Never: restarts a node; signals a process that it did not start; leaves one behind, not even when it is killed itself
(on Linux, where the kernel passes the word on).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

import attrs
import trio

from walrq.errors import ConfigError
from walrq.local.layout import Layout, Place

EXIT_OK: Final = 0
# All nodes ended though nobody asked for it.
EXIT_DESERTED: Final = 1
# How much of a node's log is searched for its last words, and how much of them is shown.
LOG_BYTES: Final = 4096
WORDS_MAX: Final = 300
# What runs one node.
PROGRAM: Final = (sys.executable, "-m", "walrq", "serve")
_READ_BYTES: Final = 65_536
_PR_SET_PDEATHSIG: Final = 1
_STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# What says which node a process is: the environment of this process must not say it of all of them.
_OWN: Final = ("data_dir", "node_id", "listen", "peer_listen", "advertise", "bootstrap", "join", "cluster_secret")
_OWN_FLAGS: Final = frozenset(f"--{name.replace('_', '-')}" for name in (*_OWN, "cluster_secret_file"))
_OWN_VARIABLES: Final = frozenset(
    {"DATA_DIR", "NODE_ID", "NOTIFY_SOCKET", "WALRQ_CLUSTER_SECRET_FILE", *(f"WALRQ_{name.upper()}" for name in _OWN)}
)

Say = Callable[[str], None]
Announce = Callable[[Mapping[str, Any]], None]


def check_flags(flags: Sequence[str]) -> None:
    """Whether every node may be given these arguments of `walrq serve`.

    Raises:
        ConfigError: one of them differs from node to node, or the first is none.
    """
    if flags and not flags[0].startswith("-"):
        raise ConfigError(f"{flags[0]!r} is no flag of `walrq serve`; what stands behind -- is given to every node")
    for flag in flags:
        name = flag.partition("=")[0]
        if name in _OWN_FLAGS:
            raise ConfigError(f"{name} differs from node to node and is chosen by `walrq cluster start`", field=name)


@attrs.define(eq=False)
class Child:
    """One node and its process.

    Attributes:
        place: where it lies and listens.
        process: the child.
        log_from: where its log ended before this life.
        ready: its readiness line, once it came.
    """

    place: Place
    process: subprocess.Popen[bytes]
    log_from: int
    ready: dict[str, Any] | None = None

    @property
    def running(self) -> bool:
        """Whether it is there; asks the kernel."""
        return self.process.poll() is None

    def send(self, number: int) -> None:
        """Signal it, unless it has ended: `poll` keeps its id from being reused before."""
        if self.running:
            self.process.send_signal(number)

    def end(self) -> str:
        """How it ended, in words."""
        status = self.process.returncode
        return f"ended with status {status}" if status >= 0 else f"was killed by {signal.Signals(-status).name}"

    def last_words(self) -> str:
        """The last line that this life wrote into its log, as text; "" when it wrote nothing."""
        with self.place.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self.log_from, end - LOG_BYTES))
            lines = log.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        try:
            last = json.loads(last)["text"]
        except (ValueError, KeyError, TypeError):
            pass  # a line for people, as it is
        return last if len(last) <= WORDS_MAX else last[: WORDS_MAX - 1] + "…"


def launch(layout: Layout, place: Place, flags: Sequence[str], program: Sequence[str] = PROGRAM) -> Child:
    """Start the process of one node; what `run` was given.

    It is in a session of its own, so that Ctrl-C at the terminal reaches it by way of the launcher only.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}
    with place.log.open("ab") as log:
        begun = log.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            [*program, *layout.flags(place), *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=True,
            preexec_fn=_follow_parent(),
        )
    place.pid_file.write_text(f"{process.pid}\n")
    return Child(place, process, begun)


def _follow_parent() -> Callable[[], None] | None:
    """What makes a child receive SIGTERM when this process ends, however it ends; None where there is no such thing."""
    if sys.platform != "linux":
        return None
    # Loaded before the fork: between fork and exec nothing is imported.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def follow() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(EXIT_DESERTED)

    return follow


async def run(
    layout: Layout, flags: Sequence[str], *, say: Say, announce: Announce, program: Sequence[str] = PROGRAM
) -> int:
    """Start every node and stay until all have ended; the exit status. Main thread only.

    Args:
        flags: arguments of `walrq serve` for every node.
        say: takes one line for a person.
        announce: is called once, when every node is ready, with their names, addresses and process ids.
        program: what runs one node.

    Returns:
        0 after a stop that was asked for; the status of a node that did not start or stop as it should; 1 when all
        nodes ended by themselves.

    Raises:
        OSError: a log cannot be opened, or a process not be started.
    """
    launcher = Launcher(layout, say, announce)
    with trio.open_signal_receiver(*_heeded()) as signals:
        try:
            for place in layout.places:
                launcher.children.append(launch(layout, place, flags, program))
            async with trio.open_nursery() as outer:
                outer.start_soon(launcher.heed, signals)
                async with trio.open_nursery() as nodes:
                    for child in launcher.children:
                        nodes.start_soon(launcher.attend, child)
                outer.cancel_scope.cancel()
        finally:
            launcher.abandon()
            launcher.close()
    return launcher.status()


def _heeded() -> list[signal.Signals]:
    """Under nohup SIGHUP stays ignored."""
    return [number for number in _STOPPING if signal.getsignal(number) is not signal.SIG_IGN]


@attrs.define(eq=False)
class Launcher:
    """The nodes, and what is known about them.

    Attributes:
        children: in the order of the layout.
        stopping: somebody asked for the end, or the start failed.
        failed: (exit status, why) of what went wrong first.
    """

    layout: Layout
    say: Say
    announce: Announce
    children: list[Child] = attrs.field(factory=list)
    stopping: bool = False
    failed: int | None = None
    _announced: bool = False

    async def heed(self, signals: AsyncIterator[int]) -> None:
        """Stop on the first signal. A second one makes nodes exit at once, a third ends those that cannot even that."""
        asked = 0
        async for number in signals:
            left = self._names(self._running())
            if not left:
                return
            name = signal.Signals(number).name
            asked += 1
            if asked == 1:
                self.say(f"{name}: stopping {left}")
                self.stop()
            elif asked == 2:
                self.say(f"{name} again: {left} must exit at once")
                self.stop()
            else:
                self.say(f"{name} again: killing {left}")
                self.abandon()

    def stop(self) -> None:
        """Tell every node to stop; those that were told already exit at once."""
        self.stopping = True
        for child in self._running():
            child.send(signal.SIGTERM)

    def abandon(self) -> None:
        """Kill what still runs: it was asked often enough, or nobody is left in here to look after it."""
        for child in self._running():
            child.process.kill()
            child.process.wait()

    def close(self) -> None:
        """Give the descriptors back."""
        for child in self.children:
            if child.process.stdout is not None:
                child.process.stdout.close()

    async def attend(self, child: Child) -> None:
        """Wait for the readiness line of a node, then for its end."""
        assert child.process.stdout is not None
        os.set_blocking(child.process.stdout.fileno(), False)
        line = b""
        while True:
            await trio.lowlevel.wait_readable(child.process.stdout)
            try:
                data = os.read(child.process.stdout.fileno(), _READ_BYTES)
            except BlockingIOError:
                continue
            if not data:
                break
            line += data
            if child.ready is None and line.endswith(b"\n"):
                child.ready = json.loads(line)
                self._look()
        # Its output is closed: the process itself is gone in a moment.
        await trio.to_thread.run_sync(child.process.wait)
        child.place.pid_file.unlink(missing_ok=True)
        self._ended(child)

    def _look(self) -> None:
        if self._announced or self.stopping or any(child.ready is None for child in self.children):
            return
        self._announced = True
        self.announce(
            {
                "event": "ready",
                "base_dir": str(self.layout.base),
                "url": self.layout.url,
                "nodes": [
                    {
                        "node": child.place.node,
                        "pid": child.process.pid,
                        "endpoints": {} if child.ready is None else child.ready["endpoints"],
                        "log": str(child.place.log),
                    }
                    for child in self.children
                ],
            }
        )

    def _ended(self, child: Child) -> None:
        node, status = child.place.node, child.process.returncode
        if self.stopping:
            if status != EXIT_OK:
                self._fail(status)
                self.say(f"{node} {child.end()}{self._words(child)}")
            return
        left = self._running()
        if not self._announced:
            self._fail(status or EXIT_DESERTED)
            self.say(f"{node} {child.end()} before the cluster was ready{self._words(child)}")
            if left:
                self.say(f"stopping {self._names(left)}")
            self.stop()
        elif left:
            place = child.place
            self.say(
                f"{node} {child.end()}{self._words(child)}; {self._names(left)} {_go(left)} on;"
                f" start it again with: walrq serve --data-dir {place.data_dir} --listen {place.listen}"
            )
        else:
            self._fail(EXIT_DESERTED)
            self.say(f"{node} {child.end()}{self._words(child)}; no node is left")

    def _words(self, child: Child) -> str:
        words = child.last_words()
        return f": {words}" if words and child.process.returncode > 0 else ""

    def _fail(self, status: int) -> None:
        if self.failed is None:
            self.failed = status if status >= 0 else 128 - status

    def _running(self) -> list[Child]:
        return [child for child in self.children if child.running]

    def _names(self, children: Sequence[Child]) -> str:
        names = [child.place.node for child in children]
        return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)

    def status(self) -> int:
        """The exit status of the whole."""
        return EXIT_OK if self.failed is None else self.failed


def _go(children: Sequence[Child]) -> str:
    return "go" if len(children) > 1 else "goes"
