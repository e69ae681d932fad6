"""SIGTERM and SIGINT: leave nothing open, lose nothing, exit 0."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from chaos import stops
from tests.e2e.conftest import Starter
from walrq import api

ROUNDS = 5


def test_stops_under_load_answer_or_refuse_everything(tmp_path: Path, seed: int) -> None:
    """Four producers and a hundred parked polls; the soak runs fifty rounds of the same."""
    tally = stops.rounds(tmp_path, seed=seed, count=ROUNDS)

    assert [] == tally.wrong
    assert 100 * ROUNDS == tally.polls_ended
    assert tally.confirmed > 0
    assert 0 == tally.unknown


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_node_exits_0_at_once(start_node: Starter, number: signal.Signals) -> None:
    """An init system that waits for the time-out at every stop is a slow one."""
    node = start_node()
    node.signal(number)

    assert 0 == node.wait(10)


def test_standard_output_has_the_readiness_line_only(tmp_path: Path, start_node: Starter) -> None:
    """Scripts read one JSON line there; logs go to standard error."""
    node = start_node()
    assert node.process.stdout is not None
    node.signal(signal.SIGTERM)
    rest = node.process.stdout.read()
    node.wait(10)

    assert b"" == rest
    assert "ready" == node.ready["event"]
    assert {"event", "node", "endpoints"} <= set(node.ready)


def test_a_parked_poll_does_not_hold_up_a_stop(start_node: Starter) -> None:
    """A poll that waits an hour is ended, not waited for."""
    node = start_node()
    line = stops.Line(node.address)
    replies: list[api.Reply] = []
    line.request(api.Poll(("jobs",), wait_ms=3_600_000), replies.append)
    line.call(api.Ping())
    node.signal(signal.SIGTERM)
    while not line.ended:
        line.receive()
    line.close()

    assert 0 == node.wait(10)
    assert 1 == len(replies)
