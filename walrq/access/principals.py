"""Who asks, and whether he may.

`check` is called for each request of a connection whose principal is not `ANYONE`: a look into one table, and one into
a memory of names that were judged before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from walrq import api
from walrq.access.allowance import Allowance
from walrq.access.rights import EVERY, NEEDS
from walrq.api import Grant, Right
from walrq.errors import Forbidden

_WORDS: Final = {Right.READ: "read", Right.WRITE: "write", Right.ADMIN: "admin"}
# Names whose rights are remembered; a client that asks for other ones all the time costs a comparison each.
_REMEMBERED_MAX: Final = 4_096


class Principal:
    """Who asks.

    Attributes:
        name: of the token; for logs and errors.
        grants: what it may do.
        allowance: how much at a time.
        digest: of its secret, by which the lock finds out whether it still counts; b"" = nothing to find out.
    """

    __slots__ = ("_exact", "_known", "_patterns", "allowance", "digest", "everywhere", "name")

    def __init__(
        self, name: str, grants: Iterable[Grant], *, digest: bytes = b"", allowance: Allowance | None = None
    ) -> None:
        self.name = name
        self.digest = digest
        self.allowance = allowance or Allowance()
        # Its right on every queue, 0 = none.
        self.everywhere = 0
        self._exact: dict[str, int] = {}
        # (what a name begins with, what it ends with, right), of patterns that have a *.
        self._patterns: list[tuple[str, str, int]] = []
        self._known: dict[str, int] = {}
        for grant in grants:
            right = int(grant.right)
            head, star, tail = grant.queues.partition("*")
            if not star:
                self._exact[head] = max(right, self._exact.get(head, 0))
            elif head or tail:
                self._patterns.append((head, tail, right))
            else:
                self.everywhere = max(self.everywhere, right)

    def __repr__(self) -> str:
        return f"Principal({self.name!r})"

    @property
    def sees_all(self) -> bool:
        """Whether it may look at every queue."""
        return self.everywhere >= Right.READ

    def right_on(self, queue: str) -> int:
        """Its right on a queue, 0 = none. `EVERY` is no queue: on all of them."""
        if queue == EVERY:
            # A queue may be called "*" as well; who has a right on all has it on that one.
            return self.everywhere
        known = self._known.get(queue)
        if known is None:
            known = self._judge(queue)
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            self._known[queue] = known
        return known

    def _judge(self, queue: str) -> int:
        best = max(self.everywhere, self._exact.get(queue, 0))
        for head, tail, right in self._patterns:
            if right > best and len(queue) >= len(head) + len(tail) and queue.startswith(head) and queue.endswith(tail):
                best = right
        return best

    def may_see(self, queue: str) -> bool:
        """Whether it may look at that queue."""
        return self.everywhere > 0 or self.right_on(queue) > 0

    def may_see_prefix(self, prefix: str) -> bool:
        """Whether it may look at every queue whose name begins so."""
        return self.everywhere > 0 or any(not tail and prefix.startswith(head) for head, tail, _ in self._patterns)

    def require(self, right: Right, queue: str, what: str) -> None:
        """Refuse what it may not do.

        Raises:
            Forbidden: naming what, the right and the queue.
        """
        if self.right_on(queue) < right:
            where = "every queue" if queue == EVERY else f"queue {queue!r}"
            raise Forbidden(
                f"{what} needs the right {_WORDS[right]} on {where}, which the token {self.name!r} does not have",
                right=_WORDS[right],
                queue=None if queue == EVERY else queue,
                token=self.name,
            )


ANYONE: Final = Principal("anyone", (Grant(Right.ADMIN),))
"""Where no lock is configured. A door that sees it checks nothing."""


def check(principal: Principal, request: api.Request) -> None:
    """Refuse what `principal` may not ask.

    Raises:
        Forbidden: naming the right that is missing, and the queue.
    """
    if principal is ANYONE:
        return
    kind = type(request)
    for right, queue in NEEDS[kind](request):
        principal.require(right, queue, kind.__name__)
    if kind is api.ListQueues and not principal.may_see_prefix(request.prefix):  # type: ignore[union-attr]
        raise Forbidden(
            f"the token {principal.name!r} may not list all queues that begin with {request.prefix!r}; name a prefix"  # type: ignore[union-attr]
            " that one of its patterns covers",
            right="read",
            token=principal.name,
        )
