"""`walrq serve`: run one node."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from walrq.cli.arguments import example


@click.command(epilog=example("walrq serve --data-dir ./walrq-data --listen 127.0.0.1:50051 --fsync always"))
@click.option("--data-dir", metavar="DIR", help="Where everything durable lies.  [./walrq-data]")
@click.option("--listen", metavar="HOST:PORT", help="Native door; port 0 picks a free one.  [127.0.0.1:50051]")
@click.option("--node-id", metavar="ID", help="Name of this node.  [the one in the data directory]")
@click.option("--fsync", metavar="POLICY", help="always, never or interval:MS.  [always]")
@click.option("--config", metavar="FILE", help="Settings in TOML.  [WALRQ_CONFIG]")
@click.option("--drain-timeout", metavar="SECONDS", help="Longest time to answer what is in flight.  [10]")
@click.option("--max-connections", metavar="N", help="Beyond it connections are refused.  [10000]")
@click.option("--max-wal-segment-size", metavar="BYTES", help="Size of a log segment, like 16MiB.  [64MiB]")
@click.option("--auto-create/--no-auto-create", default=None, help="Whether a push creates a queue.  [yes]")
@click.option("--snapshot-log-bytes", metavar="BYTES", help="Log that forces a snapshot.  [256MiB]")
@click.option("--snapshot-commands", metavar="N", help="Commands that force a snapshot.  [200000]")
@click.option("--body-cache-bytes", metavar="BYTES", help="Memory for bodies of messages.  [32MiB]")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.  [info]")
@click.option("--log-format", metavar="FORMAT", help="auto, human or json.  [auto]")
@click.option("--front", metavar="KIND", help="What carries TCP: auto, reactor or stream.  [auto]")
def serve(config: str | None, **flags: Any) -> int:
    """Run one node until SIGTERM or Ctrl-C.

    When it is ready, one JSON line on standard output says where it listens. A setting comes from its flag,
    else from its variable (WALRQ_DATA_DIR, WALRQ_LISTEN, ...), else from the file, else it is the default in
    brackets.
    """
    from walrq.daemon.config import Config
    from walrq.daemon.supervisor import serve as run_node

    file = config or os.environ.get("WALRQ_CONFIG")
    settings = Config.load(flags, os.environ, Path(file) if file else None)
    status = run_node(settings)
    sys.stdout.flush()
    return status


COMMANDS = (serve,)
