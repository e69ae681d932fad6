"""From what a person writes to requests."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.fake_server import delivered
from walrq import api
from walrq.client import operations as op
from walrq.client.failures import BatchError
from walrq.client.messages import Batch, NewMessage
from walrq.errors import DelayTooLong, DiskFull, InvalidArgument, ReceiptExpired, ReceiptInvalid
from walrq.limits import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, DELAY_MS_MAX, SETTLE_ITEMS_MAX
from walrq.protocol import columns


@pytest.mark.parametrize("delay", [math.nan, math.inf, -math.inf, -0.001, True, "5", None])
def test_times_that_are_none_are_refused(delay: object) -> None:
    """NaN compares with nothing and would slip through every bound."""
    with pytest.raises(InvalidArgument):
        op.delay_ms(delay)  # type: ignore[arg-type]


def test_thirty_days_are_allowed_and_one_millisecond_more_is_not() -> None:
    """The bound is exact, and has an error of its own."""
    assert DELAY_MS_MAX == op.delay_ms(DELAY_MS_MAX / 1000)
    with pytest.raises(DelayTooLong):
        op.delay_ms((DELAY_MS_MAX + 1) / 1000)
    with pytest.raises(DelayTooLong):
        op.delay_ms(1e300)


def test_fractions_of_a_second_are_kept_in_milliseconds() -> None:
    """A lease of 1.5 s is no lease of 1 s."""
    assert [1, 500, 1500] == [op.delay_ms(seconds) for seconds in (0.001, 0.5, 1.5)]


def test_a_moment_needs_a_time_zone() -> None:
    """A naive datetime means another moment on another machine."""
    assert 1_000 == op.wall_ms(datetime.fromtimestamp(1, UTC), "deliver_at") == op.wall_ms(1, "deliver_at")
    with pytest.raises(InvalidArgument, match=r"time zone; datetime\.now\(UTC\) has one"):
        op.wall_ms(datetime(2030, 1, 1), "deliver_at")


def test_delay_and_deliver_at_exclude_each_other() -> None:
    """Two answers to one question."""
    with pytest.raises(InvalidArgument, match="exclude"):
        op.PushOptions(delay=1, deliver_at=1).request("q", columns.pack((b"",)))


@given(sizes=st.lists(st.sampled_from([0, 10, 100_000, 5_000_000, BATCH_BYTES_MAX]), max_size=20))
def test_a_list_of_any_size_becomes_batches_within_the_limits(sizes: list[int]) -> None:
    """In order, nothing left out, and no batch larger than the server takes."""
    entries = [memoryview(_ZEROS)[:size] for size in sizes]

    requests = op.push_many("q", entries, None, op.PushOptions())

    assert len(sizes) == sum(request.columns.count for request in requests)
    assert sum(sizes) == sum(len(request.columns.payloads) for request in requests)
    assert all(request.columns.size <= BATCH_BYTES_MAX for request in requests)


_ZEROS = bytes(BATCH_BYTES_MAX)


def test_many_messages_become_full_batches() -> None:
    """As few as possible: a batch is the unit of speed."""
    requests = op.push_many("q", [b"x"] * (2 * BATCH_MESSAGES_MAX + 1), None, op.PushOptions())

    assert [BATCH_MESSAGES_MAX, BATCH_MESSAGES_MAX, 1] == [request.columns.count for request in requests]


def test_messages_and_payloads_mix() -> None:
    """Columns appear only when somebody needs them."""
    (plain,) = op.push_many("q", [b"a", "ü", bytearray(b"c")], None, op.PushOptions())
    (mixed,) = op.push_many("q", [b"a", NewMessage("b", {"h": 1}, "own", "d")], "g", op.PushOptions())

    assert (None, None, None) == (plain.columns.headers, plain.columns.groups, plain.columns.dedup)
    assert "aüc".encode() == plain.columns.payloads
    assert (("g", "own"), (None, "d")) == (mixed.columns.groups, mixed.columns.dedup)
    assert [None, {"h": 1}] == columns.unpack(mixed.columns).headers


def test_messages_given_back_become_few_receipts_and_ranges() -> None:
    """One request per queue, one item per receipt, neighbours in one range; twice named is once given
    back."""
    one = Batch(delivered("a", 1, (b"",) * 8, lease=1), 0).messages()
    two = Batch(delivered("a", 50, (b"",) * 2, lease=2), 0).messages()
    other = Batch(delivered("b", 90, (b"",), lease=3), 0).messages()

    first, second = op.settlements([one[5], one[0], two[1], one[1], other[0], one[6], one[7], one[0]])

    receipts = [batch[0].batch.run.receipt for batch in (one, two, other)]
    assert ("a", (api.Item(receipts[0], ((0, 1), (5, 7))), api.Item(receipts[1], ((1, 1),)))) == (
        first.queue,
        first.items,
    )
    assert ("b", (api.Item(receipts[2], ((0, 0),)),)) == (second.queue, second.items)


def test_a_whole_batch_is_all_that_is_outstanding() -> None:
    """No ranges: what was acknowledged before does not stand in the way."""
    batch = Batch(delivered("a", 1, (b"",) * 8), 0)

    assert [(api.Item(batch.run.receipt),)] == [part.items for part in op.settlements(batch)]


def test_more_receipts_than_a_request_takes_become_several() -> None:
    """No call is too long for the wire."""
    messages = [
        Batch(delivered("a", number, (b"",), lease=number), 0).messages()[0] for number in range(SETTLE_ITEMS_MAX + 1)
    ]

    assert [SETTLE_ITEMS_MAX, 1] == [len(part.items) for part in op.settlements(messages)]


def test_failures_of_some_name_each_and_count_the_rest() -> None:
    """A worker retries what failed, not what is done."""
    messages = Batch(delivered("a", 1, (b"",) * 3, lease=1), 0).messages()
    messages += Batch(delivered("a", 9, (b"",), lease=2), 0).messages()
    parts = op.settlements(messages)

    op.check_settled(parts, [(0, 0)])
    with pytest.raises(BatchError) as some:
        op.check_settled(parts, [(0, 11)])
    with pytest.raises(ReceiptExpired):
        op.check_settled(parts, [(11, 11)])
    with pytest.raises(DiskFull):
        op.check_settled(parts, [DiskFull("full")])

    assert ([messages[3]], 3) == ([failure.entry for failure in some.value.failures], some.value.succeeded)
    assert some.value.definite
    assert not some.value.retry


def test_a_push_in_part_gives_every_message_its_id_or_none() -> None:
    """Of 20,000 messages 10,000 failed: which?"""
    requests = op.push_many("q", [b""] * (BATCH_MESSAGES_MAX + 2), None, op.PushOptions())

    with pytest.raises(BatchError) as caught:
        op.pushed(requests, [DiskFull("full"), api.Pushed(7, 2)])

    results = caught.value.results
    assert BATCH_MESSAGES_MAX + 2 == len(results)
    assert {None} == set(results[:BATCH_MESSAGES_MAX])
    assert all(results[BATCH_MESSAGES_MAX:])
    assert [(0, BATCH_MESSAGES_MAX - 1)] == [failure.entry for failure in caught.value.failures]
    assert caught.value.retry
    with pytest.raises(DiskFull):
        op.pushed(requests, [DiskFull("full"), DiskFull("full")])


def test_a_handle_needs_its_queue_and_nothing_else() -> None:
    """Both forms of ack, not a mixture."""
    message = Batch(delivered("a", 1, (b"", b"")), 0).messages()[1]

    (part,) = op.given_back("a", message.message_id, message.receipt_handle)
    assert (api.Item(message.batch.run.receipt, ((1, 1),)),) == part.items
    with pytest.raises(ReceiptInvalid):
        op.given_back("a", message.message_id, message.receipt_handle[:-1] + "x")
    with pytest.raises(InvalidArgument):
        op.given_back("a", message.message_id)
    with pytest.raises(InvalidArgument):
        op.given_back(message, message.message_id, message.receipt_handle)
    with pytest.raises(InvalidArgument):
        op.given_back([b"payload"])  # type: ignore[list-item]


def test_an_error_is_kept_within_the_servers_bounds() -> None:
    """A traceback of a megabyte must not make the nack fail too."""
    part = op.settlements(Batch(delivered("a", 1, (b"",)), 0))[0]

    failed = op.settle(part, api.SettleKind.FAIL, None, ValueError("ü" * 10_000))
    released = op.settle(part, api.SettleKind.RELEASE, None, "ignored")

    assert "ValueError" == failed.error_type
    assert failed.error_text is not None and 4_000 < len(failed.error_text.encode()) <= 4_096
    assert (None, None) == (released.error_type, released.error_text)


def test_a_delay_belongs_to_a_failure_only() -> None:
    """Released messages return at once; saying otherwise would be ignored by the server."""
    assert api.SettleKind.FAIL == op.nack_kind("fail", 5)
    with pytest.raises(InvalidArgument, match="fail"):
        op.nack_kind("release", 5)


def test_a_value_without_a_json_form_is_an_invalid_argument() -> None:
    """An error of the vocabulary, not one of the encoder's."""
    with pytest.raises(InvalidArgument, match="JSON"):
        op.push_one("q", None, object(), None, None, None, op.PushOptions())


def test_parts_of_a_shared_run_are_given_back_apart() -> None:
    """Two callers of one run: what one gives back is never the other's, and nothing is given back twice."""
    run = delivered("q", 1, (b"x",) * 10)
    whole, left, right = Batch(run, 0.0), Batch(run, 0.0), Batch(run, 0.0)
    left.narrow(whole, 0, 3)
    right.narrow(whole, 4, 9)

    assert ((0, 3),) == op.settlements(left)[0].items[0].ranges
    left.messages()[1].mark_settled()
    assert ((0, 0), (2, 3)) == op.settlements(left)[0].items[0].ranges
    (part,) = op.settlements([left, right, right, left.messages()[0], right.messages()[5]])
    assert [((0, 0), (2, 3)), ((4, 9),)] == [item.ranges for item in part.items]
    (part,) = op.settlements([left, right.messages()[5]])
    assert [((0, 0), (2, 3)), ((9, 9),)] == [item.ranges for item in part.items]
    (part,) = op.settlements([left, whole, right.messages()[5]])
    assert [None] == [item.ranges for item in part.items]
