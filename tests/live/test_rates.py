"""Rates come from counters and the node's own uptime."""

from __future__ import annotations

from typing import Any

import pytest

from walrq.api import QueueInfo
from walrq.live.rates import HISTORY, Look, Rates, age, count, size, sparkline

WALL_MS = 1_700_000_000_000


def info(name: str = "q", uid: int = 1, pushed: int = 0, delivered: int = 0, acked: int = 0, **rest: Any) -> QueueInfo:
    """A queue with these counters."""
    counts = dict.fromkeys(("ready", "delayed", "leased", "parked", "dead", "bytes", "oldest_ms"), 0) | rest
    settings = counts.pop("settings", {})
    return QueueInfo(name, uid, **counts, pushed=pushed, delivered=delivered, acked=acked, settings=settings)


def look(uptime_s: float, *queues: QueueInfo, node: str = "n", **stats: Any) -> Look:
    """A look at a node that runs for so long."""
    return Look({"node": node, "uptime_ms": uptime_s * 1000, "wall_ms": WALL_MS, **stats}, queues)


def test_a_rate_is_a_difference_over_the_nodes_own_time() -> None:
    """However late the answer arrives here, the node counted and measured at one moment."""
    rates = Rates()
    first = rates.feed(look(10, info(pushed=100, delivered=50, acked=40), turns=7))
    second = rates.feed(look(12, info(pushed=300, delivered=52, acked=40), turns=17))

    assert (None, None, None, None) == (
        first.flows[0].push_s,
        first.flows[0].deliver_s,
        first.flows[0].ack_s,
        first.turns_s,
    )
    assert (100.0, 1.0, 0.0) == (second.flows[0].push_s, second.flows[0].deliver_s, second.flows[0].ack_s)
    assert 5.0 == second.turns_s
    assert (100.0,) == second.flows[0].pushes


@pytest.mark.parametrize(
    ("uptime_s", "node"), [(1, "n"), (99, "another")], ids=["started again", "another node took over"]
)
def test_after_a_restart_there_is_no_rate_until_the_next_look(uptime_s: float, node: str) -> None:
    """Counters begin anew: a difference would be nonsense, often negative."""
    rates = Rates()
    rates.feed(look(50, info(pushed=1_000)))
    restarted = rates.feed(look(uptime_s, info(pushed=5), node=node))
    after = rates.feed(look(uptime_s + 1, info(pushed=7), node=node))

    assert (True, None) == (restarted.restarted, restarted.flows[0].push_s)
    assert (False, 2.0) == (after.restarted, after.flows[0].push_s)


def test_a_queue_made_anew_under_its_old_name_has_no_rate_at_first() -> None:
    """Its counters are another queue's."""
    rates = Rates()
    rates.feed(look(1, info(uid=1, pushed=1_000)))

    assert None is rates.feed(look(2, info(uid=2, pushed=3))).flows[0].push_s


def test_a_queue_that_appeared_between_two_looks_has_a_rate_at_once() -> None:
    """All it counted happened since."""
    rates = Rates()
    rates.feed(look(1))

    assert 1.5 == rates.feed(look(3, info(pushed=3))).flows[0].push_s


def test_two_looks_at_the_same_moment_give_no_rate() -> None:
    """Nothing is divided by zero."""
    rates = Rates()
    rates.feed(look(1, info(pushed=1)))

    assert None is rates.feed(look(1, info(pushed=2))).flows[0].push_s


def test_the_age_of_the_oldest_message_is_by_the_nodes_clock() -> None:
    """This machine's clock may be wrong; a message of the future is new."""
    flows = Rates().feed(look(1, info("a", oldest_ms=WALL_MS - 2_500), info("b", oldest_ms=WALL_MS + 9), info("c")))

    assert [2.5, 0.0, None] == [flow.oldest_s for flow in flows.flows]


def test_history_is_bounded_and_forgotten_with_its_queue() -> None:
    """A view that runs for weeks does not grow."""
    rates = Rates()
    for second in range(HISTORY + 50):
        reading = rates.feed(look(second + 1, info(pushed=second)))
    assert HISTORY == len(reading.flows[0].pushes)
    rates.feed(look(1_000))

    assert () == rates.feed(look(1_001, info(uid=9))).flows[0].pushes[1:]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "-"),
        (0, "0"),
        (0.25, "0.2"),
        (7, "7"),
        (12.6, "13"),
        (999, "999"),
        (1_000, "1.00k"),
        (12_345, "12.3k"),
        (999_499, "999k"),
        (999_600, "1.00M"),
        (5e15, "5000T"),
    ],
)
def test_numbers_fit_their_column(number: float | None, text: str) -> None:
    """At most five characters, so that a table keeps its shape."""
    assert text == count(number)
    assert len(count(number)) <= 5


@pytest.mark.parametrize(
    ("number", "text"), [(None, "-"), (0, "0B"), (999, "999B"), (1_000, "1.0K"), (150 << 20, "150M"), (3 << 40, "3.0T")]
)
def test_sizes_fit_their_column(number: int | None, text: str) -> None:
    """The same for bytes."""
    assert text == size(number)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.44, "0.4s"), (59.9, "59s"), (200, "3m20s"), (18_180, "5h03m"), (352_800, "4d02h")],
)
def test_times_fit_their_column(seconds: float | None, text: str) -> None:
    """The two largest units are enough."""
    assert text == age(seconds)


def test_a_sparkline_shows_the_last_values_against_their_highest() -> None:
    """Never wider than its place; nothing but zeros is a flat line."""
    assert "▁▅█" == sparkline((9, 0, 4, 8), 3)
    assert "▁▁" == sparkline((0, 0), 5)
    assert "" == sparkline((), 5) == sparkline((1, 2), 0)
