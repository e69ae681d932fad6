"""Three real processes: what is acknowledged outlives its leader, a stop hands over first, and mistakes are refused."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import walrq
from tests.cli.conftest import make_shell
from tests.requirements import require
from walrq.errors import ERRORS, Code
from walrq.testing.node import Node

SECRET = "a secret of the end-to-end tests\n"
# What each of them takes on disk and in time is little.
SMALL = ("--max-wal-segment-size", "1MiB", "--log-format", "json")


def free_addresses(count: int) -> list[str]:
    """Addresses on loopback that nobody has just now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{sock.getsockname()[1]}" for sock in sockets]
    for sock in sockets:
        sock.close()
    return addresses


@attrs.define(eq=False)
class Three:
    """Three nodes of one cluster."""

    folder: Path
    secret: Path
    bootstrap: str
    nodes: dict[str, Node] = attrs.field(factory=dict)

    def add(self, name: str, *flags: str, data_dir: Path | None = None) -> Node:
        """A node that is not started yet."""
        node = Node(data_dir or self.folder / name, flags=(*SMALL, *flags), log=self.folder / f"{name}.log")
        self.nodes[name] = node
        return node

    def again(self, name: str, *flags: str) -> Node:
        """Start a node once more, with nothing but its directory (and flags that have nothing to do with peers)."""
        node = self.nodes[name]
        node.flags = (*SMALL, *flags)
        return node.start()

    @property
    def url(self) -> str:
        """All that clients need to know."""
        return "walrq://" + ",".join(node.ready["endpoints"]["cbor"] for node in self.nodes.values() if node.ready)

    def connect(self, **options: Any) -> walrq.Client:
        """A client of the cluster."""
        return walrq.connect(self.url, **options)

    def log(self, name: str) -> list[dict[str, Any]]:
        """What a node has said so far."""
        lines = (self.folder / f"{name}.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def events(self, name: str) -> list[str]:
        """The names of what it said, in order."""
        return [line["event"] for line in self.log(name)]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    """A cluster that serves; each test leaves it whole, with queues that no other test looks at."""
    tmp_path = tmp_path_factory.mktemp("three")
    names = ("n1", "n2", "n3")
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    bootstrap = ",".join(f"{name}={address}" for name, address in zip(names, free_addresses(3), strict=True))
    made = Three(tmp_path, secret, bootstrap)
    try:
        for name in names:
            flags = ("--node-id", name, "--bootstrap", bootstrap, "--cluster-secret-file", str(secret))
            made.add(name, *flags).launch()
        for node in made.nodes.values():
            node.wait_ready()
        yield made
    finally:
        for node in made.nodes.values():
            node.kill()


def take_all(client: walrq.Client, queue: str) -> list[bytes]:
    """Every message, acknowledged."""
    found: list[bytes] = []
    while messages := client.poll(queue, max_messages=100):
        for message in messages:
            found.append(message.payload)
            client.ack(message)
    return found


def leader_of(client: walrq.Client) -> str:
    """Who leads, by the word of whoever is asked."""
    state = client.cluster()
    assert state.leader is not None
    return state.leader


def test_what_a_killed_leader_acknowledged_is_there_exactly_once(three: Three) -> None:
    """The promise that a cluster is for: kill -9 under load loses nothing, and a retried push is not a second one."""
    with three.connect() as client:
        client.push("killed", b"first")
        first = leader_of(client)
        acknowledged = [b"first"]
        for number in range(120):
            if number == 40:
                three.nodes[first].kill()
            if number == 80:
                three.again(first)
            payload = b"%d" % number
            client.push("killed", payload)
            acknowledged.append(payload)
        second = leader_of(client)
        found = take_all(client, "killed")

    assert first != second
    assert acknowledged == found


def test_a_leader_that_is_told_to_stop_hands_over_first(three: Three) -> None:
    """A rolling restart costs nobody an election: each node goes when another one leads, and comes back by its own."""
    sent = 0
    with three.connect() as client:
        client.push("stopped", b"0")
        for _ in range(2):
            leader = leader_of(client)
            node = three.nodes[leader]
            node.signal(signal.SIGTERM)
            for _ in range(30):
                sent += 1
                client.push("stopped", b"%d" % sent)
            assert 0 == node.wait()
            events = three.events(leader)
            events = events[len(events) - events[::-1].index("ready") :]
            assert events.index("stopping") < events.index("handed_over") < events.index("stopped")
            three.again(leader)
        found = take_all(client, "stopped")

    assert [b"%d" % number for number in range(sent + 1)] == found


@attrs.frozen
class Mistake:
    """A start that must fail: how, on a copy of n3's directory or on none, and what it says."""

    flags: Callable[[Three], tuple[str, ...]]
    of_n3: bool
    status: int
    words: str


MISTAKES = {
    "another list of members": Mistake(
        lambda three: (
            *("--node-id", "n3", "--cluster-secret-file", str(three.secret)),
            *("--bootstrap", f"n3={three.nodes['n3'].ready['endpoints']['peer']}"),
        ),
        True,
        78,
        "bootstrap names another cluster",
    ),
    "another node's directory": Mistake(
        lambda three: ("--node-id", "n2"), True, 74, "belongs to node 'n3', not to 'n2'"
    ),
    "no secret": Mistake(
        lambda three: ("--node-id", "n9", "--peer-listen", "127.0.0.1:0"), False, 78, "peers need a secret"
    ),
    "everywhere is nowhere": Mistake(
        lambda three: ("--peer-listen", "0.0.0.0:0", "--cluster-secret-file", str(three.secret)),
        False,
        78,
        "say with advertise",
    ),
    "to join without an address": Mistake(
        lambda three: ("--join", "127.0.0.1:1", "--cluster-secret-file", str(three.secret)),
        False,
        78,
        "join needs peer_listen",
    ),
    "to join with another secret": Mistake(
        lambda three: (
            *("--node-id", "n9", "--peer-listen", "127.0.0.1:0", "--cluster-secret", "not the same secret"),
            *("--join", three.nodes["n1"].ready["endpoints"]["peer"]),
        ),
        False,
        77,
        "do not share one cluster secret",
    ),
    "to join under a name that is taken": Mistake(
        lambda three: (
            *("--node-id", "n2", "--peer-listen", "127.0.0.1:0", "--cluster-secret-file", str(three.secret)),
            *("--join", three.nodes["n1"].ready["endpoints"]["peer"]),
        ),
        False,
        1,
        "n2",
    ),
}


def test_a_wrong_start_is_refused_with_one_line_and_the_cluster_goes_on(three: Three) -> None:
    """Each says what to change; none of them costs the cluster anything."""
    with three.connect() as client:
        client.push("mistakes", b"0")
        leader = leader_of(client)
        if leader == "n3":
            client.transfer_leadership("n1")
            leader = leader_of(client)
        term = client.cluster().term
        assert 0 == three.nodes["n3"].stop()
        tries: dict[str, Node] = {}
        try:
            for number, (name, mistake) in enumerate(MISTAKES.items()):
                data_dir = three.folder / f"mistake{number}"
                if mistake.of_n3:
                    shutil.copytree(three.nodes["n3"].data_dir, data_dir)
                tries[name] = Node(data_dir, flags=(*SMALL, *mistake.flags(three)))
                tries[name].launch()
            for name, node in tries.items():
                status, log = node.wait(), node.log.read_text()
                fatal = [json.loads(line)["text"] for line in log.splitlines() if '"fatal"' in line]
                assert (MISTAKES[name].status, 1) == (status, len(fatal)), (name, log)
                assert MISTAKES[name].words in fatal[0], name
        finally:
            for node in tries.values():
                node.kill()
        client.push("mistakes", b"1")
        three.again("n3")

        assert (leader, term) == (leader_of(client), client.cluster().term)
        assert [b"0", b"1"] == take_all(client, "mistakes")


def test_a_node_that_lost_its_directory_is_not_taken_for_itself(three: Three) -> None:
    """With an empty disk it would vote again in terms in which it has voted: it is kept out, and both sides say why."""
    with three.connect() as client:
        client.push("lost", b"0")
        if leader_of(client) == "n3":
            client.transfer_leadership("n1")
        # The name is bound to the directory once all of them have met.
        while not all(each.heard_ms is not None for each in client.cluster().members if each.role != "leader"):
            client.push("lost", b"x")
        client.push("lost", b"x")
        term = client.cluster().term
        three.nodes["n3"].kill()
        flags = ("--node-id", "n3", "--bootstrap", three.bootstrap, "--cluster-secret-file", str(three.secret))
        three.add("n3", *flags, data_dir=three.folder / "empty").start()
        while not any("WRONG_DISK" in line["text"] for line in three.log("n3")):
            client.push("lost", b"x")

        assert any("WRONG_DISK" in line["text"] for name in ("n1", "n2") for line in three.log(name))
        assert term == client.cluster().term
        three.nodes["n3"].kill()
        three.add("n3").start()


def test_a_backup_of_any_node_has_what_was_acknowledged_and_its_copy_is_alone(three: Three, tmp_path: Path) -> None:
    """A copy that waited for the other members of the cluster it was taken in would be of no use without them."""
    shell = make_shell(tmp_path, None)
    with three.connect() as client:
        client.push("copied", b"kept")
        asked = next(name for name in three.nodes if name != leader_of(client))
    file = str(tmp_path / "copy.walrq")
    assert 0 == shell.walrq("backup", file, "--server", three.nodes[asked].url).returncode
    assert 0 == shell.walrq("restore", file, "--data-dir", str(tmp_path / "copy")).returncode

    with Node(tmp_path / "copy", flags=SMALL).start() as alone, walrq.connect(alone.url) as client:
        assert [b"kept"] == take_all(client, "copied")
        assert [(asked, "leader")] == [(each.node, each.role) for each in client.cluster().members]


@pytest.mark.parametrize("call", ["fdatasync", "pwritev,pwritev2"], ids=["sync", "write"])
def test_a_node_whose_disk_fails_ends_with_one_line_and_the_cluster_goes_on(three: Three, call: str) -> None:
    """After EIO nobody knows what the disk holds: no reply is made up, the status is a stable one, others serve."""
    require("strace", "linux")
    queue = f"failing-{call}"
    with three.connect() as client:
        client.push(queue, b"before")
        name = leader_of(client)
        node = three.nodes[name]
        said = len(three.log(name))
        failing = ["-e", f"trace={call}", "-e", f"inject={call}:error=EIO"]
        tracer = subprocess.Popen(
            ["strace", "-f", "-q", "-o", "/dev/null", *failing, "-p", str(node.pid)], stderr=subprocess.DEVNULL
        )
        acknowledged = [b"before"]
        try:
            for number in range(1_000):
                payload = b"%d" % number
                client.push(queue, payload)
                acknowledged.append(payload)
                if node.process.poll() is not None:
                    break
            status = node.wait(30)
        finally:
            tracer.terminate()
            tracer.wait(30)
        assert ERRORS[Code.STORAGE_FAILED].exit == status
        fatal = [line for line in three.log(name)[said:] if line["event"] == "fatal"]
        assert 1 == len(fatal) and "Input/output error" in fatal[0]["text"], fatal
        assert name != leader_of(client)
        three.again(name)
        found = take_all(client, queue)

    # A push whose reply was lost is asked for again under its number: there once, in any case.
    assert acknowledged == found
