"""Queues as a whole: settings, incarnations, purge, delete, and what their counts say."""

from __future__ import annotations

import pytest

from tests.queues.bench import Bench
from walrq import api, ids
from walrq.errors import Code
from walrq.queues import commands as c
from walrq.queues import image, reads

NOT_FOUND = int(Code.QUEUE_NOT_FOUND)


def test_set_creates_a_queue_with_defaults(bench: Bench) -> None:
    """And changes the named settings only."""
    bench.set(visibility_ms=5)

    assert (5, 3, None, False) == tuple(
        bench.show().settings[name] for name in ("visibility_ms", "max_deliveries", "dlq", "paused")
    )
    bench.set(paused=True)
    assert (5, True) == (bench.show().settings["visibility_ms"], bench.show().settings["paused"])


def test_set_without_create_refuses_an_absent_queue(bench: Bench) -> None:
    """QueueNotFound with the nearest name."""
    bench.set("orders")
    refused = bench.do(c.SetQueue("order", {"paused": True}, create=False))

    assert (NOT_FOUND, "orders") == (refused.code, refused.details["nearest"])
    assert "order" not in bench.machine.queues


@pytest.mark.parametrize(
    "command",
    [
        c.PurgeQueue("x"),
        c.DeleteQueue("x"),
        c.Redrive("x", 1),
        c.PurgeDead("x"),
        c.Move("x", "y", 1),
        c.Settle("x", api.SettleKind.ACK, ()),
        c.Touch("x", (), 1),
        c.Cancel("x", ()),
    ],
)
def test_commands_on_an_absent_queue_are_refused_and_create_nothing(bench: Bench, command: c.Command) -> None:
    """A definite error, and no queue out of a typing mistake."""
    assert NOT_FOUND == bench.do(command).code
    assert {} == bench.machine.queues


def test_purge_removes_messages_and_receipts_and_keeps_settings(bench: Bench) -> None:
    """Whatever state they were in; the counters go on, so that nothing is mistaken for something old."""
    bench.set(dlq="none", visibility_ms=7)
    uid = bench.show().uid
    last = bench.ids(payloads=5)[-1]
    bench.push(payloads=2, groups=["g", "g"])
    bench.push(delay_ms=1_000)
    rejected, leased = (bench.lease(limit=1)[0] for _ in range(2))
    bench.reject(rejected)

    assert api.Done(8) == bench.do(c.PurgeQueue("q"))
    assert (0, 0, 0, 0) == bench.counts()
    assert 0 == bench.show().bytes
    assert (uid, 7) == (bench.show().uid, bench.show().settings["visibility_ms"])
    assert int(Code.RECEIPT_EXPIRED) == bench.ack(leased)
    bench.wait(10_000)
    assert [] == bench.take()
    (message,) = bench.ids()
    assert ids.id_parts(message)[2] > ids.id_parts(last)[2]
    (fresh,) = bench.lease()
    assert fresh.lease > leased.lease


def test_purge_forgets_who_was_in_flight(bench: Bench) -> None:
    """A group whose head was leased goes on with what is pushed next."""
    bench.push(payloads=2, groups=["g", "g"])
    bench.lease()
    bench.do(c.PurgeQueue("q"))
    (message,) = bench.ids(groups=["g"])

    assert [message] == bench.take()


def test_a_queue_created_again_is_another_incarnation(bench: Bench) -> None:
    """Receipts of the old one do nothing to the new one, whatever their numbers."""
    bench.push()
    (old,) = bench.lease()
    assert api.Done(1) == bench.do(c.DeleteQueue("q"))
    bench.push()
    (new,) = bench.lease()

    assert (old.lease, True) == (new.lease, old.uid != new.uid)
    assert int(Code.RECEIPT_EXPIRED) == bench.settle(old, queue="q")
    assert (0, 0, 1, 0) == bench.counts()
    assert 1 == new.delivery


def test_a_new_incarnation_starts_with_default_settings_and_no_dedup_ids(bench: Bench) -> None:
    """Nothing of the deleted queue lives on."""
    bench.set(paused=True, max_deliveries=1)
    bench.push(dedup=["k"])
    bench.do(c.DeleteQueue("q"))

    assert () == bench.push(dedup=["k"]).duplicates
    assert 1 == len(bench.take())
    assert 3 == bench.show().settings["max_deliveries"]


def test_incarnations_are_counted_over_restarts(bench: Bench) -> None:
    """A deleted queue's uid is never given again."""
    uids = []
    for _ in range(3):
        bench.push()
        uids.append(bench.show().uid)
        bench.do(c.DeleteQueue("q"))
        bench.restart()

    assert 3 == len(set(uids))
    assert {ids.shard_of("q")} == {ids.uid_shard(uid) for uid in uids}


def test_delete_tells_who_waits(bench: Bench) -> None:
    """Parked polls end with that error instead of eating the first delivery of the next queue."""
    bench.push()
    bench.machine.take_effects()
    bench.do(c.DeleteQueue("q"))

    effects = bench.machine.take_effects()
    assert ({"q"}, set()) == (effects.deleted, effects.woken)


def test_a_deleted_queue_leaves_nothing_behind(bench: Bench) -> None:
    """No timer, no dedup id, no live batch, no page."""
    empty = len(bench.machine.live_blocks)
    for _ in range(3):
        bench.push(payloads=3, dedup=["a", "b", None], ttl_ms=100)
        bench.push(delay_ms=10, groups=["g"])
        bench.lease(limit=2, visibility_ms=10)
        bench.do(c.DeleteQueue("q"))

    assert (0, empty, {}, {}) == (
        bench.machine.dedup_ids,
        len(bench.machine.live_blocks),
        bench.machine.queues,
        bench.machine.by_uid,
    )
    assert (None, None) == (bench.machine.next_lease_deadline(), bench.machine.next_wall_deadline())
    bench.wait(1_000)
    bench.tick()


def test_counts_bytes_and_age_follow_the_messages(bench: Bench) -> None:
    """Fresh: what show says includes every operation answered before."""
    born = bench.wall_ms
    bench.push(payloads=[b"12345", b"67"])
    bench.wait(50)
    bench.push(delay_ms=100)
    (run,) = bench.lease(limit=1)
    shown = bench.show()

    assert (1, 1, 1, 0, 0) == (shown.ready, shown.delayed, shown.leased, shown.parked, shown.dead)
    assert (8, born) == (shown.bytes, shown.oldest_ms)
    bench.reject(run)
    assert (0, 1) == (bench.show().leased, bench.show().dead)


def test_queues_are_listed_by_name_page_by_page(bench: Bench) -> None:
    """Prefix and cursor; the cursor is empty at the end."""
    for name in ("b", "a2", "a1", "c", "a3"):
        bench.set(name)
    first = reads.list_queues(bench.machine, api.ListQueues("a", limit=2))
    second = reads.list_queues(bench.machine, api.ListQueues("a", after=first.next, limit=2))

    assert (["a1", "a2"], "a2") == ([q.name for q in first.queues], first.next)
    assert (["a3"], "") == ([q.name for q in second.queues], second.next)


def test_peek_goes_page_by_page_and_changes_nothing(bench: Bench) -> None:
    """Every message once, in order of sequence, in every state."""
    messages = bench.ids(payloads=5)
    before = bench.counts()
    seen: list[int] = []
    after = 0
    for _ in range(10):
        page, after = reads.peek(bench.machine, api.Peek("q", limit=2, after=after))
        seen += [one.peeked.id for one in page]
        if not after:
            break

    assert messages == seen
    assert before == bench.counts()
    assert messages == bench.take()


def test_peek_of_the_dead_is_the_dead_letter_listing(bench: Bench) -> None:
    """One word, two ways to ask; paged in order of death."""
    bench.push(payloads=3)
    for run in bench.lease():
        bench.reject(run)
    first, after = reads.peek(bench.machine, api.Peek("q", api.State.DEAD, limit=2))
    second, end = reads.peek(bench.machine, api.Peek("q", api.State.DEAD, limit=2, after=after))

    assert [m.id for m in bench.dead()] == [one.peeked.id for one in (*first, *second)]
    assert (2, 0) == (after, end)


def test_bootstrap_counts_once(bench: Bench) -> None:
    """A second one cannot change the secret under living receipts."""
    bench.do(c.Bootstrap("cluster", b"secret"))
    bench.do(c.Bootstrap("other", b"other"))
    bench.restart()

    assert ("cluster", b"secret") == (bench.machine.cluster, bench.machine.secret)


def test_a_queue_counts_what_went_through_it(bench: Bench) -> None:
    """Rates are read from these numbers: each message once, duplicates not at all, parts of a lease as parts."""
    bench.push(payloads=5, dedup=["a", "b", "a", None, None])
    first, second = bench.lease(limit=2), bench.lease(limit=2)
    for run in first:
        bench.ack(run)
    bench.ack(second[0], ((0, 0),))

    shown = bench.show()
    assert (4, 4, 3) == (shown.pushed, shown.delivered, shown.acked)
    for run in second:
        bench.release(run)
    bench.lease()
    assert (4, 5, 3) == (bench.show().pushed, bench.show().delivered, bench.show().acked)


def test_counters_for_the_eye_change_no_image(bench: Bench) -> None:
    """A replica that started from an image counts anew, and must still have the same hash."""
    bench.push(payloads=2)
    bench.ack(bench.lease(limit=1)[0])
    before = image.full_pages(bench.machine)
    bench.restart()

    assert (0, 0, 0) == (bench.show().pushed, bench.show().delivered, bench.show().acked)
    assert before == image.full_pages(bench.machine)
