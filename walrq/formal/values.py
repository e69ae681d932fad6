"""TLA+ values as Python values, and back.

    TLA+                          Python
    1  TRUE  "text"               int, bool, str
    m1 (a model value)            Model("m1")
    <<a, b>>                      tuple
    {a, b}  1..3                  frozenset
    [f |-> v]  (k :> v @@ ...)    Function, an immutable mapping; over 1..n it is a tuple, as TLA+ sees it

Pure. All of them can be hashed, so that they can stand in sets and be keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import attrs


class BadValue(Exception):
    """A text that is no TLA+ value as TLC prints them: where, and what was expected there."""


@attrs.frozen
class Model:
    """A model value: equal to itself only."""

    name: str


class Function(Mapping[Any, Any]):
    """A function or record. Immutable; equal to any mapping with the same items."""

    __slots__ = ("_hash", "_items")

    def __init__(self, items: Mapping[Any, Any] | None = None, **fields: Any) -> None:
        self._items: dict[Any, Any] = {**(items or {}), **fields}
        self._hash: int | None = None

    def __getitem__(self, key: Any) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._items.items()))
        return self._hash

    def __repr__(self) -> str:
        return render(self)


Value: TypeAlias = int | bool | str | Model | tuple[Any, ...] | frozenset[Any] | Function

_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<number>-?\d+)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<sign><<|>>|\|->|:>|@@|\.\.|[\[\]{}(),])
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES: Final = {'"': '"', "\\": "\\", "n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_ESCAPED: Final = {value: f"\\{key}" for key, value in _ESCAPES.items()}
_FIELD: Final = re.compile(r"[A-Za-z_]\w*")


def function(items: Mapping[Any, Any]) -> Value:
    """A mapping as TLA+ sees it: over 1..n it is a sequence."""
    # A Boolean is equal to a number in Python and to none in TLA+.
    numbered = all(type(key) is int for key in items) and set(items) == set(range(1, len(items) + 1))
    return tuple(items[key] for key in range(1, len(items) + 1)) if numbered else Function(items)


def parse(text: str) -> Value:
    """The value that `text` is.

    Raises:
        BadValue: it is none.
    """
    reader = _Reader(text)
    value = reader.value()
    if reader.kind:
        raise BadValue(f"column {reader.start}: nothing should follow the value, found {reader.text!r}")
    return value


class _Reader:
    """A text with one token of look-ahead (`kind` is empty at the end)."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._end = 0
        self.start = 0
        self.kind = ""
        self.text = ""
        self._step()

    def _step(self) -> None:
        found = _TOKEN.match(self._source, self._end)
        if found is None:
            rest = self._source[self._end :].strip()
            if rest:
                raise BadValue(f"column {self._end}: {rest[:20]!r} begins no value")
            self.kind = self.text = ""
            self.start = self._end
            return
        self.kind = found.lastgroup or ""
        self.text = found[self.kind]
        self.start = found.start(self.kind)
        self._end = found.end()

    def _take(self) -> str:
        text = self.text
        self._step()
        return text

    def _at(self, sign: str) -> bool:
        return self.kind == "sign" and self.text == sign

    def _expect(self, sign: str) -> None:
        if not self._at(sign):
            raise BadValue(f"column {self.start}: expected {sign}, found {self.text or 'the end'!r}")
        self._step()

    def value(self) -> Value:
        """The value that starts here."""
        if self.kind == "number":
            first = int(self._take())
            if not self._at(".."):
                return first
            self._step()
            if self.kind != "number":
                raise BadValue(f"column {self.start}: expected a number behind `..`")
            return frozenset(range(first, int(self._take()) + 1))
        if self.kind == "string":
            return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), self._take()[1:-1], flags=re.DOTALL)
        if self.kind == "name":
            name = self._take()
            return name == "TRUE" if name in ("TRUE", "FALSE") else Model(name)
        if self._at("<<"):
            return tuple(self._listed(">>"))
        if self._at("{"):
            return frozenset(self._listed("}"))
        if self._at("["):
            return self._mapping("|->", ",", "]")
        if self._at("("):
            return self._mapping(":>", "@@", ")")
        raise BadValue(f"column {self.start}: expected a value, found {self.text or 'the end'!r}")

    def _listed(self, closing: str) -> list[Value]:
        self._step()
        values: list[Value] = []
        while not self._at(closing):
            if values:
                self._expect(",")
            values.append(self.value())
        self._step()
        return values

    def _mapping(self, arrow: str, comma: str, closing: str) -> Value:
        self._step()
        items: dict[Any, Any] = {}
        while not self._at(closing):
            if items:
                self._expect(comma)
            # The name of a record's field is a string in TLA+.
            key: Any = self._take() if arrow == "|->" and self.kind == "name" else self.value()
            self._expect(arrow)
            items[key] = self.value()
        self._step()
        return function(items)


def render(value: Any) -> str:
    """`value` as a TLA+ expression (functions need `EXTENDS TLC`).

    Raises:
        BadValue: it is nothing that TLA+ has.
    """
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return '"' + "".join(_ESCAPED.get(character, character) for character in value) + '"'
    if isinstance(value, Model):
        return value.name
    if isinstance(value, tuple | list):
        return f"<<{', '.join(map(render, value))}>>"
    if isinstance(value, frozenset | set):
        # In the order of their texts: the same set is the same text.
        return "{" + ", ".join(sorted(map(render, value))) + "}"
    if isinstance(value, Mapping):
        seen = function(value)
        if isinstance(seen, tuple):
            return render(seen)
        if all(isinstance(key, str) and _FIELD.fullmatch(key) for key in value):
            return f"[{', '.join(f'{key} |-> {render(value[key])}' for key in sorted(value))}]"
        pairs = sorted((render(key), render(each)) for key, each in value.items())
        return f"({' @@ '.join(f'{key} :> {each}' for key, each in pairs)})"
    raise BadValue(f"{type(value).__name__} has no TLA+ value")


_BINDING: Final = re.compile(r"^(?:/\\ )?([A-Za-z_]\w*) = ", re.MULTILINE)


def parse_state(text: str) -> Function:
    r"""A state as TLC prints it, `/\ name = value` per variable, as a mapping of values by name.

    Raises:
        BadValue: it is no state.
    """
    found = list(_BINDING.finditer(text))
    if not found:
        raise BadValue(f"no variable in {text[:40]!r}")
    ends = [each.start() for each in found[1:]] + [len(text)]
    return Function({each[1]: parse(text[each.end() : end]) for each, end in zip(found, ends, strict=True)})
