"""What goes into a persist, and what comes out of what was decided."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from walrq.limits import ENTRY_BYTES_TARGET, ENTRY_COMMANDS_MAX
from walrq.queues.commands import Push, Stamp, Tagged
from walrq.queues.effects import Effects, Result
from walrq.raft.unstable import Ready
from walrq.replica.company import Company
from walrq.storage.record import Record

NO_STAMP = Stamp(0, 0)
NO_COMPANY = Company()


@attrs.define(eq=False)
class Batch:
    """What one persist writes: hard state, a cut, records, any of which may be absent.

    Attributes:
        stamp, commands, tickets: of the entry that was packed from proposals, the last of `records`; `tickets` belong
            to `commands`, position by position; 0 has no waiter. Empty when nothing was packed.
        repaired: what this node had lost is here again, to be noted first.
        hurt: this node does not have all that it acknowledged, to be noted first.
        company: who else decides: to be stored with term and vote.
        alone: nobody else was sent any of it, so a full disk may refuse it.
        begun: all but its records is written.
    """

    ready: Ready
    records: list[Record]
    stamp: Stamp
    commands: list[Tagged]
    tickets: list[int]
    company: Company = NO_COMPANY
    alone: bool = True
    repaired: bool = False
    hurt: bool = False
    refused: bool = False
    begun: bool = False

    @property
    def may_use_reserve(self) -> bool:
        """Whether nothing in it adds messages: such entries may use the space kept for a full disk.

        What others may have by now must be written here too; their pushes were refused before they were proposed.
        """
        return not self.alone or not any(type(tagged.command) is Push for tagged in self.commands)


@attrs.define(eq=False)
class Done:
    """What became known since the last one.

    Attributes:
        results: (ticket, result) of proposals that were applied, in log order.
        effects: what to wake.
        lost: tickets of proposals that were appended under an office that has ended: nobody here knows what becomes
            of them.
        refused: tickets of proposals that were never appended and never will be: this node does not lead any more.
        reads: (ticket, whether it may be answered now from the state here); False: ask again.
        office_changed: the role or the known leader changed.
        members_changed: another configuration is in effect.
        installed: `Replica.machine` is another object now: the state came from a peer's snapshot.
        findings: what an operator must be told, loudly; one line each.
    """

    results: list[tuple[int, Result]]
    effects: Effects
    lost: Sequence[int] = ()
    refused: Sequence[int] = ()
    reads: Sequence[tuple[int, bool]] = ()
    office_changed: bool = False
    members_changed: bool = False
    installed: bool = False
    findings: Sequence[str] = ()


@attrs.define(eq=False)
class Pending:
    """An entry of this node's own that is not applied yet. `cut`: another leader's stands in its place."""

    stamp: Stamp
    commands: list[Tagged]
    tickets: list[int]
    cut: bool = False


def how_many(commands: list[Tagged]) -> int:
    """How many of the gathered commands make one entry."""
    size = 0
    for number, tagged in enumerate(commands):
        command = tagged.command
        if type(command) is Push:
            size += command.columns.size
            if size > ENTRY_BYTES_TARGET and number:
                return number
    return min(len(commands), ENTRY_COMMANDS_MAX)
