"""Lines of `walrq/raft/trace.py`, read as steps of spec/Raft.tla.

A call of the core may write several lines: those of what happened inside it come first, its own last. The module takes
the call as one step, so the inner lines are compared with it and go (`INNER`). Messages become the module's, rounds of
questions are numbered from 1, and each message is forgotten after its last line. What the module does not describe
(another group, repair after damage) ends the part of a trace that can be judged. Pure.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from walrq.errors import ConfigError
from walrq.formal.values import Function, function

NOBODY: Final = "-"
# Fields of a line that are compared with the module's state.
COMPARED: Final = (
    "role", "term", "vote", "leader", "index", "last_term", "commit", "durable", "durable_term", "durable_vote",
    "votes", "match",
)  # fmt: skip
# What an inner line and the line of its call must agree in.
INNER: Final[Mapping[str, tuple[str, ...]]] = {
    "AdvanceCommit": ("term", "vote", "index", "commit", "durable"),
    "BecomeLeader": ("role", "term", "vote", "leader", "index"),
    "Propose": ("role", "term", "vote", "leader", "index"),
    "Campaign": ("role", "term", "vote", "index", "commit"),
    "StepDown": ("term",),
}
# A leader that gives up by itself; for other reasons it does so inside of a call.
OWN_REASONS: Final = ("QuorumLost", "Stalled", "Recovering", "NotElectable")
ASKED: Final = ("RecvPreVoteReply", "RecvTimeoutNow")
STEPS: Final = frozenset(
    "Start AskPreVotes Campaign Doubt StepDown Propose TakeReady Persisted Installed TransferLeader".split()
)
NOOP: Final = 0
DONE: Final = 2


class Misfit(Exception):
    """A line that no step of the module can be: its number, from 1, and why."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"line {number}: {why}")
        self.number = number
        self.why = why


@attrs.frozen
class Step:
    """A line as the module's step; `number` is the line's, from 1."""

    number: int
    fields: Function
    raw: Mapping[str, Any] = attrs.field(repr=False)


@attrs.frozen
class Trace:
    """What can be judged of a trace.

    Attributes:
        servers: the group.
        asks: whether nodes ask before they stand.
        founded: entries that every disk began with.
        ends: what the module does not describe, and where; None: all of the trace is here.
        misfit: a line that cannot be a step, whatever was before; the steps end there.
    """

    servers: tuple[str, ...]
    steps: tuple[Step, ...]
    asks: bool
    founded: int
    ends: str | None = None
    misfit: Misfit | None = None


def read(text: str) -> list[dict[str, Any]]:
    """The lines of a file.

    Raises:
        ConfigError: it is no trace.
    """
    lines = []
    for number, each in enumerate(text.splitlines(), start=1):
        try:
            line = json.loads(each)
        except ValueError:
            raise ConfigError(f"line {number} of the trace is no JSON") from None
        missing = [name for name in ("event", "node", "voters", *COMPARED) if name not in line]
        if missing:
            raise ConfigError(f"line {number} of the trace has no {missing[0]!r}")
        lines.append(line)
    if not lines:
        raise ConfigError("the trace is empty")
    return lines


def merged(parts: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Traces of several nodes as one: each in its own order, and no message before it was sent."""
    queues = [deque(part) for part in parts]
    sent: set[str] = set()
    lines: list[dict[str, Any]] = []

    def may_go(line: Mapping[str, Any]) -> bool:
        return not line["event"].startswith("Recv") or said(line) in sent

    while any(queues):
        ready = next((queue for queue in queues if queue and may_go(queue[0])), None)
        # When nothing is ready a message came from nowhere; the judge will say so.
        queue = ready if ready is not None else next(queue for queue in queues if queue)
        while queue and (may_go(queue[0]) or ready is None):
            ready = queue
            line = queue.popleft()
            lines.append(line)
            if line["event"].startswith("Send"):
                sent.add(said(line))
    return lines


def said(line: Mapping[str, Any]) -> str:
    """A message, whether sent or received: its entries and clocks are filled in on the way."""
    names = [name for name in line if name.startswith("m_") and name not in ("m_entries", "m_wall_ms", "m_lease_ms")]
    return json.dumps([line["message"], line["sender"], line["receiver"], [line[name] for name in sorted(names)]])


def prepared(lines: Sequence[Mapping[str, Any]]) -> Trace:
    """The steps of a trace."""
    reader = _Reader(lines)
    return reader.trace()


def _ends(line: Mapping[str, Any], following: Mapping[str, Any] | None, servers: Iterable[str]) -> str | None:
    """What the module does not describe in a line."""
    if line["event"] == "Start" and following is not None and following["event"] == "BeginRepair":
        return f"{line['node']} starts with damage"
    if line["event"] == "BeginRepair" or line.get("m_recovering") or line.get("m_session"):
        return f"{line['node']} is under repair"
    if line["voters"] != list(servers) or line["learners"]:
        return f"the group of {line['node']} is another one"
    return None


class _Reader:
    def __init__(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self.lines = lines
        self.servers = tuple(lines[0]["voters"])
        self.rounds: dict[tuple[str, int], int] = {}
        self.asked: dict[str, int] = {}
        # Index and term of the snapshot, by leader, its term, and stream.
        self.streams: dict[tuple[str, int, int], tuple[int, int]] = {}
        # By node: inner lines that wait for their call; the sender of a whole snapshot that is to be installed.
        self.inner: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
        self.installing: dict[str, str] = {}
        self.following = _following(lines)

    def trace(self) -> Trace:
        steps: list[Step] = []
        ends: str | None = None
        misfit: Misfit | None = None
        for number, line in enumerate(self.lines, start=1):
            why = _ends(line, self.following[number - 1], self.servers)
            if why is not None:
                ends = f"line {number}: {why}, which the module does not describe"
                break
            try:
                fields = self._step(number, line)
            except Misfit as error:
                misfit = error
                break
            if fields is not None:
                steps.append(Step(number, fields, line))
        asks = any(line["event"] == "AskPreVotes" for line in self.lines)
        founded = self.lines[0]["index"] if self.lines[0]["last_term"] == 1 else 0
        return Trace(self.servers, tuple(_forgetting(steps)), asks, founded, ends, misfit)

    def _step(self, number: int, line: Mapping[str, Any]) -> Function | None:
        event, node = line["event"], line["node"]
        if self._is_inner(number, line):
            self.inner.setdefault(node, []).append((number, line))
            return None
        for inner_number, inner in self.inner.pop(node, []):
            for name in INNER[inner["event"]]:
                if inner[name] != line[name]:
                    says = f"{inner['event']} says {name} {inner[name]}"
                    raise Misfit(inner_number, f"{says}, and its call, line {number}, ends with {line[name]}")
        if event.startswith(("Send", "Recv")):
            return self._message(number, line)
        if event not in STEPS:
            raise Misfit(number, f"there is no event {event!r}")
        to = NOBODY
        if event == "AskPreVotes":
            self.asked[node] = self.rounds[node, line["round"]] = self.asked.get(node, 0) + 1
        elif event == "StepDown":
            to = line.get("successor") or NOBODY
        elif event == "Installed":
            to = self.installing.pop(node, NOBODY)
        elif event == "Start":
            self.installing.pop(node, None)
        return _fields("Nothing" if event == "TransferLeader" else event, line, to=to)

    def _is_inner(self, number: int, line: Mapping[str, Any]) -> bool:
        match line["event"]:
            case "AdvanceCommit" | "BecomeLeader":
                return True
            case "Propose":
                return bool(line["kind"] == NOOP)
            case "StepDown":
                return line["why"] not in OWN_REASONS
            case "Campaign":
                following = self.following[number - 1]
                return following is not None and following["event"] in ASKED
        return False

    # --- messages -------------------------------------------------------------------------------------------
    def _message(self, number: int, line: Mapping[str, Any]) -> Function:
        event, node = line["event"], line["node"]
        name = line["message"]
        if line["sender" if event.startswith("Send") else "receiver"] != node:
            raise Misfit(number, f"{node} is not who this message is about")
        how = {"Send": "Send", "Recv": "Recv"}[event[:4]]
        snapshot = name.startswith("Snapshot")
        moods = frozenset({False})
        if name in ("EndRequest", "EndReply"):
            return _fields("Nothing", line)
        message = self._translated(number, line)
        if message is None:
            return _fields(how, line, m=_hello(line), hello=True)
        if how == "Recv":
            if name == "SnapshotChunk" and line["m_is_last"]:
                self.installing[node] = line["sender"]
            if name == "TimeoutNow" or (name == "Append" and node in self.installing):
                moods = frozenset({False, True})
        return _fields(how, line, m=message, moods=moods, snapshot=snapshot)

    def _translated(self, number: int, line: Mapping[str, Any]) -> Function | None:
        """The module's message; None for one that says no more than its term."""
        head = {"from": line["sender"], "to": line["receiver"], "term": line["m_term"]}
        match line["message"]:
            case "PreVote":
                asked = self.rounds.get((line["sender"], line["m_round"]), 0)
                head |= {"last": line["m_last_index"], "last_term": line["m_last_term"], "round": asked}
            case "PreVoteReply":
                asked = self.rounds.get((line["receiver"], line["m_round"]), 0)
                head |= {"round": asked, "granted": line["m_granted"]}
            case "Vote":
                head |= {"last": line["m_last_index"], "last_term": line["m_last_term"]}
                head |= {"transfer": line["m_transfer"]}
            case "VoteReply":
                head |= {"granted": line["m_granted"]}
            case "Append":
                head |= {"prev": line["m_prev_index"], "prev_term": line["m_prev_term"], "commit": line["m_commit"]}
                head |= {"entries": self._entries(number, line)}
            case "AppendReply":
                head |= {"accepted": line["m_accepted"], "index": line["m_index"]}
            case "Heartbeat":
                head |= {"commit": line["m_commit"]}
            case "HeartbeatReply" | "TimeoutNow":
                pass
            case "SnapshotOffer":
                offered = self.streams[line["sender"], line["m_term"], line["m_stream"]] = (
                    line["m_index"],
                    line["m_snapshot_term"],
                )
                return _snapshot(head, *offered)
            case "SnapshotChunk":
                known = self.streams.get((line["sender"], line["m_term"], line["m_stream"]))
                return _snapshot(head, *known) if known is not None else None
            case "SnapshotReply":
                known = self.streams.get((line["receiver"], line["m_term"], line["m_stream"]))
                if line["m_status"] != DONE or known is None:
                    return None
                return Function({"type": "AppendReply", **head, "accepted": True, "index": known[0]})
            case _:
                return None
        return Function({"type": line["message"], **head})

    def _entries(self, number: int, line: Mapping[str, Any]) -> tuple[int, ...]:
        """Terms of an append's entries: as received, or, since they are filled in later, as its sender has them."""
        first, last = line["m_prev_index"] + 1, line["m_last_index"]
        if line["event"].startswith("Recv"):
            return tuple(term for term, _ in line["m_entries"])
        if last > line["index"]:
            raise Misfit(number, f"entries up to {last} are sent, and the log ends at {line['index']}")
        runs = line["runs"]
        terms = []
        for index in range(first, last + 1):
            found = [term for start, term in runs if start <= index]
            if not found:
                raise Misfit(number, f"entry {index} is sent, and is gone from the log")
            terms.append(found[-1])
        return tuple(terms)


def _following(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | None]:
    """For each line the next one of its node."""
    found: list[Mapping[str, Any] | None] = []
    next_of: dict[str, Mapping[str, Any]] = {}
    for line in reversed(lines):
        found.append(next_of.get(line["node"]))
        next_of[line["node"]] = line
    return found[::-1]


def _hello(line: Mapping[str, Any]) -> Function:
    return Function({"type": "HeartbeatReply", "from": line["sender"], "to": line["receiver"], "term": line["m_term"]})


def _snapshot(head: Mapping[str, Any], index: int, term: int) -> Function:
    return Function({"type": "Append", **head, "prev": index, "prev_term": term, "entries": (), "commit": 0})


def _fields(event: str, line: Mapping[str, Any], **more: Any) -> Function:
    state = {name: line[name] for name in COMPARED}
    for name in ("vote", "leader", "durable_vote"):
        state[name] = state[name] or NOBODY
    # The line is written before the own answer is counted.
    own = {line["node"]} if event == "AskPreVotes" else set()
    state["votes"] = frozenset(line["votes"]) | own
    state["match"] = function(line["match"])
    state["runs"] = tuple(tuple(run) for run in line["runs"])
    fields = {"event": event, "i": line["node"], "to": NOBODY, "moods": frozenset({False}), "hello": False}
    return Function({**fields, "snapshot": False, "state": Function(state), "gone": frozenset(), **more})


def _forgetting(steps: Sequence[Step]) -> list[Step]:
    """Messages go with the last line that tells of them: less to carry."""
    seen: set[Function] = set()
    out = []
    for step in reversed(steps):
        message = step.fields.get("m")
        if message is not None and message not in seen:
            seen.add(message)
            step = attrs.evolve(step, fields=Function({**step.fields, "gone": frozenset({message})}))
        out.append(step)
    return out[::-1]
