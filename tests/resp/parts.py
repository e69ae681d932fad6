"""A connection without a node: what it asks is written down, and answered as a test says."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from walrq import api
from walrq.ids import task_receipt
from walrq.resp.commands import COMMANDS
from walrq.resp.connection import Ask, RespConnection


class FakeGuard:
    """Who logged in."""

    class principal:
        name = "default"


class FakeHost:
    """A node that knows a password, or none."""

    version = "1.2.3"
    name = "n1"

    def __init__(self, password: bytes | None = None) -> None:
        self.password = password
        self.places: dict[int, str] = {}

    @property
    def has_password(self) -> bool:
        return self.password is not None

    def admits(self, user: bytes | None, password: bytes, peer: str) -> FakeGuard | None:
        return FakeGuard() if user in (None, b"default") and password == self.password else None

    def cursor(self, after: str) -> int:
        self.places[len(self.places) + 1] = after
        return len(self.places)

    def place(self, cursor: int) -> str | None:
        return self.places.get(cursor)


class Talk:
    """A client and its connection."""

    def __init__(self, password: bytes | None = None) -> None:
        self.connection = RespConnection(FakeHost(password), 7, COMMANDS)
        self.open: list[Ask] = []

    def send(self, *commands: str | bytes) -> bytes:
        """Send commands, each a line of words; what is answered at once."""
        return self.raw(b"".join([frame(*_words(command)) for command in commands]))

    def raw(self, data: bytes) -> bytes:
        """Send bytes; what is answered at once."""
        self.connection.receive(data)
        return self.said()

    def said(self) -> bytes:
        """What has been answered since."""
        self.open += self.connection.take_asks()
        return self.connection.take_output()

    @property
    def asked(self) -> list[Any]:
        """The requests without an answer."""
        return [ask.request for ask in self.open]

    def answer(self, reply: Any, targets: Sequence[Any] = (), position: int = 0) -> bytes:
        """Answer one of them, the first unless said otherwise; what the client reads then."""
        ask = self.open.pop(position)
        self.connection.answer(ask.id, reply, targets)
        return self.said()


def _words(command: str | bytes) -> list[bytes]:
    return (command.encode() if isinstance(command, str) else command).split(b" ")


def frame(*words: bytes) -> bytes:
    """A command as clients send it."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def polled(*payloads: bytes, queue: str = "q", task: int | None = None) -> api.Polled:
    """A poll's answer: one run of these messages, or with `task` a numbered lease each from that number on."""
    if task is not None:
        return api.Polled(
            0, 30_000, tuple(_run(queue, task_receipt(task + k), [each]) for k, each in enumerate(payloads))
        )
    return api.Polled(0, 30_000, (_run(queue, b"r" * 20, payloads),) if payloads else ())


def _run(queue: str, receipt: bytes, payloads: Sequence[bytes]) -> api.Delivered:
    # Slices of a larger batch have offsets that do not begin at 0.
    base = 11
    ends = []
    for payload in payloads:
        ends.append((ends[-1] if ends else base) + len(payload))
    packed = struct.pack(f"<{len(ends)}I", *ends)
    return api.Delivered(queue, receipt, len(payloads), 1, 1, 0, (1, 0), 0, 0, None, base, packed, b"".join(payloads))


def pushed(number: int, count: int = 1) -> api.Pushed:
    """The answer of a counted push."""
    return api.Pushed(1, count, None, (), number)
