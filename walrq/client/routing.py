"""Which node next: what a client knows of a cluster, and how it finds the node that leads. Pure.

`Nodes` is what one client knows, shared by its connections: the addresses it was given, and those that a node told in
its Welcome. A `Route` belongs to one connection and remembers what came of its latest attempts.

    named as the leader --> there at once, at most `HOPS_MAX` times without getting anywhere
    otherwise           --> the next address of the ring that was not tried in this round, at once
    a round in vain     --> a pause that grows (less when nodes answer and elect), then the next round

An address that failed is left out, also when a node names it as the leader's, for as long as the attempt took: one that
refuses is asked again soon, one that says nothing costs no round more than it has cost already.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from typing import Final

import attrs

from walrq.client.config import ClientConfig, Endpoint, parse_url
from walrq.errors import ConfigError, NotLeader, NotReady, WalrqError, WrongCluster
from walrq.protocol.handshake import Welcome

# Followed in a row without an answer that only a leader gives: nodes that name each other must not keep a client busy.
HOPS_MAX: Final = 4
# An address that failed is left out at least so long.
REST_S: Final = 0.05
# One that belongs to another cluster is not asked again for so long, unless there is nothing else.
STRANGER_S: Final = 30.0
# By how much the pause grows while nodes elect: a handover takes some 50 ms, an election up to a second or two.
ELECTION_FACTOR: Final = 1.5
# A connection that lived so long was good, whatever was asked on it.
PROVEN_S: Final = 1.0


class Verdict(enum.Enum):
    """What a Welcome says to a client."""

    STAY = "stay"
    GO_ON = "the leader is elsewhere"
    ANEW = "a new cluster in place of the old: sessions are over"
    WRONG = "another cluster"


@attrs.define(eq=False)
class Nodes:
    """What a client knows of the nodes.

    Attributes:
        configured: the addresses it was given, never empty. They are always tried, too: a proxy's is in no Welcome.
        cluster: id of the cluster, None before the first Welcome.
        told: name -> address, as the latest Welcome told. Replaced as a whole: connections of several threads share it.
        latest: where a leader answered last.
    """

    configured: tuple[Endpoint, ...]
    cluster: str | None = None
    told: dict[str, Endpoint] = attrs.field(factory=dict)
    latest: Endpoint | None = None

    @property
    def several(self) -> bool:
        """Whether there is another node to go to. (One node with two addresses is one.)"""
        return len(self.told) > 1 or len(self.configured) > 1

    @property
    def ring(self) -> tuple[Endpoint, ...]:
        """Every address worth trying."""
        told = self.told
        if len(told) < 2:
            return self.configured
        return (*self.configured, *[each for each in told.values() if each not in self.configured])

    def learn(self, welcome: Welcome) -> None:
        """Take over who is there."""
        told = {}
        for each in welcome.nodes:
            endpoint = endpoint_of(each.endpoint)
            if endpoint is not None:
                told[each.node] = endpoint
        if told != self.told:
            self.told = told


def endpoint_of(text: object) -> Endpoint | None:
    """The address that a node named; None when this client cannot use it, which is no reason to stop."""
    if not isinstance(text, str) or "," in text:
        return None
    try:
        return parse_url(text)[0]
    except ConfigError:
        return None


@attrs.define(eq=False)
class Route:
    """One connection's way through the nodes; see the module's text.

    A driver calls `begin`, tries `current` for at most `patience_s`, and when that is over (at once, or after an hour)
    `next`. The exchange above the connection tells in between what the node said.

    Attributes:
        current: the node to try, or that is connected.
        leads: the connected node leads, by its own word or by what it did; or it is alone.
        proven: it gave an answer that only a leader gives.
        final: why no attempt of the latest round can succeed by being repeated; None when one may.
        latest: the best word for people on the latest round.
        leaderless: in the latest round nodes answered, and none of them led.
    """

    nodes: Nodes
    config: ClientConfig
    rng: random.Random
    current: Endpoint = attrs.field(init=False)
    leads: bool = attrs.field(default=False, init=False)
    proven: bool = attrs.field(default=False, init=False)
    final: WalrqError | None = attrs.field(default=None, init=False)
    latest: WalrqError | None = attrs.field(default=None, init=False)
    leaderless: bool = attrs.field(default=False, init=False)
    _hint: Endpoint | None = attrs.field(default=None, init=False)
    _turned: bool = attrs.field(default=False, init=False)
    _hops: int = attrs.field(default=0, init=False)
    _rounds: int = attrs.field(default=0, init=False)
    _tried: set[Endpoint] = attrs.field(factory=set, init=False)
    # Not before this moment: addresses that failed.
    _rests: dict[Endpoint, float] = attrs.field(factory=dict, init=False)
    _began: float = attrs.field(default=0.0, init=False)
    _up_since: float | None = attrs.field(default=None, init=False)
    # Of the round under way: nodes that answered and did not lead, and errors that repeating can or cannot mend.
    _answered: int = attrs.field(default=0, init=False)
    _may_pass: bool = attrs.field(default=False, init=False)
    _lasting: WalrqError | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.current = self.nodes.latest or self.nodes.configured[0]

    @property
    def patience_s(self) -> float:
        """How long the attempt may take, handshake included: with others to try less, and more with each round."""
        longest = self.config.connect_timeout_s
        if not self.nodes.several:
            return longest
        return min(longest, self.config.node_timeout_s * 2.0 ** min(self._rounds + 1, 60))

    # --- what the node says ---------------------------------------------------------------------------------
    def begin(self, now: float) -> None:
        """An attempt at `current` begins."""
        self._began = now
        self._up_since = None
        self._turned = False
        self.leads = self.proven = False

    def welcomed(self, welcome: Welcome, *, moves: bool) -> Verdict:
        """The node greets.

        Args:
            moves: go to the leader before anything is asked here.
        """
        nodes = self.nodes
        if welcome.cluster and welcome.cluster != nodes.cluster:
            if nodes.cluster is not None and (nodes.several or self.current not in nodes.configured):
                return Verdict.WRONG
            anew = nodes.cluster is not None
            nodes.cluster = welcome.cluster
            nodes.learn(welcome)
            if anew:
                return Verdict.ANEW
        elif welcome.nodes:
            nodes.learn(welcome)
        leader = endpoint_of(welcome.leader)
        own = nodes.told.get(welcome.node)
        self.leads = leader in (own, self.current) if leader is not None else len(nodes.told) < 2
        if leader is None or self.leads:
            return Verdict.STAY
        if moves and self._worth_following(leader, self._began):
            self.turned_away(welcome.leader)
            return Verdict.GO_ON
        return Verdict.STAY

    def usable(self, now: float) -> None:
        """Requests can be sent."""
        if self._up_since is None:
            self._up_since = now

    def answered(self) -> None:
        """The node gave an answer that only a leader gives: all is well."""
        self.leads = self.proven = True
        self.nodes.latest = self.current
        self._forgive()

    def turned_away(self, leader: object = None) -> None:
        """The node does not lead, or takes nothing more.

        Args:
            leader: "host:port" where it says that the leader is.
        """
        self._turned = True
        hint = endpoint_of(leader)
        if hint is not None:
            self._hint = hint

    def gives_up(self, waited_s: float) -> bool:
        """At the end of a round: whether a client that never was connected should say so, after waiting so long."""
        if self.final is not None:
            return True
        # Nodes that answer will elect a leader; where nobody is, nobody may ever be.
        config = self.config
        return waited_s >= (max(config.connect_wait_s, config.timeout_s) if self.leaderless else config.connect_wait_s)

    # --- where to go ----------------------------------------------------------------------------------------
    def next(self, now: float, failure: WalrqError | None) -> float:
        """The attempt or the connection is over: choose the next node, `current` from now on.

        Args:
            failure: why no usable connection came about; None after one.

        Returns:
            Seconds to wait before the attempt: 0 within a round. Above 0 a round is over, and `final`, `latest` and
            `leaderless` speak of it.
        """
        here = self.current
        if self._up_since is not None and now - self._up_since >= PROVEN_S:
            self._forgive()
        self._judge(here, now, failure)
        hint, self._hint = self._hint, None
        if hint is not None and self._worth_following(hint, now):
            self._hops += 1
            self.current = hint
            return 0.0
        around = _after(self.nodes.ring, here)
        for endpoint in around:
            if endpoint not in self._tried and self._rests.get(endpoint, 0.0) <= now:
                self.current = endpoint
                return 0.0
        return self._new_round(around, now)

    def _judge(self, here: Endpoint, now: float, failure: WalrqError | None) -> None:
        """Take down what came of the attempt."""
        self._tried.add(here)
        rest_s = REST_S
        if isinstance(failure, WrongCluster):
            rest_s = STRANGER_S
        elif self._up_since is None:
            rest_s = max(rest_s, now - self._began)
        if not self._turned or isinstance(failure, WrongCluster):
            self._rests[here] = now + rest_s
        if self._turned or isinstance(failure, NotLeader | NotReady):
            self._answered += 1
        if failure is None or failure.retry:
            self._may_pass = True
        else:
            self._lasting = failure
        self.latest = self._lasting or failure or self.latest

    def _worth_following(self, hint: Endpoint, now: float) -> bool:
        return hint != self.current and self._hops < HOPS_MAX and self._rests.get(hint, 0.0) <= now

    def _new_round(self, around: Sequence[Endpoint], now: float) -> float:
        self._rounds += 1
        self.leaderless = self._answered > 0
        self.final = None if self._may_pass else self._lasting
        longest_s = self.config.backoff_s(self._rounds)
        if self.leaderless:
            election_s = self.config.retry_first_s / 2 * ELECTION_FACTOR ** min(self._rounds - 1, 60)
            longest_s = min(longest_s, election_s, self.config.election_max_s)
        pause_s = longest_s * self.rng.uniform(0.5, 1.0)
        then = now + pause_s
        rests = self._rests = {each: until for each, until in self._rests.items() if until > now}
        awake = [each for each in around if rests.get(each, 0.0) <= then]
        self.current = awake[0] if awake else min(around, key=lambda each: rests.get(each, 0.0))
        self._start_round()
        return pause_s

    def _start_round(self) -> None:
        self._tried.clear()
        self._hops = self._answered = 0
        self._may_pass = False
        self._lasting = None

    def _forgive(self) -> None:
        """The past says nothing about the next attempt."""
        self._rounds = 0
        self._start_round()


def _after(ring: Sequence[Endpoint], here: Endpoint) -> list[Endpoint]:
    """The ring from behind `here` round to it."""
    if here not in ring:
        return list(ring)
    at = list(ring).index(here) + 1
    return [*ring[at:], *ring[:at]]
