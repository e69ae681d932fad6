"""What a client tells the log about its connection: once when it is lost, once when it is back.

Lines go to the logger `walrq.client`, to which no handler is added; none shows a payload. A connection that never came
about is not an outage: `connect` raises for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from walrq.client.config import Endpoint
from walrq.errors import WalrqError, WrongCluster

LOGGER: Final = logging.getLogger("walrq.client")


class Journal:
    """Gathers lines until they may be written: a handler may do anything, so it must not run while the client is in
    the middle of something. `speak` writes them.
    """

    def __init__(self) -> None:
        self._lines: list[Callable[[], None]] = []
        self._known = False
        self._lost_at: float | None = None

    @property
    def silent(self) -> bool:
        """True while there is nothing to write."""
        return not self._lines

    def usable(self, endpoint: Endpoint, now: float) -> None:
        """A connection can be used from now (monotonic seconds) on."""
        lost_at, self._lost_at = self._lost_at, None
        if not self._known:
            self._known = True
            self._lines.append(partial(LOGGER.debug, "connected to %s", endpoint))
        elif lost_at is not None:
            away_s = now - lost_at
            self._lines.append(
                partial(
                    LOGGER.info,
                    "connected to %s again after %.1f s",
                    endpoint,
                    away_s,
                    extra={"endpoint": str(endpoint), "away_s": away_s},
                )
            )

    def lost(self, endpoint: Endpoint, reason: str, under_way: int, now: float) -> None:
        """A usable connection ended.

        Args:
            reason: why, in a few words.
                under_way: requests that were sent and not answered.
        """
        self._lost_at = now
        self._lines.append(
            partial(
                LOGGER.warning,
                "lost the connection to %s (%s) with %d request%s under way; connecting again",
                endpoint,
                reason,
                under_way,
                "" if under_way == 1 else "s",
                extra={"endpoint": str(endpoint), "under_way": under_way},
            )
        )

    def left(self, endpoint: Endpoint, reason: str, now: float, *, led: bool) -> None:
        """This side left a usable connection for another node.

        Args:
            led: it was the leader until then; else it is one more attempt of many.
        """
        if led:
            self._lost_at = now
        self._lines.append(
            partial(
                LOGGER.log,
                logging.INFO if led else logging.DEBUG,
                "left %s (%s); on to another node",
                endpoint,
                reason,
                extra={"endpoint": str(endpoint)},
            )
        )

    def unreachable(self, endpoint: Endpoint, failure: WalrqError) -> None:
        """An attempt to connect failed. A node that belongs to another cluster is somebody's mistake, and worth a
        warning."""
        level = logging.WARNING if isinstance(failure, WrongCluster) else logging.DEBUG
        self._lines.append(partial(LOGGER.log, level, "no connection to %s: %s", endpoint, failure.text))

    def speak(self) -> None:
        """Write what has gathered."""
        lines, self._lines = self._lines, []
        for line in lines:
            line()


def reason_of(cause: BaseException | None) -> str:
    """Why a connection ended, from what its socket said."""
    if cause is None:
        return "the server closed it"
    # An asynchronous stream tells what its socket said as the cause of its own error.
    cause = cause.__cause__ or cause
    if isinstance(cause, TimeoutError):
        return "no answer to a probe"
    text = cause.strerror if isinstance(cause, OSError) else None
    return text or str(cause) or type(cause).__name__
