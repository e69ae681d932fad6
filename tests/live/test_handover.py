"""A command for each message: its exit status decides, its lease is kept, and nothing of it stays behind."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from walrq.api import Delivered
from walrq.client.clock import SYSTEM
from walrq.client.messages import Batch, Message
from walrq.errors import NotReady, QueueNotFound, ReceiptExpired, WalrqError
from walrq.live.handover import RELEASE_PAUSE_S, Handover, Outcome, Plan, Run, Verdict, variables
from walrq.protocol.columns import encode_headers

pytestmark = pytest.mark.trio
LEASE_S = 30.0
# Short for a test, and long for a loaded machine to leave a process waiting.
SHORT_LEASE_S = 0.6


def leased(payload: bytes = b"x", number: int = 1, lease_s: float = LEASE_S, **changes: Any) -> Message:
    """A message that was leased just now."""
    given = changes.pop("headers", None)
    headers = encode_headers(given) if given is not None else None
    ends = None if headers is None else struct.pack("<I", len(headers))
    size = struct.pack("<I", len(payload))
    run = Delivered(
        "q", bytes(20), 1, number, 1, 0, (7, 0), 0, 1_700_000_000_000, None, 0, size, payload, 0, ends, headers
    )
    (message,) = Batch(attrs.evolve(run, **changes), SYSTEM.monotonic() + lease_s).messages()
    return message


@attrs.define(eq=False)
class Desk:
    """A server's side: hands these messages out, and writes down how they came back."""

    waiting: list[Message]
    settled: list[tuple[str, str, str]] = attrs.field(factory=list)
    touches: int = 0
    polls: list[int] = attrs.field(factory=list)
    on_touch: Callable[[Message, float], None] = lambda message, visibility: message.extend(
        SYSTEM.monotonic() + visibility
    )
    on_settle: WalrqError | None = None
    asked: trio.Event = attrs.field(factory=trio.Event)

    async def poll(self, queues: Any, visibility: float | None, number: int, *, wait: float) -> list[Message]:
        self.polls.append(number)
        self.asked.set()
        found, self.waiting = self.waiting[:number], self.waiting[number:]
        if not found and wait:
            await trio.sleep(wait)
        await trio.lowlevel.checkpoint()
        return found

    async def ack(self, message: Message) -> None:
        await self._settle("ack", message, "")

    async def nack(self, message: Message, mode: str, error: Exception | None = None) -> None:
        assert error is None or "CommandFailed" == type(error).__name__
        await self._settle(mode, message, str(error or ""))

    async def _settle(self, how: str, message: Message, error: str) -> None:
        await trio.lowlevel.checkpoint()
        if self.on_settle is not None:
            raise self.on_settle
        self.settled.append((how, message.message_id, error))

    async def touch(self, message: Message, visibility: float) -> None:
        await trio.lowlevel.checkpoint()
        self.touches += 1
        self.on_touch(message, visibility)


@attrs.define(eq=False)
class Bench:
    """A handover of some messages to a line for sh."""

    desk: Desk
    handover: Handover
    outcomes: list[Outcome]

    async def run(self) -> list[Outcome]:
        with trio.fail_after(60):
            await self.handover.run()
        return self.outcomes


def bench(line: str, *messages: Message, **changes: Any) -> Bench:
    """Ready to run."""
    desk = Desk(list(messages))
    outcomes: list[Outcome] = []
    plan = Plan(("q",), ("/bin/sh", "-c", line), **{"limit": len(messages), "wait_s": 0.0, **changes})
    return Bench(desk, Handover(desk, plan, outcomes.append), outcomes)  # type: ignore[arg-type]


def is_gone(pid: int) -> bool:
    """Whether the process ends, if it has not yet: a signal was sent, which the kernel may still be delivering."""
    try:
        ending = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([ending], [], [], 30)[0])
    finally:
        os.close(ending)


async def heard(fifo: Path) -> str:
    """What a command writes into a pipe of ours, once it has."""
    return await trio.to_thread.run_sync(fifo.read_text, abandon_on_cancel=True)


# --- verdicts -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("line", "verdict", "how", "error"),
    [
        ("exit 0", Verdict.ACKED, "ack", ""),
        ("exit 65", Verdict.REJECTED, "reject", "exit status 65"),
        ("exit 75", Verdict.RELEASED, "release", ""),
        ("exit 3", Verdict.FAILED, "fail", "exit status 3"),
        ("kill -9 $$", Verdict.FAILED, "fail", "ended by SIGKILL"),
        ("echo first >&2; echo last >&2; exit 1", Verdict.FAILED, "fail", "exit status 1\nfirst\nlast"),
    ],
)
async def test_the_exit_status_is_the_verdict(line: str, verdict: Verdict, how: str, error: str) -> None:
    """Any program can be a worker."""
    work = bench(line, leased())
    (outcome,) = await work.run()

    assert [(how, outcome.message_id, error)] == work.desk.settled
    assert verdict is outcome.verdict
    assert ({verdict: 1}, int(verdict is not Verdict.ACKED)) == (
        {each: count for each, count in work.handover.done.items() if count},
        work.handover.undone,
    )


async def test_the_end_of_a_long_complaint_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    """A traceback says at its end what was wrong; a megabyte before it costs no memory. All of it is passed on."""
    work = bench("head -c 1000000 /dev/zero | tr '\\0' n >&2; echo ValueError >&2; exit 1", leased())
    await work.run()
    ((_, _, error),) = work.desk.settled

    assert error.startswith("exit status 1\n")
    assert error.endswith("nnnValueError")
    assert len(error) < 4_000
    assert 1_000_000 < len(capfd.readouterr().err)


async def test_payload_and_words_reach_the_command(tmp_path: Path) -> None:
    """Byte for byte, however large; headers by name where a name can be made of them."""
    payload = bytes(range(256)) * 4_096
    headers = {"trace-id": "abc", "n": 5, "Trace.Id": "second", "raw": b"\xff", "nul": "a\0b", "ja": True, "": "x"}
    message = leased(payload, headers=headers, delivery=3, attempts=2, priority=9, group="g")
    work = bench(f"cat > {tmp_path}/payload; env -0 > {tmp_path}/env", message, variables={"WALRQ_SERVER": "walrq://h"})
    await work.run()
    found = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().split("\0") if "=" in line)

    assert payload == (tmp_path / "payload").read_bytes()
    expected = {
        "WALRQ_QUEUE": "q",
        "WALRQ_MESSAGE_ID": message.message_id,
        "WALRQ_RECEIPT_HANDLE": message.receipt_handle,
        "WALRQ_DELIVERY": "3",
        "WALRQ_ATTEMPTS": "2",
        "WALRQ_PRIORITY": "9",
        "WALRQ_GROUP": "g",
        "WALRQ_FENCE": "7.0",
        "WALRQ_PUSHED_AT": "2023-11-14T22:13:20.000+00:00",
        "WALRQ_HEADER_TRACE_ID": "abc",
        "WALRQ_HEADER_N": "5",
        "WALRQ_HEADER_JA": "true",
        "WALRQ_SERVER": "walrq://h",
    }
    assert expected == {name: found.get(name) for name in expected}
    assert {"raw": "ff", "nul": "a\0b"}.items() <= json.loads(found["WALRQ_HEADERS"]).items()
    assert "WALRQ_HEADER_NUL" not in found


async def test_what_no_environment_can_hold_is_left_out() -> None:
    """A header of a megabyte must not keep the command from starting."""
    found = variables(leased(headers={"big": "x" * 1_000_000, "small": "y"}))

    assert "y" == found["WALRQ_HEADER_SMALL"]
    assert not {"WALRQ_HEADER_BIG", "WALRQ_HEADERS"} & set(found)


async def test_a_command_need_not_read_its_message() -> None:
    """Its exit status tells, not what it read."""
    (outcome,) = await bench("exit 0", leased(b"x" * (1 << 20))).run()

    assert Verdict.ACKED is outcome.verdict


async def test_a_child_left_behind_holds_nobody_up(tmp_path: Path) -> None:
    """It keeps standard error open; the command has ended nevertheless."""
    os.mkfifo(tmp_path / "fifo")
    work = bench(f"cat {tmp_path}/fifo & exit 0", leased())
    (outcome,) = await work.run()
    # Whoever was left behind ends with this.
    (tmp_path / "fifo").open("wb").close()

    assert Verdict.ACKED is outcome.verdict


async def test_a_lost_body_goes_to_the_dead_letters() -> None:
    """There is nothing to hand over, now or ever."""
    work = bench("exit 0", leased(payloads=b"", ends=b"", lost=True))
    (outcome,) = await work.run()

    assert (Verdict.REJECTED, None) == (outcome.verdict, outcome.status)
    assert "disk damage" in work.desk.settled[0][2]


async def test_a_command_that_cannot_start_ends_everything_and_costs_no_attempt(tmp_path: Path) -> None:
    """The next message would fare no better."""
    work = bench("", leased(), leased(number=2))
    work.handover.plan = attrs.evolve(work.handover.plan, command=(f"{tmp_path}/absent",))
    with pytest.raises(FileNotFoundError):
        await work.run()

    assert ["release"] == [how for how, _, _ in work.desk.settled]


# --- leases -------------------------------------------------------------------------------------------------
async def test_the_lease_is_extended_as_long_as_the_command_runs(tmp_path: Path) -> None:
    """It ends only after its lease was extended three times."""
    os.mkfifo(tmp_path / "fifo")
    work = bench(f"cat {tmp_path}/fifo", leased(lease_s=SHORT_LEASE_S))

    def extend(message: Message, visibility: float) -> None:
        message.extend(SYSTEM.monotonic() + (LEASE_S if work.desk.touches == 3 else SHORT_LEASE_S))
        if work.desk.touches == 3:
            (tmp_path / "fifo").open("wb").close()

    work.desk.on_touch = extend
    (outcome,) = await work.run()

    assert (Verdict.ACKED, 3) == (outcome.verdict, work.desk.touches)


@pytest.mark.parametrize("error", [ReceiptExpired("over"), QueueNotFound("gone")], ids=["expired", "queue deleted"])
async def test_a_lost_lease_ends_the_command_and_what_it_started(tmp_path: Path, error: WalrqError) -> None:
    """Somebody else may have the message by now: two must not work on it."""
    os.mkfifo(tmp_path / "fifo")
    work = bench(f"cat {tmp_path}/fifo & echo $! > {tmp_path}/pid; wait", leased(lease_s=SHORT_LEASE_S))

    def lose(message: Message, visibility: float) -> None:
        # Not before the command is up.
        if (tmp_path / "pid").exists():
            raise error
        message.extend(SYSTEM.monotonic() + SHORT_LEASE_S)

    work.desk.on_touch = lose
    (outcome,) = await work.run()

    assert Verdict.LOST is outcome.verdict
    assert [] == work.desk.settled
    assert is_gone(int((tmp_path / "pid").read_text()))


async def test_an_outage_shorter_than_the_lease_costs_nothing_a_longer_one_the_command(tmp_path: Path) -> None:
    """The lease is counted here too: nobody works on what may be another's."""
    os.mkfifo(tmp_path / "fifo")
    short = bench(f"cat {tmp_path}/fifo", leased(lease_s=0.5))

    def first_away(message: Message, visibility: float) -> None:
        if short.desk.touches == 1:
            raise NotReady("away")
        message.extend(SYSTEM.monotonic() + LEASE_S)
        (tmp_path / "fifo").open("wb").close()

    short.desk.on_touch = first_away
    assert [Verdict.ACKED] == [each.verdict for each in await short.run()]

    long = bench("exec sleep 60", leased(lease_s=0.05))

    def away(message: Message, visibility: float) -> None:
        raise NotReady("away")

    long.desk.on_touch = away
    assert [Verdict.LOST] == [each.verdict for each in await long.run()]


async def test_an_ack_that_comes_too_late_is_said_to_be_one() -> None:
    """The command did its work, and the message comes again all the same."""
    work = bench("exit 0", leased())
    work.desk.on_settle = ReceiptExpired("over")
    (outcome,) = await work.run()

    assert (Verdict.LOST, 0) == (outcome.verdict, outcome.status)
    assert "comes again" in outcome.error


# --- how many at a time -------------------------------------------------------------------------------------
async def test_commands_run_side_by_side_and_no_more_is_leased_than_runs(tmp_path: Path) -> None:
    """Three that wait for each other come to an end only together; a message that waits loses its lease."""
    (tmp_path / "here").mkdir()
    here = shlex.quote(f"{tmp_path}/here")
    line = f"touch {here}/$WALRQ_MESSAGE_ID; while [ $(ls {here} | wc -l) -lt 3 ]; do sleep 0.01; done"
    work = bench(line, *[leased(number=number) for number in range(1, 7)], concurrency=3)
    outcomes = await work.run()

    assert [Verdict.ACKED] * 6 == [each.verdict for each in outcomes]
    assert 3 == work.desk.polls[0] == max(work.desk.polls)


async def test_a_limit_is_exact_and_an_empty_queue_ends_it() -> None:
    """--max counts messages, whatever runs at a time."""
    limited = bench("exit 0", *[leased(number=number) for number in range(1, 9)], concurrency=3, limit=4)
    assert 4 == len(await limited.run())
    assert 4 == len(limited.desk.waiting)
    assert 1 == len(await bench("exit 0", leased(), limit=None).run())


async def test_after_a_release_the_place_stays_empty_for_a_moment(autojump_clock: Any) -> None:
    """Released, a message is the next: a command that cannot work now would spin. Once nothing more is taken nobody
    waits."""
    work = bench("", leased(), concurrency=1)
    handover = work.handover
    released = Outcome("q", "id", Verdict.RELEASED, 75, 0.1, "")
    await handover._slots.acquire()
    started = trio.current_time()
    await handover.finished(Run(handover, leased()), released)
    assert (1, 1.0) == (handover._slots.value, trio.current_time() - started)
    handover._taken.set()
    await handover.finished(Run(handover, leased()), released)

    assert 1.0 == trio.current_time() - started
    assert 0 < RELEASE_PAUSE_S == 1.0


# --- the end ------------------------------------------------------------------------------------------------
async def stopped(work: Bench, *numbers: int, up: Path | None = None) -> list[Outcome]:
    """Run, send these signals once a command has written into `up` (or a poll waits), and wait for the end."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work.run)
        with trio.fail_after(60):
            await (work.desk.asked.wait() if up is None else heard(up))
        for number in numbers:
            signal.raise_signal(number)
            await trio.testing.wait_all_tasks_blocked()
    return work.outcomes


@pytest.fixture
def up(tmp_path: Path) -> Path:
    """A pipe for a command to say that it is up."""
    os.mkfifo(tmp_path / "up")
    return tmp_path / "up"


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A pipe that a command waits at."""
    os.mkfifo(tmp_path / "gate")
    return tmp_path / "gate"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
async def test_a_signal_lets_a_command_finish_and_takes_nothing_more(
    up: Path, gate: Path, number: int, status: int
) -> None:
    """The grace is for work that is nearly done."""
    work = bench(f"echo > {up}; cat {gate}", leased(), leased(number=2), limit=None, wait_s=None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work.run)
        with trio.fail_after(60):
            await heard(up)
        signal.raise_signal(number)
        await trio.testing.wait_all_tasks_blocked()
        assert [] == work.outcomes
        gate.open("wb").close()

    assert [Verdict.ACKED] == [each.verdict for each in work.outcomes]
    assert (status, 1) == (work.handover.status, len(work.desk.waiting))


@pytest.mark.parametrize(
    ("grace_s", "numbers"), [(0.0, [signal.SIGTERM]), (1e4, [signal.SIGINT, signal.SIGINT])], ids=["grace", "twice"]
)
async def test_after_the_grace_or_a_second_signal_the_command_is_ended_and_the_message_released(
    tmp_path: Path, up: Path, gate: Path, grace_s: float, numbers: list[int]
) -> None:
    """Free of charge: it was not the message's fault. Also when the command says that all is well."""
    line = f"trap 'exit 0' TERM; echo $$ > {tmp_path}/pid; cat {gate} & echo > {up}; wait"
    work = bench(line, leased(), limit=None, wait_s=None, grace_s=grace_s)
    outcomes = await stopped(work, *numbers, up=up)

    assert [(Verdict.RELEASED, 0)] == [(each.verdict, each.status) for each in outcomes]
    assert ["release"] == [how for how, _, _ in work.desk.settled]
    assert is_gone(int((tmp_path / "pid").read_text()))


async def test_a_command_that_does_not_listen_is_killed(up: Path) -> None:
    """SIGTERM is a request, SIGKILL is none."""
    line = f"trap '' TERM; echo > {up}; while :; do sleep 0.01; done"
    work = bench(line, leased(), limit=None, wait_s=None, grace_s=0.0, kill_after_s=0.02)
    (outcome,) = await stopped(work, signal.SIGTERM, up=up)

    assert (Verdict.RELEASED, -signal.SIGKILL) == (outcome.verdict, outcome.status)


async def test_a_signal_ends_a_follower_that_waits() -> None:
    """Nothing runs, nothing is leased: it ends at once."""
    work = bench("exit 0", limit=None, wait_s=None)

    assert [] == await stopped(work, signal.SIGTERM)
    assert 0 == work.handover.status


async def test_a_reader_that_left_ends_it(tmp_path: Path) -> None:
    """`| head` is the end of the work too, not of the message."""
    work = bench("exit 0", leased(), leased(number=2), concurrency=1)

    def report(outcome: Outcome) -> None:
        raise BrokenPipeError

    work.handover.report = report
    with pytest.raises(BrokenPipeError):
        await work.run()

    assert ["ack"] == [how for how, _, _ in work.desk.settled]
