"""Who may make a browser ask for a change, by the headers that browsers send and programs do not."""

from __future__ import annotations

import pytest

from walrq.errors import Forbidden
from walrq.http import origins

NOBODY: frozenset[str] = frozenset()
OWN = {"host": "127.0.0.1:9090"}


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://127.0.0.1:9091", "walrq-page": "1"},
        {"origin": "null", "walrq-page": "1"},
        {"origin": "http://127.0.0.1:9090.evil.example", "walrq-page": "1"},
        {"origin": "http://127.0.0.1:9090"},
        {"sec-fetch-site": "cross-site", "walrq-page": "1"},
        {"sec-fetch-site": "same-site", "walrq-page": "1"},
        {"sec-fetch-site": "same-origin"},
    ],
)
def test_a_change_that_another_page_wants_is_refused(headers: dict[str, str]) -> None:
    """Also when it comes from another port of this machine, or lacks the header of our pages."""
    with pytest.raises(Forbidden):
        origins.check_origin("POST", {**OWN, **headers}, NOBODY)


@pytest.mark.parametrize(
    ("method", "headers", "allowed"),
    [
        ("POST", {}, NOBODY),
        ("GET", {"origin": "https://evil.example"}, NOBODY),
        ("POST", {"origin": "http://127.0.0.1:9090", "walrq-page": "1"}, NOBODY),
        ("DELETE", {"origin": "http://127.0.0.1:9090", "authorization": "Bearer t"}, NOBODY),
        ("POST", {"sec-fetch-site": "none", "walrq-page": "1"}, NOBODY),
        ("POST", {"origin": "https://App.example", "walrq-page": "1"}, frozenset({"https://app.example"})),
        ("POST", {"origin": "https://any.example", "walrq-page": "1"}, frozenset({"*"})),
    ],
)
def test_programs_and_own_pages_may_ask(method: str, headers: dict[str, str], allowed: frozenset[str]) -> None:
    """What is no browser says nothing of where it comes from."""
    origins.check_origin(method, {**OWN, **headers}, allowed)


@pytest.mark.parametrize("host", ["localhost:9090", "127.0.0.1", "[::1]:9090", "app.localhost", "10.1.2.3:80"])
def test_a_node_on_loopback_answers_to_local_names(host: str) -> None:
    """Addresses are nobody's name, so that no foreign page can have one."""
    origins.check_host({"host": host}, loopback=True)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:9090", "", "127.0.0.1.evil.example"])
def test_a_node_on_loopback_answers_to_no_other_name(host: str) -> None:
    """A name that was made to lead here would make a foreign page our own."""
    with pytest.raises(Forbidden, match="loopback"):
        origins.check_host({"host": host}, loopback=True)
    origins.check_host({"host": host}, loopback=False)


def test_no_cors_unless_configured() -> None:
    """Not even for the node's own origin."""
    assert {} == origins.cors({"origin": "https://a.example"}, NOBODY)
    assert {"allow": "GET"} == origins.preflight({"origin": "https://a.example"}, NOBODY, "GET")
