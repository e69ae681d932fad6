"""Responses as values, and every error as one: status by THE table of errors.py, body in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from walrq import api
from walrq.errors import ERRORS, Code, WalrqError
from walrq.protocol.json_replies import reply_to_json
from walrq.protocol.json_text import write_json

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
# Sent with everything. Answers are about live data: nobody in between keeps them.
COMMON: Final[Mapping[str, str]] = {"x-content-type-options": "nosniff", "cache-control": "no-store"}


@attrs.frozen
class Response:
    """One whole response.

    Attributes:
        status: of HTTP.
        body: its bytes.
        media: its content type.
        headers: others than content-type and content-length, names in lower case.
    """

    status: int
    body: bytes = b""
    media: str = JSON
    headers: Mapping[str, str] = attrs.field(factory=dict)


def of_json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value as JSON."""
    return Response(status, write_json(value).encode(), JSON, headers or {})


def of_reply(reply: api.Reply, consistency: str) -> Response:
    """The reply to an operation; `consistency` says of a read whether it saw everything acknowledged before it."""
    return of_json(reply_to_json(reply), headers={"walrq-consistency": consistency})


def of_error(error: WalrqError, request_id: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error: its row of the table, its text, and `field` and `limit` where it names them."""
    body = reply_to_json(api.Failed(int(error.code), error.text, dict(error.details)))
    for name in ("field", "limit"):
        if error.details.get(name) is not None:
            body[name] = error.details[name]
    return of_json(body | {"request_id": request_id}, ERRORS[error.code].http, {**advice(error), **(headers or {})})


def advice(error: WalrqError) -> dict[str, str]:
    """Headers that tell a client what to do about an error."""
    found = {}
    after_ms = error.details.get("retry_after_ms")
    if isinstance(after_ms, int):
        found["retry-after"] = str(-(-after_ms // 1000))
    if error.code is Code.UNAUTHENTICATED:
        found["www-authenticate"] = 'Bearer realm="walrq"'
    return found


def plain(status: int, code: Code, text: str, request_id: str, **more: Any) -> Response:
    """A refusal of HTTP's own (no such path, another method), in the form of every other error."""
    row = ERRORS[code]
    headers = more.pop("headers", {})
    body: dict[str, Any] = {
        "reply": "failed",
        "code": int(code),
        "name": code.name,
        "text": text,
        "definite": row.definite,
        "retry": row.retry,
        "details": more,
        **{name: more[name] for name in ("field", "limit") if name in more},
        "request_id": request_id,
    }
    return of_json(body, status, headers)
