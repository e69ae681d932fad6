"""Replies as JSON: the table between names and `api` classes.

A reply is one object whose `reply` says what it is: `{"reply": "pushed", "ids": ["01J..."], "duplicates": []}`. JSON
readers think in messages, so runs come apart here: each message has its own id and `receipt_handle`. A payload is
`payload` (text) where it is UTF-8 without control characters, else `payload_base64`. An error is
`{"reply": "failed", "code": 8, "name": "QUEUE_NOT_FOUND", "text": ..., "definite": ..., "retry": ..., "details": {}}`,
by the table of errors.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from walrq import api
from walrq.errors import ERRORS, Code, InvalidArgument, RemoteProtocolError
from walrq.ids import format_id, make_handle
from walrq.protocol import fields
from walrq.protocol.codec import Decoder
from walrq.protocol.json_text import plain_to_json, put_bytes, put_headers, to_base64
from walrq.protocol.json_values import id_texts
from walrq.protocol.tokens import tokens_to_json

REPLY: Final = "reply"


def _plain(reply: Any) -> dict[str, Any]:
    """The fields as they are: for classes that hold nothing but text, numbers and truth values."""
    return attrs.asdict(reply, recurse=False)


def _pushed(reply: api.Pushed) -> dict[str, Any]:
    ids = reply.ids if reply.ids is not None else range(reply.first_id, reply.first_id + reply.count)
    return {"ids": id_texts(ids), "duplicates": [*reply.duplicates]}


def _slices(column: bytes, ends: bytes, base: int, count: int, field: str) -> list[bytes]:
    """The stretches of a column whose offsets count from `base`."""
    numbers = fields.rising(ends, base, len(column), field)
    if len(numbers) != count:
        raise InvalidArgument(f"{field} has {len(numbers)} offsets for {count} messages", field=field)
    return [column[first - base : last - base] for first, last in zip((base, *numbers), numbers, strict=False)]


def _delivered(run: api.Delivered, decoder: Decoder) -> list[dict[str, Any]]:
    count = run.count
    nothing: list[bytes | None] = [None] * count
    payloads: Sequence[bytes | None] = nothing if run.lost else _slices(run.payloads, run.ends, run.base, count, "ends")
    headers: Sequence[bytes | None] = nothing
    if run.headers is not None and run.header_ends is not None:
        headers = _slices(run.headers, run.header_ends, run.header_base, count, "header_ends")
    messages = []
    for offset in range(count):
        message: dict[str, Any] = {
            "queue": run.queue,
            "id": format_id(run.first_id + offset),
            "receipt_handle": make_handle(run.receipt, offset),
        }
        put_bytes(message, "payload", payloads[offset])
        put_headers(message, headers[offset], decoder)
        message["group"] = run.group
        message["priority"] = run.priority
        message["delivery"] = run.delivery
        message["attempts"] = run.attempts
        message["pushed_ms"] = run.pushed_ms
        message["fence"] = [*run.fence]
        message["lost"] = run.lost
        messages.append(message)
    return messages


def _polled(reply: api.Polled) -> dict[str, Any]:
    decoder = Decoder()
    return {
        "parked_ms": reply.parked_ms,
        "visibility_ms": reply.visibility_ms,
        "messages": [message for run in reply.runs for message in _delivered(run, decoder)],
        # The first 40 characters of the handles that a retried poll no longer holds.
        "ended": [receipt.hex() for receipt in reply.ended],
    }


def _name(code: int) -> str | None:
    """The word for a code of errors.py; None for 0 and for codes of a newer version."""
    return Code(code).name if code in ERRORS else None


def _settled(reply: api.Settled) -> dict[str, Any]:
    return {"codes": [*reply.codes], "names": [_name(code) for code in reply.codes]}


def _touched(reply: api.Touched) -> dict[str, Any]:
    return {
        "codes": [*reply.codes],
        "names": [_name(code) for code in reply.codes],
        "remaining_ms": [*reply.remaining_ms],
    }


def _outcomes(reply: api.Outcomes) -> dict[str, Any]:
    return {"outcomes": [outcome.name.lower() for outcome in reply.outcomes]}


def _peeked(seen: api.Peeked, decoder: Decoder) -> dict[str, Any]:
    message: dict[str, Any] = {"id": format_id(seen.id), "state": seen.state.name.lower()}
    put_bytes(message, "payload", seen.payload)
    put_headers(message, seen.headers, decoder)
    for name in ("sequence", "priority", "delivery", "attempts", "pushed_ms", "due_ms", "group"):
        message[name] = getattr(seen, name)
    for name in ("deadline_in_ms", "reason", "origin", "died_ms"):
        message[name] = getattr(seen, name)
    message["history"] = [_plain(attempt) for attempt in seen.history]
    return message


def _page(reply: api.Page) -> dict[str, Any]:
    decoder = Decoder()
    return {"messages": [_peeked(seen, decoder) for seen in reply.messages], "next": reply.next}


def _queue(reply: api.QueueInfo) -> dict[str, Any]:
    return _plain(reply) | {"settings": plain_to_json(reply.settings)}


def _queues(reply: api.QueueList) -> dict[str, Any]:
    return {"queues": [_queue(each) for each in reply.queues], "next": reply.next}


def _stats(reply: api.StatsReply) -> dict[str, Any]:
    return {"values": plain_to_json(reply.values)}


def _backup(reply: api.BackupBegun) -> dict[str, Any]:
    return {
        "backup": reply.backup,
        "facts": plain_to_json(reply.facts),
        "parts": [{"name": name, "bytes": size} for name, size in reply.parts],
    }


def _chunk(reply: api.BackupChunk) -> dict[str, Any]:
    return {"data_base64": to_base64(reply.data)}


def _cluster(reply: api.ClusterState) -> dict[str, Any]:
    return _plain(reply) | {"members": [_plain(member) for member in reply.members]}


def _failed(reply: api.Failed) -> dict[str, Any]:
    row = ERRORS.get(Code(reply.code)) if reply.code in ERRORS else None
    return {
        "code": int(reply.code),
        "name": _name(reply.code),
        "text": reply.text,
        # When unsure, indefinite.
        "definite": row.definite if row is not None else False,
        "retry": row.retry if row is not None else False,
        "details": plain_to_json(reply.details),
    }


# THE table: name, class, how it is written.
REPLIES: Final[tuple[tuple[str, type[Any], Callable[[Any], dict[str, Any]]], ...]] = (
    ("failed", api.Failed, _failed),
    ("pushed", api.Pushed, _pushed),
    ("polled", api.Polled, _polled),
    ("settled", api.Settled, _settled),
    ("touched", api.Touched, _touched),
    ("outcomes", api.Outcomes, _outcomes),
    ("page", api.Page, _page),
    ("queue", api.QueueInfo, _queue),
    ("queues", api.QueueList, _queues),
    ("done", api.Done, _plain),
    ("moved", api.Moved, _plain),
    ("session", api.SessionOpened, _plain),
    ("pong", api.Pong, _plain),
    ("stats", api.StatsReply, _stats),
    ("backup", api.BackupBegun, _backup),
    ("chunk", api.BackupChunk, _chunk),
    ("cluster", api.ClusterState, _cluster),
    ("tokens", api.TokenList, tokens_to_json),
)
_BY_CLASS: Final[Mapping[type[Any], tuple[str, Callable[[Any], dict[str, Any]]]]] = {
    cls: (name, write) for name, cls, write in REPLIES
}


def reply_to_json(reply: api.Reply) -> dict[str, Any]:
    """The object of a reply, for `json_text.write_json`; every reply of the api has one.

    Raises:
        RemoteProtocolError: a run whose offsets do not fit its column, which no node of ours answers.
    """
    name, write = _BY_CLASS[type(reply)]
    try:
        return {REPLY: name, **write(reply)}
    except InvalidArgument as error:
        raise RemoteProtocolError(f"in {name}: {error.text}", **error.details) from None
