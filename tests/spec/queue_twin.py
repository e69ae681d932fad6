"""The real state machine behind the actions of spec/Queue.tla, and what of it the module sees.

One unit of the module's time is a second. The module's message m is the m-th that was pushed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from walrq import api
from walrq.api import Columns, Outcome, SettleKind
from walrq.formal.values import Function, function
from walrq.queues import commands, death
from walrq.queues.batch import BACKOFF, DELAYED, LEASED, PARKED, READY
from walrq.queues.commands import Stamp, Tagged, Target
from walrq.queues.effects import Granted, Result
from walrq.queues.machine import Bounds, Machine

UNIT_MS = 1000
START_MS = 1_000_000
QUEUE = "q"
DLQ = "q.dlq"
PLACES = {READY: "ready", DELAYED: "delayed", BACKOFF: "backoff", LEASED: "leased", PARKED: "parked"}
SETTLES = {
    "Ack": SettleKind.ACK,
    "Release": SettleKind.RELEASE,
    "Fail": SettleKind.FAIL,
    "Reject": SettleKind.REJECT,
}
GONE = {"at": "gone", "pri": 0, "grp": "-", "left": 0, "attempts": 0}


class QueueTwin:
    """A machine, and the module's names for what is in it."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self.constants = constants
        self.machine = Machine(Bounds(expire_per_entry=constants["Budget"]))
        self.index = 0
        self.now = START_MS
        self.wall = START_MS
        self.lag = 0
        self.wlag = 0
        self.ids: list[int] = []
        # (message, delivery) -> its lease.
        self.receipts: dict[tuple[int, int], Target] = {}
        self.deliveries: list[int] = []

    # --- actions --------------------------------------------------------------------------------------------
    def apply(self, act: Mapping[str, Any]) -> bool:
        """Do what the action says; whether the machine did it (or refused)."""
        op = act["op"]
        if op == "Tick":
            self.lag += 1
            self.wlag += 1
            return True
        if op == "Failover":
            self.lag, self.wlag = 0, act["ahead"]
            return True
        self.now += self.lag * UNIT_MS
        self.wall += self.wlag * UNIT_MS
        self.lag = self.wlag = 0
        self.index += 1
        results = self.machine.apply(
            self.index, Stamp(self.now, self.wall), [Tagged(command) for command in self.commands(act)]
        )
        return self.noted(act, results[-1]) if results else True

    def commands(self, act: Mapping[str, Any]) -> list[commands.Command]:
        """The commands of the action's entry."""
        op = act["op"]
        if op == "Push":
            # Columns of one message; the settings are those that the module calls constants.
            columns = Columns(b"x", (1).to_bytes(4, "little"), None, None, None if act["grp"] == "-" else (act["grp"],))
            settings = {"max_deliveries": self.constants["Limit"]}
            if self.constants["Dlq"] != "auto":
                settings["dlq"] = self.constants["Dlq"]
            push = commands.Push(QUEUE, columns, priority=act["pri"], delay_ms=act["delay"] * UNIT_MS)
            return [commands.SetQueue(QUEUE, settings), push]
        if op == "Lease":
            return [commands.Lease((QUEUE,), act["n"], act["v"] * UNIT_MS, self.now)]
        if op in SETTLES:
            delay = act["delay"] * UNIT_MS if op == "Fail" else None
            return [commands.Settle(QUEUE, SETTLES[op], (self.receipts[act["m"], act["r"]],), delay_ms=delay)]
        if op == "Touch":
            return [commands.Touch(QUEUE, (self.receipts[act["m"], act["r"]],), act["v"] * UNIT_MS)]
        if op == "Cancel":
            return [commands.Cancel(QUEUE, (self.ids[act["m"] - 1],))]
        if op == "Reschedule":
            return [commands.Reschedule(QUEUE, self.ids[act["m"] - 1], self.wall + act["delay"] * UNIT_MS)]
        if op == "Redrive":
            return [commands.Redrive(QUEUE, act["n"])]
        if op == "Reap":
            return []
        return [
            {
                "PurgeQueue": commands.PurgeQueue(QUEUE),
                "DeleteQueue": commands.DeleteQueue(QUEUE),
                "DeleteDlq": commands.DeleteQueue(DLQ),
                "SetDlq": commands.SetQueue(DLQ, {}),
            }[op]
        ]

    def noted(self, act: Mapping[str, Any], result: Result) -> bool:
        """Take note of ids and receipts in an answer; whether it is one of success."""
        if isinstance(result, api.Failed):
            return False
        if isinstance(result, api.Pushed):
            self.ids.append(result.first_id)
            self.deliveries.append(0)
        elif isinstance(result, Granted):
            for grant in result.runs:
                assert 1 == grant.count, "messages that were pushed alone are leased alone"
                m = self.ids.index(grant.first_id) + 1
                self.receipts[m, grant.delivery] = Target(grant.uid, grant.lease)
                self.deliveries[m - 1] = grant.delivery
        elif isinstance(result, api.Settled | api.Touched):
            return result.codes == (0,)
        elif isinstance(result, api.Outcomes):
            return result.outcomes == (Outcome.DONE,)
        return True

    # --- what the module sees -------------------------------------------------------------------------------
    def project(self) -> Function:
        """The variables q, lag and wlag."""
        messages = [{**GONE, "delivery": delivery} for delivery in self.deliveries]
        orders: dict[str, list[tuple[int, int]]] = {"line": [], "leases": [], "parked": [], "dead": []}
        for name in (QUEUE, DLQ):
            queue = self.machine.queues.get(name)
            for batch in queue.batches() if queue is not None else ():
                for run in death.visible_runs(batch):
                    for offset in range(run.first, run.last + 1):
                        assert queue is not None
                        m = self.ids.index(batch.id_of(queue.uid, offset)) + 1
                        at = "dead" if name == DLQ else PLACES[run.state]
                        clock = self.wall if run.state == DELAYED else self.now
                        timed = run.state in (DELAYED, BACKOFF, LEASED)
                        messages[m - 1] = {
                            "at": at,
                            "pri": batch.priority,
                            "grp": run.group or "-",
                            "left": (run.deadline - clock) // UNIT_MS if timed else 0,
                            "delivery": run.delivery,
                            "attempts": run.attempts,
                        }
                        place = run.order + offset - run.first
                        orders[at if at in ("dead", "parked") else "line"].append((place, m))
                        if run.lease is not None:
                            orders["leases"].append((run.lease.number, m))
        queue = self.machine.queues.get(QUEUE)
        q = {
            "there": queue is not None,
            "msg": tuple(Function(each) for each in messages),
            **{name: tuple(m for _, m in sorted(places)) for name, places in orders.items()},
            "ring": function({p: self.ring(p) for p in self.constants["Priorities"]}),
            "dlq": DLQ in self.machine.queues,
            "seen": queue is not None and queue.dlq_seen,
        }
        return Function(q=Function(q), lag=self.lag, wlag=self.wlag)

    def ring(self, priority: int) -> tuple[str, ...]:
        """The lanes that may have a turn at this priority, the next one first."""
        queue = self.machine.queues.get(QUEUE)
        if queue is None:
            return ()
        if not queue.groups:
            # Turns are taken only once there are groups; until then the level is alone.
            return ("-",) if priority in queue.tops else ()
        return tuple(lane or "-" for lane in queue.rotation.get(priority, ()))


def candidates(state: Function, constants: Mapping[str, Any]) -> Iterator[Function]:
    """Every action that the module may take in this state (a lease may exceed MaxLeases)."""
    ops = constants["Ops"]
    messages = state["q"]["msg"]
    ids = range(1, len(messages) + 1)
    if len(messages) < constants["MaxMessages"] and "Push" in ops:
        for pri in constants["Priorities"]:
            for grp in constants["Groups"]:
                for delay in constants["Delays"]:
                    yield Function(op="Push", pri=pri, grp=grp, delay=delay)
    if "Lease" in ops:
        for n in constants["Polls"]:
            for v in constants["Visibilities"]:
                yield Function(op="Lease", n=n, v=v)
    receipts = [(m, r) for m in ids for d in [messages[m - 1]["delivery"]] for r in (d, d - 1) if r > 0]
    for m, r in receipts:
        for op in ("Ack", "Release", "Reject"):
            if op in ops:
                yield Function(op=op, m=m, r=r)
        if "Fail" in ops:
            for delay in constants["Backoffs"]:
                yield Function(op="Fail", m=m, r=r, delay=delay)
        if "Touch" in ops:
            for v in constants["Visibilities"]:
                yield Function(op="Touch", m=m, r=r, v=v)
    for m in ids:
        if "Cancel" in ops:
            yield Function(op="Cancel", m=m)
        if "Reschedule" in ops:
            for delay in constants["Delays"]:
                yield Function(op="Reschedule", m=m, delay=delay)
    if "Redrive" in ops:
        for n in constants["Polls"]:
            yield Function(op="Redrive", n=n)
    for op in ("PurgeQueue", "DeleteQueue", "DeleteDlq", "SetDlq"):
        if op in ops:
            yield Function(op=op)
    if "Reap" in ops and state["lag"] + state["wlag"] > 0:
        yield Function(op="Reap")
    if "Tick" in ops and max(state["lag"], state["wlag"]) < constants["MaxLag"]:
        yield Function(op="Tick")
    if "Failover" in ops:
        for ahead in constants["Skews"]:
            yield Function(op="Failover", ahead=ahead)


def within(projected: Function, constants: Mapping[str, Any]) -> bool:
    """Whether the module follows the machine there."""
    return all(message["delivery"] <= constants["MaxLeases"] for message in projected["q"]["msg"])


class QueueBinding:
    """Models of Queue and `QueueTwin`."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self.constants = constants

    def make(self) -> QueueTwin:
        """A twin without a queue."""
        return QueueTwin(self.constants)

    def start(self) -> Function:
        """Nothing there."""
        return self.make().project()

    def candidates(self, state: Function) -> Iterator[Function]:
        """See the module's Next."""
        return candidates(state, self.constants)

    def within(self, projected: Function) -> bool:
        """See MaxLeases."""
        return within(projected, self.constants)
