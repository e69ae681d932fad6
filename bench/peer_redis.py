"""The other side of the comparison: a real redis-server, its streams, and redis-py pipelines.

The same work as `throughput`: producers XADD, consumers XREADGROUP and XACK (no XDEL: a stream keeps what was
acknowledged, and deleting it would only slow Redis down). The server syncs before it answers (`appendfsync
always`). redis-py blocks and does much in Python, so every client gets a process of its own and sends its
whole window in one pipeline: the arrangement in which this client is fastest.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import multiprocessing
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

Counts = Sequence[Any]
STREAM, GROUP = "bench", "workers"
WARM_UP_S = 1.0
START_S_MAX = 20.0
"""How long redis-server may take to answer its first PING."""


def missing() -> str | None:
    """Why the comparison cannot be made here, or None."""
    if shutil.which("redis-server") is None:
        return "redis-server is not installed"
    if importlib.util.find_spec("redis") is None:
        return "the Python package redis is not installed"
    return None


@contextlib.contextmanager
def server(folder: Path, fsync: str) -> Iterator[tuple[int, int]]:
    """A redis-server of our own on a free port: (port, process id). It syncs as walrq does under this policy."""
    import redis

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    sync = {"always": "always", "never": "no"}.get(fsync, "everysec")
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", sync, "--daemonize", "no", "--loglevel", "warning"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(port=port) as admin:
            deadline = time.monotonic() + START_S_MAX
            while True:
                try:
                    admin.ping()
                    break
                except redis.ConnectionError:
                    if time.monotonic() > deadline or process.poll() is not None:
                        raise SystemExit("redis-server did not start") from None
                    time.sleep(0.05)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(START_S_MAX)


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One run against one fresh server."""
    import redis

    with server(folder, arguments.fsync) as (port, pid), redis.Redis(port=port) as admin:
        admin.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        figures = _drive(arguments, port, pid)
        figures["rss_mb"] = round(admin.info("memory")["used_memory_rss"] / 1e6, 1)
        figures["version"] = admin.info("server")["redis_version"]
        return figures


def _drive(arguments: argparse.Namespace, port: int, pid: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    counts = [context.Value("q", 0) for _ in range(arguments.producers + arguments.consumers)]
    shape = (port, arguments.batch, arguments.size, arguments.window)
    workers = [
        context.Process(
            target=_produce if number < arguments.producers else _consume,
            args=(*shape, number, arguments.producers, counts, stop),
        )
        for number in range(len(counts))
    ]
    for worker in workers:
        worker.start()
    try:
        deadline = time.monotonic() + START_S_MAX
        while min(count.value for count in counts) == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(WARM_UP_S)
        before, cpu = [count.value for count in counts], cpu_s(pid)
        started = time.perf_counter()
        time.sleep(arguments.seconds)
        elapsed = time.perf_counter() - started
        made = [count.value - then for count, then in zip(counts, before, strict=True)]
        cpu = cpu_s(pid) - cpu
    finally:
        stop.set()
        for worker in workers:
            worker.join(START_S_MAX)
    pushed, taken = sum(made[: arguments.producers]), sum(made[arguments.producers :])
    ops = pushed + 2 * taken
    return {
        "ops_per_s": round(ops / elapsed),
        "msgs_per_s": round(taken / elapsed),
        "server_cpu_s_per_million_ops": round(cpu / max(1, ops) * 1e6, 3),
        "seconds": round(elapsed, 3),
    }


def cpu_s(pid: int) -> float:
    """User and system seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _produce(
    port: int, batch: int, size: int, window: int, number: int, producers: int, counts: Counts, stop: Event
) -> None:
    """Keep `window` batches in one pipeline; pause while too much waits to be read."""
    import redis

    client = redis.Redis(port=port)
    payload = b"x" * size
    waiting_max = 4 * window * batch * producers
    while not stop.is_set():
        if sum(c.value for c in counts[:producers]) - sum(c.value for c in counts[producers:]) > waiting_max:
            stop.wait(0.001)
            continue
        pipeline = client.pipeline(transaction=False)
        for _ in range(batch * window):
            pipeline.xadd(STREAM, {b"p": payload})
        pipeline.execute()
        counts[number].value += batch * window


def _consume(
    port: int, batch: int, size: int, window: int, number: int, producers: int, counts: Counts, stop: Event
) -> None:
    """Read `window` batches in one pipeline, acknowledge them in the next."""
    import redis

    client = redis.Redis(port=port)
    name = f"c{number}"
    while not stop.is_set():
        pipeline = client.pipeline(transaction=False)
        for _ in range(window):
            pipeline.xreadgroup(GROUP, name, {STREAM: ">"}, count=batch)
        batches = [[identifier for identifier, _ in reply[0][1]] for reply in pipeline.execute() if reply]
        if not batches:
            stop.wait(0.001)
            continue
        pipeline = client.pipeline(transaction=False)
        for identifiers in batches:
            pipeline.xack(STREAM, GROUP, *identifiers)
        pipeline.execute()
        counts[number].value += sum(map(len, batches))
