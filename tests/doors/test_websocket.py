"""The WebSocket door over real sockets: both languages, what ends a connection, and what a slow or dead page costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from trio_websocket import ConnectionRejected
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Event, Message, Request, TextMessage
from wsproto.frame_protocol import FrameProtocol, Opcode

from tests.doors.house import Room, house
from tests.doors.page import CBOR, JSON, end_of, native, page, websocket
from walrq import api, limits
from walrq.doors import websocket_front, websocket_stream
from walrq.errors import Code
from walrq.protocol.columns import pack

pytestmark = pytest.mark.trio


def ws(room: Room) -> str:
    """Where its WebSocket door is."""
    return room.url("ws", "ws")


# --- both languages -----------------------------------------------------------------------------------------
async def test_a_page_pushes_polls_touches_and_acknowledges(tmp_path: Path) -> None:
    """The whole way of a message in JSON."""
    async with house(tmp_path, "ws") as [room], page(ws(room)) as tab:
        pushed = await tab.ask("push", queue="jobs", payload="hé", priority=7, headers={"a": [1, None]})
        polled = await tab.ask("poll", queue="jobs", visibility_ms=5_000)
        [message] = polled["messages"]
        handle = {"queue": "jobs", "receipt_handle": message["receipt_handle"]}
        touched = await tab.ask("touch", **handle, visibility_ms=9_000)
        acked = await tab.ask("ack", **handle)
        again = await tab.ask("ack", **handle)

    assert ("n1", None) == (tab.welcome["node"], tab.welcome["session"])
    assert pushed["ids"] == [message["id"]]
    assert ("hé", 7, {"a": [1, None]}) == (message["payload"], message["priority"], message["headers"])
    assert [0] == touched["codes"]
    assert touched["remaining_ms"][0] > 5_000
    assert ([0], ["RECEIPT_EXPIRED"]) == (acked["codes"], again["names"])


async def test_a_native_client_in_another_coat(tmp_path: Path) -> None:
    """Binary messages are the native frames without their lengths."""
    async with house(tmp_path, "ws") as [room], native(ws(room)) as client:
        pushed = await client.ask(api.Push("jobs", pack([b"one", b"\xff"])))
        polled = await client.ask(api.Poll(("jobs",)))
        assert isinstance(polled, api.Polled)
        settled = await client.ask(api.Settle("jobs", api.SettleKind.ACK, (api.Item(polled.runs[0].receipt),)))
        refused = await client.ask(api.ShowQueue("jobbs"))

    assert isinstance(pushed, api.Pushed)
    assert (b"one\xff", api.Settled((0,))) == (polled.runs[0].payloads, settled)
    assert isinstance(refused, api.Failed)
    assert (Code.QUEUE_NOT_FOUND, "jobs") == (refused.code, refused.details["nearest"])


async def test_a_session_makes_a_repeated_request_one(tmp_path: Path) -> None:
    """A page that lost its connection asks again on another one, under the same number."""
    async with house(tmp_path, "ws") as [room]:
        async with page(ws(room)) as tab:
            session = (await tab.ask("open_session"))["session"]
            first = await tab.ask("push", queue="jobs", payload="x", sequence=1, lowest=1)
        async with page(ws(room), session=session) as tab:
            second = await tab.ask("push", queue="jobs", payload="x", sequence=1, lowest=1)
            shown = await tab.ask("show_queue", queue="jobs")

    assert session == tab.welcome["session"]
    assert first["ids"] == second["ids"]
    assert 1 == shown["ready"]


async def test_a_forgotten_poll_leases_nothing(tmp_path: Path) -> None:
    """A page that stopped waiting says so, and goes on."""
    async with house(tmp_path, "ws") as [room], page(ws(room)) as tab:
        await tab.ask("open_session")
        parked = await tab.send("poll", queue="jobs", wait_ms=60_000, sequence=1, lowest=1)
        await tab.ask("forget", forget=1, sequence=2, lowest=1)
        forgotten = await tab.answer(parked)
        await tab.ask("push", queue="jobs", payload="x", sequence=3, lowest=3)
        shown = await tab.ask("show_queue", queue="jobs")

    assert "OUTCOME_UNKNOWN" == forgotten["name"]
    assert (1, 0) == (shown["ready"], shown["leased"])


async def test_large_messages_pass_both_ways(tmp_path: Path) -> None:
    """As base64 and in one frame."""
    body = bytes(range(256)) * (2 * limits.MIB // 256)
    async with house(tmp_path, "ws") as [room], native(ws(room)) as client:
        await client.ask(api.SetQueue("big", {"max_message_bytes": len(body)}))
        await client.ask(api.Push("big", pack([body])))
        async with page(ws(room)) as tab:
            polled = await tab.ask("poll", queue="big")
            coded = polled["messages"][0]["payload_base64"]
            await tab.ask("push", queue="big", payload_base64=coded)
        found = await client.ask(api.Poll(("big",)))
    assert isinstance(found, api.Polled)

    assert body == found.runs[0].payloads


# --- what ends a connection ---------------------------------------------------------------------------------
class Raw:
    """A client that can say what no library would."""

    def __init__(self, stream: trio.SocketStream, wire: WSConnection) -> None:
        self.stream = stream
        self.wire = wire

    async def frames(self, *frames: bytes) -> None:
        """Send bytes as they are."""
        await self.stream.send_all(b"".join(frames))

    async def event(self) -> Event:
        """The next event, texts put together."""
        text = ""
        while True:
            for event in self.wire.events():
                if isinstance(event, Message) and not event.message_finished:
                    text += event.data if isinstance(event.data, str) else event.data.decode()
                else:
                    return event
            data = await self.stream.receive_some()
            self.wire.receive_data(data or None)

    async def closing(self) -> CloseConnection:
        """How the server says goodbye, whatever it says before."""
        while not isinstance(event := await self.event(), CloseConnection):
            pass
        return event


async def raw(room: Room, offers: str = JSON, *, hello: bool = True) -> Raw:
    """A raw client behind its handshakes."""
    host, _, port = room.endpoints["ws"].rpartition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    wire = WSConnection(ConnectionType.CLIENT)
    await stream.send_all(wire.send(Request(host=room.endpoints["ws"], target="/", subprotocols=[offers])))
    client = Raw(stream, wire)
    assert isinstance(await client.event(), AcceptConnection)
    if hello:
        await client.frames(wire.send(TextMessage('{"op": "hello", "client": "raw"}')))
        assert isinstance(await client.event(), TextMessage)
    return client


def frame(opcode: Opcode, payload: bytes, *, fin: bool = True, reserved: int = 0) -> bytes:
    """One masked frame, legal or not."""
    made = bytearray(FrameProtocol(client=True, extensions=[])._serialize_frame(opcode, payload, fin=fin))
    made[0] |= reserved
    return bytes(made)


BAD = {
    "binary where text is spoken": ([frame(Opcode.BINARY, b"{}")], 1003, "text messages only"),
    "no UTF-8": ([frame(Opcode.TEXT, b'"\xff"')], 1007, "utf-8"),
    "half a character at the end": ([frame(Opcode.TEXT, b'"\xc3')], 1007, "utf-8"),
    "a compressed frame": ([frame(Opcode.TEXT, b"\x00" * 9, reserved=0x40)], 1002, "eserved"),
    "an unknown opcode": ([b"\x83\x80\x00\x00\x00\x00"], 1002, "pcode"),
    "an unmasked frame": ([b"\x81\x02{}"], 1002, "mask"),
    "a continuation of nothing": ([frame(Opcode.CONTINUATION, b"x")], 1002, "CONTINUATION"),
    "a ping in two pieces": ([frame(Opcode.PING, b"x", fin=False)], 1002, "ragment"),
    "a length of 2^63": ([b"\x81\xff" + b"\xff" * 8 + b"\x00" * 4], 1002, "MSB"),
    "an empty message": ([frame(Opcode.TEXT, b"")], 1002, "empty"),
    "no JSON": ([frame(Opcode.TEXT, b"{")], 1002, "not JSON"),
    "no request": ([frame(Opcode.TEXT, b"[]")], 1002, "a request is an object"),
    "beyond the limit": ([frame(Opcode.TEXT, b"x" * (limits.FRAME_BYTES_MAX + 1))], 1009, "33554432 bytes"),
    "beyond the limit in pieces": (
        [frame(Opcode.TEXT, b"x" * limits.FRAME_BYTES_MAX, fin=False), frame(Opcode.CONTINUATION, b"x")],
        1009,
        "33554432 bytes",
    ),
}


async def test_who_breaks_the_rules_is_told_which(tmp_path: Path) -> None:
    """Each end has its code and a sentence, which the client reads although it was still sending; others go on."""
    found = {}
    async with house(tmp_path, "ws") as [room], page(ws(room)) as witness:
        for name, (frames, _, _) in BAD.items():
            client = await raw(room)
            async with client.stream:
                await client.frames(*frames)
                found[name] = await client.closing()
        alive = await witness.ask("ping")

    assert {name: code for name, (_, code, _) in BAD.items()} == {name: each.code for name, each in found.items()}
    assert [] == [(name, each.reason) for name, each in found.items() if BAD[name][2] not in (each.reason or "")]
    assert "pong" == alive["reply"]


async def test_text_where_frames_are_spoken_is_refused(tmp_path: Path) -> None:
    """The other half of it."""
    async with house(tmp_path, "ws") as [room], websocket(ws(room), CBOR) as socket:
        await socket.send_message("hello")
        reason = await end_of(socket)

    assert (1003, "this subprotocol has binary messages only") == (reason.code, reason.reason)


async def test_a_message_may_come_in_many_pieces(tmp_path: Path) -> None:
    """Pings may stand between them."""
    text = json.dumps({"id": 1, "op": "push", "queue": "jobs", "payload": "x" * 500}).encode()
    pieces = [
        frame(Opcode.TEXT if not at else Opcode.CONTINUATION, text[at : at + 1], fin=False) for at in range(len(text))
    ]
    async with house(tmp_path, "ws") as [room]:
        client = await raw(room)
        async with client.stream:
            await client.frames(*pieces, frame(Opcode.PING, b"still there?"), frame(Opcode.CONTINUATION, b""))
            pong = await client.event()
            reply = await client.event()
    assert isinstance(reply, TextMessage)

    assert "Pong" == type(pong).__name__
    assert "pushed" == json.loads(reply.data)["reply"]


async def test_endless_pieces_are_bounded_in_time_and_cost_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty ones hold nothing, and a message that never ends is given up."""
    monkeypatch.setattr(websocket_front, "SWEEP_S", 0.02)
    monkeypatch.setattr(websocket_front, "_STALLED_SWEEPS", 5)
    async with house(tmp_path, "ws") as [room]:
        client = await raw(room)
        async with client.stream, trio.open_nursery() as nursery:

            async def pour() -> None:
                await client.frames(frame(Opcode.TEXT, b"", fin=False))
                while True:
                    await client.frames(*[frame(Opcode.CONTINUATION, b"", fin=False)] * 50)
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(pour)
            closing = await client.closing()
            nursery.cancel_scope.cancel()

    assert 4_000 + Code.REPLY_TIMEOUT == closing.code
    assert "not finished within" in (closing.reason or "")


async def test_unfinished_messages_of_all_pages_share_one_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand pages with a message each that is nearly 32 MiB would be the node's end; finished ones give back."""
    monkeypatch.setattr(websocket_stream, "IN_FLIGHT_BYTES_MAX", 100_000)
    begun = frame(Opcode.TEXT, b" " * 60_000, fin=False)
    finished = frame(Opcode.CONTINUATION, b'{"id": 1, "op": "ping"}')
    async with house(tmp_path, "ws") as [room]:
        first, second, third = [await raw(room) for _ in range(3)]
        async with first.stream, second.stream, third.stream:
            await first.frames(begun, finished)
            await first.event()
            await first.frames(begun)
            await first.frames(frame(Opcode.PING, b""))
            await first.event()
            await second.frames(begun)
            refused = await second.closing()
            await first.frames(finished.replace(b"1", b"1"))
            answered = await first.event()
            await third.frames(begun, finished)
            after = await third.event()

    assert (1013, "TextMessage", "TextMessage") == (refused.code, type(answered).__name__, type(after).__name__)


async def test_the_page_may_say_goodbye(tmp_path: Path) -> None:
    """The server answers its close frame at once, and its parked polls end."""
    async with house(tmp_path, "ws") as [room], page(ws(room)) as other:
        client = await raw(room)
        async with client.stream:
            poll = {"id": 1, "op": "poll", "queue": "jobs", "wait_ms": 60_000}
            await client.frames(client.wire.send(TextMessage(json.dumps(poll))))
            await client.frames(client.wire.send(CloseConnection(code=1000, reason="bye")))
            closing = await client.closing()
            rest = await client.stream.receive_some()
        await other.ask("push", queue="jobs", payload="x")
        shown = await other.ask("show_queue", queue="jobs")

    assert (1000, b"") == (closing.code, bytes(rest))
    assert (1, 0) == (shown["ready"], shown["leased"])


# --- silence, slowness, death -------------------------------------------------------------------------------
async def test_who_is_silent_is_pinged_and_who_stays_so_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that answers pings may be idle for ever; one that does not is gone."""
    monkeypatch.setattr(websocket_front, "SWEEP_S", 0.02)
    async with house(tmp_path, "ws") as [room], page(ws(room)) as idle:
        dead = await raw(room)
        async with dead.stream:
            ping = await dead.event()
            closing = await dead.closing()
        with trio.move_on_after(0.4):
            await idle.socket.get_message()  # pings are answered while somebody listens
        alive = await idle.ask("ping")

    assert ("Ping", 4_000 + Code.REPLY_TIMEOUT) == (type(ping).__name__, closing.code)
    assert "pong" == alive["reply"]


async def test_what_a_dead_page_leased_is_free_at_once(tmp_path: Path) -> None:
    """It vanished before the kernel had taken the reply: nobody waits for the lease to end, and no attempt counts."""
    body = "x" * 900_000
    async with house(tmp_path, "ws") as [room], page(ws(room)) as other:
        for _ in range(12):
            await other.ask("push", queue="jobs", payload=body)
        client = await raw(room)
        polls = [
            {"id": number, "op": "poll", "queue": "jobs", "max_messages": 1, "visibility_ms": 3_600_000}
            for number in range(1, 13)
        ]
        await client.frames(*[client.wire.send(TextMessage(json.dumps(each))) for each in polls])
        shown = await other.ask_while(lambda now: not now["leased"], "show_queue", queue="jobs")
        leased = shown["leased"]
        await trio.aclose_forcefully(client.stream)
        await other.ask_while(lambda now: now["leased"] >= leased, "show_queue", queue="jobs")
        peeked = await other.ask("peek", queue="jobs", bodies=False, limit=12)

    assert {0} == {each["attempts"] for each in peeked["messages"]}
    assert peeked["messages"]


async def test_a_page_that_does_not_read_is_not_read(tmp_path: Path) -> None:
    """Its requests stay in its own kernel once its replies fill the server's; everybody else is served."""
    async with house(tmp_path, "ws") as [room], page(ws(room)) as other:
        await other.ask("push", queue="jobs", payload="x" * 1_000_000)
        client = await raw(room)
        async with client.stream:
            sent = 0
            stuck = False
            filler = " " * 60_000
            while not stuck and sent < 2_000:
                sent += 1
                ask = client.wire.send(TextMessage(json.dumps({"id": sent, "op": "peek", "queue": "jobs"}) + filler))
                with trio.move_on_after(1) as patience:
                    await client.frames(ask)
                stuck = patience.cancelled_caught
            alive = await other.ask("ping")

    assert stuck
    assert sent < 500
    assert "pong" == alive["reply"]


async def test_a_stopping_node_says_so_and_answers_what_it_has(tmp_path: Path) -> None:
    """Parked polls end empty, then the close frame says that the node goes away."""
    async with house(tmp_path, "ws") as [room], page(ws(room)) as tab, native(ws(room)) as client:
        parked = await tab.send("poll", queue="jobs", wait_ms=60_000)
        await tab.ask("ping")
        room.wishes.stop.set()
        answer = await tab.answer(parked)
        reason = await end_of(tab.socket)
        native_end = await end_of(client.socket)
        await room.over.wait()

    assert [] == answer["messages"]
    assert (1001, "the node is stopping") == (reason.code, reason.reason)
    assert 1001 == native_end.code


# --- who is let in ------------------------------------------------------------------------------------------
async def test_pages_of_other_sites_stay_out(tmp_path: Path) -> None:
    """Unless the list has them."""
    async with house(tmp_path, "ws", allowed_origins=("https://app.example",)) as [room]:
        async with page(ws(room)) as tab:
            pong = await tab.ask("ping")
        async with websocket(ws(room), Origin="https://app.example"):
            pass
        with pytest.raises(ConnectionRejected) as rejected:
            async with websocket(ws(room), Origin="https://evil.example"):
                pass

    assert "pong" == pong["reply"]
    assert 403 == rejected.value.status_code
    assert b"https://evil.example" in (rejected.value.body or b"")


async def test_one_connection_too_many_is_told_so(tmp_path: Path) -> None:
    """The door's cap is the node's setting, and its words are HTTP's."""
    async with house(tmp_path, "ws", max_connections=1) as [room], page(ws(room)) as tab:
        with pytest.raises(ConnectionRejected) as rejected:
            async with websocket(ws(room)):
                pass
        pong = await tab.ask("ping")

    assert (503, "pong") == (rejected.value.status_code, pong["reply"])


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 426 Upgrade Required"),
        (b"PING\r\n", b"HTTP/1.1 4"),
        (b"*1\r\n$4\r\nPING\r\n", b"-ERR "),
    ],
)
async def test_bytes_of_another_protocol_get_a_clear_answer_and_do_nothing(
    tmp_path: Path, said: bytes, answer: bytes
) -> None:
    """Then the connection is closed."""
    async with house(tmp_path, "ws") as [room]:
        host, _, port = room.endpoints["ws"].rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(said + b"\r\n\r\n")
            heard = b""
            async for data in stream:
                heard += data

    assert heard.startswith(answer)


async def test_who_never_ends_the_handshake_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow or dead, it holds a place for ten seconds at most."""
    from walrq.doors import websocket as door

    monkeypatch.setattr(door, "HANDSHAKE_TIMEOUT_S", 0.05)
    async with house(tmp_path, "ws") as [room]:
        host, _, port = room.endpoints["ws"].rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\n")
            heard: Any = await stream.receive_some()

    assert b"" == heard


async def test_every_close_code_is_a_legal_one() -> None:
    """RFC 6455 lets applications have 4000 to 4999; what has a code of its own gets that."""
    codes = {code: websocket_stream.close_code(code) for code in Code}

    assert (1001, 1002, 1009, 1011) == (
        codes[Code.DRAINING],
        codes[Code.PROTOCOL_VIOLATION],
        codes[Code.FRAME_TOO_LARGE],
        codes[Code.INTERNAL],
    )
    assert all(4_000 < each < 4_100 or 1_001 <= each <= 1_013 for each in codes.values())
