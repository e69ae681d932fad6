"""The world of one seed: nodes, network, clients, faults, and the heap of what happens next.

Random streams are salted, one per concern, so that one more draw in one of them does not shift the others.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from walrq.errors import ConfigError
from walrq.queues import commands as c
from walrq.queues import effects
from walrq.raft.membership import Configuration
from walrq.raft.quorum import majority
from walrq.simulator.clock import MS, NodeClock
from walrq.simulator.hardware import Hardware
from walrq.simulator.history import History
from walrq.simulator.nemesis import Nemesis
from walrq.simulator.network import SimNetwork, Weather
from walrq.simulator.node import TICK_US, TIMING, Node
from walrq.simulator.options import DEFAULTS, REQUESTS_MIN, Options, Report
from walrq.simulator.processes import QUEUES, Account, Drainer, Process, Request
from walrq.simulator.promises import promise
from walrq.storage.config import FsyncPolicy

NODES_MAX: Final = 7
# Everything that waits for anything waits for less than two seconds.
DRAIN_US_MAX: Final = 100 * 1000 * MS
# A healed majority elects within two or three time-outs; ten times that is never.
ELECTION_US_MAX: Final = 30 * (TIMING.election + TIMING.spread) * TICK_US
# A vote, and the first entry of the office that it led to, lie no farther apart.
VOTE_US_MAX: Final = 4 * (TIMING.election + TIMING.spread) * TICK_US
CONVERGE_US_MAX: Final = 20 * 1000 * MS
# Of a node that is alone, and of several: a seed of either does about the same work.
LOAD_MS: Final = (1_500, 420)
FAULT_MS: Final = (130, 60)
CHECK_EVERY: Final = (20, 60)


class Cluster:
    """See the module.

    Attributes:
        nodes: by name, those whose disks are gone as well.
        now_us: simulated true time.
        load_until_us: load and faults end then.
    """

    def __init__(self, *, seed: int, options: Options = DEFAULTS) -> None:
        """Raises ConfigError for more nodes than can be simulated."""
        self.seed = seed
        self.options = options
        shape = self.draw("shape")
        count = options.nodes if options.nodes is not None else shape.choice((1, *(3,) * 8, 5))
        if not 1 <= count <= NODES_MAX:
            raise ConfigError(f"{count} nodes cannot be simulated, 1 to {NODES_MAX} can")
        among = count > 1
        self.load_until_us = (options.load_ms if options.load_ms is not None else LOAD_MS[among]) * MS
        check_every = options.check_every if options.check_every is not None else CHECK_EVERY[among]
        self.now_us = 0
        self.log: list[str] = []
        self.marks: Counter[str] = Counter()
        self.events = 0
        self.requests = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = 0
        self._network_draw = self.draw("clients")
        policies: tuple[FsyncPolicy, ...] = (*("always",) * 6, ("interval", 100), "never")
        self._fsync: FsyncPolicy = options.fsync if options.fsync is not None else self.draw("fsync").choice(policies)
        # Messages that the hot window holds, in all queues; None: all. A small one makes most messages of a seed cold.
        self.window: int | None = self.draw("window").choice((None, None, 4, 16, 60))
        self.nodes: dict[str, Node] = {}
        self._members = self._first_count = count
        self._core: set[str] = set()
        self.network = SimNetwork(self, self.nodes, self.draw("network"), Weather.drawn(self.draw("weather")))  # type: ignore[arg-type]
        self.history = History(self, self.nodes, check_every)  # type: ignore[arg-type]
        names = [f"n{number}" for number in range(1, count + 1)]
        for name in names:
            self._add(name, None if count == 1 else Configuration.of(names))
        # Between the end of faults and the healing of everybody: nobody may be needed who is not well.
        self.is_minimal = False
        self.nemesis = Nemesis(self, options.fault_ms if options.fault_ms is not None else FAULT_MS[among])
        self.account = Account()
        self.processes = [
            Process(self, f"p{number}", self.account, options.pace_ms * MS)
            for number in range(1, options.processes + 1)
        ]
        if among:
            # Long enough to outlive an office, short enough that nobody waits long for it at the end.
            for process in self.processes:
                process.visibilities_ms = (20, 120, 400, 400)
        self.say(f"seed {seed}, {count} nodes, fsync {self._fsync}, mostly {self.nemesis.focus}")

    def _add(self, name: str, first: Configuration | None) -> Node:
        clock = NodeClock(self.draw(f"clock/{name}"))
        number = len(self.nodes)
        hardware = Hardware(self, self.seed + number, self.draw(f"hardware/{name}"), clock)
        node = self.nodes[name] = Node(self, name, hardware, first, self._fsync)
        return node

    # --- the world of its inhabitants -----------------------------------------------------------------------
    def draw(self, name: str) -> random.Random:
        """The random stream of one concern."""
        return random.Random(f"{self.seed}/{name}")

    def at(self, delay_us: int, action: Callable[[], None]) -> None:
        """Let something happen."""
        self._numbers += 1
        heapq.heappush(self._heap, (self.now_us + delay_us, self._numbers, action))

    def say(self, text: str) -> None:
        """A line of the event log."""
        self.log.append(f"{self.now_us / MS:12.3f} ms  {text}")

    def mark(self, name: str, times: int = 1) -> None:
        """Something worth covering happened."""
        self.marks[name] += times

    def wall_ms(self) -> int:
        """The log's wall clock, which a client has seen in answers."""
        return self.history.ledger.stamp.wall_ms

    def agreed_wall_ms(self, taken_us: int) -> int:
        """The most that the lower median of a quorum's wall clocks may have shown of late."""
        shown = sorted(
            node.hardware.clock.highest_wall_ms(taken_us - VOTE_US_MAX, taken_us) for node in self.nodes.values()
        )
        quorum = majority(self._first_count)
        return shown[-(quorum - (quorum - 1) // 2)]

    @property
    def leader(self) -> Node | None:
        """The node of the highest term that leads."""
        leading = [node for node in self.nodes.values() if node.replica is not None and node.replica.is_leader]
        return max(leading, key=lambda node: node.raft.term, default=None)

    def configurations(self) -> list[Configuration]:
        """What anybody believes to be the group."""
        found = [node.configuration for node in self.nodes.values() if not node.gone]
        return [configuration for configuration in found if configuration.voters]

    def newcomer(self) -> Node:
        """One more machine, which belongs to nothing yet."""
        self._members += 1
        node = self._add(f"n{self._members}", Configuration())
        self.at(0, node.start)
        return node

    def replace(self, node: Node) -> None:
        """A disk is lost: the name never comes back, another machine takes its place."""
        node.gone = True
        newcomer = self.newcomer()
        self.mark("node wiped")
        self.say(f"{node.name} lost its disk; {newcomer.name} is to take its place")
        self.nemesis.replace(node, newcomer)

    def sleep(self, for_ms: int) -> None:
        """Everybody sleeps."""
        self.mark("all slept for an hour")
        self.say(f"everybody sleeps for {for_ms // 60_000} minutes")
        step_us = for_ms * MS
        self.now_us += step_us
        self._heap = [(at + step_us, tie, action) for at, tie, action in self._heap]
        self.load_until_us += step_us

    # --- clients --------------------------------------------------------------------------------------------
    def another(self, server: str, draw: random.Random) -> str:
        """A node to try next."""
        names = [name for name, node in self.nodes.items() if not node.gone and name != server]
        return draw.choice(names or list(self.nodes))

    def send(self, request: Request) -> None:
        """A request on its way: lost with the connection, and sometimes there twice."""
        if request.copies == 1:
            self.requests += 1
        if request.session is not None:
            self.history.ledger.sent_us.setdefault((request.session, request.sequence), request.sent_us)
        copies = 1
        if self.options.faults and request.session is not None and self._network_draw.random() < 0.04:
            self.mark("request arrived twice")
            copies = 2
            request.copies += 1
        process = request.process
        if process.server not in self.nodes:
            process.server = self.another("", self._network_draw)
        node = self.nodes[process.server]
        for _ in range(copies):
            late_us = self._network_draw.randrange(200 * MS) if copies > 1 else 0
            self.at(self._network_draw.randrange(50, 2 * MS) + late_us, lambda: node.receive(request))

    def redirect(self, request: Request, leader: str | None, *, lost: bool = False) -> None:
        """The node does not lead, or no longer: the client is told who does, as far as known."""
        self.mark("request redirected")
        self.at(
            self._network_draw.randrange(50, 2 * MS), lambda: request.process.redirected(request, leader, lost=lost)
        )

    def reply(self, node: Node, request: Request, result: effects.Result) -> None:
        """An answer on its way; it names bodies that must be readable now."""
        if self.options.faults and self._network_draw.random() < 0.05:
            self.mark("reply lost")
            return
        if isinstance(result, effects.Granted):
            for run in result.runs:
                self._check_bodies(node, run)
        self.at(self._network_draw.randrange(50, 2 * MS), lambda: request.process.answered(request, result))

    def _check_bodies(self, node: Node, run: effects.Grant) -> None:
        values = node.read(run)
        ids = [self.history.ledger.values.get(value) for value in values]
        promise("NoMixedRead", ids == list(range(run.first_id, run.first_id + run.count)), "bodies", run, values)

    def read(self, run: effects.Grant) -> list[bytes]:
        """What a reply carried."""
        stories = self.history.ledger.known
        return [stories[identifier] for identifier in range(run.first_id, run.first_id + run.count)]

    def ask_read(self, draw: random.Random) -> None:
        """A consistent read, of any node."""
        self.nodes[draw.choice(list(self.nodes))].ask_read()

    # --- the run --------------------------------------------------------------------------------------------
    def run(self) -> Report:
        """Load with faults, then calm, then drain, then the reckoning. Broken when a promise is."""
        for node in list(self.nodes.values()):
            self.at(self._network_draw.randrange(5 * MS), node.start)
        self.at(1 * MS, self._set_up)
        for process in self.processes:
            self.at(self._network_draw.randrange(20 * MS), process.wake)
        if self.options.faults:
            self.nemesis.next()
        self.run_until(lambda: self.now_us >= self.load_until_us)
        if not self._calm():
            self.mark("hopeless")
            return self._report()
        self._elect()
        if self.options.load_ms is None:
            # Those who had nobody to speak to so far are heard now.
            self._settle_down(lambda: self.requests >= REQUESTS_MIN, "clients get no answers")
        for process in self.processes:
            process.stopped = True
        self._settle_down(lambda: all(process.is_idle for process in self.processes), "requests are under way")
        self._drain()
        self.account.check()
        self._converge()
        for node in self.nodes.values():
            node.stop()
        return self._report()

    def _report(self) -> Report:
        return Report(
            self.seed,
            self._first_count,
            self.marks,
            self.history.index,
            self.events,
            self.requests,
            self.now_us,
            self.log,
        )

    def _set_up(self) -> None:
        """Short back-offs; dead messages of `keep` stay in it."""
        node = self.leader
        if node is None or node.replica is None or not node.replica.accepts:
            self.at(10 * MS, self._set_up)
            return
        replica = node.replica
        for queue in QUEUES:
            settings: dict[str, Any] = {"backoff_ms": 15, "backoff_max_ms": 100, "dedup_window_ms": 300}
            if queue == "keep":
                settings["dlq"] = "none"
            tagged = c.Tagged(c.SetQueue(queue, settings))
            node.operate(lambda _replica, tagged=tagged: replica.propose(tagged))  # type: ignore[misc]

    def _drain(self) -> None:
        drainer = Drainer(self, self.account, list(self.history.shadow.queues))
        self.at(0, drainer.wake)
        self._settle_down(lambda: not self.history.ledger.stories, "messages are left")
        drainer.stopped = True
        self._settle_down(lambda: drainer.is_idle, "the drainer waits")

    def _settle_down(self, done: Callable[[], bool], why: str) -> None:
        until_us = self.now_us + DRAIN_US_MAX
        self.run_until(lambda: done() or self.now_us > until_us)
        promise("Drains", done(), why, list(self.history.ledger.stories.values())[:5])

    def run_until(self, done: Callable[[], bool]) -> None:
        """Let things happen until then, or until nothing is left to happen."""
        heap = self._heap
        while heap and not done():
            self.now_us, _, action = heapq.heappop(heap)
            self.events += 1
            action()
            heap = self._heap

    # --- the end: a majority is well, the rest is not ---------------------------------------------------------
    def core(self) -> set[str]:
        """Nodes whose being well must be enough: a majority of every group that anybody believes in, all intact.

        None when too many have a tail that they may have acknowledged and cannot read, which takes a power loss of
        several in the middle of a write: then all have to be asked.
        """
        draw = self.draw("core")
        names = sorted(name for name, node in self.nodes.items() if node.is_intact)
        draw.shuffle(names)
        groups = [set(configuration.voters) for configuration in self.configurations()]

        def is_enough(core: set[str]) -> bool:
            return all(len(voters & core) >= majority(len(voters)) for voters in groups)

        core = set(names)
        if not is_enough(core):
            return set()
        for name in names:
            if is_enough(core - {name}):
                core.remove(name)
        return core

    def _calm(self) -> bool:
        """The core is healed; the others are cut off one way or both, their disks stuck, or down, and stay so.

        False for a group that is at its end: a disk is gone, and a power loss left another one in doubt of its tail, so
        that no intact majority is left.
        """
        for node in list(self.nodes.values()):
            # A start may find that the last power loss left a tail that it cannot vouch for.
            node.restless = False
            if not node.is_up:
                node.hardware.calm()
                node.start()
        core = self.core()
        self.is_minimal = bool(core)
        if not core:
            core = {name for name, node in self.nodes.items() if not node.gone}
            if not all(core >= configuration.voters.keys() for configuration in self.configurations()):
                return False
            self.mark("everybody is needed")
        draw = self.draw("calm")
        self.network.heal()
        self.network.weather = Weather()
        others = [name for name, node in self.nodes.items() if name not in core and not node.gone]
        way = draw.choice(("both", "in", "out", "none")) if others else "none"
        rest = f"; cut off ({way}): {', '.join(others)}" if others else ""
        self.say(f"calm: {', '.join(sorted(core))} are well{rest}")
        for name in sorted(core):
            node = self.nodes[name]
            node.restless = False
            node.hardware.calm()
            node.wake()
        for name in others:
            node = self.nodes[name]
            match draw.randrange(3):
                case 0:
                    node.hardware.stick(None)
                case 1:
                    node.down_for_good = True
                    if node.is_up:
                        node.kill()
                case _:
                    pass
        if way != "none":
            self.network.cut(others, inbound=way != "out", outbound=way != "in")
        self._core = core
        return True

    def _elect(self) -> None:
        """Drains, its first half: somebody leads, and the core follows, within a bound."""
        until_us = self.now_us + ELECTION_US_MAX

        def elected() -> bool:
            leader = self.leader
            if leader is None or leader.replica is None or not leader.replica.accepts:
                return False
            # Who was removed is not told so by anybody.
            replicas = [self.nodes[name].replica for name in self._core if name in leader.configuration.nodes]
            return all(replica is not None and replica.leader == leader.name for replica in replicas)

        self.run_until(lambda: elected() or self.now_us > until_us)
        promise("Drains", elected(), "a healed majority elected nobody", sorted(self._core))

    def _converge(self) -> None:
        """At last everybody is healed, and comes to the same state."""
        self.say("everybody is healed")
        self.is_minimal = False
        self.network.heal()
        for node in list(self.nodes.values()):
            node.restless = False
            node.hardware.calm()
            node.wake()
            node.revive()

        def members() -> list[Node]:
            leader = self.leader
            if leader is None:
                return []
            return [self.nodes[name] for name in leader.configuration.nodes if not self.nodes[name].gone]

        def converged() -> bool:
            index = self.history.index
            nodes = members()
            return bool(nodes) and all(
                n.replica is not None and n.replica.applied_index == index and not n.damaged for n in nodes
            )

        until_us = self.now_us + CONVERGE_US_MAX
        self.run_until(lambda: converged() or self.now_us > until_us)
        stand = {n.name: (n.replica.applied_index, n.replica.status.value) for n in members() if n.replica is not None}
        promise("Drains", converged(), "nodes do not come to the same index", self.history.index, stand)
        for node in members():
            assert node.replica is not None
            self.history.compare(node.name, node.replica, node.read_page, at_once=True)
            self.history.check_bodies(node.name, node.bodies)


def replay(seed: int, options: Options) -> str:
    """The command that runs a seed again."""
    given = [("--nodes", options.nodes), ("--load-ms", options.load_ms), ("--fsync", options.fsync)]
    flags = [f" {flag} {value}" for flag, value in given if value is not None]
    return f"python -m walrq.testing.cluster --seed {seed}{''.join(flags)}"


# --- one seed -------------------------------------------------------------------------------------------------
def run_seed(seed: int, options: Options = DEFAULTS) -> Report:
    """One seed from start to end. Broken, with its log as a note, when a promise is."""
    cluster = Cluster(seed=seed, options=options)
    try:
        return cluster.run()
    except Exception as error:
        error.add_note("\n".join(cluster.log[-60:]))
        error.add_note(f"replay with: {replay(seed, options)}")
        raise
