"""How long a failed call waits."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walrq import Exponential
from walrq.errors import ConfigError
from walrq.worker.backoff import DELAY_S_MAX, check, wait_s


def test_it_doubles_up_to_its_bound(rng: random.Random) -> None:
    """Without spread it is exact."""
    policy = Exponential(first=2, factor=3, most=50, spread=0)

    assert [2, 6, 18, 50, 50] == [policy.wait_s(failures, rng) for failures in range(1, 6)]


@given(
    first=st.floats(0, 1e5),
    factor=st.floats(1, 100),
    most=st.floats(0, 1e6),
    spread=st.floats(0, 1),
    failures=st.integers(1, 10**6),
    seed=st.integers(),
)
def test_it_stays_within_its_bounds(
    first: float, factor: float, most: float, spread: float, failures: int, seed: int
) -> None:
    """However long something fails, the wait is a number the server takes."""
    wait = Exponential(first=first, factor=factor, most=most, spread=spread).wait_s(failures, random.Random(seed))

    assert 0 <= wait <= most


def test_seconds_functions_and_nothing_are_policies_too(rng: random.Random) -> None:
    """The simple cases are simple."""
    assert None is wait_s(None, 1, rng)
    assert 5.0 == wait_s(5, 3, rng)
    assert 30.0 == wait_s(lambda failures: failures * 10, 3, rng)


@pytest.mark.parametrize("found", ["5", None, -1, float("nan"), float("inf"), True, DELAY_S_MAX + 1])
def test_a_function_that_gives_nonsense_is_found_out(found: Any, rng: random.Random) -> None:
    """The queue's own back-off applies then, and the log says why."""
    with pytest.raises(ValueError, match="backoff gave"):
        wait_s(lambda failures: found, 1, rng)


@pytest.mark.parametrize("wrong", [-1, float("nan"), DELAY_S_MAX + 1, "5", True, [1, 2]])
def test_a_policy_that_is_none_is_refused_where_it_is_declared(wrong: Any) -> None:
    """At import, not at the first failure."""
    with pytest.raises(ConfigError, match="task 'x': backoff"):
        check(wrong, "task 'x'")


@pytest.mark.parametrize("wrong", [{"first": -1}, {"factor": 0.5}, {"most": 1e9}, {"spread": 2}])
def test_an_exponential_out_of_range_names_its_field(wrong: dict[str, float]) -> None:
    """One line that says what is wrong."""
    with pytest.raises(ConfigError, match=f"backoff: {next(iter(wrong))} is"):
        Exponential(**wrong)
