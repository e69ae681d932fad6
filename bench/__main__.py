"""`python -m bench NAME`, or `walrq-bench NAME` once installed. Exit status: 0 measured, 1 failed, 2 wrong usage."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from walrq.testing.node import NodeFailed

# Each is a module with `add_arguments(parser)` and `run(arguments) -> dict`, imported when it is named.
BENCHES = {
    "throughput": "push, lease and ack as fast as they go; --compare redis, --in-memory",
    "latency": "one push at a time on an idle node, beside a bare append and fdatasync",
    "backlog": "memory of a million waiting messages, and the time to restart with them",
    "ingest": "one write and fdatasync per message against group commit",
    "connections": "16 connections with 16 single messages in flight each",
    "resp": "the Redis door, beside a redis-server that syncs as walrq does; --in-memory",
    "callers": "20 tasks on one async client, or 8 blocking clients, one call in flight each; --compare redis",
    "follower": "what one slow follower costs the callers of a cluster of three",
    "catchup": "a follower that was away for a million messages, by the log or by a snapshot, under load",
    "failover": "how long pushes wait when the leader of several nodes is killed, or stopped",
    "disk": "live bytes, disk in use and its bound over a mixed soak",
    "isolation": "one queue's latency while others are paused on a backlog or stuck",
}

# What the extra of pyproject.toml brings.
EXTRA = {"hdrh", "redis"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named bench."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="python -m bench" if __package__ == "bench" else "walrq-bench",
        description="Measure walrq on this machine.",
        epilog="Example: python -m bench throughput --batch 100 --producers 4 --consumers 4 --seconds 10",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in BENCHES.items():
        command = commands.add_parser(name, help=text, description=text)
        if arguments[:1] == [name]:
            try:
                module = importlib.import_module(f".{name}", __package__)
            except ModuleNotFoundError as error:
                if error.name is None or error.name.partition(".")[0] not in EXTRA:
                    raise
                print(f"bench: {error.name} is missing: install walrq[bench], or run `make bench`", file=sys.stderr)
                return 1
            command.add_argument(
                "--dir",
                type=Path,
                default=None,
                help="where the temporary data directory goes (default: on a disk, never in memory)",
            )
            command.add_argument("--json", action="store_true", help="end with one JSON object")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    chosen = parser.parse_args(arguments)
    # They need the extra too, and a chosen bench has shown that it is there.
    from .figures import machine
    from .load import LoadFailed

    try:
        figures = chosen.run(chosen)
    except (NodeFailed, LoadFailed) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if chosen.json:
        print(json.dumps({"bench": chosen.command, **figures, "machine": machine()}, default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main())
