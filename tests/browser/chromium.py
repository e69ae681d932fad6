"""A real browser, started once, that runs what a test tells it.

Chromium (headless) loads one page from a small server of the test's. The page asks that server for a function's body,
runs it with walrq.js at hand, reports what it returned or threw, and asks again: no protocol of a browser's, no driver.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.browser.program import command

ROOT = Path(__file__).resolve().parent.parent.parent
WEB = ROOT / "walrq" / "web"
EXAMPLE = ROOT / "docs" / "examples" / "page.html"
PATIENCE_S = 120.0

_PAGE = b"""<!doctype html><meta charset="utf-8"><title>walrq under test</title>
<script type="module">
import * as walrq from "/walrq.js";
const Body = Object.getPrototypeOf(async () => undefined).constructor;
const loose = [];
addEventListener("unhandledrejection", (event) => loose.push(String(event.reason)));
addEventListener("error", (event) => loose.push(String(event.message)));
for (;;) {
  const response = await fetch("/next");
  if (response.status !== 200) break;
  const { code, args } = await response.json();
  const report = { loose };
  try {
    report.value = (await new Body("walrq", "args", code)(walrq, args)) ?? null;
  } catch (error) {
    const { name, message, code, reason, definite, retry, details, stack } = error;
    report.error = { name, message, code, reason, definite, retry, details, stack };
  }
  await fetch("/done", { method: "POST", body: JSON.stringify(report) });
}
</script>
"""


class ScriptError(Exception):
    """What the script threw: `name`, `message`, and of a WalrqError all the rest."""

    def __init__(self, thrown: dict[str, Any]) -> None:
        super().__init__(f"{thrown.get('name')}: {thrown.get('message')}\n{thrown.get('stack')}")
        self.thrown = thrown


class Browser:
    """See the module. Use as a context manager; `run` from one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """`folder`: for the browser's profile and log."""
        self._folder = folder
        self._jobs: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reports: queue.Queue[dict[str, Any]] = queue.Queue()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def origin(self) -> str:
        """Where its page is from."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        jobs, reports = self._jobs, self._reports

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path == "/":
                    self._answer(200, "text/html", _PAGE)
                elif self.path in ("/walrq.js", "/web/walrq.js"):
                    self._answer(200, "text/javascript", (WEB / "walrq.js").read_bytes())
                elif self.path.startswith("/page.html?"):
                    self._answer(200, "text/html", EXAMPLE.read_bytes())
                elif self.path == "/next":
                    job = jobs.get()
                    # The browser may be gone when the last word is said.
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                        self._answer(200 if job else 410, "application/json", json.dumps(job).encode())
                else:
                    self._answer(404, "text/plain", b"")

            def do_POST(self) -> None:
                reports.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self._answer(200, "text/plain", b"")

            def _answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: a test's output is the test's."""

        return Handler

    def __enter__(self) -> Browser:
        self._thread.start()
        with (self._folder / "chromium.log").open("wb") as log:
            self._process = subprocess.Popen(
                command(
                    self._folder / "profile",
                    "--disable-background-timer-throttling",
                    "--disable-renderer-backgrounding",
                    f"{self.origin}/",
                ),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._jobs.put(None)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def start(self, code: str, **args: Any) -> None:
        """Begin to run the body of an async function (walrq, args); `result` waits for it."""
        self._jobs.put({"code": code, "args": args})

    def result(self) -> Any:
        """What it returned.

        Raises:
            ScriptError: what it threw, or what nobody caught.
        """
        try:
            report = self._reports.get(timeout=PATIENCE_S)
        except queue.Empty:
            log = (self._folder / "chromium.log").read_text(errors="replace")
            raise AssertionError(f"the page did not answer; the browser said:\n{log[-4000:]}") from None
        if "error" in report:
            raise ScriptError(report["error"])
        assert [] == report["loose"], f"nobody caught: {report['loose']}"
        return report["value"]

    def run(self, code: str, **args: Any) -> Any:
        """Run it, and what it returned."""
        self.start(code, **args)
        return self.result()
