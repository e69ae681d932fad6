"""Every way to harm a file, and every place of a data directory where it matters: rows and columns of the matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import attrs

from walrq.far.shelf import PAGE_PREFIX
from walrq.queues.image import SEALED_PREFIX
from walrq.storage import identity
from walrq.storage.manifest import decode_manifest
from walrq.storage.segment import RECORDS_START, number_in, read_header
from walrq.storage.snapshot import manifest_number, pages_name
from walrq.testing.disk import SimDisk

DIR: Final = "data"
BLOCK: Final = 512


@attrs.frozen
class Place:
    """A stretch of a file. `kind`: what lies there; `whole`: it is all of the file."""

    kind: str
    path: str
    start: int
    end: int
    whole: bool = False


def places(disk: SimDisk) -> Iterator[Place]:
    """One place of each kind that this directory has, and of segments more than one."""
    yield Place("identity", f"{DIR}/{identity.NAME}", 0, disk.size(f"{DIR}/{identity.NAME}"), True)
    yield Place("hard state", f"{DIR}/hard-state", 0, len(disk.content(f"{DIR}/hard-state").rstrip(b"\0")), True)
    names = [name for name in disk.list_directory(f"{DIR}/wal") if number_in(name, free=False) is not None]
    for name in (names[0], names[len(names) // 2], names[-1]):
        path = f"{DIR}/wal/{name}"
        header = read_header(disk, path)
        assert header is not None
        kind = "open segment" if name == names[-1] else "sealed segment"
        used = len(disk.content(path).rstrip(b"\0"))
        yield Place(kind, path, RECORDS_START, used, True)
    yield Place("slots", f"{DIR}/wal/{names[-1]}", 0, RECORDS_START)
    newest = max(name for name in disk.list_directory(f"{DIR}/snapshots") if manifest_number(name) is not None)
    path = f"{DIR}/snapshots/{newest}"
    yield Place("manifest", path, 0, disk.size(path), True)
    manifest = decode_manifest(disk.content(path))
    assert manifest is not None
    kinds = {PAGE_PREFIX: "delayed page", SEALED_PREFIX: "cold page", b"q": "queue page", b"u": "table page"}
    for prefix, kind in kinds.items():
        found = [place for key, place in sorted(manifest.pages.items()) if key[:1] == prefix]
        for at in found[:1]:
            yield Place(kind, f"{DIR}/snapshots/{pages_name(at.file)}", at.offset, at.offset + at.length)


def _middle(place: Place) -> int:
    return (place.start + place.end) // 2


def _flip(disk: SimDisk, place: Place, old: SimDisk) -> bool:
    disk.flip_bit(place.path, 8 * _middle(place) + 3)
    return True


def _flip_first(disk: SimDisk, place: Place, old: SimDisk) -> bool:
    disk.flip_bit(place.path, 8 * place.start)
    return True


def _cut(disk: SimDisk, place: Place, old: SimDisk) -> bool:
    disk.cut(place.path, _middle(place))
    return True


def _zero(disk: SimDisk, place: Place, old: SimDisk) -> bool:
    start = max(place.start, _middle(place) - BLOCK // 2)
    disk.zero(place.path, start, min(place.end, start + BLOCK))
    return True


def _punch(disk: SimDisk, place: Place, old: SimDisk) -> bool:
    disk.zero(place.path, place.start, place.end)
    return True


def _unlink(disk: SimDisk, place: Place, old: SimDisk) -> bool:
    if place.whole:
        disk.unlink(place.path)
    return place.whole


def _stale(disk: SimDisk, place: Place, old: SimDisk) -> bool:
    """The file as it was a while ago, if it was there."""
    if not place.whole or not old.exists(place.path) or old.content(place.path) == disk.content(place.path):
        return False
    disk.cut(place.path, 0)
    disk.overwrite(place.path, 0, old.content(place.path))
    return True


def _swap(disk: SimDisk, place: Place, old: SimDisk) -> bool:
    """Two files of one folder change their names."""
    if not place.whole:
        return False
    folder, _, name = place.path.rpartition("/")
    others = [
        other
        for other in disk.list_directory(folder)
        if other != name and other[:4] == name[:4] and disk.size(f"{folder}/{other}")
    ]
    if not others:
        return False
    one, two = disk.content(place.path), disk.content(f"{folder}/{others[0]}")
    for path, content in ((place.path, two), (f"{folder}/{others[0]}", one)):
        disk.cut(path, 0)
        disk.overwrite(path, 0, content)
    return True


def _misdirect(disk: SimDisk, place: Place, old: SimDisk) -> bool:
    """A block that was meant for another place lies here."""
    content = disk.content(place.path)
    if place.end - place.start < 2 * BLOCK:
        return False
    disk.overwrite(place.path, _middle(place), content[place.start : place.start + BLOCK])
    return True


KINDS: Final[dict[str, Callable[[SimDisk, Place, SimDisk], bool]]] = {
    "bit flip": _flip,
    "bit flip at the start": _flip_first,
    "truncated": _cut,
    "zeroed block": _zero,
    "punched hole": _punch,
    "missing": _unlink,
    "stale copy": _stale,
    "swapped": _swap,
    "misdirected write": _misdirect,
}
