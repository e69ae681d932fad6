"""A node without a cluster asks for one; anybody asks who is behind an address."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

import attrs
import trio

from walrq.errors import NotLeader, NotReady, RemoteProtocolError, WalrqError
from walrq.limits import PEER_JOIN_S
from walrq.peers.greeting import Connection, Credentials, dial
from walrq.peers.reports import cause
from walrq.peers.tls import PeerTls
from walrq.peers.wire import READ_BYTES
from walrq.protocol.peer import Admission, PeerHello, Purpose, Refusal, check_peer, decode_item

log = logging.getLogger("walrq.peers")

# Addresses that one knock follows, leaders named on the way included.
_HOPS_MAX: Final = 16


async def probe(address: str, hello: PeerHello, credentials: Credentials) -> PeerHello:
    """Who answers at a peer address. Changes nothing there.

    Raises:
        NotReady: nobody answers.
        WalrqError: one of the two nodes will not talk to the other one, and why.
    """
    own = attrs.evolve(hello, purpose=Purpose.PROBE)
    connection = await dial(address, own, credentials, lambda peer: check_peer(own, peer))
    connection.wire.close()
    return connection.peer


async def knock(addresses: Sequence[str], hello: PeerHello, secret: bytes, tls: PeerTls | None = None) -> Admission:
    """Ask a cluster to take this node in, at any of its nodes; whoever does not lead names the leader.

    Returns:
        The cluster's id and its configuration, this node in it, committed.

    Raises:
        NotReady: at none of the addresses anybody could decide; the text says what each answered. Try again.
        WalrqError: the cluster refused: trying again is of no use.
    """
    own = attrs.evolve(hello, purpose=Purpose.JOIN)
    credentials = Credentials(secret, tls)
    waiting = deque(addresses)
    asked: set[str] = set()
    answers = []
    while waiting and len(asked) < _HOPS_MAX:
        address = waiting.popleft()
        if address in asked:
            continue
        asked.add(address)
        try:
            connection = await dial(address, own, credentials, lambda peer: check_peer(own, peer))
            try:
                return await _answer(connection)
            finally:
                connection.wire.close()
        except NotLeader as error:
            answers.append(f"{address}: {error.text}")
            leader = error.details.get("leader")
            if isinstance(leader, str) and leader:
                waiting.appendleft(leader)
        except WalrqError as error:
            if not error.retry:
                raise
            answers.append(f"{address}: {error.text}")
        except trio.BrokenResourceError as error:
            answers.append(f"{address}: {cause(error)}")
    raise NotReady(f"no node of the cluster took this one in: {'; '.join(answers) or 'no address was given'}")


async def _answer(connection: Connection) -> Admission:
    """What is said to a join.

    Raises:
        WalrqError: no.
        trio.BrokenResourceError: nothing.
    """
    bodies = connection.extra
    # The other end answers within PEER_JOIN_S, and the answer has to travel.
    with trio.move_on_after(2 * PEER_JOIN_S):
        while True:
            for body in bodies:
                match decode_item(body, connection.peer.node):
                    case Admission() as admission:
                        return admission
                    case Refusal(error):
                        raise error
                    case item:
                        raise RemoteProtocolError(f"a join is not answered by {type(item).__name__}")
            if connection.frames.error is not None:
                raise connection.frames.error
            data = await connection.wire.receive_some(READ_BYTES)
            if not data:
                raise trio.BrokenResourceError("closed without an answer")
            bodies = connection.frames.feed(data)
    raise trio.BrokenResourceError("no answer in time")
