"""A tab of a headless Chromium, steered by its DevTools protocol: what a reader sees and does."""

from __future__ import annotations

import base64
import json
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import trio
from trio_websocket import WebSocketConnection, open_websocket_url

from tests.browser.program import command

_MESSAGE_BYTES_MAX = 64 << 20
_LOOK_S = 0.02


class Tab:
    """One page. `said` is what its console and its errors said."""

    def __init__(self, socket: WebSocketConnection) -> None:
        self._socket = socket
        self._number = 0
        self._waiting: dict[int, tuple[trio.Event, dict[str, Any]]] = {}
        self.said: list[str] = []

    async def listen(self) -> None:
        """Take what the browser says, until cancelled."""
        while True:
            message = json.loads(await self._socket.get_message())
            if "id" in message:
                event, slot = self._waiting.pop(message["id"])
                slot.update(message)
                event.set()
            elif message["method"] == "Runtime.exceptionThrown":
                details = message["params"]["exceptionDetails"]
                self.said.append(str(details.get("exception", {}).get("description", details["text"])))
            elif message["method"] == "Log.entryAdded":
                entry = message["params"]["entry"]
                self.said.append(f"{entry['level']}: {entry['text']}")

    async def call(self, method: str, **parameters: Any) -> Any:
        """One command of the protocol, and its result."""
        self._number += 1
        event, slot = trio.Event(), {}  # type: tuple[trio.Event, dict[str, Any]]
        self._waiting[self._number] = (event, slot)
        await self._socket.send_message(json.dumps({"id": self._number, "method": method, "params": parameters}))
        await event.wait()
        assert "error" not in slot, (method, slot["error"])
        return slot["result"]

    async def run(self, code: str) -> Any:
        """What an expression comes to; a promise is awaited."""
        found = await self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, code: str) -> Any:
        """The value of an expression, once it is true."""
        while not (found := await self.run(code)):  # noqa: ASYNC110 - a page rings no bell
            await trio.sleep(_LOOK_S)
        return found

    async def go(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open a page."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.call("Emulation.setEmulatedMedia", features=features)
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def press(self, key: str, text: str = "") -> None:
        """A key, as a reader presses it."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
        rest: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0].upper()))}
        typed = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text or typed, **rest)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **rest)

    async def picture(self, path: Path, *, whole: bool = False) -> None:
        """A screenshot."""
        found = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        await trio.Path(path).write_bytes(base64.b64decode(found["data"]))


@asynccontextmanager
async def browser() -> AsyncIterator[Tab]:
    """A browser with one tab, ended when the block ends."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        profile = Path(folder)
        process = await trio.lowlevel.open_process(
            command(profile, "--hide-scrollbars", "--remote-debugging-port=0", "about:blank"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            url = await _tab_of(trio.Path(profile / "DevToolsActivePort"))
            async with open_websocket_url(url, max_message_size=_MESSAGE_BYTES_MAX) as socket:
                tab = Tab(socket)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(tab.listen)
                    for domain in ("Page", "Runtime", "Log"):
                        await tab.call(f"{domain}.enable")
                    yield tab
                    nursery.cancel_scope.cancel()
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()


async def _tab_of(file: trio.Path) -> str:
    """Where the browser's first tab listens, once it says so."""
    said = ""
    while not said:
        await trio.sleep(_LOOK_S)
        if await file.exists():
            said = (await file.read_text()).strip()
    port = int(said.split()[0])
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        while True:
            pages = [each for each in (await client.get("/json/list")).json() if each["type"] == "page"]
            if pages:
                return str(pages[0]["webSocketDebuggerUrl"])
            await trio.sleep(_LOOK_S)
