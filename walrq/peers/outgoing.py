"""What this node says to one peer: two connections that it opens, and opens again.

    control ── dial ── handshake ── write, ping, listen for pongs ──┐
       ^                                                            │ broken, silent, refused
       └──────────── back-off, cut short when the peer dials us ────┘
    bulk      the same, beside it

The link is *up* while both are; `link_up` says so. Whenever one of them breaks, `link_lost` does: what was under way
may not arrive. Pings bound the time in which that is noticed, whatever the network between does with packets.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from walrq.errors import NotReady, RemoteProtocolError, WalrqError
from walrq.limits import (
    PEER_BACK_OFF_S,
    PEER_BACK_OFF_S_MAX,
    PEER_BULK_SILENCE_S,
    PEER_PING_S,
    PEER_SILENCE_S,
    RAFT_APPEND_BYTES_MAX,
)
from walrq.peers.greeting import Connection
from walrq.peers.lane import BULK_KINDS, Lane
from walrq.peers.reports import Complaints, PeerStats, cause
from walrq.peers.wire import READ_BYTES, Wire
from walrq.protocol.peer import PeerHello, Pong, Purpose, Refusal, decode_item, encode_ping, encode_raft
from walrq.raft.membership import Member
from walrq.raft.messages import Append, Message

log = logging.getLogger("walrq.peers")

SILENCE_S: Final = {Purpose.CONTROL: PEER_SILENCE_S, Purpose.BULK: PEER_BULK_SILENCE_S}
# A link that held for so long was a good one: the next attempt after it comes soon.
_HELD_S: Final = 2.0


@attrs.frozen
class Surroundings:
    """What the links to a peer need of the rest.

    Attributes:
        dial: address, node expected there, purpose: a connection, or a WalrqError.
        addresses: where a node may be reached, the likeliest first.
        fill: blocking: an append with its entries, or None when the log no longer has them.
        link_up, link_lost: news for Raft.
        complaints: where to say what went wrong.
        now: the event loop's clock, s.
        draw: a number from 0 to 1, for jitter.
    """

    dial: Callable[[str, str, Purpose], Awaitable[Connection]]
    addresses: Callable[[str], list[str]]
    fill: Callable[[Append], Append | None]
    link_up: Callable[[str, bytes, str], None]
    link_lost: Callable[[str], None]
    complaints: Complaints
    now: Callable[[], float]
    draw: Callable[[], float]


class Outgoing:
    """Both connections to one peer.

    Attributes:
        node: the peer's name.
        hello: what it said about itself when it was last reached; None before.
    """

    def __init__(self, node: str, around: Surroundings) -> None:
        self.node = node
        self.hello: PeerHello | None = None
        self._around = around
        self._control = Lane(Purpose.CONTROL, around.now)
        self._bulk = Lane(Purpose.BULK, around.now)
        self._up: set[Purpose] = set()
        self._lost = 0
        self._rtt_ms: float | None = None
        self._address = ""
        self._last_error = ""
        # The last attempt was turned away by a peer that is there.
        self._refused = False
        self._hurries = 0
        self._hurry = trio.Event()
        self._fills = trio.CapacityLimiter(1)
        self._scope = trio.CancelScope()

    # --- from the driver's side -----------------------------------------------------------------------------
    def put(self, message: Message) -> Lane:
        """Queue a message or drop it; the lane is to be flushed."""
        lane = self._bulk if type(message) in BULK_KINDS else self._control
        lane.put(message)
        return lane

    def hurry(self) -> None:
        """The peer is there, it dialed us: try at once."""
        self._hurries += 1
        self._hurry.set()
        self._hurry = trio.Event()

    def is_another_than(self, member: Member | None) -> bool:
        """Whether the node at the other end has another disk than the one that the cluster knows this name by."""
        hello = self.hello
        return hello is not None and member is not None and member.disk_uuid not in (b"", hello.disk_uuid)

    def stop(self) -> None:
        """End `run`."""
        self._scope.cancel()

    def stats(self, heard: int) -> PeerStats:
        """Figures of this moment."""
        control, bulk = self._control, self._bulk
        return PeerStats(
            connected=len(self._up) == 2,
            heard=heard,
            rtt_ms=self._rtt_ms,
            queued_messages=control.queued_messages + bulk.queued_messages,
            queued_bytes=control.queued_bytes + bulk.queued_bytes,
            sent=control.sent + bulk.sent,
            dropped=control.dropped + bulk.dropped,
            lost=self._lost,
            address=self._address,
            last_error=self._last_error,
        )

    # --- tasks ----------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Keep both connections open until stopped."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep, self._control)
                nursery.start_soon(self._keep, self._bulk)

    async def _keep(self, lane: Lane) -> None:
        around = self._around
        failures = 0
        # Which of the peer's addresses is next: the likeliest first, and again when there is news.
        turn = 0
        while True:
            begun = around.now()
            addresses = around.addresses(self.node)
            hurries = self._hurries
            may_hurry = True
            connected = False
            try:
                if not addresses:
                    raise NotReady("its address is not known yet")
                self._address = addresses[turn % len(addresses)]
                connection = await around.dial(self._address, self.node, lane.purpose)
                begun = around.now()
                connected = True
                try:
                    await self._talk(lane, connection)
                finally:
                    connection.wire.close()
            except (WalrqError, trio.BrokenResourceError) as error:
                # Who was refused is not welcome a moment later either.
                may_hurry = isinstance(error, NotReady | trio.BrokenResourceError)
                self._refused = not may_hurry
                self._last_error = cause(error)
                around.complaints.warn(
                    f"{'peer_lost' if connected else 'peer_unreachable'} node={self.node} lane={lane.purpose}",
                    self.node,
                    error if isinstance(error, WalrqError) else cause(error),
                )
            held = around.now() - begun > _HELD_S
            failures = 0 if held else failures + 1
            self._refused = self._refused and not held
            turn = 0 if connected else turn + 1
            if not may_hurry or hurries == self._hurries:
                await self._back_off(failures, may_hurry)
            if hurries != self._hurries:
                turn = 0

    async def _back_off(self, failures: int, may_hurry: bool) -> None:
        delay = min(PEER_BACK_OFF_S * 2 ** min(failures, 16), PEER_BACK_OFF_S_MAX)
        with trio.move_on_after(delay * (0.5 + self._around.draw() / 2)):
            if may_hurry:
                await self._hurry.wait()
            else:
                await trio.sleep_forever()

    async def _talk(self, lane: Lane, connection: Connection) -> None:
        """Use a connection until it breaks: never returns."""
        around = self._around
        gap = lane.connected(connection.wire)
        self.hello = peer = connection.peer
        self._up.add(lane.purpose)
        silence_s = SILENCE_S[lane.purpose]
        failure: BaseException = trio.BrokenResourceError(f"silent for {silence_s:g} s")
        try:
            if gap:
                around.link_lost(self.node)
            if len(self._up) == 2:
                if self._refused:
                    # It will hardly be welcome now: a peer that turns this node away again and again is said once.
                    log.debug("peer_up node=%s address=%s after a refusal", self.node, self._address)
                else:
                    around.complaints.forget(self.node)
                    log.info("peer_up node=%s address=%s", self.node, self._address)
                around.link_up(self.node, peer.disk_uuid, peer.address)
            with trio.CancelScope(deadline=around.now() + silence_s) as alive:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._listen, lane, connection, alive)
                    await self._write(lane, connection.wire, alive)
        except* (WalrqError, trio.BrokenResourceError) as group:
            # One of the two tasks noticed; the other one was cancelled.
            failure = _first(group)
        finally:
            self._up.discard(lane.purpose)
            self._lost += 1
            lane.disconnected()
            around.link_lost(self.node)
        raise failure

    async def _write(self, lane: Lane, wire: Wire, alive: trio.CancelScope) -> None:
        around = self._around
        next_ping = around.now()
        silence_s = SILENCE_S[lane.purpose]
        while True:
            if around.now() >= next_ping:
                next_ping = around.now() + PEER_PING_S
                await wire.send_all([*lane.take_rest(), encode_ping(int(around.now() * 1e6))])
            elif rest := lane.take_rest():
                await wire.send_all(rest)
            elif batch := lane.take():
                await wire.send_all(encode_raft(batch))
            elif appends := lane.take_unfilled():
                await self._send_filled(lane, wire, appends)
            elif lane.gap and lane.gap_to_tell():
                around.link_lost(self.node)
                continue
            elif lane.prepare_to_wait():
                with trio.move_on_at(next_ping):
                    await lane.wake.wait()
                lane.busy()
                continue
            if lane.purpose is Purpose.BULK:
                # What the network takes is a sign of life; a pong may be behind megabytes.
                alive.deadline = around.now() + silence_s

    async def _send_filled(self, lane: Lane, wire: Wire, appends: list[Append]) -> None:
        """Fill appends in a thread, one turn's worth, and send them in their order."""
        fill = self._around.fill
        pieces: list[bytes] = []
        done = 0
        complete = True

        def work() -> None:
            nonlocal done, complete
            size = 0
            for append in appends:
                filled = fill(append)
                if filled is None:
                    complete = False
                    return
                more = encode_raft([filled])
                pieces.extend(more)
                done += 1
                size += sum(map(len, more))
                if size >= RAFT_APPEND_BYTES_MAX:
                    return

        await trio.to_thread.run_sync(work, limiter=self._fills)
        lane.sent += done
        if complete:
            lane.put_back(appends[done:])
        else:
            lane.dropped += len(appends) - done - 1
            lane.give_up()
        if pieces:
            await wire.send_all(pieces)
        if not complete:
            self._around.link_lost(self.node)
            # Raft asks again at once; a record that cannot be read would make that a loop.
            await trio.sleep(PEER_BACK_OFF_S)

    async def _listen(self, lane: Lane, connection: Connection, alive: trio.CancelScope) -> None:
        """Take pongs, and a refusal."""
        around = self._around
        silence_s = SILENCE_S[lane.purpose]
        frames, wire = connection.frames, connection.wire
        bodies = connection.extra
        while True:
            for body in bodies:
                match decode_item(body, self.node):
                    case Pong(number):
                        alive.deadline = around.now() + silence_s
                        if lane.purpose is Purpose.CONTROL:
                            self._rtt_ms = max(0.0, around.now() * 1e3 - number / 1e3)
                    case Refusal(error):
                        raise type(error)(f"the other end refused: {error.text}", **error.details)
                    case item:
                        raise RemoteProtocolError(f"a link does not carry {type(item).__name__} backwards")
            if frames.error is not None:
                raise frames.error
            data = await wire.receive_some(READ_BYTES)
            if not data:
                raise trio.BrokenResourceError("the other end closed")
            bodies = frames.feed(data)


def _first(group: BaseExceptionGroup) -> BaseException:
    """The first single exception in a group."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
