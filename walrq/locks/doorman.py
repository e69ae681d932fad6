"""Who asks who is there, for all doors of a node.

A connection that needs no permission has no guard, and its requests are not looked at: what is decided per connection
costs nothing per request. When a token is revoked or changed, or the first one is made, whoever may not stay is told
and sent away within a moment; a request of his is refused at once.

Never: awaits but to sleep; reads a file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from walrq import api
from walrq.access.audit import AUDITED, Audit
from walrq.access.lock import Key, Lock
from walrq.access.principals import ANYONE, Principal, check
from walrq.errors import Forbidden, Unauthenticated, WalrqError
from walrq.queues import commands

if TYPE_CHECKING:
    from walrq.queues.machine import Machine

log = logging.getLogger("walrq.locks")

# How long a connection without requests may outlive its token: who changed it gets his answer before.
_SWEEP_S: Final = 0.5
BEHALF: Final = "for"
"""In the features of a Hello from another node: the token whose client it speaks for."""
_REVOKED: Final = "the token was revoked or changed; say who you are again"
_LOCKED: Final = "this node asks who you are from now on: give a token"


class Broker(Protocol):
    """What a doorman knows of the broker."""

    ports: set[Any]

    @property
    def machine(self) -> Machine: ...
    @property
    def is_serving(self) -> bool: ...
    @property
    def is_alone(self) -> bool: ...

    def now_ms(self) -> int: ...
    def not_leader(self) -> WalrqError: ...
    def serve(self, handlers: Any, on_closed: Any) -> None: ...
    def log(self, call: Any, command: commands.Command, finish: Callable[[Any, Any], None]) -> None: ...
    def answer(self, call: Any, reply: api.Reply) -> None: ...
    def confirm(self, then: Callable[[bool], None]) -> None: ...


class Guard:
    """A connection's permission: asked before each of its requests.

    Attributes:
        principal: whose connection it is.
    """

    __slots__ = ("_door", "_doorman", "_peer", "_revision", "principal")

    def __init__(self, doorman: Doorman, principal: Principal, peer: str, door: str) -> None:
        self._doorman = doorman
        self._door = door
        self._peer = peer
        self._revision = doorman.lock.revision
        self.principal = principal

    def admit(self, request: api.Request, size: int = 0, session: int | None = None) -> None:
        """Let a request in, which counts as in flight until `leave`; a session's request with its session.

        Raises:
            Unauthenticated: the token is gone. Forbidden: it may not. Overloaded: not so fast. Nothing counts then.
        """
        doorman = self._doorman
        principal = self.principal
        try:
            self.check_life()
            check(principal, request)
            if session is not None:
                doorman.check_session(principal, session)
        except WalrqError as error:
            doorman.audit.refused(principal, request, error, self._peer, self._door, doorman.now_ms())
            raise
        principal.allowance.enter(size, doorman.now_ms())
        if type(request) in AUDITED:
            doorman.audit.asked(principal, request, self._peer, self._door, doorman.now_ms())

    def check_life(self) -> None:
        """
        Raises:
            Unauthenticated: the token is gone, or another one by now.
        """
        revision = self._doorman.lock.revision
        if revision != self._revision:
            if not self._doorman.lock.still_knows(self.principal):
                raise Unauthenticated(_REVOKED)
            self._revision = revision

    def require(self, right: api.Right, queue: str, what: str) -> None:
        """As `admit`, of what is no request of the api; it does not count as in flight.

        Raises:
            Unauthenticated, Forbidden: as `admit`.
        """
        doorman = self._doorman
        now_ms = doorman.now_ms()
        try:
            self.check_life()
            self.principal.require(right, queue, what)
        except WalrqError as error:
            doorman.audit.refused(self.principal, what, error, self._peer, self._door, now_ms)
            raise
        if right is api.Right.ADMIN:
            doorman.audit.did(self.principal, what, self._peer, self._door, now_ms)

    def enter(self) -> None:
        """Count a request that is only answered with a refusal, so that `leave` is right for it too."""
        self.principal.allowance.in_flight += 1

    def leave(self) -> None:
        """A request is answered."""
        self.principal.allowance.leave()


class Doorman:
    """See the module. One per node.

    Attributes:
        lock: all secrets.
        audit: the lines of `walrq.audit`.
    """

    def __init__(self, broker: Broker, keys: Iterable[Key] = ()) -> None:
        """`keys`: secrets from the node's own settings."""
        self._broker = broker
        self.lock = Lock(keys, lambda: broker.machine.book, lambda: broker.machine.secret)
        self.audit = Audit()
        # What the lock was when the connections were looked at last.
        self._seen = self.lock.revision
        self._changed = trio.Event()
        broker.serve(
            {
                api.SetToken: self._set_token,
                api.RevokeToken: self._revoke_token,
                api.ListTokens: self._list_tokens,
                api.OpenSession: self._open_session,
            },
            _nothing,
        )

    def now_ms(self) -> int:
        """The monotonic clock, as read once in this turn."""
        return self._broker.now_ms()

    # --- coming in ------------------------------------------------------------------------------------------
    @property
    def is_locked(self) -> bool:
        """Whether anybody is asked who he is."""
        return self.lock.is_locked

    def identify(self, secret: str | bytes | None, name: str | None, peer: str, door: str) -> Principal:
        """Who says this secret; `ANYONE` where nobody is asked.

        Raises:
            Unauthenticated: none was given, or a wrong one.
        """
        try:
            return self.lock.identify(secret, name)
        except Unauthenticated as error:
            if secret is not None:
                self.audit.refused(None, "login", error, peer, door, self.now_ms())
            raise

    def guard(self, principal: Principal, peer: str, door: str) -> Guard | None:
        """The guard of a connection of that principal; None: nothing is to be asked."""
        return None if principal is ANYONE else Guard(self, principal, peer, door)

    def greet(self, token: str | None, behalf: object, peer: str, door: str) -> Guard | None:
        """The guard of who comes with a Hello.

        Args:
            token: as he says it.
            behalf: what the features say under `BEHALF`, which counts from other nodes only.

        Raises:
            Unauthenticated: as `identify`.
        """
        principal = self.identify(token, None, peer, door)
        if principal is not ANYONE and self.lock.is_node(principal) and isinstance(behalf, str):
            principal = self.lock.on_behalf(behalf)
        return self.guard(principal, peer, door)

    def check_session(self, principal: Principal, session: int) -> None:
        """
        Raises:
            Forbidden: the session is another token's.
        """
        known = self._broker.machine.sessions.table.get(session)
        if known is not None and known.owner not in ("", principal.name):
            raise Forbidden(f"session {session} is not one of the token {principal.name!r}", token=principal.name)

    # --- going ----------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Send away whose token is gone, until cancelled. Asleep until `look` sees a change."""
        while True:
            self.look()
            await self._changed.wait()
            await trio.sleep(_SWEEP_S)
            self._changed = trio.Event()
            self._seen = self.lock.revision
            self.sweep()

    def look(self) -> None:
        """Something was applied: the tokens may be others now. Called after every turn."""
        if self.lock.revision != self._seen:
            self._changed.set()

    def sweep(self) -> None:
        """Look at all connections."""
        for port in list(self._broker.ports):
            revoked = getattr(port, "revoked", None)
            if revoked is None:
                continue
            guard = port.guard
            principal = ANYONE if guard is None else guard.principal
            if not self.lock.still_knows(principal):
                log.info("connection_revoked who=%s peer=%s", principal.name, getattr(port, "peer", "-"))
                revoked(_LOCKED if guard is None else _REVOKED)

    # --- tokens ---------------------------------------------------------------------------------------------
    def _lead(self) -> None:
        if not self._broker.is_serving:
            raise self._broker.not_leader()

    def _set_token(self, call: Any, request: api.SetToken) -> None:
        self._lead()
        if not self.is_locked and api.Grant(api.Right.ADMIN) not in request.grants:
            raise Forbidden(
                "the first token locks the cluster for everybody else, so it must have the right admin on every queue"
                " and can make others then"
            )
        command = commands.PutToken(
            request.name,
            request.digest,
            request.grants,
            request.requests_per_s,
            request.bytes_per_s,
            request.in_flight,
        )
        self._broker.log(call, command, self._broker.answer)

    def _revoke_token(self, call: Any, request: api.RevokeToken) -> None:
        self._lead()
        self._broker.log(call, commands.DropToken(request.name), self._broker.answer)

    def _list_tokens(self, call: Any, request: api.ListTokens) -> None:
        self._lead()
        if self._broker.is_alone:
            self._tell_tokens(call, True)
        else:
            self._broker.confirm(lambda confirmed: self._tell_tokens(call, confirmed))

    def _tell_tokens(self, call: Any, confirmed: bool) -> None:
        if not confirmed:
            error = self._broker.not_leader()
            self._broker.answer(call, api.Failed(int(error.code), error.text, dict(error.details)))
            return
        tokens = self._broker.machine.book.tokens
        self._broker.answer(call, api.TokenList(tuple([tokens[name].info() for name in sorted(tokens)])))

    def _open_session(self, call: Any, request: api.OpenSession) -> None:
        self._lead()
        guard = getattr(call.port, "guard", None)
        # Version 1 has no owners, and no tokens.
        owner = "" if guard is None or self._broker.machine.version < 2 else guard.principal.name
        self._broker.log(call, commands.OpenSession(owner), self._broker.answer)


def _nothing(port: Any) -> None:
    """A connection ended: nothing is kept of it."""
