"""Errors that only a client can meet: nobody answers, or a list of messages went through in part.

What a server says is raised as the class that `walrq.errors` has for its code.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from walrq.client.messages import Batch, Message
from walrq.errors import Code, Unavailable, WalrqError


class ServerUnreachable(Unavailable):
    """No server answered at any of the addresses, so nothing was sent (definite, try again)."""

    code = Code.NOT_READY


@attrs.frozen
class EntryFailure:
    """One part of a call on many messages that did not go through.

    Attributes:
        entry: what was given: a message, a batch, or for `push_batch` the (first, last) positions in the
            list.
        error: why; `error.definite` tells whether it may have happened nevertheless.
    """

    entry: Message | Batch | tuple[int, int]
    error: WalrqError

    @property
    def count(self) -> int:
        """How many messages it stands for."""
        if isinstance(self.entry, tuple):
            first, last = self.entry
            return last - first + 1
        return len(self.entry) if isinstance(self.entry, Batch) else 1


class BatchError(WalrqError):
    """A call on several messages went through in part.

    Attributes:
        failures: what did not go through, each with its error; the rest did.
        succeeded: how many messages went through.
        results: for `push_batch` the id of each message, None for those that failed; else empty.
    """

    def __init__(self, failures: Sequence[EntryFailure], succeeded: int, results: Sequence[str | None] = ()) -> None:
        self.failures: tuple[EntryFailure, ...] = tuple(failures)
        self.succeeded: int = succeeded
        self.results: Sequence[str | None] = results
        super().__init__(self._summary(), failed=self.failed, succeeded=succeeded)

    def _summary(self) -> str:
        """How many, why, and what about the rest, in one line however many reasons there are."""
        failed = self.failed
        reasons = len({type(failure.error) for failure in self.failures})
        others = f" ({reasons} different reasons, see failures)" if reasons > 1 else ""
        rest = f"; the other {self.succeeded:,} went through" if self.succeeded else ""
        first = self.failures[0].error
        return f"{failed:,} of {failed + self.succeeded:,} messages failed{others}, first: {first.text}{rest}"

    @property
    def failed(self) -> int:
        """How many messages did not go through."""
        return sum(failure.count for failure in self.failures)

    @property
    def definite(self) -> bool:
        """True when every failed part did not and will not happen."""
        return all(failure.error.definite for failure in self.failures)

    @property
    def retry(self) -> bool:
        """True when every failed part may succeed later, unchanged."""
        return all(failure.error.retry for failure in self.failures)


def unpicklable() -> TypeError:
    """What pickling a client, or something that holds one, raises."""
    return TypeError(
        "a walrq client cannot be pickled: it is a connection of this process. Give the other process the address and"
        " call walrq.connect there; after a fork this very client works in the child too"
    )


def belongs_here(what: str) -> TypeError:
    """What pickling a leased message or batch raises."""
    return TypeError(
        f"a walrq {what} cannot be pickled: a client of this process holds it. Send payloads to the other process; with"
        " queue, message_id and receipt_handle a client there can acknowledge"
    )
