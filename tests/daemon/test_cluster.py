"""Several nodes in one process: who answers what, what becomes of requests when the office moves, who belongs."""

from __future__ import annotations

import pytest

from tests.daemon.group import Member, cut, group
from tests.daemon.harness import columns, payloads
from walrq import api
from walrq.errors import Code

pytestmark = pytest.mark.trio


def code_of(reply: object) -> Code:
    """The code of a refusal."""
    assert isinstance(reply, api.Failed), reply
    return Code(reply.code)


async def take(member: Member, queue: str = "q", most: int = 100) -> list[bytes]:
    """Lease and acknowledge what is there."""
    client = await member.connect()
    polled = await client.ask(api.Poll((queue,), max_messages=most))
    assert isinstance(polled, api.Polled), polled
    for run in polled.runs:
        settled = await client.ask(api.Settle(queue, api.SettleKind.ACK, (api.Item(run.receipt),)))
        assert isinstance(settled, api.Settled) and set(settled.codes) == {0}, settled
    await client.aclose()
    return payloads(polled)


async def test_the_leader_serves_and_a_follower_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that knows any node finds the one that can answer, for writes, polls and reads alike."""
    async with group("n1 n2 n3", monkeypatch) as cluster:
        leader = await cluster.leader()
        for follower in await cluster.followers():
            for request in (
                api.Push("q", columns(b"x")),
                api.Poll(("q",)),
                api.Poll(("q",), wait_ms=10_000),
                api.ShowQueue("q"),
                api.ListQueues(),
                api.Peek("q"),
                api.OpenSession(),
                api.RemoveNode("n1"),
            ):
                refused = await follower.ask(request)
                assert Code.NOT_LEADER is code_of(refused), request
                assert (f"{leader.name}:50051", leader.name) == (
                    refused.details["leader"],
                    refused.details["leader_node"],
                )
            welcomed = await (await follower.connect(hello=False)).hello()
            assert f"{leader.name}:50051" == welcomed.welcome.leader
            assert isinstance(await follower.ask(api.Ping()), api.Pong)
            assert isinstance(await follower.ask(api.Stats()), api.StatsReply)

        assert isinstance(await leader.ask(api.Push("q", columns(b"a", b"b"))), api.Pushed)
        assert 2 == (await leader.ask(api.ShowQueue("q"))).ready
        assert [b"a", b"b"] == await take(leader)
        await cluster.settle()
        pages = [each.node.replica.machine.queues["q"].uid for each in cluster.up]

    assert 1 == len(set(pages))


async def test_welcome_names_all_nodes_wherever_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """From any one node a client learns of all others, and keeps them for the day that one is gone."""
    async with group("n1 n2 n3", monkeypatch) as cluster:
        await cluster.followers()
        everybody = [api.NodeAt(name, f"{name}:50051") for name in ("n1", "n2", "n3")]

        def known(member: Member) -> bool:
            assert member.node.peers is not None
            return list(member.node.peers.nodes()) == everybody

        for member in cluster.up:
            await cluster.until(lambda member=member: known(member), f"{member.name} knows all doors")
            welcomed = await (await member.connect(hello=False)).hello()
            assert everybody == list(welcomed.welcome.nodes)
            assert welcomed.welcome.cluster == cluster["n1"].node.replica.cluster_id


async def test_polls_that_wait_move_on_at_once_when_the_office_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that waits for an hour must not wait an hour at a node that has nothing to give any more."""
    async with group("n1 n2 n3", monkeypatch) as cluster:
        leader = await cluster.leader()
        client = await leader.connect()
        waiting = [await client.send(api.Poll((queue,), wait_ms=3_600_000)) for queue in ("a", "b", "a")]
        await cluster.until(lambda: leader.node.broker.polls.parked == 3, "parking")

        state = await leader.ask(api.TransferLeadership())

        assert state.leader not in (None, leader.name)
        for number in waiting:
            assert Code.NOT_LEADER is code_of(await client.answer(number))
        assert 0 == leader.node.broker.polls.parked
        assert not leader.node.broker.polls._lanes


async def test_what_was_appended_is_unknown_and_what_was_only_gathered_did_not_happen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A deposed leader tells apart what its successor may have from what nobody can have."""
    async with group("n1 n2 n3", monkeypatch) as cluster:
        old = await cluster.leader()
        await cluster.settle()
        client = await old.connect()
        heal = cut(old)
        appended = await client.send(api.Push("q", columns(b"appended")))
        await cluster.until(lambda: old.node.replica.last_index > old.node.replica.commit_index, "the append")
        old.node.driver._writing = True
        gathered = await client.send(api.Push("q", columns(b"gathered")))
        await cluster.until(lambda: len(old.node.broker._pending) == 2, "the proposal")
        new = await cluster.leader(other_than=old.name)
        assert isinstance(await new.ask(api.Push("q", columns(b"new"))), api.Pushed)
        await cluster.until(lambda: not old.node.replica.is_leader, "the end of the office")
        old.node.driver._writing = False
        heal()

        assert Code.LEADERSHIP_LOST is code_of(await client.answer(appended))
        assert Code.NOT_LEADER is code_of(await client.answer(gathered))
        assert 0 == old.node.broker.in_flight
        await cluster.settle()
        assert [b"new"] == await take(await cluster.leader())


async def test_a_retry_finds_its_first_result_at_the_new_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly once holds across nodes: the session's table is replicated, and so are receipts."""
    async with group("n1 n2 n3", monkeypatch) as cluster:
        old = await cluster.leader()
        client = await old.connect()
        session = (await client.ask(api.OpenSession())).session
        pushed = await client.ask(api.Push("q", columns(b"once")), sequence=1, lowest=1)
        polled = await client.ask(api.Poll(("q",), visibility_ms=600_000), sequence=2, lowest=1)
        await cluster.stop(old.name)

        new = await cluster.leader()
        again = await new.connect(session=session)
        assert pushed == await again.ask(api.Push("q", columns(b"once")), sequence=1, lowest=1)
        repeated = await again.ask(api.Poll(("q",), visibility_ms=600_000), sequence=2, lowest=1)
        assert [run.receipt for run in polled.runs] == [run.receipt for run in repeated.runs]
        assert [b"once"] == payloads(repeated)
        items = tuple(api.Item(run.receipt) for run in polled.runs)
        assert (0,) == (await again.ask(api.Settle("q", api.SettleKind.ACK, items), sequence=3, lowest=3)).codes
        assert 0 == (await new.ask(api.ShowQueue("q"))).leased


async def test_a_read_waits_until_the_office_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that is cut off must not tell an old depth as the truth."""
    async with group("n1 n2 n3", monkeypatch) as cluster:
        old = await cluster.leader()
        await old.ask(api.Push("q", columns(b"x")))
        await cluster.settle()
        client = await old.connect()
        heal = cut(old)
        read = await client.send(api.ShowQueue("q"))
        new = await cluster.leader(other_than=old.name)
        await new.ask(api.Push("q", columns(b"y")))

        assert Code.NOT_LEADER is code_of(await client.answer(read))
        heal()
        assert 2 == (await new.ask(api.ShowQueue("q"))).ready


async def test_a_follower_that_was_away_catches_up_by_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs nothing but time."""
    async with group("n1 n2 n3", monkeypatch) as cluster:
        away = (await cluster.followers())[0]
        await cluster.stop(away.name)
        for number in range(20):
            assert isinstance(await cluster.ask(api.Push("q", columns(b"%d" % number))), api.Pushed)
        await cluster.start(away.name)
        await cluster.settle()

        assert 20 == away.node.replica.machine.tally.messages


async def test_a_follower_that_was_away_for_long_catches_up_by_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it lacks is no longer in anybody's log; what is alive of it comes with the snapshot."""
    async with group("n1 n2 n3", monkeypatch, snapshot_log_bytes=200_000) as cluster:
        away = (await cluster.followers())[0]
        await cluster.ask(api.Push("kept", columns(b"from before")))
        await cluster.settle()
        await cluster.stop(away.name)
        body = b"x" * 20_000
        for _ in range(60):
            await cluster.ask(api.Push("q", columns(body)))
            await take(await cluster.leader())
        leader = await cluster.leader()
        await cluster.until(lambda: leader.node.replica.stats()["snapshots"] > 1, "a snapshot")
        await cluster.start(away.name)
        before = away.node.replica.machine
        await cluster.settle()

        assert before is not away.node.replica.machine, "it was brought by the log"
        assert 1 == away.node.replica.machine.tally.messages
        await cluster.ask(api.TransferLeadership(away.name))
        assert [b"from before"] == await take(away, "kept")


async def test_a_follower_that_lost_its_log_is_mended_by_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone it would have to refuse; here all it lost is elsewhere, and nothing of it counts until it is back."""
    async with group("n1 n2 n3", monkeypatch) as cluster:
        for number in range(5):
            await cluster.ask(api.Push("q", columns(b"%d" % number)))
        await cluster.settle()
        hurt = (await cluster.followers())[0]
        await cluster.stop(hurt.name)
        for name in hurt.disk.list_directory("data/wal"):
            hurt.disk.unlink(f"data/wal/{name}")
        await cluster.start(hurt.name)
        leader = await cluster.leader()

        def status() -> str:
            (found,) = [each for each in leader.node.members.state().members if each.node == hurt.name]
            return found.status

        await cluster.until(lambda: hurt.node.replica.machine.tally.messages == 5, "the repair")
        await leader.ask(api.Push("q", columns(b"5")))
        await cluster.until(lambda: status() == "normal", "its word that it is well")
        await leader.ask(api.TransferLeadership(hurt.name))
        assert [b"%d" % number for number in range(6)] == await take(hurt)


async def test_a_node_that_was_alone_grows_to_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to begin anew to become safe; nothing that was there before is lost."""
    async with group("n1", monkeypatch) as cluster:
        first = await cluster.leader()
        await first.ask(api.Push("q", columns(b"from before")))
        for name in ("n2", "n3"):
            await cluster.start(name, join="n1")
            roles = {each.node: each.role for each in (await first.ask(api.ClusterStatus())).members}
            assert "learner" == roles[name]
            state = await cluster.ask(api.AddNode(name))
            assert {"n1", name} <= {each.node for each in state.members if each.role != "learner"}
        await cluster.stop("n1")
        new = await cluster.leader()

        assert [b"from before"] == await take(new)


async def test_members_come_and_go_while_the_others_stay(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Join, promotion, leaving and the hand-over are each answered when they are done; asking again changes nothing."""
    async with group("n1 n2 n3", monkeypatch) as cluster:
        leader = await cluster.leader()
        await cluster.start("n4", join=(await cluster.followers())[0].name)
        for _ in range(2):
            learning = await cluster.ask(api.AddNode("n4", learner=True))
            assert {"n4": "learner"} == {each.node: each.role for each in learning.members if each.node == "n4"}
        for _ in range(2):
            state = await cluster.ask(api.AddNode("n4"))
            assert {"n4": "voter"} == {each.node: each.role for each in state.members if each.node == "n4"}
        moved = await cluster.ask(api.TransferLeadership("n4"))
        assert "n4" == moved.leader
        with caplog.at_level("WARNING", "walrq.peers"):
            left = await cluster.ask(api.RemoveNode("n4"))
        assert any("the cluster goes on without this node" in line for line in caplog.messages)
        assert ["n1", "n2", "n3"] == [each.node for each in left.members]

        new = await cluster.leader(other_than="n4")
        assert leader.node.replica.cluster_id == new.node.replica.cluster_id
        assert Code.INVALID_ARGUMENT is code_of(await cluster.ask(api.RemoveNode("n4")))
        assert Code.NOT_LEADER is code_of(await cluster["n4"].ask(api.Push("q", columns(b"x"))))
        assert isinstance(await cluster.ask(api.Push("q", columns(b"x"))), api.Pushed)


async def test_a_change_that_cannot_be_is_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster is unharmed by what is asked of it."""
    async with group("n1 n2 n3", monkeypatch) as cluster:
        leader = await cluster.leader()
        follower = (await cluster.followers())[0]
        nobody = cluster.reserve("n9")
        assert nobody.sock is not None
        nobody.sock.close()
        nobody.sock = None
        stranger = await cluster.start("alone")
        asked = {
            "unknown": api.AddNode("n7"),
            "nobody there": api.AddNode("n9", nobody.address),
            "another one": api.AddNode("n7", follower.address),
            "a cluster of its own": api.AddNode("alone", stranger.address),
            "itself": api.AddNode("n7", leader.address),
            "no member": api.RemoveNode("n7"),
            "no voter": api.TransferLeadership("n7"),
        }
        replies = {what: await leader.ask(request) for what, request in asked.items()}

        assert {
            "unknown": Code.INVALID_ARGUMENT,
            "nobody there": Code.NOT_READY,
            "another one": Code.WRONG_NODE,
            "a cluster of its own": Code.WRONG_CLUSTER,
            "itself": Code.WRONG_NODE,
            "no member": Code.INVALID_ARGUMENT,
            "no voter": Code.INVALID_ARGUMENT,
        } == {what: code_of(reply) for what, reply in replies.items()}
        assert "start it on an empty directory with --join" in replies["unknown"].text
        assert f"start it with --join {leader.address}" in replies["nobody there"].text
        assert isinstance(await leader.ask(api.Push("q", columns(b"x"))), api.Pushed)
        assert ["n1", "n2", "n3"] == [each.node for each in (await leader.ask(api.ClusterStatus())).members]


async def test_nobody_is_removed_while_the_rest_could_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one of three away, removing the second would leave one of two: for ever without a majority."""
    async with group("n1 n2 n3", monkeypatch) as cluster:
        leader = await cluster.leader()
        here, away = await cluster.followers()
        await cluster.stop(away.name)
        silent = leader.node.replica
        await cluster.until(
            lambda: silent.cluster_state()["members"][away.name]["heard_ticks"] > 20, f"the silence of {away.name}"
        )
        refused = await leader.ask(api.RemoveNode(here.name))
        left = await leader.ask(api.RemoveNode(away.name))

        assert Code.NOT_READY is code_of(refused)
        assert f"{away.name} cannot be reached" in refused.text
        assert {leader.name, here.name} == {each.node for each in left.members}


async def test_the_last_node_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of nobody would have lost everything."""
    async with group("n1", monkeypatch) as cluster:
        leader = await cluster.leader()

        refused = await leader.ask(api.RemoveNode("n1"))
        nobody = await leader.ask(api.TransferLeadership())

        assert (Code.INVALID_ARGUMENT, Code.INVALID_ARGUMENT) == (code_of(refused), code_of(nobody))
        assert "last voter" in refused.text


async def test_a_node_that_was_removed_while_it_was_away_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would ask for votes for ever, and nobody would know why it is of no use."""
    async with group("n1 n2 n3", monkeypatch) as cluster:
        leader = await cluster.leader()
        away = (await cluster.followers())[0]
        await cluster.stop(away.name)
        assert isinstance(await leader.ask(api.RemoveNode(away.name)), api.ClusterState)
        term = leader.node.replica.term
        with caplog.at_level("WARNING", "walrq.peers"):
            await cluster.start(away.name)
            await cluster.until(
                lambda: [line for line in caplog.messages if "NOT_MEMBER" in line and "other end refused" in line],
                "the word",
            )

        assert (True, term) == (leader.node.broker.is_serving, leader.node.replica.term)


async def test_heartbeats_are_answered_while_a_disk_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow follower is slow; it does not make the others elect."""
    async with group("n1 n2 n3", monkeypatch) as cluster:
        leader = await cluster.leader()
        slow = (await cluster.followers())[0]
        term = leader.node.replica.term
        slow.node.driver._writing = True
        ticks = leader.node.replica._raft.ticks
        for number in range(5):
            assert isinstance(await leader.ask(api.Push("q", columns(b"%d" % number))), api.Pushed)
        await cluster.until(lambda: leader.node.replica._raft.ticks > ticks + 25, "more than an election time-out")
        behind = leader.node.replica.cluster_state()["members"][slow.name]["match_index"]
        slow.node.driver._writing = False
        slow.node.driver.pump()

        assert behind < leader.node.replica.commit_index
        assert (leader.name, term) == ((await cluster.leader()).name, leader.node.replica.term)
        await cluster.settle()


async def test_delayed_messages_and_expired_leases_come_back_at_the_new_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever leads looks at the deadlines; they are in the log, not in a node."""
    async with group("n1 n2 n3", monkeypatch) as cluster:
        old = await cluster.leader()
        await old.ask(api.Push("late", columns(b"late"), delay_ms=700))
        client = await old.connect()
        session = (await client.ask(api.OpenSession())).session
        assert session
        await old.ask(api.Push("q", columns(b"x")))
        polled = await client.ask(api.Poll(("q",), visibility_ms=600), sequence=1, lowest=1)
        assert [b"x"] == payloads(polled)
        await cluster.stop(old.name)
        new = await cluster.leader()
        late = await new.ask(api.Poll(("late",), wait_ms=10_000))
        again = await new.ask(api.Poll(("q",), wait_ms=10_000))

        assert ([b"late"], [b"x"]) == (payloads(late), payloads(again))
        assert 2 == again.runs[0].delivery
