"""The blocking client against a scripted server: threads, forks, event loops."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import walrq
from tests.client.fake_server import Connection, Drop, FakeServer, delivered, running
from walrq import aio, api
from walrq.errors import LocalProtocolError, RemoteProtocolError, ReplyTimeout
from walrq.protocol.requests import Incoming


def test_push_poll_ack_in_a_row(fake: FakeServer) -> None:
    """The shortest life of a message."""
    with walrq.connect(fake.url) as client:
        pushed = client.push("mail", b"hello")
        (message,) = client.poll("mail")
        client.ack(message)

    assert (pushed, b"hello") == (message.message_id, message.payload)
    assert ["Push", "Poll", "Settle"] == fake.kinds()
    fake.wait_for(api.CloseSession)


def test_both_faces_have_the_same_methods() -> None:
    """Who knows one client knows the other; `await` is the only difference."""

    def methods(face: type) -> dict[str, list[str]]:
        return {
            name: [*inspect.signature(member).parameters]
            for name, member in inspect.getmembers(face, inspect.isfunction)
            if not name.startswith("_")
        }

    # Entering `aio.Client` connects it and leaving closes it; pipelining needs no method where tasks are
    # cheap.
    only_blocking = {"open", "close", "begin", "end", "push_stream"}
    blocking = methods(walrq.Client)

    assert methods(aio.Client) == {name: blocking[name] for name in blocking if name not in only_blocking}


def test_a_long_poll_in_one_thread_does_not_hold_up_another(fake: FakeServer) -> None:
    """One connection, many threads: whoever waits first moves the bytes for all."""
    polls: list[tuple[Connection, Incoming]] = []

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        if type(incoming.request) is api.Poll:
            polls.append((connection, incoming))
            return None
        return fake.list_queue(connection, incoming)

    fake.script = script
    with walrq.connect(fake.url) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.poll, "q", wait=30)
        fake.wait_for(api.Poll)
        for number in range(20):
            client.push("q", b"%d" % number)

        assert not waiting.done()
        connection, incoming = polls[0]
        connection.reply(incoming, api.Polled(0, 30_000, (delivered("q", 1, (b"x",)),)))
        assert [b"x"] == [message.payload for message in waiting.result(10)]


def test_many_threads_share_a_client(fake: FakeServer) -> None:
    """Every call gets its own answer."""
    with walrq.connect(fake.url) as client, ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda number: client.push("q", b"%d" % number), range(200)))

    assert 200 == len(set(ids))
    by_id = {walrq.MessageIds((api.Pushed(number, 1),))[0]: payload for _, number, payload in fake.messages}
    assert [b"%d" % number for number in range(200)] == [by_id[each] for each in ids]


def test_a_forked_child_has_a_connection_and_a_session_of_its_own(fake: FakeServer) -> None:
    """Two processes that talked on one socket would tear each other's frames."""
    with walrq.connect(fake.url) as client:
        client.push("q", b"before")
        child = os.fork()
        if child == 0:
            try:
                client.push("q", b"child")
                client.close()
            finally:
                os._exit(0)
        client.push("q", b"parent")
        assert 0 == os.waitpid(child, 0)[1]
        client.push("q", b"after")

    assert {b"before", b"child", b"parent", b"after"} == {payload for _, _, payload in fake.messages}
    assert 2 == len(fake.sessions)
    assert 2 == len(fake.hellos)


def test_it_works_inside_a_running_event_loop(fake: FakeServer) -> None:
    """Notebooks and half-converted programs call blocking code there."""

    async def main() -> list[bytes]:
        with walrq.connect(fake.url) as client:
            client.push("q", b"x")
            return [message.payload for message in client.poll("q")]

    assert [b"x"] == asyncio.run(main())


def test_a_request_cut_off_by_a_killed_server_takes_effect_once(fake: FakeServer) -> None:
    """The server executed it and died before it answered: the retry finds the answer."""
    cuts = iter([True])

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        reply = fake.list_queue(connection, incoming)
        if type(incoming.request) in (api.Push, api.Poll, api.Settle) and next(cuts, False):
            raise Drop
        return reply

    fake.script = script
    with walrq.connect(fake.url, retry_first_s=0.001) as client:
        client.push("q", b"once")
        cuts = iter([True])
        (message,) = client.poll("q")
        cuts = iter([True])
        client.ack(message)

    assert ["Push", "Push", "Poll", "Poll", "Settle", "Settle"] == fake.kinds()
    assert 1 == len(fake.settled)


def test_large_requests_do_not_deadlock_with_large_answers(fake: FakeServer) -> None:
    """Both sides' buffers full at once: whoever pumps reads while it writes."""
    big = bytes(4_000_000)

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        if type(incoming.request) is api.Poll:
            return api.Polled(0, 30_000, (delivered("q", 1, (big,)),))
        return fake.list_queue(connection, incoming)

    fake.script = script
    with walrq.connect(fake.url) as client, ThreadPoolExecutor(8) as pool:
        pushes = [pool.submit(client.push, "q", big) for _ in range(8)]
        polls = [pool.submit(client.poll_batch, "q") for _ in range(8)]

        assert 8 == len({each.result(30) for each in pushes})
        assert all([big] == list(each.result(30).payloads()) for each in polls)


def test_a_silent_server_is_a_time_out(fake: FakeServer) -> None:
    """No call hangs."""

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        return None if type(incoming.request) is api.Push else fake.list_queue(connection, incoming)

    fake.script = script
    with walrq.connect(fake.url, timeout_s=0.05) as client, pytest.raises(ReplyTimeout):
        client.push("q", b"x")


def test_time_outs_are_kept_for_threads_that_do_not_pump(fake: FakeServer) -> None:
    """The pumping thread waits for long; another's time-out passes meanwhile."""

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        held = (api.Push, api.Poll)
        return None if type(incoming.request) in held else fake.list_queue(connection, incoming)

    fake.script = script
    client = walrq.connect(fake.url, timeout_s=0.2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.poll, "q", wait=600)
        fake.wait_for(api.Poll)
        with pytest.raises(ReplyTimeout):
            client.push("q", b"x")
        client.close()
        with pytest.raises(LocalProtocolError, match="closed"):
            waiting.result(10)


def test_an_interrupted_poll_is_forgotten(fake: FakeServer) -> None:
    """Ctrl-C in a worker must not keep a message leased."""

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        if type(incoming.request) is api.Poll:
            raise_in_main.set()
            return None
        return fake.list_queue(connection, incoming)

    raise_in_main = threading.Event()
    fake.script = script
    main = threading.get_ident()

    def interrupt() -> None:
        import signal

        assert raise_in_main.wait(10)
        signal.pthread_kill(main, signal.SIGINT)

    with walrq.connect(fake.url) as client:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            client.poll("q", wait=60)
        thread.join()
        client.ping()

    fake.wait_for(api.Forget)


def test_consume_yields_what_comes_and_releases_the_rest(fake: FakeServer) -> None:
    """A loop that is left gives back what it had leased ahead, at once and free of charge."""
    with walrq.connect(fake.url) as client:
        client.push_batch("q", [b"1", b"2", b"3"])
        for message in client.consume("q", wait=0):
            client.ack(message)
            if message.payload == b"2":
                break
        client.ping()
        kinds = [settled.kind for settled in fake.settled]

    assert [api.SettleKind.ACK, api.SettleKind.ACK, api.SettleKind.RELEASE] == kinds


def test_push_stream_keeps_order_and_counts(fake: FakeServer) -> None:
    """A file pushed line by line is many batches under way, in order, counted exactly."""
    with walrq.connect(fake.url) as client:
        stream = client.push_stream("q", in_flight=4)
        for number in range(50):
            stream.push([b"%d" % (2 * number), b"%d" % (2 * number + 1)])
        stream.drain()

    assert 100 == stream.pushed
    assert [b"%d" % number for number in range(100)] == [payload for _, _, payload in fake.messages]


def test_nobody_there_is_one_helpful_sentence() -> None:
    """The first mistake everybody makes; nothing stays open behind it."""
    with running() as server:
        address = server.url
    with pytest.raises(walrq.ServerUnreachable, match="walrq serve"):
        walrq.connect(address)


def test_a_server_that_comes_later_is_waited_for() -> None:
    """A container that starts before its queue does not have to be restarted."""
    with running() as server:
        port = server.port
    ready = threading.Event()

    def late() -> None:
        with running(port):
            ready.set()
            done.wait(10)

    done = threading.Event()
    thread = threading.Thread(target=late)
    starter = threading.Timer(0.1, thread.start)
    starter.start()
    with walrq.connect(f"walrq://127.0.0.1:{port}", connect_wait_s=10, retry_first_s=0.01) as client:
        client.push("q", b"x")
    done.set()
    thread.join()

    assert ready.is_set()


def test_another_server_on_the_port_is_named_as_such() -> None:
    """The second mistake: the port of something else."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(RemoteProtocolError, match="HTTP"):
            walrq.connect(f"walrq://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()


def test_a_port_that_accepts_and_says_nothing_is_given_up() -> None:
    """A half-dead server must not hang its clients."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        started = time.monotonic()
        with pytest.raises(walrq.ServerUnreachable, match="no answer in time"):
            walrq.connect(f"walrq://127.0.0.1:{listener.getsockname()[1]}", connect_timeout_s=0.1)

    assert time.monotonic() - started < 5


def test_an_ended_session_is_replaced_on_the_same_connection(fake: FakeServer) -> None:
    """A client that was idle for an hour just works."""
    with walrq.connect(fake.url) as client:
        client.push("q", b"before")
        client._pump()._usable_by = 0.0  # the time for connecting is over; it must not end a connection that works
        fake.sessions.clear()
        client.push("q", b"after")

    assert [b"before", b"after"] == [payload for _, _, payload in fake.messages]
    assert 1 == len(fake.hellos)


def test_a_leaving_server_is_left_without_a_busy_loop(fake: FakeServer) -> None:
    """A draining server takes its time to answer; waiting for it must not burn a processor."""
    held: list[tuple[Connection, Incoming]] = []

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        if type(incoming.request) is api.Poll and not held:
            held.append((connection, incoming))
            return None
        return fake.list_queue(connection, incoming)

    fake.script = script
    with walrq.connect(fake.url, connect_timeout_s=0.05) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.poll, "q", wait=30)
        fake.wait_for(api.Poll)
        connection, incoming = held[0]
        connection.goaway(52, "stopping")
        before = time.process_time()
        threading.Event().wait(0.3)  # not for anything to happen: what is measured is that nothing does
        burnt = time.process_time() - before
        connection.reply(incoming, api.Polled(0, 30_000, ()))
        assert [] == waiting.result(10)
        client.push("q", b"x")

    assert burnt < 0.15
    assert 2 == len(fake.hellos)


def test_a_closed_client_says_so(fake: FakeServer) -> None:
    """Not a hang, not a strange error from below; closing twice is fine."""
    client = walrq.connect(fake.url)
    client.close()
    client.close()

    with pytest.raises(LocalProtocolError, match="closed"):
        client.push("q", b"x")
