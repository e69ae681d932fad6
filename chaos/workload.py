"""What the clients of a soak do, through the public asynchronous client, every step recorded.

Producers push batches with priorities and delays. Workers lease, and then acknowledge, acknowledge in part,
fail, release, reject, touch, walk away from a poll, or abandon the lease (three in ten), a few of those
coming back with an ack that is too late. Half of the actors use sessions, whose retries hide most outages;
the other half do not, so that outcomes stay unknown.

All draws come from one seeded stream per actor, so that one actor's luck does not shift another's.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from typing import Any, Final

import attrs
import trio

from walrq import aio
from walrq.errors import Code, WalrqError

from . import payload
from .history import FAIL, INFO, OK, Actor, Writer, pack

QUEUES: Final = ("jobs", "mail", "slow")
DELAY_MS: Final = (200, 3_000)
PRIORITIES: Final = (0, 0, 0, 5)
FILLER_BYTES_MAX: Final = 300
POLL_WAIT_S: Final = 0.5
# Short enough that a reply is often already on its way.
WALK_AWAY_S: Final = 0.02
TIMEOUT_S: Final = 30.0
# An actor without a session gives up early: then the outcome is unknown more often.
SESSIONLESS_TIMEOUT_S: Final = 5.0
SHARES: Final = {
    "late": 0.2,  # of the abandoned: an ack after the end
    "fail": 0.05,
    "release": 0.05,
    "reject": 0.01,
    "part": 0.10,
    "touch": 0.05,
    "walk away": 0.01,
}


@attrs.frozen
class Plan:
    """What all actors share."""

    url: str
    seed: int
    batch: int
    rate: float  # messages per second of each producer
    visibility_ms: int
    abandon: float

    @classmethod
    def of(cls, arguments: argparse.Namespace, url: str, seed: int) -> Plan:
        """What a command line asks for, of nodes at `url`."""
        return cls(
            url=url,
            seed=seed,
            batch=arguments.batch,
            rate=arguments.rate / max(1, arguments.producers),
            visibility_ms=arguments.visibility_ms,
            abandon=arguments.abandon,
        )


@attrs.define
class State:
    """What the soak knows while it runs. `stop_producing` and `stop_consuming` are asked between operations."""

    writer: Writer
    stop_producing: bool = False
    stop_consuming: bool = False
    pushed: int = 0
    acked: int = 0
    unreachable: int = 0
    errors: dict[str, int] = attrs.field(factory=dict)

    def note(self, error: WalrqError) -> None:
        """Count an error by its class."""
        name = type(error).__name__
        self.errors[name] = self.errors.get(name, 0) + 1


def config(*, session: bool, worker: str) -> aio.ClientConfig:
    """How an actor's client behaves; it may be entered while the node is down."""
    return aio.ClientConfig(
        session=session,
        worker=worker,
        timeout_s=TIMEOUT_S if session else SESSIONLESS_TIMEOUT_S,
        connect_wait_s=60.0,
        retry_max_s=0.25,
    )


def outcome(error: WalrqError) -> tuple[str, dict[str, Any]]:
    """How an error is recorded: `fail` only when it proves that nothing happened."""
    return (FAIL if error.definite else INFO), {"code": int(error.code), "text": error.text[:200]}


async def produce(plan: Plan, state: State, number: int) -> None:
    """Push batches at the planned rate until told to stop."""
    rng = random.Random(f"{plan.seed} producer {number}")
    name = f"p{number}"
    actor = Actor(state.writer, name)
    value = number << 40
    next_at = trio.current_time()
    async with aio.connect(plan.url, config(session=number % 2 == 0, worker=name)) as client:
        while not state.stop_producing:
            count = rng.randint(1, plan.batch)
            values = range(value + 1, value + 1 + count)
            value += count
            queue, priority = rng.choice(QUEUES), rng.choice(PRIORITIES)
            delay_ms = rng.randint(*DELAY_MS) if rng.random() < 0.1 else None
            bodies = [payload.encode(each, rng.randint(0, FILLER_BYTES_MAX)) for each in values]
            args: dict[str, Any] = {"queue": queue, "values": pack(values), "priority": priority}
            if delay_ms is not None:
                args["delay_ms"] = delay_ms
            actor.invoke("push", args)
            try:
                delay = None if delay_ms is None else delay_ms / 1000
                ids = await client.push_batch(queue, bodies, delay, priority=priority)
            except WalrqError as error:
                state.note(error)
                actor.complete(*outcome(error))
            else:
                state.pushed += count
                actor.complete(OK, {"first": f"{ids.number(0):x}"})
            next_at = max(next_at + count / plan.rate, trio.current_time() - 1.0)
            await trio.sleep_until(next_at)


@attrs.define
class _Late:
    """An abandoned lease whose consumer will come back too late."""

    due: float
    batch: aio.AsyncBatch


class Worker:
    """One consumer; `number` also tells whether it uses a session."""

    def __init__(self, plan: Plan, state: State, number: int) -> None:
        self._plan = plan
        self._state = state
        self._number = number
        self.name = f"w{number}"
        self._actor = Actor(state.writer, self.name)
        self._rng = random.Random(f"{plan.seed} worker {number}")
        self._late: list[_Late] = []

    async def run(self) -> None:
        """Lease and give back until told to stop."""
        session = self._number % 2 == 0
        async with aio.connect(self._plan.url, config(session=session, worker=self.name)) as client:
            while not self._state.stop_consuming:
                queue = self._rng.choice(QUEUES)
                walk_away = WALK_AWAY_S * self._rng.random() if self._rng.random() < SHARES["walk away"] else None
                batches = await poll(
                    client,
                    self._actor,
                    self._state,
                    [queue],
                    most=self._plan.batch,
                    visibility_ms=self._plan.visibility_ms,
                    consumer=self.name,
                    walk_away_s=walk_away,
                )
                for batch in batches:
                    await self._treat(client, batch)
                while self._late and self._late[0].due < time.monotonic():
                    await settle(client, self._actor, self._state, "ack", self._late.pop(0).batch)

    async def _treat(self, client: aio.Client, batch: aio.AsyncBatch) -> None:
        draw = self._rng.random()
        if draw < self._plan.abandon:
            if self._rng.random() < SHARES["late"]:
                self._late.append(_Late(batch.deadline + 0.05, batch))
            return
        draw = self._rng.random()
        if draw < SHARES["touch"]:
            await touch(client, self._actor, self._state, batch, self._plan.visibility_ms)
        for kind in ("fail", "release", "reject"):
            draw -= SHARES[kind]
            if draw < 0:
                delay_ms = self._rng.choice((0, 200)) if kind == "fail" else None
                await settle(client, self._actor, self._state, kind, batch, delay_ms=delay_ms)
                return
        if draw < SHARES["part"] and batch.count > 1:
            cut = self._rng.randrange(1, batch.count)
            await settle(client, self._actor, self._state, "ack", batch, offsets=range(cut))
            await settle(client, self._actor, self._state, "ack", batch, offsets=range(cut, batch.count))
            return
        await settle(client, self._actor, self._state, "ack", batch)


async def poll(
    client: aio.Client,
    actor: Actor,
    state: State,
    queues: Sequence[str],
    *,
    most: int,
    visibility_ms: int,
    consumer: str,
    walk_away_s: float | None = None,
) -> list[aio.AsyncBatch]:
    """One recorded poll. `walk_away_s`: cancel it after this long, which leaves its outcome unknown."""
    args = {"queues": list(queues), "max": most, "visibility_ms": visibility_ms, "consumer": consumer}
    actor.invoke("poll", {**args, "wait_ms": int(POLL_WAIT_S * 1000)})
    begun = time.monotonic()
    batches: list[aio.AsyncBatch] | None = None
    with trio.move_on_after(walk_away_s if walk_away_s is not None else float("inf")):
        try:
            batches = await client.poll_batch(list(queues), visibility_ms / 1000, most, wait=POLL_WAIT_S)
        except WalrqError as error:
            state.note(error)
            actor.complete(*outcome(error))
            return []
    if batches is None:
        actor.complete(INFO, {"text": "walked away"})
        return []
    # The client says when the lease ends; the checker holds the queue to the client's word.
    starts = [batch.deadline - begun - visibility_ms / 1000 for batch in batches]
    parked_ms = max(0, int(min(starts, default=0.0) * 1000))
    actor.complete(
        OK,
        {
            "parked_ms": parked_ms,
            "visibility_ms": visibility_ms,
            "runs": [
                {
                    "queue": batch.queue,
                    "lease": batch.run.receipt.hex(),
                    "values": pack(map(payload.decode, batch.payloads())),
                    "first": f"{batch.run.first_id:x}",
                    "delivery": batch.run.delivery,
                    "attempts": batch.run.attempts,
                    "fence": list(batch.run.fence),
                }
                for batch in batches
            ],
        },
    )
    return batches


async def settle(
    client: aio.Client,
    actor: Actor,
    state: State,
    kind: str,
    batch: aio.AsyncBatch,
    *,
    offsets: range | None = None,
    delay_ms: int | None = None,
) -> None:
    """One recorded ack, fail, release or reject of a lease, or of some offsets of it."""
    item: dict[str, Any] = {"lease": batch.run.receipt.hex()}
    if offsets is not None:
        item["offsets"] = pack(offsets)
    args: dict[str, Any] = {"queue": batch.queue, "kind": kind, "items": [item]}
    if delay_ms is not None:
        args["delay_ms"] = delay_ms
    what: Any = batch if offsets is None else [batch.messages()[offset] for offset in offsets]
    actor.invoke("settle", args)
    try:
        if kind == "ack":
            await client.ack(what)
        else:
            await client.nack(what, kind, None if delay_ms is None else delay_ms / 1000)  # type: ignore[arg-type]
    except WalrqError as error:
        state.note(error)
        if error.code == Code.RECEIPT_EXPIRED:
            actor.complete(OK, {"codes": [int(error.code)]})
        else:
            actor.complete(*outcome(error))
    else:
        if kind == "ack":
            state.acked += batch.count if offsets is None else len(offsets)
        actor.complete(OK, {"codes": [0]})


async def touch(client: aio.Client, actor: Actor, state: State, batch: aio.AsyncBatch, visibility_ms: int) -> None:
    """One recorded touch of a whole lease."""
    items = [{"lease": batch.run.receipt.hex()}]
    actor.invoke("touch", {"queue": batch.queue, "items": items, "visibility_ms": visibility_ms})
    try:
        await client.touch(batch, visibility_ms / 1000)
    except WalrqError as error:
        state.note(error)
        if error.code == Code.RECEIPT_EXPIRED:
            actor.complete(OK, {"codes": [int(error.code)]})
        else:
            actor.complete(*outcome(error))
    else:
        actor.complete(OK, {"codes": [0]})


async def show(client: aio.Client, actor: Actor, queue: str) -> dict[str, int] | None:
    """One recorded look at a queue's counts; None when it does not exist or did not answer."""
    actor.invoke("show", {"queue": queue})
    try:
        info = await client.show_queue(queue)
    except WalrqError as error:
        actor.complete(*outcome(error))
        return {} if error.code == Code.QUEUE_NOT_FOUND else None
    names = ("ready", "delayed", "leased", "parked", "dead")
    counts = {name: int(getattr(info, name)) for name in names}
    actor.complete(OK, counts)
    return counts


async def drain(plan: Plan, state: State, seconds: float) -> bool:
    """Take everything out through the public client; True when every queue was seen empty."""
    queues = [queue for name in QUEUES for queue in (name, f"{name}.dlq")]
    names = [f"{queue}.dlq" for queue in queues if queue.endswith(".dlq")]
    deadline = trio.current_time() + seconds
    actor, looker = Actor(state.writer, "drain"), Actor(state.writer, "look")
    async with aio.connect(plan.url, config(session=True, worker="drain")) as client:
        while trio.current_time() < deadline:
            batches = await poll(
                client,
                actor,
                state,
                [*queues, *names],
                most=1_000,
                visibility_ms=10_000,
                consumer="drain",
            )
            for batch in batches:
                await settle(client, actor, state, "ack", batch)
            if batches:
                continue
            counts = [await show(client, looker, queue) for queue in [*queues, *names]]
            parts = ("ready", "delayed", "leased", "parked")
            if all(found is not None and not any(found.get(p, 0) for p in parts) for found in counts):
                state.writer.nemesis("drained", {})
                return True
    return False
