"""Who asks at the HTTP door: a token in a header, or a login of the dashboard's page.

    Authorization: Bearer TOKEN            programs
    Authorization: Basic base64(NAME:TOKEN)    programs that know nothing else; "default" is any name
    Cookie: walrq-login=...                the page, after POST /v1/login with {"token": ...}

The cookie is a random number that names a login of this node; the page's script never sees it, no other site's request
carries it, and it ends with the browser, after LOGIN_IDLE_S_MAX without a request, or with its token. No token is in an
address, so none is in a log.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Final

from walrq.access.book import digest_of
from walrq.access.principals import ANYONE, Principal
from walrq.daemon.clock import Clock
from walrq.errors import MalformedRequest, Unauthenticated
from walrq.limits import LOGIN_IDLE_S_MAX, LOGINS_MAX
from walrq.locks.doorman import Doorman, Guard

COOKIE: Final = "walrq-login"
_ID_BYTES: Final = 32
_DOOR: Final = "http"


class Logins:
    """See the module. One per door."""

    def __init__(self, doorman: Doorman, clock: Clock, *, secure: bool) -> None:
        """`secure`: the door has TLS, so that browsers may keep the cookie for it alone."""
        self._doorman = doorman
        self._clock = clock
        self._secure = secure
        # By digest of what the cookie says, least recently used first: until when, and whose.
        self._known: OrderedDict[bytes, tuple[float, Principal]] = OrderedDict()

    def who(self, headers: Mapping[str, str], peer: str) -> Guard | None:
        """The guard of one request; None where nobody is asked.

        Raises:
            Unauthenticated: no token and no login, or one that is not known.
            MalformedRequest: a header that cannot be understood.
        """
        doorman = self._doorman
        if not doorman.is_locked:
            return None
        said = headers.get("authorization")
        if said is not None:
            name, secret = _credentials(said)
            return doorman.guard(doorman.identify(secret, name, peer, _DOOR), peer, _DOOR)
        principal = self._of_cookie(headers)
        if principal is None:
            # Says that a token is needed.
            principal = doorman.identify(None, None, peer, _DOOR)
        return doorman.guard(principal, peer, _DOOR)

    def _of_cookie(self, headers: Mapping[str, str]) -> Principal | None:
        said = _cookie(headers)
        if said is None:
            return None
        key = digest_of(said)
        known = self._known.get(key)
        if known is None:
            return None
        until_s, principal = known
        now_s = self._clock.monotonic_s()
        if now_s >= until_s or not self._doorman.lock.still_knows(principal):
            del self._known[key]
            return None
        self._known[key] = (now_s + LOGIN_IDLE_S_MAX, principal)
        self._known.move_to_end(key)
        return principal

    def log_in(self, token: str, name: str | None, peer: str) -> tuple[str, str]:
        """(who that is, the Set-Cookie header).

        Raises:
            Unauthenticated: a wrong token.
        """
        principal = self._doorman.identify(token, name, peer, _DOOR)
        if principal is ANYONE:
            return principal.name, self._header("", 0)
        made = secrets.token_urlsafe(_ID_BYTES)
        self._known[digest_of(made)] = (self._clock.monotonic_s() + LOGIN_IDLE_S_MAX, principal)
        if len(self._known) > LOGINS_MAX:
            self._known.popitem(last=False)
        return principal.name, self._header(made, None)

    def log_out(self, headers: Mapping[str, str]) -> str:
        """Forget the login of this request; the Set-Cookie header that lets the browser forget it too."""
        said = _cookie(headers)
        if said is not None:
            self._known.pop(digest_of(said), None)
        return self._header("", 0)

    def _header(self, value: str, age_s: int | None) -> str:
        age = "" if age_s is None else f"; Max-Age={age_s}"
        return f"{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict{age}{'; Secure' if self._secure else ''}"


def _cookie(headers: Mapping[str, str]) -> str | None:
    text = headers.get("cookie")
    if text is None:
        return None
    try:
        found = SimpleCookie(text).get(COOKIE)
    except CookieError:
        return None
    return None if found is None or not found.value else found.value


def _credentials(said: str) -> tuple[str | None, str]:
    """(name, secret) of an Authorization header."""
    scheme, _, rest = said.strip().partition(" ")
    rest = rest.strip()
    if scheme.lower() == "bearer" and rest:
        return None, rest
    if scheme.lower() == "basic":
        try:
            name, colon, secret = base64.b64decode(rest, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            colon = ""
        if colon:
            return name or None, secret
        raise MalformedRequest("the header authorization is not Basic with base64 of NAME:TOKEN", field="authorization")
    raise Unauthenticated("the header authorization is neither Bearer TOKEN nor Basic", field="authorization")
