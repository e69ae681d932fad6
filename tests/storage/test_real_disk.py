"""The real file system: locks, refusals, limits, and the same storage on it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.requirements import ROOT, require
from walrq.errors import DataDirInvalid, DataDirLocked
from walrq.storage.config import StorageConfig
from walrq.storage.disk import RealDisk, read_file, write_file_atomically
from walrq.storage.record import Record
from walrq.storage.storage import Storage


def config(path: Path, **changes: int) -> StorageConfig:
    """Small files."""
    settings: dict[str, int] = {
        "segment_bytes": 64 * 1024,
        "reserve_segments": 1,
        "reserve_snapshot_bytes": 8192,
        **changes,
    }
    return StorageConfig(data_dir=str(path / "data"), **settings)


def run_child(script: str, *arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, with this checkout importable."""
    return subprocess.run(
        [*prefix, sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_a_whole_life_on_real_files(tmp_path: Path) -> None:
    """Append, rotate, snapshot, reclaim, stop, start, on the operating system's own files."""
    storage = Storage.open(RealDisk(), config(tmp_path))
    records = [Record(i, 1, 1, os.urandom(i * 7 % 5000)) for i in range(1, 201)]
    for record in records:
        storage.append_batch([record])
    writer = storage.begin_snapshot(150, 1, b"meta")
    writer.put(b"key", b"page")
    writer.finish()
    assert storage.reclaim(150, lambda _first, _last: False) > 0
    first = storage.first_index
    storage.close(clean=False)

    again = Storage.open(RealDisk(), config(tmp_path))

    assert () == again.recovered.report
    assert records[first - 1 :] == list(again.entries(1))
    assert again.snapshot is not None
    assert {b"key": b"page"} == dict(again.snapshot.pages())
    again.close()


def test_a_second_opening_in_the_same_process_is_refused(tmp_path: Path) -> None:
    """The lock belongs to the opening, not to the process."""
    storage = Storage.open(RealDisk(), config(tmp_path))
    with pytest.raises(DataDirLocked):
        Storage.open(RealDisk(), config(tmp_path))
    storage.close()

    Storage.open(RealDisk(), config(tmp_path)).close()


def test_a_killed_process_leaves_no_lock_and_loses_nothing(tmp_path: Path) -> None:
    """kill -9 right after an append returned: the lock is gone, the record is not."""
    script = """
import os, signal, sys
from pathlib import Path
from tests.storage.test_real_disk import config
from walrq.storage.disk import RealDisk
from walrq.storage.record import Record
from walrq.storage.storage import Storage
storage = Storage.open(RealDisk(), config(Path(sys.argv[1])))
storage.append_batch([Record(1, 1, 1, b"acknowledged")])
os.kill(os.getpid(), signal.SIGKILL)
"""
    child = run_child(script, str(tmp_path))

    storage = Storage.open(RealDisk(), config(tmp_path))

    assert (-9, "") == (child.returncode, child.stderr)
    assert Record(1, 1, 1, b"acknowledged") == storage.read(1)
    storage.close()


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """In one line that names it."""
    (tmp_path / "data").write_text("not a directory")
    with pytest.raises(DataDirInvalid, match="data"):
        Storage.open(RealDisk(), config(tmp_path))


def test_an_unwritable_directory_is_refused(tmp_path: Path) -> None:
    """Permission denied, said by name, before anything was tried in it."""
    require("unprivileged")
    directory = tmp_path / "data"
    directory.mkdir()
    directory.chmod(0o500)
    with pytest.raises(DataDirInvalid, match="Permission denied"):
        Storage.open(RealDisk(), config(tmp_path))


def test_a_read_only_file_system_is_refused(tmp_path: Path) -> None:
    """A read-only mount is not a crash with a traceback."""
    require("namespaces")
    script = """
import subprocess, sys
from pathlib import Path
from tests.storage.test_real_disk import config
from walrq.errors import DataDirInvalid
from walrq.storage.disk import RealDisk
from walrq.storage.storage import Storage
path = Path(sys.argv[1])
(path / "data").mkdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", path / "data"], check=True)
try:
    Storage.open(RealDisk(), config(path))
except DataDirInvalid as error:
    print(error)
"""
    child = run_child(script, str(tmp_path), prefix=("unshare", "--map-root-user", "--mount"))

    assert "" == child.stderr
    assert "Read-only file system" in child.stdout


def test_a_full_file_system_refuses_and_recovers(tmp_path: Path) -> None:
    """A small tmpfs filled by somebody else: refused, settled from the reserve, resumed by itself."""
    require("namespaces")
    script = """
import json, os, subprocess, sys
from pathlib import Path
from tests.storage.test_real_disk import config
from walrq.errors import DiskFull
from walrq.storage.disk import RealDisk
from walrq.storage.record import Record
from walrq.storage.storage import Storage
path = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", path], check=True)
storage = Storage.open(RealDisk(), config(path))
ballast = os.open(path / "ballast", os.O_CREAT | os.O_WRONLY)
try:
    while True:
        os.write(ballast, bytes(4096))
except OSError as error:
    assert error.errno == 28, error
os.close(ballast)
index = 0
try:
    while True:
        storage.append_batch([Record(index + 1, 1, 1, b"x" * 1000)])
        index += 1
except DiskFull:
    refused = not storage.space.pushes_allowed
storage.append_batch([Record(index + 1, 1, 1, b"x" * 1000)], may_use_reserve=True)
still_full = not storage.replenish()
os.unlink(path / "ballast")
resumed = storage.replenish()
storage.append_batch([Record(index + 2, 1, 1, b"y" * 1000)])
storage.close()
again = Storage.open(RealDisk(), config(path))
print(json.dumps([refused, still_full, resumed, len(list(again.entries(1))) == index + 2, index > 10]))
"""
    child = run_child(script, str(tmp_path), prefix=("unshare", "--map-root-user", "--mount"))

    assert "" == child.stderr
    assert [True] * 5 == json.loads(child.stdout)


def test_a_file_size_limit_is_a_full_disk(tmp_path: Path) -> None:
    """EFBIG comes after a short write; it is refused like any other want of room."""
    script = """
import resource, sys
from pathlib import Path
from tests.storage.test_real_disk import config
from walrq.errors import DiskFull
from walrq.storage.disk import RealDisk
from walrq.storage.record import Record
from walrq.storage.storage import Storage
storage = Storage.open(RealDisk(), config(Path(sys.argv[1])))
storage.append_batch([Record(1, 1, 1, b"x" * 20000)])
resource.setrlimit(resource.RLIMIT_FSIZE, (40000, 40000))
for _ in range(3):
    try:
        storage.append_batch([Record(2, 1, 1, b"y" * 20000)])
    except DiskFull:
        print("refused")
storage.append_batch([Record(2, 1, 1, b"z" * 100)])
storage.close()
print([record.body[:1] for record in Storage.open(RealDisk(), config(Path(sys.argv[1]))).entries(1)])
"""
    child = run_child(script, str(tmp_path))

    assert "" == child.stderr
    assert ["refused"] * 3 + ["[b'x', b'z']"] == child.stdout.splitlines()


def test_an_atomic_replacement_leaves_one_whole_file(tmp_path: Path) -> None:
    """Old or new, and no temporary file of an earlier attempt in the way."""
    disk = RealDisk()
    (tmp_path / "name.tmp").write_bytes(b"left by a crash")
    write_file_atomically(disk, str(tmp_path), "name", b"one")
    write_file_atomically(disk, str(tmp_path), "name", b"two")

    assert b"two" == read_file(disk, str(tmp_path / "name"))
    assert ["name"] == disk.list_directory(str(tmp_path))


def test_preallocated_bytes_are_zeros_of_the_asked_size(tmp_path: Path) -> None:
    """And what was in the file before stays."""
    disk = RealDisk()
    handle = disk.open(str(tmp_path / "file"), create=True)
    disk.pwrite(handle, b"kept", 0)
    disk.preallocate(handle, 10_000)

    assert 10_000 == disk.size(str(tmp_path / "file"))
    assert b"kept" + bytes(9_996) == disk.pread(handle, 20_000, 0)
    disk.close(handle)


def test_a_file_system_without_preallocation_gets_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slower, and the same afterwards."""

    def refuse(_handle: int, _offset: int, _size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    disk = RealDisk()
    handle = disk.open(str(tmp_path / "file"), create=True)
    disk.pwrite(handle, b"kept", 0)
    disk.preallocate(handle, 3_000_001)

    assert 3_000_001 == disk.size(str(tmp_path / "file"))
    assert b"kept" + bytes(3_000_000 - 3) == disk.pread(handle, 4_000_000, 0)
    disk.close(handle)


def test_a_vector_is_written_end_to_end(tmp_path: Path) -> None:
    """Any number of buffers, empty ones included."""
    disk = RealDisk()
    handle = disk.open(str(tmp_path / "file"), create=True)
    disk.pwritev(handle, [b"a", b"", b"bc", b"d" * 5000], 3)

    assert bytes(3) + b"abc" + b"d" * 5000 == disk.pread(handle, 10_000, 0)
    disk.close(handle)


def test_a_missing_file_is_not_created_by_reading(tmp_path: Path) -> None:
    """Only `create` creates."""
    with pytest.raises(FileNotFoundError) as caught:
        RealDisk().open(str(tmp_path / "absent"))

    assert errno.ENOENT == caught.value.errno
