"""The state machine alone: entries straight into `Machine.apply`, with sessions and images, no daemon.

Shows what the deciding core costs; everything above it is bytes and system calls. The shape is that of
`throughput`: each entry holds a push, a lease and a settle per pair of clients, every session has its
window, an image of the dirty pages is taken every `IMAGE_EVERY` commands, as often as the daemon would.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from typing import Any

from walrq import api, limits
from walrq.queues import commands
from walrq.queues.commands import Stamp, Tagged, Target
from walrq.queues.effects import Granted
from walrq.queues.image import Imager
from walrq.queues.machine import Machine

from .figures import Latencies
from .load import columns

IMAGE_EVERY = limits.SNAPSHOT_COMMANDS
PAGES_PER_STEP = 16
HOT = 10
"""Messages of the single poll whose apply is timed."""


class _Log:
    """A machine and the next place in its log, on a clock that moves 1 ms per entry."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.index = 0

    def apply(self, batch: list[Tagged]) -> list[Any]:
        """Apply one entry."""
        self.index += 1
        return self.machine.apply(self.index, Stamp(lease_ms=self.index, wall_ms=1_700_000_000_000 + self.index), batch)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run for `--seconds` and return the figures."""
    log = _Log()
    log.apply([Tagged(commands.Bootstrap(cluster="bench", secret=bytes(16)))])
    clients = arguments.producers + arguments.consumers
    opened = log.apply([Tagged(commands.OpenSession()) for _ in range(clients)])
    sessions = [reply.session for reply in opened]
    if arguments.no_session:
        sessions = [None] * clients
    imager = Imager(log.machine)
    body = columns(arguments.batch, arguments.size)
    push = commands.Push("bench", body)
    numbers = [0] * clients
    settles: deque[tuple[int, commands.Settle]] = deque()
    commands_done = images = pushed = leased = acked = 0
    image_s = 0.0
    producers, consumers = range(arguments.producers), range(arguments.producers, clients)

    def tagged(client: int, command: commands.Command) -> Tagged:
        number = numbers[client] = numbers[client] + 1
        session = sessions[client]
        if session is None:
            return Tagged(command)
        return Tagged(command, session, number, max(1, number - arguments.window))

    started = time.perf_counter()
    deadline = started + arguments.seconds
    while time.perf_counter() < deadline:
        entry = [tagged(client, push) for client in producers for _ in range(arguments.window)]
        places: list[int] = []
        while settles:
            client, settle = settles.popleft()
            entry.append(tagged(client, settle))
        lease = commands.Lease(("bench",), arguments.batch, 60_000, log.index)
        for client in consumers:
            for _ in range(arguments.window):
                places.append(client)
                entry.append(tagged(client, lease))
        results = log.apply(entry)
        for result, client in zip(results[len(results) - len(places) :], places, strict=True):
            assert type(result) is Granted, result
            if result.runs:
                leased += sum([grant.count for grant in result.runs])
                targets = tuple([Target(grant.uid, grant.lease) for grant in result.runs])
                settles.append((client, commands.Settle("bench", api.SettleKind.ACK, targets)))
        for result in results:
            if type(result) is api.Pushed:
                pushed += result.count
            elif type(result) is api.Settled:
                acked += arguments.batch
        log.machine.take_effects()
        commands_done += len(entry)
        if commands_done >= IMAGE_EVERY:
            commands_done = 0
            images += 1
            begun = time.perf_counter()
            imager.freeze()
            while imager.step(PAGES_PER_STEP):
                imager.take()
            imager.take()
            image_s += time.perf_counter() - begun
    elapsed = time.perf_counter() - started
    ops = pushed + leased + acked
    names = ("batch", "size", "producers", "consumers", "window", "seconds")
    return {
        "ops_per_s": round(ops / elapsed),
        "msgs_per_s": round(acked / elapsed),
        "images": images,
        "image_s": round(image_s, 3),
        "latency_ms": {},
        "server_cpu_s_per_million_ops": round(elapsed / max(1, ops) * 1e6, 3),
        "settings": {
            **{name: getattr(arguments, name) for name in names},
            "session": not arguments.no_session,
        },
    }


def poll_of_hot_messages(rounds: int = 2_000) -> dict[str, float]:
    """Percentiles (ms) of applying one entry that leases `HOT` messages pushed one by one."""
    log = _Log()
    log.apply([Tagged(commands.Bootstrap(cluster="bench", secret=bytes(16)))])
    single = Tagged(commands.Push("hot", columns(1, 100)))
    latencies = Latencies()
    for _ in range(rounds):
        log.apply([single] * HOT)
        lease = [Tagged(commands.Lease(("hot",), HOT, 60_000, log.index))]
        begun = time.perf_counter_ns()
        (granted,) = log.apply(lease)
        latencies.record(time.perf_counter_ns() - begun)
        targets = tuple([Target(grant.uid, grant.lease) for grant in granted.runs])
        log.apply([Tagged(commands.Settle("hot", api.SettleKind.ACK, targets))])
    return latencies.percentiles_ms()
