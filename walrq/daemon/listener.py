"""Accepting: listening sockets, the cap on connections, and what to do when descriptors run out.

A connection beyond the cap is told so (an error frame, `TOO_MANY_CONNECTIONS`) and closed. When the process
has no descriptor left (EMFILE, ENFILE), the reserve descriptor is given up for a moment so that one waiting
client can be told the same instead of hanging in the backlog; then the loop backs off. It never spins and
never ends by itself. The last few descriptors are not given to clients at all: the log needs them.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
from collections.abc import Callable
from typing import Final

import trio

from walrq import api
from walrq.errors import AddressInUse, Code, ConfigError
from walrq.limits import DESCRIPTORS_KEPT, READ_HANDLES_MAX
from walrq.protocol.server import ServerConnection

log = logging.getLogger("walrq.listener")

# A burst of connections between two turns; more is a flood that the cap answers anyway. The kernel caps it
# too.
_BACKLOG: Final = 1024
_ACCEPTS_PER_TURN_MAX: Final = 64
_BACK_OFF_S: Final = 0.1
_OUT_OF_DESCRIPTORS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
# The client went away between its SYN and our accept, or the network misbehaved: nothing to do with the
# listener.
_THEIR_TROUBLE: Final = frozenset(
    (errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EPERM)
)


def raise_descriptor_limit() -> int:
    """Allow this process as many descriptors as it may have; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:
            # Some systems name a limit that they do not allow.
            log.info("descriptor_limit stays at %d: %s", soft, error)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft


def read_handles_for(descriptors: int) -> int:
    """How many segments may be open for reading, of so many descriptors in all."""
    return max(1, min(READ_HANDLES_MAX, descriptors // 8))


def bind(host: str, port: int, *, flag: str = "--listen") -> socket.socket:
    """A TCP socket that has its address and does not listen yet; port 0 picks a free one. `flag` names it in errors.

    Raises:
        AddressInUse: the address is taken, or not ours.
        ConfigError: the host is not known.
    """
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except socket.gaierror as error:
        raise ConfigError(f"the host in {flag}, {host!r}, is not known: {error.strerror}") from None
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise _in_use(_join(host, port), error, flag) from None
    return sock


def listen(sock: socket.socket) -> None:
    """Let connections come.

    Raises:
        AddressInUse: somebody else who had bound the address too was faster.
    """
    try:
        sock.listen(_BACKLOG)
    except OSError as error:
        raise _in_use(address_of(sock), error) from None


def _in_use(address: str, error: OSError, flag: str = "--listen") -> AddressInUse:
    return AddressInUse(f"cannot listen on {address}: {error.strerror}; {flag} HOST:PORT names another address")


def address_of(sock: socket.socket) -> str:
    """The socket's own address as "host:port"."""
    host, port = sock.getsockname()[:2]
    return _join(host, port)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Listener:
    """Accepts on one socket and hands connections to a front."""

    def __init__(
        self,
        sock: socket.socket,
        hand_over: Callable[[socket.socket, str], None],
        count: Callable[[], int],
        *,
        connections_max: int | Callable[[], int],
        refusal: Callable[[str], bytes] | None = None,
    ) -> None:
        """
        Args:
            hand_over: (socket, peer) serves a connection.
            count: how many there are.
            connections_max: may be changed while it runs, or is asked each time; connections that are there stay.
            refusal: (why) is what one connection too many is told, in the words of the door's protocol; None = the
                native one.
        """
        self._sock = sock
        self._hand_over = hand_over
        self._count = count
        self.connections_max = connections_max
        self._refusal = refusal or _native_refusal
        self._reserve: int | None = None
        self._refused = 0

    async def run(self) -> None:
        """Accept until cancelled; then close the listening socket."""
        self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while True:
                await trio.lowlevel.wait_readable(self._sock)
                if not self._accept_ready():
                    await trio.sleep(_BACK_OFF_S)
        finally:
            self._sock.close()
            if self._reserve is not None:
                os.close(self._reserve)
                self._reserve = None

    def _accept_ready(self) -> bool:
        """Accept what waits; False when descriptors ran out."""
        for _ in range(_ACCEPTS_PER_TURN_MAX):
            try:
                sock, address = self._sock.accept()
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    self._refuse_with_reserve(error)
                    return False
                if error.errno in _THEIR_TROUBLE:
                    continue
                raise
            if sock.fileno() >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - DESCRIPTORS_KEPT:
                # The lowest free number is given out first: all below are taken.
                self._refuse(sock, "this node has no descriptors left for connections (ulimit -n)")
                continue
            most = self.connections_max() if callable(self.connections_max) else self.connections_max
            if self._count() >= most:
                self._refuse(sock, f"this node serves {most} connections already (max_connections)")
                continue
            try:
                tune(sock)
                self._hand_over(sock, _join(*address[:2]))
            except OSError as error:
                # The peer reset it already, or the epoll cannot take another descriptor.
                log.warning("connection_not_taken peer=%s: %s", address, error)
                sock.close()
        return True

    def _refuse_with_reserve(self, error: OSError) -> None:
        log.warning("accept_backs_off %s: connections=%d", error.strerror, self._count())
        if self._reserve is None:
            self._restore_reserve()
            return
        os.close(self._reserve)
        self._reserve = None
        try:
            sock, _ = self._sock.accept()
        except OSError as still:
            log.debug("accept_failed %s", still)
        else:
            self._refuse(sock, "this node has no file descriptor left for another connection")
        self._restore_reserve()

    def _restore_reserve(self) -> None:
        try:
            self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            log.debug("reserve_descriptor_taken %s", error)

    def _refuse(self, sock: socket.socket, text: str) -> None:
        """Say why, without waiting, and close."""
        self._refused += 1
        try:
            sock.setblocking(False)
            sock.send(self._refusal(text))
            # What the client sent already would turn our close into a reset, and it would never read the
            # reason.
            sock.shutdown(socket.SHUT_WR)
            sock.recv(65_536)
        except OSError as error:
            log.debug("refusal_not_delivered %s", error)
        finally:
            sock.close()
        if self._refused & (self._refused - 1) == 0:
            log.warning("connection_refused count=%d: %s", self._refused, text)


def _native_refusal(text: str) -> bytes:
    protocol = ServerConnection(welcome=_nobody)
    protocol.send_goaway(Code.TOO_MANY_CONNECTIONS, text)
    return protocol.take_output()


def _nobody(hello: object) -> api.Failed:
    return api.Failed(int(Code.TOO_MANY_CONNECTIONS), "refused")


def tune(sock: socket.socket) -> None:
    """Set what every accepted connection has: no blocking, no delay, and a probe when it is silent."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Half-open connections (a client that vanished without a word) are found within about two minutes.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, seconds)
