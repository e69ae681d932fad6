"""Noise at every door: nothing that a client can send costs more than its own connection."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import pytest

from tests.doors import noise
from tests.doors.fuzz import talk
from tests.doors.lodge import Lodge
from walrq import api

CONVERSATIONS = 40


@pytest.fixture(scope="module")
def lodge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lodge]:
    """One node with all its doors."""
    with Lodge(tmp_path_factory.mktemp("lodge"), nodes=1) as opened:
        yield opened


@pytest.mark.parametrize("door", noise.DOORS)
def test_a_node_survives_noise(door: str, lodge: Lodge, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """It answers as before, and no conversation made it stumble. Ten minutes of it: `python -m tests.doors.fuzz`."""
    [room] = lodge.rooms
    rng = random.Random(seed)
    with caplog.at_level(logging.ERROR):
        for _ in range(CONVERSATIONS):
            talk(room.endpoints[door], noise.conversation(door, rng))
        answer = lodge.ask(room, api.Ping())

    assert api.Pong() == answer
    assert [] == [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("door", noise.DOORS)
def test_noise_is_what_its_seed_says(door: str) -> None:
    """A failure can be had again."""
    once, again, other = (noise.conversation(door, random.Random(number)) for number in (1, 1, 2))

    assert once == again != other
