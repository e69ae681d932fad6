"""What a failing test shows of its server: what is in the queues, what was done to it, how to repeat it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from walrq.errors import WalrqError

if TYPE_CHECKING:
    from walrq.testing.server import Server

_COUNTS: Final = ("ready", "delayed", "leased", "parked", "dead")
_QUEUES_SHOWN_MAX: Final = 50
_NOTES_SHOWN_MAX: Final = 20


def describe(server: Server, *, repeat: str = "") -> str:
    """Several lines for a person.

    Args:
        repeat: the command that repeats the run. It names the run's seed, of which the server's is made, so that one
            stays untold: of two numbers only one could be typed in.
    """
    try:
        queues = server.queues()
        state = "running" if server.running else "down"
    except WalrqError as error:
        queues, state = [], error.text
    lines = [
        f"server  {server.url} ({state})",
        f"clock   {server.clock.now:%Y-%m-%d %H:%M:%S} UTC, advanced by {server.clock.advanced:.12g} s",
        f"repeat  {repeat}" if repeat else f"seed    {server.seed}",
    ]
    notes = server.faults.notes[-_NOTES_SHOWN_MAX:]
    if notes:
        lines.append(f"faults  {'; '.join(notes)}")
    if not queues:
        return "\n".join([*lines, "queues  none"])
    shown = queues[:_QUEUES_SHOWN_MAX]
    width = max(len("queues"), *(len(queue.name) for queue in shown))
    lines.append("  ".join([f"{'queues':<{width}}", *(f"{name:>7}" for name in _COUNTS)]))
    for queue in shown:
        counts = [getattr(queue, name) for name in _COUNTS]
        lines.append("  ".join([f"{queue.name:<{width}}", *(f"{count:>7}" for count in counts)]))
    if len(queues) > len(shown):
        lines.append(f"and {len(queues) - len(shown)} more")
    return "\n".join(lines)
