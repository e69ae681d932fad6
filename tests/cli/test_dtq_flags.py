"""Flags of DTQ's server: those that mean something here work, each other one says what to use instead."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tests.cli.conftest import make_shell
from walrq.cli.arguments import from_dtq


def test_bind_and_http_bind_are_listening_addresses() -> None:
    """And nothing of DTQ's words is left for the settings."""
    flags = {
        "bind": "127.0.0.1:7000",
        "http_bind": "127.0.0.1:7001",
        "aof": None,
        "auto_failover": False,
        "fsync": None,
    }
    assert from_dtq(flags) == {"resp_listen": "127.0.0.1:7000", "http_listen": "127.0.0.1:7001", "fsync": None}


def test_two_words_for_one_address_are_a_mistake() -> None:
    """Which of them is meant?"""
    with pytest.raises(click.UsageError, match="give --resp-listen or --bind, not both"):
        from_dtq({"bind": "127.0.0.1:1", "resp_listen": "127.0.0.1:2"})


@pytest.mark.parametrize(
    ("flags", "instead"),
    [
        (["--aof", "queue.aof"], "--data-dir DIR"),
        (["-a", "queue.aof"], "--data-dir DIR"),
        (["--replicaof", "127.0.0.1:6379"], "--join HOST:PORT"),
        (["--masterauth", "secret"], "--cluster-secret-file FILE"),
        (["--auto-failover"], "a cluster of three nodes always fails over"),
        (["--failover-timeout-secs", "3"], "an election takes a second or two"),
    ],
)
def test_a_flag_without_a_meaning_names_what_has_one(tmp_path: Path, flags: list[str], instead: str) -> None:
    """One line, and nothing was started."""
    ran = make_shell(tmp_path, "walrq://127.0.0.1:1").walrq("serve", "--data-dir", str(tmp_path / "data"), *flags)

    (line,) = ran.stderr.decode().splitlines()
    assert 2 == ran.returncode
    assert "is a flag of DTQ" in line and instead in line
    assert not (tmp_path / "data").exists()
