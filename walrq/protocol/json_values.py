"""Fields of JSON requests: what each may be, as a check and as a schema, from one definition.

A `Field` reads one value of a decoded object and says in the words of JSON Schema what it accepts (the HTTP door's
page of operations is made of these). The checks are those of `fields.py`; what differs is what JSON cannot say:
message ids are their text of 26 characters, receipts the handles of single messages (56 hexadecimal digits), states
words, payloads text or base64.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from walrq import api
from walrq.errors import InvalidArgument, ReceiptInvalid
from walrq.ids import format_id, make_handle, parse_handle, parse_id
from walrq.limits import BATCH_MESSAGES_MAX, QUEUE_NAME_BYTES_MAX, SETTLE_ITEMS_MAX
from walrq.protocol import fields
from walrq.protocol.json_text import from_text

Schema: TypeAlias = Mapping[str, Any]
Object: TypeAlias = Mapping[str, Any]


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()


@attrs.frozen
class Field:
    """One field of an object.

    Attributes:
        name: its key.
        read: (value, name for errors) -> the checked value; raises RequestError.
        schema: what it accepts, in the words of JSON Schema 2020-12.
        default: what it is when it is left out or null; `REQUIRED` when it must be there.
        about: one line for people.
    """

    name: str
    read: Callable[[Any, str], Any]
    schema: Schema
    default: Any = REQUIRED
    about: str = ""


def read_object(value: object, what: str, table: Sequence[Field], prefix: str = "") -> dict[str, Any]:
    """The fields of one object, checked, defaults filled in; `what` it is goes into errors.

    Raises:
        InvalidArgument: not an object, a field that is not known (with the nearest one) or missing; or the error of
            the field that is wrong.
    """
    if type(value) is not dict:
        fields.refuse(prefix.rstrip(".") or what, value, "an object")
    left = dict(value)
    made = {}
    for field in table:
        given = left.pop(field.name, None)
        if given is not None:
            made[field.name] = field.read(given, prefix + field.name)
        elif field.default is REQUIRED:
            raise InvalidArgument(f"{what} needs {field.name}", field=prefix + field.name)
        else:
            made[field.name] = field.default
    for name in left:
        known = [field.name for field in table]
        near = difflib.get_close_matches(name[:80], known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}" if known else "it has none"
        raise InvalidArgument(f"{what} has no field {name[:80]!r}; {hint}", field=prefix + name[:80])
    return made


# --- kinds of fields ----------------------------------------------------------------------------------------
def integer(name: str, most: int, least: int = 0, default: Any = REQUIRED, about: str = "") -> Field:
    """An integer from `least` to `most`."""
    return Field(
        name,
        lambda value, field: fields.uint(value, field, most, least),
        {"type": "integer", "minimum": least, "maximum": most},
        default,
        about,
    )


def boolean(name: str, default: bool, about: str = "") -> Field:
    """True or false."""
    return Field(name, fields.flag, {"type": "boolean"}, default, about)


def text(name: str, bytes_max: int, default: Any = REQUIRED, about: str = "", least: int = 0) -> Field:
    """Text of `least` to `bytes_max` bytes of UTF-8."""

    def read(value: object, field: str) -> str:
        if type(value) is str:
            from_text(value, field)
        good = fields.text(value, field, bytes_max)
        if len(good) < least:
            raise InvalidArgument(f"{field} is empty", field=field, limit=least)
        return good

    return Field(name, read, {"type": "string", "minLength": least, "maxLength": bytes_max}, default, about)


def queue(name: str = "queue", default: Any = REQUIRED, about: str = "the queue's name") -> Field:
    """A queue's name."""
    schema = {"type": "string", "minLength": 1, "maxLength": QUEUE_NAME_BYTES_MAX}
    return Field(name, fields.queue_name, schema, default, about)


def listed(field: Field, most: int, least: int = 0, default: Any = REQUIRED, about: str = "") -> Field:
    """An array of what `field` reads."""

    def read(value: object, name: str) -> tuple[Any, ...]:
        return tuple([field.read(each, name) for each in fields.array(value, name, most, least)])

    schema = {"type": "array", "items": dict(field.schema), "minItems": least, "maxItems": most}
    return Field(field.name, read, schema, default, about)


def _message_id(value: object, field: str) -> int:
    if type(value) is not str:
        fields.refuse(field, value, "a message id (26 characters)")
    try:
        return parse_id(value)
    except ValueError as error:
        raise InvalidArgument(f"{field}: {error}", field=field) from None


def message_id(name: str, default: Any = REQUIRED, about: str = "a message's id") -> Field:
    """A message id, as text."""
    return Field(name, _message_id, {"type": "string", "pattern": "^[0-7][0-9A-HJKMNP-TV-Z]{25}$"}, default, about)


def _handle(value: object, field: str) -> api.Item:
    if type(value) is not str:
        fields.refuse(field, value, "a receipt handle (56 characters)")
    try:
        receipt, offset = parse_handle(value)
    except ReceiptInvalid as error:
        raise ReceiptInvalid(f"{field}: {error.text}", field=field) from None
    if offset >= BATCH_MESSAGES_MAX:
        raise ReceiptInvalid(f"{field}: no lease has a message {offset}", field=field)
    return api.Item(receipt, ((offset, offset),))


HANDLES: Final = (
    Field(
        "receipt_handle",
        _handle,
        {"type": "string", "pattern": "^[0-9a-fA-F]{56}$"},
        None,
        "of one message, as its poll gave it",
    ),
    Field(
        "receipt_handles",
        lambda value, name: tuple([_handle(each, name) for each in fields.array(value, name, SETTLE_ITEMS_MAX, 1)]),
        {
            "type": "array",
            "items": {"type": "string", "pattern": "^[0-9a-fA-F]{56}$"},
            "minItems": 1,
            "maxItems": SETTLE_ITEMS_MAX,
        },
        None,
        "of several messages of the queue",
    ),
)
"""Whose lease it is: one handle, or several; `items_of` wants exactly one of the two."""


def items_of(given: Object) -> tuple[api.Item, ...]:
    """The messages that `HANDLES` named, one item each, so that each has a code of its own in the reply."""
    one, many = given["receipt_handle"], given["receipt_handles"]
    if (one is None) == (many is None):
        raise InvalidArgument("give one of receipt_handle and receipt_handles", field="receipt_handle")
    return many if one is None else (one,)


def handles_of(items: Sequence[api.Item]) -> list[str]:
    """The handles of items that name single messages or stretches of them.

    Raises:
        InvalidArgument: an item names all that is left of a lease, which no handle does.
    """
    handles = []
    for item in items:
        if item.ranges is None:
            raise InvalidArgument("JSON names single messages, not what is left of a lease", field="receipt_handles")
        for first, last in item.ranges:
            handles += [make_handle(item.receipt, offset) for offset in range(first, last + 1)]
    return handles


def word(name: str, words: Mapping[str, Any], default: Any = REQUIRED, about: str = "") -> Field:
    """One of a few words, each with its meaning."""

    def read(value: object, field: str) -> Any:
        if type(value) is not str:
            fields.refuse(field, value, f"one of {', '.join(words)}")
        if value not in words:
            raise InvalidArgument(f"{field} is {value[:80]!r}, allowed are {', '.join(words)}", field=field)
        return words[value]

    return Field(name, read, {"type": "string", "enum": [*words]}, default, about)


def id_texts(ids: Sequence[int]) -> list[str]:
    """Message ids as text."""
    return [format_id(each) for each in ids]
