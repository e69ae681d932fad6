"""Requests: the table between operation numbers and `api` classes, and both directions of each.

A request is `[op, id, sequence, lowest, ...fields]`: a flat array whose length its operation fixes. `id`
counts on the connection; `sequence` and `lowest` belong to the connection's session, both null without. Every
field is checked here, once; what comes out is trusted behind this edge.

The decoder is written for speed where it is hot (`_read_push`, `_read_poll`, `_read_settle`; `shortcut.py` is
faster yet for their commonest form) and plainly elsewhere. docs/protocol.md and spec/protocol.cddl describe the
same table for other languages; a test compares the three.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from cbor2 import CBORError

from walrq import api
from walrq.errors import (
    BatchTooLarge,
    InvalidArgument,
    MalformedRequest,
    MessageTooLarge,
    RemoteProtocolError,
    UnknownOperation,
)
from walrq.limits import (
    BACKUP_PARTS_MAX,
    BACKUP_READ_BYTES_MAX,
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    ERROR_TEXT_BYTES_MAX,
    ERROR_TYPE_BYTES_MAX,
    HEADERS_BYTES_MAX,
    LIST_QUEUES_MAX,
    MAX_DELIVERIES_MAX,
    MESSAGE_BYTES_LIMIT,
    PEEK_MESSAGES_MAX,
    PEER_ADDRESS_BYTES_MAX,
    POLL_MESSAGES_MAX,
    POLL_QUEUES_MAX,
    POLL_WAIT_MS_MAX,
    PRIORITY_MAX,
    QUEUE_NAME_BYTES_MAX,
    REDRIVE_PER_ENTRY,
    RETENTION_MS_MAX,
    SETTINGS_MAX,
    SETTLE_ITEMS_MAX,
    TIME_MS_MAX,
    VISIBILITY_MS_MAX,
    VISIBILITY_MS_MIN,
    WORKER_NAME_BYTES_MAX,
)
from walrq.protocol import fields, tokens
from walrq.protocol.codec import Decoder, check_plain, encode, packed
from walrq.protocol.fields import UINT64_MAX

Item: TypeAlias = Sequence[Any]
"""A decoded frame: the array of a request."""

# Positions every request shares.
OP: Final = 0
ID: Final = 1
SEQUENCE: Final = 2
LOWEST: Final = 3
ENVELOPE: Final = 4


@api.value
class Incoming:
    """One checked request as it came in.

    Attributes:
        id: the request's number on its connection (from 1); its reply carries it.
        sequence: its number in the connection's session, None without a session.
        lowest: the lowest sequence of the session without an answer; None without a session.
        request: what is asked.
        size: bytes of its frame body, for accounting of what is in flight.
    """

    id: int
    sequence: int | None
    lowest: int | None
    request: api.Request
    size: int


# --- push, poll, settle, touch: hot -------------------------------------------------------------------------
def _read_push(item: Item) -> api.Push:
    (
        _,
        _,
        _,
        _,
        queue,
        payloads,
        ends,
        headers,
        header_ends,
        groups,
        dedup,
        priority,
        delay,
        at,
        ttl,
        attempts,
    ) = item
    fields.queue_name(queue)
    if type(payloads) is not bytes:
        fields.refuse("payloads", payloads, "a byte string")
    size = len(payloads)
    if ends is headers is header_ends is groups is dedup is None and size <= MESSAGE_BYTES_LIMIT:
        columns = api.Columns(payloads, size.to_bytes(4, "little"))
    else:
        columns = _columns(payloads, ends, headers, header_ends, groups, dedup)
    if type(priority) is not int or not 0 <= priority <= PRIORITY_MAX:
        fields.uint(priority, "priority", PRIORITY_MAX)
    if delay is not None:
        fields.delay(delay)
        if at is not None:
            raise InvalidArgument("delay_ms and deliver_at_ms exclude each other", field="deliver_at_ms")
    elif at is not None:
        fields.uint(at, "deliver_at_ms", TIME_MS_MAX)
    if ttl is not None:
        fields.uint(ttl, "ttl_ms", RETENTION_MS_MAX, 1)
    if attempts is not None:
        fields.uint(attempts, "max_attempts", MAX_DELIVERIES_MAX, 1)
    return api.Push(queue, columns, priority, delay, at, ttl, attempts)


def _columns(
    payloads: bytes, ends: object, headers: object, header_ends: object, groups: object, dedup: object
) -> api.Columns:
    size = len(payloads)
    packed_ends = fields.offsets(ends, "ends", size)
    count = fields.batch_count(packed_ends)
    header_bytes = packed_header_ends = None
    if headers is not None or header_ends is not None:
        header_bytes = fields.octets(headers, "headers")
        size += len(header_bytes)
        packed_header_ends = fields.offsets(header_ends, "header_ends", len(header_bytes))
        if len(packed_header_ends) != len(packed_ends):
            raise InvalidArgument(
                f"header_ends has {len(packed_header_ends) >> 2} offsets for {count} messages",
                field="header_ends",
            )
    if size > BATCH_BYTES_MAX and count == 1:
        raise MessageTooLarge(
            f"a message of {size} bytes, at most {MESSAGE_BYTES_LIMIT} are allowed", limit=MESSAGE_BYTES_LIMIT
        )
    if size > BATCH_BYTES_MAX:
        raise BatchTooLarge(f"a batch of {size} bytes, at most {BATCH_BYTES_MAX} are allowed", limit=BATCH_BYTES_MAX)
    fields.batch_ends(packed_ends, len(payloads), MESSAGE_BYTES_LIMIT, "ends")
    if header_bytes is not None and packed_header_ends is not None:
        fields.batch_ends(packed_header_ends, len(header_bytes), HEADERS_BYTES_MAX, "header_ends")
    return api.Columns(
        payloads,
        packed_ends,
        header_bytes,
        packed_header_ends,
        fields.keys(groups, "groups", count),
        fields.keys(dedup, "dedup", count),
    )


def _write_push(request: api.Push) -> tuple[Any, ...]:
    columns = request.columns
    return (
        request.queue,
        columns.payloads,
        packed(columns.ends),
        columns.headers,
        packed(columns.header_ends),
        columns.groups,
        columns.dedup,
        request.priority,
        request.delay_ms,
        request.deliver_at_ms,
        request.ttl_ms,
        request.max_attempts,
    )


def _read_counted_push(item: Item) -> api.Push:
    request = _read_push(item)
    return api.Push(
        request.queue,
        request.columns,
        request.priority,
        request.delay_ms,
        request.deliver_at_ms,
        request.ttl_ms,
        request.max_attempts,
        True,
    )


def _read_numbered_poll(item: Item) -> api.Poll:
    numbered = fields.flag(item[9], "numbered")
    into = None if item[10] is None else fields.queue_name(item[10], "into")
    if numbered and into is not None:
        raise InvalidArgument("numbered and into exclude each other", field="into")
    request = _read_poll(item[:9])
    return api.Poll(
        request.queues, request.max_messages, request.visibility_ms, request.wait_ms, request.worker, numbered, into
    )


def _write_numbered_poll(request: api.Poll) -> tuple[Any, ...]:
    return *_write_poll(request), request.numbered, request.into


def _read_poll(item: Item) -> api.Poll:
    _, _, _, _, queues, max_messages, visibility, wait, worker = item
    names = fields.array(queues, "queues", POLL_QUEUES_MAX, 1)
    if type(max_messages) is not int or not 1 <= max_messages <= POLL_MESSAGES_MAX:
        fields.uint(max_messages, "max_messages", POLL_MESSAGES_MAX, 1)
    if visibility is not None:
        fields.uint(visibility, "visibility_ms", VISIBILITY_MS_MAX, VISIBILITY_MS_MIN)
    if type(wait) is not int or not 0 <= wait <= POLL_WAIT_MS_MAX:
        fields.uint(wait, "wait_ms", POLL_WAIT_MS_MAX)
    if worker is not None:
        fields.text(worker, "worker", WORKER_NAME_BYTES_MAX)
    return api.Poll(
        tuple([fields.queue_name(name, "queues") for name in names]), max_messages, visibility, wait, worker
    )


def _write_poll(request: api.Poll) -> tuple[Any, ...]:
    return request.queues, request.max_messages, request.visibility_ms, request.wait_ms, request.worker


def _ranges(value: object) -> tuple[api.Range, ...]:
    """Offsets [first, last, first, last, ...], rising and apart."""
    flat = fields.array(value, "ranges", 2 * BATCH_MESSAGES_MAX, 2)
    if len(flat) & 1:
        raise InvalidArgument("ranges has a first offset without a last", field="ranges")
    pairs = []
    least = 0
    for position in range(0, len(flat), 2):
        first = fields.uint(flat[position], "ranges", BATCH_MESSAGES_MAX - 1, least)
        last = fields.uint(flat[position + 1], "ranges", BATCH_MESSAGES_MAX - 1, first)
        pairs.append((first, last))
        least = last + 1
    return tuple(pairs)


def _items(value: object) -> tuple[api.Item, ...]:
    items = []
    for entry in fields.array(value, "items", SETTLE_ITEMS_MAX, 1):
        receipt, ranges = fields.tuple_of(entry, "items", 2)
        items.append(api.Item(fields.receipt(receipt), None if ranges is None else _ranges(ranges)))
    return tuple(items)


def _flat_items(items: tuple[api.Item, ...]) -> list[Any]:
    return [
        (item.receipt, None if item.ranges is None else [offset for pair in item.ranges for offset in pair])
        for item in items
    ]


_KINDS: Final = tuple(api.SettleKind)


def _read_settle(item: Item) -> api.Settle:
    _, _, _, _, queue, kind_number, items, delay, error_type, error_text = item
    fields.queue_name(queue)
    kind = _KINDS[fields.uint(kind_number, "kind", len(_KINDS) - 1)]
    if delay is not None:
        fields.delay(delay)
        if kind is not api.SettleKind.FAIL:
            raise InvalidArgument("delay_ms belongs to fail (kind 2) only", field="delay_ms")
    if error_type is not None or error_text is not None:
        if kind is not api.SettleKind.FAIL and kind is not api.SettleKind.REJECT:
            raise InvalidArgument("error_type and error_text belong to fail and reject only", field="error_type")
        fields.optional_text(error_type, "error_type", ERROR_TYPE_BYTES_MAX)
        fields.optional_text(error_text, "error_text", ERROR_TEXT_BYTES_MAX)
    return api.Settle(queue, kind, _items(items), delay, error_type, error_text)


def _write_settle(request: api.Settle) -> tuple[Any, ...]:
    return (
        request.queue,
        int(request.kind),
        _flat_items(request.items),
        request.delay_ms,
        request.error_type,
        request.error_text,
    )


def _read_touch(item: Item) -> api.Touch:
    _, _, _, _, queue, items, visibility = item
    return api.Touch(
        fields.queue_name(queue),
        _items(items),
        fields.uint(visibility, "visibility_ms", TIME_MS_MAX, VISIBILITY_MS_MIN),
    )


def _write_touch(request: api.Touch) -> tuple[Any, ...]:
    return request.queue, _flat_items(request.items), request.visibility_ms


# --- the rest -----------------------------------------------------------------------------------------------
def _read_forget(item: Item) -> api.Forget:
    return api.Forget(fields.uint(item[4], "forget", UINT64_MAX, 1))


def _write_forget(request: api.Forget) -> tuple[Any, ...]:
    return (request.sequence,)


def _read_cancel(item: Item) -> api.Cancel:
    return api.Cancel(fields.queue_name(item[4]), fields.message_ids(item[5], "ids", BATCH_MESSAGES_MAX, 1))


def _write_cancel(request: api.Cancel) -> tuple[Any, ...]:
    return request.queue, [fields.id_bytes(identifier) for identifier in request.ids]


def _read_reschedule(item: Item) -> api.Reschedule:
    return api.Reschedule(
        fields.queue_name(item[4]),
        fields.message_id(item[5]),
        fields.uint(item[6], "deliver_at_ms", TIME_MS_MAX),
    )


def _write_reschedule(request: api.Reschedule) -> tuple[Any, ...]:
    return request.queue, fields.id_bytes(request.id), request.deliver_at_ms


_STATES: Final = tuple(api.State)


def _read_peek(item: Item) -> api.Peek:
    return api.Peek(
        fields.queue_name(item[4]),
        _STATES[fields.uint(item[5], "state", len(_STATES) - 1)],
        fields.uint(item[6], "limit", PEEK_MESSAGES_MAX, 1),
        fields.uint(item[7], "after", UINT64_MAX),
        fields.flag(item[8], "bodies"),
    )


def _write_peek(request: api.Peek) -> tuple[Any, ...]:
    return request.queue, int(request.state), request.limit, request.after, request.bodies


def _read_set_queue(item: Item) -> api.SetQueue:
    settings = item[5]
    if type(settings) is not dict:
        fields.refuse("settings", settings, "a map")
    if len(settings) > SETTINGS_MAX:
        raise InvalidArgument(
            f"{len(settings)} settings in one request, at most {SETTINGS_MAX} are allowed",
            field="settings",
            limit=SETTINGS_MAX,
        )
    check_plain(settings, "settings")
    return api.SetQueue(fields.queue_name(item[4]), settings, fields.flag(item[6], "create"))


def _write_set_queue(request: api.SetQueue) -> tuple[Any, ...]:
    return request.queue, dict(request.settings), request.create


def _read_show_queue(item: Item) -> api.ShowQueue:
    return api.ShowQueue(fields.queue_name(item[4]))


def _read_list_queues(item: Item) -> api.ListQueues:
    return api.ListQueues(
        fields.text(item[4], "prefix", QUEUE_NAME_BYTES_MAX),
        fields.text(item[5], "after", QUEUE_NAME_BYTES_MAX),
        fields.uint(item[6], "limit", LIST_QUEUES_MAX, 1),
    )


def _write_list_queues(request: api.ListQueues) -> tuple[Any, ...]:
    return request.prefix, request.after, request.limit


def _read_purge_queue(item: Item) -> api.PurgeQueue:
    return api.PurgeQueue(fields.queue_name(item[4]))


def _read_delete_queue(item: Item) -> api.DeleteQueue:
    return api.DeleteQueue(fields.queue_name(item[4]))


def _write_queue(request: api.ShowQueue | api.PurgeQueue | api.DeleteQueue) -> tuple[Any, ...]:
    return (request.queue,)


# Reasons of death are words of ours, far shorter.
_REASON_BYTES_MAX: Final = 64


def _filter(value: object) -> api.Filter | None:
    if value is None:
        return None
    reason, error_type, error_contains, ids = fields.tuple_of(value, "where", 4)
    return api.Filter(
        fields.optional_text(reason, "where.reason", _REASON_BYTES_MAX),
        fields.optional_text(error_type, "where.error_type", ERROR_TYPE_BYTES_MAX),
        fields.optional_text(error_contains, "where.error_contains", ERROR_TEXT_BYTES_MAX),
        None if ids is None else fields.message_ids(ids, "where.ids", BATCH_MESSAGES_MAX),
    )


def _flat_filter(where: api.Filter | None) -> tuple[Any, ...] | None:
    if where is None:
        return None
    ids = None if where.ids is None else [fields.id_bytes(identifier) for identifier in where.ids]
    return where.reason, where.error_type, where.error_contains, ids


def _read_list_dead(item: Item) -> api.ListDead:
    return api.ListDead(
        fields.queue_name(item[4]),
        fields.uint(item[5], "limit", PEEK_MESSAGES_MAX, 1),
        fields.uint(item[6], "after", UINT64_MAX),
        _filter(item[7]),
        fields.flag(item[8], "bodies"),
    )


def _write_list_dead(request: api.ListDead) -> tuple[Any, ...]:
    return request.queue, request.limit, request.after, _flat_filter(request.where), request.bodies


def _read_redrive(item: Item) -> api.Redrive:
    return api.Redrive(
        fields.queue_name(item[4]),
        fields.uint(item[5], "limit", REDRIVE_PER_ENTRY, 1),
        None if item[6] is None else fields.queue_name(item[6], "target"),
        _filter(item[7]),
        fields.flag(item[8], "dry_run"),
    )


def _write_redrive(request: api.Redrive) -> tuple[Any, ...]:
    return request.queue, request.limit, request.target, _flat_filter(request.where), request.dry_run


def _read_purge_dead(item: Item) -> api.PurgeDead:
    return api.PurgeDead(fields.queue_name(item[4]), _filter(item[5]))


def _write_purge_dead(request: api.PurgeDead) -> tuple[Any, ...]:
    return request.queue, _flat_filter(request.where)


def _read_move(item: Item) -> api.Move:
    return api.Move(
        fields.queue_name(item[4], "source"),
        fields.queue_name(item[5], "target"),
        fields.uint(item[6], "limit", REDRIVE_PER_ENTRY, 1),
    )


def _write_move(request: api.Move) -> tuple[Any, ...]:
    return request.source, request.target, request.limit


_PARTS_MAX: Final = BACKUP_PARTS_MAX - 1


def _read_backup_read(item: Item) -> api.BackupRead:
    return api.BackupRead(
        fields.uint(item[4], "backup", UINT64_MAX, 1),
        fields.uint(item[5], "part", _PARTS_MAX),
        fields.uint(item[6], "offset", UINT64_MAX),
        fields.uint(item[7], "limit", BACKUP_READ_BYTES_MAX, 1),
    )


def _write_backup_read(request: api.BackupRead) -> tuple[Any, ...]:
    return request.backup, request.part, request.offset, request.limit


def _read_backup_end(item: Item) -> api.BackupEnd:
    return api.BackupEnd(fields.uint(item[4], "backup", UINT64_MAX, 1))


def _write_backup_end(request: api.BackupEnd) -> tuple[Any, ...]:
    return (request.backup,)


def _read_add_node(item: Item) -> api.AddNode:
    return api.AddNode(
        fields.node_name(item[4]),
        fields.optional_text(item[5], "address", PEER_ADDRESS_BYTES_MAX),
        fields.flag(item[6], "learner"),
    )


def _write_add_node(request: api.AddNode) -> tuple[Any, ...]:
    return request.node, request.address, request.learner


def _read_remove_node(item: Item) -> api.RemoveNode:
    return api.RemoveNode(fields.node_name(item[4]))


def _write_remove_node(request: api.RemoveNode) -> tuple[Any, ...]:
    return (request.node,)


def _read_transfer(item: Item) -> api.TransferLeadership:
    return api.TransferLeadership(fields.optional_node_name(item[4], "target"))


def _write_transfer(request: api.TransferLeadership) -> tuple[Any, ...]:
    return (request.target,)


def _write_nothing(request: api.Request) -> tuple[Any, ...]:
    return ()


Reader: TypeAlias = Callable[[Item], api.Request]
Writer: TypeAlias = Callable[[Any], tuple[Any, ...]]

# THE table: operation number, class, length of the array, both directions. A number is never given a second
# meaning. Of two rows of one class the first is written, unless the request says what only the other can say.
OPERATIONS: Final[tuple[tuple[int, type[Any], int, Reader, Writer], ...]] = (
    (1, api.Push, 16, _read_push, _write_push),
    (2, api.Poll, 9, _read_poll, _write_poll),
    (3, api.Settle, 10, _read_settle, _write_settle),
    (4, api.Touch, 7, _read_touch, _write_touch),
    (5, api.Forget, 5, _read_forget, _write_forget),
    (6, api.Cancel, 6, _read_cancel, _write_cancel),
    (7, api.Reschedule, 7, _read_reschedule, _write_reschedule),
    (8, api.Peek, 9, _read_peek, _write_peek),
    (9, api.SetQueue, 7, _read_set_queue, _write_set_queue),
    (10, api.ShowQueue, 5, _read_show_queue, _write_queue),
    (11, api.ListQueues, 7, _read_list_queues, _write_list_queues),
    (12, api.PurgeQueue, 5, _read_purge_queue, _write_queue),
    (13, api.DeleteQueue, 5, _read_delete_queue, _write_queue),
    (14, api.ListDead, 9, _read_list_dead, _write_list_dead),
    (15, api.Redrive, 9, _read_redrive, _write_redrive),
    (16, api.PurgeDead, 6, _read_purge_dead, _write_purge_dead),
    (17, api.Move, 7, _read_move, _write_move),
    (18, api.OpenSession, 4, lambda item: api.OpenSession(), _write_nothing),
    (19, api.CloseSession, 4, lambda item: api.CloseSession(), _write_nothing),
    (20, api.Ping, 4, lambda item: api.Ping(), _write_nothing),
    (21, api.Stats, 4, lambda item: api.Stats(), _write_nothing),
    (22, api.BackupBegin, 4, lambda item: api.BackupBegin(), _write_nothing),
    (23, api.BackupRead, 8, _read_backup_read, _write_backup_read),
    (24, api.BackupEnd, 5, _read_backup_end, _write_backup_end),
    (25, api.ClusterStatus, 4, lambda item: api.ClusterStatus(), _write_nothing),
    (26, api.AddNode, 7, _read_add_node, _write_add_node),
    (27, api.RemoveNode, 5, _read_remove_node, _write_remove_node),
    (28, api.TransferLeadership, 5, _read_transfer, _write_transfer),
    (29, api.Push, 16, _read_counted_push, _write_push),
    (30, api.Poll, 11, _read_numbered_poll, _write_numbered_poll),
    (31, api.SetToken, 10, tokens.read_set_token, tokens.write_set_token),
    (32, api.RevokeToken, 5, tokens.read_revoke_token, tokens.write_revoke_token),
    (33, api.ListTokens, 4, lambda item: api.ListTokens(), _write_nothing),
)
_PUSH: Final = 1
_POLL: Final = 2
_COUNTED_PUSH: Final = 29
_NUMBERED_POLL: Final = 30
_READERS: Final[dict[int, tuple[int, Reader, str]]] = {
    op: (length, read, cls.__name__) for op, cls, length, read, _ in OPERATIONS
}
_WRITERS: Final[dict[type[Any], tuple[int, Writer]]] = {
    cls: (op, write) for op, cls, _, _, write in reversed(OPERATIONS)
}


def open_envelope(item: object) -> Item:
    """The array of a request whose id can be trusted enough to answer it.

    Raises:
        RemoteProtocolError: not an array, too short, no operation number, or no id of 1 to 2^64-1.
    """
    if type(item) is not list:
        raise RemoteProtocolError("a request is an array [op, id, sequence, lowest, ...]")
    if len(item) < ENVELOPE:
        raise RemoteProtocolError(f"a request has at least {ENVELOPE} elements, this one has {len(item)}")
    identifier = item[ID]
    if type(identifier) is not int or not 0 < identifier <= UINT64_MAX:
        raise RemoteProtocolError("a request's id is an integer from 1 to 2^64-1")
    if type(item[OP]) is not int:
        raise RemoteProtocolError("a request's operation is an integer")
    return item


def read_request(item: Item, size: int) -> Incoming:
    """The checked request in an array from `open_envelope`; `size` is its frame's, in bytes.

    Raises:
        RequestError: UnknownOperation, MalformedRequest, or the error of the field that is wrong.
    """
    op = item[OP]
    row = _READERS.get(op)
    if row is None:
        raise UnknownOperation(f"operation {op} is not known to this version", operation=op)
    length, read, name = row
    if len(item) != length:
        raise MalformedRequest(f"{name} (operation {op}) has {length} elements, this one has {len(item)}")
    sequence = item[SEQUENCE]
    lowest = item[LOWEST]
    if sequence is not None or lowest is not None:
        fields.uint(sequence, "sequence", UINT64_MAX, 1)
        fields.uint(lowest, "lowest", sequence, 1)
    return Incoming(item[ID], sequence, lowest, read(item), size)


def decode_request(frame: bytes, decoder: Decoder | None = None) -> Incoming:
    """The checked request in one frame body (without its length prefix).

    Raises:
        RemoteProtocolError: not plain CBOR, or no envelope: the connection is beyond trust.
        RequestError: this request is refused, others may follow.
    """
    item = (decoder or Decoder()).decode(frame)
    return read_request(open_envelope(item), len(frame))


def encode_request(
    identifier: int, request: api.Request, sequence: int | None = None, lowest: int | None = None
) -> bytes:
    """The frame body of a request (without length prefix).

    Raises:
        InvalidArgument: a text is not UTF-8 (lone surrogates) or a settings map holds what is no plain value.
    """
    op, write = _WRITERS[type(request)]
    if op == _PUSH and request.counted:  # type: ignore[union-attr]  # a Push, by its number
        op = _COUNTED_PUSH
    elif op == _POLL and (request.numbered or request.into is not None):  # type: ignore[union-attr]  # a Poll
        op, write = _NUMBERED_POLL, _write_numbered_poll
    try:
        return encode((op, identifier, sequence, lowest, *write(request)))
    except (CBORError, ValueError, TypeError, OverflowError) as error:
        raise InvalidArgument(f"{type(request).__name__} cannot be encoded: {error}") from error
