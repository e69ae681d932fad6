"""The lines of `walrq.audit`: who did what to which queue, and from where. No payloads, no secrets.

Written for what an administrator does, for what destroys, and for attempts that were refused. A flood of one kind is
cut to AUDIT_LINES_PER_S lines a second and the rest counted.
"""

from __future__ import annotations

import logging
from typing import Final

from walrq import api
from walrq.access.principals import Principal
from walrq.access.rights import EVERY, NEEDS
from walrq.api import Right
from walrq.errors import Code, WalrqError
from walrq.limits import AUDIT_LINES_PER_S

log = logging.getLogger("walrq.audit")

# Beside everything that needs the right admin; reading a backup is one line, at its beginning.
AUDITED: Final = frozenset(
    {
        api.Cancel,
        api.Move,
        api.Redrive,
        api.SetQueue,
        api.PurgeQueue,
        api.DeleteQueue,
        api.PurgeDead,
        api.BackupBegin,
        api.AddNode,
        api.RemoveNode,
        api.TransferLeadership,
        api.SetToken,
        api.RevokeToken,
    }
)
"""Requests of which there is a line when they were let in."""
_NAME_SHOWN: Final = 255


class Audit:
    """See the module. One per node."""

    def __init__(self) -> None:
        self._second = -1
        self._lines: dict[str, int] = {}

    def _may(self, kind: str, now_ms: int) -> bool:
        second = now_ms // 1000
        if second != self._second:
            for other, number in self._lines.items():
                if number > AUDIT_LINES_PER_S:
                    log.warning("audit_lines_left_out kind=%s count=%d", other, number - AUDIT_LINES_PER_S)
            self._second = second
            self._lines = {}
        number = self._lines[kind] = self._lines.get(kind, 0) + 1
        return number <= AUDIT_LINES_PER_S

    def asked(self, principal: Principal, request: api.Request, peer: str, door: str, now_ms: int) -> None:
        """A request that was let in."""
        needs = NEEDS[type(request)](request)
        if self._may("asked", now_ms):
            log.info("asked who=%s what=%s %s from=%s door=%s", principal.name, _what(request), _on(needs), peer, door)

    def did(self, principal: Principal, what: str, peer: str, door: str, now_ms: int) -> None:
        """Something that is no request of the api."""
        if self._may("asked", now_ms):
            log.info("asked who=%s what=%s from=%s door=%s", principal.name, what, peer, door)

    def refused(
        self, principal: Principal | None, what: api.Request | str, error: WalrqError, peer: str, door: str, now_ms: int
    ) -> None:
        """An attempt that was not."""
        if error.code not in (Code.UNAUTHENTICATED, Code.FORBIDDEN) or not self._may("refused", now_ms):
            return
        who = "nobody" if principal is None else principal.name
        if isinstance(what, str):
            log.warning("refused who=%s what=%s why=%s from=%s door=%s", who, what, error.code.name, peer, door)
        else:
            log.warning(
                "refused who=%s what=%s %s why=%s from=%s door=%s",
                who,
                _what(what),
                _on(NEEDS[type(what)](what)),
                error.code.name,
                peer,
                door,
            )


def _what(request: api.Request) -> str:
    name = type(request).__name__
    if isinstance(request, api.SetToken | api.RevokeToken):
        return f"{name}({request.name!a})"
    if isinstance(request, api.AddNode | api.RemoveNode):
        return f"{name}({request.node!a})"
    return name


def _on(needs: tuple[tuple[Right, str], ...]) -> str:
    names = [queue for _, queue in needs if queue != EVERY]
    return "queue=" + (",".join(ascii(name[:_NAME_SHOWN]) for name in names[:8]) or "-")
