"""Which node next: the ring, hints, rests and rounds, one decision at a time."""

from __future__ import annotations

import random

import pytest

from walrq import api
from walrq.client.config import ClientConfig, Endpoint
from walrq.client.failures import ServerUnreachable
from walrq.client.routing import HOPS_MAX, PROVEN_S, STRANGER_S, Nodes, Route, Verdict, endpoint_of
from walrq.errors import NotLeader, Unauthenticated, WalrqError, WrongCluster
from walrq.protocol.handshake import Welcome

A, B, C = Endpoint("a", 1), Endpoint("b", 1), Endpoint("c", 1)
DEAD = ServerUnreachable("refused")


def route(*configured: Endpoint, **changes: float) -> Route:
    """A way that begins at the first of the addresses."""
    return Route(Nodes(configured), ClientConfig(**changes), random.Random(3))  # type: ignore[arg-type]


def welcome(node: str = "a", leader: str | None = None, *members: str, cluster: str = "c") -> Welcome:
    """What a node says first; members are `name:1`."""
    nodes = tuple(api.NodeAt(name, f"{name}:1") for name in members)
    return Welcome(node, cluster, (), {}, None, 0, nodes=nodes, leader=leader)


def attempt(made: Route, now: float, failure: WalrqError | None = DEAD, took: float = 0.001) -> float:
    """An attempt that fails, and the pause until the next."""
    made.begin(now)
    return made.next(now + took, failure)


def test_every_address_gets_its_turn_before_the_first_pause() -> None:
    """A list of nodes is there to be used."""
    made = route(A, B, C)
    seen, pauses = [], []
    for number in range(3):
        seen.append(made.current)
        pauses.append(attempt(made, 10.0 + number / 100))

    assert [A, B, C] == seen
    assert [True, True, False] == [pause == 0.0 for pause in pauses]
    assert A == made.current


def test_one_address_pauses_as_configured() -> None:
    """Growing, bounded, spread."""
    made = route(A, retry_first_s=0.1, retry_factor=2.0, retry_max_s=0.4)
    for most in (0.1, 0.2, 0.4, 0.4):
        assert most / 2 <= attempt(made, 10.0) <= most


def test_pauses_of_an_election_are_short() -> None:
    """Nodes that answer will have a leader soon; nodes that do not may never."""
    elects, dead = route(A), route(A)
    for number in range(12):
        elects.begin(number)
        elects.turned_away()
        pause = elects.next(number + 0.001, NotLeader("not me"))
        assert pause <= elects.config.election_max_s
        if number == 0:
            assert pause <= 0.025
        attempt(dead, number)

    assert elects.leaderless and not dead.leaderless
    assert attempt(dead, 20) > elects.config.election_max_s


def test_a_named_leader_goes_first_and_at_once() -> None:
    """Also one that was in no list."""
    made = route(A, B)
    made.begin(10)
    made.usable(10)
    made.turned_away("c:1")

    assert 0 == made.next(10.1, None)
    assert C == made.current


@pytest.mark.parametrize("hint", [None, "", "http://c:1", "c:0", "b:1,c:1", 7, "x y"])
def test_a_name_that_is_no_address_changes_nothing(hint: object) -> None:
    """Go on with the list."""
    assert endpoint_of(hint) is None
    made = route(A, B)
    made.begin(10)
    made.turned_away(hint)

    assert 0 == made.next(10.1, None)
    assert B == made.current


def test_hints_are_followed_a_few_times_only() -> None:
    """Two nodes that name each other."""
    made = route(A, B)
    pauses = []
    for _ in range(20):
        made.begin(10)
        made.turned_away("b:1" if made.current == A else "a:1")
        pauses.append(made.next(10.001, NotLeader("not me")))

    assert pauses.index(next(pause for pause in pauses if pause)) <= HOPS_MAX + 2
    assert len([pause for pause in pauses if pause]) >= 3


def test_an_address_that_took_its_time_is_left_out_for_as_long() -> None:
    """Even when it is named: what refuses at once may be asked at once again, what is silent costs too much."""
    made = route(A, B)
    made.begin(10)
    made.turned_away("c:1")
    made.next(10, NotLeader("not me"))
    assert C == made.current
    attempt(made, 10, took=1.0)
    for at, follows in ((11.1, False), (11.9, False), (12.1, True)):
        made.current = A
        made.begin(at)
        made.turned_away("c:1")
        made.next(at, NotLeader("not me"))
        assert follows == (made.current == C), at


def test_patience_grows_with_each_round_only_among_several() -> None:
    """A node of several is not worth five seconds; one that is alone is."""
    alone, several = route(A), route(A, B)
    assert 5.0 == alone.patience_s
    found = []
    for number in range(8):
        found.append(several.patience_s)
        attempt(several, number)
        attempt(several, number + 0.5)

    assert [1.0, 2.0, 4.0, 5.0, 5.0] == found[:5]


def test_members_are_learned_and_forgotten() -> None:
    """The given address stays: it may be a proxy's, which is in no list of members."""
    made = route(A)
    assert Verdict.STAY is made.welcomed(welcome("b", "b:1", "b", "c"), moves=True)
    assert (A, B, C) == made.nodes.ring
    assert made.nodes.several

    made.welcomed(welcome("b", "b:1", "b", "d"), moves=True)

    assert (A, B, Endpoint("d", 1)) == made.nodes.ring


def test_a_node_that_is_alone_leads_by_whatever_name() -> None:
    """One node with two addresses is not two nodes."""
    made = route(A)
    assert Verdict.STAY is made.welcomed(welcome("n", "n:1", "n"), moves=True)

    assert made.leads
    assert not made.nodes.several
    assert (A,) == made.nodes.ring


@pytest.mark.parametrize(
    ("leader", "moves", "verdict", "leads"),
    [
        ("a:1", True, Verdict.STAY, True),
        ("b:1", True, Verdict.GO_ON, False),
        ("b:1", False, Verdict.STAY, False),
        (None, True, Verdict.STAY, False),
        ("nonsense address", True, Verdict.STAY, False),
    ],
)
def test_a_welcome_says_where_to_go(leader: str | None, moves: bool, verdict: Verdict, leads: bool) -> None:
    """Only to somebody who needs the leader, and only where an address can be used."""
    made = route(A)
    made.begin(10)

    assert verdict is made.welcomed(welcome("a", leader, "a", "b", "c"), moves=moves)
    assert leads is made.leads


def test_another_cluster_is_wrong_among_several_and_new_where_there_is_one() -> None:
    """A node of several cannot have become another cluster; a single one may have been set up anew."""
    several, alone = route(A, B), route(A)
    for made, verdict in ((several, Verdict.WRONG), (alone, Verdict.ANEW)):
        assert Verdict.STAY is made.welcomed(welcome(cluster="one"), moves=True)
        assert Verdict.STAY is made.welcomed(welcome(cluster=""), moves=True), "a node that has not joined yet"
        assert verdict is made.welcomed(welcome(cluster="two"), moves=True)
    assert ("one", "two") == (several.nodes.cluster, alone.nodes.cluster)


def test_a_stranger_rests_long() -> None:
    """Its address is somebody's mistake, which does not pass in a moment."""
    made = route(A)
    made.begin(10)
    made.turned_away("c:1")
    made.next(10, None)
    assert C == made.current
    attempt(made, 10, WrongCluster("other"))
    for at, follows in ((10 + STRANGER_S / 2, False), (11 + STRANGER_S, True)):
        made.current = A
        made.begin(at)
        made.turned_away("c:1")
        made.next(at, None)
        assert follows == (made.current == C)


def test_an_error_for_good_is_told_when_no_node_may_help() -> None:
    """One node refuses the credential: another may be dead for a moment only, so calls go on waiting."""
    refused = Unauthenticated("who are you?")
    made = route(A, B)
    attempt(made, 10, refused)
    assert attempt(made, 10, refused) > 0
    assert refused is made.final
    assert made.gives_up(0.0)

    attempt(made, 11, DEAD)
    assert attempt(made, 11, refused) > 0
    assert made.final is None
    assert refused is made.latest, "more telling than that a port is closed"


@pytest.mark.parametrize(("connect_wait_s", "waits"), [(0.0, 0.0), (2.0, 2.0)])
def test_how_long_a_client_tries_at_first(connect_wait_s: float, waits: float) -> None:
    """Nobody there: as configured. Nodes that elect: as long as a call would."""
    dead = route(A, connect_wait_s=connect_wait_s)
    attempt(dead, 10)
    assert [False, True] == [dead.gives_up(waits - 0.1), dead.gives_up(waits)]
    elects = route(A, connect_wait_s=connect_wait_s)
    attempt(elects, 10, NotLeader("not me"))
    assert [False, True] == [elects.gives_up(29.9), elects.gives_up(30.0)]


def test_a_connection_that_was_good_makes_the_past_forgotten() -> None:
    """An hour later the first attempt costs no long pause."""
    for proof in ("answer", "age"):
        made = route(A)
        for number in range(6):
            attempt(made, number)
        made.begin(10)
        made.usable(10)
        if proof == "answer":
            made.answered()

        assert made.next(10 + (PROVEN_S if proof == "age" else 0.0), None) <= made.config.retry_first_s


def test_connections_that_break_at_once_are_no_busy_loop() -> None:
    """A proxy without a node behind it accepts, greets nobody's requests and closes."""
    made = route(A, B)
    now = 10.0
    for _ in range(20):
        made.begin(now)
        made.usable(now)
        now += 0.001 + made.next(now + 0.001, None)

    assert now > 15
