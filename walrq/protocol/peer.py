"""What nodes of a cluster say to each other before and beside Raft's messages, sans-IO.

A connection between nodes carries frames (`framing`). It begins with a handshake in which both ends prove that they
know the cluster's secret without showing it, and only then say who they are::

    dialer     ["walrq-peer", version min, version max, nonce]      32 random bytes
    acceptor   ["walrq-peer", version, nonce]
    dialer     [proof]                                              HMAC-SHA256 over all of the above
    acceptor   [hello, proof]                                       over all of the above, and its hello
    dialer     [hello, proof]                                       the same
    acceptor   [true]                                               the link is up

Each proof names the role it is made for, so that none can be thrown back at its maker; it covers every byte said
before, so that a version cannot be talked down; and it covers the TLS channel where there is one, so that nobody can
sit in between. The dialer proves first: whoever merely connects learns the version and nothing to try passwords on.
At any moment either end may say why it leaves: `[-3, code, text, details]`.

After the handshake a frame is a Raft message (raft/messages.py owns those bytes) or one of `[-1, n]` ping, `[-2, n]`
pong, `[-3, ...]` refusal, `[-4, cluster, configuration]` admission. Messages flow from dialer to acceptor only; what
flows back is pongs.

How to drive an end: send `take_output()`, hand what arrives to `receive`, until `peer` is set or an error is raised;
then send what `take_output()` has once more (it may be the refusal) and go on with `frames`, or close. The caller owes
time-outs, nonces that never repeat, and the binding of the TLS channel.

Source: challenge and response with a shared secret as in RFC 5802 (SCRAM), without its passwords.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import attrs

from walrq.errors import (
    ConfigError,
    FrameTooLarge,
    ProtocolError,
    RemoteProtocolError,
    RequestError,
    Unauthenticated,
    UnsupportedVersion,
    WalrqError,
    WrongCluster,
    WrongDisk,
    WrongNode,
    from_code,
)
from walrq.limits import (
    HELLO_BYTES_MAX,
    KIB,
    PEER_ADDRESS_BYTES_MAX,
    PEER_ENDPOINTS_MAX,
    PEER_FRAME_BYTES_MAX,
    PEER_SECRET_BYTES_MAX,
    PEER_SECRET_BYTES_MIN,
    RAFT_NODE_ID_BYTES_MAX,
)
from walrq.protocol import fields
from walrq.protocol.codec import Decoder, check_plain, encode
from walrq.protocol.fields import UINT64_MAX
from walrq.protocol.framing import LENGTH, FrameBuffer, frame
from walrq.raft.membership import Configuration
from walrq.raft.messages import Append, Message, encode_pieces
from walrq.raft.messages import decode as decode_message

MAGIC: Final = "walrq-peer"
VERSION_MIN: Final = 1
VERSION_MAX: Final = 1
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32

PING: Final = -1
PONG: Final = -2
REFUSAL: Final = -3
ADMISSION: Final = -4

_VERSION_LIMIT: Final = 65_535
_CLUSTER_BYTES_MAX: Final = 255
_DISK_UUID_BYTES_MAX: Final = 64
_DOOR_BYTES_MAX: Final = 32
_TEXT_BYTES_MAX: Final = 1 * KIB
# An admission tells of all members; it comes from a node that has proved itself.
_DIALER_BYTES_MAX: Final = 64 * KIB


class Purpose(enum.StrEnum):
    """What a connection is for."""

    CONTROL = "control"  # votes, heartbeats, replies: small, and never behind anything large
    BULK = "bulk"  # appends and snapshots, in order
    JOIN = "join"  # a node that belongs to no cluster asks to become a member
    PROBE = "probe"  # who is there?
    ANSWER = "answer"  # the acceptor's: it answers


@attrs.frozen
class PeerHello:
    """Who a node is.

    Attributes:
        cluster: id of its cluster; "" while it belongs to none.
        node: its name.
        disk_uuid: the mark of its data directory.
        address: where its peers reach it ("host:port"), "" when it told nobody.
        endpoints: where clients reach it, by door ("cbor": "host:port").
        purpose: what this connection is for.
        life: drawn anew at each start of the process: tells two processes with one name apart.
        version: the newest version of the state machine that it can be.
    """

    cluster: str
    node: str
    disk_uuid: bytes
    address: str = ""
    endpoints: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    purpose: Purpose = Purpose.CONTROL
    life: int = 0
    version: int = 1


@attrs.frozen
class Ping:
    """Are you there? `number` comes back."""

    number: int


@attrs.frozen
class Pong:
    """I am."""

    number: int


@attrs.frozen
class Admission:
    """A joining node's answer: it was added to this cluster, whose configuration (with it) is this one."""

    cluster: str
    configuration: Configuration


@attrs.frozen
class Refusal:
    """Why the other end leaves."""

    error: WalrqError


Item: TypeAlias = Message | Ping | Pong | Admission | Refusal


def check_secret(secret: bytes) -> bytes:
    """The cluster's secret, when it is one.

    Raises:
        ConfigError: too short to keep anybody out, or too long.
    """
    if not PEER_SECRET_BYTES_MIN <= len(secret) <= PEER_SECRET_BYTES_MAX:
        raise ConfigError(
            f"cluster_secret has {len(secret)} bytes, allowed are {PEER_SECRET_BYTES_MIN} to {PEER_SECRET_BYTES_MAX}; "
            "`openssl rand -hex 32` makes a good one",
            field="cluster_secret",
        )
    return secret


def check_peer(own: PeerHello, peer: PeerHello, *, expected: str | None = None, bound: bytes = b"") -> None:
    """Judge whether two nodes may talk.

    Args:
        own: this node.
        peer: the other one, its proof accepted.
        expected: the node that was meant to be at the dialed address; None for any.
        bound: the data directory that the cluster knows the peer by; b"" when it knows none yet.

    Raises:
        WrongCluster, WrongNode, WrongDisk: naming both values.
    """
    if own.cluster and peer.cluster and own.cluster != peer.cluster:
        raise WrongCluster(
            f"node {own.node!r} belongs to cluster {own.cluster}, node {peer.node!r} to cluster {peer.cluster}",
            field="cluster",
        )
    if peer.node == own.node:
        raise WrongNode(
            f"node id {own.node!r} is this node's own: two nodes go by one id, or an address leads back here",
            field="node",
        )
    if expected is not None and peer.node != expected:
        raise WrongNode(f"node {peer.node!r} answers where {expected!r} was expected", field="node")
    if bound and peer.disk_uuid != bound:
        raise WrongDisk(
            f"node {peer.node!r} comes with the data directory {peer.disk_uuid.hex()}, the cluster knows it by "
            f"{bound.hex()}",
            field="disk_uuid",
        )


# --- bytes --------------------------------------------------------------------------------------------------
def encode_hello(hello: PeerHello) -> bytes:
    """The bytes that a proof covers."""
    return encode(
        [
            hello.cluster,
            hello.node,
            hello.disk_uuid,
            hello.address,
            dict(hello.endpoints),
            str(hello.purpose),
            hello.life,
            hello.version,
        ]
    )


def decode_hello(data: bytes) -> PeerHello:
    """The hello in these bytes.

    Raises:
        RemoteProtocolError: it is none; the text names the field.
    """
    item = Decoder().decode(data)
    # A later version may add fields behind.
    if type(item) is not list or len(item) < 7:
        raise RemoteProtocolError("a peer's hello is an array of at least 7 elements", field="hello")
    try:
        node = fields.text(item[1], "node", RAFT_NODE_ID_BYTES_MAX)
        if not node:
            fields.refuse("node", None, "a name of at least one byte")
        return PeerHello(
            cluster=fields.text(item[0], "cluster", _CLUSTER_BYTES_MAX),
            node=node,
            disk_uuid=_octets(item[2], "disk_uuid", _DISK_UUID_BYTES_MAX),
            address=fields.text(item[3], "address", PEER_ADDRESS_BYTES_MAX),
            endpoints=_endpoints(item[4]),
            purpose=_purpose(item[5]),
            life=fields.uint(item[6], "life", UINT64_MAX),
            version=fields.uint(item[7], "version", _VERSION_LIMIT) if len(item) > 7 else 1,
        )
    except RequestError as error:
        raise RemoteProtocolError(f"in a peer's hello: {error.text}", **error.details) from None


def _purpose(value: object) -> Purpose:
    try:
        return Purpose(fields.text(value, "purpose", _DOOR_BYTES_MAX))
    except ValueError:
        raise RemoteProtocolError(f"in a peer's hello: purpose is {value!r}", field="purpose") from None


def _octets(value: object, field: str, bytes_max: int) -> bytes:
    data = fields.octets(value, field)
    if len(data) > bytes_max:
        fields.refuse(field, len(data), f"a byte string of at most {bytes_max}", limit=bytes_max)
    return data


def _endpoints(value: object) -> dict[str, str]:
    if type(value) is not dict or len(value) > PEER_ENDPOINTS_MAX:
        fields.refuse("endpoints", value, f"a map of at most {PEER_ENDPOINTS_MAX}", limit=PEER_ENDPOINTS_MAX)
    return {
        fields.text(door, "endpoints", _DOOR_BYTES_MAX): fields.text(address, "endpoints", PEER_ADDRESS_BYTES_MAX)
        for door, address in value.items()
    }


def encode_ping(number: int) -> bytes:
    """A frame."""
    return frame(encode([PING, number]))


def encode_pong(number: int) -> bytes:
    """A frame."""
    return frame(encode([PONG, number]))


def encode_admission(admission: Admission) -> bytes:
    """A frame."""
    return frame(encode([ADMISSION, admission.cluster, admission.configuration.encode()]))


def encode_refusal(error: WalrqError) -> bytes:
    """A frame; a long text is cut, details that are not plain are left out."""
    details = {}
    for name, value in error.details.items():
        try:
            check_plain(value, name)
        except RequestError:
            continue
        details[name] = value
    return frame(encode([REFUSAL, int(error.code), error.text[: _TEXT_BYTES_MAX // 4], details]))


def encode_raft(messages: list[Message]) -> list[bytes]:
    """The frames of Raft messages, as pieces to be sent one after the other. Appends are filled.

    An append that is larger than a frame leaves as several, which say the same one after the other.

    Raises:
        FrameTooLarge: a message beyond PEER_FRAME_BYTES_MAX, which no entry within ENTRY_BYTES_MAX makes.
    """
    pieces = []
    for message in messages:
        body = encode_pieces(message)
        size = sum(map(len, body))
        if size > PEER_FRAME_BYTES_MAX:
            if not isinstance(message, Append) or len(message.entries) < 2:
                raise FrameTooLarge(f"a message of {size} bytes, at most {PEER_FRAME_BYTES_MAX} are allowed")
            pieces += encode_raft(list(_halves(message)))
            continue
        pieces.append(LENGTH.pack(size))
        pieces += body
    return pieces


def _halves(append: Append) -> tuple[Append, Append]:
    """Two appends that follow each other and together are this one."""
    middle = len(append.entries) // 2
    first, second = append.entries[:middle], append.entries[middle:]
    index = append.prev_index + middle
    return (
        attrs.evolve(append, last_index=index, entries=first),
        attrs.evolve(append, prev_index=index, prev_term=first[-1].term, entries=second),
    )


def decode_item(body: bytes, sender: str) -> Item:
    """What one frame of a link says; Raft messages must be the authenticated node's own.

    Raises:
        RemoteProtocolError: it says nothing that belongs here; the text names the field.
    """
    # A Raft message begins with a number from 0 on, what belongs to the link itself with a negative one.
    if len(body) >= 2 and 0x80 < body[0] < 0x98 and body[1] >> 5 == 1:
        return _decode_own(body)
    message = decode_message(body)
    if message.sender != sender:
        raise RemoteProtocolError(
            f"{type(message).__name__}: sender is {message.sender!r}, and the link is that of {sender!r}",
            field="sender",
        )
    return message


def _decode_own(body: bytes) -> Item:
    item = Decoder().decode(body)
    try:
        match item:
            case [-1, int(number)]:
                return Ping(fields.uint(number, "ping", UINT64_MAX))
            case [-2, int(number)]:
                return Pong(fields.uint(number, "pong", UINT64_MAX))
            case [-3, *_]:
                return Refusal(_refusal(item))
            case [-4, str(cluster), bytes(configuration)]:
                return Admission(
                    fields.text(cluster, "cluster", _CLUSTER_BYTES_MAX), Configuration.decode(configuration)
                )
    except RequestError as error:
        raise RemoteProtocolError(f"from a peer: {error.text}", **error.details) from None
    raise RemoteProtocolError(f"from a peer: an array that begins with {item[0]!r} is not known to this version")


def _refusal(item: list[Any]) -> WalrqError:
    if len(item) != 4 or type(item[1]) is not int or type(item[2]) is not str or type(item[3]) is not dict:
        raise RemoteProtocolError("a refusal is [-3, code, text, details]")
    # It may come from anybody: one line, of bounded length, goes into logs.
    text = "".join(character if character.isprintable() else "?" for character in item[2][:_TEXT_BYTES_MAX])
    details = {name: value for name, value in item[3].items() if type(name) is str}
    return from_code(item[1], text, details)


# --- handshake ----------------------------------------------------------------------------------------------
def _proof(secret: bytes, role: str, *said: bytes) -> bytes:
    mac = hmac.new(secret, f"walrq peer {role}".encode(), hashlib.sha256)
    for each in said:
        # With its length in front no two lists of strings look alike.
        mac.update(LENGTH.pack(len(each)) + each)
    return mac.digest()


_PROOF_OF_DIALER: Final = "dialer 1"
_HELLO_OF_ACCEPTOR: Final = "acceptor 1"
_HELLO_OF_DIALER: Final = "dialer hello 1"

Judge: TypeAlias = Callable[[PeerHello], None]


class _Handshake:
    """What both ends share.

    Attributes:
        frames: the stream's frames; the link goes on with them, `peer` being set.
        peer: who is at the other end, proved and judged; None until then.
        told: the error came from the other end, which knows already.
    """

    def __init__(self, secret: bytes, hello: PeerHello, nonce: bytes, judge: Judge, binding: bytes, limit: int) -> None:
        assert len(nonce) == NONCE_BYTES, len(nonce)
        self.frames = FrameBuffer(limit)
        self.peer: PeerHello | None = None
        self.told = False
        self._secret = check_secret(secret)
        self._hello = encode_hello(hello)
        self._nonce = nonce
        self._judge = judge
        self._said: list[bytes] = [binding]
        self._output: list[bytes] = []
        self._failed = False
        self._unfinished = "the connection was closed before the handshake was over"
        # What the next frame must be: all the state a handshake has.
        self._next: Callable[[bytes], None]

    def take_output(self) -> bytes:
        """What is to be sent."""
        output = b"".join(self._output)
        self._output.clear()
        return output

    def receive(self, data: bytes) -> list[bytes]:
        """Take bytes of the other end.

        Returns:
            Frames behind the handshake, once it is over.

        Raises:
            WalrqError: the handshake failed; `take_output` has the refusal, if the other end does not know.
        """
        assert not self._failed, "a handshake that failed goes nowhere"
        try:
            bodies = self.frames.feed(data)
            for at, body in enumerate(bodies):
                if self.peer is not None:
                    return bodies[at:]
                self._next(body)
            if self.frames.error is not None:
                raise _not_a_peer(self.frames.error)
        except WalrqError as error:
            self._failed = True
            self.peer = None
            if not self.told:
                self._output.append(encode_refusal(error))
            raise
        return []

    def receive_eof(self) -> None:
        """The other end closed.

        Raises:
            RemoteProtocolError: before the handshake was over.
        """
        if self.peer is None and not self._failed:
            self._failed = True
            raise RemoteProtocolError(self._unfinished)

    def _say(self, item: list[Any]) -> bytes:
        body = encode(item)
        self._output.append(frame(body))
        return body

    def _read(self, body: bytes) -> list[Any]:
        item = Decoder().decode(body)
        if type(item) is not list or not item:
            raise RemoteProtocolError("a handshake between peers consists of arrays")
        if item[0] == REFUSAL:
            self.told = True
            raise _refusal(item)
        return item

    def _proved_hello(self, body: bytes, role: str) -> PeerHello:
        match self._read(body):
            case [bytes(hello), bytes(proof)]:
                self._check(proof, role, hello)
                peer = decode_hello(hello)
                self._judge(peer)
                return peer
        raise RemoteProtocolError("here a peer says [hello, proof]")

    def _check(self, proof: bytes, role: str, *more: bytes) -> None:
        if not hmac.compare_digest(proof, _proof(self._secret, role, *self._said, *more)):
            raise Unauthenticated(
                "the two nodes do not share one cluster secret (or somebody sits between them)",
                field="cluster_secret",
            )


def _not_a_peer(error: ProtocolError) -> RemoteProtocolError:
    foreign = error.details.get("foreign")
    if foreign is not None:
        return RemoteProtocolError(f"these bytes look like {foreign}: this is not how nodes of a cluster begin")
    return RemoteProtocolError(f"this is not how nodes of a cluster begin: {error.text}")


class DialerHandshake(_Handshake):
    """The end that connected; it begins."""

    def __init__(
        self, *, secret: bytes, hello: PeerHello, nonce: bytes, judge: Judge = lambda peer: None, binding: bytes = b""
    ) -> None:
        """See the module. `judge` raises WalrqError for a node that this one will not talk to."""
        super().__init__(secret, hello, nonce, judge, binding, _DIALER_BYTES_MAX)
        self._said.append(self._say([MAGIC, VERSION_MIN, VERSION_MAX, nonce]))
        self._unfinished = "closed without a word: is this a node's peer address, and does it ask for TLS?"
        self._next = self._challenged

    def _challenged(self, body: bytes) -> None:
        self._unfinished = "the connection was closed before the handshake was over"
        item = self._read(body)
        match item:
            case [str(magic), int(version), bytes(nonce)] if magic == MAGIC and len(nonce) == NONCE_BYTES:
                pass
            case _:
                raise RemoteProtocolError("what answers here is not a node's peer address (--peer-listen)")
        if not VERSION_MIN <= version <= VERSION_MAX:
            raise UnsupportedVersion(
                f"the acceptor chose peer protocol version {version}, this node speaks {VERSION_MIN} to {VERSION_MAX}"
            )
        self._said.append(body)
        proof = _proof(self._secret, _PROOF_OF_DIALER, *self._said)
        self._said.append(self._say([proof]))
        self._next = self._answered

    def _answered(self, body: bytes) -> None:
        self._known = self._proved_hello(body, _HELLO_OF_ACCEPTOR)
        self._said.append(body)
        self._say([self._hello, _proof(self._secret, _HELLO_OF_DIALER, *self._said, self._hello)])
        self._next = self._welcomed

    def _welcomed(self, body: bytes) -> None:
        if self._read(body) != [True]:
            raise RemoteProtocolError("a peer's handshake ends with [true]")
        self.peer = self._known
        self.frames.frame_bytes_max = PEER_FRAME_BYTES_MAX


class AcceptorHandshake(_Handshake):
    """The end that was connected to."""

    def __init__(
        self, *, secret: bytes, hello: PeerHello, nonce: bytes, judge: Judge = lambda peer: None, binding: bytes = b""
    ) -> None:
        """See the module. `judge` raises WalrqError for a node that this one will not talk to."""
        super().__init__(secret, hello, nonce, judge, binding, HELLO_BYTES_MAX)
        self._next = self._opened

    def _opened(self, body: bytes) -> None:
        item = self._read(body)
        if item[0] == "walrq":
            raise RemoteProtocolError("a client knocks here: this is the address for peers, clients go to --listen")
        match item:
            case [str(magic), int(least), int(most), bytes(nonce), *_] if magic == MAGIC and len(nonce) == NONCE_BYTES:
                pass
            case _:
                raise RemoteProtocolError(
                    f'a peer\'s connection begins with ["{MAGIC}", version min, version max, nonce]'
                )
        if not 0 <= least <= most <= _VERSION_LIMIT or least > VERSION_MAX or most < VERSION_MIN:
            raise UnsupportedVersion(
                f"the dialer speaks peer protocol versions {least} to {most}, this node {VERSION_MIN} to {VERSION_MAX}",
                version_min=VERSION_MIN,
                version_max=VERSION_MAX,
            )
        self._said.append(body)
        self._said.append(self._say([MAGIC, min(most, VERSION_MAX), self._nonce]))
        self._next = self._proved

    def _proved(self, body: bytes) -> None:
        match self._read(body):
            case [bytes(proof)]:
                self._check(proof, _PROOF_OF_DIALER)
            case _:
                raise RemoteProtocolError("here a peer says [proof]")
        self._said.append(body)
        proof = _proof(self._secret, _HELLO_OF_ACCEPTOR, *self._said, self._hello)
        self._said.append(self._say([self._hello, proof]))
        self._next = self._told

    def _told(self, body: bytes) -> None:
        peer = self._proved_hello(body, _HELLO_OF_DIALER)
        if peer.purpose is Purpose.ANSWER:
            raise RemoteProtocolError("in a peer's hello: purpose is that of an acceptor", field="purpose")
        self._say([True])
        self.peer = peer
        self.frames.frame_bytes_max = PEER_FRAME_BYTES_MAX
