"""Images: the whole state as pages of bytes, taken while the machine goes on, and back."""

from __future__ import annotations

import random

import attrs
import cbor2
import pytest

from tests.queues.bench import Bench
from tests.queues.generate import Dice, step, tagged_command
from tests.queues.pair import Pair
from walrq.errors import CorruptRecord
from walrq.queues import commands as c
from walrq.queues import image
from walrq.queues.machine import Machine
from walrq.queues.queue import dedup_page
from walrq.queues.sessions import DedupTable


def image_of(bench: Bench) -> dict[bytes, bytes]:
    """All pages by the incremental way."""
    imager = image.Imager(bench.machine)
    imager.freeze()
    while imager.step(1):
        pass
    return {key: body for key, body in imager.take() if body is not None}


def full(bench: Bench) -> Bench:
    """A machine with something in every place: leases, groups, delays, back-offs, dedup, parked, sessions."""
    bench.set(dlq="none")
    session = bench.session()
    bench.push(payloads=3, groups=["a", "b", None], dedup=["k", None, None])
    bench.push(delay_ms=500, ttl_ms=9_000)
    bench.do(c.Lease(("q",), 1, 700, bench.lease_ms, "w"), session, 1)
    for run in bench.lease(limit=2):
        bench.fail(run, delay_ms=300, error_text="e")
    bench.push(max_attempts=1)
    (run,) = bench.lease(limit=1)
    bench.reject(run)
    return bench


def test_the_incremental_image_is_the_state(bench: Bench) -> None:
    """Taken page by page, it holds the same pages as taken at once."""
    full(bench)

    assert image.full_pages(bench.machine) == dict(sorted(image_of(bench).items()))


def test_an_image_shows_the_moment_of_its_freeze(bench: Bench) -> None:
    """Copy on write: what changes before its page's turn is encoded as it was."""
    full(bench)
    imager = image.Imager(bench.machine)
    frozen = image.full_pages(bench.machine)
    imager.freeze()
    bench.push(payloads=2)
    bench.wait(100_000)
    bench.tick()
    bench.do(c.DeleteQueue("q"))
    while imager.step(1):
        pass

    assert frozen == {key: body for key, body in sorted(imager.take()) if body is not None}


def test_the_next_image_holds_only_what_changed(bench: Bench) -> None:
    """Dirty pages, not the whole state."""
    for number in range(20):
        bench.push(f"q{number}")
    imager = image.Imager(bench.machine)
    imager.freeze()
    while imager.step(10):
        pass
    first = imager.take()
    bench.push("q7")
    imager.freeze()
    while imager.step(10):
        pass

    assert 3 >= len(imager.take()) > 0
    assert 40 < len(first)


def test_pages_that_are_no_more_are_named(bench: Bench) -> None:
    """Else a snapshot would keep them for ever."""
    bench.push()
    imager = image.Imager(bench.machine)
    stored: dict[bytes, bytes] = {}
    for command in (c.PurgeQueue("q"), c.DeleteQueue("q")):
        imager.freeze()
        while imager.step(10):
            pass
        for key, body in imager.take():
            if body is None:
                del stored[key]
            else:
                stored[key] = body
        assert image.full_pages(bench.machine) == dict(sorted(stored.items()))
        bench.do(command)


def test_everything_comes_back(bench: Bench) -> None:
    """S02, S04: leases, sessions, dedup ids, turns, counters and clocks among it."""
    full(bench)
    before = image.full_pages(bench.machine)
    counts, shown = bench.counts(), bench.show()
    bench.restart()

    assert before == image.full_pages(bench.machine)
    # What is counted for the eye starts anew.
    shown = attrs.evolve(shown, pushed=0, delivered=0, acked=0)
    assert (counts, shown) == (bench.counts(), bench.show())


def test_pages_may_come_in_any_order(bench: Bench, rng: random.Random) -> None:
    """A snapshot is a set of pages."""
    full(bench)
    pages = list(image.full_pages(bench.machine).items())
    rng.shuffle(pages)

    assert image.full_pages(image.load(pages)) == image.full_pages(bench.machine)


def test_an_image_that_was_not_kept_leaves_nothing_out_of_the_next(bench: Bench) -> None:
    """A full disk while it was written: the next one is whole."""
    full(bench)
    imager = image.Imager(bench.machine)
    imager.freeze()
    imager.step(2)
    imager.take()
    imager.start_over()
    imager.freeze()
    while imager.step(10):
        pass

    assert image.full_pages(bench.machine) == {k: b for k, b in sorted(imager.take()) if b is not None}


def test_an_image_of_a_newer_format_is_refused(bench: Bench) -> None:
    """Not misread."""
    pages = image.full_pages(bench.machine)
    fields = cbor2.loads(pages[image.MACHINE_KEY])
    pages[image.MACHINE_KEY] = cbor2.dumps([image.FORMAT + 1, *fields[1:]])

    with pytest.raises(CorruptRecord):
        image.load(list(pages.items()))


def test_an_image_of_the_first_format_is_read(bench: Bench) -> None:
    """Its stories of death say nothing of what the producer allowed: the queue's setting holds then."""
    bench.push(max_attempts=1)
    (run,) = bench.lease()
    bench.fail(run)
    pages = image.full_pages(bench.machine)
    fields = cbor2.loads(pages[image.MACHINE_KEY])
    pages[image.MACHINE_KEY] = cbor2.dumps([1, *fields[1:]])
    told = 0
    for key, body in pages.items():
        rows = cbor2.loads(body)
        if not isinstance(rows, list):
            continue
        for row in rows:
            if isinstance(row, list) and len(row) == 15 and row[13] is not None:
                assert 1 == row[13].pop()
                told += 1
        pages[key] = cbor2.dumps(rows)

    assert 1 == told
    bench.machine = image.load(list(pages.items()))
    bench.do(c.Redrive("q", 1))
    for _ in range(3):
        assert [] == bench.dead()
        (run,) = bench.lease()
        bench.fail(run, delay_ms=0)
    assert ["failed"] == [message.reason for message in bench.dead()]


def test_the_empty_machine_has_an_image() -> None:
    """One page, with the clocks."""
    pages = image.full_pages(Machine())

    assert [image.MACHINE_KEY] == list(pages)
    assert pages == image.full_pages(image.load(list(pages.items())))


def test_live_blocks_cover_every_live_body(seed: int) -> None:
    """EveryLiveReadable: the reclaim of segments is told of every log index that something still names."""
    print(f"seed {seed}")
    dice, pair = Dice(random.Random(seed)), Pair()
    for number in range(300):
        pair.advance(*step(dice))
        pair.entry([tagged_command(dice, pair.known)], look=False)
        if number % 100 == 99:
            pair.restart()
        bodies = {m.body[0] for queue in pair.model.queues.values() for m in queue.messages.values()}
        blocks = {index >> 6 for index in bodies}

        assert blocks == set(pair.machine.live_blocks)
        assert all(image.live_in(pair.machine, index, index) for index in bodies)


@pytest.mark.parametrize(("first", "last", "is_live"), [(1, 1 << 36, True), (200, 1 << 40, False), (1, 100, False)])
def test_a_segment_over_the_gap_that_a_restore_leaves_is_judged_at_once(first: int, last: int, is_live: bool) -> None:
    """The gap is billions of indexes wide: walking it block by block would never end."""
    machine = Machine()
    machine.live_blocks[150 >> 6] = 1

    assert image.live_in(machine, first, last) is is_live


def test_replaying_the_log_gives_the_same_pages(seed: int) -> None:
    """Determinism: a replica that applies the same entries, and one loaded half way, are the same byte for byte."""
    print(f"seed {seed}")
    dice, pair = Dice(random.Random(seed)), Pair()
    for _ in range(300):
        pair.advance(*step(dice))
        pair.entry([tagged_command(dice, pair.known) for _ in range(2)], look=False)
    replayed, loaded = Machine(), Machine()
    replayed.version = loaded.version = pair.machine.version
    for number, (index, stamp, entry) in enumerate(pair.story):
        if number == 150:
            loaded = image.load(list(image.full_pages(loaded).items()))

        assert replayed.apply(index, stamp, entry) == loaded.apply(index, stamp, entry)
    assert image.full_pages(pair.machine) == image.full_pages(replayed) == image.full_pages(loaded)


def test_a_life_that_ended_before_the_image_sets_no_timer_again(bench: Bench) -> None:
    """A replica loaded from an image waits for the same deadlines as one that never stopped."""
    bench.push(payloads=2, ttl_ms=100)
    bench.lease(limit=1)
    bench.wait(500)
    bench.tick()
    loaded = image.load(list(image.full_pages(bench.machine).items()))

    assert (0, 0, 1, 0) == bench.counts()
    assert bench.machine.next_wall_deadline() is None
    assert loaded.next_wall_deadline() is None
    assert bench.machine.next_lease_deadline() == loaded.next_lease_deadline()


def test_an_image_of_another_shape_is_one_clear_error(bench: Bench) -> None:
    """A page whose checksum is right but whose rows have other fields comes from another version: said so, not a crash
    in the middle of a start."""
    full(bench)
    pages = image.full_pages(bench.machine)
    for key, body in pages.items():
        changed = {**pages, key: cbor2.dumps([[1, 2]])}

        with pytest.raises(CorruptRecord):
            image.load(list(changed.items()))
        assert body == pages[key]


def test_a_large_page_is_encoded_in_pieces_and_ended_before_it_changes(bench: Bench) -> None:
    """No step takes longer than some hundred runs; what is about to change is encoded as it was."""
    for _ in range(900):
        bench.push("q", [b"x"])
    bench.lease("q", 400)
    for changes in (False, True):
        imager = image.Imager(bench.machine)
        imager.start_over()
        imager.freeze()
        frozen = image.full_pages(bench.machine)
        steps = 0
        while imager.step(1):
            steps += 1
            if changes and steps == 2:
                # In the middle of a page.
                bench.push("q", [b"y"])
                bench.lease("q", 300)
        encoded = {key: body for key, body in imager.take() if body is not None}
        assert frozen == dict(sorted(encoded.items()))
        assert changes or steps > 900 // image.RUNS_PER_STEP


def test_ids_and_sessions_of_a_page_are_found_without_a_look_at_the_others() -> None:
    """An image of a million of them takes one page at a time."""
    table = DedupTable(dedup_page)
    for number in range(500):
        table[f"id-{number}"] = (number, number)
    for number in range(0, 500, 3):
        del table[f"id-{number}"]
    assert len(table) == sum(len(table.in_page(page)) for page in table.pages)
    assert all(dedup_page(key) == page for page in table.pages for key, _, _ in table.in_page(page))
    table.clear()
    assert not table and not table.pages
