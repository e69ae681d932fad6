"""`walrq cluster` against a scripted server: what is asked, what is printed, what a refusal looks like.

Real clusters are in tests/e2e/test_cluster.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.cli.conftest import Shell, make_shell
from tests.client.fake_server import Connection, FakeServer, running
from walrq import api
from walrq.cli import cluster
from walrq.errors import Code
from walrq.protocol.requests import Incoming


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A node that plays n1."""
    with running() as started:
        yield started


@pytest.fixture
def shell(server: FakeServer, tmp_path: Path) -> Shell:
    """A shell whose server is the scripted one."""
    return make_shell(tmp_path, server.url)


def state_of(server: FakeServer, leader: str | None = "n1", node: str = "n1") -> api.ClusterState:
    """Three nodes: one leads, one follows, one is away."""
    return api.ClusterState(
        node=node,
        cluster="c-1",
        leader=leader,
        term=7,
        commit_index=1_000,
        applied_index=990,
        members=(
            api.MemberState("n1", "leader", "10.0.0.1:50151", f"127.0.0.1:{server.port}", "normal", 1_003),
            api.MemberState("n2", "voter", "10.0.0.2:50151", "10.0.0.2:50051", "normal", 998, 12),
            api.MemberState("n3", "voter", "", None, "unreachable", 400, 125_000),
        ),
    )


def answers(server: FakeServer, reply: api.Reply) -> None:
    """Everything but pings is answered so."""
    server.script = lambda connection, incoming: api.Pong() if type(incoming.request) is api.Ping else reply


def test_status_shows_who_leads_who_lags_and_who_is_away(server: FakeServer, shell: Shell) -> None:
    """Ten seconds before a restart one wants to know exactly this; scripts get the same as JSON."""
    state = state_of(server)
    answers(server, state)
    shown = shell.walrq("cluster", "status")
    read = shell.walrq("cluster", "status", "--json")
    (value,) = [json.loads(line) for line in read.stdout.splitlines()]

    assert (0, b"") == (shown.returncode, shown.stderr)
    assert [
        ["n1", "leader", f"127.0.0.1:{server.port}", "10.0.0.1:50151", "0", "-", "normal"],
        ["n2", "voter", "10.0.0.2:50051", "10.0.0.2:50151", "2", "12 ms", "normal"],
        ["n3", "voter", "-", "-", "600", "2 min", "unreachable"],
    ] == [line.split("\t") for line in shown.stdout.decode().splitlines()]
    assert attrs.asdict(state) | {"members": [*value["members"]]} == value
    assert [0, 2, 600] == [member["lag"] for member in value["members"]]
    assert [12, 125_000] == [member["heard_ms"] for member in value["members"][1:]]
    assert ["n1", "n2", "n3"] == [member["node"] for member in value["members"]]


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0 ms"), (999, "999 ms"), (1_000, "1.0 s"), (119_949, "119.9 s"), (120_000, "2 min")]
)
def test_a_time_is_short(ms: int, text: str) -> None:
    """A table has no room for milliseconds of an hour."""
    assert text == cluster.duration(ms)


def test_a_follower_is_asked_and_its_leader_as_well(server: FakeServer, shell: Shell) -> None:
    """Any node may be named; how far the others are only the leader knows."""
    with running() as follower:
        known = state_of(server, node="n2")
        blind = tuple(attrs.evolve(member, match_index=None, heard_ms=None) for member in known.members)
        answers(follower, attrs.evolve(known, members=blind))
        answers(server, state_of(server))
        ran = shell.walrq("cluster", "status", "--json", "--server", follower.url)
        answers(server, api.Failed(Code.OVERLOADED, "later"))
        alone = shell.walrq("cluster", "status", "--json", "--server", follower.url)

    assert ("n1", 600) == (json.loads(ran.stdout)["node"], json.loads(ran.stdout)["members"][2]["lag"])
    assert (0, "n2", None) == (
        alone.returncode,
        json.loads(alone.stdout)["node"],
        json.loads(alone.stdout)["members"][2]["lag"],
    )


def test_without_a_leader_the_status_says_so_and_ends_with_5(server: FakeServer, shell: Shell) -> None:
    """`until walrq cluster status` waits for a cluster; what is known is printed all the same."""
    answers(server, state_of(server, leader=None))
    ran = shell.walrq("cluster", "status")

    assert 5 == ran.returncode
    assert 3 == len(ran.stdout.splitlines())
    assert b"walrq: n1 knows of no leader: an election is going on, or no majority is up\n" == ran.stderr


def test_a_node_that_is_no_member_says_that_instead(server: FakeServer, shell: Shell) -> None:
    """An election that never ends is not what is wrong with it."""
    known = state_of(server, leader=None)
    answers(server, attrs.evolve(known, members=known.members[1:]))
    ran = shell.walrq("cluster", "status")

    assert 5 == ran.returncode
    assert ran.stderr.startswith(b"walrq: n1 is no member: it was removed, ")


def asked(server: FakeServer) -> list[api.Request]:
    """What was asked of it."""
    return [each.request for each in server.asked]


@pytest.mark.parametrize(
    ("arguments", "request_", "said"),
    [
        (["add", "n4"], api.AddNode("n4"), "n4 votes"),
        (["add", "n4", "--address", "h:1"], api.AddNode("n4", "h:1"), "n4 votes"),
        (["add", "n4", "--learner"], api.AddNode("n4", learner=True), "n4 is a learner"),
        (["remove", "n3", "--yes"], api.RemoveNode("n3"), "n3 is no member any more"),
        (["transfer"], api.TransferLeadership(), "n1 leads"),
        (["transfer", "n1"], api.TransferLeadership("n1"), "n1 leads"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else None,
)
def test_a_change_is_asked_for_and_said(
    server: FakeServer, shell: Shell, arguments: list[str], request_: api.Request, said: str
) -> None:
    """One line says what is so now; `--json` is the state, as from `status`."""
    answers(server, state_of(server))
    ran = shell.walrq("cluster", *arguments)
    read = shell.walrq("cluster", *arguments, "--json")

    assert [request_, request_] == asked(server)
    assert (0, f"{said}; members: n1, n2, n3\n", b"") == (ran.returncode, ran.stdout.decode(), ran.stderr)
    assert "c-1" == json.loads(read.stdout)["cluster"]


def test_remove_asks_first(server: FakeServer, shell: Shell) -> None:
    """A member removed by mistake has to begin with nothing."""
    answers(server, state_of(server))
    ran = shell.walrq("cluster", "remove", "n3")

    assert 2 == ran.returncode
    assert b"the node cannot come back with its data: add --yes" in ran.stderr
    assert [] == asked(server)


def test_a_refusal_is_in_the_words_of_the_server(server: FakeServer, shell: Shell) -> None:
    """It knows why; the last voter cannot be removed, say."""
    answers(server, api.Failed(Code.INVALID_ARGUMENT, "n1 is the last voter and cannot be removed"))
    ran = shell.walrq("cluster", "remove", "n1", "--yes")

    assert (1, b"", b"walrq: n1 is the last voter and cannot be removed\n") == (
        ran.returncode,
        ran.stdout,
        ran.stderr,
    )


def test_what_is_not_possible_now_is_said_at_once(server: FakeServer, shell: Shell) -> None:
    """The node that refuses is well: asking it, or another one, again and again would hide the reason."""
    text = "no node answers there (127.0.0.1:1 cannot be reached: Connection refused)"
    refusal = api.Failed(Code.NOT_READY, text, {"field": "address"})
    with running() as other:
        for each in (server, other):
            answers(each, refusal)
        ran = shell.walrq(
            "cluster", "add", "n9", "--address", "127.0.0.1:1", "--server", f"{server.url},{other.url[8:]}"
        )

    assert (5, b"", f"walrq: {text}\n".encode()) == (ran.returncode, ran.stdout, ran.stderr)
    assert [api.AddNode("n9", "127.0.0.1:1")] == asked(server) + asked(other)


def test_adding_waits_as_long_as_it_is_told(server: FakeServer, shell: Shell) -> None:
    """Catching up takes its time; time that runs out is an unknown outcome, and says where to look."""

    def silent(connection: Connection, incoming: Incoming) -> api.Reply | None:
        return api.Pong() if type(incoming.request) is api.Ping else None

    server.script = silent
    ran = shell.walrq("cluster", "add", "n4", "--wait", "200ms")

    assert 6 == ran.returncode
    assert b"walrq cluster status" in ran.stderr
    assert 1 == len(ran.stderr.splitlines())


@pytest.mark.parametrize(
    ("arguments", "status", "hint"),
    [
        (["start", "--nodes", "0"], 78, "nodes is 0, allowed are 1 to 9"),
        (["start", "--nodes", "ten"], 2, "'ten' is not a valid integer"),
        (["start", "--base-port", "65500"], 78, "base_port is 65500, allowed are 0 to 65433 with 3 nodes"),
        (["start", "--base-dir", "."], 74, "and no cluster.json: name an empty or a new directory"),
        (["start", "--base-dir", "no/where"], 74, "no/where cannot be used: No such file or directory"),
        (["start", "--", "--data-dir", "x"], 78, "--data-dir differs from node to node"),
        (["start", "x"], 78, "'x' is no flag of `walrq serve`"),
        (["join"], 2, "No such command 'join'"),
        (["add", "n4", "--wait", "soon"], 2, "no duration"),
        (["add"], 2, "NODE"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line_with_the_way_out(tmp_path: Path, arguments: list[str], status: int, hint: str) -> None:
    """What was wrong, what is allowed, and nothing started."""
    ran = make_shell(tmp_path, None).walrq("cluster", *arguments)
    (line,) = ran.stderr.decode().splitlines()

    assert hint in line
    assert (status, b"") == (ran.returncode, ran.stdout)


def test_the_banner_can_be_pasted() -> None:
    """Where the nodes are, and what to type next."""
    nodes = [{"node": f"n{i}", "endpoints": {"cbor": f"127.0.0.1:{i}"}, "log": f"/c/n{i}.log"} for i in (1, 2)]
    text = cluster.banner({"base_dir": "/c", "url": "walrq://127.0.0.1:1,127.0.0.1:2", "nodes": nodes})

    assert "  n2     127.0.0.1:2            /c/n2.log\n" in text
    assert "    export WALRQ_SERVER=walrq://127.0.0.1:1,127.0.0.1:2\n" in text
