"""One connection: commands begin in order, merge where they can, hold where they must; replies keep their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.resp.parts import Talk, frame, polled, pushed
from walrq import api
from walrq.errors import Code
from walrq.ids import task_receipt
from walrq.limits import POLL_WAIT_MS_MAX, RESP_WAIT_GRACE_MS
from walrq.resp.hot import columns

FULL = api.Failed(int(Code.QUEUE_FULL), "max_length: full")
UNKNOWN = api.Failed(int(Code.LEADERSHIP_LOST), "it may have happened")
NOTHING = polled()


def push(queue: str, *payloads: bytes, priority: int = 0, delay_ms: int | None = None) -> api.Push:
    return api.Push(queue, columns(payloads), priority, delay_ms, None, None, None, True)


def pop(*queues: str, count: int = 1, wait_ms: int = 0, **rest: object) -> api.Poll:
    return api.Poll(queues, count, rest.get("visibility_ms"), wait_ms, None, *_special(**rest))  # type: ignore[arg-type]


def _special(numbered: bool = False, into: str | None = None, **_: object) -> tuple[bool, str | None]:
    return numbered, into


def test_a_push_answers_with_the_ready_length() -> None:
    """One command, one request, one integer."""
    talk = Talk()
    assert talk.send("LPUSH jobs one") == b""
    assert talk.asked == [push("jobs", b"one")]
    assert talk.answer(pushed(4)) == b":4\r\n"


def test_pipelined_pushes_travel_as_one_and_answer_one_by_one() -> None:
    """Each gets the length it would have had alone; several values count together."""
    talk = Talk()
    talk.send("LPUSH jobs a", "LPUSH jobs b c", "LPUSH jobs d", "LPUSH other e")
    assert talk.asked == [push("jobs", b"a", b"b", b"c", b"d"), push("other", b"e")]
    assert talk.answer(pushed(10, 4)) == b":7\r\n:9\r\n:10\r\n"
    assert talk.answer(pushed(1)) == b":1\r\n"


def test_pushes_of_different_priority_or_delay_stay_apart() -> None:
    """A batch has one of each."""
    talk = Talk()
    talk.send("LPUSH_PRIORITY q 9 a", "LPUSHPRIORITY q 9 b", "LPUSH_PRIORITY q 1 c", "LPUSH_DELAY q 1.5 d", "LPUSH q e")
    assert talk.asked == [
        push("q", b"a", priority=9),
        push("q", b"b", priority=9),
        push("q", b"c", priority=1),
        push("q", b"d", delay_ms=1_500),
        push("q", b"e"),
    ]


def test_merged_pushes_that_are_refused_go_on_one_by_one() -> None:
    """A limit may leave room for some of them."""
    talk = Talk()
    talk.send("LPUSH q a", "LPUSH q b c", "LPUSH q d")
    assert talk.answer(FULL) == b""
    assert talk.asked == [push("q", b"a"), push("q", b"b", b"c"), push("q", b"d")]
    assert talk.answer(pushed(1)) == b""
    assert talk.answer(FULL) == b""
    assert talk.answer(pushed(2)) == b":1\r\n-FULL max_length: full\r\n:2\r\n"


def test_an_unknown_outcome_is_told_to_each_and_never_repeated() -> None:
    """Sending again might do it twice."""
    talk = Talk()
    talk.send("LPUSH q a", "LPUSH q b")
    assert talk.answer(UNKNOWN) == b"-UNKNOWN it may have happened\r\n" * 2
    assert talk.asked == []


def test_replies_keep_the_order_of_their_commands() -> None:
    """Whatever order the answers come in."""
    talk = Talk()
    assert talk.send("PING", "LPUSH a x", "LPUSH b y", "PING", "TASKACK c task-3") == b"+PONG\r\n"
    assert talk.answer(api.Settled((0,)), position=2) == b""
    assert talk.answer(pushed(1), position=1) == b""
    assert talk.answer(pushed(2)) == b":2\r\n:1\r\n+PONG\r\n+OK\r\n"


@given(st.permutations(range(6)))
def test_any_order_of_answers_gives_one_order_of_replies(order: list[int]) -> None:
    """The line of replies is the line of commands."""
    talk = Talk()
    talk.send(*[f"LPUSH q{number} x" for number in range(6)])
    said = b""
    left = list(range(6))
    for number in order:
        said += talk.answer(pushed(number + 1), position=left.index(number))
        left.remove(number)
    assert said == b"".join([b":%d\r\n" % (number + 1) for number in range(6)])


def test_pops_of_one_queue_travel_as_one_poll() -> None:
    """And ask once more while an answer was short of them: it carries only so many bytes."""
    talk = Talk()
    talk.send("RPOP q", "RPOP q", "RPOP q", "RPOP p")
    assert talk.asked == [pop("q", count=3), pop("p")]
    assert talk.answer(polled(b"one", b"two")) == b""
    assert talk.asked == [pop("p"), pop("q")]
    assert talk.answer(NOTHING, position=1) == b"$3\r\none\r\n$3\r\ntwo\r\n$-1\r\n"
    assert talk.answer(NOTHING) == b"$-1\r\n"


def test_a_count_makes_an_array_and_nothing_a_null_one() -> None:
    """As Redis since 6.2."""
    talk = Talk()
    talk.send("RPOP q 3")
    assert talk.answer(polled(b"a", b"b", b"c")) == b"*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"
    talk.send("RPOP q 3")
    talk.answer(polled(b"a"))
    assert talk.answer(NOTHING) == b"*1\r\n$1\r\na\r\n"
    talk.send("RPOP q 3")
    assert talk.answer(NOTHING) == b"*-1\r\n"
    assert talk.send("RPOP q 0") == b"*0\r\n"
    talk.send("HELLO 3", "RPOP q 3")
    assert talk.answer(NOTHING) == b"_\r\n"


def test_leases_are_numbered_and_their_ids_come_with_the_payload() -> None:
    """Two bulk strings: task-N and the payload."""
    talk = Talk()
    talk.send("RPOPLEASE q 2.5", "RPOPLEASE q 2.5", "RPOPLEASE q")
    assert talk.asked == [
        pop("q", count=2, numbered=True, visibility_ms=2_500),
        pop("q", numbered=True),
    ]
    said = talk.answer(polled(b"x", b"y", task=9))
    assert said == b"*2\r\n$6\r\ntask-9\r\n$1\r\nx\r\n*2\r\n$7\r\ntask-10\r\n$1\r\ny\r\n"
    assert talk.answer(NOTHING) == b"$-1\r\n"


@pytest.mark.parametrize(
    ("command", "protocol", "nothing"),
    [
        ("RPOP q", 2, b"$-1\r\n"),
        ("RPOP q", 3, b"_\r\n"),
        ("RPOPLEASE q", 2, b"$-1\r\n"),
        ("RPOPLEASE q", 3, b"_\r\n"),
        ("RPOPLPUSH q p", 2, b"$-1\r\n"),
        ("BRPOP q 1", 2, b"*-1\r\n"),
        ("BRPOP q 1", 3, b"_\r\n"),
        ("BRPOPLPUSH q p 1", 2, b"*-1\r\n"),
        ("BRPOPLEASE q 1", 2, b"$-1\r\n"),
        ("BRPOPLEASE q 1", 3, b"_\r\n"),
    ],
)
def test_nothing_has_the_shape_that_clients_wait_for(command: str, protocol: int, nothing: bytes) -> None:
    """A null bulk string would leave a RESP3 client waiting; commands named as in Redis answer as Redis does."""
    talk = Talk()
    talk.send(f"HELLO {protocol}", command)
    assert talk.answer(NOTHING) == nothing


def test_a_blocking_pop_holds_its_own_connection_only() -> None:
    """What is behind it begins when it is answered, and nothing before."""
    talk = Talk()
    talk.send("LPUSH a x", "BRPOP q p 3", "LPUSH b y", "PING")
    assert talk.asked == [push("a", b"x"), pop("q", "p", wait_ms=3_000 + RESP_WAIT_GRACE_MS)]
    assert talk.answer(pushed(1)) == b":1\r\n"
    assert talk.send("PING") == b""
    said = talk.answer(polled(b"m", queue="p"))
    assert said == b"*2\r\n$1\r\np\r\n$1\r\nm\r\n"
    assert talk.asked == [push("b", b"y")]
    assert talk.answer(pushed(1)) == b":1\r\n+PONG\r\n+PONG\r\n"


def test_a_wait_for_ever_is_polls_without_end() -> None:
    """As long as the client is there."""
    talk = Talk()
    talk.send("BRPOP q 0")
    for _ in range(3):
        assert talk.asked == [pop("q", wait_ms=POLL_WAIT_MS_MAX)]
        assert talk.answer(NOTHING) == b""
    talk.connection.takes_leases = False
    assert talk.answer(NOTHING) == b"-ERR the client has closed its side: nothing was taken for it\r\n"


def test_a_long_wait_is_several_polls() -> None:
    """Each within the bound of one, together as long as was asked."""
    talk = Talk()
    talk.send("BRPOP q 5000")
    talk.answer(NOTHING)
    assert talk.asked == [pop("q", wait_ms=5_000_000 + RESP_WAIT_GRACE_MS - POLL_WAIT_MS_MAX)]
    assert talk.answer(NOTHING) == b"*-1\r\n"


def test_reads_see_what_was_sent_before_them_and_nothing_behind() -> None:
    """They begin when all before is answered, and hold what follows."""
    talk = Talk()
    talk.send("LPUSH q a", "LLEN q", "LPUSH q b")
    assert talk.asked == [push("q", b"a")]
    assert talk.answer(pushed(1)) == b":1\r\n"
    assert talk.asked == [api.ShowQueue("q")]
    talk.answer(api.Failed(int(Code.QUEUE_NOT_FOUND), "there is no queue 'q'"))
    assert talk.asked == [push("q", b"b")]


def test_a_pop_waits_for_what_a_settle_before_it_puts_back() -> None:
    """Else it would find nothing that comes back a moment later."""
    talk = Talk()
    talk.send("TASKNACK q task-1", "RPOP q")
    assert talk.asked == [api.Settle("q", api.SettleKind.FAIL, (api.Item(task_receipt(1)),), 0)]
    assert talk.answer(api.Settled((0,))) == b"+OK\r\n"
    assert talk.asked == [pop("q")]
    talk.answer(polled(b"x"))
    talk.send("RPOPLPUSH q p", "RPOP p")
    assert talk.asked == [pop("q", into="p")]


def test_settles_of_one_queue_travel_as_one() -> None:
    """Each has its own answer."""
    talk = Talk()
    talk.send("TASKACK q task-1", "TASKACK q task-2", "TASKACK q nonsense", "TASKACK p task-3")
    items = (api.Item(task_receipt(1)), api.Item(task_receipt(2)), api.Item(task_receipt(0)))
    assert talk.asked == [
        api.Settle("q", api.SettleKind.ACK, items),
        api.Settle("p", api.SettleKind.ACK, (api.Item(task_receipt(3)),)),
    ]
    said = talk.answer(api.Settled((0, int(Code.RECEIPT_EXPIRED), int(Code.RECEIPT_EXPIRED)))).split(b"\r\n")
    assert said[0] == b"+OK"
    assert all(line.startswith(b"-ERR Task ID not found in-flight") for line in said[1:3])
    said = talk.answer(api.Failed(int(Code.QUEUE_NOT_FOUND), "there is no queue 'p'"))
    assert said.startswith(b"-ERR Task ID not found in-flight: 'task-3'")


def test_a_touch_counts_from_now() -> None:
    """30 seconds unless said otherwise."""
    talk = Talk()
    talk.send("TASKTOUCH q task-5 7", "TASKTOUCH q task-5")
    item = (api.Item(task_receipt(5)),)
    assert talk.asked == [api.Touch("q", item, 7_000), api.Touch("q", item, 30_000)]
    assert talk.answer(api.Touched((0,), (7_000,))) == b"+OK\r\n"
    assert talk.answer(api.Touched((int(Code.RECEIPT_EXPIRED),), (0,))).startswith(b"-ERR Task ID not found in-flight")


def test_leases_are_marked_where_their_reply_ends() -> None:
    """Whoever sends the bytes knows which leases have been handed over, and which of them are done with that."""
    talk = Talk()
    talk.send("LPUSH a x", "RPOP q", "RPOPLEASE q")
    talk.answer(polled(b"one"), ["T1"], position=1)
    assert [handed.targets for handed in talk.connection.unsent_leases()] == [["T1"]]
    talk.answer(polled(b"two", task=1), ["T2"], position=1)
    assert not talk.connection.leases
    said = talk.answer(pushed(1))
    (first, one), (second, two) = talk.connection.leases
    assert said[:first] == b":1\r\n$3\r\none\r\n"
    assert second == len(said)
    assert (one.targets, one.for_good) == (["T1"], True)
    assert (two.targets, two.for_good) == (["T2"], False)
    assert not talk.connection.unsent_leases()


def test_what_moves_on_leaves_no_lease() -> None:
    """RPOPLPUSH answers what it has moved already."""
    talk = Talk()
    talk.send("RPOPLPUSH q p")
    assert talk.answer(polled(b"x", task=0)) == b"$1\r\nx\r\n"
    assert not talk.connection.leases
    talk.send("LMOVE q p RIGHT LEFT", "BLMOVE q p right left 1")
    assert talk.asked == [pop("q", into="p")]
    talk.answer(NOTHING)
    assert talk.asked == [pop("q", into="p", wait_ms=1_000 + RESP_WAIT_GRACE_MS)]
    talk.answer(NOTHING)
    assert talk.send("LMOVE q p LEFT LEFT").startswith(b"-ERR messages move from the RIGHT end")


def test_lost_bodies_are_errors_in_their_place() -> None:
    """One message destroyed by damage is not the others' loss."""
    lost = api.Delivered("q", b"r" * 20, 1, 1, 1, 0, (1, 0), 0, 0, None, 0, b"", b"", lost=True)
    talk = Talk()
    talk.send("RPOP q", "RPOP q")
    found = api.Polled(0, 1, (lost, *polled(b"here").runs))
    assert talk.answer(found) == b"-ERR 1 messages of 'q' were destroyed by damage on disk\r\n$4\r\nhere\r\n"


def test_a_protocol_error_is_the_last_word_behind_all_answers() -> None:
    """What came before it is carried out."""
    talk = Talk()
    assert talk.raw(frame(b"LPUSH", b"q", b"a") + b"*-1\r\n" + frame(b"LPUSH", b"q", b"b")) == b""
    assert talk.asked == [push("q", b"a")]
    said = talk.answer(pushed(1))
    assert said.startswith(b":1\r\n-ERR Protocol error: the number of arguments is b'-1'")
    assert talk.connection.is_over
    assert talk.send("PING") == b""


def test_a_protocol_error_waits_for_what_is_held() -> None:
    """Commands behind a blocking one were understood: they are carried out first."""
    talk = Talk()
    talk.raw(frame(b"BRPOP", b"q", b"1") + frame(b"PING") + b"*x\r\n")
    said = talk.answer(NOTHING)
    assert said.startswith(b"*-1\r\n+PONG\r\n-ERR Protocol error")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("LPUSH q", b"wrong number of arguments for 'lpush' command: 1 given; usage: LPUSH queue payload"),
        ("RPOP", b"usage: RPOP queue [count]"),
        ("BRPOP q", b"usage: BRPOP queue [queue ...] timeout"),
        ("RPUSH q x", b"RPUSH is not offered: a queue is pushed to at one end"),
        ("FLUSHALL", b"FLUSHALL is not offered: nothing here removes everything"),
        ("multi", b"MULTI is not offered: there are no transactions"),
        ("NONSENSE a b c d", b"unknown command 'NONSENSE', with args beginning with: 'a' 'b' 'c'"),
        ("LPUSH_PRIORITY q 256 x", b"priority is 256, allowed are 0 to 255"),
        ("LPUSH_PRIORITY q x y", b"priority is 'x', not a whole number"),
        ("LPUSH_DELAY q soon x", b"delay is 'soon', not a number of seconds"),
        ("RPOPLEASE q -1", b"visibility is -1 s, allowed are 0.001 to 43200 s"),
        ("BRPOP q x", b"timeout is 'x'"),
        ("SELECT 1", b"DB index is out of range"),
        ("REPLICAOF 127.0.0.1 6379", b"only REPLICAOF NO ONE is known"),
        ("DLQ_LIST q -1", b"limit is -1, allowed are 0 to"),
    ],
)
def test_mistakes_are_one_line_that_says_what_is_right(command: str, words: bytes) -> None:
    """And the connection goes on."""
    talk = Talk()
    said = talk.send(command)
    assert said.startswith(b"-") and said.count(b"\r\n") == 1 and said.endswith(b"\r\n")
    assert words in said
    assert talk.send("PING") == b"+PONG\r\n"


def test_replies_with_line_ends_in_them_cannot_be_made() -> None:
    """Whatever a client names."""
    talk = Talk()
    assert talk.raw(frame(b"x\r\n+OK\r\n", b"\r\n-ERR")).count(b"\r\n") == 1
    assert talk.raw(frame(b"LPUSH", b"a\r\nb", b"x")).count(b"\r\n") == 1


def test_quit_answers_and_ends() -> None:
    """Behind it nothing begins."""
    talk = Talk()
    assert talk.send("QUIT", "LPUSH q x") == b"+OK\r\n"
    assert talk.asked == []
    assert talk.connection.is_over
