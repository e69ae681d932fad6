"""Pushes: ids, delays, ttl, dedup windows, length limits."""

from __future__ import annotations

import pytest

from tests.queues.bench import WALL, Bench
from walrq import api, ids, limits
from walrq.api import State
from walrq.errors import Code
from walrq.queues import commands as c
from walrq.queues import death
from walrq.queues.machine import Bounds

FULL = int(Code.QUEUE_FULL)
TOO_LONG = int(Code.DELAY_TOO_LONG)


def test_a_push_creates_its_queue(bench: Bench) -> None:
    """With default settings."""
    bench.push("new")

    assert (1, 0, 0, 0) == bench.counts("new")


def test_ids_are_consecutive_computed_and_rising(bench: Bench) -> None:
    """ms of the entry's wall stamp, then queue and sequence."""
    first = bench.ids(payloads=3)
    bench.wait(5)
    second = bench.ids(payloads=2)
    uid = bench.show().uid

    assert [ids.message_id(WALL, uid, n) for n in (1, 2, 3)] == first
    assert [ids.message_id(WALL + 5, uid, n) for n in (4, 5)] == second


def test_payload_addresses_name_log_index_ordinal_and_position(bench: Bench) -> None:
    """A payload is written once, in the log; everything else names it."""
    push = c.Tagged(c.Push("q", api.Columns(b"ab", b"\1\0\0\0\2\0\0\0")))
    bench.apply(push, push)
    runs = bench.lease()

    assert [(1, 0, 0, 2), (1, 1, 0, 2)] == [(r.index, r.ordinal, r.first, r.count) for r in runs]


# --- delay --------------------------------------------------------------------------------------------------
def test_a_delayed_message_is_never_early(bench: Bench) -> None:
    """DelayNotEarly: measured on the wall clock of the stamps."""
    (message,) = bench.ids(delay_ms=100)
    assert (0, 1, 0, 0) == bench.counts()
    bench.wait(99)
    assert [] == bench.take()
    bench.wait(1)

    assert [message] == bench.take()


def test_delays_follow_the_wall_clock(bench: Bench) -> None:
    """However the lease clock goes."""
    (message,) = bench.ids(delay_ms=100)
    bench.wait(1_000_000, wall_ms=99)
    assert [] == bench.take()
    bench.wait(0, wall_ms=1)

    assert [message] == bench.take()


def test_a_delay_survives_a_restart_as_it_was(bench: Bench) -> None:
    """Delay 20 s, restart at 15 s: due at 20 s, neither at once nor later by the downtime."""
    (message,) = bench.ids(delay_ms=20_000)
    bench.wait(15_000)
    bench.restart()
    bench.wait(4_999)
    assert [] == bench.take()
    bench.wait(1)

    assert [message] == bench.take()


def test_deliver_at_in_the_past_is_now(bench: Bench) -> None:
    """Late is no error."""
    (message,) = bench.ids(deliver_at_ms=bench.wall_ms - 5)

    assert [message] == bench.take()


def test_deliver_at_is_a_point_on_the_wall_clock(bench: Bench) -> None:
    """Peek shows when."""
    bench.push(deliver_at_ms=bench.wall_ms + 50)

    assert [bench.wall_ms + 50] == [m.due_ms for m in bench.peek(State.DELAYED)]


def test_thirty_days_are_allowed_and_one_millisecond_more_is_not(bench: Bench) -> None:
    """Refused with a code, and nothing is created."""
    assert TOO_LONG == bench.push("typo", delay_ms=limits.DELAY_MS_MAX + 1).code
    assert TOO_LONG == bench.push("typo", deliver_at_ms=bench.wall_ms + limits.DELAY_MS_MAX + 1).code
    assert "typo" not in bench.machine.queues
    bench.push(delay_ms=limits.DELAY_MS_MAX)
    bench.push(deliver_at_ms=bench.wall_ms + limits.DELAY_MS_MAX)

    assert (0, 2, 0, 0) == bench.counts()


def test_the_queues_delay_counts_for_pushes_that_name_none(bench: Bench) -> None:
    """A push's own 0 overrides it."""
    bench.set(delay_ms=100)
    bench.push()
    (now,) = bench.ids(delay_ms=0)

    assert [now] == bench.take()
    assert (0, 1, 1, 0) == bench.counts()


def test_a_due_message_stands_at_its_sequence(bench: Bench) -> None:
    """It was pushed first, so it goes first once it is due."""
    (delayed,) = bench.ids(delay_ms=100)
    (plain,) = bench.ids()
    bench.wait(100)

    assert [delayed, plain] == bench.take()


def test_many_delayed_messages_come_back_once_each_over_several_stamps() -> None:
    """At most `expire_per_entry` a stamp, the rest in the next ones; none lost, none twice."""
    bench = Bench(Bounds(expire_per_entry=3))
    pushed = [bench.ids(delay_ms=50)[0] for _ in range(10)]
    bench.wait(50)
    sizes = []
    for _ in range(4):
        bench.tick()
        sizes.append(bench.counts()[0])

    assert [3, 6, 9, 10] == sizes
    assert pushed == bench.take()


# --- ttl and retention --------------------------------------------------------------------------------------
def test_ttl_removes_what_is_not_leased(bench: Bench) -> None:
    """Ready, delayed and in back-off."""
    bench.push(payloads=2, ttl_ms=100)
    bench.push(ttl_ms=100, delay_ms=1_000)
    (run,) = bench.lease(limit=1)
    bench.fail(run, delay_ms=500)
    bench.wait(99)
    bench.tick()
    assert (1, 2, 0, 0) == bench.counts()
    bench.wait(1)
    bench.tick()

    assert (0, 0, 0, 0) == bench.counts()


@pytest.mark.parametrize("way", ["release", "fail", "fail later", "reject", "expire"])
def test_a_leased_message_past_its_ttl_goes_when_it_comes_back(bench: Bench, way: str) -> None:
    """Instead of becoming ready, waiting, or dead; an ack works until then."""
    bench.push(ttl_ms=100, max_attempts=1 if way == "expire" else 5)
    (run,) = bench.lease(visibility_ms=1_000)
    bench.wait(100)
    bench.tick()
    assert (0, 0, 1, 0) == bench.counts()
    if way == "release":
        bench.release(run)
    elif way == "reject":
        bench.reject(run)
    elif way == "expire":
        bench.wait(1_000)
        bench.tick()
    else:
        bench.fail(run, delay_ms=0 if way == "fail" else 10)

    assert (0, 0, 0, 0) == bench.counts()
    assert "q.dlq" not in bench.machine.queues


def test_ttl_never_takes_a_lease_away(bench: Bench) -> None:
    """Of a batch partly leased only the rest goes."""
    bench.push(payloads=2, ttl_ms=100)
    (run,) = bench.lease(limit=1, visibility_ms=1_000)
    bench.wait(100)
    bench.tick()

    assert (0, 0, 1, 0) == bench.counts()
    assert 0 == bench.ack(run)


def test_ack_works_past_the_ttl(bench: Bench) -> None:
    """The work was begun in time."""
    bench.push(ttl_ms=100)
    (run,) = bench.lease(visibility_ms=1_000)
    bench.wait(500)

    assert 0 == bench.ack(run)


def test_retention_bounds_ttl(bench: Bench) -> None:
    """The shorter one counts, for messages pushed from then on."""
    bench.push()
    bench.set(retention_ms=100)
    bench.push()
    bench.push(ttl_ms=50)
    bench.push(ttl_ms=500)
    counts = []
    for ms in (50, 50, 1_000):
        bench.wait(ms)
        bench.tick()
        counts.append(bench.counts()[0])

    assert [3, 1, 1] == counts


def test_parked_messages_keep_their_ttl(bench: Bench) -> None:
    """Parking is no way to live for ever."""
    bench.set(dlq="none")
    bench.push(ttl_ms=100)
    (run,) = bench.lease()
    bench.reject(run)
    assert (0, 0, 0, 1) == bench.counts()
    bench.wait(100)
    bench.tick()

    assert (0, 0, 0, 0) == bench.counts()


def test_a_dead_message_lives_by_the_rules_of_its_dlq(bench: Bench) -> None:
    """Its own ttl is dropped; the target's retention counts from the move."""
    bench.set("q.dlq", retention_ms=300)
    bench.push(ttl_ms=100)
    (run,) = bench.lease()
    bench.wait(50)
    bench.reject(run)
    bench.wait(299)
    bench.tick()
    assert 1 == len(bench.dead())
    bench.wait(1)
    bench.tick()

    assert [] == bench.dead()


# --- dedup --------------------------------------------------------------------------------------------------
def test_a_dedup_hit_returns_the_old_id_and_stores_nothing(bench: Bench) -> None:
    """AtMostOnce: its position is burned."""
    (old,) = bench.ids(dedup=["k"])
    pushed = bench.push(payloads=3, dedup=[None, "k", "other"])

    assert (3, (1,)) == (pushed.count, pushed.duplicates)
    assert (pushed.first_id, old, pushed.first_id + 2) == pushed.ids
    assert [old, pushed.first_id, pushed.first_id + 2] == bench.take()


def test_duplicates_inside_one_batch_hit_too(bench: Bench) -> None:
    """The first of them is stored."""
    pushed = bench.push(payloads=3, dedup=["k", "k", "k"])

    assert ((pushed.first_id,) * 3, (1, 2)) == (pushed.ids, pushed.duplicates)
    assert (1, 0, 0, 0) == bench.counts()


def test_the_dedup_window_follows_the_lease_clock(bench: Bench) -> None:
    """From the first push on, to the millisecond; a hit does not prolong it."""
    bench.set(dedup_window_ms=100)
    bench.push(dedup=["k"])
    bench.wait(60, wall_ms=1_000_000)
    assert (0,) == bench.push(dedup=["k"]).duplicates
    bench.wait(39)
    assert (0,) == bench.push(dedup=["k"]).duplicates
    bench.wait(1)

    assert () == bench.push(dedup=["k"]).duplicates


def test_an_ack_does_not_clear_a_dedup_id(bench: Bench) -> None:
    """The message is done; pushing it again would do it twice."""
    bench.push(dedup=["k"])
    (run,) = bench.lease()
    bench.ack(run)

    assert (0,) == bench.push(dedup=["k"]).duplicates


def test_a_purge_clears_dedup_ids(bench: Bench) -> None:
    """Whoever purges starts anew."""
    bench.push(dedup=["k"])
    bench.do(c.PurgeQueue("q"))

    assert () == bench.push(dedup=["k"]).duplicates


def test_dedup_ids_survive_a_restart(bench: Bench) -> None:
    """Idempotent pushes across sessions and failovers."""
    (old,) = bench.ids(dedup=["k"])
    bench.restart()

    assert (old,) == bench.push(dedup=["k"]).ids


def test_dedup_ids_are_per_queue(bench: Bench) -> None:
    """The same key elsewhere is another key."""
    bench.push("a", dedup=["k"])

    assert () == bench.push("b", dedup=["k"]).duplicates


def test_dedup_ids_are_bounded_with_a_refusal() -> None:
    """Overloaded names the bound; old ids are never evicted silently; ended ones make room."""
    bench = Bench(Bounds(dedup_ids_max=2))
    bench.set(dedup_window_ms=100)
    bench.push(payloads=2, dedup=["a", "b"])
    refused = bench.push(dedup=["c"])
    assert (int(Code.OVERLOADED), "dedup_ids_max") == (refused.code, refused.details["limit"])
    assert (0,) == bench.push(dedup=["a"]).duplicates
    assert (2, 0, 0, 0) == bench.counts()
    bench.wait(100)

    assert () == bench.push(dedup=["c"]).duplicates


# --- length limits ------------------------------------------------------------------------------------------
def test_a_full_queue_refuses_the_whole_batch(bench: Bench) -> None:
    """Nothing of it is stored, and no dedup id remembered."""
    bench.set(max_length=3)
    bench.push(payloads=2)
    assert FULL == bench.push(payloads=2, dedup=["k", None]).code
    assert (2, 0, 0, 0) == bench.counts()

    assert () == bench.push(dedup=["k"]).duplicates


def test_every_living_message_counts_against_the_length(bench: Bench) -> None:
    """Ready, delayed, waiting, leased and parked."""
    bench.set(max_length=5, dlq="none")
    bench.push(payloads=4)
    bench.push(delay_ms=1_000)
    (run,) = bench.lease(limit=3)
    bench.settle(run, api.SettleKind.REJECT, ((0, 0),))
    bench.settle(run, api.SettleKind.FAIL, ((1, 1),), delay_ms=100)
    assert (1, 2, 1, 1) == bench.counts()

    assert FULL == bench.push().code
    bench.ack(run)
    assert isinstance(bench.push(), api.Pushed)


def test_bytes_count_by_equal_shares_of_the_batch(bench: Bench) -> None:
    """The server does not walk the messages of a batch; the shares add up to its size."""
    bench.set(max_bytes=12)
    bench.push(payloads=[b"x" * 10, b"", b""])
    (run,) = bench.lease()
    shares = []
    for offset in range(3):
        before = bench.show().bytes
        bench.ack(run, ((offset, offset),))
        shares.append(before - bench.show().bytes)

    assert [3, 3, 4] == shares
    assert 0 == bench.show().bytes


def test_max_bytes_refuses(bench: Bench) -> None:
    """Exactly full is not too full."""
    bench.set(max_bytes=5)
    bench.push(payloads=[b"xxx"])

    assert FULL == bench.push(payloads=[b"xxx"]).code
    assert isinstance(bench.push(payloads=[b"xx"]), api.Pushed)


def test_drop_oldest_drops_ready_messages_of_lowest_sequence(bench: Bench) -> None:
    """Whatever their priority; only as many as needed."""
    bench.set(max_length=3, overflow="drop_oldest")
    bench.ids(priority=9)
    (second,) = bench.ids()
    (third,) = bench.ids()
    (fourth,) = bench.ids()

    assert [second, third, fourth] == bench.take()


def test_drop_oldest_never_drops_work_in_progress(bench: Bench) -> None:
    """QueueFull when the ready ones are not enough, and then nothing is dropped."""
    bench.set(max_length=3, overflow="drop_oldest")
    bench.push(payloads=3)
    bench.lease(limit=2)

    assert FULL == bench.push(payloads=2).code
    assert (1, 0, 2, 0) == bench.counts()
    assert isinstance(bench.push(payloads=1), api.Pushed)
    assert (1, 0, 2, 0) == bench.counts()


def test_drop_oldest_leaves_delayed_messages(bench: Bench) -> None:
    """They are promised for later; only what is ready may go."""
    bench.set(max_length=3, overflow="drop_oldest")
    (delayed,) = bench.ids(delay_ms=100)
    bench.push()
    second, third = bench.ids(payloads=2)
    bench.wait(100)

    assert [delayed, second, third] == bench.take()


def test_a_batch_larger_than_the_queue_drops_nothing(bench: Bench) -> None:
    """It could never fit."""
    bench.set(max_length=2, overflow="drop_oldest")
    bench.push(payloads=2)

    assert FULL == bench.push(payloads=3).code
    assert (2, 0, 0, 0) == bench.counts()


def test_known_dedup_ids_are_answered_by_a_full_queue(bench: Bench) -> None:
    """A retry of what was stored is no new message."""
    (old,) = bench.ids(dedup=["k"])
    bench.push()
    bench.set(max_length=1)

    assert (old,) == bench.push(dedup=["k"]).ids


def test_queues_are_bounded_with_a_refusal() -> None:
    """Overloaded names the bound."""
    bench = Bench(Bounds(queues_max=1))
    bench.push("a")
    refused = bench.push("b")

    assert (int(Code.OVERLOADED), "queues_max") == (refused.code, refused.details["limit"])
    assert {"a"} == set(bench.machine.queues)


# --- wake-ups -----------------------------------------------------------------------------------------------
def test_a_push_wakes_its_queue_and_a_delayed_one_when_due(bench: Bench) -> None:
    """NoLostWakeup: parked polls sleep until they are told."""
    bench.push("now")
    bench.push("later", delay_ms=100)
    assert {"now"} == bench.machine.take_effects().woken
    bench.wait(100)
    bench.tick()

    assert {"later"} == bench.machine.take_effects().woken
    assert set() == bench.machine.take_effects().woken


def test_a_full_queue_walks_only_what_it_drops(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push onto a long queue at its limit must not look at all of it."""
    bench.set(max_length=500, overflow="drop_oldest")
    for _ in range(500):
        bench.push()
    looked = []
    visible = death.visible_runs
    monkeypatch.setattr(death, "visible_runs", lambda batch: looked.append(batch.seq) or visible(batch))
    bench.push(payloads=3)

    assert [1, 2, 3] == looked
    assert (500, 0, 0, 0) == bench.counts()
