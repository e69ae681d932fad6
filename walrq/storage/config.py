"""Settings of one node's storage, and the fsync policies."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import attrs

from walrq import limits
from walrq.errors import ConfigError
from walrq.storage.segment import RECORDS_START, SEGMENT_BYTES_LIMIT

# "always": durable when append returns. ("interval", ms): the driver calls sync(). "never": the kernel
# decides.
FsyncPolicy = Literal["always", "never"] | tuple[Literal["interval"], int]

INTERVAL_MS_MAX: Final = 60_000


def parse_fsync_policy(text: str) -> FsyncPolicy:
    """The policy written as `always`, `never` or `interval:MS`. ConfigError otherwise."""
    if text == "always":
        return "always"
    if text == "never":
        return "never"
    name, _, milliseconds = text.partition(":")
    if name == "interval" and milliseconds.isdecimal() and 1 <= int(milliseconds) <= INTERVAL_MS_MAX:
        return ("interval", int(milliseconds))
    raise ConfigError(
        f"fsync policy {text!r} is not one of always, never, interval:MS (MS from 1 to {INTERVAL_MS_MAX})"
    )


def _path_text(path: str | Path) -> str:
    return str(Path(path))


@attrs.frozen(kw_only=True)
class StorageConfig:
    """What `Storage.open` needs to know.

    Attributes:
        data_dir: the directory; created if only its last part is missing.
        fsync: durability policy of the log; hard state and snapshots are always synced.
        segment_bytes: size of a segment file. A larger record gets a segment of its own size.
        reserve_segments: preallocated segments that pushes may not use.
        reserve_snapshot_bytes: least room held back for snapshots; grows with the snapshots themselves.
        pool_segments_max: preallocated files kept in all; more are deleted.
        handles_max: segment files open for reading at a time.
        member: other nodes have what this one may have lost, so that it starts with less where one that is alone
            refuses: without its log, or with an older snapshot that the log does not reach from. Known without being
            said once the hard state says that the node is in a group.
        spared_pages: beginnings of the keys of pages of a snapshot whose damage costs a node that is alone only what is
            in them: it starts without them, and says so.
    """

    data_dir: str = attrs.field(converter=_path_text)
    fsync: FsyncPolicy = "always"
    segment_bytes: int = attrs.field(default=limits.SEGMENT_BYTES_DEFAULT)
    reserve_segments: int = limits.RESERVE_SEGMENTS
    reserve_snapshot_bytes: int = limits.SNAPSHOT_RESERVE_BYTES
    pool_segments_max: int = limits.RESERVE_SEGMENTS + 1
    handles_max: int = 64
    member: bool = False
    spared_pages: tuple[bytes, ...] = ()

    @segment_bytes.validator
    def _check_segment_bytes(self, _attribute: attrs.Attribute[int], value: int) -> None:
        if not RECORDS_START + 4096 <= value < SEGMENT_BYTES_LIMIT or value % 8:
            raise ConfigError(f"segment_bytes {value} is not a multiple of 8 from 16 KiB to 2 GiB")
