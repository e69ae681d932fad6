"""Noise at one door of a real node for as long as one likes:

    python -m tests.doors.fuzz ws --seconds 600 --seed 1

Starts a node of its own in a temporary folder, talks nonsense to it over several connections at once, and looks at it
from time to time: whether it lives and answers, what it logs at level error, how much memory it has. Ends with one JSON
object; status 0 means that nothing was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.daemon.process import Daemon
from tests.doors import noise
from walrq import api

TALKERS = 4
LOOK_S = 5.0
# What a conversation is answered with is read for so long.
_LISTEN_S = 0.05
# A node that has settled grows no more than this: caches fill, the allocator keeps what it had.
GROWTH_MAX = 64 * 1024 * 1024


def talk(address: str, chunks: list[bytes]) -> None:
    """Say it, listen for a moment, hang up."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5) as sock:
        for chunk in chunks:
            sock.sendall(chunk)
        sock.settimeout(_LISTEN_S)
        while sock.recv(1 << 16):
            pass


def resident_bytes(pid: int) -> int:
    """A process's memory."""
    text = Path(f"/proc/{pid}/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS:"))


def run(door: str, seconds: float, seed: int) -> dict[str, Any]:
    """One node, one door, so many seconds; what was found."""
    count = 0
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        doors = {f"{name}_listen": "127.0.0.1:0" for name in noise.DOORS if name != "cbor"}
        with Daemon(Path(folder) / "node", fsync="never", **doors) as node:
            address = node.wait_ready()["endpoints"][door]

            def talker(number: int) -> None:
                nonlocal count
                rng = random.Random(f"{seed} {number}")
                while not stop.is_set():
                    talk(address, noise.conversation(door, rng))
                    count += 1

            threads = [threading.Thread(target=talker, args=(number,)) for number in range(TALKERS)]
            began = time.monotonic()
            for thread in threads:
                thread.start()
            memory: list[int] = []
            alive = True
            while alive and time.monotonic() - began < seconds:
                stop.wait(min(LOOK_S, max(0.1, began + seconds - time.monotonic())))
                alive = node.process.poll() is None
                if alive:
                    with node.connect() as client:
                        alive = client.ask(api.Ping()) == api.Pong()
                    memory.append(resident_bytes(node.process.pid))
            stop.set()
            for thread in threads:
                thread.join()
            alive = alive and node.process.poll() is None
            errors = [line["text"] for line in node.lines() if line["level"] in ("error", "critical")]
            settled = memory[len(memory) // 3 :]
            return {
                "door": door,
                "seed": seed,
                "seconds": round(time.monotonic() - began, 1),
                "conversations": count,
                "alive": alive,
                "errors": errors[:20],
                "resident_bytes": memory[-1] if memory else None,
                "growth_bytes": settled[-1] - settled[0] if settled else None,
            }


def is_good(found: dict[str, Any]) -> bool:
    """Whether nothing was wrong."""
    return found["alive"] and not found["errors"] and (found["growth_bytes"] or 0) < GROWTH_MAX


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Noise at one door of a node.")
    parser.add_argument("door", choices=noise.DOORS)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    found = run(given.door, given.seconds, given.seed)
    print(json.dumps(found))
    return 0 if is_good(found) else 1


if __name__ == "__main__":
    sys.exit(main())
