"""The workbench as a fixture."""

from __future__ import annotations

import pytest

from tests.queues.bench import Bench


@pytest.fixture
def bench() -> Bench:
    """A machine of its own for the test."""
    return Bench()
