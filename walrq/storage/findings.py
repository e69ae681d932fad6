"""What recovery and verification say about a data directory: plain values, fit for JSON and a log line."""

from __future__ import annotations

import enum
from typing import Any

import attrs


class Verdict(enum.StrEnum):
    """How bad it is.

    torn: a tail that nobody was told about; cut.
    suspect: between the two slots; it may have been acknowledged. A single node cuts it and names the
        indexes.
    damaged: it was durable and is not readable any more; kept aside, everything around it is served.
    missing: indexes that no segment holds: above the snapshot, or below it with live messages in them; or the
        newest segment itself.
    metadata: a header, slot, manifest or page file could not be read; what follows from that is in the text.
    """

    TORN = "torn"
    SUSPECT = "suspect"
    DAMAGED = "damaged"
    MISSING = "missing"
    METADATA = "metadata"


@attrs.frozen
class Finding:
    """One thing found.

    Attributes:
        verdict: how bad.
        file: name relative to the data directory.
        start, end: byte span in that file; both 0 when the finding is not about bytes.
        first_index, last_index: log indexes lost, inclusive; last < first: none.
        text: one sentence.
        kept_as: where the bytes were copied to, relative to the data directory; empty: nowhere.
    """

    verdict: Verdict
    file: str
    text: str
    start: int = 0
    end: int = 0
    first_index: int = 1
    last_index: int = 0
    kept_as: str = ""

    @property
    def lost(self) -> range:
        """The log indexes that are lost."""
        return range(self.first_index, self.last_index + 1)

    def __str__(self) -> str:
        entries = f" entries {self.first_index}..{self.last_index}" if self.lost else ""
        span = f" bytes {self.start}..{self.end}" if self.end else ""
        kept = f" (kept as {self.kept_as})" if self.kept_as else ""
        return f"verdict={self.verdict.value} file={self.file}{entries}{span}: {self.text}{kept}"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**attrs.asdict(self), "verdict": self.verdict.value}
