"""Majority arithmetic over sets of voters. Source: Raft thesis 3.5, 3.6.2."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def majority(voters: int) -> int:
    """How many of `voters` are a majority."""
    return voters // 2 + 1


def has_majority(voters: Collection[str], granted: Collection[str]) -> bool:
    """Whether the voters among `granted`, each counted once, are a majority of `voters`."""
    return sum(1 for voter in set(granted) if voter in voters) >= majority(len(voters))


def is_lost(voters: Collection[str], refused: Collection[str]) -> bool:
    """Whether so many of `voters` said no that the others are no majority any more."""
    return len(voters) - sum(1 for voter in set(refused) if voter in voters) < majority(len(voters))


def quorum_index(voters: Collection[str], match: Mapping[str, int]) -> int:
    """The highest index that a majority of `voters` holds durably; an absent voter holds nothing."""
    held = sorted((match.get(voter, 0) for voter in voters), reverse=True)
    return held[majority(len(held)) - 1] if held else 0
