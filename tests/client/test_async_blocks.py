"""`async with message:`, `async with batch:`, `async with await client.poll_batch(...)`, under trio and asyncio."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager

import anyio
import pytest

from tests.client.fake_server import Connection, Drop, FakeServer
from tests.forks.nodes import Node
from walrq import aio, api
from walrq.client.asynchronous import AsyncBatches
from walrq.errors import Code, ReceiptExpired
from walrq.protocol.requests import Incoming


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A daemon; each test uses a queue of its own."""
    with Node(tmp_path_factory.mktemp("blocks") / "data") as started:
        yield started.start()


class Trouble(Exception):
    """What a block raises in these tests."""


BLOCKS: dict[str, Callable[[AsyncBatches], AbstractAsyncContextManager[object]]] = {
    "message": lambda found: found.messages()[0],
    "batch": lambda found: found[0],
    "poll": lambda found: found,
}
by_block = pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS.keys())


@by_block
@pytest.mark.anyio
async def test_a_block_that_ends_acknowledges_and_one_that_raises_fails(
    node: Node,
    block: Callable[[AsyncBatches], AbstractAsyncContextManager[object]],
    request: pytest.FixtureRequest,
) -> None:
    """Nobody has to remember the ack, nor the nack with its error."""
    queue = request.node.name
    async with aio.connect(node.url) as client:
        await client.create_queue(queue, max_deliveries=1)
        await client.push_batch(queue, [b"good"])
        async with block(await client.poll_batch(queue)):
            assert 1 == (await client.show_queue(queue)).leased
        info = await client.show_queue(queue)
        assert (0, 0, 1) == (info.ready, info.leased, info.acked)

        await client.push(queue, b"bad")
        error = Trouble("no paper")
        with pytest.raises(Trouble) as caught:
            async with block(await client.poll_batch(queue)):
                raise error
        assert error is caught.value
        (dead,) = await client.list_dead(queue)

    assert ("failed", "Trouble", b"bad") == (dead.reason, dead.history[-1].error_type, dead.payload)


@by_block
@pytest.mark.anyio
async def test_a_block_that_is_cancelled_releases_free_of_charge(
    node: Node,
    block: Callable[[AsyncBatches], AbstractAsyncContextManager[object]],
    request: pytest.FixtureRequest,
) -> None:
    """A shutdown cancels its workers: what they held goes to others at once, and has not failed."""
    queue = request.node.name
    async with aio.connect(node.url) as client:
        await client.push(queue, b"x")
        with anyio.CancelScope() as scope:
            async with block(await client.poll_batch(queue, 3600)):
                scope.cancel()
                await anyio.sleep_forever()

        with anyio.fail_after(10):
            (message,) = await client.poll(queue, wait=10)
        assert (b"x", 0, 2) == (message.payload, message.attempts, message.delivery)
        await message.ack()


@pytest.mark.anyio
async def test_a_block_leaves_alone_what_was_given_back_inside(node: Node, anyio_backend: str) -> None:
    """Who decides by hand has decided; also through calls that travel together."""
    queue = f"inside-{anyio_backend}"
    async with aio.connect(node.url) as client:
        await client.push_batch(queue, [b"%d" % number for number in range(6)])
        async with await client.poll_batch(queue, 3600) as batches:
            one, two, failed, released, _, _ = batches.messages()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one.ack)
                tasks.start_soon(two.ack)
            await failed.nack("fail", delay=3600)
            await released.nack("release")
            assert all(message.settled for message in (one, two, failed, released))
            assert not batches[0].settled

        info = await client.show_queue(queue)
        assert (1, 0, 4) == (info.ready, info.leased, info.acked)
        assert batches[0].settled


@pytest.mark.anyio
async def test_callers_that_polled_together_settle_their_own_part(node: Node, anyio_backend: str) -> None:
    """Concurrent polls share one lease: one caller's block must not acknowledge another's messages."""
    queue = f"shared-{anyio_backend}"
    seen: dict[int, list[bytes]] = {}

    async def work(client: aio.Client, number: int) -> None:
        messages = await client.poll(queue, max_messages=2, wait=10)
        seen[number] = [message.payload for message in messages]
        for message in messages:
            try:
                async with message:
                    if number == 0:
                        raise Trouble
            except Trouble:
                continue

    async with aio.connect(node.url) as client:
        await client.create_queue(queue, max_deliveries=1)
        await client.push_batch(queue, [b"%d" % number for number in range(10)])
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(work, client, number)
        dead = {each.payload for each in await client.list_dead(queue)}
        info = await client.show_queue(queue)

    assert dead == set(seen[0])
    assert (0, 0, 10 - len(dead)) == (info.ready, info.leased, info.acked)
    assert {b"%d" % number for number in range(10)} == {payload for part in seen.values() for payload in part}


def expired(fake: FakeServer) -> None:
    """Let every settlement find its lease over."""

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        if type(incoming.request) is api.Settle:
            return api.Settled((int(Code.RECEIPT_EXPIRED),) * len(incoming.request.items))
        return fake.list_queue(connection, incoming)

    fake.script = script


@pytest.mark.anyio
async def test_a_lost_lease_is_told_at_the_end_of_the_block_and_never_replaces_its_error(fake: FakeServer) -> None:
    """Done in vain is worth an error; a block's own error is worth more."""
    expired(fake)
    async with aio.connect(fake.url) as client:
        await client.push_batch("q", [b"x", b"y"])
        first, second = await client.poll("q")
        with pytest.raises(ReceiptExpired):
            async with first:
                pass
        with pytest.raises(Trouble) as caught:
            async with second:
                raise Trouble

    (note,) = caught.value.__notes__
    assert "could not be given back" in note


@pytest.mark.anyio
async def test_an_outage_is_told_once_and_so_is_its_end(fake: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    """The same two lines as the blocking client's."""
    cuts = iter([True])

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        if type(incoming.request) is api.Push and next(cuts, False):
            raise Drop
        return fake.list_queue(connection, incoming)

    fake.script = script
    with caplog.at_level(logging.INFO, "walrq.client"):
        async with aio.connect(fake.url, retry_first_s=0.001) as client:
            await client.push("q", b"secret")
            assert f"<walrq.aio.Client 127.0.0.1:{fake.port}, connected>" == repr(client)

    lost, back = caplog.records
    assert (logging.WARNING, logging.INFO) == (lost.levelno, back.levelno)
    assert f"lost the connection to 127.0.0.1:{fake.port}" in lost.getMessage()
    assert "1 request under way" in lost.getMessage()
    assert f"connected to 127.0.0.1:{fake.port} again" in back.getMessage()
    assert "secret" not in caplog.text


def test_a_client_may_be_made_before_its_loop_runs(fake: FakeServer, anyio_backend: str) -> None:
    """A module-level client that the program enters later."""
    client = aio.connect(fake.url)

    async def main() -> str:
        async with client:
            return await client.push("q", b"x")

    assert anyio.run(main, backend=anyio_backend)
