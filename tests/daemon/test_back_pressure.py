"""Bounds and time-outs of a connection, over both fronts: memory stays flat and nobody holds a place for
ever.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.daemon.harness import FRONTS, HeldDisk, columns, payloads, running
from walrq import api
from walrq.daemon import broker as broker_module
from walrq.daemon import connection, pollers, reactor, stream_front
from walrq.errors import Code
from walrq.protocol.framing import LENGTH

pytestmark = [pytest.mark.trio, pytest.mark.parametrize("front", FRONTS)]


async def test_a_connection_is_not_read_beyond_its_requests_in_flight(
    front: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that floods is slowed down by TCP, not refused, and all it sent is answered in the end."""
    monkeypatch.setattr(connection, "IN_FLIGHT_PER_CONNECTION_MAX", 8)
    monkeypatch.setattr(reactor, "_READ_BYTES", 256)
    monkeypatch.setattr(stream_front, "_READ_BYTES", 256)
    async with running(front) as world, trio.open_nursery() as nursery:
        client = await world.connect()
        with HeldDisk(world):
            numbers = [client.protocol.request(api.Push("jobs", columns(b"x" * 20))) for _ in range(500)]
            nursery.start_soon(client.flush)
            await trio.testing.wait_all_tasks_blocked()
            held = world.node.broker.in_flight
        for number in numbers:
            assert 1 == (await client.answer(number)).count

        # The bound, and what one read beyond it may bring.
        assert 8 <= held <= 8 + 256 // 20


async def test_parked_polls_do_not_count_as_in_flight(front: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection full of waiting polls can still push."""
    monkeypatch.setattr(connection, "IN_FLIGHT_PER_CONNECTION_MAX", 4)
    async with running(front) as world:
        client = await world.connect()
        polls = [await client.send(api.Poll(("jobs",), 1, wait_ms=60_000)) for _ in range(12)]
        await client.ask(api.Ping())
        await client.ask(api.Push("jobs", columns(*[b"m"] * 12)))

        assert [[b"m"]] * 12 == [payloads(await client.answer(poll)) for poll in polls]


async def test_too_many_parked_polls_are_refused(front: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters are bounded per connection and in all; the refusal names the limit and can be retried."""
    monkeypatch.setattr(pollers, "IN_FLIGHT_PER_CONNECTION_MAX", 2)
    monkeypatch.setattr(pollers, "PARKED_POLLS_MAX", 3)
    async with running(front) as world:
        first, second = await world.connect(), await world.connect()
        wait = api.Poll(("jobs",), 1, wait_ms=60_000)
        for _ in range(2):
            await first.send(wait)
        own = await first.ask(wait)
        await second.send(wait)
        total = await second.ask(wait)

        assert (Code.OVERLOADED, "IN_FLIGHT_PER_CONNECTION_MAX") == (own.code, own.details["limit"])
        assert (Code.OVERLOADED, "PARKED_POLLS_MAX") == (total.code, total.details["limit"])


async def test_all_connections_wait_while_too_much_is_in_flight_in_all(
    front: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum over connections is bounded too; it falls and everybody is served."""
    monkeypatch.setattr(broker_module, "IN_FLIGHT_BYTES_MAX", 20_000)
    async with running(front) as world:
        clients = [await world.connect() for _ in range(10)]
        with HeldDisk(world):
            numbers = [await client.send(api.Push("jobs", columns(b"x" * 9_000))) for client in clients]
            await trio.testing.wait_all_tasks_blocked()
            held = world.node.broker.bytes_in_flight
        for client, number in zip(clients, numbers, strict=True):
            assert 1 == (await client.answer(number)).count

        # One turn of the reactor may read all that is ready; a stream's reader looks before each read.
        assert 20_000 <= held <= 10 * 9_200
        assert 0 == world.node.broker.bytes_in_flight


async def test_a_client_that_reads_no_replies_is_not_read_either(
    front: str, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    """Unsent replies are bounded; a reader that never comes back is closed, and its leases are given back."""
    monkeypatch.setattr(connection, "SEND_BUFFER_BYTES_MAX", 900_000)
    async with running(front) as world:
        producer, stalled = await world.connect(), await world.connect(unbuffered=True)
        for _ in range(6):
            await producer.ask(api.Push("jobs", columns(b"x" * 500_000)))
        for _ in range(20):
            stalled.protocol.request(api.Poll(("jobs",), 1))
        await stalled.flush()
        await trio.testing.wait_all_tasks_blocked()
        unsent = max(port.unsent for port in world.node.broker.ports)
        leased = (await world.info("jobs")).leased
        mock_clock.jump(connection.SEND_STALL_S_MAX + 1)
        for _ in range(3):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(2)
        await trio.testing.wait_all_tasks_blocked()

        # Our bound, and the reply that crossed it; the kernel may have taken some of it.
        assert 0 < unsent < 900_000 + 501_000
        assert 2 == leased
        # Only the producer is left; what the stalled one never took whole can be leased again.
        assert 1 == len(world.front)
        assert 0 == (await world.info("jobs")).leased


async def test_replies_behind_one_that_is_not_taken_count_too(front: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that asks on and reads nothing is not read: what it is owed is bounded wherever it waits."""
    monkeypatch.setattr(connection, "SEND_BUFFER_BYTES_MAX", 900_000)
    monkeypatch.setattr(reactor, "_READ_BYTES", 256)
    monkeypatch.setattr(stream_front, "_READ_BYTES", 256)
    async with running(front) as world, trio.open_nursery() as nursery:
        client = await world.connect(unbuffered=True)
        await client.ask(api.Push("jobs", columns(b"x" * 300_000)))
        for _ in range(100):
            client.protocol.request(api.Peek("jobs"))
        nursery.start_soon(client.flush)
        await trio.testing.wait_all_tasks_blocked()
        [port] = world.node.broker.ports
        owed = port.unsent + port._protocol.output_bytes
        nursery.cancel_scope.cancel()

        # The bound, what crossed it, and what the requests of one more read bring.
        assert 900_000 < owed < 900_000 + 300_100 * (1 + 256 // 20)


async def test_a_connection_without_hello_is_closed_in_time(front: str, mock_clock: trio.testing.MockClock) -> None:
    """Half-open connections do not hold a place for ever; the reason is said."""
    async with running(front) as world:
        silent = await world.connect(hello=False)
        assert 1 == len(world.front)
        mock_clock.jump(connection.HANDSHAKE_TIMEOUT_S + 2)
        closed = await silent.wait_closed()
        await trio.testing.wait_all_tasks_blocked()

        assert closed.error is not None
        assert "no Hello" in closed.error.text
        assert 0 == len(world.front)


async def test_a_frame_that_never_ends_closes_its_connection(front: str, mock_clock: trio.testing.MockClock) -> None:
    """Slow loris: a byte now and then does not buy more time."""
    async with running(front) as world:
        client = await world.connect()
        await client.stream.send_all(LENGTH.pack(1_000))
        for _ in range(int(connection.FRAME_STALL_S_MAX)):
            await client.stream.send_all(b"\x80")
            mock_clock.jump(1)
            await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(2)
        await client.wait_closed()
        await trio.testing.wait_all_tasks_blocked()

        assert 0 == len(world.front)


async def test_a_quiet_connection_is_left_alone(front: str, mock_clock: trio.testing.MockClock) -> None:
    """No time-out applies to a client that has nothing to say."""
    async with running(front) as world:
        client = await world.connect()
        for _ in range(10):
            mock_clock.jump(300)
            await trio.testing.wait_all_tasks_blocked()

        assert api.Pong() == await client.ask(api.Ping())


async def test_unfinished_frames_are_bounded_in_all(front: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many clients that each begin a large frame cannot fill the memory: the one too many is sent away."""
    monkeypatch.setattr(reactor, "IN_FLIGHT_BYTES_MAX", 500_000)
    monkeypatch.setattr(stream_front, "IN_FLIGHT_BYTES_MAX", 500_000)
    async with running(front) as world:
        clients = [await world.connect() for _ in range(4)]
        for client in clients:
            await client.stream.send_all(LENGTH.pack(1_000_000) + bytes(140_000))
            await trio.testing.wait_all_tasks_blocked()
        last = clients[-1]
        await last.wait_closed()
        await last.aclose()
        await trio.testing.wait_all_tasks_blocked()

        assert last.went_away is not None
        assert Code.OVERLOADED == last.went_away.code
        assert 3 == len(world.front)
        assert all(client.closed is None for client in clients[:3])
