"""How to tune a connection's socket, and how to say that nobody is there. Where to go next is `routing`'s."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING

from walrq.client.config import URL_VARIABLE, Endpoint
from walrq.client.failures import ServerUnreachable
from walrq.errors import ConnectionLost, NotLeader, RemoteProtocolError, WalrqError

if TYPE_CHECKING:
    # At run time only where TLS is used, as in `config`.
    import ssl

# Probes of a silent peer before the kernel gives the connection up.
KEEP_ALIVE_PROBES = 3


def tune(raw: socket.socket, keep_alive_s: float) -> None:
    """No waiting to fill packets, and a dead peer is noticed. Options a system lacks are left alone."""
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = max(1, round(keep_alive_s))
    for name, number in (
        ("TCP_KEEPIDLE", seconds),
        ("TCP_KEEPINTVL", seconds),
        ("TCP_KEEPCNT", KEEP_ALIVE_PROBES),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            raw.setsockopt(socket.IPPROTO_TCP, option, number)


def not_now(*, is_tls: bool) -> tuple[type[OSError], ...]:
    """What a socket without waiting says when it would have to wait."""
    if not is_tls:
        return BlockingIOError, InterruptedError
    import ssl

    return BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError


def shake(sock: socket.socket, context: ssl.SSLContext, host: str) -> ssl.SSLSocket:
    """The socket once both ends have shaken hands, within its time-out; it is closed when that fails."""
    try:
        return context.wrap_socket(sock, server_hostname=host)
    except OSError:
        sock.close()
        raise


def left_in(sock: socket.socket) -> bytes:
    """What TLS has decrypted already: no selector tells of it."""
    import ssl

    found = b""
    assert isinstance(sock, ssl.SSLSocket)
    while sock.pending():
        found += sock.recv(sock.pending())
    return found


def explain(endpoint: Endpoint, cause: BaseException | None, refused: WalrqError | None) -> WalrqError:
    """Why no usable connection to `endpoint` came about, in one sentence that says what to do.

    Args:
        cause: what the socket said.
        refused: what the server, or what sits in its place, said during the handshake.
    """
    if isinstance(refused, ConnectionLost):
        refused = None
    if isinstance(refused, RemoteProtocolError):
        return RemoteProtocolError(
            f"what answers at {endpoint} does not speak walrq's native protocol ({refused.text}); is the port right?"
        )
    if isinstance(refused, NotLeader):
        return NotLeader(f"no leader found at {endpoint}: {refused.text}", **refused.details)
    if refused is not None:
        return refused
    # Only a certificate's error has this; told by it, so that a failure in the clear need not import `ssl` either.
    unproved = getattr(cause, "verify_message", None)
    if unproved is not None:
        return ServerUnreachable(
            f"the server at {endpoint} cannot prove who it is: {unproved}; tls_ca (WALRQ_TLS_CA) names the"
            " authority that signed its certificate"
        )
    if isinstance(cause, TimeoutError):
        reason = "no answer in time; is the port right?"
    elif isinstance(cause, OSError) and (cause.strerror or cause.args):
        reason = _innermost(cause)
    else:
        reason = "the connection was closed during the handshake; is the port right?"
    return ServerUnreachable(
        f"no walrq server at {endpoint}: {reason.removesuffix('?')}. Start one with `walrq serve`, or name another"
        f" with its URL or {URL_VARIABLE}"
    )


def _innermost(error: BaseException) -> str:
    """The plainest text in a chain of socket errors: the system's own words, because what the event loops make of
    them names the address once more."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, BaseExceptionGroup):
        return _innermost(error.exceptions[0])
    if not isinstance(error, OSError):
        return str(error) or type(error).__name__
    # The numbers of a name that was not found (`gaierror`) are not the system's.
    number = error.errno
    if number is not None and number in errno.errorcode and not isinstance(error, socket.gaierror):
        return os.strerror(number)
    return error.strerror or str(error) or type(error).__name__
