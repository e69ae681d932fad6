"""Three scripted servers on real sockets that share one state, as replicas do; leadership is the test's to move."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from tests.client.fake_server import Connection, FakeServer, running
from walrq import api
from walrq.errors import Code
from walrq.protocol.requests import Incoming


@attrs.define(eq=False)
class Cluster:
    """Three scripted servers that share one state, as replicas do.

    Attributes:
        leader: number of the one that leads, None during an election.
        holds: the leader leaves requests of these kinds unanswered, executed or not as `executes` says.
    """

    nodes: list[FakeServer]
    leader: int | None = 0
    holds: tuple[type[Any], ...] = ()
    executes: bool = True
    hint: str | None = None
    _held: list[tuple[Connection, Incoming]] = attrs.field(factory=list)
    _lock: threading.RLock = attrs.field(factory=threading.RLock)

    def __attrs_post_init__(self) -> None:
        first = self.nodes[0]
        members = tuple(api.NodeAt(f"n{number}", f"127.0.0.1:{node.port}") for number, node in enumerate(self.nodes))
        for number, node in enumerate(self.nodes):
            node.sessions, node.results, node.messages = first.sessions, first.results, first.messages
            node.settled = first.settled
            node.node, node.nodes = f"n{number}", members
            node.script = self.script
            node._ids = 1000 * (number + 1)
        self.tell()

    @property
    def address(self) -> str | None:
        """Where the nodes say that the leader is."""
        if self.hint is not None:
            return self.hint or None
        return None if self.leader is None else f"127.0.0.1:{self.nodes[self.leader].port}"

    def tell(self) -> None:
        """What later Welcomes say."""
        for node in self.nodes:
            node.leader = self.address

    def refusal(self) -> api.Failed:
        """What a node that does not lead says."""
        where = {} if self.address is None else {"leader": self.address}
        return api.Failed(int(Code.NOT_LEADER), "this node does not lead", where)

    def lead(self, number: int | None, *, tells: bool = True) -> None:
        """Leadership moves; what the old leader held is answered, unless it cannot tell any more."""
        with self._lock:
            self.leader = number
            self.tell()
            held, self._held = self._held, []
        for connection, incoming in held if tells else ():
            parked = type(incoming.request) is api.Poll
            with contextlib.suppress(OSError):
                connection.reply(
                    incoming, self.refusal() if parked else api.Failed(int(Code.LEADERSHIP_LOST), "the office ended")
                )

    def script(self, connection: Connection, incoming: Incoming) -> api.Reply | None:
        """Each node's answers."""
        with self._lock:
            request = incoming.request
            if type(request) in (api.Ping, api.Stats):
                return connection.server.execute(request)
            if type(request) is api.ClusterStatus:
                return api.ClusterState(connection.server.node, "cluster", "n1", 1, 1, 1, ())
            if self.leader is None or connection.server is not self.nodes[self.leader]:
                return self.refusal()
            if type(request) in self.holds:
                if self.executes and type(request) is not api.Poll:
                    connection.server.list_queue(connection, incoming)
                self._held.append((connection, incoming))
                return None
            return connection.server.list_queue(connection, incoming)


@contextmanager
def three() -> Iterator[Cluster]:
    """A cluster until the block ends; its first node leads."""
    with running() as one, running() as two, running() as last:
        yield Cluster([one, two, last])
