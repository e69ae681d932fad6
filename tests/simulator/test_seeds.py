"""Three hundred worlds of several nodes: every promise holds, and what they owe is exercised."""

from __future__ import annotations

import pytest

from walrq.simulator.options import DEFAULTS
from walrq.testing import cluster

SEEDS = 300


@pytest.mark.slow
def test_no_seed_breaks_a_promise(session_seed: int) -> None:
    """Seeds follow from the run's own (WALRQ_SEED); `make soak` runs many more.

    Shares of clusters with a change of the leader, a snapshot sent to a follower and a lease that outlives an office,
    and the least events and requests of a seed, are owed as well.
    """
    first = session_seed % 1_000_000
    total, rate = cluster.run_batch(range(first, first + SEEDS), DEFAULTS, keep_going=True)

    print("\n".join(total.lines()), f"\n{rate:.1f} seeds/s, at least {total.least_events} events a seed")
    assert [] == [f"{cluster.replay(seed, DEFAULTS)}: {text}" for seed, text in total.failures]
    assert [] == total.absent()
