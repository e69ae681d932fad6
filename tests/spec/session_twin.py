"""The real table of sessions, in a whole machine, behind the actions of spec/Session.tla.

Request n of session s is a push to a queue of its own, whose length tells how often it took effect. The module's time
for idling is an hour of the lease clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from walrq import api
from walrq.api import Columns
from walrq.errors import Code
from walrq.formal.values import Function, function
from walrq.limits import SESSION_IDLE_MS
from walrq.queues import commands, image
from walrq.queues.commands import Stamp, Tagged
from walrq.queues.effects import Result
from walrq.queues.machine import Bounds, Machine

START_MS = 1_000_000
UNKNOWN = (Code.SESSION_ENDED, Code.OUTCOME_UNKNOWN)
# A close has a sequence of its own, behind all others; it is never remembered.
CLOSING = 1000


class SessionTwin:
    """A machine and its clients' sessions."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self.constants = constants
        self.bounds = Bounds(session_window_max=constants["Window"])
        self.machine = Machine(self.bounds)
        self.index = 0
        self.now = START_MS
        self.unit_ms = SESSION_IDLE_MS // constants["Idle"]
        self.lag = 0
        self.numbers: list[int] = []

    def apply(self, act: Mapping[str, Any]) -> bool:
        """Do what the action says; whether its answer is the module's (if the module tells)."""
        op = act["op"]
        if op == "Tick":
            self.lag += 1
            return True
        if op == "Snapshot":
            self.machine = image.load(list(image.full_pages(self.machine).items()), self.bounds)
            return True
        self.now += self.lag * self.unit_ms
        self.lag = 0
        self.index += 1
        results = self.machine.apply(self.index, Stamp(self.now, self.now), self.entry(act))
        if op == "OpenSession":
            (opened,) = results
            assert isinstance(opened, api.SessionOpened)
            self.numbers.append(opened.session)
        return op not in ("Push", "CloseSession") or act.get("answer") in (None, answer_of(results[0]))

    def entry(self, act: Mapping[str, Any]) -> list[Tagged]:
        """The entry of an action."""
        op = act["op"]
        if op == "OpenSession":
            return [Tagged(commands.OpenSession())]
        if op == "Reap":
            return []
        number = self.numbers[act["s"] - 1]
        if op == "KeepSessions":
            return [Tagged(commands.KeepSessions((number,)))]
        if op == "CloseSession":
            return [Tagged(commands.CloseSession(), number, CLOSING, act["lowest"])]
        push = commands.Push(queue_of(act["s"], act["n"]), Columns(b"x", (1).to_bytes(4, "little")))
        return [Tagged(push, number, act["n"], act["lowest"])]

    def project(self) -> Function:
        """The variables table, opened, effects and lag."""
        requests = range(1, self.constants["MaxRequests"] + 1)
        table = {}
        for s, number in enumerate(self.numbers, start=1):
            session = self.machine.sessions.table.get(number)
            if session is not None:
                results = tuple("ok" if n in session.results else "none" for n in requests)
                left = (session.last_ms + SESSION_IDLE_MS - self.now) // self.unit_ms
                # Until a client says otherwise the lowest unanswered request is its first one.
                table[s] = Function(left=left, lowest=max(1, session.lowest), results=results)
        effects = tuple(
            tuple(self.length(queue_of(s, n)) for n in requests) for s in range(1, self.constants["MaxSessions"] + 1)
        )
        return Function(table=function(table), opened=len(self.numbers), effects=effects, lag=self.lag)

    def length(self, name: str) -> int:
        """How many messages are in a queue."""
        queue = self.machine.queues.get(name)
        return queue.length if queue is not None else 0


def queue_of(s: int, n: int) -> str:
    """The queue of request n of session s."""
    return f"effects-{s}-{n}"


def answer_of(result: Result) -> str:
    """The module's word for an answer."""
    if not isinstance(result, api.Failed):
        return "ok"
    return "unknown" if result.code in UNKNOWN else "refused"


class SessionBinding:
    """Models of Session and `SessionTwin`."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self.constants = constants

    def make(self) -> SessionTwin:
        """A twin without sessions."""
        return SessionTwin(self.constants)

    def start(self) -> Function:
        """Nothing there, nothing sent."""
        sessions, requests = self.constants["MaxSessions"], self.constants["MaxRequests"]
        ghosts = {"answers": (("none",) * requests,) * sessions, "sent": (0,) * sessions, "closed": frozenset()}
        return Function({**self.make().project(), **ghosts})

    def candidates(self, state: Function) -> Iterator[Function]:
        """See the module's Next."""
        opened = state["opened"]
        if opened < self.constants["MaxSessions"]:
            yield Function(op="OpenSession")
        for s in range(1, opened + 1):
            answers, sent = state["answers"][s - 1], state["sent"][s - 1]
            lowest = next((n for n in range(1, sent + 1) if answers[n - 1] == "none"), sent + 1)
            for n in range(1, min(sent + 1, self.constants["MaxRequests"]) + 1):
                for said in range(1, min(lowest, n) + 1):
                    yield Function(op="Push", s=s, n=n, lowest=said)
            yield Function(op="KeepSessions", s=s)
            if s not in state["closed"]:
                yield Function(op="CloseSession", s=s, lowest=lowest)
        if state["lag"]:
            yield Function(op="Reap")
        if state["lag"] < self.constants["MaxLag"]:
            yield Function(op="Tick")
        if self.constants["Snapshots"]:
            yield Function(op="Snapshot")

    def within(self, projected: Function) -> bool:
        """There is no bound of its own."""
        return True
