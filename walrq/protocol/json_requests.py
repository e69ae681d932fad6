"""Requests as JSON: the table between names of operations and `api` classes, and both directions of each.

A request is one object: `{"op": "push", "queue": "jobs", "payload": "hello"}`. Fields that are left out or null have
the default of `api.py`; a field that the operation does not know is refused with the nearest one. Times are integer
milliseconds, as everywhere. Settling has a name for each way to give a message back: `ack`, `release`, `fail` and
`reject`. The WebSocket door and the HTTP door read this same table; docs/json.md prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from walrq import api
from walrq.errors import BatchTooLarge, InvalidArgument, MessageTooLarge, UnknownOperation
from walrq.limits import (
    BACKUP_PARTS_MAX,
    BACKUP_READ_BYTES_MAX,
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    DELAY_MS_MAX,
    ERROR_TEXT_BYTES_MAX,
    ERROR_TYPE_BYTES_MAX,
    HEADERS_BYTES_MAX,
    KEY_BYTES_MAX,
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
    RAFT_NODE_ID_BYTES_MAX,
    REDRIVE_PER_ENTRY,
    RETENTION_MS_MAX,
    SETTINGS_MAX,
    TIME_MS_MAX,
    VISIBILITY_MS_MAX,
    VISIBILITY_MS_MIN,
    WORKER_NAME_BYTES_MAX,
)
from walrq.protocol import fields, tokens
from walrq.protocol.columns import encode_headers, pack, unpack
from walrq.protocol.fields import UINT64_MAX
from walrq.protocol.json_text import (
    from_base64,
    from_text,
    plain_from_json,
    plain_to_json,
    put_bytes,
)
from walrq.protocol.json_values import (
    HANDLES,
    Field,
    Object,
    boolean,
    handles_of,
    id_texts,
    integer,
    items_of,
    listed,
    message_id,
    queue,
    read_object,
    text,
    word,
)

OP: Final = "op"


# --- push ---------------------------------------------------------------------------------------------------
def _read_headers(value: object, name: str) -> Mapping[str, Any]:
    if type(value) is not dict:
        fields.refuse(name, value, "an object")
    headers: Mapping[str, Any] = plain_from_json(value, name)
    size = len(encode_headers(headers))
    if size > HEADERS_BYTES_MAX:
        raise MessageTooLarge(
            f"a message's {name} of {size} bytes, at most {HEADERS_BYTES_MAX} are allowed",
            field=name,
            limit=HEADERS_BYTES_MAX,
        )
    return headers


_MESSAGE: Final = (
    Field("payload", from_text, {"type": "string"}, None, "the body, as text"),
    Field(
        "payload_base64",
        from_base64,
        {"type": "string", "contentEncoding": "base64"},
        None,
        "the body, as base64 of bytes",
    ),
    Field("headers", _read_headers, {"type": "object"}, None, "names and plain values that travel beside the body"),
    text("group", KEY_BYTES_MAX, None, "messages of one group are handed out in order", 1),
    text("dedup_id", KEY_BYTES_MAX, None, "a second push of the same id within the window has no effect", 1),
)


def _read_message(value: object, name: str) -> Object:
    given = read_object(value, "a message", _MESSAGE, f"{name}.")
    _body(given, name)
    return given


def _body(given: Object, what: str) -> bytes:
    payload, coded = given["payload"], given["payload_base64"]
    if (payload is None) == (coded is None):
        raise InvalidArgument(f"{what} needs one of payload and payload_base64", field="payload")
    body: bytes = coded if payload is None else payload
    if len(body) > MESSAGE_BYTES_LIMIT:
        raise MessageTooLarge(
            f"a message's payload of {len(body)} bytes, at most {MESSAGE_BYTES_LIMIT} are allowed",
            field="payload",
            limit=MESSAGE_BYTES_LIMIT,
        )
    return body


def _read_messages(value: object, name: str) -> Sequence[Object]:
    if isinstance(value, list) and len(value) > BATCH_MESSAGES_MAX:
        raise BatchTooLarge(
            f"a batch of {len(value)} messages, at most {BATCH_MESSAGES_MAX} are allowed", limit=BATCH_MESSAGES_MAX
        )
    return [_read_message(each, name) for each in fields.array(value, name, BATCH_MESSAGES_MAX, 1)]


_MESSAGES: Final = Field(
    "messages",
    _read_messages,
    {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {each.name: dict(each.schema) for each in _MESSAGE},
            "additionalProperties": False,
        },
        "minItems": 1,
        "maxItems": BATCH_MESSAGES_MAX,
    },
    None,
    "a batch, instead of payload, headers, group and dedup_id",
)


def _delay(value: object, name: str) -> int | None:
    return fields.delay(value, name)


def _delay_field(about: str) -> Field:
    return Field("delay_ms", _delay, {"type": "integer", "minimum": 0, "maximum": DELAY_MS_MAX}, None, about)


def _read_push(given: Object) -> api.Push:
    messages = given["messages"]
    if messages is None:
        messages = (given,)
    else:
        beside = next((field.name for field in _MESSAGE if given[field.name] is not None), None)
        if beside is not None:
            raise InvalidArgument(f"{beside} belongs into each of messages", field=beside)
    if given["delay_ms"] is not None and given["deliver_at_ms"] is not None:
        raise InvalidArgument("delay_ms and deliver_at_ms exclude each other", field="deliver_at_ms")
    columns = pack(
        [_body(each, "push") for each in messages],
        [each["headers"] for each in messages],
        groups=[each["group"] for each in messages],
        dedup=[each["dedup_id"] for each in messages],
    )
    if columns.size > BATCH_BYTES_MAX:
        raise BatchTooLarge(
            f"a batch of {columns.size} bytes, at most {BATCH_BYTES_MAX} are allowed", limit=BATCH_BYTES_MAX
        )
    return api.Push(
        given["queue"],
        columns,
        given["priority"],
        given["delay_ms"],
        given["deliver_at_ms"],
        given["ttl_ms"],
        given["max_attempts"],
    )


def _write_push(request: api.Push) -> dict[str, Any]:
    batch = unpack(request.columns)
    none = (None,) * len(batch.payloads)
    messages = []
    for payload, headers, group, dedup in zip(
        batch.payloads, batch.headers or none, batch.groups or none, batch.dedup or none, strict=True
    ):
        message: dict[str, Any] = {}
        put_bytes(message, "payload", payload)
        if headers:
            message["headers"] = plain_to_json(headers)
        if group is not None:
            message["group"] = group
        if dedup is not None:
            message["dedup_id"] = dedup
        messages.append(message)
    return {
        "queue": request.queue,
        **(messages[0] if len(messages) == 1 else {"messages": messages}),
        "priority": request.priority,
        "delay_ms": request.delay_ms,
        "deliver_at_ms": request.deliver_at_ms,
        "ttl_ms": request.ttl_ms,
        "max_attempts": request.max_attempts,
    }


# --- poll, settle, touch ------------------------------------------------------------------------------------
def _read_poll(given: Object) -> api.Poll:
    one, many = given["queue"], given["queues"]
    if (one is None) == (many is None):
        raise InvalidArgument("poll needs one of queue and queues", field="queue")
    return api.Poll(
        many if one is None else (one,),
        given["max_messages"],
        given["visibility_ms"],
        given["wait_ms"],
        given["worker"],
    )


def _write_poll(request: api.Poll) -> dict[str, Any]:
    return {
        "queues": [*request.queues],
        "max_messages": request.max_messages,
        "visibility_ms": request.visibility_ms,
        "wait_ms": request.wait_ms,
        "worker": request.worker,
    }


def _settle(kind: api.SettleKind) -> Callable[[Object], api.Settle]:
    def read(given: Object) -> api.Settle:
        return api.Settle(
            given["queue"],
            kind,
            items_of(given),
            given.get("delay_ms"),
            given.get("error_type"),
            given.get("error_text"),
        )

    return read


def _write_settle(request: api.Settle) -> dict[str, Any]:
    made: dict[str, Any] = {"queue": request.queue, "receipt_handles": handles_of(request.items)}
    if request.kind is api.SettleKind.FAIL:
        made["delay_ms"] = request.delay_ms
    if request.kind in (api.SettleKind.FAIL, api.SettleKind.REJECT):
        made |= {"error_type": request.error_type, "error_text": request.error_text}
    return made


_SETTLED: Final = (queue(), *HANDLES)
_ERROR: Final = (
    text("error_type", ERROR_TYPE_BYTES_MAX, None, "kept with the message"),
    text("error_text", ERROR_TEXT_BYTES_MAX, None, "kept with the message"),
)


def _read_touch(given: Object) -> api.Touch:
    return api.Touch(given["queue"], items_of(given), given["visibility_ms"])


def _write_touch(request: api.Touch) -> dict[str, Any]:
    return {
        "queue": request.queue,
        "receipt_handles": handles_of(request.items),
        "visibility_ms": request.visibility_ms,
    }


# --- the rest -----------------------------------------------------------------------------------------------
def _read_settings(value: object, name: str) -> Mapping[str, Any]:
    if type(value) is not dict:
        fields.refuse(name, value, "an object")
    if len(value) > SETTINGS_MAX:
        raise InvalidArgument(
            f"{len(value)} settings in one request, at most {SETTINGS_MAX} are allowed", field=name, limit=SETTINGS_MAX
        )
    made: Mapping[str, Any] = plain_from_json(value, name)
    return made


# Reasons of death are words of ours, far shorter.
_REASON_BYTES_MAX: Final = 64
_FILTER: Final = (
    text("reason", _REASON_BYTES_MAX, None, "why they died"),
    text("error_type", ERROR_TYPE_BYTES_MAX, None, "type of the last error"),
    text("error_contains", ERROR_TEXT_BYTES_MAX, None, "found in the text of the last error"),
    listed(message_id("ids"), BATCH_MESSAGES_MAX, 0, None, "these messages"),
)
_WHERE: Final = Field(
    "where",
    lambda value, name: api.Filter(**read_object(value, "where", _FILTER, f"{name}.")),
    {
        "type": "object",
        "properties": {each.name: dict(each.schema) for each in _FILTER},
        "additionalProperties": False,
    },
    None,
    "which dead messages: every given part must match",
)


def _write_where(where: api.Filter | None) -> dict[str, Any] | None:
    if where is None:
        return None
    return {
        "reason": where.reason,
        "error_type": where.error_type,
        "error_contains": where.error_contains,
        "ids": None if where.ids is None else id_texts(where.ids),
    }


_STATES: Final = {state.name.lower(): state for state in api.State}
_CURSOR: Final = integer("after", UINT64_MAX, 0, 0, "`next` of the page before")
_BODIES: Final = boolean("bodies", True, "whether payloads come along")


def _write_plain(request: Any) -> dict[str, Any]:
    """The fields as they are: for classes that hold nothing but text, numbers and truth values."""
    return attrs.asdict(request, recurse=False)


def _write_cancel(request: api.Cancel) -> dict[str, Any]:
    return {"queue": request.queue, "ids": id_texts(request.ids)}


def _write_reschedule(request: api.Reschedule) -> dict[str, Any]:
    return {"queue": request.queue, "message_id": id_texts((request.id,))[0], "deliver_at_ms": request.deliver_at_ms}


def _write_peek(request: api.Peek) -> dict[str, Any]:
    return _write_plain(request) | {"state": request.state.name.lower()}


def _write_set_queue(request: api.SetQueue) -> dict[str, Any]:
    return {"queue": request.queue, "settings": plain_to_json(request.settings), "create": request.create}


def _write_dead(request: api.ListDead | api.Redrive | api.PurgeDead) -> dict[str, Any]:
    return _write_plain(request) | {"where": _write_where(request.where)}


@attrs.frozen
class Operation:
    """One row of the table.

    Attributes:
        name: what `op` says.
        request: the class that is made.
        fields: what else the object may hold.
        read: checked fields -> request; raises RequestError.
        write: request -> fields.
        replies: names of the replies (json_replies.py) it can have beside "failed".
        about: one line for people.
    """

    name: str
    request: type[Any]
    fields: tuple[Field, ...]
    read: Callable[[Object], api.Request]
    write: Callable[[Any], dict[str, Any]]
    replies: tuple[str, ...]
    about: str


def _nothing(make: Callable[[], api.Request]) -> Callable[[Object], api.Request]:
    return lambda given: make()


_N: Final = text("node", RAFT_NODE_ID_BYTES_MAX, about="the node's name", least=1)
_V: Final = integer("visibility_ms", VISIBILITY_MS_MAX, VISIBILITY_MS_MIN, None, "null = the queue's setting")

# THE table.
OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "push",
        api.Push,
        (
            queue(),
            *_MESSAGE,
            _MESSAGES,
            integer("priority", PRIORITY_MAX, 0, 0, "higher first"),
            _delay_field("from now; null = the queue's setting"),
            integer("deliver_at_ms", TIME_MS_MAX, 0, None, "ms since 1970; instead of delay_ms"),
            integer("ttl_ms", RETENTION_MS_MAX, 1, None, "after that long it is gone"),
            integer("max_attempts", MAX_DELIVERIES_MAX, 1, None, "null = the queue's setting"),
        ),
        _read_push,
        _write_push,
        ("pushed",),
        "Append a message, or a batch of them.",
    ),
    Operation(
        "poll",
        api.Poll,
        (
            queue(default=None),
            listed(queue("queues"), POLL_QUEUES_MAX, 1, None, "the first that has some; instead of queue"),
            integer("max_messages", POLL_MESSAGES_MAX, 1, 10),
            _V,
            integer("wait_ms", POLL_WAIT_MS_MAX, 0, 0, "for messages to come"),
            text("worker", WORKER_NAME_BYTES_MAX, None, "names the taker in death reports"),
        ),
        _read_poll,
        _write_poll,
        ("polled",),
        "Lease messages.",
    ),
    Operation(
        "ack",
        api.Settle,
        _SETTLED,
        _settle(api.SettleKind.ACK),
        _write_settle,
        ("settled",),
        "They are done: remove them.",
    ),
    Operation(
        "release",
        api.Settle,
        _SETTLED,
        _settle(api.SettleKind.RELEASE),
        _write_settle,
        ("settled",),
        "Give them back to their place at once; costs no attempt.",
    ),
    Operation(
        "fail",
        api.Settle,
        (*_SETTLED, _delay_field("the back-off; null = the queue's setting"), *_ERROR),
        _settle(api.SettleKind.FAIL),
        _write_settle,
        ("settled",),
        "They failed: back after a while, or dead at the last attempt.",
    ),
    Operation(
        "reject",
        api.Settle,
        (*_SETTLED, *_ERROR),
        _settle(api.SettleKind.REJECT),
        _write_settle,
        ("settled",),
        "To the dead-letter queue now.",
    ),
    Operation(
        "touch",
        api.Touch,
        (*_SETTLED, integer("visibility_ms", TIME_MS_MAX, VISIBILITY_MS_MIN, about="from now")),
        _read_touch,
        _write_touch,
        ("touched",),
        "Let leases end later, never earlier.",
    ),
    Operation(
        "forget",
        api.Forget,
        (integer("forget", UINT64_MAX, 1, about="sequence of the request"),),
        lambda given: api.Forget(given["forget"]),
        lambda request: {"forget": request.sequence},
        ("done",),
        "The caller of this session's request went away: drop its waiter or release its lease.",
    ),
    Operation(
        "cancel",
        api.Cancel,
        (queue(), listed(message_id("ids"), BATCH_MESSAGES_MAX, 1)),
        lambda given: api.Cancel(**given),
        _write_cancel,
        ("outcomes",),
        "Remove pending messages, with an exact answer for each.",
    ),
    Operation(
        "reschedule",
        api.Reschedule,
        (queue(), message_id("message_id"), integer("deliver_at_ms", TIME_MS_MAX, about="ms since 1970")),
        lambda given: api.Reschedule(given["queue"], given["message_id"], given["deliver_at_ms"]),
        _write_reschedule,
        ("outcomes",),
        "Let a pending message become due at another time.",
    ),
    Operation(
        "peek",
        api.Peek,
        (
            queue(),
            word("state", _STATES, api.State.READY),
            integer("limit", PEEK_MESSAGES_MAX, 1, 10),
            _CURSOR,
            _BODIES,
        ),
        lambda given: api.Peek(**given),
        _write_peek,
        ("page",),
        "Look at messages of one state without any side effect.",
    ),
    Operation(
        "set_queue",
        api.SetQueue,
        (
            queue(),
            Field("settings", _read_settings, {"type": "object"}, about="names and values"),
            boolean("create", True, "whether an absent queue is made"),
        ),
        lambda given: api.SetQueue(**given),
        _write_set_queue,
        ("done",),
        "Create a queue, change its settings.",
    ),
    Operation(
        "show_queue",
        api.ShowQueue,
        (queue(),),
        lambda given: api.ShowQueue(**given),
        _write_plain,
        ("queue",),
        "Settings and counts of one queue.",
    ),
    Operation(
        "list_queues",
        api.ListQueues,
        (
            text("prefix", QUEUE_NAME_BYTES_MAX, ""),
            text("after", QUEUE_NAME_BYTES_MAX, "", "`next` of the page before"),
            integer("limit", LIST_QUEUES_MAX, 1, 100),
        ),
        lambda given: api.ListQueues(**given),
        _write_plain,
        ("queues",),
        "Queues by name.",
    ),
    Operation(
        "purge_queue",
        api.PurgeQueue,
        (queue(),),
        lambda given: api.PurgeQueue(**given),
        _write_plain,
        ("done",),
        "Remove all messages, receipts and dedup ids; settings stay.",
    ),
    Operation(
        "delete_queue",
        api.DeleteQueue,
        (queue(),),
        lambda given: api.DeleteQueue(**given),
        _write_plain,
        ("done",),
        "Remove a queue and all that is in it.",
    ),
    Operation(
        "list_dead",
        api.ListDead,
        (queue(), integer("limit", PEEK_MESSAGES_MAX, 1, 10), _CURSOR, _WHERE, _BODIES),
        lambda given: api.ListDead(**given),
        _write_dead,
        ("page",),
        "Dead messages, in order of death.",
    ),
    Operation(
        "redrive",
        api.Redrive,
        (
            queue(),
            integer("limit", REDRIVE_PER_ENTRY, 1, 1000, "in this request"),
            queue("target", None, "instead of the queue they died in"),
            _WHERE,
            boolean("dry_run", False, "only count"),
        ),
        lambda given: api.Redrive(**given),
        _write_dead,
        ("moved",),
        "Move dead messages back behind waiting work.",
    ),
    Operation(
        "purge_dead",
        api.PurgeDead,
        (queue(), _WHERE),
        lambda given: api.PurgeDead(**given),
        _write_dead,
        ("done",),
        "Remove dead messages.",
    ),
    Operation(
        "move",
        api.Move,
        (queue("source"), queue("target"), integer("limit", REDRIVE_PER_ENTRY, 1, 1)),
        lambda given: api.Move(**given),
        _write_plain,
        ("moved",),
        "Move ready messages from one queue behind another's, atomically.",
    ),
    Operation(
        "open_session",
        api.OpenSession,
        (),
        _nothing(api.OpenSession),
        _write_plain,
        ("session",),
        "Register a session, for the safe retry of requests.",
    ),
    Operation(
        "close_session",
        api.CloseSession,
        (),
        _nothing(api.CloseSession),
        _write_plain,
        ("done",),
        "End the session of this connection.",
    ),
    Operation(
        "ping",
        api.Ping,
        (),
        _nothing(api.Ping),
        _write_plain,
        ("pong",),
        "Answered at once, also while other requests wait.",
    ),
    Operation(
        "stats",
        api.Stats,
        (),
        _nothing(api.Stats),
        _write_plain,
        ("stats",),
        "Counters of the node and totals over all queues.",
    ),
    Operation(
        "backup_begin",
        api.BackupBegin,
        (),
        _nothing(api.BackupBegin),
        _write_plain,
        ("backup",),
        "Begin a backup of the node as it is now.",
    ),
    Operation(
        "backup_read",
        api.BackupRead,
        (
            integer("backup", UINT64_MAX, 1),
            integer("part", BACKUP_PARTS_MAX - 1),
            integer("offset", UINT64_MAX),
            integer("limit", BACKUP_READ_BYTES_MAX, 1, about="bytes"),
        ),
        lambda given: api.BackupRead(**given),
        _write_plain,
        ("chunk",),
        "Bytes of one part.",
    ),
    Operation(
        "backup_end",
        api.BackupEnd,
        (integer("backup", UINT64_MAX, 1),),
        lambda given: api.BackupEnd(**given),
        _write_plain,
        ("done",),
        "The backup is not needed any more.",
    ),
    Operation(
        "cluster_status",
        api.ClusterStatus,
        (),
        _nothing(api.ClusterStatus),
        _write_plain,
        ("cluster",),
        "Who is in the cluster, as the asked node knows it.",
    ),
    Operation(
        "add_node",
        api.AddNode,
        (
            _N,
            text("address", PEER_ADDRESS_BYTES_MAX, None, "host:port for its peers"),
            boolean("learner", False, "it never votes"),
        ),
        lambda given: api.AddNode(**given),
        _write_plain,
        ("cluster",),
        "Make a node a member.",
    ),
    Operation(
        "remove_node",
        api.RemoveNode,
        (_N,),
        lambda given: api.RemoveNode(**given),
        _write_plain,
        ("cluster",),
        "End a node's membership.",
    ),
    Operation(
        "transfer_leadership",
        api.TransferLeadership,
        (text("target", RAFT_NODE_ID_BYTES_MAX, None, "null = the voter that is furthest", 1),),
        lambda given: api.TransferLeadership(**given),
        _write_plain,
        ("cluster",),
        "Let another node lead.",
    ),
    Operation(
        "set_token",
        api.SetToken,
        tokens.SET_FIELDS,
        lambda given: api.SetToken(**given),
        tokens.set_token_to_json,
        ("done",),
        "Let whoever knows a secret do what is granted.",
    ),
    Operation(
        "revoke_token",
        api.RevokeToken,
        (tokens.NAME,),
        lambda given: api.RevokeToken(**given),
        _write_plain,
        ("done",),
        "Forget a token; its connections end.",
    ),
    Operation(
        "list_tokens",
        api.ListTokens,
        (),
        _nothing(api.ListTokens),
        _write_plain,
        ("tokens",),
        "All tokens, without their secrets.",
    ),
)
BY_NAME: Final[Mapping[str, Operation]] = {each.name: each for each in OPERATIONS}
_BY_KIND: Final = {
    api.SettleKind.ACK: BY_NAME["ack"],
    api.SettleKind.RELEASE: BY_NAME["release"],
    api.SettleKind.FAIL: BY_NAME["fail"],
    api.SettleKind.REJECT: BY_NAME["reject"],
}
_BY_CLASS: Final = {each.request: each for each in OPERATIONS if each.request is not api.Settle}
Reader: TypeAlias = Callable[[Object], api.Request]


def request_from_json(given: object, op: str | None = None) -> api.Request:
    """The checked request in a decoded object (`json_text.read_json`).

    Args:
        given: its fields and `op`; without `op` where the operation is known already (a path, say).
        op: the operation, then.

    Raises:
        RequestError: UnknownOperation, or the error of the field that is wrong, which `details["field"]` names.
    """
    if type(given) is not dict:
        fields.refuse("request", given, "an object")
    if op is None:
        given = dict(given)
        op = given.pop(OP, None)
        if type(op) is not str:
            raise InvalidArgument("a request needs op, the name of its operation", field=OP)
    operation = BY_NAME.get(op)
    if operation is None:
        raise UnknownOperation(f"there is no operation {op[:80]!r}; known are {', '.join(BY_NAME)}", operation=op[:80])
    return operation.read(read_object(given, operation.name, operation.fields))


def request_to_json(request: api.Request) -> dict[str, Any]:
    """The object of a request, `op` first.

    Raises:
        InvalidArgument: a settle or touch of a whole lease: JSON names single messages.
    """
    operation = _BY_KIND[request.kind] if isinstance(request, api.Settle) else _BY_CLASS[type(request)]
    return {OP: operation.name, **operation.write(request)}
