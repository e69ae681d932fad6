"""A user's module with tasks of every kind: type checkers read it as strictly as they can.

Not run. `assert_type` says what a checker has to see; tests/worker/test_typing.py has mistakes that it has to find.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, assert_type

import walrq

worker = walrq.Worker(
    "walrq://127.0.0.1:50051", queue="default", concurrency=8, prefetch=0, lease=60, stop_timeout=10, backend="asyncio"
)


@worker.task
def bare(number: int) -> str:
    return str(number)


@worker.task(queue="mail", retries=5, backoff=walrq.Exponential(first=1, most=600), timeout=30, concurrency=2)
def send(to: str, /, subject: str = "", *, urgent: bool = False) -> None:
    context = walrq.current()
    assert_type(context.message_id, str)
    assert_type(context.fence, tuple[int, int])
    assert_type(context.headers, dict[str, Any])
    context.check()
    context.extend(120)
    context.log.info("sent to %s", to)
    if context.attempts > 2:
        raise walrq.Reject("enough")
    if context.lease_lost or context.stopping:
        raise walrq.Release
    raise walrq.Retry("later", delay=5)


@worker.task(name="fetch-page", backoff=lambda failures: failures * 10.0)
async def fetch(url: str) -> bytes:
    await walrq.current().aextend(60)
    return url.encode()


@worker.handler(queue="raw")
def handle(message: walrq.Message) -> None:
    assert_type(message.payload, bytes)


@worker.handler(queue="raw-async")
async def handle_async(message: walrq.Message) -> None:
    assert_type(message.queue, str)


@worker.middleware
async def timed(context: walrq.Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
    assert_type(context.task, str | None)
    return await call_next()


@worker.lifespan
async def resources() -> AsyncIterator[None]:
    yield


@worker.on_startup
def before() -> None: ...


@worker.on_shutdown
async def after() -> None: ...


def enqueue() -> None:
    plain: Callable[[int], str] = bare
    assert_type(plain(1), str)
    assert_type(bare(1), str)
    assert_type(bare.enqueue(1), str)
    assert_type(send("ada", urgent=True), None)
    assert_type(send.enqueue("ada", "hi", urgent=True), str)
    assert_type(send.options(delay=60, priority=9).enqueue("ada", subject="hi"), str)
    send.options(deliver_at=datetime.now(UTC), group="g", dedup_id="d", ttl=60, retries=1, timeout=5).enqueue("ada")
    ids = send.enqueue_many([send.call("ada"), send.call("bob", urgent=True)])
    assert_type(ids, walrq.MessageIds)
    assert_type(ids[0], str)
    coroutine: Coroutine[Any, Any, bytes] = fetch("x")
    coroutine.close()


async def enqueue_async() -> None:
    assert_type(await fetch("x"), bytes)
    assert_type(await fetch.aenqueue("x"), str)
    assert_type(await fetch.aenqueue_many([fetch.call("x")]), walrq.MessageIds)
    assert_type(await worker.serve(), int)


def main() -> int:
    return worker.run(backend="asyncio", queues=["mail"], concurrency=2)
