"""Links that can be cut: each direction for itself, without a word to either end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator

import pytest
import trio

from tests.requirements import require
from walrq.local.layout import prepare
from walrq.testing.links import Links

pytestmark = pytest.mark.trio
HELD_S = 0.02


class Group:
    """A link from node `a`, which is this process, to node `b`, which sends back what it gets."""

    def __init__(self, doors: list[tuple[str, int]]) -> None:
        self.pids = {"a": os.getpid()}
        self.links = Links({"a": (doors[0], doors[1]), "b": (doors[2], doors[3])}, lambda: self.pids)
        self.heard: list[bytes] = []
        self.ended = trio.Event()

    async def echo(self, stream: trio.SocketStream) -> None:
        """What `b` does."""
        async with stream:
            with contextlib.suppress(trio.BrokenResourceError):
                async for data in stream:
                    self.heard.append(data)
                    await stream.send_all(data)
        self.ended.set()

    async def dial(self) -> trio.SocketStream:
        """`a` dials the address that it knows of `b`."""
        return await trio.open_tcp_stream(*self.links.doors["b"][0])

    async def silent(self, stream: trio.SocketStream) -> bool:
        """Whether nothing comes, not even an end."""
        with trio.move_on_after(HELD_S):
            await stream.receive_some()
            return False
        return True


@pytest.fixture
async def group(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Group]:
    """Two doors, both proxied."""
    require("linux")
    places = prepare(tmp_path_factory.mktemp("doors") / "x", 2, 0).places
    addresses = [address.rpartition(":") for place in places for address in (place.peer, place.listen)]
    made = Group([(host, int(port)) for host, _, port in addresses])
    async with trio.open_nursery() as nursery:
        await nursery.start(made.links.run)
        real = made.links.doors["b"][1]
        listeners = await trio.open_tcp_listeners(real[1], host=real[0])
        nursery.start_soon(trio.serve_listeners, made.echo, listeners)
        yield made
        nursery.cancel_scope.cancel()


async def said(stream: trio.SocketStream, data: bytes) -> bytes:
    """Send, and read what comes back."""
    await stream.send_all(data)
    with trio.fail_after(10):
        return bytes(await stream.receive_some())


async def test_open_links_pass_everything_on_and_the_end_too(group: Group) -> None:
    """A proxy that changes anything would find faults of its own."""
    async with await group.dial() as stream:
        assert b"hello" == await said(stream, b"hello")
        big = os.urandom(3_000_000)
        got = bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, big)
            with trio.fail_after(20):
                while len(got) < len(big):
                    got += await stream.receive_some()
    with trio.fail_after(10):
        await group.ended.wait()

    assert big == bytes(got)


async def test_a_cut_is_one_way_and_what_waited_arrives_when_it_heals(group: Group) -> None:
    """Half a link is the failure that a node cannot see: it is heard and hears nothing, or the other way round."""
    async with await group.dial() as stream:
        await said(stream, b"1")
        group.links.gate("a", "b").close()
        await stream.send_all(b"2")
        assert await group.silent(stream)
        assert [b"1"] == group.heard
        group.links.heal()
        with trio.fail_after(10):
            assert b"2" == await stream.receive_some()
        group.links.gate("b", "a").close()
        await stream.send_all(b"3")
        assert await group.silent(stream)
        assert [b"1", b"2", b"3"] == group.heard
        group.links.heal()
        with trio.fail_after(10):
            assert b"3" == await stream.receive_some()


async def test_not_even_an_end_passes_a_cut(group: Group) -> None:
    """A cable that is pulled out says nothing about the process at its other end."""
    stream = await group.dial()
    await said(stream, b"1")
    for gate in group.links.around("b"):
        gate.close()
    await stream.aclose()
    with trio.move_on_after(HELD_S):
        await group.ended.wait()
    assert not group.ended.is_set()
    group.links.heal()

    with trio.fail_after(10):
        await group.ended.wait()


async def test_a_reset_ends_what_was_connected_and_new_connections_pass(group: Group) -> None:
    """What a router does that has forgotten the connection."""
    stream = await group.dial()
    await said(stream, b"1")
    group.links.gate("a", "b").close()
    held = await group.dial()
    group.links.heal(reset=True)
    with trio.fail_after(10):
        for each in (stream, held):
            with contextlib.suppress(trio.BrokenResourceError):
                assert b"" == await each.receive_some()
            await each.aclose()

    async with await group.dial() as again:
        assert b"4" == await said(again, b"4")


async def test_a_slow_link_keeps_the_order(group: Group) -> None:
    """Delay is not loss: what is sent first arrives first."""
    group.links.gate("a", "b").delay_s = HELD_S
    async with await group.dial() as stream:
        begun = trio.current_time()
        for number in range(10):
            await stream.send_all(b"%d" % number)
        got = b""
        with trio.fail_after(10):
            while len(got) < 10:
                got += await stream.receive_some()

    assert b"0123456789" == got
    assert trio.current_time() - begun >= HELD_S


async def test_who_is_no_node_is_let_in_nowhere(group: Group) -> None:
    """A dialler that nobody knows would pass gates that are closed."""
    group.pids.clear()
    async with await group.dial() as stream:
        with trio.fail_after(10), contextlib.suppress(trio.BrokenResourceError):
            assert b"" == await stream.receive_some()

    assert 1 == group.links.strangers
    assert [] == group.heard
