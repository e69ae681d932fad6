"""The file: what is torn or damaged is refused and named, wherever it is; what is whole appears whole."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backup.life import FACTS, Life, pieces, written
from walrq.backup import archive, restoring
from walrq.backup.export import MANIFEST_PART, PAGES_PART, Export, Part
from walrq.errors import CorruptRecord, DataDirInvalid, StorageError


@pytest.fixture
def export(tmp_path: Path) -> Iterator[Export]:
    """A backup of two segments that can be read."""
    life = Life(tmp_path / "a", segment_bytes=32 * 1024)
    for number in range(8):
        life.push(b"%d" % number + bytes(3_000))
    pin, found = life.export()
    assert 4 == len(found.parts)
    yield found
    pin.release()
    life.close()


@pytest.fixture
def backup(export: Export) -> bytes:
    """Its file."""
    return written(export)


def members(backup: bytes) -> list[tarfile.TarInfo]:
    """What any tar sees in it."""
    with tarfile.open(fileobj=io.BytesIO(backup)) as opened:
        return opened.getmembers()


def test_any_tar_reads_it(export: Export, backup: bytes) -> None:
    """A format that outlives its program: names are paths in a data directory, facts are JSON."""
    names = [member.name for member in members(backup)]

    assert ["backup.json", MANIFEST_PART, PAGES_PART] == names[:3]
    assert "checksums.json" == names[-1]
    assert [part.name for part in export.parts] == names[1:-1]
    assert {0o600} == {member.mode for member in members(backup)}
    with tarfile.open(fileobj=io.BytesIO(backup)) as opened:
        stream = opened.extractfile("backup.json")
        assert stream is not None
        facts = json.load(stream)
    assert export.facts["index"] == facts["index"]
    assert 1 == facts["format"]


def test_a_part_can_be_read_from_anywhere(export: Export, rng: random.Random) -> None:
    """Reads are numbered, not sequential: a client keeps several under way."""
    for number, part in enumerate(export.parts):
        whole = b"".join(pieces(export, number, part.size))
        assert part.size == len(whole)
        for _ in range(200):
            offset, limit = rng.randrange(part.size + 10), rng.randrange(1, part.size + 10)
            assert whole[offset : offset + limit] == export.read(number, offset, limit)


def test_a_whole_one_is_verified_to_its_last_byte(backup: bytes, export: Export) -> None:
    """The verdict repeats the facts and counts the bytes."""
    seen: list[int] = []
    verdict = restoring.verify(io.BytesIO(backup), progress=seen.append)

    assert export.size == verdict.bytes == sum(seen)
    assert () == verdict.findings
    assert export.facts["index"] == verdict.facts["index"]


def test_it_is_written_and_read_as_a_stream(export: Export) -> None:
    """Through a pipe nothing can be rewound."""

    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            super().__init__()
            self.data = bytearray()
            self.at = 0

        def writable(self) -> bool:
            return True

        def readable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            self.data += data  # type: ignore[operator]
            return len(data)  # type: ignore[arg-type]

        def readinto(self, buffer: object) -> int:
            piece = self.data[self.at : self.at + min(len(buffer), 777)]  # type: ignore[arg-type]
            buffer[: len(piece)] = piece  # type: ignore[index]
            self.at += len(piece)
            return len(piece)

    pipe = Pipe()
    archive.write(pipe, export.facts, export.parts, lambda number: pieces(export, number))  # type: ignore[arg-type]

    assert export.size == restoring.verify(io.BufferedReader(pipe)).bytes  # type: ignore[arg-type]


def test_a_torn_one_is_refused_wherever_it_ends(backup: bytes, rng: random.Random) -> None:
    """A copy that was cut short is no backup, and the part at which it ends is named."""
    last = members(backup)[-1]
    end = last.offset_data + last.size
    marks = {at for member in members(backup) for at in (member.offset, member.offset_data)}
    cuts = {*marks, *(mark + 1 for mark in marks), *(rng.randrange(end) for _ in range(60)), end - 1}
    for cut in sorted(cut for cut in cuts if cut < end):
        with pytest.raises((CorruptRecord, DataDirInvalid)) as refused:
            restoring.verify(io.BytesIO(backup[:cut]))
        inside = [
            member.name for member in members(backup) if member.offset_data <= cut < member.offset_data + member.size
        ]
        if inside:
            assert inside[0] in refused.value.text, (cut, refused.value.text)


def test_a_flipped_bit_is_found_wherever_it_is(backup: bytes, rng: random.Random) -> None:
    """Every byte of every part is covered, and the damaged part is named."""
    for member in members(backup):
        for _ in range(12):
            damaged = bytearray(backup)
            at = member.offset_data + rng.randrange(member.size)
            damaged[at] ^= 1 << rng.randrange(8)
            with pytest.raises((CorruptRecord, DataDirInvalid)) as refused:
                restoring.verify(io.BytesIO(damaged))
            if member.name not in ("backup.json", "checksums.json"):
                assert member.name in refused.value.text, refused.value.text


@pytest.mark.parametrize("data", [b"", b"hello", bytes(10_240), b"\x1f\x8b" + bytes(600)])
def test_what_is_no_backup_is_told_so(data: bytes) -> None:
    """A wrong file is the commonest mistake."""
    with pytest.raises(DataDirInvalid, match=r"no backup of walrq"):
        restoring.verify(io.BytesIO(data))


def repacked(backup: bytes, change: dict[str, object]) -> bytes:
    """The same archive with other facts."""
    file = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(backup)) as opened, tarfile.open(fileobj=file, mode="w") as made:
        for member in opened.getmembers():
            stream = opened.extractfile(member)
            assert stream is not None
            data = stream.read()
            if member.name == "backup.json":
                data = json.dumps({**json.loads(data), **change}).encode()
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))
    return file.getvalue()


def test_a_newer_format_is_refused_by_its_number(backup: bytes) -> None:
    """An old program must not read a new file half right."""
    with pytest.raises(DataDirInvalid, match="format 2, this version of walrq reads format 1"):
        restoring.verify(io.BytesIO(repacked(backup, {"format": 2})))


@pytest.mark.parametrize(
    "parts",
    [
        None,
        [],
        [[MANIFEST_PART, 1], [PAGES_PART, 1], ["../../etc/passwd", 1]],
        [[MANIFEST_PART, 1], [PAGES_PART, 1], ["wal/seg-00000000000000000001.wal", -1]],
        [[MANIFEST_PART, 1], [PAGES_PART, 1], *[["wal/seg-00000000000000000001.wal", 1]] * 2],
        [[PAGES_PART, 1], [MANIFEST_PART, 1]],
        [["wal/seg-00000000000000000001.wal", True]],
        [[MANIFEST_PART], [PAGES_PART, 1]],
    ],
)
def test_a_list_of_parts_that_no_node_makes_is_refused(backup: bytes, parts: object, tmp_path: Path) -> None:
    """A file from elsewhere decides neither where anything is written nor in what order it is read."""
    with pytest.raises(CorruptRecord, match="none of a backup"):
        restoring.restore(io.BytesIO(repacked(backup, {"parts": parts})), tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_part_that_is_shorter_than_announced_ends_the_writing(export: Export) -> None:
    """A backup never pretends: what could not be read is an error, not zeros."""
    with pytest.raises(CorruptRecord, match="ended before"):
        archive.write(io.BytesIO(), export.facts, export.parts, lambda number: [b"short"])


def test_too_many_segments_are_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of parts has to fit into a frame."""
    monkeypatch.setattr("walrq.backup.export.BACKUP_PARTS_MAX", 2)
    with pytest.raises(StorageError, match="use larger segments"):
        Life(tmp_path / "a").export()


# --- the file that is written --------------------------------------------------------------------------------
def test_a_new_file_appears_whole_and_for_its_owner_only(tmp_path: Path) -> None:
    """It holds every message and the key of all receipts."""
    path = tmp_path / "x"
    with archive.new_file(str(path)) as file:
        file.write(b"whole")
        assert ["x.part"] == os.listdir(tmp_path)

    assert b"whole" == path.read_bytes()
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert ["x"] == os.listdir(tmp_path)


def test_a_file_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    """Last night's backup is not given up for half of tonight's."""
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="broken"), archive.new_file(str(path)) as file:
        file.write(b"half")
        raise ValueError("broken")

    assert b"old" == path.read_bytes()
    assert ["x"] == os.listdir(tmp_path)


def test_a_large_file_goes_to_the_disk_as_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One flush of gigabytes at the end would keep the commits of a node on the same disk waiting for seconds."""
    sizes: list[int] = []
    synced = archive.RealDisk.fdatasync

    def sync(disk: archive.RealDisk, handle: int) -> None:
        sizes.append(os.fstat(handle).st_size)
        synced(disk, handle)

    monkeypatch.setattr(archive.RealDisk, "fdatasync", sync)
    with archive.new_file(str(tmp_path / "x")) as file:
        for _ in range(30):
            file.write(bytes(1_000_000))

    assert 30_000_000 == sizes[-1]
    assert max(later - earlier for earlier, later in itertools.pairwise([0, *sizes])) <= 10_000_000


def test_a_size_that_the_manifest_does_not_say_is_refused() -> None:
    """The parts of a well-formed tar are compared with the list, too."""
    file = io.BytesIO()
    parts = [Part(MANIFEST_PART, 5), Part(PAGES_PART, 1)]
    archive.write(file, {**FACTS, "format": 1}, parts, lambda number: [b"x" * parts[number].size])
    data = repacked(file.getvalue(), {"parts": [[MANIFEST_PART, 6], [PAGES_PART, 1]]})

    with pytest.raises(CorruptRecord, match="has 5 of 6 bytes"):
        restoring.verify(io.BytesIO(data))
