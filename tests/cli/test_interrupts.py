"""Ctrl-C: first a wish, then an order."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from walrq.cli.interrupts import Interrupts


@pytest.fixture
def woken() -> Iterator[tuple[int, int]]:
    """A pipe whose writing end does not block."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    yield reading, writing
    os.close(reading)
    os.close(writing)


def test_the_first_is_noted_and_wakes_the_second_raises(woken: tuple[int, int]) -> None:
    """Nothing is raised inside an encoder; and nobody is locked in."""
    interrupts = Interrupts()
    with interrupts.deferred(woken[1]):
        signal.raise_signal(signal.SIGINT)
        assert interrupts.asked
        assert 1 == len(os.read(woken[0], 8))
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    assert signal.default_int_handler is signal.getsignal(signal.SIGINT)


def test_where_nothing_wakes_it_raises_at_once(woken: tuple[int, int]) -> None:
    """A read of a silent pipe is left by the first; one pressed before is not forgotten."""
    interrupts = Interrupts()
    with interrupts.deferred(woken[1]):
        with pytest.raises(KeyboardInterrupt), interrupts.raising():
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), interrupts.raising():
            pytest.fail("the work went on")


def test_an_ignored_interrupt_stays_ignored(woken: tuple[int, int]) -> None:
    """As a shell sets it for what it puts in the background."""
    interrupts = Interrupts()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts.deferred(woken[1]):
            assert signal.SIG_IGN is signal.getsignal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)

    assert not interrupts.asked
