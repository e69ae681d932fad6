"""Pages at a node that does not lead: what they ask is carried to the leader, sessions and waits included."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.doors.house import Room, house, leader_and_followers
from tests.doors.page import Page, native, page
from walrq import api
from walrq.errors import Code
from walrq.protocol.columns import pack

pytestmark = pytest.mark.trio


def ws(room: Room) -> str:
    """Where its WebSocket door is."""
    return room.url("ws", "ws")


@asynccontextmanager
async def three(folder: Path) -> AsyncIterator[tuple[Room, list[Room], list[Room]]]:
    """The leader, the followers, and all of them."""
    async with house(folder, "ws", "http", nodes=3) as rooms:
        leader, followers = await leader_and_followers(rooms)
        yield leader, followers, rooms


async def counts(tab: Page, queue: str = "jobs") -> tuple[int, int]:
    """Ready and leased messages."""
    shown = await tab.ask("show_queue", queue=queue)
    return shown["ready"], shown["leased"]


async def test_a_follower_serves_pages_as_the_leader_does(tmp_path: Path) -> None:
    """Pushed here, polled there, acknowledged here; and errors are the same."""
    async with three(tmp_path) as (leader, [first, second], _), page(ws(first)) as here, page(ws(second)) as there:
        pushed = await here.ask("push", queue="jobs", payload="x")
        polled = await there.ask("poll", queue="jobs")
        [message] = polled["messages"]
        acked = await here.ask("ack", queue="jobs", receipt_handle=message["receipt_handle"])
        refused = await there.ask("show_queue", queue="jbos")
        status = await there.ask("cluster_status")
        welcome = here.welcome

    assert (pushed["ids"], [0]) == ([message["id"]], acked["codes"])
    assert ("QUEUE_NOT_FOUND", "jobs") == (refused["name"], refused["details"]["nearest"])
    assert (second.name, leader.name) == (status["node"], status["leader"])
    # Where to go is told as addresses of this kind of door.
    assert {leader.endpoints["ws"], first.endpoints["ws"], second.endpoints["ws"]} == {
        each["endpoint"] for each in welcome["nodes"]
    }
    assert leader.endpoints["ws"] == welcome["leader"]


async def test_a_poll_waits_at_a_follower_and_a_push_elsewhere_wakes_it(tmp_path: Path) -> None:
    """And one whose page went away takes nothing."""
    async with three(tmp_path) as (leader, [first, second], _), page(ws(leader)) as there:
        async with page(ws(second)) as gone:
            await gone.send("poll", queue="jobs", wait_ms=60_000, visibility_ms=3_600_000)
            await gone.ask("ping")
        async with page(ws(first)) as here:
            parked = await here.send("poll", queue="jobs", wait_ms=60_000)
            await here.ask("show_queue", queue="jobs")
            await there.ask("push", queue="jobs", payload="x")
            answer = await here.answer(parked)
            found = await counts(there)

    assert ["x"] == [each["payload"] for each in answer["messages"]]
    assert (0, 1) == found


async def test_a_session_goes_on_at_another_node(tmp_path: Path) -> None:
    """Asked at one follower, asked again at the other and at the leader under the same number: it happened once."""
    ids = []
    async with three(tmp_path) as (leader, [first, second], _):
        async with page(ws(first)) as tab:
            session = (await tab.ask("open_session"))["session"]
            ids.append((await tab.ask("push", queue="jobs", payload="x", sequence=1, lowest=1))["ids"])
        for room in (second, leader):
            async with page(ws(room), session=session) as tab:
                ids.append((await tab.ask("push", queue="jobs", payload="x", sequence=1, lowest=1))["ids"])
                found = await counts(tab)

    assert 3 * ids[:1] == ids
    assert (1, 0) == found


async def test_a_poll_of_a_session_is_forgotten_through_a_follower(tmp_path: Path) -> None:
    """The waiter that the leader parked is the page's, wherever the page is."""
    async with three(tmp_path) as (_, [first, _], _), page(ws(first)) as tab:
        await tab.ask("open_session")
        parked = await tab.send("poll", queue="jobs", wait_ms=60_000, sequence=1, lowest=1)
        await tab.ask("forget", forget=1, sequence=2, lowest=1)
        forgotten = await tab.answer(parked)
        await tab.ask("push", queue="jobs", payload="x", sequence=3, lowest=3)
        found = await counts(tab)

    assert "OUTCOME_UNKNOWN" == forgotten["name"]
    assert (1, 0) == found


async def test_pages_at_a_follower_survive_the_leader(tmp_path: Path) -> None:
    """Their requests are answered by whoever leads next; what went wrong meanwhile may be asked again."""
    async with three(tmp_path) as (leader, [first, _], _), page(ws(first)) as tab:
        session = (await tab.ask("open_session"))["session"]
        before = await tab.ask("push", queue="jobs", payload="one", sequence=1, lowest=1)
        parked = await tab.send("poll", queue="none", wait_ms=60_000, sequence=2, lowest=2)
        sessionless = await tab.send("poll", queue="none", wait_ms=60_000)
        await tab.ask("ping")
        await leader.stop()
        ended = await tab.answer(parked)
        # The same number again and again, until somebody leads.
        after = await tab.ask_until("push", queue="jobs", payload="two", sequence=3, lowest=3)
        again = await tab.ask_until("push", queue="jobs", payload="two", sequence=3, lowest=3)
        await tab.ask_until("push", queue="none", payload="three")
        waited = await tab.answer(sessionless)
        found = await counts(tab)

    assert ended.get("retry") or [] == ended["messages"], ended
    assert after["ids"] == again["ids"] != before["ids"]
    assert (2, 0) == found
    assert session
    # It had no session, and yet it was carried on.
    assert ["three"] == [each["payload"] for each in waited["messages"]]


async def test_a_native_client_at_a_follower_is_sent_to_the_leader(tmp_path: Path) -> None:
    """It follows by itself, as on the native port."""
    async with three(tmp_path) as (leader, [first, _], _), native(ws(first)) as client:
        refused = await client.ask(api.Push("jobs", pack([b"x"])))
        assert client.protocol.welcome is not None
        known = {each.node: each.endpoint for each in client.protocol.welcome.nodes}
    assert isinstance(refused, api.Failed)

    assert Code.NOT_LEADER == refused.code
    assert leader.endpoints["ws"] == known[refused.details["leader_node"]]


async def test_a_stopping_follower_lets_its_pages_go(tmp_path: Path) -> None:
    """Polls that it had carried on end with it, and take nothing with them."""
    async with three(tmp_path) as (leader, [first, _], _), page(ws(leader)) as other:
        async with page(ws(first)) as tab:
            await tab.ask("open_session")
            parked = [
                await tab.send("poll", queue="jobs", wait_ms=60_000),
                await tab.send("poll", queue="jobs", wait_ms=60_000, sequence=1, lowest=1),
            ]
            await tab.ask("ping")
            with trio.fail_after(4):
                await first.stop()
            answers = [await tab.answer(each) for each in parked]
        await other.ask("push", queue="jobs", payload="x")
        found = await counts(other)

    assert [[], []] == [each.get("messages", []) for each in answers]
    assert (1, 0) == found
