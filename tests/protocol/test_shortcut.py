"""What is read by its bytes is what the decoder reads; what the decoder refuses is never read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol import samples
from walrq import api
from walrq.errors import ProtocolError, RequestError
from walrq.protocol.columns import pack
from walrq.protocol.requests import Incoming, decode_request, encode_request
from walrq.protocol.shortcut import read_common, remember

COMMON: list[api.Request] = [
    api.Push("jobs", pack([b"x" * 100])),
    api.Push("jobs", pack([b""])),
    api.Push("jobs", pack([b"x" * 60_000])),
    api.Push("jobs", pack([b"one", b"two", b""])),
    api.Push("jobs", pack([b"x" * 100] * 10)),
    api.Push("jobs", pack([b"x"] * 300)),
    api.Push("\u00e9t\u00e9", pack([b"x"])),
    api.Poll(("jobs",), 10, 30_000, 1_000),
    api.Poll(("jobs", "mails"), 1, None, 0, "worker-1"),
    api.Settle("jobs", api.SettleKind.ACK, (api.Item(samples.RECEIPT),)),
]
ENVELOPES: list[tuple[int, int | None, int | None]] = [
    (24, None, None),
    (255, 24, 24),
    (256, 255, 200),
    (70_000, 300, 256),
    (30, 1 << 31, 70_000),
]


def long_way(body: bytes) -> Incoming | None:
    """The request as the decoder reads it, None when it is refused."""
    try:
        return decode_request(body)
    except (ProtocolError, RequestError):
        return None


def show(body: bytes) -> None:
    """What a server does with a poll it had to read the long way."""
    incoming = long_way(body)
    if incoming is not None and isinstance(incoming.request, api.Poll):
        remember(body, incoming.request)


@pytest.mark.parametrize("envelope", ENVELOPES, ids=str)
@pytest.mark.parametrize("request_", COMMON, ids=lambda request: type(request).__name__)
def test_common_requests_take_the_shortcut(request_: api.Request, envelope: tuple[int, int | None, int | None]) -> None:
    """In every width an id and a sequence have on a connection of some age."""
    identifier, sequence, lowest = envelope
    body = encode_request(identifier, request_, sequence, lowest)
    show(body)

    assert read_common(body) == Incoming(identifier, sequence, lowest, request_, len(body)) == decode_request(body)


@given(samples.ANY_REQUEST, st.integers(1, 1 << 33), st.integers(0, 1 << 17), st.booleans())
def test_any_request_is_read_alike_or_left_alone(request: api.Request, lowest: int, ahead: int, session: bool) -> None:
    """The shortcut knows few requests and is mistaken about none."""
    if session:
        body = encode_request(1 + ahead, request, lowest + ahead, lowest)
    else:
        body = encode_request(lowest, request)
    show(body)

    assert read_common(body) in (None, decode_request(body))


@given(
    st.sampled_from(COMMON),
    st.sampled_from(ENVELOPES),
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 255)), max_size=3),
    st.integers(-3, 3),
)
def test_what_the_decoder_refuses_is_never_read(
    request: api.Request, envelope: tuple[int, int | None, int | None], changes: list[tuple[int, int]], length: int
) -> None:
    """Frames that were changed, cut short or drawn out: read alike, or left to the decoder."""
    identifier, sequence, lowest = envelope
    whole = encode_request(identifier, request, sequence, lowest)
    show(whole)
    body = bytearray(whole)
    for position, value in changes:
        body[position % len(body)] = value
    changed = bytes(body[:length] if length < 0 else body + b"\xf6" * length)
    show(changed)

    assert read_common(changed) in (None, long_way(changed))


def test_every_byte_of_a_common_request_matters() -> None:
    """Every value in every place of the frame, one at a time."""
    for request in COMMON[0], COMMON[3], COMMON[7], COMMON[9]:
        whole = encode_request(256, request, 300, 300)
        show(whole)
        for position in range(len(whole)):
            for value in (0, 1, 0x17, 0x18, 0x40, 0x58, 0x59, 0x5A, 0x60, 0x64, 0x78, 0x80, 0xD8, 0xF5, 0xF6, 0xFF):
                changed = whole[:position] + bytes((value,)) + whole[position + 1 :]
                assert read_common(changed) in (None, long_way(changed)), (request, position, value)


def test_a_poll_in_an_envelope_of_mixed_widths_is_not_remembered_askew() -> None:
    """A sequence of two bytes and a lowest of one: the fields begin elsewhere than the shortcut would think."""
    body = encode_request(256, api.Poll(("jobs",), 7, 30_000, 3), 300, 30)
    show(body)
    askew = encode_request(256, api.Poll(("jobs",), 7, 30_000, 3), 300, 300)
    askew = askew[: 3 + 2 + 3 + 3] + body[3 + 2 + 3 + 3 :]

    assert long_way(askew) is None
    assert read_common(askew) is None
