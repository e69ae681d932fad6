"""The dashboard in a real browser against a real node: it shows what is there, does what it says, runs nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.browser.devtools import Tab, browser
from tests.doors.house import ask, house
from tests.requirements import require
from walrq.doors import http_app

require("chromium")

pytestmark = pytest.mark.trio


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events come more often than readers need them."""
    monkeypatch.setattr(http_app, "_EVENT_S", 0.05)


MARKUP = "<img src=x onerror=\"document.title='pwned'\"><script>document.title='pwned'</script>"


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[Tab, httpx.AsyncClient, str]]:
    """A tab, a client of the node, and the node's address; there is a queue with markup in all its texts."""
    async with house(folder, "http") as [room], room.http() as client, browser() as tab:
        for number in range(3):
            await push(client, MARKUP, MARKUP + str(number))
        [first, *_] = (await op(client, "poll", queue=MARKUP, max_messages=1))["messages"]
        await op(
            client,
            "reject",
            queue=MARKUP,
            receipt_handle=first["receipt_handle"],
            error_type=MARKUP[:200],
            error_text=MARKUP,
        )
        yield tab, client, room.url()


async def op(client: httpx.AsyncClient, name: str, **fields: Any) -> Any:
    """One operation, for queues of any name."""
    return await ask(client, "POST", "/v1/request", {"op": name, **fields})


async def push(client: httpx.AsyncClient, queue: str, payload: str) -> None:
    """One message."""
    await op(client, "push", queue=queue, payload=payload)


def cell(queue: str, label: str) -> str:
    """The script that reads a number of a queue's row."""
    return (
        "[...document.querySelectorAll('#rows tr')].find(row => row.querySelector('button').textContent === "
        f"{queue!r})?.querySelector('[data-label=\"{label}\"]').textContent"
    )


async def test_the_dashboard_shows_does_and_runs_nothing_else(tmp_path: Path) -> None:
    """Live numbers without a reload; markup stays text; requeue after a preview and a yes; all of it by keyboard."""
    async with opened(tmp_path) as (tab, client, url):
        await tab.go(url)
        await tab.until("document.getElementById('link').textContent === 'live'")
        await tab.run("window.mark = 'not reloaded'")
        await push(client, "other", "x" * 3000)
        await tab.until(f"{cell('other', 'Ready')} === '1'")
        totals = "[...document.querySelectorAll('#totals .value')].map(each => each.textContent).join()"
        await tab.until(f"{totals} === '2,3,0,0,1'")
        title = await tab.run("document.title")

        assert "walrq · Distributed Task Queue Dashboard" == title

        # By keyboard: the row's button opens the queue at its dead letters.
        await tab.run("document.querySelector('#rows button').focus()")
        await tab.press("Enter")
        await tab.until("document.querySelectorAll('#panel .message').length === 1")
        shown = await tab.run("document.getElementById('panel').textContent")
        assert "rejected" in shown and MARKUP in shown
        assert MARKUP == await tab.run("document.getElementById('detail-name').textContent")

        await tab.run("document.getElementById('requeue-all').click()")
        await tab.until("document.getElementById('confirm').open")
        assert "Requeue 1" == await tab.run("document.getElementById('confirm-yes').textContent")
        # Whoever presses Enter without reading has cancelled.
        assert "Cancel" == await tab.run("document.activeElement.textContent")
        await tab.press("Enter")
        await tab.until("!document.getElementById('confirm').open")
        assert 1 == (await op(client, "show_queue", queue=MARKUP))["dead"]
        await tab.run("document.getElementById('requeue-all').click()")
        await tab.until("document.getElementById('confirm').open")
        await tab.run("document.getElementById('confirm-yes').click()")
        await tab.until("document.getElementById('notice').textContent === 'Requeued: 1'")
        counts = await op(client, "show_queue", queue=MARKUP)
        assert (0, 3) == (counts["dead"], counts["ready"])

        await tab.run("document.getElementById('pause').click()")
        await tab.until("document.getElementById('pause').textContent === 'Resume'")
        assert (await op(client, "show_queue", queue=MARKUP))["settings"]["paused"]
        await tab.press("Escape")
        await tab.until("!document.getElementById('detail').open")

        assert "not reloaded" == await tab.run("window.mark")
        await _chooses_filters_and_purges(tab, client, url)
        assert title == await tab.run("document.title")
        assert [] == tab.said


async def _chooses_filters_and_purges(tab: Tab, client: httpx.AsyncClient, url: str) -> None:
    """Selected ones only, then those that match; what is removed was counted before."""
    for number in range(4):
        await push(client, "jobs", str(number))
    for message in (await op(client, "poll", queue="jobs"))["messages"]:
        kind = "Odd" if message["payload"] == "3" else "Bad"
        await op(client, "reject", queue="jobs", receipt_handle=message["receipt_handle"], error_type=kind)
    await tab.go(url)
    await tab.until(f"{cell('jobs', 'Dead')} === '4'")
    await tab.run("[...document.querySelectorAll('#rows button')].find(b => b.textContent === 'jobs').click()")
    await tab.until("document.querySelectorAll('#panel .message').length === 4")
    await tab.run("document.querySelector('#panel input').click()")
    await tab.run("document.getElementById('purge-some').click()")
    await tab.until("document.getElementById('confirm').open")
    assert "Purge 1" == await tab.run("document.getElementById('confirm-yes').textContent")
    await tab.run("document.getElementById('confirm-yes').click()")
    await tab.until("document.querySelectorAll('#panel .message').length === 3")
    await tab.run("document.getElementById('filter-type').value = 'Bad'")
    await tab.run("document.getElementById('filter').requestSubmit()")
    await tab.until("document.querySelectorAll('#panel .message').length === 2")
    await tab.run("document.getElementById('purge-all').click()")
    await tab.until("document.getElementById('confirm').open")
    await tab.run("document.getElementById('confirm-yes').click()")
    await tab.until("document.getElementById('notice').textContent === 'Removed: 2'")
    left = await ask(client, "GET", "/v1/queues/jobs/dead")
    assert ["3"] == [each["payload"] for each in left["messages"]]


async def test_nothing_sticks_out_a_lost_node_is_told_and_a_locked_one_asks(tmp_path: Path) -> None:
    """At three widths, with names and texts longer than any screen; what was shown stays when the node has gone; a node
    that asks who its reader is shows nothing before it knows.
    """
    long = "x" * 255
    async with house(tmp_path, "http") as [room], room.http() as client, browser() as tab:
        await push(client, long, "y" * 5000)
        for width in (390, 820, 1400):
            await tab.go(room.url(), width=width, dark=width == 820)
            await tab.until(f"{cell(long, 'Ready')} === '1'")
            wide = await tab.run("document.documentElement.scrollWidth")
            await tab.run("document.querySelector('#rows button').click()")
            await tab.until("document.querySelectorAll('#panel .message').length === 1")
            dialog = await tab.run("(d => d.scrollWidth - d.clientWidth)(document.getElementById('detail'))")
            text = await tab.run("document.querySelector('#panel pre').textContent")

            assert (width, 0) == (wide, dialog)
            assert text.endswith("… the first 2.0 KiB of 4.9 KiB")
        await room.stop()
        await tab.until("document.getElementById('link').textContent === 'reconnecting'")
        assert "1" == await tab.run("document.querySelector('#totals .value').textContent")
        folder = tmp_path / "locked"
        folder.mkdir()
        await _logs_in(tab, folder)


async def _logs_in(tab: Tab, folder: Path) -> None:
    """A wrong token is told so, the right one opens the page and is kept from its scripts."""
    token = "a token of this test, long enough"
    async with house(folder, "http", admin_token=token) as [room]:
        await tab.go(room.url())
        await tab.until("document.getElementById('login').open")
        shown = await tab.run("document.querySelector('#totals .value').textContent")
        for given, state in (
            ("no such token", "/not know/.test(document.getElementById('login-why').textContent)"),
            (token, "true"),
        ):
            await tab.run(f"document.getElementById('token').value = {given!r}")
            await tab.run("document.getElementById('token').focus()")
            await tab.press("Enter")
            await tab.until(state)
        await tab.until("document.getElementById('link').textContent === 'live'")
        kept = await tab.run("document.cookie + JSON.stringify({...sessionStorage})")

    assert "–" == shown
    assert "{}" == kept
