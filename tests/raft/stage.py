"""Plays the scenario files beside this one: commands, `----`, and what they print.

    python -m tests.raft.stage FILE ...             play, and show where it differs
    python -m tests.raft.stage --rewrite FILE ...   put what it prints now in place of what it printed then

A file is a list of blocks, separated by empty lines. A block is a comment (`# ...`), or command lines, a line `----`,
and the expected output. Nothing happens by itself but writes (unless a disk is `slow`) and the leaving of messages:
messages lie on their links until they are delivered. Links keep their order.

    group a b c [learners d] [no-pre-vote] [singly] nodes with empty logs; singly: one entry an append
    given a term 3 log 1 1 2 [vote b]               ... or as their disks left them, instead; then `group` starts them
    timeout a           ticks until it stands           tick a [n]          n ticks
    campaign a          stands at once, unasked         propose a x y       entries at a leader
    run                 deliver until nothing moves     quiet               the same, without telling
    deliver a b [n]     the oldest (n) messages a -> b  lose a b [n]        drops them
    double a b          the oldest message a -> b comes once more, behind the others
    cut a b / c         no messages between the sides   block a b           none from a to b
    heal                all links are open              slow a / fast a     its writes end by `written a`
    crash a [n]         with the first n steps of the write under way      restart a
    add a d / promote a d / remove a d              changes of the group, at leader a
    transfer a b        read a          snapshot a          state [a ...]
    recovering a        repaired a      links               what lies on them
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tests.raft.hosts import Host, group
from tests.scenarios import Scenarios
from walrq.errors import WalrqError
from walrq.raft.election import Timing
from walrq.raft.entries import Entry, HardState, Kind
from walrq.raft.leader import Bounds
from walrq.raft.membership import Configuration, Member
from walrq.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    Message,
    PreVote,
    PreVoteReply,
    ReadReply,
    ReadRequest,
    SnapshotChunk,
    SnapshotOffer,
    SnapshotReply,
    TimeoutNow,
    Vote,
    VoteReply,
)
from walrq.raft.roles import Role

HERE = Path(__file__).resolve().parent / "scenarios"
TIMING = Timing(election=10, spread=10, heartbeat=2, stall=20)
ROUNDS_MAX = 2_000
BROKEN = "BROKEN:"


def said(message: Message) -> str:
    """A message on one line."""
    match message:
        case PreVote():
            what = f"pre-vote? log ends {message.last_term}.{message.last_index}"
        case PreVoteReply():
            what = f"pre-vote {'yes' if message.granted else 'no'}"
        case Vote():
            ending = f"log ends {message.last_term}.{message.last_index}"
            what = f"vote? {ending}{', for a transfer' if message.transfer else ''}"
        case VoteReply():
            what = f"vote {'yes' if message.granted else 'no'}"
        case Append():
            entries = " ".join(f"{e.term}.{i}" for i, e in enumerate(message.entries, message.prev_index + 1))
            what = f"append after {message.prev_term}.{message.prev_index}: {entries or 'nothing'}, "
            what += f"commit {message.commit}"
        case AppendReply():
            what = f"has up to {message.index}"
            if not message.accepted:
                what = f"lacks {message.index}, may agree at {message.hint_term}.{message.hint_index}"
            if message.recovering:
                what += ", recovering"
        case Heartbeat():
            what = f"beat {message.round}, commit {message.commit}"
        case HeartbeatReply():
            what = f"beat {message.round} heard"
        case TimeoutNow():
            what = "stand now"
        case ReadRequest():
            what = f"read {message.ticket}?"
        case ReadReply():
            what = f"read {message.ticket} at {message.index}"
        case SnapshotOffer():
            what = f"snapshot {message.stream} of {message.snapshot_term}.{message.index}?"
        case SnapshotChunk():
            size = f"{len(message.data)} bytes at {message.offset}"
            what = f"snapshot {message.stream}: {size}{', the last' if message.is_last else ''}"
        case SnapshotReply():
            what = f"snapshot {message.stream} {message.status.name.lower()} {message.offset}"
        case _:
            raise AssertionError(message)
    return f"{message.sender} -> {message.receiver}  term {message.term}: {what}"


class Stage:
    """One scenario under way."""

    def __init__(self) -> None:
        self.hosts: dict[str, Host] = {}
        self.links: dict[tuple[str, str], deque[Message]] = {}
        self.blocked: set[tuple[str, str]] = set()
        self.slow: set[str] = set()
        self.out: list[str] = []
        self._given: dict[str, tuple[HardState, list[int]]] = {}
        self._tickets = 0
        self._roles: dict[str, tuple[str, int]] = {}
        self._first: Configuration = group(())
        self._pre_vote = True
        self._append_entries = 8

    def play(self, line: str) -> list[str]:
        """Do one command; what it prints."""
        self.out = []
        name, *arguments = line.split()
        command: Callable[..., None] = getattr(self, f"do_{name.replace('-', '_')}")
        try:
            command(*arguments)
        except WalrqError as error:
            self.out.append(f"{type(error).__name__}: {error.text}")
        except (AssertionError, LookupError) as error:
            # A mistake of the scenario, or of the core; never expected output.
            self.out.append(f"{BROKEN} {type(error).__name__} {error}")
        self._settle()
        return self.out

    # --- what happens by itself -----------------------------------------------------------------------------
    def _settle(self) -> None:
        moved = True
        while moved:
            moved = False
            for name in sorted(self.hosts):
                host = self.hosts[name]
                if host.alive:
                    moved |= self._settle_one(host)
        for name in sorted(self.hosts):
            self._tell_role(self.hosts[name])

    def _settle_one(self, host: Host) -> bool:
        host.feed()
        sent = host.messages()
        for message in sent:
            if (message.sender, message.receiver) not in self.blocked:
                self.links.setdefault((message.sender, message.receiver), deque()).append(message)
        for state in host.raft.take_reads():
            answer = "cannot be answered" if state.index is None else f"may be answered once {state.index} is applied"
            self.out.append(f"{host.name}: read {state.ticket} {answer}")
        host.apply()
        wrote = False
        if host.writing is None:
            wrote = host.begin_write()
        if host.writing is not None and host.name not in self.slow:
            host.end_write()
            wrote = True
        return bool(sent) or (wrote and host.name not in self.slow)

    def _tell_role(self, host: Host) -> None:
        if not host.alive:
            return
        now = (host.raft.role.value, host.raft.term)
        before = self._roles.get(host.name, ("follower", 0))
        self._roles[host.name] = now
        if now[0] != before[0]:
            self.out.append(f"{host.name} is {now[0]} in term {now[1]}")

    def _take(self, sender: str, receiver: str) -> Message:
        return self.links[sender, receiver].popleft()

    def _hand(self, message: Message, tell: bool) -> None:
        host = self.hosts.get(message.receiver)
        if host is None or not host.alive:
            return
        if tell:
            self.out.append(said(message))
        host.receive(message)

    # --- commands -------------------------------------------------------------------------------------------
    def do_given(self, name: str, *rest: str) -> None:
        """A node as its disk left it."""
        words = list(rest)
        vote = None
        if "vote" in words:
            at = words.index("vote")
            vote = words[at + 1]
            del words[at : at + 2]
        assert words[0] == "term" and words[2] == "log", rest
        self._given[name] = (HardState(int(words[1]), vote), [int(word) for word in words[3:]])

    def do_group(self, *rest: str) -> None:
        """Start nodes."""
        words = list(rest)
        if "no-pre-vote" in words:
            words.remove("no-pre-vote")
            self._pre_vote = False
        if "singly" in words:
            words.remove("singly")
            self._append_entries = 1
        learners: list[str] = []
        if "learners" in words:
            at = words.index("learners")
            learners = words[at + 1 :]
            del words[at:]
        self._first = group(words, learners)
        for name in [*words, *learners]:
            self._start(name)

    def _start(self, name: str) -> None:
        number = ord(name) - ord("a")
        host = Host(
            name,
            self._first,
            timing=TIMING,
            bounds=Bounds(append_entries=self._append_entries, chunk_bytes=64, snapshot_window_bytes=128),
            pre_vote=self._pre_vote,
            # Each node its own time-out, always the same: 11 ticks for a, 12 for b, ...
            draw=lambda below: number % below,
        )
        if name in self._given:
            host.disk.state, terms = self._given[name]
            for index, term in enumerate(terms, 1):
                host.disk.log[index] = Entry(term, Kind.COMMANDS, f"{term}.{index}".encode())
            host.start()
        self.hosts[name] = host

    def do_tick(self, name: str, times: str = "1") -> None:
        """Time passes at one node."""
        for _ in range(int(times)):
            self.hosts[name].raft.tick()
            self._settle()

    def do_timeout(self, name: str) -> None:
        """Time passes at one node until it stands, for as long as any time-out lasts."""
        raft = self.hosts[name].raft
        for _ in range(TIMING.election + TIMING.spread + 1):
            raft.tick()
            if raft.role is not Role.FOLLOWER and not raft._countdown.elapsed:
                break
        else:
            self.out.append(f"{name} does not stand")

    def do_campaign(self, name: str) -> None:
        """It stands."""
        self.hosts[name].raft.campaign()

    def do_propose(self, name: str, *bodies: str) -> None:
        """Entries at a leader."""
        for body in bodies:
            self.hosts[name].propose(body.encode())

    def do_run(self, tell: bool = True) -> None:
        """Deliver, link by link, until nothing moves."""
        for _ in range(ROUNDS_MAX):
            self._settle()
            waiting = [link for link in sorted(self.links) if self.links[link]]
            if not waiting:
                return
            for link in waiting:
                for _ in range(len(self.links[link])):
                    self._hand(self._take(*link), tell)
        raise AssertionError(f"something still moves after {ROUNDS_MAX} rounds")

    def do_quiet(self) -> None:
        """Deliver without telling."""
        self.do_run(tell=False)

    def do_deliver(self, sender: str, receiver: str, times: str = "1") -> None:
        """The oldest messages of a link."""
        for _ in range(int(times)):
            self._hand(self._take(sender, receiver), True)
            self._settle()

    def do_lose(self, sender: str, receiver: str, times: str = "1") -> None:
        """They never arrive."""
        for _ in range(int(times)):
            self.out.append(f"lost: {said(self._take(sender, receiver))}")

    def do_double(self, sender: str, receiver: str) -> None:
        """The oldest message comes again, behind the others."""
        self.links[sender, receiver].append(self.links[sender, receiver][0])

    def do_links(self) -> None:
        """What is under way."""
        self.out += [said(message) for link in sorted(self.links) for message in self.links[link]]

    def do_cut(self, *names: str) -> None:
        """Two sides that do not hear each other; what was under way between them is lost."""
        at = names.index("/")
        for one in names[:at]:
            for other in names[at + 1 :]:
                self.do_block(one, other)
                self.do_block(other, one)

    def do_block(self, sender: str, receiver: str) -> None:
        """One direction is dead."""
        self.blocked.add((sender, receiver))
        self.links.pop((sender, receiver), None)

    def do_heal(self) -> None:
        """All links are open."""
        self.blocked.clear()

    def do_slow(self, name: str) -> None:
        """Its writes end when told."""
        self.slow.add(name)

    def do_fast(self, name: str) -> None:
        """Its writes end by themselves."""
        self.slow.discard(name)

    def do_written(self, name: str) -> None:
        """The write under way is durable."""
        self.hosts[name].end_write()

    def do_crash(self, name: str, steps: str = "0") -> None:
        """Power is gone."""
        self.hosts[name].crash(int(steps))
        for link in [link for link in self.links if link[0] == name]:
            del self.links[link]

    def do_restart(self, name: str) -> None:
        """A new life."""
        self.hosts[name].start()
        self._roles[name] = ("follower", 0)

    def do_add(self, leader: str, name: str) -> None:
        """A learner joins."""
        self.hosts[leader].change("add_learner", Member(name))
        if name not in self.hosts:
            self._first = group(())
            self._start(name)

    def do_promote(self, leader: str, name: str) -> None:
        """A learner becomes a voter."""
        self.hosts[leader].change("promote", name)

    def do_remove(self, leader: str, name: str) -> None:
        """A node leaves."""
        self.hosts[leader].change("remove", name)

    def do_transfer(self, leader: str, target: str) -> None:
        """Leadership is handed over."""
        self.hosts[leader].raft.transfer(target)

    def do_read(self, name: str) -> None:
        """A read at a node."""
        self._tickets += 1
        self.hosts[name].raft.read(self._tickets)

    def do_snapshot(self, name: str) -> None:
        """Image what is applied; the log up to there is gone."""
        assert self.hosts[name].snapshot()

    def do_recovering(self, name: str) -> None:
        """Its log is being repaired."""
        self.hosts[name].raft.recovering = True

    def do_repaired(self, name: str) -> None:
        """It is whole again."""
        self.hosts[name].raft.recovering = False

    def do_state(self, *names: str) -> None:
        """Nodes, a line each."""
        for name in names or sorted(self.hosts):
            host = self.hosts[name]
            raft = host.raft
            if not host.alive:
                self.out.append(f"{name} is down")
                continue
            log = [str(raft.log.term_at(index)) for index in range(raft.log.base_index + 1, raft.last_index + 1)]
            base = f"({raft.log.base_term}.{raft.log.base_index}) " if raft.log.base_index else ""
            members = "".join(sorted(raft.membership.current.voters))
            learners = "".join(sorted(raft.membership.current.learners))
            self.out.append(
                f"{name} {raft.role.value} term {raft.term}, log {base}{' '.join(log) or 'empty'}, "
                f"commit {raft.commit_index}, durable {raft.durable_index}, "
                f"group {members}{'+' + learners if learners else ''}, leader {raft.leader or 'unknown'}"
            )


_SCENARIOS = Scenarios(HERE, Stage)
played, difference, main = _SCENARIOS.played, _SCENARIOS.difference, _SCENARIOS.main


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
