"""The state machine: applies entries of commands to queues, the same way on every replica.

    apply(index, stamp, commands):  expire what the stamp makes due, then each command in order -> one result each

Everything that happens is a function of (index, stamp, commands) and the state so far. A refusal is a result too
(`api.Failed`) and changes nothing but the session's memory of it.

Never: reads a clock or a file, draws a number, depends on hash order. Bodies stay in the log; results name them by
address. Reads (`reads.py`) change nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from walrq import api, limits
from walrq.access.book import Book, Token
from walrq.errors import Code, DataDirInvalid, Overloaded, QueueNotFound, WalrqError
from walrq.far.shelf import Far
from walrq.ids import INCARNATION_MAX, make_uid, shard_of
from walrq.queues import commands, death, horizon, leases, pending, pushes, timers
from walrq.queues.batch import Batch, Lease, Run
from walrq.queues.commands import Stamp, Tagged
from walrq.queues.effects import Effects, Result
from walrq.queues.lanes import Tally
from walrq.queues.queue import HEADER_PAGE, Queue
from walrq.queues.sessions import FORGOTTEN, Held, Session, Sessions
from walrq.queues.settings import Settings, changed
from walrq.queues.timers import LEASE_ENDS, TimerHeap, lease_timer_alive, wall_timer_alive


@attrs.frozen
class Bounds:
    """Bounds of the replicated state. All replicas must use the same values.

    `far_horizon_ms`: what is due later than that
    costs no memory; None: everything does. `far_tail_rows`, `far_page_rows`: see `walrq.far`.
    """

    expire_per_entry: int = limits.EXPIRE_PER_ENTRY
    in_flight_runs_max: int = limits.IN_FLIGHT_RUNS_MAX
    dedup_ids_max: int = limits.DEDUP_IDS_MAX
    sessions_max: int = limits.SESSIONS_MAX
    session_window_max: int = limits.SESSION_WINDOW_MAX
    queues_max: int = limits.QUEUES_MAX
    far_horizon_ms: int | None = None
    far_tail_rows: int = limits.FAR_TAIL_ROWS
    far_page_rows: int = limits.FAR_PAGE_ROWS


DEFAULT_BOUNDS: Final = Bounds()
# What no count of messages or bytes reaches.
UNBOUNDED: Final = 1 << 62


class Window:
    """How much the hot window holds, in all queues together: agreed in the log. None = no bound.

    Attributes:
        messages, bytes: in all.
        pushed_messages, pushed_bytes: as far as pushes fill it: what is left is for queues that run dry meanwhile.
    """

    __slots__ = ("bytes", "messages", "pushed_bytes", "pushed_messages")

    def __init__(self, messages: int | None = None, size: int | None = None) -> None:
        self.messages = messages
        self.bytes = size
        self.pushed_messages = UNBOUNDED if messages is None else messages - messages // 4
        self.pushed_bytes = UNBOUNDED if size is None else size - size // 4

    def fields(self) -> list[int | None]:
        """As plain values."""
        return [self.messages, self.bytes]


class Machine:
    """See the module.

    Attributes:
        now, wall: both clocks of the entry being applied (or the last one).
        index, ordinal: address of the command being applied.
        queues, by_uid: all queues, by name and by uid.
        sessions: the table of exactly-once requests.
        parked: uids of queues that hold parked messages.
        dedup_ids: how many deduplication ids are remembered, expired ones included.
        live_blocks: live batches per block of 64 log indexes; an absent block holds none.
        book: the tokens that open the cluster.
        far: what waits beyond the horizon, with counts of blocks of its own.
        secret, cluster: from the bootstrap command.
        version, version_max: of the state machine: agreed on in the log, and the newest one that this node can be.
    """

    def __init__(self, bounds: Bounds = DEFAULT_BOUNDS, version_max: int = commands.VERSION_MAX) -> None:
        self.bounds = bounds
        self.version = 1
        self.version_max = version_max
        self.window = Window()
        self.now = 0
        self.wall = 0
        self.index = 0
        self.ordinal = 0
        self.cluster = ""
        self.secret = b""
        self.queues: dict[str, Queue] = {}
        self.by_uid: dict[int, Queue] = {}
        self.incarnations = [0] * limits.SHARDS
        self.parked: set[int] = set()
        self.dedup_ids = 0
        self.live_blocks: dict[int, int] = {}
        self.tally = Tally()
        # Messages pushed, leased and acknowledged in queues that are deleted by now. For the eye only, as the counters
        # of the queues: not in the image.
        self.retired = (0, 0, 0)
        self.book = Book()
        self.far = Far(bounds.far_tail_rows, bounds.far_page_rows)
        self.lease_timers = TimerHeap(lease_timer_alive)
        self.wall_timers = TimerHeap(wall_timer_alive)
        self.effects = Effects()
        # Who follows what is decided is shown every entry with its results; what no command of the entry tells is noted
        # for him: (what, queue, lease, how many).
        self.observe: Callable[[int, Stamp, Sequence[Tagged], Sequence[Result]], None] | None = None
        self.notes: list[tuple[str, str, Lease | None, int]] | None = None
        # Queues that have something cold and room for it, and sealed stretches whose bytes are in memory. For the node,
        # no part of the state.
        self.thirst: dict[int, None] = {}
        self.cold_unsaved: dict[tuple[int, int, int], None] = {}
        # (uid, lane) -> when the first of its cold messages may expire; the earliest of these times behind `wall`, 0 =
        # not known at the moment. They follow from the stretches.
        self.cold_ends: dict[tuple[int, int], int] = {}
        self._cold_next: int | None = None
        # Pages removed or changed since the last image are known per queue and per bucket; `image.py` sets the hooks
        # to copy a page before it changes while an image is being written.
        self.removed_uids: set[int] = set()
        self.before_queue_page: Callable[[Queue, int], None] | None = None
        self.before_session_page: Callable[[int], None] | None = None
        self.sessions = Sessions(bounds.session_window_max, bounds.sessions_max, self._touch_session_page)

    # --- pages ----------------------------------------------------------------------------------------------
    def _touch_queue_page(self, queue: Queue, page: int) -> None:
        if self.before_queue_page is not None:
            self.before_queue_page(queue, page)
        queue.dirty.add(page)

    def _touch_session_page(self, bucket: int) -> None:
        if self.before_session_page is not None:
            self.before_session_page(bucket)
        self.sessions.dirty.add(bucket)

    # --- queues ---------------------------------------------------------------------------------------------
    def new_queue(self, name: str, uid: int, settings: Settings) -> Queue:
        """A queue object wired to this machine, registered."""
        queue = Queue(
            name,
            uid,
            settings,
            self.lease_timers,
            self.wall_timers,
            self.live_blocks,
            self.tally,
            self._touch_queue_page,
            self.thirst,
        )
        self.queues[name] = queue
        self.by_uid[uid] = queue
        return queue

    def create(self, name: str) -> Queue:
        """A new queue with default settings.

        Raises:
            Overloaded: no room for another queue.
        """
        if len(self.queues) >= self.bounds.queues_max:
            raise Overloaded(
                f"there are {len(self.queues)} queues already, allowed are {self.bounds.queues_max}",
                limit="queues_max",
            )
        shard = shard_of(name)
        incarnation = self.incarnations[shard] + 1
        if incarnation > INCARNATION_MAX:
            raise Overloaded(f"shard {shard} has used up its {INCARNATION_MAX} incarnations", limit="incarnations")
        self.incarnations[shard] = incarnation
        queue = self.new_queue(name, make_uid(shard, incarnation), Settings())
        queue.mark(HEADER_PAGE)
        return queue

    def require(self, name: str) -> Queue:
        """The queue of that name.

        Raises:
            QueueNotFound: with the nearest name.
        """
        queue = self.queues.get(name)
        if queue is None:
            raise not_found(name, self.queues)
        return queue

    def available(self, name: str) -> int:
        """How many messages a lease would get now: exact without groups, else at least 1 if there is any."""
        queue = self.queues.get(name)
        if queue is None or queue.settings.paused or not queue.ready:
            return 0
        number = queue.ready
        if queue.groups:
            ungrouped = sum(level.ready for level in queue.levels.values())
            number = ungrouped + sum(1 for turns in queue.rotation.values() for lane in turns if lane is not None)
        cap = queue.settings.max_in_flight
        if cap is not None:
            number = min(number, cap - queue.leased)
        return max(0, number)

    def take_effects(self) -> Effects:
        """What happened since the last call."""
        effects = self.effects
        if not effects.woken and not effects.deleted:
            return _NOTHING
        self.effects = Effects()
        return effects

    # --- entries --------------------------------------------------------------------------------------------
    @property
    def last_stamp(self) -> Stamp:
        """Stamp of the last entry applied."""
        return Stamp(self.now, self.wall)

    def apply(self, index: int, stamp: Stamp, entry: Sequence[Tagged]) -> list[Result]:
        """Apply one entry; one result per command.

        Raises:
            DataDirInvalid: it raises the version beyond what this node can be.
        """
        # inv: ClockMonotonic
        assert stamp.lease_ms >= self.now and stamp.wall_ms >= self.wall, (stamp, self.now, self.wall)
        self.now = stamp.lease_ms
        self.wall = stamp.wall_ms
        self.index = index
        self._expire()
        results: list[Result] = []
        for ordinal, tagged in enumerate(entry):
            self.ordinal = ordinal
            if tagged.session is None:
                results.append(self._execute(tagged.command))
            else:
                results.append(self._execute_once(tagged))
        self.far.seal_if_full()
        if self.observe is not None:
            self.observe(index, stamp, entry, results)
        return results

    def _execute(self, command: commands.Command) -> Result:
        try:
            return _HANDLERS[type(command)](self, command)
        except DataDirInvalid:
            # No answer of the state machine: this node cannot be one of this version.
            raise
        except WalrqError as error:
            return api.Failed(error.code, error.text, error.details)

    def _execute_once(self, tagged: Tagged) -> Result:
        begun = self.sessions.begin(tagged, self.now)
        command = tagged.command
        if not isinstance(begun, Session):
            return self._again(tagged, begun)
        if type(command) is commands.Forget:
            result = self._forget(begun, command.request)
        else:
            result = self._execute(command)
        if type(command) is commands.CloseSession:
            assert tagged.session is not None
            self.sessions.close(tagged.session)
        else:
            self.sessions.remember(begun, tagged.sequence, result)
        return result

    def _again(self, tagged: Tagged, known: Result | Held) -> Result:
        """The answer of a request that has one already.

        A number names one request for ever. What was remembered is told only to a request of the same kind: any other
        is a mistake of its client, who would take the answer for something else.
        """
        if self.notes is not None:
            self.notes.append(("again", "", None, self.ordinal))
        kind = type(known)
        if kind is not api.Failed and kind is not _ANSWERS[type(tagged.command)]:
            return api.Failed(
                Code.INVALID_ARGUMENT,
                f"sequence {tagged.sequence} belongs to another kind of request of this session",
                {"field": "sequence"},
            )
        if kind is Held:
            assert isinstance(known, Held)
            return leases.again(self, known)
        assert not isinstance(known, Held)
        return known

    def _forget(self, session: Session, request: int) -> Result:
        if request < session.lowest:
            return api.Done(0)
        known = session.results.get(request)
        if isinstance(known, Held):
            for uid, number in known.leases:
                leases.release_all(self, uid, number)
        session.results[request] = FORGOTTEN
        return api.Done(1)

    # --- time -----------------------------------------------------------------------------------------------
    def _expire(self) -> None:
        """What the stamp makes due, in the documented order, at most `expire_per_entry` timers."""
        now = self.now
        wall = self.wall
        self.sessions.expire(now)
        budget = self.bounds.expire_per_entry
        while budget:
            timer = self.lease_timers.pop_due(now)
            if timer is None:
                break
            budget -= 1
            _, uid, kind, _, _, subject = timer
            queue = self.by_uid[uid]
            if kind == LEASE_ENDS:
                assert isinstance(subject, Lease)
                leases.expire(self, queue, subject)
            else:
                assert isinstance(subject, Run)
                queue.withdraw(subject)
                leases.come_back(self, queue, subject)
        while budget:
            # inv: DelayNotEarly
            timer = self.wall_timers.pop_due(wall)
            if timer is None:
                break
            _, uid, _, _, _, subject = timer
            queue = self.by_uid[uid]
            if isinstance(subject, Run):
                budget -= 1
                queue.withdraw(subject)
                leases.come_back(self, queue, subject)
            else:
                assert isinstance(subject, Batch)
                # What is leased goes when it comes back. A replica that started from an image meets such a timer
                # again, others do not: so it must not count.
                budget -= self._end_of_life(queue, subject)
        if budget and self.parked:
            death.flow(self, budget)

    def _end_of_life(self, queue: Queue, batch: Batch) -> bool:
        """Remove what is not leased; whether there was any."""
        ended = [run for run in queue.runs_of(batch) if run.lease is None]
        for run in ended:
            queue.withdraw(run)
            queue.finish(run)
        if not queue.parked_runs:
            self.parked.discard(queue.uid)
        if queue.ready:
            self.effects.woken.add(queue.name)
        return bool(ended)

    def next_lease_deadline(self) -> int | None:
        """When something happens on the lease clock, in its ms; the current time when parked messages can flow."""
        if self.parked and death.flowing(self):
            return self.now
        first = self.lease_timers.next()
        idle = self.sessions.next_end()
        if first is None or idle is None:
            return idle if first is None else first
        return min(first, idle)

    def next_wall_deadline(self) -> int | None:
        """When something happens on the wall clock, in its ms."""
        first = self.wall_timers.next()
        if self.cold_ends:
            if self._cold_next is None or self._cold_next <= self.wall:
                self._cold_next = min((end for end in self.cold_ends.values() if end > self.wall), default=UNBOUNDED)
            if self._cold_next < UNBOUNDED:
                return self._cold_next if first is None else min(first, self._cold_next)
        return first

    def cold_ends_at(self, uid: int, lane: int, end_ms: int) -> None:
        """The first cold message of a lane may expire then; 0: none does."""
        self._cold_next = None
        if end_ms:
            self.cold_ends[uid, lane] = end_ms
        else:
            self.cold_ends.pop((uid, lane), None)

    @property
    def cold_messages(self) -> int:
        """Messages in all queues that are beyond the hot window."""
        return sum(cold.messages for queue in self.by_uid.values() if queue.cold for cold in queue.cold.values())

    def cold_due(self) -> list[tuple[int, int]]:
        """Lanes of which something cold has expired, for a leader to sweep."""
        return [place for place, end in self.cold_ends.items() if end <= self.wall]


_NOTHING: Final = Effects()


# A suggestion is a help, not worth a stall: comparing two names takes tens of microseconds.
_SUGGESTED_CHARS_MAX: Final = 64
_SEARCHED_QUEUES_MAX: Final = 10_000
_COMPARED_NAMES_MAX: Final = 100


def not_found(name: str, queues: Sequence[str] | dict[str, Any]) -> QueueNotFound:
    """The error for an absent queue, with the nearest name that is there."""
    # A search over very many names would stall the node; the first ones of them would not be the same on a replica
    # that was loaded from an image, and the answer is remembered.
    alike: list[str] = []
    if len(name) <= _SUGGESTED_CHARS_MAX and len(queues) <= _SEARCHED_QUEUES_MAX:
        alike = [known for known in queues if abs(len(known) - len(name)) <= 2 and known[:1] == name[:1]]
    nearest = difflib.get_close_matches(name, alike, 1) if len(alike) <= _COMPARED_NAMES_MAX else []
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return QueueNotFound(f"there is no queue {name!r}{hint}", queue=name, nearest=nearest[0] if nearest else None)


# --- the small commands -------------------------------------------------------------------------------------
def _set_queue(m: Machine, command: commands.SetQueue) -> api.Done:
    queue = m.queues.get(command.queue)
    if queue is None:
        if not command.create:
            raise not_found(command.queue, m.queues)
        queue = m.create(command.queue)
    queue.mark(HEADER_PAGE)
    old = queue.settings
    new = changed(old, command.settings)
    queue.settings = new
    queue.windowed = new.max_hot_messages is not None or new.max_hot_bytes is not None
    if new.dlq != old.dlq:
        queue.dlq_seen = False
    if new.group_limit != old.group_limit:
        queue.reseat_all()
    if queue.ready:
        m.effects.woken.add(queue.name)
    return api.Done()


def _empty(m: Machine, queue: Queue) -> int:
    """Drop everything a queue holds."""
    number = queue.length + horizon.forget(m, queue) + timers.empty_far(m, queue)
    for batch in queue.batches():
        for run in queue.runs_of(batch):
            queue.withdraw(run)
            queue.finish(run)
    for key in list(queue.dedup):
        queue.mark_dedup(key)
    m.dedup_ids -= len(queue.dedup)
    queue.dedup.clear()
    m.parked.discard(queue.uid)
    return number


def _purge_queue(m: Machine, command: commands.PurgeQueue) -> api.Done:
    return api.Done(_empty(m, m.require(command.queue)))


def _delete_queue(m: Machine, command: commands.DeleteQueue) -> api.Done:
    queue = m.require(command.queue)
    number = _empty(m, queue)
    pushed, delivered, acked = m.retired
    m.retired = (pushed + queue.pushed, delivered + queue.delivered, acked + queue.acked)
    queue.mark(HEADER_PAGE)
    del m.queues[queue.name]
    del m.by_uid[queue.uid]
    m.removed_uids.add(queue.uid)
    m.effects.deleted.add(queue.name)
    m.effects.woken.discard(queue.name)
    return api.Done(number)


def _open_session(m: Machine, command: commands.OpenSession) -> api.SessionOpened | api.Failed:
    return m.sessions.open(m.index << 16 | m.ordinal, m.now, command.owner)


def _close_session(m: Machine, command: commands.CloseSession) -> api.Done:
    # With a session, `_execute_once` ends it; without one there is nothing to end.
    return api.Done()


def _keep_sessions(m: Machine, command: commands.KeepSessions) -> api.Done:
    for number in command.sessions:
        m.sessions.keep(number, m.now)
    return api.Done(len(command.sessions))


def _forget_nothing(m: Machine, command: commands.Forget) -> api.Failed:
    return api.Failed(Code.INVALID_ARGUMENT, "forget needs a session")


def _bootstrap(m: Machine, command: commands.Bootstrap) -> api.Done:
    if not m.cluster:
        m.cluster = command.cluster
        m.secret = command.secret
    return api.Done()


def _put_token(m: Machine, command: commands.PutToken) -> api.Done:
    limits_ = (command.requests_per_s, command.bytes_per_s, command.in_flight)
    m.book.put(Token(command.name, command.digest, command.grants, *limits_, m.wall))
    return api.Done(1)


def _drop_token(m: Machine, command: commands.DropToken) -> api.Done:
    return api.Done(int(m.book.drop(command.name)))


def _set_window(m: Machine, command: commands.SetWindow) -> api.Done:
    m.window = Window(command.messages, command.bytes)
    return api.Done()


def _raise_version(m: Machine, command: commands.RaiseVersion) -> api.Done:
    check_version(command.version, m.version_max)
    m.version = max(m.version, command.version)
    return api.Done()


def check_version(version: int, version_max: int) -> None:
    """Refuse a state machine that this node cannot be.

    Raises:
        DataDirInvalid: it is too new.
    """
    if version > version_max:
        raise DataDirInvalid(
            f"the cluster agreed on version {version} of the state machine, this walrq knows up to {version_max}: start"
            " a newer walrq on this data directory; nothing in it was lost",
            version=version,
            limit=version_max,
        )


_HANDLERS: Final[dict[type, Callable[[Machine, Any], Result]]] = {
    commands.Push: pushes.push,
    commands.Lease: leases.grant,
    commands.Settle: leases.settle,
    commands.Touch: leases.touch,
    commands.Undo: leases.undo,
    commands.Forget: _forget_nothing,
    commands.Cancel: pending.cancel,
    commands.Reschedule: pending.reschedule,
    commands.SetQueue: _set_queue,
    commands.PurgeQueue: _purge_queue,
    commands.DeleteQueue: _delete_queue,
    commands.Redrive: death.redrive,
    commands.PurgeDead: death.purge_dead,
    commands.Move: pushes.move,
    commands.OpenSession: _open_session,
    commands.CloseSession: _close_session,
    commands.KeepSessions: _keep_sessions,
    commands.Hydrate: horizon.hydrate,
    commands.SetWindow: _set_window,
    commands.HydrateFar: pending.hydrate_far,
    commands.SweepFar: pending.sweep_far,
    commands.LoseFar: pending.lose_far,
    commands.PutToken: _put_token,
    commands.DropToken: _drop_token,
    commands.Bootstrap: _bootstrap,
    commands.RaiseVersion: _raise_version,
}

# What each kind of command is answered with when it succeeds, as the session table keeps it.
_ANSWERS: Final[dict[type, type]] = {
    commands.Push: api.Pushed,
    commands.Lease: Held,
    commands.Settle: api.Settled,
    commands.Touch: api.Touched,
    commands.Undo: api.Done,
    commands.Forget: api.Done,
    commands.Cancel: api.Outcomes,
    commands.Reschedule: api.Outcomes,
    commands.SetQueue: api.Done,
    commands.PurgeQueue: api.Done,
    commands.DeleteQueue: api.Done,
    commands.Redrive: api.Moved,
    commands.PurgeDead: api.Done,
    commands.Move: api.Moved,
    commands.OpenSession: api.SessionOpened,
    commands.CloseSession: api.Done,
    commands.KeepSessions: api.Done,
    commands.Hydrate: api.Done,
    commands.SetWindow: api.Done,
    commands.HydrateFar: api.Done,
    commands.SweepFar: api.Done,
    commands.LoseFar: api.Done,
    commands.PutToken: api.Done,
    commands.DropToken: api.Done,
    commands.Bootstrap: api.Done,
    commands.RaiseVersion: api.Done,
}
assert _ANSWERS.keys() == _HANDLERS.keys()
