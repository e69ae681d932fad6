"""Many short lives of wild clients; `python -m tests.resp.fuzz` runs as long as one likes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.resp import fuzz

SEEDS = st.integers(0, (1 << 48) - 1)


@given(SEEDS)
def test_no_bytes_are_more_than_a_protocol_error(seed: int) -> None:
    """Whatever is sent, in whatever pieces."""
    fuzz.mad(seed)


@given(SEEDS)
def test_every_command_has_one_reply_in_order(seed: int) -> None:
    """Whatever is answered, in whatever order."""
    fuzz.busy(seed)
