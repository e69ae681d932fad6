"""TLS on every door of a node, with an authority made for the test."""

from __future__ import annotations

import ssl
from functools import partial
from pathlib import Path

import attrs
import httpx
import pytest
import trio
import trustme

import walrq
import walrq.aio
from tests.doors.house import Room, house, leader_and_followers
from walrq.client.failures import ServerUnreachable
from walrq.errors import ConfigError
from walrq.locks.tls import DoorTls

pytestmark = pytest.mark.trio


@attrs.frozen
class Papers:
    """Files of one authority: its own certificate, a node's, and a client's."""

    ca: str
    cert: str
    key: str
    client: str
    client_key: str

    def trusting(self) -> ssl.SSLContext:
        """What a program that knows the authority connects with."""
        return ssl.create_default_context(cafile=self.ca)


def make_papers(folder: Path, name: str = "ours") -> Papers:
    """A new authority's."""
    authority = trustme.CA()
    node, client = authority.issue_cert("127.0.0.1", "localhost"), authority.issue_cert("client@example.org")
    paths = [str(folder / f"{name}-{each}.pem") for each in ("ca", "cert", "key", "client", "client-key")]
    authority.cert_pem.write_to_path(paths[0])
    node.cert_chain_pems[0].write_to_path(paths[1])
    node.private_key_pem.write_to_path(paths[2])
    client.cert_chain_pems[0].write_to_path(paths[3])
    client.private_key_pem.write_to_path(paths[4])
    return Papers(*paths)


async def talk(room: Room, door: str, context: ssl.SSLContext, said: bytes) -> bytes:
    """What a door answers to some bytes, over TLS."""
    host, _, port = room.endpoints[door].rpartition(":")
    async with await trio.open_tcp_stream(host, int(port)) as plain:
        stream = trio.SSLStream(plain, context, server_hostname=host, https_compatible=True)
        await stream.send_all(said)
        return bytes(await stream.receive_some())


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: walrq.json.v1\r\n\r\n"
)


async def test_every_door_speaks_tls_and_nothing_else(tmp_path: Path) -> None:
    """Clients of both colours by walrqs://, Redis clients, WebSockets, HTTP; who speaks in the clear is not heard."""
    papers = make_papers(tmp_path)
    async with house(tmp_path, "ws", "resp", "http", tls_cert=papers.cert, tls_key=papers.key) as [room]:
        url = f"{room.url('cbor', 'walrqs')}/?tls_ca={papers.ca}"
        async with walrq.aio.connect(url) as client:
            await client.push("jobs", b"x" * 300_000)
            [message] = await client.poll("jobs")

        def blocking() -> tuple[int, int]:
            with walrq.connect(url) as client:
                client.push_batch("jobs", [b"y" * 100_000] * 10)
                taken = sum(len(each) for each in client.poll_batch("jobs", 10))
                return taken, sum(each.ready for each in client.list_queues())

        counts = await trio.to_thread.run_sync(blocking)
        trusting = papers.trusting()
        redis = await talk(room, "resp", trusting, b"*1\r\n$4\r\nPING\r\n")
        socket = await talk(room, "ws", trusting, UPGRADE)
        page = await talk(room, "http", trusting, b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        clear = {}
        for door in ("cbor", "ws", "resp", "http"):
            host, _, port = room.endpoints[door].rpartition(":")
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                await stream.send_all(b"PING\r\nLPUSH jobs x\r\nGET / HTTP/1.1\r\n\r\n")
                clear[door] = b""
                try:
                    while data := await stream.receive_some():
                        clear[door] += bytes(data)
                except trio.BrokenResourceError:
                    pass
        with pytest.raises(ServerUnreachable, match="cannot prove who it is"):
            async with walrq.aio.connect(room.url("cbor", "walrqs")):
                pass

    assert 300_000 == len(message.payload)
    assert (10, 0) == counts
    assert b"+PONG\r\n" == redis
    assert socket.startswith(b"HTTP/1.1 101")
    assert page.startswith(b"HTTP/1.1 200")
    for said in clear.values():
        assert b"PONG" not in said
        assert b"HTTP" not in said


async def test_clients_may_have_to_show_a_certificate(tmp_path: Path) -> None:
    """Of the authority that the node was told; nobody else gets to say a word."""
    papers, foreign = make_papers(tmp_path), make_papers(tmp_path, "foreign")
    settings = {"tls_cert": papers.cert, "tls_key": papers.key, "tls_client_ca": papers.ca}
    async with house(tmp_path, **settings) as [room]:
        url = room.url("cbor", "walrqs")
        connect = partial(walrq.aio.connect, url, tls_ca=papers.ca)
        async with connect(tls_cert=papers.client, tls_key=papers.client_key) as client:
            await client.ping()
        for more in ({}, {"tls_cert": foreign.client, "tls_key": foreign.client_key}):
            with pytest.raises(ServerUnreachable):
                async with connect(**more):
                    pass


async def test_a_cluster_forwards_over_tls_with_its_own_credential(tmp_path: Path) -> None:
    """A follower's HTTP door carries what its client may ask to the leader's native one."""
    papers = make_papers(tmp_path)
    settings = {"tls_cert": papers.cert, "tls_key": papers.key, "tls_ca": papers.ca, "tls_client_ca": papers.ca}
    settings["admin_token"] = "a master token for tests only"
    context = papers.trusting()
    context.load_cert_chain(papers.client, papers.client_key)
    headers = {"authorization": f"Bearer {settings['admin_token']}"}

    def connect(room: Room) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=room.url("http", "https"), verify=context, headers=headers)

    async with house(tmp_path, "http", nodes=3, **settings) as rooms:
        _, [follower, *_] = await leader_and_followers(rooms, connect)
        async with connect(follower) as client:
            pushed = await client.post("/v1/queues/jobs/messages", json={"payload": "hello"})
            polled = await client.post("/v1/queues/jobs/poll", json={})

    assert 200 == pushed.status_code
    assert ["hello"] == [each["payload"] for each in polled.json()["messages"]]


async def test_a_renewed_certificate_is_shown_after_a_reload(tmp_path: Path) -> None:
    """And a file with a mistake changes nothing."""
    papers = make_papers(tmp_path)
    tls = DoorTls.load(papers.cert, papers.key)
    first = tls.context
    renewed = make_papers(tmp_path)
    assert renewed.cert == papers.cert
    tls.reload()
    second = tls.context
    await trio.Path(papers.cert).write_text("no certificate")
    with pytest.raises(ConfigError, match="tls_cert"):
        tls.reload()

    assert first is not second
    assert second is tls.context
