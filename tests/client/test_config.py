"""Addresses and settings of a client."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import attrs
import pytest

from walrq.client.config import (
    URL_SETTINGS,
    ClientConfig,
    Endpoint,
    configure,
    parse_target,
    parse_url,
    resolve,
    with_surroundings,
    without_token,
)
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
        "walrq://@a",
        "walrq://u:@a",
        "walrq://u@v@a",
        "walrqx://a",
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


def test_a_list_of_addresses_is_read_like_one_address() -> None:
    """Each node once, settings of all of them."""
    target = parse_target(["walrq://a:1/?window=3", "b:2,a:1", "walrq://c/?timeout_s=4&window=3"])

    assert (Endpoint("a", 1), Endpoint("b", 2), Endpoint("c", 50051)) == target.endpoints
    assert {"window": 3, "timeout_s": 4.0} == target.settings


def test_a_list_of_addresses_must_not_be_empty_or_disagree() -> None:
    """One line that says which setting."""
    with pytest.raises(ConfigError, match="is empty"):
        parse_target([])
    with pytest.raises(ConfigError, match="set window to 3 and 4"):
        parse_target(["a?window=3", "b?window=4"])


@pytest.mark.parametrize(
    "changes",
    [
        {"window": 0},
        {"timeout_s": float("nan")},
        {"timeout_s": 0},
        {"connect_wait_s": -1},
        {"election_max_s": 0},
        {"node_timeout_s": -1},
        {"retry_max_s": float("inf")},
        {"worker": "x" * 300},
        {"windw": 5},
        {"window": 2.5},
        {"window": "5"},
        {"pool": 0},
        {"session": 1},
        {"worker": 5},
        {"retry_factor": 0.5},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(changes: dict[str, object]) -> None:
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


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?timeout_s=5&window=64", {"timeout_s": 5.0, "window": 64}),
        ("/?pool=4&session=no", {"pool": 4, "session": False}),
        ("?worker=me%40host&retry_factor=1.5", {"worker": "me@host", "retry_factor": 1.5}),
        ("?worker=", {"worker": None}),
        ("?", {}),
        ("", {}),
    ],
)
def test_an_address_may_carry_settings(query: str, expected: dict[str, object]) -> None:
    """One text configures a deployment."""
    target = parse_target(f"walrq://a,b:2{query}")

    assert ((Endpoint("a", 50051), Endpoint("b", 2)), expected) == (target.endpoints, target.settings)


def test_every_setting_but_objects_can_be_in_the_query_of_an_address() -> None:
    """A setting that is added to the class is added to the address. Token and TLS have places of their own in it."""
    assert set(URL_SETTINGS) == {field.name for field in attrs.fields(ClientConfig)} - {
        "clock",
        "tls_context",
        "token",
        "tls",
    }


@pytest.mark.parametrize(
    ("url", "token"),
    [
        ("walrq://secret@a", "secret"),
        ("walrq://anybody:secret@a", "secret"),
        ("walrq://:se%40cr%2Fet@a,b", "se@cr/et"),
    ],
)
def test_a_token_stands_before_the_at(url: str, token: str) -> None:
    """Alone, or behind a name that counts nothing; percent-decoded."""
    _, config = resolve(url, None, {})
    assert token == config.token
    assert token not in repr(config)
    assert "***@a" in without_token(url)


def test_a_scheme_says_tls() -> None:
    """`walrqs` encrypts; its authority may stand in the query."""
    _, config = resolve("walrqs://a/?tls_ca=/etc/ca.pem", None, {})
    assert (True, "/etc/ca.pem") == (config.tls, config.tls_ca)


def test_the_environment_has_a_token_for_who_says_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable before the file; what the program said before both."""
    (tmp_path / "token").write_text("from the file\n")
    monkeypatch.setenv("WALRQ_TOKEN_FILE", str(tmp_path / "token"))
    assert "from the file" == with_surroundings(ClientConfig()).token
    monkeypatch.setenv("WALRQ_TOKEN", "from the variable")
    assert "from the variable" == with_surroundings(ClientConfig()).token
    assert "said" == with_surroundings(ClientConfig(token="said")).token
    monkeypatch.delenv("WALRQ_TOKEN")
    monkeypatch.setenv("WALRQ_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="WALRQ_TOKEN_FILE"):
        with_surroundings(ClientConfig())


def test_keywords_go_before_the_address_and_the_address_before_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's base, the place's wishes, the call's own."""
    base = ClientConfig(window=1, timeout_s=1, retry_first_s=1)
    _, config = resolve("walrq://a?window=2&timeout_s=2", base, {"timeout_s": 3})

    assert (2, 3, 1) == (config.window, config.timeout_s, config.retry_first_s)
    monkeypatch.setenv("WALRQ_SERVER", "walrq://elsewhere?window=7")
    endpoints, config = resolve(None, None, {})
    assert ((Endpoint("elsewhere", 50051),), 7) == (endpoints, config.window)


@pytest.mark.parametrize(
    ("query", "match"),
    [
        ("windw=5", "did you mean window"),
        ("token=x", "known are session, pool"),
        ("clock=1", "no setting 'clock'"),
        ("window=5&window=6", "sets window twice"),
        ("window=many", "window .* whole number"),
        ("window=0", "window"),
        ("timeout_s=soon", "timeout_s .* a number"),
        ("session=maybe", "session .* true or false"),
        ("pool=65", "pool .* 1 to 64"),
    ],
)
def test_a_wrong_setting_in_an_address_is_named(query: str, match: str) -> None:
    """A mistyped name must not be a default in silence."""
    with pytest.raises(ConfigError, match=match):
        resolve(f"walrq://a?{query}", None, {})


@pytest.mark.parametrize(
    "url",
    [
        "walrq://u:hunter2@a/b",
        "u:hunter2@a/b",
        "http://u:hunter2@a",
        "walrq://u:hun?ter2@a",
        "walrq://u:hunter2:x@a:b:c",
        "walrq://a?token=hunter2",
        "walrq://a?password=hunter2&window=5",
    ],
)
def test_an_error_never_repeats_a_secret(url: str) -> None:
    """Errors are logged; a password that was put where it does not belong must not be."""
    with pytest.raises(ConfigError) as caught:
        resolve(url, None, {})

    assert "hunter2" not in repr(caught.value)
    assert "ter2" not in repr(caught.value)


def test_waits_grow_by_the_factor_up_to_their_bound() -> None:
    """What the random factor is taken from."""
    config = ClientConfig(retry_first_s=0.1, retry_factor=3, retry_max_s=1)

    assert [0.1, 0.3, 0.9, 1] == pytest.approx([config.backoff_s(tries) for tries in (1, 2, 3, 4)])
    assert 1 == config.backoff_s(10_000)
    assert [0.5, 0.5] == [ClientConfig(retry_first_s=0.5, retry_factor=1).backoff_s(tries) for tries in (1, 50)]
    assert 2 == ClientConfig(retry_factor=100).backoff_s(10**9)
