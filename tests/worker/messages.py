"""Leased messages that no server gave out."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping
from typing import Any

import cbor2

from walrq import api
from walrq.client.messages import Batch, Message
from walrq.worker.leases import Held

_NUMBERS = itertools.count(1)


def message(
    queue: str = "q", deadline: float = 30.0, headers: Mapping[str, Any] | None = None, attempts: int = 0
) -> Message:
    """A message whose lease ends at `deadline`."""
    column = b"" if headers is None else cbor2.dumps(dict(headers))
    run = api.Delivered(
        queue=queue,
        receipt=b"r",
        count=1,
        first_id=next(_NUMBERS),
        delivery=1,
        attempts=attempts,
        fence=(1, 0),
        priority=0,
        pushed_ms=0,
        group=None,
        base=0,
        ends=struct.pack("<I", 1),
        payloads=b"x",
        header_ends=None if headers is None else struct.pack("<I", len(column)),
        headers=None if headers is None else column,
    )
    return Batch(run, deadline).messages()[0]


def held(
    queue: str = "q",
    *,
    lease: float = 30.0,
    at: float = 0.0,
    headers: Mapping[str, Any] | None = None,
    attempts: int = 0,
) -> Held:
    """A lease of `lease` seconds that begins at `at`."""
    return Held(message(queue, at + lease, headers, attempts), lease)
