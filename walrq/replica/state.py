"""What one replica knows: its log as consensus sees it, its office, what waits, who is there."""

from __future__ import annotations

from walrq.queues.clocks import LeaderClock, Reading
from walrq.queues.commands import (
    Tagged,
)
from walrq.raft.core import Raft
from walrq.raft.entries import Entry, Kind
from walrq.raft.leader import Leader
from walrq.raft.membership import Configuration, Member
from walrq.raft.roles import Role, Status
from walrq.raft.snapshots import Chunk
from walrq.replica.ahead import Ahead
from walrq.replica.batch import Batch, Pending
from walrq.replica.bodies import Bodies
from walrq.replica.company import Company, named_behind
from walrq.replica.config import ReplicaConfig
from walrq.replica.images import Images, root_of
from walrq.replica.jobs import Job, Loaded
from walrq.replica.office import Times
from walrq.replica.opening import Found
from walrq.replica.restoring import Restoring
from walrq.replica.transfer import Receiving, Sending
from walrq.replica.waiting import Waiting
from walrq.storage.storage import Storage


class State:
    """What one replica knows of itself, of consensus and of time; see the package.

    Attributes:
        machine: the state.
        applied_index: it stands at this entry.
    """

    def __init__(self, storage: Storage, config: ReplicaConfig, found: Found) -> None:
        """Use `open`."""
        self.config = config
        self.machine = found.machine
        self._storage = storage
        self._recent = found.recent
        self._raft = Raft(
            config.node_id,
            (),
            found.hard_state,
            found.tail(storage),
            cluster=found.cluster_id,
            configurations=found.configurations,
            timing=config.timing,
            bounds=config.raft_bounds,
            draw=config.draw,
            size_of=self._recent.size_of,
            trace_to=config.trace_to,
        )
        self.applied_index = found.applied
        self._images = Images(storage, config, found.machine, found.pages, found.snapshot_index)
        self._images.log_bytes, self._images.commands = found.log_bytes, found.commands
        if found.snapshot_index and self._raft.membership.current.nodes != (config.node_id,):
            self._images.roots.add(self._images.roots.own, found.snapshot_index, root_of(found.pages))
        # --- proposals
        self._ticket = 0
        self._gathered: list[Tagged] = []
        self._gathered_tickets: list[int] = []
        self._stamp_wanted = False
        self._persisting: Batch | None = None
        # Own entries taken but not applied, by index; of these, those of an office that ended.
        self._pending: dict[int, Pending] = {}
        self._orphans: list[tuple[int, Pending]] = []
        self._refused: list[int] = []
        # --- what was seen of consensus the last time
        self._office: Leader | None = None
        self._leader: str | None = None
        self._noted = self._raft.last_index
        self._configuration = self._raft.membership.current
        self._alone = self._configuration.nodes == (config.node_id,)
        # Whose voices a damaged log may have forgotten.
        self._kept = found.voters if found.damaged else ()
        self._company = Company.of(config.node_id, self._raft.membership, self._kept)
        self._office_changed = False
        self._members_changed = False
        # --- time
        self._times = Times(found.stamps)
        self._reading: Reading | None = None  # the last one; an office begins with it, never before its log's end
        # --- peers
        self._heard: dict[str, int] = {}
        # Whether other voters have room on their disks, as each told this leader last.
        self._has_room: dict[str, bool] = {}
        self._links: dict[str, Member] = {}
        # The newest version of the state machine that others can be, as each told last.
        self._versions: dict[str, int] = {}
        self._raised_at = 0
        # Reads that were asked for and are not decided; (index, ticket) of those that wait for an entry.
        self._reads_asked = 0
        self._reads: list[tuple[int, int]] = []
        # --- the background
        self._background: Job | None = None
        self._loaded: dict[int, Loaded] = {}
        self._bodies = Bodies(storage, self._recent, config.body_cache_bytes)
        self._waiting = Waiting(storage)
        self._ahead = Ahead(storage)
        # --- snapshots
        # The last point that this leader proposed.
        self._point_proposed = 0
        # Lost entries: under repair; there again, and not noted yet.
        self._damaged = found.damaged
        self._repaired_due = False
        # A loss that the leader told of, and that is not noted on the disk yet.
        self._hurt_due = False
        self._opened_at = self._raft.last_index
        # What was found damaged when old records were looked through last.
        self._losses_seen = -1
        self._restoring = Restoring(storage, config.node_id)
        if found.damaged:
            self._raft.begin_repair(found.claimed, named_behind(found.voters, self._opened_at))
        self._findings: list[str] = []
        self._has_diverged = False
        # Entries that cannot be read for a follower, in this office. Replaced, never changed: threads add to it.
        self._unreadable: frozenset[int] = frozenset()
        self._led_at = 0
        self._unreadable_told = 0
        self._entries = 0
        self._sending = Sending(storage)
        self._send_at_tick = 0
        self._send_failure = ""
        self._refused_why = ""
        # The snapshot that was found damaged last.
        self._renewed_at = 0
        self._receiving = Receiving(storage)
        # The last chunk of a snapshot that is whole and not in place yet.
        self._whole: Chunk | None = None

    # --- what it is -----------------------------------------------------------------------------------------
    @property
    def is_leader(self) -> bool:
        """Whether this node leads."""
        return self._raft.is_leader

    @property
    def accepts(self) -> bool:
        """Whether this node takes proposals: it leads, is not handing over, and its cluster has been born."""
        return self._raft.accepts and bool(self.machine.cluster)

    @property
    def leader(self) -> str | None:
        """The leader's node id, as far as known."""
        return self._raft.leader

    @property
    def term(self) -> int:
        """The current term."""
        return self._raft.term

    @property
    def commit_index(self) -> int:
        """Entries up to here are committed."""
        return self._raft.commit_index

    @property
    def last_index(self) -> int:
        """The end of the log, durable or not."""
        return self._raft.last_index

    @property
    def role(self) -> Role:
        """What this node is in its term."""
        return self._raft.role

    @property
    def status(self) -> Status:
        """Which part it takes in decisions."""
        return self._raft.status

    @property
    def configuration(self) -> Configuration:
        """Who belongs to the group, by the last configuration in the log, committed or not."""
        return self._raft.membership.current

    @property
    def configuration_index(self) -> int:
        """The entry of that configuration; committed once `commit_index` has reached it."""
        return self._raft.membership.index

    @property
    def successor(self) -> str | None:
        """Whom this leader would best hand over to; None without anybody, or when it does not lead."""
        return self._raft.successor

    @property
    def cluster_id(self) -> str:
        """The cluster that this node's messages belong to."""
        return self._raft.cluster

    @property
    def disk_uuid(self) -> bytes:
        """The mark of this node's data directory, which its name is bound to in the group."""
        return self._storage.disk_uuid

    # --- what consensus did ---------------------------------------------------------------------------------
    def _look(self) -> None:
        """Notice what a call changed. After every call that may change role, leader, log or configuration."""
        raft = self._raft
        if raft.lead is not self._office:
            self._change_office()
        if raft.leader != self._leader:
            self._leader = raft.leader
            self._office_changed = True
        if raft.log.last_index != self._noted:
            # Nothing but the first entry of an office comes from the core itself.
            for index in range(self._noted + 1, raft.last_index + 1):
                self._recent.put(index, Entry(raft.term, Kind.NOOP, b""))
            self._noted = raft.last_index
        if raft.membership.current is not self._configuration:
            self._configuration = configuration = raft.membership.current
            self._alone = configuration.nodes == (self.config.node_id,)
            self._company = Company.of(self.config.node_id, raft.membership, self._kept)
            self._times.keep(configuration.voters)
            self._members_changed = True

    def _change_office(self) -> None:
        """An office began or ended, or both."""
        self._office_changed = True
        if self._office is not None:
            self._orphans += [(index, pending) for index, pending in self._pending.items() if pending.tickets]
            self._refused += filter(None, self._gathered_tickets)
            self._gathered = []
            self._gathered_tickets = []
            self._stamp_wanted = False
        self._office = lead = self._raft.lead
        before = self._raft.log.term_at(lead.term_start - 1) if lead is not None else 0
        self._times.office(before if before is not None else self._raft.term)
        self._point_proposed = 0
        self._raised_at = 0
        self._has_room.clear()
        self._unreadable = frozenset()
        self._ahead.office(self.machine if lead is not None else None)
        if lead is not None and self._reading is not None:
            self._clock(self._reading)

    def _append(self, kind: Kind, body: bytes) -> None:
        """Append an entry of the replica's own."""
        term, index, _ = self._raft.append(kind)
        self._recent.put(index, Entry(term, kind, body))
        self._noted = index

    def _clock(self, reading: Reading) -> LeaderClock:
        """The clock of this office."""
        return self._times.clock(reading, self.machine.last_stamp, self._pending, self._raft.office_walls.values())
