"""Runs of three cores under a random schedule, as traces; and traces of what never happened.

run(seed)             the lines of one schedule: loss, copies, reordering, crashes, slow disks, snapshots
FORGERIES             by name: changes a run at one line, so that this line cannot be
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from tests.raft.hosts import Host, group
from walrq.raft.election import Timing
from walrq.raft.messages import Message

Line = dict[str, Any]
NAMES: Final = ("a", "b", "c")
TIMING: Final = Timing(election=5, spread=5, heartbeat=2, stall=12)
STEPS: Final = 200


def run(seed: int, steps: int = STEPS) -> list[Line]:
    """The lines of one schedule."""
    lines: list[Line] = []
    drive(seed, steps, lines)
    return lines


def recorded(seed: int, steps: int = STEPS) -> list[Line]:
    """The same of cores that may be broken: what was noted until one of their own checks stopped them."""
    lines: list[Line] = []
    with contextlib.suppress(AssertionError):
        drive(seed, steps, lines)
    return lines


def drive(seed: int, steps: int, lines: list[Line]) -> None:
    """Three cores under one schedule."""
    rng = random.Random(seed)
    hosts = {
        name: Host(name, group(NAMES), seed=rng.randrange(1 << 30), timing=TIMING, trace_to=lines.append)
        for name in NAMES
    }
    wire: list[Message] = []
    for _ in range(steps):
        host = hosts[rng.choice(NAMES)]
        chance = rng.random()
        if not host.alive:
            if chance < 0.3:
                host.start()
            continue
        if chance < 0.03:
            host.crash(rng.randrange(4))
            continue
        if chance < 0.45:
            for _ in range(rng.choice((1, 1, 3))):
                host.raft.tick()
        elif chance < 0.55 and host.raft.accepts:
            host.propose(b"x")
        elif chance < 0.57 and host.raft.accepts:
            host.raft.transfer(rng.choice([name for name in NAMES if name != host.name]))
        elif chance < 0.6:
            host.apply()
            host.snapshot(rng.choice((0, 2)))
        elif wire:
            # Any of the first few, so that they overtake each other; some are lost, some come again.
            number = rng.randrange(min(len(wire), 6))
            message = wire[number]
            fate = rng.random()
            if fate > 0.1:
                del wire[number]
            host = hosts[message.receiver]
            if fate > 0.9 or not host.alive:
                continue
            host.receive(message)
        host.feed()
        wire += host.messages()
        if host.writing is None:
            host.begin_write()
        elif rng.random() < 0.6:
            host.end_write()
            wire += host.messages()


Forgery = Callable[[list[Line]], int | None]


def first(lines: Sequence[Line], wanted: Callable[[Mapping[str, Any]], bool]) -> int | None:
    """The number, from 0, of the first line that is wanted, and is not told of twice: by an inner line as well."""
    return next(
        (
            number
            for number, line in enumerate(lines)
            if wanted(line) and (number == 0 or lines[number - 1]["event"] != "AdvanceCommit")
        ),
        None,
    )


def changed(wanted: Callable[[Mapping[str, Any]], bool], change: Callable[[Line], None]) -> Forgery:
    """Changes the first line that is wanted; its number, from 0."""

    def forge(lines: list[Line]) -> int | None:
        number = first(lines, wanted)
        if number is not None:
            change(lines[number])
        return number

    return forge


def event(name: str, **fields: Any) -> Callable[[Mapping[str, Any]], bool]:
    """Lines of an event in which fields have these values."""
    return lambda line: line["event"] == name and all(line[key] == value for key, value in fields.items())


def appended(line: Mapping[str, Any]) -> bool:
    """An append that brought the log beyond what is committed."""
    return event("RecvAppend")(line) and 0 < line["commit"] < line["index"] and line["term"] == line["m_term"]


def cut_committed(line: Line) -> None:
    """The log ends before the commit."""
    end = line["commit"] - 1
    line["runs"] = [run for run in line["runs"] if run[0] <= end]
    line["index"], line["durable"] = end, min(line["durable"], end)
    line["last_term"] = line["runs"][-1][1] if line["runs"] else line["base"][1]


def granted(line: Mapping[str, Any]) -> bool:
    """A vote was given."""
    return event("RecvVote")(line) and line["vote"] == line["sender"] and line["term"] == line["m_term"]


def votes_again(lines: list[Line]) -> int | None:
    """A voter gives its vote of a term to somebody else, too."""
    number = first(lines, granted)
    if number is None:
        return None
    line = lines[number]
    other = next(name for name in NAMES if name not in (line["node"], line["sender"]))
    again = {**copy.deepcopy(line), "sender": other, "vote": other}
    lines.insert(number + 1, again)
    return number + 1


def vote_before_write(lines: list[Line]) -> int | None:
    """A vote is told before it is written."""
    number = first(lines, event("SendVoteReply", m_granted=True))
    if number is None:
        return None
    node = lines[number]["node"]
    written = max(at for at in range(number) if lines[at]["node"] == node and lines[at]["event"] == "Persisted")
    lines.insert(written, lines.pop(number))
    return written


def received_from_nowhere(lines: list[Line]) -> int | None:
    """An acknowledgement that nobody gave."""
    number = first(lines, event("RecvAppendReply", m_accepted=True))
    if number is not None:
        lines[number]["m_index"] += 100
    return number


FORGERIES: Final[Mapping[str, Forgery]] = {
    "votes for another than asked": changed(granted, lambda line: line.update(vote=line["node"])),
    "votes twice in a term": votes_again,
    "tells a vote that is not written": vote_before_write,
    "leads after one vote too few": changed(
        event("Persisted", role="candidate"), lambda line: line.update(role="leader", leader=line["node"])
    ),
    "commits without a quorum": changed(
        lambda line: event("Persisted", role="leader")(line) and line["commit"] < line["index"],
        lambda line: line.update(commit=line["index"]),
    ),
    "says in a call what the call does not": changed(
        event("AdvanceCommit"), lambda line: line.update(commit=line["commit"] + 1)
    ),
    "cuts what is committed": changed(appended, cut_committed),
    "counts as durable what is not": changed(
        lambda line: event("RecvAppend")(line) and line["durable"] < line["index"],
        lambda line: line.update(durable=line["index"]),
    ),
    "takes an acknowledgement from nowhere": received_from_nowhere,
    "believes that a follower holds more": changed(
        event("RecvAppendReply", role="leader", m_accepted=True),
        lambda line: line["match"].update({line["sender"]: line["match"][line["sender"]] + 1}),
    ),
    "goes back to an older term": changed(
        lambda line: event("RecvAppend")(line) and line["term"] > 1, lambda line: line.update(term=line["term"] - 1)
    ),
    "sends what it does not hold as committed": changed(
        event("SendHeartbeat"), lambda line: line.update(m_commit=line["commit"] + 1)
    ),
    "forgets its vote in a crash": changed(
        lambda line: event("Start")(line) and line["vote"] is not None,
        lambda line: line.update(vote=None, durable_vote=None),
    ),
}


def forged(name: str, seeds: Iterable[int]) -> tuple[list[Line], int]:
    """A run of one of the seeds with that forgery, and the number, from 1, of the line that cannot be."""
    for seed in seeds:
        lines = copy.deepcopy(run(seed))
        number = FORGERIES[name](lines)
        if number is not None:
            return lines, number + 1
    raise AssertionError(f"no seed gives an opportunity: {name}")
