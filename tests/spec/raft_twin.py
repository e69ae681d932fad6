"""Real cores on hosts of tests/raft, behind the actions of spec/Raft.tla.

Time is the twin's: it sets how long ago a leader was heard of, and when a time-out is over. Appends are the twin's as
well, made of the leader's own log, because the module may send any; whatever the core sends must be one of those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from tests.raft.hosts import CLUSTER, Host, group
from walrq.formal.values import Function, Value, function
from walrq.raft import messages as real
from walrq.raft.core import Raft
from walrq.raft.election import Timing
from walrq.raft.entries import Entry, HardState, Kind
from walrq.raft.messages import Message

NONE = "-"
TIMING = Timing(election=4, spread=1, heartbeat=2, stall=1_000)
WAITING = {"held": (0, 1), "next": (2, 2)}
# Fields of the module's messages: attribute of the code's.
FIELDS: Mapping[str, Mapping[str, str]] = {
    "PreVote": {"last": "last_index", "last_term": "last_term", "round": "round"},
    "PreVoteReply": {"round": "round", "granted": "granted"},
    "Vote": {"last": "last_index", "last_term": "last_term", "transfer": "transfer"},
    "VoteReply": {"granted": "granted"},
    "Append": {"prev": "prev_index", "prev_term": "prev_term", "commit": "commit"},
    "AppendReply": {"accepted": "accepted", "index": "index"},
    "Heartbeat": {"commit": "commit"},
    "HeartbeatReply": {},
    "TimeoutNow": {},
}


def message_of(message: Message) -> Function:
    """The module's message."""
    kind = type(message).__name__
    fields: dict[str, Any] = {name: getattr(message, attribute) for name, attribute in FIELDS[kind].items()}
    if isinstance(message, real.Append):
        fields["entries"] = tuple(entry.term for entry in message.entries)
    head = {"type": kind, "from": message.sender, "to": message.receiver, "term": message.term}
    return Function({**head, **fields})


def log_of(raft: Raft) -> tuple[int, ...]:
    """Terms of the entries."""
    return tuple(raft.log.term_at(index) or 0 for index in range(1, raft.last_index + 1))


class RaftTwin:
    """A group and the messages on their way."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self.constants = constants
        self.names = sorted(constants["Server"])
        self.instant = constants["InstantDisk"]
        self.hosts = {name: self.host(name) for name in self.names}
        self.wire: dict[Function, Message] = {}
        # Term, vote and log as they were when a write was taken.
        self.taken: dict[str, tuple[int, str, tuple[int, ...]]] = {}
        self.nodes = {name: self.node(name) for name in self.names}

    def host(self, name: str) -> Host:
        """A node with an empty disk, or as the first term left it when its leader was deposed."""
        host = Host(
            name, group(self.names), timing=TIMING, pre_vote=self.constants["MaxAsks"] > 0, draw=lambda below: 0
        )
        for deposed in self.constants["Deposed"]:
            host.crash()
            host.disk.state = HardState(1, deposed)
            if name == deposed:
                host.disk.log[1] = Entry(1, Kind.NOOP, b"")
            host.start()
        return host

    # --- actions --------------------------------------------------------------------------------------------
    def apply(self, act: Mapping[str, Any]) -> bool:
        """Take the action."""
        name = act["m"]["to"] if "m" in act else act["i"]
        host = self.hosts[name]
        getattr(self, act["op"], self.Recv)(host, act)
        while self.instant and host.begin_write():
            host.end_write()
        self.collect(host)
        # Nothing happened to the others.
        self.nodes[name] = self.node(name)
        self.wire = {message: sent for message, sent in self.wire.items() if is_alive(message, self.nodes)}
        return True

    def collect(self, host: Host) -> None:
        """What a node says now; of appends only whether it may say them."""
        for message in host.messages():
            if isinstance(message, real.Append):
                wanted = self.append_of(host, message.receiver, message.prev_index, message.last_index)
                assert message_of(wanted) == message_of(message)
            elif isinstance(message, real.Heartbeat):
                assert message_of(message) == message_of(self.heartbeat_of(host, message.receiver))
            else:
                self.wire[message_of(message)] = message

    def time_out(self, host: Host) -> None:
        """Nothing was heard of a leader for long enough."""
        countdown = host.raft._countdown
        countdown.elapsed = countdown.timeout - 1
        host.raft.tick()

    def AskPreVotes(self, host: Host, act: Mapping[str, Any]) -> None:
        self.time_out(host)

    def TimeOut(self, host: Host, act: Mapping[str, Any]) -> None:
        self.time_out(host)

    def Doubt(self, host: Host, act: Mapping[str, Any]) -> None:
        host.raft.electable = False
        self.time_out(host)
        host.raft.electable = True

    def Recv(self, host: Host, act: Mapping[str, Any]) -> None:
        # A leader is stuck to for as long as it was heard of lately.
        host.raft._countdown.elapsed = 0 if act["mood"] else TIMING.election
        host.receive(self.wire[act["m"]])

    def Propose(self, host: Host, act: Mapping[str, Any]) -> None:
        host.propose(b"")

    def append_of(self, host: Host, to: str, prev: int, last: int) -> Message:
        """An append with a part of a leader's log."""
        raft = host.raft
        prev_term = raft.log.term_at(prev)
        assert prev_term is not None
        append = real.Append(CLUSTER, host.name, to, raft.term, prev, prev_term, last, raft.commit_index)
        return append.filled([host.memory[index] for index in range(prev + 1, last + 1)])

    def SendAppend(self, host: Host, act: Mapping[str, Any]) -> None:
        message = self.append_of(host, act["j"], act["prev"], act["last"])
        self.wire[message_of(message)] = message

    def heartbeat_of(self, host: Host, to: str) -> Message:
        """A heartbeat as the module has it."""
        lead = host.raft.lead
        assert lead is not None
        commit = min(lead.progress[to].match, host.raft.commit_index)
        return real.Heartbeat(CLUSTER, host.name, to, host.raft.term, commit, lead.round)

    def SendHeartbeat(self, host: Host, act: Mapping[str, Any]) -> None:
        assert host.raft.lead is not None
        host.raft.lead.beat_due = True
        for message in host.messages():
            if isinstance(message, real.Heartbeat) and message.receiver == act["j"]:
                self.wire[message_of(message)] = message

    def TransferLeader(self, host: Host, act: Mapping[str, Any]) -> None:
        host.raft.transfer(act["j"])
        self.collect(host)
        assert host.raft.lead is not None
        host.raft.lead.transfer = None

    def StepDown(self, host: Host, act: Mapping[str, Any]) -> None:
        lead = host.raft.lead
        assert lead is not None
        # Whom it would tell is a guess at who holds most; here it is the module's.
        lead.successor = lambda: act["j"]  # type: ignore[method-assign]
        host.raft._step_down("Stalled", hand_over=act["j"] != NONE)

    def TakeReady(self, host: Host, act: Mapping[str, Any]) -> None:
        raft = host.raft
        self.taken[host.name] = (raft.term, raft.vote or NONE, log_of(raft))
        assert host.begin_write()

    def Persisted(self, host: Host, act: Mapping[str, Any]) -> None:
        host.end_write()

    def Crash(self, host: Host, act: Mapping[str, Any]) -> None:
        round_ = host.raft._round
        disk = host.disk
        before = disk.state, dict(disk.log)
        wanted = act["term"], act["vote"], act["log"]
        for steps in range(self.constants["MaxLog"] + 3):
            disk.state, disk.log = before[0], dict(before[1])
            host.alive = True
            host.crash(steps)
            if self.disk(host) == wanted:
                break
        assert self.disk(host) == wanted, (wanted, self.disk(host))
        host.start()
        # Rounds are drawn anew at each start; none comes twice.
        host.raft._round = round_

    # --- what it is -----------------------------------------------------------------------------------------
    def disk(self, host: Host) -> tuple[int, str, tuple[int, ...]]:
        """Term, vote and log of a disk."""
        state, log = host.disk.state, host.disk.log
        return state.term, state.vote or NONE, tuple(log[index].term for index in sorted(log))

    def node(self, name: str) -> Function:
        """A node as the module has it."""
        host = self.hosts[name]
        raft, unstable = host.raft, host.raft._unstable
        ballot, lead = raft._ballot, raft.lead
        dterm, dvote, dlog = self.disk(host)

        def level(number: int) -> int:
            return 0 if number <= unstable.done else 1 if number <= unstable.taken else 2

        writing: tuple[Function, ...] = ()
        if host.writing is not None:
            term, vote, log = self.taken[name]
            number, lowest = unstable._cut
            keep = len(log) if host.writing[0].number >= number else min(len(log), lowest - 1)
            writing = (Function(term=term, vote=vote, log=log, keep=keep),)
        waits = {
            field: frozenset(message_of(message) for number, message in unstable._waiting if level(number) in levels)
            for field, levels in WAITING.items()
        }
        match: dict[str, int] = dict.fromkeys(self.names, 0)
        if lead is not None:
            match |= {node: progress.match for node, progress in lead.progress.items()}
            match[name] = lead.match[name]
        return Function(
            role=raft.role.value,
            term=raft.term,
            vote=raft.vote or NONE,
            leader=raft.leader or NONE,
            log=log_of(raft),
            commit=raft.commit_index,
            durable=raft.durable_index,
            round=raft._round,
            yes=frozenset(ballot.granted if ballot is not None else ()),
            no=frozenset(ballot.refused if ballot is not None else ()),
            match=function(match),
            dterm=dterm,
            dvote=dvote,
            dlog=dlog,
            writing=writing,
            state_in=level(unstable.state_in),
            log_in=level(unstable.log_in),
            out=frozenset(),
            held=waits["held"],
            next=waits["next"],
        )

    def project(self) -> Function:
        """The variables node and msgs."""
        return Function(node=function(self.nodes), msgs=frozenset(self.wire))


def is_alive(m: Function, nodes: Mapping[str, Function]) -> bool:
    """The module's Alive."""
    n, s = nodes[m["to"]], nodes[m["from"]]
    kind, term = m["type"], m["term"]
    counted = n["yes"] | n["no"]
    if kind == "PreVote":
        return bool(s["role"] == "pre-candidate" and s["round"] == m["round"])
    if kind == "PreVoteReply":
        asks = n["role"] == "pre-candidate" and n["round"] == m["round"] and m["from"] not in counted
        return bool(term > n["term"] or asks)
    if term != n["term"]:
        return bool(term > n["term"] or (kind in ("Append", "Heartbeat", "Vote") and s["term"] < n["term"]))
    match kind:
        case "Vote":
            waits = s["role"] == "candidate" and s["term"] == term and m["to"] not in s["yes"] | s["no"]
            return bool(waits or (n["vote"] == NONE and n["leader"] == NONE))
        case "VoteReply":
            return bool(n["role"] == "candidate" and m["from"] not in counted)
        case "Append":
            last = m["prev"] + len(m["entries"])
            behind = n["log"][m["prev"] : last]
            return bool(
                (n["role"] != "leader" and n["leader"] == NONE)
                or n["commit"] < min(m["commit"], last)
                or (s["role"] == "leader" and s["term"] == term and s["match"][m["to"]] < last)
                or m["entries"] != behind
            )
        case "AppendReply":
            return bool(n["role"] == "leader" and m["accepted"] and m["index"] > n["match"][m["from"]])
        case "Heartbeat":
            behind = n["commit"] < min(m["commit"], len(n["log"]))
            return bool(n["role"] != "leader" and (n["leader"] == NONE or behind))
        case "TimeoutNow":
            return n["role"] in ("follower", "pre-candidate")
    return False


class RaftBinding:
    """Models of Raft and `RaftTwin`."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self.constants = constants

    def make(self) -> RaftTwin:
        """A group without a leader."""
        return RaftTwin(self.constants)

    def start(self) -> Function:
        """The initial state."""
        return Function({**self.make().project(), "crashes": 0})

    def candidates(self, state: Function) -> Iterator[Function]:
        """See the module's Next."""
        constants, nodes = self.constants, state["node"]
        ops = constants["Ops"]
        for i in constants["Standing"]:
            if nodes[i]["role"] != "leader":
                if not constants["MaxAsks"]:
                    yield Function(op="TimeOut", i=i)
                elif nodes[i]["round"] < constants["MaxAsks"]:
                    yield Function(op="AskPreVotes", i=i)
        for m in state["msgs"]:
            for mood in moods(nodes[m["to"]], m):
                yield Function(op=f"Recv{m['type']}", m=m, mood=mood)
        for i in constants["Server"]:
            node = nodes[i]
            if node["role"] == "leader":
                yield from self.leads(i, state)
            elif "Doubt" in ops and node["leader"] != NONE:
                yield Function(op="Doubt", i=i)
            if not constants["InstantDisk"]:
                if node["writing"]:
                    yield Function(op="Persisted", i=i)
                elif 2 in (node["state_in"], node["log_in"]):
                    yield Function(op="TakeReady", i=i)
            if state["crashes"] < constants["MaxCrashes"]:
                for term, vote, log in survivals(node):
                    yield Function(op="Crash", i=i, term=term, vote=vote, log=log)

    def leads(self, i: str, state: Function) -> Iterator[Function]:
        """What a leader may do by itself."""
        constants, node = self.constants, state["node"][i]
        ops, end = constants["Ops"], len(node["log"])
        if "Propose" in ops:
            yield Function(op="Propose", i=i)
        if "StepDown" in ops:
            yield Function(op="StepDown", i=i, j=NONE)
        for j in constants["Server"]:
            if i == j:
                continue
            first = 0 if constants["AnyAppend"] else node["match"][j]
            for prev, last in product(range(first, end + 1), range(end + 1)):
                if "SendAppend" in ops and prev <= last and (constants["AnyAppend"] or last == end):
                    prev_term = node["log"][prev - 1] if prev else 0
                    head = {"type": "Append", "from": i, "to": j, "term": node["term"], "commit": node["commit"]}
                    entries = node["log"][prev:last]
                    message = Function({**head, "prev": prev, "prev_term": prev_term, "entries": entries})
                    if message not in state["msgs"]:
                        yield Function(op="SendAppend", i=i, j=j, prev=prev, last=last)
            head = {"from": i, "to": j, "term": node["term"]}
            beat = Function({**head, "type": "Heartbeat", "commit": min(node["match"][j], node["commit"])})
            if "SendHeartbeat" in ops and beat not in state["msgs"]:
                yield Function(op="SendHeartbeat", i=i, j=j)
            now = Function({**head, "type": "TimeoutNow"})
            if "TransferLeader" in ops and node["match"][j] == end and now not in state["msgs"]:
                yield Function(op="TransferLeader", i=i, j=j)
            if "StepDown" in ops:
                yield Function(op="StepDown", i=i, j=j)

    def within(self, projected: Function) -> bool:
        """Bounds of terms and logs."""
        nodes = projected["node"].values()
        return all(
            node["term"] <= self.constants["MaxTerm"] and len(node["log"]) <= self.constants["MaxLog"] for node in nodes
        )


def moods(node: Function, m: Function) -> tuple[bool, ...]:
    """The module's Moods."""
    if m["type"] not in ("PreVote", "Vote") or node["leader"] == NONE:
        return (False,)
    return (True,) if node["role"] == "leader" else (False, True)


def survivals(node: Function) -> set[tuple[int, str, Value]]:
    """The module's Survivals."""
    dlog = node["dlog"]
    found = {(node["dterm"], node["dvote"], dlog)}
    for write in node["writing"]:
        log = write["log"]
        common = max(k for k in range(min(len(dlog), len(log)) + 1) if dlog[:k] == log[:k])
        found.add((write["term"], write["vote"], dlog))
        found |= {(write["term"], write["vote"], log[:k]) for k in range(common, len(log) + 1)}
    return found
