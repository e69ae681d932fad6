"""The text of /metrics: names, types, labels, and what happens to a series whose queue goes."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from walrq.http.metrics import OTHERS, Metrics, QueueRow, Snapshot


def row(name: str, **numbers: Any) -> QueueRow:
    """A queue's numbers, zero unless given."""
    given = {"ready": 0, "in_flight": 0, "delayed": 0, "dead": 0, "oldest_s": 0.0}
    return QueueRow(name=name, **{**given, "pushed": 0, "delivered": 0, "acked": 0, **numbers})


def page(metrics: Metrics, *rows: QueueRow, others: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)) -> dict[str, Any]:
    """One scrape, parsed: (name, labels) -> value."""
    stats = {"is_leader": True, "term": 3, "compactions": 5, "node": "n1", "cluster": "c", "version": "1"}
    snapshot = Snapshot(stats, rows, others, (4, 3, 2, 1), 10, 20, 30, 7)
    found: dict[str, Any] = {}
    for family in text_string_to_metric_families(metrics.text(snapshot).decode()):
        found[family.name] = family.type
        for sample in family.samples:
            found[sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))] = sample.value
    return found


def test_the_promised_names_are_there() -> None:
    """Dashboards and alerts are written against these."""
    found = page(Metrics(), row("jobs", ready=1))

    for name, kind, value in (
        ("walrq_pushed_total", "counter", 10),
        ("walrq_polled_total", "counter", 20),
        ("walrq_acked_total", "counter", 30),
        ("walrq_wal_compactions_total", "counter", 5),
        ("walrq_in_flight", "gauge", 3),
        ("walrq_hot_messages_in_ram", "gauge", 7),
        ("walrq_is_leader", "gauge", 1),
        ("dtq_delayed_tasks_total", "gauge", 2),
    ):
        family = name.removesuffix("_total") if kind == "counter" else name
        assert (kind, value) == (found[family], found[name,])
    assert 1 == found["dtq_queue_size", "queue=jobs"] == found["walrq_queue_ready", "queue=jobs"]
    assert {("dtq_in_flight_tasks", "queue=jobs"), ("dtq_dead_letter_queue_size", "queue=jobs")} <= found.keys()


def test_a_series_goes_with_its_queue() -> None:
    """A queue that was deleted is no queue of length zero."""
    metrics = Metrics()
    first = page(metrics, row("jobs"), row("mail"))
    second = page(metrics, row("mail"))

    assert [key for key in first if "queue=jobs" in key]
    assert [] == [key for key in second if "queue=jobs" in key]


def test_the_tail_is_one_series() -> None:
    """Beyond the cap queues are counted together, and only when there are such."""
    found = page(Metrics(), row("jobs"), others=(9, 5, 4, 3, 2))

    tail = f"queue={OTHERS}"
    assert (5, 4, 2) == tuple(
        found[name, tail] for name in ("dtq_queue_size", "dtq_in_flight_tasks", "walrq_queue_dead")
    )
    assert 10 == found["walrq_queues",]
    assert [] == [key for key in page(Metrics(), row("jobs")) if tail in key]


def test_latencies_are_histograms_in_seconds() -> None:
    """With the unit in the name, a bucket for each bound, and no series that nobody asked for."""
    metrics = Metrics()
    metrics.written(0.003)
    metrics.requested("push", 200, 0.02)
    metrics.requested("push", 201, 0.02)
    metrics.requested("push", 404, 0.02)
    found = page(metrics)

    assert "histogram" == found["walrq_write_seconds"] == found["walrq_http_request_seconds"]
    assert (0, 1) == (found["walrq_write_seconds_bucket", "le=0.0025"], found["walrq_write_seconds_bucket", "le=0.005"])
    assert 2 == found["walrq_http_request_seconds_count", "operation=push", "status=2xx"]
    assert 1 == found["walrq_http_request_seconds_count", "operation=push", "status=4xx"]
    assert [] == [key for key in found if "created" in key[0]]


def test_names_that_look_like_markup_or_labels_stay_labels() -> None:
    """A queue's name is anybody's text."""
    name = 'a"} 1\\{b="<i>'
    assert 2 == page(Metrics(), row(name, ready=2))["dtq_queue_size", f"queue={name}"]
