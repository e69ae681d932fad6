"""The table of routes: complete, without side effects where it says so, and the same as its document."""

from __future__ import annotations

import json

import pytest

from walrq import api
from walrq.errors import InvalidArgument, WalrqError
from walrq.http import openapi, routes
from walrq.http.routes import ROUTES
from walrq.limits import HTTP_TARGET_BYTES_MAX
from walrq.protocol.json_requests import OPERATIONS

# What leaves the state machine as it is.
LOOKING = frozenset(
    {
        "peek",
        "list_queues",
        "show_queue",
        "list_dead",
        "list_tokens",
        "ping",
        "stats",
        "cluster_status",
        "backup_read",
    }
)


def test_every_operation_has_a_path() -> None:
    """What one door can do the others can."""
    assert {each.name for each in OPERATIONS} == {route.op for route in ROUTES} - {""}


def test_a_get_changes_nothing() -> None:
    """And what only looks is a GET, so that it can be opened in a browser."""
    assert {route.op for route in ROUTES if route.method == "GET"} == LOOKING


def test_no_two_routes_are_one() -> None:
    """A path with a method means one thing."""
    found = [(route.method, route.path) for route in ROUTES]
    assert len(found) == len(set(found))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_route_is_found_by_its_path(route: routes.Route) -> None:
    """Fields in the path come out decoded, one segment each."""
    path = "/".join("a%2Fb" if part.startswith("{") else part for part in route.path.split("/"))
    found = routes.match(route.method, routes.segments_of(path.encode()))

    assert route is found.route
    assert dict.fromkeys(route.captured, "a/b") == found.fields


def test_fields_come_from_path_query_and_body() -> None:
    """Texts become what their field is; the same field twice must agree."""
    peek = next(route for route in ROUTES if route.op == "peek")
    push = next(route for route in ROUTES if route.op == "push")

    assert api.Peek("jobs", api.State.DEAD, 3, bodies=False) == routes.request_of(
        peek, {"queue": "jobs"}, {"state": "dead", "limit": "3", "bodies": "false"}, None
    )
    request = routes.request_of(push, {"queue": "jobs"}, {}, {"payload": "x", "queue": "jobs"})
    assert isinstance(request, api.Push)
    with pytest.raises(InvalidArgument, match="queue is in the path"):
        routes.request_of(push, {"queue": "jobs"}, {}, {"payload": "x", "queue": "other"})


@pytest.mark.parametrize(
    ("query", "field"),
    [(b"a=1&a=2", "a"), (b"a=%FF", "query"), (b"&".join(b"a%d=1" % number for number in range(80)), "query")],
)
def test_a_query_is_read_strictly(query: bytes, field: str) -> None:
    """A name twice, text that is none, too many: refused, never guessed."""
    with pytest.raises(WalrqError) as caught:
        routes.parse_query(query)
    assert field == caught.value.details["field"]


def test_paths_are_bounded() -> None:
    """Before they are taken apart."""
    with pytest.raises(InvalidArgument) as caught:
        routes.segments_of(b"/" * (HTTP_TARGET_BYTES_MAX + 1))
    assert HTTP_TARGET_BYTES_MAX == caught.value.details["limit"]


def test_the_document_has_every_route_and_is_json() -> None:
    """Made from the same table: paths, methods, parameters, one name for each operation."""
    document = json.loads(json.dumps(openapi.document("1.2.3")))
    found = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    entries = [entry for methods in document["paths"].values() for entry in methods.values()]

    assert {(route.method, route.path) for route in ROUTES} == found
    assert len(entries) == len({entry["operationId"] for entry in entries})
    assert ("3.1.0", "1.2.3") == (document["openapi"], document["info"]["version"])
    for route in ROUTES:
        entry = document["paths"][route.path][route.method.lower()]
        in_path = [each["name"] for each in entry.get("parameters", ()) if each["in"] == "path"]
        assert [*route.captured] == in_path
        assert {"200", "default"} == set(entry["responses"])
    push = document["paths"]["/v1/queues/{queue}/messages"]["post"]["requestBody"]["content"]["application/json"]
    assert "payload" in push["schema"]["properties"]
    assert "queue" not in push["schema"]["properties"]
