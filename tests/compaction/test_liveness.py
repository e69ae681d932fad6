"""What is alive by a snapshot: never less than there is, and read again only where it changed."""

from __future__ import annotations

import itertools

import pytest

from tests.compaction.worlds import alive, image, lived
from walrq.compaction.liveness import Alive, Liveness, Marks
from walrq.storage.storage import Storage
from walrq.testing.disk import SimDisk


def marks_of(liveness: Liveness, storage: Storage, first: int, last: int) -> Marks:
    """What is marked in a span."""
    pages = storage.hold_pages()
    assert pages is not None
    found: Marks = {}
    for step in liveness.marks(pages, first, last):
        found = step if step is not None else found
    pages.release()
    return found


def refreshed(storage: Storage, liveness: Liveness | None = None) -> Liveness:
    """Liveness of the newest snapshot."""
    liveness = liveness or Liveness()
    pages = storage.hold_pages()
    assert pages is not None
    for _ in liveness.refresh(pages):
        pass
    pages.release()
    return liveness


@pytest.mark.parametrize("seed", range(4))
def test_marks_are_exactly_what_the_machine_holds(seed: int) -> None:
    """Every position of every batch in every state, and nothing else."""
    storage, machine, _ = lived(SimDisk(), seed, 700)
    expected: dict[tuple[int, int], set[int]] = {}
    for index, ordinal, first, last in alive(machine):
        expected.setdefault((index, ordinal), set()).update(range(first, last + 1))
    liveness = refreshed(storage)

    marks = marks_of(liveness, storage, 1, 700)

    found = {
        (index, ordinal): {at for first, last in ranges for at in range(first, last + 1)}
        for index, ordinals in marks.items()
        for ordinal, ranges in ordinals.items()
    }
    assert expected == found
    for ordinals in marks.values():
        for ranges in ordinals.values():
            assert all(low[1] + 1 < high[0] for low, high in itertools.pairwise(ranges))
    low, high = 200, 400
    part = marks_of(liveness, storage, low, high)
    assert {index: marks[index] for index in marks if low <= index <= high} == part
    assert all(not liveness.is_empty(index, index) for index in marks)


def test_only_pages_that_changed_are_read_again() -> None:
    """A pass after a snapshot costs what the snapshot cost, not what there is."""
    storage, machine, _ = lived(SimDisk(), 1, 700)
    liveness = refreshed(storage)
    read = liveness.pages_read
    assert read > 5
    image(storage, machine, 701)
    refreshed(storage, liveness)
    assert read == liveness.pages_read
    assert 701 == liveness.index


def test_sums_over_spans_agree_with_the_whole() -> None:
    """However a page's rows are spread: nothing is counted twice, and nothing is left out."""
    rows = [(index * index, 0, 0, 0, 50) for index in range(1, 500)]
    page = Alive.of(b"", rows)
    assert page.total == 499 * (50 + 96) == page.up_to(1 << 60)
    assert 0 == page.up_to(0)
    values = [page.up_to(index) for index in range(0, 499 * 499 + 2, 97)]
    assert sorted(values) == values
    assert page.touches(1, 1) and page.touches(498 * 498, 499 * 499) and not page.touches(499 * 499 + 1, 1 << 60)
    assert Alive.of(b"", []).total == 0


def test_many_spans_at_once_are_as_each_alone() -> None:
    """One walk over the pages for all segments."""
    storage, _, _ = lived(SimDisk(), 2, 700)
    liveness = refreshed(storage)
    spans = [(1, 50), (51, 52), (60, 333), (400, 800)]
    assert [liveness.bytes_in(*span) for span in spans] == liveness.bytes_by(spans)
