"""All secrets that open a node: those of its settings, the cluster's tokens, and what nodes say to each other.

Every comparison is made in constant time, and with all that could fit: how long it takes says nothing. A name that is
said with a secret has to be the right one.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable
from typing import Final

import attrs

from walrq.access.allowance import Allowance
from walrq.access.book import Book, Token, digest_of
from walrq.access.principals import ANYONE, Principal
from walrq.api import Grant, Right
from walrq.errors import Unauthenticated

_NODE: Final = "node"
REQUIREPASS: Final = "default"
ADMIN: Final = "admin"
NAMES_OF_KEYS: Final = (REQUIREPASS, ADMIN)
"""What secrets in the settings of a node are called; no token is."""
_ALL: Final = (Grant(Right.ADMIN),)
_NODE_CONTEXT: Final = b"walrq: one node forwards to another"


@attrs.frozen
class Key:
    """A secret from the settings of a node, by its digest. It may do everything."""

    name: str
    digest: bytes = attrs.field(repr=False)

    @classmethod
    def of(cls, name: str, secret: str) -> Key:
        """That of a secret."""
        return cls(name, digest_of(secret))


class Lock:
    """See the module. One per node."""

    def __init__(
        self,
        keys: Iterable[Key] = (),
        book: Callable[[], Book] = Book,
        cluster_secret: Callable[[], bytes] = bytes,
    ) -> None:
        """
        Args:
            keys: from the node's settings.
            book: the cluster's tokens as this node has them now.
            cluster_secret: what only members know; b"" as long as this node does not.
        """
        self._keys = {key.name: Principal(key.name, _ALL, digest=key.digest) for key in keys}
        self._book = book
        self._cluster_secret = cluster_secret
        # Principals of tokens, so that all connections of one share its allowance.
        self._tokens: dict[str, tuple[Token, Principal]] = {}
        self._node: Principal | None = None
        # Whom other nodes speak for, by name, when that is no token but a secret of their settings.
        self._behalf: dict[str, Principal] = {}

    @property
    def is_locked(self) -> bool:
        """Whether anybody is asked who he is."""
        return bool(self._keys) or self._book().changes > 0

    @property
    def revision(self) -> tuple[int, int]:
        """Another value means that who was let in may have to go."""
        book = self._book()
        return id(book), book.changes

    # --- coming in ------------------------------------------------------------------------------------------
    def identify(self, secret: str | bytes | None, name: str | None = None) -> Principal:
        """Who says this secret; `ANYONE` where nobody is asked.

        Args:
            name: the user that was named with it, None = none was. "default" is no name.

        Raises:
            Unauthenticated: none, or a wrong one.
        """
        if not self.is_locked:
            return ANYONE
        if secret is None:
            raise Unauthenticated("this node asks who you are: give a token")
        digest = digest_of(secret)
        found: Principal | None = None
        for principal in self._keys.values():
            if hmac.compare_digest(principal.digest, digest) and name in (None, "default", principal.name):
                found = principal
        for token in self._book().tokens.values():
            if hmac.compare_digest(token.digest, digest) and name in (None, "default", token.name):
                found = self._of_token(token)
        node = self.node_secret()
        if node is not None and hmac.compare_digest(digest_of(node), digest):
            found = self._of_node(digest)
        if found is None:
            raise Unauthenticated("the token is not known here, or is another user's")
        return found

    def _of_token(self, token: Token) -> Principal:
        known = self._tokens.get(token.name)
        if known is not None and known[0] == token:
            return known[1]
        if len(self._tokens) > len(self._book().tokens):
            self._tokens = {name: pair for name, pair in self._tokens.items() if name in self._book().tokens}
        principal = Principal(
            token.name,
            token.grants,
            digest=token.digest,
            allowance=Allowance(token.requests_per_s, token.bytes_per_s, token.in_flight),
        )
        self._tokens[token.name] = (token, principal)
        return principal

    def _of_node(self, digest: bytes) -> Principal:
        if self._node is None or self._node.digest != digest:
            self._node = Principal(_NODE, _ALL, digest=digest)
        return self._node

    def is_node(self, principal: Principal) -> bool:
        """Whether it is another node."""
        return principal is self._node

    def on_behalf(self, name: str) -> Principal:
        """Whom another node speaks for: a token, or who said a secret from the settings there.

        Raises:
            Unauthenticated: a token that is not known any more.
        """
        token = self._book().tokens.get(name)
        if token is not None:
            return self._of_token(token)
        if name not in NAMES_OF_KEYS:
            raise Unauthenticated(f"the token {name!r} is not known here")
        principal = self._behalf.get(name)
        if principal is None:
            principal = self._behalf[name] = Principal(name, _ALL)
        return principal

    # --- staying --------------------------------------------------------------------------------------------
    def still_knows(self, principal: Principal) -> bool:
        """Whether a connection of this principal may go on."""
        if principal is ANYONE:
            return not self.is_locked
        fixed = (self._keys.get(principal.name), self._behalf.get(principal.name), self._node)
        if any(principal is each for each in fixed):
            return True
        known = self._tokens.get(principal.name)
        return known is not None and known[1] is principal and self._book().tokens.get(principal.name) == known[0]

    # --- between nodes --------------------------------------------------------------------------------------
    def node_secret(self) -> str | None:
        """What a node says to another one when it forwards what its own clients asked; None: it knows none yet."""
        secret = self._cluster_secret()
        if not secret:
            return None
        return hmac.new(secret, _NODE_CONTEXT, hashlib.sha256).hexdigest()
