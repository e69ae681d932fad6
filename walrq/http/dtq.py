"""The ancestor DTQ's HTTP answers, field for field: its statistics and what its dead-letter buttons say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from walrq.http.replies import Response, of_json


@attrs.frozen
class QueueCounts:
    """One line of the statistics; `dlq` counts the queue's dead messages."""

    name: str
    ready: int
    in_flight: int
    dlq: int


def stats(delayed: int, queues: Iterable[QueueCounts]) -> dict[str, Any]:
    """The object of GET /api/stats; a dead-letter queue is no line of its own there, but a number in its queue's."""
    rows = sorted(queues, key=lambda each: each.name)
    return {
        "total_queues": len(rows),
        "total_ready": sum(each.ready for each in rows),
        "total_in_flight": sum(each.in_flight for each in rows),
        "total_delayed": delayed,
        "total_dlq": sum(each.dlq for each in rows),
        "queues": [attrs.asdict(each) for each in rows],
    }


def done(action: str, queue: str, count: int) -> Response:
    """The answer of POST /api/dlq/requeue and /api/dlq/purge."""
    return of_json(
        {"status": "ok", "action": action, "queue": queue, "requeued" if action == "requeue" else "purged": count}
    )


def refused(status: int, message: str) -> Response:
    """The same, when it was not done."""
    return of_json({"status": "error", "message": message}, status)
