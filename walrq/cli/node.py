"""`walrq serve`: run one node. `walrq dev`: run one for development, with something in it to try. `walrq config`: which
settings count here, where each comes from, and whether a file is in order.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from walrq.cli import output
from walrq.cli.arguments import (
    Group,
    dtq_options,
    example,
    from_dtq,
    json_option,
    load_settings,
    server_option,
    settings_file,
    settings_options,
    target,
)

if TYPE_CHECKING:
    from walrq.daemon.config import Config, Door
    from walrq.daemon.supervisor import ReadyLine

log = logging.getLogger("walrq.dev")

LOOPBACK: Final = "127.0.0.1"
DEV_DATA_DIR: Final = "walrq-dev"
# Small on disk, and still room for any message.
DEV_SEGMENT_SIZE: Final = "4MiB"
DEMO_QUEUE: Final = "demo"
# What a data directory consists of: `--fresh` removes this and nothing else. LOCK stays, it is held meanwhile.
_PARTS: Final = frozenset({"FORMAT", "FORMAT.tmp", "hard-state", "wal", "snapshots", "quarantine", "peers.json"})


@click.command(epilog=example("walrq serve --data-dir ./walrq-data --listen 127.0.0.1:50051 --fsync always"))
@settings_options
@dtq_options
@click.option("--all-doors", is_flag=True, help="Open the other doors too, on this machine, where their port is free.")
def serve(config: str | None, all_doors: bool, **flags: Any) -> int:
    """Run one node until SIGTERM or Ctrl-C.

    When it is ready, one JSON line on standard output says where it listens. A setting comes from its flag,
    else from its variable (WALRQ_DATA_DIR, WALRQ_LISTEN, ...), else from the file, else it is the default in
    brackets; `walrq config show --origin` tells. SIGHUP reads the file again.
    """
    from walrq.daemon.supervisor import serve as run_node

    given = from_dtq(flags)
    settings = load_settings(config, given)
    if all_doors:
        settings = load_settings(config, {**given, **shut_doors(settings)})
    status = run_node(settings)
    sys.stdout.flush()
    return status


@click.command(epilog=example("walrq dev --fresh"))
@click.option("--data-dir", metavar="DIR", default=DEV_DATA_DIR, help=f"Where everything lies.  [./{DEV_DATA_DIR}]")
@click.option("--fresh", is_flag=True, help="Begin with nothing: remove what an earlier one left in DIR.")
@click.option("--listen", metavar="HOST:PORT", help=f"Native door.  [{LOOPBACK}:50051, or a free port if it is taken]")
@click.option("--fsync", metavar="POLICY", default="always", help="always, never or interval:MS.  [always]")
@click.option("--demo/--no-demo", default=True, help=f"Whether to make the queue {DEMO_QUEUE}.  [yes]")
@click.option("--log-level", metavar="LEVEL", default="warning", help="debug, info, warning or error.  [warning]")
def dev(data_dir: str, fresh: bool, listen: str | None, fsync: str, demo: bool, log_level: str) -> int:
    """Run one node for development until Ctrl-C, with a queue to play with.

    It listens on this machine only, takes another port when the usual one is in use, and says what to type
    next. Its settings are its flags: neither WALRQ_* variables nor a settings file are read. Like `serve` it
    prints one JSON line on standard output when it is ready.
    """
    from walrq import limits
    from walrq.daemon.config import DOORS, Config
    from walrq.daemon.supervisor import exists
    from walrq.daemon.supervisor import serve as run_node

    settings = {"data_dir": data_dir, "fsync": fsync, "log_level": log_level, "max_wal_segment_size": DEV_SEGMENT_SIZE}
    doors = {door.setting: address_for(door) for door in DOORS if exists(door)}
    taken = listen is None and doors["listen"] != f"{LOOPBACK}:{limits.DEFAULT_PORT}"
    if listen is not None:
        doors["listen"] = listen
    config = Config.load({**settings, **doors})
    where = os.path.abspath(config.data_dir)
    if fresh:
        wipe(Path(config.data_dir))

    async def greet(line: ReadyLine) -> None:
        from walrq.daemon.supervisor import print_ready

        url = f"walrq://{line['endpoints']['cbor']}"
        there = await fill(url) if demo else False
        print_ready(line)
        why = explain_port(line["endpoints"]["cbor"]) if taken else None
        if sys.stderr.isatty():
            sys.stderr.write(banner(line, data_dir=where, fsync=fsync, demo=there, why=why))
            sys.stderr.flush()
        elif why is not None:
            log.warning("port_taken %s", why)

    status = run_node(config, greet=greet)
    sys.stdout.flush()
    if status == 0:
        output.note(f"\n  stopped; all of it is in {where}\n")
    return status


def shut_doors(config: Config) -> dict[str, str]:
    """The usual address on loopback of each door that `config` does not open, if it exists and nobody has the port."""
    from walrq.daemon import listener
    from walrq.daemon.config import DOORS
    from walrq.daemon.supervisor import exists
    from walrq.errors import AddressInUse

    found = {}
    # Nobody has them yet, but this node will.
    own = {
        address[1] for name in (*(door.setting for door in DOORS), "peer_listen") if (address := getattr(config, name))
    }
    for door in DOORS:
        if getattr(config, door.setting) is None and door.port not in own and exists(door):
            try:
                listener.bind(LOOPBACK, door.port).close()
            except AddressInUse:
                continue
            found[door.setting] = f"{LOOPBACK}:{door.port}"
    return found


def address_for(door: Door) -> str:
    """The door's usual address on loopback, or one with a free port when somebody has that."""
    from walrq.daemon import listener
    from walrq.errors import AddressInUse

    try:
        listener.bind(LOOPBACK, door.port).close()
    except AddressInUse:
        return f"{LOOPBACK}:0"
    return f"{LOOPBACK}:{door.port}"


def explain_port(address: str) -> str:
    """Why the node is at `address` and not where clients look first, and how they find it."""
    from walrq import limits

    return (
        f"{limits.DEFAULT_PORT} is taken (by another process); this node listens on {address};"
        f" export WALRQ_SERVER=walrq://{address}"
    )


def wipe(directory: Path) -> None:
    """Remove what a node left in its data directory; nothing happens when there is none.

    Raises:
        DataDirInvalid: it holds something else, and all of it stays.
        DataDirLocked: a node runs on it.
    """
    import fcntl

    from walrq.errors import DataDirInvalid, DataDirLocked
    from walrq.storage.inspect import lock_holder

    if not directory.is_dir():
        return
    names = sorted(each.name for each in directory.iterdir() if each.name != "LOCK")
    strange = [name for name in names if name not in _PARTS]
    if strange or (names and "FORMAT" not in names):
        what = f"{strange[0]!r}" if strange else f"{names[0]!r} but no FORMAT"
        raise DataDirInvalid(f"--fresh removes a data directory of walrq only, and {directory} holds {what}")
    if not names:
        return
    with open(directory / "LOCK", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = lock_holder(str(directory / "LOCK"))
            who = "another walrq process" if holder is None else f"another walrq process, {holder}"
            raise DataDirLocked(f"{directory} is in use by {who}; stop it first") from None
        # FORMAT last: a directory that is half removed is still known as ours.
        for name in sorted(names, key=lambda name: name == "FORMAT"):
            part = directory / name
            if part.is_dir() and not part.is_symlink():
                shutil.rmtree(part)
            else:
                part.unlink()


async def fill(url: str) -> bool:
    """Make the demo queue unless it is there; True, for "it is there"."""
    import walrq.aio
    from walrq.errors import QueueNotFound

    async with walrq.aio.connect(url) as client:
        try:
            await client.show_queue(DEMO_QUEUE)
        except QueueNotFound:
            await client.push_batch(DEMO_QUEUE, [b"hello", b'{"to": "you@example.org", "subject": "welcome"}'])
            await client.push(DEMO_QUEUE, b"this one goes first", priority=9)
            await client.push(DEMO_QUEUE, b"this one is ready half a minute later", delay=30)
    return True


def banner(line: ReadyLine, *, data_dir: str, fsync: str, demo: bool, why: str | None = None) -> str:
    """What a person at a terminal reads first: where it is, `why` there, and what to type next."""
    address = line["endpoints"]["cbor"]
    rows = [(name, where) for name, where in line["endpoints"].items()]
    rows += [("data", data_dir), ("fsync", fsync)]
    # Ready to paste, in this order.
    commands = [] if address == f"{LOOPBACK}:50051" else [f"export WALRQ_SERVER=walrq://{address}"]
    if demo:
        commands += [f"walrq peek {DEMO_QUEUE}", f"walrq poll {DEMO_QUEUE} --ack"]
    commands += ['walrq push jobs "hello"', "walrq queue list"]
    parts = [f"\n  walrq node {line['node']}, for development\n"]
    parts += [f"  {name:<10} {where}\n" for name, where in rows]
    if why is not None:
        parts.append(f"\n  {why}\n")
    parts += ["\n  in another terminal\n"]
    parts += [f"    {command}\n" for command in commands]
    return "".join([*parts, "\n  Ctrl-C stops it\n\n"])


# --- which settings count ------------------------------------------------------------------------------------
@attrs.frozen
class Shown:
    """One setting as it is shown. `of` is "node" (what `walrq serve` would use) or "client"."""

    of: str
    setting: str
    value: str | None
    origin: str


@click.group(cls=Group, epilog=example("walrq config show --origin"))
def config() -> None:
    """Settings: which count here, and where each comes from."""


@config.command(epilog=example("walrq config show --origin --fsync never"))
@click.option("--origin", is_flag=True, help="Also say where each value comes from.")
@settings_options
@json_option
@server_option
def show(origin: bool, config: str | None, as_json: bool, server: str, **flags: Any) -> None:
    """Every setting that `walrq serve` would use with these flags, and which server commands speak to.

    A flag wins over a variable (WALRQ_FSYNC), that over the file, that over the default. --server and
    --context win over WALRQ_SERVER, that over WALRQ_CONTEXT, that over `walrq context use`. With --json the
    origin is always there; a node_id of null is the one kept in the data directory.
    """
    found = list(_settings(config, flags))
    if as_json:
        for each in found:
            output.json_line(attrs.asdict(each))
        return
    titles = ("of", "setting", "value", "origin") if origin else ("of", "setting", "value")
    output.table(titles, [attrs.astuple(each)[: len(titles)] for each in found])


def _settings(config: str | None, flags: dict[str, Any]) -> Iterator[Shown]:
    from walrq.client.config import without_token

    loaded = load_settings(config, flags)
    for name, _, origin in loaded.rows():
        yield Shown("node", name, loaded.text(name), origin)
    meant = target()
    yield Shown("client", "server", without_token(meant.url), meant.origin)


# Files that walrq reads: what each is, and what names it.
_FILES: Final = (("settings", "--config, WALRQ_CONFIG"), ("contexts", "XDG_CONFIG_HOME, HOME"))


@config.command("path", epilog=example("walrq config path"))
@json_option
def show_path(as_json: bool) -> None:
    """The files that settings come from, whether they are there or not."""
    from walrq.cli.contexts import path_of

    places = (settings_file(None), path_of(os.environ))
    rows = [(name, path, path is not None and path.exists()) for (name, _), path in zip(_FILES, places, strict=True)]
    if as_json:
        for name, path, there in rows:
            output.json_line({"file": name, "path": None if path is None else str(path), "exists": there})
        return
    cells = [
        (name, path or "none", "-" if path is None else "yes" if there else "no", named_by)
        for (name, path, there), (_, named_by) in zip(rows, _FILES, strict=True)
    ]
    output.table(("file", "path", "exists", "named by"), cells)


@config.command(epilog=example("walrq config check walrq.toml"))
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def check(file: Path, as_json: bool) -> int:
    """Whether FILE may be given to `walrq serve --config`. Exit status 78 when it has a mistake.

    Every mistake is one line.
    """
    from walrq.daemon.config import check_file
    from walrq.errors import ERRORS, Code

    right, mistakes = check_file(file)
    if as_json:
        output.json_line({"file": str(file), "settings": right, "mistakes": mistakes})
    else:
        for each in mistakes:
            print(f"walrq: {each}", file=sys.stderr)
        if not mistakes:
            print(f"{file}: {right} setting{'' if right == 1 else 's'}, all in order")
    return ERRORS[Code.CONFIG_INVALID].exit if mistakes else 0


COMMANDS = (serve, dev, config)
