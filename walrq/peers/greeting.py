"""From an address or an accepted socket to a connection whose other end has proved who it is."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Final

import attrs
import trio

from walrq.errors import NotReady, WalrqError
from walrq.limits import PEER_CONNECT_S, PEER_HANDSHAKE_S, PEER_SILENCE_S
from walrq.peers.reports import cause
from walrq.peers.tls import PeerTls
from walrq.peers.wire import READ_BYTES, Wire, connect, open_wire, tune
from walrq.protocol.framing import FrameBuffer
from walrq.protocol.peer import NONCE_BYTES, AcceptorHandshake, DialerHandshake, Judge, PeerHello

# Time to send a refusal, and for the other end to read it.
_LAST_WORD_S: Final = 1.0


@attrs.frozen(eq=False)
class Connection:
    """Two nodes that know each other.

    Attributes:
        wire: what they talk over.
        peer: who is at the other end.
        frames: what came of a frame that is not complete.
        extra: frames that came behind the handshake.
    """

    wire: Wire
    peer: PeerHello
    frames: FrameBuffer
    extra: list[bytes]


@attrs.frozen
class Credentials:
    """What a node proves itself with.

    Attributes:
        secret: the cluster's.
        tls: certificates, or None for plain TCP.
    """

    secret: bytes = attrs.field(repr=False)
    tls: PeerTls | None = None


async def dial(
    address: str,
    hello: PeerHello,
    credentials: Credentials,
    judge: Judge,
    *,
    silence_s: float = PEER_SILENCE_S,
) -> Connection:
    """Connect and shake hands, within PEER_CONNECT_S and PEER_HANDSHAKE_S.

    Args:
        judge: raises a WalrqError for a node that is not the right one.
        silence_s: unacknowledged data for so long ends the connection.

    Raises:
        NotReady: nobody there, or no answer in time.
        WalrqError: somebody is there, and one of the two refused.
        ConfigError: not an address.
    """
    try:
        with trio.fail_after(PEER_CONNECT_S):
            sock = await connect(address, silence_s)
    except OSError as error:
        raise NotReady(f"{address} cannot be reached: {cause(error)}", address=address) from None
    except trio.TooSlowError:
        raise NotReady(f"{address} did not answer within {PEER_CONNECT_S:g} s", address=address) from None
    try:
        with trio.fail_after(PEER_HANDSHAKE_S):
            return await _greet(
                sock,
                credentials.tls,
                lambda binding: DialerHandshake(
                    secret=credentials.secret,
                    hello=hello,
                    nonce=os.urandom(NONCE_BYTES),
                    judge=judge,
                    binding=binding,
                ),
                dialed=True,
            )
    except trio.BrokenResourceError as error:
        raise NotReady(f"{address} broke off: {cause(error)}", address=address) from None
    except trio.TooSlowError:
        raise NotReady(
            f"{address} did not finish the handshake within {PEER_HANDSHAKE_S:g} s", address=address
        ) from None


async def accept(sock: socket.socket, hello: PeerHello, credentials: Credentials, judge: Judge) -> Connection:
    """Shake hands with whoever connected; the caller bounds the time.

    Raises:
        WalrqError: one of the two refused.
        trio.BrokenResourceError: the connection broke.
    """
    try:
        tune(sock, PEER_SILENCE_S)
    except OSError as error:
        sock.close()
        raise trio.BrokenResourceError(cause(error)) from error
    return await _greet(
        sock,
        credentials.tls,
        lambda binding: AcceptorHandshake(
            secret=credentials.secret,
            hello=hello,
            nonce=os.urandom(NONCE_BYTES),
            judge=judge,
            binding=binding,
        ),
        dialed=False,
    )


async def _greet(
    sock: socket.socket,
    tls: PeerTls | None,
    make: Callable[[bytes], DialerHandshake | AcceptorHandshake],
    *,
    dialed: bool,
) -> Connection:
    wire = await open_wire(sock, tls, dialed=dialed)
    try:
        handshake = make(wire.binding)
        return await shake(wire, handshake)
    except BaseException:
        wire.close()
        raise


async def shake(wire: Wire, handshake: DialerHandshake | AcceptorHandshake) -> Connection:
    """Carry a handshake through; the caller bounds the time and closes the wire when it fails.

    Raises:
        WalrqError: it failed; the other end was told why if it can be told.
        trio.BrokenResourceError: the connection broke.
    """
    extra: list[bytes] = []
    try:
        while True:
            output = handshake.take_output()
            if output:
                await wire.send_all([output])
            if handshake.peer is not None:
                return Connection(wire, handshake.peer, handshake.frames, extra)
            data = await wire.receive_some(READ_BYTES)
            if data:
                extra = handshake.receive(data)
            else:
                handshake.receive_eof()
    except WalrqError as error:
        await last_word(wire, handshake.take_output())
        if handshake.told:
            raise type(error)(f"the other end refused: {error.text}", **error.details) from None
        raise


async def last_word(wire: Wire, data: bytes) -> None:
    """Try for a moment to say why this end leaves; whether that arrives does not matter.

    What the other end sent already would turn a close into a reset, and it would never read the reason; so its input
    is thrown away meanwhile.
    """
    if not data:
        return
    with trio.move_on_after(_LAST_WORD_S):
        try:
            await wire.send_all([data])
            wire.send_eof()
            while await wire.receive_some(READ_BYTES):
                pass
        except trio.BrokenResourceError:
            return
