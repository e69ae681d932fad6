"""walrq: a durable, replicated message and task queue.

    import walrq

    with walrq.connect() as queue:
        queue.push("mail", b"hello")
        for message in queue.poll("mail", wait=20):
            queue.ack(message)

`walrq.connect` is the blocking client, `walrq.aio.connect` the one for trio and asyncio; both have the same
methods. Errors are in `walrq.errors` and all derive from `walrq.WalrqError`. Names are loaded when they are
first used, so that `import walrq` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from walrq import aio
    from walrq.client.blocking import Client, Consumer, PushStream, SyncBatch, SyncBatches, SyncMessage, connect
    from walrq.client.config import ClientConfig
    from walrq.client.failures import BatchError, EntryFailure, ServerUnreachable
    from walrq.client.messages import Batch, Message, MessageIds, NewMessage, Seen
    from walrq.errors import WalrqError
    from walrq.worker.application import Worker
    from walrq.worker.backoff import Exponential
    from walrq.worker.context import Context, current
    from walrq.worker.outcomes import LeaseLost, Reject, Release, Retry, TaskTimeout, WorkerStopping
    from walrq.worker.tasks import Task

__version__: Final = "0.1.0"

__all__ = [
    "Batch",
    "BatchError",
    "Client",
    "ClientConfig",
    "Consumer",
    "Context",
    "EntryFailure",
    "Exponential",
    "LeaseLost",
    "Message",
    "MessageIds",
    "NewMessage",
    "PushStream",
    "Reject",
    "Release",
    "Retry",
    "Seen",
    "ServerUnreachable",
    "SyncBatch",
    "SyncBatches",
    "SyncMessage",
    "Task",
    "TaskTimeout",
    "WalrqError",
    "Worker",
    "WorkerStopping",
    "__version__",
    "aio",
    "connect",
    "current",
]

_HOMES: Final = {
    "walrq.client.blocking": ("Client", "Consumer", "PushStream", "SyncBatch", "SyncBatches", "SyncMessage", "connect"),
    "walrq.client.config": ("ClientConfig",),
    "walrq.client.failures": ("BatchError", "EntryFailure", "ServerUnreachable"),
    "walrq.client.messages": ("Batch", "Message", "MessageIds", "NewMessage", "Seen"),
    "walrq.errors": ("WalrqError",),
    "walrq.worker.application": ("Worker",),
    "walrq.worker.backoff": ("Exponential",),
    "walrq.worker.context": ("Context", "current"),
    "walrq.worker.outcomes": ("LeaseLost", "Reject", "Release", "Retry", "TaskTimeout", "WorkerStopping"),
    "walrq.worker.tasks": ("Task",),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "aio":
        return importlib.import_module("walrq.aio")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
