"""The pytest plugin as its users have it: their test files, run by a pytest of their own, warnings being errors."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest_plugins = "pytester"

ROOT = Path(__file__).resolve().parent.parent.parent
PLUGIN = "walrq.testing.plugin"

# The last look of a run: nothing that a fixture made is there any more. Trio keeps its idle worker threads for some
# seconds; they are nobody's.
LEAVES_NOTHING = """
    import os, threading
    import pytest

    @pytest.fixture(scope="session", autouse=True)
    def _nothing_stays():
        descriptors = set(os.listdir("/proc/self/fd"))
        files = set(os.listdir(os.environ["TMPDIR"]))
        yield
        left = [each.name for each in threading.enumerate() if each.name.startswith("walrq")]
        assert [] == left
        assert files == set(os.listdir(os.environ["TMPDIR"]))
        # One is the look itself; reading the directory takes another.
        assert len(os.listdir("/proc/self/fd")) <= len(descriptors) + SPARE
"""


@pytest.fixture
def users(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.Pytester:
    """A directory of a user's tests."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    # Only what a test names: a process of its own for each is slow enough.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return pytester


def run(users: pytest.Pytester, *options: str) -> pytest.RunResult:
    """Their pytest, in a process of its own."""
    return users.runpytest_subprocess("-p", PLUGIN, "-W", "error", "-p", "no:cacheprovider", *options, timeout=60)


# --- fixtures -----------------------------------------------------------------------------------------------
def test_blocking_code_has_a_server_a_client_and_a_clock(users: pytest.Pytester) -> None:
    """Nothing is started, nothing configured; code that connects by itself finds the test's server."""
    users.makepyfile(
        """
        import os
        import walrq

        def send(name):
            with walrq.connect() as queue:
                queue.push("mail", name, delay=3600)

        def test_a_reminder(walrq_client, walrq_clock):
            send("ann")
            assert walrq_client.poll("mail") == []
            walrq_clock.advance(3601)
            (message,) = walrq_client.poll("mail")
            assert message.payload == b"ann"

        def test_the_next_test_starts_afresh(walrq_server):
            assert walrq_server.queues() == []
            assert os.environ["WALRQ_SERVER"] == walrq_server.url

        def test_a_client_that_was_made_without_a_clock_follows(walrq_server, walrq_clock):
            with walrq.connect() as queue:
                queue.push("jobs", "x")
                (message,) = queue.poll("jobs", visibility=30)
                walrq_clock.advance(25)
                assert message.remaining <= 5
                walrq_clock.advance(10)
                assert message.remaining < 0

        def test_without_fixtures_nothing_is_changed():
            assert "WALRQ_SERVER" not in os.environ
            from walrq.client.clock import SYSTEM
            assert vars(SYSTEM) in ({}, {"offset": 0.0})
        """
    )

    run(users).assert_outcomes(passed=4)


def test_asynchronous_code_has_a_client_whoever_runs_it(users: pytest.Pytester) -> None:
    """pytest-trio, anyio's plugin with both backends, asyncio.run and trio.run: the same fixture."""
    users.makepyfile(
        """
        import asyncio
        import pytest
        import trio

        async def story(connection, clock):
            async with connection as client:
                await client.push("jobs", "x")
                (message,) = await client.poll("jobs", visibility=30)
                await clock.advance_async(20)
                await client.touch(message, 30)
                clock.advance(20)
                assert await client.poll("jobs") == []
                await clock.advance_async(20)
                (again,) = await client.poll("jobs", wait=5)
                assert again.delivery == 2
                await client.ack(again)

        @pytest.mark.trio
        async def test_pytest_trio(walrq_async_client, walrq_clock):
            await story(walrq_async_client, walrq_clock)

        @pytest.mark.anyio
        @pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
        async def test_anyio(walrq_async_client, walrq_clock, anyio_backend):
            await story(walrq_async_client, walrq_clock)

        def test_asyncio_run(walrq_async_client, walrq_clock):
            asyncio.run(story(walrq_async_client, walrq_clock))

        def test_trio_run(walrq_async_client, walrq_clock):
            trio.run(story, walrq_async_client, walrq_clock)

        def test_more_than_one(walrq_server, walrq_async_client):
            async def main():
                async with walrq_async_client as one, walrq_server.connect_async(timeout_s=5) as two:
                    await one.push("jobs", "x")
                    assert len(await two.poll("jobs")) == 1
                async with walrq_async_client as again:
                    await again.ping()
            asyncio.run(main())
        """
    )

    run(users, "-p", "anyio.pytest_plugin", "-p", "pytest_trio.plugin").assert_outcomes(passed=6)


def test_faults_are_a_fixture(users: pytest.Pytester) -> None:
    """What a test of a worker's robustness needs, without another process."""
    users.makepyfile(
        """
        def test_a_crash(walrq_client, walrq_faults):
            walrq_client.push("jobs", "x")
            walrq_faults.crash()
            assert [message.payload for message in walrq_client.poll("jobs")] == [b"x"]

        def test_an_outage(walrq_client, walrq_faults):
            with walrq_faults.stop():
                pass
            assert walrq_client.ping() >= 0
        """
    )

    run(users).assert_outcomes(passed=2)


def test_tasks_of_an_application_run_in_every_test_anew(users: pytest.Pytester) -> None:
    """A worker is a module's global: what it keeps of one test's server does not reach into the next."""
    users.makepyfile(
        shop="""
        import walrq

        worker = walrq.Worker(queue="shop")
        sent = []

        @worker.task(retries=3, backoff=60)
        def send(order):
            sent.append(order)
            if sent.count(order) < 2:
                raise ConnectionError("not yet")
        """,
        test_shop="""
        import pytest
        import shop

        @pytest.mark.parametrize("order", [1, 2, 3])
        def test_it(walrq_run, walrq_server, order):
            shop.send.enqueue(order)
            walrq_run(shop.worker)
            assert shop.sent.count(order) == 1
            assert walrq_run(shop.worker, advance=600) > 0
            assert shop.sent.count(order) == 2
            assert [queue.delayed + queue.ready + queue.leased for queue in walrq_server.queues()] == [0]
        """,
    )

    run(users).assert_outcomes(passed=3)


def test_a_marker_gives_settings(users: pytest.Pytester) -> None:
    """Those of the daemon; the nearest marker wins; a wrong name is an error that suggests the right one."""
    users.makepyfile(
        """
        import pytest
        import walrq.errors

        pytestmark = pytest.mark.walrq_settings(auto_create=True, max_connections=7)

        @pytest.mark.walrq_settings(auto_create=False)
        def test_settings(walrq_client, walrq_server):
            assert walrq_server.config.max_connections == 7
            with pytest.raises(walrq.errors.QueueNotFound):
                walrq_client.push("jobs", "x")

        @pytest.mark.walrq_settings(auto_creat=False)
        def test_wrong(walrq_client):
            pass
        """
    )

    result = run(users, "--strict-markers")

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*auto_creat*auto_create*"])


def test_a_session_server_is_one_for_all(users: pytest.Pytester) -> None:
    """It has a clock of its own, and is emptied on request."""
    users.makepyfile(
        """
        def test_one(walrq_session_server):
            with walrq_session_server.connect() as queue:
                queue.push("jobs", "x", delay=60)
            walrq_session_server.clock.advance(61)
            assert [each.ready for each in walrq_session_server.queues()] == [1]

        def test_two(walrq_session_server):
            assert [each.name for each in walrq_session_server.queues()] == ["jobs"]
            walrq_session_server.reset()
            assert walrq_session_server.queues() == []

        def test_fails(walrq_session_server):
            assert walrq_session_server is None
        """
    )

    result = run(users)

    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["server  walrq://127.0.0.1:* (running)", "repeat *", "queues  none"])


# --- failures -----------------------------------------------------------------------------------------------
FAILING = """
    def test_it(walrq_client, walrq_clock, walrq_faults, walrq_seed):
        walrq_client.push("jobs", "x")
        walrq_client.push("mail", "y", delay=60)
        walrq_clock.advance(30)
        walrq_faults.cut_connections()
        print("seed is", walrq_seed)
        assert walrq_client.poll("mail")
"""


def test_a_failure_shows_the_server_and_how_to_repeat_it(users: pytest.Pytester) -> None:
    """Queues with counts, faults, the clock, the seed."""
    users.makepyfile(FAILING)

    result = run(users, "--walrq-seed=42")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "walrq: --walrq-seed=42",
            "*- walrq -*",
            "server  walrq://127.0.0.1:* (running)",
            "clock *advanced by 30 s",
            "repeat  pytest --walrq-seed=42",
            "faults  cut 1 connections",
            "queues  *ready*delayed*leased*parked*dead",
            "jobs    *1*0*0*0*0",
            "mail    *0*1*0*0*0",
        ]
    )
    result.stdout.no_fnmatch_line("seed  *")


def test_a_run_that_does_not_end_is_reported_once(users: pytest.Pytester) -> None:
    """The same section twice makes its reader look for the difference."""
    users.makepyfile(
        """
        import threading
        import walrq

        worker = walrq.Worker()
        stop = threading.Event()

        @worker.task
        def stuck():
            stop.wait(20)

        def test_it(walrq_run):
            stuck.enqueue()
            try:
                walrq_run(worker, patience_s=0.1)
            finally:
                stop.set()
        """
    )

    result = run(users)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the worker's queues do not become empty"])
    assert 1 == sum(line.startswith("server  walrq://") for line in result.outlines)


def test_a_passing_run_says_nothing(users: pytest.Pytester) -> None:
    """Neither in the header nor anywhere else."""
    users.makepyfile("def test_it(walrq_client): walrq_client.push('jobs', 'x')")

    result = run(users)

    result.assert_outcomes(passed=1)
    assert "walrq-seed" not in result.stdout.str()


def seeds_of(result: pytest.RunResult) -> list[str]:
    """The seeds that the tests printed."""
    return [line.split()[-1] for line in result.outlines if "seed is" in line and "print" not in line]


def test_a_seed_repeats_and_is_new_otherwise(users: pytest.Pytester) -> None:
    """Each test has its own, derived from the run's; without the option every run has a new one."""
    users.makepyfile(
        """
        def test_one(walrq_seed): print("seed is", walrq_seed)
        def test_two(walrq_seed): print("seed is", walrq_seed)
        """
    )

    first, again = (seeds_of(run(users, "-s", "--walrq-seed=7")) for _ in range(2))
    drawn = seeds_of(run(users, "-s"))

    assert 2 == len(set(first))
    assert first == again
    assert 2 == len(set(drawn))
    assert not set(first) & set(drawn)


def test_a_wrong_seed_is_a_usage_error(users: pytest.Pytester) -> None:
    """Before any test is run."""
    result = run(users, "--walrq-seed=4294967296")

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines(["*--walrq-seed*"])


def test_workers_of_xdist_share_the_seed(users: pytest.Pytester) -> None:
    """A failure in any of them is repeated by the number that it shows, with or without workers."""
    users.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", range(4))
        def test_it(walrq_client, walrq_seed, number):
            walrq_client.push("jobs", "x")
            raise AssertionError(f"seed is {walrq_seed}")
        """
    )

    result = run(users, "-p", "xdist.plugin", "-n", "2")
    repeats = {line for line in result.outlines if line.startswith("repeat")}
    (repeat,) = repeats
    alone = run(users, repeat.split()[-1])

    def failures(of: pytest.RunResult) -> list[str]:
        return sorted(line for line in of.outlines if line.startswith("E ") and "seed is" in line)

    result.assert_outcomes(failed=4)
    assert 4 == len(failures(result))
    assert failures(result) == failures(alone)


# --- what it leaves behind, and what it costs ---------------------------------------------------------------
@pytest.mark.parametrize("outcome", ["passed", "failed"])
def test_nothing_is_left_behind(users: pytest.Pytester, outcome: str) -> None:
    """No thread, socket or file, also when tests fail with clients open and calls under way."""
    users.makeconftest(LEAVES_NOTHING.replace("SPARE", "4"))
    users.makepyfile(
        f"""
        import threading
        import pytest

        @pytest.mark.parametrize("number", range(6))
        def test_it(walrq_server, walrq_faults, number):
            clients = [walrq_server.connect() for _ in range(3)]
            clients[0].push("jobs", "x")
            walrq_faults.crash()
            thread = threading.Thread(target=wait, args=(clients[1],))
            thread.start()
            clients[0].push("jobs", "y")
            clients[1].close()
            thread.join()
            assert {outcome == "passed"}

        def wait(client):
            with pytest.raises(Exception):
                while True:
                    client.poll("nothing", wait=60)
        """
    )

    run(users).assert_outcomes(**{outcome: 6})


def test_the_look_for_leftovers_sees_them(users: pytest.Pytester) -> None:
    """A check that cannot fail guards nothing: a server that is never closed is found."""
    users.makeconftest(LEAVES_NOTHING.replace("SPARE", "4"))
    users.makepyfile(
        """
        from walrq.testing.server import Server

        KEPT = []

        def test_it():
            KEPT.append(Server())
        """
    )

    run(users).assert_outcomes(passed=1, errors=1)


def test_projects_that_do_not_use_it_import_next_to_nothing() -> None:
    """One small module and walrq's own name; no client, no daemon, no library of theirs."""
    code = f"import pytest, sys; before = set(sys.modules); import {PLUGIN}; print(*sorted(set(sys.modules) - before))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    imported = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    ).stdout.split()

    assert ["walrq", "walrq.testing", PLUGIN] == imported


def test_pytest_finds_it_by_itself() -> None:
    """The entry point, which is named like the module so that `-p` with the module's name is the same plugin."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]

    assert {PLUGIN: PLUGIN} == points
    (name,) = points
    assert PLUGIN == importlib.metadata.EntryPoint(name, points[name], "pytest11").load().__name__
