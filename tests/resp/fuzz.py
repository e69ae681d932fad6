"""Clients gone wild against one connection object: `python -m tests.resp.fuzz --minutes 10`.

Two kinds of life, from one integer each. *Mad*: bytes of every kind, whole commands among them, cut anywhere. *Busy*:
legal commands, answered in any order with whatever a node may answer; then every command has exactly one reply, in
order, which echoes in between prove. In both nothing but protocol errors may come of it, and what is held is bounded.
"""

from __future__ import annotations

import argparse
import random
import resource
import secrets
import time
from typing import Any, Final

from tests.resp.parts import FakeHost, frame, polled, pushed
from walrq import api
from walrq.errors import Code
from walrq.limits import RESP_COMMAND_BYTES_MAX, RESP_INLINE_BYTES_MAX
from walrq.resp.commands import COMMANDS
from walrq.resp.connection import RespConnection
from walrq.resp.host import Follow, Rewrite

NAMES: Final = sorted(COMMANDS)
WORDS: Final = (
    *(b"q", b"p", b"jobs", b"", b"\xff\xfe", b"a\r\nb", b"x" * 300, b"task-1", b"task-0", b"task-99999999999999999999"),
    *(b"0", b"1", b"-1", b"1.5", b"nan", b"inf", b"255", b"256", b"9" * 30, b"1e9999", b"30", b"0.001"),
    *(b"NO", b"ONE", b"RIGHT", b"LEFT", b"MATCH", b"*", b"[", b"\\", b"COUNT", b"GET", b"DOCS", b"INFO", b"3", b"AUTH"),
)
PIECES: Final = (
    *(b"*1\r\n", b"*2\r\n", b"*-1\r\n", b"*0\r\n", b"*10002\r\n", b"*1000000\r\n", b"*2147483648\r\n", b"*01\r\n"),
    *(b"$4\r\n", b"$-1\r\n", b"$-2\r\n", b"$8388608\r\n", b"$2147483648\r\n", b"$00\r\n", b"PING\r\n", b"\r\n", b"\n"),
    *(
        b"PING\n",
        b"GET / HTTP/1.1\r\n",
        b"LPUSH q 'x\n",
        b'LPUSH q "\\x',
        b"\x16\x03\x01",
        b"\x00" * 9,
        b"+OK\r\n",
        b":1\r\n",
    ),
)
FAILURES: Final = (Code.QUEUE_NOT_FOUND, Code.QUEUE_FULL, Code.LEADERSHIP_LOST, Code.DRAINING, Code.OVERLOADED, 999)


def command(rng: random.Random) -> bytes:
    """Some command with some arguments."""
    name = rng.choice(NAMES) if rng.random() < 0.95 else rng.choice(WORDS)
    return frame(rng.choice((name, name.lower())), *rng.choices(WORDS, k=rng.choice((0, 1, 1, 2, 2, 3, 4, 6))))


def reply_to(rng: random.Random, request: Any) -> Any:
    """What a node may answer."""
    if rng.random() < 0.15:
        return api.Failed(int(rng.choice(FAILURES)), "no\r\n-no")
    kind = type(request)
    if kind is api.Push:
        return pushed(rng.randrange(5), request.columns.count)
    if kind is api.Poll:
        count = rng.randrange(min(request.max_messages, 4) + 1) if not request.wait_ms else rng.randrange(2)
        payloads = [rng.choice(WORDS) for _ in range(count)]
        if request.numbered or request.into is not None:
            return polled(*payloads, task=rng.randrange(1 << 20))
        return polled(*payloads)
    if kind is api.Settle:
        return api.Settled(tuple(rng.choice((0, int(Code.RECEIPT_EXPIRED))) for _ in request.items))
    if kind is api.Touch:
        return api.Touched(tuple(rng.choice((0, int(Code.RECEIPT_EXPIRED))) for _ in request.items), (0,))
    if kind is api.ListDead:
        return api.Page((), rng.choice((0, 0, 5)))
    if kind is api.Redrive:
        return api.Moved(rng.randrange(3), rng.random() < 0.3)
    if kind is api.ShowQueue:
        return _info("q")
    if kind is api.ListQueues:
        return api.QueueList((_info("a:;%"), _info("b")), rng.choice(("", "", "b")))
    if kind is api.Stats:
        return api.StatsReply({"queues": 2})
    if kind in (api.ClusterStatus, api.TransferLeadership):
        return api.ClusterState("n1", "c", rng.choice(("n1", "n2", None)), 1, 1, 1, ())
    assert kind in (api.PurgeDead, api.DeleteQueue, Rewrite, Follow), kind
    return api.Done(rng.randrange(3))


def _info(name: str) -> api.QueueInfo:
    return api.QueueInfo(name, 1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0, {})


def mad(seed: int, pieces: int = 60) -> None:
    """Bytes of every kind."""
    rng = random.Random(seed)
    connection = RespConnection(FakeHost(rng.choice((None, b"secret"))), 1, COMMANDS)
    for _ in range(pieces):
        if rng.random() < 0.6:
            data = command(rng)
        elif rng.random() < 0.7:
            data = rng.choice(PIECES)
        else:
            data = rng.randbytes(rng.randrange(200))
        if rng.random() < 0.3:
            cut = rng.randrange(len(data) + 1)
            connection.receive(data[:cut])
            data = data[cut:]
        connection.receive(data)
        for ask in connection.take_asks():
            connection.answer(ask.id, reply_to(rng, ask.request))
        assert connection.partial <= RESP_COMMAND_BYTES_MAX + RESP_INLINE_BYTES_MAX
        said = connection.take_output()
        assert not said or said.endswith(b"\r\n"), said
        if connection.is_over:
            break


_ENDING: Final = frozenset({b"QUIT", b"SYNC", b"AUTH", b"RESET", b"HELLO", b"COMMAND"})


def busy(seed: int, commands: int = 60) -> None:
    """Legal commands, answered in any order."""
    rng = random.Random(seed)
    connection = RespConnection(FakeHost(), 1, COMMANDS)
    data = b""
    expected = 0
    echoes = []
    open_asks: list[Any] = []
    said = b""
    for number in range(commands):
        name = rng.choice([name for name in NAMES if name not in _ENDING])
        for _ in range(rng.choice((1, 1, 4))):
            data += frame(name, *rng.choices(WORDS, k=rng.choice((1, 2, 2, 3, 4))))
            expected += 1
        if rng.random() < 0.3:
            echoes.append((expected, b"echo-%d" % number))
            data += frame(b"ECHO", echoes[-1][1])
            expected += 1
        if rng.random() < 0.4:
            connection.receive(data)
            data = b""
        open_asks += connection.take_asks()
        while open_asks and rng.random() < 0.5:
            ask = open_asks.pop(rng.randrange(len(open_asks)))
            connection.answer(ask.id, reply_to(rng, ask.request))
            open_asks += connection.take_asks()
        said += connection.take_output()
    connection.receive(data)
    open_asks += connection.take_asks()
    # A wait for ever ends when the client closes its side.
    connection.takes_leases = False
    while open_asks:
        ask = open_asks.pop(rng.randrange(len(open_asks)))
        connection.answer(ask.id, reply_to(rng, ask.request))
        open_asks += connection.take_asks()
    said += connection.take_output()
    replies = split(said)
    assert len(replies) == expected, (len(replies), expected)
    assert connection.is_idle and not connection.restless and not connection.unanswered
    for position, text in echoes:
        assert replies[position] == b"$%d\r\n%b\r\n" % (len(text), text), (position, text)


def split(said: bytes) -> list[bytes]:
    """The replies in a stream of them; all must be whole."""
    replies = []
    at = 0
    while at < len(said):
        end = _end(said, at)
        replies.append(said[at:end])
        at = end
    return replies


def _end(said: bytes, at: int) -> int:
    line = said.index(b"\r\n", at)
    kind, head, at = said[at : at + 1], said[at + 1 : line], line + 2
    if kind in b"+-:_":
        return at
    assert kind in b"$*%=", said[max(0, at - 60) : at + 60]
    size = int(head)
    if size < 0:
        return at
    if kind in b"$=":
        assert said[at + size : at + size + 2] == b"\r\n"
        return at + size + 2
    for _ in range(size * (2 if kind == b"%" else 1)):
        at = _end(said, at)
    return at


def main() -> None:
    """Run lives until the time is over; the seed of each failure is in its traceback."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="one life of each kind")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        mad(arguments.seed)
        busy(arguments.seed)
        return
    first = secrets.randbits(48)
    print(f"from seed {first}")
    until = time.monotonic() + arguments.minutes * 60
    lives, rss = 0, 0
    while time.monotonic() < until:
        for seed in (first + lives, first + lives + 1):
            try:
                mad(seed)
                busy(seed)
            except BaseException as error:
                error.add_note(f"python -m tests.resp.fuzz --seed {seed}")
                raise
        lives += 2
        if lives == 1_000:
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss if rss else 0
    print(f"{lives} lives of each kind, nothing broke; memory grew by {grown} KiB after the first thousand")


if __name__ == "__main__":
    main()
