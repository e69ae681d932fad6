"""Requests and replies about tokens, in both languages: bounds are checked here, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from walrq import api
from walrq.api import Grant, Right
from walrq.errors import InvalidArgument
from walrq.limits import (
    QUEUE_NAME_BYTES_MAX,
    TIME_MS_MAX,
    TOKEN_GRANTS_MAX,
    TOKEN_LIMIT_MAX,
    TOKEN_NAME_BYTES_MAX,
    TOKENS_MAX,
)
from walrq.protocol import fields
from walrq.protocol.json_values import Field, integer, listed, read_object, word

DIGEST_BYTES: Final = 32
# Who is named so in logs is no token.
RESERVED: Final = frozenset({"default", "admin", "anyone", "node", "nobody"})


def token_name(value: object, field: str = "name") -> str:
    """The name of a token.

    Raises:
        InvalidArgument: empty, too long, with what clients put between user and password, or kept for others.
    """
    name = fields.text(value, field, TOKEN_NAME_BYTES_MAX)
    if not name or not name.isprintable() or set(name) & set(" :@/,"):
        raise InvalidArgument(
            f"{field} is {name[:80]!r}, it must have 1 to {TOKEN_NAME_BYTES_MAX} printable bytes without space, comma,"
            " colon, slash and @",
            field=field,
            limit=TOKEN_NAME_BYTES_MAX,
        )
    if name in RESERVED:
        raise InvalidArgument(f"{field} is {name!r}, which is the name of others than tokens", field=field)
    return name


def pattern(value: object, field: str) -> str:
    """The name of a queue, or one with a single `*`."""
    found = fields.text(value, field, QUEUE_NAME_BYTES_MAX)
    if found.count("*") > 1:
        raise InvalidArgument(f"{field} is {found[:80]!r}, it may have one * and not more", field=field)
    return fields.queue_name(found, field)


def _digest(value: object, field: str = "digest") -> bytes:
    found = fields.octets(value, field)
    if len(found) != DIGEST_BYTES:
        raise InvalidArgument(f"{field} has {len(found)} bytes, SHA-256 makes {DIGEST_BYTES} of a secret", field=field)
    return found


def _grant(value: object) -> Grant:
    right, queues = fields.tuple_of(value, "grants", 2)
    return Grant(Right(fields.uint(right, "grants", int(Right.ADMIN), int(Right.READ))), pattern(queues, "grants"))


def _grants(value: object) -> tuple[Grant, ...]:
    return tuple([_grant(each) for each in fields.array(value, "grants", TOKEN_GRANTS_MAX, 1)])


def _flat(grants: Sequence[Grant]) -> list[tuple[int, str]]:
    return [(int(grant.right), grant.queues) for grant in grants]


def _limit(value: object, field: str) -> int | None:
    return fields.optional_uint(value, field, TOKEN_LIMIT_MAX, 1)


# --- CBOR ---------------------------------------------------------------------------------------------------
def read_set_token(item: Sequence[Any]) -> api.SetToken:
    return api.SetToken(
        token_name(item[4]),
        _digest(item[5]),
        _grants(item[6]),
        _limit(item[7], "requests_per_s"),
        _limit(item[8], "bytes_per_s"),
        _limit(item[9], "in_flight"),
    )


def write_set_token(request: api.SetToken) -> tuple[Any, ...]:
    return (
        request.name,
        request.digest,
        _flat(request.grants),
        request.requests_per_s,
        request.bytes_per_s,
        request.in_flight,
    )


def read_revoke_token(item: Sequence[Any]) -> api.RevokeToken:
    return api.RevokeToken(token_name(item[4]))


def write_revoke_token(request: api.RevokeToken) -> tuple[Any, ...]:
    return (request.name,)


def flat_tokens(reply: api.TokenList) -> list[Any]:
    """The tokens of a reply as plain values."""
    return [
        (each.name, _flat(each.grants), each.requests_per_s, each.bytes_per_s, each.in_flight, each.set_ms)
        for each in reply.tokens
    ]


def read_tokens(value: object) -> api.TokenList:
    """What `flat_tokens` gave."""
    return api.TokenList(tuple([_info(each) for each in fields.array(value, "tokens", TOKENS_MAX)]))


def _info(value: object) -> api.TokenInfo:
    name, grants, requests, size, in_flight, set_ms = fields.tuple_of(value, "tokens", 6)
    return api.TokenInfo(
        token_name(name),
        _grants(grants),
        _limit(requests, "requests_per_s"),
        _limit(size, "bytes_per_s"),
        _limit(in_flight, "in_flight"),
        fields.uint(set_ms, "set_ms", TIME_MS_MAX),
    )


# --- JSON ---------------------------------------------------------------------------------------------------
NAME: Final = Field(
    "name", token_name, {"type": "string", "minLength": 1, "maxLength": TOKEN_NAME_BYTES_MAX}, about="of the token"
)


def _json_digest(value: object, field: str) -> bytes:
    found = fields.text(value, field, 2 * DIGEST_BYTES)
    try:
        return _digest(bytes.fromhex(found), field)
    except ValueError:
        raise InvalidArgument(f"{field} is no text of {2 * DIGEST_BYTES} hexadecimal digits", field=field) from None


_RIGHT: Final = word("right", {right.name.lower(): right for right in Right}, about="each includes those before it")
_QUEUES: Final = Field(
    "queues",
    pattern,
    {"type": "string", "minLength": 1, "maxLength": QUEUE_NAME_BYTES_MAX},
    about="the name of a queue, or one with a single *",
)


def _json_grant(value: object, field: str) -> Grant:
    return Grant(**read_object(value, "a grant", (_RIGHT, _QUEUES), f"{field}."))


_GRANT: Final = Field(
    "grants",
    _json_grant,
    {
        "type": "object",
        "properties": {"right": dict(_RIGHT.schema), "queues": dict(_QUEUES.schema)},
        "required": ["right", "queues"],
        "additionalProperties": False,
    },
)
SET_FIELDS: Final = (
    NAME,
    Field(
        "digest",
        _json_digest,
        {"type": "string", "pattern": f"^[0-9a-fA-F]{{{2 * DIGEST_BYTES}}}$"},
        about="SHA-256 of the secret, hexadecimal",
    ),
    listed(_GRANT, TOKEN_GRANTS_MAX, 1, about="what it may do"),
    integer("requests_per_s", TOKEN_LIMIT_MAX, 1, None, "null = no bound"),
    integer("bytes_per_s", TOKEN_LIMIT_MAX, 1, None, "of requests; null = no bound"),
    integer("in_flight", TOKEN_LIMIT_MAX, 1, None, "requests without an answer; null = no bound"),
)


def _json_grants(grants: Sequence[Grant]) -> list[dict[str, str]]:
    return [{"right": grant.right.name.lower(), "queues": grant.queues} for grant in grants]


def set_token_to_json(request: api.SetToken) -> dict[str, Any]:
    return {
        "name": request.name,
        "digest": request.digest.hex(),
        "grants": _json_grants(request.grants),
        "requests_per_s": request.requests_per_s,
        "bytes_per_s": request.bytes_per_s,
        "in_flight": request.in_flight,
    }


def tokens_to_json(reply: api.TokenList) -> dict[str, Any]:
    return {
        "tokens": [
            {
                "name": each.name,
                "grants": _json_grants(each.grants),
                "requests_per_s": each.requests_per_s,
                "bytes_per_s": each.bytes_per_s,
                "in_flight": each.in_flight,
                "set_ms": each.set_ms,
            }
            for each in reply.tokens
        ]
    }
