"""Every program of docs/examples/ is run against a node of its own, and did what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import walrq
from walrq.testing.server import Server

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "docs/examples"
SECONDS_MAX = 120


@pytest.fixture
def node() -> Iterator[Server]:
    """A fresh node for one example."""
    with Server() as server:
        yield server


def environment(node: Server) -> dict[str, str]:
    """The settings of a process that is the node's client."""
    return {**os.environ, "WALRQ_SERVER": node.url, "PYTHONPATH": str(ROOT)}


def run(name: str, node: Server, folder: Path) -> list[str]:
    """What the program prints, line by line; it ends with status 0, warns of nothing and leaves nothing on stderr."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        cwd=folder,
        env=environment(node),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert (0, "") == (ran.returncode, ran.stderr)
    return ran.stdout.splitlines()


def test_background_jobs(node: Server, tmp_path: Path) -> None:
    """A worker is killed in the middle: its job is done by another, once."""
    printed = run("background_jobs.py", node, tmp_path)

    assert [
        "first worker: started small.png, delivery 1",
        "first worker: started big.png, delivery 1",
        "killed the first worker; done so far: ['small.png']",
    ] == printed[:3]
    # The second worker takes what is there and the killed one's job when its lease is over.
    assert {
        "second worker: started big.png, delivery 2",
        "second worker: started tiny.png, delivery 1",
    } == set(printed[3:5])
    assert [
        "the second worker ended with 0",
        "done: ['big.png', 'small.png', 'tiny.png']",
        "left: 0 ready, 0 leased, 0 dead",
    ] == printed[5:]


def test_webhook_ingest(node: Server, tmp_path: Path) -> None:
    """A burst is absorbed, repeats are recognised, the pace is kept."""
    expected = [
        "sent 40, waiting 20",
        "processed 20 different events: 20",
        "at most 40 a second: True",
        "left 0",
    ]

    assert expected == run("webhook_ingest.py", node, tmp_path)


def test_vip_priority(node: Server, tmp_path: Path) -> None:
    """VIPs first, and the others get their share."""
    expected = [
        "strict: vip 0, vip 1, normal 0, normal 1, normal 2",
        "round 1: 8 vip, 2 normal",
        "round 2: 8 vip, 2 normal",
        "round 3: 4 vip, 2 normal",
    ]

    assert expected == run("vip_priority.py", node, tmp_path)


def test_reminders(node: Server, tmp_path: Path) -> None:
    """Taking back and moving answer exactly."""
    expected = [
        "waiting: 3",
        "cancel dentist: done",
        "cancel it again: gone",
        "dinner is now: done",
        "remind of dinner",
        "move it while it is being sent: leased",
        "left: flight in 24 h",
    ]

    assert expected == run("reminders.py", node, tmp_path)


def test_dlq_repair(node: Server, tmp_path: Path) -> None:
    """What died is understood, sent back and mended; nothing is charged twice or lost."""
    expected = [
        "charged at night: 0",
        "dead: 4 x GatewayDown",
        "dead: 1 x ValueError",
        "attempts of the first: ['no answer within 5 s', 'no answer within 5 s']",
        "would move: 4",
        "moved: 4",
        "charged in the morning: 4",
        "charged after mending: 1",
        "left dead: 0",
    ]

    assert expected == run("dlq_repair.py", node, tmp_path)
    with walrq.connect(node.url) as queue:
        assert (0, 0) == (queue.show_queue("invoices").ready, queue.show_queue("invoices").dead)


def test_django_orders(node: Server, tmp_path: Path) -> None:
    """A rolled back order leaves no job, a repaired one no second."""
    expected = [
        "rolled back: the card was declined",
        "enqueued: 1",
        "repair enqueues again: 1, waiting: 1",
        "confirmed order 1",
        "unconfirmed: 0, left: 0",
    ]

    assert expected == run("django_orders.py", node, tmp_path)


FASTAPI_SESSION = """
import json, sys
from fastapi.testclient import TestClient
import fastapi_app

answers = []
with TestClient(fastapi_app.app) as client:
    first = client.post("/thumbnails", params={"image": "a.png", "idempotency_key": "k"})
    again = client.post("/thumbnails", params={"image": "a.png", "idempotency_key": "k"})
    other = client.post("/thumbnails", params={"image": "b.png"})
    answers += [first.status_code, first.json() == again.json(), first.json() == other.json()]
    answers.append(client.get("/thumbnails").json())
    answers.append(client.delete("/thumbnails/" + other.json()["job"]).json())
    answers.append(client.delete("/thumbnails/" + other.json()["job"]).json())
    answers.append(client.delete("/thumbnails/" + "0" * 26).status_code)
print(json.dumps(answers))
"""


def test_fastapi_app(node: Server, tmp_path: Path) -> None:
    """The application's client lives as long as the application, and its answers are those of the queue."""
    ran = subprocess.run(
        [sys.executable, "-c", FASTAPI_SESSION],
        cwd=EXAMPLES,
        env=environment(node) | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )

    assert 0 == ran.returncode, ran.stderr
    assert [
        202,
        True,
        False,
        {"ready": 2, "leased": 0},
        {"outcome": "done"},
        {"outcome": "gone"},
        404,
    ] == json.loads(ran.stdout)
    with walrq.connect(node.url) as queue:
        assert [{"image": "a.png"}] == [message.json() for message in queue.poll("thumbnails")]


EXECUTE = """
import sys, nbformat, nbclient

notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


def outputs(path: Path) -> list[list[str]]:
    """What each code cell shows, as text."""
    found = []
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            found.append(["".join(each["data"]["text/plain"]) for each in cell["outputs"] if "data" in each])
    return found


def test_notebook(node: Server, tmp_path: Path) -> None:
    """The notebook shows what it shows when it is run, outputs included."""
    execute_notebook(node, EXAMPLES / "notebook.ipynb", tmp_path / "executed.ipynb")

    shown = outputs(tmp_path / "executed.ipynb")
    assert ["5"] == shown[0]
    assert ["['run 3', 'run 4']"] == shown[-2]
    assert outputs(EXAMPLES / "notebook.ipynb") == shown


def execute_notebook(node: Server, source: Path, target: Path) -> None:
    """Run every cell of `source` and store it with its outputs as `target`."""
    ran = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(source), str(target)],
        cwd=target.parent,
        env=environment(node) | {"PYDEVD_DISABLE_FILE_VALIDATION": "1", "IPYTHONDIR": str(target.parent)},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert 0 == ran.returncode, ran.stderr


# --- the folder itself --------------------------------------------------------------------------------------
def test_every_example_says_what_it_shows_and_is_tested() -> None:
    """A program opens with what it shows and how to run it, stands on the page, and has its test here."""
    here = Path(__file__).read_text()
    page = (EXAMPLES / "index.md").read_text()
    programs = sorted([*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")])
    assert 8 <= len(programs)

    for program in programs:
        text = program.read_text()
        assert re.search(r"\bShows\b", text), program.name
        assert program.suffix == ".ipynb" or "Run it" in text, program.name
        assert program.name in page, f"{program.name} is not on the page"
        assert f"def test_{program.stem}(" in here, f"{program.name} has no test"
