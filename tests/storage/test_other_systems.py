"""The real disk where a system call is missing: what is durable, and what is written, is the same."""

from __future__ import annotations

import fcntl
import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from walrq.storage import disk
from walrq.storage.config import StorageConfig
from walrq.storage.record import Record
from walrq.storage.storage import Storage


def elsewhere(monkeypatch: pytest.MonkeyPatch, *absent: str) -> Any:
    """The module as a system without these names of `os` would load it."""
    for name in absent:
        monkeypatch.delattr(os, name)
    assert disk.__file__ is not None
    spec = importlib.util.spec_from_file_location("disk_elsewhere", disk.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.RealDisk()


def test_without_fdatasync_the_whole_file_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsync does more than is needed, never less."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    other = elsewhere(monkeypatch, "fdatasync")
    handle = other.open(str(tmp_path / "x"), create=True)
    other.fdatasync(handle)
    other.close(handle)

    assert [handle] == synced


@pytest.mark.parametrize("absent", [(), ("fdatasync",)])
def test_where_there_is_a_full_sync_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absent: tuple[str, ...]
) -> None:
    """On macOS fsync stops at the drive's cache, which a power cut empties."""
    called: list[tuple[int, int]] = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda handle, command: called.append((handle, command)))
    other = elsewhere(monkeypatch, *absent)
    handle = other.open(str(tmp_path / "x"), create=True)
    other.fdatasync(handle)
    other.close(handle)

    assert [(handle, 51)] == called


def test_without_pwritev_the_bytes_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One write call with a copy, in place of one without."""
    other = elsewhere(monkeypatch, "pwritev")
    handle = other.open(str(tmp_path / "x"), create=True)
    other.pwritev(handle, [b"ab", b"", b"cd"], 3)
    other.close(handle)

    assert b"\0\0\0abcd" == (tmp_path / "x").read_bytes()


def test_without_posix_fallocate_zeros_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Space is really there, and what was there before is not harmed."""
    other = elsewhere(monkeypatch, "posix_fallocate")
    (tmp_path / "x").write_bytes(b"kept")
    handle = other.open(str(tmp_path / "x"))
    other.preallocate(handle, 3_000_000)
    other.preallocate(handle, 1_000)
    other.close(handle)

    assert b"kept" + bytes(2_999_996) == (tmp_path / "x").read_bytes()
    assert (tmp_path / "x").stat().st_blocks * 512 >= 3_000_000


def test_a_log_lives_on_with_all_of_them_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Append, rotate, stop, start."""
    other = elsewhere(monkeypatch, "fdatasync", "pwritev", "posix_fallocate")
    config = StorageConfig(data_dir=tmp_path / "data", segment_bytes=64 * 1024, reserve_snapshot_bytes=8192)
    records = [Record(index, 1, 1, os.urandom(index * 97 % 5_000)) for index in range(1, 60)]
    storage = Storage.open(other, config)
    for record in records:
        storage.append_batch([record])
    storage.close()
    again = Storage.open(other, config)

    assert records == list(again.entries(1))
    assert () == again.recovered.report
    again.close()
