"""Requests of many connections as few: each gets its own answer, and nobody is overtaken by himself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.resp.parts import polled
from walrq import api
from walrq.doors.resp_merging import Merger
from walrq.errors import Code
from walrq.ids import task_receipt
from walrq.protocol.requests import Incoming
from walrq.resp.hot import columns


class Port:
    """A connection that writes down its answers."""

    def __init__(self) -> None:
        self.open = self.takes_leases = True
        self.congested = False
        self.group = 0
        self.said: list[tuple[int, Any, Sequence[Any]]] = []

    def reply(self, id: int, reply: Any, size: int) -> None:
        self.said.append((id, reply, ()))

    def reply_lease(self, id: int, reply: Any, size: int, targets: Sequence[Any]) -> None:
        self.said.append((id, reply, targets))


class Bench:
    """A merger whose requests are answered by hand."""

    def __init__(self) -> None:
        self.submitted: list[tuple[Any, Incoming]] = []
        self.undone: list[Any] = []
        self.busy = False
        self.merger = Merger(
            lambda port, incoming: self.submitted.append((port, incoming)),
            self.undone.extend,
            self.undone.append,
            lambda: self.busy,
        )

    def add(self, port: Any, id: int, request: Any) -> bool:
        return self.merger.add(port, id, request, 10)

    @property
    def asked(self) -> list[Any]:
        return [incoming.request for _, incoming in self.submitted]


def push(*payloads: bytes, queue: str = "q", delay_ms: int | None = None) -> api.Push:
    return api.Push(queue, columns(payloads), 0, delay_ms, None, None, None, True)


def lease(count: int = 1) -> api.Poll:
    return api.Poll(("q",), count, 1_000, 0, None, True)


def ack(*tasks: int, queue: str = "q") -> api.Settle:
    return api.Settle(queue, api.SettleKind.ACK, tuple(api.Item(task_receipt(task)) for task in tasks))


def test_pushes_become_one_and_each_learns_its_own_length() -> None:
    """In the order in which they came."""
    bench, one, two = Bench(), Port(), Port()
    assert bench.add(one, 1, push(b"a"))
    assert bench.add(two, 7, push(b"b", b"cc"))
    assert bench.add(one, 2, push(b"d"))
    bench.merger.flush()
    assert bench.asked == [push(b"a", b"b", b"cc", b"d")]
    bench.merger.reply(1, api.Pushed(100, 4, None, (), 10), 30)
    assert one.said == [(1, api.Pushed(100, 1, None, (), 7), ()), (2, api.Pushed(103, 1, None, (), 10), ())]
    assert two.said == [(7, api.Pushed(101, 2, None, (), 9), ())]


def test_what_is_alone_travels_alone() -> None:
    """Under its own connection's name."""
    bench, one = Bench(), Port()
    bench.add(one, 5, push(b"a"))
    bench.merger.flush()
    assert bench.submitted == [(one, Incoming(5, None, None, push(b"a"), 10))]


def test_different_queues_and_delays_stay_apart() -> None:
    """A batch has one of each."""
    bench, one, two = Bench(), Port(), Port()
    bench.add(one, 1, push(b"a"))
    bench.add(two, 1, push(b"b", queue="p"))
    bench.add(two, 2, push(b"c", delay_ms=5))
    bench.merger.flush()
    assert bench.asked == [push(b"a"), push(b"b", queue="p"), push(b"c", delay_ms=5)]


def test_nobody_overtakes_himself() -> None:
    """What a connection asked later never joins a group before what it asked earlier."""
    bench, one, two = Bench(), Port(), Port()
    bench.add(one, 1, push(b"a"))
    bench.add(one, 2, lease())
    bench.add(two, 1, push(b"b"))
    bench.add(one, 3, push(b"c"))
    bench.add(two, 2, lease())
    bench.merger.flush()
    assert bench.asked == [push(b"a", b"b"), lease(2), push(b"c")]
    assert one.group == 3 == bench.merger.flushed


def test_leases_are_dealt_out_in_order_and_the_last_ones_get_nothing() -> None:
    """Each with the targets that undo it."""
    bench, one, two, three = Bench(), Port(), Port(), Port()
    for port, count in ((one, 1), (two, 2), (three, 1)):
        bench.add(port, 9, lease(count))
    bench.merger.flush()
    assert bench.asked == [lease(4)]
    found = polled(b"a", b"b", b"c", task=1)
    bench.merger.reply_lease(1, found, 30, ["A", "B", "C"])
    assert [run.payloads for run in one.said[0][1].runs] == [b"a"] and one.said[0][2] == ["A"]
    assert [run.payloads for run in two.said[0][1].runs] == [b"b", b"c"] and two.said[0][2] == ["B", "C"]
    assert three.said[0][1].runs == ()


def test_a_lease_of_somebody_who_left_goes_back() -> None:
    """The others keep theirs; on a follower there is no target, and the answer itself goes back."""
    bench, gone, full, there = Bench(), Port(), Port(), Port()
    for port in (gone, full, there):
        bench.add(port, 1, lease())
    bench.merger.flush()
    gone.takes_leases = False
    full.congested = True
    bench.merger.reply_lease(1, polled(b"a", b"b", b"c", task=1), 30, ["A", "B", "C"])
    assert bench.undone == ["A", "B"]
    assert gone.said[0][1].runs == full.said[0][1].runs == ()
    assert there.said[0][2] == ["C"]
    for port in (gone, there):
        bench.add(port, 2, lease())
    bench.merger.flush()
    bench.merger.reply_lease(2, polled(b"x", b"y", task=7), 20, ())
    assert [run.payloads for run in bench.undone[2].runs] == [b"x"]


def test_acks_are_told_one_by_one() -> None:
    """Codes by position."""
    bench, one, two = Bench(), Port(), Port()
    bench.add(one, 1, ack(1))
    bench.add(two, 1, ack(2, 3))
    bench.merger.flush()
    assert bench.asked == [ack(1, 2, 3)]
    bench.merger.reply(1, api.Settled((0, 30, 0)), 20)
    assert (one.said[0][1], two.said[0][1]) == (api.Settled((0,)), api.Settled((30, 0)))


def test_a_refused_push_goes_on_one_by_one_and_an_unknown_one_does_not() -> None:
    """A limit may have room for some; sending again what may have happened would do it twice."""
    for code, again in ((Code.QUEUE_FULL, True), (Code.LEADERSHIP_LOST, False), (Code.NOT_LEADER, False)):
        bench, one, two = Bench(), Port(), Port()
        bench.add(one, 1, push(b"a"))
        bench.add(two, 1, push(b"b"))
        bench.merger.flush()
        failed = api.Failed(int(code), "no")
        bench.merger.reply(1, failed, 20)
        assert bench.asked[1:] == ([push(b"a"), push(b"b")] if again else [])
        assert [said[1] for said in one.said] == ([] if again else [failed])


def test_groups_wait_while_the_log_is_written() -> None:
    """Until it is done, or somebody asks something else, or they hold much."""
    bench, one, two = Bench(), Port(), Port()
    bench.busy = True
    bench.add(one, 1, push(b"a"))
    bench.merger.flush()
    assert bench.asked == [] and not bench.merger.is_empty
    bench.add(two, 1, push(b"b"))
    bench.busy = False
    bench.merger.flush()
    assert bench.asked == [push(b"a", b"b")] and bench.merger.is_empty
    bench.busy = True
    bench.merger.add(one, 2, push(b"c"), 2 << 20)
    bench.merger.flush()
    assert len(bench.asked) == 2
    bench.add(one, 3, push(b"d"))
    bench.merger.submit()
    assert len(bench.asked) == 3


def test_other_requests_are_not_merged() -> None:
    """Waits, pops for good, moves, nacks, touches, reads."""
    bench, one = Bench(), Port()
    for request in (
        api.Poll(("q",), 1, None, 0, None, False),
        api.Poll(("q",), 1, None, 5, None, True),
        api.Poll(("q",), 1, None, 0, None, False, "p"),
        api.Settle("q", api.SettleKind.FAIL, (api.Item(task_receipt(1)),), 0),
        api.Touch("q", (api.Item(task_receipt(1)),), 5),
        api.ShowQueue("q"),
    ):
        assert not bench.add(one, 1, request)
