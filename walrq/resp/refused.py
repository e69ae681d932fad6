"""Commands of Redis that this door does not offer, each with the reason and what to do instead."""

from __future__ import annotations

from typing import Final

_OTHER_END: Final = "a queue is pushed to at one end and popped from the other; use LPUSH and RPOP"
_ALL: Final = "nothing here removes everything; name the queues: DEL queue [queue ...]"
_KEYS: Final = "this is a queue server, its keys are queues"
_CHANNELS: Final = "there are no channels; a queue delivers to one consumer: LPUSH and BRPOPLEASE"
_NO_TRANSACTIONS: Final = (
    "there are no transactions; pipelined commands keep their order (redis-py: pipeline(transaction=False)), and"
    " RPOPLPUSH is atomic"
)
_SCRIPTS: Final = "there are no scripts; RPOPLEASE, TASKACK and TASKNACK are what they are mostly written for"
_MIDDLE: Final = "a queue has no positions; walrq peek QUEUE looks at messages without taking them"

REFUSED: Final[dict[bytes, str]] = {
    **dict.fromkeys((b"RPUSH", b"LPUSHX", b"RPUSHX", b"LPOP", b"BLPOP", b"LMPOP", b"BLMPOP"), _OTHER_END),
    **dict.fromkeys((b"FLUSHALL", b"FLUSHDB"), _ALL),
    **dict.fromkeys((b"LRANGE", b"LINDEX", b"LSET", b"LINSERT", b"LREM", b"LTRIM", b"LPOS"), _MIDDLE),
    **dict.fromkeys((b"GET", b"SET", b"MGET", b"MSET", b"INCR", b"DECR", b"HSET", b"HGET", b"SADD", b"ZADD"), _KEYS),
    **dict.fromkeys((b"SETEX", b"SETNX", b"EXPIRE", b"PEXPIRE", b"TTL", b"PTTL", b"PERSIST"), _KEYS),
    **dict.fromkeys((b"RENAME", b"RENAMENX", b"COPY", b"MOVE", b"DUMP", b"RESTORE", b"SORT", b"SWAPDB"), _KEYS),
    **dict.fromkeys((b"MULTI", b"EXEC", b"DISCARD", b"WATCH", b"UNWATCH"), _NO_TRANSACTIONS),
    **dict.fromkeys((b"EVAL", b"EVALSHA", b"EVAL_RO", b"FCALL", b"SCRIPT", b"FUNCTION"), _SCRIPTS),
    **dict.fromkeys((b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE", b"UNSUBSCRIBE", b"PUBLISH", b"PUBSUB"), _CHANNELS),
    **dict.fromkeys((b"XADD", b"XREAD", b"XREADGROUP", b"XACK"), _CHANNELS),
    b"MONITOR": "SYNC feeds what is decided; walrq tail QUEUE shows one queue",
    b"PSYNC": "nodes replicate by their own protocol (walrq cluster); SYNC feeds what is decided",
    b"SHUTDOWN": "stop the process (SIGTERM): it answers what is in flight first",
    b"DEBUG": "it is for the developers of Redis",
    b"SAVE": "everything is on the disk when it is answered; BGREWRITEAOF writes a snapshot",
    b"BGSAVE": "everything is on the disk when it is answered; BGREWRITEAOF writes a snapshot",
    b"ACL": "access is the node's setting; see docs/security.md",
    b"CLUSTER": "any node takes every command; see walrq cluster status",
    b"SLAVEOF": "use REPLICAOF NO ONE, which lets this node lead",
    b"WAIT": "every answer comes after a majority has it on the disk",
}
