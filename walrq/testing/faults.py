"""What a test can do to its server: outages, crashes, cut connections, lost answers, a full or slow disk.

Every fault takes effect when the call returns. Those that last are ended by the call that `heal` names, or by leaving a
`with` block around them::

    with faults.refuse_connections():
        ...

Whatever is left to chance is drawn from `seed`, which the pytest plugin prints.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final

from walrq.errors import InvalidArgument
from walrq.testing.wire import Chances

if TYPE_CHECKING:
    from walrq.testing.server import Server

SEED_MAX: Final = 2**32 - 1
_NOTES_MAX: Final = 200


def derive_seed(seed: int, name: str) -> int:
    """A seed of its own for `name`, the same on every machine; 0..SEED_MAX."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


class Lasting:
    """A fault that lasts: until the end of the `with` block, or of the test."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()


class Faults:
    """See the module; `server.faults`, or the fixture `walrq_faults`.

    Attributes:
        seed: of everything drawn here.
        notes: what was done, newest last.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.seed = server.seed
        self.notes: list[str] = []
        self._crashes = 0

    def note(self, text: str) -> None:
        """Keep a line for the report of a failing test."""
        self.notes.append(text)
        del self.notes[:-_NOTES_MAX]

    # --- the node -------------------------------------------------------------------------------------------
    def restart(self) -> None:
        """Stop in good order and start again: connections end, everything stored is there."""
        self.note("restart")
        self._server.stop()
        self._server.start()

    def crash(self, seed: int | None = None) -> None:
        """Power loss and start: what was acknowledged is there; what was not synced is kept, lost or torn.

        Args:
            seed: decides the fates; None = the next one drawn from `self.seed`.
        """
        if seed is None:
            seed = self.next_crash_seed()
        self.note(f"crash, seed {seed}")
        self._server.kill(power_loss_seed=seed)
        self._server.start()

    def kill(self) -> None:
        """End the node's process and start it again; the machine, and all that was written, stays."""
        self.note("kill")
        self._server.kill()
        self._server.start()

    def stop(self) -> Lasting:
        """The node is down, and connections are refused, until `start`."""
        self.note("stop")
        self._server.stop()
        return Lasting(self.start)

    def start(self) -> None:
        """The end of `stop`."""
        self.note("start")
        self._server.start()

    def next_crash_seed(self) -> int:
        """The next crash's seed."""
        self._crashes += 1
        return derive_seed(self.seed, f"crash {self._crashes}")

    # --- the network ----------------------------------------------------------------------------------------
    def cut_connections(self) -> int:
        """End every connection at once, without a word; new ones are taken. Returns how many there were."""
        count = self._server.wire.cut()
        self.note(f"cut {count} connections")
        return count

    def refuse_connections(self) -> Lasting:
        """Cut every connection and reset new ones as soon as they come, until `accept_connections`."""
        self._server.wire.refusing = True
        self.cut_connections()
        return Lasting(self.accept_connections)

    def accept_connections(self) -> None:
        """The end of `refuse_connections`."""
        self._server.wire.refusing = False

    def drop_reply(self, nth: int = 1) -> None:
        """The n-th reply from now is lost and its connection cut: it was done, and its caller does not know."""
        self._server.wire.replies_until_loss = _count(nth)

    def drop_request(self, nth: int = 1) -> None:
        """The n-th request from now is lost and its connection cut: it was not done, and its caller does not know."""
        self._server.wire.requests_until_loss = _count(nth)

    def seeded(
        self,
        seed: int | None = None,
        *,
        lost_requests: float = 0.05,
        lost_replies: float = 0.05,
        crashes: float = 0.01,
    ) -> Lasting:
        """A mixture, drawn request by request and reply by reply, until `heal`.

        The same seed gives the same decisions for the same sequence of requests and replies.

        Args:
            seed: None = `self.seed`.
            lost_requests, lost_replies, crashes: the chance of each, 0 to 1.
        """
        for name, chance in (("lost_requests", lost_requests), ("lost_replies", lost_replies), ("crashes", crashes)):
            if not 0 <= chance <= 1:
                raise InvalidArgument(f"{name} is {chance}, it must be from 0 to 1", field=name)
        chosen = self.seed if seed is None else seed
        self.note(f"seeded faults, seed {chosen}")
        self._server.wire.chances = Chances(random.Random(chosen), lost_requests, lost_replies, crashes)
        return Lasting(self._calm)

    def _calm(self) -> None:
        self._server.wire.chances = None
        # A crash that was drawn last may still be on its way.
        self._server.start()

    # --- the disk -------------------------------------------------------------------------------------------
    def disk_full(self) -> Lasting:
        """No more room: pushes are refused with `DiskFull`, acks and polls go on, until `disk_has_room`."""
        self.note("disk full")
        self._server.fill_disk()
        return Lasting(self.disk_has_room)

    def disk_has_room(self) -> None:
        """The end of `disk_full`."""
        self.note("disk has room")
        self._server.make_room()

    def slow_disk(self, ms: float) -> Lasting:
        """Every sync takes `ms` longer, in real time; 0 ends it."""
        if not (math.isfinite(ms) and ms >= 0):
            raise InvalidArgument(f"ms is {ms}, it must be a finite number, 0 or more", field="ms")
        self.note(f"disk slower by {ms:g} ms")
        self._server.slow_disk(ms / 1000)
        return Lasting(lambda: self.slow_disk(0))

    # --- the end --------------------------------------------------------------------------------------------
    def heal(self) -> None:
        """End every fault: the node runs, its disk has room and is fast, everything arrives."""
        self._server.wire.heal()
        self._server.start()
        self._server.make_room()
        self._server.slow_disk(0)


def _count(nth: int) -> int:
    if nth < 1:
        raise InvalidArgument(f"nth is {nth}, it must be 1 or more", field="nth")
    return nth
