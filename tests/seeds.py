"""Seeds that repeat: the same on every machine and under every PYTHONHASHSEED."""

from __future__ import annotations

import hashlib

SEED_MAX = 2**32 - 1


def derive_seed(session_seed: int, name: str) -> int:
    """The seed of the test called `name` in the run that was started with `session_seed`; 0..SEED_MAX."""
    digest = hashlib.sha256(f"{session_seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
