"""A worker whose server loses its office: leases are kept at the new leader, acks arrive there, nothing runs twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import walrq
from tests.client.socket_cluster import Cluster, three
from tests.worker.running import Running, until
from walrq import api
from walrq.testing.clock import MovableClock

LEASE_S = 30.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three nodes, the first leads."""
    with three() as nodes:
        yield nodes


class Nodes:
    """What `Running` needs to know of a server."""

    def __init__(self, cluster: Cluster) -> None:
        self.url = cluster.nodes[0].url
        self.clock = MovableClock()


@pytest.mark.parametrize("tells", [True, False])
def test_leases_are_kept_over_a_failover(cluster: Cluster, backend: str, tells: bool) -> None:
    """The handler works for several leases, the leader changes twice meanwhile, gracefully or by death."""
    nodes = Nodes(cluster)
    inside, go_on = threading.Event(), threading.Event()
    ran = []
    with Running(nodes) as running:  # type: ignore[arg-type]
        worker = running.worker(lease=LEASE_S, client={"retry_first_s": 0.001, "node_timeout_s": 0.2})

        @worker.handler(queue="q")
        def work(message: walrq.Message) -> None:
            ran.append(message.payload)
            inside.set()
            assert go_on.wait(30)

        with walrq.connect(nodes.url) as client:
            client.push("q", b"7")
        run = running.start(worker, backend)
        assert inside.wait(10)
        for leader in (2, 1):
            old = cluster.leader
            assert old is not None
            cluster.lead(leader, tells=tells)
            if not tells:
                for connection in list(cluster.nodes[old].connections):
                    connection.cut()
            before = touches(cluster, leader)
            for _ in range(2):
                nodes.clock.advance(LEASE_S / 2)
            until(lambda leader=leader, before=before: touches(cluster, leader) > before, "a touch at the new leader")  # type: ignore[misc]
        cluster.lead(0)
        go_on.set()
        until(lambda: len(cluster.nodes[0].settled) == 1, "the ack")

        assert 0 == run.stop()
    assert [b"7"] == ran
    (settled,) = cluster.nodes[0].settled
    assert api.SettleKind.ACK is settled.kind


def touches(cluster: Cluster, node: int) -> int:
    """How many extensions a node was asked for."""
    return sum(type(each.request) is api.Touch for each in cluster.nodes[node].asked)


def test_a_worker_that_waits_for_work_gets_it_from_the_new_leader(cluster: Cluster, backend: str) -> None:
    """Its poll was parked at the old one."""
    nodes = Nodes(cluster)
    ran = []
    cluster.holds = (api.Poll,)
    with Running(nodes) as running:  # type: ignore[arg-type]
        worker = running.worker(client={"retry_first_s": 0.001})

        @worker.handler(queue="q")
        def work(message: walrq.Message) -> None:
            ran.append(message.payload)

        run = running.start(worker, backend)
        cluster.nodes[0].wait_for(api.Poll)
        cluster.holds = ()
        cluster.lead(1)
        with walrq.connect(cluster.nodes[1].url) as client:
            client.push("q", b"7")
        until(lambda: ran == [b"7"], "the work")
        until(lambda: len(cluster.nodes[0].settled) == 1, "the ack")

        assert 0 == run.stop()
