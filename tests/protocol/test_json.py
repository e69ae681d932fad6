"""The api as JSON: every request and reply, and every way to be wrong about one."""

from __future__ import annotations

import base64
import json
from typing import Any, get_args

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.protocol import samples
from walrq import api, limits
from walrq.errors import ERRORS, InvalidArgument, ReceiptInvalid, RemoteProtocolError, RequestError, UnknownOperation
from walrq.ids import format_id, make_handle, parse_handle
from walrq.protocol.columns import pack, unpack, unpack_run
from walrq.protocol.json_replies import REPLIES, reply_to_json
from walrq.protocol.json_requests import BY_NAME, OPERATIONS, Operation, request_from_json, request_to_json
from walrq.protocol.json_text import from_base64, read_json, write_json
from walrq.protocol.json_values import REQUIRED, Field

# Drawing a sample costs far more than reading it; the profile of long runs draws forty times as many.
EXAMPLES = max(20, settings.default.max_examples // 3)
HANDLE = make_handle(samples.RECEIPT, 0)
ONE_MESSAGE = (api.Item(samples.RECEIPT, ((3, 3),)),)


def plain(request: Any) -> Any:
    """What JSON says of a request: single messages, and none of what only the RESP door asks."""
    if isinstance(request, api.Settle | api.Touch):
        items = [
            api.Item(item.receipt, ((offset, offset),))
            for item in request.items
            for first, last in item.ranges or ((0, 2),)
            for offset in range(first, min(last, first + 3) + 1)
        ]
        return attrs.evolve(request, items=tuple(items))
    if isinstance(request, api.Push):
        return attrs.evolve(request, counted=False)
    if isinstance(request, api.Poll):
        return attrs.evolve(request, numbered=False, into=None)
    return request


# --- both ways ----------------------------------------------------------------------------------------------
def test_every_request_and_reply_of_the_api_is_in_the_tables() -> None:
    """An operation that is left out here could not be reached from a page."""
    assert set(get_args(api.Request)) == {each.request for each in OPERATIONS}
    assert set(get_args(api.Reply)) == {cls for _, cls, _ in REPLIES}
    assert {name for each in OPERATIONS for name in each.replies} <= {name for name, _, _ in REPLIES}


def test_no_field_is_called_like_a_part_of_the_envelope() -> None:
    """A WebSocket puts these beside the fields of a request."""
    assert set() == {field.name for each in OPERATIONS for field in each.fields} & {"id", "op", "sequence", "lowest"}


@pytest.mark.parametrize("cls", samples.REQUESTS, ids=lambda cls: cls.__name__)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_every_request_survives_as_json(cls: type[Any], data: st.DataObject) -> None:
    """What was asked is what is read, bytes and all."""
    request = plain(data.draw(samples.REQUESTS[cls]))
    found = request_from_json(read_json(write_json(request_to_json(request))))

    if isinstance(request, api.Push) and isinstance(found, api.Push):
        assert unpack(request.columns) == unpack(found.columns) or no_empty_headers(request) == no_empty_headers(found)
        request, found = (attrs.evolve(each, columns=pack([b""])) for each in (request, found))
    assert request == found


def no_empty_headers(push: api.Push) -> Any:
    """Messages of a push; a message with an empty map of headers has none."""
    found = unpack(push.columns)
    headers = [each or None for each in found.headers or (None,) * len(found.payloads)]
    return found.payloads, headers, found.groups, found.dedup


@given(samples.ANY_REPLY)
def test_every_reply_becomes_json(reply: api.Reply) -> None:
    """Whatever a node answers, a page can read."""
    made = read_json(write_json(reply_to_json(reply)))

    assert {cls: name for name, cls, _ in REPLIES}[type(reply)] == made["reply"]


@settings(max_examples=EXAMPLES)
@given(samples.REPLIES[api.Polled])
def test_a_poll_comes_apart_into_its_messages(polled: api.Polled) -> None:
    """Each message has its bytes, its id and a handle that names it."""
    made = read_json(write_json(reply_to_json(polled)))["messages"]
    expected = [
        (
            run.queue,
            format_id(run.first_id + offset),
            (run.receipt, offset),
            None if run.lost else unpack_run(run).payloads[offset],
        )
        for run in polled.runs
        for offset in range(run.count)
        if run.first_id + offset < 1 << 128
    ]
    found = [(each["queue"], each["id"], parse_handle(each["receipt_handle"]), payload_of(each)) for each in made]

    assert expected == found[: len(expected)]


def payload_of(message: dict[str, Any]) -> bytes | None:
    """The bytes that a page makes of it."""
    if "payload_base64" in message:
        return base64.b64decode(message["payload_base64"], validate=True)
    text = message["payload"]
    return None if text is None else text.encode()


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        (b"", "payload"),
        ("é\n\t\u2028\U0001f600".encode(), "payload"),
        (b"\xff", "payload_base64"),
        (b"\x00", "payload_base64"),
        (b"a\x1b[31m", "payload_base64"),
        (b"\xed\xa0\x80", "payload_base64"),
    ],
)
def test_text_is_told_as_text_and_everything_else_as_base64(payload: bytes, field: str) -> None:
    """A page shows text without a detour; what escapes would make six times as large travels as base64."""
    run = attrs.evolve(samples.SAMPLE_RUN, ends=pack([payload]).ends, payloads=payload, headers=None, header_ends=None)
    made = reply_to_json(api.Polled(0, 0, (run,)))["messages"][0]

    assert field in made
    assert payload == payload_of(made)


def test_headers_that_are_none_are_told_as_they_came() -> None:
    """Headers are some producer's bytes: what cannot be read is still handed on, and costs no reply."""
    seen = attrs.evolve(samples.SAMPLE_PEEKED, headers=b"\xff")
    made = reply_to_json(api.Page((seen,)))["messages"][0]

    assert ("/w==", False) == (made["headers_base64"], "headers" in made)


def test_an_error_says_what_the_table_says() -> None:
    """A page decides by these two whether to ask again."""
    for code, row in ERRORS.items():
        made = reply_to_json(api.Failed(int(code), "text", {"limit": 3}))
        assert (code.name, row.definite, row.retry, {"limit": 3}) == (
            made["name"],
            made["definite"],
            made["retry"],
            made["details"],
        )
    newer = reply_to_json(api.Failed(4711, "of a newer node"))

    assert (None, False, False) == (newer["name"], newer["definite"], newer["retry"])


# --- refusals -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given_", "error", "field", "words"),
    [
        ([], InvalidArgument, "request", "is array, not an object"),
        ({}, InvalidArgument, "op", "needs op"),
        ({"op": 1}, InvalidArgument, "op", "needs op"),
        ({"op": "pish"}, UnknownOperation, None, "'pish'"),
        ({"op": "push", "payload": "x"}, InvalidArgument, "queue", "needs queue"),
        ({"op": "push", "queue": "q", "payload": "x", "delay": 1}, InvalidArgument, "delay", "did you mean delay_ms?"),
        ({"op": "push", "queue": "q"}, InvalidArgument, "payload", "one of payload and payload_base64"),
        ({"op": "push", "queue": "q", "payload": "x", "payload_base64": "eA=="}, InvalidArgument, "payload", "one of"),
        ({"op": "push", "queue": "q", "payload": 7}, InvalidArgument, "payload", "payload_base64"),
        ({"op": "push", "queue": "q", "payload": "\ud800"}, InvalidArgument, "payload", "surrogate"),
        ({"op": "push", "queue": "q", "payload_base64": "eA"}, InvalidArgument, "payload_base64", "padding"),
        ({"op": "push", "queue": "q", "payload_base64": "e A="}, InvalidArgument, "payload_base64", "base64"),
        ({"op": "push", "queue": "q", "payload": "x", "priority": 256}, InvalidArgument, "priority", "0 to 255"),
        ({"op": "push", "queue": "q", "payload": "x", "priority": True}, InvalidArgument, "priority", "boolean"),
        ({"op": "push", "queue": "q", "payload": "x", "priority": 1.0}, InvalidArgument, "priority", "float"),
        ({"op": "push", "queue": "q", "payload": "x", "headers": []}, InvalidArgument, "headers", "an object"),
        ({"op": "push", "queue": "q", "payload": "x", "group": ""}, InvalidArgument, "group", "empty"),
        ({"op": "push", "queue": "q", "messages": []}, InvalidArgument, "messages", "1 to 10000"),
        ({"op": "push", "queue": "q", "messages": [{}]}, InvalidArgument, "payload", "messages needs one of"),
        (
            {"op": "push", "queue": "q", "messages": [{"payload": "x", "grop": "g"}]},
            InvalidArgument,
            "messages.grop",
            "did you mean group?",
        ),
        (
            {"op": "push", "queue": "q", "messages": [{"payload": "x"}], "group": "g"},
            InvalidArgument,
            "group",
            "belongs into each of messages",
        ),
        (
            {"op": "push", "queue": "q", "payload": "x", "delay_ms": 1, "deliver_at_ms": 1},
            InvalidArgument,
            "deliver_at_ms",
            "exclude each other",
        ),
        ({"op": "push", "queue": "q", "payload": "x", "delay_ms": 2592000001}, RequestError, "delay_ms", "30 days"),
        ({"op": "push", "queue": "a\nb", "payload": "x"}, RequestError, None, "U+000A"),
        ({"op": "poll"}, InvalidArgument, "queue", "one of queue and queues"),
        ({"op": "poll", "queue": "q", "queues": ["q"]}, InvalidArgument, "queue", "one of queue and queues"),
        ({"op": "poll", "queues": []}, InvalidArgument, "queues", "1 to 64"),
        ({"op": "ack", "queue": "q"}, InvalidArgument, "receipt_handle", "one of"),
        ({"op": "ack", "queue": "q", "receipt_handle": "00"}, ReceiptInvalid, "receipt_handle", "56 characters"),
        ({"op": "ack", "queue": "q", "receipt_handle": 7}, InvalidArgument, "receipt_handle", "receipt handle"),
        ({"op": "ack", "queue": "q", "receipt_handle": HANDLE, "delay_ms": 1}, InvalidArgument, "delay_ms", "no field"),
        ({"op": "cancel", "queue": "q", "ids": ["x"]}, InvalidArgument, "ids", "26 characters"),
        ({"op": "peek", "queue": "q", "state": "rady"}, InvalidArgument, "state", "ready, delayed, leased"),
        ({"op": "purge_dead", "queue": "q", "where": {"resaon": "x"}}, InvalidArgument, "where.resaon", "reason?"),
        ({"op": "set_queue", "queue": "q"}, InvalidArgument, "settings", "needs settings"),
        ({"op": "ping", "queue": "q"}, InvalidArgument, "queue", "it has none"),
    ],
)
def test_a_wrong_request_is_refused_by_the_name_of_its_field(
    given_: Any, error: type[RequestError], field: str | None, words: str
) -> None:
    """One line that says what is wrong, and the field for programs."""
    with pytest.raises(error) as caught:
        request_from_json(given_)

    assert words in caught.value.text
    assert field == caught.value.details.get("field")


def sample_of(operation: Operation) -> dict[str, Any]:
    """A good request of this operation."""
    request = next(each for each in samples.SAMPLE_REQUESTS if type(each) is operation.request)
    if isinstance(request, api.Settle):
        request = attrs.evolve(request, kind=api.SettleKind[operation.name.upper()], items=ONE_MESSAGE)
    if isinstance(request, api.Touch):
        request = attrs.evolve(request, items=ONE_MESSAGE)
    return request_to_json(request)


BOUNDED = [
    pytest.param(operation, field, id=f"{operation.name}-{field.name}")
    for operation in OPERATIONS
    for field in operation.fields
    if field.schema["type"] == "integer"
]


@pytest.mark.parametrize(("operation", "field"), BOUNDED)
def test_numbers_are_taken_from_their_least_to_their_most(operation: Operation, field: Field) -> None:
    """What the schema tells people is what is checked."""
    good = sample_of(operation)
    for exclusive in ("delay_ms", "deliver_at_ms"):
        if operation.name == "push":
            good[exclusive] = None
    for value in (field.schema["minimum"], field.schema["maximum"]):
        assert request_from_json({**good, field.name: value}) is not None
    for value in (field.schema["minimum"] - 1, field.schema["maximum"] + 1, "1", [1], {}):
        with pytest.raises(RequestError) as caught:
            request_from_json({**good, field.name: value})
        assert field.name == caught.value.details["field"]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_what_may_be_left_out_may_be_null(operation: Operation) -> None:
    """A page that has no value for a field need not take the field out."""
    good = sample_of(operation)
    left_out = {name: value for name, value in good.items() if value is not None}
    nulls = {field.name: None for field in operation.fields if field.default is not REQUIRED}

    assert request_from_json(left_out) == request_from_json({**nulls, **left_out})


def test_the_operation_may_be_known_already() -> None:
    """A path can name it; then the object need not."""
    assert api.ShowQueue("q") == request_from_json({"queue": "q"}, "show_queue")


def test_a_lease_as_a_whole_has_no_handle() -> None:
    """JSON names single messages."""
    with pytest.raises(InvalidArgument, match="single messages"):
        request_to_json(api.Settle("q", api.SettleKind.ACK, (api.Item(samples.RECEIPT),)))


# --- text ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"\xff", "not UTF-8 at byte 0"),
        ('{"a": 1,}', "not JSON"),
        ('{"a": 1} x', "Extra data at character 9"),
        ('{"a": 1, "b": {"a": 1, "a": 2}}', "key 'a' comes twice"),
        ("NaN", "NaN is no JSON number"),
        ("[-Infinity]", "-Infinity is no JSON number"),
        ("1" * 5_000, "digits"),
        ("[" * 17 + "]" * 17, "deeper than 16"),
        ('{"a":' * 100_000, "JSON"),
        ("[" * 200_000, "deeper than 16"),
        ("[" + "1," * limits.JSON_ITEMS_MAX + "1]", f"more than {limits.JSON_ITEMS_MAX} values"),
        (" " * 1_001, "at most 1000"),
    ],
)
def test_text_that_is_not_strictly_json_is_refused(text: str | bytes, words: str) -> None:
    """Each of these is read as something by one library or another."""
    with pytest.raises(RemoteProtocolError) as caught:
        read_json(text, 1_000 if text == " " * 1_001 else limits.FRAME_BYTES_MAX)

    assert words in caught.value.text
    assert len(caught.value.text) < 300


def test_the_deepest_and_widest_json_is_read() -> None:
    """The bounds are bounds, not one less."""
    deepest = "[" * limits.JSON_DEPTH_MAX + "]" * limits.JSON_DEPTH_MAX
    # Signs within text are no values.
    text = json.dumps({"payload": ',[{:"\\' * limits.JSON_ITEMS_MAX})

    assert deepest == write_json(read_json(deepest))
    assert text == json.dumps(read_json(text))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e400])
def test_headers_are_finite(value: float) -> None:
    """1e400 is well-formed JSON, and infinite here."""
    with pytest.raises(InvalidArgument, match="not finite"):
        request_from_json({"op": "push", "queue": "q", "payload": "x", "headers": {"n": value}})


def test_bytes_in_headers_come_back_as_they_went() -> None:
    """JSON has none, so an object with one reserved key stands for them."""
    headers = {"raw": {"$base64": "AP8="}, "list": [1, {"deep": {"$base64": ""}}]}
    push = request_from_json({"op": "push", "queue": "q", "payload": "x", "headers": headers})
    assert isinstance(push, api.Push)

    assert {"raw": b"\x00\xff", "list": [1, {"deep": b""}]} == (unpack(push.columns).headers or [None])[0]
    assert headers == request_to_json(push)["headers"]
    with pytest.raises(InvalidArgument, match="stands alone"):
        request_from_json({"op": "push", "queue": "q", "payload": "x", "headers": {"raw": {"$base64": "", "more": 1}}})


@given(st.binary(max_size=100))
def test_base64_is_what_the_standard_library_makes(data: bytes) -> None:
    """No alphabet of our own."""
    assert data == from_base64(base64.b64encode(data).decode(), "x")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=10), inner, max_size=5),
    max_leaves=20,
)
FIELD_NAMES = sorted({field.name for operation in OPERATIONS for field in operation.fields})


@given(
    st.sampled_from(sorted(BY_NAME)),
    st.dictionaries(
        st.sampled_from(FIELD_NAMES),
        JSON_VALUES | st.sampled_from([HANDLE, format_id(1), "q", [HANDLE], [format_id(1)], [{"payload": "x"}], 0, 1]),
        max_size=6,
    ),
)
@example("push", {"queue": "q", "messages": [{"payload": "x", "headers": {"\ud800": 1}}]})
@example("set_queue", {"queue": "q", "settings": {"x": "\ud800"}})
def test_no_object_does_more_than_be_refused(op: str, given_: dict[str, Any]) -> None:
    """Whatever a page sends, it is a request or one of our errors."""
    try:
        request = request_from_json({"op": op, **given_})
    except RequestError:
        return
    assert request_from_json(read_json(write_json(request_to_json(request)))) is not None


@given(st.text(max_size=60) | st.text(alphabet='[]{},:"\\u0019eE+-.ntf ', max_size=60))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    """Whatever arrives, it is JSON or one of our errors."""
    try:
        value = read_json(text)
    except RemoteProtocolError:
        return
    assert json.loads(text) == value
