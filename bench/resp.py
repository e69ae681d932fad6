"""The Redis door under the load of Redis clients, beside a real redis-server that syncs as walrq does.

Every workload is one kind of command, or a pair, from `-c` connections with `-P` commands in flight on each:

    lpush         LPUSH                              redis-server: the same
    rpop          RPOP of what was pushed before     redis-server: the same
    lease-ack     RPOPLEASE, then TASKACK            redis-server: LMOVE to a list of work in hand, then LREM
    lpush-delay   LPUSH_DELAY, an hour ahead         redis-server: ZADD
    priority      LPUSH_PRIORITY, then RPOP          redis-server: ZADD, then ZPOPMAX

The load generator is one process that sends prepared bytes and reads no more of a reply than it must; it has one of
the machine's cores. `--in-memory` measures without network and disk: the door's connection object on the state machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import select
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeAlias

from walrq import api
from walrq.daemon.bodies import fill_poll
from walrq.ids import open_receipt
from walrq.queues.commands import (
    Bootstrap,
    Command,
    Lease,
    Push,
    RaiseVersion,
    Settle,
    Stamp,
    Tagged,
    Target,
)
from walrq.queues.effects import Granted
from walrq.queues.machine import Machine
from walrq.resp.commands import COMMANDS
from walrq.resp.connection import RespConnection
from walrq.testing.node import Node

from . import peer_redis
from .figures import Latencies, scratch, table
from .load import LoadFailed
from .peer_redis import cpu_s

WORKLOADS: Final = ("lpush", "rpop", "lease-ack", "lpush-delay", "priority")
_READ_BYTES: Final = 1 << 18
_SILENCE_S_MAX: Final = 60.0
_CRLF: Final = b"\r\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench; the short ones are DTQ's."""
    parser.add_argument("-a", "--address", metavar="H:P", help="measure a server that is there, and nothing else")
    parser.add_argument("-c", "--concurrency", type=int, default=50, help="connections (default 50)")
    parser.add_argument("-r", "--requests", type=int, default=20_000, help="commands, or pairs, a workload (20000)")
    parser.add_argument("-p", "--payload", type=int, default=64, help="bytes of a message (default 64)")
    parser.add_argument("-P", "--pipeline", type=int, action="append", help="in flight a connection (1, and 16)")
    parser.add_argument("-t", "--target", choices=("all", *WORKLOADS), default="all", help="workload (default all)")
    parser.add_argument("--fsync", default="always", help="of both servers: always, never (default always)")
    parser.add_argument("--password", help="of the server at --address")
    parser.add_argument("--alone", action="store_true", help="no redis-server beside it")
    parser.add_argument("--in-memory", action="store_true", help="no network and no disk")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    names = WORKLOADS if arguments.target == "all" else (arguments.target,)
    depths = arguments.pipeline or [1, 16]
    figures: dict[str, Any] = {"settings": _settings(arguments)}
    if arguments.in_memory:
        figures["in_memory"] = {name: _in_memory(name, arguments) for name in names}
        _show([("walrq, in memory", name, 1, found) for name, found in figures["in_memory"].items()])
        return figures
    rows: list[tuple[str, str, int, dict[str, Any]]] = []
    for server, commands, address, pid in _servers(arguments):
        figures[server] = {}
        for name in names:
            for depth in depths:
                found = _measure(name, commands, address, pid, depth, arguments)
                figures[server][f"{name} x{depth}"] = found
                rows.append((server, name, depth, found))
    _show(rows)
    return figures


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    named = ("address", "concurrency", "requests", "payload", "pipeline", "target", "fsync", "in_memory")
    return {name: getattr(arguments, name) for name in named}


def _show(rows: list[tuple[str, str, int, dict[str, Any]]]) -> None:
    header = ("server", "workload", "depth", "per s", "p50 ms", "p90", "p99", "p99.9", "CPU us")
    lines = []
    for server, name, depth, found in rows:
        spread = [found.get(key, 0.0) for key in ("p50", "p90", "p99", "p99.9")]
        lines.append((server, name, depth, found["ops_per_s"], *spread, found.get("cpu_us", 0.0)))
    print(table(lines, header=header))


# --- servers ------------------------------------------------------------------------------------------------
def _servers(arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any], str, int | None]]:
    """(name, its commands, where it is, process id), one after the other."""
    if arguments.address:
        yield "server", _WALRQ, arguments.address, None
        return
    with scratch(arguments.dir) as folder:
        flags = ("--fsync", arguments.fsync, "--resp-listen", "127.0.0.1:0", "--log-level", "warning")
        with Node(Path(folder) / "node", flags=flags) as node:
            node.start()
            yield "walrq", _WALRQ, node.ready["endpoints"]["resp"], node.pid
        if arguments.alone:
            return
        if shutil.which("redis-server") is None or importlib.util.find_spec("redis") is None:
            print("note: no redis-server here, or no redis-py: nothing to compare with")
            return
        work = Path(folder) / "redis"
        work.mkdir()
        with peer_redis.server(work, arguments.fsync) as (port, pid):
            yield "redis-server", _REDIS, f"127.0.0.1:{port}", pid


# --- commands -----------------------------------------------------------------------------------------------
def frame(*words: bytes) -> bytes:
    """A command as clients send it."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


Step: TypeAlias = Callable[[bytes, int, bytes], bytes]
"""(the payload, a number that no other command has, the reply to the step before) -> a command."""


def _task_of(reply: bytes) -> bytes:
    return reply.split(_CRLF, 3)[2]


_WALRQ: Final[dict[str, tuple[Step, ...]]] = {
    "lpush": (lambda p, n, r: frame(b"LPUSH", b"bench", p),),
    "rpop": (lambda p, n, r: frame(b"RPOP", b"bench"),),
    "lease-ack": (
        lambda p, n, r: frame(b"RPOPLEASE", b"bench", b"60"),
        lambda p, n, r: frame(b"TASKACK", b"bench", _task_of(r)),
    ),
    "lpush-delay": (lambda p, n, r: frame(b"LPUSH_DELAY", b"bench:late", b"3600", p),),
    "priority": (
        lambda p, n, r: frame(b"LPUSH_PRIORITY", b"bench:first", b"%d" % (n & 255), p),
        lambda p, n, r: frame(b"RPOP", b"bench:first"),
    ),
}
_REDIS: Final[dict[str, tuple[Step, ...]]] = {
    "lpush": _WALRQ["lpush"],
    "rpop": _WALRQ["rpop"],
    "lease-ack": (
        lambda p, n, r: frame(b"LMOVE", b"bench", b"bench:hand", b"RIGHT", b"LEFT"),
        lambda p, n, r: frame(b"LREM", b"bench:hand", b"-1", p),
    ),
    "lpush-delay": (lambda p, n, r: frame(b"ZADD", b"bench:late", b"%d" % n, b"%d:%b" % (n, p)),),
    "priority": (
        lambda p, n, r: frame(b"ZADD", b"bench:first", b"%d" % (n & 255), b"%d:%b" % (n, p)),
        lambda p, n, r: frame(b"ZPOPMAX", b"bench:first"),
    ),
}
_NEEDS_MESSAGES: Final = frozenset({"rpop", "lease-ack"})
_PREPARED_AT_ONCE: Final = 1_000


def reply_end(data: bytes, at: int) -> int:
    """Where the reply that begins at `at` ends; -1: it has not come whole.

    Raises:
        LoadFailed: it is an error.
    """
    end = data.find(_CRLF, at)
    if end < 0:
        return -1
    kind = data[at : at + 1]
    if kind == b"-":
        raise LoadFailed(f"the server says {data[at:end].decode(errors='replace')}")
    if kind == b"$" and data[at + 1 : end] != b"-1":
        end += 2 + int(data[at + 1 : end])
        return end + 2 if end + 2 <= len(data) else -1
    following = end + 2
    if kind == b"*":
        for _ in range(int(data[at + 1 : end])):
            following = reply_end(data, following)
            if following < 0:
                return -1
    return following


# --- load ---------------------------------------------------------------------------------------------------
class Line:
    """One connection: sends a step of `depth` commands, waits for all replies, sends the next."""

    def __init__(self, address: str, password: str | None) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), timeout=_SILENCE_S_MAX)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if password is not None:
            self.sock.sendall(frame(b"AUTH", password.encode()))
            if self.sock.recv(_READ_BYTES) != b"+OK\r\n":
                raise LoadFailed("the server does not take the password")
        self.buffer = b""
        self.replies: list[bytes] = []
        self.wanted = 0
        self.step = 0
        self.sent_ns = 0

    def send(self, commands: list[bytes]) -> None:
        """A step; its commands leave with one call."""
        self.replies = []
        self.wanted = len(commands)
        self.sent_ns = time.perf_counter_ns()
        self.sock.sendall(b"".join(commands))

    def receive(self) -> bool:
        """Read what has come; whether the step is answered."""
        data = self.sock.recv(_READ_BYTES)
        if not data:
            raise LoadFailed("the server closed the connection")
        buffer = self.buffer + data if self.buffer else data
        at = 0
        while at < len(buffer):
            end = reply_end(buffer, at)
            if end < 0:
                break
            self.replies.append(buffer[at:end])
            at = end
        self.buffer = buffer[at:]
        return len(self.replies) >= self.wanted


def _measure(
    name: str, commands: dict[str, tuple[Step, ...]], address: str, pid: int | None, depth: int, arguments: Any
) -> dict[str, Any]:
    payload = b"x" * arguments.payload
    lines = [Line(address, arguments.password) for _ in range(arguments.concurrency)]
    try:
        if name in _NEEDS_MESSAGES:
            left = arguments.requests + depth * len(lines)
            while left > 0:
                lines[0].send([frame(b"LPUSH", b"bench", *[payload] * min(left, _PREPARED_AT_ONCE))])
                while not lines[0].receive():
                    pass
                left -= _PREPARED_AT_ONCE
        return _drive(lines, commands[name], payload, depth, arguments.requests, pid)
    finally:
        for line in lines:
            line.sock.close()


def _drive(
    lines: list[Line], steps: tuple[Step, ...], payload: bytes, depth: int, requests: int, pid: int | None
) -> dict[str, Any]:
    """`requests` passes through all steps, as many at once as there are lines, times `depth`."""
    latencies = Latencies()
    poll = select.epoll()
    by_fd = {line.sock.fileno(): line for line in lines}
    numbers = count()
    begun = done = 0
    cpu = cpu_s(pid) if pid is not None else 0.0
    started = time.perf_counter_ns()

    def begin(line: Line) -> None:
        nonlocal begun
        number = min(depth, requests - begun)
        begun += number
        line.step = 0
        line.send([steps[0](payload, next(numbers), b"") for _ in range(number)])

    try:
        for line in lines:
            if begun < requests:
                poll.register(line.sock.fileno(), select.EPOLLIN)
                begin(line)
        while done < requests:
            ready = poll.poll(_SILENCE_S_MAX)
            if not ready:
                raise LoadFailed(f"nothing was answered for {_SILENCE_S_MAX:g} s")
            for fd, _ in ready:
                line = by_fd[fd]
                if not line.receive():
                    continue
                spent = time.perf_counter_ns() - line.sent_ns
                latencies.extend([spent] * line.wanted)
                line.step += 1
                if line.step < len(steps):
                    line.send([steps[line.step](payload, next(numbers), reply) for reply in line.replies])
                    continue
                done += line.wanted
                if begun < requests:
                    begin(line)
        elapsed = (time.perf_counter_ns() - started) / 1e9
    finally:
        poll.close()
    found = {"ops_per_s": round(requests / elapsed), **latencies.percentiles_ms()}
    if pid is not None:
        found["cpu_us"] = round((cpu_s(pid) - cpu) / requests * 1e6, 1)
    return found


# --- without network and disk -------------------------------------------------------------------------------
class _Host:
    """A node that asks nobody who he is."""

    version = name = "bench"
    has_password = False

    def admits(self, user: bytes | None, password: bytes, peer: str) -> None:
        """Nobody is asked."""

    def cursor(self, after: str) -> int:
        """Nothing is scanned."""
        return 0

    def place(self, cursor: int) -> str | None:
        """Nothing is scanned."""
        return None


class Engine:
    """The door's connection object on the state machine: one entry for all that one read has asked."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.machine.apply(1, Stamp(0, 0), [Tagged(Bootstrap("bench", b"s" * 16)), Tagged(RaiseVersion(2))])
        self.connection = RespConnection(_Host(), 1, COMMANDS)
        self._bodies: dict[tuple[int, int], api.Columns] = {}
        self._index = 1

    def _look_up(self, index: int, ordinal: int) -> api.Columns:
        return self._bodies[index, ordinal]

    def exchange(self, data: bytes) -> bytes:
        """The replies to these commands."""
        connection = self.connection
        connection.receive(data)
        while asks := connection.take_asks():
            self._index += 1
            entry = [Tagged(self._command(ask.request, ordinal)) for ordinal, ask in enumerate(asks)]
            now = self._index >> 6
            for ask, result in zip(asks, self.machine.apply(self._index, Stamp(now, now), entry), strict=True):
                if type(result) is Granted:
                    filled = fill_poll(result, self.machine.secret, self._look_up, lambda uid, lease: True)
                    connection.answer(ask.id, filled.polled)
                else:
                    connection.answer(ask.id, result)
        said = connection.take_output()
        self._settle_for_good()
        return said

    def _command(self, request: Any, ordinal: int) -> Command:
        kind = type(request)
        if kind is api.Push:
            self._bodies[self._index, ordinal] = request.columns
            fields = (request.queue, request.columns, request.priority, request.delay_ms, None, None, None, True)
            return Push(*fields)
        if kind is api.Poll:
            return Lease(request.queues, request.max_messages, request.visibility_ms, 0, None, request.numbered)
        targets = tuple([Target(*open_receipt(self.machine.secret, item.receipt)) for item in request.items])
        return Settle(request.queue, request.kind, targets)

    def _settle_for_good(self) -> None:
        leases = self.connection.leases
        targets = []
        queue = ""
        while leases:
            handed = leases.popleft()[1]
            if handed.for_good:
                for run in handed.polled.runs:
                    queue = run.queue
                    targets.append(Target(*open_receipt(self.machine.secret, run.receipt)))
        if targets:
            self._index += 1
            now = self._index >> 6
            settle = Settle(queue, api.SettleKind.ACK, tuple(targets))
            self.machine.apply(self._index, Stamp(now, now), [Tagged(settle)])


def _in_memory(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """As many commands at once as there would be connections."""
    engine = Engine()
    payload = b"x" * arguments.payload
    numbers = count()
    at_once = arguments.concurrency
    if name in _NEEDS_MESSAGES:
        for _ in range(arguments.requests // _PREPARED_AT_ONCE + 1):
            engine.exchange(frame(b"LPUSH", b"bench", *[payload] * _PREPARED_AT_ONCE))
    latencies = Latencies()
    elapsed = cpu_ns = 0
    for _ in range(max(1, arguments.requests // at_once)):
        replies = [b""] * at_once
        for step in _WALRQ[name]:
            data = b"".join([step(payload, next(numbers), reply) for reply in replies])
            started, cpu = time.perf_counter_ns(), time.process_time_ns()
            said = engine.exchange(data)
            spent = time.perf_counter_ns() - started
            cpu_ns += time.process_time_ns() - cpu
            elapsed += spent
            latencies.extend([spent // at_once] * at_once)
            replies = _split(said)
    done = max(1, arguments.requests // at_once) * at_once
    cpu_us = round(cpu_ns / 1000 / done, 1)
    return {"ops_per_s": round(done / (elapsed / 1e9)), **latencies.percentiles_ms(), "cpu_us": cpu_us}


def _split(said: bytes) -> list[bytes]:
    replies = []
    at = 0
    while at < len(said):
        end = reply_end(said, at)
        replies.append(said[at:end])
        at = end
    return replies
