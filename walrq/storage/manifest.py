"""The bytes of a snapshot's manifest: which page lies where, with its hash.

0   magic    8 bytes  WALRQMAN
8   version  u32
12  crc      u32      CRC-32C of what follows
16  length   u64      bytes of the body
24  body     CBOR, canonical: {index, term, meta, pages: {key: [file, offset, length, hash]}}
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
class Manifest:
    """One complete snapshot. `meta` is the caller's."""

    index: int
    term: int
    meta: bytes
    pages: Mapping[bytes, PageAt]

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
    body = cbor2.dumps(
        {
            "index": manifest.index,
            "term": manifest.term,
            "meta": manifest.meta,
            "pages": {key: [page.file, page.offset, page.length, page.hash] for key, page in manifest.pages.items()},
        },
        canonical=True,
    )
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
    return Manifest(fields["index"], fields["term"], fields["meta"], pages)


def _length_crc(length: int) -> int:
    return int(crc32c(length.to_bytes(8, "little")))
