"""The load generator sends what the protocol would send, and counts what it was answered."""

from __future__ import annotations

import json

import pytest

from bench import machine_only, peer_redis
from bench.__main__ import BENCHES, main
from bench.figures import Latencies, in_memory_file_system, scratch, table
from bench.load import Consumer, HotLink, Link, LoadFailed, Loop, Producer, Template, Traffic, columns
from tests.e2e.conftest import Starter, start_node
from tests.requirements import require
from walrq import api
from walrq.protocol.requests import decode_request

__all__ = ["start_node"]


@pytest.mark.parametrize(
    "request_",
    [
        api.Push("bench", columns(3, 100)),
        api.Poll(("bench",), max_messages=100, visibility_ms=60_000, wait_ms=1_000),
        api.Settle("bench", api.SettleKind.ACK, (api.Item(b"r" * 20),)),
    ],
    ids=lambda request_: type(request_).__name__,
)
@pytest.mark.parametrize("sequence", [0, 1_234_567])
def test_a_template_makes_the_frame_of_its_request(request_: api.Request, sequence: int) -> None:
    """Cut and patched bytes must mean what the protocol's own writer means, or the figures are of something else."""
    template = Template(request_)
    frame = template.frame(70_000, sequence, min(sequence, 99), template.tail)
    incoming = decode_request(frame[4:])

    assert len(frame) - 4 == int.from_bytes(frame[:4], "big")
    assert request_ == incoming.request
    assert 70_000 == incoming.id
    assert (sequence or None, min(sequence, 99) or None) == (incoming.sequence, incoming.lowest)


def test_columns_hold_as_many_bytes_as_they_say() -> None:
    """A payload shorter than promised would flatter the figures."""
    made = columns(7, 100)

    assert (7, 700) == (made.count, len(made.payloads))


def test_traffic_goes_all_the_way_and_is_counted(start_node: Starter) -> None:
    """Pushed, leased and acknowledged are the same number in the end."""
    node = start_node("--fsync", "never")
    traffic = Traffic("bench", batch=10, size=50, window=4, waiting_max=500)
    loop = Loop()
    producer, consumer = Producer(Link(node.address), traffic), Consumer(Link(node.address), traffic)
    loop.add(producer.link, producer.fill)
    loop.add(consumer.link, consumer.fill)
    loop.run(1 << 62, lambda: traffic.acked >= 3_000)
    traffic.producing = False
    loop.run(1 << 62, lambda: traffic.acked == traffic.offered)
    loop.close()

    assert traffic.offered == traffic.pushed == traffic.leased == traffic.acked >= 3_000
    assert len(traffic.push_latency) * 10 == traffic.pushed


def test_a_hot_link_notices_the_end_of_its_connection(start_node: Starter) -> None:
    """A bench that goes on without its server measures nothing."""
    node = start_node()
    link = HotLink(Link(node.address))
    node.kill()
    link.socket.setblocking(True)

    with pytest.raises((LoadFailed, ConnectionResetError)):
        link.read()
    link.close()


def test_percentiles_are_milliseconds() -> None:
    """A factor of a thousand is the classical mistake."""
    latencies = Latencies()
    latencies.extend([1_000_000] * 98 + [50_000_000] * 2)
    found = latencies.percentiles_ms()

    assert 1.0 == pytest.approx(found["p50"], rel=0.01)
    assert 50.0 == pytest.approx(found["p99"], rel=0.01)
    assert 50.0 == pytest.approx(found["max"])
    assert {} == Latencies().percentiles_ms()


def test_a_table_lines_up() -> None:
    """People compare columns by eye."""
    lines = table([["a", 1], ["bb", 12_345]], header=["name", "count"]).splitlines()

    assert ["name  count", "a          1", "bb    12,345"] == lines


def test_scratch_goes_away_and_is_on_a_disk() -> None:
    """What syncs into memory measures nothing, and what is left behind fills the disk."""
    with scratch(None) as folder:
        assert folder.is_dir()
        assert not in_memory_file_system(folder)
    assert not folder.exists()


def test_the_machine_alone_moves_messages() -> None:
    """The figure counts messages that went all the way, with sessions and images."""
    arguments = ["throughput", "--in-memory", "--seconds", "0.3", "--batch", "10", "--json"]
    assert 0 == main(arguments)
    hot = machine_only.poll_of_hot_messages(rounds=20)

    assert 0 < hot["p50"] <= hot["max"]


def test_json_is_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Programs read the last line, people the rest."""
    main(["throughput", "--in-memory", "--seconds", "0.2", "--json"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])

    assert "throughput" == figures["bench"]
    assert figures["ops_per_s"] > figures["msgs_per_s"] > 0
    assert {"cpu", "cores", "kernel", "python"} <= set(figures["machine"])
    assert 100 == figures["settings"]["batch"]


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--help must not need a server, nor redis."""
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])

    assert 0 == ended.value.code
    assert "--json" in capsys.readouterr().out


@pytest.mark.slow
def test_latency_stands_beside_its_probe(capsys: pytest.CaptureFixture[str]) -> None:
    """A latency without what the disk alone takes says nothing about the broker."""
    main(["latency", "--count", "30", "--json"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])

    assert {"push", "probe", "poll", "ack", "apply poll of 10"} == set(figures["latency_ms"])


@pytest.mark.slow
def test_redis_is_measured_by_the_same_rules(capsys: pytest.CaptureFixture[str]) -> None:
    """Interleaved pairs, the median ratio, and both sides' figures."""
    require("redis")
    main(["throughput", "--compare", "redis", "--pairs", "1", "--seconds", "1", "--json"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])

    assert None is peer_redis.missing()
    assert figures["peer"]["ops_per_s"] > 0
    assert figures["ratio"] == pytest.approx(figures["ops_per_s"] / figures["peer"]["ops_per_s"], rel=0.05)


def test_a_missing_redis_is_a_reason_not_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bench must run where there is nothing to compare with, and say why."""
    monkeypatch.setenv("PATH", "")

    assert peer_redis.missing() is not None


def test_a_refused_push_ends_the_bench(start_node: Starter) -> None:
    """An error counted as work would be the best figure of all."""
    node = start_node("--no-auto-create")
    traffic = Traffic("absent", batch=1, size=10, window=1, waiting_max=10)
    loop = Loop()
    producer = Producer(Link(node.address), traffic)
    loop.add(producer.link, producer.fill)
    with pytest.raises(LoadFailed, match="push refused"):
        loop.run(1 << 62)
    loop.close()

    assert 0 == traffic.pushed
