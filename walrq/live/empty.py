"""Why a look at a queue found nothing, in one line for the person at a terminal.

absent(error)              there is no such queue, and which one is meant perhaps
nothing_to_lease(info)     it is empty, paused, or all it has is leased, delayed, parked
none_in(info, state)       in which other states its messages are
no_dead(client, ...)       none died, none match, or this queue is where those of another lie
"""

from __future__ import annotations

from typing import Final

from walrq.api import QueueInfo
from walrq.client.blocking import Client
from walrq.errors import QueueNotFound

_ALIVE: Final = ("ready", "delayed", "leased")
_STATES: Final = (*_ALIVE, "parked")
DLQ_SUFFIX: Final = ".dlq"


def absent(error: QueueNotFound) -> str:
    """A queue that is not there is no error for those who wait for it; a person may have mistyped it."""
    return f"{error.text}{'' if error.text.endswith('?') else ' yet; its first push makes it'}"


def _elsewhere(info: QueueInfo, *but: str) -> str:
    """How many messages are in which other states; "" when there are none."""
    return ", ".join(f"{count} {state}" for state in _STATES if state not in but and (count := getattr(info, state)))


def nothing_to_lease(info: QueueInfo) -> str:
    """Why a poll of this queue got nothing."""
    if info.settings.get("paused"):
        return f"{info.name} is paused; `walrq queue resume {info.name}` ends that"
    others = _elsewhere(info, "ready")
    if info.ready:
        # What came since the poll, or what its group or max_in_flight holds back.
        return f"nothing of {info.name} can be leased now: {info.ready} ready{', ' if others else ''}{others}"
    return f"nothing is ready in {info.name}: {others}" if others else f"{info.name} is empty"


def none_in(info: QueueInfo, state: str | None) -> str:
    """What the queue has when it has nothing in `state`; None for the states of those that live."""
    others = _elsewhere(info, *_ALIVE if state is None else (state,))
    if not others:
        return f"{info.name} is empty"
    if state is None:
        return f"nothing waits in {info.name}: {others}"
    return f"nothing of {info.name} is {state}: {others}; --state shows them"


def no_dead(client: Client, queue: str, *, filtered: bool) -> str:
    """Why a look at the dead messages of a queue that is there found none."""
    info = client.show_queue(queue)
    if info.dead:
        # Without a filter only those are left alone that somebody has leased where they lie.
        why = "match" if filtered else "could be had: they are leased"
        return f"none of the {info.dead} dead messages of {queue} {why}"
    origin = _whose(client, info)
    if origin is not None:
        return (
            f"nothing died in {queue} itself; `walrq dlq list {origin}` shows what died in {origin} and lies here,"
            f" `walrq peek {queue}` whatever lies here"
        )
    return f"none of {queue} is dead"


def _whose(client: Client, info: QueueInfo) -> str | None:
    """The queue whose dead messages go to this one; None when it is nobody's dead-letter queue, as far as can be told
    without asking for all queues."""
    states = [state for state in _ALIVE if getattr(info, state)]
    candidates = [seen.origin for state in states for seen in client.peek(info.name, state, 1, bodies=False)]
    candidates.append(info.name.removesuffix(DLQ_SUFFIX))
    for name in candidates:
        if name is None or name == info.name:
            continue
        try:
            target = client.show_queue(name).settings.get("dlq")
        except QueueNotFound:
            continue  # deleted since, or the name only looks like one
        if info.name == (name + DLQ_SUFFIX if target is None else target):
            return name
    return None
