"""What a node shows at /metrics, in Prometheus' text format 0.0.4.

Numbers are of this node: every node of a cluster applies every entry, so that three of them count a push three times.
`walrq_is_leader` tells them apart. Times are seconds, sizes bytes.

Queues have series of their own up to METRICS_QUEUES_MAX, first come first served and for as long as the queue lives;
the others are one series together, labelled `(others)`. A series goes with its queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

MEDIA: Final = "text/plain; version=0.0.4; charset=utf-8"
# When a histogram began is a series beside each in this format, which nobody asked for.
disable_created_metrics()  # type: ignore[no-untyped-call]

# No series of a queue of that name: it would be taken for this.
OTHERS: Final = "(others)"
_WRITE_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_REQUEST_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0, 30.0)


@attrs.frozen
class QueueRow:
    """One queue's numbers.

    Attributes:
        dead: its dead messages, in its dead-letter queue and parked.
        oldest_s: age of its oldest message, 0 when it is empty.
        pushed, delivered, acked: since the start.
    """

    name: str
    ready: int
    in_flight: int
    delayed: int
    dead: int
    oldest_s: float
    pushed: int
    delivered: int
    acked: int


@attrs.frozen
class Snapshot:
    """All that a scrape shows beside the histograms.

    Attributes:
        stats: the values of a `StatsReply`.
        queues: those with series of their own.
        others: (queues, ready, in flight, delayed, dead) of the rest.
        totals: (ready, in flight, delayed, dead) of all.
        pushed, delivered, acked: of all queues there were since the start.
        hot_messages: held in memory.
    """

    stats: Mapping[str, Any]
    queues: Sequence[QueueRow]
    others: tuple[int, int, int, int, int]
    totals: tuple[int, int, int, int]
    pushed: int
    delivered: int
    acked: int
    hot_messages: int


class Metrics(Collector):
    """The registry of one node.

    Attributes:
        latest: what the next scrape shows.
    """

    def __init__(self) -> None:
        self.latest: Snapshot | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self._write = Histogram(
            "walrq_write_seconds",
            "From taking the proposals of one entry until it is durable on this node and answered.",
            buckets=_WRITE_S,
            registry=self._registry,
        )
        self._requests = Histogram(
            "walrq_http_request_seconds",
            "From the last byte of an HTTP request to the last byte of its response; a poll's wait is part of it.",
            ("operation", "status"),
            buckets=_REQUEST_S,
            registry=self._registry,
        )

    def written(self, seconds: float) -> None:
        """An entry took so long."""
        self._write.observe(seconds)

    def requested(self, operation: str, status: int, seconds: float) -> None:
        """A request of this row of the routes (or page) was answered; statuses are counted by their hundreds."""
        self._requests.labels(operation, f"{status // 100}xx").observe(seconds)

    def text(self, snapshot: Snapshot) -> bytes:
        """The page of one scrape."""
        self.latest = snapshot
        try:
            return generate_latest(self._registry) + _of_queues(snapshot).encode()
        finally:
            self.latest = None

    def describe(self) -> list[Metric]:
        """Nothing to say before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The families that are read off the node."""
        snapshot = self.latest
        if snapshot is not None:
            yield from _of_node(snapshot)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _of_node(snapshot: Snapshot) -> Iterator[Metric]:
    stats = snapshot.stats
    ready, in_flight, delayed, dead = snapshot.totals
    yield _counter("walrq_pushed", "Messages taken in by pushes.", snapshot.pushed)
    yield _counter("walrq_polled", "Messages leased, each delivery counted.", snapshot.delivered)
    yield _counter("walrq_acked", "Messages acknowledged.", snapshot.acked)
    compactions = stats.get("compactions", stats.get("snapshots", 0))
    yield _counter("walrq_wal_compactions", "Times the log was compacted.", compactions)
    yield _gauge("walrq_queues", "Queues.", len(snapshot.queues) + snapshot.others[0])
    yield _gauge("walrq_ready", "Messages that a poll could lease now.", ready)
    yield _gauge("walrq_in_flight", "Messages leased and not given back.", in_flight)
    yield _gauge("walrq_delayed", "Messages that are not due yet.", delayed)
    yield _gauge("walrq_dead", "Dead messages, in dead-letter queues and parked.", dead)
    yield _gauge("walrq_hot_messages_in_ram", "Messages whose metadata is in memory.", snapshot.hot_messages)
    yield _gauge("walrq_is_leader", "1 on the node that leads, else 0.", int(bool(stats.get("is_leader"))))
    yield _gauge("walrq_term", "The term of the log as this node knows it.", stats.get("term", 0))
    yield _gauge(
        "walrq_commit_index", "Up to where this node knows the log to be decided.", stats.get("commit_index", 0)
    )
    yield _gauge("walrq_applied_index", "Up to where this node has applied it.", stats.get("applied_index", 0))
    yield _gauge("walrq_disk_bytes", "Bytes in the data directory.", stats.get("disk_bytes", 0))
    yield _gauge("walrq_connections", "Open connections of all doors.", stats.get("connections", 0))
    yield _gauge(
        "walrq_requests_in_flight", "Requests not answered yet, parked polls included.", stats.get("in_flight", 0)
    )
    yield _gauge("walrq_parked_polls", "Polls that wait for messages.", stats.get("parked_polls", 0))
    yield _counter("walrq_requests", "Requests of all doors.", stats.get("requests", 0))
    yield _counter("walrq_refused", "Requests refused.", stats.get("refused", 0))
    yield _counter(
        "walrq_undone_leases", "Leases given back because their taker was gone.", stats.get("undone_leases", 0)
    )
    yield _counter("walrq_cold_replies", "Replies that waited for bodies from the disk.", stats.get("cold_replies", 0))
    uptime_s = stats.get("uptime_ms", 0) / 1000
    yield _gauge("walrq_uptime_seconds", "Since the node started.", uptime_s)
    info = GaugeMetricFamily("walrq_node_info", "Which node this is.", labels=("node", "cluster", "version"))
    info.add_metric([str(stats.get(name, "")) for name in ("node", "cluster", "version")], 1)
    yield info
    # The name is the ancestor's; as a gauge it may end so in this format.
    yield _gauge("dtq_delayed_tasks_total", "Messages that are not due yet.", delayed)


_GAUGES: Final = (
    ("walrq_queue_ready", "Messages of a queue that a poll could lease now.", "ready", 1),
    ("walrq_queue_in_flight", "Messages of a queue that are leased.", "in_flight", 2),
    ("walrq_queue_delayed", "Messages of a queue that are not due yet.", "delayed", 3),
    ("walrq_queue_dead", "Dead messages of a queue.", "dead", 4),
    ("dtq_queue_size", "Messages of a queue that a poll could lease now.", "ready", 1),
    ("dtq_in_flight_tasks", "Messages of a queue that are leased.", "in_flight", 2),
    ("dtq_dead_letter_queue_size", "Dead messages of a queue.", "dead", 4),
)
_PLAIN: Final = (
    ("walrq_queue_oldest_seconds", "Age of a queue's oldest message.", "oldest_s", "gauge"),
    ("walrq_queue_pushed_total", "Messages taken in by pushes into a queue.", "pushed", "counter"),
    ("walrq_queue_polled_total", "Messages of a queue leased, each delivery counted.", "delivered", "counter"),
    ("walrq_queue_acked_total", "Messages of a queue acknowledged.", "acked", "counter"),
)


def _of_queues(snapshot: Snapshot) -> str:
    """The series of queues. There may be thousands of lines of them, each of which costs the library ten microseconds;
    their format is simple enough to write down.
    """
    labels = [_label(row.name) for row in snapshot.queues]
    parts = []
    for name, text, column, position in _GAUGES:
        parts.append(f"# HELP {name} {text}\n# TYPE {name} gauge\n")
        parts += [f"{name}{label} {getattr(row, column)}\n" for label, row in zip(labels, snapshot.queues, strict=True)]
        if snapshot.others[0]:
            parts.append(f"{name}{_label(OTHERS)} {snapshot.others[position]}\n")
    for name, text, column, kind in _PLAIN:
        parts.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")
        parts += [f"{name}{label} {getattr(row, column)}\n" for label, row in zip(labels, snapshot.queues, strict=True)]
    return "".join(parts)


def _label(queue: str) -> str:
    """The label of a queue; its name is anybody's text, though without line breaks."""
    escaped = queue.replace("\\", "\\\\").replace('"', '\\"')
    return f'{{queue="{escaped}"}}'
