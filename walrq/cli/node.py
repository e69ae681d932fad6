"""`walrq serve`: run one node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(
        "serve",
        epilog="Example: walrq serve --data-dir ./walrq-data --listen 127.0.0.1:50051 --fsync always",
    )(serve)


def serve(
    data_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where everything durable lies [./walrq-data].")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Native door; port 0 picks a free one [127.0.0.1:50051]."),
    ] = None,
    node_id: Annotated[str | None, typer.Option(metavar="ID", help="Name of this node.")] = None,
    fsync: Annotated[str | None, typer.Option(metavar="POLICY", help="always, never or interval:MS [always].")] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings in TOML.")] = None,
    drain_timeout: Annotated[
        str | None, typer.Option(metavar="SECONDS", help="Longest time to answer what is in flight [10].")
    ] = None,
    max_connections: Annotated[
        str | None, typer.Option(metavar="N", help="Beyond it connections are refused [10000].")
    ] = None,
    max_wal_segment_size: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Size of a log segment, KiB and MiB known [64MiB].")
    ] = None,
    auto_create: Annotated[
        bool | None, typer.Option(help="Whether a push creates an absent queue [yes].", show_default=False)
    ] = None,
    snapshot_log_bytes: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Log since the last snapshot that forces one [256MiB].")
    ] = None,
    body_cache_bytes: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Memory for bodies of messages [32MiB].")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error [info].")
    ] = None,
    log_format: Annotated[str | None, typer.Option(metavar="FORMAT", help="auto, human or json [auto].")] = None,
    front: Annotated[str | None, typer.Option(metavar="KIND", help="auto, reactor or stream [auto].")] = None,
) -> None:
    """Run one node until SIGTERM or Ctrl-C.

    When it is ready, one JSON line on standard output says where it listens. A setting comes from its flag,
    else from its variable (WALRQ_DATA_DIR, WALRQ_LISTEN, ...), else from the file, else it is the default in
    brackets.
    """
    import os

    from walrq.daemon.config import Config
    from walrq.daemon.supervisor import serve as run_node

    flags = {
        "data_dir": data_dir,
        "listen": listen,
        "node_id": node_id,
        "fsync": fsync,
        "drain_timeout": drain_timeout,
        "max_connections": max_connections,
        "max_wal_segment_size": max_wal_segment_size,
        "auto_create": auto_create,
        "snapshot_log_bytes": snapshot_log_bytes,
        "body_cache_bytes": body_cache_bytes,
        "log_level": log_level,
        "log_format": log_format,
        "front": front,
    }
    file = config
    if file is None and os.environ.get("WALRQ_CONFIG"):
        file = Path(os.environ["WALRQ_CONFIG"])
    raise typer.Exit(run_node(Config.load(flags, os.environ, file)))
