"""A long random run of machine against oracle: `python -m tests.queues.random_driver --steps 100000`.

Fast where Hypothesis is thorough: no shrinking, but a hundred thousand steps in minutes. The seed is printed
first; a difference prints the entries that led to it, newest last.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import secrets
import sys
import time

from tests.queues.generate import Dice, step, tagged_command
from tests.queues.pair import Alone, Pair
from walrq.queues import image
from walrq.queues.machine import Bounds


def run(seed: int, steps: int, *, entries_per_world: int = 300) -> int:
    """Apply about `steps` commands, starting anew now and then. Returns how many were applied.

    Raises:
        AssertionError: machine and oracle differ, or a promise broke; `notes` tell where.
    """
    rng = random.Random(seed)
    dice = Dice(rng)
    applied = 0
    pair = Pair()
    while applied < steps:
        if pair.index >= entries_per_world:
            pair = Pair()
        pair.advance(*step(dice))
        entry = [tagged_command(dice, pair.known) for _ in range(dice.pick((1, 1, 1, 2, 4)))]
        try:
            pair.entry(entry, look=dice.chance(20))
            applied += len(entry)
        except Exception as error:
            error.add_note(f"seed {seed}, entry {pair.index} of a world, {applied} commands in all")
            error.add_note("\n".join(map(str, pair.story[-12:])))
            raise
            if dice.chance(5):
                pair.freeze()
            if dice.chance(50):
                pair.image_step(dice.integer(1, 6))
            if dice.chance(1):
                dice.pick((pair.restart, pair.abandon_image))()
    return applied


def run_alone(seed: int, steps: int, bounds: Bounds) -> int:
    """As `run`, but without the oracle, which knows no bounds: the promises and image round trips only.

    Raises:
        invariants.Broken: a promise does not hold.
    """
    rng = random.Random(seed)
    dice = Dice(rng)
    applied = 0
    while applied < steps:
        alone = Alone(bounds)
        for _ in range(200):
            alone.advance(*step(dice))
            entry = [tagged_command(dice, alone.known) for _ in range(dice.pick((1, 1, 1, 2, 4)))]
            try:
                alone.entry(entry)
            except Exception as error:
                error.add_note(f"seed {seed}, entry {alone.index} of a world, {applied} commands in all")
                raise
            applied += len(entry)
            if dice.chance(2):
                alone.restart()
        alone.drain()
    return applied


def page_hash(seed: int, steps: int) -> str:
    """Hash of all image pages after a random run; the same for the same arguments in any process."""
    dice = Dice(random.Random(seed))
    alone = Alone(Bounds())
    digest = hashlib.sha256()
    for _ in range(steps):
        alone.advance(*step(dice))
        alone.entry([tagged_command(dice, alone.known)])
        if dice.chance(5):
            for key, body in image.full_pages(alone.machine).items():
                digest.update(key + body)
    return digest.hexdigest()


def main() -> int:
    """The command line; exit status 1 on a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    parser.add_argument("--steps", type=int, default=10_000)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    began = time.perf_counter()
    applied = run(arguments.seed, arguments.steps)
    print(f"{applied} commands in {time.perf_counter() - began:.1f} s, no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
