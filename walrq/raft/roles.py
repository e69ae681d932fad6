"""The roles of a node, and THE table of how they change."""

from __future__ import annotations

import enum
from typing import Final


class Role(enum.Enum):
    """What a node is in its term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


TRANSITIONS: Final = frozenset(
    {
        (Role.FOLLOWER, Role.PRE_CANDIDATE),
        (Role.FOLLOWER, Role.CANDIDATE),  # alone, or told to by the leader
        (Role.PRE_CANDIDATE, Role.PRE_CANDIDATE),
        (Role.PRE_CANDIDATE, Role.CANDIDATE),
        (Role.PRE_CANDIDATE, Role.FOLLOWER),
        (Role.CANDIDATE, Role.PRE_CANDIDATE),
        (Role.CANDIDATE, Role.CANDIDATE),
        (Role.CANDIDATE, Role.LEADER),
        (Role.CANDIDATE, Role.FOLLOWER),
        (Role.LEADER, Role.FOLLOWER),
    }
)


class Status(enum.Enum):
    """Which part a node takes in decisions."""

    NORMAL = "normal"
    RECOVERING = "recovering"  # being repaired: neither votes nor stands, and what it holds does not count
    LEARNER = "learner"  # or no member at all: never counted
