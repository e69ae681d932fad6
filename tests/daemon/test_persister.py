"""The thread that makes entries durable."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from walrq.daemon.persister import Persister

pytestmark = pytest.mark.trio


def fail() -> None:
    raise OSError("the disk said no")


async def test_calls_run_in_one_thread_of_their_own() -> None:
    """The event loop goes on while a disk works, and nothing runs beside the call before."""
    persister = Persister()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(persister.run)
        await trio.testing.wait_all_tasks_blocked()
        names = {await persister.call(lambda: threading.current_thread().name) for _ in range(3)}
        nursery.cancel_scope.cancel()

    assert {"walrq-persist"} == names
    assert "walrq-persist" not in {thread.name for thread in threading.enumerate()}


async def test_what_a_call_raises_reaches_its_caller() -> None:
    """A failed write ends the process: it must not end in a thread that nobody looks at."""
    persister = Persister()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(persister.run)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(OSError, match="the disk said no"):
            await persister.call(fail)
        nursery.cancel_scope.cancel()

    assert not persister.busy


async def test_a_cancelled_call_is_not_abandoned() -> None:
    """What a disk was told to write cannot be taken back, so its caller waits for the end."""
    persister = Persister()
    started, may_end = threading.Event(), threading.Event()
    finished = []

    def slow() -> None:
        started.set()
        assert may_end.wait(10)
        finished.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(persister.run)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as inner:
            inner.start_soon(persister.call, slow)
            await trio.to_thread.run_sync(started.wait)
            inner.cancel_scope.cancel()
            await trio.lowlevel.cancel_shielded_checkpoint()

            assert [] == finished
            assert persister.busy
            may_end.set()

        assert [True] == finished
        nursery.cancel_scope.cancel()


async def test_without_its_thread_a_call_still_runs() -> None:
    """The last sync of a stopping node comes after its tasks are gone."""
    assert 7 == await Persister().call(lambda: 7)
