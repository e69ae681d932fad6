"""Machine against oracle: every answer, every message, every promise, after any commands in any order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.queues import generate, random_driver
from tests.queues.generate import Drawn
from tests.queues.pair import Pair
from walrq.queues import commands as c
from walrq.queues import image
from walrq.queues.machine import Bounds


class AgainstModel(RuleBasedStateMachine):
    """One rule per kind of command; Hypothesis shrinks a difference to a short program of them."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    @initialize(data=st.data())
    def something_to_work_on(self, data: st.DataObject) -> None:
        """An empty broker answers every command the same way."""
        self._do(data, generate.push)

    def _do(self, data: st.DataObject, maker: generate.Maker) -> None:
        draw = Drawn(data)
        self._apply(generate.tag(draw, self.pair.known, maker(draw, self.pair.known)))

    def _apply(self, *entry: c.Tagged) -> None:
        for tagged in entry:
            hypothesis.note(f"{self.pair.stamp.lease_ms}: {tagged}")
        self.pair.entry(entry)

    @rule(lease_ms=st.integers(0, 50), drift_ms=st.integers(-5, 5))
    def time_passes(self, lease_ms: int, drift_ms: int) -> None:
        """Both clocks go on, not quite together; the reaper's empty entry sweeps."""
        self.pair.advance(lease_ms, max(0, lease_ms + drift_ms))
        self._apply()

    @rule(step=st.sampled_from([1_000, 60_000, 300_000, 3_599_999, 3_600_000]))
    def much_time_passes(self, step: int) -> None:
        """Windows, sessions and back-offs end."""
        self.pair.advance(step, step)
        self._apply()

    @rule(data=st.data())
    def push(self, data: st.DataObject) -> None:
        self._do(data, generate.push)

    @rule(data=st.data())
    def push_again(self, data: st.DataObject) -> None:
        self._do(data, generate.push)

    @rule(data=st.data())
    def lease(self, data: st.DataObject) -> None:
        self._do(data, generate.lease)

    @rule(data=st.data())
    def lease_again(self, data: st.DataObject) -> None:
        self._do(data, generate.lease)

    @precondition(lambda self: self.pair.known.receipts)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        self._do(data, generate.settle)

    @precondition(lambda self: self.pair.known.receipts)
    @rule(data=st.data())
    def settle_again(self, data: st.DataObject) -> None:
        self._do(data, generate.settle)

    @precondition(lambda self: self.pair.known.receipts)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        self._do(data, generate.touch)

    @precondition(lambda self: self.pair.known.receipts)
    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        self._do(data, generate.undo)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self._do(data, generate.cancel)

    @rule(data=st.data())
    def reschedule(self, data: st.DataObject) -> None:
        self._do(data, generate.reschedule)

    @rule(data=st.data())
    def set_queue(self, data: st.DataObject) -> None:
        self._do(data, generate.set_queue)

    @rule(data=st.data())
    def purge_queue(self, data: st.DataObject) -> None:
        self._do(data, generate.purge_queue)

    @rule(data=st.data())
    def delete_queue(self, data: st.DataObject) -> None:
        self._do(data, generate.delete_queue)

    @rule(data=st.data())
    def redrive(self, data: st.DataObject) -> None:
        self._do(data, generate.redrive)

    @rule(data=st.data())
    def purge_dead(self, data: st.DataObject) -> None:
        self._do(data, generate.purge_dead)

    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        self._do(data, generate.move)

    @rule()
    def open_session(self) -> None:
        self._apply(c.Tagged(c.OpenSession()))

    @precondition(lambda self: self.pair.known.sessions)
    @rule()
    def keep_sessions(self) -> None:
        self._apply(c.Tagged(c.KeepSessions(tuple(self.pair.known.sessions))))

    @precondition(lambda self: any(self.pair.known.sent.values()))
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        """AtMostOnce: a request that was sent before is sent again, word for word."""
        retry = generate.again(Drawn(data), self.pair.known)
        if retry is not None:
            self._apply(retry)

    @rule(data=st.data())
    def several_in_one_entry(self, data: st.DataObject) -> None:
        """Commands that gathered during one write share a stamp and an entry."""
        draw = Drawn(data)
        self._apply(*(generate.tagged_command(draw, self.pair.known) for _ in range(draw.integer(2, 4))))

    @rule()
    def begin_image(self) -> None:
        self.pair.freeze()

    @rule(pages=st.integers(1, 6))
    def go_on_with_image(self, pages: int) -> None:
        self.pair.image_step(pages)

    @rule()
    def restart_from_image(self) -> None:
        """A machine loaded from its pages goes on as if nothing had happened, with the same pages."""
        self.pair.restart()

    @invariant()
    def image_pages_change_only_when_their_content_does(self) -> None:
        """Encoding is a function of the state: twice the same bytes."""
        assert image.full_pages(self.pair.machine) == image.full_pages(self.pair.machine)


TestAgainstModel = AgainstModel.TestCase


def test_long_random_runs_show_no_difference(seed: int) -> None:
    """What needs many steps to build up: full queues, old sessions, queues deleted and made again."""
    steps = 60_000 if os.environ.get("WALRQ_HYPOTHESIS") == "soak" else 5_000
    print(f"seed {seed}")

    assert steps <= random_driver.run(seed, steps)


@pytest.mark.parametrize("budget", [1, 2, 5])
def test_promises_hold_when_a_stamp_cannot_expire_all_that_is_due(budget: int, seed: int) -> None:
    """What is due but not swept counts as expired when touched, and comes in a later entry (AckBeforeDeadline)."""
    print(f"seed {seed}")

    assert 1_000 <= random_driver.run_alone(seed, 1_000, Bounds(expire_per_entry=budget))


HASHES = """
import hashlib, random
from tests.queues import random_driver
print(random_driver.page_hash({seed}, 600))
"""


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_same_commands_give_the_same_pages_under_any_hash_seed(hash_seed: str, seed: int) -> None:
    """Replicas compare page hashes: nothing may depend on the order of a set or on hash()."""
    print(f"seed {seed}")
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)}
    other = subprocess.run(
        [sys.executable, "-c", HASHES.format(seed=seed)],
        cwd=root,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()

    assert other == random_driver.page_hash(seed, 600)
