"""What a connection is told of the node it is at, and the few requests that are no queue's."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from walrq import api
from walrq.api import value


class Guard(Protocol):
    """Who logged in, as far as a connection wants to know; its port asks it before each request."""

    principal: Any


class Host(Protocol):
    """The node behind a connection.

    Attributes:
        version: of walrq.
        name: the node's.
        has_password: whether one is asked for.
    """

    version: str
    name: str

    @property
    def has_password(self) -> bool: ...

    def admits(self, user: bytes | None, password: bytes, peer: str) -> Guard | None:
        """Who says these words, from where; None: they are wrong. `user` None: the password alone was said."""
        ...

    def cursor(self, after: str) -> int:
        """A number for the place behind the queue `after`, where a scan is to go on."""
        ...

    def place(self, cursor: int) -> str | None:
        """The queue that a cursor was given for; None: none that is remembered."""
        ...


@value
class Rewrite:
    """Write a snapshot and give back what it makes dispensable. Reply: `api.Done`, with the messages it holds."""


@value
class Follow:
    """Feed this connection with what is decided from now on. Reply: `api.Done`, and then frames without end."""


Request: TypeAlias = api.Request | Rewrite | Follow
