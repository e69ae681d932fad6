"""The connections of one blocking client: one, unless `ClientConfig.pool` says more.

Each connection is a `Pump` with a session of its own. A thread keeps to the one it was given first, so that its calls
keep their order; threads are dealt out in turn. The second and later connections are opened by the first call that
needs them.

Calls of many threads share one connection well: it is never blocked by a call that waits. More connections are for
payloads of megabytes, which would stand before other threads' small requests in one stream of bytes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from walrq import api
from walrq.client.config import ClientConfig, Endpoint
from walrq.client.exchange import Call
from walrq.client.failures import unpicklable
from walrq.client.pump import Pump
from walrq.client.routing import Nodes
from walrq.errors import WalrqError

R = TypeVar("R")


class Pool:
    """See the module's text.

    Attributes:
        config: how the client behaves.
    """

    def __init__(self, endpoints: Sequence[Endpoint], config: ClientConfig) -> None:
        """Nothing is connected yet: see `open`."""
        self.config: ClientConfig = config
        nodes = Nodes(tuple(endpoints))
        self._pumps = tuple([Pump(nodes, config) for _ in range(config.pool)])
        self._turns = itertools.count()
        self._given = threading.local()

    def _pump(self) -> Pump:
        """The calling thread's connection."""
        if len(self._pumps) == 1:
            return self._pumps[0]
        pump: Pump | None = getattr(self._given, "pump", None)
        if pump is None:
            pump = self._given.pump = self._pumps[next(self._turns) % len(self._pumps)]
        return pump

    # --- what can be seen of it -----------------------------------------------------------------------------
    @property
    def connected(self) -> bool:
        """Whether the calling thread has a connection that can be used now."""
        return self._pump().connected

    @property
    def endpoint(self) -> Endpoint:
        """The node that the calling thread is connected to, or tries next."""
        return self._pump().endpoint

    @property
    def nodes(self) -> tuple[Endpoint, ...]:
        """Every node that this client knows: those it was given, and the members of the cluster as a node told."""
        return self._pumps[0].nodes.ring

    @property
    def wake_descriptor(self) -> int:
        """A byte written here ends the calling thread's wait of the moment; it never blocks."""
        return self._pump().wake_descriptor

    @property
    def on_turn(self) -> Callable[[], None] | None:
        """Called around every wait for the server; it may raise, and must not call the client."""
        return self._pumps[0].on_turn

    @on_turn.setter
    def on_turn(self, look: Callable[[], None] | None) -> None:
        for pump in self._pumps:
            pump.on_turn = look

    def __repr__(self) -> str:
        pump = self._pump()
        state = "closed" if pump.closed else "connected" if pump.connected else "not connected"
        more = f", {len(self._pumps)} connections" if len(self._pumps) > 1 else ""
        return f"<walrq.Client {pump.endpoint}, {state}{more}>"

    def __reduce__(self) -> NoReturn:
        raise unpicklable()

    # --- life -----------------------------------------------------------------------------------------------
    def open(self) -> None:
        """Connect the calling thread.

        Raises:
            ServerUnreachable: nobody answered at any address.
            WalrqError: the server refused the connection, or is no walrq server.
        """
        try:
            self._pump().open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release what consumers hold, end the sessions, close the connections. Calls under way end with an
        error."""
        for pump in self._pumps:
            pump.close()

    # --- calls ----------------------------------------------------------------------------------------------
    def begin(self, request: api.Request) -> Call:
        """Send a request without waiting, on the calling thread's connection; the same thread `end`s it later."""
        return self._pump().begin(request)

    def end(self, call: Call, kind: type[R]) -> R:
        """The reply to a call that was begun; raises what the server or the time-out says."""
        return self._pump().end(call, kind)

    def _call(self, request: api.Request) -> tuple[Call, api.Reply]:
        return self._pump().call(request)

    def _ask(self, request: api.Request, kind: type[R], timeout_s: float | None = None) -> R:
        return self._pump().ask(request, kind, timeout_s)

    def _outcomes(self, requests: Sequence[api.Request], kind: type[R]) -> list[R | WalrqError]:
        return self._pump().outcomes(requests, kind)
