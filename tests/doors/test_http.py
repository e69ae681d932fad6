"""The HTTP door over real sockets: operations, refusals, limits, and what becomes of a poll whose client goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio

from tests.doors import raw
from tests.doors.house import LOOK_S, Room, ask, house, leader_and_followers
from walrq.doors import census, forwarding, gate, http, http_app

pytestmark = pytest.mark.trio

JOBS = "/v1/queues/jobs"


async def until(client: httpx.AsyncClient, path: str, fits: Any) -> Any:
    """The answer of `path`, once it fits."""
    while True:
        found = await ask(client, "GET", path)
        if fits(found):
            return found
        await trio.sleep(LOOK_S)


# --- operations ---------------------------------------------------------------------------------------------
async def test_a_message_goes_its_whole_way(tmp_path: Path) -> None:
    """Push, poll, touch, ack: each by its path, each with its reply."""
    async with house(tmp_path, "http") as [room], room.http() as client:
        pushed = await ask(client, "POST", f"{JOBS}/messages", {"payload": "hello", "priority": 7})
        polled = await ask(client, "POST", f"{JOBS}/poll", {"visibility_ms": 5000})
        [message] = polled["messages"]
        handle = {"receipt_handle": message["receipt_handle"]}
        touched = await ask(client, "POST", f"{JOBS}/touch", {**handle, "visibility_ms": 9000})
        acked = await ask(client, "POST", f"{JOBS}/ack", handle)
        again = await ask(client, "POST", f"{JOBS}/ack", handle)

    assert (pushed["ids"], "hello", 7) == ([message["id"]], message["payload"], message["priority"])
    assert [0] == touched["codes"]
    assert touched["remaining_ms"][0] > 5000
    assert ([0], ["RECEIPT_EXPIRED"]) == (acked["codes"], again["names"])


async def test_any_queue_name_can_be_reached(tmp_path: Path) -> None:
    """Slashes, percent signs and other scripts travel percent-encoded; dots, which clients resolve, in the object."""
    async with house(tmp_path, "http") as [room], room.http() as client:
        await ask(client, "POST", "/v1/queues/a%2Fb%25%20%C3%A9/messages", {"payload": "1"})
        await ask(client, "POST", "/v1/request", {"op": "push", "queue": "..", "payload": "2"})
        listed = await ask(client, "GET", "/v1/queues")
        peeked = await ask(client, "GET", "/v1/queues/a%2Fb%25%20%C3%A9/messages?limit=5&bodies=true")

    assert ["..", "a/b% é"] == [each["name"] for each in listed["queues"]]
    assert ["1"] == [each["payload"] for each in peeked["messages"]]


async def test_dead_messages_are_listed_counted_and_redriven(tmp_path: Path) -> None:
    """The dashboard's buttons: a filter in the query, a dry run that moves nothing, a redrive that does."""
    async with house(tmp_path, "http") as [room], room.http() as client:
        for number in range(3):
            await ask(client, "POST", f"{JOBS}/messages", {"payload": str(number)})
        polled = await ask(client, "POST", f"{JOBS}/poll", {})
        for message, kind in zip(polled["messages"], ("Bad", "Bad", "Odd"), strict=True):
            body = {"receipt_handle": message["receipt_handle"], "error_type": kind, "error_text": "x"}
            await ask(client, "POST", f"{JOBS}/reject", body)
        where = json.dumps({"error_type": "Bad"})
        listed = await client.get(f"{JOBS}/dead", params={"where": where})
        counted = await ask(client, "POST", f"{JOBS}/dead/redrive", {"where": json.loads(where), "dry_run": True})
        moved = await ask(client, "POST", f"{JOBS}/dead/redrive", {"where": json.loads(where)})
        left = await ask(client, "GET", f"{JOBS}/dead")

    assert ["0", "1"] == [each["payload"] for each in listed.json()["messages"]]
    assert (2, 2) == (counted["count"], moved["count"])
    assert ["2"] == [each["payload"] for each in left["messages"]]


async def test_a_request_of_a_session_takes_effect_once(tmp_path: Path) -> None:
    """Sent again under its sequence a push gives the first answer again."""
    async with house(tmp_path, "http") as [room], room.http() as client:
        session = (await ask(client, "POST", "/v1/sessions"))["session"]
        headers = {"walrq-session": str(session), "walrq-sequence": "1"}
        first = await ask(client, "POST", f"{JOBS}/messages", {"payload": "x"}, headers=headers)
        again = await ask(client, "POST", f"{JOBS}/messages", {"payload": "x"}, headers=headers)
        shown = await ask(client, "GET", JOBS)

    assert (first["ids"], 1) == (again["ids"], shown["ready"])


async def test_a_backup_can_be_read(tmp_path: Path) -> None:
    """Begun, read part by part, ended; another one may follow."""
    async with house(tmp_path, "http") as [room], room.http() as client:
        begun = await ask(client, "POST", "/v1/backups")
        base = f"/v1/backups/{begun['backup']}"
        chunk = await ask(client, "GET", f"{base}/parts/0?offset=0&limit=64")
        ended = await client.delete(base)
        gone = await client.get(f"{base}/parts/0?offset=0&limit=64")

    assert begun["parts"]
    assert "chunk" == chunk["reply"]
    assert (200, 400) == (ended.status_code, gone.status_code)


# --- refusals -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "path", "body", "status", "name", "field"),
    [
        ("GET", "/v1/queues/none", None, 404, "QUEUE_NOT_FOUND", None),
        ("POST", f"{JOBS}/messages", {"payload": 7}, 400, "INVALID_ARGUMENT", "payload"),
        ("POST", f"{JOBS}/messages", {"paylod": "x"}, 400, "INVALID_ARGUMENT", "paylod"),
        ("POST", f"{JOBS}/messages", {"payload": "x", "priority": 256}, 400, "INVALID_ARGUMENT", "priority"),
        ("POST", f"{JOBS}/messages", [1], 400, "INVALID_ARGUMENT", "body"),
        ("POST", f"{JOBS}/messages", {"payload": "x", "queue": "other"}, 400, "INVALID_ARGUMENT", "queue"),
        ("POST", f"{JOBS}/messages", {"payload": "x" * (1 << 20) + "x"}, 413, "MESSAGE_TOO_LARGE", None),
        ("GET", f"{JOBS}/messages?limit=many", None, 400, "INVALID_ARGUMENT", "limit"),
        ("GET", f"{JOBS}/messages?limit=1&limit=2", None, 400, "INVALID_ARGUMENT", "limit"),
        ("POST", f"{JOBS}/ack", {"receipt_handle": "00"}, 400, "RECEIPT_INVALID", "receipt_handle"),
        ("GET", "/v1/queues/%FF", None, 400, "INVALID_ARGUMENT", "path"),
        ("GET", "/v1/overview?sort=colour", None, 400, "INVALID_ARGUMENT", "sort"),
        ("GET", "/nothing", None, 404, "UNKNOWN_OPERATION", None),
        ("GET", f"{JOBS}/poll", None, 405, "UNKNOWN_OPERATION", None),
        ("PATCH", JOBS, {}, 405, "UNKNOWN_OPERATION", None),
    ],
)
async def test_a_refusal_names_code_and_field(
    tmp_path: Path, method: str, path: str, body: Any, status: int, name: str, field: str | None
) -> None:
    """The status is the table's, the body says what is wrong, and the request can be found in the log."""
    async with house(tmp_path, "http") as [room], room.http() as client:
        response = await client.request(method, path, json=body)

    found = response.json()
    assert (status, name, field) == (response.status_code, found["name"], found.get("field"))
    assert response.headers["x-request-id"] == found["request_id"]


async def test_what_is_no_json_is_refused_and_named(tmp_path: Path) -> None:
    """Another media type, broken text, a key twice: a clear word each."""
    async with house(tmp_path, "http") as [room], room.http() as client:
        form = await client.post(f"{JOBS}/messages", data={"payload": "x"})
        broken = await client.post(f"{JOBS}/messages", content=b"{", headers={"content-type": "application/json"})
        twice = await client.post(
            f"{JOBS}/messages", content=b'{"payload":"a","payload":"b"}', headers={"content-type": "application/json"}
        )

    assert [400, 400, 400] == [form.status_code, broken.status_code, twice.status_code]
    assert ("content-type", "body") == (form.json()["field"], broken.json()["field"])
    assert "twice" in twice.json()["text"]


async def test_a_method_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    """405 comes with Allow, HEAD goes where GET goes, OPTIONS answers."""
    async with house(tmp_path, "http") as [room], room.http() as client:
        wrong = await client.get("/api/dlq/purge?queue=jobs")
        head = await client.head("/livez")
        options = await client.options(JOBS)

    assert (405, "POST, OPTIONS") == (wrong.status_code, wrong.headers["allow"])
    assert (200, b"") == (head.status_code, head.content)
    assert (204, "GET, PUT, DELETE, HEAD, OPTIONS") == (options.status_code, options.headers["allow"])


async def test_a_callers_request_id_is_kept(tmp_path: Path) -> None:
    """So that one name runs through all logs; what could break a log line is replaced."""
    async with house(tmp_path, "http") as [room], room.http() as client:
        kept = await client.get("/livez", headers={"x-request-id": "abc-1"})
        replaced = await client.get("/livez", headers={"x-request-id": "a b"})

    assert "abc-1" == kept.headers["x-request-id"]
    assert replaced.headers["x-request-id"] not in ("", "a b")


# --- pages of others ----------------------------------------------------------------------------------------
async def test_foreign_pages_change_nothing(tmp_path: Path) -> None:
    """A form or script elsewhere can make a browser ask, and the node sees that it was one."""
    async with house(tmp_path, "http") as [room], room.http() as client:
        own = room.url()
        posts = [
            {"origin": "https://evil.example"},
            {"sec-fetch-site": "cross-site"},
            {"origin": "null"},
            {"origin": own},
            {"origin": own, "walrq-page": "1"},
            {},
        ]
        found = [(await client.post("/api/dlq/purge?queue=jobs", headers=each)).status_code for each in posts]
        strange = await client.get("/v1/queues", headers={"host": "evil.example"})
        read = await client.get("/v1/queues", headers={"origin": "https://evil.example"})

    assert [403, 403, 403, 403, 200, 200] == found
    assert (403, "host") == (strange.status_code, strange.json()["field"])
    assert not [name for name in read.headers if name.startswith("access-control")]


async def test_an_allowed_origin_may_ask(tmp_path: Path) -> None:
    """Only what the setting names, with the header or a token like the node's own pages."""
    async with house(tmp_path, "http", allowed_origins=("https://app.example",)) as [room], room.http() as client:
        origin = {"origin": "https://app.example"}
        preflight = await client.options(f"{JOBS}/messages", headers=origin)
        pushed = await client.post(f"{JOBS}/messages", json={"payload": "x"}, headers={**origin, "walrq-page": "1"})
        other = await client.options(f"{JOBS}/messages", headers={"origin": "https://other.example"})

    assert "https://app.example" == preflight.headers["access-control-allow-origin"]
    assert "walrq-page" in preflight.headers["access-control-allow-headers"]
    assert (200, "https://app.example") == (pushed.status_code, pushed.headers["access-control-allow-origin"])
    assert "access-control-allow-origin" not in other.headers


# --- polls that wait ----------------------------------------------------------------------------------------
async def test_a_waiting_poll_is_woken_by_a_push(tmp_path: Path) -> None:
    """The queue need not be there yet."""
    async with house(tmp_path, "http") as [room], room.http() as client:
        async with trio.open_nursery() as nursery:
            found: list[Any] = []

            async def poll() -> None:
                found.append(await ask(client, "POST", f"{JOBS}/poll", {"wait_ms": 20_000}))

            nursery.start_soon(poll)
            await until(client, "/v1/stats", lambda stats: stats["values"]["parked_polls"] == 1)
            await ask(client, "POST", f"{JOBS}/messages", {"payload": "here"})

    assert ["here"] == [each["payload"] for each in found[0]["messages"]]


async def test_a_client_that_goes_takes_its_poll_along(tmp_path: Path) -> None:
    """A parked poll ends with its connection, and the next message is nobody's."""
    async with house(tmp_path, "http") as [room], room.http() as client:
        stream = await raw.connect(room.endpoints["http"])
        await stream.send_all(raw.request("POST", f"{JOBS}/poll", b'{"wait_ms": 20000}'))
        await until(client, "/v1/stats", lambda stats: stats["values"]["parked_polls"] == 1)
        await stream.aclose()
        await until(client, "/v1/stats", lambda stats: stats["values"]["parked_polls"] == 0)
        await ask(client, "POST", f"{JOBS}/messages", {"payload": "x"})
        shown = await ask(client, "GET", JOBS)

    assert (1, 0, 0) == (shown["ready"], shown["leased"], shown["delivered"])


async def test_a_lease_that_nobody_read_is_free_again(tmp_path: Path) -> None:
    """A response that the kernel did not take whole was not received: no lease, no attempt."""
    body = json.dumps({"payload": "x" * 1_000_000}).encode()
    async with house(tmp_path, "http") as [room], room.http() as client:
        for _ in range(12):
            await client.post(f"{JOBS}/messages", content=body, headers={"content-type": "application/json"})
        stream = await raw.connect(room.endpoints["http"], receive_bytes=4096)
        await stream.send_all(raw.request("POST", f"{JOBS}/poll", b'{"max_messages": 12}'))
        await until(client, JOBS, lambda shown: shown["leased"] == 12)
        raw.reset(stream)
        await until(client, JOBS, lambda shown: shown["ready"] == 12)
        [seen] = (await ask(client, "GET", f"{JOBS}/messages?limit=1&bodies=false"))["messages"]

    assert 0 == seen["attempts"]


async def test_a_node_that_stops_answers_who_waits(tmp_path: Path) -> None:
    """A parked poll gets its empty answer, then the connection ends."""
    async with house(tmp_path, "http") as [room], room.http() as client:
        stream = await raw.connect(room.endpoints["http"])
        await stream.send_all(raw.request("POST", f"{JOBS}/poll", b'{"wait_ms": 20000}'))
        await until(client, "/v1/stats", lambda stats: stats["values"]["parked_polls"] == 1)
        await room.stop()
        status = await raw.status_of(stream)
        await stream.aclose()

    assert 200 == status


# --- limits -------------------------------------------------------------------------------------------------
async def test_bodies_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Announced or not, one that is too large is refused before it is kept; all of them together have a bound too."""
    monkeypatch.setattr(http_app, "HTTP_BODY_BYTES_MAX", 1000)
    async with house(tmp_path, "http") as [room], room.http() as client:

        async def pieces() -> Any:
            for _ in range(20):
                yield b" " * 100

        headers = {"content-type": "application/json"}
        announced = await client.post(f"{JOBS}/messages", content=b" " * 1001, headers=headers)
        chunked = await client.post(f"{JOBS}/messages", content=pieces(), headers=headers)
        monkeypatch.setattr(http_app, "HTTP_BODIES_BYTES_MAX", 100)
        crowded = await client.post(f"{JOBS}/messages", content=b" " * 500, headers=headers)
        monkeypatch.setattr(http_app, "HTTP_BODIES_BYTES_MAX", 1000)
        after = await client.post(f"{JOBS}/messages", json={"payload": "x"})

    assert [413, 413, 429, 200] == [each.status_code for each in (announced, chunked, crowded, after)]
    assert (1000, "1") == (announced.json()["limit"], crowded.headers["retry-after"])


async def test_heads_are_bounded(tmp_path: Path) -> None:
    """A head that never ends, and a path beyond any name, are refused."""
    async with house(tmp_path, "http") as [room], room.http() as client:
        stream = await raw.connect(room.endpoints["http"])
        await stream.send_all(raw.head("GET", "/livez", x_long="x" * 40_000)[:-4])
        endless = await raw.status_of(stream)
        await stream.aclose()
        large = await client.get("/livez", headers={"x-long": "x" * 40_000})
        long = await client.get("/v1/queues/" + "x" * 9_000)

    assert (431, 431, 400) == (endless, large.status_code, long.status_code)


async def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who announces a body and sends none holds a connection for a bounded time."""
    monkeypatch.setattr(http_app, "HTTP_BODY_S_MAX", 0.03)
    async with house(tmp_path, "http") as [room]:
        stream = await raw.connect(room.endpoints["http"])
        await stream.send_all(raw.head("POST", f"{JOBS}/messages", content_type="application/json", content_length=9))
        status = await raw.status_of(stream)
        await stream.aclose()

    assert 408 == status


async def test_a_response_that_is_not_read_ends_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease in it is free again."""
    monkeypatch.setattr(http_app, "SEND_STALL_S_MAX", 0.05)
    body = json.dumps({"payload": "x" * 1_000_000}).encode()
    async with house(tmp_path, "http") as [room], room.http() as client:
        for _ in range(12):
            await client.post(f"{JOBS}/messages", content=body, headers={"content-type": "application/json"})
        stream = await raw.connect(room.endpoints["http"], receive_bytes=4096)
        await stream.send_all(raw.request("POST", f"{JOBS}/poll", b'{"max_messages": 12}'))
        await until(client, JOBS, lambda shown: shown["leased"] == 0 and shown["delivered"] == 12)
        await stream.aclose()


async def test_an_idle_connection_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept alive for the next request, and not for ever."""
    monkeypatch.setattr(http, "HTTP_IDLE_S_MAX", 0.05)
    async with house(tmp_path, "http") as [room]:
        stream = await raw.connect(room.endpoints["http"])
        for _ in range(2):
            await stream.send_all(raw.head("GET", "/livez"))
            assert 200 == await raw.status_of(stream)
        while await stream.receive_some(4096):
            pass
        await stream.aclose()


async def test_one_connection_too_many_is_told_so(tmp_path: Path) -> None:
    """In the words of HTTP, before a request was read."""
    async with house(tmp_path, "http", max_connections=1) as [room]:
        first = await raw.connect(room.endpoints["http"])
        await first.send_all(raw.head("GET", "/livez"))
        await raw.status_of(first)
        second = await raw.connect(room.endpoints["http"])
        status = await raw.status_of(second)
        await first.aclose()
        await second.aclose()

    assert 503 == status


async def test_other_protocols_execute_nothing(tmp_path: Path) -> None:
    """HTTP/2 without asking, a WebSocket, a Redis command: none of them gets anywhere."""
    async with house(tmp_path, "http") as [room], room.http() as client:
        redis = await raw.connect(room.endpoints["http"])
        await redis.send_all(b"*3\r\n$5\r\nLPUSH\r\n$4\r\njobs\r\n$1\r\nx\r\n\r\n")
        refused = await raw.status_of(redis)
        await redis.aclose()
        upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        socket = await client.get("/v1/queues", headers={**upgrade, "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA=="})
        async with httpx.AsyncClient(base_url=room.url(), http1=False, http2=True) as other:
            http2 = await other.post(f"{JOBS}/messages", json={"payload": "x"})
        listed = await ask(client, "GET", "/v1/queues")

    assert (400, 403, 505, []) == (refused, socket.status_code, http2.status_code, listed["queues"])


# --- streams ------------------------------------------------------------------------------------------------
async def test_events_tell_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Totals, the cluster and the asked page of queues, again and again."""
    monkeypatch.setattr(http_app, "_EVENT_S", 0.05)
    async with house(tmp_path, "http") as [room], room.http() as client:
        await ask(client, "POST", f"{JOBS}/messages", {"payload": "x"})
        await ask(client, "POST", "/v1/queues/other/messages", {"payload": "x"})
        stream = await raw.connect(room.endpoints["http"])
        await stream.send_all(raw.head("GET", "/v1/events?search=OB&limit=5"))
        events = raw.Events(stream)
        first, second = await events.next(), await events.next()
        await stream.aclose()

    assert (2, 2) == (first["totals"]["queues"], first["totals"]["ready"])
    assert (1, ["jobs"]) == (first["matches"], [each["name"] for each in first["queues"]])
    assert ("consistent", "n1") == (first["consistency"], first["cluster"]["leader"])
    assert second["at_s"] > first["at_s"]


async def test_streams_are_bounded_and_end_with_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than allowed is refused; those that are open end in good order when the node stops."""
    monkeypatch.setattr(http_app, "HTTP_STREAMS_MAX", 1)
    async with house(tmp_path, "http") as [room], room.http() as client:
        stream = await raw.connect(room.endpoints["http"])
        await stream.send_all(raw.head("GET", "/v1/events"))
        events = raw.Events(stream)
        assert "n1" == (await events.next())["node"]
        refused = await client.get("/v1/events")
        await room.stop()
        last = await events.next()
        await stream.aclose()

    assert (429, None) == (refused.status_code, last)


# --- what others watch --------------------------------------------------------------------------------------
async def test_the_ancestors_statistics_and_buttons(tmp_path: Path) -> None:
    """Field for field; a dead-letter queue is a number of its queue there, and a queue that is not there is empty."""
    async with house(tmp_path, "http") as [room], room.http() as client:
        for name in ("b", "a"):
            await ask(client, "POST", f"/v1/queues/{name}/messages", {"payload": "x"})
        [message] = (await ask(client, "POST", "/v1/queues/b/poll", {}))["messages"]
        await ask(client, "POST", "/v1/queues/b/reject", {"receipt_handle": message["receipt_handle"]})
        stats = await ask(client, "GET", "/api/stats")
        requeued = await ask(client, "POST", "/api/dlq/requeue?queue=b")
        purged = await ask(client, "POST", "/api/dlq/purge?queue=none")
        missing = await client.post("/api/dlq/purge")

    assert {
        "total_queues": 2,
        "total_ready": 1,
        "total_in_flight": 0,
        "total_delayed": 0,
        "total_dlq": 1,
        "queues": [
            {"name": "a", "ready": 1, "in_flight": 0, "dlq": 0},
            {"name": "b", "ready": 0, "in_flight": 0, "dlq": 1},
        ],
    } == stats
    assert {"status": "ok", "action": "requeue", "queue": "b", "requeued": 1} == requeued
    assert {"status": "ok", "action": "purge", "queue": "none", "purged": 0} == purged
    assert (400, "error") == (missing.status_code, missing.json()["status"])


async def test_probes_say_what_a_node_can_do(tmp_path: Path) -> None:
    """Alive, and ready once somebody leads."""
    async with house(tmp_path, "http") as [room], room.http() as client:
        live = await client.get("/livez")
        ready = await client.get("/readyz")

    assert (200, "ok\n") == (live.status_code, live.text)
    assert (200, True) == (ready.status_code, ready.json()["ready"])


# --- a follower ---------------------------------------------------------------------------------------------
async def test_a_follower_answers_like_the_leader(tmp_path: Path) -> None:
    """Forwarded, waits included; a session's requests are sent to the leader; who leads may change meanwhile."""
    async with house(tmp_path, "http", nodes=3) as rooms:
        leader, [follower, third] = await leader_and_followers(rooms)
        async with leader.http() as there, follower.http() as here:
            pushed = await ask(here, "POST", f"{JOBS}/messages", {"payload": "x"})
            shown = await here.get(JOBS)
            stats = await here.get("/v1/stats")
            session = await here.get(JOBS, headers={"walrq-session": "9", "walrq-sequence": "1"})
            opening = await here.post("/v1/sessions")
            [message] = (await ask(here, "POST", f"{JOBS}/poll", {}))["messages"]
            acked = await ask(here, "POST", f"{JOBS}/ack", {"receipt_handle": message["receipt_handle"]})
            numbers = await ask(here, "GET", "/api/stats")
            cluster = (await ask(here, "GET", "/v1/overview"))["cluster"]

            assert pushed["ids"] == [message["id"]]
            assert (1, "consistent") == (shown.json()["ready"], shown.headers["walrq-consistency"])
            assert "local" == stats.headers["walrq-consistency"]
            assert (307, f"{leader.url()}{JOBS}") == (session.status_code, session.headers["location"])
            assert (307, f"{leader.url()}/v1/sessions") == (opening.status_code, opening.headers["location"])
            assert ([0], 0) == (acked["codes"], numbers["total_in_flight"])
            assert leader.name == cluster["node"]

            await _gives_up_a_forwarded_poll(follower, here, there)
            async with trio.open_nursery() as nursery:
                found: list[Any] = []

                async def poll() -> None:
                    found.append(await ask(here, "POST", f"{JOBS}/poll", {"wait_ms": 20_000}))

                nursery.start_soon(poll)
                await until(there, "/v1/stats", lambda stats: stats["values"]["parked_polls"] == 1)
                await leader.stop()
                async with third.http() as other:
                    await ask(other, "POST", f"{JOBS}/messages", {"payload": "after"})

    assert ["after"] == [each["payload"] for each in found[0]["messages"]]


async def _gives_up_a_forwarded_poll(follower: Room, here: httpx.AsyncClient, there: httpx.AsyncClient) -> None:
    """A poll that waits at the leader ends there when its client leaves the follower."""
    stream = await raw.connect(follower.endpoints["http"])
    await stream.send_all(raw.request("POST", f"{JOBS}/poll", b'{"wait_ms": 20000}'))
    await until(there, "/v1/stats", lambda stats: stats["values"]["parked_polls"] == 1)
    await stream.aclose()
    await until(there, "/v1/stats", lambda stats: stats["values"]["parked_polls"] == 0)
    await ask(here, "POST", f"{JOBS}/messages", {"payload": "nobody's"})
    shown = await ask(there, "GET", JOBS)
    assert (1, 0) == (shown["ready"], shown["leased"])
    await ask(here, "POST", f"{JOBS}/purge")


async def test_without_a_leader_a_node_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not now, try again: nothing happened. What it knows itself it still tells, and calls it local."""
    monkeypatch.setattr(forwarding, "_CONFIG", attrs.evolve(forwarding._CONFIG, timeout_s=0.3))
    monkeypatch.setattr(gate, "_CONFIRM_S", 0.05)
    async with house(tmp_path, "http", nodes=3) as rooms:
        leader, [last, other] = await leader_and_followers(rooms)
        async with last.http() as here:
            await ask(here, "POST", f"{JOBS}/messages", {"payload": "x"})
            await until(here, "/api/stats", lambda stats: stats["total_ready"] == 1)
            await other.stop()
            await leader.stop()
            await until(here, "/readyz", lambda answer: not answer["checks"]["leader_known"])
            refused = await here.post(f"{JOBS}/messages", json={"payload": "y"})
            ready = await here.get("/readyz")
            stats = await here.get("/api/stats")
            metrics = await here.get("/metrics")

    assert (503, "NOT_READY", True) == (refused.status_code, refused.json()["name"], refused.json()["definite"])
    assert 503 == ready.status_code
    assert ("local", 1) == (stats.headers["walrq-consistency"], stats.json()["total_ready"])
    assert "walrq_is_leader 0.0" in metrics.text


# --- many queues --------------------------------------------------------------------------------------------
async def test_pages_of_queues_are_sorted_searched_and_cut(tmp_path: Path) -> None:
    """On the server, so that a browser never sees more than a page; a deleted queue is gone from the next one."""
    async with house(tmp_path, "http") as [room], room.http() as client:
        for number in range(6):
            for _ in range(number):
                await ask(client, "POST", f"/v1/queues/q{number}/messages", {"payload": "x"})
        by_name = await ask(client, "GET", "/v1/overview?offset=1&limit=2")
        by_ready = await ask(client, "GET", "/v1/overview?sort=ready&limit=2")
        found = await ask(client, "GET", "/v1/overview?search=Q3")
        await client.delete("/v1/queues/q5")
        after = await until(client, "/v1/overview", lambda overview: overview["matches"] == 4)

    assert (5, ["q2", "q3"]) == (by_name["matches"], [each["name"] for each in by_name["queues"]])
    assert [("q5", 5), ("q4", 4)] == [(each["name"], each["ready"]) for each in by_ready["queues"]]
    assert (1, ["q3"]) == (found["matches"], [each["name"] for each in found["queues"]])
    assert "q5" not in [each["name"] for each in after["queues"]]


async def test_series_are_capped_and_follow_the_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many queues come, so many have series; whoever waited takes the place of one that is deleted."""
    monkeypatch.setattr(census, "METRICS_QUEUES_MAX", 2)
    monkeypatch.setattr(census, "_AGE_S_MIN", 0.0)
    monkeypatch.setattr(census, "_SHARE", 0)
    async with house(tmp_path, "http") as [room], room.http() as client:
        for name in "abcd":
            await ask(client, "POST", f"/v1/queues/{name}/messages", {"payload": "x"})
        before = (await client.get("/metrics")).text
        await client.delete("/v1/queues/a")
        after = (await client.get("/metrics")).text

    def sizes(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith("dtq_queue_size")]

    assert [
        'dtq_queue_size{queue="a"} 1',
        'dtq_queue_size{queue="b"} 1',
        'dtq_queue_size{queue="(others)"} 2',
    ] == sizes(before)
    assert [
        'dtq_queue_size{queue="b"} 1',
        'dtq_queue_size{queue="c"} 1',
        'dtq_queue_size{queue="(others)"} 1',
    ] == sizes(after)
    # Counters go on when the queue that they counted is gone.
    assert "walrq_pushed_total 4.0" in before
    assert "walrq_pushed_total 4.0" in after


async def test_previews_are_beginnings(tmp_path: Path) -> None:
    """A body is cut between two characters, whatever its size, and says how large it is."""
    async with house(tmp_path, "http") as [room], room.http() as client:
        text = "x" + "é" * 600_000
        for body in ({"payload": "short"}, {"payload_base64": "/w=="}):
            await client.post(f"{JOBS}/messages", json=body)
        # Larger than a message may be by default.
        await client.put(JOBS, json={"settings": {"max_message_bytes": 4_000_000}})
        await client.post(f"{JOBS}/messages", json={"payload": text})
        found = (await ask(client, "GET", "/v1/preview?queue=jobs&state=ready&limit=5"))["messages"]

    short, binary, long = found
    assert ("short", 5, 0) == (short["payload"], short["bytes"], short["cut"])
    assert ("/w==", 1) == (binary["payload_base64"], binary["bytes"])
    assert (text[: len(long["payload"])], 1_200_001) == (long["payload"], long["bytes"])
    assert 2_044 < long["cut"] <= 2_048
