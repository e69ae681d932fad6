"""What comes to the peer port and does not belong: refused with one line, and nobody else notices."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

from tests.peers.harness import (
    Group,
    Node,
    address_of,
    append,
    beat,
    bound,
    dial,
    dialer,
    group,
    hello,
    lines,
    pass_time,
    shake,
    start_all,
    until,
    uuid_of,
)
from walrq.errors import WrongNode
from walrq.limits import PEER_FRAME_BYTES_MAX, PEER_PENDING_MAX
from walrq.protocol.framing import FrameBuffer
from walrq.protocol.peer import Refusal, decode_item, encode_ping, encode_raft
from walrq.raft.membership import Member
from walrq.raft.messages import Message

pytestmark = pytest.mark.trio


async def still_talks(anna: Node, bert: Node) -> None:
    """The check of every test here: the mesh is unharmed."""
    before = len(bert.got)
    anna.mesh.send([beat(anna.name, bert.name, 77), append(anna.name, bert.name, before)])
    await bert.wait_got(before + 2)
    assert anna.mesh.stats()[bert.name].connected


async def answer(stream: trio.SocketStream) -> bytes:
    """All that comes until the end."""
    data = b""
    with trio.fail_after(20):
        try:
            while some := await stream.receive_some(65_536):
                data += bytes(some)
        except trio.BrokenResourceError:
            pass
    return data


def refusal(data: bytes) -> Refusal:
    """The last frame, which says why."""
    item = decode_item(FrameBuffer().feed(data)[-1], "anybody")
    assert isinstance(item, Refusal)
    return item


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
        (b"\x16\x03\x01\x00\x00", "TLS"),
        (b"*1\r\n$4\r\nPING\r\n", "RESP"),
        (b"\xff" * 5000, "4294967295 bytes"),
        (b"\x00" * 5000, "0 bytes"),
        ((1 << 20).to_bytes(4, "big"), "1048576 bytes"),
    ],
)
async def test_garbage_on_the_port_is_one_log_line(data: bytes, words: str, caplog: pytest.LogCaptureFixture) -> None:
    """A port scan, a browser, a client with the wrong address."""
    async with group() as nodes:
        anna, bert = await start_all(nodes, "anna", "bert")
        async with await dial(bert.address) as stream:
            await stream.send_all(data)
            assert words in str(refusal(await answer(stream)).error)

        await until(lambda: lines(caplog, "peer_refused from=127.0.0.1"))
        assert [words in line for line in lines(caplog, "peer_refused from=127.0.0.1")] == [True]
        assert 1 == bert.mesh.refused
        await still_talks(anna, bert)


async def test_a_flood_of_garbage_is_not_a_flood_of_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    """The disk belongs to the log of messages."""
    async with group() as nodes:
        bert = await nodes.start("bert")
        for _ in range(30):
            async with await dial(bert.address) as stream:
                await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
                await answer(stream)

        await until(lambda: bert.mesh.refused == 30)
        assert 1 == len(lines(caplog, "peer_refused"))


async def test_who_says_nothing_is_sent_away(
    mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection that proves nothing is held for a few seconds only, however slowly it speaks."""
    async with group() as nodes:
        bert = await nodes.start("bert")
        async with await dial(bert.address) as silent, await dial(bert.address) as slow:
            for byte in b"\x00\x00\x10\x00abcd":
                await slow.send_all(bytes([byte]))
                await pass_time(mock_clock, 0.5)
            await pass_time(mock_clock, 2)

            assert b"" == await answer(silent)
            assert b"" == await answer(slow)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert ["no handshake in time" in line for line in lines(caplog, "peer_refused")] == [True]
        assert 2 == bert.mesh.refused


async def test_a_flood_of_silent_connections_keeps_no_peer_out(mock_clock: trio.testing.MockClock) -> None:
    """The oldest of them goes; memory and descriptors are bounded; a peer shakes hands in between."""
    async with group() as nodes:
        bert = await nodes.start("bert")
        silent = [await dial(bert.address) for _ in range(2 * PEER_PENDING_MAX)]
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert PEER_PENDING_MAX == len(bert.mesh._incoming._pending)
        anna = await nodes.start("anna", {"bert": bert.address})
        await anna.wait_up_without_time("bert")

        assert PEER_PENDING_MAX >= len(bert.mesh._incoming._pending)
        for stream in silent:
            await stream.aclose()
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert {} == bert.mesh._incoming._pending


async def test_a_wrong_secret_is_said_on_both_ends(caplog: pytest.LogCaptureFixture) -> None:
    """The commonest mistake in a configuration, found in either log."""
    async with group() as nodes:
        anna, bert = await start_all(nodes, "anna", "bert")
        await nodes.start("carl", {"bert": bert.address}, secret=b"the secret of another")
        await until(lambda: nodes.nodes["carl"].mesh.stats()["bert"].last_error)
        await until(lambda: lines(caplog, "peer_refused"))

        assert "do not share one cluster secret" in lines(caplog, "peer_refused")[0]
        assert "code=UNAUTHENTICATED" in lines(caplog, "peer_unreachable node=bert")[-1]
        assert "carl" not in bert.mesh.stats()
        await still_talks(anna, bert)


async def test_a_node_of_another_cluster_is_refused_with_both_ids(caplog: pytest.LogCaptureFixture) -> None:
    """A node that was moved keeps its old list."""
    async with group() as nodes:
        anna, bert = await start_all(nodes, "anna", "bert")
        carl = await nodes.start("carl", {"bert": bert.address}, cluster="c-2")
        await until(lambda: carl.mesh.stats()["bert"].last_error)
        await until(lambda: lines(caplog, "peer_refused"))

        for line in (lines(caplog, "peer_refused")[0], carl.mesh.stats()["bert"].last_error):
            assert "c-1" in line
            assert "c-2" in line
        assert "code=WRONG_CLUSTER" in lines(caplog, "peer_refused")[0]
        await still_talks(anna, bert)


async def test_a_node_with_another_data_directory_is_refused_on_both_ends(caplog: pytest.LogCaptureFixture) -> None:
    """It was wiped, or its disk is that of another node: it has forgotten its votes."""
    async with group() as nodes:
        anna, bert = await start_all(nodes, "anna", "bert")
        wiped = await nodes.start("carl", {"bert": bert.address}, disk_uuid=b"another disk")
        bert.members["carl"] = Member("carl", wiped.address, uuid_of("carl"))
        wiped.scope.cancel()
        await until(lambda: "carl" not in bert.mesh._incoming.nodes())
        caplog.clear()
        again = await nodes.start("carl", {"bert": bert.address}, disk_uuid=b"another disk")
        await until(lambda: "WRONG_DISK" in "".join(lines(caplog, "peer_refused")))
        await until(lambda: "data directory" in again.mesh.stats()["bert"].last_error)

        assert b"another disk".hex() in again.mesh.stats()["bert"].last_error
        assert uuid_of("carl").hex() in again.mesh.stats()["bert"].last_error
        await still_talks(anna, bert)


async def test_two_processes_with_one_id_do_not_replace_each_other(caplog: pytest.LogCaptureFixture) -> None:
    """A copied data directory: the first one goes on, the second is told why it may not."""
    async with group() as nodes:
        anna, bert = await start_all(nodes, "anna", "bert")
        twin = await Group(nodes.nursery).start("anna", {"bert": bert.address})
        await until(lambda: "two nodes go by one id" in twin.mesh.stats()["bert"].last_error)

        assert "code=WRONG_NODE" in lines(caplog, "peer_dropped node=anna")[0]
        await still_talks(anna, bert)
        assert 2 == bert.mesh.stats()["anna"].heard
        assert "anna" in {message.sender for message in bert.got}


async def test_a_node_that_was_restarted_replaces_its_former_self(mock_clock: trio.testing.MockClock) -> None:
    """After a power failure nobody closes the old connections: a second and a half of silence is enough."""
    async with group() as nodes:
        bert = await nodes.start("bert")
        async with await dial(bert.address) as old, await dial(bert.address) as new:
            await shake(old, dialer(hello("anna", life=1)))
            await trio.testing.wait_all_tasks_blocked(0.01)
            await pass_time(mock_clock, 1.75)
            await shake(new, dialer(hello("anna", life=2)))
            await new.send_all(b"".join(encode_raft([beat("anna", "bert", 5)])))
            await trio.testing.wait_all_tasks_blocked(0.01)

            assert [beat("anna", "bert", 5)] == bert.got
            assert b"" == await answer(old)


async def test_a_new_connection_of_the_same_process_replaces_the_old_one() -> None:
    """Its end of the old one broke, and ours does not know yet."""
    async with group() as nodes:
        bert = await nodes.start("bert")
        async with await dial(bert.address) as old, await dial(bert.address) as new:
            await shake(old, dialer(hello("anna")))
            await until(lambda: bert.mesh._incoming.count("anna"))
            await shake(new, dialer(hello("anna")))
            assert b"" == await answer(old)
            await new.send_all(b"".join(encode_raft([beat("anna", "bert", 5)])))
            await bert.wait_got(1)

        assert [beat("anna", "bert", 5)] == bert.got


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"".join(encode_raft([beat("carl", "bert")])), "sender is 'carl', and the link is that of 'anna'"),
        (b"".join(encode_raft([append("carl", "bert", 0)])), "sender is 'carl', and the link is that of 'anna'"),
        ((PEER_FRAME_BYTES_MAX + 1).to_bytes(4, "big"), f"at most {PEER_FRAME_BYTES_MAX} are allowed"),
        (b"\x00\x00\x00\x02\x18\x18", "peer message"),
        (b"\x00\x00\x00\x02\x81\x24", "begins with -5"),
    ],
)
async def test_a_peer_that_breaks_the_rules_loses_its_connection_only(
    data: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It has the secret, and is wrong all the same: one line, one connection, and what came before counts."""
    async with group() as nodes:
        carl, bert = await start_all(nodes, "carl", "bert")
        async with await dial(bert.address) as stream:
            await shake(stream, dialer(hello("anna")))
            await stream.send_all(b"".join(encode_raft([beat("anna", "bert", 1)])) + data)
            assert words in str(refusal(await answer(stream)).error)

        assert [beat("anna", "bert", 1)] == bert.got
        await until(lambda: lines(caplog, "peer_dropped node=anna"))
        assert [words in line for line in lines(caplog, "peer_dropped node=anna")] == [True]
        await still_talks(carl, bert)


async def test_a_frame_cut_short_is_no_message(caplog: pytest.LogCaptureFixture) -> None:
    """A sender that dies inside a frame has not said it."""
    async with group() as nodes:
        bert = await nodes.start("bert")
        async with await dial(bert.address) as stream:
            await shake(stream, dialer(hello("anna")))
            await stream.send_all(b"".join(encode_raft([beat("anna", "bert", 1), beat("anna", "bert", 2)]))[:-1])
        await until(lambda: lines(caplog, "peer_dropped"))

        assert [beat("anna", "bert", 1)] == bert.got
        assert "ended inside a frame" in lines(caplog, "peer_dropped")[0]


async def test_a_peer_that_never_reads_its_pongs_costs_nothing_but_itself() -> None:
    """Answers to it fill its own pipe; others are read as ever."""
    async with group() as nodes:
        carl, bert = await start_all(nodes, "carl", "bert")
        async with await dial(bert.address) as stream:
            await shake(stream, dialer(hello("anna")))
            with trio.move_on_after(0.5):
                while True:
                    await stream.send_all(encode_ping(1) * 10_000)
            await still_talks(carl, bert)


async def test_a_connection_that_says_nothing_after_its_handshake_is_dropped(
    mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A peer pings; who does not is gone, or is no peer."""
    async with group() as nodes:
        bert = await nodes.start("bert")
        async with await dial(bert.address) as stream:
            await shake(stream, dialer(hello("anna")))
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert ["anna"] == list(bert.mesh._incoming.nodes())
            await pass_time(mock_clock, 4)
            await answer(stream)

        assert "silent for 3 s" in lines(caplog, "peer_dropped node=anna")[0]
        assert {} == bert.mesh._incoming.nodes()


async def test_an_address_that_leads_back_to_this_node_is_noticed() -> None:
    """A mistyped --advertise: it would otherwise talk to itself for ever."""
    async with group() as nodes:
        sock = bound()
        anna = await nodes.start("anna", {"bert": address_of(sock)}, sock=sock)
        await until(lambda: anna.mesh.stats()["bert"].last_error)

        assert "an address leads back here" in anna.mesh.stats()["bert"].last_error


async def test_another_node_at_a_members_address_is_refused() -> None:
    """Addresses are given to other machines; messages are not."""
    got: list[Message] = []
    async with group() as nodes:
        carl = await nodes.start("carl", deliver=got.append)
        anna = await nodes.start("anna", {"bert": carl.address})
        await until(lambda: anna.mesh.stats()["bert"].last_error)
        anna.mesh.send([beat("anna", "bert")])
        with pytest.raises(WrongNode, match="two nodes go by one id"):
            await nodes.nodes["anna"].mesh.probe(anna.address)

        assert "'carl' answers where 'bert' was expected" in anna.mesh.stats()["bert"].last_error
        assert [] == got


async def test_refusals_are_not_retried_in_a_hurry(
    mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A node with a wrong secret must not keep the others busy with its handshakes."""
    caplog.set_level(logging.INFO)
    async with group() as nodes:
        bert = await nodes.start("bert")
        await nodes.start("carl", {"bert": bert.address}, secret=b"the secret of another")
        await pass_time(mock_clock, 60)

        # Two connections, each at least a second apart once it has backed off, some quicker attempts before.
        assert 40 <= bert.mesh.refused <= 140
