"""THE table of commands, and COMMAND, which tells clients of it."""

from __future__ import annotations

from typing import Any, Final

from walrq.errors import InvalidArgument
from walrq.resp import arguments, handshake, hot, talks, writing
from walrq.resp.connection import Command, RespConnection, Words


def _command(connection: RespConnection, words: Words) -> bytes:
    """COMMAND [COUNT | DOCS [name ...] | INFO [name ...] | LIST]."""
    action = words[1].upper() if len(words) > 1 else b"INFO"
    names = [word.upper() for word in words[2:]] or list(_NAMES)
    protocol = connection.protocol
    if action == b"COUNT":
        return writing.integer(len(_NAMES))
    if action == b"LIST":
        return writing.encode([name.lower() for name in _NAMES], protocol)
    if action == b"INFO":
        return writing.encode([_described(name) for name in names], protocol)
    if action == b"DOCS":
        docs = {name.lower(): _documented(COMMANDS[name]) for name in names if name in COMMANDS}
        return writing.encode(docs, protocol)
    raise InvalidArgument(f"COMMAND knows COUNT, DOCS, INFO and LIST, not {arguments.shown(words[1])}")


def _described(name: bytes) -> list[Any] | None:
    command = COMMANDS.get(name)
    if command is None:
        return None
    exact = command.most == command.least
    arity = command.least + 1 if exact else -(command.least + 1)
    flags = ["fast"] if command.now is not None else ["write"] if command.begin is not None else ["readonly"]
    first = 1 if command.usage.startswith(("queue", "source")) else 0
    last = 2 if command.usage.startswith("source") else first
    return [name.lower(), arity, [writing.Word(flag) for flag in flags], first, last, 1 if first else 0]


def _documented(command: Command) -> dict[str, Any]:
    summary = _SUMMARIES[command.name]
    return {"summary": summary, "since": "0.1.0", "group": "list", "complexity": "O(1)"}


_ROWS: Final = (
    # --- work
    (("LPUSH",), Command("LPUSH", "queue payload [payload ...]", 2, None, begin=hot.lpush)),
    (
        ("LPUSH_DELAY", "LPUSHDELAY"),
        Command("LPUSH_DELAY", "queue seconds payload [payload ...]", 3, None, begin=hot.lpush_delay),
    ),
    (
        ("LPUSH_PRIORITY", "LPUSHPRIORITY"),
        Command("LPUSH_PRIORITY", "queue 0-255 payload [payload ...]", 3, None, begin=hot.lpush_priority),
    ),
    (("RPOP",), Command("RPOP", "queue [count]", 1, 2, begin=hot.rpop, pops=True)),
    (("RPOPLEASE",), Command("RPOPLEASE", "queue [visibility]", 1, 2, begin=hot.rpoplease, pops=True)),
    (
        ("BRPOPLEASE",),
        Command("BRPOPLEASE", "queue timeout [visibility]", 2, 3, begin=hot.brpoplease, pops=True),
    ),
    (("TASKACK",), Command("TASKACK", "queue task-N", 2, 2, begin=hot.taskack)),
    (("TASKNACK",), Command("TASKNACK", "queue task-N", 2, 2, begin=hot.tasknack)),
    (("TASKTOUCH",), Command("TASKTOUCH", "queue task-N [seconds]", 2, 3, begin=hot.tasktouch)),
    (("RPOPLPUSH",), Command("RPOPLPUSH", "source destination", 2, 2, begin=hot.rpoplpush, pops=True)),
    (("LMOVE",), Command("LMOVE", "source destination RIGHT LEFT", 4, 4, begin=hot.lmove, pops=True)),
    (("BRPOP",), Command("BRPOP", "queue [queue ...] timeout", 2, None, begin=hot.brpop, pops=True)),
    (
        ("BRPOPLPUSH",),
        Command("BRPOPLPUSH", "source destination timeout", 3, 3, begin=hot.brpoplpush, pops=True),
    ),
    (
        ("BLMOVE",),
        Command("BLMOVE", "source destination RIGHT LEFT timeout", 5, 5, begin=hot.blmove, pops=True),
    ),
    # --- dead letters
    (("DLQ_LIST", "DLQLIST"), Command("DLQ_LIST", "queue [limit]", 1, 2, talk=talks.dlq_list, alone=True)),
    (("DLQ_PURGE", "DLQPURGE"), Command("DLQ_PURGE", "queue", 1, 1, talk=talks.dlq_purge, alone=True)),
    (
        ("DLQ_REPLAY", "DLQREPLAY", "DLQ_REQUEUE"),
        Command("DLQ_REPLAY", "queue", 1, 1, talk=talks.dlq_replay, alone=True),
    ),
    # --- queues as keys
    (("LLEN",), Command("LLEN", "queue", 1, 1, talk=talks.llen, alone=True)),
    (("DEL", "UNLINK"), Command("DEL", "queue [queue ...]", 1, None, talk=talks.delete, alone=True)),
    (("EXISTS",), Command("EXISTS", "queue [queue ...]", 1, None, talk=talks.exists, alone=True)),
    (("TYPE",), Command("TYPE", "queue", 1, 1, talk=talks.kind, alone=True)),
    (("KEYS",), Command("KEYS", "pattern", 1, 1, talk=talks.keys, alone=True)),
    (("SCAN",), Command("SCAN", "cursor [MATCH pattern] [COUNT n] [TYPE list]", 1, 7, talk=talks.scan, alone=True)),
    (("DBSIZE",), Command("DBSIZE", "", 0, 0, talk=talks.dbsize, alone=True)),
    # --- the node
    (("INFO",), Command("INFO", "[section ...]", 0, None, talk=talks.info, alone=True)),
    (("ROLE",), Command("ROLE", "", 0, 0, talk=talks.role, alone=True)),
    (("BGREWRITEAOF",), Command("BGREWRITEAOF", "", 0, 0, talk=talks.bgrewriteaof, alone=True)),
    (("FAILOVER",), Command("FAILOVER", "", 0, 0, talk=talks.failover, alone=True)),
    (("REPLICAOF",), Command("REPLICAOF", "NO ONE", 2, 2, talk=talks.replicaof, alone=True)),
    (("SYNC",), Command("SYNC", "", 0, 0, talk=talks.sync, alone=True)),
    (("REPLCONF",), Command("REPLCONF", "[word ...]", 0, None, now=handshake.replconf)),
    # --- the connection
    (("PING",), Command("PING", "[message]", 0, None, now=handshake.ping, open=True)),
    (("ECHO",), Command("ECHO", "message", 1, 1, now=handshake.echo)),
    (("AUTH",), Command("AUTH", "[user] password", 1, 2, now=handshake.auth, open=True)),
    (("HELLO",), Command("HELLO", "[2|3] [AUTH user password] [SETNAME name]", 0, 6, now=handshake.hello, open=True)),
    (("CLIENT",), Command("CLIENT", "action [word ...]", 1, None, now=handshake.client)),
    (("SELECT",), Command("SELECT", "0", 1, 1, now=handshake.select)),
    (("QUIT",), Command("QUIT", "", 0, None, now=handshake.quit, open=True)),
    (("RESET",), Command("RESET", "", 0, 0, now=handshake.reset, open=True)),
    (("CONFIG",), Command("CONFIG", "GET name [name ...]", 1, None, now=handshake.config)),
    (("COMMAND",), Command("COMMAND", "[action [name ...]]", 0, None, now=_command)),
)

_SUMMARIES: Final[dict[str, str]] = {
    "LPUSH": "Pushes messages; answers with how many are ready",
    "LPUSH_DELAY": "Pushes messages that become ready later; answers with the number of the last of them",
    "LPUSH_PRIORITY": "Pushes messages with a priority, higher first",
    "RPOP": "Takes messages for good",
    "RPOPLEASE": "Takes a message under a lease, to be settled by its task id",
    "BRPOPLEASE": "Takes a message under a lease, or waits for one",
    "TASKACK": "A leased message is done",
    "TASKNACK": "A leased message failed: it comes again, or is dead",
    "TASKTOUCH": "Extends a lease",
    "RPOPLPUSH": "Moves a message to another queue, in one step",
    "LMOVE": "Moves a message to another queue, in one step",
    "BRPOP": "Takes a message for good, or waits for one",
    "BRPOPLPUSH": "Moves a message to another queue in one step, or waits for one",
    "BLMOVE": "Moves a message to another queue in one step, or waits for one",
    "DLQ_LIST": "Shows dead messages, oldest death first",
    "DLQ_PURGE": "Removes dead messages",
    "DLQ_REPLAY": "Sends dead messages back behind the waiting work",
    "LLEN": "How many messages are ready",
    "DEL": "Removes queues with all that is in them",
    "EXISTS": "How many of these queues there are",
    "TYPE": "list, or none",
    "KEYS": "Names of queues",
    "SCAN": "Names of queues, page by page",
    "DBSIZE": "How many queues there are",
    "INFO": "The node and its queues",
    "ROLE": "Whether this node leads",
    "BGREWRITEAOF": "Writes a snapshot and gives back the log it makes dispensable",
    "FAILOVER": "Lets this node lead",
    "REPLICAOF": "REPLICAOF NO ONE lets this node lead",
    "SYNC": "Follows what is decided, as commands",
    "REPLCONF": "Accepted and ignored",
    "PING": "PONG",
    "ECHO": "The message again",
    "AUTH": "Says the password",
    "HELLO": "Chooses the protocol version",
    "CLIENT": "What the client calls itself",
    "SELECT": "There is database 0",
    "QUIT": "Closes the connection",
    "RESET": "As a new connection",
    "CONFIG": "The few settings that tools ask for",
    "COMMAND": "This table",
}

COMMANDS: Final[dict[bytes, Command]] = {name.encode(): command for names, command in _ROWS for name in names}
_NAMES: Final = tuple(COMMANDS)
assert {command.name for command in COMMANDS.values()} == set(_SUMMARIES)
