"""Settings of a queue: each value checked once, at the edge."""

from __future__ import annotations

from typing import Any

import pytest

from walrq import limits
from walrq.errors import InvalidSetting, UnknownSetting
from walrq.queues import settings
from walrq.testing import model_queue

EDGES: list[tuple[str, Any, Any]] = [
    ("visibility_ms", limits.VISIBILITY_MS_MIN, limits.VISIBILITY_MS_MIN - 1),
    ("visibility_ms", limits.VISIBILITY_MS_MAX, limits.VISIBILITY_MS_MAX + 1),
    ("max_deliveries", 1, 0),
    ("backoff_ms", 0, -1),
    ("backoff_max_ms", limits.DELAY_MS_MAX, limits.DELAY_MS_MAX + 1),
    ("delay_ms", limits.DELAY_MS_MAX, limits.DELAY_MS_MAX + 1),
    ("retention_ms", None, 0),
    ("max_length", 1, 0),
    ("max_bytes", None, -5),
    ("overflow", "drop_oldest", "drop"),
    ("max_message_bytes", limits.MESSAGE_BYTES_LIMIT, limits.MESSAGE_BYTES_LIMIT + 1),
    ("dedup_window_ms", 1, None),
    ("group_limit", 1, 0),
    ("max_in_flight", None, 0),
    ("paused", True, 1),
    ("dlq", "graves", "bad\nname"),
    ("dlq", "none", ""),
    ("dlq", None, 7),
    ("visibility_ms", 30_000, 30.5),
    ("visibility_ms", 30_000, True),
    ("visibility_ms", 30_000, "30"),
]


@pytest.mark.parametrize(("name", "good", "bad"), EDGES)
def test_a_setting_is_taken_up_to_its_edge_and_refused_beyond(name: str, good: Any, bad: Any) -> None:
    """The error names the setting."""
    assert {name: good} == settings.check({name: good})
    with pytest.raises(InvalidSetting) as caught:
        settings.check({name: bad})

    assert name == caught.value.details["setting"]


def test_every_setting_has_a_default_that_passes_its_check() -> None:
    """One table: names, defaults, checks."""
    assert set(settings.NAMES) == set(settings.CHECKS)
    defaults = settings.as_dict(settings.DEFAULTS)

    assert defaults == settings.check(defaults)


def test_defaults_are_those_of_the_rules() -> None:
    """The oracle's table was written from the rules; both must say the same."""
    defaults = settings.as_dict(settings.DEFAULTS)

    assert dict(model_queue.DEFAULTS) == {name: defaults[name] for name in model_queue.DEFAULTS}
    # The oracle has no sizes to check and no hot window.
    assert {"max_message_bytes", "max_hot_messages", "max_hot_bytes"} >= set(defaults) - set(model_queue.DEFAULTS)


def test_an_unknown_setting_suggests_the_nearest() -> None:
    """A typing mistake is answered in one line."""
    with pytest.raises(UnknownSetting) as caught:
        settings.check({"visibilty_ms": 5})

    assert "visibility_ms" == caught.value.details["nearest"]


def test_a_queue_is_not_its_own_dead_letter_queue() -> None:
    """The dead would be delivered again."""
    with pytest.raises(InvalidSetting):
        settings.check({"dlq": "q"}, "q")
    assert {"dlq": "q"} == settings.check({"dlq": "q"}, "other")
