"""An idle node does nothing: no periodic work, however many clients wait."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.daemon.harness import FRONTS, columns, running
from walrq import api
from walrq.daemon import pollers
from walrq.daemon.pollers import Call, Deadlines, PollCall

pytestmark = pytest.mark.trio


@pytest.fixture
def patient_clock(mock_clock: trio.testing.MockClock) -> trio.testing.MockClock:
    """Jumps when nothing happens, but not while a thread lets the log settle."""
    mock_clock.autojump_threshold = 0.05
    return mock_clock


class Wakeups(trio.abc.Instrument):
    """Counts how often the event loop asked the kernel for events."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


@pytest.mark.parametrize("front", FRONTS)
async def test_an_idle_node_with_parked_polls_sleeps(front: str, patient_clock: trio.testing.MockClock) -> None:
    """Eight minutes with 200 waiters, a lease in the far future and a session: a handful of wake-ups, no
    entry.
    """
    async with running(front) as world:
        clients = [await world.connect() for _ in range(200)]
        for client in clients:
            await client.send(api.Poll(("quiet",), 1, wait_ms=3_600_000))
        busy, _ = await world.open_session()
        await busy.ask(api.Push("jobs", columns(b"a")))
        await busy.ask(api.Poll(("jobs",), 1, visibility_ms=12 * 3_600_000))
        # The hand-shakes' time-outs, the settling of the log and the sweep come to rest.
        await trio.sleep(30)
        entries = world.node.replica.applied_index
        wakeups = Wakeups()
        trio.lowlevel.add_instrument(wakeups)
        await trio.sleep(500)
        trio.lowlevel.remove_instrument(wakeups)

        assert 200 == world.node.broker.polls.parked
        assert entries == world.node.replica.applied_index
        assert wakeups.count <= 30


async def test_sessions_of_living_connections_are_kept(patient_clock: trio.testing.MockClock) -> None:
    """A client may be silent for hours; its session is still there, and one without a connection is not."""
    async with running() as world:
        living, _ = await world.open_session()
        gone, _ = await world.open_session()
        await gone.aclose()
        await trio.sleep(2.5 * 3_600)

        assert 1 == len(world.node.replica.machine.sessions.table)
        assert 1 == (await living.ask(api.Push("jobs", columns(b"a")), 1, 1)).count


async def test_leases_far_apart_end_each_at_its_own_time(patient_clock: trio.testing.MockClock) -> None:
    """A lease of 1 s does not wait for one of 60 s, and an earlier deadline wakes the reaper that sleeps on a
    later.
    """
    async with running() as world:
        client = await world.connect()
        await client.ask(api.Push("jobs", columns(b"long")))
        await client.ask(api.Poll(("jobs",), 1, visibility_ms=60_000))
        await client.ask(api.Push("jobs", columns(b"short")))
        await client.ask(api.Poll(("jobs",), 1, visibility_ms=1_000))
        start = trio.current_time()
        first = await client.ask(api.Poll(("jobs",), 1, visibility_ms=3_600_000, wait_ms=100_000))
        after_first = trio.current_time() - start
        second = await client.ask(api.Poll(("jobs",), 1, wait_ms=100_000))
        after_second = trio.current_time() - start

        assert [b"short", b"long"] == [first.runs[0].payloads, second.runs[0].payloads]
        assert 1.0 <= after_first <= 1.1
        assert 60.0 <= after_second <= 60.1


async def test_a_delayed_message_is_delivered_when_due(patient_clock: trio.testing.MockClock) -> None:
    """Never early, and without anybody's push or poll in between."""
    async with running() as world:
        client = await world.connect()
        poll = await client.send(api.Poll(("jobs",), 1, wait_ms=100_000))
        start = trio.current_time()
        await client.ask(api.Push("jobs", columns(b"later"), delay_ms=7_000))
        polled = await client.answer(poll)

        assert b"later" == polled.runs[0].payloads
        assert 7.0 <= trio.current_time() - start <= 7.05
        assert 0 == world.node.broker.counters.futile_leases


def parked_call(deadline_ms: int) -> PollCall:
    """A poll as the heap sees it."""
    call = PollCall(None, 1, None, 0, 0, 0)  # type: ignore[arg-type]  # no port is needed
    assert isinstance(call, Call)
    call.deadline_ms = deadline_ms
    call.parked = True
    call.watched = False
    return call


async def test_the_heap_forgets_polls_that_were_served() -> None:
    """A million served polls with an hour's wait each must not stay in memory for an hour."""
    deadlines = Deadlines()
    kept = parked_call(5)
    deadlines.living = 1
    deadlines.add(kept)
    for number in range(5 * pollers._PRUNE_MIN):
        served = parked_call(1_000 + number)
        deadlines.add(served)
        served.parked = False

    assert len(deadlines) <= pollers._PRUNE_MIN + 1
    assert 5 == deadlines.next_ms()
    assert [kept] == deadlines.due(5)
    assert None is deadlines.next_ms()


async def test_a_poll_that_parks_again_is_due_once() -> None:
    """Its old entry in the heap still counts; a second one would answer it twice."""
    deadlines = Deadlines()
    call = parked_call(5)
    deadlines.living = 1
    deadlines.add(call)
    call.parked = False
    call.parked = True
    deadlines.add(call)

    assert [call] == deadlines.due(10)
    assert [] == deadlines.due(10)
