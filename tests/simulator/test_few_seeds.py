"""A few worlds of three nodes: what `make mutants` lets look at mistakes in how replicas work together."""

from __future__ import annotations

from walrq.simulator.options import Options
from walrq.testing import cluster

SEEDS = range(40)


def test_forty_seeds_of_three_nodes_hold() -> None:
    """The first seed that breaks a promise ends it; always the same seeds."""
    total, _ = cluster.run_batch(SEEDS, Options(nodes=3))

    assert [] == [f"{cluster.replay(seed, Options(nodes=3))}: {text}" for seed, text in total.failures]
    assert len(SEEDS) == total.seeds
