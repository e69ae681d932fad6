"""Leadership moves, and no caller notices: calls, parked polls, sessions. No socket, no clock."""

from __future__ import annotations

import random

import pytest

from tests.client.fake_cluster import NAMES, Driver, FakeCluster, Node, client, connected
from tests.client.wire import push
from walrq import api
from walrq.client.exchange import LEAVE_S
from walrq.client.routing import HOPS_MAX
from walrq.errors import Code, ConnectionLost, LeadershipLost, NotLeader, SessionEnded, WrongCluster
from walrq.protocol.requests import Incoming

POLL = api.Poll(("q",), 10, None, 20_000)


def finish(made: Driver, *calls: object, seconds: float = 60.0) -> None:
    """Run until the calls are finished."""
    made.run(lambda: all(call.finished for call in calls), seconds)  # type: ignore[attr-defined]


def test_every_node_leads_to_the_leader_and_to_all_the_others() -> None:
    """One address is enough: the others are told."""
    for given in NAMES:
        cluster = FakeCluster(leader="n2")
        made = connected(cluster, given)

        assert "n2" == made.at
        assert set(NAMES) == {each.host for each in made.route.nodes.ring}
        assert 1 == len(cluster.sessions), "no session is asked of a node that does not lead"
        assert len(made.attempts) <= 2


def test_a_redirect_before_the_first_request_costs_no_pause() -> None:
    """A hint is followed at once."""
    cluster = FakeCluster(leader="n3")
    made = client(cluster, "n1")
    call = made.submit(push())
    began = made.now

    finish(made, call)

    assert made.now - began < 0.01
    assert [b"x"] == cluster.executed


def test_leadership_that_moved_while_the_client_was_idle_costs_one_hop() -> None:
    """Before the send: the old leader refuses, definitely, and names the new one."""
    cluster = FakeCluster()
    made = connected(cluster)
    cluster.elect("n2")
    began = made.now

    call = made.submit(push())
    finish(made, call)

    assert made.now - began < 0.01
    assert [b"x"] == cluster.executed
    assert 1 == len(cluster.sessions), "the session goes on at the new leader"
    assert "n2" == made.at


@pytest.mark.parametrize("happened", [True, False])
def test_a_change_between_send_and_answer_takes_effect_once(happened: bool) -> None:
    """The office ended while the push was in the log: only the same sequence finds out."""
    cluster = FakeCluster(slow=True)
    made = connected(cluster)
    call = made.submit(push())
    cluster.slow = False
    cluster.elect("n2", outcome=lambda incoming: happened)

    finish(made, call)

    assert [b"x"] == cluster.executed
    assert isinstance(call.reply, api.Pushed)
    first, second = [incoming for _, incoming in cluster.asked if type(incoming.request) is api.Push]
    assert first.sequence == second.sequence


def test_without_a_session_a_change_in_the_log_is_an_unknown_outcome() -> None:
    """Asking the new leader could do it twice; the client goes there with what comes next."""
    cluster = FakeCluster(slow=True)
    made = connected(cluster, session=False)
    call = made.submit(push(b"a"))
    cluster.slow = False
    cluster.elect("n2", outcome=lambda incoming: True)
    finish(made, call)

    assert isinstance(call.error, LeadershipLost)
    later = made.submit(push(b"b"))
    finish(made, later)
    assert [b"a", b"b"] == cluster.executed


def test_without_a_session_a_request_that_was_turned_away_goes_on() -> None:
    """A refusal is definite, whoever asks."""
    cluster = FakeCluster(leader="n3")
    made = connected(cluster, session=False)
    assert "n1" == made.at, "what any node can answer needs no leader"
    state = made.submit(api.ClusterStatus())
    call = made.submit(push())

    finish(made, state, call)

    assert isinstance(state.reply, api.ClusterState)
    assert "n1" == state.reply.node
    assert [b"x"] == cluster.executed
    assert "n3" == made.at


def test_a_parked_poll_moves_to_the_new_leader_at_once() -> None:
    """A worker that waits at a node that was deposed gets nothing and does not know it."""
    cluster = FakeCluster()
    made = connected(cluster)
    call = made.submit(POLL)
    cluster.elect("n2")
    began = made.now

    made.run(lambda: bool(cluster.nodes["n2"].parked))

    assert made.now - began < 0.01
    cluster.push_from_elsewhere(b"m")
    finish(made, call)
    assert isinstance(call.reply, api.Polled)
    assert b"m" == call.reply.runs[0].payloads
    assert call.sent_at >= began, "a lease counts from the poll that got it"


def test_a_parked_poll_is_forgotten_where_its_old_lease_might_be() -> None:
    """The leader died with the poll: perhaps it had leased already, and nobody will ever tell."""
    cluster = FakeCluster()
    made = connected(cluster)
    call = made.submit(POLL)
    (parked,) = cluster.nodes["n1"].parked
    cluster.kill("n1")
    cluster.elect("n2")

    made.run(lambda: bool(cluster.nodes["n2"].parked))
    cluster.push_from_elsewhere(b"m")
    finish(made, call)

    assert [parked.sequence] == cluster.forgotten


def test_many_under_way_keep_their_order_through_a_change() -> None:
    """Some are in the log, some are refused, some were never sent: a producer's batches stay in order."""
    cluster = FakeCluster(slow=True)
    made = connected(cluster, window=6)
    calls = [made.submit(push(b"%02d" % number)) for number in range(4)]
    # From here on the node refuses; the first four end as unknown, of which the first two took effect.
    effect = iter([True, True, False, False])
    cluster.slow = False
    cluster.elect("n2", outcome=lambda incoming: next(effect))
    calls += [made.submit(push(b"%02d" % number)) for number in range(4, 12)]

    finish(made, *calls)

    assert [b"%02d" % number for number in range(12)] == cluster.executed


def test_leadership_that_moves_while_the_session_is_opened() -> None:
    """The node led when the client came and does not when it asks."""
    cluster = FakeCluster(leader="n1")

    def move(node: Node, incoming: Incoming) -> bool:
        if type(incoming.request) is api.OpenSession and cluster.leader == "n1":
            cluster.elect("n3")
        return False

    cluster.on_request = move
    made = client(cluster)
    call = made.submit(push())

    finish(made, call)

    assert [b"x"] == cluster.executed
    assert 1 == len(cluster.sessions)


def test_leadership_that_moves_while_a_lost_session_is_opened_again() -> None:
    """The session ended, its successor is asked on the same connection, and the node just lost its office."""
    cluster = FakeCluster()
    made = connected(cluster)
    cluster.sessions.clear()

    def move(node: Node, incoming: Incoming) -> bool:
        if type(incoming.request) is api.OpenSession and node.name == "n1":
            cluster.elect("n2")
        return False

    cluster.on_request = move
    call = made.submit(push())

    finish(made, call)

    assert [b"x"] == cluster.executed
    assert "n2" == made.at


def test_an_election_is_waited_out_with_short_pauses() -> None:
    """Nobody leads for a while: asked often enough to go on soon, seldom enough to be no burden."""
    cluster = FakeCluster()
    made = connected(cluster)
    cluster.kill("n1")
    call = made.submit(push())
    began = made.now
    made.run(lambda: made.now >= began + 3)
    tries = [moment for moment, _ in made.attempts if moment > began]
    assert len(tries) <= 3 + 3 * 3 * 12, "three nodes, a dozen rounds a second at most"
    assert len(tries) >= 3 * 4

    cluster.elect("n3")
    elected = made.now
    finish(made, call)

    assert made.now - elected < 0.3
    assert [b"x"] == cluster.executed


def test_a_client_that_connects_during_an_election_waits_for_its_end() -> None:
    """Nodes that answer will have a leader in a moment: that is no reason to give up."""
    cluster = FakeCluster(leader=None)
    made = client(cluster)
    made.run(lambda: made.now >= 105)
    assert made.given_up is None

    cluster.elect("n2")
    made.run(lambda: made.exchange.connected)

    assert "n2" == made.at


def test_a_cluster_without_a_leader_is_given_up_after_the_time_out() -> None:
    """Two of three are gone for good: say what is wrong."""
    cluster = FakeCluster(leader=None)
    cluster.kill("n2")
    cluster.kill("n3")
    made = client(cluster, "n1", "n2", "n3", timeout_s=2)

    made.run(lambda: made.given_up is not None)

    assert isinstance(made.given_up, NotLeader), made.given_up
    assert 102 <= made.now < 103


def test_a_call_tells_that_nobody_leads_when_its_time_is_over() -> None:
    """Definite: it was turned away each time."""
    cluster = FakeCluster()
    made = connected(cluster)
    cluster.elect(None)

    call = made.submit(push(), timeout_s=2.0)
    finish(made, call)

    assert isinstance(call.error, NotLeader)
    assert call.error.definite
    assert [] == cluster.executed


# --- bad hints ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("session", [True, False])
def test_a_change_of_the_group_that_was_always_turned_away_did_not_happen(session: bool) -> None:
    """It carries no sequence, and yet nothing about it is unknown: nobody leads, nobody took it."""
    cluster = FakeCluster()
    made = connected(cluster, session=session)
    cluster.elect(None)

    call = made.submit(api.RemoveNode("n3"), timeout_s=2.0)
    finish(made, call)

    assert isinstance(call.error, NotLeader), call.error
    assert call.error.definite


def test_nodes_that_name_each_other_do_not_keep_a_client_busy() -> None:
    """Each has stale news: a few hops, then a pause like any other."""
    cluster = FakeCluster(leader=None)
    cluster.nodes["n1"].hint, cluster.nodes["n2"].hint = "n2:1", "n1:1"
    cluster.nodes["n3"].answers = "refused"
    made = client(cluster, "n1", timeout_s=1e6)
    call = made.submit(push())
    made.run(lambda: made.now >= 110)
    per_round = HOPS_MAX + len(NAMES) + 1
    assert len(made.attempts) <= per_round * 10 * 12

    cluster.nodes["n1"].hint = None
    cluster.elect("n1")
    finish(made, call)

    assert [b"x"] == cluster.executed


def test_a_hint_at_a_dead_leader_falls_back_to_the_others() -> None:
    """Until the election everybody names the one that died."""
    cluster = FakeCluster()
    made = connected(cluster)
    cluster.nodes["n2"].hint = cluster.nodes["n3"].hint = "n1:1"
    cluster.kill("n1")
    call = made.submit(push())
    made.run(lambda: made.now >= 101)
    cluster.elect("n3")
    elected = made.now

    finish(made, call)

    assert made.now - elected < 0.3
    assert [b"x"] == cluster.executed


@pytest.mark.parametrize("hint", ["10.9.9.9:1", "no address", "", "http://n2:1", "n2:1,n3:1", "x" * 255])
def test_a_hint_that_leads_nowhere_is_no_reason_to_stay(hint: str) -> None:
    """An address that only the nodes can reach, or that is none: the known ones are tried in turn."""
    cluster = FakeCluster(leader="n3")
    cluster.nodes["n1"].hint = cluster.nodes["n2"].hint = hint
    made = client(cluster)
    call = made.submit(push())
    began = made.now

    finish(made, call)

    assert made.now - began < 0.2
    assert [b"x"] == cluster.executed


def test_an_unreachable_leader_costs_a_second_and_not_each_round_one() -> None:
    """Its machine vanished without a word: attempts there take their time, and are made accordingly seldom."""
    cluster = FakeCluster()
    made = connected(cluster)
    cluster.nodes["n2"].hint = cluster.nodes["n3"].hint = "n1:1"
    cluster.kill("n1", "silent")
    call = made.submit(push(), timeout_s=100.0)
    began = made.now
    made.run(lambda: made.now >= began + 4)
    assert "n1" != made.at or made.now < began + 4.5
    cluster.nodes["n2"].hint = cluster.nodes["n3"].hint = None
    cluster.elect("n2")
    elected = made.now

    finish(made, call)

    assert made.now - elected < 2.5
    assert [b"x"] == cluster.executed
    waits = [moment for moment, name in made.attempts if name == "n1" and moment > began]
    assert len(waits) <= 3


def test_a_leader_that_says_nothing_any_more_is_left() -> None:
    """It is stopped, or its cable is out: no reset ever comes, and the calls under way must not wait for it."""
    cluster = FakeCluster(slow=True)
    made = connected(cluster)
    call, poll = made.submit(push(), timeout_s=10.0), made.submit(POLL)
    cluster.slow = False
    cluster.kill("n1", "silent")
    cluster.elect("n2")
    began = made.now

    finish(made, call)

    assert 1 <= made.now - began < 1.5, "one node_timeout_s of silence, one for the probe"
    assert [b"x"] == cluster.executed
    made.run(lambda: bool(cluster.nodes["n2"].parked))
    assert not poll.finished


def test_a_leader_that_is_slow_but_alive_is_not_left() -> None:
    """A slow disk is no reason to move: probes are answered."""
    cluster = FakeCluster(slow=True)
    made = connected(cluster)
    call = made.submit(push(), timeout_s=60.0)
    began = made.now
    made.run(lambda: made.now >= began + 8)

    assert "n1" == made.at
    assert 3 <= cluster.kinds("n1").count("Ping") <= 18
    cluster.answer()
    finish(made, call)
    assert [b"x"] == cluster.executed


def test_a_hint_at_another_cluster_is_refused_and_told() -> None:
    """Its sessions and queues are somebody else's: nothing is ever sent there."""
    cluster = FakeCluster()
    made = connected(cluster)
    stranger = cluster.nodes["stranger"] = Node("stranger", cluster="other")
    del stranger
    cluster.nodes["n1"].hint = "stranger:1"
    cluster.elect("n2")
    call = made.submit(push())

    finish(made, call)

    assert [b"x"] == cluster.executed
    assert [] == cluster.kinds("stranger")
    (failure,) = made.failures
    assert isinstance(failure, WrongCluster)
    assert "belongs to cluster other, this client talks to cluster c" in failure.text
    assert {"expected": "c", "found": "other"} == dict(failure.details)


def test_a_client_that_finds_nothing_but_another_cluster_says_so() -> None:
    """The address was given to somebody else while the nodes were away."""
    cluster = FakeCluster()
    made = connected(cluster, "n1", "n2")
    for name in NAMES:
        cluster.kill(name)
        cluster.nodes[name].cluster = "other"
    call = made.submit(push())
    made.run(lambda: made.now >= 101)
    assert not call.finished, "a dead node may come back"

    for name in NAMES:
        cluster.nodes[name].answers = "yes"
    cluster.elect("n1")
    finish(made, call)

    assert isinstance(call.error, WrongCluster)
    assert [] == cluster.executed


def test_a_single_node_that_lost_its_data_is_a_new_beginning() -> None:
    """The only node there is was set up anew: its old session numbers mean something else there now."""
    cluster = FakeCluster(tells=False)
    made = connected(cluster)
    first = made.exchange.session
    cluster.on_request = lambda node, incoming: True
    lost = made.submit(push(b"lost"))
    cluster.on_request = None
    cluster.kill("n1")
    cluster.nodes["n1"].cluster = "new"
    cluster.nodes["n1"].answers = "yes"
    cluster.leader = "n1"
    finish(made, lost)

    call = made.submit(push())
    finish(made, call)

    assert isinstance(lost.error, SessionEnded), "it may have taken effect before"
    assert [b"x"] == cluster.executed
    assert first != made.exchange.session
    assert 2 == len(cluster.sessions)


# --- leaving ------------------------------------------------------------------------------------------------
def test_a_draining_node_is_left_at_once_for_another() -> None:
    """Its parked polls need not wait for the end of the drain."""
    cluster = FakeCluster()
    made = connected(cluster)
    poll = made.submit(POLL)
    cluster.leader = "n2"
    connection = cluster.nodes["n1"].connection
    assert connection is not None
    connection.send_goaway(Code.DRAINING, "stopping")
    began = made.now

    call = made.submit(push())
    finish(made, call)

    assert made.now - began < 0.01
    assert "n2" == made.at
    assert not poll.finished
    assert 1 == len(cluster.nodes["n2"].parked)


def test_a_draining_node_has_a_moment_to_answer_what_it_took() -> None:
    """An answer that is under way is better than asking again; one that does not come is not waited for."""
    cluster = FakeCluster(slow=True)
    made = connected(cluster)
    taken, stuck = made.submit(push(b"taken")), made.submit(push(b"stuck"))
    node = cluster.nodes["n1"]
    assert node.connection is not None
    node.connection.send_goaway(Code.DRAINING, "stopping")
    made.step(made.now + LEAVE_S / 2)
    assert "n1" == made.at
    late, _, _ = node.pending.pop()
    cluster.answer()
    made.step(made.now + LEAVE_S / 4)
    assert taken.finished
    assert late.request.columns.payloads == b"stuck"  # type: ignore[union-attr]

    cluster.slow = False
    cluster.leader = "n2"
    finish(made, stuck)

    assert [b"taken", b"stuck"] == cluster.executed
    assert "n2" == made.at


def test_a_request_that_crossed_the_goaway_is_not_delayed() -> None:
    """It was refused because it came too late, and goes to the next node like all the others."""
    cluster = FakeCluster()
    made = connected(cluster)
    cluster.leader = "n2"

    def refuse(node: Node, incoming: Incoming) -> bool:
        if node.name != "n1":
            return False
        assert node.connection is not None
        node.connection.reply(incoming.id, api.Failed(int(Code.DRAINING), "stopping"))
        return True

    cluster.on_request = refuse
    call = made.submit(push())
    began = made.now
    finish(made, call)

    assert made.now - began < 0.01
    assert [b"x"] == cluster.executed


def test_membership_changes_are_asked_again_only_where_that_is_harmless() -> None:
    """A second `remove` or `transfer to anyone` could change more than was asked for."""
    cluster = FakeCluster()
    cluster.on_request = lambda node, incoming: node.name == "n1" and type(incoming.request) is not api.OpenSession
    made = connected(cluster)
    harmless = [made.submit(api.AddNode("n4", "a:1")), made.submit(api.TransferLeadership("n2"))]
    once = [made.submit(api.RemoveNode("n3")), made.submit(api.TransferLeadership())]
    cluster.kill("n1")
    cluster.elect("n2")

    finish(made, *harmless, *once)

    assert [api.Done(), api.Done()] == [call.reply for call in harmless]
    assert all(isinstance(call.error, ConnectionLost) for call in once)
    assert ["AddNode", "TransferLeadership"] == cluster.kinds("n2")


def test_releases_of_callers_that_went_away_reach_the_new_leader() -> None:
    """Otherwise a cancelled poll's message waits out its lease because of the failover."""
    cluster = FakeCluster()
    made = connected(cluster)
    call = made.submit(POLL)
    cluster.leader = "n2"
    made.exchange.abandon(call, made.now)

    made.run(lambda: bool(cluster.forgotten))

    assert "n2" == made.at


# --- everything at once -------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(6))
def test_any_sequence_of_failovers_executes_every_push_once(seed: int) -> None:
    """Elections, deaths, silence, drains, stale hints at random moments: once each, and no busy loop."""
    rng = random.Random(seed)
    cluster = FakeCluster()
    made = connected(cluster, seed=seed, timeout_s=1e6, window=8)
    calls = []
    for number in range(150):
        cluster.slow = rng.random() < 0.3
        calls.append(made.submit(push(b"%03d" % number)))
        if rng.random() < 0.2:
            made.submit(POLL)
        chance = rng.random()
        alive = [name for name in NAMES if cluster.nodes[name].answers == "yes"]
        if chance < 0.15 and alive:
            cluster.elect(rng.choice(alive), outcome=lambda incoming: rng.random() < 0.5)
        elif chance < 0.2:
            cluster.elect(None, outcome=lambda incoming: rng.random() < 0.5)
        elif chance < 0.27 and len(alive) > 1:
            cluster.kill(rng.choice(alive), rng.choice(["refused", "silent"]))
        elif chance < 0.4:
            for name in NAMES:
                cluster.nodes[name].answers = "yes"
        elif chance < 0.45:
            cluster.nodes[rng.choice(NAMES)].hint = rng.choice([None, "", "n1:1", "n2:1", "n3:1", "n9:1"])
        elif chance < 0.5 and made.at is not None:
            connection = cluster.nodes[made.at].connection
            if connection is not None:
                connection.send_goaway(Code.DRAINING, "stopping")
        end = made.now + rng.random() * 0.4
        made.run(lambda end=end: made.now >= end)  # type: ignore[misc]
        if cluster.slow and cluster.leader is not None and rng.random() < 0.8:
            cluster.answer()
    cluster.slow = False
    for name in NAMES:
        cluster.nodes[name].answers = "yes"
        cluster.nodes[name].hint = None
    cluster.elect("n2", outcome=lambda incoming: True)
    cluster.answer()
    finish(made, *calls, seconds=30)

    assert [b"%03d" % number for number in range(150)] == sorted(cluster.executed)
    assert all(isinstance(call.reply, api.Pushed) for call in calls)
    assert 1 == len(cluster.sessions)
