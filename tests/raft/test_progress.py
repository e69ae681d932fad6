"""A follower as its leader sees it."""

from __future__ import annotations

import itertools
import random

import pytest

from walrq.raft.membership import Configuration
from walrq.raft.progress import TRANSITIONS, Event, Progress, State
from walrq.raft.snapshots import Outgoing

GROUP = Configuration.of("ab")


def in_state(state: State) -> Progress:
    """A follower of which everything up to 4 is known, in a state."""
    progress = Progress(next=5, match=4, state=state)
    if state is State.SNAPSHOT:
        progress.outgoing = Outgoing(1, 9, 2, GROUP)
    return progress


@pytest.mark.parametrize("pair", list(itertools.product(State, Event)), ids=lambda pair: f"{pair[0]}-{pair[1]}")
def test_progress_changes_only_along_the_table(pair: tuple[State, Event]) -> None:
    """TRANSITIONS is the whole truth."""
    progress = in_state(pair[0])
    if pair in TRANSITIONS:
        progress._on(pair[1])
        assert progress.state is TRANSITIONS[pair]
    else:
        with pytest.raises(KeyError):
            progress._on(pair[1])
        assert progress.state is pair[0]


def test_a_probe_asks_one_thing_at_a_time() -> None:
    """Where the logs agree is not known, so sending ahead would be guessing."""
    progress = Progress(next=5)
    assert progress.may_send(10, 1000)
    progress.sent(7, 30)
    assert not progress.may_send(10, 1000)
    assert 5 == progress.next

    assert progress.accepted(7)
    assert (State.REPLICATE, 7, 8) == (progress.state, progress.match, progress.next)


def test_the_window_bounds_appends_and_bytes() -> None:
    """Bounded: a slow follower costs its leader so much and no more."""
    progress = in_state(State.REPLICATE)
    for index in (5, 6, 7):
        assert progress.may_send(3, 100)
        progress.sent(index, 10)
    assert not progress.may_send(3, 100)
    assert (3, 30) == (progress.in_flight, progress.in_flight_bytes)

    progress.accepted(6)
    assert (1, 10) == (progress.in_flight, progress.in_flight_bytes)
    progress.sent(8, 95)
    assert not progress.may_send(3, 100)
    progress.accepted(8)
    # One append may be larger than the window.
    assert progress.may_send(3, 100)
    assert (0, 0) == (progress.in_flight, progress.in_flight_bytes)


def test_a_refusal_goes_back_to_what_is_known() -> None:
    """NextGtMatch."""
    progress = in_state(State.REPLICATE)
    progress.sent(9, 1)
    assert progress.rejected(9, 2)
    assert (State.PROBE, 4, 5, 0) == (progress.state, progress.match, progress.next, progress.in_flight)

    progress = Progress(next=50, match=10)
    assert progress.rejected(49, 30)
    assert 31 == progress.next
    assert progress.rejected(30, 3)
    assert 11 == progress.next


def test_old_answers_change_nothing() -> None:
    """Messages are doubled and come late."""
    progress = Progress(next=50, match=10)
    assert not progress.rejected(10, 3)
    assert not progress.rejected(48, 3)
    assert not progress.accepted(9)
    assert (State.PROBE, 10, 50) == (progress.state, progress.match, progress.next)
    # What is known to match by now lies where the question was.
    assert not Progress(next=11, match=10).accepted(10)

    waiting = in_state(State.SNAPSHOT)
    assert not waiting.rejected(8, 3)
    assert waiting.accepted(6)
    assert (State.SNAPSHOT, 6) == (waiting.state, waiting.match)


def test_a_snapshot_ends_in_a_probe() -> None:
    """Also one that came to nothing."""
    progress = in_state(State.REPLICATE)
    progress.behind(Outgoing(1, 20, 2, GROUP))
    assert not progress.may_send(9, 9)
    progress.installed(20)
    assert (State.PROBE, 20, 21, None) == (progress.state, progress.match, progress.next, progress.outgoing)

    progress.behind(Outgoing(2, 30, 2, GROUP))
    progress.failed()
    assert (State.PROBE, 20, 21, None) == (progress.state, progress.match, progress.next, progress.outgoing)


def test_a_broken_link_is_asked_over_again() -> None:
    """What was under way counts as lost; what is known stays known."""
    progress = in_state(State.REPLICATE)
    progress.sent(9, 100)
    progress.lost()
    assert (State.PROBE, 4, 5, 0) == (progress.state, progress.match, progress.next, progress.in_flight_bytes)
    progress.sent(6, 1)
    assert not progress.may_send(1, 1)
    progress.lost()
    assert progress.may_send(1, 1) and 5 == progress.next

    streaming = in_state(State.SNAPSHOT)
    assert streaming.outgoing is not None
    streaming.outgoing.offered = True
    streaming.lost()
    assert State.SNAPSHOT is streaming.state and not streaming.outgoing.offered


def test_damage_voids_what_was_known_once_for_each_life() -> None:
    """The report may be doubled."""
    progress = in_state(State.REPLICATE)
    assert progress.damaged(77)
    assert (0, 1, True, State.PROBE) == (progress.match, progress.session, progress.recovering, progress.state)
    progress.accepted(3)
    assert not progress.damaged(77)
    assert (3, 1) == (progress.match, progress.session)
    assert progress.damaged(78)
    assert (0, 2) == (progress.match, progress.session)


def test_match_stays_below_next_whatever_comes(rng: random.Random) -> None:
    """NextGtMatch and MatchMonotonic over random answers."""
    for _ in range(200):
        progress = Progress(next=rng.randrange(1, 20))
        for _ in range(40):
            match = progress.match
            match rng.randrange(5):
                case 0:
                    progress.accepted(rng.randrange(25))
                case 1:
                    progress.rejected(rng.randrange(25), rng.randrange(25))
                case 2 if progress.state is not State.SNAPSHOT:
                    progress.behind(Outgoing(1, 9, 2, GROUP))
                case 3 if progress.state is State.SNAPSHOT:
                    progress.installed(rng.randrange(25))
                case 4 if progress.may_send(4, 100):
                    progress.sent(progress.next + rng.randrange(3), 10)
            assert match <= progress.match < progress.next
