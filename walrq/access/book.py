"""The tokens that a cluster knows, as a part of the replicated state: digests of secrets, never secrets.

A secret is random, so a plain SHA-256 of it is as hard to turn round as it is to guess the secret.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import attrs
import cbor2

from walrq.api import Grant, Right, TokenInfo, value
from walrq.errors import CorruptRecord, Overloaded
from walrq.limits import TOKENS_MAX

BOOK_KEY: Final = b"k"
"""The book's page in an image."""


def digest_of(secret: str | bytes) -> bytes:
    """What is kept of a secret."""
    return hashlib.sha256(secret if isinstance(secret, bytes) else secret.encode()).digest()


@value
class Token:
    """One row."""

    name: str
    digest: bytes = attrs.field(repr=False)
    grants: tuple[Grant, ...]
    requests_per_s: int | None
    bytes_per_s: int | None
    in_flight: int | None
    set_ms: int

    def fields(self) -> list[Any]:
        """As plain values."""
        limits = [self.requests_per_s, self.bytes_per_s, self.in_flight]
        return [self.name, self.digest, [[int(g.right), g.queues] for g in self.grants], *limits, self.set_ms]

    def info(self) -> TokenInfo:
        """As it is told."""
        return TokenInfo(self.name, self.grants, self.requests_per_s, self.bytes_per_s, self.in_flight, self.set_ms)


def open_token(fields: list[Any]) -> Token:
    """What `Token.fields` gave.

    Raises:
        CorruptRecord: something else.
    """
    try:
        name, digest, grants, requests, size, in_flight, set_ms = fields
        found = tuple(Grant(Right(right), queues) for right, queues in grants)
    except (ValueError, TypeError) as error:
        raise CorruptRecord(f"a page of tokens holds what is no token: {error}") from error
    return Token(name, digest, found, requests, size, in_flight, set_ms)


class Book:
    """All tokens.

    Attributes:
        tokens: by name.
        changes: how often it changed, ever; above 0 the cluster is locked, also when no token is left.
        dirty: it changed since the last image.
    """

    __slots__ = ("changes", "dirty", "tokens")

    def __init__(self) -> None:
        self.tokens: dict[str, Token] = {}
        self.changes = 0
        self.dirty = False

    def put(self, token: Token) -> None:
        """Add a token, or replace the one of that name.

        Raises:
            Overloaded: there are too many.
        """
        if token.name not in self.tokens and len(self.tokens) >= TOKENS_MAX:
            raise Overloaded(
                f"there are {len(self.tokens)} tokens already, allowed are {TOKENS_MAX}", limit="TOKENS_MAX"
            )
        self.tokens[token.name] = token
        self._changed()

    def drop(self, name: str) -> bool:
        """Forget a token; False when there was none."""
        if name not in self.tokens:
            return False
        del self.tokens[name]
        self._changed()
        return True

    def _changed(self) -> None:
        self.changes += 1
        self.dirty = True

    # --- the image ------------------------------------------------------------------------------------------
    def page(self) -> bytes | None:
        """Its page; None while it never had a token."""
        if not self.changes:
            return None
        return cbor2.dumps([self.changes, [self.tokens[name].fields() for name in sorted(self.tokens)]])

    def load(self, body: bytes) -> None:
        """Take what a page holds.

        Raises:
            CorruptRecord: it is none.
        """
        try:
            self.changes, rows = cbor2.loads(body)
        except (cbor2.CBORError, ValueError, TypeError) as error:
            raise CorruptRecord(f"a page of tokens cannot be read: {error}") from error
        self.tokens = {token.name: token for token in map(open_token, rows)}
