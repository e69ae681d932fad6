"""Machine and oracle side by side: the same entries go to both, and everything visible is compared.

Each entry also goes through its bytes, so that what the log carries is what is applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.queues import generate
from tests.queues.invariants import Ledger, dead_exactly_once, promise
from walrq import api
from walrq.errors import Code
from walrq.queues import commands as c
from walrq.queues import effects, image, reads
from walrq.queues.machine import Bounds, Machine
from walrq.testing import model, model_queue
from walrq.testing.model import Model

STATES = (api.State.READY, api.State.DELAYED, api.State.LEASED, api.State.PARKED)
MODEL_STATES = {
    api.State.READY: (model_queue.READY,),
    api.State.DELAYED: (model_queue.DELAYED, model_queue.BACKOFF),
    api.State.LEASED: (model_queue.LEASED,),
    api.State.PARKED: (model_queue.PARKED,),
}
DAY_MS = 24 * 3600 * 1000
START = c.Stamp(1_000_000, 1_700_000_000_000)


class Different(AssertionError):
    """Machine and oracle disagree."""


def wordless(result: model.Result | effects.Result) -> Any:
    """A failure as its code and the bound it names, anything else as it is."""
    if not isinstance(result, api.Failed):
        return result
    limit = result.details.get("limit") if result.code == Code.OVERLOADED else None
    return api.Failed(int(result.code), "", {"limit": limit})


def normal(result: effects.Result) -> Any:
    """A machine's answer as the oracle words it: a lease message by message, a failure without its prose."""
    if not isinstance(result, effects.Granted):
        return wordless(result)
    lent = [
        model.Lent(
            queue=run.queue,
            uid=run.uid,
            lease=run.lease,
            offset=offset if run.lease else 0,
            body=(run.index, run.ordinal, run.first + offset),
            id=run.first_id + offset,
            delivery=run.delivery,
            attempts=run.attempts,
            fence=run.fence,
            priority=run.priority,
            pushed_ms=run.pushed_ms,
            group=run.group,
            task=run.task,
        )
        for run in result.runs
        for offset in range(run.count)
    ]
    ended = tuple((target.uid, target.lease) for target in result.ended)
    return model.Granted(tuple(lent), result.parked_ms, result.visibility_ms, ended)


def peek_all(machine: Machine, queue: str, state: api.State) -> list[effects.Seen]:
    """Every message of one state, page by page."""
    found: list[effects.Seen] = []
    after = 0
    while True:
        page, after = reads.peek(machine, api.Peek(queue, state, limit=7, after=after))
        found += page
        if not after:
            return found


def as_seen(message: model_queue.Message, state: api.State, stamp: c.Stamp) -> effects.Seen:
    """What peek must show of the oracle's message."""
    due_ms = 0
    if message.state == model_queue.DELAYED:
        due_ms = message.due_ms
    elif message.state == model_queue.BACKOFF:
        due_ms = stamp.wall_ms + message.return_ms - stamp.lease_ms
    return effects.Seen(
        *message.body,
        api.Peeked(
            id=message.id,
            state=state,
            sequence=message.sequence,
            priority=message.priority,
            delivery=message.delivery,
            attempts=message.attempts,
            pushed_ms=message.pushed_ms,
            due_ms=due_ms,
            group=message.group,
            payload=None,
            deadline_in_ms=max(0, message.deadline_ms - stamp.lease_ms) if state is api.State.LEASED else 0,
            reason=message.reason,
            origin=message.origin,
            died_ms=message.died_ms,
            history=message.history if message.reason is None else message.story,
        ),
    )


class Alone:
    """The machine with the ledger only, for bounds that the oracle does not know."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.machine = Machine(bounds)
        self.machine.version = c.VERSION_MAX
        self.ledger = Ledger()
        self.known = generate.Known()
        self.stamp = START
        self.index = 0

    def advance(self, lease_ms: int, wall_ms: int) -> None:
        """Let both clocks go on; the next entry carries the new stamp."""
        self.stamp = c.Stamp(self.stamp.lease_ms + lease_ms, self.stamp.wall_ms + wall_ms)
        self.known.stamp = self.stamp

    def entry(self, entry: Sequence[c.Tagged]) -> list[effects.Result]:
        """Apply one entry and check the promises.

        Raises:
            invariants.Broken: one does not hold.
        """
        self.index += 1
        results = self.machine.apply(self.index, self.stamp, entry)
        self.ledger.observe(self.index, self.stamp, entry, results)
        seen = {
            name: {state: [one.peeked for one in peek_all(self.machine, name, state)] for state in STATES}
            for name in self.machine.queues
        }
        self.ledger.conservation([m.id for states in seen.values() for found in states.values() for m in found])
        dead_exactly_once(seen, self.stamp.wall_ms)
        for tagged, result in zip(entry, results, strict=True):
            self.known.learn(tagged, result)
        return results

    def restart(self) -> None:
        """Go on with a machine loaded from the pages."""
        self.machine = image.load(list(image.full_pages(self.machine).items()), self.bounds)

    def drain(self) -> None:
        """Let empty entries work off what is due, as the reaper does, then lease and ack everything there is.

        Raises:
            invariants.Broken: something is due and never comes, or cannot be leased.
        """
        free = {"paused": False, "max_in_flight": None, "backoff_ms": 0, "dlq": None}
        names = list(self.machine.queues)
        self.entry([c.Tagged(c.SetQueue(name, free, create=False)) for name in names])
        # Parked messages flow on once their dead-letter queue is there.
        self.entry([c.Tagged(c.SetQueue(f"{name}.dlq", {})) for name in names])
        self.advance(60 * DAY_MS, 60 * DAY_MS)
        for _ in range(10_000):
            self.entry([])
            lease_ms, wall_ms = self.machine.next_lease_deadline(), self.machine.next_wall_deadline()
            due = (lease_ms is not None and lease_ms <= self.stamp.lease_ms) or (
                wall_ms is not None and wall_ms <= self.stamp.wall_ms
            )
            if not due:
                break
        promise("EventuallySwept", not due, "due work is left after ten thousand entries", lease_ms, wall_ms)
        for name in list(self.machine.queues):
            while self.machine.available(name):
                (granted,) = self.entry([c.Tagged(c.Lease((name,), 100, 1_000, self.stamp.lease_ms))])
                assert isinstance(granted, effects.Granted)
                promise("EventuallyDelivered", bool(granted.runs), name, "says it has work and gives none")
                targets = tuple(c.Target(run.uid, run.lease) for run in granted.runs)
                self.entry([c.Tagged(c.Settle(name, api.SettleKind.ACK, targets))])
            left = reads.show(self.machine, name)
            promise("EventuallyDelivered", not left.ready + left.delayed + left.leased + left.parked, left)


class Pair:
    """Both state machines, the ledger, and what a client remembers.

    `story` holds every entry so far, for replay and for the report of a failure.
    """

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or Bounds()
        self.machine = Machine(self.bounds)
        self.machine.version = c.VERSION_MAX
        self.model = Model(self.bounds.session_window_max)
        self.ledger = Ledger()
        self.known = generate.Known()
        self.stamp = START
        self.index = 0
        self.story: list[tuple[int, c.Stamp, list[c.Tagged]]] = []
        self.imager = image.Imager(self.machine)
        # What a snapshot on disk would hold, and what it must hold once the image being taken is complete.
        self.stored: dict[bytes, bytes] = {}
        self.frozen: dict[bytes, bytes] = {}

    def advance(self, lease_ms: int, wall_ms: int) -> None:
        """Let both clocks go on; the next entry carries the new stamp."""
        self.stamp = c.Stamp(self.stamp.lease_ms + lease_ms, self.stamp.wall_ms + wall_ms)
        self.known.stamp = self.stamp

    def entry(self, entry: Sequence[c.Tagged], *, look: bool = True) -> list[effects.Result]:
        """Apply one entry to both and compare the answers, and with `look` all that can be seen.

        Raises:
            Different: they disagree; the text says where.
            invariants.Broken: a promise does not hold.
        """
        self.index += 1
        body = c.encode_entry(self.stamp, entry)
        stamp, decoded = c.decode_entry(body)
        if stamp != self.stamp or decoded != list(entry):
            raise Different(f"the bytes of an entry came back as {decoded}, not {entry}")
        self.story.append((self.index, self.stamp, list(entry)))
        speaking = {name for name in self.machine.queues if self.machine.available(name)}
        results = self.machine.apply(self.index, stamp, decoded)
        runs = {
            ordinal: [run.count for run in result.runs]
            for ordinal, result in enumerate(results)
            if isinstance(result, effects.Granted)
        }
        expected = self.model.apply(self.index, self.stamp, entry, runs)
        for tagged, got, want in zip(entry, results, expected, strict=True):
            if normal(got) != wordless(want):
                raise Different(f"{tagged}\n machine: {normal(got)}\n oracle:  {wordless(want)}")
        self.ledger.observe(self.index, self.stamp, entry, results)
        self._wakeups(speaking)
        if look:
            seen = self.compare()
            everywhere = [m.id for states in seen.values() for messages in states.values() for m in messages]
            self.ledger.conservation(everywhere)
            dead_exactly_once(seen, self.stamp.wall_ms)
        for tagged, result in zip(entry, results, strict=True):
            self.known.learn(tagged, result)
        return results

    def peek_all(self, queue: str, state: api.State) -> list[effects.Seen]:
        """Every message of one state."""
        return peek_all(self.machine, queue, state)

    def notice(self, seen: effects.Effects) -> None:
        """For a pair that plays more of the node's part."""

    # --- images -------------------------------------------------------------------------------------------
    def freeze(self) -> None:
        """Begin an image, unless one is being taken."""
        if not self.imager.active:
            self.frozen = image.full_pages(self.machine)
            self.imager.freeze()

    def image_step(self, pages: int) -> None:
        """Go on with the image; when it is complete, what is stored must be the state at the freeze."""
        if self.imager.active:
            more = self.imager.step(pages)
            self._store()
            if not more:
                self._equal("image", self.stored, self.frozen)

    def abandon_image(self) -> None:
        """The image was not kept (a full disk): the next one must hold everything all the same."""
        self._store()
        self.imager.start_over()

    def _store(self) -> None:
        for key, body in self.imager.take():
            if body is None:
                # A page that was never stored may be named as gone.
                self.stored.pop(key, None)
            else:
                self.stored[key] = body

    def restart(self) -> None:
        """Go on with a machine loaded from the pages; they must be the same pages again."""
        pages = image.full_pages(self.machine)
        before = (self.machine.next_lease_deadline(), self.machine.next_wall_deadline())
        self.machine = image.load(list(pages.items()), self.bounds)
        self._equal("pages after loading", image.full_pages(self.machine), pages)
        after = (self.machine.next_lease_deadline(), self.machine.next_wall_deadline())
        self._equal("deadlines after loading", after, before)
        self.imager = image.Imager(self.machine, pages)
        self.stored = dict(pages)
        self.compare()

    # --- comparison ---------------------------------------------------------------------------------------
    def compare(self) -> dict[str, dict[api.State, list[api.Peeked]]]:
        """Compare queues, settings, counts and every message; returns what was seen."""
        self._equal("queues", sorted(self.machine.queues), sorted(self.model.queues))
        everything: dict[str, dict[api.State, list[api.Peeked]]] = {}
        for name, queue in self.model.queues.items():
            states: dict[api.State, list[api.Peeked]] = {}
            for state in STATES:
                messages = self.model.seen(name, *MODEL_STATES[state])
                want = [as_seen(m, state, self.stamp) for m in messages]
                got = self.peek_all(name, state)
                self._equal(f"{name} {state.name}", self._sorted(got), self._sorted(want))
                states[state] = [seen.peeked for seen in got]
            everything[name] = states
            shown = reads.show(self.machine, name)
            self._equal(f"{name} uid", shown.uid, queue.uid)
            settings = {key: shown.settings[key] for key in queue.settings}
            self._equal(f"{name} settings", settings, queue.settings)
            counts = [shown.ready, shown.delayed, shown.leased, shown.parked]
            self._equal(f"{name} counts", counts, [len(states[state]) for state in STATES])
            self._equal(f"{name} bytes", shown.bytes, queue.lengths()[1])
            self._equal(f"{name} leasable", self.machine.available(name) > 0, self.model.leasable(name))
        return everything

    def _sorted(self, seen: list[effects.Seen]) -> list[effects.Seen]:
        return sorted(seen, key=lambda one: one.peeked.sequence)

    def _equal(self, what: str, got: Any, want: Any) -> None:
        if got != want:
            raise Different(f"{what}\n machine: {got}\n oracle:  {want}")

    def _wakeups(self, speaking: set[str]) -> None:
        """NoLostWakeup: a queue that got something leasable is named, else a parked poll would sleep on."""
        seen = self.machine.take_effects()
        self.notice(seen)
        woken = seen.woken
        for name in self.machine.queues:
            if self.machine.available(name):
                promise("NoLostWakeup", name in woken or name in speaking, name, woken)
