"""What a person learns of the links: figures, and log lines that do not repeat themselves."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import attrs

from walrq.errors import WalrqError

# The same complaint about the same peer is logged again after this time, with how often it was heard meanwhile.
_REPEAT_S: Final = 60.0
_KEPT_MAX: Final = 256


@attrs.frozen
class PeerStats:
    """One peer, as this node sees it now.

    Attributes:
        connected: both of this node's connections to it are up.
        heard: connections of the peer's own that are up here, 0 to 2.
        rtt_ms: round trip of the last ping on the control connection; None before the first.
        queued_messages, queued_bytes: wait to be sent.
        sent: messages given to the network since this node knows the peer.
        dropped: messages that were not, or may not have arrived.
        lost: times that a connection to it broke.
        address: where it was dialed last.
        last_error: why the last attempt or connection ended; "" when it never did.
    """

    connected: bool
    heard: int
    rtt_ms: float | None
    queued_messages: int
    queued_bytes: int
    sent: int
    dropped: int
    lost: int
    address: str
    last_error: str


class Complaints:
    """Logs each complaint once, and again at most once a minute: a peer that is away must not fill a disk."""

    def __init__(self, log: logging.Logger, now: Callable[[], float]) -> None:
        self._log = log
        self._now = now
        # (about whom, what) -> [time of the last line, heard since]
        self._known: OrderedDict[tuple[str, str], list[float]] = OrderedDict()

    def warn(self, line: str, about: str, error: BaseException | str) -> None:
        """Log the line and the error, unless the same was said about the same peer just now."""
        code = f" code={error.code.name}" if isinstance(error, WalrqError) else ""
        text = str(error) or type(error).__name__
        now = self._now()
        known = self._known.get((about, text))
        if known is not None and now - known[0] < _REPEAT_S:
            known[1] += 1
            return
        again = f" (and {int(known[1])} times before)" if known is not None and known[1] else ""
        self._known[about, text] = [now, 0]
        self._known.move_to_end((about, text))
        if len(self._known) > _KEPT_MAX:
            self._known.popitem(last=False)
        self._log.warning("%s%s: %s%s", line, code, text, again)

    def forget(self, about: str) -> None:
        """It is well again: the next complaint is news."""
        for key in [key for key in self._known if key[0] == about]:
            del self._known[key]


def cause(error: BaseException) -> str:
    """Why the network failed, in words: never empty."""
    if isinstance(error, OSError):
        # Trio puts the address into the text; the resolver's numbers are negative, and its texts good.
        if error.errno is not None and error.errno > 0:
            return os.strerror(error.errno)
        return error.strerror or str(error) or type(error).__name__
    return str(error) or type(error).__name__
