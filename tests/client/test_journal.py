"""What a client tells the log: once that a connection was lost, once that it is back, and never a payload."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import pytest

import walrq
from tests.client.fake_server import Connection, Drop, FakeServer
from tests.requirements import ROOT
from walrq import api
from walrq.client.config import Endpoint
from walrq.client.failures import ServerUnreachable
from walrq.client.journal import Journal, reason_of
from walrq.errors import LocalProtocolError
from walrq.protocol.requests import Incoming

HERE = Endpoint("a", 1)


def test_an_outage_is_two_lines_however_long_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """An hour without a server must not be an hour of log."""
    journal = Journal()
    with caplog.at_level(logging.INFO, "walrq.client"):
        journal.usable(HERE, 10)
        journal.lost(HERE, "the server closed it", 3, 20)
        for _ in range(100):
            journal.unreachable(HERE, ServerUnreachable("refused"))
        journal.usable(Endpoint("b", 2), 80)
        journal.usable(Endpoint("b", 2), 90)
        assert not journal.silent
        journal.speak()
        journal.speak()

    assert journal.silent
    assert [
        (
            logging.WARNING,
            "lost the connection to a:1 (the server closed it) with 3 requests under way; connecting again",
        ),
        (logging.INFO, "connected to b:2 again after 60.0 s"),
    ] == [(record.levelno, record.getMessage()) for record in caplog.records]


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (None, "the server closed it"),
        (TimeoutError(), "no answer to a probe"),
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset by peer"),
        (OSError(), "OSError"),
    ],
)
def test_a_reason_is_a_few_words(cause: BaseException | None, said: str) -> None:
    """What the socket said, without a traceback."""
    assert said == reason_of(cause)


def cut_once(fake: FakeServer) -> None:
    """Let the server drop the connection in the middle of the first push."""
    cuts = iter([True])

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        if type(incoming.request) is api.Push and next(cuts, False):
            raise Drop
        return fake.list_queue(connection, incoming)

    fake.script = script


def test_a_cut_connection_is_told_and_so_is_its_end(fake: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    """Operators see the outage that callers did not notice; nobody's data is in it."""
    cut_once(fake)
    with caplog.at_level(logging.DEBUG, "walrq.client"), walrq.connect(fake.url, retry_first_s=0.001) as client:
        client.push("q", b"secret")

    told = [record for record in caplog.records if record.levelno > logging.DEBUG]
    assert [logging.WARNING, logging.INFO] == [record.levelno for record in told]
    assert "with 1 request under way" in told[0].getMessage()
    assert f"127.0.0.1:{fake.port}" == vars(told[1])["endpoint"]
    assert "secret" not in caplog.text


def test_no_handler_is_added_and_the_program_decides_what_is_shown() -> None:
    """A library that configures logging takes that from its user."""
    # In a program of its own: here a command line may have run before.
    program = (
        "import logging, walrq, walrq.aio\n"
        "made = walrq.aio.connect('walrq://127.0.0.1:1')\n"
        "for name in ('walrq', 'walrq.client'):\n"
        "    print(logging.getLogger(name).handlers, logging.getLogger(name).propagate)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)

    assert "[] True\n[] True\n" == ran.stdout


class Calls(logging.Handler):
    """A handler that sends what it is given through a client."""

    def __init__(self) -> None:
        super().__init__()
        self.client: walrq.Client | None = None
        self.caught: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Push the line."""
        assert self.client is not None
        try:
            self.client.push("log", record.getMessage())
        except LocalProtocolError as error:
            self.caught.append(error)


def test_a_handler_that_calls_the_client_that_logs_is_told_so(fake: FakeServer) -> None:
    """It would wait for itself for ever."""
    cut_once(fake)
    handler = Calls()
    logger = logging.getLogger("walrq.client")
    logger.addHandler(handler)
    try:
        with walrq.connect(fake.url, retry_first_s=0.001) as client:
            handler.client = client
            client.push("q", b"x")
    finally:
        logger.removeHandler(handler)

    assert handler.caught
    assert "a client of its own" in str(handler.caught[0])


def test_a_handler_with_a_client_of_its_own_is_fine(fake: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    """Logs that travel through the queue itself, also while other threads use the first client."""
    cut_once(fake)
    handler = Calls()
    logger = logging.getLogger("walrq.client")
    caplog.set_level(logging.INFO, "walrq.client")
    with walrq.connect(fake.url) as own, walrq.connect(fake.url, retry_first_s=0.001) as client:
        handler.client = own
        logger.addHandler(handler)
        try:
            thread = threading.Thread(target=client.push, args=("q", b"y"))
            thread.start()
            client.push("q", b"x")
            thread.join(10)
        finally:
            logger.removeHandler(handler)

        assert [] == handler.caught
    logged = [payload for queue, _, payload in fake.messages if queue == "log"]
    assert [b"lost", b"connected"] == [payload.split()[0] for payload in logged]
