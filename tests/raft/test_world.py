"""Many worlds, each from one integer: no event breaks an invariant, and a healed majority goes on."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import attrs
import pytest

from tests.raft.hosts import Host
from tests.raft.world import EVENTS, Broken, Options, World, failure, main
from walrq.raft.core import Raft

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 200
PARTS = 10


@pytest.mark.parametrize("part", range(PARTS))
def test_no_seed_breaks_an_invariant(part: int, session_seed: int) -> None:
    """A failure prints the command that repeats it."""
    first = session_seed % 1_000_000 + part * (SEEDS // PARTS)

    found = next((text for seed in range(first, first + SEEDS // PARTS) if (text := failure(seed))), "")

    assert not found, found


def test_the_worlds_contain_what_they_are_for() -> None:
    """Checks that only ever see quiet days prove nothing: each kind of event occurs in a share of the worlds."""
    seen: Counter[str] = Counter()
    for seed in range(40):
        world = World(seed)
        world.run()
        seen.update({"leader changed"} if world.marks["leader"] > 1 else ())
        seen.update(set(world.marks))

    wanted = {"leader changed": 30, "crash": 30, "partition": 30, "SnapshotChunk": 10, "image": 20, "TimeoutNow": 20}
    wanted |= {"add_learner": 10, "remove": 10, "promote": 5, "read": 40, "rot": 3, "one-way": 30}
    assert {} == {mark: seen[mark] for mark, least in wanted.items() if seen[mark] < least}


def test_a_seed_tells_the_same_story_twice() -> None:
    """What cannot be repeated cannot be understood."""
    one, other = World(11, keep_story=True), World(11, keep_story=True)
    one.run()
    other.run()

    assert one.story == other.story
    assert len(one.story) > 100


def test_a_seed_tells_the_same_story_in_every_process() -> None:
    """The order of a set of names differs from process to process; none may decide anything."""
    program = (
        "from tests.raft.world import World\n"
        "for seed in range(8):\n"
        "    world = World(seed, keep_story=True)\n"
        "    world.run(400)\n"
        "    print(*world.story, sep='\\n')\n"
    )
    told = set()
    for hash_seed in ("1", "2", "3"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        told.add(done.stdout)

    assert 1 == len(told)
    assert len(told.pop()) > 10_000


def test_worlds_without_pre_vote_are_safe_too() -> None:
    """Pre-vote is for quiet; no invariant hangs on it."""
    for seed in range(10):
        options = attrs.evolve(Options.drawn(random.Random(seed)), pre_vote=False)
        World(seed, options).run(EVENTS // 2)


def test_a_world_notices_what_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that cannot fail guards nothing: with readies reported before they are written, seeds fail soon."""
    begin = Host.begin_write

    def early(self: Host) -> bool:
        began = begin(self)
        if self.writing is not None:
            self.raft.persisted(self.writing[0])
        return began

    monkeypatch.setattr(Host, "begin_write", early)

    assert any("Durable" in (failure(seed) or "") for seed in range(5))


def test_no_progress_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drains: nodes that never stand elect nobody."""
    monkeypatch.setattr(Raft, "_may_stand", property(lambda self: False))
    with pytest.raises(Broken, match="Drains"):
        World(0).run(100)
    assert "python -m tests.raft.world --seed 0" in (failure(0, 100) or "")


def test_the_command_repeats_a_seed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a failure prints must work."""
    monkeypatch.setattr("sys.argv", ["world", "--seed", "3", "--events", "200"])
    assert 0 == main()
    assert "leads in term" in capsys.readouterr().out

    monkeypatch.setattr("sys.argv", ["world", "--seeds", "2", "--events", "200"])
    assert 0 == main()
    assert "2 worlds" in capsys.readouterr().out
