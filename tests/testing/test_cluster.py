"""The simulator: the same seed is the same run, every mark is exercised, and planted mistakes are found."""

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
from walrq.storage.wal import Wal
from walrq.testing import cluster
from walrq.testing.cluster import MARKS, NODES_MAX, Cluster, Options, missing, run_seed
from walrq.testing.promises import Broken

SEEDS = range(1, 31)


@pytest.mark.slow
def test_every_promise_holds_and_every_mark_is_exercised(seed: int) -> None:
    """The same seeds on every run, and five new ones; a batch that misses a mark does not test what it should."""
    marks: Counter[str] = Counter()
    for number in [*SEEDS, *range(seed, seed + 5)]:
        marks += run_seed(number).marks

    print("\n".join(f"{marks[name]:8}  {name}" for name in MARKS))
    assert missing(marks) == []


def test_the_same_seed_is_the_same_run(repository_root: Path) -> None:
    """Also in another process, under another hash seed: a failing seed can be replayed."""
    report = run_seed(7, Options(load_ms=800))
    command = [sys.executable, "-m", "walrq.testing.cluster", "--seed", "7", "--load-ms", "800"]
    answer = subprocess.run(
        command,
        cwd=repository_root,
        env=os.environ | {"PYTHONHASHSEED": "99", "PYTHONPATH": str(repository_root)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    assert answer.stdout.splitlines()[: len(report.log)] == report.log
    assert answer.stdout.splitlines()[-1] == "1 seeds, every promise held"


def test_without_faults_nothing_is_lost_or_repeated() -> None:
    """The calm case is simulated too: what a fault explains must not happen here."""
    report = run_seed(3, Options(fault_ms=None))

    assert report.entries > 200
    assert not report.marks["power lost"] and not report.marks["process killed"]
    assert report.marks["lease expired"] and report.marks["delayed message fired"]


def test_a_cluster_has_as_many_nodes_as_there_are_voters() -> None:
    """Asking for more is an error with a clear line, not a run of strangers."""
    for nodes in (0, NODES_MAX + 1):
        with pytest.raises(ConfigError, match=f"{nodes} nodes"):
            Cluster(nodes, seed=1)


def test_a_batch_that_misses_a_mark_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """A run that never loses power proves nothing about power losses."""
    assert cluster.main(["--seeds", "1", "--load-ms", "30"]) == 1

    assert "never exercised: " in capsys.readouterr().out


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
    from walrq import replica

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
            run_seed(number, Options(fsync="always"))
        except (Broken, AssertionError, LookupError) as error:
            print(f"seed {number}: {error}")
            assert f"replay with: python -m walrq.testing.cluster --seed {number}" in error.__notes__
            return
    pytest.fail("forty seeds did not notice")
