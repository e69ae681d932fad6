"""`walrq serve`: run one node."""

from __future__ import annotations

import sys
from typing import Any

import click

from walrq.cli.arguments import example, load_settings, settings_options


@click.command(epilog=example("walrq serve --data-dir ./walrq-data --listen 127.0.0.1:50051 --fsync always"))
@settings_options
def serve(config: str | None, **flags: Any) -> int:
    """Run one node until SIGTERM or Ctrl-C.

    When it is ready, one JSON line on standard output says where it listens. A setting comes from its flag,
    else from its variable (WALRQ_DATA_DIR, WALRQ_LISTEN, ...), else from the file, else it is the default in
    brackets; `walrq config show --origin` tells. SIGHUP reads the file again.
    """
    from walrq.daemon.supervisor import serve as run_node

    status = run_node(load_settings(config, flags))
    sys.stdout.flush()
    return status


COMMANDS = (serve,)
