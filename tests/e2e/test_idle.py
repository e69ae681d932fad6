"""What the kernel sees: an idle node is silent, a busy one syncs once per group commit."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

from chaos.stops import Line
from tests.e2e.conftest import Starter
from tests.e2e.talk import push
from tests.requirements import require
from walrq import api
from walrq.protocol.columns import pack

POLLS = 1_000
WATCH_S = 4
IDLE_SYSCALLS_PER_S = 50
BURST = 200


class Tracer:
    """strace of one of our own children, from now until `stop`."""

    def __init__(self, pid: int, output: Path) -> None:
        self._output = output
        command = ["strace", "-f", "-q", "-o", str(output), "-p", str(pid)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE)
        # It writes nothing before it is attached to every thread; the kernel says when.
        status = Path(f"/proc/{pid}/status")
        while "TracerPid:\t0\n" in status.read_text():
            assert self._process.poll() is None, "strace could not attach"

    def stop(self) -> Counter[str]:
        """Detach; how often each system call was made."""
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=30)
        calls: Counter[str] = Counter()
        for line in self._output.read_text(errors="replace").splitlines():
            found = re.match(r"\d+\s+(\w+)\(", line)
            if found:
                calls[found.group(1)] += 1
        return calls


def parked(start_node: Starter, polls: int) -> tuple[list[Line], int, Line]:
    """A node with `polls` parked polls, its pid, and one line for the test."""
    node = start_node()
    lines = [Line(node.address) for _ in range(20)]
    for number in range(polls):
        lines[number % len(lines)].request(api.Poll(("idle",), wait_ms=600_000), lambda reply: None)
    for line in lines:
        line.call(api.Ping())
    talker = Line(node.address)
    push(talker, "warm", [b"first"])
    return lines, node.pid, talker


def test_an_idle_node_with_a_thousand_parked_polls_is_silent(start_node: Starter, tmp_path: Path) -> None:
    """Waiting costs nothing: no polling loops, no timers that fire for nobody."""
    require("strace")
    lines, pid, talker = parked(start_node, POLLS)
    talker.socket.settimeout(WATCH_S)
    tracer = Tracer(pid, tmp_path / "trace")
    began = time.monotonic()
    with contextlib.suppress(TimeoutError):
        talker.socket.recv(1)
    watched = time.monotonic() - began
    calls = tracer.stop()
    for line in (*lines, talker):
        line.close()

    assert watched >= WATCH_S
    assert calls.total() / watched < IDLE_SYSCALLS_PER_S, calls


def test_a_burst_is_synced_in_groups_and_draws_no_randomness(start_node: Starter, tmp_path: Path) -> None:
    """Two hundred pushes in flight share their syncs, and no message asks the kernel for random bytes."""
    require("strace")
    lines, pid, talker = parked(start_node, 0)
    tracer = Tracer(pid, tmp_path / "trace")
    replies: list[api.Reply] = []
    for number in range(BURST):
        talker.waiting[talker.connection.request(request(number))] = replies.append
    talker.flush()
    while len(replies) < BURST:
        talker.receive()
    calls = tracer.stop()
    for line in (*lines, talker):
        line.close()

    assert all(isinstance(reply, api.Pushed) for reply in replies)
    assert 1 <= calls["fdatasync"] <= BURST // 4, calls
    assert calls["fdatasync"] <= calls["pwrite64"] + calls["pwritev"] + calls["pwritev2"], calls
    assert 0 == calls["getrandom"], calls


def request(number: int) -> api.Push:
    """One small push."""
    return api.Push("burst", pack([b"%d" % number]))
