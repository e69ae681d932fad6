"""What consensus promises, checked after every event at the node where it happened.

`Consensus` knows of every entry that was ever written anywhere, of every office, and what was committed; one look at
a node costs a few comparisons. The invariants have the names that docs/consensus.md lists.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from typing import Protocol

import attrs

from walrq.raft.core import Raft
from walrq.raft.entries import Kind
from walrq.raft.membership import Configuration
from walrq.raft.messages import AppendReply, Message, VoteReply
from walrq.raft.quorum import majority
from walrq.simulator.promises import promise
from walrq.storage.record import Record


@attrs.define(eq=False)
class Stored:
    """What a node's disk durably holds, as far as its process was told: a mirror that survives crashes.

    Attributes:
        terms: of entries, by index.
        covered: the newest snapshot covers all up to here.
        lost: entries (index, term) that damage took; they were there when they counted.
    """

    terms: dict[int, int] = attrs.field(factory=dict)
    covered: int = 0
    lost: set[tuple[int, int]] = attrs.field(factory=set)
    state: tuple[int, str | None] = (0, None)

    def cut(self, from_index: int) -> None:
        """Entries from there on are replaced."""
        for index in [index for index in self.terms if index >= from_index]:
            del self.terms[index]

    def holds(self, index: int, term: int) -> bool:
        """Whether an entry is there, by itself or in a snapshot."""
        return index <= self.covered or self.terms.get(index) == term or (index, term) in self.lost


class Member(Protocol):
    """A node as this module sees it."""

    name: str
    stored: Stored

    @property
    def is_weak(self) -> bool: ...


@attrs.define
class _Seen:
    """What a node showed last, in its present life."""

    term: int = 0
    commit: int = 0
    last: int = 0
    leads: bool = False
    matches: dict[str, tuple[int, int]] = attrs.field(factory=dict)


class Consensus:
    """See the module."""

    def __init__(
        self,
        members: Mapping[str, Member],
        mark: Callable[[str], None],
        say: Callable[[str], None],
        committed: Mapping[int, Record],
    ) -> None:
        self._members = members
        self._mark = mark
        self._say = say
        self._committed = committed
        # The one leader of each term.
        self.leaders: dict[int, str] = {}
        # Every entry ever appended: (index, term) -> (term of the one before, kind, body).
        self._entries: dict[tuple[int, int], tuple[int, int, bytes]] = {}
        self._configurations: dict[int, Configuration] = {}
        # In which term each committed entry was seen to be that, from the first one on.
        self._commit_terms: list[int] = []
        self._seen: dict[str, _Seen] = {}
        self.offices = 0

    # --- what is written ------------------------------------------------------------------------------------
    def appended(self, node: Member, raft: Raft, records: list[Record], cut_from: int | None) -> None:
        """A node is about to write: its log and all others agree wherever they have an entry in common."""
        if cut_from is not None:
            self._mark("entry cut")
            for index, term in node.stored.terms.items():
                gone = index >= cut_from and index in self._committed and self._committed[index].term == term
                promise("CommitStable", not gone or raft.log.term_at(index) == term, node.name, "cuts", index, term)
        for record in records:
            index, term = record.index, record.term
            before = raft.log.term_at(index - 1)
            if before is None:
                continue
            mine = (before, int(record.kind), record.body)
            known = self._entries.setdefault((index, term), mine)
            promise("LogMatching", known == mine, node.name, index, term, known, mine)
            promise("PrevTermValid", before <= term, node.name, index, before, term)
            if record.kind == Kind.CONFIGURATION:
                self._configuration(node, raft, record)

    def entry(self, index: int, term: int) -> Record | None:
        """What was written there by anybody; None = by nobody."""
        known = self._entries.get((index, term))
        if known is None:
            return None
        _, kind, body = known
        return Record(index, term, Kind(kind), body)

    def _configuration(self, node: Member, raft: Raft, record: Record) -> None:
        new = set(Configuration.decode(record.body).voters)
        old: set[str] = set()
        for index, configuration in raft.membership.history:
            if index < record.index:
                old = set(configuration.voters)
        # A node that joins knows of no group before its first.
        promise("QuorumOverlap", not old or len(new ^ old) <= 1, node.name, record.index, old, new)

    # --- what is said ---------------------------------------------------------------------------------------
    def said(self, node: Member, raft: Raft, message: Message) -> None:
        """A message leaves: nothing in it that a crash could undo."""
        term, vote = node.stored.state
        promise("VoteDurableBeforeSent", message.term <= term, node.name, message, term)
        if isinstance(message, VoteReply) and message.granted:
            promise("VoteDurableBeforeSent", (term, vote) == (message.term, message.receiver), message, term, vote)
        elif isinstance(message, AppendReply) and message.accepted and message.term == raft.term:
            wanted = raft.log.term_at(message.index)
            stored = node.stored
            held = wanted is None or message.index <= stored.covered or stored.terms.get(message.index) == wanted
            promise("AckedDurable", held, node.name, message)

    # --- after each event -----------------------------------------------------------------------------------
    def forget(self, node: Member) -> None:
        """A process ended: it may know less of what is committed when it comes again, not less of terms."""
        self._seen[node.name] = _Seen(term=node.stored.state[0])

    def withdrawn(self, node: Member, raft: Raft) -> None:
        """A node that is alone had no room for its newest entries: they never were."""
        self._seen[node.name].last = raft.last_index
        for index in range(raft.last_index + 1, raft.last_index + 3):
            self._entries.pop((index, raft.term), None)

    def check(self, node: Member, raft: Raft) -> None:
        """Everything that an event at `node` could have broken."""
        seen = self._seen.get(node.name)
        if seen is None:
            seen = self._seen[node.name] = _Seen()
        term, commit, last = raft.term, raft.commit_index, raft.last_index
        promise("TermMonotonic", term >= seen.term, node.name, seen.term, term)
        promise("CommitMonotonic", commit >= seen.commit, node.name, seen.commit, commit)
        promise("CommitLeLog", commit <= last and raft.durable_index <= last, node.name, commit, last)
        lead = raft.lead
        if lead is not None:
            if not seen.leads or term != seen.term:
                self._office(node, raft)
                seen.matches = {}
            else:
                promise("LeaderAppendOnly", last >= seen.last, node.name, seen.last, last)
            matches = {}
            for peer, progress in lead.progress.items():
                match = progress.match
                promise("NextGtMatch", match < progress.next, node.name, peer, progress)
                promise("MatchLeLeaderLog", match <= last, node.name, peer, progress)
                session, before = seen.matches.get(peer, (0, 0))
                promise("MatchMonotonic", match >= before or progress.session > session, node.name, peer)
                matches[peer] = (progress.session, match)
            seen.matches = matches
        seen.term, seen.commit, seen.last, seen.leads = term, commit, last, lead is not None

    def _office(self, node: Member, raft: Raft) -> None:
        first = self.leaders.setdefault(raft.term, node.name)
        promise("ElectionSafety", first == node.name, raft.term, first, node.name)
        promise("VoteDurableBeforeSent", node.stored.state == (raft.term, node.name), node.name, node.stored.state)
        # A leader that nobody needs any more may take office late, without what its successors committed.
        last = bisect.bisect_left(self._commit_terms, raft.term)
        if last > raft.log.base_index:
            held = raft.log.term_at(last) == self._committed[last].term
            promise("LeaderCompleteness", held, node.name, "lacks the committed entry", last)
        else:
            promise("LeaderCompleteness", last <= raft.last_index, node.name, "lacks the committed entry", last)
        self.offices += 1
        if self.offices > 1:
            self._mark("leader changed")
        self._say(f"{node.name} leads in term {raft.term}")

    def committed(self, node: Member, raft: Raft, record: Record) -> None:
        """The first to see an entry committed: a majority of the voters has it on their disks."""
        self._commit_terms.append(max([raft.term, *self._commit_terms[-1:]]))
        if node.is_weak:
            return
        index, term = record.index, record.term
        # It is seen a little after it was decided: a change of the group may have been appended meanwhile.
        changes = raft.membership.history
        before = [group for at, group in changes if at < index] or [changes[0][1]]
        groups = [before[-1], *(group for at, group in changes if at >= index)]
        holders = {name for name, member in self._members.items() if member.stored.holds(index, term)}
        enough = any(len(holders & set(group.voters)) >= majority(len(group.voters)) for group in groups)
        promise("AckedOnQuorum", enough, node.name, index, sorted(holders), [sorted(group.voters) for group in groups])

    def known(self, record: Record) -> bool:
        """Whether somebody's log was seen to get this entry."""
        before = self._entries.get((record.index, record.term))
        return before is not None and before[1:] == (int(record.kind), record.body)
