"""Beyond the horizon: what goes there, what comes back when, and what is refused. One machine, its pages in memory."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.queues.bench import Bench
from walrq import api
from walrq.errors import Code
from walrq.far.rows import key_of, rows_of, time_of
from walrq.far.shelf import Cut, digest_of, page_key
from walrq.queues import commands as c
from walrq.queues import effects, image, reads
from walrq.queues.machine import Bounds
from walrq.replica.waiting import Waiting
from walrq.tiers.timers import PageLost, Search, Since, Slice, Sweeping

HORIZON_MS = 300_000
DAY_MS = 86_400_000


class FarBench(Bench):
    """A bench with a horizon, and the leader's part."""

    def __init__(self, **bounds: Any) -> None:
        super().__init__(Bounds(**{"far_horizon_ms": HORIZON_MS, "far_tail_rows": 4, "far_page_rows": 2} | bounds))
        self.machine.version = 2
        self.stored: dict[bytes, bytes] = {}
        self.waiting = Waiting(self)  # type: ignore[arg-type]  # of a storage it needs `read_page` only

    def read_page(self, key: bytes) -> bytes | None:
        """What the newest snapshot holds."""
        return self.stored.get(key)

    @property
    def far(self) -> Any:
        """What waits."""
        return self.machine.far

    def fetch(self) -> int:
        """All the work there is now; how many messages came back or were swept."""
        number = 0
        while (work := self.waiting.work(self.machine, self.wall_ms)) is not None:
            work.run()
            number += self.do(work.command()).count
        return number

    def save(self) -> None:
        """A durable snapshot: sealed pages leave the memory."""
        imager = image.Imager(self.machine, self.stored)
        imager.start_over()
        imager.freeze()
        while imager.step(100):
            pass
        for key, body in imager.take():
            if body is None:
                self.stored.pop(key, None)
            else:
                self.stored[key] = body
        imager.kept()

    def find(self, *ids: int) -> c.FarFound:
        """What the leader finds of some messages."""
        search = self.waiting.look_up(self.far, ids)
        search.run()
        return c.FarFound(search.seen, search.found)

    def cancel(self, *ids: int, queue: str = "q") -> Any:
        """Cancel as the broker does: looked up if it must be."""
        result = self.do(c.Cancel(queue, ids))
        if isinstance(result, effects.LookFar):
            result = self.do(c.Cancel(queue, ids, self.find(*result.ids)))
        return [outcome.name for outcome in result.outcomes]

    def reschedule(self, identifier: int, at_ms: int, queue: str = "q") -> str:
        """Reschedule as the broker does."""
        result = self.do(c.Reschedule(queue, identifier, at_ms))
        if isinstance(result, effects.LookFar):
            result = self.do(c.Reschedule(queue, identifier, at_ms, self.find(*result.ids)))
        return str(result.outcomes[0].name)

    def pass_by(self, ms: int) -> None:
        """Let time pass; what comes near is fetched on the way."""
        target = self.wall_ms + ms
        while (wanted := self.waiting.wanted_ms(self.machine)) is not None and wanted < target:
            self.wait(max(0, wanted - self.wall_ms))
            self.fetch()
        self.wait(target - self.wall_ms)
        self.fetch()
        self.tick()


@pytest.fixture
def far() -> FarBench:
    """A machine of its own for the test."""
    return FarBench()


# --- what goes there ----------------------------------------------------------------------------------------
def test_what_is_due_beyond_the_horizon_has_no_batch(far: FarBench) -> None:
    """It costs a row of the tail, or of a page, and its share in the counts."""
    far.push(payloads=3, delay_ms=DAY_MS)
    far.push(payloads=2, delay_ms=HORIZON_MS)

    queue = far.machine.queues["q"]
    assert (0, 5, 0, 0) == far.counts()
    assert (3, 2) == (queue.far_messages, queue.length)
    assert 5 == far.show().bytes
    assert 1 == len(list(queue.batches()))


def test_version_1_keeps_everything_near(far: FarBench) -> None:
    """A member of the cluster may be one that knows no horizon."""
    far.machine.version = 1
    far.push(delay_ms=DAY_MS)

    assert far.far.is_empty and far.machine.queues["q"].length == 1


def test_a_million_messages_in_one_batch_are_one_row(far: FarBench) -> None:
    """Rows are stretches, however long."""
    far.push(payloads=10_000, delay_ms=DAY_MS)

    assert 1 == far.far.tail_rows
    assert 10_000 == far.counts()[1]


def test_a_row_holds_the_log(far: FarBench) -> None:
    """What it points at may not be given back before it is gone; afterwards it may."""
    far.push(delay_ms=DAY_MS)
    index = far.index

    assert image.live_in(far.machine, index, index)
    far.cancel(*far_ids(far))
    assert not image.live_in(far.machine, index, index)


def far_ids(far: FarBench) -> list[int]:
    """Ids of all messages that wait."""
    rows = list(far.far.tail())
    for page in far.far.pages.values():
        body = far.far.unsaved.get(page.number) or far.stored[page_key(page.number)]
        rows += [row for position, row in enumerate(rows_of(body, page.rows)) if page.is_there(position)]
    return [row.first_id + k for row in rows for k in range(row.count)]


def test_length_limits_count_what_waits(far: FarBench) -> None:
    """max_length holds for messages in all states."""
    far.set(max_length=5)
    far.push(payloads=4, delay_ms=DAY_MS)

    refused = far.push(payloads=2)
    assert isinstance(refused, api.Failed) and refused.code == Code.QUEUE_FULL


# --- what comes back ----------------------------------------------------------------------------------------
def test_they_come_back_in_order_of_time_and_none_early(far: FarBench) -> None:
    """Whatever page they lie in, and in whatever order they were pushed."""
    rng = random.Random(7)
    due: dict[int, int] = {}
    for _ in range(60):
        delay_ms = rng.randrange(HORIZON_MS + 1, 3 * DAY_MS)
        (identifier,) = far.ids(delay_ms=delay_ms)
        due[identifier] = far.wall_ms + delay_ms
        if rng.random() < 0.2:
            far.save()
    order: list[int] = []
    at: list[int] = []
    while len(order) < len(due):
        left = sorted(time for identifier, time in due.items() if identifier not in order)
        far.pass_by(left[0] - far.wall_ms - 1)
        assert not far.take(limit=1), "one came early"
        far.pass_by(1)
        (taken,) = far.take(limit=1, visibility_ms=10 * DAY_MS)
        order.append(taken)
        at.append(far.wall_ms)

    assert sorted(due, key=due.__getitem__) == order
    assert sorted(due.values()) == at


def test_what_fell_due_while_nobody_looked_comes_at_once(far: FarBench) -> None:
    """After a week of darkness everything is late, and there."""
    ids = [identifier for k in range(30) for identifier in far.ids(delay_ms=DAY_MS + k * 1_000)]
    far.save()
    far.wait(7 * DAY_MS)
    far.fetch()

    assert ids == far.take(limit=100)


def test_a_slice_is_as_large_as_it_may_be_and_no_larger(far: FarBench) -> None:
    """The next one begins where it ended, in the middle of a millisecond if need be."""
    for _ in range(9):
        far.push(payloads=2, deliver_at_ms=far.wall_ms + DAY_MS)
    seen = []
    while not far.far.is_empty:
        part = Slice(far.far, far.read_page, far.wall_ms + 2 * DAY_MS, rows_max=4, messages_max=1_000)
        part.run()
        seen.append(far.do(c.HydrateFar(part.since, part.to, part.seen, part.cuts)).count)

    assert [8, 8, 2] == seen


def test_a_slice_may_be_bounded_by_messages(far: FarBench) -> None:
    """One row comes in any case, however many messages it has."""
    for _ in range(3):
        far.push(payloads=6, delay_ms=DAY_MS)
    seen = []
    while not far.far.is_empty:
        part = Slice(far.far, far.read_page, far.wall_ms + 2 * DAY_MS, rows_max=100, messages_max=7)
        part.run()
        seen.append(far.do(c.HydrateFar(part.since, part.to, part.seen, part.cuts)).count)

    assert [6, 6, 6] == seen


def test_what_is_sealed_while_a_slice_is_read_makes_it_be_read_again(far: FarBench) -> None:
    """A push that lands in a slice under way is not skipped: nothing moves until the page was read."""
    far.push(delay_ms=HORIZON_MS + 1_000)
    part = Slice(far.far, far.read_page, far.wall_ms + DAY_MS, 100, 100)
    part.run()
    for _ in range(6):
        far.push(delay_ms=HORIZON_MS + 2_000)
    before = image.full_pages(far.machine)

    assert api.Done(0) == far.do(c.HydrateFar(part.since, part.to, part.seen, part.cuts))
    assert before == image.full_pages(far.machine)
    far.wait(HORIZON_MS + 2_000)
    far.fetch()
    assert 7 == len(far.take(limit=10))


def test_what_lands_in_the_tail_while_a_slice_is_read_comes_along(far: FarBench) -> None:
    """The tail is in memory: it needs no reading."""
    far.push(delay_ms=HORIZON_MS + 1_000)
    part = Slice(far.far, far.read_page, far.wall_ms + DAY_MS, 100, 100)
    part.run()
    far.push(delay_ms=HORIZON_MS + 2_000)

    assert api.Done(2) == far.do(c.HydrateFar(part.since, part.to, part.seen, part.cuts))


def test_behind_the_frontier_everything_is_near(far: FarBench) -> None:
    """A message that would be put below it would never be taken."""
    far.push(delay_ms=DAY_MS)
    part = Slice(far.far, far.read_page, far.wall_ms + DAY_MS, 100, 100)
    part.run()
    far.do(c.HydrateFar(part.since, part.to, part.seen, part.cuts))

    far.push(delay_ms=DAY_MS // 2)
    assert far.far.is_empty and 2 == far.machine.queues["q"].delayed


def test_a_slice_that_leaves_a_row_out_is_refused(far: FarBench) -> None:
    """No leader can lose a message by a mistake: pages are taken from their cursors on."""
    for k in range(5):
        far.push(delay_ms=DAY_MS + k)
    part = Slice(far.far, far.read_page, far.wall_ms + 2 * DAY_MS, 100, 100)
    part.run()
    before = image.full_pages(far.machine)
    first = part.cuts[0]
    wrong = [
        part.cuts[1:],
        (Cut(first.number, 0, 0, b"", b""), *part.cuts[1:]),
        (Cut(first.number, 1, first.rows - 1, first.page, b""), *part.cuts[1:]),
        (Cut(first.number, 0, first.rows + 1, first.page, b""), *part.cuts[1:]),
        (Cut(first.number, 0, first.rows, first.page, key_of(1)), *part.cuts[1:]),
    ]

    for cuts in wrong:
        refused = far.do(c.HydrateFar(part.since, part.to, part.seen, tuple(cuts)))
        assert isinstance(refused, api.Failed) and refused.code == Code.INVALID_ARGUMENT, cuts
        assert before == image.full_pages(far.machine)


def test_groups_priorities_and_limits_survive_the_way(far: FarBench) -> None:
    """Two groups in one batch are two rows, and groups again when they are due."""
    ids = far.ids(payloads=4, groups=("a", "a", "b", None), priority=7, max_attempts=9, delay_ms=DAY_MS)
    far.save()
    far.restart()
    far.pass_by(DAY_MS)
    taken = far.lease(limit=10)

    assert {"a", "b", None} == {run.group for run in taken}
    assert {7} == {run.priority for run in taken}
    assert ids[0] in [run.first_id for run in taken] and ids[1] not in [run.first_id for run in taken]


def test_a_life_that_ends_beyond_the_horizon_ends_in_time(far: FarBench) -> None:
    """It comes back for its end, and is counted until then."""
    far.push(delay_ms=2 * DAY_MS, ttl_ms=DAY_MS)
    far.pass_by(DAY_MS - 1)
    assert 1 == far.counts()[1]
    far.pass_by(1)
    assert (0, 0, 0, 0) == far.counts()
    assert not far.machine.live_blocks and not list(far.far.blocks)


# --- the window ---------------------------------------------------------------------------------------------
def test_a_full_window_draws_the_horizon_near(far: FarBench) -> None:
    """What is not due yet waits beyond it, and comes when it is due."""
    far.do(c.SetWindow(100, None))
    far.push(payloads=75)
    far.push(payloads=2, delay_ms=1_000)

    assert (75, 2, 0, 0) == far.counts() and 2 == far.machine.queues["q"].far_messages
    assert 0 == far.fetch()
    far.wait(1_000)
    assert 2 == far.fetch()
    assert (77, 0, 0, 0) == far.counts()


def test_what_is_due_does_not_grow_beyond_all_bounds(far: FarBench) -> None:
    """A quarter more than the window; the rest stays where it costs nothing until something is taken."""
    far.do(c.SetWindow(40, None))
    for _ in range(30):
        far.push(payloads=5, delay_ms=DAY_MS)
    far.wait(DAY_MS)
    far.fetch()
    assert 50 <= far.machine.tally.messages < 60
    ids = []
    while far.counts() != (0, 0, 0, 0):
        for run in far.lease(limit=10):
            ids += range(run.first_id, run.first_id + run.count)
            far.ack(run)
        far.fetch()

    assert 150 == len(set(ids)) == len(ids)


# --- by id --------------------------------------------------------------------------------------------------
def test_cancel_takes_one_message_out_of_a_long_row(far: FarBench) -> None:
    """Its siblings wait on, in two rows."""
    ids = far.ids(payloads=9, delay_ms=DAY_MS)

    assert ["DONE"] == far.cancel(ids[4])
    assert ["GONE", "DONE", "UNKNOWN"] == far.cancel(ids[4], ids[0], ids[0] ^ (1 << 50))
    far.pass_by(DAY_MS)
    assert ids[1:4] + ids[5:] == far.take(limit=20)


def test_cancel_in_a_sealed_page_asks_for_a_look_and_then_is_exact(far: FarBench) -> None:
    """Without the look nothing happens; with it exactly that message goes."""
    ids = [identifier for _ in range(8) for identifier in far.ids(payloads=2, delay_ms=DAY_MS)]
    far.save()
    before = image.full_pages(far.machine)

    assert effects.LookFar((ids[3],)) == far.do(c.Cancel("q", (ids[3],)))
    assert before == image.full_pages(far.machine)
    assert ["DONE"] == far.cancel(ids[3])
    assert ["GONE"] == far.cancel(ids[3])
    far.pass_by(DAY_MS)
    assert ids[:3] + ids[4:] == far.take(limit=20)


def test_two_that_found_the_same_row_take_it_once(far: FarBench) -> None:
    """The second finds what is left of it where it is now."""
    ids = far.ids(payloads=3, delay_ms=DAY_MS)
    for _ in range(7):
        far.push(queue="other", delay_ms=DAY_MS)
    found = far.find(*ids)

    first = far.do(c.Cancel("q", (ids[1],), found))
    again = far.do(c.Cancel("q", (ids[1],), found))
    other = far.do(c.Cancel("q", (ids[2],), found))
    assert [api.Outcome.DONE, api.Outcome.GONE, api.Outcome.DONE] == [
        outcomes.outcomes[0] for outcomes in (first, again, other)
    ]
    assert 1 == far.counts()[1]


def test_what_was_sealed_since_the_look_is_looked_at_too(far: FarBench) -> None:
    """The message was in the tail when the leader looked, and in a page when the command came."""
    (identifier,) = far.ids(delay_ms=DAY_MS)
    found = far.find(identifier)
    for _ in range(5):
        far.push(delay_ms=DAY_MS)

    assert isinstance(far.do(c.Cancel("q", (identifier,), found)), effects.LookFar)
    assert ["DONE"] == far.cancel(identifier)


def test_a_look_is_not_remembered_by_a_session(far: FarBench) -> None:
    """The same request comes again with what was found, and its answer is the one that counts."""
    ids = [identifier for _ in range(8) for identifier in far.ids(delay_ms=DAY_MS)]
    session = far.session()

    assert isinstance(far.do(c.Cancel("q", (ids[0],)), session, 1, 1), effects.LookFar)
    done = far.do(c.Cancel("q", (ids[0],), far.find(ids[0])), session, 1, 1)
    assert api.Outcomes((api.Outcome.DONE,)) == done
    assert done == far.do(c.Cancel("q", (ids[0],)), session, 1, 1)


def test_reschedule_moves_over_the_horizon_both_ways(far: FarBench) -> None:
    """Near to far, far to far, far to near, far to now; the id and the place stay."""
    ids = far.ids(payloads=5)
    for identifier in ids:
        assert "DONE" == far.reschedule(identifier, far.wall_ms + DAY_MS)
    assert (0, 5, 0, 0) == far.counts() and 5 == far.machine.queues["q"].far_messages
    assert "DONE" == far.reschedule(ids[1], far.wall_ms + 2 * DAY_MS)
    assert "DONE" == far.reschedule(ids[2], far.wall_ms + 1_000)
    assert "DONE" == far.reschedule(ids[3], far.wall_ms)
    far.save()
    far.restart()

    for ms, came in ((0, [ids[3]]), (1_000, [ids[2]]), (DAY_MS, [ids[0], ids[4]]), (DAY_MS, [ids[1]])):
        far.pass_by(ms)
        assert came == far.take(visibility_ms=10 * DAY_MS)


def test_a_message_that_failed_keeps_its_story_beyond_the_horizon(far: FarBench) -> None:
    """Deliveries, attempts and history come back with it."""
    (identifier,) = far.ids()
    (run,) = far.lease()
    far.fail(run, delay_ms=50, error_text="boom")
    assert "DONE" == far.reschedule(identifier, far.wall_ms + DAY_MS)
    far.save()
    far.restart()
    far.pass_by(DAY_MS)
    (seen,) = far.peek()

    assert (1, 1, "boom") == (seen.delivery, seen.attempts, seen.history[0].error_text)
    (again,) = far.lease()
    assert (2, 1) == (again.delivery, again.attempts)


# --- emptied queues -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("command", [c.PurgeQueue("q"), c.DeleteQueue("q")])
def test_an_emptied_queue_leaves_nothing_behind(far: FarBench, command: c.Command) -> None:
    """Counted at once; in pages it is swept, so that the log is given back; others stay."""
    for k in range(9):
        far.push(payloads=2, delay_ms=DAY_MS + k)
        far.push(queue="other", delay_ms=DAY_MS + k)
    far.save()

    assert api.Done(18) == far.do(command)
    assert not far.far.is_empty and list(far.far.blocks)
    swept = far.fetch()
    assert swept and not far.far.sweeps
    assert 9 == far.counts("other")[1]
    far.push(payloads=3, delay_ms=DAY_MS)
    far.pass_by(2 * DAY_MS)
    assert 3 == len(far.take(limit=100)) and 9 == len(far.take("other", limit=100))
    assert not list(far.far.blocks)


def test_a_purged_message_is_not_found_before_it_is_swept(far: FarBench) -> None:
    """Its row lies in a page still, and is nobody's."""
    ids = [identifier for _ in range(6) for identifier in far.ids(delay_ms=DAY_MS)]
    far.do(c.PurgeQueue("q"))
    far.push(delay_ms=DAY_MS)

    assert ["GONE"] == far.cancel(ids[0])
    far.wait(2 * DAY_MS)
    far.machine.far.sweeps.clear()
    far.fetch()
    assert 1 == len(far.take(limit=100))


# --- pages --------------------------------------------------------------------------------------------------
def test_a_page_is_in_memory_until_a_snapshot_holds_it(far: FarBench) -> None:
    """And not after that."""
    for _ in range(8):
        far.push(delay_ms=DAY_MS)
    assert 4 == len(far.far.unsaved)
    far.save()
    assert not far.far.unsaved
    assert {digest_of(far.stored[page_key(page.number)]) for page in far.far.pages.values()} == {
        page.digest for page in far.far.pages.values()
    }


def test_a_page_without_rows_is_left_out_of_the_next_image(far: FarBench) -> None:
    """Whatever emptied it."""
    ids = [identifier for _ in range(8) for identifier in far.ids(delay_ms=DAY_MS)]
    far.save()
    for identifier in ids[:6]:
        far.cancel(identifier)
    imager = image.Imager(far.machine, far.stored)
    imager.freeze()
    changed = dict(imager.take())

    assert [page_key(1), page_key(2), page_key(3)] == [key for key, body in changed.items() if body is None]


def test_an_image_that_was_not_kept_gives_the_same_pages_again(far: FarBench) -> None:
    """They are in no snapshot yet."""
    for _ in range(8):
        far.push(delay_ms=DAY_MS)
    imager = image.Imager(far.machine)
    imager.freeze()
    first = {key for key, _ in imager.take() if key[:1] == b"f"}
    imager.start_over()
    imager.freeze()

    assert first == {key for key, _ in imager.take() if key[:1] == b"f"} and 4 == len(first)
    assert 4 == len(far.far.unsaved)


@pytest.mark.parametrize("what", ["flipped", "cut", "another", "gone"])
def test_a_damaged_page_is_never_taken_for_a_good_one(far: FarBench, what: str) -> None:
    """Whatever reads it says which page it is."""
    ids = [identifier for k in range(8) for identifier in far.ids(delay_ms=DAY_MS + k)]
    far.save()
    key = page_key(1)
    body = far.stored[key]
    match what:
        case "flipped":
            far.stored[key] = bytes([body[0] ^ 1]) + body[1:]
        case "cut":
            far.stored[key] = body[:-1]
        case "another":
            far.stored[key] = far.stored[page_key(2)]
        case "gone":
            del far.stored[key]
    far.do(c.PurgeQueue("q"))
    readings = [
        Search(far.far, far.read_page, ids),
        Slice(far.far, far.read_page, far.wall_ms + 2 * DAY_MS, 100, 100),
        Sweeping(far.far, far.read_page),
    ]

    for reading in readings:
        with pytest.raises(PageLost) as lost:
            reading.run()
        assert 1 == lost.value.number and reading.attempt()


def test_keys_sort_by_time_then_id() -> None:
    """As bytes, so that pages are sorted by what they hold."""
    keys = [key_of(5, 1 << 100), key_of(5, 3), key_of(4, 1 << 127), key_of(1 << 47, 0)]

    assert [keys[2], keys[1], keys[0], keys[3]] == sorted(keys)
    assert [5, 5, 4, 1 << 47] == [time_of(key) for key in keys]


def test_delayed_messages_are_listed_page_by_page(far: FarBench) -> None:
    """Each once, with what peek says of near ones."""
    ids = [identifier for _ in range(5) for identifier in far.ids(payloads=7, delay_ms=DAY_MS)]
    far.save()
    seen: list[api.Peeked] = []
    after = 0
    queue = far.machine.queues["q"]
    while True:
        part = far.waiting.listing(far.far, queue.uid, queue.far_floor, after, 4)
        part.run()
        assert sum(last - first + 1 for _, first, last, _ in part.found) <= 4
        for row, first, last, _ in part.found:
            seen += [one.peeked for one in reads.far_seen(row, first, last)]
        after = part.following
        if not after:
            break

    assert sorted(ids) == sorted(one.id for one in seen)
    assert {far.wall_ms + DAY_MS} == {one.due_ms for one in seen}


def test_from_a_sequence_on_only_the_newest_pages_are_read(far: FarBench) -> None:
    """Whoever follows a queue looks often, and what waits may be much; what is due first may have come last."""
    for days in range(40, 0, -1):
        far.ids(payloads=7, delay_ms=days * DAY_MS // 2)
        far.wait(10)
    far.save()
    queue = far.machine.queues["q"]
    read: list[bytes] = []

    def reading(key: bytes) -> bytes | None:
        read.append(key)
        return far.read_page(key)

    for start, most, pages_max in ((1, 300, 20), (1, 10, 20), (265, 300, 4), (279, 300, 4), (281, 300, 2)):
        read.clear()
        found = Since(far.far, reading, queue.uid, start, most)
        found.run()
        sequences = [row.sequence + offset for row, first, last in found.found for offset in range(first, last + 1)]

        assert list(range(start, 281))[:most] == sequences[:most]
        assert len(read) <= pages_max
