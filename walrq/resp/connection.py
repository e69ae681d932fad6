"""One connection: commands in the order they came, replies in the same order, whatever order the answers come in.

    held ──begin──► a turn in the line of replies, and asks ──answer──► the turn's reply ──► output

A command begins as soon as it may, which for most is at once: what was begun before goes into the log before it, so
pipelined commands share one write. Two kinds wait. One that blocks lets nothing of this connection begin until it is
answered. One that reads, or that makes several requests (`alone`), also waits until all before it is answered, because
it must see that.

Leases in a reply stay attached to its bytes: `leases` says at which position of the output each of them has been
handed over for good. Positions count from the beginning of the connection.

Never: a socket, a clock. Errors of a client are answers; `is_over` says that nothing more of it is believed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, TypeAlias

import attrs

from walrq import api
from walrq.errors import ERRORS, Code, RemoteProtocolError, WalrqError, from_code
from walrq.resp import writing
from walrq.resp.arguments import shown
from walrq.resp.host import Host, Request
from walrq.resp.reading import Reader
from walrq.resp.refused import REFUSED

Words: TypeAlias = list[bytes]
Talk: TypeAlias = Generator[Request, Any, bytes]
"""A command of several requests: yields each, is sent its reply (a refusal is thrown), returns the bytes to answer."""


class Turn:
    """A place in the line of replies."""

    __slots__ = ("is_done", "leases", "reply")

    def __init__(self) -> None:
        self.reply = b""
        self.is_done = False
        self.leases: list[Handed] | None = None


@api.value
class Handed:
    """Leases whose messages are in a reply.

    Attributes:
        polled: the answer they came in.
        targets: as the broker named them to whoever gives them back; () where it did not.
        for_good: their messages are done as soon as the reply has been sent.
    """

    polled: api.Polled
    targets: Sequence[Any]
    for_good: bool


@api.value
class Ask:
    """A request to be answered through `RespConnection.answer`; `size` is about the bytes it holds."""

    id: int
    request: Request
    size: int


class Work:
    """What becomes of the answers of a command, or of several that were merged."""

    __slots__ = ("turn",)

    def __init__(self, turn: Turn) -> None:
        self.turn = turn

    def answered(self, connection: RespConnection, reply: Any, targets: Sequence[Any]) -> None:
        """A reply to one of its requests."""
        raise AssertionError


@attrs.frozen
class Command:
    """A row of the table of commands.

    Attributes:
        name: in capitals.
        usage: its arguments, for people.
        least, most: how many arguments it has; None = as many as are read at all.
        now: answers at once.
        begin: begins it (which may take following commands of its kind with it).
        talk: makes its requests one after the other.
        alone: begins when all before it is answered.
        pops: what it finds may depend on what a settle before it puts back: it waits for that.
        open: also before login.
    """

    name: str
    usage: str
    least: int
    most: int | None
    now: Callable[[RespConnection, Words], bytes] | None = None
    begin: Callable[[RespConnection, Words], None] | None = None
    talk: Callable[[RespConnection, Words], Talk] | None = None
    alone: bool = False
    pops: bool = False
    open: bool = False


class RespConnection:
    """See the module.

    Attributes:
        host: the node.
        number: of this connection, for CLIENT ID.
        protocol: 2 or 3.
        is_in: the password was said, or none is asked for.
        guard: who that was; None where nobody is asked.
        peer: the other end's address.
        user, name, library: what the client calls itself.
        takes_leases: False once the client has closed its side: it could not settle what it got.
        is_over: no more commands are read; what was begun is still answered.
        broken: what the client is told, behind all answers, once the input could not be understood any more.
        held: commands that have not begun.
        leases: (position, leases) in the order of the output.
        queued: bytes of output made so far.
        feeds: it follows what is decided: SYNC was said.
    """

    __slots__ = (
        "_asked",
        "_asks",
        "_commands",
        "_going",
        "_holder",
        "_next_id",
        "_output",
        "_reader",
        "_turns",
        "broken",
        "feeds",
        "guard",
        "held",
        "host",
        "is_in",
        "is_over",
        "leases",
        "library",
        "name",
        "number",
        "output_bytes",
        "peer",
        "protocol",
        "queued",
        "restless",
        "takes_leases",
        "unanswered",
        "user",
    )

    def __init__(self, host: Host, number: int, commands: dict[bytes, Command], peer: str = "-") -> None:
        self.host = host
        self.number = number
        self.protocol = 2
        self.is_in = not host.has_password
        self.guard: Any = None
        self.peer = peer
        self.user = b"default"
        self.name = b""
        self.library: dict[bytes, bytes] = {}
        self.takes_leases = True
        self.is_over = False
        self.broken: bytes | None = None
        self.feeds = False
        self.held: deque[Words] = deque()
        self.leases: deque[tuple[int, Handed]] = deque()
        self.queued = 0
        self.output_bytes = 0
        # Turns without their reply; of these, whose outcome decides what a pop finds.
        self.unanswered = 0
        self.restless = 0
        self._commands = commands
        self._reader = Reader()
        self._reader.is_stranger = not self.is_in
        self._turns: deque[Turn] = deque()
        self._holder: Turn | None = None
        self._asks: list[Ask] = []
        self._asked: dict[int, tuple[Work, Request]] = {}
        self._next_id = 1
        self._output: list[bytes] = []
        self._going = False

    # --- input --------------------------------------------------------------------------------------------
    @property
    def partial(self) -> int:
        """Bytes held of a command that has not come whole."""
        return self._reader.partial

    @property
    def held_bytes(self) -> int:
        """About the bytes of commands that wait behind another."""
        return sum([sum(map(len, words)) + 64 * len(words) for words in self.held])

    @property
    def is_idle(self) -> bool:
        """Everything that came was begun and answered."""
        return not self._turns and not self.held

    def receive(self, data: bytes) -> None:
        """Take what the client sent."""
        try:
            for words in self._reader.feed(data):
                self.held.append(words)
                if not self.is_in:
                    # How much is read of a client that is not known depends on what it has said so far.
                    self.go()
        except RemoteProtocolError as error:
            self.go()
            self.broken = writing.error(f"Protocol error: {error.text}")
        self.go()

    def go(self) -> None:
        """Begin what may begin."""
        if self._going:
            return
        self._going = True
        held = self.held
        commands = self._commands
        try:
            while held and self._holder is None and not self.is_over:
                words = held[0]
                command = commands.get(words[0]) or commands.get(words[0].upper())
                if self.feeds and (command is None or command.name != "QUIT"):
                    # A reader of the feed is answered nothing: it could not tell an answer from a frame.
                    held.popleft()
                    continue
                if command is None:
                    held.popleft()
                    self.say(_unknown(words) if self.is_in else _NOAUTH)
                    continue
                if (command.alone and self.unanswered) or (command.pops and self.restless):
                    return
                held.popleft()
                if not (self.is_in or command.open):
                    self.say(_NOAUTH)
                    continue
                count = len(words) - 1
                if count < command.least or (command.most is not None and count > command.most):
                    self.say(_arity(command, count))
                    continue
                try:
                    self._begin(command, words)
                except WalrqError as error:
                    self.say(writing.refusal(error))
            if self.is_over:
                held.clear()
            elif self.broken is not None and not held and self._holder is None:
                self.is_over = True
                self.say(self.broken)
        finally:
            self._going = False

    def _begin(self, command: Command, words: Words) -> None:
        if command.begin is not None:
            command.begin(self, words)
        elif command.now is not None:
            self.say(command.now(self, words))
            self._reader.is_stranger = not self.is_in
        else:
            assert command.talk is not None
            talk = command.talk(self, words)
            Talking(self.turn(holds=True), talk).go_on(self, None)

    # --- turns and asks -----------------------------------------------------------------------------------
    def turn(self, *, holds: bool = False) -> Turn:
        """The next place in the line of replies."""
        turn = Turn()
        self._turns.append(turn)
        self.unanswered += 1
        if holds:
            self._holder = turn
        return turn

    def say(self, reply: bytes) -> None:
        """Answer the command at hand."""
        if self._turns:
            turn = Turn()
            turn.reply = reply
            turn.is_done = True
            self._turns.append(turn)
        else:
            self._write(reply)

    def ask(self, work: Work, request: Request, size: int = 0) -> None:
        """Make a request; its answer goes to `work`."""
        number = self._next_id
        self._next_id = number + 1
        self._asked[number] = (work, request)
        self._asks.append(Ask(number, request, size))

    def take_asks(self) -> list[Ask]:
        """The requests made since the last call, in order."""
        asks = self._asks
        if asks:
            self._asks = []
        return asks

    def asked(self, number: int) -> Request | None:
        """The request of this number, while it has no answer."""
        found = self._asked.get(number)
        return found[1] if found is not None else None

    def answer(self, number: int, reply: Any, targets: Sequence[Any] = ()) -> None:
        """The reply to request `number`; `targets`: see `Handed`."""
        work, _ = self._asked.pop(number)
        work.answered(self, reply, targets)
        if self.held or self.broken is not None:
            self.go()

    def finish(self, turn: Turn, reply: bytes) -> None:
        """This is the reply of `turn`; those at the front of the line that have theirs leave."""
        turn.reply = reply
        turn.is_done = True
        self.unanswered -= 1
        if self._holder is turn:
            self._holder = None
        turns = self._turns
        while turns and turns[0].is_done:
            first = turns.popleft()
            self._write(first.reply)
            if first.leases is not None:
                self.leases.extend([(self.queued, each) for each in first.leases])

    # --- output -------------------------------------------------------------------------------------------
    def _write(self, data: bytes) -> None:
        self._output.append(data)
        self.queued += len(data)
        self.output_bytes += len(data)

    def push_out(self, data: bytes) -> None:
        """Send what answers no command (a feed)."""
        self._write(data)

    def take_output(self) -> bytes:
        """All bytes to send; empties the output."""
        output = self._output
        if not output:
            return b""
        self._output = []
        self.output_bytes = 0
        return output[0] if len(output) == 1 else b"".join(output)

    def unsent_leases(self) -> list[Handed]:
        """Leases of replies that wait in the line: nobody will see them when the connection is lost."""
        return [each for turn in self._turns if turn.leases is not None for each in turn.leases]


class Talking(Work):
    """Drives a command of several requests."""

    __slots__ = ("_talk",)

    def __init__(self, turn: Turn, talk: Talk) -> None:
        super().__init__(turn)
        self._talk = talk

    def answered(self, connection: RespConnection, reply: Any, targets: Sequence[Any]) -> None:
        """Hand it in; a refusal is thrown."""
        self.go_on(connection, reply)

    def go_on(self, connection: RespConnection, reply: Any) -> None:
        """As far as the next request, or the end."""
        try:
            if type(reply) is api.Failed:
                request = self._talk.throw(from_code(reply.code, reply.text, reply.details))
            else:
                request = self._talk.send(reply)
        except StopIteration as end:
            connection.finish(self.turn, end.value)
        except WalrqError as error:
            connection.finish(self.turn, writing.refusal(error))
        else:
            connection.ask(self, request)


_NOAUTH: Final = writing.error("Authentication required.", "NOAUTH")
_SHOWN_ARGUMENTS: Final = 3


def _unknown(words: Words) -> bytes:
    name = words[0].upper()
    reason = REFUSED.get(name)
    if reason is not None:
        return writing.error(f"{name.decode()} is not offered: {reason}")
    beginning = " ".join(shown(word) for word in words[1 : 1 + _SHOWN_ARGUMENTS])
    return writing.error(
        f"unknown command {shown(words[0])}, with args beginning with: {beginning}"
        if beginning
        else f"unknown command {shown(words[0])}"
    )


def _arity(command: Command, count: int) -> bytes:
    return writing.error(
        f"wrong number of arguments for '{command.name.lower()}' command: {count} given; usage:"
        f" {command.name} {command.usage}".rstrip()
    )


def is_definite(failed: api.Failed) -> bool:
    """Whether the request certainly did not happen."""
    try:
        return ERRORS[Code(failed.code)].definite
    except ValueError:
        return False
