"""How a node comes to have peers: the cluster's id, what is kept for the next start, where others reach it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trustme

from tests.ports import free_port
from walrq.daemon import peers, supervisor
from walrq.daemon.config import Config
from walrq.errors import ConfigError, NotReady
from walrq.peers.mesh import Mesh
from walrq.storage.disk import RealDisk
from walrq.testing.disk import SimDisk

SECRET = "a secret for tests only"


@pytest.fixture
def served_here() -> Iterator[None]:
    """For who calls `supervisor.serve` in this process: it keeps the signals until its process ends."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_same_list_makes_the_same_cluster_and_another_list_another() -> None:
    """Three separate commands have to agree without talking, and strangers must not."""
    first = Config.load({"bootstrap": "a=h:1,b=h:2", "node_id": "a"})
    second = Config.load({"bootstrap": "b=h:2,a=h:1", "node_id": "b"})
    other = Config.load({"bootstrap": "a=h:1,b=h:3", "node_id": "a"})

    assert peers.cluster_id_of(first.bootstrap) == peers.cluster_id_of(second.bootstrap)
    assert peers.cluster_id_of(first.bootstrap) != peers.cluster_id_of(other.bootstrap)


def test_a_list_counts_once_and_a_list_of_strangers_is_refused() -> None:
    """Units and compose files give it at every start, with members added since; another cluster's directory is not
    started by mistake."""
    begun = Config.load({"bootstrap": "a=h:1,b=h:2,c=h:3", "node_id": "a"})
    cluster = peers.cluster_id_of(begun.bootstrap)
    members = peers.first_configuration(begun)
    assert members is not None
    peers.check_cluster(begun, cluster, members)
    peers.check_cluster(Config.load({"bootstrap": "a=new:1,b=h:2,d=h:4", "node_id": "a"}), cluster, members)

    for strangers in ("a=h:1,b=h:9", "a=h:1", "a=h:1,x=h:2"):
        with pytest.raises(ConfigError, match=r"names another cluster .* it counts at the first start only"):
            peers.check_cluster(Config.load({"bootstrap": strangers, "node_id": "a"}), cluster, members)


def test_a_first_start_is_a_member_a_newcomer_or_alone() -> None:
    """None, nobody and a list are three different beginnings."""
    member = peers.first_configuration(Config.load({"bootstrap": "a=h:1,b=h:2", "node_id": "a"}))
    newcomer = peers.first_configuration(Config.load({"join": "h:1"}))

    assert member is not None and newcomer is not None
    assert {"a": "h:1", "b": "h:2"} == {name: each.address for name, each in member.voters.items()}
    assert () == newcomer.nodes
    assert None is peers.first_configuration(Config())


def test_what_is_kept_is_written_once_and_read_back() -> None:
    """A restart needs only the directory; a start that changes nothing writes nothing."""
    disk = SimDisk()
    disk.make_directory("data")
    config = Config.load({"data_dir": "data", "peer_listen": "127.0.0.1:7001", "cluster_secret_file": "s"})
    assert {} == peers.read_kept(disk, "data")
    peers.keep(disk, config, {})
    kept = peers.read_kept(disk, "data")
    unlinked = SimDisk()
    peers.keep(unlinked, config, kept)

    assert {"peer_listen": "127.0.0.1:7001", "cluster_secret_file": "s"} == kept
    assert config == Config.load({"data_dir": "data"}).with_kept(kept, "data/peers.json")
    assert not unlinked.exists("data/peers.json")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is damaged"),
        ('{"format": 2}', "is not of format 1"),
        ("[]", "is not of format 1"),
        (json.dumps({"format": 1, "x": "y" * 70_000}), "is not of format 1"),
        (b"\xff\xfe", "is damaged"),
    ],
)
def test_a_kept_file_that_cannot_be_read_is_named_with_what_to_do(
    tmp_path: Path, content: str | bytes, words: str
) -> None:
    """Starting without it would start a node that its peers cannot find."""
    (tmp_path / peers.PEERS).write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(ConfigError, match=f"peers.json {words}.*; give the settings it kept again and remove it"):
        peers.read_kept(RealDisk(), str(tmp_path))


@pytest.mark.parametrize(
    ("given", "bound", "reached"),
    [
        ({"peer_listen": "127.0.0.1:0"}, "127.0.0.1:4711", "127.0.0.1:4711"),
        ({"peer_listen": ":7001", "advertise": "n1.example:7001"}, "0.0.0.0:7001", "n1.example:7001"),
        ({"bootstrap": "a=n1.example:7001", "node_id": "a"}, "0.0.0.0:7001", "n1.example:7001"),
        ({"bootstrap": "a=h:1", "node_id": "a", "advertise": "moved:2"}, "0.0.0.0:2", "moved:2"),
    ],
)
def test_the_others_are_told_where_this_node_is_reached(given: dict[str, str], bound: str, reached: str) -> None:
    """Listening everywhere is no address; what was said about it wins over what was found out."""
    assert reached == peers.reach(Config.load(given), bound)


def test_a_node_that_listens_everywhere_must_say_where_it_is() -> None:
    """Its peers would connect to themselves."""
    for bound in ("0.0.0.0:7001", "[::]:7001"):
        with pytest.raises(ConfigError, match=r"say with advertise \(--advertise HOST:PORT\)"):
            peers.reach(Config.load({"peer_listen": ":7001"}), bound)


def test_clients_are_sent_to_the_host_that_peers_use_when_the_door_is_open_everywhere() -> None:
    """A redirect to 0.0.0.0 leads a client back to its own machine."""
    assert "n1:50051" == peers.endpoint_for_clients("0.0.0.0:50051", "n1:7001")
    assert "[fd00::1]:50051" == peers.endpoint_for_clients("[::]:50051", "[fd00::1]:7001")
    assert "10.0.0.1:50051" == peers.endpoint_for_clients("10.0.0.1:50051", "n1:7001")


def test_certificates_come_from_the_three_files_or_not_at_all(tmp_path: Path) -> None:
    """A start whose TLS cannot work says which file it is, before it opens anything."""
    authority = trustme.CA()
    issued = authority.issue_cert("n1.example")
    names = {"peer_tls_cert": "cert.pem", "peer_tls_key": "key.pem", "peer_tls_ca": "ca.pem"}
    paths = {setting: tmp_path / name for setting, name in names.items()}
    paths["peer_tls_cert"].write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(paths["peer_tls_key"])
    given = {setting: str(path) for setting, path in paths.items()}
    with pytest.raises(ConfigError, match=r"peer_tls_ca .*ca\.pem' cannot be read"):
        peers.load_tls(Config.load(given))
    authority.cert_pem.write_to_path(paths["peer_tls_ca"])

    assert None is not peers.load_tls(Config.load(given))
    assert None is peers.load_tls(Config())


@pytest.mark.usefixtures("served_here")
def test_an_exception_among_the_peers_ends_the_process_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A node that has lost its links without noticing would be a member in name only."""

    async def explode(*_: object, **__: object) -> None:
        await trio.lowlevel.checkpoint()
        raise RuntimeError("planted among the peers")

    monkeypatch.setattr(Mesh, "run", explode)
    config = Config(
        data_dir=str(tmp_path / "data"),
        listen=("127.0.0.1", 0),
        peer_listen=("127.0.0.1", 0),
        cluster_secret=SECRET,
        max_wal_segment_size=1 << 20,
    )

    status = supervisor.serve(config)

    fatal = [line for line in capfd.readouterr().err.splitlines() if "fatal" in line]
    assert supervisor.EXIT_INTERNAL == status
    assert 1 == len(fatal)
    assert "planted among the peers" in fatal[0]


@pytest.mark.usefixtures("served_here")
def test_a_node_with_peers_is_ready_with_both_doors_and_keeps_their_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port that was free becomes the node's own: its peers know it by that."""
    lines: list[supervisor.ReadyLine] = []

    async def greet(line: supervisor.ReadyLine) -> None:
        lines.append(line)
        await trio.lowlevel.checkpoint()
        signal.raise_signal(signal.SIGTERM)

    config = Config(
        data_dir=str(tmp_path / "data"),
        listen=("127.0.0.1", 0),
        peer_listen=("127.0.0.1", 0),
        cluster_secret=SECRET,
        max_wal_segment_size=1 << 20,
    )
    for _ in range(2):
        assert 0 == supervisor.serve(config, greet=greet)
        config = Config(
            data_dir=str(tmp_path / "data"),
            listen=("127.0.0.1", 0),
            cluster_secret=SECRET,
            max_wal_segment_size=1 << 20,
        )
    kept = json.loads((tmp_path / "data" / peers.PEERS).read_text())

    assert {"cbor", "peer"} == set(lines[0]["endpoints"])
    assert lines[0]["endpoints"]["peer"] == lines[1]["endpoints"]["peer"] == kept["peer_listen"] == kept["advertise"]
    assert SECRET not in json.dumps(kept)


@pytest.mark.usefixtures("served_here")
def test_one_port_for_clients_and_for_peers_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Before the node calls itself ready."""
    door = ("127.0.0.1", free_port())
    config = Config(
        data_dir=str(tmp_path / "data"),
        listen=door,
        peer_listen=door,
        cluster_secret=SECRET,
        max_wal_segment_size=1 << 20,
    )

    status = supervisor.serve(config)

    assert 78 == status
    assert "they need two ports" in capfd.readouterr().err


@pytest.mark.usefixtures("served_here")
def test_a_node_that_waits_to_be_taken_in_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The cluster may not be there for a long time; the wait is said once and ends with a signal, as any start."""
    asked = []

    async def knock(addresses: tuple[str, ...], *_: object) -> None:
        await trio.lowlevel.checkpoint()
        asked.append(addresses)
        if len(asked) == 3:
            signal.raise_signal(signal.SIGTERM)
        raise NotReady("nobody is there")

    monkeypatch.setattr(peers, "knock", knock)
    monkeypatch.setattr(peers, "_KNOCK_S", 0.001)
    config = Config(
        data_dir=str(tmp_path / "data"),
        listen=("127.0.0.1", 0),
        peer_listen=("127.0.0.1", 0),
        join=("127.0.0.1:1",),
        cluster_secret=SECRET,
        max_wal_segment_size=1 << 20,
    )

    status = supervisor.serve(config)

    said = capfd.readouterr().err
    assert 0 == status
    assert 3 <= len(asked)
    assert 1 == said.count('"event": "join_waits"')
    assert "stopped_early" in said
