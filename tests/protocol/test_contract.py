"""spec/protocol.cddl, the tables in the code, and the decoder say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cbor2
import pycddl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol import samples
from tests.protocol.grammar import Grammar
from walrq import api
from walrq.errors import RemoteProtocolError, RequestError
from walrq.protocol.codec import Decoder
from walrq.protocol.handshake import (
    GoAway,
    Hello,
    decode_hello,
    encode_goaway,
    encode_hello,
    encode_welcome,
    read_welcome,
)
from walrq.protocol.replies import KINDS, decode_reply, encode_reply
from walrq.protocol.requests import OPERATIONS, decode_request, encode_request

TEXT = (Path(__file__).resolve().parents[2] / "spec" / "protocol.cddl").read_text(encoding="utf-8")
GRAMMAR = Grammar(TEXT)


def rule_of(value: object) -> str:
    """The grammar's name of an api class: SetQueue is set-queue."""
    name = type(value).__name__
    return "".join("-" + c.lower() if c.isupper() else c for c in name)[1:]


RECORDED: list[tuple[str, bytes]] = [
    *((rule_of(request), encode_request(9, request)) for request in samples.SAMPLE_REQUESTS),
    *((rule_of(request), encode_request(1 << 40, request, 7, 3)) for request in samples.SAMPLE_REQUESTS),
    *((rule_of(reply), encode_reply(9, reply)) for reply in samples.SAMPLE_REPLIES),
    ("hello", encode_hello(Hello("test/1"))),
    ("hello", encode_hello(Hello("test/1", "secret", 7, "00-ab-cd-01", {"a": 1}))),
    ("welcome", encode_welcome(samples.WELCOME)),
    ("go-away", encode_goaway(GoAway(52, "stopping"))),
]


def test_every_api_class_has_a_row_and_a_sample() -> None:
    """A request or reply nobody gave a number could not be sent."""
    requests = set(api.Request.__args__)  # type: ignore[attr-defined]
    replies = set(api.Reply.__args__)  # type: ignore[attr-defined]

    assert requests == {cls for _, cls, _, _, _ in OPERATIONS}
    assert replies == {cls for _, cls, _, _, _ in KINDS}
    assert requests == set(samples.REQUESTS) == set(map(type, samples.SAMPLE_REQUESTS))
    assert replies == set(samples.REPLIES) == set(map(type, samples.SAMPLE_REPLIES))
    assert len({op for op, *_ in OPERATIONS}) == len(OPERATIONS)
    assert len({kind for kind, *_ in KINDS}) == len(KINDS)


@pytest.mark.parametrize(("rule", "frame"), RECORDED, ids=[rule for rule, _ in RECORDED])
def test_recorded_frames_fit_the_contract_by_pycddl(rule: str, frame: bytes) -> None:
    """A library that is not ours reads the contract and accepts what we send."""
    pycddl.Schema(f"recorded = {rule}\n{TEXT}").validate_cbor(frame)


@pytest.mark.parametrize(("rule", "frame"), RECORDED, ids=[rule for rule, _ in RECORDED])
def test_pycddl_refuses_a_frame_with_an_element_too_many(rule: str, frame: bytes) -> None:
    """The check above can fail."""
    item = cbor2.loads(frame)
    with pytest.raises(pycddl.ValidationError):
        pycddl.Schema(f"recorded = {rule}\n{TEXT}").validate_cbor(cbor2.dumps([*item, 1]))


@given(samples.ANY_REQUEST, st.none() | st.tuples(st.integers(1, 99), st.integers(0, 99)))
def test_every_request_fits_the_contract(request: api.Request, session: tuple[int, int] | None) -> None:
    """What our clients send is what other languages were told."""
    sequence, lowest = (None, None) if session is None else (sum(session), session[0])
    item = cbor2.loads(encode_request(1, request, sequence, lowest))

    assert GRAMMAR.matches(rule_of(request), item)
    assert GRAMMAR.matches("client-frame", item)


@given(samples.ANY_REPLY)
def test_every_reply_fits_the_contract(reply: api.Reply) -> None:
    """What our servers send is what other languages were told."""
    item = cbor2.loads(encode_reply(1, reply))

    assert GRAMMAR.matches(rule_of(reply), item)
    assert GRAMMAR.matches("server-frame", item)


@given(samples.HELLOS, samples.WELCOMES)
def test_every_handshake_fits_the_contract(hello: Hello, welcome: Any) -> None:
    """The same for the first frames."""
    assert GRAMMAR.matches("hello", cbor2.loads(encode_hello(hello)))
    assert GRAMMAR.matches("welcome", cbor2.loads(encode_welcome(welcome)))


STRANGERS: tuple[Any, ...] = (
    -1,
    0,
    1 << 63,
    (1 << 64) - 1,
    1.5,
    True,
    None,
    "",
    "x" * 70_000,
    b"",
    b"z" * 21,
    [],
    [None],
    [1, 2],
    {},
    {"a": 1},
    {1: 2},
    cbor2.CBORTag(70, b"\x00\x00\x00\x00\x00\x00\x00\x00"),
    cbor2.CBORTag(70, "text"),
    cbor2.CBORTag(71, b""),
    cbor2.undefined,
    cbor2.CBORSimpleValue(99),
)


def positions(item: list[Any], path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """Every place in nested arrays."""
    found: list[tuple[int, ...]] = []
    for index, inner in enumerate(item):
        found.append((*path, index))
        if type(inner) is list:
            found += positions(inner, (*path, index))
    return found


def replaced(item: list[Any], path: tuple[int, ...], value: Any) -> list[Any]:
    """A copy of the item with one place changed."""
    changed = list(item)
    changed[path[0]] = value if len(path) == 1 else replaced(item[path[0]], path[1:], value)
    return changed


@pytest.mark.parametrize("sample", samples.SAMPLE_REQUESTS, ids=rule_of)
def test_a_request_beyond_the_contract_is_refused(sample: api.Request) -> None:
    """Whatever one element is replaced by: what the grammar forbids, the server does not take."""
    item = cbor2.loads(encode_request(9, sample))
    refused = 0
    for path in positions(item):
        for stranger in STRANGERS:
            changed = replaced(item, path, stranger)
            if not GRAMMAR.matches("request", changed):
                refused += 1
                with pytest.raises((RemoteProtocolError, RequestError)):
                    decode_request(cbor2.dumps(changed))
    assert refused > len(item)


@pytest.mark.parametrize("sample", samples.SAMPLE_REPLIES, ids=rule_of)
def test_a_reply_beyond_the_contract_is_refused(sample: api.Reply) -> None:
    """The same for what a client takes from a server."""
    item = cbor2.loads(encode_reply(9, sample))
    refused = 0
    for path in positions(item):
        for stranger in STRANGERS:
            changed = replaced(item, path, stranger)
            if not GRAMMAR.matches("reply", changed):
                try:
                    decode_reply(cbor2.dumps(changed))
                except RemoteProtocolError:
                    refused += 1
                else:
                    # The table reads any id; that 0 belongs to errors alone is judged by the connection.
                    assert ((1,), 0) == (path, stranger)
    assert refused > len(item)


@pytest.mark.parametrize("sample", samples.SAMPLE_REQUESTS, ids=rule_of)
def test_a_request_of_another_length_is_refused(sample: api.Request) -> None:
    """Arrays are exact: a field too many is as wrong as one too few."""
    item = cbor2.loads(encode_request(9, sample))
    for wrong in (item[:-1], [*item, None]):
        with pytest.raises((RemoteProtocolError, RequestError)):
            decode_request(cbor2.dumps(wrong))


@pytest.mark.parametrize("sample", samples.SAMPLE_REPLIES, ids=rule_of)
def test_a_reply_of_another_length_is_refused(sample: api.Reply) -> None:
    """The same for replies."""
    item = cbor2.loads(encode_reply(9, sample))
    for wrong in (item[:-1], [*item, None]):
        with pytest.raises(RemoteProtocolError):
            decode_reply(cbor2.dumps(wrong))


def test_a_handshake_beyond_the_contract_is_refused() -> None:
    """Hello and Welcome are held to the grammar like everything else."""
    hello = cbor2.loads(encode_hello(Hello("test/1", "secret", 7, "trace", {"a": 1})))
    welcome = cbor2.loads(encode_welcome(samples.WELCOME))
    for path in positions(hello):
        for stranger in STRANGERS:
            changed = replaced(hello, path, stranger)
            if not GRAMMAR.matches("hello", changed):
                with pytest.raises((RemoteProtocolError, RequestError)):
                    decode_hello(cbor2.dumps(changed))
    for path in positions(welcome):
        for stranger in STRANGERS:
            changed = replaced(welcome, path, stranger)
            if not GRAMMAR.matches("welcome", changed):
                with pytest.raises(RemoteProtocolError):
                    read_welcome(Decoder().decode(cbor2.dumps(changed)))
