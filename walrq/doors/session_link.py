"""The session of a client at a follower's door, carried to the leader: one native connection for as long as it lasts.

A session's requests are numbered by its client, and the numbers make them safe to repeat: so they travel as they are,
with their sequence, over a connection that goes on with that session. The link repeats nothing. When it breaks, or the
leader is another one by now, the client is told (`NotReady`: it did not happen; `ConnectionLost`: it may have), asks
again under the same number, and a new link finds the new leader.
"""

from __future__ import annotations

import logging
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from walrq import api
from walrq.daemon.pollers import Port, to_failed
from walrq.errors import Code, ConnectionLost, NotReady, WalrqError
from walrq.limits import HANDSHAKE_TIMEOUT_S
from walrq.locks.doorman import BEHALF
from walrq.protocol.client import Answer, ClientConnection, ClientState, Closed, Welcomed, WentAway
from walrq.protocol.handshake import Hello
from walrq.protocol.requests import Incoming

log = logging.getLogger("walrq.session_link")

_READ_BYTES: Final = 128 * 1024
# What the leader takes no more is asked elsewhere.
_NOT_HERE: Final = frozenset({Code.NOT_LEADER, Code.DRAINING})


class SessionLink:
    """See the module. Made for the first request of a session, and again after it was `over`.

    Attributes:
        over: it takes no requests any more.
    """

    def __init__(
        self,
        port: Port,
        leader: str | None,
        answered: Callable[[], None],
        *,
        secret: str | None = None,
        behalf: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`leader` is "host:port" of its native door; `answered` is called after replies went to `port`.

        Args:
            secret: what this node says to the leader.
            behalf: the token of the client that it speaks for; None where nobody is asked who he is.
            tls: what it connects with; None = in the clear.
        """
        self._tls = tls
        self.over = False
        self._port = port
        self._leader = leader
        self._answered = answered
        self._connection = ClientConnection(
            Hello(
                "walrq-door",
                token=secret,
                session=port.session,
                features={} if behalf is None else {BEHALF: behalf},
            )
        )
        # Taken before the leader welcomed us, and sent ones by their number on the link.
        self._early: deque[Incoming] = deque()
        self._sent: dict[int, Incoming] = {}
        self._outgoing = trio.Event()
        self._scope = trio.CancelScope()

    def submit(self, incoming: Incoming) -> None:
        """Take one request; it is answered through the port, exactly once."""
        if self._leader is None:
            self.over = True
            self._port.reply(incoming.id, _nobody_leads(), incoming.size)
        elif self._connection.state is ClientState.OPEN:
            self._send(incoming)
        else:
            self._early.append(incoming)

    def _send(self, incoming: Incoming) -> None:
        try:
            number = self._connection.request(incoming.request, sequence=incoming.sequence, lowest=incoming.lowest)
        except WalrqError as error:
            self._port.reply(incoming.id, to_failed(error), incoming.size)
            return
        self._sent[number] = incoming
        self._outgoing.set()

    def stop_waiting(self) -> None:
        """The client takes no more leases: parked polls are answered, empty; the leader drops them with the link."""
        for number, incoming in list(self._sent.items()):
            if type(incoming.request) is api.Poll:
                del self._sent[number]
                self._port.reply(incoming.id, api.Polled(0, 0, ()), incoming.size)
        if not self._sent and not self._early:
            self.close()

    def close(self) -> None:
        """Nobody waits for answers any more."""
        self.over = True
        self._scope.cancel()

    async def run(self) -> None:
        """Carry until it breaks or is closed. Answers everything that was taken."""
        error: WalrqError | None = None
        try:
            with self._scope:
                error = await self._carry()
        except* (OSError, trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError) as errors:
            log.info("session_link_lost leader=%s: %r", self._leader, errors.exceptions[0])
        except* Exception as errors:
            # The barrier: a mistake of ours in one link ends that link only.
            log.exception("session_link_failed leader=%s: %s", self._leader, errors.exceptions[0])
        finally:
            self.over = True
            self._connection.close()
            self._fail(error)

    def _fail(self, error: WalrqError | None) -> None:
        unsent = error if error is not None and error.definite else None
        for incoming in self._early:
            failed = _nobody_leads() if unsent is None else to_failed(unsent)
            self._port.reply(incoming.id, failed, incoming.size)
        lost = to_failed(ConnectionLost("the connection to the leader broke before its answer came"))
        for incoming in self._sent.values():
            self._port.reply(incoming.id, lost, incoming.size)
        if self._early or self._sent:
            self._answered()
        self._early.clear()
        self._sent.clear()

    async def _carry(self) -> WalrqError | None:
        assert self._leader is not None
        host, _, port = self._leader.rpartition(":")
        error = None
        with trio.fail_after(HANDSHAKE_TIMEOUT_S) as patience:
            async with (
                await self._dial(host.strip("[]"), int(port)) as stream,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(self._write, stream)
                error = await self._read(stream, patience)
                nursery.cancel_scope.cancel()
        return error

    async def _dial(self, host: str, port: int) -> trio.abc.Stream:
        stream = await trio.open_tcp_stream(host, port)
        if self._tls is None:
            return stream
        return trio.SSLStream(stream, self._tls, server_hostname=host, https_compatible=True)

    async def _read(self, stream: trio.abc.Stream, patience: trio.CancelScope) -> WalrqError | None:
        connection = self._connection
        while True:
            data = await stream.receive_some(_READ_BYTES)
            events = connection.receive(bytes(data)) if data else connection.receive_eof()
            for event in events:
                if type(event) is Welcomed:
                    patience.deadline = float("inf")
                    while self._early:
                        self._send(self._early.popleft())
                elif type(event) is Answer:
                    self._answer(event)
                elif type(event) is WentAway:
                    self.over = True
                elif type(event) is Closed:
                    return event.error
            self._answered()
            if self.over and not self._sent:
                return None

    def _answer(self, event: Answer) -> None:
        incoming = self._sent.pop(event.id, None)
        if incoming is None:
            return  # a poll that nobody waits for any more; what it leased comes back with the link's end
        reply: api.Reply = event.reply
        if type(reply) is api.Failed and reply.code in _NOT_HERE:
            self.over = True
            reply = _nobody_leads()
        self._port.reply(incoming.id, reply, incoming.size)

    async def _write(self, stream: trio.abc.Stream) -> None:
        while True:
            data = self._connection.take_output()
            if data:
                await stream.send_all(data)
            else:
                self._outgoing = trio.Event()
                await self._outgoing.wait()


def _nobody_leads() -> api.Failed:
    return to_failed(NotReady("the leader changes at the moment, ask again", retry_after_ms=100))
