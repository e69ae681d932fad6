"""Plain callers, one call in flight each: what a web application or a fleet of simple workers asks of a client.

Every caller pushes one message, leases one and acknowledges it, again and again. With `--face async` all callers are
tasks on one client in one process; with `--face sync` each is a process with a blocking client of its own. `--compare
redis` runs the same work on Redis lists (RPUSH, LMOVE to a list of its own, LREM) with redis-py, `appendfsync always`,
interleaved.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import anyio

import walrq
import walrq.aio
from walrq.testing.node import Node

from . import peer_redis
from .figures import scratch, table

QUEUE = "bench"
OPS_PER_ROUND = 3
WARM_UP_S = 1.0
START_S_MAX = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--face", choices=["async", "sync"], default="async")
    parser.add_argument("--callers", type=int, default=None, help="default: 20 tasks, or 8 processes")
    parser.add_argument("--backend", choices=["asyncio", "trio"], default="asyncio", help="with --face async")
    parser.add_argument("--size", type=int, default=100, help="bytes per payload")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--fsync", default="always", help="always, never or interval:MS")
    parser.add_argument("--compare", choices=["redis"], help="run a peer interleaved, report the ratio")
    parser.add_argument("--pairs", type=int, default=5, help="interleaved pairs of --compare")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    if arguments.callers is None:
        arguments.callers = 20 if arguments.face == "async" else 8
    missing = peer_redis.missing() if arguments.compare else None
    if missing is not None:
        print(f"redis: skipped, {missing}")
    ours, theirs = [], []
    for _ in range(arguments.pairs if arguments.compare else 1):
        with scratch(arguments.dir) as folder:
            ours.append(_measure_walrq(arguments, folder))
        if arguments.compare and missing is None:
            with scratch(arguments.dir) as folder, peer_redis.server(folder, arguments.fsync) as (port, pid):
                theirs.append(_measure(arguments, _redis_face(arguments), port, lambda pid=pid: peer_redis.cpu_s(pid)))
            print(f"walrq {ours[-1]['ops_per_s']:,} redis {theirs[-1]['ops_per_s']:,} ops/s")
    own = sorted(ours, key=lambda figures: figures["ops_per_s"])[len(ours) // 2]
    figures = {**own, "all_ops_per_s": [each["ops_per_s"] for each in ours], "settings": _settings(arguments)}
    rows = [("walrq", own)]
    if theirs:
        peer = sorted(theirs, key=lambda figures: figures["ops_per_s"])[len(theirs) // 2]
        rows.append(("redis lists", peer))
        ratio = statistics.median(a["ops_per_s"] / b["ops_per_s"] for a, b in zip(ours, theirs, strict=True))
        figures |= {"peer": {**peer, "all_ops_per_s": [each["ops_per_s"] for each in theirs]}, "ratio": round(ratio, 2)}
    cells = [
        [
            name,
            row["ops_per_s"],
            row["round_ms"],
            row["server_cpu_s_per_million_ops"],
            row["client_cpu_s_per_million_ops"],
        ]
        for name, row in rows
    ]
    print(table(cells, header=["", "ops/s", "ms per push+poll+ack", "server s/Mop", "client s/Mop"]))
    if theirs:
        print(f"ratio (median of {arguments.pairs} pairs): {figures['ratio']:.2f}")
    return figures


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in ("face", "callers", "backend", "size", "seconds", "fsync")}


def _measure_walrq(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    with Node(folder / "data", flags=["--fsync", arguments.fsync]) as node:
        node.start()
        face = walrq_tasks if arguments.face == "async" else walrq_caller
        figures = _measure(arguments, face, f"walrq://{node.address[0]}:{node.address[1]}", node.cpu_s)
        status = node.stop()
    if status != 0:
        raise SystemExit(f"the daemon ended with status {status}: {node.last_words()}")
    return figures


def _redis_face(arguments: argparse.Namespace) -> Callable[..., None]:
    return redis_tasks if arguments.face == "async" else redis_caller


def _measure(
    arguments: argparse.Namespace, face: Callable[..., None], where: Any, server_cpu_s: Callable[[], float]
) -> dict[str, Any]:
    """Run the callers in processes of their own; rounds and CPU time between the end of the warm-up and the end."""
    context = multiprocessing.get_context("spawn")
    processes, pipes = [], []
    for number in range(1 if arguments.face == "async" else arguments.callers):
        near, far = context.Pipe()
        process = context.Process(target=face, args=(where, arguments, number, far))
        process.start()
        far.close()
        processes.append(process)
        pipes.append(near)
    for pipe in pipes:
        if not pipe.poll(START_S_MAX):
            raise SystemExit("a caller did not get ready")
        pipe.recv()
    begin_at = time.monotonic() + WARM_UP_S
    for pipe in pipes:
        pipe.send((begin_at, begin_at + arguments.seconds))
    time.sleep(max(0.0, begin_at - time.monotonic()))
    cpu, started = server_cpu_s(), time.monotonic()
    time.sleep(max(0.0, begin_at + arguments.seconds - time.monotonic()))
    cpu, elapsed = server_cpu_s() - cpu, time.monotonic() - started
    rounds, own_cpu = 0, 0.0
    for pipe, process in zip(pipes, processes, strict=True):
        if not pipe.poll(START_S_MAX):
            raise SystemExit("a caller did not end")
        made, used = pipe.recv()
        rounds, own_cpu = rounds + made, own_cpu + used
        process.join(START_S_MAX)
    ops = rounds * OPS_PER_ROUND
    return {
        "ops_per_s": round(ops / elapsed),
        "round_ms": round(arguments.callers * elapsed / max(1, rounds) * 1000, 3),
        "server_cpu_s_per_million_ops": round(cpu / max(1, ops) * 1e6, 1),
        "client_cpu_s_per_million_ops": round(own_cpu / max(1, ops) * 1e6, 1),
        "seconds": round(elapsed, 3),
    }


class Window:
    """Counts rounds between two moments, and the CPU time of this process meanwhile."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        pipe.send("ready")
        self._begin_at, self._end_at = pipe.recv()
        self._rounds = 0
        self._cpu = 0.0
        self._begun = False

    def goes_on(self) -> bool:
        """Called after each round; False when the time is over."""
        now = time.monotonic()
        if now >= self._end_at:
            return False
        if self._begun:
            self._rounds += 1
        elif now >= self._begin_at:
            self._begun, self._cpu = True, time.process_time()
        return True

    def tell(self) -> None:
        """Report to the parent."""
        self._pipe.send((self._rounds, time.process_time() - self._cpu))


def walrq_tasks(url: str, arguments: argparse.Namespace, number: int, pipe: Connection) -> None:
    """All callers on one asynchronous client."""

    async def main() -> None:
        payload = b"x" * arguments.size
        async with walrq.aio.connect(url) as client:
            window = Window(pipe)

            async def caller() -> None:
                while window.goes_on():
                    await client.push(QUEUE, payload)
                    for message in await client.poll(QUEUE, 30, 1):
                        await client.ack(message)

            async with anyio.create_task_group() as tasks:
                for _ in range(arguments.callers):
                    tasks.start_soon(caller)
            window.tell()

    anyio.run(main, backend=arguments.backend)


def walrq_caller(url: str, arguments: argparse.Namespace, number: int, pipe: Connection) -> None:
    """One blocking client, one call at a time."""
    payload = b"x" * arguments.size
    with walrq.connect(url) as client:
        window = Window(pipe)
        while window.goes_on():
            client.push(QUEUE, payload)
            for message in client.poll(QUEUE, 30, 1):
                client.ack(message)
        window.tell()


def redis_tasks(port: int, arguments: argparse.Namespace, number: int, pipe: Connection) -> None:
    """All callers on one redis.asyncio client, which has a pool of connections."""
    import redis.asyncio

    async def main() -> None:
        payload = b"x" * arguments.size
        client = redis.asyncio.Redis(port=port, max_connections=arguments.callers)
        await client.ping()
        window = Window(pipe)

        async def caller(own: str) -> None:
            while window.goes_on():
                await client.rpush(QUEUE, payload)
                taken = await client.lmove(QUEUE, own, "LEFT", "RIGHT")
                if taken is not None:
                    await client.lrem(own, 1, taken)

        await asyncio.gather(*[caller(f"taken-{each}") for each in range(arguments.callers)])
        window.tell()
        await client.aclose()

    asyncio.run(main())


def redis_caller(port: int, arguments: argparse.Namespace, number: int, pipe: Connection) -> None:
    """One redis-py client, one call at a time."""
    import redis

    payload, own = b"x" * arguments.size, f"taken-{number}"
    client = redis.Redis(port=port)
    client.ping()
    window = Window(pipe)
    while window.goes_on():
        client.rpush(QUEUE, payload)
        taken = client.lmove(QUEUE, own, "LEFT", "RIGHT")
        if taken is not None:
            client.lrem(own, 1, taken)
    window.tell()
    client.close()
