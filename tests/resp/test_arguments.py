"""Words to numbers and names: what is no such thing is refused by name, and never replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from walrq.errors import DelayTooLong, InvalidQueueName, RequestError
from walrq.limits import DELAY_MS_MAX, RESP_WAIT_GRACE_MS, VISIBILITY_MS_MAX
from walrq.resp import arguments


@pytest.mark.parametrize(
    ("word", "ms"),
    [
        (b"10", 10_000),
        (b"10.0", 10_000),
        (b"0", 0),
        (b"0.001", 1),
        (b".5", 500),
        (b"1e1", 10_000),
        (b"+2", 2_000),
        (b"2592000", DELAY_MS_MAX),
    ],
)
def test_seconds_are_what_clients_print(word: bytes, ms: int) -> None:
    """Integers, fractions, exponents."""
    assert arguments.delay_ms(word) == ms


BAD_NUMBERS = [b"", b"abc", b"nan", b"inf", b"-inf", b"infinity", b"1_000", b" 1", b"1 ", b"0x10", b"1e9999", b"--1"]


@pytest.mark.parametrize("word", BAD_NUMBERS)
@pytest.mark.parametrize(
    "read", [arguments.delay_ms, arguments.visibility_ms, arguments.wait_ms, arguments.extension_ms, arguments.priority]
)
def test_what_is_no_number_is_refused(read: Callable[[bytes], Any], word: bytes) -> None:
    """DTQ took some for a default, and died of others."""
    with pytest.raises(RequestError):
        read(word)


@pytest.mark.parametrize("word", [b"-1", b"-0.001", b"-1e300"])
def test_negative_spans_are_refused(word: bytes) -> None:
    """Whatever they count."""
    for read in (arguments.delay_ms, arguments.visibility_ms, arguments.wait_ms, arguments.extension_ms):
        with pytest.raises(RequestError, match=r"allowed are"):
            read(word)


def test_spans_end_where_the_other_doors_end_them() -> None:
    """30 days, 12 hours; and a wait of 0 is for ever."""
    with pytest.raises(DelayTooLong, match="30 days"):
        arguments.delay_ms(b"2592000.001")
    assert arguments.visibility_ms(b"43200") == VISIBILITY_MS_MAX
    with pytest.raises(RequestError, match="12 h"):
        arguments.visibility_ms(b"43200.001")
    with pytest.raises(RequestError):
        arguments.visibility_ms(b"0")
    assert arguments.wait_ms(b"0") is arguments.wait_ms(b"0.0") is None
    assert arguments.wait_ms(b"1.5") == 1_500 + RESP_WAIT_GRACE_MS
    assert arguments.extension_ms(b"100000") == 100_000_000


def test_different_byte_strings_are_different_queues_or_none() -> None:
    """DTQ replaced bad bytes, so that two names could become one."""
    assert arguments.queue("jöbs".encode()) == "jöbs"
    for word in (b"a\xff", b"a\xfe", b"", b"a\nb", b"x" * 256):
        with pytest.raises(InvalidQueueName):
            arguments.queue(word)


@pytest.mark.parametrize(
    ("word", "number"),
    [
        (b"task-1", 1),
        (b"task-18446744073709551615", (1 << 64) - 1),
        (b"task-18446744073709551616", 0),
        (b"task-0", 0),
        (b"task-01", 0),
        (b"task--1", 0),
        (b"task-", 0),
        (b"TASK-1", 0),
        (b"1", 0),
        (b"task-1 ", 0),
    ],
)
def test_a_task_id_is_one_spelling(word: bytes, number: int) -> None:
    """Everything else is nobody's task."""
    assert arguments.task(word) == number


def test_errors_quote_little_and_on_one_line() -> None:
    """What a client sent must not come back as a reply of its own."""
    assert arguments.shown(b"x" * 1_000) == "'" + "x" * 40 + "'..."
    assert "\r" not in arguments.shown(b"a\r\n+OK\r\n")
