"""Requests survive the wire, and what is out of range is refused with the field's name."""

from __future__ import annotations

import struct
from typing import Any

import attrs
import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol import samples
from walrq import api, limits
from walrq.errors import (
    BatchTooLarge,
    DelayTooLong,
    InvalidArgument,
    InvalidQueueName,
    MalformedRequest,
    MessageTooLarge,
    RemoteProtocolError,
    RequestError,
    UnknownOperation,
)
from walrq.protocol import fields
from walrq.protocol.columns import pack
from walrq.protocol.requests import decode_request, encode_request


@pytest.mark.parametrize("cls", samples.REQUESTS, ids=lambda cls: cls.__name__)
@given(data=st.data())
def test_every_request_survives_the_wire(cls: type[Any], data: st.DataObject) -> None:
    """What the client asked is what the server reads."""
    request = data.draw(samples.REQUESTS[cls])
    number = data.draw(st.integers(1, (1 << 64) - 1))
    frame = encode_request(number, request)
    incoming = decode_request(frame)

    assert (number, None, None, request, len(frame)) == (
        incoming.id,
        incoming.sequence,
        incoming.lowest,
        incoming.request,
        incoming.size,
    )
    assert type(incoming.request) is cls


@given(samples.ANY_REQUEST, st.integers(1, 1 << 60), st.integers(0, 1000))
def test_session_numbers_survive_the_wire(request: api.Request, lowest: int, ahead: int) -> None:
    """Exactly-once requests hang on these two numbers."""
    incoming = decode_request(encode_request(1, request, lowest + ahead, lowest))
    assert (lowest + ahead, lowest) == (incoming.sequence, incoming.lowest)


@pytest.mark.parametrize(("sequence", "lowest"), [(3, None), (None, 3), (3, 4), (0, 0), (3, 0)])
def test_session_numbers_that_make_no_sense_are_refused(sequence: int | None, lowest: int | None) -> None:
    """Half a pair, or a lowest above the request's own number."""
    with pytest.raises(InvalidArgument):
        decode_request(encode_request(1, api.Ping(), sequence, lowest))


def push(**changes: Any) -> bytes:
    """The frame of a push of two messages with some elements of its array replaced."""
    names = (
        "op id sequence lowest queue payloads ends headers header_ends groups dedup priority delay at ttl attempts"
    ).split()
    item = cbor2.loads(encode_request(1, api.Push("jobs", pack([b"one", b"two!"]))))
    for name, value in changes.items():
        item[names.index(name)] = value
    return cbor2.dumps(item)


def packed(*numbers: int) -> cbor2.CBORTag:
    return cbor2.CBORTag(70, struct.pack(f"<{len(numbers)}I", *numbers))


def test_null_ends_stand_for_one_message() -> None:
    """The commonest push needs no offsets."""
    request = decode_request(push(ends=None)).request
    assert isinstance(request, api.Push)
    assert struct.pack("<I", 7) == request.columns.ends
    assert cbor2.loads(encode_request(1, request))[6] is None
    assert request == decode_request(push(ends=packed(7))).request


@pytest.mark.parametrize(
    "ends",
    [
        packed(),
        packed(3),
        packed(8),
        packed(3, 8),
        packed(3, 6),
        packed(4, 3, 7),
        packed(8, 7),
        packed(3, 7, 3),
        packed(0xFFFFFFFF, 7),
        cbor2.CBORTag(70, b"\x07\x00\x00"),
    ],
    ids=str,
)
def test_offsets_that_do_not_fit_the_payloads_are_refused(ends: cbor2.CBORTag) -> None:
    """A wrong offset would hand one message's bytes to another."""
    with pytest.raises(InvalidArgument, match=r"ends|at least 1 message"):
        decode_request(push(ends=ends))


def test_empty_messages_are_messages() -> None:
    """Equal offsets are an empty payload, not an error."""
    request = decode_request(push(payloads=b"", ends=packed(0, 0, 0))).request
    assert isinstance(request, api.Push)
    assert 3 == request.columns.count


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"headers": b"\xa0"}, InvalidArgument),
        ({"header_ends": packed(0, 0)}, InvalidArgument),
        ({"headers": b"\xa0", "header_ends": packed(1)}, InvalidArgument),
        ({"headers": b"\xa0", "header_ends": packed(0, 2)}, InvalidArgument),
        ({"headers": b"\xa0", "header_ends": None}, InvalidArgument),
        ({"headers": bytes(65_537), "header_ends": packed(65_537, 65_537)}, MessageTooLarge),
        ({"groups": ["a"]}, InvalidArgument),
        ({"groups": ["a", "b", "c"]}, InvalidArgument),
        ({"groups": ["a", 1]}, InvalidArgument),
        ({"groups": ["a", ""]}, InvalidArgument),
        ({"groups": ["a", "x" * 256]}, InvalidArgument),
        ({"dedup": [None, "é" * 128]}, InvalidArgument),
        ({"queue": ""}, InvalidQueueName),
        ({"queue": "a\nb"}, InvalidQueueName),
        ({"queue": "é" * 128}, InvalidQueueName),
        ({"queue": b"jobs"}, InvalidArgument),
        ({"priority": 256}, InvalidArgument),
        ({"priority": -1}, InvalidArgument),
        ({"priority": True}, InvalidArgument),
        ({"priority": 1.0}, InvalidArgument),
        ({"delay": -1}, InvalidArgument),
        ({"delay": float("nan")}, InvalidArgument),
        ({"delay": float("inf")}, InvalidArgument),
        ({"delay": 1.5}, InvalidArgument),
        ({"delay": limits.DELAY_MS_MAX + 1}, DelayTooLong),
        ({"delay": 1, "at": 1}, InvalidArgument),
        ({"delay": 0, "at": 0}, InvalidArgument),
        ({"at": -1}, InvalidArgument),
        ({"at": 1 << 48}, InvalidArgument),
        ({"ttl": 0}, InvalidArgument),
        ({"attempts": 0}, InvalidArgument),
        ({"op": 99}, UnknownOperation),
        ({"op": 0}, UnknownOperation),
        ({"op": -1}, UnknownOperation),
        ({"op": 1 << 63}, UnknownOperation),
        ({"op": 2}, MalformedRequest),
    ],
    ids=str,
)
def test_a_push_out_of_range_is_refused_with_its_code(changes: dict[str, Any], error: type[RequestError]) -> None:
    """Each wrong field has its error; a test of the mistakes clients make."""
    with pytest.raises(RequestError) as caught:
        decode_request(push(**changes))
    assert error is type(caught.value)
    assert caught.value.text


def test_errors_name_the_field_and_the_limit() -> None:
    """A caller must not have to guess which number was wrong."""
    with pytest.raises(InvalidArgument) as caught:
        decode_request(push(priority=256))
    assert {"field": "priority", "limit": 255} == caught.value.details
    assert "priority is 256, allowed are 0 to 255" == caught.value.text


def test_delays_up_to_thirty_days_are_taken() -> None:
    """The limit itself is allowed; one ms more is DelayTooLong (above)."""
    request = decode_request(push(delay=limits.DELAY_MS_MAX)).request
    assert isinstance(request, api.Push)
    assert limits.DELAY_MS_MAX == request.delay_ms


def test_sizes_up_to_the_limits_are_taken_and_no_further() -> None:
    """Message, header and batch bounds are exact, and judged without a walk over the messages."""
    most = limits.MESSAGE_BYTES_LIMIT
    for sizes in ((most,), (most, most), (most, 0), (1, most)):
        columns = pack([bytes(size) for size in sizes])
        decoded = decode_request(encode_request(1, api.Push("q", columns))).request
        assert api.Push("q", columns) == decoded
    for sizes in ((most + 1,), (1, most + 1), (most + 1, 1)):
        with pytest.raises(MessageTooLarge) as caught:
            decode_request(encode_request(1, api.Push("q", pack([bytes(size) for size in sizes]))))
        assert most == caught.value.details["limit"]
    with pytest.raises(BatchTooLarge):
        decode_request(encode_request(1, api.Push("q", pack([bytes(most), bytes(most), b"x"]))))


def test_batches_up_to_the_count_limit_are_taken_and_no_further() -> None:
    """10,000 messages pass, 10,001 do not."""
    count = limits.BATCH_MESSAGES_MAX
    decode_request(encode_request(1, api.Push("q", pack([b""] * count, groups=["g"] * count))))
    with pytest.raises(BatchTooLarge, match=str(count)):
        decode_request(encode_request(1, api.Push("q", pack([b""] * (count + 1)))))


@pytest.mark.parametrize(
    "ranges",
    [[], [1], [0, 1, 2], [2, 1], [0, 2, 2, 3], [5, 6, 0, 1], [-1, 2], [0, 10_000], [[0, 1]], ["a", "b"]],
    ids=str,
)
def test_ranges_that_are_not_rising_and_apart_are_refused(ranges: list[Any]) -> None:
    """One message must not be settled twice by one request."""
    for op, tail in ((3, [0, [[samples.RECEIPT, ranges]], None, None, None]), (4, [[[samples.RECEIPT, ranges]], 5])):
        with pytest.raises(InvalidArgument, match="ranges"):
            decode_request(cbor2.dumps([op, 1, None, None, "q", *tail]))


def test_fields_that_a_kind_of_settle_does_not_know_are_refused() -> None:
    """An error text on an ack is a caller's mistake that must not pass in silence."""
    item = (api.Item(samples.RECEIPT),)
    for wrong in (
        api.Settle("q", api.SettleKind.ACK, item, delay_ms=1),
        api.Settle("q", api.SettleKind.REJECT, item, delay_ms=1),
        api.Settle("q", api.SettleKind.RELEASE, item, error_type="E"),
        api.Settle("q", api.SettleKind.ACK, item, error_text="t"),
    ):
        with pytest.raises(InvalidArgument):
            decode_request(encode_request(1, wrong))
    with pytest.raises(DelayTooLong):
        decode_request(encode_request(1, api.Settle("q", api.SettleKind.FAIL, item, delay_ms=limits.DELAY_MS_MAX + 1)))


@pytest.mark.parametrize(
    "item", [1, "text", None, {}, [], [20], [20, 1], [20, 1, None], [20, 0, None, None], [20, -1, None, None],
             [20, "1", None, None], [20, None, None, None], [20, True, None, None], [20, 1.0, None, None],
             ["push", 1, None, None], [True, 1, None, None], [None, 1, None, None], [[], 1, None, None]],
    ids=str,
)  # fmt: skip
def test_a_request_without_an_id_ends_the_connection(item: Any) -> None:
    """What cannot be answered cannot be refused politely."""
    with pytest.raises(RemoteProtocolError):
        decode_request(cbor2.dumps(item))


def test_text_that_is_not_utf8_is_refused_before_it_is_sent() -> None:
    """A lone surrogate in a name is the caller's mistake, not a broken connection."""
    with pytest.raises(InvalidArgument):
        encode_request(1, api.ShowQueue("\ud800"))


def test_the_cache_of_good_names_is_bounded() -> None:
    """A stream of ever new names must not grow the process."""
    for number in range(20_000):
        assert f"q{number}" == fields.queue_name(f"q{number}")
    assert len(fields._good_names) <= fields._GOOD_NAMES_MAX
    with pytest.raises(InvalidQueueName):
        fields.queue_name("a\x00b")
    with pytest.raises(InvalidQueueName):
        fields.queue_name("a\x00b")


@given(samples.pushes())
def test_a_counted_push_survives_the_wire(push: api.Push) -> None:
    """It is an operation of its own, so that older servers say that they do not know it."""
    counted = attrs.evolve(push, counted=True)  # type: ignore[misc]
    frame = encode_request(7, counted)
    assert counted == decode_request(frame).request
    assert 29 == cbor2.loads(frame)[0]


@pytest.mark.parametrize(("numbered", "into"), [(True, None), (False, "there")])
@given(poll=samples.REQUESTS[api.Poll])
def test_a_numbered_poll_survives_the_wire(numbered: bool, into: str | None, poll: api.Poll) -> None:
    """So does one that moves messages on."""
    special = attrs.evolve(poll, numbered=numbered, into=into)  # type: ignore[misc]
    frame = encode_request(7, special)
    assert special == decode_request(frame).request
    assert 30 == cbor2.loads(frame)[0]


def test_a_poll_is_not_numbered_and_moved_on_at_once() -> None:
    """What moved on has no lease that a number could name."""
    with pytest.raises(InvalidArgument, match="into"):
        decode_request(encode_request(1, api.Poll(("a",), numbered=True, into="b")))
