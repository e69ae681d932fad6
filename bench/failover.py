"""How long pushes wait when the leader goes: by kill -9, which nobody announces, or by SIGTERM, which hands over.

One client pushes one message after the other; for each round, what counts is the longest wait of a push from the
signal on. The victim is started again and the cluster whole before the next round.
"""

from __future__ import annotations

import argparse
import logging
import threading
import time
from typing import Any, Final

import attrs

import walrq
from walrq.testing.nodes import Nodes

from .figures import Latencies, scratch, table

SIGNALS: Final = ("kill", "term")
PAUSE_S: Final = 0.002
# After a polite stop pushes are watched for so long: by then clients have moved.
WATCH_S: Final = 0.5
WHOLE_S: Final = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this bench."""
    parser.add_argument("--nodes", type=int, default=3, choices=[3, 5])
    parser.add_argument("--rounds", type=int, default=50, help="leaders lost, for each signal")
    parser.add_argument("--signal", choices=[*SIGNALS, "both"], default="both")
    parser.add_argument("--size", type=int, default=100, help="bytes per payload")
    parser.add_argument("--fsync", default="always", help="always, never or interval:MS")


@attrs.define
class Pusher:
    """Pushes one by one in a thread, and keeps when each began and ended.

    Attributes:
        pushes: (begun, ended) in nanoseconds of the monotonic clock.
        failed: what ended it.
    """

    url: str
    size: int
    pushes: list[tuple[int, int]] = attrs.field(factory=list)
    failed: BaseException | None = None
    _over: threading.Event = attrs.field(factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Pusher:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        assert self._thread is not None
        self._thread.join()

    def _run(self) -> None:
        payload = bytes(self.size)
        try:
            with walrq.connect(self.url) as client:
                while not self._over.is_set():
                    begun = time.monotonic_ns()
                    client.push("failover", payload)
                    self.pushes.append((begun, time.monotonic_ns()))
                    self._over.wait(PAUSE_S)
        except BaseException as error:
            self.failed = error
            raise

    def wait_begun_after(self, moment: int) -> None:
        """Until a push that began after that moment has been acknowledged."""
        while not self.pushes or self.pushes[-1][0] <= moment:
            if self.failed is not None:
                raise RuntimeError("no more pushes") from self.failed
            time.sleep(PAUSE_S)

    def longest_since(self, moment: int) -> int:
        """Nanoseconds that the longest push took of those that were answered after that moment."""
        return max(ended - max(begun, moment) for begun, ended in self.pushes if ended > moment)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    # That connections are lost is what this is about.
    logging.getLogger("walrq.client").addHandler(logging.NullHandler())
    waits = {name: Latencies() for name in (SIGNALS if arguments.signal == "both" else (arguments.signal,))}
    with (
        scratch(arguments.dir) as folder,
        Nodes.make(folder, arguments.nodes, flags=["--fsync", arguments.fsync]) as nodes,
    ):
        nodes.start()
        nodes.wait_leader(WHOLE_S)
        with Pusher(nodes.url, arguments.size) as pusher:
            pusher.wait_begun_after(0)
            for _ in range(arguments.rounds):
                for name, latencies in waits.items():
                    latencies.record(_round(nodes, pusher, name))
        nodes.stop()
    figures = {name: latencies.percentiles_ms() for name, latencies in waits.items()}
    rows = [[name, *(row[p] for p in ("p50", "p90", "max"))] for name, row in figures.items()]
    print(table(rows, header=["longest wait of a push, ms", "median", "p90", "worst"]))
    return {
        "wait_ms": figures,
        "settings": {name: getattr(arguments, name) for name in ("nodes", "rounds", "signal", "size", "fsync")},
    }


def _round(nodes: Nodes, pusher: Pusher, name: str) -> int:
    """Take the leader away, measure, and make the cluster whole again."""
    leader = nodes.wait_leader(WHOLE_S)
    moment = time.monotonic_ns()
    if name == "kill":
        nodes.kill(leader)
    else:
        nodes.nodes[leader].stop()
        time.sleep(WATCH_S)
    pusher.wait_begun_after(moment)
    longest = pusher.longest_since(moment)
    nodes.start([leader])
    nodes.wait_whole(WHOLE_S)
    return longest
