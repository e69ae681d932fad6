"""The trace says what happened, completely; without a sink it costs nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.raft.hosts import Host, group
from walrq.raft import trace
from walrq.raft.core import Raft
from walrq.raft.entries import HardState, Tail

STATE = {
    "event",
    "node",
    "tick",
    "role",
    "term",
    "vote",
    "leader",
    "index",
    "last_term",
    "runs",
    "base",
    "commit",
    "durable",
    "durable_term",
    "durable_vote",
    "voters",
    "learners",
    "config_index",
    "votes",
    "match",
    "next",
}


def traced() -> list[dict[str, Any]]:
    """The lines of an election, an entry, and of a disk whose loss only a snapshot makes good."""
    lines: list[dict[str, Any]] = []
    a, b = hosts = [Host(name, group("ab"), trace_to=lines.append) for name in "ab"]
    a.raft.campaign()
    for round_ in range(80):
        for host in hosts:
            host.raft.tick()
            if host.writing is None and host.begin_write():
                host.end_write()
            host.feed()
            for message in host.messages():
                (a if message.receiver == "a" else b).receive(message)
            host.apply()
        if round_ == 20:
            a.propose(b"x")
        if round_ == 30:
            assert a.snapshot()
            b.crash()
            b.rot(1)
            b.start()
    return lines


def test_each_line_is_complete_and_plain() -> None:
    """A checker that must guess which message was received takes minutes instead of seconds."""
    lines = traced()
    seen = set()
    for line in lines:
        assert STATE <= set(line)
        assert line == json.loads(json.dumps(line))
        seen.add(line["event"])
        if line["event"].startswith(("Recv", "Send")):
            assert {"message", "sender", "receiver", "m_term", "m_cluster"} <= set(line)
            assert line["event"][4:] == line["message"]
    wanted = {"Campaign", "BecomeLeader", "Propose", "AdvanceCommit", "Persisted"}
    wanted |= {f"{way}{kind}" for way in ("Send", "Recv") for kind in ("Vote", "VoteReply", "Append", "AppendReply")}
    assert wanted <= seen


def test_entries_are_listed_without_their_bodies() -> None:
    """Terms and kinds decide; payloads are nobody's business."""
    lines = traced()
    appends = [line for line in lines if line["event"] == "RecvAppend" and line["m_entries"]]

    assert all("entries" not in line and {"m_prev_index", "m_prev_term", "m_commit"} <= set(line) for line in appends)
    assert [[1, 0]] == appends[0]["m_entries"]


def test_a_snapshot_is_told_with_its_group_and_without_its_bytes() -> None:
    """Both ends."""
    lines = traced()
    events = [line for line in lines if line["event"] in ("RecvSnapshotOffer", "RecvSnapshotChunk", "Installed")]

    assert {"voters": ["a", "b"], "learners": []} == events[0]["m_configuration"]
    chunks = [line for line in events if line["event"] == "RecvSnapshotChunk"]
    assert all("m_data" not in line and line["m_bytes"] > 0 for line in chunks)
    assert "Installed" in {line["event"] for line in events}


def test_nothing_is_computed_without_a_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off by default, at no cost."""
    monkeypatch.setattr(trace, "line", None)
    raft = Raft("a", {"a"}, HardState(), Tail())
    raft.campaign()
    raft.persisted(raft.take_ready())
    raft.persisted(raft.take_ready())

    assert raft.is_leader
