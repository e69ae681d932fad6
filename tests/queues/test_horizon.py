"""The hot window: what leaves memory comes back in order, and nobody can tell that it was away."""

from __future__ import annotations

import random
from collections.abc import Sequence

import attrs
import pytest

from tests.queues.bench import Bench
from tests.queues.generate import Dice, columns, step, tagged_command
from tests.queues.pair import Pair
from walrq import api
from walrq.errors import Code
from walrq.queues import commands as c
from walrq.queues import effects, image
from walrq.queues.commands import ColdBatch
from walrq.queues.machine import Bounds

WINDOW = Bounds(hot_messages_per_queue=4)


@attrs.define
class Node:
    """The node's part: keeps what went cold and brings it back, oldest first."""

    cold: dict[tuple[int, int], dict[int, ColdBatch]] = attrs.field(factory=dict)

    def keep(self, seen: effects.Effects) -> None:
        """Take what an entry drove out."""
        for uid, priority, batch in seen.cold:
            self.cold.setdefault((uid, priority), {})[batch.sequence] = batch

    def hydrate(self) -> list[c.Tagged]:
        """Everything back, by queue and priority."""
        commands = [
            c.Tagged(c.Hydrate(uid, priority, tuple(batches[sequence] for sequence in sorted(batches))))
            for (uid, priority), batches in sorted(self.cold.items())
        ]
        self.cold.clear()
        return commands


def windowed(bounds: Bounds = WINDOW) -> tuple[Bench, Node]:
    """A machine with a small window, and its node."""
    return Bench(bounds), Node()


def bring_back(bench: Bench, node: Node) -> None:
    """Hydrate all."""
    node.keep(bench.machine.take_effects())
    for command in node.hydrate():
        assert isinstance(bench.do(command.command), api.Done)


def test_a_push_beyond_the_window_leaves_only_counters() -> None:
    """Counted as ready, kept as metadata by the node, not in memory."""
    bench, node = windowed()
    bench.push(payloads=3)
    bench.push(payloads=3)
    node.keep(bench.machine.take_effects())

    assert (6, 3) == (bench.show().ready, bench.machine.queues["q"].length)
    assert [(3, 4)] == [(b.count, b.sequence) for found in node.cold.values() for b in found.values()]


def test_cold_messages_come_back_in_order() -> None:
    """FirstDeliveryOrder: a batch behind a cold one of its priority is cold too."""
    bench, node = windowed()
    pushed = [*bench.ids(payloads=3), *bench.ids(payloads=3), *bench.ids(payloads=1)]
    taken = bench.take(limit=100)
    bring_back(bench, node)

    assert pushed == [*taken, *bench.take(limit=100)]
    assert 3 == len(taken)


def test_dedup_ids_do_not_let_a_batch_overtake_cold_ones() -> None:
    """Ids without a hit change nothing about where a batch stands."""
    bench, node = windowed()
    pushed = [*bench.ids(payloads=4), *bench.ids(payloads=2), *bench.ids(dedup=["k"])]
    taken = bench.take(limit=100)
    bring_back(bench, node)

    assert pushed == [*taken, *bench.take(limit=100)]


def test_a_higher_priority_drives_a_lower_one_out() -> None:
    """The window is for what goes next."""
    bench, node = windowed()
    low = bench.ids(payloads=4)
    high = bench.ids(payloads=3, priority=5)
    assert high == bench.take(limit=100)
    bring_back(bench, node)

    assert low == bench.take(limit=100)


def test_length_limits_count_cold_messages() -> None:
    """A window is no way around a bound."""
    bench, _ = windowed()
    bench.set(max_length=6)
    bench.push(payloads=4)
    bench.push(payloads=2)

    assert int(Code.QUEUE_FULL) == bench.push().code
    assert 6 == bench.show().ready


def test_a_hydrate_that_comes_twice_changes_nothing() -> None:
    """A new leader may propose what the old one had proposed."""
    bench, node = windowed()
    bench.push(payloads=4)
    second, third = bench.ids(payloads=2), bench.ids(payloads=2)
    bench.take(limit=100)
    node.keep(bench.machine.take_effects())
    (whole,) = node.hydrate()
    assert isinstance(whole.command, c.Hydrate)
    part = attrs.evolve(whole.command, batches=whole.command.batches[:1])

    assert [api.Done(2), api.Done(0)] == [bench.do(part) for _ in range(2)]
    assert [api.Done(2), api.Done(0)] == [bench.do(whole.command) for _ in range(2)]
    assert [*second, *third] == bench.take(limit=100)


@pytest.mark.parametrize("command", [c.PurgeQueue("q"), c.DeleteQueue("q")])
def test_purge_and_delete_forget_what_is_cold(command: c.Command) -> None:
    """A late hydrate of what was purged brings nothing back."""
    bench, node = windowed()
    bench.push(payloads=4)
    bench.push(payloads=2)
    node.keep(bench.machine.take_effects())

    assert api.Done(6) == bench.do(command)
    assert {} == bench.machine.live_blocks
    for hydrate in node.hydrate():
        assert api.Done(0) == bench.do(hydrate.command)
    assert [] == bench.take()


def test_cold_counters_survive_a_restart() -> None:
    """They are state: the same pages, and the same answers to a hydrate."""
    bench, node = windowed()
    bench.push(payloads=4)
    cold = bench.ids(payloads=2)
    node.keep(bench.machine.take_effects())
    before = image.full_pages(bench.machine)
    bench.restart()
    assert before == image.full_pages(bench.machine)
    bench.take(limit=100)
    for command in node.hydrate():
        bench.do(command.command)

    assert cold == bench.take(limit=100)


class WindowedPair(Pair):
    """A pair whose machine has a small window; all that is cold is brought back before anything but a push."""

    def __init__(self) -> None:
        super().__init__(WINDOW)
        self.node = Node()

    def entry(self, entry: Sequence[c.Tagged], *, look: bool = True) -> list[effects.Result]:
        pushes_only = all(isinstance(tagged.command, c.Push) for tagged in entry)
        if not pushes_only:
            self.index += 1
            for result in self.machine.apply(self.index, self.stamp, self.node.hydrate()):
                assert isinstance(result, api.Done)
            self.model.apply(self.index, self.stamp, [])
            # Windows are left by pushes only, so nothing went out again.
            assert [] == self.machine.take_effects().cold
        return super().entry(entry, look=look and not pushes_only)

    def notice(self, seen: effects.Effects) -> None:
        self.node.keep(seen)


def test_a_machine_with_a_window_answers_as_one_without(seed: int) -> None:
    """Against the oracle, which has no window: whatever went out and came back is as if it had stayed."""
    print(f"seed {seed}")
    dice, pair = Dice(random.Random(seed)), WindowedPair()
    went_out = 0
    for _ in range(600):
        lease_ms, wall_ms = step(dice)
        pair.advance(lease_ms, wall_ms)
        if dice.chance(50):
            bare = attrs.evolve(columns(dice), groups=None, dedup=None)
            entry = [c.Tagged(c.Push(dice.pick(("a", "b", "c")), bare, dice.pick((0, 0, 1))))]
        else:
            entry = [tagged_command(dice, pair.known)]
        tagged = entry[0].command
        if isinstance(tagged, c.Push) and (tagged.columns.dedup or tagged.columns.groups or tagged.ttl_ms):
            continue
        if isinstance(tagged, c.SetQueue) and {"max_length", "max_bytes", "retention_ms", "delay_ms"} & set(
            tagged.settings
        ):
            continue
        pair.entry(entry, look=True)
        went_out += sum(map(len, pair.node.cold.values()))

    assert went_out > 50
