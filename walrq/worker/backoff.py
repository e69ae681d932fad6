"""How long a failed message waits for its next attempt.

Pure: the spread comes from a random stream that the caller hands in.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TypeAlias

import attrs

from walrq.errors import ConfigError
from walrq.limits import DELAY_MS_MAX

DELAY_S_MAX = DELAY_MS_MAX / 1000


@attrs.frozen(kw_only=True)
class Exponential:
    """Grows with every attempt: `first`, `first * factor`, ... up to `most`.

    Attributes:
        first: seconds before the second attempt.
        factor: what each further wait is multiplied by.
        most: longest wait in seconds.
        spread: each wait is shortened by a random part of up to this share of it, so that what failed together does not
            come back together; 0 = exact.
    """

    first: float = 1.0
    factor: float = 2.0
    most: float = 3600.0
    spread: float = 0.25

    def __attrs_post_init__(self) -> None:
        for name, least, most in (("first", 0, DELAY_S_MAX), ("factor", 1, 1e6), ("most", 0, DELAY_S_MAX)):
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"backoff: {name} is {getattr(self, name)}, allowed are {least:g} to {most:g}")
        if not 0 <= self.spread <= 1:
            raise ConfigError(f"backoff: spread is {self.spread}, allowed are 0 to 1")

    def wait_s(self, failures: int, rng: random.Random) -> float:
        """Seconds after failure number `failures` (1, 2, ...)."""
        grown = self.first * self.factor ** min(failures - 1, 64) if self.first else 0.0
        return min(self.most, grown) * (1.0 - self.spread * rng.random())


Backoff: TypeAlias = float | Exponential | Callable[[int], float]
"""Seconds, a policy, or a function from the number of failures so far (1, 2, ...) to seconds."""


def check(backoff: Backoff | None, owner: str) -> None:
    """Raise `ConfigError` unless it is one."""
    if backoff is None or isinstance(backoff, Exponential):
        return
    if isinstance(backoff, int | float) and not isinstance(backoff, bool):
        if not (math.isfinite(backoff) and 0 <= backoff <= DELAY_S_MAX):
            raise ConfigError(f"{owner}: backoff is {backoff} s, allowed are 0 to {DELAY_S_MAX:.0f} (30 days)")
    elif not callable(backoff):
        raise ConfigError(f"{owner}: backoff is seconds, walrq.Exponential(...) or a function of the failures so far")


def wait_s(backoff: Backoff | None, failures: int, rng: random.Random) -> float | None:
    """Seconds until the next attempt; None leaves it to the queue.

    Raises:
        ValueError: a function gave something that is no such number.
    """
    if backoff is None:
        return None
    if isinstance(backoff, Exponential):
        return backoff.wait_s(failures, rng)
    found: object = backoff(failures) if callable(backoff) else backoff
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= DELAY_S_MAX:
        raise ValueError(f"backoff gave {found!r}, allowed are 0 to {DELAY_S_MAX:.0f} seconds")
    return float(found)
