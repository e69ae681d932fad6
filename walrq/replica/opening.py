"""What a replica finds at its start: the snapshot, the log behind it, and who belongs to the group.

Nothing but the log and the snapshot says who the members are. Only a first start asks the configuration:

    nothing stored yet   the list of a new cluster becomes the first entry (index 1, term 1, the same bytes on every
                         member); or this node is alone; or it joins and waits
    no list stored       the mark beside term and vote says whether this node was alone; if not, it waits for a leader,
                         who sends the list with the log
"""

from __future__ import annotations

import attrs

from walrq.errors import ConfigError, CorruptRecord, StorageError
from walrq.queues.commands import Stamp, decode_entry, stamp_of
from walrq.queues.image import NOT_RESIDENT, load
from walrq.queues.machine import Machine
from walrq.raft.entries import HardState, Kind, Tail
from walrq.raft.membership import Configuration, Member
from walrq.replica.company import only
from walrq.replica.config import ReplicaConfig
from walrq.replica.recent import Recent
from walrq.storage import hard_state as stored
from walrq.storage.findings import Finding, Verdict
from walrq.storage.record import Record
from walrq.storage.snapshot import SnapshotReader
from walrq.storage.storage import Storage

FIRST_TERM = 1


@attrs.define(eq=False)
class Found:
    """See the module.

    Attributes:
        machine, pages, applied: the state, the keys and hashes of its stored pages, the entry it stands at.
        snapshot_index, snapshot_term: of the newest snapshot; 0: none.
        hard_state: term and vote.
        cluster_id: of the messages between peers.
        configurations: by index, ascending; the first one stems from the snapshot or the beginning.
        runs: stretches of equal term behind the snapshot.
        recent: sizes of these entries; none of them is in memory.
        stamps: (index, stamp) of entries that are not applied.
        log_bytes, commands: of what was applied from the log.
        damaged: entries that this node may have acknowledged are lost: it is to be repaired.
        claimed: (term, index) that the log did not reach beyond before; None: that is not known.
    """

    machine: Machine
    pages: dict[bytes, bytes]
    applied: int
    snapshot_index: int
    snapshot_term: int
    hard_state: HardState
    cluster_id: str
    configurations: list[tuple[int, Configuration]]
    recent: Recent
    runs: list[tuple[int, int]] = attrs.field(factory=list)
    stamps: list[tuple[int, Stamp]] = attrs.field(factory=list)
    log_bytes: int = 0
    commands: int = 0
    damaged: bool = False
    claimed: tuple[int, int] | None = None
    voters: tuple[bytes, ...] = ()

    def tail(self, storage: Storage) -> Tail:
        """The log as consensus needs to know it."""
        # Of an end that cannot be read no term is known: it is one of what was before it, or of later.
        last_index = storage.last_index
        last_term = max(storage.last_term, self.runs[-1][1] if self.runs else self.snapshot_term)
        if self.runs and self.runs[-1][1] != last_term:
            # The last record is damaged; its header is not.
            self.runs.append((last_index, last_term))
        return Tail(last_index, last_term, tuple(self.runs), self.snapshot_index, self.snapshot_term)

    def apply(self, record: Record) -> None:
        """Apply an entry that is known to be committed."""
        if record.kind == Kind.COMMANDS:
            stamp, tagged = decode_entry(record.body)
            self.machine.apply(record.index, stamp, tagged)
            self.commands += len(tagged)
        self.log_bytes += len(record.body)
        self.applied = record.index


def look(storage: Storage, config: ReplicaConfig) -> Found:
    """Read what is stored, and apply what this node alone has decided.

    Raises:
        ConfigError: the list of a new cluster does not name this node.
        StorageError: what is stored belongs to another node, is of a newer version, or cannot be read.
    """
    recovered = storage.recovered
    hard = recovered.hard_state
    if hard is not None and hard.node_id != config.node_id:
        raise StorageError(
            f"the data directory belongs to node {hard.node_id!r}, not to {config.node_id!r}; "
            "start with that node id, or with another directory"
        )
    snapshot = recovered.snapshot
    first = _first_configuration(storage, config, snapshot)
    hard = storage.hard_state
    found = _from_snapshot(config, snapshot)
    found.configurations.append((found.snapshot_index, first))
    found.cluster_id = hard.cluster_id if hard is not None else config.cluster_id
    if storage.needs_repair:
        if _is_fresh(hard) or _was_alone(storage, config, first):
            # Nothing was acknowledged yet; or what it has is all there is.
            storage.repaired()
        else:
            found.damaged = True
            found.claimed = storage.repair_claim
            found.voters = hard.voters if hard is not None else ()
            storage.drop_untrusted()
            if only(config.node_id, first):
                # Who else belongs to the group stood in what was lost: a leader will tell.
                found.configurations = [(found.snapshot_index, Configuration())]
    _read_log(storage, config, found)
    found.hard_state = _term_and_vote(storage, config, found, hard)
    found.machine.take_effects()
    return found


def _first_configuration(storage: Storage, config: ReplicaConfig, snapshot: SnapshotReader | None) -> Configuration:
    """Who belonged to the group at the snapshot, or at the beginning."""
    if snapshot is not None and snapshot.meta:
        return Configuration.decode(snapshot.meta)
    alone = Configuration({config.node_id: Member(config.node_id, config.address, storage.disk_uuid)})
    hard = storage.hard_state
    if hard is not None or snapshot is not None or storage.last_index:
        # No list is known, so it is of a node that began alone, or of one whose list did not come yet, or was lost.
        if hard is None or not hard.group:
            return alone
        lost = storage.needs_repair and not _is_fresh(hard)
        if storage.last_index or lost or config.configuration is None:
            return Configuration()
    wanted = config.configuration
    if wanted is None:
        return alone
    if not wanted.nodes:
        _enter(storage, config, term=0)
        return wanted
    if config.node_id not in wanted.voters:
        raise ConfigError(f"configuration: node {config.node_id!r} is not among the voters of the new cluster")
    if only(config.node_id, wanted):
        return alone
    # inv: VoteDurableBeforeSent: a node that has voted is known as one that did, whatever it has of the log.
    _enter(storage, config, term=FIRST_TERM)
    body = wanted.encode()
    storage.append_batch([Record(1, FIRST_TERM, Kind.CONFIGURATION, body)], may_use_reserve=True)
    storage.sync()
    return wanted


def _is_fresh(hard: stored.HardState | None) -> bool:
    """Whether this node has neither voted nor followed anybody: a leader's term is higher than the first one."""
    return hard is not None and hard.group and hard.term <= FIRST_TERM and hard.vote is None


def _was_alone(storage: Storage, config: ReplicaConfig, first: Configuration) -> bool:
    """Whether nobody else can have what this node lost.

    Only if it was alone when it last wrote that down, the last list before the loss names no other voter, and none that
    can still be read behind it does.
    """
    hard = storage.hard_state
    if hard is not None and hard.group:
        return False
    untrusted = storage.recovered.untrusted_from
    snapshot = storage.recovered.snapshot
    current = first
    for record in storage.entries((snapshot.index if snapshot is not None else 0) + 1):
        if record.kind == Kind.CONFIGURATION:
            found = Configuration.decode(record.body)
            if untrusted is None or record.index < untrusted:
                current = found
            elif not only(config.node_id, found):
                return False
    return only(config.node_id, current)


def _enter(storage: Storage, config: ReplicaConfig, *, term: int) -> None:
    """Give the directory its name, so that no later start takes it for a new node that is alone."""
    known = storage.hard_state
    if known is None or known.term < term:
        storage.set_hard_state(
            stored.HardState(
                term=term,
                vote=None,
                node_id=config.node_id,
                cluster_id=config.cluster_id,
                disk_uuid=known.disk_uuid if known is not None else config.disk_uuid,
                group=True,
            )
        )


def _from_snapshot(config: ReplicaConfig, snapshot: SnapshotReader | None) -> Found:
    if snapshot is None:
        machine, pages, index, term = Machine(config.bounds, config.version_max), dict[bytes, bytes](), 0, 0
    else:
        machine, pages = load(snapshot.pages(without=NOT_RESIDENT), config.bounds, config.version_max), snapshot.hashes
        index, term = snapshot.index, snapshot.term
    recent = Recent(config.recent_bytes, index)
    return Found(machine, pages, index, index, term, HardState(), "", [], recent)


def _read_log(storage: Storage, config: ReplicaConfig, found: Found) -> None:
    """Everything behind the snapshot: terms, sizes, configurations; applied as long as this node is alone."""
    current = found.configurations[0][1]
    alone = only(config.node_id, current)
    for record in storage.entries(found.snapshot_index + 1):
        index, kind = record.index, record.kind
        if not Kind.NOOP <= kind <= Kind.SNAPSHOT:
            raise CorruptRecord(f"entry {index} is of kind {kind}, unknown to this version")
        while found.recent.last_index < index - 1:
            # Lost; what was there is said by the findings of the start.
            if not alone:
                raise CorruptRecord(f"entry {found.recent.last_index + 1} is missing, and not known to be lost")
            found.recent.note(0)
        found.recent.note(len(record.body))
        if not found.runs:
            found.runs.append((found.snapshot_index + 1, record.term))
        elif found.runs[-1][1] != record.term:
            found.runs.append((index, record.term))
        if kind == Kind.CONFIGURATION:
            current = Configuration.decode(record.body)
            if index > found.configurations[-1][0]:
                found.configurations.append((index, current))
            alone = alone and only(config.node_id, current)
        if alone:
            found.apply(record)
        elif kind == Kind.COMMANDS:
            found.stamps.append((index, stamp_of(record.body)))
    while found.recent.last_index < storage.last_index:
        if not alone:
            raise CorruptRecord(f"entry {found.recent.last_index + 1} is missing, and not known to be lost")
        found.recent.note(0)
    if alone:
        # The last entries may be lost: nobody will ever apply them, and what comes next must not wait for that.
        found.applied = max(found.applied, found.recent.last_index)
    if not alone and only(config.node_id, current):
        # All others were removed: what was not decided then is by now.
        for record in storage.entries(found.applied + 1):
            found.apply(record)
        found.stamps.clear()


def _term_and_vote(storage: Storage, config: ReplicaConfig, found: Found, hard: stored.HardState | None) -> HardState:
    state = HardState(hard.term, hard.vote) if hard is not None else HardState()
    highest = storage.highest_term
    if state.term >= highest and (hard is not None or not storage.last_index):
        return state
    if not only(config.node_id, found.configurations[-1][1]):
        raise StorageError(
            f"the term and vote of node {config.node_id!r} are gone, or older than its log: it may have voted and does"
            " not know; remove it from the cluster and let it join again with an empty directory, under another node id"
        )
    # inv: TermMonotonic  (right for a single voter only: nobody else can have voted or been voted for)
    text = f"it is gone, or older than the log: the term goes on behind {highest}, the highest that is known"
    storage.note(Finding(Verdict.METADATA, "hard-state", text))
    return HardState(max(state.term, highest))
