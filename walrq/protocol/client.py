"""The client's end of one native connection: bytes in, events and bytes out. No socket, no clock.

States (TRANSITIONS below is the whole truth):

    connecting --Welcome--> open       requests may be made
    open       --GoAway-->  leaving    answers still come, no more requests
    any        --error with id 0, protocol error, end of stream, close--> closed

What becomes of the requests in flight when it closes is the owner's business: without a session their outcome
is unknown, with one they are sent again, same sequence, on the next connection.
"""

from __future__ import annotations

import enum
from typing import Any, Final, TypeAlias

import attrs

from walrq import api
from walrq.errors import (
    BatchTooLarge,
    Code,
    ConnectionLost,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    WalrqError,
    from_code,
)
from walrq.limits import FRAME_BYTES_MAX
from walrq.protocol.codec import Decoder, detach
from walrq.protocol.framing import LENGTH, FrameBuffer
from walrq.protocol.handshake import (
    MAGIC,
    GoAway,
    Hello,
    Welcome,
    encode_hello,
    read_goaway,
    read_welcome,
)
from walrq.protocol.replies import GOAWAY, read_reply
from walrq.protocol.requests import encode_request


class ClientState(enum.Enum):
    """Where a connection stands."""

    CONNECTING = "connecting"
    OPEN = "open"
    LEAVING = "leaving"
    CLOSED = "closed"


TRANSITIONS: Final = {
    ClientState.CONNECTING: frozenset((ClientState.OPEN, ClientState.CLOSED)),
    ClientState.OPEN: frozenset((ClientState.LEAVING, ClientState.CLOSED)),
    ClientState.LEAVING: frozenset((ClientState.CLOSED,)),
    ClientState.CLOSED: frozenset[ClientState](),
}


@api.value
class Welcomed:
    """The handshake is done."""

    welcome: Welcome


@api.value
class Answer:
    """The reply to request `id`; `api.Failed` is one too."""

    id: int
    reply: api.Reply


@api.value
class WentAway:
    """The server takes no further requests here; `code` is a row of the error table."""

    code: int
    text: str


@api.value
class Closed:
    """The connection is over; `unanswered` are the ids that got no reply."""

    error: WalrqError | None
    unanswered: tuple[int, ...]


ClientEvent: TypeAlias = Welcomed | Answer | WentAway | Closed


@attrs.define(eq=False, init=False)
class ClientConnection:
    """One connection to a server. Its Hello waits in the output from the start.

    Attributes:
        state: see the table of states.
        welcome: the server's Welcome, once it came.
        session: the session of this connection: from the Welcome, or from the latest `SessionOpened` answer.
        frames: cuts the input.
    """

    state: ClientState
    welcome: Welcome | None
    session: int | None
    frames: FrameBuffer
    _decoder: Decoder
    _output: list[bytes]
    _in_flight: set[int]
    _next_id: int

    def __init__(self, hello: Hello, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.state = ClientState.CONNECTING
        self.welcome = None
        self.session = None
        self.frames = FrameBuffer(frame_bytes_max)
        self._decoder = Decoder()
        self._output = []
        self._in_flight = set()
        self._next_id = 1
        self._send(encode_hello(hello))

    @property
    def in_flight(self) -> int:
        """Requests made and not answered yet."""
        return len(self._in_flight)

    def request(self, request: api.Request, *, sequence: int | None = None, lowest: int | None = None) -> int:
        """Put a request into the output.

        Returns:
            Its id, which its `Answer` will carry.

        Raises:
            LocalProtocolError: the connection is not open, or a sequence without a session.
            BatchTooLarge: it does not fit a frame.
            InvalidArgument: it cannot be encoded.
        """
        if self.state is not ClientState.OPEN:
            raise LocalProtocolError(f"no request can be made while the connection is {self.state.value}")
        if sequence is not None and self.session is None:
            raise LocalProtocolError("a sequence needs a session: this connection has none")
        identifier = self._next_id
        body = encode_request(identifier, request, sequence, lowest)
        if len(body) > FRAME_BYTES_MAX:
            raise BatchTooLarge(
                f"a request of {len(body)} bytes, at most {FRAME_BYTES_MAX} are allowed",
                limit=FRAME_BYTES_MAX,
            )
        self._next_id = identifier + 1
        self._in_flight.add(identifier)
        self._output.append(LENGTH.pack(len(body)))
        self._output.append(body)
        return identifier

    def receive(self, data: bytes) -> list[ClientEvent]:
        """What `data` means, in order. After a `Closed` event nothing more comes."""
        events: list[ClientEvent] = []
        if self.state is ClientState.CLOSED:
            return events
        try:
            for body in self.frames.feed(data):
                if not self._on_frame(self._decoder.decode(body), events):
                    return events
        except ProtocolError as error:
            self._close(error, events)
            return events
        if self.frames.error is not None:
            self._close(self.frames.error, events)
        return events

    def receive_eof(self) -> list[ClientEvent]:
        """The server will send no more. A frame it did not finish is dropped, never read as a reply."""
        events: list[ClientEvent] = []
        if self.state is not ClientState.CLOSED:
            if self.frames.partial:
                self._close(RemoteProtocolError("the connection ended inside a frame"), events)
            elif self._in_flight or self.state is ClientState.CONNECTING:
                self._close(ConnectionLost("the server closed the connection"), events)
            else:
                self._close(None, events)
        return events

    def close(self) -> None:
        """Make and take nothing more."""
        if self.state is not ClientState.CLOSED:
            self._move(ClientState.CLOSED)

    def take_output(self) -> bytes:
        """All bytes to send, as one string; empties the output."""
        output = self._output
        if not output:
            return b""
        self._output = []
        return b"".join(output)

    # --- inside ---------------------------------------------------------------------------------------------
    def _move(self, state: ClientState) -> None:
        assert state in TRANSITIONS[self.state], (self.state, state)
        self.state = state

    def _send(self, body: bytes) -> None:
        self._output.append(LENGTH.pack(len(body)))
        self._output.append(body)

    def _close(self, error: WalrqError | None, events: list[ClientEvent]) -> None:
        self._move(ClientState.CLOSED)
        if error is not None:
            detach(error)
        events.append(Closed(error, tuple(sorted(self._in_flight))))
        self._in_flight.clear()

    def _on_frame(self, item: Any, events: list[ClientEvent]) -> bool:
        """Adds the frame's event; False when it closed the connection."""
        head = item[0] if type(item) is list and item else None
        if self.state is ClientState.CONNECTING and head == MAGIC:
            welcome = read_welcome(item)
            self.welcome = welcome
            self.session = welcome.session
            self._move(ClientState.OPEN)
            events.append(Welcomed(welcome))
            return True
        if type(head) is int and head == GOAWAY:
            if self.state is not ClientState.OPEN:
                raise RemoteProtocolError(f"GoAway while the connection is {self.state.value}")
            goaway: GoAway = read_goaway(item)
            self._move(ClientState.LEAVING)
            events.append(WentAway(goaway.code, goaway.text))
            return True
        identifier, reply = read_reply(item)
        if identifier == 0:
            if type(reply) is not api.Failed:
                raise RemoteProtocolError("a reply with id 0 that is no error")
            self._close(_closing_error(reply), events)
            return False
        try:
            self._in_flight.remove(identifier)
        except KeyError:
            raise RemoteProtocolError(f"a reply to request {identifier}, which is not in flight") from None
        if type(reply) is api.SessionOpened:
            self.session = reply.session
        events.append(Answer(identifier, reply))
        return True


def _closing_error(failed: api.Failed) -> WalrqError:
    """The error of a server that gave the connection up.

    What the server calls the other end's violation was ours.
    """
    if failed.code == Code.PROTOCOL_VIOLATION or failed.code == Code.FRAME_TOO_LARGE:
        return LocalProtocolError(f"the server closed the connection: {failed.text}", **failed.details)
    return from_code(failed.code, failed.text, failed.details)
