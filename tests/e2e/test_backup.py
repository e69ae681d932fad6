"""`walrq backup` of a real node under load, `walrq restore`, and a node that serves what was acknowledged."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.stops import Line
from tests.cli.conftest import Shell, make_shell
from tests.e2e.conftest import Starter
from tests.e2e.talk import ack, empty, push, take
from tests.forks.nodes import Node
from walrq import api
from walrq.protocol.columns import unpack_run

SMALL = ("--max-wal-segment-size", "256KiB", "--snapshot-commands", "300")
RELEASE_S_MAX = 30.0


class Load:
    """A producer and a worker that settles what it takes, over one connection each, until stopped."""

    def __init__(self, node: Node, rng: random.Random) -> None:
        self.pushed: list[bytes] = []
        self.settled: list[bytes] = []
        self._stop = threading.Event()
        self._bodies = rng.randbytes(4_000)
        self._threads = [threading.Thread(target=run, args=(node,)) for run in (self._produce, self._work)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _produce(self, node: Node) -> None:
        line = Line(node.address)
        number = 0
        while not self._stop.is_set():
            batch = [b"%d " % (number + k) + self._bodies for k in range(5)]
            assert isinstance(push(line, "jobs", batch), api.Pushed)
            self.pushed += batch
            number += 5
        line.close()

    def _work(self, node: Node) -> None:
        line = Line(node.address)
        while not self._stop.is_set():
            runs = take(line, "jobs", 9)
            if runs:
                assert {0} == set(ack(line, runs))
                self.settled += [payload for run in runs for payload in unpack_run(run).payloads]
        line.close()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """The command line, without a server of its own."""
    return make_shell(tmp_path, None)


def descriptors(node: Node) -> list[str]:
    """What files the node has open below its data directory."""
    folder = Path(f"/proc/{node.pid}/fd")
    found = []
    for link in folder.iterdir():
        try:
            target = os.readlink(link)
        except FileNotFoundError:
            continue
        if target.startswith(str(node.data_dir)):
            found.append(target)
    return found


def test_under_load_all_that_was_acknowledged_before_is_there_and_nothing_settled_before(
    start_node: Starter, shell: Shell, rng: random.Random, tmp_path: Path
) -> None:
    """Three backups in a row while messages come, go and are compacted away; each is a whole node."""
    node = start_node(*SMALL)
    shell.environment["WALRQ_SERVER"] = node.url
    marks = []
    with Load(node, rng) as load:
        for number in range(3):
            while len(load.settled) < 300 * (number + 1):
                time.sleep(0)
            before = (len(load.pushed), len(load.settled))
            ran = shell.walrq("backup", f"{number}.backup", "--json")
            assert (0, b"") == (ran.returncode, ran.stderr)
            marks.append((before, len(load.pushed), json.loads(ran.stdout)))
    pushed, settled = load.pushed, load.settled
    for number, ((pushed_before, settled_before), pushed_after, summary) in enumerate(marks):
        target = tmp_path / f"restored{number}"
        ran = shell.walrq("restore", f"{number}.backup", "--data-dir", str(target), "--json")
        assert (0, b"") == (ran.returncode, ran.stderr)
        copy = start_node("--max-wal-segment-size", "256KiB", data_dir=target)
        line = Line(copy.address)
        # What was under a lease when the backup began comes back later, or is still with its worker.
        there = set(empty(line, "jobs"))
        info = line.call(api.ShowQueue("jobs"))
        line.close()
        copy.kill()
        missing = set(pushed[:pushed_before]) - set(settled) - there

        assert isinstance(info, api.QueueInfo)
        assert len(there) + info.leased == summary["messages"]
        assert set() == missing
        assert set() == there & set(settled[:settled_before])
        assert there <= set(pushed[: pushed_after + 5])
        assert info.leased <= 9


def test_nothing_stays_open_or_held_after_backups(start_node: Starter, shell: Shell, tmp_path: Path) -> None:
    """Ten backups, one of them cut by kill -9 of its client: no descriptor more, no segment kept."""
    node = start_node(*SMALL)
    shell.environment["WALRQ_SERVER"] = node.url
    line = Line(node.address)
    for _ in range(20):
        push(line, "jobs", [os.urandom(60_000)])
    shell.walrq("backup", "first.backup")
    before = sorted(descriptors(node))
    for number in range(8):
        assert 0 == shell.walrq("backup", f"{number}.backup").returncode
    # Its reader never reads: the client stands still in the middle.
    child = shell.popen("backup", "-")
    assert child.stdout is not None and child.stdin is not None and child.stderr is not None
    assert b"backup.json" in child.stdout.read(300)
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout, child.stderr):
        pipe.close()
    until = time.monotonic() + RELEASE_S_MAX
    while b"connection ended" not in node.log.read_bytes() and time.monotonic() < until:
        time.sleep(0)
    assert b"connection ended" in node.log.read_bytes()
    ran = shell.walrq("backup", "last.backup")
    empty(line, "jobs")
    line.close()

    assert (0, b"") == (ran.returncode, ran.stderr)
    assert sorted(set(descriptors(node))) == sorted(set(before))
    assert len(descriptors(node)) <= len(before)
    assert 0 == node.stop()


def test_a_server_killed_in_the_middle_leaves_no_half_file(start_node: Starter, shell: Shell, tmp_path: Path) -> None:
    """The client says what happened, keeps last night's file, and its status says that it may be tried again."""
    node = start_node(*SMALL)
    shell.environment["WALRQ_SERVER"] = node.url
    line = Line(node.address)
    for _ in range(10):
        push(line, "jobs", [os.urandom(60_000)])
    line.close()
    pipe, out = os.pipe()
    child = subprocess.Popen(
        ["walrq", "backup", "-"], stdout=out, stderr=subprocess.PIPE, cwd=tmp_path, env=shell.environment
    )
    os.close(out)
    assert b"backup.json" in os.read(pipe, 300)
    # The pipe is full: the client waits in the middle of the file.
    node.kill()
    while os.read(pipe, 1 << 16):
        pass
    os.close(pipe)
    _, said = child.communicate(timeout=60)

    assert child.returncode in (5, 6)
    assert 1 == len(said.splitlines())
    assert b"the server is gone" in said or b"127.0.0.1" in said
    unreachable = shell.walrq("backup", "x.backup")
    assert 5 == unreachable.returncode
    assert not list(tmp_path.glob("x.backup*"))


def test_ctrl_c_leaves_no_half_file(start_node: Starter, shell: Shell, tmp_path: Path) -> None:
    """An impatient person gets the prompt back at once, and no file that looks like a backup."""
    node = start_node("--max-wal-segment-size", "16MiB")
    shell.environment["WALRQ_SERVER"] = node.url
    line = Line(node.address)
    for _ in range(10):
        push(line, "jobs", [os.urandom(1_000_000)] * 4)
    line.close()
    child = shell.popen("backup", "x.backup")
    part = tmp_path / "x.backup.part"
    while not part.exists() and child.poll() is None:
        time.sleep(0)
    # In the middle of the file: the client waits for a server that stands still.
    node.signal(signal.SIGSTOP)
    assert part.exists() and not (tmp_path / "x.backup").exists()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    node.signal(signal.SIGCONT)

    assert (130, b"") == (child.returncode, out), err
    assert b"Traceback" not in err
    assert not list(tmp_path.glob("x.backup*"))


def test_a_stopped_node_is_backed_up_from_its_directory(start_node: Starter, shell: Shell, tmp_path: Path) -> None:
    """With the lock taken, so never beside a running one; its settings and files stay as they were."""
    node = start_node(*SMALL)
    line = Line(node.address)
    push(line, "jobs", [b"one", b"two"])
    line.close()
    running = shell.walrq("backup", "x.backup", "--data-dir", str(node.data_dir))
    assert 0 == node.stop()
    sizes = {path.stat().st_size for path in (node.data_dir / "wal").iterdir()}
    ran = shell.walrq("backup", "x.backup", "--data-dir", str(node.data_dir))
    nowhere = shell.walrq("backup", "y.backup", "--data-dir", str(tmp_path / "nowhere"))
    restored = shell.walrq("restore", "x.backup", "--data-dir", "copy")

    assert (75, b"") == (running.returncode, running.stdout)
    assert (0, b"") == (ran.returncode, ran.stderr)
    assert b"2 messages" in ran.stdout
    assert 74 == nowhere.returncode and b"no walrq data directory" in nowhere.stderr
    assert sizes == {path.stat().st_size for path in (node.data_dir / "wal").iterdir()}
    assert 0 == restored.returncode
    copy = start_node(data_dir=tmp_path / "copy")
    line = Line(copy.address)
    assert [b"one", b"two"] == empty(line, "jobs")
    line.close()


@pytest.fixture
def backup_file(start_node: Starter, shell: Shell, tmp_path: Path) -> Iterator[Path]:
    """A backup of three messages."""
    node = start_node(*SMALL)
    shell.environment["WALRQ_SERVER"] = node.url
    assert 0 == shell.walrq("push", "jobs", "a", "b", "c").returncode
    assert 0 == shell.walrq("backup", "x.backup").returncode
    yield tmp_path / "x.backup"


def test_mistakes_are_one_line(shell: Shell, backup_file: Path, tmp_path: Path) -> None:
    """Over an existing file only when asked to, into an empty directory only, a damaged file never."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    damaged = bytearray(backup_file.read_bytes())
    damaged[damaged.index(b"WALRQSEG") + 100] ^= 1
    (tmp_path / "damaged.backup").write_bytes(damaged)
    (tmp_path / "torn.backup").write_bytes(damaged[: damaged.index(b"WALRQSEG")])
    (tmp_path / "text.backup").write_bytes(b"hello")
    expected = {
        ("backup", "x.backup"): (2, b"add --yes"),
        ("backup", "no/where.backup"): (1, b"No such file"),
        ("restore", "x.backup"): (2, b"give --data-dir DIR to restore, or --check"),
        ("restore", "x.backup", "--data-dir", "full"): (74, b"not empty"),
        ("restore", "missing.backup", "--check"): (1, b"No such file"),
        ("restore", "text.backup", "--check"): (74, b"no backup of walrq"),
        ("restore", "torn.backup", "--check"): (74, b"torn"),
        ("restore", "damaged.backup", "--data-dir", "new"): (74, b"damaged"),
    }
    for arguments, (status, text) in expected.items():
        ran = shell.walrq(*arguments)
        assert (status, 1) == (ran.returncode, len(ran.stderr.splitlines())), (arguments, ran)
        assert text in ran.stderr, ran.stderr
    again = shell.walrq("backup", "x.backup", "--yes")

    assert (0, b"") == (again.returncode, again.stderr)
    assert not (tmp_path / "new").exists()
    assert [] == [path.name for path in tmp_path.glob("*.part")] + [path.name for path in tmp_path.glob(".*restor*")]
