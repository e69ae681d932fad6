"""A call as it travels: positional and keyword arguments in CBOR, checked before they leave.

Pure. Only values that come back equal are taken (a tuple comes back as a list), never code: there is no pickle here.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any, Final
from uuid import UUID

import cbor2

from walrq.errors import InvalidArgument

# Nested lists and maps deeper than this are a mistake (a list that holds itself), and cbor2 reads 400 at most.
DEPTH_MAX: Final = 100

_PLAIN: Final = (str, bytes, bytearray, int, float, bool, type(None))
_RICH: Final = (date, Decimal, Fraction, UUID, IPv4Address, IPv6Address, IPv4Network, IPv6Network)
_KNOWN: Final = frozenset({*_PLAIN, Decimal, Fraction, UUID})


def bind(name: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check that a call fits its function, without calling it.

    Raises:
        TypeError: naming the task and the missing or unexpected argument, as Python would at the call.
    """
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"task {name!r}: {error}") from None


def encode(name: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """The payload of a call: `[args, kwargs]` in CBOR.

    Raises:
        TypeError: the call does not fit the signature.
        InvalidArgument: naming the argument that has no CBOR form.
    """
    bind(name, signature, args, kwargs)
    for position, each in enumerate(args):
        if type(each) not in _KNOWN:
            _check(each, lambda position=position: _positional(signature, position), name, 0)
        elif type(each) is str:
            _check_text(each, _positional(signature, position), name)
    for key, each in kwargs.items():
        _check(each, lambda key=key: key, name, 0)
    return cbor2.dumps([list(args), dict(kwargs)])


def decode(payload: bytes) -> tuple[list[Any], dict[str, Any]]:
    """The arguments in a payload.

    Raises:
        InvalidArgument: it is not `[args, kwargs]` in CBOR.
    """
    try:
        call = cbor2.loads(payload)
    except (cbor2.CBORError, ValueError, TypeError, ArithmeticError) as error:
        raise InvalidArgument(f"the payload is not the call of a task: {error}") from None
    match call:
        case [list(args), dict(kwargs)] if all(type(key) is str for key in kwargs):
            return args, kwargs
    raise InvalidArgument("the payload is not the call of a task: expected [arguments, {name: argument}] in CBOR")


def readable(name: str, payload: bytes) -> str | None:
    """A call as it would be written, `resize("letter.txt", width=3)`; None when the payload holds none."""
    try:
        args, kwargs = decode(payload)
    except InvalidArgument:
        return None
    given = [_written(each) for each in args] + [f"{key}={_written(each)}" for key, each in kwargs.items()]
    return f"{name}({', '.join(given)})"


def _written(value: Any) -> str:
    """As `repr`, with double quotes as people write them; control characters are escaped."""
    if isinstance(value, str):
        text = repr(value)
        return text if text[0] == '"' else '"' + text[1:-1].replace('"', '\\"').replace("\\'", "'") + '"'
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_written(key)}: {_written(each)}' for key, each in value.items())}}}"
    return repr(value)


def _positional(signature: inspect.Signature, position: int) -> str:
    """The name under which the function knows its argument at `position`."""
    names = [
        each
        for each in signature.parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD, each.VAR_POSITIONAL)
    ]
    if position < len(names) and names[position].kind is not inspect.Parameter.VAR_POSITIONAL:
        return names[position].name
    return f"{names[-1].name}[{position - len(names) + 1}]"


def _check(value: Any, path: Any, task: str, depth: int) -> None:
    """Raise unless `value` and all within it come back equal. `path` is called only to name what does not."""
    if isinstance(value, str):
        _check_text(value, path(), task)
    elif isinstance(value, _PLAIN):
        return
    elif depth >= DEPTH_MAX:
        raise InvalidArgument(f"argument {path()!r:.200} of task {task!r} is nested deeper than {DEPTH_MAX} levels")
    elif isinstance(value, list | tuple):
        for position, each in enumerate(value):
            _check(each, lambda position=position: f"{path()}[{position}]", task, depth + 1)
    elif isinstance(value, dict):
        for key, each in value.items():
            _check(key, lambda key=key: f"{path()}, key {key!r}", task, depth + 1)
            _check(each, lambda key=key: f"{path()}[{key!r}]", task, depth + 1)
    elif isinstance(value, set | frozenset):
        for each in value:
            _check(each, lambda each=each: f"{path()}, member {each!r}", task, depth + 1)
    elif isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidArgument(
                f"argument {path()!r} of task {task!r}: a datetime without a time zone has no CBOR form;"
                " use datetime.now(UTC)"
            )
    elif not isinstance(value, _RICH):
        raise InvalidArgument(f"argument {path()!r} of task {task!r}: {_type_name(value)} has no CBOR form")


def _check_text(text: str, path: str, task: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"argument {path!r} of task {task!r}: a text with half a character pair") from None


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
