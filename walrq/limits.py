"""Every bound and default of walrq, with its unit in the name and its reason beside it."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# --- names, messages, batches -------------------------------------------------------------------------------
# One length byte; the same bound as SQS-like systems and file names, so names can be labels anywhere.
QUEUE_NAME_BYTES_MAX: Final = 255
# Default largest payload of one message; a queue setting may lower or raise it up to MESSAGE_BYTES_LIMIT.
MESSAGE_BYTES_MAX_DEFAULT: Final = 1 * MIB
# Hard bound of the setting: a quarter of the largest frame, so that a batch always has room.
MESSAGE_BYTES_LIMIT: Final = 8 * MIB
# More than any sensible batch; keeps the packed offsets below 64 KiB and one apply below a few ms.
BATCH_MESSAGES_MAX: Final = 10_000
# All payloads and columns of one batch.
BATCH_BYTES_MAX: Final = 16 * MIB
# One frame on the native wire (length prefix excluded): the largest batch plus its columns and envelope.
FRAME_BYTES_MAX: Final = 32 * MIB
# Nesting depth of a CBOR frame: the deepest legal request needs 6.
CBOR_DEPTH_MAX: Final = 16
# Items in one frame: the largest reply (10,000 leased runs of 20 items) fits; bounds what tiny items can grow into.
CBOR_ITEMS_MAX: Final = 262_144
# Nesting depth of a JSON request: the deepest legal one needs 6; headers and settings may nest.
JSON_DEPTH_MAX: Final = 16
# Commas, colons and opening brackets outside of strings in one JSON request: a full batch whose every message has
# keys and a dozen headers fits; bounds what tiny values can grow into (about 50 MiB).
JSON_ITEMS_MAX: Final = 524_288
# The first frame of a connection, from a peer that is not known yet.
HELLO_BYTES_MAX: Final = 16 * KIB
TOKEN_BYTES_MAX: Final = 4 * KIB
# Tokens of a cluster: each is compared with what a client says, all of them within a millisecond.
TOKENS_MAX: Final = 1_000
TOKEN_NAME_BYTES_MAX: Final = 64
TOKEN_GRANTS_MAX: Final = 64
# Requests, bytes and requests in flight that a token can be allowed.
TOKEN_LIMIT_MAX: Final = 1 << 40
# Of a secret that people make: as many as of random ones nobody guesses.
TOKEN_SECRET_BYTES_MIN: Final = 16
# Logins of pages at one node, the longest unused go first; and how long one may be unused.
LOGINS_MAX: Final = 1_000
LOGIN_IDLE_S_MAX: Final = 12 * 3600.0
# Lines of the audit log within a second, of each kind; beyond it they are counted.
AUDIT_LINES_PER_S: Final = 20
TRACE_BYTES_MAX: Final = 512
# A point in time or a span on the wire, in ms: the width of the time in a message id (year 10889).
TIME_MS_MAX: Final = (1 << 48) - 1
# Settings named in one request; there are about twenty.
SETTINGS_MAX: Final = 64
# Headers of one message: keys and values together.
HEADERS_BYTES_MAX: Final = 64 * KIB
# A group key or dedup id.
KEY_BYTES_MAX: Final = 255
PRIORITY_MAX: Final = 255
# Error type and text kept with a failed message.
ERROR_TYPE_BYTES_MAX: Final = 255
ERROR_TEXT_BYTES_MAX: Final = 4 * KIB
# Attempts remembered with a message for its death report; older ones are dropped first.
ATTEMPTS_KEPT_MAX: Final = 10
WORKER_NAME_BYTES_MAX: Final = 255

# --- time ---------------------------------------------------------------------------------------------------
DELAY_MS_MAX: Final = 30 * 24 * 3600 * 1000
VISIBILITY_MS_DEFAULT: Final = 30_000
VISIBILITY_MS_MIN: Final = 1
VISIBILITY_MS_MAX: Final = 12 * 3600 * 1000
# A longer wait is several polls: keeps idle sessions and half-open connections bounded.
POLL_WAIT_MS_MAX: Final = 3600 * 1000
BACKOFF_MS_DEFAULT: Final = 1_000
BACKOFF_MS_MAX_DEFAULT: Final = 60_000
DEDUP_WINDOW_MS_DEFAULT: Final = 5 * 60 * 1000
DEDUP_WINDOW_MS_MAX: Final = 7 * 24 * 3600 * 1000
SESSION_IDLE_MS: Final = 3600 * 1000
RETENTION_MS_MAX: Final = 366 * 24 * 3600 * 1000

# --- queues -------------------------------------------------------------------------------------------------
MAX_DELIVERIES_DEFAULT: Final = 3
MAX_DELIVERIES_MAX: Final = 1_000_000
GROUP_LIMIT_DEFAULT: Final = 1
# Timers handled by one entry's stamp: bounds an apply to a few ms; the rest counts as expired when touched.
EXPIRE_PER_ENTRY: Final = 1_000
POLL_MESSAGES_MAX: Final = 10_000
POLL_QUEUES_MAX: Final = 64
# Payload bytes of one poll reply: half the frame, so that a poll never outgrows its frame. The first message
# always fits (MESSAGE_BYTES_LIMIT).
POLL_BYTES_MAX: Final = 16 * MIB
SETTLE_ITEMS_MAX: Final = 10_000
PEEK_MESSAGES_MAX: Final = 1_000
LIST_QUEUES_MAX: Final = 1_000
# Messages moved by one redrive entry; a long redrive is a series of entries, each complete in itself.
REDRIVE_PER_ENTRY: Final = 1_000
# Orders (sequence numbers) a page of the image spans; a page of 1,024 single messages encodes in about 1 ms.
PAGE_SEQUENCES: Final = 1_024
SESSIONS_MAX: Final = 100_000
# Requests of one session without a known answer; more would be remembered for nothing.
SESSION_WINDOW_MAX: Final = 4_096
DEDUP_IDS_MAX: Final = 10_000_000
IN_FLIGHT_RUNS_MAX: Final = 2_000_000
QUEUES_MAX: Final = 1_000_000
SHARDS: Final = 32
# A message due later than this waits beyond the horizon, at no cost of memory; half of it is the time to fetch it back.
FAR_HORIZON_MS: Final = 300_000
# Rows of far messages gathered in memory (some 300 bytes each) before they are sorted by time and sealed into pages.
FAR_TAIL_ROWS: Final = 8_192
# Rows of one sealed page: 120 KB, read as a whole; what the state keeps of a page is half a KiB.
FAR_PAGE_ROWS: Final = 2_048
# A page, or a tail, with long histories is bounded by bytes.
FAR_PAGE_BYTES_MAX: Final = 1 * MIB
# Rows that one entry brings back: bounds an apply to some ms.
FAR_ROWS_PER_ENTRY: Final = 2_000
# Sealed pages wait in memory for the snapshot that holds them; so many bytes force one.
FAR_UNSAVED_BYTES: Final = 8 * MIB

# --- log and disk -------------------------------------------------------------------------------------------
SEGMENT_BYTES_DEFAULT: Final = 64 * MIB
SEGMENT_BYTES_MIN: Final = 256 * KIB
RESERVE_SEGMENTS: Final = 2
# One group commit takes at most this much: bounds the latency of the request behind it and one record's size.
ENTRY_BYTES_MAX: Final = 32 * MIB
ENTRY_BYTES_TARGET: Final = 4 * MIB
ENTRY_COMMANDS_MAX: Final = 4_096
# A snapshot is forced by log bytes or by commands since the last one, so that a restart replays a bounded tail.
SNAPSHOT_LOG_BYTES: Final = 256 * MIB
# Smaller segments ask for a small disk: unless said otherwise a snapshot is due after so many of them.
SNAPSHOT_SEGMENTS: Final = 3
SNAPSHOT_LOG_BYTES_MIN: Final = 8 * MIB
# Room held back for snapshots, at least; a segment if that is less.
SNAPSHOT_RESERVE_BYTES: Final = 16 * MIB
SNAPSHOT_COMMANDS: Final = 50_000
BODY_CACHE_BYTES: Final = 32 * MIB
# Messages whose metadata is in memory, in all queues together: some 100 MB if each was pushed alone and has a group of
# its own; their bodies are on disk in any case.
HOT_MESSAGES_DEFAULT: Final = 200_000
HOT_MESSAGES_MIN: Final = 100
HOT_BYTES_DEFAULT: Final = 1024 * MIB
# Entries kept in memory for followers by a node that has peers.
REPLICA_RECENT_BYTES: Final = 32 * MIB
SLOT_SETTLE_MS: Final = 50

# --- consensus ----------------------------------------------------------------------------------------------
# Nodes of one group, learners included: a larger one makes every commit slower and nothing safer.
RAFT_MEMBERS_MAX: Final = 32
RAFT_NODE_ID_BYTES_MAX: Final = 255
# Without a word from its leader for this many ticks a follower doubts it, and a leader without a quorum its office.
RAFT_ELECTION_TICKS: Final = 10
# 1 to this many ticks are added at random, so that two nodes seldom stand at once.
RAFT_ELECTION_SPREAD_TICKS: Final = 10
RAFT_HEARTBEAT_TICKS: Final = 2
# A leader whose own write takes longer hands over: its clients wait for a disk that may never answer.
RAFT_STALL_TICKS: Final = 40
# One append: enough to fill a link, little enough that a heartbeat behind it is not late.
RAFT_APPEND_ENTRIES_MAX: Final = 1_024
RAFT_APPEND_BYTES_MAX: Final = 1 * MIB
# Sent ahead of a follower's replies: bounds what a slow one costs its leader.
RAFT_IN_FLIGHT_APPENDS_MAX: Final = 256
RAFT_IN_FLIGHT_BYTES_MAX: Final = 64 * MIB
RAFT_SNAPSHOT_CHUNK_BYTES_MAX: Final = 1 * MIB
RAFT_SNAPSHOT_WINDOW_BYTES: Final = 4 * MIB
# A learner that lacks more entries than this is not promoted yet: as a voter it would hold up commits.
RAFT_PROMOTE_LAG_ENTRIES_MAX: Final = 1_000
# Reads of this node that wait for the leader's confirmation.
RAFT_READS_MAX: Final = 4_096

# --- peers --------------------------------------------------------------------------------------------------
# A shorter cluster secret can be found by trying.
PEER_SECRET_BYTES_MIN: Final = 16
PEER_SECRET_BYTES_MAX: Final = 4 * KIB
PEER_ADDRESS_BYTES_MAX: Final = 255
# Client addresses a node tells of, one for each kind of door.
PEER_ENDPOINTS_MAX: Final = 16
# One frame between peers: a single entry of the largest size, or an append of many small ones, and its envelope.
PEER_FRAME_BYTES_MAX: Final = ENTRY_BYTES_MAX + 2 * MIB
# A handshake takes three round trips; who needs longer, or says nothing, is not waited for.
PEER_HANDSHAKE_S: Final = 5.0
PEER_CONNECT_S: Final = 2.0
# Connections that have not proved themselves yet; one more and the oldest of them goes.
PEER_PENDING_MAX: Final = 64
# Nodes that are connected to this one, members or about to become members.
PEER_NODES_MAX: Final = 2 * RAFT_MEMBERS_MAX
# What waits to be sent to one peer: a leader's window of appends fits, so that only a link that stands still drops.
PEER_BULK_BYTES_MAX: Final = RAFT_IN_FLIGHT_BYTES_MAX + 8 * MIB
PEER_BULK_MESSAGES_MAX: Final = 1_024
PEER_CONTROL_MESSAGES_MAX: Final = 1_024
# What is said to a peer while it is away: the newest, for the moment it comes back.
PEER_AWAY_MESSAGES_MAX: Final = 32
PEER_AWAY_S: Final = 1.0
PEER_PING_S: Final = 0.5
# Without a sign of life for so long a connection is given up; bulk may have megabytes before it on a slow line.
PEER_SILENCE_S: Final = 3.0
PEER_BULK_SILENCE_S: Final = 10.0
# Between attempts to reach a peer, doubling, with jitter.
PEER_BACK_OFF_S: Final = 0.05
PEER_BACK_OFF_S_MAX: Final = 2.0
# Requests to join that are being decided.
PEER_JOINS_MAX: Final = 16
# A join is decided once a configuration with the new node is committed.
PEER_JOIN_S: Final = 30.0

# --- daemon -------------------------------------------------------------------------------------------------
CONNECTIONS_MAX_DEFAULT: Final = 10_000
# Descriptors that no connection gets: log, snapshots, locks and peers go on when clients have taken all others.
DESCRIPTORS_KEPT: Final = 24
# Segments that are open for reading at a time, where the system allows as many as an eighth of all descriptors.
READ_HANDLES_MAX: Final = 64
# Requests read but not answered: per connection (a client's window is far below) and in all.
IN_FLIGHT_PER_CONNECTION_MAX: Final = 1_024
IN_FLIGHT_BYTES_PER_CONNECTION_MAX: Final = 64 * MIB
IN_FLIGHT_BYTES_MAX: Final = 256 * MIB
PARKED_POLLS_MAX: Final = 100_000
DRAIN_TIMEOUT_S_DEFAULT: Final = 10.0
HANDSHAKE_TIMEOUT_S: Final = 10.0
# A connection whose unsent replies exceed this stops being read; one that stays so is closed.
SEND_BUFFER_BYTES_MAX: Final = 8 * MIB
SEND_STALL_S_MAX: Final = 60.0
# A frame must be complete this long after its first byte (slow loris).
FRAME_STALL_S_MAX: Final = 30.0
# The HTTP request that opens a WebSocket: a browser's, with cookies, has a few KiB.
WS_HEAD_BYTES_MAX: Final = 16 * KIB
# A WebSocket that was silent for so long is pinged, and closed when it then says nothing for as long: a page that was
# put to sleep is noticed within a minute, and its parked polls with it.
WS_PING_S: Final = 20.0
# A client has so long to answer a close frame.
WS_CLOSE_S: Final = 1.0
DEFAULT_PORT: Final = 50_051
DEFAULT_WS_PORT: Final = 50_052
DEFAULT_RESP_PORT: Final = 6_379
DEFAULT_HTTP_PORT: Final = 9_090
# The HTTP door. A body: the largest batch as base64 and its fields. All bodies being read share one bound.
HTTP_BODY_BYTES_MAX: Final = 32 * MIB
HTTP_BODIES_BYTES_MAX: Final = 128 * MIB
# Request line and headers together, and the path alone: a queue name of 255 bytes percent-encoded fits four times.
HTTP_HEAD_BYTES_MAX: Final = 32 * KIB
HTTP_TARGET_BYTES_MAX: Final = 8 * KIB
# A body must be there within, and a connection that asks nothing is closed after.
HTTP_BODY_S_MAX: Final = 60.0
HTTP_IDLE_S_MAX: Final = 75.0
# Streams of events (dashboards that are open), each of which costs a page of counts per second.
HTTP_STREAMS_MAX: Final = 128
# Queues with series of their own in /metrics; the others are one series together.
METRICS_QUEUES_MAX: Final = 200
# One RESP command: LPUSH with a full batch of values, and its bytes.
RESP_ARGUMENTS_MAX: Final = BATCH_MESSAGES_MAX + 2
RESP_COMMAND_BYTES_MAX: Final = BATCH_BYTES_MAX + 1 * MIB
# A command in plain text (telnet, netcat), as Redis has it.
RESP_INLINE_BYTES_MAX: Final = 64 * KIB
# Before a client has said its password: HELLO with all its options fits.
RESP_STRANGER_ARGUMENTS_MAX: Final = 16
RESP_STRANGER_BYTES_MAX: Final = 16 * KIB
# Commands that wait behind a blocking one of the same connection; beyond it is not read.
RESP_HELD_BYTES_MAX: Final = 1 * MIB
# Pipelined commands that travel as one request.
RESP_MERGED_MAX: Final = 1_000
# What one DLQ_LIST, KEYS or INFO tells; SCAN pages through the rest, and so do the other doors.
RESP_LISTED_MAX: Final = 10_000
# A reader of SYNC that is so far behind is sent away: it could not be told everything any more. Two of the largest
# entries.
RESP_FEED_BYTES_MAX: Final = 64 * MIB
# BRPOP and its like: beyond it there is 0, for ever.
RESP_WAIT_S_MAX: Final = 366 * 24 * 3600
# Added to every wait: what falls due in the moment at which a wait ends is still delivered (Redis looks ten times a
# second whether one has ended).
RESP_WAIT_GRACE_MS: Final = 100
# Where a SCAN can be taken up again; the oldest are forgotten.
RESP_CURSORS_MAX: Final = 1_024
# What a follower carries to the leader for its doors: an answer must come within, a poll's own wait not counted.
FORWARD_S: Final = 10.0
# Requests under way on one connection to the leader before another is opened, and how many of them there may be.
FORWARDED_PER_CONNECTION: Final = 256
FORWARD_CONNECTIONS_MAX: Final = 32
# One read of a backup: large enough to make its frame cheap, small enough to keep other replies from waiting.
BACKUP_READ_BYTES_MAX: Final = 1 * MIB
# Segments of a log that a backup can hold, so that the list of its parts fits into one frame (CBOR_ITEMS_MAX).
BACKUP_PARTS_MAX: Final = 65_536
# What a backup reads is not given back meanwhile: one that nobody reads, or that never ends, is given up.
BACKUP_IDLE_S_MAX: Final = 60.0
BACKUP_S_MAX: Final = 6 * 3600.0
# Reads of backups that wait their turn; a client keeps a few under way.
BACKUP_READS_MAX: Final = 64

# --- client -------------------------------------------------------------------------------------------------
# Concurrent single pushes of one client travel as one batch, up to these bounds: enough to make the request's own
# cost small, little enough that nobody waits long for the others' bytes.
MERGED_MESSAGES_MAX: Final = 1_000
MERGED_BYTES_MAX: Final = 1 << 20
CLIENT_WINDOW_DEFAULT: Final = 64
CLIENT_TIMEOUT_S_DEFAULT: Final = 30.0
# Each connection of a pool has a session of its own, and a server's connections and sessions are bounded.
CLIENT_POOL_MAX: Final = 64
