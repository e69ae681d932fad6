"""The oracle's tokens: which names are known, and what changing them is answered with."""

from __future__ import annotations

from walrq import api
from walrq.errors import Code
from walrq.limits import TOKENS_MAX
from walrq.queues import commands as c


class Tokens:
    """Names and what was said of each."""

    def __init__(self) -> None:
        self.known: dict[str, c.PutToken] = {}

    def put(self, command: c.PutToken) -> api.Done | api.Failed:
        """A new token, or another one of that name."""
        if command.name not in self.known and len(self.known) == TOKENS_MAX:
            return api.Failed(int(Code.OVERLOADED), "too many tokens")
        self.known[command.name] = command
        return api.Done(1)

    def drop(self, command: c.DropToken) -> api.Done:
        """One less, if it was there."""
        return api.Done(0 if self.known.pop(command.name, None) is None else 1)
