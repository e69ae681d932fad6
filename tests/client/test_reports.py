"""What a death report keeps of an exception."""

from __future__ import annotations

import pytest

from walrq import api
from walrq.client import operations as op
from walrq.client.reports import tail, text_of
from walrq.limits import ERROR_TEXT_BYTES_MAX


def raised(error: Exception, depth: int = 0) -> Exception:
    """The error as it looks after it was raised, `depth` calls down."""

    def fall(left: int) -> None:
        if left:
            fall(left - 1)
        raise error

    with pytest.raises(type(error)):
        fall(depth)
    return error


def test_the_first_line_is_the_message_and_the_last_frame_is_kept() -> None:
    """A table shows one line; whoever repairs it needs the place."""
    text = text_of(raised(ValueError("bad address")), 4096)

    assert "bad address" == text.splitlines()[0]
    assert "in fall" in text
    assert text.endswith("ValueError: bad address")


def test_an_error_that_was_never_raised_is_its_text() -> None:
    """There is no traceback to show."""
    assert "bad" == text_of(ValueError("bad"), 100)


@pytest.mark.parametrize("message", ["x" * 10_000, "ü" * 10_000, "", "a\nb", "half \ud800 pair"])
@pytest.mark.parametrize("bytes_max", [400, 4096])
def test_it_never_exceeds_its_limit(message: str, bytes_max: int) -> None:
    """The server refuses a longer text, and with it the nack."""
    text = text_of(raised(ValueError(message), 500), bytes_max)

    assert len(text.encode()) <= bytes_max
    assert "fall" in text


def test_the_end_of_a_text_says_that_there_was_more() -> None:
    """A cut that cannot be seen misleads."""
    assert "…\nlast line" == tail("first line\nlast line", 16)
    assert "all" == tail("all", 16)


def test_a_nack_carries_type_text_and_traceback() -> None:
    """The three fields of the request."""
    request = op.settle(op.Settlement("q", (), ()), api.SettleKind.FAIL, None, raised(KeyError("k")))

    assert ("KeyError", "'k'") == (request.error_type, (request.error_text or "").splitlines()[0])
    assert len((request.error_text or "").encode()) <= ERROR_TEXT_BYTES_MAX
