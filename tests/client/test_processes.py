"""The blocking client where people put it: event loops, notebooks, forked and spawned processes, Gunicorn."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.context import BaseContext
from pathlib import Path

import anyio
import pytest
import trio

import walrq
from tests.forks.nodes import Node

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A daemon; each test uses a queue of its own."""
    with Node(tmp_path_factory.mktemp("processes") / "data") as started:
        yield started.start()


def drained(client: walrq.Client, queue: str) -> list[bytes]:
    """Every payload of a queue, acknowledged."""
    found: list[bytes] = []
    while True:
        with client.poll_batch(queue, max_messages=1000) as batches:
            payloads = list(batches.payloads())
        if not payloads:
            return sorted(found)
        found += payloads


# --- inside a running event loop ----------------------------------------------------------------------------
LOOPS: dict[str, Callable[[Callable[[], object]], None]] = {}


def loop(run: Callable[[Callable[[], object]], None]) -> Callable[[Callable[[], object]], None]:
    """Register one way to be inside a running event loop."""
    LOOPS[run.__name__] = run
    return run


@loop
def in_asyncio(work: Callable[[], object]) -> None:
    """As a notebook's cells are run."""

    async def main() -> None:
        work()

    asyncio.run(main())


@loop
def in_trio(work: Callable[[], object]) -> None:
    """As in a half-converted program."""

    async def main() -> None:
        work()

    trio.run(main)


@loop
def in_a_thread_beside_asyncio(work: Callable[[], object]) -> None:
    """As `asyncio.to_thread` does it."""

    async def main() -> None:
        await asyncio.to_thread(work)

    asyncio.run(main())


@loop
def in_a_thread_beside_trio(work: Callable[[], object]) -> None:
    """As `trio.to_thread` does it."""

    async def main() -> None:
        await trio.to_thread.run_sync(work)

    trio.run(main)


@loop
def in_anyio_on_asyncio(work: Callable[[], object]) -> None:
    """As FastAPI does it with a plain `def` route."""

    async def main() -> None:
        await anyio.to_thread.run_sync(work)

    anyio.run(main)


@pytest.mark.parametrize("run", LOOPS.values(), ids=LOOPS.keys())
def test_blocking_calls_work_inside_a_running_loop(
    node: Node, run: Callable[[Callable[[], object]], None], request: pytest.FixtureRequest
) -> None:
    """No `asyncio.run() cannot be called from a running event loop`: there is no loop below."""
    queue = request.node.name
    done: list[bytes] = []

    def work() -> None:
        with walrq.connect(node.url) as client:
            client.push(queue, b"x")
            with client.poll_batch(queue, wait=10) as batches:
                done.extend(batches.payloads())

    run(work)

    assert [b"x"] == done


# --- processes ----------------------------------------------------------------------------------------------
_client: walrq.Client | None = None


def push_with_inherited(queue: str, payload: bytes) -> int:
    """In a forked child: use the client that the parent made."""
    assert _client is not None
    _client.push(queue, payload)
    return os.getpid()


def push_with_own(url: str, queue: str, payload: bytes) -> int:
    """In a spawned child: nothing is inherited."""
    with walrq.connect(url) as client:
        client.push(queue, payload)
    return os.getpid()


def push_with_given(client: walrq.Client, queue: str) -> None:
    """Never reached: a client cannot be given to another process."""
    client.push(queue, b"x")


@contextlib.contextmanager
def worker_pool(context: BaseContext) -> Iterator[ProcessPoolExecutor]:
    """Two worker processes."""
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        yield pool


# Forking a process with threads is what this is about; Python's own warning is for those who do not expect it.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_workers_share_code_and_not_the_connection(node: Node) -> None:
    """A module-level client before a fork is what everybody writes."""
    global _client
    with walrq.connect(node.url) as client:
        client.push("forked", b"parent before")
        _client = client
        try:
            with worker_pool(multiprocessing.get_context("fork")) as pool:
                payloads = [b"%03d" % number for number in range(40)]
                pids = set(pool.map(push_with_inherited, ["forked"] * 40, payloads))
                client.push("forked", b"parent meanwhile")
        finally:
            _client = None

        assert os.getpid() not in pids
        assert [*payloads, b"parent before", b"parent meanwhile"] == drained(client, "forked")


def test_spawned_workers_connect_by_themselves(node: Node) -> None:
    """The address goes to the other process, the client does not."""
    with walrq.connect(node.url) as client, worker_pool(multiprocessing.get_context("spawn")) as pool:
        assert os.getpid() != pool.submit(push_with_own, node.url, "spawned", b"x").result(60)
        with pytest.raises(TypeError, match=r"cannot be pickled.*walrq\.connect there"):
            pool.submit(push_with_given, client, "spawned").result(60)

        assert [b"x"] == drained(client, "spawned")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_while_another_thread_waits_does_not_lock_the_child(node: Node) -> None:
    """The lock was held by a thread that the child does not have."""
    global _client
    with walrq.connect(node.url, pool=2) as client, ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(client.poll, "waited", max_messages=1, wait=60) for _ in range(4)]
        _client = client
        try:
            context = multiprocessing.get_context("fork")
            child = context.Process(target=push_with_inherited, args=("waited", b"child"))
            child.start()
            child.join(60)
            assert 0 == child.exitcode
            client.push_batch("waited", [b"a", b"b", b"c"])
        finally:
            _client = None
        found = [message for each in waiting for message in each.result(60)]
        client.ack(found)

    assert [b"a", b"b", b"c", b"child"] == sorted(message.payload for message in found)


# --- Gunicorn -----------------------------------------------------------------------------------------------
APPLICATION = """
import os
import walrq

queue = walrq.connect()
queue.push("web", b"preloaded")


def application(environ, start_response):
    name = environ["PATH_INFO"].strip("/")
    queue.push("web", name.encode())
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"%d %d" % (os.getpid(), queue._pump()._exchange.session)]
"""
REQUESTS = 60


@contextlib.contextmanager
def gunicorn(folder: Path, url: str) -> Iterator[int]:
    """A preforking server with two workers; gives its port."""
    (folder / "shop.py").write_text(APPLICATION)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
        command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2", "--threads", "4"]
        command += ["--bind", f"fd://{listener.fileno()}", "--worker-tmp-dir", str(folder), "shop:application"]
        environment = {**os.environ, "WALRQ_SERVER": url, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=log, stderr=log, pass_fds=[listener.fileno()]
            )
    try:
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(60), (folder / "log").read_text()


def get(port: int, path: str) -> str:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        assert 200 == response.status
        return response.read().decode()
    finally:
        connection.close()


def test_gunicorn_workers_each_have_a_session_of_their_own_and_lose_nothing(node: Node, tmp_path: Path) -> None:
    """`--preload` makes the client before the fork: two workers on one socket would tear each other's frames."""
    workers: dict[str, set[str]] = {}
    lock = threading.Lock()

    def ask(number: int) -> None:
        pid, session = get(port, f"/{number}").split()
        with lock:
            workers.setdefault(pid, set()).add(session)

    with gunicorn(tmp_path, node.url) as port, ThreadPoolExecutor(8) as pool:
        numbers = 0
        # The kernel chooses the worker: ask until both had their turn, and at least so often.
        while numbers < REQUESTS or len(workers) < 2:
            list(pool.map(ask, range(numbers, numbers + 20)))
            numbers += 20
            assert numbers < 5000, "one worker answers everything"

    assert [1, 1] == [len(sessions) for sessions in workers.values()]
    assert 2 == len(set.union(*workers.values()))
    log = (tmp_path / "log").read_text()
    assert not re.search("Traceback|Error", log), log
    with walrq.connect(node.url) as client:
        assert sorted([b"preloaded", *(b"%d" % number for number in range(numbers))]) == drained(client, "web")
