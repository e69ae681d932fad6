"""Who belongs to the group, and how that changes."""

from __future__ import annotations

import itertools

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from walrq.errors import InvalidArgument, RemoteProtocolError
from walrq.limits import RAFT_MEMBERS_MAX
from walrq.raft.membership import FORMAT, Configuration, Member, Membership
from walrq.raft.quorum import majority

nodes = st.sampled_from("abcdefg")


@given(st.sets(nodes, min_size=1), st.sets(nodes))
def test_a_configuration_survives_its_bytes(voters: set[str], learners: set[str]) -> None:
    """Addresses and disk marks are part of it; the order in which it was made is not."""
    configuration = Configuration(
        {node: Member(node, f"{node}:1", node.encode() * 16) for node in sorted(voters)},
        {node: Member(node) for node in sorted(learners - voters)},
    )

    assert configuration == Configuration.decode(configuration.encode())
    assert Configuration.of(sorted(voters)).encode() == Configuration.of(sorted(voters, reverse=True)).encode()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\xff", "configuration"),
        (cbor2.dumps([2, [], []]), "format 1"),
        (cbor2.dumps({}), "format 1"),
        (cbor2.dumps([FORMAT, [], []]), "voters is empty"),
        (cbor2.dumps([FORMAT, 1, []]), "voters is not an array"),
        (cbor2.dumps([FORMAT, [["a", "", b""]] * 33, []]), "at most 32"),
        (cbor2.dumps([FORMAT, [["", "", b""]], []]), "voters has an item"),
        (cbor2.dumps([FORMAT, [["a", "", b""]], [["b"]]]), "learners has an item"),
        (cbor2.dumps([FORMAT, [["a", "", b""]] * 2, []]), "voters names a node twice"),
        (cbor2.dumps([FORMAT, [["a", "", b""]], [["a", "", b""]]]), "both voter and learner"),
    ],
)
def test_what_is_no_configuration_is_refused(body: bytes, why: str) -> None:
    """The line names the field."""
    with pytest.raises(RemoteProtocolError, match=why):
        Configuration.decode(body)


def test_changes_are_refused_by_name() -> None:
    """Bad input gets one clear line."""
    group = Configuration.of("ab", "c")
    for text, change in {
        "'a' is in the group": lambda: group.with_learner(Member("a")),
        "'c' is in the group": lambda: group.with_learner(Member("c")),
        "node is 0 bytes": lambda: group.with_learner(Member("")),
        "node is 300 bytes": lambda: group.with_learner(Member("x" * 300)),
        "'a' is not a learner": lambda: group.promoted("a"),
        "'q' is not in the group": lambda: group.without("q"),
        "'z' is the last voter": lambda: Configuration.of("z").without("z"),
        "32 nodes, which is the limit": lambda: Configuration.of(
            [f"n{number}" for number in range(RAFT_MEMBERS_MAX)]
        ).with_learner(Member("x")),
    }.items():
        with pytest.raises(InvalidArgument, match=text):
            change()


@given(st.sets(nodes, min_size=1), st.sets(nodes))
def test_each_change_moves_one_voter_at_most(voters: set[str], learners: set[str]) -> None:
    """QuorumOverlap: any majority before and any after share a voter."""
    before = Configuration.of(voters, learners - voters)
    changes = [before.with_learner(Member("new"))]
    changes += [before.promoted(node) for node in before.learners]
    changes += [before.without(node) for node in before.nodes if set(before.voters) != {node}]
    for after in changes:
        assert len(set(before.voters) ^ set(after.voters)) <= 1
        for one in itertools.combinations(before.voters, majority(len(before.voters))):
            for other in itertools.combinations(after.voters, majority(len(after.voters))):
                assert set(one) & set(other)


def test_the_last_configuration_in_the_log_is_in_effect() -> None:
    """It falls back when its entry is cut."""
    one, two, three = (Configuration.of(names) for names in ("abc", "ab", "a"))
    membership = Membership(0, one)
    membership.append(4, two)
    membership.append(9, three)
    assert (9, three) == (membership.index, membership.current)
    assert [one, one, two, two, three] == [membership.at(index) for index in (0, 3, 4, 8, 9)]

    membership.truncate(9)
    assert (4, two) == (membership.index, membership.current)
    membership.compact(3)
    assert 2 == len(membership.history)
    membership.compact(5)
    assert ((4, two),) == membership.history
    with pytest.raises(AssertionError):
        membership.append(4, three)
    with pytest.raises(AssertionError):
        membership.at(3)
    with pytest.raises(AssertionError):
        membership.truncate(4)


def test_a_snapshot_brings_its_own() -> None:
    """ConfigFromSnapshotOrLog."""
    membership = Membership(0, Configuration.of("abc"))
    membership.append(4, Configuration.of("ab"))
    membership.reset(7, Configuration.of("xy"))

    assert ((7, Configuration.of("xy")),) == membership.history


def test_a_removed_node_may_lead_until_its_removal_is_committed() -> None:
    """Thesis 4.2.2: the entry may be nowhere but there."""
    membership = Membership(0, Configuration.of("ab", "l"))
    membership.append(5, Configuration.of("b", "l"))

    assert membership.may_lead("a", 4) and membership.may_lead("b", 5)
    assert not membership.may_lead("a", 5)
    assert not membership.may_lead("l", 4) and not membership.may_lead("q", 0)

    membership.append(7, Configuration.of("bl"))
    membership.append(9, Configuration.of("b"))
    assert membership.may_lead("l", 5) and membership.may_lead("l", 8)
    assert not membership.may_lead("l", 9)
