"""The ancestor's sample, turned into Python: push, poll ten messages for thirty seconds, print, ack by its handle."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import walrq
from tests.forks.nodes import Node
from walrq import aio


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A daemon."""
    with Node(tmp_path_factory.mktemp("ancestor") / "data") as started:
        yield started.start()


def test_the_ancestors_sample_reads_the_same(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    """Who comes from there finds the same four steps, with the same arguments in the same order."""
    with walrq.connect(node.url) as client:
        message_id = client.push("emails", b"Hello, walrq", 0)

        for message in client.poll("emails", 30, 10):
            print(f"{message.message_id}: {message.payload.decode()}")
            client.ack("emails", message.message_id, message.receipt_handle)

        info = client.show_queue("emails")

    assert f"{message_id}: Hello, walrq\n" == capsys.readouterr().out
    assert (0, 0, 1) == (info.ready, info.leased, info.acked)


@pytest.mark.anyio
async def test_the_ancestors_sample_under_trio_and_asyncio(
    node: Node, anyio_backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ancestor's client was asynchronous: `await` stands where it stood there."""
    queue = f"emails-{anyio_backend}"
    async with aio.connect(node.url) as client:
        await client.push(queue, b"Hello, walrq", 0)

        for message in await client.poll(queue, 30, 10):
            print(message.payload.decode())
            await client.ack(queue, message.message_id, message.receipt_handle)

        info = await client.show_queue(queue)

    assert "Hello, walrq\n" == capsys.readouterr().out
    assert (0, 0, 1) == (info.ready, info.leased, info.acked)
