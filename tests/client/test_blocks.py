"""`with message:`, `with batch:`, `with client.poll_batch(...)`: what a block that ends leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import walrq
from tests.client.fake_server import Connection, FakeServer
from tests.forks.nodes import Node
from walrq import api
from walrq.api import SettleKind
from walrq.client.blocking import SyncBatch, SyncBatches, SyncMessage
from walrq.client.messages import leaving
from walrq.errors import Code, ReceiptExpired
from walrq.protocol.requests import Incoming


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A daemon; each test uses a queue of its own."""
    with Node(tmp_path_factory.mktemp("blocks") / "data") as started:
        yield started.start()


@pytest.fixture
def client(node: Node) -> Iterator[walrq.Client]:
    """A blocking client of the daemon."""
    with walrq.connect(node.url) as connected:
        yield connected


class Trouble(Exception):
    """What a block raises in these tests."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (None, SettleKind.ACK),
        (Trouble(), SettleKind.FAIL),
        (KeyboardInterrupt(), SettleKind.RELEASE),
        (SystemExit(1), SettleKind.RELEASE),
        (GeneratorExit(), SettleKind.RELEASE),
        (BaseExceptionGroup("", [KeyboardInterrupt(), Trouble()]), SettleKind.RELEASE),
        (ExceptionGroup("", [Trouble()]), SettleKind.FAIL),
    ],
    ids=repr,
)
def test_how_a_block_is_left_says_what_becomes_of_its_messages(error: BaseException | None, kind: SettleKind) -> None:
    """An interrupt is not the message's fault: it must not cost an attempt."""
    assert kind is leaving(error)


BLOCKS: dict[str, Callable[[SyncBatches], AbstractContextManager[object]]] = {
    "message": lambda found: found.messages()[0],
    "batch": lambda found: found[0],
    "poll": lambda found: found,
}
by_block = pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS.keys())


@by_block
def test_a_block_that_ends_acknowledges(
    client: walrq.Client, block: Callable[[SyncBatches], AbstractContextManager[object]], request: pytest.FixtureRequest
) -> None:
    """Nobody has to remember the ack."""
    queue = request.node.name
    client.push(queue, b"x")
    with block(client.poll_batch(queue)):
        assert 1 == client.show_queue(queue).leased

    info = client.show_queue(queue)
    assert (0, 0, 0) == (info.ready, info.leased, info.delayed)


@by_block
def test_a_block_that_raises_fails_with_its_error(
    client: walrq.Client, block: Callable[[SyncBatches], AbstractContextManager[object]], request: pytest.FixtureRequest
) -> None:
    """The attempt counts, and the death report tells why; the error reaches the caller as it was."""
    queue = request.node.name
    client.create_queue(queue, max_deliveries=1)
    client.push(queue, b"x")
    error = Trouble("no paper")
    with pytest.raises(Trouble) as caught, block(client.poll_batch(queue)):
        raise error

    assert error is caught.value
    (dead,) = client.list_dead(queue)
    assert ("failed", "Trouble") == (dead.reason, dead.history[-1].error_type)
    assert "no paper" in str(dead.history[-1].error_text)


@by_block
def test_a_block_that_is_interrupted_releases_free_of_charge(
    client: walrq.Client, block: Callable[[SyncBatches], AbstractContextManager[object]], request: pytest.FixtureRequest
) -> None:
    """Ctrl-C in a worker: the next one has the message at once, and it has not failed."""
    queue = request.node.name
    client.push(queue, b"x")
    with pytest.raises(KeyboardInterrupt), block(client.poll_batch(queue, 3600)):
        raise KeyboardInterrupt

    (message,) = client.poll(queue, wait=10)
    assert (b"x", 0, 2) == (message.payload, message.attempts, message.delivery)
    message.ack()


def test_a_block_leaves_alone_what_was_given_back_inside(client: walrq.Client) -> None:
    """Who decides by hand has decided."""
    client.push_batch("inside", [b"%d" % number for number in range(4)])
    with client.poll_batch("inside", 3600) as batches:
        done, failed, released, untouched = batches.messages()
        done.ack()
        failed.nack("fail", delay=3600)
        released.nack("release")
        assert (True, True, True, False) == (done.settled, failed.settled, released.settled, untouched.settled)

    info = client.show_queue("inside")
    assert (1, 0) == (info.ready, info.leased)
    assert [b"2"] == [message.payload for message in client.poll("inside")]
    assert all(batch.settled for batch in batches)


def test_a_block_whose_messages_are_all_given_back_asks_for_nothing(fake: FakeServer) -> None:
    """No second ack that could only be refused."""
    with walrq.connect(fake.url) as client:
        client.push("q", b"x")
        with client.poll_batch("q") as batches:
            client.ack(batches)
        with client.poll_batch("q"):
            pass

    assert [SettleKind.ACK] == [settled.kind for settled in fake.settled]


def test_a_poll_of_many_runs_is_given_back_in_one_request(fake: FakeServer) -> None:
    """One block, one round trip."""
    with walrq.connect(fake.url) as client:
        for number in range(5):
            client.push("q", b"%d" % number)
        with client.poll_batch("q") as batches:
            assert [b"0", b"1", b"2", b"3", b"4"] == list(batches.payloads())

    assert [5] == [len(settled.items) for settled in fake.settled]


def expired(fake: FakeServer) -> Callable[[Connection, Incoming], api.Reply | None]:
    """A script that finds every lease over."""

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        if type(incoming.request) is api.Settle:
            return api.Settled((int(Code.RECEIPT_EXPIRED),) * len(incoming.request.items))
        return fake.list_queue(connection, incoming)

    return script


def test_a_lease_that_ended_inside_the_block_is_told_at_its_end(fake: FakeServer) -> None:
    """The work was done, and somebody else may be doing it again: that must not pass in silence."""
    fake.script = expired(fake)
    with walrq.connect(fake.url) as client:
        client.push("q", b"x")
        (message,) = client.poll("q")
        with pytest.raises(ReceiptExpired, match="touch"), message:
            pass

        assert message.settled


def test_a_lost_lease_that_the_block_knows_of_is_told_once(fake: FakeServer) -> None:
    """Who caught the error of an ack is not given it again."""
    fake.script = expired(fake)
    with walrq.connect(fake.url) as client:
        client.push("q", b"x")
        (message,) = client.poll("q")
        with message, pytest.raises(ReceiptExpired):
            message.ack()

    assert ["Push", "Poll", "Settle"] == fake.kinds()


def test_the_blocks_own_error_is_never_replaced(fake: FakeServer) -> None:
    """The nack failed too: that is a note on the error, not another error."""
    fake.script = expired(fake)
    with walrq.connect(fake.url) as client:
        client.push("q", b"x")
        with pytest.raises(Trouble) as caught, client.poll("q")[0]:
            raise Trouble

    (note,) = caught.value.__notes__
    assert "could not be given back" in note
    assert "the lease is over" in note


def test_a_consumer_and_blocks_work_together(client: walrq.Client) -> None:
    """The shortest right loop: what fails is retried, what is done is gone."""
    client.create_queue("loop", backoff_ms=1)
    client.push_batch("loop", [b"good", b"bad", b"good"])
    seen: list[tuple[bytes, int]] = []
    for message in client.consume("loop", wait=5):
        try:
            with message:
                seen.append((message.payload, message.attempts))
                if message.payload == b"bad" and not message.attempts:
                    raise Trouble
        except Trouble:
            continue
        if len(seen) == 4:
            break

    assert [(b"bad", 0), (b"bad", 1), (b"good", 0), (b"good", 0)] == sorted(seen)
    info = client.show_queue("loop")
    assert (0, 0) == (info.ready, info.leased)


def test_messages_and_batches_touch_and_reject_by_themselves(client: walrq.Client) -> None:
    """Everything that can be asked of a client for a message can be asked of the message."""
    client.create_queue("self", dlq="self-dead")
    client.push_batch("self", [b"a", b"b"])
    (batch,) = client.poll_batch("self", 10)
    assert isinstance(batch, SyncBatch)
    batch.touch(100)
    assert 99 < batch.remaining <= 100
    message = batch.messages()[0]
    assert isinstance(message, SyncMessage)
    message.touch(200)
    assert 199 < message.remaining <= 200
    batch.nack("reject", error="no use")

    assert batch.settled
    assert [("rejected", "no use")] * 2 == [
        (dead.reason, dead.history[-1].error_text) for dead in client.list_dead("self")
    ]


def test_a_batch_and_its_messages_are_given_back_together(client: walrq.Client) -> None:
    """A list may hold both; a batch stands for all that is left of it."""
    client.push_batch("both", [b"a", b"b", b"c"])
    (batch,) = client.poll_batch("both")
    first, second, _ = batch.messages()
    client.ack(first)
    client.ack([second, batch])

    info = client.show_queue("both")
    assert (0, 0) == (info.ready, info.leased)


def test_blocks_survive_a_kill_of_the_server(tmp_path: Path) -> None:
    """The ack at the block's end is retried like any other."""
    with Node(tmp_path / "data") as node:
        node.start()
        with walrq.connect(node.url, timeout_s=60, retry_first_s=0.01, retry_max_s=0.1) as client:
            client.push_batch("q", [b"a", b"b"])
            with client.poll_batch("q", 600):
                host, port = node.address
                node.kill()
                node.listen = f"{host}:{port}"
                node.start()

            info = client.show_queue("q")
            assert (0, 0) == (info.ready, info.leased)
