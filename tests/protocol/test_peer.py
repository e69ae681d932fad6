"""Two nodes that share a secret find each other; anybody else finds out nothing and costs nothing."""

from __future__ import annotations

from itertools import pairwise

import attrs
import pytest
from cbor2 import dumps, loads
from hypothesis import given
from hypothesis import strategies as st

from walrq.errors import (
    Code,
    ConfigError,
    FrameTooLarge,
    NotLeader,
    RemoteProtocolError,
    Unauthenticated,
    UnsupportedVersion,
    WalrqError,
    WrongCluster,
    WrongDisk,
    WrongNode,
)
from walrq.limits import HELLO_BYTES_MAX, PEER_FRAME_BYTES_MAX, PEER_SECRET_BYTES_MIN
from walrq.protocol import peer as peer_protocol
from walrq.protocol.framing import FrameBuffer, frame
from walrq.protocol.handshake import Hello
from walrq.protocol.handshake import encode_hello as encode_client_hello
from walrq.protocol.peer import (
    NONCE_BYTES,
    AcceptorHandshake,
    Admission,
    DialerHandshake,
    PeerHello,
    Ping,
    Pong,
    Purpose,
    Refusal,
    check_peer,
    check_secret,
    decode_hello,
    decode_item,
    encode_admission,
    encode_hello,
    encode_ping,
    encode_pong,
    encode_raft,
    encode_refusal,
)
from walrq.raft.entries import Entry, Kind
from walrq.raft.membership import Configuration
from walrq.raft.messages import Append, Heartbeat

SECRET = b"a secret of the cluster"
ANNA = PeerHello("c-1", "anna", b"A" * 16, "10.0.0.1:7000", {"cbor": "10.0.0.1:50051"}, Purpose.CONTROL, 7)
BERT = PeerHello("c-1", "bert", b"B" * 16, "10.0.0.2:7000", {}, Purpose.ANSWER, 8)


def dialer(hello: PeerHello = ANNA, secret: bytes = SECRET, binding: bytes = b"", **judge: object) -> DialerHandshake:
    """The end that connects; judges as the daemon does."""
    return DialerHandshake(
        secret=secret,
        hello=hello,
        nonce=b"d" * NONCE_BYTES,
        judge=lambda peer: check_peer(hello, peer, **judge),  # type: ignore[arg-type]
        binding=binding,
    )


def acceptor(
    hello: PeerHello = BERT, secret: bytes = SECRET, binding: bytes = b"", **judge: object
) -> AcceptorHandshake:
    """The other end."""
    return AcceptorHandshake(
        secret=secret,
        hello=hello,
        nonce=b"a" * NONCE_BYTES,
        judge=lambda peer: check_peer(hello, peer, **judge),  # type: ignore[arg-type]
        binding=binding,
    )


def run(one: DialerHandshake, other: AcceptorHandshake) -> tuple[WalrqError | None, WalrqError | None, bytes]:
    """Carry bytes between both ends until nothing moves: what each raised, and all that the acceptor said."""
    errors: list[WalrqError | None] = [None, None]
    said = b""
    ends = (one, other)
    for _ in range(8):
        for at, (source, target) in enumerate(((one, other), (other, one))):
            data = source.take_output()
            if at == 1:
                said += data
            if data and errors[1 - at] is None:
                try:
                    target.receive(data)
                except WalrqError as error:
                    errors[ends.index(target)] = error
    return errors[0], errors[1], said


# --- who belongs together -----------------------------------------------------------------------------------
def test_two_nodes_with_one_secret_know_each_other() -> None:
    """Each learns name, disk, cluster and addresses of the other."""
    one, other = dialer(), acceptor()

    assert (None, None) == run(one, other)[:2]
    assert BERT == one.peer
    assert ANNA == other.peer
    assert ANNA.endpoints == other.peer.endpoints
    assert PEER_FRAME_BYTES_MAX == one.frames.frame_bytes_max == other.frames.frame_bytes_max


@given(st.lists(st.integers(0, 900), max_size=12), st.lists(st.integers(0, 900), max_size=12))
def test_any_split_of_the_bytes_gives_the_same_handshake(cuts_one: list[int], cuts_other: list[int]) -> None:
    """TCP keeps no boundaries, and what follows the handshake is not lost in it."""
    one, other = dialer(), acceptor()
    behind = frame(b"behind")
    extra: list[bytes] = []
    for _ in range(8):
        for source, target, cuts in ((one, other, cuts_one), (other, one, cuts_other)):
            data = source.take_output()
            if source is other and other.peer is not None and data:
                data += behind
            edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
            for first, last in pairwise(edges):
                extra += target.receive(data[first:last])

    assert BERT == one.peer
    assert ANNA == other.peer
    assert [b"behind"] == extra


def test_a_wrong_secret_is_refused_on_both_ends_and_nothing_is_told() -> None:
    """Names, addresses and cluster ids are for members; the text names what is wrong."""
    one, other = dialer(secret=b"another secret, long"), acceptor()
    first, second, said = run(one, other)

    assert Unauthenticated is type(first) is type(second)
    assert "cluster secret" in str(second)
    assert one.told
    assert not other.told
    assert one.peer is None
    assert other.peer is None
    assert b"bert" not in said
    assert b"c-1" not in said


def test_an_acceptor_without_the_secret_learns_no_name() -> None:
    """Whoever answers at a wrong address is told nothing but a number and a proof."""
    one = dialer()
    opening = one.take_output()
    one.receive(frame(dumps([peer_protocol.MAGIC, 1, b"x" * NONCE_BYTES])))
    proof = one.take_output()
    with pytest.raises(Unauthenticated):
        one.receive(frame(dumps([encode_hello(BERT), b"x" * 32])))

    assert b"anna" not in opening + proof + one.take_output()


def test_a_proof_thrown_back_at_its_maker_is_no_proof() -> None:
    """Roles are part of what is proved: an echo knows nothing."""
    one = dialer()
    one.take_output()
    one.receive(frame(dumps([peer_protocol.MAGIC, 1, b"d" * NONCE_BYTES])))
    (proof,) = loads(FrameBuffer().feed(one.take_output())[0])
    with pytest.raises(Unauthenticated):
        one.receive(frame(dumps([encode_hello(BERT), proof])))


def test_a_proof_is_good_for_one_role() -> None:
    """What a dialer proves must not be of use to whoever wants to be taken for an acceptor."""
    proofs = {
        peer_protocol._proof(SECRET, role, b"", b"the same")
        for role in (
            peer_protocol._PROOF_OF_DIALER,
            peer_protocol._HELLO_OF_ACCEPTOR,
            peer_protocol._HELLO_OF_DIALER,
        )
    }

    assert 3 == len(proofs)


def test_a_recorded_handshake_opens_no_second_one() -> None:
    """The acceptor's number is new each time, so yesterday's proof is wrong today."""
    one, other = dialer(), acceptor()
    opening = one.take_output()
    other.receive(opening)
    one.receive(other.take_output())
    proof = one.take_output()
    other.receive(proof)
    later = AcceptorHandshake(secret=SECRET, hello=BERT, nonce=b"n" * NONCE_BYTES)
    later.receive(opening)
    with pytest.raises(Unauthenticated):
        later.receive(proof)


def test_somebody_between_two_tls_channels_is_noticed() -> None:
    """The proofs cover the channel: relayed over another one they are wrong."""
    assert (None, None) == run(dialer(binding=b"same"), acceptor(binding=b"same"))[:2]

    first, second, _ = run(dialer(binding=b"one"), acceptor(binding=b"other"))

    assert Unauthenticated is type(first) is type(second)


def _messages() -> list[bytes]:
    """All messages of a good handshake, dialer's and acceptor's in turn."""
    one, other = dialer(), acceptor()
    messages = []
    source: DialerHandshake | AcceptorHandshake = one
    target: DialerHandshake | AcceptorHandshake = other
    while data := source.take_output():
        messages.append(data)
        target.receive(data)
        source, target = target, source
    return messages


MESSAGES = _messages()


def test_a_handshake_has_six_messages() -> None:
    """The table at the head of the module, and the page, say so."""
    assert 6 == len(MESSAGES)


@given(st.integers(0, 5), st.data())
def test_a_bit_changed_on_the_way_never_goes_unnoticed(which: int, data: st.DataObject) -> None:
    """Version, numbers, names: all of it is covered by a proof, so at most one end thinks that all is well."""
    at = data.draw(st.integers(0, 8 * len(MESSAGES[which]) - 1))
    one, other = dialer(), acceptor()
    source: DialerHandshake | AcceptorHandshake = one
    target: DialerHandshake | AcceptorHandshake = other
    for number in range(6):
        said = bytearray(source.take_output())
        if not said:
            break
        if number == which:
            said[at // 8] ^= 1 << at % 8
        try:
            target.receive(bytes(said))
        except WalrqError:
            break
        source, target = target, source

    assert one.peer is None


@pytest.mark.parametrize("kept", range(6))
def test_an_end_inside_the_handshake_is_an_error(kept: int) -> None:
    """Neither end takes a part for the whole."""
    one, other = dialer(), acceptor()
    source: DialerHandshake | AcceptorHandshake = one
    target: DialerHandshake | AcceptorHandshake = other
    for _ in range(kept):
        target.receive(source.take_output())
        source, target = target, source
    target.receive(source.take_output()[:-1])
    with pytest.raises(RemoteProtocolError, match="ask for TLS" if kept == 1 else "before the handshake was over"):
        target.receive_eof()


# --- versions -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("versions", [(2, 3), (0, 0), (5, 2), (1, 70_000)])
def test_versions_that_do_not_meet_are_refused_in_words(versions: tuple[int, int]) -> None:
    """An old node must be able to say why it will not talk to a new one."""
    other = acceptor()
    with pytest.raises(UnsupportedVersion, match="this node 1 to 1"):
        other.receive(frame(dumps([peer_protocol.MAGIC, *versions, b"d" * NONCE_BYTES])))
    one = dialer()
    with pytest.raises(UnsupportedVersion):
        one.receive(other.take_output())
    assert one.told
    assert b"" == one.take_output()[len(MESSAGES[0]) :]


def test_the_highest_common_version_is_chosen_and_later_fields_are_ignored() -> None:
    """A newer node says more and speaks more; this one takes what it knows."""
    other = acceptor()
    other.receive(frame(dumps([peer_protocol.MAGIC, 1, 9, b"d" * NONCE_BYTES, "later"])))

    assert 1 == loads(FrameBuffer().feed(other.take_output())[0])[1]
    assert ANNA == decode_hello(dumps([*loads(encode_hello(ANNA)), "later"]))


def test_a_version_nobody_offered_is_refused() -> None:
    """A choice outside the offer is no choice."""
    one = dialer()
    with pytest.raises(UnsupportedVersion):
        one.receive(frame(dumps([peer_protocol.MAGIC, 2, b"x" * NONCE_BYTES])))


# --- who is refused -----------------------------------------------------------------------------------------
def test_a_node_of_another_cluster_is_refused_on_both_ends_with_both_ids() -> None:
    """The log of either node says what is wrong with the other."""
    first, second, _ = run(dialer(), acceptor(attrs.evolve(BERT, cluster="c-2")))

    assert WrongCluster is type(first) is type(second)
    for error in (first, second):
        assert "c-1" in str(error)
        assert "c-2" in str(error)


def test_a_node_without_a_cluster_may_talk_to_one() -> None:
    """That is how it joins."""
    joining = attrs.evolve(ANNA, cluster="", purpose=Purpose.JOIN)
    assert (None, None) == run(dialer(joining), acceptor())[:2]
    assert (None, None) == run(dialer(), acceptor(attrs.evolve(BERT, cluster="")))[:2]


def test_two_nodes_with_one_id_do_not_talk() -> None:
    """An address that leads back to oneself looks the same, and the text says both."""
    first, second, _ = run(dialer(), acceptor(attrs.evolve(BERT, node="anna")))

    assert WrongNode is type(first) is type(second)
    assert "two nodes go by one id" in str(first)


def test_another_node_than_the_expected_one_is_refused() -> None:
    """Addresses are given to other machines."""
    first, second, _ = run(dialer(expected="carl"), acceptor())

    assert WrongNode is type(first) is type(second)
    assert "'bert' answers where 'carl' was expected" in str(first)


@pytest.mark.parametrize("at_dialer", [True, False])
def test_a_node_with_another_data_directory_is_refused(at_dialer: bool) -> None:
    """It forgot its votes: under its old name it could vote twice."""
    one, other = (dialer(bound=b"C" * 16), acceptor()) if at_dialer else (dialer(), acceptor(bound=b"C" * 16))
    first, second, _ = run(one, other)

    assert WrongDisk is type(first) is type(second)
    assert (b"C" * 16).hex() in str(first)
    assert ((b"B" if at_dialer else b"A") * 16).hex() in str(first)


def test_a_known_data_directory_is_let_in() -> None:
    """The usual case."""
    assert (None, None) == run(dialer(bound=b"B" * 16), acceptor(bound=b"A" * 16))[:2]


def test_a_dialer_that_claims_to_be_an_acceptor_is_refused() -> None:
    """Purposes belong to roles."""
    _, second, _ = run(dialer(attrs.evolve(ANNA, purpose=Purpose.ANSWER)), acceptor())

    assert isinstance(second, RemoteProtocolError)
    assert "purpose" == second.details["field"]


@pytest.mark.parametrize("size", [0, 1, PEER_SECRET_BYTES_MIN - 1, 5000])
def test_a_secret_that_keeps_nobody_out_is_refused(size: int) -> None:
    """Sixteen bytes at least, and a hint how to make a good one."""
    with pytest.raises(ConfigError, match="openssl rand"):
        check_secret(b"x" * size)


# --- strangers ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "TLS"),
        (b"*1\r\n$4\r\nPING\r\n", "RESP"),
        (b"\x00\x00\x00\x00", "how nodes of a cluster begin"),
        (frame(encode_client_hello(Hello(client="somebody"))), "clients go to --listen"),
        (frame(b"\xff" * 9), "CBOR"),
        (frame(dumps({"a": 1})), "arrays"),
        (frame(dumps([])), "arrays"),
        (frame(dumps(["walrq-peer"])), "begins with"),
        (frame(dumps(["walrq-peer", 1, 1, b"short"])), "begins with"),
        (frame(dumps(["walrq-peer", "1", 1, b"d" * 32])), "begins with"),
    ],
)
def test_strangers_get_one_line_that_names_them(data: bytes, words: str) -> None:
    """A wrong port in a configuration is found by its log line."""
    other = acceptor()
    with pytest.raises(RemoteProtocolError) as caught:
        other.receive(data)

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(decode_item(FrameBuffer().feed(other.take_output())[0], "x"), Refusal)


def test_a_long_frame_of_a_stranger_is_refused_by_its_length() -> None:
    """Before the first proof a connection holds at most one short frame."""
    other = acceptor()
    with pytest.raises(RemoteProtocolError, match=str(HELLO_BYTES_MAX)):
        other.receive((HELLO_BYTES_MAX + 1).to_bytes(4, "big"))


@given(st.lists(st.binary(max_size=200), max_size=5), st.booleans())
def test_no_bytes_of_a_stranger_do_more_than_end_its_handshake(chunks: list[bytes], framed: bool) -> None:
    """Whatever comes: an error of ours, a bounded buffer, and never a peer."""
    for end in (dialer(), acceptor()):
        try:
            for chunk in chunks:
                end.receive(frame(chunk) if framed and chunk else chunk)
        except WalrqError:
            pass
        assert end.peer is None
        assert end.frames.partial <= HELLO_BYTES_MAX * 4 + 4


def test_what_answers_at_a_wrong_port_is_named() -> None:
    """The dialer's side of the same mistake: --join with a client address."""
    one = dialer()
    with pytest.raises(RemoteProtocolError, match="not a node's peer address"):
        one.receive(frame(dumps([0, 80, "a connection begins with Hello"])))


@pytest.mark.parametrize(
    ("at", "value", "field"),
    [
        (0, 7, "cluster"),
        (0, "c" * 256, "cluster"),
        (1, "", "node"),
        (1, "n" * 256, "node"),
        (1, b"bytes", "node"),
        (2, "text", "disk_uuid"),
        (2, b"u" * 65, "disk_uuid"),
        (3, "a" * 256, "address"),
        (4, [], "endpoints"),
        (4, {"cbor": 1}, "endpoints"),
        (4, {f"door{n}": "a:1" for n in range(17)}, "endpoints"),
        (5, "dance", "purpose"),
        (6, -1, "life"),
    ],
)
def test_a_hello_with_a_bad_field_names_it(at: int, value: object, field: str) -> None:
    """Even who knows the secret is judged field by field."""
    item = loads(encode_hello(ANNA))
    item[at] = value
    with pytest.raises(RemoteProtocolError) as caught:
        decode_hello(dumps(item))

    assert field == caught.value.details["field"]
    assert "in a peer's hello" in str(caught.value)


@pytest.mark.parametrize("item", [[], "hello", ["c", "n"], {}])
def test_a_hello_of_another_form_is_refused(item: object) -> None:
    """Seven elements at least."""
    with pytest.raises(RemoteProtocolError, match="hello"):
        decode_hello(dumps(item))


# --- behind the handshake -----------------------------------------------------------------------------------
BEAT = Heartbeat("c-1", "anna", "bert", 3, 0, 9)
APPEND = Append("c-1", "anna", "bert", 3, 4, 2, 6, 4, 0, (Entry(2, Kind.COMMANDS, b"x" * 10), Entry(3, Kind.NOOP, b"")))


def only(data: bytes) -> bytes:
    """The body of the one frame in `data`."""
    (body,) = FrameBuffer().feed(data)
    return body


@pytest.mark.parametrize("message", [BEAT, APPEND])
def test_raft_messages_arrive_as_they_left(message: Heartbeat | Append) -> None:
    """The bytes are raft's own."""
    assert message == decode_item(only(b"".join(encode_raft([message]))), "anna")


def test_many_messages_make_as_many_frames() -> None:
    """One send carries them all."""
    stream = b"".join(encode_raft([BEAT, APPEND, BEAT]))

    assert [BEAT, APPEND, BEAT] == [decode_item(body, "anna") for body in FrameBuffer().feed(stream)]


def test_a_message_in_anothers_name_is_refused() -> None:
    """The sender is the node that proved itself on this connection, and nobody else."""
    with pytest.raises(RemoteProtocolError, match="sender is 'anna', and the link is that of 'carl'") as caught:
        decode_item(only(b"".join(encode_raft([BEAT]))), "carl")

    assert "sender" == caught.value.details["field"]


@given(st.integers(0, 2**64 - 1))
def test_pings_and_pongs_carry_their_number(number: int) -> None:
    """By it the pinger knows how long it took."""
    assert Ping(number) == decode_item(only(encode_ping(number)), "anna")
    assert Pong(number) == decode_item(only(encode_pong(number)), "anna")


def test_an_admission_carries_cluster_and_members() -> None:
    """All that a node needs that belongs to nothing yet."""
    admission = Admission("c-1", Configuration.of(["anna", "bert"], ["carl"]))

    assert admission == decode_item(only(encode_admission(admission)), "anna")


def test_a_refusal_arrives_as_the_error_it_was_for_programs_and_as_one_line_for_people() -> None:
    """Control characters of a stranger do not reach a terminal; what is not plain stays behind."""
    sent = NotLeader("ask\x1b[31m\nthere", leader="10.0.0.2:7000", odd=object())
    refusal = decode_item(only(encode_refusal(sent)), "anna")

    assert isinstance(refusal, Refusal)
    assert type(refusal.error) is NotLeader
    assert "ask?[31m?there" == str(refusal.error)
    assert {"leader": "10.0.0.2:7000"} == dict(refusal.error.details)


def test_a_refusal_is_bounded() -> None:
    """It may come from anybody."""
    refusal = decode_item(dumps([-3, int(Code.INTERNAL), "x" * 10_000, {}]), "anna")

    assert isinstance(refusal, Refusal)
    assert 1024 == len(str(refusal.error))


@pytest.mark.parametrize(
    "item",
    [
        [-1],
        [-1, "x"],
        [-1, -5],
        [-2, 1, 2],
        [-3],
        [-3, "x", "text", {}],
        [-3, 4, "text", []],
        [-4, "c", b"no configuration"],
        [-4, "c" * 300, Configuration.of(["a"]).encode()],
        [-5],
        [99, "c"],
        [],
        "text",
        7,
    ],
)
def test_what_is_neither_raft_nor_the_links_own_is_refused(item: object) -> None:
    """An unknown word ends the connection; it is never skipped."""
    with pytest.raises(RemoteProtocolError):
        decode_item(dumps(item), "anna")


@given(st.binary(min_size=1, max_size=300))
def test_no_bytes_of_a_peer_do_more_than_end_its_connection(body: bytes) -> None:
    """One class of error for whatever does not parse."""
    try:
        decode_item(body, "anna")
    except RemoteProtocolError:
        pass


def test_an_append_larger_than_a_frame_leaves_as_several_that_follow_each_other() -> None:
    """Entries of a log that was written long ago may be larger than whoever chose them knew."""
    bodies = [bytes(9_000_000), b"small", bytes(20_000_000), bytes(20_000_000), b"last"]
    entries = tuple(Entry(term, Kind.COMMANDS, body) for term, body in zip((1, 1, 2, 2, 3), bodies, strict=True))
    whole = Append("c-1", "anna", "bert", 3, 4, 1, 9, 4, 7, entries)
    parts = []
    for body in FrameBuffer(PEER_FRAME_BYTES_MAX).feed(b"".join(encode_raft([BEAT, whole, BEAT]))):
        part = decode_item(body, "anna")
        if part != BEAT:
            assert isinstance(part, Append)
            parts.append(part)

    assert 2 <= len(parts)
    assert entries == tuple(entry for part in parts for entry in part.entries)
    assert (4, 1) == (parts[0].prev_index, parts[0].prev_term)
    for before, after in pairwise(parts):
        assert (before.last_index, before.entries[-1].term) == (after.prev_index, after.prev_term)
        assert attrs.astuple(whole)[:4] == attrs.astuple(after)[:4]
    assert 9 == parts[-1].last_index


def test_a_message_beyond_the_largest_frame_is_not_sent() -> None:
    """The other end would refuse it by its length, and the connection would be lost for nothing."""
    body = bytes(PEER_FRAME_BYTES_MAX)
    with pytest.raises(FrameTooLarge):
        encode_raft([attrs.evolve(APPEND, last_index=5, entries=(Entry(3, Kind.COMMANDS, body),))])
