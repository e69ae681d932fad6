"""Messages beyond the horizon behave as those in memory: the oracle, which keeps them there, sees no difference."""

from __future__ import annotations

import random

import attrs
import pytest

from tests.far.pair import FarPair
from tests.queues import generate
from tests.queues.generate import Dice, step, tagged_command
from walrq.queues import commands as c


def far_command(dice: Dice, pair: FarPair) -> c.Command:
    """A command of those that this is about."""
    kind = dice.integer(0, 9)
    if kind <= 4:
        push = generate.push(dice, pair.known)
        assert isinstance(push, c.Push)
        return attrs.evolve(push, delay_ms=dice.integer(10, 400), deliver_at_ms=None)
    if kind <= 6:
        queue, found = generate.identifier(dice, pair.known)
        return c.Reschedule(queue, found, pair.stamp.wall_ms + dice.integer(-20, 400))
    if kind <= 8:
        return generate.cancel(dice, pair.known)
    return dice.pick((c.PurgeQueue("a"), c.PurgeQueue("b"), c.DeleteQueue("c")))


def drawn(dice: Dice, pair: FarPair) -> c.Tagged:
    """Any command; half of the time one of those."""
    return (
        generate.tag(dice, pair.known, far_command(dice, pair)) if dice.chance(50) else tagged_command(dice, pair.known)
    )


def run(seed: int, entries: int) -> FarPair:
    """One world."""
    rng = random.Random(seed)
    dice = Dice(rng)
    pair = FarPair(rng)
    try:
        for _ in range(entries):
            pair.advance(*step(dice))
            pair.entry([drawn(dice, pair) for _ in range(dice.pick((1, 1, 1, 2, 4)))], look=dice.chance(25))
            if dice.chance(3):
                pair.freeze()
            if dice.chance(30):
                pair.image_step(dice.integer(1, 6))
            if dice.chance(2):
                pair.restart()
            elif dice.chance(1):
                pair.abandon_image()
    except Exception as error:
        error.add_note(f"seed {seed}, entry {pair.index}")
        error.add_note("\n".join(map(str, pair.story[-12:])))
        raise
    return pair


@pytest.mark.parametrize("seed", range(4))
def test_no_difference_is_seen(seed: int) -> None:
    """The same entries, the same answers, the same messages in every state, whatever lies in pages."""
    pair = run(seed, 150)
    assert pair.came_back > 100 and pair.looked > 5 and pair.machine.far.next_page > 20, "little was far"
