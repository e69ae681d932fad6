"""What a handler may raise on purpose, what it may be interrupted by, and what becomes of its message.

Pure.
"""

from __future__ import annotations

import enum
import os
from types import TracebackType
from typing import Final

import attrs

from walrq.client.operations import delay_ms


class Retry(Exception):
    """Raised by a handler: this attempt failed as expected, try again. Counts as an attempt.

    Attributes:
        delay: seconds until the next attempt; None = the task's back-off, else the queue's.
    """

    def __init__(self, reason: str = "the handler asked for another attempt", *, delay: float | None = None) -> None:
        """Raises InvalidArgument or DelayTooLong: the delay is not 0 to 30 days."""
        if delay is not None:
            delay_ms(delay)
        super().__init__(reason)
        self.delay = delay


class Reject(Exception):
    """Raised by a handler: no attempt will ever succeed. The message goes to the dead-letter queue now."""


class Release(Exception):
    """Raised by a handler: not here, or not now. The message goes back to its place at once, free of charge.

    That is at once: with no other worker that wants it, it comes right back. To wait, raise `Retry(delay=...)`.
    """


class Interrupted(Exception):
    """Base of what `context.check()` raises when the handler's work is no longer wanted."""


class LeaseLost(Interrupted):
    """The message is somebody else's now, or gone: whatever this handler does is not acknowledged."""


class TaskTimeout(Interrupted):
    """The task's `timeout` is over; the attempt counts as failed."""


class WorkerStopping(Interrupted):
    """The worker's `stop_timeout` is over; the message goes back for another worker."""


class Verdict(enum.Enum):
    """What the server is told about a message."""

    ACK = "ack"
    RELEASE = "release"
    FAIL = "fail"
    REJECT = "reject"


@attrs.frozen
class Outcome:
    """How one handler ended.

    Attributes:
        verdict: what the server is told.
        error: why, for the death report; None for ACK and RELEASE.
        delay: seconds until the next attempt, for FAIL; None = the queue's back-off.
    """

    verdict: Verdict
    error: BaseException | None = None
    delay: float | None = None


DONE = Outcome(Verdict.ACK)
RELEASED = Outcome(Verdict.RELEASE)


# Code between the worker and a handler: a report that begins there says nothing about the fault.
_OURS: Final = tuple(
    f"{os.sep}{name}{os.sep}" for name in ("walrq" + os.sep + "worker", "anyio", "trio", "outcome", "asyncio")
)


def from_the_handler(error: BaseException) -> BaseException:
    """`error` with a traceback of the handler's and the middleware's own frames only."""
    entries: list[TracebackType] = []
    entry = error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    kept: TracebackType | None = None
    for entry in reversed(entries):
        # The innermost frame says where it happened, whosever it is.
        if kept is None or not any(ours in entry.tb_frame.f_code.co_filename for ours in _OURS):
            kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return error.with_traceback(kept)
