"""Polite stops under load: SIGTERM and SIGINT while producers push and a hundred polls are parked.

    python -m chaos stops --rounds 50 --seed 7

Each round: load, a signal at a drawn moment, exit 0 in time, every request answered or definitely refused,
and after the restart every confirmed push is there once, no refused one is. Spoken over raw connections with
the sans-IO protocol, because a client library would hide what these rounds look for. Exit status: 0 or 1.
"""

from __future__ import annotations

import argparse
import json
import random
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs

from walrq import api
from walrq.errors import ERRORS, Code
from walrq.protocol.client import Answer, ClientConnection, ClientState, Closed
from walrq.protocol.columns import pack, unpack_run
from walrq.protocol.handshake import Hello
from walrq.testing.node import Node

from . import payload

RECV_BYTES: Final = 1 << 18
CONNECT_S: Final = 10.0
# The node's own drain time-out is 10 s; a stop with nothing slow about it takes far less.
EXIT_S_MAX: Final = 10.0
POLLS_PER_LINE: Final = 10
POLL_WAIT_MS: Final = 60_000
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None, help="repeats a run (default: drawn and printed)")
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--polls", type=int, default=100, help="parked polls")
    parser.add_argument("--batch", type=int, default=10, help="messages per push")
    parser.add_argument("--window", type=int, default=4, help="pushes in flight per producer")
    parser.add_argument("--fsync", default="always", help="the node's policy")
    parser.add_argument("--dir", type=Path, default=None, help="parent of the run's directory")


@attrs.define
class Tally:
    """What became of the requests of all rounds, and what is wrong."""

    answered: int = 0
    refused: int = 0
    unknown: int = 0
    polls_ended: int = 0
    confirmed: int = 0
    exit_s: list[float] = attrs.field(factory=list)
    wrong: list[str] = attrs.field(factory=list)


class Line:
    """One raw connection. Replies go to the callback that each request came with; none is forgotten."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=CONNECT_S)
        self.connection = ClientConnection(Hello(client="chaos stops"))
        self.waiting: dict[int, Callable[[Any], None]] = {}
        self.ended = False
        self.flush()
        while self.connection.welcome is None:
            self.receive()

    @property
    def open(self) -> bool:
        """Whether it takes further requests."""
        return not self.ended and self.connection.state is ClientState.OPEN

    def request(self, request: api.Request, on_reply: Callable[[Any], None]) -> None:
        """Send one request."""
        self.waiting[self.connection.request(request)] = on_reply
        self.flush()

    def call(self, request: api.Request) -> Any:
        """Send one request and wait for its reply."""
        replies: list[Any] = []
        self.request(request, replies.append)
        while not replies:
            self.receive()
        return replies[0]

    def flush(self) -> None:
        """Send what waits. A connection the server has closed is seen when it is read."""
        try:
            self.socket.sendall(self.connection.take_output())
        except (BrokenPipeError, ConnectionResetError):
            self.ended = True

    def receive(self) -> None:
        """Read once and hand out the replies."""
        try:
            data = self.socket.recv(RECV_BYTES)
        except ConnectionResetError:
            data = b""
        events = self.connection.receive(data) if data else self.connection.receive_eof()
        for event in events:
            if type(event) is Answer:
                self.waiting.pop(event.id)(event.reply)
            elif type(event) is Closed:
                self.ended = True

    def close(self) -> None:
        """End it."""
        self.socket.close()


def run(arguments: argparse.Namespace) -> int:
    """All rounds; the summary is the last line."""
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"stops: seed {seed}", file=sys.stderr)
    folder = Path(tempfile.mkdtemp(prefix="walrq-stops-", dir=arguments.dir))
    try:
        tally = rounds(
            folder,
            seed=seed,
            count=arguments.rounds,
            producers=arguments.producers,
            polls=arguments.polls,
            batch=arguments.batch,
            window=arguments.window,
            flags=["--fsync", arguments.fsync],
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for text in tally.wrong:
        print(f"stops: {text}", file=sys.stderr)
    print(
        json.dumps(
            {
                "stops": arguments.rounds,
                "seed": seed,
                "answered": tally.answered,
                "refused": tally.refused,
                "outcome_unknown": tally.unknown,
                "parked_polls_ended": tally.polls_ended,
                "confirmed_messages": tally.confirmed,
                "exit_s_max": round(max(tally.exit_s, default=0.0), 3),
                "violations": len(tally.wrong),
            }
        )
    )
    return 1 if tally.wrong else 0


def rounds(
    folder: Path,
    *,
    seed: int,
    count: int,
    producers: int = 4,
    polls: int = 100,
    batch: int = 10,
    window: int = 4,
    flags: list[str] | None = None,
) -> Tally:
    """Run `count` rounds over one data directory below `folder`."""
    rng = random.Random(f"{seed} stops")
    tally = Tally()
    with Node(folder / "data", flags=flags or []) as node:
        node.start()
        next_value = 1
        for number in range(count):
            load = _Load(node, tally, producers, polls, batch, window, next_value)
            load.run(rng.uniform(0.05, 0.4))
            which = SIGNALS[number % len(SIGNALS)]
            begun = time.monotonic()
            node.signal(which)
            load.finish()
            try:
                status = node.wait(EXIT_S_MAX)
            except subprocess.TimeoutExpired:
                tally.wrong.append(f"round {number}: still running {EXIT_S_MAX} s after {which.name}")
                node.kill()
                status = 0
            tally.exit_s.append(time.monotonic() - begun)
            if status != 0:
                tally.wrong.append(f"round {number}: {which.name} ended with {status}: {node.last_words()}")
            node.start()
            _compare(node, load, tally, number)
            next_value = load.next_value
        node.stop()
    return tally


class _Load:
    """Producers that keep pushing and polls that wait, until the node ends its connections."""

    def __init__(
        self, node: Node, tally: Tally, producers: int, polls: int, batch: int, window: int, first: int
    ) -> None:
        self._tally = tally
        self._batch = batch
        self._window = window
        self.next_value = first
        self.confirmed: set[int] = set()
        self.refused: set[int] = set()
        self.offered: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._producers = [Line(node.address) for _ in range(producers)]
        self._pollers = [Line(node.address) for _ in range(-(-polls // POLLS_PER_LINE))]
        for line in self._producers + self._pollers:
            self._selector.register(line.socket, selectors.EVENT_READ, line)
        poll = api.Poll(("empty",), max_messages=10, visibility_ms=30_000, wait_ms=POLL_WAIT_MS)
        for number in range(polls):
            self._pollers[number // POLLS_PER_LINE].request(poll, self._on_polled)

    def run(self, seconds: float) -> None:
        """Load for a while."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._turn(0.01, push=True)

    def finish(self) -> None:
        """Go on like a client that has not been told, until every connection has ended."""
        until = time.monotonic() + EXIT_S_MAX
        lines = self._producers + self._pollers
        while time.monotonic() < until and not all(line.ended for line in lines):
            self._turn(0.05, push=True)
        for line in lines:
            for number in line.waiting:
                self._tally.unknown += 1
                self._tally.wrong.append(f"request {number} was neither answered nor refused")
            if not line.ended:
                self._tally.wrong.append("a connection was not closed")
                self._selector.unregister(line.socket)
                line.close()
        self._selector.close()

    def _turn(self, seconds: float, *, push: bool) -> None:
        for line in self._producers:
            while push and line.open and len(line.waiting) < self._window:
                self._push(line)
        for key, _ in self._selector.select(seconds):
            key.data.receive()
        for line in self._producers + self._pollers:
            if line.ended and line.socket.fileno() >= 0:
                self._selector.unregister(line.socket)
                line.close()

    def _push(self, line: Line) -> None:
        values = range(self.next_value, self.next_value + self._batch)
        self.next_value += self._batch
        self.offered.update(values)
        columns = pack([payload.encode(value, 20) for value in values])
        line.request(api.Push("stops", columns), lambda reply: self._on_pushed(reply, values))

    def _on_pushed(self, reply: Any, values: range) -> None:
        if type(reply) is api.Pushed:
            self._tally.answered += 1
            self.confirmed.update(values)
        elif type(reply) is api.Failed and ERRORS[Code(reply.code)].definite:
            self._tally.refused += 1
            self.refused.update(values)
        else:
            self._tally.unknown += 1
            self._tally.wrong.append(f"a push was answered {reply}")

    def _on_polled(self, reply: Any) -> None:
        self._tally.polls_ended += 1
        if type(reply) is api.Polled and not reply.runs:
            return
        if type(reply) is not api.Failed or not ERRORS[Code(reply.code)].definite:
            self._tally.wrong.append(f"a parked poll was answered {reply}")


def _compare(node: Node, load: _Load, tally: Tally, number: int) -> None:
    """Take everything out again and compare it with what the producers were told."""
    line = Line(node.address)
    found: list[int] = []
    while True:
        polled = line.call(api.Poll(("stops",), max_messages=1_000, visibility_ms=60_000))
        if not polled.runs:
            break
        for delivered in polled.runs:
            found += [payload.decode(body) for body in unpack_run(delivered).payloads]
        items = tuple(api.Item(delivered.receipt) for delivered in polled.runs)
        settled = line.call(api.Settle("stops", api.SettleKind.ACK, items))
        if any(settled.codes):
            tally.wrong.append(f"round {number}: an ack after the restart was refused: {settled}")
    line.close()
    there = set(found)
    tally.confirmed += len(load.confirmed)
    for what, values in (
        ("confirmed messages are gone", load.confirmed - there),
        ("refused messages are there", load.refused & there),
        ("messages are there that nobody pushed", there - load.offered),
    ):
        if values:
            tally.wrong.append(f"round {number}: {len(values)} {what}, the first is {min(values)}")
    if len(there) != len(found):
        tally.wrong.append(f"round {number}: {len(found) - len(there)} messages are there twice")
