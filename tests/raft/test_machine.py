"""Hypothesis chooses what happens to three cores, message by message; what it finds it makes short.

The invariants are those of the worlds; here the order is not drawn from a distribution but searched, and a failure is
a list of a few steps.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.raft.hosts import Host
from tests.raft.world import Options, World
from walrq.errors import WalrqError
from walrq.raft.messages import Message, decode, encode

OPTIONS = Options(nodes=3, drop=0, double=0, slow_link=0, faults=1, write=(1, 1), members=True)
names = st.sampled_from("abc")


class Table(World):
    """A world whose messages lie on a table, and whose writes end when somebody says so."""

    def __init__(self) -> None:
        super().__init__(0, OPTIONS)
        self.wires: list[bytes] = []

    def _deliver(self, message: Message) -> None:
        self.wires.append(encode(message))

    def after(self, host: Host) -> None:
        """An input was given."""
        self._after(host)

    def hand_over(self, data: bytes) -> None:
        """A message arrives."""
        self._receive(data)

    def wake(self, host: Host) -> None:
        """A new life."""
        self._restart(host)

    def ask(self, host: Host) -> None:
        """A read."""
        self._read(host)


class Cores(RuleBasedStateMachine):
    """Three cores."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Table()

    def _alive(self, name: str) -> Host | None:
        host = self.table.hosts[name]
        return host if host.alive else None

    @rule(name=names, times=st.sampled_from([1, 6, 11]))
    def time_passes(self, name: str, times: int) -> None:
        """At one node."""
        for _ in range(times):
            if host := self._alive(name):
                host.raft.tick()
                self.table.after(host)

    @precondition(lambda self: self.table.wires)
    @rule(data=st.data(), keep=st.booleans())
    def a_message_arrives(self, data: st.DataObject, keep: bool) -> None:
        """Any of them, and perhaps not for the last time."""
        at = data.draw(st.integers(0, len(self.table.wires) - 1))
        self.table.hand_over(self.table.wires[at] if keep else self.table.wires.pop(at))

    @precondition(lambda self: self.table.wires)
    @rule()
    def everything_is_lost(self) -> None:
        """What is under way."""
        self.table.wires.clear()

    @rule(name=names, without=st.sampled_from(["", "a", "b", "c"]))
    def a_node_is_elected(self, name: str, without: str) -> None:
        """If it can be: the others gave up on their leader, and one of them may not be reached."""
        for other in self.table.hosts:
            if host := self._alive(other):
                for _ in range(11 if other == name else 5):
                    host.raft.tick()
                    self.table.after(host)
        self.messages_flow(6, without)

    @rule(name=names, count=st.integers(1, 3), without=st.sampled_from(["", "a", "b", "c"]))
    def work_is_done(self, name: str, count: int, without: str) -> None:
        """Commands, and what follows from them."""
        for _ in range(count):
            self.a_command_is_proposed(name)
        self.messages_flow(3, without)

    @rule(rounds=st.sampled_from([1, 2, 4, 20]), without=st.sampled_from(["", "a", "b", "c"]))
    def messages_flow(self, rounds: int, without: str) -> None:
        """In order, writes end; one node may be left out."""
        for _ in range(rounds):
            wires, self.table.wires = self.table.wires, []
            for data in wires:
                if without not in (decode(data).receiver, decode(data).sender):
                    self.table.hand_over(data)
            for name in self.table.hosts:
                if name != without:
                    self._end_write(name)

    def _end_write(self, name: str) -> None:
        host = self._alive(name)
        if host is not None and host.writing is not None:
            host.end_write()
            self.table.after(host)

    @rule(name=names)
    def a_write_ends(self, name: str) -> None:
        """What waited for it leaves."""
        self._end_write(name)

    @rule(name=names)
    def a_command_is_proposed(self, name: str) -> None:
        """At a leader."""
        host = self._alive(name)
        if host is not None and host.raft.accepts:
            host.propose(b"%d" % host.raft.last_index)
            self.table.after(host)

    @rule(name=names, steps=st.integers(0, 4), back=st.booleans())
    def a_node_crashes(self, name: str, steps: int, back: bool) -> None:
        """With a part of its write on the disk."""
        if host := self._alive(name):
            host.crash(steps)
            if back:
                self.table.wake(host)

    @rule()
    def all_come_back(self) -> None:
        """Those that are down."""
        for host in self.table.hosts.values():
            if not host.alive:
                self.table.wake(host)

    @rule(name=names, keep=st.integers(0, 2))
    def a_snapshot_is_taken(self, name: str, keep: int) -> None:
        """Of what is applied."""
        if (host := self._alive(name)) and host.snapshot(keep):
            self.table.after(host)

    @rule(name=names, other=names)
    def a_node_is_removed(self, name: str, other: str) -> None:
        """Or not, when that is refused."""
        if host := self._alive(name):
            try:
                host.change("remove", other)
            except WalrqError:
                return
            self.table.after(host)

    @rule(name=names, other=names)
    def leadership_is_handed_over(self, name: str, other: str) -> None:
        """Or not, when that is refused."""
        if host := self._alive(name):
            try:
                host.raft.transfer(other)
            except WalrqError:
                return
            self.table.after(host)

    @rule(name=names)
    def a_read_is_asked(self, name: str) -> None:
        """Anywhere."""
        if host := self._alive(name):
            self.table.ask(host)


TestCores = Cores.TestCase
TestCores.settings = settings(max_examples=150, stateful_step_count=50)
