"""The network between the nodes of the simulator: loses, delays, doubles, reorders and blocks, one way or both.

What travels are the bytes of `raft.messages.encode`. A pair of nodes that can hear each other both ways has a link;
when it comes or goes each end may be told (`link_up`, `link_lost`), as a transport would tell it: late, and a loss
sometimes never.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import attrs

from walrq.raft.messages import Append, Message, SnapshotChunk, encode
from walrq.simulator.clock import MS

STROBE_US: Final = 80 * MS


@attrs.frozen(kw_only=True)
class Weather:
    """How bad links are all the time; drawn from the seed.

    Attributes:
        drop, double, late: shares of messages lost, sent twice, and delayed by up to `late_ms`.
        foreign: share of messages that another cluster says too.
    """

    drop: float = 0.0
    double: float = 0.0
    late: float = 0.0
    late_ms: int = 60
    foreign: float = 0.0

    @classmethod
    def drawn(cls, draw: random.Random) -> Weather:
        """Calm weather is as likely as a storm."""
        return cls(
            drop=draw.choice((0.0, 0.0, 0.01, 0.08)),
            double=draw.choice((0.0, 0.0, 0.03, 0.15)),
            late=draw.choice((0.0, 0.0, 0.01, 0.06)),
            late_ms=draw.choice((10, 60, 300)),
            foreign=0.003,
        )


class Peer(Protocol):
    """What the network knows of a node."""

    name: str

    @property
    def is_up(self) -> bool: ...

    def hear(self, data: bytes) -> None: ...

    def link_up(self, peer: str) -> None: ...

    def link_lost(self, peer: str) -> None: ...


class World(Protocol):
    """What the network needs of its surroundings."""

    def at(self, delay_us: int, action: Callable[[], None]) -> None: ...

    def mark(self, name: str, times: int = 1) -> None: ...

    def say(self, text: str) -> None: ...


class SimNetwork:
    """All links. Who is reachable is decided when a message is sent, and again when it arrives.

    Attributes:
        blocked: (from, to) pairs that hear nothing.
        weather: of all links.
        sent: messages so far.
    """

    def __init__(self, world: World, peers: dict[str, Peer], draw: random.Random, weather: Weather) -> None:
        self._world = world
        self._peers = peers
        self._draw = draw
        self.weather = weather
        self.blocked: set[tuple[str, str]] = set()
        self.sent = 0
        # Unordered pairs that have a link now; a number for each, so that old news is dropped.
        self._links: dict[tuple[str, str], int] = {}
        self._numbers = 0
        self._strobe = 0

    # --- messages -------------------------------------------------------------------------------------------
    def send(self, message: Message) -> None:
        """A message leaves; perhaps it arrives."""
        self.sent += 1
        sender, receiver = message.sender, message.receiver
        weather, random_ = self.weather, self._draw.random
        if (sender, receiver) in self.blocked or (weather.drop and random_() < weather.drop):
            self._world.mark("message lost")
            return
        data = encode(message)
        copies = 1
        if weather.double and random_() < weather.double:
            self._world.mark("message doubled")
            copies = 2
        if weather.foreign and random_() < weather.foreign:
            # Somebody else's cluster, with a node of the same name, and later terms.
            self._world.mark("message of another cluster")
            self.foreign(message)
        for _ in range(copies):
            delay_us = int(50 + random_() * 1_500)
            if isinstance(message, Append | SnapshotChunk):
                # Bulk takes its time, on a connection of its own.
                delay_us += len(data) // 20
            if weather.late and random_() < weather.late:
                delay_us += int(random_() * weather.late_ms * MS)
            self._world.at(delay_us, lambda: self._arrive(sender, receiver, data))

    def foreign(self, message: Message) -> None:
        """The same message as another cluster would say it arrives as well. inv: ElectionSafety"""
        data = encode(attrs.evolve(message, cluster=f"not {message.cluster}", term=message.term + 5))
        self._world.at(100, lambda: self._arrive(message.sender, message.receiver, data))

    def _arrive(self, sender: str, receiver: str, data: bytes) -> None:
        peer = self._peers.get(receiver)
        if peer is not None and peer.is_up and (sender, receiver) not in self.blocked:
            peer.hear(data)

    # --- who hears whom -------------------------------------------------------------------------------------
    def cut(self, side: Iterable[str], *, inbound: bool = True, outbound: bool = True) -> None:
        """Nothing passes between these nodes and all others; or only one way."""
        inside = set(side)
        for a in self._peers:
            for b in self._peers:
                if (a in inside) != (b in inside) and (inbound if b in inside else outbound):
                    self.blocked.add((a, b))
        self.changed()

    def block(self, sender: str, receiver: str) -> None:
        """`receiver` does not hear `sender` any more."""
        self.blocked.add((sender, receiver))
        self.changed()

    def heal(self) -> None:
        """Everybody hears everybody."""
        self._strobe += 1
        self.blocked.clear()
        self.changed()

    def strobe(self, side: Iterable[str], times: int) -> None:
        """Cut and heal, again and again, in step with elections."""
        self._strobe += 1
        self._flip(self._strobe, frozenset(side), times)

    def _flip(self, number: int, side: frozenset[str], left: int) -> None:
        if number != self._strobe:
            return
        self.blocked.clear()
        if left % 2:
            self.cut(side)
        else:
            self.changed()
        if left:
            self._world.at(STROBE_US, lambda: self._flip(number, side, left - 1))

    # --- links ----------------------------------------------------------------------------------------------
    def changed(self) -> None:
        """Nodes came or went, or pairs were blocked or healed: links follow."""
        up = [peer for peer in self._peers.values() if peer.is_up]
        now = {
            (a.name, b.name)
            for position, a in enumerate(up)
            for b in up[position + 1 :]
            if (a.name, b.name) not in self.blocked and (b.name, a.name) not in self.blocked
        }
        for pair in [pair for pair in self._links if pair not in now]:
            del self._links[pair]
            # A cut that nobody notices in time is as likely as one that is noticed at once.
            if self._draw.random() < 0.6:
                self._tell(pair, 0, self._draw.randrange(20 * MS))
        for pair in sorted(now - self._links.keys()):
            self._numbers += 1
            self._links[pair] = self._numbers
            self._tell(pair, self._numbers, self._draw.randrange(200, 10 * MS))

    def _tell(self, pair: tuple[str, str], number: int, delay_us: int) -> None:
        a, b = pair

        def run() -> None:
            if self._links.get(pair, 0) != number:
                return
            for here, there in ((a, b), (b, a)):
                peer = self._peers.get(here)
                if peer is not None and peer.is_up:
                    (peer.link_up if number else peer.link_lost)(there)

        self._world.at(delay_us, run)
