"""The first frames: versions in words, unknown names ignored."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given

from tests.protocol import samples
from walrq.errors import LocalProtocolError, MalformedRequest, RemoteProtocolError, UnsupportedVersion
from walrq.protocol.codec import Decoder
from walrq.protocol.handshake import (
    GoAway,
    Hello,
    Welcome,
    decode_hello,
    encode_goaway,
    encode_hello,
    encode_welcome,
    read_goaway,
    read_welcome,
)


@given(samples.HELLOS)
def test_hello_survives_the_wire(hello: Hello) -> None:
    """What a client says of itself arrives, features it invented included."""
    assert hello == decode_hello(encode_hello(hello))
    assert hello.features == decode_hello(encode_hello(hello)).features


@given(samples.WELCOMES)
def test_welcome_survives_the_wire(welcome: Welcome) -> None:
    """So does what the server says."""
    read = read_welcome(Decoder().decode(encode_welcome(welcome)))
    assert (welcome, welcome.limits) == (read, read.limits)


def test_goaway_survives_the_wire_and_its_text_is_bounded() -> None:
    """The last frame is read even if somebody put a novel into it."""
    assert GoAway(52, "stopping") == read_goaway(Decoder().decode(encode_goaway(GoAway(52, "stopping"))))
    assert 52 == read_goaway(Decoder().decode(encode_goaway(GoAway(52, "é" * 100_000)))).code


@pytest.mark.parametrize("versions", [(2, 2), (2, 9), (0, 0)])
def test_a_client_of_other_versions_is_told_ours(versions: tuple[int, int]) -> None:
    """Also when the rest of its Hello has a form we do not know."""
    for rest in ((), ("x", None, None, None, {}, "more")):
        with pytest.raises(UnsupportedVersion) as caught:
            decode_hello(cbor2.dumps(["walrq", *versions, *rest]))
        assert {"version_min": 1, "version_max": 1} == caught.value.details


def test_a_range_that_contains_our_version_is_taken() -> None:
    """Newer clients meet older servers at what both speak."""
    hello = decode_hello(cbor2.dumps(["walrq", 0, 7, "x", None, None, None, {}]))
    assert (0, 7) == (hello.version_min, hello.version_max)


@pytest.mark.parametrize(
    "item", [1, [], ["walrq"], ["walrq", 1], ["other", 1, 1], [20, 1, None, None], {"walrq": 1}], ids=str
)
def test_what_is_no_hello_is_a_protocol_error(item: Any) -> None:
    """A request before Hello, for one."""
    with pytest.raises(RemoteProtocolError, match="Hello"):
        decode_hello(cbor2.dumps(item))


def test_a_hello_of_another_length_is_refused() -> None:
    """Arrays are exact within a version."""
    with pytest.raises(MalformedRequest):
        decode_hello(cbor2.dumps(["walrq", 1, 1, "x", None, None, None, {}, 1]))


def test_a_welcome_with_what_cannot_be_encoded_is_our_own_error() -> None:
    """A mistake in the daemon is reported as one."""
    with pytest.raises(LocalProtocolError):
        encode_welcome(Welcome("n", "c", (), {"a": object()}, None, 1))
    with pytest.raises(LocalProtocolError):
        encode_hello(Hello("\ud800"))
