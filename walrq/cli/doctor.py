"""`walrq doctor`: looks at this machine, the settings, the data directory and the server, and says what to do.

Each finding has an id that stays, a status and one line of text. A look changes nothing, except that the speed of
the disk is measured with a small file of its own. What makes `serve` fail or a server unreachable is *bad*; what
works and may surprise later is a *warning*.
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
import click

from walrq.cli import output
from walrq.cli.arguments import example, json_option, load_settings, server_option_to_judge, settings_options, target

if TYPE_CHECKING:
    from walrq.api import ClusterState, MemberState
    from walrq.cli.contexts import Target
    from walrq.daemon.config import Config

Status = Literal["good", "warning", "bad"]

SERVER_S_MAX: Final = 2.0
# Delays end by the server's clock: a caller who computes `deliver_at` on another clock is wrong by so much.
SKEW_S_MAX: Final = 2.0
# A follower that is well lacks what is on its way at this moment.
LAG_MAX: Final = 1_000
SYNCS: Final = 16
SYNC_MS_MAX: Final = 20.0
# Quicker than a disk or its cache can be asked: somebody between says yes without asking.
SYNC_MS_MIN: Final = 0.005
FREE_BYTES_MIN: Final = 1 << 30
# Beside connections: log segments, snapshots, doors, the event loop.
DESCRIPTORS_BESIDE: Final = 128
_FLEETING: Final = frozenset({"tmpfs", "ramfs"})
_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "fuse.glusterfs", "ceph", "lustre"}
)


@attrs.frozen
class Finding:
    """What one look found.

    Attributes:
        id: stays the same from version to version; scripts hold it.
        status: see the top of this file.
        text: what is so.
        advice: what to do about it; None when there is nothing to do.
    """

    id: str
    status: Status
    text: str
    advice: str | None = None


@click.command(epilog=example("walrq doctor --json"))
@settings_options
@json_option
@server_option_to_judge
def doctor(config: str | None, as_json: bool, server: str, **flags: Any) -> int:
    """Say what is in order here, and what to do about the rest: machine, settings, data directory, server.

    It takes the settings of `walrq serve`, to be tried before a node is started with them. Exit status 1 when
    something is bad; warnings do not count.
    """
    found = []
    for finding in examine(config, flags):
        found.append(finding)
        if as_json:
            output.json_line(attrs.asdict(finding))
        else:
            _show(finding)
        sys.stdout.flush()
    bad = sum(each.status == "bad" for each in found)
    warnings = sum(each.status == "warning" for each in found)
    if not as_json:
        print(f"{len(found) - bad - warnings} good, {warnings} to look at, {bad} bad")
    return 1 if bad else 0


_STATUS_WIDTH: Final = 8
_ID_WIDTH: Final = 13
_COLORS: Final[Mapping[Status, str]] = {"good": "green", "warning": "yellow", "bad": "bold red"}


def _show(finding: Finding) -> None:
    """Status, id and text in columns; on a terminal a long text goes on below itself."""
    paragraphs = [finding.text] if finding.advice is None else [finding.text, f"-> {finding.advice}"]
    if not output.for_people():
        lines = paragraphs
    else:
        import textwrap

        width = max(20, shutil.get_terminal_size().columns - _STATUS_WIDTH - _ID_WIDTH)
        lines = [
            line
            for paragraph in paragraphs
            for line in textwrap.wrap(paragraph, width, break_long_words=False, break_on_hyphens=False)
        ]
    status: str = finding.status
    name = finding.id
    for line in lines:
        output.colored(f"{status:<{_STATUS_WIDTH}}", _COLORS[finding.status], f"{name:<{_ID_WIDTH}}{line}")
        status = name = ""


def examine(config: str | None, flags: Mapping[str, Any]) -> Iterator[Finding]:
    """Every finding, in the order in which they are looked for."""
    from walrq.errors import ConfigError

    yield look_at_python()
    yield look_at_packages()
    yield look_at_environment(os.environ)
    try:
        meant = target()
    except ConfigError as error:
        yield Finding("server", "bad", error.text, "commands refuse to guess which server is meant; --server names it")
    else:
        yield from look_at_server(meant)
    try:
        settings = load_settings(config, flags)
    except ConfigError as error:
        yield Finding("settings", "bad", error.text, "`walrq config check FILE` lists all mistakes of a file")
        try:
            # The rest is looked at all the same when only the name of a variable is wrong.
            settings = load_settings(config, flags, without_unknown(os.environ))
        except ConfigError:
            yield look_at_epoll()
            return
    else:
        origins = sorted({origin for _, _, origin in settings.rows()} - {"default"})
        yield Finding("settings", "good", f"in order: {', '.join(origins) if origins else 'all defaults'}")
    yield look_at_epoll()
    yield look_at_descriptors(settings.max_connections)
    yield from look_at_directory(settings)
    yield look_at_port(settings)
    yield from look_at_doors(settings)
    if settings.peer_listen is not None:
        yield from look_at_peers(settings)


def without_unknown(env: Mapping[str, str]) -> dict[str, str]:
    """The variables but for those that look like ours and that nobody reads."""
    from walrq.daemon.config import unknown_variables

    unknown = frozenset(unknown_variables(env))
    return {name: given for name, given in env.items() if name not in unknown}


# --- the machine --------------------------------------------------------------------------------------------
def look_at_python() -> Finding:
    """The interpreter; an older one than 3.11 never comes so far."""
    text = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    if platform.system() != "Linux":
        return Finding("python", "warning", text, "nodes are measured on Linux; elsewhere expect less speed")
    return Finding("python", "good", text)


def look_at_packages() -> Finding:
    """walrq and what it needs, against the ranges that it was released with."""
    from importlib import metadata

    from walrq import __version__

    try:
        required = [line for line in metadata.requires("walrq") or () if "extra ==" not in line]
    except metadata.PackageNotFoundError:
        return Finding(
            "packages", "warning", f"walrq {__version__} runs from a folder and is not installed", "pip install ."
        )
    wrong = []
    for line in required:
        name, bounds = requirement(line)
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{name} is missing")
            continue
        if not all(_within(version, operator, bound) for operator, bound in bounds):
            wrong.append(f"{name} {version} is not in {line.removeprefix(name).strip()}")
    if wrong:
        return Finding("packages", "bad", "; ".join(wrong), "pip install --upgrade walrq")
    return Finding("packages", "good", f"walrq {__version__} with {len(required)} packages, all in their ranges")


def requirement(line: str) -> tuple[str, list[tuple[str, str]]]:
    """The name and the bounds of "trio>=0.30,<1"; what stands behind a semicolon is left out."""
    text = line.partition(";")[0].strip()
    end = next((at for at, character in enumerate(text) if character in "<>=!~ ("), len(text))
    bounds = []
    for part in text[end:].strip(" ()").split(","):
        number = part.strip().lstrip("<>=!~ ")
        if number:
            bounds.append((part.strip().removesuffix(number).strip(), number))
    return text[:end], bounds


def _within(version: str, operator: str, bound: str) -> bool:
    have, limit = _release(version), _release(bound)
    length = max(len(have), len(limit))
    have, limit = have + (0,) * (length - len(have)), limit + (0,) * (length - len(limit))
    return {">=": have >= limit, "<": have < limit, "<=": have <= limit, "==": have == limit}.get(operator, True)


def _release(version: str) -> tuple[int, ...]:
    """The numbers at the beginning of a version."""
    numbers = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def look_at_environment(env: Mapping[str, str]) -> Finding:
    """Variables that look like ours and that nobody reads."""
    from walrq.daemon.config import OTHERS_VARIABLES, VARIABLES, unknown_variables

    unknown = unknown_variables(env)
    if unknown:
        return Finding(
            "environment",
            "warning",
            f"nobody reads {', '.join(unknown)}",
            "`walrq config show --origin` shows what counts",
        )
    ours = sorted(OTHERS_VARIABLES.union(VARIABLES, ("DATA_DIR", "NODE_ID")).intersection(env))
    return Finding("environment", "good", f"set: {', '.join(ours)}" if ours else "no WALRQ_* variable is set")


def look_at_epoll() -> Finding:
    """What carries many connections cheaply."""
    if hasattr(select, "epoll"):
        return Finding("epoll", "good", "the batched reactor carries connections")
    return Finding(
        "epoll", "warning", "no epoll here: each connection costs a task", "for many small requests use Linux"
    )


def look_at_descriptors(connections_max: int) -> Finding:
    """Whether the process may have as many files open as it has connections."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections_max + DESCRIPTORS_BESIDE
    if soft == resource.RLIM_INFINITY or soft >= needed:
        many = "any number of" if soft == resource.RLIM_INFINITY else str(soft)
        return Finding("descriptors", "good", f"{many} open files allowed, max_connections {connections_max} fits")
    fits = max(1, soft - DESCRIPTORS_BESIDE)
    raised = hard == resource.RLIM_INFINITY or hard >= needed
    advice = f"ulimit -n {needed}" if raised else f"raise the hard limit of open files from {hard} to {needed}"
    text = f"{soft} open files allowed, too few for max_connections {connections_max}: later clients are refused"
    return Finding("descriptors", "warning", text, f"{advice}, or --max-connections {fits}")


# --- the server ---------------------------------------------------------------------------------------------
def look_at_server(target: Target) -> Iterator[Finding]:
    """Whether a server answers, whether it is of this version, and whether its clock shows the same time."""
    from walrq import __version__
    from walrq.client.blocking import connect
    from walrq.client.config import without_token
    from walrq.errors import WalrqError

    try:
        with connect(target.url, session=False, connect_timeout_s=SERVER_S_MAX, timeout_s=SERVER_S_MAX) as client:
            client.ping()
            asked_at, asked_ms = time.time(), time.monotonic() * 1000
            stats = client.stats()
            took_ms = time.monotonic() * 1000 - asked_ms
            cluster = client.cluster() if stats.get("peers") else None
    except WalrqError as error:
        # Nobody said that there is one: then this is what a machine looks like before the first start.
        expected = target.origin != "default"
        text = error.text.partition(". Start one")[0]
        advice = "start one with `walrq serve`, or name another: --server, WALRQ_SERVER, `walrq context use`"
        yield Finding("server", "bad" if expected else "warning", f"{text} (from {target.origin})", advice)
        return
    where = f"{without_token(target.url)} (from {target.origin})"
    text = f"node {stats.get('node')} answers in {took_ms:.1f} ms at {where}"
    yield Finding("server", "good", text)
    version = stats.get("version")
    if version == __version__:
        yield Finding("versions", "good", f"server and command line are both {version}")
    else:
        text = f"the server is walrq {version or 'of an older version'}, this command line is {__version__}"
        yield Finding("versions", "warning", text, "upgrade the older one; servers first")
    wall_ms = stats.get("wall_ms")
    if isinstance(wall_ms, int):
        yield judge_clock(wall_ms / 1000 - (asked_at + took_ms / 2000))
    if cluster is not None:
        yield judge_cluster(cluster)


def judge_cluster(state: ClusterState) -> Finding:
    """Whether somebody leads, and whether a failure more can be borne."""
    from walrq.live import members

    voters = [member for member in state.members if member.role != "learner"]
    away = members.away(state)
    if state.leader is None:
        text = f"{state.node} knows of no leader among {_listed(state.members)}"
        return Finding("cluster", "bad", text, "start the nodes that are down: a majority of the voters must run")
    text = f"{state.leader} leads {_listed(state.members)}"
    if away:
        left = (len(voters) - 1) // 2 - sum(member.node in away for member in voters)
        more = f"{left} more may fail" if left > 0 else "one more failure stops the cluster"
        advice = "start them again; if they run, their logs say what is wrong (peer_unreachable)"
        return Finding("cluster", "warning", f"{text}; {', '.join(away)} cannot be reached: {more}", advice)
    behind = [f"{each.node} by {lag}" for each in state.members if (lag := members.lag(state, each) or 0) > LAG_MAX]
    if behind:
        text = f"{text}; behind are {', '.join(behind)} entries"
        return Finding("cluster", "warning", text, "`walrq cluster status` shows whether they catch up")
    if len(voters) % 2 == 0:
        text = f"{text}: {len(voters)} voters bear no more failures than {len(voters) - 1}"
        return Finding("cluster", "warning", text, "add a node, or remove one")
    return Finding("cluster", "good", f"{text}; {(len(voters) - 1) // 2} may fail")


def _listed(found: Iterable[MemberState]) -> str:
    return ", ".join(member.node for member in found)


def judge_clock(ahead_s: float) -> Finding:
    """How far the server's wall clock is ahead of ours."""
    if abs(ahead_s) <= SKEW_S_MAX:
        return Finding("clock", "good", f"the server's clock differs by {abs(ahead_s) * 1000:.0f} ms")
    side = "ahead of" if ahead_s > 0 else "behind"
    text = f"the server's clock is {abs(ahead_s):.1f} s {side} this one: a deliver_at computed here is off by as much"
    return Finding("clock", "warning", text, "let both machines follow a time server (NTP)")


# --- the data directory -------------------------------------------------------------------------------------
def look_at_directory(settings: Config) -> Iterator[Finding]:
    """Everything about the place where a node writes."""
    directory = Path(settings.data_dir).absolute()
    # What a start would make; a node makes the last part only.
    place = directory if directory.exists() else directory.parent
    usable = judge_directory(directory, place)
    yield usable
    if usable.status == "bad":
        return
    if (directory / "LOCK").exists():
        yield look_at_lock(directory / "LOCK")
    yield judge_space(
        shutil.disk_usage(place).free, settings.max_wal_segment_size, fresh=not (directory / "FORMAT").exists()
    )
    with contextlib.suppress(FileNotFoundError):  # a system without /proc does not tell
        yield judge_file_system(file_system(place, Path("/proc/self/mountinfo").read_text()))
    yield judge_sync(list(time_syncs(place)), settings.fsync == "never")


def judge_directory(directory: Path, place: Path) -> Finding:
    """Whether a node could start on it."""
    if not place.is_dir():
        what = "is no directory" if place.exists() else f"cannot be made: {place} is not there"
        return Finding("data_dir", "bad", f"{directory} {what}", "--data-dir names another; its parent must exist")
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        return Finding(
            "data_dir", "bad", f"{place} cannot be written by this user", "chown it, or name another with --data-dir"
        )
    if place != directory:
        return Finding("data_dir", "good", f"{directory} is not there yet and can be made")
    names = sorted(set(os.listdir(directory)) - {"LOCK", "lost+found", "wal", "snapshots", "quarantine"})
    if names and "FORMAT" not in names:
        text = f"{directory} holds {names[0]!r} and is no data directory of walrq"
        return Finding("data_dir", "bad", text, "--data-dir names an empty or a new directory")
    return Finding(
        "data_dir", "good", f"{directory} {'is a data directory' if names else 'is empty'} and can be written"
    )


def look_at_lock(path: Path) -> Finding:
    """Which process holds a data directory."""
    from walrq.storage.inspect import lock_holder

    if not os.path.exists("/proc/locks"):
        return Finding("lock", "good", f"{path} is there; this system does not tell who holds it")
    holder = lock_holder(str(path))
    if holder is None:
        return Finding("lock", "good", "no node runs on it")
    return Finding("lock", "good", f"a node runs on it, process {holder}; a second one will be refused")


def judge_space(free: int, segment_bytes: int, *, fresh: bool) -> Finding:
    """Free bytes against what a first start takes: three segments and the snapshots' reserve."""
    needed = 3 * segment_bytes + (32 << 20) if fresh else 0
    text = f"{free / (1 << 30):.1f} GiB free"
    if free < needed:
        advice = "make room, or --max-wal-segment-size 4MiB"
        return Finding("space", "bad", f"{text}, a first start takes {needed >> 20} MiB", advice)
    if free < FREE_BYTES_MIN:
        return Finding("space", "warning", text, "below its reserve a node refuses pushes with DISK_FULL")
    return Finding("space", "good", text)


def file_system(place: Path, mounts: str) -> str:
    """The type of the file system of a path, from the text of /proc/self/mountinfo; "" when it is not told."""
    path = place.resolve()
    best, kind = -1, ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        mounted = Path(before.split()[4].replace("\\040", " "))
        depth = len(mounted.parts)
        # The last of several on one place is the one that is seen.
        if depth >= best and path.is_relative_to(mounted):
            best, kind = depth, after.split()[0]
    return kind


def judge_file_system(kind: str) -> Finding:
    """Whether what is written there stays, and whether its locks and syncs can be relied on."""
    if kind in _FLEETING:
        return Finding("file_system", "warning", f"{kind} lives in memory: a reboot loses all of it", "use a disk")
    if kind in _NETWORK:
        text = f"{kind} is a network file system: its locks and syncs may not mean what they say"
        return Finding("file_system", "warning", text, "use a local disk")
    if kind == "overlay":
        text = "overlay is a container's own layer: it goes when the container goes"
        return Finding("file_system", "warning", text, "mount a volume and name it with --data-dir")
    return Finding("file_system", "good", f"{kind or 'not told by this system'}")


def time_syncs(place: Path) -> Iterator[float]:
    """Milliseconds of each of a few writes with fdatasync in a file of their own, which is removed again."""
    from walrq.storage.inspect import probe_sync

    with contextlib.closing(probe_sync(str(place), SYNCS)) as steps:
        next(steps)
        started = time.perf_counter()
        for _ in steps:
            yield (time.perf_counter() - started) * 1000
            started = time.perf_counter()


def judge_sync(times_ms: list[float], never: bool) -> Finding:
    """What a durable answer costs on this disk."""
    median_ms = sorted(times_ms)[len(times_ms) // 2]
    text = f"a write with fdatasync takes {median_ms:.2f} ms ({min(times_ms):.2f} to {max(times_ms):.2f})"
    if median_ms > SYNC_MS_MAX and not never:
        advice = "use a faster disk; batches and many clients share each sync, fsync=interval:MS trades safety for it"
        return Finding("sync", "warning", f"{text}: every answer waits that long", advice)
    if median_ms < SYNC_MS_MIN:
        return Finding(
            "sync",
            "warning",
            f"{text}: too quick to be true, syncs seem to be ignored",
            "check the disk's write cache and mount options",
        )
    return Finding("sync", "good", text)


def look_at_port(settings: Config) -> Finding:
    """Whether the listening address can be had."""
    from walrq.client.blocking import connect
    from walrq.daemon import listener
    from walrq.errors import AddressInUse, ConfigError, WalrqError

    host, port = settings.listen
    address = settings.text("listen")
    try:
        listener.bind(host, port).close()
    except ConfigError as error:
        return Finding("port", "bad", error.text)
    except AddressInUse as error:
        bad = Finding(
            "port", "bad", error.text.partition(";")[0], "--listen HOST:PORT names another; port 0 picks a free one"
        )
    else:
        return Finding("port", "good", f"{address} is free" if port else "port 0 picks a free one")
    try:
        own = f"[{host}]" if ":" in host else host or "127.0.0.1"
        with connect(
            f"walrq://{own}:{port}", session=False, connect_timeout_s=SERVER_S_MAX, timeout_s=SERVER_S_MAX
        ) as client:
            node = client.stats().get("node")
    except WalrqError:
        return bad  # whatever has the port, it is no node of ours
    return Finding("port", "good", f"{address} is in use by node {node}")


def look_at_doors(settings: Config) -> Iterator[Finding]:
    """Whether the addresses of the other doors that it opens can be had."""
    from walrq.daemon import listener
    from walrq.daemon.config import DOORS
    from walrq.errors import AddressInUse, ConfigError

    for door in DOORS:
        address = getattr(settings, door.setting)
        if not door.module or address is None:
            continue
        name = f"{door.name}_port"
        try:
            listener.bind(*address, flag=door.flag).close()
        except AddressInUse as error:
            advice = f"a running node of this directory has it, or {door.flag} HOST:PORT names another"
            yield Finding(name, "warning", error.text.partition(";")[0], advice)
        except ConfigError as error:
            yield Finding(name, "bad", error.text)
        else:
            shown = settings.text(door.setting)
            yield Finding(name, "good", f"{shown} is free" if address[1] else "port 0 picks a free one")


def look_at_peers(settings: Config) -> Iterator[Finding]:
    """Whether the door for other nodes can be had, and whether there is a secret that only its owner can read."""
    from walrq.daemon import listener
    from walrq.errors import AddressInUse, ConfigError

    assert settings.peer_listen is not None
    host, port = settings.peer_listen
    address = settings.text("peer_listen")
    try:
        listener.bind(host, port).close()
    except AddressInUse as error:
        advice = "a running node of this directory has it, or --peer-listen HOST:PORT names another"
        yield Finding("peer_port", "warning", error.text.partition(";")[0], advice)
    except ConfigError as error:
        yield Finding("peer_port", "bad", error.text)
    else:
        yield Finding("peer_port", "good", f"{address} is free" if port else "port 0 picks a free one")
    try:
        settings.secret()
    except ConfigError as error:
        yield Finding("secret", "bad", error.text)
        return
    file = settings.cluster_secret_file
    if file is not None and os.stat(file).st_mode & 0o077:
        yield Finding("secret", "warning", f"others on this machine may read {file}", f"chmod 600 {file}")
    else:
        yield Finding("secret", "good", "is there" if file is None else f"{file} is readable by its owner only")


COMMANDS = (doctor,)
