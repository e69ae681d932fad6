"""Replies: the table between reply numbers and `api` classes, and both directions of each.

A reply is `[kind, id, ...fields]`, an error `[0, id, code, text, details]`; id 0 concerns the connection
itself. The reader runs in clients, which trust a server no further than its bytes go: whatever does not fit
the table is a `RemoteProtocolError`. Codes and states that a newer server may add are not among what is
refused, error codes above
all: `errors.from_code` says what an unknown one means.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from cbor2 import CBORError

from walrq import api
from walrq.errors import InvalidArgument, LocalProtocolError, RemoteProtocolError, RequestError
from walrq.ids import RECEIPT_BYTES
from walrq.limits import (
    ATTEMPTS_KEPT_MAX,
    BACKUP_PARTS_MAX,
    BATCH_MESSAGES_MAX,
    ERROR_TEXT_BYTES_MAX,
    ERROR_TYPE_BYTES_MAX,
    FRAME_BYTES_MAX,
    LIST_QUEUES_MAX,
    PEEK_MESSAGES_MAX,
    POLL_MESSAGES_MAX,
    PRIORITY_MAX,
    QUEUE_NAME_BYTES_MAX,
    SETTLE_ITEMS_MAX,
    TIME_MS_MAX,
    WORKER_NAME_BYTES_MAX,
)
from walrq.protocol import fields
from walrq.protocol.codec import UINT32_LE_TAG, Decoder, check_plain, encode, packed
from walrq.protocol.fields import UINT64_MAX
from walrq.protocol.tokens import flat_tokens, read_tokens

Item: TypeAlias = Sequence[Any]
Reply: TypeAlias = api.Reply

FAILED: Final = 0
GOAWAY: Final = 255
ENVELOPE: Final = 2

_UINT32_MAX: Final = (1 << 32) - 1
_REASON_BYTES_MAX: Final = 64
_WORD_BYTES_MAX: Final = 64
_ADDRESS_BYTES_MAX: Final = 255
# Members of a cluster in one answer: more than today's largest group, which a newer node may have made larger.
MEMBERS_TOLD_MAX: Final = 256
# A path within a data directory.
_PART_NAME_BYTES_MAX: Final = 255
# The longest sentence of an error; longer ones are cut by the writer.
_TEXT_BYTES_MAX: Final = 16 * 1024
_LEASES_MAX: Final = 2 * POLL_MESSAGES_MAX


# --- pushed, polled, settled, touched: hot ------------------------------------------------------------------
# Pushed without dedup hits, spelled out because it answers every push: array(6), kind 1, id as uint32, first
# id, count as uint32, null, array(0).
_PUSHED: Final = struct.Struct(">BBBIBQQBIBB")


def _write_pushed(identifier: int, reply: api.Pushed) -> bytes:
    if reply.number:
        return _write_counted(identifier, reply)
    if reply.ids is None and not reply.duplicates and identifier <= _UINT32_MAX:
        first = reply.first_id
        return _PUSHED.pack(
            0x86, 1, 0x1A, identifier, 0x50, first >> 64, first & UINT64_MAX, 0x1A, reply.count, 0xF6, 0x80
        )
    ids = None if reply.ids is None else [fields.id_bytes(each) for each in reply.ids]
    return encode((1, identifier, fields.id_bytes(reply.first_id), reply.count, ids, reply.duplicates))


def _read_pushed(item: Item) -> api.Pushed:
    _, _, first, count, ids, duplicates = item
    fields.uint(count, "count", BATCH_MESSAGES_MAX)
    return api.Pushed(
        fields.message_id(first),
        count,
        None if ids is None else fields.message_ids(ids, "ids", count, count),
        _uints(duplicates, "duplicates", count, BATCH_MESSAGES_MAX),
    )


def _write_counted(identifier: int, reply: api.Pushed) -> bytes:
    ids = None if reply.ids is None else [fields.id_bytes(each) for each in reply.ids]
    first = fields.id_bytes(reply.first_id)
    return encode((17, identifier, first, reply.count, ids, reply.duplicates, reply.number))


def _read_counted(item: Item) -> api.Pushed:
    pushed = _read_pushed(item[:6])
    number = fields.uint(item[6], "number", UINT64_MAX)
    return api.Pushed(pushed.first_id, pushed.count, pushed.ids, pushed.duplicates, number)


def _uints(value: object, field: str, items_max: int, most: int) -> tuple[int, ...]:
    return tuple([fields.uint(each, field, most) for each in fields.array(value, field, items_max)])


# Polled with one run without group and headers, spelled out because it answers nearly every poll. In front of
# the queue's name: array(6), kind 2, id, parked and visibility as uint32, array(1), array(18). Behind it:
# receipt, count as uint32, first id, delivery and attempts as uint32, fence as uint64 and uint32, priority as
# uint8, pushed as uint64, null, base as uint32. At the end: header base 0, null, null, false, array(0).
_POLLED: Final = struct.Struct(">BBBIBIBIBBBB")
_RUN: Final = struct.Struct(f">B{RECEIPT_BYTES}sBIBQQBIBIBQBIBBBQBBI")
_RUN_END: Final = bytes((0, 0xF6, 0xF6, 0xF4, 0x80))
# A byte string with its length as uint32; the same behind tag 70.
_OCTETS: Final = struct.Struct(">BI")
_TYPED: Final = struct.Struct(">BBBI")


def _write_polled(identifier: int, reply: api.Polled) -> bytes:
    if len(reply.runs) == 1 and not reply.ended:
        run = reply.runs[0]
        if (
            run.group is None
            and run.headers is None
            and run.header_ends is None
            and not run.header_base
            and not run.lost
            and len(run.receipt) == RECEIPT_BYTES
        ):
            try:
                return _pack_polled(identifier, reply, run)
            except struct.error:
                pass  # a number beyond the width it mostly has
    return encode((2, identifier, reply.parked_ms, reply.visibility_ms, [*map(_flat_run, reply.runs)], reply.ended))


def _pack_polled(identifier: int, reply: api.Polled, run: api.Delivered) -> bytes:
    """
    Raises:
        struct.error: a number does not fit the width it has here.
    """
    name = run.queue.encode()
    ends = run.ends
    payloads = run.payloads
    first = run.first_id
    index, ordinal = run.fence
    return b"".join(
        (
            _POLLED.pack(
                0x86,
                2,
                0x1A,
                identifier,
                0x1A,
                reply.parked_ms,
                0x1A,
                reply.visibility_ms,
                0x81,
                0x80 + _RUN_FIELDS,
                0x78,
                len(name),
            ),
            name,
            _RUN.pack(
                0x40 + RECEIPT_BYTES,
                run.receipt,
                0x1A,
                run.count,
                0x50,
                first >> 64,
                first & UINT64_MAX,
                0x1A,
                run.delivery,
                0x1A,
                run.attempts,
                0x1B,
                index,
                0x1A,
                ordinal,
                0x18,
                run.priority,
                0x1B,
                run.pushed_ms,
                0xF6,
                0x1A,
                run.base,
            ),
            b"\xf6" if len(ends) == 4 else _TYPED.pack(0xD8, UINT32_LE_TAG, 0x5A, len(ends)) + ends,
            _OCTETS.pack(0x5A, len(payloads)),
            payloads,
            _RUN_END,
        )
    )


def _flat_run(run: api.Delivered) -> tuple[Any, ...]:
    return (
        run.queue,
        run.receipt,
        run.count,
        fields.id_bytes(run.first_id),
        run.delivery,
        run.attempts,
        run.fence[0],
        run.fence[1],
        run.priority,
        run.pushed_ms,
        run.group,
        run.base,
        packed(run.ends),
        run.payloads,
        run.header_base,
        packed(run.header_ends),
        run.headers,
        run.lost,
    )


_RUN_FIELDS: Final = 18


def _run(value: object) -> api.Delivered:
    (
        queue,
        receipt,
        count,
        first,
        delivery,
        attempts,
        fence_index,
        fence_ordinal,
        priority,
        pushed,
        group,
        base,
        ends,
        payloads,
        header_base,
        header_ends,
        headers,
        lost,
    ) = fields.tuple_of(value, "run", _RUN_FIELDS)
    if (
        type(queue) is str
        and 0 < len(queue) <= QUEUE_NAME_BYTES_MAX
        and type(receipt) is bytes
        and len(receipt) == RECEIPT_BYTES
        and type(count) is int
        and type(first) is bytes
        and len(first) == fields.ID_BYTES
        and type(delivery) is int
        and type(attempts) is int
        and type(fence_index) is int
        and type(fence_ordinal) is int
        and type(priority) is int
        and type(pushed) is int
        and type(base) is int
        and type(payloads) is bytes
        and type(header_base) is int
        and 0 < count <= BATCH_MESSAGES_MAX
        and delivery >= 0 <= attempts
        and fence_index >= 0 <= fence_ordinal
        and 0 <= priority <= PRIORITY_MAX
        and 0 <= pushed <= TIME_MS_MAX
        and base >= 0 <= header_base
        and base + len(payloads) <= _UINT32_MAX
        and type(lost) is bool
    ):
        if group is not None:
            fields.optional_key(group, "group")
        if ends is None and count == 1 and not lost:
            packed_ends = (base + len(payloads)).to_bytes(4, "little")
        else:
            packed_ends = _run_ends(ends, base, payloads, count, lost)
        packed_header_ends = None
        if headers is not None or header_ends is not None:
            packed_header_ends = _run_header_ends(header_ends, header_base, headers, count)
        return api.Delivered(
            queue,
            receipt,
            count,
            int.from_bytes(first, "big"),
            delivery,
            attempts,
            (fence_index, fence_ordinal),
            priority,
            pushed,
            group,
            base,
            packed_ends,
            payloads,
            header_base,
            packed_header_ends,
            headers,
            lost,
        )
    raise InvalidArgument(f"a run of queue {str(queue)[:300]!r} has a field of a wrong type or out of range")


def _run_ends(value: object, base: int, payloads: bytes, count: int, lost: bool) -> bytes:
    if lost and value is None:
        raise InvalidArgument("ends of a lost run is an empty typed array", field="ends")
    ends = fields.offsets(value, "ends", base + len(payloads))
    if lost:
        if ends or payloads:
            raise InvalidArgument("a lost run has no payloads", field="payloads")
    elif len(ends) != 4 * count:
        raise InvalidArgument(f"ends has {len(ends) >> 2} offsets for {count} messages", field="ends")
    else:
        fields.rising(ends, base, len(payloads), "ends")
    return ends


def _run_header_ends(value: object, base: int, headers: object, count: int) -> bytes:
    size = len(fields.octets(headers, "headers"))
    if base + size > _UINT32_MAX:
        raise InvalidArgument("headers reach beyond 32 bits", field="headers")
    ends = fields.offsets(value, "header_ends", base + size)
    if len(ends) != 4 * count:
        raise InvalidArgument(f"header_ends has {len(ends) >> 2} offsets for {count} messages", field="header_ends")
    fields.rising(ends, base, size, "header_ends")
    return ends


def _read_polled(item: Item) -> api.Polled:
    _, _, parked, visibility, runs, ended = item
    return api.Polled(
        fields.uint(parked, "parked_ms", TIME_MS_MAX),
        fields.uint(visibility, "visibility_ms", TIME_MS_MAX),
        tuple([_run(run) for run in fields.array(runs, "runs", _LEASES_MAX)]),
        tuple([fields.receipt(receipt, "ended") for receipt in fields.array(ended, "ended", _LEASES_MAX)]),
    )


# One receipt settled in full, spelled out likewise: array(3), kind 3, id as uint32, array(1), 0.
_SETTLED: Final = struct.Struct(">BBBIBB")
_ALL_WELL: Final = (0,)


def _write_settled(identifier: int, reply: api.Settled) -> bytes:
    if reply.codes == _ALL_WELL and identifier <= _UINT32_MAX:
        return _SETTLED.pack(0x83, 3, 0x1A, identifier, 0x81, 0)
    return encode((3, identifier, reply.codes))


def _read_settled(item: Item) -> api.Settled:
    return api.Settled(_uints(item[2], "codes", SETTLE_ITEMS_MAX, _UINT32_MAX))


def _write_touched(identifier: int, reply: api.Touched) -> bytes:
    return encode((4, identifier, reply.codes, reply.remaining_ms))


def _read_touched(item: Item) -> api.Touched:
    codes = _uints(item[2], "codes", SETTLE_ITEMS_MAX, _UINT32_MAX)
    remaining = _uints(item[3], "remaining_ms", SETTLE_ITEMS_MAX, TIME_MS_MAX)
    if len(codes) != len(remaining):
        raise InvalidArgument("codes and remaining_ms differ in length", field="remaining_ms")
    return api.Touched(codes, remaining)


# --- the rest -----------------------------------------------------------------------------------------------
_OUTCOMES: Final = tuple(api.Outcome)


def _write_outcomes(identifier: int, reply: api.Outcomes) -> bytes:
    return encode((5, identifier, [int(outcome) for outcome in reply.outcomes]))


def _read_outcomes(item: Item) -> api.Outcomes:
    numbers = _uints(item[2], "outcomes", BATCH_MESSAGES_MAX, len(_OUTCOMES) - 1)
    return api.Outcomes(tuple([_OUTCOMES[number] for number in numbers]))


def _write_page(identifier: int, reply: api.Page) -> bytes:
    return encode((6, identifier, [*map(_flat_peeked, reply.messages)], reply.next))


def _flat_peeked(seen: api.Peeked) -> tuple[Any, ...]:
    return (
        fields.id_bytes(seen.id),
        int(seen.state),
        seen.sequence,
        seen.priority,
        seen.delivery,
        seen.attempts,
        seen.pushed_ms,
        seen.due_ms,
        seen.group,
        seen.payload,
        seen.headers,
        seen.deadline_in_ms,
        seen.reason,
        seen.origin,
        seen.died_ms,
        [(a.at_ms, a.reason, a.worker, a.error_type, a.error_text) for a in seen.history],
    )


_PEEKED_FIELDS: Final = 16
_STATES: Final = tuple(api.State)


def _peeked(value: object) -> api.Peeked:
    item = fields.tuple_of(value, "message", _PEEKED_FIELDS)
    return api.Peeked(
        id=fields.message_id(item[0]),
        state=_STATES[fields.uint(item[1], "state", len(_STATES) - 1)],
        sequence=fields.uint(item[2], "sequence", UINT64_MAX),
        priority=fields.uint(item[3], "priority", PRIORITY_MAX),
        delivery=fields.uint(item[4], "delivery", UINT64_MAX),
        attempts=fields.uint(item[5], "attempts", UINT64_MAX),
        pushed_ms=fields.uint(item[6], "pushed_ms", TIME_MS_MAX),
        due_ms=fields.uint(item[7], "due_ms", TIME_MS_MAX),
        group=fields.optional_key(item[8], "group"),
        payload=None if item[9] is None else fields.octets(item[9], "payload"),
        headers=None if item[10] is None else fields.octets(item[10], "headers"),
        deadline_in_ms=fields.uint(item[11], "deadline_in_ms", TIME_MS_MAX),
        reason=fields.optional_text(item[12], "reason", _REASON_BYTES_MAX),
        origin=None if item[13] is None else fields.queue_name(item[13], "origin"),
        died_ms=fields.uint(item[14], "died_ms", TIME_MS_MAX),
        history=tuple([_attempt(each) for each in fields.array(item[15], "history", ATTEMPTS_KEPT_MAX)]),
    )


def _attempt(value: object) -> api.Attempt:
    at, reason, worker, error_type, error_text = fields.tuple_of(value, "attempt", 5)
    return api.Attempt(
        fields.uint(at, "at_ms", TIME_MS_MAX),
        fields.text(reason, "reason", _REASON_BYTES_MAX),
        fields.optional_text(worker, "worker", WORKER_NAME_BYTES_MAX),
        fields.optional_text(error_type, "error_type", ERROR_TYPE_BYTES_MAX),
        fields.optional_text(error_text, "error_text", ERROR_TEXT_BYTES_MAX),
    )


def _read_page(item: Item) -> api.Page:
    messages = fields.array(item[2], "messages", PEEK_MESSAGES_MAX)
    return api.Page(tuple([_peeked(each) for each in messages]), fields.uint(item[3], "next", UINT64_MAX))


def _flat_queue(info: api.QueueInfo) -> tuple[Any, ...]:
    return (
        info.name,
        info.uid,
        info.ready,
        info.delayed,
        info.leased,
        info.parked,
        info.dead,
        info.bytes,
        info.oldest_ms,
        info.pushed,
        info.delivered,
        info.acked,
        dict(info.settings),
    )


_QUEUE_COUNTS: Final = (
    "uid",
    "ready",
    "delayed",
    "leased",
    "parked",
    "dead",
    "bytes",
    "oldest_ms",
    "pushed",
    "delivered",
    "acked",
)
_QUEUE_FIELDS: Final = len(_QUEUE_COUNTS) + 2


def _queue(item: Item) -> api.QueueInfo:
    settings = _map(item[12], "settings")
    counts = [fields.uint(value, field, UINT64_MAX) for field, value in zip(_QUEUE_COUNTS, item[1:12], strict=True)]
    uid, ready, delayed, leased, parked, dead, size, oldest, pushed, delivered, acked = counts
    return api.QueueInfo(
        fields.queue_name(item[0], "name"),
        uid,
        ready,
        delayed,
        leased,
        parked,
        dead,
        size,
        oldest,
        pushed,
        delivered,
        acked,
        settings,
    )


def _map(value: object, field: str) -> dict[str, Any]:
    if type(value) is not dict:
        fields.refuse(field, value, "a map")
    check_plain(value, field)
    return value


def _write_queue_info(identifier: int, reply: api.QueueInfo) -> bytes:
    return encode((7, identifier, *_flat_queue(reply)))


def _read_queue_info(item: Item) -> api.QueueInfo:
    return _queue(item[2:])


def _write_queue_list(identifier: int, reply: api.QueueList) -> bytes:
    return encode((8, identifier, [*map(_flat_queue, reply.queues)], reply.next))


def _read_queue_list(item: Item) -> api.QueueList:
    queues = fields.array(item[2], "queues", LIST_QUEUES_MAX)
    return api.QueueList(
        tuple([_queue(fields.tuple_of(each, "queue", _QUEUE_FIELDS)) for each in queues]),
        fields.text(item[3], "next", QUEUE_NAME_BYTES_MAX),
    )


def _write_done(identifier: int, reply: api.Done) -> bytes:
    return encode((9, identifier, reply.count))


def _read_done(item: Item) -> api.Done:
    return api.Done(fields.uint(item[2], "count", UINT64_MAX))


def _write_moved(identifier: int, reply: api.Moved) -> bytes:
    return encode((10, identifier, reply.count, reply.more))


def _read_moved(item: Item) -> api.Moved:
    return api.Moved(fields.uint(item[2], "count", UINT64_MAX), fields.flag(item[3], "more"))


def _write_session_opened(identifier: int, reply: api.SessionOpened) -> bytes:
    return encode((11, identifier, reply.session))


def _read_session_opened(item: Item) -> api.SessionOpened:
    return api.SessionOpened(fields.uint(item[2], "session", UINT64_MAX))


def _write_pong(identifier: int, reply: api.Pong) -> bytes:
    return encode((12, identifier))


def _write_stats(identifier: int, reply: api.StatsReply) -> bytes:
    return encode((13, identifier, dict(reply.values)))


def _read_stats(item: Item) -> api.StatsReply:
    return api.StatsReply(_map(item[2], "values"))


def _write_backup_begun(identifier: int, reply: api.BackupBegun) -> bytes:
    return encode((14, identifier, reply.backup, dict(reply.facts), reply.parts))


def _read_backup_begun(item: Item) -> api.BackupBegun:
    parts = []
    for entry in fields.array(item[4], "parts", BACKUP_PARTS_MAX):
        name, size = fields.tuple_of(entry, "parts", 2)
        parts.append((fields.text(name, "parts.name", _PART_NAME_BYTES_MAX), fields.uint(size, "size", UINT64_MAX)))
    return api.BackupBegun(fields.uint(item[2], "backup", UINT64_MAX, 1), _map(item[3], "facts"), tuple(parts))


def _write_backup_chunk(identifier: int, reply: api.BackupChunk) -> bytes:
    return encode((15, identifier, reply.data))


def _read_backup_chunk(item: Item) -> api.BackupChunk:
    return api.BackupChunk(fields.octets(item[2], "data"))


def _flat_member(member: api.MemberState) -> tuple[Any, ...]:
    return (
        member.node,
        member.role,
        member.address,
        member.endpoint,
        member.status,
        member.match_index,
        member.heard_ms,
    )


def _member(value: object) -> api.MemberState:
    node, role, address, endpoint, status, match_index, heard_ms = fields.tuple_of(value, "members", 7)
    return api.MemberState(
        fields.node_name(node),
        fields.text(role, "role", _WORD_BYTES_MAX),
        fields.text(address, "address", _ADDRESS_BYTES_MAX),
        fields.optional_text(endpoint, "endpoint", _ADDRESS_BYTES_MAX),
        fields.text(status, "status", _ADDRESS_BYTES_MAX),
        fields.optional_uint(match_index, "match_index", UINT64_MAX),
        fields.optional_uint(heard_ms, "heard_ms", TIME_MS_MAX),
    )


def _write_cluster(identifier: int, reply: api.ClusterState) -> bytes:
    return encode(
        (
            16,
            identifier,
            reply.node,
            reply.cluster,
            reply.leader,
            reply.term,
            reply.commit_index,
            reply.applied_index,
            [*map(_flat_member, reply.members)],
        )
    )


def _read_cluster(item: Item) -> api.ClusterState:
    return api.ClusterState(
        fields.node_name(item[2]),
        fields.text(item[3], "cluster", _ADDRESS_BYTES_MAX),
        fields.optional_node_name(item[4], "leader"),
        fields.uint(item[5], "term", UINT64_MAX),
        fields.uint(item[6], "commit_index", UINT64_MAX),
        fields.uint(item[7], "applied_index", UINT64_MAX),
        tuple([_member(each) for each in fields.array(item[8], "members", MEMBERS_TOLD_MAX)]),
    )


def _write_tokens(identifier: int, reply: api.TokenList) -> bytes:
    return encode((18, identifier, flat_tokens(reply)))


def _write_failed(identifier: int, reply: api.Failed) -> bytes:
    text = reply.text if len(reply.text) <= _TEXT_BYTES_MAX // 4 else reply.text[: _TEXT_BYTES_MAX // 4 - 3] + "..."
    return encode((FAILED, identifier, int(reply.code), text, dict(reply.details)))


def _read_failed(item: Item) -> api.Failed:
    return api.Failed(
        fields.uint(item[2], "code", _UINT32_MAX),
        fields.text(item[3], "text", _TEXT_BYTES_MAX),
        _map(item[4], "details"),
    )


Reader: TypeAlias = Callable[[Item], Reply]
Writer: TypeAlias = Callable[[int, Any], bytes]

# THE table: number, class, length of the array, both directions. A number is never given a second meaning;
# 255 is GoAway (handshake.py), which answers no request.
KINDS: Final[tuple[tuple[int, type[Any], int, Reader, Writer], ...]] = (
    (FAILED, api.Failed, 5, _read_failed, _write_failed),
    (1, api.Pushed, 6, _read_pushed, _write_pushed),
    (2, api.Polled, 6, _read_polled, _write_polled),
    (3, api.Settled, 3, _read_settled, _write_settled),
    (4, api.Touched, 4, _read_touched, _write_touched),
    (5, api.Outcomes, 3, _read_outcomes, _write_outcomes),
    (6, api.Page, 4, _read_page, _write_page),
    (7, api.QueueInfo, 2 + _QUEUE_FIELDS, _read_queue_info, _write_queue_info),
    (8, api.QueueList, 4, _read_queue_list, _write_queue_list),
    (9, api.Done, 3, _read_done, _write_done),
    (10, api.Moved, 4, _read_moved, _write_moved),
    (11, api.SessionOpened, 3, _read_session_opened, _write_session_opened),
    (12, api.Pong, 2, lambda item: api.Pong(), _write_pong),
    (13, api.StatsReply, 3, _read_stats, _write_stats),
    (14, api.BackupBegun, 5, _read_backup_begun, _write_backup_begun),
    (15, api.BackupChunk, 3, _read_backup_chunk, _write_backup_chunk),
    (16, api.ClusterState, 9, _read_cluster, _write_cluster),
    # A push that was counted; the first row writes both.
    (17, api.Pushed, 7, _read_counted, _write_counted),
    (18, api.TokenList, 3, lambda item: read_tokens(item[2]), _write_tokens),
)
_READERS: Final[dict[int, tuple[int, Reader, str]]] = {
    kind: (length, read, cls.__name__) for kind, cls, length, read, _ in KINDS
}
_WRITERS: Final[dict[type[Any], Writer]] = {cls: write for _, cls, _, _, write in reversed(KINDS)}


def encode_reply(identifier: int, reply: Reply) -> bytes:
    """The frame body of a reply (without length prefix).

    Raises:
        LocalProtocolError: the reply does not fit a frame, or a map in it holds what is no plain value.
    """
    try:
        body = _WRITERS[type(reply)](identifier, reply)
    except (CBORError, ValueError, TypeError, OverflowError, struct.error) as error:
        raise LocalProtocolError(f"{type(reply).__name__} cannot be encoded: {error}") from error
    if len(body) > FRAME_BYTES_MAX:
        raise LocalProtocolError(
            f"{type(reply).__name__} takes {len(body)} bytes, a frame at most {FRAME_BYTES_MAX}",
            limit=FRAME_BYTES_MAX,
        )
    return body


def read_reply(item: object) -> tuple[int, Reply]:
    """(id, reply) of a decoded frame.

    Raises:
        RemoteProtocolError: it fits no row of the table.
    """
    if type(item) is not list or len(item) < ENVELOPE:
        raise RemoteProtocolError("a reply is an array [kind, id, ...]")
    kind, identifier = item[:ENVELOPE]
    if type(identifier) is not int or not 0 <= identifier <= UINT64_MAX:
        raise RemoteProtocolError("a reply's id is an integer from 0 to 2^64-1")
    row = _READERS.get(kind) if type(kind) is int else None
    if row is None:
        raise RemoteProtocolError(f"a reply of unknown kind {str(kind)[:20]}")
    length, read, name = row
    if len(item) != length:
        raise RemoteProtocolError(f"{name} (kind {kind}) has {length} elements, this one has {len(item)}")
    try:
        return identifier, read(item)
    except RequestError as error:
        raise RemoteProtocolError(f"in {name}: {error.text}", **error.details) from None


def decode_reply(frame: bytes, decoder: Decoder | None = None) -> tuple[int, Reply]:
    """(id, reply) of one frame body (without its length prefix).

    Raises:
        RemoteProtocolError: not plain CBOR, or fits no row of the table.
    """
    return read_reply((decoder or Decoder()).decode(frame))
