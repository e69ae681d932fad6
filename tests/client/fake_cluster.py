"""A cluster of scripted nodes and one client, joined by function calls: no socket, no thread, time by hand.

The nodes share one state, as replicas do: results by (session, sequence), a list for a queue. Who leads, what a node
says about it, and who can be reached is the test's to change at any moment. `Driver` does what the two real drivers do,
in the same order: attempt, bytes, tick, next node.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs

from tests.client.fake_server import delivered
from walrq import api
from walrq.client.addresses import explain
from walrq.client.config import ClientConfig, Endpoint
from walrq.client.exchange import Call, Exchange, Link
from walrq.client.routing import Nodes, Route
from walrq.errors import Code, WalrqError
from walrq.protocol.handshake import Hello, Shards, Welcome
from walrq.protocol.requests import Incoming
from walrq.protocol.server import ServerConnection

NAMES = ("n1", "n2", "n3")


def endpoint(name: str) -> Endpoint:
    """Where a node of the fake cluster is."""
    return Endpoint(name, 1)


@attrs.define(eq=False)
class Node:
    """One node.

    Attributes:
        name: its name; it is at `name:1`.
        answers: "yes", "refused" (nobody listens) or "silent" (connections come about, nothing comes back).
        hint: where it says that the leader is; None = the truth, "" = it does not know.
        cluster: id of its cluster.
    """

    name: str
    answers: str = "yes"
    hint: str | None = None
    cluster: str = "c"
    connection: ServerConnection | None = None
    unread: bytes = b""
    parked: list[Incoming] = attrs.field(factory=list)
    # In the log, and not decided: requests with the connection they came on and its session. They may take effect long
    # after that connection ended.
    pending: list[tuple[Incoming, ServerConnection, int | None]] = attrs.field(factory=list)


@attrs.define(eq=False)
class FakeCluster:
    """See the module's text.

    Attributes:
        leader: who leads, None during an election.
        tells: members are named in Welcome.
        on_request: called with each request before anything is done about it; True = it is taken care of.
        slow: requests wait in `pending` for `answer`.
        asked: every request with the node that got it.
        executed: payloads of pushes, in the order in which they took effect.
    """

    leader: str | None = "n1"
    tells: bool = True
    slow: bool = False
    on_request: Callable[[Node, Incoming], bool] | None = None
    nodes: dict[str, Node] = attrs.field(factory=lambda: {name: Node(name) for name in NAMES})
    asked: list[tuple[str, Incoming]] = attrs.field(factory=list)
    executed: list[bytes] = attrs.field(factory=list)
    ready: list[bytes] = attrs.field(factory=list)
    sessions: set[int] = attrs.field(factory=set)
    results: dict[tuple[int, int], api.Reply] = attrs.field(factory=dict)
    forgotten: list[int] = attrs.field(factory=list)
    _leases: int = 0

    # --- what a test does -----------------------------------------------------------------------------------
    def elect(self, name: str | None, *, outcome: Callable[[Incoming], bool] = lambda incoming: False) -> None:
        """Leadership moves. What the old leader had under way is answered: parked polls are refused; what was on its
        way through the log is unknown, and took effect as `outcome` says.
        """
        old = None if self.leader is None else self.nodes[self.leader]
        self.leader = name
        if old is None or old.name == name:
            return
        pending, old.pending = old.pending, []
        for incoming, connection, session in pending:
            if outcome(incoming):
                self._execute_once(incoming, session)
            if connection is old.connection:
                self._reply(old, incoming, api.Failed(int(Code.LEADERSHIP_LOST), "the office ended", self._where(old)))
        parked, old.parked = old.parked, []
        for incoming in parked:
            self._reply(old, incoming, self._refusal(old))

    def kill(self, name: str, answers: str = "refused") -> None:
        """A node dies (`refused`) or its machine vanishes (`silent`)."""
        node = self.nodes[name]
        node.answers = answers
        node.pending.clear()
        node.parked.clear()
        if answers == "refused":
            node.connection = None
        if self.leader == name:
            self.leader = None

    def answer(self) -> None:
        """What is under way at the leader is decided."""
        assert self.leader is not None
        node = self.nodes[self.leader]
        pending, node.pending = node.pending, []
        for incoming, connection, session in pending:
            reply = self._execute_once(incoming, session)
            if connection is node.connection:
                self._reply(node, incoming, reply)

    def push_from_elsewhere(self, payload: bytes) -> None:
        """A message arrives that the leader's parked polls wait for."""
        self.ready.append(payload)
        assert self.leader is not None
        node = self.nodes[self.leader]
        parked, node.parked = node.parked, []
        for incoming in parked:
            self._on_request(node, incoming)

    def kinds(self, name: str) -> list[str]:
        """What a node was asked, sessions' own requests left out."""
        kinds = [type(incoming.request).__name__ for node, incoming in self.asked if node == name]
        return [kind for kind in kinds if kind != "OpenSession"]

    # --- a node ---------------------------------------------------------------------------------------------
    def accept(self, name: str) -> ServerConnection:
        """A client connects."""
        node = self.nodes[name]
        node.parked.clear()
        node.unread = b""

        def welcome(hello: Hello) -> Welcome:
            leader = self._where(node).get("leader")
            members = tuple(api.NodeAt(each, str(endpoint(each))) for each in self.nodes)
            return Welcome(
                node.name,
                node.cluster,
                (Shards(0, 31, None),),
                {},
                hello.session,
                0,
                nodes=members if self.tells else (),
                leader=leader if self.tells else None,
            )

        node.connection = ServerConnection(welcome=welcome)
        return node.connection

    def _where(self, node: Node) -> dict[str, str]:
        if node.hint is not None:
            return {"leader": node.hint} if node.hint else {}
        return {} if self.leader is None else {"leader": str(endpoint(self.leader))}

    def _refusal(self, node: Node) -> api.Failed:
        return api.Failed(int(Code.NOT_LEADER), f"{node.name} does not lead", self._where(node))

    def _reply(self, node: Node, incoming: Incoming, reply: api.Reply) -> None:
        if node.connection is not None:
            node.connection.reply(incoming.id, reply)

    def feed(self, name: str, data: bytes) -> bytes:
        """Bytes for a node, and those it sends."""
        node = self.nodes[name]
        connection = node.connection
        if connection is None:
            return b""
        node.unread += data
        if node.answers != "yes":
            return b""  # stopped: it reads, and what it wrote leaves, when it goes on
        data, node.unread = node.unread, b""
        for event in connection.receive(data) if data else ():
            if isinstance(event, Incoming):
                self.asked.append((name, event))
                if self.on_request is None or not self.on_request(node, event):
                    self._on_request(node, event)
        return connection.take_output() if node.connection is connection else b""

    def _on_request(self, node: Node, incoming: Incoming) -> None:
        request = incoming.request
        if type(request) is api.Ping:
            self._reply(node, incoming, api.Pong())
        elif type(request) is api.ClusterStatus:
            self._reply(node, incoming, api.ClusterState(node.name, node.cluster, self.leader, 1, 1, 1, ()))
        elif self.leader != node.name:
            self._reply(node, incoming, self._refusal(node))
        elif type(request) is api.Poll and not self.ready and request.wait_ms:
            node.parked.append(incoming)
        elif self.slow and type(request) is not api.OpenSession:
            assert node.connection is not None
            node.pending.append((incoming, node.connection, node.connection.session))
        else:
            assert node.connection is not None
            self._reply(node, incoming, self._execute_once(incoming, node.connection.session))

    def _execute_once(self, incoming: Incoming, session: int | None) -> api.Reply:
        if incoming.sequence is None or session is None:
            return self._execute(incoming.request)
        if session not in self.sessions:
            return api.Failed(int(Code.SESSION_ENDED), "the session ended")
        key = (session, incoming.sequence)
        if key not in self.results:
            self.results[key] = self._execute(incoming.request)
        return self.results[key]

    def _execute(self, request: api.Request) -> api.Reply:
        if type(request) is api.OpenSession:
            number = 7 + len(self.sessions)
            self.sessions.add(number)
            return api.SessionOpened(number)
        if type(request) is api.Push:
            start = len(self.executed)
            columns = request.columns
            ends = memoryview(columns.ends).cast("I")
            at = 0
            for end in ends:
                self.executed.append(bytes(columns.payloads[at:end]))
                at = end
            return api.Pushed(1 + start, columns.count)
        if type(request) is api.Poll:
            taken, self.ready = self.ready[: request.max_messages], self.ready[request.max_messages :]
            runs = []
            for payload in taken:
                self._leases += 1
                runs.append(delivered(request.queues[0], self._leases, (payload,), lease=self._leases))
            return api.Polled(0, 30_000, tuple(runs))
        if type(request) is api.Settle:
            return api.Settled((0,) * len(request.items))
        if type(request) is api.Forget:
            self.forgotten.append(request.sequence)
        return api.Done()


class Busy(AssertionError):
    """The client makes attempt after attempt without a pause."""


@attrs.define(eq=False)
class Driver:
    """The client's connection; see the module's text.

    Attributes:
        now: monotonic seconds.
        attempts: when which node was tried.
        failures: what became of the attempts that failed.
        final: what the driver was told to tell all callers.
    """

    cluster: FakeCluster
    exchange: Exchange
    now: float = 100.0
    attempts: list[tuple[float, str]] = attrs.field(factory=list)
    failures: list[WalrqError] = attrs.field(factory=list)
    final: list[WalrqError] = attrs.field(factory=list)
    given_up: WalrqError | None = None
    connect_at: float = 0.0
    _at: str | None = None
    _usable: bool = False
    _usable_by: float = 0.0
    _heard_at: float = 0.0
    _give_up_at: float | None = None

    @property
    def route(self) -> Route:
        """The exchange's."""
        return self.exchange.route

    @property
    def at(self) -> str | None:
        """The node that is connected."""
        return self._at

    def submit(self, request: api.Request, **more: float) -> Call:
        """A caller asks."""
        call = self.exchange.submit(request, self.now, **more)  # type: ignore[arg-type]
        self._move()
        return call

    def run(self, until: Callable[[], bool], seconds: float = 60.0) -> None:
        """Let time pass until something is true.

        Raises:
            AssertionError: it did not become true in time.
        """
        end = self.now + seconds
        while not until():
            assert self.now < end, (self.attempts[-20:], self.failures[-5:])
            self.step(end)

    def step(self, end: float) -> None:
        """One turn of a driver's loop."""
        if self._at is None:
            if self.now >= self.connect_at:
                self._connect()
                return
            self.now = min(self.connect_at, end)
        else:
            self._move()
            if self._at is None:
                return
            moments = [end, self.now + 0.1]
            due = self.exchange.next_due()
            if due is not None:
                moments.append(due)
            if not self._usable:
                moments.append(self._usable_by)
            self.now = max(self.now + 1e-6, min(moments))
        self.exchange.tick(self.now)
        if self._at is not None:
            if self.exchange.link is Link.DOWN:
                self._lost(None)
            elif not self._usable and self.now >= self._usable_by:
                self._lost(TimeoutError())
            else:
                self._probe()
        self._move()

    def _connect(self) -> None:
        recent = [name for moment, name in self.attempts if moment > self.now - 0.01]
        if len(recent) > 12:
            raise Busy(self.attempts[-20:])
        route = self.route
        self.exchange.attempt(self.now)
        name = route.current.host
        self.attempts.append((self.now, name))
        node = self.cluster.nodes.get(name)
        if node is None or node.answers == "refused":
            self.now += 0.0005
            self._lost(ConnectionRefusedError(111, "Connection refused"))
            return
        self.cluster.accept(name)
        self._at = name
        self._usable = False
        self._usable_by = self.now + route.patience_s
        self._heard_at, self._give_up_at = self.now, None
        self.now += 0.0005
        self.exchange.connecting()
        self._move()

    def _move(self) -> None:
        """Bytes in both directions until nothing moves."""
        while self._at is not None:
            if self.cluster.nodes[self._at].connection is None:
                self._lost(None)  # killed
                return
            out = self.exchange.take_output()
            back = self.cluster.feed(self._at, out)
            if back:
                self._heard_at, self._give_up_at = self.now, None
                self.exchange.receive(back, self.now)
                if self.exchange.link is Link.DOWN:
                    self._lost(None)
                    return
                if self.exchange.connected:
                    self._usable = True
                    self.route.usable(self.now)
            if not out and not back:
                return

    def _probe(self) -> None:
        exchange = self.exchange
        if not exchange.connected:
            return
        if self._give_up_at is None:
            if self.now - self._heard_at >= exchange.patience_s:
                self._give_up_at = self.now + exchange.probe_s
                exchange.submit(api.Ping(), self.now, timeout_s=exchange.probe_s, wanted=False)
        elif self.now > self._give_up_at:
            self._lost(TimeoutError())

    def _lost(self, cause: OSError | None) -> None:
        usable, self._usable = self._usable, False
        if self._at is not None:
            self.cluster.nodes[self._at].connection = None
            self.cluster.nodes[self._at].parked.clear()
            self._at = None
        self.exchange.lost(self.now)
        failure = None if usable else explain(self.route.current, cause, self.exchange.refused)
        if failure is not None:
            self.failures.append(failure)
        pause_s = self.route.next(self.now, failure)
        self.connect_at = self.now + pause_s
        if pause_s:
            if self.route.final is not None:
                self.final.append(self.route.final)
                self.exchange.fail_all(self.route.final, self.now)
            if self.given_up is None and self.route.gives_up(self.now - 100.0):
                self.given_up = self.route.latest


def client(cluster: FakeCluster, *names: str, seed: int = 7, **changes: object) -> Driver:
    """A client of the cluster that was given these nodes' addresses (default: the first only)."""
    config = ClientConfig(**changes)  # type: ignore[arg-type]
    rng = random.Random(seed)
    nodes = Nodes(tuple(map(endpoint, names or ("n1",))))
    return Driver(cluster, Exchange(config, rng, route=Route(nodes, config, rng)))


def connected(cluster: FakeCluster, *names: str, **changes: object) -> Driver:
    """A client that has found the leader."""
    made = client(cluster, *names, **changes)
    made.run(lambda: made.exchange.connected)
    return made
