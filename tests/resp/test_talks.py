"""Commands that read, or take several requests: what they ask, and what they make of the answers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.resp.parts import Talk
from walrq import api
from walrq.errors import Code
from walrq.limits import LIST_QUEUES_MAX, PEEK_MESSAGES_MAX, RESP_LISTED_MAX
from walrq.resp.host import Follow, Rewrite
from walrq.resp.talks import line_name, pattern

ABSENT = api.Failed(int(Code.QUEUE_NOT_FOUND), "there is no queue 'q'")


def dead(*payloads: bytes | None, following: int = 0) -> api.Page:
    return api.Page(
        tuple(
            api.Peeked(1, api.State.DEAD, k, 0, 3, 3, 0, 0, None, payload, reason="failed")
            for k, payload in enumerate(payloads)
        ),
        following,
    )


def info(name: str, ready: int = 0, delayed: int = 0, leased: int = 0, dead: int = 0) -> api.QueueInfo:
    return api.QueueInfo(name, 1, ready, delayed, leased, 0, dead, 0, 0, 0, 0, 0, {})


def cluster(leader: str | None, node: str = "n1") -> api.ClusterState:
    members = tuple(
        api.MemberState(name, "leader" if name == leader else "voter", "", f"{name}.example:50051")
        for name in ("n1", "n2", "n3")
    )
    return api.ClusterState(node, "c", leader, 1, 9, 9, members)


def test_dead_letters_are_listed_page_by_page_and_lost_ones_empty() -> None:
    """As many as were asked for, or all of them up to a bound."""
    talk = Talk()
    talk.send("DLQ_LIST q 1500")
    assert talk.asked == [api.ListDead("q", PEEK_MESSAGES_MAX, 0)]
    talk.answer(dead(*[b"x"] * PEEK_MESSAGES_MAX, following=PEEK_MESSAGES_MAX))
    assert talk.asked == [api.ListDead("q", 500, PEEK_MESSAGES_MAX)]
    said = talk.answer(dead(b"a\r\n", None))
    assert said.startswith(b"*1002\r\n") and said.endswith(b"$3\r\na\r\n\r\n$0\r\n\r\n")
    assert talk.send("DLQLIST q 0") == b"*0\r\n"
    talk.send("DLQ_LIST q")
    assert talk.answer(ABSENT) == b"*0\r\n"
    assert talk.send(f"DLQ_LIST q {RESP_LISTED_MAX + 1}").startswith(b"-ERR limit is")


def test_replay_goes_on_until_nothing_is_left() -> None:
    """One request moves so many; the answer counts all."""
    talk = Talk()
    for name in ("DLQ_REPLAY", "DLQREPLAY", "DLQ_REQUEUE"):
        talk.send(f"{name} q")
        assert talk.answer(api.Moved(1_000, True)) == b""
        assert talk.answer(api.Moved(7, False)) == b":1007\r\n"
    talk.send("DLQ_REPLAY q")
    assert talk.answer(ABSENT) == b":0\r\n"


def test_a_failure_in_the_middle_is_the_answer() -> None:
    """Whatever was done before it is in the log."""
    talk = Talk()
    talk.send("DLQ_REPLAY q", "PING")
    talk.answer(api.Moved(1_000, True))
    said = talk.answer(api.Failed(int(Code.DRAINING), "the node is stopping"))
    assert said == b"-LOADING the node is stopping\r\n+PONG\r\n"


def test_purge_counts() -> None:
    """0 where there is nothing."""
    talk = Talk()
    talk.send("DLQ_PURGE q", "DLQPURGE q")
    assert talk.answer(api.Done(4)) == b":4\r\n"
    assert talk.answer(ABSENT) == b":0\r\n"


def test_queues_are_keys() -> None:
    """LLEN, EXISTS, TYPE, DEL."""
    talk = Talk()
    talk.send("LLEN q", "EXISTS q p q", "TYPE q", "TYPE p", "DEL q p")
    assert talk.answer(info("q", ready=3)) == b":3\r\n"
    for reply in (info("q"), ABSENT):
        assert talk.answer(reply) == b""
    assert talk.answer(info("q")) == b":2\r\n"
    assert talk.answer(info("q")) == b"+list\r\n"
    assert talk.answer(ABSENT) == b"+none\r\n"
    assert talk.asked == [api.DeleteQueue("q")]
    assert talk.answer(api.Done(9)) == b""
    assert talk.answer(ABSENT) == b":1\r\n"


def test_keys_asks_for_what_the_pattern_begins_with() -> None:
    """Page by page."""
    talk = Talk()
    talk.send("KEYS jobs:*x")
    assert talk.asked == [api.ListQueues("jobs:", "", LIST_QUEUES_MAX)]
    talk.answer(api.QueueList((info("jobs:1"), info("jobs:2x")), "jobs:2x"))
    assert talk.answer(api.QueueList((info("jobs:3x"),))) == b"*2\r\n$7\r\njobs:2x\r\n$7\r\njobs:3x\r\n"


def test_a_scan_goes_on_where_its_cursor_says() -> None:
    """On any connection of the node; a number that was never given is refused."""
    talk = Talk()
    talk.send("SCAN 0 MATCH a* COUNT 2")
    assert talk.asked == [api.ListQueues("", "", 2)]
    assert talk.answer(api.QueueList((info("a"), info("b")), "b")) == b"*2\r\n$1\r\n1\r\n*1\r\n$1\r\na\r\n"
    talk.send("SCAN 1 COUNT 2")
    assert talk.asked == [api.ListQueues("", "b", 2)]
    assert talk.answer(api.QueueList((info("c"),))) == b"*2\r\n$1\r\n0\r\n*1\r\n$1\r\nc\r\n"
    assert talk.send("SCAN 77").startswith(b"-ERR invalid cursor")
    assert talk.send("SCAN 0 MATCH").startswith(b"-ERR SCAN knows")
    talk.send("SCAN 0 TYPE hash")
    assert talk.answer(api.QueueList((info("c"),))) == b"*2\r\n$1\r\n0\r\n*0\r\n"


@pytest.mark.parametrize(
    ("glob", "matching", "others"),
    [
        ("*", ["", "a", "a\nb"], []),
        ("a?c", ["abc", "a?c"], ["ac", "abbc"]),
        ("[ab]x", ["ax", "bx"], ["cx"]),
        ("[^a]x", ["bx"], ["ax"]),
        ("a\\*", ["a*"], ["ab"]),
        ("**a**", ["a", "xax"], ["b"]),
        ("a.b", ["a.b"], ["axb"]),
    ],
)
def test_patterns_are_those_of_redis(glob: str, matching: list[str], others: list[str]) -> None:
    """Stars, question marks, classes, backslashes."""
    matches = pattern(glob.encode())
    assert all(matches(name) for name in matching)
    assert not any(matches(name) for name in others)


@given(st.text("*?[]^a-\\", max_size=30), st.text("ab", max_size=40))
def test_any_pattern_is_judged_or_refused_at_once(glob: str, name: str) -> None:
    """No pattern is a mistake of ours, nor takes for ever."""
    talk = Talk()
    talk.raw(b"*2\r\n$4\r\nKEYS\r\n$%d\r\n%b\r\n" % (len(glob), glob.encode()))
    if talk.asked:
        pattern(glob.encode())(name)


def test_info_has_a_line_for_each_queue_that_no_name_can_break() -> None:
    """Separators in a name are escaped."""
    talk = Talk()
    talk.send("INFO")
    talk.answer(api.StatsReply({"queues": 2, "connections": 3, "parked_polls": 1, "fsync": "always"}))
    talk.answer(api.QueueList((info("a;b:c%", 1, 2, 3, 4), info("jobs", 5))))
    lines = talk.answer(cluster("n1")).decode().split("\r\n")
    assert "queue_a%3Bb%3Ac%25:1;in_flight:3;dlq:4" in lines
    assert "queue_jobs:5;in_flight:0;dlq:0" in lines
    assert "delayed_tasks:2" in lines
    assert "role:master" in lines
    assert not any(line.startswith("master_host") for line in lines)


def test_info_of_a_follower_names_its_leader() -> None:
    """The role of Redis' words: a follower is a replica."""
    talk = Talk()
    talk.send("HELLO 3", "INFO replication")
    talk.answer(api.StatsReply({}))
    said = talk.answer(cluster("n2")).decode()
    assert said.startswith("=") and "txt:# Replication\r\nrole:replica\r\n" in said
    assert "master_host:n2.example\r\nmaster_port:50051\r\nmaster_link_status:up" in said


@given(st.text(max_size=20))
def test_names_in_lines_never_collide(name: str) -> None:
    """Escaping can be undone."""
    line = line_name(name)
    assert not re.search("[:;]", line)
    assert re.sub("%([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), line) == name


@pytest.mark.parametrize("command", ["FAILOVER", "REPLICAOF NO ONE", "replicaof no one"])
def test_failover_lets_this_node_lead(command: str) -> None:
    """On the leader there is nothing to do."""
    talk = Talk()
    talk.send(command)
    assert talk.asked == [api.ClusterStatus()]
    assert talk.answer(cluster("n1")) == b"+OK\r\n"
    talk.send(command)
    assert talk.answer(cluster("n2")) == b""
    assert talk.asked == [api.TransferLeadership("n1")]
    assert talk.answer(cluster("n1")) == b"+OK\r\n"
    talk.send(command)
    talk.answer(cluster("n2"))
    said = talk.answer(api.Failed(int(Code.NOT_READY), "node 'n1' did not take over within 1 s"))
    assert said == b"-LOADING node 'n1' did not take over within 1 s\r\n"


def test_the_rewrite_is_done_when_it_is_answered() -> None:
    """With the number of items."""
    talk = Talk()
    talk.send("BGREWRITEAOF")
    assert talk.asked == [Rewrite()]
    assert talk.answer(api.Done(12)) == b"+Background append only file rewriting started, 12 items written\r\n"


def test_a_reader_of_the_feed_is_answered_nothing_more() -> None:
    """It could not tell an answer from a frame."""
    talk = Talk()
    talk.send("SYNC", "PING")
    assert talk.asked == [Follow()]
    assert talk.answer(api.Done()) == b"+SYNC OK\r\n"
    talk.connection.push_out(b"*1\r\n$4\r\nPING\r\n")
    assert talk.send("REPLCONF ACK 5", "LPUSH q x", "NONSENSE") == b"*1\r\n$4\r\nPING\r\n"
    assert talk.asked == []
    assert talk.send("QUIT") == b"+OK\r\n"


def test_role_and_size() -> None:
    """As monitoring tools ask."""
    talk = Talk()
    talk.send("ROLE", "ROLE", "DBSIZE")
    assert talk.answer(cluster("n1")) == b"*3\r\n$6\r\nmaster\r\n:9\r\n*0\r\n"
    assert talk.answer(cluster("n3")).startswith(b"*5\r\n$5\r\nslave\r\n$10\r\nn3.example\r\n:50051\r\n")
    assert talk.answer(api.StatsReply({"queues": 42})) == b":42\r\n"
