"""Pushes, pops and settles: begun at once, merged where clients pipeline them, answered as they come.

Neighbours of one kind and one queue travel as one request, so that sixteen pipelined commands cost little more than
one; each gets the answer it would have had alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final

from walrq import api
from walrq.errors import BatchTooLarge, Code, InvalidArgument
from walrq.ids import task_of, task_receipt
from walrq.limits import BATCH_BYTES_MAX, MERGED_BYTES_MAX, POLL_QUEUES_MAX, POLL_WAIT_MS_MAX, RESP_MERGED_MAX
from walrq.resp import arguments, writing
from walrq.resp.connection import Handed, RespConnection, Turn, Words, Work, is_definite

_ONE: Final = struct.Struct("<I")
# What a pop holds until its reply has been sent: seconds pass only when the client does not read.
_FOUND_NOTHING: Final = "the client has closed its side: nothing was taken for it"


# --- pushes -------------------------------------------------------------------------------------------------
def lpush(connection: RespConnection, words: Words) -> None:
    """LPUSH queue payload [payload ...]."""
    _push(connection, words, 2, 0, None)


def lpush_priority(connection: RespConnection, words: Words) -> None:
    """LPUSH_PRIORITY queue 0-255 payload [payload ...]."""
    _push(connection, words, 3, arguments.priority(words[2]), None)


def lpush_delay(connection: RespConnection, words: Words) -> None:
    """LPUSH_DELAY queue seconds payload [payload ...]."""
    _push(connection, words, 3, 0, arguments.delay_ms(words[2]))


def _push(connection: RespConnection, words: Words, at: int, priority: int, delay_ms: int | None) -> None:
    queue = arguments.queue(words[1])
    payloads = words[at:]
    counts = [len(payloads)]
    held = connection.held
    size = len(payloads[0]) if len(payloads) == 1 else sum(map(len, payloads))
    if size > BATCH_BYTES_MAX:
        raise BatchTooLarge(f"{size} bytes in one push, at most {BATCH_BYTES_MAX} are allowed", limit=BATCH_BYTES_MAX)
    if held:
        head = words[:at]
        while held:
            following = held[0]
            count = len(following) - at
            if count <= 0 or following[:at] != head or len(payloads) + count > RESP_MERGED_MAX:
                break
            more = following[at:]
            size += sum(map(len, more))
            if size > MERGED_BYTES_MAX:
                break
            held.popleft()
            payloads += more
            counts.append(count)
    work = Pushing(connection.turn(), queue, payloads, counts, priority, delay_ms)
    connection.ask(work, work.request(0, len(payloads)), size)


def columns(payloads: Sequence[bytes]) -> api.Columns:
    """A batch of plain payloads."""
    if len(payloads) == 1:
        return api.Columns(payloads[0], _ONE.pack(len(payloads[0])))
    return api.Columns(b"".join(payloads), struct.pack(f"<{len(payloads)}I", *accumulate(map(len, payloads))))


class Pushing(Work):
    """Merged pushes; `counts` are the messages of each."""

    __slots__ = ("_counts", "_delay_ms", "_lines", "_payloads", "_priority", "_queue")

    def __init__(
        self, turn: Turn, queue: str, payloads: list[bytes], counts: list[int], priority: int, delay_ms: int | None
    ) -> None:
        super().__init__(turn)
        self._queue = queue
        self._payloads = payloads
        self._counts = counts
        self._priority = priority
        self._delay_ms = delay_ms
        # Of pushes that go on one by one: the answers so far.
        self._lines: list[bytes] | None = None

    def request(self, first: int, end: int) -> api.Push:
        """The push of payloads first .. end."""
        return api.Push(
            self._queue,
            columns(self._payloads[first:end]),
            self._priority,
            self._delay_ms,
            None,
            None,
            None,
            True,
        )

    def answered(self, connection: RespConnection, reply: Any, targets: Sequence[Any]) -> None:
        """Lengths, or why not."""
        counts = self._counts
        if self._lines is not None:
            self._one_by_one(connection, reply)
        elif type(reply) is api.Pushed:
            if len(counts) == 1:
                connection.finish(self.turn, b":%d\r\n" % reply.number)
                return
            # What the last of them answers, and the others before it.
            before = reply.number - reply.count
            lines = [b":%d\r\n" % max(before + number, 0) for number in accumulate(counts)]
            connection.finish(self.turn, b"".join(lines))
        elif len(counts) > 1 and is_definite(reply):
            # None of them happened, and some might: a limit may leave room for a few. They go on one by one.
            self._lines = []
            end = 0
            for count in counts:
                end += count
                connection.ask(self, self.request(end - count, end))
        else:
            connection.finish(self.turn, writing.failure(reply.code, reply.text) * len(counts))

    def _one_by_one(self, connection: RespConnection, reply: Any) -> None:
        lines = self._lines
        assert lines is not None
        if type(reply) is api.Pushed:
            lines.append(writing.integer(reply.number))
        else:
            lines.append(writing.failure(reply.code, reply.text))
        if len(lines) == len(self._counts):
            connection.finish(self.turn, b"".join(lines))


# --- pops ---------------------------------------------------------------------------------------------------
Shape = Callable[[api.Delivered, bytes], bytes]


def _payload(run: api.Delivered, payload: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(payload), payload)


def _with_task(run: api.Delivered, payload: bytes) -> bytes:
    task = b"task-%d" % (task_of(run.receipt) or 0)
    return b"*2\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(task), task, len(payload), payload)


def _with_queue(run: api.Delivered, payload: bytes) -> bytes:
    return writing.array([writing.bulk(run.queue.encode()), writing.bulk(payload)])


def rpop(connection: RespConnection, words: Words) -> None:
    """RPOP queue [count]."""
    queue = (arguments.queue(words[1]),)
    if len(words) == 3:
        count = arguments.integer(words[2], "count", 0, RESP_MERGED_MAX)
        if not count:
            connection.say(writing.EMPTY)
            return
        begin(connection, Popping(connection, queue, count, shape=_payload, for_good=True, is_array=True))
        return
    number = 1 + _same(connection, words)
    begin(connection, Popping(connection, queue, number, shape=_payload, for_good=True))


def rpoplease(connection: RespConnection, words: Words) -> None:
    """RPOPLEASE queue [visibility]."""
    queue = (arguments.queue(words[1]),)
    visibility_ms = arguments.visibility_ms(words[2]) if len(words) == 3 else None
    number = 1 + _same(connection, words)
    begin(connection, Popping(connection, queue, number, shape=_with_task, visibility_ms=visibility_ms, numbered=True))


def brpop(connection: RespConnection, words: Words) -> None:
    """BRPOP queue [queue ...] timeout."""
    queues = tuple(dict.fromkeys(map(arguments.queue, words[1:-1])))
    if len(queues) > POLL_QUEUES_MAX:
        raise InvalidArgument(f"{len(queues)} queues in one command, at most {POLL_QUEUES_MAX}", limit=POLL_QUEUES_MAX)
    wait = arguments.wait_ms(words[-1])
    begin(connection, Popping(connection, queues, 1, shape=_with_queue, for_good=True, blocks=True, wait_ms=wait))


def brpoplease(connection: RespConnection, words: Words) -> None:
    """BRPOPLEASE queue timeout [visibility]."""
    queue = (arguments.queue(words[1]),)
    wait = arguments.wait_ms(words[2])
    visibility_ms = arguments.visibility_ms(words[3]) if len(words) == 4 else None
    begin(
        connection,
        Popping(
            connection,
            queue,
            1,
            shape=_with_task,
            visibility_ms=visibility_ms,
            numbered=True,
            blocks=True,
            wait_ms=wait,
            absent=writing.null,
        ),
    )


def rpoplpush(connection: RespConnection, words: Words) -> None:
    """RPOPLPUSH source destination."""
    _pass_on(connection, words[1], words[2])


def brpoplpush(connection: RespConnection, words: Words) -> None:
    """BRPOPLPUSH source destination timeout."""
    _pass_on(connection, words[1], words[2], words[3])


def lmove(connection: RespConnection, words: Words) -> None:
    """LMOVE source destination RIGHT LEFT."""
    _check_ends(words)
    _pass_on(connection, words[1], words[2])


def blmove(connection: RespConnection, words: Words) -> None:
    """BLMOVE source destination RIGHT LEFT timeout."""
    _check_ends(words)
    _pass_on(connection, words[1], words[2], words[5])


def _check_ends(words: Words) -> None:
    if (words[3].upper(), words[4].upper()) != (b"RIGHT", b"LEFT"):
        raise InvalidArgument("messages move from the RIGHT end to the LEFT end of the other queue, nowhere else")


def _pass_on(connection: RespConnection, source: bytes, destination: bytes, timeout: bytes | None = None) -> None:
    queue = (arguments.queue(source),)
    into = arguments.queue(destination)
    if timeout is None:
        begin(connection, Popping(connection, queue, 1, shape=_payload, into=into))
        return
    wait = arguments.wait_ms(timeout)
    begin(connection, Popping(connection, queue, 1, shape=_payload, into=into, blocks=True, wait_ms=wait))


def begin(connection: RespConnection, work: Popping) -> None:
    """Make the first request."""
    connection.ask(work, work.request())


def _same(connection: RespConnection, words: Words) -> int:
    """Take the following commands that are this one again; how many."""
    held = connection.held
    number = 0
    while held and number + 1 < RESP_MERGED_MAX and held[0] == words:
        held.popleft()
        number += 1
    return number


class Popping(Work):
    """Merged pops of the same queues, or one that waits.

    Invariant: `_parts` are the replies of the first pops so far; the others are still to be served.
    """

    __slots__ = (
        "_absent",
        "_for_good",
        "_into",
        "_is_array",
        "_left_ms",
        "_numbered",
        "_parts",
        "_queues",
        "_restless",
        "_shape",
        "_visibility_ms",
        "_wanted",
    )

    def __init__(
        self,
        connection: RespConnection,
        queues: tuple[str, ...],
        wanted: int,
        *,
        shape: Shape,
        for_good: bool = False,
        visibility_ms: int | None = None,
        numbered: bool = False,
        into: str | None = None,
        blocks: bool = False,
        wait_ms: int | None = 0,
        is_array: bool = False,
        absent: Callable[[int], bytes] | None = None,
    ) -> None:
        super().__init__(connection.turn(holds=blocks))
        self._queues = queues
        self._wanted = wanted
        self._shape = shape
        self._for_good = for_good
        self._visibility_ms = visibility_ms
        self._numbered = numbered
        self._into = into
        # What is left of its wait; None = for ever.
        self._left_ms = wait_ms
        self._is_array = is_array
        # DTQ's names answer nothing with a null bulk string, those of Redis with a null array where they wait.
        self._absent = absent or (writing.null_array if blocks or is_array else writing.null)
        self._parts: list[bytes] = []
        # What a later pop finds may depend on where this one puts its message.
        self._restless = into is not None
        if self._restless:
            connection.restless += 1

    def request(self) -> api.Poll:
        """The next poll."""
        left = self._left_ms
        wait = POLL_WAIT_MS_MAX if left is None else min(left, POLL_WAIT_MS_MAX)
        return api.Poll(
            self._queues,
            self._wanted - len(self._parts),
            self._visibility_ms,
            wait,
            None,
            self._numbered,
            self._into,
        )

    def answered(self, connection: RespConnection, reply: Any, targets: Sequence[Any]) -> None:
        """Messages, nothing, or why not."""
        if type(reply) is not api.Polled:
            missing = self._wanted - len(self._parts)
            self._parts += [writing.failure(reply.code, reply.text)] * (1 if self._is_array else missing)
            self._finish(connection, failed=True)
        elif reply.runs:
            self._take(connection, reply, targets)
        else:
            self._found_nothing(connection)

    def _take(self, connection: RespConnection, polled: api.Polled, targets: Sequence[Any]) -> None:
        shape = self._shape
        parts = self._parts
        for run in polled.runs:
            if run.lost:
                text = f"{run.count} messages of {run.queue!r} were destroyed by damage on disk"
                parts += [writing.failure(Code.BODY_LOST, text)] * run.count
            elif run.count == 1:
                parts.append(shape(run, run.payloads))
            else:
                start = 0
                base = run.base
                payloads = run.payloads
                for (end,) in _ONE.iter_unpack(run.ends):
                    end -= base
                    parts.append(shape(run, payloads[start:end]))
                    start = end
        if self._into is None:
            turn = self.turn
            if turn.leases is None:
                turn.leases = []
            turn.leases.append(Handed(polled, targets, self._for_good))
        if len(parts) < self._wanted:
            # There may be more than one answer carries.
            self._left_ms = 0
            connection.ask(self, self.request())
        else:
            self._finish(connection)

    def _found_nothing(self, connection: RespConnection) -> None:
        left = self._left_ms
        if connection.takes_leases and (left is None or left > POLL_WAIT_MS_MAX):
            if left is not None:
                self._left_ms = left - POLL_WAIT_MS_MAX
            connection.ask(self, self.request())
            return
        if connection.takes_leases or self._parts:
            nothing = self._absent(connection.protocol)
        else:
            nothing = writing.error(_FOUND_NOTHING)
        if not self._is_array:
            self._parts += [nothing] * (self._wanted - len(self._parts))
        elif not self._parts:
            self._parts.append(nothing)
            self._is_array = False
        self._finish(connection)

    def _finish(self, connection: RespConnection, *, failed: bool = False) -> None:
        if self._restless:
            connection.restless -= 1
        parts = self._parts
        if self._is_array and not (failed and len(parts) == 1):
            connection.finish(self.turn, writing.array(parts))
        else:
            connection.finish(self.turn, parts[0] if len(parts) == 1 else b"".join(parts))


# --- settles ------------------------------------------------------------------------------------------------
def taskack(connection: RespConnection, words: Words) -> None:
    """TASKACK queue task-N."""
    queue = arguments.queue(words[1])
    tasks = [words[2]]
    held = connection.held
    while held and len(tasks) < RESP_MERGED_MAX:
        following = held[0]
        if len(following) != 3 or following[0] != words[0] or following[1] != words[1]:
            break
        held.popleft()
        tasks.append(following[2])
    items = tuple([api.Item(task_receipt(arguments.task(task))) for task in tasks])
    connection.ask(Settling(connection, queue, tasks), api.Settle(queue, api.SettleKind.ACK, items))


def tasknack(connection: RespConnection, words: Words) -> None:
    """TASKNACK queue task-N: it failed; behind what is ready now, or dead."""
    queue = arguments.queue(words[1])
    items = (api.Item(task_receipt(arguments.task(words[2]))),)
    work = Settling(connection, queue, [words[2]], restless=True)
    connection.ask(work, api.Settle(queue, api.SettleKind.FAIL, items, 0))


def tasktouch(connection: RespConnection, words: Words) -> None:
    """TASKTOUCH queue task-N [seconds]."""
    queue = arguments.queue(words[1])
    visibility_ms = arguments.extension_ms(words[3]) if len(words) == 4 else _TOUCHED_MS
    items = (api.Item(task_receipt(arguments.task(words[2]))),)
    connection.ask(Settling(connection, queue, [words[2]]), api.Touch(queue, items, visibility_ms))


_TOUCHED_MS: Final = 30_000


class Settling(Work):
    """Merged settles of one queue."""

    __slots__ = ("_queue", "_restless", "_tasks")

    def __init__(self, connection: RespConnection, queue: str, tasks: list[bytes], *, restless: bool = False) -> None:
        super().__init__(connection.turn())
        self._queue = queue
        self._tasks = tasks
        self._restless = restless
        if restless:
            connection.restless += 1

    def answered(self, connection: RespConnection, reply: Any, targets: Sequence[Any]) -> None:
        """OK, or that there is no such lease."""
        if self._restless:
            connection.restless -= 1
        tasks = self._tasks
        if type(reply) is api.Settled or type(reply) is api.Touched:
            if len(tasks) == 1 and not reply.codes[0]:
                connection.finish(self.turn, writing.OK)
                return
            lines = [self._missing(task) if code else writing.OK for task, code in zip(tasks, reply.codes, strict=True)]
        elif reply.code == Code.QUEUE_NOT_FOUND:
            lines = [self._missing(task) for task in tasks]
        else:
            lines = [writing.failure(reply.code, reply.text)] * len(tasks)
        connection.finish(self.turn, b"".join(lines))

    def _missing(self, task: bytes) -> bytes:
        return writing.error(
            f"Task ID not found in-flight: {arguments.shown(task)} of queue {self._queue!r} was settled, has expired,"
            " or never was"
        )
