"""`walrq cluster ...`: several nodes from one command, and who is in a cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from walrq.cli import output
from walrq.cli.arguments import (
    Group,
    complete_nodes,
    confirm,
    example,
    json_option,
    open_client,
    seconds,
    server_option,
    yes_option,
)
from walrq.errors import ERRORS, Code, ReplyTimeout, WalrqError

if TYPE_CHECKING:
    from walrq.api import ClusterState, MemberState


@click.group(cls=Group, epilog=example("walrq cluster status"))
def cluster() -> None:
    """Several nodes that act as one."""


# --- start --------------------------------------------------------------------------------------------------
@cluster.command(epilog=example("walrq cluster start --nodes 3 --base-dir ./walrq-cluster"))
@click.option("--nodes", metavar="N", type=int, help="How many, 1 to 9.  [3, or as many as DIR has]")
@click.option("--base-dir", metavar="DIR", default="walrq-cluster", help="Where all of it lies.  [./walrq-cluster]")
@click.option(
    "--base-port",
    metavar="PORT",
    type=int,
    help="First port; nodes take those from here on, and from 100 above for each other; 0 finds free ones.  [50051]",
)
@click.argument("serve_flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- FLAGS OF SERVE]")
def start(nodes: int | None, base_dir: str, base_port: int | None, serve_flags: Sequence[str]) -> int:
    """Run a cluster on this machine until SIGTERM or Ctrl-C, each node in a process of its own.

    The first start makes DIR: a data directory and a log for each node, and the secret that they share. Later
    starts find all of it there. When every node is ready, one JSON line on standard output says where they are. A
    node that ends is reported and not started again. What stands behind -- is given to each `walrq serve`.

    For development and trials: nodes that should survive a machine are started on several, see
    docs/operations.md.
    """
    import trio

    from walrq.local import launcher, layout

    launcher.check_flags(serve_flags)
    made = layout.prepare(Path(base_dir), nodes, base_port)
    if len(made.places) % 2 == 0:
        _say(f"{len(made.places)} nodes survive as many failures as {len(made.places) - 1}: an odd number is better")
    status = trio.run(lambda: launcher.run(made, serve_flags, say=_say, announce=_announce))
    sys.stdout.flush()
    return status


def _say(text: str) -> None:
    print(f"walrq: {text}", file=sys.stderr, flush=True)


def _announce(ready: Mapping[str, Any]) -> None:
    output.json_line(ready)
    sys.stdout.flush()
    if output.person_reads_notes():
        sys.stderr.write(banner(ready))
        sys.stderr.flush()


def banner(ready: Mapping[str, Any]) -> str:
    """What a person at a terminal reads first: where the nodes are, and what to type next."""
    parts = [f"\n  walrq cluster of {len(ready['nodes'])} nodes in {ready['base_dir']}\n"]
    parts += [
        f"  {each['node']:<6} {each['endpoints'].get('cbor', '-'):<22} {each['log']}\n" for each in ready["nodes"]
    ]
    parts += [
        "\n  in another terminal\n",
        f"    export WALRQ_SERVER={ready['url']}\n",
        "    walrq cluster status\n",
        '    walrq push jobs "hello"\n',
        "\n  Ctrl-C stops all of them\n\n",
    ]
    return "".join(parts)


# --- status -------------------------------------------------------------------------------------------------
# The leader is asked for what only it knows; a status must not hang when it is just being lost.
LEADER_S_MAX: Final = 2.0
TITLES: Final = ("node", "role", "clients", "peers", "lag", "heard", "status")


@cluster.command(epilog=example("walrq cluster status"))
@json_option
@server_option
def status(as_json: bool, server: str | None) -> int:
    """Who is in the cluster: role, addresses, how far behind, when last heard.

    Any node may be asked; what only the leader knows is asked of it. LAG counts entries of the log that the node is
    not known to have, HEARD is the time since its last word. Exit status 5 while no leader is known.
    """
    from walrq.live import members

    state = look(server)
    if as_json:
        output.json_line(members.value(state))
    else:
        output.table(TITLES, [row(state, member) for member in state.members])
        output.note(f"  {state.cluster}, term {state.term}, as {state.node} sees it")
    if state.leader is None:
        print(f"walrq: {why_no_leader(state)}", file=sys.stderr)
        return ERRORS[Code.NOT_LEADER].exit
    return 0


def why_no_leader(state: ClusterState) -> str:
    """What may be the matter when the node that answers knows of no leader."""
    if state.members and state.node not in (member.node for member in state.members):
        return f"{state.node} is no member: it was removed, or its log has not come so far; ask one of the members"
    return f"{state.node} knows of no leader: an election is going on, or no majority is up"


def look(server: str | None) -> ClusterState:
    """The cluster as its leader sees it, or else as the node that answers does."""
    with open_client(server, session=False) as client:
        state = client.cluster()
    endpoint = next((member.endpoint for member in state.members if member.node == state.leader), None)
    if state.leader == state.node or endpoint is None:
        return state
    changes: dict[str, Any] = {"session": False, "connect_timeout_s": LEADER_S_MAX, "timeout_s": LEADER_S_MAX}
    try:
        with open_client(f"walrq://{endpoint}", **changes) as client:
            return client.cluster()
    except WalrqError as error:
        output.note(f"  {state.leader} leads and does not answer at {endpoint}: {error.text}")
        return state


def row(state: ClusterState, member: MemberState) -> tuple[Any, ...]:
    """One member as a row of the table."""
    from walrq.live import members

    return (
        member.node,
        member.role,
        member.endpoint,
        member.address or None,
        members.lag(state, member),
        None if member.heard_ms is None else duration(member.heard_ms),
        member.status or None,
    )


def duration(ms: int) -> str:
    """A time for people, short: "20 ms", "3.1 s", "5 min"."""
    if ms < 1_000:
        return f"{ms} ms"
    return f"{ms / 1_000:.1f} s" if ms < 120_000 else f"{ms // 60_000} min"


# --- changes ------------------------------------------------------------------------------------------------
# Catching up means the whole log, or a snapshot with all live messages.
ADD_S_DEFAULT: Final = 600.0


@cluster.command(epilog=example("walrq cluster add n4 --address 127.0.0.1:50154"))
@click.argument("node")
@click.option("--address", metavar="HOST:PORT", help="Where its peers reach it.  [what the node has told itself]")
@click.option("--learner", is_flag=True, help="It gets the log and never votes.")
@click.option(
    "--wait", type=seconds, metavar="TIME", default=ADD_S_DEFAULT, help="Longest time for it to catch up.  [10m]"
)
@json_option
@server_option
def add(node: str, address: str | None, learner: bool, wait: float, as_json: bool, server: str | None) -> None:
    """Take NODE in: it gets the log as a learner, and votes once it has caught up.

    Start it first: `walrq serve --node-id NODE --join HOST:PORT ...`. A learner that is there becomes a voter, unless
    --learner says otherwise.
    """
    with open_client(server, session=False) as client:
        try:
            state = client.add_node(node, address, learner=learner, timeout=wait)
        except ReplyTimeout as error:
            error.text = f"{node} is not there after {wait:g} s; `walrq cluster status` shows how far it is"
            raise
    _report(state, f"{node} {'is a learner' if learner else 'votes'}", as_json)


@cluster.command(epilog=example("walrq cluster remove n3 --yes"))
@click.argument("node", shell_complete=complete_nodes)
@yes_option
@json_option
@server_option
def remove(node: str, yes: bool, as_json: bool, server: str | None) -> None:
    """End NODE's membership; the others go on without it.

    Stop its process afterwards. It cannot come back with its data directory: to take it in again, start it on an
    empty one with --join.
    """
    confirm(f"Remove {node} from the cluster?", yes, "the node cannot come back with its data")
    with open_client(server, session=False) as client:
        state = client.remove_node(node)
    _report(state, f"{node} is no member any more", as_json)


@cluster.command(epilog=example("walrq cluster transfer n2"))
@click.argument("node", required=False, shell_complete=complete_nodes)
@json_option
@server_option
def transfer(node: str | None, as_json: bool, server: str | None) -> None:
    """Let NODE lead, or the one that is furthest: before its machine is maintained, say.

    Nothing is lost and hardly anything waits: requests on their way go to the new leader.
    """
    with open_client(server, session=False) as client:
        state = client.transfer_leadership(node)
    _report(state, f"{state.leader} leads", as_json)


def _report(state: ClusterState, what: str, as_json: bool) -> None:
    if as_json:
        from walrq.live import members

        output.json_line(members.value(state))
        return
    print(f"{what}; members: {', '.join(member.node for member in state.members)}")


COMMANDS = (cluster,)
