"""A long random run of machine against oracle: `python -m tests.queues.random_driver --steps 100000`.

Fast where Hypothesis is thorough: no shrinking, but a hundred thousand steps in minutes. The seed is printed
first; a difference prints the entries that led to it, newest last.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import time

from tests.queues.generate import Dice, step, tagged_command
from tests.queues.pair import Pair


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
