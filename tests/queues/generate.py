"""Commands at random, from small alphabets, so that they meet: three queues, four groups, few dedup ids.

One set of functions serves both drivers: Hypothesis, which shrinks, and a seeded stream, which is fast.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import attrs
from hypothesis import strategies as st

from walrq import api, ids, limits
from walrq.queues import commands as c
from walrq.queues import effects

T = TypeVar("T")
QUEUES = ("a", "b", "c")
NAMES = (*QUEUES, "a.dlq", "b.dlq")
GROUPS = ("g", "h", "i", "j")
MEMORY = 24


class Draw(Protocol):
    """Where choices come from."""

    def integer(self, low: int, high: int) -> int: ...

    def pick(self, options: Sequence[T]) -> T: ...

    def chance(self, percent: int) -> bool: ...


class Dice:
    """A seeded random stream."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def integer(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def pick(self, options: Sequence[T]) -> T:
        return options[self.rng.randrange(len(options))]

    def chance(self, percent: int) -> bool:
        return self.rng.randrange(100) < percent


class Drawn:
    """Hypothesis: False, the first option and the lowest number are the simple ones."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data

    def integer(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))

    def pick(self, options: Sequence[T]) -> T:
        return self.data.draw(st.sampled_from(options))

    def chance(self, percent: int) -> bool:
        return self.data.draw(st.integers(0, 99)) >= 100 - percent


@attrs.define
class Known:
    """What the client side remembers, to use it again rightly and wrongly.

    `receipts`: (queue, uid, lease, count); `sent`: tagged requests by session.
    """

    receipts: list[tuple[str, int, int, int]] = attrs.field(factory=list)
    ids: list[tuple[str, int]] = attrs.field(factory=list)
    sessions: list[int] = attrs.field(factory=list)
    next_sequence: dict[int, int] = attrs.field(factory=dict)
    sent: dict[int, list[c.Tagged]] = attrs.field(factory=dict)
    stamp: c.Stamp = attrs.field(factory=lambda: c.Stamp(0, 0))

    def learn(self, tagged: c.Tagged, result: effects.Result) -> None:
        """Remember what an answer told."""
        if isinstance(result, effects.Granted):
            for run in result.runs:
                if run.lease:
                    self.receipts.append((run.queue, run.uid, run.lease, run.count))
                if run.task:
                    self.receipts.append((run.queue, ids.TASKS_UID, run.task, run.count))
        elif isinstance(result, api.Pushed) and isinstance(tagged.command, c.Push):
            self.ids += [(tagged.command.queue, result.first_id + k) for k in range(result.count)]
        elif isinstance(result, api.SessionOpened):
            self.sessions.append(result.session)
        del self.receipts[:-MEMORY], self.ids[:-MEMORY], self.sessions[:-3]


def columns(draw: Draw) -> api.Columns:
    """One to six messages, sometimes with groups, sometimes with dedup ids."""
    count = draw.integer(1, 6)
    payloads = [b"x" * draw.integer(0, 3) for _ in range(count)]
    ends = [sum(map(len, payloads[: k + 1])) for k in range(count)]
    groups = tuple(draw.pick((None, *GROUPS)) for _ in range(count)) if draw.chance(40) else None
    if groups is not None and draw.chance(40):
        groups = (groups[0],) * count
    dedup = tuple(draw.pick((None, "d", "e", "f")) for _ in range(count)) if draw.chance(15) else None
    return api.Columns(b"".join(payloads), struct.pack(f"<{count}I", *ends), groups=groups, dedup=dedup)


def push(draw: Draw, known: Known) -> c.Command:
    """A batch, now and then delayed, mortal, or with its own limit of attempts."""
    delay_ms = deliver_at_ms = None
    if draw.chance(20):
        delay_ms = draw.pick((0, 1, 20, 80, limits.DELAY_MS_MAX, limits.DELAY_MS_MAX + 1))
    elif draw.chance(10):
        deliver_at_ms = max(0, known.stamp.wall_ms + draw.integer(-20, 120))
    return c.Push(
        queue=draw.pick(QUEUES),
        columns=columns(draw),
        priority=draw.pick((0, 0, 0, 1, 2)),
        delay_ms=delay_ms,
        deliver_at_ms=deliver_at_ms,
        ttl_ms=draw.integer(1, 200) if draw.chance(8) else None,
        max_attempts=draw.integer(1, 2) if draw.chance(10) else None,
        counted=draw.chance(25),
    )


def lease(draw: Draw, known: Known) -> c.Command:
    """A poll of one queue, sometimes of several; sometimes numbered, or passing messages on."""
    queues = tuple(draw.pick(NAMES) for _ in range(1 if draw.chance(75) else 3))
    numbered = draw.chance(25)
    into = None
    if not numbered and draw.chance(8):
        # Into its own queue one at a time: which message is next depends on where the one before went.
        into = draw.pick(NAMES)
        if into in queues:
            return c.Lease(queues, 1, None, known.stamp.lease_ms, into=into)
    return c.Lease(
        queues=queues,
        max_messages=draw.pick((1, 2, 3, 5, 10)),
        visibility_ms=None if draw.chance(10) else draw.pick((1, 10, 30, 100, 1_000)),
        arrived_ms=max(0, known.stamp.lease_ms - draw.integer(-1, 20)),
        worker=draw.pick((None, "w1", "w2")),
        numbered=numbered,
        into=into,
    )


def target(draw: Draw, known: Known) -> tuple[str, c.Target]:
    """A receipt: mostly one that was given, whole or in part; sometimes stale, wrong or invented."""
    if not known.receipts or draw.chance(4):
        uid = ids.TASKS_UID if draw.chance(50) else ids.make_uid(ids.shard_of("a"), draw.integer(0, 3))
        return draw.pick(QUEUES), c.Target(uid, draw.integer(0, 40), None)
    recent = known.receipts[-6:] if draw.chance(80) else known.receipts
    queue, uid, number, count = draw.pick(recent)
    if draw.chance(3):
        queue = draw.pick(NAMES)
    ranges: tuple[api.Range, ...] | None = None
    if draw.chance(45):
        first = draw.integer(0, count - 1)
        last = draw.integer(first, count - 1)
        ranges = ((first, last),)
        if draw.chance(30) and last + 1 < count:
            second = draw.integer(last + 1, count - 1)
            ranges = (*ranges, (second, draw.integer(second, count - 1)))
        if draw.chance(3):
            ranges = draw.pick((((last, last + 5),), ((last + 1, first),), ((0, count),), ()))
    return queue, c.Target(uid, number, ranges)


def targets(draw: Draw, known: Known) -> tuple[str, tuple[c.Target, ...]]:
    """One to three items for one queue."""
    queue, first = target(draw, known)
    more = [target(draw, known)[1] for _ in range(2 if draw.chance(20) else 0)]
    return queue, (first, *more)


def settle(draw: Draw, known: Known) -> c.Command:
    """Any of the four ways to give back."""
    queue, named = targets(draw, known)
    kind = draw.pick(tuple(api.SettleKind))
    fails = kind is api.SettleKind.FAIL
    return c.Settle(
        queue=queue,
        kind=kind,
        targets=named,
        delay_ms=draw.pick((0, 0, 5, 40)) if fails and draw.chance(75) else None,
        error_type=draw.pick((None, "E", "F")) if kind >= api.SettleKind.FAIL else None,
        error_text=draw.pick((None, "boom", "bang")) if kind >= api.SettleKind.FAIL else None,
    )


def touch(draw: Draw, known: Known) -> c.Command:
    """Longer or (no effect) shorter."""
    queue, named = targets(draw, known)
    return c.Touch(queue, named, draw.pick((1, 20, 100, 500)))


def undo(draw: Draw, known: Known) -> c.Command:
    """Leases back as if they had never been."""
    return c.Undo(tuple(c.Target(one.uid, one.lease) for one in targets(draw, known)[1]))


def identifier(draw: Draw, known: Known) -> tuple[str, int]:
    """A message id: mostly known, sometimes of another queue or not issued yet."""
    if not known.ids or draw.chance(5):
        uid = ids.make_uid(ids.shard_of("a"), draw.integer(0, 2))
        return "a", ids.message_id(known.stamp.wall_ms, uid, draw.integer(10_000, 10_010))
    queue, found = draw.pick(known.ids)
    return (draw.pick(NAMES) if draw.chance(15) else queue), found


def cancel(draw: Draw, known: Known) -> c.Command:
    """One to three ids."""
    queue, first = identifier(draw, known)
    return c.Cancel(queue, (first, *(identifier(draw, known)[1] for _ in range(draw.integer(0, 2)))))


def reschedule(draw: Draw, known: Known) -> c.Command:
    """To the past, soon, or beyond the limit."""
    queue, found = identifier(draw, known)
    ahead = draw.pick((30, 100, 0, -10, limits.DELAY_MS_MAX, limits.DELAY_MS_MAX + 1))
    return c.Reschedule(queue, found, max(0, known.stamp.wall_ms + ahead))


SETTINGS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("visibility_ms", (10, 100)),
    ("max_deliveries", (3, 1, 2)),
    ("dlq", (None, "none", "c", "b")),
    ("backoff_ms", (5, 0, 1_000)),
    ("backoff_max_ms", (10, 0, 60_000)),
    ("delay_ms", (0, 0, 15)),
    ("retention_ms", (None, None, 150)),
    ("max_length", (None, 4, 10)),
    ("max_bytes", (None, 6)),
    ("overflow", ("reject", "reject", "drop_oldest")),
    ("dedup_window_ms", (50, 300_000)),
    ("group_limit", (1, 2, 3)),
    ("max_in_flight", (None, 1, 3)),
    ("paused", (False, False, True)),
)


def set_queue(draw: Draw, known: Known) -> c.Command:
    """One or two settings."""
    queue = draw.pick(NAMES)
    changes: dict[str, Any] = {}
    for _ in range(draw.integer(0, 2)):
        name, choices = draw.pick(SETTINGS)
        chosen = draw.pick(choices)
        if not (name == "dlq" and chosen == queue):
            changes[name] = chosen
    return c.SetQueue(queue, changes, create=draw.chance(80))


def calm(draw: Draw, known: Known) -> c.Command:
    """Undo what would leave a queue silent for the rest of the run."""
    changes = {"paused": False, "max_length": None, "max_bytes": None, "max_in_flight": None}
    return c.SetQueue(draw.pick(NAMES), changes, create=True)


def purge_queue(draw: Draw, known: Known) -> c.Command:
    return c.PurgeQueue(draw.pick(NAMES))


def delete_queue(draw: Draw, known: Known) -> c.Command:
    return c.DeleteQueue(draw.pick(NAMES))


def where(draw: Draw, known: Known) -> api.Filter | None:
    """None, or some of the four parts."""
    if draw.chance(60):
        return None
    return api.Filter(
        reason=draw.pick(("failed", "expired", "rejected")) if draw.chance(40) else None,
        error_type=draw.pick(("E", "F")) if draw.chance(30) else None,
        error_contains=draw.pick(("oo", "b")) if draw.chance(30) else None,
        ids=tuple(found for _, found in known.ids[-8:]) if draw.chance(20) else None,
    )


def redrive(draw: Draw, known: Known) -> c.Command:
    """Back, or elsewhere."""
    elsewhere = draw.pick(NAMES) if draw.chance(20) else None
    return c.Redrive(draw.pick(QUEUES), draw.pick((1, 2, 100)), elsewhere, where(draw, known))


def purge_dead(draw: Draw, known: Known) -> c.Command:
    return c.PurgeDead(draw.pick(QUEUES), where(draw, known))


def move(draw: Draw, known: Known) -> c.Command:
    """From one queue behind another."""
    source = draw.pick(NAMES)
    others = [name for name in NAMES if name != source]
    return c.Move(source, draw.pick(others), draw.pick((1, 2, 100)))


def open_session(draw: Draw, known: Known) -> c.Command:
    return c.OpenSession()


def keep_sessions(draw: Draw, known: Known) -> c.Command:
    return c.KeepSessions((*known.sessions, 12345))


Maker = Callable[[Draw, Known], c.Command]
WEIGHTED: tuple[tuple[int, Maker], ...] = (
    (26, push),
    (26, lease),
    (26, settle),
    (6, touch),
    (2, undo),
    (4, cancel),
    (4, reschedule),
    (4, set_queue),
    (2, calm),
    (1, purge_queue),
    (1, delete_queue),
    (4, redrive),
    (1, purge_dead),
    (3, move),
    (2, open_session),
    (1, keep_sessions),
)
MAKERS: tuple[Maker, ...] = tuple(maker for weight, maker in WEIGHTED for _ in range(weight))


def tag(draw: Draw, known: Known, command: c.Command) -> c.Tagged:
    """With a session: mostly none, else the next number; the session itself may be over."""
    if not known.sessions or isinstance(command, c.OpenSession | c.KeepSessions) or draw.chance(60):
        return c.Tagged(command)
    session = draw.pick(known.sessions)
    sequence = known.next_sequence.get(session, 1)
    known.next_sequence[session] = sequence + 1
    if draw.chance(6):
        command = c.Forget(draw.integer(max(0, sequence - 4), sequence + 2))
    elif draw.chance(1):
        command = c.CloseSession()
    lowest = max(0, sequence - draw.integer(0, 6))
    tagged = c.Tagged(command, session, sequence, lowest)
    known.sent.setdefault(session, []).append(tagged)
    del known.sent[session][:-8]
    return tagged


def again(draw: Draw, known: Known) -> c.Tagged | None:
    """A request that was sent before, word for word, or None when there is none."""
    sent = [tagged for session in known.sessions for tagged in known.sent.get(session, [])]
    polls = [tagged for tagged in sent if isinstance(tagged.command, c.Lease)]
    if polls and draw.chance(50):
        # A poll's answer depends on what became of its leases: the retry worth most.
        return draw.pick(polls)
    return draw.pick(sent) if sent else None


def step(draw: Draw) -> tuple[int, int]:
    """How far both clocks go: mostly a little, seldom far; they differ a little."""
    if draw.chance(2):
        return draw.pick(((3_600_000, 3_600_000), (3_599_990, 3_599_990), (120_000, 119_000)))
    lease_ms = draw.integer(0, 50) if draw.chance(60) else 0
    return lease_ms, (max(0, lease_ms + draw.integer(-5, 5)) if lease_ms else 0)


def tagged_command(draw: Draw, known: Known) -> c.Tagged:
    """Any command, or a retry."""
    if draw.chance(8) and (retry := again(draw, known)) is not None:
        return retry
    return tag(draw, known, draw.pick(MAKERS)(draw, known))
