"""Replies survive the wire, and a client takes nothing that does not fit."""

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
from walrq.errors import LocalProtocolError, RemoteProtocolError
from walrq.protocol.columns import pack
from walrq.protocol.replies import decode_reply, encode_reply


@pytest.mark.parametrize("cls", samples.REPLIES, ids=lambda cls: cls.__name__)
@given(data=st.data())
def test_every_reply_survives_the_wire(cls: type[Any], data: st.DataObject) -> None:
    """What the server answered is what the client reads."""
    reply = data.draw(samples.REPLIES[cls])
    number = data.draw(st.integers(0, (1 << 64) - 1))

    assert (number, reply) == decode_reply(encode_reply(number, reply))


@given(st.integers(0, (1 << 128) - 1), st.integers(0, limits.BATCH_MESSAGES_MAX), st.integers(1, 1 << 40))
def test_the_spelled_out_pushed_is_plain_cbor(first: int, count: int, number: int) -> None:
    """The one frame that is put together by hand means the same as the library's."""
    reply = api.Pushed(first, count)
    assert [1, number, first.to_bytes(16, "big"), count, None, []] == cbor2.loads(encode_reply(number, reply))


def run(**changes: Any) -> bytes:
    body = pack([b"one", b"two"], [{"a": 1}, None])
    whole = api.Delivered(
        "jobs", samples.RECEIPT, 2, 5, 1, 0, (9, 0), 0, 1, None, 0, body.ends, body.payloads, 0,
        body.header_ends, body.headers,
    )  # fmt: skip
    return encode_reply(1, api.Polled(0, 1, (attrs.evolve(whole, **changes),)))


@pytest.mark.parametrize(
    "changes",
    [
        {"count": 1},
        {"count": 3},
        {"base": 1},
        {"payloads": b"onetw"},
        {"payloads": b"onetwos"},
        {"ends": struct.pack("<II", 4, 3)},
        {"ends": b""},
        {"ends": struct.pack("<I", 6)},
        {"header_base": 1},
        {"header_ends": None},
        {"headers": None},
        {"headers": b"\xa0"},
        {"lost": True},
        {"queue": ""},
        {"queue": "q" * 256},
        {"receipt": bytes(19)},
        {"group": ""},
    ],
    ids=str,
)
def test_a_run_that_does_not_hold_together_is_refused(changes: dict[str, Any]) -> None:
    """A client must not slice one message out of another's bytes."""
    with pytest.raises(RemoteProtocolError, match="Polled"):
        decode_reply(run(**changes))
    decode_reply(run())


def test_a_run_whose_body_is_lost_says_so() -> None:
    """Damage on disk is told, with the ids, never dressed as empty messages."""
    frame = run(lost=True, ends=b"", payloads=b"", headers=None, header_ends=None)
    _, reply = decode_reply(frame)
    assert isinstance(reply, api.Polled)
    assert reply.runs[0].lost and 2 == reply.runs[0].count


@pytest.mark.parametrize("item", [1, [], [1], ["a", 1], [14, 1], [255, 1, "x"], [-1, 1], [1, -1], [1, None]], ids=str)
def test_what_is_no_reply_is_refused(item: Any) -> None:
    """An unknown kind cannot be answered to anyone."""
    with pytest.raises(RemoteProtocolError):
        decode_reply(cbor2.dumps(item))


def test_an_unknown_error_code_is_read() -> None:
    """A newer server may have codes we do not know; `errors.from_code` says what they mean."""
    assert (1, api.Failed(4711, "new", {})) == decode_reply(cbor2.dumps([0, 1, 4711, "new", {}]))


def test_an_endless_error_text_is_cut() -> None:
    """Some errors quote what they were given."""
    _, reply = decode_reply(encode_reply(1, api.Failed(1, "é" * 100_000)))
    assert isinstance(reply, api.Failed)
    assert reply.text.endswith("...")


def test_a_reply_beyond_a_frame_is_our_own_error() -> None:
    """The peer would close the connection over it."""
    seen = attrs.evolve(samples.SAMPLE_PEEKED, payload=bytes(limits.MESSAGE_BYTES_LIMIT))
    with pytest.raises(LocalProtocolError, match="frame"):
        encode_reply(1, api.Page((seen,) * 5))
    with pytest.raises(LocalProtocolError):
        encode_reply(1, api.StatsReply({"a": object()}))
