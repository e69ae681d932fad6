"""Plays the scenario files beside this one: whole replicas on disks, commands, `----`, and what they print.

    python -m tests.simulator.stage FILE ...             play, and show where it differs
    python -m tests.simulator.stage --rewrite FILE ...   put what it prints now in place of what it printed then

A file is a list of blocks, separated by empty lines. A block is a comment (`# ...`), or command lines, a line `----`,
and the expected output: what happened meanwhile, then what was asked for. Time is simulated. All promises of the
simulator are checked all along.

    nodes 3                      the group n1 n2 n3, with empty disks
    elect n1                     it stands as if the leader had told it to, until it leads and is followed
    stand n1                     the same, until it takes office and not a moment longer
    run 200                      milliseconds
    client p1 n1                 a client with a session, opened at n1
    push p1 n1 jobs a b          sent to n1; the answer is printed when it comes
    poll p1 n1 jobs 300          a lease for 300 ms of all there is
    ack p1 n1 jobs               everything it holds there
    again p1 n2                  its last request once more, under the same number, at n2
    read n2                      a consistent read of this node
    cut n1 / n2 n3               no messages between the sides       block n1 n2    none from n1 to n2
    deaf n1                      n1 hears nobody                     heal           all links are open
    kill n1, crash n1            the process ends, the power goes; it stays down until `start n1`
    rot n1                       while it is down a bit of its newest log record flips
    stick n1, free n1            no operation of its disk ends       jump n1 3600000   its wall clock is set
    fill n1 jobs 90              so many pushes through the leader n1, to make the log long
    add n1 n4, promote n1 n4, remove n1 n4, transfer n1 n2           asked of the leader n1
    state [n1 ...]               a line for each node                queues n1      what it has of each queue
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

from tests.scenarios import Scenarios
from walrq import api
from walrq.errors import Code, WalrqError
from walrq.queues import commands as c
from walrq.queues import effects
from walrq.raft.membership import Member
from walrq.replica import Replica
from walrq.simulator.clock import MS
from walrq.simulator.cluster import Cluster
from walrq.simulator.network import Weather
from walrq.simulator.node import Node
from walrq.simulator.options import Options
from walrq.simulator.processes import Account, Process, Request, columns

HERE = Path(__file__).resolve().parent / "scenarios"
SEED = 1
ELECTION_MS = 30
TRIES_MAX = 5
SHOWN_MAX = 10
# Lines of the event log that tell what every run has.
_DULL = re.compile(r"seed \d+|\w+ starts in term 1,|.* is sent again")


class Client(Process):
    """A client that does what it is told, and says what it was told."""

    def __init__(self, stage: Stage, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name, Account(), 20_000)
        self._stage = stage
        self.last: Request | None = None

    def ask(self, command: c.Command) -> None:
        """Send a request; it is not repeated."""
        session = None if isinstance(command, c.OpenSession) else self._session
        request = Request(self, command, session, self._next, self._world.now_us, 1, 1)
        self._next += 1
        self.last = self.requests[request.sequence] = request
        self._world.send(request)

    def repeat(self) -> None:
        """The last request once more."""
        assert self.last is not None
        self.requests[self.last.sequence] = self.last
        self.last.copies += 1
        self._world.send(self.last)

    def redirected(self, request: Request, leader: str | None, *, lost: bool) -> None:
        """Printed, not followed."""
        what = "nobody knows whether it happened" if lost else "not done"
        self._stage.tell(f"{self.name}: {what}, {leader or 'nobody'} leads")

    def answered(self, request: Request, result: effects.Result) -> None:
        """Printed."""
        match result:
            case api.SessionOpened():
                text = "has a session"
            case api.Pushed(count=count):
                text = f"pushed {count}"
            case effects.Granted(runs=runs):
                values = [value.decode() for run in runs for value in self._world.read(run)]
                text = (
                    f"leased {' '.join(values) if len(values) <= SHOWN_MAX else len(values)}"
                    if values
                    else "leased nothing"
                )
            case api.Settled(codes=codes):
                counts = Counter(Code(code).name if code else "ok" for code in codes)
                text = "settled " + ", ".join(f"{number} {name}" for name, number in counts.items())
            case api.Failed(code=code):
                text = f"failed {Code(code).name}"
            case _:
                text = type(result).__name__
        self._stage.tell(f"{self.name}: {text}")
        super().answered(request, result)

    def held(self, queue: str) -> list[c.Target]:
        """What it holds of a queue."""
        return [hold.target for hold in self._holds if hold.queue == queue]

    def _leased(self, run: effects.Grant) -> None:
        # Nothing is abandoned by chance.
        state = self._draw.getstate()
        self._draw.random = lambda: 1.0  # type: ignore[method-assign]
        super()._leased(run)
        del self._draw.random  # type: ignore[misc]
        self._draw.setstate(state)


class Stage:
    """One scenario."""

    def __init__(self) -> None:
        self.out: list[str] = []
        self._cluster: Cluster | None = None
        self._clients: dict[str, Client] = {}
        self._told = 0

    @property
    def cluster(self) -> Cluster:
        """The world, once `nodes` made it."""
        assert self._cluster is not None, "a scenario begins with `nodes`"
        return self._cluster

    def play(self, command: str) -> list[str]:
        """Do what a line says; what happened meanwhile."""
        self.out = []
        name, *arguments = command.split()
        try:
            getattr(self, f"do_{name.replace('-', '_')}")(*arguments)
        except WalrqError as error:
            self._drain_log()
            self.out.append(f"refused: {error.text}")
        self._drain_log()
        return self.out

    def tell(self, text: str) -> None:
        """A line of output, in its place among the events."""
        self.cluster.say(text)

    def _drain_log(self) -> None:
        lines = [line.split("ms  ", 1)[1] for line in self.cluster.log[self._told :]]
        self._told = len(self.cluster.log)
        self.out += [line for line in lines if not _DULL.match(line)]

    def _node(self, name: str) -> Node:
        return self.cluster.nodes[name]

    def _run(self, ms: int) -> None:
        until_us = self.cluster.now_us + ms * MS
        self.cluster.run_until(lambda: self.cluster.now_us >= until_us)

    # --- the world ------------------------------------------------------------------------------------------
    def do_nodes(self, count: str) -> None:
        """A new group."""
        options = Options(nodes=int(count), faults=False, processes=0, fsync="always", check_every=1)
        self._cluster = cluster = Cluster(seed=SEED, options=options)
        cluster.network.weather = Weather()
        for node in cluster.nodes.values():
            node.start()
        self._run(20)

    def do_run(self, ms: str) -> None:
        """Time passes."""
        self._run(int(ms))

    def do_stand(self, name: str) -> None:
        """It takes office."""
        node = self._node(name)
        for _ in range(TRIES_MAX):
            if node.raft.is_leader:
                return
            # A term in which others voted already is lost; the next one is not.
            node.operate(lambda _replica: node.raft.campaign(transfer=True))
            until_us = self.cluster.now_us + ELECTION_MS * MS
            self.cluster.run_until(lambda: node.raft.is_leader or self.cluster.now_us > until_us)  # noqa: B023
        assert node.raft.is_leader, f"{name} was not elected"

    def do_elect(self, name: str) -> None:
        """It leads, and is followed by all that hear it."""
        self.do_stand(name)
        self._run(60)

    def do_cut(self, *names: str) -> None:
        """No messages between the sides."""
        self.cluster.network.cut(names[: names.index("/")])

    def do_block(self, sender: str, receiver: str) -> None:
        """One direction is dead."""
        self.cluster.network.block(sender, receiver)

    def do_deaf(self, name: str) -> None:
        """It hears nobody; what it says is heard."""
        self.cluster.network.cut([name], outbound=False)

    def do_heal(self) -> None:
        """All links are open."""
        self.cluster.network.heal()

    def do_kill(self, name: str) -> None:
        """The process ends."""
        node = self._node(name)
        node.down_for_good = True
        node.kill()

    def do_crash(self, name: str) -> None:
        """The power goes."""
        node = self._node(name)
        node.down_for_good = True
        node.lose_power("it was pulled")

    def do_start(self, name: str) -> None:
        """A new life."""
        self._node(name).revive()
        self._run(20)

    def do_rot(self, name: str) -> None:
        """A bit of its newest record is another one."""
        node = self._node(name)
        assert not node.is_up
        node.damaged = True
        disk = node.hardware.disk
        path = max(f"data/wal/{file}" for file in disk.list_directory("data/wal") if file.startswith("seg-"))
        end = len(disk.content(path).rstrip(b"\0"))
        disk.flip_bit(path, (end - 20) * 8)

    def do_stick(self, name: str) -> None:
        """No operation of its disk ends."""
        self._node(name).hardware.stick(None)

    def do_free(self, name: str) -> None:
        """They end again."""
        self._node(name).hardware.free()

    def do_jump(self, name: str, ms: str) -> None:
        """Its wall clock is set."""
        self._node(name).hardware.clock.set(self.cluster.now_us, int(ms))

    # --- clients --------------------------------------------------------------------------------------------
    def do_client(self, name: str, server: str) -> None:
        """A session of its own."""
        client = self._clients[name] = Client(self, self.cluster, name)
        self._ask(name, server, c.OpenSession())
        assert client.last is not None

    def _ask(self, name: str, server: str, command: c.Command) -> None:
        self._clients[name].server = server
        self._clients[name].ask(command)
        self._run(30)

    def do_push(self, name: str, server: str, queue: str, *values: str) -> None:
        """Push."""
        self._ask(name, server, c.Push(queue=queue, columns=columns([value.encode() for value in values])))

    def do_poll(self, name: str, server: str, queue: str, visibility_ms: str) -> None:
        """Lease."""
        self._ask(name, server, c.Lease((queue,), 100, int(visibility_ms), 0, name))

    def do_ack(self, name: str, server: str, queue: str) -> None:
        """Settle."""
        targets = tuple(self._clients[name].held(queue))
        self._ask(name, server, c.Settle(queue, api.SettleKind.ACK, targets))

    def do_again(self, name: str, server: str) -> None:
        """A retry."""
        self._clients[name].server = server
        self._clients[name].repeat()
        self._run(30)

    def do_fill(self, server: str, queue: str, count: str) -> None:
        """Many pushes of one message, without a session."""
        node = self._node(server)
        for number in range(int(count)):
            push = c.Push(queue=queue, columns=columns([b"f%d" % number]))
            node.operate(lambda replica, push=push: replica.propose(c.Tagged(push)))  # type: ignore[misc]
            self._run(8)

    def do_read(self, name: str) -> None:
        """A consistent read."""
        before = self.cluster.marks["consistent read answered"]
        self._node(name).ask_read()
        self._run(60)
        answered = self.cluster.marks["consistent read answered"] > before
        self.tell(f"the read at {name} is {'answered' if answered else 'not answered'}")

    # --- the group ------------------------------------------------------------------------------------------
    def _operate(self, leader: str, call: object) -> None:
        self._node(leader).operate(call)  # type: ignore[arg-type]
        self._run(30)

    def do_add(self, leader: str, name: str) -> None:
        """A learner joins; a machine that is not there yet is started."""
        if name not in self.cluster.nodes:
            self.cluster.newcomer()
            self._run(5)
        member = Member(name, f"{name}.example:1", self._node(name).hardware.uuid)
        self._operate(leader, lambda replica: replica.add_learner(member))

    def do_promote(self, leader: str, name: str) -> None:
        """A learner becomes a voter."""
        self._operate(leader, lambda replica: replica.promote(name))

    def do_remove(self, leader: str, name: str) -> None:
        """A node leaves."""
        self._operate(leader, lambda replica: replica.remove(name))

    def do_transfer(self, leader: str, target: str) -> None:
        """A handover."""
        self._operate(leader, lambda replica: replica.transfer(target))

    # --- what there is --------------------------------------------------------------------------------------
    def do_state(self, *names: str) -> None:
        """Nodes, a line each."""
        self._drain_log()
        for name in names or sorted(self.cluster.nodes):
            node = self._node(name)
            if node.replica is None:
                self.out.append(f"{name} is down")
            else:
                self.out.append(_line(node, node.replica))

    def do_queues(self, name: str) -> None:
        """What a node has of each queue."""
        replica = self._node(name).replica
        assert replica is not None
        self._drain_log()
        for queue in replica.machine.queues.values():
            self.out.append(f"{name} {queue.name}: ready {queue.ready}, leased {queue.leased}, delayed {queue.delayed}")


def _line(node: Node, replica: Replica) -> str:
    raft = node.raft
    learners = sorted(replica.configuration.learners)
    members = " ".join(sorted(replica.configuration.voters)) + "".join(f" +{name}" for name in learners)
    status = "" if replica.status.value == "normal" else f" ({replica.status.value})"
    return (
        f"{node.name} {replica.role.value}{status} term {replica.term}, log to {raft.last_term}.{raft.last_index}, "
        f"commit {replica.commit_index}, applied {replica.applied_index}, group {members or 'none'}, "
        f"leader {replica.leader or 'unknown'}"
    )


_SCENARIOS = Scenarios(HERE, Stage)
played, difference, main = _SCENARIOS.played, _SCENARIOS.difference, _SCENARIOS.main


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
