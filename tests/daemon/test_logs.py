"""What goes to standard error: lines for people, JSON for machines."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from walrq import logs
from walrq.daemon import supervisor
from walrq.errors import QueueNotFound, StorageError


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The daemon's logger, put back afterwards."""
    logger = logging.getLogger("walrq")
    kept = (logger.handlers[:], logger.level, logger.propagate)
    yield logger
    logger.handlers[:], logger.level, logger.propagate = kept[0], kept[1], kept[2]


def test_off_a_terminal_every_line_is_a_json_object(logger: logging.Logger) -> None:
    """Also one with line breaks and a traceback in it; the event can be filtered for."""
    stream = io.StringIO()
    logs.set_up(stream, "info", "auto")
    logger.info("lease_expired queue=%s index=%d", "jobs\nurgent", 7)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("request_failed: why")
    logger.debug("not_shown")
    first, second = [json.loads(line) for line in stream.getvalue().splitlines()]

    assert ("lease_expired", "info", "walrq") == (first["event"], first["level"], first["logger"])
    assert "lease_expired queue=jobs\nurgent index=7" == first["text"]
    assert "request_failed" == second["event"]
    assert "ValueError: two\nlines" in second["traceback"]


def test_on_a_terminal_lines_are_for_people(logger: logging.Logger) -> None:
    """Time, level, text; nothing to parse."""
    stream = Terminal()
    logs.set_up(stream, "debug", "auto")
    logger.debug("turn_done index=%d", 3)

    assert stream.getvalue().rstrip().endswith("DEBUG   turn_done index=3")
    assert not stream.getvalue().startswith("{")


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (StorageError("fdatasync failed"), 74, "fatal STORAGE_FAILED: fdatasync failed"),
        (QueueNotFound("no queue"), 3, "fatal QUEUE_NOT_FOUND: no queue"),
        (ExceptionGroup("g", [ExceptionGroup("h", [KeyError("a\nb")])]), 70, "fatal INTERNAL: KeyError: 'a\\nb'"),
    ],
)
def test_what_ended_the_process_is_one_line(
    error: Exception, status: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """However deeply nurseries wrapped it, and whatever its text holds."""
    assert status == supervisor._report(error)

    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.CRITICAL]
    assert 1 == len(lines)
    assert lines[0].startswith(words)
    assert "\n" not in lines[0]
