"""Every door asks the same lock: doors x credentials x operations, on nodes that run."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trio

import walrq.aio
from tests.doors.house import LOOK_S, Room, house, leader_and_followers
from tests.doors.page import end_of, page
from walrq import api
from walrq.access.book import digest_of
from walrq.api import Grant, Right
from walrq.errors import Forbidden, Unauthenticated, WalrqError
from walrq.protocol.columns import pack
from walrq.protocol.json_requests import request_to_json

pytestmark = pytest.mark.trio

MASTER = "a master token for tests only"
PASSWORD = "correct horse"
SECRETS = {
    "reader": "a reader's token, tests only",
    "worker": "a worker's token, tests only",
    "team": "a team's token, for tests only",
}
TOKENS = (
    api.SetToken("reader", digest_of(SECRETS["reader"]), (Grant(Right.READ),)),
    api.SetToken("worker", digest_of(SECRETS["worker"]), (Grant(Right.WRITE, "jobs"),)),
    api.SetToken("team", digest_of(SECRETS["team"]), (Grant(Right.ADMIN, "team-*"),)),
)
WHO = {**SECRETS, "master": MASTER, "password": PASSWORD, "wrong": "no such token, tests only", "nobody": None}

IN, STRANGER, MAY_NOT = "in", "stranger", "may not"
# Each operation and who may; everybody else with a good token may not, and who has none is a stranger.
REQUESTS: dict[str, tuple[api.Request, frozenset[str]]] = {
    "push": (api.Push("jobs", pack([b"x"])), frozenset({"worker", "master", "password"})),
    "push elsewhere": (api.Push("team-a", pack([b"x"])), frozenset({"team", "master", "password"})),
    "peek": (api.Peek("jobs"), frozenset({"reader", "worker", "master", "password"})),
    "purge": (api.PurgeQueue("team-a"), frozenset({"team", "master", "password"})),
    "list all": (api.ListQueues(), frozenset({"reader", "master", "password"})),
    "list the team's": (api.ListQueues("team-"), frozenset({"reader", "team", "master", "password"})),
    "stats": (api.Stats(), frozenset({"reader", "worker", "team", "master", "password"})),
    "tokens": (api.ListTokens(), frozenset({"master", "password"})),
    "backup": (api.BackupEnd(1), frozenset({"master", "password"})),
}
Asked: TypeAlias = Callable[[api.Request], Awaitable[str]]


def expected(name: str, who: str) -> str:
    """What the table says."""
    if who in ("nobody", "wrong"):
        return STRANGER
    return IN if who in REQUESTS[name][1] else MAY_NOT


@asynccontextmanager
async def by_cbor(room: Room, secret: str | None) -> AsyncIterator[Asked]:
    try:
        async with walrq.aio.connect(room.url("cbor", "walrq"), token=secret, session=False) as client:

            async def ask(request: api.Request) -> str:
                try:
                    await client._ask(request, object)  # type: ignore[type-var, arg-type]  # whatever comes
                except Forbidden:
                    return MAY_NOT
                except WalrqError as error:
                    assert not isinstance(error, Unauthenticated)
                return IN

            yield ask
    except Unauthenticated:
        yield _stranger


async def _stranger(request: api.Request) -> str:
    return STRANGER


@asynccontextmanager
async def by_json(room: Room, secret: str | None) -> AsyncIterator[Asked]:
    async with page(room.url("ws", "ws"), token=secret) as tab:
        if tab.welcome.get("reply") == "failed":
            assert "UNAUTHENTICATED" == tab.welcome["name"]
            yield _stranger
            return

        async def ask(request: api.Request) -> str:
            fields = request_to_json(request)
            found = await tab.ask(fields.pop("op"), **fields)
            return MAY_NOT if found.get("name") == "FORBIDDEN" else IN

        yield ask


@asynccontextmanager
async def by_http(room: Room, secret: str | None) -> AsyncIterator[Asked]:
    async with room.http() as client:

        async def ask(request: api.Request) -> str:
            headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
            found = await client.post("/v1/request", json=request_to_json(request), headers=headers)
            return {401: STRANGER, 403: MAY_NOT}.get(found.status_code, IN)

        yield ask


DOORS = {"cbor": by_cbor, "ws": by_json, "http": by_http}


async def make_tokens(room: Room) -> None:
    """Those of the table."""
    async with walrq.aio.connect(room.url("cbor", "walrq"), token=MASTER) as client:
        for token in TOKENS:
            await client._ask(token, api.Done)
        await client.push("jobs", b"first")
        await client.push("team-a", b"first")


@pytest.mark.parametrize("nodes", [1, 3])
async def test_every_door_lets_in_who_may_and_nobody_else(tmp_path: Path, nodes: int) -> None:
    """On a node alone, and at a follower's doors, which pass on what was let in."""
    settings: dict[str, Any] = {"admin_token": MASTER, "requirepass": PASSWORD}
    found, wanted = {}, {}
    async with house(tmp_path, "ws", "http", nodes=nodes, **settings) as rooms:
        room = rooms[0]
        if nodes > 1:
            leader, [room, *_] = await leader_and_followers(rooms, headers={"authorization": f"Bearer {MASTER}"})
            await make_tokens(leader)
            await until_known(room, "team")
        else:
            await make_tokens(room)
        for door, connect in DOORS.items():
            for who, secret in WHO.items():
                async with connect(room, secret) as ask:
                    for name, (request, _) in REQUESTS.items():
                        found[door, who, name] = await ask(request)
                        wanted[door, who, name] = expected(name, who)

    assert wanted == found


async def until_known(room: Room, who: str) -> None:
    """A follower hears of a token a moment later."""
    async with room.http() as client:
        while (await client.get("/v1/ping", headers={"authorization": f"Bearer {SECRETS[who]}"})).status_code == 401:  # noqa: ASYNC110
            await trio.sleep(LOOK_S)


class Redis:
    """A Redis client that shows what comes as it comes."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def say(self, command: str) -> str:
        """The first line of the answer."""
        words = command.split()
        await self._stream.send_all(
            b"".join([b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word.encode()) for word in words)])
        )
        return bytes(await self._stream.receive_some()).partition(b"\r\n")[0].decode()


@asynccontextmanager
async def redis(room: Room) -> AsyncIterator[Redis]:
    host, _, port = room.endpoints["resp"].rpartition(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        yield Redis(stream)


async def test_redis_clients_log_in_with_a_password_or_a_token(tmp_path: Path) -> None:
    """AUTH with one word and with two, HELLO with AUTH; NOAUTH before, WRONGPASS for wrong words, NOPERM beyond."""
    said: dict[str, list[str]] = {}
    steps = {
        "a stranger": ["LPUSH jobs x", "PING", "HELLO 3", "AUTH wrong", "AUTH worker wrong"],
        "the password": [f"AUTH {PASSWORD.replace(' ', '-')}", "LPUSH jobs x", "DLQ_PURGE jobs", "BGREWRITEAOF"],
        "by its name": [f"AUTH default {PASSWORD.replace(' ', '-')}", "LLEN jobs"],
        "a worker": ["AUTH worker worker-token-tests-only", "LPUSH jobs x", "LPUSH team-a x", "DLQ_PURGE jobs", "SYNC"],
        "under another name": ["AUTH team worker-token-tests-only", "LPUSH jobs x"],
        "in HELLO": ["HELLO 2 AUTH worker worker-token-tests-only", "LLEN jobs", "BGREWRITEAOF"],
    }
    async with house(tmp_path, "resp", requirepass=PASSWORD.replace(" ", "-")) as [room]:
        async with walrq.aio.connect(room.url("cbor", "walrq"), token=PASSWORD.replace(" ", "-")) as client:
            await client._ask(
                api.SetToken("worker", digest_of("worker-token-tests-only"), (Grant(Right.WRITE, "jobs"),)), api.Done
            )
        for who, commands in steps.items():
            async with redis(room) as connection:
                said[who] = [(await connection.say(each)).split(" ")[0] for each in commands]

    assert ["-NOAUTH", "+PONG", "-NOAUTH", "-WRONGPASS", "-WRONGPASS"] == said["a stranger"]
    assert ["+OK", ":1", ":0"] == said["the password"][:3]
    assert said["the password"][3].startswith((":", "+"))
    assert ["+OK", ":1"] == said["by its name"]
    assert ["+OK", ":2", "-NOPERM", "-NOPERM", "-NOPERM"] == said["a worker"]
    assert ["-WRONGPASS", "-NOAUTH"] == said["under another name"]
    assert ":2" == said["in HELLO"][1]
    assert "-NOPERM" == said["in HELLO"][2]


async def test_a_revoked_token_ends_its_connections(tmp_path: Path) -> None:
    """At every door, parked polls too; and the first token locks the node for those who came without one."""
    async with house(tmp_path, "ws", "resp", "http") as [room]:
        async with walrq.aio.connect(room.url("cbor", "walrq"), session=False) as early:
            refused = api.SetToken("worker", digest_of(SECRETS["worker"]), (Grant(Right.WRITE, "jobs"),))
            with pytest.raises(Forbidden, match="the first token"):
                await early._ask(refused, api.Done)
            await early._ask(api.SetToken("root", digest_of(MASTER), (Grant(Right.ADMIN),)), api.Done)
        async with walrq.aio.connect(room.url("cbor", "walrq"), token=MASTER) as master:
            await master._ask(refused, api.Done)
            async with (
                page(room.url("ws", "ws"), token=SECRETS["worker"]) as tab,
                redis(room) as connection,
                room.http() as client,
                trio.open_nursery() as nursery,
            ):
                secret = SECRETS["worker"]
                await tab.send("poll", queue="jobs", wait_ms=60_000)
                headers = {"authorization": f"Bearer {secret}"}
                answers: list[int] = []

                async def poll() -> None:
                    body = {"wait_ms": 60_000}
                    found = await client.post("/v1/queues/jobs/poll", json=body, headers=headers)
                    answers.append(found.status_code)

                nursery.start_soon(poll)
                # Both polls are parked, and the client's own request.
                while (await master.stats())["in_flight"] < 3:  # noqa: ASYNC110
                    await trio.sleep(LOOK_S)
                await master._ask(api.RevokeToken("worker"), api.Done)
                gone = (await end_of(tab.socket)).code
                after = (await client.get("/v1/ping", headers=headers)).status_code
                said = await connection.say("PING")
            with pytest.raises(Unauthenticated):
                async with walrq.aio.connect(room.url("cbor", "walrq"), token=SECRETS["worker"]):
                    pass

    assert 1008 == gone
    assert (401, [200]) == (after, answers)
    assert "+PONG" == said


async def test_a_session_belongs_to_its_token(tmp_path: Path) -> None:
    """Who knows the number of somebody else's session gets no answers out of it."""
    async with house(tmp_path, "ws", admin_token=MASTER) as [room]:
        await make_tokens(room)
        async with page(room.url("ws", "ws"), token=SECRETS["worker"]) as tab:
            session = (await tab.ask("open_session"))["session"]
            polled = await tab.ask("poll", queue="jobs", sequence=1, lowest=1)
        async with page(room.url("ws", "ws"), token=SECRETS["team"], session=session) as tab:
            stolen = await tab.ask("poll", queue="team-a", sequence=1, lowest=1)
        async with page(room.url("ws", "ws"), token=SECRETS["worker"], session=session) as tab:
            again = await tab.ask("poll", queue="jobs", sequence=1, lowest=1)

    assert "FORBIDDEN" == stolen["name"]
    assert polled["messages"][0]["id"] == again["messages"][0]["id"]


async def test_a_token_asks_no_more_than_it_may(tmp_path: Path) -> None:
    """Requests a second, and requests in flight: counted over all of its connections."""
    slow = api.SetToken("slow", digest_of("slow token for tests"), (Grant(Right.WRITE, "jobs"),), requests_per_s=3)
    few = api.SetToken("few", digest_of("few, a token for tests"), (Grant(Right.WRITE, "jobs"),), in_flight=1)
    async with house(tmp_path, "ws", admin_token=MASTER) as [room]:
        async with walrq.aio.connect(room.url("cbor", "walrq"), token=MASTER) as client:
            await client._ask(slow, api.Done)
            await client._ask(few, api.Done)
        async with page(room.url("ws", "ws"), token="slow token for tests") as tab:
            answers = [await tab.ask("push", queue="jobs", payload="x") for _ in range(4)]
        url, token = room.url("ws", "ws"), "few, a token for tests"
        async with page(url, token=token) as one, page(url, token=token) as other:
            parked = await one.send("poll", queue="empty-jobs", wait_ms=60_000)
            refused = await one.answer(parked)
            parked = await one.send("poll", queue="jobs", max_messages=1, wait_ms=60_000)
            await one.answer(parked)
            while (await other.ask("poll", queue="jobs"))["messages"]:
                pass
            await one.send("poll", queue="jobs", wait_ms=60_000)
            while (busy := await other.ask("push", queue="jobs", payload="x"))["reply"] != "failed":
                await one.send("poll", queue="jobs", max_messages=10, wait_ms=60_000)

    assert ["pushed"] * 3 == [each["reply"] for each in answers[:3]]
    assert "requests_per_s" == answers[3]["details"]["limit"]
    assert "FORBIDDEN" == refused["name"]
    assert ("OVERLOADED", "in_flight") == (busy["name"], busy["details"]["limit"])


async def test_the_audit_log_says_who_did_what(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What destroys, what administers, and what was refused; no payload and no secret."""
    with caplog.at_level(logging.INFO, "walrq.audit"):
        async with house(tmp_path, "http", admin_token=MASTER, log_level="info") as [room]:
            await make_tokens(room)
            async with room.http() as client:
                for secret, method, path in (
                    (SECRETS["worker"], "DELETE", "/v1/queues/jobs"),
                    (MASTER, "DELETE", "/v1/queues/jobs"),
                    ("a wrong token, tests only", "GET", "/v1/queues"),
                ):
                    await client.request(method, path, headers={"authorization": f"Bearer {secret}"})
    lines = [record.getMessage() for record in caplog.records if record.name == "walrq.audit"]

    assert any(line.startswith("refused who=worker what=DeleteQueue queue='jobs'") for line in lines)
    assert any(line.startswith("asked who=admin what=DeleteQueue queue='jobs'") for line in lines)
    assert any(line.startswith("refused who=nobody what=login") for line in lines)
    assert any("what=SetToken('team')" in line for line in lines)
    for text in (MASTER, "first", *SECRETS.values(), "a wrong token"):
        assert not any(text in line for line in lines)


async def test_the_dashboard_logs_in_with_a_cookie(tmp_path: Path) -> None:
    """The page's script never sees it, foreign sites cannot send it; each team is shown its own queues."""
    async with house(tmp_path, "http", admin_token=MASTER) as [room]:
        await make_tokens(room)
        async with room.http() as client:
            open_ = [(await client.get(path)).status_code for path in ("/", "/livez", "/readyz", "/web/node.js")]
            shut = [(await client.get(path)).status_code for path in ("/metrics", "/v1/overview", "/api/stats")]
            wrong = await client.post("/v1/login", json={"token": "wrong"})
            login = await client.post("/v1/login", json={"token": SECRETS["team"]})
            overview = (await client.get("/v1/overview")).json()
            metrics = (await client.get("/metrics")).status_code
            purge = "/api/dlq/purge?queue=team-a"
            foreign = await client.post(purge, headers={"origin": "https://evil.example"})
            bare = await client.post(purge, headers={"origin": room.url()})
            own = await client.post(purge, headers={"origin": room.url(), "walrq-page": "1"})
            others = await client.post("/api/dlq/purge?queue=jobs")
            await client.post("/v1/logout")
            out = (await client.get("/v1/overview")).status_code
            basic = await client.get("/v1/queues", auth=("admin", MASTER))

    cookie = login.headers["set-cookie"]
    assert ([200] * 4, [401] * 3, 401) == (open_, shut, wrong.status_code)
    assert "HttpOnly; SameSite=Strict" in cookie
    assert SECRETS["team"] not in cookie
    assert (["team-a"], 1) == ([each["name"] for each in overview["queues"]], overview["totals"]["queues"])
    assert (403, 403, 403, 200, 403) == (
        metrics,
        foreign.status_code,
        bare.status_code,
        own.status_code,
        others.status_code,
    )
    assert (401, 200) == (out, basic.status_code)


HTTP = (
    b"POST /v1/queues/jobs/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 400\r\n\r\n"
)
RESP = b"*3\r\n$5\r\nLPUSH\r\n$4\r\njobs\r\n$1\r\nx\r\n"
INLINE = b"\r\nLPUSH jobs x\r\n"


@pytest.mark.parametrize(
    ("door", "bytes_"),
    [
        ("resp", HTTP + RESP + INLINE),
        ("resp", b"GET / HTTP/1.1\r\n" + INLINE),
        ("resp", b"Host: localhost\r\n" + INLINE + RESP),
        ("resp", b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n" + INLINE),
        ("cbor", HTTP + RESP + INLINE),
        ("cbor", RESP + INLINE),
        ("ws", RESP + INLINE),
        ("ws", HTTP + INLINE),
        ("http", RESP + INLINE),
        ("http", b"\x00\x00\x00\x05hello" + RESP),
    ],
    ids=[
        "http-resp",
        "get-resp",
        "host-resp",
        "options-resp",
        "http-cbor",
        "resp-cbor",
        "resp-ws",
        "http-ws",
        "resp-http",
        "cbor-http",
    ],
)
async def test_bytes_of_another_protocol_execute_nothing(tmp_path: Path, door: str, bytes_: bytes) -> None:
    """A page can make a browser send a form to any port: commands in its body stay words."""
    async with house(tmp_path, "ws", "resp", "http") as [room]:
        host, _, port = room.endpoints[door].rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            try:
                await stream.send_all(bytes_)
                await stream.send_eof()
                while await stream.receive_some():
                    pass
            except trio.BrokenResourceError:
                pass
        async with walrq.aio.connect(room.url("cbor", "walrq")) as client:
            queues = [each.name for each in await client.list_queues()]

    assert [] == queues
