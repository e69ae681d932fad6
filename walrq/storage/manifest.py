"""The bytes of a snapshot's manifest: which page lies where, with its hash.

0   magic    8 bytes  WALRQMAN
8   version  u32
12  crc      u32      CRC-32C of what follows
16  length   u64      bytes of the body
24  body     CBOR, canonical: {index, term, meta, pages: {key: [file, offset, length, hash]}}, and of a snapshot
             that was installed: install: {base, incarnation, segments: [[first index, incarnation]]}
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Any, Final

import attrs
import cbor2
from crc32c import crc32c

MAGIC: Final = b"WALRQMAN"
VERSION: Final = 1
HASH_BYTES: Final = 16
_HEADER: Final = struct.Struct("<8sIIQ")


def hash_of(page: bytes) -> bytes:
    """BLAKE2b-128 of a page: what nodes compare."""
    return hashlib.blake2b(page, digest_size=HASH_BYTES).digest()


@attrs.frozen
class PageAt:
    """Where a page lies: number of its page file, offset, bytes, hash."""

    file: int
    offset: int
    length: int
    hash: bytes


@attrs.frozen
class Install:
    """What became of the log when this snapshot was installed; true of it for ever (`opening.complete_install`).

    Of the segments with an incarnation up to `incarnation` only these are part of the log: the records up to `base` of
    those that begin at or before it, and `segments`, named by first index and incarnation.
    """

    base: int
    incarnation: int
    segments: tuple[tuple[int, int], ...]


@attrs.frozen
class Manifest:
    """One complete snapshot. `meta` is the caller's; `install`: it came from another node."""

    index: int
    term: int
    meta: bytes
    pages: Mapping[bytes, PageAt]
    install: Install | None = None

    @property
    def page_bytes(self) -> int:
        """Bytes of all its pages."""
        return sum(page.length for page in self.pages.values())

    @property
    def files(self) -> frozenset[int]:
        """Page files it refers to."""
        return frozenset(page.file for page in self.pages.values())


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of the file."""
    fields: dict[str, Any] = {
        "index": manifest.index,
        "term": manifest.term,
        "meta": manifest.meta,
        "pages": {key: [page.file, page.offset, page.length, page.hash] for key, page in manifest.pages.items()},
    }
    if manifest.install is not None:
        fields["install"] = attrs.asdict(manifest.install)
    body = cbor2.dumps(fields, canonical=True)
    return _HEADER.pack(MAGIC, VERSION, int(crc32c(body, _length_crc(len(body)))), len(body)) + body


def decode_manifest(data: bytes) -> Manifest | None:
    """The manifest, or None if any bit of it is wrong."""
    if len(data) < _HEADER.size:
        return None
    magic, version, crc, length = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    if magic != MAGIC or version != VERSION or length != len(body):
        return None
    if crc32c(body, _length_crc(length)) != crc:
        return None
    fields: dict[str, Any] = cbor2.loads(body)
    pages = {bytes(key): PageAt(*place) for key, place in fields["pages"].items()}
    install = fields.get("install")
    if install is not None:
        segments = tuple((first, incarnation) for first, incarnation in install["segments"])
        install = Install(install["base"], install["incarnation"], segments)
    return Manifest(fields["index"], fields["term"], fields["meta"], pages, install)


def _length_crc(length: int) -> int:
    return int(crc32c(length.to_bytes(8, "little")))
