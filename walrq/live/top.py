"""`walrq top`: a look at the node, a picture, a key; until q.

    watch ─┬─ _look       asks the node every interval; an answer that does not come is an outage to be shown
           ├─ _listen     keys
           └─ _heed       signals: end, suspend, another size

A node that stops or is restarted ends nothing: the picture says so and goes on when it is back.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import attrs
import trio

from walrq import aio
from walrq.client.blocking import Client as BlockingClient
from walrq.client.config import parse_url
from walrq.errors import WalrqError
from walrq.live import members
from walrq.live.board import Board, ordered
from walrq.live.rates import Flow, Look, Rates, Reading
from walrq.live.screen import Screen, keys

# An answer later than this is an outage, however often one looks.
PATIENCE_S: Final = 1.5
READ_BYTES: Final = 1024
ENDING: Final = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def readings(
    client: BlockingClient, interval_s: float, prefix: str, pause: Callable[[float], None]
) -> Iterator[Reading]:
    """A look every `interval_s` seconds, without end; the first has no rates.

    Raises:
        WalrqError: as the client does.
    """
    rates = Rates()
    while True:
        queues = tuple(client.list_queues(prefix))
        # After the queues: in a cluster they lead to the node that knows most.
        stats = client.stats()
        yield rates.feed(Look(stats, queues, client.cluster() if stats.get("peers") else None))
        pause(interval_s)


def value(reading: Reading, sort: str = "queue") -> dict[str, Any]:
    """A reading for JSON."""
    return {
        "at": round(time.time(), 3),
        "node": dict(reading.look.stats),
        "cluster": None if reading.look.cluster is None else members.value(reading.look.cluster),
        "turns_s": _rounded(reading.turns_s),
        "queues": [_flow_value(flow) for flow in ordered(reading.flows, sort, False)],
    }


def _flow_value(flow: Flow) -> dict[str, Any]:
    info = flow.info
    names = ("ready", "delayed", "leased", "parked", "dead", "bytes", "pushed", "delivered", "acked")
    return {
        "queue": info.name,
        **{name: getattr(info, name) for name in names},
        "push_s": _rounded(flow.push_s),
        "deliver_s": _rounded(flow.deliver_s),
        "ack_s": _rounded(flow.ack_s),
        "oldest_s": _rounded(flow.oldest_s),
        "paused": bool(info.settings.get("paused")),
    }


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 3)


def watch(server: str | None, interval_s: float, prefix: str, sort: str) -> int:
    """Show the live view on this terminal until it is ended; the exit status.

    Raises:
        ServerUnreachable: nobody answered to begin with.
        WalrqError: the server refuses what is asked, for good.
    """
    return trio.run(_run, server, interval_s, prefix, sort, strict_exception_groups=True)


async def _run(server: str | None, interval_s: float, prefix: str, sort: str) -> int:
    async with aio.connect(server, session=False) as client:
        screen = Screen()
        address = ", ".join(map(str, parse_url(server)))
        view = View(client, screen, Board(address, sort=sort), interval_s, prefix)
        with screen:
            await view.run()
    if view.failure is not None:
        raise view.failure
    return view.status


@attrs.define(eq=False)
class View:
    """The three tasks around one board.

    Attributes:
        status: the exit status, once it ended.
        failure: what ended it, when the server refused for good.
    """

    client: aio.Client
    screen: Screen
    board: Board
    interval_s: float
    prefix: str
    status: int = 0
    failure: WalrqError | None = None
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def run(self) -> None:
        """Until q, a signal, or an error for good."""
        numbers = (*ENDING, signal.SIGTSTP, signal.SIGWINCH)
        with trio.open_signal_receiver(*numbers) as signals, self._scope:
            async with trio.open_nursery() as tasks:
                tasks.start_soon(self._heed, signals)
                tasks.start_soon(self._look)
                if self.screen.keyboard is not None:
                    tasks.start_soon(self._listen, self.screen.keyboard)

    def _end(self, status: int) -> None:
        self.status = status
        self._scope.cancel()

    def _draw(self) -> None:
        try:
            self.screen.show(self.board.draw(*self.screen.size()))
        except OSError:
            # The terminal is gone, as by a hang-up.
            self._end(ENDING[signal.SIGHUP])

    async def _look(self) -> None:
        rates = Rates()
        self._draw()
        while True:
            next_at = trio.current_time() + self.interval_s
            try:
                with trio.move_on_after(PATIENCE_S) as patience:
                    queues = tuple(await self.client.list_queues(self.prefix))
                    stats = await self.client.stats()
                    cluster = await self.client.cluster() if stats.get("peers") else None
                    self.board.take(rates.feed(Look(stats, queues, cluster)))
                if patience.cancelled_caught:
                    self.board.away = True
                    next_at = trio.current_time()
            except WalrqError as error:
                if error.definite and not error.retry:
                    self.failure = error
                    self._end(0)
                self.board.away = True
            self._draw()
            await trio.sleep_until(next_at)

    async def _listen(self, keyboard: int) -> None:
        while True:
            await trio.lowlevel.wait_readable(keyboard)
            data = os.read(keyboard, READ_BYTES)
            if not data:
                self._end(ENDING[signal.SIGHUP])
                return
            for key in keys(data):
                if not self.board.press(key):
                    self._end(0)
                    return
            self._draw()

    async def _heed(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            if number in ENDING:
                self._end(ENDING[signal.Signals(number)])
                return
            if number == signal.SIGTSTP:
                self.screen.leave()
                # Goes on here when it is continued.
                os.kill(os.getpid(), signal.SIGSTOP)
                self.screen.enter()
            self._draw()
