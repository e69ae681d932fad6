"""Messages reach whom they are for, in order, whatever becomes of the lines between."""

from __future__ import annotations

import threading

import attrs
import pytest
import trio
import trio.testing

from tests.peers.harness import (
    PATIENCE_S,
    Line,
    Puppet,
    address_of,
    append,
    beat,
    bound,
    group,
    lines,
    pass_time,
    start_all,
    until,
    with_entries,
)
from walrq.errors import NotMember, RemoteProtocolError
from walrq.limits import PEER_BACK_OFF_S, PEER_BULK_BYTES_MAX, PEER_BULK_MESSAGES_MAX
from walrq.protocol.peer import Purpose
from walrq.raft.membership import Member
from walrq.raft.messages import Append, Message

pytestmark = pytest.mark.trio


async def test_two_nodes_hear_each_other() -> None:
    """One connection's worth of everything: names, both directions, addresses of clients."""
    async with group() as nodes:
        anna, bert = await start_all(nodes, "anna", "bert")
        anna.mesh.send([beat("anna", "bert", 1), append("anna", "bert", 0)])
        bert.mesh.send([beat("bert", "anna", 2)])
        await bert.wait_got(2)
        await anna.wait_got(1)

        assert {beat("anna", "bert", 1), append("anna", "bert", 0)} == set(bert.got)
        assert [beat("bert", "anna", 2)] == anna.got
        assert {"cbor": "bert:50051"} == dict(anna.mesh.endpoints_of("bert"))
        assert {} == dict(anna.mesh.endpoints_of("nobody"))


async def test_three_nodes_each_get_their_own() -> None:
    """A message goes to its receiver only."""
    async with group() as nodes:
        everybody = await start_all(nodes, "anna", "bert", "carl")
        names = {node.name for node in everybody}
        for node in everybody:
            node.mesh.send([beat(node.name, other, n) for other in sorted(names - {node.name}) for n in range(50)])
        for node in everybody:
            await node.wait_got(100)

        for node in everybody:
            assert {node.name} == {message.receiver for message in node.got}
            for other in names - {node.name}:
                assert list(range(50)) == [m.round for m in node.got if m.sender == other]  # type: ignore[attr-defined]


async def test_appends_keep_their_order_filled_or_not() -> None:
    """A follower refuses an append behind a gap, so order is what makes pipelining worth anything."""
    async with group() as nodes:
        anna, bert = await start_all(nodes, "anna", "bert")
        count = 400
        for index in range(count):
            size = 1 if index % 7 else 100_000
            anna.mesh.send([append("anna", "bert", index, b"x" * size, filled=index % 3 != 0)])
            if index % 50 == 0:
                await trio.lowlevel.checkpoint()
        await bert.wait_got(count)

        assert list(range(count)) == [message.prev_index for message in bert.got]  # type: ignore[attr-defined]
        assert all(isinstance(m, Append) and len(m.entries) == 1 for m in bert.got)
        assert [index for index in range(count) if index % 3 == 0] == [m.prev_index for m in anna.filled]
        assert 0 == anna.mesh.stats()["bert"].dropped


async def test_a_node_whose_name_is_given_to_another_disk_is_heard_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """Removed, still running, and joined anew on an empty disk: what the old one acknowledges the new one has not."""
    async with group() as nodes:
        anna, bert = await start_all(nodes, "anna", "bert")
        await until(lambda: anna.mesh.stats()["bert"].heard == 2)
        anna.members["bert"] = attrs.evolve(anna.members["bert"], disk_uuid=b"another disk")
        anna.mesh.members_changed()
        await until(lambda: anna.mesh.stats()["bert"].heard == 0 and not anna.mesh.stats()["bert"].connected)

        await until(lambda: lines(caplog, "peer_dropped node=bert"))
        assert all("WRONG_DISK" in line for line in lines(caplog, "peer_dropped node=bert"))
        assert ("lost", "bert") == anna.news[-1]
        bert.mesh.send([beat("bert", "anna", 1)])
        await until(lambda: any("WRONG_DISK" in line for line in lines(caplog, "peer_refused")))
        assert [] == anna.got


async def test_an_append_that_cannot_be_filled_is_not_tried_in_a_loop(mock_clock: trio.testing.MockClock) -> None:
    """Raft sends it again as soon as it is told; a damaged record stays what it is."""
    tries = 0

    def fill(bare: Append) -> None:
        nonlocal tries
        tries += 1

    async with group() as nodes:
        bert = await nodes.start("bert")
        anna = await nodes.start("anna", {"bert": bert.address}, fill=fill)
        await anna.wait_up_without_time("bert")
        for count in (1, 2, 3):
            anna.mesh.send([append("anna", "bert", 3, filled=False)])
            while [("lost", "bert")] * count != [news for news in anna.news if news[0] == "lost"]:
                await trio.testing.wait_all_tasks_blocked(0.005)
            for _ in range(20):
                anna.mesh.send([append("anna", "bert", 3, filled=False)])
                await trio.testing.wait_all_tasks_blocked(0.001)
            assert count == tries
            mock_clock.jump(PEER_BACK_OFF_S)


async def test_bodies_are_read_in_threads_one_at_a_time_for_each_peer() -> None:
    """A slow disk delays the follower that needs it, and nobody else."""
    reading: list[int] = []
    most = 0
    loop = threading.get_ident()
    gate = threading.Event()

    def fill(bare: Append) -> Append:
        nonlocal most
        assert threading.get_ident() != loop
        reading.append(bare.prev_index)
        most = max(most, len(reading))
        gate.wait(10)
        reading.pop()
        return with_entries(bare)

    async with group() as nodes:
        carl = await nodes.start("carl")
        bert = await nodes.start("bert")
        anna = await nodes.start("anna", {"bert": bert.address, "carl": carl.address}, fill=fill)
        await anna.wait_up("bert", "carl")
        anna.mesh.send([append("anna", "bert", index, filled=False) for index in range(20)])
        await until(lambda: reading)
        anna.mesh.send([beat("anna", "bert"), append("anna", "carl", 0)])
        await carl.wait_got(1)
        await bert.wait_got(1)

        assert [beat("anna", "bert")] == bert.got
        gate.set()
        await bert.wait_got(21)
        assert list(range(20)) == [m.prev_index for m in bert.got if isinstance(m, Append)]
        assert 1 == most


async def test_an_append_whose_entries_are_gone_is_told_and_those_behind_it_are_not_sent() -> None:
    """The log was cut behind the follower: Raft goes on with a snapshot."""
    async with group() as nodes:
        bert = await nodes.start("bert")
        anna = await nodes.start(
            "anna", {"bert": bert.address}, fill=lambda bare: None if bare.prev_index == 3 else with_entries(bare)
        )
        await anna.wait_up("bert")
        anna.mesh.send([append("anna", "bert", index, filled=False) for index in range(6)])
        await until(lambda: ("lost", "bert") in anna.news)
        anna.mesh.send([append("anna", "bert", 100)])
        await bert.wait_got(4)

        assert [0, 1, 2, 100] == [message.prev_index for message in bert.got]  # type: ignore[attr-defined]
        assert 3 == anna.mesh.stats()["bert"].dropped


async def test_a_line_that_is_cut_and_healed_carries_messages_again() -> None:
    """Nothing is owed for the time between, but what was lost is told, and the way back is short."""
    async with group() as nodes:
        line, bert = await Line.before(nodes, "bert")
        anna = await nodes.start("anna", {"bert": bert.address})
        await anna.wait_up("bert")
        line.cut()
        await until(lambda: anna.mesh.stats()["bert"].lost == 2)
        assert ("lost", "bert") == anna.news[-1]
        assert not anna.mesh.stats()["bert"].connected
        anna.mesh.send([append("anna", "bert", 1), beat("anna", "bert", 1)])
        anna.news.clear()
        line.heal()
        await anna.wait_up("bert")

        # Of appends nothing is kept, and Raft is told before it is told that the peer is back.
        assert [("lost", "bert"), ("up", "bert")] == anna.news
        anna.mesh.send([append("anna", "bert", 2)])
        await bert.wait_got(2)
        assert {beat("anna", "bert", 1), append("anna", "bert", 2)} == set(bert.got)


async def test_a_peer_that_comes_back_is_dialed_at_once(mock_clock: trio.testing.MockClock) -> None:
    """A node that restarts dials us; our own back-off would keep it waiting for seconds."""
    sock = bound()
    where = address_of(sock)
    sock.close()
    async with group() as nodes:
        anna = await nodes.start("anna", {"bert": where})
        await pass_time(mock_clock, 10)
        before = trio.current_time()
        last_error = anna.mesh.stats()["bert"].last_error
        bert = await nodes.start("bert", {"anna": anna.address})
        await anna.wait_up_without_time("bert")

        assert "Connection refused" in last_error
        assert before == trio.current_time()
        # Found at the address it told, not at the one in the list.
        assert bert.address == anna.mesh.stats()["bert"].address


async def test_a_silent_line_is_given_up_and_dialed_anew(mock_clock: trio.testing.MockClock) -> None:
    """A network that swallows packets says nothing; pings notice."""
    async with group() as nodes:
        line, bert = await Line.before(nodes, "bert")
        anna = await nodes.start("anna", {"bert": bert.address})
        await anna.wait_up_without_time("bert")
        await pass_time(mock_clock, 20)
        assert [("up", "bert")] == anna.news
        line.hold()
        await pass_time(mock_clock, 2)
        assert [("up", "bert")] == anna.news
        await pass_time(mock_clock, 2)

        assert ("lost", "bert") == anna.news[-1]
        assert "silent for 3 s" in anna.mesh.stats()["bert"].last_error
        await pass_time(mock_clock, 10)
        line.release()
        await pass_time(mock_clock, 10)
        assert ("up", "bert") == anna.news[-1]


async def test_a_connection_that_is_never_answered_is_given_up(mock_clock: trio.testing.MockClock) -> None:
    """Not a single pong: the handshake went through, and then the machine stood still."""
    async with group() as nodes:
        bert = Puppet("bert")
        bert.mute = True
        anna = await nodes.start("anna", {"bert": await nodes.nursery.start(bert.run)})
        await anna.wait_up_without_time("bert")
        await pass_time(mock_clock, 4)

        assert "silent for 3 s" in anna.mesh.stats()["bert"].last_error
        assert ("lost", "bert") in anna.news


async def test_a_peer_that_does_not_read_delays_neither_others_nor_its_own_heartbeats() -> None:
    """Bulk stands, control goes on; memory is bounded; the gap is told once there is room again."""
    async with group() as nodes:
        carl = await nodes.start("carl")
        bert = Puppet("bert")
        anna = await nodes.start("anna", {"bert": await nodes.nursery.start(bert.run), "carl": carl.address})
        await anna.wait_up("bert", "carl")
        anna.news.clear()
        body = b"x" * 100_000
        for index in range(2 * PEER_BULK_MESSAGES_MAX):
            anna.mesh.send([append("anna", "bert", index, body)])
        anna.mesh.send([append("anna", "carl", 0), beat("anna", "bert", 5)])
        await carl.wait_got(1)
        await until(lambda: bert.got[Purpose.CONTROL])

        stats = anna.mesh.stats()["bert"]
        assert stats.connected
        assert 0 < stats.dropped
        assert stats.queued_bytes <= PEER_BULK_BYTES_MAX + 2 * len(body)
        assert [] == bert.got[Purpose.BULK]
        assert [] == anna.news
        bert.gate.set()
        await until(lambda: anna.news)
        assert [("lost", "bert")] == anna.news
        await until(lambda: anna.mesh.stats()["bert"].queued_messages == 0)
        anna.mesh.send([append("anna", "bert", 9_999)])
        await until(lambda: bert.got[Purpose.BULK][-1:] == [append("anna", "bert", 9_999)])
        indexes = [message.prev_index for message in bert.got[Purpose.BULK]]  # type: ignore[attr-defined]
        assert [*range(len(indexes) - 1), 9_999] == indexes


async def test_members_that_come_and_go_are_dialed_and_left() -> None:
    """A configuration changes without a restart."""
    async with group() as nodes:
        anna = await nodes.start("anna")
        bert = await nodes.start("bert")
        assert {} == anna.mesh.stats()
        anna.members["bert"] = Member("bert", bert.address)
        anna.mesh.members_changed()
        await anna.wait_up("bert")
        del anna.members["bert"]
        anna.mesh.members_changed()
        await until(lambda: not anna.mesh.stats())
        anna.mesh.send([beat("anna", "bert")])

        assert 1 == anna.mesh.unroutable
        # It was connected here too, to answer; that ends with it.
        await until(lambda: not bert.mesh.stats())


async def test_a_node_that_knows_no_members_answers_whoever_sends_it_the_log() -> None:
    """A learner learns its configuration from the log that it acknowledges."""
    async with group() as nodes:
        bert = await nodes.start("bert")
        anna = await nodes.start("anna", {"bert": bert.address})
        await bert.wait_up("anna")
        bert.mesh.send([beat("bert", "anna", 4)])
        await anna.wait_got(1)

        assert [beat("bert", "anna", 4)] == anna.got


async def test_a_node_whose_address_is_not_known_is_waited_for() -> None:
    """It dials us, and says where it is."""
    async with group() as nodes:
        anna = await nodes.start("anna", {"bert": ""})
        await until(lambda: anna.mesh.stats()["bert"].last_error)
        assert "address is not known" in anna.mesh.stats()["bert"].last_error
        bert = await nodes.start("bert", {"anna": anna.address})
        await anna.wait_up("bert")

        assert bert.address == anna.mesh.stats()["bert"].address


async def test_a_node_that_listens_nowhere_still_speaks() -> None:
    """Its peers hear it; they cannot answer."""
    async with group() as nodes:
        bert = await nodes.start("bert")
        anna = await nodes.start("anna", {"bert": bert.address}, listens=False, address="")
        await anna.wait_up("bert")
        anna.mesh.send([beat("anna", "bert")])
        await bert.wait_got(1)
        await until(lambda: bert.mesh.stats()["anna"].last_error)

        assert "address is not known" in bert.mesh.stats()["anna"].last_error


async def test_a_message_that_no_correct_peer_sends_ends_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    """Raft refuses it; the reason stands in both logs; the link comes back and carries the next ones."""
    got: list[Message] = []

    def deliver(message: Message) -> None:
        if message.term == 13:
            raise RemoteProtocolError("two leaders in term 13")
        got.append(message)

    async with group() as nodes:
        bert = await nodes.start("bert", deliver=deliver)
        anna = await nodes.start("anna", {"bert": bert.address})
        await anna.wait_up("bert")
        anna.news.clear()
        anna.mesh.send([attrs.evolve(beat("anna", "bert"), term=13)])
        await until(lambda: ("lost", "bert") in anna.news)
        await anna.wait_up("bert")
        anna.mesh.send([beat("anna", "bert", 6)])
        await until(lambda: got)

        assert [beat("anna", "bert", 6)] == got
        assert ["two leaders in term 13" in line for line in lines(caplog, "peer_dropped node=anna")] == [True]
        assert any("refused: two leaders in term 13" in line for line in lines(caplog, "peer_lost node=bert"))


async def test_a_mistake_of_our_own_ends_the_mesh() -> None:
    """The process must not go on without its peers as if nothing were: the core nursery hears of it."""

    def deliver(message: Message) -> None:
        raise ZeroDivisionError(message)

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with group() as nodes:
            bert = await nodes.start("bert", deliver=deliver)
            anna = await nodes.start("anna", {"bert": bert.address})
            await anna.wait_up("bert")
            anna.mesh.send([beat("anna", "bert")])
            await trio.sleep(PATIENCE_S)


async def test_a_mesh_that_ends_leaves_no_socket_behind() -> None:
    """Cancelled at any moment, it closes what it opened; a thread that reads the log is waited for."""
    gate = threading.Event()
    ended = []

    def fill(bare: Append) -> Append:
        gate.wait(10)
        ended.append(bare)
        return with_entries(bare)

    async with group() as nodes:
        bert = await nodes.start("bert")
        anna = await nodes.start("anna", {"bert": bert.address}, fill=fill)
        await anna.wait_up("bert")
        anna.mesh.send([append("anna", "bert", 0, filled=False)])
        await trio.testing.wait_all_tasks_blocked(0.01)
        anna.scope.cancel()
        gate.set()
        await until(lambda: not bert.mesh.stats())

        assert 1 == len(ended)
    assert {} == anna.mesh._incoming._links


async def test_pings_tell_how_far_a_peer_is() -> None:
    """For people: `cluster status` shows it."""
    async with group() as nodes:
        anna, _ = await start_all(nodes, "anna", "bert")
        await until(lambda: anna.mesh.stats()["bert"].rtt_ms is not None)
        await until(lambda: anna.mesh.stats()["bert"].heard == 2)

        rtt_ms = anna.mesh.stats()["bert"].rtt_ms
        assert rtt_ms is not None
        assert 0 <= rtt_ms < 20_000


async def test_a_node_that_is_away_is_complained_about_once(
    caplog: pytest.LogCaptureFixture, mock_clock: trio.testing.MockClock
) -> None:
    """An hour of a dead peer is a few lines, not thousands."""
    sock = bound()
    where = address_of(sock)
    sock.close()
    async with group() as nodes:
        await nodes.start("anna", {"bert": where})
        await pass_time(mock_clock, 30)

        assert 1 == len(lines(caplog, "peer_unreachable node=bert"))
        assert f"{where} cannot be reached: Connection refused" in lines(caplog, "peer_unreachable")[0]


async def test_a_peer_that_turns_this_node_away_is_spoken_of_once(
    caplog: pytest.LogCaptureFixture, mock_clock: trio.testing.MockClock
) -> None:
    """A removed node that still runs asks for votes again and again, and is told each time that it is removed."""

    def no_member(message: Message) -> None:
        refused.append(message)
        raise NotMember("node 'anna' was removed")

    refused: list[Message] = []
    async with group() as nodes:
        bert = await nodes.start("bert", deliver=no_member)
        anna = await nodes.start("anna", {"bert": bert.address})
        for number in range(60):
            anna.mesh.send([beat("anna", "bert", number)])
            await pass_time(mock_clock, 0.5)

        assert len(refused) > 5, "it is tried again"
        assert 1 == len(lines(caplog, "peer_lost node=bert"))
        assert "NOT_MEMBER" in lines(caplog, "peer_lost node=bert")[0]
        assert [] == [line for line in lines(caplog, "peer_up node=bert")[1:] if "after a refusal" not in line]
