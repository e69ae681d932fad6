"""Terms by runs, against a plain list of terms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walrq.raft.log import Log


@st.composite
def logs(draw: st.DrawFn) -> tuple[Log, int, list[int]]:
    """(log, index of its base, terms from the base on) after a random life."""
    base, base_term = draw(st.sampled_from([(0, 0), (3, 2)]))
    log = Log(base, base_term)
    terms = [base_term]
    for _ in range(draw(st.integers(0, 25))):
        match draw(st.integers(0, 5)):
            case 0 if len(terms) > 1:
                kept = draw(st.integers(1, len(terms) - 1))
                log.truncate(base + kept)
                del terms[kept:]
            case 1:
                up_to = draw(st.integers(0, len(terms) - 1))
                log.compact(base + up_to)
                base, terms = base + up_to, terms[up_to:]
            case _:
                term = terms[-1] + draw(st.sampled_from([0, 0, 0, 1, 2])) or 1
                assert log.append(term) == base + len(terms)
                terms.append(term)
    return log, base, terms


@given(logs())
def test_every_term_is_known_as_a_list_would_know_it(case: tuple[Log, int, list[int]]) -> None:
    """Runs are only a short way to write the same."""
    log, base, terms = case

    assert (log.base_index, log.base_term) == (base, terms[0])
    assert (log.last_index, log.last_term) == (base + len(terms) - 1, terms[-1])
    assert [None, *terms, None] == [log.term_at(index) for index in range(base - 1, base + len(terms) + 1)]
    assert all(log.matches(base + number, term) for number, term in enumerate(terms))
    assert len(log.runs) == len(set(terms[1:]))


@given(logs(), st.integers(0, 40), st.integers(0, 30))
def test_the_point_of_agreement_is_the_last_entry_of_no_higher_term(
    case: tuple[Log, int, list[int]], index: int, term: int
) -> None:
    """One step back over a whole term, as looking at each entry would find it."""
    log, base, terms = case
    known = [
        (base + number, found)
        for number, found in enumerate(terms)
        if number and base + number <= index and found <= term
    ]

    assert (known[-1] if known else (base, terms[0])) == log.last_at_or_below(index, term)


@given(logs())
def test_a_log_starts_again_as_it_was(case: tuple[Log, int, list[int]]) -> None:
    """What a core is started from says all."""
    log, _, _ = case
    again = Log.of(log.last_index, log.last_term, log.runs, log.base_term)

    assert again.runs == log.runs
    assert (again.last_index, again.last_term) == (log.last_index, log.last_term)
    assert again.term_at(log.last_index) == log.term_at(log.last_index)


def test_without_runs_only_the_end_is_known() -> None:
    """A node that is alone owes no more."""
    log = Log.of(12, 3, (), 0)

    assert (12, 3) == (log.last_index, log.last_term)
    assert [None, 3, None] == [log.term_at(index) for index in (11, 12, 13)]
    assert 13 == log.append(4)


def test_terms_never_fall_and_gaps_are_our_own_mistakes() -> None:
    """PrevTermValid."""
    log = Log.of(5, 3, ((2, 1), (4, 3)), 1)
    with pytest.raises(AssertionError):
        log.append(2)
    with pytest.raises(AssertionError):
        log.truncate(1)
    with pytest.raises(AssertionError):
        log.compact(6)
    with pytest.raises(AssertionError):
        Log.of(5, 2, ((2, 1), (4, 3)), 1)
    with pytest.raises(AssertionError):
        Log.of(5, 1, ((2, 3), (4, 1)), 1)


def test_compacting_what_is_gone_changes_nothing() -> None:
    """An older snapshot may be reported late."""
    log = Log.of(5, 3, ((2, 1), (4, 3)), 1)
    log.compact(4)
    log.compact(2)

    assert (4, 3, ((5, 3),)) == (log.base_index, log.base_term, log.runs)
    log.reset(9, 4)
    assert (9, 4, 9, ()) == (log.base_index, log.base_term, log.last_index, log.runs)
