"""The oracle: what the queue state machine must answer, written to be obviously right and nothing else.

One object per message, linear scans, sorting. No run, batch or page exists here. It takes the machine's
commands and gives the same answers, except that a lease is answered message by message (`Granted`, `Lent`).
How the leased messages are cut into runs, a lease number each, is the machine's choice as long as every run
is legal: the oracle is told the lengths and refuses illegal ones.

Never: imports the machine, is fast, bounds anything. Tests compare the two after every step. What the rules
leave open is decided here in a sentence marked "Chosen:", so that a difference can be argued about.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from walrq import api, ids, limits
from walrq.errors import Code
from walrq.queues import commands as c
from walrq.testing.model_queue import (
    BACKOFF,
    DEFAULTS,
    DELAYED,
    LEASED,
    PARKED,
    READY,
    Granted,
    Lent,
    Message,
    Queue,
    continues,
    matches,
)
from walrq.testing.model_tokens import Tokens

NO_DLQ: Final = "none"


Result: TypeAlias = (
    api.Pushed
    | Granted
    | api.Settled
    | api.Touched
    | api.Outcomes
    | api.Done
    | api.Moved
    | api.SessionOpened
    | api.Failed
)


@attrs.define
class Session:
    """What a client's requests were answered, from its lowest unanswered one."""

    active_ms: int
    lowest: int = 0
    results: dict[int, Result] = attrs.field(factory=dict)


class _Refused(Exception):
    """Carries the answer of a command that changes nothing."""

    def __init__(self, code: Code, text: str = "", **details: Any) -> None:
        super().__init__(text)
        self.failed = api.Failed(int(code), text, details)


class IllegalRun(Exception):
    """Messages that may not share a receipt were leased as one run."""


ANSWERS: dict[type, type] = {
    c.Push: api.Pushed,
    c.Lease: Granted,
    c.Settle: api.Settled,
    c.Touch: api.Touched,
    c.Cancel: api.Outcomes,
    c.Reschedule: api.Outcomes,
    c.Redrive: api.Moved,
    c.Move: api.Moved,
    c.OpenSession: api.SessionOpened,
    **dict.fromkeys(
        (
            c.Undo,
            c.Forget,
            c.SetQueue,
            c.PurgeQueue,
            c.DeleteQueue,
            c.PurgeDead,
            c.CloseSession,
            c.KeepSessions,
            c.PutToken,
            c.DropToken,
            c.Bootstrap,
            c.RaiseVersion,
        ),
        api.Done,
    ),
}
"""What a command is answered with, unless it is refused."""


class Model:
    """The oracle's state; `apply` and the reads have the machine's signatures.

    Args:
        session_window_max: as the machine's bound of the same name.
    """

    def __init__(self, session_window_max: int = limits.SESSION_WINDOW_MAX) -> None:
        self.queues: dict[str, Queue] = {}
        self.sessions: dict[int, Session] = {}
        self.incarnations: dict[int, int] = {}
        self.cluster = ""
        self.secret = b""
        # Numbered leases and counted delayed messages so far.
        self.tasks_given = 0
        self.delayed_taken = 0
        self.session_window_max = session_window_max
        self.tokens = Tokens()
        self.last_stamp = c.Stamp(0, 0)
        self._index = 0
        self._ordinal = 0
        self._runs: Mapping[int, Sequence[int]] = {}
        self._commands: dict[type, Callable[[Any], Result]] = {
            c.Push: self._push,
            c.Lease: self._lease,
            c.Settle: self._settle,
            c.Touch: self._touch,
            c.Undo: self._undo,
            c.Cancel: self._cancel,
            c.Reschedule: self._reschedule,
            c.SetQueue: self._set_queue,
            c.PurgeQueue: self._purge_queue,
            c.DeleteQueue: self._delete_queue,
            c.Redrive: self._redrive,
            c.PurgeDead: self._purge_dead,
            c.Move: self._move,
            c.OpenSession: self._open_session,
            c.CloseSession: lambda command: api.Done(),
            c.Forget: lambda command: api.Failed(int(Code.INVALID_ARGUMENT), "forget needs a session"),
            c.KeepSessions: self._keep_sessions,
            c.PutToken: self.tokens.put,
            c.DropToken: self.tokens.drop,
            c.Bootstrap: self._bootstrap,
            c.RaiseVersion: lambda command: api.Done(),
        }

    @property
    def _lease_ms(self) -> int:
        return self.last_stamp.lease_ms

    @property
    def _wall_ms(self) -> int:
        return self.last_stamp.wall_ms

    # --- entries --------------------------------------------------------------------------------------------
    def apply(
        self,
        index: int,
        stamp: c.Stamp,
        commands: Sequence[c.Tagged],
        runs: Mapping[int, Sequence[int]] | None = None,
    ) -> list[Result]:
        """Expire what is due at `stamp`, then answer each command in order.

        Args:
            runs: for the ordinal of a lease, the lengths of its runs in order; left out, as long as is legal.

        Raises:
            IllegalRun: messages that may not share a receipt.
        """
        assert stamp.lease_ms >= self._lease_ms and stamp.wall_ms >= self._wall_ms, "clocks never go back"
        self.last_stamp = stamp
        self._index = index
        self._runs = {} if runs is None else runs
        self._expire()
        results = []
        for ordinal, tagged in enumerate(commands):
            self._ordinal = ordinal
            results.append(self._answer(tagged))
        return results

    def _execute(self, command: c.Command) -> Result:
        try:
            return self._commands[type(command)](command)
        except _Refused as refusal:
            return refusal.failed

    # --- sessions -------------------------------------------------------------------------------------------
    def _answer(self, tagged: c.Tagged) -> Result:
        if tagged.session is None:
            return self._execute(tagged.command)
        session = self.sessions.get(tagged.session)
        if session is None:
            return api.Failed(int(Code.SESSION_ENDED), "no such session")
        session.active_ms = self._lease_ms
        session.lowest = max(session.lowest, tagged.lowest)
        session.results = {n: r for n, r in session.results.items() if n >= session.lowest}
        if tagged.sequence < session.lowest:
            return api.Failed(int(Code.OUTCOME_UNKNOWN), "answered before")
        if tagged.sequence in session.results:
            known = session.results[tagged.sequence]
            if not isinstance(known, (api.Failed, ANSWERS[type(tagged.command)])):
                return api.Failed(int(Code.INVALID_ARGUMENT), "another kind of request has this number")
            return self._again(known)
        if len(session.results) >= self.session_window_max:
            return api.Failed(int(Code.OVERLOADED), "too many", {"limit": "session_window_max"})
        if isinstance(tagged.command, c.CloseSession):
            del self.sessions[tagged.session]
            return api.Done()
        if isinstance(tagged.command, c.Forget):
            result = self._forget(session, tagged.command.request)
        else:
            result = self._execute(tagged.command)
        if isinstance(result, Granted) and result.messages and not result.messages[0].lease:
            # Payloads are not remembered, and no lease names them.
            session.results[tagged.sequence] = api.Failed(int(Code.OUTCOME_UNKNOWN), "moved on")
        elif not (isinstance(result, Granted) and not result.messages):
            session.results[tagged.sequence] = result
        return result

    def _again(self, result: Result) -> Result:
        """The first answer; of a lease only the runs still held whole."""
        if not isinstance(result, Granted):
            return result
        held: list[Lent] = []
        ended: list[tuple[int, int]] = []
        for (uid, lease), lent in itertools.groupby(result.messages, key=lambda m: (m.uid, m.lease)):
            run = list(lent)
            outstanding = self._outstanding(uid, lease)
            if len(outstanding) == len(run) and all(m.deadline_ms > self._lease_ms for m in outstanding):
                held.extend(run)
            else:
                ended.append((uid, lease))
        return Granted(tuple(held), result.parked_ms, result.visibility_ms, tuple(ended))

    def _forget(self, session: Session, request: int) -> Result:
        if request < session.lowest:
            return api.Done(0)
        known = session.results.get(request)
        if isinstance(known, Granted):
            for uid, lease in dict.fromkeys((m.uid, m.lease) for m in known.messages):
                self._release_all(uid, lease)
        session.results[request] = api.Failed(int(Code.OUTCOME_UNKNOWN), "forgotten")
        return api.Done(1)

    def _outstanding(self, uid: int, lease: int) -> list[Message]:
        """What of a lease is not yet given back, by offset."""
        return sorted(
            (
                m
                for queue in self.queues.values()
                if queue.uid == uid
                for m in queue.messages.values()
                if m.state == LEASED and m.lease == lease
            ),
            key=lambda m: m.offset,
        )

    def _release_all(self, uid: int, lease: int) -> None:
        """Give what is left of a running lease back, free."""
        if uid == ids.TASKS_UID:
            uid, lease = self._task(lease) or (uid, lease)
        for queue in self.queues.values():
            if queue.uid == uid:
                for message in self._outstanding(uid, lease):
                    if message.deadline_ms > self._lease_ms:
                        self._come_back(queue, message)
                queue.forget_lease(lease)

    def _task(self, number: int) -> tuple[int, int] | None:
        """(uid, lease number) of the leased message that has this task number."""
        for queue in self.queues.values():
            for message in queue.messages.values():
                if message.state == LEASED and message.task == number != 0:
                    return queue.uid, message.lease
        return None

    def _open_session(self, command: c.OpenSession) -> Result:
        number = self._index << 16 | self._ordinal
        self.sessions[number] = Session(active_ms=self._lease_ms)
        return api.SessionOpened(number)

    def _keep_sessions(self, command: c.KeepSessions) -> Result:
        for number in command.sessions:
            if number in self.sessions:
                self.sessions[number].active_ms = self._lease_ms
        return api.Done(len(command.sessions))

    def _bootstrap(self, command: c.Bootstrap) -> Result:
        if not self.cluster:
            self.cluster = command.cluster
            self.secret = command.secret
        return api.Done()

    # --- time -----------------------------------------------------------------------------------------------
    def _expire(self) -> None:
        """Sessions, the lease clock's timers, the wall clock's, then parked messages that may flow on."""
        for number, session in list(self.sessions.items()):
            if self._lease_ms - session.active_ms >= limits.SESSION_IDLE_MS:
                del self.sessions[number]
        everything = [(queue, m) for queue in self.queues.values() for m in queue.messages.values()]
        timers = [(m.deadline_ms, q.uid, 0, m.lease, m.offset, q, m) for q, m in everything if m.state == LEASED]
        timers += [(m.return_ms, q.uid, 1, m.order, 0, q, m) for q, m in everything if m.state == BACKOFF]
        for when, _, kind, number, _, queue, message in sorted(timers, key=lambda t: t[:5]):
            if when > self._lease_ms:
                break
            if kind == 0:
                self._attempted(queue, message, "expired")
                queue.forget_lease(number)
            else:
                self._come_back(queue, message)
        everything = [(queue, m) for queue in self.queues.values() for m in queue.messages.values()]
        walls = [(m.due_ms, q.uid, 0, m.order, q, m) for q, m in everything if m.state == DELAYED]
        walls += [(m.expire_ms, q.uid, 1, m.sequence, q, m) for q, m in everything if m.expire_ms is not None]
        for when, _, kind, _, queue, message in sorted(walls, key=lambda t: t[:4]):
            if when > self._wall_ms:
                break
            if kind == 0 and message.state == DELAYED:
                self._come_back(queue, message)
            elif kind == 1 and message.state != LEASED:
                self._remove(queue, message)
        for queue in sorted(self.queues.values(), key=lambda q: q.uid):
            target = self.queues.get(self._dlq_name(queue))
            parked = queue.those(PARKED)
            if target is not None and parked:
                queue.dlq_seen = True
                for message in parked:
                    self._transfer(queue, message, target)

    # --- how one message changes ----------------------------------------------------------------------------
    def _come_back(self, queue: Queue, message: Message, order: int | None = None) -> None:
        """To READY, at its own place or at `order`; a message past its ttl goes instead."""
        if message.expire_ms is not None and message.expire_ms <= self._wall_ms:
            self._remove(queue, message)
            return
        message.state = READY
        if order is not None:
            message.order = order
        queue.place(message.lane)

    def _remove(self, queue: Queue, message: Message) -> None:
        queue.messages.pop(message.sequence, None)
        queue.place(message.lane)

    def _attempted(
        self,
        queue: Queue,
        message: Message,
        reason: str,
        *,
        delay_ms: int | None = None,
        error_type: str | None = None,
        error_text: str | None = None,
    ) -> None:
        """A counted attempt ("expired", "failed") or a reject ended: death, or back by the rules of order."""
        attempt = api.Attempt(self._wall_ms, reason, message.worker, error_type, error_text)
        message.history = (*message.history, attempt)[-limits.ATTEMPTS_KEPT_MAX :]
        if message.expire_ms is not None and message.expire_ms <= self._wall_ms:
            self._remove(queue, message)
            return
        if reason == "rejected":
            self._die(queue, message, reason)
            return
        message.attempts += 1
        if message.attempts >= (message.max_attempts or queue.settings["max_deliveries"]):
            self._die(queue, message, reason)
        elif reason == "expired":
            self._come_back(queue, message)
        else:
            if delay_ms is None:
                doubled = queue.settings["backoff_ms"] * 2 ** (message.attempts - 1)
                delay_ms = min(doubled, queue.settings["backoff_max_ms"])
            if delay_ms > 0:
                message.state = BACKOFF
                message.return_ms = self._lease_ms + delay_ms
                queue.place(message.lane)
            elif message.group is None:
                self._come_back(queue, message, order=queue.next_sequence())
            else:
                self._come_back(queue, message)

    def _dlq_name(self, queue: Queue) -> str:
        """Where the queue's dead go; "none" names no queue."""
        name = queue.settings["dlq"]
        return f"{queue.name}.dlq" if name is None else str(name)

    def _die(self, queue: Queue, message: Message, reason: str) -> None:
        message.reason = reason
        message.origin = queue.name
        message.died_ms = self._wall_ms
        message.story = message.history
        message.kept_attempts, message.max_attempts = message.max_attempts, None
        name = self._dlq_name(queue)
        if name != NO_DLQ and (name in self.queues or not queue.dlq_seen):
            queue.dlq_seen = True
            self._transfer(queue, message, self._queue_or_new(name))
            return
        # Parking is a move too: behind everything, under a new sequence. Only its ttl goes on.
        del queue.messages[message.sequence]
        message.state = PARKED
        message.sequence = message.order = queue.next_sequence()
        queue.messages[message.sequence] = message
        queue.place(message.lane)

    def _transfer(self, source: Queue, message: Message, target: Queue, *, moved_on: bool = False) -> None:
        """Append to another queue, ready, behind everything.

        Its producer's word on life and attempts goes with a message that moves on alive. A death ends the one, and lets
        the other rest until a redrive.
        """
        source.messages.pop(message.sequence)
        source.place(message.lane)
        message.sequence = message.order = target.next_sequence()
        message.state = READY
        ends = [] if target.settings["retention_ms"] is None else [self._wall_ms + target.settings["retention_ms"]]
        if moved_on:
            if message.expire_ms is not None:
                ends.append(message.expire_ms)
        else:
            message.attempts = 0
        if message.attempts == 0:
            message.history = ()
        message.expire_ms = min(ends) if ends else None
        target.messages[message.sequence] = message
        target.place(message.lane)

    def _without_story(self, message: Message) -> None:
        """It was moved by hand: no longer a dead message of any queue."""
        message.story = ()
        message.origin = message.reason = None
        message.died_ms = 0

    # --- queues ---------------------------------------------------------------------------------------------
    def _queue_or_new(self, name: str) -> Queue:
        if name not in self.queues:
            shard = ids.shard_of(name)
            self.incarnations[shard] = self.incarnations.get(shard, 0) + 1
            uid = ids.make_uid(shard, self.incarnations[shard])
            self.queues[name] = Queue(name, uid, dict(DEFAULTS))
        return self.queues[name]

    def _existing(self, name: str) -> Queue:
        if name not in self.queues:
            raise _Refused(Code.QUEUE_NOT_FOUND, f"no queue {name!r}")
        return self.queues[name]

    def _set_queue(self, command: c.SetQueue) -> Result:
        if not command.create:
            self._existing(command.queue)
        queue = self._queue_or_new(command.queue)
        if command.settings.get("dlq", queue.settings["dlq"]) != queue.settings["dlq"]:
            # Chosen: another target starts anew, also when it is one that was used before.
            queue.dlq_seen = False
        queue.settings.update(command.settings)
        queue.place_all()
        return api.Done()

    def _purge_queue(self, command: c.PurgeQueue) -> Result:
        queue = self._existing(command.queue)
        count = len(queue.messages)
        queue.messages.clear()
        queue.lease_counts.clear()
        queue.dedup.clear()
        queue.rings.clear()
        return api.Done(count)

    def _delete_queue(self, command: c.DeleteQueue) -> Result:
        count = len(self._existing(command.queue).messages)
        del self.queues[command.queue]
        return api.Done(count)

    # --- push -----------------------------------------------------------------------------------------------
    def _push(self, command: c.Push) -> Result:
        known = self.queues.get(command.queue)
        settings = DEFAULTS if known is None else known.settings
        columns = command.columns
        due_ms = command.deliver_at_ms
        if due_ms is None:
            delay_ms = settings["delay_ms"] if command.delay_ms is None else command.delay_ms
            due_ms = self._wall_ms + delay_ms
        if due_ms - self._wall_ms > limits.DELAY_MS_MAX:
            raise _Refused(Code.DELAY_TOO_LONG, "delay beyond 30 days")

        queue = self._queue_or_new(command.queue)
        first = queue.last_sequence + 1
        count, size = columns.count, columns.size
        answers = [ids.message_id(self._wall_ms, queue.uid, first + k) for k in range(count)]
        duplicates = []
        window = queue.settings["dedup_window_ms"]
        learned: dict[str, tuple[int, int]] = {}
        for k in range(count):
            key = columns.dedup[k] if columns.dedup is not None else None
            if key is None:
                continue
            known_until, known_id = learned.get(key) or queue.dedup.get(key, (0, 0))
            if known_until > self._lease_ms:
                duplicates.append(k)
                answers[k] = known_id
            else:
                learned[key] = (self._lease_ms + window, answers[k])
        stored = [k for k in range(count) if k not in duplicates]
        shares = {k: size * (k + 1) // count - size * k // count for k in stored}
        self._make_room(queue, len(stored), sum(shares.values()))

        queue.dedup.update(learned)
        queue.last_sequence += count
        fresh_id = ids.message_id(self._wall_ms, queue.uid, first)
        ends = [end for end in (command.ttl_ms, queue.settings["retention_ms"]) if end is not None]
        for k in stored:
            sequence = first + k
            queue.messages[sequence] = Message(
                id=answers[k],
                sequence=sequence,
                order=sequence,
                body=(self._index, self._ordinal, k),
                bytes=shares[k],
                priority=command.priority,
                group=columns.groups[k] if columns.groups is not None else None,
                pushed_ms=self._wall_ms,
                max_attempts=command.max_attempts,
                expire_ms=self._wall_ms + min(ends) if ends else None,
                state=DELAYED if due_ms > self._wall_ms else READY,
                due_ms=due_ms,
            )
            queue.place(queue.messages[sequence].lane)
        number = 0
        if command.counted and command.delay_ms is not None:
            self.delayed_taken += count
            number = self.delayed_taken
        elif command.counted:
            number = len(queue.those(READY))
        if duplicates:
            return api.Pushed(fresh_id, count, tuple(answers), tuple(duplicates), number)
        return api.Pushed(fresh_id, count, None, (), number)

    def _make_room(self, queue: Queue, count: int, size: int) -> None:
        """Check the length limits for `count` more messages of `size` bytes; drop the oldest if allowed."""
        max_length, max_bytes = queue.settings["max_length"], queue.settings["max_bytes"]

        def fits(lengths: tuple[int, int]) -> bool:
            return (max_length is None or lengths[0] + count <= max_length) and (
                max_bytes is None or lengths[1] + size <= max_bytes
            )

        if count == 0:
            return
        droppable = sorted((m for m in queue.messages.values() if m.state == READY), key=lambda m: m.sequence)
        dropped: list[Message] = []
        messages, used = queue.lengths()
        while not fits((messages, used)):
            if queue.settings["overflow"] == "reject" or not droppable:
                raise _Refused(Code.QUEUE_FULL, "the queue is full")
            oldest = droppable.pop(0)
            dropped.append(oldest)
            messages, used = messages - 1, used - oldest.bytes
        for message in dropped:
            self._remove(queue, message)

    # --- lease ----------------------------------------------------------------------------------------------
    def _lease(self, command: c.Lease) -> Result:
        parked_ms = max(0, self._lease_ms - command.arrived_ms)
        for name in command.queues:
            queue = self.queues.get(name)
            if queue is None or queue.settings["paused"]:
                continue
            if command.into is not None:
                passed = self._pass_on(queue, command.into, command.max_messages)
                if passed:
                    return Granted(tuple(passed), parked_ms, 0)
                continue
            room = command.max_messages
            if queue.settings["max_in_flight"] is not None:
                room = min(room, queue.settings["max_in_flight"] - len(queue.those(LEASED)))
            visibility_ms = command.visibility_ms
            if visibility_ms is None:
                visibility_ms = queue.settings["visibility_ms"]
            lent = self._lend(queue, room, visibility_ms, command.worker, command.numbered)
            if lent:
                return Granted(tuple(lent), parked_ms, visibility_ms)
        return Granted((), parked_ms, 0)

    def _lend(
        self, queue: Queue, room: int, visibility_ms: int, worker: str | None, numbered: bool = False
    ) -> list[Lent]:
        lent: list[Lent] = []
        cuts = set(itertools.accumulate(self._runs.get(self._ordinal, ()), initial=0))
        before: Message | None = None
        while len(lent) < room and (message := queue.next_turn()) is not None:
            message.delivery += 1
            legal = before is not None and continues(before, message) and not numbered
            if self._ordinal in self._runs and not legal and len(lent) not in cuts:
                raise IllegalRun(f"{message} cannot share a receipt with {before}")
            if not legal or len(lent) in cuts:
                queue.last_lease += 1
                queue.lease_counts[queue.last_lease] = 0
            message.state = LEASED
            message.lease = queue.last_lease
            message.offset = queue.lease_counts[message.lease]
            queue.lease_counts[message.lease] += 1
            message.deadline_ms = self._lease_ms + visibility_ms
            message.worker = worker
            message.task = 0
            if numbered:
                self.tasks_given += 1
                message.task = self.tasks_given
            queue.end_turn(message.lane)
            lent.append(
                Lent(
                    queue=queue.name,
                    uid=queue.uid,
                    lease=message.lease,
                    offset=message.offset,
                    body=message.body,
                    id=message.id,
                    delivery=message.delivery,
                    attempts=message.attempts,
                    fence=(self._index, self._ordinal),
                    priority=message.priority,
                    pushed_ms=message.pushed_ms,
                    group=message.group,
                    task=message.task,
                )
            )
            before = message
        return lent

    def _pass_on(self, source: Queue, into: str, room: int) -> list[Lent]:
        """Move what would be leased behind the messages of another queue, and tell it like a lease without number."""
        taken = list(itertools.islice(self._turns_without_leasing(source), room))
        if not taken:
            return []
        self._check_room(source, self.queues.get(into), taken)
        lent = [
            Lent(
                queue=source.name,
                uid=source.uid,
                lease=0,
                offset=0,
                body=message.body,
                id=message.id,
                delivery=message.delivery,
                attempts=message.attempts,
                fence=(self._index, self._ordinal),
                priority=message.priority,
                pushed_ms=message.pushed_ms,
                group=message.group,
            )
            for message in taken
        ]
        self._move_all(source, self._queue_or_new(into), taken)
        return lent

    # --- receipts -------------------------------------------------------------------------------------------
    def _named(self, queue: Queue, target: c.Target) -> list[Message]:
        """The outstanding messages a receipt names, by offset.

        Raises:
            _Refused: RECEIPT_EXPIRED or INVALID_ARGUMENT; then nothing of the item may change.
        """
        if target.uid == ids.TASKS_UID:
            uid, lease = self._task(target.lease) or (0, 0)
            target = c.Target(uid, lease, target.ranges)
        if target.uid != queue.uid or target.lease not in queue.lease_counts:
            raise _Refused(Code.RECEIPT_EXPIRED)
        running = {m.offset: m for m in self._outstanding(queue.uid, target.lease) if m.deadline_ms > self._lease_ms}
        wanted = set(running)
        if target.ranges is not None:
            for first, last in target.ranges:
                if first > last or first < 0 or last >= queue.lease_counts[target.lease]:
                    raise _Refused(Code.INVALID_ARGUMENT)
            wanted = {offset for first, last in target.ranges for offset in range(first, last + 1)}
            if not wanted:
                raise _Refused(Code.INVALID_ARGUMENT)
        if not wanted or not wanted <= set(running):
            raise _Refused(Code.RECEIPT_EXPIRED)
        return [running[offset] for offset in sorted(wanted)]

    def _settle(self, command: c.Settle) -> Result:
        queue = self._existing(command.queue)
        codes = []
        for target in command.targets:
            try:
                named = self._named(queue, target)
            except _Refused as refusal:
                codes.append(refusal.failed.code)
                continue
            codes.append(0)
            leases = {message.lease for message in named}
            for message in named:
                self._give_back(queue, message, command)
            for lease in leases:
                queue.forget_lease(lease)
        return api.Settled(tuple(codes))

    def _give_back(self, queue: Queue, message: Message, command: c.Settle) -> None:
        match command.kind:
            case api.SettleKind.ACK:
                self._remove(queue, message)
            case api.SettleKind.RELEASE:
                self._come_back(queue, message)
            case api.SettleKind.FAIL | api.SettleKind.REJECT:
                self._attempted(
                    queue,
                    message,
                    "failed" if command.kind is api.SettleKind.FAIL else "rejected",
                    delay_ms=command.delay_ms,
                    error_type=command.error_type,
                    error_text=command.error_text,
                )

    def _touch(self, command: c.Touch) -> Result:
        queue = self._existing(command.queue)
        codes, remaining = [], []
        for target in command.targets:
            try:
                named = self._named(queue, target)
            except _Refused as refusal:
                codes.append(refusal.failed.code)
                remaining.append(0)
                continue
            for message in named:
                message.deadline_ms = max(message.deadline_ms, self._lease_ms + command.visibility_ms)
            codes.append(0)
            # Chosen: the earliest of the touched ones, so that nobody trusts a lease longer than it runs.
            remaining.append(min(m.deadline_ms - self._lease_ms for m in named))
        return api.Touched(tuple(codes), tuple(remaining))

    def _undo(self, command: c.Undo) -> Result:
        for target in command.targets:
            self._release_all(target.uid, target.lease)
        return api.Done(len(command.targets))

    # --- by id ----------------------------------------------------------------------------------------------
    def _find(self, queue: Queue, identifier: int) -> Message | api.Outcome:
        """The message with this id, or GONE or UNKNOWN."""
        for message in queue.messages.values():
            if message.id == identifier:
                return message
        _, uid, sequence = ids.id_parts(identifier)
        issued = uid == queue.uid and 1 <= sequence <= queue.last_sequence
        return api.Outcome.GONE if issued else api.Outcome.UNKNOWN

    def _cancel(self, command: c.Cancel) -> Result:
        queue = self._existing(command.queue)
        outcomes = []
        for identifier in command.ids:
            found = self._find(queue, identifier)
            if isinstance(found, Message):
                if found.state == LEASED:
                    found = api.Outcome.LEASED
                else:
                    self._remove(queue, found)
                    found = api.Outcome.DONE
            outcomes.append(found)
        return api.Outcomes(tuple(outcomes))

    def _reschedule(self, command: c.Reschedule) -> Result:
        queue = self._existing(command.queue)
        if command.deliver_at_ms - self._wall_ms > limits.DELAY_MS_MAX:
            raise _Refused(Code.DELAY_TOO_LONG, "delay beyond 30 days")
        found = self._find(queue, command.id)
        if isinstance(found, api.Outcome):
            return api.Outcomes((found,))
        if found.state == LEASED:
            return api.Outcomes((api.Outcome.LEASED,))
        if found.state == PARKED:
            # Chosen: a parked message is dead, its line has been left.
            return api.Outcomes((api.Outcome.GONE,))
        found.due_ms = command.deliver_at_ms
        if command.deliver_at_ms > self._wall_ms:
            found.state = DELAYED
            queue.place(found.lane)
        else:
            # Chosen: taken out of the line and put back; a group of only this one goes to the end.
            found.state = DELAYED
            queue.place(found.lane)
            self._come_back(queue, found)
        return api.Outcomes((api.Outcome.DONE,))

    # --- the dead, and moves --------------------------------------------------------------------------------
    def _dead(self, queue: Queue, where: api.Filter | None) -> list[tuple[Queue, Message]]:
        """The dead of a queue in order of death: in its dead-letter queue, then parked."""
        dead: list[tuple[Queue, Message]] = []
        graveyard = self.queues.get(self._dlq_name(queue))
        if graveyard is not None:
            ready = [m for m in graveyard.messages.values() if m.state == READY and m.origin == queue.name]
            dead += [(graveyard, m) for m in sorted(ready, key=lambda m: m.sequence)]
        dead += [(queue, m) for m in queue.those(PARKED)]
        return [(home, m) for home, m in dead if matches(m, where)]

    def _redrive(self, command: c.Redrive) -> Result:
        queue = self._existing(command.queue)
        target = queue if command.target is None else self._existing(command.target)
        dead = self._dead(queue, command.where)
        for home, message in dead[: command.limit]:
            self._without_story(message)
            message.max_attempts = message.kept_attempts
            self._transfer(home, message, target)
        return api.Moved(min(len(dead), command.limit), len(dead) > command.limit)

    def _purge_dead(self, command: c.PurgeDead) -> Result:
        dead = self._dead(self._existing(command.queue), command.where)
        for home, message in dead:
            self._remove(home, message)
        return api.Done(len(dead))

    def _move(self, command: c.Move) -> Result:
        source = self._existing(command.source)
        known = self.queues.get(command.target)
        turns = self._turns_without_leasing(source)
        taken = list(itertools.islice(turns, command.limit))
        self._check_room(source, known, taken)
        self._move_all(source, self._queue_or_new(command.target), taken)
        return api.Moved(len(taken), bool(source.rings) and source.next_turn() is not None)

    def _check_room(self, source: Queue, target: Queue | None, taken: Sequence[Message]) -> None:
        if target is None or target is source or not taken:
            return
        messages, used = target.lengths()
        max_length, max_bytes = target.settings["max_length"], target.settings["max_bytes"]
        size = sum(m.bytes for m in taken)
        if (max_length is not None and messages + len(taken) > max_length) or (
            max_bytes is not None and used + size > max_bytes
        ):
            raise _Refused(Code.QUEUE_FULL, "the target is full")

    def _move_all(self, source: Queue, target: Queue, taken: Sequence[Message]) -> None:
        for message in taken:
            source.end_turn(message.lane)
            self._without_story(message)
            self._transfer(source, message, target, moved_on=True)

    def _turns_without_leasing(self, queue: Queue) -> Iterator[Message]:
        """The messages polls would take one after the other, from a copy of the queue's lines and turns."""
        rings = {priority: list(ring) for priority, ring in queue.rings.items()}
        lines = {lane: queue.line(lane) for ring in rings.values() for lane in ring}
        while any(rings.values()):
            lane = rings[max(p for p, ring in rings.items() if ring)].pop(0)
            yield lines[lane].pop(0)
            if lines[lane]:
                rings.setdefault(lines[lane][0].priority, []).append(lane)

    # --- reads ----------------------------------------------------------------------------------------------
    def seen(self, name: str, *states: str) -> list[Message]:
        """The queue's messages in these states by order; nothing for a queue that is not there."""
        queue = self.queues.get(name)
        return [] if queue is None else queue.those(*states)

    def dead(self, name: str, where: api.Filter | None = None) -> list[Message]:
        """The dead of a queue, in order of death."""
        queue = self.queues.get(name)
        return [] if queue is None else [m for _, m in self._dead(queue, where)]

    def leasable(self, name: str) -> bool:
        """True when a lease on this queue would find something now."""
        queue = self.queues.get(name)
        if queue is None or queue.settings["paused"] or queue.next_turn() is None:
            return False
        bound = queue.settings["max_in_flight"]
        return bound is None or len(queue.those(LEASED)) < bound
