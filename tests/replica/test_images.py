"""Snapshots never change what happens: any snapshot and the tail behind it is as good as the whole log."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from tests.replica.lives import apply, life, state_hash
from walrq.api import Columns, SettleKind
from walrq.queues import commands as c
from walrq.queues.image import Imager, full_pages, load
from walrq.queues.machine import Machine
from walrq.simulator.promises import check_machine

ENTRIES = 300
Image = dict[bytes, bytes]


@attrs.define
class Photographer:
    """Takes images of a machine while it lives, some pages at a time, and keeps what was finished, like a disk."""

    machine: Machine
    imager: Imager
    index: int = 0
    kept: Image = attrs.field(factory=dict)
    kept_at: int = 0
    writing: Image = attrs.field(factory=dict)
    frozen: Image | None = None
    frozen_at: int = 0

    def freeze(self) -> None:
        """Begin, as a copy of what was kept last."""
        self.writing, self.frozen, self.frozen_at = dict(self.kept), full_pages(self.machine), self.index
        self.imager.freeze()

    def give_up(self) -> None:
        """As after a full disk."""
        self.imager.start_over()
        self.frozen = None

    def step(self, pages: int) -> bool:
        """Some pages; whether that finished the image. It must show the moment of its freeze."""
        more = self.imager.step(pages)
        for key, page in self.imager.take():
            if page is None:
                self.writing.pop(key, None)
            else:
                self.writing[key] = page
        if more:
            return False
        assert self.writing == self.frozen, self.frozen_at
        self.kept, self.kept_at, self.frozen = self.writing, self.frozen_at, None
        return True

    def restart(self, bodies: list[bytes]) -> None:
        """From the image that was kept last, and the log behind it."""
        self.machine = load(self.kept.items())
        assert full_pages(self.machine) == self.kept
        self.imager = Imager(self.machine, self.kept)
        for index in range(self.kept_at + 1, self.index + 1):
            apply(self.machine, index, bodies[index - 1])


@pytest.mark.parametrize("number", range(8))
def test_images_and_restarts_at_random_change_neither_answers_nor_state(number: int, seed: int) -> None:
    """StateMachineSafety and NoMixedRead: entries come between any two steps, images are given up, nodes restart."""
    rng = random.Random(seed + number)
    straight, bodies = life(seed + number, ENTRIES)
    shadow = Machine()
    node = Photographer(machine := Machine(), Imager(machine))
    written = given_up = restarts = 0
    for index, body in enumerate(bodies, 1):
        if node.frozen is None:
            node.freeze()
        answers = apply(node.machine, index, body)
        node.index = index
        assert answers == apply(shadow, index, body), f"life {number}, entry {index}"
        # Asking what is next must not matter, and a driver asks at moments of its own.
        node.machine.next_lease_deadline()
        node.machine.next_wall_deadline()
        check_machine(node.machine)
        if rng.random() < 0.05:
            node.give_up()
            given_up += 1
        elif node.step(rng.randrange(0, 25)):
            written += 1
            if rng.random() < 0.5:
                node.restart(bodies)
                restarts += 1

    assert full_pages(node.machine) == full_pages(shadow) == full_pages(straight)
    assert written >= 5 and given_up >= 1 and restarts >= 1


def test_any_snapshot_and_its_tail_give_the_state_of_the_whole_log(seed: int) -> None:
    """From every tenth entry on."""
    straight, bodies = life(seed, 200)
    expected = full_pages(straight)
    machine = Machine()
    for index, body in enumerate(bodies, 1):
        if index % 10 == 1:
            again = load(full_pages(machine).items())
            for later in range(index, len(bodies) + 1):
                apply(again, later, bodies[later - 1])
            assert full_pages(again) == expected, f"from {index - 1}"
        apply(machine, index, body)


def test_the_time_to_live_of_a_leased_batch_is_not_forgotten() -> None:
    """Somebody asks for the next deadline while all of it is leased; released before its time, it still ends then."""
    for asks in (False, True):
        machine = Machine()
        body = c.encode_entry(c.Stamp(0, 1_000), [c.Tagged(c.Push("q", _one(), ttl_ms=100))])
        apply(machine, 1, body)
        apply(machine, 2, c.encode_entry(c.Stamp(1, 1_001), [c.Tagged(c.Lease(("q",), 1, 5, 1))]))
        if asks:
            machine.next_wall_deadline()
        apply(machine, 3, c.encode_entry(c.Stamp(10, 1_010), []))
        assert machine.queues["q"].ready == 1
        assert machine.next_wall_deadline() == 1_100
        apply(machine, 4, c.encode_entry(c.Stamp(10, 1_100), []))

        assert machine.queues["q"].length == 0, f"asked: {asks}"


def test_turns_that_ended_with_the_last_group_are_not_in_the_next_snapshot() -> None:
    """A lane that is no more had a turn after a restart."""
    machine = Machine()
    imager = Imager(machine)
    node = Photographer(machine, imager)
    grouped = c.Push("q", _one(groups=("g",)))
    entries = [
        [c.Tagged(grouped), c.Tagged(c.Push("q", _one()))],
        [c.Tagged(c.Lease(("q",), 1, 1_000, 0))],
    ]
    for index, tagged in enumerate(entries, 1):
        apply(machine, index, c.encode_entry(c.Stamp(index, index), tagged))
    uid = machine.queues["q"].uid
    node.freeze()
    while not node.step(100):
        pass
    settle = c.Settle("q", SettleKind.ACK, (c.Target(uid, 1),))
    apply(machine, 3, c.encode_entry(c.Stamp(3, 3), [c.Tagged(settle)]))

    node.freeze()
    while not node.step(100):
        pass


def _one(groups: tuple[str | None, ...] | None = None) -> Columns:
    return Columns(b"x", b"\x01\x00\x00\x00", groups=groups)


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_the_state_is_the_same_under_any_hash_seed(hash_seed: str, seed: int, repository_root: Path) -> None:
    """Sets and maps must not decide: replicas compare hashes of their pages."""
    straight, _ = life(seed, 250)
    answer = subprocess.run(
        [sys.executable, "-m", "tests.replica.lives", str(seed), "250"],
        cwd=repository_root,
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(repository_root)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    assert answer.stdout.strip() == state_hash(full_pages(straight))
