"""Start, stop and failure of a whole node: what ends it, with which status, and what it says."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.daemon.harness import FRONTS, HeldDisk, columns, payloads, running
from tests.daemon.process import STOP_S_MAX, BlockingClient, Daemon
from tests.requirements import require
from walrq import api
from walrq.daemon import bodies, listener, members, pollers, supervisor
from walrq.daemon.config import Config
from walrq.daemon.driver import Driver
from walrq.errors import Code, StorageError
from walrq.limits import DESCRIPTORS_KEPT
from walrq.protocol.client import Answer, ClientState, Closed, WentAway
from walrq.testing.disk import SimDisk
from walrq.upkeep.compactor import Compactor
from walrq.upkeep.reaper import Reaper

PLACES = {
    "driver": (Driver, "run"),
    "members": (members.Members, "run"),
    "reaper": (Reaper, "run"),
    "compactor": (Compactor, "run"),
    "pollers": (pollers, "run"),
    "cold replies": (bodies.ColdReplies, "run"),
    "accept loop": (listener.Listener, "run"),
}


@pytest.fixture
def served_here() -> Iterator[None]:
    """For who calls `supervisor.serve` in this process: it keeps the signals until its process ends."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def config_of(tmp_path: Path) -> Config:
    """A node on a free port, small on disk."""
    return Config(data_dir=str(tmp_path / "data"), listen=("127.0.0.1", 0), max_wal_segment_size=1 << 20)


@pytest.mark.usefixtures("served_here")
@pytest.mark.parametrize("place", PLACES)
def test_an_exception_in_the_core_ends_the_process_with_one_line(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing half-dead goes on serving; the status is stable and the line says what broke."""

    async def explode(*_: object, **__: object) -> None:
        await trio.lowlevel.checkpoint()
        raise RuntimeError(f"planted in the {place}")

    monkeypatch.setattr(*PLACES[place], explode)

    status = supervisor.serve(config_of(tmp_path))

    fatal = [line for line in capfd.readouterr().err.splitlines() if "fatal" in line]
    assert supervisor.EXIT_INTERNAL == status
    assert 1 == len(fatal)
    assert f"RuntimeError: planted in the {place}" in fatal[0]


@pytest.mark.usefixtures("served_here")
def test_a_failed_write_ends_the_process_with_the_status_of_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """After a failed sync nobody knows what the disk holds: the node stops instead of guessing."""

    async def explode(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        raise StorageError("fdatasync failed: Input/output error")

    monkeypatch.setattr(Driver, "run", explode)

    assert 74 == supervisor.serve(config_of(tmp_path))
    assert "fatal STORAGE_FAILED: fdatasync failed" in capfd.readouterr().err


@pytest.mark.usefixtures("served_here")
def test_a_port_in_use_is_one_clear_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The address is named; the status is that of a configuration error."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = Config(data_dir=str(tmp_path / "data"), listen=("127.0.0.1", port))
        status = supervisor.serve(config)

    assert 78 == status
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in capfd.readouterr().err


@pytest.mark.usefixtures("served_here")
def test_a_data_directory_that_cannot_be_used_is_one_clear_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A file in its place, a missing parent: the path is named."""
    (tmp_path / "file").write_text("")
    for path in ("file", "no/such/parent"):
        status = supervisor.serve(Config(data_dir=str(tmp_path / path), listen=("127.0.0.1", 0)))

        error = capfd.readouterr().err
        assert 74 == status
        assert 1 == error.count("fatal DATA_DIR_INVALID")
        assert str(tmp_path / path) in error


@pytest.mark.usefixtures("served_here")
def test_a_read_only_data_directory_is_one_clear_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """No traceback for the commonest mistake of an installation."""
    require("unprivileged")
    (tmp_path / "data").mkdir(mode=0o555)

    assert 74 == supervisor.serve(config_of(tmp_path))
    assert "fatal DATA_DIR_INVALID" in capfd.readouterr().err


@pytest.mark.usefixtures("served_here")
def test_a_second_daemon_on_the_same_directory_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Two writers of one log would destroy it; the first one does not notice the second."""
    with Daemon(tmp_path / "data") as first:
        first.wait_ready()

        assert 75 == supervisor.serve(config_of(tmp_path))
        assert "in use by another walrq process" in capfd.readouterr().err
        with first.connect() as client:
            assert api.Pong() == client.ask(api.Ping())


def test_standard_output_is_one_json_line(tmp_path: Path) -> None:
    """Scripts read it to learn the port; everything else is on standard error."""
    with Daemon(tmp_path / "data", node_id="alpha") as daemon:
        ready = daemon.wait_ready()
        daemon.process.send_signal(signal.SIGTERM)

        assert 0 == daemon.wait()
        assert daemon.process.stdout is not None
        assert b"" == daemon.process.stdout.read()
        assert ("ready", "alpha") == (ready["event"], ready["node"])
        assert {"cbor"} == set(ready["endpoints"])
        assert "stopped" == daemon.lines()[-1]["event"]


def produce(port: int, confirmed: list[int], refused: list[int], unknown: list[int]) -> None:
    """Push until the node goes away; every push is confirmed, refused or (connection lost) unknown."""
    with BlockingClient(port) as client:
        in_flight: set[int] = set()
        try:
            while True:
                while len(in_flight) < 4 and client.protocol.state is ClientState.OPEN:
                    in_flight.add(client.protocol.request(api.Push("jobs", columns(b"x"))))
                client.flush()
                event = client.next_event()
                if isinstance(event, Answer):
                    in_flight.remove(event.id)
                    if isinstance(event.reply, api.Pushed):
                        confirmed.append(event.reply.first_id)
                    else:
                        assert isinstance(event.reply, api.Failed)
                        assert Code.DRAINING == event.reply.code
                        refused.append(event.id)
                elif isinstance(event, Closed):
                    break
        except OSError:
            pass
        unknown.extend(in_flight)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_everything_in_flight(number: signal.Signals, tmp_path: Path) -> None:
    """Pushes confirmed before the end are there after a restart, parked polls are answered, the status is
    0.
    """
    confirmed: list[int] = []
    refused: list[int] = []
    unknown: list[int] = []
    with Daemon(tmp_path / "data") as daemon:
        daemon.wait_ready()
        waiters = [daemon.connect() for _ in range(20)]
        for waiter in waiters:
            waiter.send(api.Poll(("empty",), 1, wait_ms=60_000))
        producers = [
            threading.Thread(target=produce, args=(daemon.port, confirmed, refused, unknown), daemon=True)
            for _ in range(3)
        ]
        for producer in producers:
            producer.start()
        with daemon.connect() as watcher:
            while watcher.ask(api.Stats()).values["entries"] < 50:
                pass
        daemon.process.send_signal(number)
        for waiter in waiters:
            events = [waiter.next_event(), waiter.next_event()]
            answers = [event.reply for event in events if isinstance(event, Answer)]
            assert [()] == [reply.runs for reply in answers if isinstance(reply, api.Polled)]
            assert [Code.DRAINING] == [event.code for event in events if isinstance(event, WentAway)]
            waiter.socket.close()

        assert 0 == daemon.wait()
        for producer in producers:
            producer.join(STOP_S_MAX)
    with Daemon(tmp_path / "data") as daemon:
        daemon.wait_ready()
        with daemon.connect() as client:
            ready = client.ask(api.ShowQueue("jobs")).ready

    assert [] == unknown
    assert len(confirmed) == len(set(confirmed))
    assert len(confirmed) == ready


_STALL = """
import threading
from walrq.replica import Replica
persist = Replica.persist
def stalled(self, batch):
    if batch.commands and "stall" in repr(batch.commands[0].command)[:200]:
        threading.Event().wait()
    persist(self, batch)
Replica.persist = stalled
"""


def signal_until_gone(daemon: Daemon) -> None:
    """SIGTERM again and again, as an impatient operator would: not so fast that signals pile up."""
    while daemon.process.poll() is None:
        daemon.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.process.wait(0.2)


def test_a_second_signal_exits_at_once(tmp_path: Path) -> None:
    """A drain that cannot end does not hold the operator; what was confirmed is safe all the same."""
    with Daemon(tmp_path / "data", prelude=_STALL, drain_timeout=600) as daemon:
        daemon.wait_ready()
        with daemon.connect() as client:
            assert 1 == client.ask(api.Push("jobs", columns(b"safe"))).count
            client.send(api.Push("stall", columns(b"never written")))
            daemon.process.send_signal(signal.SIGTERM)
            assert isinstance(client.next_event(), WentAway)
            signal_until_gone(daemon)

        assert 128 + signal.SIGTERM == daemon.wait()
    with Daemon(tmp_path / "data") as daemon:
        daemon.wait_ready()
        with daemon.connect() as client:
            assert 1 == client.ask(api.ShowQueue("jobs")).ready


_SLOW_RECOVERY = """
import subprocess
import sys, threading
from walrq.storage.storage import Storage
def stuck(disk, config):
    print("opening", file=sys.stderr, flush=True)
    threading.Event().wait()
Storage.open = stuck
"""


def test_a_node_that_is_still_recovering_can_be_stopped(tmp_path: Path) -> None:
    """Recovery is safe to interrupt; nobody has to wait for it or reach for kill -9."""
    with Daemon(tmp_path / "data", prelude=_SLOW_RECOVERY) as daemon:
        while "opening" not in daemon.log.read_text():
            assert daemon.process.poll() is None
        signal_until_gone(daemon)

        assert 128 + signal.SIGTERM == daemon.wait()


def test_running_out_of_descriptors_refuses_politely_and_recovers(tmp_path: Path) -> None:
    """The accept loop survives, does not spin, and takes connections again once there are descriptors."""
    with Daemon(tmp_path / "data") as daemon:
        daemon.wait_ready()
        pid = daemon.process.pid
        with daemon.connect() as first:
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            held = len(os.listdir(f"/proc/{pid}/fd"))

            def refused(limit: int, taken: int) -> list[bytes]:
                """What ten clients are told, but for the first `taken`, with so many descriptors."""
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
                clients = [socket.create_connection(("127.0.0.1", daemon.port), timeout=30) for _ in range(10)]
                refusals = [client.recv(4096) for client in clients[taken:]]
                assert api.Pong() == first.ask(api.Ping())
                for client in clients:
                    client.close()
                return refusals

            without_any = refused(held, 0)
            with_the_kept = refused(held + 2 + DESCRIPTORS_KEPT, 2)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            with daemon.connect() as late:
                assert api.Pong() == late.ask(api.Ping())

        assert all(b"no file descriptor left" in refusal for refusal in without_any)
        assert all(b"no descriptors left for connections" in refusal for refusal in with_the_kept)
        backed_off = [line for line in daemon.lines() if line["event"] == "accept_backs_off"]
        assert 1 <= len(backed_off) <= 20
        daemon.process.send_signal(signal.SIGTERM)
        assert 0 == daemon.wait()


def test_connections_beyond_the_cap_are_told_so(tmp_path: Path) -> None:
    """A clear error instead of a hang; a place that becomes free is given away again."""
    with Daemon(tmp_path / "data", max_connections=2) as daemon:
        daemon.wait_ready()
        with daemon.connect() as first, daemon.connect():
            with daemon.connect() as third:
                assert isinstance(third.welcome, Closed)
                assert third.welcome.error is not None
                assert "serves 2 connections already" in third.welcome.error.text
            first.socket.close()
            while isinstance((again := daemon.connect()).welcome, Closed):
                again.socket.close()
            assert api.Pong() == again.ask(api.Ping())
            again.socket.close()


@pytest.mark.trio
@pytest.mark.parametrize("front", FRONTS)
async def test_no_task_outlives_its_nursery(front: str) -> None:
    """After the end of a node nothing of it is left running."""
    before = trio.lowlevel.current_statistics().tasks_living
    async with running(front) as world:
        client = await world.connect()
        await client.send(api.Poll(("jobs",), 1, wait_ms=60_000))
        assert trio.lowlevel.current_statistics().tasks_living > before + 5

    assert before == trio.lowlevel.current_statistics().tasks_living


@pytest.mark.trio
@pytest.mark.parametrize("front", FRONTS)
async def test_a_drain_refuses_new_requests_and_answers_the_old(front: str) -> None:
    """The order of leaving: parked polls empty at once, what is in flight for real, what is new definitely
    not.
    """
    async with running(front) as world, trio.open_nursery() as nursery:
        client = await world.connect()
        parked = await client.send(api.Poll(("jobs",), 1, wait_ms=60_000))
        await client.ask(api.Ping())
        broker = world.node.broker
        with HeldDisk(world):
            in_flight = await client.send(api.Push("other", columns(b"a")))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(supervisor.drain, world.node, world.front)
            await trio.testing.wait_all_tasks_blocked()

            assert () == (await client.answer(parked)).runs
            assert client.went_away is not None
            assert 1 == broker.in_flight
        assert 1 == (await client.answer(in_flight)).count


@pytest.mark.trio
async def test_a_clean_stop_leaves_a_snapshot_and_a_restart_has_it_all() -> None:
    """What a restart reads is the snapshot, and the messages and leases in it are those of before."""
    disk = SimDisk()
    async with running(disk=disk, clean=True) as world:
        client = await world.connect()
        await client.ask(api.Push("jobs", columns(b"a", b"b")))
        polled = await client.ask(api.Poll(("jobs",), 1))
        applied = world.node.replica.applied_index
    async with running(disk=disk) as world:
        assert applied == world.node.replica.stats()["snapshot_index"]
        client = await world.connect()
        receipt = polled.runs[0].receipt
        settled = await client.ask(api.Settle("jobs", api.SettleKind.ACK, (api.Item(receipt),)))
        rest = await client.ask(api.Poll(("jobs",), 10))

        assert api.Settled((0,)) == settled
        assert [b"b"] == payloads(rest)
