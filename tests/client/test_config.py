"""Addresses and settings of a client."""

from __future__ import annotations

import os
import socket

import pytest

from walrq.client.addresses import next_address
from walrq.client.config import ClientConfig, Endpoint, configure, parse_url
from walrq.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("walrq://localhost:1", [("localhost", 1)]),
        ("walrq://localhost", [("localhost", 50051)]),
        ("localhost:2", [("localhost", 2)]),
        ("walrq://[::1]:3/", [("::1", 3)]),
        ("walrq://a:1,b:2,c", [("a", 1), ("b", 2), ("c", 50051)]),
    ],
)
def test_addresses_are_read(url: str, expected: list[tuple[str, int]]) -> None:
    """The forms people write."""
    assert [Endpoint(*each) for each in expected] == list(parse_url(url))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "walrq://",
        "http://a:1",
        "walrq://a:0",
        "walrq://a:70000",
        "walrq://a:b",
        "walrq://a/b",
        "walrq://u@a",
        "walrq://a,,b",
    ],
)
def test_other_texts_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half-understood address would connect to the wrong place."""
    monkeypatch.setenv("WALRQ_SERVER", "walrq://elsewhere")
    with pytest.raises(ConfigError):
        parse_url(url)


def test_the_variable_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """One place to say where the queue is; an empty variable is none."""
    monkeypatch.setenv("WALRQ_SERVER", "walrq://elsewhere:9")
    assert (Endpoint("elsewhere", 9),) == parse_url()
    monkeypatch.setenv("WALRQ_SERVER", "")
    assert (Endpoint("127.0.0.1", 50051),) == parse_url()


def test_addresses_print_as_they_are_written() -> None:
    """Error messages are copied into commands."""
    assert ["a:1", "[::1]:2"] == [str(Endpoint("a", 1)), str(Endpoint("::1", 2))]


def test_every_address_gets_its_turn_and_a_named_leader_goes_first() -> None:
    """Round and round, unless somebody knows better."""
    one, two = Endpoint("a", 1), Endpoint("b", 2)

    assert [two, one] == [next_address([one, two], one, None), next_address([one, two], two, None)]
    assert Endpoint("c", 3) == next_address([one, two], one, "c:3")
    assert two == next_address([one, two], one, "not an address")
    assert one == next_address([one, two], Endpoint("c", 3), None)


@pytest.mark.parametrize(
    "changes",
    [
        {"window": 0},
        {"timeout_s": float("nan")},
        {"timeout_s": 0},
        {"connect_wait_s": -1},
        {"retry_max_s": float("inf")},
        {"worker": "x" * 300},
        {"windw": 5},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(changes: dict[str, float]) -> None:
    """Found when it is written, not when it hurts."""
    with pytest.raises(ConfigError, match=next(iter(changes))):
        configure(None, changes)


def test_changes_go_on_top_of_a_config() -> None:
    """A base for the program, a change for the place."""
    base = ClientConfig(window=5, worker="w")

    assert ClientConfig(window=6, worker="w") == configure(base, {"window": 6})
    assert base == configure(base, {})


def test_a_worker_has_a_name_unless_it_wants_none() -> None:
    """A death report tells which process it was."""
    host, _, pid = str(ClientConfig().worker).rpartition(":")

    assert (socket.gethostname(), str(os.getpid())) == (host, pid)
    assert None is ClientConfig(worker=None).worker
