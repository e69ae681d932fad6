"""THE table: which right each request needs, and on which queues.

A request concerns queues, or the node and the cluster as a whole. What concerns the whole needs its right on every
queue, that is, by a grant whose pattern is `*`; `ANYWHERE` asks for it on no matter which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from walrq import api
from walrq.api import Right

Need: TypeAlias = tuple[Right, str]
"""A right on the queue of that name."""

EVERY: Final = "*"
"""In place of a name: needed on every queue."""

NOTHING: Final[tuple[Need, ...]] = ()


def _one(right: Right) -> Callable[[Any], tuple[Need, ...]]:
    return lambda request: ((right, request.queue),)


def _on_all(right: Right) -> Callable[[Any], tuple[Need, ...]]:
    needs = ((right, EVERY),)
    return lambda request: needs


def _nothing(request: Any) -> tuple[Need, ...]:
    return NOTHING


def _poll(request: api.Poll) -> tuple[Need, ...]:
    needs = tuple([(Right.WRITE, queue) for queue in request.queues])
    return needs if request.into is None else (*needs, (Right.WRITE, request.into))


def _set_queue(request: api.SetQueue) -> tuple[Need, ...]:
    # Its dead letters will go there. (A word of the setting that is no name is no harm: it needs a right too many.)
    dlq = request.settings.get("dlq")
    own = (Right.ADMIN, request.queue)
    return (own, (Right.WRITE, dlq)) if isinstance(dlq, str) and dlq != "none" else (own,)


def _redrive(request: api.Redrive) -> tuple[Need, ...]:
    needs = ((Right.READ if request.dry_run else Right.WRITE, request.queue),)
    return needs if request.target is None else (*needs, (Right.WRITE, request.target))


def _move(request: api.Move) -> tuple[Need, ...]:
    return ((Right.WRITE, request.source), (Right.WRITE, request.target))


NEEDS: Final[Mapping[type, Callable[[Any], tuple[Need, ...]]]] = {
    api.Push: _one(Right.WRITE),
    api.Poll: _poll,
    api.Settle: _one(Right.WRITE),
    api.Touch: _one(Right.WRITE),
    api.Cancel: _one(Right.WRITE),
    api.Reschedule: _one(Right.WRITE),
    api.Move: _move,
    api.Redrive: _redrive,
    api.Peek: _one(Right.READ),
    api.ShowQueue: _one(Right.READ),
    api.ListDead: _one(Right.READ),
    # Which names it may see is for `principals`: the queues of a prefix.
    api.ListQueues: _nothing,
    api.SetQueue: _set_queue,
    api.PurgeQueue: _one(Right.ADMIN),
    api.DeleteQueue: _one(Right.ADMIN),
    api.PurgeDead: _one(Right.ADMIN),
    # Of the connection itself.
    api.OpenSession: _nothing,
    api.CloseSession: _nothing,
    api.Forget: _nothing,
    api.Ping: _nothing,
    # Numbers over all queues, names of nodes: for whoever may look at something.
    api.Stats: _nothing,
    api.ClusterStatus: _nothing,
    api.BackupBegin: _on_all(Right.ADMIN),
    api.BackupRead: _on_all(Right.ADMIN),
    api.BackupEnd: _on_all(Right.ADMIN),
    api.AddNode: _on_all(Right.ADMIN),
    api.RemoveNode: _on_all(Right.ADMIN),
    api.TransferLeadership: _on_all(Right.ADMIN),
    api.SetToken: _on_all(Right.ADMIN),
    api.RevokeToken: _on_all(Right.ADMIN),
    api.ListTokens: _on_all(Right.ADMIN),
}
