"""Groups of cores over a bad network and bad disks: one heap of events, one integer.

    python -m tests.raft.world --seed 7            that world again, with its story
    python -m tests.raft.world --seeds 1000        many, until one fails

Messages are encoded, lost, delayed, doubled, reordered and blocked, one way or both; nodes crash and lose what was not
durable, a part of a write included; disks are slow or stand still; nodes join, are promoted, leave; leaders hand over;
reads are asked everywhere. After every event the invariants below are checked. At the end (liveness) a majority is
healed while the rest stays as bad as it was, and must elect a leader, commit, and answer a read.

Invariants, by the one name of each: ElectionSafety, LogMatching, LeaderCompleteness, StateMachineSafety,
CommitMonotonic, TermMonotonic, CommitLeLog, LeaderAppendOnly, AckedOnQuorum, AckedDurable, VoteDurableBeforeSent,
MatchLeLeaderLog, NextGtMatch, MatchMonotonic, QuorumOverlap, NoMixedRead, AppliedBeforeAnswered.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs

from tests.raft.hosts import Host, chained, group
from walrq.errors import WalrqError
from walrq.raft.election import Timing
from walrq.raft.entries import Entry, HardState, Kind
from walrq.raft.membership import Configuration, Member
from walrq.raft.messages import AppendReply, Message, VoteReply, decode, encode
from walrq.raft.quorum import majority
from walrq.raft.roles import Role

TICK = 100  # units of simulated time
TIMING = Timing(election=5, spread=5, heartbeat=2, stall=12)
EVENTS = 1200
# Ten election time-outs; nearly all need one or two.
LIVENESS_TICKS = 100
NAMES = "abcdefgh"
NEMESIS = (
    "crash restart restart block cut heal heal heal stick free free image image group group group give rot".split()
)
# What a world has more of than others.
FOCUS = {
    "everything": [],
    "groups": ["group"] * 12 + ["give"] * 2,
    "damage": ["crash", "rot", "rot", "restart", "free"] * 4,
    "snapshots": ["image", "image", "cut", "heal"] * 4,
    "leaders": ["give", "cut", "heal", "crash", "restart"] * 3,
}


class Broken(AssertionError):
    """An invariant does not hold."""


@attrs.frozen
class Options:
    """What a world is like; drawn from the seed."""

    nodes: int
    drop: float
    double: float
    slow_link: float
    faults: float
    write: tuple[int, int]
    members: bool
    focus: str = "everything"
    pre_vote: bool = True

    @classmethod
    def drawn(cls, rng: random.Random) -> Options:
        """A mix in which quiet worlds are as likely as wild ones."""
        return cls(
            nodes=rng.choice((2, 3, 3, 3, 4, 5)),
            drop=rng.choice((0.0, 0.02, 0.1)),
            double=rng.choice((0.0, 0.05, 0.2)),
            slow_link=rng.choice((0.0, 0.02, 0.1)),
            faults=rng.choice((0.3, 1.0, 2.0)),
            write=rng.choice(((1, 5), (1, 60), (20, 300))),
            members=rng.random() < 0.7,
            focus=rng.choice(list(FOCUS)),
        )


@attrs.frozen
class Read:
    """A read under way, and what it must see."""

    least: int


class World:
    """One seed's world."""

    def __init__(self, seed: int, options: Options | None = None, *, keep_story: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.options = options or Options.drawn(self.rng)
        self.now = 0
        self.marks: Counter[str] = Counter()
        self.story: list[str] = []
        self._keep_story = keep_story
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.blocked: set[tuple[str, str]] = set()
        self.stuck: set[str] = set()
        # What must hold for ever: leaders by term, entries by (index, term), what was committed.
        self.leaders: dict[int, str] = {}
        self.entries: dict[tuple[int, int], tuple[int | None, Entry]] = {}
        self.committed: dict[int, Entry] = {}
        self.digests: dict[int, int] = {0: 0}
        self.groups: dict[int, set[str]] = {}
        self.reads: dict[tuple[str, int, int], Read] = {}
        self._seen: dict[str, tuple[int, int, int, int, Role]] = {}
        self._matches: dict[str, dict[str, tuple[int, int]]] = {}
        self._written: Counter[str] = Counter()
        self.hosts: dict[str, Host] = {}
        self._first = group(NAMES[: self.options.nodes])
        for name in NAMES[: self.options.nodes]:
            self._add(name, self._first)

    def _add(self, name: str, configuration: Configuration) -> None:
        self.hosts[name] = Host(
            name, configuration, seed=self.rng.randrange(1 << 30), timing=TIMING, pre_vote=self.options.pre_vote
        )
        self._seen[name] = (0, 0, 0, 0, Role.FOLLOWER)
        self._at(self.rng.randrange(TICK), lambda: self._tick(name))

    # --- time -----------------------------------------------------------------------------------------------
    def _at(self, delay: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + delay, next(self._numbers), action))

    def tell(self, text: str) -> None:
        """A line of the story."""
        if self._keep_story:
            self.story.append(f"{self.now:7} {text}")

    def step(self) -> None:
        """One event."""
        self.now, _, action = heapq.heappop(self._heap)
        action()

    def run(self, events: int = EVENTS) -> None:
        """Faults and work, then the liveness mode.

        Raises:
            Broken: an invariant does not hold.
        """
        self._at(0, self._nemesis)
        self._at(0, self._client)
        for _ in range(events):
            self.step()
        self.check_liveness()

    # --- what happens ---------------------------------------------------------------------------------------
    def _tick(self, name: str) -> None:
        host = self.hosts[name]
        # Ticks of different nodes drift.
        self._at(TICK + self.rng.randrange(-10, 11), lambda: self._tick(name))
        if host.alive:
            host.raft.tick()
            self._after(host)

    def _after(self, host: Host) -> None:
        """Whatever follows an input: messages leave, a write begins, all is checked."""
        host.feed()
        for message in host.messages():
            self._check_sent(host, message)
            self._deliver(message)
        if host.writing is None and host.begin_write():
            life = host.lives
            self._written[host.name] += 1
            number = self._written[host.name]
            self._at(self.rng.randint(*self.options.write), lambda: self._end_write(host, life, number))
        self.check(host)

    def _end_write(self, host: Host, life: int, number: int) -> None:
        if not host.alive or host.lives != life or self._written[host.name] != number:
            return
        if host.name in self.stuck:
            self._at(TICK, lambda: self._end_write(host, life, number))
            return
        host.end_write()
        self._after(host)

    def _deliver(self, message: Message) -> None:
        rng, options = self.rng, self.options
        if (message.sender, message.receiver) in self.blocked or rng.random() < options.drop:
            return
        data = encode(message)
        for _ in range(2 if rng.random() < options.double else 1):
            delay = rng.randrange(100, 900) if rng.random() < options.slow_link else rng.randrange(1, 40)
            self._at(delay, lambda: self._receive(data))

    def _receive(self, data: bytes) -> None:
        message = decode(data)
        host = self.hosts.get(message.receiver)
        if host is None or not host.alive or (message.sender, message.receiver) in self.blocked:
            return
        self.tell(f"{message.sender} -> {host.name} {message}")
        host.receive(message)
        self.marks[type(message).__name__] += 1
        self._after(host)

    def _client(self) -> None:
        self._at(self.rng.randrange(20, 250), self._client)
        for host in self.hosts.values():
            if not host.alive:
                continue
            if host.raft.accepts and self.rng.random() < 0.8:
                host.propose(b"%d" % next(self._numbers))
                self._after(host)
            if self.rng.random() < 0.15:
                self._read(host)

    def _read(self, host: Host) -> None:
        ticket = next(self._numbers)
        least = max(self.committed, default=0)
        try:
            host.raft.read(ticket)
        except WalrqError:
            return
        self.reads[host.name, host.lives, ticket] = Read(least)
        self._after(host)

    def _nemesis(self) -> None:
        self._at(int(self.rng.randrange(20, 200) / self.options.faults), self._nemesis)
        rng = self.rng
        names = list(self.hosts)
        name = rng.choice(names)
        host = self.hosts[name]
        kinds = NEMESIS + FOCUS[self.options.focus]
        alive = [host for host in self.hosts.values() if host.alive]
        match rng.choice(kinds):
            case "crash" if host.alive and (len(alive) > len(names) // 2 or rng.random() < 0.2):
                self.tell(f"crash {name}")
                self.marks["crash"] += 1
                host.crash(rng.randrange(6))
            case "restart":
                for host in self.hosts.values():
                    if not host.alive and rng.random() < 0.7:
                        self._restart(host)
            case "block":
                self.blocked.add((name, rng.choice(names)))
                self.marks["one-way"] += 1
            case "cut":
                side = {other for other in names if rng.random() < 0.5}
                self.blocked |= {(a, b) for a in names for b in names if (a in side) != (b in side)}
                self.marks["partition"] += 1
                self.tell(f"cut {sorted(side)}")
            case "heal":
                self.blocked.clear()
                if host.alive and rng.random() < 0.5:
                    host.raft.link_lost(rng.choice(names))
                    self._after(host)
                self.tell("heal")
            case "stick":
                self.stuck.add(name)
            case "free":
                self.stuck.clear()
            case "image" if host.alive:
                if host.snapshot(rng.choice((0, 0, 3))):
                    self.marks["image"] += 1
                    self._after(host)
            case "group" if self.options.members:
                self._change()
            case "give":
                self._transfer()
            case "rot" if not host.alive:
                self._rot(host)

    def _restart(self, host: Host) -> None:
        host.start()
        self.tell(f"restart {host.name}")
        self.marks["restart"] += 1
        self._seen[host.name] = (0, 0, 0, 0, Role.FOLLOWER)
        self._after(host)

    def _rot(self, host: Host) -> None:
        """A disk loses entries. One at a time, and never the only one of a group (each datum stays on two others)."""
        disk = host.disk
        first = max(disk.base[0], disk.image.index if disk.image is not None else 0) + 1
        groups = [set(other.raft.membership.current.voters) for other in self.hosts.values()]
        if first > disk.last_index or any(other.damaged for other in self.hosts.values()):
            return
        if all(len(voters) >= 3 for voters in groups if voters):
            host.rot(self.rng.randint(first, disk.last_index))
            self.marks["rot"] += 1
            self.tell(f"{host.name} lost entries from {disk.last_index + 1} on")

    def _change(self) -> None:
        for host in list(self.hosts.values()):
            if not host.alive or not host.raft.is_leader:
                continue
            configuration = host.raft.membership.current
            spare = [name for name in NAMES if name not in configuration.nodes]
            choices: list[tuple[str, Any]] = [("remove", name) for name in configuration.nodes]
            choices += [("promote", name) for name in configuration.learners] * 2
            choices += [("add_learner", Member(name)) for name in spare[:2]]
            how, argument = self.rng.choice(choices)
            try:
                host.change(how, argument)
            except WalrqError:
                continue
            self.tell(f"{host.name} {how} {argument}")
            self.marks[how] += 1
            if how == "add_learner" and argument.node not in self.hosts:
                self._add(argument.node, group(()))
            self._after(host)

    def _transfer(self) -> None:
        for host in self.hosts.values():
            if host.alive and host.raft.accepts:
                others = [name for name in host.raft.membership.current.voters if name != host.name]
                if others:
                    host.raft.transfer(self.rng.choice(others))
                    self.marks["transfer"] += 1
                    self._after(host)

    # --- what must hold -------------------------------------------------------------------------------------
    def _require(self, holds: bool, name: str, *why: object) -> None:
        if not holds:
            raise Broken(f"{name}: {' '.join(map(str, why))}")

    def _check_sent(self, host: Host, message: Message) -> None:
        disk = host.disk
        self._require(message.term <= disk.state.term, "VoteDurableBeforeSent", "term", message, disk.state)
        if isinstance(message, VoteReply) and message.granted:
            wanted = HardState(message.term, message.receiver)
            self._require(disk.state == wanted, "VoteDurableBeforeSent", message, disk.state)
        if isinstance(message, AppendReply) and message.accepted and message.term == host.raft.term:
            index = message.index
            term = host.raft.log.term_at(index)
            holds = term is None or disk.covers(index, term)
            self._require(holds, "AckedDurable", message, disk.last_index)

    def check(self, host: Host) -> None:
        """Everything that an event at `host` could have broken."""
        raft = host.raft
        term, commit, last, log_term, role = self._seen[host.name]
        self._require(raft.term >= term, "TermMonotonic", host.name, term, raft.term)
        self._require(raft.commit_index >= commit, "CommitMonotonic", host.name, commit, raft.commit_index)
        self._require(raft.commit_index <= raft.last_index, "CommitLeLog", host.name)
        self._require(raft.durable_index <= raft.last_index, "CommitLeLog", "durable", host.name)
        if raft.is_leader and role is Role.LEADER and raft.term == term:
            self._require(raft.last_index >= last, "LeaderAppendOnly", host.name)
        self._seen[host.name] = (raft.term, raft.commit_index, raft.last_index, raft.last_term, raft.role)
        host.check_repair()
        changed = (raft.last_index, raft.last_term, raft.commit_index) != (last, log_term, commit)
        if changed:
            self._check_log(host)
        if raft.commit_index > host.applied:
            self._check_commit(host)
        if changed:
            self._check_group(host)
        if raft.is_leader:
            self._check_leader(host, role is not Role.LEADER or raft.term != term)
        for state in raft.take_reads():
            read = self.reads.pop((host.name, host.lives, state.ticket), None)
            self._require(read is not None, "AppliedBeforeAnswered", "twice", state)
            assert read is not None
            if state.index is not None:
                self.marks["read"] += 1
                self._require(state.index >= read.least, "AppliedBeforeAnswered", host.name, state, read)

    def _check_log(self, host: Host) -> None:
        """Each (index, term) names one entry with one predecessor, everywhere and for ever: so logs match."""
        raft = host.raft
        index = raft.last_index
        while index > raft.log.base_index:
            entry = host.memory[index]
            self._require(
                entry.term == raft.log.term_at(index), "LogMatching", host.name, index, "body of another term"
            )
            self._require(entry.term >= (raft.log.term_at(index - 1) or 0), "PrevTermValid", host.name, index)
            known = self.entries.get((index, entry.term))
            mine = (raft.log.term_at(index - 1), entry)
            if known is not None:
                self._require(known == mine, "LogMatching", host.name, index, known, mine)
                break
            self.entries[index, entry.term] = mine
            if entry.kind is Kind.CONFIGURATION:
                self._check_configuration(host, index, entry)
            index -= 1

    def _check_configuration(self, host: Host, index: int, entry: Entry) -> None:
        new = set(Configuration.decode(entry.body).voters)
        old = set(host.raft.membership.at(index - 1).voters)
        self._require(len(new ^ old) <= 1, "QuorumOverlap", old, new)

    def _check_group(self, host: Host) -> None:
        """What is in effect follows from the log, and from nothing else."""
        raft = host.raft
        if not raft.membership.current.voters:
            return
        commit = raft.commit_index
        index, voters = max((pair for pair in self.groups.items() if pair[0] <= commit), default=(0, None))
        for later in range(max(commit, raft.log.base_index) + 1, raft.last_index + 1):
            if host.memory[later].kind is Kind.CONFIGURATION:
                index, voters = later, set(Configuration.decode(host.memory[later].body).voters)
        if voters is not None:
            seen = set(raft.membership.current.voters)
            self._require(seen == voters, "ConfigFromSnapshotOrLog", host.name, index, seen, voters)

    def _check_leader(self, host: Host, fresh: bool) -> None:
        raft = host.raft
        lead = raft.lead
        assert lead is not None
        if fresh:
            first = self.leaders.setdefault(raft.term, host.name)
            self._require(first == host.name, "ElectionSafety", raft.term, first, host.name)
            self._require(host.disk.state == HardState(raft.term, host.name), "VoteDurableBeforeSent", host.name)
            last = max(self.committed, default=0)
            if last > raft.log.base_index:
                holds = raft.log.matches(last, self.committed[last].term)
                self._require(holds, "LeaderCompleteness", host.name, "lacks", last)
            self._matches[host.name] = {}
            self.marks["leader"] += 1
            self.tell(f"{host.name} leads in term {raft.term}")
        for node, progress in lead.progress.items():
            self._require(progress.match < progress.next, "NextGtMatch", host.name, node, progress)
            self._require(progress.match <= raft.last_index, "MatchLeLeaderLog", host.name, node, progress)
            session, match = self._matches[host.name].get(node, (0, 0))
            self._require(progress.match >= match or progress.session > session, "MatchMonotonic", host.name, node)
        self._matches[host.name] = {node: (p.session, p.match) for node, p in lead.progress.items()}

    def _check_commit(self, host: Host) -> None:
        raft = host.raft
        for index in range(host.applied + 1, raft.commit_index + 1):
            entry = host.memory[index]
            known = self.committed.get(index)
            if known is not None:
                self._require(known == entry, "StateMachineSafety", host.name, index, known, entry)
                continue
            self.committed[index] = entry
            if entry.kind is Kind.CONFIGURATION:
                self.groups[index] = set(Configuration.decode(entry.body).voters)
            self.digests[index] = chained(self.digests[index - 1], entry)
            self._check_quorum(host, index, entry)
        host.apply()
        self._require(host.digest == self.digests[host.applied], "StateMachineSafety", host.name, host.applied)

    def _check_quorum(self, host: Host, index: int, entry: Entry) -> None:
        """The first to see an entry committed is its leader: then a majority of the voters has it on their disks."""
        voters = host.raft.membership.current.voters
        holders = []
        for name in voters:
            other = self.hosts[name]
            if other.disk.covers(index, entry.term) or (index, entry.term) in other.lost:
                holders.append(name)
        self._require(len(holders) >= majority(len(voters)), "AckedOnQuorum", index, holders, sorted(voters))

    # --- progress -------------------------------------------------------------------------------------------
    def core_of(self) -> set[str]:
        """Nodes whose being well must be enough: a majority in every configuration that anybody believes in."""
        configurations = []
        for host in self.hosts.values():
            if not host.alive:
                self._restart(host)
        for host in self.hosts.values():
            configurations.append(set(host.raft.membership.current.voters))
        names = sorted(self.hosts)
        self.rng.shuffle(names)
        whole = {name for name in names if not self.hosts[name].damaged}

        def is_enough(core: set[str]) -> bool:
            return all(len(voters & core & whole) >= majority(len(voters)) for voters in configurations if voters)

        core: set[str] = set(names)
        if not is_enough(core):
            return set()
        for name in names:
            if is_enough(core - {name}):
                core = core - {name}
        return core

    def check_liveness(self) -> None:
        """A majority is healed, the rest is not: a leader, a commit and a read must follow."""
        core = self.core_of()
        if not core:
            # A group of two with one damaged disk, after others left it.
            self.marks["hopeless"] += 1
            return
        names = list(self.hosts)
        # The others may still be heard by the core, or hear it, or neither: they must not be able to disturb it.
        one_way = self.rng.choice(("none", "in", "out"))
        self.blocked = {
            (a, b)
            for a in names
            for b in names
            if (a in core) != (b in core)
            and not (one_way == "in" and b in core)
            and not (one_way == "out" and a in core)
        }
        self.stuck = set(names) - core
        self.options = attrs.evolve(
            self.options, drop=0.0, double=0.0, slow_link=0.0, faults=0.0001, members=False, write=(1, 20)
        )
        self._heap = [event for event in self._heap if event[2] not in (self._nemesis, self._client)]
        heapq.heapify(self._heap)
        self.tell(f"liveness: core {sorted(core)}, others {one_way}")
        deadline = self.now + LIVENESS_TICKS * TICK
        wanted: int | None = None
        ticket: int | None = None
        while self.now < deadline:
            self.step()
            leader = next((h for n, h in self.hosts.items() if n in core and h.alive and h.raft.accepts), None)
            if leader is None:
                continue
            if wanted is None or wanted > leader.raft.last_index:
                wanted = leader.propose(b"live %d" % next(self._numbers))
                self._after(leader)
            elif leader.raft.commit_index >= wanted:
                if ticket is None:
                    ticket = self.marks["read"]
                    self._read(self.hosts[self.rng.choice(sorted(core))])
                elif self.marks["read"] > ticket:
                    return
                elif not any(name in core and self.hosts[name].lives == life for name, life, _ in self.reads):
                    ticket = None
        raise Broken(f"Drains: no leader, commit and read within {LIVENESS_TICKS} ticks; core {sorted(core)}")


def failure(seed: int, events: int = EVENTS) -> str | None:
    """What breaks in the world of that seed, with the command that repeats it; None when nothing does."""
    world = World(seed)
    try:
        world.run(events)
    except (AssertionError, WalrqError, LookupError) as error:
        # All of these are findings: the core raises nothing at what its own kind sends.
        return f"{type(error).__name__}: {error}\nrepeat: python -m tests.raft.world --seed {seed} --events {events}"
    return None


def main() -> int:
    """Run from a shell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--events", type=int, default=EVENTS)
    arguments = parser.parse_args()
    if arguments.seed is not None:
        world = World(arguments.seed, keep_story=True)
        try:
            world.run(arguments.events)
        finally:
            print("\n".join(world.story))
            print(world.options, dict(world.marks))
        return 0
    marks: Counter[str] = Counter()
    for seed in range(arguments.start, arguments.start + arguments.seeds):
        world = World(seed)
        try:
            world.run(arguments.events)
        except Exception as error:
            print(f"{type(error).__name__}: {error}\nrepeat: python -m tests.raft.world --seed {seed}")
            raise
        marks.update(dict.fromkeys(world.marks, 1))
    print(f"{arguments.seeds} worlds, seen in how many:", dict(marks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
