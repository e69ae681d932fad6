"""An exact judge for the part of CDDL (RFC 8610) that spec/protocol.cddl uses.

pycddl judges the same frames, but accepts much that the grammar forbids inside nested arrays; this one is
small enough to be sure of, so that the decoder and the contract can be compared in what they refuse, too. It
knows: rules, choices, arrays (one entry may carry an occurrence), literals, ranges, `.size`, tag 70, and maps
    `{* tstr => any}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from cbor2 import CBORTag

Match = Callable[[Any], bool]
TOKEN = re.compile(
    r"""\s+|;[^\n]*|(?P<text>"[^"]*")|(?P<tag>\#6\.\d+)|(?P<control>\.size)|(?P<dots>\.\.)|(?P<arrow>=>)"""
    r"""|(?P<number>\d+)|(?P<name>[a-zA-Z][\w-]*)|(?P<mark>[\[\]{}()=/:,*+])"""
)


class Grammar:
    """The rules of one CDDL text; `matches(rule, value)` judges a decoded CBOR item."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        position = 0
        while position < len(text):
            found = TOKEN.match(text, position)
            if found is None:
                raise ValueError(f"no CDDL at {text[position : position + 40]!r}")
            if found.lastgroup is not None:
                self._tokens.append(found.group())
            position = found.end()
        self._at = 0
        self.rules: dict[str, Match] = {}
        while self._at < len(self._tokens):
            name = self._take()
            self._expect("=")
            if name in self.rules:
                raise ValueError(f"rule {name} is defined twice")
            self.rules[name] = self._choice()
        self._builtins: dict[str, Match] = {
            "uint": lambda v: type(v) is int and 0 <= v < 1 << 64,
            "int": lambda v: type(v) is int,
            "bool": lambda v: type(v) is bool,
            "null": lambda v: v is None,
            "tstr": lambda v: type(v) is str,
            "bstr": lambda v: type(v) is bytes,
            "any": lambda v: True,
        }
        missing = {t for t in self._used if t not in self.rules and t not in self._builtins}
        if missing:
            raise ValueError(f"rules without a definition: {missing}")

    _used: set[str]

    def matches(self, rule: str, value: Any) -> bool:
        """Whether the decoded item fits the rule."""
        return self._named(rule)(value)

    def _named(self, name: str) -> Match:
        return self.rules.get(name) or self._builtins[name]

    def _peek(self, ahead: int = 0) -> str:
        index = self._at + ahead
        return self._tokens[index] if index < len(self._tokens) else ""

    def _take(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, token: str) -> None:
        taken = self._take()
        if taken != token:
            raise ValueError(f"{token!r} expected, {taken!r} found near {self._tokens[self._at - 5 : self._at]}")

    def _choice(self) -> Match:
        options = [self._type()]
        while self._peek() == "/":
            self._take()
            options.append(self._type())
        return options[0] if len(options) == 1 else lambda v: any(option(v) for option in options)

    def _type(self) -> Match:
        token = self._take()
        if token == "[":
            return self._array()
        if token == "{":
            for part in ("*", "tstr", "=>", "any", "}"):
                self._expect(part)
            return lambda v: type(v) is dict and all(type(key) is str for key in v)
        if token == "(":
            inner = self._choice()
            self._expect(")")
            return inner
        if token.startswith("#6."):
            tag = int(token[3:])
            self._expect("(")
            content = self._choice()
            self._expect(")")
            return lambda v: isinstance(v, CBORTag) and v.tag == tag and content(v.value)
        if token.startswith('"'):
            return lambda v: type(v) is str and v == token[1:-1]
        if token.isdigit():
            low = high = int(token)
            if self._peek() == "..":
                self._take()
                high = int(self._take())
            return lambda v: type(v) is int and low <= v <= high
        if self._peek() == ".size":
            self._take()
            if self._peek() == "(":
                self._take()
                least = int(self._take())
                self._expect("..")
                most = int(self._take())
                self._expect(")")
            else:
                least = most = int(self._take())
            return lambda v: self._named(token)(v) and least <= _size(v) <= most
        self._remember(token)
        return lambda v: self._named(token)(v)

    def _remember(self, name: str) -> None:
        if "_used" not in self.__dict__:
            self._used = set()
        self._used.add(name)

    def _array(self) -> Match:
        entries: list[tuple[int, int, Match]] = []
        while self._peek() != "]":
            least, most = self._occurrence()
            if self._peek(1) == ":":
                self._take()
                self._take()
            entries.append((least, most, self._choice()))
            if self._peek() == ",":
                self._take()
        self._take()
        if any(least != most for least, most, _ in entries) and len(entries) > 1:
            raise ValueError("an array with an occurrence and other entries is beyond this judge")

        def match(value: Any) -> bool:
            if type(value) is not list:
                return False
            if len(entries) == 1:
                least, most, entry = entries[0]
                return least <= len(value) <= most and all(map(entry, value))
            return len(value) == len(entries) and all(
                entry(item) for (_, _, entry), item in zip(entries, value, strict=True)
            )

        return match

    def _occurrence(self) -> tuple[int, int]:
        if self._peek() == "+":
            self._take()
            return 1, 1 << 62
        if self._peek() == "*":
            self._take()
            return 0, 1 << 62
        if self._peek(1) == "*":
            least = int(self._take())
            self._take()
            return least, int(self._take())
        return 1, 1


def _size(value: str | bytes) -> int:
    return len(value.encode()) if isinstance(value, str) else len(value)
