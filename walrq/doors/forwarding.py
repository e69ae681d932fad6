"""What a follower is asked at its doors, carried to the leader and its answer back: one hop.

The connections are those of a client, to the native doors of the cluster's nodes: they find the leader, follow it
when the office moves, and have a session each, so that a request whose connection broke takes effect once. A node's
native door answers or names the leader and never forwards, hence one hop.

A port (a connection of a door) keeps to one connection, so that its requests keep their order. Nothing is opened
before the first request comes, and no task is started for one.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import trio

from walrq import api
from walrq.client.carrier import Carrier
from walrq.client.config import ClientConfig, Endpoint
from walrq.client.exchange import Call
from walrq.client.routing import Nodes, endpoint_of
from walrq.errors import Code, NotReady, WalrqError
from walrq.limits import FORWARD_CONNECTIONS_MAX, FORWARD_S, FORWARDED_PER_CONNECTION, IN_FLIGHT_PER_CONNECTION_MAX

# It tries for as long as the node lives: requests have deadlines of their own.
_FOR_EVER_S: Final = 1e9
_CONFIG: Final = ClientConfig(
    timeout_s=FORWARD_S, connect_wait_s=_FOR_EVER_S, window=IN_FLIGHT_PER_CONNECTION_MAX // 2, worker=None
)


class Forwarded:
    """A request on its way to the leader."""

    __slots__ = ("_call", "_carrier", "_then")

    def __init__(self, carrier: Carrier, call: Call, then: Callable[[api.Reply], None]) -> None:
        self._carrier = carrier
        self._call = call
        self._then: Callable[[api.Reply], None] | None = then
        if call.finished:
            self._finished()
        else:
            call.waiter = self._finished

    @property
    def done(self) -> bool:
        """Answered, or abandoned."""
        return self._then is None

    def _finished(self) -> None:
        then, self._then = self._then, None
        if then is not None:
            then(reply_of(self._call))

    def stop_waiting(self) -> None:
        """Answer a poll, empty: nothing is leased for it any more."""
        if self._then is not None and type(self._call.request) is api.Poll:
            then, self._then = self._then, None
            self._carrier.abandon(self._call)
            then(api.Polled(0, self._call.request.visibility_ms or 0, ()))

    def abandon(self) -> None:
        """Nobody waits any more: a parked poll is forgotten, a lease that is on its way goes back."""
        if self._then is not None:
            self._then = None
            self._carrier.abandon(self._call)


def reply_of(call: Call) -> api.Reply:
    """The reply of a finished call; an error as the reply that carries it."""
    error = call.error
    if error is None:
        assert call.reply is not None
        return call.reply
    if error.code is Code.NOT_LEADER:
        error = no_leader()
    return api.Failed(int(error.code), error.text, dict(error.details))


def no_leader() -> NotReady:
    """What a caller is told while nobody leads."""
    return NotReady("no node leads at the moment, an election takes a second or two", retry_after_ms=1_000)


def _no_secret() -> str | None:
    return None


def _no_tls() -> ssl.SSLContext | None:
    return None


class Forwarder:
    """See the module. One per node."""

    def __init__(
        self,
        nodes: Callable[[], Sequence[api.NodeAt]],
        secret: Callable[[], str | None] = _no_secret,
        tls: Callable[[], ssl.SSLContext | None] = _no_tls,
    ) -> None:
        """
        Args:
            nodes: the members whose native doors are known now.
            secret: what this node says to them, so that they believe that it has asked who its clients are.
            tls: what it connects to them with; None = in the clear.
        """
        self._nodes = nodes
        self._secret = secret
        self._tls = tls
        self._carriers: list[Carrier] = []
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the connections until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    def carrier(self) -> Carrier:
        """The least busy connection; a new one while all of them are busy.

        Raises:
            NotReady: no node is known yet.
        """
        least = min(self._carriers, key=lambda carrier: carrier.exchange.in_flight, default=None)
        if least is not None and (
            least.exchange.in_flight < FORWARDED_PER_CONNECTION or len(self._carriers) >= FORWARD_CONNECTIONS_MAX
        ):
            return least
        endpoints = self._endpoints()
        if not endpoints:
            raise no_leader()
        assert self._nursery is not None, "run() first"
        tls = self._tls()
        config = attrs.evolve(_CONFIG, token=self._secret(), tls=tls is not None, tls_context=tls)
        carrier = Carrier(Nodes(endpoints), config)
        # Requests may be made from now on; they wait until it is connected.
        carrier.closed = False
        self._carriers.append(carrier)
        self._nursery.start_soon(self._keep, carrier)
        return carrier

    def _endpoints(self) -> tuple[Endpoint, ...]:
        found = (endpoint_of(each.endpoint) for each in self._nodes())
        return tuple(each for each in found if each is not None)

    async def _keep(self, carrier: Carrier) -> None:
        try:
            await carrier.open()
            await trio.sleep_forever()
        except WalrqError:
            # Nobody to talk to in a way that trying again does not change: the next request tries anew.
            self._carriers.remove(carrier)
        finally:
            if not carrier.closed:
                await carrier.close()

    def submit(self, carrier: Carrier, request: api.Request, then: Callable[[api.Reply], None]) -> Forwarded:
        """Send a request on; `then(reply)` is called once, now or later, unless it is abandoned first."""
        return Forwarded(carrier, carrier.submit(request), then)
