"""Who belongs to the group: configurations, and the history of them that the log makes.

A configuration takes effect on a node the moment its entry is appended there, and falls back to the one before when
that entry is cut. One voter changes at a time, so that any majority of the old and any of the new share a voter
(inv: QuorumOverlap). What makes that true in all cases is checked by the leader before it appends one
(`core.Raft.change`): no other change is in flight, and an entry of its own term is committed
(Ongaro, "bug in single-server membership changes", raft-dev, 10 July 2015; Raft thesis 4.1 - 4.2).

A new node joins as a learner: it receives the log and counts for nothing. When it has caught up it is promoted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence

import attrs
import cbor2

from walrq.errors import InvalidArgument, RemoteProtocolError
from walrq.limits import RAFT_MEMBERS_MAX, RAFT_NODE_ID_BYTES_MAX

FORMAT = 1


@attrs.frozen
class Member:
    """A node as the group knows it.

    Attributes:
        node: its name, unique for ever.
        address: where its peers reach it; the caller's.
        disk_uuid: the mark of its data directory; the caller's. A node that comes with another one lost what it
            promised, and is a new node.
    """

    node: str
    address: str = ""
    disk_uuid: bytes = b""


def mark_of(node: str) -> bytes:
    """Eight bytes that stand for a node's name where names would be too long."""
    return hashlib.sha256(node.encode()).digest()[:8]


def _by_name(members: Iterable[Member]) -> dict[str, Member]:
    return {member.node: member for member in sorted(members, key=lambda member: member.node)}


@attrs.frozen
class Configuration:
    """Voters and learners, each by name. No node is both."""

    voters: Mapping[str, Member] = attrs.field(factory=dict)
    learners: Mapping[str, Member] = attrs.field(factory=dict)

    @classmethod
    def of(cls, voters: Collection[str], learners: Collection[str] = ()) -> Configuration:
        """A configuration of bare names."""
        return cls(_by_name(Member(node) for node in voters), _by_name(Member(node) for node in learners))

    @property
    def nodes(self) -> tuple[str, ...]:
        """Everybody who receives the log."""
        return (*self.voters, *self.learners)

    def with_learner(self, member: Member) -> Configuration:
        """This and a new learner.

        Raises:
            InvalidArgument: a node of that name is there already, or the group is full.
        """
        if not 1 <= len(member.node.encode()) <= RAFT_NODE_ID_BYTES_MAX:
            raise InvalidArgument(
                f"node is {len(member.node.encode())} bytes, allowed are 1 to {RAFT_NODE_ID_BYTES_MAX}", field="node"
            )
        if member.node in self.voters or member.node in self.learners:
            raise InvalidArgument(f"node {member.node!r} is in the group already", field="node")
        if len(self.voters) + len(self.learners) >= RAFT_MEMBERS_MAX:
            raise InvalidArgument(
                f"the group has {RAFT_MEMBERS_MAX} nodes, which is the limit", field="node", limit=RAFT_MEMBERS_MAX
            )
        return Configuration(self.voters, _by_name([*self.learners.values(), member]))

    def bound(self, members: Iterable[Member]) -> Configuration:
        """This with what is now known of some nodes; whether they vote stays as it is, strangers are ignored."""
        known = {member.node: member for member in members}
        return Configuration(
            {node: known.get(node, member) for node, member in self.voters.items()},
            {node: known.get(node, member) for node, member in self.learners.items()},
        )

    def promoted(self, node: str) -> Configuration:
        """This with a learner made a voter.

        Raises:
            InvalidArgument: it is no learner.
        """
        member = self.learners.get(node)
        if member is None:
            raise InvalidArgument(f"node {node!r} is not a learner of the group", field="node")
        return Configuration(
            _by_name([*self.voters.values(), member]), {name: m for name, m in self.learners.items() if name != node}
        )

    def without(self, node: str) -> Configuration:
        """This without a node.

        Raises:
            InvalidArgument: it does not belong to the group, or it is the last voter.
        """
        if node not in self.voters and node not in self.learners:
            names = ", ".join((*self.voters, *self.learners))
            raise InvalidArgument(f"node {node!r} is not in the group: {names}", field="node")
        if set(self.voters) == {node}:
            raise InvalidArgument(f"node {node!r} is the last voter and cannot be removed", field="node")
        return Configuration(
            {name: m for name, m in self.voters.items() if name != node},
            {name: m for name, m in self.learners.items() if name != node},
        )

    def encode(self) -> bytes:
        """The body of a configuration entry: [format, [voter, ...], [learner, ...]], sorted by name."""
        return cbor2.dumps(
            [
                FORMAT,
                [[m.node, m.address, m.disk_uuid] for m in self.voters.values()],
                [[m.node, m.address, m.disk_uuid] for m in self.learners.values()],
            ]
        )

    @classmethod
    def decode(cls, body: bytes) -> Configuration:
        """What `encode` made.

        Raises:
            RemoteProtocolError: these bytes are no configuration.
        """
        try:
            parts = cbor2.loads(body)
        except (cbor2.CBORDecodeError, ValueError) as error:
            raise RemoteProtocolError(f"configuration: {error}") from error
        if not (isinstance(parts, list) and len(parts) == 3 and parts[0] == FORMAT):
            raise RemoteProtocolError(f"configuration: not an array of format {FORMAT}, voters, learners")
        voters, learners = _members(parts[1], "voters"), _members(parts[2], "learners")
        if not voters:
            raise RemoteProtocolError("configuration: voters is empty")
        if twice := set(voters) & set(learners):
            raise RemoteProtocolError(f"configuration: {min(twice)!r} is both voter and learner")
        return cls(voters, learners)


def _members(value: object, field: str) -> dict[str, Member]:
    if not isinstance(value, list) or len(value) > RAFT_MEMBERS_MAX:
        raise RemoteProtocolError(f"configuration: {field} is not an array of at most {RAFT_MEMBERS_MAX}")
    members = []
    for item in value:
        match item:
            case [str(node), str(address), bytes(disk_uuid)] if 1 <= len(node.encode()) <= RAFT_NODE_ID_BYTES_MAX:
                members.append(Member(node, address, disk_uuid))
            case _:
                raise RemoteProtocolError(f"configuration: {field} has an item that is no [node, address, disk uuid]")
    found = _by_name(members)
    if len(found) != len(members):
        raise RemoteProtocolError(f"configuration: {field} names a node twice")
    return found


class Membership:
    """The configurations in the log, by index: the last one is in effect, whether committed or not.

    Invariant: the first one is committed (it stems from the start, a snapshot, or a committed entry).
    """

    def __init__(self, index: int, configuration: Configuration) -> None:
        self._history: list[tuple[int, Configuration]] = [(index, configuration)]
        self.current = configuration

    @property
    def index(self) -> int:
        """The entry that made the current configuration."""
        return self._history[-1][0]

    def at(self, index: int) -> Configuration:
        """The configuration in effect with the entry at `index`: what a snapshot of that index carries."""
        for first, configuration in reversed(self._history):
            if first <= index:
                return configuration
        raise AssertionError((index, self._history))

    def may_lead(self, node: str, commit_index: int) -> bool:
        """Whether a node may stand: it is a voter, or its removal is not known to be committed.

        The entry that removes it may be nowhere but in its own log, which then only it can spread (thesis 4.2.2). It
        stands without a vote of its own. Its promotion need not be known to be committed either.
        """
        later = [configuration for index, configuration in self._history if index > commit_index]
        return any(node in configuration.voters for configuration in (self.at(commit_index), *later))

    def append(self, index: int, configuration: Configuration) -> None:
        """An entry with a configuration was appended."""
        assert index > self.index, (index, self.index)
        self._history.append((index, configuration))
        self.current = configuration

    def truncate(self, from_index: int) -> None:
        """Entries from there on are gone: fall back."""
        while self._history[-1][0] >= from_index:
            self._history.pop()
            assert self._history, "the first configuration is committed"
        self.current = self._history[-1][1]

    def compact(self, index: int) -> None:
        """Forget what came before the one in effect at `index`."""
        while len(self._history) > 1 and self._history[1][0] <= index:
            self._history.pop(0)

    def reset(self, index: int, configuration: Configuration) -> None:
        """Start over from a snapshot's configuration. inv: ConfigFromSnapshotOrLog"""
        self._history = [(index, configuration)]
        self.current = configuration

    @property
    def history(self) -> Sequence[tuple[int, Configuration]]:
        """(index, configuration), ascending."""
        return tuple(self._history)
