"""The files of walrq/web/ as a browser gets them: what they are, and what they may do.

A page loads nothing from elsewhere, runs no script that is not a file of this folder, is shown in nobody's frame and
tells nobody where its reader came from. It has no inline script and no inline style, so the policy needs no exception.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import resources
from typing import Final

import attrs

from walrq.http.replies import Response

_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
PAGE_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_MEDIA: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "ts": "text/plain; charset=utf-8",
}
# Addresses of pages, and of the client for other people's pages; every file is at /web/NAME as well.
_PAGES: Final = {
    "/": "dashboard.html",
    "/dashboard": "dashboard.html",
    "/docs": "api.html",
    "/walrq.js": "walrq.js",
    "/walrq.d.ts": "walrq.d.ts",
}


@attrs.frozen
class Page:
    """One file.

    Attributes:
        tag: names its contents, so that a browser need not load them again.
    """

    body: bytes
    media: str
    tag: str

    def response(self, known: str | None) -> Response:
        """It, or word that the browser has it already (`known` is the If-None-Match of the request)."""
        # Kept by the browser, and asked for again each time: an upgraded node's page never runs an old script.
        headers = {**PAGE_HEADERS, "etag": self.tag, "cache-control": "no-cache"}
        if known is not None and self.tag in (each.strip() for each in known.split(",")):
            return Response(304, b"", self.media, headers)
        return Response(200, self.body, self.media, headers)


def load() -> dict[str, Page]:
    """Every address of a page or file, and what is there. Blocking."""
    folder = resources.files("walrq").joinpath("web")
    files = {}
    for each in folder.iterdir():
        media = _MEDIA.get(each.name.rpartition(".")[2])
        if media is not None:
            body = each.read_bytes()
            files[each.name] = Page(body, media, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    found = {f"/web/{name}": page for name, page in files.items()}
    found.update({path: files[name] for path, name in _PAGES.items() if name in files})
    if "icon.svg" in files:
        found["/favicon.ico"] = files["icon.svg"]
    return found
