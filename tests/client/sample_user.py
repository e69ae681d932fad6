"""A program as a user would write it, checked and never run: `mypy --strict` and pyright's strict rules must accept it
without one `# type: ignore`, and must know every type in it.

`tests/client/test_typing.py` has the checks, and the mistakes that the checkers must find.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TypedDict, assert_type

import walrq
import walrq.aio
from walrq.errors import OutcomeUnknown, QueueNotFound, ReceiptExpired

log = logging.getLogger("shop")

CONFIG = walrq.ClientConfig(timeout_s=10, window=32, retry_first_s=0.1, retry_factor=1.5, retry_max_s=5, pool=2)


class Order(TypedDict):
    """What travels."""

    number: int
    customer: str


def send(queue: walrq.Client, order: Order) -> str:
    """Push one, in each of the ways."""
    first = queue.push("orders", json=order, priority=5, headers={"source": "web"}, dedup_id=str(order["number"]))
    assert_type(first, str)
    queue.push("orders", b"raw", 0.5)
    queue.push("orders", "text", ttl=3600.0, group=order["customer"], max_attempts=5)
    queue.push("orders", json=None, deliver_at=datetime.now(UTC) + timedelta(hours=1))
    return first


def send_many(queue: walrq.Client, orders: Sequence[Order]) -> Iterator[str]:
    """Push a batch; say which ones did not get there."""
    entries: list[walrq.NewMessage | bytes] = [walrq.NewMessage(order["customer"]) for order in orders]
    entries.append(b"plain")
    try:
        ids = queue.push_batch("orders", entries)
    except walrq.BatchError as error:
        for failure in error.failures:
            assert_type(failure.error, walrq.WalrqError)
            assert_type(failure.count, int)
            log.warning("%s: %s (happened: %s)", failure.entry, failure.error.text, not failure.error.definite)
        yield from (each for each in error.results if each is not None)
        return
    assert_type(ids, walrq.MessageIds)
    assert_type(ids[0], str)
    assert_type(ids[:2], list[str])
    yield from ids


def handle(message: walrq.Message) -> None:
    """Work that does not care which client a message came from."""
    assert_type(message.payload, bytes)
    assert_type(message.message_id, str)
    assert_type(message.attempts, int)
    assert_type(message.fence, tuple[int, int])
    assert_type(message.pushed_at, datetime)
    assert_type(message.remaining, float)
    assert_type(message.group, str | None)
    if message.headers.get("source") == "web":
        log.info("%s was pushed at %s", message.message_id, message.pushed_at.isoformat())


def work_by_hand(queue: walrq.Client) -> None:
    """Poll, decide, give back."""
    messages = queue.poll(["urgent", "orders"], 60, 10, wait=20)
    assert_type(messages, list[walrq.SyncMessage])
    done: list[walrq.Message] = []
    for message in messages:
        try:
            handle(message)
        except ValueError as error:
            message.nack("fail", delay=5, error=error)
        except KeyError as error:
            queue.nack(message, "reject", error=error)
        else:
            done.append(message)
    try:
        queue.ack(done)
    except ReceiptExpired:
        log.exception("somebody else has them now")
    except walrq.BatchError as error:
        if not error.definite:
            raise
    except OutcomeUnknown as error:
        log.warning("asked again later: %s", error.retry)


def work_in_blocks(queue: walrq.Client) -> int:
    """Let blocks give back."""
    with queue.poll_batch("orders", max_messages=1000, wait=5) as batches:
        assert_type(batches, walrq.SyncBatches)
        total = sum(len(payload) for payload in batches.payloads())
    for batch in queue.poll_batch("orders"):
        with batch:
            for message in batch.messages():
                assert_type(message, walrq.SyncMessage)
                handle(message)
    for message in queue.consume("orders", max_messages=50):
        with message:
            message.touch(120)
            handle(message)
    return total


def by_handle(queue: walrq.Client, message_id: str, receipt_handle: str) -> None:
    """As a web page does it."""
    queue.ack("orders", message_id, receipt_handle)
    queue.touch("orders", 30, message_id=message_id, receipt_handle=receipt_handle)
    queue.nack("orders", "release", message_id=message_id, receipt_handle=receipt_handle)


def repair(queue: walrq.Client) -> None:
    """Dead letters."""
    try:
        dead = queue.list_dead("orders", 100, reason="failed")
    except QueueNotFound as error:
        log.info("did you mean %s?", error.details.get("nearest"))
        return
    for each in dead:
        assert_type(each, walrq.Seen)
        assert_type(each.reason, str | None)
        assert_type(each.died_at, datetime | None)
    log.info("%d are back", queue.redrive("orders", error_type="ValueError").count)
    log.info("%d are ready", queue.show_queue("orders").ready)
    for outcome in queue.cancel("orders", [each.message_id for each in dead]):
        assert_type(outcome, str)


def main() -> None:
    """Blocking."""
    with walrq.connect("walrq://one,two/?timeout_s=5", CONFIG, worker="shop") as queue:
        assert_type(queue, walrq.Client)
        send(queue, {"number": 1, "customer": "ada"})
        list(send_many(queue, [{"number": 2, "customer": "bob"}]))
        work_by_hand(queue)
        work_in_blocks(queue)
        repair(queue)
        stream = queue.push_stream("orders", in_flight=4)
        stream.push([b"a", b"b"])
        stream.drain()
        assert_type(stream.pushed, int)


@asynccontextmanager
async def lifespan(url: str | None = None) -> AsyncGenerator[walrq.aio.Client]:
    """As a web framework wants it."""
    async with walrq.aio.connect(url, CONFIG) as queue:
        yield queue


async def asynchronous() -> None:
    """The same under trio and asyncio."""
    async with lifespan() as queue:
        assert_type(queue, walrq.aio.Client)
        assert_type(await queue.push("orders", b"x"), str)
        assert_type(await queue.push("orders", json={"a": 1}), str)
        assert_type(await queue.push_batch("orders", [b"x", "y"]), walrq.MessageIds)
        for message in await queue.poll("orders", wait=1):
            handle(message)
            await queue.ack(message)
        async with await queue.poll_batch("orders", max_messages=1000) as batches:
            assert_type(batches, walrq.aio.AsyncBatches)
            assert_type(list(batches.payloads()), list[bytes])
        async for message in queue.consume("orders"):
            assert_type(message, walrq.aio.AsyncMessage)
            async with message:
                handle(message)
                await message.touch(60)
            await queue.nack(message, "release")
            break
