"""When leases are extended, and when they are lost: pure, with the time handed in."""

from __future__ import annotations

import math
import random

from tests.worker.messages import held
from walrq.worker.leases import Held, Ledger, Stage


def ledger_of(*all_held: Held) -> Ledger:
    """A ledger that holds these."""
    ledger = Ledger()
    for each in all_held:
        ledger.take(each)
    return ledger


def test_an_extension_is_due_after_a_third_of_the_lease() -> None:
    """Two more tries fit in before it ends."""
    one = held(lease=30)
    ledger = ledger_of(one)

    assert 10 == ledger.due()
    assert [] == ledger.to_extend(9.9)
    assert [one] == ledger.to_extend(10)


def test_buffered_and_unanswered_messages_are_extended_as_running_ones_are() -> None:
    """A message that waits for its turn, or for the answer to its ack, is not to be handed out again."""
    all_held = [held(), held(), held()]
    all_held[1].stage = Stage.RUNNING
    all_held[2].stage = Stage.SETTLING

    assert all_held == ledger_of(*all_held).to_extend(10)


def test_what_is_due_soon_goes_along() -> None:
    """Twenty messages polled within a second are one request, not twenty."""
    all_held = [held(at=number / 20) for number in range(20)]

    assert all_held == ledger_of(*all_held).to_extend(10)
    assert 1 == len(ledger_of(held(), held(at=5)).to_extend(10))


def test_after_an_extension_the_next_is_due_a_third_later() -> None:
    """The deadline that the server gave counts."""
    one = held()
    ledger = ledger_of(one)
    one.message.extend(42.0)
    ledger.extended([one])

    assert 22 == ledger.due()


def test_a_failed_try_is_repeated_before_the_lease_ends() -> None:
    """An outage shorter than the lease costs nothing."""
    one = held(lease=30)
    ledger = ledger_of(one)
    now, tries = 10.0, 0
    while now < 30:
        assert [one] == ledger.to_extend(now)
        assert [] == ledger.unanswered([one], now)
        tries += 1
        now = ledger.due()

    assert tries >= 3
    assert [one] == ledger.unanswered([one], now)
    assert one.lost is not None
    assert not one.certain
    assert math.inf == ledger.due()


def test_a_refusal_is_news_once() -> None:
    """One line in the log, one interruption."""
    one = held()
    ledger = ledger_of(one)

    assert ledger.refused(one, "over")
    assert not ledger.refused(one, "over")
    assert ("over", True) == (one.lost, one.certain)
    assert 0 == len(ledger)


def test_a_refusal_of_what_is_being_settled_is_left_to_the_answer() -> None:
    """The ack that arrived ends the lease: that is no loss."""
    one = held()
    ledger = ledger_of(one)
    one.stage = Stage.SETTLING

    assert not ledger.refused(one, "over")
    assert None is one.lost
    assert one in ledger
    assert math.inf == ledger.due()


def test_a_timeout_is_due_in_its_turn_and_named_once() -> None:
    """The keeper wakes up for whatever comes first."""
    one = held()
    ledger = ledger_of(one)
    one.stage, one.timeout_at = Stage.RUNNING, 5.0

    assert 5 == ledger.due()
    assert [] == ledger.overdue(4.9)
    assert [one] == ledger.overdue(5.0)
    assert [] == ledger.overdue(6.0)
    assert one.timed_out
    assert 10 == ledger.due()


def test_a_timeout_counts_from_the_handlers_start() -> None:
    """A message that waits for its turn has no time of its own to lose."""
    one = held()
    one.timeout_at = 5.0

    assert [] == ledger_of(one).overdue(100)


def test_what_was_let_go_is_nobodys_business(rng: random.Random) -> None:
    """An extension whose answer comes after the ack changes nothing; drawn at random, in any order."""
    for _ in range(200):
        all_held = [held(at=rng.uniform(0, 20), lease=rng.uniform(1, 60)) for _ in range(5)]
        ledger = ledger_of(*all_held)
        now = max(ledger.due(), rng.uniform(0, 40))
        asked = ledger.to_extend(now)
        gone = rng.choice(asked)
        ledger.let_go(gone)
        ledger.extended(asked)
        ledger.unanswered(asked, now)

        assert not ledger.refused(gone, "over")
        assert None is gone.lost
        assert gone not in ledger
