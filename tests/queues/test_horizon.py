"""The hot window: what leaves memory comes back in order, and nobody can tell that it was away."""

from __future__ import annotations

import random
from collections.abc import Sequence

import attrs
import cbor2
import pytest

from tests.queues.bench import Bench
from tests.queues.generate import GROUPS, Dice, columns, step, tagged_command
from tests.queues.pair import Pair
from walrq import api
from walrq.api import SettleKind
from walrq.errors import Code
from walrq.queues import commands as c
from walrq.queues import effects, horizon, image, reads
from walrq.queues.horizon import STRETCH_ROWS_MIN
from walrq.queues.lanes import SEALED_FIRST, TAIL, Stretch, page_of, rows_of
from walrq.queues.machine import Machine

HOT = 4
# Pushes fill three quarters of a window.
WINDOW = c.SetWindow(HOT + 1, None)
# One in which stretches grow to STRETCH_ROWS_MIN single messages.
WIDE_HOT = 300
WIDE = c.SetWindow(4 * WIDE_HOT // 3, None)


@attrs.define
class Disk:
    """The node's part: has the sealed stretches, and brings back what is cold, what comes first first."""

    machine: Machine
    pages: dict[tuple[int, int, int], bytes] = attrs.field(factory=dict)

    def save(self) -> None:
        """A snapshot became durable: nothing sealed stays in memory."""
        for uid, lane, number in self.machine.cold_unsaved:
            self.pages[uid, lane, number] = self.machine.by_uid[uid].cold[lane].unsaved[number]
        horizon.saved(self.machine, list(self.machine.cold_unsaved))

    def page(self, uid: int, lane: int, number: int) -> bytes:
        """The bytes of a sealed stretch."""
        return self.machine.by_uid[uid].cold[lane].page(number) or self.pages[uid, lane, number]

    def following(self) -> list[c.Hydrate]:
        """The stretch at the head of every lane."""
        return [
            c.Hydrate(uid, lane, head.number, self.page(uid, lane, head.number))
            if head.number >= SEALED_FIRST
            else c.Hydrate(uid, lane, TAIL)
            for uid, queue in sorted(self.machine.by_uid.items())
            for lane, cold in sorted(queue.cold.items())
            if (head := cold.head()) is not None
        ]

    def count(self) -> int:
        """Messages that are cold."""
        return sum(cold.messages for queue in self.machine.queues.values() for cold in queue.cold.values())


def windowed(window: c.SetWindow = WINDOW) -> tuple[Bench, Disk]:
    """A machine with a small window, and its disk."""
    bench = Bench()
    bench.do(window)
    return bench, Disk(bench.machine)


def bring_back(bench: Bench, disk: Disk) -> None:
    """Hydrate all."""
    while following := disk.following():
        for command in following:
            assert isinstance(bench.do(command), api.Done)


def restart(bench: Bench, disk: Disk) -> None:
    """Load the machine from its image; the disk has what is sealed."""
    disk.save()
    bench.restart()
    disk.machine = bench.machine


def heads(bench: Bench) -> list[Stretch]:
    """What comes next of each cold lane."""
    found = [cold.head() for queue in bench.machine.queues.values() for cold in queue.cold.values()]
    return [head for head in found if head is not None]


def test_a_push_beyond_the_window_leaves_only_counters() -> None:
    """Counted as ready, kept as metadata by the node, not in memory."""
    bench, _ = windowed()
    bench.push(payloads=3)
    bench.push(payloads=3)

    assert (6, 3) == (bench.show().ready, bench.machine.queues["q"].length)
    assert [(1, 4, 3)] == [(head.rows, head.first, head.messages) for head in heads(bench)]


def test_cold_messages_come_back_in_order() -> None:
    """FirstDeliveryOrder: a batch behind a cold one of its priority is cold too."""
    bench, disk = windowed()
    pushed = [*bench.ids(payloads=3), *bench.ids(payloads=3), *bench.ids(payloads=1)]
    taken = bench.take(limit=100)
    bring_back(bench, disk)

    assert pushed == [*taken, *bench.take(limit=100)]
    assert 3 == len(taken)


def test_dedup_ids_do_not_let_a_batch_overtake_cold_ones() -> None:
    """Ids without a hit change nothing about where a batch stands."""
    bench, disk = windowed()
    pushed = [*bench.ids(payloads=4), *bench.ids(payloads=2), *bench.ids(dedup=["k"])]
    taken = bench.take(limit=100)
    bring_back(bench, disk)

    assert pushed == [*taken, *bench.take(limit=100)]


def test_a_higher_priority_drives_a_lower_one_out() -> None:
    """The window is for what goes next."""
    bench, disk = windowed()
    low = bench.ids(payloads=4)
    high = bench.ids(payloads=3, priority=5)
    assert high == bench.take(limit=100)
    bring_back(bench, disk)

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
    bench, disk = windowed(WIDE)
    bench.push(payloads=WIDE_HOT)
    cold = [identifier for _ in range(STRETCH_ROWS_MIN + 2) for identifier in bench.ids()]
    bench.take(limit=WIDE_HOT)
    (sealed,) = disk.following()
    assert sealed.stretch >= SEALED_FIRST

    assert [api.Done(STRETCH_ROWS_MIN), api.Done(0)] == [bench.do(sealed) for _ in range(2)]
    assert [api.Done(2), api.Done(0)] == [bench.do(attrs.evolve(sealed, stretch=TAIL, rows=b"")) for _ in range(2)]
    assert api.Done(0) == bench.do(sealed)
    assert cold == bench.take(limit=100)


def test_a_stretch_with_rows_missing_is_refused() -> None:
    """What was read is compared with what the state knows of it."""
    bench, disk = windowed(WIDE)
    for _ in range(WIDE_HOT + STRETCH_ROWS_MIN + 3):
        bench.push()
    (sealed,) = disk.following()

    assert int(Code.INVALID_ARGUMENT) == bench.do(attrs.evolve(sealed, rows=page_of([]))).code
    assert isinstance(bench.do(sealed), api.Done)


@pytest.mark.parametrize("command", [c.PurgeQueue("q"), c.DeleteQueue("q")])
def test_purge_and_delete_forget_what_is_cold(command: c.Command) -> None:
    """A late hydrate of what was purged brings nothing back."""
    bench, disk = windowed(WIDE)
    bench.push(payloads=WIDE_HOT)
    for _ in range(2 * STRETCH_ROWS_MIN):
        bench.push()
    late = disk.following()

    assert api.Done(WIDE_HOT + 2 * STRETCH_ROWS_MIN) == bench.do(command)
    assert ({}, {}) == (bench.machine.live_blocks, bench.machine.cold_unsaved)
    for hydrate in late:
        assert api.Done(0) == bench.do(hydrate)
    assert [] == bench.take()


def test_what_is_cold_survives_a_restart() -> None:
    """It is state: the same pages, and the same answers to a hydrate."""
    bench, disk = windowed(WIDE)
    bench.push(payloads=WIDE_HOT)
    cold = [identifier for _ in range(STRETCH_ROWS_MIN + 2) for identifier in bench.ids()]
    before = image.full_pages(bench.machine)
    restart(bench, disk)
    assert before == image.full_pages(bench.machine)
    bench.take(limit=WIDE_HOT)
    bring_back(bench, disk)

    assert cold == bench.take(limit=100)


class WindowedPair(Pair):
    """A pair whose machine has a small window; all that is cold is brought back before anything but a push."""

    def __init__(self) -> None:
        super().__init__()
        self.machine.apply(0, self.stamp, [c.Tagged(WINDOW)])
        self.disk = Disk(self.machine)

    def entry(self, entry: Sequence[c.Tagged], *, look: bool = True) -> list[effects.Result]:
        pushes_only = all(isinstance(tagged.command, c.Push) for tagged in entry)
        if not pushes_only:
            self.bring_back()
        return super().entry(entry, look=look and not pushes_only)

    def bring_back(self) -> None:
        """Everything, before anybody looks."""
        self.index += 1
        self.model.apply(self.index, self.stamp, [])
        self.machine.apply(self.index, self.stamp, [])
        while following := self.disk.following():
            for result in self.machine.apply(self.index, self.stamp, [c.Tagged(each) for each in following]):
                assert isinstance(result, api.Done)

    def compare(self) -> dict[str, dict[api.State, list[api.Peeked]]]:
        self.bring_back()
        return super().compare()


@pytest.mark.parametrize("grouped", [False, True])
def test_a_machine_with_a_window_answers_as_one_without(seed: int, grouped: bool) -> None:
    """Against the oracle, which has no window: whatever went out and came back is as if it had stayed.

    Ungrouped messages and grouped ones do not meet here: which of both has the next turn is told by the window.
    """
    print(f"seed {seed}")
    dice, pair = Dice(random.Random(seed)), WindowedPair()
    went_out = 0
    for _ in range(600):
        lease_ms, wall_ms = step(dice)
        pair.advance(lease_ms, wall_ms)
        if dice.chance(50):
            entry = [c.Tagged(c.Push(dice.pick(("a", "b", "c")), columns(dice), dice.pick((0, 0, 1))))]
        else:
            entry = [tagged_command(dice, pair.known)]
        push = entry[0].command
        if isinstance(push, c.Push):
            number = len(push.columns.ends) >> 2
            groups = tuple(dice.pick(GROUPS) for _ in range(number)) if grouped else None
            entry = [
                attrs.evolve(entry[0], command=attrs.evolve(push, columns=attrs.evolve(push.columns, groups=groups)))
            ]
        if isinstance(push, c.SetQueue) and "max_bytes" in push.settings:
            # Of what is cold, bytes are known by equal shares of a stretch.
            continue
        pair.entry(entry, look=True)
        went_out += pair.disk.count()

    assert went_out > 50


def cold_batch(bench: Bench, disk: Disk, number: int = STRETCH_ROWS_MIN + 4) -> list[int]:
    """Fill the window, then push so many more, one by one: their ids. The first of them are sealed, and on disk."""
    bench.push(payloads=WIDE_HOT)
    cold = [identifier for _ in range(number) for identifier in bench.ids()]
    disk.save()
    return cold


def search(disk: Disk, name: str, ids: Sequence[int]) -> list[c.Hydrate]:
    """What a leader does about ids that may be cold: reads every stretch, and picks."""
    queue = disk.machine.queues[name]
    found = []
    for lane, cold in queue.cold.items():
        for stretch in cold.stretches():
            rows = rows_of(disk.page(queue.uid, lane, stretch.number))
            picked = [row for row in rows if any(horizon.holds(horizon.opened(row), queue.uid, each) for each in ids)]
            if picked:
                page = page_of([cbor2.dumps(row) for row in picked])
                sequences = tuple(horizon.sequence_of(row) for row in picked)
                found.append(c.Hydrate(queue.uid, lane, stretch.number, page, sequences))
    return found


@pytest.mark.parametrize("place", [0, STRETCH_ROWS_MIN - 1, STRETCH_ROWS_MIN + 1])
def test_a_cold_message_is_cancelled_exactly(place: int) -> None:
    """Sealed or not: cancelled once, gone after that, and its neighbours stay where they are."""
    bench, disk = windowed(WIDE)
    cold = cold_batch(bench, disk)
    answer = bench.do(c.Cancel("q", (cold[place],)))
    if place < STRETCH_ROWS_MIN:
        assert answer == effects.LookFar((), (cold[place],))
        seen = bench.machine.queues["q"].next_cold
        for pick in search(disk, "q", [cold[place]]):
            bench.do(pick)
        answer = bench.do(c.Cancel("q", (cold[place],), cold=seen))

    assert answer == api.Outcomes((api.Outcome.DONE,))
    seen = bench.machine.queues["q"].next_cold
    assert api.Outcomes((api.Outcome.GONE,)) == bench.do(c.Cancel("q", (cold[place],), cold=seen))
    assert WIDE_HOT + len(cold) - 1 == bench.show().ready
    bench.take(limit=WIDE_HOT)
    bring_back(bench, disk)
    assert [each for each in cold if each != cold[place]] == bench.take(limit=100)


def test_what_is_picked_waits_for_those_before_it() -> None:
    """FirstDeliveryOrder: out of turn is a place in memory, not a place in the line."""
    bench, disk = windowed(WIDE)
    cold = cold_batch(bench, disk)
    for pick in search(disk, "q", [cold[3], cold[-1]]):
        bench.do(pick)

    assert len(bench.take(limit=1000)) == WIDE_HOT
    bring_back(bench, disk)
    assert cold == bench.take(limit=1000)


def test_a_failed_message_goes_behind_what_is_cold() -> None:
    """A poison message does not hold the line, on either side of the border, and keeps its id and its attempts."""
    bench, disk = windowed(WIDE)
    cold = cold_batch(bench, disk)
    (poison,) = bench.lease(limit=1)
    bench.settle(poison, SettleKind.FAIL, delay_ms=0)
    assert WIDE_HOT - 1 == bench.machine.queues["q"].length
    rest = bench.take(limit=1000)
    bring_back(bench, disk)
    back = bench.lease(limit=1000)

    assert WIDE_HOT - 1 == len(rest)
    assert [*cold, poison.first_id] == [run.first_id + k for run in back for k in range(run.count)]
    assert (2, 1) == (back[-1].delivery, back[-1].attempts)


def test_dead_messages_go_cold_and_keep_their_story() -> None:
    """A dead-letter queue is a queue like any other."""
    bench, disk = windowed(WIDE)
    bench.set(max_deliveries=1)
    bench.set("other")
    dying = bench.ids(payloads=3)
    runs = bench.lease(limit=3)
    bench.set("q.dlq", max_hot_messages=1)
    for position in range(3):
        bench.settle(runs[0], SettleKind.FAIL, ((position, position),), error_type="Boom")
    buried = bench.machine.queues["q.dlq"]
    assert 2 == sum(cold.messages for cold in buried.cold.values()) and {"q": 3} == buried.origins
    bring_back(bench, disk)

    seen, _ = reads.dead(bench.machine, api.ListDead("q"))
    assert dying == [one.peeked.id for one in seen]
    assert {"Boom"} == {one.peeked.history[-1].error_type for one in seen}


def test_cold_messages_end_by_their_ttl_without_becoming_hot() -> None:
    """The leader names what has expired; nothing else comes back."""
    bench, disk = windowed(WIDE)
    bench.push(payloads=WIDE_HOT)
    mortal = [bench.ids(ttl_ms=50 if k % 2 else 5_000)[0] for k in range(STRETCH_ROWS_MIN + 2)]
    disk.save()
    bench.wait(100)
    bench.tick()
    (place,) = bench.machine.cold_due()
    cold = bench.machine.by_uid[place[0]].cold[place[1]]
    for stretch in cold.stretches():
        rows = rows_of(disk.page(*place, stretch.number))
        ended = [row for row in rows if horizon.opened(row).expire_ms <= bench.machine.wall]
        page = page_of([cbor2.dumps(row) for row in ended])
        picked = tuple(horizon.sequence_of(row) for row in ended)
        bench.do(c.Hydrate(*place, stretch.number, page, picked, bench.machine.wall + 4_000))

    assert [] == bench.machine.cold_due()
    assert WIDE_HOT + len(mortal) // 2 == bench.show().ready
    bench.take(limit=WIDE_HOT)
    bring_back(bench, disk)
    assert mortal[::2] == bench.take(limit=100)


def test_the_oldest_are_dropped_on_both_sides_of_the_border() -> None:
    """At its length limit a queue makes room with what it would deliver first, in memory or not."""
    bench, disk = windowed(WIDE)
    bench.push(payloads=WIDE_HOT)
    cold = [identifier for _ in range(STRETCH_ROWS_MIN + 4) for identifier in bench.ids()]
    bench.set(max_length=WIDE_HOT + len(cold), overflow="drop_oldest")
    last = bench.ids(payloads=WIDE_HOT + 3)
    assert WIDE_HOT + len(cold) == bench.show().ready
    bring_back(bench, disk)

    assert [*cold[3:], *last] == bench.take(limit=1000)


def test_a_stretch_that_nobody_can_read_is_lost_and_the_rest_goes_on() -> None:
    """Its messages are counted no more; what stands behind them comes in order."""
    bench, disk = windowed(WIDE)
    cold = cold_batch(bench, disk, 2 * STRETCH_ROWS_MIN + 3)
    bench.take(limit=WIDE_HOT)
    (sealed,) = disk.following()
    assert api.Done(0) == bench.do(attrs.evolve(sealed, rows=b""))
    assert len(cold) - STRETCH_ROWS_MIN == bench.show().ready
    bring_back(bench, disk)

    assert cold[STRETCH_ROWS_MIN:] == bench.take(limit=1000)
    bench.do(c.PurgeQueue("q"))
    assert {} == bench.machine.live_blocks
