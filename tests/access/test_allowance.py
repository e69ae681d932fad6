"""How much a token may ask at a time."""

from __future__ import annotations

import pytest

from walrq.access.allowance import Allowance
from walrq.errors import Overloaded


def test_a_bucket_holds_the_worth_of_a_second() -> None:
    """A request larger than the bucket passes when it is full, and the next ones wait for what it took too much."""
    bucket = Allowance(bytes_per_s=1_000)
    bucket.enter(5_000, 0)
    with pytest.raises(Overloaded) as refused:
        bucket.enter(1, 1_000)
    wait_ms = refused.value.details["retry_after_ms"]
    with pytest.raises(Overloaded):
        bucket.enter(1, 1_000 + wait_ms - 1)
    bucket.enter(1, 1_000 + wait_ms)

    assert ("bytes_per_s", 3_001) == (refused.value.details["limit"], wait_ms)
    assert 2 == bucket.in_flight


def test_requests_and_those_in_flight_are_bounded() -> None:
    """What was refused does not count."""
    bucket = Allowance(requests_per_s=2, in_flight=3)
    for _ in range(2):
        bucket.enter(1, 0)
    with pytest.raises(Overloaded, match="2 requests a second"):
        bucket.enter(1, 499)
    bucket.enter(1, 500)
    with pytest.raises(Overloaded, match="3 requests in flight"):
        bucket.enter(1, 5_000)
    bucket.leave()
    bucket.enter(1, 5_000)

    assert 3 == bucket.in_flight
