"""How far one follower is, as its leader knows it: THE table of what happens to a follower, and its window.

    probe       where its log agrees is not known: one append at a time
    replicate   its log agrees up to `match`: appends are sent ahead of the replies, as far as the window allows
    snapshot    what it lacks is no longer in the log: it is sent a snapshot (`snapshots.Outgoing`)

Invariants:

    0 <= match < next                                                      inv: NextGtMatch
    match never goes back while one leader reigns, damage apart            inv: MatchMonotonic
    bytes and appends in flight are within the window, or there is a single append

Source: etcd-io/raft, tracker/ and design.md (the three states); the table is ours, theirs is spread over two files.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Final

import attrs

from walrq.raft.snapshots import Outgoing


class State(enum.Enum):
    """What is known of a follower's log."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Event(enum.Enum):
    """What a leader learns about a follower."""

    ACCEPTED = "accepted"  # it holds, durably, all that an append covered
    REJECTED = "rejected"  # its log does not have the entry before an append
    BEHIND = "behind"  # what it needs next is no longer in the log
    INSTALLED = "installed"  # it holds a snapshot, or all that one covers
    FAILED = "failed"  # the snapshot could not be read, or was refused
    LOST = "lost"  # the link to it broke: what was under way may not arrive
    DAMAGED = "damaged"  # it lost what it had acknowledged


TRANSITIONS: Final = {
    (State.PROBE, Event.ACCEPTED): State.REPLICATE,
    (State.PROBE, Event.REJECTED): State.PROBE,
    (State.PROBE, Event.BEHIND): State.SNAPSHOT,
    (State.REPLICATE, Event.ACCEPTED): State.REPLICATE,
    (State.REPLICATE, Event.REJECTED): State.PROBE,
    (State.REPLICATE, Event.BEHIND): State.SNAPSHOT,
    (State.SNAPSHOT, Event.INSTALLED): State.PROBE,
    (State.SNAPSHOT, Event.FAILED): State.PROBE,
    (State.PROBE, Event.LOST): State.PROBE,
    (State.REPLICATE, Event.LOST): State.PROBE,
    (State.SNAPSHOT, Event.LOST): State.SNAPSHOT,
    (State.PROBE, Event.DAMAGED): State.PROBE,
    (State.REPLICATE, Event.DAMAGED): State.PROBE,
    (State.SNAPSHOT, Event.DAMAGED): State.PROBE,
}


@attrs.define(eq=False)
class Progress:
    """One follower of one leader.

    Attributes:
        next: the entry to send next.
        match: it holds everything up to here durably, as far as known.
        state: see the module.
        active: something came from it since the leader last counted its quorum.
        was_active: it was at that count, so something came from it within the last two.
        recovering: it said that it is being repaired: what it acknowledged before does not count.
        forgotten: and that is forgotten: what it acknowledges since then, it has.
        session: of its appends; answers to an earlier one are of a log that is lost.
        damaged_life: the life in which it reported the last damage.
        asked: in probe: an append is on its way.
        quiet: no reply to an append came since the last reply to a heartbeat.
        outgoing: in snapshot: the stream.
        rests: ticks until it is offered a snapshot again, having refused one.
    """

    next: int
    match: int = 0
    state: State = State.PROBE
    active: bool = False
    was_active: bool = False
    recovering: bool = False
    forgotten: bool = False
    session: int = 0
    damaged_life: int | None = None
    asked: bool = False
    quiet: bool = False
    outgoing: Outgoing | None = None
    rests: int = 0
    in_flight_bytes: int = 0
    _in_flight: deque[tuple[int, int]] = attrs.field(factory=deque)

    def _on(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state, event]
        self.asked = False
        if self.state is not State.REPLICATE:
            self._in_flight.clear()
            self.in_flight_bytes = 0
        if self.state is not State.SNAPSHOT:
            self.outgoing = None

    @property
    def in_flight(self) -> int:
        """Appends sent and not answered."""
        return len(self._in_flight)

    def may_send(self, appends_max: int, bytes_max: int) -> bool:
        """Whether the window has room for another append."""
        if self.state is State.PROBE:
            return not self.asked
        if self.state is State.SNAPSHOT:
            return False
        return not self._in_flight or (len(self._in_flight) < appends_max and self.in_flight_bytes < bytes_max)

    def sent(self, last_index: int, size: int) -> None:
        """An append with the entries from `next` to `last_index` leaves, `size` bytes of bodies."""
        if self.state is State.PROBE:
            self.asked = True
        else:
            assert self.state is State.REPLICATE and last_index >= self.next
            self._in_flight.append((last_index, size))
            self.in_flight_bytes += size
            self.next = last_index + 1

    def accepted(self, index: int) -> bool:
        """It holds everything up to `index`. Whether that was news."""
        self.quiet = False
        news = index > self.match
        if news:
            # inv: MatchMonotonic
            self.match = index
            self.next = max(self.next, index + 1)
        if self.state is State.SNAPSHOT:
            return news
        if self.state is State.PROBE and not news and index < self.next - 1:
            # An answer to a question of long ago says nothing about where the logs agree now.
            return False
        if self.state is State.PROBE:
            self.next = self.match + 1
        self._on(Event.ACCEPTED)
        in_flight = self._in_flight
        while in_flight and in_flight[0][0] <= index:
            self.in_flight_bytes -= in_flight.popleft()[1]
        return news

    def rejected(self, prev_index: int, agreed_at_most: int) -> bool:
        """It has no such entry at `prev_index`; the logs agree at `agreed_at_most` or below. Whether that was news."""
        self.quiet = False
        if self.state is State.SNAPSHOT or prev_index <= self.match:
            return False
        if self.state is State.PROBE:
            if prev_index != self.next - 1:
                return False
            # inv: NextGtMatch
            self.next = max(self.match + 1, min(prev_index, agreed_at_most + 1))
        else:
            self.next = self.match + 1
        self._on(Event.REJECTED)
        return True

    def behind(self, outgoing: Outgoing) -> None:
        """It is to receive a snapshot."""
        self._on(Event.BEHIND)
        self.outgoing = outgoing

    def installed(self, index: int) -> None:
        """The snapshot of `index`, or all that it covers, is durable there."""
        self.match = max(self.match, index)
        self.next = self.match + 1
        self._on(Event.INSTALLED)

    def lost(self) -> None:
        """What was under way to it may not arrive: ask again from what is known."""
        if self.state is State.REPLICATE:
            self.next = self.match + 1
        self.quiet = False
        self._on(Event.LOST)
        if self.outgoing is not None:
            self.outgoing.offered = False

    def damaged(self, life: int) -> bool:
        """It lost what it had acknowledged: nothing is known of it any more. False for a report that is known."""
        if life == self.damaged_life:
            return False
        self.damaged_life = life
        self.recovering = True
        self.forgotten = True
        self.session += 1
        self.match = 0
        self.quiet = False
        self._on(Event.DAMAGED)
        return True

    def failed(self) -> None:
        """The snapshot came to nothing; what it needs is found out anew."""
        self.next = self.match + 1
        self._on(Event.FAILED)
