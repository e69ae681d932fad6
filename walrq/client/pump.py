"""One connection of the blocking client: drives an `Exchange` over a plain socket, without a thread of its own.

Whichever caller's thread has to wait first moves the bytes for all of them (it *pumps*); when its own answer
came, another waiting thread takes over. So calls of many threads are under way together on one connection,
and a long poll in one does not hold up a push in another.

    lock held     the exchange, the unsent bytes, who pumps
    lock given up only around select(), connect(), writing to the log and, by those who do not pump, waiting for news

After a fork the child starts over with a connection and a session of its own; the parent's stay untouched.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Final, NoReturn, Protocol, TypeVar

from walrq import api
from walrq.client import operations as op
from walrq.client.addresses import explain, left_in, not_now, shake, tune
from walrq.client.config import ClientConfig, Endpoint, context_of, with_surroundings
from walrq.client.exchange import Call, Exchange, Link
from walrq.client.failures import unpicklable
from walrq.client.journal import Journal, reason_of
from walrq.client.merging import AnyShare, Lane, Merger, Share
from walrq.client.operations import Settlement
from walrq.client.routing import Nodes, Route
from walrq.errors import LocalProtocolError, RemoteProtocolError, WalrqError

C = TypeVar("C")
R = TypeVar("R")

RECEIVE_BYTES: Final = 256 * 1024
# A pumping thread looks up at least this often, so that time-outs of calls made meanwhile by others are kept.
LOOK_UP_S: Final = 0.5


class Holder(Protocol):
    """Somebody who may hold leases for later: a consumer with a buffer."""

    def release(self) -> None:
        """Give them back."""

    def forget(self) -> None:
        """Drop them without giving them back: after a fork they are the parent's."""


class Pump:
    """One connection at a time below one exchange; see the module's text."""

    def __init__(self, endpoints: Nodes | Sequence[Endpoint], config: ClientConfig) -> None:
        """Nothing is connected yet: see `open`."""
        self._nodes = endpoints if isinstance(endpoints, Nodes) else Nodes(tuple(endpoints))
        self.config = config = with_surroundings(config)
        self._tls = context_of(config)
        self._not_now = not_now(is_tls=self._tls is not None)
        self._look_up_s = min(LOOK_UP_S, config.node_timeout_s / 2)
        # Called around every wait with the lock held: it may raise, and must not call the client.
        self.on_turn: Callable[[], None] | None = None
        self._closed = False
        self.holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        self._start_over()
        _pumps.add(self)

    def __reduce__(self) -> NoReturn:
        raise unpicklable()

    def _start_over(self) -> None:
        """A fresh exchange without a connection: at the beginning, and in the child after a fork."""
        self._rng = random.Random()
        self._route = Route(self._nodes, self.config, self._rng)
        self._exchange = Exchange(self.config, self._rng, route=self._route)
        self._merger = Merger(self._exchange)
        # Not re-entrant: a consumer that the garbage collector ends must see that the lock is taken.
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._pumping = False
        # When the pumping thread has to look after time-outs and a silent connection.
        self._look_up_at = 0.0
        # Threads that wait for news of their calls while another one pumps.
        self._listeners = 0
        # The thread that pumps or opens: what it runs while the lock is given up must not call this client.
        self._pumper: int | None = None
        self._journal = Journal()
        self._selector = selectors.DefaultSelector()
        self._waker, self._wakened = socket.socketpair()
        self._waker.setblocking(False)
        self._wakened.setblocking(False)
        self._selector.register(self._wakened, selectors.EVENT_READ)
        # One call of the kernel, where the system has it; `selectors` costs several times as much.
        self._poll: select.poll | None = None
        self._polled = -1
        self._sock: socket.socket | None = None
        self._unsent = b""
        self._watched = 0
        self._connect_at = 0.0
        self._usable_by = 0.0
        self._was_usable = False
        # Whether the log knows that this connection can be used.
        self._told = False
        # Rounds through all nodes that ended without a usable connection.
        self._rounds = 0
        self._heard_at = 0.0
        # While a probe is under way: when the silent connection is given up.
        self._give_up_at: float | None = None
        self._left_over: list[Settlement] = []

    def _after_fork(self) -> None:
        """In the child: let go of the parent's connection without a word on it."""
        # Closing the descriptors of this process leaves the parent's open; unregistering would not.
        for inherited in (self._sock, self._waker, self._wakened, self._selector):
            if inherited is not None:
                inherited.close()
        for holder in self.holders:
            holder.forget()
        self._start_over()

    # --- what can be seen of it -----------------------------------------------------------------------------
    @property
    def connected(self) -> bool:
        """Whether there is a connection that can be used now."""
        return self._sock is not None and self._was_usable

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def endpoint(self) -> Endpoint:
        """The node this client is connected to, or tries next."""
        return self._route.current

    @property
    def nodes(self) -> Nodes:
        """What is known of the nodes."""
        return self._nodes

    @property
    def wake_descriptor(self) -> int:
        """A byte written here ends the wait of the moment; it never blocks."""
        return self._waker.fileno()

    # --- life -----------------------------------------------------------------------------------------------
    def open(self) -> None:
        """Connect.

        Raises:
            ServerUnreachable: nobody answered at any address.
            WalrqError: the server refused the connection, or is no walrq server.
        """
        began = time.monotonic()
        with self._lock:
            self._pumper = threading.get_ident()
            try:
                while not self._exchange.connected:
                    rounds = self._rounds
                    self._step(LOOK_UP_S)
                    if self._is_closed():
                        raise LocalProtocolError("the client was closed while it connected")
                    failure = self._route.latest
                    if (
                        self._rounds != rounds
                        and failure is not None
                        and self._route.gives_up(time.monotonic() - began)
                    ):
                        self._drop_connection()
                        self._shut()
                        raise failure
            finally:
                self._pumper = None

    def _is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Release what consumers hold, end the session, close the connection. Calls under way end with an
        error."""
        if self._closed:
            return
        for holder in list(self.holders):
            holder.release()
        self._refuse_from_inside()
        with self._lock:
            self._give_left_over_back()
            self._closed = True
            exchange = self._exchange
            if self._sock is not None and exchange.connected:
                if exchange.session is not None:
                    exchange.submit(api.CloseSession(), time.monotonic(), wanted=False)
                self._say_goodbye(self._sock)
            self._drop_connection()
            self._fail_all(LocalProtocolError("the client is closed"), time.monotonic())
            self._news.notify_all()
            self._shut()

    def _say_goodbye(self, sock: socket.socket) -> None:
        """Send what is left, bounded; the answers are nobody's business any more."""
        with contextlib.suppress(OSError):
            sock.settimeout(1.0)
            sock.sendall(self._unsent + self._exchange.take_output())
            sock.shutdown(socket.SHUT_WR)

    def _shut(self) -> None:
        self._closed = True
        if self._pumping:
            # The pumping thread still looks at these; it closes them when it comes back.
            self._wake_pump()
            return
        self._selector.close()
        self._waker.close()
        self._wakened.close()

    # --- moving bytes: the lock is held on entry and on return of everything below --------------------------
    def _step(self, longest_s: float) -> None:
        """One wait and what came of it: bytes, a connection, a time-out. Gives the lock up while it waits."""
        if self.on_turn is not None:
            self.on_turn()
        if not self._journal.silent:
            self._speak()
            if self._closed:
                return
        now = time.monotonic()
        exchange = self._exchange
        if self._sock is None:
            if now >= self._connect_at:
                self._connect()
                return
            until = self._connect_at
        else:
            until = now + longest_s if self._was_usable else self._usable_by
        for due in (exchange.next_due(), self._merger.next_due()):
            if due is not None:
                until = min(until, due)
        self._wait(max(0.0, min(until - now, longest_s)))
        if self.on_turn is not None:
            self.on_turn()
        now = time.monotonic()
        self._look_up_at = now + self._look_up_s
        self._deliver(exchange.tick(now), now)
        self._merger.tick(now)
        if self._sock is not None:
            if exchange.link is Link.DOWN:
                self._lost(None)
            elif not self._was_usable and now >= self._usable_by:
                self._lost(TimeoutError())
            else:
                self._probe(now)
        self._flush()
        if not self._journal.silent:
            self._speak()

    def _glance(self, call: Call | AnyShare) -> bool:
        """The turn that nearly every call needs, and no more: its answer comes on a connection in good health.

        False when the turn needs a closer look: `_step`.
        """
        sock = self._sock
        exchange = self._exchange
        if (
            sock is None
            or self._unsent
            or not self._was_usable
            or self.on_turn is not None
            or not self._journal.silent
            or exchange.resting
            or exchange.link is not Link.UP
        ):
            return False
        now = time.monotonic()
        wait_s = min(self._look_up_at, call.deadline) - now
        if wait_s <= 0:
            return False
        self._lock.release()
        try:
            ready = self._wait_for_input(wait_s)
        finally:
            self._lock.acquire()
        if not ready or self._closed or self._sock is not sock:
            return False
        made = exchange.made
        self._receive()
        if exchange.made != made:
            self._flush()
        return True

    def _speak(self) -> None:
        """Write to the log with the lock given up: a handler may be slow."""
        self._lock.release()
        try:
            self._journal.speak()
        finally:
            self._lock.acquire()

    def _refuse_from_inside(self) -> None:
        """A log handler, or `on_turn`, that called the client it is called by would wait for itself."""
        if self._pumper == threading.get_ident():
            raise LocalProtocolError(
                "a client was called from inside itself: a log handler or on_turn needs a client of its own"
            )

    def _wait(self, timeout_s: float) -> None:
        sock = self._sock
        if sock is not None:
            watched = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
            if watched != self._watched:
                self._selector.modify(sock, watched)
                self._watched = watched
        self._lock.release()
        try:
            ready = self._selector.select(timeout_s)
        finally:
            self._lock.acquire()
        if self._closed:
            return
        for key, _ in ready:
            if key.fileobj is self._wakened:
                with contextlib.suppress(BlockingIOError):
                    self._wakened.recv(4096)
            elif key.fileobj is self._sock:
                self._receive()

    def _wait_for_input(self, timeout_s: float) -> bool:
        """Whether the server sent something; False also when somebody wants this thread to look up."""
        poll = self._poll
        if poll is None:
            return False
        ready = poll.poll(timeout_s * 1000)
        return len(ready) == 1 and ready[0][0] == self._polled

    def _receive(self) -> None:
        sock = self._sock
        assert sock is not None
        try:
            data = sock.recv(RECEIVE_BYTES)
            if self._tls is not None:
                data += left_in(sock)
        except self._not_now:
            return  # it was ready for sending only
        except OSError as error:
            self._lost(error)
            return
        if not data:
            self._lost(None)
            return
        exchange = self._exchange
        self._heard_at, self._give_up_at = time.monotonic(), None
        self._deliver(exchange.receive(data, self._heard_at), self._heard_at)
        if exchange.link is Link.DOWN:
            self._lost(None)
        elif not self._told and exchange.connected:
            self._was_usable = True
            self._route.usable(self._heard_at)
            if self._route.leads:
                self._told = True
                self._journal.usable(self.endpoint, self._heard_at)

    def _deliver(self, calls: Sequence[Call], now: float) -> None:
        """Finished calls that threads share are divided, and what was held back for them is made."""
        for call in calls:
            if call.waiter is not None:
                call.waiter()
        self._merger.advance(now)

    def _fail_all(self, error: WalrqError, now: float) -> None:
        self._deliver(self._exchange.fail_all(error, now), now)
        self._merger.fail_all(error, now)

    def _flush(self) -> None:
        """Send what can be sent without waiting."""
        sock = self._sock
        if sock is None:
            return
        data = self._exchange.take_output()
        if self._unsent:
            data = self._unsent + data
        if not data:
            return
        try:
            sent = sock.send(data)
        except self._not_now:
            sent = 0
        except OSError as error:
            self._lost(error)
            return
        self._unsent = data[sent:]
        if self._unsent:
            self._wake_pump()

    def _wake_pump(self) -> None:
        """Let a thread that waits in select() look again."""
        with contextlib.suppress(BlockingIOError):
            self._waker.send(b"!")

    def _connect(self) -> None:
        self._exchange.attempt(time.monotonic())
        endpoint, patience_s = self._route.current, self._route.patience_s
        self._lock.release()
        try:
            sock = socket.create_connection((endpoint.host, endpoint.port), patience_s)
            if self._tls is not None:
                sock = shake(sock, self._tls, endpoint.host)
        except OSError as error:
            failure: OSError | None = error
        else:
            failure = None
            tune(sock, self.config.keep_alive_s)
            sock.setblocking(False)
        finally:
            self._lock.acquire()
        if failure is not None:
            self._lost(failure)
            return
        if self._closed:
            sock.close()
            return
        self._sock = sock
        self._unsent = b""
        self._watched = selectors.EVENT_READ
        self._selector.register(sock, selectors.EVENT_READ)
        if hasattr(select, "poll"):
            self._poll, self._polled = select.poll(), sock.fileno()
            self._poll.register(sock, select.POLLIN)
            self._poll.register(self._wakened, select.POLLIN)
        self._was_usable = self._told = False
        self._heard_at, self._give_up_at = time.monotonic(), None
        self._usable_by = self._heard_at + patience_s
        self._exchange.connecting()
        self._flush()

    def _lost(self, cause: OSError | None) -> None:
        """The connection ended, or none came about: plan the next."""
        now = time.monotonic()
        exchange = self._exchange
        usable, self._was_usable = self._was_usable, False
        under_way = exchange.in_flight
        self._drop_connection()
        self._deliver(exchange.lost(now), now)
        route = self._route
        endpoint = route.current
        failure = None
        if not usable:
            failure = explain(endpoint, cause, exchange.refused)
            self._journal.unreachable(endpoint, failure)
        elif exchange.left is not None:
            self._journal.left(endpoint, exchange.left, now, led=route.leads)
        else:
            self._journal.lost(endpoint, reason_of(cause), under_way, now)
        pause_s = route.next(now, failure)
        self._connect_at = now + pause_s
        if pause_s:
            self._rounds += 1
            if route.final is not None:
                # Nothing would change by trying again: those who wait should know now.
                self._fail_all(route.final, now)

    def _drop_connection(self) -> None:
        sock, self._sock = self._sock, None
        self._unsent = b""
        self._poll = None
        if sock is not None:
            self._selector.unregister(sock)
            sock.close()

    def _probe(self, now: float) -> None:
        """Ask a silent connection whether it lives; drop it when the question stays unanswered."""
        exchange = self._exchange
        if not exchange.connected:
            return
        if self._give_up_at is None:
            if now - self._heard_at >= exchange.patience_s:
                self._give_up_at = now + exchange.probe_s
                exchange.submit(api.Ping(), now, timeout_s=exchange.probe_s, wanted=False)
        elif now > self._give_up_at:
            self._lost(TimeoutError())

    # --- calls ----------------------------------------------------------------------------------------------
    def _submit(self, request: api.Request, timeout_s: float | None = None) -> Call:
        if self._closed:
            raise LocalProtocolError("the client is closed")
        if self._left_over:
            self._give_left_over_back()
        call = self._exchange.submit(request, time.monotonic(), timeout_s=timeout_s)
        try:
            self._flush()
        except BaseException:
            # An interrupt between here and the answer leaves nothing leased behind, see also _finish.
            self._exchange.abandon(call, time.monotonic())
            raise
        return call

    def _give_left_over_back(self) -> None:
        """Release what consumers left behind while the lock was taken."""
        parts, self._left_over = self._left_over, []
        for part in parts:
            self._exchange.submit(op.settle(part, api.SettleKind.RELEASE), time.monotonic(), wanted=False)
        self._flush()

    def pause_s(self, tries: int) -> float:
        """Seconds to wait before try number `tries + 1`."""
        return self._exchange.pause_s(tries)

    def give_back(self, parts: list[Settlement]) -> None:
        """Release leases without waiting for the answer. May run anywhere, in a finalizer too."""
        self._left_over += parts
        if self._lock.acquire(blocking=False):
            try:
                if not self._closed:
                    self._give_left_over_back()
            finally:
                self._lock.release()

    def _abandon(self, call: Call | AnyShare) -> None:
        (self._merger if isinstance(call, Share) else self._exchange).abandon(call, time.monotonic())  # type: ignore[arg-type]

    def _finish(self, calls: Sequence[Call | AnyShare]) -> None:
        """Wait until all `calls` are finished: pump, or let another thread pump."""
        try:
            for call in calls:
                while not call.finished:
                    if self._pumping:
                        self._listeners += 1
                        try:
                            self._news.wait(LOOK_UP_S)
                        finally:
                            self._listeners -= 1
                        continue
                    self._pumping = True
                    self._pumper = threading.get_ident()
                    try:
                        self._heard_at = max(self._heard_at, time.monotonic() - self._look_up_s)
                        while self._must_wait(call):
                            if not self._glance(call):
                                self._step(self._look_up_s)
                            if self._listeners:
                                self._news.notify_all()
                    finally:
                        self._pumping = False
                        self._pumper = None
                        if self._listeners:
                            self._news.notify_all()
                        if self._closed:
                            self._shut()
        except BaseException:
            for call in calls:
                self._abandon(call)
            self._flush()
            raise

    def _must_wait(self, call: Call | AnyShare) -> bool:
        return not (call.finished or self._closed)

    @property
    def busy(self) -> bool:
        """Whether other threads have calls under way, so that sharing one may be worth its small price."""
        return self._exchange.in_flight > 0

    def shared(
        self, key: Hashable, make: Callable[[], Lane[C, R]], content: C, weight: int = 1, wait_s: float = 0.0
    ) -> R:
        """This thread's part of a call that it may share with other threads (see `merging`).

        Raises:
            WalrqError: what the server or the time-out says.
        """
        share = None
        self._refuse_from_inside()
        with self._lock:
            if self._closed:
                raise LocalProtocolError("the client is closed")
            if self._left_over:
                self._give_left_over_back()
            try:
                now = time.monotonic()
                share = self._merger.join(self._merger.lane(key, make), content, weight, now, wait_s)
                self._merger.flush(now)
                self._merger.advance(now)  # a call that cannot be encoded is answered already
                self._flush()
                self._finish((share,))
            except BaseException:
                if share is not None and not share.finished:
                    self._abandon(share)
                    self._flush()
                raise
        if share.error is not None:
            raise share.error
        return share.result

    def call(self, request: api.Request, timeout_s: float | None = None) -> tuple[Call, api.Reply]:
        """One request and its reply; raises what the server or the time-out (None = the configured one) says."""
        call = None
        self._refuse_from_inside()
        with self._lock:
            try:
                call = self._submit(request, timeout_s)
                if not call.finished:
                    self._finish((call,))
            except BaseException:
                if call is not None and call.wanted:
                    self._exchange.abandon(call, time.monotonic())
                    self._flush()
                raise
        if call.error is not None:
            raise call.error
        assert call.reply is not None
        return call, call.reply

    def ask(self, request: api.Request, kind: type[R], timeout_s: float | None = None) -> R:
        """The reply to one request, which must be of this kind; raises as `call` does."""
        _, reply = self.call(request, timeout_s)
        if not isinstance(reply, kind):
            asked = type(request).__name__
            raise RemoteProtocolError(f"the server answered {asked} with {type(reply).__name__}")
        return reply

    def begin(self, request: api.Request) -> Call:
        """Send a request without waiting; `end` it later."""
        self._refuse_from_inside()
        with self._lock:
            return self._submit(request)

    def end(self, call: Call, kind: type[R]) -> R:
        """The reply to a call that was begun; raises what the server or the time-out says."""
        self._refuse_from_inside()
        with self._lock:
            self._finish((call,))
        if call.error is not None:
            raise call.error
        if not isinstance(call.reply, kind):
            raise RemoteProtocolError(f"the server answered with {type(call.reply).__name__}")
        return call.reply

    def outcomes(self, requests: Sequence[api.Request], kind: type[R]) -> list[R | WalrqError]:
        """The answer or error of each of several requests that are under way together."""
        self._refuse_from_inside()
        with self._lock:
            calls = [self._submit(request) for request in requests]
            self._finish(calls)
        outcomes: list[R | WalrqError] = []
        for call in calls:
            if call.error is not None:
                outcomes.append(call.error)
            elif isinstance(call.reply, kind):
                outcomes.append(call.reply)
            else:
                raise RemoteProtocolError(f"the server answered with {type(call.reply).__name__}")
        return outcomes


_pumps: weakref.WeakSet[Pump] = weakref.WeakSet()


def _after_fork() -> None:
    for pump in list(_pumps):
        pump._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
