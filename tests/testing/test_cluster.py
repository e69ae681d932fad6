"""The simulator: the same seed is the same run, what it owes is exercised, and planted mistakes are found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from walrq.errors import ConfigError
from walrq.queues.machine import Machine
from walrq.queues.sessions import Sessions
from walrq.simulator.cluster import NODES_MAX, Cluster, run_seed
from walrq.simulator.options import CLUSTER_MARKS, MARKS, Options, Report
from walrq.simulator.promises import Broken
from walrq.storage.wal import Wal
from walrq.testing import cluster


@pytest.mark.slow
def test_a_node_that_is_alone_keeps_every_promise(seed: int) -> None:
    """The same seeds on every run, and five new ones; a batch that misses a mark does not test what it should."""
    total, rate = cluster.run_batch(range(1, 21), Options(nodes=1), keep_going=True)
    more, _ = cluster.run_batch(range(seed, seed + 3), Options(nodes=1), keep_going=True)
    total.merge(more)

    print("\n".join(total.lines()), f"\n{rate:.1f} seeds/s")
    assert total.failures == []
    assert total.absent() == []


def test_the_same_seed_is_the_same_run(repository_root: Path) -> None:
    """Also in another process, under another hash seed: a failing seed can be replayed."""
    for nodes in (1, 3):
        report = run_seed(7, Options(nodes=nodes, load_ms=600))
        command = [sys.executable, "-m", "walrq.testing.cluster", "--seed", "7", "--load-ms", "600"]
        answer = subprocess.run(
            [*command, "--nodes", str(nodes)],
            cwd=repository_root,
            env=os.environ | {"PYTHONHASHSEED": "99", "PYTHONPATH": str(repository_root)},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )

        assert answer.stdout.splitlines()[:-1] == report.log
        assert answer.stdout.splitlines()[-1].startswith(f"seed 7: {report.events} events")


def test_without_faults_nothing_is_lost_or_repeated() -> None:
    """The calm case is simulated too: what a fault explains must not happen here."""
    report = run_seed(3, Options(nodes=1, faults=False))

    assert report.entries > 200
    assert not report.marks["power lost"] and not report.marks["process killed"]
    assert report.marks["lease expired"] and report.marks["delayed message fired"]


def test_a_number_of_nodes_that_is_none_is_refused() -> None:
    """An error with a clear line."""
    for nodes in (0, NODES_MAX + 1):
        with pytest.raises(ConfigError, match=f"{nodes} nodes"):
            Cluster(seed=1, options=Options(nodes=nodes))


def test_a_batch_that_misses_a_mark_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """A run that never loses power proves nothing about power losses."""
    assert cluster.main(["--seeds", "1", "--load-ms", "30"]) == 1

    assert "never: " in capsys.readouterr().out


# --- planted mistakes ---------------------------------------------------------------------------------------
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """W06, R29: answered before it is durable."""
    original = Wal._append

    def append(self: Wal, *arguments: object) -> None:
        self._sync = lambda handle: None  # type: ignore[method-assign]
        try:
            original(self, *arguments)  # type: ignore[arg-type]
        finally:
            del self._sync  # type: ignore[method-assign]

    monkeypatch.setattr(Wal, "_append", append)


def _forgetful_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """X01: a retried request is executed again."""
    monkeypatch.setattr(Sessions, "remember", staticmethod(lambda session, sequence, result: None))


def _leases_forgotten_in_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """S02: the image leaves the session table out."""
    from walrq.queues import image

    monkeypatch.setattr(image, "_session_page", lambda m, bucket: None)


def _live_segments_reclaimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """S10: a segment is given back although something in it lives."""
    from walrq.replica import replica

    monkeypatch.setattr(replica, "live_in", lambda m, first, last: False)


def _early_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """L01: the lease clock follows the wall clock."""
    from walrq.queues.clocks import LeaderClock
    from walrq.queues.commands import Stamp

    original = LeaderClock.stamp

    def stamp(self: LeaderClock, now: object) -> Stamp:
        both = original(self, now)  # type: ignore[arg-type]
        return Stamp(both.wall_ms, both.wall_ms)

    monkeypatch.setattr(LeaderClock, "stamp", stamp)


def _snapshot_without_freeze(monkeypatch: pytest.MonkeyPatch) -> None:
    """S08: pages are encoded as they are when their turn comes."""
    monkeypatch.setattr(Machine, "_touch_queue_page", lambda self, queue, page: queue.dirty.add(page))


@pytest.mark.parametrize(
    "plant",
    [
        _no_sync,
        _forgetful_sessions,
        _leases_forgotten_in_images,
        _live_segments_reclaimed,
        _early_leases,
        _snapshot_without_freeze,
    ],
    ids=lambda plant: plant.__name__.strip("_"),
)
def test_a_planted_mistake_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that cannot fail guards nothing; the failure names the command that replays it."""
    plant(monkeypatch)
    for number in range(1, 41):
        try:
            run_seed(number, Options(nodes=1, fsync="always"))
        except (Broken, AssertionError, LookupError) as error:
            print(f"seed {number}: {error}")
            command = f"replay with: python -m walrq.testing.cluster --seed {number} --nodes 1 --fsync always"
            assert command in error.__notes__
            return
    pytest.fail("forty seeds did not notice")


# --- long runs ----------------------------------------------------------------------------------------------
def test_a_long_run_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done is not done again; a part in which something broke is."""
    ran: list[int] = []
    broken = {5}

    def run(seed: int, options: Options) -> object:
        ran.append(seed)
        assert seed not in broken
        return Report(seed, 3, Counter(), 1, 600, 70, 0, [])

    monkeypatch.setattr(cluster, "run_seed", run)
    monkeypatch.setattr(cluster, "CHUNK_SEEDS", 2)
    path = tmp_path / "progress.json"
    total, _ = cluster.run_batch(range(10), Options(), resume=path)
    assert (ran, [seed for seed, _ in total.failures]) == ([0, 1, 2, 3, 4, 5], [5])

    ran.clear()
    broken.clear()
    total, _ = cluster.run_batch(range(10), Options(), resume=path)
    assert (ran, total.seeds, total.failures) == ([4, 5, 6, 7, 8, 9], 10, [])

    ran.clear()
    monkeypatch.setattr(cluster, "code_digest", lambda: "other")
    total, _ = cluster.run_batch(range(10), Options(), resume=path)
    assert (len(ran), total.seeds) == (10, 10)


def test_progress_of_another_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of different runs would say nothing together."""
    monkeypatch.setattr(cluster, "run_seed", lambda seed, options: Report(seed, 3, Counter(), 1, 600, 70, 0, []))
    path = tmp_path / "progress.json"
    cluster.run_batch(range(3), Options(), resume=path)

    with pytest.raises(SystemExit, match="another run"):
        cluster.run_batch(range(4), Options(), resume=path)


def test_a_batch_owes_shares_events_and_requests() -> None:
    """A batch without failovers, or of idle seeds, fails although nothing broke."""
    total = cluster.Total()
    for seed in range(cluster.SHARES_FROM_SEEDS):
        total.add(Report(seed, 3, Counter(dict.fromkeys((*MARKS, *CLUSTER_MARKS), 1)), 1, 600, 70, 0, []))
    assert total.absent() == []

    total.reached["leader changed"] = 1
    total.least_events, total.least_requests = 499, 59
    assert [line.split(":")[0].split(",")[0] for line in total.absent()] == [
        "leader changed",
        "a seed has 499 events",
        "a seed has 59 requests",
    ]
