"""From what a person writes to `api` requests: seconds to milliseconds, texts to ids, messages to receipts
and ranges.

Shared by the asynchronous and the blocking client, which add only the waiting. Pure; every argument is
checked where a mistake would otherwise become a different request (NaN, negative times, a text in place of a
list).
"""

from __future__ import annotations

import enum
import hashlib
import json as json_module
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

import attrs

from walrq import api
from walrq.client.failures import BatchError, EntryFailure
from walrq.client.messages import Batch, Message, MessageIds, NewMessage
from walrq.client.reports import text_of
from walrq.errors import Code, DelayTooLong, InvalidArgument, WalrqError, from_code
from walrq.ids import check_queue_name, format_id, parse_handle, parse_id
from walrq.limits import (
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    DELAY_MS_MAX,
    ERROR_TEXT_BYTES_MAX,
    ERROR_TYPE_BYTES_MAX,
    POLL_MESSAGES_MAX,
    POLL_WAIT_MS_MAX,
    RETENTION_MS_MAX,
    SETTLE_ITEMS_MAX,
    TIME_MS_MAX,
    TOKEN_SECRET_BYTES_MIN,
    VISIBILITY_MS_MAX,
    VISIBILITY_MS_MIN,
)
from walrq.protocol import columns

Payload: TypeAlias = bytes | bytearray | memoryview | str
Settleable: TypeAlias = Message | Batch | Iterable[Message | Batch]


class _Unset(enum.Enum):
    UNSET = enum.auto()


UNSET: Final = _Unset.UNSET
"""Tells "no json given" from "json=None"."""


def milliseconds(seconds: float, name: str, most: int, least: int = 0) -> int:
    """`seconds`, which may have a fraction, as whole milliseconds from `least` to `most`.

    Raises:
        InvalidArgument: not a finite number, or out of range.
    """
    if not _is_number(seconds):
        raise InvalidArgument(f"{name} is a number of seconds, not {type(seconds).__name__}", field=name)
    if not math.isfinite(seconds) or seconds < 0:
        raise InvalidArgument(f"{name} is {seconds} s, it must be finite and not negative", field=name)
    found = round(seconds * 1000)
    if found > most or found < least:
        raise InvalidArgument(
            f"{name} is {seconds} s, allowed are {least / 1000:g} to {most / 1000:g} s",
            field=name,
            limit=most,
        )
    return found


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def delay_ms(delay: float) -> int:
    """A delay in ms; raises `DelayTooLong` beyond 30 days."""
    if _is_number(delay) and math.isfinite(delay) and delay * 1000 > DELAY_MS_MAX:
        raise DelayTooLong(f"a delay of {delay} s, at most 30 days are allowed", limit=DELAY_MS_MAX)
    return milliseconds(delay, "delay", DELAY_MS_MAX)


def wall_ms(at: datetime | float, name: str) -> int:
    """Milliseconds since 1970 of an aware datetime or of seconds since 1970."""
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidArgument(
                f"{name} is a datetime without a time zone; datetime.now(UTC) has one, and .astimezone() adds the local"
                " one",
                field=name,
            )
        at = at.timestamp()
    return milliseconds(at, name, (1 << 47) - 1)


def message_number(message_id: str) -> int:
    """The number of a message id; raises `InvalidArgument` when it is none."""
    try:
        return parse_id(message_id)
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidArgument(f"{message_id!r} is not a message id: {error}") from None


# --- push ---------------------------------------------------------------------------------------------------
@attrs.frozen(kw_only=True)
class PushOptions:
    """What all messages of one push share; None leaves it to the queue's setting."""

    priority: int = 0
    delay: float | None = None
    deliver_at: datetime | float | None = None
    ttl: float | None = None
    max_attempts: int | None = None

    def request(self, queue: str, body: api.Columns) -> api.Push:
        """One batch."""
        if self.delay is not None and self.deliver_at is not None:
            raise InvalidArgument("delay and deliver_at exclude each other")
        return api.Push(
            queue,
            body,
            self.priority,
            None if self.delay is None else delay_ms(self.delay),
            None if self.deliver_at is None else wall_ms(self.deliver_at, "deliver_at"),
            None if self.ttl is None else milliseconds(self.ttl, "ttl", RETENTION_MS_MAX, 1),
            self.max_attempts,
        )


_PLAIN: Final = PushOptions()


def payload_bytes(payload: Payload) -> bytes:
    """The bytes of a payload; text is UTF-8.

    Raises:
        InvalidArgument: it is neither bytes-like nor text.
    """
    if type(payload) is bytes:
        return payload
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise InvalidArgument(f"a payload is bytes or text, not {type(payload).__name__}; json= encodes other values")


def push_one(
    queue: str,
    payload: Payload | None,
    json: Any,
    headers: Mapping[str, Any] | None,
    group: str | None,
    dedup_id: str | None,
    options: PushOptions,
) -> api.Push:
    """A batch of one message."""
    body = columns.pack(
        (payload_of(payload, json),),
        headers=None if headers is None else (headers,),
        groups=None if group is None else (group,),
        dedup=None if dedup_id is None else (dedup_id,),
    )
    return options.request(queue, body)


def payload_of(payload: Payload | None, json: Any) -> bytes:
    """The bytes of the one of both that was given.

    Raises:
        InvalidArgument: both or none, or a value without a JSON form.
    """
    if json is not UNSET:
        if payload is not None:
            raise InvalidArgument("give a payload or json=, not both")
        try:
            payload = json_module.dumps(json, separators=(",", ":"), ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(f"json= has no JSON form: {error}", field="json") from None
    elif payload is None:
        raise InvalidArgument("give a payload or json=")
    return payload_bytes(payload)


def headers_of(headers: Mapping[str, Any] | None) -> bytes:
    """Headers as they travel, empty for none; raises `InvalidArgument` when they are no plain values."""
    return columns.encode_headers(headers) if headers else b""


def push_many(
    queue: str,
    messages: api.Columns | Iterable[Payload | NewMessage],
    group: str | None,
    options: PushOptions,
) -> list[api.Push]:
    """Batches that hold the messages in order: one, unless there are more than one batch can take."""
    if isinstance(messages, api.Columns):
        return [options.request(queue, messages)] if messages.count else []
    if isinstance(messages, str | bytes | bytearray | memoryview):
        raise InvalidArgument("push_batch takes a list of messages; push takes one")
    entries = list(messages)
    requests = []
    for first, last in _stretches(entries):
        stretch = entries if last - first == len(entries) else entries[first:last]
        requests.append(options.request(queue, _columns(stretch, group)))
    return requests


def _stretches(entries: Sequence[Payload | NewMessage]) -> list[tuple[int, int]]:
    """(first, end) of each batch: as much as limits allow, so that most calls are one batch.

    Sizes are counted in characters for text, at most four bytes each: a batch is never too large, at worst
    half full.
    """
    if not entries:
        return []
    try:
        if len(entries) <= BATCH_MESSAGES_MAX and sum(map(len, entries)) * 4 <= BATCH_BYTES_MAX:  # type: ignore[arg-type]
            return [(0, len(entries))]
    except TypeError:
        pass  # not all plain payloads: measured one by one below
    found = []
    first = size = 0
    for position, entry in enumerate(entries):
        weight = _weight(entry)
        if position > first and (size + weight > BATCH_BYTES_MAX or position - first >= BATCH_MESSAGES_MAX):
            found.append((first, position))
            first, size = position, 0
        size += weight
    found.append((first, len(entries)))
    return found


def _weight(entry: Payload | NewMessage) -> int:
    if isinstance(entry, NewMessage):
        return _weight(entry.payload) + (len(columns.encode_headers(entry.headers)) if entry.headers else 0)
    return len(entry.encode()) if isinstance(entry, str) else len(payload_bytes(entry))


def _columns(entries: Sequence[Payload | NewMessage], group: str | None) -> api.Columns:
    count = len(entries)
    groups: Sequence[str | None] | None = None if group is None else (group,) * count
    if not any(isinstance(entry, NewMessage) for entry in entries):
        return columns.pack([payload_bytes(entry) for entry in entries], groups=groups)  # type: ignore[arg-type]
    whole = [entry if isinstance(entry, NewMessage) else NewMessage(entry) for entry in entries]
    if any(entry.group is not None for entry in whole):
        groups = tuple(group if entry.group is None else entry.group for entry in whole)
    return columns.pack(
        [payload_bytes(entry.payload) for entry in whole],
        headers=[entry.headers for entry in whole] if any(entry.headers for entry in whole) else None,
        groups=groups,
        dedup=[entry.dedup_id for entry in whole] if any(entry.dedup_id is not None for entry in whole) else None,
    )


def pushed(requests: Sequence[api.Push], replies: Sequence[api.Pushed | WalrqError]) -> MessageIds:
    """The ids of all messages.

    Raises:
        WalrqError: the only batch failed, or all failed for the same reason.
        BatchError: some of several batches failed, or for different reasons; `results` has the id of each message,
            None where it failed.
    """
    if len(replies) == 1:
        (reply,) = replies
        if isinstance(reply, WalrqError):
            raise reply
        return MessageIds((reply,))
    errors = [reply for reply in replies if isinstance(reply, WalrqError)]
    parts = [reply for reply in replies if isinstance(reply, api.Pushed)]
    if not errors:
        return MessageIds(parts)
    if not parts and len({type(error) for error in errors}) == 1:
        raise errors[0]
    failures = []
    results: list[str | None] = []
    for request, reply in zip(requests, replies, strict=True):
        count = request.columns.count
        if isinstance(reply, WalrqError):
            failures.append(EntryFailure((len(results), len(results) + count - 1), reply))
            results += [None] * count
        else:
            results += MessageIds((reply,))
    raise BatchError(failures, sum(part.count for part in parts), results)


# --- poll ---------------------------------------------------------------------------------------------------
def poll(
    queue: str | Sequence[str],
    visibility: float | None,
    max_messages: int,
    wait: float,
    worker: str | None,
) -> api.Poll:
    """A poll of one queue, or of the first of several that has messages."""
    return api.Poll(
        (queue,) if isinstance(queue, str) else tuple(queue),
        max_messages,
        None if visibility is None else milliseconds(visibility, "visibility", VISIBILITY_MS_MAX, 1),
        milliseconds(wait, "wait", POLL_WAIT_MS_MAX) if wait else 0,
        worker,
    )


def check_max_messages(number: int) -> None:
    """Raises `InvalidArgument` unless a poll may ask for so many messages."""
    if type(number) is not int or not 1 <= number <= POLL_MESSAGES_MAX:
        raise InvalidArgument(
            f"max_messages is {number!r}, allowed are 1 to {POLL_MESSAGES_MAX:,}",
            field="max_messages",
            limit=POLL_MESSAGES_MAX,
        )


# --- giving back --------------------------------------------------------------------------------------------
@attrs.frozen
class Settlement:
    """One settle or touch request and whom each of its items stands for."""

    queue: str
    items: tuple[api.Item, ...]
    entries: tuple[tuple[Message | Batch, ...], ...]


def settlements(what: Settleable) -> list[Settlement]:
    """The receipts and ranges of messages or batches, grouped so that one queue is one request."""
    if isinstance(what, Batch):
        return [Settlement(what.queue, (_item(what),), ((what,),))]
    if isinstance(what, Message):
        offset = what.offset
        return [Settlement(what.queue, (api.Item(what.batch.run.receipt, ((offset, offset),)),), ((what,),))]
    if not isinstance(what, Iterable):
        raise InvalidArgument(f"expected a message, a batch or a list of them, not {type(what).__name__}")
    queues: dict[str, dict[bytes, dict[int, Message]]] = {}
    batches: dict[bytes, dict[api.Range | None, Batch]] = {}
    for entry in what:
        if isinstance(entry, Message):
            run = entry.batch.run
            queues.setdefault(run.queue, {}).setdefault(run.receipt, {})[entry.offset] = entry
        elif isinstance(entry, Batch):
            queues.setdefault(entry.run.queue, {}).setdefault(entry.run.receipt, {})
            batches.setdefault(entry.run.receipt, {})[entry.window] = entry
        else:
            raise InvalidArgument(f"expected a message, a batch or a list of them, not {type(entry).__name__}")
    found = []
    for queue, receipts in queues.items():
        rows: list[tuple[api.Item, tuple[Message | Batch, ...]]] = []
        for receipt, by_offset in receipts.items():
            parts = batches.get(receipt, {})
            if None in parts:
                parts = {None: parts[None]}  # it stands for all the others
            for batch in parts.values():
                rows.append((_item(batch), (batch,)))
            offsets = sorted([offset for offset in by_offset if not any(_covers(each, offset) for each in parts)])
            if offsets:
                rows.append(
                    (api.Item(receipt, stretches_of(offsets)), tuple([by_offset[offset] for offset in offsets]))
                )
        for start in range(0, len(rows), SETTLE_ITEMS_MAX):
            part = rows[start : start + SETTLE_ITEMS_MAX]
            found.append(Settlement(queue, tuple([row[0] for row in part]), tuple([row[1] for row in part])))
    return found


def _covers(window: api.Range | None, offset: int) -> bool:
    return window is None or window[0] <= offset <= window[1]


def _item(batch: Batch) -> api.Item:
    """All of a batch that is still outstanding: of a whole run the server knows it best, of a part the batch does."""
    if batch.window is None:
        return api.Item(batch.run.receipt)
    first, last = batch.window
    rest = [offset for offset in range(first, last + 1) if not batch.settled_at(offset)]
    return api.Item(batch.run.receipt, stretches_of(rest) if rest else (batch.window,))


def handle_settlement(queue: str, message_id: str, receipt_handle: str) -> Settlement:
    """The receipt and offset inside a handle. The id is checked for its form only: the handle names the
    delivery."""
    check_queue_name(queue)
    message_number(message_id)
    receipt, offset = parse_handle(receipt_handle)
    return Settlement(queue, (api.Item(receipt, ((offset, offset),)),), ((),))


def given_back(
    what: Settleable | str, message_id: str | None = None, receipt_handle: str | None = None
) -> list[Settlement]:
    """The settlements of messages or batches, or of one message by queue, id and handle.

    Raises:
        InvalidArgument: a mixture of both.
        ReceiptInvalid: a handle that is none.
    """
    if isinstance(what, str):
        if message_id is None or receipt_handle is None:
            raise InvalidArgument("with a queue's name, give message_id and receipt_handle too")
        return [handle_settlement(what, message_id, receipt_handle)]
    if message_id is not None or receipt_handle is not None:
        raise InvalidArgument("message_id and receipt_handle belong to a queue's name, not to a message")
    return settlements(what)


def stretches_of(offsets: Sequence[int]) -> tuple[api.Range, ...]:
    """Rising offsets as stretches of neighbours."""
    found: list[api.Range] = []
    first = last = offsets[0]
    for offset in offsets[1:]:
        if offset != last + 1:
            found.append((first, last))
            first = offset
        last = offset
    found.append((first, last))
    return tuple(found)


def settle(
    part: Settlement,
    kind: api.SettleKind,
    delay: float | None = None,
    error: BaseException | str | None = None,
) -> api.Settle:
    """The request that gives a settlement back."""
    error_type = error_text = None
    if error is not None and kind in (api.SettleKind.FAIL, api.SettleKind.REJECT):
        if isinstance(error, BaseException):
            error_type = _cut(type(error).__name__, ERROR_TYPE_BYTES_MAX)
            error_text = text_of(error, ERROR_TEXT_BYTES_MAX)
        else:
            error_text = _cut(error, ERROR_TEXT_BYTES_MAX)
    return api.Settle(part.queue, kind, part.items, None if delay is None else delay_ms(delay), error_type, error_text)


def touch(part: Settlement, visibility: float) -> api.Touch:
    """The request that lengthens a settlement's leases."""
    return api.Touch(part.queue, part.items, milliseconds(visibility, "visibility", TIME_MS_MAX, VISIBILITY_MS_MIN))


def touched(parts: Sequence[Settlement], outcomes: Sequence[api.Touched | WalrqError], asked_at: float) -> None:
    """Move the deadlines of what was touched; then raise as `check_settled` does.

    Args:
        asked_at: monotonic seconds at which the request was made: the new lease counts from no earlier.
    """
    for part, outcome in zip(parts, outcomes, strict=True):
        if isinstance(outcome, WalrqError):
            continue
        for entries, code, left_ms in zip(part.entries, outcome.codes, outcome.remaining_ms, strict=True):
            if code:
                continue
            for entry in entries:
                entry.extend(asked_at + left_ms / 1000)
    check_settled(parts, [each if isinstance(each, WalrqError) else each.codes for each in outcomes], settling=False)


def nack_kind(mode: str, delay: float | None) -> api.SettleKind:
    """RELEASE, FAIL or REJECT by name."""
    kinds = {"release": api.SettleKind.RELEASE, "fail": api.SettleKind.FAIL, "reject": api.SettleKind.REJECT}
    kind = kinds.get(mode)
    if kind is None:
        raise InvalidArgument(f"mode is {mode!r}, allowed are release, fail and reject")
    if delay is not None and kind is not api.SettleKind.FAIL:
        raise InvalidArgument(
            "delay belongs to mode fail: a release returns at once, a reject goes to the dead-letter queue"
        )
    return kind


def _cut(text: str, bytes_max: int) -> str:
    data = text.encode("utf-8", "replace")
    return text if len(data) <= bytes_max else data[:bytes_max].decode("utf-8", "ignore")


def check_settled(
    parts: Sequence[Settlement], outcomes: Sequence[Sequence[int] | WalrqError], *, settling: bool = True
) -> None:
    """Nothing when every item of every part went through.

    Args:
        outcomes: per part its codes, or the error of the whole request.
        settling: the requests ended leases, so that what went through is marked as settled.

    Raises:
        WalrqError: the only message or batch failed, or all failed for the same reason.
        BatchError: some of several failed, or for different reasons.
    """
    if len(outcomes) == 1 and not isinstance(outcomes[0], WalrqError) and not any(outcomes[0]):
        if settling:
            for entries in parts[0].entries:
                for entry in entries:
                    entry.mark_settled()
        return
    if settling:
        _mark_settled(parts, outcomes)
    failures: list[EntryFailure] = []
    succeeded = 0
    for part, outcome in zip(parts, outcomes, strict=True):
        for number, entries in enumerate(part.entries):
            error = outcome if isinstance(outcome, WalrqError) else _item_error(part.queue, outcome[number])
            if error is None:
                succeeded += sum(len(entry) if isinstance(entry, Batch) else 1 for entry in entries)
            elif not entries:
                raise error
            else:
                failures += [EntryFailure(entry, error) for entry in entries]
    if not failures:
        return
    if not succeeded and len({type(failure.error) for failure in failures}) == 1:
        raise failures[0].error
    raise BatchError(failures, succeeded)


_OVER: Final = frozenset({0, int(Code.RECEIPT_EXPIRED)})


def _mark_settled(parts: Sequence[Settlement], outcomes: Sequence[Sequence[int] | WalrqError]) -> None:
    """Let messages and batches know that their leases are over: nobody needs to settle them again."""
    for part, outcome in zip(parts, outcomes, strict=True):
        if isinstance(outcome, WalrqError):
            continue
        for entries, code in zip(part.entries, outcome, strict=True):
            if code in _OVER:
                for entry in entries:
                    entry.mark_settled()


def note_unsettled(error: BaseException, refused: WalrqError) -> None:
    """Say on the error that left a `with` block that its messages could not be given back: they return when their
    lease is over. The block's own error is what the caller must see."""
    error.add_note(f"walrq: the messages of this block could not be given back: {refused.text}")


def _item_error(queue: str, code: int) -> WalrqError | None:
    if not code:
        return None
    text = _ITEM_TEXTS.get(code, f"it refused this item with code {code}")
    return from_code(code, f"{queue}: {text}")


_ITEM_TEXTS: Final = {
    int(Code.RECEIPT_EXPIRED): "the lease is over, and nothing changed: the message was acknowledged or given back"
    " before, or its time ran out; against that poll with a longer visibility, or touch the message while you work on"
    " it",
    int(Code.RECEIPT_INVALID): "this receipt was never issued for this queue; pass the handle on unchanged, with the"
    " queue it came from",
    int(Code.INVALID_ARGUMENT): "the receipt's lease has no message at this offset",
}


# --- the rest -----------------------------------------------------------------------------------------------
def state(name: str) -> api.State:
    """A state by name."""
    try:
        return api.State[name.upper()]
    except (KeyError, AttributeError):
        known = ", ".join(member.name.lower() for member in api.State)
        raise InvalidArgument(f"state is {name!r}, allowed are {known}") from None


def where(
    reason: str | None, error_type: str | None, error_contains: str | None, ids: Sequence[str] | None
) -> api.Filter | None:
    """A filter of dead messages, None when it would let all through."""
    if reason is None and error_type is None and error_contains is None and ids is None:
        return None
    return api.Filter(
        reason,
        error_type,
        error_contains,
        None if ids is None else tuple([message_number(each) for each in ids]),
    )


OUTCOME_NAMES: Final[Mapping[api.Outcome, str]] = {outcome: outcome.name.lower() for outcome in api.Outcome}


def seen_id(seen: api.Peeked) -> str:
    """The id of a peeked message as text."""
    return format_id(seen.id)


def token(
    name: str,
    secret: str,
    grants: Iterable[api.Grant],
    requests_per_s: int | None,
    bytes_per_s: int | None,
    in_flight: int | None,
) -> api.SetToken:
    """The request that makes a token known.

    Raises:
        InvalidArgument: a secret that is too short to be one.
    """
    if len(secret.encode()) < TOKEN_SECRET_BYTES_MIN:
        raise InvalidArgument(
            f"a secret of {len(secret.encode())} bytes, it needs at least {TOKEN_SECRET_BYTES_MIN}",
            field="secret",
            limit=TOKEN_SECRET_BYTES_MIN,
        )
    digest = hashlib.sha256(secret.encode()).digest()
    return api.SetToken(name, digest, tuple(grants), requests_per_s, bytes_per_s, in_flight)
