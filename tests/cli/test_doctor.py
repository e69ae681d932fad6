"""`walrq doctor`: what it calls good, what it warns of, what is bad."""

from __future__ import annotations

import json
import os
import socket
import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT, Shell, make_shell
from tests.forks.nodes import Node
from tests.requirements import require
from walrq import api
from walrq.cli import doctor
from walrq.storage import inspect

IDS = {
    "python",
    "packages",
    "environment",
    "server",
    "versions",
    "clock",
    "settings",
    "epoll",
    "descriptors",
    "data_dir",
    "lock",
    "space",
    "file_system",
    "sync",
    "port",
}


def findings(shell: Shell, *arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit status, and what was found by id."""
    ran = shell.walrq("doctor", "--json", *arguments)
    assert b"" == ran.stderr
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    by_id = {each["id"]: each for each in found}
    assert len(found) == len(by_id), "an id comes once"
    return ran.returncode, by_id


def test_a_running_node_is_found_well(shell: Shell, node: Node) -> None:
    """All ids are there; the directory's holder is the node's own process, its port is its own."""
    require("linux", "epoll")
    host, port = node.address
    status, found = findings(shell, "--data-dir", str(node.data_dir), "--listen", f"{host}:{port}")

    assert IDS == set(found)
    assert 0 == status
    assert set() == {name for name, each in found.items() if each["status"] == "bad"}
    assert f"process {node.pid};" in found["lock"]["text"]
    assert f"in use by node {node.ready['node']}" in found["port"]["text"]
    assert "good" == found["versions"]["status"] == found["clock"]["status"]


def test_what_makes_a_start_fail_is_bad(tmp_path: Path) -> None:
    """A missing parent, a foreign directory, a taken port, a server that was named and is not there: status 1."""
    shell = make_shell(tmp_path, "walrq://127.0.0.1:1")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/todo.txt").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        taken.settimeout(0)
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, found = findings(shell, "--data-dir", "no/such/parent", "--listen", address)
        _, foreign = findings(shell, "--data-dir", "notes", "--listen", "127.0.0.1:0")

    assert 1 == status
    assert {"server", "data_dir", "port"} == {name for name, each in found.items() if each["status"] == "bad"}
    assert "WALRQ_SERVER" in found["server"]["text"]
    assert "'todo.txt'" in foreign["data_dir"]["text"]
    assert all(each["advice"] for each in found.values() if each["status"] == "bad")


def test_a_machine_before_its_first_start_is_not_sick(tmp_path: Path) -> None:
    """Nobody said that there is a server: that none answers is a remark, not a fault."""
    found = list(doctor.look_at_server(_target("default")))

    assert [("server", "warning")] == [(each.id, each.status) for each in found]


def _target(origin: str) -> doctor.Target:
    from walrq.cli.contexts import Target

    return Target("walrq://127.0.0.1:1", origin)


def test_a_wrong_setting_and_an_unread_variable_are_told(tmp_path: Path) -> None:
    """The first stops a start, the second is read by nobody."""
    shell = make_shell(tmp_path, None)
    shell.environment.update({"WALRQ_FSYNC": "sometimes", "WALRQ_COLOUR": "red"})
    status, found = findings(shell)

    assert (1, "bad", "warning") == (status, found["settings"]["status"], found["environment"]["status"])
    assert "WALRQ_FSYNC" in found["settings"]["text"]
    assert "WALRQ_COLOUR" in found["environment"]["text"]


def test_lines_for_people_end_with_a_count(tmp_path: Path) -> None:
    """What to do stands below what is so."""
    shell = make_shell(tmp_path, "walrq://127.0.0.1:1")
    lines = shell.walrq("doctor", "--listen", "127.0.0.1:0").stdout.decode().splitlines()

    at = next(number for number, line in enumerate(lines) if line.startswith("bad     server"))
    assert lines[at + 1].lstrip().startswith("-> start one with `walrq serve`")
    assert lines[-1].endswith("1 bad")


def state_of(*members: tuple[str, str, str, int], leader: str | None = "n1") -> api.ClusterState:
    """A cluster as its node n1 knows it: (name, role, status, match index) of each member; 5,000 entries decided."""
    found = tuple(api.MemberState(name, role, "h:1", None, status, index) for name, role, status, index in members)
    return api.ClusterState("n1", "c", leader, 1, 5_000, 5_000, found)


WELL = [(f"n{i}", "voter", "normal", 5_000) for i in (1, 2, 3)]


@pytest.mark.parametrize(
    ("state", "status", "words"),
    [
        (state_of(*WELL), "good", "n1 leads n1, n2, n3; 1 may fail"),
        (state_of(*WELL, leader=None), "bad", "n1 knows of no leader among n1, n2, n3"),
        (
            state_of(*WELL[:2], ("n3", "voter", "unreachable", 5_000)),
            "warning",
            "n3 cannot be reached: one more failure stops the cluster",
        ),
        (
            state_of(*WELL, ("n4", "voter", "normal", 5_000), ("n5", "voter", "unreachable", 1)),
            "warning",
            "n5 cannot be reached: 1 more may fail",
        ),
        (state_of(*WELL[:2], ("n3", "voter", "normal", 3_999)), "warning", "behind are n3 by 1001 entries"),
        (state_of(*WELL, ("n4", "voter", "normal", 5_000)), "warning", "4 voters bear no more failures than 3"),
        (state_of(*WELL, ("n4", "learner", "normal", 5_000)), "good", "1 may fail"),
    ],
)
def test_a_cluster_that_bears_no_failure_more_is_named(state: api.ClusterState, status: str, words: str) -> None:
    """The second failure is the one that hurts; it should not come as a surprise."""
    found = doctor.judge_cluster(state)

    assert ("cluster", status) == (found.id, found.status)
    assert words in found.text


def test_a_node_with_peers_has_a_door_for_them_and_a_secret(tmp_path: Path) -> None:
    """Both are looked for at a start only; a secret that others may read is none."""
    secret = tmp_path / "secret"
    secret.write_text("a secret of this test\n")
    shell = make_shell(tmp_path, None)
    flags = ["--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0", "--cluster-secret-file"]
    secret.chmod(0o644)
    _, open_ = findings(shell, *flags, str(secret))
    secret.chmod(0o600)
    _, closed = findings(shell, *flags, str(secret))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flags[3] = f"127.0.0.1:{taken.getsockname()[1]}"
        status, bad = findings(shell, *flags, str(tmp_path / "absent"))

    assert ("warning", "good") == (open_["secret"]["status"], closed["secret"]["status"])
    assert f"chmod 600 {secret}" == open_["secret"]["advice"]
    assert "good" == closed["peer_port"]["status"]
    assert (1, "bad", "warning") == (status, bad["secret"]["status"], bad["peer_port"]["status"])
    assert "absent cannot be read" in bad["secret"]["text"]


def test_the_other_doors_are_looked_at_where_they_are_opened(tmp_path: Path) -> None:
    """A taken port is named with the flag that names another; a door that stays shut is no finding."""
    shell = make_shell(tmp_path, None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        _, found = findings(shell, "--listen", "127.0.0.1:0", "--http-listen", address, "--ws-listen", "127.0.0.1:0")

    assert ("warning", "good") == (found["http_port"]["status"], found["ws_port"]["status"])
    assert "--http-listen" in found["http_port"]["advice"]
    assert "resp_port" not in found


@pytest.mark.parametrize(
    ("ahead_s", "status", "word"),
    [(0.0, "good", "0 ms"), (-1.9, "good", "1900 ms"), (2.1, "warning", "ahead of"), (-90.0, "warning", "behind")],
)
def test_clocks_that_differ_are_named(ahead_s: float, status: str, word: str) -> None:
    """Delays end by the server's clock."""
    found = doctor.judge_clock(ahead_s)

    assert status == found.status
    assert word in found.text


@pytest.mark.parametrize(
    ("free", "fresh", "status"),
    [(10 << 30, True, "good"), (500 << 20, True, "warning"), (200 << 20, True, "bad"), (200 << 20, False, "warning")],
)
def test_space_is_measured_by_what_a_start_takes(free: int, fresh: bool, status: str) -> None:
    """A directory that is there has its segments already."""
    assert status == doctor.judge_space(free, 64 << 20, fresh=fresh).status


@pytest.mark.parametrize(
    ("kind", "status"),
    [("ext4", "good"), ("", "good"), ("tmpfs", "warning"), ("nfs4", "warning"), ("overlay", "warning")],
)
def test_file_systems_that_forget_or_pretend_are_named(kind: str, status: str) -> None:
    """Memory, a network, a container's layer."""
    assert status == doctor.judge_file_system(kind).status


MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:25 / /run rw shared:5 - tmpfs tmpfs rw
31 22 0:30 / /my\\040data rw - nfs4 host:/ rw
32 22 0:31 / /over rw - ext4 /dev/sdb1 rw
33 32 0:32 / /over rw - xfs /dev/sdc1 rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/var/lib", "ext4"), ("/run/walrq", "tmpfs"), ("/runner", "ext4"), ("/my data/x", "nfs4"), ("/over/x", "xfs")],
)
def test_the_mount_of_a_path_is_the_deepest_and_latest(path: str, kind: str) -> None:
    """A name that only begins alike is another place; a mount may lie over another."""
    assert kind == doctor.file_system(Path(path), MOUNTS)


@pytest.mark.parametrize(("variable", "bad"), [("WALRQ_SERVR", "server"), ("WALRQ_FSYNCC", "settings")])
def test_a_mistyped_variable_is_a_finding_and_the_rest_is_looked_at(tmp_path: Path, variable: str, bad: str) -> None:
    """Other commands end there; this one is asked what is wrong."""
    shell = make_shell(tmp_path, None)
    shell.environment[variable] = "x"

    ran = shell.walrq("doctor", "--json", "--listen", "127.0.0.1:0")

    found = {each["id"]: each for each in map(json.loads, ran.stdout.splitlines())}
    assert (1, b"") == (ran.returncode, ran.stderr)
    assert "bad" == found[bad]["status"]
    assert variable in found[bad]["text"]
    assert "did you mean" in found[bad]["text"]
    assert {"environment", "epoll", "descriptors", "data_dir", "port"} <= set(found)


def test_the_holder_of_a_lock_is_found_by_device_and_inode(tmp_path: Path) -> None:
    """Other locks, and other kinds of locks on the same file, are passed over."""
    file = tmp_path / "LOCK"
    file.write_text("")
    status = file.stat()
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    others = f"1: POSIX  ADVISORY  WRITE 11 {place} 0 EOF\n2: FLOCK  ADVISORY  WRITE 12 08:01:1 0 EOF\n"

    assert None is inspect.holder_of(status, others)
    assert 13 == inspect.holder_of(status, f"{others}3: FLOCK  ADVISORY  WRITE 13 {place} 0 EOF\n")
    assert None is inspect.holder_of(status, f"{others}3: FLOCK  ADVISORY  WRITE 0 {place} 0 EOF\n"), "not seen here"


@pytest.mark.parametrize(
    ("times_ms", "never", "status"),
    [
        ([0.2, 0.3, 9.0], False, "good"),
        ([25.0, 30.0, 31.0], False, "warning"),
        ([25.0, 30.0, 31.0], True, "good"),
        ([0.001, 0.002, 0.003], False, "warning"),
    ],
)
def test_slow_and_impossible_syncs_are_named(times_ms: list[float], never: bool, status: str) -> None:
    """Every durable answer waits for one; one that takes no time did nothing."""
    assert status == doctor.judge_sync(times_ms, never).status


def test_the_probe_of_the_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    """Not even when it is left in the middle."""
    steps = doctor.time_syncs(tmp_path)
    next(steps)
    assert [] == os.listdir(tmp_path)
    steps.close()

    assert doctor.SYNCS == len(list(doctor.time_syncs(tmp_path)))
    assert [] == os.listdir(tmp_path)


def test_too_few_descriptors_are_a_warning_with_the_number_that_fits() -> None:
    """The cap of connections would never be reached."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)

    assert "good" == doctor.look_at_descriptors(1).status
    found = doctor.look_at_descriptors(soft + 1)
    assert "warning" == found.status
    assert f"--max-connections {soft - doctor.DESCRIPTORS_BESIDE}" in (found.advice or "")


def test_requirements_are_read_as_they_are_written() -> None:
    """Each of our own lines has a lower and an upper bound, and today's versions are within them."""
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for line in lines:
        name, bounds = doctor.requirement(line)
        assert line.startswith(name)
        assert [">=", "<"] == [operator for operator, _ in bounds], line
    assert ("trio", [("<", "1"), (">=", "0.30")]) == doctor.requirement('trio<1,>=0.30; python_version > "3"')
    assert doctor._within("0.35.0", ">=", "0.30")
    assert not doctor._within("1.0", "<", "1")
    assert doctor._within("8.5.1rc1", "<", "9")
