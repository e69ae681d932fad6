"""What many connections ask in one turn of the event loop, as few requests.

Pushes into one queue, acknowledgements in one queue and numbered leases of one queue that come in the same turn travel
as one request each, and every connection gets the answer that it would have had alone. A single message then costs
little more than its own bytes, as a message in a producer's batch does.

While the log is being written nothing could be added to it anyway: groups wait for that, and grow.

The order of one connection is kept: a request joins a group only if nothing that its connection asked before stands in
a later one, and whatever is of another kind waits until the groups before it are on their way.

    add(port, id, request, size)    take it into a group; False: it travels alone
    flush()                         at the end of a turn: submit the groups, unless they may wait

A port of the broker, for the requests of groups. Never: a task, a socket.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from walrq import api
from walrq.daemon.pollers import PollCall, Port
from walrq.errors import ERRORS, Code
from walrq.limits import MERGED_BYTES_MAX, RESP_MERGED_MAX
from walrq.protocol.requests import Incoming
from walrq.queues.commands import Target

if TYPE_CHECKING:
    from walrq.doors.resp_port import RespPort

_UINT32: Final = struct.Struct("<I")
_ACK: Final = api.SettleKind.ACK


class Member:
    """One connection's request within a group; `count` is how many messages or leases it is about."""

    __slots__ = ("count", "id", "port", "request", "size")

    def __init__(self, port: RespPort, id: int, request: Any, size: int, count: int) -> None:
        self.port = port
        self.id = id
        self.request = request
        self.size = size
        self.count = count


class Group:
    """Requests of one kind and queue. `position` rises from group to group."""

    __slots__ = ("count", "members", "position", "size")

    def __init__(self, position: int) -> None:
        self.position = position
        self.members: list[Member] = []
        self.count = 0
        self.size = 0

    def request(self) -> api.Request:
        """All of it as one."""
        first = self.members[0].request
        if type(first) is api.Push:
            return api.Push(
                first.queue,
                _joined([member.request.columns for member in self.members]),
                first.priority,
                first.delay_ms,
                None,
                None,
                None,
                True,
            )
        if type(first) is api.Settle:
            items = tuple([item for member in self.members for item in member.request.items])
            return api.Settle(first.queue, _ACK, items)
        assert type(first) is api.Poll
        return api.Poll(first.queues, self.count, first.visibility_ms, 0, None, True)


def _joined(columns: Sequence[api.Columns]) -> api.Columns:
    """Batches of plain payloads end to end."""
    ends = []
    total = 0
    for each in columns:
        if len(each.ends) == 4:
            total += len(each.payloads)
            ends.append(total)
        else:
            ends += [total + end for (end,) in _UINT32.iter_unpack(each.ends)]
            total = ends[-1]
    return api.Columns(b"".join([each.payloads for each in columns]), struct.pack(f"<{len(ends)}I", *ends))


class Merger:
    """See the module. One per door.

    Attributes:
        flushed: groups up to this position have been submitted.
    """

    session: Final = None
    congested: Final = False

    def __init__(
        self,
        submit: Callable[[Port, Incoming], None],
        undo: Callable[[Sequence[Target]], None],
        give_back: Callable[[api.Polled], None],
        may_wait: Callable[[], bool],
    ) -> None:
        """`may_wait`: the log is being written, and at its end `flush` will be called."""
        self.open = True
        self.takes_leases = True
        self.waiting: set[PollCall] = set()
        self.flushed = 0
        self._submit = submit
        self._undo = undo
        self._give_back = give_back
        self._may_wait = may_wait
        # Bytes of the groups that wait.
        self._held = 0
        self._position = 0
        self._groups: list[Group] = []
        self._by_key: dict[Any, Group] = {}
        self._number = 0
        self._under_way: dict[int, Group] = {}

    @property
    def is_empty(self) -> bool:
        """Nothing waits to be submitted."""
        return not self._groups

    # --- a turn -------------------------------------------------------------------------------------------
    def add(self, port: RespPort, id: int, request: Any, size: int) -> bool:
        """Take a request into a group of this turn; False when it is of no kind that is merged."""
        kind = type(request)
        key: Any
        if kind is api.Push:
            key = (0, request.queue, request.priority, request.delay_ms)
            count = len(request.columns.ends) >> 2
        elif kind is api.Poll:
            if not request.numbered or request.wait_ms:
                return False
            key = (1, request.queues, request.visibility_ms)
            count = request.max_messages
        elif kind is api.Settle and request.kind is _ACK:
            key = (2, request.queue)
            count = len(request.items)
        else:
            return False
        group = self._by_key.get(key)
        if (
            group is None
            or group.position < port.group
            or group.count + count > RESP_MERGED_MAX
            or group.size + size > MERGED_BYTES_MAX
        ):
            self._position += 1
            group = self._by_key[key] = Group(self._position)
            self._groups.append(group)
        port.group = group.position
        group.members.append(Member(port, id, request, size, count))
        group.count += count
        group.size += size
        self._held += size
        return True

    def flush(self) -> None:
        """Submit the groups, unless they may wait."""
        if self._groups and (self._held > MERGED_BYTES_MAX or not self._may_wait()):
            self.submit()

    def submit(self) -> None:
        """Submit the groups, in order; answers that come at once may make more."""
        while self._groups:
            groups, self._groups = self._groups, []
            self._by_key.clear()
            self._held = 0
            self.flushed = groups[-1].position
            for group in groups:
                if len(group.members) == 1:
                    self._alone(group.members[0])
                    continue
                self._number += 1
                self._under_way[self._number] = group
                self._submit(self, Incoming(self._number, None, None, group.request(), group.size))

    def _alone(self, member: Member) -> None:
        self._submit(member.port, Incoming(member.id, None, None, member.request, member.size))

    # --- answers ------------------------------------------------------------------------------------------
    def reply(self, id: int, reply: api.Reply, size: int) -> None:
        """The answer of a group: to each its own."""
        members = self._under_way.pop(id).members
        kind = type(reply)
        if kind is api.Failed:
            assert isinstance(reply, api.Failed)
            self._failed(members, reply)
        elif kind is api.Pushed:
            assert isinstance(reply, api.Pushed)
            number = reply.number - reply.count
            first_id = reply.first_id
            for member in members:
                number += member.count
                pushed = api.Pushed(first_id, member.count, None, (), max(0, number))
                first_id += member.count
                member.port.reply(member.id, pushed, member.size)
        elif kind is api.Settled:
            assert isinstance(reply, api.Settled)
            start = 0
            for member in members:
                codes = reply.codes[start : start + member.count]
                start += member.count
                member.port.reply(member.id, api.Settled(codes), member.size)
        else:
            for member in members:
                member.port.reply(member.id, reply, member.size)

    def _failed(self, members: list[Member], failed: api.Failed) -> None:
        """None of them happened, or nobody knows; a limit that refused all together may have room for some."""
        if failed.code != Code.NOT_LEADER and type(members[0].request) is api.Push and _is_definite(failed.code):
            for member in members:
                self._alone(member)
            return
        for member in members:
            member.port.reply(member.id, failed, member.size)

    def reply_lease(self, id: int, reply: api.Polled, size: int, targets: Sequence[Target]) -> None:
        """Leases of a group, one message each, dealt out in order of asking."""
        members = self._under_way.pop(id).members
        runs = reply.runs
        at = 0
        for member in members:
            end = at + member.count
            mine = api.Polled(reply.parked_ms, reply.visibility_ms, runs[at:end])
            theirs = targets[at:end]
            at = end
            port = member.port
            if not mine.runs:
                port.reply(member.id, mine, member.size)
            elif port.open and port.takes_leases and not port.congested:
                port.reply_lease(member.id, mine, member.size, theirs)
            else:
                # Nobody is there to settle them, or it does not read what it was given before.
                if theirs:
                    self._undo(theirs)
                else:
                    self._give_back(mine)
                port.reply(member.id, api.Polled(reply.parked_ms, reply.visibility_ms, ()), member.size)


def _is_definite(code: int) -> bool:
    try:
        return ERRORS[Code(code)].definite
    except ValueError:
        return False
