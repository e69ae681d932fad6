"""The asynchronous client against a scripted server, under trio and under asyncio."""

from __future__ import annotations

import socket
import time
from typing import Any

import anyio
import anyio.to_thread
import pytest
import sniffio

import walrq
from tests.client.fake_server import Connection, Drop, FakeServer, delivered, running
from walrq import aio, api
from walrq.client.failures import ServerUnreachable
from walrq.errors import (
    ConfigError,
    ConnectionLost,
    InvalidArgument,
    LocalProtocolError,
    QueueFull,
    ReceiptExpired,
    RemoteProtocolError,
    ReplyTimeout,
)
from walrq.protocol.requests import Incoming

pytestmark = pytest.mark.anyio


async def arrived(fake: FakeServer, kind: type[object], count: int = 1) -> Incoming:
    """Wait, without blocking the loop, until the server has been asked."""
    return await anyio.to_thread.run_sync(fake.wait_for, kind, count)


async def test_each_backend_really_runs(anyio_backend: str) -> None:
    """A plugin in the wrong mode would run every asyncio test under trio without a word."""
    assert anyio_backend == sniffio.current_async_library()


async def test_push_poll_ack_in_a_row(fake: FakeServer) -> None:
    """The shortest life of a message."""
    async with aio.connect(fake.url) as client:
        pushed = await client.push("mail", b"hello")
        (message,) = await client.poll("mail")
        await client.ack(message)

    assert (pushed, b"hello", "mail") == (message.message_id, message.payload, message.queue)
    assert ["Push", "Poll", "Settle"] == fake.kinds()


async def test_the_session_is_opened_on_entry_and_closed_on_exit(fake: FakeServer) -> None:
    """A session left behind would be remembered by every replica for an hour."""
    async with aio.connect(fake.url):
        pass

    await arrived(fake, api.CloseSession)
    assert [api.OpenSession, api.CloseSession] == [type(each.request) for each in fake.asked]


async def test_concurrent_callers_share_one_send(fake: FakeServer) -> None:
    """What is asked in one turn of the loop leaves together: that is where the speed comes from."""
    async with aio.connect(fake.url) as client:
        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(client.push, "q", b"%d" % number)

        assert {b"%d" % number for number in range(40)} == {payload for _, _, payload in fake.messages}
        assert fake.reads <= 20, "40 requests arrived in far fewer reads"


async def test_a_batch_is_one_request_and_its_ids_are_lazy(fake: FakeServer) -> None:
    """A hundred messages are one object on the way, and formatting a hundred ids is nobody's wish."""
    async with aio.connect(fake.url) as client:
        ids = await client.push_batch("q", [b"%d" % number for number in range(100)])

        assert ["Push"] == fake.kinds()
        assert 100 == len(ids)
        assert len({*ids}) == 100
        (first, *_) = await client.poll("q", max_messages=100)
        assert ids[0] == first.message_id


async def test_batches_are_acknowledged_by_one_receipt(fake: FakeServer) -> None:
    """The fast path makes no object per message."""
    run = delivered("q", 500, (b"a", b"bc", b""))
    fake.script = scripted(fake, api.Poll, api.Polled(0, 30_000, (run,)))
    async with aio.connect(fake.url) as client:
        (batch,) = await client.poll_batch("q")
        payloads = list(batch.payloads())
        await batch.ack()

    assert [b"a", b"bc", b""] == payloads
    assert [(api.Item(run.receipt),)] == [settled.items for settled in fake.settled]


def scripted(fake: FakeServer, kind: type[object], reply: api.Reply) -> object:
    """The list queue, except that requests of a kind get `reply`."""

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        if type(incoming.request) is kind:
            return reply
        return fake.list_queue(connection, incoming)

    return script


async def test_an_error_of_the_server_is_raised_as_its_class(fake: FakeServer) -> None:
    """Callers catch classes, not numbers."""
    fake.script = scripted(fake, api.Push, api.Failed(16, "q is full", {"limit": 5}))  # type: ignore[assignment]
    async with aio.connect(fake.url) as client:
        with pytest.raises(QueueFull, match="q is full") as caught:
            await client.push("q", b"x")

    assert {"limit": 5} == caught.value.details
    assert caught.value.definite


async def test_partial_failures_name_each_message(fake: FakeServer) -> None:
    """Of a list the ones whose lease was over are named; the rest is done."""
    runs = (delivered("q", 1, (b"a", b"b"), lease=1), delivered("q", 9, (b"c",), lease=2))
    polled = api.Polled(0, 30_000, runs)

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        if type(incoming.request) is api.Poll:
            return polled
        if type(incoming.request) is api.Settle:
            return api.Settled(tuple(11 if item.receipt == runs[1].receipt else 0 for item in incoming.request.items))
        return fake.list_queue(connection, incoming)

    fake.script = script
    async with aio.connect(fake.url) as client:
        messages = await client.poll("q")
        with pytest.raises(walrq.BatchError) as caught:
            await client.ack(messages)
        with pytest.raises(ReceiptExpired):
            await client.ack(messages[2])

    assert 2 == caught.value.succeeded
    assert [messages[2]] == [failure.entry for failure in caught.value.failures]
    assert isinstance(caught.value.failures[0].error, ReceiptExpired)


async def test_a_request_cut_off_by_a_killed_server_takes_effect_once(fake: FakeServer) -> None:
    """The server executed the push and died before it answered: the retry finds the answer."""
    cuts = iter([True, False])

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        reply = fake.list_queue(connection, incoming)
        if type(incoming.request) in (api.Push, api.Poll, api.Settle) and next(cuts, False):
            raise Drop
        return reply

    fake.script = script
    async with aio.connect(fake.url, retry_first_s=0.001) as client:
        await client.push("q", b"once")
        assert [b"once"] == [payload for _, _, payload in fake.messages]
        cuts = iter([True, False])
        (message,) = await client.poll("q")
        assert b"once" == message.payload
        cuts = iter([True, False])
        await client.ack(message)

    assert 1 == len(fake.settled)
    assert ["Push", "Push", "Poll", "Poll", "Settle", "Settle"] == fake.kinds()
    assert 1 == len({hello.session for hello in fake.hellos[1:]})


async def test_without_a_session_a_lost_answer_raises(fake: FakeServer) -> None:
    """The caller asked for no protection and is told the truth."""

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        raise Drop

    fake.script = script
    async with aio.connect(fake.url, session=False, retry_first_s=0.001) as client:
        with pytest.raises(ConnectionLost) as caught:
            await client.push("q", b"x")

    assert not caught.value.definite
    assert ["Push"] == fake.kinds()


async def test_cancelling_a_poll_sends_forget(fake: FakeServer) -> None:
    """A worker that was cancelled must not hold a message for a whole visibility time-out."""
    fake.script = hold_polls(fake)
    async with aio.connect(fake.url) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.poll, "q", None, 10)
            polled = await arrived(fake, api.Poll)
            tasks.cancel_scope.cancel()
        forget = await arrived(fake, api.Forget)

        assert api.Forget(polled.sequence or 0) == forget.request
        assert 0 < await client.ping(), "the connection goes on"


def hold_polls(fake: FakeServer) -> object:
    """The list queue, except that polls are never answered."""

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        return None if type(incoming.request) is api.Poll else fake.list_queue(connection, incoming)

    return script


async def test_a_silent_server_is_a_time_out_with_an_unknown_outcome(fake: FakeServer) -> None:
    """It may have been done: the error says so."""

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        return None if type(incoming.request) is api.Push else fake.list_queue(connection, incoming)

    fake.script = script
    async with aio.connect(fake.url, timeout_s=0.05) as client:
        with pytest.raises(ReplyTimeout) as caught:
            await client.push("q", b"x")

    assert not caught.value.definite


async def test_a_dead_connection_is_noticed_by_its_silence(fake: FakeServer) -> None:
    """A peer that vanished without a word (a pulled cable) would otherwise hold every call to its
    time-out."""
    silent = True

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        return (
            None if silent and type(incoming.request) is not api.OpenSession else fake.list_queue(connection, incoming)
        )

    fake.script = script
    async with aio.connect(fake.url, keep_alive_s=0.05, retry_first_s=0.001) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.push, "q", b"x")
            await arrived(fake, api.Ping)
            silent = False
            with anyio.fail_after(10):
                while not fake.messages:
                    await anyio.to_thread.run_sync(fake.wait_for, api.Push, 2)

    assert 2 <= len(fake.hellos)


async def test_consume_yields_what_comes_and_releases_the_rest(fake: FakeServer) -> None:
    """A loop that is left gives back what it had leased ahead, at once and free of charge."""
    async with aio.connect(fake.url) as client:
        await client.push_batch("q", [b"1", b"2", b"3"])
        seen = []
        async for message in client.consume("q", wait=0):
            seen.append(message.payload)
            await client.ack(message)
            if len(seen) == 2:
                break
        del message
        await client.ping()

    assert [b"1", b"2"] == seen
    kinds = [settled.kind for settled in fake.settled]
    assert [api.SettleKind.ACK, api.SettleKind.ACK, api.SettleKind.RELEASE] == kinds


async def test_consume_outlives_a_restart(fake: FakeServer) -> None:
    """A worker that is alive but gets nothing any more is the worst kind of dead."""
    async with aio.connect(fake.url, retry_first_s=0.001) as client:
        consumer = client.consume("q", wait=0)
        await client.push("q", b"before")
        assert b"before" == (await anext(consumer)).payload
        for connection in list(fake.connections):
            connection.cut()
        await client.push("q", b"after")
        assert b"after" == (await anext(consumer)).payload


async def test_touch_moves_the_deadline(fake: FakeServer) -> None:
    """The client's own idea of the lease follows the server's."""
    async with aio.connect(fake.url) as client:
        await client.push("q", b"x")
        (message,) = await client.poll("q", 5)
        assert message.remaining <= 5
        await client.touch(message, 60)

    assert 55 < message.remaining <= 60


async def test_a_lease_counts_from_the_sending_plus_the_parked_time(fake: FakeServer) -> None:
    """Counted so, the client's deadline is never later than the server's."""
    fake.script = scripted(fake, api.Poll, api.Polled(4_000, 30_000, (delivered("q", 1, (b"x",)),)))  # type: ignore[assignment]
    async with aio.connect(fake.url) as client:
        before = time.monotonic()
        (message,) = await client.poll("q", wait=10)

    assert before + 34 <= message.deadline <= time.monotonic() + 34


async def test_an_error_in_the_block_leaves_as_it_came(fake: FakeServer) -> None:
    """The client's nursery is its own business: no exception group around the user's error."""
    with pytest.raises(ZeroDivisionError):
        async with aio.connect(fake.url):
            raise ZeroDivisionError


async def test_cancelling_around_the_client_ends_it_at_once(fake: FakeServer) -> None:
    """The goodbye is bounded, and cancellation passes through."""
    fake.script = hold_polls(fake)
    with anyio.CancelScope() as scope:
        async with aio.connect(fake.url) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.poll, "q")
            await arrived(fake, api.Poll)
            scope.cancel()

    assert scope.cancelled_caught
    await arrived(fake, api.CloseSession)


async def test_nobody_there_is_one_helpful_sentence(anyio_backend: str) -> None:
    """The first mistake everybody makes."""
    with running() as server:
        address = server.url
    with pytest.raises(walrq.ServerUnreachable, match="walrq serve") as caught:
        async with aio.connect(address):
            raise AssertionError("entered without a server")

    assert caught.value.definite


async def test_another_server_on_the_port_is_named_as_such(anyio_backend: str) -> None:
    """The second mistake: the port of something else."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)

    async def http(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, http)
        with pytest.raises(RemoteProtocolError, match="HTTP"):
            async with aio.connect(f"walrq://127.0.0.1:{port}"):
                raise AssertionError("entered a web server")
        tasks.cancel_scope.cancel()


async def test_the_second_address_is_tried_when_the_first_is_dead(fake: FakeServer) -> None:
    """A list of nodes is there to be used."""
    with running() as gone:
        dead = gone.port
    async with aio.connect(f"walrq://127.0.0.1:{dead},127.0.0.1:{fake.port}") as client:
        await client.push("q", b"x")

    assert 1 == len(fake.messages)


async def test_a_closed_client_says_so(fake: FakeServer) -> None:
    """Not a hang, not a strange error from below."""
    client = aio.connect(fake.url)
    with pytest.raises(LocalProtocolError, match="async with"):
        await client.push("q", b"x")
    async with client:
        pass
    with pytest.raises(LocalProtocolError, match="closed"):
        await client.push("q", b"x")


async def test_mistakes_in_arguments_never_reach_the_wire(fake: FakeServer) -> None:
    """NaN, negative times and the wrong types are refused where they were written."""
    async with aio.connect(fake.url) as client:
        for delay in (float("nan"), float("inf"), -1, True):
            with pytest.raises(InvalidArgument):
                await client.push("q", b"x", delay)
        with pytest.raises(InvalidArgument, match="not both"):
            await client.push("q", b"x", json=1)
        with pytest.raises(InvalidArgument, match="a payload is bytes"):
            await client.push("q", 5)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="list"):
            await client.push_batch("q", b"bytes")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="mode"):
            await client.nack("q", "later", message_id="x", receipt_handle="y")  # type: ignore[arg-type]

    assert [] == fake.kinds()


async def test_an_unknown_option_names_the_nearest(anyio_backend: str) -> None:
    """A typo in a setting is found before anything is connected."""
    with pytest.raises(ConfigError, match="did you mean timeout_s"):
        aio.connect(timeout=5)


async def test_a_request_larger_than_the_sockets_buffer_arrives_whole(fake: FakeServer) -> None:
    """A lonely caller's bytes go straight to the socket; what does not fit follows in order."""
    big = bytes(range(256)) * 30_000
    async with aio.connect(fake.url) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(client.push, "q", big)
        tasks.start_soon(client.push, "q", b"small")
        with anyio.fail_after(20):
            await arrived(fake, api.Push, 2)

    assert sorted([big, b"small"]) == sorted(payload for _, _, payload in fake.messages)


async def test_a_pool_keeps_small_calls_clear_of_a_slow_one(fake: FakeServer) -> None:
    """The least busy connection is taken; each has a session, and all are closed."""
    answer, asked_on = fake.script, {}

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        if type(incoming.request) is not api.Push:
            return answer(connection, incoming)
        asked_on[incoming.request.queue] = connection
        return None if incoming.request.queue == "stuck" else api.Pushed(2, 1)

    fake.script = script
    async with aio.connect(fake.url, pool=3) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(client.push, "stuck", b"x")
        stuck = await arrived(fake, api.Push)
        await client.push("q", b"y")

        assert asked_on["q"] is not asked_on["stuck"]
        asked_on["stuck"].reply(stuck, api.Pushed(1, 1))
    await arrived(fake, api.CloseSession, 3)

    assert 3 == len(fake.hellos)


@pytest.mark.anyio
async def test_a_server_that_is_not_there_is_named_once() -> None:
    """In the system's words, under trio and asyncio alike."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    with pytest.raises(ServerUnreachable) as raised:
        async with aio.connect(f"walrq://127.0.0.1:{port}", connect_wait_s=0):
            pass

    assert raised.value.text.startswith(f"no walrq server at 127.0.0.1:{port}: Connection refused. Start one with")


@pytest.mark.anyio
async def test_a_client_that_is_entered_the_wrong_way_says_how() -> None:
    """`with` and `await` are the slips of those who come from the blocking client, or from asyncpg."""
    client: Any = aio.connect()

    with pytest.raises(TypeError, match="needs `async with`"):
        with client:
            pass
    with pytest.raises(TypeError, match="is not awaited"):
        await client
