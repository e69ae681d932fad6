"""The bytes of a snapshot and the records it needs, on their way from one node's storage to another's.

    0   crc     u32   CRC-32C of what follows, key and body included
    4   length  u32   bytes of the body
    8   type    u8    1 record, 2 page, 3 end
    9   kind    u8    a record's
    10  key     u16   bytes of a page's key
    12  first   u64   a record's index; of the end: how many records came before it
    20  second  u64   a record's term; of the end: how many pages came before it
    28  key, then body

Records ascend, pages follow, the end closes. Indexes that are left out are dead; that costs nothing, however many.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from walrq.limits import ENTRY_BYTES_MAX

RECORD: Final = 1
PAGE: Final = 2
END: Final = 3
HEADER: Final = struct.Struct("<IIBBHQQ")
_AFTER_CRC: Final = struct.Struct("<IBBHQQ")
CRC_BYTES: Final = 4
# A page is bounded like an entry; twice that, so that the bound here is never the one that is met.
BODY_BYTES_MAX: Final = 2 * ENTRY_BYTES_MAX


def encode_item(kind_of_item: int, kind: int, first: int, second: int, key: bytes, body: bytes) -> bytes:
    """One item."""
    rest = _AFTER_CRC.pack(len(body), kind_of_item, kind, len(key), first, second)
    crc = crc32c(body, crc32c(key, crc32c(rest)))
    return b"".join((int(crc).to_bytes(CRC_BYTES, "little"), rest, key, body))
