"""What is printed, logged and shown by a debugger is short and holds nobody's data."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TypeVar

import pytest

import walrq
from tests.client.fake_server import FakeServer, delivered
from walrq import aio, api, errors
from walrq.client.blocking import SyncBatch, SyncBatches
from walrq.client.failures import BatchError, EntryFailure
from walrq.client.messages import Batch, MessageIds, NewMessage, Seen
from walrq.client.operations import PushOptions
from walrq.errors import ReceiptExpired
from walrq.protocol import columns

B = TypeVar("B", bound=Batch)

SECRET = "sEcReT"
DATA = SECRET.encode() * 100
LENGTH_MAX = 250


def batch(kind: type[B]) -> B:
    """A leased run of ten large messages."""
    return kind(delivered("q", 5, (DATA,) * 10), 0.0)


def sync_batch(client: walrq.Client) -> SyncBatch:
    """The same, of a client."""
    made = SyncBatch(delivered("q", 5, (DATA,) * 10), 0.0)
    made._client = client
    return made


def seen() -> Seen:
    """A dead message."""
    now = datetime.now(UTC)
    attempt = api.Attempt(1, "failed", "w", "ValueError", SECRET)
    return Seen(
        "id", "dead", DATA, {"k": SECRET}, 0, 1, 1, None, now, None, 0, "failed", "q", now, (attempt,)
    )  # fmt: skip


def failure() -> EntryFailure:
    """One part that did not go through."""
    return EntryFailure(batch(Batch), ReceiptExpired("the lease is over"))


# Every public class of the clients, and one of it that was given a secret payload.
MAKERS: dict[str, Callable[[walrq.Client], object]] = {
    "Batch": lambda client: batch(Batch),
    "BatchError": lambda client: BatchError([failure()] * 1000, 10, [SECRET] * 10_000),
    "Client": lambda client: client,
    "ClientConfig": lambda client: client.config,
    "Consumer": lambda client: client.consume(["q", "r"]),
    "EntryFailure": lambda client: failure(),
    "Message": lambda client: batch(Batch).messages()[0],
    "MessageIds": lambda client: MessageIds((api.Pushed(1, 10_000),)),
    "NewMessage": lambda client: NewMessage(DATA, {"k": SECRET * 100}, "g", "d"),
    "PushStream": lambda client: client.push_stream("q"),
    "Seen": lambda client: seen(),
    "ServerUnreachable": lambda client: walrq.ServerUnreachable("no server"),
    "SyncBatch": sync_batch,
    "SyncBatches": lambda client: SyncBatches([sync_batch(client)], client),
    "SyncMessage": lambda client: sync_batch(client).messages()[0],
    "WalrqError": lambda client: walrq.WalrqError("text", payload=DATA),
    "aio.AsyncBatch": lambda client: batch(aio.AsyncBatch),
    "aio.AsyncBatches": lambda client: aio.AsyncBatches([batch(aio.AsyncBatch)], aio.connect("walrq://a:1")),
    "aio.AsyncMessage": lambda client: batch(aio.AsyncBatch).messages()[0],
    "aio.Client": lambda client: aio.connect("walrq://a:1"),
    "aio.ClientConfig": lambda client: client.config,
    "aio.Consumer": lambda client: aio.connect("walrq://a:1").consume(["q", "r"]),
}


@pytest.fixture
def client(fake: FakeServer) -> Iterator[walrq.Client]:
    """Connected to a scripted server."""
    with walrq.connect(fake.url) as connected:
        yield connected


def public_classes() -> set[str]:
    """Every class that the two facades export from the clients."""
    found = set()
    for facade, prefix in ((walrq, ""), (aio, "aio.")):
        for name in facade.__all__:
            value = getattr(facade, name)
            if isinstance(value, type) and value.__module__.startswith(("walrq.client", "walrq.errors")):
                found.add(prefix + name)
    return found


def test_the_walk_reaches_every_public_class() -> None:
    """A class that is exported tomorrow is walked tomorrow."""
    assert public_classes() == set(MAKERS)


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_a_repr_is_short_and_shows_no_payload(client: walrq.Client, name: str) -> None:
    """Logs are no place for other people's data."""
    made = MAKERS[name](client)
    for shown in (repr(made), str(made), f"{[made]}"):
        assert SECRET not in shown
        assert len(shown) <= LENGTH_MAX + (200 if name.endswith("ClientConfig") else 0)
        assert " object at 0x" not in shown, "say what it is"


def test_what_travels_shows_no_payload_either() -> None:
    """`batch.run` in a traceback is as public as `batch`."""
    body = columns.pack([DATA], headers=[{"k": SECRET}], groups=[SECRET], dedup=[SECRET])
    peeked = api.Peeked(5, api.State.READY, 1, 0, 1, 0, 0, 0, None, DATA, DATA)
    for made in (api.Push("q", body), batch(Batch).run, peeked, PushOptions()):
        assert SECRET not in repr(made)


@pytest.mark.parametrize("error", sorted(errors.ERRORS, key=int), ids=lambda code: code.name)
def test_an_errors_repr_is_its_text(error: errors.Code) -> None:
    """Details are for programs; what a person sees is one sentence."""
    made = errors.from_code(int(error), "what happened", {"payload": SECRET})

    assert f"{type(made).__name__}('what happened')" == repr(made)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("Client", r"walrq\.connect there"),
        ("Consumer", r"walrq\.connect there"),
        ("PushStream", r"walrq\.connect there"),
        ("SyncBatch", "Send payloads"),
        ("SyncBatches", "Send payloads"),
        ("SyncMessage", "Send payloads"),
        ("aio.AsyncBatch", "Send payloads"),
        ("aio.AsyncBatches", "Send payloads"),
        ("aio.AsyncMessage", "Send payloads"),
        ("aio.Client", r"walrq\.connect there"),
        ("aio.Consumer", r"walrq\.connect there"),
    ],
)
def test_what_belongs_to_a_connection_says_why_it_cannot_be_pickled(
    client: walrq.Client, name: str, instead: str
) -> None:
    """The usual mistake with a process pool; `cannot pickle '_thread.lock'` helps nobody."""
    made = MAKERS[name](client)
    with pytest.raises(TypeError, match=f"cannot be pickled.*{instead}"):
        pickle.dumps(made)
    with pytest.raises(TypeError, match="cannot be pickled"):
        copy.deepcopy(made)


def test_what_is_only_data_can_be_pickled() -> None:
    """Ids and settings go to other processes as they are."""
    ids = MessageIds((api.Pushed(5, 3),))
    config = walrq.ClientConfig(window=3, worker="w")

    assert list(ids) == list(pickle.loads(pickle.dumps(ids)))
    assert (3, "w") == (pickle.loads(pickle.dumps(config)).window, pickle.loads(pickle.dumps(config)).worker)


def test_a_client_says_where_it_is_connected(client: walrq.Client, fake: FakeServer) -> None:
    """The first question in a debugger."""
    assert f"<walrq.Client 127.0.0.1:{fake.port}, connected>" == repr(client)
    client.close()
    assert f"<walrq.Client 127.0.0.1:{fake.port}, closed>" == repr(client)
