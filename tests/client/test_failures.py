"""Errors of calls on many messages: what happened to which, and whether it may still happen."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

import walrq
from tests.client.fake_server import Connection, FakeServer, delivered
from walrq import api
from walrq.client import operations as op
from walrq.client.failures import BatchError, EntryFailure
from walrq.client.messages import Batch
from walrq.errors import (
    Code,
    ConnectionLost,
    DiskFull,
    QueueFull,
    ReceiptExpired,
    ReceiptInvalid,
    ReplyTimeout,
    WalrqError,
)
from walrq.limits import BATCH_MESSAGES_MAX
from walrq.protocol.requests import Incoming


def batch(count: int = 3, lease: int = 1) -> Batch:
    """A leased run."""
    return Batch(delivered("q", 5, (b"x",) * count, lease=lease), 0.0)


@pytest.mark.parametrize(
    ("failures", "definite", "retry"),
    [
        ([QueueFull("full")], True, False),
        ([DiskFull("full")], True, True),
        ([DiskFull("full"), QueueFull("full")], True, False),
        ([ConnectionLost("gone")], False, True),
        ([DiskFull("full"), ConnectionLost("gone")], False, True),
    ],
    ids=str,
)
def test_a_batch_error_is_as_definite_as_its_least_definite_part(
    failures: list[WalrqError], definite: bool, retry: bool
) -> None:
    """When unsure, it may have happened."""
    error = BatchError([EntryFailure(batch(), each) for each in failures], 0)

    assert (definite, retry) == (error.definite, error.retry)


def test_the_text_counts_messages_and_names_the_first_reason() -> None:
    """Short, whatever the number: who wants all of it reads `failures`."""
    whole, alone = batch(3), batch(1).messages()[0]
    error = BatchError([EntryFailure(whole, ReceiptExpired("q: over")), EntryFailure(alone, ReceiptExpired("x"))], 6)

    assert "4 of 10 messages failed, first: q: over; the other 6 went through" == str(error)
    assert (4, 6) == (error.failed, error.succeeded)
    mixed = BatchError([EntryFailure((0, 9), QueueFull("q is full")), EntryFailure((10, 11), DiskFull("no space"))], 0)
    assert "12 of 12 messages failed (2 different reasons, see failures), first: q is full" == str(mixed)


def codes(fake: FakeServer, *given: int) -> None:
    """Let settles and touches be answered with these codes, item by item."""

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        request = incoming.request
        if type(request) is api.Settle:
            return api.Settled(given)
        if type(request) is api.Touch:
            return api.Touched(given, (60_000,) * len(given))
        return fake.list_queue(connection, incoming)

    fake.script = script


CALLS: dict[str, Callable[[walrq.Client, Iterable[walrq.Message]], None]] = {
    "ack": lambda client, messages: client.ack(messages),
    "nack": lambda client, messages: client.nack(messages),
    "touch": lambda client, messages: client.touch(messages, 60),
}
by_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


@by_call
def test_a_list_that_went_through_in_part_says_which_did_not(
    fake: FakeServer, call: Callable[[walrq.Client, Iterable[walrq.Message]], None]
) -> None:
    """The caller goes on with the others and knows them."""
    codes(fake, 0, int(Code.RECEIPT_EXPIRED), int(Code.RECEIPT_INVALID))
    with walrq.connect(fake.url) as client:
        client.push_batch("q", [b"a", b"b", b"c"])
        messages = client.poll("q")
        with pytest.raises(walrq.BatchError) as caught:
            call(client, messages)

    error = caught.value
    assert [messages[1], messages[2]] == [failure.entry for failure in error.failures]
    assert [ReceiptExpired, ReceiptInvalid] == [type(failure.error) for failure in error.failures]
    assert (1, (), True, False) == (error.succeeded, error.results, error.definite, error.retry)


@by_call
def test_a_list_that_failed_as_a_whole_is_its_one_error(
    fake: FakeServer, call: Callable[[walrq.Client, Iterable[walrq.Message]], None]
) -> None:
    """`except ReceiptExpired` works for a list as for one."""
    codes(fake, *(int(Code.RECEIPT_EXPIRED),) * 3)
    with walrq.connect(fake.url) as client:
        client.push_batch("q", [b"a", b"b", b"c"])
        with pytest.raises(ReceiptExpired, match="longer visibility"):
            call(client, client.poll("q"))


def test_only_settled_messages_are_marked_and_only_touched_ones_extended(fake: FakeServer) -> None:
    """What failed may be tried again."""
    codes(fake, 0, int(Code.RECEIPT_EXPIRED), int(Code.RECEIPT_INVALID))
    with walrq.connect(fake.url) as client:
        client.push_batch("q", [b"a", b"b", b"c"])
        messages = client.poll("q", 10)
        with pytest.raises(walrq.BatchError):
            client.touch(messages, 60)
        assert [True, False, False] == [message.remaining > 50 for message in messages]
        assert [False] * 3 == [message.settled for message in messages]
        with pytest.raises(walrq.BatchError):
            client.ack(messages)

    assert [True, True, False] == [message.settled for message in messages]


def test_a_push_of_several_units_says_which_messages_are_there(fake: FakeServer) -> None:
    """Ids where it went through, None where it did not, positions for those who push them again."""
    pushes = 0

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        nonlocal pushes
        if type(incoming.request) is api.Push:
            pushes += 1
            if incoming.request.columns.count < BATCH_MESSAGES_MAX:
                return api.Failed(int(Code.QUEUE_FULL), "q is full")
        return fake.list_queue(connection, incoming)

    fake.script = script
    with walrq.connect(fake.url) as client, pytest.raises(walrq.BatchError) as caught:
        client.push_batch("q", [b"x"] * (BATCH_MESSAGES_MAX + 5))

    error = caught.value
    (failure,) = error.failures
    assert (BATCH_MESSAGES_MAX, BATCH_MESSAGES_MAX + 4) == failure.entry
    assert [None] * 5 == list(error.results)[BATCH_MESSAGES_MAX:]
    assert None not in list(error.results)[:BATCH_MESSAGES_MAX]
    assert f"5 of {BATCH_MESSAGES_MAX + 5:,} messages failed, first: q is full; the other 10,000 went through" == str(
        error
    )


def test_a_push_that_failed_for_different_reasons_is_not_taken_for_definite() -> None:
    """The first unit was refused, the second may have happened: the call as a whole may have."""
    requests = op.push_many("q", [b"x"] * (BATCH_MESSAGES_MAX + 1), None, op.PushOptions())
    with pytest.raises(BatchError) as caught:
        op.pushed(requests, [QueueFull("full"), ReplyTimeout("late")])

    assert not caught.value.definite
    with pytest.raises(QueueFull):
        op.pushed(requests, [QueueFull("full"), QueueFull("full")])


@pytest.mark.parametrize("wrong", [5, None, [5], [b"x"], object()], ids=["5", "None", "[5]", "[b'x']", "object"])
def test_what_is_no_message_is_named(wrong: object) -> None:
    """Not an AttributeError from deep below."""
    with pytest.raises(WalrqError, match="expected a message, a batch or a list of them"):
        op.settlements(wrong)  # type: ignore[arg-type]
