"""The asynchronous client, for trio and asyncio alike.

async with walrq.aio.connect("walrq://127.0.0.1:50051") as client:
    await client.push("mail", b"hello")
    for message in await client.poll("mail", wait=20):
        await client.ack(message)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from walrq.client.asynchronous import AsyncBatch, AsyncBatches, AsyncMessage, Client, Consumer
from walrq.client.config import ClientConfig, resolve

__all__ = ["AsyncBatch", "AsyncBatches", "AsyncMessage", "Client", "ClientConfig", "Consumer", "connect"]


def connect(url: str | Sequence[str] | None = None, config: ClientConfig | None = None, **changes: Any) -> Client:
    """A client to be entered with `async with`, which connects it.

    Args:
        url: `walrq://host:port[,host2:port2][/?timeout_s=5&window=64]`, or a list of such addresses; any
            node of a cluster leads to all of them. None = the variable WALRQ_SERVER, else walrq://127.0.0.1:50051.
            What it sets goes before `config`.
        config: how it behaves.
        **changes: single values of `ClientConfig`, such as `timeout_s=5`; they go before all others.

    Raises:
        ConfigError: the address or a value cannot be used.
    """
    return Client(*resolve(url, config, changes))
