"""The cluster's commands with real processes: start, look, grow, shrink, hand over, lose a node, stop."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.cli.conftest import Shell, make_shell
from tests.cli.test_examples import example_of
from walrq.cli.cluster import look
from walrq.live import members
from walrq.testing.node import Node

# The exit status of a node that knows of no leader; how often it is asked.
NO_LEADER = 5
TRIES_MAX = 50
SMALL = ("--", "--max-wal-segment-size", "4MiB", "--log-format", "json")
SECONDS_MAX = 60


@attrs.define
class Cluster:
    """A running `walrq cluster start`."""

    process: subprocess.Popen[bytes]
    ready: dict[str, Any]
    base: Path
    shell: Shell

    def words(self) -> str:
        """The next line that it says to people."""
        assert self.process.stderr is not None
        return self.process.stderr.readline().decode()

    def server(self, node: str) -> str:
        """The URL of one node."""
        (endpoint,) = [each["endpoints"]["cbor"] for each in self.ready["nodes"] if each["node"] == node]
        return f"walrq://{endpoint}"

    def pid(self, node: str) -> int:
        """Of one node's process."""
        (pid,) = [each["pid"] for each in self.ready["nodes"] if each["node"] == node]
        return int(pid)

    def peer(self, node: str) -> str:
        """Where the other nodes reach one."""
        (address,) = [each["endpoints"]["peer"] for each in self.ready["nodes"] if each["node"] == node]
        return str(address)

    def walrq(self, *arguments: str) -> str:
        """A command that must succeed; what it printed."""
        ran = self.shell.walrq(*arguments)
        assert 0 == ran.returncode, (arguments, ran.stderr.decode())
        return ran.stdout.decode()

    def led(self, *arguments: str) -> str:
        """The same of a node that may not have heard of the leader yet: each try takes as long as a program's start."""
        for _ in range(TRIES_MAX):
            if self.shell.walrq(*arguments).returncode != NO_LEADER:
                break
        return self.walrq(*arguments)

    def status(self) -> dict[str, Any]:
        """What `walrq cluster status --json` prints, without a process for it."""
        return members.value(look(self.ready["url"]))

    def roles(self) -> dict[str, str]:
        """Each member's role; leaders count as voters."""
        return {each["node"]: each["role"].replace("leader", "voter") for each in self.status()["members"]}

    def stop(self) -> int:
        """SIGTERM; the status."""
        self.process.terminate()
        return self.process.wait(SECONDS_MAX)


@contextlib.contextmanager
def started(folder: Path, *arguments: str) -> Iterator[Cluster]:
    """`walrq cluster ARGUMENTS` and its readiness line; whatever still runs at the end is stopped."""
    shell = make_shell(folder, None)
    with shell.popen("cluster", *arguments) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()[1].decode()
            ready = json.loads(line)
            shell.environment["WALRQ_SERVER"] = ready["url"]
            yield Cluster(process, ready, Path(ready["base_dir"]), shell)
        finally:
            process.terminate()
            process.communicate(timeout=SECONDS_MAX)


def gone(pid: int) -> bool:
    """Whether there is no such process any more."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_the_example_makes_a_cluster_that_any_node_speaks_for_and_that_is_there_again(tmp_path: Path) -> None:
    """One command, one line when it is ready; SIGTERM stops all of it, and the next start finds every message."""
    words = [*shlex.split(example_of("walrq cluster start"))[2:], "--base-port", "0", *SMALL]
    with started(tmp_path, *words) as cluster:
        asked = ("cluster", "status", "--json", "--server")
        cluster.walrq("push", "mail", "hello", "--server", cluster.server("n3"))
        told = [json.loads(cluster.led(*asked, cluster.server(node))) for node in ("n1", "n2", "n3")]
        status = cluster.stop()
        rest = cluster.process.stdout.read() if cluster.process.stdout else b"?"
        ended = [gone(each["pid"]) for each in cluster.ready["nodes"]]
    with started(tmp_path, *words) as again:
        polled = [again.walrq("poll", "mail", "--wait", "5", "--ack", "--server", again.server("n1"))]

    assert 1 == len({state["leader"] for state in told}) == len({state["cluster"] for state in told})
    assert ["n1", "n2", "n3"] == [each["node"] for each in told[0]["members"]]
    assert [told[0]["leader"]] * 3 == [state["node"] for state in told], "the leader knows most"
    assert (0, b"", [True, True, True]) == (status, rest, ended)
    assert ["hello\n"] == polled
    assert [place["endpoints"] for place in again.ready["nodes"]] == [
        place["endpoints"] for place in cluster.ready["nodes"]
    ]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes for the tests below; each leaves three voters that run."""
    with started(tmp_path_factory.mktemp("cluster"), "start", "--base-dir", "c", "--base-port", "0", *SMALL) as one:
        yield one


def test_leadership_goes_where_it_is_sent(cluster: Cluster) -> None:
    """Before a machine is maintained; back and forth, and without a name to whoever is next."""
    for command, leads in ((example_of("walrq cluster transfer"), "n2"), ("walrq cluster transfer n3", "n3")):
        printed = cluster.walrq(*shlex.split(command)[1:])
        assert f"{leads} leads; members: n1, n2, n3\n" == printed
        assert leads == cluster.status()["leader"]
    cluster.walrq("cluster", "transfer")
    refused = cluster.shell.walrq("cluster", "transfer", "n9")

    assert "n3" != cluster.status()["leader"]
    assert 0 != refused.returncode
    assert b"n9" in refused.stderr


def test_a_node_joins_is_added_and_is_removed_while_the_others_run(cluster: Cluster, tmp_path: Path) -> None:
    """Growing and shrinking restart nobody; what was pushed before reaches the new node as well."""
    cluster.walrq("push", "grown", "before")
    flags = [
        *("--node-id", "n4", "--peer-listen", "127.0.0.1:0", "--join", f"{cluster.peer('n1')},{cluster.peer('n2')}"),
        *("--cluster-secret-file", str(cluster.base / "cluster-secret"), "--max-wal-segment-size", "4MiB"),
    ]
    pids = [cluster.pid(node) for node in ("n1", "n2", "n3")]
    with Node(tmp_path / "n4", flags=flags) as node:
        node.start()
        printed = cluster.walrq("cluster", "add", "n4")
        grown = cluster.roles()
        leads = cluster.walrq("cluster", "transfer", "n4")
        polled = cluster.walrq("poll", "grown", "--wait", "5", "--ack", "--server", node.url)
        cluster.walrq("cluster", "transfer", "n1")
        removed = cluster.walrq("cluster", "remove", "n4", "--yes")
        shrunk = cluster.roles()
        node.signal(signal.SIGTERM)

    assert "n4 votes; members: n1, n2, n3, n4\n" == printed
    assert dict.fromkeys(("n1", "n2", "n3", "n4"), "voter") == grown
    assert leads.startswith("n4 leads")
    assert "before\n" == polled
    assert "n4 is no member any more; members: n1, n2, n3\n" == removed
    assert dict.fromkeys(("n1", "n2", "n3"), "voter") == shrunk
    assert pids == [cluster.pid(node) for node in ("n1", "n2", "n3")]
    assert not any(map(gone, pids))


def test_a_learner_gets_the_log_and_never_votes(cluster: Cluster, tmp_path: Path) -> None:
    """For a copy elsewhere that must not slow the majority down."""
    flags = [
        *("--node-id", "n5", "--peer-listen", "127.0.0.1:0", "--join", cluster.peer("n3")),
        *("--cluster-secret-file", str(cluster.base / "cluster-secret"), "--max-wal-segment-size", "4MiB"),
    ]
    with Node(tmp_path / "n5", flags=flags) as node:
        node.start()
        printed = cluster.walrq("cluster", "add", "n5", "--learner")
        roles = cluster.roles()
        cluster.walrq("cluster", "remove", "n5", "--yes")

    assert "n5 is a learner; members: n1, n2, n3, n5\n" == printed
    assert "learner" == roles["n5"]


def test_a_killed_node_is_said_the_rest_goes_on_and_a_person_starts_it_again(cluster: Cluster) -> None:
    """The line that reports the death is the command that ends it."""
    victim = cluster.status()["leader"]
    os.kill(cluster.pid(victim), signal.SIGKILL)
    line = cluster.words()
    cluster.walrq("push", "mail", "while it is away")
    command = shlex.split(line.partition("start it again with: ")[2])
    flags = dict(zip(command[2::2], command[3::2], strict=True))
    with Node(Path(flags["--data-dir"]), listen=flags["--listen"], log=cluster.base / "by-hand.log") as node:
        node.start()
        polled = cluster.walrq("poll", "mail", "--ack", "--server", node.url)
        found = {each["node"]: each["status"] for each in cluster.status()["members"]}
        assert 0 == node.stop()

    assert line.startswith(f"walrq: {victim} was killed by SIGKILL; n")
    assert ["walrq", "serve"] == command[:2]
    assert "while it is away\n" == polled
    assert "unreachable" != found[victim]


def test_the_last_voter_stays(tmp_path: Path) -> None:
    """Without it nobody could ever be added again; the server says so."""
    with started(tmp_path, "start", "--nodes", "1", "--base-dir", "c", "--base-port", "0", *SMALL) as alone:
        ran = alone.shell.walrq("cluster", "remove", "n1", "--yes")
        state = alone.status()

    assert 0 != ran.returncode
    assert b"last" in ran.stderr
    assert 1 == len(ran.stderr.splitlines())
    assert ["n1"] == [each["node"] for each in state["members"]]


def test_a_cluster_is_not_started_twice(cluster: Cluster) -> None:
    """The second launcher says what is in the way and touches nothing."""
    ran = cluster.shell.walrq("cluster", "start", "--base-dir", str(cluster.base))

    assert 78 == ran.returncode
    assert b"is in use; is this cluster running already?" in ran.stderr
    assert {"n1", "n2", "n3"} == set(cluster.roles())
