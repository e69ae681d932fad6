"""Short sentences in the native protocol, for tests that want to see exactly what is answered."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.stops import Line
from walrq import api
from walrq.protocol.columns import pack, unpack_run


def push(line: Line, queue: str, payloads: Sequence[bytes]) -> api.Pushed | api.Failed:
    """Push one batch."""
    reply: api.Pushed | api.Failed = line.call(api.Push(queue, pack(payloads)))
    return reply


def take(line: Line, queue: str, most: int = 1_000, visibility_ms: int = 60_000) -> list[api.Delivered]:
    """Lease what is there."""
    reply = line.call(api.Poll((queue,), max_messages=most, visibility_ms=visibility_ms))
    assert isinstance(reply, api.Polled), reply
    return list(reply.runs)


def ack(line: Line, runs: Sequence[api.Delivered]) -> tuple[int, ...]:
    """Acknowledge runs of one queue; their codes."""
    items = tuple(api.Item(run.receipt) for run in runs)
    reply = line.call(api.Settle(runs[0].queue, api.SettleKind.ACK, items))
    assert isinstance(reply, api.Settled), reply
    return reply.codes


def empty(line: Line, queue: str) -> list[bytes]:
    """Take and acknowledge everything; the payloads in order."""
    payloads: list[bytes] = []
    while runs := take(line, queue):
        for run in runs:
            payloads += unpack_run(run).payloads
        assert set(ack(line, runs)) == {0}
    return payloads
