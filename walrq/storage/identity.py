"""The file `FORMAT`: which version of the layout a data directory has, and the uuid of its disk.

Three lines of text: `walrq storage 3`, the uuid in hex, and the CRC-32C of the two lines before in hex. It is
written before anything else is, so a directory without it holds nothing of ours.

Version 1 is the same without sparse segments and installed snapshots, version 2 without records that were thinned; such
a directory is taken as it is, and called 3 before the first of these is made.
"""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

from walrq.errors import DataDirInvalid
from walrq.storage.disk import Disk, read_file, write_file_atomically

NAME: Final = "FORMAT"
LOCK_NAME: Final = "LOCK"
DIRECTORIES: Final = ("wal", "snapshots", "quarantine")
VERSION: Final = 3
_VERSIONS_READ: Final = ("1", "2", "3")
_FIRST: Final = "walrq storage "
# May be there before the first start is complete.
_HARMLESS: Final = frozenset({*DIRECTORIES, LOCK_NAME, f"{NAME}.tmp", "lost+found"})


def load_or_create(disk: Disk, data_dir: str) -> bytes:
    """The disk uuid; made at the first start. DataDirInvalid, OSError."""
    if disk.exists(f"{data_dir}/{NAME}"):
        return read_identity(disk, data_dir)
    strangers = [name for name in disk.list_directory(data_dir) if name not in _HARMLESS]
    if strangers:
        raise DataDirInvalid(f"{data_dir} is no walrq data directory: it holds {strangers[0]!r} but no {NAME}")
    for name in DIRECTORIES:
        disk.make_directory(f"{data_dir}/{name}")
        if disk.list_directory(f"{data_dir}/{name}"):
            raise DataDirInvalid(f"{data_dir} has lost its {NAME} file, but {name}/ holds data; nothing was changed")
    disk.fsync_directory(data_dir)
    disk_uuid = disk.new_uuid()
    _write(disk, data_dir, disk_uuid)
    return disk_uuid


def _write(disk: Disk, data_dir: str, disk_uuid: bytes) -> None:
    text = f"{_FIRST}{VERSION}\n{disk_uuid.hex()}\n"
    write_file_atomically(disk, data_dir, NAME, (text + _check(text)).encode())


def raise_version(disk: Disk, data_dir: str) -> None:
    """Call a directory of an earlier version one of this version, so that no older walrq opens it. OSError."""
    if _read(disk, data_dir)[0] != str(VERSION):
        _write(disk, data_dir, read_identity(disk, data_dir))


def read_identity(disk: Disk, data_dir: str) -> bytes:
    """The disk uuid of an existing directory. DataDirInvalid if FORMAT is damaged or of another version."""
    return _read(disk, data_dir)[1]


def _read(disk: Disk, data_dir: str) -> tuple[str, bytes]:
    lines = read_file(disk, f"{data_dir}/{NAME}").decode("latin-1").split("\n")
    if not lines[0].startswith(_FIRST):
        raise DataDirInvalid(f"{data_dir}/{NAME} is damaged; nothing was changed")
    version = lines[0].removeprefix(_FIRST)
    intact = len(lines) == 4 and _check(f"{lines[0]}\n{lines[1]}\n") == f"{lines[2]}\n{lines[3]}"
    if version not in _VERSIONS_READ and intact:
        known = ", ".join(_VERSIONS_READ)
        raise DataDirInvalid(f"{data_dir} has storage format {version}, this version of walrq reads formats {known}")
    if not intact:
        raise DataDirInvalid(f"{data_dir}/{NAME} is damaged; nothing was changed")
    return version, bytes.fromhex(lines[1])


def _check(text: str) -> str:
    return f"{int(crc32c(text.encode('latin-1'))):08x}\n"
