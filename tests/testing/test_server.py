"""The node in the test's process keeps a queue's promises when its clock is moved, and when it is treated badly."""

from __future__ import annotations

import errno
import math
import os
import socket
import threading
from collections.abc import Iterator

import pytest

import walrq
from tests.requirements import require
from walrq.errors import (
    ConfigError,
    DiskFull,
    InternalError,
    InvalidArgument,
    ReceiptExpired,
    StorageError,
    WalrqError,
)
from walrq.testing.clock import MovableClock, Settled
from walrq.testing.report import describe
from walrq.testing.server import Server


@pytest.fixture
def server(seed: int) -> Iterator[Server]:
    with Server(seed=seed) as running:
        yield running


@pytest.fixture
def client(server: Server) -> walrq.Client:
    return server.connect(retry_first_s=0.002, retry_max_s=0.02)


def texts(messages: list[walrq.Message]) -> list[str]:
    return [message.payload.decode() for message in messages]


def counts(server: Server, queue: str) -> tuple[int, int, int, int]:
    """(ready, delayed, leased, dead) of one queue."""
    (info,) = [each for each in server.queues() if each.name == queue]
    return info.ready, info.delayed, info.leased, info.dead


# --- time ---------------------------------------------------------------------------------------------------
def test_a_lease_ends_when_the_clock_is_advanced(server: Server, client: walrq.Client) -> None:
    """Not before its end, and at once then: `advance` returns when the message is back."""
    client.push("jobs", "a")
    (message,) = client.poll("jobs", visibility=600)

    server.clock.advance(500)
    before = counts(server, "jobs")
    server.clock.advance(101)

    assert (0, 0, 1, 0) == before
    assert (1, 0, 0, 0) == counts(server, "jobs")
    assert message.remaining < 0
    with pytest.raises(ReceiptExpired):
        client.ack(message)
    assert [2] == [again.delivery for again in client.poll("jobs")]


def test_a_touch_counts_on_the_moved_clock(server: Server, client: walrq.Client) -> None:
    """Extended before its end, a lease lives on."""
    client.push("jobs", "a")
    (message,) = client.poll("jobs", visibility=600)

    for _ in range(5):
        server.clock.advance(400)
        client.touch(message, 600)
    client.ack(message)

    assert (0, 0, 0, 0) == counts(server, "jobs")


def test_a_delayed_message_comes_in_its_time(server: Server, client: walrq.Client) -> None:
    """Never early; there when `advance` returns, also over thirty days."""
    client.push("mail", "in an hour", delay=3600)
    client.push("mail", "in a month", delay=30 * 86_400)

    server.clock.advance(3500)
    assert [] == client.poll("mail")
    server.clock.advance(101)
    (message,) = client.poll("mail")
    client.ack(message)
    server.clock.advance(30 * 86_400 - 3601)

    assert b"in an hour" == message.payload
    assert ["in a month"] == texts(client.poll("mail"))


def test_deliver_at_follows_the_moved_wall_clock(server: Server, client: walrq.Client) -> None:
    """`clock.now` is what the node takes for now."""
    server.clock.advance(86_400)
    client.push("mail", "x", deliver_at=server.clock.time() + 600)

    server.clock.advance(500)
    early = client.poll("mail")
    server.clock.advance(101)

    assert [] == early
    assert ["x"] == texts(client.poll("mail"))


def test_a_failed_message_comes_back_after_its_back_off(server: Server, client: walrq.Client) -> None:
    """A hundred seconds, then two hundred, waited out in no time."""
    client.create_queue("jobs", backoff_ms=100_000, backoff_max_ms=1_000_000)
    client.push("jobs", "a")
    waited = []
    for _ in range(2):
        (message,) = client.poll("jobs")
        client.nack(message)
        waited.append(server.clock.advance_until(lambda: counts(server, "jobs")[0] > 0, 3600))

    assert 0 < waited[0] <= 100.01 < waited[1] <= 200.01


def test_a_message_dies_after_its_attempts(server: Server, client: walrq.Client) -> None:
    """With the story of its death, in the dead-letter queue."""
    client.push("jobs", "a", max_attempts=3)
    for _ in range(3):
        (message,) = client.poll("jobs")
        client.nack(message, error=ValueError("no such user"))
        server.clock.advance(60)

    assert (0, 0, 0, 1) == counts(server, "jobs")
    (dead,) = client.list_dead("jobs")
    assert ("failed", 3) == (dead.reason, dead.attempts)
    assert "no such user" in repr(dead.history)


def test_a_dedup_window_ends_on_the_moved_clock(server: Server, client: walrq.Client) -> None:
    """Five minutes unless the queue says otherwise."""
    first = client.push("jobs", "a", dedup_id="order 7")

    server.clock.advance(200)
    second = client.push("jobs", "a", dedup_id="order 7")
    server.clock.advance(101)
    third = client.push("jobs", "a", dedup_id="order 7")

    assert first == second
    assert third != first
    assert 2 == counts(server, "jobs")[0]


def test_a_long_poll_wakes_when_its_message_is_due(server: Server, client: walrq.Client) -> None:
    """A reader that waits in another thread gets it while the clock passes that moment, under a lease from then on."""
    client.push("mail", "later", delay=600)
    found: list[walrq.Message] = []
    reader = server.connect()
    thread = threading.Thread(target=lambda: found.extend(reader.poll("mail", visibility=3600, wait=3600)))
    thread.start()
    await_parked(server, 1)

    server.clock.advance(610)
    thread.join()

    assert ["later"] == texts(found)
    assert 0 < found[0].remaining <= 3590.01, "the lease began when the message was due"


def test_a_long_poll_ends_empty_on_the_moved_clock(server: Server, client: walrq.Client) -> None:
    """A wait of twenty seconds costs a test none."""
    found: list[list[walrq.Message]] = []
    thread = threading.Thread(target=lambda: found.append(client.poll("mail", wait=20)))
    thread.start()
    await_parked(server, 1)

    server.clock.advance(21)
    thread.join()

    assert [[]] == found


def await_parked(server: Server, count: int) -> None:
    """Return once so many polls wait."""
    with server.connect() as other:
        while other.stats()["parked_polls"] < count:
            pass  # each look is a question to the server and its answer


def test_a_worker_keeps_up_with_the_clock(server: Server, client: walrq.Client) -> None:
    """What is handed out in the middle of an `advance` can be acknowledged before its lease is over."""
    for minute in range(1, 11):
        client.push("jobs", str(minute), delay=60 * minute)
    done: list[int] = []
    mine = server.connect()

    def work() -> None:
        while len(done) < 10:
            for message in mine.poll("jobs", visibility=5, wait=3600):
                mine.ack(message)
                done.append(message.delivery)

    thread = threading.Thread(target=work)
    thread.start()
    await_parked(server, 1)
    server.clock.advance(700)
    thread.join()

    assert [1] * 10 == done


class Stops:
    """Counts at how many moments the clock stood still."""

    def __init__(self) -> None:
        self.moments: set[float] = set()
        self.clock: MovableClock | None = None

    def settle(self, give_up_at: float) -> Settled:
        assert self.clock is not None
        self.moments.add(self.clock.monotonic())
        return Settled(math.inf, ())


def test_a_reader_that_waits_in_vain_does_not_make_a_day_long(server: Server, client: walrq.Client) -> None:
    """Its polls end on the way, before what comes later, and not one by one."""
    client.push("jobs", "x", delay=3600)
    found: list[list[str]] = []
    stop = threading.Event()
    mine = server.connect()

    def read() -> None:
        while not stop.is_set():
            found.append(texts(mine.poll("jobs", visibility=12 * 3600, wait=20)))

    thread = threading.Thread(target=read)
    thread.start()
    await_parked(server, 1)
    stops = Stops()
    stops.clock = server.clock
    server.clock.attach(stops)
    server.clock.advance(6 * 3600)
    stop.set()
    server.clock.advance(20)
    thread.join()

    assert [] == found[0], "its poll was over long before the message was due"
    assert [["x"]] == [each for each in found if each]
    assert len(stops.moments) < 50


def test_a_client_may_connect_while_the_clock_is_advanced(server: Server) -> None:
    """Its greeting has ten seconds; an hour that passes at once does not end it."""
    stop = threading.Event()
    failed: list[BaseException] = []
    connected: list[float] = []

    def connect() -> None:
        while not stop.is_set():
            try:
                with server.connect() as mine:
                    connected.append(mine.ping())
            except WalrqError as error:
                failed.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    while len(connected) < 20:
        server.clock.advance(36_000)
    stop.set()
    thread.join()

    assert [] == failed


def test_a_connection_that_says_nothing_does_not_hold_the_clock_up(server: Server) -> None:
    """It is sent away when its time is over, as any other."""
    with socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2]))) as silent:
        server.clock.advance(12)
        silent.settimeout(10)
        farewell = b"".join(iter(lambda: silent.recv(4096), b""))

    assert b"Hello" in farewell


def test_sessions_of_living_clients_outlive_the_moved_hours(server: Server, client: walrq.Client) -> None:
    """An idle session ends after an hour; one with a connection is kept, in a moved hour too."""
    client.push("jobs", "a")
    before = sessions(server)
    left = server.connect()
    left.push("jobs", "b")
    left.close()

    server.clock.advance(10 * 3600)

    assert before
    assert before == sessions(server)


def sessions(server: Server) -> set[int]:
    """Those that the node remembers."""
    assert server.node is not None
    return set(server.node.replica.machine.sessions.table)


# --- lives --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["restart", "kill", "crash"])
def test_what_was_acknowledged_survives(server: Server, client: walrq.Client, how: str) -> None:
    """Messages, leases and acks: the disk of the next life has all that was answered in this one."""
    client.push_batch("jobs", [str(number) for number in range(100)])
    for message in client.poll("jobs", max_messages=10):
        client.ack(message)
    (held,) = client.poll("jobs", max_messages=1)

    getattr(server.faults, how)()

    assert (89, 0, 1, 0) == counts(server, "jobs")
    client.ack(held)
    assert ["11"] == texts(client.poll("jobs", max_messages=1))


def test_a_crash_between_any_two_pushes_loses_none_that_was_answered(server: Server, client: walrq.Client) -> None:
    """Twenty power losses, each with its own fate of what was not synced."""
    for number in range(20):
        client.push("jobs", str(number))
        server.faults.crash()

    assert [str(number) for number in range(20)] == texts(client.poll("jobs", max_messages=100))


def test_a_crash_under_load_loses_nothing_that_was_answered(server: Server) -> None:
    """The power goes while pushes are on their way: those that were answered are there, none is there twice."""
    answered: list[str] = []
    enough = threading.Event()

    def push(name: str) -> None:
        with server.connect(retry_first_s=0.002, retry_max_s=0.02) as mine:
            for number in range(60):
                mine.push("jobs", f"{name}{number}")
                answered.append(f"{name}{number}")
                if len(answered) >= 30:
                    enough.set()

    threads = [threading.Thread(target=push, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    assert enough.wait(30)
    for _ in range(3):
        server.faults.crash()
    for thread in threads:
        thread.join()

    with server.connect() as reader:
        assert sorted(answered) == sorted(texts(reader.poll("jobs", max_messages=1000)))


def test_a_node_that_is_down_refuses_connections_and_keeps_its_address(server: Server, client: walrq.Client) -> None:
    """Clients that wait find it again."""
    client.push("jobs", "a")
    url = server.url
    with server.faults.stop():
        assert not server.running
        assert [] == server.queues()
        with pytest.raises(walrq.ServerUnreachable):
            server.connect()
    assert server.running
    assert url == server.url
    assert ["a"] == texts(client.poll("jobs"))


def test_the_clock_can_be_moved_while_the_node_is_down(server: Server, client: walrq.Client) -> None:
    """A lease does not run while nobody counts it; a delay does, by the wall clock."""
    client.push("jobs", "a")
    client.push("mail", "b", delay=60)
    client.poll("jobs", visibility=30)

    with server.faults.stop():
        server.clock.advance(120)

    assert (0, 0, 1, 0) == counts(server, "jobs")
    assert ["b"] == texts(client.poll("mail"))


def test_a_server_that_was_reset_is_empty(server: Server, client: walrq.Client) -> None:
    """And healthy: what one test did to it is not there for the next."""
    client.push("jobs", "a")
    client.push("mail", "b", delay=60)
    server.faults.refuse_connections()
    server.faults.stop()

    server.reset()

    assert [] == server.queues()
    client.push("jobs", "c")
    assert (1, 0, 0, 0) == counts(server, "jobs")


def test_a_closed_server_says_so() -> None:
    """No hang, no bare error of its insides."""
    server = Server()
    server.close()
    server.close()

    with pytest.raises(InternalError, match="closed"):
        server.queues()


def test_a_wrong_setting_starts_nothing() -> None:
    """The error is the daemon's own, and no thread stays."""
    before = threading.active_count()

    with pytest.raises(ConfigError, match="auto_create"):
        Server(autocreate=True)

    assert before == threading.active_count()


def test_nothing_stays_behind() -> None:
    """Thread, port, descriptors: as before."""
    with Server():
        pass
    descriptors = len(os.listdir("/proc/self/fd"))
    with Server() as server:
        client = server.connect()
        client.push("jobs", "a")
        port = int(server.address.rpartition(":")[2])

    assert descriptors == len(os.listdir("/proc/self/fd"))
    assert [] == [thread.name for thread in threading.enumerate() if thread.name.startswith("walrq")]
    with socket.socket() as probe:
        assert 0 != probe.connect_ex(("127.0.0.1", port))


# --- the network --------------------------------------------------------------------------------------------
def test_cut_connections_are_survived(server: Server, client: walrq.Client) -> None:
    """The client connects again, under the same session, and nothing happens twice."""
    for number in range(30):
        client.push("jobs", str(number))
        if number % 3 == 0:
            assert 1 == server.faults.cut_connections()

    assert 30 == counts(server, "jobs")[0]


def test_a_lost_reply_does_not_make_a_push_happen_twice(server: Server, client: walrq.Client) -> None:
    """It was done, its answer was lost, the client asked again: one message."""
    client.push("jobs", "a")
    server.faults.drop_reply()

    client.push("jobs", "b")

    assert ["lost a reply, cut its connection"] == server.faults.notes
    assert 2 == counts(server, "jobs")[0]


def test_a_lost_reply_without_a_session_is_told(server: Server) -> None:
    """Who waived the session learns that the outcome is unknown."""
    client = server.connect(session=False)
    client.push("jobs", "a")
    server.faults.drop_reply()

    with pytest.raises(walrq.errors.OutcomeUnknown):
        client.push("jobs", "b")

    assert 2 == counts(server, "jobs")[0]


def test_a_lost_request_is_sent_again(server: Server, client: walrq.Client) -> None:
    """It was not done; the client does not know, and asks again."""
    client.push("jobs", "a")
    server.faults.drop_request()

    client.push("jobs", "b")

    assert ["lost a request, cut its connection"] == server.faults.notes
    assert 2 == counts(server, "jobs")[0]


def test_the_nth_is_the_nth(server: Server, client: walrq.Client) -> None:
    """Two replies arrive, the third does not."""
    client.push("jobs", "a")
    server.faults.drop_reply(3)
    notes = []
    for _ in range(3):
        client.push("jobs", "b")
        notes.append(len(server.faults.notes))

    assert [0, 0, 1] == notes


def test_refused_connections_are_refused_until_accepted(server: Server, client: walrq.Client) -> None:
    """Calls wait for the end of it, or for their own time-out."""
    client.push("jobs", "a")
    with server.faults.refuse_connections():
        with pytest.raises(WalrqError):
            server.connect(timeout_s=0.1, connect_timeout_s=0.1)

    client.push("jobs", "b")
    assert 2 == counts(server, "jobs")[0]


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda faults: faults.drop_reply(0), "nth"),
        (lambda faults: faults.drop_request(-1), "nth"),
        (lambda faults: faults.seeded(crashes=1.5), "crashes"),
        (lambda faults: faults.slow_disk(-1), "ms"),
    ],
)
def test_a_wrong_fault_names_its_field(server: Server, call: object, field: str) -> None:
    """And nothing is done to the server."""
    with pytest.raises(InvalidArgument, match=f"^{field} is "):
        call(server.faults)  # type: ignore[operator]

    assert [] == server.faults.notes


# --- seeds --------------------------------------------------------------------------------------------------
def story(seed: int) -> tuple[list[str], list[str]]:
    """What a seeded mixture does to a client that makes one call after the other; what is there at the end."""
    with Server(seed=seed) as server:
        client = server.connect(retry_first_s=0.002, retry_max_s=0.02)
        with server.faults.seeded(lost_requests=0.1, lost_replies=0.1, crashes=0.05):
            for number in range(40):
                client.push("jobs", str(number))
        return server.faults.notes, texts(client.poll("jobs", max_messages=100))


def test_the_same_seed_does_the_same_and_loses_nothing(seed: int) -> None:
    """Whatever happened on the way, each push took effect once, in order."""
    notes, found = story(seed)

    assert [str(number) for number in range(40)] == found
    assert len(notes) > 1, "with these chances something happens"
    assert (notes, found) == story(seed)


def test_another_seed_does_something_else(seed: int) -> None:
    """A mixture that ignored its seed would pass the test above."""
    assert len({tuple(story(seed + step)[0][1:]) for step in range(3)}) > 1


# --- the disk -----------------------------------------------------------------------------------------------
def test_a_full_disk_refuses_pushes_only(server: Server, client: walrq.Client) -> None:
    """Acks and polls go on; pushes come back with the room."""
    client.push_batch("jobs", ["a", "b"])
    impatient = server.connect(timeout_s=0.5)
    with server.faults.disk_full():
        with pytest.raises(DiskFull):
            impatient.push("jobs", "c")
        (message,) = client.poll("jobs", max_messages=1)
        client.ack(message)
        assert (1, 0, 0, 0) == counts(server, "jobs")
    client.push("jobs", "d")

    assert ["b", "d"] == texts(client.poll("jobs"))
    assert ["jobs"] == [queue.name for queue in server.queues()]


def test_a_disk_is_still_full_after_a_restart(server: Server, client: walrq.Client) -> None:
    """It is the machine's disk, not the node's."""
    client.push("jobs", "a")
    server.faults.disk_full()
    server.faults.crash()

    with pytest.raises(DiskFull):
        server.connect(timeout_s=0.5).push("jobs", "b")
    server.faults.heal()
    client.push("jobs", "c")

    assert ["a", "c"] == texts(client.poll("jobs"))


def test_a_slow_disk_delays_answers_and_gathers_pushes(server: Server, client: walrq.Client) -> None:
    """While one entry is synced the next ones gather: many pushes, few turns."""
    client.push("jobs", "first")
    with server.faults.slow_disk(20):
        turns = client.stats()["turns"]
        stream = client.push_stream("jobs", in_flight=16)
        for number in range(16):
            stream.push([str(number)])
        stream.drain()
        assert client.stats()["turns"] - turns < 16

    assert 17 == counts(server, "jobs")[0]


def test_what_ends_a_node_unasked_is_raised_in_the_end() -> None:
    """A failed sync is final for a node, as in production; the test hears of it even if it looks elsewhere."""
    server = Server()
    client = server.connect(timeout_s=0.2)
    client.push("jobs", "a")
    assert server.node is not None
    disk = server.node.storage._disk

    def fail(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.fdatasync = fail  # type: ignore[method-assign]
    with pytest.raises(walrq.errors.OutcomeUnknown):
        client.push("jobs", "b")

    assert not server.running
    with pytest.raises(BaseExceptionGroup) as raised:
        server.close()
    assert raised.group_contains(StorageError)


@pytest.mark.parametrize("front", ["reactor", "stream"])
def test_both_ways_of_carrying_connections_take_faults(front: str, seed: int) -> None:
    """Systems without epoll have the same fixtures."""
    if front == "reactor":
        require("epoll")
    with Server(seed=seed, front=front) as server:
        client = server.connect(retry_first_s=0.002, retry_max_s=0.02)
        client.push("jobs", "a")
        server.faults.drop_reply()
        client.push("jobs", "b")
        server.faults.drop_request()
        client.push("jobs", "c")
        server.faults.cut_connections()
        client.push("jobs", "d")
        server.faults.crash()
        with server.faults.refuse_connections(), pytest.raises(WalrqError):
            server.connect(timeout_s=0.1, connect_timeout_s=0.1)
        server.clock.advance(3600)

        assert ["a", "b", "c", "d"] == texts(client.poll("jobs"))
        lost = ["lost a reply, cut its connection", "lost a request, cut its connection"]
        assert lost == [note for note in server.faults.notes if note.startswith("lost")]


# --- the report ---------------------------------------------------------------------------------------------
def test_a_report_shows_queues_faults_clock_and_seed(server: Server, client: walrq.Client, seed: int) -> None:
    """What a person looks at first when a test failed."""
    client.push("jobs", "a")
    client.push("mail", "b", delay=60)
    server.clock.advance(30)
    server.faults.cut_connections()

    text = describe(server)

    assert f"seed    {seed}" in text
    assert "faults  cut 1 connections" in text
    assert "advanced by 30 s" in text
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines()[-3:]}
    assert ["ready", "delayed", "leased", "parked", "dead"] == rows["queues"]
    assert ["1", "0", "0", "0", "0"] == rows["jobs"]
    assert ["0", "1", "0", "0", "0"] == rows["mail"]


def test_a_report_of_a_server_that_is_down_or_closed_is_still_a_report(server: Server) -> None:
    """It is made while a test fails: it may not fail itself."""
    server.stop()
    down = describe(server)
    server.close()

    assert "(down)" in down
    assert "closed" in describe(server)
