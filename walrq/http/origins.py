"""Who may make a browser ask: the rules against requests that some other page makes its visitor send.

A browser says where a request comes from (`Origin`, `Sec-Fetch-Site`); programs do not. Whatever changes something and
comes from a browser must be of the node's own pages, and carry the header that they send, which no form and no foreign
page can. A page of an origin that the node was told to allow (`allowed_origins`) is treated as its own; without that
setting no answer carries a CORS header.

A node that listens on loopback answers to the names of loopback only: another name that leads to it may be a foreign
page's (DNS rebinding), whose requests would count as its own.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final

from walrq.errors import Forbidden

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
PAGE_HEADER: Final = "walrq-page"
_LOOPBACK_NAMES: Final = frozenset({"localhost", "ip6-localhost", "ip6-loopback"})
_ALLOWED_HEADERS: Final = f"authorization, content-type, x-request-id, {PAGE_HEADER}"
_EXPOSED_HEADERS: Final = "x-request-id, walrq-consistency, retry-after"


def host_of(authority: str) -> str:
    """The host of "host:port", in lower case and without the brackets of an IPv6 address."""
    text = authority.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.count(":") == 1 else text


def is_local(host: str) -> bool:
    """Whether it is a name of this machine's loopback, or an address: nobody else's name can be one."""
    if host.rstrip(".") in _LOOPBACK_NAMES or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def check_host(headers: Mapping[str, str], *, loopback: bool) -> None:
    """
    Raises:
        Forbidden: the node listens on loopback, and the request was meant for another name.
    """
    if not loopback:
        return
    host = host_of(headers.get("host", ""))
    if not is_local(host):
        raise Forbidden(
            f"this node listens on loopback and answers to its names only, not to {host[:80]!r}", field="host"
        )


def check_origin(method: str, headers: Mapping[str, str], allowed: frozenset[str]) -> None:
    """
    Raises:
        Forbidden: a foreign page makes a browser ask for a change; or a page without the header of ours.
    """
    if method in SAFE:
        return
    origin = headers.get("origin")
    site = headers.get("sec-fetch-site")
    if origin is None and site is None:
        return
    if origin is not None and _is_allowed(origin, allowed):
        pass
    elif origin is not None and not _is_own(origin, headers.get("host", "")):
        raise Forbidden(
            f"a page of {origin[:80]!r} may not ask this node for changes (allowed_origins)", field="origin"
        )
    elif origin is None and site not in ("same-origin", "none"):
        raise Forbidden("another site's page may not ask this node for changes", field="sec-fetch-site")
    if PAGE_HEADER not in headers and "authorization" not in headers:
        raise Forbidden(
            f"a request for a change that a page makes needs the header {PAGE_HEADER}: 1, or a token", field=PAGE_HEADER
        )


def _is_allowed(origin: str, allowed: frozenset[str]) -> bool:
    return "*" in allowed or origin.lower() in allowed


def _is_own(origin: str, host: str) -> bool:
    _, separator, authority = origin.partition("://")
    return bool(separator) and authority.lower() == host.lower()


def cors(headers: Mapping[str, str], allowed: frozenset[str]) -> dict[str, str]:
    """The CORS headers of an answer; none unless the request comes from an origin that the node was told to allow."""
    origin = headers.get("origin")
    if origin is None or not _is_allowed(origin, allowed):
        return {}
    return {"access-control-allow-origin": origin, "access-control-expose-headers": _EXPOSED_HEADERS, "vary": "origin"}


def preflight(headers: Mapping[str, str], allowed: frozenset[str], methods: str) -> dict[str, str]:
    """The headers of the answer to OPTIONS."""
    found = {"allow": methods, **cors(headers, allowed)}
    if "access-control-allow-origin" in found:
        found["access-control-allow-methods"] = methods
        found["access-control-allow-headers"] = _ALLOWED_HEADERS
        found["access-control-max-age"] = "600"
    return found
