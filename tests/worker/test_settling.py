"""Results are gathered, repeated until they are answered, and refusals are said: with a scripted client."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from tests.worker.messages import held
from tests.worker.running import Lines
from walrq.api import QueueInfo
from walrq.client.asynchronous import Client
from walrq.client.failures import BatchError, EntryFailure, ServerUnreachable
from walrq.client.messages import Message
from walrq.errors import ConnectionLost, QueueNotFound, ReceiptExpired, WalrqError
from walrq.worker import settling
from walrq.worker.keeper import Keeper
from walrq.worker.leases import Held
from walrq.worker.outcomes import DONE, RELEASED, Outcome, Verdict
from walrq.worker.settling import Settler

Answer = Callable[[list[Message]], WalrqError | None]


class Script:
    """A client whose answers are given beforehand, and a keeper that only notes."""

    def __init__(self, *answers: Answer) -> None:
        self.asked: list[tuple[str, list[Message]]] = []
        self.let_go_by_keeper: list[Held] = []
        self.shown: list[str] = []
        self.shows_nothing = False
        self._answers = iter(answers)

    async def ack(self, messages: list[Message]) -> None:
        """As of a client."""
        await self._answer("ack", messages)

    async def nack(self, messages: list[Message], mode: str, *rest: Any, **more: Any) -> None:
        """As of a client."""
        await self._answer(mode, messages)

    async def _answer(self, what: str, messages: list[Message]) -> None:
        self.asked.append((what, list(messages)))
        await anyio.lowlevel.checkpoint()
        error = next(self._answers, lambda _: None)(messages)
        if error is not None:
            raise error

    async def show_queue(self, queue: str) -> QueueInfo:
        """As of a client; the queue has 2 attempts for each message."""
        self.shown.append(queue)
        await anyio.lowlevel.checkpoint()
        if self.shows_nothing:
            raise QueueNotFound("gone")
        return cast(QueueInfo, SimpleNamespace(settings={"max_deliveries": 2}))

    def settle(self, held: Held) -> None:
        """As of a keeper."""

    def let_go(self, held: Held) -> None:
        """As of a keeper."""
        self.let_go_by_keeper.append(held)


def works(_: list[Message]) -> None:
    """The answer of a server that is there."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other without a pause to speak of."""
    monkeypatch.setattr(settling, "PAUSE_S", (0.0001, 0.0002))


@pytest.fixture
def lines() -> Iterator[Lines]:
    """What is logged."""
    handler = Lines()
    logger = logging.getLogger("walrq.worker")
    before = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


def settle(script: Script, *results: tuple[Held, Outcome]) -> list[Held]:
    """Settle these; what was let go, in order."""
    gone: list[Held] = []

    async def main() -> None:
        settler = Settler(cast(Client, script), cast(Keeper, script), gone.append)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(settler.run)
            for one, outcome in results:
                settler.put(one, outcome)
            with anyio.fail_after(10):
                await settler.drain()
            assert 0 == settler.owed
            tasks.cancel_scope.cancel()

    anyio.run(main, backend="trio")
    assert script.let_go_by_keeper == gone
    return gone


def test_acks_that_come_together_are_one_request() -> None:
    """And releases another; every failure has its own error and goes alone."""
    script = Script()
    all_held = [held() for _ in range(7)]
    failed = Outcome(Verdict.FAIL, ValueError("x"), 3.0)
    outcomes = [DONE, RELEASED, DONE, failed, DONE, RELEASED, Outcome(Verdict.REJECT, ValueError("y"))]
    gone = settle(script, *zip(all_held, outcomes, strict=True))

    assert set(all_held) == set(gone)
    messages = [one.message for one in all_held]
    assert ("ack", [messages[0], messages[2], messages[4]]) in script.asked
    assert ("release", [messages[1], messages[5]]) in script.asked
    assert ("fail", [messages[3]]) in script.asked
    assert ("reject", [messages[6]]) in script.asked
    assert 4 == len(script.asked)


def test_the_last_failure_is_said_once_the_server_has_it(lines: Lines) -> None:
    """The queue is asked for its limit only where neither message nor task says it."""
    failed = Outcome(Verdict.FAIL, ValueError("x"))
    own, first, second = held(), held(), held(attempts=1)
    own.retries = 0
    knows, asks = Script(), Script()
    settle(knows, (own, failed))
    settle(asks, (first, failed), (second, failed))
    of_own, of_second = lines.starting("dead")

    assert of_own.getMessage().endswith(": failures=1 of 1, no more attempts")
    assert of_second.getMessage().endswith(": failures=2 of 2, no more attempts")
    assert logging.ERROR == of_own.levelno
    assert [] == knows.shown
    assert {"q"} == set(asks.shown)


def test_a_limit_that_nobody_can_say_is_not_guessed(lines: Lines) -> None:
    """The failure is counted all the same."""
    script = Script()
    script.shows_nothing = True
    one = held(attempts=99)

    assert [one] == settle(script, (one, Outcome(Verdict.FAIL, ValueError("x"))))
    assert [] == lines.starting("dead")


def test_an_ack_is_repeated_until_it_is_answered() -> None:
    """An outage takes as long as it takes."""
    script = Script(*[lambda _: ServerUnreachable("away")] * 5, works)
    one = held()

    assert [one] == settle(script, (one, DONE))
    assert 6 == len(script.asked)


def test_only_what_failed_is_repeated() -> None:
    """What the server has taken is let go at once."""
    first, second, third = held(), held(), held()
    script = Script(
        lambda messages: BatchError(
            [EntryFailure(messages[1], ConnectionLost("lost")), EntryFailure(messages[2], ReceiptExpired("over"))], 1
        )
    )
    gone = settle(script, (first, DONE), (second, DONE), (third, DONE))

    assert [("ack", [first.message, second.message, third.message]), ("ack", [second.message])] == script.asked
    assert [first, third, second] == gone


def test_a_refused_ack_is_said_with_what_to_do(lines: Lines) -> None:
    """The work will be done again; it is the author of the task who can do something about it."""
    settle(Script(lambda _: ReceiptExpired("over")), (held(), DONE))
    (record,) = lines.starting("ack_refused")

    assert logging.WARNING == record.levelno
    assert "idempotent" in record.getMessage()


def test_after_an_unknown_outcome_a_refusal_is_no_loss(lines: Lines) -> None:
    """The first try may have been taken, and its answer lost."""
    settle(Script(lambda _: ConnectionLost("lost"), lambda _: ReceiptExpired("over")), (held(), DONE))

    assert [] == lines.starting("ack_refused")
    assert 1 == len(lines.starting("settle_unknown"))


def test_whatever_else_is_refused_is_an_error_in_the_log(lines: Lines) -> None:
    """The queue may have been deleted: nothing is owed to it any more."""
    one, other = held(), held()
    gone = settle(
        Script(lambda _: QueueNotFound("gone")), (one, DONE), (other, Outcome(Verdict.FAIL, ValueError("x"), None))
    )

    assert {one, other} == set(gone)
    (record,) = lines.starting("settle_failed")
    assert "gone" in record.getMessage()


def test_a_late_release_is_only_a_remark(lines: Lines) -> None:
    """The message is where it was to go already."""
    settle(Script(lambda _: ReceiptExpired("over")), (held(), RELEASED))

    assert [] == [record for record in lines.records if record.levelno >= logging.WARNING]
    assert 1 == len(lines.starting("lease_over"))
