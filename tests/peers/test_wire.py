"""Sockets and streams as the links see them."""

from __future__ import annotations

import errno
import socket

import pytest
import trio
import trio.testing

from tests.peers.harness import SECRET, append, beat, bound, dial, dialer, group, hello, shake, start_all, until
from walrq.errors import ConfigError, NotReady
from walrq.peers.greeting import Credentials
from walrq.peers.greeting import dial as dial_and_greet
from walrq.peers.greeting import shake as shake_wire
from walrq.peers.wire import PlainWire, StreamWire, connect, parse_address
from walrq.protocol.peer import NONCE_BYTES, AcceptorHandshake, DialerHandshake, Purpose, encode_raft
from walrq.raft.messages import Message


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("127.0.0.1:7000", ("127.0.0.1", 7000)),
        ("node-1.example:1", ("node-1.example", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_addresses_are_host_and_port(address: str, found: tuple[str, int]) -> None:
    """As they are written on the command line."""
    assert found == parse_address(address)


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":7000", "host:0", "host:65536", "host:-1", "host:x", "::1:7000", "host:7²"]
)
def test_what_is_no_address_is_refused_with_its_field(address: str) -> None:
    """One line that names the setting and shows the value."""
    with pytest.raises(ConfigError, match=r"advertise is .* not HOST:PORT"):
        parse_address(address, "advertise")


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets with little room between them."""
    one, other = socket.socketpair()
    for sock in (one, other):
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return one, other


@pytest.mark.trio
async def test_pieces_arrive_as_one_stream_whatever_the_socket_takes_at_a_time() -> None:
    """A gathered send may end inside any piece."""
    one, other = pair()
    wire, reader = PlainWire(one), PlainWire(other)
    pieces = [bytes([number % 251]) * (number * 37 % 3000) for number in range(1, 1500)]
    expected = b"".join(pieces)
    received = bytearray()

    async def send() -> None:
        await wire.send_all(wire.send_nowait(pieces))
        wire.send_eof()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        while data := await reader.receive_some(1000):
            received += data
    wire.close()
    reader.close()

    assert expected == bytes(received)


@pytest.mark.trio
async def test_a_closed_wire_is_broken_for_everybody() -> None:
    """Whoever waits on it is woken; closing twice is harmless."""
    one, other = pair()
    wire = PlainWire(one)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def wait() -> None:
            with pytest.raises(trio.BrokenResourceError):
                await wire.receive_some(10)

        await trio.testing.wait_all_tasks_blocked()
        wire.close()
        wire.close()
    other.close()
    with pytest.raises(trio.BrokenResourceError):
        wire.send_nowait([b"x"])
    with pytest.raises(trio.BrokenResourceError):
        wire.send_eof()


@pytest.mark.trio
async def test_a_reset_is_one_kind_of_error() -> None:
    """Links do not tell errno from errno."""
    one, other = pair()
    other.close()
    wire = PlainWire(one)
    with pytest.raises(trio.BrokenResourceError, match="Broken pipe"):
        await wire.send_all([b"x"])
    wire.close()


@pytest.mark.trio
async def test_a_handshake_goes_over_any_stream() -> None:
    """A pair in memory that hands over a few bytes at a time, as the evil network does."""
    one, other = trio.testing.lockstep_stream_pair()
    found = []

    async def carry(stream: trio.abc.Stream, handshake: DialerHandshake | AcceptorHandshake) -> None:
        found.append((await shake_wire(StreamWire(stream), handshake)).peer.node)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(carry, one, DialerHandshake(secret=SECRET, hello=hello("anna"), nonce=b"d" * NONCE_BYTES))
        own = hello("bert", purpose=Purpose.ANSWER)
        nursery.start_soon(carry, other, AcceptorHandshake(secret=SECRET, hello=own, nonce=b"a" * NONCE_BYTES))

    assert ["anna", "bert"] == sorted(found)


@pytest.mark.trio
async def test_a_name_that_nobody_knows_is_not_ready() -> None:
    """It may be known in a minute."""

    class NoNames(trio.abc.HostnameResolver):
        async def getaddrinfo(self, *args: object, **kwargs: object):  # type: ignore[no-untyped-def]
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        async def getnameinfo(self, *args: object):  # type: ignore[no-untyped-def]
            raise AssertionError

    trio.socket.set_custom_hostname_resolver(NoNames())
    with pytest.raises(NotReady, match=r"nowhere\.example:7000 cannot be reached: Name or service not known"):
        await dial_and_greet("nowhere.example:7000", hello("anna"), Credentials(SECRET), lambda peer: None)


@pytest.mark.trio
async def test_who_accepts_and_says_nothing_is_not_waited_for(mock_clock: trio.testing.MockClock) -> None:
    """A listening socket of a process that hangs."""
    errors: list[str] = []

    async def attempt(address: str) -> None:
        with pytest.raises(NotReady) as caught:
            await dial_and_greet(address, hello("anna"), Credentials(SECRET), lambda peer: None)
        errors.append(str(caught.value))

    with bound() as sock:
        sock.listen()
        host, port = sock.getsockname()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(attempt, f"{host}:{port}")
            await trio.testing.wait_all_tasks_blocked(0.02)
            mock_clock.jump(6)

    assert ["did not finish the handshake within 5 s" in error for error in errors] == [True]


@pytest.mark.trio
async def test_a_connection_is_tried_at_every_address_behind_a_name() -> None:
    """`localhost` is two of them, and a node may listen at one."""

    class Two(trio.abc.HostnameResolver):
        async def getaddrinfo(self, host, port, *args: object):  # type: ignore[no-untyped-def]
            kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
            return [(*kind, ("127.0.0.1", 1)), (*kind, ("127.0.0.1", port))]

        async def getnameinfo(self, *args: object):  # type: ignore[no-untyped-def]
            raise AssertionError

    trio.socket.set_custom_hostname_resolver(Two())
    with bound() as sock:
        sock.listen()
        connected = await connect(f"somewhere.example:{sock.getsockname()[1]}", 3)
        assert sock.getsockname() == connected.getpeername()
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert 3000 == connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        connected.close()


@pytest.mark.trio
async def test_a_loop_of_its_own_may_read_the_links() -> None:
    """The daemon's reactor waits for one descriptor and takes what has come, without a task switch."""
    async with group() as nodes:
        anna, bert = await start_all(nodes, "anna", "bert")
        descriptor = bert.mesh.listen()
        assert descriptor is not None
        await trio.testing.wait_all_tasks_blocked()
        got = len(bert.got)
        anna.mesh.send([beat("anna", "bert", 1), append("anna", "bert", 0)])
        await trio.lowlevel.wait_readable(descriptor)
        await trio.testing.wait_all_tasks_blocked(0.005)
        assert got == len(bert.got)

        def both() -> bool:
            bert.mesh.receive_ready()
            return len(bert.got) == 2

        await until(both)
        bert.mesh.stop_listening()
        anna.mesh.send([beat("anna", "bert", 2)])
        await bert.wait_got(3)


@pytest.mark.trio
async def test_the_end_of_a_link_is_seen_by_whoever_listens() -> None:
    """And the connection is closed by its own task, as ever."""
    got: list[Message] = []
    async with group() as nodes:
        bert = await nodes.start("bert", deliver=got.append)
        descriptor = bert.mesh.listen()
        assert descriptor is not None
        stream = await dial(bert.address)
        await shake(stream, dialer(hello("anna")))
        await until(lambda: bert.mesh._incoming.count("anna"))
        await stream.send_all(b"".join(encode_raft([beat("anna", "bert", 1)])))
        await stream.aclose()

        def gone() -> bool:
            bert.mesh.receive_ready()
            return not bert.mesh._incoming.count("anna")

        await until(gone)
        assert [beat("anna", "bert", 1)] == got
        bert.mesh.stop_listening()


@pytest.mark.trio
async def test_no_descriptors_left_is_waited_out(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """EMFILE ends neither the mesh nor the processor's rest: it backs off and accepts again."""
    refusals = 3

    class Listener:
        """A listening socket in a process that is out of descriptors for a while."""

        def __init__(self, sock: socket.socket) -> None:
            self._sock = sock

        def __getattr__(self, name: str) -> object:
            return getattr(self._sock, name)

        def accept(self) -> tuple[socket.socket, tuple[str, int]]:
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return self._sock.accept()

    async with group() as nodes:
        sock = bound()
        bert = await nodes.start("bert", sock=Listener(sock))  # type: ignore[arg-type]
        anna = await nodes.start("anna", {"bert": bert.address})
        await trio.testing.wait_all_tasks_blocked(0.01)
        for _ in range(5):
            mock_clock.jump(0.1)
            await trio.testing.wait_all_tasks_blocked(0.01)
        await anna.wait_up_without_time("bert")

        assert 0 == refusals
        assert "Too many open files" in caplog.text
