"""The base directory of a cluster on one machine."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path

import pytest

from walrq.errors import AddressInUse, ConfigError, DataDirInvalid
from walrq.local import layout


def taken(sock: socket.socket) -> int:
    """Listen somewhere below the ports of outgoing connections; where."""
    for port in layout.FREE_PORTS:
        try:
            sock.bind((layout.HOST, port))
            sock.listen()
        except OSError:
            continue
        return port
    raise AssertionError("no port is free")


def test_a_second_start_finds_what_the_first_one_made(tmp_path: Path) -> None:
    """Nodes know each other by address and secret: neither may change between two starts."""
    base = tmp_path / "cluster"
    first = layout.prepare(base, 5, 0)
    secret = first.secret.read_text()
    again = [layout.prepare(base), layout.prepare(base, 5, 0)]

    assert [first, first] == again
    assert ["n1", "n2", "n3", "n4", "n5"] == [place.node for place in first.places]
    assert 10 == len({address for place in first.places for address in (place.listen, place.peer)})
    assert secret == first.secret.read_text()
    assert 64 == len(secret.strip())
    assert 0o600 == stat.S_IMODE(first.secret.stat().st_mode)


def test_a_secret_that_others_may_read_is_closed_again(tmp_path: Path) -> None:
    """A copy or a restored backup comes with whatever mode its tool liked."""
    made = layout.prepare(tmp_path / "cluster", 1, 0)
    made.secret.chmod(0o644)
    layout.prepare(tmp_path / "cluster")

    assert 0o600 == stat.S_IMODE(made.secret.stat().st_mode)


def test_an_interrupted_first_start_begins_again_with_its_secret(tmp_path: Path) -> None:
    """The record comes last; without it no node was started."""
    made = layout.prepare(tmp_path / "cluster", 3, 0)
    secret = made.secret.read_text()
    (made.base / layout.RECORD).unlink()
    (made.base / f"{layout.RECORD}.tmp").write_text("{")
    again = layout.prepare(tmp_path / "cluster", 3, 0)

    assert secret == again.secret.read_text()
    assert sorted([layout.RECORD, layout.SECRET]) == sorted(os.listdir(made.base))


def test_every_node_is_told_the_same_list_and_its_own_place(tmp_path: Path) -> None:
    """Three processes agree on a cluster only if they were told the same."""
    made = layout.prepare(tmp_path / "cluster", 3, 0)
    flags = [dict(zip(words[::2], words[1::2], strict=True)) for words in map(made.flags, made.places)]

    assert 1 == len({each["--bootstrap"] for each in flags})
    assert [f"n{i}" for i in (1, 2, 3)] == [each["--node-id"] for each in flags]
    assert 3 == len({each["--data-dir"] for each in flags})
    for each in flags:
        assert f"{each['--node-id']}={each['--peer-listen']}" in each["--bootstrap"].split(",")
    assert made.url == "walrq://" + ",".join(each["--listen"] for each in flags)


def test_ports_begin_where_they_are_told_to(tmp_path: Path) -> None:
    """A firewall's rule is written before the cluster is."""
    with socket.socket() as probe:
        port = taken(probe)
    made = layout.prepare(tmp_path / "cluster", 1, port)

    assert (f"127.0.0.1:{port}", f"127.0.0.1:{port + 100}") == (made.places[0].listen, made.places[0].peer)


@pytest.mark.parametrize(
    ("nodes", "base_port", "words"),
    [
        (0, 0, "nodes is 0, allowed are 1 to 9"),
        (10, 0, "nodes is 10, allowed are 1 to 9"),
        (3, -1, "base_port is -1, allowed are 0 to 65433 with 3 nodes"),
        (3, 65_434, "base_port is 65434, allowed are 0 to 65433 with 3 nodes"),
    ],
)
def test_numbers_out_of_range_name_the_field_and_the_limit(
    tmp_path: Path, nodes: int, base_port: int, words: str
) -> None:
    """One line that can be acted on, and nothing is made."""
    with pytest.raises(ConfigError, match=words):
        layout.prepare(tmp_path / "cluster", nodes, base_port)
    assert not (tmp_path / "cluster" / layout.RECORD).exists()


def test_another_number_of_nodes_or_other_ports_are_refused(tmp_path: Path) -> None:
    """A cluster grows by being told so, not by starting a process more."""
    layout.prepare(tmp_path / "cluster", 3, 0)

    with pytest.raises(ConfigError, match=r"holds a cluster of 3 nodes, not of 5.*walrq cluster add"):
        layout.prepare(tmp_path / "cluster", 5)
    with pytest.raises(ConfigError, match=r"whose ports begin at \d+, not at 99: leave --base-port out"):
        layout.prepare(tmp_path / "cluster", None, 99)


def test_a_directory_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    """`--base-dir .` in a home directory is a slip of the finger."""
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(DataDirInvalid, match=r"holds 'thesis\.txt' and no cluster\.json"):
        layout.prepare(tmp_path)
    assert ["thesis.txt"] == os.listdir(tmp_path)
    with pytest.raises(DataDirInvalid, match=r"thesis\.txt.*: "):
        layout.prepare(tmp_path / "thesis.txt")
    with pytest.raises(DataDirInvalid, match=r"absent.*No such file"):
        layout.prepare(tmp_path / "absent/cluster")


@pytest.mark.parametrize(
    "record",
    [
        "",
        "[]",
        "{}",
        '{"format": 1, "nodes": []}',
        '{"format": 1, "nodes": [{"node": "../n1", "listen": "h:1", "peer": "h:2"}]}',
        '{"format": 1, "nodes": [{"node": "n1", "listen": "h:1"}]}',
    ],
)
def test_a_record_that_cannot_be_read_is_named(tmp_path: Path, record: str) -> None:
    """A node must never be started with addresses that somebody guessed."""
    made = layout.prepare(tmp_path / "cluster", 1, 0)
    (made.base / layout.RECORD).write_text(record)

    with pytest.raises(DataDirInvalid, match=r"cluster\.json is no record of a cluster"):
        layout.prepare(made.base)


def test_a_newer_record_and_a_lost_secret_are_named(tmp_path: Path) -> None:
    """What is missing is said before a node is started without it."""
    made = layout.prepare(tmp_path / "cluster", 1, 0)
    record = json.loads((made.base / layout.RECORD).read_text())
    (made.base / layout.RECORD).write_text(json.dumps({**record, "format": 2}))
    with pytest.raises(DataDirInvalid, match="has format 2, this version reads 1"):
        layout.prepare(made.base)
    (made.base / layout.RECORD).write_text(json.dumps(record))
    made.secret.unlink()

    with pytest.raises(DataDirInvalid, match="cluster-secret is missing"):
        layout.prepare(made.base)


def test_an_address_in_use_is_named_before_anything_is_started(tmp_path: Path) -> None:
    """Half a cluster that starts is more trouble than none."""
    with socket.socket() as other:
        port = taken(other)
        with pytest.raises(AddressInUse, match=rf"127\.0\.0\.1:{port}, an address of n1, is in use"):
            layout.prepare(tmp_path / "cluster", 1, port)
        with pytest.raises(AddressInUse, match=rf"127\.0\.0\.1:{port}, an address of n1"):
            layout.prepare(tmp_path / "other", 1, port - 100)
    assert not (tmp_path / "cluster" / layout.RECORD).exists()
