"""Every error of walrq, and the one table that says what each means to a caller.

An error is *definite* when the operation did not happen and will not happen, *indefinite* when it may have
happened or may still happen; when unsure an error is indefinite (`OutcomeUnknown`). `retry` says that the same
request may succeed later without being changed. Front doors translate an error by the table only: the code
travels on the native wire, the HTTP status and the RESP prefix on the others, the exit status to shells.

Source of the idea: Maelstrom's error vocabulary (definite and indefinite errors as data).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs


class Code(enum.IntEnum):
    """Stable wire codes. A number is never given a second meaning; gaps are retired numbers."""

    # 1-49: the request is wrong or cannot be met as it stands; definite.
    MALFORMED_REQUEST = 1
    UNKNOWN_OPERATION = 2
    UNSUPPORTED_VERSION = 3
    UNAUTHENTICATED = 4
    FORBIDDEN = 5
    INVALID_ARGUMENT = 6
    INVALID_QUEUE_NAME = 7
    QUEUE_NOT_FOUND = 8
    QUEUE_EXISTS = 9
    QUEUE_DELETED = 10
    RECEIPT_EXPIRED = 11
    RECEIPT_INVALID = 12
    MESSAGE_TOO_LARGE = 13
    BATCH_TOO_LARGE = 14
    DELAY_TOO_LONG = 15
    QUEUE_FULL = 16
    UNKNOWN_SETTING = 17
    INVALID_SETTING = 18
    BODY_LOST = 19
    WRONG_CLUSTER = 30
    WRONG_NODE = 31
    WRONG_DISK = 32
    NOT_MEMBER = 33
    # 50-69: not now; definite, try again.
    NOT_LEADER = 50
    OVERLOADED = 51
    DRAINING = 52
    DISK_FULL = 53
    TOO_MANY_CONNECTIONS = 54
    NOT_READY = 55
    # 70-79: indefinite.
    OUTCOME_UNKNOWN = 70
    LEADERSHIP_LOST = 71
    REPLY_TIMEOUT = 72
    SESSION_ENDED = 73
    CONNECTION_LOST = 74
    # 80-89: a peer or client broke the protocol; the connection ends.
    PROTOCOL_VIOLATION = 80
    FRAME_TOO_LARGE = 81
    LOCAL_PROTOCOL = 82
    # 90-99: this node's own trouble.
    STORAGE_FAILED = 90
    CORRUPT_RECORD = 91
    DATA_DIR_LOCKED = 92
    DATA_DIR_INVALID = 93
    CONFIG_INVALID = 94
    ADDRESS_IN_USE = 95
    INTERNAL = 99


class WalrqError(Exception):
    """Base of every error that walrq raises on purpose.

    Attributes:
        code: the stable number (class attribute; `ERRORS` has its row).
        text: one sentence for a person: what happened, naming the field and the limit.
        details: plain values for programs (limit, nearest name, retry_after_ms, ...).
    """

    code: ClassVar[Code] = Code.INTERNAL

    def __init__(self, text: str = "", /, **details: Any) -> None:
        super().__init__(text or type(self).__name__)
        self.text: str = text or type(self).__name__
        self.details: Mapping[str, Any] = details

    @property
    def definite(self) -> bool:
        """True when the operation did not and will not happen."""
        return ERRORS[self.code].definite

    @property
    def retry(self) -> bool:
        """True when the unchanged request may succeed later."""
        return ERRORS[self.code].retry


class RequestError(WalrqError):
    """The caller's request cannot be met as it stands (definite)."""


class MalformedRequest(RequestError):
    """The frame was well formed, the request in it was not."""

    code = Code.MALFORMED_REQUEST


class UnknownOperation(RequestError):
    """The operation number or name is not known to this version."""

    code = Code.UNKNOWN_OPERATION


class UnsupportedVersion(RequestError):
    """The two ends share no protocol version."""

    code = Code.UNSUPPORTED_VERSION


class Unauthenticated(RequestError):
    """A credential is missing or wrong."""

    code = Code.UNAUTHENTICATED


class Forbidden(RequestError):
    """The credential does not allow this operation on this queue."""

    code = Code.FORBIDDEN


class InvalidArgument(RequestError):
    """An argument is out of its range or of the wrong type."""

    code = Code.INVALID_ARGUMENT


class InvalidQueueName(RequestError):
    """A queue name is not 1-255 bytes of UTF-8 without control characters."""

    code = Code.INVALID_QUEUE_NAME


class QueueNotFound(RequestError):
    """No such queue; `details["nearest"]` may name a similar one."""

    code = Code.QUEUE_NOT_FOUND


class QueueExists(RequestError):
    """A queue of that name is there already."""

    code = Code.QUEUE_EXISTS


class QueueDeleted(RequestError):
    """The queue was deleted while this request waited on it."""

    code = Code.QUEUE_DELETED


class ReceiptExpired(RequestError):
    """The lease behind a receipt ended: deadline passed, given back, settled, purged, or leased again."""

    code = Code.RECEIPT_EXPIRED


class ReceiptInvalid(RequestError):
    """A receipt that this cluster never issued for this queue (fabricated, cut, altered)."""

    code = Code.RECEIPT_INVALID


class MessageTooLarge(RequestError):
    """A payload exceeds the queue's largest message."""

    code = Code.MESSAGE_TOO_LARGE


class BatchTooLarge(RequestError):
    """A batch exceeds the largest count or size."""

    code = Code.BATCH_TOO_LARGE


class DelayTooLong(RequestError):
    """A delay or deliver-at beyond 30 days."""

    code = Code.DELAY_TOO_LONG


class QueueFull(RequestError):
    """The queue's max length or max bytes is reached and its policy is to reject."""

    code = Code.QUEUE_FULL


class UnknownSetting(RequestError):
    """A queue setting of that name does not exist; `details["nearest"]` suggests one."""

    code = Code.UNKNOWN_SETTING


class InvalidSetting(RequestError):
    """A queue setting's value is out of range or of the wrong type."""

    code = Code.INVALID_SETTING


class BodyLost(RequestError):
    """A message's payload was destroyed by disk damage; the id and queue are named."""

    code = Code.BODY_LOST


class WrongCluster(RequestError):
    """The two nodes belong to different clusters; both ids are named."""

    code = Code.WRONG_CLUSTER


class WrongNode(RequestError):
    """Another node than the expected one answers at an address, or two nodes go by one id."""

    code = Code.WRONG_NODE


class WrongDisk(RequestError):
    """A node comes with another data directory than the one its cluster knows it by."""

    code = Code.WRONG_DISK


class NotMember(RequestError):
    """The node is no member of the cluster any more, and was not told because it was away."""

    code = Code.NOT_MEMBER


class Unavailable(WalrqError):
    """Not now (definite): the operation did not happen, try again."""


class NotLeader(Unavailable):
    """This node does not lead; `details["leader"]` may give the leader's address."""

    code = Code.NOT_LEADER


class Overloaded(Unavailable):
    """A bound is reached; `details["limit"]` names it, `details["retry_after_ms"]` advises."""

    code = Code.OVERLOADED


class Draining(Unavailable):
    """The node is stopping and takes no new work."""

    code = Code.DRAINING


class DiskFull(Unavailable):
    """Free space is below the reserve: pushes wait for space, everything else goes on."""

    code = Code.DISK_FULL


class TooManyConnections(Unavailable):
    """The connection cap is reached."""

    code = Code.TOO_MANY_CONNECTIONS


class NotReady(Unavailable):
    """The node is still starting or recovering."""

    code = Code.NOT_READY


class OutcomeUnknown(WalrqError):
    """The operation may have happened or may still happen (indefinite)."""

    code = Code.OUTCOME_UNKNOWN


class LeadershipLost(OutcomeUnknown):
    """Leadership moved while the request was on its way."""

    code = Code.LEADERSHIP_LOST


class ReplyTimeout(OutcomeUnknown):
    """No reply came within the caller's time-out."""

    code = Code.REPLY_TIMEOUT


class SessionEnded(OutcomeUnknown):
    """The session ended, so it can no longer be said whether the request took effect before."""

    code = Code.SESSION_ENDED


class ConnectionLost(OutcomeUnknown):
    """The connection broke after the request may have been sent, and retries were used up."""

    code = Code.CONNECTION_LOST


class ProtocolError(WalrqError):
    """The byte stream cannot be trusted any more; the connection ends."""


class RemoteProtocolError(ProtocolError):
    """The other end broke the protocol."""

    code = Code.PROTOCOL_VIOLATION


class FrameTooLarge(RemoteProtocolError):
    """The other end announced a frame beyond the limit."""

    code = Code.FRAME_TOO_LARGE


class LocalProtocolError(ProtocolError):
    """Our own code asked the protocol for something it does not allow."""

    code = Code.LOCAL_PROTOCOL


class StorageError(WalrqError):
    """The disk, or what is on it, failed this node. After a failed write or sync the process ends."""

    code = Code.STORAGE_FAILED


class CorruptRecord(StorageError):
    """A record's checksum, chain or position is wrong."""

    code = Code.CORRUPT_RECORD


class Reclaimed(StorageError):
    """The record's segment was given back because nothing in it was alive."""

    code = Code.CORRUPT_RECORD


class DataDirLocked(StorageError):
    """Another process holds the data directory."""

    code = Code.DATA_DIR_LOCKED


class DataDirInvalid(StorageError):
    """The data directory cannot be used: not a directory, unwritable, another format version."""

    code = Code.DATA_DIR_INVALID


class ConfigError(WalrqError):
    """A setting of the daemon or client is unknown or out of range."""

    code = Code.CONFIG_INVALID


class AddressInUse(WalrqError):
    """A listening address is taken or not ours."""

    code = Code.ADDRESS_IN_USE


class InternalError(WalrqError):
    """A broken invariant of our own; logged, the request fails, the node lives."""

    code = Code.INTERNAL


@attrs.frozen
class ErrorRow:
    """One row of the table.

    Attributes:
        error: the class raised for this code.
        definite: the operation did not and will not happen.
        retry: the unchanged request may succeed later.
        http: HTTP status code.
        resp: prefix of a RESP error reply, without the dash.
        exit: exit status of the command line.
    """

    error: type[WalrqError]
    definite: bool
    retry: bool
    http: int
    resp: str
    exit: int


def _row(
    error: type[WalrqError], http: int, resp: str, exit_: int, *, definite: bool = True, retry: bool = False
) -> ErrorRow:
    return ErrorRow(error=error, definite=definite, retry=retry, http=http, resp=resp, exit=exit_)


# THE table. Exit statuses: 1 refused request, 2 usage, 3 not found, 4 receipt, 5 not now, 6 unknown outcome,
# 7 protocol, 70 internal, 74 storage, 75 data directory in use, 77 permission, 78 configuration (sysexits.h where
# one fits).
ERRORS: Final[Mapping[Code, ErrorRow]] = {
    Code.MALFORMED_REQUEST: _row(MalformedRequest, 400, "ERR", 1),
    Code.UNKNOWN_OPERATION: _row(UnknownOperation, 404, "ERR", 1),
    Code.UNSUPPORTED_VERSION: _row(UnsupportedVersion, 426, "NOPROTO", 7),
    Code.UNAUTHENTICATED: _row(Unauthenticated, 401, "NOAUTH", 77),
    Code.FORBIDDEN: _row(Forbidden, 403, "NOPERM", 77),
    Code.INVALID_ARGUMENT: _row(InvalidArgument, 400, "ERR", 1),
    Code.INVALID_QUEUE_NAME: _row(InvalidQueueName, 400, "ERR", 1),
    Code.QUEUE_NOT_FOUND: _row(QueueNotFound, 404, "NOQUEUE", 3),
    Code.QUEUE_EXISTS: _row(QueueExists, 409, "ERR", 1),
    Code.QUEUE_DELETED: _row(QueueDeleted, 410, "NOQUEUE", 3),
    Code.RECEIPT_EXPIRED: _row(ReceiptExpired, 409, "EXPIRED", 4),
    Code.RECEIPT_INVALID: _row(ReceiptInvalid, 400, "ERR", 4),
    Code.MESSAGE_TOO_LARGE: _row(MessageTooLarge, 413, "ERR", 1),
    Code.BATCH_TOO_LARGE: _row(BatchTooLarge, 413, "ERR", 1),
    Code.DELAY_TOO_LONG: _row(DelayTooLong, 400, "ERR", 1),
    Code.QUEUE_FULL: _row(QueueFull, 429, "FULL", 5),
    Code.UNKNOWN_SETTING: _row(UnknownSetting, 400, "ERR", 1),
    Code.INVALID_SETTING: _row(InvalidSetting, 400, "ERR", 1),
    Code.BODY_LOST: _row(BodyLost, 410, "ERR", 74),
    Code.WRONG_CLUSTER: _row(WrongCluster, 409, "ERR", 1),
    Code.WRONG_NODE: _row(WrongNode, 409, "ERR", 1),
    Code.WRONG_DISK: _row(WrongDisk, 409, "ERR", 1),
    Code.NOT_MEMBER: _row(NotMember, 409, "ERR", 1),
    Code.NOT_LEADER: _row(NotLeader, 307, "MOVED", 5, retry=True),
    Code.OVERLOADED: _row(Overloaded, 429, "BUSY", 5, retry=True),
    Code.DRAINING: _row(Draining, 503, "LOADING", 5, retry=True),
    Code.DISK_FULL: _row(DiskFull, 507, "MISCONF", 5, retry=True),
    Code.TOO_MANY_CONNECTIONS: _row(TooManyConnections, 503, "ERR", 5, retry=True),
    Code.NOT_READY: _row(NotReady, 503, "LOADING", 5, retry=True),
    Code.OUTCOME_UNKNOWN: _row(OutcomeUnknown, 504, "UNKNOWN", 6, definite=False, retry=True),
    Code.LEADERSHIP_LOST: _row(LeadershipLost, 504, "UNKNOWN", 6, definite=False, retry=True),
    Code.REPLY_TIMEOUT: _row(ReplyTimeout, 504, "UNKNOWN", 6, definite=False, retry=True),
    Code.SESSION_ENDED: _row(SessionEnded, 504, "UNKNOWN", 6, definite=False),
    Code.CONNECTION_LOST: _row(ConnectionLost, 504, "UNKNOWN", 6, definite=False, retry=True),
    Code.PROTOCOL_VIOLATION: _row(RemoteProtocolError, 400, "ERR", 7),
    Code.FRAME_TOO_LARGE: _row(FrameTooLarge, 413, "ERR", 7),
    Code.LOCAL_PROTOCOL: _row(LocalProtocolError, 500, "ERR", 70),
    Code.STORAGE_FAILED: _row(StorageError, 500, "MISCONF", 74),
    Code.CORRUPT_RECORD: _row(CorruptRecord, 500, "MISCONF", 74),
    Code.DATA_DIR_LOCKED: _row(DataDirLocked, 500, "MISCONF", 75),
    Code.DATA_DIR_INVALID: _row(DataDirInvalid, 500, "MISCONF", 74),
    Code.CONFIG_INVALID: _row(ConfigError, 500, "ERR", 78),
    Code.ADDRESS_IN_USE: _row(AddressInUse, 500, "ERR", 78),
    Code.INTERNAL: _row(InternalError, 500, "ERR", 70),
}


def from_code(code: int, text: str, details: Mapping[str, Any] | None = None) -> WalrqError:
    """The error object for a wire code.

    An unknown number (a newer server) becomes `OutcomeUnknown`: when unsure, indefinite.
    """
    try:
        row = ERRORS[Code(code)]
    except ValueError:
        return OutcomeUnknown(f"error {code} is not known to this version: {text}", code=code)
    return row.error(text, **dict(details or {}))
