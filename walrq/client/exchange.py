"""Who is owed which answer: sessions, retries and time-outs, without a socket, a clock or a task.

One `Exchange` outlives the connections below it. A driver (asynchronous or blocking) feeds it bytes and the
time, sends what `take_output` gives, and wakes the callers of the `Call`s that come back finished.

A call's states:

    waiting --room in the window, link up--> flying
    flying  --answer--> finished
    flying  --connection lost--> waiting (same sequence)      or finished: ConnectionLost, without a session
    flying  --refused, may be retried--> resting --back-off over--> waiting
    flying  --turned away: not the leader, or stopping--> waiting, and on to the next node
    any     --deadline--> finished                             any --caller went away--> finished, perhaps
    forgotten

What makes a retry safe: a changing request keeps its sequence as long as it may have taken effect, and gets a
new one after a definite refusal, because the session remembers refusals too. `lowest` in each request tells
the server which answers it may forget.

In a cluster only the leader takes requests. A node that does not lead turns them away, which is definite, and the
exchange leaves it: at once, or a moment later when answers are still to come (`_leave`). Which node is next is the
`Route`'s to say; there everything goes on under the same session. Calls keep their order.

A poll that was parked long holds `lowest` down while newer requests pile up behind it. Before that exhausts
the session's window the poll is forgotten and asked again under a new sequence (`_relieve`); the caller never
notices.
"""

from __future__ import annotations

import enum
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import attrs

from walrq import api
from walrq.client.config import ClientConfig, parse_url
from walrq.client.failures import ServerUnreachable
from walrq.client.routing import Nodes, Route, Verdict
from walrq.errors import (
    Code,
    ConnectionLost,
    NotLeader,
    OutcomeUnknown,
    ReplyTimeout,
    SessionEnded,
    WalrqError,
    WrongCluster,
    from_code,
)
from walrq.limits import DEFAULT_PORT, SESSION_WINDOW_MAX
from walrq.protocol.client import Answer, ClientConnection, ClientState, Closed, Welcomed, WentAway
from walrq.protocol.handshake import Hello

CLIENT_NAME: Final = "walrq-python"

# Requests that change something, or lease: those that a session protects. The others may simply be asked
# again.
SEQUENCED: Final = frozenset(
    {
        api.Push,
        api.Poll,
        api.Settle,
        api.Touch,
        api.Cancel,
        api.Reschedule,
        api.SetQueue,
        api.PurgeQueue,
        api.DeleteQueue,
        api.Redrive,
        api.PurgeDead,
        api.Move,
        api.Forget,
        api.CloseSession,
    }
)
# How far `lowest` may stay behind the newest sequence before old polls are renewed, and before new requests
# wait: a quarter and a half of what the server remembers.
RENEW_SPAN: Final = SESSION_WINDOW_MAX // 4
SPAN_MAX: Final = SESSION_WINDOW_MAX // 2
# "Outcome unknown" from the state machine does not change by asking again; from a node in trouble it may.
UNKNOWN_TRIES_MAX: Final = 3
# The node does not do what only a leader does: its own refusals, and news of an office that ended.
NOT_HERE: Final = frozenset({Code.NOT_LEADER, Code.LEADERSHIP_LOST})
# The node takes nothing for a while; with another one to go to that is no reason to wait.
NOT_NOW: Final = frozenset({Code.DRAINING, Code.NOT_READY})
# A node that was left may still answer for so long what it has. Without a session there is more to lose: see `_leave`.
LEAVE_S: Final = 0.05
# What to do about an error that leaves the outcome open.
LOOK_FIRST: Final = "Look before you ask again; a push with a dedup_id may be repeated without looking"


class Stage(enum.IntEnum):
    """Where a call stands; see the module's text."""

    WAITING = 0
    FLYING = 1
    RESTING = 2
    FINISHED = 3


class Call:
    """One request of one caller, until it has its reply or error.

    Attributes:
        request: what is asked.
        deadline: monotonic seconds at which the caller stops waiting.
        sent_at: seconds of the configured clock at the first sending under its present sequence: a lease
            counts from there, since the answer to a retry may be that of the first sending.
        reply: the answer, once finished without error.
        error: the error, once finished with one.
        waiter: what the driver calls to wake the caller.
        wanted: False when nobody waits for the answer (any more): it is not worth a retry.
    """

    # What most calls never change stays with the class: one is made per call.
    waits_until: float = 0.0
    id: int = 0
    session: int | None = None
    sequence: int | None = None
    sends: int = 0
    sent_at: float = 0.0
    tries: int = 0
    due: float = 0.0
    refusal: WalrqError | None = None
    reply: api.Reply | None = None
    error: WalrqError | None = None
    waiter: Callable[[], object] | None = None
    wanted: bool = True

    def __init__(self, request: api.Request, deadline: float, *, sequenced: bool) -> None:
        self.request: api.Request = request
        self.deadline: float = deadline
        self.sequenced: bool = sequenced
        self.parks: bool = type(request) is api.Poll and request.wait_ms > 0
        self.stage: Stage = Stage.WAITING

    @property
    def finished(self) -> bool:
        """True once `reply` or `error` is there."""
        return self.stage is Stage.FINISHED


def repeatable(request: api.Request, *, sequenced: bool) -> bool:
    """Whether a request of unknown outcome may simply be sent again."""
    kind = type(request)
    if sequenced or kind is api.Poll:
        return True
    if type(request) is api.TransferLeadership:
        return request.target is not None  # otherwise a second one would move it on
    return kind is not api.RemoveNode and kind not in SEQUENCED


class Link(enum.Enum):
    """What the connection is good for now."""

    DOWN = "down"
    GREETING = "greeting"
    OPENING = "opening"
    UP = "up"
    LEAVING = "leaving"


@attrs.define(eq=False)
class Exchange:
    """See the module's text.

    Attributes:
        config: the owner's wishes.
        link: what the connection is good for.
        session: number of the registered session, None while there is none.
        route: which node is next, and what is known of the others.
        refused: the error with which the server ended the latest handshake, if it did.
        left: why this side left the latest connection, None when it did not.
        made: requests put into the output so far: unchanged means that there is nothing new to send.
    """

    config: ClientConfig
    rng: random.Random
    client_name: str = CLIENT_NAME
    route: Route = attrs.field(
        default=attrs.Factory(
            lambda self: Route(Nodes(parse_url(f"127.0.0.1:{DEFAULT_PORT}")), self.config, self.rng), takes_self=True
        )
    )
    link: Link = attrs.field(default=Link.DOWN, init=False)
    session: int | None = attrs.field(default=None, init=False)
    refused: WalrqError | None = attrs.field(default=None, init=False)
    left: str | None = attrs.field(default=None, init=False)
    made: int = attrs.field(default=0, init=False)
    _connection: ClientConnection | None = attrs.field(default=None, init=False)
    _opening: int = attrs.field(default=0, init=False)
    _sequence: int = attrs.field(default=0, init=False)
    # Calls with a sequence and no final answer, by sequence. Insertion order is sequence order, so that the
    # first key is the lowest unanswered.
    _open: dict[int, Call] = attrs.field(factory=dict, init=False)
    _flying: dict[int, Call] = attrs.field(factory=dict, init=False)
    # Flying calls that wait for messages. Invariant: 0 <= _parked <= len(_flying).
    _parked: int = attrs.field(default=0, init=False)
    _waiting: deque[Call] = attrs.field(factory=deque, init=False)
    # Sent on a connection that broke: goes out again before anything that waits.
    _again: deque[Call] = attrs.field(factory=deque, init=False)
    # Turned away by the node that is being left. Invariant: empty unless `link` is LEAVING.
    _turned: list[Call] = attrs.field(factory=list, init=False)
    # While `link` is LEAVING: the moment at which whatever is still unanswered moves on, too.
    _leave_by: float = attrs.field(default=0.0, init=False)
    _resting: list[Call] = attrs.field(factory=list, init=False)
    _finished: list[Call] = attrs.field(factory=list, init=False)
    # Ids of sessionless polls whose callers went away: what they lease is released when it comes.
    _orphans: set[int] = attrs.field(factory=set, init=False)

    # --- calls ----------------------------------------------------------------------------------------------
    def submit(self, request: api.Request, now: float, *, timeout_s: float | None = None, wanted: bool = True) -> Call:
        """Take a request on. It may be in the output when this returns, finished (it cannot be encoded), or
        wait.

        Args:
            now: monotonic seconds.
            timeout_s: how long the caller waits; a poll's own wait comes on top. None = the configured time.
            wanted: False to send and forget.
        """
        patience = self.config.timeout_s if timeout_s is None else timeout_s
        call = Call(request, now + patience, sequenced=self.config.session and type(request) in SEQUENCED)
        if not wanted:
            call.wanted = False
        if type(request) is api.Poll and request.wait_ms:
            wait_s = request.wait_ms / 1000
            call.deadline += wait_s
            call.waits_until = now + wait_s
        if self.link is Link.UP and not self._waiting and not self._again and self._has_room(call):
            self._send(call, now)
            self._relieve(now)
        else:
            self._waiting.append(call)
        return call

    def abandon(self, call: Call, now: float) -> None:
        """The caller went away: nothing it leased stays leased for it, as far as the server can still be
        told."""
        call.waiter = None
        call.wanted = False
        if call.stage is Stage.FINISHED:
            self._give_back(call.reply, now)
            return
        self._let_go(call, now)
        self._pump(now)

    def _give_back(self, reply: api.Reply | None, now: float) -> None:
        """Release what an answer that nobody took has leased."""
        if type(reply) is not api.Polled:
            return
        queues: dict[str, list[api.Item]] = {}
        for run in reply.runs:
            queues.setdefault(run.queue, []).append(api.Item(run.receipt))
        for queue, items in queues.items():
            self.submit(api.Settle(queue, api.SettleKind.RELEASE, tuple(items)), now, wanted=False)

    def _let_go(self, call: Call, now: float) -> None:
        """Finish an unfinished call without an answer; a poll that was sent is forgotten by the server
        too."""
        self._remove(call)
        sequence = call.sequence
        call.stage = Stage.FINISHED
        if type(call.request) is api.Forget:
            self._close_sequences(call)
        elif sequence is not None:
            if call.sends and type(call.request) is api.Poll:
                self._forget(sequence, call.session, now)
            else:
                self._open.pop(sequence, None)

    def _forget(self, sequence: int, session: int | None, now: float) -> None:
        """Ask the server to undo what a poll leased or may lease.

        The poll's sequence stays among the open ones until the answer to this, so that `lowest` does not pass
        it: the server could no longer find its lease.
        """
        forget = Call(api.Forget(sequence), now + self.config.timeout_s, sequenced=True)
        forget.wanted = False
        forget.session = session
        self._open[sequence] = forget
        self._waiting.appendleft(forget)

    def _remove(self, call: Call) -> None:
        """Take an unfinished call out of whichever collection holds it."""
        if call.stage is Stage.FLYING:
            if self._flying.pop(call.id, None) is not None:
                self._parked -= call.parks
                if call.sequence is None and type(call.request) is api.Poll:
                    self._orphans.add(call.id)
        elif call.stage is Stage.RESTING:
            self._resting.remove(call)
        elif call in self._waiting:
            self._waiting.remove(call)
        elif call in self._turned:
            self._turned.remove(call)
        else:
            self._again.remove(call)

    # --- sending --------------------------------------------------------------------------------------------
    def _has_room(self, call: Call) -> bool:
        if type(call.request) is api.Forget:
            return True  # what waits may be waiting for this
        if call.sequenced and self._open and self._sequence - next(iter(self._open)) >= SPAN_MAX:
            return False
        # Parked polls do not count: they would keep out the pushes and acks they wait for.
        return call.parks or len(self._flying) - self._parked < self.config.window

    def _pump(self, now: float) -> None:
        """Send what waits, as far as there is room."""
        while self.link is Link.UP and self._again:
            self._send(self._again.popleft(), now)
        while self.link is Link.UP and self._waiting and self._has_room(self._waiting[0]):
            self._send(self._waiting.popleft(), now)
        self._relieve(now)

    def _relieve(self, now: float) -> None:
        """Ask old parked polls anew when they hold `lowest` far behind."""
        if not self._parked or self.link is not Link.UP or not self._open:
            return
        newest = self._sequence
        if newest - next(iter(self._open)) < RENEW_SPAN:
            return
        for sequence, call in list(self._open.items()):
            if newest - sequence < RENEW_SPAN // 2:
                break
            if call.parks and call.stage is Stage.FLYING:
                self._remove(call)
                self._forget(sequence, call.session, now)
                call.sequence = None
                call.stage = Stage.WAITING
                self._waiting.append(call)
        while self._waiting and self._has_room(self._waiting[0]):
            self._send(self._waiting.popleft(), now)

    def _send(self, call: Call, now: float) -> None:
        connection = self._connection
        assert connection is not None
        request = call.request
        if type(request) is api.Forget and call.session != self.session:
            # Its session ended, and with it what there was to forget.
            self._finish(call, error=SessionEnded("the session of the forgotten request ended"))
            return
        if call.waits_until:
            left_ms = max(0, round((call.waits_until - now) * 1000))
            if type(request) is api.Poll and left_ms < request.wait_ms:
                request = call.request = api.Poll(
                    request.queues,
                    request.max_messages,
                    request.visibility_ms,
                    left_ms,
                    request.worker,
                    request.numbered,
                    request.into,
                )
        lowest = None
        if call.sequenced:
            if call.sequence is None:
                self._sequence += 1
                call.sequence = self._sequence
                call.session = self.session
                call.sends = 0
                self._open[call.sequence] = call
            lowest = next(iter(self._open))
        try:
            call.id = connection.request(request, sequence=call.sequence, lowest=lowest)
        except WalrqError as error:
            self._finish(call, error=error)
            return
        self.made += 1
        if not call.sends:
            call.sent_at = now + self.config.clock.offset
        call.sends += 1
        call.stage = Stage.FLYING
        self._flying[call.id] = call
        self._parked += call.parks

    def take_output(self) -> bytes:
        """Bytes to send on the current connection, as one string."""
        return b"" if self._connection is None else self._connection.take_output()

    # --- the connection -------------------------------------------------------------------------------------
    def attempt(self, now: float) -> None:
        """A connection to the route's node is attempted: what the node before said is not said of this one."""
        self.route.begin(now)
        self.refused = self.left = None

    def connecting(self) -> None:
        """A new connection exists; its Hello is in the output."""
        self._connection = ClientConnection(
            Hello(client=self.client_name, token=self.config.token, session=self.session)
        )
        self.link = Link.GREETING

    def receive(self, data: bytes, now: float) -> list[Call]:
        """Bytes from the server: the calls that they finish. When `link` is DOWN afterwards, close the
        connection."""
        connection = self._connection
        if connection is None:
            return []
        for event in connection.receive(data):
            if type(event) is Answer:
                self._on_answer(event.id, event.reply, now)
            elif type(event) is Welcomed:
                self._on_welcome(event, now)
                if self.link is Link.DOWN:
                    return self.lost(now)
            elif type(event) is WentAway:
                self._leave("it is stopping", now, moves=self.route.nodes.several)
            elif type(event) is Closed:
                self.refused = event.error
                return self.lost(now)
        self._pump(now)
        if self.link is Link.LEAVING and self._may_go(now):
            return self.lost(now)
        return self._take_finished()

    def _leave(self, why: str, now: float, *, moves: bool) -> None:
        """Ask nothing more of this node.

        What it was asked is still answered: awaited for a moment when the client moves on to another node, where a
        session makes asking again safe (without one a change would become an unknown outcome, so that is worth a longer
        moment); without limit when there is no other.
        """
        if self.link is Link.LEAVING:
            if moves:
                self._leave_by = min(self._leave_by, now + self._grace_s)
            return
        self.link = Link.LEAVING
        self.left = why
        self._leave_by = now + self._grace_s if moves else math.inf

    @property
    def _grace_s(self) -> float:
        return LEAVE_S if self.config.session else max(LEAVE_S, self.config.node_timeout_s)

    def _may_go(self, now: float) -> bool:
        """Whether nothing is worth waiting for any more on a connection that is being left."""
        if not self._flying or now >= self._leave_by:
            return True
        # A parked poll is asked again elsewhere, and what it leased here is forgotten: no reason to wait.
        return self._leave_by < math.inf and self.config.session and self.in_flight == 0

    def lost(self, now: float) -> list[Call]:
        """The connection is gone: what may be sent again will be; the rest is finished with
        `ConnectionLost`."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self.link = Link.DOWN
        self._opening = 0
        flying = [*self._flying.values(), *self._turned]
        self._flying.clear()
        self._turned.clear()
        self._orphans.clear()
        self._parked = 0
        again = []
        for call in flying:
            if call.stage is Stage.WAITING:
                again.append(call)  # turned away
            elif call.parks and call.sequence is not None:
                # It may have waited for long: a lease that counts from its first sending could be over when it comes.
                # So the old one is forgotten, with whatever it leased, and a new one asked.
                self._forget(call.sequence, call.session, now)
                call.sequence = None
                call.stage = Stage.WAITING
                self._waiting.append(call)
            elif repeatable(call.request, sequenced=call.sequenced):
                call.stage = Stage.WAITING
                again.append(call)
            else:
                self._finish(call, error=ConnectionLost(f"the connection broke before the answer came. {LOOK_FIRST}"))
        # In the order of their sending, so that a producer's batches keep theirs; before those that were never sent.
        again.sort(key=lambda call: call.id)
        self._again.extendleft(reversed(again))
        return self._take_finished()

    def _on_welcome(self, event: Welcomed, now: float) -> None:
        welcome = event.welcome
        known = self.route.nodes.cluster
        verdict = self.route.welcomed(welcome, moves=self.config.session)
        if verdict is Verdict.WRONG:
            self.refused = WrongCluster(
                f"the node at {self.route.current} belongs to cluster {welcome.cluster}, this client talks to cluster"
                f" {known}; is the address right?",
                expected=known,
                found=welcome.cluster,
            )
            self.link = Link.DOWN
            return
        if verdict is Verdict.GO_ON:
            self.refused = NotLeader(f"{welcome.node} does not lead, the node at {welcome.leader} does")
            self.link = Link.DOWN
            return
        if verdict is Verdict.ANEW and self.session is not None:
            # Numbers of sessions mean something else here.
            self._end_session()
        if not self.config.session:
            self.link = Link.UP
        elif self.session is not None and event.welcome.session == self.session:
            self.link = Link.UP
        else:
            if self.session is not None:
                self._end_session()
            self._open_session()

    def _open_session(self) -> None:
        assert self._connection is not None
        self.link = Link.OPENING
        self.made += 1
        self._opening = self._connection.request(api.OpenSession())

    def _end_session(self) -> None:
        """The server does not know our session any more: what was sent under it may or may not have
        happened."""
        self.session = None
        for call in list(self._again):
            if call.sequence is None:
                continue
            self._again.remove(call)
            self._session_ended(call)
        for call in list(self._resting):
            if call.sequence is not None:
                self._resting.remove(call)
                self._session_ended(call)

    def _session_ended(self, call: Call, *, refused: bool = False) -> None:
        """Finish a call of a session that is over, or let it start anew in the next one.

        Args:
            refused: the server refused this very sending for that reason.
        """
        if call.sequence is not None:
            self._open.pop(call.sequence, None)
        if type(call.request) is api.Forget:
            self._finish(call, error=SessionEnded("the session of the forgotten request ended"))
        elif (refused and call.sends == 1) or type(call.request) is api.Poll:
            # Sent once and refused: it did not happen. A poll may be asked again in any case: a lease whose
            # answer was lost ends by time.
            call.sequence = None
            call.stage = Stage.WAITING
            self._waiting.append(call)
        else:
            self._finish(
                call,
                error=SessionEnded(
                    "the session ended while the request was being retried: it may have taken effect or not."
                    f" {LOOK_FIRST}"
                ),
            )

    # --- answers --------------------------------------------------------------------------------------------
    def _on_answer(self, identifier: int, reply: api.Reply, now: float) -> None:
        if identifier == self._opening:
            self._on_session(reply)
            return
        call = self._flying.pop(identifier, None)
        if call is None:
            if identifier in self._orphans:
                self._orphans.remove(identifier)
                self._give_back(reply, now)
            return
        self._parked -= call.parks
        if type(reply) is api.Failed:
            self._on_failed(call, reply, now)
            return
        if not self.route.proven and type(call.request) in SEQUENCED:
            self.route.answered()
        self._finish(call, reply=reply)

    def _on_session(self, reply: api.Reply) -> None:
        self._opening = 0
        if type(reply) is api.SessionOpened:
            self.session = reply.session
            self.route.answered()
            self.link = Link.UP
        else:
            if type(reply) is api.Failed and reply.code in NOT_HERE | NOT_NOW:
                self.route.turned_away(reply.details.get("leader"))
                self.left = "it does not lead"
            # Without its session nothing can be sent safely; the driver connects again, with back-off.
            self.refused = (
                from_code(reply.code, reply.text, reply.details)
                if type(reply) is api.Failed
                else ConnectionLost("the server did not open a session")
            )
            self.link = Link.DOWN

    def _on_failed(self, call: Call, failed: api.Failed, now: float) -> None:
        error = from_code(failed.code, failed.text, failed.details)
        code = failed.code
        if self._turns_away(call, error) and self._turn_away(call, error, now):
            return
        if type(call.request) is api.Forget:
            self._finish(call, error=error)
            return
        if code == Code.SESSION_ENDED:
            if call.session == self.session and self.session is not None:
                self.session = None
                if self.link is Link.UP:
                    self._open_session()
            self._session_ended(call, refused=True)
            return
        call.tries += 1
        may_retry = error.retry and call.wanted and not _is_about_the_request(error)
        if not error.definite:
            # It may have taken effect: only the session makes asking again safe.
            may_retry = may_retry and repeatable(call.request, sequenced=call.sequenced)
            may_retry = may_retry and (type(error) is not OutcomeUnknown or call.tries < UNKNOWN_TRIES_MAX)
        if not may_retry:
            self._finish(call, error=error)
            return
        call.refusal = error
        call.stage = Stage.RESTING
        call.due = now + self.pause_s(call.tries, failed.details.get("retry_after_ms"))
        if error.definite:
            self._renumber(call)
        self._resting.append(call)

    def _renumber(self, call: Call) -> None:
        """After a definite refusal the request counts as not sent; its session remembers it under the old sequence.

        Of a request that was sent before, the refusal says only that this sending was turned away: the first may have
        taken effect, so it keeps its sequence.
        """
        if call.sends == 1:
            if call.sequence is not None:
                self._open.pop(call.sequence, None)
                call.sequence = None
            call.sends = 0

    def _turns_away(self, call: Call, error: WalrqError) -> bool:
        """Whether a refusal means that another node has to be asked, and asking again is safe."""
        if error.code in NOT_HERE:
            return True
        if _is_about_the_request(error):
            return False
        return error.code in NOT_NOW and (self.link is Link.LEAVING or self.route.nodes.several)

    def _turn_away(self, call: Call, error: WalrqError, now: float) -> bool:
        """Leave this node, and take the call along; False when the call's story ends here."""
        self.route.turned_away(error.details.get("leader"))
        self._leave("it does not lead" if error.code in NOT_HERE else "it is not ready", now, moves=True)
        if not error.definite and not repeatable(call.request, sequenced=call.sequenced):
            return False
        if not call.wanted and type(call.request) not in (api.Forget, api.Settle):
            return False
        call.refusal = error
        call.stage = Stage.WAITING
        if error.definite and type(call.request) is not api.Forget:
            self._renumber(call)
        self._turned.append(call)
        return True

    def pause_s(self, tries: int, retry_after_ms: object = None) -> float:
        """Back-off before try number `tries + 1`: growing, bounded, spread; at least what the server asked
        for."""
        pause = self.config.backoff_s(tries)
        if isinstance(retry_after_ms, int):
            pause = max(pause, min(retry_after_ms / 1000, self.config.retry_max_s))
        return pause * self.rng.uniform(0.5, 1.0)

    def _finish(self, call: Call, *, reply: api.Reply | None = None, error: WalrqError | None = None) -> None:
        self._close_sequences(call)
        call.reply = reply
        call.error = error
        call.stage = Stage.FINISHED
        self._finished.append(call)

    def _close_sequences(self, call: Call) -> None:
        """Nothing is owed under the call's sequence any more, nor under the one it was to forget."""
        if call.sequence is not None:
            self._open.pop(call.sequence, None)
        if type(call.request) is api.Forget:
            self._open.pop(call.request.sequence, None)

    def _take_finished(self) -> list[Call]:
        finished = self._finished
        if finished:
            self._finished = []
        return finished

    # --- time -----------------------------------------------------------------------------------------------
    def tick(self, now: float) -> list[Call]:
        """Send what has rested, finish what is overdue. Cheap; call it a few times a second. When `link` is DOWN
        afterwards, close the connection."""
        if self.link is Link.LEAVING and self._may_go(now):
            self._finished = self.lost(now)
        if self._resting:
            ready = [call for call in self._resting if call.due <= now]
            for call in ready:
                self._resting.remove(call)
                call.stage = Stage.WAITING
                (self._waiting if call.sequence is None else self._again).append(call)
        for call in [call for call in self._unfinished() if call.deadline <= now]:
            self._fail(call, self.overdue(call), now)
        self._pump(now)
        return self._take_finished()

    def _fail(self, call: Call, error: WalrqError, now: float) -> None:
        self._let_go(call, now)
        call.error = error
        self._finished.append(call)

    def overdue(self, call: Call | None) -> WalrqError:
        """What a caller learns whose time is over; None for a call that was not made yet."""
        if call is None or not call.sends:
            if call is not None and call.refusal is not None:
                return call.refusal
            if self.refused is not None:
                return self.refused
            if self.route.leaderless and self.route.latest is not None:
                return self.route.latest
            return ServerUnreachable(
                "no server answered in time; the request was not sent. Is the node up, and the address right?"
            )
        if self.link is Link.UP:
            return ReplyTimeout(f"no reply came in time: the request may have taken effect or not. {LOOK_FIRST}")
        return ConnectionLost(
            "the connection broke and no server answered in time: the request may have taken effect or not."
            f" {LOOK_FIRST}"
        )

    def _unfinished(self) -> Iterator[Call]:
        for calls in (self._flying.values(), self._waiting, self._again, self._resting, self._turned):
            yield from calls

    def next_due(self) -> float | None:
        """Monotonic seconds at which `tick` has something to do; None while nothing is unfinished."""
        earliest: float | None = None
        if self.link is Link.LEAVING and self._leave_by < math.inf:
            earliest = self._leave_by
        for call in self._unfinished():
            at = min(call.deadline, call.due) if call.stage is Stage.RESTING else call.deadline
            if earliest is None or at < earliest:
                earliest = at
        return earliest

    @property
    def in_flight(self) -> int:
        """Requests sent and not answered, parked polls left out."""
        return len(self._flying) - self._parked

    @property
    def patience_s(self) -> float:
        """Seconds of silence after which the node is asked for a sign of life."""
        config = self.config
        if not self._flying or not self._hurries:
            return config.keep_alive_s
        return min(config.keep_alive_s, config.node_timeout_s * (1.0 if self.in_flight else 3.0))

    @property
    def probe_s(self) -> float:
        """Seconds that it then has."""
        config = self.config
        return min(config.keep_alive_s, config.node_timeout_s) if self._hurries else 2 * config.keep_alive_s

    @property
    def _hurries(self) -> bool:
        """Whether a silent node is left early: there is another one, and a session to go on with there."""
        return self.config.session and self.route.nodes.several

    @property
    def resting(self) -> bool:
        """Whether a refused request waits for its next try."""
        return bool(self._resting)

    @property
    def idle(self) -> bool:
        """True while no call is unfinished."""
        return next(self._unfinished(), None) is None

    def fail_all(self, error: WalrqError, now: float) -> list[Call]:
        """Finish every call with `error`: the client is closing."""
        for call in list(self._unfinished()):
            self._fail(call, error, now)
        return self._take_finished()

    @property
    def connected(self) -> bool:
        """True while requests can be sent."""
        return self.link is Link.UP

    @property
    def state(self) -> ClientState | None:
        """State of the protocol's connection, None without one."""
        return None if self._connection is None else self._connection.state


def _is_about_the_request(error: WalrqError) -> bool:
    """Whether the node is well and what was asked for is not possible now (a new node does not answer, say).

    Asked again at once, here or elsewhere, it would be refused again: the caller is told, and decides.
    """
    return error.code == Code.NOT_READY and "field" in error.details
