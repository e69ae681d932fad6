"""The Redis door of a real node: the commands of its users, and none of the faults of the server they come from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from tests.doors.house import house
from tests.doors.redis_talk import Redis, RedisError, redis

pytestmark = pytest.mark.trio
SHORT_S = 0.03
# How often a condition of another connection or node is looked at: none of them rings a bell here.
LOOK_S = 0.005


async def until(client: Redis, what: Callable[[str], bool]) -> None:
    """Wait until INFO says so: settles and returns follow their replies by a moment, and ring no bell here."""
    while not what((await client("INFO", "queues")).decode()):  # noqa: ASYNC110 - of another connection
        await trio.sleep(LOOK_S)


async def test_the_session_of_the_documentation_works_literally(tmp_path: Path) -> None:
    """A fresh server with a password."""
    async with house(tmp_path, "resp", requirepass="secret") as (room,), redis(room.endpoints["resp"]) as client:
        with pytest.raises(RedisError, match="NOAUTH"):
            await client.line("LPUSH jobs process_video_1")
        assert await client.line("AUTH secret") == "OK"
        assert await client.line("LPUSH jobs process_video_1") == 1
        assert await client.line("LPUSH_DELAY jobs 0.05 reminder") == 1
        assert await client.line("RPOPLEASE jobs 30") == [b"task-1", b"process_video_1"]
        assert await client.line("TASKTOUCH jobs task-1 30") == "OK"
        assert await client.line("TASKACK jobs task-1") == "OK"
        assert await client.line("BRPOP jobs 10") == [b"jobs", b"reminder"]
        assert await client.line("DLQ_LIST jobs") == []
        assert await client.line("DLQ_REPLAY jobs") == 0
        assert await client.line("DLQ_PURGE jobs") == 0
        assert await client.line("BGREWRITEAOF") == "Background append only file rewriting started, 0 items written"


async def test_priorities_come_first_and_equals_in_order(tmp_path: Path) -> None:
    """255 before 0; lengths count all."""
    async with house(tmp_path, "resp") as (room,), redis(room.endpoints["resp"]) as client:
        assert await client.line("LPUSH q a b") == 2
        assert await client.line("LPUSH_PRIORITY q 255 top") == 3
        assert await client.line("LPUSH_PRIORITY q 1 mid") == 4
        assert await client.pipeline(*["RPOP q"] * 5) == [b"top", b"mid", b"a", b"b", None]


async def test_pipelined_commands_see_each_other(tmp_path: Path) -> None:
    """Pushes, pops, nacks and reads of one connection, sent at once, mean what they mean one by one."""
    async with house(tmp_path, "resp") as (room,), redis(room.endpoints["resp"]) as client:
        assert await client.pipeline(
            "LPUSH q a",
            "LPUSH q b",
            "LLEN q",
            "RPOPLEASE q 30",
            "TASKNACK q task-1",
            "RPOP q",
            "RPOP q",
            "RPOP q",
            "LLEN q",
            "EXISTS q nothing",
        ) == [1, 2, 2, [b"task-1", b"a"], "OK", b"b", b"a", None, 0, 1]


async def test_rpoplpush_is_one_step_and_keeps_what_a_message_has(tmp_path: Path) -> None:
    """Its priority goes with it; the reply is the payload."""
    async with house(tmp_path, "resp") as (room,), redis(room.endpoints["resp"]) as client:
        await client.line("LPUSH_PRIORITY q 7 high")
        await client.line("LPUSH p low")
        assert await client.line("RPOPLPUSH q p") == b"high"
        assert await client.pipeline("RPOP p", "RPOP p", "RPOPLPUSH q p", "RPOPLPUSH nowhere p") == [
            b"high",
            b"low",
            None,
            None,
        ]
        assert await client.line("RPOPLPUSH q q") is None
        await client.line("LPUSH q 1 2")
        assert await client.pipeline("RPOPLPUSH q q", "RPOP q", "RPOP q") == [b"1", b"2", b"1"]


async def test_blocking_commands_wake_and_time_out(tmp_path: Path) -> None:
    """The first queue in order wins; a wait that finds nothing answers nothing."""
    async with (
        house(tmp_path, "resp") as (room,),
        redis(room.endpoints["resp"]) as waiting,
        redis(room.endpoints["resp"]) as client,
    ):
        assert await waiting.line("BRPOP q p 0.01") is None
        assert await waiting.line("BRPOPLEASE q 0.01") is None
        assert await waiting.line("BRPOPLPUSH q p 0.01") is None
        await waiting.send("BRPOP", "q", "p", 0)
        await client.line("LPUSH p later")
        assert await waiting.reply() == [b"p", b"later"]
        await waiting.send("BRPOPLEASE", "q", 0, 5)
        await client.line("LPUSH q x")
        assert await waiting.reply() == [b"task-1", b"x"]
        await waiting.send("BRPOPLPUSH", "s", "d", 0)
        await client.line("LPUSH s y")
        assert await waiting.reply() == b"y"
        assert await client.line("RPOP d") == b"y"
        await client.line("LPUSH p second")
        await client.line("LPUSH q first")
        assert await waiting.line("BRPOP q p 1") == [b"q", b"first"]


async def test_a_waiter_wakes_for_its_queue_only_and_one_for_one_message(tmp_path: Path) -> None:
    """Fault 11 of DTQ: there every waiter woke for every push."""
    async with house(tmp_path, "resp") as (room,), redis(room.endpoints["resp"]) as client:
        async with redis(room.endpoints["resp"]) as one, redis(room.endpoints["resp"]) as two:
            await one.send("BRPOP", "q", 0)
            await trio.sleep(SHORT_S)
            await two.send("BRPOP", "q", 0)
            await trio.sleep(SHORT_S)
            await client.line("LPUSH other x")
            await client.line("LPUSH q first")
            assert await one.reply() == [b"q", b"first"]
            with trio.move_on_after(SHORT_S) as scope:
                await two.reply()
            assert scope.cancelled_caught
            await client.line("LPUSH q second")
            assert await two.reply() == [b"q", b"second"]


async def test_work_survives_a_restart_as_it_was(tmp_path: Path) -> None:
    """Faults 1, 3 and 6: leases, delays, priorities and dead letters are all there, and task numbers go on."""
    async with house(tmp_path, "resp") as (room,), redis(room.endpoints["resp"]) as client:
        await client.pipeline("LPUSH q held", "LPUSH_PRIORITY q 5 high", "LPUSH_DELAY q 600 late", "LPUSH dying x")
        assert await client.line("RPOPLEASE q 600") == [b"task-1", b"high"]
        for _ in range(3):
            task, _ = await client.line("RPOPLEASE dying 30")
            await client("TASKNACK", "dying", task)
        assert await client.line("BGREWRITEAOF") == "Background append only file rewriting started, 4 items written"
        assert await client.line("LPUSH_DELAY q 600 later") == 2
    async with house(tmp_path, "resp") as (room,), redis(room.endpoints["resp"]) as client:
        info = (await client("INFO")).decode()
        assert "queue_q:1;in_flight:1;dlq:0" in info and "delayed_tasks:2" in info
        assert await client.line("DLQ_LIST dying") == [b"x"]
        assert await client.line("RPOPLEASE q 30") == [b"task-5", b"held"]
        assert await client.line("TASKACK q task-1") == "OK"
        assert await client.line("TASKACK q task-5") == "OK"
        assert await client.line("LPUSH_DELAY q 600 latest") == 3


async def test_a_task_id_is_good_for_its_one_delivery(tmp_path: Path) -> None:
    """Fault 6: whoever comes late settles nothing of the next holder's."""
    async with house(tmp_path, "resp") as (room,), redis(room.endpoints["resp"]) as client:
        await client.line("LPUSH q x")
        assert await client.line("RPOPLEASE q 0.01") == [b"task-1", b"x"]
        await trio.sleep(SHORT_S)
        assert await client.line("BRPOPLEASE q 5 30") == [b"task-2", b"x"]
        for command in ("TASKACK q task-1", "TASKNACK q task-1", "TASKTOUCH q task-1 5", "TASKACK other task-2"):
            with pytest.raises(RedisError, match="Task ID not found in-flight"):
                await client.line(command)
        assert await client.line("TASKACK q task-2") == "OK"
        with pytest.raises(RedisError, match="Task ID not found in-flight"):
            await client.line("TASKACK q task-2")


async def test_a_poison_message_does_not_hold_the_line(tmp_path: Path) -> None:
    """Fault 9: after a nack it is behind what was ready, and after three in the dead-letter queue."""
    async with house(tmp_path, "resp") as (room,), redis(room.endpoints["resp"]) as client:
        await client.line("LPUSH q poison a b")
        order = []
        while (found := await client.line("RPOPLEASE q 30")) is not None:
            task, payload = found
            order.append(payload)
            await client("TASKNACK" if payload == b"poison" else "TASKACK", "q", task)
        assert order == [b"poison", b"a", b"b", b"poison", b"poison"]
        assert await client.line("DLQ_LIST q") == [b"poison"]


async def test_replay_keeps_the_order_of_death_behind_the_waiting_work(tmp_path: Path) -> None:
    """Fault 10: oldest dead first, and nobody is overtaken."""
    async with house(tmp_path, "resp") as (room,), redis(room.endpoints["resp"]) as client:
        for payload in ("one", "two"):
            await client("LPUSH", "q", payload)
            for _ in range(3):
                task, _ = await client.line("RPOPLEASE q 30")
                await client("TASKNACK", "q", task)
        await client.line("LPUSH q waiting")
        assert await client.line("DLQ_LIST q") == [b"one", b"two"]
        assert await client.line("DLQ_LIST q 1") == [b"one"]
        assert await client.line("DLQ_REPLAY q") == 2
        assert await client.pipeline(*["RPOP q"] * 3) == [b"waiting", b"one", b"two"]
        assert await client.line("DLQ_PURGE q") == 0


async def test_a_waiter_dies_with_its_connection(tmp_path: Path) -> None:
    """Fault 8: nothing is popped into a socket that nobody reads."""
    async with house(tmp_path, "resp") as (room,), redis(room.endpoints["resp"]) as client:
        for _ in range(20):
            async with redis(room.endpoints["resp"]) as gone:
                await gone.send("BRPOP", "q", 0)
        await trio.sleep(SHORT_S)
        await client.pipeline(*[f"LPUSH q {number}" for number in range(20)])
        assert await client.line("LLEN q") == 20
        assert "in_flight:0" in (await client("INFO", "queues")).decode()


async def test_what_was_leased_for_a_client_that_is_gone_is_free_at_once(tmp_path: Path) -> None:
    """A reply that the kernel did not take costs no attempt and no waiting."""
    async with house(tmp_path, "resp") as (room,), redis(room.endpoints["resp"]) as client:
        # More than the socket's buffers hold.
        await client("LPUSH", "q", *[b"x" * 900_000] * 15)
        async with redis(room.endpoints["resp"]) as gone:
            await gone.pipeline("PING")
            await gone.stream.send_all(b"*3\r\n$9\r\nRPOPLEASE\r\n$1\r\nq\r\n$3\r\n600\r\n" * 15)
            await until(client, lambda info: "queue_q:0;" in info)
        await until(client, lambda info: "queue_q:15;" in info)
        task, _ = await client.line("RPOPLEASE q 1")
        assert await client("TASKNACK", "q", task) == "OK"
        assert await client.line("DLQ_LIST q") == []


async def test_a_pop_is_settled_when_its_reply_has_left(tmp_path: Path) -> None:
    """Nothing of it comes again, also after a restart."""
    async with house(tmp_path, "resp") as (room,), redis(room.endpoints["resp"]) as client:
        await client.pipeline(*[f"LPUSH q {number}" for number in range(50)])
        assert len(await client.pipeline(*["RPOP q"] * 50)) == 50
        await until(client, lambda info: "queue_q:0;in_flight:0;" in info)
    async with house(tmp_path, "resp") as (room,), redis(room.endpoints["resp"]) as client:
        assert "queue_q:0;in_flight:0;dlq:0" in (await client("INFO", "queues")).decode()


async def test_bad_numbers_and_arguments_are_refused_and_the_connection_goes_on(tmp_path: Path) -> None:
    """Fault 13: nothing is replaced by a default, nothing is dropped."""
    async with house(tmp_path, "resp") as (room,), redis(room.endpoints["resp"]) as client:
        for command in (
            "LPUSH_DELAY q inf x",
            "LPUSH_DELAY q nan x",
            "LPUSH_DELAY q -1 x",
            "LPUSH_DELAY q 1e300 x",
            "LPUSH_PRIORITY q 256 x",
            "RPOPLEASE q soon",
            "RPOPLEASE q -5",
            "BRPOPLEASE q x",
            "DLQ_LIST q x",
            "RPOP",
            "LPUSH q",
        ):
            with pytest.raises(RedisError, match="ERR"):
                await client.line(command)
        assert await client.line("EXISTS q") == 0
        assert await client.line("LPUSH q a b c") == 3


async def test_http_sent_to_the_door_executes_nothing(tmp_path: Path) -> None:
    """A page's request ends at its first line, whatever its body says."""
    body = b"*3\r\n$5\r\nLPUSH\r\n$4\r\njobs\r\n$4\r\nevil\r\n"
    async with house(tmp_path, "resp") as (room,), redis(room.endpoints["resp"]) as client:
        for line in (b"POST / HTTP/1.1\r\n", b"GET /jobs HTTP/1.1\r\n", b"LPUSH jobs HTTP/1.1\r\n"):
            async with redis(room.endpoints["resp"]) as page:
                await page.stream.send_all(line + b"Host: x\r\nContent-Length: 40\r\n\r\n" + body)
                said = await page.eof()
                assert said.startswith(b"-ERR Protocol error: this door speaks the Redis protocol, not HTTP")
                assert said.count(b"\r\n") == 1
        assert await client.line("EXISTS jobs") == 0


async def test_lengths_that_are_none_end_the_connection_with_a_word(tmp_path: Path) -> None:
    """Negative, enormous, with leading zeros, nested: one error, and closed."""
    async with house(tmp_path, "resp") as (room,):
        for data in (
            b"*-1\r\n",
            b"*1\r\n$-1\r\n",
            b"*1\r\n$2147483648\r\n",
            b"*01\r\n",
            b"*1000000\r\n",
            b"*1\r\n*1\r\n",
        ):
            async with redis(room.endpoints["resp"]) as client:
                await client.stream.send_all(b"*1\r\n$4\r\nPING\r\n" + data + b"*1\r\n$4\r\nPING\r\n")
                said = await client.eof()
                assert said.startswith(b"+PONG\r\n-ERR Protocol error: ") and said.count(b"\r\n") == 2


async def test_plain_text_ended_by_lf_alone_is_answered(tmp_path: Path) -> None:
    """As netcat sends it, which then closes its side: what was sent is still carried out."""
    async with house(tmp_path, "resp") as (room,), redis(room.endpoints["resp"]) as client:
        async with redis(room.endpoints["resp"]) as netcat:
            await netcat.stream.send_all(b"PING\nLPUSH q a\nLLEN q\nLPUSH q b\n")
            await netcat.stream.send_eof()
            assert await netcat.eof() == b"+PONG\r\n:1\r\n:1\r\n:2\r\n"
        async with redis(room.endpoints["resp"]) as netcat:
            await netcat.stream.send_all(b"BRPOP nothing 0\nPING\n")
            await netcat.stream.send_eof()
            said = await netcat.eof()
            assert said == b"-ERR the client has closed its side: nothing was taken for it\r\n+PONG\r\n"
        assert await client.line("LLEN q") == 2


async def test_the_feed_tells_everything_that_changes_a_queue(tmp_path: Path) -> None:
    """Fault 2: leases, nacks, expiries and deaths too, in the order in which they were decided."""
    async with house(tmp_path, "resp") as (room,), redis(room.endpoints["resp"]) as client:
        await client.line("LPUSH before x")
        async with redis(room.endpoints["resp"]) as reader:
            assert await reader.line("SYNC") == "SYNC OK"
            await client.line("LPUSH q a b")
            await client.line("LPUSH_PRIORITY q 3 c")
            await client.line("LPUSH_DELAY q 600 d")
            for _ in range(3):
                task, _ = await client.line("RPOPLEASE q 30")
                await client("TASKTOUCH", "q", task, 60)
                await client("TASKNACK", "q", task)
            await client.line("RPOPLEASE q 0.01")
            await until(client, lambda info: "queue_q:2;in_flight:0" in info)
            await client.line("BRPOPLEASE q 5 20")
            await client.line("TASKACK q task-5")
            await client.line("RPOPLPUSH q p")
            await client.line("DLQ_REPLAY q")
            await client.line("DEL p")
            told = []
            while not told or told[-1][0] != b"DEL":
                words = await reader.reply()
                if words[0] != b"REPLCONF":
                    told.append(words)
            lines = [b" ".join(words).decode() for words in told]
            assert lines[:3] == ["LPUSH q a b", "LPUSH_PRIORITY q 3 c", "LPUSH_DELAY q 600 d"]
            assert [line.partition(" 01")[0] for line in lines[3:]] == [
                "RPOPLEASE q 30 task-1",
                "TASKTOUCH q task-1 60",
                "TASKNACK q task-1",
                "RPOPLEASE q 30 task-2",
                "TASKTOUCH q task-2 60",
                "TASKNACK q task-2",
                "RPOPLEASE q 30 task-3",
                "TASKTOUCH q task-3 60",
                "TASKDEAD q 1",
                "TASKNACK q task-3",
                "RPOPLEASE q 0.01 task-4",
                "TASKEXPIRE q task-4 1",
                "RPOPLEASE q 20 task-5",
                "TASKACK q task-5",
                "RPOPLPUSH q p 1",
                "DLQ_REPLAY q 1",
                "DEL p 1",
            ]


async def test_a_reader_that_lags_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not be told everything any more; a gap that nobody notices is worse."""
    monkeypatch.setattr("walrq.doors.resp_port.RESP_FEED_BYTES_MAX", 4_000_000)
    async with (
        house(tmp_path, "resp") as (room,),
        redis(room.endpoints["resp"]) as client,
        redis(room.endpoints["resp"]) as slow,
        redis(room.endpoints["resp"]) as quick,
    ):
        await slow.line("SYNC")
        await quick.line("SYNC")
        for number in range(20):
            await client("LPUSH", "q", b"x" * 900_000)
            while (await quick.reply())[0] != b"LPUSH":
                pass
            assert number < 20
        assert len(await slow.eof()) < 20 * 900_000
        await client("LPUSH", "q", "still there")
        assert await client.line("LLEN q") == 21


async def test_a_client_that_asks_and_reads_nothing_is_not_read_for_ever(tmp_path: Path) -> None:
    """Its replies stay bounded, and when it reads at last every one of them is there."""
    async with house(tmp_path, "resp") as (room,), redis(room.endpoints["resp"]) as client:
        async with redis(room.endpoints["resp"]) as greedy:
            echo = b"*2\r\n$4\r\nECHO\r\n$100000\r\n" + b"x" * 100_000 + b"\r\n"
            sent = 0
            with trio.move_on_after(1.0):
                while sent < 1_000:
                    await greedy.stream.send_all(echo)
                    sent += 1
            assert sent < 1_000
            assert await client.line("PING") == "PONG"


async def test_one_connection_too_many_is_told_in_its_own_words(tmp_path: Path) -> None:
    """As Redis says it."""
    async with house(tmp_path, "resp", max_connections=1) as (room,), redis(room.endpoints["resp"]) as client:
        await client.line("PING")
        async with redis(room.endpoints["resp"]) as other:
            assert (await other.eof()).startswith(b"-ERR max number of clients reached")


async def test_pops_reach_beyond_the_hot_window(tmp_path: Path) -> None:
    """Messages whose metadata is on the disk are messages: no pop answers nothing while there are some."""
    names = [f"m{number}" for number in range(250)]
    async with house(tmp_path, "resp", max_hot_messages=100) as (room,), redis(room.endpoints["resp"]) as client:
        for first in range(0, 250, 50):
            assert await client("LPUSH", "q", *names[first : first + 50]) == first + 50
        found = [await client.line("RPOP q") for _ in range(40)]
        found += await client.pipeline(*["RPOP q"] * 80)
        found += [(await client.line("BRPOP q 5"))[1] for _ in range(20)]
        leased = await client.pipeline(*["RPOPLEASE q"] * 30)
        found += [payload for _, payload in leased]
        found += await client.pipeline(*["RPOPLPUSH q p"] * 80)
        assert found == [name.encode() for name in names]
        assert await client.pipeline("RPOP q", "LLEN q", "LLEN p") == [None, 0, 80]


async def test_a_stopping_node_answers_what_is_in_flight_and_refuses_the_rest(tmp_path: Path) -> None:
    """Parked pops end empty; the connection is closed."""
    async with house(tmp_path, "resp") as (room,), redis(room.endpoints["resp"]) as waiting:
        await waiting.send("BRPOP", "q", 60)
        await trio.sleep(SHORT_S)
        room.wishes.stop.set()
        said = await waiting.eof()
        assert said in (b"*-1\r\n", b"-ERR the client has closed its side: nothing was taken for it\r\n")
        await room.over.wait()


@pytest.mark.parametrize("front", ["stream", "reactor"])
async def test_both_fronts_say_the_same(tmp_path: Path, front: str) -> None:
    """Systems without epoll, and TLS, have a task for each connection."""
    async with house(tmp_path, "resp", front=front) as (room,), redis(room.endpoints["resp"]) as client:
        assert await client.pipeline("LPUSH q a", "RPOPLEASE q", "TASKACK q task-1", "BRPOP q 0.01", "PING") == [
            1,
            [b"task-1", b"a"],
            "OK",
            None,
            "PONG",
        ]
        async with redis(room.endpoints["resp"]) as gone:
            await gone.send("BRPOP", "q", 0)
        await trio.sleep(SHORT_S)
        await client.line("LPUSH q x")
        assert await client.line("LLEN q") == 1
        async with redis(room.endpoints["resp"]) as other:
            await other.stream.send_all(b"QUIT\r\n")
            assert await other.eof() == b"+OK\r\n"
