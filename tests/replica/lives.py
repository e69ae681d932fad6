"""Random lives of a state machine, as the bytes of log entries: the same seed gives the same bytes anywhere.

python -m tests.replica.lives SEED ENTRIES      prints the hash of the state that the life ends in
"""

from __future__ import annotations

import hashlib
import random
import sys

from tests.queues.generate import Dice, Known, step, tagged_command
from walrq.queues import commands as c
from walrq.queues.image import full_pages
from walrq.queues.machine import Machine


def life(seed: int, entries: int) -> tuple[Machine, list[bytes]]:
    """A machine, and the entries that made it; entry k has index k + 1."""
    draw = Dice(random.Random(seed))
    machine, known, bodies = Machine(), Known(), []
    stamp = c.Stamp(0, 1_700_000_000_000)
    for index in range(1, entries + 1):
        lease_ms, wall_ms = step(draw)
        stamp = known.stamp = c.Stamp(stamp.lease_ms + lease_ms, stamp.wall_ms + wall_ms)
        tagged = [tagged_command(draw, known) for _ in range(draw.integer(0, 3))]
        bodies.append(c.encode_entry(stamp, tagged))
        for one, result in zip(tagged, machine.apply(index, stamp, tagged), strict=True):
            known.learn(one, result)
    return machine, bodies


def apply(machine: Machine, index: int, body: bytes) -> list[object]:
    """One entry of a life; its answers."""
    stamp, tagged = c.decode_entry(body)
    answers: list[object] = list(machine.apply(index, stamp, tagged))
    machine.take_effects()
    return answers


def state_hash(pages: dict[bytes, bytes]) -> str:
    """A hash over every page by key."""
    digest = hashlib.blake2b(digest_size=16)
    for key in sorted(pages):
        digest.update(key + b"=" + hashlib.blake2b(pages[key]).digest())
    return digest.hexdigest()


if __name__ == "__main__":
    made, _ = life(int(sys.argv[1]), int(sys.argv[2]))
    print(state_hash(full_pages(made)))
