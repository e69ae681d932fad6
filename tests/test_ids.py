"""Identifiers are computed, ordered, and refuse what was never issued."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from walrq import ids
from walrq.errors import InvalidQueueName, ReceiptInvalid
from walrq.limits import SHARDS

# 0 is no queue's: it marks the receipts of tasks.
uids = st.integers(1, (1 << 32) - 1)
wall_clocks = st.integers(0, (1 << 48) - 1)
sequences = st.integers(0, ids.SEQUENCE_MAX)
leases = st.integers(0, (1 << 64) - 1)
offsets = st.integers(0, (1 << 32) - 1)
secrets = st.binary(min_size=16, max_size=32)


def test_fnv1a64_gives_the_published_values() -> None:
    """The hash is the standard one, so that clients in other languages find the same shard."""
    published = {
        b"": 0xCBF29CE484222325,
        b"a": 0xAF63DC4C8601EC8C,
        b"b": 0xAF63DF4C8601F1A5,
        b"foobar": 0x85944171F73967E8,
    }

    assert published == {data: ids.fnv1a64(data) for data in published}


def test_shard_vectors_of_the_specification_hold(repository_root: Path) -> None:
    """The published vectors are what this implementation computes."""
    vectors = json.loads((repository_root / "spec" / "shard_vectors.json").read_text("utf-8"))

    assert vectors["shards"] == SHARDS
    assert len(vectors["vectors"]) >= 20
    assert vectors["vectors"] == [
        {
            "name": vector["name"],
            "hashed": vector["hashed"],
            "fnv1a64": f"{ids.fnv1a64(vector['hashed'].encode()):016x}",
            "shard": ids.shard_of(vector["name"]),
        }
        for vector in vectors["vectors"]
    ]


@given(st.text(max_size=20).filter(lambda text: "{" not in text), st.text(min_size=1), st.text())
def test_queues_with_one_tag_share_a_shard(before: str, tag: str, after: str) -> None:
    """A `{tag}` chooses the shard whatever stands around it."""
    assume("}" not in tag)

    assert ids.shard_of(f"{{{tag}}}") == ids.shard_of(f"{before}{{{tag}}}{after}")


@pytest.mark.parametrize("name", ["{}orders", "orders{", "orders}", "}{", "a{b"])
def test_an_empty_or_open_tag_is_no_tag(name: str) -> None:
    """Only a closed, non-empty tag is hashed alone."""
    assert ids.fnv1a64(name.encode()) % SHARDS == ids.shard_of(name)


def test_every_shard_gets_queues() -> None:
    """Ordinary names spread over all shards."""
    assert set(range(SHARDS)) == {ids.shard_of(f"queue-{number}") for number in range(1_000)}


@pytest.mark.parametrize(
    "name", ["a", "x" * 255, "ü" * 127, "orders.eu", "with space", "日本", "{tag}.dlq", "a/b", "\U0001f600"]
)
def test_legal_queue_names_are_taken(name: str) -> None:
    """Any text without control characters is a name, up to 255 bytes."""
    assert name == ids.check_queue_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "x" * 256, "ü" * 128, "a\nb", "\0", "tab\t", "a\x7f", "a\x85b", "\ud800", None, 7, b"bytes", ["a"]],
)
def test_illegal_queue_names_are_refused(name: object) -> None:
    """Length, control characters, lone surrogates and other types are refused with their own error."""
    with pytest.raises(InvalidQueueName):
        ids.check_queue_name(name)


@given(uids)
def test_a_uid_holds_shard_and_incarnation(uid: int) -> None:
    """Both parts come back."""
    shard = ids.uid_shard(uid)

    assert 0 <= shard < SHARDS
    assert uid == ids.make_uid(shard, uid & ids.INCARNATION_MAX)


@given(wall_clocks, uids, sequences)
def test_a_message_id_is_128_bits_and_names_its_parts(wall_ms: int, uid: int, sequence: int) -> None:
    """Nothing spills over from part to part."""
    identifier = ids.message_id(wall_ms, uid, sequence)

    assert (wall_ms, uid, sequence) == ids.id_parts(identifier)
    assert 0 <= identifier < 1 << 128


@given(wall_clocks, wall_clocks, uids, sequences, sequences)
def test_ids_of_one_queue_sort_by_time_then_sequence(
    one_ms: int, other_ms: int, uid: int, one: int, other: int
) -> None:
    """Monotonic per queue, as numbers and as text."""
    first, second = ids.message_id(one_ms, uid, one), ids.message_id(other_ms, uid, other)

    assert ((one_ms, one) < (other_ms, other)) == (first < second)
    assert (first < second) == (ids.format_id(first) < ids.format_id(second))


def test_messages_of_a_batch_have_consecutive_ids() -> None:
    """id + k names the k-th message."""
    first = ids.message_id(1_700_000_000_000, 7, 41)

    assert ids.message_id(1_700_000_000_000, 7, 44) == first + 3


@given(st.integers(0, (1 << 128) - 1))
def test_id_text_goes_both_ways(identifier: int) -> None:
    """26 characters, either case."""
    text = ids.format_id(identifier)

    assert 26 == len(text)
    assert identifier == ids.parse_id(text) == ids.parse_id(text.lower())


def test_id_text_is_a_ulid() -> None:
    """The extremes of the ULID specification."""
    assert "0" * 26 == ids.format_id(0)
    assert "7" + "Z" * 25 == ids.format_id((1 << 128) - 1)
    assert "01ARZ3NDEKTSV4RRFFQ69G5FAV" == ids.format_id(ids.parse_id("01ARZ3NDEKTSV4RRFFQ69G5FAV"))


@pytest.mark.parametrize(
    "text", ["", "0" * 25, "0" * 27, "8" + "0" * 25, "I" + "0" * 25, "0" * 25 + "U", "0" * 25 + "é"]
)
def test_text_that_is_no_id_is_refused(text: str) -> None:
    """Wrong length, alphabet or range."""
    with pytest.raises(ValueError):
        ids.parse_id(text)


@given(secrets, uids, leases)
def test_a_receipt_opens_under_its_own_secret(secret: bytes, uid: int, lease: int) -> None:
    """What was made is what is read."""
    receipt = ids.make_receipt(secret, uid, lease)

    assert ids.RECEIPT_BYTES == len(receipt)
    assert (uid, lease) == ids.open_receipt(secret, receipt)


@given(secrets, uids, leases, st.integers(0, 8 * ids.RECEIPT_BYTES - 1))
def test_a_receipt_with_any_bit_flipped_is_refused(secret: bytes, uid: int, lease: int, bit: int) -> None:
    """No neighbour's lease can be named by damage or invention."""
    flipped = bytearray(ids.make_receipt(secret, uid, lease))
    flipped[bit // 8] ^= 1 << bit % 8

    with pytest.raises(ReceiptInvalid):
        ids.open_receipt(secret, bytes(flipped))


@given(uids, leases, st.integers(0, ids.RECEIPT_BYTES - 1))
def test_a_cut_receipt_is_refused(uid: int, lease: int, length: int) -> None:
    """Truncation at every byte."""
    receipt = ids.make_receipt(b"0123456789abcdef", uid, lease)

    for wrong in (receipt[:length], receipt + b"\0"):
        with pytest.raises(ReceiptInvalid):
            ids.open_receipt(b"0123456789abcdef", wrong)


@given(uids, leases)
def test_a_receipt_of_another_cluster_is_refused(uid: int, lease: int) -> None:
    """The check is keyed by the cluster's secret."""
    with pytest.raises(ReceiptInvalid):
        ids.open_receipt(b"B" * 16, ids.make_receipt(b"A" * 16, uid, lease))


@given(st.binary(min_size=ids.RECEIPT_BYTES, max_size=ids.RECEIPT_BYTES), offsets)
def test_a_handle_goes_both_ways(receipt: bytes, offset: int) -> None:
    """56 hexadecimal characters hold receipt and offset."""
    handle = ids.make_handle(receipt, offset)

    assert 56 == len(handle)
    assert (receipt, offset) == ids.parse_handle(handle)


@given(st.binary(min_size=ids.RECEIPT_BYTES, max_size=ids.RECEIPT_BYTES), offsets, st.data())
def test_a_handle_with_any_character_changed_is_refused(receipt: bytes, offset: int, data: st.DataObject) -> None:
    """A changed handle never names a sibling."""
    handle = ids.make_handle(receipt, offset)
    place = data.draw(st.integers(0, 55), "place")
    character = data.draw(st.sampled_from("0123456789abcdefgG -_é"), "character")
    assume(character != handle[place])

    with pytest.raises(ReceiptInvalid):
        ids.parse_handle(handle[:place] + character + handle[place + 1 :])


@given(uids, leases, offsets)
def test_a_handle_is_not_the_message_id(uid: int, lease: int, offset: int) -> None:
    """A message id passed as a handle is refused, and so is a made-up one."""
    for text in (ids.format_id(ids.message_id(1, uid, 1)), uuid.UUID(int=offset).hex, "", "0" * 56):
        with pytest.raises(ReceiptInvalid):
            ids.parse_handle(text)


@pytest.mark.parametrize("spoil", [lambda h: h[:-2], lambda h: h + "00", lambda h: h[:28] + " " + h[28:]])
def test_a_handle_of_another_length_is_refused(spoil: object) -> None:
    """Cut, padded, or with the blanks that hexadecimal parsing would overlook."""
    assert callable(spoil)
    handle = ids.make_handle(b"r" * ids.RECEIPT_BYTES, 3)

    with pytest.raises(ReceiptInvalid):
        ids.parse_handle(spoil(handle))
