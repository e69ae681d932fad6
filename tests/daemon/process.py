"""A daemon in a process of its own, and a blocking client, for what only a real process shows: signals,
descriptors.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from walrq import api
from walrq.protocol.client import Answer, ClientConnection, Closed
from walrq.protocol.handshake import Hello

READY_S_MAX = 180
STOP_S_MAX = 180

_SERVE = """
import json, os, sys
from walrq.daemon.config import Config
from walrq.daemon.supervisor import serve
{prelude}
sys.exit(serve(Config.load(json.loads(sys.argv[1]), os.environ)))
"""


class Daemon:
    """`serve` in a child process. Leaving the block kills the child if it still runs."""

    def __init__(self, data_dir: Path, *, prelude: str = "", **flags: Any) -> None:
        """`prelude`: Python that runs in the child first (to plant a fault)."""
        settings = {"data_dir": str(data_dir), "listen": "127.0.0.1:0", "log_format": "json", **flags}
        self.log = data_dir.with_name(data_dir.name + ".log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _SERVE.format(prelude=prelude), json.dumps(settings)],
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=Path(__file__).resolve().parent.parent.parent,
                env=os.environ,
            )

    def __enter__(self) -> Daemon:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(STOP_S_MAX)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def wait_ready(self) -> dict[str, Any]:
        """The readiness line. Fails when the child ends before."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"ended before it was ready: {self.log.read_text()}"
        ready: dict[str, Any] = json.loads(line)
        self.port = int(ready["endpoints"]["cbor"].rpartition(":")[2])
        return ready

    def wait(self) -> int:
        """Its exit status."""
        return self.process.wait(STOP_S_MAX)

    def lines(self) -> list[dict[str, Any]]:
        """What it logged."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def fatal(self) -> list[str]:
        """Its last words."""
        return [line["text"] for line in self.lines() if line["level"] == "critical"]

    def connect(self) -> BlockingClient:
        """A client that has been welcomed."""
        return BlockingClient(self.port)


class BlockingClient:
    """One connection on a blocking socket."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=READY_S_MAX)
        self.protocol = ClientConnection(Hello(client="test"))
        self.events: list[Any] = []
        self.flush()
        self.welcome = self.next_event()

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def flush(self) -> None:
        """Send what the protocol has to say."""
        self.socket.sendall(self.protocol.take_output())

    def next_event(self) -> Any:
        """Wait for something to come."""
        while not self.events:
            data = self.socket.recv(1 << 20)
            self.events += self.protocol.receive(data) if data else self.protocol.receive_eof()
        return self.events.pop(0)

    def send(self, request: api.Request) -> int:
        """Send without waiting."""
        number = self.protocol.request(request)
        self.flush()
        return number

    def ask(self, request: api.Request) -> Any:
        """Send and wait for the reply."""
        number = self.send(request)
        while True:
            event = self.next_event()
            if isinstance(event, Closed):
                raise AssertionError(f"closed: {event}")
            if isinstance(event, Answer) and event.id == number:
                return event.reply
