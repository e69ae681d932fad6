"""One WebSocket as a stream of frames: each message is the body of one frame, without its length.

What drives the native protocol over any stream (`stream_front.py`) drives it here: `receive_some` gives whole frames,
their lengths put in front; `send_all` takes frames and sends each as one message. Text messages carry JSON, binary
ones CBOR; the other kind closes the connection.

What ends a WebSocket, and the code it is told (RFC 6455, section 7.4):

    the client closed it, or ended its stream   -
    the server goes away                        1001
    frames that are none, extensions            1002
    binary where text is spoken, or vice versa  1003
    text that is no UTF-8                       1007
    nobody may use it so                        1008
    a message beyond the limit                  1009
    the server failed                           1011
    too much at once                            1013
    any other error of walrq                    4000 + its code

Bounds: a message is kept as it grows up to its limit, and its fragments cost nothing beyond their bytes; all growing
messages of a door share one bound (`Growing`); pings are answered in the order of input, so that who does not read is
not read. Compression is not spoken.
"""

from __future__ import annotations

import logging
import socket
from typing import Final

import attrs
import trio
from wsproto import WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.frame_protocol import CloseReason

from walrq.errors import Code
from walrq.limits import FRAME_BYTES_MAX, IN_FLIGHT_BYTES_MAX, WS_CLOSE_S
from walrq.protocol.framing import LENGTH

log = logging.getLogger("walrq.websocket")

_READ_BYTES: Final = 128 * 1024
_REASON_BYTES_MAX: Final = 123
_OWN_CODES: Final = 4000
_CODES: Final = {
    Code.DRAINING: CloseReason.GOING_AWAY,
    Code.PROTOCOL_VIOLATION: CloseReason.PROTOCOL_ERROR,
    Code.FRAME_TOO_LARGE: CloseReason.MESSAGE_TOO_BIG,
    Code.INTERNAL: CloseReason.INTERNAL_ERROR,
    Code.OVERLOADED: CloseReason.TRY_AGAIN_LATER,
    Code.TOO_MANY_CONNECTIONS: CloseReason.TRY_AGAIN_LATER,
    Code.UNAUTHENTICATED: CloseReason.POLICY_VIOLATION,
    Code.FORBIDDEN: CloseReason.POLICY_VIOLATION,
}


def close_code(code: int) -> int:
    """The close code for an error of walrq."""
    for known, words in _CODES.items():
        if known == code:
            return int(words)
    return _OWN_CODES + code


@attrs.define
class Growing:
    """Bytes of unfinished messages: of all connections of a door together."""

    bytes: int = 0


class WebSocketStream(trio.abc.HalfCloseableStream):
    """See the module. Made once the handshake is done.

    Attributes:
        heard: bytes received so far: unchanged means that nothing was heard.
        messages: finished so far.
        listening: somebody waits for input; False while the client is being slowed down.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        raw: socket.socket,
        wire: WSConnection,
        *,
        text: bool,
        early: bytes,
        growing: Growing,
    ) -> None:
        """`raw` is the socket below `stream`; `early` is what came behind the handshake; `text`: it speaks JSON."""
        self._stream = stream
        self._raw = raw
        self._wire = wire
        self._text = text
        self._early = early
        self._growing = growing
        self._message = bytearray()
        self._unfinished = False
        # One writer at a time: replies, pongs and the goodbye.
        self._sending = trio.Lock()
        self._torn = False
        self._goodbye: tuple[int, str] | None = None
        self._over = False
        self.heard = 0
        self.messages = 0
        self.listening = False

    # --- bytes in -------------------------------------------------------------------------------------------
    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Whole frames, as many as came; b"" when the WebSocket is over.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: as of the stream below.
        """
        while True:
            if self._wire.state is ConnectionState.LOCAL_CLOSING and not self._over:
                await self._discard()
            if self._over:
                return b""
            self.listening = True
            try:
                data = self._early or await self._stream.receive_some(_READ_BYTES)
            finally:
                self.listening = False
            self._early = b""
            if not data:
                self._end_input()
                return b""
            self.heard += len(data)
            frames = await self._take(data)
            if frames:
                return frames

    async def _discard(self) -> None:
        """The goodbye is said: read until the client has answered it, so that it is not lost in a reset."""
        with trio.move_on_after(WS_CLOSE_S):
            while not self._over:
                data = await self._stream.receive_some(_READ_BYTES)
                if not data:
                    break
                await self._take(data)
        self._end_input()

    async def _take(self, data: bytes | bytearray) -> bytes:
        """The frames that `data` completes."""
        if self._wire.state is ConnectionState.CLOSED:
            return b""
        self._wire.receive_data(bytes(data))
        frames: list[bytes] = []
        for event in self._wire.events():
            if isinstance(event, TextMessage | BytesMessage):
                if self._wire.state is ConnectionState.OPEN:
                    self._grow(event, frames)
            elif isinstance(event, Ping):
                if self._wire.state is ConnectionState.OPEN:
                    await self._send(self._wire.send(event.response()))
            elif isinstance(event, CloseConnection):
                await self._on_close(event)
            if self._goodbye is not None and self._wire.state is ConnectionState.OPEN:
                # What follows is of a client that broke the rules; the rest of this input is not looked at.
                await self.send_eof()
        return b"".join(frames)

    def _grow(self, event: TextMessage | BytesMessage, frames: list[bytes]) -> None:
        text = isinstance(event, TextMessage)
        if text is not self._text:
            spoken = "text" if self._text else "binary"
            self._say_goodbye(CloseReason.UNSUPPORTED_DATA, f"this subprotocol has {spoken} messages only")
            return
        data = event.data.encode() if isinstance(event.data, str) else event.data
        message = self._message
        if event.message_finished and not message and not self._unfinished:
            whole = bytes(data)  # the common case: a message in one piece
        else:
            message += data
            self._growing.bytes += len(data)
            self._unfinished = True
            if not event.message_finished and self._growing.bytes > IN_FLIGHT_BYTES_MAX:
                held = self._growing.bytes
                self._say_goodbye(
                    CloseReason.TRY_AGAIN_LATER,
                    f"unfinished messages hold {held} bytes in all, at most {IN_FLIGHT_BYTES_MAX} are kept",
                )
                return
            whole = bytes(message) if event.message_finished else b""
        size = max(len(message), len(whole))
        if size > FRAME_BYTES_MAX:
            self._say_goodbye(CloseReason.MESSAGE_TOO_BIG, f"a message has at most {FRAME_BYTES_MAX} bytes")
        elif event.message_finished:
            self._forget_message()
            self.messages += 1
            if whole:
                frames.append(LENGTH.pack(len(whole)))
                frames.append(whole)
            else:
                self._say_goodbye(CloseReason.PROTOCOL_ERROR, "an empty message")

    @property
    def unfinished(self) -> bool:
        """A message has begun and is not complete."""
        return self._unfinished

    def _forget_message(self) -> None:
        if self._unfinished:
            self._growing.bytes -= len(self._message)
            self._message = bytearray()
            self._unfinished = False

    async def _on_close(self, event: CloseConnection) -> None:
        state = self._wire.state
        if state is ConnectionState.REMOTE_CLOSING:
            self._end_input()
            await self._send(self._wire.send(event.response()))
        elif state is ConnectionState.OPEN:
            # The library's word for what it cannot read; it stays open, and we are the ones to say so.
            self._say_goodbye(event.code, event.reason or "")
        else:
            self._end_input()

    def _end_input(self) -> None:
        self._over = True
        self._forget_message()

    def _say_goodbye(self, code: int, reason: str) -> None:
        self._forget_message()
        if self._goodbye is None:
            self._goodbye = (int(code), reason)

    # --- bytes out ------------------------------------------------------------------------------------------
    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send frames, each as one message; returns when the kernel has taken all of them.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: as of the stream below.
        """
        view = memoryview(data)
        out = []
        start = 0
        while start < len(view):
            (size,) = LENGTH.unpack_from(view, start)
            start += LENGTH.size
            body = bytes(view[start : start + size])
            start += size
            if self._wire.state is not ConnectionState.OPEN:
                raise trio.BrokenResourceError("the WebSocket is being closed")
            out.append(self._wire.send(TextMessage(data=body.decode()) if self._text else BytesMessage(data=body)))
        await self._send(b"".join(out))

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            if self._torn:
                raise trio.BrokenResourceError("a send was cut off")
            self._torn = True
            await self._stream.send_all(data)
            self._torn = False

    async def wait_send_all_might_not_block(self) -> None:
        """As of the stream below."""
        await self._stream.wait_send_all_might_not_block()

    async def ping(self) -> None:
        """Ask for a sign of life."""
        if self._wire.state is ConnectionState.OPEN:
            await self._send(self._wire.send(Ping(payload=b"")))

    # --- the end --------------------------------------------------------------------------------------------
    def part_with(self, code: int, reason: str) -> None:
        """Decide what the client will be told at the end; the first word counts."""
        if self._goodbye is None:
            self._goodbye = (code, reason)

    def _farewell(self) -> bytes:
        """The close frame, if it was not sent yet."""
        if self._wire.state is not ConnectionState.OPEN:
            return b""
        code, reason = self._goodbye or (int(CloseReason.NORMAL_CLOSURE), "")
        short = reason.encode()[:_REASON_BYTES_MAX].decode(errors="ignore")
        return self._wire.send(CloseConnection(code=code, reason=short))

    async def send_eof(self) -> None:
        """Send the close frame. What the client still sends is read until its own close frame, and thrown away."""
        farewell = self._farewell()
        if farewell:
            await self._send(farewell)

    async def close(self, code: int, reason: str) -> None:
        """Close in good order, within WS_CLOSE_S; from any task."""
        self.part_with(code, reason)
        with trio.move_on_after(WS_CLOSE_S):
            await self.send_eof()
        await trio.aclose_forcefully(self._stream)

    async def aclose(self) -> None:
        """Close at once; with a last word where the kernel takes it."""
        self._end_input()
        # Below TLS nothing can be said in passing.
        if not self._torn and not self._sending.locked() and isinstance(self._stream, trio.SocketStream):
            try:
                self._raw.send(self._farewell())
            except OSError as error:
                # It is gone, or does not read.
                log.debug("goodbye_not_delivered %s", error)
        await self._stream.aclose()
