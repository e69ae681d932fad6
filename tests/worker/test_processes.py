"""Worker processes as they are run in production: signalled, killed, and looked at from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import walrq
from tests.forks.nodes import Node
from tests.forks.processes import Walrq
from tests.worker.running import until

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS_MAX = 180

APPLICATION = """
import os, threading
from pathlib import Path
import anyio
import walrq

worker = walrq.Worker(concurrency=1, prefetch=5, lease=float(os.environ["LEASE"]),
                      stop_timeout=float(os.environ["STOP_TIMEOUT"]))
folder = Path(__file__).parent

def note(event):
    here = walrq.current()
    with open(folder / "events", "a") as file:
        file.write(f"{event} {here.message_id} {here.delivery} {here.attempts}\\n")

@worker.task(queue="jobs")
def hold():
    note("begin")
    while not (folder / "go").exists():
        threading.Event().wait(0.01)
    note("end")

@worker.task(queue="jobs")
def deaf():
    note("begin")
    threading.Event().wait()

@worker.task(queue="jobs")
def polite():
    note("begin")
    while True:
        walrq.current().check()
        threading.Event().wait(0.01)

@worker.task(queue="jobs")
async def sleep():
    note("begin")
    await anyio.sleep_forever()
"""


class Site:
    """A folder with an application, a node, and workers of it."""

    def __init__(self, folder: Path, node: Node) -> None:
        self.folder = folder
        self.node = node
        self.client = walrq.connect(node.url)
        self.lease = 30.0
        self.stop_timeout = 30.0
        self._workers: list[subprocess.Popen[bytes]] = []
        (folder / "app.py").write_text(APPLICATION)

    def enqueue(self, *tasks: str) -> list[str]:
        """Put calls on the queue."""
        return list(
            self.client.push_batch(
                "jobs", [walrq.NewMessage(b"\x82\x80\xa0", headers={"walrq-task": task}) for task in tasks]
            )
        )

    def start(self, *flags: str) -> subprocess.Popen[bytes]:
        """A worker process; it logs JSON lines to a file."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "WALRQ_SERVER": self.node.url,
            "LEASE": str(self.lease),
            "STOP_TIMEOUT": str(self.stop_timeout),
        }
        with (self.folder / "log").open("ab") as log:
            process = Walrq(
                *("worker", "app:worker", *flags),
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self._workers.append(process)
        return process

    def events(self, name: str) -> list[list[str]]:
        """What handlers noted under this name."""
        path = self.folder / "events"
        if not path.exists():
            return []
        return [line.split()[1:] for line in path.read_text().splitlines() if line.split()[0] == name]

    def log(self) -> list[dict[str, Any]]:
        """The lines of all workers."""
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]

    def count(self, state: str) -> int:
        """How many messages are in one state."""
        return int(getattr(self.client.show_queue("jobs"), state))

    def close(self) -> None:
        """End everything."""
        for process in self._workers:
            process.kill()
            process.wait(SECONDS_MAX)
        self.client.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A daemon; each test purges its queue."""
    with Node(tmp_path_factory.mktemp("node") / "data") as started:
        yield started.start()


@pytest.fixture
def site(tmp_path: Path, node: Node) -> Iterator[Site]:
    """An application of this test's own."""
    made = Site(tmp_path, node)
    made.client.create_queue("jobs")
    made.client.purge_queue("jobs")
    yield made
    made.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_releases_what_was_not_started_and_waits_for_the_rest(site: Site, number: int) -> None:
    """At once, so that other workers have it; what runs is done and acknowledged."""
    first, *others = site.enqueue("hold", "hold", "hold", "hold")
    worker = site.start()
    until(lambda: bool(site.events("begin")) and 4 == site.count("leased"))

    worker.send_signal(number)
    until(lambda: 3 == site.count("ready"))
    assert worker.poll() is None
    assert 1 == site.count("leased")
    (site.folder / "go").touch()

    assert 0 == worker.wait(SECONDS_MAX)
    assert [[first, "1", "0"]] == site.events("end")
    again = site.client.poll("jobs")
    assert others == [message.message_id for message in again]
    assert [0, 0, 0] == [message.attempts for message in again]
    site.client.ack(again)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("task", ["sleep", "polite", "deaf"])
def test_when_patience_is_over_handlers_are_ended_and_the_status_says_so(site: Site, task: str, backend: str) -> None:
    """A coroutine is cancelled, a thread is told, and one that does not listen ends with the process. Whichever it is,
    its message is ready for another worker, free of charge."""
    site.stop_timeout = 0.01
    (message_id,) = site.enqueue(task)
    worker = site.start("--backend", backend)
    until(lambda: bool(site.events("begin")))

    worker.terminate()

    assert 8 == worker.wait(SECONDS_MAX)
    (message,) = site.client.poll("jobs")
    assert (message_id, 0) == (message.message_id, message.attempts)
    site.client.ack(message)
    lines = site.log()
    assert {"started", "signal", "stopping", "cancelling"} <= {line["event"] for line in lines}
    assert ["at_most=0.01s"] == [line["text"].split()[-1] for line in lines if line["event"] == "stopping"]
    assert "stopped status=8" == lines[-1]["text"]


def test_a_second_signal_does_not_wait(site: Site) -> None:
    """The operator is in a hurry."""
    site.stop_timeout = 600
    site.enqueue("sleep")
    worker = site.start()
    until(lambda: bool(site.events("begin")))
    worker.terminate()
    until(lambda: "stopping" in {line["event"] for line in site.log()})

    def again() -> bool:
        # Too soon after the first it would be taken for the same one.
        worker.terminate()
        return worker.poll() is not None

    until(again)
    assert 8 == worker.wait(SECONDS_MAX)
    assert 1 == site.count("ready")


def test_after_kill_9_the_job_is_back_after_its_lease_once(site: Site) -> None:
    """Nothing has to be swept up: the lease ends, and one other worker does it."""
    site.lease = 0.5
    (message_id,) = site.enqueue("hold")
    victim = site.start()
    until(lambda: bool(site.events("begin")))
    victim.kill()
    victim.wait(SECONDS_MAX)
    (site.folder / "go").touch()
    heirs = [site.start() for _ in range(2)]
    until(lambda: bool(site.events("end")))
    until(lambda: 0 == site.count("leased"))
    until(lambda: 3 == [line["event"] for line in site.log()].count("started"))
    for heir in heirs:
        heir.terminate()

    assert [0, 0] == [heir.wait(SECONDS_MAX) for heir in heirs]
    # The expiry counts as an attempt: a job that kills its worker does not come back for ever.
    assert [[message_id, "2", "1"]] == site.events("end")
    assert 0 == site.count("ready")


def test_a_worker_waits_for_a_server_that_is_not_there_yet(site: Site, tmp_path: Path) -> None:
    """Started together, they find each other; and a stop before that ends it."""
    from walrq.client.config import parse_url

    with Node(tmp_path / "later" / "data") as later:
        later.data_dir.parent.mkdir()
        later.start()
        (endpoint,) = parse_url(later.url)
        later.kill()
        worker = site.start("--server", later.url)
        until(lambda: "waiting" in {line["event"] for line in site.log()})
        later.listen = str(endpoint)
        later.start()
        until(lambda: "started" in {line["event"] for line in site.log()})
        later.kill()
        worker.terminate()
        assert 0 == worker.wait(SECONDS_MAX)
        lonely = site.start("--server", later.url)
        until(lambda: 2 == [line["event"] for line in site.log()].count("waiting"))
        lonely.terminate()
        assert 0 == lonely.wait(SECONDS_MAX)
