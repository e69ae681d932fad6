"""Commands that take several requests, or read: dead letters, queues as keys, INFO, leadership, snapshots.

Each is a generator: it yields requests, is sent their replies (a refusal is thrown), and returns the bytes to answer.
They begin when all before them on their connection is answered, and hold what comes behind.
"""

from __future__ import annotations

import fnmatch
import re
from typing import Any, Final

from walrq import api
from walrq.errors import InvalidArgument, QueueNotFound
from walrq.limits import (
    LIST_QUEUES_MAX,
    PEEK_MESSAGES_MAX,
    POLL_BYTES_MAX,
    QUEUE_NAME_BYTES_MAX,
    REDRIVE_PER_ENTRY,
    RESP_LISTED_MAX,
)
from walrq.resp import arguments, writing
from walrq.resp.connection import RespConnection, Talk, Words
from walrq.resp.host import Follow, Rewrite


# --- dead letters -------------------------------------------------------------------------------------------
def dlq_list(connection: RespConnection, words: Words) -> Talk:
    """DLQ_LIST queue [limit]: payloads, oldest death first."""
    queue = arguments.queue(words[1])
    left = arguments.listed(words[2]) if len(words) == 3 else RESP_LISTED_MAX
    payloads: list[bytes] = []
    room = POLL_BYTES_MAX
    after = 0
    while left and room > 0:
        try:
            page: api.Page = yield api.ListDead(queue, min(left, PEEK_MESSAGES_MAX), after)
        except QueueNotFound:
            break
        for message in page.messages:
            payload = message.payload if message.payload is not None else b""
            payloads.append(payload)
            room -= len(payload)
        left -= len(page.messages)
        after = page.next
        if not after:
            break
    return writing.array([writing.bulk(each) for each in payloads])


def dlq_purge(connection: RespConnection, words: Words) -> Talk:
    """DLQ_PURGE queue."""
    queue = arguments.queue(words[1])
    try:
        done: api.Done = yield api.PurgeDead(queue)
    except QueueNotFound:
        return writing.integer(0)
    return writing.integer(done.count)


def dlq_replay(connection: RespConnection, words: Words) -> Talk:
    """DLQ_REPLAY queue: all of them, in the order of their deaths, behind the waiting work."""
    queue = arguments.queue(words[1])
    count = 0
    while True:
        try:
            moved: api.Moved = yield api.Redrive(queue, REDRIVE_PER_ENTRY)
        except QueueNotFound:
            break
        count += moved.count
        # What dies meanwhile is for the next replay: a worker that fails everything would keep this one for ever.
        if not moved.more or count >= RESP_LISTED_MAX * REDRIVE_PER_ENTRY:
            break
    return writing.integer(count)


# --- queues as keys -----------------------------------------------------------------------------------------
def llen(connection: RespConnection, words: Words) -> Talk:
    """LLEN queue: its ready messages."""
    try:
        info: api.QueueInfo = yield api.ShowQueue(arguments.queue(words[1]))
    except QueueNotFound:
        return writing.integer(0)
    return writing.integer(info.ready)


def delete(connection: RespConnection, words: Words) -> Talk:
    """DEL queue [queue ...]: with all that is in them; how many there were."""
    count = 0
    for queue in map(arguments.queue, words[1:]):
        try:
            yield api.DeleteQueue(queue)
        except QueueNotFound:
            continue
        count += 1
    return writing.integer(count)


def exists(connection: RespConnection, words: Words) -> Talk:
    """EXISTS queue [queue ...]: how many of them there are."""
    count = 0
    for queue in map(arguments.queue, words[1:]):
        try:
            yield api.ShowQueue(queue)
        except QueueNotFound:
            continue
        count += 1
    return writing.integer(count)


def kind(connection: RespConnection, words: Words) -> Talk:
    """TYPE queue."""
    try:
        yield api.ShowQueue(arguments.queue(words[1]))
    except QueueNotFound:
        return b"+none\r\n"
    return b"+list\r\n"


def keys(connection: RespConnection, words: Words) -> Talk:
    """KEYS pattern."""
    matches = pattern(words[1])
    found: list[bytes] = []
    after = ""
    while True:
        page: api.QueueList = yield api.ListQueues(_prefix(words[1]), after, LIST_QUEUES_MAX)
        found += [queue.name.encode() for queue in page.queues if matches(queue.name)]
        if len(found) > RESP_LISTED_MAX:
            raise InvalidArgument(f"more than {RESP_LISTED_MAX} queues match: go through them with SCAN")
        after = page.next
        if not after:
            return writing.array([writing.bulk(name) for name in found])


_SCANNED: Final = 100


def scan(connection: RespConnection, words: Words) -> Talk:
    """SCAN cursor [MATCH pattern] [COUNT number] [TYPE list]."""
    cursor = arguments.integer(words[1], "cursor", 0, (1 << 64) - 1)
    glob = b"*"
    count = _SCANNED
    is_list = True
    options = words[2:]
    if len(options) & 1:
        raise InvalidArgument("SCAN knows MATCH pattern, COUNT number and TYPE name")
    for option, value in zip(options[::2], options[1::2], strict=True):
        if option.upper() == b"MATCH":
            glob = value
        elif option.upper() == b"COUNT":
            count = arguments.integer(value, "COUNT", 1, LIST_QUEUES_MAX)
        elif option.upper() == b"TYPE":
            is_list = value.lower() == b"list"
        else:
            raise InvalidArgument(f"SCAN knows MATCH, COUNT and TYPE, not {arguments.shown(option)}")
    after = "" if not cursor else connection.host.place(cursor)
    if after is None:
        raise InvalidArgument("invalid cursor: this node did not give it, or long ago; begin again with 0")
    page: api.QueueList = yield api.ListQueues("", after, count)
    matches = pattern(glob)
    found = [queue.name.encode() for queue in page.queues if is_list and matches(queue.name)]
    following = connection.host.cursor(page.next) if page.next else 0
    return writing.array([writing.bulk(b"%d" % following), writing.array([writing.bulk(name) for name in found])])


def dbsize(connection: RespConnection, words: Words) -> Talk:
    """DBSIZE: how many queues there are."""
    stats: api.StatsReply = yield api.Stats()
    return writing.integer(int(stats.values.get("queues", 0)))


def pattern(glob: bytes) -> Any:
    """Whether a name matches a pattern with * ? [...] and backslashes, as Redis has them."""
    if glob == b"*":
        return lambda name: True
    try:
        text = glob.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"pattern {arguments.shown(glob)} is not UTF-8") from None
    if len(glob) > QUEUE_NAME_BYTES_MAX:
        raise InvalidArgument(f"a pattern has at most {QUEUE_NAME_BYTES_MAX} bytes", limit=QUEUE_NAME_BYTES_MAX)
    # Stars in a row would try every way to share out a name among them.
    text = re.sub(r"\*+", "*", text)
    if text.count("*") > _STARS_MAX:
        raise InvalidArgument(f"a pattern has at most {_STARS_MAX} stars", limit=_STARS_MAX)
    plain = re.sub(r"\\(.)", lambda found: f"[{found[1]}]" if found[1] in "*?[" else found[1], text)
    compiled = re.compile(fnmatch.translate(plain.replace("[^", "[!")))
    return compiled.fullmatch


_STARS_MAX: Final = 8


def _prefix(glob: bytes) -> str:
    """What every name that matches begins with."""
    found = re.match(rb"[^*?\[\\]*", glob)
    text = (found[0] if found is not None else b"").decode(errors="ignore")
    return text if len(text.encode()) <= QUEUE_NAME_BYTES_MAX else ""


# --- the node -----------------------------------------------------------------------------------------------
def info(connection: RespConnection, words: Words) -> Talk:
    """INFO [section ...]."""
    wanted = {word.decode(errors="replace").lower() for word in words[1:]}
    everything = not wanted or bool(wanted & {"all", "default", "everything"})
    lines: list[str] = []

    def section(name: str) -> bool:
        if not (everything or name.lower() in wanted):
            return False
        if lines:
            lines.append("")
        lines.append(f"# {name}")
        return True

    stats: api.StatsReply = yield api.Stats()
    values = stats.values
    if section("Server"):
        lines.append(f"walrq_version:{connection.host.version}")
        lines.append("redis_mode:standalone")
        lines.append(f"node:{connection.host.name}")
        lines.append(f"uptime_in_seconds:{int(values.get('uptime_ms', 0)) // 1000}")
    if section("Clients"):
        lines.append(f"connected_clients:{values.get('connections', 0)}")
        lines.append(f"blocked_clients:{values.get('parked_polls', 0)}")
    if section("Persistence"):
        lines.append("loading:0")
        lines.append(f"fsync:{values.get('fsync', '')}")
        lines.append(f"disk_bytes:{values.get('disk_bytes', 0)}")
    queues: list[api.QueueInfo] = []
    more = False
    if everything or wanted & {"queueengine", "queues"}:
        after = ""
        while True:
            page: api.QueueList = yield api.ListQueues("", after, LIST_QUEUES_MAX)
            queues += page.queues
            after = page.next
            more = bool(after)
            if not after or len(queues) >= RESP_LISTED_MAX:
                break
    if section("QueueEngine"):
        lines.append(f"delayed_tasks:{sum(queue.delayed for queue in queues)}")
        lines.append(f"ready_tasks:{sum(queue.ready for queue in queues)}")
        lines.append(f"in_flight_tasks:{sum(queue.leased for queue in queues)}")
        lines.append(f"dead_tasks:{sum(queue.dead for queue in queues)}")
        lines.append(f"queues:{values.get('queues', len(queues))}")
        if more:
            lines.append(f"queues_told:{len(queues)}")
    if section("Queues"):
        lines += [
            f"queue_{line_name(queue.name)}:{queue.ready};in_flight:{queue.leased};dlq:{queue.dead}" for queue in queues
        ]
    if section("Replication"):
        state: api.ClusterState = yield api.ClusterStatus()
        leads = state.leader == state.node
        lines.append(f"role:{'master' if leads else 'replica'}")
        if leads:
            lines.append(f"connected_slaves:{len(state.members) - 1}")
        else:
            leader = next((member for member in state.members if member.node == state.leader), None)
            host, _, port = ((leader.endpoint if leader is not None else None) or "?:0").rpartition(":")
            lines.append(f"master_host:{host}")
            lines.append(f"master_port:{port}")
            lines.append(f"master_link_status:{'down' if leader is None else 'up'}")
    text = "".join(f"{line}\r\n" for line in lines).encode()
    if connection.protocol == 3:
        return b"=%d\r\ntxt:%b\r\n" % (len(text) + 4, text)
    return writing.bulk(text)


def line_name(name: str) -> str:
    """A queue name that breaks no line of INFO: its separators as %XX, as in addresses."""
    return re.sub(r"[%:;]", lambda found: f"%{ord(found[0]):02X}", name)


def failover(connection: RespConnection, words: Words) -> Talk:
    """FAILOVER, REPLICAOF NO ONE: let this node lead."""
    state: api.ClusterState = yield api.ClusterStatus()
    if state.leader != state.node:
        yield api.TransferLeadership(state.node)
    return writing.OK


def replicaof(connection: RespConnection, words: Words) -> Talk:
    """REPLICAOF NO ONE."""
    if (words[1].upper(), words[2].upper()) != (b"NO", b"ONE"):
        raise InvalidArgument(
            "only REPLICAOF NO ONE is known, which lets this node lead; nodes join a cluster when they start (walrq"
            " serve --join HOST:PORT)"
        )
    return failover(connection, words)


def bgrewriteaof(connection: RespConnection, words: Words) -> Talk:
    """BGREWRITEAOF: a snapshot, and the segments it makes dispensable given back; done when it is answered."""
    done: api.Done = yield Rewrite()
    return f"+Background append only file rewriting started, {done.count} items written\r\n".encode()


def sync(connection: RespConnection, words: Words) -> Talk:
    """SYNC: what is decided from now on, as commands."""
    yield Follow()
    connection.feeds = True
    return b"+SYNC OK\r\n"


def role(connection: RespConnection, words: Words) -> Talk:
    """ROLE."""
    state: api.ClusterState = yield api.ClusterStatus()
    if state.leader == state.node:
        return writing.encode(["master", state.commit_index, []], connection.protocol)
    leader = next((member for member in state.members if member.node == state.leader), None)
    host, _, port = ((leader.endpoint if leader is not None else None) or ":0").rpartition(":")
    link = "connected" if leader is not None else "connect"
    return writing.encode(["slave", host, int(port), link, state.applied_index], connection.protocol)
