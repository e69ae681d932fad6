"""How much is asked for, of which queues, and what starts next."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.worker.messages import held
from walrq.errors import InvalidArgument
from walrq.worker.intake import Intake, Target
from walrq.worker.leases import Held
from walrq.worker.tasks import TASK_HEADER


def target(name: str | None, queue: str = "q", concurrency: int | None = None) -> Target:
    """Something that does nothing."""
    function: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    return Target(name, queue, function, None, None, None, concurrency)


def arrive(intake: Intake, task: str | None = "a", queue: str = "q") -> Held:
    """One message of a task is received."""
    one = held(queue, headers=None if task is None else {TASK_HEADER: task})
    intake.take(one)
    intake.wait(one, intake.target(one))
    return one


def test_no_more_is_held_than_may_run_and_wait() -> None:
    """Messages that wait here are kept from other workers."""
    intake = Intake([target("a")], concurrency=2, prefetch=3)

    assert (["q"], 5) == intake.wanted()
    for _ in range(5):
        arrive(intake)
    assert ([], 0) == intake.wanted()


def test_the_next_messages_come_while_acks_are_on_their_way() -> None:
    """But a server that does not answer them does not fill this process with finished work."""
    intake = Intake([target("a")], concurrency=1, prefetch=1)
    for _ in range(2):
        one = arrive(intake)
        found = intake.next()
        assert found is not None
        intake.ended(found[1])
        intake.settle(one)

    assert ([], 0) == intake.wanted()
    intake.let_go()
    assert (["q"], 1) == intake.wanted()


def test_while_everybody_is_busy_polls_are_not_for_single_messages() -> None:
    """Half of what is kept ahead has to be used up before more is asked for."""
    intake = Intake([target("a")], concurrency=2, prefetch=8)
    for _ in range(10):
        arrive(intake)
    asked = []
    for _ in range(5):
        while (found := intake.next()) is not None:
            one, ended = found
        asked.append(intake.wanted()[1])
        intake.ended(ended)
        intake.settle(one)
        intake.let_go()

    assert [0, 0, 0, 0, 4] == asked


def test_the_longest_waiting_message_starts_first() -> None:
    """First come, first served, over all tasks."""
    intake = Intake([target("a"), target("b")], concurrency=10, prefetch=10)
    arrived = [arrive(intake, name) for name in "abbaab"]
    started = []
    while (found := intake.next()) is not None:
        started.append(found[0])

    assert arrived == started


def test_a_task_at_its_limit_lets_others_pass() -> None:
    """Two of a kind at a time, whatever waits."""
    intake = Intake([target("a", concurrency=1), target("b")], concurrency=3, prefetch=10)
    first, second, other = arrive(intake, "a"), arrive(intake, "a"), arrive(intake, "b")
    started = [intake.next(), intake.next(), intake.next()]

    assert [first, other, None] == [None if each is None else each[0] for each in started]
    assert started[0] is not None
    intake.ended(started[0][1])
    found = intake.next()
    assert found is not None
    assert second is found[0]


def test_a_slow_queue_does_not_take_the_places_of_others() -> None:
    """Of a queue whose only task runs one at a time, no more is taken than that and the prefetch."""
    intake = Intake([target("slow", "s", 1), target("fast", "f")], concurrency=10, prefetch=2)
    for _ in range(3):
        arrive(intake, "slow", "s")

    assert (["f"], 9) == intake.wanted()
    assert not intake.has_room("s")


def test_each_poll_begins_with_another_queue() -> None:
    """The first that has messages is taken from: a full one must not starve the rest."""
    intake = Intake([target("a", "x"), target("b", "y"), target("c", "z")], concurrency=5, prefetch=0)
    firsts = {intake.wanted()[0][0] for _ in range(3)}

    assert {"x", "y", "z"} == firsts


def test_messages_go_to_the_task_they_name() -> None:
    """Several tasks share a queue; what names none goes to the queue's handler."""
    intake = Intake([target("a"), target("b"), target(None)], concurrency=1, prefetch=0)

    assert ["a", "b", None, None] == [
        intake.target(held(headers=headers)).name
        for headers in ({TASK_HEADER: "a"}, {TASK_HEADER: "b"}, {TASK_HEADER: "unknown"}, None)
    ]


def test_what_nobody_handles_is_told_who_does() -> None:
    """The text is what an operator reads in the dead-letter queue."""
    intake = Intake([target("b"), target("a")], concurrency=1, prefetch=0)

    with pytest.raises(InvalidArgument, match="no task 'c' on queue 'q'; it knows a, b"):
        intake.target(held(headers={TASK_HEADER: "c"}))
    with pytest.raises(InvalidArgument, match="without the header walrq-task"):
        intake.target(held())


def test_counts_stay_within_their_bounds(rng: random.Random) -> None:
    """Any order of arrivals, ends and answers."""
    for _ in range(50):
        targets = [target(f"{queue}{n}", queue, rng.choice([None, 1, 2])) for queue in "xy" for n in range(2)]
        concurrency, prefetch = rng.randint(1, 4), rng.randint(0, 4)
        intake = Intake(targets, concurrency, prefetch)
        runs: list[tuple[Held, Target]] = []
        unanswered: list[Held] = []
        for _ in range(200):
            queues, most = intake.wanted()
            assert bool(queues) == (most > 0)
            if queues and rng.random() < 0.5:
                for _ in range(rng.randint(1, most)):
                    queue = rng.choice(queues)
                    if intake.has_room(queue):
                        arrive(intake, f"{queue}{rng.randint(0, 1)}", queue)
            while (found := intake.next()) is not None:
                runs.append(found)
            assert intake.running == len(runs) <= concurrency
            assert intake.held <= concurrency + prefetch
            for each in targets:
                assert sum(run[1] is each for run in runs) <= (each.concurrency or concurrency)
            if runs and rng.random() < 0.7:
                one, ended = runs.pop(rng.randrange(len(runs)))
                intake.ended(ended)
                intake.settle(one)
                unanswered.append(one)
            while unanswered and rng.random() < 0.7:
                unanswered.pop()
                intake.let_go()
            assert intake.unanswered == len(unanswered) <= 2 * (concurrency + prefetch)
        left = intake.not_started()
        assert intake.held == len(runs) + len(left)
        assert None is intake.next()
