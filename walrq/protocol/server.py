"""The server's end of one native connection: bytes in, events and bytes out. No socket, no clock.

States (TRANSITIONS below is the whole truth):

    hello   --Hello accepted-->     open      requests become `Incoming`
    open    --send_goaway-->        closing   what is in flight is answered, new requests are refused
    any     --protocol error, Hello refused, end of stream, close--> closed

The owner reads and writes the socket, keeps the time-outs (`frames.partial`, handshake) and stops reading
while too much is in flight. After `Closed` it sends what `take_output` still gives and closes.

What the bodies of frames are written in is the business of the methods under "the words"; `json_server.py` speaks
others.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import attrs

from walrq import api
from walrq.errors import (
    Code,
    InvalidArgument,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    RequestError,
    WalrqError,
    from_code,
)
from walrq.limits import FRAME_BYTES_MAX, HELLO_BYTES_MAX
from walrq.protocol.codec import Decoder, detach
from walrq.protocol.framing import LENGTH, FrameBuffer
from walrq.protocol.handshake import (
    GoAway,
    Hello,
    Welcome,
    decode_hello,
    encode_goaway,
    encode_welcome,
)
from walrq.protocol.replies import encode_reply
from walrq.protocol.requests import ID, Incoming, open_envelope, read_request
from walrq.protocol.shortcut import read_common, remember


class ServerState(enum.Enum):
    """Where a connection stands."""

    HELLO = "hello"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


# Looked up for every request and reply; a member of an enum takes its time to be found.
_OPEN: Final = ServerState.OPEN
_CLOSED: Final = ServerState.CLOSED

TRANSITIONS: Final = {
    ServerState.HELLO: frozenset((ServerState.OPEN, ServerState.CLOSED)),
    ServerState.OPEN: frozenset((ServerState.CLOSING, ServerState.CLOSED)),
    ServerState.CLOSING: frozenset((ServerState.CLOSED,)),
    ServerState.CLOSED: frozenset[ServerState](),
}


@api.value
class HelloReceived:
    """The client's Hello was accepted; `welcome` is on its way."""

    hello: Hello
    welcome: Welcome


@api.value
class BadRequest:
    """A request was refused at the edge; the refusal is in the output already."""

    id: int
    failed: api.Failed


@api.value
class Closed:
    """The connection is over (`error` None: in order). A parting frame may wait in the output."""

    error: WalrqError | None


Event: TypeAlias = HelloReceived | Incoming | BadRequest | Closed

# Parting words for those who knocked at the wrong door, in their own language.
_HTTP_BODY: Final = b"This port speaks walrq's native protocol, not HTTP.\n"
_FOREIGN_ANSWERS: Final = {
    "HTTP": b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_HTTP_BODY), _HTTP_BODY),
    "RESP": b"-ERR This port speaks walrq's native protocol, not RESP\r\n",
}


def to_failed(error: WalrqError) -> api.Failed:
    """An error as the reply that carries it."""
    return api.Failed(int(error.code), error.text, dict(error.details))


@attrs.define(eq=False, init=False)
class ServerConnection:
    """One client's connection.

    Attributes:
        state: see the table of states.
        hello: what the client said, once it is accepted.
        session: the session of this connection: from the Welcome, or from the latest `SessionOpened` reply.
        frames: cuts the input; `frames.partial` > 0 says that a frame has begun and is not complete.
        output_bytes: how much `take_output` would give.
    """

    state: ServerState
    hello: Hello | None
    session: int | None
    frames: FrameBuffer
    output_bytes: int
    _welcome: Callable[[Hello], Welcome | api.Failed]
    _frame_bytes_max: int
    _decoder: Decoder
    _output: list[bytes]
    _in_flight: set[int]
    _goaway: GoAway | None

    def __init__(
        self,
        *,
        welcome: Callable[[Hello], Welcome | api.Failed],
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        """`welcome` judges a Hello (token, session) and must not block."""
        self.state = ServerState.HELLO
        self.hello = None
        self.session = None
        self.frames = FrameBuffer(min(HELLO_BYTES_MAX, frame_bytes_max))
        self._welcome = welcome
        self._frame_bytes_max = frame_bytes_max
        self._decoder = Decoder()
        self._output = []
        self.output_bytes = 0
        self._in_flight = set()
        self._goaway = None

    @property
    def in_flight(self) -> int:
        """Requests received and not answered yet."""
        return len(self._in_flight)

    def receive(self, data: bytes) -> list[Event]:
        """What `data` means, in order. After a `Closed` event nothing more comes."""
        events: list[Event] = []
        state: ServerState = self.state
        if state is _CLOSED:
            return events
        frames = self.frames
        in_flight = self._in_flight
        read_short = self._read_short
        for body in frames.feed(data):
            if state is _OPEN:
                incoming = read_short(body)
                if (
                    incoming is None
                    or incoming.id in in_flight
                    or (incoming.sequence is not None and self.session is None)
                ):
                    incoming = self._read(body, events)
                    if incoming is None:
                        if self.state is ServerState.CLOSED:
                            return events
                        continue
                in_flight.add(incoming.id)
                events.append(incoming)
            elif state is ServerState.HELLO:
                self._on_hello(body, events)
                state = self.state
                if state is ServerState.CLOSED:
                    return events
                # Everything behind Hello in this very read was cut with Hello's small limit; nothing is lost
                # but the permission to send a large frame before the Welcome, which docs/protocol.md does not
                # give.
            else:
                self._on_late_request(body, events)
                if self.state is ServerState.CLOSED:
                    return events
        if frames.error is not None:
            return self._fail(frames.error, events)
        return events

    def receive_eof(self) -> list[Event]:
        """The client will send no more. Ending inside a frame is an error; that part is never a request."""
        if self.state is ServerState.CLOSED:
            return []
        partial = self.frames.partial
        self._move(ServerState.CLOSED)
        if partial:
            return [Closed(RemoteProtocolError(f"the connection ended inside a frame, after {partial} bytes of it"))]
        return [Closed(None)]

    def reply(self, id: int, reply: api.Reply) -> None:
        """Answer request `id`. After the connection closed this is ignored: its requests may still be
        finishing.

        Raises:
            LocalProtocolError: no such request in flight. A reply that cannot be encoded is replaced by an
                `INTERNAL` error and raised all the same, so that the client is answered and the caller knows.
        """
        if self.state is _CLOSED:
            self._in_flight.discard(id)
            return
        try:
            self._in_flight.remove(id)
        except KeyError:
            raise LocalProtocolError(f"request {id} is not in flight") from None
        try:
            body = self._encode_reply(id, reply)
        except LocalProtocolError as error:
            self._send(self._encode_reply(id, api.Failed(int(Code.INTERNAL), error.text)))
            raise
        if type(reply) is api.SessionOpened:
            self.session = reply.session
        size = len(body)
        output = self._output
        output.append(LENGTH.pack(size))
        output.append(body)
        self.output_bytes += LENGTH.size + size

    def send_goaway(self, code: int, text: str) -> None:
        """Tell the client that no further requests are taken; what is in flight may still be answered.

        New requests are answered with `code` from now on, so `code` should be a definite one (DRAINING).
        Before Hello it closes the connection at once: the client reads an error frame.
        """
        if self.state is ServerState.OPEN:
            self._goaway = GoAway(int(code), text)
            self._send(self._encode_goaway(self._goaway))
            self._move(ServerState.CLOSING)
        elif self.state is ServerState.HELLO:
            self._send(self._encode_reply(0, api.Failed(int(code), text)))
            self._move(ServerState.CLOSED)

    def close(self) -> None:
        """Take nothing more. Output already made can still be taken."""
        if self.state is not ServerState.CLOSED:
            self._move(ServerState.CLOSED)

    def take_output(self) -> bytes:
        """All bytes to send, as one string; empties the output."""
        output = self._output
        if not output:
            return b""
        self._output = []
        self.output_bytes = 0
        return b"".join(output)

    # --- inside ---------------------------------------------------------------------------------------------
    def _move(self, state: ServerState) -> None:
        assert state in TRANSITIONS[self.state], (self.state, state)
        self.state = state

    def _send(self, body: bytes) -> None:
        self._output.append(LENGTH.pack(len(body)))
        self._output.append(body)
        self.output_bytes += LENGTH.size + len(body)

    def _fail(self, error: ProtocolError, events: list[Event]) -> list[Event]:
        """The byte stream cannot be trusted: say so, close."""
        detach(error)
        answer = _FOREIGN_ANSWERS.get(error.details.get("foreign", ""))
        if answer is not None and self.state is ServerState.HELLO:
            self._output.append(answer)
            self.output_bytes += len(answer)
        else:
            self._send(self._encode_reply(0, to_failed(error)))
        self._move(ServerState.CLOSED)
        events.append(Closed(error))
        return events

    def _read(self, body: bytes, events: list[Event]) -> Incoming | None:
        """The request in `body`, read the long way; None when it was refused, or was the connection's end."""
        try:
            identifier, item = self._open(body)
        except ProtocolError as error:
            self._fail(error, events)
            return None
        try:
            incoming = self._read_request(item, len(body))
            if incoming.sequence is not None and self.session is None:
                raise InvalidArgument("a sequence needs a session: this connection has none", field="sequence")
        except RequestError as refusal:
            events.append(self._refuse(identifier, to_failed(refusal)))
            return None
        if type(incoming.request) is api.Poll:
            self._remember(body, incoming.request)
        return incoming

    def _open(self, body: bytes) -> tuple[int, Any]:
        """(id, the rest) of a request whose id can be answered.

        Raises:
            ProtocolError: nothing can be trusted any more.
        """
        identifier, item = self._read_envelope(body)
        if identifier in self._in_flight:
            raise RemoteProtocolError(f"request id {identifier} is still in flight", id=identifier)
        return identifier, item

    def _refuse(self, identifier: int, failed: api.Failed) -> BadRequest:
        self._send(self._encode_reply(identifier, failed))
        return BadRequest(identifier, failed)

    def _on_hello(self, body: bytes, events: list[Event]) -> None:
        try:
            hello = self._decode_hello(body)
        except ProtocolError as error:
            self._fail(error, events)
            return
        except RequestError as error:
            self._reject(to_failed(error), error, events)
            return
        answer = self._welcome(hello)
        if isinstance(answer, api.Failed):
            self._reject(answer, from_code(answer.code, answer.text, answer.details), events)
            return
        self.hello = hello
        self.session = answer.session
        self._send(self._encode_welcome(answer))
        self.frames.frame_bytes_max = self._frame_bytes_max
        self._move(ServerState.OPEN)
        events.append(HelloReceived(hello, answer))

    def _reject(self, failed: api.Failed, error: WalrqError, events: list[Event]) -> None:
        detach(error)
        self._send(self._encode_reply(0, failed))
        self._move(ServerState.CLOSED)
        events.append(Closed(error))

    def _on_late_request(self, body: bytes, events: list[Event]) -> None:
        """A request that crossed our GoAway on the way: refused, definitely."""
        assert self._goaway is not None
        try:
            identifier, _ = self._open(body)
        except ProtocolError as error:
            self._fail(error, events)
            return
        events.append(self._refuse(identifier, api.Failed(self._goaway.code, self._goaway.text)))

    # --- the words ------------------------------------------------------------------------------------------
    # What is hot costs no call more than the codec's own.
    _read_short = staticmethod(read_common)
    _remember = staticmethod(remember)
    _read_request = staticmethod(read_request)
    _encode_reply = staticmethod(encode_reply)
    _encode_welcome = staticmethod(encode_welcome)
    _encode_goaway = staticmethod(encode_goaway)

    def _decode_hello(self, body: bytes) -> Hello:
        return decode_hello(body, self._decoder)

    def _read_envelope(self, body: bytes) -> tuple[int, Any]:
        item = open_envelope(self._decoder.decode(body))
        return item[ID], item
