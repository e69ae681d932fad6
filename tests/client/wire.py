"""An exchange joined to the server's end of the protocol by two function calls: no socket, no thread, time by
hand."""

from __future__ import annotations

import random
from typing import Any

import attrs

from walrq import api
from walrq.client.config import ClientConfig
from walrq.client.exchange import Call, Exchange
from walrq.protocol.handshake import Hello, Shards, Welcome
from walrq.protocol.requests import Incoming
from walrq.protocol.server import ServerConnection

PUSHED = api.Pushed(1, 1)


def push(payload: bytes = b"x", queue: str = "q") -> api.Push:
    """A batch of one."""
    return api.Push(queue, api.Columns(payload, len(payload).to_bytes(4, "little")))


@attrs.define(eq=False)
class Wire:
    """One client and the server it talks to, over any number of connections.

    Attributes:
        now: monotonic seconds of the client.
        sessions: those the server resumes; a request under another is for the test to refuse.
        trusting: resume whatever session the Hello names, as a node does that looks at requests only.
    """

    exchange: Exchange
    server: ServerConnection | None = None
    now: float = 100.0
    sessions: set[int] = attrs.field(factory=set)
    trusting: bool = False
    hellos: list[Hello] = attrs.field(factory=list)
    arrived: list[Incoming] = attrs.field(factory=list)
    finished: list[Call] = attrs.field(factory=list)

    def welcome(self, hello: Hello) -> Welcome:
        """Accept everybody."""
        self.hellos.append(hello)
        known = self.trusting or hello.session in self.sessions
        return Welcome("n", "c", (Shards(0, 31, None),), {}, hello.session if known else None, 0)

    def connect(self, *, session: int = 1) -> None:
        """A new connection up to the point where requests can be sent."""
        self.server = ServerConnection(welcome=self.welcome)
        self.exchange.connecting()
        self.pump()
        for incoming in self.take(api.OpenSession):
            self.sessions.add(session)
            self.reply(incoming, api.SessionOpened(session))

    def pump(self) -> None:
        """Move what waits in both outputs until nothing moves."""
        server = self.server
        assert server is not None
        while True:
            out = self.exchange.take_output()
            if out:
                self.arrived += [event for event in server.receive(out) if isinstance(event, Incoming)]
            back = server.take_output()
            if back:
                self.finished += self.exchange.receive(back, self.now)
            if not out and not back:
                return

    def take(self, kind: type[Any] | None = None) -> list[Incoming]:
        """What arrived at the server (of one kind), taken out."""
        self.pump()
        found = [each for each in self.arrived if kind is None or type(each.request) is kind]
        self.arrived = [each for each in self.arrived if each not in found]
        return found

    def one(self, kind: type[Any]) -> Incoming:
        """The only request of a kind that arrived."""
        (found,) = self.take(kind)
        return found

    def reply(self, incoming: Incoming, reply: api.Reply) -> None:
        """The server answers."""
        assert self.server is not None
        self.server.reply(incoming.id, reply)
        self.pump()

    def refuse(self, incoming: Incoming, code: int, **details: Any) -> None:
        """The server answers with an error."""
        self.reply(incoming, api.Failed(code, "no", details))

    def cut(self) -> None:
        """The connection breaks; what was on its way is lost."""
        self.finished += self.exchange.lost(self.now)
        self.server = None
        self.arrived.clear()

    def submit(self, request: api.Request, **more: Any) -> Call:
        """A caller asks."""
        return self.exchange.submit(request, self.now, **more)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and let the exchange see it."""
        self.now += seconds
        self.finished += self.exchange.tick(self.now)
        if self.server is not None:
            self.pump()


def wire(**changes: Any) -> Wire:
    """A client that is not connected yet."""
    return Wire(Exchange(ClientConfig(**changes), random.Random(7)))


def connected(**changes: Any) -> Wire:
    """A client with a connection and (unless refused) a session."""
    made = wire(**changes)
    made.connect()
    return made
