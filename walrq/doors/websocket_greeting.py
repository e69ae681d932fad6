"""The first bytes of a connection to the WebSocket door: who is let in, and what everybody else is told.

A page of any site may open a WebSocket to any address that its reader's machine reaches, the loopback of that machine
included; the browser only says which site the page is from (`Origin`). So that is asked here: a page is let in when it
was served by the host that it connects to, whatever the port, or when its origin is on the list (`allowed_origins`).
On loopback that host must go by a name of loopback, since a foreign name can be made to point there (DNS rebinding).
Programs that are no browsers say nothing and are let in: they could say anything.

Pure: bytes in, a verdict and bytes out.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

import attrs
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, Request
from wsproto.utilities import RemoteProtocolError as BadHandshake

from walrq import api
from walrq.errors import Code
from walrq.http.origins import is_local
from walrq.limits import WS_HEAD_BYTES_MAX
from walrq.protocol.framing import foreign_protocol, frame
from walrq.protocol.replies import encode_reply

CBOR: Final = "walrq.cbor.v1"
JSON: Final = "walrq.json.v1"
SUBPROTOCOLS: Final = (CBOR, JSON)
HEAD_END: Final = b"\r\n\r\n"
ANY_ORIGIN: Final = "*"

_WHAT: Final = f"This port speaks WebSocket (RFC 6455) with the subprotocols {CBOR} and {JSON}"


@attrs.frozen
class Admitted:
    """A WebSocket that is let in.

    Attributes:
        wire: its frames, as bytes and events.
        answer: what to send first.
        subprotocol: `CBOR` or `JSON`.
    """

    wire: WSConnection
    answer: bytes
    subprotocol: str


@attrs.frozen
class Refused:
    """Nobody is let in: `answer` is sent, then the connection is closed. `reason` is for the log."""

    answer: bytes
    reason: str


def first_look(head: bytes) -> Refused | None:
    """What can be said after the first bytes: None while they may still become a WebSocket's request."""
    if len(head) < 4:
        return None
    kind = foreign_protocol(head[:4])
    if kind == "RESP":
        return Refused(f"-ERR {_WHAT}, not RESP\r\n".encode(), "RESP")
    if kind == "TLS":
        # An alert that every TLS client understands: handshake failure.
        return Refused(b"\x15\x03\x01\x00\x02\x02\x28", "TLS")
    if kind is None and head[:1] < b"\x20":
        failed = api.Failed(int(Code.PROTOCOL_VIOLATION), f"{_WHAT}; the native protocol has a port of its own")
        return Refused(frame(encode_reply(0, failed)), "the native protocol")
    if len(head) > WS_HEAD_BYTES_MAX and HEAD_END not in head[:WS_HEAD_BYTES_MAX]:
        return refuse(431, "Request Header Fields Too Large", f"The request is longer than {WS_HEAD_BYTES_MAX} bytes")
    return None


def refuse(status: int, phrase: str, text: str) -> Refused:
    """A refusal as an HTTP response."""
    body = f"{text}.\n".encode()
    more = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" if status == 426 else ""
    answer = (
        f"HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        f"{more}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return Refused(answer.encode() + body, text)


def judge(head: bytes, *, allowed: Collection[str], loopback: bool) -> Admitted | Refused:
    """Let in who asks for a WebSocket, from where it may.

    Args:
        head: the request, up to and with its empty line.
        allowed: origins beside the host's own; `ANY_ORIGIN` among them lets every page in.
        loopback: the connection came to a loopback address.
    """
    wire = WSConnection(ConnectionType.SERVER)
    try:
        wire.receive_data(head)
        request = next((event for event in wire.events() if isinstance(event, Request)), None)
    except BadHandshake as error:
        return refuse(426, "Upgrade Required", f"{_WHAT}, not plain HTTP: {error}")
    except ValueError:
        return refuse(400, "Bad Request", f"{_WHAT}; this request is no HTTP")
    if request is None:
        return refuse(400, "Bad Request", f"{_WHAT}; this request is no HTTP")
    origins = [value for name, value in request.extra_headers if name == b"origin"]
    if origins and not _may_come(origins, request.host, allowed, loopback):
        shown = ascii(b", ".join(origins)[:200].decode("latin-1"))
        return refuse(403, "Forbidden", f"Pages of origin {shown} are not allowed here (allowed_origins lists more)")
    subprotocol = next((each for each in request.subprotocols if each in SUBPROTOCOLS), None)
    if subprotocol is None:
        return refuse(400, "Bad Request", f"{_WHAT}; the request offers neither")
    # No extensions: what is compressed could unfold without bound.
    return Admitted(wire, wire.send(AcceptConnection(subprotocol=subprotocol)), subprotocol)


def _may_come(origins: list[bytes], host: str, allowed: Collection[str], loopback: bool) -> bool:
    if ANY_ORIGIN in allowed:
        return True
    if len(origins) != 1:
        return False
    origin = origins[0].decode("latin-1").strip().lower()
    if origin in allowed:
        return True
    try:
        page, here = urlsplit(origin), urlsplit(f"//{host.lower()}")
        same = page.scheme in ("http", "https") and page.hostname is not None and page.hostname == here.hostname
    except ValueError:
        return False
    return same and (not loopback or is_local(page.hostname or ""))
