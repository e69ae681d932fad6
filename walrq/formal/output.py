"""What TLC says when it is run with `-tool`: numbered messages, and what they mean.

    @!@!@STARTMSG 2217:4 @!@!@
    2: <Inc line 6, col 11 to line 6, col 20 of module T>
    /\\ x = 1
    @!@!@ENDMSG 2217 @!@!@

Pure: lines go in, `Progress` values come out at once, and `transcript` has the rest at the end. The verdict is the exit
status's business, not the text's.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Final

import attrs

from walrq.formal.values import Function, parse_state


class Verdict(enum.StrEnum):
    """How a run ended."""

    OK = "ok"
    ASSUMPTION = "assumption false"
    DEADLOCK = "deadlock"
    INVARIANT = "invariant violated"
    PROPERTY = "property violated"
    EVALUATION = "cannot be evaluated"
    PARSE = "does not parse"
    CONFIGURATION = "bad configuration"
    TIMEOUT = "timed out"
    CRASHED = "ended by itself"


_STATUSES: Final[Mapping[int, Verdict]] = {
    0: Verdict.OK,
    10: Verdict.ASSUMPTION,
    11: Verdict.DEADLOCK,
    12: Verdict.INVARIANT,
    13: Verdict.PROPERTY,
    75: Verdict.EVALUATION,
    150: Verdict.PARSE,
    1: Verdict.CONFIGURATION,
    151: Verdict.CONFIGURATION,
    255: Verdict.CONFIGURATION,
}


def verdict_of(status: int) -> Verdict:
    """What TLC's exit status means."""
    return _STATUSES.get(status, Verdict.CRASHED)


@attrs.frozen
class Progress:
    """How far a run is. Simulation knows only `generated` (the others are -1)."""

    depth: int
    generated: int
    distinct: int
    queued: int


@attrs.frozen
class Step:
    """One state of a counterexample, and the action that led to it (None: initial, or stuttering)."""

    action: str | None
    state: Function


@attrs.define
class Transcript:
    """What a run said.

    Attributes:
        violated: name of the invariant or property; None when nothing was, or TLC does not say (temporal ones).
        trace: the counterexample.
        back_to: for a lasso: number of the state (from 1) that the last one goes back to; 0 = it stutters for ever.
        generated, distinct, depth: of the search; 0 when it had none.
        printed: lines that the module printed.
        printed_s: for each of them, seconds since the start of the run; filled in by whoever runs it.
        errors: everything of the class of errors, joined.
    """

    violated: str | None = None
    trace: list[Step] = attrs.field(factory=list)
    back_to: int | None = None
    generated: int = 0
    distinct: int = 0
    depth: int = 0
    printed: list[str] = attrs.field(factory=list)
    printed_s: list[float] = attrs.field(factory=list)
    errors: list[str] = attrs.field(factory=list)


_START: Final = re.compile(r"@!@!@STARTMSG (\d+):(\d+) @!@!@")
_END: Final = re.compile(r"@!@!@ENDMSG (\d+) @!@!@")
_PROGRESS: Final = re.compile(
    r"Progress\((-?[\d,]+)\).*?: (-?[\d,]+) states generated.*?, (-?[\d,]+) distinct states found"
    r".*?, (-?[\d,]+) states left"
)
_COUNTS: Final = re.compile(r"([\d,]+) states generated, ([\d,]+) distinct states found")
_VIOLATED: Final = re.compile(
    r"(?:Invariant|Action property|Temporal properties?|Property) (\w+) (?:is|was|were) violated"
)
_STEP: Final = re.compile(r"(\d+): (?:<(\w+) line .*>|<(Initial predicate)>|(.*))")

_COMPLAINT: Final = re.compile(r"\*\*\* Errors|Parse Error|Unknown operator|Could not|Exception|was expecting")

# Messages by number.
_INVARIANTS: Final = (2110, 2107)
_PROPERTIES: Final = (2112, 2116)
_STATE: Final = 2217
_STUTTERING: Final = 2218
_BACK: Final = 2122
_STATISTICS: Final = 2199
_DEPTH: Final = 2194
_PROGRESSES: Final = (2200, 2209)
_ERROR_CLASS: Final = 1
_INITIAL: Final = "Initial predicate"


def _number(text: str) -> int:
    return int(text.replace(",", ""))


class Reading:
    """Takes TLC's output line by line."""

    def __init__(self) -> None:
        self.transcript = Transcript()
        self._code = 0
        self._class = 0
        self._lines: list[str] = []
        self._complaining = False

    def line(self, line: str) -> Progress | None:
        """Take the next line (without its end); what it says of the run's progress, if it does."""
        start = _START.fullmatch(line.strip())
        if start is not None:
            self._code, self._class = int(start[1]), int(start[2])
            self._lines = []
            self._complaining = False
            return None
        if _END.fullmatch(line.strip()) is not None:
            code, self._code = self._code, 0
            return self._message(code, "\n".join(self._lines))
        if self._code:
            self._lines.append(line)
        elif line.startswith(("<<", '"')):
            self.transcript.printed.append(line)
        elif line.strip() and (self._complaining or _COMPLAINT.search(line)):
            # The parser's complaints are no messages: the first is followed by what it is about.
            self._complaining = True
            self.transcript.errors.append(line)
        return None

    def _message(self, code: int, text: str) -> Progress | None:
        said = self.transcript
        if self._class == _ERROR_CLASS:
            said.errors.append(text)
        if code in _INVARIANTS or code in _PROPERTIES:
            found = _VIOLATED.search(text)
            said.violated = found[1] if found is not None else None
        elif code == _STATE:
            self._state(text)
        elif code == _STUTTERING:
            said.back_to = 0
        elif code == _BACK:
            number = re.search(r"(\d+)", text)
            said.back_to = int(number[1]) if number is not None else None
        elif code == _STATISTICS:
            counts = _COUNTS.search(text)
            if counts is not None:
                said.generated, said.distinct = _number(counts[1]), _number(counts[2])
        elif code == _DEPTH:
            depth = re.search(r"is (\d+)", text)
            said.depth = int(depth[1]) if depth is not None else 0
        elif code in _PROGRESSES:
            found = _PROGRESS.search(text)
            if found is not None:
                said.generated = _number(found[2])
                return Progress(*(_number(each) for each in found.groups()))
        return None

    def _state(self, text: str) -> None:
        head, _, body = text.partition("\n")
        found = _STEP.match(head)
        if found is None or not body.strip():
            return
        self.transcript.trace.append(Step(found[2], parse_state(body)))
