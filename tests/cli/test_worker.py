"""`walrq worker` as people type it: the example, the first mistakes, the log."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

import walrq
from tests.cli.conftest import Shell
from tests.forks.nodes import Node
from tests.worker.running import until
from walrq.cli.worker import worker

APPLICATION = """
import logging
import flask_like
import walrq

worker = walrq.Worker()
number = 5

@worker.task(queue="mail")
def send(to: str) -> None:
    logging.getLogger("app").info("sending")
    walrq.current().log.info("sent")
    open("sent", "a").write(to)

@worker.task(queue="other")
def other() -> None: ...
"""

# Two workers, one of which runs; none of this names a server.
TWO_SERVERS = """
import asyncio
import walrq

worker = walrq.Worker(backend="asyncio")
elsewhere = walrq.Worker()

@worker.task(queue="first")
async def first() -> None:
    await asyncio.sleep(0)
    await asyncio.to_thread(second.enqueue)
    with walrq.connect() as client:
        client.push("third", "x")

@elsewhere.task(queue="second")
def second() -> None: ...
"""


@pytest.fixture
def site(shell: Shell) -> Shell:
    """A folder with an application."""
    folder = Path(shell.folder)
    (folder / "app.py").write_text(APPLICATION)
    (folder / "flask_like.py").write_text("")
    (folder / "empty.py").write_text("")
    (folder / "two.py").write_text("import walrq\na = walrq.Worker()\nb = walrq.Worker()\n")
    (folder / "broken.py").write_text("def f() -> None:\n    raise ValueError('my own')\n\nf()\n")
    (folder / "needs.py").write_text("import not_installed_anywhere\n")
    return shell


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", "Missing argument 'MODULE:WORKER'"),
        ("ap:worker", "there is no module 'ap' in .*; did you mean app?"),
        ("app.worker", "there is no module 'app.worker' in .*; did you mean app:worker?"),
        ("app:wroker", "module 'app' has no 'wroker'; there is app:worker"),
        ("app:number", "app:number is a int, not a walrq.Worker; there is app:worker"),
        ("app.py", "'app.py' is a file; name the module: app:worker"),
        ("app:", "'app:' is not of the form module:worker, such as app:worker"),
        ("empty", "module 'empty' has no worker; write worker = walrq.Worker\\(\\) at its top level"),
        ("two", "module 'two' has several workers: two:a, two:b"),
        ("needs:worker", "module 'needs' imports 'not_installed_anywhere', which is not installed for"),
        ("app:worker --concurrency 0", "Invalid value for '--concurrency'"),
        ("app:worker --backend gevent", "'gevent' is not one of 'trio', 'asyncio'"),
    ],
)
def test_first_mistakes_say_what_is_there(site: Shell, arguments: str, expected: str) -> None:
    """One line, exit status 2."""
    ran = site(f"walrq worker {arguments}")
    (line,) = ran.stderr.decode().splitlines()

    assert 2 == ran.returncode
    assert re.search(expected, line), line


def test_a_queue_that_nobody_serves_is_said(site: Shell) -> None:
    """With those that there are."""
    ran = site("walrq worker app:worker --queue nope")

    assert 78 == ran.returncode
    assert "walrq: this worker has no task or handler for queue 'nope'; it has mail, other\n" == ran.stderr.decode()


def test_the_applications_own_mistake_is_shown_with_its_traceback(site: Shell) -> None:
    """Its frames, not ours in front of them."""
    ran = site("walrq worker broken:worker")
    said = ran.stderr.decode()

    assert 1 == ran.returncode
    assert "broken.py" in said
    assert "walrq/cli" not in said
    assert "module 'broken' cannot be imported: ValueError: my own" in said


def test_the_example_runs_until_it_is_told_to_stop(site: Shell, node: Node) -> None:
    """JSON lines in a pipe, the application's own among them; exit status 0."""
    assert worker.epilog is not None
    example = worker.epilog.splitlines()[-1].split()[1:]
    with walrq.connect(node.url) as client:
        client.push("mail", b"\x82\x81\x63ada\xa0", headers={"walrq-task": "send"})
    with site.popen(*example) as running:
        until(lambda: (Path(site.folder) / "sent").exists())
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)
    lines = [json.loads(line) for line in said.decode().splitlines()]
    by_event = {line["event"]: line for line in lines}

    assert 0 == running.returncode
    assert "concurrency=8" in by_event["started"]["text"]
    assert "app" == by_event["sending"]["logger"]
    assert ("send", "mail", 1) == tuple(by_event["sent"][name] for name in ("task", "queue", "delivery"))


def test_what_the_application_enqueues_goes_to_the_server_that_its_worker_serves(site: Shell, node: Node) -> None:
    """Also by another worker's task, or a client without an address; the worker's own event loop needs no flag."""
    (Path(site.folder) / "apart.py").write_text(TWO_SERVERS)
    del site.environment["WALRQ_SERVER"]
    with walrq.connect(node.url) as client:
        client.push("first", b"\x82\x80\xa0", headers={"walrq-task": "first"})
        with site.popen("worker", "apart:worker", "--server", node.url) as running:
            until(lambda: {"second", "third"} <= {queue.name for queue in client.list_queues()})
            running.send_signal(signal.SIGTERM)
            _, said = running.communicate(timeout=60)
    started = json.loads(said.decode().splitlines()[0])

    assert 0 == running.returncode
    assert "started" == started["event"]
    assert started["text"].endswith(f"server={node.url}")
