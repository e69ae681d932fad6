"""Webhook ingest at a fixed rate: answer at once, process at the pace that the other side allows.

Shows
    a door that answers 202 only when the event is on the disk, so that the sender may forget it
    dedup_id: a sender that repeats an event (they all do) does not cause it to be processed twice
    one consumer that forwards RATE events a second, however large the burst

Run it with a node at WALRQ_SERVER:  python webhook_ingest.py
It plays the sender, too: a burst of events, each of them sent twice.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import walrq

QUEUE = "webhooks"
RATE = 40.0  # events a second
EVENTS = 20


class Door(BaseHTTPRequestHandler):
    """POST an event with its id; the answer comes when it is durable."""

    queue: walrq.Client

    def do_POST(self) -> None:
        """Push what came and say so."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.queue.push(QUEUE, body, dedup_id=self.headers["X-Event-Id"])
        self.send_response(202)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


def send_burst(port: int) -> None:
    """What the sender does: every event, and every event again because the first answer might have been lost."""
    for number in [*range(EVENTS), *range(EVENTS)]:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("POST", "/", json.dumps({"event": number}), {"X-Event-Id": f"event-{number}"})
        assert connection.getresponse().status == 202
        connection.close()


def forward(queue: walrq.Client, limit: int) -> list[tuple[float, int]]:
    """Process `limit` events, no two of them closer than 1 / RATE seconds."""
    done: list[tuple[float, int]] = []
    next_at = 0.0
    for message in queue.consume(QUEUE, max_messages=1):
        while (now := time.monotonic()) < next_at:
            time.sleep(next_at - now)
        next_at = now + 1 / RATE
        done.append((now, message.json()["event"]))
        queue.ack(message)
        if len(done) == limit:
            break
    return done


def main() -> None:
    """Door, sender and consumer in one process; in life each is its own."""
    with walrq.connect() as queue:
        Door.queue = queue
        server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            send_burst(server.server_port)
            print(f"sent {2 * EVENTS}, waiting {queue.show_queue(QUEUE).ready}")
            done = forward(queue, EVENTS)
        finally:
            server.shutdown()
            server.server_close()
            serving.join()
        took = done[-1][0] - done[0][0]
        print(f"processed {len(done)} different events: {len({event for _, event in done})}")
        print(f"at most {RATE:g} a second: {took >= (len(done) - 1) / RATE}")
        print(f"left {queue.show_queue(QUEUE).ready}")


if __name__ == "__main__":
    main()
