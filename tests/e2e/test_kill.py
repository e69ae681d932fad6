"""kill -9 in the middle of real work: what was acknowledged is there afterwards, once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

import walrq.errors
from chaos import checker, history, stops
from chaos import soak as soak_module
from tests.e2e.conftest import Starter
from tests.e2e.talk import empty
from walrq import aio
from walrq.errors import WalrqError
from walrq.testing.node import Node

KILLS = 3
PRODUCE_S = 0.3


def lines_of_a_real_file() -> list[bytes]:
    """Text that nobody made up for a test: our own source, line by line, some of it twice, some of it empty."""
    folder = Path(walrq.errors.__file__).parent
    return [line for path in sorted(folder.glob("*.py")) for line in path.read_bytes().split(b"\n")]


async def push_all_and_kill(node: Node, lines: list[bytes], *, session: bool, points: set[int]) -> list[bytes]:
    """Push line by line; at each point kill the node under the push and start it again. The confirmed lines."""
    confirmed: list[bytes] = []
    config = aio.ClientConfig(session=session, connect_wait_s=30.0, retry_max_s=0.1)
    async with aio.connect(node.url, config) as client:
        for number, line in enumerate(lines):
            async with trio.open_nursery() as nursery:
                if number in points:
                    nursery.start_soon(trio.to_thread.run_sync, restart, node)
                try:
                    await client.push("lines", line)
                except WalrqError as error:
                    assert not session, f"line {number}: {error!r}"
                else:
                    confirmed.append(line)
    return confirmed


def restart(node: Node) -> None:
    """kill -9, and a new life at the same address."""
    node.kill()
    node.start()


@pytest.mark.parametrize("fsync", ["always", "never"])
def test_a_file_pushed_line_by_line_survives_kills_in_order(
    start_node: Starter, rng: random.Random, fsync: str
) -> None:
    """With a session every push is retried until it is answered: nothing is lost, nothing is there twice.

    kill -9 takes the process, not the kernel's cache, so the weak policy must keep the promise too.
    """
    lines = lines_of_a_real_file()
    node = start_node("--fsync", fsync)
    node.listen = node.ready["endpoints"]["cbor"]
    points = set(rng.sample(range(1, len(lines)), KILLS))
    confirmed = trio.run(lambda: push_all_and_kill(node, lines, session=True, points=points))

    assert lines == confirmed
    line = stops.Line(node.address)
    assert lines == empty(line, "lines")
    line.close()
    assert KILLS + 1 == node.lives


def test_without_a_session_every_confirmed_line_is_there_once(start_node: Starter, rng: random.Random) -> None:
    """An unknown outcome may be there or not; a confirmed one is there, and nothing is there that was not sent."""
    lines = [b"%d %s" % (number, line) for number, line in enumerate(lines_of_a_real_file())]
    node = start_node()
    node.listen = node.ready["endpoints"]["cbor"]
    points = set(rng.sample(range(1, len(lines)), KILLS))
    confirmed = trio.run(lambda: push_all_and_kill(node, lines, session=False, points=points))
    line = stops.Line(node.address)
    found = empty(line, "lines")
    line.close()

    assert len(found) == len(set(found))
    assert set(confirmed) <= set(found) <= set(lines)
    assert [each for each in found if each in set(confirmed)] == confirmed


@pytest.mark.slow
def test_a_short_soak_breaks_no_promise(tmp_path: Path, seed: int, capfd: pytest.CaptureFixture[str]) -> None:
    """The soak of the Makefile in small: real load, kill -9, drain, the checker's verdict."""
    arguments = ["soak", "--duration", "8", "--seed", str(seed), "--kill-every", "1.5-3", "--rate", "800"]
    from chaos.__main__ import main

    status = main([*arguments, "--dir", str(tmp_path)])
    output = capfd.readouterr()

    assert 0 == status, output.err
    assert soak_module.MARKS
    assert '"valid": true' in output.out


def test_a_doctored_history_of_a_real_run_is_found_out(start_node: Starter, tmp_path: Path) -> None:
    """The checker reads what real clients wrote, so a message taken out of a real history must be missed."""
    node = start_node()
    path = tmp_path / "history.ndjson"
    with path.open("wb") as file:
        state = soak_module.State(writer=history.Writer(file))
        plan = soak_module.Plan(url=node.url, seed=5, batch=5, rate=1_000.0, visibility_ms=1_000, abandon=0.0)

        async def scenario() -> bool:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(soak_module.produce, plan, state, 0)
                await trio.sleep(PRODUCE_S)
                state.stop_producing = True
            return await soak_module.drain(plan, state, 30.0)

        assert trio.run(scenario)
    honest = checker.check(history.read(path))
    text = path.read_bytes().split(b"\n")
    (victim,) = [i for i, line in enumerate(text) if b'"runs":[{' in line][-1:]
    (settle,) = [i for i, line in enumerate(text) if b'"op":"settle"' in line and i > victim][:1]
    doctored = text[: victim - 1] + text[victim + 1 : settle] + text[settle + 2 :]
    (tmp_path / "doctored").write_bytes(b"\n".join(doctored))
    verdict = checker.check(history.read(tmp_path / "doctored"))

    assert honest.valid, checker.report(honest)
    assert any(f.name == "NoSilentLoss" and f.violations for f in verdict.findings), checker.report(verdict)
