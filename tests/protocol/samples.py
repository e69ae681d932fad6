"""Hypothesis strategies and fixed samples of every request, reply and handshake frame there is."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import strategies as st

from walrq import api, limits
from walrq.protocol.columns import encode_headers, pack
from walrq.protocol.handshake import Hello, Shards, Welcome

UINT64 = st.integers(0, (1 << 64) - 1)
UINT32 = st.integers(0, (1 << 32) - 1)
TIME_MS = st.integers(0, limits.TIME_MS_MAX)
IDS = st.integers(0, (1 << 128) - 1)
RECEIPTS = st.binary(min_size=20, max_size=20)


def texts(bytes_max: int, least: int = 0) -> st.SearchStrategy[str]:
    """UTF-8 text of at most that many bytes (characters cost up to four)."""
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=least, max_size=min(bytes_max // 4, 40))


QUEUES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=limits.QUEUE_NAME_BYTES_MAX // 4)
KEYS = texts(limits.KEY_BYTES_MAX, 1)
NODES = texts(limits.RAFT_NODE_ID_BYTES_MAX, 1)
TOKEN_NAMES = st.from_regex(r"t[a-z0-9._-]{0,30}", fullmatch=True)
PATTERNS = st.sampled_from(("*", "jobs", "team-*", "*.dlq", "a*z"))
GRANTS = st.lists(st.builds(api.Grant, st.sampled_from(api.Right), PATTERNS), min_size=1, max_size=3).map(tuple)
TOKEN_LIMITS = st.none() | st.integers(1, limits.TOKEN_LIMIT_MAX)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts(80)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts(80), inner, max_size=4),
    max_leaves=8,
)
MAPS = st.dictionaries(texts(80), PLAIN, max_size=5)
WORKERS = st.none() | texts(limits.WORKER_NAME_BYTES_MAX)
ERROR_TYPES = st.none() | texts(limits.ERROR_TYPE_BYTES_MAX)
ERROR_TEXTS = st.none() | texts(limits.ERROR_TEXT_BYTES_MAX)
REASONS = st.none() | texts(64)


def or_none(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


@st.composite
def columns(draw: st.DrawFn) -> api.Columns:
    count = draw(st.integers(1, 6))
    payloads = draw(st.lists(st.binary(max_size=30), min_size=count, max_size=count))
    headers = draw(or_none(st.lists(or_none(MAPS), min_size=count, max_size=count)))
    keys = or_none(st.lists(or_none(KEYS), min_size=count, max_size=count))
    return pack(payloads, headers, groups=draw(keys), dedup=draw(keys))


@st.composite
def pushes(draw: st.DrawFn) -> api.Push:
    delay, at = draw(
        st.sampled_from(((False, False), (True, False), (False, True))).flatmap(
            lambda which: st.tuples(
                st.integers(0, limits.DELAY_MS_MAX) if which[0] else st.none(),
                TIME_MS if which[1] else st.none(),
            )
        )
    )
    return api.Push(
        draw(QUEUES),
        draw(columns()),
        draw(st.integers(0, 255)),
        delay,
        at,
        draw(or_none(st.integers(1, limits.RETENTION_MS_MAX))),
        draw(or_none(st.integers(1, limits.MAX_DELIVERIES_MAX))),
    )


@st.composite
def ranges(draw: st.DrawFn) -> tuple[api.Range, ...]:
    edges = sorted(draw(st.sets(st.integers(0, limits.BATCH_MESSAGES_MAX - 1), min_size=1, max_size=9)))
    if len(edges) & 1:
        edges.append(edges[-1])
    return tuple(zip(edges[::2], edges[1::2], strict=True))


ITEMS = st.lists(st.builds(api.Item, RECEIPTS, or_none(ranges())), min_size=1, max_size=4).map(tuple)


@st.composite
def settles(draw: st.DrawFn) -> api.Settle:
    kind = draw(st.sampled_from(api.SettleKind))
    delay = draw(or_none(st.integers(0, limits.DELAY_MS_MAX))) if kind == api.SettleKind.FAIL else None
    told = kind in (api.SettleKind.FAIL, api.SettleKind.REJECT)
    return api.Settle(
        draw(QUEUES),
        kind,
        draw(ITEMS),
        delay,
        draw(ERROR_TYPES) if told else None,
        draw(ERROR_TEXTS) if told else None,
    )


ID_TUPLES = st.lists(IDS, min_size=1, max_size=5).map(tuple)
FILTERS = st.none() | st.builds(
    api.Filter, REASONS, ERROR_TYPES, ERROR_TEXTS, or_none(st.lists(IDS, max_size=4).map(tuple))
)
PAGE_LIMITS = st.integers(1, limits.PEEK_MESSAGES_MAX)

REQUESTS: dict[type[Any], st.SearchStrategy[Any]] = {
    api.Push: pushes(),
    api.Poll: st.builds(
        api.Poll,
        st.lists(QUEUES, min_size=1, max_size=4).map(tuple),
        st.integers(1, limits.POLL_MESSAGES_MAX),
        or_none(st.integers(limits.VISIBILITY_MS_MIN, limits.VISIBILITY_MS_MAX)),
        st.integers(0, limits.POLL_WAIT_MS_MAX),
        WORKERS,
    ),
    api.Settle: settles(),
    api.Touch: st.builds(api.Touch, QUEUES, ITEMS, st.integers(1, limits.TIME_MS_MAX)),
    api.Forget: st.builds(api.Forget, st.integers(1, (1 << 64) - 1)),
    api.Cancel: st.builds(api.Cancel, QUEUES, ID_TUPLES),
    api.Reschedule: st.builds(api.Reschedule, QUEUES, IDS, TIME_MS),
    api.Peek: st.builds(api.Peek, QUEUES, st.sampled_from(api.State), PAGE_LIMITS, UINT64, st.booleans()),
    api.SetQueue: st.builds(api.SetQueue, QUEUES, MAPS, st.booleans()),
    api.ShowQueue: st.builds(api.ShowQueue, QUEUES),
    api.ListQueues: st.builds(api.ListQueues, texts(255), texts(255), st.integers(1, limits.LIST_QUEUES_MAX)),
    api.PurgeQueue: st.builds(api.PurgeQueue, QUEUES),
    api.DeleteQueue: st.builds(api.DeleteQueue, QUEUES),
    api.ListDead: st.builds(api.ListDead, QUEUES, PAGE_LIMITS, UINT64, FILTERS, st.booleans()),
    api.Redrive: st.builds(
        api.Redrive, QUEUES, st.integers(1, limits.REDRIVE_PER_ENTRY), or_none(QUEUES), FILTERS, st.booleans()
    ),
    api.PurgeDead: st.builds(api.PurgeDead, QUEUES, FILTERS),
    api.Move: st.builds(api.Move, QUEUES, QUEUES, st.integers(1, limits.REDRIVE_PER_ENTRY)),
    api.OpenSession: st.just(api.OpenSession()),
    api.CloseSession: st.just(api.CloseSession()),
    api.Ping: st.just(api.Ping()),
    api.Stats: st.just(api.Stats()),
    api.BackupBegin: st.just(api.BackupBegin()),
    api.BackupRead: st.builds(
        api.BackupRead,
        st.integers(1, (1 << 64) - 1),
        st.integers(0, limits.BACKUP_PARTS_MAX - 1),
        UINT64,
        st.integers(1, limits.BACKUP_READ_BYTES_MAX),
    ),
    api.BackupEnd: st.builds(api.BackupEnd, st.integers(1, (1 << 64) - 1)),
    api.ClusterStatus: st.just(api.ClusterStatus()),
    api.AddNode: st.builds(api.AddNode, NODES, or_none(texts(255)), st.booleans()),
    api.RemoveNode: st.builds(api.RemoveNode, NODES),
    api.TransferLeadership: st.builds(api.TransferLeadership, or_none(NODES)),
    api.SetToken: st.builds(
        api.SetToken, TOKEN_NAMES, st.binary(min_size=32, max_size=32), GRANTS, TOKEN_LIMITS, TOKEN_LIMITS, TOKEN_LIMITS
    ),
    api.RevokeToken: st.builds(api.RevokeToken, TOKEN_NAMES),
    api.ListTokens: st.just(api.ListTokens()),
}


def shifted(ends: bytes, base: int) -> bytes:
    """End offsets of a slice that begins at byte `base` of its batch."""
    numbers = struct.unpack(f"<{len(ends) >> 2}I", ends)
    return struct.pack(f"<{len(numbers)}I", *[number + base for number in numbers])


@st.composite
def runs(draw: st.DrawFn) -> api.Delivered:
    body = draw(columns())
    base = draw(st.integers(0, 1 << 24))
    header_base = draw(st.integers(0, 1 << 24)) if body.headers is not None else 0
    lost = draw(st.booleans()) and draw(st.booleans())
    return api.Delivered(
        draw(QUEUES),
        draw(RECEIPTS),
        body.count,
        draw(IDS),
        draw(UINT64),
        draw(UINT64),
        (draw(UINT64), draw(UINT32)),
        draw(st.integers(0, 255)),
        draw(TIME_MS),
        draw(or_none(KEYS)),
        base,
        b"" if lost else shifted(body.ends, base),
        b"" if lost else body.payloads,
        header_base,
        None if lost or body.header_ends is None else shifted(body.header_ends, header_base),
        None if lost else body.headers,
        lost,
    )


CODES = st.lists(UINT32, max_size=6).map(tuple)


@st.composite
def pushed(draw: st.DrawFn) -> api.Pushed:
    if draw(st.booleans()):
        return api.Pushed(draw(IDS), draw(st.integers(0, limits.BATCH_MESSAGES_MAX)))
    ids = draw(st.lists(IDS, min_size=1, max_size=5).map(tuple))
    hits = draw(st.sets(st.integers(0, len(ids) - 1)))
    return api.Pushed(draw(IDS), len(ids), ids, tuple(sorted(hits)))


@st.composite
def touched(draw: st.DrawFn) -> api.Touched:
    codes = draw(CODES)
    return api.Touched(codes, tuple(draw(st.lists(TIME_MS, min_size=len(codes), max_size=len(codes)))))


ATTEMPTS = st.builds(api.Attempt, TIME_MS, texts(64), WORKERS, ERROR_TYPES, ERROR_TEXTS)
PEEKED = st.builds(
    api.Peeked,
    id=IDS,
    state=st.sampled_from(api.State),
    sequence=UINT64,
    priority=st.integers(0, 255),
    delivery=UINT64,
    attempts=UINT64,
    pushed_ms=TIME_MS,
    due_ms=TIME_MS,
    group=or_none(KEYS),
    payload=or_none(st.binary(max_size=40)),
    headers=or_none(st.binary(max_size=40)),
    deadline_in_ms=TIME_MS,
    reason=REASONS,
    origin=or_none(QUEUES),
    died_ms=TIME_MS,
    history=st.lists(ATTEMPTS, max_size=3).map(tuple),
)
QUEUE_INFOS = st.builds(api.QueueInfo, QUEUES, UINT32, *([UINT64] * 10), MAPS)

REPLIES: dict[type[Any], st.SearchStrategy[Any]] = {
    api.Failed: st.builds(api.Failed, UINT32, texts(400), MAPS),
    api.Pushed: pushed(),
    api.Polled: st.builds(
        api.Polled,
        TIME_MS,
        TIME_MS,
        st.lists(runs(), max_size=3).map(tuple),
        st.lists(RECEIPTS, max_size=3).map(tuple),
    ),
    api.Settled: st.builds(api.Settled, CODES),
    api.Touched: touched(),
    api.Outcomes: st.builds(api.Outcomes, st.lists(st.sampled_from(api.Outcome), max_size=5).map(tuple)),
    api.Page: st.builds(api.Page, st.lists(PEEKED, max_size=3).map(tuple), UINT64),
    api.QueueInfo: QUEUE_INFOS,
    api.QueueList: st.builds(api.QueueList, st.lists(QUEUE_INFOS, max_size=3).map(tuple), texts(255)),
    api.Done: st.builds(api.Done, UINT64),
    api.Moved: st.builds(api.Moved, UINT64, st.booleans()),
    api.SessionOpened: st.builds(api.SessionOpened, UINT64),
    api.Pong: st.just(api.Pong()),
    api.StatsReply: st.builds(api.StatsReply, MAPS),
    api.BackupBegun: st.builds(
        api.BackupBegun,
        st.integers(1, (1 << 64) - 1),
        MAPS,
        st.lists(st.tuples(texts(255), UINT64), max_size=4).map(tuple),
    ),
    api.BackupChunk: st.builds(api.BackupChunk, st.binary(max_size=40)),
    api.ClusterState: st.builds(
        api.ClusterState,
        NODES,
        texts(255),
        or_none(NODES),
        UINT64,
        UINT64,
        UINT64,
        st.lists(
            st.builds(
                api.MemberState,
                NODES,
                st.sampled_from(("leader", "voter", "learner", "witness")),
                texts(255),
                or_none(texts(255)),
                texts(255),
                or_none(UINT64),
                or_none(TIME_MS),
            ),
            max_size=3,
        ).map(tuple),
    ),
    api.TokenList: st.builds(
        api.TokenList,
        st.lists(
            st.builds(api.TokenInfo, TOKEN_NAMES, GRANTS, TOKEN_LIMITS, TOKEN_LIMITS, TOKEN_LIMITS, TIME_MS), max_size=3
        ).map(tuple),
    ),
}

ANY_REQUEST = st.one_of(list(REQUESTS.values()))
ANY_REPLY = st.one_of(list(REPLIES.values()))

HELLOS = st.builds(
    Hello,
    texts(255),
    or_none(texts(limits.TOKEN_BYTES_MAX)),
    or_none(UINT64),
    or_none(texts(limits.TRACE_BYTES_MAX)),
    MAPS,
    st.just(1),
    st.integers(1, 65_535),
)
SHARD_RANGES = st.tuples(st.integers(0, 31), st.integers(0, 31), or_none(texts(255))).map(
    lambda each: Shards(min(each[:2]), max(each[:2]), each[2])
)
WELCOMES = st.builds(
    Welcome,
    texts(255),
    texts(255),
    st.lists(SHARD_RANGES, max_size=3).map(tuple),
    MAPS,
    or_none(UINT64),
    TIME_MS,
    nodes=st.lists(st.builds(api.NodeAt, NODES, texts(255)), max_size=3).map(tuple),
    leader=or_none(texts(255)),
)

WELCOME = Welcome(
    "n1",
    "c1",
    (Shards(0, 31, "127.0.0.1:50051"),),
    {"frame_bytes_max": 33_554_432},
    7,
    1_700_000_000_000,
    nodes=(api.NodeAt("n1", "127.0.0.1:50051"), api.NodeAt("n2", "127.0.0.1:50052")),
    leader="127.0.0.1:50052",
)
RECEIPT = bytes(range(20))

# One plain sample of each, for frames that other validators judge and that the documentation prints.
SAMPLE_REQUESTS: tuple[Any, ...] = (
    api.Push("jobs", pack([b"one", b"two"])),
    api.Poll(("jobs",)),
    api.Settle("jobs", api.SettleKind.ACK, (api.Item(RECEIPT),)),
    api.Touch("jobs", (api.Item(RECEIPT),), 30_000),
    api.Forget(3),
    api.Cancel("jobs", (1,)),
    api.Reschedule("jobs", 1, 2),
    api.Peek("jobs"),
    api.SetQueue("jobs", {"paused": True}),
    api.ShowQueue("jobs"),
    api.ListQueues(),
    api.PurgeQueue("jobs"),
    api.DeleteQueue("jobs"),
    api.ListDead("jobs"),
    api.Redrive("jobs"),
    api.PurgeDead("jobs"),
    api.Move("jobs", "later"),
    api.OpenSession(),
    api.CloseSession(),
    api.Ping(),
    api.Stats(),
    api.BackupBegin(),
    api.BackupRead(1, 2, 0, 1_048_576),
    api.BackupEnd(1),
    api.ClusterStatus(),
    api.AddNode("n4", "10.0.0.4:7000"),
    api.RemoveNode("n2"),
    api.TransferLeadership("n3"),
    api.SetToken("app", bytes(32), (api.Grant(api.Right.WRITE, "jobs-*"), api.Grant(api.Right.READ)), 100, None, 8),
    api.RevokeToken("app"),
    api.ListTokens(),
)
_ONE = pack([b"one"], [{"k": 1}])
SAMPLE_RUN = api.Delivered(
    "jobs", RECEIPT, 1, 5, 1, 0, (9, 0), 0, 1_700_000_000_000, None, 0, _ONE.ends, _ONE.payloads,
    0, _ONE.header_ends, encode_headers({"k": 1}),
)  # fmt: skip
SAMPLE_PEEKED = api.Peeked(5, api.State.READY, 1, 0, 0, 0, 1, 1, None, b"one")
SAMPLE_INFO = api.QueueInfo("jobs", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, {"paused": False})
SAMPLE_REPLIES: tuple[Any, ...] = (
    api.Failed(8, "no queue jbos", {"nearest": "jobs"}),
    api.Pushed(5, 2),
    api.Polled(0, 30_000, (SAMPLE_RUN,)),
    api.Settled((0, 11)),
    api.Touched((0,), (30_000,)),
    api.Outcomes((api.Outcome.DONE,)),
    api.Page((SAMPLE_PEEKED,)),
    SAMPLE_INFO,
    api.QueueList((SAMPLE_INFO,)),
    api.Done(1),
    api.Moved(1),
    api.SessionOpened(7),
    api.Pong(),
    api.StatsReply({"queues": 1}),
    api.BackupBegun(1, {"index": 9}, (("wal/seg-00000000000000000001.wal", 12_288),)),
    api.BackupChunk(b"one"),
    api.ClusterState(
        "n1",
        "c1",
        "n2",
        3,
        90,
        89,
        (
            api.MemberState("n1", "voter", "10.0.0.1:7000", "10.0.0.1:50051", "normal", 90, None),
            api.MemberState("n2", "leader", "10.0.0.2:7000", "10.0.0.2:50051", "normal", None, 12),
        ),
    ),
    api.TokenList(
        (api.TokenInfo("app", (api.Grant(api.Right.WRITE, "jobs-*"),), None, 1_000_000, None, 1_700_000_000_000),)
    ),
)
