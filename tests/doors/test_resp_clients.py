"""What people use: redis-cli, redis-py in both protocol versions and both colours, redis-benchmark."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.doors.house import house
from tests.requirements import require

pytestmark = pytest.mark.trio
PATIENCE_S = 60
SHORT_S = 0.02
PAGE = Path(__file__).resolve().parents[2] / "docs" / "redis.md"


async def aside(call: Callable[[], Any]) -> Any:
    """Run blocking code in a thread, beside the node."""
    return await trio.to_thread.run_sync(call)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def run(*command: str, stdin: str = "") -> str:
    """The output of a program that must end well."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done
    return done.stdout


async def test_redis_cli_holds_the_documented_session(tmp_path: Path) -> None:
    """Word for word as docs/redis.md shows it."""
    require("redis")
    async with house(tmp_path, "resp", requirepass="secret") as (room,):
        # A tenth of the page's ten seconds.
        typed, shown = _session(
            PAGE.read_text(encoding="utf-8").replace("10.0", "1.0").replace("BRPOP jobs 10", "BRPOP jobs 1")
        )
        port = str(port_of(room.endpoints["resp"]))
        said = await aside(partial(run, "redis-cli", "-p", port, "--no-raw", stdin=typed))
    # redis-cli notes how long a command took when that is long.
    assert [line for line in said.splitlines() if not re.fullmatch(r"\(\d+\.\d+s\)", line)] == shown
    assert len(shown) == 13


def _session(page: str) -> tuple[str, list[str]]:
    """What the page's first session types into redis-cli, and what it shows."""
    block = page.split("```text\n", 1)[1].split("```", 1)[0].splitlines()
    lines = block[block.index("$ redis-cli") + 1 :]
    typed = [line[2:] for line in lines if line.startswith("> ")]
    return "\n".join(typed) + "\n", [line for line in lines if not line.startswith("> ")]


async def test_redis_cli_with_its_options(tmp_path: Path) -> None:
    """-a, --user, -n, -3."""
    require("redis")
    async with house(tmp_path, "resp", requirepass="secret") as (room,):
        cli = ("redis-cli", "-p", str(port_of(room.endpoints["resp"])), "--no-auth-warning")
        assert await aside(partial(run, *cli, "LPUSH", "q", "x")) == "NOAUTH Authentication required.\n\n"
        assert await aside(partial(run, *cli, "-a", "secret", "LPUSH", "q", "x")) == "1\n"
        assert await aside(partial(run, *cli, "--user", "default", "--pass", "secret", "-n", "0", "LLEN", "q")) == "1\n"
        assert await aside(partial(run, *cli, "-3", "-a", "secret", "RPOP", "q")) == "x\n"
        assert await aside(partial(run, *cli, "-3", "-a", "secret", "RPOP", "q")) == "\n"
        assert await aside(partial(run, *cli, "-a", "secret", "--scan")) == "q\n"


@pytest.mark.parametrize("protocol", [None, 2, 3])
async def test_redis_py(tmp_path: Path, protocol: int | None) -> None:
    """None: as it comes, which is RESP3."""
    require("redis")
    async with house(tmp_path, "resp", requirepass="secret") as (room,):
        await aside(partial(_redis_py, port_of(room.endpoints["resp"]), protocol))


def _redis_py(port: int, protocol: int | None) -> None:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    rest: dict[str, Any] = {} if protocol is None else {"protocol": protocol}
    with redis.Redis(port=port, password="secret", **rest) as client:
        assert client.ping()
        assert client.lpush("q", "a", "b") == 2
        assert client.llen("q") == 2
        assert client.rpop("q") == b"a"
        assert list(client.brpop(["other", "q"], 1)) == [b"q", b"b"]
        assert client.brpop("q", 0.01) is None
        assert client.rpop("q") is None
        assert client.rpop("q", 2) is None
        assert client.execute_command("RPOPLEASE", "q", 5) is None
        client.lpush("q", "c")
        assert client.execute_command("RPOPLEASE", "q", 5) == [b"task-1", b"c"]
        assert client.execute_command("TASKACK", "q", "task-1") in (b"OK", "OK")
        with pytest.raises(redis.ResponseError, match="Task ID not found in-flight"):
            client.execute_command("TASKACK", "q", "task-1")
        assert client.execute_command("DLQ_LIST", "q") == []
        client.lpush("q", "d")
        assert client.rpoplpush("q", "p") == b"d"
        assert client.brpoplpush("q", "p", 1) is None
        assert client.lmove("p", "q", "RIGHT", "LEFT") == b"d"
        with client.pipeline(transaction=False) as pipeline:
            assert pipeline.lpush("q", "e").llen("q").rpop("q").rpop("q").execute() == [2, 2, b"d", b"e"]
        with pytest.raises(redis.ResponseError, match="there are no transactions"):
            client.pipeline().lpush("q", "x").execute()
        assert sorted(client.keys("*")) == sorted(client.scan_iter("*", 1)) == [b"p", b"q"]
        assert client.exists("p", "q", "nothing") == 2
        assert client.type("q") == b"list"
        assert client.info()["role"] == "master"
        assert client.delete("p", "nothing") == 1
        assert client.client_id() > 0
        assert isinstance(client.command_count(), int)
        with pytest.raises(redis.ResponseError, match="nothing here removes everything"):
            client.flushall()
    once = Retry(NoBackoff(), 0)
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(port=port, password="wrong", retry=once, **rest).ping()
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(port=port, retry=once, **rest).lpush("q", "x")
    decoded = redis.Redis(port=port, password="secret", decode_responses=True, **rest)
    assert decoded.lpush("ö", "ü") == 1
    assert list(decoded.brpop("ö", 1)) == ["ö", "ü"]
    decoded.close()


async def test_a_wait_longer_than_the_socket_time_out_takes_nothing_from_nobody(tmp_path: Path) -> None:
    """redis-py sends a timed-out command again on a new connection: the waiters of the old ones are gone by then."""
    require("redis")

    def wait(port: int) -> bytes | None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        with redis.Redis(port=port, socket_timeout=0.1, retry=Retry(NoBackoff(), 4)) as client:
            client.lpush("q", "x")
            client.rpop("q")
            with pytest.raises(redis.TimeoutError):
                client.brpop("q", 5)
            assert client.lpush("q", "kept", "too") == 2
            found: bytes | None = client.rpop("q")
            return found

    async with house(tmp_path, "resp") as (room,):
        assert await aside(partial(wait, port_of(room.endpoints["resp"]))) == b"kept"


async def test_asynchronous_redis_py(tmp_path: Path) -> None:
    """Its asyncio face, twenty at a time on one pool."""
    require("redis")

    async def talk(port: int) -> None:
        import redis.asyncio

        client = redis.asyncio.Redis(port=port, max_connections=20)
        try:
            assert await client.ping()
            await asyncio.gather(*[client.lpush("q", str(number)) for number in range(20)])
            found = await asyncio.gather(*[client.brpop("q", 5) for _ in range(20)])
            assert sorted(int(payload) for _, payload in found) == list(range(20))
            waiting = asyncio.create_task(client.brpop("later", 5))
            await asyncio.sleep(SHORT_S)
            await client.lpush("later", "x")
            assert list(await waiting) == [b"later", b"x"]
        finally:
            await client.aclose()

    async with house(tmp_path, "resp") as (room,):
        await aside(lambda: asyncio.run(talk(port_of(room.endpoints["resp"]))))


async def test_redis_benchmark(tmp_path: Path) -> None:
    """Its own LPUSH and RPOP, and commands that it does not know, pipelined and not."""
    require("redis")
    async with house(tmp_path, "resp") as (room,):
        bench = ("redis-benchmark", "-p", str(port_of(room.endpoints["resp"])), "-c", "10", "-n", "500", "-q")
        for rest in (("-t", "lpush,rpop"), ("-P", "16", "LPUSH", "jobs", "x"), ("RPOPLEASE", "jobs", "30")):
            assert "requests per second" in await aside(partial(run, *bench, *rest))
