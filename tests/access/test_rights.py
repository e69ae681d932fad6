"""Who may do what: the table of needs is whole, and patterns mean what they say."""

from __future__ import annotations

from typing import get_args

import pytest

from walrq import api
from walrq.access.book import Book, Token, digest_of
from walrq.access.lock import Key, Lock
from walrq.access.principals import ANYONE, Principal, check
from walrq.access.rights import NEEDS
from walrq.api import Grant, Right
from walrq.errors import Forbidden, Unauthenticated
from walrq.protocol.columns import pack


def test_every_request_of_the_api_needs_something() -> None:
    """A request that nobody thought of would be for everybody."""
    assert set(get_args(api.Request)) == NEEDS.keys()


def may(principal: Principal, request: api.Request) -> bool:
    """Whether the principal may ask that."""
    try:
        check(principal, request)
    except Forbidden:
        return False
    return True


@pytest.mark.parametrize(
    ("pattern", "queue", "fits"),
    [
        ("*", "jobs", True),
        ("jobs", "jobs", True),
        ("jobs", "jobs2", False),
        ("jobs*", "jobs2", True),
        ("*.dlq", "jobs.dlq", True),
        ("a*z", "az", True),
        ("a*z", "a", False),
        ("aba*aba", "aba", False),
        ("jobs*", "Jobs2", False),
    ],
)
def test_a_pattern_has_one_star_for_anything(pattern: str, queue: str, fits: bool) -> None:
    """Head and tail do not share characters; a name is itself."""
    principal = Principal("t", (Grant(Right.WRITE, pattern),))
    assert fits == may(principal, api.Push(queue, pack([b"x"])))
    assert fits == may(principal, api.Peek(queue))
    assert not may(principal, api.DeleteQueue(queue))


@pytest.mark.parametrize(
    ("request_", "allowed"),
    [
        (api.Poll(("a1", "a2")), True),
        (api.Poll(("a1", "b")), False),
        (api.Poll(("a1",), into="b"), False),
        (api.Move("a1", "b"), False),
        (api.Move("b", "a1"), False),
        (api.Redrive("a1"), True),
        (api.Redrive("a1", target="b"), False),
        (api.Redrive("b", dry_run=True), False),
        (api.SetQueue("a1", {"dlq": "b"}), False),
        (api.SetQueue("a1", {"dlq": "a1.dlq"}), True),
        (api.SetQueue("a1", {"dlq": "none"}), True),
        (api.ListQueues(), False),
        (api.ListQueues("a"), True),
        (api.ListQueues("a1"), True),
        (api.BackupBegin(), False),
        (api.ListTokens(), False),
        (api.AddNode("n4"), False),
        (api.Stats(), True),
        (api.Ping(), True),
    ],
)
def test_every_queue_that_a_request_names_counts(request_: api.Request, allowed: bool) -> None:
    """The admin of some queues has no way into others, and none to the node."""
    assert allowed == may(Principal("team", (Grant(Right.ADMIN, "a*"),)), request_)


def test_a_queue_named_star_is_no_key_to_all() -> None:
    """The right on a queue of that name opens it and nothing else; a grant on it cannot be told from one on all."""
    principal = Principal("t", (Grant(Right.ADMIN, "jobs"),))
    assert not may(principal, api.PurgeQueue("*"))
    assert not may(principal, api.BackupBegin())


def test_the_strongest_grant_counts() -> None:
    """In whatever order they come."""
    grants = (Grant(Right.READ), Grant(Right.ADMIN, "a*"), Grant(Right.WRITE, "a1"))
    for order in (grants, grants[::-1]):
        principal = Principal("t", order)
        assert may(principal, api.PurgeQueue("a1"))
        assert may(principal, api.Peek("b"))
        assert not may(principal, api.Push("b", pack([b"x"])))


def make_book(*tokens: tuple[str, str]) -> Book:
    """A book with tokens of these names and secrets."""
    book = Book()
    for name, secret in tokens:
        book.put(Token(name, digest_of(secret), (Grant(Right.READ),), None, None, None, 0))
    return book


def test_an_open_node_asks_nobody() -> None:
    """And nothing is checked then."""
    lock = Lock()
    assert lock.identify(None) is ANYONE
    assert lock.identify("whatever") is ANYONE
    assert may(ANYONE, api.BackupBegin())


def test_a_secret_opens_under_its_own_name_only() -> None:
    """Without a name, as "default" (what Redis clients say), or as who it is."""
    book = make_book(("ci", "secret of ci"), ("ops", "secret of ops"))
    lock = Lock([Key.of("admin", "secret of the node")], lambda: book, lambda: b"of the cluster")

    for name in (None, "default", "ci"):
        assert "ci" == lock.identify("secret of ci", name).name
    assert "admin" == lock.identify(b"secret of the node").name
    assert "node" == lock.identify(lock.node_secret()).name
    for secret, name in (
        (None, None),
        ("", None),
        ("secret of ci", "ops"),
        ("secret of ops ", None),
        ("of the cluster", None),
    ):
        with pytest.raises(Unauthenticated) as refused:
            lock.identify(secret, name)
        assert "secret" not in str(refused.value.details)


def test_a_node_that_knows_no_cluster_says_nothing() -> None:
    """The empty secret of a blank node is no credential."""
    lock = Lock([Key.of("admin", "secret of the node")])
    assert lock.node_secret() is None
    with pytest.raises(Unauthenticated):
        lock.identify("")


def test_who_was_let_in_stays_while_the_token_is_the_same() -> None:
    """Another secret, other rights and a revocation end it; a key of the settings stays; the lock never opens again."""
    book = make_book(("ci", "secret of ci"))
    lock = Lock([Key.of("admin", "secret of the node")], lambda: book)
    known, fixed = lock.identify("secret of ci"), lock.identify("secret of the node")
    before = lock.revision
    assert lock.identify("secret of ci") is known

    book.put(Token("ops", digest_of("x"), (Grant(Right.READ),), None, None, None, 0))
    assert before != lock.revision
    assert lock.still_knows(known)
    book.put(Token("ci", digest_of("secret of ci"), (Grant(Right.ADMIN),), None, None, None, 0))
    assert not lock.still_knows(known)
    again = lock.identify("secret of ci")
    book.drop("ci")
    assert not lock.still_knows(again)
    assert lock.still_knows(fixed)
    assert not lock.still_knows(ANYONE)
    book.drop("ops")
    assert lock.is_locked


def test_an_image_keeps_the_book() -> None:
    """And nothing in it is a secret."""
    book = make_book(("ci", "secret of ci"), ("ops", "secret of ops"))
    page = book.page()
    assert page is not None
    assert b"secret" not in page
    other = Book()
    other.load(page)

    assert (book.tokens, book.changes) == (other.tokens, other.changes)
    assert "secret" not in repr(book.tokens)
    assert Book().page() is None
