"""What nobody should send, for every door: conversations made of good pieces, broken in ways that matter.

`conversation(door, rng)` gives chunks of bytes, as they would arrive in packets. All of it follows from the random
stream handed in.
"""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Callable

import cbor2

from tests.protocol import samples
from walrq import api, limits
from walrq.protocol.framing import frame
from walrq.protocol.handshake import Hello, encode_hello
from walrq.protocol.json_requests import OPERATIONS, request_to_json
from walrq.protocol.requests import encode_request

_EDGES = (0, 1, -1, 2**31 - 1, 2**31, 2**32, 2**53, 2**63, 2**64 - 1, 2**64, -(2**63))
_LENGTHS = (0, 1, 2, 125, 126, 127, 255, 256, 65_535, 65_536, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
# Bombs hold this much text at most: they are to be refused by what they announce.
_BOMB = 20_000
# What would end the talk by rights: a lock on every door, members that never come.
_APART = (api.SetToken, api.RevokeToken, api.AddNode, api.RemoveNode, api.TransferLeadership, api.BackupBegin)
_SAFE = tuple(each for each in samples.SAMPLE_REQUESTS if not isinstance(each, _APART))
_OPERATIONS = tuple(each for each in OPERATIONS if each.request not in _APART)


def conversation(door: str, rng: random.Random) -> list[bytes]:
    """What one client says to that door, in pieces."""
    said = b"".join(_TALKS[door](rng))
    if rng.random() < 0.3:
        said = _spoil(said, rng)
    if rng.random() < 0.5 or not said:
        return [said]
    cuts = sorted(rng.randrange(len(said) + 1) for _ in range(rng.randrange(1, 6)))
    return [said[first:last] for first, last in zip((0, *cuts), (*cuts, len(said)), strict=True)]


def _spoil(said: bytes, rng: random.Random) -> bytes:
    """Bytes changed, left out, doubled, put in."""
    made = bytearray(said)
    for _ in range(rng.randrange(1, 8)):
        at = rng.randrange(len(made) + 1)
        match rng.randrange(4):
            case 0 if made:
                made[at % len(made)] = rng.randrange(256)
            case 1:
                del made[at : at + rng.randrange(1, 20)]
            case 2:
                made[at:at] = made[at : at + rng.randrange(1, 200)]
            case _:
                made[at:at] = rng.randbytes(rng.randrange(1, 20))
    return bytes(made)


# --- native -------------------------------------------------------------------------------------------------
def _cbor_body(rng: random.Random) -> bytes:
    """One frame's body: a request, a mistaken one, or a bomb."""
    match rng.randrange(8):
        case 0 | 1 | 2:
            return encode_request(rng.randrange(1, 50), rng.choice(_SAFE))
        case 3:
            item = cbor2.loads(encode_request(rng.randrange(1, 50), rng.choice(_SAFE)))
            item[rng.randrange(len(item))] = _value(rng, 0)
            return cbor2.dumps(item)
        case 4:
            return rng.choice((b"\x81", b"\xc6", b"\xa1\x61a")) * rng.randrange(1, _BOMB)
        case 5:
            return bytes([rng.choice((0x5B, 0x7B, 0x9B, 0xBB))]) + struct.pack(">Q", rng.choice(_LENGTHS))
        case 6:
            return rng.choice((b"\x9f", b"\xbf", b"\x5f", b"\xd9\xd9\xf7", b"\xd8\x1c", b"\xf8\xff", b"\xfb\x7f\xf8"))
        case _:
            return rng.randbytes(rng.randrange(1, 60))


def _value(rng: random.Random, depth: int) -> object:
    kind = rng.randrange(8 if depth < 3 else 5)
    match kind:
        case 0:
            return rng.choice(_EDGES)
        case 1:
            return rng.choice(("", "jobs", "x" * rng.randrange(300), "a\nb", "é\U0001f600", "\x00"))
        case 2:
            return rng.choice((None, True, False, 0.5, 1e300, -0.0))
        case 3:
            return rng.randbytes(rng.choice((0, 4, 16, 20, 56)))
        case 4:
            return rng.randrange(300)
        case 5:
            return [_value(rng, depth + 1) for _ in range(rng.randrange(4))]
        case 6:
            return {rng.choice(("queue", "ids", "payload", "$base64")): _value(rng, depth + 1) for _ in range(2)}
        case _:
            return [[_value(rng, depth + 1)]] * 3


def _cbor(rng: random.Random) -> list[bytes]:
    said = [frame(encode_hello(Hello("noise", session=rng.choice((None, None, 7)))))] if rng.random() < 0.9 else []
    for _ in range(rng.randrange(1, 12)):
        body = _cbor_body(rng)
        said.append(frame(body) if rng.random() < 0.9 else struct.pack(">I", rng.choice(_LENGTHS) % 2**32) + body)
    return said


# --- JSON, WebSocket ----------------------------------------------------------------------------------------
def _json_text(rng: random.Random) -> bytes:
    """One request as text, good or not."""
    match rng.randrange(7):
        case 0 | 1:
            sample = rng.choice([each for each in _SAFE if not isinstance(each, api.Settle | api.Touch)])
            return json.dumps({"id": rng.randrange(1, 50), **request_to_json(sample)}).encode()
        case 2 | 3:
            operation = rng.choice(_OPERATIONS)
            fields = {each.name: _plain(rng) for each in operation.fields if rng.random() < 0.6}
            return json.dumps({"id": rng.choice((1, 2, 3, *_EDGES)), "op": operation.name, **fields}).encode()
        case 4:
            return rng.choice((b"[", b'{"a":', b"[[],")) * rng.randrange(1, _BOMB)
        case 5:
            return rng.choice(
                (b"NaN", b'{"id":1,"id":1}', b'"\\ud800"', b"\xff\xfe", b"9" * 9_000, b'{"id":1e400}', b"", b"null")
            )
        case _:
            return rng.randbytes(rng.randrange(40))


def _plain(rng: random.Random) -> object:
    value = _value(rng, 0)
    return json.loads(json.dumps(value, default=lambda each: base64.b64encode(each).decode()))


def _ws_frame(rng: random.Random, opcode: int, payload: bytes) -> bytes:
    """One frame, mostly right."""
    broken = rng.random() < 0.15
    first = opcode | (0x80 if rng.random() < 0.85 else 0) | (rng.choice((0x40, 0x20, 0x10)) if broken else 0)
    masked = 0 if broken and rng.random() < 0.3 else 0x80
    size = rng.choice(_LENGTHS) if broken and rng.random() < 0.3 else len(payload)
    if size < 126 and rng.random() < 0.95:
        head = bytes((first, masked | size))
    elif size < 65_536:
        head = bytes((first, masked | 126)) + struct.pack(">H", size)
    else:
        head = bytes((first, masked | 127)) + struct.pack(">Q", size % 2**64)
    if not masked:
        return head + payload
    mask = rng.randbytes(4)
    return head + mask + bytes(byte ^ mask[at & 3] for at, byte in enumerate(payload))


def _ws(rng: random.Random) -> list[bytes]:
    text = rng.random() < 0.7
    offers = "walrq.json.v1" if text else "walrq.cbor.v1"
    lines = [
        "GET / HTTP/1.1",
        "Host: localhost",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Protocol: {offers}",
    ]
    if rng.random() < 0.1:
        lines[rng.randrange(len(lines))] = rng.choice(
            ("", "X: y" * 9_000, "Host: \xff", "Origin: http://evil", ":", "\x00")
        )
    said = [("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")]
    own = 1 if text else 2
    hello = b'{"op":"hello","client":"noise"}' if text else encode_hello(Hello("noise"))
    if rng.random() < 0.9:
        said.append(_ws_frame(rng, own, hello))
    for _ in range(rng.randrange(1, 15)):
        body = _json_text(rng) if text else _cbor_body(rng)
        opcode = rng.choices((own, 0, 9, 10, 8, 3 - own, 3, 11), (12, 3, 2, 1, 1, 1, 1, 1))[0]
        if opcode >= 8:
            body = body[: rng.choice((0, 2, 50, 125, 130))]
        said.append(_ws_frame(rng, opcode, body))
    return said


# --- HTTP ---------------------------------------------------------------------------------------------------
_PATHS = (
    "/v1/queues/jobs/messages", "/v1/queues/jobs/poll", "/v1/queues/%00/messages", "/v1/queues/%ff", "/v1/request",
    "/v1/queues", "/v1/stats", "/metrics", "/livez", "/", "/web/../../etc/passwd", "//", "*", "/v1/" + "q" * 9000,
    "/api/stats", "/v1/queues/jobs/dead?limit=x", "/v1/queues?limit=1&limit=2", "/v1/ping",
)  # fmt: skip


def _http(rng: random.Random) -> list[bytes]:
    said = []
    for _ in range(rng.randrange(1, 4)):
        method = rng.choice(("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "BREW", "PRI"))
        body = _json_text(rng) if rng.random() < 0.7 else b""
        lines = [
            f"{method} {rng.choice(_PATHS)} HTTP/{rng.choice(('1.1', '1.1', '1.1', '1.0', '2.0'))}",
            "Host: localhost",
        ]
        lengths = (str(len(body)), str(len(body)), "-1", "1e3", "0x10", str(2**63), "", "5, 6")
        lines.append(f"Content-Length: {rng.choice(lengths)}")
        if rng.random() < 0.2:
            lines.append(
                rng.choice(
                    (
                        "Transfer-Encoding: chunked", "Expect: 100-continue", "Upgrade: h2c", "Content-Encoding: gzip",
                        "Authorization: Bearer x", "Origin: null", "X: " + "y" * 70_000, "Connection: close",
                    )
                )
            )  # fmt: skip
        said += [("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"), body]
    return said


# --- RESP ---------------------------------------------------------------------------------------------------
_COMMANDS = (
    b"PING", b"LPUSH", b"RPOP", b"RPOPLEASE", b"TASKACK", b"TASKNACK", b"TASKTOUCH", b"LPUSH_DELAY", b"LPUSH_PRIORITY",
    b"HELLO", b"AUTH", b"CLIENT", b"COMMAND", b"INFO", b"KEYS", b"SCAN", b"LLEN", b"DEL", b"DLQ_LIST", b"SELECT",
    b"RPOPLPUSH", b"QUIT", b"EXISTS", b"TYPE", b"EVAL", b"SUBSCRIBE", b"MULTI",
)  # fmt: skip
_WORDS = (
    b"jobs", b"", b"3", b"2", b"0", b"-1", b"nan", b"inf", b"1e400", b"task-1", b"task-0", b"\xff", b"a\r\nb", b"*",
    b"MATCH", b"COUNT", b"LIST", b"DOCS", b"x" * 5_000, b"18446744073709551616", b"0x10", b" 1",
)  # fmt: skip


def _resp(rng: random.Random) -> list[bytes]:
    said = []
    for _ in range(rng.randrange(1, 12)):
        words = [rng.choice(_COMMANDS), *(rng.choice(_WORDS) for _ in range(rng.randrange(5)))]
        match rng.randrange(10):
            case 0:
                said.append(b" ".join(words) + rng.choice((b"\r\n", b"\n", b"")))
            case 1:
                count = rng.choice((b"-1", b"-2", b"2147483648", b"007", b"1000000", b"", b"1.5", b"+2", b"0"))
                said.append(b"*" + count + b"\r\n" + b"$1\r\nx\r\n" * rng.randrange(3))
            case 2:
                size = rng.choice((b"-1", b"-2", b"2147483648", b"04", b"536870913", b"", b"x"))
                said.append(b"*1\r\n$" + size + b"\r\nPING\r\n")
            case 3:
                said.append(b"*%d\r\n" % _BOMB + b"$0\r\n\r\n" * rng.randrange(_BOMB))
            case _:
                said.append(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in words))
    return said


_TALKS: dict[str, Callable[[random.Random], list[bytes]]] = {"cbor": _cbor, "ws": _ws, "http": _http, "resp": _resp}
DOORS = tuple(_TALKS)
assert _BOMB < limits.JSON_ITEMS_MAX
