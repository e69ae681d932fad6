"""Batches in hundreds of pieces: the ways that only large ones take give the same answers."""

from __future__ import annotations

import random

from tests.queues.bench import Bench
from walrq import api
from walrq.api import Outcome, State
from walrq.queues import commands as c

SIZE = 400


def test_every_message_of_a_large_batch_can_be_cancelled_in_any_order(bench: Bench, rng: random.Random) -> None:
    """Each once, found among hundreds of pieces; the rest stays in order."""
    messages = bench.ids(payloads=SIZE)
    chosen = rng.sample(messages, SIZE // 2)
    first = bench.do(c.Cancel("q", tuple(chosen)))
    again = bench.do(c.Cancel("q", tuple(chosen)))

    assert {Outcome.DONE} == set(first.outcomes)
    assert {Outcome.GONE} == set(again.outcomes)
    assert [m for m in messages if m not in set(chosen)] == bench.take(limit=SIZE)


def test_a_large_lease_is_settled_message_by_message_in_any_order(bench: Bench, rng: random.Random) -> None:
    """Acks, releases and touches of single messages; what is left is exactly what was not acked."""
    messages = bench.ids(payloads=SIZE)
    (run,) = bench.lease(limit=SIZE, visibility_ms=1_000)
    offsets = rng.sample(range(SIZE), SIZE)
    acked, released, touched = offsets[:150], offsets[150:250], offsets[250:350]
    for offset in acked:
        assert 0 == bench.ack(run, ((offset, offset),))
    for offset in released:
        assert 0 == bench.release(run, ((offset, offset),))
    ranges = tuple(sorted((offset, offset) for offset in touched))
    assert (0, 5_000) == bench.touch(run, 5_000, ranges)
    assert sorted(messages[k] for k in released) == bench.take(limit=SIZE, visibility_ms=100_000)
    bench.wait(1_000)
    bench.tick()
    assert sorted(messages[k] for k in offsets[350:]) == [m.id for m in bench.peek()]
    bench.wait(4_000)

    assert sorted(messages[k] for k in (*touched, *offsets[350:])) == bench.take(limit=SIZE)


def test_settles_of_many_ranges_hit_exactly_those(bench: Bench) -> None:
    """One command with a range for every other message."""
    messages = bench.ids(payloads=SIZE)
    (run,) = bench.lease(limit=SIZE)
    assert 0 == bench.ack(run, tuple((offset, offset) for offset in range(0, SIZE, 2)))
    assert 0 == bench.fail(run, 0, ranges=tuple((offset, offset) for offset in range(1, SIZE, 4)))

    assert messages[1::4] == bench.take(limit=SIZE)
    assert messages[3::4] == [m.id for m in bench.peek(State.LEASED) if m.attempts == 0]


def test_a_large_batch_dies_and_is_driven_back_in_pieces(bench: Bench, rng: random.Random) -> None:
    """By id, in any order, out of one dead batch."""
    messages = bench.ids(payloads=SIZE)
    (run,) = bench.lease(limit=SIZE)
    bench.reject(run)
    chosen = tuple(rng.sample(messages, SIZE // 2))
    where = api.Filter(ids=chosen)

    assert api.Moved(SIZE // 2) == bench.do(c.Redrive("q", SIZE, where=where))
    assert sorted(chosen) == bench.take(limit=SIZE)
    assert api.Outcomes((Outcome.DONE,) * 20) == bench.do(c.Cancel("q.dlq", tuple(m.id for m in bench.dead()[:20])))
    assert SIZE // 2 - 20 == bench.show().dead
