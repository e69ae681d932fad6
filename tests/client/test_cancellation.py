"""A call that is cancelled, at whatever moment, leaves nothing leased: on a real daemon, under trio and asyncio."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import anyio
import anyio.lowlevel
import pytest

import walrq
from tests.forks.nodes import Node
from walrq import aio

ROUNDS = 60
# Longer than any test: a lease that stays is never seen again.
HOUR_S = 3600


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A daemon; each test uses a queue of its own."""
    with Node(tmp_path_factory.mktemp("cancelled") / "data") as started:
        yield started.start()


@pytest.mark.anyio
async def test_a_poll_cancelled_at_any_moment_keeps_no_message(node: Node, anyio_backend: str, seed: int) -> None:
    """Before it is sent, while it waits, while the lease is on its way: each message is with the caller or there for
    the next worker, and has cost no attempt."""
    random = Random(seed)
    queue = f"any-moment-{anyio_backend}"
    handed: list[walrq.Message] = []
    cut = 0

    async def worker(client: aio.Client, wait: float) -> None:
        handed.extend(await client.poll(queue, HOUR_S, 1, wait=wait))

    async with aio.connect(node.url) as client:
        await client.create_queue(queue)
        for number in range(ROUNDS):
            before = len(handed)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(worker, client, 60)
                tasks.start_soon(client.push, queue, b"%d" % number)
                # From "nothing was sent yet" to "everything was answered", and whatever lies between.
                for _ in range(number % 6):
                    await client.ping()
                for _ in range(random.randrange(8) if number % 6 else 0):
                    await anyio.lowlevel.checkpoint()
                while number % 6 == 5 and len(handed) == before:
                    await client.ping()
                tasks.cancel_scope.cancel()
            cut += len(handed) == before
        await client.ack(handed)
        # In order behind everything that was forgotten, on the same connection.
        await client.push(queue, b"last")
        rest: list[walrq.Message] = []
        with anyio.fail_after(30):
            while b"last" not in {message.payload for message in rest}:
                rest += await client.poll(queue, max_messages=1000, wait=5)
        info = await client.show_queue(queue)

    payloads = [message.payload for message in (*handed, *rest)]
    assert len(payloads) == len(set(payloads)), "nothing was handed out twice"
    assert info.pushed == len(payloads), "nothing stayed leased"
    assert {0} == {message.attempts for message in rest}
    assert ROUNDS // 6 <= cut <= ROUNDS - ROUNDS // 6, "rounds ended at different moments"


def test_a_blocking_poll_that_is_interrupted_keeps_no_message(node: Node) -> None:
    """Ctrl-C while a worker waits: the next message goes to somebody else."""

    with walrq.connect(node.url) as client, walrq.connect(node.url) as other:
        client.create_queue("interrupted")
        turns = 0

        def on_turn() -> None:
            nonlocal turns
            turns += 1
            if turns == 3:
                raise KeyboardInterrupt

        client.on_turn = on_turn
        with pytest.raises(KeyboardInterrupt):
            client.poll("interrupted", HOUR_S, wait=60)
        client.on_turn = None
        client.ping()
        other.push("interrupted", b"x")

        (message,) = other.poll("interrupted", wait=10)
        assert (b"x", 0) == (message.payload, message.attempts)
        message.ack()
